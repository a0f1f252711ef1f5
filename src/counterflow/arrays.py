"""Arrays: their type, blocks side by side, and checks that turn what a caller hands in into read-only float64."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from counterflow.errors import CounterflowError, ModelError, OptionError

FloatArray = NDArray[np.float64]

_ASYMMETRY = 1e-10  # relative; what rounding can leave behind, and is averaged away
_NEGATIVE = 1e-10  # relative; how far below zero rounding can push an eigenvalue of a singular covariance


def numeric(value: object, what: str, kind: type[CounterflowError] = ModelError) -> FloatArray:
    """`value` as a float64 array of any shape; refuses what is not made of real numbers."""
    if isinstance(value, np.ma.MaskedArray):
        raise kind(f"{what} is a masked array, which would lose its mask: pass array.filled(numpy.nan).")
    try:
        array = np.asarray(value)
    except (ValueError, TypeError) as error:
        raise kind(f"{what} cannot be read as an array ({error}): pass rows of equal length.") from error
    if array.dtype.kind not in "iuf" and not (array.dtype.kind == "O" and array.size == 0):
        raise kind(f"{what} has dtype {array.dtype}, which is not real numbers: convert it to float64 first.")
    return array.astype(np.float64, copy=False)


def frozen(array: FloatArray) -> FloatArray:
    """A read-only C-ordered version of `array`; copies unless nobody can write to it any more."""
    if array.flags.c_contiguous and _nobody_writes(array):
        return array
    own = np.array(array, dtype=np.float64, order="C", copy=True)
    own.flags.writeable = False
    return own


def _nobody_writes(array: object) -> bool:
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        array = array.base
    return array is None


def block_diagonal(blocks: Sequence[FloatArray]) -> FloatArray:
    """Blocks along the diagonal, zeros elsewhere; a block may have no rows or no columns."""
    out = np.zeros((sum(b.shape[0] for b in blocks), sum(b.shape[1] for b in blocks)))
    row = column = 0
    for block in blocks:
        out[row : row + block.shape[0], column : column + block.shape[1]] = block
        row, column = row + block.shape[0], column + block.shape[1]
    return out


def slices(widths: Iterable[int]) -> tuple[slice, ...]:
    """Where blocks of these widths stand, side by side."""
    ends = np.cumsum([0, *widths])
    return tuple(slice(int(first), int(last)) for first, last in pairwise(ends))


def matrix(value: object, what: str, shape: tuple[int, int], meaning: str) -> FloatArray:
    """`value` as a finite read-only matrix of exactly this shape."""
    array = numeric(value, what)
    if array.shape != shape:
        raise ModelError(f"{what} must have shape {shape} ({meaning}), got {array.shape}: pass a matrix of that shape.")
    if not np.isfinite(array).all():
        row, column = np.argwhere(~np.isfinite(array))[0]
        raise ModelError(f"{what} holds {array[row, column]} at [{row}, {column}]: every entry must be finite.")
    return frozen(array)


def covariance(block: FloatArray, what: str, *, definite: bool) -> FloatArray:
    """`block` made exactly symmetric; refuses one that is not a covariance (or, if `definite`, a singular one)."""
    scale = float(np.abs(block).max(initial=0.0))
    gap = np.abs(block - block.T)
    if gap.max(initial=0.0) > _ASYMMETRY * scale:
        row, column = (int(k) for k in np.unravel_index(int(gap.argmax()), gap.shape))
        raise ModelError(
            f"{what} is not symmetric: entries [{row}, {column}] and [{column}, {row}] are {block[row, column]:g} and "
            f"{block[column, row]:g}. Pass ({what[0]} + {what[0]}.T) / 2 if that is meant."
        )
    symmetric = block / 2 + block.T / 2
    if not definite:
        lowest = float(np.linalg.eigvalsh(symmetric).min(initial=0.0))
        if lowest < -_NEGATIVE * scale:
            raise ModelError(f"{what} is not positive semidefinite: lowest eigenvalue {lowest:g}. Pass a covariance.")
        return symmetric
    diagonal = np.diagonal(symmetric)
    if (diagonal <= 0).any():
        at = int(np.argmax(diagonal <= 0))
        raise ModelError(
            f"{what} is not positive definite: the variance [{at}, {at}] is {diagonal[at]:g}. "
            "Every measurement needs a variance above zero."
        )
    # judged on correlations, so that channels measured in very different units do not look singular
    deviation = np.sqrt(diagonal)
    lowest = float(np.linalg.eigvalsh(symmetric / deviation[:, None] / deviation[None, :]).min(initial=1.0))
    if lowest <= len(diagonal) * np.finfo(np.float64).eps:
        raise ModelError(
            f"{what} is not positive definite: the lowest eigenvalue of its correlations is {lowest:g}. "
            "Drop a measurement that repeats the others, or add a small variance to the diagonal."
        )
    return symmetric


def whole_number(value: object, what: str, least: int, kind: type[CounterflowError] = OptionError) -> int:
    """`value` as an int of at least `least`; bool and fractions are refused."""
    if isinstance(value, (bool, np.bool_)):
        raise kind(f"{what} is {value!r}: pass a whole number of at least {least}.")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise kind(f"{what} is {value!r}: pass a whole number of at least {least}.") from None
    if number < least:
        raise kind(f"{what} is {number}: it must be at least {least}.")
    return number


def real_number(
    value: object,
    what: str,
    *,
    low: float = -np.inf,
    high: float = np.inf,
    open_low: bool = False,
    kind: type[CounterflowError] = OptionError,
) -> float:
    """`value` as a finite float between `low` and `high` (`low` itself excluded if `open_low`)."""
    text = f"a finite number {'above' if open_low else 'of at least'} {low:g}" if low > -np.inf else "a finite number"
    if high < np.inf:
        text += f" and at most {high:g}"
    array = np.asarray(value) if not isinstance(value, (bool, str, bytes)) else np.asarray(None)
    if array.ndim != 0 or array.dtype.kind not in "iuf":
        raise kind(f"{what} is {value!r}: pass {text}.")
    number = float(array)
    if not np.isfinite(number) or number < low or number > high or (open_low and number == low):
        raise kind(f"{what} is {number!r}: pass {text}.")
    return number
