"""Privacy: what is computed, and verdicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tolerances import EXACT

import counterflow as cf
from counterflow.paper.augmented import AugmentedModel, ClientData
from counterflow.paper.contraction import settled_gain
from counterflow.paper.experiments import privacy as privacy_results
from counterflow.paper.experiments.effects import coupling_error, recorded
from counterflow.paper.experiments.experiment import Task
from counterflow.paper.experiments.privacy import NONE, PrivacyResult
from counterflow.privacy.accounting import gaussian_epsilon
from counterflow.privacy.clipping import clipped_rows
from counterflow.protocol import PerturbedStates, StateGradients


def test_the_published_noise_is_that_of_a_published_private_fit() -> None:
    task = Task("privacy", {"method": "published", "epsilon": 100.0, "run": 0, "steps": 300})
    values = PrivacyResult.compute(task)
    plant = cf.random_plant(units=["one", "two"], rng=0)
    privacy = cf.Privacy(100.0, 1e-6, accounting="published", seed=0)
    recording = recorded(plant, 300, 1000, 0.9)
    found = cf.fit(recording, plant.locals(), method="penalty", rounds=10, privacy=privacy)
    assert values["B"] == pytest.approx(coupling_error(found.plant, plant), rel=EXACT)
    np.testing.assert_allclose(np.asarray(values["server_loss"]), found.history.server_loss, rtol=EXACT)
    assert values["gaps"] == len(found.privacy.gaps) > 0
    plain = PrivacyResult.compute(Task("privacy", {**task.settings, "epsilon": NONE}))
    assert np.asarray(plain["server_loss"]).shape == (privacy_results.ROUNDS,)
    assert plain["gaps"] == 0


def test_the_rigorous_release_is_noised() -> None:
    settings = {"method": "sufficient", "run": 0, "steps": 400}
    plain, noised = (PrivacyResult.compute(Task("privacy", {**settings, "epsilon": e})) for e in (NONE, 50.0))
    assert float(plain["B"]) < 0.1 < float(noised["B"])


def test_effects_that_overflow_are_no_number() -> None:
    plant = cf.random_plant(rng=0)
    assert np.isnan(privacy_results._effects(plant.replace(A=1e200 * np.eye(4)), plant))
    assert privacy_results._effects(plant.replace(A=1e3 * np.eye(4)), plant) == privacy_results.CEILING


def test_the_spread_is_the_difference_of_two_draws_of_the_noise() -> None:
    settings = {"method": "published", "epsilon": 100.0, "run": 0, "steps": 300}
    plant = cf.random_plant(units=["one", "two"], rng=0)
    recording = recorded(plant, 300, 1000, 0.9)
    one, other = (
        cf.fit(
            recording, plant.locals(), method="penalty", rounds=10,
            privacy=cf.Privacy(100.0, 1e-6, accounting="published", seed=seed),
        ).plant
        for seed in (0, privacy_results.OTHER_NOISE)
    )  # fmt: skip
    gap = size = 0.0
    for letter in "AB":
        for a, b in (plant.names, plant.names[::-1]):
            gap += float(((one.block(letter, a, b) - other.block(letter, a, b)) ** 2).sum())
            size += float((plant.block(letter, a, b) ** 2).sum())
    spread = PrivacyResult.compute(Task("privacy", settings))["spread"]
    assert spread == pytest.approx(np.sqrt(gap / 2 / size), rel=EXACT)


def test_the_audit_follows_what_the_unit_really_sent() -> None:
    plant = cf.random_plant(units=["one", "two"], rng=0)
    recording = recorded(plant, 300, 1000, 0.9)
    sent, answers = [], []

    def watch(message: Any, goes_up: bool) -> None:
        if message.unit == "one" and isinstance(message, PerturbedStates | StateGradients):
            (sent if goes_up else answers).append(message)

    privacy = cf.Privacy(100.0, 1e-6, accounting="published", seed=0)
    found = cf.fit(recording, plant.locals(), method="penalty", rounds=6, privacy=privacy, watch=watch)
    bound, part = sent[0].bound, found.parts["one"]
    y, u = (clipped_rows(each, bound)[0] for each in (recording["one"].y, recording["one"].u))
    rows = privacy_results.followed(
        AugmentedModel(part.working_model, ClientData.from_rows(*part.estimates(y, u))), answers
    )
    assert len(rows) == len(sent) == 6
    for message, means in zip(sent, rows, strict=True):
        noise = np.hstack([message.refined, message.augmented, message.predicted]) - means
        assert noise.std() == pytest.approx(message.noise, rel=0.1), message.round
    assert rows[0] != pytest.approx(rows[-1])


def test_an_audit_of_one_message_is_its_gaussian_epsilon() -> None:
    plant = cf.random_plant(units=["one", "two"], rng=0)
    recording = recorded(plant, 200, 1000, 0.9)
    privacy = cf.Privacy(1.0, 1e-6, accounting="published", seed=0)
    found = privacy_results.audited(plant, recording, privacy, 1, "one")
    unit = cf.fit(recording, plant.locals(), method="penalty", rounds=1, privacy=privacy).privacy.units["one"]
    model = plant.local("one")
    direction = np.linalg.svd(settled_gain(model))[2][0]
    struck, still = np.zeros((201, 8)), np.zeros((201, 2))
    struck[100] = 2 * unit.clip * direction
    states = cf.KalmanEstimator(model).estimate(struck, still).refined[:-1]
    length = np.sqrt(2 * (states**2).sum() + ((states @ model.A.T) ** 2).sum())
    assert found == pytest.approx(gaussian_epsilon(float(length) / unit.sigma, 1e-6), rel=1e-6)
    assert 0 < found < 1.0
