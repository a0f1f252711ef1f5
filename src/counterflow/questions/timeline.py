"""Where the rows of an answer stand in time: steps after a change, or rows of a record and those that follow it."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from counterflow import wording
from counterflow.errors import OptionError
from counterflow.plant.calendar import Calendar, as_duration, as_rows, is_date

if TYPE_CHECKING:
    from counterflow.plant.calendar import Moment
    from counterflow.questions.plots import Axis

_NUMBER = re.compile(r"\s*[+-]?\d{1,18}\s*")
_FLOW = re.compile(r"(.*\S)\s*/\s*(s|sec|min|h|hr|d|day)")
_TIMES = {"s": 1.0, "sec": 1.0, "min": 60.0, "h": 3600.0, "hr": 3600.0, "d": 86400.0, "day": 86400.0}
_SIZES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def during(start: int, stop: int, dt: float, calendar: Calendar | None) -> str:
    """ "in rows 3 to 9", or "from 2024-11-01 14:00 to 14:06 CET" where dates are known."""
    if calendar is None:
        return f"in {wording.rows(start, stop, dt)}"
    return f"{'at' if stop == start + 1 else 'from'} {calendar.span(start, stop)}"


def asked_rows(start: int, stop: int | None, calendar: Calendar | None) -> str:
    """The rows that a question is about, which may have no end yet."""
    if stop is not None:
        return during(start, stop, 1.0, calendar) if calendar else f"in rows {start} to {stop - 1}"
    return f"in rows {start}" if calendar is None else f"from {calendar.shown(start)} on"


@dataclass(frozen=True)
class Timeline(ABC):
    """``count`` rows, ``dt`` seconds apart; ``first``: what windows call the first of them."""

    count: int
    dt: float
    calendar: Calendar | None = None
    first: int = 0

    column: ClassVar[str]  # in a table of numbers
    peak: ClassVar[tuple[str, int]]  # the key of a peak's row in JSON, and what is added to the row there
    head: ClassVar[str]  # of a column with the rows of peaks

    @abstractmethod
    def during(self, start: int, stop: int) -> str:
        """Rows start to stop - 1 of the answer in words."""

    @abstractmethod
    def at(self, row: int) -> str:
        """One row of the answer in words."""

    @abstractmethod
    def axis(self) -> Axis:
        """For pictures."""

    @abstractmethod
    def _places(self, start: Any, stop: Any) -> tuple[Any, Any]:
        """What a user has given for a window, as rows."""

    @property
    def numbered(self) -> int:
        """What a table calls the first row."""
        return self.first

    @property
    def reach(self) -> str:
        """Where windows may lie."""
        return f"{self.first} <= start < stop <= {self.first + self.count}"

    def window(self, start: Moment | None, stop: Moment | None) -> tuple[int, int]:
        """First row of a window, and the row after its last one, from the first row of the answer on."""
        given = [int(v) if isinstance(v, str) and _NUMBER.fullmatch(v) else v for v in (start, stop)]
        ends = self.first, self.first + self.count
        first, last = (end if v is None else v for v, end in zip(self._places(*given), ends, strict=True))
        whole = all(isinstance(each, (int, np.integer)) and not isinstance(each, bool) for each in (first, last))
        if not whole or not ends[0] <= first < last <= ends[1]:
            raise OptionError(
                f"window: start and stop must lie within the answer, {self.reach}; got {start!r:.40} and {stop!r:.40}"
            )
        return int(first) - self.first, int(last) - self.first

    def integral(self, unit: str, rows: int) -> tuple[float, str]:
        """What a sum over rows is multiplied with to be an integral over time, and what that is measured in.

        A flow becomes an amount: t/h the tons. Where neither dates nor a time step say how long a step is, it is a sum.
        """
        if flow := _FLOW.fullmatch(unit):
            return self.dt / _TIMES[flow[2]], "" if flow[1] == "1" else flow[1]
        if self.dt == 1.0 and self.calendar is None:
            return 1.0, f"{unit} × steps".strip()
        size, word = next(((size, word) for size, word in _SIZES if rows * self.dt >= 2 * size), (1.0, "s"))
        return self.dt / size, f"{unit}·{word}" if unit else f"× {word}"


class Steps(Timeline):
    """Row k of the answer is k + 1 steps after the change."""

    column, peak, head = "step", ("steps", 1), "after"

    def during(self, start: int, stop: int) -> str:
        if self.dt == 1.0:
            return f"in steps {start + 1} to {stop}" if stop - start > 1 else f"in step {stop}"
        return f"from {wording.clock(start * self.dt)} to {wording.clock(stop * self.dt)} after the change"

    def at(self, row: int) -> str:
        return f"after {wording.span(row + 1, self.dt)}"

    @property
    def numbered(self) -> int:
        return 1

    def axis(self) -> Axis:
        from counterflow.questions.plots import Axis

        return Axis.after_change(self.count, self.dt)

    def _places(self, start: Any, stop: Any) -> tuple[Any, Any]:
        for name, value in (("start", start), ("stop", stop)):
            if is_date(value):
                raise OptionError(
                    f"window: {name} is {str(value)[:40]!r}: give steps after the change, or a time: '2h'"
                )
        first, last = (
            value if (seconds := as_duration(value)) is None else round(seconds / self.dt) for value in (start, stop)
        )
        return first, last


class Rows(Timeline):
    """Recorded rows, or those that follow them: ``first``, ``first`` + 1, ..."""

    column, peak = "row", ("row", 0)

    @property
    def head(self) -> str:  # type: ignore[override]
        return "in row" if self.calendar is None else "at"

    def during(self, start: int, stop: int) -> str:
        return during(self.first + start, self.first + stop, self.dt, self.calendar)

    def at(self, row: int) -> str:
        return self.during(row, row + 1)

    def axis(self) -> Axis:
        from counterflow.questions.plots import Axis

        return Axis.recorded(self.first, self.count, self.calendar)

    def _places(self, start: Any, stop: Any) -> tuple[Any, Any]:
        rows = self.first + self.count
        return as_rows(start, stop, self.calendar, rows, self.dt, "window", self.first, "answer")

    @property
    def reach(self) -> str:
        if self.calendar is None:
            return super().reach
        first, last = self.calendar.shown(self.first), self.calendar.shown(self.first + self.count - 1)
        return f"{super().reach} ({first} to {last})"
