"""Learning a network from its rows: sparse regressions, repeated on rows weighted at random.

What is learned from are the products of all features, summed over blocks of neighbouring rows (``products``). Every
replicate weights the blocks at random (Rubin's Bayesian bootstrap, which keeps what neighbouring rows share), and takes
another set of costs (``regression``), because no single set is right for all plants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from counterflow.learning.regression import ENOUGH, ONE_WAY, Learner, is_steady, left_noise, way_weights
from counterflow.learning.ridge_learner import Ridge, memory_of
from counterflow.learning.sparse_learner import JUDGE, SPARSE

REPLICATES = 16  # of an ensemble, shared out among learners by what they are worth; as many choose who acts on whom
SEARCHED = 0.5  # share of the time that goes before the first replicate, about
Found = tuple[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray]  # as ``way_weights`` gives it
FOLDS = 5  # in which rows are held out in turn, to see whether curvature helps
AHEAD = 40  # rows of the free runs that judge curvature
FAR = 120  # rows, of those that judge learners: late in them, what inputs did is all that is foretold
MOST_STARTS = 400  # of a fold
MUCH = 2.0  # times the squared error of the best ensemble
SURELY = 3.0  # standard errors by which ridge must err less with products than without
PARTS = (1.0, 0.5, 0.25, 0.1, 0.0)  # of the way that a replicate is off
BATCHES = 20  # of starts that follow one another: their means say how sure the gain of curvature is
FEW = 600  # rows, below which curvature can hardly be judged
WILD = 1e3  # times the usual error that counts at most
WIDENING = 1.2  # of the replicates' spread; see docs/theory/identification.md


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
    bend, counts = _worth(record, products, known, ways, others)
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
    chosen = np.array([each[0].any(axis=0) for each in found])
    members: list[tuple[Learner, Found]] = [(JUDGE, one) for one in found[: counts[0]]]
    for learner, count in zip(others, counts[1:], strict=True):
        members += [(learner, one) for one in replicates_of(learner, count, rows, drawn, known)]
    weights, variance, noise, damping, levels = (
        np.array(each) for each in zip(*[one for _, one in members], strict=True)
    )
    names = tuple(learner.name for learner, _ in members)
    made = [
        _network(rows, products, weights[:, way], noise, levels[:, way], ways, way) for way in range(ways.count)
    ]
    networks = tuple(
        replace(each, bend=bend, known=known, learners=names, chosen=columns_used(first, chosen)) for each in made
    )
    return Learning(networks, ways.changes, Posterior(variance, noise, damping), first, ways.drifts)


def candidates(products: BlockMoments) -> tuple[Ridge, ...]:
    """The learners beside the sparse one."""
    spans = memory_of(products.moments(), products)
    linear = Ridge(spans, shrunk=False), Ridge(spans)
    return (*linear, Ridge(spans, products=True)) if len(products.pairs) else linear


def replicates_of(
    learner: Learner, count: int, rows: Rows, drawn: Sequence[tuple[BlockMoments, RegimeSums]],
    known: KnownEdges | None,
) -> list[Found]:  # fmt: skip
    """Replicates of a learner that does not choose: its weights drawn, about their mean."""
    if not count:
        return []

    def learned(at: int, one: Learner) -> Found:
        of, ways = drawn[at]
        return way_weights(rows, of, np.ones(len(of.blocks)), one, known, True, ways)

    means = [learned(at, learner) for at in range(min(len(drawn), count))]
    each = [learned(k * len(drawn) // count, learner.drawn(k)) for k in range(count)]
    centre, middle = ([np.mean([one[at] for one in some], axis=0) for at in (0, 4)] for some in (means, each))
    out = []
    for one in each:
        for part in PARTS:  # no further from the mean than nothing grows
            weights, levels = (a + part * (b - c) for a, b, c in zip(centre, one[::4], middle, strict=True))
            if all(is_steady(way, drawn[0][0]) for way in weights):
                break
        out.append((weights, np.zeros_like(one[1]), means[0][2], np.ones_like(one[3]), levels))
    return out


def columns_used(products: BlockMoments, chosen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(K, m, r): which columns act on which numbers, of features (K, n, r) that were chosen."""
    m = len(products.level)
    linear = len(products.spans) * m
    out = np.asarray(chosen[:, :linear].reshape(len(chosen), -1, m, chosen.shape[2]).any(axis=1))
    for k, factors in enumerate(products.pairs):
        for factor in factors:
            out[:, factor] |= chosen[:, linear + k]
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
    found = replace(_network(network, products, weights, left, network.offset), **same)
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


