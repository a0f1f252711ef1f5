"""A programme by the clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from counterflow.arrays import FloatArray, real_number
from counterflow.control.law import ControlLaw, LawInput, LoopRecord
from counterflow.errors import ModelError

DAY = 86400.0  # seconds


@dataclass(frozen=True)
class Schedule(ControlLaw):
    """A programme by the clock that repeats itself: ``values`` one after the other, each for ``rows`` rows from row 0.

    Examples
    --------
    >>> day = Schedule((0.0, 1.0), rows=12)
    >>> day.output(LawInput(np.zeros((2, 0)), np.zeros((2, 1)), np.zeros((2, 1)), row=30)).tolist()
    [0.0, 0.0]
    """

    kind: ClassVar[str] = "schedule"
    looks: ClassVar[bool] = False

    values: tuple[float, ...]
    rows: int = 1

    def __post_init__(self) -> None:
        values = tuple(real_number(value, "Schedule: values", kind=ModelError) for value in self.values)
        if not values or type(self.rows) is not int or self.rows < 1:
            raise ModelError("Schedule: give at least one value, and for how many rows each of them stands.")
        object.__setattr__(self, "values", values)

    @classmethod
    def daily(cls, times: Mapping[str, float], row_0: str, dt: float) -> Schedule:
        """A programme by the time of day: from each of ``times`` ("06:00" or "06:00:30") on its value, every day.

        ``row_0``: the time of day of the recording's first row; ``dt``: seconds between rows. Days have 24 hours: where
        clocks are put forward or back, the programme is not.

        Examples
        --------
        >>> pumps = Schedule.daily({"06:00": 1.0, "22:00": 0.0}, row_0="20:00", dt=3600.0)
        >>> [pumps.values[row // pumps.rows % len(pumps.values)] for row in (0, 1, 2, 9, 10, 25, 26)]
        [1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0]
        """
        rows = DAY / dt if isinstance(dt, (int, float)) and dt > 0 else 0.0
        if not times or rows < 1 or abs(rows - round(rows)) > 1e-9 * rows:
            raise ModelError(f"Schedule: give at least one time of day, and a dt that divides a day; got {dt!r:.80} s.")
        begin = _seconds_of_day(row_0)
        changes = sorted((_seconds_of_day(time), value) for time, value in times.items())
        clock = (begin + dt * np.arange(round(rows))) % DAY
        last = np.searchsorted([time for time, _ in changes], clock + 1e-6, side="right") - 1
        return cls(tuple(changes[k][1] for k in last))  # before the first time of a day, the last one of the day before

    def answer(self, seen: LawInput) -> FloatArray:
        return np.full(len(seen.reading), self.values[seen.row // self.rows % len(self.values)])

    def in_rows(self, record: LoopRecord) -> FloatArray:
        """Row by row, because it goes by their numbers."""
        return np.asarray(self.values)[np.arange(len(record.moved)) // self.rows % len(self.values)]

    def __str__(self) -> str:
        return f"schedule of {len(self.values)} values, {self.rows} rows each"


def _seconds_of_day(time: object) -> float:
    parts = time.split(":") if isinstance(time, str) else []
    if not 2 <= len(parts) <= 3 or not all(part.isascii() and part.isdigit() for part in parts):
        parts = ["99", "0"]
    hours, minutes, seconds = (*map(int, parts), 0)[:3]
    if hours > 23 or minutes > 59 or seconds > 59:
        raise ModelError(f"Schedule: {time!r:.80} is no time of day: write it as '06:00' or '06:00:30'.")
    return 3600.0 * hours + 60.0 * minutes + seconds
