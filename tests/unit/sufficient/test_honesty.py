"""Where the data or the model are not good enough, the fit says so, and the answers carry it."""

from __future__ import annotations

import numpy as np
import pytest
from equivalent_plants import permuted

import counterflow as cf


def test_a_fit_that_was_cut_short_gives_no_interval():
    plant = cf.random_plant(["a", "b"], rng=1)
    found = cf.fit(plant.simulate(400, rng=1), plant.locals(), evaluations=1)
    assert not found.status.converged
    answer = found.effect("a", "b", [1.0, 1.0])
    assert answer.lower is None
    assert any(c.code == "not-converged" for c in answer.caveats)


def test_an_estimate_on_the_stability_bound_says_so():
    """The units alone decay, together they grow: no stable estimate is right."""
    units = [cf.Unit("a", 1, 1, 2), cf.Unit("b", 1, 1, 2)]
    C = np.kron(np.eye(2), np.ones((2, 1)))
    plant = cf.Plant(
        units=units, A=[[0.9, 0.3], [0.3, 0.9]], B=[[1, 0.5], [0.5, 1]], C=C, Q=0.1 * np.eye(2), R=np.eye(4)
    )
    found = cf.fit(plant.simulate(30, rng=0), plant.locals())
    assert found.plant.is_stable
    assert not found.status.converged
    answer = found.effect("a", "b", [1.0])
    assert answer.lower is None
    assert any(c.code == "stability-bound" for c in answer.caveats)


def test_rows_left_out_of_a_private_message_are_counted():
    """Of any other message nothing is left out."""
    plant = cf.random_plant(["a", "b"], outputs=4, rng=1)
    recording = plant.simulate(300, rng=1)
    rows = {n: (recording[n].y.copy(), recording[n].u) for n in plant.names}
    rows["a"][0][[5, 9, 40], [0, 1, 3]] = np.nan
    rows["b"][0][7] = np.nan  # a whole row: nothing was thrown away
    gappy = cf.Recording.from_arrays(rows, units=plant.units)
    assert "rows-left-out" not in {c.code for c in cf.fit(gappy, plant.locals()).caveats}
    found = cf.fit(gappy, plant.locals(), privacy=cf.Privacy(50.0, 1e-6, seed=1))
    notes = [c.text for c in found.caveats if c.code == "rows-left-out"]
    assert len(notes) == 1
    assert "'a': left out were 3 rows" in notes[0]


def test_a_message_that_hides_nothing_is_announced():
    plant = cf.random_plant(["a", "b"], outputs=2, rng=1).replace(C=np.eye(4))
    recording = plant.simulate(200, rng=0)
    sent = []
    found = cf.fit(recording, plant.locals(), watch=lambda m, up: sent.append(m) if up else None)
    assert np.allclose(np.abs(sent[0].numbers), np.abs(recording["a"].y))
    assert sum(c.code == "exact-message" for c in found.caveats) == 2
    tall = cf.random_plant(["a", "b"], outputs=8, rng=1)
    recording = tall.simulate(200, rng=0)
    assert not cf.fit(recording, tall.locals()).caveats
    rows = {n: (recording[n].y.copy(), recording[n].u) for n in tall.names}
    rows["b"][0][10:14, 2:] = np.nan  # two channels, two states
    rows["b"][0][20, 3:] = np.nan  # three
    notes = cf.fit(cf.Recording.from_arrays(rows, units=tall.units), tall.locals()).caveats
    assert [c.code for c in notes] == ["exact-message"]
    assert "in 4 of 201 rows" in notes[0].text


@pytest.mark.parametrize("outputs", [2, 8])
def test_process_noise_at_its_edge_is_no_crash(outputs):
    plant = cf.random_plant(["a", "b"], outputs=outputs, rng=1)
    for seed in (1005, 1006, 1007):
        found = cf.fit(plant.simulate(400, rng=seed), plant.locals(), estimate="all")
        assert np.isfinite(found.plant.Q).all()
        assert found.status.message


@pytest.mark.parametrize("value", [0.0, 3.0])
def test_measurements_that_never_move_are_no_crash(value):
    plant = cf.random_plant(["a", "b"], outputs=4, rng=1)
    recording = plant.simulate(100, rng=1)
    rows = {"a": (np.full_like(recording["a"].y, value), recording["a"].u), "b": (recording["b"].y, recording["b"].u)}
    found = cf.fit(cf.Recording.from_arrays(rows, units=plant.units), plant.locals())
    assert np.isfinite(found.plant.A).all()


