"""Made-up results of every experiment of the paper: as the paper would have them, or with some of them changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from counterflow.paper.experiments import lagrangian, overhead, scalability, two_units
from counterflow.paper.experiments import robustness as faults
from counterflow.paper.experiments.conditions import Region
from counterflow.paper.experiments.convergence import WEIGHTS, Convergence
from counterflow.paper.experiments.effects import METHODS
from counterflow.paper.experiments.experiment import Outcome, Request, Task
from counterflow.paper.experiments.finding import Finding, Repair
from counterflow.paper.experiments.privacy import PrivacyResult
from counterflow.paper.experiments.real_plants import STAND_IN

KEYS = ("B", "A", "effects", "R2", "rounds", "bytes", "seconds", "covered", "covered-effects", "prediction")
PLANT = two_units.plant_of(0)
ROUNDS = np.array([1.0, 10.0, 50.0, 100.0])
RUNS = range(4)


def weaker(matrix: np.ndarray, factor: float) -> np.ndarray:
    """The blocks between the units made smaller."""
    out = matrix.copy()
    half, width = out.shape[0] // 2, out.shape[1] // 2
    out[:half, width:] *= factor
    out[half:, :width] *= factor
    return out


def errors(before: float, soon: float, late: float) -> np.ndarray:
    """400 squared errors with a shift in the middle."""
    return np.repeat([before, soon, late], [201, 40, 159])


def trained(method: str = "penalty", **changes: Any) -> list[Outcome]:
    """Four runs in which everything is as the paper says."""
    values: dict[str, Any] = {
        "round": ROUNDS,
        "server_loss": np.array([100.0, 10.0, 1.0, 0.1]),
        "disentanglement": np.array([10.0, 1.0, 0.1, 0.01]),
        "climb": 0.1,
        "climb/late": 0.01,
        "rises": 0.0,
        "A": PLANT.A,
        "B": PLANT.B,
        "default/A": PLANT.A,
        "default/B": PLANT.B,
    }
    for name in two_units.UNITS:
        values |= {
            f"client_loss/{name}": np.array([10.0, 2.0, 0.9, 0.9]),
            f"proprietary_loss/{name}": 1.0,
            f"delta_d/{name}": np.array([1.0, 0.5, 0.1, 0.01]),
            f"phi/{name}": np.array([1.0, 0.0]),
            f"mean_effect/{name}": 1.0,
            f"rms_effect/{name}": 1.0,
            f"error/proprietary/{name}": errors(1.0, 10.0, 8.0),
            f"error/augmented/{name}": errors(0.9, 5.0, 4.0),
            f"error/server/{name}": errors(0.95, 6.0, 4.0),
            f"error/oracle/{name}": errors(0.5, 0.5, 0.5),
        }
    if method == "lagrangian":
        values |= {"climb": 3.0, "climb/late": 1.0, "disentanglement": np.array([10.0, 0.1, 1e-3, 1e-9])}
        values |= {f"delta_d/{name}": np.array([1.0, 0.3, 0.05, 0.01]) for name in two_units.UNITS}
        values |= {f"client_loss/{name}": np.array([10.0, 2.0, 0.95, 0.95]) for name in two_units.UNITS}
    values |= {key.replace("__", "/"): value for key, value in changes.items()}
    settings = {"method": method, "plant": 0, "warm_rounds": 20}
    return [Outcome(Task("synthetic", {**settings, "run": k}), dict(values), 0.1) for k in RUNS]


def control(alone: float = 0.01, **last: float) -> list[Outcome]:
    """The study over plants: client losses end at 0.9 of the proprietary one, or as given."""
    values: dict[str, Any] = {"round": np.array([1.0, 10.0]), "server_loss": np.array([10.0, 1.0])}
    for name in two_units.UNITS:
        values |= {f"relative/{name}": np.array([5.0, last.get(name, 0.9)]), f"control/{name}": alone}
    return [
        Outcome(Task("synthetic", {"noise": noise, "xi": xi, "plant": k, "run": k}), dict(values), 0.1)
        for noise, xi in two_units.Synthetic.STUDY
        for k in RUNS
    ]


def sweep(**changes: Any) -> list[Outcome]:
    count = len(two_units.Disentanglement.WEIGHTS)
    values = {
        "disentanglement": np.geomspace(1, 1e-6, count),
        "loss": np.linspace([0.8, 0.9], [1.0, 1.0], count),
        "error": np.ones((count, 2)),
    }
    return [Outcome(Task("disentanglement", {"run": k, "weights": []}), values | changes, 0.1) for k in RUNS]


def given(penalty: Mapping[int, float] | None = None, augmented: float = 1e-3, safe: float = 0.5) -> list[Outcome]:
    ratios = np.where(np.array(lagrangian.WEIGHTS) > lagrangian.TUNED_AT, 1e12, 1e-3)
    for at, value in (penalty or {}).items():
        ratios[at] = value
    values = {"step": 0.1, "penalty": ratios, "lagrangian": np.full(len(ratios), augmented)}
    values |= {"safe": 0.01, "excess": np.array([0.01, safe])}
    return [Outcome(Task("lagrangian", {"run": k, "tuned_at": 10.0}), values, 0.1) for k in RUNS] + switched()


def switched(late: float = 5.0) -> list[Outcome]:
    """Hybrids that are smoother than AL if they switch before its oscillations have ended, and then climb."""
    early = np.array(lagrangian.SWITCHES) < 50
    values = {"hybrid": np.where(early, 0.1, late), "lagrangian": np.where(early, 9.0, 0.1)}
    return [Outcome(Task("lagrangian", {"run": k, "switches": []}), values, 0.1) for k in RUNS]


def all_methods(method: str = "", **changes: Any) -> list[Outcome]:
    return [run for m in lagrangian.METHODS for run in trained(m, **(changes if m == method else {}))]


def scaled(table: str = "", loss: float = 1.0, crossing: float = 100.0, tilt: float = 0.0) -> list[Outcome]:
    """Runs that have the paper's own numbers, but for factors on one of its tables."""
    out = []
    for name, (sizes, losses, penalties) in scalability.TABLES.items():
        for size, L, D in zip(sizes, losses, penalties, strict=True):
            factor = loss * size**tilt if name == table else 1.0
            values = {
                "server_loss": L * factor,
                "disentanglement": D * factor,
                "crossing": D * factor * (crossing if name == table else 100.0),
            }
            settings = {"table": name, "outputs": size if name == "D_m" else 8, "units": size if name == "M" else 2}
            for xi in (scalability.XI, scalability.IMPLIED[name]):
                out += [Outcome(Task("scalability", {**settings, "xi": xi, "run": k}), values, 0.1) for k in RUNS]
    return out


