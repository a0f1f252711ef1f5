"""Fits from logs: units without models, levels and scales of their own, gaps, and inputs that act on their own row."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from tolerances import EXACT, ITERATIVE, LONG

import counterflow as cf
from counterflow.exchange.reading import Reading
from counterflow.learning import network_learning
from counterflow.learning.block_moments import Rows
from counterflow.learning.network_learning import learn
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
def small_fit():
    """As many numbers as there are states: nothing is left to chance."""
    return cf.fit(RECORDING, rank=2)


def r_squared(found, truth):
    return 1 - float(np.square(found - truth).sum() / np.square(truth).sum())


def same_answer(answer, other, level=0.0, scale=1.0):
    """Whether another answer, in other units of measure, is the same one, to rounding in the width of the interval."""
    width = answer.upper - answer.lower
    for one, two in ((answer.mean, other.mean), (answer.lower, other.lower), (answer.upper, other.upper)):
        assert (np.abs((two - level) / scale - one) <= LONG * width).all()


@pytest.mark.parametrize(("fit", "faint"), [(fitted, 0.8), (small_fit, 0.85)], ids=["as found", "rank 2"])
def test_effects_are_found_without_any_model(fit, faint):
    """``faint``: of the last effect, which is indirect and a tenth as large as the others.

    With more numbers than states, it is spread over more couplings, each of which must be worth its cost.
    """
    found = fit()
    assert found.status.converged
    for cause, effect, least in (("boiler", "turbine", 0.99), ("turbine", "tank", 0.99), ("boiler", "tank", faint)):
        truth = true_fit().effect(cause, effect, [1.0, -0.5], horizon=20).mean
        answer = found.effect(cause, effect, [1.0, -0.5], horizon=20)
        assert r_squared(answer.mean, truth) > least
        assert ((answer.lower <= truth) & (truth <= answer.upper)).mean() > 0.8  # rows of one answer go together
    truth = true_fit().effect("boiler", "turbine", [1.0, -0.5], horizon=20).mean
    # the chain runs one way: nothing of the tank reaches the boiler
    against = found.effect("tank", "boiler", [1.0, -0.5], horizon=20)
    assert np.abs(against.mean).max() < 0.1 * np.abs(truth).max()


def test_rank_is_that_of_the_plant_and_two_to_spare():
    assert fitted().couplings.network.numbers == (4, 4, 4)
    assert small_fit().couplings.network.numbers == (2, 2, 2)
    given = cf.fit(RECORDING.slice(0, 400), rank={"boiler": 3, "tank": 1})
    assert given.couplings.network.numbers == (3, 4, 1)
    for name, part in fitted().parts.items():  # a unit's first states are its numbers, and all that its channels show
        assert part.model.C.shape == (6, fitted().plant.unit(name).states)
        assert np.linalg.matrix_rank(part.model.C) == 4
        assert not part.model.C[:, 4:].any()


def test_only_numbers_and_inputs_cross():
    seen = []
    cf.fit(RECORDING.slice(0, 400), watch=lambda message, up: seen.append((message, up)))
    kinds = [type(message) for message, _ in seen]
    assert kinds == [Request] * 3 + [Reduced] * 3 + [Identified] * 3 + [Finished] * 3
    for message, up in seen:
        if isinstance(message, Reduced):
            assert up
            assert message.values.shape[1] < 6
            # in another unit of measure the message is the same: levels and scales do not cross
            other = moved(RECORDING.slice(0, 400), 7.0, 1e3, 0.0)[message.unit]
            again = Reading.from_log(other.unit, other.y, other.u, None).message(message.unit, other.y, other.u)
            assert np.allclose(again.values, message.values, atol=1e-8)


def test_the_wire_changes_nothing():
    short = RECORDING.slice(0, 500)
    one, two = (cf.fit(short, over_the_wire=wire) for wire in (False, True))
    assert np.array_equal(one.plant.A, two.plant.A)
    assert np.array_equal(one.plant.C, two.plant.C)


@pytest.mark.parametrize("options", [{}, {"rank": 2}], ids=["as found", "rank 2"])
@pytest.mark.parametrize(("scale", "level", "input_level"), [(100.0, -2e4, 350.0), (1e-8, 1e-5, 0.0), (1e8, 1e11, 0.0)])
def test_units_of_measure_and_levels_change_only_the_units_of_the_answer(options, scale, level, input_level):
    short = RECORDING.slice(0, 1500)
    elsewhere = moved(short, scale, level, input_level)
    plain, other = cf.fit(short, **options), cf.fit(elsewhere, **options)
    one, two = (f.effect("boiler", "tank", {"u1": 1.0}, horizon=12) for f in (plain, other))
    same_answer(one, two, scale=scale)
    ahead, same = other.forecast(elsewhere, 5), plain.forecast(short, 5)
    same_answer(same["tank"], ahead["tank"], level, scale)
    one, two = plain.attribute(short, "tank", 50, 60), other.attribute(elsewhere, "tank", 50, 60)
    np.testing.assert_allclose((two.baseline - level) / scale, one.baseline, rtol=ITERATIVE, atol=ITERATIVE)
    np.testing.assert_allclose(two.shares["boiler"] / scale, one.shares["boiler"], rtol=ITERATIVE, atol=ITERATIVE)
    assert plain.graph().direct() == other.graph().direct()


def test_order_of_units_does_not_matter():
    short = RECORDING.slice(0, 1500)
    turned = cf.Recording.from_arrays(
        {n: (short[n].y, short[n].u) for n in ("tank", "boiler", "turbine")},
        dt=1.0,
        units=[short[n].unit for n in ("tank", "boiler", "turbine")],
    )
    one, two = cf.fit(short), cf.fit(turned)
    for cause, effect in (("boiler", "tank"), ("turbine", "tank")):
        same_answer(*(f.effect(cause, effect, {"u1": 1.0}, horizon=10) for f in (one, two)))
    assert set(one.graph().direct()) == set(two.graph().direct())
    # states come from random projections, which the order of units changes
    ahead, same = two.forecast(turned, 5)["tank"], one.forecast(short, 5)["tank"]
    assert (np.abs(ahead.mean - same.mean) <= (same.upper - same.lower) / 50).all()


def test_inputs_logged_in_the_row_they_act_on_are_noticed_and_answered_for():
    late = moved(RECORDING, 1.0, 0.0, 20.0, same_row=True)
    found = cf.fit(late, rank=2)
    assert all(point.same_row for point in found.points.values())
    assert any(c.code == "input-alignment" and "own row" in c.text for c in found.caveats)
    assert not any(point.same_row for point in fitted().points.values())
    # a change in row 0 acts in row 0, so the answer for row k + 1 is one step further along than before
    for duration in (None, 2):
        truth, plain, answer = (
            fit.effect("boiler", "turbine", {"u1": 1.0}, horizon=horizon, duration=duration).mean
            for fit, horizon in ((true_fit(), 13), (small_fit(), 13), (found, 12))
        )
        assert r_squared(answer, plain[1:]) > 0.999
        assert r_squared(answer, truth[1:]) > 0.98  # as good as the plain fit: how good, is another test's affair
        assert r_squared(answer, truth[:-1]) < 0.98
    both = found.effect(["boiler", "turbine"], "tank", {"boiler": {"u1": 1.0}, "turbine": {"u2": -1.0}}, horizon=12)
    alone = [
        found.effect("boiler", "tank", {"u1": 1.0}, horizon=12),
        found.effect("turbine", "tank", [0, -1.0], horizon=12),
    ]
    # some replicates have a product or two, with which two changes do not quite add up; a row too late would be far off
    assert np.abs(both.mean - alone[0].mean - alone[1].mean).max() < 0.005 * np.abs(both.mean).max()
    parts = found.paths("boiler", "tank", {"u1": 1.0}, horizon=12)
    assert np.allclose(parts.total, alone[0].mean, atol=EXACT * 100)


def test_counterfactuals_and_restoration_with_inputs_that_act_on_their_own_row():
    late = moved(RECORDING, 1.0, 0.0, 20.0, same_row=True)
    found = cf.fit(late, rank=2)
    start, stop = 100, 120
    u = late["boiler"].u[start:stop, 0]
    worlds = found.counterfactual(late, do={"boiler": {"u1": u + 1.0}}, start=start, stop=stop)
    shift = worlds["turbine"].mean - late["turbine"].y[start:stop]
    truth = true_fit().effect("boiler", "turbine", {"u1": 1.0}, horizon=stop - start).mean
    plain = small_fit().effect("boiler", "turbine", {"u1": 1.0}, horizon=stop - start).mean
    assert r_squared(shift, plain) > 0.999  # row 100 itself is touched
    assert r_squared(shift, truth) > 0.98  # as good as the plain fit
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
    found = cf.fit(cf.Recording.from_arrays(arrays, dt=1.0, units=RECORDING.units), rank=2)
    assert {n: p.same_row for n, p in found.points.items()} == {"boiler": False, "turbine": True, "tank": False}
    truth, plain = (fit.effect("turbine", "tank", {"u1": 1.0}, horizon=13).mean for fit in (true_fit(), small_fit()))
    answer = found.effect("turbine", "tank", {"u1": 1.0}, horizon=12).mean
    assert r_squared(answer, plain[1:]) > 0.99
    assert r_squared(answer, truth[1:]) > 0.98  # as good as the plain fit
    assert r_squared(answer, truth[:-1]) < 0.5


def test_a_saved_fit_answers_the_same(tmp_path):
    late = moved(RECORDING.slice(0, 1200), 3.0, 100.0, 20.0, same_row=True)
    fit = cf.fit(late)
    fit.save(tmp_path / "fit")
    loaded = cf.load(tmp_path / "fit")
    ours, again = (f.effect("boiler", "tank", {"u1": 1.0}, horizon=6) for f in (fit, loaded))
    assert np.array_equal(ours.mean, again.mean)
    assert np.array_equal(ours.lower, again.lower)
    assert ours.caveats == again.caveats
    assert fit.graph() == loaded.graph()
    one, two = fit.forecast(late, 4), loaded.forecast(late, 4)
    assert np.array_equal(one["tank"].upper, two["tank"].upper)
    server, tank = cf.load_server(tmp_path / "fit"), cf.load_unit(tmp_path / "fit" / "units" / "tank.safetensors")
    assert np.array_equal(cf.UnitView(tank, server).effect("boiler", "tank", {"u1": 1.0}, horizon=6).upper, ours.upper)
    content = (tmp_path / "fit" / "server.safetensors").read_bytes()
    level = np.asarray(fit.parts["tank"].output_level)
    assert level[0].tobytes() not in content  # the unit's levels are not the server's business


def acting_inputs(fit, recording):
    """Inputs as departures from the levels of a fit; those that act on their own row stand in the row before."""
    out = []
    for name in fit.names:
        u = recording[name].u - fit.points[name].input_level
        out.append(np.vstack([u[1:], u[-1:]]) if fit.points[name].same_row else u)
    return np.hstack(out)


@pytest.mark.parametrize("same_row", [False, True])
def test_an_update_is_the_fit_of_all_rows(same_row):
    """The units keep the level, scale and basis of their numbers; in these, the network is learned from all rows."""
    late = moved(RECORDING.slice(0, 1500), 1.0, 5.0, 20.0, same_row=same_row)
    grown = cf.fit(late.slice(0, 1200), rank=2, same_row=same_row).update(late.slice(1200, 1500))
    z = np.hstack([grown.about(late).grounded.numbers, acting_inputs(grown, late)])
    rows = Rows(grown.names, (2, 2, 2), (2, 2, 2), z)
    network, again = grown.couplings.network, learn(rows).network
    for name in ("linear", "bends", "noise", "level", "scale"):
        np.testing.assert_allclose(getattr(network, name), getattr(again, name), rtol=ITERATIVE, atol=ITERATIVE)
    whole = cf.fit(late, rank=2, same_row=same_row)  # its numbers are in the basis of all rows
    a, b = (f.effect("boiler", "turbine", {"u1": 1.0}, horizon=8) for f in (whole, grown))
    assert np.abs(a.mean - b.mean).max() < 0.05 * np.abs(a.mean).max()
    assert grown.server.u.shape[0] == 1500
    assert {c.code for c in whole.caveats} <= {c.code for c in grown.caveats} | {"exact-message"}


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
    """Of 25 linear plants. Intervals make room for plants that bend, so on these they may hold more than 95 %."""
    shares, widths, misses = [], [], []
    for seed in range(25):
        plant = cf.random_plant(units=2, states=2, outputs=6, rng=seed)
        recording = plant.simulate(700, rng=seed + 500)
        cause, effect = plant.names
        truth = cf.fit(recording, plant, method="oracle").effect(cause, effect, [1.0, 0.5], horizon=6).mean
        answer = cf.fit(recording, rank=2, same_row=False).effect(cause, effect, [1.0, 0.5], horizon=6)
        shares.append(((answer.lower <= truth) & (truth <= answer.upper)).mean())
        widths.append((answer.upper - answer.lower).mean())
        misses.append(np.abs(answer.mean - truth).mean())
    assert np.mean(shares) > 0.92
    assert np.mean(widths) < 10 * np.mean(misses)  # 4.9 is a perfect Gaussian band


# ---- hostile input


def test_dead_constant_and_doubled_channels_do_no_harm():
    arrays = {n: (RECORDING[n].y.copy(), RECORDING[n].u) for n in RECORDING.names}
    y = arrays["turbine"][0]
    y[:, 5] = 3.0  # never moves
    y[:, 4] = y[:, 3]  # the same twice
    arrays["tank"][0][5:, 0] = np.nan  # dead after five readings
    found = cf.fit(cf.Recording.from_arrays(arrays, dt=1.0, units=RECORDING.units))
    answer = found.effect("boiler", "turbine", [1.0, -0.5], horizon=20)
    truth = true_fit().effect("boiler", "turbine", [1.0, -0.5], horizon=20).mean
    assert r_squared(answer.mean[:, :5], truth[:, [0, 1, 2, 3, 3]]) > 0.95
    assert np.isnan(answer.mean[:, 5]).all()  # nothing is known of it
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
    with pytest.raises(cf.ModelError, match="only method 'sufficient' or 'moments' identifies"):
        cf.fit(RECORDING, method="penalty")
    for options, text in (
        ({"rank": 0}, "'rank'"),
        ({"rank": 1.5}, "'rank'"),
        ({"rank": {"nobody": 3}}, "'nobody'"),
        ({"same_row": "yes"}, "'same_row'"),
        ({"order": 2}, "no option 'order'"),
        ({"form": "free"}, "no option 'form'"),
        ({"estimate": "all"}, "'estimate' goes with given models"),
        ({"evaluations": 5}, "'evaluations' goes with given models"),
        ({"uncertainty": False}, "'uncertainty' goes with given models"),
        ({"edges": [("boiler", "nobody")]}, "'nobody'"),
    ):
        with pytest.raises(cf.CounterflowError, match=text):
            cf.fit(RECORDING, **options)
    with pytest.raises(cf.OptionError, match="models are given"):
        cf.fit(RECORDING, PLANT.locals(), rank=2)


def test_the_models_that_a_fit_leaves_at_the_units_are_models_like_any_other(monkeypatch):
    """Its plant has the effects of the sparse learner's network, and its units' models can be fitted again."""
    monkeypatch.setattr(network_learning, "worth_of", lambda *given: ((0.0, 0.0), (16, *[0] * len(given[4]))))
    found = cf.fit(RECORDING.slice(0, 700), rank=2, same_row=False)
    levels = {name: part.output_level for name, part in found.parts.items()}
    inputs = {name: part.point.input_level for name, part in found.parts.items()}
    short = RECORDING.slice(0, 700)
    apart = cf.Recording.from_arrays({n: (short[n].y - levels[n], short[n].u - inputs[n]) for n in short.names}, dt=1.0)
    plain = cf.fit(apart, found.plant, method="oracle")
    a, b = (f.effect("boiler", "turbine", {"u1": 1.0}, horizon=10).mean for f in (found, plain))
    assert np.abs(a - b).max() < 0.02 * np.abs(a).max()  # of the responses, states of a fiftieth and less are left out
    models = {name: part.model for name, part in found.parts.items()}
    again = cf.fit(apart, models, evaluations=2, uncertainty=False)
    assert np.isfinite(again.log_likelihood)


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
    found = cf.fit(cf.Recording.from_arrays(arrays, dt=1.0, units=RECORDING.units))
    (absurd,) = [c for c in found.caveats if c.code == "absurd-reading"]
    assert absurd.scope == "turbine"
    assert "u1 is -9999 in row 777" in absurd.text
    assert not any(c.code == "absurd-reading" for c in fitted().caveats)


def test_a_channel_that_looks_like_noise_is_named():
    arrays = {n: (RECORDING[n].y.copy(), RECORDING[n].u) for n in RECORDING.names}
    arrays["tank"][0][:, 2] = np.random.default_rng(1).standard_normal(RECORDING.rows)
    noisy = cf.Recording.from_arrays(arrays, dt=1.0, units=RECORDING.units)
    found = cf.fit(noisy, rank=2)
    named = [c.text for c in found.caveats if c.scope == "tank" and "y3" in c.text]
    assert named
    assert "noise" in named[0] or "no signal" in named[0]
    spared = cf.fit(noisy)  # there it is a number of its own, so that no effect on it would be missed
    assert not any(c.code == "weak-channels" for c in spared.caveats)
    answer = spared.effect("turbine", "tank", {"u1": 1.0}, horizon=10)
    assert (answer.lower[:, 2] <= 0).all()
    assert (answer.upper[:, 2] >= 0).all()
    assert np.abs(answer.mean[:, 2]).max() < 0.1 * np.abs(answer.mean).max()


def test_parts_of_different_fits_do_not_answer_together(tmp_path):
    for name, rows in (("one", 600), ("two", 700)):
        cf.fit(RECORDING.slice(0, rows)).save(tmp_path / name)
    server, tank = cf.load_server(tmp_path / "one"), cf.load_unit(tmp_path / "two" / "units" / "tank.safetensors")
    with pytest.raises(cf.DataError, match="belongs to another fit"):
        cf.UnitView(tank, server).effect("boiler", "tank", {"u1": 1.0}, horizon=3)


def test_a_report_has_the_graph(tmp_path):
    from counterflow.report import AskEffect, write_report

    write_report(tmp_path / "report.html", fitted(), RECORDING, [AskEffect("boiler", "turbine", {"u1": 0.5})])
    text = (tmp_path / "report.html").read_text()
    assert "direct influences" in text
    assert f"{len(fitted().graph().direct())} of 6 pairs" in text


def test_an_attribution_says_when_its_level_is_extrapolated():
    unit = cf.Unit("tank", states=1, inputs=1, outputs=1)
    slow = cf.Plant(units=[unit], A=[[0.9999]], B=[[0.1]], C=[[1.0]], Q=[[1e-3]], R=[[0.1]])
    recording = slow.simulate(300, rng=1)
    text = cf.fit(recording, slow, method="oracle").attribute(recording, "tank", 10, 20).caveats
    assert any(c.code == "slow-mode" for c in text)
    quick = fitted().attribute(RECORDING, "tank", 10, 20)
    assert not any(c.code == "slow-mode" for c in quick.caveats)


def test_of_a_channel_that_was_never_read_nothing_is_answered():
    plant = cf.random_plant(units=["boiler", "turbine"], rng=1)
    log = plant.simulate(400, rng=2)
    arrays = {name: (np.array(log[name].y), log[name].u) for name in ("boiler", "turbine")}
    arrays["turbine"][0][:, 0] = np.nan
    arrays["turbine"][0][:, 1] = 3.0
    given = cf.Recording.from_arrays(arrays)
    fit = cf.fit(given)
    effect = fit.effect("boiler", "turbine", np.ones(log["boiler"].u.shape[1]), horizon=5)
    for each in (effect.mean, effect.lower, effect.upper, fit.forecast(given, horizon=5)["turbine"].mean):
        assert np.isnan(each[:, :2]).all()
        assert np.isfinite(each[:, 2:]).all()
    assert "nan" not in effect.sentence()
    name = given["turbine"].unit.output_names[0]
    with pytest.raises(cf.UnidentifiedError, match=name):
        fit.restore("turbine", {name: 1.0}, using=["boiler"])
