"""State-space models from records of inputs and outputs, by canonical variates of the past and the future.

    x[t+1] = A x[t] + B u[t] + K e[t],     y[t] = C x[t] + e[t],     e ~ N(0, Omega)

The state is the memory of the past that predicts the future best: the canonical variates between a stretch of past
[y u] and a stretch of future y, once the part that future inputs explain has been projected out of both. Given the
state, everything else is least squares. All of it is computed from the Gram matrix of windows of rows, so that the
data are read once, whatever number of orders is tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from counterflow.arrays import FloatArray
from counterflow.errors import DataError, OptionError
from counterflow.filtering.checks import as_shaped
from counterflow.filtering.covariances import spectral_radius, steady_state
from counterflow.filtering.results import freeze
from counterflow.identification.lagged import LaggedGram, as_pair, as_runs, lagged_gram, stretches
from counterflow.identification.signal import DEPENDENT, below, independent
from counterflow.learning.realisation import STABLE, shrink

_PERFECT = 1 - 1e-12  # squared correlation above which there is no telling how much above
_SILENT = 1e-12  # smallest variance of an innovation, relative to the channel's own
_LONGEST = 30  # rows of past that the search for a default goes up to,
_SHORT = 10  # if it is not content with fewer
_CHEAP = 240  # columns of past up to which the long search is made at once
_MOST_COLUMNS = 1200  # of the past, in that search
_ROWS_A_COLUMN = 8  # windows wanted for each column of past, in that search

_find_stretches = stretches  # functions below have a parameter of that name


@dataclass(frozen=True)
class Subspace:
    """An innovations model: x[t+1] = A x[t] + B u[t] + K e[t], y[t] = C x[t] + e[t].

    Attributes
    ----------
    A : (n, n), B : (n, U), C : (r, n), K : (n, r) arrays
        Both A and A - K C are stable. K takes the innovation of row t into the state of row t+1.
    innovation : (r, r) array
        Omega, the covariance of e; positive definite.
    singular_values : array
        All canonical correlations of past and future, largest first; the order is how many of them count.
    past, future : int
        Rows of past and future that they were computed from.
    windows : int
        How many windows of past + future rows the data gave.
    repaired : tuple of str
        What had to be changed to make the model stable; empty if nothing.
    """

    A: FloatArray
    B: FloatArray
    C: FloatArray
    K: FloatArray
    innovation: FloatArray
    singular_values: FloatArray
    past: int
    future: int
    windows: int
    repaired: tuple[str, ...] = ()

    @property
    def order(self) -> int:
        """Number of states, n."""
        return len(self.A)


def subspace(
    y: ArrayLike, u: ArrayLike, order: int | None = None, *, past: int | None = None, future: int | None = None,
    stretches: Sequence[slice] | None = None,
) -> Subspace:  # fmt: skip
    """Identify a stable innovations model from a record.

    Parameters
    ----------
    y : (T+1, r) array
        Measurements as deviations from their level, NaN where nothing was measured.
    u : (T+1, U) array
        Inputs as deviations from theirs, U may be 0. The input of row t-1 acts on row t.
    order : int, optional
        Number of states. By default `order_from_singular_values` chooses it.
    past, future : int, optional
        Rows of past that the state is made from, and of future that it has to predict. By default
        `default_past` for both.
    stretches : sequence of slice, optional
        Runs of rows to use. By default, all runs without a missing value.

    Returns
    -------
    Subspace
        Scaling or mixing the channels of y by an invertible matrix changes the model in the same way and nothing else.

    Raises
    ------
    DataError
        If there are not enough rows.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> u, y = rng.normal(size=(500, 1)), np.zeros((500, 1))
    >>> for t in range(1, 500):
    ...     y[t] = 0.8 * y[t - 1] + u[t - 1]
    >>> model = subspace(y, u, 1)
    >>> round(float(model.A[0, 0]), 8), round(float((model.C @ model.B)[0, 0]), 8)
    (0.8, 1.0)
    """
    return subspaces(y, u, None if order is None else [order], past=past, future=future, stretches=stretches)[0]


def subspaces(
    y: ArrayLike, u: ArrayLike, orders: Iterable[int] | None = None, *, past: int | None = None,
    future: int | None = None, stretches: Sequence[slice] | None = None,
) -> tuple[Subspace, ...]:  # fmt: skip
    """Identify models of several orders, at nearly the cost of one.

    Parameters and errors are those of `subspace`; `orders` holds the numbers of states.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> [model.order for model in subspaces(rng.normal(size=(300, 2)), rng.normal(size=(300, 1)), range(1, 4))]
    [1, 2, 3]
    """
    y, u = as_pair(y, u)
    wanted = None if orders is None else [_as_order(n) for n in orders]
    if wanted is not None and not wanted:
        raise OptionError("orders is empty; give at least one number of states")
    runs = _find_stretches(y) if stretches is None else as_runs(stretches, len(y))
    least = 1 if wanted is None else -(-max(wanted) // y.shape[1]) + 1
    if past is None:
        past = max(default_past(y, u, stretches=runs), min(least, 2 * _LONGEST))
    if future is None:
        future = max(past, least)
    if past < 1 or future < 1:
        raise OptionError(f"past and future must be at least 1 row; got {past} and {future}")
    return subspaces_from_gram(lagged_gram(y, u, past + future, runs), wanted, past=past)


def default_past(y: ArrayLike, u: ArrayLike, *, stretches: Sequence[slice] | None = None) -> int:
    """Half as many rows again as a regression of y[t] on past rows of [y u] needs by Akaike's criterion.

    Bounded by the data: eight windows for each column of the past, and windows of twice that length must still use
    half of the rows.

    Examples
    --------
    >>> y = np.random.default_rng(0).normal(size=(1000, 1))
    >>> for t in range(3, 1000):
    ...     y[t] += 0.5 * y[t - 3]
    >>> default_past(y, np.empty((1000, 0)))
    5
    """
    y, u = as_pair(y, u)
    runs = _find_stretches(y) if stretches is None else as_runs(stretches, len(y))
    lengths = np.array([run.stop - run.start for run in runs], dtype=np.intp)
    rows, m = int(lengths.sum()), y.shape[1] + u.shape[1]
    longest = min(_LONGEST, max(_MOST_COLUMNS // m, 2))
    while longest > 2 and (
        np.maximum(lengths - 2 * longest + 1, 0).sum() < 0.5 * rows or longest * m * _ROWS_A_COLUMN > rows
    ):
        longest -= 1
    short = min(_SHORT, longest)
    best = _best_past(y, u, short, runs) if longest * m > _CHEAP else longest
    if best >= short - 1:
        best = _best_past(y, u, longest, runs)
    return int(min(-(-3 * best // 2), longest))  # half as many again cost little, and help where noise is measured only


def _best_past(y: FloatArray, u: FloatArray, longest: int, runs: Sequence[slice]) -> int:
    """Akaike's choice of 1, 2, ... `longest` past rows, all from one Cholesky factor."""
    gram = lagged_gram(y, u, longest + 1, runs)
    m, r = gram.columns, gram.outputs
    if gram.windows <= longest * m:
        return 2  # too few rows for anything; `subspaces` says so
    G = _unit_scale(gram)[0] / gram.windows
    order = np.concatenate([np.arange(k * m, (k + 1) * m) for k in range(longest - 1, -1, -1)])  # latest row first
    now = longest * m + np.arange(r)
    ridge = 1e-9 * np.eye(len(order))  # only a length is decided here, so that dependent columns need no more care
    factor = np.linalg.cholesky(G[np.ix_(order, order)] + ridge)
    explained = below(factor, G[np.ix_(order, now)]).reshape(longest, m, r)
    left = G[np.ix_(now, now)] - np.cumsum(np.einsum("kma,kmb->kab", explained, explained), axis=0)
    spread = np.linalg.slogdet(left + 1e-9 * np.eye(r))[1]
    lags = np.arange(1, longest + 1)
    return int(lags[np.argmin(spread + 2 * lags * m * r / gram.windows)])


