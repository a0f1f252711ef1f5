"""What comes of a fit, apart from the answers: how it ended, where it comes from, what the server has learned."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property

from counterflow import wording
from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat
from counterflow.learning.identifiability import Doubt
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.log_moments import LogWindows
from counterflow.learning.model import Model
from counterflow.learning.network import Network
from counterflow.learning.network_model import model_from
from counterflow.learning.optimiser import Estimated
from counterflow.learning.regime_sums import Regime
from counterflow.learning.stream import Stream
from counterflow.learning.uncertainty import Memory, Uncertainty
from counterflow.plant.units import OperatingPoint


@dataclass(frozen=True)
class Provenance:
    """Where a result comes from.

    ``id`` names the fit: between machines its job does; otherwise it is a digest of data, method, seed and options.
    ``fitted``: when that was, or when its job was started; UTC, ISO 8601.

    Examples
    --------
    >>> print(Provenance("1.0", 0, "", "sufficient", "fit-1", "2026-03-01T09:30:00+00:00"))
    fit fit-1 of 2026-03-01 09:30 UTC
    """

    version: str
    seed: int
    data_digest: str
    method: str
    id: str
    fitted: str = field(compare=False)

    def __post_init__(self) -> None:
        wording.moment(self.fitted)  # raises ValueError if it is no time

    @classmethod
    def of(cls, version: str, seed: int, data_digest: str, method: str, options: Mapping[str, object]) -> Provenance:
        """Of a fit that is made here and now; SOURCE_DATE_EPOCH may say when, so that a command gives the same file."""
        told = repr((data_digest, method, seed, sorted((name, str(value)) for name, value in options.items())))
        epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
        now = (datetime.fromtimestamp(int(epoch), UTC) if epoch.isdecimal() else datetime.now(UTC)).isoformat(
            timespec="seconds"
        )
        return cls(version, seed, data_digest, method, hashlib.sha256(told.encode()).hexdigest()[:12], now)

    def __str__(self) -> str:
        return f"fit {self.id} of {wording.moment(self.fitted)}"

    def to_json(self) -> dict[str, str]:
        """What an answer names its fit by."""
        return {"id": self.id, "fitted": self.fitted}


@dataclass(frozen=True)
class Status:
    """How a fit ended. ``gradient`` is relative to the first round of the last phase."""

    converged: bool
    rounds: int
    gradient: float
    message: str

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True)
class RoundRecord:
    """Losses of one round of an iterative method as the server knows them, at the point that the units have sent."""

    round: int
    phase: str
    server_loss: float  # the phase's own objective
    residual_loss: float  # 1/T Σ |r|²
    disentanglement: float  # 1/T Σ |D|²
    delta_d: tuple[float, ...]  # |phi_m - mean of Σ_n B̂_mn u_n|
    gradient: float  # of the whole objective, relative to the first round of the phase; known one round later for units


@dataclass(frozen=True, eq=False)
class Couplings:
    """What the server knows after a maximum-likelihood fit: estimate, data it rests on, uncertainty, doubts."""

    found: Estimated
    shared: SharedRecord
    spread: Uncertainty | None
    doubts: tuple[Doubt, ...]
    memory: Memory | None = None  # of an updated fit: what is kept of all rows so far
    network: Network | None = None  # of a fit from logs: what its effects are computed with
    stream: Stream | None = None  # of an updated fit from logs: what is kept of all rows so far
    regimes: tuple[Regime, ...] = ()  # of a fit from logs whose plant changed: its ways of running
    of_moments: bool = False  # units have sent moments alone: ``shared`` knows nothing but inputs
    windows: LogWindows | None = field(default=None, metadata={"optional": True})  # of logs: what moments have told

    @cached_property
    def model(self) -> Model:
        """The simulators of all units, made of what is kept here: all that questions and checks rest on."""
        return model_from(self.found, self.shared, self.spread, self.memory, self.network, self.regimes, self.stream)


@dataclass(frozen=True, eq=False)
class StandardErrors:
    """Of every entry of A (P, P) and B (P, U): zero where given, NaN where the data do not determine it."""

    A: FloatArray
    B: FloatArray


@dataclass(frozen=True, eq=False)
class Learned:
    """What the server has when an exchange is over, by any method.

    ``Q``: process noise; None where it is not sent and no question needs it. ``points``: where the inputs rest, and
    which row they act on, of units fitted from logs.
    """

    A: FloatArray
    B: FloatArray
    Q: FloatArray | None
    states: tuple[int, ...]  # of every unit, in the order of the task
    status: Status
    couplings: Couplings | None = None
    caveats: tuple[Caveat, ...] = ()
    points: Mapping[str, OperatingPoint] = field(default_factory=dict)
