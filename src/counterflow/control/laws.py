"""The laws that controllers follow, each a function of what a log shows of the last rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from counterflow.arrays import FloatArray, real_number
from counterflow.errors import ModelError

FREE = (-np.inf, np.inf)
DAY = 86400.0  # seconds


@dataclass(frozen=True)
class LawInput:
    """What a law sees in one row, of K worlds side by side.

    ``moved`` (K, memory): what it moves, in the rows before. ``reading`` and ``target`` (K, memory + 1): up to the row
    itself, which is the last column; ``target`` is NaN where nobody knows it. ``row``: the number of the row.
    ``dt``: time between rows.
    """

    moved: FloatArray
    reading: FloatArray
    target: FloatArray
    row: int
    dt: float = 1.0

    @property
    def error(self) -> FloatArray:
        """Target less reading (K, memory + 1)."""
        return np.asarray(self.target - self.reading)


@runtime_checkable
class Law(Protocol):
    """What a controller does: any object with ``memory`` and ``output`` will do.

    ``memory``: how many rows before its own a law looks at. ``output``: the moved input (K,) of the row, a pure
    function of what is seen.

    Examples
    --------
    >>> class Proportional:
    ...     memory = 0
    ...     def output(self, seen):
    ...         return 50.0 + 2.0 * seen.error[:, -1]
    >>> isinstance(Proportional(), Law)
    True
    """

    @property
    def memory(self) -> int: ...

    def output(self, seen: LawInput) -> FloatArray: ...


class _Stored:
    """Laws of this module are frozen dataclasses of numbers, which can stand in a file."""

    kind: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        """In plain types; an open end of the limits is null."""
        found: dict[str, Any] = {"kind": self.kind}
        for entry in fields(self):  # type: ignore[arg-type]
            value = getattr(self, entry.name)
            if isinstance(value, tuple):
                found[entry.name] = [each if np.isfinite(each) else None for each in value]
            else:
                found[entry.name] = None if isinstance(value, float) and not np.isfinite(value) else value
        return found


def _seconds_of_day(time: object) -> float:
    parts = time.split(":") if isinstance(time, str) else []
    if not 2 <= len(parts) <= 3 or not all(part.isascii() and part.isdigit() for part in parts):
        parts = ["99", "0"]
    hours, minutes, seconds = (*map(int, parts), 0)[:3]
    if hours > 23 or minutes > 59 or seconds > 59:
        raise ModelError(f"Schedule: {time!r:.80} is no time of day: write it as '06:00' or '06:00:30'.")
    return 3600.0 * hours + 60.0 * minutes + seconds


def _check_delay(delay: object, what: str) -> None:
    if type(delay) is not int or not 0 <= delay <= 100:
        raise ModelError(f"{what}: delay is {delay!r:.80}: pass a whole number of rows from 0 to 100.")


def _limits(given: object, what: str) -> tuple[float, float]:
    if given is None:
        return FREE
    try:
        low, high = (float(end) for end in given)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        low, high = 1.0, 0.0
    if not low < high:
        raise ModelError(f"{what}: limits are {given!r:.80}: pass (low, high) with low < high, or None.")
    return low, high


@dataclass(frozen=True)
class PID(_Stored):
    """PI or PID with limits; at a limit the integral stands still (the incremental form has no windup).

        u[t] = u[t-1] + gain ( e[t] - e[t-1] + dt / integral_time e[t]
                               - derivative_time / dt (y[t] - 2 y[t-1] + y[t-2]) )

    with e = target - y, held within the limits. The derivative is of the reading alone, so that a step of the target
    gives no kick.

    Parameters
    ----------
    gain : of the moved input over the reading; negative where more input lowers the reading.
    integral_time : in the time unit of the recording's ``dt``; infinite: no integral.
    derivative_time : in the same unit.
    limits : (low, high) of the moved input.
    delay : rows by which the controller sees its reading late.

    Examples
    --------
    >>> law = PID(gain=2.0, integral_time=10.0, limits=(0.0, 100.0))
    >>> seen = LawInput(np.array([[50.0]]), np.array([[20.0, 19.0]]), np.array([[20.0, 20.0]]), row=1)
    >>> law.output(seen).tolist()
    [52.2]
    """

    kind: ClassVar[str] = "pid"

    gain: float
    integral_time: float = np.inf
    derivative_time: float = 0.0
    limits: tuple[float, float] = FREE
    delay: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "gain", real_number(self.gain, "PID: gain", kind=ModelError))
        object.__setattr__(self, "limits", _limits(self.limits, "PID"))
        for name in ("integral_time", "derivative_time"):
            value = getattr(self, name)
            lowest = 0.0 if name == "derivative_time" else np.finfo(float).tiny
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= lowest:
                raise ModelError(f"PID: {name} is {value!r:.80}: pass a time above zero (integral_time may be inf).")
            object.__setattr__(self, name, float(value))
        _check_delay(self.delay, "PID")

    @property
    def memory(self) -> int:
        return 1 + (self.derivative_time > 0) + self.delay

    def weights(self, dt: float) -> FloatArray:
        """(3,): what the errors of the row, the one before and the one before that add to the moved input."""
        integral, derivative = dt / self.integral_time, self.derivative_time / dt
        return self.gain * np.array([1 + integral + derivative, -1 - 2 * derivative, derivative])

    def output(self, seen: LawInput) -> FloatArray:
        last = seen.error.shape[1] - 1 - self.delay
        error, reading = seen.error, seen.reading
        step = error[:, last] * (1 + seen.dt / self.integral_time) - error[:, last - 1]
        if self.derivative_time > 0:
            bend = reading[:, last] - 2 * reading[:, last - 1] + reading[:, last - 2]
            step = step - self.derivative_time / seen.dt * bend
        return np.clip(seen.moved[:, -1] + self.gain * step, *self.limits)

    def __str__(self) -> str:
        integral = "" if np.isinf(self.integral_time) else f", integral time {self.integral_time:.4g}"
        derivative = "" if not self.derivative_time else f", derivative time {self.derivative_time:.4g}"
        kind = "P" + "I" * (self.integral_time < np.inf) + "D" * (self.derivative_time > 0)
        return f"{kind}: gain {self.gain:.4g}{integral}{derivative}{_ends(self.limits)}"


@dataclass(frozen=True)
class Relay(_Stored):
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
        _check_delay(self.delay, "Relay")
        if self.between_rows not in (None, True, False):
            raise ModelError(f"Relay: between_rows is {self.between_rows!r:.80}: pass True, False or None.")
        if self.between_rows and self.delay:
            raise ModelError("Relay: a delay is in rows; a relay that switches between rows has none.")

    @property
    def memory(self) -> int:
        return 2 if self.between_rows else 1 + self.delay

    def output(self, seen: LawInput) -> FloatArray:
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


@dataclass(frozen=True)
class Ratio(_Stored):
    """The moved input is a multiple of the reading: u = ratio y + bias, within the limits.

    Where the loop has a target, that is the ratio, and ``ratio`` multiplies it.

    Examples
    --------
    >>> Ratio(0.5, bias=1.0).output(LawInput(np.zeros((1, 0)), np.array([[4.0]]), np.array([[np.nan]]), row=0)).tolist()
    [3.0]
    """

    kind: ClassVar[str] = "ratio"
    memory: ClassVar[int] = 0

    ratio: float = 1.0
    bias: float = 0.0
    limits: tuple[float, float] = FREE

    def __post_init__(self) -> None:
        for name in ("ratio", "bias"):
            object.__setattr__(self, name, real_number(getattr(self, name), f"Ratio: {name}", kind=ModelError))
        object.__setattr__(self, "limits", _limits(self.limits, "Ratio"))

    def output(self, seen: LawInput) -> FloatArray:
        target = np.where(np.isnan(seen.target[:, -1]), 1.0, seen.target[:, -1])
        return np.clip(self.ratio * target * seen.reading[:, -1] + self.bias, *self.limits)

    def __str__(self) -> str:
        return f"ratio {self.ratio:.4g}, bias {self.bias:.4g}{_ends(self.limits)}"


@dataclass(frozen=True)
class Schedule(_Stored):
    """A programme by the clock that repeats itself: ``values`` one after the other, each for ``rows`` rows from row 0.

    Examples
    --------
    >>> day = Schedule((0.0, 1.0), rows=12)
    >>> day.output(LawInput(np.zeros((2, 0)), np.zeros((2, 1)), np.zeros((2, 1)), row=30)).tolist()
    [0.0, 0.0]
    """

    kind: ClassVar[str] = "schedule"
    memory: ClassVar[int] = 0

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

    def output(self, seen: LawInput) -> FloatArray:
        value = self.values[seen.row // self.rows % len(self.values)]
        return np.full(len(seen.reading), value)

    def __str__(self) -> str:
        return f"schedule of {len(self.values)} values, {self.rows} rows each"


@dataclass(frozen=True)
class Manual(_Stored):
    """No controller: the moved input stays where it was.

    Examples
    --------
    >>> Manual().output(LawInput(np.array([[3.0]]), np.zeros((1, 2)), np.zeros((1, 2)), row=1)).tolist()
    [3.0]
    """

    kind: ClassVar[str] = "manual"
    memory: ClassVar[int] = 1

    def output(self, seen: LawInput) -> FloatArray:
        return np.array(seen.moved[:, -1])

    def __str__(self) -> str:
        return "manual"


@dataclass(frozen=True)
class UnstorableLaw(_Stored):
    """Stands in a file for a law that is a Python object of its unit, which no file can hold."""

    kind: ClassVar[str] = "own"
    memory: ClassVar[int] = 0

    name: str

    def output(self, seen: LawInput) -> FloatArray:
        raise ModelError(f"the law {self.name!r} is an object of its unit and not stored: give it again with its Loop.")

    def __str__(self) -> str:
        return f"law {self.name!r}, which is not stored"


STORED: dict[str, type[Any]] = {law.kind: law for law in (PID, Relay, Ratio, Schedule, Manual, UnstorableLaw)}


def law_json(law: Law | None) -> dict[str, Any] | None:
    """A law in plain types; one that is an object of its unit leaves its name only."""
    if law is None:
        return None
    return law.to_json() if isinstance(law, _Stored) else UnstorableLaw(type(law).__name__).to_json()


def law_of(given: object) -> Law:
    """A law by the name of its kind and its numbers, as a person writes it; what is left out has its default.

    Examples
    --------
    >>> print(law_of({"kind": "pid", "gain": 2, "integral_time": 10}))
    PI: gain 2, integral time 10
    """
    written = {name: kind for name, kind in STORED.items() if kind is not UnstorableLaw}
    if not isinstance(given, dict) or given.get("kind") not in written:
        raise ModelError(
            f"a law is a table with kind, one of {', '.join(written)}, and its numbers; got {given!r:.80}."
        )
    kind = written[given["kind"]]
    known = [entry.name for entry in fields(kind)]
    for name in given:
        if name != "kind" and name not in known:
            raise ModelError(f"a law of kind {given['kind']!r} has no {name!r:.80}; it has {', '.join(known)}.")
    try:
        return kind(**{name: value for name, value in given.items() if name != "kind"})  # type: ignore[no-any-return]
    except TypeError as error:
        raise ModelError(f"a law of kind {given['kind']!r}: {error}") from None


def law_of_words(text: str) -> Law:
    """A law as somebody types it: its kind, and numbers by their names; several numbers of one name have colons.

    Examples
    --------
    >>> print(law_of_words("manual")), print(law_of_words("pid gain=-3 integral_time=20 limits=0:100"))
    manual
    PI: gain -3, integral time 20, limits 0 to 100
    (None, None)
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
    return law_of(found)


