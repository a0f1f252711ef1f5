"""The unit's side of the default method: one message that says all its measurements know about the states.

Write R^{-1/2} C = U S Vᵀ (rank r). Then s[t] = Uᵀ R^{-1/2} y[t] = C̃ h[t] + N(0, I), C̃ = S Vᵀ, is a sufficient
statistic: the likelihood of (A, B, Q) given all y differs from that given all s by a constant. y, C, R stay here. A row
in which some channels are missing has the C and R of the others, and so a C̃ of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.errors import ProtocolError
from counterflow.exchange.sufficient.private import PrivateRelease, privatised
from counterflow.filtering import compress_by_presence
from counterflow.plant import LocalModel
from counterflow.privacy import Privacy
from counterflow.protocol import Finished, Message, Request, Sufficient


@dataclass(frozen=True)
class SufficientUnit:
    """All that a unit holds while a sufficient message is asked of it."""

    unit: str
    model: LocalModel
    y: FloatArray  # (T+1, D_m); NaN where missing
    u: FloatArray  # (T+1, U_m)
    privacy: Privacy | None = None
    release: PrivateRelease | None = None  # how the message was made private
    sent: bool = False
    finished: bool = False
    loss: float | None = None
    proprietary_loss: float = 0.0

    GIVEN: ClassVar[frozenset[str]] = frozenset({"unit", "model", "y", "u", "privacy"})

    def step(self, message: Message) -> tuple[SufficientUnit, tuple[Message, ...]]:
        match message:
            case Request() if not self.sent:
                message = sufficient_message(self.unit, self.model, self.y, self.u, whole=self.privacy is not None)
                if self.privacy is None:
                    return replace(self, sent=True), (message,)
                message, release = privatised(message, self.model, self.privacy)
                return replace(self, sent=True, release=release), (message,)
            case Finished() if self.sent:
                return replace(self, finished=True), ()
        raise ProtocolError(f"unit {self.unit!r} did not expect {type(message).__name__}")

    def resumed(self) -> SufficientUnit:
        return self

    def sources(self) -> tuple[list[FloatArray], list[FloatArray]]:
        return [self.y, self.u, *self.model.arrays], []


def sufficient_message(
    unit: str, model: LocalModel, y: FloatArray, u: FloatArray, *, whole: bool = False
) -> Sufficient:
    """Compress measurements (T+1, D_m), NaN where missing: every reading counts.

    ``whole``: of whole rows only, as private releases need, which are proven for rows that all see the states alike. A
    row is then whole if all channels are there that are measured most of the time; others are left out altogether.

    Examples
    --------
    >>> import counterflow as cf
    >>> from counterflow.exchange.sufficient.unit import sufficient_message
    >>> plant = cf.random_plant(units=1, states=2, outputs=8, rng=0)
    >>> record = plant.simulate(100, rng=1)[plant.names[0]]
    >>> y = record.y.copy()
    >>> y[::5, :6] = np.nan  # most channels are slow
    >>> message = sufficient_message("boiler", plant.local(plant.names[0]), y, record.u)
    >>> message.numbers.shape, message.ranks.tolist()
    ((101, 2), [2.0, 2.0])
    """
    C, R = model.C, model.R
    if whole:
        rows, chosen = rows_and_channels(y)
        C, R, y = C[chosen], R[np.ix_(chosen, chosen)], np.where(rows[:, None], y[:, chosen], np.nan)
    found = compress_by_presence(y, C, R)
    return Sufficient.of(unit, (model.A, model.B, model.Q), found.observations, found.labels, found.values, u)


def spans_of(measured: NDArray[np.bool_]) -> FloatArray:
    """Rows that were measured, as half-open intervals (k, 2)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], measured, [False]]).astype(np.int8)))
    return edges.reshape(-1, 2).astype(np.float64)


def rows_and_channels(y: FloatArray) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which rows and channels of y (T+1, D_m) count as whole.

    A channel that is missing in more than half of the rows in which anything was measured (a dead sensor) would cost
    those rows: it is left out. Of the others, all must be there.
    """
    known = np.isfinite(y)
    alive = known.any(axis=1)
    chosen = known[alive].mean(axis=0) > 0.5 if alive.any() else np.ones(y.shape[1], bool)
    if not chosen.any():
        chosen = np.ones(y.shape[1], bool)
    return np.asarray(known[:, chosen].all(axis=1)), np.asarray(chosen)
