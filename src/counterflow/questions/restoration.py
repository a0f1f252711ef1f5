"""Which smallest held change of chosen inputs moves a unit's outputs by so much at the horizon?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow import wording
from counterflow.arrays import FloatArray, frozen
from counterflow.caveats import Caveat, distinct
from counterflow.errors import CounterflowError, DataError, OptionError, UnidentifiedError, UnstableError
from counterflow.notebook import Table
from counterflow.plant.calendar import Calendar
from counterflow.plant.units import MANIPULATED, SET_POINT, Channel, PublicUnit, Unit
from counterflow.protocol import Answer as Message
from counterflow.protocol import Ask, Change
from counterflow.protocol.questions import NO_LIMIT, REACTING
from counterflow.questions.answer import About, Answer, Described, Surroundings
from counterflow.questions.answering import EXTRAPOLATION, FAR, Server, far_change, part_of
from counterflow.questions.effect import AskEffect, Effect
from counterflow.questions.numbers import named
from counterflow.questions.phrases import interval, signed, sized, world_of, world_words
from counterflow.questions.question import (
    CONTROLLERS,
    LAWS,
    AskWorlds,
    Entry,
    Form,
    channel_index,
    horizon,
    unit_names,
)
from counterflow.questions.restore_search import Search, grown, planned, within
from counterflow.questions.timeline import Steps

if TYPE_CHECKING:
    import polars
    from matplotlib.figure import Figure

    from counterflow.exchange.part import UnitPart

IDLE = 0.2  # of what a target does by its controller: one that does less once a plan moves that input has no use in it
FURTHEST = 4.0  # of the range seen: a target beyond only tells its controller to stand at its limit
NEEDLESS = 1e-6  # of an input's size: a change for which no controller is taken off


Lever = tuple[Unit | PublicUnit, int]  # an input that may change


QUESTION = "What would move {unit} {goals} {after}?"
HOLD = "To move {unit} {goals} {after}{world}, hold {held}."
BEYOND = (
    "{unit} {goals} {after}{world} cannot be reached with these inputs{limits}; the nearest is {nearest}, with {held}."
)


@dataclass(frozen=True)
class AskRestoration(AskWorlds):
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
    drawn = ""

    of_levers = True

    unit: str
    target: Mapping[str, float]
    using: Sequence[str] | Mapping[str, Sequence[str]]
    horizon: Any = 50  # steps, or a time such as "2h"
    tolerance: float = field(default=1e-3, kw_only=True)

    def changes(self, plant: Described, part: UnitPart, rows: slice) -> list[Change]:
        if not isinstance(self.target, Mapping) or not self.target:
            raise OptionError("restore: target must be {output channel: change}, and not empty")
        for name in self.target:
            channel_index(part.unit, name, part.unit.output_names, "output")
        if not np.isfinite([float(value) for value in self.target.values()]).all():
            raise DataError(f"restore: target must be finite numbers, got {dict(self.target)}")
        marked: dict[str, list[int]] = {}
        for source, channel in self.levers(plant):
            marked.setdefault(source.name, []).append(channel)
        if not marked:
            raise OptionError("restore: using must name at least one unit with inputs")
        changes = []
        for name, own in marked.items():
            values = np.zeros((1, plant.unit(name).n_inputs))
            values[0, own] = 1.0
            changes.append(Change(self.unit, name, False, 0, ",".join(map(str, own)), values))
        return changes

    def levers(self, plant: Described) -> list[Lever]:
        """The inputs that may change, each once."""
        out: list[Lever] = []
        for name in unit_names("restore", "using", self.using):
            unit = plant.unit(name)
            chosen = self.using[name] if isinstance(self.using, Mapping) else unit.input_names
            out += [(unit, channel_index(unit, channel, unit.input_names, "input")) for channel in chosen]
        return [lever for k, lever in enumerate(out) if lever not in out[:k]]

    @classmethod
    def respond(cls, server: Server, changes: Sequence[Change], ask: Ask) -> tuple[Message, ...]:
        """What one unit of each input, held from step 0 on, does: rows are (input, step); and its headroom.

        Where controllers react, all of these inputs are out of their hands. A target whose controller is so left
        without its input has no room to move, and no target has more than a few times the range seen.
        """
        ahead = any(server.point(change.cause).same_row for change in changes)
        own, steps = server.own(ask.unit), ask.steps + ahead
        reacting, closed = ask.controllers == REACTING, server.reacts(ask)
        levers = {server.input_slices[change.cause].start + k for change in changes for k in change.columns}
        taken = sorted(levers & set(server.running_plant.moved())) if reacting else []
        out = []
        for change in changes:
            column = server.input_slices[change.cause].start
            first = int(ahead and server.point(change.cause).same_row)
            held, headroom = [], []
            for k in change.columns:
                found = server.step_response(column + k, steps, closed, taken)
                held.append(found[first : first + ask.steps, own])
                down, up, size = server.headroom(change.cause, k)
                role = server.unit(change.cause).inputs[k].role
                if role and reacting:
                    room = FURTHEST * size if role == SET_POINT else NO_LIMIT
                    if set(taken) - {column + k}:
                        by_itself = server.step_response(column + k, steps, closed)
                        room *= bool(np.linalg.norm(found) >= IDLE * np.linalg.norm(by_itself))
                    down, up = max(down, -room), min(up, room)
                headroom.append((down, up, size))
            mean = np.vstack(held or [np.zeros((0, own.stop - own.start))])
            out.append(replace(part_of(ask, mean, share=change.cause), headroom=np.array(headroom).reshape(-1, 3)))
        return tuple(out)

    def answer(self, about: About, y: FloatArray | None) -> Restoration:
        part, levers = about.part, self.levers(about.plant)
        outputs = [about.output(name) for name in self.target]
        untold = [name for name, k in zip(self.target, outputs, strict=True) if part.untold[k]]
        if untold:
            raise UnidentifiedError(
                f"restore: nothing is known of {', '.join(untold)} of unit {self.unit!r}, which never moved or was "
                "hardly ever read; take other channels",
                scope=self.unit,
            )
        wanted = np.array([float(value) for value in self.target.values()])
        moved = np.vstack([p.mean.reshape(len(p.headroom), self.horizon, -1)[:, -1] for p in about.parts])
        headroom = np.vstack([piece.headroom for piece in about.parts])
        able = headroom[:, 0] < headroom[:, 1]
        if able.any():  # what has no room to move is no part of a plan
            levers = [lever for lever, free in zip(levers, able, strict=True) if free]
            moved, headroom = moved[able], headroom[able]
        ends, scale = headroom[:, :2].T, headroom[:, 2]
        bounds = np.where(np.abs(ends) < NO_LIMIT, ends, np.copysign(np.inf, ends))
        heard: dict[bytes, tuple[Caveat, ...]] = {}  # what plans that were asked about must be read with
        refused: list[CounterflowError] = []
        reacting = world_of(about.caveats) == REACTING

        def outcome(plan: FloatArray) -> FloatArray | None:
            asked = _grouped(levers, np.clip(plan * scale, *bounds))
            request = AskEffect(list(asked), self.unit, asked, self.horizon, controllers=self.controllers)
            try:
                found = request.put(about.plant, about.server, part)
            except (DataError, UnstableError) as error:
                if not reacting:
                    raise
                refused.append(error)  # of a plan that goes too far
                return None
            heard[plan.tobytes()] = found.caveats
            return np.asarray(found.mean[-1, outputs], np.float64)

        G = part.model.C[outputs] @ moved.T * scale  # at the horizon, in units of each lever's size
        plan, reached, (low, high) = np.zeros(len(levers)), np.zeros(len(wanted)), bounds / scale
        if able.any() and reacting:  # a controller may meet a limit: what a plan does is asked, and the plan corrected
            search = Search(outcome, G, wanted, low, high, self.tolerance)
            search.run()
            plan, reached = search.plan, search.reached
            if refused and not heard:
                raise refused[0]
        elif able.any():
            plan = planned(G, wanted, low, high)
            reached = G @ plan
            if part.C_doubt is not None:  # a fit from logs may bend: what the change does is asked, not multiplied
                plan, reached = grown(outcome, plan, wanted, low, high, self.tolerance)
        change = np.clip(plan * scale, *bounds) if able.any() else plan
        beyond = np.abs(change) > FAR * scale
        far = list(dict.fromkeys(source.name for (source, _), there in zip(levers, beyond, strict=True) if there))
        notes = [*about.caveats, *heard.get(plan.tobytes(), ()), *([far_change(far)] if far else [])]
        answer = Restoration(
            about=replace(about, caveats=distinct(notes)), feasible=within(reached, wanted, self.tolerance),
            change=MappingProxyType(_grouped(levers, change)), target=frozen(wanted), reached=frozen(reached),
        )  # fmt: skip
        taken = [source.inputs[channel].role == MANIPULATED for source, channel in levers]
        needless = any(by and abs(value) < NEEDLESS for by, value in zip(taken, change / scale, strict=True))
        if not reacting or not any(taken) or not (needless or not answer.feasible):
            return answer
        return self._left_alone(answer)

    def _left_alone(self, answer: Restoration) -> Restoration:
        """The plan that leaves controllers what they move, if it does as well and goes no further beyond the data."""
        others: dict[str, list[str]] = {}
        for source, channel in self.levers(answer.about.plant):
            if source.inputs[channel].role != MANIPULATED:
                others.setdefault(source.name, []).append(source.input_names[channel])
        if not others:
            return answer
        about = answer.about
        found = replace(self, using=others).put(about.plant, about.server, about.part)
        gaps = [float(np.linalg.norm(each.reached - each.target)) for each in (found, answer)]
        further = EXTRAPOLATION in {each.code for each in found.caveats} - {each.code for each in answer.caveats}
        better = not further and (found.feasible or (not answer.feasible and gaps[0] < gaps[1]))
        return replace(found, about=replace(found.about, request=self)) if better else answer

    def goals(self, plant: Described, outputs: Sequence[Channel]) -> str:
        """ "speed by +5 rpm and power by -1 MW" """
        units = {channel.name: channel.unit for channel in outputs}
        return wording.listed(
            [f"{name} by {signed(float(value), units.get(name, ''))}" for name, value in self.target.items()]
        )

    def asked(self, plant: Described, calendar: Calendar | None) -> str:
        goals, after = self.goals(plant, getattr(plant.unit(self.unit), "outputs", ())), Steps(1, plant.dt)
        return QUESTION.format(unit=self.unit, goals=goals, after=after.at(self.horizon - 1))


def _grouped(levers: Sequence[Lever], change: FloatArray) -> dict[str, dict[str, float]]:
    """{unit: {input: change}}."""
    out: dict[str, dict[str, float]] = {}
    for (source, channel), value in zip(levers, change, strict=True):
        out.setdefault(source.name, {})[source.input_names[channel]] = float(value)
    return out


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Restoration(Answer):
    """The smallest held change of some units' inputs that brings outputs to a target.

    ``change`` maps cause -> {input channel: change}; ``reached`` (channels) is where the asked channels end, ``target``
    where they should. Not ``feasible``: the nearest that the limits allow.
    """

    kind = "restoration"

    feasible: bool
    change: Mapping[str, Mapping[str, float]]
    target: FloatArray
    reached: FloatArray

    @property
    def channels(self) -> tuple[str, ...]:
        """The outputs that are to move."""
        return tuple(self.about.request.target)

    @property
    def horizon(self) -> int:
        """Steps until the target should be reached."""
        return int(self.about.request.horizon)

    @property
    def sizes(self) -> FloatArray:
        """As they were asked for."""
        return np.zeros(len(self.channels))

    def held(self) -> list[tuple[str, Channel, float]]:
        """Unit, input and change of everything that is moved."""
        return [
            (cause, self.about.input(cause, name), value)
            for cause, channels in self.change.items()
            for name, value in channels.items()
        ]

    def ends(self) -> list[tuple[Channel, float, float]]:
        """Output, its target and where it ends."""
        found = [self.about.outputs[self.about.output(name)] for name in self.channels]
        return list(zip(found, map(float, self.target), map(float, self.reached), strict=True))

    def way(self, level: float = 0.95) -> Effect:
        """The way there: what holding the change does, with its band."""
        about = self.about
        request = AskEffect(
            list(self.change), self.unit, self._plain_change(), self.horizon, level=level,
            controllers=about.request.controllers, laws=about.request.laws,
        )  # fmt: skip
        return request.put(about.plant, about.server, about.part)  # type: ignore[no-any-return]

    @cached_property
    def rows(self) -> Effect:
        """The way there."""
        return self.way()

    def expected(self) -> str:
        """ "power +0.5 MW (95 %: +0.4 to +0.6)": what to expect at the horizon, with intervals."""
        way, told = self.rows, []
        for output, k in ((each, self.about.output(each.name)) for each, _, _ in self.ends()):
            lower, upper = (None if end is None else float(end[-1, k]) for end in way.bounds)
            size = interval(float(way.mean[-1, k]), lower, upper, output.unit, way.level, sign=True)
            told.append(f"{output.name} {size}")
        return wording.listed(told)

    def _plain_change(self) -> dict[str, dict[str, float]]:
        return {cause: dict(channels) for cause, channels in self.change.items()}

    @property
    def _after(self) -> str:
        return Steps(self.horizon, self.about.dt).at(self.horizon - 1)

    def sentence(self, channel: str | None = None) -> str:
        request = self.about.request
        return (HOLD if self.feasible else BEYOND).format(
            unit=self.unit, goals=request.goals(self.about.plant, self.about.outputs), after=self._after,
            world=world_words(self.caveats, request.laws),
            held=wording.listed([f"{cause} {c.name} {sized(value, c.unit)}" for cause, c, value in self.held()]),
            nearest=wording.listed([f"{output.name} {sized(end, output.unit)}" for output, _, end in self.ends()]),
            limits=" within their limits" * any(channel.limits is not None for _, channel, _ in self.held()),
        )  # fmt: skip

    def tables(self, channels: Sequence[str] = ()) -> list[Table]:
        held = [[cause, channel.name, sized(value, channel.unit)] for cause, channel, value in self.held()]
        ends = [[output.name, sized(aim, output.unit), sized(end, output.unit)] for output, aim, end in self.ends()]
        return [
            Table("hold these changes", ["unit", "input", "change"], held, 2),
            Table(f"{self.unit} {self._after}", ["channel", "target", "reached"], ends),
        ]

    def labels(self) -> dict[str, Any]:
        return {"unit": self.unit, "horizon": self.horizon, "feasible": self.feasible}

    def arrays(self) -> dict[str, Any]:
        return {"change": self._plain_change(), "target": self.target, "reached": self.reached}

    def to_json(self) -> dict[str, Any]:
        return {**self.labels(), "channels": list(self.channels), **self.arrays()}

    def view(self, drawn: Sequence[str], around: Surroundings) -> dict[str, Any]:
        """Of the channels that are to move, whatever is asked for."""
        return {
            **self.labels(),
            "change": self.to_frame().to_dicts(),
            "channels": [{**named(output), "target": aim, "reached": end} for output, aim, end in self.ends()],
            "drawn": [self.rows.course_json(self.about.output(name), around) for name in self.channels],
        }

    def to_frame(self) -> polars.DataFrame:
        """One row for each input that is moved: unit, input, measured_in, change."""
        import polars

        rows = [(cause, channel.name, channel.unit, value) for cause, channel, value in self.held()]
        return polars.DataFrame(rows, schema=["unit", "input", "measured_in", "change"], orient="row")

    def plot(self, channels: Sequence[str] = ()) -> Figure:
        """A matplotlib Figure of the way there; see ``way``."""
        return self.rows.plot(channels or self.channels)
