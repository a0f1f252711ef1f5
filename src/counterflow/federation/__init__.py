"""Federation across machines: jobs, durable sessions, the plants' guard, audit log and policies.

Nothing in here knows which engine carries the messages; ``counterflow.federation.flare`` does it with NVIDIA FLARE.
"""

from __future__ import annotations

from pathlib import Path

from counterflow.exchange.task import UnitData
from counterflow.federation.asking import PlantView
from counterflow.federation.audit import Audit, verify
from counterflow.federation.guard import Guard
from counterflow.federation.job import Job
from counterflow.federation.parts import CoordinatorResult
from counterflow.federation.policy import Policy
from counterflow.federation.question_gate import QuestionGate
from counterflow.federation.sessions import CoordinatorSession, PlantSession
from counterflow.federation.turns import Outgoing

__all__ = [
    "Audit", "CoordinatorResult", "CoordinatorSession", "Guard", "Job", "Outgoing", "PlantSession",
    "PlantView", "Policy", "QuestionGate", "UnitData", "plant", "verify",
]  # fmt: skip


def plant(folder: str | Path, fit: str | None = None, patience: float = 60.0) -> PlantView:
    """What the plant of a folder that ``counterflow federation join`` made sees of a finished fit: it can ask.

    Parameters
    ----------
    folder : the plant's; its site must run.
    fit : the job; default: the latest.
    patience : seconds to wait for an answer.
    """
    from counterflow.federation.sites.plant_folder import PlantFolder

    return PlantFolder.open(Path(folder)).view(fit, patience)
