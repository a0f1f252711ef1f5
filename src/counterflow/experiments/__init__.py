"""The paper's results, made again: one experiment for each of its figures and tables, and for claims without one.

An experiment is an ``Experiment``: tasks (what to compute, each with its seeds), figures, and claims whose verdicts
are computed from the results. ``running`` computes tasks and keeps their results in a ``store.Store``;
``reporting`` writes the report. Modules are imported when asked for.

Examples
--------
>>> from counterflow import experiments
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
    from counterflow.experiments.experiment import Experiment

# name: module and attribute, in the order of the report
_HOMES = {
    "synthetic": ("synthetic", "SYNTHETIC"),
    "disentanglement": ("disentanglement", "DISENTANGLEMENT"),
    "validation": ("shifted_inputs", "VALIDATION"),
    "transfer-function": ("transfer_function", "TRANSFER_FUNCTION"),
    "lagrangian": ("lagrangian", "LAGRANGIAN"),
    "scalability": ("scalability", "SCALABILITY"),
    "real-plants": ("real_plants", "REAL_PLANTS"),
    "privacy": ("private", "PRIVACY"),
    "robustness": ("robustness", "ROBUSTNESS"),
    "convergence": ("convergence", "CONVERGENCE"),
    "finding": ("comparison", "FINDING"),
    "overhead": ("overhead", "OVERHEAD"),
}


def names() -> tuple[str, ...]:
    """Names of all experiments, in the order of the report."""
    return tuple(_HOMES)


def named(name: str) -> Experiment:
    """The experiment of that name."""
    if name not in _HOMES:
        raise UnknownNameError(f"there is no experiment {name!r}: choose one of {', '.join(_HOMES)}, or all")
    module, attribute = _HOMES[name]
    found: Experiment = getattr(import_module(f"counterflow.experiments.{module}"), attribute)
    return found
