"""Covariances that follow from the model alone: the stationary one, and a start for states that have none."""

from __future__ import annotations

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import UnstableError
from counterflow.filtering.update import spectral_radius

VAGUE = 1e6  # a vague variance, in units of what P noise-free steps of measurements determine
_EPS = float(np.finfo(float).eps)
_LASTING = 1e-10  # modes closer than this to the unit circle, or outside it, have no stationary covariance to speak of
_UNSEEN = 1e-13  # relative size of what a measurement sees of a mode, below which it sees nothing


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
    """Initial covariance for a model that comes without one, and what to call it.

    The state is split into the modes that decay and those that last. The first get their stationary covariance. The
    second get `VAGUE` times the sum of their process noise and of O^-1, where O is the information that P rows of
    measurements without process noise hold about them. The split and O change with the basis as the state does, so
    the result does not depend on the choice of basis.

    Parameters
    ----------
    A, Q : (P, P) arrays
    observation : (r, P) array
        C~: measurements with noise N(0, I).
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
