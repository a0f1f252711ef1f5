"""The unit's side where it has a log and no model: a few numbers a row, in a basis that it keeps to itself.

The unit standardises its measurements, finds the space in which they carry more than noise, and sends their coordinates
there: y = level + scale (W s + noise) is solved for s with the least noise. Level, scale and W stay here, so that the
server never learns what was measured; what it finds for s, the unit lifts back to its channels and engineering units.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from counterflow.client.sufficient import rows_and_channels, spans_of
from counterflow.errors import DataError, ProtocolError
from counterflow.identification import SignalSpace, signal_space
from counterflow.plant import LocalModel, OperatingPoint, Unit
from counterflow.protocol import Finished, Identified, Message, Reduced, Request

FloatArray = NDArray[np.float64]
LEAST = 1e-6  # of a channel's variance: the least noise it is taken to have


@dataclass(frozen=True)
class LogClient:
    """All that a unit holds while its log is identified."""

    description: Unit
    y: FloatArray  # (T+1, D_m); NaN where missing
    u: FloatArray  # (T+1, U_m)
    rank: int | None = None  # numbers a row; None: as many as stand out of the noise
    reading: Reading | None = None
    model: LocalModel | None = None
    point: OperatingPoint | None = None
    finished: bool = False
    loss: float | None = None

    @property
    def unit(self) -> str:
        return self.description.name


def step(state: LogClient, message: Message) -> tuple[LogClient, tuple[Message, ...]]:
    """React to one message of the server."""
    match message:
        case Request() if state.reading is None:
            reading = Reading.of(state.description, state.y, state.u, state.rank)
            return replace(state, reading=reading), (reading.message(state.unit, state.y, state.u),)
        case Identified() if state.reading is not None and state.model is None:
            if message.input_level.shape != (state.u.shape[1],):
                raise ProtocolError(f"unit {state.unit!r}: the identified blocks are of other inputs")
            model = state.reading.model(state.unit, message)
            return replace(state, model=model, point=OperatingPoint(message.input_level, message.same_row)), ()
        case Finished() if state.model is not None:
            return replace(state, finished=True), ()
    raise ProtocolError(f"unit {state.unit!r} did not expect {type(message).__name__}")


@dataclass(frozen=True)
class Reading:
    """How a unit reads its numbers s off its channels: y = level + scale (W s + noise)."""

    space: SignalSpace
    noise: FloatArray  # (D_m,) variance in each standardised channel of what W s leaves

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
            space = signal_space(known, rank=None if rank is None else min(rank, int(chosen.sum())), u=u)
        except DataError as error:
            raise DataError(f"unit {unit.name!r}: {error}") from error
        space = space if chosen.all() else space.spread(chosen)
        used = space.W.any(axis=1)
        noise = np.where(used & np.isfinite(space.noise), np.maximum(space.noise, LEAST), 1.0)
        # what the channels do beyond W s and white noise is noise, too, to whoever reads s
        first = cls(space, noise)
        z = (y[rows] - space.mean) / space.scale
        left = z[:, used] - (z[:, used] @ first.weights[used]) @ space.W[used].T
        expected = noise[used] - np.einsum("ir,rs,is->i", space.W[used], first.covariance, space.W[used])
        noise[used] += np.maximum(np.square(left).mean(axis=0) - expected, 0.0)
        return cls(space, noise)

    @cached_property
    def covariance(self) -> FloatArray:
        """Of s, read off one row: (Wᵀ N⁻¹ W)⁻¹."""
        return np.asarray(np.linalg.inv(self.space.W.T @ (self.space.W / self.noise[:, None])))

    @cached_property
    def weights(self) -> FloatArray:
        """(D_m, r): s = weightsᵀ (y - level) / scale."""
        return np.asarray(self.space.W / self.noise[:, None] @ self.covariance)

    def message(self, unit: str, y: FloatArray, u: FloatArray) -> Reduced:
        """What is sent of measurements (T+1, D_m)."""
        measured, _ = rows_and_channels(y)
        used = self.space.W.any(axis=1)
        values = ((y[measured] - self.space.mean) / self.space.scale)[:, used] @ self.weights[used]
        return Reduced(
            unit, np.ascontiguousarray(values), spans_of(measured), np.diag(self.covariance).copy(),
            np.ascontiguousarray(u),
        )  # fmt: skip

    def model(self, unit: str, found: Identified) -> LocalModel:
        """The unit's own model in engineering units.

        C = scale W C̃, and R such that s, read off a row, has the noise that was found, and reading it off in the best
        way is what was done: R = scale (N + W (R̃ - (Wᵀ N⁻¹ W)⁻¹) Wᵀ) scale.
        """
        W, scale = self.space.W, self.space.scale
        if found.observation.shape[0] != W.shape[1]:
            raise ProtocolError(f"unit {unit!r} sent {W.shape[1]} numbers a row, got back {found.observation.shape[0]}")
        R = np.diag(self.noise) + W @ (found.noise - self.covariance) @ W.T
        R = scale[:, None] * (R + R.T) / 2 * scale
        return LocalModel(A=found.A, B=found.B, C=scale[:, None] * (W @ found.observation), Q=found.Q, R=R)
