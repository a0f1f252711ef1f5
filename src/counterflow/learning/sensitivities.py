"""Derivatives of the filter by couplings, row by row, and the information that they hold.

Where rows differ (gaps, channels that come and go) no filter settles: each row t has its own closed loop F = A (I -
K C̃), M = C̃ᵀ S⁻¹ C̃ and filtered covariance V. For a parameter that moves A by dA, B by dB and Q by dQ, with prediction
x, filtered state ĥ and slope g = C̃ᵀ S⁻¹ e,

    dx[t+1] = F (dx[t] + dX[t] g[t]) + dA ĥ[t] + dB u[t]
    dX[t+1] = F dX[t] Fᵀ + dA V Aᵀ + A V dAᵀ + dQ
    I_ij    = Σ_t dx_iᵀ M dx_j + ½ tr(M dX_i M dX_j)

The first recursion, without dX, is done for all parameters at once and over all rows: it holds what inputs and states
have moved. What the derivatives dX of the covariance add is smaller, does not hang on the inputs, and costs many times
as much: it is summed over some of the rows, spread over the record, and scaled. Pieces of the record are stepped side
by side; each begins some rows early, because F forgets.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.filtering import FilterResult, Run
from counterflow.filtering.time_varying import forward_substituted
from counterflow.learning.information import basis_of_noise, moves_covariance, positions
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.parameters import Parameters

MOST_ROWS = 50_000  # over which derivatives of predictions are summed; more would not change them
COVARIANCE_ROWS = 2000  # over which what derivatives of covariances add is
EVERY = 4  # products of two derivatives of covariances are formed in one of so many of those rows,
GOLDEN = 0.6180339887498949  # which are chosen by multiples of this: channels that come every n-th row have a period
FORGOTTEN = 1e-3  # what a derivative may still be off when its piece of the record begins to count
LOOKED_AT = 8  # places in the record at which it is seen how fast F forgets
CACHED = 200_000  # numbers that are stepped side by side, about
MOST_PIECES = 64


def cost(record: SharedRecord, parameters: Parameters) -> float:
    """Multiplications that the information takes, about."""
    P, size = sum(record.states), parameters.coupling_size() + parameters.noise_size()
    moving = len(moves_covariance(parameters))
    each = 2 * moving * P**3 + 2 * moving * size * P + moving**2 * P**2 / EVERY
    return min(record.steps, MOST_ROWS) * size**2 * P / 2 + min(record.steps, COVARIANCE_ROWS) * each


def varying_information(
    record: SharedRecord, parameters: Parameters, A: FloatArray, B: FloatArray, Q: FloatArray
) -> FloatArray:
    """Information of all parameters, couplings and then noise, from rows that may each see the states differently."""
    filtered = record.squeezed.filter(A, B, Q)
    rows, columns = positions(parameters)
    size, P, T = parameters.coupling_size(), len(A), record.steps
    directions = basis_of_noise(parameters, Q)
    memory = _memory(filtered, A)
    regressors = np.hstack([filtered.filtered, record.u])
    out = np.zeros((size + len(directions), size + len(directions)))
    parts = Pieces.from_rows(T, min(T, MOST_ROWS), memory, CACHED // max(P * size, 1))
    seen = _Rows.from_filter(filtered, A, parts)
    out[:size, :size] = _of_predictions(seen, regressors, rows, columns) * T / parts.counted
    moving = moves_covariance(parameters)
    if len(moving):
        parts = Pieces.from_rows(T, min(T, COVARIANCE_ROWS), memory, CACHED // max(P * P * len(moving), 1))
        more = _of_covariances(_Rows.from_filter(filtered, A, parts), regressors, rows, columns, directions)
        out += more * T / parts.counted
    return (out + out.T) / 2


@dataclass(frozen=True)
class Pieces:
    """Pieces of rows 1..T that are stepped side by side: ``warm`` rows that do not count, then ``length`` that do."""

    starts: NDArray[np.intp]  # first row of each that counts
    warm: int
    length: int
    last: int  # T

    @classmethod
    def from_rows(cls, T: int, wanted: int, memory: int, most: int) -> Pieces:
        """About ``wanted`` rows, evenly spread; pieces are several times as long as what precedes them."""
        count = max(1, min(most, MOST_PIECES, wanted // (4 * memory + 1)))
        length = -(-wanted // count)
        if length * count >= T:
            starts = 1 + length * np.arange(-(-T // length))
        else:
            starts = 1 + np.linspace(0, T - length, count).astype(np.intp)
        return cls(starts, min(memory, int(starts[-1])), length, T)

    @property
    def counted(self) -> int:
        """Rows that count."""
        return int((np.minimum(self.starts + self.length, self.last + 1) - self.starts).sum())

    @property
    def rows(self) -> NDArray[np.intp]:
        """(N, warm + length); rows that there are not are below zero or beyond T."""
        return np.asarray(self.starts[:, None] + np.arange(-self.warm, self.length), np.intp)


@dataclass(frozen=True, eq=False)
class _Rows:
    """What the filter does in each row of pieces (N, l, ...); zeros where there is no row."""

    pieces: Pieces
    white: FloatArray  # (N, l, r, P) W with Wᵀ W = M
    closed: FloatArray  # (N, l, P, P) F
    ahead: FloatArray  # (N, l, P, P) A V
    slope: FloatArray  # (N, l, P) g

    @classmethod
    def from_filter(cls, filtered: FilterResult, A: FloatArray, pieces: Pieces) -> _Rows:
        index = pieces.rows
        (N, length), P = index.shape, len(A)
        r = max(run.observation.shape[-2] for run in filtered.runs)
        white, slope = np.zeros((N, length, r, P)), np.zeros((N, length, P))
        closed, ahead = np.zeros((N, length, P, P)), np.zeros((N, length, P, P))
        for n in range(N):
            first, last = max(int(index[n, 0]), 0), min(int(index[n, -1]), pieces.last) + 1
            X, C = _between(filtered, first, last, r)
            L = np.asarray(np.linalg.cholesky(C @ X @ C.transpose(0, 2, 1) + np.eye(r)), np.float64)
            at = slice(first - int(index[n, 0]), last - int(index[n, 0]))
            white[n, at] = W = forward_substituted(L, C)
            closed[n, at] = F = A - A @ X @ W.transpose(0, 2, 1) @ W
            ahead[n, at] = F @ X
            slope[n, at] = filtered.slopes[first:last]
        return cls(pieces, white, closed, ahead, slope)

    def regressors(self, values: FloatArray) -> FloatArray:
        """Rows of values (T+1, k) in the pieces (N, l, k); zeros where there is no row."""
        index = self.pieces.rows
        there = (index >= 0) & (index <= self.pieces.last)
        return np.where(there[..., None], values[np.clip(index, 0, self.pieces.last)], 0.0)


def _between(filtered: FilterResult, first: int, last: int, r: int) -> tuple[FloatArray, FloatArray]:
    """X (n, P, P) and C̃ (n, r, P) of rows ``first`` to ``last - 1``; zeros below a C̃ with fewer rows."""
    P = filtered.filtered.shape[1]
    X, C = np.empty((last - first, P, P)), np.zeros((last - first, r, P))
    ends = np.array([run.stop for run in filtered.runs])
    for run in filtered.runs[int(np.searchsorted(ends, first, "right")) :]:
        if run.start >= last:
            break
        at = slice(max(run.start, first) - first, min(run.stop, last) - first)
        own = slice(at.start + first - run.start, at.stop + first - run.start)
        X[at] = run.predicted if isinstance(run, Run) else run.predicted[own]
        C[at, : run.observation.shape[-2]] = run.observation if isinstance(run, Run) else run.observation[own]
    return X, C


def _memory(filtered: FilterResult, A: FloatArray) -> int:
    """Rows after which the products of F have forgotten, at the slowest of some places in the record."""
    T, P = len(filtered.filtered) - 1, len(A)
    rows = 64
    while True:
        pieces = Pieces(np.linspace(1, max(1, T - rows), LOOKED_AT).astype(np.intp), 0, min(rows, T), T)
        found = _Rows.from_filter(filtered, A, pieces)
        scale = np.sqrt(np.einsum("nii->ni", np.abs(found.ahead[:, 0])) + 1e-300)
        product = np.repeat(np.eye(P)[None], LOOKED_AT, axis=0)
        for k in range(pieces.length):
            product = found.closed[:, k] @ product
            if np.abs(product * scale[:, None, :] / scale[:, :, None]).max() < FORGOTTEN:
                return k + 1
        if rows >= T:
            return T
        rows *= 4


def _of_predictions(of: _Rows, regressors: FloatArray, rows: NDArray[np.intp], columns: NDArray[np.intp]) -> FloatArray:
    """Σ dxᵀ M dx with gains that do not move, of parameters that are entries (rows, columns) of [A B]."""
    w = of.regressors(regressors)
    N, P, size = len(w), of.closed.shape[2], len(rows)
    out, dx = np.zeros((size, size)), np.zeros((N, P, size))
    each = np.arange(size)
    for k in range(w.shape[1]):
        if k >= of.pieces.warm:
            seen = (of.white[:, k] @ dx).reshape(-1, size)
            out += seen.T @ seen
        dx = of.closed[:, k] @ dx
        dx[:, rows, each] += w[:, k, columns]
    return out


def _of_covariances(
    of: _Rows, regressors: FloatArray, rows: NDArray[np.intp], columns: NDArray[np.intp], directions: FloatArray
) -> FloatArray:
    """What is added because covariances and gains move, too; parameters of the noise, ``directions``, come last."""
    w = of.regressors(regressors)
    N, P, size = len(w), of.closed.shape[2], len(rows)
    inside = np.flatnonzero(columns < P)  # entries of A
    moving = np.concatenate([inside, size + np.arange(len(directions))])
    count, each, A_each = len(moving), np.arange(size), np.arange(len(inside))
    a, b = rows[inside], columns[inside]
    out, products = np.zeros((size + len(directions), size + len(directions))), np.zeros((count, count))
    dx, by_gain = np.zeros((N, P, size)), np.zeros((N, P, count))  # dx without dX, and what dX adds to it
    dX = np.zeros((N, P, count, P))
    noise = np.ascontiguousarray(directions.transpose(1, 0, 2))
    there = (of.pieces.rows >= 0)[:, :, None, None, None]
    chosen = np.arange(of.pieces.length) * GOLDEN % 1 < 1 / EVERY
    for k in range(w.shape[1]):
        W, F = of.white[:, k], of.closed[:, k]
        r = W.shape[1]
        if k >= of.pieces.warm:
            plain, more = (W @ dx).reshape(-1, size), (W @ by_gain).reshape(-1, count)
            cross = plain.T @ more
            out[:size, moving] += cross
            out[moving, :size] += cross.T
            out[np.ix_(moving, moving)] += more.T @ more
            if chosen[k - of.pieces.warm]:
                seen = (W @ dX.reshape(N, P, count * P)).reshape(N, r * count, P) @ W.transpose(0, 2, 1)
                flat = seen.reshape(N, r, count, r).transpose(2, 0, 1, 3).reshape(count, -1)
                products += flat @ flat.T
        by_gain = F @ (by_gain + (dX.reshape(N, P * count, P) @ of.slope[:, k, :, None]).reshape(N, P, count))
        dx = F @ dx
        dx[:, rows, each] += w[:, k, columns]
        dX = ((F @ dX.reshape(N, P, count * P)).reshape(N, P * count, P) @ F.transpose(0, 2, 1)).reshape(dX.shape)
        moved = of.ahead[:, k][:, :, b]  # A V e_b
        dX[:, a, A_each] += moved.transpose(0, 2, 1)
        dX[:, :, A_each, a] += moved
        dX[:, :, len(inside) :] += there[:, k] * noise
    out[np.ix_(moving, moving)] += 0.5 * products / chosen.mean()
    return out
