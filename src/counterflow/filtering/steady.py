"""The steady state of the Kalman filter: the fixed point that its covariances tend to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import UnstableError
from counterflow.filtering.checks import as_noise, as_system
from counterflow.filtering.compression import compress
from counterflow.filtering.initial import default_covariance, lyapunov
from counterflow.filtering.results import freeze
from counterflow.filtering.update import closed_loop, predict, spectral_radius, update

_EPS = float(np.finfo(float).eps)
_STEPS = 2000  # rows of the recursion allowed for finding a first stabilising gain
_NEWTON = 100  # Newton steps; quadratic near the solution, but only halving while a mode is barely excited


@dataclass(frozen=True)
class SteadyState:
    """Where the covariances of the filter settle.

    Attributes
    ----------
    predicted_covariance : (P, P) array
        Of h[t] given y[0..t-1].
    filtered_covariance : (P, P) array
        Of h[t] given y[0..t].
    gain : (P, D) array
        K: filtered = predicted + K (y - C predicted).
    innovation_covariance : (D, D) array
        Of y - C predicted.
    radius : float
        Spectral radius of A (I - K C): how fast the filter forgets; less than 1.
    """

    predicted_covariance: FloatArray
    filtered_covariance: FloatArray
    gain: FloatArray
    innovation_covariance: FloatArray
    radius: float


def steady_state(A: FloatArray, C: FloatArray, Q: FloatArray, R: FloatArray) -> SteadyState:
    """Solve for the covariances and the gain that the filter tends to.

    The recursion itself gives a stabilising gain within a few steps; from there Newton's method solves the Riccati
    equation, each step being a Lyapunov equation whose solution is a sum of positive terms. Unit roots, roots close to
    the unit circle and unstable modes are solved alike.

    Parameters
    ----------
    A : (P, P) array
    C : (D, P) array
    Q : (P, P) array
        May be singular, or zero.
    R : (D, D) array

    Raises
    ------
    UnstableError
        If a mode that does not decay is not seen by any measurement; or if a mode on the unit circle is not excited by
        Q, because its gain then tends to zero for ever and no steady filter forgets its errors.

    Examples
    --------
    >>> one = np.eye(1)
    >>> steady = steady_state(one, one, one, one)  # a random walk: the golden ratio
    >>> steady.predicted_covariance.round(6).tolist(), round(steady.radius, 6)
    ([[1.618034]], 0.381966)
    """
    A, C, Q = as_system(A, C, Q)
    R = as_noise("R", R, len(C))
    compression = compress(C, R)
    X = _solve(A, compression.observation, Q)
    change = update(X, compression.observation)
    gain = change.gain @ np.linalg.solve(change.factor, compression.reach) if change.factor.size else 0 * C.T
    innovation = C @ X @ C.T + R
    return SteadyState(
        predicted_covariance=freeze(X), filtered_covariance=freeze(change.filtered), gain=freeze(gain),
        innovation_covariance=freeze((innovation + innovation.T) / 2), radius=spectral_radius(closed_loop(A, change)),
    )  # fmt: skip


def _solve(A: FloatArray, observation: FloatArray, Q: FloatArray) -> FloatArray:
    _, X = default_covariance(A, Q, observation)
    limit = 1 - 16 * len(A) * _EPS
    for _ in range(_STEPS):
        change = update(X, observation)
        if spectral_radius(closed_loop(A, change)) < limit:
            break
        X = predict(change.filtered, A, Q)
    else:
        raise UnstableError(_no_solution(A, Q))
    last = np.inf
    for _ in range(_NEWTON):
        F = closed_loop(A, change)
        if not spectral_radius(F) < limit:
            break
        AK = A @ np.linalg.solve(change.factor.T, change.gain.T).T if change.factor.size else change.gain
        new = lyapunov(F, Q + AK @ AK.T)
        scale = np.sqrt(np.maximum(new.diagonal(), np.finfo(float).tiny))
        moved = float((np.abs(new - X) / scale / scale[:, None]).max())
        X = new
        change = update(X, observation)
        if moved <= 4 * _EPS or (moved < 1e-7 and moved > 0.5 * last):
            if spectral_radius(closed_loop(A, change)) < limit:
                return X
            break
        last = moved
    raise UnstableError(_no_solution(A, Q))


def _no_solution(A: FloatArray, Q: FloatArray) -> str:
    """Say which mode keeps the filter from settling."""
    P = len(A)
    values = np.linalg.eigvals(A)
    nearest = values[np.abs(np.abs(values) - 1).argmin()]
    _, _, Vh = np.linalg.svd((A - nearest * np.eye(P)).T)
    left = Vh[-1].conj()
    excited = float((left.conj() @ Q @ left).real)
    return (
        f"the filter has no steady state that forgets its errors: the mode of A with eigenvalue {nearest:.9g} lies on "
        f"the unit circle and is excited by Q with variance {excited:.3g} only. "
        "Give that mode process noise, or filter with a given initial_covariance and no steady state"
    )
