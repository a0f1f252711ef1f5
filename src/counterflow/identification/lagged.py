"""Products of a record with lagged copies of itself: all that subspace methods need to know of the data.

A window is `window` consecutive rows of z = [y u], laid out in one row. The Gram matrix of all windows of a record is
nearly block Toeplitz: block (i, j) is the sum of z[t+i]' z[t+j], and block (i+1, j+1) differs from it by one row that
leaves at the start and one that enters at the end. So the first row of blocks costs one pass over the data, and the
rest costs nothing; the matrix of windows itself, `window` times as large as the data, is never made.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import DataError

_CHUNK = 4096  # rows multiplied at once: large enough for BLAS, small enough to stay in the cache


@dataclass(frozen=True)
class LaggedGram:
    """Sums of products of all columns of all windows; ``windows`` of them, each of ``window`` rows.

    Entry (i m + a, j m + b) of ``matrix`` is the sum over windows of column a, row i times column b, row j, where the m
    columns are the ``outputs`` of y, then the ``inputs`` of u.
    """

    matrix: FloatArray
    windows: int
    window: int
    outputs: int
    inputs: int

    @property
    def columns(self) -> int:
        """Columns of one row of a window, m."""
        return self.outputs + self.inputs


def stretches(y: FloatArray, least: int = 1) -> tuple[slice, ...]:
    """The longest runs of rows of y (T+1, r) in which every channel was measured (not NaN), in order of time.

    Runs of fewer than ``least`` rows are left out.
    """
    whole = np.concatenate([[False], np.isfinite(y).all(axis=1), [False]])
    edges = np.flatnonzero(whole[1:] != whole[:-1])
    runs = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    return tuple(slice(start, stop) for start, stop in runs if stop - start >= least)


def lagged_gram(y: FloatArray, u: FloatArray, window: int) -> LaggedGram:
    """Sum the products of all columns of all windows of ``window`` consecutive rows.

    ``y`` (T+1, r): deviations from their level, NaN where missing; no window reaches over a row in which something is.
    ``u`` (T+1, U): finite. Cost O(T · window · m²) in matrix products.
    """
    r, U = y.shape[1], u.shape[1]
    m = r + U
    first = np.zeros((window, m, m))
    ends = np.zeros(((window - 1) * m, (window - 1) * m))
    windows = 0
    with np.errstate(over="ignore", invalid="ignore"):  # said in words below
        for run in stretches(y, window):
            count = run.stop - run.start - window + 1
            windows += count
            for begin in range(run.start, run.start + count, _CHUNK):
                rows = min(_CHUNK, run.start + count - begin)
                z = np.hstack([y[begin : begin + rows + window - 1], u[begin : begin + rows + window - 1]])
                left = z[:rows].T
                for lag in range(window):
                    first[lag] += left @ z[lag : lag + rows]
            for sign, start in ((-1.0, run.start), (1.0, run.start + count)):
                rows_ = slice(start, start + window - 1)
                edge = np.hstack([y[rows_], u[rows_]]).reshape(1, -1)
                ends += sign * (edge.T @ edge)
    G = np.empty((window, m, window, m))
    G[0] = first.transpose(1, 0, 2)
    change = ends.reshape(window - 1, m, window - 1, m)
    with np.errstate(over="ignore", invalid="ignore"):
        for i in range(1, window):
            G[i, :, i:] = G[i - 1, :, i - 1 : -1] + change[i - 1, :, i - 1 :]
            G[i, :, :i] = G[:i, :, i].transpose(2, 0, 1)
    matrix = G.reshape(window * m, window * m)
    if not np.isfinite(matrix).all():
        raise DataError("values overflow when they are squared: bring channels to a common scale")
    return LaggedGram(matrix=matrix, windows=windows, window=window, outputs=r, inputs=U)
