"""Accuracy, uncertainty, identifiability, influence graph, updates: what the default method promises."""

from __future__ import annotations

import numpy as np
import pytest
from information_twins import shared_of

import counterflow as cf
from counterflow.learning.influence import _benjamini_hochberg
from counterflow.learning.optimiser import least_squares_start
from counterflow.learning.predictor import Predictor
from counterflow.learning.uncertainty import remember, update
from counterflow.plant import excitation


def error_of_B(found, plant):
    pairs = [(m, n) for m in plant.names for n in plant.names if m != n]
    gap = sum(np.square(found.plant.block("B", m, n) - plant.block("B", m, n)).sum() for m, n in pairs)
    return float(np.sqrt(gap / sum(np.square(plant.block("B", m, n)).sum() for m, n in pairs)))


def losing(plant, recording, share):
    """The same with this share of the readings lost at random."""
    rng, rows = np.random.default_rng(1), {}
    for name in plant.names:
        y = recording[name].y.copy()
        y[rng.random(y.shape) < share] = np.nan
        rows[name] = (y, recording[name].u)
    return cf.Recording.from_arrays(rows, units=plant.units)


@pytest.mark.parametrize("pole", [0.0, 0.9], ids=["white", "AR(0.9)"])
def test_relative_error_of_the_input_couplings_over_20_seeds(pole):
    """M=2, P=U=2, D=8, T=2,000, q=0.1, r=1: at most 0.05 for every seed."""
    errors = []
    for seed in range(20):
        plant = cf.random_plant(units=2, rng=seed)
        inputs = excitation.autoregressive(plant, 2000, 100 + seed, pole=pole) if pole else None
        recording = plant.simulate(2000, rng=100 + seed, inputs=inputs)
        errors.append(error_of_B(cf.fit(recording, plant.locals(), uncertainty=False), plant))
    assert max(errors) <= 0.05


def test_relative_error_with_sixteen_units():
    plant = cf.random_plant(units=16, rng=1)
    found = cf.fit(plant.simulate(5000, rng=2), plant.locals(), uncertainty=False)
    assert found.status.converged
    assert error_of_B(found, plant) <= 0.06


@pytest.mark.parametrize("lost", [0.0, 0.15])
def test_the_least_squares_start_is_consistent(lost):
    """Its error falls like 1/√T, whatever channels rows have; without the compensation it stays biased."""
    plant = cf.random_plant(units=2, outputs=3 + (lost > 0), rng=3)
    errors = []
    for steps in (2_000, 200_000):
        record = shared_of(plant, losing(plant, plant.simulate(steps, rng=4), lost))
        A, _ = least_squares_start(record, "blocks", 1.0)
        errors.append(np.linalg.norm(A - plant.A) / np.linalg.norm(plant.A))
    assert errors[1] < 0.02
    assert errors[1] < errors[0] / 4


def test_errors_fall_with_more_data_and_standard_errors_follow():
    plant = cf.random_plant(units=2, rng=5)
    short, long = (cf.fit(plant.simulate(steps, rng=6), plant.locals()) for steps in (1000, 16_000))
    ratio = short.standard_errors.B[:2, 2:] / long.standard_errors.B[:2, 2:]
    assert np.allclose(ratio, 4.0, rtol=0.2)
    assert not long.standard_errors.A[:2, :2].any()  # given, not estimated


def test_intervals_cover_in_a_small_monte_carlo():
    """50 recordings, 16 couplings each: 90 to 99 %; the figure of many runs is in benchmarks/results/coverage.md."""
    plant = cf.random_plant(units=2, rng=7)
    hits = total = 0
    for seed in range(50):
        found = cf.fit(plant.simulate(1000, rng=seed), plant.locals())
        for letter in "AB":
            se = getattr(found.standard_errors, letter)
            free = se > 0
            gap = np.abs(getattr(found.plant, letter) - getattr(plant, letter))[free]
            hits += int((gap <= 1.96 * se[free]).sum())
            total += int(free.sum())
    assert 0.90 <= hits / total <= 0.99


def test_effects_come_with_intervals_that_hold_the_truth():
    plant = cf.random_plant(units=3, rng=2)
    found = cf.fit(plant.simulate(4000, rng=3), plant.locals())
    truth = cf.fit(plant.simulate(10, rng=0), plant, method="oracle")
    inside = []
    for cause in plant.names:
        for effect in plant.names:
            answer = found.effect(cause, effect, [1.0, 1.0], horizon=30)
            real = truth.effect(cause, effect, [1.0, 1.0], horizon=30).mean
            inside.append(((answer.lower <= real) & (real <= answer.upper)).mean())
            wide = found.effect(cause, effect, [1.0, 1.0], horizon=30, level=0.99)
            assert (wide.upper - wide.lower >= answer.upper - answer.lower).all()
            assert 1 - np.square(answer.mean - real).sum() / np.square(real).sum() > 0.99
    assert np.mean(inside) > 0.8


