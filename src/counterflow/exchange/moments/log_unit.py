"""The unit's side where it has a log and no model: its channels, brought to their instruments' ranges, projected."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.errors import DataError, PrivacyError, ProtocolError
from counterflow.exchange.moments.private import SHARES, MomentRelease
from counterflow.exchange.moments.unit import projected
from counterflow.exchange.sufficient.unit import rows_and_channels, spans_of
from counterflow.plant import LocalModel, OperatingPoint, Unit
from counterflow.privacy import Privacy
from counterflow.protocol import Basis, Finished, Identified, Message, Moments, Outline, Request


@dataclass(frozen=True)
class MomentLogUnit:
    """All that a unit without a model holds while moments are asked of it."""

    description: Unit
    y: FloatArray  # (T+1, D_m); NaN where missing
    u: FloatArray  # (T+1, U_m)
    privacy: Privacy | None = None
    standard: tuple[FloatArray, FloatArray] | None = None  # of a later window: ranges, as they were in the first
    basis: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    release: MomentRelease | None = None
    told: bool = False
    round: int = 0  # that comes next
    model: LocalModel | None = None
    point: OperatingPoint | None = None
    finished: bool = False
    loss: float | None = None
    proprietary_loss: float = 0.0

    GIVEN: ClassVar[frozenset[str]] = frozenset({"description", "y", "u", "privacy", "standard"})

    @property
    def unit(self) -> str:
        return self.description.name

    def step(self, message: Message) -> tuple[MomentLogUnit, tuple[Message, ...]]:
        match message:
            case Request() if not self.told:
                return replace(self, told=True), (self.outline(),)
            case Basis() if self.told and message.round == self.round < (1 if self.privacy is None else len(SHARES)):
                return self._projected(message)
            case Identified() if self.round and self.model is None:
                return self._identified(message), ()
            case Finished() if self.told:
                return replace(self, finished=True), ()
        raise ProtocolError(f"unit {self.unit!r} did not expect {type(message).__name__}")

    def _projected(self, message: Basis) -> tuple[MomentLogUnit, tuple[Moments, ...]]:
        basis = message.functions if len(message.functions) else self.basis
        moments, release = projected(
            self.unit, *self.numbers, basis, message, self.privacy, hashlib.sha256(self.u.tobytes()).hexdigest()
        )
        return replace(self, basis=basis, release=release, round=self.round + 1), (moments,)

    def outline(self) -> Outline:
        """All but its measurements."""
        inputs, numbers = self.u.shape[1], int(self.channels.sum())
        none = np.zeros((0, 0))
        rows, _ = rows_and_channels(self.y)
        return Outline(
            self.unit, none, np.zeros((0, inputs)), none, np.zeros((numbers, 0)), self.u, spans_of(rows)
        )  # fmt: skip

    @property
    def channels(self) -> NDArray[np.bool_]:
        """(D_m,) that are told of: those that are there most of the time."""
        return rows_and_channels(self.y)[1]

    @property
    def numbers(self) -> tuple[FloatArray, NDArray[np.bool_]]:
        """(T+1, r) channels by their ranges, and which rows are whole; what they are in others does not matter."""
        middle, half = self.ranges
        rows, chosen = rows_and_channels(self.y)
        with np.errstate(over="ignore"):
            return (self.y[:, chosen] - middle[chosen]) / half[chosen], rows

    @property
    def ranges(self) -> tuple[FloatArray, FloatArray]:
        """Middle and half width (D_m,) of each channel: of its limits; of its readings, where nothing is private."""
        if self.standard is not None:
            return self.standard
        middle, half = np.zeros(self.y.shape[1]), np.ones(self.y.shape[1])
        for k, channel in enumerate(self.description.outputs):
            limits = channel.limits
            if limits is not None and np.isfinite(limits).all():
                middle[k], half[k] = (limits[0] + limits[1]) / 2, (limits[1] - limits[0]) / 2
            elif self.privacy is not None:
                raise PrivacyError(
                    f"unit {self.unit!r}: channel {channel.name!r} has no finite limits, and a private fit from logs "
                    "is standardised by the instruments' ranges, not by readings: give counterflow.Channel("
                    f"{channel.name!r}, limits=(low, high)) of the instrument",
                    code="limits-needed",
                )
            else:
                known = self.y[np.isfinite(self.y[:, k]), k]
                if len(known) < 2:
                    raise DataError(f"unit {self.unit!r}: channel {channel.name!r} was hardly ever read: leave it out")
                middle[k], half[k] = known.mean(), max(float(known.std()), 1e-300)
        return middle, half

    def _identified(self, message: Identified) -> MomentLogUnit:
        _, half = self.ranges
        chosen = self.channels
        if message.observation.shape[0] != chosen.sum() or message.input_level.shape != (self.u.shape[1],):
            raise ProtocolError(f"unit {self.unit!r}: the identified blocks are of other numbers or inputs")
        C = np.zeros((len(half), message.observation.shape[1]))
        C[chosen] = half[chosen, None] * message.observation
        R = np.diag(np.square(half))
        R[np.ix_(chosen, chosen)] = message.noise * np.outer(half[chosen], half[chosen])
        model = LocalModel(A=message.A, B=message.B, C=C, Q=message.Q, R=R)
        return replace(self, model=model, point=OperatingPoint(message.input_level, message.same_row))

    def resumed(self) -> MomentLogUnit:
        return self

    def sources(self) -> tuple[list[FloatArray], list[FloatArray]]:
        return [self.y, self.u], []
