"""What all questions share: the request with its form, and how it is asked; ``answer`` has what all answers share.

A kind of question is a module of its own: a ``Request`` (what is asked, with its checks), the server's half
(``respond``), the unit's half (``messages`` and ``answer``), its words, and an ``Answer`` that names its values.
``registry`` lists them; library, command line, report, console and federation go through it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from counterflow._version import __version__
from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat, by_weight, verdict_of
from counterflow.control import Law
from counterflow.control.controller import law_supposed
from counterflow.errors import DataError
from counterflow.plant.calendar import Calendar
from counterflow.protocol import Answer as Message
from counterflow.protocol import Ask, Change
from counterflow.questions.answer import About, Answer, Described, Responder
from counterflow.questions.parts import Watch
from counterflow.questions.replicates import named_world
from counterflow.questions.server_model import ServerModel

if TYPE_CHECKING:
    from counterflow.exchange.part import UnitPart

Inputs = Mapping[str, Mapping[str, Any]]  # {unit: {input channel: number or series}}
Laws = Mapping[str, Mapping[str, Law]]  # {unit: {input channel that a controller moves: its law}}
DRAWN = 4  # channels, if the asker does not choose


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
    """What is asked: a frozen dataclass for each kind."""

    kind: ClassVar[str]  # a noun: in the registry, on the wire, in JSON
    tab: ClassVar[str]  # its address in the console
    command: ClassVar[str]  # its command
    title: ClassVar[str]  # what it asks, in words
    example: ClassVar[str]  # of its command
    form: ClassVar[tuple[Entry, ...]]
    of_past: ClassVar[bool] = False  # needs the unit's own measurements
    after_record: ClassVar[bool] = False  # refers to the last recorded row
    of_shares: ClassVar[bool] = False  # each part of the answer says what one unit's inputs have done
    drawn: ClassVar[str] = "channels"  # what the asker may choose to have drawn: channels, one channel, or ""
    speaks_of_drawn: ClassVar[bool] = False  # a page's sentence is about the channel that is drawn first
    of_worlds: ClassVar[bool] = False  # it can be asked with controllers held or reacting
    windowed: ClassVar[bool] = False  # its answer has rows, any window of which can be summed up
    held_only: ClassVar[bool] = False  # it is answered with controllers held, and says so
    of_states: ClassVar[bool] = False  # the server can ask it, too: it needs nothing that only a unit has

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

    @abstractmethod
    def messages(self, server: Responder, part: UnitPart) -> tuple[list[Change], Ask]:
        """What the unit sends; a request that makes no sense is refused here."""

    @classmethod
    @abstractmethod
    def respond(cls, server: ServerModel, changes: Sequence[Change], ask: Ask) -> tuple[Message, ...]:
        """The server's half: at the level of the asking unit's states."""

    @abstractmethod
    def answer(self, about: About, part: UnitPart, parts: Sequence[Message], y: FloatArray | None) -> Answer:
        """The unit's half: what it makes of the server's answer with its own model and measurements."""

    @abstractmethod
    def words(self, plant: Described, calendar: Calendar | None = None) -> str:
        """The question in words; ``calendar``: of the rows that it is about."""

    @classmethod
    def columns(cls, change: Change) -> list[int]:
        """The inputs that a change is about: those that must be determined, and open to the asker."""
        return change.moved

    @classmethod
    def caveats(cls, server: ServerModel, parts: Sequence[Message]) -> list[Caveat]:
        """What the server adds to the caveats of the fit."""
        return []


@dataclass(frozen=True)
class AskWorlds(Request):
    """A question that can be asked with controllers held or reacting, also with other ``laws``."""

    of_worlds = True

    controllers: str | None = field(default=None, kw_only=True)
    laws: Laws | None = field(default=None, kw_only=True)


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


# ---- what the unit does with the server's answer


def ask_server(
    request: Request, plant: Described, server: Responder, part: UnitPart, y: FloatArray | None = None,
    watch: Watch | None = None, calendar: Calendar | None = None,
) -> Any:  # fmt: skip
    """Ask: the unit's messages go to the server, and with its own part the unit makes the answer of what comes back.

    ``y`` (rows, D_m): the unit's own measurements of all rows that the server refers to, for questions that need them.
    """
    if server.link is not None and part.link is not None and server.link != part.link:
        raise DataError(
            f"unit {part.unit.name!r}: its file belongs to another fit than the server's, so that they mean different "
            "states; load both from one saved fit"
        )
    changes, ask = request.messages(server, part)
    measured = _own_measurements(request.kind, server, part, y) if request.of_past else y
    parts = server.ask(changes, ask, watch)
    noise = np.sqrt(np.diag(part.model.R))
    laws: Laws = getattr(request, "laws", None) or {}
    supposed = [law_supposed(unit, moves, law) for unit, given in laws.items() for moves, law in given.items()]
    caveats = by_weight([*parts[0].noted, *part.caveats, *supposed])
    return request.answer(
        About(request, plant, part.unit.outputs, noise, caveats, server, calendar), part, parts, measured
    )


def _own_measurements(question: str, server: Responder, part: UnitPart, y: object) -> FloatArray:
    array = np.asarray(y, np.float64)
    shape = (server.rows, part.model.n_outputs)
    if array.shape != shape:
        raise DataError(f"{question}: unit {part.unit.name!r} needs its measurements {shape}, got shape {array.shape}")
    return array
