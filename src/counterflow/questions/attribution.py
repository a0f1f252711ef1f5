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
from counterflow.protocol import Answer as Message
from counterflow.protocol import Ask, Change
from counterflow.questions.answer import About, Answer, Described, Surroundings
from counterflow.questions.answering import BASELINE, Server, part_of, with_caveats
from counterflow.questions.numbers import finite, mean_over_rows, named
from counterflow.questions.phrases import SHOWN, world_words
from counterflow.questions.question import CONTROLLERS, LAWS, START, STOP, AskWorlds, Entry, Form
from counterflow.questions.timeline import Rows, asked_rows
from counterflow.recurrence import linear_recurrence

if TYPE_CHECKING:
    from counterflow.questions.plots import Line

INITIAL, REST = "initial state", "rest"
NOTHING = 1e-9  # of the largest number beside it: what counts as nothing
WITHOUT = "without controllers/"  # before a unit's name, which holds no slash: its share with controllers held
LABELS = {INITIAL: "the state before", REST: "noise and what the model does not explain"}
QUESTION = "Who moved {unit} {when}?"
ANSWER = "{unit} {channel} was {size} {side} its usual level {when}{world}: {shares}.{taken}"
TAKEN = " In that, controllers have taken off {}."
UNMEASURED = "{unit} {channel} was not measured {when}."
SLOW = (
    "the slowest mode outlasts the record, so that the usual level, and with it the share of the first state, are "
    "extrapolated far: compare movements, not levels"
)
TABLE = "{unit}: means over rows {first} to {last}, against the usual level"


@dataclass(frozen=True)
class AskAttribution(AskWorlds):
    """Who moved ``unit`` in rows start to stop - 1? As ``Fit.attribute``."""

    kind = "attribution"
    tab = "explain"
    command = "explain"
    title = "Who moved a unit's outputs in some rows?"
    example = "counterflow explain fit --recording recording.safetensors --unit turbine --start 900 --stop 950"
    form = (Entry("unit", Form.UNIT, ..., "Unit whose outputs moved."), START, STOP, CONTROLLERS, LAWS)
    of_past = True
    of_shares = True
    drawn = "channel"
    speaks_of_drawn = True
    windowed = True

    unit: str
    start: Any = 0  # a row, a date, or a time
    stop: Any = None

    @classmethod
    def respond(cls, server: Server, changes: Sequence[Change], ask: Ask) -> tuple[Message, ...]:
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
        parts = [part_of(ask, values[:, own], share=name) for name, values in shares.items()]
        slow = server.radius > 1 - 1 / server.rows
        return with_caveats(parts, [Caveat("slow-mode", EVERYBODY, SLOW)] if slow else [])

    def answer(self, about: About, y: FloatArray | None) -> Attribution:
        assert y is not None
        mapped = {piece.share: about.part.seen_in(piece.mean) for piece in about.parts}
        baseline = about.part.at_level(mapped.pop(BASELINE))
        departure = y[self.start : self.start + len(baseline)] - baseline
        initial = mapped.pop(INITIAL)
        alone = {share: mapped.pop(share) for share in list(mapped) if share.startswith(WITHOUT)}
        shares = {**mapped, INITIAL: initial}
        answered = {name: alone[f"{WITHOUT}{name}"] - mapped[name] for name in mapped if f"{WITHOUT}{name}" in alone}
        shares[REST] = departure - sum(shares.values())
        return Attribution(
            about=about, baseline=frozen(baseline), departure=frozen(departure),
            shares=MappingProxyType({name: frozen(values) for name, values in shares.items()}),
            compensated=MappingProxyType({name: frozen(values) for name, values in answered.items()}),
        )  # fmt: skip

    def asked(self, plant: Described, calendar: Calendar | None) -> str:
        return QUESTION.format(unit=self.unit, when=asked_rows(self.start, self.stop, calendar))


