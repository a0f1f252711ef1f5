"""Matrix products and triangular solves that stay on one core.

OpenBLAS starts its threads even for small products of tall matrices and for triangular solves of a few rows. On a
machine whose cores are also wanted by others, waiting for those threads costs ten to a thousand times the work itself.
Cut into pieces below its thresholds, the same work never waits; the pieces also fit the processor's cache.
"""

from __future__ import annotations

import numpy as np

from counterflow.arrays import FloatArray

_PRODUCT = 262144  # multiplications up to which OpenBLAS uses one thread
_FEWEST_ROWS = 32  # pieces with fewer rows would cost more than they save
_SOLVE = 512  # entries of the right-hand side up to which it uses one thread


def product(tall: FloatArray, matrix: FloatArray, out: FloatArray | None = None) -> FloatArray:
    """Return ``tall @ matrix`` for a tall (n, k) and a small (k, m) matrix, in `out` if given."""
    n, k = tall.shape
    m = matrix.shape[1]
    if out is None:
        out = np.empty((n, m))
    rows = _PRODUCT // max(k * m, 1)
    if n <= rows or rows < _FEWEST_ROWS:
        return np.matmul(tall, matrix, out=out)
    whole = n // rows * rows
    np.matmul(tall[:whole].reshape(-1, rows, k), matrix, out=out[:whole].reshape(-1, rows, m))
    if whole < n:
        np.matmul(tall[whole:], matrix, out=out[whole:])
    return out


def triangular_solve(L: FloatArray, right: FloatArray, *, transpose: bool = False) -> FloatArray:
    """Solve L X = right, or L' X = right, for a lower triangular L (n, n) and a right-hand side (n, m)."""
    from scipy.linalg.blas import dtrsm

    n, m = right.shape
    columns = max(1, _SOLVE // max(n, 1))
    if m <= columns:
        return np.asarray(dtrsm(1.0, L, right, lower=1, trans_a=int(transpose)))
    L = np.asfortranarray(L)
    out = np.empty((n, m), order="F")
    for first in range(0, m, columns):
        part = slice(first, first + columns)
        out[:, part] = dtrsm(1.0, L, right[:, part], lower=1, trans_a=int(transpose))
    return out
