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
from typing import TYPE_CHECKING, Protocol

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import UnidentifiedError, UnstableError
from counterflow.protocol import Reaction, Trial

if TYPE_CHECKING:
    from counterflow.control import Law
    from counterflow.learning.model import Run
    from counterflow.questions.server_model import ServerModel

STRETCHES = (96, 24, 6)  # rows that are settled together; where that fails, fewer
MOST_ROUNDS = 72  # of one stretch
SETTLED = 1e-9  # of an input's usual movement: what counts as nothing
AWAY = 1e4  # standard deviations from where it was, beyond which a loop is called unstable
LEAD = 12  # recorded rows that laws are shown before the first of the future
PROBED = 400  # rows in which a loop is looked at, whether it settles
GROWING = 1.002  # a row, of a disturbance of a loop that does not settle
NUDGE = 1e-3  # of an input's usual movement: a disturbance so small that no limit is met


class Reactor(Protocol):
    """A unit's controllers, wherever they run."""

    @property
    def columns(self) -> tuple[int, ...]:
        """The inputs that they move."""
        ...

    @property
    def switches(self) -> bool:
        """Whether one of them is a relay."""
        ...

    @property
    def locked(self) -> tuple[int, ...]:
        """Those of them that never moved but by their controller, whose target never moved."""
        ...

    @property
    def foreign(self) -> tuple[str, ...]:
        """Readings of other units that they see, as "unit/channel"."""
        ...

    def telemetry(self, channel: str, trial: Trial) -> FloatArray:
        """One of the unit's own readings (K n,) in a world, for a controller of another unit that sees it."""
        ...

    @property
    def memory(self) -> int:
        """Rows before its own that a law looks at."""
        ...

    def react(self, trial: Trial) -> Reaction:
        """What the unit's inputs would be."""
        ...

    def supposing(self, laws: Mapping[str, Law]) -> Reactor:
        """The same controllers with other laws, by the input that they move."""
        ...


BatchAsk = Callable[[Mapping[str, Trial]], Mapping[str, Reaction]]  # asks several units in one round


def unstable(server: ServerModel) -> UnstableError:
    """With what would help: another law, other rows, or where it is answered the question with controllers held."""
    text = (
        "with its controllers reacting, the plant of this model does not settle: what they do makes each other's "
        "readings swing further and further. "
    )
    if server.supposed:
        text += "They are supposed to follow other laws than in the record: suppose a law of a lower gain, or none"
    else:
        text += "The plant has run with them, so the model of what they move, or a law, is wrong: "
        if not any(reactor.locked for reactor in server.reactors.values()):
            text += 'ask with controllers="held", or '
        text += "fit rows in which targets or test signals have moved these inputs, and give the laws that are known"
    return UnstableError(text, code="unstable-loop")


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
    """A plant whose controllers react: the server's model, and the units' own laws."""

    def __init__(self, server: ServerModel, reactors: Mapping[str, Reactor], together: BatchAsk | None = None) -> None:
        self.server, self._together = server, together
        self._last: tuple[object, tuple[FloatArray, FloatArray, float]] | None = None
        self.reactors = {name: reactor for name, reactor in reactors.items() if reactor.columns}

    def moved(self) -> list[int]:
        """The columns of all inputs that controllers move."""
        slices = self.server.input_slices
        return [slices[name].start + k for name, reactor in self.reactors.items() for k in reactor.columns]

    @property
    def switches(self) -> bool:
        return any(reactor.switches for reactor in self.reactors.values())

    def reactions(self, trials: Mapping[str, Trial]) -> Mapping[str, Reaction]:
        """What units say in one round."""
        if self._together is not None:
            return self._together(trials)
        return {name: self.reactors[name].react(trial) for name, trial in trials.items()}

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
        self._settle(run, added, None, set(np.flatnonzero(added.any(axis=0)).tolist()))
        return run.states

    def _computed(
        self, schedule: FloatArray, row: int | None, alone: bool, held: set[int]
    ) -> tuple[FloatArray, FloatArray, float]:
        n, start = len(schedule), self.server.grounded.start
        if row is not None:
            run = start(row, n, apart=True, alone=alone)
            acting = self._settle(run, schedule, row, held)
            return run.states, acting - self.server.grounded.inputs_acting(row, n), run.limited
        with_it, without = (start(None, n, apart=False, alone=alone) for _ in range(2))
        moved = self._settle(with_it, schedule, None, held)
        still = self._settle(without, np.zeros_like(schedule), None, held)
        return with_it.states - without.states, moved - still, with_it.limited

    def _settle(self, run: Run, schedule: FloatArray, row: int | None, held: set[int]) -> FloatArray:
        """Relax, stretch by stretch; the inputs (K, n, U) that act on the rows then."""
        n = len(schedule)
        base = self.server.grounded.inputs_acting(row, n)
        acting = np.repeat((base + schedule)[None], run.worlds, axis=0)
        worlds = _Worlds(self, run, acting, base, schedule, row, held)
        first, rows = 0, STRETCHES[0]
        while first < n:
            last = min(first + rows, n)
            try:
                self._settle_stretch(worlds, first, last)
            except UnstableError:  # perhaps of what was tried on the way only
                if rows == STRETCHES[-1]:
                    raise
                rows = STRETCHES[STRETCHES.index(rows) + 1]
                continue
            first = last
        return acting

    def _settle_stretch(self, worlds: _Worlds, first: int, last: int) -> None:
        """Ask until nothing moves any more."""
        worlds.guess(first, last)
        for _ in range(MOST_ROUNDS):
            if not worlds.run.advance(first, last, worlds.acting[:, first:last]) <= AWAY:
                break
            if worlds.react(first, last) <= SETTLED:
                return
        raise unstable(self.server)


