"""``solver="gradient"`` against the literal, per-time-step transcription of Algorithm 1."""

from __future__ import annotations

import algorithm_1
import numpy as np
import pytest
from algorithm_1 import STEPS, plant_of_three
from tolerances import ITERATES

import counterflow as cf
from counterflow.exchange.estimators import KalmanEstimator
from counterflow.randomness import stream


def transcribe(plant: cf.Plant, recording: cf.Recording, seed: int, scale: float, rounds: int, **kind):
    """Run the transcription from the very initial values that ``fit`` draws."""
    units, names = [], plant.names
    for name in names:
        model, record = plant.local(name), recording[name]
        refined = KalmanEstimator(model).estimate(record.y, record.u).refined
        draw = stream(seed, "augmented", name)
        theta = scale * draw.standard_normal((model.states, model.n_outputs))
        phi = scale * draw.standard_normal(model.states)
        units.append(algorithm_1.Unit(model.A, model.B, model.C, record.y, record.u, refined, theta, phi))
    A_hat, B_hat = {}, {}
    for m, effect in enumerate(names):
        A_hat[m], B_hat[m] = {}, {}
        for n, cause in enumerate(names):
            if n != m:
                draw = stream(seed, "couplings", effect, cause)
                A_hat[m][n] = scale * draw.standard_normal(plant.block("A", effect, cause).shape)
                B_hat[m][n] = scale * draw.standard_normal(plant.block("B", effect, cause).shape)
    history = algorithm_1.run(units, A_hat, B_hat, steps=algorithm_1.Steps(**STEPS), rounds=rounds, **kind)
    return units, A_hat, B_hat, history


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
    units, A_hat, B_hat, history = transcribe(plant, recording, 11, 0.1, 200, **kind)
    for carried in (dict(compress=False), dict(compress=False, over_the_wire=True), dict(compress=True)):
        found = cf.fit(
            recording, plant.locals(), **options, solver="gradient", **STEPS, seed=11, rounds=200, tol=0.0,
            initial_scale=0.1, **carried,
        )  # fmt: skip
        assert found.traffic.rounds == 200
        for m, name in enumerate(plant.names):
            close(found.parts[name].theta, units[m].theta)
            close(found.parts[name].phi, units[m].phi)
            close(found.history.client_loss[name], [entry["client_loss"][m] for entry in history])
            for n, cause in enumerate(plant.names):
                if n != m:
                    close(found.plant.block("A", name, cause), A_hat[m][n])
                    close(found.plant.block("B", name, cause), B_hat[m][n])
        close(found.history.server_loss, [entry["server_loss"] for entry in history])
        close(found.history.disentanglement, [entry["disentanglement"] for entry in history])


def close(found, wanted):
    wanted = np.asarray(wanted)
    if wanted.size:
        assert np.abs(found - wanted).max() <= ITERATES * np.abs(wanted).max()
