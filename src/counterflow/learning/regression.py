"""Regressions of a network's numbers on its features, from sums of products, in every way of running.

Each number is regressed on means of all columns over spans of earlier rows, and on products of columns. How its weights
are found is a learner's own business: a learner is a module with a ``Learner``, and a line in
``network_learning.MEMBERS``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.identification.sparse import SparseWeights
from counterflow.learning.block_moments import BlockMoments, Rows, SparseTarget
from counterflow.learning.drift import faded, ramp
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.network import damping
from counterflow.learning.regime_sums import RegimeSums, centred, level_of, with_differences, with_slopes

ENOUGH = 10_000  # rows that evidence is counted of at most: in longer records what is worth nothing is certain, too
STEADY = 0.9999  # growth from row to row that a replicate may have at most: levels hardly decay
ONE_WAY = RegimeSums()


@dataclass(frozen=True, eq=False)
class Regression:
    """One number on n features, from sums over ``rows`` rows.

    ``gram`` (n, n), ``cross`` (n,), ``energy``: of features, with the number, of the number. ``open`` (n,): which
    features may have a weight. ``column``, ``unit`` (n,): sources of the features, by columns and by units; a product
    is a source of its own, as is what a feature has more of in one way of running. ``own``, ``product`` (n,): features
    that are of the number's own unit, and products.
    """

    gram: FloatArray
    cross: FloatArray
    energy: float
    rows: float
    open: NDArray[np.bool_]
    column: NDArray[np.intp]
    unit: NDArray[np.intp]
    own: NDArray[np.bool_]
    product: NDArray[np.bool_]


class Learner(ABC):
    """How the weights of a number are found."""

    name: ClassVar[str]

    @abstractmethod
    def weights(self, of: Regression) -> SparseWeights:
        """Those that are not zero."""


def way_weights(
    rows: Rows, products: BlockMoments, draw: FloatArray, learner: Learner, known: KnownEdges | None, curved: bool,
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
            found = slow_target(rows, products, slow[i], draw, learner, known, curved)
            out[:, i, i] = slow[i].decay  # of its last row, which stands first
            out[:, found.chosen, i] = found.mean
        elif unit not in offered:
            found = target_weights(rows, products, moments, count, i, learner, known, curved)
            out[:, found.chosen, i] = found.mean
        else:
            before = None
            for way, (sums, weight) in enumerate(offered[unit]):
                if sums is not before:
                    found, before = target_weights(rows, products, sums, weight, i, learner, known, curved), sums
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
    rows: Rows, products: BlockMoments, moments: FloatArray, count: float, i: int, learner: Learner,
    known: KnownEdges | None, curved: bool,
) -> SparseWeights:  # fmt: skip
    """The weights of one target from sums (N, N), or from those with differences, which are numbered from n on."""
    more = len(moments) - products.size  # differences
    n = products.features + more
    # what was drawn is no evidence; nor is more than enough of what was read
    enough = min(count * products.read[i] / products.count, ENOUGH)
    sums = enough / count * moments
    return learner.weights(_regression(rows, products, sums, enough, i, n + i, more, known, curved))


def slow_target(
    rows: Rows, products: BlockMoments, slow: SparseTarget, draw: FloatArray, learner: Learner,
    known: KnownEdges | None, curved: bool,
) -> SparseWeights:  # fmt: skip
    """Weights of a target that is read seldom, of all columns but its own."""
    share = min(1.0, ENOUGH / max(slow.count(draw), 1.0))
    sums, at = share * slow.moments(draw), products.features
    of = _regression(rows, products, sums, share * slow.count(draw), slow.target, at, 0, known, curved)
    return learner.weights(replace(of, open=of.open & (of.column != slow.target)))


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


def _regression(
    rows: Rows, products: BlockMoments, sums: FloatArray, count: float, i: int, at: int, more: int,
    known: KnownEdges | None, curved: bool,
) -> Regression:  # fmt: skip
    """Of target i, which stands at ``at`` in sums over ``count`` rows; before it ``more`` differences of features."""
    owner, pairs, unit = rows.owner, products.pairs, int(rows.owner[i])
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
    own = np.concatenate([owner[column] == unit, np.zeros(len(pairs), bool)])[both]
    by_column, by_unit = sources(column, len(owner)), sources(owner[column], len(rows.names))
    gram, cross = sums[: len(both), : len(both)], sums[: len(both), at]
    return Regression(gram, cross, float(sums[at, at]), count, may, by_column, by_unit, own, product)