def test_channels_must_match_in_name_and_order():
    plant = cf.random_plant([cf.Unit("a", 2, ["valve", "speed"], 4), cf.Unit("b", 2, 2, 4)], rng=1)
    recording = plant.simulate(300, rng=1)
    found = cf.fit(recording, plant)
    swapped = [cf.Unit("a", 2, ["speed", "valve"], 4), cf.Unit("b", 2, 2, 4)]
    rows = {n: (recording[n].y, recording[n].u[:, ::-1]) for n in plant.names}
    other = cf.Recording.from_arrays(rows, units=swapped)
    with pytest.raises(cf.ModelError, match="speed"):
        cf.fit(other, plant)
    slow = cf.Recording.from_arrays({n: (recording[n].y, recording[n].u) for n in plant.names}, units=plant.units, dt=5)
    for call in (found.update, found.validate, lambda r: found.counterfactual(r, {"a": {"valve": 0.0}})):
        with pytest.raises(cf.DataError, match="order them alike"):
            call(other)
        with pytest.raises(cf.DataError, match="dt"):
            call(slow)
        with pytest.raises(cf.DataError, match="Recording"):
            call(None)


def test_validation_averages_what_was_measured_in_any_order_of_units():
    plant = cf.random_plant(["a", "b", "c"], outputs=4, rng=1)
    recording = plant.simulate(800, rng=2)
    one = cf.fit(recording, plant, method="oracle").validate(recording, oracle=plant).mean()
    other = permuted(plant, ["c", "a", "b"])
    two = cf.fit(recording, other, method="oracle").validate(recording, oracle=other).mean()
    for model in ("server", "oracle", "proprietary"):
        for name in plant.names:
            assert one[model][name] == pytest.approx(two[model][name], rel=1e-9)
    # the server differs from the oracle only in how wide it thinks of the first state
    assert one["server"]["a"] == pytest.approx(one["oracle"]["a"], rel=0.02)
    rows = {n: (recording[n].y.copy(), recording[n].u) for n in plant.names}
    rows["a"][0][100:150] = np.nan
    gappy = cf.Recording.from_arrays(rows, units=plant.units)
    assert np.isfinite(list(cf.fit(gappy, plant.locals()).validate(gappy).mean()["server"].values())).all()


def test_after_an_update_everything_speaks_of_all_rows():
    plant = cf.random_plant(["a", "b"], outputs=4, rng=1)
    recording = plant.simulate(2000, rng=5)
    first = cf.fit(recording.slice(0, 1500), plant.locals())
    updated, whole = first.update(recording.slice(1500, 2001)), cf.fit(recording, plant.locals())
    assert np.allclose(updated.predictor().predicted, whole.predictor().predicted, atol=0.02)
    assert updated.log_likelihood == pytest.approx(whole.log_likelihood, abs=2.0)
    assert updated.provenance.data_digest != first.provenance.data_digest
    row = recording["a"].y[7]
    assert np.allclose(updated.parts["a"].message(row), whole.couplings.shared.values[7, :2])


def test_a_wide_interval_around_zero_is_not_called_nothing():
    plant = cf.random_plant(["boiler", "turbine"], rng=1)
    drowned = cf.Privacy(epsilon=1e-9, delta=1e-6, seed=1)
    answer = cf.fit(plant.simulate(300, rng=2), plant.locals(), privacy=drowned).effect("boiler", "turbine", {"u1": 1})
    assert answer.upper.max() > 0.1
    assert "nothing would change" not in answer.sentence()
    still = cf.fit(plant.simulate(300, rng=2), plant.locals()).effect("boiler", "turbine", {"u1": 0.0})
    assert "nothing would change" in still.sentence()


def test_a_reading_that_is_none_is_named_with_models_too():
    plant = cf.random_plant(["boiler", "turbine"], rng=1)
    recording = plant.simulate(400, rng=2)
    arrays = {n: {"y": np.array(recording[n].y), "u": recording[n].u} for n in recording.names}
    arrays["turbine"]["y"][200, 2] = 1e9
    wild = cf.Recording.from_arrays(arrays, units=recording.units)
    found = cf.fit(wild, plant.locals(), evaluations=3, sensors="as they are")
    (absurd,) = [c for c in found.parts["turbine"].caveats if c.code == "absurd-reading"]
    assert "row 200" in absurd.text
    assert "e+" in absurd.text.split("row 200, ")[1].split(" times the usual movement")[0], "a short number"
    assert "not-converged" in [c.code for c in found.caveats]
