"""The number of states, and independent noises."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from subspace_oracle import random_system, simulate
from tolerances import EXACT

from counterflow.errors import DataError, ModelError, OptionError, UnstableError
from counterflow.filtering import steady_state
from counterflow.identification import (
    choose_order,
    held_out_log_likelihood,
    independent_noises,
    order_from_singular_values,
    subspace,
    subspaces,
)


def innovations(A, B, C, Q, R):
    steady = steady_state(A, C, Q, R)
    return SimpleNamespace(A=A, B=B, C=C, K=A @ steady.gain, innovation=steady.innovation_covariance)


def test_criterion_counts_what_stands_out():
    assert order_from_singular_values([0.9, 0.8, 0.7, 0.05, 0.04], rows=5000) == 3
    assert order_from_singular_values([0.03, 0.02], rows=1000) == 0
    assert order_from_singular_values(np.ones(8), rows=1200, outputs=16, inputs=4) == 8
    assert order_from_singular_values(np.ones(8), rows=1200, largest=5) == 5
    # a weaker one is worth its price only with more rows
    assert [order_from_singular_values([0.9, 0.1], rows, outputs=2) for rows in (1000, 10_000)] == [1, 2]


def test_likelihood_is_that_of_a_plain_loop_over_each_stretch():
    rng = np.random.default_rng(1)
    A, B, C = random_system(rng, 3, 2, 1)
    model = innovations(A, B, C, 0.3 * np.eye(3), np.eye(2))
    y, u = simulate(rng, A, B, C, 200)
    y[90] = np.nan
    found = held_out_log_likelihood(model, y, u, warm_up=5)
    expected = []
    for start, stop in ((0, 90), (91, 200)):
        x = np.zeros(3)
        for t in range(start, stop):
            e = y[t] - C @ x
            if t >= start + 5:
                S = model.innovation
                expected.append(-0.5 * (e @ np.linalg.solve(S, e) + np.log(np.linalg.det(2 * np.pi * S))))
            x = A @ x + B @ u[t] + model.K @ e
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert held_out_log_likelihood(model, y, u, warm_up=5).mean() == pytest.approx(np.mean(expected), rel=1e-9)


def test_held_out_choice_is_the_smallest_within_one_paired_standard_error():
    rng = np.random.default_rng(3)
    y, u = simulate(rng, *random_system(rng, 3, 3, 1), 3000)
    models = subspaces(y[:1500], u[:1500], [6, 1, 3, 2], past=5)
    choice = choose_order(models, y[1500:], u[1500:])
    rows = np.stack([held_out_log_likelihood(m, y[1500:], u[1500:], warm_up=5) for m in models])
    np.testing.assert_allclose(choice.scores, rows.mean(axis=1), rtol=EXACT)
    best = rows.mean(axis=1).argmax()
    blocks = np.stack([part.mean(axis=1) for part in np.array_split(rows[best] - rows, 30, axis=1)])
    errors = blocks.std(axis=0, ddof=1) / np.sqrt(30)
    allowed = [m.order for m, lag, error in zip(models, choice.lag, errors, strict=True) if lag <= error]
    assert choice.order == min(allowed) == models[choice.index].order
    assert choice.rows == rows.shape[1] == 1495


def test_order_is_right_in_most_cases():
    by_values, by_holding_out = [], []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        y, u = simulate(rng, *random_system(rng, 4, 6, 2), 3000, process=0.5)
        by_values.append(subspace(y, u).order)
        by_holding_out.append(choose_order(subspaces(y[:2000], u[:2000], range(1, 9)), y[2000:], u[2000:]).order)
    assert by_values.count(4) >= 18
    assert by_holding_out.count(4) >= 16
    assert max(by_holding_out) <= 6


def test_pure_noise_gets_the_smallest_model():
    rng = np.random.default_rng(0)
    y, u = rng.normal(size=(2000, 3)), rng.normal(size=(2000, 2))
    assert subspace(y, u).order == 1
    assert choose_order(subspaces(y[:1000], u[:1000], range(1, 6), past=4), y[1000:], u[1000:]).order == 1


@pytest.mark.parametrize(
    ("n", "r", "q", "scale"), [(1, 1, 0.1, 1.0), (3, 2, 1.0, 1e6), (4, 6, 0.1, 1e-6), (8, 16, 0.01, 1.0)]
)
def test_noises_of_a_model_that_has_independent_ones(n, r, q, scale):
    rng = np.random.default_rng(n)
    A, B, C = random_system(rng, n, r, 1)
    C = scale * C
    model = innovations(A, B, C, q * np.eye(n), scale**2 * np.diag(rng.uniform(0.5, 2.0, r)))
    Q, R = independent_noises(A, C, model.K, model.innovation)
    found = innovations(A, B, C, Q, R)
    assert np.linalg.norm(found.K - model.K) < 1e-3 * np.linalg.norm(model.K)
    assert np.linalg.norm(found.innovation - model.innovation) < 1e-4 * np.linalg.norm(model.innovation)


@pytest.mark.parametrize("seed", range(6))
def test_noises_are_positive_and_predict_nearly_as_well_whatever_the_gain(seed):
    rng = np.random.default_rng(seed)
    n, r = int(rng.integers(1, 7)), int(rng.integers(1, 5))
    A, B, C = random_system(rng, n, r, 1)
    y, u = simulate(rng, A, B, C, 1500)
    fitted = subspace(y, u, n, past=5)
    Q, R = independent_noises(fitted.A, fitted.C, fitted.K, fitted.innovation)
    assert np.linalg.eigvalsh(Q)[0] > 0
    assert np.linalg.eigvalsh(R)[0] > 0
    assert np.array_equal(Q, Q.T)
    assert np.array_equal(R, R.T)
    two = innovations(fitted.A, fitted.B, fitted.C, Q, R)
    score, best = (held_out_log_likelihood(model, y, u, warm_up=10).mean() for model in (two, fitted))
    assert score > best - 0.05
    # any gain, even an absurd one, gives noises that can be filtered with
    Q, R = independent_noises(A, C, 3 * rng.normal(size=(n, r)), np.eye(r))
    assert min(np.linalg.eigvalsh(Q)[0], np.linalg.eigvalsh(R)[0]) > 0
    steady_state(A, C, Q, R)


def test_noises_of_many_states_and_of_none_that_is_seen():
    rng = np.random.default_rng(0)
    A, B, C = random_system(rng, 60, 3, 1)
    model = innovations(A, B, C, 0.1 * np.eye(60), np.eye(3))
    Q, R = independent_noises(A, C, model.K, model.innovation)
    assert min(np.linalg.eigvalsh(Q)[0], np.linalg.eigvalsh(R)[0]) > 0
    Q, R = independent_noises(0.5 * np.eye(2), np.zeros((1, 2)), np.zeros((2, 1)), np.eye(1))
    assert min(np.linalg.eigvalsh(Q)[0], np.linalg.eigvalsh(R)[0]) > 0


def test_refusals():
    rng = np.random.default_rng(0)
    y, u = simulate(rng, *random_system(rng, 2, 2, 1), 300)
    model = subspace(y, u, 2, past=4)
    with pytest.raises(DataError, match="longer than the warm-up"):
        held_out_log_likelihood(model, y[:4], u[:4])
    with pytest.raises(DataError, match="2 outputs and 1 inputs"):
        held_out_log_likelihood(model, y[:, :1], u)
    with pytest.raises(DataError, match="hold out more"):
        choose_order([model], y[:7], u[:7])
    with pytest.raises(OptionError, match="models is empty"):
        choose_order([], y, u)
    with pytest.raises(OptionError, match="orders is empty"):
        subspaces(y, u, [])
    with pytest.raises(UnstableError, match=r"spectral radius is 1\.1"):
        independent_noises([[1.1]], [[1.0]], [[1.0]], [[1.0]])
    with pytest.raises(ModelError, match="positive definite"):
        independent_noises(0.5 * np.eye(2), np.eye(2), np.eye(2), [[1.0, 2.0], [2.0, 1.0]])
