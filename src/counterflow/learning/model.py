"""What a model is, whatever it was learned from and by what: a weighted ensemble of simulators of all units.

    Model       how states h (P) follow inputs u (U), and what is known of that: edges, the range seen, doubts
    Grounded    a model on recorded rows: where it stands in each of them, and what it leaves of them
    Run         all members on their way from one row on, side by side

A world is inputs and noise. In the past the noise is what each member leaves of the record, so that the world that was
is the record itself; in the future it is zero. Two worlds with the same noise differ by an effect.

Inputs and states are departures from their levels, in the units' own terms. The input of a row acts on the next one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray, block_diagonal, slices
from counterflow.caveats import Caveat
from counterflow.filtering import FilterResult, rts_smoother, smoothed_states
from counterflow.filtering import Run as FilterRun
from counterflow.learning.block_moments import Rows
from counterflow.learning.ensemble import Ensemble, Uncertain, noise_ahead, uncertain
from counterflow.learning.influence import InfluenceGraph, reach
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.layout import Layout
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.network_learning import Learning
from counterflow.learning.optimiser import Estimated
from counterflow.learning.predictor import Predictor
from counterflow.learning.regime_sums import Regime
from counterflow.learning.stream import Stream

BoolArray = NDArray[np.bool_]
NEAR = 300  # rows before and after those that were not measured, from which these are estimated
_CHUNK = 2048  # rows with covariances of their own that are given at a time


class Curvature(NamedTuple):
    """What curvature is worth: fall of the squared error of free runs, in standard errors too; whether any is kept."""

    gain: float
    deviations: float
    used: bool


class OneStep(NamedTuple):
    """What a model leaves of rows one step ahead, from row ``first`` on.

    ``errors`` (n, r) of what units have sent; ``there`` (n, r): what was read. ``covariances``: stretches of rows, each
    with the covariance that the model expects of all (1, r, r) or of each (k, r, r).
    """

    first: int
    errors: FloatArray
    there: BoolArray
    covariances: Iterator[tuple[NDArray[np.intp], FloatArray]]


class Sent(NamedTuple):
    """What units have sent in terms that all rows share: ``values`` (T+1, r), NaN: missing or not to be told.

    ``observation`` (r, P): how they see the states; ``noise`` (r, r), or (T+1, r, r); ``columns`` of each unit.
    """

    values: FloatArray
    observation: FloatArray
    noise: FloatArray
    columns: tuple[slice, ...]


class Chosen(NamedTuple):
    """A form that was chosen anew from all rows that are kept."""

    rows: Rows
    learning: Learning
    stream: Stream


class Followed(NamedTuple):
    """What has become of a fit that has taken in new rows.

    ``kept``: of all rows, fields of ``exchange.outcome.Couplings``; a form that is ``chosen`` anew has them from there.
    ``told``: how it went; ``found``: the estimate, where there is one. ``notes``: of the new rows.
    """

    kept: Mapping[str, object]
    told: str
    found: Estimated | None = None
    chosen: Chosen | None = None
    notes: tuple[Caveat, ...] = ()


@dataclass(frozen=True, eq=False)
class Model(ABC):
    """A weighted ensemble of simulators of all units, and what is known of them.

    ``A`` (P, P), ``B`` (P, U), ``Q`` (P, P): its linear part. ``units``: names, numbers of states and inputs.
    ``learned``: whether its form was learned from logs, so that what is not worth its cost is left out; else the units
    have given theirs.
    """

    units: Layout
    A: FloatArray
    B: FloatArray
    Q: FloatArray

    learned: ClassVar[bool]
    lasting: ClassVar[float] = 0.0  # share of the members' variance that counts as an error of all rows alike

    @property
    def told(self) -> bool:
        """Whether it tells how far it may be off."""
        return True

    @property
    def known(self) -> KnownEdges | None:
        """Which direct couplings between units can be; None: all."""
        return None

    @property
    def seen(self) -> FloatArray | None:
        """Range (U,) of each input in all rows that it was learned from; None: that of the rows at hand."""
        return None

    @property
    def curvature(self) -> Curvature | None:
        """What curvature is worth; None: it has none by its form."""
        return None

    @property
    def learners(self) -> dict[str, float]:
        """Share of its members that each learner has made, by what it is worth; none: its form was given."""
        return {}

    @property
    def rows(self) -> int:
        """How many rows it was learned from, as far as it counts them."""
        return 0

    @abstractmethod
    def acting(self) -> BoolArray:
        """(M, M): whether the second unit's states or inputs act on the first one directly, in any way of running."""

    @cached_property
    def reached(self) -> BoolArray:
        """(M, M): the same, by way of others or not."""
        return reach(self.acting())

    @abstractmethod
    def graph(self, rate: float) -> InfluenceGraph:
        """Which unit acts on which, at this false-discovery rate."""

    @abstractmethod
    def on(self, record: SharedRecord | None) -> Grounded:
        """Standing on recorded rows; None: there are none."""

    def warm(self) -> None:  # noqa: B027
        """Do now what the first question would wait for."""

    # ---- how members make one answer

    @abstractmethod
    def ensemble(self, states: FloatArray, limited: float = 0.0) -> Ensemble:
        """Of runs (K, n, P) of all members."""

    def told_by(
        self, members: Ensemble, unit: int, schedule: FloatArray | None = None, *, as_they_are: bool = False
    ) -> Uncertain:
        """What runs of all members say of a unit's states.

        ``schedule`` (n, U): inputs whose effect they are; None: they are no effect. ``as_they_are``: see ``uncertain``.
        """
        mine = members.of(self.units.state_slices[unit])
        missed = 0.0 if schedule is None else self.missed(mine, schedule, unit)
        return uncertain(mine, self.lasting, missed * np.eye(mine.mean.shape[1]), as_they_are=as_they_are)

    def missed(self, mine: Ensemble, schedule: FloatArray, unit: int) -> FloatArray | float:
        """Variances (P_m,) of what of an effect on a unit may have been overlooked."""
        return 0.0

    def refuse_far(self, schedule: FloatArray) -> None:  # noqa: B027
        """DataError if inputs (n, U) would go where nothing is known."""


