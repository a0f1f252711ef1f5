"""The ways of running of a record in sums of products: what each number is learned from in each of them.

A unit that changed has *segments*, between one change of it and the next. Within each it has a level of its own, so
sums are taken about the segment's means; and the weights of one segment are those of all rows and few differences,

    s_i[t] = level of the segment + x[t] w + 1(t in the segment) x[t] d + e[t]

Both sets are features of one sparse regression, [x, 1(segment) x], whose sums follow from those of all rows and of the
segment. Differences cost as new sources do. So a way of running rests on its own rows, and borrows from the others
what they share. Units that did not change are learned from all rows.

A unit that drifts has weights that go evenly with time, in features [x, τ x] with levels that do so, too; or its rows
count the less the older they are (``drift``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.learning.block_moments import BlockMoments, Rows
from counterflow.learning.drift import Drift
from counterflow.learning.network import Network
from counterflow.learning.regimes import Change

PASSING = 3  # rows right after a change, which belong to neither side: what is read may jump


@dataclass(frozen=True, eq=False)
class Regime:
    """One way of running: rows ``start`` to ``stop`` - 1 of the fitted record.

    ``units``: those that changed in its first row; none in the first of all. ``network``: what it was like then; None:
    that of the fit. ``begins``: when its first row was, where that is known.
    """

    start: int
    stop: int
    units: tuple[str, ...] = ()
    network: Network | None = field(default=None, repr=False)
    begins: str = ""

    def __str__(self) -> str:
        changed = f", {' and '.join(self.units)} changed" if self.units else ""
        since = f" (from {self.begins})" if self.begins else ""
        return f"rows {self.start} to {self.stop - 1}{since}{changed}"


def since(regimes: Sequence[Regime]) -> int:
    """The first row since the last change; stretches of a drift are none."""
    return max((each.start for each in regimes if each.units), default=0)


def later(regimes: Sequence[Regime], dropped: int, rows: int) -> tuple[Regime, ...]:
    """The same where the first ``dropped`` rows are gone and ``rows`` are left; the last one goes on."""
    kept = [replace(each, start=max(each.start - dropped, 0), stop=each.stop - dropped) for each in regimes]
    kept = [each for each in kept[:-1] if each.stop > 0] + kept[-1:]
    return (*kept[:-1], replace(kept[-1], stop=rows)) if len(kept) > 1 else ()


@dataclass(frozen=True, eq=False)
class RegimeSums:
    """Changes of a record, by rising rows, and sums over the rows near them.

    ``blocks``: which block each change lies in. ``since`` (N, N): of that block's rows from the change on, but for
    those ``passing`` (N, N). ``drifts``: of units that change slowly. ``times``: of each way of running, from minus one
    to zero, the present.
    """

    changes: tuple[Change, ...] = ()
    blocks: tuple[int, ...] = ()
    since: tuple[FloatArray, ...] = ()
    passing: tuple[FloatArray, ...] = ()
    drifts: tuple[Drift, ...] = ()
    times: tuple[float, ...] = (0.0,)

    @classmethod
    def of(
        cls, rows: Rows, products: BlockMoments, changes: Sequence[Change], drifts: Sequence[Drift] = ()
    ) -> RegimeSums:
        """Of changes whose rows are those of the record. Of a plant that drifts evenly, stretches are told apart."""
        if any(drift.memory is None for drift in drifts):
            changes = [*changes, *_stretches(len(rows.z), changes)]
        found = tuple(sorted(changes, key=lambda change: change.at))
        blocks, since, passing = [], [], []
        for change in found:
            blocks.append(products.block_of(change.at))
            at = products.learned_from(rows, blocks[-1])
            since.append(products.sums(rows, at[at >= change.at + PASSING]))
            passing.append(products.sums(rows, at[(at >= change.at) & (at < change.at + PASSING)]))
        edges = np.array([0, *(change.at for change in found), len(rows.z)]) / len(rows.z) - 1.0
        times = (*((edges[:-2] + edges[1:-1]) / 2).tolist(), 0.0)
        return cls(found, tuple(blocks), tuple(since), tuple(passing), tuple(drifts), times)

    @property
    def count(self) -> int:
        """How many ways of running there are."""
        return len(self.changes) + 1

    def way_of(self, row: int) -> int:
        """The way of running of a row."""
        return sum(change.at <= row for change in self.changes)

    def own(self, unit: int) -> tuple[int, ...]:
        """The changes of a unit."""
        return tuple(k for k, change in enumerate(self.changes) if unit in change.units)

    def segment(self, unit: int, way: int) -> int:
        """Which of a unit's segments a way of running lies in."""
        return sum(k < way for k in self.own(unit))

    def moments(self, products: BlockMoments, draw: FloatArray, unit: int) -> list[FloatArray]:
        """(N, N) of each segment of a unit, blocks weighted by ``draw`` (B,)."""
        out: list[FloatArray] = []
        taken: FloatArray | float = 0.0  # sums over the rows of later segments, and those that belong to none
        for k in self.own(unit)[::-1]:
            later, weight = np.where(np.arange(len(draw)) > self.blocks[k], draw, 0.0), draw[self.blocks[k]]
            since = products.moments(later) + weight * self.since[k]
            out.append(since - taken)
            taken = since + weight * self.passing[k]
        return [*out, products.moments(draw) - taken][::-1]

    def drift(self, unit: int) -> Drift | None:
        """How a unit drifts, if it does."""
        return next((drift for drift in self.drifts if drift.unit == unit), None)

    def of_way(self, products: BlockMoments, way: int) -> FloatArray:
        """(N, N) over the rows of one way of running."""
        every = replace(self, changes=tuple(replace(change, units=(0,)) for change in self.changes))
        return every.moments(products, np.ones(len(products.counts)), 0)[way]


