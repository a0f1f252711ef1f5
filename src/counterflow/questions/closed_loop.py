"""The running plant: worlds in which the controllers of units answer to a change.

The server has the plant's model, a unit has its controllers' laws, and neither gives its own away. So a world is found
by waveform relaxation: the server computes what the units' states would do with the inputs as far as it knows
them, every unit answers with what its controllers would then move, and so on until nothing moves any more. Laws and
plant both look back only, so every round makes at least one more row right. A unit is told what its own inputs do to
its own states, and closes its own loops; what is left for the rounds is how the loops of different units disturb each
other, and how far the model is curved. So long stretches settle in a few rounds each; one that does not is tried in
shorter ones.

With several replicates of the model each is a world of its own, whose controllers answer to it. Of the past, worlds are
the record with its residuals; of the future there are two of each, with the change and without it, because controllers
do not stand still while nothing is changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

import numpy as np

from counterflow import wording
from counterflow.arrays import FloatArray
from counterflow.caveats import EVERYBODY, Caveat, scope_of
from counterflow.errors import CounterflowError, OptionError, PrivacyError, UnidentifiedError, UnstableError
from counterflow.plant.units import MANIPULATED, SET_POINT
from counterflow.protocol import Ask, Reaction, Trial
from counterflow.protocol.questions import HELD, REACTING

if TYPE_CHECKING:
    from counterflow.control import Law
    from counterflow.learning.model import Run
    from counterflow.questions.answering import Server

STRETCHES = (96, 24, 6)  # rows that are settled together; where that fails, fewer
MOST_ROUNDS = 72  # of one stretch
SETTLED = 1e-9  # of an input's usual movement: what counts as nothing
AWAY = 1e4  # standard deviations from where it was, beyond which a loop is called unstable
LEAD = 12  # recorded rows that laws are shown before the first of the future
PROBED = 400  # rows in which a loop is looked at, whether it settles
GROWING = 1.002  # a row, of a disturbance of a loop that does not settle
NUDGE = 1e-3  # of an input's usual movement: a disturbance so small that no limit is met
REACTING_CODE, HELD_CODE, SWITCH_CODE = "controllers-reacting", "controllers-held", "controllers-switch"
JOINT_FIT = (
    'controllers="held": in this fit, what controllers move are outputs, and its answers are those of the running '
    "plant. Fit the recording with its loops as they are to ask about held ones"
)
NO_CONTROLLERS = (
    'controllers="reacting": no controllers are known here. Declare them, cf.Unit(..., loops=[cf.Loop(moves=, reads=)])'
    ", and fit again; where nothing is declared, only loops that a unit's log shows beyond doubt are taken for such"
)
UNSTABLE = (
    "with its controllers reacting, the plant of this model does not settle: what they do makes each other's readings "
    "swing further and further. "
)
SWITCHES = (
    "a controller switches: when it does so is not certain, and single rows may be off by a whole switch. The "
    "intervals of the window's mean, of its extremes and of the share of time that it is on are narrower than those of "
    "single rows"
)


class Reactor(Protocol):
    """A unit's controllers, wherever they run."""

    @property
    def columns(self) -> tuple[int, ...]:
        """The inputs that they move."""

    @property
    def switches(self) -> bool:
        """Whether one of them is a relay."""

    @property
    def locked(self) -> tuple[int, ...]:
        """Those of them that never moved but by their controller, whose target never moved."""

    @property
    def foreign(self) -> tuple[str, ...]:
        """Readings of other units that they see, as "unit/channel"."""

    @property
    def memory(self) -> int:
        """Rows before its own that a law looks at."""

    def telemetry(self, channel: str, trial: Trial) -> FloatArray:
        """One of the unit's own readings (K n,) in a world, for a controller of another unit that sees it."""

    def react(self, trial: Trial) -> Reaction:
        """What the unit's inputs would be."""

    def supposing(self, laws: Mapping[str, Law]) -> Reactor:
        """The same controllers with other laws, by the input that they move."""


BatchAsk = Callable[[Mapping[str, Trial]], Mapping[str, Reaction]]  # asks several units in one round


