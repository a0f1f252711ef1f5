"""The Kalman recursion over rows that each see the state in their own way, without a loop over time.

Where every row has an observation C~[t] of its own, covariances never settle. But they forget where they started. So
the rows are cut into blocks of equal length that are stepped side by side, first as if the state before each block were
known exactly (X = 0), which gives

    ends = X after it,    transition = product of F,    information = sum of transition' M transition so far

with F = A (I - K C~) and M = C~' S^-1 C~ of a row: what the block keeps of the prediction before it, and what its rows
say of that state. From a start of covariance X it then ends with

    ends + transition (X^-1 + information)^-1 transition'

so one short loop over the blocks tells where each of them really starts. From there they are stepped again, until it
makes no difference any more. What later rows say of a state is found the same way, backwards. Means are time-varying
linear recurrences, done in the same blocks. All of it equals the row-by-row recursion to rounding.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from counterflow.arrays import FloatArray

_CACHED = 12_000  # entries of a stack of matrices beyond which fresh memory costs more than the work done in it
_FEWEST_BLOCKS = 8
_LOOK = 8  # steps between two looks at whether the start of the blocks still makes a difference
_VANISHED = 1e-9  # what is left of a standard deviation whose square rounding hides
_FORGOTTEN = 1e-12  # relative difference of covariances that is none
_EPS = float(np.finfo(float).eps)


class Blocks(NamedTuple):
    """N blocks of ``length`` rows, the last one perhaps shorter, and what each of them does to a predicted state."""

    rows: int
    length: int
    closed: FloatArray  # (N, length, P, P) F of every row
    said: FloatArray  # (N, length, P, P) M of every row
    told: FloatArray  # (N, length, P) C~' S^-1 s of every row
    starts: FloatArray  # (N, P, P) X of the first row of each
    transition: FloatArray  # (N, P, P) from X = 0
    information: FloatArray  # (N, P, P) from X = 0
    ends: FloatArray  # (N, P, P) X after the last row, from X = 0
    whole: FloatArray  # (N, P, P) product of F, from ``starts``
    forget: bool  # whether no block keeps anything of the covariance before it

    def active(self, k: int) -> int:
        """How many blocks have a row ``k``."""
        N = len(self.closed)
        return N if k < self.rows - (N - 1) * self.length else N - 1


class Rows(NamedTuple):
    """Rows ``start`` to ``stop - 1``, each with its own covariances."""

    start: int
    stop: int
    predicted: FloatArray  # X (n, P, P), before the measurement
    filtered: FloatArray  # V (P, P) of the last row, after it
    observation: FloatArray  # C~ (n, r, P); rows of zeros where less was measured
    slope: FloatArray  # (n, P) derivative of each row's log-likelihood in its predicted state, C~' S^-1 (s - C~ p)
    blocks: Blocks

    @property
    def said(self) -> FloatArray:
        """M = C~' S^-1 C~ of every row (n, P, P)."""
        return _flat(self.blocks.said, self.blocks.rows)


def predicted_covariances(
    observation: FloatArray, values: FloatArray, A: FloatArray, Q: FloatArray, start: FloatArray
) -> tuple[FloatArray, Blocks]:
    """Predicted covariances X (n, P, P) of rows s = C~ h + N(0, I).

    ``observation`` C~ (n, r, P), ``values`` s (n, r), ``start`` (P, P): X of the first row.
    """
    n, P = len(observation), len(A)
    N, length = _cut(n, P)
    seen, s = _padded(observation, N, length), _padded(values, N, length)
    predicted, closed, said = (np.empty((N, length, P, P)) for _ in range(3))
    told = np.empty((N, length, P))
    X, information = np.zeros((N, P, P)), np.zeros((N, P, P))
    transition = np.repeat(np.eye(P)[None], N, axis=0)
    blocks = Blocks(n, length, closed, said, told, X, transition, information, X, transition, True)

    def step(k: int, m: int) -> None:
        predicted[:m, k] = X[:m]
        X[:m], closed[:m, k], said[:m, k], told[:m, k] = _step(X[:m], seen[:m, k], s[:m, k], A, Q)

    for k in range(length):
        step(k, m := blocks.active(k))
        information[:m] += _transposed(transition[:m]) @ (said[:m, k] @ transition[:m])
        transition[:m] = closed[:m, k] @ transition[:m]
    blocks = _joined(blocks._replace(information=_symmetric(information), ends=X.copy()), start)
    X[:] = blocks.starts
    for k in range(length):
        m = blocks.active(k)
        if k % _LOOK == 0 and _same(X[:m], predicted[:m, k]):
            break
        step(k, m)
    return _flat(predicted, n), blocks


