"""Readings that are missing: drawn as a dense Gaussian would have them, and of little harm to what is learned."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from grounded_networks import at_rest

import counterflow as cf
from counterflow.learning.augmentation import decays_of, drop_outliers, impute_records
from counterflow.learning.block_moments import Rows, block_moments_of
from counterflow.learning.completion import WEAK, Gaps, impute_draw, impute_mean
from counterflow.learning.network_learning import learn

SPANS = np.array([(1, 1), (2, 2), (3, 5)])
NOISE = np.array([[0.3, 0.1], [0.1, 0.2]])
T, R = 40, 2


@pytest.fixture
def problem(monkeypatch):
    """Numbers of two channels with one input, some of them missing, some known in part."""
    monkeypatch.setattr("counterflow.learning.completion.CLOSE", 1e-10)
    rng = np.random.default_rng(0)
    linear = 0.15 * rng.standard_normal((3, 3, R))
    linear[0, :R] += 0.5 * np.eye(R)
    numbers, inputs = rng.standard_normal((T, R)), rng.standard_normal((T, 1))
    variance = np.where(rng.random((T, R)) < 0.4, np.inf, 0.0)
    variance[10:14, 0] = 0.5
    return Gaps(np.where(np.isinf(variance), 0.0, numbers), variance), inputs, linear


def residuals(numbers, inputs, linear):
    """Row by row, as the network is written down."""
    z = np.hstack([numbers, inputs])
    out = []
    for t in range(int(SPANS[-1, 1]), len(z)):
        means = [z[t - last : t - first + 1].mean(axis=0) for first, last in SPANS]
        out.append(z[t, :R] - sum(mean @ part for mean, part in zip(means, linear, strict=True)))
    return np.concatenate(out)


def dense(gaps, inputs, linear):
    """Mean and covariance of what is open, from the joint density of everything."""
    open_ = np.flatnonzero(gaps.open.ravel())
    base = np.where(gaps.open, 0.0, gaps.values)
    fixed = residuals(base, inputs, linear)
    columns = []
    for k in open_:
        moved = base.ravel().copy()
        moved[k] += 1.0
        columns.append(residuals(moved.reshape(T, R), inputs, linear) - fixed)
    J = np.stack(columns, axis=1)
    inverse = np.kron(np.eye(len(fixed) // R), np.linalg.inv(NOISE))
    known = 1 / gaps.variance.ravel()[open_]
    precision = J.T @ inverse @ J + np.diag(known + WEAK)
    right = known * gaps.values.ravel()[open_] - J.T @ inverse @ fixed
    return np.linalg.solve(precision, right), np.linalg.inv(precision)


def test_means_are_those_of_the_joint_density(problem):
    gaps, inputs, linear = problem
    mean, _ = dense(gaps, inputs, linear)
    found = impute_draw(gaps, inputs, linear, SPANS, NOISE, np.zeros((T, R)), None)
    np.testing.assert_allclose(found[gaps.open], mean, atol=1e-8)
    np.testing.assert_array_equal(found[~gaps.open], gaps.values[~gaps.open])


def test_draws_have_the_mean_and_the_covariance_of_the_joint_density(problem):
    gaps, inputs, linear = problem
    mean, covariance = dense(gaps, inputs, linear)
    rng = np.random.default_rng(1)
    drawn = [impute_draw(gaps, inputs, linear, SPANS, NOISE, np.zeros((T, R)), rng) for _ in range(1500)]
    draws = np.array([each[gaps.open] for each in drawn])
    size = np.sqrt(np.diag(covariance))
    assert np.abs((draws.mean(axis=0) - mean) / size).max() < 4.5 / np.sqrt(1500)
    np.testing.assert_allclose(np.cov(draws.T) / np.outer(size, size), covariance / np.outer(size, size), atol=0.15)


def test_the_start_does_not_matter(problem):
    gaps, inputs, linear = problem
    one, two = (
        impute_draw(gaps, inputs, linear, SPANS, NOISE, start, np.random.default_rng(3))
        for start in (np.zeros((T, R)), np.full((T, R), 50.0))
    )
    np.testing.assert_allclose(one, two, atol=1e-6)


# ---- learning


def simulated(rows, seed, noise=0.1):
    """One channel each: a is driven by its input, b follows a, c its own input and b; slow channels."""
    rng = np.random.default_rng(seed)
    u = np.repeat(rng.uniform(-1, 1, size=(rows // 7 + 1, 2)), 7, axis=0)[:rows]
    s = np.zeros((rows, 3))
    for t in range(1, rows):
        s[t, 0] = 0.9 * s[t - 1, 0] + 0.4 * u[t - 1, 0]
        s[t, 1] = 0.93 * s[t - 1, 1] + 0.2 * s[t - 1, 0]
        s[t, 2] = 0.9 * s[t - 1, 2] + 0.3 * u[t - 1, 1] - 0.15 * s[t - 1, 1]
        s[t] += noise * rng.standard_normal(3)
    return Rows(("a", "b", "c"), (1, 1, 1), (1, 0, 1), np.hstack([s, u]))


def truth(steps=30):
    """What a step of a's input does to all three."""
    s = np.zeros((steps + 1, 3))
    for t in range(1, steps + 1):
        s[t] = 0.9 * s[t - 1, 0] + 0.4, 0.93 * s[t - 1, 1] + 0.2 * s[t - 1, 0], 0.9 * s[t - 1, 2] - 0.15 * s[t - 1, 1]
    return s[1:]


