"""Effects of a fit: right over a horizon, the same whatever the basis, the order of units, or the units of measure."""

from __future__ import annotations

import numpy as np
import pytest
from equivalent_plants import permuted, transformed

import counterflow as cf

SAME = 1e-9  # of the largest effect
TIGHT = 1e-9  # standard errors that a fit may be away from its maximum here


def horizon_effects(fit, names, change=(1.0, -0.5)):
    return {
        (cause, effect): fit.effect(cause, effect, list(change), horizon=50).mean
        for cause in names
        for effect in names
        if cause != effect
    }


@pytest.mark.parametrize("units", [2, 8])
def test_r_squared_of_effects_over_a_horizon_of_fifty(units):
    """T=5,000; every ordered pair of units; the published method's answers beside."""
    plant = cf.random_plant(units=units, rng=units)
    recording = plant.simulate(5000, rng=3)
    truth = horizon_effects(cf.fit(recording, plant, method="oracle"), plant.names)
    found = horizon_effects(cf.fit(recording, plant.locals(), uncertainty=False), plant.names)
    published = horizon_effects(cf.fit(recording, plant.locals(), method="penalty"), plant.names)

    def r_squared(answers):
        missed = sum(np.square(answers[pair] - truth[pair]).sum() for pair in truth)
        return 1 - missed / sum(np.square(truth[pair]).sum() for pair in truth)

    worst = min(1 - np.square(found[pair] - truth[pair]).sum() / np.square(truth[pair]).sum() for pair in truth)
    assert r_squared(found) >= 0.99
    assert worst >= 0.97
    assert r_squared(published) < 0.5


def refit(plant, recording):
    data = cf.Recording.from_arrays({n: (recording[n].y, recording[n].u) for n in plant.names}, units=plant.units)
    found = cf.fit(data, plant.locals(), tol=TIGHT)
    assert found.status.gradient < 1e-6
    return found


def test_the_basis_of_the_states_and_the_order_of_units_change_no_answer():
    plant = cf.random_plant(units=["a", "b", "c"], rng=1)
    recording = plant.simulate(1000, rng=2)
    wanted = refit(plant, recording).effect("a", "c", [1.0, -0.5], horizon=50)
    rng = np.random.default_rng(0)
    bases = [transformed(plant, {n: np.eye(2) + 0.5 * rng.standard_normal((2, 2)) for n in "abc"}) for _ in range(3)]
    for other in (*bases, permuted(plant, ["c", "a", "b"])):
        again = refit(other, recording).effect("a", "c", [1.0, -0.5], horizon=50)
        size = np.abs(wanted.mean).max()
        assert np.abs(again.mean - wanted.mean).max() < SAME * size
        assert np.abs(again.upper - wanted.upper).max() < 1e3 * SAME * size


def test_units_of_measure_change_no_answer():
    plant = cf.random_plant(units=["a", "b", "c"], rng=1)
    recording = plant.simulate(1000, rng=2)
    wanted = refit(plant, recording).effect("a", "c", [1.0, -0.5], horizon=50)
    outputs, inputs = np.logspace(-3, 3, plant.C.shape[0]), np.logspace(2, -2, plant.B.shape[1])
    other = plant.replace(C=outputs[:, None] * plant.C, R=plant.R * np.outer(outputs, outputs), B=plant.B / inputs)
    rows = {
        n: (recording[n].y * outputs[plant.output_slice(n)], recording[n].u * inputs[plant.input_slice(n)])
        for n in plant.names
    }
    found = cf.fit(cf.Recording.from_arrays(rows, units=other.units), other.locals(), tol=TIGHT)
    change = np.array([1.0, -0.5]) * inputs[plant.input_slice("a")]
    again = found.effect("a", "c", change, horizon=50)
    scale = outputs[plant.output_slice("c")]
    assert np.abs(again.mean / scale - wanted.mean).max() < SAME * np.abs(wanted.mean).max()
    assert np.abs(again.upper / scale - wanted.upper).max() < 1e3 * SAME * np.abs(wanted.mean).max()