class Smoothed(NamedTuple):
    """Covariances of ``Rows`` given all measurements."""

    sum: FloatArray  # (P, P) of Cov[h[t]]
    lag_sum: FloatArray  # (P, P) of Cov[h[t+1], h[t]]
    first: FloatArray  # (P, P) Cov[h[t]] of the first row
    last: FloatArray  # (P, P) and of the last
    information: FloatArray  # (P, P) G of the first row: what the rows from it on say of its state


def smoothed_covariances(
    rows: Rows, after: tuple[FloatArray, FloatArray] | None, covariance: FloatArray | None = None
) -> Smoothed:
    """Covariances given all measurements: X - X N X, and (I - X N of the row after)' F X.

    N = (G^-1 + X)^-1 with G the information of the rows from a row on about its state. ``after``: G and X of the row
    after all of ``rows``; None if there is none. ``covariance`` (n, P, P): where to put those of every row.
    """
    blocks, X = rows.blocks, rows.predicted
    n, P = X.shape[:2]
    N, length = blocks.closed.shape[:2]
    later, ahead = np.zeros((2, P, P)) if after is None else after
    G = np.concatenate([blocks.information, later[None]])
    for k in [N - 1] if blocks.forget else range(N - 1, -1, -1):  # where blocks forget, nothing later says anything
        G[k] += blocks.transition[k].T @ conditioned(G[k + 1], blocks.ends[k]) @ blocks.transition[k]
    X_after = np.concatenate([blocks.starts[1:], ahead[None]])
    J = conditioned(G[1:], X_after)
    said = J @ X_after  # N X of the row after
    total, lagged = np.zeros((P, P)), np.zeros((P, P))
    first = last = np.zeros((P, P))
    for k in range(length - 1, -1, -1):
        m = blocks.active(k)
        at = slice(k, n, length)
        X_k, F = np.ascontiguousarray(X[at]), np.ascontiguousarray(blocks.closed[:m, k])
        moved = F @ X_k
        if after is None and at.start + (m - 1) * length == n - 1:
            moved[-1] = 0.0  # the last row of all has no row after it
        lagged += moved.sum(axis=0) - _sum_of_products(said[:m], moved)
        J[:m] = _symmetric(_transposed(F) @ J[:m] @ F) + blocks.said[:m, k]
        said[:m] = J[:m] @ X_k
        total += X_k.sum(axis=0) - _sum_of_products(X_k, said[:m])
        if covariance is not None:
            covariance[at] = _symmetric(X_k - X_k @ said[:m])
        if at.start + (m - 1) * length == n - 1:
            last = _symmetric(X_k[-1] - X_k[-1] @ said[m - 1])
        if k == 0:
            first = _symmetric(X_k[0] - X_k[0] @ said[0])
    return Smoothed(total, lagged, first, last, G[0])


def recurrence(
    f: FloatArray, start: FloatArray, blocks: Blocks, *, back: bool = False
) -> tuple[FloatArray, FloatArray]:
    """Every x[k] of x[k+1] = F[k] x[k] + f[k] from x[0] = ``start``: rows 0 to n-1 (n, P), and x[n] (P,).

    With ``back`` it is x[k] = F[k]' x[k+1] + f[k] from x[n] = ``start``; row k of what is returned is then x[k+1], and
    the last x[0].
    """
    n, P = f.shape
    N, length = blocks.closed.shape[:2]
    F, f, whole = blocks.closed, _padded(f, N, length)[..., None], blocks.whole
    steps, order = range(length), range(N)
    if back:
        F, whole, steps, order = _transposed(F), _transposed(whole), steps[::-1], order[::-1]
    out = np.empty((N, length, P))
    x = np.zeros((N, P, 1))
    for k in steps:
        m = blocks.active(k)
        out[:m, k] = x[:m, :, 0]
        x[:m] = F[:m, k] @ x[:m] + f[:m, k]
    at = start[:, None]
    for k in order:
        end = x[k].copy()
        x[k] = at
        at = end + whole[k] @ at
    small = _EPS * np.abs(x).max(initial=0.0)
    for k in steps:
        m = blocks.active(k)
        if k % _LOOK == 0 and np.abs(x[:m, :, 0] - out[:m, k]).max() <= small:
            break
        out[:m, k] = x[:m, :, 0]
        x[:m] = F[:m, k] @ x[:m] + f[:m, k]
    return _flat(out, n), at[:, 0]