def _worth(
    rows: Rows, products: BlockMoments, known: KnownEdges | None, ways: RegimeSums, others: Sequence[Ridge]
) -> tuple[tuple[float, float], tuple[int, ...]]:
    """By how much products of channels help to foretell held-out rows, many rows ahead; the same in standard errors.

    And how many members the sparse learner and the others are worth there, by runs so long that only what inputs did
    is foretold. One row ahead is no judge: there products gain in any record, and long runs of them can be worse.
    """
    r, z = sum(rows.numbers), (rows.z - products.level) / products.scale
    at = np.arange(products.memory, len(z))
    block = (rows.first + at) // products.length
    changed = np.array([change.at for change in ways.changes], np.intp)
    candidates = [(JUDGE, False), *([(JUDGE, True)] if len(products.pairs) else []), *((one, True) for one in others)]
    near: list[FloatArray] = []
    far: list[FloatArray] = []
    for part in np.array_split(np.unique(block), FOLDS):  # of rows that are not kept nothing can be foretold
        kept = ~np.isin(np.arange(len(products.blocks)), part)
        inside = at[np.isin(block, part)]
        long = int(np.clip(len(inside) // 2, 1, FAR))
        found = [
            way_weights(rows, products, kept.astype(np.float64), learner, known, curved, ways)
            for learner, curved in candidates
        ]
        for ahead, runs in ((AHEAD, near), (long, far)):
            starts = _starts(inside, int(inside[-1]) + 1 if runs is far else len(z), ahead)
            way = np.searchsorted(changed, starts, "right")
            same = way == np.searchsorted(changed, starts + ahead, "right")
            starts, way = starts[same], way[same]
            if not len(starts):
                continue
            window = starts[:, None] + 1 + np.arange(ahead)
            truth, read = z[window, :r], rows.read[window, :r]
            errors = np.empty((len(candidates), *truth.shape))
            for c, one in enumerate(found if runs is far else found[:2]):
                for w in np.unique(way).tolist():
                    network = _network(rows, products, one[0][None, w], one[2][None], one[4][None, w], ways, w)
                    errors[c, way == w] = network.free_runs(z, starts[way == w], ahead) - truth[way == w]
            errors = np.where(read, np.nan_to_num(errors, nan=WILD).clip(-WILD, WILD), 0.0)  # what was read judges
            if runs is near:
                runs.append(errors[:2])
            else:
                runs.append(errors[:, :, ahead // 3 :])
    first = (REPLICATES, *[0] * len(others))
    every = np.concatenate([*near, np.zeros((2, 0, AHEAD, r))], axis=1)
    if every.shape[1] < BATCHES or not every.any():
        return (0.0, 0.0), first
    size = np.maximum(np.square(every[0]).mean(axis=(0, 1)), 1e-12)
    bend = (0.0, 0.0)
    if len(products.pairs):
        gain = np.minimum((np.square(every[0]) - np.square(every[1])) / size, WILD).mean(axis=(1, 2))
        batches = np.array([part.mean() for part in np.array_split(gain, BATCHES)])
        error = float(batches.std(ddof=1)) / np.sqrt(BATCHES)
        bend = (float(gain.mean()), float(gain.mean()) / error if error > 0 else 0.0)
    if not far:
        return bend, first
    late = np.concatenate([each[:, :, -min(one.shape[2] for one in far) :] for each in far], axis=1)
    if len(products.pairs):
        late = np.delete(late, 0 if bend[0] > 0 else 1, axis=0)
    late = late / np.sqrt(np.maximum(np.square(late[0]).mean(axis=(0, 1)), 1e-12))
    together = np.einsum("intr,jntr->nij", late, late)
    if others[-1].products:
        gap = together[:, -1, -1] - together[:, -2, -2]
        if gap.mean() + SURELY * gap.std() / np.sqrt(len(gap)) > 0:  # ridge does as well without products
            return bend, (*shared_out(together[:, :-1, :-1], REPLICATES), 0)
    return bend, shared_out(together, REPLICATES)


def shared_out(products: FloatArray, count: int) -> tuple[int, ...]:
    """How many of so many members each learner has: those with which runs surely err least together.

    ``products`` (n, L, L): sums of products of the learners' errors, for each run. What members do better than the
    first learner alone must be clear of chance. Unless that one errs much more than the best, it keeps some members:
    where it disagrees with the others, the answer is not sure.
    """
    learners = products.shape[1]
    counts = np.array([each for each in np.ndindex(*[count + 1] * learners) if sum(each) == count])
    errors = np.einsum("ci,nij,cj->cn", counts, products, counts) / count**2
    alone = products[:, 0, 0]
    gains = errors - alone
    risk = gains.mean(axis=1) + gains.std(axis=1) / np.sqrt(len(products))
    if alone.mean() <= MUCH * errors[np.argmin(risk)].mean():
        risk[counts[:, 0] < count // 4] = np.inf
    return tuple(counts[np.argmin(risk)].tolist())


def _starts(at: NDArray[np.intp], rows: int, ahead: int) -> NDArray[np.intp]:
    """Rows of ``at`` that are followed by as many rows as are looked ahead, half that far apart."""
    some = at[:: max(ahead // 2, 1)]
    some = some[some + ahead < rows]
    return np.asarray(some[:: max(1, len(some) // MOST_STARTS)], np.intp)
