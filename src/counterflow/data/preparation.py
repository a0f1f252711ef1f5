"""From a table to a recording on a regular grid, with a report of everything that was done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.data.drafts import draft
from counterflow.data.grid import Grid, Rules, TimeFacts, fill, make_grid, on_grid, row_grid, time_facts
from counterflow.data.inspection import inspect
from counterflow.data.report import Counts, Preparation, Step, describe_names, describe_rows, describe_values
from counterflow.data.selection import Chosen, choose, suggestion
from counterflow.data.table import Numbers, Table, open_table, refuse_text
from counterflow.data.times import SECOND, Times, moment, zones_of
from counterflow.errors import DataError, OptionError
from counterflow.plant import Recording, Unit
from counterflow.plant.calendar import Calendar
from counterflow.plant.recording import UnitRecording

_BLOCK = 4096  # rows
_HELD_ROWS = 10  # by default inputs are held over at most so many rows without doubt
TABLE_OPTIONS = tuple(open_table.__kwdefaults__ or ())  # its keywords


def read_logs(
    source: object, units: Mapping[str, Any] | None = None, *, dt: float | None = None, start: object = None,
    stop: object = None, resample: str = "auto", fill: str = "hold", longest_hold: float | None = None,
    long_gaps: str = "hold", longest_gap: float | None = None, drop_constant: bool = True, text: str | None = None,
    time: str | None = None, time_format: str | None = None, day_first: bool | None = None,
    timezone: str | None = None, separator: str | None = None, decimal: str | None = None, encoding: str | None = None,
    skip_rows: int = 0, skip_after_header: int | None = None, header_word: str | None = None, tag: str | None = None,
    value: str | None = None, quality: str | None = None, sheet: str | None = None, sentinels: bool = True,
    **unknown: Any,
) -> tuple[Recording, Preparation]:  # fmt: skip
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
    dt : float, optional
        Seconds between two rows; by default the usual step of the table.
    time, time_format, day_first, timezone, separator, decimal, encoding, skip_rows, skip_after_header, header_word
        See `open_table`.
    tag, value, quality, sheet, sentinels
        See `open_table`.
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
    for name in unknown:
        known = (*TABLE_OPTIONS, *Rules.__dataclass_fields__)
        raise OptionError(f"option {name!r} is not known: {suggestion(name, known)}")
    rules = Rules(
        dt, start, stop, resample, fill, longest_hold, long_gaps, longest_gap, drop_constant,
        "refuse" if text is None else text,
    )  # fmt: skip
    opened = partial(
        open_table, source, time=time, time_format=time_format, day_first=day_first, separator=separator,
        decimal=decimal, encoding=encoding, skip_rows=skip_rows, skip_after_header=skip_after_header,
        header_word=header_word, tag=tag, value=value, quality=quality, sheet=sheet, sentinels=sentinels,
    )  # fmt: skip
    table = opened(timezone=timezone)
    if units is not None:
        return prepare(table, choose(units, table.channels, table.measures), rules)
    made = draft(inspect(table))
    if not made.units:
        raise DataError(f"{table.title}: {made.reason}; give units with their inputs and outputs, or another table")
    if "text" in made.options and text is None:
        rules = replace(rules, text=made.options["text"])
    if "timezone" in made.options:
        table = opened(timezone=made.options["timezone"])
    recording, preparation = prepare(table, choose(made.selections, table.channels, table.measures), rules)
    steps = [Step("drafted", "Units, inputs and outputs were found from the tags.", made.to_json())]
    steps += [Step("question", question, doubt=True) for question in made.questions]
    return recording, replace(preparation, steps=(*preparation.steps, *steps))


def prepare(
    table: Table, units: Sequence[Chosen], rules: Rules | None = None, *, keep: NDArray[np.bool_] | None = None,
    span: tuple[int, int] | None = None,
) -> tuple[Recording, Preparation]:  # fmt: skip
    """Put the chosen columns of a table on a regular grid; see `read_logs`.

    Parameters
    ----------
    table : Table
    units : sequence of Chosen
    rules : Rules, optional
    keep : (rows,) array of bool, optional
        Rows of the table to use.
    span : (int, int), optional
        Time of row 0 in nanoseconds and number of rows, for recordings of several tables that shall fit together.

    Examples
    --------
    >>> import polars
    >>> table = open_table(polars.DataFrame({"time": [0, 1, 2, 3], "flow": [1.0, 2.0, 9.0, 4.0]}))
    >>> keep = np.array([True, True, False, True])
    >>> recording, _ = prepare(table, choose({"pump": "flow"}, table.channels), keep=keep)
    >>> recording["pump"].y.ravel().tolist()
    [1.0, 2.0, nan, 4.0]
    """
    rules = rules or Rules()
    times = table.times
    facts = time_facts(times, table.step) if times is not None else None
    if times is not None and facts is not None:
        grid = make_grid(times, facts, rules, keep, span)
    else:
        if rules.start is not None or rules.stop is not None:
            raise OptionError("start and stop need a time column: name it with 'time'.")
        grid = row_grid(table.rows, rules.dt or 1.0, keep)
    hold = _HELD_ROWS if rules.longest_hold is None else int(rules.longest_hold * SECOND / grid.dt)
    stretches = grid.stretches(hold)
    if grid.rows < 2:
        raise DataError(
            f"{table.title}: {grid.rows} row is left with dt {grid.dt / SECOND:g} s: at least 2 are needed; choose a "
            "smaller dt, or give a longer table"
        )
    steps = list(describe_rows(table, times, facts, grid, keep, stretches, hold))
    counts = Counts(np.zeros(len(grid.replaced), np.bool_))
    parts: dict[str, UnitRecording] = {}
    dropped: dict[str, dict[str, str]] = {}
    # the columns of all units in one go: each batch of a text is a pass over the file
    columns = table.batches([column for chosen in units for column in chosen.columns])
    for chosen in units:
        parts[chosen.name], dropped[chosen.name] = _unit(table, columns, chosen, grid, rules, hold, counts)
    if times is not None and facts is not None:
        _refuse_lost_hour(table, times, facts, grid, counts)
    steps += describe_names(units)
    steps += describe_values(grid, counts, dropped, rules.fill, hold)
    recording = Recording(parts, grid.dt / SECOND, _calendar(times, grid))
    first, last = 0, grid.rows
    if rules.long_gaps == "longest" and len(stretches) > 1:
        first, last = max(stretches, key=lambda ends: ends[1] - ends[0])
        if last - first < 2:
            raise DataError("no stretch without a long gap has 2 rows: raise longest_hold, or choose a larger dt")
        recording = recording.slice(first, last)
        text = f"The longest stretch was kept: rows {first} to {last - 1}."
        steps.append(Step("longest", text, {"from": first, "to": last}))
        stretches = [(0, last - first)]

    start, stop = (times.shown(grid.time_of(k)) if times is not None else f"row {k}" for k in (first, last - 1))
    return recording, Preparation(
        files=tuple(file.name for file in table.files), rows_read=table.rows, rows=recording.rows,
        dt=grid.dt / SECOND, start=start, stop=stop, steps=tuple(steps), dropped=dropped,
        stretches=tuple(stretches),
    )  # fmt: skip


def _refuse_lost_hour(table: Table, times: Times, facts: TimeFacts, grid: Grid, counts: Counts) -> None:
    """Refuse to drop what was measured in an hour that came twice, because nobody said which clock was read."""
    for turn in facts.turns:
        lost = int((counts.conflicts & (grid.replaced[:, 0] <= turn) & (grid.replaced[:, 1] > turn)).sum())
        if lost:
            zones = ", ".join(zones_of(times, facts.turns))
            raise DataError(
                f"{table.title}: the clock goes back after {times.shown(int(times.nanoseconds[turn]))}, as daylight "
                f"saving time does, and {lost} rows of the hour that comes twice would be lost: give the time zone "
                f"with the option timezone{f'; it may be {zones}' if zones else ''}; or UTC, if the clock was not "
                "changed and the last row of each time shall stay",
                code="clock-change",
            )


def _calendar(times: Times | None, grid: Grid) -> Calendar | None:
    """When the rows of a grid are, where the table has dates."""
    if times is None or not times.dated:
        return None
    return Calendar(grid.start, grid.dt, times.zone if times.zoned else "", grid.cuts)


def align(
    tables: Mapping[str, Table], units: Mapping[str, Chosen], rules: Rules | None = None
) -> tuple[Recording, dict[str, Preparation]]:
    """A recording of the period that all tables share.

    Parameters
    ----------
    tables, units : mapping of unit name
        Each unit's own table, and what it takes of it. Every table has a time column.
    rules : Rules, optional
        As for one table. Without dt, the longest of the tables' usual steps.

    Examples
    --------
    >>> import polars
    >>> from counterflow.data import choose, open_table
    >>> dates = [f"2024-05-01 06:0{k}:00" for k in range(6)]
    >>> logs = {
    ...     "boiler": polars.DataFrame({"time": dates[:5], "p": [1.0, 2, 3, 4, 5]}),
    ...     "turbine": polars.DataFrame({"time": dates[2:], "n": [30.0, 40, 50, 60]}),
    ... }
    >>> tables = {name: open_table(log) for name, log in logs.items()}
    >>> units = {name: choose({name: "?"}, table.channels)[0] for name, table in tables.items()}
    >>> recording, _ = align(tables, units)
    >>> recording["boiler"].y.ravel().tolist(), recording["turbine"].y.ravel().tolist()
    ([3.0, 4.0, 5.0], [30.0, 40.0, 50.0])
    """
    rules = rules or Rules()
    if rules.longest_gap is not None or rules.long_gaps == "longest":
        raise OptionError(
            "longest_gap and long_gaps = 'longest' need one table of all units: they would cut each its way."
        )
    times = {name: table.times for name, table in tables.items() if table.times is not None}
    for name in tables:
        if name not in times:
            raise DataError(f"the log of unit {name!r} has no time column: name it with 'time'")
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
    parts, reports = {}, {}
    calendar: Calendar | None = None
    for name, table in tables.items():
        recording, reports[name] = prepare(table, [units[name]], own, span=(start, rows))
        parts[name] = recording[name]
        calendar = recording.calendar
    return Recording(parts, width / SECOND, calendar), reports


# ---- one column, one unit


def _unit(
    table: Table, columns: Iterator[tuple[str, Numbers]], chosen: Chosen, grid: Grid, rules: Rules, hold: int,
    counts: Counts,
) -> tuple[UnitRecording, dict[str, str]]:  # fmt: skip
    """The next columns, which are this unit's."""
    inputs = {column for column, _ in chosen.inputs}
    found: dict[str, FloatArray] = {}
    dropped: dict[str, str] = {}
    for column, numbers in islice(columns, len(chosen.columns)):
        values = _cleaned(table, column, numbers, rules, counts)
        if len(grid.replaced):
            old, new = values[grid.replaced[:, 0]], values[grid.replaced[:, 1]]
            counts.conflicts |= (old != new) & ~(np.isnan(old) & np.isnan(new))
        is_input = column in inputs
        row = on_grid(values, grid, "last" if is_input and rules.resample == "auto" else rules.resample)
        known = row[np.isfinite(row)]
        if len(known) == 0 and rules.drop_constant:
            dropped[column] = "no value at all"
        elif len(known) == 0 and is_input:
            raise DataError(f"unit {chosen.name!r}: input {column!r} has no value at all: leave it out")
        elif len(known) and rules.drop_constant and known.min() == known.max():
            dropped[column] = f"always {known[0]:g}"
        else:
            found[column] = _filled(row, chosen.name, column, rules, hold, counts) if is_input else row
    left = {side: [pair for pair in getattr(chosen, side) if pair[0] not in dropped] for side in ("inputs", "outputs")}
    if not left["outputs"]:
        column, reason = next(iter(dropped.items()))
        raise DataError(
            f"unit {chosen.name!r}: no output is left: {column!r} is {reason}"
            + (f", and {len(dropped) - 1} more" if len(dropped) > 1 else "")
            + "; name other outputs, or leave the unit out"
        )
    u, y = (_side_by_side([found[column] for column, _ in left[side]], grid.rows) for side in ("inputs", "outputs"))
    channels = {side: [channel for _, channel in pairs] for side, pairs in left.items()}
    return UnitRecording(y, u, Unit(chosen.name, chosen.states, **channels)), dropped