def test_the_delta_method_is_the_spread_of_resampled_couplings():
    plant = cf.random_plant(units=2, rng=2)
    found = cf.fit(plant.simulate(3000, rng=3), plant.locals())
    spread = found.couplings.spread
    answer = found.effect("unit1", "unit2", [1.0, 0.0], horizon=8)
    rng = np.random.default_rng(0)
    here = spread.parameters.pack(np.hstack([found.plant.A, found.plant.B]))
    samples = []
    for _ in range(800):
        drawn = spread.parameters.unpack(here + spread.root @ rng.standard_normal(spread.root.shape[1]))
        A = np.where(drawn[:, :4] != 0, drawn[:, :4], found.plant.A)
        B = np.where(drawn[:, 4:] != 0, drawn[:, 4:], found.plant.B)
        state, rows = np.zeros(4), []
        for _ in range(8):
            state = A @ state + B[:, 0]
            rows.append(plant.block("C", "unit2") @ state[2:])
        samples.append(rows)
    deviation = np.std(samples, axis=0)
    assert np.allclose(deviation, (answer.upper - answer.lower) / (2 * 1.959964), rtol=0.15)


def frozen_inputs(plant, steps, change):
    inputs = excitation.white(plant, steps, 9)
    change(inputs)
    return plant.simulate(steps, rng=9, inputs=inputs)


def test_an_input_that_never_varies_is_marked_and_the_others_stay_right():
    plant = cf.random_plant(units=["boiler", "turbine", "pump"], rng=1)

    def change(inputs):
        inputs["turbine"][:, 1] = 0.7

    found = cf.fit(frozen_inputs(plant, 3000, change), plant.locals())
    doubts = found.couplings.doubts
    assert {(d.cause, d.effect, d.letter, d.channels) for d in doubts} == {
        ("turbine", "boiler", "B", (1,)),
        ("turbine", "pump", "B", (1,)),
    }
    assert all("never varies" in d.reason and "move it" in d.remedy for d in doubts)
    column = plant.input_slice("turbine").start + 1
    assert np.isnan(found.standard_errors.B[plant.state_slice("boiler"), column]).all()
    with pytest.raises(cf.UnidentifiedError, match="never varies"):
        found.effect("turbine", "boiler", {"u2": 1.0}, horizon=5)
    good = found.effect("turbine", "boiler", {"u1": 1.0}, horizon=5)
    oracle = cf.fit(plant.simulate(10, rng=0), plant, method="oracle")
    truth = oracle.effect("turbine", "boiler", {"u1": 1.0}, horizon=5)
    assert np.abs(good.mean - truth.mean).max() < 0.1 * np.abs(truth.mean).max()
    assert np.isfinite(good.upper).all()


def test_two_inputs_that_move_together_are_marked_and_the_others_stay_right():
    plant = cf.random_plant(units=["boiler", "turbine", "pump"], rng=1)

    def change(inputs):
        inputs["turbine"][:, 0] = 2 * inputs["pump"][:, 1] + 3

    found = cf.fit(frozen_inputs(plant, 3000, change), plant.locals())
    marked = {(d.cause, d.effect, d.channels) for d in found.couplings.doubts}
    assert marked == {("turbine", "boiler", (0,)), ("pump", "boiler", (1,))}  # each knows its own B_mm
    assert "together" in found.couplings.doubts[0].reason
    for cause, channel in (("turbine", "u1"), ("pump", "u2")):
        with pytest.raises(cf.UnidentifiedError, match="together"):
            found.effect(cause, "boiler", {channel: 1.0})
    se = found.standard_errors.B
    free = np.isfinite(se) & (se > 0)
    assert (np.abs(found.plant.B - plant.B)[free] < 5 * se[free]).all()


def test_a_unit_with_too_few_rows_is_marked_and_the_others_stay_right():
    plant = cf.random_plant(units=["boiler", "turbine", "pump"], rng=1)
    recording = plant.simulate(2000, rng=2)
    rows = {n: (recording[n].y.copy(), recording[n].u) for n in plant.names}
    rows["pump"][0][12:] = np.nan
    found = cf.fit(cf.Recording.from_arrays(rows, units=plant.units), plant.locals())
    into = {(d.cause, d.letter) for d in found.couplings.doubts if d.effect == "pump"}
    assert into == {("boiler", "A"), ("boiler", "B"), ("turbine", "A"), ("turbine", "B")}
    assert all("pump" in d.reason and "rows" in d.reason for d in found.couplings.doubts)
    gap = found.plant.block("B", "boiler", "turbine") - plant.block("B", "boiler", "turbine")
    assert np.abs(gap).max() < 0.15


