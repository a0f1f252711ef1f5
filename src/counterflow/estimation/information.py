"""Fisher information of the couplings.

With a settled filter the innovations e[t] of covariance S are a linear filter of the data, and the information is
(Gaussian prediction errors, C̃ and noise I as in ``likelihood``; X predicted, V filtered covariance, K the gain)::

    I_ij = Σ_t de_iᵀ S⁻¹ de_j + T/2 tr(S⁻¹ dS_i S⁻¹ dS_j)
    de[t] = -C̃ dx[t],     dx[t+1] = F dx[t] + dA ĥ[t] + dB u[t] + A dK e[t],     F = A(I - K C̃)
    dX = F dX Fᵀ + dA V Aᵀ + A V dAᵀ + dQ
    dK = (I - K C̃) dX C̃ᵀ S⁻¹,      dS = C̃ dX C̃ᵀ

The sum over t needs no filter for each parameter: with w = (ĥ, u, e), dx = Σ_k F^k G w[t-1-k] for G = [dA dB A dK], and
the sum is a quadratic form in G whose matrix is Σ_d (Fᵀ)^d Y ⊗ R_w(d), Y = Σ F^kᵀ C̃ᵀ S⁻¹ C̃ F^k, R_w the sample
autocovariance of w. Records with gaps have no settled filter; there the gradient is differenced instead. While an
estimate is still climbed to, the settled filter's information of the rows in unbroken stretches will do.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.errors import CounterflowError
from counterflow.estimation.likelihood import Evaluation, SharedRecord, evaluate
from counterflow.estimation.parameters import Parameters
from counterflow.filtering import compress, steady_state
from counterflow.filtering.initial import lyapunov

LARGEST_FORM = 12_000  # P (P + U + r): the side of the quadratic form that is still built, in some 3 GiB
QUICK_FORM = 4000  # and up to which it takes seconds
MOST_DIFFERENCES = 400  # parameters whose gradient is still differenced when there are gaps
FORGOTTEN = 1e-7  # what is left of F^d when further lags are not looked at
MOST_LAGS = 3000
SHORTEST = 100  # rows of an unbroken stretch that still counts where there are gaps
MOST_ROWS = 50_000  # of which the autocovariances are averaged; more would not change them


def affordable(record: SharedRecord, parameters: Parameters) -> bool:
    """Whether standard errors take seconds, not minutes."""
    P = sum(record.states)
    if np.isfinite(record.values).all():
        return bool(P * (P + record.u.shape[1] + record.observation.shape[0]) <= QUICK_FORM)
    return parameters.coupling_size() <= MOST_DIFFERENCES // 4


def settled_information(
    record: SharedRecord, parameters: Parameters, A: FloatArray, B: FloatArray, Q: FloatArray,
    noise_directions: FloatArray | None = None,
) -> FloatArray:  # fmt: skip
    """Information of all parameters, from the settled filter.

    ``noise_directions``: dQ (k, P, P) for each parameter of the noise; default: one basis of them.
    """
    if noise_directions is None:
        noise_directions = _basis_of_noise(parameters, Q)
    P, U = A.shape[0], record.u.shape[1]
    squeezed = compress(record.observation, record.noise)
    C = squeezed.observation
    r = C.shape[0]
    if P * (P + U + r) > LARGEST_FORM:
        raise CounterflowError(
            f"standard errors: {parameters.coupling_size():,} couplings of {P} states and {U} inputs need a matrix of "
            f"{P * (P + U + r):,} rows, over the limit of {LARGEST_FORM:,}; fit fewer units at once"
        )
    steady = steady_state(A, record.observation, Q, record.noise)
    X, V = steady.predicted_covariance, steady.filtered_covariance
    L = np.linalg.cholesky(C @ X @ C.T + np.eye(r))
    seen = np.linalg.solve(L, C)  # L⁻¹ C̃: the innovation white, as the filter returns it
    F = A @ (np.eye(P) - X @ seen.T @ seen)
    filtered = record.filter(A, B, Q)
    regressors = np.hstack([filtered.filtered[:-1], record.u[:-1], filtered.innovations[:-1, :r]])
    kept, rows = unbroken(record, regressors)
    dX = _covariance_derivatives(parameters, A, noise_directions, F, V)
    form = quadratic_form(F, lyapunov(F.T, seen.T @ seen), kept)
    gains, dS = F @ dX @ seen.T, seen @ dX @ seen.T
    G = _driving_matrices(parameters, gains, U, r)
    flat = G.reshape(len(G), -1)
    flat_dS = dS.reshape(len(dX), -1)
    information = flat @ form @ flat.T
    moving = _moves_covariance(parameters)
    information[np.ix_(moving, moving)] += 0.5 * flat_dS @ flat_dS.T
    return np.asarray(rows * (information + information.T) / 2)


def unbroken(record: SharedRecord, regressors: FloatArray) -> tuple[list[FloatArray], int]:
    """The regressors cut where a row is missing, without short pieces, and the rows left; or all, if few are left."""
    labels, patterns = record.presence
    whole = np.asarray(patterns.all(axis=1), bool)[labels][:-1]
    if whole.all():
        return [regressors], record.steps
    edges = np.flatnonzero(np.diff(np.concatenate([[False], whole, [False]]).astype(np.int8))).reshape(-1, 2)
    pieces = [regressors[a:b] for a, b in edges if b - a >= SHORTEST]
    rows = sum(len(piece) for piece in pieces)
    return (pieces, rows) if 2 * rows > record.steps else ([regressors], record.steps)


def _moves_covariance(parameters: Parameters) -> NDArray[np.intp]:
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


def _basis_of_noise(parameters: Parameters, Q: FloatArray) -> FloatArray:
    """dQ for unit changes of each unit's own variances and covariances: any basis of the same space will do."""
    out = []
    for own in parameters.process.slices:
        root = np.linalg.cholesky(Q[own, own])
        for i, j in zip(*np.tril_indices(len(root)), strict=True):
            direction = np.zeros_like(Q)
            block = np.outer(root[:, i], root[:, j])
            direction[own, own] = block + block.T
            out.append(direction)
    return np.array(out).reshape(-1, *Q.shape)


