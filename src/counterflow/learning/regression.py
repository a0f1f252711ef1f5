"""Sparse regressions of a network's numbers on its features, from sums of products, in every way of running.

Each number is regressed on means of all columns over spans of earlier rows, and on products of columns. Every feature
costs nats: how much evidence a new channel must bring, a further span of a channel that is in already, a channel of the
unit itself, a product.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.identification.sparse import SparseWeights, sparse_weights
from counterflow.learning.block_moments import BlockMoments, Rows, SparseTarget
from counterflow.learning.drift import faded, ramp
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.network import damping
from counterflow.learning.regime_sums import RegimeSums, centred, level_of, with_differences, with_slopes


class Costs(NamedTuple):
    """Nats that a weight must bring: of a new source, a further span of one, a new source of the target's own unit.

    ``by_unit``: the sources are whole units, not channels.
    """

    new: float
    further: float
    own: float
    by_unit: bool


COSTS = (Costs(6, 6, 6, False), Costs(8, 4, 5, False), Costs(7, 3, 7, True), Costs(5, 2, 3, True))
JUDGE = COSTS[1]  # with which candidates are compared
PRODUCT = 3.0  # nats that a product costs more than a new channel
ENOUGH = 10_000  # rows that evidence is counted of at most: in longer records what is worth nothing is certain, too
STEADY = 0.9999  # growth from row to row that a replicate may have at most: levels hardly decay
ONE_WAY = RegimeSums()


def way_weights(
    rows: Rows, products: BlockMoments, draw: FloatArray, costs: Costs, known: KnownEdges | None, curved: bool,
    ways: RegimeSums = ONE_WAY,
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]:  # fmt: skip
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
    for i in range(r):
        unit = int(rows.owner[i])
        if i in slow:
            found = slow_target(rows, products, slow[i], draw, costs, known, curved)
            out[:, i, i] = slow[i].decay  # of its last row, which stands first
            out[:, found.chosen, i] = found.mean
        elif unit not in offered:
            found = target_weights(rows, products, moments, count, i, costs, known, curved)
            out[:, found.chosen, i] = found.mean
        else:
            before = None
            for way, (sums, weight) in enumerate(offered[unit]):
                if sums is not before:
                    found, before = target_weights(rows, products, sums, weight, i, costs, known, curved), sums
                more = found.chosen >= n  # differences or slopes
                times = 1.0 if ways.own(unit) else ways.times[way]
                same = np.where(more, found.chosen - n, found.chosen)
                out[way, :, i] = np.bincount(same, np.where(more, times, 1.0) * found.mean, n)
            found = replace(found, chosen=np.empty(0, np.intp), variance=np.empty(0))  # its sums are not kept
        variance[found.chosen, i], noise[i] = found.variance, found.noise
    steady = np.ones((ways.count, len(spans), m))
    for way in range(ways.count):
        steady[way] = damping(out[way, :linear].reshape(len(spans), m, r), spans, STEADY)
        out[way, :linear] *= steady[way].reshape(linear, 1)
        for unit, parts in about.items():
            mine = np.flatnonzero(rows.owner[:r] == unit)
            levels[way, mine] = level_of(parts[way], out[way][:, mine], mine)
    return out, variance, noise, steady[-1], levels


def target_weights(
    rows: Rows, products: BlockMoments, moments: FloatArray, count: float, i: int, costs: Costs,
    known: KnownEdges | None, curved: bool,
) -> SparseWeights:  # fmt: skip
    """The weights of one target from sums (N, N), or from those with differences, which are numbered from n on."""
    n = products.features
    source, first, further = _terms(rows, products, i, costs, known, curved)
    more = len(moments) - products.size  # differences
    if more:
        source = np.concatenate([source, source.max() + 1 + source[:more]])
        first, further = (np.concatenate([each, each[:more]]) for each in (first, further))
    # what was drawn is no evidence; nor is more than enough of what was read
    enough = min(count * products.read[i] / products.count, ENOUGH)
    share = enough / count
    n, i = n + more, n + more + i
    gram, cross, energy = share * moments[:n, :n], share * moments[:n, i], share * float(moments[i, i])
    return sparse_weights(gram, cross, energy, enough, source, first, further)


def slow_target(
    rows: Rows, products: BlockMoments, slow: SparseTarget, draw: FloatArray, costs: Costs,
    known: KnownEdges | None, curved: bool,
) -> SparseWeights:  # fmt: skip
    """Weights of a target that is read seldom, of all columns but its own."""
    n, m = products.features, rows.z.shape[1]
    moments = slow.moments(draw)
    source, first, further = _terms(rows, products, slow.target, costs, known, curved)
    own = slow.target + m * np.arange(len(products.spans))
    first[own] = further[own] = np.inf
    share = min(1.0, ENOUGH / max(slow.count(draw), 1.0))
    gram, cross, energy = moments[:n, :n], moments[:n, n], float(moments[n, n])
    return sparse_weights(share * gram, share * cross, share * energy, share * slow.count(draw), source, first, further)


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


def _terms(
    rows: Rows, products: BlockMoments, i: int, costs: Costs, known: KnownEdges | None, curved: bool
) -> tuple[NDArray[np.intp], FloatArray, FloatArray]:
    """Source of every feature, and its nats for target i as the first of it or a further one; inf: it may not act."""
    owner, pairs, unit = rows.owner, products.pairs, int(rows.owner[i])
    column = np.tile(np.arange(len(owner)), len(products.spans))
    open_ = np.ones(len(rows.names), bool)
    if known is not None:
        open_ = np.array([known.allows(name, rows.names[unit]) for name in rows.names])
    may = (open_[owner] & products.moving)[column]
    one, two = owner[pairs[:, 0]], owner[pairs[:, 1]]
    # the two factors are of one unit, or one of them is of the target's: other products have no pipe to come through
    product = open_[one] & open_[two] & ((one == two) | (one == unit) | (two == unit))
    product &= products.moving[pairs].all(axis=1) & curved
    first = np.where(may, np.where(owner[column] == unit, costs.own, costs.new), np.inf)
    further = np.where(may, costs.further, np.inf)
    bend = np.where(product, costs.new + PRODUCT, np.inf)
    sources = len(rows.names) if costs.by_unit else len(owner)
    source = np.concatenate([owner[column] if costs.by_unit else column, sources + np.arange(len(pairs))])
    return source, np.concatenate([first, bend]), np.concatenate([further, bend])
