"""Engines that carry messages, and ``fit``, which sets a federation up and runs it in one process."""

from counterflow.runtime.history import History
from counterflow.runtime.in_process import Traffic
from counterflow.runtime.options import LikelihoodOptions, TrainingOptions
from counterflow.runtime.result import Effect, Fit, Provenance, Status, UnitPart, Validation
from counterflow.runtime.training import fit

__all__ = [
    "Effect",
    "Fit",
    "History",
    "LikelihoodOptions",
    "Provenance",
    "Status",
    "Traffic",
    "TrainingOptions",
    "UnitPart",
    "Validation",
    "fit",
]
