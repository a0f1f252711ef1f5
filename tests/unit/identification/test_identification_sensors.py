"""What sensors do: against plain-loop twins, on clean signals of many kinds, and on dirt that was put in."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.signal import lfilter

from counterflow.identification import sensors
from counterflow.identification.sensors import Sensor, judged, sensors_of

ROWS = 1000


# ---- plain-loop twins


def running_median(v):
    """Seven readings, three on either side; beyond the ends stands the median of the first or last seven."""
    before, after = [np.median(v[:7])] * 3, [np.median(v[-7:])] * 3
    padded = [*before, *v, *after]
    return np.array([np.median(padded[k : k + 7]) for k in range(len(v))])


def spikes(v, height, low, high):
    """Reading by reading, group by group."""
    out = np.zeros(len(v), bool)
    doubtful = np.abs(v - (running_median(v) if len(v) >= 7 else np.median(v))) > height
    k = 0
    while k < len(v):
        if not doubtful[k]:
            k += 1
            continue
        end = k
        while end < len(v) and doubtful[end]:
            end += 1
        group = v[k:end]
        before = [v[i] for i in range(k) if not doubtful[i]][-6:]
        after = [v[i] for i in range(end, len(v)) if not doubtful[i]][:6]
        if before or after:
            least, most = min(before + after), max(before + after)
            beyond = [max(x - most, least - x) for x in group]
            good = len(group) <= 3 and min(beyond) >= max(1.5 * (most - least), height / 2)
            if not before or not after:
                good = good and all(max(low - x, x - high) >= max(100 * (high - low), height) for x in group)
            one_side = (group[0] > most) == (group[-1] > most)
            dies_away = one_side and beyond[0] == max(beyond) and beyond[-1] < beyond[0] / 2
            out[k:end] = good and not dies_away
        k = end
    return out


values = st.floats(-5, 5).map(lambda x: round(x, 1))


@settings(max_examples=150, deadline=None)
@given(arrays(float, st.integers(7, 60), elements=values))
def test_the_running_median_is_the_median_of_seven(v):
    np.testing.assert_array_equal(sensors._medians(v), running_median(v))


@settings(max_examples=300, deadline=None)
@given(
    arrays(float, st.integers(2, 40), elements=values),
    st.dictionaries(st.integers(0, 39), st.sampled_from([-30.0, 25.0, 60.0, 61.0, 1e6]), max_size=8),
)
def test_spikes_are_those_of_a_plain_loop(v, wild):
    for at, value in wild.items():
        v[at % len(v)] = value
    np.testing.assert_array_equal(sensors._spikes(v, 12.0, -5.0, 5.0), spikes(v, 12.0, -5.0, 5.0))


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 20)), min_size=1, max_size=20))
def test_stuck_runs_are_those_of_a_plain_loop(runs):
    v = np.concatenate([np.full(length, float(value)) for value, length in runs])
    sensor = Sensor(low=0.0, high=9.0, movement=1.0, longest=8)
    expected, first = np.zeros(len(v), bool), 0
    for k in range(1, len(v) + 1):
        if k == len(v) or v[k] != v[first]:
            came_by = abs(v[first] - v[first - 1]) if first else 1.0
            if k - first > 8 and 0 < v[first] < 9 and came_by <= 6.0:
                expected[first + 1 : k] = True
            first = k
    np.testing.assert_array_equal(sensor._is_stuck(v), expected)


# ---- clean signals


def clean_signals(rng, rows=ROWS):
    """Signals of healthy sensors, of many kinds, by name."""
    t, noise = np.arange(rows), rng.standard_normal

    def holds(levels, shortest, longest):
        return np.repeat(levels(rows), rng.integers(shortest, longest + 1, rows))[:rows]

    def uniform(n):
        return rng.uniform(-1, 1, n)

    def two(n):
        return rng.choice([-1.0, 1.0], n)

    on = holds(two, 20, 100) > 0
    events = (rng.random(rows) < 0.005) * rng.exponential(5, rows)
    out = {
        "white": noise(rows),
        "Laplace": rng.laplace(size=rows),
        "exponential": rng.exponential(size=rows),
        "slow": lfilter([1], [1, -0.95], noise(rows)),
        "slow, Laplace": lfilter([1], [1, -0.9], rng.laplace(size=rows)),
        "random walk": noise(rows).cumsum(),
        "ringing": lfilter([1], [1, -1.2, 0.95], noise(rows)),
        "sine": np.sin(2 * np.pi * t / 8),
        "saw": (t % 37) / 37,
        "counts": rng.poisson(5, rows).astype(float),
        "rare counts": rng.poisson(0.05, rows).astype(float),
        "on and off": np.where(on, 35 + noise(rows), 0.0),
        "switch": holds(two, 5, 60),
        "constant": np.full(rows, 3.0),
        "alarm": np.where(t == 500, 1.0, 0.0),
        "temperature to 0.1": np.round(20 + 0.2 * lfilter([1], [1, -0.995], noise(rows)), 1),
        "events": lfilter([1], [1, -0.8], events) + 0.05 * noise(rows),
    }
    for shortest, longest in ((1, 3), (1, 10), (3, 30), (5, 60)):
        steps, levels = holds(uniform, shortest, longest), holds(two, shortest, longest)
        out[f"steps of {shortest} to {longest}"] = steps + 0.02 * noise(rows)
        out[f"lagged steps of {shortest} to {longest}"] = lfilter([0.3], [1, -0.7], steps)
        out[f"levels of {shortest} to {longest}"] = levels + 0.01 * noise(rows)
        out[f"lagged levels of {shortest} to {longest}"] = lfilter([0.5], [1, -0.5], levels) + 0.01 * noise(rows)
    return out


@pytest.mark.parametrize("rows", [300, ROWS])
def test_healthy_sensors_are_believed(rows):
    for seed in range(10):
        for name, v in clean_signals(np.random.default_rng([seed, rows]), rows).items():
            y = v[:, None]
            found = judged(sensors_of(y), y)
            assert [f for f in found.findings if f.kind != "quantised"] == [], (name, seed)
            assert found.values is y


def test_a_step_is_no_spike_wherever_it_stands():
    rng = np.random.default_rng(0)
    for at in (1, 2, 3, 4, 7, 100, 493, 496, 497, 498, 499):
        v = 0.1 * rng.standard_normal(500) + 5.0 * (np.arange(500) >= at)
        y = v[:, None]
        assert judged(sensors_of(y), y).findings == (), at


def test_pulses_that_an_input_makes_are_believed():
    rng = np.random.default_rng(0)
    u = np.zeros((ROWS, 1))
    u[rng.integers(20, 980, 6)] = 1.0
    y = 0.05 * rng.standard_normal((ROWS, 1))
    y[1:] += 10 * u[:-1]
    assert judged(sensors_of(y, u=u), y).findings == ()
    assert [f.kind for f in judged(sensors_of(y), y).findings] == ["spike"]  # nobody knows why


# ---- dirt that was put in


def slow_signals(seed, channels=6):
    """(ROWS, channels): movement and noise, as plants show them."""
    rng = np.random.default_rng(seed)
    slow = lfilter([1], [1, -0.95], rng.standard_normal((ROWS, channels)), axis=0)
    slow /= slow.std(axis=0)
    return slow + 0.05 * rng.standard_normal((ROWS, channels)), rng


def left_out(y, **more):
    found = judged(sensors_of(y, **more), y)
    return np.isnan(found.values) & np.isfinite(y), found.findings


def test_spikes_are_left_out_and_nothing_else():
    for seed in range(5):
        clean, rng = slow_signals(seed)
        wild = rng.random(clean.shape) < 0.005
        size = rng.choice([-1, 1], clean.shape) * rng.uniform(10, 50, clean.shape)
        lost, findings = left_out(np.where(wild, clean + size, clean))
        assert (lost & wild).sum() >= 0.95 * wild.sum()
        assert not (lost & ~wild).any()
        assert {f.kind for f in findings} == {"spike"}


@pytest.mark.parametrize("row", [0, 1, 500, ROWS - 1])
def test_one_wild_reading_is_left_out_wherever_it_stands(row):
    y, _ = slow_signals(0)
    y[row, 2] = 1e300
    lost, (found,) = left_out(y)
    assert np.argwhere(lost).tolist() == [[row, 2]]
    assert (found.channel, found.kind, found.count, found.first, found.detail) == (2, "spike", 1, row, 1e300)


def test_a_stuck_sensor_keeps_its_first_reading():
    y, _ = slow_signals(1)
    y[300:400, 0] = y[300, 0]
    lost, (found,) = left_out(y)
    assert np.flatnonzero(lost[:, 0]).tolist() == list(range(301, 400))
    assert not lost[:, 1:].any()
    assert (found.kind, found.count, found.detail) == ("stuck", 99, 100.0)


def test_a_value_that_a_channel_comes_back_to_is_no_stuck_sensor():
    y, _ = slow_signals(1)
    y[300:400, 0] = y[700:800, 0] = y[300, 0]
    assert left_out(y)[1] == ()


def test_saturated_readings_are_left_out_on_either_side():
    y, _ = slow_signals(2)
    low, high = np.quantile(y, (0.03, 0.97), axis=0)
    cut = np.clip(y, low, high)
    lost, findings = left_out(cut)
    np.testing.assert_array_equal(lost, (cut == low) | (cut == high))
    assert [(f.channel, f.kind) for f in findings] == [(k, "saturated") for k in range(6) for _ in (low, high)]
    assert findings[0].detail == low[0]


def test_a_declared_limit_needs_fewer_readings():
    y, _ = slow_signals(3)
    limit = np.sort(y[:, 0])[-4]
    y[:, 0] = np.minimum(y[:, 0], limit)
    assert left_out(y)[1] == ()
    (found,) = left_out(y, limits=[(-np.inf, limit)] + [None] * 5)[1]
    assert (found.channel, found.kind, found.count, found.detail) == (0, "saturated", 4, limit)


def test_a_tank_that_is_often_empty_is_believed():
    y, _ = slow_signals(4)
    y[:, 0] = np.maximum(y[:, 0], 0.0)
    assert left_out(y)[1] == ()


@pytest.mark.parametrize("every", [2, 5, 10])
@pytest.mark.parametrize("step", [0.0, 0.1])
def test_a_regularly_held_log_keeps_its_readings(every, step):
    y, _ = slow_signals(5)
    y = np.round(y / step) * step if step else y
    held = y[(np.arange(ROWS) // every) * every]
    lost, findings = left_out(held)
    np.testing.assert_array_equal(lost, np.repeat((np.arange(ROWS) % every != 0)[:, None], 6, axis=1))
    assert [(f.kind, f.detail) for f in findings if f.kind != "quantised"] == [("held", every)] * 6


def test_an_irregularly_held_log_keeps_its_readings_but_the_first():
    y, rng = slow_signals(6)
    fresh = rng.random(ROWS) < 0.25
    fresh[0] = True
    lost, findings = left_out(y[np.maximum.accumulate(np.where(fresh, np.arange(ROWS), 0))])
    fresh[0] = False  # when it was read nobody knows
    np.testing.assert_array_equal(lost, np.repeat(~fresh[:, None], 6, axis=1))
    assert {(f.kind, f.detail) for f in findings} == {("held", 0.0)}


def test_the_step_of_a_quantised_sensor_is_told_and_nothing_left_out():
    y, _ = slow_signals(7)
    lost, findings = left_out(np.round(y / 0.25) * 0.25)
    assert not lost.any()
    assert [f.kind for f in findings] == ["quantised"] * 6
    np.testing.assert_allclose([f.detail for f in findings], 0.25)


def test_spikes_of_a_quantised_held_and_partly_missing_channel_are_found():
    y, rng = slow_signals(8)
    held = (np.round(y / 0.25) * 0.25)[(np.arange(ROWS) // 5) * 5]
    held[rng.random(held.shape) < 0.1] = np.nan
    held[400:405, 0], held[700:705, 3] = 40.0, -33.3
    _, findings = left_out(held)
    assert [(f.channel, f.first, f.detail) for f in findings if f.kind == "spike"] == [(0, 400, 40.0), (3, 700, -33.3)]


def test_later_rows_are_judged_by_what_earlier_ones_told():
    y, _ = slow_signals(9)
    high = np.quantile(y[:, 1], 0.97)
    y[:, 1] = np.minimum(y[:, 1], high)
    known, few = sensors_of(y[:900]), y[900:910].copy()
    few[4, 0], few[7, 1] = 30.0, high
    found = judged(known, few)
    assert np.argwhere(np.isnan(found.values)).tolist() == [[4, 0], [7, 1]]
    assert [(f.kind, f.first) for f in found.findings] == [("spike", 4), ("saturated", 7)]
    assert judged(sensors_of(few), few).values is few  # ten rows by themselves tell nothing


def test_a_channel_that_is_hardly_there_is_not_judged():
    y = np.full((ROWS, 2), np.nan)
    y[:30, 0] = np.random.default_rng(0).standard_normal(30)
    y[10, 0] = 1e6
    assert sensors_of(y) == (Sensor(), Sensor())
    assert judged(sensors_of(y), y).values is y
