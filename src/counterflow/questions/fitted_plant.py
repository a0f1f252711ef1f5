"""The plant that the server has estimated, and the rows that it was estimated from, or that are asked about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray, slices
from counterflow.caveats import Caveat
from counterflow.errors import DataError, OptionError
from counterflow.filtering import rts_smoother
from counterflow.learning.completion import impute_mean
from counterflow.learning.influence import reach
from counterflow.learning.information import positions
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.regime_sums import Regime, since
from counterflow.plant.operating_point import OperatingPoint
from counterflow.plant.units import PublicUnit, unit_named
from counterflow.protocol import Answer, Ask
from counterflow.protocol.questions import NO_LIMIT
from counterflow.questions.parts import RECORDED, part_of
from counterflow.questions.sensitivity import Memory, Spread

if TYPE_CHECKING:
    from counterflow.exchange.outcome import Couplings
    from counterflow.learning.network import Network

NEAR = 300  # rows before and after them that are looked at
GUESSES = 12  # draws of what a network has not seen
MOSTLY = 0.99  # of the readings, that must be alike in rows that are the same


@dataclass(frozen=True)
class FittedPlant:
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

    @property
    def settles_down(self) -> bool:
        """Whether states have a level to come back to."""
        return self.radius < 1 - 1e-9

    @cached_property
    def usual(self) -> FloatArray:
        """States (P,) in which the plant rests under every input's mean."""
        return np.linalg.solve(np.eye(len(self.A)) - self.A, self.B @ self.u.mean(axis=0))

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

    @cached_property
    def has_rows(self) -> bool:
        """Whether anything is known of the recorded rows besides inputs; units may have sent moments alone."""
        if self.couplings is None or not self.couplings.of_moments or self.shared is None:
            return True
        return bool(np.isfinite(self.shared.values).any())

    @cached_property
    def reached(self) -> NDArray[np.bool_]:
        """(M, M): whether the second unit's states or inputs act on the first one, by way of others or not, in any
        way of running that was fitted.
        """
        blocks = list(zip(self.state_slices.values(), self.input_slices.values(), strict=True))
        if self.network is None or self.couplings is None:
            rows = [[bool(self.A[m, n].any() or self.B[m, u].any()) for n, u in blocks] for m, _ in blocks]
            return reach(np.array(rows))
        units, acting = range(len(blocks)), np.zeros((len(blocks), len(blocks)), bool)
        for network in [self.network, *(regime.network for regime in self.couplings.regimes)]:
            if network is not None:
                used, owner = np.asarray(network.in_use.any(axis=0)), network.owner
                acting |= [[bool(used[owner == n][:, owner[: network.size] == m].any()) for n in units] for m in units]
        return reach(acting)

    # ---- a fit from logs

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
        return impute_mean(self.network, self.network.standard(self.numbers, self.u))

    @property
    def drawn_rows(self) -> FloatArray:
        """The same with numbers that were not measured drawn, so that all residuals are of their usual size."""
        assert self.network is not None
        return impute_mean(self.network, self.network.standard(self.numbers, self.u), np.random.default_rng(0))

    def before(self, row: int) -> FloatArray:
        """Standardised rows (memory, m) before a recorded row; before the record began, its first one."""
        assert self.network is not None
        there = self.standard_rows[max(row - self.network.memory, 0) : row]
        return np.vstack([np.repeat(self.standard_rows[:1], self.network.memory - len(there), axis=0), there])

    def last_states(self, rows: int) -> FloatArray:
        """States (rows, P) of the last recorded rows: of a fit from logs its numbers, in the units' own terms."""
        if self.network is None:
            return self.states[0][-rows:]
        r, out = self.network.size, np.zeros((rows, self.A.shape[0]))
        out[:, self.number_states] = self.standard_rows[-rows:, :r] * self.network.scale[:r] + self.network.level[:r]
        return out

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
        guesses = [impute_mean(self.network, z, rng)[inside, :r] for _ in range(GUESSES)]
        draws = np.array(guesses) * self.network.scale[:r]
        mean, spread = np.zeros((rows.stop - rows.start, len(self.A))), np.zeros((rows.stop - rows.start, len(self.A)))
        mean[:, self.number_states] = self.standard_rows[rows, :r] * self.network.scale[:r] + self.network.level[:r]
        spread[:, self.number_states] = draws.var(axis=0, ddof=1)
        blocks = spread[:, own, None] * np.eye(own.stop - own.start)
        return part_of(ask, mean[:, own], blocks.reshape(-1, own.stop - own.start), RECORDED)
