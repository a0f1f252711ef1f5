"""Fits from logs: units without models, levels and scales of their own, gaps, and inputs that act on their own row."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from tolerances import EXACT

import counterflow as cf
from counterflow.methods.logs.unit import Reading
from counterflow.protocol import Finished, Identified, Reduced, Request


def moved(recording, scale, level, input_level, same_row=False):
    """The same plant in other units, at other levels, and with inputs logged in the row they act on."""
    arrays = {}
    for name in recording.names:
        y, u = recording[name].y, recording[name].u
        if same_row:
            u = np.vstack([u[:1], u[:-1]])
        arrays[name] = (level + scale * y, input_level + u)
    return cf.Recording.from_arrays(arrays, dt=recording.dt, units=recording.units)


PLANT = cf.random_plant(units=["boiler", "turbine", "tank"], states=2, outputs=6, topology="chain", rng=4)
RECORDING = PLANT.simulate(3000, rng=5)


@cache
def true_fit():
    return cf.fit(RECORDING, PLANT, method="oracle")


@cache
def fitted():
    return cf.fit(RECORDING)


@cache
def free_fit():
    return cf.fit(RECORDING, form="free")


def r_squared(found, truth):
    return 1 - float(np.square(found - truth).sum() / np.square(truth).sum())


def within_a_fiftieth(answer, other):
    """Whether means agree to a fiftieth of the interval: the likelihood is climbed no further than data can tell."""
    return bool((np.abs(other - answer.mean) <= (answer.upper - answer.lower) / 50 + 1e-9 * np.abs(answer.mean)).all())


@pytest.mark.parametrize("fit", [fitted, free_fit], ids=["partitioned", "free"])
def test_effects_are_found_without_any_model(fit):
    found = fit()
    assert found.status.converged
    # the last effect is indirect, and a tenth as large as the others
    for cause, effect, least in (("boiler", "turbine", 0.99), ("turbine", "tank", 0.99), ("boiler", "tank", 0.95)):
        truth = true_fit().effect(cause, effect, [1.0, -0.5], horizon=20).mean
        assert r_squared(found.effect(cause, effect, [1.0, -0.5], horizon=20).mean, truth) > least
    truth = true_fit().effect("boiler", "turbine", [1.0, -0.5], horizon=20).mean
    # the chain runs one way: nothing of the tank reaches the boiler
    against = found.effect("tank", "boiler", [1.0, -0.5], horizon=20)
    assert np.abs(against.mean).max() < 0.1 * np.abs(truth).max()


def test_order_and_rank_are_those_of_the_plant():
    assert tuple(unit.states for unit in fitted().plant.units) == (2, 2, 2)
    chosen = "states of each unit (by the likelihood of held-out rows): boiler 2, turbine 2, tank 2"
    assert [c.text for c in fitted().caveats if c.code == "states-chosen"] == [chosen]
    assert [part.model.C.shape for part in fitted().parts.values()] == [(6, 2)] * 3


def test_only_numbers_and_inputs_cross():
    seen = []
    cf.fit(RECORDING.slice(0, 400), watch=lambda message, up: seen.append((message, up)), order=2)
    kinds = [type(message) for message, _ in seen]
    assert kinds == [Request] * 3 + [Reduced] * 3 + [Identified] * 3 + [Finished] * 3
    for message, up in seen:
        if isinstance(message, Reduced):
            assert up
            assert message.values.shape[1] < 6
            # in another unit of measure the message is the same: levels and scales do not cross
            other = moved(RECORDING.slice(0, 400), 7.0, 1e3, 0.0)[message.unit]
            again = Reading.of(other.unit, other.y, other.u, None).message(message.unit, other.y, other.u)
            assert np.allclose(again.values, message.values, atol=1e-8)


def test_the_wire_changes_nothing():
    short = RECORDING.slice(0, 500)
    one, two = (cf.fit(short, order=2, over_the_wire=wire) for wire in (False, True))
    assert np.array_equal(one.plant.A, two.plant.A)
    assert np.array_equal(one.plant.C, two.plant.C)


def test_units_of_measure_and_levels_change_only_the_units_of_the_answer():
    short = RECORDING.slice(0, 1500)
    plain = cf.fit(short, order=2, rank=2)  # as many states as numbers: nothing is left to chance
    other = cf.fit(moved(short, 100.0, -2e4, 350.0), order=2, rank=2)
    one = plain.effect("boiler", "tank", {"u1": 1.0}, horizon=12)
    two = other.effect("boiler", "tank", {"u1": 1.0}, horizon=12)
    assert within_a_fiftieth(one, two.mean / 100)
    assert np.allclose((two.upper - two.mean) / 100, one.upper - one.mean, rtol=0.05)
    ahead, same = other.forecast(moved(short, 100.0, -2e4, 350.0), 5), plain.forecast(short, 5)
    assert within_a_fiftieth(same["tank"], (ahead["tank"].mean + 2e4) / 100)
    assert within_a_fiftieth(same["tank"], (ahead["tank"].upper + 2e4) / 100 - same["tank"].upper + same["tank"].mean)
    one, two = plain.attribute(short, "tank", 50, 60), other.attribute(moved(short, 100.0, -2e4, 350.0), "tank", 50, 60)
    assert np.allclose((two.baseline + 2e4) / 100, one.baseline, atol=0.01)
    assert np.allclose(two.shares["boiler"] / 100, one.shares["boiler"], atol=0.01)


def test_order_of_units_does_not_matter():
    short = RECORDING.slice(0, 1500)
    turned = cf.Recording.from_arrays(
        {n: (short[n].y, short[n].u) for n in ("tank", "boiler", "turbine")},
        dt=1.0,
        units=[short[n].unit for n in ("tank", "boiler", "turbine")],
    )
    one, two = cf.fit(short, order=2, rank=2), cf.fit(turned, order=2, rank=2)
    for cause, effect in (("boiler", "tank"), ("turbine", "tank")):
        a, b = (f.effect(cause, effect, {"u1": 1.0}, horizon=10) for f in (one, two))
        assert within_a_fiftieth(a, b.mean)


def test_inputs_logged_in_the_row_they_act_on_are_noticed_and_answered_for():
    late = moved(RECORDING, 1.0, 0.0, 20.0, same_row=True)
    found = cf.fit(late)
    assert all(point.same_row for point in found.points.values())
    assert any(c.code == "input-alignment" and "own row" in c.text for c in found.caveats)
    assert not any(point.same_row for point in fitted().points.values())
    # a change in row 0 acts in row 0, so the answer for row k + 1 is one step further along than before
    truth = true_fit().effect("boiler", "turbine", {"u1": 1.0}, horizon=13).mean
    answer = found.effect("boiler", "turbine", {"u1": 1.0}, horizon=12)
    assert r_squared(answer.mean, truth[1:]) > 0.99
    pulse = true_fit().effect("boiler", "turbine", {"u1": 1.0}, horizon=13, duration=2).mean
    assert r_squared(found.effect("boiler", "turbine", {"u1": 1.0}, horizon=12, duration=2).mean, pulse[1:]) > 0.99
    both = found.effect(["boiler", "turbine"], "tank", {"boiler": {"u1": 1.0}, "turbine": {"u2": -1.0}}, horizon=12)
    alone = [
        found.effect("boiler", "tank", {"u1": 1.0}, horizon=12),
        found.effect("turbine", "tank", [0, -1.0], horizon=12),
    ]
    assert np.allclose(both.mean, alone[0].mean + alone[1].mean, atol=EXACT * 100)
    parts = found.paths("boiler", "tank", {"u1": 1.0}, horizon=12)
    assert np.allclose(parts.total, alone[0].mean, atol=EXACT * 100)


def test_counterfactuals_and_restoration_with_inputs_that_act_on_their_own_row():
    late = moved(RECORDING, 1.0, 0.0, 20.0, same_row=True)
    found = cf.fit(late)
    start, stop = 100, 120
    u = late["boiler"].u[start:stop, 0]
    worlds = found.counterfactual(late, do={"boiler": {"u1": u + 1.0}}, start=start, stop=stop)
    shift = worlds["turbine"].mean - late["turbine"].y[start:stop]
    truth = true_fit().effect("boiler", "turbine", {"u1": 1.0}, horizon=stop - start).mean
    assert r_squared(shift, truth) > 0.99  # row 100 itself is touched
    assert np.abs(shift[0]).max() > 0
    edge = found.counterfactual(late, do={"boiler": {"u1": late["boiler"].u[:5, 0] + 1.0}}, start=0, stop=5)
    assert np.isfinite(edge["turbine"].mean).all()
    answer = found.restore("turbine", {"y1": 0.5}, using=["boiler"], horizon=10)
    assert answer.feasible
    change = answer.change["boiler"]
    assert found.effect("boiler", "turbine", change, horizon=10).mean[-1, 0] == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize("start", [0, 1, 500])
def test_adding_to_inputs_that_act_on_their_own_row(start):
    same = moved(RECORDING, 1.0, 3.0, 7.0, same_row=True)
    limited = [replace(unit, inputs=[cf.Channel("u1", "", (0.0, 14.0)), "u2"]) for unit in same.units]
    log = cf.Recording.from_arrays({n: (same[n].y, same[n].u) for n in same.names}, dt=same.dt, units=limited)
    found = cf.fit(log)
    assert found.server.points["boiler"].same_row
    stop = start + 40
    u = log["boiler"].u[start:stop, 0]
    replaced = found.counterfactual(log, {"boiler": {"u1": u + 0.5}}, start, stop)["turbine"]
    added = found.counterfactual(log, add={"boiler": {"u1": 0.5}}, start=start, stop=stop)["turbine"]
    np.testing.assert_allclose(added.mean, replaced.mean, rtol=EXACT, atol=1e3 * EXACT)
    room = 14.0 - u[1:].max() if start == 0 else 14.0 - u.max()  # the input of row 0 acts on nothing that is recorded
    found.counterfactual(log, add={"boiler": {"u1": room - 1e-6}}, start=start, stop=stop)
    with pytest.raises(cf.OptionError, match="would leave its limits"):
        found.counterfactual(log, add={"boiler": {"u1": room + 1e-6}}, start=start, stop=stop)


def test_mixed_alignments_are_told_apart():
    arrays = {}
    for name in RECORDING.names:
        y, u = RECORDING[name].y, RECORDING[name].u
        arrays[name] = (y, np.vstack([u[:1], u[:-1]]) if name == "turbine" else u)
    found = cf.fit(cf.Recording.from_arrays(arrays, dt=1.0, units=RECORDING.units))
    assert {n: p.same_row for n, p in found.points.items()} == {"boiler": False, "turbine": True, "tank": False}
    truth = true_fit().effect("turbine", "tank", {"u1": 1.0}, horizon=13).mean
    assert r_squared(found.effect("turbine", "tank", {"u1": 1.0}, horizon=12).mean, truth[1:]) > 0.99


@pytest.mark.parametrize("form", ["partitioned", "free"])
def test_a_saved_fit_answers_the_same(tmp_path, form):
    late = moved(RECORDING.slice(0, 1200), 3.0, 100.0, 20.0, same_row=True)
    fit = cf.fit(late, form=form, order=2 if form == "partitioned" else 6)
    fit.save(tmp_path / "fit")
    loaded = cf.load(tmp_path / "fit")
    ours, again = (f.effect("boiler", "tank", {"u1": 1.0}, horizon=6) for f in (fit, loaded))
    assert np.array_equal(ours.mean, again.mean)
    assert np.array_equal(ours.lower, again.lower)
    assert ours.caveats == again.caveats
    one, two = fit.forecast(late, 4), loaded.forecast(late, 4)
    assert np.array_equal(one["tank"].upper, two["tank"].upper)
    server, tank = cf.load_server(tmp_path / "fit"), cf.load_unit(tmp_path / "fit" / "units" / "tank.safetensors")
    assert np.array_equal(cf.UnitView(tank, server).effect("boiler", "tank", {"u1": 1.0}, horizon=6).upper, ours.upper)
    content = (tmp_path / "fit" / "server.safetensors").read_bytes()
    level = np.asarray(fit.parts["tank"].output_level)
    assert level[0].tobytes() not in content  # the unit's levels are not the server's business


def test_an_update_continues_a_fit_from_logs():
    late = moved(RECORDING, 1.0, 5.0, 20.0, same_row=True)
    whole = cf.fit(late, order=2, same_row=True)
    grown = cf.fit(late.slice(0, 2500), order=2, same_row=True).update(late.slice(2500, 3001))
    a, b = (f.effect("boiler", "turbine", {"u1": 1.0}, horizon=8).mean for f in (whole, grown))
    assert np.abs(a - b).max() < 0.05 * np.abs(a).max()


def test_gaps_are_missing_information_not_zeros():
    arrays = {n: (RECORDING[n].y.copy(), RECORDING[n].u) for n in RECORDING.names}
    for n, rows in (("boiler", slice(300, 420)), ("turbine", slice(900, 905)), ("tank", slice(1500, 2100))):
        arrays[n][0][rows] = np.nan
    for y, _ in arrays.values():
        y[2500:2600] = np.nan
    found = cf.fit(cf.Recording.from_arrays(arrays, dt=1.0, units=RECORDING.units))
    truth = true_fit().effect("boiler", "turbine", [1.0, -0.5], horizon=20).mean
    answer = found.effect("boiler", "turbine", [1.0, -0.5], horizon=20)
    assert r_squared(answer.mean, truth) > 0.99
    full = fitted().effect("boiler", "turbine", [1.0, -0.5], horizon=20)
    assert 1.0 < np.median((answer.upper - answer.lower) / (full.upper - full.lower)) < 1.6


def test_intervals_cover():
    """Of 25 plants: the share of covered effects, in standard errors over plants."""
    shares = []
    for seed in range(25):
        plant = cf.random_plant(units=2, states=2, outputs=6, rng=seed)
        recording = plant.simulate(700, rng=seed + 500)
        cause, effect = plant.names
        truth = cf.fit(recording, plant, method="oracle").effect(cause, effect, [1.0, 0.5], horizon=6).mean
        answer = cf.fit(recording, order=2, rank=2, same_row=False).effect(cause, effect, [1.0, 0.5], horizon=6)
        if answer.lower is not None:
            shares.append(((answer.lower <= truth) & (truth <= answer.upper)).mean())
    assert len(shares) >= 23
    assert abs(np.mean(shares) - 0.95) < 3 * max(np.std(shares) / np.sqrt(len(shares)), 0.01)


# ---- hostile input


def test_dead_constant_and_doubled_channels_do_no_harm():
    arrays = {n: (RECORDING[n].y.copy(), RECORDING[n].u) for n in RECORDING.names}
    y = arrays["turbine"][0]
    y[:, 5] = 3.0  # never moves
    y[:, 4] = y[:, 3]  # the same twice
    arrays["tank"][0][:2900, 0] = np.nan  # dead most of the time
    found = cf.fit(cf.Recording.from_arrays(arrays, dt=1.0, units=RECORDING.units))
    answer = found.effect("boiler", "turbine", [1.0, -0.5], horizon=20)
    truth = true_fit().effect("boiler", "turbine", [1.0, -0.5], horizon=20).mean
    assert r_squared(answer.mean[:, :5], truth[:, [0, 1, 2, 3, 3]]) > 0.95
    assert np.abs(answer.mean[:, 5]).max() == 0
    assert any(c.code == "silent-channels" and "y6" in c.text for c in found.caveats)
    assert any(c.code == "silent-channels" and c.scope == "tank" and "y1" in c.text for c in found.caveats)


def test_an_input_that_never_moves_is_refused_by_name():
    arrays = {n: (RECORDING[n].y, RECORDING[n].u.copy()) for n in RECORDING.names}
    arrays["boiler"][1][:, 1] = 4.0
    found = cf.fit(cf.Recording.from_arrays(arrays, dt=1.0, units=RECORDING.units))
    with pytest.raises(cf.UnidentifiedError, match="never varies"):
        found.effect("boiler", "turbine", {"u2": 1.0}, horizon=5)
    assert np.isfinite(found.effect("boiler", "turbine", {"u1": 1.0}, horizon=5).mean).all()


def test_one_unit_alone_and_units_without_inputs():
    alone = cf.random_plant(units=1, states=2, outputs=4, rng=0)
    found = cf.fit(alone.simulate(1500, rng=1))
    assert found.status.converged
    arrays = {n: (RECORDING[n].y, RECORDING[n].u[:, : 0 if n == "tank" else 2]) for n in RECORDING.names}
    found = cf.fit(cf.Recording.from_arrays(arrays, dt=1.0))
    truth = true_fit().effect("boiler", "turbine", [1.0, -0.5], horizon=10).mean
    assert r_squared(found.effect("boiler", "turbine", [1.0, -0.5], horizon=10).mean, truth) > 0.98


def test_what_cannot_be_identified_is_said():
    with pytest.raises(cf.DataError, match=r"'boiler'.*too few"):
        cf.fit(RECORDING.slice(0, 15))
    still = cf.Recording.from_arrays(
        {
            n: (np.zeros_like(RECORDING[n].y) if n == "tank" else RECORDING[n].y, RECORDING[n].u)
            for n in RECORDING.names
        },
        dt=1.0,
    )
    with pytest.raises(cf.DataError, match=r"'tank'.*none of its outputs ever moves"):
        cf.fit(still)
    apart = {n: (RECORDING[n].y.copy(), RECORDING[n].u) for n in RECORDING.names}
    apart["boiler"][0][1500:] = np.nan
    apart["tank"][0][:1500] = np.nan
    with pytest.raises(cf.UnidentifiedError, match="common period"):
        cf.fit(cf.Recording.from_arrays(apart, dt=1.0))
    with pytest.raises(cf.ModelError, match="only method 'sufficient' identifies"):
        cf.fit(RECORDING, method="penalty")
    for options, text in (
        ({"order": 0}, "'order'"),
        ({"rank": 1.5}, "'rank'"),
        ({"form": "other"}, "'form'"),
        ({"same_row": "yes"}, "'same_row'"),
        ({"order": {"nobody": 3}}, "'nobody'"),
        ({"form": "free", "order": {"boiler": 2}}, "one number"),
        ({"form": "free", "order": 500}, "at most"),
    ):
        with pytest.raises(cf.CounterflowError, match=text):
            cf.fit(RECORDING, **options)
    with pytest.raises(cf.OptionError, match="models are given"):
        cf.fit(RECORDING, PLANT.locals(), order=2)
    for question in (free_fit().graph, lambda: free_fit().update(RECORDING)):
        with pytest.raises(cf.OptionError, match="belong to no unit"):
            question()


@pytest.mark.parametrize("size", [1e-8, 1e8])
def test_tiny_and_huge_numbers(size):
    short = RECORDING.slice(0, 1200)
    found = cf.fit(moved(short, size, 1e3 * size, 0.0), order=2, rank=2)
    plain = cf.fit(short, order=2, rank=2)
    a, b = (f.effect("boiler", "tank", {"u1": 1.0}, horizon=10) for f in (found, plain))
    assert within_a_fiftieth(b, a.mean / size)


def test_a_given_model_of_departures_can_be_asked_again():
    """The models that a fit from logs leaves at the units are models like any other."""
    models = {name: part.model for name, part in fitted().parts.items()}
    levels = {name: part.output_level for name, part in fitted().parts.items()}
    inputs = {name: part.point.input_level for name, part in fitted().parts.items()}
    apart = {n: (RECORDING[n].y - levels[n], RECORDING[n].u - inputs[n]) for n in RECORDING.names}
    again = cf.fit(cf.Recording.from_arrays(apart, dt=1.0), models)
    a, b = (f.effect("boiler", "turbine", {"u1": 1.0}, horizon=10).mean for f in (fitted(), again))
    assert np.abs(a - b).max() < 0.02 * np.abs(a).max()
    assert again.log_likelihood == pytest.approx(fitted().log_likelihood, rel=0.05)


# ---- what could mislead


def closed_loop(gain, dither, rows=1500, seed=1):
    """Unit a is driven from unit b's measurement of the same row."""
    plant = cf.random_plant(units=["a", "b"], states=2, inputs=1, outputs=4, topology="chain", rng=3)
    rng = np.random.default_rng(seed)
    h, ys, us = np.zeros(4), [], []
    for _ in range(rows):
        y = plant.C @ h + np.linalg.cholesky(plant.R) @ rng.standard_normal(8)
        u = np.array([-gain * y[4] + dither * rng.standard_normal(), rng.standard_normal()])
        ys.append(y)
        us.append(u)
        h = plant.A @ h + plant.B @ u + np.linalg.cholesky(plant.Q) @ rng.standard_normal(4)
    y, u = np.array(ys), np.array(us)
    arrays = {"a": (y[:, :4], u[:, :1]), "b": (y[:, 4:], u[:, 1:])}
    return cf.Recording.from_arrays(arrays, dt=1.0, units=plant.units)


