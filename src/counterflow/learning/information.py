"""Fisher information of the couplings.

With a settled filter the innovations e[t] of covariance S are a linear filter of the data, and the information is
(Gaussian prediction errors, C̃ and noise I as in ``likelihood``; X predicted, V filtered covariance, K the gain)::

    I_ij = Σ_t de_iᵀ S⁻¹ de_j + T/2 tr(S⁻¹ dS_i S⁻¹ dS_j)
    de[t] = -C̃ dx[t],     dx[t+1] = F dx[t] + dA ĥ[t] + dB u[t] + A dK e[t],     F = A(I - K C̃)
    dX = F dX Fᵀ + dA V Aᵀ + A V dAᵀ + dQ
    dK = (I - K C̃) dX C̃ᵀ S⁻¹,      dS = C̃ dX C̃ᵀ

The sum over t needs no filter for each parameter: with w = (ĥ, u, e), dx = Σ_k F^k G w[t-1-k] for G = [dA dB A dK], and
the sum is a quadratic form in G whose matrix is Σ_d (Fᵀ)^d Y ⊗ R_w(d), Y = Σ F^kᵀ C̃ᵀ S⁻¹ C̃ F^k, R_w the sample
autocovariance of w.

Records with gaps have no settled filter: their information is in ``sensitivities``. While an estimate is still climbed
to, the information of a filter that settles will do, in which every row says what rows say on average; e is then
replaced by C̃ᵀ S⁻¹ e, which is what every row brings to the states, and A dK e by F dX C̃ᵀ S⁻¹ e.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.errors import CounterflowError
from counterflow.filtering import steady_state
from counterflow.filtering.covariances import lyapunov
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.parameters import Parameters

LARGEST_FORM = 12_000  # P (P + U + r): the side of the quadratic form that is still built, in some 3 GiB
QUICK_FORM = 4000  # and up to which it takes seconds
FORGOTTEN = 1e-7  # what is left of F^d when further lags are not looked at
MOST_LAGS = 3000
MOST_ROWS = 50_000  # of which the autocovariances are averaged; more would not change them


def settled_information(
    record: SharedRecord, parameters: Parameters, A: FloatArray, B: FloatArray, Q: FloatArray,
    noise_directions: FloatArray | None = None, passed: tuple[FloatArray, FloatArray] | None = None,
) -> FloatArray:  # fmt: skip
    """Information of all parameters, from the settled filter.

    ``noise_directions``: dQ (k, P, P) for each parameter of the noise; default: one basis of them. ``passed``: of a
    record whose rows differ, filtered states and slopes of a pass at A, B and Q, if there was one already.
    """
    if noise_directions is None:
        noise_directions = basis_of_noise(parameters, Q)
    P, U = A.shape[0], record.u.shape[1]
    whole = bool(np.isfinite(record.values).all()) and record.alike
    if record.alike or passed is None:
        filtered = record.filter(A, B, Q)
        passed = filtered.filtered, filtered.innovations if whole else filtered.slopes
    C = _root(record.mean_information)
    if record.alike:  # as the filter compresses a row, which its innovations belong to
        last = filtered.runs[-1].observation
        C = last.reshape(-1, *last.shape[-2:])[-1]
    r, width = len(C), P + U + passed[1].shape[1]
    if P * width > LARGEST_FORM:
        raise CounterflowError(
            f"standard errors: {parameters.coupling_size():,} couplings of {P} states and {U} inputs need a matrix of "
            f"{P * width:,} rows, over the limit of {LARGEST_FORM:,}; fit fewer units at once"
        )
    steady = steady_state(A, C, Q, np.eye(r))
    X, V = steady.predicted_covariance, steady.filtered_covariance
    L = np.linalg.cholesky(C @ X @ C.T + np.eye(r))
    seen = np.linalg.solve(L, C)  # L⁻¹ C̃: the innovation white, as the filter returns it
    F = A @ (np.eye(P) - X @ seen.T @ seen)
    regressors = np.hstack([passed[0], record.u, passed[1]])[:-1]
    if record.alike and not whole and record.steps > 1:
        regressors = regressors[1:]
    dX = _covariance_derivatives(parameters, A, noise_directions, F, V)
    form = quadratic_form(F, lyapunov(F.T, seen.T @ seen), regressors)
    gains, dS = F @ dX @ (seen.T if whole else np.eye(P)), seen @ dX @ seen.T
    G = _driving_matrices(parameters, gains, width)
    flat = G.reshape(len(G), -1)
    flat_dS = dS.reshape(len(dX), -1)
    information = flat @ form @ flat.T
    moving = moves_covariance(parameters)
    information[np.ix_(moving, moving)] += 0.5 * flat_dS @ flat_dS.T
    return np.asarray(len(regressors) * (information + information.T) / 2)


def _root(information: FloatArray) -> FloatArray:
    """C (r, P) with Cᵀ C = information."""
    values, vectors = np.linalg.eigh(information)
    keep = values > 1e-12 * max(float(values[-1]), 1e-300)
    return np.asarray((vectors[:, keep] * np.sqrt(values[keep])).T)


def moves_covariance(parameters: Parameters) -> NDArray[np.intp]:
    """Indices of the parameters that change the filter's covariance: entries of A, and of Q."""
    P = sum(parameters.record.states)
    columns = parameters.unpack(np.arange(1.0, parameters.coupling_size() + 1))
    index = np.sort(columns[:, :P][columns[:, :P] > 0]).astype(np.intp) - 1
    noise = np.arange(parameters.noise_size(), dtype=np.intp) + parameters.coupling_size()
    return np.concatenate([index, noise])


