"""Which ways does an effect take: directly, and through each third unit?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow import wording
from counterflow.arrays import FloatArray, frozen
from counterflow.caveats import Caveat
from counterflow.errors import OptionError
from counterflow.notebook import Table
from counterflow.protocol import Answer, Ask, Change
from counterflow.questions.effect import CHANGES, DURATION, EFFECT, addition, by_channel, changed_steps, clause
from counterflow.questions.parts import part_of, with_caveats
from counterflow.questions.peaks import Peak, Peaked, left_out, peaks
from counterflow.questions.phrases import sized
from counterflow.questions.question import Request, horizon
from counterflow.questions.refusals import doubts_of
from counterflow.questions.replicates import world_words
from counterflow.questions.reply import SHOWN, About, Described, Responder, Surroundings
from counterflow.questions.server_model import ServerModel
from counterflow.questions.views import View, attributes, channel_label, channels_json, long_frame, named, series
from counterflow.questions.window import Windowed

if TYPE_CHECKING:
    import polars
    from matplotlib.figure import Figure

    from counterflow.exchange.part import UnitPart

DIRECT = "direct"


@dataclass(frozen=True)
class WayView:
    unit: str
    values: list[float | None]


@dataclass(frozen=True)
class PathsView(View):
    cause: str
    effect: str
    channel: str
    measured_in: str
    total: list[float | None]
    direct: list[float | None]
    through: list[WayView]


@dataclass(frozen=True)
class AskPaths(Request):
    """Which ways does the effect of a change at ``cause`` on ``effect`` take? As ``Fit.paths``."""

    kind = "paths"
    tab = "paths"
    command = "paths"
    title = "Which ways does an effect take, directly and through other units?"
    example = "counterflow paths fit --cause boiler --effect grid --change valve=+0.1 --horizon 20"
    form = (EFFECT, CHANGES, horizon(), DURATION)
    of_states = True
    held_only = True
    speaks_of_drawn = True
    windowed = True
    schema = PathsView

    cause: str
    effect: str
    change: Any
    horizon: int = 50
    duration: int | None = None
    headline: str | None = None
    question: str = ""
    clause: str = field(default="", kw_only=True)

    @property
    def asker(self) -> str:
        return self.effect

    @classmethod
    def of(cls, given: Mapping[str, Any], unit: str) -> AskPaths:
        changes = given["changes"]
        if len(changes.values) != 1:
            raise OptionError(
                f"paths: one unit's inputs are changed at a time, got those of {', '.join(changes.values)}"
            )
        ((cause, change),) = changes.values.items()
        return cls(cause, unit, change, given["horizon"], given.get("duration"), clause=changes.words)

    def held(self, plant: Described) -> dict[str, Any]:
        """{unit: {input: number or series}}."""
        return {self.cause: by_channel(plant.unit(self.cause), self.change)}

    def messages(self, server: Responder, part: UnitPart) -> tuple[list[Change], Ask]:
        source, name = server.unit(self.cause), part.unit.name
        if self.cause == name:
            raise OptionError(f"paths: cause and effect are both {name!r}; ask for the effect of another unit")
        return [addition(self, name, source, self.change)], Ask(name, self.kind, 0, self.horizon)

    @classmethod
    def respond(cls, server: ServerModel, changes: Sequence[Change], ask: Ask) -> tuple[Answer, ...]:
        """The whole effect, what reaches the unit with every third unit held still, and what each third unit adds.

        A unit held still is one whose states do not move; what passes through it is the whole less what is left then.
        """
        causes, own = {change.cause for change in changes}, server.own(ask.unit)
        third = [name for name in server.names if name != ask.unit and name not in causes]

        def ways(schedule: FloatArray, ask: Ask) -> tuple[Answer, ...]:
            def response(still: Sequence[str]) -> FloatArray:
                return server.grounded.response(schedule, still=still).mean[:, own]

            found = server.grounded.response(schedule)
            whole = found.mean[:, own]
            parts = {"": whole, DIRECT: response(third)} | {name: whole - response([name]) for name in third}
            made = [part_of(ask, values, share=share) for share, values in parts.items()]
            return with_caveats(made, doubts_of(server, found, ask.unit))

        return server.from_now_on(changes, ask, ways)

    def answer(self, about: About, part: UnitPart, parts: Sequence[Answer], y: FloatArray | None) -> Paths:
        mapped = {piece.share: frozen(part.seen_in(piece.mean)) for piece in parts}
        total, direct = mapped.pop(""), mapped.pop(DIRECT)
        through = MappingProxyType(mapped)
        return Paths(self.cause, self.effect, part.unit.output_names, total, direct, through, about.caveats, about)

    def words(self, plant: Described) -> str:
        return self.question or f"If {clause(self, plant)}: which ways does its effect on {self.effect} take?"


@dataclass(frozen=True, eq=False, repr=False)
class Paths(Peaked, Windowed):
    """An effect split by the way it takes; all arrays are (horizon, D_m).

    ``direct``: with every third unit held still. ``through``: for each third unit, what is lost if it is held still.
    A way through two units counts at both, so the parts need not add up to ``total``.
    """

    kind = "paths"

    cause: str
    effect: str
    channels: tuple[str, ...]
    total: FloatArray
    direct: FloatArray
    through: Mapping[str, FloatArray]
    caveats: tuple[Caveat, ...] = ()
    about: About = field(default=None, repr=False)  # type: ignore[assignment]

    @property
    def ways(self) -> dict[str, FloatArray]:
        """Every way by its name in words."""
        return {"directly": self.direct, **{f"through {name}": values for name, values in self.through.items()}}

    @property
    def peaks(self) -> list[Peak]:
        return peaks(self.about, self.total, None, None)

    def sentence(self, channel: str | None = None) -> str:
        k = self.chosen(channel)
        output, row = self.about.outputs[k], int(np.abs(self.total[:, k]).argmax())
        ways = sorted(self.ways.items(), key=lambda way: -abs(float(way[1][row, k])))
        split = wording.listed([f"{name} {sized(values[row, k], output.unit)}" for name, values in ways])
        when = f"After {wording.span(row + 1, self.about.dt)}{world_words(self.caveats)}"
        size = sized(self.total[row, k], output.unit)
        return f"{when}, {self.cause} moves {self.effect} {output.name} by {size}: {split}."

    def tables(self, channels: Sequence[str] = ()) -> list[Table]:
        rows = []
        for peak in self.peaks[:SHOWN]:
            k = self.about.output(peak.channel.name)
            sizes = [wording.number(float(values[peak.row, k]), sign=True) for values in self.ways.values()]
            rows.append([peak.channel.name, sized(peak.value, peak.channel.unit), str(peak.row + 1), *sizes])
        columns = ["channel", "whole effect", "after", *self.ways]
        title = f"{self.effect}: the channels that move most, and the ways that it takes"
        return [Table(title, columns, rows, 1, left_out(len(self.channels)))]

    def to_json(self) -> dict[str, Any]:
        return {
            **attributes(self, "cause", "effect"),
            "change": self.about.request.held(self.about.plant),
            **attributes(self.about.request, "horizon", "duration"),
            "channels": channels_json(self.about.outputs),
            **attributes(self, "total", "direct"),
            "through": dict(self.through),
        }

    def view(self, drawn: Sequence[str], around: Surroundings) -> dict[str, Any]:
        k = self.about.output(drawn[0])
        return {
            **attributes(self, "cause", "effect"),
            **named(self.about.outputs[k]),
            "total": series(self.total[:, k]),
            "direct": series(self.direct[:, k]),
            "through": [{"unit": name, "values": series(values[:, k])} for name, values in self.through.items()],
        }

    def to_frame(self) -> polars.DataFrame:
        """One row a step and channel: step, channel, total, direct, and ``through pump`` and so on."""
        through = {f"through {name}": values for name, values in self.through.items()}
        return long_frame("step", 1, self.channels, {"total": self.total, "direct": self.direct, **through})

    @property
    def course(self) -> FloatArray:
        return self.total

    def plot(self) -> Figure:
        """A matplotlib Figure: the whole effect on the channel that moves most, and its ways."""
        from counterflow.questions.plots import COLOURS, Line, Rows, elapsed, panels

        k, (steps, dt) = self.chosen(None), (len(self.total), self.about.dt)
        size, _ = elapsed(steps, dt)
        lines = [Line("whole effect", self.total[:, k], look={"color": "black", "linestyle": ":"})]
        for place, (way, values) in enumerate(self.ways.items()):
            lines.append(Line(way, values[:, k], look={"color": COLOURS[place % len(COLOURS)]}))
        held = [(size * a, size * b) for a, b in changed_steps(self.about.request, self.about.plant, steps)]
        label = f"change of {channel_label(self.about.outputs[k])}"
        title = f"ways from {self.cause} to {self.effect}"
        return panels(Rows.after_change(steps, dt), [(label, lines)], title, held, zero=True)
