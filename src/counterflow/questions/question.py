"""What all questions share: the request with its form and its checks, and how it is asked.

A kind of question is a module of its own: a ``Request`` (what is asked, and which worlds the server compares for it:
``respond``), its words, and an ``Answer`` that names its values. ``registry`` lists them; library, command line,
report, console and federation go through it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from counterflow import wording
from counterflow._version import __version__
from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat, by_weight, verdict_of
from counterflow.control import Law
from counterflow.control.controller import law_supposed
from counterflow.errors import DataError, OptionError, UnknownNameError
from counterflow.frames import columns_of
from counterflow.plant.calendar import Calendar
from counterflow.plant.units import PublicUnit, Unit
from counterflow.protocol import Ask, Change
from counterflow.protocol.questions import HELD, REACTING
from counterflow.questions.answer import About, Answer, Described, Responder
from counterflow.questions.phrases import moved, named_world, with_verb

if TYPE_CHECKING:
    from counterflow.exchange.part import UnitPart
    from counterflow.questions.answering import Watch

Inputs = Mapping[str, Mapping[str, Any]]  # {unit: {input channel: number or series}}
Laws = Mapping[str, Mapping[str, Law]]  # {unit: {input channel that a controller moves: its law}}
DRAWN = 4  # channels, if the asker does not choose
MOST_STEPS = 1_000_000


# ---- the form of a question: what a command line or a page asks for


class Form(Enum):
    """Kinds of entries; every front end reads each kind in one way."""

    UNIT = "unit"
    UNITS = "units"  # any number; none: all
    CHANGES = "changes"  # {unit: {input: number or series}}, added from now on
    PAST = "past"  # {unit: {input: number or series}}, set or added in a window: (do, add)
    PLAN = "plan"  # {unit: {input: number}} from now on
    TARGET = "target"  # {output: number}
    LEVERS = "levers"  # {unit: [inputs]}
    STEPS = "steps"
    ROW = "row"
    LEVEL = "level"
    VECTOR = "vector"
    WORLD = "world"  # whether controllers react
    LAWS = "laws"  # {unit: {input: law}} of controllers that would follow another law


@dataclass(frozen=True)
class Entry:
    """One entry of a form; ``default`` is ``...`` if it must be given. ``page``: whether the console has it, too."""

    name: str
    form: Form
    default: Any = ...
    help: str = ""
    page: bool = True
    option: str = ""  # of the command line, where it has another name there


@dataclass(frozen=True)
class Moves:
    """Changes of inputs as a front end has read them, with their wording where numbers do not say it all."""

    values: Inputs
    words: str = ""
    add: Inputs = field(default_factory=dict)  # of the past: what is added instead of set


LEVEL = Entry("level", Form.LEVEL, 0.95, "Of the intervals, between 0 and 1.")
CONTROLLERS = Entry(
    "controllers", Form.WORLD, None, "Whether controllers are held or react (as the data can support).",
)  # fmt: skip
LAWS = Entry(
    "laws", Form.LAWS, (), "Another law of a controller, such as boiler.valve=manual; may repeat.", option="law",
)  # fmt: skip
START = Entry("start", Form.ROW, 0, "First row, or a date.")
STOP = Entry("stop", Form.ROW, None, "Row or date after the last one, or a time after --start such as 2h (the end).")


def horizon(help: str = "Steps to follow, or a time such as 2h.") -> Entry:
    return Entry("horizon", Form.STEPS, 50, help)


@dataclass(frozen=True)
class Request(ABC):
    """What is asked: a frozen dataclass for each kind.

    ``headline``: the output that a report draws large; ``question``: its heading.
    """

    kind: ClassVar[str]  # a noun: in the registry, on the wire, in JSON
    tab: ClassVar[str]  # its address in the console
    command: ClassVar[str]  # its command
    title: ClassVar[str]  # what it asks, in words
    example: ClassVar[str]  # of its command
    form: ClassVar[tuple[Entry, ...]]
    of_past: ClassVar[bool] = False  # of rows start to stop - 1; needs the unit's own measurements
    after_record: ClassVar[bool] = False  # refers to the last recorded row
    of_shares: ClassVar[bool] = False  # each part of the answer says what one unit's inputs have done
    of_levers: ClassVar[bool] = False  # it is about all inputs that its changes name, whatever their values
    of_intervals: ClassVar[bool] = False  # its answer has an interval wherever the fit tells how far it may be off
    drawn: ClassVar[str] = "channels"  # what the asker may choose to have drawn: channels, one channel, or ""
    speaks_of_drawn: ClassVar[bool] = False  # a page's sentence is about the channel that is drawn first
    of_worlds: ClassVar[bool] = False  # it can be asked with controllers held or reacting
    windowed: ClassVar[bool] = False  # its answer has rows, any window of which can be summed up
    held_only: ClassVar[bool] = False  # it is answered with controllers held, and says so
    of_states: ClassVar[bool] = False  # the server can ask it, too: it needs nothing that only a unit has

    respond: ClassVar[Any] = None  # the server's half, with the asking unit's states; None: as ``Server.compare``

    headline: str | None = field(default=None, kw_only=True)
    question: str = field(default="", kw_only=True)

    @property
    def asker(self) -> str:
        """The unit whose outputs are asked about."""
        return str(getattr(self, next(each.name for each in self.form if each.form in (Form.UNIT, Form.UNITS))))

    @classmethod
    def from_form(cls, given: Mapping[str, Any], unit: str) -> Self:
        """From a form that a front end has read, about one unit's outputs."""
        found: dict[str, Any] = {}
        for entry in cls.form:
            value = given.get(entry.name, entry.default)
            if entry.form in (Form.UNIT, Form.UNITS):
                found[entry.name] = unit
            elif entry.form is Form.CHANGES:
                found |= {"cause": list(value.values), "change": value.values, "clause": value.words}
            elif entry.form is Form.PAST:
                found |= {"do": value.values or None, "add": value.add or None, "clause": value.words}
            elif entry.form in (Form.PLAN, Form.LAWS, Form.VECTOR):
                found[entry.name] = value or None
            else:
                found[entry.name] = value
        return cls(**found)

    # ---- what a kind of question adds

    def changes(self, plant: Described, part: UnitPart, rows: slice) -> list[Change]:
        """What is done to which inputs; what makes no sense is refused here."""
        return []

    @abstractmethod
    def answer(self, about: About, y: FloatArray | None) -> Answer:
        """The unit's half: what it makes of the server's answer with its own model and measurements."""

    @abstractmethod
    def asked(self, plant: Described, calendar: Calendar | None) -> str:
        """The question in words, where nobody has said it in others."""

    # ---- written once

    def words(self, plant: Described, calendar: Calendar | None = None) -> str:
        """The question in words; ``calendar``: of the rows that it is about."""
        return self.question or self.asked(plant, calendar)

    def put(
        self, plant: Described, server: Responder, part: UnitPart, y: FloatArray | None = None,
        watch: Watch | None = None, calendar: Calendar | None = None,
    ) -> Any:  # fmt: skip
        """Ask: the unit's messages go to the server, and with its own part the unit makes an answer of what comes back.

        ``y`` (rows, D_m): the unit's own measurements of all rows that the server refers to, for questions of the past.
        """
        unit = part.unit.name
        if server.link is not None and part.link is not None and server.link != part.link:
            raise DataError(
                f"unit {unit!r}: its file belongs to another fit than the server's, so that they mean different "
                "states; load both from one saved fit"
            )
        changes, ask = self.messages(plant, server, part)
        if self.of_past:
            y, shape = np.asarray(y, np.float64), (server.rows, part.model.n_outputs)
            if y.shape != shape:
                raise DataError(f"{self.kind}: unit {unit!r} needs its measurements {shape}, got shape {y.shape}")
        parts = server.ask(changes, ask, watch)
        laws: Laws = getattr(self, "laws", None) or {}
        supposed = [law_supposed(name, moves, law) for name, given in laws.items() for moves, law in given.items()]
        caveats = by_weight([*parts[0].noted, *part.caveats, *supposed])
        return self.answer(About(self, plant, part, parts, caveats, server, calendar), y)

    def messages(self, plant: Described, server: Responder, part: UnitPart) -> tuple[list[Change], Ask]:
        """What the unit sends; numbers that make no sense are refused here, by the names of their fields."""
        given: dict[str, Any] = {**vars(self)}
        level, world = given.get("level", 0.95), given.get("controllers")
        if isinstance(level, bool) or not isinstance(level, (int, float)) or not 0 < level <= 0.999999:
            raise OptionError(f"{self.kind}: level must lie between 0 and 1, got {level!r}")
        if world not in (None, HELD, REACTING):
            raise OptionError(
                f'{self.kind}: controllers must be "held" (what controllers move stays as it is) or "reacting" (they '
                f"answer, as in the running plant), or None for what the data can support; got {world!r:.80}"
            )
        if self.of_past:
            start, stop = given["start"], server.rows if given["stop"] is None else given["stop"]
            check_window(self.kind, server.rows, start, stop)
        else:
            start, stop = 0, given.get("horizon", 1)
        lasting = 1 if given.get("duration") is None else given["duration"]
        for name, value in (("horizon", given.get("horizon", 1)), ("duration", lasting)):
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 1 <= value <= MOST_STEPS:
                raise OptionError(f"{self.kind}: {name} must be a whole number from 1 to {MOST_STEPS:,}, got {value!r}")
        changes = self.changes(plant, part, slice(start, stop))
        return changes, Ask(self.asker, self.kind, start, stop - start, world or "")


