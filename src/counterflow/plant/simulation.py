"""Simulation of a plant.

The recursion, rows 0..T, with h[0] given::

    h[t] = A h[t-1] + B u[t-1] + w[t-1],   w ~ N(0, Q)
    y[t] = C h[t] + v[t],                  v ~ N(0, R)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from counterflow.arrays import FloatArray, numeric, whole_number
from counterflow.errors import CounterflowError, DataError, ModelError, UnstableError
from counterflow.plant import excitation
from counterflow.plant.recording import Recording, UnitRecording, check_inputs
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
    parts = _by_unit(plant, inputs, "inputs", plant.input_slice, (steps + 1,), DataError)
    for unit in plant.units:
        if unit.n_inputs and unit.name not in parts:
            raise DataError(
                f"inputs has nothing for {unit.name!r}: give an array for every unit with inputs (zeros if it is to do "
                "nothing)."
            )
        part = parts.setdefault(unit.name, np.zeros((steps + 1, 0)))
        check_inputs(part, unit)  # before non-finite inputs can spread over every unit
    return parts


def _given_state(plant: Plant, initial_state: InitialState) -> FloatArray:
    state = np.zeros(len(plant.A))
    given = {} if initial_state is None else initial_state
    for name, part in _by_unit(plant, given, "initial_state", plant.state_slice, (), ModelError).items():
        if not np.isfinite(part).all():
            raise ModelError(f"initial_state of unit {name!r} holds {part[~np.isfinite(part)][0]}: it must be finite.")
        state[plant.state_slice(name)] = part
    return state


def _by_unit(
    plant: Plant, given: ArrayLike | Mapping[str, ArrayLike], what: str, span: Callable[[str], slice],
    leading: tuple[int, ...], kind: type[CounterflowError],
) -> dict[str, FloatArray]:  # fmt: skip
    """Arrays by unit, from one of all units or one of each; ``leading``: their axes before that of the channels."""

    def checked(array: object, size: int, whose: str) -> FloatArray:
        found = numeric(array, what + whose, kind)
        if found.shape != (*leading, size):
            raise kind(f"{what}{whose} must have shape {(*leading, size)}, got {found.shape}.")
        return found

    if isinstance(given, Mapping):
        spans = {name: span(name) for name in given}  # refuses names of no unit
        return {n: checked(given[n], own.stop - own.start, f" of unit {n!r}") for n, own in spans.items()}
    whole = checked(given, span(plant.names[-1]).stop, "")
    return {name: whole[..., span(name)] for name in plant.names}


def _refuse_overflow(plant: Plant, states: FloatArray, y: Mapping[str, FloatArray]) -> None:
    finite = np.isfinite(states).all(axis=1)
    for part in y.values():
        finite &= np.isfinite(part).all(axis=1)
    if not finite.all():
        raise UnstableError(
            f"the simulation overflows at row {int(np.argmin(finite))}: the spectral radius of A is "
            f"{plant.spectral_radius:.6g}. Take fewer steps, or a plant whose spectral radius is below 1."
        )
