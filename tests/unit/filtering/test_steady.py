"""The steady state: a fixed point of the recursion, for decaying, lasting and growing modes, and clear refusals."""

from __future__ import annotations

import numpy as np
import pytest
from filter_twins import model
from scipy.linalg import solve_discrete_are, solve_discrete_lyapunov
from tolerances import ITERATIVE, LONG

from counterflow.errors import UnstableError
from counterflow.filtering import compress, steady_state
from counterflow.filtering.covariances import lyapunov


def step(X, A, C, Q, R):
    S = C @ X @ C.T + R
    K = np.linalg.solve(S, C @ X).T
    M = np.eye(len(A)) - K @ C
    filtered = M @ X @ M.T + K @ R @ K.T
    return A @ filtered @ A.T + Q, filtered, K, S


def _with_roots(*roots):
    def make(rng):
        m = model(rng, P=len(roots))
        basis = np.linalg.qr(rng.normal(size=(len(roots), len(roots))))[0]
        m.A = basis @ np.diag(roots) @ basis.T
        return m

    return make


MODELS = {
    "stable": model,
    "wide": lambda rng: model(rng, P=8, D=32),
    "unit root": _with_roots(1.0, 0.5, 0.1),
    "two unit roots": _with_roots(1.0, 1.0, 0.3),
    "near unit root": _with_roots(0.999999, 0.5, 0.1),
    "unstable": _with_roots(1.5, -1.2, 0.1),
    "rank one": lambda rng: model(rng, rank=1),
}


@pytest.mark.parametrize("name", MODELS)
def test_fixed_point(name):
    m = MODELS[name](np.random.default_rng(1))
    args = (m.A, m.C, m.Q, m.R)
    steady = steady_state(*args)
    X, filtered, K, S = step(steady.predicted_covariance, *args)
    scale = np.abs(X).max()
    np.testing.assert_allclose(steady.predicted_covariance, X, rtol=0, atol=LONG * scale)
    np.testing.assert_allclose(steady.filtered_covariance, filtered, rtol=0, atol=LONG * scale)
    np.testing.assert_allclose(steady.gain, K, rtol=0, atol=LONG * np.abs(K).max())
    np.testing.assert_allclose(steady.innovation_covariance, S, rtol=LONG, atol=LONG * np.abs(S).max())
    assert np.abs(np.linalg.eigvals(m.A - m.A @ K @ m.C)).max() < 1
    theirs = solve_discrete_are(m.A.T, m.C.T, m.Q, m.R)
    np.testing.assert_allclose(steady.predicted_covariance, theirs, rtol=0, atol=ITERATIVE * scale)


def test_weakly_excited_unit_root_matches_the_closed_form():
    one = np.eye(1)
    for q in (1e-4, 1e-8, 1e-12):
        exact = (q + np.sqrt(q * q + 4 * q)) / 2  # x^2 = q x + q
        X = steady_state(one, one, q * one, one).predicted_covariance[0, 0]
        np.testing.assert_allclose(X, exact, rtol=ITERATIVE)


def test_no_process_noise():
    one, none = np.eye(1), np.zeros((1, 1))
    stable = steady_state(0.5 * one, one, none, one)
    assert stable.predicted_covariance == 0
    assert stable.gain == 0
    slow = steady_state(0.999999 * one, one, none, one)
    assert abs(slow.predicted_covariance) < 1e-20
    unstable = steady_state(2 * one, one, none, one)  # x = 4 x / (1 + x): the stabilising root is 3, not 0
    np.testing.assert_allclose(unstable.predicted_covariance, 3.0, rtol=LONG)
    with pytest.raises(UnstableError, match="on the unit circle"):
        steady_state(one, one, none, one)


def test_refuses_what_is_not_detectable():
    with pytest.raises(UnstableError, match=r"eigenvalue 1\.1 does not decay and no measurement sees it"):
        steady_state(np.diag([1.1, 0.5]), np.array([[0.0, 1.0]]), np.eye(2), np.eye(1))
    steady = steady_state(np.diag([1.1, 0.5]), np.array([[1.0, 0.0]]), np.eye(2), np.eye(1))  # the other way round
    np.testing.assert_allclose(steady.predicted_covariance[1, 1], 4 / 3, rtol=LONG)


@pytest.mark.parametrize("radius", [0.0, 0.5, 0.99, 0.999999])
def test_stationary_covariance(radius):
    m = model(np.random.default_rng(2), P=5, radius=radius)
    X = lyapunov(m.A, m.Q)
    scale = np.abs(X).max()
    np.testing.assert_allclose(m.A @ X @ m.A.T + m.Q, X, rtol=0, atol=LONG * scale)
    np.testing.assert_allclose(X, solve_discrete_lyapunov(m.A, m.Q), rtol=0, atol=ITERATIVE * scale)


def test_compression_keeps_the_information_and_splits_orthogonally():
    rng = np.random.default_rng(3)
    for P, D, rank in ((3, 10, None), (3, 10, 2), (5, 2, None), (4, 4, 0)):
        m = model(rng, P=P, D=D, rank=rank)
        small = compress(m.C, m.R)
        assert len(small.observation) == (min(P, D) if rank is None else rank)
        information = m.C.T @ np.linalg.solve(m.R, m.C)
        scale = max(np.abs(information).max(), 1.0)
        np.testing.assert_allclose(small.observation.T @ small.observation, information, atol=LONG * scale)
        W = np.vstack([small.reach, small.rest])
        np.testing.assert_allclose(W @ m.R @ W.T, np.eye(D), atol=LONG)
        np.testing.assert_allclose(small.rest @ m.C, 0, atol=LONG * max(np.abs(m.C).max(), 1))


def test_rank_does_not_depend_on_the_units_of_the_states():
    C = np.random.default_rng(4).normal(size=(6, 3)) * [1e-12, 1.0, 1e12]
    assert len(compress(C, np.eye(6)).observation) == 3
