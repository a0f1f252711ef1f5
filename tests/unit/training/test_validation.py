"""Prediction errors on new data with a mean shift and non-stationary inputs."""

from __future__ import annotations

import numpy as np
import pytest

import counterflow as cf
from counterflow.exchange.estimators import KalmanEstimator
from counterflow.plant import excitation


@pytest.fixture(scope="module")
def setting():
    plant = cf.random_plant(units=2, topology="one-way", outputs=2, rng=3)
    training = plant.simulate(4000, rng=1)
    new = plant.simulate(1000, rng=2, inputs=excitation.mean_shift(plant, 1000, 2, at=0.5, shift=3.0))
    return plant, training, new


def test_the_models_are_ranked_as_they_should_be(setting):
    plant, training, new = setting
    found = cf.fit(training, plant.locals(), method="penalty", xi=1.0)
    result = found.validate(new, oracle=plant)
    assert set(result.errors) == {"augmented", "proprietary", "server", "oracle"}
    before, after = result.mean(0, 500), result.mean(500, None)
    last = plant.names[1]  # the unit that is acted on
    assert before["oracle"][last] < before["augmented"][last] < before["proprietary"][last]
    for model in ("augmented", "proprietary"):  # neither knows the other unit's inputs, so the shift hurts
        assert after[model][last] > 1.5 * before[model][last]
    assert after["oracle"][last] < 1.2 * before["oracle"][last]


def test_the_default_methods_server_predicts_as_well_as_the_oracle(setting):
    plant, training, new = setting
    mean = cf.fit(training, plant.locals()).validate(new, oracle=plant).mean()
    assert "augmented" not in mean
    for name in plant.names:
        assert mean["server"][name] < 1.02 * mean["oracle"][name]


def test_each_series_is_what_it_says(setting):
    plant, training, new = setting
    found = cf.fit(training, plant.locals(), method="penalty", xi=1.0)
    errors = found.validate(new, oracle=plant).errors
    name, other = plant.names[1], plant.names[0]
    model, y, u = plant.local(name), new[name].y, new[name].u
    states = KalmanEstimator(model).estimate(y, u)
    refined = KalmanEstimator(plant.local(other)).estimate(new[other].y, new[other].u).refined
    theta, phi = found.parts[name].theta, found.parts[name].phi
    for t in (1, 17, 1000):
        own = model.A @ states.refined[t - 1] + model.B @ u[t - 1]
        augmented = own + model.A @ theta @ y[t - 1] + phi
        served = own + found.plant.block("A", name, other) @ refined[t - 1]
        served = served + found.plant.block("B", name, other) @ new[other].u[t - 1]
        for label, state in (("augmented", augmented), ("server", served), ("proprietary", states.predicted[t])):
            wanted = np.square(y[t] - model.C @ state).sum()
            assert errors[label][name][t - 1] == pytest.approx(wanted, rel=1e-10)


def test_units_must_match(setting):
    plant, training, _ = setting
    found = cf.fit(training, plant.locals(), method="penalty")
    with pytest.raises(cf.DataError, match="units"):
        found.validate(cf.random_plant(units=3, outputs=2, rng=1).simulate(10, rng=1))


def test_questions_one_two_and_three(setting):
    """Eqs. (3), (19) and (20): C B Δu at the unit, B Δu at the server, C Δphi at the unit alone."""
    plant, training, _ = setting
    found = cf.fit(training, plant.locals(), method="penalty", xi=1.0)
    cause, effect = plant.names
    change = np.array([0.3, -1.0])
    answer = found.effect(cause, effect, change)
    coupling = found.plant.block("B", effect, cause)
    assert np.allclose(answer.states[0], coupling @ change, rtol=1e-12)
    assert np.allclose(answer.mean[0], plant.block("C", effect) @ coupling @ change, rtol=1e-12)
    assert np.array_equal(found.effect(cause, effect, {"u1": 0.3, "u2": -1.0}).mean, answer.mean)
    assert answer.caveats[0].code == "published-method"
    phi = found.parts[effect].phi
    assert np.allclose(
        found.aggregate_effect(effect, phi + np.array([1.0, 0.0])),
        plant.block("C", effect)[:, 0],
        rtol=1e-9,
        atol=1e-12,
    )
    for bad in ([1.0], [np.nan, 1.0], {"valve": 1.0}):
        with pytest.raises((cf.DataError, cf.UnknownNameError)):
            found.effect(cause, effect, bad)
    with pytest.raises(cf.OptionError, match="horizon"):
        found.effect(cause, effect, change, horizon=0)
    with pytest.raises(cf.UnknownNameError, match="unit"):
        found.effect("boiler", effect, change)
    with pytest.raises(cf.DataError, match="phi"):
        found.aggregate_effect(effect, np.zeros(7))