def subspaces_from_gram(gram: LaggedGram, orders: Sequence[int] | None, *, past: int) -> tuple[Subspace, ...]:
    """Identify models of several orders from the Gram matrix of windows of `past` rows and the future rows after them.

    Parameters
    ----------
    gram : LaggedGram
        The rows of its windows after the first `past` are the future. Sums of such matrices, over records of the
        same channels, are as good.
    orders : sequence of int, optional
        Numbers of states. By default one order, chosen by `order_from_singular_values`.
    past : int

    Returns
    -------
    tuple of Subspace
        In the order of `orders`.

    Examples
    --------
    >>> from counterflow.identification import lagged_gram
    >>> y = np.random.default_rng(0).normal(size=(300, 1)).cumsum(axis=0)
    >>> model, = subspaces_from_gram(lagged_gram(y, y[:, :0], 6), [1], past=3)
    >>> bool(model.A[0, 0] > 0.9)
    True
    """
    memory = _memory(gram, past)
    if orders is None:
        chosen = order_from_singular_values(
            memory.singular_values, gram.windows, outputs=gram.outputs, inputs=gram.inputs
        )
        orders = [min(max(chosen, 1), memory.most)]
    for n in orders:
        if not 1 <= n <= memory.most:
            raise OptionError(
                f"order must be between 1 and {memory.most}, the number of directions in which {past} past and "
                f"{gram.window - past} future rows vary together; got {n}. Take more rows of past and future, or a "
                "lower order"
            )
    return tuple(_realise(memory, n) for n in orders)


