"""Recordings and models with something wrong, and what the truth is then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.paper.experiments.effects import HORIZON, recorded, responses
from counterflow.plant import LocalModel, Plant, Recording, UnitRecording, excitation, random_plant

POLE = 0.9  # of the inputs, unless their colour is what varies: with white ones the published method finds no B_mn
TWINS = 400  # starting states over which the effects of a nonlinear plant are averaged
STABLE = 0.98
ABSENT = 1.0
GIVEN, NEW = 8000, 8500  # added to seeds: of recordings that are learned from, and of new data


@dataclass(frozen=True, eq=False)
class Case:
    """What the methods get, and the true effects between units.

    ``whole`` has no missing measurements: the published methods need such a recording.
    """

    recording: Recording
    whole: Recording
    models: Mapping[str, LocalModel]
    true: Mapping[tuple[str, str], FloatArray]


def case(fault: str, level: float, seed: int, steps: int) -> Case:
    """A random plant and a recording, with one fault of one size.

    Parameters
    ----------
    fault : "local" (relative error of A_mm and B_mm), "noise" (factor on Q_m), "missing" (share of each unit's rows),
        "dropout" (share of the time that a third unit's measurements are missing at the end; 1: it takes no part),
        "colour" (pole of the inputs), "nonlinear" (curvature of a saturation of the states).
    """
    plant = random_plant(units=3 if fault == "dropout" else 2, rng=seed)
    if fault == "nonlinear":
        return _nonlinear(plant, level, seed, steps)
    recording = recorded(plant, steps, GIVEN + seed, level if fault == "colour" else POLE)
    models, true = plant.locals(), responses(plant)
    rng = np.random.default_rng([seed, 9])
    if fault == "local":
        models = {name: _wrong(model, level, rng) for name, model in models.items()}
    elif fault == "noise":
        models = {name: replace(model, Q=level * model.Q) for name, model in models.items()}
    elif fault == "missing":
        holes = {name: rng.random(recording.rows) < level for name in plant.names}
        return Case(_without(recording, holes), _interpolated(recording, holes), models, true)
    elif fault == "dropout":
        return _dropped(plant, recording, level)
    return Case(recording, recording, models, true)


def fresh(fault: str, level: float, seed: int, steps: int) -> Recording:
    """New data of the plant of a ``case``, without any missing rows: what a trained client would go on to predict."""
    plant = random_plant(units=3 if fault == "dropout" else 2, rng=seed)
    if fault == "nonlinear":
        return _saturating(plant, level, [seed, 11], NEW + seed, steps)[0]
    recording = recorded(plant, steps, NEW + seed, level if fault == "colour" else POLE)
    if fault == "dropout" and level >= ABSENT:
        return _rebuilt(recording, {n: recording[n].y for n in plant.names[:-1]})
    return recording


def _wrong(model: LocalModel, size: float, rng: np.random.Generator) -> LocalModel:
    """A and B with errors of a relative size, in random directions; A is kept stable."""
    changed = {}
    for letter in "AB":
        matrix = getattr(model, letter)
        error = rng.standard_normal(matrix.shape)
        changed[letter] = matrix + size * float(np.linalg.norm(matrix)) * error / float(np.linalg.norm(error))
    radius = float(np.abs(np.linalg.eigvals(changed["A"])).max())
    changed["A"] = changed["A"] * min(1.0, STABLE / radius)
    return replace(model, **changed)


def _rebuilt(recording: Recording, y: Mapping[str, FloatArray]) -> Recording:
    parts = {n: UnitRecording(y[n], recording[n].u, recording[n].unit) for n in y}
    return Recording(parts, recording.dt)


def _without(recording: Recording, holes: Mapping[str, NDArray[np.bool_]]) -> Recording:
    return _rebuilt(recording, {n: np.where(holes[n][:, None], np.nan, recording[n].y) for n in recording.names})


def _interpolated(recording: Recording, holes: Mapping[str, NDArray[np.bool_]]) -> Recording:
    """Straight lines over the holes: what a user would do for a method that takes none."""
    rows = np.arange(recording.rows)
    filled = {}
    for name in recording.names:
        y, known = recording[name].y, ~holes[name]
        filled[name] = np.stack([np.interp(rows, rows[known], y[known, k]) for k in range(y.shape[1])], axis=1)
    return _rebuilt(recording, filled)


def _dropped(plant: Plant, recording: Recording, share: float) -> Case:
    """The last unit stops measuring, or takes no part at all; asked is about the others."""
    *stay, gone = plant.names
    true = {pair: values for pair, values in responses(plant).items() if gone not in pair}
    if share >= ABSENT:
        few = _rebuilt(recording, {n: recording[n].y for n in stay})
        return Case(few, few, {n: plant.local(n) for n in stay}, true)
    end = round((1 - share) * recording.steps)
    holes = {n: np.zeros(recording.rows, bool) for n in plant.names}
    holes[gone][end + 1 :] = True
    return Case(_without(recording, holes), recording.slice(0, end + 1), plant.locals(), true)


# ---- saturating states: h[t] = f(A h[t-1] + B u[t-1]) + w[t-1], f(x) = tanh(κ x) / κ


def saturated(x: FloatArray, curvature: float) -> FloatArray:
    """tanh(κ x) / κ; the identity for κ = 0."""
    return x if curvature == 0 else np.tanh(curvature * x) / curvature


def _nonlinear(plant: Plant, curvature: float, seed: int, steps: int) -> Case:
    recording, h, u, w = _saturating(plant, curvature, [seed, 10], GIVEN + seed, steps)
    return Case(recording, recording, plant.locals(), twin_effects(plant, curvature, h, u, w))


def _saturating(
    plant: Plant, curvature: float, noise: list[int], inputs_seed: int, steps: int
) -> tuple[Recording, FloatArray, FloatArray, FloatArray]:
    """A recording, and the states, inputs and process noise in it."""
    rng = np.random.default_rng(noise)
    inputs = excitation.autoregressive(plant, steps, inputs_seed, pole=POLE)
    u = np.hstack([inputs[n] for n in plant.names])
    w = rng.standard_normal((steps, len(plant.A))) @ np.linalg.cholesky(plant.Q).T
    v = rng.standard_normal((steps + 1, len(plant.C))) @ np.linalg.cholesky(plant.R).T
    h = np.zeros((steps + 1, len(plant.A)))
    for t in range(1, steps + 1):
        h[t] = saturated(plant.A @ h[t - 1] + plant.B @ u[t - 1], curvature) + w[t - 1]
    y = h @ plant.C.T + v
    parts = {
        unit.name: UnitRecording(y[:, plant.output_slice(unit.name)], inputs[unit.name], unit) for unit in plant.units
    }
    return Recording(parts, plant.dt), h, u, w


def twin_effects(
    plant: Plant, curvature: float, h: FloatArray, u: FloatArray, w: FloatArray, horizon: int = HORIZON
) -> dict[tuple[str, str], FloatArray]:
    """Mean difference between two worlds with the same noise, one with an input raised by 1: over many starts.

    Parameters
    ----------
    h : (T+1, P), u : (T+1, U), w : (T, P) arrays
        States, inputs and process noise of a run; worlds start in its states.
    """
    starts = np.linspace(0, len(w) - horizon - 1, TWINS).astype(np.intp)
    inputs = u.shape[1]
    change = np.vstack([np.zeros((1, inputs)), np.eye(inputs)])  # world 0 is the one that was
    state = np.repeat(h[starts][None], inputs + 1, axis=0)
    held = np.empty((horizon, len(plant.C), inputs))
    for k in range(horizon):
        driven = u[starts + k][None] + change[:, None, :]
        state = saturated(state @ plant.A.T + driven @ plant.B.T, curvature) + w[starts + k][None]
        held[k] = plant.C @ (state[1:] - state[:1]).mean(axis=1).T
    return {
        (m, n): held[:, plant.output_slice(m), plant.input_slice(n)] for m in plant.names for n in plant.names if m != n
    }