def converging(**changes: Any) -> list[Outcome]:
    """Distances that fall with T and xi; the mean differences are zero for inputs of mean zero."""
    outcomes = []
    for task in Convergence.tasks(Request(quick=True)):
        sign = 1.0 if task["run"] % 2 else -1.0
        noise = sign * np.full((len(WEIGHTS), 4), 0.01)
        bias = noise + (1.0 if task["mean"] else 0.0)
        values: dict[str, Any] = {
            "left": bias,
            "right": bias - 0.5 * noise,
            "distance": np.linspace(0.9, 0.1, len(WEIGHTS)) * (500 / task["steps"]) ** 0.5,
            "proprietary": 1.0,
            "sufficient/left": noise[0],
            "sufficient/distance": 0.1 * (500 / task["steps"]) ** 0.5,
            "equality": 1e-14,
        }
        for key, change in changes.items():
            values[key] = change(task, values[key])
        outcomes.append(Outcome(task, values, 0.1))
    return outcomes


def compared(**changes: Any) -> list[Outcome]:
    """Outcomes of which every claim of the paper holds."""
    numbers: dict[str, Any] = {}
    for method in METHODS:
        numbers |= {f"{method}/{key}": 0.1 for key in KEYS}
        numbers[f"{method}/R2"] = 0.9
    numbers |= {"granger/R2": 0.1, "centralized/effects": 0.05, "sufficient/effects": 0.05}
    series: dict[str, Any] = {
        "B": np.full(6, 0.2),
        "A": np.full(6, 0.2),
        "cosine": np.full(6, 0.9),
        "R2": np.linspace(0.1, 0.8, 6),
        "augmented": np.full(6, 0.8),
        "server": np.full(6, 0.8),
        "train": np.full(6, 0.8),
    }
    series |= {f"default/{key}": 0.5 for key in ("B", "A", "R2", "server", "oracle")}
    shape = (len(Region.MEANS), len(Region.WEIGHTS))
    means: dict[str, Any] = {"R2": np.full(shape, 0.9), "B": np.full(shape, 0.2), "default/R2": 0.99}
    repaired: dict[str, Any] = {f"{row}/{key}": 0.3 for row in Repair.ROWS for key in ("B", "A", "cosine", "R2")}
    parts = {"methods": numbers, "conditions": series, "region": means, "repair": repaired}
    for key, value in changes.items():
        part = key.split("___")[0] if "___" in key else ""
        name = key.split("___")[-1].replace("__", "/").replace("_small", "-small")
        (parts[part] if part else series if key in series else numbers)[name] = value
    return [Outcome(task, dict(parts[task["part"]]), 0.1) for task in Finding.tasks(Request(quick=True))]


