"""Ways of running a plant, and the signals they are made of. All open loop: nothing answers to a measurement."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Way:
    """How far inputs move (share of their span), and what else is in the way."""

    name: str
    size: float
    delay: bool = False
    common: bool = False
    stiff: bool = False
    noise: float = 1.0  # of plant and sensors, times the usual
    moves: int | None = None  # of every input in the whole record; None: as often as the plant allows


WAYS = {
    way.name: way
    for way in (
        Way("gentle", 0.05),
        Way("wide", 0.25),
        Way("delay", 0.05, delay=True),
        Way("common", 0.05, common=True),
        Way("stiff", 0.05, stiff=True),
        Way("noiseless", 0.05, noise=0.0),
        Way("few", 0.05, moves=12),
    )
}
DELAY = (10, 30)  # shortest and longest transport delay, rows
COMMON_SHARE = 1.0  # of the common disturbance: median over outputs of the std it gives over that which inputs give
NOISE_SHARE = 0.25  # of the process noise: std over the rms rate that gentle inputs give each state
NOISE_MEMORY, COMMON_MEMORY = 10, 40  # time constants, rows
MEASUREMENT = 0.05  # of the measurement noise: std over that of the channel


def moves(rng: np.random.Generator, rows: int, inputs: int, longest: int) -> FloatArray:
    """(rows, inputs) in [-1, 1]: random holds, two levels, and filtered noise, in turn; ``longest`` hold in rows."""
    makers = (_holds, _levels, _wander)
    return np.column_stack([makers[k % 3](rng, rows, longest) for k in range(inputs)])


def few_moves(rng: np.random.Generator, rows: int, inputs: int, count: int) -> FloatArray:
    """(rows, inputs) in [-1, 1]: as operators move them, ``count`` steps in all, a third of them together."""
    together = np.sort(rng.integers(0, rows, size=count // 3))
    out = np.empty((rows, inputs))
    for k in range(inputs):
        at = np.sort(np.concatenate([together, rng.integers(0, rows, size=count - len(together))]))
        out[:, k] = rng.uniform(-1, 1, size=count + 1)[np.searchsorted(at, np.arange(rows), "right")]
    return out


def memory(rng: np.random.Generator, rows: int, columns: int, constant: float) -> FloatArray:
    """(rows, columns): stationary first-order noise of unit variance with a time constant in rows."""
    keep = np.exp(-1 / constant)
    fresh = np.sqrt(1 - keep**2) * rng.standard_normal((rows, columns))
    out = np.empty((rows, columns))
    now = rng.standard_normal(columns)
    for t in range(rows):
        now = keep * now + fresh[t]
        out[t] = now
    return out


def _holds(rng: np.random.Generator, rows: int, longest: int) -> FloatArray:
    lengths = rng.integers(5, longest + 1, size=rows // 5 + 1)
    return np.repeat(rng.uniform(-1, 1, size=len(lengths)), lengths)[:rows]


def _levels(rng: np.random.Generator, rows: int, longest: int) -> FloatArray:
    lengths = rng.integers(5, longest + 1, size=rows // 5 + 1)
    return np.repeat(rng.choice([-1.0, 1.0], size=len(lengths)), lengths)[:rows]


def _wander(rng: np.random.Generator, rows: int, longest: int) -> FloatArray:
    return np.clip(memory(rng, rows, 1, 0.4 * longest)[:, 0] / 2, -1, 1)
