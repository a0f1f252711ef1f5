"""Records without gaps: what is missing is drawn given what was read, and readings that nothing explains are left out.

Learning and drawing take turns (data augmentation): a network of the last draw says how the missing numbers go with
those that were read, and the numbers drawn from it are learned from next.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import combinations
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.errors import UnidentifiedError
from counterflow.learning.block_moments import LEAST_ROWS, BlockMoments, Rows, block_moments_of
from counterflow.learning.completion import Gaps, impute_draw
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.network import SPANS, foretold, running
from counterflow.learning.regression import left_noise, slow_target, way_weights
from counterflow.learning.sparse_learner import JUDGE

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


def impute_records(rows: Rows, known: KnownEdges | None = None) -> tuple[tuple[Rows, ...], dict[int, float]]:
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
        products = block_moments_of(record, curved=False)
        if k < ROUNDS:
            decays = decays_of(record, products, known, decays)
        products = with_slow(record, products, decays)
        (weights,), _, left, _, _ = way_weights(
            rows, products, np.ones(len(products.blocks)), JUDGE, known, curved=False
        )
        noise = left_noise(products, products.moments(), weights, products.count, left)
        level, scale = products.level, products.scale
        gaps = Gaps((values - level[:r]) / scale[:r], variance / scale[:r] ** 2)
        z = (record.z - level) / scale
        linear = weights.reshape(len(products.spans), -1, r)
        numbers = impute_draw(gaps, z[:, r:], linear, products.spans, noise, z[:, :r], rng)
        numbers = np.where(read[:, :r], rows.z[:, :r], numbers * scale[:r] + level[:r])
        record = replace(record, z=np.hstack([numbers, rows.z[:, r:]]))
        if k >= ROUNDS:
            records.append(record)
    return tuple(records), decays


def drop_outliers(rows: Rows, known: KnownEdges | None = None, kept: Collection[str] = ()) -> Rows:
    """The rows without readings that fit neither what came before them nor after: NaN there.

    Rows that follow a wild reading are off, too, because they are foretold from it; so only the first of them goes, and
    the others are judged again without it. ``kept``: units whose readings all stay.
    """
    r = rows.targets
    judged = ~np.isin(np.array(rows.names)[rows.owner[:r]], list(kept))
    if len(rows.z) > MOST_JUDGED:
        return rows
    for _ in range(MOST_WILD):
        read = rows.read
        record = replace(rows, z=np.hstack([_between(rows.z[:, :r], read[:, :r]), rows.z[:, r:]]), given=read)
        products = block_moments_of(record, curved=False)
        (weights,), *_ = way_weights(record, products, np.ones(len(products.blocks)), JUDGE, known, curved=False)
        z = (record.z - products.level) / products.scale
        memory = products.memory
        e = z[memory:, :r] - foretold(z, weights.reshape(len(products.spans), -1, r), products.spans)
        there = read[memory:, :r]
        usual = np.array([np.median(np.abs(e[known_, i])) if known_.any() else 0.0 for i, known_ in enumerate(there.T)])
        wild = there & (np.abs(e) > WILD_READING * np.maximum(usual, 1e-6) / NORMAL_MEDIAN)
        wild &= judged & (wild.mean(axis=0) <= MOST_WILD_SHARE)  # what is often so is how the channel moves
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
    record: Rows, products: BlockMoments, known: KnownEdges | None, before: Mapping[int, float] = MappingProxyType({})
) -> dict[int, float]:
    """By how much each target that is read in few rows decays from row to row: the most lasting that fits its readings.

    ``before``: what was found on a similar record; only its neighbours are tried then.
    """
    found = {}
    for i in np.flatnonzero((products.read < SELDOM * products.count) & (products.read >= LEAST_READINGS)).tolist():
        place = DECAYS.index(before[i]) if i in before else None
        misfits = {}
        for decay in DECAYS if place is None else DECAYS[max(place - 1, 0) : place + 2]:
            slow, divided = products.slowly(record, i, decay)
            every = np.ones(len(slow.blocks))
            left = slow_target(record, products, slow, every, JUDGE, known, curved=False)
            misfits[decay] = slow.count(every) * np.log(left.noise) + 2 * divided
        enough = min(misfits.values()) + 2 * UNDECIDED
        found[i] = max(decay for decay, misfit in misfits.items() if misfit <= enough)
    return found


def with_slow(record: Rows, products: BlockMoments, decays: Mapping[int, float]) -> BlockMoments:
    """The same, with sums for targets that are read in few rows."""
    return replace(products, slow=tuple(products.slowly(record, i, decay)[0] for i, decay in decays.items()))
