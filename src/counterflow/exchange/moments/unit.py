"""The unit's side: say what is no secret, then project the measurements on whatever signals come."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.errors import ProtocolError
from counterflow.exchange.moments.private import SHARES, MomentRelease, noise_variance, released
from counterflow.exchange.sufficient.unit import spans_of, sufficient_message
from counterflow.plant import LocalModel
from counterflow.privacy import Privacy
from counterflow.protocol import Basis, Finished, Message, Moments, Outline, Request


@dataclass(frozen=True)
class MomentUnit:
    """All that a unit with a model holds while moments are asked of it."""

    unit: str
    model: LocalModel
    y: FloatArray  # (T+1, D_m); NaN where missing
    u: FloatArray  # (T+1, U_m)
    privacy: Privacy | None = None
    basis: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))  # Φ (T+1, K) of the last round
    release: MomentRelease | None = None  # how the last message was made private
    told: bool = False
    round: int = 0  # that comes next
    finished: bool = False
    loss: float | None = None
    proprietary_loss: float = 0.0

    GIVEN: ClassVar[frozenset[str]] = frozenset({"unit", "model", "y", "u", "privacy"})

    def step(self, message: Message) -> tuple[MomentUnit, tuple[Message, ...]]:
        match message:
            case Request() if not self.told:
                return replace(self, told=True), (self.outline(),)
            case Basis() if self.told and self._due(message):
                return self._projected(message)
            case Finished() if self.told:
                return replace(self, finished=True), ()
        raise ProtocolError(f"unit {self.unit!r} did not expect {type(message).__name__}")

    def _due(self, message: Basis) -> bool:
        return message.round == self.round < (1 if self.privacy is None else len(SHARES))

    def outline(self) -> Outline:
        """All but its measurements."""
        whole = sufficient_message(self.unit, self.model, self.y, self.u, whole=True)
        model, spans = self.model, spans_of(whole.labels == 0)
        return Outline(self.unit, model.A, model.B, model.Q, whole.observation, self.u, spans)

    @property
    def numbers(self) -> tuple[FloatArray, NDArray[np.bool_]]:
        """s (T+1, r), and which rows are whole; what s is in others does not matter."""
        message = sufficient_message(self.unit, self.model, self.y, self.u, whole=True)
        return message.numbers, message.labels == 0

    def _projected(self, message: Basis) -> tuple[MomentUnit, tuple[Message, ...]]:
        basis = message.functions if len(message.functions) else self.basis
        if self.privacy is not None and self.privacy.clip is not None:
            message = replace(message, shape=np.eye(len(message.shape)))  # the clip is of the numbers themselves
        moments, release = projected(
            self.unit, *self.numbers, basis, message, self.privacy, hashlib.sha256(self.u.tobytes()).hexdigest()
        )
        return replace(self, basis=basis, release=release, round=self.round + 1), (moments,)

    def resumed(self) -> MomentUnit:
        return self

    def sources(self) -> tuple[list[FloatArray], list[FloatArray]]:
        return [self.y, self.u, *self.model.arrays], []


def projected(
    unit: str,
    numbers: FloatArray,
    there: NDArray[np.bool_],
    basis: FloatArray,
    asked: Basis,
    privacy: Privacy | None,
    digest: str,
) -> tuple[Moments, MomentRelease | None]:
    """What a unit says of its ``numbers`` s (T+1, r), if they are ``there``, in one round; private if asked to be.

    ``digest``: of its inputs, by which a seeded source tells releases apart.
    """
    rows, width = numbers.shape
    if basis.shape[0] != rows or not 1 <= basis.shape[1] <= rows or asked.shape.shape != (width, width):
        raise ProtocolError(
            f"unit {unit!r}: a basis of shape {basis.shape} for {width} numbers of {rows} rows is none; ask the "
            "coordinator what that was"
        )
    centre = asked.centre if len(asked.centre) else np.zeros((rows, width))
    if centre.shape != numbers.shape or np.linalg.matrix_rank(asked.shape) < width:
        raise ProtocolError(f"unit {unit!r}: centre or shape of the round are not of {width} numbers of {rows} rows")
    used = np.where(there[:, None], basis, 0.0)
    if privacy is None:
        values = used.T @ np.where(there[:, None], numbers, 0.0)
        return Moments(unit, asked.round, values, np.zeros((width, width))), None
    with np.errstate(all="ignore"):
        moved = (numbers - centre) @ asked.shape.T
    names = unit, str(privacy.start), digest, str(asked.round)
    noised, release = released(moved, there, basis, privacy, asked.round, asked.least, *names)
    back = np.linalg.inv(asked.shape)
    values = noised @ back.T + used.T @ centre
    noise = noise_variance(release) * back @ back.T
    return Moments(unit, asked.round, np.ascontiguousarray(values), (noise + noise.T) / 2, release.may_clip), release
