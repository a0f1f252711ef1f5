"""Regressions of a network's numbers on its features, from sums of products, in every way of running.

Each number is regressed on means of all columns over spans of earlier rows, and on products of columns. How its weights
are found is a learner's own business: a learner is a module with a ``Learner``, and a line in ``network_learning``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.identification.sparse import SparseWeights
from counterflow.learning.block_moments import BlockMoments, Rows, SparseTarget
from counterflow.learning.drift import faded, ramp
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.network import Network, damping, growth
from counterflow.learning.regime_sums import RegimeSums, centred, level_of, with_differences, with_slopes

ENOUGH = 10_000  # rows that evidence is counted of at most: in longer records what is worth nothing is certain, too
STEADY = 0.9999  # growth from row to row that a replicate may have at most: levels hardly decay
ONE_WAY = RegimeSums()
WIDENING = 1.2  # of the members' spread; see docs/theory/identification.md
Found = tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]  # as ``way_weights`` gives it


@dataclass(frozen=True, eq=False)
class Regression:
    """k numbers of one unit on n features, from sums over ``rows`` rows.

    ``gram`` (n, n), ``cross`` (n, k), ``energy`` (k,): of features, with the numbers, of the numbers. ``open`` (n,):
    which features may have a weight. ``column``, ``unit`` (n,): sources of the features, by columns and by units; a
    product is a source of its own, as is what a feature has more of in one way of running. ``own``, ``product``,
    ``driven`` (n,): features that are of the same unit, products, and of inputs, by a factor at least. ``span`` (n,):
    which rows before they are means of, by the place of the span.
    """

    gram: FloatArray
    cross: FloatArray
    energy: FloatArray
    rows: float
    open: NDArray[np.bool_]
    column: NDArray[np.intp]
    unit: NDArray[np.intp]
    own: NDArray[np.bool_]
    product: NDArray[np.bool_]
    span: NDArray[np.intp]
    driven: NDArray[np.bool_]


class Learner(ABC):
    """How weights are found."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What the summary calls it."""

    @abstractmethod
    def weights(self, of: Regression) -> tuple[SparseWeights, ...]:
        """Of each number, those that are not zero."""


def way_weights(
    rows: Rows, products: BlockMoments, draw: FloatArray, learner: Learner, known: KnownEdges | None, curved: bool,
    ways: RegimeSums = ONE_WAY,
) -> Found:  # fmt: skip
    """Weights (W, n, r) of every feature for every target in every way of running, with blocks weighted by ``draw``.

    Also the ``Posterior`` of the present one, and levels (W, r).
    """
    r, m, spans = rows.targets, rows.z.shape[1], products.spans
    n, linear = products.features, len(spans) * m
    moments, count = products.moments(draw), float(draw @ products.counts)
    slow = {each.target: each for each in products.slow}
    out, levels = np.zeros((ways.count, n, r)), np.zeros((ways.count, r))
    variance, noise = np.zeros((n, r)), np.ones(r)
    offered: dict[int, list[tuple[FloatArray, float]]] = {}  # of units with sums of their own: those, and their rows
    about: dict[int, list[FloatArray]] = {}  # of the same, the sums that say where their levels are in each way
    for unit in range(len(rows.names)):
        drift = ways.drift(unit)
        if ways.own(unit):
            segments = ways.moments(products, draw, unit)
            own = [ways.segment(unit, way) for way in range(ways.count)]
            each = [(with_differences(segments, s, n, linear), count) for s in range(len(segments))]
            offered[unit], about[unit] = [each[s] for s in own], [segments[s] for s in own]
        elif drift is not None and drift.memory is None:
            powers = [products.moments(draw * ramp(len(draw)) ** power) for power in range(3)]
            offered[unit] = [(with_slopes(powers, n, linear), count)] * ways.count
            about[unit] = [ways.of_way(products, way) for way in range(ways.count)]
        elif drift is not None:
            newest = draw * faded(len(draw), float(drift.memory or 1.0))
            recent = products.moments(newest)
            offered[unit] = [(centred(recent), float(newest @ products.counts))] * ways.count
            about[unit] = [recent] * ways.count
    for unit in range(len(rows.names)):
        mine = np.setdiff1d(np.flatnonzero(rows.owner[:r] == unit), list(slow)).tolist()
        found: dict[int, SparseWeights] = {}
        if unit not in offered:
            whole = unit_weights(rows, products, moments, count, mine, learner, known, curved)
            found = dict(zip(mine, whole, strict=True))
            for i, one in found.items():
                out[:, one.chosen, i] = one.mean[None]
        else:
            before, own_weights = None, []
            for way, (sums, weight) in enumerate(offered[unit]):
                if sums is not before:
                    before, own_weights = sums, unit_weights(
                        rows, products, sums, weight, mine, learner, known, curved
                    )
                for i, one in zip(mine, own_weights, strict=True):
                    more = one.chosen >= n  # differences or slopes
                    times = 1.0 if ways.own(unit) else ways.times[way]
                    same = np.where(more, one.chosen - n, one.chosen)
                    out[way, :, i] = np.bincount(same, np.where(more, times, 1.0) * one.mean, n)
            none = np.empty(0)  # its sums are not kept
            nothing = np.empty(0, np.intp)
            found = {i: SparseWeights(nothing, none, none, own_weights[k].noise) for k, i in enumerate(mine)}
        for i in [i for i in slow if rows.owner[i] == unit]:
            found[i] = slow_target(rows, products, slow[i], draw, learner, known, curved)
            out[:, i, i] = slow[i].decay  # of its last row, which stands first
            out[:, found[i].chosen, i] = found[i].mean
        for i, one in found.items():
            variance[one.chosen, i], noise[i] = one.variance, one.noise
    steady = steadied(out, products)
    for way in range(ways.count):
        for unit, parts in about.items():
            mine = np.flatnonzero(rows.owner[:r] == unit)
            levels[way, mine] = level_of(parts[way], out[way][:, mine], mine)
    return out, variance, noise, steady, levels


