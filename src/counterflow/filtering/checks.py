"""Checks of everything that enters the filtering functions, so that numpy never has to complain in its own words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import DataError, ModelError

_ASYMMETRY = 1e-9  # largest |M - M'| accepted, relative to the diagonal
_NEGATIVE = 1e-9  # most negative eigenvalue accepted, relative to the largest, after scaling to a unit diagonal


@dataclass(frozen=True)
class Problem:
    """Checked arrays of one filtering problem; `C` is (D, P) or (T+1, D, P)."""

    y: FloatArray
    u: FloatArray
    A: FloatArray
    B: FloatArray
    C: FloatArray
    Q: FloatArray
    R: FloatArray


def as_floats(name: str, value: Any, error: type[ModelError] | type[DataError] = ModelError) -> FloatArray:
    """Return `value` as a C-contiguous float64 array, or refuse it under its own name."""
    try:
        array = np.asarray(value)
    except ValueError as cause:
        raise error(f"{name} must be a rectangular array of real numbers; got {type(value).__name__}") from cause
    if array.dtype.kind not in "fiub":
        raise error(f"{name} must hold real numbers; got dtype {array.dtype}")
    return np.ascontiguousarray(array, dtype=np.float64).reshape(array.shape)


def as_shaped(
    name: str, value: Any, shape: tuple[int | str, ...], error: type[ModelError] | type[DataError] = ModelError,
    finite: bool = True,
) -> FloatArray:  # fmt: skip
    """Return a float array of this shape; a word in `shape` names a free dimension."""
    array = as_floats(name, value, error)
    matches = array.ndim == len(shape) and all(
        isinstance(want, str) or want == have for want, have in zip(shape, array.shape, strict=True)
    )
    if not matches:
        wanted = ", ".join(str(size) for size in shape) + ("," if len(shape) == 1 else "")
        raise error(f"{name} must have shape ({wanted}); got {array.shape}")
    if finite:
        require_finite(name, array, error)
    return array


def require_finite(name: str, array: FloatArray, error: type[ModelError] | type[DataError]) -> None:
    """Refuse NaN and infinity, naming the first entry at fault."""
    if all_finite(array):
        return
    place = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
    raise error(f"{name} must be finite; entry {place} is {array[place]}")


def all_finite(array: FloatArray) -> bool:
    """Whether every entry is finite; one pass of a sum of squares decides unless it overflows."""
    flat = array.reshape(-1)
    with np.errstate(over="ignore", invalid="ignore"):
        quick = bool(np.isfinite(np.einsum("i,i->", flat, flat)))  # np.vdot would wake threads, see products.py
    return quick or bool(np.isfinite(array).all())


def as_transition(name: str, value: Any) -> FloatArray:
    """Return a finite square matrix with at least one row."""
    A = as_shaped(name, value, ("P", "P"))
    if A.shape[0] != A.shape[1] or len(A) == 0:
        raise ModelError(f"{name} must have shape (P, P) with P at least 1; got {A.shape}")
    return A


def as_covariance(name: str, value: Any, size: int) -> FloatArray:
    """Return a symmetric positive semidefinite (size, size) matrix."""
    matrix = as_shaped(name, value, (size, size))
    diagonal = np.diagonal(matrix)
    if (diagonal < 0).any():
        worst = int(diagonal.argmin())
        raise ModelError(f"{name} must not have negative variances; entry ({worst}, {worst}) is {diagonal[worst]:g}")
    scale = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    scaled = matrix / scale / scale[:, None]
    asymmetry = np.abs(scaled - scaled.T).max()
    if asymmetry > _ASYMMETRY:
        row, column = np.unravel_index(np.abs(scaled - scaled.T).argmax(), matrix.shape)
        raise ModelError(
            f"{name} must be symmetric; entries ({row}, {column}) and ({column}, {row}) are "
            f"{matrix[row, column]:g} and {matrix[column, row]:g}"
        )
    smallest = np.linalg.eigvalsh((scaled + scaled.T) / 2)[0]
    if smallest < -_NEGATIVE * size:
        raise ModelError(
            f"{name} must be positive semidefinite; scaled to a unit diagonal its smallest eigenvalue is {smallest:.3g}"
        )
    return (matrix + matrix.T) / 2


def as_noise(name: str, value: Any, size: int) -> FloatArray:
    """Return a symmetric positive definite (size, size) matrix."""
    R = as_covariance(name, value, size)
    diagonal = np.diagonal(R)
    if (diagonal <= 0).any():
        worst = int(diagonal.argmin())
        raise ModelError(
            f"{name} must be positive definite; the variance of channel {worst} is {diagonal[worst]:g}. "
            "Give every measurement some noise"
        )
    scale = np.sqrt(diagonal)
    smallest = np.linalg.eigvalsh(R / scale / scale[:, None])[0]
    if smallest < 4 * size * np.finfo(float).eps:
        raise ModelError(
            f"{name} must be positive definite; scaled to a unit diagonal its smallest eigenvalue is {smallest:.3g}. "
            "Two channels may be the same signal: drop one, or give each its own noise"
        )
    return R


def as_system(A: Any, C: Any, Q: Any) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Check what a model does without inputs: dynamics, at least one measurement, process noise."""
    A = as_transition("A", A)
    C = as_shaped("C", C, ("D", len(A)))
    if len(C) == 0:
        raise ModelError("C must have at least one row; a model without measurements cannot be filtered")
    return A, C, as_covariance("Q", Q, len(A))


def as_problem(y: Any, u: Any, A: Any, B: Any, C: Any, Q: Any, R: Any) -> Problem:
    """Check a whole filtering problem; missing measurements (NaN in `y`) are let through, infinities are not."""
    each = as_floats("C", C)
    if each.ndim == 3:  # of each row
        A, _, Q = as_system(A, each[0] if len(each) else each, Q)
        C = as_shaped("C", each, (len(each), each.shape[1], len(A)))
    else:
        A, C, Q = as_system(A, each, Q)
    P, D = len(A), C.shape[-2]
    B = as_shaped("B", B, (P, "U"))
    y = as_shaped("y", y, (len(each) if each.ndim == 3 else "T+1", D), DataError, finite=False)
    rows = len(y)
    if rows == 0:
        raise DataError(f"y must have at least one row; got shape {y.shape}")
    u = as_shaped("u", u, (rows, B.shape[1]), DataError, finite=False)
    require_finite("u", u[:-1], DataError)
    return Problem(y, u, A, B, C, Q, as_noise("R", R, D))