def law_from_json(found: object) -> Law | None:
    """From plain types that nobody has checked.

    Examples
    --------
    >>> law_from_json(law_json(Relay(1.0, 2.0))) == Relay(1.0, 2.0)
    True
    """
    if found is None:
        return None
    if not isinstance(found, dict) or found.get("kind") not in STORED:
        raise ModelError(f"a law has one of the kinds {', '.join(STORED)}, got {found!r:.80}.")
    kind = STORED[found["kind"]]
    given = {name: value for name, value in found.items() if name != "kind"}
    entries = fields(kind)
    needed = {entry.name for entry in entries if entry.default is MISSING}
    if not needed <= set(given) <= {entry.name for entry in entries}:
        raise ModelError(f"a law of kind {found['kind']!r} has {', '.join(e.name for e in fields(kind))}.")
    for name, value in given.items():
        if name == "limits":
            ends = value if isinstance(value, list) and len(value) == 2 else [None, None]
            given[name] = tuple(end if own is None else own for own, end in zip(ends, FREE, strict=True))
        elif name == "integral_time" and value is None:
            given[name] = np.inf
        elif isinstance(value, list):
            given[name] = tuple(value)
    return kind(**given)  # type: ignore[no-any-return]


def _ends(limits: tuple[float, float]) -> str:
    low, high = limits
    return "" if np.isinf(low) and np.isinf(high) else f", limits {low:.4g} to {high:.4g}"
