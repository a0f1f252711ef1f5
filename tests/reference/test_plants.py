"""The judge of estimators from logs: simulated plants with true twins (benchmarks/plants)."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from functools import cache
from importlib import import_module

import numpy as np
import plants
import pytest
from plants import baselines, cases, results
from plants.plant import constant, jacobians, run
from plants.scores import Answer, Report
from plants.ways import DELAY, WAYS
from scipy.linalg import expm

WRITTEN = [name for name in plants.PLANTS if name != "water"]  # those with equations of our own
ROWS = 300
SMALL = 1e-4  # of the span: the plants are linear there
LINEAR = 5e-3  # difference of a small step's effect from the linear plant's, relative to the largest
STEPPING = 0.02  # the same for the steps of the integrator that are used, against twenty times as many
NONZERO = 1e-9  # of the largest entry of a Jacobian


@pytest.fixture(params=WRITTEN)
def plant(request):
    return import_module(f"plants.simulators.{request.param}").plant


@pytest.fixture(scope="module")
def case():
    return plants.case("tanks", "gentle", ROWS, 0)


@cache
def simulated(plant, way):
    return cases.simulated(plant, WAYS[way], ROWS, 0)


def every(case, answer):
    return [answer(k, unit, twin.effect[unit]) for k, twin in enumerate(case.truth) for unit in case.asked(twin)]


# ---- simulators


def test_a_plant_has_what_the_suite_asks_for(plant):
    assert 3 <= len(plant.units) <= 6
    assert all(2 <= unit.n_outputs <= 6 for unit in plant.units)
    assert sum(unit.n_inputs for unit in plant.units) == len(plant.u0) >= 2
    assert 60 <= plant.horizon <= 150
    assert len(plant.owner) == len(plant.x0) == len(plant.stiff)
    x = plant.steady()[:, None]
    assert len(plant.read(x, plant.new)) == sum(unit.n_outputs for unit in plant.units)
    assert len(plant.send(x, plant.u0[:, None], plant.new)) == len(plant.streams)


def test_the_graph_is_where_the_jacobian_is_not_zero(plant):
    rng = np.random.default_rng(0)
    x = plant.steady() * (1 + 0.01 * rng.uniform(-1, 1, len(plant.x0)))  # in a steady state some slopes may vanish
    A, B = jacobians(plant, x, plant.u0)
    by_state, by_input = np.array(plant.owner), np.array(plant.input_owner)
    names = [unit.name for unit in plant.units]
    scale = np.abs(A) * np.abs(x) / np.abs(x)[:, None], np.abs(B) * plant.span / np.abs(x)[:, None]
    found = {
        (n, m)
        for n in names
        for m in names
        if n != m
        and any(
            (matrix[np.ix_(by_state == m, owner == n)] > NONZERO).any()
            for matrix, owner in zip(scale, (by_state, by_input), strict=True)
        )
    }
    assert found == plant.graph


def test_the_stiff_pace_spreads_time_constants_over_a_hundred_and_keeps_the_plant_stable(plant):
    A, _ = jacobians(plant, plant.steady(), plant.u0)
    rates = -np.linalg.eigvals(plant.stiff[:, None] * A).real
    assert rates.min() > 0
    assert rates.max() / rates.min() >= 100


def test_a_small_step_does_what_the_linear_plant_says(plant):
    still, rows = plant.steady(), 60
    A, B = jacobians(plant, still, plant.u0)
    X, U = B.shape
    whole = expm(plant.dt * np.block([[A, B], [np.zeros((U, X + U))]]))
    steps = SMALL * np.diag(plant.span)  # one input in each run of the batch
    expected = np.zeros((rows + 1, X, U))
    for t in range(rows):
        expected[t + 1] = whole[:X, :X] @ expected[t] + whole[:X, X:] @ steps
    scale = np.abs(expected).max(axis=0) + 1e-3 * SMALL * np.abs(still)[:, None]
    u, begin = constant(plant.u0[:, None] + steps, rows), np.repeat(still[:, None], U, axis=1)
    for model, tolerance in ((replace(plant, substeps=20), LINEAR), (plant, STEPPING)):
        moved = run(model, begin, u)[0] - begin
        assert (np.abs(moved - expected) / scale).max() < tolerance


# ---- cases


def test_twins_without_a_change_have_exactly_no_effect(plant, monkeypatch):
    drawn = cases.draw_changes
    monkeypatch.setattr(
        cases, "draw_changes", lambda *given: [replace(change, added=0 * change.added) for change in drawn(*given)]
    )
    still = cases.simulated(plant, WAYS["delay"], ROWS, 0)
    assert all((effect == 0).all() for twin in still.truth for effect in twin.effect.values())


def test_a_case_follows_the_conventions_of_recordings(plant):
    case = simulated(plant, "gentle")
    recording = case.recording()
    assert recording.rows == ROWS
    assert recording.units == plant.units
    starts = {twin.start == recording.steps for twin in case.truth}
    assert starts == {True, False}  # now, and in the past
    for twin in case.truth:
        u, window = case.u[twin.unit], slice(twin.start, twin.start + twin.horizon)
        if twin.start < recording.steps:
            assert window.stop < ROWS
            was = u[window]
        else:
            was = u[-1]
        assert np.abs(twin.change).max() > 0
        assert ((was + twin.change >= u.min(axis=0) - 1e-9) & (was + twin.change <= u.max(axis=0) + 1e-9)).all()
        if twin.kind == "step" and twin.change[0].any():  # the input of row start acts on row start + 1
            assert np.abs(twin.effect[twin.unit][0]).max() > 0
    again = cases.simulated(plant, WAYS["gentle"], ROWS, 0)
    assert again.recording() == recording


def test_delayed_streams_arrive_late(plant):
    case = simulated(plant, "delay")
    others = [twin.effect[unit] for twin in case.truth for unit in case.asked(twin)]
    assert all((effect[: DELAY[0] - 2] == 0).all() for effect in others)
    assert any((effect[DELAY[1] + 5 :] != 0).any() for effect in others)


def test_measurement_noise_is_a_twentieth_and_the_common_disturbance_is_felt(plant):
    gentle, common = (simulated(plant, way) for way in ("gentle", "common"))
    for name in gentle.names:
        assert gentle.y[name].std(axis=0) == pytest.approx(20 * gentle.noise[name], rel=0.05)
    larger = [np.median(common.noise[name] / gentle.noise[name]) for name in gentle.names]
    assert sum(ratio > 1.05 for ratio in larger) >= 2


@pytest.mark.skipif(importlib.util.find_spec("wntr") is None, reason="needs EPANET: pip install wntr six")
def test_net3_is_a_case_like_the_others():
    case = plants.case("water", "wide", ROWS, 0)
    assert case.recording().rows == ROWS
    assert case.graph is None
    assert plants.offers("water", "wide")
    assert not plants.offers("water", "delay")
    first = case.truth[0]
    assert np.abs(first.effect[first.unit][0]).max() > 0  # the input of row start acts on row start + 1
    assert plants.judge(case, baselines.arx(case)).error < 1


# ---- the judge


def test_a_perfect_answer_scores_zero(case):
    score = plants.judge(case, Report(every(case, Answer), case.graph, 1.0, "perfect"))
    assert (score.error, score.least_r2, score.precision, score.recall) == (0, 1, 1, 1)
    assert score.tiny_error == 0
    assert score.intervals == 0
    assert np.isnan(score.coverage)
    assert score.tiny > 0


def test_no_effect_at_all_has_the_error_one_and_a_runaway_counts_twice(case):
    nothing = plants.judge(case, Report(every(case, lambda k, n, e: Answer(k, n, 0 * e)), None, 1.0, ""))
    runaway = plants.judge(
        case, Report(every(case, lambda k, n, e: Answer(k, n, np.full_like(e, np.inf))), None, 1.0, "")
    )
    assert nothing.error == pytest.approx(1)
    assert np.isnan(nothing.precision)
    assert runaway.error == plants.CAP
    assert runaway.to_json()["least_r2"] is None


def test_a_gaussian_band_has_its_coverage_and_width(case):
    rng = np.random.default_rng(0)

    def around(k, unit, effect):
        sigma = 0.3 * case.noise[unit]
        mean = effect + sigma * rng.standard_normal(effect.shape)
        return Answer(k, unit, mean, mean - 1.96 * sigma, mean + 1.96 * sigma)

    score = plants.judge(case, Report(every(case, around), None, 1.0, ""))
    assert score.intervals == 1
    assert score.coverage == pytest.approx(0.95, abs=0.02)
    assert score.tiny_coverage == pytest.approx(0.95, abs=0.02)
    assert score.width == pytest.approx(4.91, abs=0.15)
    assert score.tiny_error == pytest.approx(0.3, abs=0.02)


def test_the_graph_is_judged_by_pairs(case):
    pairs = [(n, m) for n in case.names for m in case.names if n != m]
    everything = plants.judge(case, Report(every(case, Answer), frozenset(pairs), 1.0, ""))
    assert (everything.precision, everything.recall) == (len(case.graph) / len(pairs), 1)
    nothing = plants.judge(case, Report(every(case, Answer), frozenset(), 1.0, ""))
    assert np.isnan(nothing.precision)  # an empty graph is not precise
    assert nothing.recall == 0


def test_every_question_must_be_answered_once(case):
    answers = every(case, Answer)
    for given in (answers[1:], [*answers, answers[0]]):
        with pytest.raises(ValueError, match="one is needed"):
            plants.judge(case, Report(given, None, 1.0, ""))
    wrong = [replace(answers[0], mean=answers[0].mean[1:]), *answers[1:]]
    with pytest.raises(ValueError, match="shape"):
        plants.judge(case, Report(wrong, None, 1.0, ""))


# ---- baselines and results


def test_pooled_arx_finds_the_effects_of_a_gentle_plant():
    case = plants.case("tanks", "gentle", 1000, 0)
    assert plants.judge(case, baselines.arx(case)).error < 0.2


def test_scores_are_kept_case_by_case(case, tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    score = plants.judge(case, Report(every(case, Answer), None, 1.0, "fine"))
    assert results.load("arx") == {}
    for seed in (0, 1):
        results.store("arx", results.key("tanks", "gentle", ROWS, seed), score)
    assert set(results.load("arx")) == {f"tanks/gentle/{ROWS}/{seed}" for seed in (0, 1)}
    assert results.load("arx")[f"tanks/gentle/{ROWS}/0"]["error"] == 0
