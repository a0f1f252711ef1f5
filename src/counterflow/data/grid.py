"""When the rows of a table were (order, repeats, gaps, jumps), the regular grid, and columns put on it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import polars
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.data.times import NONE, Times, moment, runs
from counterflow.errors import DataError, OptionError
from counterflow.plant.calendar import SECOND, Calendar

Whole = NDArray[np.int64]

FEW_LEVELS = 10  # a channel with no more different values is discrete
_GAP = 1.5  # a step longer than so many usual ones is a gap
_MOSTLY = 0.9  # a step that so many have is no rounded one: the others are slips of the clock
_ROUND = (60 * SECOND, 10 * SECOND, 5 * SECOND, *(SECOND // 10**n // k for n in range(7) for k in (1, 2)))
_DAY = 86_400 * SECOND
_HOUR = 3600 * SECOND
_MOST_ROWS = 200_000_000
_CHOICES = {
    "resample": ("auto", "mean", "last"), "fill": ("hold", "interpolate"), "long_gaps": ("hold", "longest", "refuse"),
    "text": (None, "refuse", "missing"),
}  # fmt: skip


@dataclass(frozen=True)
class Rules:
    """How a table becomes a regular grid.

    Parameters
    ----------
    dt : float, optional
        Seconds between two rows; by default the usual step of the table.
    start, stop : str or number, optional
        The period to read: from `start`, up to but without `stop`.
    resample : {"auto", "mean", "last"}
        What becomes of several rows in one step of dt. "auto": the mean of continuous outputs, the last value of inputs
        and of discrete outputs.
    fill : {"hold", "interpolate"}
        Missing inputs keep the value before, or lie on the line to the next.
    longest_hold : float, optional
        Seconds (by default ten steps). Where an input is missing for longer, the report raises a doubt.
    long_gaps : {"hold", "longest", "refuse"}
        What then: fill all the same; keep the longest stretch without such a gap; or refuse.
    longest_gap : float, optional
        Seconds. Longer stretches without any row are shortened to this.
    drop_constant : bool
        Leave out channels that never change, and outputs that were never measured.
    text : {"refuse", "missing"}, optional
        What to do with text that is neither a number nor a word for on, off or missing: refuse it, unless units are
        drafted.
    """

    dt: float | None = None
    start: Any = None
    stop: Any = None
    resample: str = "auto"
    fill: str = "hold"
    longest_hold: float | None = None
    long_gaps: str = "hold"
    longest_gap: float | None = None
    drop_constant: bool = True
    text: str | None = None

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if (value := getattr(self, name)) not in allowed:
                raise OptionError(f"{name} is {value!r}: give one of {', '.join(filter(None, allowed))}.")
        for name, least in (("dt", "above 0"), ("longest_hold", "at least 0"), ("longest_gap", "above 0")):
            value = getattr(self, name)
            number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
            if value is not None and not (number and 0 <= value < np.inf and (value or least == "at least 0")):
                raise OptionError(f"{name} is {value!r}: give seconds, {least}.")
        if not isinstance(self.drop_constant, bool):
            raise OptionError(f"drop_constant is {self.drop_constant!r}: give true or false.")


@dataclass(frozen=True)
class Gap:
    """A stretch without rows: the last time before it, the first after it, and how many rows are missing."""

    before: int
    after: int
    rows: int

    @property
    def seconds(self) -> float:
        return (self.after - self.before) / SECOND


@dataclass(frozen=True)
class TimeFacts:
    """What a time column tells, before anything is dropped; times and steps in nanoseconds."""

    rows: int
    untimed: int  # rows without a time
    start: int
    stop: int  # the last time
    step: int  # the median, or, where stamps are rounded, the step that they were rounded from
    regular: float  # share of the steps that are within 1 % of the usual one
    gaps: tuple[Gap, ...]
    duplicates: int  # rows whose time another row before them has
    out_of_order: int  # rows that are earlier than the row before them
    clock_changes: tuple[str, ...]  # jumps of one hour, as daylight saving makes them, in words
    turns: tuple[int, ...] = ()  # the last rows before those of them that go back


def time_facts(times: Times, usual: int | None = None) -> TimeFacts:
    """Count what is irregular. `usual`: the step in nanoseconds, where the rows themselves do not tell it."""
    nanoseconds = times.nanoseconds
    known = nanoseconds[nanoseconds != NONE]
    raw_steps = np.diff(known)
    ordered = known if bool((raw_steps >= 0).all()) else np.sort(known)
    steps = np.diff(ordered)
    positive = steps[steps > 0]
    # of an even number the lower one, so that it is a step that occurs
    step = int(np.partition(positive, (len(positive) - 1) // 2)[(len(positive) - 1) // 2]) if len(positive) else SECOND
    step = usual or _unrounded(ordered, positive, step)
    regular = float((np.abs(positive - step) <= 0.01 * step).mean()) if len(positive) else 1.0
    wide = np.flatnonzero(steps > _GAP * step)
    gaps = tuple(
        Gap(int(ordered[k]), int(ordered[k + 1]), max(1, round(int(steps[k]) / step) - 1)) for k in wide.tolist()
    )
    changes, turns = _clock_changes(times, step)
    return TimeFacts(
        rows=len(nanoseconds), untimed=len(nanoseconds) - len(known), start=int(ordered[0]), stop=int(ordered[-1]),
        step=step, regular=regular, gaps=gaps, duplicates=int((steps == 0).sum()),
        out_of_order=int((raw_steps < 0).sum()), clock_changes=changes, turns=turns,
    )  # fmt: skip


def _unrounded(ordered: Whole, steps: Whole, median: int) -> int:
    """The step of a regular grid whose times were rounded when they were written; the median where they were not.

    Such times are multiples of what they were rounded to, and lie no further than that from a grid. Its step is that of
    the line through the times over the count of steps, made as round as the rounding allows.
    """
    usual = steps[steps <= _GAP * median]
    if len(usual) < 3 or (usual == median).mean() > _MOSTLY:
        return median
    rounding = int(np.gcd.reduce(steps))
    if usual.max() - usual.min() > 2 * rounding or 2 * rounding >= median:
        return median
    counts = np.concatenate(([0.0], np.cumsum(np.round(np.diff(ordered) / usual.mean()))))
    since = (ordered - ordered[0]).astype(np.float64)
    middle = counts - counts.mean()
    step = float(middle @ since / (middle @ middle))
    # the slope is itself uncertain by the rounding over the root of the rows
    if np.ptp(since - counts * step) > rounding * (1 + 4 / np.sqrt(len(since))):
        return median
    for unit in _ROUND:
        near = round(step / unit) * unit
        if near and np.ptp(since - counts * near) <= rounding:
            return int(near)
    return round(step)


def _clock_changes(times: Times, step: int) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Where local time without a zone jumps forth by an hour, or back by up to one, on a Sunday night.

    In words, and the last rows before a jump back. A gap beside the jump makes it look shorter. Single rows that are
    out of order are none.
    """
    if not times.dated or times.zoned or step >= _HOUR:
        return (), ()
    rows = np.flatnonzero(times.nanoseconds != NONE)
    known = times.nanoseconds[rows]
    steps = np.diff(known)
    exact = np.abs(np.abs(steps - step) - _HOUR) <= step // 2
    found, turns = [], []
    for k in np.flatnonzero(exact | ((steps < 0) & (steps >= -_HOUR))).tolist():
        before, word = int(known[k]), "forward" if steps[k] > 0 else "back"
        weekday = (before // _DAY + 3) % 7  # Monday is 0
        if weekday != 6 or before % _DAY >= 4 * _HOUR:
            continue
        if word == "back":
            if not exact[k] and (k + 2 >= len(known) or not known[k + 1] <= known[k + 2] <= before):
                continue
            turns.append(int(rows[k]))
        by = " by an hour" if exact[k] else f" to {times.shown(int(known[k + 1]))}"
        found.append(f"{word}{by} after {times.shown(before)}")
    return tuple(found[:20]), tuple(turns[:20])


@dataclass(frozen=True)
class Grid:
    """Which row of the regular grid each row of the table belongs to."""

    order: Whole | None  # the rows of the table that are kept, in time order; None: all of them as they stand
    bins: Whole  # grid row of each, never falling
    replaced: Whole  # (pairs, 2): rows that were dropped because another has the same time, and those others
    calendar: Calendar  # when the grid rows were
    rows: int
    coarser: bool  # whether several rows of the table usually meet in a grid row

    @cached_property
    def present(self) -> Whole:
        """Grid rows that have data."""
        return self.bins[np.concatenate(([True], np.diff(self.bins) > 0))]

    def stretches(self, longest_hold: int) -> list[tuple[int, int]]:
        """Grid rows from, up to, without a gap of more than `longest_hold` rows."""
        breaks = np.flatnonzero(np.diff(self.present) - 1 > longest_hold) + 1
        return [(int(part[0]), int(part[-1]) + 1) for part in np.split(self.present, breaks)]


def make_grid(
    times: Times, facts: TimeFacts, rules: Rules, keep: NDArray[np.bool_] | None, span: tuple[int, int] | None
) -> Grid:
    """Put the rows to `keep` of a table on a regular grid; `span`: time of row 0, and rows, if tables share it."""
    nanoseconds = times.nanoseconds
    use = nanoseconds != NONE
    if rules.start is not None:
        use &= nanoseconds >= moment(rules.start, times.dated, "start")
    if rules.stop is not None:
        use &= nanoseconds < moment(rules.stop, times.dated, "stop")
    chosen = np.flatnonzero(use if keep is None else use & keep)
    if len(chosen) == 0:
        raise DataError("no row of the table is left between start and stop: check them against its period")
    moments = nanoseconds[chosen]
    if (np.diff(moments) < 0).any():
        by_time = np.argsort(moments, kind="stable")  # so that of equal times the last written comes last
        chosen, moments = chosen[by_time], moments[by_time]
    last = np.concatenate((np.diff(moments) > 0, [True]))
    replaced = np.empty((0, 2), np.int64)
    if not last.all():
        owner = np.flatnonzero(last)[np.searchsorted(np.flatnonzero(last), np.flatnonzero(~last))]
        replaced = np.stack((chosen[~last], chosen[owner]), axis=1)
        chosen, moments = chosen[last], moments[last]
    width = facts.step if rules.dt is None else round(rules.dt * SECOND)
    if width < 1:
        raise DataError(f"dt is {rules.dt!r} seconds: give at least a nanosecond")
    coarser = width >= _GAP * facts.step
    origin = int(moments[0]) if span is None else span[0]
    if span is None and coarser and times.dated and _DAY % width == 0:
        origin -= origin % width  # on the full minute, hour, ...
    # on the table's own step a row belongs to the nearest grid row, so that jitter makes neither repeats nor holes
    shift = 0 if coarser else width // 2
    bins = (moments - origin + shift) // width
    if span is not None:
        inside = (bins >= 0) & (bins < span[1])
        chosen, moments, bins = chosen[inside], moments[inside], bins[inside]
        if len(bins) == 0:
            raise DataError("no row of the table falls into the period that all tables share")
    cuts: list[tuple[int, int]] = []
    if rules.longest_gap is not None:
        most = max(1, round(rules.longest_gap * SECOND / width))
        excess = np.maximum(np.diff(bins) - most - 1, 0)
        bins[1:] -= np.cumsum(excess)
        cuts = [(int(bins[k + 1]) - most, int(excess[k]) * width) for k in np.flatnonzero(excess).tolist()]
    rows = int(bins[-1]) + 1 if span is None else span[1]
    if rows > _MOST_ROWS or rows > 1000 * len(bins) + 1_000_000:
        raise DataError(
            f"with dt {width / SECOND:g} s the {len(bins)} rows of the table spread over {rows} rows: check the time "
            "column, choose a larger dt, or shorten gaps with longest_gap"
        )
    whole = len(chosen) == len(nanoseconds) and bool((chosen == np.arange(len(chosen))).all())
    calendar = Calendar(origin, width, times.zone if times.zoned else "", tuple(cuts))
    return Grid(None if whole else chosen, bins, replaced, calendar, rows, coarser)


def on_grid(values: FloatArray, grid: Grid, resample: str = "auto") -> FloatArray:
    """A column of the table on the grid: NaN in rows that nothing falls into."""
    ordered = values if grid.order is None else values[grid.order]
    known = np.isfinite(ordered)
    bins = grid.bins
    if not known.all():
        ordered, bins = ordered[known], bins[known]
    out = np.full(grid.rows, np.nan)
    if grid.coarser and (resample == "mean" or (resample == "auto" and polars.Series(ordered).n_unique() > FEW_LEVELS)):
        counts = np.bincount(bins, minlength=grid.rows)
        sums = np.bincount(bins, weights=ordered, minlength=grid.rows)
        np.divide(sums, counts, out=out, where=counts > 0)
    else:
        out[bins] = ordered  # of several, the last stays
    return out


def constant_reason(values: FloatArray) -> str:
    """Why nothing can be learned of a column that holds one value, or none; "" of any other."""
    known = values[np.isfinite(values)]
    if len(known) == 0:
        return "no value at all"
    return f"always {known[0]:g}" if known.min() == known.max() else ""


def fill(row: FloatArray, how: str) -> tuple[FloatArray, NDArray[np.int64], int]:
    """An input without holes; the lengths of the holes; and how many rows at the beginning were among them."""
    missing = np.isnan(row)
    if not missing.any():
        return row, np.empty(0, np.int64), 0
    starts, stops = runs(missing)
    known = np.flatnonzero(~missing)
    led = int(known[0])
    if how == "interpolate":
        out = np.interp(np.arange(len(row)), known, row[known])
    else:
        before = np.searchsorted(known, np.arange(len(row)), side="right") - 1
        out = row[known[np.maximum(before, 0)]]
    return out, stops - starts, led
