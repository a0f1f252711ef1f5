"""Which ways does an effect take: directly, and through each third unit?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow import wording
from counterflow.arrays import FloatArray, frozen
from counterflow.errors import OptionError
from counterflow.notebook import Table
from counterflow.plant.calendar import Calendar
from counterflow.protocol import Answer as Message
from counterflow.protocol import Ask, Change
from counterflow.questions.answer import About, Described, Surroundings
from counterflow.questions.answering import Server, part_of, with_caveats
from counterflow.questions.effect import CHANGES, DURATION, EFFECT, AfterChange
from counterflow.questions.phrases import SHOWN, left_out, sized, world_words
from counterflow.questions.question import AskChange, horizon

if TYPE_CHECKING:
    from counterflow.exchange.part import UnitPart
    from counterflow.questions.plots import Line

DIRECT = "direct"
QUESTION = "If {change}: which ways does its effect on {unit} take?"
ANSWER = "{after}{world}, {cause} moves {unit} {channel} by {size}: {ways}."


@dataclass(frozen=True)
class AskPaths(AskChange):
    """Which ways does the effect of a change at ``cause`` on ``effect`` take? As ``Fit.paths``."""

    kind = "paths"
    tab = "paths"
    command = "paths"
    title = "Which ways does an effect take, directly and through other units?"
    example = "counterflow paths fit --cause boiler --effect grid --change valve=+0.1 --horizon 20"
    form = (EFFECT, CHANGES, horizon(), DURATION)
    held_only = True
    speaks_of_drawn = True

    def changes(self, plant: Described, part: UnitPart, rows: slice) -> list[Change]:
        name = part.unit.name
        if len(self.causes) != 1:
            raise OptionError(f"paths: one unit's inputs are changed at a time, got those of {', '.join(self.causes)}")
        if self.causes == [name]:
            raise OptionError(f"paths: cause and effect are both {name!r}; ask for the effect of another unit")
        return super().changes(plant, part, rows)

    @classmethod
    def respond(cls, server: Server, changes: Sequence[Change], ask: Ask) -> tuple[Message, ...]:
        """The whole effect, what reaches the unit with every third unit held still, and what each third unit adds.

        A unit held still is one whose states do not move; what passes through it is the whole less what is left then.
        """
        causes, own = {change.cause for change in changes}, server.own(ask.unit)
        schedule, late = server.from_now_on(changes, ask.steps)
        third = [name for name in server.names if name != ask.unit and name not in causes]

        def response(*still: str) -> FloatArray:
            return server.grounded.response(schedule, still=still).mean[late:, own]

        found = server.grounded.response(schedule)
        whole = found.mean[late:, own]
        parts = {"": whole, DIRECT: response(*third)} | {name: whole - response(name) for name in third}
        made = [part_of(ask, values, share=share) for share, values in parts.items()]
        return with_caveats(made, [*server.doubts_of(found, ask.unit), *server.leaving_limits(changes)])

    def answer(self, about: About, y: FloatArray | None) -> Paths:
        mapped = {piece.share: frozen(about.part.seen_in(piece.mean)) for piece in about.parts}
        total, direct = mapped.pop(""), mapped.pop(DIRECT)
        return Paths(about=about, total=total, direct=direct, through=MappingProxyType(mapped))

    def asked(self, plant: Described, calendar: Calendar | None) -> str:
        return QUESTION.format(change=self.change_words(plant), unit=self.effect)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Paths(AfterChange):
    """An effect split by the way it takes; all arrays are (horizon, D_m).

    ``direct``: with every third unit held still. ``through``: for each third unit, what is lost if it is held still.
    A way through two units counts at both, so the parts need not add up to ``total``.
    """

    kind = "paths"
    drawn = 1
    panel = "change of"

    total: FloatArray
    direct: FloatArray
    through: Mapping[str, FloatArray]

    @property
    def ways(self) -> dict[str, FloatArray]:
        """Every way by its name in words."""
        return {"directly": self.direct, **{f"through {name}": values for name, values in self.through.items()}}

    @property
    def course(self) -> FloatArray:
        return self.total

    def sentence(self, channel: str | None = None) -> str:
        k = self.chosen(channel)
        output, row = self.about.outputs[k], int(np.abs(self.total[:, k]).argmax())
        ways = sorted(self.ways.items(), key=lambda way: -abs(float(way[1][row, k])))
        return ANSWER.format(
            after=self.timeline.at(row).capitalize(), world=world_words(self.caveats), cause=self.cause,
            unit=self.effect, channel=output.name, size=sized(self.total[row, k], output.unit),
            ways=wording.listed([f"{name} {sized(values[row, k], output.unit)}" for name, values in ways]),
        )  # fmt: skip

    def tables(self, channels: Sequence[str] = ()) -> list[Table]:
        rows = []
        for peak in self.peaks[:SHOWN]:
            k = self.about.output(peak.channel.name)
            sizes = [wording.number(float(values[peak.row, k]), sign=True) for values in self.ways.values()]
            rows.append([peak.channel.name, sized(peak.value, peak.channel.unit), str(peak.row + 1), *sizes])
        columns = ["channel", "whole effect", "after", *self.ways]
        title = f"{self.effect}: the channels that move most, and the ways that it takes"
        return [Table(title, columns, rows, 1, left_out(len(self.channels)))]

    def labels(self) -> dict[str, Any]:
        request = self.about.request
        return {
            "cause": self.cause, "effect": self.effect, "change": self.held, "horizon": request.horizon,
            "duration": request.duration,
        }  # fmt: skip

    def arrays(self) -> dict[str, Any]:
        return {"total": self.total, "direct": self.direct, "through": dict(self.through)}

    def columns(self) -> Mapping[str, FloatArray | None]:
        through = {f"through {name}": values for name, values in self.through.items()}
        return {"total": self.total, "direct": self.direct, **through}

    def page_courses(self, around: Surroundings) -> dict[str, Any]:
        through = [{"unit": name, "values": values} for name, values in self.through.items()]
        return {**self.arrays(), "through": through}

    def view(self, drawn: Sequence[str], around: Surroundings) -> dict[str, Any]:
        """Of one channel."""
        course = self.course_json(self.about.output(drawn[0]), around)
        return {"cause": self.cause, "effect": self.effect, **course}

    def title(self) -> str:
        return f"ways from {self.cause} to {self.effect}"

    def lines(self, k: int, colour: str, before: str = "") -> list[Line]:
        from counterflow.questions.plots import COLOURS, Line

        whole = Line("whole effect", self.total[:, k], look={"color": "black", "linestyle": ":"}, role="whole")
        ways = [
            Line(way, rows[:, k], look={"color": COLOURS[n % len(COLOURS)]}, role="part", number=n)
            for n, (way, rows) in enumerate(self.ways.items())
        ]
        return [whole, *ways]
