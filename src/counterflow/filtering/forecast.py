"""What the filter says about measurements that it has not seen: one row ahead, and over a horizon."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import DataError, UnstableError
from counterflow.filtering.checks import as_covariance, as_noise, as_shaped, as_system
from counterflow.filtering.covariances import predict
from counterflow.filtering.results import freeze
from counterflow.recurrence import linear_recurrence


@dataclass(frozen=True)
class Forecast:
    """Rows T+1 to T+H, seen from row T.

    Attributes
    ----------
    states : (H, P) array
    state_covariance : (H, P, P) array
    measurements : (H, D) array
    measurement_covariance : (H, D, D) array
        Of measurements to come, so R is included.
    """

    states: FloatArray
    state_covariance: FloatArray = field(repr=False)
    measurements: FloatArray
    measurement_covariance: FloatArray = field(repr=False)


def forecast(
    mean: FloatArray, covariance: FloatArray, u_future: FloatArray, A: FloatArray, B: FloatArray, C: FloatArray,
    Q: FloatArray, R: FloatArray,
) -> Forecast:  # fmt: skip
    """Forecast states and measurements from the last filtered row.

    Parameters
    ----------
    mean : (P,) array
        Of h[T], for instance `FilterResult.final_mean`.
    covariance : (P, P) array
        Of h[T], for instance `FilterResult.final_covariance`.
    u_future : (H, U) array
        Row 0 is u[T], which acts on row T+1, the first forecast.
    A, B, C, Q, R : arrays
        The model, as in `kalman_filter`; R is (D, D).

    Examples
    --------
    >>> one = np.eye(1)
    >>> ahead = forecast(np.array([8.0]), one, np.zeros((2, 1)), 0.5 * one, one, one, one, one)
    >>> ahead.measurements.ravel().tolist(), ahead.measurement_covariance.ravel().tolist()
    ([4.0, 2.0], [2.25, 2.3125])
    """
    A, C, Q = as_system(A, C, Q)
    P = len(A)
    B = as_shaped("B", B, (P, "U"))
    R = as_noise("R", R, len(C))
    mean = as_shaped("mean", mean, (P,), DataError)
    X = as_covariance("covariance", covariance, P)
    u_future = as_shaped("u_future", u_future, ("H", B.shape[1]), DataError)
    horizon = len(u_future)
    states = linear_recurrence(A, u_future @ B.T, mean)
    state_covariance = np.empty((horizon, P, P))
    with np.errstate(over="ignore", invalid="ignore"):
        for k in range(horizon):
            X = predict(X, A, Q)
            state_covariance[k] = X
        measurement_covariance = C @ state_covariance @ C.T + R
        measurements = states @ C.T
    if not (np.isfinite(measurements).all() and np.isfinite(measurement_covariance).all()):
        raise UnstableError("the forecast overflows: A is unstable and the horizon too long; shorten u_future")
    return Forecast(freeze(states), freeze(state_covariance), freeze(measurements), freeze(measurement_covariance))