def grown(powers: dict[str, dict[str, float]]) -> list[Outcome]:
    """Values that are powers of the sizes; those not named do not depend on them."""
    outcomes = []
    for task in overhead.Overhead.tasks(Request(quick=True)):
        axis = task["axis"]
        values: dict[str, Any] = {"raw": 1e9, "sufficient/bytes": 1e5, "total": 1e7}
        # whatever machine: seconds that go with the count of multiplications, unless told otherwise
        worked = {**{f"server/{a}": overhead.counted(a, "server") for a in overhead.AXES}}
        worked |= {f"unit/{a}": overhead.counted(a, "unit") for a in overhead.AXES}
        for key in ("bytes", "server", "unit"):
            power = powers.get(key, {}).get(axis, worked.get(f"{key}/{axis}", 0.0))
            values[key] = (1 + 0.001 * task["run"]) * float(task[axis]) ** power
        outcomes.append(Outcome(task, values, 0.1))
    return outcomes


def noised(**changes: Any) -> list[Outcome]:
    """Trainings that fall whatever the noise."""
    values: dict[str, Any] = {
        "B": 0.1, "A": 0.1, "effects": 0.1, "gaps": 0.0,
        "server_loss": np.geomspace(10, 1, 10), "client_loss": np.linspace(2, 0.9, 10),
    }  # fmt: skip
    outcomes = []
    for task in PrivacyResult.tasks(Request(quick=True)):
        own = {"spread": 1 / (1 + task["epsilon"]), "audited": 0.5 * task["epsilon"]}
        own |= {key: change(task) for key, change in changes.items() if callable(change)}
        plain = {key: change for key, change in changes.items() if not callable(change)}
        outcomes.append(Outcome(task, values | own | plain, 0.1))
    return outcomes


def real_task(dataset: str, **changes: Any) -> Task:
    settings = {"dataset": dataset, "xi": 10.0, "runs": 2, "rounds": 8, "source": STAND_IN, "rows": 500, "files": []}
    return Task("real-plants", settings | changes)


def real(dataset: str = "hai", **changes: Any) -> Outcome:
    """A run on files in which everything is as the paper says."""
    values: dict[str, Any] = {
        "units": "P1, P2", "sizes": "", "rows": 100.0, "energy": 1.0, "round": np.array([1.0, 36.0, 300.0]),
        "server_loss": np.array([[100.0, 2.0, 1.0]]), "disentanglement": np.array([[10.0, 0.2, 0.1]]),
        "rises": np.zeros(1), "rises/D": np.zeros(1),
    }  # fmt: skip
    for name in ("P1", "P2"):
        values |= {f"client_loss/{name}": np.array([[2.0, 1.0, 0.9]]), f"proprietary_loss/{name}": 1.0}
        values[f"outputs/{name}"] = 10.0
        values[f"delta_d/{name}"] = np.array([[1.0, 0.1, 0.01]])
    task = real_task(dataset, source="files", files=["/here/a train.csv", "/here/b.csv"])
    return Outcome(task, values | changes, 0.1)


def robust(ideal: float, worst: float, fault: str, ratio: float = 0.8, faulted: float = 0.85) -> list[Outcome]:
    """Errors of effects and of predictions, without faults and with one of them."""
    outcomes = []
    for task in faults.Robustness.tasks(Request(quick=True)):
        faulty = task["fault"] == fault and task["level"] != faults.FAULTS[fault][2]
        values: dict[str, Any] = dict.fromkeys(faults.METHODS, worst if faulty else ideal)
        values["prediction"] = np.array([ratio, faulted if faulty else ratio])
        outcomes.append(Outcome(task, values, 0.1))
    return outcomes


GOOD: Mapping[str, list[Outcome]] = {
    "synthetic": trained() + control(),
    "disentanglement": trained() + sweep(),
    "validation": trained(),
    "transfer-function": trained(),
    "lagrangian": all_methods() + given(),
    "scalability": scaled(),
    "real-plants": [real("hai"), real("swat", disentanglement=np.array([[10.0, 0.2, 0.05]]))],
    "privacy": noised(),
    "robustness": robust(0.2, 0.25, "local"),
    "convergence": converging(),
    "finding": compared(),
    "overhead": grown({"bytes": {"units": 2.0, "states": 1.0, "inputs": 1.0}}),
}