@dataclass(frozen=True)
class AskWorlds(Request):
    """A question that can be asked with controllers held or reacting, also with other ``laws``."""

    of_worlds = True

    controllers: str | None = field(default=None, kw_only=True)
    laws: Laws | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class AskChange(Request):
    """``clause``: how the change reads, where numbers do not say it all."""

    of_states = True
    windowed = True

    cause: str | Sequence[str]
    effect: str
    change: Any
    horizon: Any = 50  # steps, or a time such as "2h"
    duration: Any = None
    clause: str = field(default="", kw_only=True)

    @property
    def causes(self) -> list[str]:
        return unit_names(self.kind, "cause", self.cause)

    def change_of(self, name: str) -> Any:
        """The change at one of the causes."""
        if isinstance(self.cause, str):
            return self.change
        if not isinstance(self.change, Mapping) or name not in self.change:
            raise OptionError(
                f"effect: with several causes, change must be {{unit: change}}; nothing is given for {name!r}"
            )
        return self.change[name]

    def held(self, plant: Described) -> dict[str, Any]:
        """{unit: {input: number or series}}."""
        return {name: by_channel(plant.unit(name), self.change_of(name)) for name in self.causes}

    def changes(self, plant: Described, part: UnitPart, rows: slice) -> list[Change]:
        """With one row more than steps: for inputs that act on the row they stand in."""
        found = []
        for name in self.causes:
            one = changed_inputs(part.unit.name, plant.unit(name), self.change_of(name), rows, False, self.duration)
            last = one.values[-1:] if self.duration is None else np.zeros_like(one.values[-1:])
            found.append(replace(one, values=np.vstack([one.values, last])))
        return found

    def change_words(self, plant: Described) -> str:
        """ "boiler valve were +2 % for 10 steps" """
        if self.clause:
            return self.clause
        held: Inputs = self.held(plant)
        each = [(unit, name, value) for unit, channels in held.items() for name, value in channels.items()]
        text = with_verb([moved(plant, *one) for one in each], "were")
        if any(np.ndim(value) for _, _, value in each):
            return text
        if self.duration is None or self.duration >= self.horizon:
            return f"{text} from now on"
        return f"{text} for {wording.span(self.duration, plant.dt)}"


