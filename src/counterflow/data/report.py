"""What was done to a table on its way to a recording, in sentences and numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterflow.data.clock import Grid, TimeFacts
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
        return {
            "files": list(self.files),
            "rows_read": self.rows_read,
            "rows": self.rows,
            "dt": self.dt,
            "start": self.start,
            "stop": self.stop,
            "steps": [
                {"name": s.name, "text": s.text, "numbers": dict(s.numbers), "doubt": s.doubt} for s in self.steps
            ],
            "dropped": {unit: dict(reasons) for unit, reasons in self.dropped.items()},
            "stretches": [list(ends) for ends in self.stretches],
        }

    def __str__(self) -> str:
        return "\n".join(f"{'! ' if step.doubt else '  '}{step.text}" for step in self.steps)


@dataclass
class Work:
    """What is counted while the columns of all units are read."""

    conflicts: NDArray[np.bool_]
    words: dict[str, dict[str, int]] = field(default_factory=dict)
    infinite: int = 0
    odd: dict[str, int] = field(default_factory=dict)
    filled: dict[str, tuple[int, int]] = field(default_factory=dict)  # column: rows filled, of them in long runs
    led: dict[str, int] = field(default_factory=dict)


# ---- what was done, in words


def describe_rows(
    steps: list[Step],
    table: Table,
    times: Times | None,
    facts: TimeFacts | None,
    grid: Grid,
    keep: NDArray[np.bool_] | None,
    stretches: Sequence[tuple[int, int]],
    hold: int,
) -> None:
    files = ", ".join(f"{file.name} ({file.kind})" for file in table.files)
    steps.append(Step("read", f"{files}: {table.rows} rows, {len(table.channels)} channels.", {"rows": table.rows}))
    if table.short_rows:
        text = f"{table.short_rows} rows have fewer cells than the header: what they lack was read as missing."
        steps.append(Step("short", text, {"rows": table.short_rows}, doubt=True))
    if times is None or facts is None:
        steps.append(Step("time", "There is no time column: rows were taken as they come.", {}, doubt=False))
        return
    steps.append(
        Step(
            "time",
            f"Time column {table.time_name!r} ({times.kind}): {times.shown(facts.start)} to {times.shown(facts.stop)}, "
            f"usual step {facts.step / SECOND:g} s.",
            {"step": facts.step / SECOND},
        )
    )
    for change in facts.clock_changes:
        steps.append(
            Step("clock", f"The clock goes {change}: give the time zone with timezone.", {}, doubt=True)
        )  # fmt: skip
    if facts.untimed:
        steps.append(Step("untimed", f"{facts.untimed} rows without a time were dropped.", {"rows": facts.untimed}))
    if facts.out_of_order:
        count = facts.out_of_order
        steps.append(Step("sort", f"Rows were sorted: {count} came before the row above them.", {"rows": count}))
    used = len(grid.bins) + len(grid.replaced)
    if keep is not None:
        cut = int((~keep).sum())
        steps.append(Step("cut", f"{cut} rows were cut out.", {"rows": cut}))
    outside = table.rows - facts.untimed - used - (0 if keep is None else int((~keep).sum()))
    if outside > 0:
        steps.append(Step("period", f"{outside} rows outside the period were left out.", {"rows": outside}))
    if grid.coarser:
        text = f"Rows were gathered in steps of {grid.dt / SECOND:g} s."
        steps.append(Step("resample", text, {"dt": grid.dt / SECOND}))
    met = len(grid.bins) - len(grid.present)
    if met and not grid.coarser:
        text = f"{met} rows fell on a step that another row has: the later stayed."
        steps.append(Step("jitter", text, {"rows": met}))
    absent = grid.rows - len(grid.present)
    if absent:
        steps.append(
            Step(
                "gaps",
                f"{absent} of {grid.rows} rows of the grid ({100 * absent / grid.rows:.2g} %) have no data: outputs "
                "are missing there.",
                {"rows": absent},
            )
        )
    if grid.cuts:
        hours = sum(extra for _, extra in grid.cuts) / SECOND / 3600
        steps.append(
            Step(
                "shorten",
                f"{len(grid.cuts)} long gaps were shortened by {hours:.4g} h in all: time jumps there.",
                {"gaps": len(grid.cuts), "hours": hours},
            )
        )
    if len(stretches) > 1:
        longest = max(stop - start for start, stop in stretches)
        steps.append(
            Step(
                "stretches",
                f"Gaps of more than {hold} rows leave {len(stretches)} stretches; the longest has {longest} rows.",
                {"stretches": len(stretches), "longest": longest},
                doubt=True,
            )
        )


def describe_values(
    steps: list[Step],
    grid: Grid,
    work: Work,
    dropped: Mapping[str, Mapping[str, str]],
    how: str,
    hold: int,
) -> None:
    if len(grid.replaced):
        conflicts = int(work.conflicts.sum())
        steps.append(
            Step(
                "duplicates",
                f"{len(grid.replaced)} rows repeat a time: the last of each was kept"
                + (f"; {conflicts} of them held other values." if conflicts else ", with the same values."),
                {"rows": len(grid.replaced), "conflicts": conflicts},
                doubt=conflicts > 0,
            )
        )
    for column, words in work.words.items():
        shown = ", ".join(f"{word!r} ({count})" for word, count in list(words.items())[:6])
        steps.append(Step("words", f"{column}: {shown} were read as 1, 0 or missing.", {"column": column, **words}))
    for column, count in work.odd.items():
        text = f"{column}: {count} cells of text were read as missing."
        steps.append(Step("text", text, {"column": column, "cells": count}, doubt=True))
    if work.infinite:
        text = f"{work.infinite} infinite values were read as missing."
        steps.append(Step("infinite", text, {"values": work.infinite}, doubt=True))
    for unit, reasons in dropped.items():
        for column, reason in reasons.items():
            steps.append(
                Step("dropped", f"{unit}: {column} was dropped: {reason}.", {"unit": unit, "column": column})
            )  # fmt: skip
    if work.filled:
        rows = max(count for count, _ in work.filled.values())
        verb = "held from the value before" if how == "hold" else "interpolated"
        steps.append(
            Step(
                "filled",
                f"{len(work.filled)} inputs were {verb} where they are missing, in at most {rows} rows.",
                {column: count for column, (count, _) in work.filled.items()},
            )
        )
        long = {column: count for column, (_, count) in work.filled.items() if count}
        if long:
            steps.append(
                Step(
                    "unknown inputs",
                    f"{len(long)} inputs are unknown for more than {hold} rows at a time, in at most "
                    f"{max(long.values())} rows: what they did there is assumed. See stretches.",
                    long,
                    doubt=True,
                )
            )
    if work.led:
        text = f"{len(work.led)} inputs are missing at the beginning: their first value was used."
        steps.append(Step("beginning", text, work.led, doubt=True))
