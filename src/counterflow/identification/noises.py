"""From an innovations model, where one noise drives states and measurements, to one with two independent noises."""

from __future__ import annotations

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import ModelError, UnstableError
from counterflow.filtering.covariances import lyapunov, steady_state

_LEAST_R = 2e-3  # measurement noise, as a share of the innovation, in every direction
_LEAST_Q = 1e-5  # process noise in one row, as a share of one innovation, seen over all later rows
_SINGULAR = 1e-10  # least eigenvalue of the correlation matrix of a noise
_STEPS = 300  # of the alternating-direction method,
_WEIGHT = 0.03  # its penalty
_RELAXED = 1.6  # and its over-relaxation
_CLOSE = 1e-2  # twice the log-likelihood of a row that may be lost before plainer noises are tried
_SHARES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95)  # of the innovation that is given to R, as candidates


def independent_noises(A: FloatArray, C: FloatArray, K: FloatArray, Omega: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Independent noises Q (n, n) and R (r, r) whose Kalman filter is close to a given innovations model.

    x[t+1] = A x[t] + K e[t], y[t] = C x[t] + e[t], Cov(e) = Omega positive definite, A stable.

    If the steady filter of (A, C, Q, R) has the error covariance X, its gain obeys A X C' = K Omega, and R = Omega - C
    X C', Q = X - A X A' + K Omega K'. Not every innovations model has such an X with Q, R >= 0, so the equation is
    solved in the least-squares sense among the X that give positive definite noises. That solution competes with
    plainer ones (a share of Omega for R, the rest through K for Q), and the noises under which data of the innovations
    model are likeliest win: a safe start for maximum likelihood rather than an end.
    """
    r = len(C)
    scale = np.sqrt(Omega.diagonal())
    L = scale[:, None] * np.linalg.cholesky((Omega + Omega.T) / 2 / scale / scale[:, None])
    # coordinates in which innovations are white, and a unit of state shows as one innovation over all later rows;
    # without them the search below would need a hundred times the steps
    whitened = np.linalg.solve(L, C)
    seen = lyapunov(A.T, whitened.T @ whitened)
    values, vectors = np.linalg.eigh((seen + seen.T) / 2)
    values = np.maximum(values, max(1e-12 * float(values[-1]), np.finfo(float).tiny))
    into, out_of = (vectors * np.sqrt(values)).T, vectors / np.sqrt(values)
    A_, C_, K_ = into @ A @ out_of, whitened @ out_of, into @ K @ L

    X = _error_covariance(A_, C_, K_)
    Q, R = X - A_ @ X @ A_.T + K_ @ K_.T, np.eye(r) - C_ @ X @ C_.T
    candidates = [(_floored(Q, _LEAST_Q), _floored(R, _LEAST_R))]
    if _expected_loss(A_, C_, K_, *candidates[0]) > r + _CLOSE:  # r is what the model itself reaches
        candidates += [_shared(K_, share) for share in _SHARES]
    Q, R = min(candidates, key=lambda noises: _expected_loss(A_, C_, K_, *noises))
    return _conditioned(out_of @ Q @ out_of.T), _conditioned(L @ R @ L.T)


def _shared(K: FloatArray, share: float) -> tuple[FloatArray, FloatArray]:
    """R takes a share of the innovation; Q what K makes of it, more the smaller the share left for the state."""
    return _floored(K @ K.T / (1 - share), _LEAST_Q), share * np.eye(K.shape[1])


def _floored(S: FloatArray, least: float) -> FloatArray:
    values, vectors = np.linalg.eigh((S + S.T) / 2)
    return np.asarray((vectors * np.maximum(values, least)) @ vectors.T)


def _conditioned(S: FloatArray) -> FloatArray:
    """Symmetric, and not closer to singular than a Cholesky factor can stand, in any scale of its coordinates."""
    scale = np.sqrt(np.maximum(S.diagonal(), np.finfo(float).tiny))
    S = _floored(S / scale / scale[:, None], _SINGULAR) * scale * scale[:, None]
    return np.asarray((S + S.T) / 2)


def _expected_loss(A: FloatArray, C: FloatArray, K: FloatArray, Q: FloatArray, R: FloatArray) -> float:
    """Twice the expected negative log-likelihood of a row of the innovations model (Omega = I), under noises Q, R."""
    n = len(A)
    try:
        steady = steady_state(A, C, (Q + Q.T) / 2, (R + R.T) / 2)
        gain = A @ steady.gain
        # the model's own state and the error of the filter, both driven by the same white e
        F = np.block([[A, np.zeros((n, n))], [np.zeros((n, n)), A - gain @ C]])
        drive = np.vstack([K, K - gain])
        covariance = lyapunov(F, drive @ drive.T)[n:, n:]
    except (UnstableError, ModelError, np.linalg.LinAlgError):
        return np.inf
    S = steady.innovation_covariance
    e = C @ covariance @ C.T + np.eye(len(C))
    sign, size = np.linalg.slogdet(S)
    value = float(size + np.trace(np.linalg.solve(S, e)))
    return value if sign > 0 and np.isfinite(value) else np.inf


def _error_covariance(A: FloatArray, C: FloatArray, K: FloatArray) -> FloatArray:
    """The X nearest to A X C' = K with X >= 0, I - C X C' >= least R and X - A X A' + K K' >= least Q.

    Alternating directions: a linear least-squares problem in X, whose matrix never changes, and projections of the
    three sides onto positive matrices by cutting off their negative eigenvalues.
    """
    n, r = K.shape
    eye, KK = np.eye(r), K @ K.T
    low = np.tril_indices(n)
    length = np.where(low[0] == low[1], 1.0, np.sqrt(2.0))  # symmetric matrices as vectors, lengths kept

    def vector(M: FloatArray) -> FloatArray:
        return np.asarray(((M + M.swapaxes(-1, -2)) / 2)[..., low[0], low[1]] * length)

    basis = np.zeros((len(length), n, n))
    basis[np.arange(len(length)), low[0], low[1]] = 1 / length
    basis[np.arange(len(length)), low[1], low[0]] = 1 / length
    gain, seen = A @ basis @ C.T, C @ basis @ C.T
    kept = basis - A @ basis @ A.T
    normal = vector(A.T @ gain @ C) + _WEIGHT * (
        np.eye(len(length)) + vector(C.T @ seen @ C) + vector(kept - A.T @ kept @ A)
    )
    solve = np.linalg.inv((normal + normal.T) / 2 + 1e-9 * np.eye(len(length)))
    goal = vector(A.T @ K @ C)
    floors = (np.zeros((n, n)), _LEAST_R * eye, _LEAST_Q * np.eye(n))
    sides = [np.zeros((n, n)), eye, KK]
    duals = [np.zeros((n, n)), np.zeros((r, r)), np.zeros((n, n))]
    X = np.zeros((n, n))
    for _ in range(_STEPS):
        positive, measured, driven = (side - dual for side, dual in zip(sides, duals, strict=True))
        driven -= KK
        right = goal + _WEIGHT * vector(positive + C.T @ (eye - measured) @ C + driven - A.T @ driven @ A)
        new = np.zeros((n, n))
        new[low] = solve @ right / length
        new = new + np.tril(new, -1).T
        moved, X = float(np.abs(new - X).max()), new
        for k, value in enumerate((X, eye - C @ X @ C.T, X - A @ X @ A.T + KK)):
            relaxed = _RELAXED * value + (1 - _RELAXED) * sides[k]
            sides[k] = _floored(relaxed + duals[k] - floors[k], 0.0) + floors[k]
            duals[k] = duals[k] + relaxed - sides[k]
        if moved <= 1e-8 * (1 + float(np.abs(X).max())):
            break
    return X
