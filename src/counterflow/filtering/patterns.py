"""Cut a record with missing measurements into stretches that can be filtered alike."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.errors import DataError

BoolArray = NDArray[np.bool_]

_RARE = 8  # a pattern of missing channels seen in fewer rows is not worth a compression of its own


class Stretch(NamedTuple):
    """Rows ``start`` to ``stop - 1``.

    `measured` tells which of the D channels all of them have; None if the rows differ.
    """

    start: int
    stop: int
    measured: BoolArray | None


def stretches(y: FloatArray, *, all_rows_differ: bool) -> list[Stretch]:
    """Cut `y` (T+1, D), where NaN is missing, into stretches; refuse infinities.

    Examples
    --------
    >>> y = np.ones((20, 1))
    >>> y[8:17] = np.nan
    >>> [(part.start, part.stop) for part in stretches(y, all_rows_differ=False)]
    [(0, 8), (8, 17), (17, 20)]
    """
    measured = np.isfinite(y)
    infinite = np.argwhere(np.isinf(y))
    if len(infinite):
        row, channel = (int(i) for i in infinite[0])
        raise DataError(f"y[{row}, {channel}] is infinite; a missing measurement is marked with NaN")
    if all_rows_differ:
        return [Stretch(0, len(y), None)]
    packed = np.packbits(measured, axis=1)
    names = np.ascontiguousarray(packed).view(np.dtype((np.void, packed.shape[1]))).ravel()
    _, first, pattern, count = np.unique(names, return_index=True, return_inverse=True, return_counts=True)
    # Rows without any measurement are easy however few there are.
    rare = (count < _RARE) & measured[first].any(axis=1)
    label = np.where(rare[pattern], -1, pattern)
    edges = np.flatnonzero(np.diff(label)) + 1
    starts = np.concatenate([[0], edges]).tolist()
    stops = np.concatenate([edges, [len(y)]]).tolist()
    return [
        Stretch(start, stop, None if label[start] < 0 else measured[start])
        for start, stop in zip(starts, stops, strict=True)
    ]
