"""Engines that carry messages, and ``fit``, which sets a federation up and runs it in one process."""

from counterflow.counterfactual import Attribution, Effect, Restoration, Trajectory
from counterflow.runtime.history import History
from counterflow.runtime.in_process import Traffic
from counterflow.runtime.leakage import Transcript
from counterflow.runtime.options import LikelihoodOptions, TrainingOptions
from counterflow.runtime.outcome import Provenance, Status
from counterflow.runtime.privacy import PrivacyReport
from counterflow.runtime.result import Fit
from counterflow.runtime.training import fit
from counterflow.runtime.unit_part import UnitPart
from counterflow.runtime.validation import Validation

__all__ = [
    "Attribution",
    "Effect",
    "Fit",
    "History",
    "LikelihoodOptions",
    "PrivacyReport",
    "Provenance",
    "Restoration",
    "Status",
    "Traffic",
    "TrainingOptions",
    "Trajectory",
    "Transcript",
    "UnitPart",
    "Validation",
    "fit",
]
