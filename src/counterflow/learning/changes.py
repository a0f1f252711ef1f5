"""Where the plant of a record changed, and which of its units drift: the search over its rows and sums of products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.learning.augmentation import SELDOM
from counterflow.learning.block_moments import BlockMoments, Rows
from counterflow.learning.drift import Drift, drift_of, ramp, slope_gain
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.regime_sums import PASSING, RegimeSums, centred, with_slopes
from counterflow.learning.regimes import LEAST_ROWS, LEAST_SHARE, SURPRISING, Change, find_change
from counterflow.learning.regression import unit_weights
from counterflow.learning.sparse_learner import JUDGE

MOST_SEEN = 50_000  # rows, the newest, in which changes of the plant are looked for
MOST_CHANGES = 4  # of a record


def changes_of(rows: Rows, products: BlockMoments, known: KnownEdges | None = None) -> tuple[Change, ...]:
    """Where the plant changed, by rising rows of the record: the clearest change first, then others on either side."""
    r, everybody = rows.targets, tuple(range(len(rows.names)))
    none = np.zeros(len(everybody))
    at = products.learned_from(rows)[-MOST_SEEN:]
    least = max(int(LEAST_SHARE * len(at)), LEAST_ROWS)
    targets = (rows.z[:, :r] - products.level[:r]) / products.scale[:r]
    often = np.flatnonzero(products.read >= SELDOM * products.count)  # what was drawn has no part in it
    found: list[Change] = []

    def inside(part: NDArray[np.intp], row: int | None) -> FloatArray:
        """Sums over the rows of a part, with a level of its own before and after a row of it."""
        edges = [*(change.at for change in found), *(() if row is None else (row,))]
        ways = RegimeSums.of(rows, products, [Change(edge, everybody, none, none) for edge in edges])
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
                (kept,) = unit_weights(rows, products, sums[row], float(len(part)), [of], JUDGE, known, True)
                chosen[i, row] = kept.chosen
            return products.columns(rows, part, np.sort(chosen[i, row]))

        change = find_change(features, targets[np.ix_(part, often)], rows.owner[often], least)
        if change is None:
            return None
        return replace(change, at=int(part[change.at]), stop=None if change.stop is None else int(part[change.stop]))

    left = [at] if len(often) else []
    while left and len(found) < MOST_CHANGES:
        part = left.pop()
        change = searched(part) if len(part) else None
        if change is not None:
            both = [change] if change.stop is None else [change, replace(change, at=change.stop)]
            found += [replace(each, stop=None) for each in both]
            edges = [-PASSING, *(each.at for each in both), int(part[-1]) + 1]
            left += [part[(part >= a + PASSING) & (part < b)] for a, b in pairwise(edges)]
    return tuple(sorted(found, key=lambda change: change.at))


def with_drifts(
    rows: Rows, products: BlockMoments, changes: Sequence[Change], known: KnownEdges | None = None
) -> tuple[tuple[Change, ...], tuple[Drift, ...]]:
    """Changes that are no part of a slow one, and how units drift that have not changed at once."""
    n, r, blocks = products.features, rows.targets, np.eye(len(products.blocks))
    time = ramp(len(blocks))
    smooth = with_slopes([products.moments(time**power) for power in range(3)], n, 0)
    seldom = products.read < SELDOM * products.count  # what was drawn has no part in it
    drifts, by_unit = [], []
    for unit in range(len(rows.names)):
        sums = []
        for i in np.flatnonzero((rows.owner[:r] == unit) & ~seldom).tolist():
            (found,) = unit_weights(rows, products, smooth, products.count, [i], JUDGE, known, True)
            sums.append(products.moments_among(np.concatenate([np.sort(found.chosen), [n + i, n + r]]), blocks))
        drifts.append(drift_of(unit, sums, products.counts) if sums else None)
        by_unit.append(sums)
    slow = {drift.unit for drift in drifts if drift is not None and drift.memory is None}

    def is_slow(change: Change) -> bool:
        """Whether weights that go evenly with time explain it better than those that change in its block."""
        step = (np.arange(len(blocks)) >= products.block_of(change.at)).astype(np.float64)
        for unit in change.units:
            even, once = (
                sum(slope_gain(each, products.counts, when) for each in by_unit[unit]) for when in (time, step)
            )
            if unit not in slow or even <= once:
                return False
        return True

    sudden = tuple(change for change in changes if change.surprise.max() >= SURPRISING or not is_slow(change))
    changed = {unit for change in sudden for unit in change.units}
    return sudden, tuple(drift for drift in drifts if drift is not None and drift.unit not in changed)
