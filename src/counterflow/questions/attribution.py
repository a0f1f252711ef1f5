"""Who moved a unit's outputs in recorded rows? An exact split of their departure from the usual level."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow import wording
from counterflow.arrays import FloatArray, frozen
from counterflow.caveats import EVERYBODY, Caveat
from counterflow.errors import UnknownNameError, UnstableError
from counterflow.notebook import Table
from counterflow.plant.calendar import Calendar
from counterflow.protocol import Answer, Ask, Change
from counterflow.questions.arguments import check_window, check_world
from counterflow.questions.parts import BASELINE, part_of
from counterflow.questions.question import CONTROLLERS, LAWS, START, STOP, Entry, Form, Laws, Request
from counterflow.questions.replicates import world_words
from counterflow.questions.reply import SHOWN, About, Described, Responder, Surroundings, asked_rows
from counterflow.questions.server_model import ServerModel
from counterflow.questions.views import (
    View,
    attributes,
    channel_label,
    channels_json,
    finite,
    long_frame,
    mean_over_rows,
    named,
    series,
)
from counterflow.questions.window import RowsWindowed
from counterflow.recurrence import linear_recurrence

if TYPE_CHECKING:
    import polars
    from matplotlib.figure import Figure

    from counterflow.exchange.part import UnitPart

INITIAL, REST = "initial state", "rest"
NOTHING = 1e-9  # of the largest number beside it: what counts as nothing
WITHOUT = "without controllers/"  # before a unit's name, which holds no slash: its share with controllers held


@dataclass(frozen=True)
class ShareView:
    name: str
    label: str
    value: float | None


@dataclass(frozen=True)
class DepartureView:
    channel: str
    measured_in: str
    departure: float | None
    shares: list[ShareView]


@dataclass(frozen=True)
class ShareLineView:
    name: str
    label: str
    values: list[float | None]


@dataclass(frozen=True)
class SharesView:
    channel: str
    measured_in: str
    baseline: list[float | None]
    departure: list[float | None]
    shares: list[ShareLineView]


@dataclass(frozen=True)
class AttributionView(View):
    unit: str
    start: int
    stop: int
    ranked: list[DepartureView]
    drawn: SharesView


@dataclass(frozen=True)
class AskAttribution(Request):
    """Who moved ``unit`` in rows start to stop - 1? As ``Fit.attribute``."""

    kind = "attribution"
    tab = "explain"
    command = "explain"
    title = "Who moved a unit's outputs in some rows?"
    example = "counterflow explain fit --recording recording.safetensors --unit turbine --start 900 --stop 950"
    form = (Entry("unit", Form.UNIT, ..., "Unit whose outputs moved."), START, STOP, CONTROLLERS, LAWS)
    of_past = True
    of_worlds = True
    of_shares = True
    drawn = "channel"
    speaks_of_drawn = True
    windowed = True
    schema = AttributionView

    unit: str
    start: int = 0
    stop: int | None = None
    headline: str | None = None
    question: str = ""
    controllers: str | None = field(default=None, kw_only=True)
    laws: Laws | None = field(default=None, kw_only=True)

    @classmethod
    def of(cls, given: Mapping[str, Any], unit: str) -> AskAttribution:
        laws = given.get("laws") or None
        return cls(unit, given["start"], given["stop"], controllers=given.get("controllers"), laws=laws)

    def messages(self, server: Responder, part: UnitPart) -> tuple[list[Change], Ask]:
        stop = server.rows if self.stop is None else self.stop
        check_window("attribute", server.rows, self.start, stop)
        world = check_world("attribute", self.controllers)
        return [], Ask(self.unit, self.kind, self.start, stop - self.start, world)

    @classmethod
    def respond(cls, server: ServerModel, changes: Sequence[Change], ask: Ask) -> tuple[Answer, ...]:
        """Shares of every unit's inputs (their departure from their mean), of the state at the start, the baseline.

        Where controllers react, a unit's share is that of its inputs which no controller moves, and what controllers
        made of it is in it; beside it stands the share that it would have had with controllers held.
        """
        rows, own = server.window(ask), server.own(ask.unit)
        if not server.settles_down:
            raise UnstableError("attribute: a system that does not settle has no level to compare with")
        level = server.usual
        departure = server.u[rows] - server.u.mean(axis=0)
        departure = np.vstack([np.zeros(departure.shape[1]), departure[:-1]])
        start = server.grounded.states[0][ask.first] - level
        decay = np.vstack([start, linear_recurrence(server.A, np.zeros((ask.steps - 1, len(level))), start)])
        shares = {BASELINE: np.tile(level, (ask.steps, 1)), INITIAL: decay}
        reacting, moved = server.reacts(ask), set(server.running_plant.moved())
        # what controllers held would have left is not in the rows where one of them alone moved its input
        locked = server.couplings is not None and any(each.locked for each in server.running_plant.reactors.values())
        for name, inputs in server.input_slices.items():
            free = [k for k in range(inputs.start, inputs.stop) if not reacting or k not in moved]
            back = np.zeros_like(departure)  # what was, less what would have been with these inputs at their mean
            back[:, free] = -departure[:, free]
            shares[name] = -server.mean_response(back, ask.first, reacting)
            if reacting and not locked:
                shares[f"{WITHOUT}{name}"] = -server.mean_response(back, ask.first, False)
        return tuple(part_of(ask, values[:, own], share=name) for name, values in shares.items())

    @classmethod
    def caveats(cls, server: ServerModel, parts: Sequence[Answer]) -> list[Caveat]:
        text = (
            "the slowest mode outlasts the record, so that the usual level, and with it the share of the first state, "
            "are extrapolated far: compare movements, not levels"
        )
        return [Caveat("slow-mode", EVERYBODY, text)] if server.radius > 1 - 1 / server.rows else []

    def answer(self, about: About, part: UnitPart, parts: Sequence[Answer], y: FloatArray | None) -> Attribution:
        assert y is not None
        mapped = {piece.share: part.seen_in(piece.mean) for piece in parts}
        baseline = part.at_level(mapped.pop(BASELINE))
        departure = y[self.start : self.start + len(baseline)] - baseline
        initial = mapped.pop(INITIAL)
        alone = {share: mapped.pop(share) for share in list(mapped) if share.startswith(WITHOUT)}
        shares = {**mapped, INITIAL: initial}
        answered = {name: alone[f"{WITHOUT}{name}"] - mapped[name] for name in mapped if f"{WITHOUT}{name}" in alone}
        shares[REST] = departure - sum(shares.values())
        return Attribution(
            self.unit, part.unit.output_names, self.start, frozen(baseline), frozen(departure),
            MappingProxyType({name: frozen(values) for name, values in shares.items()}), about.caveats, about,
            MappingProxyType({name: frozen(values) for name, values in answered.items()}),
        )  # fmt: skip

    def words(self, plant: Described, calendar: Calendar | None = None) -> str:
        return self.question or f"Who moved {self.unit} {asked_rows(self.start, self.stop, calendar)}?"


LABELS = {INITIAL: "the state before", REST: "noise and what the model does not explain"}


def share_label(unit: str, share: str) -> str:
    """Who a share of an attribution to ``unit`` belongs to."""
    return LABELS.get(share, f"the {unit}'s own inputs" if share == unit else f"the inputs of {share}")


@dataclass(frozen=True, eq=False, repr=False)
class Attribution(RowsWindowed):
    """Who moved a unit's outputs in a window: an exact split of their departure from the usual level.

    ``departure`` (rows, D_m) = measured - ``baseline``; ``shares`` maps every unit's name (its inputs), "initial state"
    and "rest" (noise, and what the model does not explain) to arrays (rows, D_m) that add up to it. Where controllers
    react, ``compensated`` maps a unit's name to what controllers took off the share of its inputs (rows, D_m).
    """

    kind = "attribution"

    unit: str
    channels: tuple[str, ...]
    first: int
    baseline: FloatArray
    departure: FloatArray
    shares: Mapping[str, FloatArray]
    caveats: tuple[Caveat, ...] = ()
    about: About = field(default=None, repr=False)  # type: ignore[assignment]
    compensated: Mapping[str, FloatArray] = field(default_factory=lambda: MappingProxyType({}), repr=False)

    @cached_property
    def total(self) -> FloatArray:
        """Mean departure (D_m,) over the window; NaN where nothing was measured."""
        return mean_over_rows(self.departure)

    @cached_property
    def means(self) -> Mapping[str, FloatArray]:
        """Mean (D_m,) of every share over the window."""
        return {name: mean_over_rows(share) for name, share in self.shares.items()}

    def order(self) -> list[int]:
        """Channels, most departed (against their noise) first."""
        return [int(k) for k in np.argsort(-np.nan_to_num(np.abs(self.total) / self.about.noise))]

    def ranked(self, channel: str) -> list[tuple[str, float]]:
        """Shares by size, each as the mean over the window of its part in one channel; zero where nothing is known."""
        if channel not in self.channels:
            raise UnknownNameError(f"unit {self.unit!r} has no output {channel!r}; they are {', '.join(self.channels)}")
        k = self.channels.index(channel)
        found = [(name, float(np.nan_to_num(values[k]))) for name, values in self.means.items()]
        return sorted(found, key=lambda item: -abs(item[1]))

    def sentence(self, channel: str | None = None) -> str:
        k = self.chosen(channel)
        output, whole = self.about.outputs[k], float(self.total[k])
        rows = self.about.during(self.first, self.first + len(self.departure))
        if not np.isfinite(whole):
            return f"{self.unit} {output.name} was not measured {rows}."
        digits = wording.decimals(whole)
        parts = [
            f"{share_label(self.unit, name)} {wording.number(value, digits, sign=True)}"
            for name, value in self.ranked(output.name)
        ]
        size = wording.quantity(wording.number(abs(whole), digits), output.unit)
        side = "above" if whole >= 0 else "below"
        world = world_words(self.caveats, self.about.request.laws)
        told = f"{self.unit} {output.name} was {size} {side} its usual level {rows}{world}: {', '.join(parts)}."
        taken = self.taken(output.name)
        if not taken:
            return told
        listed = ", ".join(
            f"{wording.number(value, digits, sign=True)} of {share_label(self.unit, name)}" for name, value in taken
        )
        return f"{told} In that, controllers have taken off {listed}."

    def taken(self, channel: str) -> list[tuple[str, float]]:
        """What controllers took off the share of each unit's inputs in one channel, as means over the window."""
        k = self.about.output(channel)
        found = [(name, float(np.nan_to_num(mean_over_rows(rows)[k]))) for name, rows in self.compensated.items()]
        least = NOTHING * max([abs(float(np.nan_to_num(self.total[k]))), *(abs(value) for _, value in found)])
        return sorted((each for each in found if abs(each[1]) > least), key=lambda each: -abs(each[1]))

    def tables(self, channels: Sequence[str] = ()) -> list[Table]:
        rows = []
        order = [self.about.output(name) for name in channels] or self.order()[:SHOWN]
        for k in order:
            output, digits = self.about.outputs[k], wording.decimals(float(self.total[k]))
            label = f"{output.name} [{output.unit}]" if output.unit else output.name
            values = (self.total[k], *(share[k] for share in self.means.values()))
            rows.append([label, *(wording.number(float(value), digits, sign=True) for value in values)])
        columns = ["channel", "departure", *(name if name in LABELS else f"{name} inputs" for name in self.means)]
        last = self.first + len(self.departure) - 1
        return [Table(f"{self.unit}: means over rows {self.first} to {last}, against the usual level", columns, rows)]

    def _window(self) -> dict[str, Any]:
        return {"unit": self.unit, "start": self.first, "stop": self.first + len(self.departure)}

    def to_json(self) -> dict[str, Any]:
        return {
            **self._window(),
            "channels": channels_json(self.about.outputs),
            "most_departed": self.ranked_channels(),
            "mean_departure": self.total,
            "mean_shares": self.means,
            **attributes(self, "baseline", "departure"),
            "shares": dict(self.shares),
        }

    def view(self, drawn: Sequence[str], around: Surroundings) -> dict[str, Any]:
        outputs, chosen = self.about.outputs, self.about.output(drawn[0])
        label = {name: share_label(self.unit, name) for name in self.shares}
        return {
            **self._window(),
            "ranked": [
                {
                    **named(outputs[k]),
                    "departure": finite(self.total[k]),
                    "shares": [
                        {"name": name, "label": label[name], "value": finite(self.means[name][k])}
                        for name, _ in self.ranked(outputs[k].name)
                    ],
                }
                for k in self.order()
            ],
            "drawn": {
                **named(outputs[chosen]),
                "baseline": series(np.broadcast_to(self.baseline, self.departure.shape)[:, chosen]),
                "departure": series(self.departure[:, chosen]),
                "shares": [
                    {"name": name, "label": label[name], "values": series(share[:, chosen])}
                    for name, share in self.shares.items()
                ],
            },
        }

    def to_frame(self) -> polars.DataFrame:
        """One row a time and channel: row, channel, baseline, departure, and ``share/boiler`` and so on."""
        columns = {"baseline": np.broadcast_to(self.baseline, self.departure.shape), "departure": self.departure}
        shares = {f"share/{name}": share for name, share in self.shares.items()}
        return long_frame("row", self.first, self.channels, columns | shares, self.about.calendar)

    @property
    def course(self) -> FloatArray:
        return self.departure

    def compared_with(self, start: int, stop: int) -> FloatArray:
        return mean_over_rows(np.broadcast_to(self.baseline, self.departure.shape)[start:stop])

    def verb(self, value: float) -> str:
        return f"was {{}} {'below' if value < 0 else 'above'} its usual level"

    def plot(self) -> Figure:
        """A matplotlib Figure: shares of the channel that departs most, against the whole departure."""
        from counterflow.questions.plots import COLOURS, Line, Rows, panels

        k = int(np.argmax(np.nan_to_num(mean_over_rows(np.abs(self.departure)))))
        lines = [
            Line(name, self.shares[name][:, k], look={"color": COLOURS[place % len(COLOURS)], "linewidth": 1.2})
            for place, (name, _) in enumerate(self.ranked(self.channels[k]))
        ]
        lines.append(Line("departure", self.departure[:, k], look={"color": "black", "linestyle": ":"}))
        rows = Rows.recorded(self.first, len(self.departure), self.about.calendar)
        return panels(rows, [(channel_label(self.about.outputs[k]), lines)], f"who moved {self.unit}", zero=True)
