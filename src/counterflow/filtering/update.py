"""One step of the Kalman recursion on covariances, and the judgement when repeating it changes nothing any more."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import ModelError
from counterflow.filtering.products import triangular_solve

NOT_POSITIVE = (
    "the covariance of the innovations is not finite and positive definite; "
    "initial_covariance, Q or the time since the last measurement of an unstable state is too large"
)


class Update(NamedTuple):
    """What one measurement s = C~ h + N(0, I) does to a predicted state of covariance X.

    With L L' = C~ X C~' + I: the whitened innovation is i = L^-1 (s - C~ p), the filtered mean is p + gain i.
    """

    factor: FloatArray  # L (r, r), lower
    score: FloatArray  # N = C~' L^-T (P, r); the derivative of the log-likelihood in p is N i
    gain: FloatArray  # X N (P, r)
    filtered: FloatArray  # covariance after the measurement (P, P)
    log_det: float  # log |det L|


def update(X: FloatArray, observation: FloatArray) -> Update:
    """Condition on a measurement, in Joseph's form: the result is symmetric and positive semidefinite.

    Parameters
    ----------
    X : (P, P) array
        Predicted covariance.
    observation : (r, P) array
        C~; the noise is N(0, I). r may be zero.
    """
    from scipy.linalg.lapack import dpotrf

    r, P = observation.shape
    if r == 0:
        nothing = np.zeros((P, 0))
        return Update(np.zeros((0, 0)), nothing, nothing, X, 0.0)
    S = observation @ X @ observation.T
    S.flat[:: r + 1] += 1.0
    L, failed = dpotrf(S, lower=1)
    if failed:
        raise ModelError(NOT_POSITIVE)
    whitened = triangular_solve(L, observation)  # N'
    gain = X @ whitened.T
    K = triangular_solve(L, gain.T, transpose=True)  # K', with gain = K L
    shrink = gain @ -whitened
    shrink.flat[:: P + 1] += 1.0
    filtered = shrink @ X @ shrink.T
    filtered += K.T @ K
    filtered = filtered + filtered.T
    filtered *= 0.5
    return Update(L, whitened.T, gain, filtered, math.fsum(map(math.log, L.diagonal().tolist())))


def predict(X: FloatArray, A: FloatArray, Q: FloatArray) -> FloatArray:
    """Covariance one step later, A X A' + Q, symmetric."""
    Y = A @ X @ A.T
    Y = Y + Y.T
    Y *= 0.5
    Y += Q
    return Y


def spectral_radius(F: FloatArray) -> float:
    """Largest modulus of the eigenvalues."""
    return float(np.abs(np.linalg.eigvals(F)).max())


def closed_loop(A: FloatArray, change: Update) -> FloatArray:
    """A - A K C~, the matrix that carries the error of one prediction to the next."""
    closed: FloatArray = A - A @ change.gain @ change.score.T
    return closed


TO_ROUNDING = 1e-14


class Convergence:
    """Judges when a contracting sequence of covariances has reached its limit to rounding.

    Errors shrink by rho^2 a step, rho the radius of the closed loop, so what is still missing after a change d is
    d rho^2 / (1 - rho^2). Once rounding hides the change, it is over when it has stopped shrinking at that rate.
    Changes are relative to the standard deviations, so that the units of the states do not matter.
    """

    _VANISHED = 1e-10  # a standard deviation that fell below this part of its largest value counts as zero

    def __init__(self, missing: float = TO_ROUNDING) -> None:
        self._missing = missing  # what may still be missing
        self._close = max(1e-9, 1e2 * missing)  # changes above this are not worth an eigenvalue
        self._largest: FloatArray | None = None
        self._last: FloatArray | None = None
        self._unchanged = 0
        self._mark = math.inf
        self._wait = 0

    def reached(self, X: FloatArray, change: Update, A: FloatArray) -> bool:
        """Whether `X` is the limit; call once a step with what the measurement does to it."""
        return self.settled(X, lambda: closed_loop(A, change))

    def settled(self, X: FloatArray, loop: Callable[[], FloatArray]) -> bool:
        """Whether `X` is the limit; `loop` gives the matrix whose squared radius is the contraction."""
        deviation = np.sqrt(X.diagonal())
        last, self._last = self._last, X
        if last is None or self._largest is None:
            self._largest = deviation
            return False
        self._largest = np.maximum(self._largest, deviation)
        scale = np.maximum(deviation, self._VANISHED * self._largest)
        scale[scale == 0] = 1.0
        moved = float((np.abs(X - last) / scale / scale[:, None]).max())
        if moved == 0.0:
            self._unchanged += 1
            return self._unchanged >= 2
        self._unchanged = 0
        if not moved < self._close:
            return False
        self._wait -= 1
        if self._wait > 0:
            return False
        radius = spectral_radius(loop())
        if radius >= 1.0:
            self._wait = 16
            return False
        missing = moved * radius**2 / (1 - radius**2)
        if missing <= self._missing or moved > 0.5 * self._mark:
            return True
        # Look again when the change should have become four times smaller.
        self._wait = max(2, math.ceil(math.log(4.0) / (-2 * math.log(radius)))) if radius > 0 else 2
        self._mark = moved
        return False
