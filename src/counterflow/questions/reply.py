"""What an answer says of itself, whoever asked, and what it needs to know for that."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from counterflow import notebook, wording
from counterflow.arrays import FloatArray
from counterflow.caveats import FAILS, VERDICTS, Caveat, Verdict, verdict_of, weighing
from counterflow.control import Law
from counterflow.frames import as_pandas
from counterflow.notebook import Table
from counterflow.plant.calendar import Calendar
from counterflow.plant.units import Channel, PublicUnit, Unit, unknown_name
from counterflow.protocol import Answer, Ask, Change
from counterflow.questions.parts import Watch
from counterflow.questions.replicates import world_of

if TYPE_CHECKING:
    import pandas
    import polars
    from matplotlib.figure import Figure

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

    def supposing(self, laws: Mapping[str, Mapping[str, Law]]) -> Responder:
        """The same where controllers follow other laws, {unit: {input: law}}."""
        ...


class Surroundings(Protocol):
    """What a console shows beside an answer: a forecast without the change, and the latest measurements."""

    def baseline(self, unit: str, steps: int) -> FloatArray | None: ...

    def recent(self, unit: str) -> FloatArray: ...


class Described(Protocol):
    """Units with names and channels: a plant, or what is known of one."""

    @property
    def units(self) -> Sequence[Unit | PublicUnit]: ...

    @property
    def dt(self) -> float: ...

    def unit(self, name: str) -> Unit | PublicUnit: ...


def asked_rows(start: int, stop: int | None, calendar: Calendar | None) -> str:
    """The rows that a question is about, in words: "in rows 3 to 9", or the dates where they are known."""
    if calendar is None:
        return f"in rows {start}" if stop is None else f"in rows {start} to {stop - 1}"
    if stop is None:
        return f"from {calendar.shown(start)} on"
    return f"{'at' if stop == start + 1 else 'from'} {calendar.span(start, stop)}"


@dataclass(frozen=True, eq=False)
class About:
    """What an answer needs to speak of itself: its request, the channels and their noise, the time step, caveats."""

    request: Any
    plant: Described
    outputs: tuple[Channel, ...]
    noise: FloatArray  # (D_m,) standard deviation of each output: makes changes of unlike channels comparable
    caveats: tuple[Caveat, ...]
    server: Responder
    calendar: Calendar | None = None  # of the rows that the question refers to, where dates are known

    def during(self, start: int, stop: int) -> str:
        """ "in rows 3 to 9", or "from 2024-11-01 14:00 to 14:06 CET" where dates are known."""
        if self.calendar is None:
            return f"in {wording.rows(start, stop, self.dt)}"
        return f"{'at' if stop == start + 1 else 'from'} {self.calendar.span(start, stop)}"

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


def as_csv(frame: polars.DataFrame) -> bytes:
    """A table as CSV: what is not a number is empty, and no spreadsheet takes a name for a formula.

    Times are in ISO 8601, with their offset from UTC where the zone is known.

    >>> import polars
    >>> as_csv(polars.DataFrame({"=a": ["@sum(1)", "-x"], "b": [-1.0, float("nan")]}))
    b"'=a,b\\n'@sum(1),-1.0\\n'-x,\\n"
    """
    import polars.selectors

    formula = r"^([=+\-@\t\r])"
    names = {name: f"'{name}" for name in frame.columns if re.match(formula, name)}
    times = [
        polars.col(name).dt.to_string("%Y-%m-%d %H:%M:%S%.f" + ("%:z" if dtype.time_zone else ""))
        for name, dtype in frame.schema.items() if isinstance(dtype, polars.Datetime)
    ]  # fmt: skip
    safe = (
        frame.with_columns(times)
        .fill_nan(None)
        .with_columns(polars.selectors.string().str.replace(formula, "'${1}"))
        .rename(names)
    )
    return safe.write_csv().encode()


class Reply(ABC):
    """What every answer says of itself, whoever asked."""

    kind: ClassVar[str]
    channels: tuple[str, ...]
    caveats: tuple[Caveat, ...]
    about: About

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

    def to_pandas(self) -> pandas.DataFrame:
        """The same for pandas; the times, or else rows or steps, are its index."""
        frame = self.to_frame()
        return as_pandas(frame, next((name for name in ("time", "row", "step") if name in frame.columns), ()))

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

    @abstractmethod
    def plot(self) -> Figure:
        """A matplotlib Figure of the answer."""

    def sentences(self) -> list[str]:
        """What a summary says."""
        return [self.sentence()]

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
        told = "" if self.about is None else f": {notebook.short(self.sentence())}"
        failing = f", verdict {FAILS}" if self.verdict == FAILS else ""
        return f"<{type(self).__name__}{failing}{told}>"

    def _repr_html_(self) -> str:
        picture = notebook.picture(self.plot, self.kind)
        verdict = (self.verdict, VERDICTS[self.verdict])
        return notebook.page(self.sentence(), self.tables(), picture, weighing(self.caveats), verdict)
