"""The linear recurrence x[k] = F x[k-1] + f[k], computed with matrix products instead of a loop over time.

The rows are cut into blocks of equal length. Each block is first solved as if it started from zero, all blocks at
once; the block ends then obey a recurrence of the same kind with a power of F, many times shorter; and what each
block inherits from the end of the one before it is added. A plain loop would spend its time in the interpreter.
"""

from __future__ import annotations

import math

import numpy as np

from counterflow.arrays import FloatArray

_SHORT = 32  # rows below which the plain loop is as fast
_PRODUCT_WIDTH = 96  # columns of the one large product that solves a block; measured best between 64 and 128
_PRODUCT_STATES = 24  # states above which marching through all blocks side by side beats the large product
_MARCH_ROWS = 64  # block length when marching
_MARCH_WORTH = 8  # rows per state below which marching does not pay for the powers of F
_FEWEST_ROWS = 4  # blocks shorter than this are not worth their overhead
_GROWTH = 1e4  # powers of F may not exceed this norm inside a block, so that no digits are lost to cancellation


def linear_recurrence(F: FloatArray, f: FloatArray, start: FloatArray) -> FloatArray:
    """Every x[k] (n, P) of x[k] = F x[k-1] + f[k], from F (P, P), stable or not, f (n, P) and x[-1] = start (P,).

    Row 0 is ``F @ start + f[0]``. Agrees with the plain loop to rounding. A row depends on no later row of f, not even
    in its last bit; if values overflow or f is not finite, so is the result from that row on. O(n P max(P, 96)).
    """
    F = np.ascontiguousarray(F, dtype=np.float64)
    f = np.ascontiguousarray(f, dtype=np.float64)
    start = np.ascontiguousarray(start, dtype=np.float64)
    if f.ndim != 2 or F.shape != (f.shape[1], f.shape[1]) or start.shape != (f.shape[1],):
        raise ValueError(f"need F (P, P), f (n, P) and start (P,); got {F.shape}, {f.shape} and {start.shape}")
    if f.size == 0:
        return np.empty_like(f)
    with np.errstate(over="ignore", invalid="ignore"):
        return _solve(F, f, start)


def _solve(F: FloatArray, f: FloatArray, start: FloatArray) -> FloatArray:
    n, P = f.shape
    if n < _SHORT or not np.isfinite(f).all():
        return _loop(F, f, start)
    marching = P > _PRODUCT_STATES
    if marching and n < _MARCH_WORTH * P:  # the powers of F would cost more than they save
        return _loop(F, f, start)
    length = min(_MARCH_ROWS, math.isqrt(n)) if marching else max(_FEWEST_ROWS, _PRODUCT_WIDTH // P)
    powers = _powers(F, min(length, n // 2))
    length = len(powers) - 1
    if length < _FEWEST_ROWS:
        return _loop(F, f, start)

    blocks = n // length
    whole = blocks * length
    x = np.empty_like(f)
    x_blocks = x[:whole].reshape(blocks, length * P)
    f_blocks = f[:whole].reshape(blocks, length * P)
    inherited = np.empty((blocks, P))
    inherited[0] = start
    if marching:
        ends = _march(F, f_blocks, np.zeros((blocks, P)), None)
        inherited[1:] = _solve(powers[length], ends[:-1], start)
        _march(F, f_blocks, inherited, x_blocks)
    else:
        np.matmul(f_blocks, _toeplitz(powers).T, out=x_blocks)
        inherited[1:] = _solve(powers[length], np.ascontiguousarray(x_blocks[:-1, -P:]), start)
        x_blocks += inherited @ powers[1:].reshape(length * P, P).T
    if whole < n:
        x[whole:] = _loop(F, f[whole:], x[whole - 1])
    return x


def _loop(F: FloatArray, f: FloatArray, start: FloatArray) -> FloatArray:
    x = np.empty_like(f)
    for k in range(len(f)):
        start = F @ start + f[k]
        x[k] = start
    return x


def _march(F: FloatArray, f_blocks: FloatArray, x: FloatArray, out: FloatArray | None) -> FloatArray:
    """Step all blocks forward side by side from `x` (blocks, P); write the rows to `out` if given, return the ends."""
    P = len(F)
    for first in range(0, f_blocks.shape[1], P):
        x = x @ F.T
        x += f_blocks[:, first : first + P]
        if out is not None:
            out[:, first : first + P] = x
    return x


def _powers(F: FloatArray, most: int) -> FloatArray:
    """F^0, F^1, ... up to F^most, or up to the last one before the norms pass the growth bound."""
    powers = np.empty((most + 1, *F.shape))
    powers[0] = np.eye(len(F))
    for j in range(most):
        powers[j + 1] = powers[j] @ F
        if not np.abs(powers[j + 1]).max() <= _GROWTH:
            return powers[: j + 1]
    return powers


def _toeplitz(powers: FloatArray) -> FloatArray:
    """The block lower-triangular matrix whose block (i, j) is F^(i-j), for one block of rows."""
    length, P = len(powers) - 1, powers.shape[1]
    matrix = np.zeros((length, P, length, P))
    for lag in range(length):
        rows = np.arange(lag, length)
        matrix[rows, :, rows - lag, :] = powers[lag]
    return matrix.reshape(length * P, length * P)
