"""A model that was learned from logs: replicates of a sparse network of units, with its ways of running.

Of its states, the numbers that units have sent run by the network; the others belong to its linear part, for questions
that are asked of states. Effects are those of the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from counterflow import wording
from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat, scope_of
from counterflow.errors import DataError
from counterflow.learning.block_moments import Rows
from counterflow.learning.completion import impute_mean
from counterflow.learning.ensemble import Ensemble
from counterflow.learning.influence import InfluenceGraph, network_graph, reach
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.layout import Layout
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.linear_model import LinearModel
from counterflow.learning.model import BoolArray, Chosen, Curvature, Followed, Grounded, Model, OneStep, Run
from counterflow.learning.network import Network
from counterflow.learning.optimiser import Estimated
from counterflow.learning.predictor import Predictor, RowPredictor
from counterflow.learning.regime_sums import Regime, later
from counterflow.learning.stream import KEPT, TAIL, Stream, begun, continued
from counterflow.learning.uncertainty import Memory, Uncertainty, refuse_repeated

TOO_FAR = 1e4  # standard deviations that an input may be moved
UNNOTICED = 0.3  # standard deviations over the root of the rows: what a fit may be off without noticing,
MISSED = 3.0  # and what it may have missed where no replicate has found an effect
GUESSES = 12  # draws of what was not seen
MOSTLY = 0.99  # of the readings, that must be alike in rows that are the same
PULSE = 0.1  # of an input's usual movement: what a response is measured with
FREE_RUNS = 24  # beside the record, that tell how wrong the model gets
FREE_ROWS = 300  # longest of them
LOOKED = 300  # last rows, of which none may be half as far from its prediction
FAR = 2.0  # as the first new one: else it may not follow
NOT_FOLLOWING = "rows-may-not-follow"
STEP, AHEAD = 1.5, 60  # standard deviations by which an input is stepped, to see how well its effect is known; rows
MOVED = 0.025  # standard deviations that an effect must move a number by, in the root mean square, to be of interest,
NOTICED = 0.5  # and of those that are not foreseen a row ahead


@dataclass(frozen=True, eq=False)
class NetworkModel(Model):
    """``ways`` of running in the rows ``fitted``. ``stream``: of an updated fit, what is kept of all rows."""

    network: Network
    ways: tuple[Regime, ...]
    fitted: SharedRecord
    stream: Stream | None = None

    learned = True
    lasting = 0.5  # errors last, also where replicates happen to agree

    @property
    def known(self) -> KnownEdges | None:
        return self.network.known

    @property
    def seen(self) -> FloatArray:
        """Of rows that are no longer kept, too."""
        network = self.network
        return np.asarray(((network.high - network.low) * network.scale)[network.size :])

    @property
    def curvature(self) -> Curvature:
        return Curvature(*self.network.bend, self.network.curved)

    @property
    def learners(self) -> dict[str, float]:
        names = self.network.learners
        return {name: names.count(name) / len(names) for name in dict.fromkeys(names)}

    @property
    def rows(self) -> int:
        return max(self.network.rows, 0 if self.stream is None else self.stream.rows)

    @cached_property
    def number_states(self) -> NDArray[np.intp]:
        """Which states are the numbers that units have sent: the first ones of each unit."""
        blocks = zip(self.units.state_slices, self.network.numbers, strict=True)
        return np.concatenate([own.start + np.arange(count) for own, count in blocks])

    def as_states(self, numbers: FloatArray, level: bool = True) -> FloatArray:
        """States (..., P) of standardised numbers (..., r), or of what they are apart; the others are zero."""
        network, r = self.network, self.network.size
        out = np.zeros((*numbers.shape[:-1], len(self.A)))
        out[..., self.number_states] = numbers * network.scale[:r] + (network.level[:r] if level else 0.0)
        return out

    def acting(self) -> BoolArray:
        units = range(len(self.units.names))
        out = np.zeros((len(units), len(units)), bool)
        for network in [self.network, *(way.network for way in self.ways)]:
            if network is not None:
                used, owner = np.asarray(network.in_use.any(axis=0)), network.owner
                out |= [[bool(used[owner == n][:, owner[: network.size] == m].any()) for n in units] for m in units]
        return out

    def graph(self, rate: float) -> InfluenceGraph:
        return network_graph(self.network, rate)

    def ensemble(self, states: FloatArray, limited: float = 0.0) -> Ensemble:
        return Ensemble(states.mean(axis=0), states, self.network.widening, len(states) - 1, limited)

    def missed(self, mine: Ensemble, schedule: FloatArray, unit: int) -> FloatArray:
        """Where replicates saw no effect, a larger one may have been missed."""
        network, r = self.network, self.network.size
        blind = float((~mine.members.any(axis=(1, 2))).mean())
        sizes = np.abs(schedule).max(axis=0, initial=0.0) / network.scale[r:]
        sizes[~np.isin(network.owner[r:], np.flatnonzero(self._may_reach[unit]))] = 0.0
        least = (UNNOTICED + MISSED * blind) / np.sqrt(max(network.rows, 1)) * float(np.linalg.norm(sizes))
        numbers = network.scale[network.number_slices[unit]]
        return np.asarray(np.square(least * np.pad(numbers, (0, mine.mean.shape[1] - len(numbers)))))

    @cached_property
    def _may_reach(self) -> BoolArray:
        """(M, M): whether the second unit can act on the first at all, by way of others or not."""
        names, known = self.units.names, self.known
        return reach(np.array([[n == m or known is None or known.allows(n, m) for n in names] for m in names]))

    def refuse_far(self, schedule: FloatArray) -> None:
        moved = np.abs(schedule).max(axis=0, initial=0.0) / self.network.scale[self.network.size :]
        if not (moved <= TOO_FAR).all():
            raise DataError(
                f"the change is {moved.max():.3g} times the usual movement of an input: nothing is known so far away; "
                "give a smaller one"
            )

    def on(self, record: SharedRecord | None) -> NetworkGrounded:
        return NetworkGrounded(self, record)


class NetworkRun(Run):
    """Replicates of a network.

    Where nothing is curved, worlds that are told apart from what was run on what they are apart: what does not act is
    zero then, and not nearly so.
    """

    def __init__(
        self, on: NetworkGrounded, row: int | None, steps: int, apart: bool, alone: bool, still: Sequence[str]
    ) -> None:
        self.model, network = on.model, on.model.network
        rows = len(on.standard_rows) if row is None else row
        ways = [(max(a - rows, 0), min(b - rows, steps), own) for a, b, own in on.ways] if row is not None else []
        ways = [way for way in ways if way[0] < way[1]] or [(0, steps, network)]
        if alone:
            ways = [(a, b, own.mean) for a, b, own in ways]
        self.apart, self.bare = apart, apart and not any(own.curved for _, _, own in ways)
        K, r, p = len(ways[0][2].linear), network.size, network.memory
        self.usual = np.asarray(network.scale[r:])
        self.base, self.scale = np.asarray(network.level[r:]), self.usual
        self.still = np.repeat(np.array([name in still for name in network.names], bool), network.numbers)
        before = on.before(rows)
        self.z = np.zeros((K, p + steps, before.shape[1]))
        self.factual = np.zeros((K, steps, r))
        self.residual: FloatArray | None = None
        if self.bare:
            ways = [(a, b, replace(own, offset=np.zeros_like(own.offset))) for a, b, own in ways]
            self.base = on.inputs_acting(row, steps)
        else:
            self.z[:, :p] = before
            if apart and row is not None:
                z = np.vstack([before, on.standard_rows[row : row + steps]])
                self.factual[:] = z[p:, :r]
                left = [z[p + a : p + b, :r] - own.predicted(z[a : p + b]) for a, b, own in ways]
                self.residual = np.concatenate(left, axis=1)
            elif apart:
                held = (on.inputs_acting(None, steps) - self.base) / self.scale
                self.factual = network.run(before, held)[0] if not alone else network.mean.run(before, held)[0]
        self.ways, self.met = ways, np.zeros(steps)
        self.states = np.zeros((K, steps, len(on.model.A)))

    @property
    def limited(self) -> float:
        return float(self.met.mean()) if len(self.met) else 0.0

    def advance(self, first: int, last: int, inputs: FloatArray) -> float:
        p, r = self.z.shape[1] - self.states.shape[1], self.factual.shape[2]
        base = self.base[first:last] if self.bare else self.base
        self.z[:, p + first - 1 : p + last - 1, r:] = (inputs - base) / self.scale
        for start, stop, own in self.ways:
            a, b = max(first, start), min(last, stop)
            if a < b:
                left = None if self.residual is None else self.residual[:, a:b]
                before, acting = self.z[:, a : a + p], self.z[:, p + a - 1 : p + b - 1, r:]
                self.z[:, p + a : p + b, :r], self.met[a:b] = own.run(
                    before, acting, left, self.still, self.factual[:, a:b]
                )
        gap = self.z[:, p + first : p + last, :r] - (self.factual[:, first:last] if self.apart else 0.0)
        self.states[:, first:last] = self.model.as_states(gap, level=not self.apart)
        return float(np.abs(gap).max(initial=0.0))

    def response(self, first: int, rows: int, column: int) -> FloatArray:
        p, r = self.z.shape[1] - self.states.shape[1], self.factual.shape[2]
        own = next((way for start, stop, way in self.ways if start <= first < stop), self.ways[-1][2])
        inputs = np.repeat(self.z[:, p + first - 1 : p + first, r:], rows, axis=1)
        raised = inputs.copy()
        raised[:, 0, column] += PULSE
        with_it, without = (own.run(self.z[:, first : first + p], each)[0] for each in (raised, inputs))
        return self.model.as_states((with_it - without) / (PULSE * self.scale[column]), level=False)


@dataclass(frozen=True, eq=False)
class NetworkGrounded(Grounded):
    """Rows as the network takes them tell where it stands."""

    model: NetworkModel

    # ---- the rows themselves

    @cached_property
    def numbers(self) -> FloatArray:
        """Numbers (T+1, r) that units have sent; NaN: missing.

        They are, too, where so many channels are missing that the others do not determine them.
        """
        assert self.record is not None
        return _numbers(self.record, self.model.network)

    def values_of(self, numbers: FloatArray) -> FloatArray:
        """Messages (n, r) as the recorded ones, of numbers (n, r): the inverse of ``numbers``."""
        assert self.record is not None
        out, network = np.empty_like(numbers), self.model.network
        for rows, own in zip(self.record.observation_slices, network.number_slices, strict=True):
            out[:, rows] = numbers[:, own] @ self.record.observation[rows, self.model.number_states[own]].T
        return out

    @cached_property
    def standard_rows(self) -> FloatArray:
        """Rows as the network takes them (T+1, m); numbers that were not measured are as it sees them."""
        return impute_mean(self.model.network, self._standard)

    @cached_property
    def _standard(self) -> FloatArray:
        return self.model.network.standard(self.numbers, self.u)

    @cached_property
    def drawn_rows(self) -> FloatArray:
        """The same with numbers that were not measured drawn, so that all residuals are of their usual size."""
        return impute_mean(self.model.network, self._standard, np.random.default_rng(0))

    def newest(self, rows: int) -> FloatArray:
        """The newest rows (rows, m) in the units' own terms; what is missing as the network sees it."""
        return np.asarray(self.standard_rows[-rows:] * self.model.network.scale + self.model.network.level)

    def before(self, row: int) -> FloatArray:
        """Standardised rows (memory, m) before a row; before the record began, its first one."""
        memory = self.model.network.memory
        there = self.standard_rows[max(row - memory, 0) : row]
        return np.vstack([np.repeat(self.standard_rows[:1], memory - len(there), axis=0), there])

    @cached_property
    def regimes(self) -> tuple[Regime, ...]:
        """Rows that follow the fitted ones go on as these ended."""
        ways, record = self.model.ways, self.record
        if not ways or record is None:
            return ()
        if record is self.model.fitted:
            return ways
        kept = [each for each in ways if each.start < len(self.numbers)]
        return (*kept[:-1], replace(kept[-1], stop=len(self.numbers))) if self._begins_as_fitted() else ()

    @property
    def ways(self) -> list[tuple[int, int, Network]]:
        """Stretches of rows, each with the network of its way of running."""
        return [(each.start, each.stop, each.network or self.model.network) for each in self.regimes]

    def _begins_as_fitted(self) -> bool:
        """Whether the rows are those of the fit, with others behind them or the last ones cut off."""
        network, fitted = self.model.network, self.model.fitted
        theirs = _numbers(fitted, network)
        n = min(len(self.numbers), len(theirs))
        u, v = self.u[:n], fitted.u[:n]
        if not np.allclose(u[:-1], v[:-1]):  # the input of the last row may not be known yet
            return False
        one, two = (network.standard(numbers[:n], u) for numbers in (self.numbers, theirs))
        both = np.isfinite(one) & np.isfinite(two)
        return bool(both.any() and np.isclose(one, two, rtol=1e-6, atol=1e-6)[both].mean() > MOSTLY)

    def last_states(self, rows: int) -> FloatArray:
        return self.model.as_states(self.standard_rows[-rows:, : self.model.network.size])

    def recorded(self, rows: slice, unit: int) -> tuple[FloatArray, FloatArray]:
        network, own, rng = self.model.network, self.model.units.state_slices[unit], np.random.default_rng(0)
        (near, inside), r = self._near(rows), network.size
        guesses = [impute_mean(network, self._standard[near], rng)[inside, :r] for _ in range(GUESSES)]
        spread = self.model.as_states(np.array(guesses), level=False).var(axis=0, ddof=1)
        blocks = spread[:, own, None] * np.eye(own.stop - own.start)
        mean = self.model.as_states(self.standard_rows[rows, :r])[:, own]
        return mean, blocks.reshape(-1, own.stop - own.start)

    def predictor(self, observation: FloatArray, level: FloatArray, early: BoolArray) -> Predictor:
        network, stream = self.model.network, self.model.stream
        assert self.record is not None
        rows = self.standard_rows if stream is None else (stream.tail - network.level) / network.scale
        record = replace(self.record, observation=observation)
        return RowPredictor.standing(record, network, rows, level, early, self.model.number_states)

    def follow(self, new: SharedRecord, acting: FloatArray) -> Followed:
        """Sums over all rows are added to; features are chosen anew when there are a tenth more rows."""
        network, stream, record = self.model.network, self.model.stream, self.record
        assert record is not None
        rows = self.model.on(new)
        values, r = self.values_of(rows.numbers), network.size
        refuse_repeated(record.values, values)
        tail = (self.newest(TAIL) if stream is None else stream.tail).copy()
        tail[-1, r:] = np.where(np.isnan(acting), tail[-1, r:], acting)
        notes = self._far_from_foretold(tail, rows.numbers[0])
        u, z = np.vstack([self.u[:-1], tail[-1:, r:], rows.u]), np.hstack([rows.numbers, rows.u])
        if stream is not None:
            stream = stream.followed(network, tail, z)
            if not stream.due:
                stream, network = stream.refreshed(network)
                kept = newest_rows(record.joined(values, u), self.model.ways, stream)
                return Followed({"network": network, **kept}, f"{network}; {stream}", notes=notes)
        total = len(self.u) + len(rows.u) if stream is None else stream.rows
        whole = np.hstack([np.vstack([self.numbers, rows.numbers]), u])
        every = Rows(network.names, network.numbers, network.inputs, whole, total - len(whole))
        if stream is None:
            tail = continued(network, tail, z)[-TAIL:]
            stream, learned = begun(every, network.known, tail, max(KEPT, len(self.u)))
        else:
            stream, learned = stream.chosen_anew(every, network.known)
        return Followed({}, f"{learned.network}; {stream}", chosen=Chosen(every, learned, stream), notes=notes)

    def _far_from_foretold(self, tail: FloatArray, numbers: FloatArray) -> tuple[Caveat, ...]:
        """Whether the first new row is much further from its prediction than any of the last ones was from theirs.

        ``tail``: the rows just before it; ``numbers`` (r,): it.
        """
        network, r, p = self.model.network, self.model.network.size, self.model.network.memory
        z = self.standard_rows[-p - LOOKED :]
        foretold = network.predict_row((tail[-p:] - network.level) / network.scale)
        first = np.nan_to_num((numbers - network.level[:r]) / network.scale[:r] - foretold)
        gaps = np.vstack([z[p:, :r] - network.mean.predicted(z)[0], first])
        distance = np.sqrt(np.einsum("ti,ij,tj->t", gaps, np.linalg.inv(network.noise), gaps))
        usual = distance[:-1].max(initial=0.0)
        if not distance[-1] > FAR * usual > 0:
            return ()
        text = (
            f"the first row of an update is {wording.number(distance[-1] / usual)} times further from what the rows "
            f"before it foretell than any of the last {LOOKED} rows was: if rows are missing in between, fit again "
            "with these as missing"
        )
        return (Caveat(NOT_FOLLOWING, scope_of(network.names), text),)

    # ---- worlds

    def start(
        self, row: int | None, steps: int, *, apart: bool, alone: bool = False, still: Sequence[str] = ()
    ) -> NetworkRun:
        return NetworkRun(self, row, steps, apart, alone, still)

    # ---- what checks look at

    def _terms(self, record: SharedRecord) -> list[FloatArray]:
        return [np.eye(states)[:count] for states, count in zip(record.states, self.model.network.numbers, strict=True)]

    @property
    def one_step(self) -> OneStep:
        network, p, r = self.model.network, self.model.network.memory, self.model.network.size
        errors = self.drawn_rows[p:, :r] - network.mean.predicted(self.drawn_rows)[0]
        return OneStep(p, errors, np.isfinite(self.numbers)[p:], iter([(np.arange(len(errors)), network.noise[None])]))

    @property
    def signals(self) -> FloatArray:
        return self.drawn_rows

    def free_runs(self, starts: NDArray[np.intp], horizon: int) -> FloatArray:
        good = starts >= self.model.network.memory - 1
        out = np.full((len(starts), horizon, len(self.model.A)), np.nan)
        out[good] = self.model.as_states(self.model.network.free_runs(self.drawn_rows, starts[good], horizon))
        return out

    def free_run_error(self, unit: int) -> float:
        """Relays turn small errors of a reading into other switches, and replicates know nothing of such errors."""
        network, z = self.model.network, self.standard_rows
        horizon = min(FREE_ROWS, (len(z) - network.memory) // 3)
        if horizon < 2:
            return 0.0
        starts = np.unique(np.linspace(network.memory - 1, len(z) - 1 - horizon, FREE_RUNS).astype(int))
        own = network.number_slices[unit]
        rows = z[starts[:, None] + 1 + np.arange(horizon), own]
        left = rows - network.free_runs(z, starts, horizon)[:, :, own]
        more = np.square(left).mean() - np.square(left[:, 0]).mean()
        return float(min(np.sqrt(max(more, 0.0) / max(float(np.square(rows).mean()), 1e-300)), 1.0))

    def brought(self) -> tuple[FloatArray, FloatArray]:
        network, z = self.model.network, self.drawn_rows
        p, r = network.memory, network.size
        out = network.mean.brought(z)
        for m, own in enumerate(network.number_slices):
            out[m, :, own] -= z[p - 1 : -1, own]
        return out, z[p:, :r] - network.mean.predicted(z)[0]

    def step_doubts(self) -> dict[tuple[int, int], float]:
        network, out = self.model.network, {}
        noise = np.sqrt(np.diag(network.noise))
        for j, cause in enumerate(network.owner[network.size :].tolist()):
            schedule = np.zeros((AHEAD, self.u.shape[1]))
            schedule[:, j] = STEP * network.scale[network.size + j]
            found = self.response(schedule)
            for m, numbers in enumerate(network.number_slices):
                at, scale = self.model.number_states[numbers], network.scale[numbers]
                mine = replace(found, mean=found.mean[:, at] / scale, members=found.members[:, :, at] / scale)
                moved = np.sqrt(np.square(mine.mean).mean(axis=0))
                if m != cause and (moved >= np.maximum(MOVED, NOTICED * noise[numbers])).any():
                    out[j, m] = mine.doubt
        return out


def newest_rows(record: SharedRecord, ways: tuple[Regime, ...], stream: Stream) -> dict[str, object]:
    """The rows that are kept, in which the ways of running have other places."""
    shared = record.last(stream.kept)
    dropped = len(record.values) - len(shared.values)
    return {
        "shared": shared, "stream": stream, "regimes": later(ways, dropped, len(shared.values)) if ways else ()
    }  # fmt: skip


def _numbers(record: SharedRecord, network: Network) -> FloatArray:
    counts = zip(record.states, network.numbers, strict=True)
    return record.readings([np.eye(states)[:count] for states, count in counts])[0]


def model_from(
    found: Estimated, fitted: SharedRecord, uncertainty: Uncertainty | None, memory: Memory | None,
    network: Network | None, ways: tuple[Regime, ...], stream: Stream | None,
) -> Model:  # fmt: skip
    """The model that a fit of the rows ``fitted`` has come to: a network if there is one, else a linear system."""
    units = Layout(fitted.names, fitted.states, fitted.inputs)
    if network is not None:
        return NetworkModel(units, found.A, found.B, found.Q, network, ways, fitted, stream)
    return LinearModel(units, found.A, found.B, found.Q, fitted.observation, uncertainty, found, memory)
