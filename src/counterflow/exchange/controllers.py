"""A unit's controllers in the counterfactual: what they would have moved, had their readings been others.

What a law leaves of the record (its residual) is replayed, so that with the readings as they were its inputs are those
that were recorded; a target that nobody records is part of what is replayed. A relay has no residual: it is taken to
have seen the reading that explains its switches. Law, readings and targets stay at the unit; what leaves it is what its
inputs would have been.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat
from counterflow.control import Law, Loop, Manual, as_law
from counterflow.control.controller import Controller, found_loops, law_supposed, learned_loop, run_law
from counterflow.control.law import CONSTANT, FAILS, FREE, RECORDED, LoopRecord, Replay, last_known
from counterflow.errors import DataError, ModelError, OptionError
from counterflow.exchange.part import UnitPart
from counterflow.exchange.task import Task, UnitData
from counterflow.plant import Unit
from counterflow.plant.units import unknown_name
from counterflow.protocol import Reaction, Trial

LAW_CODES = ("law-learned", "law-not-known", "law-not-pi", "law-supposed")  # of caveats that tell of controllers


@dataclass(frozen=True, eq=False)
class UnitControllers:
    """The controllers of a unit, with the rows they are asked about.

    ``y`` (T+1, D_m), ``u`` (T+1, U_m): the unit's own rows; None where the question is about the future only.
    ``elsewhere``: readings (T+1,) of other units that its controllers see, by "unit/channel".
    """

    part: UnitPart
    dt: float
    y: FloatArray | None = None
    u: FloatArray | None = None
    elsewhere: Mapping[str, FloatArray] = field(default_factory=dict)
    _kept: dict[tuple[str, int], Replay] = field(default_factory=dict, repr=False)

    @cached_property
    def controllers(self) -> tuple[Controller, ...]:
        """Outer loops first: what they move, inner ones aim at."""
        left = [each for each in self.part.controllers if each.usable]
        out: list[Controller] = []
        while left:
            moved = {each.loop.moves for each in left}
            first = next((each for each in left if each.loop.target not in moved), left[0])
            left.remove(first)
            out.append(first)
        return tuple(out)

    @property
    def columns(self) -> tuple[int, ...]:
        """The inputs that controllers move, in the order of these."""
        return tuple(self.part.unit.input_names.index(each.loop.moves) for each in self.controllers)

    @property
    def switches(self) -> bool:
        """Whether one of them is a relay."""
        return any(each.switches for each in self.controllers)

    @property
    def locked(self) -> tuple[int, ...]:
        """Inputs that never moved but by their controller, whose target never moved, and that target.

        Where what one controller moves is the target of another one, the other's input is locked, too.
        """
        names, found = self.part.unit.input_names, []
        for each in self.controllers:  # outer loops first
            if each.locked or (each.led and each.loop.target in found):
                found += [name for name in (each.loop.moves, each.loop.target) if name in names]
        return tuple(sorted({names.index(name) for name in found}))

    @property
    def memory(self) -> int:
        """Rows before its own that a law looks at."""
        return max((each.acting.memory for each in self.controllers), default=0)

    @property
    def foreign(self) -> tuple[str, ...]:
        """Readings of other units that they need, as "unit/channel"."""
        return tuple(each.loop.reads for each in self.controllers if each.loop.reading_unit is not None)

    def telemetry(self, channel: str, trial: Trial) -> FloatArray:
        """One of its own readings (K n,) in a world, for a controller of another unit that sees it."""
        return self._reading(channel, trial, trial.states)

    def react(self, trial: Trial) -> Reaction:
        """What its inputs would be (K n, U_m): of the past as differences from the record."""
        unit, worlds, n = self.part.unit, trial.worlds, len(trial.states) // trial.worlds
        states, foreign = (each.reshape(worlds, n, -1) for each in (trial.states, trial.foreign))
        values = np.array(trial.inputs.reshape(worlds, n, -1))

        def channel(name: str) -> FloatArray:
            if name in unit.input_names:
                return np.asarray(values[:, :, unit.input_names.index(name)])
            return self._reading(name, trial, states)

        for controller, column in zip(self.controllers, self.columns, strict=True):
            if column in set(trial.held_columns):
                continue
            loop = controller.loop
            there = foreign[:, :, self.foreign.index(loop.reads)] if loop.reading_unit else channel(loop.reads)
            target = np.full(there.shape, np.nan) if loop.target is None else channel(loop.target)
            with _naming(unit, loop):
                values[:, :, column] = self._moved(controller, trial, there, target, values[:, :, column])
        return Reaction(trial.unit, trial.row, worlds, np.ascontiguousarray(values.reshape(len(trial.states), -1)))

    def supposing(self, laws: Mapping[str, Law]) -> UnitControllers:
        """The same controllers with other laws, by the input that they move."""
        return replace(self, part=with_laws(self.part, laws), _kept={})

    # ---- one controller

    def _reading(self, channel: str, trial: Trial, states: FloatArray) -> FloatArray:
        """An own reading in states (..., P_m): a difference from the record where the trial is of the past."""
        k = self.part.unit.output_names.index(channel)
        level = 0.0 if trial.past or self.part.output_level is None else self.part.output_level[k]
        return np.asarray(states @ self.part.model.C[k] + level)

    def _moved(
        self, controller: Controller, trial: Trial, reading: FloatArray, target: FloatArray, given: FloatArray
    ) -> FloatArray:
        """What the controller's input is (K, n); ``given``: what the question itself adds to it, or its last values."""
        unit, law, lead, loop = self.part.unit, controller.acting, trial.lead, controller.loop
        limits = unit.inputs[unit.input_names.index(loop.moves)].limits or FREE
        first_row, own = trial.row - lead, None
        if law.switches_in_rows and self.part.point is not None and self.part.point.same_row:
            # what it switches acts on the same row, and might undo its reason in it: it sees where that was going
            steps = np.diff(reading, axis=1, prepend=reading[:, :1])
            reading = np.hstack([reading[:, :1], reading[:, :-1] + steps[:, :-1]])
        else:
            own = self._own_response(controller, trial)
        if not trial.past:
            if np.isnan(target).all():  # a loop whose target nobody knows is taken to rest where it stood
                own_reading = loop.reads in unit.output_names
                rest = self._reading(loop.reads, trial, trial.rest)[0] if own_reading else reading[0, 0]
                target = np.full(reading.shape, rest)
            ends = within(limits, given[:, max(lead - 1, 0) : lead])
            return run_law(law, given[:, :lead], reading, target, first_row, self.dt, own=own, ends=ends)
        record = self._record(controller, trial.worlds).rows(slice(first_row, first_row + reading.shape[1]))
        left: FloatArray | None = record.left
        manual: FloatArray | None = np.where(record.manual, record.moved, np.nan)
        if controller.supposed is not None:  # another law leaves nothing of the record, and is never off
            left = manual = None
        own = None if own is None else (own[0] + record.moved, own[1])
        ends = within(limits, record.moved[None])
        whole, aims = record.reading + reading, record.target + np.nan_to_num(target)
        moved = record.moved[:lead] + given[:, :lead]
        return run_law(law, moved, whole, aims, first_row, self.dt, left, manual, own, ends) - record.moved

    def _own_response(self, controller: Controller, trial: Trial) -> tuple[FloatArray, FloatArray] | None:
        """What its input was in the trial's states (K, n), and what it does to its reading in the rows after (K, L).

        None: the trial does not say, or it reads nothing that its own input moves.
        """
        unit, loop = self.part.unit, controller.loop
        if not trial.tried.size or loop.reads not in unit.output_names:
            return None
        at = self.columns.index(unit.input_names.index(loop.moves))
        tried = trial.tried.reshape(trial.worlds, -1, len(self.columns))[:, :, at]
        response = trial.response.reshape(trial.worlds, -1, len(self.columns), trial.states.shape[1])[:, :, at]
        return tried, np.asarray(response @ self.part.model.C[unit.output_names.index(loop.reads)])

    def _record(self, controller: Controller, worlds: int) -> Replay:
        """What a controller did in the recorded rows, as each world sees it."""
        unit, loop, law = self.part.unit, controller.loop, controller.law
        key = (loop.moves, worlds)
        if key not in self._kept:
            if self.y is None or self.u is None:
                raise DataError(f"unit {unit.name!r}: its own rows are needed to say what its controllers did")
            series = {**_channels(unit, self.y, self.u), **self.elsewhere}
            target = None if loop.target is None else series[loop.target]
            record = LoopRecord(series[loop.moves], series[loop.reads], target, self.dt)
            if controller.supposed is not None and target is None and not law.swing:
                known = last_known(record.reading)  # in manual, it aimed at nothing that is known
                was = replace(record, reading=known)
                record = record.aiming_at(law.aimed_at(was) if controller.was_at_work else float(np.median(known)))
            self._kept[key] = law.replay(record, worlds)
        return self._kept[key]