class _Worlds:
    """Worlds on their way: what units are shown of them, and where their answers go.

    Row i of the question is recorded row ``origin`` + i. What an input of row i does acts on row i + 1, or on its own:
    it stands at i + 1 or at i of ``acting``.
    """

    def __init__(
        self, running: ClosedLoop, run: Run, acting: FloatArray, base: FloatArray,
        schedule: FloatArray, row: int | None, held: set[int],
    ) -> None:  # fmt: skip
        self.running, self.server, self.reactors = running, running.server, running.reactors
        self.run, self.acting, self.base, self.schedule = run, acting, base, schedule
        self.past, self.held = row is not None, held
        self.origin = len(self.server.u) if row is None else row
        self.lead = min(max([LEAD, *(reactor.memory for reactor in self.reactors.values())]), self.origin)
        # relays turn small errors of a reading into other switches, of which members differ too little
        error, names = self.server.grounded.free_run_error, self.server.names
        self.error = {name: error(names.index(name)) for name in self._watched()} if self.run.worlds > 1 else {}
        # states and inputs of rows before the first, which are recorded: of the past there is no difference yet
        rows = min(self.lead + 1, self.origin)
        self.before = np.zeros((rows, self.server.A.shape[0])) if self.past else self.server.grounded.last_states(rows)
        self.responses: dict[str, tuple[tuple[int, int], FloatArray]] = {}

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

    def guess(self, first: int, last: int) -> None:
        """Begin a stretch with what controllers did last."""
        for name, reactor in self.reactors.items():
            known = first + 1 - self._early(name)  # rows of ``acting`` that are settled
            for k in reactor.columns:
                column = self.server.input_slices[name].start + k
                if column not in self.held and 0 < known < last:
                    gap = self.acting[:, known - 1, column] - self.base[known - 1, column]
                    self.acting[:, known:last, column] = self.base[known:last, column] + gap[:, None]

    def react(self, first: int, last: int) -> float:
        """Ask every unit; write what it says into ``acting``; by how much that moved, in usual movements."""
        n, worst = len(self.schedule), 0.0
        foreign = [place.split("/", 1)[0] for reactor in self.reactors.values() for place in reactor.foreign]
        trials = {name: self.trial(name, first, last) for name in dict.fromkeys([*self.reactors, *foreign])}
        asked = {}
        for name, reactor in self.reactors.items():
            asked[name] = trials[name]
            if reactor.foreign:
                places = [place.split("/", 1) for place in reactor.foreign]
                seen = [self.server.reactors[other].telemetry(channel, trials[other]) for other, channel in places]
                asked[name] = replace(trials[name], foreign=np.ascontiguousarray(np.stack(seen, axis=1)))
        said = self.running.reactions(asked)
        for name, reactor in self.reactors.items():
            trial = asked[name]
            values = said[name].inputs.reshape(self.run.worlds, -1, trial.inputs.shape[1])[:, trial.lead :]
            point, early = self.server.point(name), self._early(name)
            to = slice(self._begin(name, first) + 1 - early, min(last + 1 - early, n))
            for k in reactor.columns:
                column = self.server.input_slices[name].start + k
                if column in self.held:
                    continue
                new = values[:, : to.stop - to.start, k]
                new = new + self.base[to, column] if self.past else new - point.input_level[k]
                change = np.abs(new - self.acting[:, to, column]) / self.run.usual[column]
                worst = max(worst, float(change[:, : last - to.start].max(initial=0.0)))
                self.acting[:, to, column] = new
        return worst if np.isfinite(worst) else np.inf

    def trial(self, name: str, first: int, last: int) -> Trial:
        """The world so far, as one unit may see it: its own states and inputs, from some rows before the stretch on."""
        server, K, point = self.server, self.run.worlds, self.server.point(name)
        own, inputs, early = server.own(name), server.input_slices[name], self._early(name)
        begin = self._begin(name, first)
        lead = min(self.lead, self.origin + begin)
        rows = np.arange(begin - lead, last)
        inside = np.clip(rows, 0, None)
        states = self.run.states[:, inside, own]
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
            values = np.repeat((np.where((at >= 0)[:, None], base, u) + given)[None], K, axis=0) + point.input_level
            done = self.acting[:, there, inputs] + point.input_level
            done[:, at < 0] = u[at < 0] + point.input_level
        settled = rows < begin
        moved = list(self.reactors[name].columns) if name in self.reactors else []
        for k in moved:  # what controllers did before the stretch
            values[:, settled, k] = done[:, settled, k]
        stays = ",".join(str(k - inputs.start) for k in sorted(self.held) if inputs.start <= k < inputs.stop)
        return Trial(
            name, self.origin + begin, self.past, lead, K, stays, _stacked(states), _stacked(values),
            np.zeros((K * len(rows), 0)), np.ascontiguousarray(rest),
            *((_stacked(done[:, :, moved]), self._response(name, first, last)) if moved else ()),
        )  # fmt: skip

    def _response(self, name: str, first: int, last: int) -> FloatArray:
        """What every input of a unit that controllers move does to its own states in the rows after its own."""
        if self.responses.get(name, (None,))[0] != (first, last):
            own, start, early = self.server.own(name), self.server.input_slices[name].start, self._early(name)
            found = [
                self.run.response(first, last - first + early, start + k)[:, early:, own]
                for k in self.reactors[name].columns
            ]
            self.responses[name] = (first, last), _stacked(np.concatenate(found, axis=2))
        return self.responses[name][1]


