"""What a fit is asked to do and what comes of it, apart from the answers: task, status, provenance, couplings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from counterflow.arrays import FloatArray
from counterflow.estimation.identifiability import Doubt
from counterflow.estimation.likelihood import SharedRecord
from counterflow.estimation.online import Memory
from counterflow.estimation.optimiser import Estimated
from counterflow.estimation.uncertainty import Uncertainty
from counterflow.methods.estimators import Estimator
from counterflow.methods.published.server import TrainingServer
from counterflow.plant import LocalModel, Recording
from counterflow.privacy import Privacy

if TYPE_CHECKING:
    from counterflow.methods.estimators import Estimator
    from counterflow.methods.options import TrainingOptions
    from counterflow.methods.published.server import TrainingServer
    from counterflow.protocol import Message



@dataclass(frozen=True)
class Provenance:
    """Where a result comes from."""

    version: str
    seed: int
    data_digest: str
    method: str


@dataclass(frozen=True)
class Task:
    """One call of ``fit``, checked: what every method needs to know."""

    recording: Recording
    local: Mapping[str, LocalModel]
    method: str
    provenance: Provenance
    options: Mapping[str, Any]
    progress: bool
    watch: Callable[[Message, bool], None] | None
    over_the_wire: bool
    estimators: Mapping[str, Estimator] | None
    privacy: Privacy | None = None


@dataclass(frozen=True)
class Status:
    """How a fit ended. ``gradient`` is relative to the first round of the last phase."""

    converged: bool
    rounds: int
    gradient: float
    message: str

    def __str__(self) -> str:
        return self.message

    @classmethod
    def of_training(cls, state: TrainingServer, options: TrainingOptions) -> Status:
        record = state.record
        assert record is not None
        if state.converged:
            text = f"converged in {state.round} rounds to a relative gradient of {options.tol:g}"
        elif options.loss_tol is not None and record.server_loss <= options.loss_tol:
            text = f"stopped in round {state.round}: the server loss {record.server_loss:.4g} is at or below loss_tol"
        else:
            given = any(step is not None for step in (options.eta_1, options.eta_2, options.gamma_1, options.gamma_2))
            other = options.solver == "gradient" and not given and record.phase == "penalty"
            remedy = "give more rounds, or solver='conjugate'" if other else "give more rounds"
            text = f"not converged: relative gradient {record.gradient:.2g} after {state.round} rounds; {remedy}"
        gradient = state.settled_gradient if state.settled else record.gradient
        return cls(state.converged, state.round, gradient, text)


@dataclass(frozen=True, eq=False)
class Couplings:
    """What the server knows after a maximum-likelihood fit: estimate, data it rests on, uncertainty, doubts."""

    found: Estimated
    shared: SharedRecord
    spread: Uncertainty | None
    doubts: tuple[Doubt, ...]
    memory: Memory | None = None  # of an updated fit: what is kept of all rows so far
    form: str = "partitioned"  # or "free": its states belong to no unit, so there are no couplings to look at


@dataclass(frozen=True, eq=False)
class StandardErrors:
    """Of every entry of A (P, P) and B (P, U): zero where given, NaN where the data do not determine it."""

    A: FloatArray
    B: FloatArray
