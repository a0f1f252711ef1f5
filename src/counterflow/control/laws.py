"""The laws that this product knows, three of them written here; and laws read from a file or as somebody writes them.

A new law is a module beside this one and a place in ``LAWS``. On a log, later ones are tried first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import time
from typing import Any, ClassVar

import numpy as np

from counterflow.arrays import FloatArray, real_number
from counterflow.control.law import (
    FREE,
    ControlLaw,
    CustomLaw,
    Law,
    LawInput,
    LoopRecord,
    as_law,
    check_limits,
    limits_words,
)
from counterflow.control.pid import PID
from counterflow.control.relay import Relay
from counterflow.errors import ModelError

DAY = 86400.0  # seconds


@dataclass(frozen=True)
class Manual(ControlLaw):
    """No controller: the moved input stays where it was.

    Examples
    --------
    >>> Manual().output(LawInput(np.array([[3.0]]), np.zeros((1, 2)), np.zeros((1, 2)), row=1)).tolist()
    [3.0]
    """

    kind: ClassVar[str] = "manual"
    looks: ClassVar[bool] = False
    state: ClassVar[str] = "in manual"

    @property
    def memory(self) -> int:
        return 1

    def answer(self, seen: LawInput) -> FloatArray:
        return np.array(seen.moved[:, -1])

    def __str__(self) -> str:
        return "manual"


@dataclass(frozen=True)
class Ratio(ControlLaw):
    """The moved input is a multiple of the reading: u = ratio y + bias, within the limits.

    Where the loop has a target, that is the ratio, and ``ratio`` multiplies it.

    Examples
    --------
    >>> Ratio(0.5, bias=1.0).output(LawInput(np.zeros((1, 0)), np.array([[4.0]]), np.array([[np.nan]]), row=0)).tolist()
    [3.0]
    """

    kind: ClassVar[str] = "ratio"

    ratio: float = 1.0
    bias: float = 0.0
    limits: tuple[float, float] = FREE

    def __post_init__(self) -> None:
        for name in ("ratio", "bias"):
            object.__setattr__(self, name, real_number(getattr(self, name), f"Ratio: {name}", kind=ModelError))
        object.__setattr__(self, "limits", check_limits(self.limits, "Ratio"))

    def answer(self, seen: LawInput) -> FloatArray:
        target = np.where(np.isnan(seen.target[:, -1]), 1.0, seen.target[:, -1])
        return np.asarray(self.ratio * target * seen.reading[:, -1] + self.bias)

    def __str__(self) -> str:
        return f"ratio {self.ratio:.4g}, bias {self.bias:.4g}{limits_words(self.limits)}"


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
        changes = sorted((_seconds_of_day(begins), value) for begins, value in times.items())
        clock = (_seconds_of_day(row_0) + dt * np.arange(round(rows))) % DAY
        last = np.searchsorted([begins for begins, _ in changes], clock + 1e-6, side="right") - 1
        return cls(tuple(changes[k][1] for k in last))  # before the first time of a day, the last one of the day before

    def answer(self, seen: LawInput) -> FloatArray:
        return np.full(len(seen.reading), self.values[seen.row // self.rows % len(self.values)])

    def in_rows(self, record: LoopRecord) -> FloatArray:
        return np.asarray(self.values)[np.arange(len(record.moved)) // self.rows % len(self.values)]

    def __str__(self) -> str:
        return f"schedule of {len(self.values)} values, {self.rows} rows each"


def _seconds_of_day(given: str) -> float:
    try:
        found = time.fromisoformat(given)
    except (TypeError, ValueError):
        raise ModelError(f"Schedule: {given!r:.80} is no time of day: write it as '06:00' or '06:00:30'.") from None
    return 3600.0 * found.hour + 60.0 * found.minute + found.second


LAWS: tuple[type[ControlLaw], ...] = (PID, Relay, Ratio, Schedule, Manual)
WRITTEN: dict[str, type[Any]] = {law.kind: law for law in LAWS}


def law_json(law: Law | None) -> dict[str, Any] | None:
    """A law in plain types; one that is an object of its unit leaves its name only."""
    return None if law is None else as_law(law).to_json()


def law_from_json(found: object) -> ControlLaw | None:
    """From plain types that nobody has checked."""
    if found is None:
        return None
    if isinstance(found, dict) and found.get("kind") == CustomLaw.kind and isinstance(found.get("name"), str):
        return CustomLaw(found["name"])
    return law_from_table(found)


def law_from_table(given: object) -> ControlLaw:
    """A law by the name of its kind and its numbers; null is an open end of limits, and what is left to its default."""
    if not isinstance(given, dict) or given.get("kind") not in WRITTEN:
        raise ModelError(
            f"a law is a table with kind, one of {', '.join(WRITTEN)}, and its numbers; got {given!r:.80}."
        )
    kind = given["kind"]
    known = [entry.name for entry in fields(WRITTEN[kind])]
    numbers = {name: value for name, value in given.items() if name != "kind" and value is not None}
    for name, value in numbers.items():
        if name not in known:
            raise ModelError(f"a law of kind {kind!r} has no {name!r:.80}; it has {', '.join(known)}.")
        if name == "limits" and isinstance(value, list) and len(value) == 2:
            numbers[name] = [own if end is None else end for own, end in zip(FREE, value, strict=True)]
    try:
        return WRITTEN[kind](**numbers)  # type: ignore[no-any-return]
    except TypeError as error:
        raise ModelError(f"a law of kind {kind!r}: {error}") from None


def law_from_words(text: str) -> ControlLaw:
    """A law as somebody types it: its kind, and numbers by their names; several numbers of one name have colons.

    >>> print(law_from_words("pid gain=-3 integral_time=20 limits=0:100"))
    PI: gain -3, integral time 20, limits 0 to 100
    """
    kind, *given = text.replace(",", " ").split() or [""]
    found: dict[str, object] = {"kind": kind.lower()}
    for each in given:
        name, _, value = each.partition("=")
        try:
            numbers = [int(part) if part.lstrip("+-").isdigit() else float(part) for part in value.split(":")]
        except ValueError:
            raise ModelError(
                f"law {text!r:.80}: write its kind and its numbers, such as manual, or pid gain=2 integral_time=10."
            ) from None
        listed = len(numbers) > 1 or name in ("limits", "values")
        found[name] = tuple(numbers) if listed else numbers[0]
    return law_from_table(found)
