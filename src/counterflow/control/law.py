"""What is asked of every law of a controller: its equation, what it tells of a record, how it is described and stored.

A law is one class in one module: it derives from ``ControlLaw`` and stands in the list of ``laws.py``. Nothing else in
the product knows which laws there are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.errors import CounterflowError, ModelError

BoolArray = NDArray[np.bool_]
FREE = (-np.inf, np.inf)
STILL = 3  # rows without any move, from which on an input is in manual or at a limit
TRIMMED = 0.15  # of the rows, in which a target that is not recorded may have moved
EXACT = 1e-12  # share of the moves below which nothing is left but rounding
MOST_MEMORY = 10_000  # rows before its own that a law of somebody's own may look at
FAILS = "law-fails"  # code of what is said where such a law gives no answer that can be used
OFF = 1e-6  # of an input's usual movement: by how much it is off its law, where it stands still in manual
RECORDED, MOVING, CONSTANT = "recorded", "moving", "constant"  # what is known of a target


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


@dataclass(frozen=True, eq=False)
class LoopRecord:
    """What a loop did in T rows: what it moved, read and aimed at (T,); ``target`` None: nobody recorded it."""

    moved: FloatArray
    reading: FloatArray
    target: FloatArray | None
    dt: float

    @cached_property
    def automatic(self) -> BoolArray:
        return active_rows(self.moved)

    def aiming_at(self, target: FloatArray | float) -> LoopRecord:
        return replace(self, target=np.broadcast_to(np.asarray(target, np.float64), self.moved.shape))


@dataclass(frozen=True)
class LawFit:
    """A law, and how well it tells a record; the words are those of ``Controller``."""

    law: ControlLaw
    reproduced: float
    automatic: float
    target: str
    nearest: bool = False


@dataclass(frozen=True, eq=False)
class Replay:
    """What a controller moved, read and aimed at (T,), what its law leaves of it, and where it was in manual.

    The reading may be uncertain; then it is (worlds, T).
    """

    moved: FloatArray
    reading: FloatArray
    target: FloatArray
    left: FloatArray
    manual: BoolArray

    def rows(self, rows: slice) -> Replay:
        return Replay(*(getattr(self, each.name)[..., rows] for each in fields(self)))


class ControlLaw(ABC):
    """A law as the product knows it: a frozen dataclass of numbers, with the methods below.

    ``answer`` is the equation. All else has a default, which a law overrides where it knows better.
    """

    kind: ClassVar[str]
    looks: ClassVar[bool] = True  # whether it looks at its reading: not so in manual, or by the clock
    incremental: ClassVar[bool] = False  # whether it says how far to move: then any level of a fixed target will do
    storable: ClassVar[bool] = True  # whether a file can hold it

    # ---- the equation

    @property
    def memory(self) -> int:
        """Rows before its own that it looks at."""
        return 0

    @property
    def limits(self) -> tuple[float, float]:
        """Of what it moves."""
        return FREE

    @property
    def swing(self) -> float:
        """How far apart two positions are between which it switches; 0: it does not switch."""
        return 0.0

    @property
    def switches_in_rows(self) -> bool:
        """Whether it switches by the reading of the row itself."""
        return False

    @abstractmethod
    def answer(self, seen: LawInput) -> FloatArray:
        """What it says (K,), before its limits."""

    def output(self, seen: LawInput, left: FloatArray | float = 0.0) -> FloatArray:
        """The moved input (K,): what it says, with what it left of the record in this row, within its limits."""
        return np.clip(np.clip(self.answer(seen), *self.limits) + left, *self.limits)

    # ---- a record

    def in_rows(self, record: LoopRecord) -> FloatArray:
        """What it says of every row (T,) of a record from the rows before it; NaN in the first ``memory`` rows.

        All rows are asked at once, as so many worlds. The record has a target.
        """
        assert record.target is not None
        T, memory = len(record.moved), self.memory
        out = np.full(T, np.nan)
        if memory < T:
            at = np.arange(memory, T)[:, None]
            before, through = at - memory + np.arange(memory), at - memory + np.arange(memory + 1)
            seen = LawInput(record.moved[before], record.reading[through], record.target[through], memory, record.dt)
            out[memory:] = np.clip(self.answer(seen), *self.limits)
        return out

    @classmethod
    def learned(cls, record: LoopRecord) -> LawFit | None:
        """The law of this kind that tells a record of a declared loop best; None: there is none."""
        return None

    @classmethod
    def promising(cls, moved: FloatArray, reading: FloatArray) -> bool:
        """Whether a log may show an undeclared loop of this kind: a quick look, before anything is fitted with care."""
        return False

    def is_control(self, record: LoopRecord, found: LawFit) -> bool:
        """Whether an undeclared relation is a controller's beyond doubt."""
        return False

    def judged(self, record: LoopRecord) -> LawFit:
        """This law as it was given, with how well it tells a record."""
        moved, reading, automatic = record.moved, record.reading, record.automatic
        floating = record.target is None and self.incremental  # any level will do: its constant is looked for
        aimed = record
        if record.target is None:
            aimed = record.aiming_at(float(np.nanmean(reading)) if floating else np.nan)
        kind, share = MOVING if record.target is None else RECORDED, float(automatic.mean())
        told = self.in_rows(aimed)
        beside = automatic & np.append(automatic[1:], True) & np.append(True, automatic[:-1])  # nobody takes it over
        rows = np.flatnonzero(beside & np.isfinite(told) & (np.arange(len(moved)) > self.memory))
        if len(rows) < STILL:  # it hardly moved: in manual, or as a law says that stands still as well
            known = np.isfinite(told)
            size = max(float(np.abs(moved).max()), float(np.nanstd(reading)), 1e-300)
            same = np.abs(moved - told)[known] <= EXACT * size
            return LawFit(self, float(same.mean()) if known.any() else 0.0, share, kind)
        error, move = (moved - told)[rows], np.diff(moved, prepend=moved[0])[rows]
        left, size = (float(np.square(each).mean()) for each in (error, move))
        if floating:
            fixed, jumps = (trimmed_square(each) for each in (error - np.median(error), np.diff(error)))
            stands = fixed <= max(jumps / 2, EXACT * trimmed_square(move))
            kind, left = (CONSTANT, fixed) if stands else (MOVING, jumps)
            size = trimmed_square(move if stands else np.diff(move))
        return LawFit(self, max(0.0, 1 - left / max(size, 1e-300)), share, kind)

    def aimed_at(self, record: LoopRecord) -> FloatArray:
        """The target (T,) that it must have had, to have moved its input as it did; NaN: nobody can say."""
        return np.full(len(record.moved), np.nan)

    def replay(self, record: LoopRecord, worlds: int) -> Replay:
        """What of a record is replayed in other worlds. Where a reading is missing it went on with the last one."""
        moved, reading = record.moved, last_known(record.reading)
        if record.target is None:
            aim = np.full(len(moved), 0.0 if self.incremental else np.nan)
        else:
            aim = last_known(record.target)
        told = self.in_rows(LoopRecord(moved, reading, aim, record.dt))
        left = np.where(np.isfinite(told), moved - told, 0.0)
        manual = ~record.automatic
        if self.incremental:  # at a limit it stands still by itself
            manual &= (moved > self.limits[0]) & (moved < self.limits[1])
        if record.target is not None or not self.incremental:  # it stands still, though its law says that it moves
            off_law = np.abs(left) > OFF * max(float(moved.std()), 1e-300)
            manual &= off_law
            manual[:-1] |= off_law[:-1] & manual[1:]  # the row in which somebody moved it to where it stands
        return Replay(moved, reading, aim, left, manual)

    # ---- words and files

    @property
    def state(self) -> str:
        """What is said of a loop that follows it: "in manual", or "under PI: gain 2, integral time 10"."""
        return f"under {self}"

    def to_json(self) -> dict[str, Any]:
        """In plain types; an open end of the limits is null."""
        found: dict[str, Any] = {"kind": self.kind}
        for entry in fields(self):  # type: ignore[arg-type]
            value = getattr(self, entry.name)
            found[entry.name] = [_plain(each) for each in value] if isinstance(value, tuple) else _plain(value)
        return found


