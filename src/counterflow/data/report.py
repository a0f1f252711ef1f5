"""What was done to a table on its way to a recording, in sentences and numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterflow.data.grid import Grid, TimeFacts
from counterflow.data.selection import Chosen
from counterflow.data.table import Table
from counterflow.data.times import SECOND, Times


@dataclass(frozen=True)
class Step:
    """One thing that was done: in words, and in numbers."""

    name: str
    text: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    doubt: bool = False


@dataclass(frozen=True)
class Preparation:
    """What was done to turn a table into a recording.

    Parameters
    ----------
    files : tuple of str
    rows_read, rows : int
        Rows of the table, and of the recording.
    dt : float
        Seconds between two rows of the recording.
    start, stop : str
        Times of its first and last row.
    steps : tuple of Step
        Everything that was done, in order; those with `doubt` deserve a look.
    dropped : mapping of unit to mapping of column to reason
    stretches : tuple of (start, stop)
        Rows of the recording without a long gap, for ``recording.slice(start, stop)``.
    """

    files: tuple[str, ...]
    rows_read: int
    rows: int
    dt: float
    start: str
    stop: str
    steps: tuple[Step, ...]
    dropped: Mapping[str, Mapping[str, str]]
    stretches: tuple[tuple[int, int], ...]

    @property
    def doubts(self) -> tuple[str, ...]:
        """Sentences about what deserves a look."""
        return tuple(step.text for step in self.steps if step.doubt)

    @property
    def longest_stretch(self) -> tuple[int, int]:
        """The longest of the stretches."""
        return max(self.stretches, key=lambda ends: ends[1] - ends[0])

    def to_json(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        steps, stretches = [asdict(step) for step in self.steps], [list(ends) for ends in self.stretches]
        return asdict(self) | {"files": list(self.files), "stretches": stretches, "steps": steps}

    def __str__(self) -> str:
        return "\n".join(f"{'! ' if step.doubt else '  '}{step.text}" for step in self.steps)


@dataclass
class Counts:
    """What is counted while the columns of all units are read."""

    conflicts: NDArray[np.bool_]
    words: dict[str, dict[str, int]] = field(default_factory=dict)
    infinite: int = 0
    sentinels: dict[str, dict[float, int]] = field(default_factory=dict)
    odd: dict[str, int] = field(default_factory=dict)
    filled: dict[str, tuple[int, int]] = field(default_factory=dict)  # column: rows filled, of them in long runs
    led: dict[str, int] = field(default_factory=dict)


# ---- what was done, in words


def describe_rows(
    table: Table, times: Times | None, facts: TimeFacts | None, grid: Grid, keep: NDArray[np.bool_] | None,
    stretches: Sequence[tuple[int, int]], hold: int,
) -> Iterator[Step]:  # fmt: skip
    """The steps from the rows of a table to those of the grid."""
    files = ", ".join(f"{file.name} ({file.kind})" for file in table.files)
    yield Step("read", f"{files}: {table.rows} rows, {len(table.channels)} channels.", {"rows": table.rows})
    for what, count in table.notes:
        yield Step("notes", f"{count} {what}.", {"count": count}, doubt=True)
    if short := table.short_rows:
        text = f"{short} rows have fewer cells than the header: what they lack was read as missing."
        yield Step("short", text, {"rows": short}, doubt=True)
    if times is None or facts is None:
        yield Step("time", "There is no time column: rows were taken as they come.")
        return
    period, step, dt = f"{times.shown(facts.start)} to {times.shown(facts.stop)}", facts.step / SECOND, grid.dt / SECOND
    text = f"Time column {table.time_name!r} ({times.kind}): {period}, usual step {step:g} s."
    yield Step("time", text, {"step": step})
    for change in facts.clock_changes:
        yield Step("clock", f"The clock goes {change}: give the time zone with the option timezone.", doubt=True)
    if times.unread:
        text = f"{times.unread} rows were left out, because their time cannot be read: {times.example} is the first."
        yield Step("unread", text, {"rows": times.unread}, doubt=True)
    if empty := facts.untimed - times.unread:
        yield Step("untimed", f"{empty} rows without a time were dropped.", {"rows": empty})
    if count := facts.out_of_order:
        yield Step("sort", f"Rows were sorted: {count} came before the row above them.", {"rows": count})
    cut = 0 if keep is None else int((~keep).sum())
    if keep is not None:
        yield Step("cut", f"{cut} rows were cut out.", {"rows": cut})
    outside = table.rows - facts.untimed - len(grid.bins) - len(grid.replaced) - cut
    if outside > 0:
        yield Step("period", f"{outside} rows outside the period were left out.", {"rows": outside})
    met = len(grid.bins) - len(grid.present)
    if grid.coarser:
        yield Step("resample", f"Rows were gathered in steps of {dt:g} s.", {"dt": dt})
    elif met:
        yield Step("jitter", f"{met} rows fell on a step that another row has: the later stayed.", {"rows": met})
    if absent := grid.rows - len(grid.present):
        share = f"{absent} of {grid.rows} rows of the grid ({100 * absent / grid.rows:.2g} %)"
        yield Step("gaps", f"{share} have no data: outputs are missing there.", {"rows": absent})
    if grid.cuts:
        hours = sum(extra for _, extra in grid.cuts) / SECOND / 3600
        text = f"{len(grid.cuts)} long gaps were shortened by {hours:.4g} h in all: time jumps there."
        yield Step("shorten", text, {"gaps": len(grid.cuts), "hours": hours})
    if len(stretches) > 1:
        longest = max(stop - start for start, stop in stretches)
        text = f"Gaps of more than {hold} rows leave {len(stretches)} stretches; the longest has {longest} rows."
        yield Step("stretches", text, {"stretches": len(stretches), "longest": longest}, doubt=True)


def describe_names(units: Sequence[Chosen]) -> Iterator[Step]:
    """Columns whose channels are called otherwise, because a name has no slashes and nothing that does not print."""
    pairs = [pair for unit in units for pair in (*unit.inputs, *unit.outputs)]
    renamed = {column: channel.name for column, channel in pairs if channel.name != column}
    if renamed:
        shown = ", ".join(f"{column[:60]!r} is {name!r}" for column, name in list(renamed.items())[:12])
        more = ", ..." if len(renamed) > 12 else ""
        yield Step("renamed", f"{len(renamed)} columns have other names as channels: {shown}{more}.", renamed)


def describe_values(
    grid: Grid, counts: Counts, dropped: Mapping[str, Mapping[str, str]], how: str, hold: int
) -> Iterator[Step]:
    """The steps from the cells of a table to the values of a recording."""
    if repeated := len(grid.replaced):
        conflicts = int(counts.conflicts.sum())
        found = f"; {conflicts} of them held other values." if conflicts else ", with the same values."
        text = f"{repeated} rows repeat a time: the last of each was kept{found}"
        yield Step("duplicates", text, {"rows": repeated, "conflicts": conflicts}, doubt=conflicts > 0)
    for column, words in counts.words.items():
        shown = ", ".join(f"{word!r} ({count})" for word, count in list(words.items())[:6])
        yield Step("words", f"{column}: {shown} were read as 1, 0 or missing.", {"column": column, **words})
    for column, count in counts.odd.items():
        text = f"{column}: {count} cells of text were read as missing."
        yield Step("text", text, {"column": column, "cells": count}, doubt=True)
    for value in sorted({value for values in counts.sentinels.values() for value in values}):
        told = {column: values[value] for column, values in counts.sentinels.items() if value in values}
        shown = ", ".join(f"{column} ({count})" for column, count in list(told.items())[:6])
        more = f" and {len(told) - 6} more channels" if len(told) > 6 else ""
        text = (
            f"{value:g} recurs far outside all else in {shown}{more}: read as missing; the option sentinels keeps it."
        )
        yield Step("sentinel", text, told, doubt=True)
    if count := counts.infinite:
        yield Step("infinite", f"{count} infinite values were read as missing.", {"values": count}, doubt=True)
    for unit, reasons in dropped.items():
        for column, reason in reasons.items():
            yield Step("dropped", f"{unit}: {column} was dropped: {reason}.", {"unit": unit, "column": column})
    if counts.filled:
        filled = {column: count for column, (count, _) in counts.filled.items()}
        verb = "held from the value before" if how == "hold" else "interpolated"
        rows = max(filled.values())
        text = f"{len(filled)} inputs were {verb} where they are missing, in at most {rows} rows."
        yield Step("filled", text, filled)
    if long := {column: count for column, (_, count) in counts.filled.items() if count}:
        text = (
            f"{len(long)} inputs are unknown for more than {hold} rows at a time, in at most {max(long.values())} "
            "rows: what they did there is assumed. The option long_gaps can leave such stretches out."
        )
        yield Step("unknown inputs", text, long, doubt=True)
    if counts.led:
        text = f"{len(counts.led)} inputs are missing at the beginning: their first value was used."
        yield Step("beginning", text, counts.led, doubt=True)
