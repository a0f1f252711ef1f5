"""Windows of answers: mean, cumulative, extreme and relative effect, against dense covariances and twin plants."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from tolerances import EXACT

import counterflow as cf
from counterflow.learning.ensemble import KEPT, compressed, noise_ahead
from counterflow.protocol import Answer
from counterflow.questions.answering import JOINT
from counterflow.questions.window import JointErrors

UNITS = [
    cf.Unit("boiler", 2, [cf.Channel("valve", "%")], [cf.Channel("flow", "t/h"), cf.Channel("p", "bar")]),
    cf.Unit("turbine", 2, inputs=["load"], outputs=[cf.Channel("speed", "rpm"), cf.Channel("power", "kW"), "x"]),
]
PLANT = cf.random_plant(units=UNITS, topology="chain", rng=3)
RECORDING = PLANT.simulate(500, rng=4)


@cache
def fitted() -> cf.Fit:
    return cf.fit(RECORDING, PLANT.locals())


def test_the_interval_of_a_mean_is_that_of_the_dense_covariance():
    """All rows at once, by derivatives in every coupling, and a weighted sum of them."""
    answer = fitted().effect("boiler", "turbine", {"valve": 0.7}, horizon=15, duration=4)
    A, B, spread = fitted().plant.A, fitted().plant.B, fitted().server.model.spread
    P, own = len(A), fitted().plant.state_slice("turbine")
    C = fitted().parts["turbine"].model.C
    schedule = np.zeros((15, B.shape[1]))
    schedule[:4, 0] = 0.7

    def rows(AB: np.ndarray) -> np.ndarray:
        h, out = np.zeros(P), []
        for u in schedule:
            h = AB[:, :P] @ h + AB[:, P:] @ u
            out.append(C @ h[own])
        return np.array(out)  # (15, D)

    AB = np.hstack([A, B])
    J = []
    for i, k in zip(spread.rows, spread.columns, strict=True):
        step = np.zeros_like(AB)
        step[i, k] = 1e-6
        J.append((rows(AB + step) - rows(AB - step)) / 2e-6)
    moved = np.einsum("itd,ij->jtd", np.array(J), spread.root)
    for start, stop in ((0, 15), (3, 9), (14, 15)):
        wanted = np.sqrt(np.square(moved[:, start:stop].mean(axis=1)).sum(axis=0))
        found = answer.window(start, stop).mean
        np.testing.assert_allclose((found.upper - found.lower) / 2 / 1.959964, wanted, rtol=1e-5)
        np.testing.assert_allclose(found.value, answer.mean[start:stop].mean(axis=0), rtol=EXACT)


@pytest.mark.parametrize("kind", ["models", "logs"])
def test_a_window_of_one_row_is_that_row(kind):
    fit = fitted() if kind == "models" else cf.fit(RECORDING)
    answer = fit.effect("boiler", "turbine", {"valve": 0.7}, horizon=10)
    world = fit.counterfactual(RECORDING, {"boiler": {"valve": 0.0}}, 300, 320)["turbine"]
    ahead = fit.forecast(RECORDING, 10)["turbine"]
    for reply, row, shift in ((answer, 4, 0.0), (world, 300 + 4, world.was[4]), (ahead, ahead.first + 4, 0.0)):
        one = reply.window(row, row + 1).mean
        np.testing.assert_allclose(one.lower, reply.lower[4] - shift, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(one.upper, reply.upper[4] - shift, rtol=1e-9, atol=1e-12)


def test_noise_of_a_forecast_goes_together_as_the_dense_covariance_says():
    rng = np.random.default_rng(0)
    A = 0.9 * np.linalg.qr(rng.standard_normal((3, 3)))[0]
    Q, X = np.diag([0.3, 0.1, 0.2]), np.eye(3)
    own, n = slice(1, 3), 8
    big = np.zeros((3 * n, 3 * n))
    powers = [np.linalg.matrix_power(A, k) for k in range(n + 1)]
    for s in range(n):
        for t in range(n):
            block = powers[s + 1] @ X @ powers[t + 1].T
            for k in range(min(s, t) + 1):
                block = block + powers[s - k] @ Q @ powers[t - k].T
            big[3 * s : 3 * s + 3, 3 * t : 3 * t + 3] = block
    keep = [3 * t + i for t in range(n) for i in (1, 2)]
    found = noise_ahead(A, Q, X, n, own)[1].reshape(-1, 2 * n)
    np.testing.assert_allclose(found.T @ found, big[np.ix_(keep, keep)], rtol=1e-9, atol=1e-12)
    small = compressed(noise_ahead(A, Q, X, n, own)[1]).reshape(-1, 2 * n)
    np.testing.assert_allclose(small.T @ small, big[np.ix_(keep, keep)], rtol=1e-6, atol=1e-7)
    drawn = noise_ahead(A, Q, X, 700, own)[1]  # too many to add up: drawn
    assert drawn.shape == (128, 700, 2)
    assert abs(np.square(drawn[:, -1, 0]).sum() / np.square(found.T[-2]).sum() - 1) < 0.4


def test_means_over_windows_hold_the_truth_as_often_as_they_say():
    """Twin plants: 95 % of effects, counterfactuals and forecasts; rows taken as independent are too narrow."""
    hits: dict[str, list[float]] = {"effect": [], "counterfactual": [], "forecast": [], "independent": []}
    for seed in range(40):
        plant = cf.random_plant(["a", "b"], topology="chain", rng=seed)
        longer = plant.simulate(430, rng=1000 + seed)
        recording = longer.slice(0, 400)
        fit, truth = cf.fit(recording, plant.locals()), cf.fit(recording, plant, method="oracle")
        change = {"u1": 1.0}
        answer, true = (each.effect("a", "b", change, horizon=20, duration=6) for each in (fit, truth))
        window, wanted = answer.window(0, 20).mean, true.mean.mean(axis=0)
        hits["effect"].append(np.mean((window.lower <= wanted) & (wanted <= window.upper)))
        naive = np.sqrt(np.square((answer.upper - answer.lower) / 2).sum(axis=0)) / 20
        hits["independent"].append(np.mean(np.abs(window.value - wanted) <= naive))
        past = [each.counterfactual(recording, {"a": {"u1": 0.0}}, 300, 340)["b"] for each in (fit, truth)]
        window, wanted = past[0].window(305, 335).mean, past[1].difference[5:35].mean(axis=0)
        hits["counterfactual"].append(np.mean((window.lower <= wanted) & (wanted <= window.upper)))
        plan = {name: longer[name].u[399:429] for name in plant.names}
        ahead, wanted = fit.forecast(recording, 30, plan)["b"], longer["b"].y[400:430].mean(axis=0)
        window = ahead.window().mean
        hits["forecast"].append(np.mean((window.lower <= wanted) & (wanted <= window.upper)))
    for name in ("effect", "counterfactual", "forecast"):
        error = np.std(hits[name]) / np.sqrt(len(hits[name]))
        assert abs(np.mean(hits[name]) - 0.95) < 0.02 + 3 * error, name
    assert np.mean(hits["independent"]) < 0.85


def test_cumulative_extreme_and_relative():
    recording = cf.Recording.from_arrays(
        {name: (RECORDING[name].y + 500.0, RECORDING[name].u) for name in RECORDING.names}, 60.0, units=UNITS,
        start="2024-11-01 14:00", timezone="Europe/Berlin",
    )  # fmt: skip
    fit = cf.fit(recording)
    world = fit.counterfactual(recording, {"boiler": {"valve": 2.0}}, "2024-11-01 18:00", "2024-11-01 20:00")["boiler"]
    window = world.window("2024-11-01 18:30", "2024-11-01 19:30")
    assert window.stop - window.start == 60
    assert window.cumulative_units == ("t", "bar·min")
    np.testing.assert_allclose(window.cumulative.value[0], window.mean.value[0], rtol=EXACT)  # an hour of t/h
    np.testing.assert_allclose(window.cumulative.value[1], 60 * window.mean.value[1], rtol=EXACT)
    np.testing.assert_allclose(
        window.relative.value, window.mean.value / np.abs(world.was[30:90].mean(axis=0)), rtol=EXACT
    )
    k = int(np.abs(world.difference[30:90, 0]).argmax()) + 30
    assert window.extreme_rows[0] == k
    assert window.extreme.lower[0] <= window.extreme.value[0] <= window.extreme.upper[0]
    said = window.sentence("flow")
    assert said.startswith("From 2024-11-01 18:30 to 19:29 CET, boiler flow would have been ")
    assert " of what it was" in said
    told = json.loads(json.dumps(window.to_json()))
    assert (told["start"], told["channels"][0]["cumulative"]["measured_in"]) == (world.first + 30, "t")
    effect = fit.effect("boiler", "turbine", {"valve": 1.0}, "2h")
    assert (effect.window("30min", "1h").start, effect.window("30min", "1h").stop) == (30, 60)
    assert np.isfinite(effect.window().relative.value).all(), "the usual level is about 500"
    with pytest.raises(cf.OptionError, match="after the change"):
        effect.window("2024-11-01 18:30")


def test_integrals_are_of_time_where_that_is_known():
    steps = fitted().effect("boiler", "turbine", {"valve": 1.0}, 5).timeline
    assert steps.integral("t/h", 10) == (pytest.approx(1 / 3600), "t")
    assert steps.integral("kW", 10) == (1.0, "kW × steps")
    assert steps.integral("1/min", 10) == (pytest.approx(1 / 60), "")


def test_windows_that_make_no_sense_are_refused():
    answer = fitted().effect("boiler", "turbine", {"valve": 1.0}, 10)
    for start, stop in ((5, 5), (-1, 4), (0, 11), (3.5, 6), (True, 4), ("soon", None), ("5", "4")):
        with pytest.raises(cf.OptionError):
            answer.window(start, stop)
    world = fitted().counterfactual(RECORDING, {"boiler": {"valve": 0.0}}, 300, 320)["turbine"]
    with pytest.raises(cf.OptionError, match="300 <= start < stop <= 320"):
        world.window(0, 10)


def test_answers_without_intervals_have_windows_without_them():
    published = cf.fit(RECORDING, PLANT.locals(), method="penalty", rounds=3)
    window = published.effect("boiler", "turbine", {"valve": 1.0}, 10).window(2, 8)
    assert (window.mean.lower, window.extreme.lower, window.level) == (None, None, None)
    assert window.to_frame()["lower"].null_count() == window.to_frame().height
    assert "nan" not in window.sentence()
    alone = fitted().paths("boiler", "turbine", {"valve": 1.0}, 10).window()
    assert alone.mean.lower is None
    shares = fitted().attribute(RECORDING, "turbine", 300, 330).window(310, 320)
    assert "its usual level" in shares.sentence()


def test_channels_of_which_nothing_is_known_say_so():
    y = np.array(RECORDING["turbine"].y)
    y[:, 2] = np.nan
    parts = {"boiler": (RECORDING["boiler"].y, RECORDING["boiler"].u), "turbine": (y, RECORDING["turbine"].u)}
    fit = cf.fit(cf.Recording.from_arrays(parts, units=UNITS))
    window = fit.effect("boiler", "turbine", {"valve": 1.0}, 10).window()
    assert np.isnan(window.mean.value[2])
    assert np.isnan(window.extreme.value[2])
    assert "nothing is known of turbine x" in window.sentence("x")
    assert window.to_json()["channels"][2]["mean"]["value"] is None


def test_without_directions_errors_are_taken_to_last():
    """The widest that correlated errors can make a mean."""
    answer = fitted().effect("boiler", "turbine", {"valve": 0.7}, horizon=15)
    alone = replace(answer)
    alone.__dict__["errors"] = replace(answer.errors, directions=None)
    lasting = alone.window(2, 12).mean
    known = answer.window(2, 12).mean
    half = (answer.upper - answer.lower)[2:12].mean(axis=0) / 2
    np.testing.assert_allclose((lasting.upper - lasting.lower) / 2, half, rtol=1e-9)
    assert ((known.upper - known.lower) <= 2 * half * (1 + 1e-9)).all()


def test_summaries_begin_with_what_to_read_first():
    logs = cf.fit(RECORDING)
    answer = logs.effect("boiler", "turbine", {"valve": 0.7}, horizon=15)
    text = answer.summary()
    assert text.startswith("Read with care: ") == (answer.verdict != "clear"), "choices of the fit are no alarm"
    assert answer.window().sentence() in text
    assert "95 %" in text


def test_a_change_of_nothing_changes_nothing():
    window = fitted().effect("boiler", "turbine", {"valve": 0.0}, 10).window()
    assert window.sentence("speed") == "In steps 1 to 10, nothing changes at turbine speed."


def test_directions_of_other_rows_are_refused():
    part, none = fitted().parts["turbine"], np.zeros((0, 2))
    said = Answer("turbine", "effect", "", "", np.ones((5, 2)), np.zeros((10, 2)))
    told = {rows: [said, Answer("turbine", "effect", JOINT, "", np.ones((rows, 2)), none)] for rows in (7, 10)}
    with pytest.raises(cf.CounterflowError, match="7 rows are not directions of 5 rows"):
        JointErrors.from_parts(part, told[7])
    assert JointErrors.from_parts(part, told[10]).directions.shape == (2, 5, 2)


def test_long_answers_take_no_more_room_than_they_must():
    answer = fitted().effect("boiler", "turbine", {"valve": 1.0}, 100_000)
    assert answer.errors.directions is None
    assert np.isfinite(answer.window(0, 1000).mean.lower).all()
    assert len(fitted().effect("boiler", "turbine", {"valve": 1.0}, 2000).errors.directions) <= KEPT


def test_windows_where_controllers_react():
    """Every world of the running plant is a direction: the mean is that of ``running``."""
    rng, law = np.random.default_rng(0), cf.PID(1.0, 10.0)
    y, u = np.zeros((400, 1)), np.zeros((400, 2))
    u[:, 1] = rng.standard_normal(400)
    for t in range(1, 400):
        y[t] = 0.9 * y[t - 1] + 0.1 * u[t - 1, 0] + 0.3 * u[t - 1, 1] + 0.1 * rng.standard_normal()
        u[t, 0] = u[t - 1, 0] - law.gain * np.array([1 + 1 / law.integral_time, -1]) @ y[[t, t - 1], 0]
    drum = cf.Unit("drum", inputs=["feed", "steam"], outputs=["level"], loops=[cf.Loop("feed", "level")])
    fit = cf.fit(cf.Recording.from_arrays({"drum": (y, u)}, units=[drum]))
    answer = fit.effect("drum", "drum", {"steam": 1.0}, 30, controllers="reacting")
    window, wanted = answer.window(5, 25).mean, answer.running.mean("level", 5, 25)
    assert window.value[0] == pytest.approx(wanted.mean, rel=1e-6)
    assert window.upper[0] - window.lower[0] >= 0.9 * (wanted.upper - wanted.lower)
    assert window.upper[0] - window.lower[0] <= (answer.upper - answer.lower)[5:25].mean()


@pytest.mark.parametrize("kind", ["polars", "pandas"])
def test_schedules_are_tables_of_either_kind(kind):
    """Columns are found by their names; a column or an index of times is left alone."""
    module, rng = pytest.importorskip(kind), np.random.default_rng(0)
    plant = cf.random_plant(["a", "b"], topology="chain", rng=1)
    recording = plant.simulate(300, rng=2)
    fit, values = cf.fit(recording, plant.locals()), rng.standard_normal((10, 2))
    times = np.arange(10).astype("datetime64[m]").astype("datetime64[ns]")
    columns = {"u2": values[:, 1], "u1": values[:, 0]}
    if kind == "polars":
        frame = module.DataFrame({"time": times, **columns})
    else:
        frame = module.DataFrame(columns, index=module.DatetimeIndex(times))
    found = fit.effect("a", "b", frame, 10)
    np.testing.assert_array_equal(found.mean, fit.effect("a", "b", values, 10).mean)
    np.testing.assert_array_equal(found.to_json()["change"]["a"]["u1"], values[:, 0])
    past = fit.counterfactual(recording, {"a": frame}, 200, 210)["b"]
    np.testing.assert_array_equal(past.mean, fit.counterfactual(recording, {"a": values}, 200, 210)["b"].mean)
    ahead = fit.forecast(recording, 10, {"a": frame})["b"]
    np.testing.assert_array_equal(ahead.mean, fit.forecast(recording, 10, {"a": values})["b"].mean)
    with pytest.raises(cf.UnknownNameError, match="nonsense"):
        fit.effect("a", "b", module.DataFrame({"nonsense": values[:, 0]}), 10)
