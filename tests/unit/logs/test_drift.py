"""Units that change slowly: slopes and memories against plain least squares on rows, and what a fit makes of them."""

from __future__ import annotations

import numpy as np
import pytest
from tolerances import LONG

import counterflow as cf
from counterflow.learning import drift
from counterflow.learning.drift import drift_of, faded, memory_gains, ramp, slope_gain
from counterflow.learning.regime_sums import with_slopes
from counterflow.learning.regimes import COST, RIDGE


def by_block(x, y, blocks=20):
    """Sums of features, target and constant by block, and the rows of each."""
    parts = np.array_split(np.hstack([x[:, :-1], y[:, None], x[:, -1:]]), blocks)
    return np.array([part.T @ part for part in parts]), np.array([float(len(part)) for part in parts])


def drifting(T=2000, seed=0, slope=0.0, wander=0.0, trend=0.0):
    """A number whose first weight goes from 1 - slope to 1, or wanders; its level may go with time, too."""
    rng = np.random.default_rng(seed)
    time = np.arange(T) / T - 1
    x = np.hstack([rng.standard_normal((T, 3)), np.ones((T, 1))])
    weight = 1.0 + slope * time + wander * np.cumsum(rng.standard_normal(T)) / np.sqrt(T)
    return x, weight * x[:, 0] + 0.5 * x[:, 1] + trend * time + 0.5 * rng.standard_normal(T)


@pytest.mark.parametrize("given", [{}, {"slope": 0.5}, {"slope": -0.3, "trend": 2.0}])
def test_the_gain_of_slopes_is_that_of_least_squares_on_rows(given):
    x, y = drifting(T=2000, **given)
    sums, counts = by_block(x, y)
    time = np.repeat(ramp(20), 100)[:, None]  # of blocks
    levels = np.hstack([x[:, 3:], time])

    def left(columns):
        design = np.hstack([x[:, :3], levels, (x * time)[:, columns]])
        return float(np.square(y - design @ np.linalg.lstsq(design, y, rcond=None)[0]).sum())

    taken, best = [], 0.0
    for _ in range(3):
        taken.append(min((j for j in range(3) if j not in taken), key=lambda j: left([*taken, j])))
        best = max(best, 0.5 * len(y) * np.log(left([]) / left(taken)) - COST * len(taken))
    assert slope_gain(sums, counts, ramp(20)) == pytest.approx(best, rel=1e-3, abs=0.01)
    assert (best > drift.DRIFTING) == bool(given)


def test_memories_are_judged_by_blocks_that_follow():
    x, y = drifting(T=400, wander=1.0)
    sums, counts = by_block(x, y, blocks=10)
    parts = np.array_split(np.arange(400), 10)
    x, y = (np.concatenate([each[part] - each[part].mean(axis=0) for part in parts]) for each in (x[:, :3], y))
    logs = np.zeros((1 + len(drift.MEMORIES), 5))
    for k, memory in enumerate((np.inf, *drift.MEMORIES)):
        for j, b in enumerate(range(5, 10)):
            before = np.concatenate(parts[:b])
            age = np.repeat((b - 1 - np.arange(b)) / 10, 40)
            v = np.exp(-age / memory)
            A = (x[before] * v[:, None]).T @ x[before] + RIDGE * v.sum() * np.eye(3)
            w = np.linalg.solve(A, x[before].T @ (v * y[before]))
            logs[k, j] = np.log(np.square(y[parts[b]] - x[parts[b]] @ w).mean())
    wanted = logs[0] - logs[1:]
    gains, errors = memory_gains([sums], counts)
    assert gains == pytest.approx(wanted.mean(axis=1))
    assert errors == pytest.approx(wanted.std(axis=1, ddof=1) / np.sqrt(5))


def test_blocks_fade_with_their_age():
    assert faded(20, 0.25)[-1] == 1.0
    assert faded(20, 0.25)[-6] == pytest.approx(np.exp(-1))


