"""Which readings of a unit's sensors are to be believed: found in the measurements themselves, channel by channel.

A spike jumps away for at most three readings and comes back. A stuck sensor repeats one reading exactly, far longer
than it does otherwise. A saturated sensor repeats the largest or smallest value that it has. A held log repeats the
last reading of a slow sensor until the next one arrives. A quantised sensor has few values, a step apart.

What is usual is learned from the channel itself. A reading is far outside where an exponential tail through the median
and the upper 2.5 % of what is usual would reach in one of ten thousand records. So noise with tails like Laplace's is
believed, and spikes hide themselves only if they are many (2.5 % of the readings). A running median follows a step and
leaves out what does not last, so that a step is no spike. A channel of few values, such as the feedback of a valve with
two positions, may stay where it is: in it only spikes are looked for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray

LEAST = 50  # readings: a channel with fewer is not judged
USUAL = 0.975  # share of readings, or of runs of equal readings, that are usual
RARE = 1e-4  # share of records with a false finding, if the tail beyond the usual is exponential
FEW = 10  # different values: with fewer, a channel is judged for spikes only

WIDEST = 3  # readings of a spike, at most
BESIDE = 6  # readings before a spike and after it that it must stand out of
ALOOF = 1.5  # times the range of those, by which it must stand out
ABSURD = 100  # times the range of the channel: at the ends of a record, a spike is as far out of it
JUMPS = 1.5  # times the highest jump that lasts: a spike is higher
STEPS = 5  # of quantisation: a spike is higher
PULSES = 3  # of an input: with fewer, it is not taken for the cause of a channel's pulses

CREEPS, LEAPS = 0.01, 6.0  # times the usual move: one that is smaller or larger is no usual one
SHORT_RUN = 8  # equal readings in a row that are always believed
LASTING = 3  # steps of quantisation: a sensor that was stuck jumps by more
REPEATS = 5  # readings at an end of the range, and times as often as at other values: with fewer, it is not saturated
AT_A_LIMIT = 3  # readings at an end that was declared as a limit: with fewer, it is not saturated
RESTS = 0.2  # share of the readings: with more at one end, the channel is taken to rest there
SAME = 1e-9  # times the range: readings that differ by less are the same but for rounding

FRESH = 20  # changes: with fewer, a log is not called held
LEVELS = 6  # different values: with fewer, a sensor is not called quantised
ON_GRID = 0.95  # share of the readings that must be whole steps apart
COARSE = 0.4  # times the usual move: a smaller step is not told

Kind = str
SPIKE, STUCK, SATURATED, HELD, QUANTISED = KINDS = ("spike", "stuck", "saturated", "held", "quantised")
Rows = NDArray[np.intp]
BoolArray = NDArray[np.bool_]
_BELIEVED, _SPIKE, _STUCK, _LOW, _HIGH, _HELD = range(6)  # why a reading is left out
_KIND_OF = {_SPIKE: SPIKE, _STUCK: STUCK, _LOW: SATURATED, _HIGH: SATURATED, _HELD: HELD}


@dataclass(frozen=True)
class Finding:
    """What one channel's sensor or log did.

    ``count``: readings that are left out, of a quantised sensor those that there are; ``first``, ``last``: their rows.
    ``detail``: spike: the reading that is farthest out; stuck: readings of the longest run; saturated: the value; held:
    rows from reading to reading, 0 if they come irregularly; quantised: the step.
    """

    channel: int
    kind: Kind
    count: int
    first: int
    last: int
    detail: float


@dataclass(frozen=True, eq=False)
class Judged:
    """Measurements (T+1, D) with NaN where a reading is left out, and why."""

    values: FloatArray
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Sensor:
    """What a record has told of the sensor of one channel; rows that come later are judged by it, however few.

    Believed readings lie between ``low`` and ``high``; ``movement``: median move from a reading to another one.
    ``height``: from which a jump away and back is a spike; None: none is. ``step`` of quantisation, 0: none that would
    matter; ``coarse``: whether it is large beside the movement. ``clipped``: whether readings at ``low`` and ``high``
    are saturated. ``longest``: equal readings in a row that are still believed; None: any number. ``period``: rows from
    reading to reading of a held log; 1: they come irregularly, 0: it is not held.
    """

    low: float = 0.0
    high: float = 0.0
    movement: float = 0.0
    height: float | None = None
    step: float = 0.0
    coarse: bool = False
    clipped: tuple[bool, bool] = (False, False)
    longest: int | None = None
    period: int = 0

    @classmethod
    def of(cls, rows: Rows, v: FloatArray, limits: tuple[float, float] | None, pulses: _Pulses) -> Sensor:
        """From the readings v (n,) of one channel, in these rows."""
        if len(v) < LEAST:
            return cls()
        period = _period(rows, v)
        if period:
            kept = _fresh(rows, v, period)
            rows, v = rows[kept], v[kept]
            if len(v) < LEAST:
                return cls(period=period)
        step, levels = _grid(v)
        height, low, high = _height(rows, v, step, pulses)
        v = v[~_spikes(v, height, low, high)]
        low, high = float(v.min()), float(v.max())
        moves = np.abs(np.diff(v))
        moving = moves[moves > 0]
        if not len(moving):
            return cls(low, high, 0.0, height, step, period=period)
        movement = float(_quantiles(moving, (0.5,))[0])
        coarse = levels >= LEVELS and step > COARSE * movement
        found = cls(low, high, movement, height, step, coarse, period=period)
        if len(np.unique(v[: 10 * FEW])) < FEW and len(np.unique(v)) < FEW:
            return found
        ends = limits or (-math.inf, math.inf)
        clipped = found._is_clipped(v, low, low == ends[0]), found._is_clipped(v, high, high == ends[1])
        for end, cut in zip((low, high), clipped, strict=True):
            v = v[v != end] if cut else v
        return replace(found, clipped=clipped, longest=_longest(v, step))

    def reasons(self, rows: Rows, v: FloatArray) -> NDArray[np.int8]:
        """Why each of the readings v (n,) in these rows is left out; 0: it is not."""
        why = np.zeros(len(v), np.int8)
        kept = _fresh(rows, v, self.period)
        why[~kept] = _HELD
        at = np.flatnonzero(kept)
        v = v[at]
        why[at[_spikes(v, self.height, self.low, self.high)]] = _SPIKE
        for end, code, cut in zip((self.low, self.high), (_LOW, _HIGH), self.clipped, strict=True):
            if cut:
                why[at[v == end]] = code
        if self.longest is not None:
            why[at[self._is_stuck(v) & (why[at] == _BELIEVED)]] = _STUCK
        return why

    def _as_it_moves(self, moves: FloatArray) -> BoolArray:
        """Which moves are of the usual size: neither leaps nor the end of a slow approach."""
        return np.asarray((moves >= CREEPS * self.movement) & (moves <= LEAPS * self.movement))

    def _is_clipped(self, v: FloatArray, end: float, declared: bool) -> bool:
        """Whether readings at the end of the range are saturated.

        A signal that is cut off reaches its end as it moves elsewhere. One that leaps there (a flow whose pump is
        switched off), creeps there or is there for long rests there, and is believed.
        """
        here = v == end
        count = int(here.sum())
        if count < (AT_A_LIMIT if declared else REPEATS) or count > RESTS * len(v):
            return False
        reached = np.abs(np.diff(v))[here[1:] != here[:-1]]
        if not len(reached) or not self._as_it_moves(np.median(reached)):
            return False
        inside = v[(v != self.low) & (v != self.high)]
        # how many readings share the value of each; a periodic signal comes back to its values but for rounding
        places = np.round((inside - self.low) / (SAME * (self.high - self.low)))
        _, value, counts = np.unique(places, return_inverse=True, return_counts=True)
        return count > (1 if declared else REPEATS) * float(np.quantile(counts[value], 0.75))

    def _is_stuck(self, v: FloatArray) -> BoolArray:
        """Which readings repeat the one before, in runs that are too long.

        A sensor gets stuck as it moves. One that leaps to a value and stays there shows something that rests; so does
        one that stays at an end of its range (an empty tank), and a quantised one that then goes on by a step or two.
        """
        assert self.longest is not None
        out = np.zeros(len(v), bool)
        if len(v) - _changes(v) < self.longest:
            return out
        runs = _runs(v)
        long = np.flatnonzero(np.diff(runs) > self.longest)
        start, stop = runs[long], runs[long + 1]
        good = self._as_it_moves(np.abs(v[start] - v[start - 1])) | (start == 0)
        good &= (v[start] != self.low) & (v[start] != self.high)
        if self.step:
            after = np.minimum(stop, len(v) - 1)
            good &= (stop < len(v)) & (np.abs(v[after] - v[start]) > LASTING * self.step)
        for first, end in zip(start[good].tolist(), stop[good].tolist(), strict=True):
            out[first + 1 : end] = True
        return out


def sensors_of(
    y: FloatArray, limits: Sequence[tuple[float, float] | None] | None = None, u: FloatArray | None = None
) -> tuple[Sensor, ...]:
    """Ask a record what its sensors do, one for each channel of y (T+1, D).

    ``limits``: the range that was declared of each channel, or None. ``u`` (T+1, U): inputs of the same unit; where one
    of them goes away and comes back, a channel may do the same.
    """
    ends = [None] * y.shape[1] if limits is None else list(limits)
    pulses = _Pulses(u)
    return tuple(Sensor.of(*_present(y[:, k]), end, pulses) for k, end in enumerate(ends))


def judged(sensors: Sequence[Sensor], y: FloatArray) -> Judged:
    """The readings of rows (T+1, D) that are to be believed, and what speaks against the others."""
    out, findings = y, list[Finding]()
    for k, sensor in enumerate(sensors):
        rows, v = _present(y[:, k])
        why = sensor.reasons(rows, v)
        lost = np.flatnonzero(why)
        if sensor.coarse and len(v):
            findings.append(Finding(k, QUANTISED, len(v), int(rows[0]), int(rows[-1]), sensor.step))
        if not len(lost):
            continue
        if out is y:
            out = y.copy()
        out[rows[lost], k] = np.nan
        for code, kind in _KIND_OF.items():
            at = np.flatnonzero(why == code)
            if len(at):
                detail = _detail(sensor, code, v, why, at)
                findings.append(Finding(k, kind, len(at), int(rows[at[0]]), int(rows[at[-1]]), detail))
    return Judged(out, tuple(findings))


def _detail(sensor: Sensor, code: int, v: FloatArray, why: NDArray[np.int8], at: Rows) -> float:
    if code == _HELD:
        return float(sensor.period) if sensor.period > 1 else 0.0
    if code == _STUCK:  # what is held belongs to no run of its own
        edges = _edges(np.flatnonzero(why[why != _HELD] == _STUCK))
        return float(np.diff(edges).max()) + 1
    if code != _SPIKE:
        return float(v[at[0]])
    return float(v[at[np.abs(v[at] - (sensor.low + sensor.high) / 2).argmax()]])


class _Pulses:
    """Rows in which inputs (T+1, U) go away and come back, as spikes do; found when first asked for."""

    def __init__(self, u: FloatArray | None) -> None:
        self._u = np.zeros((0, 0)) if u is None else u
        self._spans: list[tuple[Rows, Rows]] | None = None

    def explain(self, rows: Rows, doubtful: BoolArray) -> BoolArray:
        """Which doubtful readings follow pulses of an input, most of which are followed by some."""
        out = np.zeros_like(doubtful)
        if self._spans is None:
            self._spans = [_pulses(self._u[:, k]) for k in range(self._u.shape[1])]
        for first, last in self._spans:
            begin, end = np.searchsorted(rows, first), np.searchsorted(rows, last)
            total = np.concatenate([[0], doubtful.cumsum()])
            followed = total[end] > total[begin]
            if len(first) >= PULSES and 2 * followed.sum() > len(first):
                for one, other in zip(begin, end, strict=True):
                    out[one:other] = True
        return out & doubtful


def _pulses(u: FloatArray) -> tuple[Rows, Rows]:
    """First row and end of what follows each pulse of an input."""
    away = np.abs(u - _medians(u))
    away[:7] = away[-7:] = 0.0  # nobody sees what comes back there
    at = np.flatnonzero(away > _beyond(away))
    edges = _edges(at)
    return at[edges[:-1]], at[edges[1:] - 1] + WIDEST + 1


def _present(column: FloatArray) -> tuple[Rows, FloatArray]:
    """Rows of a channel that have a reading, and the readings."""
    known = np.isfinite(column)
    return np.flatnonzero(known), np.ascontiguousarray(column[known])


def _beyond(x: FloatArray) -> float:
    """What x (n,) exceeds by chance in few records: an exponential tail through its median and upper 2.5 %."""
    n = len(x)
    if not n:
        return math.inf
    middle, usual = _quantiles(x, (0.5, USUAL))
    return float(middle + (usual - middle) / math.log(0.5 / (1 - USUAL)) * math.log(0.5 * n / RARE))


def _quantiles(x: FloatArray, shares: Sequence[float]) -> FloatArray:
    """Of x (n,); of very long records every few readings say as much as all."""
    some = x[:: 1 + len(x) // 200_000]
    places = [int(share * (len(some) - 1)) for share in shares]
    return np.asarray(np.partition(some, places)[places])


def _edges(at: Rows) -> Rows:
    """Where runs of consecutive whole numbers begin, and the end."""
    return np.concatenate([[0][: len(at)], 1 + np.flatnonzero(np.diff(at) > 1), [len(at)]]).astype(np.intp)


def _changes(v: FloatArray) -> int:
    """How many readings differ from the one before."""
    return int(np.count_nonzero(v[1:] != v[:-1]))


def _runs(v: FloatArray) -> Rows:
    """Where runs of equal readings begin, and the end."""
    return np.concatenate([[0], 1 + np.flatnonzero(v[1:] != v[:-1]), [len(v)]]).astype(np.intp)


# ---- held logs


def _period(rows: Rows, v: FloatArray) -> int:
    """Rows from reading to reading of a held log; 1 if they come irregularly, 0 if it is none."""
    changes = _changes(v)
    if changes < FRESH or changes > 0.6 * len(v):
        return 0
    runs = _runs(v)
    starts = runs[1:-1]  # readings that differ from the one before
    distinct = len(np.unique(v[starts]))
    if distinct < FEW:
        return 0
    regular = _regular(rows, rows[starts])
    if regular:
        return regular
    often = np.median(np.diff(runs)) >= 2
    if not often:
        return 0
    fresh = distinct / len(starts)
    step, _ = _grid(v[runs[:-1]])
    far = step == 0 or np.median(np.abs(np.diff(v[runs[:-1]]))) >= STEPS * step
    return int(fresh >= 0.9 or (fresh >= 0.5 and far))


def _regular(rows: Rows, changes: Rows) -> int:
    """The largest n for which readings change in every n-th row and hardly ever in another; 0 if there is none."""
    gaps, counts = np.unique(np.diff(changes), return_counts=True)
    for n in np.sort(gaps[(gaps > 1) & (counts >= 0.05 * counts.sum())])[::-1].tolist():
        rates = np.bincount(changes % n, minlength=n) / np.maximum(np.bincount(rows % n, minlength=n), 1)
        rates.sort()
        if rates[-1] * len(rows) / n >= FRESH and rates[-2] <= 0.2 * rates[-1] and rates[:-1].mean() <= 0.1:
            return int(n)
    return 0


def _fresh(rows: Rows, v: FloatArray, period: int) -> BoolArray:
    """Which readings of a held log are readings; those of a log that is not held all are."""
    if not period or not len(v):
        return np.ones(len(v), bool)
    changed = np.concatenate([[False], v[1:] != v[:-1]])
    if period == 1 or not changed.any():
        return changed
    return np.asarray(rows % period == np.bincount(rows[changed] % period).argmax())


# ---- quantisation


def _grid(v: FloatArray) -> tuple[float, int]:
    """The step between the values of a channel and how many there are; 0 if it is finer than it moves."""
    if _changes(v) > 0.99 * len(v):
        return 0.0, 0
    values, counts = np.unique(v, return_counts=True)
    order = np.argsort(-counts, kind="stable")  # the commonest values: others may be spikes, or lines over a gap
    common = order[: 1 + int(np.searchsorted(counts[order].cumsum(), ON_GRID * len(v)))]
    often = np.sort(values[common])
    if len(often) < 2:
        return 0.0, 0
    gaps = np.diff(often)
    gaps = gaps[gaps > SAME * (often[-1] - often[0])]
    for step in np.quantile(gaps, (0.5, 0.25, 0.05), method="nearest").tolist():
        places = (values - often[0]) / step
        if counts[np.abs(places - np.round(places)) < 0.02].sum() >= ON_GRID * len(v):
            return step, len(often)
    return 0.0, 0


# ---- spikes


def _medians(v: FloatArray) -> FloatArray:
    """Running median of seven readings, three on either side; beyond the ends stands the median of the last seven."""
    if len(v) < 7:
        return np.full(len(v), np.median(v)) if len(v) else v
    from scipy.ndimage import median_filter

    first, last = (np.full(WIDEST, np.median(end)) for end in (v[:7], v[-7:]))
    return np.asarray(median_filter(np.concatenate([first, v, last]), 7)[WIDEST:-WIDEST])


def _height(rows: Rows, v: FloatArray, step: float, pulses: _Pulses) -> tuple[float | None, float, float]:
    """From which height on a jump away and back is a spike (None: none is), and the range of what is none."""
    median = _medians(v)
    away = np.abs(v - median)
    usual = max(_beyond(away), STEPS * step)
    doubtful = away > usual
    if not doubtful.any():
        lasting = float(np.abs(np.diff(median)).max())
        return max(usual, JUMPS * lasting) or None, float(v.min()), float(v.max())
    doubtful &= ~pulses.explain(rows, doubtful)
    near = np.convolve(doubtful, np.ones(2 * BESIDE + 1), "same") > 0.5
    jumps = np.abs(np.diff(median))[~(near[1:] | near[:-1])]
    lasting = max(float(jumps.max(initial=0.0)), float(away[~doubtful].max(initial=0.0)))
    believed = v[~doubtful] if not doubtful.all() else v
    return max(usual, JUMPS * lasting) or None, float(believed.min()), float(believed.max())


def _spikes(v: FloatArray, height: float | None, low: float, high: float) -> BoolArray:
    """Which readings jump away by more than ``height``, for three readings at most, and come back.

    Each stands out of the readings beside it by more than these differ among themselves. A jump that dies away is an
    event of the plant. At the ends of a record nobody sees whether a reading comes back, and a step looks the same:
    there, a spike is absurdly far out of the range of the channel.
    """
    out = np.zeros(len(v), bool)
    if height is None or len(v) < 2 or not (np.abs(np.diff(v)) > height / 2).any():
        return out
    doubtful = np.abs(v - _medians(v)) > height
    at, calm = np.flatnonzero(doubtful), np.flatnonzero(~doubtful)
    if not len(at) or not len(calm):
        return out
    starts = _edges(at)
    widths, starts = np.diff(starts), starts[:-1]
    before = np.searchsorted(calm, at[starts])
    beside = before[:, None] + np.arange(-BESIDE, BESIDE)
    there = (beside >= 0) & (beside < len(calm))
    values = v[calm[np.clip(beside, 0, len(calm) - 1)]]
    least = np.where(there, values, math.inf).min(axis=1)
    most = np.where(there, values, -math.inf).max(axis=1)
    group = np.repeat(np.arange(len(widths)), widths)
    above = v[at] - most[group]
    beyond = np.maximum(above, least[group] - v[at])
    needed = np.maximum(ALOOF * (most - least), height / 2)
    at_an_end = (before == 0) | (before == len(calm))
    far = np.maximum(low - v[at], v[at] - high) >= max(ABSURD * (high - low), height)
    good = (np.minimum.reduceat(beyond, starts) >= needed) & (widths <= WIDEST)
    good &= ~at_an_end | np.logical_and.reduceat(far, starts)
    first, last = beyond[starts], beyond[starts + widths - 1]
    same_side = (above[starts] > 0) == (above[starts + widths - 1] > 0)
    good &= ~(same_side & (last < first / 2) & (first >= np.maximum.reduceat(beyond, starts)))
    out[at[good[group]]] = True
    return out


# ---- stuck sensors


def _longest(v: FloatArray, step: float) -> int | None:
    """Equal readings in a row that are still believed; None: any number."""
    changes = _changes(v)
    if changes < FRESH:
        return None
    if len(v) - changes < SHORT_RUN:
        return SHORT_RUN
    runs = _runs(v)
    lengths = np.diff(runs)
    longest = max(SHORT_RUN, math.ceil(_beyond(lengths.astype(float))))
    long = v[runs[:-1]][lengths > (longest if step else SHORT_RUN)]
    return None if len(np.unique(long)) < len(long) else longest  # it rests at a value that it comes back to
