"""Oracles for the information: differences of the gradient, and the dense Gaussian of a whole record."""

from __future__ import annotations

import numpy as np

from counterflow.estimation.information import basis_of_noise, positions
from counterflow.estimation.likelihood import evaluate


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


def dense_gaussian(values, sight, u, A, B, Q, prior):
    """Mean and covariance of all numbers that there are, (n,) and (n, n), and which of ``values`` (T+1, r) they are."""
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
    C = C.reshape(rows * r, rows * P)[there]
    covariance = C @ joint.reshape(rows * P, rows * P) @ C.T + np.eye(there.sum())
    return C @ centre.ravel(), covariance, there, C, joint.reshape(rows * P, rows * P), centre


def dense_information(record, parameters, A, B, Q, step=1e-5):
    """Expected information of the couplings, dmᵀ S⁻¹ dm + ½ tr(S⁻¹ dS S⁻¹ dS), m and S being differenced."""
    rows, columns = positions(parameters)
    P, base = len(A), np.hstack([A, B])

    def both(coupling):
        found = dense_gaussian(record.values, record.sight, record.u, coupling[:, :P], coupling[:, P:], Q, record.prior)
        return found[0], found[1]

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
