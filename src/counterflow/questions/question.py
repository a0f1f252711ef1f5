"""What all questions share: the request with its form, who answers it, and what an answer says of itself.

A kind of question is a module of its own: a ``Request`` (what is asked, with its checks), the server's half
(``respond``), the unit's half (``messages`` and ``answer``), and an ``Reply`` with its sentence, tables and JSON.
``registry`` lists them; library, command line, report, console and federation go through it.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from counterflow import wording
from counterflow._version import __version__
from counterflow.arrays import FloatArray
from counterflow.caveats import EVERYBODY, Caveat, distinct
from counterflow.errors import DataError, OptionError
from counterflow.plant.units import Channel, PublicUnit, Unit, unknown_name
from counterflow.protocol import Answer, Ask, Change
from counterflow.questions.knowledge import Knowledge, Watch

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

    @property
    @abstractmethod
    def asker(self) -> str:
        """The unit whose outputs are asked about."""

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
    caveats: tuple[Caveat, ...]

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
    def ranked_channels(self) -> list[str]:
        """Output channels, those that the answer says most about first."""

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


# ---- JSON for a page: schemas as dataclasses


@dataclass(frozen=True)
class CaveatView:
    code: str
    scope: str
    text: str


@dataclass(frozen=True)
class View:
    """What every answer begins with. Numbers that are not known are null."""

    version: str
    command: str
    method: str
    dt: float
    sentence: str
    caveats: list[CaveatView]
    kind: str


@dataclass(frozen=True)
class PeakView:
    """The largest change of a channel; ``size`` in standard deviations of its noise (at the server: as it is)."""

    unit: str
    channel: str
    measured_in: str
    mean: float
    lower: float | None
    upper: float | None
    size: float
    last: float | None = None
    steps: int | None = None
    row: int | None = None


@dataclass(frozen=True)
class LineView:
    """One channel, one number a row; ``mean``, ``lower``, ``upper``: of the change (effect), or of the value."""

    channel: str
    measured_in: str
    mean: list[float | None]
    lower: list[float | None] | None
    upper: list[float | None] | None


# ---- what the unit does with the server's answer


def ask_server(
    request: Request,
    plant: Described,
    server: Responder,
    part: UnitPart,
    y: FloatArray | None = None,
    watch: Watch | None = None,
) -> Any:
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


def deviation(
    answer: Answer, C: FloatArray, noise: FloatArray | None = None, doubt: tuple[FloatArray, FloatArray] | None = None
) -> FloatArray | None:
    """Standard deviation (rows, D_m) of C times the answer's states, plus measurement noise of covariance ``noise``.

    ``doubt``: variances (D_m,) and a matrix (P_m, P_m), where C itself is an estimate: row i of it has covariance
    variance i times the matrix.
    """
    if not len(answer.covariance):
        return None
    blocks = answer.covariance.reshape(len(answer.mean), C.shape[1], C.shape[1])
    variance = np.einsum("di,tij,dj->td", C, blocks, C)
    if doubt is not None:
        variance = variance + np.einsum("ti,ij,tj->t", answer.mean, doubt[1], answer.mean)[:, None] * doubt[0]
    if noise is not None:
        variance = variance + np.diag(noise)
    return np.asarray(np.sqrt(np.maximum(variance, 0.0)))


def band(mean: FloatArray, spread: FloatArray | None, level: float) -> tuple[FloatArray | None, FloatArray | None]:
    """Lower and upper bounds of a two-sided interval, or None."""
    if spread is None:
        return None, None
    from scipy.special import ndtri

    half = float(ndtri(0.5 + level / 2)) * spread
    return mean - half, mean + half


def without_interval(server: Knowledge, parts: Sequence[Answer]) -> list[Caveat]:
    """Of a fit that could have given an interval."""
    if server.couplings is None or len(parts[0].covariance):
        return []
    text = "standard errors were not computed for this fit, so there is no interval"
    return [Caveat("no-interval", EVERYBODY, text)]


# ---- the largest change of each channel


@dataclass(frozen=True)
class Peak:
    """The largest change of one channel: when, how much, between what."""

    unit: str
    channel: Channel
    row: int
    value: float
    lower: float | None
    upper: float | None
    size: float  # in standard deviations of the channel's noise
    last: float

    def sentence(self, level: float | None) -> tuple[float, str]:
        """The change's direction, and "by 3.2 rpm (95 %: 2.8 to 3.6)" with the interval in that direction."""
        sign = -1.0 if self.value < 0 else 1.0
        lower = upper = None
        if self.lower is not None and self.upper is not None:
            lower, upper = sorted((sign * self.lower, sign * self.upper))
        text, interval = wording.measured(abs(self.value), lower, upper, self.channel.unit)
        if not interval or level is None or self.lower is None or self.upper is None:
            return sign, text
        unsure = "" if self.lower > 0 or self.upper < 0 else "; its sign is not sure"
        return sign, f"{text} ({wording.percent(level)}: {interval}{unsure})"

    def to_json(self, when: str = "row", first: int = 0) -> dict[str, Any]:
        """In plain types; ``when`` names the row, counted from ``first``."""
        return {
            "unit": self.unit,
            "channel": self.channel.name,
            "measured_in": self.channel.unit,
            when: self.row + first,
            "mean": self.value,
            "lower": self.lower,
            "upper": self.upper,
            "size": self.size,
            "last": finite(self.last),
        }


