"""A network of units as predictors of their rows: what every number of a unit does next, from few earlier ones.

Each number s_i (a unit's compressed measurement, standardised) is predicted from all numbers and inputs z = (s, u),

    s_i[t] = offset_i
           + Σ over columns j and spans b of  w_ijb · mean of z_j over the rows of b before t
           + Σ over pairs (j, k) of           c_ijk · (z̄_j z̄_k, centred and scaled)            + e_i[t]

where z̄ is the mean of the last two rows, limited to what was seen. Most w and c are zero. Several *replicates* of the
weights, learned from rows weighted at random, stand side by side: an answer is their mean, its uncertainty comes from
their spread.

Two worlds that differ in inputs share their residuals e. In the past these are what each replicate leaves of the
record, so that the factual world is the record itself; in the future they are zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray, slices
from counterflow.learning.known_edges import KnownEdges

IntArray = NDArray[np.int64]
RECENT = 2  # rows whose mean is multiplied in products
SPANS = np.array([(1, 1), (2, 2), (3, 3), (4, 5), (6, 8), (9, 12), (13, 17), (18, 23), (24, 30), (31, 39), (40, 51)])
GROWN = 300  # rows in which a replicate's growth is looked at
LATE = 10  # times as many rows, before what seems to grow is damped
FADED = 1e-8  # of what it was at first: what is left then is soon nothing but rounding, which never decays
RUNAWAY = 1e6  # standard deviations beyond which nothing is computed any more


@dataclass(frozen=True, eq=False, repr=False)
class Network:
    """K replicates of the weights; m columns z = (r numbers, U inputs), b spans, k pairs.

    ``spans`` (b, 2): first and last lag of each. ``linear`` (K, b, m, r). ``pairs`` (k, 2), ``bends`` (K, k, r),
    ``pair_centre``, ``pair_size`` (k,). ``low``, ``high`` (m,): the range seen. ``level``, ``scale`` (m,) of the
    columns in the units' own terms (departures of inputs). ``noise`` (r, r): covariance of e. ``widening``: by how much
    the spread of the replicates is too narrow for the error of answers. ``offset`` (K, r): of numbers whose way of
    running has a level of its own; else zero.
    """

    names: tuple[str, ...]
    numbers: tuple[int, ...]
    inputs: tuple[int, ...]
    spans: IntArray
    linear: FloatArray
    pairs: IntArray
    bends: FloatArray
    pair_centre: FloatArray
    pair_size: FloatArray
    low: FloatArray
    high: FloatArray
    level: FloatArray
    scale: FloatArray
    noise: FloatArray
    widening: float
    offset: FloatArray
    rows: int = 0  # that it was learned from
    bend: tuple[float, float] = (0.0, 0.0)  # fall of held-out free runs' squared error by products; in standard errors
    known: KnownEdges | None = None  # which units can act on which; None: any
    learners: tuple[str, ...] = ()  # by which each replicate was learned
    chosen: NDArray[np.bool_] | None = None  # (G, m, r), which columns learners that choose let act, in each draw

    def __str__(self) -> str:
        count, noise = len(self.names), np.minimum(np.diag(self.noise), 1.0)
        owners = zip(self.names, self.number_slices, strict=True)
        errors = [f"{name} {100 * noise[own].mean():.2g} %" for name, own in owners]
        return (
            f"{'curved' if self.curved else 'linear'} network of {count} unit{'s'[: count - 1]}, learned "
            f"{len(self.linear)} times; one-step prediction error, as a share of the variance: {', '.join(errors)}"
        )

    @property
    def memory(self) -> int:
        """Rows before one that it is predicted from."""
        return int(self.spans[-1, 1])

    @property
    def size(self) -> int:
        """r, the numbers of all units."""
        return int(self.linear.shape[3])

    @property
    def curved(self) -> bool:
        """Whether any replicate has products."""
        return bool(self.bends.any())

    @cached_property
    def mean(self) -> Network:
        """The same with one set of weights, the mean of all replicates."""
        of = {name: getattr(self, name).mean(axis=0, keepdims=True) for name in ("linear", "bends", "offset")}
        return replace(self, **of)

    @cached_property
    def number_slices(self) -> tuple[slice, ...]:
        """Where each unit's numbers stand."""
        return slices(self.numbers)

    @cached_property
    def owner(self) -> IntArray:
        """(m,): the unit of each column, by its place."""
        return owners(self.numbers, self.inputs)

    def standard(self, numbers: FloatArray, inputs: FloatArray) -> FloatArray:
        """Rows z (n, m) of numbers (n, r) and inputs (n, U) in the units' own terms."""
        return np.asarray((np.hstack([numbers, inputs]) - self.level) / self.scale)

    @cached_property
    def in_use(self) -> NDArray[np.bool_]:
        """(K, m, r): which columns act on which numbers, by themselves or in products, in each replicate or draw."""
        if self.chosen is not None:
            return self.chosen
        out = np.asarray(np.abs(self.linear).sum(axis=1) > 0)
        for k, factors in enumerate(self.pairs):
            for factor in factors:
                out[:, factor] |= self.bends[:, k] != 0
        return out

    # ---- running it

    def free_runs(self, z: FloatArray, starts: NDArray[np.intp], horizon: int) -> FloatArray:
        """Standardised numbers (starts, horizon, r) after rows ``starts`` of z: mean weights, inputs as they were."""
        before = z[starts[:, None] - self.memory + 1 + np.arange(self.memory)]
        return self.mean.run(before, z[starts[:, None] + np.arange(horizon), self.size :])[0]

    def predicted(self, z: FloatArray) -> FloatArray:
        """One row ahead (K, T - memory, r) for standardised rows z (T, m), from row ``memory`` on."""
        out = foretold(z, self.linear.swapaxes(0, 1), self.spans) + self.offset[:, None]
        if self.curved:
            out += self._products(recent(z, np.arange(self.memory, len(z)))) @ self.bends
        return out

    def predict_row(self, before: FloatArray) -> FloatArray:
        """Standardised numbers (r,) of the row after rows ``before`` (memory, m), by the mean weights."""
        return np.asarray(self.mean.predicted(np.vstack([before, before[-1:]]))[0, 0])

    def _products(self, factors: FloatArray) -> FloatArray:
        """(n, k) of the last rows' means (n, m), which are limited to what was seen."""
        inside = np.clip(factors, self.low, self.high)
        products = inside[:, self.pairs[:, 0]] * inside[:, self.pairs[:, 1]]
        return np.asarray((products - self.pair_centre) / self.pair_size)

    def brought(self, z: FloatArray) -> FloatArray:
        """What the numbers and inputs of each unit bring to every number one row ahead (units, T - memory, r).

        For rows z (T, m), by the mean weights. A product of two units' columns counts half for each.
        """
        products = self._products(recent(z, np.arange(self.memory, len(z))))
        out = []
        for unit in range(len(self.names)):
            mine, share = self.owner == unit, 0.5 * (self.owner[self.pairs] == unit).sum(axis=1)
            straight = foretold(z[:, mine], self.mean.linear[0][:, mine], self.spans)
            out.append(straight + products * share @ self.mean.bends[0])
        return np.array(out)

    def run(
        self, before: FloatArray, inputs: FloatArray, residual: FloatArray | None = None,
        held: NDArray[np.bool_] | None = None, at: FloatArray | None = None,
    ) -> tuple[FloatArray, FloatArray]:  # fmt: skip
        """Numbers (K, n, r) with inputs (n, U) from rows ``before``, and the share (n,) of factors that are at a limit.

        Numbers ``held`` (r,) are those of ``at`` (K, n, r) in every row. ``before``: (memory, m), or (K, memory, m);
        inputs that are others in every replicate are (K, n, U). One set of weights may run from several starts.
        """
        K = max(len(self.linear), len(before) if before.ndim == 3 else 1)
        n, r, p, m = inputs.shape[-2], self.size, self.memory, before.shape[-1]
        before = np.broadcast_to(before, (K, p, m)).swapaxes(0, 1)
        weights = self.linear.reshape(len(self.linear), -1, r)
        total = np.zeros((p + n + 1, K, m))  # running sums of rows
        total[1 : p + 1] = np.cumsum(before, axis=0)
        out, row = np.empty((K, n, r)), np.zeros((K, m))
        newest = before[-RECENT:].copy()
        factors = np.unique(self.pairs[self.bends.any(axis=(0, 2))]) if self.curved else np.empty(0, np.int64)
        met = np.zeros(n)
        for t in range(n):
            now = inputs[..., t, :]
            total[p + t, :, r:] += now - newest[-1, :, r:]  # inputs of the row before act on this one
            newest[-1, :, r:] = now
            means = span_means(total, p + t, self.spans)
            foreseen = _each(means.transpose(1, 0, 2).reshape(K, -1), weights) + self.offset
            if self.curved:
                mean = newest.mean(axis=0)
                met[t] = ((mean < self.low) | (mean > self.high))[:, factors].sum()
                foreseen = foreseen + _each(self._products(mean), self.bends)
            if residual is not None:
                foreseen = foreseen + residual[:, t]
            out[:, t] = np.clip(foreseen, -RUNAWAY, RUNAWAY)
            if held is not None and at is not None:
                out[:, t, held] = at[:, t, held]
            row = np.concatenate([out[:, t], np.zeros((K, m - r))], axis=1)
            total[p + t + 1] = total[p + t] + row
            newest = np.concatenate([newest[1:], row[None]])
        return out, met / max(K * len(factors), 1)

    def responses(self, columns: NDArray[np.intp], rows: int, cut: tuple[int, int] | None = None) -> FloatArray:
        """(rows, r, columns): numbers after one row in which a column stood one higher; mean weights, no products.

        ``cut``: (effect, cause), units of which the second no longer acts on the first.
        """
        linear, r = self.mean.linear.copy(), self.size
        if cut is not None:
            linear[:, :, (self.owner == cut[1])[:, None] & (self.owner[:r] == cut[0])] = 0.0
        plain = replace(self.mean, linear=linear, bends=0 * self.mean.bends, offset=0 * self.mean.offset)
        before = np.zeros((len(columns), self.memory, len(self.owner)))
        before[np.arange(len(columns)), -1, columns] = 1.0
        inputs = np.zeros((len(columns), rows, len(self.owner) - r))
        inputs[:, 0] = before[:, -1, r:]
        return plain.run(before, inputs)[0].transpose(1, 2, 0)


