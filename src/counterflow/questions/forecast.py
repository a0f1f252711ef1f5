"""What will a unit's outputs be after the record's last row, if inputs follow a plan (others stay)?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow import wording
from counterflow.arrays import FloatArray, frozen
from counterflow.caveats import EVERYBODY, Caveat
from counterflow.errors import OptionError
from counterflow.notebook import Table
from counterflow.plant.calendar import Calendar
from counterflow.protocol import Answer as Message
from counterflow.protocol import Ask, Change
from counterflow.protocol.questions import REACTING
from counterflow.questions.answer import About, Described, Surroundings
from counterflow.questions.answering import Server, parts_of, with_caveats
from counterflow.questions.numbers import finite, named
from counterflow.questions.phrases import SHOWN, interval, laws_words, left_out, moved, plainly, world_of
from counterflow.questions.question import CONTROLLERS, LAWS, LEVEL, AskWorlds, Entry, Form, changed_inputs, horizon
from counterflow.questions.trajectory import Trajectory

if TYPE_CHECKING:
    from counterflow.exchange.part import UnitPart

QUESTION = "What will {unit} do next?"
ANSWER = "{condition}{laws}, {unit} {channel} will be {size} after {time}."
UNPLANNED = {True: "If controllers go on", False: "If inputs stay as they are"}  # by whether controllers react
PLANNED = {True: "If {plan} and controllers go on", False: "If {plan} and other inputs stay as they are"}
TABLE = "the channels that will move most"
BARE = (
    "standard errors were not computed for this fit: the band holds noise and the state, and not how far the couplings "
    "may be off"
)
RECENT = 200  # rows of the past that a page shows with a forecast


@dataclass(frozen=True)
class AskForecast(AskWorlds):
    """What will ``unit`` do in the next rows, if inputs follow ``plan``? As ``Fit.forecast``."""

    kind = "forecast"
    tab = "forecast"
    command = "forecast"
    title = "What will happen after the recording's last row?"
    example = "counterflow forecast fit --recording recording.safetensors --horizon 30 --plan boiler.valve=0.5"
    form = (
        Entry("unit", Form.UNITS, (), "Units to show; may repeat (all)."),
        Entry("plan", Form.PLAN, (), "An input's value from now on; may repeat."),
        horizon("Steps after the last row."), CONTROLLERS, LAWS, LEVEL,
    )  # fmt: skip
    after_record = True
    speaks_of_drawn = True
    windowed = True

    unit: str
    horizon: Any = 50  # steps, or a time such as "2h"
    plan: Mapping[str, Any] | None = None
    level: float = field(default=0.95, kw_only=True)

    def changes(self, plant: Described, part: UnitPart, rows: slice) -> list[Change]:
        if self.plan is not None and not isinstance(self.plan, Mapping):
            got = type(self.plan).__name__
            raise OptionError(f"forecast: plan must be {{unit: {{input channel: values}}}}, got {got}")
        whole = (self.plan or {}).items()
        return [changed_inputs(self.unit, plant.unit(cause), given, rows, True) for cause, given in whole]

    @classmethod
    def respond(cls, server: Server, changes: Sequence[Change], ask: Ask) -> tuple[Message, ...]:
        if server.couplings is None and server.method != "oracle":
            raise OptionError(f"forecast: method {server.method!r} keeps no joint filter; fit with method='sufficient'")
        base = server.grounded.inputs_acting(None, ask.steps)  # the last inputs held, unless something else is planned
        plan = server.inputs(changes, base)
        bare = server.couplings is not None and not server.model.told
        notes = [*server.far(plan - base), *([Caveat("band-without-couplings", EVERYBODY, BARE)] if bare else [])]
        return with_caveats(parts_of(ask, server.ahead(plan, ask)), notes)

    def answer(self, about: About, y: FloatArray | None) -> Forecast:
        mean = about.part.at_level(about.part.seen_in(about.parts[0].mean))
        return Forecast(
            about=about, mean=frozen(mean), first=about.server.rows, factual=np.full_like(mean, np.nan),
            latest=None if y is None else last_measured(y),
        )  # fmt: skip

    def asked(self, plant: Described, calendar: Calendar | None) -> str:
        return QUESTION.format(unit=self.unit)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Forecast(Trajectory):
    """What a unit's outputs are expected to be, with bands for the next measurements.

    ``latest`` (D_m,): the newest measurement of each channel, where the asker has them.
    """

    kind = "forecast"
    answered = "expected"
    predictive = True
    verbs = "will be {}", "will be {}"
    of_what = "from what was last measured"

    latest: FloatArray | None = None

    @property
    def base(self) -> FloatArray:
        first = self.mean[0]
        return first if self.latest is None else np.where(np.isfinite(self.latest), self.latest, first)

    @property
    def sizes(self) -> FloatArray:
        """How far each channel will move, against its noise."""
        return np.asarray(np.nan_to_num(np.abs(self.mean[-1] - self.mean[0]) / self.about.noise))

    def compared_with(self, start: int, stop: int) -> FloatArray:
        return super().compared_with(start, stop) if self.latest is None else self.latest

    def weight(self) -> float:
        return float(self.sizes.max(initial=0.0))

    def sentence(self, channel: str | None = None) -> str:
        about, k, plan = self.about, self.chosen(channel), self.about.request.plan
        size = interval(float(self.mean[-1, k]), *self.ends(-1, k), about.outputs[k].unit, self.level)
        reacting = world_of(self.caveats) == REACTING
        planned = [
            " is ".join(moved(about.plant, unit, name, value, plainly, "as planned"))
            for unit, channels in (plan or {}).items()
            for name, value in (channels if isinstance(channels, Mapping) else {"inputs": channels}).items()
        ]
        condition = PLANNED[reacting].format(plan=wording.listed(planned)) if plan else UNPLANNED[reacting]
        return ANSWER.format(
            condition=condition, laws="".join(f", {place} {law}" for place, law in laws_words(about.request.laws)),
            unit=self.unit, channel=about.outputs[k].name, size=size, time=wording.span(len(self.mean), about.dt),
        )  # fmt: skip

    @classmethod
    def tables_of(cls, worlds: Sequence[Forecast]) -> list[Table]:
        lines = [(world, k) for world in worlds for k in world.order()]
        lines.sort(key=lambda entry: -float(entry[0].sizes[entry[1]]))
        rows = []
        for world, k in lines[:SHOWN]:
            channel = world.about.outputs[k]
            value, ends = wording.measured(float(world.mean[-1, k]), *world.ends(-1, k), channel.unit)
            following, _ = wording.measured(float(world.mean[0, k]), *world.ends(0, k), "")
            latest = "–" if world.latest is None else wording.number(float(world.latest[k]))
            rows.append([world.unit, channel.name, latest, following, value, ends])
        level = f"{wording.percent(worlds[0].about.request.level)} interval"
        columns = ["unit", "channel", "last measured", "next", f"after {len(worlds[0].mean)}", level]
        return [Table(TABLE, columns, rows, 2, left_out(len(lines)))]

    @classmethod
    def labels_of(cls, worlds: Sequence[Forecast]) -> dict[str, Any]:
        first = worlds[0]
        plan = first.about.request.plan or {}
        return {"horizon": len(first.mean), "first_row": first.first, "plan": plan, "level": first.level}

    def arrays(self) -> dict[str, Any]:
        return {"last_measured": self.latest, "mean": self.mean, "lower": self.lower, "upper": self.upper}

    def page(self, around: Surroundings) -> dict[str, Any]:
        labels = self.labels()
        labels.pop("plan")
        latest = last_measured(around.recent(self.unit))
        ranked = [
            {
                **named(self.about.outputs[k]), "last_measured": finite(latest[k]), "next": finite(self.mean[0, k]),
                "end": finite(self.mean[-1, k]), "lower": finite(self.ends(-1, k)[0]),
                "upper": finite(self.ends(-1, k)[1]),
            }
            for k in self.order()
        ]  # fmt: skip
        return {"unit": self.unit, **labels, "ranked": ranked}

    def page_courses(self, around: Surroundings) -> dict[str, Any]:
        y = around.recent(self.unit)
        first = max(0, len(y) - RECENT)
        recent = {"row": list(range(first, len(y))), "value": y[first:]}
        return {"mean": self.mean, "lower": self.lower, "upper": self.upper, "recent": recent}


def last_measured(y: FloatArray) -> FloatArray:
    """The newest measurement (D_m,) of each channel; NaN if there is none."""
    out = np.full(y.shape[1], np.nan)
    for k in range(y.shape[1]):
        there = np.flatnonzero(~np.isnan(y[:, k]))
        if len(there):
            out[k] = y[there[-1], k]
    return out
