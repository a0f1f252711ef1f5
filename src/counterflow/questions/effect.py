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
from counterflow.plant.units import PublicUnit, Unit
from counterflow.protocol import Answer, Ask, Change
from counterflow.questions.arguments import (
    ChangeLike,
    as_schedule,
    check_count,
    check_level,
    check_world,
    refuse_beyond_limits,
    unit_names,
)
from counterflow.questions.parts import BASELINE, part_of
from counterflow.questions.peaks import Peak, Peaked, band, deviation, peak_table, peaks
from counterflow.questions.phrases import moved, with_verb
from counterflow.questions.question import CONTROLLERS, LAWS, LEVEL, Entry, Form, Inputs, Laws, Request, horizon
from counterflow.questions.refusals import without_interval
from counterflow.questions.replicates import Replicates, world_words
from counterflow.questions.reply import About, Described, Responder, Surroundings
from counterflow.questions.server_model import ServerModel
from counterflow.questions.views import LineView, PeakView, View, attributes, channels_json, line, long_frame, series
from counterflow.questions.window import JointErrors, Windowed

if TYPE_CHECKING:
    import polars
    from matplotlib.figure import Figure

    from counterflow.exchange.part import UnitPart


# ---- the request


@dataclass(frozen=True)
class EffectLineView(LineView):
    """``baseline``: what is expected without the change."""

    baseline: list[float | None] | None


@dataclass(frozen=True)
class ScheduleView:
    unit: str
    input: str
    measured_in: str
    values: list[float | None]


@dataclass(frozen=True)
class EffectView(View):
    causes: list[str]
    effect: str
    horizon: int
    level: float | None
    most_affected: list[PeakView]
    drawn: list[EffectLineView]
    inputs: list[ScheduleView]


CHANGES = Entry("changes", Form.CHANGES, ..., "Added to inputs from now on.")
DURATION = Entry("duration", Form.STEPS, None, "Steps that it is held (all).", False)
EFFECT = Entry("effect", Form.UNIT, ..., "Unit whose outputs are asked about.")


@dataclass(frozen=True)
class AskEffect(Request):
    """What would a change at ``cause`` do to ``effect``? As ``Fit.effect``.

    ``headline``: the output that a report draws large; ``question``: its heading; ``clause``: how the change reads,
    where numbers do not say it all.
    """

    kind = "effect"
    tab = "effect"
    command = "whatif"
    title = "What would outputs do with other inputs?"
    example = "counterflow whatif fit --cause boiler --effect turbine --change valve=+0.1 --duration 10"
    form = (EFFECT, CHANGES, horizon(), DURATION, CONTROLLERS, LAWS, LEVEL)
    of_states = True
    of_worlds = True
    windowed = True
    schema = EffectView

    cause: str | Sequence[str]
    effect: str
    change: Any
    horizon: int = 50
    duration: int | None = None
    headline: str | None = None
    question: str = ""
    level: float = field(default=0.95, kw_only=True)
    clause: str = field(default="", kw_only=True)
    controllers: str | None = field(default=None, kw_only=True)
    laws: Laws | None = field(default=None, kw_only=True)

    @property
    def asker(self) -> str:
        return self.effect

    @classmethod
    def of(cls, given: Mapping[str, Any], unit: str) -> AskEffect:
        changes = given["changes"]
        return cls(
            list(changes.values), unit, changes.values, given["horizon"], given.get("duration"),
            level=given["level"], clause=changes.words, controllers=given.get("controllers"),
            laws=given.get("laws") or None,
        )  # fmt: skip

    @property
    def causes(self) -> list[str]:
        return unit_names("effect", "cause", self.cause)

    def held(self, plant: Described) -> dict[str, Any]:
        """{unit: {input: number or series}}."""
        return {name: by_channel(plant.unit(name), change_of(self, name)) for name in self.causes}

    def messages(self, server: Responder, part: UnitPart) -> tuple[list[Change], Ask]:
        check_level("effect", self.level)
        changes = [addition(self, part.unit.name, server.unit(name), change_of(self, name)) for name in self.causes]
        world = check_world("effect", self.controllers)
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
        C = part.model.C
        mean = part.seen_in(found.mean)
        lower, upper = band(mean, deviation(found, C, doubt=part.C_doubt), self.level)
        return Effect(
            " and ".join(self.causes), self.effect, part.unit.output_names, frozen(mean), frozen(found.mean),
            about.caveats, lower, upper, self.level if lower is not None else None, about,
            running=Replicates.of(part, more, len(mean)), errors=JointErrors.of(part, parts),
            usual=next((frozen(part.at_level(part.seen_in(p.mean))[0]) for p in more if p.share == BASELINE), None),
        )  # fmt: skip

    def words(self, plant: Described) -> str:
        return self.question or f"If {clause(self, plant)}: what would {self.effect} do?"


