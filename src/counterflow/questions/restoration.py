"""Which smallest held change of chosen inputs moves a unit's outputs by so much at the horizon?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow import wording
from counterflow.arrays import FloatArray, frozen
from counterflow.caveats import Caveat, distinct
from counterflow.errors import DataError, OptionError, UnidentifiedError
from counterflow.notebook import Table
from counterflow.plant.units import Channel, PublicUnit
from counterflow.protocol import Answer, Ask, Change
from counterflow.protocol.questions import NO_LIMIT, REACTING
from counterflow.questions.arguments import channel_index, check_count, check_world, unit_names
from counterflow.questions.effect import AskEffect, Effect, EffectLineView
from counterflow.questions.gate import FAR, far_change
from counterflow.questions.knowledge import Knowledge
from counterflow.questions.parts import part_of
from counterflow.questions.phrases import signed, sized
from counterflow.questions.question import CONTROLLERS, LAWS, Entry, Form, Laws, Request, ask_server, horizon
from counterflow.questions.replicates import world_of, world_words
from counterflow.questions.reply import About, Described, Reply, Responder, Surroundings
from counterflow.questions.views import View, attributes, named

if TYPE_CHECKING:
    import polars
    from matplotlib.figure import Figure

    from counterflow.methods.part import UnitPart

TRIALS = 6  # of a restoration by a fit from logs, each of which asks what the change would do


@dataclass(frozen=True)
class LeverView:
    unit: str
    input: str
    measured_in: str
    change: float


@dataclass(frozen=True)
class ReachedView:
    channel: str
    measured_in: str
    target: float
    reached: float


@dataclass(frozen=True)
class RestorationView(View):
    unit: str
    feasible: bool
    horizon: int
    change: list[LeverView]
    channels: list[ReachedView]
    drawn: list[EffectLineView]


@dataclass(frozen=True)
class AskRestoration(Request):
    """What would move ``unit``'s outputs by ``target``? As ``Fit.restore``.

    Small is measured in each input's seen range (or its limits' width). What cannot be reached within the limits is
    said so, with the nearest that can.
    """

    kind = "restoration"
    tab = "restore"
    command = "restore"
    title = "Which change of inputs would move outputs so far?"
    example = "counterflow restore fit --unit turbine --target speed=+5 --using boiler --using pump.valve"
    form = (
        Entry("unit", Form.UNIT, ..., "Unit whose outputs should move."),
        Entry("target", Form.TARGET, ..., "By how much; may repeat."),
        Entry("using", Form.LEVERS, ..., "Inputs that may change; may repeat."),
        horizon("Steps until it should be reached."),
        CONTROLLERS,
        LAWS,
    )
    of_worlds = True
    drawn = ""
    schema = RestorationView

    unit: str
    target: Mapping[str, float]
    using: Sequence[str] | Mapping[str, Sequence[str]]
    horizon: int = 50
    question: str = ""
    tolerance: float = field(default=1e-3, kw_only=True)
    headline: str | None = field(default=None, kw_only=True)
    controllers: str | None = field(default=None, kw_only=True)
    laws: Laws | None = field(default=None, kw_only=True)

    @classmethod
    def of(cls, given: Mapping[str, Any], unit: str) -> AskRestoration:
        return cls(
            unit, given["target"], given["using"], given["horizon"], controllers=given.get("controllers"),
            laws=given.get("laws") or None,
        )  # fmt: skip

    def messages(self, server: Responder, part: UnitPart) -> tuple[list[Change], Ask]:
        check_count("restore", "horizon", self.horizon)
        if not isinstance(self.target, Mapping) or not self.target:
            raise OptionError("restore: target must be {output channel: change}, and not empty")
        for name in self.target:
            channel_index(part.unit, name, part.unit.output_names, "output")
        if not np.isfinite([float(value) for value in self.target.values()]).all():
            raise DataError(f"restore: target must be finite numbers, got {dict(self.target)}")
        named: dict[str, list[int]] = {}
        for source, channel in self.levers(server):
            named.setdefault(source.name, []).append(channel)
        if not named:
            raise OptionError("restore: using must name at least one unit with inputs")
        changes = []
        for name, own in named.items():
            marked = np.zeros((1, server.unit(name).n_inputs))
            marked[0, own] = 1.0
            changes.append(Change(self.unit, name, False, 0, ",".join(map(str, own)), marked))
        return changes, Ask(self.unit, self.kind, 0, self.horizon, check_world("restore", self.controllers))

    def levers(self, server: Responder) -> list[tuple[PublicUnit, int]]:
        """The inputs that may change, each once."""
        out: list[tuple[PublicUnit, int]] = []
        for name in unit_names("restore", "using", self.using):
            unit = server.unit(name)
            chosen = self.using[name] if isinstance(self.using, Mapping) else unit.input_names
            out += [(unit, channel_index(unit, channel, unit.input_names, "input")) for channel in chosen]
        return [lever for k, lever in enumerate(out) if lever not in out[:k]]

    @classmethod
    def columns(cls, change: Change) -> list[int]:
        return change.columns

    @classmethod
    def respond(cls, server: Knowledge, changes: Sequence[Change], ask: Ask) -> tuple[Answer, ...]:
        """What one unit of each input, held from step 0 on, does: rows are (input, step); and its headroom."""
        ahead = any(server.point(change.cause).same_row for change in changes)
        own, steps = server.own(ask.unit), ask.steps + ahead
        out = []
        for change in changes:
            column = server.input_slices[change.cause].start
            first = int(ahead and server.point(change.cause).same_row)
            held = [server.held(column + k, steps, ask.controllers)[:, own] for k in change.columns]
            mean = np.vstack(
                [rows[first : first + ask.steps] for rows in held] or [np.zeros((0, own.stop - own.start))]
            )
            headroom = np.array([server.headroom(change.cause, k) for k in change.columns]).reshape(-1, 3)
            out.append(replace(part_of(ask, mean, share=change.cause), headroom=headroom))
        return tuple(out)

    def answer(self, about: About, part: UnitPart, parts: Sequence[Answer], y: FloatArray | None) -> Restoration:
        from scipy.optimize import lsq_linear

        levers = self.levers(about.server)
        outputs = [about.output(name) for name in self.target]
        untold = [name for name, k in zip(self.target, outputs, strict=True) if part.untold[k]]
        if untold:
            raise UnidentifiedError(
                f"restore: nothing is known of {', '.join(untold)} of unit {self.unit!r}, which never moved or was "
                "hardly ever read; take other channels",
                scope=self.unit,
            )
        wanted = np.array([float(value) for value in self.target.values()])
        moved = [p.mean.reshape(len(p.headroom), self.horizon, -1)[:, -1] for p in parts]  # states at the horizon
        headroom = np.vstack([piece.headroom for piece in parts])
        low, high = (np.where(np.abs(bound) < NO_LIMIT, bound, np.inf * np.sign(bound)) for bound in headroom[:, :2].T)
        scale = headroom[:, 2]
        G = part.model.C[outputs] @ np.vstack(moved).T * scale  # in units of each lever's size
        weight = 1e6 / np.maximum(np.abs(wanted), 1e-12)  # the target comes first, the size of the change second
        needed = float(np.linalg.norm(np.linalg.pinv(G) @ wanted))  # a large target is not cut short by its price
        system = np.vstack([weight[:, None] * G, np.eye(len(levers)) / max(needed, 1.0)])
        right = np.concatenate([weight * wanted, np.zeros(len(levers))])
        found = lsq_linear(system, right, bounds=(low / scale, high / scale), tol=1e-14)
        change, reached = found.x * scale, G @ found.x
        told: list[Caveat] = []
        # a fit from logs may bend, and a controller may meet a limit: what the change does is asked, not multiplied
        if part.C_doubt is not None or world_of(about.caveats) == REACTING:
            change, reached, told = self._tried(about, part, levers, outputs, wanted, change, (low, high))
        feasible = bool((np.abs(reached - wanted) <= self.tolerance * np.maximum(np.abs(wanted), 1e-12)).all())
        grouped: dict[str, dict[str, float]] = {}
        for (source, channel), value in zip(levers, change, strict=True):
            grouped.setdefault(source.name, {})[source.input_names[channel]] = float(value)
        beyond = np.abs(change) > FAR * scale
        far = list(dict.fromkeys(source.name for (source, _), there in zip(levers, beyond, strict=True) if there))
        return Restoration(
            self.unit, tuple(self.target), self.horizon, feasible, MappingProxyType(grouped), frozen(wanted),
            frozen(reached), distinct([*about.caveats, *told, *([far_change(far)] if far else [])]), about, part,
        )  # fmt: skip

    def _tried(
        self, about: About, part: UnitPart, levers: Sequence[tuple[PublicUnit, int]], outputs: Sequence[int],
        wanted: FloatArray, change: FloatArray, bounds: tuple[FloatArray, FloatArray],
    ) -> tuple[FloatArray, FloatArray, list[Caveat]]:  # fmt: skip
        """The change, grown or shrunk until it does what is wanted; what it does then; what that must be read with."""
        for trial in range(TRIALS):
            asked: dict[str, dict[str, float]] = {}
            for (source, channel), value in zip(levers, change, strict=True):
                asked.setdefault(source.name, {})[source.input_names[channel]] = float(value)
            request = AskEffect(list(asked), self.unit, asked, self.horizon, controllers=self.controllers)
            found = ask_server(request, about.plant, about.server, part)
            reached = np.asarray(found.mean[-1, list(outputs)], np.float64)
            size = float(reached @ reached)
            close = (np.abs(reached - wanted) <= self.tolerance * np.maximum(np.abs(wanted), 1e-12)).all()
            if close or size == 0 or trial == TRIALS - 1:
                break
            factor = float(np.clip(reached @ wanted / size, 0.2, 5.0))
            change = np.clip(change * factor, *bounds)
        return change, reached, list(found.caveats)

    def goals(self, plant: Described, outputs: Sequence[Channel]) -> str:
        """ "speed by +5 rpm and power by -1 MW" """
        units = {channel.name: channel.unit for channel in outputs}
        return wording.listed(
            [f"{name} by {signed(float(value), units.get(name, ''))}" for name, value in self.target.items()]
        )

    def words(self, plant: Described) -> str:
        outputs = getattr(plant.unit(self.unit), "outputs", ())
        after = wording.span(self.horizon, plant.dt)
        return self.question or f"What would move {self.unit} {self.goals(plant, outputs)} after {after}?"


@dataclass(frozen=True, eq=False, repr=False)
class Restoration(Reply):
    """The smallest held change of some units' inputs that brings outputs to a target.

    ``change`` maps cause -> {input channel: change}; ``reached`` (channels) is where the asked channels end, ``target``
    where they should. Not ``feasible``: the nearest that the limits allow.
    """

    kind = "restoration"

    unit: str
    channels: tuple[str, ...]
    horizon: int
    feasible: bool
    change: Mapping[str, Mapping[str, float]]
    target: FloatArray
    reached: FloatArray
    caveats: tuple[Caveat, ...] = ()
    about: About = field(default=None, repr=False)  # type: ignore[assignment]
    part: UnitPart | None = field(default=None, repr=False)

    @property
    def message(self) -> str:
        """The answer in words."""
        return self.sentence()

    def order(self) -> list[int]:
        return list(range(len(self.channels)))

    def held(self) -> list[tuple[str, Channel, float]]:
        """Unit, input and change of everything that is moved."""
        return [
            (cause, self.about.input(cause, name), value)
            for cause, channels in self.change.items()
            for name, value in channels.items()
        ]

    def way(self, level: float = 0.95) -> Effect:
        """The way there: what holding the change does, with its band."""
        assert self.part is not None
        change = {cause: dict(channels) for cause, channels in self.change.items()}
        world, laws = self.about.request.controllers, self.about.request.laws
        request = AskEffect(list(change), self.unit, change, self.horizon, level=level, controllers=world, laws=laws)
        return ask_server(request, self.about.plant, self.about.server, self.part)  # type: ignore[no-any-return]

    def _outputs(self) -> list[tuple[Channel, float, float]]:
        """Output, its target and where it ends."""
        found = [self.about.outputs[self.about.output(name)] for name in self.channels]
        return list(zip(found, map(float, self.target), map(float, self.reached), strict=True))

    def sentence(self, channel: str | None = None) -> str:
        about, world = self.about, world_words(self.caveats, self.about.request.laws)
        aims, after = about.request.goals(about.plant, about.outputs), wording.span(self.horizon, about.dt)
        held = wording.listed([f"{cause} {c.name} {sized(value, c.unit)}" for cause, c, value in self.held()])
        if self.feasible:
            return f"To move {self.unit} {aims} after {after}{world}, hold {held}."
        nearest = wording.listed([f"{output.name} {sized(end, output.unit)}" for output, _, end in self._outputs()])
        limits = " within their limits" * any(channel.limits is not None for _, channel, _ in self.held())
        return (
            f"{self.unit} {aims} after {after}{world} cannot be reached with these inputs{limits}; the nearest is "
            f"{nearest}, with {held}."
        )

    def tables(self, channels: Sequence[str] = ()) -> list[Table]:
        held = [[cause, channel.name, sized(value, channel.unit)] for cause, channel, value in self.held()]
        ends = [[output.name, sized(aim, output.unit), sized(end, output.unit)] for output, aim, end in self._outputs()]
        after = wording.span(self.horizon, self.about.dt)
        return [
            Table("hold these changes", ["unit", "input", "change"], held, 2),
            Table(f"{self.unit} after {after}", ["channel", "target", "reached"], ends),
        ]

    def to_json(self) -> dict[str, Any]:
        change = {cause: dict(channels) for cause, channels in self.change.items()}
        whole = {**attributes(self, "unit", "horizon", "feasible"), "change": change, "channels": list(self.channels)}
        return {**whole, "target": self.target, "reached": self.reached}

    def view(self, drawn: Sequence[str], around: Surroundings) -> dict[str, Any]:
        return {
            **attributes(self, "unit", "feasible", "horizon"),
            "change": [
                {"unit": cause, "input": channel.name, "measured_in": channel.unit, "change": value}
                for cause, channel, value in self.held()
            ],
            "channels": [{**named(output), "target": aim, "reached": end} for output, aim, end in self._outputs()],
            "drawn": self.way().lines(self.channels, around),
        }

    def to_frame(self) -> polars.DataFrame:
        """One row for each input that is moved: unit, input, measured_in, change."""
        import polars

        rows = [(cause, channel.name, channel.unit, value) for cause, channel, value in self.held()]
        return polars.DataFrame(rows, schema=["unit", "input", "measured_in", "change"], orient="row")

    def plot(self) -> Figure:
        """A matplotlib Figure of the way there; see ``way``."""
        return self.way().plot(self.channels)
