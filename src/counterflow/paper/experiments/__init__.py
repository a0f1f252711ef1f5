"""The paper's results, made again: one experiment for each of its figures and tables, and for claims without one.

An experiment is an ``Experiment``: tasks (what to compute, each with its seeds), figures, and claims whose verdicts
are computed from the results. ``runner`` computes tasks and keeps their results in a ``store.Store``;
``reproduction`` makes the report of all that is in a folder. Modules are imported when asked for.

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

# in the order of the report; the module of each has its name, and in it ``EXPERIMENT``
_NAMES = (
    "synthetic", "disentanglement", "validation", "transfer-function", "lagrangian", "scalability", "real-plants",
    "privacy", "robustness", "convergence", "finding", "overhead",
)  # fmt: skip


def names() -> tuple[str, ...]:
    """Names of all experiments, in the order of the report."""
    return _NAMES


def named(name: str) -> Experiment:
    """The experiment of that name."""
    if name not in _NAMES:
        raise UnknownNameError(f"there is no experiment {name!r}: choose one of {', '.join(_NAMES)}, or all")
    found: Experiment = import_module(f"counterflow.paper.experiments.{name.replace('-', '_')}").EXPERIMENT
    return found
