"""State-space models from records of inputs and outputs, by canonical variates of the past and the future.

    x[t+1] = A x[t] + B u[t] + K e[t],     y[t] = C x[t] + e[t],     e ~ N(0, Omega)

The state is the memory of the past that predicts the future best: the canonical variates between a stretch of past
[y u] and a stretch of future y, once the part that future inputs explain has been projected out of both. Given the
state, everything else is least squares. All of it is computed from the Gram matrix of windows of rows, so that the
data are read once, whatever number of orders is tried.

``pooled_model`` is the paper's own route to models of real plants: one such model of the RAW DATA OF ALL UNITS, IN ONE
PLACE, divided among the units. Nothing of that is federated; the paper's experiments on HAI and SWaT start from it.
What the paper leaves open is listed in docs/theory/identification.md.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from counterflow.arrays import FloatArray, frozen
from counterflow.errors import DataError, OptionError
from counterflow.filtering.covariances import spectral_radius, steady_state
from counterflow.identification.lagged import LaggedGram, lagged_gram, stretches
from counterflow.identification.signal import DEPENDENT, below, independent, standard
from counterflow.learning.system import STABLE, shrink
from counterflow.plant import LocalModel, Recording
from counterflow.recurrence import linear_recurrence

_PERFECT = 1 - 1e-12  # squared correlation above which there is no telling how much above
_SILENT = 1e-12  # smallest variance of an innovation, relative to the channel's own
_LONGEST = 30  # rows of past that the search for a default goes up to,
_SHORT = 10  # if it is not content with fewer
_CHEAP = 240  # columns of past up to which the long search is made at once
_MOST_COLUMNS = 1200  # of the past, in that search
_ROWS_A_COLUMN = 8  # windows wanted for each column of past, in that search
_LEAST = 1e-8  # smallest noise variance, relative to that of a standardised channel or state


@dataclass(frozen=True)
class Subspace:
    """A (n, n), B (n, U), C (r, n), K (n, r) and the covariance Omega (r, r) of the innovations e.

    A and A - K C are stable. ``singular_values``: all canonical correlations of past and future, largest first; the
    order is how many of them count. They were computed from so many ``windows`` of ``past`` and ``future`` rows.
    ``repaired``: what had to be changed to make the model stable.
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
    y: FloatArray, u: FloatArray, order: int | None = None, *, past: int | None = None, future: int | None = None
) -> Subspace:
    """A stable innovations model of a record.

    y (T+1, r) are measurements as deviations from their level, NaN where nothing was measured, u (T+1, U) inputs as
    deviations from theirs. The state is made from ``past`` rows and has to predict ``future`` ones, by default half as
    many again as a regression on past rows needs; ``order_from_singular_values`` chooses the order if none is given.
    Scaling or mixing the channels of y by an invertible matrix changes the model in the same way and nothing else.
    """
    return subspaces(y, u, None if order is None else [order], past=past, future=future)[0]


