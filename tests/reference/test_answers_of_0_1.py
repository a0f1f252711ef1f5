"""Estimates and answers of fits with models, by every method, are those of version 0.1.

``answers_0_1.npz`` was written by this file with version 0.1: ``python tests/reference/test_answers_of_0_1.py FILE``.
Fits from logs are not among them: they have had another estimator since.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import counterflow as cf

STORED = Path(__file__).with_name("answers_0_1.npz")
SAME = 1e-9  # relative; on the machine that wrote the file it is 1e-12, other builds of BLAS round otherwise
ROUNDED = {("fedgc", "loss"): 5e-9}  # a long descent ends where rounding stops it: processors differ by 2e-9 here
PLANT = cf.random_plant(units=["boiler", "turbine", "condenser"], rng=3, outputs=5)
Arrays = dict[str, Any]


def fits(recording: cf.Recording) -> dict[str, Callable[[], cf.Fit]]:
    models = PLANT.locals()
    halved = {n: cf.LocalModel(A=m.A / 2, B=m.B, C=m.C, Q=m.Q, R=m.R) for n, m in models.items()}
    published = cf.Privacy(epsilon=50.0, delta=1e-6, accounting="published", seed=7)
    return {
        "suff": lambda: cf.fit(recording, models),
        "all": lambda: cf.fit(recording, models, estimate="all"),
        "cent": lambda: cf.fit(recording, models, method="centralized"),
        "oracle": lambda: cf.fit(recording, PLANT, method="oracle"),
        "penalty": lambda: cf.fit(recording, models, method="penalty", xi=1.0),
        "lagrangian": lambda: cf.fit(recording, models, method="lagrangian", rounds=20),
        "hybrid": lambda: cf.fit(recording, models, method="hybrid", rounds=10, warm_rounds=10),
        "fedgc": lambda: cf.fit(recording, models, method="fedgc"),
        "grad": lambda: cf.fit(recording, models, method="penalty", solver="gradient", rounds=30, seed=5),
        "half": lambda: cf.fit(recording, halved),
        "priv": lambda: cf.fit(recording, models, privacy=cf.Privacy(5.0, 1e-6, seed=7, release="rows")),
        "privp": lambda: cf.fit(recording, models, method="penalty", privacy=published),
    }


def answers(fit: cf.Fit, recording: cf.Recording) -> Arrays:
    """What a fit says to every question that it does not refuse."""
    out: Arrays = {letter: getattr(fit.plant, letter) for letter in "ABQC"} | {"ll": fit.log_likelihood}
    change, y1 = {"u1": 0.3}, "y1"

    def effect() -> Arrays:
        found = fit.effect("boiler", "turbine", change, horizon=12)
        return {"effect": found.mean, "effect_lower": found.lower}

    def paths() -> Arrays:
        found = fit.paths("boiler", "turbine", change, horizon=10)
        return {"paths": found.total, "direct": found.direct}

    def past() -> Arrays:
        found = fit.counterfactual(recording, do={"boiler": {"u1": 0.1}}, start=50, stop=70)["turbine"]
        return {"cfact": found.mean, "cfact_lower": found.lower}

    def forecast() -> Arrays:
        found = fit.forecast(recording, 8)["turbine"]
        return {"fore": found.mean, "fore_lower": found.lower}

    def attribution() -> Arrays:
        found = fit.attribute(recording, "turbine", 40, 60)
        return {"attr": found.baseline} | {f"attr/{name}": share for name, share in found.shares.items()}

    def restoration() -> Arrays:
        found = fit.restore("turbine", {y1: 0.05}, ["boiler"], horizon=20)
        return {"rest": [value for channels in found.change.values() for value in channels.values()]}

    def graph() -> Arrays:
        return {"graph": [[e.p_value, e.direct_strength, e.total_strength] for e in fit.graph()]}

    def errors() -> Arrays:
        return {"seA": fit.standard_errors.A, "seB": fit.standard_errors.B}

    def checks() -> Arrays:
        later = ("linearity", "shared disturbance")  # kinds that 0.1 did not have
        known = [check for check in fit.check().checks if check.name not in later]
        # feedback is judged by other degrees of freedom since
        return {"check": [math.nan if check.name == "feedback" else check.number for check in known]}

    def updated() -> Arrays:
        return {"updA": fit.update(recording.slice(100, 300)).plant.A}

    def trained() -> Arrays:
        found: Arrays = {"loss": fit.history.server_loss, "q3": fit.aggregate_effect("turbine", np.ones(2))}
        for name, part in fit.parts.items():
            found |= {f"theta/{name}": part.theta, f"phi/{name}": part.phi}
        return found

    questions = (effect, paths, past, forecast, attribution, restoration, graph, errors, checks, updated, trained)
    for question in questions:
        try:
            out |= question()
        except cf.CounterflowError:  # which questions are refused is tested elsewhere
            continue
    return {key: np.asarray(value, float) for key, value in out.items() if value is not None}


@pytest.fixture(scope="module")
def recording() -> cf.Recording:
    return PLANT.simulate(1200, rng=4)


@pytest.mark.parametrize("case", fits(PLANT.simulate(2, rng=4)))
def test_numbers_are_those_of_0_1(case: str, recording: cf.Recording) -> None:
    with np.load(STORED) as file:
        stored = {key.partition("/")[2]: file[key] for key in file.files if key.startswith(f"{case}/")}
    stored.pop("updA", None)  # 0.1 took the same rows twice, which is refused now
    found = answers(fits(recording)[case](), recording)
    found.pop("updA", None)
    assert set(found) == set(stored)
    for key, wanted in stored.items():
        wanted = np.where(np.isnan(found[key]), np.nan, wanted) if key == "check" else wanted
        scale = float(np.abs(np.nan_to_num(wanted)).max(initial=0.0)) or 1.0
        atol = ROUNDED.get((case, key), SAME) * scale
        np.testing.assert_allclose(found[key], wanted, rtol=0, atol=atol, err_msg=f"{case}: {key}")


if __name__ == "__main__":
    rows = PLANT.simulate(1200, rng=4)
    found = {case: answers(made(), rows) for case, made in fits(rows).items()}
    np.savez_compressed(
        sys.argv[1], **{f"{case}/{key}": value for case, each in found.items() for key, value in each.items()}
    )
