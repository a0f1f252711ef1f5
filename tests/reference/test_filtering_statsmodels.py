"""Log-likelihood, filtered and smoothed states against statsmodels, with a known start."""

from __future__ import annotations

import numpy as np
import pytest
from tolerances import ITERATIVE, LONG

from counterflow.filtering import kalman_filter, rts_smoother

smoother = pytest.importorskip("statsmodels.tsa.statespace.kalman_smoother")


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("mean", [0.0, 100.0])
def test_same_numbers_as_statsmodels(missing, mean):
    rng = np.random.default_rng(11)
    P, D, U, rows = 4, 6, 2, 400
    A = rng.normal(size=(P, P))
    A *= 0.97 / np.abs(np.linalg.eigvals(A)).max()
    B, C = rng.normal(size=(P, U)), rng.normal(size=(D, P))
    G, H = rng.normal(size=(P, P)), rng.normal(size=(D, D))
    Q, R = G @ G.T / 4, H @ H.T / 2 + 0.1 * np.eye(D)
    y, u = rng.normal(size=(rows, D)) + mean, rng.normal(size=(rows, U))
    if missing:
        y[100:150] = np.nan
        y[rng.random(y.shape) < 0.1] = np.nan
    m0, P0 = rng.normal(size=P), np.eye(P)

    peer = smoother.KalmanSmoother(D, P, loglikelihood_burn=0)
    peer.bind(y.copy())
    peer["design"], peer["obs_cov"], peer["transition"] = C, R, A
    peer["selection"], peer["state_cov"] = np.eye(P), Q
    peer["state_intercept"] = np.ascontiguousarray((u @ B.T).T)  # theirs acts on the next row, as u does
    peer.initialize_known(m0, P0)
    theirs = peer.smooth()

    ours = kalman_filter(y, u, A, B, C, Q, R, initial_mean=m0, initial_covariance=P0)
    smooth = rts_smoother(ours, A, Q, covariances=True)
    scale = np.abs(theirs.smoothed_state).max()
    np.testing.assert_allclose(ours.log_likelihood, theirs.llf_obs.sum(), rtol=LONG)
    np.testing.assert_allclose(ours.filtered, theirs.filtered_state.T, rtol=0, atol=LONG * scale)
    np.testing.assert_allclose(ours.predicted, theirs.predicted_state.T[:-1], rtol=0, atol=LONG * scale)
    np.testing.assert_allclose(smooth.smoothed, theirs.smoothed_state.T, rtol=0, atol=ITERATIVE * scale)
    covariance = theirs.smoothed_state_cov.transpose(2, 0, 1)
    np.testing.assert_allclose(smooth.covariance, covariance, rtol=0, atol=ITERATIVE * np.abs(covariance).max())
