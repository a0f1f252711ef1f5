"""Learning a network from its rows: sparse regressions, repeated on rows weighted at random.

What is learned from are the products of all features, summed over blocks of neighbouring rows (``products``). Every
replicate weights the blocks at random (Rubin's Bayesian bootstrap, which keeps what neighbouring rows share), and takes
another set of costs, because no single set is right for all plants: how much evidence a new channel must bring, a
further span of a channel that is in already, a channel of the unit itself, a product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.errors import UnidentifiedError
from counterflow.estimation.completion import Gaps, drawn, foretold
from counterflow.estimation.known_edges import KnownEdges
from counterflow.estimation.network import SPANS, Network, damping
from counterflow.estimation.products import LEAST_ROWS, Products, Rows, Slow, products_of, running
from counterflow.estimation.regimes import LEAST_ROWS as LEAST_OF_A_WAY
from counterflow.estimation.regimes import LEAST_SHARE, Change, find_change
from counterflow.estimation.ways import PASSING, Regime, Ways, centred, level_of, with_differences
from counterflow.identification.sparse import SparseWeights, refined_weights, sparse_weights


class Costs(NamedTuple):
    """Nats that a weight must bring: of a new source, a further span of one, a new source of the target's own unit.

    ``by_unit``: the sources are whole units, not channels.
    """

    new: float
    further: float
    own: float
    by_unit: bool


ONE_WAY = Ways()
COSTS = (Costs(6, 6, 6, False), Costs(8, 4, 5, False), Costs(7, 3, 7, True), Costs(5, 2, 3, True))
PRODUCT = 3.0  # nats that a product costs more than a new channel
REPLICATES = 16
ENOUGH = 10_000  # rows that evidence is counted of at most: in longer records what is worth nothing is certain, too
STEADY = 0.9999  # growth from row to row that a replicate may have at most: levels hardly decay
FOLDS = 5  # in which rows are held out in turn, to see whether curvature helps
JUDGE = COSTS[1]  # that these are learned with
AHEAD = 40  # rows of the free runs
MOST_STARTS = 400  # of a fold
BATCHES = 20  # of starts that follow one another: their means say how sure the gain of curvature is
VETO = -1.0  # standard errors below zero from which on curvature is left out
FEW = 600  # rows, below which curvature can hardly be judged
WILD = 1e3  # times the usual error that counts at most
MOST_SEEN = 50_000  # rows, the newest, in which changes of the plant are looked for
MOST_CHANGES = 4  # of a record
DRAWS = 4  # records with other draws of what is missing, if anything is
ROUNDS = 4  # of learning and drawing before them
SELDOM = 0.5  # share of rows below which a target that is read in them is slow
DECAYS = (0.0, 0.3, 0.5, 0.65, 0.75, 0.82, 0.88, 0.92, 0.95, 0.97, 0.98, 0.99, 0.995)  # that are tried
UNDECIDED = 5.0  # nats by which a decay may fit worse than the best
WILD_READING = 15.0  # standard deviations that a reading is off, to be left out
NORMAL_MEDIAN = 0.6745  # of the absolute value of a standard normal number
MOST_WILD, MOST_WILD_SHARE = 8, 0.02  # times that they are looked for; share of a channel's readings
MOST_JUDGED = 50_000  # rows, beyond which one reading decides nothing
LEAST_READINGS = 10  # of a slow target, to be learned
WIDENING = 1.2  # of the replicates' spread; see docs/theory/identification.md


class Bend(NamedTuple):
    """What curvature is worth on rows that were held out.

    ``gain``: relative fall of the free runs' squared error; ``deviations``: that in its standard errors.
    """

    gain: float
    deviations: float


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
    changes: tuple[Change, ...]  # one between two ways of running; their rows are those of the record
    posterior: Posterior  # of the present one
    bend: Bend
    products: Products  # of the first of the records, if readings are missing
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
        runs = f"free runs over held-out rows err {abs(100 * self.bend.gain):.1f} %"
        if not self.network.curved:
            if self.bend.deviations < VETO:
                return f"linear: products of channels are left out, with them {runs} more"
            if self.bend.gain == 0.0 and self.products.used < FEW:
                return "linear: too few rows to judge whether products of channels help"
            return "linear: no product of channels is worth its cost"
        side = "less" if self.bend.gain >= 0 else "more"
        return (
            f"curved: {len(self.network.pairs)} products of channels are in use, with them {runs} {side}; effects "
            "depend on where the plant stands, and those from now on start from the last row"
        )


def completed(rows: Rows, known: KnownEdges | None = None) -> tuple[tuple[Rows, ...], dict[int, float]]:
    """Records of the rows without gaps: one, or ``DRAWS`` if something is missing; and decays of slow targets."""
    decays: dict[int, float] = {}
    if rows.read.all():
        return (rows,), decays
    r, read = rows.targets, rows.read
    _refuse_apart(rows)
    there = np.isfinite(rows.z[:, :r])
    variance = np.where(there, 0.0 if rows.variance is None else rows.variance, np.inf)
    values = np.where(there, rows.z[:, :r], 0.0)
    record = replace(rows, z=np.hstack([_between(rows.z[:, :r], read[:, :r]), rows.z[:, r:]]), given=read)
    rng, records = np.random.default_rng(0), []
    for k in range(ROUNDS + DRAWS):
        products = products_of(record, curved=False)
        if k < ROUNDS:
            decays = decays_of(record, products, known, decays)
        products = with_slow(record, products, decays)
        (weights,), _, left, _, _ = _weights(rows, products, np.ones(len(products.blocks)), JUDGE, known, curved=False)
        noise = _noise(products, products.moments(), weights, products.count, left)
        level, scale = products.level, products.scale
        gaps = Gaps((values - level[:r]) / scale[:r], variance / scale[:r] ** 2)
        z = (record.z - level) / scale
        linear = weights.reshape(len(products.spans), -1, r)
        numbers = drawn(gaps, z[:, r:], linear, products.spans, noise, z[:, :r], rng)
        numbers = np.where(read[:, :r], rows.z[:, :r], numbers * scale[:r] + level[:r])
        record = replace(record, z=np.hstack([numbers, rows.z[:, r:]]))
        if k >= ROUNDS:
            records.append(record)
    return tuple(records), decays


def believed(rows: Rows, known: KnownEdges | None = None) -> Rows:
    """The rows without readings that fit neither what came before them nor after: NaN there.

    A wild reading that its unit has not noticed would decide the fit. Rows that follow one are off, too, because they
    are foretold from it; so only the first of them goes, and the others are judged again without it.
    """
    r = rows.targets
    if len(rows.z) > MOST_JUDGED:
        return rows
    for _ in range(MOST_WILD):
        read = rows.read
        record = replace(rows, z=np.hstack([_between(rows.z[:, :r], read[:, :r]), rows.z[:, r:]]), given=read)
        products = products_of(record, curved=False)
        (weights,), *_ = _weights(record, products, np.ones(len(products.blocks)), JUDGE, known, curved=False)
        z = (record.z - products.level) / products.scale
        memory = products.memory
        e = z[memory:, :r] - foretold(z, weights.reshape(len(products.spans), -1, r), products.spans)
        there = read[memory:, :r]
        usual = np.array([np.median(np.abs(e[known_, i])) if known_.any() else 0.0 for i, known_ in enumerate(there.T)])
        wild = there & (np.abs(e) > WILD_READING * np.maximum(usual, 1e-6) / NORMAL_MEDIAN)
        wild &= wild.mean(axis=0) <= MOST_WILD_SHARE  # what is often so is how the channel moves
        at = np.flatnonzero(wild.any(axis=1))
        first = at[np.diff(at, prepend=-memory - 1) > memory]
        if not len(first):
            break
        off = rows.z.copy()
        off[memory + first, :r] = np.where(wild[first], np.nan, off[memory + first, :r])
        rows = replace(rows, z=off)
    return rows


def _refuse_apart(rows: Rows) -> None:
    """Two units that were never measured in the same period have couplings that no row shows."""
    near = {}
    for m, name in enumerate(rows.names):
        own = rows.read[:, : rows.targets][:, rows.owner[: rows.targets] == m]
        there = np.asarray(own.any(axis=1), bool)
        count = running(there[:, None].astype(np.float64))[:, 0]
        at = np.arange(1, len(there) + 1)
        near[name] = count[at] > count[np.maximum(at - int(SPANS[-1, 1]), 0)]
    for one, two in combinations(rows.names, 2):
        common = int((near[one] & near[two]).sum())
        if common < LEAST_ROWS:
            raise UnidentifiedError(
                f"identification: units {one!r} and {two!r} were both measured over {common} rows only, at least "
                f"{LEAST_ROWS} are needed; record all units over a common period"
            )


def _between(numbers: FloatArray, read: NDArray[np.bool_]) -> FloatArray:
    """Numbers (T, r) with straight lines over what was not read, to begin with."""
    out, rows = np.zeros_like(numbers), np.arange(len(numbers))
    for column, known, there in zip(out.T, numbers.T, read.T, strict=True):
        if there.any():
            column[:] = np.interp(rows, rows[there], known[there])
    return out


def decays_of(
    record: Rows, products: Products, known: KnownEdges | None, before: Mapping[int, float] = MappingProxyType({})
) -> dict[int, float]:
    """By how much each target that is read in few rows decays from row to row: the most lasting that fits its readings.

    What is forgotten before the next reading leaves no trace in them, but ties the rows in between to both.
    ``before``: what was found on a similar record; only its neighbours are tried then.
    """
    found = {}
    for i in np.flatnonzero((products.read < SELDOM * products.count) & (products.read >= LEAST_READINGS)).tolist():
        place = DECAYS.index(before[i]) if i in before else None
        misfits = {}
        for decay in DECAYS if place is None else DECAYS[max(place - 1, 0) : place + 2]:
            slow, divided = products.slowly(record, i, decay)
            every = np.ones(len(slow.blocks))
            left = _slow_target(record, products, slow, every, JUDGE, known, curved=False)
            misfits[decay] = slow.count(every) * np.log(left.noise) + 2 * divided
        enough = min(misfits.values()) + 2 * UNDECIDED
        found[i] = max(decay for decay, misfit in misfits.items() if misfit <= enough)
    return found


def with_slow(record: Rows, products: Products, decays: Mapping[int, float]) -> Products:
    """The same, with sums for targets that are read in few rows."""
    return replace(products, slow=tuple(products.slowly(record, i, decay)[0] for i, decay in decays.items()))


def learn(
    rows: Rows, known: KnownEdges | None = None, progress: Callable[[int, float], None] | None = None,
    sums: Products | None = None, one_way: bool = False,
) -> Learning:  # fmt: skip
    """All replicates.

    ``known``: which units can act on which; None: any. ``sums``: of a whole record of which ``rows`` are the newest.
    ``one_way``: as if nothing ever changed.
    """
    records, decays = completed(rows, known)
    record = records[0]
    products = first = with_slow(record, sums or products_of(record), decays)
    changes = () if one_way or sums is not None else changes_of(record, products, known)
    ways = Ways.of(record, products, changes)
    bend = _bend(record, products, known, ways)
    curved = bend.gain != 0.0 and bend.deviations >= VETO  # without a gain there was nothing to judge
    count, found = products.count, []
    for k, draw in enumerate(block_weights(products)):
        if sums is None and k and len(records) > 1 and k % len(COSTS) == 0:
            record = records[k // len(COSTS)]
            products = with_slow(record, products_of(record, first), decays)
            ways = Ways.of(record, products, changes)
        found.append(_weights(rows, products, draw, COSTS[k % len(COSTS)], known, curved, ways))
        if progress is not None:
            progress(k + 1, -0.5 * count * float(np.log(found[-1][2]).sum()))
    weights, variance, noise, damping, levels = (np.array(each) for each in zip(*found, strict=True))
    networks = tuple(
        replace(
            _network(rows, products, weights[:, way], noise, levels[:, way], ways, way),
            bend=(bend.gain, bend.deviations), known=known,
        )
        for way in range(ways.count)
    )  # fmt: skip
    return Learning(networks, changes, Posterior(variance, noise, damping), bend, first)


def changes_of(rows: Rows, products: Products, known: KnownEdges | None = None) -> tuple[Change, ...]:
    """Where the plant changed, by rising rows of the record: the clearest change first, then others on either side."""
    r, everybody = rows.targets, tuple(range(len(rows.names)))
    none = np.zeros(len(everybody))
    at = products.learned_from(rows)[-MOST_SEEN:]
    least = max(int(LEAST_SHARE * len(at)), LEAST_OF_A_WAY)
    targets = (rows.z[:, :r] - products.level[:r]) / products.scale[:r]
    often = np.flatnonzero(products.read >= SELDOM * products.count)  # what was drawn has no part in it
    found: list[Change] = []

    def inside(part: NDArray[np.intp], row: int | None) -> FloatArray:
        """Sums over the rows of a part, with a level of its own before and after a row of it."""
        edges = [*(change.at for change in found), *(() if row is None else (row,))]
        ways = Ways.of(rows, products, [Change(edge, everybody, none, none) for edge in edges])
        segments = ways.moments(products, np.ones(len(products.blocks)), 0)
        first = ways.way_of(int(part[0]))
        there = [centred(each) for each in segments[first : first + (1 if row is None else 2)]]
        return np.asarray(np.sum(there, axis=0))

    def searched(part: NDArray[np.intp]) -> Change | None:
        sums: dict[int | None, FloatArray] = {}
        chosen: dict[tuple[int, int | None], NDArray[np.intp]] = {}

        def features(i: int, place: int | None) -> FloatArray:
            row = None if place is None else int(part[place])
            if row not in sums:
                sums[row] = inside(part, row)
            if (i, row) not in chosen:
                of = int(often[i])
                chosen[i, row] = _target(rows, products, sums[row], float(len(part)), of, JUDGE, known, True).chosen
            return products.columns(rows, part, np.sort(chosen[i, row]))

        change = find_change(features, targets[np.ix_(part, often)], rows.owner[often], least)
        return None if change is None else replace(change, at=int(part[change.at]))

    left = [at] if len(often) else []
    while left and len(found) < MOST_CHANGES:
        part = left.pop()
        change = searched(part) if len(part) else None
        if change is not None:
            found.append(change)
            left += [part[part < change.at], part[part >= change.at + PASSING]]
    return tuple(sorted(found, key=lambda change: change.at))


def refreshed(network: Network, products: Products, posterior: Posterior) -> tuple[Network, Posterior]:
    """The weights of the same features by the sums of more rows, in the same standardisation.

    Nothing enters or leaves, and the damping stays: what remains are small problems, all of them solved at once.
    """
    K, n, r = posterior.variance.shape
    apart = network.offset.any(axis=0)  # units that changed have sums of their own, which are not kept
    slow = sorted({*(each.target for each in products.slow), *np.flatnonzero(apart).tolist()})  # they stay as they are
    there = posterior.variance > 0
    there[:, :, slow] = False
    used = np.flatnonzero(there.any(axis=(0, 2)))
    u, count = len(used), products.count
    moments = products.moments_among(np.concatenate([used, n + np.arange(r)]), block_weights(products))
    enough = np.tile(np.minimum(products.read, ENOUGH), K)  # as in ``_weights``, of each problem
    share = enough / count
    there = there[:, used].swapaxes(1, 2)  # (K, r, u)
    most = max(int(there.sum(axis=2).max()), 1)
    at = np.argsort(~there, axis=2, kind="stable")[:, :, :most]  # those of a target first, then others as padding
    k, i = np.arange(K)[:, None], np.arange(r)
    variance = np.where(np.take_along_axis(there, at, 2), posterior.variance[k[:, :, None], used[at], i[:, None]], 0.0)
    mean, variance, noise = refined_weights(
        share[:, None, None] * moments[k[:, :, None, None], at[:, :, :, None], at[:, :, None]].reshape(-1, most, most),
        share[:, None] * moments[k[:, :, None], at, u + i[:, None]].reshape(-1, most),
        share * moments[k, u + i, u + i].ravel(), enough, variance.reshape(-1, most), posterior.noise.ravel(),
    )  # fmt: skip
    weights, variances = np.zeros((2, K, n, r))
    weights[k[:, :, None], used[at], i[:, None]] = mean.reshape(K, r, most)
    variances[k[:, :, None], used[at], i[:, None]] = variance.reshape(K, r, most)
    linear = posterior.damping.shape[1] * posterior.damping.shape[2]
    weights[:, :linear] *= posterior.damping.reshape(K, linear, 1)
    before = _weights_of(network, products)
    weights[:, :, slow], variances[:, :, slow] = before[:, :, slow], posterior.variance[:, :, slow]
    left = noise.reshape(K, r)
    left[:, slow] = posterior.noise[:, slow]
    found = _network(network, products, weights, left, network.offset)
    found = replace(found, bend=network.bend, known=network.known)
    return found, replace(posterior, variance=variances, noise=left)


def _weights_of(network: Network, products: Products) -> FloatArray:
    """(K, n, r): the inverse of ``_network``."""
    K, r = len(network.linear), network.size
    weights = np.zeros((K, products.features, r))
    linear = len(products.spans) * len(products.level)
    weights[:, :linear] = network.linear.reshape(K, linear, r)
    place = {tuple(pair): linear + at for at, pair in enumerate(products.pairs.tolist())}
    weights[:, [place[tuple(pair)] for pair in network.pairs.tolist()]] = network.bends
    return weights


def block_weights(products: Products) -> FloatArray:
    """(REPLICATES, B): random weights of the blocks, which leave the number of rows as it is.

    Those of a block depend on its place only, so that a replicate stays the same one while rows are added at the end.
    """
    draws = np.random.default_rng(0).exponential(size=(len(products.blocks), REPLICATES)).T
    return np.asarray(draws * (products.count / (draws @ products.counts))[:, None])


def _weights(
    rows: Rows, products: Products, draw: FloatArray, costs: Costs, known: KnownEdges | None, curved: bool,
    ways: Ways = ONE_WAY,
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
    segments = {unit: ways.moments(products, draw, unit) for unit in range(len(rows.names)) if ways.own(unit)}
    for i in range(r):
        unit = int(rows.owner[i])
        if i in slow:
            found = _slow_target(rows, products, slow[i], draw, costs, known, curved)
            out[:, i, i] = slow[i].decay  # of its last row, which stands first
            out[:, found.chosen, i] = found.mean
        elif unit not in segments:
            found = _target(rows, products, moments, count, i, costs, known, curved)
            out[:, found.chosen, i] = found.mean
        else:
            for s in range(len(segments[unit])):
                here = [way for way in range(ways.count) if ways.segment(unit, way) == s]
                offered = with_differences(segments[unit], s, n, linear)
                found = _target(rows, products, offered, count, i, costs, known, curved)
                same = np.where(found.chosen < n, found.chosen, found.chosen - n)  # a feature and its difference
                out[here, :, i] = np.bincount(same, found.mean, n)
            found = replace(found, chosen=np.empty(0, np.intp), variance=np.empty(0))  # its sums are not kept
        variance[found.chosen, i], noise[i] = found.variance, found.noise
    steady = np.ones((ways.count, len(spans), m))
    for way in range(ways.count):
        steady[way] = damping(out[way, :linear].reshape(len(spans), m, r), spans, STEADY)
        out[way, :linear] *= steady[way].reshape(linear, 1)
        for unit, parts in segments.items():
            mine = np.flatnonzero(rows.owner[:r] == unit)
            levels[way, mine] = level_of(parts[ways.segment(unit, way)], out[way][:, mine], mine)
    return out, variance, noise, steady[-1], levels


def _target(
    rows: Rows, products: Products, moments: FloatArray, count: float, i: int, costs: Costs, known: KnownEdges | None,
    curved: bool,
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


def _slow_target(
    rows: Rows, products: Products, slow: Slow, draw: FloatArray, costs: Costs, known: KnownEdges | None, curved: bool
) -> SparseWeights:
    """Weights of a target that is read seldom, of all columns but its own."""
    n, m = products.features, rows.z.shape[1]
    moments = slow.moments(draw)
    source, first, further = _terms(rows, products, slow.target, costs, known, curved)
    own = slow.target + m * np.arange(len(products.spans))
    first[own] = further[own] = np.inf
    share = min(1.0, ENOUGH / max(slow.count(draw), 1.0))
    gram, cross, energy = moments[:n, :n], moments[:n, n], float(moments[n, n])
    return sparse_weights(share * gram, share * cross, share * energy, share * slow.count(draw), source, first, further)


def _network(
    of: Rows | Network, products: Products, weights: FloatArray, left: FloatArray, levels: FloatArray,
    ways: Ways = ONE_WAY, way: int = 0,
) -> Network:  # fmt: skip
    """Of weights (K, n, r) and levels (K, r), which have left noises (K, r), and the units ``of`` whom they are."""
    K, _, r = weights.shape
    spans, linear = products.spans, len(products.spans) * len(products.level)
    bends = weights[:, linear:]
    kept = np.flatnonzero(bends.any(axis=(0, 2)))
    moments = products.moments() if ways.count == 1 else ways.of_way(products, way)
    count = float(moments[-1, -1])
    moments = moments if ways.count == 1 else centred(moments)
    noise = _noise(products, moments, weights.mean(axis=0), count, left.mean(axis=0))
    return Network(
        of.names, of.numbers, of.inputs, spans,
        np.ascontiguousarray(weights[:, :linear]).reshape(K, len(spans), -1, r), products.pairs[kept],
        np.ascontiguousarray(bends[:, kept]), products.pair_centre[kept], products.pair_size[kept], products.low,
        products.high, products.level, products.scale, noise, WIDENING, levels, round(count),
    )  # fmt: skip


def _bend(rows: Rows, products: Products, known: KnownEdges | None, ways: Ways) -> Bend:
    """Whether products of channels help to foretell rows that were held out, many rows ahead.

    One row ahead is no judge: there products gain in any record, and long runs of them can be worse.
    """
    if not len(products.pairs):
        return Bend(0.0, 0.0)
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
            weights, _, left, _, levels = _weights(rows, products, draw, JUDGE, known, curved, ways)
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
        return Bend(0.0, 0.0)
    batches = np.array([part.mean() for part in np.array_split(every, BATCHES)])
    error = float(batches.std(ddof=1)) / np.sqrt(BATCHES)
    return Bend(float(every.mean()), float(every.mean()) / error if error > 0 else 0.0)


def _starts(at: NDArray[np.intp], rows: int) -> NDArray[np.intp]:
    """Rows of ``at`` that are followed by as many rows as are looked ahead, half that far apart."""
    some = at[:: AHEAD // 2]
    some = some[some + AHEAD < rows]
    return np.asarray(some[:: max(1, len(some) // MOST_STARTS)], np.intp)


def _noise(products: Products, moments: FloatArray, weights: FloatArray, rows: float, left: FloatArray) -> FloatArray:
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
    rows: Rows, products: Products, i: int, costs: Costs, known: KnownEdges | None, curved: bool
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
