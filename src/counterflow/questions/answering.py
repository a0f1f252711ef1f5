"""The server's half of questions: what it knows after a fit, and what it says to a unit that asks.

Levels, alignments and doubts of the couplings are the server's affair: a unit asks in engineering units and row
numbers, so that it need not be told where another unit's inputs rest, or on which row they act.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat
from counterflow.errors import DataError, OptionError, UnidentifiedError
from counterflow.estimation.information import positions
from counterflow.estimation.layout import Layout
from counterflow.estimation.likelihood import SharedRecord
from counterflow.filtering import rts_smoother
from counterflow.methods.sufficient.server import share
from counterflow.plant import OperatingPoint, PublicUnit
from counterflow.plant.units import unit_named
from counterflow.protocol import Answer, Ask, Change, Message, Sufficient, decode, encode
from counterflow.protocol.messages import NO_LIMIT, NOTE_LIMIT
from counterflow.questions.propagation import Knowledge, answer
from counterflow.questions.sensitivity import Spread

if TYPE_CHECKING:
    from counterflow.methods.outcome import Couplings

Watch = Callable[[Message, bool], None]
WITH_INTERVALS = ("effect", "counterfactual", "forecast")

PUBLISHED_CAVEAT = (
    "the published method cannot recover B_mn when inputs are white and is biased otherwise (docs/theory/paper.md): "
    "treat this number as the method's output, not as the plant's answer"
)
SLOW = (
    "the slowest mode outlasts the record, so that the usual level, and with it the share of the first state, are "
    "extrapolated far: compare movements, not levels"
)
BAND_WITHOUT_COUPLINGS = (
    "standard errors were not computed for this fit: the band holds noise and the state, and not how far the couplings "
    "may be off"
)
NO_INTERVAL = "standard errors were not computed for this fit, so there is no interval"


@dataclass(frozen=True)
class Server:
    """The server's part of a fit, as far as questions need it; nothing private.

    ``answer`` is all that a question asks of it. What it says is for the asking unit alone: its own states, and what
    the answer must be read with.
    """

    method: str
    units: tuple[PublicUnit, ...]
    A: FloatArray
    B: FloatArray
    Q: FloatArray
    couplings: Couplings | None
    shared: SharedRecord | None  # the rows that questions about the past refer to
    caveats: tuple[Caveat, ...] = ()  # of the fit; they travel with every answer
    points: Mapping[str, OperatingPoint] = field(default_factory=dict)  # of the inputs of units fitted from logs

    link: str | None = None  # of a stored server: what its units' files refer to

    def point(self, name: str) -> OperatingPoint:
        """Where the unit's inputs rest, and which row they act on."""
        return self.points.get(name) or OperatingPoint.none(self.unit(name).n_inputs)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(unit.name for unit in self.units)

    def unit(self, name: str) -> PublicUnit:
        """The unit of that name."""
        return unit_named(self.units, name)

    def about(self, messages: list[Sufficient]) -> Server:
        """The same, with other rows to refer to: what the units send of another recording."""
        return replace(self, shared=share(messages))

    @cached_property
    def spread(self) -> Spread | None:
        """How far the couplings may be off."""
        if self.couplings is None or self.couplings.spread is None:
            return None
        rows, columns = positions(self.couplings.spread.parameters)
        root = self.couplings.spread.root
        return Spread(rows, columns, root[:, root.any(axis=0)])

    def ask(self, changes: Sequence[Change], ask: Ask, watch: Watch | None = None) -> tuple[Answer, ...]:
        """Carry one question here and its answer back; every message is encoded and decoded on the way."""

        def carried(message: Message, up: bool) -> Message:
            if watch is not None:
                watch(message, up)
            return decode(encode(message))

        arrived = [m for m in (carried(change, True) for change in changes) if isinstance(m, Change)]
        question = carried(ask, True)
        assert isinstance(question, Ask)
        back = [carried(part, False) for part in self.answer(arrived, question)]
        return tuple(part for part in back if isinstance(part, Answer))

    def answer(self, changes: Sequence[Change], ask: Ask) -> tuple[Answer, ...]:
        """Answer one question of unit ``ask.unit``, all of it in engineering units.

        Raises
        ------
        UnidentifiedError
            The data do not determine a coupling that the answer passes through.
        """
        for change in changes:
            self._refuse_doubtful(change, change.columns if ask.kind == "reach" else change.moved)
        if ask.kind in ("effect", "paths"):
            found = self._of_changes(changes, ask)
            beyond = self._leaving_limits(changes)
            if beyond:
                found = tuple(replace(part, note="\n".join(filter(None, [part.note, beyond]))) for part in found)
        elif ask.kind == "counterfactual":
            found = self._of_the_past(changes, ask)
        elif ask.kind == "forecast":
            if self.couplings is None and self.method != "oracle":
                raise OptionError(
                    f"forecast: method {self.method!r} keeps no joint filter; fit with method='sufficient'"
                )
            asked = [replace(change, values=self._departures(change)) for change in changes]
            found = answer(self._with_states, asked, ask)
        elif ask.kind == "attribute":
            found = answer(self._with_states, [], ask)
        else:
            found = self._reach(changes, ask)
        return tuple(replace(part, note=self._note(part)) for part in found)

    # ---- inside

    @cached_property
    def _without_states(self) -> Knowledge:
        return self._knowledge(states=False)

    @cached_property
    def _with_states(self) -> Knowledge:
        return self._knowledge(states=True)

    def _knowledge(self, states: bool) -> Knowledge:
        """What is brought to a question; the states of the recorded rows only if it needs them."""
        layout = Layout(self.names, tuple(u.states for u in self.units), tuple(u.n_inputs for u in self.units))
        P, U = self.B.shape
        u, smoothed = np.zeros((1, U)), np.zeros((1, P))
        last_mean, last_covariance = np.zeros(P), np.zeros((P, P))
        if self.shared is not None:
            u = self.shared.u
            if states:
                filtered = self.shared.filter(self.A, self.B, self.Q)
                smoothed = rts_smoother(filtered, self.A).smoothed
                last_mean, last_covariance = filtered.final_mean, filtered.final_covariance
        return Knowledge(
            self.names, layout.state_slices, layout.input_slices, self.A, self.B, self.Q, u, smoothed, last_mean,
            last_covariance, self.radius, self._seen, self.spread,
        )  # fmt: skip

    @cached_property
    def radius(self) -> float:
        """Spectral radius of A."""
        return float(np.abs(np.linalg.eigvals(self.A)).max())

    @cached_property
    def _seen(self) -> FloatArray:
        """Range of each input in the rows that are referred to."""
        return np.zeros(self.B.shape[1]) if self.shared is None else np.ptp(self.shared.u, axis=0)

    @property
    def rows(self) -> int:
        """How many rows questions about the past can refer to."""
        if self.shared is None:
            raise OptionError(
                f"method {self.method!r} keeps no record of inputs: give the recording that is asked about"
            )
        return int(self.shared.u.shape[0])

    def _departures(self, change: Change) -> FloatArray:
        """Inputs that replace others, as the model takes them."""
        return change.values - self.point(change.cause).input_level if change.absolute else change.values

    def _of_changes(self, changes: Sequence[Change], ask: Ask) -> tuple[Answer, ...]:
        """What changes from now on do, over the next ``steps`` rows.

        Inputs that act on their own row are one step ahead of the others in the model: it is asked for one step more,
        the others' changes begin in its second step, and its first, which is the row of the change itself, is left out.
        """
        ahead = {change.cause for change in changes if self.point(change.cause).same_row}
        steps = ask.steps
        if not ahead:
            trimmed = [replace(change, values=change.values[:steps]) for change in changes]
            return answer(self._without_states, trimmed, ask)
        shifted = [
            change if change.cause in ahead else replace(change, first=change.first + 1, values=change.values[:steps])
            for change in changes
        ]
        found = answer(self._without_states, shifted, replace(ask, steps=steps + 1))
        return tuple(_later_rows(part, 1) for part in found)

    def _of_the_past(self, changes: Sequence[Change], ask: Ask) -> tuple[Answer, ...]:
        aligned = []
        for change in changes:
            if not change.absolute:
                self._refuse_leaving_limits(change)
            values, first = self._departures(change), change.first
            if self.point(change.cause).same_row:  # the input of a row stands one row earlier in the model
                values, first = (values, first - 1) if first else (values[1:], 0)
            if len(values):
                aligned.append(replace(change, first=first, values=values))
        early = min([ask.first, *(change.first for change in aligned)])
        asked = replace(ask, first=early, steps=ask.first + ask.steps - early)
        found = answer(self._without_states, aligned, asked)
        return tuple(_later_rows(part, ask.first - early) for part in found)

    def _leaving_limits(self, changes: Sequence[Change]) -> str:
        """Says which inputs would leave their limits if they were changed from where they last were."""
        names = []
        for change in changes if self.shared is not None else ():
            source = self.unit(change.cause)
            for k in change.moved:
                down, up, _ = self._room(change.cause, k)
                if change.values[:, k].min() < down or change.values[:, k].max() > up:
                    low, high = source.inputs[k].limits or (-np.inf, np.inf)
                    names.append(f"{change.cause} {source.inputs[k].name} ({low:g} to {high:g})")
        if not names:
            return ""
        return f"from where they last were, these inputs would leave their limits: {', '.join(names)}"

    def _refuse_leaving_limits(self, change: Change) -> None:
        """What is added to recorded inputs must keep them within their limits; how they were stays the server's."""
        source, point = self.unit(change.cause), self.point(change.cause)
        own = self._without_states.input_slices[self._without_states.index(change.cause)]
        skipped = int(point.same_row and change.first == 0)  # the input of row 0 acted before anything was recorded
        values = change.values[skipped:]
        first = change.first + skipped - point.same_row
        recorded = self._without_states.u[first : first + len(values), own] + point.input_level
        values = values[: len(recorded)]
        for k in change.columns:
            limits = source.inputs[k].limits
            if limits is None:
                continue
            there = recorded[:, k] + values[:, k]
            if ((there < limits[0]) | (there > limits[1])).any():
                raise OptionError(
                    f"unit {change.cause!r}, input {source.inputs[k].name!r}: with this added it would leave its "
                    f"limits {limits[0]:g} to {limits[1]:g}; add less"
                )

    def _reach(self, changes: Sequence[Change], ask: Ask) -> tuple[Answer, ...]:
        """What held inputs do, and how far they can be moved from where they last were."""
        ahead = any(self.point(change.cause).same_row for change in changes)
        found = answer(self._without_states, changes, replace(ask, steps=ask.steps + ahead))
        out = []
        for change, part in zip(changes, found, strict=True):
            held = part.mean.reshape(len(change.columns), ask.steps + ahead, -1)
            first = int(ahead and self.point(change.cause).same_row)
            mean = held[:, first : first + ask.steps].reshape(len(change.columns) * ask.steps, -1)
            room = np.array([self._room(change.cause, column) for column in change.columns]).reshape(-1, 3)
            out.append(replace(part, mean=np.ascontiguousarray(mean), room=room))
        return tuple(out)

    def _room(self, name: str, channel: int) -> tuple[float, float, float]:
        """How far an input may move down and up from its last value, and the size its change is measured in."""
        knowledge, source = self._without_states, self.unit(name)
        column = knowledge.input_slices[knowledge.index(name)].start + channel
        last = float(self.point(name).input_level[channel]) + float(knowledge.u[-1, column])
        size = float(knowledge.seen[column])
        low, high = source.inputs[channel].limits or (-np.inf, np.inf)
        width = high - low if np.isfinite(high - low) else 1.0
        return max(low - last, -NO_LIMIT), min(high - last, NO_LIMIT), size or width

    def _refuse_doubtful(self, change: Change, moved: list[int]) -> None:
        """A change whose effect passes through couplings that the data do not determine has no answer.

        Its inputs must be determined; and where states' couplings are not (a unit that was hardly measured), nothing
        that passes through that unit is, which in a coupled plant is everything.
        """
        if change.values.shape[1] != self.unit(change.cause).n_inputs:
            raise DataError(
                f"unit {change.cause!r} has {self.unit(change.cause).n_inputs} inputs, the change has "
                f"{change.values.shape[1]}"
            )
        for doubt in self.couplings.doubts if self.couplings is not None else ():
            own_input = doubt.letter == "B" and doubt.cause == change.cause
            if doubt.letter == "A" or (own_input and (not doubt.channels or set(doubt.channels) & set(moved))):
                raise UnidentifiedError(f"not to be told from these data. {doubt}")

    def _note(self, part: Answer) -> str:
        """What an answer is to be read with: one line each."""
        lines: list[str] = []
        if self.couplings is None and self.method != "oracle":
            lines.append(PUBLISHED_CAVEAT)
        if self.couplings is not None and part.kind in WITH_INTERVALS and not len(part.covariance):
            lines.append(NO_INTERVAL)
        elif self.couplings is not None and part.kind == "forecast" and self.couplings.spread is None:
            lines.append(BAND_WITHOUT_COUPLINGS)
        lines += map(str, self.caveats)
        if part.kind == "attribute" and self.radius > 1 - 1 / self.rows:
            lines.append(SLOW)
        lines += part.notes
        return "\n".join(" ".join(line.split("\n")) for line in lines)[:NOTE_LIMIT]


def _later_rows(answer: Answer, rows: int) -> Answer:
    """An answer without its first rows."""
    if not rows:
        return answer
    size = answer.mean.shape[1]
    return replace(answer, mean=answer.mean[rows:], covariance=answer.covariance[rows * size :])
