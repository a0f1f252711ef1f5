"""Oracles for the filter: a plain loop in textbook form, and the dense joint Gaussian of a whole record."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np


def model(rng, P=3, D=5, U=2, radius=0.9, rank=None):
    """A random model with the given spectral radius; the rank of C may be held below full."""
    A = rng.normal(size=(P, P))
    A *= radius / np.abs(np.linalg.eigvals(A)).max()
    C = rng.normal(size=(D, P))
    if rank is not None:
        C = rng.normal(size=(D, rank)) @ rng.normal(size=(rank, P))
    G = rng.normal(size=(P, P))
    H = rng.normal(size=(D, D))
    return SimpleNamespace(
        A=A, B=rng.normal(size=(P, U)), C=C, Q=0.1 * G @ G.T + 0.01 * np.eye(P), R=0.2 * H @ H.T + 0.1 * np.eye(D)
    )


def record(rng, m, T, mean=0.0, start=None):
    """Simulate rows 0..T; `mean` shifts the inputs so that the states sit near it."""
    P, U = m.B.shape
    u = rng.normal(size=(T + 1, U)) + mean
    w = rng.multivariate_normal(np.zeros(P), m.Q, size=T, method="eigh")
    h = np.zeros((T + 1, P))
    h[0] = mean if start is None else start
    for t in range(1, T + 1):
        h[t] = m.A @ h[t - 1] + m.B @ u[t - 1] + w[t - 1]
    y = h @ m.C.T + rng.multivariate_normal(np.zeros(len(m.C)), m.R, size=T + 1, method="eigh")
    return y, u, h


def covariances(result):
    """Predicted and filtered covariances (T+1, P, P) of every row, from the runs of a filter."""
    predicted, filtered = np.empty((2, len(result.filtered), *result.runs[0].filtered.shape))
    for run in result.runs:
        rows = slice(run.start, run.stop)
        predicted[rows] = run.predicted
        filtered[rows] = run.filtered
        if hasattr(run, "said"):  # each row its own
            V = run.predicted - run.predicted @ run.said @ run.predicted
            filtered[rows] = (V + V.transpose(0, 2, 1)) / 2
    return predicted, filtered


def plain_loop(y, u, m, mean, cov):
    """Textbook covariance form, one row after the other, on the raw measurements."""
    rows, P = len(y), len(m.A)
    out = SimpleNamespace(
        predicted=np.empty((rows, P)),
        filtered=np.empty((rows, P)),
        predicted_covariance=np.empty((rows, P, P)),
        filtered_covariance=np.empty((rows, P, P)),
        log_likelihood=0.0,
    )
    for t in range(rows):
        out.predicted[t], out.predicted_covariance[t] = mean, cov
        seen = ~np.isnan(y[t])
        if seen.any():
            C, R = m.C[seen], m.R[np.ix_(seen, seen)]
            S = C @ cov @ C.T + R
            K = np.linalg.solve(S, C @ cov).T
            e = y[t, seen] - C @ mean
            mean = mean + K @ e
            I_KC = np.eye(P) - K @ C
            cov = I_KC @ cov @ I_KC.T + K @ R @ K.T
            cov = (cov + cov.T) / 2
            out.log_likelihood -= 0.5 * (
                e @ np.linalg.solve(S, e) + np.linalg.slogdet(S)[1] + seen.sum() * np.log(2 * np.pi)
            )
        out.filtered[t], out.filtered_covariance[t] = mean, cov
        if t + 1 < rows:
            mean = m.A @ mean + m.B @ u[t]
            cov = m.A @ cov @ m.A.T + m.Q
    return out


def plain_smoother(out, m):
    """Rauch, Tung and Striebel's recursion with an explicit smoother gain."""
    xs, Ps = out.filtered.copy(), out.filtered_covariance.copy()
    lags = np.empty((len(xs) - 1, *Ps.shape[1:]))
    for t in range(len(xs) - 2, -1, -1):
        J = np.linalg.solve(out.predicted_covariance[t + 1], m.A @ out.filtered_covariance[t]).T
        xs[t] += J @ (xs[t + 1] - out.predicted[t + 1])
        Ps[t] += J @ (Ps[t + 1] - out.predicted_covariance[t + 1]) @ J.T
        lags[t] = Ps[t + 1] @ J.T
    return xs, Ps, lags


def dense(y, u, m, mean, cov):
    """Smoothed means and covariances of all rows and the log-likelihood, from one joint Gaussian."""
    rows, P = len(y), len(m.A)
    centre = np.empty((rows, P))
    joint = np.zeros((rows, P, rows, P))
    for t in range(rows):
        centre[t] = mean if t == 0 else m.A @ centre[t - 1] + m.B @ u[t - 1]
        joint[t, :, t] = cov if t == 0 else m.A @ joint[t - 1, :, t - 1] @ m.A.T + m.Q
        for s in range(t):
            joint[t, :, s] = m.A @ joint[t - 1, :, s]
            joint[s, :, t] = joint[t, :, s].T
    joint = joint.reshape(rows * P, rows * P)
    big_C = np.kron(np.eye(rows), m.C)
    seen = ~np.isnan(y).ravel()
    big_C, big_R = big_C[seen], np.kron(np.eye(rows), m.R)[np.ix_(seen, seen)]
    S = big_C @ joint @ big_C.T + big_R
    e = y.ravel()[seen] - big_C @ centre.ravel()
    gain = np.linalg.solve(S, big_C @ joint).T
    loglik = -0.5 * (e @ np.linalg.solve(S, e) + np.linalg.slogdet(S)[1] + seen.sum() * np.log(2 * np.pi))
    smoothed = centre + (gain @ e).reshape(rows, P)
    covariance = (joint - gain @ big_C @ joint).reshape(rows, P, rows, P)
    return smoothed, covariance, loglik