@dataclass(frozen=True, eq=False)
class CustomLaw(ControlLaw):
    """A Python object of its unit that no file can hold; ``given`` None: read from a file, which has its name only."""

    kind: ClassVar[str] = "own"
    storable: ClassVar[bool] = False

    name: str
    given: Law | None = None

    @property
    def looks(self) -> bool:  # type: ignore[override]
        return self.given is not None

    @property
    def memory(self) -> int:
        return 0 if self.given is None else int(self.given.memory)

    def answer(self, seen: LawInput) -> FloatArray:
        """One number for all worlds will do; ModelError "law-fails": it raised, or answers with another shape."""
        if self.given is None:
            raise ModelError(
                f"the law {self.name!r} is an object of its unit and not stored: give it again with its Loop."
            )
        read_only = (np.broadcast_to(each, each.shape) for each in (seen.moved, seen.reading, seen.target))
        moved, reading, target = read_only
        shown = LawInput(moved, reading, target, seen.row, seen.dt)
        try:
            said = np.asarray(self.given.output(shown))
        except Exception as error:
            raise ModelError(f"{self} fails in row {seen.row}: {_words(error)}", code=FAILS) from error
        worlds = len(seen.reading)
        if said.dtype.kind not in "fiub" or said.shape not in ((), (worlds,)):
            raise ModelError(
                f"{self} answers with {said.dtype} of shape {said.shape} in row {seen.row}: output(seen) is to return "
                f"one real number for each of the {worlds} worlds that it is shown",
                code=FAILS,
            )
        return said.astype(np.float64)

    def output(self, seen: LawInput, left: FloatArray | float = 0.0) -> FloatArray:
        said = super().output(seen, left)
        if not np.isfinite(said).all():
            raise ModelError(
                f"{self} answers in row {seen.row} with what is not finite: output(seen) is to return a number in "
                "every row; a target that nobody records is NaN in what it sees",
                code=FAILS,
            )
        return said

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "name": self.name}

    def __str__(self) -> str:
        return f"law {self.name!r}, which is not stored" if self.given is None else f"law {self.name}"