def _driving_matrices(parameters: Parameters, gains: FloatArray, U: int, r: int) -> FloatArray:
    """G = [dA dB A dK L] of every parameter (n, P, P + U + r); ``gains`` holds A dK L of those that move it."""
    P = sum(parameters.record.states)
    rows, columns = positions(parameters)
    count = parameters.coupling_size() + parameters.noise_size()
    G = np.zeros((count, P, P + U + r))
    G[np.arange(len(rows)), rows, columns] = 1.0
    G[_moves_covariance(parameters), :, P + U :] = gains
    return G


def quadratic_form(F: FloatArray, Y: FloatArray, pieces: list[FloatArray]) -> FloatArray:
    """Σ_d over all lags of ((Fᵀ)^d Y) ⊗ R_w(d), as a matrix over (state, regressor) pairs."""
    P, n = F.shape[0], pieces[0].shape[1]
    weights, lagged = [], []
    pieces = _some_rows(pieces)
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


def _some_rows(pieces: list[FloatArray]) -> list[FloatArray]:
    """Pieces of at most MOST_ROWS rows in all, spread evenly over the record."""
    total = sum(len(w) for w in pieces)
    if total <= 2 * MOST_ROWS:
        return pieces
    count = max(1, MOST_ROWS // (2 * MOST_LAGS))
    longest = sorted(pieces, key=len)[-1]
    if len(longest) < 2 * MOST_ROWS:
        return sorted(pieces, key=len)[-max(1, len(pieces) * MOST_ROWS // total) :]
    starts = np.linspace(0, len(longest) - MOST_ROWS // count, count).astype(int)
    return [longest[a : a + MOST_ROWS // count] for a in starts]


def differenced_information(
    record: SharedRecord, parameters: Parameters, A: FloatArray, B: FloatArray, Q: FloatArray
) -> FloatArray:
    """Observed information by differences of the gradient; exact for gaps, one pair of passes a parameter."""
    size = parameters.coupling_size()
    if size > MOST_DIFFERENCES:
        raise CounterflowError(
            f"standard errors: with missing rows they take two passes over the data for each of {size:,} couplings, "
            f"over the limit of {MOST_DIFFERENCES}; fit an unbroken stretch, or fewer units at once"
        )
    P = A.shape[0]
    base = np.hstack([A, B])
    here = evaluate(record, A, B, Q)
    step = 1e-3 / np.sqrt(np.maximum(_complete_information(parameters, here), 1e-300))
    of_process = _basis_of_noise(parameters, Q)
    noise_step = 1e-3 / np.sqrt(record.steps)
    directions = [(base_step(parameters, i, step[i]), 0.0 * Q) for i in range(size)]
    directions += [(0.0 * base, noise_step * dQ) for dQ in of_process]
    steps = np.concatenate([step, np.full(len(of_process), noise_step)])

    def gradient(shift: FloatArray, noise: FloatArray) -> FloatArray:
        moved = base + shift
        at = evaluate(record, moved[:, :P], moved[:, P:], Q + noise)
        slope = parameters.pack(np.asarray(np.linalg.solve(at.Q, at.gap), np.float64))
        if len(of_process):
            inner = 0.5 * np.linalg.solve(at.Q, np.linalg.solve(at.Q, at.noise_moment - at.steps * at.Q).T)
            slope = np.concatenate([slope, np.einsum("kij,ij->k", of_process, inner)])
        return slope

    columns = [
        -(gradient(shift, noise) - gradient(-shift, -noise)) / (2 * h)
        for (shift, noise), h in zip(directions, steps, strict=True)
    ]
    information = np.array(columns)
    return np.asarray((information + information.T) / 2)


def base_step(parameters: Parameters, index: int, size: float) -> FloatArray:
    """A (P, P+U) matrix with one packed entry set."""
    vector = np.zeros(parameters.coupling_size())
    vector[index] = size
    return parameters.unpack(vector)


def _complete_information(parameters: Parameters, at: Evaluation) -> FloatArray:
    """Diagonal of the information that known states would give: the scale of a difference."""
    return parameters.pack(np.outer(1 / np.diag(at.Q), np.diag(at.S_xx)))
