"""What would a change of some units' inputs do to a unit's outputs from now on? (paper, Q1 and Q2; any horizon)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow import wording
from counterflow.arrays import FloatArray, frozen
from counterflow.notebook import Table
from counterflow.plant.calendar import Calendar
from counterflow.questions.answer import About, Answer, Described, Expected, Surroundings
from counterflow.questions.answering import BASELINE
from counterflow.questions.numbers import series
from counterflow.questions.phrases import peak_table, world_words
from counterflow.questions.question import (
    CONTROLLERS,
    LAWS,
    LEVEL,
    AskChange,
    AskWorlds,
    Entry,
    Form,
    horizon,
)
from counterflow.questions.timeline import Steps

if TYPE_CHECKING:
    from counterflow.questions.plots import Line

QUESTION = "If {change}: what would {unit} do?"
ANSWER = "If {change}{world}, {would}"
WOULD = "{unit} {channel} would {verb} by {size} {after}.{more}"
NOTHING = "nothing would change at {unit}."
TITLE = "{unit}, if {cause} were run differently{band}"
CHANGES = Entry("changes", Form.CHANGES, ..., "Added to inputs from now on.")
DURATION = Entry("duration", Form.STEPS, None, "Steps that it is held (all).", False)
EFFECT = Entry("effect", Form.UNIT, ..., "Unit whose outputs are asked about.")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class AfterChange(Answer):
    """An answer of so many steps after a change at ``cause``."""

    zero = True

    @property
    def cause(self) -> str:
        """Whose inputs are changed."""
        return " and ".join(self.about.request.causes)

    @property
    def effect(self) -> str:
        """Whose outputs it is about."""
        return self.unit

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


@dataclass(frozen=True)
class AskEffect(AskChange, AskWorlds):
    """What would a change at ``cause`` do to ``effect``? As ``Fit.effect``."""

    kind = "effect"
    tab = "effect"
    command = "whatif"
    title = "What would outputs do with other inputs?"
    example = "counterflow whatif fit --cause boiler --effect turbine --change valve=+0.1 --duration 10"
    form = (EFFECT, CHANGES, horizon(), DURATION, CONTROLLERS, LAWS, LEVEL)

    of_intervals = True

    level: float = field(default=0.95, kw_only=True)

    def answer(self, about: About, y: FloatArray | None) -> Effect:
        part, states = about.part, about.parts[0].mean
        usual = next((each.mean for each in about.parts if each.share == BASELINE), None)
        rest = None if usual is None else frozen(part.at_level(part.seen_in(usual))[0])
        return Effect(about=about, mean=frozen(part.seen_in(states)), states=frozen(states), usual=rest)

    def asked(self, plant: Described, calendar: Calendar | None) -> str:
        return QUESTION.format(change=self.change_words(plant), unit=self.effect)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Effect(AfterChange, Expected):
    """Answer to "what would the effect unit's outputs do if the cause unit's inputs were changed?".

    ``mean`` (horizon, D_m): change of the measurements, row k is k+1 steps after the change began (Q1).
    ``states`` (horizon, P_m): the same at the level of states, all that the server knows (Q2).
    ``lower``, ``upper``: None where the method gives no uncertainty; ``caveats`` travel with the answer.
    """

    kind = "effect"
    panel = "change"

    states: FloatArray
    usual: FloatArray | None = None  # (D_m,): where outputs rest under every input's mean

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
            "duration": request.duration, "level": self.level,
            "most_affected": [peak.to_json(self.timeline) for peak in self.peaks],
        }  # fmt: skip

    def arrays(self) -> dict[str, Any]:
        return {**self.columns(), "states": self.states}

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