def error(rows):
    """1 - R² of b and c after a step of a's input."""
    network = learn(rows).network
    added = np.zeros((30, 2))
    added[:, 0] = 1.0
    found = at_rest(network).response(added).mean
    gap = (found - truth())[:, 1:]
    return float(np.square(gap).sum() / np.square(truth()[:, 1:]).sum())


def with_gaps(rows, missing):
    z = rows.z.copy()
    z[:, :3][missing] = np.nan
    return replace(rows, z=z)


def test_a_record_without_gaps_is_left_as_it_is():
    rows = simulated(300, 0)
    records, decays = impute_records(rows)
    assert records == (rows,)
    assert decays == {}


def test_draws_keep_what_was_read_and_differ_elsewhere():
    rows = simulated(400, 0)
    missing = np.random.default_rng(1).random((400, 3)) < 0.2
    records, _ = impute_records(with_gaps(rows, missing))
    assert len(records) > 1
    for record in records:
        np.testing.assert_array_equal(record.z[:, :3][~missing], rows.z[:, :3][~missing])
        assert np.isfinite(record.z).all()
    assert (records[0].z[:, :3][missing] != records[1].z[:, :3][missing]).all()
    gap = (records[0].z - rows.z)[:, :3][missing]
    assert gap.std() < 0.3 * rows.z[:, :3].std()  # near the truth, which nobody was told


def test_readings_lost_at_random_cost_hardly_anything():
    clean, dirty = [], []
    for seed in range(6):
        rows = simulated(600, seed)
        missing = np.random.default_rng(seed).random((600, 3)) < 0.05
        clean.append(error(rows))
        dirty.append(error(with_gaps(rows, missing)))
    assert np.mean(dirty) < 1.5 * np.mean(clean) + 1e-4


@pytest.mark.parametrize("every", [5, 8])
def test_a_channel_that_comes_seldom_is_learned(every):
    rows = simulated(1000, 2)
    missing = np.zeros((1000, 3), bool)
    missing[np.arange(1000) % every != 0, 1] = True
    dirty = with_gaps(rows, missing)
    _, decays = impute_records(dirty)
    assert set(decays) == {1}
    assert error(dirty) < 0.02


def test_a_channel_that_comes_at_odd_times_is_learned():
    rows = simulated(1500, 4)
    missing = np.zeros((1500, 3), bool)
    missing[:, 1] = np.random.default_rng(5).random(1500) > 0.15
    assert error(with_gaps(rows, missing)) < 0.03


def test_sums_of_a_slow_target_are_those_of_plain_loops():
    rows = simulated(300, 3)
    read = np.ones(rows.z.shape, bool)
    at = np.sort(np.random.default_rng(0).choice(300, 60, replace=False))
    read[:, 1] = False
    read[at, 1] = True
    record = replace(rows, given=read)
    products = block_moments_of(record)
    decay = 0.8
    slow, divided = products.slowly(record, 1, decay)
    z = (rows.z - products.level) / products.scale

    def features(t):
        means = [z[t - last : t - first + 1].mean(axis=0) for first, last in products.spans]
        recent = z[t - 2 : t].mean(axis=0)
        bent = recent[products.pairs[:, 0]] * recent[products.pairs[:, 1]]
        return np.concatenate([*means, (bent - products.pair_centre) / products.pair_size])

    total, logs, count = 0.0, 0.0, 0
    for before, now in pairwise(at):
        if before + 1 < products.memory:
            continue
        weights = decay ** np.arange(now - before)
        size = np.sqrt(np.square(weights).sum())
        brought = sum(w * np.append(features(now - j), 1.0) for j, w in enumerate(weights))
        left = z[now, 1] - decay ** (now - before) * z[before, 1]
        row = np.concatenate([brought[:-1], [left], brought[-1:]]) / size
        total, logs, count = total + np.outer(row, row), logs + np.log(size), count + 1
    every = np.ones(len(slow.blocks))
    np.testing.assert_allclose(slow.moments(every), total, rtol=1e-9, atol=1e-9)
    assert slow.count(every) == count
    assert divided == pytest.approx(logs)
    assert decays_of(record, products, None, {1: 0.92})[1] in (0.88, 0.92, 0.95)


