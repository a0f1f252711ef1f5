"""What would a change of some units' inputs do to a unit's outputs from now on? (paper, Q1 and Q2; any horizon)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow import wording
from counterflow.arrays import FloatArray, frozen
from counterflow.caveats import Caveat
from counterflow.errors import OptionError
from counterflow.frames import columns_of
from counterflow.notebook import Table
from counterflow.plant.calendar import Calendar
from counterflow.plant.units import PublicUnit, Unit
from counterflow.protocol import Answer, Ask, Change
from counterflow.questions import answer
from counterflow.questions.answer import About, Described, Responder, Surroundings
from counterflow.questions.arguments import (
    ChangeLike,
    as_schedule,
    check_count,
    check_level,
    check_world,
    refuse_beyond_limits,
    unit_names,
)
from counterflow.questions.numbers import series
from counterflow.questions.parts import BASELINE, part_of
from counterflow.questions.peaks import band, deviation, peak_table
from counterflow.questions.phrases import moved, with_verb
from counterflow.questions.question import CONTROLLERS, LAWS, LEVEL, AskWorlds, Entry, Form, Inputs, Request, horizon
from counterflow.questions.refusals import without_interval
from counterflow.questions.replicates import Replicates, world_words
from counterflow.questions.server_model import ServerModel
from counterflow.questions.timeline import Steps
from counterflow.questions.window import JointErrors

if TYPE_CHECKING:
    from counterflow.exchange.part import UnitPart
    from counterflow.questions.plots import Line

QUESTION = "If {change}: what would {unit} do?"
ANSWER = "If {change}{world}, {would}"
WOULD = "{unit} {channel} would {verb} by {size} {after}.{more}"
NOTHING = "nothing would change at {unit}."
TITLE = "{unit}, if {cause} were run differently{band}"
CHANGES = Entry("changes", Form.CHANGES, ..., "Added to inputs from now on.")
DURATION = Entry("duration", Form.STEPS, None, "Steps that it is held (all).", False)
EFFECT = Entry("effect", Form.UNIT, ..., "Unit whose outputs are asked about.")


# ---- what requests of changes from now on share


@dataclass(frozen=True)
class AskChange(Request):
    """``headline``: the output that a report draws large; ``question``: its heading; ``clause``: how the change reads,
    where numbers do not say it all.
    """

    of_states = True
    windowed = True

    cause: str | Sequence[str]
    effect: str
    change: Any
    horizon: int = 50
    duration: int | None = None
    headline: str | None = None
    question: str = ""
    clause: str = field(default="", kw_only=True)

    @property
    def causes(self) -> list[str]:
        return unit_names("effect", "cause", self.cause)

    def change_of(self, name: str) -> ChangeLike:
        """The change at one of the causes."""
        if isinstance(self.cause, str):
            return self.change  # type: ignore[no-any-return]
        if not isinstance(self.change, Mapping) or name not in self.change:
            raise OptionError(
                f"effect: with several causes, change must be {{unit: change}}; nothing is given for {name!r}"
            )
        return self.change[name]  # type: ignore[no-any-return]

    def held(self, plant: Described) -> dict[str, Any]:
        """{unit: {input: number or series}}."""
        return {name: by_channel(plant.unit(name), self.change_of(name)) for name in self.causes}

    def additions(self, server: Responder, part: UnitPart) -> list[Change]:
        """Changes from now on, with one row more than steps: for inputs that act on the row they stand in."""
        changes = []
        for name in self.causes:
            source, given = server.unit(name), self.change_of(name)
            check_count(self.kind, "horizon", self.horizon)
            if self.duration is not None:
                check_count(self.kind, "duration", self.duration)
            values = as_schedule(source, given, self.horizon, self.duration)
            refuse_beyond_limits(source, values, absolute=False)
            last = values[-1:] if self.duration is None else np.zeros_like(values[-1:])
            changes.append(Change(part.unit.name, source.name, False, 0, "", np.vstack([values, last])))
        return changes

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


def by_channel(source: Unit | PublicUnit, given: ChangeLike) -> dict[str, Any]:
    """{input: number or series}."""
    given = columns_of(given)
    if isinstance(given, Mapping):
        return dict(given)
    values = np.asarray(given, np.float64)
    return dict(zip(source.input_names, values.tolist() if values.ndim == 1 else values.T, strict=True))


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class AfterChange(answer.Answer):
    """An answer of so many steps after a change at ``cause``."""

    zero = True

    cause: str
    effect: str

    @property
    def timeline(self) -> Steps:
        return Steps(len(self.course), self.about.dt)

    @property
    def sizes(self) -> FloatArray:
        return np.asarray(np.abs(np.nan_to_num(self.course)).max(axis=0) / self.about.noise)

    @property
    def held(self) -> dict[str, Any]:
        """What was changed: {unit: {input: number or series}}."""
        held: dict[str, Any] = self.about.request.held(self.about.plant)
        return held

    def changed(self, places: Any) -> list[tuple[Any, Any]]:
        from counterflow.questions.plots import spans

        steps = len(places)
        size, active = places[0], np.zeros(steps, bool)
        for channels in self.held.values():
            for values in channels.values():
                active |= np.broadcast_to(np.asarray(values, np.float64) != 0, (steps,))
        active[self.about.request.duration or steps :] = False
        return [(size * first, size * last) for first, last in spans(active)]


# ---- the question


@dataclass(frozen=True)
class AskEffect(AskChange, AskWorlds):
    """What would a change at ``cause`` do to ``effect``? As ``Fit.effect``."""

    kind = "effect"
    tab = "effect"
    command = "whatif"
    title = "What would outputs do with other inputs?"
    example = "counterflow whatif fit --cause boiler --effect turbine --change valve=+0.1 --duration 10"
    form = (EFFECT, CHANGES, horizon(), DURATION, CONTROLLERS, LAWS, LEVEL)

    level: float = field(default=0.95, kw_only=True)

    def messages(self, server: Responder, part: UnitPart) -> tuple[list[Change], Ask]:
        check_level("effect", self.level)
        changes, world = self.additions(server, part), check_world("effect", self.controllers)
        return changes, Ask(part.unit.name, self.kind, 0, self.horizon, world)

    @classmethod
    def respond(cls, server: ServerModel, changes: Sequence[Change], ask: Ask) -> tuple[Answer, ...]:
        parts = server.from_now_on(changes, ask, server.difference)
        if not server.settles_down:
            return parts
        return (*parts, part_of(ask, server.usual[None, server.own(ask.unit)], share=BASELINE))

    @classmethod
    def caveats(cls, server: ServerModel, parts: Sequence[Answer]) -> list[Caveat]:
        return without_interval(server, parts)

    def answer(self, about: About, part: UnitPart, parts: Sequence[Answer], y: FloatArray | None) -> Effect:
        found, *more = parts
        mean = part.seen_in(found.mean)
        lower, upper = band(mean, deviation(found, part.model.C, doubt=part.C_doubt), self.level)
        return Effect(
            cause=" and ".join(self.causes), effect=self.effect, channels=part.unit.output_names, mean=frozen(mean),
            states=frozen(found.mean), caveats=about.caveats, lower=lower, upper=upper,
            level=self.level if lower is not None else None, about=about,
            running=Replicates.from_parts(part, more, len(mean)), errors=JointErrors.from_parts(part, parts),
            usual=next((frozen(part.at_level(part.seen_in(p.mean))[0]) for p in more if p.share == BASELINE), None),
        )  # fmt: skip

    def words(self, plant: Described, calendar: Calendar | None = None) -> str:
        return self.question or QUESTION.format(change=self.change_words(plant), unit=self.effect)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Effect(AfterChange):
    """Answer to "what would the effect unit's outputs do if the cause unit's inputs were changed?".

    ``mean`` (horizon, D_m): change of the measurements, row k is k+1 steps after the change began (Q1).
    ``states`` (horizon, P_m): the same at the level of states, all that the server knows (Q2).
    ``lower``, ``upper``: None where the method gives no uncertainty; ``caveats`` travel with the answer.
    """

    kind = "effect"
    panel = "change"

    mean: FloatArray
    states: FloatArray
    lower: FloatArray | None = None
    upper: FloatArray | None = None
    usual: FloatArray | None = None  # (D_m,): where outputs rest under every input's mean

    @property
    def course(self) -> FloatArray:
        return self.mean

    @property
    def bounds(self) -> tuple[FloatArray | None, FloatArray | None]:
        return self.lower, self.upper

    def compared_with(self, start: int, stop: int) -> FloatArray:
        return super().compared_with(start, stop) if self.usual is None else self.usual

    def sentence(self, channel: str | None = None) -> str:
        request, world = self.about.request, world_words(self.caveats, self.about.request.laws)
        return ANSWER.format(change=request.change_words(self.about.plant), world=world, would=self.would(channel))

    def would(self, channel: str | None = None) -> str:
        """ "turbine speed would rise by 3.2 rpm (95 %: 2.8 to 3.6) after 12 steps." """
        peak, k = self.peak(channel), self.chosen(channel)
        if peak.is_nothing:
            return NOTHING.format(unit=peak.unit)
        return WOULD.format(
            unit=peak.unit, channel=peak.channel.name, verb="fall" if peak.falls else "rise", size=peak.by(self.level),
            after=self.timeline.at(peak.row), more=self.on_average(k),
        )  # fmt: skip

    def tables(self, channels: Sequence[str] = ()) -> list[Table]:
        return [peak_table(f"{self.effect}: the channels that move most", self.peaks, self.level, self.timeline)]

    def labels(self) -> dict[str, Any]:
        request = self.about.request
        return {
            "causes": list(self.held), "effect": self.effect, "change": self.held, "horizon": request.horizon,
            "duration": request.duration, "level": self.level, "most_affected": self.peaks_json(),
        }  # fmt: skip

    def arrays(self) -> dict[str, Any]:
        return {**self.columns(), "states": self.states}

    def columns(self) -> Mapping[str, FloatArray | None]:
        return {"mean": self.mean, "lower": self.lower, "upper": self.upper}

    def page(self, around: Surroundings) -> dict[str, Any]:
        labels, steps = self.labels(), (len(self.mean),)
        del labels["change"], labels["duration"]  # as inputs, below
        inputs = [
            {
                "unit": unit, "input": name, "measured_in": self.about.input(unit, name).unit,
                "values": series(np.broadcast_to(values, steps)),
            }
            for unit, channels in self.held.items() for name, values in channels.items()
        ]  # fmt: skip
        return {**labels, "horizon": len(self.mean), "inputs": inputs}

    def page_courses(self, around: Surroundings) -> dict[str, Any]:
        """``baseline``: what is expected without the change."""
        return {**self.columns(), "baseline": around.baseline(self.effect, len(self.mean))}

    def title(self) -> str:
        band = "" if self.level is None else f", {wording.percent(self.level)} bands"
        return TITLE.format(unit=self.effect, cause=self.cause, band=band)

    def lines(self, k: int, colour: str, before: str = "") -> list[Line]:
        from counterflow.questions.plots import Line

        whole = Line.banded(self.channels[k], (self.mean, self.lower, self.upper), colour, k)
        zeros = np.zeros(len(self.mean))
        return [whole, *([] if self.running is None else self.running.lines(k, zeros, self.caveats, colour))]
