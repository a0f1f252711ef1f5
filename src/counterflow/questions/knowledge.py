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
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray, slices
from counterflow.caveats import EVERYBODY, Caveat, scope_of, to_text
from counterflow.errors import DataError, OptionError, PrivacyError, UnidentifiedError, UnstableError
from counterflow.estimation.completion import filled
from counterflow.estimation.information import positions
from counterflow.estimation.likelihood import SharedRecord
from counterflow.estimation.ways import Regime, since
from counterflow.filtering import rts_smoother
from counterflow.plant.operating_point import OperatingPoint
from counterflow.plant.units import MANIPULATED, SET_POINT, PublicUnit, unit_named
from counterflow.protocol import Answer, Ask, Change, Message
from counterflow.protocol.questions import CAVEATS_LIMIT, HELD, NO_LIMIT, REACTING
from counterflow.questions.running import Reactor, Running, names_of, settles, unstable
from counterflow.questions.sensitivity import Memory, Spread, driven_by

if TYPE_CHECKING:
    from counterflow.estimation.network import Network
    from counterflow.methods.outcome import Couplings

Watch = Callable[[Message, bool], None]
FAR = 2.0  # times the range seen in the data, beyond which a change is called far
OVERFLOWING = 1e6  # growth over the horizon beyond which an unstable estimate says nothing
DOUBTFUL = 0.15  # squared error over squared effect that is to be expected: beyond, an answer says so
UNNOTICED = 0.3  # standard deviations over the root of the rows: what a fit from logs may be off without noticing,
MISSED = 3.0  # and what it may have missed where no replicate has found an effect
TOO_FAR = 1e4  # standard deviations that an input of a fit from logs may be moved
NOT_FOUND = Caveat(
    "effect-not-found", EVERYBODY,
    "no sign of this effect was found in these rows; the interval says how large it could be and be missed",
)  # fmt: skip
RAISED = 0.2  # of the range seen, by which inputs are held higher to see what one of them does
EXTRAPOLATION = "extrapolation"
RECORDED = "recorded"  # share of an answer that tells what the states were in rows that were not measured
REPLICATES = "replicates"  # share of an answer: what every replicate says, one below the other
REACTIONS = "reactions"  # share of an answer: what the asking unit's own inputs do, by replicate
NEAR = 300  # rows before and after them that are looked at
GUESSES = 12  # draws of what a network has not seen
MOSTLY = 0.99  # of the readings, that must be alike in rows that are the same
OFTEN_LIMITED = 0.05  # share of products at the limits of what was seen, beyond which an answer says so
BEYOND_SEEN = Caveat(
    "curvature-limited", EVERYBODY,
    "part of this answer lies beyond what was seen: there the fit's curvature is held as it is at the edge",
)  # fmt: skip


def doubtful_answer(doubt: float) -> Caveat:
    """Of an effect that is not known well; ``doubt``: squared error over squared effect that is to be expected."""
    told = f"may be as low as {1 - doubt:.1f}" if doubt < 0.95 else "may be nothing"
    text = f"this effect is hardly known: by what these rows tell, the answer's R² {told}; read its interval"
    return Caveat("doubtful-answer", EVERYBODY, text)


def far_change(names: Sequence[str]) -> Caveat:
    """Of changes beyond anything that the data have shown."""
    text = f"inputs of {', '.join(names)} would move more than {FAR:g} times the range seen in the data: extrapolation"
    return Caveat(EXTRAPOLATION, EVERYBODY, text)


def part_of(ask: Ask, mean: FloatArray, covariance: FloatArray | None = None, share: str = "") -> Answer:
    """One part of an answer, of states ``mean`` (n, P_m)."""
    none = np.zeros((0, mean.shape[1]))
    rows = np.ascontiguousarray(mean)
    return Answer(ask.unit, ask.kind, share, "", rows, none if covariance is None else covariance)


def with_caveats(parts: Sequence[Answer], caveats: Sequence[Caveat]) -> tuple[Answer, ...]:
    """The same answer, to be read with these caveats, too; its first part carries them."""
    first, *others = parts
    whole = [*first.noted, *caveats]
    while len(text := to_text(whole)) > CAVEATS_LIMIT:
        whole.pop()
    return (replace(first, caveats=text), *others) if caveats else tuple(parts)


