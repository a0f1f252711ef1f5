"""The Monte-Carlo study that most of the paper's figures show: two units, two states, inputs and outputs each.

One run of it (a plant, a recording, random initial parameters, a training) is one task, and serves the experiments
on losses, disentanglement, validation, transfer functions and on the augmented Lagrangian alike.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.fits.history import History
from counterflow.fits.training import fit
from counterflow.paper.experiments.experiment import Outcome, Request, Task, Value, grid
from counterflow.plant import LocalModel, Plant, Recording, excitation, random_plant

UNITS = ("unit1", "unit2")
LABELS = {"unit1": "client 1", "unit2": "client 2"}
SHIFT_AT, SHIFT = 0.5, 2.0  # of the validation's inputs: where their mean jumps, and by how much
POINTS = 160  # rounds of a training that are kept, evenly spaced on a logarithmic scale
SETTINGS: dict[str, Any] = {"plant": 0, "steps": 2000, "xi": 10.0, "rho": 20.0, "rounds": 1500, "warm_rounds": 20}
QUICK: dict[str, Any] = {**SETTINGS, "rounds": 500}
REPETITIONS, QUICK_REPETITIONS = 10, 4
# the paper's training: random initial parameters, gradient steps, and all of its rounds
TRAINED: dict[str, Any] = {"tol": 0.0, "initial_scale": 1.0, "solver": "gradient"}


def plant_of(seed: int, noise: float = 1.0) -> Plant:
    """A plant of the study: unit 1 does not feel the states of unit 2; ``noise``: variance of the measurement noise."""
    dense = random_plant(names=UNITS, outputs=2, measurement_noise=noise, rng=seed)
    A = dense.A.copy()
    A[dense.state_slice("unit1"), dense.state_slice("unit2")] = 0.0
    return dense.replace(A=A)


def recorded_run(
    task: Task, noise: float = 1.0, seed: str = "run"
) -> tuple[Plant, Recording, Mapping[str, LocalModel]]:
    """Plant, recording and local models of a task."""
    plant = plant_of(task["plant"], noise)
    return plant, plant.simulate(task["steps"], rng=1000 + int(task[seed])), plant.locals()


def runs(request: Request, method: str = "penalty") -> tuple[Task, ...]:
    """The Monte-Carlo runs of one method."""
    settings, count = (QUICK, QUICK_REPETITIONS) if request.quick else (SETTINGS, REPETITIONS)
    return grid("synthetic", {"run": range(count)}, **settings, method=method)


def found_plant(run: Outcome, method: str = "published") -> Plant:
    """The plant that the published or the default method has found in one run."""
    prefix = "default/" if method == "default" else ""
    return plant_of(run.task["plant"]).replace(A=run.array(f"{prefix}A"), B=run.array(f"{prefix}B"))


def kept_rounds(rounds: int) -> NDArray[np.intp]:
    """Indices of the rounds whose losses are kept: the first, the last, and evenly on a logarithmic scale."""
    return np.unique(np.geomspace(1, rounds, POINTS).round().astype(np.intp)) - 1


def compute(task: Task) -> Mapping[str, Value]:
    """Train once, and keep the course of it, what it has found, and how well that predicts new data.

    Series by round: ``server_loss`` (1/T Σ|r_s|² + ξ 1/T Σ|D|², for every method), ``disentanglement``; ``climb``: all
    rises of the former, ``climb/late`` those after the rounds that the hybrid spends with the Lagrangian; for each unit
    and model the squared one-step errors on new data ``error/model/unit``.
    """
    plant, recording, models = recorded_run(task)
    options = TRAINED | {key: task[key] for key in ("xi", "rho", "rounds", "warm_rounds")}
    if task["method"] == "hybrid":
        options["rounds"] -= task["warm_rounds"]
    found = fit(recording, models, method=task["method"], seed=task["run"], **options)
    history = found.history
    kept = kept_rounds(len(history))
    loss = penalised(history, task["xi"])
    total = combined(loss, history.client_loss)
    values: dict[str, Value] = {
        "round": (kept + 1).astype(np.float64),
        "server_loss": loss[kept],
        "disentanglement": history.disentanglement[kept],
        "climb": climb(loss),
        "climb/late": climb(loss[task["warm_rounds"] :]),
        "rises": float((np.diff(total) > 1e-12 * total[:-1]).mean()),  # the share of rounds; what is less is rounding
        "gradient": float(history.gradient[-1] / history.gradient[0]),
        "A": found.plant.A,
        "B": found.plant.B,
    }
    for name, other in (UNITS, UNITS[::-1]):
        part = found.parts[name]
        assert part.theta is not None
        assert part.phi is not None
        effect = recording[other].u[:-1] @ plant.block("B", effect=name, cause=other).T
        values |= {
            f"client_loss/{name}": history.client_loss[name][kept],
            f"proprietary_loss/{name}": float(history.proprietary_loss[name][-1]),
            f"delta_d/{name}": history.delta_d[name][kept],
            f"theta/{name}": part.theta,
            f"phi/{name}": part.phi,
            f"mean_effect/{name}": float(np.linalg.norm(effect.mean(axis=0))),
            f"rms_effect/{name}": float(np.sqrt((effect**2).sum(axis=1).mean())),
        }
    if task["method"] == "penalty":  # the method of the paper's validation
        default = fit(recording, models).plant
        errors = found.validate(shifted(plant, task["run"], task["steps"]), oracle=plant).errors
        values |= {"default/A": default.A, "default/B": default.B}
        values |= {f"error/{model}/{name}": errors[model][name] for model in errors for name in UNITS}
    return values


def penalised(history: History, xi: float) -> FloatArray:
    """1/T Σ|r_s|² + ξ 1/T Σ|D|² of every round, whatever the method."""
    return np.asarray(history.residual_loss + xi * history.disentanglement)


def combined(server_loss: FloatArray, client_loss: Mapping[str, FloatArray]) -> FloatArray:
    """What the training descends on: the server's loss and those of all clients."""
    return np.asarray(server_loss + sum(client_loss.values()))


def climb(loss: FloatArray) -> float:
    """The sum of all rises of a loss on a logarithmic scale: 0 for one that only falls, whatever it falls by."""
    change = np.diff(np.log(loss))
    return float(change[change > 0].sum())


def shifted(plant: Plant, run: int, steps: int) -> Recording:
    """New data of the same plant: the inputs' mean jumps half-way, their spread drifts from 0.5 to 1.5."""
    inputs = excitation.mean_shift(plant, steps, rng=2000 + run, at=SHIFT_AT, shift=SHIFT)
    return plant.simulate(steps, rng=2000 + run, inputs=inputs)