def test_a_controller_that_reacts_within_the_row_is_not_passed_over_in_silence():
    recording = closed_loop(gain=0.4, dither=0.05)
    found = cf.fit(recording)
    answer = found.effect("a", "b", {"u1": 1.0}, horizon=5)
    assert found.points["a"].same_row  # rows alone cannot tell; what matters is that the answer says so
    assert any("wrong, even in sign" in c.text and "same_row=False" in c.text for c in answer.caveats)
    open_loop = cf.fit(moved(RECORDING, 1.0, 0.0, 20.0, same_row=True))
    assert not any("wrong, even in sign" in c.text for c in open_loop.caveats)


def test_hints_of_feedback_travel_with_answers():
    found = cf.fit(closed_loop(gain=0.4, dither=0.5), same_row=False)
    verdicts = {check.about: check.verdict for check in found.check()["feedback"]}
    assert verdicts["a u1"] in ("caution", "fail")
    assert any("feedback" in c.code for c in found.effect("a", "b", {"u1": 1.0}, horizon=3).caveats)


def test_inputs_that_nearly_copy_each_other_are_refused():
    arrays = {n: (RECORDING[n].y, RECORDING[n].u.copy()) for n in RECORDING.names}
    u = arrays["boiler"][1]
    u[:, 1] = 2 * u[:, 0] + 1e-4 * np.random.default_rng(0).standard_normal(len(u))
    found = cf.fit(cf.Recording.from_arrays(arrays, dt=1.0, units=RECORDING.units))
    with pytest.raises(cf.UnidentifiedError, match="move together"):
        found.effect("boiler", "turbine", {"u1": 1.0}, horizon=3)


