"""What would a unit's outputs have been in recorded rows, had some units' inputs been others?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from counterflow import wording
from counterflow.arrays import FloatArray, frozen
from counterflow.caveats import Caveat
from counterflow.errors import OptionError
from counterflow.notebook import Table
from counterflow.plant.calendar import Calendar
from counterflow.protocol import Answer, Ask, Change
from counterflow.questions.arguments import (
    check_level,
    check_window,
    check_world,
    refuse_beyond_limits,
    replacements,
)
from counterflow.questions.parts import RECORDED, later_in_worlds, later_rows
from counterflow.questions.peaks import Peak, Peaked, band, deviation, peak_table, peaks
from counterflow.questions.phrases import moved, plainly, sideways, with_verb
from counterflow.questions.question import CONTROLLERS, LAWS, LEVEL, START, STOP, Entry, Form, Laws, Request
from counterflow.questions.refusals import without_interval
from counterflow.questions.replicates import Replicates, laws_words, world_words
from counterflow.questions.reply import About, Described, Responder, Surroundings, asked_rows
from counterflow.questions.server_model import ServerModel
from counterflow.questions.trajectory import Trajectory
from counterflow.questions.views import LineView, PeakView, View, attributes, channel_label, line, series

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from counterflow.exchange.part import UnitPart
    from counterflow.questions.plots import Line


@dataclass(frozen=True)
class PastLineView(LineView):
    factual: list[float | None]


@dataclass(frozen=True)
class CounterfactualView(View):
    unit: str
    start: int
    stop: int
    level: float | None
    most_affected: list[PeakView]
    drawn: list[PastLineView]


@dataclass(frozen=True)
class AskCounterfactual(Request):
    """What would ``unit`` have done in rows start to stop - 1, had inputs been others? As ``Fit.counterfactual``.

    ``do`` replaces inputs, ``add`` is added to what they were, which the asking unit need not know.
    """

    kind = "counterfactual"
    tab = "past"
    command = "whatif"
    title = "What would outputs have done with other inputs?"
    example = "counterflow whatif fit --recording recording.safetensors --start 900 --stop 950 --set boiler.valve=0.5"
    form = (
        Entry("unit", Form.UNITS, (), "Unit whose outputs are asked about (all).", option="effect"),
        Entry("changes", Form.PAST, ..., "Other inputs in these rows."),
        START, STOP, CONTROLLERS, LAWS, LEVEL,
    )  # fmt: skip
    of_past = True
    of_worlds = True
    windowed = True
    schema = CounterfactualView

    unit: str
    do: Mapping[str, Any] | None
    start: int = 0
    stop: int | None = None
    headline: str | None = None
    question: str = ""
    add: Mapping[str, Any] | None = field(default=None, kw_only=True)
    level: float = field(default=0.95, kw_only=True)
    clause: str = field(default="", kw_only=True)
    controllers: str | None = field(default=None, kw_only=True)
    laws: Laws | None = field(default=None, kw_only=True)

    @classmethod
    def of(cls, given: Mapping[str, Any], unit: str) -> AskCounterfactual:
        changes = given["changes"]
        return cls(
            unit, changes.values or None, given["start"], given["stop"],
            add=changes.add or None, level=given["level"], clause=changes.words,
            controllers=given.get("controllers"), laws=given.get("laws") or None,
        )  # fmt: skip

    def messages(self, server: Responder, part: UnitPart) -> tuple[list[Change], Ask]:
        stop = server.rows if self.stop is None else self.stop
        check_window(self.kind, server.rows, self.start, stop)
        check_level(self.kind, self.level)
        for given in (self.do, self.add):
            if not (given is None or isinstance(given, Mapping)) or not (self.do or self.add or self.laws):
                raise OptionError(
                    "counterfactual: do (and add) must be {unit: {input channel: values}} or {unit: array}, and not "
                    "empty"
                )
        changes = []
        for whole, absolute in ((self.do or {}, True), (self.add or {}, False)):
            for cause, given in whole.items():
                source = server.unit(cause)
                values, channels = replacements(source, given, stop - self.start)
                refuse_beyond_limits(source, values, absolute=absolute, channels=channels)
                changes.append(Change(self.unit, cause, absolute, self.start, ",".join(map(str, channels)), values))
        world = check_world("counterfactual", self.controllers)
        return changes, Ask(self.unit, self.kind, self.start, stop - self.start, world)

    @classmethod
    def respond(cls, server: ServerModel, changes: Sequence[Change], ask: Ask) -> tuple[Answer, ...]:
        for change in changes:
            if not change.absolute:
                _refuse_leaving_limits(server, change)
        aligned = []
        for change in server.departures(changes):
            values, first = change.values, change.first
            if server.point(change.cause).same_row:  # the input of a row stands one row earlier in the model
                values, first = (values, first - 1) if first else (values[1:], 0)
            if len(values):
                aligned.append(replace(change, first=first, values=values))
        early = min([ask.first, *(change.first for change in aligned)])
        whole = replace(ask, first=early, steps=ask.first + ask.steps - early)
        factual = server.u[server.window(whole)]
        schedule = server.schedule(aligned, factual, early) - factual
        # row ``first`` itself is not yet touched: its input acts on the next one
        delayed = np.vstack([np.zeros(schedule.shape[1]), schedule[:-1]])
        rows, late = len(delayed), ask.first - early
        found = tuple(
            later_rows(part, late) if len(part.mean) == rows else later_in_worlds(part, late, rows)
            for part in server.difference(delayed, whole, early)
        )
        recorded = server.recorded(ask)
        return found if recorded is None else (*found, recorded)

    @classmethod
    def caveats(cls, server: ServerModel, parts: Sequence[Answer]) -> list[Caveat]:
        return without_interval(server, parts)

    def answer(self, about: About, part: UnitPart, parts: Sequence[Answer], y: FloatArray | None) -> Counterfactual:
        assert y is not None
        found, *more = parts
        recorded = [piece for piece in more if piece.share == RECORDED]
        measured = y[self.start : self.start + len(found.mean)]
        was, doubt, C = np.array(measured), np.zeros_like(measured), part.model.C
        for states in recorded:  # of rows in which something was not measured: what it is estimated to have been
            missing = np.isnan(measured)
            was[missing] = part.at_level(part.seen_in(states.mean))[missing]
            spread = deviation(states, C, np.diag(part.model.R))
            assert spread is not None
            doubt[missing] = np.square(spread)[missing]
        world: Counterfactual = Counterfactual.of(
            about, part, parts, self.start, measured, was + part.seen_in(found.mean), doubt
        )
        return replace(world, was=frozen(was), running=Replicates.of(part, more, len(measured)))

    @property
    def only_laws(self) -> bool:
        """Whether nothing is asked about but what controllers would have done with other laws."""
        added = [each for given in (self.add or {}).values() for each in _values(given)]
        return bool(self.laws) and not self.do and not any(np.any(np.asarray(each) != 0) for each in added)

    def had(self, plant: Described) -> str:
        """ "boiler valve been 0.5 % and boiler speed 1 lower" """
        if self.only_laws:
            return wording.listed([f"{place} been {law}" for place, law in laws_words(self.laws)])
        if self.clause:
            return self.clause
        changes = []
        for whole, added in ((self.do or {}, False), (self.add or {}, True)):
            for unit, given in whole.items():
                channels = given if isinstance(given, Mapping) else {"inputs": np.asarray(given)}
                changes += [(unit, name, added, value) for name, value in channels.items()]
        return past_words(plant, changes)

    def words(self, plant: Described, calendar: Calendar | None = None) -> str:
        when = asked_rows(self.start, self.stop, calendar)
        return self.question or f"Had {self.had(plant)} {when}: what would {self.unit} have done?"


def _values(given: Any) -> list[Any]:
    """The numbers or series that are given for a unit's inputs."""
    return list(given.values()) if isinstance(given, Mapping) else [given]


