"""What will a unit's outputs be after the record's last row, if inputs follow a plan (others stay)?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow import wording
from counterflow.arrays import FloatArray
from counterflow.caveats import EVERYBODY, Caveat
from counterflow.errors import OptionError
from counterflow.notebook import Table
from counterflow.plant.calendar import Calendar
from counterflow.protocol import Answer, Ask, Change
from counterflow.protocol.questions import REACTING
from counterflow.questions.answer import About, Described, Responder, Surroundings
from counterflow.questions.arguments import check_count, check_level, check_world, refuse_beyond_limits, replacements
from counterflow.questions.numbers import finite, named
from counterflow.questions.parts import part_of, refuse_overflow, with_caveats
from counterflow.questions.peaks import SHOWN, left_out
from counterflow.questions.phrases import moved, plainly
from counterflow.questions.question import CONTROLLERS, LAWS, LEVEL, AskWorlds, Entry, Form, horizon
from counterflow.questions.refusals import far, without_interval
from counterflow.questions.replicates import laws_words, world_of
from counterflow.questions.row_covariance import share_of
from counterflow.questions.server_model import ServerModel
from counterflow.questions.trajectory import Trajectory

if TYPE_CHECKING:
    from counterflow.exchange.part import UnitPart

QUESTION = "What will {unit} do next?"
ANSWER = "{condition}{laws}, {unit} {channel} will be {size}{interval} after {time}."
UNPLANNED = {True: "If controllers go on", False: "If inputs stay as they are"}  # by whether controllers react
PLANNED = {True: "If {plan} and controllers go on", False: "If {plan} and other inputs stay as they are"}
TABLE = "the channels that will move most"
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
    horizon: int = 50
    plan: Mapping[str, Any] | None = None
    headline: str | None = None
    question: str = ""
    level: float = field(default=0.95, kw_only=True)

    def messages(self, server: Responder, part: UnitPart) -> tuple[list[Change], Ask]:
        check_count(self.kind, "horizon", self.horizon)
        check_level(self.kind, self.level)
        if self.plan is not None and not isinstance(self.plan, Mapping):
            got = type(self.plan).__name__
            raise OptionError(f"forecast: plan must be {{unit: {{input channel: values}}}}, got {got}")
        changes = []
        for cause, given in (self.plan or {}).items():
            source = server.unit(cause)
            values, channels = replacements(source, given, self.horizon)
            refuse_beyond_limits(source, values, absolute=True, channels=channels)
            changes.append(Change(self.unit, cause, True, 0, ",".join(map(str, channels)), values))
        return changes, Ask(self.unit, self.kind, 0, self.horizon, check_world("forecast", self.controllers))

    @classmethod
    def respond(cls, server: ServerModel, changes: Sequence[Change], ask: Ask) -> tuple[Answer, ...]:
        if server.couplings is None and server.method != "oracle":
            raise OptionError(f"forecast: method {server.method!r} keeps no joint filter; fit with method='sufficient'")
        base = np.tile(server.u[-1], (ask.steps, 1))  # the last inputs held, unless something else is planned
        plan = server.schedule(server.departures(changes), base)
        noise = server.grounded.noise_ahead(ask.steps, server.names.index(ask.unit))
        found = server.ahead(plan, ask).and_noise(*noise)
        refuse_overflow(found.mean, found.covariance)
        parts = share_of(part_of(ask, found.mean, found.covariance), found.directions)
        return with_caveats(parts, far(server, plan - base))

    @classmethod
    def caveats(cls, server: ServerModel, parts: Sequence[Answer]) -> list[Caveat]:
        if server.couplings is None or server.model.told:
            return []
        text = (
            "standard errors were not computed for this fit: the band holds noise and the state, and not how far the "
            "couplings may be off"
        )
        return without_interval(server, parts) or [Caveat("band-without-couplings", EVERYBODY, text)]

    def answer(self, about: About, part: UnitPart, parts: Sequence[Answer], y: FloatArray | None) -> Forecast:
        mean = part.at_level(part.seen_in(parts[0].mean))
        found: Forecast = Forecast.from_states(
            about, part, parts, mean, np.diag(part.model.R), first=about.server.rows,
            factual=np.full_like(mean, np.nan), latest=None if y is None else last_measured(y),
        )  # fmt: skip
        return found

    def words(self, plant: Described, calendar: Calendar | None = None) -> str:
        return self.question or QUESTION.format(unit=self.unit)


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
    def course(self) -> FloatArray:
        return self.mean

    @property
    def bounds(self) -> tuple[FloatArray | None, FloatArray | None]:
        return self.lower, self.upper

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
        value, interval = wording.measured(float(self.mean[-1, k]), *self.ends(-1, k), about.outputs[k].unit)
        reacting = world_of(self.caveats) == REACTING
        planned = [
            " is ".join(moved(about.plant, unit, name, value, plainly, "as planned"))
            for unit, channels in (plan or {}).items()
            for name, value in (channels if isinstance(channels, Mapping) else {"inputs": channels}).items()
        ]
        condition = PLANNED[reacting].format(plan=wording.listed(planned)) if plan else UNPLANNED[reacting]
        return ANSWER.format(
            condition=condition, laws="".join(f", {place} {law}" for place, law in laws_words(about.request.laws)),
            unit=self.unit, channel=about.outputs[k].name, size=value, time=wording.span(len(self.mean), about.dt),
            interval=f" ({wording.percent(self.level)}: {interval})" if interval and self.level is not None else "",
        )  # fmt: skip

    @classmethod
    def tables_of(cls, worlds: Sequence[Forecast]) -> list[Table]:
        lines = [(world, k) for world in worlds for k in world.order()]
        lines.sort(key=lambda entry: -float(entry[0].sizes[entry[1]]))
        rows = []
        for world, k in lines[:SHOWN]:
            channel = world.about.outputs[k]
            value, interval = wording.measured(float(world.mean[-1, k]), *world.ends(-1, k), channel.unit)
            following, _ = wording.measured(float(world.mean[0, k]), *world.ends(0, k), "")
            latest = "–" if world.latest is None else wording.number(float(world.latest[k]))
            rows.append([world.unit, channel.name, latest, following, value, interval])
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
