"""Units of a plant and their named channels."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np

from counterflow.arrays import FloatArray, whole_number
from counterflow.control import Loop
from counterflow.control.law import check_limits
from counterflow.errors import CounterflowError, ModelError, UnknownNameError
from counterflow.printable import checked, flaw

_INFINITIES = (float("-inf"), float("inf"))
MANIPULATED, SET_POINT = "manipulated", "set point"  # roles of channels; any other input is free, any output measured
_ROLES = ("", MANIPULATED, SET_POINT)
_LONGEST_NAME = 100  # characters
_LONGEST_NAME_BYTES = 240  # unit names become file names, which file systems limit to 255 bytes


@dataclass(frozen=True)
class Channel:
    """One input or output of a unit: its name, unit of measure and limits.

    Parameters
    ----------
    name : str
        Unique within its unit.
    unit : str
        Unit of measure, for people; never interpreted.
    limits : (low, high), optional
        The range the channel can take; either end may be infinite. None means not known.
    role : str
        "manipulated": a controller moves it; "set point": a controller aims at it; "": neither. A unit's loops set it.

    Examples
    --------
    >>> Channel("valve", unit="%", limits=(0, 100))
    Channel(name='valve', unit='%', limits=(0.0, 100.0))
    """

    name: str
    unit: str = ""
    limits: tuple[float, float] | None = None
    role: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        check_name(self.name, "channel")
        if self.role not in _ROLES:
            raise ModelError(f"channel {self.name!r}: role is {self.role!r:.80}: pass one of {', '.join(_ROLES[1:])}.")
        unit = checked(self.unit, f"channel {self.name!r}: unit of measure", _LONGEST_NAME, ModelError, composed=False)
        object.__setattr__(self, "unit", unicodedata.normalize("NFC", unit))
        if self.limits is not None:
            object.__setattr__(self, "limits", check_limits(self.limits, f"channel {self.name!r}"))

    def to_json(self) -> dict[str, Any]:
        """In plain types; JSON has no infinity, so an open end of the limits is null."""
        ends = None if self.limits is None else [None if end in _INFINITIES else end for end in self.limits]
        role = {"role": self.role} if self.role else {}
        return {"name": self.name, "unit": self.unit, "limits": ends, **role}

    @classmethod
    def from_json(cls, found: object) -> Channel:
        """From plain types that nobody has checked."""
        if not isinstance(found, dict) or set(found) - {"role"} != {"name", "unit", "limits"}:
            raise ModelError(f"a channel has name, unit and limits, and perhaps a role, got {found!r:.80}.")
        ends, role = found["limits"], found.get("role", "")
        if ends is None:
            return cls(found["name"], found["unit"], role=role)
        numbers = isinstance(ends, list) and len(ends) == 2
        if not numbers or not all(end is None or (type(end) in (int, float) and abs(end) < 1e308) for end in ends):
            raise ModelError(f"channel {found['name']!r:.80}: limits is {ends!r:.80}: two numbers or nulls are needed.")
        low, high = (infinity if end is None else end for end, infinity in zip(ends, _INFINITIES, strict=True))
        return cls(found["name"], found["unit"], (low, high), role)


class _Inputs:
    """What is the same for a unit and what others know of it."""

    inputs: tuple[Channel, ...]

    @property
    def n_inputs(self) -> int:
        return len(self.inputs)

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(channel.name for channel in self.inputs)


@dataclass(frozen=True)
class PublicUnit(_Inputs):
    """What others know of a unit: its name, its input channels and how many states it has. Nothing private."""

    name: str
    inputs: tuple[Channel, ...]
    states: int

    def __post_init__(self) -> None:
        check_name(self.name, "unit")
        object.__setattr__(self, "inputs", _channels(self.inputs, "u", f"unit {self.name!r}: inputs", 0))
        object.__setattr__(self, "states", whole_number(self.states, f"unit {self.name!r}: states", 0, ModelError))
        repeated = first_repeated(self.input_names)
        if repeated is not None:
            raise ModelError(f"unit {self.name!r}: channel name {repeated!r} is used twice: rename one of them.")


@dataclass(frozen=True, init=False)
class Unit(_Inputs):
    """One unit of a plant: how many states it has, and what it calls its inputs and outputs.

    Parameters
    ----------
    name : str
        Unique within the plant. It becomes part of file names.
    states : int
        Number of states, at least 1.
    inputs, outputs : int or sequence of str or Channel
        A count (channels are then called u1, u2, ... and y1, y2, ...) or the channels themselves. A unit may have no
        inputs; it has at least one output. After construction both are tuples of Channel.
    loops : sequence of Loop
        Its controllers, as far as they are declared.

    Examples
    --------
    >>> boiler = Unit("boiler", states=3, inputs=["fuel", Channel("valve", "%", (0, 100))], outputs=2)
    >>> boiler.input_names, boiler.output_names
    (('fuel', 'valve'), ('y1', 'y2'))
    >>> drum = Unit("drum", inputs=["feed"], outputs=["level"], loops=[Loop(moves="feed", reads="level")])
    >>> drum.inputs[0].role
    'manipulated'
    """

    name: str
    states: int
    inputs: tuple[Channel, ...]
    outputs: tuple[Channel, ...]
    loops: tuple[Loop, ...] = field(default=(), metadata={"optional": True})

    def __init__(
        self, name: str, states: int = 2, inputs: int | Sequence[str | Channel] = 2,
        outputs: int | Sequence[str | Channel] = 8, *, loops: Sequence[Loop] = (),
    ) -> None:  # fmt: skip
        check_name(name, "unit")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "states", whole_number(states, f"unit {name!r}: states", 1, ModelError))
        object.__setattr__(self, "inputs", _channels(inputs, "u", f"unit {name!r}: inputs", 0))
        object.__setattr__(self, "outputs", _channels(outputs, "y", f"unit {name!r}: outputs", 1))
        repeated = first_repeated(self.input_names + self.output_names)
        if repeated is not None:
            raise ModelError(f"unit {name!r}: channel name {repeated!r} is used twice: rename one of them.")
        self._set_loops(loops)

    def _set_loops(self, loops: object) -> None:
        """Check the loops, and give the channels their roles."""
        if isinstance(loops, Loop) or not isinstance(loops, Sequence) or not all(isinstance(x, Loop) for x in loops):
            raise ModelError(f"unit {self.name!r}: loops is {loops!r:.80}: pass a sequence of Loop.")
        roles: dict[str, str] = {}
        for loop in loops:
            if loop.moves not in self.input_names:
                raise unknown_name(f"input of unit {self.name!r} (a loop moves it)", loop.moves, self.input_names)
            if roles.get(loop.moves) == MANIPULATED:
                raise ModelError(f"unit {self.name!r}: two loops move {loop.moves!r}: one input, one controller.")
            if loop.reading_unit is None and loop.reads not in self.output_names + self.input_names:
                raise unknown_name(f"output of unit {self.name!r} (a loop reads it)", loop.reads, self.output_names)
            if loop.target is not None and loop.target not in self.input_names + self.output_names:
                raise unknown_name(f"input of unit {self.name!r} (a loop aims at it)", loop.target, self.input_names)
            roles[loop.moves] = MANIPULATED
            if loop.target is not None:
                roles.setdefault(loop.target, SET_POINT)
        object.__setattr__(self, "loops", tuple(loops))
        for side in ("inputs", "outputs") if roles else ():
            given = getattr(self, side)
            named = tuple(replace(each, role=roles.get(each.name, each.role)) for each in given)
            object.__setattr__(self, side, named)

    @property
    def public(self) -> PublicUnit:
        """What others may know of it."""
        return PublicUnit(self.name, self.inputs, self.states)

    @property
    def n_outputs(self) -> int:
        return len(self.outputs)

    @property
    def output_names(self) -> tuple[str, ...]:
        return tuple(channel.name for channel in self.outputs)


def _channels(given: object, letter: str, what: str, least: int) -> tuple[Channel, ...]:
    if isinstance(given, (str, bytes)) or not isinstance(given, (Sequence, np.ndarray)):
        count = whole_number(given, what, least, ModelError)
        return tuple(Channel(f"{letter}{k + 1}") for k in range(count))
    if isinstance(given, np.ndarray) and given.ndim != 1:
        raise ModelError(f"{what} is an array of shape {given.shape}: pass a count or a sequence of names or Channels.")
    if len(given) < least:
        raise ModelError(f"{what} is empty: give at least {least} channel.")
    for entry in given:
        if not isinstance(entry, (Channel, str)):
            raise ModelError(f"{what} holds {entry!r}: pass a count or a sequence of names or Channels.")
    try:
        return tuple(entry if isinstance(entry, Channel) else Channel(str(entry)) for entry in given)
    except ModelError as error:
        raise ModelError(f"{what}: {error}") from None


def check_name(name: object, what: str) -> None:
    """Refuse a name that is not text, or could not stand in a file name, a column header and a message."""
    if not isinstance(name, str):
        raise ModelError(f"{what}: name is {name!r}: pass text.")
    size = len(name.encode(errors="surrogatepass"))
    for wrong, problem in (
        (not name, "is empty: give it a name"),
        (found := flaw(name, _LONGEST_NAME), found),
        ("/" in name or "\\" in name, "holds a slash: use another sign such as '-'"),
        (name.startswith("."), "starts with a dot: let it start with a letter"),
        (name != name.strip(), "starts or ends with a space: remove it"),
        (size > _LONGEST_NAME_BYTES, f"takes {size} bytes in UTF-8: shorten it to {_LONGEST_NAME_BYTES}"),
    ):
        if wrong:
            raise ModelError(f"{what}: name {name[:_LONGEST_NAME]!r} {problem}.")


def check_units(units: object) -> tuple[Unit, ...]:
    """`units` as a non-empty tuple of Unit with different names."""
    if isinstance(units, (str, bytes, Unit)) or not isinstance(units, Iterable):
        raise ModelError(f"units is {units!r}: pass a sequence of Unit, such as [Unit('boiler'), Unit('turbine')].")
    checked = tuple(units)
    for unit in checked:
        if not isinstance(unit, Unit):
            raise ModelError(f"units holds {unit!r}: every entry must be a Unit, such as Unit('boiler', states=2).")
    if not checked:
        raise ModelError("units is empty: a plant has at least one unit.")
    repeated = first_repeated(unit.name for unit in checked)
    if repeated is not None:
        raise ModelError(f"unit name {repeated!r} is used twice: rename one of them.")
    return checked


def refuse_other_channels(unit: Unit, other: Unit, whose: tuple[str, str], kind: type[CounterflowError]) -> None:
    """Refuse a unit that has other channels than another description of it, or the same in another order."""
    for mine, theirs in ((unit.input_names, other.input_names), (unit.output_names, other.output_names)):
        if mine != theirs:
            raise kind(
                f"unit {unit.name!r}: {whose[0]} knows its channels as {', '.join(mine)}, {whose[1]} as "
                f"{', '.join(theirs)}: name and order them alike"
            )


def first_repeated(names: Iterable[str]) -> str | None:
    """The first name that occurs twice, if any."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


