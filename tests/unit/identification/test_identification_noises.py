"""Independent noises."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from subspace_oracle import likelihood, random_system, simulate

from counterflow.filtering import steady_state
from counterflow.identification import independent_noises
from counterflow.paper.subspace import subspace


def innovations(A, B, C, Q, R):
    steady = steady_state(A, C, Q, R)
    return SimpleNamespace(A=A, B=B, C=C, K=A @ steady.gain, innovation=steady.innovation_covariance)


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


@pytest.mark.parametrize("seed", range(3))
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
    score, best = (likelihood(model, y, u) for model in (two, fitted))
    assert score > best - 0.05
    # any gain, even an absurd one, gives noises that can be filtered with
    Q, R = independent_noises(A, C, 3 * rng.normal(size=(n, r)), np.eye(r))
    assert min(np.linalg.eigvalsh(Q)[0], np.linalg.eigvalsh(R)[0]) > 0
    steady_state(A, C, Q, R)


def test_noises_of_states_that_nothing_sees():
    Q, R = independent_noises(0.5 * np.eye(2), np.zeros((1, 2)), np.zeros((2, 1)), np.eye(1))
    assert min(np.linalg.eigvalsh(Q)[0], np.linalg.eigvalsh(R)[0]) > 0
