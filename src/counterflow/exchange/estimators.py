"""The proprietary estimator of a unit: a plug-in that nobody alters, with the Kalman filter as default.

Any object with ``estimate(y, u) -> Estimates`` will do. It sees the unit's own measurements and inputs only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import DataError
from counterflow.filtering import kalman_filter
from counterflow.plant import LocalModel


@dataclass(frozen=True)
class Estimates:
    """What a proprietary estimator gives, rows 0..T.

    ``predicted`` (T+1, P_m): h_c[t], before the measurement of row t is seen.
    ``refined`` (T+1, P_m): ĥ_c[t], after it.
    """

    predicted: FloatArray
    refined: FloatArray


@runtime_checkable
class Estimator(Protocol):
    """A unit's proprietary state estimator."""

    def estimate(self, y: FloatArray, u: FloatArray) -> Estimates:
        """Predicted and refined states for measurements ``y`` (T+1, D_m) and inputs ``u`` (T+1, U_m)."""
        ...


@dataclass(frozen=True)
class KalmanEstimator:
    """Kalman filter on the local blocks A_mm, B_mm, C_mm, Q_m, R_m: the default proprietary model.

    Examples
    --------
    >>> import numpy as np
    >>> from counterflow import LocalModel
    >>> from counterflow.exchange.estimators import KalmanEstimator
    >>> model = LocalModel(A=[[0.5]], B=[[1.0]], C=[[2.0]], Q=[[0.1]], R=[[1.0]])
    >>> KalmanEstimator(model).estimate(np.zeros((4, 1)), np.ones((4, 1))).predicted.shape
    (4, 1)
    """

    model: LocalModel

    def estimate(self, y: FloatArray, u: FloatArray) -> Estimates:
        model = self.model
        result = kalman_filter(y, u, model.A, model.B, model.C, model.Q, model.R)
        return Estimates(result.predicted, result.filtered)


def checked_estimates(unit: str, estimator: Estimator, y: FloatArray, u: FloatArray, states: int) -> Estimates:
    """Run a plug-in and refuse what does not fit, naming the unit."""
    found = estimator.estimate(y, u)
    for field in ("predicted", "refined"):
        value = getattr(found, field, None)
        shape = (y.shape[0], states)
        if not isinstance(value, np.ndarray) or value.shape != shape:
            got = getattr(value, "shape", type(value).__name__)
            raise DataError(f"unit {unit!r}: its estimator must return {field!r} of shape {shape}, got {got}")
        if not np.isfinite(value).all():
            row = int(np.argwhere(~np.isfinite(value))[0][0])
            raise DataError(f"unit {unit!r}: its estimator returned a value that is not finite in {field!r}, row {row}")
    return Estimates(np.asarray(found.predicted, np.float64), np.asarray(found.refined, np.float64))
