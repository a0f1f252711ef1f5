"""The transfer function C (zI - A)⁻¹ B + D: poles, zeros, frequency response. Pure functions on arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from counterflow.arrays import FloatArray
from counterflow.errors import OptionError, UnstableError

ComplexArray = NDArray[np.complex128]

_EPS = float(np.finfo(np.float64).eps)
_CHUNK = 2_000_000  # complex entries held at once while solving for many frequencies


def poles(A: FloatArray) -> ComplexArray:
    """Eigenvalues of A, largest modulus first."""
    return _sorted(np.linalg.eigvals(A))


def transmission_zeros(A: FloatArray, B: FloatArray, C: FloatArray, D: FloatArray | None = None) -> ComplexArray:
    """Finite zeros of the system pencil [[A - zI, B], [C, D]], largest modulus first.

    These are the z at which the pencil loses rank against its rank at almost every z, so that hidden modes (not
    controllable or not observable) count where they are zeros of the pencil. Any numbers of inputs and outputs will
    do, and so will pencils of deficient rank: the pencil is first reduced, with orthogonal transformations only, to
    the part in which D is square and invertible (the staircase of Emami-Naeini and Van Dooren, Automatica 18, 1982),
    whose zeros are generalized eigenvalues.
    """
    from scipy.linalg import eigvals

    D = np.zeros((C.shape[0], B.shape[1])) if D is None else D
    pencil = np.block([[A, B], [C, D]])
    # 100: with 16, a quarter of a percent of random systems lost hidden modes that were there by construction; with
    # 1, the default of SLICOT's AB08ND, four percent
    tolerance = 100 * _EPS * float(np.sqrt(pencil.shape[0] * pencil.shape[1])) * float(np.linalg.norm(pencil))
    A, B, C, D = _full_row_rank(A, B, C, D, tolerance)
    if D.shape[0] < D.shape[1]:
        A, C, B, D = (X.T for X in _full_row_rank(A.T, C.T, B.T, D.T, tolerance))
    P = len(A)
    if P == 0:
        return np.empty(0, dtype=np.complex128)
    if D.size == 0:
        return _sorted(np.linalg.eigvals(A))
    # the columns that [C D] cannot see carry the zeros; inverting D would lose digits where it is ill-conditioned
    hidden = np.linalg.svd(np.hstack([C, D]))[2][len(D) :].T
    return _sorted(eigvals(np.hstack([A, B]) @ hidden, hidden[:P]))


def _full_row_rank(
    A: FloatArray, B: FloatArray, C: FloatArray, D: FloatArray, tolerance: float
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """A smaller system with the same finite zeros, whose D has full row rank.

    Each pass splits the outputs into those that the input reaches at once and those (C2) that only see the state. A
    zero keeps the latter silent, so the states they see stay at zero; those states leave the system, and what drives
    them becomes its new outputs.
    """
    while len(D):
        left, sizes, _ = np.linalg.svd(D)
        direct = int((sizes > tolerance).sum())
        if direct == len(D):
            break
        C, D = left.T @ C, (left.T @ D)[:direct]
        C1, C2 = C[:direct], C[direct:]
        _, sizes, right = np.linalg.svd(C2)
        seen = int((sizes > tolerance).sum())
        if seen == 0:  # outputs that are identically zero say nothing
            C = C1
            break
        basis = np.vstack([right[seen:], right[:seen]]).T
        kept = len(A) - seen
        A, B, C1 = basis.T @ A @ basis, basis.T @ B, C1 @ basis
        C, D = np.vstack([A[kept:, :kept], C1[:, :kept]]), np.vstack([B[kept:], D])
        A, B = A[:kept, :kept], B[:kept]
    return A, B, C, D


def frequency_response(A: FloatArray, B: FloatArray, C: FloatArray, w: ArrayLike, dt: float = 1.0) -> ComplexArray:
    """C (zI - A)⁻¹ B at z = exp(i w dt), shape (len(w), outputs, inputs)."""
    frequencies = _frequencies(w)
    z = np.exp(1j * dt * frequencies)
    P = len(A)
    _refuse_resonance(A, z, frequencies)
    response = np.empty((len(z), C.shape[0], B.shape[1]), dtype=np.complex128)
    chunk = max(1, _CHUNK // max(1, P * P))
    identity = np.eye(P)
    for first in range(0, len(z), chunk):
        part = slice(first, first + chunk)
        response[part] = C @ np.linalg.solve(z[part, None, None] * identity - A, B.astype(np.complex128)[None])
    return response


def sigma(A: FloatArray, B: FloatArray, C: FloatArray, w: ArrayLike, dt: float = 1.0) -> FloatArray:
    """Singular values of the frequency response, largest first, shape (len(w), min(outputs, inputs))."""
    response = frequency_response(A, B, C, w, dt)
    if response.size == 0:
        return np.empty((response.shape[0], min(response.shape[1:])))
    return np.asarray(np.linalg.svd(response, compute_uv=False), dtype=np.float64)


def _frequencies(w: ArrayLike) -> FloatArray:
    frequencies = np.asarray(w)
    if frequencies.dtype.kind not in "iuf" and frequencies.size:
        raise OptionError(f"w has dtype {frequencies.dtype}: pass a sequence of real frequencies.")
    if frequencies.ndim != 1:
        raise OptionError(f"w has shape {frequencies.shape}: pass a 1-D sequence of frequencies, such as [0.1, 1.0].")
    frequencies = frequencies.astype(np.float64)
    if not np.isfinite(frequencies).all():
        at = int(np.argmin(np.isfinite(frequencies)))
        raise OptionError(f"w[{at}] is {frequencies[at]}: every frequency must be finite.")
    return frequencies


def _refuse_resonance(A: FloatArray, z: ComplexArray, frequencies: FloatArray) -> None:
    """Raise if zI - A is singular to rounding at one of the z."""
    size = max(1.0, float(np.linalg.norm(A, 2)))
    eigenvalues = np.linalg.eigvals(A)
    # the singular value decides; the distance to the computed poles only spares most frequencies that test
    for k in np.flatnonzero(np.abs(z[:, None] - eigenvalues[None, :]).min(axis=1) < 1e-3):
        smallest = np.linalg.svd(z[k] * np.eye(len(A)) - A, compute_uv=False)[-1]
        if smallest <= 4 * len(A) * _EPS * size:
            raise UnstableError(
                f"the frequency response is not finite at w[{k}] = {frequencies[k]:g}: a pole lies on the unit "
                "circle there. Leave that frequency out, or ask for impulse_response instead."
            )


def _sorted(values: NDArray[np.complexfloating] | NDArray[np.floating]) -> ComplexArray:
    values = np.asarray(values, dtype=np.complex128)
    return values[np.lexsort((-values.imag, -np.abs(values).round(12)))]