# ---- what requests of changes from now on share


def change_of(request: Any, name: str) -> ChangeLike:
    """The change at one of the causes."""
    given = request.change
    if isinstance(request.cause, str):
        return given  # type: ignore[no-any-return]
    if not isinstance(given, Mapping) or name not in given:
        raise OptionError(
            f"effect: with several causes, change must be {{unit: change}}; nothing is given for {name!r}"
        )
    return given[name]  # type: ignore[no-any-return]


def addition(request: Any, target: str, source: PublicUnit, given: ChangeLike) -> Change:
    """A change from now on, with one row more than steps: for inputs that act on the row they stand in."""
    check_count(request.kind, "horizon", request.horizon)
    if request.duration is not None:
        check_count(request.kind, "duration", request.duration)
    values = as_schedule(source, given, request.horizon, request.duration)
    refuse_beyond_limits(source, values, absolute=False)
    last = values[-1:] if request.duration is None else np.zeros_like(values[-1:])
    return Change(target, source.name, False, 0, "", np.vstack([values, last]))


def by_channel(source: Unit | PublicUnit, given: ChangeLike) -> dict[str, Any]:
    """{input: number or series}."""
    given = columns_of(given)
    if isinstance(given, Mapping):
        return dict(given)
    values = np.asarray(given, np.float64)
    return dict(zip(source.input_names, values.tolist() if values.ndim == 1 else values.T, strict=True))


def clause(request: Any, plant: Described) -> str:
    """ "boiler valve were +2 % for 10 steps" """
    if request.clause:
        return str(request.clause)
    held: Inputs = request.held(plant)
    each = [(unit, name, value) for unit, channels in held.items() for name, value in channels.items()]
    text = with_verb([moved(plant, *one) for one in each], "were")
    if any(np.ndim(value) for _, _, value in each):
        return text
    if request.duration is None or request.duration >= request.horizon:
        return f"{text} from now on"
    return f"{text} for {wording.span(request.duration, plant.dt)}"


# ---- the answer


