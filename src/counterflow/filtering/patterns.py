"""Cut a record with missing measurements into stretches that can be filtered alike."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.errors import DataError

BoolArray = NDArray[np.bool_]

_LONG = 1000  # rows alike that are worth settling for; fewer are filtered faster as rows that differ


class Stretch(NamedTuple):
    """Rows ``start`` to ``stop - 1``.

    `measured` tells which of the D channels all of them have; None if the rows differ.
    """

    start: int
    stop: int
    measured: BoolArray | None


def stretches(y: FloatArray, C: FloatArray, *, all_rows_differ: bool) -> list[Stretch]:
    """Cut `y` (T+1, D), where NaN is missing, into stretches; refuse infinities.

    `C` is (D, P), or (T+1, D, P) if each row has its own.

    Examples
    --------
    >>> y = np.ones((3000, 1))
    >>> y[1200:2900:2] = np.nan
    >>> [(part.start, part.stop, part.measured is None) for part in stretches(y, np.eye(1), all_rows_differ=False)]
    [(0, 1200, False), (1200, 3000, True)]
    """
    measured = np.isfinite(y)
    infinite = np.argwhere(np.isinf(y))
    if len(infinite):
        row, channel = (int(i) for i in infinite[0])
        raise DataError(f"y[{row}, {channel}] is infinite; a missing measurement is marked with NaN")
    if all_rows_differ:
        return [Stretch(0, len(y), None)]
    differs = (measured[1:] != measured[:-1]).any(axis=1)
    if C.ndim == 3:
        differs |= (C[1:] != C[:-1]).any(axis=(1, 2))
    edges = np.flatnonzero(differs) + 1
    starts, stops = np.concatenate([[0], edges]), np.concatenate([edges, [len(y)]])
    alike = stops - starts >= min(_LONG, len(y))
    out: list[Stretch] = []
    at = 0
    for start, stop in zip(starts[alike].tolist(), stops[alike].tolist(), strict=True):
        if at < start:
            out.append(Stretch(at, start, None))
        out.append(Stretch(start, stop, measured[start]))
        at = stop
    if at < len(y):
        out.append(Stretch(at, len(y), None))
    return out
