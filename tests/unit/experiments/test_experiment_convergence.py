"""Distance to the oracle: Theorem 8.3 written out, equality, and verdicts."""

from __future__ import annotations

import numpy as np
import pytest
from tolerances import LONG

import counterflow as cf
from counterflow.paper.experiments import convergence
from counterflow.paper.experiments.convergence import Convergence
from counterflow.paper.experiments.effects import recorded
from counterflow.paper.experiments.experiment import Task


def test_the_theorem_s_two_sides_are_those_of_its_definition() -> None:
    plant = cf.random_plant(outputs=3, rng=2)
    recording = recorded(plant, 150, 3, mean=1.0)
    found = cf.fit(recording, plant.locals(), method="penalty", xi=5.0)
    predicted, bias = convergence.augmented(found, plant, recording)
    name, other = plant.names
    model, part = plant.local(name), found.parts[name]
    refined = {n: cf.KalmanEstimator(plant.local(n)).estimate(recording[n].y, recording[n].u).refined[:-1]
               for n in plant.names}  # fmt: skip
    y, u = recording[name].y, {n: recording[n].u[:-1] for n in plant.names}
    h_a = (refined[name] + y[:-1] @ part.theta.T) @ model.A.T + u[name] @ model.B.T + part.phi
    np.testing.assert_allclose(predicted[:, :3], h_a @ model.C.T, rtol=LONG, atol=LONG)
    A_hat, B_hat = (found.plant.block(letter, name, other) for letter in "AB")
    D = y[:-1] @ part.theta.T @ model.A.T - refined[other] @ A_hat.T
    e = (D + part.phi - u[other] @ B_hat.T) @ model.C.T
    z = np.hstack([y[:-1], u[name], u[other], refined[name]])
    J = (e.T @ z / 150) @ np.linalg.inv(z.T @ z / 150)
    np.testing.assert_allclose(bias[:3], J @ z.mean(axis=0), rtol=1e-7)


def test_one_run_measures_distance_and_equality() -> None:
    task = Task("convergence", {"plant": 0, "outputs": 2, "xi": [0.1, 1e6], "steps": 400, "mean": 0.0, "run": 0})
    values = Convergence.compute(task)
    distance = np.asarray(values["distance"])
    assert distance.shape == (2,)
    assert distance[0] < distance[1]
    assert distance[1] == pytest.approx(float(values["proprietary"]), rel=1e-3)  # theta and phi are gone
    assert float(values["sufficient/distance"]) < 0.1 * distance[0]
    assert float(values["equality"]) < convergence.ROUNDING


def test_the_score_is_the_largest_mean_in_standard_errors() -> None:
    draws = np.random.default_rng(0).standard_normal((50, 3)) + np.array([0.0, 5.0, 0.0])
    column = draws[:, 1]
    assert convergence.score(draws) == pytest.approx(column.mean() / (column.std(ddof=1) / np.sqrt(50)))