def test_the_influence_graph_finds_a_chain():
    plant = cf.random_plant(units=["a", "b", "c", "d"], topology="chain", rng=3)
    graph = cf.fit(plant.simulate(4000, rng=4), plant.locals()).graph()
    assert set(graph.direct()) == {("a", "b"), ("b", "c"), ("c", "d")}
    far = graph.edge("a", "d")
    assert not far.direct
    assert far.reaches
    assert far.total_strength > 5 * far.direct_strength
    assert not graph.edge("d", "a").reaches
    near = graph.edge("a", "b")
    assert near.total_strength == pytest.approx(near.direct_strength, rel=0.05)
    with pytest.raises(cf.OptionError):
        cf.fit(plant.simulate(300, rng=4), plant.locals()).graph(rate=0.0)


def test_benjamini_hochberg_by_hand():
    adjusted = _benjamini_hochberg(np.array([0.01, np.nan, 0.04, 0.03, 0.5]))
    assert np.allclose(adjusted, [0.04, np.nan, 0.16 / 3, 0.16 / 3, 0.5], equal_nan=True)


def test_block_p_values_are_uniform_without_coupling():
    p_values = []
    for seed in range(40):
        plant = cf.random_plant(units=2, coupling=0.0, rng=seed)
        p_values += [edge.p_value for edge in cf.fit(plant.simulate(1500, rng=seed), plant.locals()).graph()]
    below = np.mean(np.array(p_values) < 0.1)
    assert abs(below - 0.1) < 4 * np.sqrt(0.1 * 0.9 / len(p_values))


@pytest.mark.parametrize("lost", [0.0, 0.15])
def test_an_update_with_new_rows_is_a_fit_of_all_rows(lost):
    plant = cf.random_plant(units=2, rng=3)
    recording = losing(plant, plant.simulate(6000, rng=4), lost)
    past, later = recording.slice(0, 4000), recording.slice(4000, 6001)
    first = cf.fit(past, plant.locals())
    updated = first.update(later)
    whole = cf.fit(recording, plant.locals())
    se = whole.standard_errors
    for letter in "AB":
        free = getattr(se, letter) > 0
        moved = np.abs(getattr(first.plant, letter) - getattr(whole.plant, letter))[free] / getattr(se, letter)[free]
        left = np.abs(getattr(updated.plant, letter) - getattr(whole.plant, letter))[free] / getattr(se, letter)[free]
        assert left.max() < 0.15  # of a standard error
        assert left.max() < 0.3 * moved.max()
        assert np.allclose(getattr(updated.standard_errors, letter)[free], getattr(se, letter)[free], rtol=0.05)
    assert updated.update(plant.simulate(500, rng=9)).status.converged


def test_an_update_costs_passes_over_the_new_rows_only(monkeypatch):
    plant = cf.random_plant(units=2, rng=3)
    first = cf.fit(plant.simulate(4000, rng=4), plant.locals())
    rows = []
    from counterflow.learning import likelihood

    filter_ = likelihood.kalman_filter
    monkeypatch.setattr(likelihood, "kalman_filter", lambda y, *a, **k: rows.append(len(y)) or filter_(y, *a, **k))
    first.update(plant.simulate(100, rng=5))
    # remembering the past is one pass over it, done once; everything else sees the new rows
    assert sorted(rows)[-1] == 4001
    assert sorted(rows)[-2] <= 102
    assert len(rows) > 3


def test_the_predictor_gives_each_unit_its_own_state():
    plant = cf.random_plant(units=["boiler", "turbine"], rng=3)
    recording = plant.simulate(3000, rng=4)
    past, later = recording.slice(0, 2900), recording.slice(2900, 3001)
    found = cf.fit(past, plant.locals())
    predictor = found.predictor()
    shared = shared_of(plant, recording)
    whole = shared.filter(found.plant.A, found.plant.B, found.plant.Q)
    for t in range(100):
        values = {n: shared.values[2900 + t, shared.observation_slices[k]] for k, n in enumerate(plant.names)}
        predictor, states = predictor.step(values, {n: later[n].u[t] for n in plant.names})
        assert set(states) == {"boiler", "turbine"}
        for name in plant.names:
            wanted = whole.predicted[2900 + t + 1, plant.state_slice(name)]
            assert np.allclose(states[name], wanted, rtol=1e-8, atol=1e-8)
    with pytest.raises(cf.DataError, match="boiler"):
        predictor.step({"boiler": np.ones(5)}, {n: np.zeros(2) for n in plant.names})
    with pytest.raises(cf.DataError, match="input"):
        predictor.step({}, {})
    _, blind = predictor.step({}, {n: np.zeros(2) for n in plant.names})
    assert np.allclose(blind["boiler"], (found.plant.A @ predictor.predicted)[:2])


