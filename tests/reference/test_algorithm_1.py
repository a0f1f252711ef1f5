"""``solver="gradient"`` against the literal, per-time-step transcription of Algorithm 1."""

from __future__ import annotations

import algorithm_1
import pytest
from algorithm_1 import STEPS, arrives, close, plant_of_three

import counterflow as cf

CASES = {
    "penalty": (dict(method="penalty", xi=2.0), dict(xi=2.0)),
    "algorithm-1": (dict(method="penalty", xi=2.0, gradients="algorithm-1"), dict(xi=2.0, refined_gradient=False)),
    "lagrangian": (dict(method="lagrangian", rho=3.0), dict(xi=0.0, rho=3.0)),
    "refined target": (dict(method="penalty", xi=2.0, target="refined"), dict(xi=2.0, refined_target=True)),
    "refined target, lagrangian": (
        dict(method="lagrangian", rho=3.0, target="refined"),
        dict(xi=0.0, rho=3.0, refined_target=True),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_iterates_equal_the_transcription_over_200_rounds(case):
    plant = plant_of_three()
    recording = plant.simulate(12, rng=3)
    options, kind = CASES[case]
    start = algorithm_1.start(plant, {n: (recording[n].y, recording[n].u) for n in plant.names}, 11, 0.1)
    history = algorithm_1.run(*start, steps=algorithm_1.Steps(**STEPS), rounds=200, **kind)
    for carried in (dict(compress=False), dict(compress=False, over_the_wire=True), dict(compress=True)):
        found = cf.fit(
            recording, plant.locals(), **options, solver="gradient", **STEPS, seed=11, rounds=200, tol=0.0,
            initial_scale=0.1, **carried,
        )  # fmt: skip
        assert found.traffic.rounds == 200
        arrives(found, *start)
        for m, name in enumerate(plant.names):
            close(found.history.client_loss[name], [entry["client_loss"][m] for entry in history])
        close(found.history.server_loss, [entry["server_loss"] for entry in history])
        close(found.history.disentanglement, [entry["disentanglement"] for entry in history])
