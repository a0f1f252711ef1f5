"""The answer: labelled values by row and channel, with names, units of measure, times, caveats and provenance.

Everything that an answer can be turned into is written here, once for all kinds of questions: words, tables, frames,
JSON, what a page draws, pictures. A question's module adds its values, and the words that it says them with.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from counterflow import notebook, wording
from counterflow.arrays import FloatArray
from counterflow.caveats import FAILS, VERDICTS, Caveat, Verdict, verdict_of, weighing
from counterflow.control import Law
from counterflow.errors import OptionError
from counterflow.frames import as_pandas
from counterflow.notebook import Table
from counterflow.plant.calendar import Calendar
from counterflow.plant.units import Channel, PublicUnit, Unit, unknown_name
from counterflow.protocol import Answer as Message
from counterflow.protocol import Ask, Change
from counterflow.questions.numbers import channel_label, channels_json, long_frame, named, of_channel, plain
from counterflow.questions.phrases import Peak, world_of
from counterflow.questions.replicates import Replicates
from counterflow.questions.timeline import Timeline
from counterflow.questions.window import JointErrors, Window, band

if TYPE_CHECKING:
    import pandas
    import polars
    from matplotlib.figure import Figure

    from counterflow.exchange.part import UnitPart
    from counterflow.plant.calendar import Moment
    from counterflow.questions.answering import Watch
    from counterflow.questions.plots import Line


class Responder(Protocol):
    """Whom a unit asks: carries a question to where it is answered."""

    @property
    def link(self) -> str | None:
        """What the files of units that may ask refer to; None: anything."""

    @property
    def rows(self) -> int:
        """How many rows questions about the past can refer to."""

    def ask(self, changes: Sequence[Change], ask: Ask, watch: Watch | None = None) -> tuple[Message, ...]:
        """The answer to a question, in parts."""

    def supposing(self, laws: Mapping[str, Mapping[str, Law]]) -> Responder:
        """The same where controllers follow other laws, {unit: {input: law}}."""


class Surroundings(Protocol):
    """What a page shows beside an answer: a forecast without the change, and the latest measurements."""

    def baseline(self, unit: str, steps: int) -> FloatArray | None: ...

    def recent(self, unit: str) -> FloatArray: ...


class Described(Protocol):
    """Units with names and channels: a plant, or what is known of one."""

    @property
    def units(self) -> Sequence[Unit | PublicUnit]: ...

    @property
    def dt(self) -> float: ...

    def unit(self, name: str) -> Unit | PublicUnit: ...


@dataclass(frozen=True, eq=False)
class About:
    """What an answer is made of, and needs to speak of itself: its request, and what the server has said."""

    request: Any
    plant: Described
    part: UnitPart
    parts: Sequence[Message]
    caveats: tuple[Caveat, ...]
    server: Responder
    calendar: Calendar | None = None  # of the rows that the question refers to, where dates are known

    @property
    def dt(self) -> float:
        return self.plant.dt

    @property
    def outputs(self) -> tuple[Channel, ...]:
        return self.part.unit.outputs

    @cached_property
    def noise(self) -> FloatArray:
        """(D_m,) standard deviation of each output: makes changes of unlike channels comparable."""
        return np.sqrt(np.diag(self.part.model.R))

    def input(self, unit: str, name: str) -> Channel:
        """An input channel of any unit."""
        source = self.plant.unit(unit)
        return source.inputs[source.input_names.index(name)]

    def output(self, name: str) -> int:
        """Index of an output channel."""
        names = self.part.unit.output_names
        if name not in names:
            raise unknown_name(f"output of unit {self.request.asker!r}", name, names)
        return names.index(name)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Answer(ABC):
    """What every answer is, whoever asked: its values stand in a subclass, one for each kind of question."""

    kind: ClassVar[str]
    verbs: ClassVar[tuple[str, str]] = "would fall by {}", "would rise by {}"  # what a window's mean is said with
    of_what: ClassVar[str] = "of its usual level"  # what a window's relative effect refers to
    predictive: ClassVar[bool] = False  # whether it tells of what will be measured, and not of a change
    drawn: ClassVar[int] = 6  # channels of a picture
    panel: ClassVar[str] = ""  # of a picture, before the channel's name
    zero: ClassVar[bool] = False  # whether a picture has a line there

    about: About

    # ---- what a kind of question adds

    @abstractmethod
    def sentence(self, channel: str | None = None) -> str:
        """The answer in words: of one channel, or of the one that it says most about."""

    @abstractmethod
    def tables(self, channels: Sequence[str] = ()) -> list[Table]:
        """The answer as tables."""

    @property
    @abstractmethod
    def sizes(self) -> FloatArray:
        """(D_m,): how much the answer says of each channel, against its noise."""

    @abstractmethod
    def labels(self) -> dict[str, Any]:
        """What was asked, and what is one for all channels: the first part of JSON."""

    @abstractmethod
    def arrays(self) -> dict[str, Any]:
        """The values by their names in JSON."""

    @property
    def timeline(self) -> Timeline:
        """Where its rows stand in time."""
        raise OptionError(f"a {self.kind} has no rows, and so no windows")

    @property
    def course(self) -> FloatArray:
        """(n, D_m): the values that windows sum up."""
        raise OptionError(f"a {self.kind} has no rows, and so no windows")

    @property
    def bounds(self) -> tuple[FloatArray | None, FloatArray | None]:
        """Ends of the intervals around ``course``."""
        return None, None

    @property
    def base(self) -> FloatArray:
        """(D_m,): what extremes are furthest from."""
        return np.zeros(len(self.channels))

    def compared_with(self, start: int, stop: int) -> FloatArray:
        """(D_m,): what the mean over rows is compared with; NaN where nothing is known."""
        return np.full(len(self.channels), np.nan)

    def columns(self) -> Mapping[str, FloatArray | None]:
        """The values (n, D_m) by their names in a table of numbers."""
        return {}

    def page(self, around: Surroundings) -> dict[str, Any]:
        """What a page shows besides courses."""
        return dict(plain(self.labels()))

    def page_courses(self, around: Surroundings) -> dict[str, Any]:
        """What a page draws of a channel: arrays (n, D_m) by their names."""
        return dict(self.columns())

    def lines(self, k: int, colour: str, before: str = "") -> list[Line]:
        """What a picture shows of a channel; ``before``: the channel's name, where there are several."""
        return []

    def parts(self, k: int) -> list[tuple[str, str, float]]:
        """What a channel's value is the sum of on average, largest first: name, in words, and how much."""
        return []

    @property
    def rows(self) -> Answer:
        """The answer whose rows are drawn: itself, or of what leads somewhere the way there."""
        return self

    def title(self) -> str:
        """Of a picture."""
        return self.unit

    def changed(self, places: Any) -> list[tuple[Any, Any]]:
        """Where along an axis inputs are others."""
        return []

    # ---- written once

    @property
    def unit(self) -> str:
        """Whose outputs it is about."""
        return str(self.about.request.asker)

    @property
    def channels(self) -> tuple[str, ...]:
        """The outputs that it is about."""
        return self.about.part.unit.output_names

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """What it must be read with."""
        return self.about.caveats

    @cached_property
    def errors(self) -> JointErrors | None:
        """How far its rows may be off together; None: that is not known."""
        return JointErrors.from_parts(self.about.part, self.about.parts, self.predictive)

    @property
    def level(self) -> float | None:
        """Of its intervals; None where there are none."""
        return None if self.errors is None else self.about.request.level

    @cached_property
    def running(self) -> Replicates | None:
        """Where controllers react, every replicate as a whole world."""
        return Replicates.from_parts(self.about.part, self.about.parts)

    @property
    def controllers(self) -> str:
        """ "reacting" or "held": the world that the answer is about; held, too, where no controllers are known."""
        return world_of(self.caveats)

    @property
    def verdict(self) -> Verdict:
        """The heaviest of its caveats: "fails", "caution", or "clear" if none but choices are there.

        It covers all units that the answer passes through, as far as whoever asks may know what speaks against them.
        """
        return verdict_of(self.caveats)

    def order(self) -> list[int]:
        """Indices of the output channels, those that the answer says most about first."""
        return [int(k) for k in np.argsort(-np.nan_to_num(self.sizes), kind="stable")]

    def ranked_channels(self) -> list[str]:
        """The same by their names."""
        return [self.channels[k] for k in self.order()]

    def chosen(self, channel: str | None) -> int:
        """Index of one output channel; None: of the one that the answer says most about."""
        return self.order()[0] if channel is None else self.about.output(channel)

    @cached_property
    def peaks(self) -> list[Peak]:
        """The largest value of every channel's course, largest (against its noise) first; NaN counts as nothing."""
        course, out = self.course, []
        for k in self.order():
            row = int(np.abs(np.nan_to_num(course[:, k])).argmax())
            low, high = (None if end is None else float(end[row, k]) for end in self.bounds)
            value, last = float(course[row, k]), float(course[-1, k])
            size = float(np.abs(np.nan_to_num(value)) / self.about.noise[k])
            row += self.timeline.first
            out.append(Peak(self.unit, self.about.outputs[k], row, value, low, high, size, last))
        return out

    def peak(self, channel: str | None) -> Peak:
        """Of one channel; None: the largest of all."""
        k = self.chosen(channel)
        return next(peak for peak in self.peaks if peak.channel.name == self.channels[k])

    def on_average(self, k: int) -> str:
        """What is certain of the window as a whole where a controller switches; "" elsewhere."""
        return "" if self.running is None else self.running.words(self.about.outputs[k], self.caveats, self.level)

    def to_json(self) -> dict[str, Any]:
        """The whole answer in plain types and arrays."""
        return {**self.labels(), "channels": channels_json(self.about.outputs), **self.arrays()}

    def to_frame(self) -> polars.DataFrame:
        """The answer as a table of numbers: one row a step (or row) and channel, with times where they are known."""
        return long_frame(self.timeline, self.channels, self.columns())

    def to_pandas(self) -> pandas.DataFrame:
        """The same for pandas; the times, or else rows or steps, are its index."""
        frame = self.to_frame()
        return as_pandas(frame, next((name for name in ("time", "row", "step") if name in frame.columns), ()))

    def window(self, start: Moment | None = None, stop: Moment | None = None) -> Window:
        """Mean, cumulative, extreme and relative effect over some of the rows, with intervals.

        Parameters
        ----------
        start, stop : of an effect, steps or times ("2h") after the change; of recorded or forecast rows, their numbers,
            dates, or times (since the first row of the answer; of ``stop`` since ``start``, if that is a row or a
            date). None: all of them.
        """
        return Window(self, *self.timeline.window(start, stop))

    def course_json(self, k: int, around: Surroundings) -> dict[str, Any]:
        """One channel for drawing."""
        return {**named(self.about.outputs[k]), **of_channel(self.page_courses(around), k)}

    def view(self, drawn: Sequence[str], around: Surroundings) -> dict[str, Any]:
        """What a page draws of the answer, of these channels."""
        return {**self.page(around), "drawn": [self.course_json(self.about.output(name), around) for name in drawn]}

    def plot(self, channels: Sequence[str] = ()) -> Figure:
        """A matplotlib Figure of the channels that it says most about, with a panel for each unit of measure."""
        from counterflow.questions.plots import channel_panels, panels

        order = [self.about.output(name) for name in channels] or self.order()[: self.drawn]
        axis, several = self.timeline.axis(), len(order) > 1
        groups = channel_panels(
            self.about.outputs, order, self.panel,
            lambda k, colour: self.lines(k, colour, f"{self.channels[k]}, " if several else ""),
        )  # fmt: skip
        return panels(axis, groups, self.title(), self.changed(axis.places), self.zero)

    def sentences(self) -> list[str]:
        """What a summary says."""
        return [self.sentence(), *([self.window().sentence()] if self.about.request.windowed else [])]

    def summary(self) -> str:
        """The answer in a few sentences: what it must first be read with, what it says, and where more stands."""
        said, notes = self.sentences(), weighing(self.caveats)
        if notes:
            said.insert(0, f"Read with care: {str(notes[0]).rstrip('.')}.")
        if len(notes) > 1:
            more = "is 1 more note" if len(notes) == 2 else f"are {len(notes) - 1} more notes"
            said.append(f"There {more}: see caveats.")
        return " ".join(said)

    def __str__(self) -> str:
        tables = [line for table in self.tables() for line in notebook.lines(table)]
        notes = [f"  {caveat.weight}: {caveat}" for caveat in weighing(self.caveats)]
        return "\n".join([self.sentence(), *tables, *notes])

    def __repr__(self) -> str:
        failing = f", verdict {FAILS}" if self.verdict == FAILS else ""
        return f"<{type(self).__name__}{failing}: {notebook.short(self.sentence())}>"

    def _repr_html_(self) -> str:
        picture = notebook.picture(self.plot, self.kind)
        verdict = (self.verdict, VERDICTS[self.verdict])
        return notebook.page(self.sentence(), self.tables(), picture, weighing(self.caveats), verdict)

    def channel_cells(self, k: int, values: Sequence[float], digits: int | None = None) -> list[str]:
        """A row of a table: a channel with its unit of measure, and numbers with their signs."""
        return [channel_label(self.about.outputs[k]), *(wording.number(float(v), digits, sign=True) for v in values)]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Expected(Answer):
    """An answer that says what outputs are expected to do: ``mean`` (n, D_m), between ``lower`` and ``upper``.

    ``unsure``: variances (n, D_m) of what its rows are off besides.
    """

    mean: FloatArray
    unsure: FloatArray | float = 0.0

    @cached_property
    def _ends(self) -> tuple[FloatArray | None, FloatArray | None]:
        if self.errors is None:
            return None, None
        return band(self.mean, np.sqrt(np.maximum(self.errors.variances + self.unsure, 0.0)), self.level)

    @property
    def lower(self) -> FloatArray | None:
        """Lower ends (n, D_m) of its intervals; None where the method gives none."""
        return self._ends[0]

    @property
    def upper(self) -> FloatArray | None:
        """Upper ends (n, D_m)."""
        return self._ends[1]

    def ends(self, row: int, k: int) -> tuple[float | None, float | None]:
        """Lower and upper bound of channel k in a row, if there are any."""
        if self.lower is None or self.upper is None:
            return None, None
        return float(self.lower[row, k]), float(self.upper[row, k])

    @property
    def course(self) -> FloatArray:
        return self.mean

    @property
    def bounds(self) -> tuple[FloatArray | None, FloatArray | None]:
        return self._ends

    def columns(self) -> Mapping[str, FloatArray | None]:
        return {"mean": self.mean, "lower": self.lower, "upper": self.upper}