def by_channel(source: Unit | PublicUnit, given: Any) -> dict[str, Any]:
    """{input: number or series}."""
    given = columns_of(given)
    if isinstance(given, Mapping):
        return dict(given)
    values = np.asarray(given, np.float64)
    return dict(zip(source.input_names, values.tolist() if values.ndim == 1 else values.T, strict=True))


def envelope(command: str, fit: Any, sentence: str, caveats: Sequence[Caveat]) -> dict[str, Any]:
    """What every answer in JSON begins with; ``fit``: whoever was asked.

    ``controllers``: "held" or "reacting", the world that the answer is about; None where no controllers are known.
    """
    return {
        "version": __version__,
        "command": command,
        "method": fit.method,
        "dt": fit.plant.dt,
        "fit": None if fit.provenance is None else fit.provenance.to_json(),
        "sentence": sentence,
        "controllers": named_world(caveats),
        "caveats": [caveat.to_view() for caveat in caveats],
        "verdict": verdict_of(caveats),
    }


# ---- what a user may write: checked by name and turned into arrays


def check_window(question: str, rows: int, start: object, stop: object) -> None:
    good = all(isinstance(v, (int, np.integer)) and not isinstance(v, bool) for v in (start, stop))
    if not good or not 0 <= start < stop <= rows:  # type: ignore[operator]
        raise OptionError(
            f"{question}: start and stop must be rows with 0 <= start < stop <= {rows}, got {start!r} and {stop!r}"
        )


