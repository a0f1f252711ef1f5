"""The unit's side where it has a log and no model: a few numbers a row, in a basis that it keeps to itself.

The unit standardises its measurements, finds the space in which they carry more than noise, and sends their coordinates
there: y = level + scale (W s + noise) is solved for s with the least noise. Level, scale and W stay here, so that the
server never learns what was measured; what it finds for s, the unit lifts back to its channels and engineering units.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import DataError, ProtocolError
from counterflow.identification import SignalSpace, lagged_gram, signal_space
from counterflow.methods.sufficient.unit import rows_and_channels, spans_of
from counterflow.plant import LocalModel, OperatingPoint, Unit
from counterflow.protocol import Finished, Identified, Message, Reduced, Request

FINEST = 1e-9  # of the correlations' eigenvalues: a direction in which nothing moves by itself
LEAST = 1e-6  # of a channel's variance: the least noise it is taken to have
SHORT = 3  # rows of a gap in one channel that are filled in
SPARE = 2  # numbers more than stand out of the noise: one that is missed costs more than one too many
NEIGHBOURS = 2  # rows before and after one that are asked what its numbers are without their noise


@dataclass(frozen=True)
class LogUnit:
    """All that a unit holds while its log is identified."""

    description: Unit
    y: FloatArray  # (T+1, D_m); NaN where missing
    u: FloatArray  # (T+1, U_m)
    rank: int | None = None  # numbers a row; None: as many as stand out of the noise, and some to spare
    reading: Reading | None = None
    model: LocalModel | None = None
    doubt: tuple[FloatArray, FloatArray] | None = None  # how uncertain the rows of the model's C are
    point: OperatingPoint | None = None
    finished: bool = False
    loss: float | None = None
    proprietary_loss: float = 0.0
    release: None = None  # nothing of it is private

    GIVEN: ClassVar[frozenset[str]] = frozenset({"description", "y", "u", "rank"})

    @property
    def unit(self) -> str:
        return self.description.name

    def step(self, message: Message) -> tuple[LogUnit, tuple[Message, ...]]:
        match message:
            case Request() if self.reading is None:
                state = replace(self, y=filled(self.y))
                reading = Reading.of(state.description, state.y, state.u, state.rank)
                return replace(state, reading=reading), (reading.message(state.unit, state.y, state.u),)
            case Identified() if self.reading is not None and self.model is None:
                if message.input_level.shape != (self.u.shape[1],):
                    raise ProtocolError(f"unit {self.unit!r}: the identified blocks are of other inputs")
                model, doubt = self.reading.model(self.unit, message), self.reading.doubt(message)
                point = OperatingPoint(message.input_level, message.same_row)
                return replace(self, model=model, doubt=doubt, point=point), ()
            case Finished() if self.model is not None:
                return replace(self, finished=True), ()
        raise ProtocolError(f"unit {self.unit!r} did not expect {type(message).__name__}")

    def resumed(self) -> LogUnit:
        return self if self.reading is None else replace(self, y=filled(self.y))

    def sources(self) -> tuple[list[FloatArray], list[FloatArray]]:
        return [self.y, self.u], []


def filled(y: FloatArray) -> FloatArray:
    """Measurements with their shortest gaps closed, channel by channel: up to ``SHORT`` rows keep the last reading.

    Sensors that drop a reading now and then would otherwise cost the whole row of their unit. A line to the next
    reading would look ahead: an input that moves in between would seem to be foretold.

    Examples
    --------
    >>> nan = float("nan")
    >>> filled(np.array([[1.0], [nan], [3.0], [nan], [nan], [nan], [nan], [8.0]])).ravel().tolist()
    [1.0, 1.0, 3.0, nan, nan, nan, nan, 8.0]
    """
    missing = np.isnan(y)
    if not missing.any():
        return y
    rows = np.arange(len(y))[:, None]
    last = np.maximum.accumulate(np.where(missing, -1, rows), axis=0)
    later = np.minimum.accumulate(np.where(missing, len(y), rows)[::-1], axis=0)[::-1]
    short = missing & (last >= 0) & (later < len(y)) & (later - last - 1 <= SHORT)
    return np.where(short, np.take_along_axis(y, np.maximum(last, 0), axis=0), y)


@dataclass(frozen=True)
class Reading:
    """How a unit reads its numbers s off its channels, and how s moves them: y = level + scale (L s + rest).

    ``weights`` (D_m, r): s = weightsᵀ (y - level) / scale. ``lift`` (D_m, r): L, with weightsᵀ L = I. ``rest`` (D_m,
    D_m): covariance of what the numbers leave of the standardised channels. ``scatter`` (r, r): rows of L are uncertain
    with covariance scatter times their own diagonal entry of ``rest``.
    """

    space: SignalSpace
    weights: FloatArray
    lift: FloatArray
    rest: FloatArray
    scatter: FloatArray

    @classmethod
    def of(cls, unit: Unit, y: FloatArray, u: FloatArray, rank: int | None) -> Reading:
        """Find the space in which a log carries more than noise; channels mostly missing have no part in it."""
        rows, chosen = rows_and_channels(y)
        if rows.sum() < 20:
            raise DataError(
                f"unit {unit.name!r}: {int(rows.sum())} rows with all its channels measured are too few to identify "
                "it; record more, or leave out the channels that are mostly missing"
            )
        if (np.ptp(y[np.ix_(rows, chosen)], axis=0) == 0).all():
            raise DataError(f"unit {unit.name!r}: none of its outputs ever moves; there is nothing to identify")
        known = np.where(rows[:, None], y[:, chosen], np.nan)
        try:
            most = int(chosen.sum()) if rank is not None else _different(known[rows])
            space = signal_space(known, rank=None if rank is None else min(rank, most), u=u)
            if rank is None:
                space = signal_space(known, rank=min(space.rank + SPARE, most), u=u)
        except DataError as error:
            raise DataError(f"unit {unit.name!r}: {error}") from error
        weights = space.weights
        z = (known - space.mean) / space.scale
        lift, scatter = _lifted(z, z @ weights, u, space.W)
        left = z[rows] - (z[rows] @ weights) @ lift.T
        reach = np.eye(len(lift)) - lift @ weights.T
        rest = left.T @ left / len(left) + LEAST * reach @ reach.T
        weights, lift, scatter = _along_channels(weights, lift, scatter)
        if chosen.all():
            return cls(space, weights, lift, rest, scatter)
        D = len(chosen)
        wide = np.eye(D)
        wide[np.ix_(chosen, chosen)] = rest
        out = [np.zeros((D, space.rank)), np.zeros((D, space.rank))]
        for array, narrow in zip(out, (weights, lift), strict=True):
            array[chosen] = narrow
        return cls(space.spread(chosen), out[0], out[1], wide, scatter)

    def message(self, unit: str, y: FloatArray, u: FloatArray) -> Reduced:
        """What is sent of measurements (T+1, D_m)."""
        measured, chosen = rows_and_channels(y)
        z = (y[np.ix_(measured, chosen)] - self.space.mean[chosen]) / self.space.scale[chosen]
        values = np.ascontiguousarray(z @ self.weights[chosen])
        return Reduced(unit, values, spans_of(measured), np.ascontiguousarray(u))

    def model(self, unit: str, found: Identified) -> LocalModel:
        """The unit's own model in engineering units: C = scale L C̃, R = scale (L R̃ Lᵀ + rest) scale.

        With this R the best reading of the states off a row goes by the numbers s and nothing else, as it was found.
        """
        lift, scale = self.lift, self.space.scale
        if found.observation.shape[0] != lift.shape[1]:
            raise ProtocolError(
                f"unit {unit!r} sent {lift.shape[1]} numbers a row, got back {found.observation.shape[0]}"
            )
        R = lift @ found.noise @ lift.T + self.rest
        R = scale[:, None] * (R + R.T) / 2 * scale
        return LocalModel(A=found.A, B=found.B, C=scale[:, None] * (lift @ found.observation), Q=found.Q, R=R)

    def doubt(self, found: Identified) -> tuple[FloatArray, FloatArray]:
        """Variances (D_m,) and matrix (P_m, P_m): a row of C is uncertain with covariance variance times matrix."""
        variances = np.diag(self.rest) * self.space.scale**2
        variances[~self.lift.any(axis=1)] = 0.0
        matrix = found.observation.T @ self.scatter @ found.observation
        return np.asarray(variances), np.asarray((matrix + matrix.T) / 2)


def _lifted(z: FloatArray, s: FloatArray, u: FloatArray, start: FloatArray) -> tuple[FloatArray, FloatArray]:
    """L of z = L s + rest, and the covariance of its rows up to the variance of the rest.

    s carries the noise of its own row, so it is replaced by what the neighbouring rows and the inputs say of it
    (two-stage least squares); white noise of other rows does no harm.
    """
    r, D = s.shape[1], z.shape[1]
    both = np.hstack([s, z])
    window, m = 2 * NEIGHBOURS + 1, r + D + u.shape[1]
    centred = u - u.mean(axis=0)
    gram = lagged_gram(both, centred, window)
    if gram.windows < 3 * window * (r + u.shape[1]):
        return np.array(start), np.zeros((r, r))
    G, now = gram.matrix, NEIGHBOURS * m
    at = np.arange(window * m).reshape(window, m)
    beside = np.concatenate([np.delete(at, NEIGHBOURS, axis=0)[:, :r].ravel(), at[:, r + D :].ravel()])
    size = np.sqrt(np.maximum(np.diag(G)[beside], 1e-300))
    inner = G[np.ix_(beside, beside)] / np.outer(size, size)
    values, vectors = np.linalg.eigh(inner)
    keep = values > 1e-10 * values[-1]
    half = vectors[:, keep] / np.sqrt(values[keep])
    of_s, of_z = (
        half.T @ (G[beside][:, now + columns] / size[:, None]) for columns in (np.arange(r), r + np.arange(D))
    )
    foreseen = of_s.T @ of_s  # Σ ŝ ŝᵀ
    values, vectors = np.linalg.eigh(foreseen)
    if values[0] <= 1e-6 * values[-1]:  # a direction that nothing foresees has no instrument
        return np.array(start), np.zeros((r, r))
    scatter = np.asarray((vectors / values) @ vectors.T)
    return np.asarray(of_z.T @ of_s @ scatter), scatter


def _different(y: FloatArray) -> int:
    """How many of the channels of y (n, D) are not copies or sums of others."""
    centred = y - y.mean(axis=0)
    size = np.sqrt(np.square(centred).sum(axis=0))
    moving = centred[:, size > 0] / size[size > 0]
    return max(int((np.linalg.eigvalsh(moving.T @ moving) > FINEST).sum()), 1)


def copies_of(y: FloatArray) -> list[tuple[int, int]]:
    """Pairs of channels of y (n, D) of which the second repeats the first, but for level and scale."""
    there = y[np.isfinite(y).all(axis=1)]
    if len(there) < 3:
        return []
    centred = there - there.mean(axis=0)
    size = np.sqrt(np.square(centred).sum(axis=0))
    alike = np.abs(centred.T @ centred) >= (1 - 1e-10) * np.outer(size, size)
    first = [int(np.flatnonzero(alike[k])[0]) if size[k] > 0 else k for k in range(y.shape[1])]
    return [(one, k) for k, one in enumerate(first) if one != k and size[one] > 0]


def _along_channels(
    weights: FloatArray, lift: FloatArray, scatter: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The same numbers in a basis in which each of them is one channel without its noise.

    A channel acts on few others, so that couplings are few in such a basis and many in any other.
    """
    from scipy.linalg import qr

    pivots = qr(lift.T, mode="r", pivoting=True)[1][: lift.shape[1]]
    turn = lift[np.sort(pivots)]
    back = np.linalg.inv(turn)
    return weights @ turn.T, lift @ back, back.T @ scatter @ back