def _channels(unit: Unit, y: FloatArray, u: FloatArray) -> dict[str, FloatArray]:
    """A unit's own rows by channel; an input and an output of one name: the input."""
    return dict(zip((*unit.output_names, *unit.input_names), (*y.T, *u.T), strict=True))


@contextmanager
def _naming(unit: Unit, loop: Loop) -> Iterator[None]:
    """Name unit and loop where a law fails."""
    try:
        yield
    except ModelError as error:
        if error.code != FAILS:
            raise
        text = f"unit {unit.name!r}, the loop that moves {loop.moves}: {error}. Mend the law, or give another one"
        raise ModelError(text, code=FAILS, scope=unit.name) from error.__cause__


def within(limits: tuple[float, float], was: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Lowest and highest values (K, n) of a channel, of which some recorded ones (K, n) may lie beyond its limits."""
    if not was.shape[1]:
        was = np.full((len(was), 1), np.nan)
    return np.fmin(limits[0], was), np.fmax(limits[1], was)


def with_laws(part: UnitPart, laws: Mapping[str, Law]) -> UnitPart:
    """The part with other laws in the worlds that are asked about, by the input that they move.

    A loop that was in manual has no law in the record; it is closed by the law that is given.
    """
    at_hand = {each.loop.moves for each in part.controllers}
    open_loops = [
        Controller(replace(loop, law=Manual()), False, 0.0, 0.0, CONSTANT if loop.target is None else RECORDED)
        for loop in part.unit.loops
        if loop.moves not in at_hand and loop.moves in laws
    ]
    known = at_hand | {loop.moves for loop in part.unit.loops}
    for name, law in laws.items():
        if name not in known:
            raise unknown_name(f"input of unit {part.unit.name!r} that a controller moves", name, tuple(sorted(known)))
        as_law(law, f"unit {part.unit.name!r}, {name!r}", OptionError)
    whole = [*part.controllers, *open_loops]
    changed = [each.supposing(laws[each.loop.moves]) if each.loop.moves in laws else each for each in whole]
    others = [caveat for caveat in part.caveats if caveat.code not in LAW_CODES]
    caveats = (*others, *controller_caveats(part.unit, changed))
    return replace(part, controllers=tuple(changed), caveats=caveats)


def supposed_laws(parts: Mapping[str, UnitPart]) -> dict[str, dict[str, Law]]:
    """The other laws that parts are supposed to follow, {unit: {input: law}}."""
    found = {
        name: {each.loop.moves: each.supposed for each in part.controllers if each.supposed is not None}
        for name, part in parts.items()
    }
    return {name: laws for name, laws in found.items() if laws}


def controllers_of(
    unit: Unit, y: FloatArray, u: FloatArray, dt: float, elsewhere: Mapping[str, FloatArray] = MappingProxyType({}),
    search: bool = True,
) -> tuple[Controller, ...]:  # fmt: skip
    """The controllers of a unit, from its own log: loops that it declares, and others that the log shows beyond doubt.

    ``elsewhere``: readings of other units that its controllers see; a loop whose reading is not there is left out.
    """
    known: list[Controller] = []
    series = {**elsewhere, **_channels(unit, y, u)}
    for loop in unit.loops:
        if loop.reads not in series:
            continue
        record = LoopRecord(series[loop.moves], series[loop.reads], series.get(loop.target or ""), dt)
        with _naming(unit, loop):
            found = learned_loop(loop, record)
        if found is not None:
            known.append(found)
    if search:
        declared = {loop.moves for loop in unit.loops} | {loop.target for loop in unit.loops if loop.target}
        known += found_loops(unit.input_names, unit.output_names, u, y, dt, declared)
    return tuple(known)


def known_controllers(task: Task, own: UnitData) -> tuple[Controller, ...]:
    """The controllers of a unit that takes part in a fit."""
    if own.controllers is not None:
        return own.controllers
    return controllers_of(own.unit, own.y, own.u, task.dt, search=task.from_logs)


def controller_caveats(unit: Unit, controllers: Sequence[Controller]) -> list[Caveat]:
    """What a unit should know of its controllers: those that were found, and loops whose law is not known."""
    out = []
    for each in controllers:
        if each.supposed is not None:
            out.append(law_supposed(unit.name, each.loop.moves, each.supposed))
        elif not each.usable:
            text = (
                f"unit {unit.name!r}: the law of the loop that moves {each.loop.moves} tells only "
                f"{100 * each.reproduced:.2g} % of what it did, so that it is not used: give the law, or its target"
            )
            out.append(Caveat("law-not-known", unit.name, text))
        elif each.nearest:
            text = (
                f"unit {unit.name!r}: {each}. No PI controller has an integral time below half a row: the law has "
                "another form, of which this is the nearest: give the law"
            )
            out.append(Caveat("law-not-pi", unit.name, text))
        elif each.learned:
            out.append(Caveat("law-learned", unit.name, f"unit {unit.name!r}: {each}"))
    known = {each.loop.moves for each in controllers}
    for loop in unit.loops:
        if loop.moves not in known:
            text = f"unit {unit.name!r}: no law was found by which {loop.moves} follows {loop.reads}; give it"
            out.append(Caveat("law-not-known", unit.name, text))
    return out
