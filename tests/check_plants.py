"""Plants and runs that the tests of the checks share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import counterflow as cf
from counterflow.checks import Check
from counterflow.checks.material import Material
from counterflow.checks.verdicts import kinds

FloatArray = NDArray[np.float64]


_ORACLES: dict[int, tuple[cf.Plant, cf.Fit]] = {}  # an oracle does not depend on what it was fitted to


def material_of(recording: cf.Recording, plant: cf.Plant) -> Material:
    """What the checks look at, with the given plant as the fitted one."""
    if id(plant) not in _ORACLES:
        _ORACLES[id(plant)] = plant, cf.fit(recording, plant, method="oracle")
    return Material(_ORACLES[id(plant)][1].about(recording))


def looked(name: str, material: Material) -> list[Check]:
    """All checks of one kind."""
    return list(kinds()[name].look(material))


def joined(first: cf.Recording, second: cf.Recording) -> cf.Recording:
    """One recording after the other; the second begins in the state that the first ends in."""
    parts = {
        n: (np.vstack([first[n].y, second[n].y[1:]]), np.vstack([first[n].u[:-1], second[n].u])) for n in first.names
    }
    return cf.Recording.from_arrays(parts, units=first.units)


def random_holds(rng: np.random.Generator, rows: int, width: int, mean: float = 20.0) -> FloatArray:
    """Levels held for random times."""
    out = np.empty((rows, width))
    for k in range(width):
        switch = rng.random(rows) < 1 / mean
        switch[0] = True
        out[:, k] = rng.standard_normal(int(switch.sum()))[np.cumsum(switch) - 1]
    return out


def tank_plant() -> cf.Plant:
    """A tank that a pump fills and a town draws from: nearly an integrator."""
    return cf.Plant(
        units=[cf.Unit("tank", 1, ["pump"], ["level", "weight"]), cf.Unit("town", 1, ["demand"], ["pressure"])],
        A=np.array([[0.995, 0.0], [0.05, 0.6]]),
        B=np.array([[1.0, -0.5], [0.3, -1.0]]),
        C=np.array([[1.0, 0.0], [0.5, 0.0], [0.0, 1.0]]),
        Q=np.diag([0.0025, 0.01]),
        R=0.01 * np.eye(3),
    )


Law = Callable[[FloatArray, float, list[FloatArray], dict[str, Any], np.random.Generator], float]


def closed_loop(law: Law, steps: int, seed: int) -> cf.Recording:
    """The tank with a law for its pump: law(y[t], true level, earlier y, memory, rng); demand is held at random."""
    plant, rng = tank_plant(), np.random.default_rng(seed)
    demand = 0.5 * random_holds(rng, steps + 1, 1)[:, 0]
    process = rng.standard_normal((steps + 1, 2)) * np.sqrt(np.diag(plant.Q))
    noise = 0.1 * rng.standard_normal((steps + 1, 3))
    state, memory = np.zeros(2), {}
    y: list[FloatArray] = []
    u = np.empty((steps + 1, 2))
    for t in range(steps + 1):
        now = plant.C @ state + noise[t]
        u[t] = law(now, float(state[0]), y, memory, rng), demand[t]
        y.append(now)
        state = plant.A @ state + plant.B @ u[t] + process[t]
    rows = np.array(y)
    parts = {"tank": (rows[:, :2], u[:, :1]), "town": (rows[:, 2:], u[:, 1:])}
    return cf.Recording.from_arrays(parts, units=plant.units)


def proportional(lag: int) -> Law:
    def law(now: FloatArray, _: float, y: list[FloatArray], __: dict[str, Any], rng: np.random.Generator) -> float:
        seen = now if lag == 0 else (y[-lag] if len(y) >= lag else 0 * now)
        return float(-0.3 * seen[0] + 0.1 * rng.standard_normal())

    return law


def with_integral(
    now: FloatArray, _: float, __: list[FloatArray], memory: dict[str, Any], ___: np.random.Generator
) -> float:
    memory["sum"] = memory.get("sum", 0.0) + float(now[0])
    return -0.2 * float(now[0]) - 0.01 * float(memory["sum"])


def relay(sees_truth: bool) -> Law:
    """On below -3, off above 3, else as it was; sees the measured level, or the true one, which nobody records."""

    def law(now: FloatArray, level: float, _: list[FloatArray], memory: dict[str, Any], __: Any) -> float:
        seen = level if sees_truth else float(now[0])
        on = memory.get("on", 0.3)
        memory["on"] = -0.3 if seen > 3 else (0.3 if seen < -3 else on)
        return float(memory["on"])

    return law


def open_loop(_: FloatArray, __: float, ___: Any, memory: dict[str, Any], rng: np.random.Generator) -> float:
    if rng.random() < 1 / 20:
        memory["on"] = float(rng.choice([-0.3, 0.3]))
    return float(memory.get("on", 0.3))
