"""The paper's results, made again: one experiment for each of its figures and tables, and for claims without one.

Examples
--------
>>> from counterflow.paper import experiments
>>> experiments.names()[:2]
('synthetic', 'disentanglement')
>>> experiments.named("synthetic").title
'Training on a synthetic plant of two units'
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from counterflow.errors import UnknownNameError

if TYPE_CHECKING:
    from counterflow.paper.experiments.experiment import Experiment

# in the order of the report: module and class of each
_PLACES = {
    "synthetic": "two_units.Synthetic",
    "disentanglement": "two_units.Disentanglement",
    "validation": "two_units.Validation",
    "transfer-function": "transfer_function.TransferFunction",
    "lagrangian": "lagrangian.Lagrangian",
    "scalability": "scalability.Scalability",
    "real-plants": "real_plants.RealPlants",
    "privacy": "privacy.PrivacyResult",
    "robustness": "robustness.Robustness",
    "convergence": "convergence.Convergence",
    "finding": "finding.Finding",
    "overhead": "overhead.Overhead",
}


def names() -> tuple[str, ...]:
    """Names of all experiments, in the order of the report."""
    return tuple(_PLACES)


def named(name: str) -> type[Experiment]:
    """The experiment of that name; its module is imported when it is asked for."""
    if name not in _PLACES:
        raise UnknownNameError(f"there is no experiment {name!r}: choose one of {', '.join(_PLACES)}, or all")
    module, kind = _PLACES[name].split(".")
    found: type[Experiment] = getattr(import_module(f"counterflow.paper.experiments.{module}"), kind)
    return found