@dataclass(frozen=True)
class Knowledge:
    """The server's part of a fit: the couplings, and the rows that questions about the past refer to."""

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
    reactors: Mapping[str, Reactor] = field(init=False, repr=False, compare=False, default_factory=dict)

    def running(self, reactors: Mapping[str, Reactor], kept: dict[str, bool] | None = None) -> Self:
        """The same with the units' controllers at hand: questions about the running plant can be answered.

        ``kept``: a place to keep what takes long to find out, for as long as model and controllers stay the same.
        """
        out = copy(self)
        out.__dict__["_kept"] = {} if kept is None else kept
        out.__dict__.pop("running_plant", None)
        object.__setattr__(out, "reactors", MappingProxyType(dict(reactors)))
        return out

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

    # ---- what the rows say

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
        return np.zeros((1, self.B.shape[1])) if self.shared is None else self.shared.u

    @cached_property
    def states(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Smoothed states (T+1, P) of the recorded rows; mean (P,) and covariance (P, P) of the last, filtered."""
        P = self.A.shape[0]
        if self.shared is None:
            return np.zeros((1, P)), np.zeros(P), np.zeros((P, P))
        filtered = self.shared.filter(self.A, self.B, self.Q)
        return rts_smoother(filtered, self.A).smoothed, filtered.final_mean, filtered.final_covariance

    @cached_property
    def seen(self) -> FloatArray:
        """Range (U,) of each input in the recorded rows, of a fit from logs in those that it was learned from.

        Zero if nothing is recorded.
        """
        network = self.network
        if network is not None:  # it has seen rows that are no longer kept, and that no recording asked about holds
            return np.asarray(((network.high - network.low) * network.scale)[network.size :])
        return np.asarray(np.ptp(self.u, axis=0))

    @cached_property
    def radius(self) -> float:
        """Spectral radius of A."""
        return float(np.abs(np.linalg.eigvals(self.A)).max())

    @cached_property
    def spread(self) -> Spread | None:
        """How far the couplings may be off."""
        if self.couplings is None or self.couplings.spread is None:
            return None
        rows, columns = positions(self.couplings.spread.parameters)
        root = self.couplings.spread.root
        return Spread(rows, columns, root[:, root.any(axis=0)])

    @cached_property
    def memory(self) -> Memory:
        """Of schedules that were asked about before."""
        return Memory()

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
        return with_caveats(found, self.leaving_limits(changes))

    @property
    def network(self) -> Network | None:
        """Of a fit from logs."""
        return None if self.couplings is None else self.couplings.network

    @cached_property
    def regimes(self) -> tuple[Regime, ...]:
        """Ways of running of the recorded rows; empty if there is one, or if these are not the fitted rows.

        Rows that follow the fitted ones go on as these ended.
        """
        couplings = self.couplings
        if couplings is None or not couplings.regimes or self.shared is None:
            return ()
        if self.shared is couplings.shared:
            return couplings.regimes
        rows, kept = len(self.numbers), [each for each in couplings.regimes if each.start < len(self.numbers)]
        if not self._begins_with(couplings.shared):
            return ()
        return (*kept[:-1], replace(kept[-1], stop=rows))

    def _begins_with(self, fitted: SharedRecord) -> bool:
        """Whether the recorded rows are those of the fit, with others behind them or the last ones cut off."""
        assert self.network is not None
        mine, theirs = self.numbers, replace(self, shared=fitted).numbers
        n = min(len(mine), len(theirs))
        u, v = self.u[:n], fitted.u[:n]
        if not np.allclose(u[:-1], v[:-1]):  # the input of the last row may not be known yet
            return False
        one, two = (self.network.standard(numbers[:n], u) for numbers in (mine, theirs))
        both = np.isfinite(one) & np.isfinite(two)
        return bool(both.any() and np.isclose(one, two, rtol=1e-6, atol=1e-6)[both].mean() > MOSTLY)

    @property
    def present(self) -> Self:
        """The same with the rows since the last change only."""
        if not self.regimes or self.shared is None:
            return self
        return replace(self, shared=self.shared.last(self.regimes[-1].stop - since(self.regimes)))

    @cached_property
    def number_states(self) -> NDArray[np.intp]:
        """Which states are the numbers that units have sent, of a fit from logs: the first ones of each unit."""
        assert self.network is not None
        counts = zip(self.network.names, self.network.numbers, strict=True)
        return np.concatenate([self.own(name).start + np.arange(count) for name, count in counts])

    @cached_property
    def numbers(self) -> FloatArray:
        """Numbers (T+1, r) that units have sent of the recorded rows, of a fit from logs; NaN: missing.

        They are, too, where so many channels are missing that the others do not determine them.
        """
        assert self.shared is not None
        assert self.network is not None
        counts = zip(self.shared.states, self.network.numbers, strict=True)
        return self.shared.readings([np.eye(states)[:count] for states, count in counts])[0]

    def values_of(self, numbers: FloatArray) -> FloatArray:
        """Messages (n, r) as the recorded ones, of numbers (n, r): the inverse of ``numbers``."""
        assert self.shared is not None
        assert self.network is not None
        out = np.empty_like(numbers)
        for rows, own in zip(self.shared.observation_slices, self.network.number_slices, strict=True):
            out[:, rows] = numbers[:, own] @ self.shared.observation[rows, self.number_states[own]].T
        return out

    def newest(self, rows: int) -> FloatArray:
        """The newest recorded rows (rows, m) in the units' own terms; what is missing as the network sees it."""
        assert self.network is not None
        return np.asarray(self.standard_rows[-rows:] * self.network.scale + self.network.level)

    @cached_property
    def standard_rows(self) -> FloatArray:
        """Recorded rows as the network takes them (T+1, m); numbers that were not measured are as it sees them."""
        assert self.network is not None
        return filled(self.network, self.network.standard(self.numbers, self.u))

    @property
    def drawn_rows(self) -> FloatArray:
        """The same with numbers that were not measured drawn, so that all residuals are of their usual size."""
        assert self.network is not None
        return filled(self.network, self.network.standard(self.numbers, self.u), np.random.default_rng(0))

    def recorded(self, ask: Ask) -> Answer | None:
        """States of the unit in recorded rows, with their covariance; None where everything was measured."""
        shared, own, rows = self.shared, self.own(ask.unit), self.window(ask)
        assert shared is not None
        if np.isfinite(shared.values[rows, shared.observation_slices[self.names.index(ask.unit)]]).all():
            return None
        near = slice(max(rows.start - NEAR, 0), min(rows.stop + NEAR, self.rows))
        inside = slice(rows.start - near.start, rows.stop - near.start)
        if self.network is None:
            first = None if near.start else shared.initial_mean
            part = replace(shared, values=shared.values[near], u=shared.u[near], initial_mean=first)
            smoothed = rts_smoother(part.filter(self.A, self.B, self.Q), self.A, self.Q, covariances=True)
            assert smoothed.covariance is not None
            covariance = smoothed.covariance[inside, own, own]
            return part_of(ask, smoothed.smoothed[inside, own], covariance.reshape(-1, covariance.shape[2]), RECORDED)
        z, r, rng = self.network.standard(self.numbers[near], self.u[near]), self.network.size, np.random.default_rng(0)
        draws = np.array([filled(self.network, z, rng)[inside, :r] for _ in range(GUESSES)]) * self.network.scale[:r]
        mean, spread = np.zeros((rows.stop - rows.start, len(self.A))), np.zeros((rows.stop - rows.start, len(self.A)))
        mean[:, self.number_states] = self.standard_rows[rows, :r] * self.network.scale[:r] + self.network.level[:r]
        spread[:, self.number_states] = draws.var(axis=0, ddof=1)
        blocks = spread[:, own, None] * np.eye(own.stop - own.start)
        return part_of(ask, mean[:, own], blocks.reshape(-1, own.stop - own.start), RECORDED)

    def before(self, row: int) -> FloatArray:
        """Standardised rows (memory, m) before a recorded row; before the record began, its first one."""
        assert self.network is not None
        there = self.standard_rows[max(row - self.network.memory, 0) : row]
        return np.vstack([np.repeat(self.standard_rows[:1], self.network.memory - len(there), axis=0), there])

    def worlds_apart(
        self, schedule: FloatArray, row: int | None = None, still: Sequence[str] = ()
    ) -> tuple[FloatArray, float]:
        """What inputs ``schedule`` (n, U) do to all states, by replicate of the network (K, n, P).

        ``row``: the recorded row that the first row of the answer is; None: it follows the last recorded one, in whose
        inputs nothing changes but what is added. Also the share of products at the limits of what was seen.
        """
        network = self.network
        assert network is not None
        n, r = len(schedule), network.size
        self._refuse_far(schedule)
        rows = self.standard_rows
        if row is None:
            inputs = np.tile(rows[-1, r:], (n, 1))
            found, limited = network.difference(self.before(len(rows)), inputs, schedule, None, still)
        else:
            found, limited = self._apart_then(schedule, row, still)
        out = np.zeros((len(found), n, self.A.shape[0]))
        out[:, :, self.number_states] = found
        return out, limited

    def _refuse_far(self, schedule: FloatArray) -> None:
        if self.network is None:
            return
        moved = np.abs(schedule).max(axis=0, initial=0.0) / self.network.scale[self.network.size :]
        if not (moved <= TOO_FAR).all():
            raise DataError(
                f"the change is {moved.max():.3g} times the usual movement of an input: nothing is known so far away; "
                "give a smaller one"
            )

    def last_states(self, rows: int) -> FloatArray:
        """States (rows, P) of the last recorded rows: of a fit from logs its numbers, in the units' own terms."""
        if self.network is None:
            return self.states[0][-rows:]
        r, out = self.network.size, np.zeros((rows, self.A.shape[0]))
        out[:, self.number_states] = self.standard_rows[-rows:, :r] * self.network.scale[:r] + self.network.level[:r]
        return out

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

    def difference(self, schedule: FloatArray, ask: Ask, row: int | None = None) -> tuple[Answer, ...]:
        """What inputs ``schedule`` (n, U) do, with its covariance; ``row``: see ``worlds_apart``."""
        own = self.own(ask.unit)
        if ask.controllers == REACTING and self.running_plant.reactors:
            return self._running_difference(schedule, ask, row)
        if self.network is not None:
            found, limited = self.worlds_apart(schedule, row)
            refuse_overflow(found)
            mean, covariance = spread_of_replicates(found[:, :, own], self.network.widening)
            covariance = self._at_least(covariance, schedule, ask.unit, found[:, :, own])
            caveats = self.far(schedule) + ([BEYOND_SEEN] if limited > OFTEN_LIMITED else [])
            return with_caveats([part_of(ask, mean, covariance)], [*caveats, *self.doubts_of(found, ask.unit)])
        response, _ = driven_by(self.A, self.B, schedule)
        covariance = self.memory.covariance(self.A, self.B, self.spread, schedule, own)
        refuse_overflow(response, covariance)
        return with_caveats([part_of(ask, response[:, own], covariance)], self.far(schedule))

    def _running_difference(self, schedule: FloatArray, ask: Ask, row: int | None) -> tuple[Answer, ...]:
        """The same where controllers react; the parts after the first are every replicate, and the unit's own inputs.

        Of uncertain couplings the first replicate is the estimate, and the others vary about it.
        """
        own, inputs = self.own(ask.unit), self.input_slices[ask.unit]
        self._refuse_far(schedule)
        found, moved, limited = self.running_plant.difference(schedule, row)
        refuse_overflow(found)
        mine = found[:, :, own]
        caveats = self.far(schedule)
        if self.network is not None:
            mean, covariance = spread_of_replicates(mine, self.network.widening)
            covariance = self._at_least(covariance, schedule, ask.unit, mine)
            caveats = [*caveats, *([BEYOND_SEEN] if limited > OFTEN_LIMITED else []), *self.doubts_of(found, ask.unit)]
            worlds, widening = mine, self.network.widening
        else:
            mean, worlds, widening = mine[0], mine, 1.0
            covariance = np.zeros((0, mean.shape[1]))
            if len(mine) > 1:
                worlds, moved = mine[1:], moved[1:]
                gaps = (worlds - mean) / np.sqrt(len(worlds))
                covariance = np.einsum("kni,knj->nij", gaps, gaps).reshape(-1, mean.shape[1])
        wide = mean + widening * (worlds - mean)
        parts = [part_of(ask, mean, covariance)]
        parts.append(part_of(ask, wide.reshape(-1, mean.shape[1]), share=REPLICATES))
        if inputs.stop > inputs.start:
            answered = moved[:, :, inputs]
            parts.append(part_of(ask, answered.reshape(-1, answered.shape[2]), share=REACTIONS))
        return with_caveats(parts, caveats)

    # ---- held or reacting

    @cached_property
    def running_plant(self) -> Running:
        """The plant with the controllers that are at hand."""
        return Running(self, self.reactors)

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
        if not self._settles:
            if asked:
                raise unstable()
            return HELD
        return REACTING

    @property
    def _settles(self) -> bool:
        kept: dict[str, bool] = self.__dict__["_kept"]
        if "settles" not in kept:
            kept["settles"] = self.running_plant.switches or settles(self.running_plant)
        return kept["settles"]

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
            if not self._settles:
                text += "; with them, the plant of this model does not settle, so nothing can be said of that"
            return [Caveat("controllers-held", scope, text)]
        out = [Caveat("controllers-reacting", scope, f"controllers react: they move {names} as their readings ask for")]
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

    def doubts_of(self, found: FloatArray, unit: str) -> list[Caveat]:
        """What to say of an effect on a unit, by replicate (K, n, P), that is hardly known."""
        assert self.network is not None
        part = found[:, :, self.own(unit)]
        if not part.any():
            return [NOT_FOUND]
        doubt = self.network.doubt(part)
        return [doubtful_answer(doubt)] if doubt > DOUBTFUL else []

    def _at_least(self, covariance: FloatArray, schedule: FloatArray, unit: str, found: FloatArray) -> FloatArray:
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

    def held(self, column: int, steps: int, controllers: str = HELD) -> FloatArray:
        """What input ``column``, held one higher from now on, does to all states (steps, P).

        Of a curved network, and where controllers react: what a fifth of the range seen would do, in proportion.
        """
        schedule = np.zeros((steps, self.B.shape[1]))
        if controllers == REACTING and self.running_plant.reactors:
            size = RAISED * float(self.seen[column]) or 1.0
            schedule[:, column] = size
            return self.apart(schedule, None, REACTING) / size
        if self.network is None:
            schedule[:, column] = 1.0
            return driven_by(self.A, self.B, schedule)[0]
        size = RAISED * float(self.seen[column]) or 1.0
        schedule[:, column] = size
        return np.asarray(self.worlds_apart(schedule)[0].mean(axis=0) / size)

    def apart(self, schedule: FloatArray, row: int | None, controllers: str) -> FloatArray:
        """What inputs ``schedule`` (n, U) do to all states (n, P) in one of the two worlds, without its uncertainty."""
        if controllers == REACTING and self.running_plant.reactors:
            found = self.running_plant.difference(schedule, row)[0]
            return np.asarray(found[0] if self.network is None else found.mean(axis=0))
        if self.network is None:
            return driven_by(self.A, self.B, schedule)[0]
        return np.asarray(self.worlds_apart(schedule, row)[0].mean(axis=0))

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
        size = float(self.seen[column])
        low, high = self.unit(name).inputs[channel].limits or (-np.inf, np.inf)
        width = high - low if np.isfinite(high - low) else 1.0
        return max(low - last, -NO_LIMIT), min(high - last, NO_LIMIT), size or width

    # ---- what an answer must be read with

    def without_interval(self, parts: Sequence[Answer]) -> list[Caveat]:
        """Of a fit that could have given an interval."""
        if self.couplings is None or len(parts[0].covariance):
            return []
        text = "standard errors were not computed for this fit, so there is no interval"
        return [Caveat("no-interval", EVERYBODY, text)]

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
            source = self.unit(change.cause)
            for k in change.moved:
                down, up, _ = self.headroom(change.cause, k)
                if change.values[:, k].min() < down or change.values[:, k].max() > up:
                    low, high = source.inputs[k].limits or (-np.inf, np.inf)
                    names.append(f"{change.cause} {source.inputs[k].name} ({low:g} to {high:g})")
        text = f"from where they last were, these inputs would leave their limits: {', '.join(names)}"
        return [Caveat("leaving-limits", EVERYBODY, text)] if names else []

    # ---- what is refused

    def refuse_doubtful(self, change: Change, moved: Sequence[int]) -> None:
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
                raise UnidentifiedError(f"not to be told from these data. {doubt}", scope=doubt.scope)

    def refuse_locked(self, moved: Mapping[str, Sequence[int]], controllers: str) -> None:
        """Where a controller's target never moved, what its input does by itself is not in the rows."""
        for name, reactor in self.running_plant.reactors.items():
            locked = [k for k in reactor.locked if controllers == HELD or k in moved.get(name, ())]
            if locked:
                names = ", ".join(f"{name} {self.unit(name).inputs[k].name}" for k in locked)
                raise UnidentifiedError(
                    f"not to be told from these data: {names} moved by its controller alone, whose target never moved, "
                    "so that what it does by itself cannot be told from what its readings tell. Ask about other "
                    'inputs with controllers="reacting"; or record rows in which the target, or a test signal, moves',
                    code="loop-never-moved",
                    scope=name,
                )

    @cached_property
    def has_rows(self) -> bool:
        """Whether anything is known of the recorded rows besides inputs; units may have sent moments alone."""
        if self.couplings is None or not self.couplings.of_moments or self.shared is None:
            return True
        return bool(np.isfinite(self.shared.values).any())

    def refuse_without_rows(self, kind: str) -> None:
        """PrivacyError if a question needs rows, and units have sent moments of them alone."""
        if not self.has_rows:
            raise PrivacyError(
                f"{kind}: this fit rests on moments, and the server knows no row of the period that is asked about. "
                "Ask for effects, which need none; or fit that period with privacy=Privacy(..., release='rows')",
                code="rows-needed",
            )

    def refuse_runaway(self, steps: int) -> None:
        if self.radius > 1 and self.radius**steps > OVERFLOWING:
            raise UnstableError(
                f"the estimated system is unstable (spectral radius {self.radius:.4g}), and over {steps} steps its "
                f"errors grow beyond use; ask for at most {int(np.log(OVERFLOWING) / np.log(self.radius))} steps"
            )


def spread_of_replicates(found: FloatArray, widening: float) -> tuple[FloatArray, FloatArray]:
    """Mean (n, P_m) and covariance (n P_m, P_m) of replicates (K, n, P_m).

    Half of a row's covariance is that of all rows: errors last, also where replicates happen to agree.
    """
    mean = found.mean(axis=0)
    gaps = widening * (found - mean) / np.sqrt(len(found) - 1)
    blocks = np.einsum("kni,knj->nij", gaps, gaps)
    blocks = (blocks + blocks.mean(axis=0)) / 2
    return mean, blocks.reshape(-1, found.shape[2])


def refuse_overflow(*arrays: FloatArray) -> None:
    """What does not fit into double precision is no answer."""
    if not all(np.isfinite(array).all() for array in arrays):
        raise DataError("the change is too large for double precision: give it in other units, or a smaller one")


def later_rows(answer: Answer, rows: int) -> Answer:
    """An answer without its first rows."""
    if not rows:
        return answer
    size = answer.mean.shape[1]
    return replace(answer, mean=answer.mean[rows:], covariance=answer.covariance[rows * size :])


def later_in_worlds(answer: Answer, late: int, rows: int) -> Answer:
    """The same for a part that holds several worlds of so many rows each, one below the other."""
    if not late:
        return answer
    worlds = answer.mean.reshape(-1, rows, answer.mean.shape[1])[:, late:]
    return replace(answer, mean=np.ascontiguousarray(worlds.reshape(-1, answer.mean.shape[1])))
