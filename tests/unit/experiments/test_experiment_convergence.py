"""Distance to the oracle: Theorem 8.3 written out, equality, and verdicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from experiment_panels import drawn
from tolerances import LONG

import counterflow as cf
from counterflow.paper.experiments import convergence
from counterflow.paper.experiments.convergence import EXPERIMENT, WEIGHTS
from counterflow.paper.experiments.effects import recorded
from counterflow.paper.experiments.experiment import Outcome, Request, Task


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
    values = EXPERIMENT.compute(task)
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


def made(**changes: Any) -> list[Outcome]:
    """Results as the paper would have them."""
    outcomes = []
    for task in EXPERIMENT.tasks(Request(quick=True)):
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


def verdicts(outcomes: list[Outcome]) -> list[str]:
    return [claim.verdict for claim in EXPERIMENT.claims(outcomes)]


BEYOND = "beyond the paper"
AGREEING = ["not comparable", "agrees", BEYOND, BEYOND, "does not hold", BEYOND]  # the bias is the paper's own limit


def with_means(task: Task, v: Any) -> Any:
    return v + 0.3 * (task["mean"] == 0)


@pytest.mark.parametrize(
    ("changes", "place", "verdict"),
    [
        ({"left": with_means}, 0, "does not hold"),
        ({"left": with_means, "right": with_means}, 0, "agrees"),
        ({"left": lambda task, v: v + 0.3 * (task["mean"] == 1)}, 1, "not comparable"),
        ({"distance": lambda task, v: v * (task["steps"] / 500) ** 0.5}, 4, "agrees"),
    ],
)
def test_a_broken_rule_changes_its_verdict_and_no_other(changes: dict[str, Any], place: int, verdict: str) -> None:
    assert verdicts(made()) == AGREEING
    wanted = list(AGREEING)
    wanted[place] = verdict
    assert verdicts(made(**changes)) == wanted


def test_zero_against_zero_is_no_agreement_and_the_text_says_so() -> None:
    def text(**changes: Any) -> str:
        outcomes = made(**changes)
        return EXPERIMENT.text(outcomes, EXPERIMENT.claims(outcomes))

    assert "compares zero with zero" in text()
    assert "The theorem's equation holds." in text(left=with_means, right=with_means)
    assert "does not hold here" in text(left=with_means)


def test_distances_row_by_row_are_told_and_not_judged() -> None:
    nearer, farther = (
        EXPERIMENT.claims(made(distance=change))[3].why for change in (lambda _, v: v, lambda _, v: v[::-1])
    )
    assert "come nearer" in nearer
    assert "do not come nearer" in farther
    assert "T^(-0.50" in EXPERIMENT.claims(made())[2].ours


def test_what_lies_between_is_undecided() -> None:
    def scattered(task: Task, v: Any) -> Any:
        return v * (task["steps"] / 500) ** (0.0 if task["run"] % 2 else 0.8)

    assert verdicts(made(distance=scattered))[4] == "undecided"
    few = [o for o in made() if o.task["run"] < 2]
    assert set(verdicts(few)) == {"undecided", "beyond the paper"}


def test_equality_is_told_as_it_is() -> None:
    *_, equal = EXPERIMENT.claims(made())
    *_, unlike = EXPERIMENT.claims(made(equality=lambda *_: 1e-3))
    assert "equal to rounding" in equal.why
    assert "differ by more" in unlike.why
    texts = [EXPERIMENT.text(each, EXPERIMENT.claims(each)) for each in (made(), made(equality=lambda *_: 1e-3))]
    assert ["Beyond the paper" in text for text in texts] == [True, False]


def test_figures_are_drawn() -> None:
    (figure,) = EXPERIMENT.figures(made()).values()
    drawn(figure)
