"""What would a unit's outputs have been in recorded rows, had some units' inputs been others?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow import wording
from counterflow.arrays import FloatArray, frozen
from counterflow.errors import OptionError
from counterflow.notebook import Table
from counterflow.plant.calendar import Calendar
from counterflow.protocol import Change
from counterflow.questions.answer import About, Described, Surroundings
from counterflow.questions.answering import RECORDED
from counterflow.questions.numbers import channel_label
from counterflow.questions.phrases import (
    Peak,
    laws_words,
    moved,
    peak_table,
    plainly,
    sideways,
    with_verb,
    world_words,
)
from counterflow.questions.question import (
    CONTROLLERS,
    LAWS,
    LEVEL,
    START,
    STOP,
    AskWorlds,
    Entry,
    Form,
    changed_inputs,
)
from counterflow.questions.timeline import asked_rows
from counterflow.questions.trajectory import Trajectory
from counterflow.questions.window import band

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from counterflow.exchange.part import UnitPart
    from counterflow.questions.plots import Line

QUESTION = "Had {change} {when}: what would {unit} have done?"
HAD = "Had {change} {when}{world}"
ANSWER = "{had}, {unit} {channel} would have been {verb} by {size} {at}.{more}"
NOTHING = "{had}, nothing would have changed there."
UNMEASURED = "{had}: {unit} {channel} was not measured there."
IMPACT = "{unit} {channel}: what would have been"


@dataclass(frozen=True)
class AskCounterfactual(AskWorlds):
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
    windowed = True
    of_intervals = True

    unit: str
    do: Mapping[str, Any] | None
    start: Any = 0  # a row, a date, or a time
    stop: Any = None
    add: Mapping[str, Any] | None = field(default=None, kw_only=True)
    level: float = field(default=0.95, kw_only=True)
    clause: str = field(default="", kw_only=True)

    def changes(self, plant: Described, part: UnitPart, rows: slice) -> list[Change]:
        for given in (self.do, self.add):
            if not (given is None or isinstance(given, Mapping)) or not (self.do or self.add or self.laws):
                raise OptionError(
                    "counterfactual: do (and add) must be {unit: {input channel: values}} or {unit: array}, and not "
                    "empty"
                )
        return [
            changed_inputs(self.unit, plant.unit(cause), given, rows, absolute)
            for whole, absolute in ((self.do or {}, True), (self.add or {}, False))
            for cause, given in whole.items()
        ]

    def answer(self, about: About, y: FloatArray | None) -> Counterfactual:
        assert y is not None
        part, states = about.part, about.parts[0].mean
        measured = y[self.start : self.start + len(states)]
        was, unsure, missing = np.array(measured), np.zeros_like(measured), np.isnan(measured)
        for piece in about.parts:
            if piece.share == RECORDED:  # in rows that were not measured: what it is estimated to have been
                was[missing] = part.at_level(part.seen_in(piece.mean))[missing]
                blocks = piece.covariance.reshape(*piece.mean.shape, -1)
                found = np.einsum("di,tij,dj->td", part.model.C, blocks, part.model.C) + np.diag(part.model.R)
                unsure[missing] = np.maximum(found, 0.0)[missing]
        return Counterfactual(
            about=about, mean=frozen(was + part.seen_in(states)), first=self.start, factual=frozen(measured),
            was=frozen(was), unsure=unsure,
        )  # fmt: skip

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

    def asked(self, plant: Described, calendar: Calendar | None) -> str:
        when = asked_rows(self.start, self.stop, calendar)
        return QUESTION.format(change=self.had(plant), when=when, unit=self.unit)


def _values(given: Any) -> list[Any]:
    """The numbers or series that are given for a unit's inputs."""
    return list(given.values()) if isinstance(given, Mapping) else [given]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Counterfactual(Trajectory):
    """What a unit's outputs did, and what they would have done.

    ``was`` (rows, D_m): what was measured, and where nothing was, what it is estimated to have been.
    """

    kind = "counterfactual"
    answered = "would have been"
    verbs = "would have been lower by {}", "would have been higher by {}"
    of_what = "of what it was"

    was: FloatArray

    @property
    def difference(self) -> FloatArray:
        """(rows, D_m): by how much outputs would have been others, in rows that were not measured, too."""
        return np.asarray(self.mean - self.was)

    @property
    def course(self) -> FloatArray:
        return self.difference

    @property
    def bounds(self) -> tuple[FloatArray | None, FloatArray | None]:
        lower, upper = (None if end is None else end - self.was for end in (self.lower, self.upper))
        return lower, upper

    @property
    def sizes(self) -> FloatArray:
        return np.asarray(np.abs(np.nan_to_num(self.difference)).max(axis=0) / self.about.noise)

    def compared_with(self, start: int, stop: int) -> FloatArray:
        return np.asarray(self.was[start:stop].mean(axis=0))

    def changed(self, places: Any) -> list[tuple[Any, Any]]:
        return [(places[0], places[-1])]

    def weight(self) -> tuple[bool, float]:
        """What is told first: units that were not changed themselves, and of them the most moved."""
        return self.unit not in _changed(self.about.request), float(self.sizes.max())

    def sentence(self, channel: str | None = None) -> str:
        peak, k, timeline, request = self.peak(channel), self.chosen(channel), self.timeline, self.about.request
        others = None if request.only_laws else request.laws  # else they are what is asked about
        had = HAD.format(
            change=request.had(self.about.plant), when=timeline.during(0, len(self.mean)),
            world=world_words(self.caveats, others),
        )  # fmt: skip
        told = {"had": had, "unit": peak.unit, "channel": peak.channel.name}
        if not np.isfinite(self.difference[:, k]).any():
            return UNMEASURED.format(**told)
        if peak.is_nothing:
            return NOTHING.format(**told)
        return ANSWER.format(
            **told, verb="lower" if peak.falls else "higher", size=peak.by(self.level),
            at=timeline.at(peak.row - self.first), more=self.on_average(k),
        )  # fmt: skip

    @classmethod
    def tables_of(cls, worlds: Sequence[Counterfactual]) -> list[Table]:
        return [peak_table("what would have differed most", _peaks(worlds), worlds[0].level, worlds[0].timeline)]

    @classmethod
    def labels_of(cls, worlds: Sequence[Counterfactual]) -> dict[str, Any]:
        first = worlds[0]
        whole = _changed(first.about.request)
        return {
            "causes": list(whole), "effect": first.unit if len(worlds) == 1 else None, "change": whole,
            "start": first.first, "stop": first.stop, "level": first.level,
            "most_affected": [peak.to_json(first.timeline) for peak in _peaks(worlds)],
        }  # fmt: skip

    def page(self, around: Surroundings) -> dict[str, Any]:
        labels = self.labels()
        return {"unit": self.unit, **{name: labels[name] for name in ("start", "stop", "level", "most_affected")}}

    def lines(self, k: int, colour: str, before: str = "") -> list[Line]:
        average = [] if self.running is None else self.running.lines(k, self.was[:, k], self.caveats, colour)
        return [*super().lines(k, colour, before), *average]

    def plot(self, channels: Sequence[str] = (), kind: str = "worlds") -> Figure:
        """A matplotlib Figure: what was measured and what would have been.

        ``kind="impact"``: of one channel, the two worlds, their difference row by row, and its sum over time.
        """
        if kind == "worlds":
            return super().plot(channels)
        if kind != "impact":
            raise OptionError(f"plot: kind must be 'worlds' or 'impact', got {kind!r:.40}")
        from counterflow.questions.plots import COLOURS, Line, panels

        k = self.chosen(channels[0] if channels else None)
        channel, axis, level = self.about.outputs[k], self.timeline.axis(), self.level or 0.0
        total, spread, unit = self.window().summed(k)
        apart = self.difference[:, k]
        by_row = (apart, *band(apart, None if self.errors is None else np.sqrt(self.errors.variances[:, k]), level))
        measured = Line("measured", self.factual[:, k], look={"color": "0.2", "linewidth": 1.0})
        world = Line.banded(self.answered, (self.mean, self.lower, self.upper), COLOURS[0], k)
        groups = [
            (channel_label(channel), [measured, world]),
            (f"difference [{channel.unit}]".replace(" []", ""), [Line.banded("row by row", by_row, COLOURS[0])]),
            (f"[{unit}]", [Line.banded("summed up over time", (total, *band(total, spread, level)), COLOURS[0])]),
        ]
        title = IMPACT.format(unit=self.unit, channel=channel.name)
        return panels(axis, groups, title, self.changed(axis.places))


def _changed(request: AskCounterfactual) -> dict[str, Any]:
    """{unit: what its inputs would have been, or what would have been added to them}."""
    return {**(request.do or {}), **(request.add or {})}


def _peaks(worlds: Sequence[Counterfactual]) -> list[Peak]:
    return sorted((peak for world in worlds for peak in world.peaks), key=lambda peak: -peak.size)


def past_words(plant: Described, changes: Sequence[tuple[str, str, bool, Any]]) -> str:
    """How (unit, input, whether it is added, value) read: "boiler valve been 0.5 % and boiler speed 1 lower"."""
    how = {True: (sideways, "changed as given"), False: (plainly, "as given")}
    return with_verb([moved(plant, unit, name, value, *how[added]) for unit, name, added, value in changes], "been")
