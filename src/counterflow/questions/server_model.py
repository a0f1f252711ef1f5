"""What the server knows after a fit, as far as questions need it, and what several kinds of answers are made of.

With models everything is linear, so the difference of two worlds with the same noise obeys the noise-free recursion,

    Δh[t] = A Δh[t-1] + B Δu[t-1]

An answer holds the rows of the asking unit only. How it depends on uncertain couplings is in ``sensitivity``. Levels,
alignments and doubts of the couplings are the server's affair: a unit asks in engineering units and row numbers, so
that it need not know where another unit's inputs rest, or on which row they act.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Self

import numpy as np

from counterflow import wording
from counterflow.arrays import FloatArray
from counterflow.caveats import EVERYBODY, Caveat, scope_of
from counterflow.control import Law
from counterflow.errors import DataError, OptionError, PrivacyError
from counterflow.plant.units import MANIPULATED, SET_POINT
from counterflow.protocol import Answer, Ask, Change
from counterflow.protocol.questions import HELD, REACTING
from counterflow.questions.closed_loop import BatchAsk, ClosedLoop, Reactor, names_of, never_moved, settles, unstable
from counterflow.questions.fitted_plant import FittedPlant
from counterflow.questions.parts import (
    REACTIONS,
    REPLICATES,
    later_in_worlds,
    later_rows,
    part_of,
    refuse_overflow,
    spread_of_replicates,
    with_caveats,
)
from counterflow.questions.refusals import BEYOND_SEEN, OFTEN_LIMITED, doubts_of, far, leaving_limits, refuse_far
from counterflow.questions.row_covariance import directions_of_replicates, lasting, share_of
from counterflow.questions.sensitivity import driven_by

UNNOTICED = 0.3  # standard deviations over the root of the rows: what a fit from logs may be off without noticing,
MISSED = 3.0  # and what it may have missed where no replicate has found an effect
RAISED = 0.2  # of the range seen, by which inputs are held higher to see what one of them does


@dataclass(frozen=True)
class ServerModel(FittedPlant):
    """The server's part of a fit: what changes of inputs do, in the past and from now on, in both worlds."""

    reactors: Mapping[str, Reactor] = field(init=False, repr=False, compare=False, default_factory=dict)
    together: BatchAsk | None = field(init=False, repr=False, compare=False, default=None)
    silent: tuple[str, ...] = field(init=False, repr=False, compare=False, default=())
    supposed: bool = field(init=False, repr=False, compare=False, default=False)

    def running(
        self, reactors: Mapping[str, Reactor], kept: dict[str, bool] | None = None,
        together: BatchAsk | None = None, silent: Sequence[str] = (), supposed: bool = False,
    ) -> Self:  # fmt: skip
        """The same with the units' controllers at hand: questions about the running plant can be answered.

        ``kept``: a place to keep what takes long to find out, for as long as model and controllers stay the same.
        ``together``: asks all units in one round; None: one after the other. ``silent``: units among them whose
        controllers do not answer to the questions of others, so that everything is held. ``supposed``: whether
        some of them follow another law than in the record.
        """
        out = copy(self)
        out.__dict__["_kept"] = {} if kept is None else kept
        out.__dict__.pop("running_plant", None)
        found = {
            "reactors": MappingProxyType(dict(reactors)), "together": together, "silent": tuple(silent),
            "supposed": supposed,
        }  # fmt: skip
        for name, value in found.items():
            object.__setattr__(out, name, value)
        return out

    def supposing(self, laws: Mapping[str, Mapping[str, Law]]) -> Self:
        """The same with controllers that follow other laws, {unit: {input: law}}."""
        reactors = dict(self.reactors)
        for name, given in laws.items():
            unit = self.unit(name)
            if name not in reactors:
                raise OptionError(
                    f"no controllers of unit {name!r} are known here, so that none can follow another law: fit with "
                    "its loops declared",
                    code="no-controllers",
                )
            reactors[name] = reactors[name].supposing(given)
            if self.couplings is not None:
                self._refuse_never_moved(name, [k for k in reactors[name].locked if unit.inputs[k].name in given])
        return self.running(reactors, None, self.together, self.silent, supposed=True)

    # ---- changes

    def departures(self, changes: Sequence[Change]) -> list[Change]:
        """Changes as the model takes them: what replaces inputs is measured from where they rest."""
        return [
            replace(change, values=change.values - self.point(change.cause).input_level) if change.absolute else change
            for change in changes
        ]

    def schedule(self, changes: Sequence[Change], base: FloatArray, first: int = 0) -> FloatArray:
        """Inputs of all units after the changes, for the rows of ``base``, the first of which is row ``first``."""
        out = base.copy()
        for change in changes:
            own = self.input_slices[change.cause]
            start = change.first - first
            if start < 0 or start + len(change.values) > len(out):
                raise DataError(
                    f"the change at unit {change.cause!r} covers {change.first} to "
                    f"{change.first + len(change.values) - 1}, the question {first} to {first + len(out) - 1}"
                )
            rows = slice(start, start + len(change.values))
            columns = [own.start + k for k in change.columns]
            values = change.values[:, change.columns]
            out[rows, columns] = values if change.absolute else out[rows, columns] + values
        return out

    def additions(self, changes: Sequence[Change], steps: int) -> FloatArray:
        """What changes add to all inputs over the next steps, (steps, U)."""
        if any(change.absolute for change in changes):
            raise DataError("an effect is of a change: give what is added to the inputs, not what replaces them")
        return self.schedule(changes, np.zeros((steps, self.B.shape[1])))

    def from_now_on(
        self, changes: Sequence[Change], ask: Ask, respond: Callable[[FloatArray, Ask], tuple[Answer, ...]]
    ) -> tuple[Answer, ...]:
        """What ``respond`` says of changes from now on, over the next ``steps`` rows.

        Inputs that act on their own row are one step ahead of the others in the model: it is asked for one step more,
        the others' changes begin in its second step, and its first, which is the row of the change itself, is left out.
        """
        ahead = {change.cause for change in changes if self.point(change.cause).same_row}
        steps = ask.steps
        if ahead:
            shifted = [
                c if c.cause in ahead else replace(c, first=c.first + 1, values=c.values[:steps]) for c in changes
            ]
            longer = replace(ask, steps=steps + 1)
            found = tuple(
                later_rows(part, 1) if len(part.mean) == steps + 1 else later_in_worlds(part, 1, steps + 1)
                for part in respond(self.additions(shifted, steps + 1), longer)
            )
        else:
            trimmed = [replace(change, values=change.values[:steps]) for change in changes]
            found = respond(self.additions(trimmed, steps), ask)
        return with_caveats(found, leaving_limits(self, changes))

    # ---- what they do

    def difference(self, schedule: FloatArray, ask: Ask, row: int | None = None) -> tuple[Answer, ...]:
        """What inputs ``schedule`` (n, U) do, with its covariance; ``row``: see ``response_by_member``."""
        own = self.own(ask.unit)
        if ask.controllers == REACTING and self.running_plant.reactors:
            return self._running_difference(schedule, ask, row)
        if self.network is not None:
            found, limited = self.response_by_member(schedule, row)
            refuse_overflow(found)
            mine, widening = found[:, :, own], self.network.widening
            mean, covariance = spread_of_replicates(mine, widening)
            wider = self._floor_covariance(covariance, schedule, ask.unit, mine)
            missed = (wider - covariance)[: mean.shape[1]]  # the same in all rows, and for all of them at once
            joint = directions_of_replicates(mine, widening, missed)
            caveats = far(self, schedule) + ([BEYOND_SEEN] if limited > OFTEN_LIMITED else [])
            parts = share_of(part_of(ask, mean, wider), joint)
            return with_caveats(parts, [*caveats, *doubts_of(self, found, ask.unit)])
        response, _ = driven_by(self.A, self.B, schedule)
        covariance = self.memory.covariance(self.A, self.B, self.spread, schedule, own)
        refuse_overflow(response, covariance)
        together = self.memory.directions(self.A, self.B, self.spread, schedule, own)
        return with_caveats(share_of(part_of(ask, response[:, own], covariance), together), far(self, schedule))

    def _running_difference(self, schedule: FloatArray, ask: Ask, row: int | None) -> tuple[Answer, ...]:
        """The same where controllers react; the parts after the first are every replicate, and the unit's own inputs.

        Of uncertain couplings the first replicate is the estimate, and the others vary about it.
        """
        own, inputs = self.own(ask.unit), self.input_slices[ask.unit]
        refuse_far(self, schedule)
        found, moved, limited = self.running_plant.difference(schedule, row)
        refuse_overflow(found)
        mine = found[:, :, own]
        caveats = far(self, schedule)
        if self.network is not None:
            mean, spread = spread_of_replicates(mine, self.network.widening)
            covariance = self._floor_covariance(spread, schedule, ask.unit, mine)
            missed = (covariance - spread)[: mean.shape[1]]
            caveats = [*caveats, *([BEYOND_SEEN] if limited > OFTEN_LIMITED else []), *doubts_of(self, found, ask.unit)]
            worlds, widening = mine, self.network.widening
        else:
            mean, worlds, widening = mine[0], mine, 1.0
            covariance, missed = np.zeros((0, mean.shape[1])), np.zeros((mean.shape[1], mean.shape[1]))
            if len(mine) > 1:
                worlds, moved = mine[1:], moved[1:]
                gaps = (worlds - mean) / np.sqrt(len(worlds))
                covariance = np.einsum("kni,knj->nij", gaps, gaps).reshape(-1, mean.shape[1])
        wide = mean + widening * (worlds - mean)
        # what switches in single rows is certain of a window: every world is a direction as it is
        rows = (wide - mean) / np.sqrt(max(len(wide) - 1, 1))
        joint = np.vstack([rows, lasting(missed, len(mean))]) if len(covariance) else None
        parts = [*share_of(part_of(ask, mean, covariance), joint)]
        parts.append(part_of(ask, wide.reshape(-1, mean.shape[1]), share=REPLICATES))
        if inputs.stop > inputs.start:
            answered = moved[:, :, inputs]
            parts.append(part_of(ask, answered.reshape(-1, answered.shape[2]), share=REACTIONS))
        return with_caveats(parts, caveats)

    def response_by_member(
        self, schedule: FloatArray, row: int | None = None, still: Sequence[str] = ()
    ) -> tuple[FloatArray, float]:
        """What inputs ``schedule`` (n, U) do to all states, by replicate of the network (K, n, P).

        ``row``: the recorded row that the first row of the answer is; None: it follows the last recorded one, in whose
        inputs nothing changes but what is added. Also the share of products at the limits of what was seen.
        """
        network = self.network
        assert network is not None
        n, r = len(schedule), network.size
        refuse_far(self, schedule)
        rows = self.standard_rows
        if row is None:
            inputs = np.tile(rows[-1, r:], (n, 1))
            found, limited = network.difference(self.before(len(rows)), inputs, schedule, None, still)
        else:
            found, limited = self._apart_then(schedule, row, still)
        out = np.zeros((len(found), n, self.A.shape[0]))
        out[:, :, self.number_states] = found
        return out, limited

    def _apart_then(self, schedule: FloatArray, row: int, still: Sequence[str]) -> tuple[FloatArray, float]:
        """The same (K, n, r) for recorded rows from ``row`` on, each by the network of its way of running."""
        assert self.network is not None
        rows, n, r, p = self.standard_rows, len(schedule), self.network.size, self.network.memory
        ways = [(each.start, each.stop, each.network or self.network) for each in self.regimes]
        parts: list[FloatArray] = []
        limits = []
        # how far the two worlds are apart, standardised; what is added to inputs stands in the row before it acts
        apart = np.zeros((len(self.network.linear), p + n, rows.shape[1]))
        apart[:, p - 1 : -1, r:] = schedule / self.network.scale[r:]
        for start, stop, network in ways or [(0, len(rows), self.network)]:
            first, last = max(start, row), min(stop, row + n)
            if first >= last:
                continue
            before = self.before(first)
            inputs = np.vstack([before[-1:, r:], rows[first : last - 1, r:]])
            already = apart[:, first - row : first - row + p] if parts else None
            found, limited = network.difference(
                before, inputs, schedule[first - row : last - row], rows[first:last, :r], still, already
            )
            apart[:, first - row + p : last - row + p, :r] = found / network.scale[:r]
            parts.append(found)
            limits.append(limited * (last - first))
        return np.concatenate(parts, axis=1), sum(limits) / n

    def ahead(self, inputs: FloatArray) -> FloatArray:
        """States (K, n, P) after the last recorded row under inputs (n, U), by replicate of the network."""
        network = self.network
        assert network is not None
        r = network.size
        found = network.ahead(self.before(len(self.standard_rows)), (inputs - network.level[r:]) / network.scale[r:])
        out = np.zeros((len(found), len(inputs), self.A.shape[0]))
        out[:, :, self.number_states] = found * network.scale[:r] + network.level[:r]
        return out

    def mean_response(
        self, schedule: FloatArray, row: int | None, controllers: str, levers: Sequence[int] = ()
    ) -> FloatArray:
        """What inputs ``schedule`` (n, U) do to all states (n, P) in one of the two worlds, without its uncertainty.

        ``levers``: columns that are out of their controllers' hands, moved or not.
        """
        if controllers == REACTING and self.running_plant.reactors:
            found = self.running_plant.difference(schedule, row, levers=levers)[0]
            return np.asarray(found[0] if self.network is None else found.mean(axis=0))
        if self.network is None:
            return driven_by(self.A, self.B, schedule)[0]
        return np.asarray(self.response_by_member(schedule, row)[0].mean(axis=0))

    def step_response(self, column: int, steps: int, controllers: str = HELD, levers: Sequence[int] = ()) -> FloatArray:
        """What input ``column``, held one higher from now on, does to all states (steps, P).

        ``levers``: see ``mean_response``.

        Of a curved network, and where controllers react: what a fifth of the range seen would do, in proportion.
        """
        schedule = np.zeros((steps, self.B.shape[1]))
        if controllers == REACTING and self.running_plant.reactors:
            size = RAISED * float(self.seen[column]) or 1.0
            schedule[:, column] = size
            return self.mean_response(schedule, None, REACTING, levers) / size
        if self.network is None:
            schedule[:, column] = 1.0
            return driven_by(self.A, self.B, schedule)[0]
        size = RAISED * float(self.seen[column]) or 1.0
        schedule[:, column] = size
        return np.asarray(self.response_by_member(schedule)[0].mean(axis=0) / size)

    def _floor_covariance(
        self, covariance: FloatArray, schedule: FloatArray, unit: str, found: FloatArray
    ) -> FloatArray:
        """Covariance (n P_m, P_m) of an effect with what may have been overlooked, if that was not ruled out.

        ``found``: the effect by replicate (K, n, P_m). Where replicates saw none, a larger one may have been missed.
        """
        network = self.network
        assert network is not None
        r, m = network.size, network.names.index(unit)
        blind = float((~found.any(axis=(1, 2))).mean())
        sizes = np.abs(schedule).max(axis=0, initial=0.0) / network.scale[r:]
        sizes[~np.isin(network.owner[r:], [n for n in range(len(network.names)) if network.reaches(n, m)])] = 0.0
        least = (UNNOTICED + MISSED * blind) / np.sqrt(max(network.rows, 1)) * float(np.linalg.norm(sizes))
        numbers = network.number_slices[m]
        blocks = covariance.reshape(-1, *covariance.shape[-1:] * 2).copy()
        at = np.arange(numbers.stop - numbers.start)
        blocks[:, at, at] += np.square(least * network.scale[numbers])
        return blocks.reshape(covariance.shape)

    # ---- held or reacting

    @cached_property
    def running_plant(self) -> ClosedLoop:
        """The plant with the controllers that are at hand."""
        return ClosedLoop(self, self.reactors, self.together)

    @property
    def joint(self) -> bool:
        """Whether what controllers move are outputs here: their targets are inputs, and nothing that they move is."""
        roles = [{channel.role for channel in unit.inputs} for unit in self.units]
        return any(SET_POINT in each and MANIPULATED not in each for each in roles)

    def world(self, ask: Ask) -> str:
        """The world that a question is about: the one that it asks for, or what the data can support.

        That is the running plant where its controllers' laws are known and its model settles with them.
        """
        if self.joint:
            if ask.controllers == HELD:
                raise OptionError(
                    'controllers="held": in this fit, what controllers move are outputs, and its answers are those of '
                    "the running plant. Fit the recording with its loops as they are to ask about held ones",
                    code="joint-fit",
                )
            return REACTING
        if ask.controllers == HELD:
            return HELD
        asked = ask.controllers == REACTING
        if not self.running_plant.reactors:
            if asked:
                raise OptionError(
                    'controllers="reacting": no controllers are known here. Declare them, cf.Unit(..., loops=[cf.Loop('
                    "moves=, reads=)]), and fit again; where nothing is declared, only loops that a unit's log shows "
                    "beyond doubt are taken for such",
                    code="no-controllers",
                )
            return HELD
        if self.silent:
            if asked:
                raise PrivacyError(
                    f'controllers="reacting": the controllers of {wording.listed(self.silent)} do not answer to '
                    "questions between machines: ask for react = true below [controllers] of their policies, or ask "
                    'with controllers="held"',
                    code="controllers-silent",
                )
            return HELD
        if not self._settles:
            if asked:
                raise unstable(self)
            return HELD
        return REACTING

    @property
    def _settles(self) -> bool:
        kept: dict[str, bool] = self.__dict__["_kept"]
        if "settles" not in kept:
            kept["settles"] = self.running_plant.switches or settles(self.running_plant)
        return kept["settles"]

    @property
    def _known_to_swing(self) -> bool:
        """Whether it is known that the plant does not settle with its controllers; others are not asked for that."""
        return (self.together is None or "settles" in self.__dict__["_kept"]) and not self._settles

    def world_caveats(self, ask: Ask) -> list[Caveat]:
        """What to say of the world that an answer is about, where there are controllers."""
        reactors = self.running_plant.reactors
        if self.joint:
            text = "controllers react: the fit is of the running plant, in which what they move are outputs"
            return [Caveat("controllers-reacting", EVERYBODY, text)]
        if not reactors:
            return []
        names, scope = ", ".join(names_of(reactors, self)), scope_of(tuple(reactors))
        if ask.controllers != REACTING:
            text = (
                f"controllers are held: {names} stay as they are, whatever their readings do. In the running plant "
                "their controllers would answer"
            )
            if self.silent:
                text += f"; those of {wording.listed(self.silent)} do not answer to questions between machines"
            elif self._known_to_swing:
                text += "; with them, the plant of this model does not settle, so nothing can be said of that"
            return [Caveat("controllers-held", scope, text)]
        out = [Caveat("controllers-reacting", scope, f"controllers react: they move {names} as their laws say")]
        if self.running_plant.switches:
            text = (
                "a controller switches: when it does so is not certain, and single rows may be off by a whole switch. "
                "What is certain is said of the window: mean, extremes, and the share of time that it is on"
            )
            out.append(Caveat("controllers-switch", scope, text))
        return out

    def answers_for(self, caveat: Caveat) -> bool:
        """Whether every unit of which a caveat of feedback tells has controllers that react in the answers."""
        return bool(set(caveat.units) & set(self.running_plant.reactors))

    def refuse_locked(self, moved: Mapping[str, Sequence[int]], controllers: str) -> None:
        """Where a controller's target never moved, what its input does by itself is not in the rows."""
        if self.couplings is None:  # the plant is known, whatever its rows tell
            return
        for name, reactor in self.running_plant.reactors.items():
            locked = [k for k in reactor.locked if controllers == HELD or k in moved.get(name, ())]
            self._refuse_never_moved(name, locked)

    def _refuse_never_moved(self, name: str, locked: Sequence[int]) -> None:
        if locked:
            names = ", ".join(f"{name} {self.unit(name).inputs[k].name}" for k in locked)
            raise never_moved(names, name, runs=not self._known_to_swing)