def share_label(unit: str, share: str) -> str:
    """Who a share of an attribution to ``unit`` belongs to."""
    return LABELS.get(share, f"the {unit}'s own inputs" if share == unit else f"the inputs of {share}")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Attribution(Answer):
    """Who moved a unit's outputs in a window: an exact split of their departure from the usual level.

    ``departure`` (rows, D_m) = measured - ``baseline``; ``shares`` maps every unit's name (its inputs), "initial state"
    and "rest" (noise, and what the model does not explain) to arrays (rows, D_m) that add up to it. Where controllers
    react, ``compensated`` maps a unit's name to what controllers took off the share of its inputs (rows, D_m).
    """

    kind = "attribution"
    verbs = "was {} below its usual level", "was {} above its usual level"
    drawn = 1
    zero = True

    baseline: FloatArray
    departure: FloatArray
    shares: Mapping[str, FloatArray]
    compensated: Mapping[str, FloatArray] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def first(self) -> int:
        """The first of its rows."""
        return int(self.about.request.start)

    @property
    def timeline(self) -> Rows:
        return Rows(len(self.departure), self.about.dt, self.about.calendar, self.first)

    @property
    def course(self) -> FloatArray:
        return self.departure

    @property
    def levels(self) -> FloatArray:
        """The baseline (rows, D_m)."""
        return np.broadcast_to(self.baseline, self.departure.shape)

    def compared_with(self, start: int, stop: int) -> FloatArray:
        return mean_over_rows(self.levels[start:stop])

    @cached_property
    def total(self) -> FloatArray:
        """Mean departure (D_m,) over the window; NaN where nothing was measured."""
        return mean_over_rows(self.departure)

    @cached_property
    def means(self) -> Mapping[str, FloatArray]:
        """Mean (D_m,) of every share over the window."""
        return {name: mean_over_rows(share) for name, share in self.shares.items()}

    @property
    def sizes(self) -> FloatArray:
        return np.asarray(np.abs(self.total) / self.about.noise)

    def ranked(self, channel: str) -> list[tuple[str, float]]:
        """Shares by size, each as the mean over the window of its part in one channel; zero where nothing is known."""
        if channel not in self.channels:
            raise UnknownNameError(f"unit {self.unit!r} has no output {channel!r}; they are {', '.join(self.channels)}")
        return _by_size(self.means, self.channels.index(channel))

    def taken(self, channel: str) -> list[tuple[str, float]]:
        """What controllers took off the share of each unit's inputs in one channel, as means over the window."""
        k = self.about.output(channel)
        found = _by_size({name: mean_over_rows(rows) for name, rows in self.compensated.items()}, k)
        least = NOTHING * max([abs(float(np.nan_to_num(self.total[k]))), *(abs(value) for _, value in found)])
        return [each for each in found if abs(each[1]) > least]

    def sentence(self, channel: str | None = None) -> str:
        k = self.chosen(channel)
        output, whole = self.about.outputs[k], float(self.total[k])
        told = {"unit": self.unit, "channel": output.name, "when": self.timeline.during(0, len(self.departure))}
        if not np.isfinite(whole):
            return UNMEASURED.format(**told)
        digits, taken = wording.decimals(whole), self.taken(output.name)

        def listed(shares: Sequence[tuple[str, float]], text: str) -> str:
            named = [(share_label(self.unit, name), wording.number(value, digits, sign=True)) for name, value in shares]
            return ", ".join(text.format(name=name, value=value) for name, value in named)

        return ANSWER.format(
            **told, size=wording.quantity(wording.number(abs(whole), digits), output.unit),
            side="above" if whole >= 0 else "below", world=world_words(self.caveats, self.about.request.laws),
            shares=listed(self.ranked(output.name), "{name} {value}"),
            taken=TAKEN.format(listed(taken, "{value} of {name}")) if taken else "",
        )  # fmt: skip

    def tables(self, channels: Sequence[str] = ()) -> list[Table]:
        order = [self.about.output(name) for name in channels] or self.order()[:SHOWN]
        whole = [self.total, *self.means.values()]
        rows = [self.channel_cells(k, [m[k] for m in whole], wording.decimals(self.total[k])) for k in order]
        columns = ["channel", "departure", *(name if name in LABELS else f"{name} inputs" for name in self.means)]
        last = self.first + len(self.departure) - 1
        return [Table(TABLE.format(unit=self.unit, first=self.first, last=last), columns, rows)]

    def labels(self) -> dict[str, Any]:
        return {"unit": self.unit, "start": self.first, "stop": self.first + len(self.departure)}

    def arrays(self) -> dict[str, Any]:
        return {
            "most_departed": self.ranked_channels(), "mean_departure": self.total, "mean_shares": self.means,
            "baseline": self.baseline, "departure": self.departure, "shares": dict(self.shares),
        }  # fmt: skip

    def columns(self) -> Mapping[str, FloatArray | None]:
        shares = {f"share/{name}": share for name, share in self.shares.items()}
        return {"baseline": self.levels, "departure": self.departure, **shares}

    def page(self, around: Surroundings) -> dict[str, Any]:
        ranked = [
            {
                **named(self.about.outputs[k]), "departure": finite(self.total[k]),
                "shares": [
                    {"name": name, "label": share_label(self.unit, name), "value": finite(self.means[name][k])}
                    for name, _ in self.ranked(self.channels[k])
                ],
            }
            for k in self.order()
        ]  # fmt: skip
        return {**self.labels(), "ranked": ranked}

    def page_courses(self, around: Surroundings) -> dict[str, Any]:
        shares = [
            {"name": name, "label": share_label(self.unit, name), "values": values}
            for name, values in self.shares.items()
        ]
        return {"baseline": self.levels, "departure": self.departure, "shares": shares}

    def view(self, drawn: Sequence[str], around: Surroundings) -> dict[str, Any]:
        """Of one channel."""
        return {**self.page(around), "drawn": self.course_json(self.about.output(drawn[0]), around)}

    def title(self) -> str:
        return f"who moved {self.unit}"

    def lines(self, k: int, colour: str, before: str = "") -> list[Line]:
        from counterflow.questions.plots import COLOURS, Line

        shares, names = [], list(self.shares)
        for place, (name, _) in enumerate(self.ranked(self.channels[k])):
            look = {"color": COLOURS[place % len(COLOURS)], "linewidth": 1.2}
            role = "rest" if name in LABELS else "part"
            shares.append(Line(name, self.shares[name][:, k], look=look, role=role, number=names.index(name)))
        whole = {"color": "black", "linestyle": ":"}
        return [*shares, Line("departure", self.departure[:, k], look=whole, role="whole")]

    def parts(self, k: int) -> list[tuple[str, str, float]]:
        return [(name, share_label(self.unit, name), value) for name, value in self.ranked(self.channels[k])]


def _by_size(means: Mapping[str, FloatArray], k: int) -> list[tuple[str, float]]:
    found = [(name, float(np.nan_to_num(values[k]))) for name, values in means.items()]
    return sorted(found, key=lambda item: -abs(item[1]))