def _shares(worlds: int) -> FloatArray:
    """One number for each world (K,), like draws of a standard normal, but with mean zero and spread one."""
    from scipy.special import ndtri

    drawn = ndtri((np.arange(worlds) + 0.5) / worlds)
    return np.asarray(np.random.default_rng(worlds).permutation(drawn / drawn.std()))


def _stacked(worlds: FloatArray) -> FloatArray:
    """(K n, columns) of (K, n, columns)."""
    return np.ascontiguousarray(worlds.reshape(worlds.shape[0] * worlds.shape[1], worlds.shape[2]))


def settles(running: ClosedLoop) -> bool:
    """Whether a small disturbance of every input that controllers move dies away, by the mean of the model."""
    server = running.server
    schedule = np.zeros((PROBED, server.B.shape[1]))
    usual = server.grounded.start(None, 1, apart=False, alone=True).usual
    free = [k for k in range(server.B.shape[1]) if k not in running.moved()]
    schedule[:5, free] = NUDGE * usual[free]
    try:
        states = running.difference(schedule, None, alone=True)[0]
    except UnstableError:
        return False
    size = np.abs(states).max(axis=(0, 2))
    early, late = size[PROBED // 4 : PROBED // 2].max(), size[-PROBED // 4 :].max()
    return bool(late <= early * GROWING ** (PROBED // 2) or late == 0)


def names_of(reactors: Mapping[str, Reactor], server: ServerModel) -> Sequence[str]:
    """ "boiler valve", ... of all inputs that controllers move."""
    return [f"{name} {server.unit(name).inputs[k].name}" for name, each in reactors.items() for k in each.columns]
