"""Sufficient messages against the centralized reference, statsmodels, dense Gaussians and plain differences."""

from __future__ import annotations

import numpy as np
import pytest
from equivalent_plants import permuted, transformed
from information_twins import shared_of
from tolerances import EXACT

import counterflow as cf
from counterflow.exchange.compression import sufficient_message
from counterflow.learning.information import settled_information
from counterflow.learning.likelihood import evaluate
from counterflow.learning.parameters import Parameters
from counterflow.protocol import decode, encode, encoded_size

EQUAL = 1e-6  # estimates of two fits to convergence, relative


def odd_plant() -> cf.Plant:
    """Rank-deficient C, fewer outputs than states, a unit without inputs, correlated noise, one state only."""
    units = [cf.Unit("boiler", 3, 2, 5), cf.Unit("turbine", 3, 1, 2), cf.Unit("tank", 1, 0, 3)]
    rng = np.random.default_rng(8)
    A = np.diag([0.5, 0.7, 0.3, 0.6, 0.4, 0.8, 0.9]) + 0.08 * rng.standard_normal((7, 7))
    C, R = np.zeros((10, 7)), np.eye(10)
    C[:5, :3] = rng.standard_normal((5, 2)) @ rng.standard_normal((2, 3))  # rank 2 of 3
    C[5:7, 3:6] = rng.standard_normal((2, 3))
    C[7:, 6:] = rng.standard_normal((3, 1))
    for rows in (slice(0, 5), slice(5, 7), slice(7, 10)):
        square = rng.standard_normal((rows.stop - rows.start, rows.stop - rows.start))
        R[rows, rows] = square @ square.T + np.eye(len(square))
    return cf.Plant(units=units, A=A, B=rng.standard_normal((7, 3)), C=C, Q=0.2 * np.eye(7), R=R)


def with_gaps(plant, recording, seed=0):
    """One unit away for a while, another with scattered missing rows."""
    rng = np.random.default_rng(seed)
    rows = {}
    for k, name in enumerate(plant.names):
        y = recording[name].y.copy()
        if k == 0:
            y[100:180] = np.nan
        if k == 1:
            y[rng.random(len(y)) < 0.05] = np.nan
        rows[name] = (y, recording[name].u)
    return cf.Recording.from_arrays(rows, units=plant.units)


def relative(one, two):
    return np.abs(one - two).max() / np.abs(two).max()


@pytest.mark.parametrize("estimate", ["couplings", "blocks", "all"])
def test_estimates_equal_the_centralized_ones(estimate):
    plant = cf.random_plant(units=3, outputs=5, rng=2)
    recording = plant.simulate(800, rng=3)
    one = cf.fit(recording, plant.locals(), estimate=estimate, tol=1e-7)
    two = cf.fit(recording, plant.locals(), method="centralized", estimate=estimate, tol=1e-7)
    for letter in "ABQ":
        assert relative(getattr(one.plant, letter), getattr(two.plant, letter)) < EQUAL


@pytest.mark.slow
def test_equality_with_rank_deficient_measurements_and_gaps():
    plant = odd_plant()
    recording = plant.simulate(600, rng=3)
    for data in (recording, with_gaps(plant, recording)):
        one = cf.fit(data, plant.locals(), uncertainty=False, tol=1e-6)
        two = cf.fit(data, plant.locals(), method="centralized", uncertainty=False, tol=1e-6)
        assert relative(one.plant.A, two.plant.A) < EQUAL
        assert relative(one.plant.B, two.plant.B) < EQUAL


@pytest.mark.parametrize("gaps", [False, True])
def test_the_gradient_is_that_of_the_likelihood(gaps):
    plant = odd_plant()
    recording = plant.simulate(120, rng=1)
    record = shared_of(plant, with_gaps(plant, plant.simulate(220, rng=1)) if gaps else recording)
    rng = np.random.default_rng(1)
    Q = plant.Q + 0.05 * np.eye(7)
    at = evaluate(record, plant.A, plant.B, Q)
    gradient = np.linalg.solve(Q, at.gap)
    step = 1e-5
    for _ in range(4):
        direction = rng.standard_normal(gradient.shape)
        d_A, d_B = step * direction[:, :7], step * direction[:, 7:]
        values = [record.filter(plant.A + s * d_A, plant.B + s * d_B, Q).log_likelihood for s in (1, -1)]
        assert np.vdot(gradient, direction) == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-5, abs=1e-4)
    process = Parameters(record, "all", np.linalg.cholesky(Q)).process
    assert np.allclose(process.covariance(np.zeros(process.size)), Q, rtol=EXACT)
    slope = process.gradient(np.zeros(process.size), at.Q, at.noise_moment - at.steps * at.Q)
    for k in range(process.size):
        shift = np.zeros(process.size)
        shift[k] = step
        noises = [process.covariance(s * shift) for s in (1, -1)]
        values = [record.filter(plant.A, plant.B, noise).log_likelihood for noise in noises]
        assert slope[k] == pytest.approx((values[0] - values[1]) / (2 * step), rel=1e-5, abs=1e-4)


