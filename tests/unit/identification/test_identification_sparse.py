"""Sparse regression against dense marginal likelihoods: of one step, and of every subset of a few features."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import numpy as np
import pytest
from scipy.optimize import minimize
from tolerances import ITERATES

from counterflow.identification.sparse import LEAST_NOISE, _evidence, _outside, refined_weights, sparse_weights

ROWS = 80


def problem(seed, weights=(1.5, 0.0, -0.8, 0.0, 0.0, 0.3), noise=0.5, rows=ROWS, alike=0.2):
    """Correlated features, a few of which count."""
    rng, n = np.random.default_rng(seed), len(weights)
    F = rng.standard_normal((rows, n)) @ (np.eye(n) + alike * rng.standard_normal((n, n)))
    return F, F @ np.array(weights) + noise * rng.standard_normal(rows)


def found_of(F, y, cost=4.0, further=None, source=None):
    n = F.shape[1]
    source = np.arange(n) if source is None else np.asarray(source)
    both = (cost, cost if further is None else further)
    first, further = (np.broadcast_to(np.asarray(c, float), n).copy() for c in both)
    return sparse_weights(F.T @ F, F.T @ y, float(y @ y), len(y), source, first, further)


def log_evidence(F, y, variance, noise):
    """Of y ~ N(0, noise I + F diag(variance) F'), by the dense covariance."""
    S = noise * np.eye(len(y)) + (F * variance) @ F.T
    return -0.5 * (np.linalg.slogdet(S)[1] + y @ np.linalg.solve(S, y) + len(y) * np.log(2 * np.pi))


def best_evidence(F, y):
    """The greatest log evidence over prior variances and noise, and what it is reached with."""

    def loss(logs):
        return -log_evidence(F, y, np.exp(logs[:-1]), np.exp(logs[-1]))

    start = np.r_[np.zeros(F.shape[1]), np.log(0.1 * y @ y / len(y))]
    done = minimize(loss, start, method="L-BFGS-B", bounds=[(-15, 15)] * len(start))
    return -done.fun, np.exp(done.x[:-1]), np.exp(done.x[-1])


@pytest.mark.parametrize("seed", range(5))
def test_one_step_is_that_of_the_dense_covariance(seed):
    """s and q of every weight, were it not among the chosen, and what its entry would add to the evidence."""
    F, y = problem(seed)
    inside, noise = np.array([4, 0]), 0.4
    variance = np.array([0.2, 3.0])
    gram = F.T @ F
    s, q, open_ = _outside(gram, F.T @ y, np.diag(gram).copy(), noise, inside, variance)
    assert open_[[1, 2, 3, 5]].all()
    for i in range(F.shape[1]):
        others = [k for k in range(2) if inside[k] != i]
        S = noise * np.eye(len(y)) + (F[:, inside[others]] * variance[others]) @ F[:, inside[others]].T
        assert s[i] == pytest.approx(
            F[:, i] @ np.linalg.solve(S, F[:, i]), rel=ITERATES
        )  # 1 - v s cancels for the chosen
        assert q[i] == pytest.approx(F[:, i] @ np.linalg.solve(S, y), rel=ITERATES)
        with_it = np.append(inside[others], i)
        for v in (0.1, 2.0):
            gained = log_evidence(F[:, with_it], y, np.append(variance[others], v), noise) - log_evidence(
                F[:, inside[others]], y, variance[others], noise
            )
            foreseen = _evidence(np.array([v]), s[i : i + 1], q[i : i + 1])[0]
            assert foreseen == pytest.approx(gained, rel=ITERATES, abs=ITERATES)


@cache
def evidence_of_subsets(seed):
    F, y = problem(seed)
    subsets = [subset for size in range(F.shape[1] + 1) for subset in combinations(range(F.shape[1]), size)]
    return {subset: best_evidence(F[:, subset], y)[0] for subset in subsets}


@pytest.mark.parametrize("cost", [1.0, 4.0])
@pytest.mark.parametrize("seed", range(5))
def test_no_subset_of_features_has_clearly_more_evidence(seed, cost):
    """Of features that are not too much alike: where two together mimic a third, single steps can end beside it."""
    F, y = problem(seed)
    scores = {subset: evidence - cost * len(subset) for subset, evidence in evidence_of_subsets(seed).items()}
    found = found_of(F, y, cost)
    mine = tuple(sorted(found.chosen.tolist()))
    best = max(scores, key=scores.get)
    # greedy steps, with a noise that is taken from what is left: a subset may win by a trifle, not by more
    assert scores[mine] > scores[best] - 0.3
    _, variance, noise = best_evidence(F[:, mine], y)
    inner = F[:, mine].T @ F[:, mine] / noise + np.diag(1 / variance)
    mean = np.linalg.solve(inner, F[:, mine].T @ y / noise)
    order = np.argsort(found.chosen)
    np.testing.assert_allclose(found.mean[order], mean, atol=0.02 * np.abs(mean).max())
    assert found.noise == pytest.approx(noise, rel=0.05)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_what_repeats_a_chosen_feature_never_joins_it(noise):
    F, y = problem(1, noise=noise)
    doubled = np.hstack([F, F, -3.0 * F, F[:, :1] + F[:, 2:3]])
    found = found_of(doubled, y, cost=1.0)
    assert np.linalg.matrix_rank(doubled[:, found.chosen]) == len(found.chosen)
    whole = np.zeros(doubled.shape[1])
    whole[found.chosen] = found.mean
    once = found_of(F, y, cost=1.0)
    alone = np.zeros(F.shape[1])
    alone[once.chosen] = once.mean
    np.testing.assert_allclose(doubled @ whole, F @ alone, atol=0.05 * np.abs(y).max())


def test_what_may_not_enter_never_does():
    F, y = problem(2, noise=0.0)
    cost = np.full(6, 1.0)
    cost[0] = np.inf  # the one that counts most
    found = found_of(F, y, cost)
    assert 0 not in found.chosen
    assert len(found_of(F, y, np.inf).chosen) == 0
    again = found_of(np.delete(F, 0, axis=1), y, 1.0)
    assert sorted(found.chosen - 1) == sorted(again.chosen)


def test_only_the_first_feature_of_a_source_pays_for_it():
    """Two faint features that each bring too little for a new source, but enough to go along with a strong one."""
    F, y = problem(3, weights=(2.0, 0.18, -0.18, 0.0), noise=0.5, rows=300)
    dear = found_of(F, y, 20.0)
    assert sorted(dear.chosen) == [0]
    together = found_of(F, y, 20.0, further=1.0, source=[0, 0, 0, 1])
    assert sorted(together.chosen) == [0, 1, 2]
    apart = found_of(F, y, 20.0, further=1.0, source=[0, 1, 2, 3])
    assert sorted(apart.chosen) == [0]


def test_a_target_without_noise_is_met_to_the_floor():
    F, y = problem(4, weights=(1.5, 0.0, -0.8, 0.0, 0.0, 0.01), noise=0.0)
    found = found_of(F, y)
    assert sorted(found.chosen) == [0, 2, 5]
    weights = np.zeros(6)
    weights[found.chosen] = found.mean
    np.testing.assert_allclose(weights, [1.5, 0, -0.8, 0, 0, 0.01], atol=1e-3)
    assert found.noise == pytest.approx(LEAST_NOISE * y @ y / len(y), rel=1e-6)


@pytest.mark.parametrize("size", [1e-8, 1e-3, 1e8])
def test_units_of_measure_do_not_matter(size):
    F, y = problem(5)
    plain = found_of(F, y)
    sizes = size ** np.linspace(0, 1, 6)
    scaled = found_of(F * sizes, y)
    assert scaled.chosen.tolist() == plain.chosen.tolist()
    np.testing.assert_allclose(scaled.mean * sizes[plain.chosen], plain.mean, rtol=ITERATES)
    other = found_of(F, y * size)
    assert other.chosen.tolist() == plain.chosen.tolist()
    np.testing.assert_allclose(other.mean / size, plain.mean, rtol=ITERATES)
    assert other.noise / size**2 == pytest.approx(plain.noise, rel=ITERATES)


@pytest.mark.parametrize(("feature", "target"), [(0.0, 1.0), (1.0, 0.0), (0.0, 0.0)])
def test_nothing_to_learn_from_gives_no_weights(feature, target):
    found = found_of(np.full((9, 2), feature), np.full(9, target))
    assert len(found.chosen) == len(found.mean) == 0
    assert found.noise > 0


def test_a_feature_that_never_moves_does_no_harm_beside_others():
    F, y = problem(6)
    still = found_of(np.insert(F, 3, 0.0, axis=1), y)
    assert sorted(np.where(still.chosen > 3, still.chosen - 1, still.chosen)) == sorted(found_of(F, y).chosen)
    assert 3 not in still.chosen


def test_pure_noise_gives_no_weights():
    rng = np.random.default_rng(0)
    chosen = [len(found_of(rng.standard_normal((200, 40)), rng.standard_normal(200), 6.0).chosen) for _ in range(20)]
    assert sum(chosen) <= 2  # a feature of noise gains 6 nats in about 1 of 2,000


# ---- the same features, other sums


def refined(F, y, variance, noise, times=1):
    """Weights of all features of F, from where they stand."""
    for _ in range(times):
        mean, variance, noise = refined_weights(F.T @ F, F.T @ y, y @ y, len(y), variance, noise)
    return mean, variance, noise


@pytest.mark.parametrize("seed", range(4))
def test_refined_weights_reach_the_best_evidence_of_their_features(seed):
    """From a start far off, and from where fewer rows have led."""
    F, y = problem(seed)
    some = [0, 2, 5]
    best, _, noise = best_evidence(F[:, some], y)
    few = found_of(F[:30][:, some], y[:30], cost=0.0)
    start = np.full(3, 1.0)
    start[few.chosen] = few.variance
    for begin, level in ((np.ones(3), 10.0), (start, few.noise)):
        mean, found, left = refined(F[:, some], y, begin, level, times=20)
        assert log_evidence(F[:, some], y, found, left) == pytest.approx(best, abs=0.05)
        inner = F[:, some].T @ F[:, some] / left + np.diag(1 / found)
        np.testing.assert_allclose(mean, np.linalg.solve(inner, F[:, some].T @ y / left), rtol=ITERATES)
        assert left == pytest.approx(noise, rel=0.1)  # of as many rows as the weights do not use up


def test_what_was_found_stays_where_it_is():
    F, y = problem(0)
    found = found_of(F, y)
    mean, _, noise = refined(F[:, found.chosen], y, found.variance, found.noise)
    np.testing.assert_allclose(mean, found.mean, rtol=0.01)
    assert noise == pytest.approx(found.noise, rel=0.01)


def test_without_features_all_energy_is_noise():
    mean, variance, noise = refined_weights(np.zeros((0, 0)), np.zeros(0), 3.0, ROWS, np.zeros(0), 0.5)
    assert not len(mean)
    assert not len(variance)
    assert noise == pytest.approx(3.0 / ROWS)
