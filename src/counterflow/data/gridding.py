"""A column of a table on a regular grid, and inputs without holes."""

from __future__ import annotations

import numpy as np
import polars
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.data.clock import Grid
from counterflow.data.inspection import FEW_LEVELS


def on_grid(values: FloatArray, grid: Grid, resample: str = "auto") -> FloatArray:
    """A column of the table on the grid: NaN in rows that nothing falls into.

    Parameters
    ----------
    values : (table rows,) array
    grid : Grid
    resample : {"auto", "mean", "last"}
        Where several rows fall into one: their mean, or the last known one; "auto" takes the mean unless the column has
        few different values.
    """
    ordered = values if grid.order is None else values[grid.order]
    known = np.isfinite(ordered)
    bins = grid.bins
    if not known.all():
        ordered, bins = ordered[known], bins[known]
    out = np.full(grid.rows, np.nan)
    if grid.coarser and (resample == "mean" or (resample == "auto" and not _discrete(ordered))):
        counts = np.bincount(bins, minlength=grid.rows)
        sums = np.bincount(bins, weights=ordered, minlength=grid.rows)
        np.divide(sums, counts, out=out, where=counts > 0)
        return out
    out[bins] = ordered  # of several, the last stays
    return out


def _discrete(values: FloatArray) -> bool:
    return len(values) > 0 and polars.Series(values).n_unique() <= FEW_LEVELS


def fill(row: FloatArray, how: str) -> tuple[FloatArray, NDArray[np.int64], int]:
    """Fill holes of an input: the values, the lengths of the holes, and how many rows at the beginning were among them.

    Examples
    --------
    >>> values, lengths, led = fill(np.array([np.nan, 1.0, np.nan, np.nan, 4.0]), "interpolate")
    >>> values.tolist(), lengths.tolist(), led
    ([1.0, 1.0, 2.0, 3.0, 4.0], [1, 2], 1)
    """
    missing = np.isnan(row)
    if not missing.any():
        return row, np.empty(0, np.int64), 0
    edges = np.flatnonzero(np.diff(np.concatenate(([False], missing, [False])).astype(np.int8)))
    lengths = edges[1::2] - edges[::2]
    known = np.flatnonzero(~missing)
    led = int(known[0])
    if how == "interpolate":
        out = np.interp(np.arange(len(row)), known, row[known])
    else:
        before = np.searchsorted(known, np.arange(len(row)), side="right") - 1
        out = row[known[np.maximum(before, 0)]]
    return out, lengths, led