def never_moved(names: str, unit: str, runs: bool = True) -> UnidentifiedError:
    """``runs``: whether questions about the running plant are answered."""
    instead = "Record"
    if runs:
        instead = 'Ask about other inputs with controllers="reacting", with the law as it is; or record'
    return UnidentifiedError(
        f"these data cannot answer this: {names}: the target never moved, and the controller alone moved its input, "
        f"so that what the input does by itself cannot be told from what its readings tell. {instead} rows in which "
        "the target, or a test signal, moves",
        code="loop-never-moved",
        scope=unit,
    )


class ClosedLoop:
    """A plant whose controllers react: the server's model, and the units' own laws.

    Parameters
    ----------
    server : the model.
    units : the controllers of every unit that has some.
    kept : a place to keep what takes long to find out, for as long as model and controllers stay the same.
    together : asks all units in one round; None: one after the other.
    silent : units whose controllers do not answer to the questions of others, so that everything is held.
    supposed : whether some of them follow another law than in the record.
    """

    def __init__(
        self, server: Server, units: Mapping[str, Reactor], kept: dict[str, bool] | None = None,
        together: BatchAsk | None = None, silent: Sequence[str] = (), supposed: bool = False,
    ) -> None:  # fmt: skip
        self.server, self.units = server, MappingProxyType(dict(units))
        self._kept: dict[str, bool] = {} if kept is None else kept
        self.together, self.silent, self.supposed = together, tuple(silent), supposed
        self._last: tuple[object, tuple[FloatArray, FloatArray, float]] | None = None
        self.reactors = {name: reactor for name, reactor in units.items() if reactor.columns}

    def moved(self) -> list[int]:
        """The columns of all inputs that controllers move."""
        slices = self.server.input_slices
        return [slices[name].start + k for name, reactor in self.reactors.items() for k in reactor.columns]

    @property
    def switches(self) -> bool:
        return any(reactor.switches for reactor in self.reactors.values())

    def reactions(self, trials: Mapping[str, Trial]) -> Mapping[str, Reaction]:
        """What units say in one round."""
        if self.together is not None:
            return self.together(trials)
        return {name: self.reactors[name].react(trial) for name, trial in trials.items()}

    # ---- held or reacting

    @cached_property
    def joint(self) -> bool:
        """Whether what controllers move are outputs here: their targets are inputs, and nothing that they move is."""
        roles = [{channel.role for channel in unit.inputs} for unit in self.server.units]
        return any(SET_POINT in each and MANIPULATED not in each for each in roles)

    def world(self, ask: Ask, moved: Mapping[str, Sequence[int]]) -> tuple[Ask, list[Caveat]]:
        """A question with the world that it is about, and what to say of that; refused where that cannot be told.

        It is what is asked for, or else the running plant where its controllers' laws are known and its model settles
        with them. ``moved``: the inputs of each unit that the question is about.
        """
        if self.joint:
            if ask.controllers == HELD:
                raise OptionError(JOINT_FIT, code="joint-fit")
            text = "controllers react: the fit is of the running plant, in which what they move are outputs"
            return replace(ask, controllers=REACTING), [Caveat(REACTING_CODE, EVERYBODY, text)]
        refusal = None if ask.controllers == HELD else self._refusal()
        if refusal is not None and ask.controllers == REACTING:
            raise refusal
        ask = replace(ask, controllers=HELD if refusal is not None else ask.controllers or REACTING)
        for name, reactor in self.reactors.items():
            locked = [k for k in reactor.locked if ask.controllers == HELD or k in moved.get(name, ())]
            self.refuse_never_moved(name, locked)
        return ask, self._caveats(ask.controllers) if self.reactors else []

    def _refusal(self) -> CounterflowError | None:
        """Why nothing is said of the running plant."""
        if not self.reactors:
            return OptionError(NO_CONTROLLERS, code="no-controllers")
        if self.silent:
            return PrivacyError(
                f'controllers="reacting": the controllers of {wording.listed(self.silent)} do not answer to questions '
                "between machines: ask for react = true below [controllers] of their policies, or ask with "
                'controllers="held"',
                code="controllers-silent",
            )
        return None if self._settles else self.unstable()

    def _caveats(self, controllers: str) -> list[Caveat]:
        """What to say of the world that an answer is about."""
        places = [(name, k) for name, each in self.reactors.items() for k in each.columns]
        names = ", ".join(f"{name} {self.server.unit(name).inputs[k].name}" for name, k in places)
        scope = scope_of(self.reactors)
        if controllers == REACTING:
            out = [Caveat(REACTING_CODE, scope, f"controllers react: they move {names} as their laws say")]
            return [*out, Caveat(SWITCH_CODE, scope, SWITCHES)] if self.switches else out
        text = (
            f"controllers are held: {names} stay as they are, whatever their readings do. In the running plant their "
            "controllers would answer"
        )
        if self.silent:
            text += f"; those of {wording.listed(self.silent)} do not answer to questions between machines"
        elif self._known_to_swing:
            text += "; with them, the plant of this model does not settle, so nothing can be said of that"
        return [Caveat(HELD_CODE, scope, text)]

    def refuse_never_moved(self, name: str, locked: Sequence[int]) -> None:
        if locked and self.server.couplings is not None:  # else the plant is known, whatever its rows tell
            names = ", ".join(f"{name} {self.server.unit(name).inputs[k].name}" for k in locked)
            raise never_moved(names, name, runs=not self._known_to_swing)

    @property
    def _settles(self) -> bool:
        if "settles" not in self._kept:
            self._kept["settles"] = self.switches or self.dies_away()
        return self._kept["settles"]

    @property
    def _known_to_swing(self) -> bool:
        """Whether it is known that the plant does not settle with its controllers; others are not asked for that."""
        return (self.together is None or "settles" in self._kept) and not self._settles

    def unstable(self) -> UnstableError:
        """With what would help: another law, other rows, or where it is answered the question with controllers held."""
        if self.supposed:
            more = "They are supposed to follow other laws than in the record: suppose a law of a lower gain, or none"
            return UnstableError(UNSTABLE + more, code="unstable-loop")
        held = "" if any(reactor.locked for reactor in self.units.values()) else 'ask with controllers="held", or '
        more = (
            f"The plant has run with them, so the model of what they move, or a law, is wrong: {held}fit rows in which "
            "targets or test signals have moved these inputs, and give the laws that are known"
        )
        return UnstableError(UNSTABLE + more, code="unstable-loop")

    def dies_away(self) -> bool:
        """Whether a small disturbance of every input that controllers move does so, by the mean of the model."""
        server = self.server
        schedule = np.zeros((PROBED, server.B.shape[1]))
        usual = server.grounded.start(None, 1, apart=False, alone=True).usual
        free = [k for k in range(server.B.shape[1]) if k not in self.moved()]
        schedule[:5, free] = NUDGE * usual[free]
        try:
            states = self.difference(schedule, None, alone=True)[0]
        except UnstableError:
            return False
        size = np.abs(states).max(axis=(0, 2))
        early, late = size[PROBED // 4 : PROBED // 2].max(), size[-PROBED // 4 :].max()
        return bool(late <= early * GROWING ** (PROBED // 2) or late == 0)

    # ---- worlds

    def difference(
        self, schedule: FloatArray, row: int | None, alone: bool = False, levers: Sequence[int] = ()
    ) -> tuple[FloatArray, FloatArray, float]:
        """What inputs ``schedule`` (n, U) do where controllers react.

        Returns states (K, n, P), all inputs (K, n, U), and the share of products at the limits of what was seen. An
        input of ``schedule`` or of ``levers`` that a controller moves is taken out of its hands.
        """
        held = {*np.flatnonzero(schedule.any(axis=0)).tolist(), *levers}
        key = (schedule.shape, schedule.tobytes(), row, alone, frozenset(held))
        if self._last is None or self._last[0] != key:  # one question about several units is one world
            self._last = key, self._computed(schedule, row, alone, held)
        return self._last[1]

    def ahead(self, added: FloatArray) -> FloatArray:
        """States (K, n, P) after the last recorded row, with ``added`` (n, U) to the last inputs; controllers react."""
        run = self.server.grounded.start(None, len(added), apart=False)
        _Worlds(self, run, added, None, set(np.flatnonzero(added.any(axis=0)).tolist())).settle()
        return run.states

    def _computed(
        self, schedule: FloatArray, row: int | None, alone: bool, held: set[int]
    ) -> tuple[FloatArray, FloatArray, float]:
        n, start = len(schedule), self.server.grounded.start
        if row is not None:
            run = start(row, n, apart=True, alone=alone)
            worlds = _Worlds(self, run, schedule, row, held)
            worlds.settle()
            return run.states, worlds.acting - worlds.base, run.limited
        with_it, without = (start(None, n, apart=False, alone=alone) for _ in range(2))
        moved, still = _Worlds(self, with_it, schedule, None, held), _Worlds(self, without, schedule * 0.0, None, held)
        moved.settle()
        still.settle()
        return with_it.states - without.states, moved.acting - still.acting, with_it.limited


class _Worlds:
    """Worlds on their way: what units are shown of them, and where their answers go.

    Row i of the question is recorded row ``origin`` + i. What an input of row i does acts on row i + 1, or on its own:
    it stands at i + 1 or at i of ``acting`` (K, n, U).
    """

    def __init__(self, loop: ClosedLoop, run: Run, schedule: FloatArray, row: int | None, held: set[int]) -> None:
        server = loop.server
        self.loop, self.server, self.reactors, self.run = loop, server, loop.reactors, run
        self.schedule, self.past, self.held = schedule, row is not None, held
        self.base = server.grounded.inputs_acting(row, len(schedule))
        self.acting = np.repeat((self.base + schedule)[None], run.worlds, axis=0)
        self.origin = len(server.u) if row is None else row
        self.lead = min(max([LEAD, *(reactor.memory for reactor in self.reactors.values())]), self.origin)
        # relays turn small errors of a reading into other switches, of which members differ too little
        error, names = server.grounded.free_run_error, server.names
        self.error = {name: error(names.index(name)) for name in self._watched()} if run.worlds > 1 else {}
        # states and inputs of rows before the first, which are recorded: of the past there is no difference yet
        rows = min(self.lead + 1, self.origin)
        self.before = np.zeros((rows, server.A.shape[0])) if self.past else server.grounded.last_states(rows)
        self.responses: dict[str, FloatArray] = {}  # of the stretch that is being settled

    def settle(self) -> None:
        """Relax, stretch by stretch, until ``acting`` and the run's states go together."""
        first, lengths = 0, list(STRETCHES)
        while first < len(self.schedule):
            last = min(first + lengths[0], len(self.schedule))
            try:
                self._settle_stretch(first, last)
            except UnstableError:  # perhaps of what was tried on the way only
                if len(lengths) == 1:
                    raise
                del lengths[0]
                continue
            first = last

    def _settle_stretch(self, first: int, last: int) -> None:
        """Ask until nothing moves any more."""
        self.responses = {}
        self._guess(first, last)
        for _ in range(MOST_ROUNDS):
            if not self.run.advance(first, last, self.acting[:, first:last]) <= AWAY:
                break
            if self._react(first, last) <= SETTLED:
                return
        raise self.loop.unstable()

    def _watched(self) -> set[str]:
        """Units in whose states a relay looks."""
        switching = {name: reactor for name, reactor in self.reactors.items() if reactor.switches}
        return {*switching, *(place.split("/", 1)[0] for each in switching.values() for place in each.foreign)}

    def _early(self, name: str) -> int:
        return int(self.server.point(name).same_row)

    def _begin(self, name: str, first: int) -> int:
        """The first row of a stretch that a unit is asked about.

        From now on, the input of the last recorded row is the first that acts, so that its controller is asked, too: a
        target that is changed in that row moves it there.
        """
        return -1 if not self.past and first == 0 and not self._early(name) else first

    def _free(self, name: str) -> list[tuple[int, int]]:
        """Inputs of a unit that its controllers move here: each among its own, and among all."""
        start = self.server.input_slices[name].start
        return [(k, start + k) for k in self.reactors[name].columns if start + k not in self.held]

    def _guess(self, first: int, last: int) -> None:
        """Begin a stretch with what controllers did last."""
        for name in self.reactors:
            known = first + 1 - self._early(name)  # rows of ``acting`` that are settled
            if 0 < known < last:
                for _, column in self._free(name):
                    gap = self.acting[:, known - 1, column] - self.base[known - 1, column]
                    self.acting[:, known:last, column] = self.base[known:last, column] + gap[:, None]

    def _react(self, first: int, last: int) -> float:
        """Ask every unit; write what it says into ``acting``; by how much that moved, in usual movements."""
        worst, places = 0.0, {name: [p.split("/", 1) for p in each.foreign] for name, each in self.reactors.items()}
        watched = [unit for seen in places.values() for unit, _ in seen]
        trials = {name: self._trial(name, first, last) for name in dict.fromkeys([*self.reactors, *watched])}
        asked = {name: trials[name] for name in self.reactors}
        for name, seen in places.items():
            if seen:
                read = [self.loop.units[unit].telemetry(channel, trials[unit]) for unit, channel in seen]
                asked[name] = replace(trials[name], foreign=np.ascontiguousarray(np.stack(read, axis=1)))
        said = self.loop.reactions(asked)
        for name, trial in asked.items():
            values = said[name].inputs.reshape(self.run.worlds, -1, trial.inputs.shape[1])[:, trial.lead :]
            level, early = self.server.point(name).input_level, self._early(name)
            to = slice(self._begin(name, first) + 1 - early, min(last + 1 - early, len(self.schedule)))
            for k, column in self._free(name):
                new = values[:, : to.stop - to.start, k]
                new = new + self.base[to, column] if self.past else new - level[k]
                change = np.abs(new - self.acting[:, to, column]) / self.run.usual[column]
                worst = max(worst, float(change[:, : last - to.start].max(initial=0.0)))
                self.acting[:, to, column] = new
        return worst if np.isfinite(worst) else np.inf

    def _trial(self, name: str, first: int, last: int) -> Trial:
        """The world so far, as one unit may see it: its own states and inputs, from some rows before the stretch on."""
        server, K, level = self.server, self.run.worlds, self.server.point(name).input_level
        own, inputs, early = server.own(name), server.input_slices[name], self._early(name)
        begin = self._begin(name, first)
        lead = min(self.lead, self.origin + begin)
        rows = np.arange(begin - lead, last)
        states = self.run.states[:, np.clip(rows, 0, None), own]
        outside = rows < 0
        states[:, outside] = self.before[rows[outside] + len(self.before), own]
        rest = np.zeros((0, states.shape[2])) if self.past else self.before[-1:, own]
        if self.error.get(name):  # a relay multiplies the model's error, so every world has a share of it
            from_here = 0.0 if self.past else rest[0]
            states = from_here + (states - from_here) * (1 + self.error[name] * _shares(K))[:, None, None]
        at = rows + 1 - early
        given = self.schedule[np.clip(at, 0, len(self.schedule) - 1), inputs] * (at >= 0)[:, None]
        there = np.clip(at, 0, self.acting.shape[1] - 1)
        base = self.base[there, inputs]
        if self.past:
            values = np.repeat(given[None], K, axis=0)
            done = self.acting[:, there, inputs] - base
            done[:, at < 0] = 0.0
        else:
            u = server.u[np.clip(self.origin + rows - early, 0, len(server.u) - 1), inputs]
            values = np.repeat((np.where((at >= 0)[:, None], base, u) + given)[None], K, axis=0) + level
            done = self.acting[:, there, inputs] + level
            done[:, at < 0] = u[at < 0] + level
        moved = list(self.reactors[name].columns) if name in self.reactors else []
        for k in moved:  # what controllers did before the stretch
            values[:, rows < begin, k] = done[:, rows < begin, k]
        stays = ",".join(str(k - inputs.start) for k in sorted(self.held) if inputs.start <= k < inputs.stop)
        return Trial(
            name, self.origin + begin, self.past, lead, K, stays, _stacked(states), _stacked(values),
            np.zeros((K * len(rows), 0)), np.ascontiguousarray(rest),
            *((_stacked(done[:, :, moved]), self._response(name, first, last)) if moved else ()),
        )  # fmt: skip

    def _response(self, name: str, first: int, last: int) -> FloatArray:
        """What every input of a unit that controllers move does to its own states in the rows after its own."""
        if name not in self.responses:
            own, start, early = self.server.own(name), self.server.input_slices[name].start, self._early(name)
            found = [
                self.run.response(first, last - first + early, start + k)[:, early:, own]
                for k in self.reactors[name].columns
            ]
            self.responses[name] = _stacked(np.concatenate(found, axis=2))
        return self.responses[name]


def _shares(worlds: int) -> FloatArray:
    """One number for each world (K,), like draws of a standard normal, but with mean zero and spread one."""
    from scipy.special import ndtri

    drawn = ndtri((np.arange(worlds) + 0.5) / worlds)
    return np.asarray(np.random.default_rng(worlds).permutation(drawn / drawn.std()))


def _stacked(worlds: FloatArray) -> FloatArray:
    """(K n, columns) of (K, n, columns)."""
    return np.ascontiguousarray(worlds.reshape(worlds.shape[0] * worlds.shape[1], worlds.shape[2]))