def test_an_absurd_reading_is_named():
    arrays = {n: (RECORDING[n].y.copy(), RECORDING[n].u.copy()) for n in RECORDING.names}
    arrays["turbine"][1][777, 0] = -9999.0
    found = cf.fit(cf.Recording.from_arrays(arrays, dt=1.0, units=RECORDING.units), order=2)
    (absurd,) = [c for c in found.caveats if c.code == "absurd-reading"]
    assert absurd.scope == "turbine"
    assert "u1 is -9999 in row 777" in absurd.text
    assert not any(c.code == "absurd-reading" for c in fitted().caveats)


def test_a_channel_that_looks_like_noise_is_named():
    arrays = {n: (RECORDING[n].y.copy(), RECORDING[n].u) for n in RECORDING.names}
    arrays["tank"][0][:, 2] = np.random.default_rng(1).standard_normal(RECORDING.rows)
    found = cf.fit(cf.Recording.from_arrays(arrays, dt=1.0, units=RECORDING.units), order=2)
    named = [c.text for c in found.caveats if c.scope == "tank" and "y3" in c.text]
    assert named
    assert "noise" in named[0] or "no signal" in named[0]


def test_parts_of_different_fits_do_not_answer_together(tmp_path):
    for name, rows in (("one", 600), ("two", 700)):
        cf.fit(RECORDING.slice(0, rows), order=2).save(tmp_path / name)
    server, tank = cf.load_server(tmp_path / "one"), cf.load_unit(tmp_path / "two" / "units" / "tank.safetensors")
    with pytest.raises(cf.DataError, match="belongs to another fit"):
        cf.UnitView(tank, server).effect("boiler", "tank", {"u1": 1.0}, horizon=3)


def test_a_report_of_the_free_form_does_without_the_graph(tmp_path):
    from counterflow.report import AskEffect, write_report

    write_report(tmp_path / "report.html", free_fit(), RECORDING, [AskEffect("boiler", "turbine", {"u1": 0.5})])
    assert "boiler" in (tmp_path / "report.html").read_text()


def test_an_attribution_says_when_its_level_is_extrapolated():
    unit = cf.Unit("tank", states=1, inputs=1, outputs=1)
    slow = cf.Plant(units=[unit], A=[[0.9999]], B=[[0.1]], C=[[1.0]], Q=[[1e-3]], R=[[0.1]])
    recording = slow.simulate(300, rng=1)
    text = cf.fit(recording, slow, method="oracle").attribute(recording, "tank", 10, 20).caveats
    assert any(c.code == "slow-mode" for c in text)
    quick = fitted().attribute(RECORDING, "tank", 10, 20)
    assert not any(c.code == "slow-mode" for c in quick.caveats)