def as_law(law: object, what: str = "law", kind: type[CounterflowError] = ModelError) -> ControlLaw:
    """A law with all that is asked of one; refuses what is no law. ``what``: the loop that it is given to."""
    if isinstance(law, ControlLaw):
        return law
    name = type(law).__name__
    try:
        memory, output = getattr(law, "memory", None), getattr(law, "output", None)
    except Exception as error:
        raise kind(f"{what}: law {name} cannot be read: {_words(error)}", code=FAILS) from error
    if memory is None or not callable(output) or isinstance(law, type):
        given = f"the class {law.__name__}" if isinstance(law, type) else name
        raise kind(f"{what}: {given} is no law: pass a PID, or an object with memory and output(seen)")
    if isinstance(memory, bool) or not isinstance(memory, (int, np.integer)) or not 0 <= memory <= MOST_MEMORY:
        raise kind(
            f"{what}: the memory of law {name} is {memory!r:.80}: pass a whole number of rows from 0 to {MOST_MEMORY}",
            code=FAILS,
        )
    return CustomLaw(name, law)  # type: ignore[arg-type]


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {error!s:.200}"


def _plain(value: object) -> object:
    return None if isinstance(value, float) and not np.isfinite(value) else value


def active_rows(moved: FloatArray) -> BoolArray:
    """Rows (T,) in which an input is at work: it moves in the row, or within a few rows of it."""
    still = np.diff(moved, prepend=moved[:1]) == 0
    edges = np.flatnonzero(np.diff(still.astype(np.int8), prepend=0, append=0))
    out = np.ones(len(moved), bool)
    for first, last in zip(edges[::2], edges[1::2], strict=True):
        if last - first >= STILL or first == 0:
            out[first:last] = False
    return out


def last_known(series: FloatArray) -> FloatArray:
    """A series (T,) with its last value where one is missing."""
    known = np.isfinite(series)
    if known.all():
        return series
    last = np.maximum.accumulate(np.where(known, np.arange(len(series)), -1))
    first = int(np.argmax(known))
    return np.asarray(series[np.where(last < 0, first, last)])


def trimmed_square(error: FloatArray) -> float:
    """Mean square without the largest: rows in which a target moved."""
    size = np.abs(error)
    return float(np.square(error[size <= np.quantile(size, 1 - TRIMMED)]).mean())


def check_limits(given: object, what: str) -> tuple[float, float]:
    """Limits that somebody gave, (low, high) or None."""
    if given is None:
        return FREE
    if isinstance(given, (Sequence, np.ndarray)) and len(given) == 2:
        numbers = all(isinstance(end, (int, float, np.number)) and not isinstance(end, bool) for end in given)
        if numbers and given[0] < given[1]:  # also refuses NaN
            return float(given[0]), float(given[1])
    raise ModelError(f"{what}: limits is {given!r:.80}: pass (low, high) with low < high, or None.")


def check_delay(delay: object, what: str) -> None:
    """Refuse what is no number of rows by which a controller sees its reading late."""
    if type(delay) is not int or not 0 <= delay <= 100:
        raise ModelError(f"{what}: delay is {delay!r:.80}: pass a whole number of rows from 0 to 100.")


def limits_words(limits: tuple[float, float]) -> str:
    """ ", limits 0 to 100"; nothing where both ends are open."""
    low, high = limits
    return "" if np.isinf(low) and np.isinf(high) else f", limits {low:.4g} to {high:.4g}"