def steadied(weights: FloatArray, products: BlockMoments) -> FloatArray:
    """Damp weights (W, n, r), in place, so that nothing grows; the factors (b, m) of the last way of running."""
    spans, m = products.spans, len(products.level)
    linear = len(spans) * m
    for each in weights:
        factors = damping(each[:linear].reshape(len(spans), m, -1), spans, STEADY)
        each[:linear] *= factors.reshape(linear, 1)
    return factors


def is_steady(weights: FloatArray, products: BlockMoments) -> bool:
    """Whether weights (n, r) let nothing grow."""
    spans, m = products.spans, len(products.level)
    return growth(weights[: len(spans) * m].reshape(len(spans), m, -1), spans) <= STEADY


def unit_weights(
    rows: Rows, products: BlockMoments, moments: FloatArray, count: float, targets: Sequence[int], learner: Learner,
    known: KnownEdges | None, curved: bool,
) -> list[SparseWeights]:  # fmt: skip
    """Of targets of one unit, from sums (N, N), or from those with differences, which are numbered from n on."""
    more = len(moments) - products.size  # differences
    n = products.features + more
    # what was drawn is no evidence; nor is more than enough of what was read
    enough = np.minimum(count * products.read[list(targets)] / products.count, ENOUGH)
    found: dict[int, SparseWeights] = {}
    for rows_read in np.unique(enough).tolist():
        some = [i for i, each in zip(targets, enough.tolist(), strict=True) if each == rows_read]
        sums = rows_read / count * moments
        of = _regression(rows, products, sums, rows_read, some, [n + i for i in some], more, known, curved)
        found |= zip(some, learner.weights(of), strict=True)
    return [found[i] for i in targets]


def slow_target(
    rows: Rows, products: BlockMoments, slow: SparseTarget, draw: FloatArray, learner: Learner,
    known: KnownEdges | None, curved: bool,
) -> SparseWeights:  # fmt: skip
    """Weights of a target that is read seldom, of all columns but its own."""
    share = min(1.0, ENOUGH / max(slow.count(draw), 1.0))
    sums, at = share * slow.moments(draw), products.features
    of = _regression(rows, products, sums, share * slow.count(draw), [slow.target], [at], 0, known, curved)
    return learner.weights(replace(of, open=of.open & (of.column != slow.target)))[0]


