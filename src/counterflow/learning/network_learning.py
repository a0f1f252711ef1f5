"""Learning a network from its rows: an ensemble of regressions by several learners.

What is learned from are the products of all features, summed over blocks of neighbouring rows (``products``). Every
replicate of the sparse learner weights the blocks at random (Rubin's Bayesian bootstrap, which keeps what neighbouring
rows share), and takes another set of costs, because no single set is right for all plants. The members that answer are
shared out among all learners by what they are worth (``worth``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.identification.sparse import refined_weights
from counterflow.learning.augmentation import impute_records, with_slow
from counterflow.learning.block_moments import BlockMoments, Rows, block_moments_of
from counterflow.learning.changes import changes_of, with_drifts
from counterflow.learning.drift import Drift
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.network import Network
from counterflow.learning.regime_sums import Regime, RegimeSums
from counterflow.learning.regimes import Change
from counterflow.learning.regression import ENOUGH, ONE_WAY, Found, Learner, is_steady, network_of, way_weights
from counterflow.learning.ridge_learner import Ridge, memory_of
from counterflow.learning.sparse_learner import JUDGE, SPARSE
from counterflow.learning.worth import worth_of

REPLICATES = 16  # of an ensemble, shared out among learners by what they are worth; as many choose who acts on whom
SEARCHED = 0.5  # share of the time that goes before the first replicate, about
SHAKE = 0.5  # of the random part of the weights of blocks, for learners that do not choose
SPREAD = 1.5  # times as far apart as they say: priors pull, and memories are cut off
PARTS = (1.0, 0.5, 0.25, 0.1, 0.0)  # of the way that a replicate is off
FEW = 600  # rows, below which curvature can hardly be judged


@dataclass(frozen=True, eq=False)
class Posterior:
    """Which features every replicate has chosen, and what its weights rest on besides the sums.

    ``variance`` (K, n, r): prior variances of the weights, zero where there is none, and of learners that do not
    choose. ``noise`` (K, r). ``damping`` (K, b, m): factors of the linear weights, so that nothing grows.
    """

    variance: FloatArray
    noise: FloatArray
    damping: FloatArray


@dataclass(frozen=True, eq=False)
class Learning:
    """A network, and how it was learned."""

    networks: tuple[Network, ...]  # for each way of running
    sparse: tuple[Network, ...]  # the same of all replicates of the sparse learner: who acts on whom shows
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
    others = candidates(first)
    bend, counts = worth_of(record, products, known, ways, others, REPLICATES)
    curved = bend[0] > 0
    found = []
    if progress is not None:
        progress(SEARCHED, "changes and curvature were looked for, and learners compared")
    draws = block_weights(products)
    drawn = [(products, ways)]  # of every record
    for more in records[1:] if sums is None else []:
        of = with_slow(more, block_moments_of(more, first), decays)
        drawn.append((of, RegimeSums.of(more, of, ways.changes, ways.drifts)))
    for k, draw in enumerate(draws):
        of, there = drawn[k * len(drawn) // REPLICATES]
        found.append(way_weights(rows, of, draw, SPARSE[k % len(SPARSE)], known, curved, there))
        if progress is not None:
            progress(SEARCHED + (1 - SEARCHED) * (k + 1) / REPLICATES, f"replicate {k + 1} of {REPLICATES}")
    members: list[tuple[Learner, Found]] = [(JUDGE, one) for one in found[: counts[0]]]
    for learner, count in zip(others, counts[1:], strict=True):
        members += [(learner, one) for one in replicates_of(learner, draws[:count], rows, drawn, known)]
    names, made = (learner.name for learner, _ in members), [one for _, one in members]

    def by_way(some: list[Found]) -> list[Network]:
        weights, _, left, _, levels = map(np.array, zip(*some, strict=True))
        return [network_of(rows, products, weights[:, w], left, levels[:, w], ways, w) for w in range(ways.count)]

    sparse = tuple(by_way(found))
    chosen = np.any([each.in_use for each in sparse], axis=0)  # in any way of running
    told: dict[str, Any] = {"bend": bend, "known": known, "learners": tuple(names), "chosen": chosen}
    networks = tuple(replace(each, **told) for each in by_way(made))
    _, variance, noise, damping, _ = map(np.array, zip(*made, strict=True))
    return Learning(networks, sparse, ways.changes, Posterior(variance, noise, damping), first, ways.drifts)


def candidates(products: BlockMoments) -> tuple[Ridge, ...]:
    """The learners beside the sparse one."""
    spans = memory_of(products.moments(), products)
    linear = Ridge(spans), Ridge(spans, shrunk=False)
    return (*linear, Ridge(spans, products=True)) if len(products.pairs) else linear


def replicates_of(
    learner: Learner, draws: FloatArray, rows: Rows, drawn: Sequence[tuple[BlockMoments, RegimeSums]],
    known: KnownEdges | None,
) -> list[Found]:  # fmt: skip
    """One for each draw (K, B), of a learner all of whose features have weights.

    Many weights at once suffer where blocks of rows are weighted at random: they are weighted half as much so, and the
    replicates stand as far apart, and a little further, about what all rows alike give.
    """
    if not len(draws):
        return []

    def learned(k: int, draw: FloatArray) -> Found:
        of, ways = drawn[k * len(drawn) // len(draws)]
        return way_weights(rows, of, draw, learner, known, True, ways)

    means = [learned(k, np.ones_like(draw)) for k, draw in enumerate(draws) if len(drawn) > 1 or k == 0]
    each = [learned(k, 1.0 + SHAKE * (draw - 1.0)) for k, draw in enumerate(draws)]
    centre, middle = ([np.mean([one[at] for one in some], axis=0) for at in (0, 4)] for some in (means, each))
    out = []
    for one in each:
        for part in PARTS:  # no further from the middle than nothing grows
            far = part * SPREAD / SHAKE
            weights, levels = (a + far * (b - c) for a, b, c in zip(centre, one[::4], middle, strict=True))
            if all(is_steady(way, drawn[0][0]) for way in weights):
                break
        out.append((weights, np.zeros_like(one[1]), means[0][2], np.ones_like(one[3]), levels))
    return out


def refreshed(network: Network, products: BlockMoments, posterior: Posterior) -> tuple[Network, Posterior]:
    """The weights of the same features by the sums of more rows, in the same standardisation.

    Nothing enters or leaves, and the damping stays.
    """
    _, n, r = posterior.variance.shape
    apart = network.offset.any(axis=0)  # units that changed have sums of their own, which are not kept
    slow = sorted({*(each.target for each in products.slow), *np.flatnonzero(apart).tolist()})  # they stay as they are
    used = np.flatnonzero(posterior.variance.any(axis=(0, 2)))
    moments = products.moments_among(np.concatenate([used, n + np.arange(r)]), block_weights(products))
    enough = np.minimum(products.read, ENOUGH)  # as in ``unit_weights``
    weights, variances, left = _weights_of(network, products), posterior.variance.copy(), posterior.noise.copy()
    for k, sums in enumerate(moments):
        if not variances[k].any():  # of a learner that does not choose: they stay until features are chosen anew
            continue
        for i in np.setdiff1d(np.arange(r), slow).tolist():
            there, own = np.flatnonzero(variances[k, used, i]), len(used) + i
            share, at = enough[i] / products.count, used[there]
            weights[k, at, i], variances[k, at, i], left[k, i] = refined_weights(
                share * sums[np.ix_(there, there)], share * sums[there, own], share * float(sums[own, own]), enough[i],
                variances[k, at, i], left[k, i],
            )  # fmt: skip
            weights[k, : posterior.damping[k].size, i] *= posterior.damping[k].ravel()
    same = {name: getattr(network, name) for name in ("bend", "known", "learners", "chosen")}
    found = replace(network_of(network, products, weights, left, network.offset), **same)
    return found, replace(posterior, variance=variances, noise=left)


def _weights_of(network: Network, products: BlockMoments) -> FloatArray:
    """(K, n, r): the inverse of ``network_of``."""
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
