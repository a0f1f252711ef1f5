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

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np

from counterflow.arrays import FloatArray, real_number, whole_number
from counterflow.plant.units import Unit, check_units
from counterflow.randomness import Seed, run_seed, stream
from counterflow.recurrence import linear_recurrence

if TYPE_CHECKING:
    from counterflow.plant.plant import Plant

_Normal = Callable[[tuple[int, int]], FloatArray]


def white(
    plant: Plant | Iterable[Unit], steps: int, rng: Seed = None, scale: float = 1.0, mean: float = 0.0
) -> dict[str, FloatArray]:
    """Independent N(mean, scale²) in every row and channel."""
    scale = real_number(scale, "scale", low=0.0)
    mean = real_number(mean, "mean")
    return _each(plant, steps, rng, lambda normal, rows, width: mean + scale * normal((rows, width)))


def autoregressive(
    plant: Plant | Iterable[Unit], steps: int, rng: Seed = None, pole: float = 0.9
) -> dict[str, FloatArray]:
    """Stationary first-order noise of variance 1: u[t] = pole u[t-1] + sqrt(1 - pole²) e[t]; pole within (-1, 1)."""
    below_one = float(np.nextafter(1.0, 0.0))
    pole = real_number(pole, "pole", low=-below_one, high=below_one)

    def make(normal: _Normal, rows: int, width: int) -> FloatArray:
        shocks = normal((rows, width))
        shocks[1:] *= np.sqrt((1.0 - pole) * (1.0 + pole))
        # channel by channel: as one system it would cost the square of their number
        one, start = np.full((1, 1), pole), np.zeros(1)
        for k in range(width):
            shocks[:, k : k + 1] = linear_recurrence(one, shocks[:, k : k + 1], start)
        return shocks

    return _each(plant, steps, rng, make)


def holds(
    plant: Plant | Iterable[Unit], steps: int, rng: Seed = None, hold: int = 20, scale: float = 1.0
) -> dict[str, FloatArray]:
    """Set points: independent N(0, scale²) levels, each held for `hold` rows."""
    hold = whole_number(hold, "hold", 1)
    scale = real_number(scale, "scale", low=0.0)

    def make(normal: _Normal, rows: int, width: int) -> FloatArray:
        return np.repeat(scale * normal((-(-rows // hold), width)), hold, axis=0)[:rows]

    return _each(plant, steps, rng, make)


def mean_shift(
    plant: Plant | Iterable[Unit], steps: int, rng: Seed = None, at: float = 0.5, shift: float = 1.0
) -> dict[str, FloatArray]:
    """Independent Gaussian rows whose mean jumps and whose spread drifts.

    The mean is 0 before row ``ceil(at * (T+1))`` and `shift` from it on; the standard deviation rises linearly from 0.5
    in row 0 to 1.5 in row T.
    """
    at = real_number(at, "at", low=0.0, high=1.0)
    shift = real_number(shift, "shift")

    def make(normal: _Normal, rows: int, width: int) -> FloatArray:
        signal = np.linspace(0.5, 1.5, rows)[:, None] * normal((rows, width))
        signal[int(np.ceil(at * rows)) :] += shift
        return np.asarray(signal, dtype=np.float64)

    return _each(plant, steps, rng, make)


def _each(
    plant: Plant | Iterable[Unit], steps: int, rng: Seed, make: Callable[[_Normal, int, int], FloatArray]
) -> dict[str, FloatArray]:
    rows = whole_number(steps, "steps", 1) + 1
    units = check_units(getattr(plant, "units", plant))
    seed = run_seed(rng)
    return {unit.name: make(stream(seed, "inputs", unit.name).standard_normal, rows, unit.n_inputs) for unit in units}
