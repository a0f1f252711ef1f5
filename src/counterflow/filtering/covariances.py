"""Covariances of the filter: one step of the recursion, where it starts, when it has settled, and where it tends to."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import ModelError, UnstableError
from counterflow.filtering.compression import compress
from counterflow.filtering.products import triangular_solve

VAGUE = 1e6  # a vague variance, in units of what P noise-free steps of measurements determine
_LASTING = 1e-10  # modes closer than this to the unit circle, or outside it, have no stationary covariance to speak of
_UNSEEN = 1e-13  # relative size of what a measurement sees of a mode, below which it sees nothing
_EPS = float(np.finfo(float).eps)
_STEPS = 2000  # rows of the recursion allowed for finding a first stabilising gain
_NEWTON = 100  # Newton steps; quadratic near the solution, but only halving while a mode is barely excited
_ROUNDING = 1e-14  # relative error of a covariance that is taken to have settled
_CLOSE = 1e-9  # changes above this are not worth an eigenvalue
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
    """Condition X (P, P) on a measurement C~ (r, P), in Joseph's form: symmetric and semidefinite. r may be zero."""
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


class Convergence:
    """Judges when a contracting sequence of covariances has reached its limit to rounding.

    Errors shrink by rho^2 a step, rho the radius of the closed loop, so what is still missing after a change d is
    d rho^2 / (1 - rho^2). Once rounding hides the change, it is over when it has stopped shrinking at that rate.
    Changes are relative to the standard deviations, so that the units of the states do not matter.
    """

    _VANISHED = 1e-10  # a standard deviation that fell below this part of its largest value counts as zero

    def __init__(self) -> None:
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
        if not moved < _CLOSE:
            return False
        self._wait -= 1
        if self._wait > 0:
            return False
        radius = spectral_radius(loop())
        if radius >= 1.0:
            self._wait = 16
            return False
        missing = moved * radius**2 / (1 - radius**2)
        if missing <= _ROUNDING or moved > 0.5 * self._mark:
            return True
        # Look again when the change should have become four times smaller.
        self._wait = max(2, math.ceil(math.log(4.0) / (-2 * math.log(radius)))) if radius > 0 else 2
        self._mark = moved
        return False


# ---- where it starts


def lyapunov(F: FloatArray, Q: FloatArray) -> FloatArray:
    """Sum of F^k Q F'^k by doubling: every term is positive, so nothing cancels, however slow the decay."""
    X = Q
    for _ in range(64):
        with np.errstate(over="ignore", invalid="ignore"):
            more = F @ X @ F.T
            F = F @ F
            X = X + (more + more.T) / 2
        if not np.isfinite(X).all():
            break
        scale = np.sqrt(np.maximum(X.diagonal(), np.finfo(float).tiny))
        if (np.abs(more) <= 0.01 * _EPS * scale * scale[:, None]).all():
            return X
    raise UnstableError("the covariance grows without bound: an eigenvalue is too close to the unit circle")


