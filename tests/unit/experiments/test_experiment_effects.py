"""Errors of effects and the methods that are compared, against independent computations."""

from __future__ import annotations

import numpy as np
import pytest
from tolerances import EXACT, ITERATIVE, LONG

import counterflow as cf
from counterflow.paper.experiments import effects
from counterflow.paper.experiments.effects import (
    accuracy,
    cosine,
    coupling_error,
    effect_error,
    pairs,
    recorded,
    responses,
    without_couplings,
)


def test_responses_are_what_twin_simulations_differ_by() -> None:
    plant = cf.random_plant(units=3, outputs=4, rng=1)
    found = responses(plant, 12)
    base = plant.simulate(30, rng=5)
    for cause in plant.names:
        inputs = {name: base[name].u.copy() for name in plant.names}
        inputs[cause][10:, 1] += 1.0
        other = plant.simulate(30, rng=5, inputs=inputs)
        for effect in plant.names:
            if effect != cause:
                change = (other[effect].y - base[effect].y)[11:23]
                np.testing.assert_allclose(change, found[effect, cause][:, :, 1], rtol=LONG, atol=LONG)


def test_errors_are_those_of_their_definition() -> None:
    true, found = cf.random_plant(units=2, rng=1), cf.random_plant(units=2, rng=2)
    blocks = [(found.block("B", m, n), true.block("B", m, n)) for m, n in (("unit1", "unit2"), ("unit2", "unit1"))]
    gap = np.sqrt(sum(((a - b) ** 2).sum() for a, b in blocks) / sum((b**2).sum() for _, b in blocks))
    assert coupling_error(found, true) == pytest.approx(gap, rel=EXACT)
    one, other = (np.concatenate([block[k].ravel() for block in blocks]) for k in (0, 1))
    assert cosine(found, true) == pytest.approx(one @ other / np.sqrt((one @ one) * (other @ other)), rel=EXACT)
    mine, theirs = responses(found), responses(true)
    stacked = [np.concatenate([each[pair].ravel() for pair in pairs(true)]) for each in (mine, theirs)]
    error = np.linalg.norm(stacked[0] - stacked[1]) / np.linalg.norm(stacked[1])
    assert effect_error(mine, theirs) == pytest.approx(error, rel=EXACT)
    assert accuracy(found, true)["R2"] == pytest.approx(1 - error**2, rel=EXACT)


def test_nothing_gets_an_error_of_one_and_no_coupling_has_none() -> None:
    plant = cf.random_plant(rng=3)
    alone = without_couplings(plant)
    assert coupling_error(alone, plant) == 1.0
    assert effect_error(responses(alone), responses(plant)) == 1.0
    assert np.isnan(coupling_error(plant, alone))
    assert np.isnan(effect_error(responses(plant), responses(alone)))
    assert np.isnan(cosine(alone, plant))
    assert (without_couplings(plant, "B").A == plant.A).all()


def test_granger_is_least_squares_with_its_standard_errors() -> None:
    plant = cf.random_plant(rng=1)
    recording = recorded(plant, 300, 2, pole=0.5, mean=1.0)
    states = effects.refined_states(recording, plant.locals())
    inputs = np.hstack([recording[name].u for name in recording.names])
    found, B_errors = effects.granger_plant(recording, plant)
    X = np.column_stack([states[:-1], inputs[:-1], np.ones(300)])
    for row in range(4):  # one equation after the other, by the textbook's formulas
        fitted, (left,), _, _ = np.linalg.lstsq(X, states[1:, row], rcond=None)
        errors = np.sqrt(left / (300 - 9) * np.diag(np.linalg.inv(X.T @ X)))
        np.testing.assert_allclose(np.concatenate([found.A[row], found.B[row]]), fitted[:-1], rtol=ITERATIVE)
        np.testing.assert_allclose(B_errors[row], errors[4:-1], rtol=ITERATIVE)


def test_granger_sees_nothing_but_each_unit_s_own_filter() -> None:
    plant = cf.random_plant(rng=1)
    recording = plant.simulate(60, rng=2)
    alone = {n: cf.KalmanEstimator(model) for n, model in plant.locals().items()}
    own = np.hstack([alone[n].estimate(recording[n].y, recording[n].u).refined for n in plant.names])
    np.testing.assert_array_equal(effects.refined_states(recording, plant.locals()), own)
    found = effects.estimate("granger", recording, plant, 1)
    assert found.traffic == 8 * 61 * (4 + 4)
    assert found.fit is None
