"""References that need everything in one place: what no federation may do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

import numpy as np

from counterflow.arrays import block_diagonal
from counterflow.errors import OptionError
from counterflow.exchange.controllers import known_controllers
from counterflow.exchange.method import Progress
from counterflow.exchange.outcome import Learned, Provenance, Status
from counterflow.exchange.part import given_part
from counterflow.exchange.registry import ROWS
from counterflow.exchange.rows import LikelihoodOptions, learned_maximum
from counterflow.exchange.sensors import readings
from counterflow.exchange.task import LocalTask, Task, UnitData
from counterflow.fits import complete
from counterflow.fits.engine import Traffic
from counterflow.fits.fit import Fit
from counterflow.fits.history import Recorder
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.optimiser import maximum_likelihood
from counterflow.learning.parameters import Estimate
from counterflow.plant import LocalModel, Plant


def centralized(task: Task, own: Mapping[str, UnitData], provenance: Provenance, progress: Progress) -> Fit:
    """The same likelihood on pooled raw data."""
    ROWS.check(task)
    chosen = LikelihoodOptions.parse(task.method, task.options)
    read = {name: readings(task, brought) for name, brought in own.items()}
    shared = pool({name: replace(brought, y=read[name].y) for name, brought in own.items()})
    found = maximum_likelihood(
        shared, cast(Estimate, chosen.estimate), tolerance=chosen.tol, evaluations=chosen.evaluations,
        known=chosen.known_edges(task.units), progress=progress,
    )  # fmt: skip
    traffic = Traffic(1, sum(brought.y.nbytes + brought.u.nbytes for brought in own.values()), 0)
    made = _fit(task, own, learned_maximum(task, shared, found), traffic, provenance)
    told = {n: replace(part, sensors=read[n].sensors, caveats=read[n].caveats) for n, part in made.parts.items()}
    return replace(made, parts=told)


def oracle(task: Task, own: Mapping[str, UnitData], plant: Plant, provenance: Provenance) -> Fit:
    """The true plant; nothing is estimated."""
    if task.options:
        raise OptionError(f"fit: method 'oracle' has no options, got {', '.join(map(repr, task.options))}")
    status = Status(True, 0, 0.0, "the true plant was given; nothing was estimated")
    ordered = LocalTask(task.method, {name: task.inputs[name] for name in plant.names}, dt=task.dt)
    learned = Learned(plant.A, plant.B, plant.Q, tuple(unit.states for unit in plant.units), status)
    return replace(_fit(ordered, own, learned, Traffic(0, 0, 0), provenance), plant=plant)


def _fit(task: Task, own: Mapping[str, UnitData], learned: Learned, traffic: Traffic, provenance: Provenance) -> Fit:
    server, status = complete.completed(task, learned)
    known = {name: known_controllers(task, own[name]) for name in task.units}
    parts = {name: replace(given_part(task, own[name]), controllers=known[name]) for name in task.units}
    history = Recorder(task.units).history(dict.fromkeys(task.units, 0.0))
    return complete.joined(server, status, parts, dt=task.dt, history=history, traffic=traffic, provenance=provenance)


def pool(own: Mapping[str, UnitData]) -> SharedRecord:
    """Raw measurements, C and R of all units in one place."""
    brought = list(own.values())
    models = [each.model for each in brought if isinstance(each.model, LocalModel)]
    values, u = np.hstack([each.y for each in brought]), np.hstack([each.u for each in brought])
    C, R = (block_diagonal([getattr(model, letter) for model in models]) for letter in "CR")
    return SharedRecord.from_models(own, models, values, u, C, R)
