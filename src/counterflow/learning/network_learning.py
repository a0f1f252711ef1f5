"""Learning a network from its rows: sparse regressions, repeated on rows weighted at random.

What is learned from are the products of all features, summed over blocks of neighbouring rows (``products``). Every
replicate weights the blocks at random (Rubin's Bayesian bootstrap, which keeps what neighbouring rows share), and takes
another set of costs (``regression``), because no single set is right for all plants.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.identification.sparse import refined_weights
from counterflow.learning.augmentation import impute_records, with_slow
from counterflow.learning.block_moments import BlockMoments, Rows, block_moments_of
from counterflow.learning.changes import changes_of, with_drifts
from counterflow.learning.drift import Drift
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.network import Network
from counterflow.learning.regime_sums import Regime, RegimeSums, centred
from counterflow.learning.regimes import Change
from counterflow.learning.regression import ENOUGH, ONE_WAY, Learner, left_noise, way_weights
from counterflow.learning.sparse_learner import JUDGE, SPARSE

MEMBERS: tuple[Learner, ...] = 4 * SPARSE  # one after the other, each on rows weighted anew
REPLICATES = len(MEMBERS)
SEARCHED = 0.5  # share of the time that goes before the first replicate, about
FOLDS = 5  # in which rows are held out in turn, to see whether curvature helps
AHEAD = 40  # rows of the free runs
MOST_STARTS = 400  # of a fold
BATCHES = 20  # of starts that follow one another: their means say how sure the gain of curvature is
FEW = 600  # rows, below which curvature can hardly be judged
WILD = 1e3  # times the usual error that counts at most
WIDENING = 1.2  # of the replicates' spread; see docs/theory/identification.md


@dataclass(frozen=True, eq=False)
class Posterior:
    """Which features every replicate has chosen, and what its weights rest on besides the sums.

    ``variance`` (K, n, r): prior variances of the weights, zero where there is none. ``noise`` (K, r). ``damping`` (K,
    b, m): factors of the linear weights, so that nothing grows.
    """

    variance: FloatArray
    noise: FloatArray
    damping: FloatArray


@dataclass(frozen=True, eq=False)
class Learning:
    """A network, and how it was learned."""

    networks: tuple[Network, ...]  # for each way of running
    changes: tuple[Change, ...]  # one between two networks, of nobody if it is of a drift; rows are those of the record
    posterior: Posterior  # of the present one
    products: BlockMoments  # of the first of the records, if readings are missing
    drifts: tuple[Drift, ...] = ()
    chosen: int = -1  # the way of running that is asked about, by default the present one

    @property
    def network(self) -> Network:
        """Of the way of running that is asked about."""
        return self.networks[self.chosen]

    def at(self, row: int) -> Learning:
        """The same with the way of running of a row."""
        return replace(self, chosen=sum(change.at <= row for change in self.changes))

    def regimes(self, rows: int) -> tuple[Regime, ...]:
        """The ways of running of a record of so many rows, in order; empty if there is only one."""
        edges = [0, *(change.at for change in self.changes), rows]
        units = [(), *(tuple(self.network.names[m] for m in change.units) for change in self.changes)]
        here = self.chosen % len(self.networks)
        networks = [None if k == here else network for k, network in enumerate(self.networks)]
        found = zip(edges[:-1], edges[1:], units, networks, strict=True)
        return tuple(Regime(*each) for each in found) if self.changes else ()

    @property
    def words(self) -> str:
        """Which kind of model was used, and why."""
        gain = self.network.bend[0]
        runs = f"free runs over held-out rows err {abs(100 * gain):.1f} %"
        if not self.network.curved:
            if gain < 0:
                return f"linear: products of channels are left out, with them {runs} more"
            if gain == 0.0 and self.products.used < FEW:
                return "linear: too few rows to judge whether products of channels help"
            return "linear: no product of channels is worth its cost"
        return (
            f"curved: {len(self.network.pairs)} products of channels are in use, with them {runs} less; effects "
            "depend on where the plant stands, and those from now on start from the last row"
        )


def learn(
    rows: Rows, known: KnownEdges | None = None, progress: Callable[[float, str], None] | None = None,
    sums: BlockMoments | None = None, one_way: bool = False,
) -> Learning:  # fmt: skip
    """All replicates.

    ``known``: which units can act on which; None: any. ``sums``: of a whole record of which ``rows`` are the newest.
    ``one_way``: as if nothing ever changed.
    """
    records, decays = impute_records(rows, known)
    record = records[0]
    products = first = with_slow(record, sums or block_moments_of(record), decays)
    ways = ONE_WAY
    if not one_way and sums is None:
        changes = changes_of(record, products, known)
        ways = RegimeSums.of(record, products, *with_drifts(record, products, changes, known))
    bend = _bend(record, products, known, ways)
    curved = bend[0] > 0
    found = []
    if progress is not None:
        progress(SEARCHED, "changes and curvature were looked for")
    for k, draw in enumerate(block_weights(products)):
        if sums is None and record is not records[k * len(records) // REPLICATES]:
            record = records[k * len(records) // REPLICATES]
            products = with_slow(record, block_moments_of(record, first), decays)
            ways = RegimeSums.of(record, products, ways.changes, ways.drifts)
        found.append(way_weights(rows, products, draw, MEMBERS[k], known, curved, ways))
        if progress is not None:
            progress(SEARCHED + (1 - SEARCHED) * (k + 1) / REPLICATES, f"replicate {k + 1} of {REPLICATES}")
    weights, variance, noise, damping, levels = (np.array(each) for each in zip(*found, strict=True))
    networks = tuple(
        replace(_network(rows, products, weights[:, way], noise, levels[:, way], ways, way), bend=bend, known=known)
        for way in range(ways.count)
    )
    return Learning(networks, ways.changes, Posterior(variance, noise, damping), first, ways.drifts)


def refreshed(network: Network, products: BlockMoments, posterior: Posterior) -> tuple[Network, Posterior]:
    """The weights of the same features by the sums of more rows, in the same standardisation.

    Nothing enters or leaves, and the damping stays.
    """
    _, n, r = posterior.variance.shape
    apart = network.offset.any(axis=0)  # units that changed have sums of their own, which are not kept
    slow = sorted({*(each.target for each in products.slow), *np.flatnonzero(apart).tolist()})  # they stay as they are
    used = np.flatnonzero(posterior.variance.any(axis=(0, 2)))
    moments = products.moments_among(np.concatenate([used, n + np.arange(r)]), block_weights(products))
    enough = np.minimum(products.read, ENOUGH)  # as in ``target_weights``
    weights, variances, left = _weights_of(network, products), posterior.variance.copy(), posterior.noise.copy()
    for k, sums in enumerate(moments):
        for i in np.setdiff1d(np.arange(r), slow).tolist():
            there, own = np.flatnonzero(variances[k, used, i]), len(used) + i
            share, at = enough[i] / products.count, used[there]
            weights[k, at, i], variances[k, at, i], left[k, i] = refined_weights(
                share * sums[np.ix_(there, there)], share * sums[there, own], share * float(sums[own, own]), enough[i],
                variances[k, at, i], left[k, i],
            )  # fmt: skip
            weights[k, : posterior.damping[k].size, i] *= posterior.damping[k].ravel()
    found = replace(_network(network, products, weights, left, network.offset), bend=network.bend, known=network.known)
    return found, replace(posterior, variance=variances, noise=left)


def _weights_of(network: Network, products: BlockMoments) -> FloatArray:
    """(K, n, r): the inverse of ``_network``."""
    K, r = len(network.linear), network.size
    weights = np.zeros((K, products.features, r))
    linear = len(products.spans) * len(products.level)
    weights[:, :linear] = network.linear.reshape(K, linear, r)
    place = {tuple(pair): linear + at for at, pair in enumerate(products.pairs.tolist())}
    weights[:, [place[tuple(pair)] for pair in network.pairs.tolist()]] = network.bends
    return weights


def block_weights(products: BlockMoments) -> FloatArray:
    """(REPLICATES, B): random weights of the blocks, which leave the number of rows as it is.

    Those of a block depend on its place only, so that a replicate stays the same one while rows are added at the end.
    """
    draws = np.random.default_rng(0).exponential(size=(len(products.blocks), REPLICATES)).T
    return np.asarray(draws * (products.count / (draws @ products.counts))[:, None])


def _network(
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


def _bend(rows: Rows, products: BlockMoments, known: KnownEdges | None, ways: RegimeSums) -> tuple[float, float]:
    """By how much products of channels help to foretell held-out rows, many rows ahead; the same in standard errors.

    One row ahead is no judge: there products gain in any record, and long runs of them can be worse.
    """
    if not len(products.pairs):
        return 0.0, 0.0
    r, z = sum(rows.numbers), (rows.z - products.level) / products.scale
    at = np.arange(products.memory, len(z))
    block = (rows.first + at) // products.length
    changed = np.array([change.at for change in ways.changes], np.intp)
    gains = []
    for part in np.array_split(np.unique(block), FOLDS):  # of rows that are not kept nothing can be foretold
        kept = ~np.isin(np.arange(len(products.blocks)), part)
        draw = kept.astype(np.float64)
        starts = _starts(at[np.isin(block, part)], len(z))
        way = np.searchsorted(changed, starts, "right")
        inside = way == np.searchsorted(changed, starts + AHEAD, "right")
        starts, way = starts[inside], way[inside]
        if not len(starts):
            continue
        window = starts[:, None] + 1 + np.arange(AHEAD)
        truth, read = z[window, :r], rows.read[window, :r]
        errors: list[FloatArray] = []
        for curved in (False, True):
            weights, _, left, _, levels = way_weights(rows, products, draw, JUDGE, known, curved, ways)
            if curved and not weights[:, len(products.spans) * len(products.level) :].any():
                errors.append(errors[0])
                continue
            errors.append(np.empty_like(truth))
            for w in np.unique(way).tolist():
                network = _network(rows, products, weights[None, w], left[None], levels[None, w], ways, w)
                gap = network.free_runs(z, starts[way == w], AHEAD) - truth[way == w]
                errors[-1][way == w] = np.square(gap) * read[way == w]  # what was read judges
        size = np.maximum(errors[0].mean(axis=(0, 1)), 1e-12)
        gains.append((np.minimum((errors[0] - errors[1]) / size, WILD)).mean(axis=(1, 2)))
    every = np.concatenate([*gains, np.zeros(0)])
    if len(every) < BATCHES or not every.any():
        return 0.0, 0.0
    batches = np.array([part.mean() for part in np.array_split(every, BATCHES)])
    error = float(batches.std(ddof=1)) / np.sqrt(BATCHES)
    return float(every.mean()), float(every.mean()) / error if error > 0 else 0.0


def _starts(at: NDArray[np.intp], rows: int) -> NDArray[np.intp]:
    """Rows of ``at`` that are followed by as many rows as are looked ahead, half that far apart."""
    some = at[:: AHEAD // 2]
    some = some[some + AHEAD < rows]
    return np.asarray(some[:: max(1, len(some) // MOST_STARTS)], np.intp)
