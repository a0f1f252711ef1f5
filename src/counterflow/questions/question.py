"""What all questions share: the request with its form, who answers it, and what an answer says of itself.

A kind of question is a module of its own: a ``Request`` (what is asked, with its checks), the server's half
(``respond``), the unit's half (``messages`` and ``answer``), and an ``Reply`` with its sentence, tables and JSON.
``registry`` lists them; library, command line, report, console and federation go through it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from counterflow._version import __version__
from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat, distinct
from counterflow.errors import DataError, OptionError
from counterflow.plant import Channel
from counterflow.plant.units import PublicUnit, Unit, unknown_name
from counterflow.protocol import Answer, Ask, Change
from counterflow.questions.knowledge import Knowledge, Watch
from counterflow.questions.views import View

if TYPE_CHECKING:
    import polars
    from matplotlib.figure import Figure

    from counterflow.methods.part import UnitPart

Inputs = Mapping[str, Mapping[str, Any]]  # {unit: {input channel: number or series}}
DRAWN = 4  # channels, if the asker does not choose
SHOWN = 8  # rows of a table
RECENT = 200  # rows of the past that are shown with a forecast


class Responder(Protocol):
    """Whom a unit asks: knows the units' names and input channels, and carries a question to where it is answered."""

    @property
    def link(self) -> str | None:
        """What the files of units that may ask refer to; None: anything."""
        ...

    @property
    def rows(self) -> int:
        """How many rows questions about the past can refer to."""
        ...

    def unit(self, name: str) -> PublicUnit:
        """The unit of that name, as far as others know it."""
        ...

    def ask(self, changes: Sequence[Change], ask: Ask, watch: Watch | None = None) -> tuple[Answer, ...]:
        """The answer to a question, in parts."""
        ...


class Surroundings(Protocol):
    """What a console shows beside an answer: a forecast without the change, and the latest measurements."""

    def baseline(self, unit: str, steps: int) -> FloatArray | None: ...

    def recent(self, unit: str) -> FloatArray: ...


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
START = Entry("start", Form.ROW, 0, "First row.")
STOP = Entry("stop", Form.ROW, None, "Row after the last one (the end).")


def horizon(help: str = "Steps to follow.") -> Entry:
    return Entry("horizon", Form.STEPS, 50, help)


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
    pictured: ClassVar[bool] = True  # its answer has a plot
    of_states: ClassVar[bool] = False  # the server can ask it, too: it needs nothing that only a unit has
    schema: ClassVar[type[View]]  # of what a page draws
    unit: str

    @property
    def asker(self) -> str:
        """The unit whose outputs are asked about."""
        return self.unit

    @classmethod
    @abstractmethod
    def of(cls, given: Mapping[str, Any], unit: str) -> Request:
        """From a form that a front end has read, about one unit's outputs."""

    @abstractmethod
    def messages(self, server: Responder, part: UnitPart) -> tuple[list[Change], Ask]:
        """What the unit sends; a request that makes no sense is refused here."""

    @classmethod
    @abstractmethod
    def respond(cls, server: Knowledge, changes: Sequence[Change], ask: Ask) -> tuple[Answer, ...]:
        """The server's half: at the level of the asking unit's states."""

    @abstractmethod
    def answer(self, about: About, part: UnitPart, parts: Sequence[Answer], y: FloatArray | None) -> Reply:
        """The unit's half: what it makes of the server's answer with its own model and measurements."""

    @abstractmethod
    def words(self, plant: Described) -> str:
        """The question in words."""

    @classmethod
    def columns(cls, change: Change) -> list[int]:
        """The inputs that a change is about: those that must be determined, and open to the asker."""
        return change.moved

    @classmethod
    def caveats(cls, server: Knowledge, parts: Sequence[Answer]) -> list[Caveat]:
        """What the server adds to the caveats of the fit."""
        return []


class Described(Protocol):
    """Units with names and channels: a plant, or what is known of one."""

    @property
    def units(self) -> Sequence[Unit | PublicUnit]: ...

    @property
    def dt(self) -> float: ...

    def unit(self, name: str) -> Unit | PublicUnit: ...