def _refuse_leaving_limits(server: ServerModel, change: Change) -> None:
    """What is added to recorded inputs must keep them within their limits; how they were stays the server's."""
    source, point, own = server.unit(change.cause), server.point(change.cause), server.input_slices[change.cause]
    skipped = int(point.same_row and change.first == 0)  # the input of row 0 acted before anything was recorded
    values = change.values[skipped:]
    first = change.first + skipped - point.same_row
    recorded = server.u[first : first + len(values), own] + point.input_level
    values = values[: len(recorded)]
    for k in change.columns:
        limits = source.inputs[k].limits
        there = recorded[:, k] + values[:, k]
        if limits is not None and ((there < limits[0]) | (there > limits[1])).any():
            raise OptionError(
                f"unit {change.cause!r}, input {source.inputs[k].name!r}: with this added it would leave its "
                f"limits {limits[0]:g} to {limits[1]:g}; add less"
            )


@dataclass(frozen=True, eq=False, repr=False)
class Counterfactual(Peaked, Trajectory):
    """What a unit's outputs did, and what they would have done.

    ``was`` (rows, D_m): what was measured, and where nothing was, what it is estimated to have been.
    """

    kind = "counterfactual"

    answered = "would have been"
    of_what = "of what it was"

    was: FloatArray = field(default=None)  # type: ignore[arg-type]
    running: Replicates | None = None

    @property
    def course(self) -> FloatArray:
        return self.difference

    def compared_with(self, start: int, stop: int) -> FloatArray:
        return np.asarray(self.was[start:stop].mean(axis=0))

    def verb(self, value: float) -> str:
        return f"would have been {'lower' if value < 0 else 'higher'} by {{}}"

    def changed(self, places: NDArray[Any]) -> list[tuple[Any, Any]]:
        return [(places[0], places[-1])]

    @property
    def difference(self) -> FloatArray:
        """(rows, D_m): by how much outputs would have been others, in rows that were not measured, too."""
        return np.asarray(self.mean - self.was)

    @property
    def stop(self) -> int:
        return self.first + len(self.mean)

    @property
    def peaks(self) -> list[Peak]:
        """The largest differences from what was measured, each in the row where it is."""
        lower, upper = (None if end is None else end - self.was for end in (self.lower, self.upper))
        found = peaks(self.about, self.difference, lower, upper)
        return [replace(peak, row=self.first + peak.row) for peak in found]

    def weight(self) -> tuple[bool, float]:
        """What is told first: units that were not changed themselves, and of them the most moved."""
        request = self.about.request
        changed = {*(request.do or {}), *(request.add or {})}
        return self.unit not in changed, self.peaks[0].size

    def sentence(self, channel: str | None = None) -> str:
        about, peak = self.about, self.peak(channel)
        window, request = about.during(self.first, self.stop), about.request
        others = None if request.only_laws else request.laws  # else they are what is asked about
        had = f"Had {about.request.had(about.plant)} {window}{world_words(self.caveats, others)}"
        if not np.isfinite(self.difference[:, about.output(peak.channel.name)]).any():
            return f"{had}: {peak.unit} {peak.channel.name} was not measured there."
        if peak.is_nothing:
            return f"{had}, nothing would have changed there."
        sign, by = peak.sentence(self.level)
        more = "" if self.running is None else self.running.words(peak.channel, self.caveats, self.level)
        return (
            f"{had}, {peak.unit} {peak.channel.name} would have been {'lower' if sign < 0 else 'higher'} by {by} "
            f"{about.during(peak.row, peak.row + 1)}.{more}"
        )

    def more_lines(self, k: int, colour: str) -> list[Line]:
        return [] if self.running is None else self.running.lines(k, self.was[:, k], self.caveats, colour)

    def plot(self, channels: Sequence[str] = (), kind: str = "worlds") -> Figure:
        """A matplotlib Figure: what was measured and what would have been.

        ``kind="impact"``: of one channel, the two worlds, their difference row by row, and its sum over time.
        """
        if kind == "worlds":
            return super().plot(channels)
        if kind != "impact":
            raise OptionError(f"plot: kind must be 'worlds' or 'impact', got {kind!r:.40}")
        from counterflow.questions.plots import COLOURS, Line, Rows, panels

        k = self.chosen(channels[0] if channels else None)
        channel, rows = self.about.outputs[k], Rows.recorded(self.first, len(self.mean), self.about.calendar)
        whole = (self.mean, self.lower, self.upper)
        total, spread, unit = self.cumulative_band(k)
        summed = (total, *band(total, spread, self.level or 0.0))
        spread = None if self.errors is None else self.errors.of_rows(k)
        apart = (self.difference[:, k], *band(self.difference[:, k], spread, self.level or 0.0))
        measured = Line("measured", self.factual[:, k], look={"color": "0.2", "linewidth": 1.0})
        groups = [
            (channel_label(channel), [measured, Line.banded(self.answered, whole, COLOURS[0], k)]),
            (f"difference [{channel.unit}]".replace(" []", ""), [Line.banded("row by row", apart, COLOURS[0])]),
            (f"[{unit}]", [Line.banded("summed up over time", summed, COLOURS[0])]),
        ]
        title = f"{self.unit} {channel.name}: what would have been"
        return panels(rows, groups, title, self.changed(rows.places))

    @classmethod
    def tables_of(cls, worlds: Sequence[Counterfactual]) -> list[Table]:
        found = sorted((peak for world in worlds for peak in world.peaks), key=lambda peak: -peak.size)
        return [
            peak_table("what would have differed most", found, worlds[0].level, "in row", 0, worlds[0].about.calendar)
        ]

    @classmethod
    def json_of(cls, worlds: Sequence[Counterfactual]) -> dict[str, Any]:
        first = worlds[0]
        request = first.about.request
        whole = {**(request.do or {}), **(request.add or {})}
        found = sorted((peak for world in worlds for peak in world.peaks), key=lambda peak: -peak.size)
        return {
            "causes": list(whole),
            "effect": first.unit if len(worlds) == 1 else None,
            "change": whole,
            "start": first.first,
            "stop": first.stop,
            "level": first.level,
            "most_affected": [peak.to_json() for peak in found],
            "units": {world.unit: world.unit_json() for world in worlds},
        }

    def view(self, drawn: Sequence[str], around: Surroundings) -> dict[str, Any]:
        return {
            **attributes(self, "unit", "level"),
            "start": self.first,
            "stop": self.stop,
            "most_affected": [peak.to_json() for peak in self.peaks],
            "drawn": [
                line(self.about.outputs[k], k, self, factual=series(self.factual[:, k]))
                for k in map(self.about.output, drawn)
            ],
        }


def past_words(plant: Described, changes: Sequence[tuple[str, str, bool, Any]]) -> str:
    """How (unit, input, whether it is added, value) read: "boiler valve been 0.5 % and boiler speed 1 lower"."""
    how = {True: (sideways, "changed as given"), False: (plainly, "as given")}
    return with_verb([moved(plant, unit, name, value, *how[added]) for unit, name, added, value in changes], "been")
