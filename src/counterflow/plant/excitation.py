"""Input signals to excite a plant with, as {unit name: (T+1, U_m) array}.

Each unit's signal derives from the seed and the unit's name alone, so it does not depend on the other units or on
their order. With the same seed, `white` gives what `Plant.simulate` draws by itself.

Examples
--------
>>> from counterflow.plant import excitation, random_plant
>>> plant = random_plant(rng=0)
>>> inputs = excitation.holds(plant, steps=100, rng=1, hold=25)
>>> recording = plant.simulate(100, rng=1, inputs=inputs)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from counterflow.arrays import FloatArray, real_number, whole_number
from counterflow.plant.units import Unit, check_units
from counterflow.randomness import Seed, run_seed, stream
from counterflow.recurrence import linear_recurrence

if TYPE_CHECKING:
    from counterflow.plant.plant import Plant

def white(
    plant: Plant | Iterable[Unit], steps: int, rng: Seed = None, scale: float = 1.0, mean: float = 0.0
) -> dict[str, FloatArray]:
    """Independent N(mean, scale²) in every row and channel."""
    scale = real_number(scale, "scale", low=0.0)
    mean = real_number(mean, "mean")
    return {name: mean + scale * own.standard_normal(shape) for name, shape, own in _streams(plant, steps, rng)}


def autoregressive(
    plant: Plant | Iterable[Unit], steps: int, rng: Seed = None, pole: float = 0.9
) -> dict[str, FloatArray]:
    """Stationary first-order noise of variance 1: u[t] = pole u[t-1] + sqrt(1 - pole²) e[t]; pole within (-1, 1)."""
    below_one = float(np.nextafter(1.0, 0.0))
    pole = real_number(pole, "pole", low=-below_one, high=below_one)
    one, start, found = np.full((1, 1), pole), np.zeros(1), {}
    for name, (rows, width), own in _streams(plant, steps, rng):
        found[name] = shocks = own.standard_normal((rows, width))
        shocks[1:] *= np.sqrt((1.0 - pole) * (1.0 + pole))
        for k in range(width):  # channel by channel: as one system it would cost the square of their number
            shocks[:, k : k + 1] = linear_recurrence(one, shocks[:, k : k + 1], start)
    return found


def holds(
    plant: Plant | Iterable[Unit], steps: int, rng: Seed = None, hold: int = 20, scale: float = 1.0
) -> dict[str, FloatArray]:
    """Set points: independent N(0, scale²) levels, each held for `hold` rows."""
    hold = whole_number(hold, "hold", 1)
    scale = real_number(scale, "scale", low=0.0)
    found = {}
    for name, (rows, width), own in _streams(plant, steps, rng):
        levels = scale * own.standard_normal((-(-rows // hold), width))
        found[name] = np.repeat(levels, hold, axis=0)[:rows]
    return found


def mean_shift(
    plant: Plant | Iterable[Unit], steps: int, rng: Seed = None, at: float = 0.5, shift: float = 1.0
) -> dict[str, FloatArray]:
    """Independent Gaussian rows whose mean jumps and whose spread drifts.

    The mean is 0 before row ``ceil(at * (T+1))`` and `shift` from it on; the standard deviation rises linearly from 0.5
    in row 0 to 1.5 in row T.
    """
    at = real_number(at, "at", low=0.0, high=1.0)
    shift = real_number(shift, "shift")
    found = {}
    for name, (rows, width), own in _streams(plant, steps, rng):
        found[name] = np.linspace(0.5, 1.5, rows)[:, None] * own.standard_normal((rows, width))
        found[name][int(np.ceil(at * rows)) :] += shift
    return found


def _streams(
    plant: Plant | Iterable[Unit], steps: int, rng: Seed
) -> Iterator[tuple[str, tuple[int, int], np.random.Generator]]:
    """Of every unit: its name, rows and inputs, and what is drawn from for them."""
    rows, seed = whole_number(steps, "steps", 1) + 1, run_seed(rng)
    for unit in check_units(getattr(plant, "units", plant)):
        yield unit.name, (rows, unit.n_inputs), stream(seed, "inputs", unit.name)