@pytest.mark.parametrize("seed", range(2))
def test_drift_is_followed_forgotten_or_not_there(seed):
    steady = [by_block(*drifting(seed=seed + 10 * k))[0] for k in range(3)]
    _, counts = by_block(*drifting(seed=seed))
    assert drift_of(1, steady, counts) is None
    level = [by_block(*drifting(seed=seed, trend=3.0))[0]]  # something else may have moved it
    assert drift_of(1, level, counts) is None
    even = drift_of(1, [*steady, by_block(*drifting(seed=seed, slope=0.5))[0]], counts)
    assert even is not None
    assert (even.unit, even.memory) == (1, None)


def test_where_no_slope_is_found_rows_may_be_forgotten(monkeypatch):
    sums, counts = by_block(*drifting(T=4000, slope=3.0))
    monkeypatch.setattr(drift, "slope_gain", lambda *_: 0.0)
    found = drift_of(2, [sums], counts)
    assert found is not None
    assert found.memory in drift.MEMORIES
    assert found.unit == 2
    gains, errors = memory_gains([sums], counts)
    assert found.gain == pytest.approx(1 - np.exp(-gains.max()))
    assert gains.max() > 2 * errors[gains.argmax()]


def test_sums_with_slopes_are_those_of_rows_times_their_time():
    rng = np.random.default_rng(0)
    rows, time = rng.standard_normal((200, 6)), np.repeat(ramp(10), 20)
    rows[:, -1] = 1.0  # three features, two targets, the constant
    moments = [(rows * (time**power)[:, None]).T @ rows for power in range(3)]
    found = with_slopes(moments, 3, 2)
    wide = np.hstack([rows[:, :3], rows[:, :2] * time[:, None], rows[:, 3:5]])
    levels = np.stack([np.ones(200), time], axis=1)
    left = wide - levels @ np.linalg.lstsq(levels, wide, rcond=None)[0]
    np.testing.assert_allclose(found[:-1, :-1], left.T @ left, rtol=LONG, atol=LONG)
    np.testing.assert_allclose(found[-1], 0.0, atol=LONG * 200)


# ---- through the whole product


def worn(rows, seed, factor=0.3):
    """u -> a -> b about a level of 2; b feels a by less and less."""
    rng = np.random.default_rng(seed)
    z = np.full((rows, 3), 2.0)
    for t in range(1, rows):
        gain = 1.0 + (factor - 1.0) * t / rows
        z[t, 2] = 2 + 0.8 * (z[t - 1, 2] - 2) + 0.6 * rng.standard_normal()
        z[t, 0] = 0.7 * z[t - 1, 0] + 0.3 * z[t - 1, 2] + 0.1 * rng.standard_normal()
        z[t, 1] = 0.6 * z[t - 1, 1] + 0.4 * gain * z[t - 1, 0] + 0.1 * rng.standard_normal()
    return cf.Recording.from_arrays({"a": (z[:, :1], z[:, 2:]), "b": (z[:, 1:2], np.zeros((rows, 0)))})


def test_a_unit_that_drifts_answers_for_now_and_its_past_for_then(tmp_path):
    log = worn(1500, 0)
    fit = cf.fit(log)
    assert [caveat.scope for caveat in fit.caveats if caveat.code == "drift-followed"] == ["b"]
    assert not [caveat for caveat in fit.caveats if caveat.code == "regime-changed"]
    assert [regime.start for regime in fit.regimes] == [0, 375, 750, 1125]
    fit.save(tmp_path / "fit")
    for each in (fit, cf.load(tmp_path / "fit")):
        assert float(each.effect("a", "b", [1.0], horizon=40).mean[-1, 0]) == pytest.approx(0.3, abs=0.07)
        then = each.counterfactual(log, add={"a": np.ones((60, 1))}, start=150, stop=210)["b"]
        assert float(then.difference[-1, 0]) == pytest.approx(0.87, abs=0.1)
    assert float(cf.fit(log, regime="all").effect("a", "b", [1.0], horizon=40).mean[-1, 0]) > 0.5
