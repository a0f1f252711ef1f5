"""Learners side by side: ridge against closed forms, what each is worth, and logs on which the sparse one loses."""

from __future__ import annotations

import numpy as np
import plants
import pytest
from plants import baselines, product
from tolerances import ITERATIVE

import counterflow as cf
from counterflow.learning.block_moments import Rows, block_moments_of
from counterflow.learning.network_learning import learn
from counterflow.learning.ridge_learner import FREE, memory_of, ridge_weights
from counterflow.learning.worth import shared_out


def log_evidence(gram, cross, energy, rows, precision):
    """Of all targets, noise at its best: up to a constant, by determinants and solves of the whole matrix."""
    whole = gram + np.diag(precision)
    left = energy - np.einsum("nk,nk->k", cross, np.linalg.solve(whole, cross))
    determinant = np.linalg.slogdet(whole)[1] - np.log(precision).sum()
    return float(-0.5 * (rows * np.log(left).sum() + cross.shape[1] * determinant))


def regression(rows=400, seed=0):
    rng = np.random.default_rng(seed)
    F = rng.standard_normal((rows, 9)) @ np.diag([1, 1, 1, 2, 2, 2, 0.5, 0.5, 0.5])
    weights = rng.standard_normal((9, 2)) * np.repeat([1.0, 0.1, 0.0], 3)[:, None]
    y = F @ weights + [0.5, 2.0] * rng.standard_normal((rows, 2))
    return F.T @ F, F.T @ y, np.square(y).sum(axis=0), np.repeat([0, 1, 2], 3)


def test_ridge_is_the_posterior_mean_where_the_evidence_is_greatest():
    gram, cross, energy, group = regression()
    mean, variance, noise = ridge_weights(gram, cross, energy, 400, group)
    np.testing.assert_allclose(mean, np.linalg.solve(gram + np.diag(1 / variance), cross), rtol=ITERATIVE)
    np.testing.assert_allclose(noise, [0.25, 4.0], rtol=0.2)
    best = log_evidence(gram, cross, energy, 400, 1 / variance)
    for g in (0, 1):  # of what is there; the last group goes to nothing
        for factor in (0.5, 2.0):
            other = np.where(group == g, factor, 1.0)
            assert log_evidence(gram, cross, energy, 400, other / variance) < best
    assert variance[8] < 0.1 * variance[4] < 0.1 * variance[0]


@pytest.mark.parametrize(("lags", "least", "most"), [(1, 1, 1), (3, 3, 4)])
def test_the_memory_is_that_of_the_rows(lags, least, most):
    rng = np.random.default_rng(lags)
    z = rng.standard_normal((3000, 2))
    for t in range(lags, 3000):
        z[t, 0] += 0.6 * z[t - lags, 0] + 0.4 * z[t - lags, 1]
    products = block_moments_of(Rows(("a",), (1,), (1,), z), curved=False)
    assert least <= memory_of(products.moments(), products) <= most


def test_the_memorys_criterion_is_that_of_one_regression_after_another():
    rng = np.random.default_rng(5)
    z = rng.standard_normal((500, 3))
    z[2:, 0] += 0.5 * z[:-2, 2]
    products = block_moments_of(Rows(("a",), (2,), (1,), z), curved=False)
    sums, rows = products.moments(), products.count
    scores = []
    for spans in range(1, len(products.spans) + 1):
        k = 3 * spans
        gram = sums[:k, :k] + FREE * rows * np.eye(k)
        cross, energy = sums[:k, products.features :][:, :2], np.diag(sums)[products.features :][:2]
        left = energy - np.einsum("nk,nk->k", cross, np.linalg.solve(gram, cross))
        scores.append(rows * np.log(left).sum() + 2 * 2 * k * rows / (rows - k - 1))
    assert memory_of(sums, products) == 1 + int(np.argmin(scores))


def runs_of(*errors):
    """(n, L, L) of learners whose errors are ``errors`` (L, n)."""
    errors = np.array(errors)
    return np.einsum("in,jn->nij", errors, errors)


def test_members_go_to_whoever_errs_less_and_to_both_where_errors_differ():
    rng = np.random.default_rng(0)
    one, two = rng.standard_normal((2, 100))
    assert shared_out(runs_of(one, 3 * two), 16)[0] >= 13
    assert shared_out(runs_of(one, 0.1 * two), 16) == (0, 16)  # a hundred times less
    assert shared_out(runs_of(one, 0.9 * one), 16) == (4, 12)  # hardly less: the first keeps some
    half = shared_out(runs_of(one, two), 16)
    assert 4 <= half[0] <= 12
    assert shared_out(runs_of(one[:3], np.array([0.1, 0.1, 2.0]) * one[:3]), 16)[0] == 16  # chance


def test_what_learners_were_worth_is_told_and_kept(tmp_path):
    plant = cf.random_plant(["a", "b"], topology="dense", rng=3)
    fit = cf.fit(plant.simulate(1500, rng=1))
    assert sum(fit.learners.values()) == pytest.approx(1.0)
    assert fit.learners["sparse network"] < 1
    assert all(name in fit.summary() for name in fit.learners)
    fit.save(tmp_path / "fit")
    again = cf.load(tmp_path / "fit")
    assert again.learners == fit.learners
    assert again.graph().direct() == fit.graph().direct()
    assert cf.fit(plant.simulate(300, rng=1), plant.locals()).learners == {}


def test_ridge_keeps_to_the_couplings_that_there_can_be():
    plant = cf.random_plant(["a", "b", "c"], topology="dense", rng=3)
    fit = cf.fit(plant.simulate(1500, rng=1), edges=[("a", "b"), ("b", "c")])
    assert fit.learners["sparse network"] < 1
    assert not fit.effect("c", "a", {"u1": 1.0}, horizon=10).mean.any()
    assert fit.effect("a", "c", {"u1": 1.0}, horizon=10).mean.any()


def test_members_of_ridge_let_nothing_grow():
    rng = np.random.default_rng(2)
    z = np.zeros((800, 2))
    z[:, 1] = np.repeat(rng.standard_normal(80), 10)
    for t in range(2, 800):
        z[t, 0] = 1.6 * z[t - 1, 0] - 0.62 * z[t - 2, 0] + 0.1 * z[t - 1, 1]  # noise-free, and slow
    network = learn(Rows(("a",), (1,), (1,), z)).network
    ridge = np.array([name != "sparse network" for name in network.learners])
    assert ridge.any()
    runs = network.run(np.ones((network.memory, 2)), np.zeros((2000, 1)))[0]
    assert np.abs(runs[:, -1]).max() < 10


@pytest.mark.slow
@pytest.mark.parametrize(("way", "most"), [("noiseless", 1.2), ("few", 1.0)])
def test_logs_on_which_a_sparse_network_alone_loses_to_least_squares(way, most):
    """Beside pooled ARX, on a plant and a seed that nothing was chosen by; the sparse network alone has far more."""
    case = plants.case("exchangers", way, 1500, 7)
    mine, theirs = (plants.judge(case, by(case)) for by in (product.counterflow, baselines.arx))
    assert mine.error <= max(most * theirs.error, 0.01)
    assert mine.coverage > 0.8
