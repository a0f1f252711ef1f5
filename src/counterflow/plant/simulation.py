"""Simulation of a plant.

The recursion, rows 0..T, with h[0] given::

    h[t] = A h[t-1] + B u[t-1] + w[t-1],   w ~ N(0, Q)
    y[t] = C h[t] + v[t],                  v ~ N(0, R)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from counterflow.arrays import FloatArray, numeric, whole_number
from counterflow.errors import DataError, ModelError, UnstableError
from counterflow.plant import excitation
from counterflow.plant.recording import Recording, UnitRecording, check_inputs
from counterflow.plant.units import unknown_name
from counterflow.randomness import Seed, run_seed, stream
from counterflow.recurrence import linear_recurrence

if TYPE_CHECKING:
    from counterflow.plant.plant import Plant

Inputs: TypeAlias = ArrayLike | Mapping[str, ArrayLike] | None
InitialState: TypeAlias = ArrayLike | Mapping[str, ArrayLike] | None

__all__ = ["Inputs", "Seed", "simulate"]


def simulate(
    plant: Plant, steps: int, rng: Seed = None, inputs: Inputs = None, initial_state: InitialState = None
) -> tuple[Recording, FloatArray]:
    """Run `plant` for `steps` steps: a recording of rows 0..steps of every unit, and the true states (T+1, P)."""
    steps = whole_number(steps, "steps", 1)
    seed = run_seed(rng)
    u = excitation.white(plant, steps, seed) if inputs is None else _given_inputs(plant, steps, inputs)
    stacked = np.hstack([u[name] for name in plant.names])
    states = np.empty((steps + 1, len(plant.A)))
    states[0] = _given_state(plant, initial_state)
    driven = stacked[:-1] @ plant.B.T
    for name in plant.names:
        driven[:, plant.state_slice(name)] += _noise(plant.block("Q", name), steps, seed, "process noise", name)
    states[1:] = linear_recurrence(plant.A, driven, states[0])

    y = {}
    with np.errstate(over="ignore", invalid="ignore"):
        for name in plant.names:
            noise = _noise(plant.block("R", name), steps + 1, seed, "measurement noise", name)
            y[name] = states[:, plant.state_slice(name)] @ plant.block("C", name).T + noise
    _refuse_overflow(plant, states, y)
    parts = {unit.name: UnitRecording(y[unit.name], u[unit.name], unit) for unit in plant.units}
    return Recording(parts, plant.dt), states


def _noise(covariance: FloatArray, rows: int, seed: int, purpose: str, name: str) -> FloatArray:
    """Rows of N(0, covariance). The symmetric square root is defined for singular covariances too."""
    white = stream(seed, purpose, name).standard_normal((rows, len(covariance)))
    values, vectors = np.linalg.eigh(covariance)
    root = (vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T
    return np.asarray(white @ root, dtype=np.float64)


def _given_inputs(plant: Plant, steps: int, inputs: ArrayLike | Mapping[str, ArrayLike]) -> dict[str, FloatArray]:
    rows = steps + 1
    if isinstance(inputs, Mapping):
        for name in inputs:
            if name not in plant.names:
                raise unknown_name("unit", name, plant.names)
        missing = [unit.name for unit in plant.units if unit.n_inputs and unit.name not in inputs]
        if missing:
            raise DataError(
                f"inputs has nothing for {', '.join(map(repr, missing))}: give an array for every unit with inputs "
                "(zeros if it is to do nothing)."
            )
        parts = {
            unit.name: numeric(inputs.get(unit.name, np.zeros((rows, 0))), f"inputs of unit {unit.name!r}", DataError)
            for unit in plant.units
        }
    else:
        whole = numeric(inputs, "inputs", DataError)
        if whole.shape != (rows, plant.B.shape[1]):
            raise DataError(
                f"inputs must have shape {(rows, plant.B.shape[1])} (steps + 1, all inputs), got {whole.shape}."
            )
        parts = {name: whole[:, plant.input_slice(name)] for name in plant.names}
    for unit in plant.units:
        part = parts[unit.name]
        if part.shape != (rows, unit.n_inputs):
            raise DataError(
                f"inputs of unit {unit.name!r} must have shape {(rows, unit.n_inputs)} (steps + 1 rows, its inputs), "
                f"got {part.shape}."
            )
        check_inputs(part, unit)  # before non-finite inputs can spread over every unit
    return parts


def _given_state(plant: Plant, initial_state: InitialState) -> FloatArray:
    state = np.zeros(len(plant.A))
    if initial_state is None:
        return state
    parts: list[tuple[slice, object, str]]
    if isinstance(initial_state, Mapping):
        parts = [(plant.state_slice(name), part, f" of unit {name!r}") for name, part in initial_state.items()]
    else:
        parts = [(slice(0, len(state)), initial_state, "")]
    for span, part, whose in parts:
        vector = numeric(part, f"initial_state{whose}")
        if vector.shape != (span.stop - span.start,):
            raise ModelError(f"initial_state{whose} must have shape {(span.stop - span.start,)}, got {vector.shape}.")
        if not np.isfinite(vector).all():
            raise ModelError(f"initial_state{whose} holds {vector[~np.isfinite(vector)][0]}: it must be finite.")
        state[span] = vector
    return state


def _refuse_overflow(plant: Plant, states: FloatArray, y: Mapping[str, FloatArray]) -> None:
    finite = np.isfinite(states).all(axis=1)
    for part in y.values():
        finite &= np.isfinite(part).all(axis=1)
    if not finite.all():
        raise UnstableError(
            f"the simulation overflows at row {int(np.argmin(finite))}: the spectral radius of A is "
            f"{plant.spectral_radius:.6g}. Take fewer steps, or a plant whose spectral radius is below 1."
        )