@dataclass(frozen=True, eq=False)
class About:
    """What an answer needs to speak of itself: its request, the channels and their noise, the time step, caveats."""

    request: Any
    plant: Described
    outputs: tuple[Channel, ...]
    noise: FloatArray  # (D_m,) standard deviation of each output: makes changes of unlike channels comparable
    caveats: tuple[Caveat, ...]
    server: Responder

    @property
    def dt(self) -> float:
        return self.plant.dt

    def input(self, unit: str, name: str) -> Channel:
        """An input channel of any unit."""
        source = self.plant.unit(unit)
        return source.inputs[source.input_names.index(name)]

    def output(self, name: str) -> int:
        """Index of an output channel."""
        names = tuple(channel.name for channel in self.outputs)
        if name not in names:
            raise unknown_name(f"output of unit {self.request.asker!r}", name, names)
        return names.index(name)


# ---- answers


@dataclass(frozen=True)
class Table:
    """Rows of text; all columns but the first ``left`` are numbers."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1
    more: str = ""


class Reply(ABC):
    """What every answer says of itself, whoever asked."""

    kind: ClassVar[str]
    channels: tuple[str, ...]
    caveats: tuple[Caveat, ...]
    about: About

    @abstractmethod
    def sentence(self, channel: str | None = None) -> str:
        """The answer in words: of one channel, or of the one that it says most about."""

    @abstractmethod
    def tables(self, channels: Sequence[str] = ()) -> list[Table]:
        """The answer as tables."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The whole answer in plain types and arrays."""

    @abstractmethod
    def to_frame(self) -> polars.DataFrame:
        """The answer as a table of numbers."""

    @abstractmethod
    def order(self) -> list[int]:
        """Indices of the output channels, those that the answer says most about first."""

    def ranked_channels(self) -> list[str]:
        """The same by their names."""
        return [self.channels[k] for k in self.order()]

    def chosen(self, channel: str | None) -> int:
        """Index of one output channel; None: of the one that the answer says most about."""
        return self.order()[0] if channel is None else self.about.output(channel)

    @abstractmethod
    def view(self, drawn: Sequence[str], around: Surroundings) -> dict[str, Any]:
        """What a page draws of the answer, of these channels; see ``Request.schema``."""

    def plot(self) -> Figure:
        raise OptionError(f"an answer of kind {self.kind!r} has no figure; see its tables() or to_frame()")

    def __str__(self) -> str:
        lines = [self.sentence()]
        for table in self.tables():
            widths = [max(map(len, column)) for column in zip(table.columns, *table.rows, strict=True)]
            for row in (table.columns, *table.rows):
                cells = [
                    cell.ljust(width) if k < table.left else cell.rjust(width)
                    for k, (cell, width) in enumerate(zip(row, widths, strict=True))
                ]
                lines.append("  " + "  ".join(cells).rstrip())
        return "\n".join([*lines, *(f"  note: {caveat}" for caveat in self.caveats)])


def envelope(command: str, fit: Any, sentence: str, caveats: Sequence[Caveat]) -> dict[str, Any]:
    """What every answer in JSON begins with; ``fit``: whoever was asked."""
    return {
        "version": __version__,
        "command": command,
        "method": fit.method,
        "dt": fit.plant.dt,
        "sentence": sentence,
        "caveats": [caveat.to_json() for caveat in caveats],
    }


# ---- what the unit does with the server's answer


def ask_server(
    request: Request, plant: Described, server: Responder, part: UnitPart, y: FloatArray | None = None,
    watch: Watch | None = None,
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
    caveats = distinct([*parts[0].noted, *part.caveats])
    return request.answer(About(request, plant, part.unit.outputs, noise, caveats, server), part, parts, measured)


def _own_measurements(question: str, server: Responder, part: UnitPart, y: object) -> FloatArray:
    array = np.asarray(y, np.float64)
    shape = (server.rows, part.model.n_outputs)
    if array.shape != shape:
        raise DataError(f"{question}: unit {part.unit.name!r} needs its measurements {shape}, got shape {array.shape}")
    return array
