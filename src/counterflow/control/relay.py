"""Relays: their equation, their levels in a log, how well they tell it, and which reading they have seen.

A controller is often faster than the rows of a log: it switches between two rows, when its reading crosses the level,
and a row shows what the reading is by then. So the row of a switch is known, and the reading is known there better than
by its noisy measurement: half a row before, it stood at the level. The reading that a relay has seen is the smoothest
one that passes there, and is near the measurement in all other rows. What a controller in the rows of the log sees is
the measurement itself, and it tells every row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray, real_number
from counterflow.control.law import CONSTANT, ControlLaw, LawFit, LawInput, LoopRecord, Replay, check_delay
from counterflow.errors import ModelError

FEWEST_SWITCHES = 6
FEWEST_READINGS = 8
APPROACH = 6  # rows before a switch that tell where its reading was going
NEAR = 0.25  # of a relay's hysteresis: how far from its level a reading may stand at a switch
BESIDE = 1e-9  # of a relay's levels: how far beside one a reading is that explains what it did
STIFFNESS = 10.0 ** np.arange(-1, 7)  # of a smooth reading: weight of its squared second differences
SURE = 1e6  # weight of a level that a switch shows, in measurements
LOOSE = 1e-9  # the same of nothing at all


@dataclass(frozen=True)
class Relay(ControlLaw):
    """Two positions with hysteresis: below ``low`` the moved input goes to ``below``, above ``high`` to ``above``.

    Between the two it stays where it was.

    Parameters
    ----------
    low, high : levels of the reading.
    below, above : the two positions of the moved input.
    delay : rows by which the controller sees its reading late.
    between_rows : whether the controller is faster than the rows, and switches when its reading crosses a level between
        two of them. In the row of a switch the input then is the mean of its positions from half a row before to half a
        row after. None: the record tells; without one, it switches in rows.

    Examples
    --------
    >>> pump = Relay(low=5.2, high=5.8, below=1.0, above=0.0)  # starts when the tank is low
    >>> pump.output(LawInput(np.array([[0.0]]), np.array([[5.3, 5.1]]), np.full((1, 2), np.nan), row=1)).tolist()
    [1.0]
    >>> fast = Relay(5.2, 5.8, between_rows=True)  # from 5.4 by way of 5.3 it crosses 5.2 in the next row
    >>> seen = LawInput(np.zeros((1, 2)), np.array([[5.4, 5.3, 5.2]]), np.full((1, 3), np.nan), row=2)
    >>> fast.output(seen).round(6).tolist()
    [0.5]
    """

    kind: ClassVar[str] = "relay"

    low: float
    high: float
    below: float = 1.0
    above: float = 0.0
    delay: int = 0
    between_rows: bool | None = None

    def __post_init__(self) -> None:
        for name in ("low", "high", "below", "above"):
            object.__setattr__(self, name, real_number(getattr(self, name), f"Relay: {name}", kind=ModelError))
        if not self.low <= self.high or self.below == self.above:
            raise ModelError(
                f"Relay: switches at {self.low:g} and {self.high:g} between {self.below:g} and {self.above:g}: low "
                "must not lie above high, and the two positions must differ."
            )
        check_delay(self.delay, "Relay")
        if self.between_rows not in (None, True, False):
            raise ModelError(f"Relay: between_rows is {self.between_rows!r:.80}: pass True, False or None.")
        if self.between_rows and self.delay:
            raise ModelError("Relay: a delay is in rows; a relay that switches between rows has none.")

    # ---- the equation

    @property
    def memory(self) -> int:
        return 2 if self.between_rows else 1 + self.delay

    @property
    def swing(self) -> float:
        return self.below - self.above

    @property
    def switches_in_rows(self) -> bool:
        return not self.between_rows

    def answer(self, seen: LawInput) -> FloatArray:
        if self.between_rows:
            return self._between(seen)
        now = seen.reading[:, seen.reading.shape[1] - 1 - self.delay]
        return np.where(now < self.low, self.below, np.where(now > self.high, self.above, seen.moved[:, -1]))

    def _between(self, seen: LawInput) -> FloatArray:
        """From the two rows before: the reading of the row itself may have turned already."""
        before, last = (np.round((seen.moved[:, k] - self.above) / (self.below - self.above), 9) for k in (-2, -1))
        reading, slope = seen.reading[:, -2], seen.reading[:, -2] - seen.reading[:, -3]
        off = last <= 0
        left = np.where(off, reading - self.low, self.high - reading)  # from its level
        speed = np.where(off, -slope, slope)
        rows = np.where(left <= 0, 0.0, left / np.where(speed > 0, speed, np.finfo(float).tiny))
        switched = np.clip(1.5 - rows, 0.0, 1.0)
        share = np.where(off, switched, 1 - switched)
        begun = (last > 0) & (last < 1)  # a switch that began in the row before is done
        share = np.where(begun, np.where(last > before, 1.0, 0.0), share)
        return np.asarray(self.above + share * (self.below - self.above))

    def __str__(self) -> str:
        return f"relay: {self.below:.4g} below {self.low:.4g}, {self.above:.4g} above {self.high:.4g}"

    # ---- from a log

    @classmethod
    def learned(cls, record: LoopRecord) -> LawFit | None:
        """The relay behind an input with two values; of both targets nobody knows anything."""
        moved, reading = record.moved, record.reading
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
                return LawFit(law, 1.0, 1.0, CONSTANT)
        at_up, at_down = (_level(reading, moved, rows) for rows in (up, down))
        if not (np.isfinite(at_up) and np.isfinite(at_down)) or at_up == at_down:
            return None
        low, high = sorted((float(at_up), float(at_down)))
        below, above = ends if at_up < at_down else ends[::-1]
        return cls(low, high, below, above, between_rows=True).judged(record)

    def judged(self, record: LoopRecord) -> LawFit:
        """How well it tells a record: by how much its reading would have to be another one.

        The lesser of two shares: of the switches at which it stood near their level, and of all rows in which it stood
        on the side that the input tells. A run by itself would be the wrong judge: one switch that noise hides or makes
        puts it out of step for long.
        """
        moved, reading = record.moved, record.reading
        law = self._as_recorded(moved, reading)
        if np.isfinite(reading).sum() < FEWEST_READINGS:
            return LawFit(law, 0.0, 1.0, CONSTANT)
        smooth = Smooth.chosen_for(reading, moved)(reading)
        smooth = np.concatenate([np.repeat(smooth[:1], law.delay), smooth])[: len(moved)]
        near = np.abs(law.explaining(moved, smooth) - smooth) <= NEAR * (law.high - law.low)
        switched = np.flatnonzero(np.diff(moved)) + 1
        told = float(min(near.mean(), near[switched].mean())) if len(switched) else 0.0
        return LawFit(law, told, 1.0, CONSTANT)

    def _as_recorded(self, moved: FloatArray, reading: FloatArray) -> Relay:
        """The relay in rows or between them, whichever it was in this record (T,), where it does not say."""
        if self.between_rows is not None:
            return self
        known = np.isfinite(reading)
        seen = np.concatenate([np.full(self.delay, np.nan), reading])[: len(moved)]
        said = np.where(seen < self.low, self.below, np.where(seen > self.high, self.above, np.roll(moved, 1)))
        in_rows = bool((said == moved)[1 + self.delay :][known[1 : len(moved) - self.delay]].all())
        return replace(self, between_rows=not in_rows)

    # ---- what it has seen

    def explaining(self, moved: FloatArray, reading: FloatArray) -> FloatArray:
        """The reading (T,) nearest to a given one with which a relay in rows would have moved its input as it did."""
        gap = BESIDE * max(self.high - self.low, abs(self.low), abs(self.high), 1e-300)
        on, before = moved == self.below, np.concatenate([moved[:1], moved[:-1]]) == self.below
        out = np.where(on & ~before, np.minimum(reading, self.low - gap), reading)  # it switched here
        out = np.where(~on & before, np.maximum(out, self.high + gap), out)
        out = np.where(on & before, np.minimum(out, self.high), out)  # it did not
        return np.asarray(np.where(~on & ~before, np.maximum(out, self.low), out))

    def seen(self, moved: FloatArray, reading: FloatArray, worlds: int = 1, seed: int = 0) -> FloatArray:
        """The reading (worlds, T) with which it moved its input as it did: measured in rows, or smooth and between.

        The first is the estimate. The others are what the estimate would be, had the noise been another one: as
        uncertain as the reading is, so uncertain are the relay's switches in a counterfactual.
        """
        if self.switches_in_rows:
            rows, known = np.arange(len(reading)), np.isfinite(reading)
            whole = np.interp(rows, rows[known], reading[known])
            late = np.concatenate([np.repeat(whole[:1], self.delay), whole])[: len(whole)]
            nearest = self.explaining(moved, late)
            told = np.concatenate([nearest[self.delay :], whole[len(whole) - self.delay :]])
            return np.repeat(told[None], worlds, axis=0)
        smooth = Smooth.chosen_for(reading, moved)
        first = smooth(reading, self)
        noise = float(np.nanstd(reading - first))
        rng = np.random.default_rng(seed)
        drawn = [first, *(smooth(first + noise * rng.standard_normal(len(first)), self) for _ in range(worlds - 1))]
        out = np.stack(drawn)
        starts = np.concatenate([[0], np.flatnonzero(np.diff(moved)) + 1, [len(moved)]])
        for first_row, stop in pairwise(starts):
            on = moved[first_row] == self.below
            level, side = (self.high, -1.0) if on else (self.low, 1.0)
            stretch = out[:, first_row:stop]
            out[:, first_row:stop] = level + side * _not_yet(side * (stretch - level), stop < len(moved))
        return out

    def replay(self, record: LoopRecord, worlds: int) -> Replay:
        """It leaves nothing of a record: it is taken to have seen the reading that explains its switches."""
        moved = record.moved
        seen, nothing = self.seen(moved, record.reading, worlds), np.zeros(len(moved))
        return Replay(moved, seen, np.full(len(moved), np.nan), nothing, np.zeros(len(moved), bool))


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
    def chosen_for(cls, reading: FloatArray, moved: FloatArray) -> Smooth:
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