def conditioned(G: FloatArray, X: FloatArray) -> FloatArray:
    """(G^-1 + X)^-1 of positive semidefinite matrices, or stacks of them, which may be singular."""
    return _symmetric(G @ np.linalg.inv(np.eye(G.shape[-1]) + X @ G))


def forward_substituted(L: FloatArray, right: FloatArray) -> FloatArray:
    """L^-1 right of lower triangles L (n, r, r), right (n, r, k)."""
    out = np.empty_like(right)
    for k in range(right.shape[1]):
        out[:, k] = (right[:, k] - (L[:, k : k + 1, :k] @ out[:, :k])[:, 0]) / L[:, k, k, None]
    return out


def _step(
    X: FloatArray, C: FloatArray, s: FloatArray, A: FloatArray, Q: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """The next X, in Joseph's form, F, M and C~' S^-1 s of a stack."""
    r = C.shape[1]
    C = np.ascontiguousarray(C)
    S = C @ X @ _transposed(C)
    S.reshape(len(S), -1)[:, :: r + 1] += 1.0
    white = np.linalg.inv(S) @ C  # S^-1 C~
    gain = A @ (X @ _transposed(white))  # A K
    F = A - gain @ C
    following = _symmetric(F @ X @ _transposed(F) + gain @ _transposed(gain))
    following += Q
    return following, F, _symmetric(_transposed(C) @ white), (s[:, None] @ white)[:, 0]


def _joined(blocks: Blocks, start: FloatArray) -> Blocks:
    """Where blocks start that follow each other."""
    ends, transition, information = blocks.ends, blocks.transition, blocks.information
    starts = np.concatenate([start[None], ends[:-1]])
    # what a block keeps of the covariance before it, in standard deviations, at most
    kept = (np.abs(transition) @ _deviations(starts)[:, :, None])[:-1, :, 0]
    forget = bool((kept <= _VANISHED * _deviations(ends)[:-1]).all())
    if not forget:
        for k in range(len(ends) - 1):
            part = transition[k] @ conditioned(starts[k], information[k]) @ transition[k].T
            starts[k + 1] = ends[k] + (part + part.T) / 2
    whole = transition @ np.linalg.inv(np.eye(len(start)) + starts @ information)
    return blocks._replace(starts=starts, whole=whole, forget=forget)


def _cut(n: int, P: int) -> tuple[int, int]:
    """How many blocks, and of how many rows."""
    blocks = max(_FEWEST_BLOCKS, min(math.isqrt(n), _CACHED // (P * P)))
    length = -(-n // blocks)
    return -(-n // length), length


def _padded(rows: FloatArray, N: int, length: int) -> FloatArray:
    """(n, ...) as (N, length, ...); zeros where the last block is short."""
    if len(rows) == N * length:
        return rows.reshape(N, length, *rows.shape[1:])
    out = np.zeros((N * length, *rows.shape[1:]))
    out[: len(rows)] = rows
    return out.reshape(N, length, *rows.shape[1:])


def _flat(blocks: FloatArray, n: int) -> FloatArray:
    """(N, length, ...) as (n, ...)."""
    return blocks.reshape(-1, *blocks.shape[2:])[:n]


def _sum_of_products(one: FloatArray, two: FloatArray) -> FloatArray:
    """Sum of one[t]' two[t] over stacks."""
    P = one.shape[1]
    return np.asarray(one.reshape(-1, P).T @ two.reshape(-1, P))


def _same(one: FloatArray, two: FloatArray) -> bool:
    deviation = _deviations(one)
    return bool((np.abs(one - two) <= _FORGOTTEN * deviation[:, :, None] * deviation[:, None, :]).all())


def _deviations(stack: FloatArray) -> FloatArray:
    return np.asarray(np.sqrt(np.maximum(np.einsum("nii->ni", stack), 0.0)))


def _symmetric(stack: FloatArray) -> FloatArray:
    return np.asarray((stack + _transposed(stack)) * 0.5)


def _transposed(stack: FloatArray) -> FloatArray:
    return stack.swapaxes(-1, -2)
