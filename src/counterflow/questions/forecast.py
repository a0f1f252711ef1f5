"""What will a unit's outputs be after the record's last row, if inputs follow a plan (others stay)?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow import wording
from counterflow.arrays import FloatArray
from counterflow.caveats import EVERYBODY, Caveat
from counterflow.errors import OptionError
from counterflow.notebook import Table
from counterflow.protocol import Answer, Ask, Change
from counterflow.protocol.questions import REACTING
from counterflow.questions.arguments import check_count, check_level, check_world, refuse_beyond_limits, replacements
from counterflow.questions.parts import part_of, refuse_overflow, with_caveats
from counterflow.questions.peaks import left_out
from counterflow.questions.phrases import moved, plainly
from counterflow.questions.question import CONTROLLERS, LAWS, LEVEL, Entry, Form, Laws, Request, horizon
from counterflow.questions.refusals import far, without_interval
from counterflow.questions.replicates import laws_words, world_of
from counterflow.questions.reply import RECENT, SHOWN, About, Described, Responder, Surroundings
from counterflow.questions.row_covariance import share_of
from counterflow.questions.server_model import ServerModel
from counterflow.questions.trajectory import Trajectory
from counterflow.questions.views import LineView, View, attributes, channels_json, finite, line, named, series

if TYPE_CHECKING:
    from counterflow.exchange.part import UnitPart


@dataclass(frozen=True)
class RecentView:
    row: list[int]
    value: list[float | None]


@dataclass(frozen=True)
class ForecastLineView(LineView):
    recent: RecentView


@dataclass(frozen=True)
class ForecastEndView:
    channel: str
    measured_in: str
    last_measured: float | None
    next: float | None
    end: float | None
    lower: float | None
    upper: float | None


@dataclass(frozen=True)
class ForecastView(View):
    unit: str
    horizon: int
    first_row: int
    level: float | None
    drawn: list[ForecastLineView]
    ranked: list[ForecastEndView]


@dataclass(frozen=True)
class AskForecast(Request):
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
    of_worlds = True
    speaks_of_drawn = True
    windowed = True
    schema = ForecastView

    unit: str
    horizon: int = 50
    plan: Mapping[str, Any] | None = None
    headline: str | None = None
    question: str = ""
    level: float = field(default=0.95, kw_only=True)
    controllers: str | None = field(default=None, kw_only=True)
    laws: Laws | None = field(default=None, kw_only=True)

    @classmethod
    def of(cls, given: Mapping[str, Any], unit: str) -> AskForecast:
        world = given.get("controllers")
        laws = given.get("laws") or None
        return cls(unit, given["horizon"], given["plan"] or None, level=given["level"], controllers=world, laws=laws)

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
        future = np.full_like(mean, np.nan)
        made = Forecast.of(about, part, parts, about.server.rows, future, mean, np.diag(part.model.R))
        return made if y is None else replace(made, latest=last_measured(y))  # type: ignore[no-any-return]

    def words(self, plant: Described) -> str:
        return self.question or f"What will {self.unit} do next?"


@dataclass(frozen=True, eq=False, repr=False)
class Forecast(Trajectory):
    """What a unit's outputs are expected to be, with bands for the next measurements.

    ``latest`` (D_m,): the newest measurement of each channel, where the asker has them.
    """

    kind = "forecast"

    answered = "expected"
    predictive = True
    of_what = "from what was last measured"

    latest: FloatArray | None = None

    @property
    def course(self) -> FloatArray:
        return self.mean

    @property
    def base(self) -> FloatArray:
        first = self.mean[0]
        return first if self.latest is None else np.where(np.isfinite(self.latest), self.latest, first)

    def compared_with(self, start: int, stop: int) -> FloatArray:
        return np.full(len(self.channels), np.nan) if self.latest is None else self.latest

    def verb(self, value: float) -> str:
        return "will be {}"

    def weight(self) -> float:
        return float(self._movement().max(initial=0.0))

    def _movement(self) -> FloatArray:
        """How far each channel will move, against its noise."""
        return np.asarray(np.nan_to_num(np.abs(self.mean[-1] - self.mean[0]) / self.about.noise))

    def order(self) -> list[int]:
        """Channels, those that will move most first."""
        return [int(k) for k in np.argsort(-self._movement(), kind="stable")]

    def sentence(self, channel: str | None = None) -> str:
        about, plan = self.about, self.about.request.plan
        k = self.chosen(channel)
        value, interval = wording.measured(float(self.mean[-1, k]), *self.ends(-1, k), about.outputs[k].unit)
        spread = f" ({wording.percent(self.level)}: {interval})" if interval and self.level is not None else ""
        reacting = world_of(self.caveats) == REACTING
        condition = "If controllers go on" if reacting else "If inputs stay as they are"
        if plan:
            words = [
                " is ".join(moved(about.plant, unit, name, value, plainly, "as planned"))
                for unit, channels in plan.items()
                for name, value in (channels if isinstance(channels, Mapping) else {"inputs": channels}).items()
            ]
            others = "controllers go on" if reacting else "other inputs stay as they are"
            condition = f"If {wording.listed(words)} and {others}"
        condition += "".join(f", {place} {law}" for place, law in laws_words(about.request.laws))
        after = wording.span(len(self.mean), about.dt)
        return f"{condition}, {self.unit} {about.outputs[k].name} will be {value}{spread} after {after}."

    @classmethod
    def tables_of(cls, worlds: Sequence[Forecast]) -> list[Table]:
        lines = [(world, k) for world in worlds for k in world.order()]
        lines.sort(key=lambda entry: -float(entry[0]._movement()[entry[1]]))
        rows = []
        for world, k in lines[:SHOWN]:
            channel = world.about.outputs[k]
            value, interval = wording.measured(float(world.mean[-1, k]), *world.ends(-1, k), channel.unit)
            following, _ = wording.measured(float(world.mean[0, k]), *world.ends(0, k), "")
            latest = "–" if world.latest is None else wording.number(float(world.latest[k]))
            rows.append([world.unit, channel.name, latest, following, value, interval])
        level = f"{wording.percent(worlds[0].about.request.level)} interval"
        columns = ["unit", "channel", "last measured", "next", f"after {len(worlds[0].mean)}", level]
        return [Table("the channels that will move most", columns, rows, 2, left_out(len(lines)))]

    @classmethod
    def json_of(cls, worlds: Sequence[Forecast]) -> dict[str, Any]:
        first = worlds[0]
        return {
            "horizon": len(first.mean),
            "first_row": first.first,
            "plan": first.about.request.plan or {},
            "level": first.level,
            "units": {
                world.unit: {
                    "channels": channels_json(world.about.outputs),
                    "last_measured": world.latest,
                    **attributes(world, "mean", "lower", "upper"),
                }
                for world in worlds
            },
        }

    def view(self, drawn: Sequence[str], around: Surroundings) -> dict[str, Any]:
        y = around.recent(self.unit)
        latest, first, outputs = last_measured(y), max(0, len(y) - RECENT), self.about.outputs
        return {
            "unit": self.unit,
            "horizon": len(self.mean),
            "first_row": self.first,
            "level": self.level,
            "drawn": [
                line(outputs[k], k, self, recent={"row": list(range(first, len(y))), "value": series(y[first:, k])})
                for k in map(self.about.output, drawn)
            ],
            "ranked": [
                {
                    **named(outputs[k]),
                    "last_measured": finite(latest[k]),
                    "next": finite(self.mean[0, k]),
                    "end": finite(self.mean[-1, k]),
                    "lower": finite(self.ends(-1, k)[0]),
                    "upper": finite(self.ends(-1, k)[1]),
                }
                for k in self.order()
            ],
        }


def last_measured(y: FloatArray) -> FloatArray:
    """The newest measurement (D_m,) of each channel; NaN if there is none."""
    out = np.full(y.shape[1], np.nan)
    for k in range(y.shape[1]):
        there = np.flatnonzero(~np.isnan(y[:, k]))
        if len(there):
            out[k] = y[there[-1], k]
    return out
