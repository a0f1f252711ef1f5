"""Fits with models of records with gaps: every reading counts, none is invented, and standard errors know of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from information_twins import (
    dense_information,
    dense_posterior,
    differenced_information,
    plain_information,
    pooled,
    shared_of,
)
from tolerances import ITERATIVE, LONG, STANDARD_ERRORS

import counterflow as cf
from counterflow.exchange.compression import sufficient_message
from counterflow.filtering import smoothed_states
from counterflow.learning import sensitivities
from counterflow.learning.optimiser import maximum_likelihood
from counterflow.learning.parameters import Parameters
from counterflow.learning.sensitivities import varying_information
from counterflow.learning.uncertainty import affordable, uncertainty
from counterflow.protocol import decode, encode, encoded_size


def lost_at_random(ys, rng):
    for y in ys.values():
        y[rng.random(y.shape) < 0.15] = np.nan


def slow_channels(ys, rng):
    """All but one channel of every unit come every fifth row."""
    for y in ys.values():
        y[np.arange(len(y)) % 5 > 0, 1:] = np.nan


def slow_unit(ys, rng):
    y = next(iter(ys.values()))
    y[np.arange(len(y)) % 5 > 0] = np.nan


def outage(ys, rng):
    y = next(iter(ys.values()))
    y[len(y) // 4 : len(y) // 2] = np.nan


def nothing_at_all(ys, rng):
    """Rows in which nobody says anything, and rows in which everybody says little."""
    for y in ys.values():
        y[3:6] = np.nan
        y[-1] = np.nan
        y[8, 1:] = np.nan


def dead_channel(ys, rng):
    next(iter(ys.values()))[:, 0] = np.nan


KINDS = {
    f.__name__: f for f in (lost_at_random, slow_channels, slow_unit, outage, nothing_at_all, dead_channel)
}  # fmt: skip


def with_gaps(plant, recording, kind, seed=0):
    ys = {n: recording[n].y.copy() for n in plant.names}
    KINDS[kind](ys, np.random.default_rng(seed))
    return cf.Recording.from_arrays({n: (ys[n], recording[n].u) for n in plant.names}, units=plant.units)


def plant_of(units=2, outputs=3, rng=3):
    """With measurement noise that is correlated, so that a lost channel says something of the others' noise."""
    plant = cf.random_plant(units=units, outputs=outputs, rng=rng)
    draw = np.random.default_rng(8)
    R = np.zeros_like(plant.R)
    for n in plant.names:
        own = plant.output_slice(n)
        square = draw.standard_normal((outputs, outputs))
        R[own, own] = 0.3 * square @ square.T + np.eye(outputs)
    return plant.replace(R=R)