@dataclass(frozen=True, eq=False, repr=False)
class Effect(Peaked, Windowed):
    """Answer to "what would the effect unit's outputs do if the cause unit's inputs were changed?".

    ``mean`` (horizon, D_m): change of the measurements, row k is k+1 steps after the change began (Q1).
    ``states`` (horizon, P_m): the same at the level of states, all that the server knows (Q2).
    ``lower``, ``upper``: None where the method gives no uncertainty; ``caveats`` travel with the answer.
    """

    kind = "effect"

    cause: str
    effect: str
    channels: tuple[str, ...]
    mean: FloatArray
    states: FloatArray
    caveats: tuple[Caveat, ...] = ()
    lower: FloatArray | None = None
    upper: FloatArray | None = None
    level: float | None = None
    about: About = field(default=None)  # type: ignore[assignment]
    running: Replicates | None = None
    errors: JointErrors | None = None
    usual: FloatArray | None = None  # (D_m,): where outputs rest under every input's mean

    @property
    def course(self) -> FloatArray:
        return self.mean

    def compared_with(self, start: int, stop: int) -> FloatArray:
        return np.full(len(self.channels), np.nan) if self.usual is None else self.usual

    @property
    def peaks(self) -> list[Peak]:
        return peaks(self.about, self.mean, self.lower, self.upper)

    def sentence(self, channel: str | None = None) -> str:
        request = self.about.request
        world = world_words(self.caveats, request.laws)
        return f"If {clause(request, self.about.plant)}{world}, {self.would(channel)}"

    def would(self, channel: str | None = None) -> str:
        """ "turbine speed would rise by 3.2 rpm (95 %: 2.8 to 3.6) after 12 steps." """
        peak = self.peak(channel)
        if peak.is_nothing:
            return f"nothing would change at {peak.unit}."
        sign, by = peak.sentence(self.level)
        after = wording.span(peak.row + 1, self.about.dt)
        more = "" if self.running is None else self.running.words(peak.channel, self.caveats, self.level)
        return f"{peak.unit} {peak.channel.name} would {'fall' if sign < 0 else 'rise'} by {by} after {after}.{more}"

    def tables(self, channels: Sequence[str] = ()) -> list[Table]:
        return [peak_table(f"{self.effect}: the channels that move most", self.peaks, self.level, "after", 1)]

    def to_json(self) -> dict[str, Any]:
        held = self.about.request.held(self.about.plant)
        return {
            "causes": list(held),
            "effect": self.effect,
            "change": held,
            **attributes(self.about.request, "horizon", "duration"),
            "level": self.level,
            "channels": channels_json(self.about.outputs),
            "most_affected": [peak.to_json("steps", 1) for peak in self.peaks],
            **attributes(self, "mean", "lower", "upper", "states"),
        }

    def view(self, drawn: Sequence[str], around: Surroundings) -> dict[str, Any]:
        held, steps = self.about.request.held(self.about.plant), len(self.mean)
        inputs = [
            (unit, self.about.input(unit, name), series(np.broadcast_to(values, (steps,))))
            for unit, channels in held.items()
            for name, values in channels.items()
        ]
        return {
            "causes": list(held),
            "effect": self.effect,
            "horizon": steps,
            "level": self.level,
            "most_affected": [peak.to_json("steps", 1) for peak in self.peaks],
            "drawn": self.lines(drawn, around),
            "inputs": [
                {"unit": unit, "input": channel.name, "measured_in": channel.unit, "values": values}
                for unit, channel, values in inputs
            ],
        }

    def lines(self, drawn: Sequence[str], around: Surroundings) -> list[dict[str, Any]]:
        """Channels for drawing, with what is expected without the change."""
        expected = around.baseline(self.effect, len(self.mean))
        return [
            line(self.about.outputs[k], k, self, baseline=None if expected is None else series(expected[:, k]))
            for k in map(self.about.output, drawn)
        ]

    def to_frame(self) -> polars.DataFrame:
        """One row a step and channel: step, channel, mean, and lower and upper where there are any."""
        return long_frame("step", 1, self.channels, attributes(self, "mean", "lower", "upper"))

    def plot(self, channels: Sequence[str] = ()) -> Figure:
        """A matplotlib Figure of the channels that move most, with a panel for each unit of measure."""
        from counterflow.questions.plots import Line, Rows, channel_panels, elapsed, panels

        order = [self.about.output(name) for name in channels] or self.order()

        def lines(k: int, colour: str) -> list[Line]:
            more = [] if self.running is None else self.running.lines(k, np.zeros(steps), self.caveats, colour)
            return [Line.banded(self.channels[k], (self.mean, self.lower, self.upper), colour, k), *more]

        steps, dt = len(self.mean), self.about.dt
        size, _ = elapsed(steps, dt)
        held = [(size * a, size * b) for a, b in changed_steps(self.about.request, self.about.plant, steps)]
        band = "" if self.level is None else f", {wording.percent(self.level)} bands"
        title = f"{self.effect}, if {self.cause} were run differently{band}"
        groups = channel_panels(self.about.outputs, order, lines, "change")
        return panels(Rows.after_change(steps, dt), groups, title, held, zero=True)


def changed_steps(request: Any, plant: Described, steps: int) -> list[tuple[int, int]]:
    """Stretches (first, after the last) of steps in which inputs are changed."""
    from counterflow.questions.plots import spans

    active = np.zeros(steps, bool)
    for channels in request.held(plant).values():
        for values in channels.values():
            active |= np.broadcast_to(np.asarray(values, np.float64) != 0, (steps,))
    active[getattr(request, "duration", None) or steps :] = False
    return spans(active)