def positions(parameters: Parameters) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Row and column in [A B] of each packed entry."""
    P, U = sum(parameters.record.states), sum(parameters.record.inputs)
    rows, columns = np.indices((P, P + U))
    return parameters.pack(rows.astype(float)).astype(np.intp), parameters.pack(columns.astype(float)).astype(np.intp)


def _covariance_derivatives(
    parameters: Parameters, A: FloatArray, noise_directions: FloatArray, F: FloatArray, V: FloatArray
) -> FloatArray:
    """dX for each parameter that moves it (k, P, P), by doubling all Lyapunov equations at once."""
    P = A.shape[0]
    rows, columns = positions(parameters)
    inside = columns < P
    rows, columns = rows[inside], columns[inside]
    source = np.zeros((len(rows), P, P))
    source[np.arange(len(rows)), rows] = (V @ A.T)[columns]
    sources = [source + source.transpose(0, 2, 1)]
    if len(noise_directions):
        sources.append(noise_directions)
    dX = np.concatenate(sources)
    power = F.copy()
    for _ in range(60):
        more = power @ dX @ power.T
        dX = dX + more
        power = power @ power
        if float(np.abs(power).max()) ** 2 < 1e-18:
            return dX
    return dX


def basis_of_noise(parameters: Parameters, Q: FloatArray) -> FloatArray:
    """dQ for unit changes of each unit's own variances and covariances: any basis of the same space will do."""
    if not parameters.noise_size():
        return np.zeros((0, *Q.shape))
    process = replace(parameters.process, root=np.asarray(np.linalg.cholesky(Q), np.float64))
    return process.directions(np.zeros(process.size))


def _driving_matrices(parameters: Parameters, gains: FloatArray, width: int) -> FloatArray:
    """G = [dA dB A dK L] of every parameter (n, P, width); ``gains`` holds A dK L of those that move it."""
    P = sum(parameters.record.states)
    rows, columns = positions(parameters)
    count = parameters.coupling_size() + parameters.noise_size()
    G = np.zeros((count, P, width))
    G[np.arange(len(rows)), rows, columns] = 1.0
    G[moves_covariance(parameters), :, width - gains.shape[2] :] = gains
    return G


def quadratic_form(F: FloatArray, Y: FloatArray, regressors: FloatArray) -> FloatArray:
    """Σ_d over all lags of ((Fᵀ)^d Y) ⊗ R_w(d), as a matrix over (state, regressor) pairs."""
    P, n = F.shape[0], regressors.shape[1]
    weights, lagged = [], []
    pieces = _some_rows(regressors)
    total, longest = sum(len(w) for w in pieces), max(len(w) for w in pieces)
    power, start = Y, float(np.abs(Y).max())
    for lag in range(min(MOST_LAGS, longest - 1)):
        weights.append(power if lag else 0.5 * power)  # lag 0 once: the transpose below adds the other half
        products = (w[lag:].T @ w[: len(w) - lag] for w in pieces if len(w) > lag)
        lagged.append(sum(products, np.zeros((n, n))) / total)
        power = F.T @ power
        if float(np.abs(power).max()) < FORGOTTEN * start:
            break
    stacked = np.array(weights).reshape(len(weights), P * P).T @ np.array(lagged).reshape(len(lagged), n * n)
    # [a, a', b', b] -> [(a, b), (a', b')]
    form = stacked.reshape(P, P, n, n).transpose(0, 3, 1, 2).reshape(P * n, P * n)
    return np.asarray(form + form.T)


def _some_rows(regressors: FloatArray) -> list[FloatArray]:
    """Pieces of at most MOST_ROWS rows in all, spread evenly over the record."""
    if len(regressors) <= 2 * MOST_ROWS:
        return [regressors]
    count = max(1, MOST_ROWS // (2 * MOST_LAGS))
    starts = np.linspace(0, len(regressors) - MOST_ROWS // count, count).astype(int)
    return [regressors[a : a + MOST_ROWS // count] for a in starts]


def inverse_information(information: FloatArray, finest: float, lost: float = math.nan) -> FloatArray:
    """Inverse in directions with more information than ``finest``; ``lost`` for entries that have a part in others."""
    size = np.sqrt(np.maximum(np.diag(information), 0.0))
    scale = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0)
    values, vectors = np.linalg.eigh(information * np.outer(scale, scale))
    keep = values > finest * max(float(values[-1]) if values.size else 0.0, 1e-300)
    half = scale[:, None] * vectors[:, keep] / np.sqrt(values[keep])
    out = half @ half.T
    if math.isnan(lost):
        gone = (np.square(vectors[:, ~keep]).sum(axis=1) > 1e-6) | (size == 0)
        out[gone, :] = lost
        out[:, gone] = lost
    return np.asarray(out)
