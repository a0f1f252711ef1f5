"""Oracles for the information: differences of the gradient, and the dense Gaussian of a whole record."""

from __future__ import annotations

import numpy as np

from counterflow.exchange.compression import sufficient_message
from counterflow.exchange.task import UnitData
from counterflow.fits.references import pool
from counterflow.learning.information import basis_of_noise, positions
from counterflow.learning.likelihood import SharedRecord, evaluate


def shared_of(plant, recording):
    """What the server has of a recording."""
    messages = [sufficient_message(n, plant.local(n), recording[n].y, recording[n].u) for n in plant.names]
    return SharedRecord.from_messages(messages)


def pooled(plant, recording):
    """All raw rows in one place."""
    return pool({n: UnitData(recording[n].unit, recording[n].y, recording[n].u, plant.local(n)) for n in plant.names})


def differenced_information(record, parameters, A, B, Q, step=1e-4):
    """Observed information: differences of the exact gradient, two passes a parameter."""
    P, directions = len(A), basis_of_noise(parameters, Q)
    base, size = np.hstack([A, B]), parameters.coupling_size()

    def gradient(coupling, noise):
        at = evaluate(record, coupling[:, :P], coupling[:, P:], noise)
        slope = parameters.pack(np.linalg.solve(at.Q, at.gap))
        inner = 0.5 * np.linalg.solve(at.Q, np.linalg.solve(at.Q, at.noise_moment - at.steps * at.Q).T)
        return np.concatenate([slope, np.einsum("kij,ij->k", directions, inner)])

    columns = []
    for i in range(size + len(directions)):
        shift, noise = np.zeros_like(base), np.zeros_like(Q)
        if i < size:
            vector = np.zeros(size)
            vector[i] = step
            shift = parameters.unpack(vector)
        else:
            noise = step * directions[i - size]
        up, down = gradient(base + shift, Q + noise), gradient(base - shift, Q - noise)
        columns.append((down - up) / (2 * step))
    information = np.array(columns)
    return (information + information.T) / 2


def dense_gaussian(values, sight, noise, u, A, B, Q, prior):
    """The joint Gaussian of all states (mean, covariance), and how all numbers that are there see them (C, R)."""
    rows, P = len(values), len(A)
    centre, joint = np.zeros((rows, P)), np.zeros((rows, P, rows, P))
    for t in range(rows):
        if t:
            centre[t] = A @ centre[t - 1] + B @ u[t - 1]
        joint[t, :, t] = A @ joint[t - 1, :, t - 1] @ A.T + Q if t else prior
        for s in range(t):
            joint[t, :, s] = A @ joint[t - 1, :, s]
            joint[s, :, t] = joint[t, :, s].T
    r = values.shape[1]
    C = np.zeros((rows, r, rows, P))
    for t in range(rows):
        C[t, :, t] = sight if sight.ndim == 2 else sight[t]
    there = np.isfinite(values).ravel()
    R = np.kron(np.eye(rows), noise)[np.ix_(there, there)]
    return centre.ravel(), joint.reshape(rows * P, rows * P), C.reshape(rows * r, rows * P)[there], R


def dense_posterior(record, A, B, Q, prior=None):
    """Log-likelihood and smoothed states (T+1, P) of a record."""
    prior = record.prior if prior is None else prior
    mean, joint, C, R = dense_gaussian(record.values, record.sight, record.noise, record.u, A, B, Q, prior)
    S = C @ joint @ C.T + R
    e = record.values[np.isfinite(record.values)] - C @ mean
    solved = np.linalg.solve(S, e)
    value = -0.5 * (e @ solved + np.linalg.slogdet(S)[1] + len(e) * np.log(2 * np.pi))
    return value, (mean + joint @ C.T @ solved).reshape(len(record.values), -1)


def plain_information(record, parameters, A, B, Q, step=1e-5):
    """Σ deᵀ S⁻¹ de + ½ tr(S⁻¹ dS S⁻¹ dS) over the rows: a plain filter, its innovations and S being differenced."""
    rows, columns = positions(parameters)
    P, base, directions = len(A), np.hstack([A, B]), basis_of_noise(parameters, Q)
    sight = np.broadcast_to(record.sight, (len(record.values), *record.observation.shape))

    def run(coupling, noise):
        mean, X, out = np.zeros(P), record.prior, []
        for t, s in enumerate(record.values):
            there = np.isfinite(s)
            C = sight[t][there]
            S, e = C @ X @ C.T + np.eye(len(C)), s[there] - C @ mean
            out.append((e, S))
            K = X @ C.T @ np.linalg.inv(S)
            mean = coupling[:, :P] @ (mean + K @ e) + coupling[:, P:] @ record.u[t]
            X = coupling[:, :P] @ (X - K @ C @ X) @ coupling[:, :P].T + noise
        return out

    here = run(base, Q)
    moved = []
    for k in range(len(rows) + len(directions)):
        shift, noise = np.zeros_like(base), np.zeros_like(Q)
        if k < len(rows):
            shift[rows[k], columns[k]] = step
        else:
            noise = step * directions[k - len(rows)]
        up, down = run(base + shift, Q + noise), run(base - shift, Q - noise)
        pairs = zip(up, down, strict=True)
        moved.append([((e1 - e2) / (2 * step), (S1 - S2) / (2 * step)) for (e1, S1), (e2, S2) in pairs])
    total = np.zeros((len(moved), len(moved)))
    for t, (_, S) in enumerate(here):
        inverse = np.linalg.inv(S)
        de = np.array([each[t][0] for each in moved])
        dS = np.array([inverse @ each[t][1] for each in moved])
        total += de @ inverse @ de.T + 0.5 * np.einsum("iab,jba->ij", dS, dS)
    return total


def dense_information(record, parameters, A, B, Q, step=1e-5):
    """Expected information of the couplings, dmᵀ S⁻¹ dm + ½ tr(S⁻¹ dS S⁻¹ dS), m and S being differenced."""
    rows, columns = positions(parameters)
    P, base = len(A), np.hstack([A, B])

    def both(coupling):
        local = coupling[:, :P], coupling[:, P:], Q, record.prior
        mean, joint, C, R = dense_gaussian(record.values, record.sight, record.noise, record.u, *local)
        return C @ mean, C @ joint @ C.T + R

    inverse = np.linalg.inv(both(base)[1])
    means, covariances = [], []
    for i, j in zip(rows, columns, strict=True):
        shift = np.zeros_like(base)
        shift[i, j] = step
        (m1, S1), (m2, S2) = both(base + shift), both(base - shift)
        means.append((m1 - m2) / (2 * step))
        covariances.append(inverse @ (S1 - S2) / (2 * step))
    means = np.array(means)
    traces = np.array([[np.sum(one * two.T) for two in covariances] for one in covariances])
    return means @ inverse @ means.T + 0.5 * traces