def test_the_information_knows_the_process_noise():
    """The settled filter's information against differences of the gradient in every parameter."""
    plant = cf.random_plant(units=2, states=2, outputs=3, rng=3)
    record = shared_of(plant, plant.simulate(20_000, rng=4))
    parameters = Parameters(record, "all", np.linalg.cholesky(plant.Q))
    process, P, n = parameters.process, 4, parameters.coupling_size()
    vector = np.concatenate([parameters.pack(np.hstack([plant.A, plant.B])), np.zeros(process.size)])

    def gradient(x):
        coupling, Q = parameters.unpack(x[:n]), process.covariance(x[n:])
        at = evaluate(record, coupling[:, :P], coupling[:, P:], Q)
        noise = process.gradient(x[n:], Q, at.noise_moment - at.steps * Q)
        return np.concatenate([parameters.pack(np.linalg.solve(Q, at.gap)), noise])

    step = 1e-4 * np.eye(len(vector))
    curvature = -np.array([(gradient(vector + h) - gradient(vector - h)) / 2e-4 for h in step])
    directions = process.directions(vector[n:])
    expected = settled_information(record, parameters, plant.A, plant.B, plant.Q, directions)
    scale = np.sqrt(np.diag(expected))
    # observed and expected information differ by chance, of the order of 1/sqrt(T)
    assert np.abs((curvature - expected) / np.outer(scale, scale)).max() < 0.08
    assert np.abs((curvature - expected) / np.outer(scale, scale)).mean() < 0.01


def test_the_message_holds_what_it_should_and_nothing_else():
    plant = odd_plant()
    recording = plant.simulate(300, rng=1)
    sent = []
    cf.fit(recording, plant.locals(), watch=lambda m, up: sent.append((m, up)), over_the_wire=True, uncertainty=False)
    ups = [m for m, up in sent if up]
    assert [type(m).__name__ for m in ups] == ["Sufficient"] * 3
    for message in ups:
        model, y = plant.local(message.unit), recording[message.unit].y
        rank = np.linalg.matrix_rank(model.C)
        assert message.numbers.shape == (301, rank)
        assert np.linalg.matrix_rank(message.numbers) <= rank
        # white noise of unit size around C̃ h, so C̃ᵀC̃ is the information of one row
        assert np.allclose(message.observation.T @ message.observation, model.C.T @ np.linalg.solve(model.R, model.C))
        assert not any(np.shares_memory(getattr(message, f), y) for f in ("values", "observations", "inputs"))
        again = decode(encode(message))
        assert np.array_equal(again.values, message.values)


def test_fewer_bytes_than_one_published_round():
    plant = cf.random_plant(units=3, rng=1)
    recording = plant.simulate(500, rng=2)
    one = cf.fit(recording, plant.locals())
    published = cf.fit(recording, plant.locals(), method="penalty", rounds=1)
    assert one.traffic.rounds == 1
    assert one.traffic.bytes_up < published.traffic.bytes_up
    assert one.traffic.bytes_up == sum(
        encoded_size(sufficient_message(n, plant.local(n), recording[n].y, recording[n].u)) for n in plant.names
    )


def test_permuting_units_and_changing_bases_changes_no_answer():
    plant = cf.random_plant(units=["a", "b", "c"], rng=1)
    recording = plant.simulate(700, rng=2)
    base = cf.fit(recording, plant.locals(), tol=1e-8)
    answer = base.effect("a", "c", [1.0, -0.5], horizon=20)
    order = permuted(plant, ["c", "a", "b"])
    turned = transformed(plant, {n: np.array([[2.0, 0.3], [-0.5, 0.1]]) for n in plant.names})
    for other in (order, turned):
        data = cf.Recording.from_arrays({n: (recording[n].y, recording[n].u) for n in other.names}, units=other.units)
        found = cf.fit(data, other.locals(), tol=1e-8)
        again = found.effect("a", "c", [1.0, -0.5], horizon=20)
        scale = np.abs(answer.mean).max()
        assert np.abs(again.mean - answer.mean).max() < 1e-6 * scale
        assert np.abs(again.upper - answer.upper).max() < 1e-4 * scale
        assert found.log_likelihood == pytest.approx(base.log_likelihood, rel=1e-9)


def test_the_estimate_is_stable_even_from_few_rows():
    for seed in range(8):
        plant = cf.random_plant(units=3, rng=seed, spectral_radius=0.94)
        found = cf.fit(plant.simulate(40, rng=seed), plant.locals(), estimate="blocks", uncertainty=False)
        assert found.plant.is_stable