def left_noise(
    products: BlockMoments, moments: FloatArray, weights: FloatArray, rows: float, left: FloatArray
) -> FloatArray:
    """Covariance (r, r) of what the mean weights (n, r) leave, with a floor.

    Of targets that are read seldom, the rows in between hold what was drawn with the noise of the time before; what
    their regressions have ``left`` (r,) says more.
    """
    n, r = weights.shape
    cross, gram, own = moments[:n, n : n + r], moments[:n, :n], moments[n : n + r, n : n + r]
    out = (own - weights.T @ cross - cross.T @ weights + weights.T @ gram @ weights) / rows
    for slow in products.slow:
        size = np.sqrt(left[slow.target] / max(out[slow.target, slow.target], 1e-12))
        out[slow.target] *= size
        out[:, slow.target] *= size
    values, vectors = np.linalg.eigh((out + out.T) / 2)
    return np.asarray((vectors * np.maximum(values, 1e-6)) @ vectors.T)


def network_of(
    of: Rows | Network, products: BlockMoments, weights: FloatArray, left: FloatArray, levels: FloatArray,
    ways: RegimeSums = ONE_WAY, way: int = 0,
) -> Network:  # fmt: skip
    """Of weights (K, n, r) and levels (K, r), which have left noises (K, r), and the units ``of`` whom they are."""
    K, _, r = weights.shape
    spans, linear = products.spans, len(products.spans) * len(products.level)
    bends = weights[:, linear:]
    kept = np.flatnonzero(bends.any(axis=(0, 2)))
    moments = products.moments() if ways.count == 1 else ways.of_way(products, way)
    count = float(moments[-1, -1])
    moments = centred(moments) if levels.any() else moments
    noise = left_noise(products, moments, weights.mean(axis=0), count, left.mean(axis=0))
    return Network(
        of.names, of.numbers, of.inputs, spans,
        np.ascontiguousarray(weights[:, :linear]).reshape(K, len(spans), -1, r), products.pairs[kept],
        np.ascontiguousarray(bends[:, kept]), products.pair_centre[kept], products.pair_size[kept], products.low,
        products.high, products.level, products.scale, noise, WIDENING, levels, round(count),
    )  # fmt: skip


def _regression(
    rows: Rows, products: BlockMoments, sums: FloatArray, count: float, targets: Sequence[int], at: Sequence[int],
    more: int, known: KnownEdges | None, curved: bool,
) -> Regression:  # fmt: skip
    """Of targets of a unit, which stand at ``at`` in sums over ``count`` rows, behind ``more`` differences."""
    owner, pairs, unit = rows.owner, products.pairs, int(rows.owner[targets[0]])
    column = np.tile(np.arange(len(owner)), len(products.spans))
    open_ = np.ones(len(rows.names), bool)
    if known is not None:
        open_ = np.array([known.allows(name, rows.names[unit]) for name in rows.names])
    one, two = owner[pairs[:, 0]], owner[pairs[:, 1]]
    # the two factors are of one unit, or one of them is of the target's: other products have no pipe to come through
    bent = open_[one] & open_[two] & ((one == two) | (one == unit) | (two == unit))
    bent &= products.moving[pairs].all(axis=1) & curved
    features = np.arange(len(column) + len(pairs))
    both = np.concatenate([features, features[:more]])
    product = both >= len(column)

    def sources(linear: NDArray[np.intp], count: int) -> NDArray[np.intp]:
        each = np.concatenate([linear, count + np.arange(len(pairs))])
        return np.concatenate([each, count + len(pairs) + each[:more]])

    may = np.concatenate([(open_[owner] & products.moving)[column], bent])[both]
    own = np.concatenate([owner[column] == unit, (one == unit) & (two == unit)])[both]
    by_column, by_unit = sources(column, len(owner)), sources(owner[column], len(rows.names))
    place = np.array(at, np.intp)
    gram, cross = sums[: len(both), : len(both)], sums[: len(both), place]
    none = np.zeros(len(pairs), np.intp)
    span = np.concatenate([np.repeat(np.arange(len(products.spans)), len(owner)), none])[both]
    driven = np.concatenate([column >= rows.targets, (pairs >= rows.targets).any(axis=1)])[both]
    return Regression(gram, cross, sums[place, place], count, may, by_column, by_unit, own, product, span, driven)
