"""Canonical-variate identification written down plainly: explicit Hankel matrices, orthogonal bases, no Gram matrix."""

from __future__ import annotations

import numpy as np

from counterflow.recurrence import linear_recurrence


def hankel(z, window):
    """All windows of consecutive rows, each in one row."""
    return np.array([z[t : t + window].ravel() for t in range(len(z) - window + 1)])


def canonical_variates(y, u, n, past, future):
    """A, B, C, K, Omega and all canonical correlations."""
    U = u.shape[1]
    times = range(past, len(y) - future + 1)
    before = np.array([np.hstack([np.r_[y[t - k], u[t - k]] for k in range(1, past + 1)]) for t in times])
    after = np.array([np.hstack([np.r_[y[t + 1 - k], u[t + 1 - k]] for k in range(1, past + 1)]) for t in times])
    ahead = np.array([y[t : t + future].ravel() for t in times])
    if U and future > 1:
        known = np.linalg.qr(np.array([u[t : t + future - 1].ravel() for t in times]))[0]
        p_rest, f_rest = before - known @ (known.T @ before), ahead - known @ (known.T @ ahead)
    else:
        p_rest, f_rest = before, ahead
    Qp, Rp = np.linalg.qr(p_rest)
    Qf, _ = np.linalg.qr(f_rest)
    left, correlations, _ = np.linalg.svd(Qp.T @ Qf)
    read = np.linalg.solve(Rp, left[:, :n]) * np.sqrt(len(before))
    x, following = before @ read, after @ read
    now = np.array(list(times))
    C = np.linalg.lstsq(x, y[now], rcond=None)[0].T
    e = y[now] - x @ C.T
    found = np.linalg.lstsq(np.hstack([x, u[now], e]), following, rcond=None)[0].T
    return found[:, :n], found[:, n : n + U], C, found[:, n + U :], e.T @ e / len(e), correlations


def random_system(rng, n, r, U, radius=0.9):
    """A random stable A with this spectral radius, B and C."""
    A = rng.normal(size=(n, n))
    return A * radius / np.abs(np.linalg.eigvals(A)).max(), rng.normal(size=(n, U)), rng.normal(size=(r, n))


def simulate(rng, A, B, C, rows, process=0.3, measurement=1.0, u=None):
    """h[t] = A h[t-1] + B u[t-1] + w, y[t] = C h[t] + v, from h[0] = 0."""
    n = len(A)
    u = rng.normal(size=(rows, B.shape[1])) if u is None else u
    w = process * rng.normal(size=(rows, n))
    h = np.zeros((rows, n))
    h[1:] = linear_recurrence(A, u[:-1] @ B.T + w[1:], h[0])
    return h @ C.T + measurement * rng.normal(size=(rows, len(C))), u


def response(A, B, C, count=40):
    """C (zI - A)⁻¹ B around the upper half circle."""
    z = np.exp(1j * np.linspace(0, np.pi, count))
    return np.array([C @ np.linalg.solve(point * np.eye(len(A)) - A, B) for point in z])


def distance(found, true):
    """Relative error of a frequency response."""
    return float(np.linalg.norm(found - true) / np.linalg.norm(true))


def likelihood(model, y, u):
    """Mean log-likelihood of a row of an innovations model, given the rows before it, by a plain loop."""
    x, S, total = np.zeros(len(model.A)), model.innovation, []
    for row, given in zip(y, u, strict=True):
        e = row - model.C @ x
        total.append(-0.5 * (e @ np.linalg.solve(S, e) + np.linalg.slogdet(2 * np.pi * S)[1]))
        x = model.A @ x + model.B @ given + model.K @ e
    return float(np.mean(total[10:]))
