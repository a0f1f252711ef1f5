"""Federation across machines: jobs, durable sessions, the plants' guard, audit log and policies.

Nothing in here knows which engine carries the messages; ``counterflow.federation.flare`` does it with NVIDIA FLARE.
"""

from counterflow.federation.audit import Audit, verify
from counterflow.federation.description import Description
from counterflow.federation.guard import Guard
from counterflow.federation.job import Job
from counterflow.federation.journal import Journal
from counterflow.federation.loopback import fit_over_sessions
from counterflow.federation.machines import (
    CoordinatorResult,
    UnitData,
    coordinator_machine,
    learned_part,
    server_part,
    status_part,
    unit_machine,
)
from counterflow.federation.policy import Policy
from counterflow.federation.question_gate import QuestionGate
from counterflow.federation.sessions import CoordinatorSession, Outgoing, PlantSession

__all__ = [
    "Audit",
    "CoordinatorResult",
    "CoordinatorSession",
    "Description",
    "Guard",
    "Job",
    "Journal",
    "Outgoing",
    "PlantSession",
    "Policy",
    "QuestionGate",
    "UnitData",
    "coordinator_machine",
    "fit_over_sessions",
    "learned_part",
    "server_part",
    "status_part",
    "unit_machine",
    "verify",
]
