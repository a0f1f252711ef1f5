"""Rows that each see the state in their own way, many at a time: against the same recursion one row after the other."""

from __future__ import annotations

import numpy as np
import pytest
from filter_twins import covariances
from tolerances import EXACT, LONG

from counterflow.filtering import kalman_filter, rts_smoother
from counterflow.filtering.time_varying import conditioned


def rows(rng, n, P, r, kind):
    """C~ (n, r, P), A and Q; of some kinds nothing is forgotten for long."""
    A = rng.normal(size=(P, P))
    A *= {"usual": 0.9, "slow": 0.9999, "unit root": 1.0}.get(kind, 0.9) / np.abs(np.linalg.eigvals(A)).max()
    C = rng.normal(size=(n, r, P))
    if kind in ("slow", "unit root"):
        C[np.arange(n) % 97 > 0] = 0.0
    if kind == "nothing":
        C[:] = 0.0
    Q = 0.1 * np.eye(P)
    if kind == "no Q":
        Q = np.zeros((P, P))
    return C, A, Q


def loop(C, s, f, A, Q, mean, X):
    """Textbook filter: predicted and filtered means and covariances, and the log-likelihood."""
    found = {name: [] for name in ("p", "X", "x", "V")}
    value = 0.0
    for t in range(len(C)):
        S = C[t] @ X @ C[t].T + np.eye(C.shape[1])
        K = np.linalg.solve(S, C[t] @ X).T
        e = s[t] - C[t] @ mean
        value -= 0.5 * (e @ np.linalg.solve(S, e) + np.linalg.slogdet(S)[1])
        E = np.eye(len(A)) - K @ C[t]
        x, V = mean + K @ e, E @ X @ E.T + K @ K.T
        for name, one in zip(found, (mean, X, x, V), strict=True):
            found[name].append(one)
        mean, X = A @ x + f[t], A @ V @ A.T + Q
    return {name: np.array(all_of_it) for name, all_of_it in found.items()}, value


def backward(found, A):
    """Textbook smoother: means and covariances."""
    smoothed, covariance = found["x"].copy(), found["V"].copy()
    for t in range(len(smoothed) - 2, -1, -1):
        J = np.linalg.solve(found["X"][t + 1], A @ found["V"][t]).T
        smoothed[t] += J @ (smoothed[t + 1] - found["p"][t + 1])
        covariance[t] += J @ (covariance[t + 1] - found["X"][t + 1]) @ J.T
    return smoothed, covariance


@pytest.mark.parametrize("kind", ["usual", "slow", "unit root", "nothing", "no Q"])
@pytest.mark.parametrize("n", [1, 20, 97, 333, 2500])
def test_a_filter_whose_C_changes_is_that_of_a_plain_loop(n, kind):
    """Some stretches are long and alike, so that rows of all kinds follow each other."""
    rng = np.random.default_rng(n)
    C, A, Q = rows(rng, n, 3, 2, kind)
    C[1100:2300] = C[1100:1101]
    B, u, s = rng.normal(size=(3, 2)), rng.normal(size=(n, 2)), rng.normal(size=(n, 2))
    s[rng.random(s.shape) < 0.1] = np.nan
    s[1100:2300] = np.nan_to_num(s[1100:2300])
    seen = np.where(np.isfinite(s)[:, :, None], C, 0.0)
    mean, start = rng.normal(size=3), 3.0 * np.eye(3) + 0.5
    found, value = loop(seen, np.nan_to_num(s), u @ B.T, A, Q, mean, start)
    given = {"initial_mean": mean, "initial_covariance": start}
    result = kalman_filter(s, u, A, B, C, Q, np.eye(2), **given)
    value -= 0.5 * np.isfinite(s).sum() * np.log(2 * np.pi)
    assert result.log_likelihood == pytest.approx(value, rel=LONG)
    for ours, name in zip((result.predicted, result.filtered, *covariances(result)), "pxXV", strict=True):
        theirs = found[name]
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=LONG * np.abs(theirs).max())
    np.testing.assert_allclose(result.final_covariance, found["V"][-1], rtol=0, atol=LONG * np.abs(found["V"]).max())
    slopes = np.einsum("nrp,nr->np", seen, np.nan_to_num(s) - np.einsum("nrp,np->nr", seen, found["x"]))
    np.testing.assert_allclose(result.slopes, slopes, rtol=0, atol=LONG * np.abs(s[np.isfinite(s)]).max() * 10)
    if kind == "no Q":
        return  # the textbook smoother needs an inverse of what has become singular
    smoothed, covariance = backward(found, A)
    smooth = rts_smoother(result, A, Q, covariances=True)
    np.testing.assert_allclose(smooth.smoothed, smoothed, rtol=0, atol=LONG * np.abs(smoothed).max())
    np.testing.assert_allclose(smooth.covariance, covariance, rtol=0, atol=LONG * np.abs(covariance).max())
    total = covariance.sum(axis=0)
    np.testing.assert_allclose(smooth.covariance_sum, total, rtol=0, atol=LONG * np.abs(total).max())


def test_information_and_prior_may_be_singular():
    G, X = np.diag([2.0, 0.0, 1.0]), np.diag([0.5, 3.0, 0.0])
    np.testing.assert_allclose(conditioned(G, X), np.diag([1.0, 0.0, 1.0]), rtol=EXACT)
