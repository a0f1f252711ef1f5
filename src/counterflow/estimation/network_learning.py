"""Learning a network from its rows: sparse regressions, repeated on rows weighted at random.

What is learned from are the products of all features, summed over blocks of neighbouring rows (``products``). Every
replicate weights the blocks at random (Rubin's Bayesian bootstrap, which keeps what neighbouring rows share), and takes
another set of costs, because no single set is right for all plants: how much evidence a new channel must bring, a
further span of a channel that is in already, a channel of the unit itself, a product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.estimation.known_edges import KnownEdges
from counterflow.estimation.network import Network, damping, whole_windows
from counterflow.estimation.products import Products, Rows, whole
from counterflow.identification.sparse import refined_weights, sparse_weights


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

    network: Network
    posterior: Posterior
    bend: Bend
    used: int

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


def learn(
    rows: Rows, products: Products, known: KnownEdges | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Learning:  # fmt: skip
    """All replicates. ``known``: which units can act on which; None: any."""
    bend = _bend(rows, products, known)
    curved = bend.gain != 0.0 and bend.deviations >= VETO  # without a gain there was nothing to judge
    count, found = products.count, []
    for k, draw in enumerate(block_weights(products)):
        found.append(_weights(rows, products, products.moments(draw), count, COSTS[k % len(COSTS)], known, curved))
        if progress is not None:
            progress(k + 1, -0.5 * count * float(np.log(found[-1][2]).sum()))
    weights, *posterior = (np.array(each) for each in zip(*found, strict=True))
    network = _network(rows, products, weights, products.moments(), count)
    network = replace(network, bend=(bend.gain, bend.deviations), known=known)
    return Learning(network, Posterior(*posterior), bend, products.used)


def refreshed(network: Network, products: Products, posterior: Posterior) -> tuple[Network, Posterior]:
    """The weights of the same features by the sums of more rows, in the same standardisation.

    Nothing enters or leaves, and the damping stays: what remains are small problems, all of them solved at once.
    """
    K, n, r = posterior.variance.shape
    there = posterior.variance > 0
    used = np.flatnonzero(there.any(axis=(0, 2)))
    u, count = len(used), products.count
    moments = products.moments_among(np.concatenate([used, n + np.arange(r)]), block_weights(products))
    if count > ENOUGH:
        moments, count = moments * (ENOUGH / count), ENOUGH
    there = there[:, used].swapaxes(1, 2)  # (K, r, u)
    most = max(int(there.sum(axis=2).max()), 1)
    at = np.argsort(~there, axis=2, kind="stable")[:, :, :most]  # those of a target first, then others as padding
    k, i = np.arange(K)[:, None], np.arange(r)
    variance = posterior.variance[k[:, :, None], used[at], i[:, None]]
    mean, variance, noise = refined_weights(
        moments[k[:, :, None, None], at[:, :, :, None], at[:, :, None]].reshape(K * r, most, most),
        moments[k[:, :, None], at, u + i[:, None]].reshape(K * r, most), moments[k, u + i, u + i].ravel(), count,
        variance.reshape(K * r, most), posterior.noise.ravel(),
    )  # fmt: skip
    weights, variances = np.zeros((2, K, n, r))
    weights[k[:, :, None], used[at], i[:, None]] = mean.reshape(K, r, most)
    variances[k[:, :, None], used[at], i[:, None]] = variance.reshape(K, r, most)
    linear = posterior.damping.shape[1] * posterior.damping.shape[2]
    weights[:, :linear] *= posterior.damping.reshape(K, linear, 1)
    found = _network(network, products, weights, products.moments(), products.count)
    found = replace(found, bend=network.bend, known=network.known)
    return found, replace(posterior, variance=variances, noise=noise.reshape(K, r))


def block_weights(products: Products) -> FloatArray:
    """(REPLICATES, B): random weights of the blocks, which leave the number of rows as it is.

    Those of a block depend on its place only, so that a replicate stays the same one while rows are added at the end.
    """
    draws = np.random.default_rng(0).exponential(size=(len(products.blocks), REPLICATES)).T
    return np.asarray(draws * (products.count / (draws @ products.counts))[:, None])


def _weights(
    rows: Rows, products: Products, moments: FloatArray, count: float, costs: Costs, known: KnownEdges | None,
    curved: bool,
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:  # fmt: skip
    """Weights (n, r) of every feature for every target, and their ``Posterior``, from one set of moments."""
    r, m, spans = sum(rows.numbers), rows.z.shape[1], products.spans
    n, linear = products.features, len(spans) * m
    if count > ENOUGH:
        moments, count = moments * (ENOUGH / count), ENOUGH
    column = np.tile(np.arange(m), len(spans))
    if costs.by_unit:
        source = np.concatenate([rows.owner[column], len(rows.names) + np.arange(n - linear)])
    else:
        source = np.concatenate([column, m + np.arange(n - linear)])
    (out, variance), noise = np.zeros((2, n, r)), np.zeros(r)
    for i in range(r):
        first, further = _costs(costs, rows, products, i, column, known)
        if not curved:
            first[linear:] = further[linear:] = np.inf
        found = sparse_weights(
            moments[:n, :n], moments[:n, n + i], float(moments[n + i, n + i]), count, source, first, further
        )
        out[found.chosen, i], variance[found.chosen, i], noise[i] = found.mean, found.variance, found.noise
    steady = damping(out[:linear].reshape(len(spans), m, r), spans, STEADY)
    out[:linear] *= steady.reshape(linear, 1)
    return out, variance, noise, steady


def _network(of: Rows | Network, products: Products, weights: FloatArray, moments: FloatArray, count: float) -> Network:
    """Of weights (K, n, r), and the units ``of`` whom they are."""
    K, _, r = weights.shape
    spans, linear = products.spans, len(products.spans) * len(products.level)
    bends = weights[:, linear:]
    kept = np.flatnonzero(bends.any(axis=(0, 2)))
    return Network(
        of.names, of.numbers, of.inputs, spans,
        np.ascontiguousarray(weights[:, :linear]).reshape(K, len(spans), -1, r), products.pairs[kept],
        np.ascontiguousarray(bends[:, kept]), products.pair_centre[kept], products.pair_size[kept], products.low,
        products.high, products.level, products.scale, _noise(moments, weights.mean(axis=0), count), WIDENING,
        round(count),
    )  # fmt: skip


def _bend(rows: Rows, products: Products, known: KnownEdges | None) -> Bend:
    """Whether products of channels help to foretell rows that were held out, many rows ahead.

    One row ahead is no judge: there products gain in any record, and long runs of them can be worse.
    """
    if not len(products.pairs):
        return Bend(0.0, 0.0)
    r, z = sum(rows.numbers), (rows.z - products.level) / products.scale
    there = np.asarray(np.isfinite(z).all(axis=1), bool)
    at = whole(there, products.memory)
    block = (rows.first + at) // products.length
    gains = []
    for part in np.array_split(np.unique(block), FOLDS):  # of rows that are not kept nothing can be foretold
        kept = ~np.isin(np.arange(len(products.blocks)), part)
        moments, count = products.moments(kept.astype(np.float64)), float(products.counts[kept].sum())
        starts = _starts(at[np.isin(block, part)], there)
        if not len(starts):
            continue
        truth = z[starts[:, None] + 1 + np.arange(AHEAD), :r]
        errors: list[FloatArray] = []
        for curved in (False, True):
            weights = _weights(rows, products, moments, count, JUDGE, known, curved)[0]
            network = _network(rows, products, weights[None], moments, count)
            if curved and not network.curved:
                errors.append(errors[0])
            else:
                errors.append(np.square(network.free_runs(z, starts, AHEAD) - truth))
        size = np.maximum(errors[0].mean(axis=(0, 1)), 1e-12)
        gains.append((np.minimum((errors[0] - errors[1]) / size, WILD)).mean(axis=(1, 2)))
    every = np.concatenate([*gains, np.zeros(0)])
    if len(every) < BATCHES or not every.any():
        return Bend(0.0, 0.0)
    batches = np.array([part.mean() for part in np.array_split(every, BATCHES)])
    error = float(batches.std(ddof=1)) / np.sqrt(BATCHES)
    return Bend(float(every.mean()), float(every.mean()) / error if error > 0 else 0.0)


def _starts(at: NDArray[np.intp], there: NDArray[np.bool_]) -> NDArray[np.intp]:
    """Rows of ``at`` from which on everything is there for as many rows as are looked ahead, half that far apart."""
    some = at[:: AHEAD // 2]
    some = some[some + AHEAD < len(there)]
    some = some[whole_windows(there, some + AHEAD, AHEAD - 1)]
    return np.asarray(some[:: max(1, len(some) // MOST_STARTS)], np.intp)


def _noise(moments: FloatArray, weights: FloatArray, rows: float) -> FloatArray:
    """Covariance (r, r) of what the mean weights (n, r) leave, with a floor."""
    n, r = weights.shape
    cross, gram, own = moments[:n, n : n + r], moments[:n, :n], moments[n : n + r, n : n + r]
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
    may = (open_[owner] & products.moving)[column]
    one, two = owner[pairs[:, 0]], owner[pairs[:, 1]]
    # the two factors are of one unit, or one of them is of the target's: other products have no pipe to come through
    product = open_[one] & open_[two] & ((one == two) | (one == unit) | (two == unit))
    product &= products.moving[pairs].all(axis=1)
    first = np.where(owner[column] == unit, costs.own, costs.new)
    first = np.where(may, first, np.inf)
    further = np.where(may, costs.further, np.inf)
    bend = np.where(product, costs.new + PRODUCT, np.inf)
    return np.concatenate([first, bend]), np.concatenate([further, bend])
