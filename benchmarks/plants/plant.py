"""What a simulated plant is, and how it runs.

A plant is a set of units. The states of all units are one vector x. What one unit does to another passes through
*streams*: numbers that a source unit sends (from its own states and inputs) and a sink unit receives. So a transport
delay is a delay of streams, and the couplings of the plant are the pairs (source, sink) of its streams.

    s = send(x, u, w),   dx/dt = pace * rate(x, u, s, d, w) + noise,   y = read(x, w)

u are inputs, held from row to row; d is one unrecorded disturbance that several units feel; w is the wear of the plant:
for each unit a factor on one physical parameter of its own (`Plant.worn` says which), 1 as the plant was built.
Arrays have the state, input, stream or output first and the batch of runs last; time comes before both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import root

import counterflow as cf

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Plant:
    """A simulator.

    ``u0``: inputs at the operating point; ``span``: what 100 % of a move means, by input. ``x0``: a guess of the states
    there. ``owner``: the unit of each state. ``stiff``: by state, the pace that spreads the plant's time
    constants over a factor of 100 or more; it leaves the steady state as it is. ``worn``: in words, by unit, the
    physical parameter that its factor of wear multiplies. ``hold``: the longest time that inputs stand still, rows.
    """

    name: str
    units: tuple[cf.Unit, ...]
    dt: float
    horizon: int
    u0: FloatArray
    span: FloatArray
    x0: FloatArray
    owner: tuple[str, ...]
    stiff: FloatArray
    streams: tuple[tuple[str, str], ...]
    worn: tuple[str, ...]
    send: Callable[[FloatArray, FloatArray, FloatArray], FloatArray]
    rate: Callable[[FloatArray, FloatArray, FloatArray, FloatArray, FloatArray], FloatArray]
    read: Callable[[FloatArray, FloatArray], FloatArray]
    hold: int = 40
    substeps: int = 2

    @property
    def graph(self) -> frozenset[tuple[str, str]]:
        """Direct couplings: ordered pairs (cause, effect)."""
        return frozenset(self.streams)

    @property
    def input_owner(self) -> tuple[str, ...]:
        """The unit of each input."""
        return tuple(unit.name for unit in self.units for _ in unit.inputs)

    @property
    def new(self) -> FloatArray:
        """Wear (M, 1) of the plant as it was built."""
        return np.ones((len(self.units), 1))

    def derivative(self, x: FloatArray, u: FloatArray) -> FloatArray:
        """dx/dt of the new plant without delay, noise or disturbance; (X, batch)."""
        return self.rate(x, u, self.send(x, u, self.new), np.zeros(x.shape[1]), self.new)

    def steady(self) -> FloatArray:
        """States (X,) in which nothing moves."""
        return _steady(self)


@cache
def _steady(plant: Plant) -> FloatArray:
    u = plant.u0[:, None]
    x = run(plant, plant.x0[:, None], constant(u, 600))[0][-1, :, 0]  # near it; then exactly
    scale = np.maximum(np.abs(x), 1e-9)
    found = root(lambda z: plant.derivative((z * scale)[:, None], u)[:, 0] / scale, x / scale, tol=1e-12)
    steady = found.x * scale
    if not np.allclose(steady, x, rtol=0.2) or np.abs(plant.derivative(steady[:, None], u)).max() > 1e-6 * scale.max():
        raise RuntimeError(f"plant {plant.name}: no steady state: the run ends at {x}, the solver at {steady}.")
    return steady


def constant(u: FloatArray, rows: int) -> FloatArray:
    """The same inputs (U, batch) in every row."""
    return np.broadcast_to(u, (rows, *u.shape))


def run(
    plant: Plant,
    x: FloatArray,
    u: FloatArray,
    noise: FloatArray | None = None,
    common: FloatArray | None = None,
    pace: FloatArray | None = None,
    delays: NDArray[np.int64] | None = None,
    past: FloatArray | None = None,
    wear: FloatArray | None = None,
) -> tuple[FloatArray, FloatArray]:
    """States (T+1, X, batch) from inputs u (T, U, batch), and the streams (T, S, batch) that were sent in each row.

    Classical Runge-Kutta with ``plant.substeps`` steps a row. With delays (S,), in rows and at least 1, a unit receives
    what was sent so many rows before, drawn straight between rows; ``past`` (K, S, batch) are the rows sent before.
    ``wear`` (T, M, batch): by row; that of row t acts from row t to row t + 1, and on what is sent in row t.
    """
    T, batch = len(u), x.shape[1]
    common = np.zeros((T, batch)) if common is None else common
    factor = np.ones((len(x), 1)) if pace is None else pace[:, None]
    step = plant.dt / plant.substeps
    states = np.empty((T + 1, *x.shape))
    states[0] = x
    before = 0 if past is None else len(past)
    sent = np.empty((before + T, len(plant.streams), batch))
    if past is not None:
        sent[:before] = past
    each, new = np.arange(len(plant.streams)), plant.new
    for t in range(T):
        now, shake = u[t], 0.0 if noise is None else noise[t]
        w = new if wear is None else wear[t]
        sent[before + t] = plant.send(x, now, w)
        if delays is not None:
            early = sent[before + t - delays, each]
            late = sent[before + t - delays + 1, each]

        def slope(x: FloatArray, part: float) -> FloatArray:
            s = plant.send(x, now, w) if delays is None else early + part * (late - early)  # noqa: B023
            return factor * plant.rate(x, now, s, common[t], w) + shake  # noqa: B023

        for k in range(plant.substeps):
            begin, middle, end = k / plant.substeps, (k + 0.5) / plant.substeps, (k + 1) / plant.substeps
            a = slope(x, begin)
            b = slope(x + step / 2 * a, middle)
            c = slope(x + step / 2 * b, middle)
            d = slope(x + step * c, end)
            x = x + step / 6 * (a + 2 * b + 2 * c + d)
        states[t + 1] = x
    return states, sent[before:]


def jacobians(plant: Plant, x: FloatArray, u: FloatArray) -> tuple[FloatArray, FloatArray]:
    """d(dx/dt)/dx (X, X) and d(dx/dt)/du (X, U) at one point, by central differences."""

    def blocks(size: int, scale: FloatArray, moved: Callable[[FloatArray], FloatArray]) -> FloatArray:
        shift = np.diag(1e-6 * scale)
        return (moved(shift) - moved(-shift)) / (2e-6 * scale)

    def many(z: FloatArray, size: int) -> FloatArray:
        return np.repeat(z[:, None], size, axis=1)

    X, U = len(x), len(u)
    by_x = blocks(X, np.abs(x) + 1e-3, lambda shift: plant.derivative(x[:, None] + shift, many(u, X)))
    by_u = blocks(U, plant.span, lambda shift: plant.derivative(many(x, U), u[:, None] + shift))
    return by_x, by_u