def subspaces(
    y: FloatArray, u: FloatArray, orders: Iterable[int] | None = None, *, past: int | None = None,
    future: int | None = None,
) -> tuple[Subspace, ...]:  # fmt: skip
    """Models of several orders, at nearly the cost of one."""
    wanted = [] if orders is None else list(orders)
    for n in wanted:
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or n < 1:
            raise OptionError(f"order must be a whole number of states, at least 1; got {n!r}")
    least = -(-max(wanted) // y.shape[1]) + 1 if wanted else 1
    if past is None:
        past = max(_default_past(y, u), min(least, 2 * _LONGEST))
    if future is None:
        future = max(past, least)
    if past < 1 or future < 1:
        raise OptionError(f"past and future must be at least 1 row; got {past} and {future}")
    gram = lagged_gram(y, u, past + future)
    products, correlations = _memory(gram, past)
    most = len(correlations)
    if orders is None:
        chosen = order_from_singular_values(correlations, gram.windows, outputs=gram.outputs, inputs=gram.inputs)
        wanted = [min(max(chosen, 1), most)]
    for n in wanted:
        if n > most:
            raise OptionError(
                f"order must be between 1 and {most}, the number of directions in which {past} past and "
                f"{future} future rows vary together; got {n}. Take more rows of past and future, or a lower order"
            )
    return tuple(_realised(n, gram, products, correlations, past) for n in wanted)


def _default_past(y: FloatArray, u: FloatArray) -> int:
    """Half as many rows again as a regression of y[t] on past rows of [y u] needs by Akaike's criterion.

    Bounded by the data: eight windows for each column of the past, and windows of twice that length must still use
    half of the rows.
    """
    lengths = np.array([run.stop - run.start for run in stretches(y)], dtype=np.intp)
    rows, m = int(lengths.sum()), y.shape[1] + u.shape[1]
    longest = min(_LONGEST, max(_MOST_COLUMNS // m, 2))
    while longest > 2 and (
        np.maximum(lengths - 2 * longest + 1, 0).sum() < 0.5 * rows or longest * m * _ROWS_A_COLUMN > rows
    ):
        longest -= 1
    short = min(_SHORT, longest)
    best = _best_past(y, u, short) if longest * m > _CHEAP else longest
    if best >= short - 1:
        best = _best_past(y, u, longest)
    return int(min(-(-3 * best // 2), longest))  # half as many again cost little, and help where noise is measured only


def _best_past(y: FloatArray, u: FloatArray, longest: int) -> int:
    """Akaike's choice of 1, 2, ... `longest` past rows, all from one Cholesky factor."""
    gram = lagged_gram(y, u, longest + 1)
    m, r = gram.columns, gram.outputs
    if gram.windows <= longest * m:
        return 2  # too few rows for anything; `_memory` says so
    G = _unit_scale(gram)[0]
    order = np.concatenate([np.arange(k * m, (k + 1) * m) for k in range(longest - 1, -1, -1)])  # latest row first
    now = longest * m + np.arange(r)
    ridge = 1e-9 * np.eye(len(order))  # only a length is decided here, so that dependent columns need no more care
    factor = np.linalg.cholesky(G[np.ix_(order, order)] + ridge)
    explained = below(factor, G[np.ix_(order, now)]).reshape(longest, m, r)
    left = G[np.ix_(now, now)] - np.cumsum(np.einsum("kma,kmb->kab", explained, explained), axis=0)
    spread = np.linalg.slogdet(left + 1e-9 * np.eye(r))[1]
    lags = np.arange(1, longest + 1)
    return int(lags[np.argmin(spread + 2 * lags * m * r / gram.windows)])


def order_from_singular_values(singular_values: ArrayLike, rows: int, *, outputs: int = 1, inputs: int = 0) -> int:
    """Choose the order by an information criterion on the canonical correlations (k,), largest first.

    The first correlation ρ that is left out costs -log(1 - ρ²), which is ρ² if it is small, and each state costs its
    2 `outputs` + `inputs` parameters times log(rows) / rows. This is the criterion SVC of Bauer (Automatica 37, 2001),
    but for the logarithm, without which a perfect correlation could be too cheap to keep when there are many outputs.
    It is consistent, quick, and tends to leave out states that the data hardly show.
    """
    s = np.asarray(singular_values, np.float64)
    left_out = np.append(-np.log1p(-np.minimum(s**2, _PERFECT)), 0.0)
    price = (2 * outputs + inputs) * np.log(rows) / rows
    return int(np.argmin(left_out + price * np.arange(len(s) + 1)))


def _memory(gram: LaggedGram, past: int) -> tuple[FloatArray, FloatArray]:
    """The largest state x that past and future have in common, in channels scaled to mean square 1.

    Mean products of x[t], u[t], y[t], x[t+1] (rows, in this order) with x[t], u[t], y[t]; and canonical correlations.
    """
    r, m, future = gram.outputs, gram.columns, gram.window - past
    if gram.windows < 2 * gram.window * m:
        raise DataError(
            f"{gram.windows} windows of {past} past and {future} future rows are too few for {m} columns of y and u: "
            f"at least {2 * gram.window * m} are needed. Give more rows or longer stretches, or shorter past and future"
        )
    G = _unit_scale(gram)[0]
    before = np.arange(past * m).reshape(past, m)[::-1].ravel()
    rows = np.arange(past, gram.window)[:, None] * m
    ahead = (rows + np.arange(r)).ravel()
    known = (rows[:-1] + np.arange(r, m)).ravel()  # the last input cannot be seen in the future rows any more

    basis, factor = independent(G[np.ix_(known, known)])
    both = np.concatenate([before, ahead])
    fixed = below(factor, G[np.ix_(known[basis], both)])
    partial = G[np.ix_(both, both)] - fixed.T @ fixed
    P = len(before)
    basis_p, factor_p = independent(partial[:P, :P])
    basis_f, factor_f = independent(partial[P:, P:])
    correlation = below(factor_p, below(factor_f, partial[P:, :P][np.ix_(basis_f, basis_p)]).T)
    left, correlations, _ = np.linalg.svd(correlation, full_matrices=False)
    J = np.zeros((len(correlations), P))
    J[:, basis_p] = below(factor_p, left, transposed=True).T

    now = np.concatenate([past * m + np.arange(r, m), past * m + np.arange(r)])  # u[t], y[t]
    of_all = np.vstack([J @ G[before], G[now], J @ G[before + m]])
    return np.hstack([of_all[:, before] @ J.T, of_all[:, now]]), np.clip(correlations, 0.0, 1.0)


def _realised(n: int, gram: LaggedGram, products: FloatArray, correlations: FloatArray, past: int) -> Subspace:
    """The matrices of order n, by least squares on the first n canonical variates."""
    r, U, most, scale = gram.outputs, gram.inputs, len(correlations), _unit_scale(gram)[1]
    now = np.concatenate([np.arange(n), np.arange(most, most + U + r)])  # x[t], u[t], y[t]
    next_x = most + U + r + np.arange(n)
    C = _regress(products[np.ix_(now[n + U :], now[:n])], _symmetric(products[:n, :n]))
    turn = np.eye(n + U + r)
    turn[n + U :, :n] = -C  # from y[t] to e[t] = y[t] - C x[t]
    known = _symmetric(turn @ products[np.ix_(now, now)] @ turn.T)
    ahead, innovation = products[np.ix_(next_x, now)] @ turn.T, known[n + U :, n + U :]
    A, B, K = np.split(_regress(ahead, known), [n, n + U], axis=1)
    repaired: list[str] = []
    if (radius := spectral_radius(A)) > STABLE:
        A = shrink(A)
        B, K = np.split(_regress((ahead - A @ known[:n])[:, n:], known[n:, n:]), [U], axis=1)
        repaired.append(
            f"A had spectral radius {radius:.6g}; it was brought to {STABLE:.6f} and B, K were fitted again"
        )
    values, vectors = np.linalg.eigh(innovation)
    innovation = (vectors * np.maximum(values, _SILENT)) @ vectors.T
    if (radius := spectral_radius(A - K @ C)) > STABLE:
        # for noises K e + (a little of its own) and e: stable whatever K is
        Q = K @ innovation @ K.T
        Q += (1e-6 * np.trace(Q) / n + 1e-12) * np.eye(n)
        K = A @ steady_state(A, C, _symmetric(Q), innovation).gain
        repaired.append(f"A - K C had spectral radius {radius:.6g}; K is the gain of a Kalman filter instead")
    outputs, inputs = scale[:r], scale[r:]
    return Subspace(
        A=frozen(A), B=frozen(B / inputs), C=frozen(C * outputs[:, None]), K=frozen(K / outputs),
        innovation=frozen(_symmetric(innovation * outputs * outputs[:, None])), singular_values=frozen(correlations),
        past=past, future=gram.window - past, windows=gram.windows, repaired=tuple(repaired),
    )  # fmt: skip


def _unit_scale(gram: LaggedGram) -> tuple[FloatArray, FloatArray]:
    """Mean products of channels with mean square 1, and their scales; a channel that is always zero keeps scale 1."""
    power = gram.matrix.diagonal().reshape(gram.window, gram.columns).mean(axis=0) / max(gram.windows, 1)
    scale = np.sqrt(np.where(power > 0, power, 1.0))
    every = np.tile(scale, gram.window)
    return gram.matrix / every / every[:, None] / gram.windows, scale


def _regress(cross: FloatArray, S: FloatArray) -> FloatArray:
    """The least-squares M of cross = M S, smallest where S does not determine it."""
    scale = np.sqrt(np.maximum(S.diagonal(), 1.0))  # only down: what is far below mean square 1 is rounding
    values, vectors = np.linalg.eigh(S / scale / scale[:, None])
    real = values > DEPENDENT * max(float(values[-1]), 0.0) if len(values) else values > 0
    return np.asarray(((cross / scale) @ vectors[:, real] / values[real]) @ vectors[:, real].T / scale)


def _symmetric(S: FloatArray) -> FloatArray:
    return np.asarray((S + S.T) / 2)


# ---- the paper's route to models of real plants


@dataclass(frozen=True)
class PooledModel:
    """A plant identified from pooled raw data and divided among its units, in standardised channels.

    h[t] = A h[t-1] + B u[t-1] + w, y[t] = C h[t] + v, of (y - mean) / scale and (u - mean) / scale. C, Q and R are
    block-diagonal by unit; states, measurements and inputs are sorted by unit. ``owners``: the unit of each state;
    ``kept``: share of the energy of C that is left; ``locals``: each unit's own blocks.
    """

    A: FloatArray
    B: FloatArray
    C: FloatArray
    Q: FloatArray
    R: FloatArray
    owners: tuple[str, ...]
    kept: float
    locals: dict[str, LocalModel]


def pooled_model(recording: Recording) -> PooledModel:
    """Identify a plant from the POOLED RAW DATA of all units, as the paper did, and divide its states among them.

    All channels are standardised, and rows with a missing value left out; one model is identified by `subspace`; each
    state goes to the unit on whose outputs its column of C has the most energy, with at least one state for every
    unit; the rows of other units are dropped from that column, which makes C block-diagonal; and A, B, Q and R are
    fitted again by least squares to the states that the identified model predicts.
    """
    units = recording.names
    y, u = (np.hstack([getattr(recording[unit], letter) for unit in units]) for letter in "yu")
    row_owner, column_owner = (
        np.repeat(np.arange(len(units)), [getattr(recording[unit], letter).shape[1] for unit in units])
        for letter in "yu"
    )
    whole = np.isfinite(y).all(axis=1)
    if not whole.any():
        raise DataError("no row has all channels of all units measured; leave out channels that are mostly missing")
    (mean_y, scale_y, _), (mean_u, scale_u, _) = standard(y[whole]), standard(u)
    z, drive = (y - mean_y) / scale_y, (u - mean_u) / scale_u

    source = subspace(z, drive)
    if source.order < len(units):
        source = subspace(z, drive, len(units), past=source.past, future=source.future)
    energy = np.stack([np.square(source.C[row_owner == m]).sum(axis=0) for m in range(len(units))], axis=1)
    owner = assign_states(energy)
    order_of = np.lexsort((np.arange(len(owner)), owner))
    owner = owner[order_of]
    C = np.where(row_owner[:, None] == owner, source.C[:, order_of], 0.0)

    x, following, driven, seen = _states(source, z, drive)
    x, following = x[:, order_of], following[:, order_of]
    A, B = np.split(np.linalg.lstsq(np.hstack([x, driven]), following, rcond=None)[0].T, [len(owner)], axis=1)
    if spectral_radius(A) > STABLE:
        A = shrink(A)
        B = np.linalg.lstsq(driven, following - x @ A.T, rcond=None)[0].T
    Q = _by_unit(following - x @ A.T - driven @ B.T, owner)
    R = _by_unit(seen - x @ C.T, row_owner)
    found = {}
    for m, unit in enumerate(units):
        own, rows, columns = (np.flatnonzero(each == m) for each in (owner, row_owner, column_owner))
        found[unit] = LocalModel(
            A=A[np.ix_(own, own)], B=B[np.ix_(own, columns)], C=C[np.ix_(rows, own)], Q=Q[np.ix_(own, own)],
            R=R[np.ix_(rows, rows)],
        )  # fmt: skip
    kept = float(np.square(C).sum() / max(float(energy.sum(axis=1).sum()), np.finfo(float).tiny))
    return PooledModel(A, B, C, Q, R, tuple(units[m] for m in owner), kept, found)


def assign_states(energy: FloatArray) -> NDArray[np.intp]:
    """Give each state to the unit with the largest share of its energy (P, M), and every unit at least one state.

    Ties go to the earlier unit. Units left without a state, in order, each take the state with the largest share for
    them from a unit that has another one; ties go to the earlier state.
    """
    M = energy.shape[1]
    total = energy.sum(axis=1, keepdims=True)
    share = energy / np.where(total > 0, total, 1.0)
    owner: NDArray[np.intp] = share.argmax(axis=1)
    for m in range(M):
        if not (owner == m).any():
            free = np.bincount(owner, minlength=M)[owner] > 1
            owner[int(np.where(free, share[:, m], -1.0).argmax())] = m
    return owner


def _states(model: Subspace, z: FloatArray, drive: FloatArray) -> tuple[FloatArray, ...]:
    """Predicted states of all rows with everything measured, those of the rows after them, their inputs and outputs."""
    F, skip = model.A - model.K @ model.C, model.past  # rows in which the predictor forgets where it started
    parts = []
    for run in stretches(z, skip + 2):
        x = np.zeros((run.stop - run.start + 1, model.order))
        x[1:] = linear_recurrence(F, drive[run] @ model.B.T + z[run] @ model.K.T, x[0])
        parts.append((x[skip:-1], x[skip + 1 :], drive[run][skip:], z[run][skip:]))
    return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))


def _by_unit(residual: FloatArray, owner: NDArray[np.intp]) -> FloatArray:
    """Covariance with the blocks between units set to zero; positive definite."""
    same = owner[:, None] == owner
    S = np.where(same, residual.T @ residual / len(residual), 0.0)
    values, vectors = np.linalg.eigh(S)
    S = (vectors * np.maximum(values, _LEAST)) @ vectors.T
    return np.where(same, (S + S.T) / 2, 0.0)