def _stretches(rows: int, changes: Sequence[Change]) -> list[Change]:
    """Quarters of a record, as changes of nobody, so that each has the weights of its time."""
    none, taken = np.zeros(0), [change.at for change in changes]
    quarters = [rows * k // 4 for k in (1, 2, 3)]
    return [Change(at, (), none, none) for at in quarters if all(abs(at - other) > rows // 8 for other in taken)]


def centred(moments: FloatArray) -> FloatArray:
    """Sums of products (N, N), the constant last, about the means of their rows."""
    rows = max(float(moments[-1, -1]), 1e-300)
    return np.asarray(moments - np.outer(moments[:, -1], moments[-1]) / rows)


def with_differences(segments: Sequence[FloatArray], own: int, features: int, linear: int) -> FloatArray:
    """Sums for one segment of those of each (N, N): with the features come differences of the first ``linear`` ones.

    (N + linear, N + linear): features, their differences, targets, the constant.
    """
    parts = [centred(part) for part in segments]
    whole, mine = sum(parts[1:], parts[0]), parts[own]
    N = len(whole)
    at = np.concatenate([np.arange(features), np.arange(linear), np.arange(features, N)])
    differs = np.zeros(N + linear, bool)
    differs[features : features + linear] = True
    return np.asarray(np.where(differs[:, None] | differs, mine[np.ix_(at, at)], whole[np.ix_(at, at)]))


def with_slopes(moments: Sequence[FloatArray], features: int, linear: int) -> FloatArray:
    """Sums with slopes of the first ``linear`` features, about levels that go evenly with time, too.

    ``moments``: (N, N) of rows weighted by time to the powers 0, 1 and 2. (N + linear, N + linear): features, their
    slopes, targets, the constant, of which nothing is left.
    """
    plain, first, second = moments
    N = len(plain)
    at = np.concatenate([np.arange(features), np.arange(linear), np.arange(features, N), [N - 1]])
    power = np.zeros(len(at), int)
    power[features : features + linear] = 1
    power[-1] = 1  # time itself
    whole = np.choose(power[:, None] + power, [each[np.ix_(at, at)] for each in (plain, first, second)])
    levels = np.array([len(at) - 2, len(at) - 1])
    reach = np.linalg.solve(whole[np.ix_(levels, levels)], whole[levels])
    return np.asarray((whole - whole[:, levels] @ reach)[:-1, :-1])


def level_of(moments: FloatArray, weights: FloatArray, targets: NDArray[np.intp]) -> FloatArray:
    """Mean of what weights (n, targets) leave of the targets over rows with these sums (N, N), the constant last."""
    n, rows = len(weights), float(moments[-1, -1])
    if rows <= 0:
        return np.zeros(len(targets))
    return np.asarray((moments[n + targets, -1] - moments[:n, -1] @ weights) / rows)