class Run(ABC):
    """All members on their way over some rows.

    ``states`` (K, n, P): as they are, or apart from the world that was or would have been. ``usual`` (U,): how far
    inputs usually move. ``limited``: share of what is multiplied that was at a limit of what was seen.
    """

    states: FloatArray
    usual: FloatArray

    @property
    def worlds(self) -> int:
        """K."""
        return len(self.states)

    @property
    def limited(self) -> float:
        return 0.0

    @abstractmethod
    def advance(self, first: int, last: int, inputs: FloatArray) -> float:
        """Compute rows first to last - 1, on which ``inputs`` (K, last - first, U) or (last - first, U) act.

        Returns how far states are then from where they were, in their usual sizes.
        """

    @abstractmethod
    def response(self, first: int, rows: int, column: int) -> FloatArray:
        """(K, rows, P): what an input that is one higher does, acting on row ``first`` alone, to it and those after."""


@dataclass(frozen=True, eq=False)
class Grounded(ABC):
    """A model on recorded rows 0..T, or on none (``record`` None).

    What follows from ``start`` and from the linear part is written here; a model that knows better overrides it.
    """

    model: Model
    record: SharedRecord | None

    @property
    def u(self) -> FloatArray:
        """Inputs (T+1, U) as the model takes them; one row of zeros if nothing is recorded."""
        return np.zeros((1, self.model.B.shape[1])) if self.record is None else self.record.u

    def inputs_acting(self, row: int | None, steps: int) -> FloatArray:
        """Inputs (steps, U) that act on rows from ``row`` on; None: those after the last, if inputs stay."""
        if row is None:
            return np.repeat(self.u[-1:], steps, axis=0)
        return np.vstack([self.u[max(row - 1, 0)][None], self.u[row : row + steps - 1]])

    @property
    def regimes(self) -> tuple[Regime, ...]:
        """Ways of running of these rows; empty if there is one, or if they are not the fitted ones."""
        return ()

    @cached_property
    def filtered(self) -> FilterResult:
        """One pass of the linear part over the rows."""
        assert self.record is not None
        return self.record.squeezed.filter(self.model.A, self.model.B, self.model.Q)

    @cached_property
    def states(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """By the linear part: states (T+1, P) given all rows; mean (P,) and covariance (P, P) of the last."""
        A, B, Q = self.model.A, self.model.B, self.model.Q
        if self.record is None:
            return np.zeros((1, len(A))), np.zeros(len(A)), np.zeros_like(A)
        filtered = self.record.filter(A, B, Q)
        return smoothed_states(filtered, A), filtered.final_mean, filtered.final_covariance

    # ---- worlds

    @abstractmethod
    def start(self, row: int | None, steps: int, *, apart: bool, alone: bool = False, still: Sequence[str] = ()) -> Run:
        """All members before row ``row``, with the noise of the rows from there on; None: after the last row.

        ``apart``: states are told as departures from the world with the inputs that were, or in the future from that
        with the last ones. ``alone``: one member, their mean. ``still``: units whose states do not move.
        """

    def response(self, schedule: FloatArray, row: int | None = None, still: Sequence[str] = ()) -> Ensemble:
        """What inputs ``schedule`` (n, U) do to all states, from a recorded row on or after the last."""
        self.model.refuse_far(schedule)
        run = self.start(row, len(schedule), apart=True, still=still)
        run.advance(0, len(schedule), self.inputs_acting(row, len(schedule)) + schedule)
        return self.model.ensemble(run.states, run.limited)

    def difference(self, schedule: FloatArray, row: int | None, unit: int) -> tuple[Uncertain, Ensemble | None]:
        """The same for one unit, with how far it may be off; and by member, where members tell that."""
        found = self.response(schedule, row)
        return self.model.told_by(found, unit, schedule), found

    def ahead(self, inputs: FloatArray, unit: int) -> Uncertain:
        """States of a unit after the last row under ``inputs`` (n, U), without process noise."""
        run = self.start(None, len(inputs), apart=False)
        run.advance(0, len(inputs), inputs)
        return self.model.told_by(self.model.ensemble(run.states), unit)

    def noise_ahead(self, steps: int, unit: int) -> tuple[FloatArray, FloatArray | None]:
        """Covariances of a unit's states after the last row by process noise, and directions; see ``ensemble``."""
        own = self.model.units.state_slices[unit]
        return noise_ahead(self.model.A, self.model.Q, self.states[2], steps, own)

    # ---- the rows themselves

    def last_states(self, rows: int) -> FloatArray:
        """States (rows, P) of the last recorded rows."""
        return self.states[0][-rows:]

    def recorded(self, rows: slice, unit: int) -> tuple[FloatArray, FloatArray]:
        """States (n, P_m) of a unit in recorded rows, not all of which were measured; covariance (n P_m, P_m)."""
        record, own = self.record, self.model.units.state_slices[unit]
        assert record is not None
        near, inside = self._near(rows)
        first = None if near.start else record.initial_mean
        part = replace(record, values=record.values[near], u=record.u[near], initial_mean=first)
        filtered = part.filter(self.model.A, self.model.B, self.model.Q)
        smoothed = rts_smoother(filtered, self.model.A, self.model.Q, covariances=True)
        assert smoothed.covariance is not None
        covariance = smoothed.covariance[inside, own, own]
        return smoothed.smoothed[inside, own], covariance.reshape(-1, covariance.shape[2])

    def gaps_in(self, rows: slice, unit: int) -> bool:
        """Whether something that a unit sends is missing in these rows."""
        assert self.record is not None
        return not np.isfinite(self.record.values[rows, self.record.observation_slices[unit]]).all()

    def _near(self, rows: slice) -> tuple[slice, slice]:
        """Rows around some, and where these stand in them."""
        near = slice(max(rows.start - NEAR, 0), min(rows.stop + NEAR, len(self.u)))
        return near, slice(rows.start - near.start, rows.stop - near.start)

    @abstractmethod
    def predictor(self, observation: FloatArray, level: FloatArray, early: BoolArray) -> Predictor:
        """Of one step, after the last row. ``observation`` (r, P): how whole messages see the states.

        ``level`` (U,): of the inputs as they are logged; ``early`` (U,): whether they act on their own row.
        """

    @abstractmethod
    def follow(self, new: SharedRecord, acting: FloatArray) -> Followed:
        """Take in new rows, which follow the last of these, at a cost that grows with the new ones only.

        These are the fitted rows, as far as they are kept. ``acting`` (U,): inputs of the last of them that are known
        only now, because they act on their own row; NaN: all others. DataError if rows were taken in before.
        """

    # ---- what checks look at

    @cached_property
    def sent(self) -> Sent:
        """What units have sent, in terms that all rows share."""
        assert self.record is not None
        record = self.record.squeezed
        if record.patterns is None:
            return Sent(record.values, record.observation, record.noise, record.observation_slices)
        usual = self._terms(record)
        values, noise = record.readings(usual)
        return Sent(values, block_diagonal(usual), noise, slices([len(each) for each in usual]))

    def _terms(self, record: SharedRecord) -> list[FloatArray]:
        """What is read of each unit's states, where channels come and go: as most of its rows see them."""
        assert record.patterns is not None
        usual = []
        for m, table in enumerate(record.patterns.observations):
            rank = (np.abs(table).max(axis=2, initial=0.0) > 0).sum(axis=1)
            often = np.bincount(record.patterns.labels[:, m], minlength=len(table)) * (rank > 0)
            usual.append(table[often.argmax(), : rank[often.argmax()]])
        return usual

    @property
    def one_step(self) -> OneStep:
        """What is left of the rows one step ahead."""
        sent, filtered = self.sent, self.filtered
        first = min(1 + len(self.model.A), max(1, len(sent.values) // 4))  # no longer hangs on the first state's guess
        errors = sent.values - filtered.predicted @ sent.observation.T
        return OneStep(first, errors[first:], np.isfinite(sent.values)[first:], self._covariances(first))

    def _covariances(self, begin: int) -> Iterator[tuple[NDArray[np.intp], FloatArray]]:
        sent, C = self.sent, self.sent.observation
        for run in self.filtered.runs:
            rows = np.arange(max(run.start, begin), run.stop)
            alike = isinstance(run, FilterRun)
            for part in [rows] if alike else np.split(rows, range(_CHUNK, len(rows), _CHUNK)):
                X = run.predicted[None] if alike else run.predicted[part - run.start]
                R = sent.noise if sent.noise.ndim == 2 else sent.noise[part[:1] if alike else part]
                if len(part):
                    yield part - begin, C @ X @ C.T + R

    @property
    def signals(self) -> FloatArray:
        """What is known of each row (T+1, r + U): what units have sent, or would have, and inputs."""
        return np.hstack([self.filtered.filtered @ self.sent.observation.T, self.u])

    def free_runs(self, starts: NDArray[np.intp], horizon: int) -> FloatArray:
        """States (starts, horizon, P) after each start, given inputs alone; NaN where there are too few rows before."""
        return simulated(self.model.A, self.model.B, self.filtered.filtered, self.u, starts, horizon)

    def free_run_error(self, unit: int) -> float:
        """How wrong a unit's states get beside the record, as a share of what they did; zero if that is not looked at.

        What one row leaves is noise, and does not count.
        """
        return 0.0

    def brought(self) -> tuple[FloatArray, FloatArray] | None:
        """What each unit brings to every number one row ahead (M, n, r), and what is left (n, r); None: by no sums.

        Of a number's own unit: beyond its last value.
        """
        return None

    def step_doubts(self) -> dict[tuple[int, int], float]:
        """Squared error over squared effect of steps of an input on another unit that move it enough to be of interest.

        By input and unit; where members tell.
        """
        return {}


def simulated(
    A: FloatArray, B: FloatArray, states: FloatArray, u: FloatArray, starts: NDArray[np.intp], horizon: int
) -> FloatArray:
    """States (starts, horizon, P) of a linear system after those (T+1, P) of each start."""
    out, x = np.empty((len(starts), horizon, len(A))), states[starts]
    with np.errstate(over="ignore", invalid="ignore"):
        for k in range(horizon):
            x = x @ A.T + u[starts + k] @ B.T
            out[:, k] = x
    return out