def peaks(about: About, mean: FloatArray, lower: FloatArray | None, upper: FloatArray | None) -> list[Peak]:
    """The largest change of every channel, largest (against its noise) first; NaN counts as no change."""
    out = []
    for k, channel in enumerate(about.outputs):
        column = np.abs(np.nan_to_num(mean[:, k]))
        row = int(column.argmax())
        low, high = (None if end is None else float(end[row, k]) for end in (lower, upper))
        size = float(column[row] / about.noise[k])
        out.append(Peak(about.request.asker, channel, row, float(mean[row, k]), low, high, size, float(mean[-1, k])))
    return sorted(out, key=lambda peak: -peak.size)


def peak_table(title: str, found: Sequence[Peak], level: float | None, when: str, first: int) -> Table:
    """A table of the largest changes."""
    several = len({peak.unit for peak in found}) > 1
    columns = [*(["unit"] if several else []), "channel", "largest change"]
    columns += [f"{wording.percent(level)} interval"] if level is not None else []
    columns += [when, *([] if several else ["at the end"]), "× noise"]
    rows = []
    for peak in found[:SHOWN]:
        value, interval = wording.measured(peak.value, peak.lower, peak.upper, peak.channel.unit, sign=True)
        cells = [*([peak.unit] if several else []), peak.channel.name, value]
        cells += [interval] if level is not None else []
        cells += [str(peak.row + first), *([] if several else [wording.number(peak.last, sign=True)])]
        rows.append([*cells, wording.number(peak.size)])
    return Table(title, columns, rows, 2 if several else 1, left_out(len(found)))


def left_out(count: int) -> str:
    return f"and {count - SHOWN} more channels; all of them with --format json" if count > SHOWN else ""


# ---- words


def moves(plant: Described, held: Inputs, verb: str, text: Callable[[float, str], str] | None = None) -> str:
    """ "boiler valve <verb> +0.1 % and boiler speed -2 rpm": what inputs are changed by, or set to; series as given."""
    pairs = []
    for unit, channels in held.items():
        source = plant.unit(unit)
        if not isinstance(channels, Mapping):
            pairs.append((f"{unit} inputs", "changed as given"))
            continue
        for name, value in channels.items():
            measure = {channel.name: channel.unit for channel in source.inputs}.get(name, "")
            single = np.ndim(value) == 0
            how = (text or signed)(float(value), measure) if single else "changed as given"
            pairs.append((f"{unit} {name}", how))
    return with_verb(pairs, verb)


def signed(value: float, unit: str) -> str:
    """ "+0.1 %" """
    return wording.quantity(wording.exact(value, sign=True), unit)


def plainly(value: float, unit: str) -> str:
    """ "0.1 %" """
    return wording.quantity(wording.exact(value), unit)


def sideways(value: float, unit: str) -> str:
    """ "0.1 % higher" """
    return f"{wording.quantity(wording.exact(abs(value)), unit)} {'lower' if value < 0 else 'higher'}"


def with_verb(pairs: Sequence[tuple[str, str]], verb: str) -> str:
    """ "what <verb> how, what how and what how"."""
    (first, how), *rest = pairs
    return wording.listed([f"{first} {verb} {how}", *(f"{what} {how}" for what, how in rest)])


# ---- numbers and frames


def channels_json(channels: Sequence[Channel]) -> list[dict[str, str]]:
    return [{"name": channel.name, "measured_in": channel.unit} for channel in channels]


def finite(value: float | None) -> float | None:
    """A number that JSON can hold."""
    return None if value is None or not math.isfinite(value) else float(value)


def series(values: FloatArray) -> list[float | None]:
    """The same for a column."""
    column = np.asarray(values, np.float64)
    known = np.isfinite(column)
    if known.all():
        return list(column.tolist())
    return [value if there else None for value, there in zip(column.tolist(), known.tolist(), strict=True)]


def line(channel: Channel, k: int, answer: Any, **more: Any) -> dict[str, Any]:
    """One channel of an answer with ``mean``, ``lower`` and ``upper`` (rows, D_m), for drawing."""
    return {
        "channel": channel.name,
        "measured_in": channel.unit,
        "mean": series(answer.mean[:, k]),
        "lower": None if answer.lower is None else series(answer.lower[:, k]),
        "upper": None if answer.upper is None else series(answer.upper[:, k]),
        **more,
    }


def long_frame(
    when: str, first: int, channels: Sequence[str], columns: Mapping[str, FloatArray | None]
) -> polars.DataFrame:
    """One row a step (or row) and channel; columns that are None are left out."""
    import polars as pl

    known = {name: values for name, values in columns.items() if values is not None}
    rows, count = next(iter(known.values())).shape
    return pl.DataFrame(
        {
            when: np.repeat(np.arange(first, first + rows), count),
            "channel": list(channels) * rows,
            **{name: values.ravel() for name, values in known.items()},
        }
    )


def mean_over_rows(values: FloatArray) -> FloatArray:
    """Mean of each column over the rows that are there; NaN where none is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return np.asarray(np.nanmean(values, axis=0))