def _side_by_side(columns: Sequence[FloatArray], rows: int) -> FloatArray:
    """Columns as a read-only array, time first; block by block, because whole columns would cross the memory each."""
    out = np.empty((rows, len(columns)))
    for start in range(0, rows, _BLOCK):
        for k, column in enumerate(columns):
            out[start : start + _BLOCK, k] = column[start : start + _BLOCK]
    out.flags.writeable = False  # so that the recording need not copy it
    return out


def _cleaned(table: Table, column: str, numbers: Numbers, rules: Rules, counts: Counts) -> FloatArray:
    if numbers.odd_count:
        if rules.text == "refuse":
            refuse_text(table, column, numbers)
        counts.odd[column] = numbers.odd_count
    if numbers.words:
        counts.words[column] = numbers.words
    if numbers.sentinels:
        counts.sentinels[column] = numbers.sentinels
    values = numbers.values
    infinite = np.isinf(values)
    if infinite.any():
        counts.infinite += int(infinite.sum())
        values = np.where(infinite, np.nan, values)
    return values


def _filled(row: FloatArray, unit: str, column: str, rules: Rules, hold: int, counts: Counts) -> FloatArray:
    """An input without holes, counting what was filled."""
    filled, lengths, led = fill(row, rules.fill)
    if led:
        counts.led[column] = led
    if len(lengths):
        long = int(lengths[lengths > hold].sum())
        if long and rules.long_gaps == "refuse":
            raise DataError(
                f"unit {unit!r}: input {column!r} is missing for {int(lengths.max())} rows in a row, more than "
                f"longest_hold allows ({hold}): raise it, leave the input out, or cut the table with start and stop"
            )
        counts.filled[column] = (int(lengths.sum()), long)
    return filled