def test_what_is_filled_in_is_near_what_was_there():
    rows = simulated(600, 5)
    network = learn(rows).network
    z = (rows.z - network.level) / network.scale
    gaps = z.copy()
    gaps[300:310, 1] = np.nan
    found = impute_mean(network, gaps)
    np.testing.assert_array_equal(found[:300], z[:300])
    assert np.abs(found[300:310, 1] - z[300:310, 1]).max() < 0.5
    one, two = (impute_mean(network, gaps, np.random.default_rng(k))[300:310, 1] for k in (0, 1))
    assert (one != two).all()


# ---- through the whole product


PLANT = cf.random_plant(units=["boiler", "turbine"], states=2, inputs=1, outputs=4, coupling=0.4, rng=3)


def recording(rows, seed, spoil):
    clean = PLANT.simulate(rows, rng=seed)
    arrays = {name: (clean[name].y.copy(), clean[name].u) for name in clean.names}
    spoil({name: y for name, (y, _) in arrays.items()})
    return cf.Recording.from_arrays(arrays, dt=1.0, units=PLANT.units)


def effect_error(found):
    given = found.effect("boiler", "turbine", [1.0], horizon=25).mean
    state, out = np.zeros(PLANT.A.shape[0]), []
    for _ in range(25):
        state = PLANT.A @ state + PLANT.B[:, 0]
        out.append(PLANT.C[4:] @ state)
    true = np.array(out)
    return np.square(given - true).sum() / np.square(true).sum()


def every_fifth_row(y):
    y["turbine"][np.arange(len(y["turbine"])) % 5 != 0] = np.nan


def one_channel_every_fifth_row(y):
    y["turbine"][np.arange(len(y["turbine"])) % 5 != 0, 3] = np.nan


def a_long_outage(y):
    y["boiler"][600:1000] = np.nan


def some_lost(y):
    rng = np.random.default_rng(0)
    for values in y.values():
        values[rng.random(values.shape) < 0.05] = np.nan


@pytest.mark.parametrize("spoil", [every_fifth_row, one_channel_every_fifth_row, a_long_outage, some_lost])
def test_fits_of_records_with_gaps_answer(spoil):
    found = cf.fit(recording(2000, 1, spoil))
    assert effect_error(found) < 0.06
    assert any(caveat.code == "readings-missing" for caveat in found.caveats)


def test_what_was_not_measured_is_estimated_and_its_doubt_is_told():
    spoiled = recording(1500, 2, every_fifth_row)
    clean = PLANT.simulate(1500, rng=2)
    found = cf.fit(spoiled)
    world = found.counterfactual(spoiled, add={"boiler": np.full((60, 1), 0.5)}, start=700, stop=760)["turbine"]
    missing = np.isnan(world.factual)
    assert missing.mean() == pytest.approx(0.8)
    assert np.isfinite(world.mean).all()
    assert np.isfinite(world.difference).all()
    np.testing.assert_array_equal(world.was[~missing], spoiled["turbine"].y[700:760][~missing])
    half = world.upper - world.mean
    assert half[missing].mean() > 2 * half[~missing].mean()
    gap = np.abs(world.was - clean["turbine"].y[700:760])[missing]
    assert (gap <= half[missing]).mean() > 0.85


@pytest.mark.parametrize("at", [0, 60, 300, 599])
def test_one_wild_reading_does_not_decide(at):
    rows = simulated(600, 3)
    z = rows.z.copy()
    z[at, 1] += 40 * z[:, 1].std()
    dirty = replace(rows, z=z)
    kept = drop_outliers(dirty)
    assert np.isfinite(drop_outliers(dirty, kept=rows.names).z).all()  # as they are
    if at >= 51:  # what comes before has nothing to be foretold from
        assert np.argwhere(np.isnan(kept.z)).tolist() == [[at, 1]]
        assert error(kept) < 2 * error(rows) + 1e-3


def test_nothing_is_wild_in_a_clean_record():
    for seed in range(5):
        rows = simulated(600, seed)
        assert np.isfinite(drop_outliers(rows).z).all()


def test_what_is_often_far_out_is_how_the_channel_moves():
    rows = simulated(600, 3)
    z = rows.z.copy()
    hits = np.random.default_rng(0).choice(np.arange(60, 600), 40, replace=False)
    z[hits, 1] += 40 * z[:, 1].std()
    assert np.isfinite(drop_outliers(replace(rows, z=z)).z).all()