@pytest.mark.parametrize("steps", [1, 40])
@pytest.mark.parametrize("units", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_likelihood_and_states_are_those_of_the_dense_gaussian(kind, units, steps):
    """Of the numbers that were sent; and, but for a constant, of all raw readings that there are."""
    plant = plant_of(units)
    recording = with_gaps(plant, plant.simulate(steps, rng=2), kind) if steps > 10 else plant.simulate(steps, rng=2)
    if steps < 10:
        ys = {n: recording[n].y.copy() for n in plant.names}
        ys[plant.names[0]][0, 1:] = np.nan
        ys[plant.names[-1]][1] = np.nan
        recording = cf.Recording.from_arrays({n: (ys[n], recording[n].u) for n in plant.names}, units=plant.units)
    small, large = shared_of(plant, recording), pooled(plant, recording)
    np.testing.assert_allclose(small.prior, large.prior, rtol=LONG)
    gaps = []
    for k in range(3):
        A, B = plant.A * (1 - 0.1 * k), plant.B * (1 + 0.2 * k)
        value, states = dense_posterior(small, A, B, plant.Q)
        raw, of_raw = dense_posterior(large, A, B, plant.Q)
        found = small.filter(A, B, plant.Q)
        assert found.log_likelihood == pytest.approx(value, rel=LONG)
        assert large.filter(A, B, plant.Q).log_likelihood == pytest.approx(raw, rel=LONG)
        gaps.append(raw - value)
        scale = np.abs(states).max()
        np.testing.assert_allclose(of_raw, states, rtol=0, atol=LONG * scale)
        np.testing.assert_allclose(smoothed_states(found, A), states, rtol=0, atol=LONG * scale)
    assert np.ptp(gaps) <= ITERATIVE * np.abs(gaps).max() + LONG


@pytest.mark.parametrize("kind", ["lost_at_random", "slow_channels", "slow_unit"])
def test_estimates_are_the_centralized_ones(kind):
    plant = plant_of(3)
    recording = with_gaps(plant, plant.simulate(600, rng=3), kind)
    one = cf.fit(recording, plant.locals(), tol=1e-7)
    two = cf.fit(recording, plant.locals(), method="centralized", tol=1e-7)
    for letter in "AB":
        first, second = getattr(one.plant, letter), getattr(two.plant, letter)
        assert np.abs(first - second).max() < 1e-6 * np.abs(second).max()
        errors = getattr(one.standard_errors, letter), getattr(two.standard_errors, letter)
        np.testing.assert_allclose(*errors, rtol=1e-5, atol=1e-12)


@pytest.mark.parametrize("estimate", ["couplings", "all"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_information_is_that_of_a_filter_that_is_differenced(kind, estimate, monkeypatch):
    """Row by row, where all rows are summed; a record in several pieces is off by what the closed loop remembers."""
    plant = plant_of()
    record = shared_of(plant, with_gaps(plant, plant.simulate(120, rng=1), kind))
    parameters = Parameters(record, estimate, np.linalg.cholesky(plant.Q))
    expected = plain_information(record, parameters, plant.A, plant.B, plant.Q)
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    monkeypatch.setattr(sensitivities, "EVERY", 1)
    monkeypatch.setattr(sensitivities, "MOST_PIECES", 1)
    found = varying_information(record, parameters, plant.A, plant.B, plant.Q)
    assert (np.abs(found - expected) / scale).max() < 1e-6
    monkeypatch.setattr(sensitivities, "MOST_PIECES", 5)
    found = varying_information(record, parameters, plant.A, plant.B, plant.Q)
    assert (np.abs(found - expected) / scale).max() < 3e-3


@pytest.mark.parametrize("kind", ["lost_at_random", "slow_channels", "slow_unit", "outage"])
def test_standard_errors_are_the_curvature_of_the_likelihood(kind):
    """Differences of the exact gradient at the top: observed information, another road altogether."""
    plant = plant_of(outputs=4)
    record = shared_of(plant, with_gaps(plant, plant.simulate(6000, rng=4), kind))
    found = maximum_likelihood(record)
    assert found.converged
    assert affordable(record, found.parameters)
    observed = np.linalg.inv(differenced_information(record, found.parameters, found.A, found.B, found.Q))
    spread = uncertainty(record, found)
    ratio = np.sqrt(np.diag(spread.covariance) / np.diag(observed))
    assert np.abs(ratio - 1).max() < 0.02


@pytest.mark.parametrize("kind", ["lost_at_random"])
def test_the_information_is_on_average_that_of_the_dense_gaussian(kind):
    """dmᵀ S⁻¹ dm + ½ tr(S⁻¹ dS S⁻¹ dS) of the whole record, in which nothing is known of a filter."""
    plant = plant_of(outputs=2)
    records = [shared_of(plant, with_gaps(plant, plant.simulate(30, rng=7), kind))]
    inputs = {n: plant.simulate(30, rng=7)[n].u for n in plant.names}
    for seed in range(150):
        recording = with_gaps(plant, plant.simulate(30, rng=100 + seed, inputs=inputs), kind)
        drawn = shared_of(plant, recording)
        start = np.random.default_rng(seed).multivariate_normal(np.zeros(4), records[0].prior)
        records.append(_with_state(drawn, plant, start, records[0].prior))
    parameters = Parameters(records[0], "couplings", np.eye(4))
    expected = dense_information(records[0], parameters, plant.A, plant.B, plant.Q)
    each = np.array([varying_information(r, parameters, plant.A, plant.B, plant.Q) for r in records[1:]])
    diagonal = np.array([np.diag(one) for one in each])
    error = diagonal.std(axis=0, ddof=1) / np.sqrt(len(diagonal))
    assert (np.abs(diagonal.mean(axis=0) - np.diag(expected)) < STANDARD_ERRORS * error + 1e-6).all()


def _with_state(record, plant, start, prior):
    """The same record as if its first state had been ``start``: what that moves is added to the numbers."""
    moved, states = [], start
    for t in range(len(record.values)):
        sight = record.sight if record.sight.ndim == 2 else record.sight[t]
        moved.append(sight @ states)
        states = plant.A @ states
    return replace(record, values=record.values + np.array(moved), initial_covariance=prior)


def test_a_channel_that_comes_every_fifth_row_helps():
    plant = plant_of(outputs=4)
    recording = plant.simulate(3000, rng=5)
    slow = np.arange(3001) % 5 > 0

    def fit(change):
        ys = {n: recording[n].y.copy() for n in plant.names}
        for y in ys.values():
            change(y)
        rows = {n: (ys[n], recording[n].u) for n in plant.names}
        return cf.fit(cf.Recording.from_arrays(rows, units=plant.units), plant.locals())

    def without(y):
        y[:, 2:] = np.nan

    def every_fifth(y):
        y[slow, 2:] = np.nan

    none, some, all_rows = fit(without), fit(every_fifth), fit(lambda y: None)
    for letter in "AB":
        free = getattr(none.standard_errors, letter) > 0
        worst, middle, best = (getattr(f.standard_errors, letter)[free] for f in (none, some, all_rows))
        assert (middle < worst).all()
        assert (best < middle).all()


def test_a_lost_reading_costs_that_reading_only():
    """20 plants: 5 % of the readings lost at random cost at most 10 % more error of the couplings on average."""
    whole, lost = [], []
    for seed in range(20):
        plant = cf.random_plant(units=2, rng=seed)
        recording = plant.simulate(1000, rng=100 + seed)
        rng = np.random.default_rng(seed)
        rows = {}
        for n in plant.names:
            y = recording[n].y.copy()
            y[rng.random(y.shape) < 0.05] = np.nan
            rows[n] = (y, recording[n].u)
        for out, data in ((whole, recording), (lost, cf.Recording.from_arrays(rows, units=plant.units))):
            found = cf.fit(data, plant.locals(), uncertainty=False)
            gap = np.hstack([found.plant.A - plant.A, found.plant.B - plant.B])
            out.append(np.linalg.norm(gap))
    assert np.mean(lost) <= 1.10 * np.mean(whole)


def test_messages_stay_small():
    """A tenth more bytes for losses at random among 8 channels, a few more for a channel every fifth row."""
    plant = cf.random_plant(units=1, outputs=8, rng=1)
    name, recording = plant.names[0], plant.simulate(5000, rng=2)
    model, y, u = plant.local(name), recording[name].y, recording[name].u
    whole = encoded_size(sufficient_message(name, model, y, u))
    random, slow = y.copy(), y.copy()
    random[np.random.default_rng(0).random(y.shape) < 0.05] = np.nan
    slow[np.arange(len(y)) % 5 > 0, 3] = np.nan
    lost, every_fifth = (sufficient_message(name, model, each, u) for each in (random, slow))
    assert len(lost.ranks) > 20
    assert encoded_size(lost) < 1.06 * whole
    assert len(every_fifth.ranks) == 2
    assert encoded_size(every_fifth) < 1.04 * whole
    again = decode(encode(lost))
    assert np.array_equal(again.numbers, lost.numbers, equal_nan=True)


def test_a_message_says_of_each_row_what_its_channels_say():
    """s and C̃ of a row are those of its own channels: C̃ᵀC̃ = C_oᵀ R_oo⁻¹ C_o and C̃ᵀs = C_oᵀ R_oo⁻¹ y_o."""
    plant = plant_of(1, outputs=4)
    name = plant.names[0]
    recording = with_gaps(plant, plant.simulate(60, rng=2), "lost_at_random")
    model, y = plant.local(name), recording[name].y.copy()
    y[7] = np.nan
    message = sufficient_message(name, model, y, recording[name].u)
    for t in range(61):
        there = np.isfinite(y[t])
        C, R = model.C[there], model.R[np.ix_(there, there)]
        rank = int(message.ranks[message.labels[t]])
        sight, s = message.patterns[message.labels[t]][:rank], message.numbers[t, :rank]
        np.testing.assert_allclose(sight.T @ sight, C.T @ np.linalg.solve(R, C), atol=1e-12)
        np.testing.assert_allclose(sight.T @ s, C.T @ np.linalg.solve(R, y[t, there]), atol=1e-10)
        assert rank == min(2, there.sum())


def test_questions_about_the_past_use_what_was_measured():
    """The server's states are those of the dense Gaussian; where a channel was not measured, it is what they say."""
    plant = plant_of(outputs=4)
    recording = with_gaps(plant, plant.simulate(80, rng=2), "slow_channels")
    found = cf.fit(plant.simulate(2000, rng=3), plant.locals())
    about = found.about(recording)
    _, states = dense_posterior(about.shared, found.plant.A, found.plant.B, found.plant.Q)
    np.testing.assert_allclose(about.grounded.states[0], states, rtol=0, atol=LONG * np.abs(states).max())
    one, two = plant.names
    answer = found.counterfactual(recording, add={one: {"u1": 0.5}}, start=20, stop=40)[two]
    effect = found.effect(one, two, {"u1": 0.5}, horizon=20, duration=20)
    measured = recording[two].y[20:40]
    here = np.isfinite(measured[1:])
    np.testing.assert_allclose((answer.mean - measured)[1:][here], effect.mean[:-1][here], atol=1e-9)
    np.testing.assert_array_equal(answer.factual, measured)
    assert np.isfinite(answer.mean).all()  # where nothing was measured, it is estimated
    estimate = found.parts[two].at_level(states[20:40, found.plant.state_slice(two)] @ found.parts[two].model.C.T)
    np.testing.assert_allclose(answer.was[np.isnan(measured)], estimate[np.isnan(measured)], atol=1e-8)


@pytest.mark.parametrize("kind", ["lost_at_random", "slow_channels", "slow_unit", "outage"])
def test_a_healthy_plant_with_gaps_passes_its_checks_and_a_wrong_model_does_not(kind):
    plant = cf.random_plant(units=["a", "b"], rng=5)
    recording = with_gaps(plant, plant.simulate(3000, rng=6), kind)
    assert cf.fit(recording, plant.locals()).check().verdict == "pass"
    wrong = {n: cf.LocalModel(A=0.6 * m.A, B=m.B, C=m.C, Q=m.Q, R=m.R) for n, m in plant.locals().items()}
    assert cf.fit(recording, wrong).check().verdict == "fail"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("units", [1, 2])
@pytest.mark.parametrize("steps", [1, 2, 5, 33, 70])
@pytest.mark.parametrize(
    "lose",
    [
        lambda ys: [y.__setitem__(np.random.default_rng(1).random(y.shape) < 0.3, np.nan) for y in ys],
        lambda ys: ys[0].fill(np.nan),
        lambda ys: [y.fill(np.nan) for y in ys],
        lambda ys: [y[1:].fill(np.nan) for y in ys],
        lambda ys: [y[:, 1:].fill(np.nan) for y in ys],
    ],
    ids=["at random", "a unit", "everything", "all but a row", "all but a channel"],
)
def test_however_little_there_is_a_fit_ends(lose, steps, units):
    plant = cf.random_plant(units=units, outputs=3, rng=1)
    recording = plant.simulate(steps, rng=2)
    ys = [recording[n].y.copy() for n in plant.names]
    lose(ys)
    rows = {n: (y, recording[n].u) for n, y in zip(plant.names, ys, strict=True)}
    gappy = cf.Recording.from_arrays(rows, units=plant.units)
    found = cf.fit(gappy, plant.locals(), uncertainty=True)
    assert np.isfinite(found.plant.A).all()
    found.check()
    assert np.isfinite(found.forecast(gappy, 3)[plant.names[0]].mean).all()