def order_from_singular_values(
    singular_values: ArrayLike, rows: int, *, outputs: int = 1, inputs: int = 0, largest: int | None = None
) -> int:
    """Choose the order by an information criterion on the canonical correlations.

    The first correlation ρ that is left out costs -log(1 - ρ²), which is ρ² if it is small, and each state costs its
    2 `outputs` + `inputs` parameters times log(rows) / rows. This is the criterion SVC of Bauer (Automatica 37, 2001),
    but for the logarithm, without which a perfect correlation could be too cheap to keep when there are many outputs.
    It is consistent, quick, and tends to leave out states that the data hardly show.

    Parameters
    ----------
    singular_values : (k,) array
        Canonical correlations, largest first.
    rows : int
        Windows of the record they came from.
    outputs, inputs : int
        Channels of y and u.
    largest : int, optional
        Do not go beyond this order.

    Returns
    -------
    int
        Between 0 and k.

    Examples
    --------
    >>> order_from_singular_values([0.99, 0.7, 0.05, 0.04], rows=2000)
    2
    """
    s = as_shaped("singular_values", singular_values, ("k",))
    if rows < 2:
        raise OptionError(f"rows must be at least 2; got {rows}")
    left_out = np.append(-np.log1p(-np.minimum(s**2, _PERFECT)), 0.0)
    price = (2 * outputs + inputs) * np.log(rows) / rows
    order = int(np.argmin(left_out + price * np.arange(len(s) + 1)))
    return order if largest is None else min(order, max(int(largest), 0))


@dataclass(frozen=True)
class _Memory:
    """Covariances of the largest state x[t], of x[t+1], u[t] and y[t], in channels scaled to mean square 1."""

    singular_values: FloatArray
    now: FloatArray  # x[t] with x[t]
    next_now: FloatArray  # x[t+1] with x[t]
    input_now: FloatArray  # u[t] with x[t]
    output_now: FloatArray  # y[t] with x[t]
    next_input: FloatArray
    next_output: FloatArray
    input_input: FloatArray
    output_input: FloatArray
    output_output: FloatArray
    scale: FloatArray  # (m,)
    past: int
    future: int
    windows: int

    @property
    def most(self) -> int:
        return len(self.now)


def _memory(gram: LaggedGram, past: int) -> _Memory:
    """Canonical variates of past and future, given future inputs, and their covariances."""
    r, m, windows = gram.outputs, gram.columns, gram.windows
    future = gram.window - past
    if past < 1 or future < 1:
        raise OptionError(f"past must be between 1 and {gram.window - 1}, the window less one row; got {past}")
    if windows < 2 * gram.window * m:
        raise DataError(
            f"{windows} windows of {past} past and {future} future rows are too few for {m} columns of y and u: at "
            f"least {2 * gram.window * m} are needed. Give more rows or longer stretches, or shorter past and future"
        )
    G, scale = _unit_scale(gram)
    G = G / windows
    before = np.arange(past * m).reshape(past, m)[::-1].ravel()
    rows = np.arange(past, gram.window)[:, None] * m
    ahead = (rows + np.arange(r)).ravel()
    known = (rows[:-1] + np.arange(r, m)).ravel()  # the last input cannot be seen in the future rows any more

    basis, factor = independent(G[np.ix_(known, known)])
    kept = known[basis]
    both = np.concatenate([before, ahead])
    fixed = below(factor, G[np.ix_(kept, both)])
    partial = G[np.ix_(both, both)] - fixed.T @ fixed
    P = len(before)
    basis_p, factor_p = independent(partial[:P, :P])
    basis_f, factor_f = independent(partial[P:, P:])
    correlation = below(factor_p, below(factor_f, partial[P:, :P][np.ix_(basis_f, basis_p)]).T)
    left, singular_values, _ = np.linalg.svd(correlation, full_matrices=False)
    J = np.zeros((len(singular_values), P))
    J[:, basis_p] = below(factor_p, left, transposed=True).T

    after, u_now, y_now = before + m, past * m + np.arange(r, m), past * m + np.arange(r)
    now, later = J @ G[before], J @ G[after]
    return _Memory(
        singular_values=np.clip(singular_values, 0.0, 1.0), now=_symmetric(now[:, before] @ J.T),
        next_now=later[:, before] @ J.T, input_now=now[:, u_now].T, output_now=now[:, y_now].T,
        next_input=later[:, u_now], next_output=later[:, y_now], input_input=G[np.ix_(u_now, u_now)],
        output_input=G[np.ix_(y_now, u_now)], output_output=G[np.ix_(y_now, y_now)], scale=scale, past=past,
        future=future, windows=windows,
    )  # fmt: skip


