"""Learning a network from its rows: sparse regressions, repeated on rows weighted at random.

Readings that are missing are drawn from what a linear network says of them given all others, learned and drawn in turn
(data augmentation); the replicates are learned from several such records, so that their spread knows what was not read.

One pass over the rows gives the products of all features, in some blocks of neighbouring rows. Every replicate weights
the blocks at random (Rubin's Bayesian bootstrap, which keeps what neighbouring rows share), and takes another set of
costs, because no single set is right for all plants: how much evidence a new channel must bring, a further span of a
channel that is in already, a channel of the unit itself, a product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.errors import UnidentifiedError
from counterflow.estimation.completion import Gaps, drawn
from counterflow.estimation.known_edges import KnownEdges
from counterflow.estimation.network import RECENT, SPANS, IntArray, Network, damped, owners
from counterflow.identification.sparse import sparse_weights


class Costs(NamedTuple):
    """Nats that a weight must bring: of a new source, a further span of one, a new source of the target's own unit.

    ``by_unit``: the sources are whole units, not channels.
    """

    new: float
    further: float
    own: float
    by_unit: bool


COSTS = (Costs(6, 6, 6, False), Costs(8, 4, 5, False), Costs(7, 3, 7, True), Costs(5, 2, 3, True))
PRODUCT = 3.0  # nats that a product costs more than a new channel
REPLICATES = 16
BLOCKS = 20  # of neighbouring rows, which are weighted as one
MOST_PRODUCTS = 1000
MOST_WORK = 2e11  # multiplications for the products of all features; of longer records stretches are taken
ENOUGH = 10_000  # rows that evidence is counted of at most: in longer records what is worth nothing is certain, too
CHUNK = 8192  # rows whose features are made at once
LEAST_ROWS = 60
STEADY = 0.9999  # growth from row to row that a replicate may have at most: levels hardly decay
STILL = 1e-9  # standard deviation, relative to the values, of a column that never moves
FOLDS = 5  # in which rows are held out in turn, to see whether curvature helps
JUDGE = COSTS[1]  # that these are learned with
AHEAD = 40  # rows of the free runs
MOST_STARTS = 400  # of a fold
VETO = -1.0  # standard errors below zero from which on curvature is left out
FEW = 600  # rows, below which curvature can hardly be judged
WILD = 1e3  # times the usual error that counts at most
DRAWS = 4  # records with other draws of what is missing, if anything is
ROUNDS = 6  # of learning and drawing before them
WIDENING = 1.2  # of the replicates' spread; see docs/theory/identification.md


@dataclass(frozen=True, eq=False)
class Rows:
    """What is learned from: rows z = (numbers, inputs) in the units' own terms, NaN where something is missing.

    ``z`` (T, m); names of the units, with their counts of numbers and of inputs, side by side in z. ``variance``
    (T, r): of numbers that are known in part; None: what is there is exact.
    """

    names: tuple[str, ...]
    numbers: tuple[int, ...]
    inputs: tuple[int, ...]
    z: FloatArray
    variance: FloatArray | None = None

    @property
    def owner(self) -> IntArray:
        return owners(self.numbers, self.inputs)

    @cached_property
    def read(self) -> NDArray[np.bool_]:
        """(T, m): what was read, and nothing of it missing."""
        there = np.isfinite(self.z)
        if self.variance is not None:
            there[:, : self.variance.shape[1]] &= self.variance == 0
        return np.asarray(there, bool)

    @cached_property
    def standards(self) -> Standards:
        """Of the readings that are there."""
        return Standards.of(self.z, self.read)


@dataclass(frozen=True, eq=False)
class Standards:
    """Level and scale of each column (m,), its range in those terms, and whether it moves at all."""

    level: FloatArray
    scale: FloatArray
    low: FloatArray
    high: FloatArray
    moving: NDArray[np.bool_]

    @classmethod
    def of(cls, z: FloatArray, read: NDArray[np.bool_]) -> Standards:
        count = np.maximum(read.sum(axis=0), 1)
        level = np.where(read, z, 0.0).sum(axis=0) / count
        gaps = np.where(read, z - level, 0.0)
        spread = np.sqrt(np.square(gaps).sum(axis=0) / count)
        moving = spread > STILL * np.maximum(np.abs(np.where(read, z, 0.0)).max(axis=0), 1e-300)
        scale = np.where(moving, spread, 1.0)
        return cls(level, scale, gaps.min(axis=0) / scale, gaps.max(axis=0) / scale, moving)


@dataclass(frozen=True, eq=False)
class Products:
    """Products of the features and targets, by blocks of rows.

    ``blocks`` (B, n + r, n + r), ``counts`` (B,). ``spans``, ``pairs``, ``pair_centre``, ``pair_size``: as in
    ``Network``. ``read`` (r,): how many of the rows have each target read. ``rows``: how many there were before
    stretches were taken.
    """

    blocks: FloatArray
    counts: FloatArray
    spans: IntArray
    pairs: IntArray
    pair_centre: FloatArray
    pair_size: FloatArray
    standards: Standards
    read: FloatArray
    at: tuple[NDArray[np.intp], ...]  # rows of each block
    rows: int

    @property
    def used(self) -> int:
        """Rows that were summed."""
        return int(self.counts.sum())


def products_of(rows: Rows, record: FloatArray, curved: bool = True) -> Products:
    """One pass over a standardised ``record`` (T, m) of the rows, in which nothing is missing.

    ``curved``: with products of columns.
    """
    owner, standards = rows.owner, rows.standards
    r, m = sum(rows.numbers), record.shape[1]
    spans = _spans(rows)
    memory = int(spans[-1, 1])
    at = memory + np.flatnonzero(rows.read[memory:, :r].any(axis=1))
    if len(at) < LEAST_ROWS:
        raise UnidentifiedError(
            f"identification: {len(at)} rows with anything measured after the first {memory} are too few; at least "
            f"{LEAST_ROWS} are needed: record all units over a common period"
        )
    pairs = _pairs(owner, standards.moving, len(at)) if curved else np.zeros((0, 2), np.int64)
    n = len(spans) * m + len(pairs)
    whole = len(at)
    at = _stretches(at, int(MOST_WORK / (2.0 * (n + r) ** 2)))
    total = np.vstack([np.zeros(m), np.cumsum(record, axis=0)])
    centre, size = _pair_scale(record, at, pairs)
    blocks, counts = np.zeros((BLOCKS, n + r, n + r)), np.zeros(BLOCKS)
    parts = tuple(np.array_split(at, BLOCKS))
    for b, part in enumerate(parts):
        counts[b] = len(part)
        for begin in range(0, len(part), CHUNK):
            some = part[begin : begin + CHUNK]
            F = np.hstack([_features(record, total, some, spans, pairs, centre, size), record[some, :r]])
            blocks[b] += F.T @ F
    read = rows.read[at, :r].sum(axis=0).astype(float)
    return Products(blocks, counts, spans, pairs, centre, size, standards, read, parts, whole)


class Bend(NamedTuple):
    """What curvature is worth on rows that were held out.

    ``gain``: relative fall of the free runs' squared error; ``deviations``: that in its standard errors.
    """

    gain: float
    deviations: float


@dataclass(frozen=True, eq=False)
class Learning:
    """A network, and how it was learned."""

    network: Network
    bend: Bend
    rows: int
    used: int

    blocks = BLOCKS

    @property
    def words(self) -> str:
        """Which kind of model was used, and why."""
        runs = f"free runs over held-out rows err {abs(100 * self.bend.gain):.1f} %"
        if not self.network.curved:
            if self.bend.deviations < VETO:
                return f"linear: products of channels are left out, with them {runs} more"
            if self.bend.gain == 0.0 and self.used < FEW:
                return "linear: too few rows to judge whether products of channels help"
            return "linear: no product of channels is worth its cost"
        side = "less" if self.bend.gain >= 0 else "more"
        return (
            f"curved: {len(self.network.pairs)} products of channels are in use, with them {runs} {side}; effects "
            "depend on where the plant stands, and those from now on start from the last row"
        )


def completed(rows: Rows, known: KnownEdges | None = None) -> tuple[FloatArray, ...]:
    """Standardised records (T, m) of the rows in which nothing is missing: one, or ``DRAWS`` if something is."""
    r, standards = sum(rows.numbers), rows.standards
    z = (rows.z - standards.level) / standards.scale
    if rows.read.all():
        return (z,)
    variance = np.where(np.isfinite(z[:, :r]), 0.0, np.inf)
    if rows.variance is not None:
        variance = np.where(np.isfinite(z[:, :r]), rows.variance / standards.scale[:r] ** 2, np.inf)
    gaps = Gaps(np.where(np.isfinite(z[:, :r]), z[:, :r], 0.0), variance)
    rng = np.random.default_rng(0)
    record = np.hstack([_between(gaps), z[:, r:]])
    records = []
    for k in range(ROUNDS + DRAWS):
        products = products_of(rows, record, curved=False)
        moments = products.blocks.sum(axis=0)
        weights, _ = _weights(rows, products, moments, products.used, JUDGE, known, curved=False)
        noise = _noise(moments, weights, products.used)
        linear = weights.reshape(len(products.spans), -1, r)
        numbers = drawn(gaps, z[:, r:], linear, products.spans, noise, record[:, :r], rng)
        record = np.hstack([numbers, z[:, r:]])
        if k >= ROUNDS:
            records.append(record)
    return tuple(records)


def _between(gaps: Gaps) -> FloatArray:
    """Numbers (T, r) with straight lines over what is not known, to begin with."""
    out, rows = gaps.values.copy(), np.arange(len(gaps.values))
    for column, open_ in zip(out.T, gaps.open.T, strict=True):
        if open_.any() and not open_.all():
            column[open_] = np.interp(rows[open_], rows[~open_], column[~open_])
    return out


def learn(
    rows: Rows, known: KnownEdges | None = None, progress: Callable[[int, float], None] | None = None
) -> Learning:
    """All replicates. ``known``: which units can act on which; None: any."""
    records = completed(rows, known)
    products = products_of(rows, records[0])
    bend = _bend(rows, records[0], products, known)
    curved = bend.gain != 0.0 and bend.deviations >= VETO  # without a gain there was nothing to judge
    rng = np.random.default_rng(0)
    found = []
    for k in range(REPLICATES):
        if k and len(records) > 1 and k % len(COSTS) == 0:
            products = products_of(rows, records[k // len(COSTS)])
        draw = rng.exponential(size=BLOCKS)
        draw *= products.used / (draw @ products.counts)
        moments = np.tensordot(draw, products.blocks, 1)
        weights, noise = _weights(rows, products, moments, products.used, COSTS[k % len(COSTS)], known, curved)
        found.append(weights)
        if progress is not None:
            progress(k + 1, -0.5 * products.used * float(np.log(noise).sum()))
    network = _network(rows, products, np.array(found), products.blocks.sum(axis=0), products.used)
    network = replace(network, bend=(bend.gain, bend.deviations), known=known)
    return Learning(network, bend, products.rows, products.used)


def _weights(
    rows: Rows, products: Products, moments: FloatArray, count: float, costs: Costs, known: KnownEdges | None,
    curved: bool,
) -> tuple[FloatArray, FloatArray]:  # fmt: skip
    """Weights (n, r) of every feature for every target, and the noises (r,), from one set of moments."""
    r, m, spans = sum(rows.numbers), rows.z.shape[1], products.spans
    n, linear = len(moments) - r, len(spans) * m
    counts = np.minimum(count * products.read / products.used, ENOUGH)  # what was drawn is no evidence
    column = np.tile(np.arange(m), len(spans))
    if costs.by_unit:
        source = np.concatenate([rows.owner[column], len(rows.names) + np.arange(n - linear)])
    else:
        source = np.concatenate([column, m + np.arange(n - linear)])
    out, noise = np.zeros((n, r)), np.zeros(r)
    for i in range(r):
        first, further = _costs(costs, rows, products, i, column, known)
        if not curved:
            first[linear:] = further[linear:] = np.inf
        share = counts[i] / count
        if counts[i] < 2:
            noise[i] = 1.0
            continue
        gram, cross, energy = (share * part for part in (moments[:n, :n], moments[:n, n + i], moments[n + i, n + i]))
        found = sparse_weights(gram, cross, float(energy), counts[i], source, first, further)
        out[found.chosen, i], noise[i] = found.mean, found.noise
    steady = damped(out[:linear].reshape(len(spans), m, r), spans, STEADY)
    out[:linear] = steady.reshape(linear, r)
    return out, noise


def _network(rows: Rows, products: Products, weights: FloatArray, moments: FloatArray, count: float) -> Network:
    """Of weights (K, n, r)."""
    K, _, r = weights.shape
    spans, linear = products.spans, len(products.spans) * rows.z.shape[1]
    bends = weights[:, linear:]
    kept = np.flatnonzero(bends.any(axis=(0, 2)))
    return Network(
        rows.names, rows.numbers, rows.inputs, spans,
        np.ascontiguousarray(weights[:, :linear]).reshape(K, len(spans), -1, r), products.pairs[kept],
        np.ascontiguousarray(bends[:, kept]), products.pair_centre[kept], products.pair_size[kept],
        products.standards.low, products.standards.high, products.standards.level, products.standards.scale,
        _noise(moments, weights.mean(axis=0), count), WIDENING,
    )  # fmt: skip


def _bend(rows: Rows, record: FloatArray, products: Products, known: KnownEdges | None) -> Bend:
    """Whether products of channels help to foretell rows that were held out, many rows ahead.

    One row ahead is no judge: there products gain in any record, and long runs of them can be worse.
    """
    if not len(products.pairs):
        return Bend(0.0, 0.0)
    r, T = sum(rows.numbers), len(record)
    gains = []
    for part in np.array_split(np.arange(BLOCKS), FOLDS):
        moments = products.blocks.sum(axis=0) - products.blocks[part].sum(axis=0)
        count = products.used - float(products.counts[part].sum())
        starts = _starts(np.concatenate([products.at[b] for b in part]), T)
        if not len(starts):
            continue
        window = starts[:, None] + 1 + np.arange(AHEAD)
        truth, read = record[window, :r], rows.read[window, :r]
        errors: list[FloatArray] = []
        for curved in (False, True):
            weights, _ = _weights(rows, products, moments, count, JUDGE, known, curved)
            network = _network(rows, products, weights[None], moments, count)
            if curved and not network.curved:
                errors.append(errors[0])
            else:
                errors.append(np.square(network.free_runs(record, starts, AHEAD) - truth) * read)  # of readings only
        size = np.maximum(errors[0].mean(axis=(0, 1)), 1e-12)
        gains.append((np.minimum((errors[0] - errors[1]) / size, WILD)).mean(axis=(1, 2)))
    whole = np.concatenate([*gains, np.zeros(0)])
    if len(whole) < BLOCKS or not whole.any():
        return Bend(0.0, 0.0)
    batches = np.array([part.mean() for part in np.array_split(whole, BLOCKS)])
    error = float(batches.std(ddof=1)) / np.sqrt(BLOCKS)
    return Bend(float(whole.mean()), float(whole.mean()) / error if error > 0 else 0.0)


def _starts(at: NDArray[np.intp], rows: int) -> NDArray[np.intp]:
    """Rows of ``at`` that have as many rows after them as are looked ahead, half that far apart."""
    some = at[:: AHEAD // 2]
    some = some[some + AHEAD < rows]
    return np.asarray(some[:: max(1, len(some) // MOST_STARTS)], np.intp)


def _noise(moments: FloatArray, weights: FloatArray, rows: float) -> FloatArray:
    """Covariance (r, r) of what the mean weights (n, r) leave, with a floor."""
    n = len(weights)
    cross, gram, own = moments[:n, n:], moments[:n, :n], moments[n:, n:]
    left = (own - weights.T @ cross - cross.T @ weights + weights.T @ gram @ weights) / rows
    values, vectors = np.linalg.eigh((left + left.T) / 2)
    return np.asarray((vectors * np.maximum(values, 1e-6)) @ vectors.T)


def _costs(
    costs: Costs, rows: Rows, products: Products, i: int, column: NDArray[np.intp], known: KnownEdges | None
) -> tuple[FloatArray, FloatArray]:
    """Nats of every feature for target i; inf for what may not act on it."""
    owner, pairs, unit = rows.owner, products.pairs, int(rows.owner[i])
    open_ = np.ones(len(rows.names), bool)
    if known is not None:
        open_ = np.array([known.allows(name, rows.names[unit]) for name in rows.names])
    may = (open_[owner] & products.standards.moving)[column]
    one, two = owner[pairs[:, 0]], owner[pairs[:, 1]]
    # the two factors are of one unit, or one of them is of the target's: other products have no pipe to come through
    product = open_[one] & open_[two] & ((one == two) | (one == unit) | (two == unit))
    first = np.where(owner[column] == unit, costs.own, costs.new)
    first = np.where(may, first, np.inf)
    further = np.where(may, costs.further, np.inf)
    bend = np.where(product, costs.new + PRODUCT, np.inf)
    return np.concatenate([first, bend]), np.concatenate([further, bend])


def _features(
    z: FloatArray, total: FloatArray, at: NDArray[np.intp], spans: IntArray, pairs: IntArray, centre: FloatArray,
    size: FloatArray,
) -> FloatArray:  # fmt: skip
    """(rows, spans · m + pairs) for rows ``at`` of standardised z; ``total``: its running sums."""
    means = [(total[at - first + 1] - total[at - last]) / (last - first + 1) for first, last in spans]
    return np.hstack([*means, (_multiplied(z, at, pairs) - centre) / size])


def _multiplied(z: FloatArray, at: NDArray[np.intp], pairs: IntArray) -> FloatArray:
    recent = np.mean([z[at - k] for k in range(1, RECENT + 1)], axis=0)
    return np.asarray(recent[:, pairs[:, 0]] * recent[:, pairs[:, 1]])


def _pair_scale(z: FloatArray, at: NDArray[np.intp], pairs: IntArray) -> tuple[FloatArray, FloatArray]:
    some = _multiplied(z, at[:: max(1, len(at) // CHUNK)], pairs)
    size = some.std(axis=0)
    return some.mean(axis=0), np.where(size > STILL, size, 1.0)


def _spans(rows: Rows) -> IntArray:
    """As long a memory as the record carries."""
    read = int(rows.read.any(axis=1).sum())
    return np.asarray(SPANS[: int((SPANS[:, 1] <= max(read // 8, 4)).sum())], np.int64)


def _stretches(at: NDArray[np.intp], most: int) -> NDArray[np.intp]:
    """All rows, or of more than ``most`` the first of each block."""
    if len(at) <= most:
        return at
    each = max(most // BLOCKS, 1)
    return np.concatenate([part[:each] for part in np.array_split(at, BLOCKS)])


def _pairs(owner: IntArray, moving: NDArray[np.bool_], rows: int) -> IntArray:
    """Pairs of columns that may be multiplied, (k, 2): all of them if they are few, else those of one unit, or none."""
    one, two = np.triu_indices(len(owner))
    there = moving[one] & moving[two]
    for some in (there, there & (owner[one] == owner[two])):
        if some.sum() <= min(MOST_PRODUCTS, 2 * rows):
            return np.stack([one[some], two[some]], axis=1).astype(np.int64)
    return np.zeros((0, 2), np.int64)