HOSTILE = {
    "singular Q": (lambda p, r: cf.fit(r, {**p.locals(), "unit1": singular(p)}), cf.ModelError, "singular"),
    "unknown estimate": (lambda p, r: cf.fit(r, p.locals(), estimate="everything"), cf.OptionError, "couplings"),
    "option of another method": (lambda p, r: cf.fit(r, p.locals(), xi=1.0), cf.OptionError, "xi"),
    "watching the centralized": (
        lambda p, r: cf.fit(r, p.locals(), method="centralized", watch=print), cf.OptionError, "pools"
    ),
    "uncertainty that was not computed": (
        lambda p, r: cf.fit(r, p.locals(), uncertainty=False).standard_errors, cf.OptionError, "uncertainty=True"
    ),
    "uncertainty of the published": (
        lambda p, r: cf.fit(r, p.locals(), method="penalty").standard_errors, cf.OptionError, "sufficient"
    ),
    "option of models": (lambda p, r: cf.fit(r, estimate="all"), cf.OptionError, "'estimate' goes with given models"),
    "a change too large": (
        lambda p, r: cf.fit(r, p, method="oracle").effect("unit1", "unit2", [1e308] * 2, horizon=5),
        cf.DataError, "precision"
    ),
    "an absurd cell": (lambda p, r: cf.fit(absurd(r), p.locals(), sensors="as they are"), cf.CounterflowError, None),
    "no number": (lambda p, r: cf.fit(r, p.locals()).aggregate_effect("unit2", "a", [1, 1]), cf.DataError, None),
    "numbers too large": (
        lambda p, r: cf.fit(r, p.locals()).aggregate_effect("unit2", [1e308] * 2, [-1e308] * 2), cf.DataError, None
    ),
    "one number": (lambda p, r: cf.fit(r, p.locals()).aggregate_effect("unit2", [1.0], [1, 1]), cf.DataError, None),
    "level": (lambda p, r: cf.fit(r, p.locals()).effect("unit1", "unit2", [1, 1], level=1.0), cf.OptionError, "level"),
}  # fmt: skip


def singular(plant):
    m = plant.local("unit1")
    return cf.LocalModel(A=m.A, B=m.B, C=m.C, Q=np.diag([0.1, 0.0]), R=m.R)


def absurd(recording):
    rows = {n: (recording[n].y.copy(), recording[n].u) for n in recording.names}
    rows["unit2"][0][17, 2] = 1e300
    return cf.Recording.from_arrays(rows)


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_requests_get_one_clear_error(case):
    plant = cf.random_plant(units=2, rng=1)
    call, kind, text = HOSTILE[case]
    with pytest.raises(kind, match=text), np.errstate(all="ignore"):
        call(plant, plant.simulate(200, rng=2))


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_a_handful_of_rows_is_refused_an_answer_not_a_fit(steps):
    plant = cf.random_plant(units=2, rng=1)
    found = cf.fit(plant.simulate(steps, rng=2), plant.locals())
    assert np.isfinite(found.plant.A).all()
    with pytest.raises(cf.UnidentifiedError, match="rows"):
        found.effect("unit1", "unit2", [1.0, 1.0])


def test_one_unit_has_nothing_to_couple():
    plant = cf.random_plant(units=1, rng=1)
    found = cf.fit(plant.simulate(100, rng=2), plant.locals())
    assert np.array_equal(found.plant.A, plant.A)
    assert found.status.converged


def test_a_tank_and_large_means_are_handled():
    units = [cf.Unit("tank", 1, 1, 2), cf.Unit("pump", 1, 1, 2)]
    C = np.array([[1.0, 0], [0.5, 0], [0, 1.0], [0, -1.0]])
    A, B = [[1.0, 0.3], [0.0, 0.8]], [[0.5, 0.4], [0.2, 1.0]]
    plant = cf.Plant(units=units, A=A, B=B, C=C, Q=0.05 * np.eye(2), R=np.eye(4))
    inputs = excitation.white(plant, 4000, 3)
    inputs["pump"] += 1000.0
    inputs["tank"] -= 2 * (0.3 * 5 + 0.4) * 1000.0  # keeps the level from running away
    recording = plant.simulate(4000, rng=3, inputs=inputs)
    found = cf.fit(recording, plant.locals())
    se = found.standard_errors.B
    free = se > 0
    assert (np.abs(found.plant.B - plant.B)[free] < 5 * se[free]).all()


def test_memory_and_predictor_belong_to_the_default_method():
    plant = cf.random_plant(units=2, rng=1)
    recording = plant.simulate(200, rng=2)
    published = cf.fit(recording, plant.locals(), method="penalty")
    for call in (published.predictor, lambda: published.update(recording)):
        with pytest.raises(cf.OptionError, match="sufficient"):
            call()
    assert callable(remember)
    assert callable(update)
    assert Predictor.__name__ == "Predictor"
