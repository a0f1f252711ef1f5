"""From a table to a recording on a regular grid, with a report of everything that was done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.data.columns import Numbers, meaning
from counterflow.data.drafts import draft
from counterflow.data.grid import Grid, Rules, TimeFacts, constant_reason, fill, make_grid, on_grid, time_facts
from counterflow.data.inspection import inspect, table_steps
from counterflow.data.notes import Preparation, Step, told
from counterflow.data.options import TableOptions, divided, some, takes
from counterflow.data.selection import Chosen, choose
from counterflow.data.table import Table, opened
from counterflow.data.times import Times, counted, moment, zones_of
from counterflow.errors import DataError, OptionError
from counterflow.plant import Recording, Unit
from counterflow.plant.calendar import SECOND
from counterflow.plant.recording import UnitRecording

_BLOCK = 4096  # rows
_HELD_ROWS = 10  # by default inputs are held over at most so many rows without doubt
_MOST_WORDS = 6  # in one sentence


@takes(Rules, TableOptions)
def read_logs(source: object, units: Mapping[str, Any] | None = None, **options: Any) -> tuple[Recording, Preparation]:
    """Read logs of a plant into a recording, in engineering units, and report everything that was done.

    Parameters
    ----------
    source : path, sequence of paths, or a DataFrame of polars or pandas
        CSV or other delimited text (also gzip), Parquet, Feather, or .xlsx; a folder or a .zip of them. Of Parquet,
        only the columns that are used are read. `counterflow.data.read_sql` and `read_opcua` read other sources.
    units : mapping of unit name to its columns, optional
        Without it, as `draft` understands the tags; the report says how.
        ``{"boiler": {"tags": "P1_*", "inputs": ["*_D"], "exclude": ["P1_note"]}}``. ``tags``, ``inputs``, ``outputs``
        and ``exclude`` are patterns or lists of them: names, wildcards, ``{"regex": "..."}``, a `Channel`, or
        ``{"name": ..., "unit": ..., "limits": ...}``. Without ``outputs``, all tags that are no inputs.
    **options
        How the table is read (`TableOptions`: time, day_first, timezone, separator, ...) and put on a regular grid
        (`Rules`: dt, start, stop, resample, fill, long_gaps, ...).

    Returns
    -------
    Recording
        Missing measurements are NaN.
    Preparation
        What was done.

    Examples
    --------
    >>> import polars
    >>> table = polars.DataFrame(
    ...     {
    ...         "time": ["2024-05-01 06:00", "2024-05-01 06:01", "2024-05-01 06:03"],
    ...         "boiler_valve": [0.0, 0.5, 0.5],
    ...         "boiler_flow": [3.0, 3.5, 3.25],
    ...     }
    ... )
    >>> recording, preparation = read_logs(table, {"boiler": {"tags": "boiler_*", "inputs": "*_valve"}})
    >>> recording
    Recording(4 rows, dt=60, 2024-05-01 06:00 to 06:03, units: boiler, with missing values)
    >>> recording["boiler"].u.ravel().tolist(), recording["boiler"].y.ravel().tolist()
    ([0.0, 0.5, 0.5, 0.5], [3.0, 3.5, nan, 3.25])
    """
    rules, reading = divided(options, Rules, TableOptions)
    table = opened(source, reading)
    if units is not None:
        return prepare(table, choose(units, table.channels, table.measures), rules)
    made = draft(inspect(table))
    if not made.units:
        raise DataError(f"{table.title}: {made.reason}; give units with their inputs and outputs, or another table")
    if "timezone" in made.options:
        table = opened(source, replace(reading, timezone=made.options["timezone"]))
    recording, preparation = prepare(table, made.units, replace(rules, text=rules.text or made.options.get("text")))
    steps = [replace(told("drafted"), numbers=made.to_json())]
    steps += [replace(told("question", question=question), numbers={}) for question in made.questions]
    return recording, replace(preparation, steps=(*preparation.steps, *steps))


def prepare(
    table: Table, units: Sequence[Chosen], rules: Rules | None = None, *, keep: NDArray[np.bool_] | None = None,
    span: tuple[int, int] | None = None,
) -> tuple[Recording, Preparation]:  # fmt: skip
    """Put the chosen columns of a table on a regular grid; see `read_logs`."""
    rules, timed = rules or Rules(), table.times is not None
    if not timed and (rules.start is not None or rules.stop is not None):
        raise OptionError("start and stop need a time column: name it with 'time'.")
    times = table.times or counted(table.rows, rules.dt or 1.0)
    facts = time_facts(times, table.step)
    grid = make_grid(times, facts, rules, keep, span)
    dt = grid.calendar.step / SECOND
    if grid.rows < 2:
        raise DataError(
            f"{table.title}: {grid.rows} row is left with dt {dt:g} s: at least 2 are needed; choose a "
            "smaller dt, or give a longer table"
        )
    hold = _HELD_ROWS if rules.longest_hold is None else int(rules.longest_hold * SECOND / grid.calendar.step)
    stretches = grid.stretches(hold)
    work = _Work(table, grid, rules, hold)
    # the columns of all units in one go: each batch of a text is a pass over the file
    columns = table.batches([column for chosen in units for column in chosen.columns])
    parts = {chosen.name: work.unit(chosen, columns) for chosen in units}
    _refuse_lost_hour(table, times, facts, grid, work.conflicts)
    steps = list(table_steps(table, facts, len(table.channels)))
    steps += [*_grid_steps(table, facts, grid, keep, stretches, hold), *work.steps()]
    recording = Recording(parts, dt, grid.calendar if times.dated else None)
    first, last = 0, grid.rows
    if rules.long_gaps == "longest" and len(stretches) > 1:
        first, last = max(stretches, key=lambda ends: ends[1] - ends[0])
        if last - first < 2:
            raise DataError("no stretch without a long gap has 2 rows: raise longest_hold, or choose a larger dt")
        recording = recording.slice(first, last)
        steps.append(told("longest", first=first, last=last - 1))
        stretches = [(0, last - first)]
    start, stop = (times.shown(grid.calendar.at(k)) if timed else f"row {k}" for k in (first, last - 1))
    return recording, Preparation(
        files=tuple(file.name for file in table.files), rows_read=table.rows, rows=recording.rows,
        dt=dt, start=start, stop=stop, steps=tuple(steps), dropped=work.dropped,
        stretches=tuple(stretches),
    )  # fmt: skip


def _grid_steps(
    table: Table, facts: TimeFacts, grid: Grid, keep: NDArray[np.bool_] | None,
    stretches: Sequence[tuple[int, int]], hold: int,
) -> Iterator[Step]:  # fmt: skip
    """What became of the rows of a table on the grid."""
    cut = 0 if keep is None else int((~keep).sum())
    if keep is not None:
        yield told("cut", rows=cut)
    outside = table.rows - facts.untimed - len(grid.bins) - len(grid.replaced) - cut
    if outside > 0:
        yield told("period", rows=outside)
    if grid.coarser:
        yield told("resample", dt=grid.calendar.step / SECOND)
    elif met := len(grid.bins) - len(grid.present):
        yield told("jitter", rows=met)
    if absent := grid.rows - len(grid.present):
        yield told("gaps", rows=absent, all=grid.rows, share=100 * absent / grid.rows)
    if jumps := grid.calendar.jumps:
        yield told("shorten", gaps=len(jumps), hours=sum(extra for _, extra in jumps) / SECOND / 3600)
    if len(stretches) > 1:
        longest = max(stop - start for start, stop in stretches)
        yield told("stretches", hold=hold, stretches=len(stretches), longest=longest)


def _refuse_lost_hour(table: Table, times: Times, facts: TimeFacts, grid: Grid, conflicts: NDArray[np.bool_]) -> None:
    """Refuse to drop what was measured in an hour that came twice, because nobody said which clock was read."""
    for turn in facts.turns:
        lost = int((conflicts & (grid.replaced[:, 0] <= turn) & (grid.replaced[:, 1] > turn)).sum())
        if lost:
            zones = ", ".join(zones_of(times, facts.turns))
            raise DataError(
                f"{table.title}: the clock goes back after {times.shown(int(times.nanoseconds[turn]))}, as daylight "
                f"saving time does, and {lost} rows of the hour that comes twice would be lost: give the time zone "
                f"with the option timezone{f'; it may be {zones}' if zones else ''}; or UTC, if the clock was not "
                "changed and the last row of each time shall stay",
                code="clock-change",
            )


def align(
    tables: Mapping[str, Table], units: Mapping[str, Chosen], rules: Rules | None = None
) -> tuple[Recording, dict[str, Preparation]]:
    """A recording of the period that all tables share."""
    rules = rules or Rules()
    if rules.longest_gap is not None or rules.long_gaps == "longest":
        raise OptionError(
            "longest_gap and long_gaps = 'longest' need one table of all units: they would cut each its way."
        )
    times: dict[str, Times] = {}
    for name, table in tables.items():
        if table.times is None:
            raise DataError(f"the log of unit {name!r} has no time column: name it with 'time'")
        times[name] = table.times
    facts = {name: time_facts(column, tables[name].step) for name, column in times.items()}
    kinds = {(column.dated, column.zoned) for column in times.values()}
    if len(kinds) > 1:
        raise DataError("some logs tell a time zone or date and others do not: write all times in one way")
    dated = kinds.pop()[0]
    first = max(facts, key=lambda name: facts[name].start)
    last = min(facts, key=lambda name: facts[name].stop)
    start, stop = facts[first].start, facts[last].stop
    if rules.start is not None:
        start = max(start, moment(rules.start, dated, "start"))
    if rules.stop is not None:
        stop = min(stop, moment(rules.stop, dated, "stop") - 1)
    width = round(rules.dt * SECOND) if rules.dt is not None else max(found.step for found in facts.values())
    if dated and 86_400 * SECOND % width == 0 and any(width >= 1.5 * found.step for found in facts.values()):
        start += -start % width  # on the full minute, hour, ...
    rows = (stop - start) // width + 1
    if rows < 2:
        raise DataError(
            f"the logs share no period of 2 rows: that of unit {first!r} begins at "
            f"{times[first].shown(facts[first].start)}, that of unit {last!r} ends at "
            f"{times[last].shown(facts[last].stop)}"
        )
    own = replace(rules, dt=width / SECOND, start=None, stop=None)
    found = {name: prepare(table, [units[name]], own, span=(start, rows)) for name, table in tables.items()}
    parts = {name: recording[name] for name, (recording, _) in found.items()}
    calendar = found[last][0].calendar
    return Recording(parts, width / SECOND, calendar), {name: report for name, (_, report) in found.items()}


# ---- one column, one unit


class _Work:
    """Columns on their way onto the grid, and what is to be told of each, by kind of note."""

    def __init__(self, table: Table, grid: Grid, rules: Rules, hold: int) -> None:
        self.table, self.grid, self.rules, self.hold = table, grid, rules, hold
        self.conflicts = np.zeros(len(grid.replaced), np.bool_)
        self.seen: dict[str, dict[str, Any]] = {}
        self.examples: dict[str, dict[str, int]] = {"states": {}, "marked": {}}
        self.sentinels: dict[float, dict[str, int]] = {}
        self.dropped: dict[str, dict[str, str]] = {}  # by unit, why columns were left out

    def note(self, kind: str, column: str, seen: Any) -> None:
        """Something to be told of a column, if there is something."""
        if seen:
            self.seen.setdefault(kind, {})[column] = seen

    def unit(self, chosen: Chosen, columns: Iterator[tuple[str, Numbers]]) -> UnitRecording:
        """A unit of the next columns, which are its own."""
        found: dict[str, FloatArray] = {}
        dropped = self.dropped[chosen.name] = {}
        inputs = {column for column, _ in chosen.inputs}
        for column, numbers in islice(columns, len(chosen.columns)):
            values = self.cleaned(column, numbers)
            how = "last" if column in inputs and self.rules.resample == "auto" else self.rules.resample
            row = on_grid(values, self.grid, how)
            if self.rules.drop_constant and (reason := constant_reason(row)):
                dropped[column] = reason
            elif column in inputs and np.isnan(row).all():
                raise DataError(f"unit {chosen.name!r}: input {column!r} has no value at all: leave it out")
            else:
                found[column] = self.filled(row, chosen.name, column) if column in inputs else row
        left = [[pair for pair in side if pair[0] not in dropped] for side in (chosen.inputs, chosen.outputs)]
        if not left[1]:
            column, reason = next(iter(dropped.items()))
            raise DataError(
                f"unit {chosen.name!r}: no output is left: {column!r} is {reason}"
                + (f", and {len(dropped) - 1} more" if len(dropped) > 1 else "")
                + "; name other outputs, or leave the unit out"
            )
        for column, reason in dropped.items():
            self.note("dropped", column, reason)
        for column, channel in (*chosen.inputs, *chosen.outputs):
            self.note("renamed", column, channel.name if channel.name != column else "")
        u, y = (_side_by_side([found[column] for column, _ in side], self.grid.rows) for side in left)
        described = Unit(chosen.name, chosen.states, *([channel for _, channel in side] for side in left))
        return UnitRecording(y, u, described)

    def cleaned(self, column: str, numbers: Numbers) -> FloatArray:
        """A column's numbers, of which infinite ones are missing."""
        if numbers.odd_count and self.rules.text != "missing":
            self.table.refuse_text(column, numbers)
        self.note("text", column, numbers.odd_count)
        for kind, examples in self.examples.items():
            words = {word: n for word, n in numbers.words.items() if np.isnan(meaning(word) or 0) == (kind == "marked")}
            examples |= words
            self.note(kind, column, sum(words.values()))
        for value, count in numbers.sentinels.items():
            self.sentinels.setdefault(value, {})[column] = count
        infinite = np.isinf(numbers.values)
        self.note("infinite", column, int(infinite.sum()))
        values = np.where(infinite, np.nan, numbers.values) if infinite.any() else numbers.values
        if len(self.grid.replaced):
            old, new = values[self.grid.replaced[:, 0]], values[self.grid.replaced[:, 1]]
            self.conflicts |= (old != new) & ~(np.isnan(old) & np.isnan(new))
        return values

    def filled(self, row: FloatArray, unit: str, column: str) -> FloatArray:
        """An input without holes."""
        found, lengths, led = fill(row, self.rules.fill)
        long = int(lengths[lengths > self.hold].sum())
        if long and self.rules.long_gaps == "refuse":
            raise DataError(
                f"unit {unit!r}: input {column!r} is missing for {int(lengths.max())} rows in a row, more than "
                f"longest_hold allows ({self.hold}): raise it, leave the input out, or cut the table with start and "
                "stop"
            )
        self.note("held" if self.rules.fill == "hold" else "interpolated", column, int(lengths.sum()))
        self.note("unknown inputs", column, long)
        self.note("beginning", column, led)
        return found

    def steps(self) -> Iterator[Step]:
        """What was done to columns and their cells."""

        def of(*kinds: str) -> Iterator[Step]:
            for kind in kinds:
                if kind in self.seen:
                    examples = some([repr(word) for word in self.examples.get(kind, ())], _MOST_WORDS)
                    yield told(kind, self.seen[kind], examples=examples, hold=self.hold)

        yield from of("renamed")
        if repeated := len(self.grid.replaced):
            conflicts = int(self.conflicts.sum())
            kind = "conflicts" if conflicts else "duplicates"
            yield told(kind, name="duplicates", rows=repeated, conflicts=conflicts)
        yield from of("states", "marked", "text")
        for value, columns in sorted(self.sentinels.items()):
            yield told("sentinel", columns, value=value)
        yield from of("infinite", "dropped", "held", "interpolated", "unknown inputs", "beginning")


def _side_by_side(columns: Sequence[FloatArray], rows: int) -> FloatArray:
    """Columns as a read-only array, time first; block by block, because whole columns would cross the memory each."""
    out = np.empty((rows, len(columns)))
    for start in range(0, rows, _BLOCK):
        for k, column in enumerate(columns):
            out[start : start + _BLOCK, k] = column[start : start + _BLOCK]
    out.flags.writeable = False  # so that the recording need not copy it
    return out
