"""Faults: each is what it says, with the truth that belongs to it; and verdicts."""

from __future__ import annotations

import numpy as np
import pytest
from tolerances import EXACT, LONG

import counterflow as cf
from counterflow.paper.experiments import robustness
from counterflow.paper.experiments.effects import effect_error, recorded, responses
from counterflow.paper.experiments.experiment import Task
from counterflow.paper.experiments.robustness import FAULTS, Robustness, case, fresh

PLANT = cf.random_plant(units=2, rng=0)


def test_wrong_local_blocks_are_wrong_by_what_is_asked() -> None:
    made = case("local", 0.1, seed=0, steps=50)
    for name, model in made.models.items():
        true = PLANT.local(name)
        assert np.linalg.norm(model.B - true.B) == pytest.approx(0.1 * np.linalg.norm(true.B), rel=EXACT)
        assert np.linalg.norm(model.A - true.A) == pytest.approx(0.1 * np.linalg.norm(true.A), rel=EXACT)
        assert (model.C == true.C).all()
    assert made.recording == recorded(PLANT, 50, 8000, robustness.POLE)
    assert case("local", 0.0, seed=0, steps=50).models == PLANT.locals()


def test_wrong_noise_is_a_factor_and_colour_is_the_pole() -> None:
    made = case("noise", 10.0, seed=0, steps=50)
    np.testing.assert_allclose(made.models["unit1"].Q, 10 * PLANT.local("unit1").Q)
    long = case("colour", 0.8, seed=0, steps=4000).recording["unit2"].u[:, 0]
    assert np.corrcoef(long[1:], long[:-1])[0, 1] == pytest.approx(0.8, abs=0.05)


def test_missing_rows_are_missing_and_filled_by_straight_lines() -> None:
    made = case("missing", 0.3, seed=0, steps=400)
    full = recorded(PLANT, 400, 8000, robustness.POLE)
    for name in PLANT.names:
        holes = np.isnan(made.recording[name].y).all(axis=1)
        assert (np.isnan(made.recording[name].y).any(axis=1) == holes).all()
        assert holes.mean() == pytest.approx(0.3, abs=0.1)
        np.testing.assert_array_equal(made.whole[name].y[~holes], full[name].y[~holes])
        lone = [t for t in range(1, 400) if holes[t] and not holes[t - 1] and not holes[t + 1]]
        middle = (full[name].y[lone[0] - 1] + full[name].y[lone[0] + 1]) / 2
        np.testing.assert_allclose(made.whole[name].y[lone[0]], middle, rtol=LONG)


def test_a_unit_that_drops_out_leaves_questions_about_the_others() -> None:
    half, gone = case("dropout", 0.5, seed=0, steps=100), case("dropout", 1.0, seed=0, steps=100)
    assert set(half.true) == {("unit1", "unit2"), ("unit2", "unit1")} == set(gone.true)
    assert half.whole.rows == 51
    assert np.isnan(half.recording["unit3"].y[51:]).all()
    assert np.isfinite(half.recording["unit3"].y[:51]).all()
    assert gone.recording.names == ("unit1", "unit2") == tuple(gone.models)
    whole = responses(cf.random_plant(units=3, rng=0))
    np.testing.assert_array_equal(gone.true["unit1", "unit2"], whole["unit1", "unit2"])


def test_effects_of_a_plant_without_curvature_are_the_linear_ones() -> None:
    made = case("nonlinear", 0.0, seed=0, steps=500)
    for pair, values in responses(PLANT).items():
        np.testing.assert_allclose(made.true[pair], values, rtol=1e-8, atol=1e-10)
    error = effect_error(responses(cf.fit(made.recording, made.models, uncertainty=False).plant), made.true)
    assert error < 0.15


def test_curvature_makes_effects_smaller() -> None:
    flat, curved = (case("nonlinear", level, seed=0, steps=500).true for level in (0.0, 0.3))
    assert all(np.linalg.norm(curved[pair]) < 0.9 * np.linalg.norm(flat[pair]) for pair in flat)


def test_a_run_is_the_error_of_fits_of_the_same_case_and_of_predictions_of_new_data() -> None:
    settings = {"fault": "dropout", "level": 0.5, "run": 0, "steps": 200, "weights": [0.1, 10.0]}
    values = Robustness.compute(Task("robustness", settings))
    made, new = case("dropout", 0.5, 0, 200), fresh("dropout", 0.5, 0, 200)
    default, published = cf.fit(made.recording, made.models), cf.fit(made.whole, made.models, method="penalty", xi=10.0)
    for method, found in (("default", default), ("published", published)):
        assert values[method] == pytest.approx(effect_error(responses(found.plant), made.true), rel=EXACT)
    assert float(values["published"]) > float(values["default"])
    means = published.validate(new).mean()
    wanted = np.mean([means["augmented"][n] / means["proprietary"][n] for n in ("unit1", "unit2")])
    ratios = np.asarray(values["prediction"])
    assert ratios[1] == pytest.approx(wanted, rel=EXACT)
    assert ratios.shape == (2,)


@pytest.mark.parametrize("fault", FAULTS)
def test_new_data_are_other_rows_of_the_same_plant(fault: str) -> None:
    level = FAULTS[fault][1][-1]
    made, new = case(fault, level, 0, 100), fresh(fault, level, 0, 100)
    assert new.names == tuple(made.models)
    assert not new.has_missing
    assert new.rows == 101
    assert not np.array_equal(new["unit1"].u, made.whole["unit1"].u[: new.rows])
