"""A linear model h[t] = A h[t-1] + B u[t-1] + w[t-1] with uncertain couplings.

To first order its states vary with the uncertain entries of [A B] by

    dh[t] = A dh[t-1] + dA h[t-1] + dB u[t-1]

so every root of the covariance of the couplings is a direction along which all rows move: a member at an infinitely
small distance. Where controllers react, which bends the plant, members are draws of the couplings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.errors import OptionError
from counterflow.filtering import steady_state
from counterflow.learning.ensemble import KEPT, LARGEST, Ensemble, Uncertain
from counterflow.learning.influence import InfluenceGraph, influence_graph
from counterflow.learning.information import positions
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.model import BoolArray, Followed, Grounded, Model, Run
from counterflow.learning.optimiser import Estimated
from counterflow.learning.predictor import Predictor, StatePredictor
from counterflow.learning.uncertainty import Memory, Uncertainty, refuse_repeated, remember, update
from counterflow.recurrence import linear_recurrence

DRAWS = 32  # of uncertain couplings
_SLICE = 4_000_000  # numbers that are worked on at once
_STILL = 1e-15  # relative movement in a row below which nothing moves any more
_MOST_SCHEDULES = 4  # changed at once, beyond which each by itself costs more than it saves
_LARGEST = 1_000_000  # numbers that one remembered question may take
_REMEMBERED = 8  # of the latest questions
_DIGITS = 14  # to which schedules count as the same


@dataclass(frozen=True)
class Spread:
    """Uncertainty of couplings: entry ``rows[i], columns[i]`` of [A B] varies as ``root[i] @ standard normal``."""

    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    root: FloatArray  # (n, k)


@dataclass(frozen=True, eq=False)
class LinearModel(Model):
    """``uncertainty`` of the couplings, None: not known. ``observation`` (r, P): how units' messages see the states.

    ``found``: the estimate, None: the couplings were given. ``memory``: of an updated fit, what is kept of its rows.
    """

    observation: FloatArray | None = None
    uncertainty: Uncertainty | None = None
    found: Estimated | None = None
    memory: Memory | None = None

    learned = False

    @property
    def told(self) -> bool:
        return self.uncertainty is not None

    @property
    def known(self) -> KnownEdges | None:
        return None if self.found is None or self.found.parameters is None else self.found.parameters.known

    @property
    def rows(self) -> int:
        return 0 if self.memory is None else self.memory.rows

    @cached_property
    def spread(self) -> Spread | None:
        """How far the couplings may be off."""
        if self.uncertainty is None:
            return None
        rows, columns = positions(self.uncertainty.parameters)
        root = self.uncertainty.root
        return Spread(rows, columns, root[:, root.any(axis=0)])

    def warm(self) -> None:
        self.spread  # noqa: B018

    def acting(self) -> BoolArray:
        blocks = list(zip(self.units.state_slices, self.units.input_slices, strict=True))
        return np.array([[bool(self.A[m, n].any() or self.B[m, u].any()) for n, u in blocks] for m, _ in blocks])

    def graph(self, rate: float) -> InfluenceGraph:
        if self.uncertainty is None or self.observation is None:
            raise OptionError("graph: standard errors were not computed for this fit; fit with uncertainty=True")
        return influence_graph(self.A, self.B, self.observation, self.uncertainty, rate)

    def ensemble(self, states: FloatArray, limited: float = 0.0) -> Ensemble:
        """The first member is the estimate, and the others are drawn about it."""
        drawn = len(states) - 1
        return Ensemble(states[0], states[1:] if drawn else states, freedom=drawn, limited=limited)

    def on(self, record: SharedRecord | None) -> LinearGrounded:
        return LinearGrounded(self, record)


class LinearRun(Run):
    """Draws of an uncertain linear model; the first is the estimate itself."""

    def __init__(
        self, on: LinearGrounded, row: int | None, steps: int, apart: bool, alone: bool, still: Sequence[str]
    ) -> None:
        model, spread = on.model, None if alone else on.model.spread
        P, worlds = len(model.A), 1 if spread is None else 1 + DRAWS
        self.AB = np.repeat(np.hstack([model.A, model.B])[None], worlds, axis=0)
        if spread is not None:
            drawn = np.random.default_rng(0).standard_normal((DRAWS, spread.root.shape[1]))
            self.AB[1:, spread.rows, spread.columns] += drawn @ spread.root.T
        self.AB = self.AB * on.moving(still)
        self.usual = np.maximum(on.u.std(axis=0), 1e-12 + 1e-3 * np.abs(on.u).max(axis=0, initial=0.0))
        smoothed, last, _ = on.states
        self.base = on.inputs_acting(row, steps) if apart else np.zeros((steps, model.B.shape[1]))
        self.begin = np.tile(np.zeros(P) if apart else last, (worlds, 1))
        self.size = np.maximum(np.abs(smoothed).max(axis=0), 1e-9)
        self.states = np.zeros((worlds, steps, P))

    def advance(self, first: int, last: int, inputs: FloatArray) -> float:
        moved = np.broadcast_to(inputs - self.base[first:last], (self.worlds, last - first, self.base.shape[1]))
        now = self.states[:, first - 1] if first else self.begin
        for t in range(first, last):
            now = np.matmul(self.AB, np.hstack([now, moved[:, t - first]])[:, :, None])[:, :, 0]
            self.states[:, t] = now
        away = float((np.abs(self.states[:, first:last]) / self.size).max(initial=0.0))
        return away if np.isfinite(away) else np.inf

    def response(self, first: int, rows: int, column: int) -> FloatArray:
        P, out = self.states.shape[2], np.zeros((self.worlds, rows, self.states.shape[2]))
        out[:, 0] = self.AB[:, :, P + column]
        for t in range(1, rows):
            out[:, t] = np.matmul(self.AB[:, :, :P], out[:, t - 1, :, None])[:, :, 0]
        return out


@dataclass(frozen=True, eq=False)
class LinearGrounded(Grounded):
    """A Kalman filter tells where it stands."""

    model: LinearModel

    def start(
        self, row: int | None, steps: int, *, apart: bool, alone: bool = False, still: Sequence[str] = ()
    ) -> LinearRun:
        return LinearRun(self, row, steps, apart, alone, still)

    def moving(self, still: Sequence[str]) -> FloatArray:
        """(P, 1): zero for states of units that do not move."""
        out = np.ones((len(self.model.A), 1))
        for name, own in zip(self.model.units.names, self.model.units.state_slices, strict=True):
            out[own] = name not in still
        return out

    # ---- worlds

    def response(self, schedule: FloatArray, row: int | None = None, still: Sequence[str] = ()) -> Ensemble:
        moving = self.moving(still)
        drive = schedule @ (moving * self.model.B).T
        found = linear_recurrence(moving * self.model.A, drive, np.zeros(len(moving)))
        return Ensemble(found, found[None])

    def difference(self, schedule: FloatArray, row: int | None, unit: int) -> tuple[Uncertain, None]:
        own = self.model.units.state_slices[unit]
        found = self.response(schedule).mean
        return Uncertain(found[:, own], *self._remembered(schedule, found, own)), None

    def ahead(self, inputs: FloatArray, unit: int) -> Uncertain:
        own, last = self.model.units.state_slices[unit], self.states[1]
        found = linear_recurrence(self.model.A, inputs @ self.model.B.T, last)
        drive = np.hstack([np.vstack([last, found[:-1]]), inputs])
        return Uncertain(found[:, own], *along_roots(self.model.A, self.model.spread, drive, own))

    @cached_property
    def _unit_directions(self) -> Callable[[bytes, tuple[int, ...], int, int], FloatArray]:
        """Directions (k, inputs, n, q) of schedules of size one, the latest few of which are kept.

        Who moves a slider asks for the same schedule again and again in other sizes, in which the answer is linear.
        """
        A, B, spread = self.model.A, self.model.B, self.model.spread
        assert spread is not None

        @lru_cache(maxsize=_REMEMBERED)
        def directions(shapes: bytes, moved: tuple[int, ...], first: int, last: int) -> FloatArray:
            series = np.frombuffer(shapes).reshape(-1, len(moved))
            alone = np.zeros((len(moved), len(series), B.shape[1]))
            alone[np.arange(len(moved)), :, moved] = series.T
            drives = np.stack([_drive(linear_recurrence(A, one @ B.T, np.zeros(len(A))), one) for one in alone])
            return directions_along(A, spread, drives, slice(first, last))

        return directions

    def _remembered(self, schedule: FloatArray, found: FloatArray, own: slice) -> tuple[FloatArray, FloatArray | None]:
        """Covariance and directions of the answer to inputs ``schedule`` from rest, whose states are ``found``."""
        spread, moved = self.model.spread, np.flatnonzero(schedule.any(axis=0))
        numbers = len(moved) * len(schedule) * (own.stop - own.start) * (0 if spread is None else spread.root.shape[1])
        finite = bool(np.isfinite(schedule).all())
        if spread is None or not 0 < len(moved) <= _MOST_SCHEDULES or numbers > _LARGEST or not finite:
            return along_roots(self.model.A, spread, _drive(found, schedule), own)
        sizes = schedule[np.abs(schedule[:, moved]).argmax(axis=0), moved]  # with their sign
        shapes = np.round(schedule[:, moved] / sizes, _DIGITS) + 0.0  # + 0.0: no minus before a zero
        kept = self._unit_directions(shapes.tobytes(), tuple(moved.tolist()), own.start, own.stop)
        directions = np.einsum("a,kanp->knp", sizes, kept)
        return _covariance(directions), directions

    # ---- the rows themselves

    def predictor(self, observation: FloatArray, level: FloatArray, early: BoolArray) -> Predictor:
        record, memory = self.record, self.model.memory
        assert record is not None
        A, B = self.model.A, self.model.B
        steady = steady_state(A, record.observation, self.model.Q, record.noise)
        mean, last = (self.states[1], record.u[-1]) if memory is None else (memory.mean, memory.last_input)
        return StatePredictor(record, A @ mean + B @ last, A, B, steady.gain)

    def follow(self, new: SharedRecord, acting: FloatArray) -> Followed:
        """What the past said is kept as a quadratic around the estimate."""
        model, record, memory = self.model, self.record, self.model.memory
        assert record is not None
        if memory is None:  # what was taken in later is not kept
            assert model.found is not None
            assert model.uncertainty is not None
            if record.values.shape[1:] == new.values.shape[1:]:  # pooled rows do not look like messages
                refuse_repeated(record.values, new.values)
            memory = remember(record, model.found, model.uncertainty)
        last = np.where(np.isnan(acting), memory.last_input, acting)
        found, spread, later = update(replace(memory, last_input=last), new)
        told = f"updated with {len(new.values)} rows in {found.evaluations} passes over them; {later.rows} rows in all"
        return Followed({"found": found, "spread": spread, "memory": later}, told, found)


# ---- derivatives along the roots of the couplings' covariance


def along_roots(
    A: FloatArray, spread: Spread | None, drive: FloatArray, own: slice
) -> tuple[FloatArray, FloatArray | None]:
    """Covariance (n q, q) of states driven by [A B] x[t-1], x = ``drive`` (n, P+U), and directions (k, n, q).

    Where directions are too many to be kept, they are directions at random, with the same covariance in the mean; None:
    there are too many numbers even so.
    """
    n, size = len(drive), own.stop - own.start
    if spread is None:
        return np.zeros((0, size)), np.zeros((0, n, size))
    k = spread.root.shape[1]
    if n * size * k <= LARGEST:
        directions = directions_along(A, spread, drive[None], own)[:, 0]
        return _covariance(directions), directions if n * size * KEPT <= LARGEST else None
    drawn = np.random.default_rng(0).standard_normal((k, 2 * KEPT)) / np.sqrt(2 * KEPT)
    kept = np.zeros((n, size, 2 * KEPT)) if n * size * KEPT <= LARGEST else None
    blocks = np.zeros((n, size, size))
    for t, Z in _moved(A, spread, drive[None]):
        blocks[t] = Z[own] @ Z[own].T
        if kept is not None:
            kept[t] = Z[own] @ drawn
    blocks[t + 1 :] = blocks[t]
    if kept is not None:
        kept[t + 1 :] = kept[t]
    return blocks.reshape(-1, size), None if kept is None else kept.transpose(2, 0, 1)


def directions_along(A: FloatArray, spread: Spread, drives: FloatArray, own: slice) -> FloatArray:
    """How far states (k, q, n, P_m), driven by each of ``drives`` (q, n, P+U), move along each root."""
    q, n, _ = drives.shape
    size, k = own.stop - own.start, spread.root.shape[1]
    out = np.zeros((n, size, q, k))
    for t, Z in _moved(A, spread, drives):
        out[t] = Z[own].reshape(size, q, k)
    out[t + 1 :] = out[t]
    return out.transpose(3, 2, 0, 1)


def _covariance(directions: FloatArray) -> FloatArray:
    return np.asarray(np.einsum("kni,knj->nij", directions, directions).reshape(-1, directions.shape[2]))


def _drive(states: FloatArray, schedule: FloatArray) -> FloatArray:
    """[state before, input] of every row (n, P+U)."""
    return np.hstack([np.vstack([np.zeros(states.shape[1]), states[:-1]]), schedule])


def _moved(A: FloatArray, spread: Spread, drives: FloatArray) -> Iterator[tuple[int, FloatArray]]:
    """Row by row, how far all states move along each direction: (t, (P, q k)); the last one stands for the rest.

    Every direction of uncertainty drives its own copy of the system; they march side by side, until nothing moves any
    more.
    """
    q, n, _ = drives.shape
    P, k = A.shape[0], spread.root.shape[1]
    columns = [spread.columns[spread.rows == row] for row in range(P)]
    roots = [spread.root[spread.rows == row] for row in range(P)]
    rows = int(np.clip(_SLICE // max(P * q * k, 1), 1, n))
    settled = _constant_from(drives)
    Z = np.zeros((P, q * k))
    for start in range(0, n, rows):
        # what uncertainty adds in these rows: many rows at once, so that the products are large
        push = np.zeros((min(rows, n - start), P, q, k))
        for row in range(P):
            push[:, row] = (drives[:, start : start + rows, columns[row]] @ roots[row]).swapaxes(0, 1)
        before = Z
        for t, more in enumerate(push.reshape(len(push), P, -1), start):
            before, Z = Z, A @ Z + more
            yield t, Z
        if t >= settled and np.abs(Z - before).max(initial=0.0) <= _STILL * np.abs(Z).max(initial=0.0):
            return


def _constant_from(drives: FloatArray) -> int:
    """The row from which on nothing moves any more."""
    moving = np.abs(drives - drives[:, -1:]).max(axis=(0, 2)) > _STILL * np.abs(drives).max(initial=0.0)
    return int(np.flatnonzero(moving)[-1]) + 1 if moving.any() else 0
