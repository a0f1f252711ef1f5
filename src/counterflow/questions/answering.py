"""The server's half of questions: what changes of inputs do by the fitted model, and what that must be read with.

Answers are runs of the fit's model (``counterflow.learning.model``): the difference of two worlds with the same noise.
An answer holds the rows of the asking unit only. Levels, alignments and doubts of the couplings are the server's
affair: a unit asks in engineering units and row numbers, so that it need not know where another unit's inputs rest, or
on which row they act.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np

from counterflow.arrays import FloatArray, slices
from counterflow.caveats import EVERYBODY, Caveat, by_weight, distinct, to_text
from counterflow.control import Law
from counterflow.errors import DataError, OptionError, PrivacyError, UnidentifiedError, UnstableError
from counterflow.learning.ensemble import Ensemble, Uncertain, compressed
from counterflow.learning.layout import Layout
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.linear_model import LinearModel
from counterflow.learning.model import Grounded, Model
from counterflow.learning.regime_sums import since
from counterflow.plant.units import OperatingPoint, PublicUnit, unit_named
from counterflow.protocol import Answer, Ask, Change, Message, Sufficient
from counterflow.protocol.questions import CAVEATS_LIMIT, HELD, NO_LIMIT, REACTING
from counterflow.questions.closed_loop import BatchAsk, ClosedLoop, Reactor
from counterflow.questions.registry import question

if TYPE_CHECKING:
    from counterflow.exchange.outcome import Couplings
    from counterflow.questions.question import Request

Watch = Callable[[Message, bool], None]  # sees every message that crosses, and whether it goes up
# shares of an answer beside its own rows
JOINT = "joint"  # directions along which its rows may be off together, one below the other
RECORDED = "recorded"  # what the states were in rows that were not measured
REPLICATES = "replicates"  # what every replicate says, one below the other
BASELINE = "baseline"  # the states in which the plant usually rests
REACTIONS = "reactions"  # what the asking unit's own inputs do, by replicate

FEEDBACK = "check-feedback-"  # codes of caveats that tell of inputs which react to measurements
RAISED = 0.2  # of the range seen, by which inputs are held higher to see what one of them does
FAR = 2.0  # times the range seen in the data, beyond which a change is called far
OVERFLOWING = 1e6  # growth over the horizon beyond which an unstable estimate says nothing
DOUBTFUL = 0.15  # squared error over squared effect that is to be expected: beyond, an answer says so
OFTEN_LIMITED = 0.05  # share of products at the limits of what was seen, beyond which an answer says so
EXTRAPOLATION = "extrapolation"
NOT_FOUND = Caveat(
    "effect-not-found", EVERYBODY,
    "no sign of this effect was found in these rows; the interval says how large it could be and be missed",
)  # fmt: skip
BEYOND_SEEN = Caveat(
    "curvature-limited", EVERYBODY,
    "part of this answer lies beyond what was seen: there the fit's curvature is held as it is at the edge; a smaller "
    "change stays within",
)  # fmt: skip
NO_INTERVAL = Caveat(
    "no-interval", EVERYBODY,
    "standard errors were not computed for this fit, so there is no interval; fit with uncertainty=True",
)  # fmt: skip


# ---- parts of an answer: rows of the asking unit's states, and what they must be read with


def part_of(ask: Ask, mean: FloatArray, covariance: FloatArray | None = None, share: str = "") -> Answer:
    """One part of an answer, of states ``mean`` (n, P_m)."""
    none = np.zeros((0, mean.shape[1]))
    return Answer(ask.unit, ask.kind, share, "", np.ascontiguousarray(mean), none if covariance is None else covariance)


def parts_of(ask: Ask, found: Uncertain, late: int = 0) -> list[Answer]:
    """An answer without its first ``late`` rows, and its directions behind it, where there are any."""
    if not (np.isfinite(found.mean).all() and np.isfinite(found.covariance).all()):
        raise DataError("the change is too large for double precision: give it in other units, or a smaller one")
    size = found.mean.shape[1]
    parts = [part_of(ask, found.mean[late:], found.covariance[late * size :])]
    if found.directions is not None and len(found.directions):
        parts.append(part_of(ask, compressed(found.directions)[:, late:].reshape(-1, size), share=JOINT))
    return parts


def with_caveats(parts: Sequence[Answer], caveats: Sequence[Caveat]) -> tuple[Answer, ...]:
    """The same answer, to be read with these caveats, too; its first part carries them, as many as it can hold."""
    first, *others = parts
    whole = list(by_weight([*first.noted, *caveats]))
    while len(text := to_text(whole)) > CAVEATS_LIMIT:
        whole.pop()
    return (replace(first, caveats=text), *others) if caveats else tuple(parts)


def far_change(names: Sequence[str]) -> Caveat:
    """Of changes beyond anything that the data have shown."""
    text = f"inputs of {', '.join(names)} would move more than {FAR:g} times the range seen in the data; ask for less"
    return Caveat(EXTRAPOLATION, EVERYBODY, text)


def columns_asked(kind: type[Request], change: Change) -> list[int]:
    """The inputs that a change is about: those that must be determined, and open to the asker."""
    return change.columns if kind.of_levers else change.moved


@dataclass(frozen=True)
class Server:
    """The server's part of a fit: the couplings, the rows that questions about the past refer to, and who answers.

    What it says is for the asking unit alone: its own states, and what the answer must be read with.
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

    # ---- units and their blocks

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(unit.name for unit in self.units)

    def unit(self, name: str) -> PublicUnit:
        """The unit of that name."""
        return unit_named(self.units, name)

    def point(self, name: str) -> OperatingPoint:
        """Where the unit's inputs rest, and which row they act on."""
        return self.points.get(name) or OperatingPoint.none(self.unit(name).n_inputs)

    @cached_property
    def state_slices(self) -> dict[str, slice]:
        return dict(zip(self.names, slices(unit.states for unit in self.units), strict=True))

    @cached_property
    def input_slices(self) -> dict[str, slice]:
        return dict(zip(self.names, slices(unit.n_inputs for unit in self.units), strict=True))

    def own(self, name: str) -> slice:
        """The unit's states."""
        return self.state_slices[self.unit(name).name]

    # ---- the model, and the rows it stands on

    @cached_property
    def model(self) -> Model:
        """The simulators of all units."""
        if self.couplings is not None:
            return self.couplings.model
        units = Layout(self.names, tuple(u.states for u in self.units), tuple(u.n_inputs for u in self.units))
        return LinearModel(units, self.A, self.B, self.Q)

    @cached_property
    def grounded(self) -> Grounded:
        """The model on the rows that questions about the past refer to."""
        return self.model.on(self.shared)

    def about(self, messages: list[Sufficient]) -> Self:
        """The same, with other rows to refer to: what the units send of another recording."""
        return replace(self, shared=SharedRecord.from_messages(messages))

    @property
    def present(self) -> Self:
        """The same with the rows since the last change only."""
        regimes = self.grounded.regimes
        if not regimes or self.shared is None:
            return self
        return replace(self, shared=self.shared.last(regimes[-1].stop - since(regimes)))

    @property
    def rows(self) -> int:
        """How many rows questions about the past can refer to."""
        if self.shared is None:
            raise OptionError(
                f"method {self.method!r} keeps no record of inputs: give the recording that is asked about"
            )
        return int(self.shared.u.shape[0])

    @property
    def u(self) -> FloatArray:
        """Inputs (T+1, U) of the recorded rows, as the model takes them; one row of zeros if nothing is recorded."""
        return self.grounded.u

    @cached_property
    def has_rows(self) -> bool:
        """Whether anything is known of the recorded rows besides inputs; units may have sent moments alone."""
        if self.couplings is None or not self.couplings.of_moments or self.shared is None:
            return True
        return bool(np.isfinite(self.shared.values).any())

    @cached_property
    def seen(self) -> FloatArray:
        """Range (U,) of each input in the rows that the model was learned from, or else in the recorded ones.

        Zero if nothing is recorded.
        """
        return np.asarray(np.ptp(self.u, axis=0)) if self.model.seen is None else self.model.seen

    @cached_property
    def radius(self) -> float:
        """Spectral radius of A."""
        return float(np.abs(np.linalg.eigvals(self.A)).max())

    @property
    def settles_down(self) -> bool:
        """Whether states have a level to come back to."""
        return self.radius < 1 - 1e-9

    @cached_property
    def usual(self) -> FloatArray:
        """States (P,) in which the plant rests under every input's mean."""
        return np.linalg.solve(np.eye(len(self.A)) - self.A, self.B @ self.u.mean(axis=0))

    def window(self, ask: Ask) -> slice:
        """The recorded rows that a question is about."""
        rows = len(self.u)
        if ask.first + ask.steps > rows:
            raise DataError(
                f"rows {ask.first} to {ask.first + ask.steps - 1} are asked for; 0 to {rows - 1} are recorded"
            )
        return slice(ask.first, ask.first + ask.steps)

    def headroom(self, name: str, channel: int) -> tuple[float, float, float]:
        """How far an input may move down and up from its last value, and the size its change is measured in."""
        column = self.input_slices[name].start + channel
        last = float(self.point(name).input_level[channel]) + float(self.u[-1, column])
        low, high = self.unit(name).inputs[channel].limits or (-np.inf, np.inf)
        width = high - low if np.isfinite(high - low) else 1.0
        return max(low - last, -NO_LIMIT), min(high - last, NO_LIMIT), float(self.seen[column]) or width

    # ---- controllers

    @cached_property
    def running_plant(self) -> ClosedLoop:
        """The plant with the controllers that are at hand: none."""
        return ClosedLoop(self, {})

    def running(
        self, reactors: Mapping[str, Reactor], kept: dict[str, bool] | None = None,
        together: BatchAsk | None = None, silent: Sequence[str] = (), supposed: bool = False,
    ) -> Self:  # fmt: skip
        """The same with the units' controllers at hand: see ``ClosedLoop``."""
        _ = self.grounded  # so that both have the same
        out = copy(self)
        out.__dict__["running_plant"] = ClosedLoop(out, reactors, kept, together, silent, supposed)
        return out

    def supposing(self, laws: Mapping[str, Mapping[str, Law]]) -> Self:
        """The same with controllers that follow other laws, {unit: {input: law}}."""
        loop = self.running_plant
        reactors = dict(loop.units)
        for name, given in laws.items():
            unit = self.unit(name)
            if name not in reactors:
                raise OptionError(
                    f"no controllers of unit {name!r} are known here, so that none can follow another law: fit with "
                    "its loops declared",
                    code="no-controllers",
                )
            reactors[name] = reactors[name].supposing(given)
            loop.refuse_never_moved(name, [k for k in reactors[name].locked if unit.inputs[k].name in given])
        return self.running(reactors, None, loop.together, loop.silent, supposed=True)

    def reacts(self, ask: Ask) -> bool:
        """Whether controllers answer in the world that is asked about."""
        return ask.controllers == REACTING and bool(self.running_plant.reactors)

    # ---- worlds

    def inputs(
        self, changes: Sequence[Change], base: FloatArray, first: int = 0, delays: Mapping[str, int] | None = None
    ) -> FloatArray:
        """Inputs (n, U) that act on the rows of an answer after the changes; ``base``: before them.

        ``first``: the row from which changes are counted; ``delays``: how many rows later those of a unit act.
        """
        out = base.copy()
        for change in changes:
            own, point = self.input_slices[change.cause], self.point(change.cause)
            start = change.first - first
            if start < 0 or start + len(change.values) > len(base) + 1:
                raise DataError(
                    f"the change at unit {change.cause!r} covers {change.first} to "
                    f"{change.first + len(change.values) - 1}, the question {first} to {first + len(base) - 1}"
                )
            start += (delays or {}).get(change.cause, 0)
            values = change.values[: len(out) - start, change.columns]
            rows, columns = slice(start, start + len(values)), [own.start + k for k in change.columns]
            out[rows, columns] = values - point.input_level[change.columns] if change.absolute else (
                out[rows, columns] + values
            )  # fmt: skip
        return out

    def from_now_on(self, changes: Sequence[Change], steps: int) -> tuple[FloatArray, int]:
        """What changes add to all inputs from now on (n, U), and how many rows come before the answer's first one.

        Inputs that act on their own row are one step ahead of the others in the model: it is asked for one step more,
        the others' changes begin in its second step, and its first, which is the row of the change itself, is left out.
        """
        if any(change.absolute for change in changes):
            raise DataError("an effect is of a change: give what is added to the inputs, not what replaces them")
        early = {change.cause: int(self.point(change.cause).same_row) for change in changes}
        late = max(early.values(), default=0)
        nothing = np.zeros((steps + late, self.B.shape[1]))
        return self.inputs(changes, nothing, 0, {name: late - own for name, own in early.items()}), late

    def in_rows(self, changes: Sequence[Change], rows: slice) -> tuple[FloatArray, int]:
        """The same in recorded rows: what changes add to all inputs (n, U), and how many rows come before the first.

        Where some inputs act on their own row, the row before the first is told, too, in which nothing has changed yet.
        """
        for change in changes:
            if not change.absolute:
                self._refuse_leaving_limits(change)
        early = {change.cause: int(self.point(change.cause).same_row) for change in changes}
        late = min(rows.start, max(early.values(), default=0))
        acting = self.grounded.inputs_acting(rows.start - late, rows.stop - rows.start + late)
        delays = {name: 1 + late - own for name, own in early.items()}
        added = self.inputs(changes, acting, rows.start, delays) - acting
        if rows.start == 0:  # what stands in the first row has acted before anything was recorded
            added[0] = 0.0
        return added, late

    def compare(self, changes: Sequence[Change], ask: Ask, past: bool = False) -> tuple[Answer, ...]:
        """What changes do, with its covariance: the difference of two worlds with the same noise.

        ``past``: in recorded rows; else from now on, after the last recorded one, in whose inputs nothing changes but
        what is added. Where controllers react, there are also every member, and the unit's own inputs.
        """
        unit = self.names.index(ask.unit)
        schedule, late = self.in_rows(changes, self.window(ask)) if past else self.from_now_on(changes, ask.steps)
        row = ask.first - late if past else None
        if not self.reacts(ask):
            found, members = self.grounded.difference(schedule, row, unit)
            parts = parts_of(ask, found, late)
        else:
            self.model.refuse_far(schedule)
            states, moved, limited = self.running_plant.difference(schedule, row)
            members = self.model.ensemble(states, limited)
            # what switches in single rows is certain of a window: every world is a direction as it is
            parts = parts_of(ask, self.model.told_by(members, unit, schedule, as_they_are=True), late)
            mine, inputs = members.of(self.own(ask.unit)), self.input_slices[ask.unit]
            worlds, answered = mine.worlds[:, late:], moved[len(moved) - len(mine.members) :, late:, inputs]
            parts.append(part_of(ask, worlds.reshape(-1, worlds.shape[2]), share=REPLICATES))
            if inputs.stop > inputs.start:
                parts.append(part_of(ask, answered.reshape(-1, answered.shape[2]), share=REACTIONS))
        notes = [*self.far(schedule), *self.doubts_of(members, ask.unit)]
        if not past:
            notes += self.leaving_limits(changes)
            if self.settles_down:
                parts.append(part_of(ask, self.usual[None, self.own(ask.unit)], share=BASELINE))
        elif self.grounded.gaps_in(self.window(ask), unit):
            parts.append(part_of(ask, *self.grounded.recorded(self.window(ask), unit), share=RECORDED))
        return with_caveats(parts, notes)

    def ahead(self, plan: FloatArray, ask: Ask) -> Uncertain:
        """States of the asking unit after the last row under inputs ``plan`` (n, U), with process noise."""
        unit = self.names.index(ask.unit)
        noise = self.grounded.noise_ahead(ask.steps, unit)
        if not self.reacts(ask):
            return self.grounded.ahead(plan, unit).and_noise(*noise)
        found = self.running_plant.ahead(plan - self.grounded.inputs_acting(None, len(plan)))
        return self.model.told_by(self.model.ensemble(found), unit).and_noise(*noise)

    def mean_response(
        self, schedule: FloatArray, row: int | None, reacting: bool, levers: Sequence[int] = ()
    ) -> FloatArray:
        """What inputs ``schedule`` (n, U) do to all states (n, P), without its uncertainty.

        ``levers``: columns that are out of their controllers' hands, moved or not.
        """
        if reacting:
            return self.model.ensemble(self.running_plant.difference(schedule, row, levers=levers)[0]).mean
        return self.grounded.response(schedule, row).mean

    def step_response(self, column: int, steps: int, reacting: bool, levers: Sequence[int] = ()) -> FloatArray:
        """What input ``column``, held one higher from now on, does to all states (steps, P).

        It is what a fifth of the range seen would do, in proportion: plants may be curved, and controllers meet limits.
        ``levers``: see ``mean_response``.
        """
        schedule, size = np.zeros((steps, self.B.shape[1])), RAISED * float(self.seen[column]) or 1.0
        schedule[:, column] = size
        return self.mean_response(schedule, None, reacting, levers) / size

    # ---- answers

    def ask(self, changes: Sequence[Change], ask: Ask, watch: Watch | None = None) -> tuple[Answer, ...]:
        """Answer one question; ``watch`` sees every message that would cross."""
        seen = watch or (lambda message, up: None)
        for message in (*changes, ask):
            seen(message, True)
        found = self.answer(changes, ask)
        for part in found:
            seen(part, False)
        return found

    def answer(self, changes: Sequence[Change], ask: Ask) -> tuple[Answer, ...]:
        """Answer one question of unit ``ask.unit``, all of it in engineering units.

        Raises
        ------
        UnidentifiedError
            The data do not determine a coupling that the answer passes through.
        """
        kind, loop = question(ask.kind), self.running_plant
        self.unit(ask.unit)
        moved = {change.cause: columns_asked(kind, change) for change in changes}
        if not kind.of_worlds:
            ask = replace(ask, controllers=HELD)
        ask, said = loop.world(ask, moved) if kind.of_worlds or kind.held_only else (ask, [])
        if kind.of_past or kind.after_record:
            self.refuse_without_rows(ask.kind)
        for change in changes:
            self._refuse_doubtful(change, columns_asked(kind, change))
        self._refuse_runaway(ask.steps)
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused by name
            if kind.respond is None:
                parts = self.compare(changes, ask, kind.of_past)
            else:
                parts = kind.respond(self, changes, ask)
        if kind.of_intervals and self.couplings is not None and not len(parts[0].covariance):
            said.append(NO_INTERVAL)
        passed = self.units_passed(list(moved), ask.unit)
        of_fit = [each for each in self.caveats if not each.units or passed & set(each.units)]
        if ask.controllers == REACTING:  # what feedback makes unsafe is answered here
            of_fit = [
                each for each in of_fit
                if not (each.code.startswith(FEEDBACK) and set(each.units) & set(loop.reactors))
            ]  # fmt: skip
        whole = distinct([*said, *of_fit, *parts[0].noted])
        return with_caveats([replace(parts[0], caveats=to_text(())), *parts[1:]], whole)

    # ---- what an answer must be read with

    def units_passed(self, causes: Sequence[str], effect: str) -> frozenset[str]:
        """The units that an answer passes through: causes, effect, and all on the way between by the fitted couplings.

        Without causes (a forecast, an attribution): the unit itself, and all that act on it.
        """
        names, reached = self.names, self.model.reached
        before = {names[n] for n in np.flatnonzero(reached[names.index(effect)])}
        if not causes:
            return frozenset({effect, *before})
        after = {names[m] for cause in causes for m in np.flatnonzero(reached[:, names.index(cause)])}
        return frozenset({effect, *causes, *(before & after)})

    def doubts_of(self, found: Ensemble | None, unit: str) -> list[Caveat]:
        """What to say of an effect on a unit that is hardly known, by what members do; None: they do not tell."""
        if found is None or not self.model.learned:
            return []
        mine, limited = found.of(self.own(unit)), [BEYOND_SEEN] if found.limited > OFTEN_LIMITED else []
        if not mine.members.any():
            return [*limited, NOT_FOUND]
        if mine.doubt <= DOUBTFUL:
            return limited
        told = f"may be as low as {1 - mine.doubt:.1f}" if mine.doubt < 0.95 else "may be zero or less"
        text = f"this effect is hardly known: by what these rows tell, the answer's R² {told}; read its interval"
        return [*limited, Caveat("doubtful-answer", EVERYBODY, text)]

    def far(self, change: FloatArray) -> list[Caveat]:
        """Of inputs that would move much further than they ever did in the data."""
        if len(self.u) < 2:
            return []
        far = np.abs(change).max(axis=0, initial=0.0) > FAR * self.seen
        names = [name for name, own in self.input_slices.items() if far[own].any()]
        return [far_change(names)] if names else []

    def leaving_limits(self, changes: Sequence[Change]) -> list[Caveat]:
        """Of inputs that would leave their limits if they were changed from where they last were."""
        names = []
        for change in changes if self.shared is not None else ():
            for k in change.moved:
                channel, (down, up, _) = self.unit(change.cause).inputs[k], self.headroom(change.cause, k)
                if change.values[:, k].min() < down or change.values[:, k].max() > up:
                    low, high = channel.limits or (-np.inf, np.inf)
                    names.append(f"{change.cause} {channel.name} ({low:g} to {high:g})")
        text = f"from where they last were, these inputs would leave their limits: {', '.join(names)}; ask for less"
        return [Caveat("leaving-limits", EVERYBODY, text)] if names else []

    # ---- what is refused

    def _refuse_doubtful(self, change: Change, moved: Sequence[int]) -> None:
        """A change whose effect passes through couplings that the data do not determine has no answer.

        Its inputs must be determined; and where states' couplings are not (a unit that was hardly measured), nothing
        that passes through that unit is, which in a coupled plant is everything.
        """
        count = self.unit(change.cause).n_inputs
        if change.values.shape[1] != count:
            raise DataError(f"unit {change.cause!r} has {count} inputs, the change has {change.values.shape[1]}")
        for doubt in self.couplings.doubts if self.couplings is not None else ():
            own_input = doubt.letter == "B" and doubt.cause == change.cause
            if doubt.letter == "A" or (own_input and (not doubt.channels or set(doubt.channels) & set(moved))):
                raise UnidentifiedError(f"these data cannot answer this: {doubt}", scope=doubt.scope)

    def _refuse_leaving_limits(self, change: Change) -> None:
        """What is added to recorded inputs must keep them within their limits; how they were stays the server's."""
        point, inputs = self.point(change.cause), self.unit(change.cause).inputs
        first = change.first - point.same_row  # before row 0, an input has acted before anything was recorded
        recorded = self.u[max(first, 0) : first + len(change.values), self.input_slices[change.cause]]
        there = recorded + point.input_level + change.values[max(-first, 0) :][: len(recorded)]
        for k in change.columns:
            low, high = inputs[k].limits or (-np.inf, np.inf)
            if ((there[:, k] < low) | (there[:, k] > high)).any():
                raise OptionError(
                    f"unit {change.cause!r}, input {inputs[k].name!r}: with this added it would leave its limits "
                    f"{low:g} to {high:g}; add less"
                )

    def refuse_without_rows(self, kind: str) -> None:
        """PrivacyError if a question needs rows, and units have sent moments of them alone."""
        if not self.has_rows:
            raise PrivacyError(
                f"{kind}: this fit rests on moments, and the server knows no row of the period that is asked about. "
                "Ask for effects, which need none; or fit that period with privacy=Privacy(..., release='rows')",
                code="rows-needed",
            )

    def _refuse_runaway(self, steps: int) -> None:
        if self.radius > 1 and self.radius**steps > OVERFLOWING:
            raise UnstableError(
                f"the estimated system is unstable (spectral radius {self.radius:.4g}), and over {steps} steps its "
                f"errors grow beyond use; ask for at most {int(np.log(OVERFLOWING) / np.log(self.radius))} steps"
            )