@dataclass(frozen=True, eq=False)
class OperatingPoint:
    """Where a unit's inputs rest, and which row they act on: how logged inputs become those of the model.

    With `same_row` the input of row t acts on the measurement of row t already, as where a log writes down at the end
    of an interval what was done during it. Else it acts on row t + 1.
    """

    input_level: FloatArray  # (U,); the model is of departures from it
    same_row: bool = False

    @classmethod
    def none(cls, inputs: int) -> OperatingPoint:
        """Inputs that are the model's as they are."""
        return cls(np.zeros(inputs))

    def departures(self, u: FloatArray) -> FloatArray:
        """Inputs (T+1, U) as the model takes them: row t acts on row t + 1. The last row of a shifted log is held."""
        shifted = np.vstack([u[1:], u[-1:]]) if self.same_row else u
        return np.ascontiguousarray(shifted - self.input_level)


_AnyUnit = TypeVar("_AnyUnit", Unit, PublicUnit)


def unit_named(units: Sequence[_AnyUnit], name: str) -> _AnyUnit:
    """The unit of that name among `units`."""
    for unit in units:
        if unit.name == name:
            return unit
    raise unknown_name("unit", name, tuple(unit.name for unit in units))


def unknown_name(kind: str, name: object, known: Sequence[str]) -> UnknownNameError:
    """The error for a name that does not exist, with the closest ones that do."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5) if isinstance(name, str) else []
    if not close and isinstance(name, str):
        close = [candidate for candidate in known if candidate.casefold() == name.casefold()]
    if close:
        hint = f"did you mean {' or '.join(repr(candidate) for candidate in close)}?"
    else:
        shown = ", ".join(repr(candidate) for candidate in known[:20]) or "none that can be asked about here"
        hint = f"known: {shown}{', ...' if len(known) > 20 else ''}."
    return UnknownNameError(f"no {kind} is called {name!r}: {hint}")
