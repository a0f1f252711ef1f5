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

# in the order of the report: the class of each, which its module is named after
_NAMES = {
    "synthetic": "Synthetic",
    "disentanglement": "Disentanglement",
    "validation": "Validation",
    "transfer-function": "TransferFunction",
    "lagrangian": "Lagrangian",
    "scalability": "Scalability",
    "real-plants": "RealPlants",
    "privacy": "PrivacyResult",
    "robustness": "Robustness",
    "convergence": "Convergence",
    "finding": "Finding",
    "overhead": "Overhead",
}


def names() -> tuple[str, ...]:
    """Names of all experiments, in the order of the report."""
    return tuple(_NAMES)


def named(name: str) -> type[Experiment]:
    """The experiment of that name; its module is imported when it is asked for."""
    if name not in _NAMES:
        raise UnknownNameError(f"there is no experiment {name!r}: choose one of {', '.join(_NAMES)}, or all")
    module = import_module(f"counterflow.paper.experiments.{name.replace('-', '_')}")
    found: type[Experiment] = getattr(module, _NAMES[name])
    return found