def _realise(memory: _Memory, n: int) -> Subspace:
    """The matrices of order n, by least squares on the first n canonical variates."""
    r, U = memory.output_input.shape
    now, output_now, input_now = memory.now[:n, :n], memory.output_now[:, :n], memory.input_now[:, :n]
    next_now, next_input = memory.next_now[:n, :n], memory.next_input[:n]
    C = _regress(output_now, now)
    innovation = _symmetric(memory.output_output - C @ output_now.T)
    e_input = memory.output_input - C @ input_now.T
    next_e = memory.next_output[:n] - next_now @ C.T
    regressors = np.block(
        [
            [now, input_now.T, np.zeros((n, r))],
            [input_now, memory.input_input, e_input.T],
            [np.zeros((r, n)), e_input, innovation],
        ]
    )
    A, B, K = np.split(_regress(np.hstack([next_now, next_input, next_e]), regressors), [n, n + U], axis=1)
    repaired: list[str] = []
    radius = spectral_radius(A)
    if radius > STABLE:
        A = shrink(A)
        rest = np.hstack([next_input - A @ input_now.T, next_e])
        B, K = np.split(_regress(rest, regressors[n:, n:]), [U], axis=1)
        repaired.append(
            f"A had spectral radius {radius:.6g}; it was brought to {STABLE:.6f} and B, K were fitted again"
        )
    values, vectors = np.linalg.eigh(innovation)
    innovation = (vectors * np.maximum(values, _SILENT)) @ vectors.T
    radius = spectral_radius(A - K @ C)
    if radius > STABLE:
        K = _stabilising_gain(A, C, K, innovation)
        repaired.append(f"A - K C had spectral radius {radius:.6g}; K is the gain of a Kalman filter instead")
    outputs, inputs = memory.scale[:r], memory.scale[r:]
    return Subspace(
        A=freeze(A), B=freeze(B / inputs), C=freeze(C * outputs[:, None]), K=freeze(K / outputs),
        innovation=freeze(_symmetric(innovation * outputs * outputs[:, None])),
        singular_values=freeze(memory.singular_values), past=memory.past, future=memory.future,
        windows=memory.windows, repaired=tuple(repaired),
    )  # fmt: skip


def _stabilising_gain(A: FloatArray, C: FloatArray, K: FloatArray, innovation: FloatArray) -> FloatArray:
    """The gain of the Kalman filter for noises K e + (a little of its own) and e: stable whatever K is."""
    Q = K @ innovation @ K.T
    Q += (1e-6 * np.trace(Q) / len(A) + 1e-12) * np.eye(len(A))
    steady = steady_state(A, C, _symmetric(Q), innovation)
    return A @ steady.gain


def _unit_scale(gram: LaggedGram) -> tuple[FloatArray, FloatArray]:
    """The Gram matrix in channels with mean square 1, and their scales; a channel that is always zero keeps scale 1."""
    m = gram.columns
    power = gram.matrix.diagonal().reshape(gram.window, m).mean(axis=0) / max(gram.windows, 1)
    scale = np.sqrt(np.where(power > 0, power, 1.0))
    every = np.tile(scale, gram.window)
    return gram.matrix / every / every[:, None], scale


def _regress(cross: FloatArray, S: FloatArray) -> FloatArray:
    """The least-squares M of cross = M S, smallest where S does not determine it."""
    scale = np.sqrt(np.maximum(S.diagonal(), 1.0))  # only down: what is far below mean square 1 is rounding
    values, vectors = np.linalg.eigh(S / scale / scale[:, None])
    real = values > DEPENDENT * max(float(values[-1]), 0.0) if len(values) else values > 0
    return np.asarray(((cross / scale) @ vectors[:, real] / values[real]) @ vectors[:, real].T / scale)


def _symmetric(S: FloatArray) -> FloatArray:
    return np.asarray((S + S.T) / 2)


def _as_order(n: int) -> int:
    if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
        raise OptionError(f"order must be a whole number of states, at least 1; got {n!r}")
    return int(n)
