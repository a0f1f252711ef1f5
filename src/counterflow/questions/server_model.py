"""What the server knows after a fit, as far as questions need it, and what several kinds of answers are made of.

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
from types import MappingProxyType
from typing import Self

import numpy as np

from counterflow import wording
from counterflow.arrays import FloatArray
from counterflow.caveats import EVERYBODY, Caveat, scope_of
from counterflow.control import Law
from counterflow.errors import DataError, OptionError, PrivacyError
from counterflow.learning.ensemble import Uncertain
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
    with_caveats,
)
from counterflow.questions.refusals import doubts_of, far, leaving_limits
from counterflow.questions.row_covariance import share_of

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
        _ = self.grounded  # so that both have the same
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
        """What inputs ``schedule`` (n, U) do, with its covariance.

        ``row``: the recorded row that the first row of the answer is; None: it follows the last recorded one, in whose
        inputs nothing changes but what is added. Where controllers react, the parts after the first are also every
        member, and the unit's own inputs.
        """
        unit = self.names.index(ask.unit)
        if not self.reacts(ask):
            found, members = self.grounded.difference(schedule, row, unit)
            refuse_overflow(found.mean, found.covariance)
            told = share_of(part_of(ask, found.mean, found.covariance), found.directions)
            return with_caveats(told, [*far(self, schedule), *doubts_of(self, members, ask.unit)])
        self.model.refuse_far(schedule)
        states, moved, limited = self.running_plant.difference(schedule, row)
        members = self.model.ensemble(states, limited)
        refuse_overflow(states)
        # what switches in single rows is certain of a window: every world is a direction as it is
        found = self.model.told_by(members, unit, schedule, as_they_are=True)
        mine, inputs = members.of(self.own(ask.unit)), self.input_slices[ask.unit]
        size = found.mean.shape[1]
        parts = [*share_of(part_of(ask, found.mean, found.covariance), found.directions)]
        parts.append(part_of(ask, mine.worlds.reshape(-1, size), share=REPLICATES))
        if inputs.stop > inputs.start:
            answered = moved[len(moved) - len(mine.members) :, :, inputs]
            parts.append(part_of(ask, answered.reshape(-1, answered.shape[2]), share=REACTIONS))
        return with_caveats(parts, [*far(self, schedule), *doubts_of(self, members, ask.unit)])

    def reacts(self, ask: Ask) -> bool:
        """Whether controllers answer in the world that is asked about."""
        return ask.controllers == REACTING and bool(self.running_plant.reactors)

    def ahead(self, plan: FloatArray, ask: Ask) -> Uncertain:
        """States of the asking unit after the last row under inputs ``plan`` (n, U), without process noise."""
        unit = self.names.index(ask.unit)
        if not self.reacts(ask):
            return self.grounded.ahead(plan, unit)
        found = self.running_plant.ahead(plan - self.grounded.inputs_acting(None, len(plan)))
        return self.model.told_by(self.model.ensemble(found), unit)

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
                "The intervals of the window's mean, of its extremes and of the share of time that it is on are "
                "narrower than those of single rows"
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