def unit_names(question: str, field: str, given: object) -> list[str]:
    """One unit's name, or several."""
    if isinstance(given, str):
        return [given]
    if not isinstance(given, (Sequence, Mapping)) or not all(isinstance(name, str) for name in given):
        raise OptionError(f"{question}: {field} must be a unit's name, or several, got {given!r:.80}")
    return list(given)


def channel_index(unit: Unit | PublicUnit, name: str, names: tuple[str, ...], kind: str) -> int:
    if name not in names:
        there = f"there are {', '.join(names)}" if names else "there is none"
        raise UnknownNameError(f"unit {unit.name!r} has no {kind} {name!r:.100} that can be asked about here; {there}")
    return names.index(name)


def changed_inputs(
    asker: str, source: Unit | PublicUnit, given: Any, rows: slice, absolute: bool, most: int | None = None
) -> Change:
    """A change of a unit's inputs in some rows; ``absolute``: what is in their place, else what is added to them.

    ``given``: {input: number or series}, or numbers, one for each input or a row of them for each row. ``most``: rows
    for which it lasts; from now on there is one row more than steps, for inputs that act on the row they stand in.
    """
    count, names = rows.stop - rows.start, source.input_names
    if isinstance(given, Mapping):
        if not given:
            raise OptionError(f"the change at unit {source.name!r} is empty; its inputs are {', '.join(names)}")
        values, channels = np.zeros((count, len(names))), [channel_index(source, n, names, "input") for n in given]
        for k, (name, value) in zip(channels, given.items(), strict=True):
            series = _numbers(source, value)
            if series.shape not in ((), (count,)):
                raise DataError(
                    f"unit {source.name!r}, input {name!r}: give one number or {count}, got shape {series.shape}"
                )
            values[:, k] = series
    else:
        array, channels = _numbers(source, given), list(range(len(names)))
        if array.shape not in ((len(names),), (count, len(names))):
            raise DataError(
                f"the change at unit {source.name!r} needs {len(names)} numbers, one for each of {', '.join(names)}, "
                f"or {count} rows of them; got shape {array.shape}"
            )
        values = np.broadcast_to(array, (count, len(names))).copy()
    values[count if most is None else most :] = 0.0
    for k in channels:
        low, high = source.inputs[k].limits or (-np.inf, np.inf)
        place, measure = f"unit {source.name!r}, input {source.inputs[k].name!r}", source.inputs[k].unit
        lowest, highest, size = values[:, k].min(), values[:, k].max(), np.abs(values[:, k]).max()
        if absolute and (lowest < low or highest > high):
            worst = lowest if lowest < low else highest
            raise OptionError(f"{place}: {worst:g} {measure} is outside its limits {low:g} to {high:g}")
        if not absolute and size > high - low:
            raise OptionError(f"{place}: a change of {size:g} {measure} is wider than its limits {low:g} to {high:g}")
    return Change(asker, source.name, absolute, rows.start, ",".join(map(str, channels)), values)


def _numbers(unit: Unit | PublicUnit, values: object) -> FloatArray:
    try:
        array = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        raise DataError(f"unit {unit.name!r}: inputs must be numbers, got {values!r:.80}") from None
    if not np.isfinite(array).all():
        raise DataError(f"unit {unit.name!r}: inputs must be finite, got {values!r:.80}")
    return array
