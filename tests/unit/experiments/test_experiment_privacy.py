"""Privacy: what is computed, and verdicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from experiment_panels import drawn
from tolerances import EXACT

import counterflow as cf
from counterflow.experiments import private
from counterflow.experiments.effects import coupling_error, recorded
from counterflow.experiments.experiment import Outcome, Request, Task
from counterflow.experiments.private import NONE, PRIVACY


def test_the_published_noise_is_that_of_a_published_private_fit() -> None:
    task = Task("privacy", {"method": "published", "epsilon": 100.0, "run": 0, "steps": 300})
    values = PRIVACY.compute(task)
    plant = cf.random_plant(units=["one", "two"], rng=0)
    privacy = cf.Privacy(100.0, 1e-6, accounting="published", seed=0)
    recording = recorded(plant, 300, 1000, 0.9)
    found = cf.fit(recording, plant.locals(), method="penalty", rounds=10, privacy=privacy)
    assert values["B"] == pytest.approx(coupling_error(found.plant, plant), rel=EXACT)
    np.testing.assert_allclose(np.asarray(values["server_loss"]), found.history.server_loss, rtol=EXACT)
    assert values["gaps"] == len(found.privacy.gaps) > 0
    assert values["spent"] == pytest.approx(100.0)


def test_without_privacy_rounds_are_as_many_and_nothing_is_spent() -> None:
    values = PRIVACY.compute(Task("privacy", {"method": "published", "epsilon": NONE, "run": 0, "steps": 200}))
    assert np.asarray(values["server_loss"]).shape == (private.ROUNDS,)
    assert values["gaps"] == 0
    assert np.isnan(float(values["spent"]))


def test_the_rigorous_release_is_noised() -> None:
    settings = {"method": "sufficient", "run": 0, "steps": 400}
    plain, noised = (PRIVACY.compute(Task("privacy", {**settings, "epsilon": e})) for e in (NONE, 50.0))
    assert float(plain["B"]) < 0.1 < float(noised["B"])


def test_effects_that_overflow_are_no_number() -> None:
    plant = cf.random_plant(rng=0)
    assert np.isnan(private._effects(plant.replace(A=1e200 * np.eye(4)), plant))
    assert private._effects(plant.replace(A=1e3 * np.eye(4)), plant) == private.CEILING


def made(**changes: Any) -> list[Outcome]:
    """Results as the paper would have them."""
    values: dict[str, Any] = {
        "B": 0.1, "A": 0.1, "effects": 0.1, "converged": 1.0, "gaps": 0.0, "spent": 1.0,
        "server_loss": np.geomspace(10, 1, 10), "client_loss": np.linspace(2, 0.9, 10),
    }  # fmt: skip
    return [Outcome(task, values | changes, 0.1) for task in PRIVACY.tasks(Request(quick=True))]


def verdicts(**changes: Any) -> list[str]:
    return [claim.verdict for claim in PRIVACY.claims(made(**changes))]


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"server_loss": np.geomspace(1, 10, 10)}, 0),
        ({"client_loss": np.linspace(0.9, 2, 10)}, 1),
        ({"B": 0.9}, 2),
        ({"gaps": 3.0}, 3),
    ],
)
def test_a_broken_rule_changes_its_verdict_and_no_other(changes: dict[str, Any], place: int) -> None:
    wanted = ["agrees"] * 4 + ["claim without number"]
    assert verdicts() == wanted
    wanted[place] = "does not hold"
    assert verdicts(**changes) == wanted


def test_figures_are_drawn() -> None:
    (figure,) = PRIVACY.figures(made(effects=float("nan"))).values()
    assert len(drawn(figure)) == 4