def _each(x: FloatArray, weights: FloatArray) -> FloatArray:
    """(K, r) of x (K, f) with weights (K, f, r) of each, or with the same (1, f, r) of all."""
    return np.asarray(x @ weights[0] if len(weights) == 1 else np.matmul(x[:, None], weights)[:, 0])


def owners(numbers: Sequence[int], inputs: Sequence[int]) -> IntArray:
    """(m,): the unit of each column of z, by its place, where units have so many numbers and inputs."""
    units = np.arange(len(numbers))
    return np.concatenate([np.repeat(units, numbers), np.repeat(units, inputs)])


def running(z: FloatArray) -> FloatArray:
    """(T + 1, m): sums of the rows before each."""
    return np.vstack([np.zeros(z.shape[1]), np.cumsum(z, axis=0)])


def recent(z: FloatArray, rows: NDArray[np.intp]) -> FloatArray:
    """(n, m): means over the last ``RECENT`` rows before each of ``rows``, which are multiplied."""
    return np.asarray(np.mean([z[rows - k] for k in range(1, RECENT + 1)], axis=0))


def span_means(total: FloatArray, row: int, spans: IntArray) -> FloatArray:
    """(b, ...): means over all spans before a row, of rows whose running sums are ``total`` (row 0: nothing yet)."""
    first, last = spans[:, 0], spans[:, 1]
    width = (last - first + 1).reshape(-1, *[1] * (total.ndim - 1))
    return np.asarray((total[row - first + 1] - total[row - last]) / width)