def default_covariance(A: FloatArray, Q: FloatArray, observation: FloatArray) -> tuple[str, FloatArray]:
    """Initial covariance for a model that comes without one, and what to call it; ``observation`` (r, P): C~.

    The state is split into the modes that decay and those that last. The first get their stationary covariance. The
    second get `VAGUE` times the sum of their process noise and of O^-1, where O is the information that P rows of
    measurements without process noise hold about them. Split and O change with the basis as the state does, so the
    result does not depend on the choice of basis.
    """
    from scipy.linalg import schur, solve_sylvester

    P = len(A)
    if spectral_radius(A) < 1 - _LASTING:
        return "stationary", lyapunov(A, Q)
    refuse_unseen(A, observation)
    triangle, Z, decaying = schur(A, output="real", sort=lambda re, im: np.hypot(re, im) < 1 - _LASTING)
    inner, outer = triangle[:decaying, :decaying], triangle[decaying:, decaying:]
    basis, inverse = Z, Z.T
    if decaying:
        shear = np.eye(P)
        shear[:decaying, decaying:] = solve_sylvester(inner, -outer, -triangle[:decaying, decaying:])
        unshear = 2 * np.eye(P) - shear
        basis, inverse = Z @ shear, unshear @ Z.T
    noise = inverse @ Q @ inverse.T
    X = np.zeros((P, P))
    X[:decaying, :decaying] = lyapunov(inner, (noise[:decaying, :decaying] + noise[:decaying, :decaying].T) / 2)
    seen = observation @ basis[:, decaying:]
    steps = [seen]
    for _ in range(P - 1):
        steps.append(steps[-1] @ outer)
    # O^-1 by singular values of the stacked rows, columns scaled to unit length.
    stacked = np.vstack(steps)
    length = np.sqrt(np.square(stacked).sum(axis=0))
    _, singular, Vt = np.linalg.svd(stacked / np.where(length > 0, length, 1.0), full_matrices=False)
    singular = np.maximum(singular, 1e-8 * singular[0])
    spread = (Vt.T / singular) / np.where(length > 0, length, 1.0)[:, None]
    X[decaying:, decaying:] = VAGUE * (spread @ spread.T + noise[decaying:, decaying:])
    X = basis @ X @ basis.T
    return "vague", (X + X.T) / 2


def refuse_unseen(A: FloatArray, observation: FloatArray) -> None:
    """Raise if a mode that does not decay is not seen by any measurement (the model is not detectable)."""
    P = len(A)
    stacked = np.vstack([A, observation])
    length = np.sqrt(np.square(stacked).sum(axis=0))
    length[length == 0] = 1.0
    weight = float(np.abs(observation).max(initial=0.0)) or 1.0
    for eigenvalue in np.linalg.eigvals(A):
        if abs(eigenvalue) < 1 - _LASTING:
            continue
        pencil = np.vstack([A - eigenvalue * np.eye(P), observation / weight])
        _, singular, Vh = np.linalg.svd(pencil / length)
        if singular[-1] <= _UNSEEN * P * singular[0]:
            direction = np.abs(Vh[-1] / length)
            raise UnstableError(
                f"the mode of A with eigenvalue {_name(eigenvalue)} does not decay and no measurement sees it "
                f"(largest part: state {int(direction.argmax())}), so its estimate has no finite error. "
                "Measure it, remove it from the model, or give initial_covariance"
            )


def _name(eigenvalue: complex) -> str:
    return f"{eigenvalue.real:.6g}" if eigenvalue.imag == 0 else f"{eigenvalue:.6g}"


# ---- where it tends to


@dataclass(frozen=True)
class SteadyState:
    """Where the covariances of the filter settle.

    ``gain`` (P, D): filtered = predicted + K (y - C predicted). ``innovation_covariance`` (D, D): of y - C predicted.
    """

    predicted_covariance: FloatArray
    filtered_covariance: FloatArray
    gain: FloatArray
    innovation_covariance: FloatArray


def steady_state(A: FloatArray, C: FloatArray, Q: FloatArray, R: FloatArray) -> SteadyState:
    """Solve for the covariances and the gain that the filter tends to; Q may be singular, or zero.

    The recursion itself gives a stabilising gain within a few steps; from there Newton's method solves the Riccati
    equation, each step being a Lyapunov equation whose solution is a sum of positive terms. Unit roots, roots close to
    the unit circle and unstable modes are solved alike. UnstableError if a mode that does not decay is not seen by any
    measurement, or a mode on the unit circle is not excited by Q: its gain tends to zero for ever.
    """
    compression = compress(C, R)
    X = _solve(A, compression.observation, Q)
    change = update(X, compression.observation)
    gain = change.gain @ np.linalg.solve(change.factor, compression.reach) if change.factor.size else 0 * C.T
    innovation = C @ X @ C.T + R
    return SteadyState(X, change.filtered, gain, (innovation + innovation.T) / 2)


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
