"""Relays in a log: their levels, how well they tell what was recorded, and which reading they have seen.

A controller is often faster than the rows of a log: it switches between two rows, when its reading crosses the level,
and a row shows what the reading is by then. So the row of a switch is known, and the reading is known there better than
by its noisy measurement: half a row before, it stood at the level. The reading that a relay has seen is the smoothest
one that passes there, and is near the measurement in all other rows. What a controller in the rows of the log sees is
the measurement itself, and it tells every row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.control.laws import Relay

FEWEST_SWITCHES = 6
FEWEST_READINGS = 8
APPROACH = 6  # rows before a switch that tell where its reading was going
NEAR = 0.25  # of a relay's hysteresis: how far from its level a reading may stand at a switch
BESIDE = 1e-9  # of a relay's levels: how far beside one a reading is that explains what it did
STIFFNESS = 10.0 ** np.arange(-1, 7)  # of a smooth reading: weight of its squared second differences
SURE = 1e6  # weight of a level that a switch shows, in measurements
LOOSE = 1e-9  # the same of nothing at all


def learned_relay(moved: FloatArray, reading: FloatArray) -> tuple[Relay, float] | None:
    """The relay behind an input (T,) with two values, and the share of the record that it tells; None: it is none.

    Examples
    --------
    >>> level, pump = np.empty(400), np.zeros(400)
    >>> for t in range(400):
    ...     level[t] = 5.5 if t == 0 else level[t - 1] + 0.07 * pump[t - 1] - 0.03
    ...     pump[t] = 1.0 if level[t] < 5.0 else 0.0 if level[t] > 6.0 else pump[t - 1]
    >>> law, told = learned_relay(pump, level)
    >>> print(law, told)
    relay: 1 below 5.005, 0 above 6.01 1.0
    """
    values, which, counts = np.unique(moved, return_inverse=True, return_counts=True)
    if not 2 <= len(values) <= 20:
        return None
    one, two = np.sort(np.argsort(-counts)[:2])
    if counts[one] + counts[two] < 0.98 * len(moved):
        return None
    up, down = (
        np.flatnonzero((which[1:] == now) & (which[:-1] == before)) + 1 for now, before in ((two, one), (one, two))
    )
    if min(len(up), len(down)) < FEWEST_SWITCHES // 2 or np.isfinite(reading).sum() < FEWEST_READINGS:
        return None
    ends = (float(values[two]), float(values[one]))
    for delay in (0, 1):
        law = _in_rows(moved, reading, ends, delay)
        if law is not None:
            return law, 1.0
    at_up, at_down = (_level(reading, moved, rows) for rows in (up, down))
    if not (np.isfinite(at_up) and np.isfinite(at_down)) or at_up == at_down:
        return None
    low, high = sorted((float(at_up), float(at_down)))
    below, above = ends if at_up < at_down else ends[::-1]
    law = Relay(low, high, below, above, between_rows=True)
    return law, told_by_relay(law, moved, reading)


def _in_rows(moved: FloatArray, reading: FloatArray, ends: tuple[float, float], delay: int) -> Relay | None:
    """The relay that tells every row from the reading of that row, or of the one before; None: there is none."""
    seen = np.concatenate([np.full(delay, np.nan), reading])[: len(moved)]
    first = max(1, delay)
    now, before, seen = moved[first:], moved[first - 1 : -1], seen[first:]
    known = np.isfinite(seen) & np.isin(now, ends) & np.isin(before, ends)
    now, before, seen = now[known], before[known], seen[known]
    for below, above in (ends, ends[::-1]):
        pairs = ((above, below), (above, above), (below, above), (below, below))
        groups = [seen[(before == was) & (now == is_now)] for was, is_now in pairs]
        if min(map(len, groups)) == 0:
            return None
        started, idle, stopped, running = groups
        if started.max() < idle.min() and stopped.min() > running.max():
            low, high = (started.max() + idle.min()) / 2, (stopped.min() + running.max()) / 2
            if low <= high:
                return Relay(float(low), float(high), below, above, delay, between_rows=False)
    return None


def _level(reading: FloatArray, moved: FloatArray, switched: NDArray[np.intp]) -> float:
    """The reading at which an input switches in these rows: where it was going, half a row before.

    It crossed its level somewhere between the row before and the row of the switch, in which it may have turned
    already; so only rows before are looked at, by a straight line through them.
    """
    rows = switched[switched >= APPROACH]
    rows = rows[(moved[rows[:, None] - 1 - np.arange(APPROACH)] == moved[rows - 1][:, None]).all(axis=1)]
    before = reading[rows[:, None] - 1 - np.arange(APPROACH)] if len(rows) else np.zeros((0, APPROACH))
    before = before[np.isfinite(before).all(axis=1)]
    if len(before) < FEWEST_SWITCHES // 2:
        beside = (reading[switched] + reading[switched - 1]) / 2
        return float(np.nanmedian(beside)) if np.isfinite(beside).any() else np.nan
    lag = np.arange(1.0, APPROACH + 1)
    line = np.linalg.pinv(np.column_stack([np.ones(APPROACH), lag]))
    return float(np.median(before @ (line[0] + 0.5 * line[1])))


def as_recorded(law: Relay, moved: FloatArray, reading: FloatArray) -> Relay:
    """The relay in rows or between them, whichever it was in this record (T,), where it does not say."""
    if law.between_rows is not None:
        return law
    known = np.isfinite(reading)
    seen = np.concatenate([np.full(law.delay, np.nan), reading])[: len(moved)]
    said = np.where(seen < law.low, law.below, np.where(seen > law.high, law.above, np.roll(moved, 1)))
    in_rows = bool((said == moved)[1 + law.delay :][known[1 : len(moved) - law.delay]].all())
    return replace(law, between_rows=not in_rows)


def told_by_relay(law: Relay, moved: FloatArray, reading: FloatArray) -> float:
    """How well a relay tells a record: by how much its reading would have to be another one.

    The lesser of two shares: of the switches at which it stood near their level, and of all rows in which it stood on
    the side that the input tells. A run by itself would be the wrong judge: one switch that noise hides or makes puts
    it out of step for long.
    """
    if np.isfinite(reading).sum() < FEWEST_READINGS:
        return 0.0
    smooth = Smooth.of(reading, moved)(reading)
    smooth = np.concatenate([np.repeat(smooth[:1], law.delay), smooth])[: len(moved)]
    gap = explaining(law, moved, smooth) - smooth
    near = np.abs(gap) <= NEAR * (law.high - law.low)
    switched = np.flatnonzero(np.diff(moved)) + 1
    return float(min(near.mean(), near[switched].mean())) if len(switched) else 0.0


def explaining(law: Relay, moved: FloatArray, reading: FloatArray) -> FloatArray:
    """The reading (T,) nearest to a given one with which a relay in rows would have moved its input as it did.

    Examples
    --------
    >>> law = Relay(low=1.0, high=2.0, below=1.0, above=0.0)
    >>> moved, reading = np.array([0.0, 0.0, 1.0, 1.0]), np.array([1.5, 0.9, 1.2, 1.5])
    >>> explaining(law, moved, reading).round(3).tolist()
    [1.5, 1.0, 1.0, 1.5]
    """
    gap = BESIDE * max(law.high - law.low, abs(law.low), abs(law.high), 1e-300)
    on, before = moved == law.below, np.concatenate([moved[:1], moved[:-1]]) == law.below
    out = np.where(on & ~before, np.minimum(reading, law.low - gap), reading)  # it switched here
    out = np.where(~on & before, np.maximum(out, law.high + gap), out)
    out = np.where(on & before, np.minimum(out, law.high), out)  # it did not
    return np.asarray(np.where(~on & ~before, np.maximum(out, law.low), out))


def seen_by(law: Relay, moved: FloatArray, reading: FloatArray, worlds: int = 1, seed: int = 0) -> FloatArray:
    """The reading (worlds, T) with which a relay moved its input as it did: measured in rows, or smooth and between.

    The first is the estimate. The others are what the estimate would be, had the noise been another one: as uncertain
    as the reading is, so uncertain are the relay's switches in a world that never was.

    Examples
    --------
    >>> rows = np.arange(40.0)
    >>> true = np.abs((rows + 9.5) % 20 - 10) - 5  # from 5 down to -5 and up again
    >>> moved = np.where((rows + 9.5) % 20 >= 10, 1.0, 0.0)
    >>> law = Relay(-5.0, 5.0, between_rows=True)
    >>> noisy = true + 0.3 * np.random.default_rng(0).standard_normal(40)
    >>> bool(np.abs(seen_by(law, moved, noisy)[0] - true).mean() < np.abs(noisy - true).mean())
    True
    """
    if not law.between_rows:
        rows, known = np.arange(len(reading)), np.isfinite(reading)
        whole = np.interp(rows, rows[known], reading[known])
        late = np.concatenate([np.repeat(whole[:1], law.delay), whole])[: len(whole)]
        nearest = explaining(law, moved, late)
        return np.repeat(np.concatenate([nearest[law.delay :], whole[len(whole) - law.delay :]])[None], worlds, axis=0)
    smooth = Smooth.of(reading, moved)
    first = smooth(reading, law)
    noise = float(np.nanstd(reading - first))
    rng = np.random.default_rng(seed)
    drawn = [first, *(smooth(first + noise * rng.standard_normal(len(first)), law) for _ in range(worlds - 1))]
    out = np.stack(drawn)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(moved)) + 1, [len(moved)]])
    for first_row, stop in pairwise(starts):
        on = moved[first_row] == law.below
        level, side = (law.high, -1.0) if on else (law.low, 1.0)
        stretch = out[:, first_row:stop]
        out[:, first_row:stop] = level + side * _not_yet(side * (stretch - level), stop < len(moved))
    return out


def _not_yet(above: FloatArray, crosses: bool) -> FloatArray:
    """Readings (worlds, n) above zero that are not about to cross it, but half a row after the last if they ``cross``.

    What is left after 1.5 more rows like the last is above zero.
    """
    out = np.maximum(above, 0.0)
    for t in range(1, out.shape[1]):
        out[:, t] = np.maximum(out[:, t], 0.6 * out[:, t - 1])
    if crosses and out.shape[1] > 1:
        out[:, -1] = out[:, -2] / 3
    return np.asarray(out)


@dataclass(frozen=True, eq=False)
class Smooth:
    """Takes the noise off a reading (T,), smooth but for kinks where an input ``moved`` (T,) switches.

    The least sum of squared errors and squared second differences; how stiff it is, every other row decides that is
    left out.
    """

    moved: FloatArray
    known: NDArray[np.bool_]
    stiffness: float = 1.0

    @classmethod
    def of(cls, reading: FloatArray, moved: FloatArray) -> Smooth:
        known = np.isfinite(reading)
        even = known & (np.arange(len(reading)) % 2 == 0)
        left_out = known & ~even
        errors = [
            float(np.square((cls(moved, even, stiffness)(reading) - reading)[left_out]).sum())
            for stiffness in STIFFNESS
        ]
        return cls(moved, known, float(STIFFNESS[int(np.argmin(errors))]))

    def __call__(self, reading: FloatArray, law: Relay | None = None) -> FloatArray:
        """The smooth reading (T,); with a law it stands at a level of it half a row before each switch."""
        from scipy.linalg import solveh_banded

        switched = np.flatnonzero(np.diff(self.moved)) + 1
        at = np.sort(np.concatenate([np.arange(len(reading), dtype=float), switched - 0.5]))
        real = at % 1 == 0
        target, weights = np.zeros(len(at)), np.zeros(len(at))
        target[real] = np.interp(at[real], np.flatnonzero(self.known), reading[self.known])
        weights[real] = self.known
        if law is not None:
            target[~real] = np.where(self.moved[switched] == law.below, law.low, law.high)
            weights[~real] = SURE
        target[~real] = np.where(weights[~real] > 0, target[~real], np.interp(at[~real], at[real], target[real]))
        gaps = np.diff(at)
        bends = np.column_stack([1 / gaps[:-1], -1 / gaps[:-1] - 1 / gaps[1:], 1 / gaps[1:]])
        size = self.stiffness * real[1:-1]  # no penalty on a bend at a switch
        weights = weights + LOOSE  # where nothing holds it, it is what stands beside it
        bands = np.zeros((3, len(at)))  # of the upper half: the diagonal last
        bands[2] = weights
        for i in range(3):
            for j in range(i, 3):
                bands[2 - (j - i), j : j + len(bends)] += size * bends[:, i] * bends[:, j]
        return np.asarray(solveh_banded(bands, weights * target)[real])