def foretold(z: FloatArray, weights: FloatArray, spans: IntArray) -> FloatArray:
    """(..., T - p, r): what columns z (T, k) foretell of rows p, ..., with weights (b, ..., k, r) over spans."""
    total, rows = running(z), np.arange(int(spans[-1, 1]), len(z))
    out = np.zeros((*weights.shape[1:-2], len(rows), weights.shape[-1]))
    for (first, last), part in zip(spans, weights, strict=True):
        out += (total[rows - first + 1] - total[rows - last]) / (last - first + 1) @ part
    return out


def growth(linear: FloatArray, spans: IntArray, rows: int = GROWN) -> float:
    """By how much the slowest mode of linear weights (b, m, r) grows from row to row, looked at in the last rows."""
    r = linear.shape[2]
    own = linear[:, :r].reshape(-1, r).T
    p = int(spans[-1, 1])
    total = np.zeros((p + rows + 1, r))
    total[1 : p + 1] = np.cumsum(np.random.default_rng(0).standard_normal((p, r)), axis=0)
    sizes = np.empty(rows)
    for t in range(rows):
        row = own @ span_means(total, p + t, spans).reshape(-1)
        sizes[t] = np.abs(row).max()
        if not sizes[t] < RUNAWAY:
            return float((sizes[t] / max(sizes[0], 1e-12)) ** (1 / max(t, 1)))
        if t >= 2 * p and sizes[t - p + 1 : t + 1].max() < FADED * sizes[:p].max():
            return float((sizes[t - p + 1 : t + 1].max() / sizes[:p].max()) ** (1 / t))
        total[p + t + 1] = total[p + t] + row
    early, late = sizes[rows // 2 - 50 : rows // 2].max(), sizes[-50:].max()
    return float((late / early) ** (2 / rows)) if early > 1e-300 else 0.0


def damping(linear: FloatArray, spans: IntArray, most: float) -> FloatArray:
    """Factors (b, m) for linear weights (b, m, r), with which the slowest mode grows by no more than ``most`` a row.

    Weights of rows further back are made smaller, by a power of one factor, which moves every mode inwards by about it.
    """
    found = np.ones(linear.shape[:2])
    middle = spans.mean(axis=1)[:, None]
    for _ in range(8):
        grown = growth(linear * found[:, :, None], spans)
        if grown > most:  # slow modes in a row grow at first, and decay then
            grown = growth(linear * found[:, :, None], spans, LATE * GROWN)
        if grown <= most:
            return found
        found = found * (most / grown * 0.999) ** middle
    return np.asarray(np.where(np.arange(linear.shape[1]) < linear.shape[2], 0.9 * found, found))
