"""Checks of arrays that functions on records are given, so that numpy never has to complain in its own words."""

from __future__ import annotations

from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import DataError, ModelError


def as_floats(name: str, value: Any, error: type[ModelError] | type[DataError] = ModelError) -> FloatArray:
    """Return `value` as a C-contiguous float64 array, or refuse it under its own name."""
    try:
        array = np.asarray(value)
    except ValueError as cause:
        raise error(f"{name} must be a rectangular array of real numbers; got {type(value).__name__}") from cause
    if array.dtype.kind not in "fiub":
        raise error(f"{name} must hold real numbers; got dtype {array.dtype}")
    return np.ascontiguousarray(array, dtype=np.float64).reshape(array.shape)


def as_shaped(name: str, value: Any, shape: tuple[int | str, ...]) -> FloatArray:
    """Return a finite float array of this shape; a word in `shape` names a free dimension."""
    array = as_floats(name, value)
    sizes = zip(shape, array.shape, strict=False)
    if array.ndim != len(shape) or not all(isinstance(want, str) or want == have for want, have in sizes):
        wanted = ", ".join(str(size) for size in shape) + ("," if len(shape) == 1 else "")
        raise ModelError(f"{name} must have shape ({wanted}); got {array.shape}")
    if not np.isfinite(array).all():
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise ModelError(f"{name} must be finite; entry {place} is {array[place]}")
    return array
