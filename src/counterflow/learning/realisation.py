"""A network's mean weights, without products, as a state-space system: for all questions that are asked of states.

The responses of the numbers to inputs and to innovations fill a block Hankel matrix; its leading singular vectors are
states (Ho and Kalman, 1966; Kung, 1978). The range is found by random projections, as the matrix can be large. These
states belong to nobody; then the system is written so that every state has an owner, and in the form of messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from counterflow.arrays import FloatArray, slices
from counterflow.filtering.covariances import lyapunov, spectral_radius
from counterflow.identification import independent_noises
from counterflow.learning.layout import own_blocks
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.network import Network
from counterflow.learning.optimiser import Estimated

STABLE = 1 - 1e-6  # largest modulus of an eigenvalue of A that is left as it is
MOST_STATES = 40
DEPTH = 60  # block rows of the Hankel matrix, and block columns
FAINT = 2e-3  # of the largest singular value: smaller ones are left out
EXTRA = 10  # random directions more than states
LIKELY_ROWS = 20_000  # the newest, whose likelihood is told: nothing rests on it


@dataclass(frozen=True, eq=False)
class Realised:
    """x[t+1] = A x[t] + B u[t] + K e[t],  s[t] = C x[t] + e[t],  Cov(e) = noise; s and u as departures, own terms."""

    A: FloatArray
    B: FloatArray
    C: FloatArray
    K: FloatArray
    noise: FloatArray


def realised(network: Network) -> Realised:
    """The system of the mean of all replicates."""
    r, m = network.size, network.linear.shape[2]
    columns = np.concatenate([np.arange(r, m), np.arange(r)])
    responses = network.responses(columns, 2 * DEPTH)  # (2 depth, r, U + r): of inputs, then of innovations
    inputs = m - r
    hankel = np.empty((DEPTH, r, DEPTH, m))
    for i in range(DEPTH):
        hankel[i] = responses[i : i + DEPTH].transpose(1, 0, 2)
    H = hankel.reshape(DEPTH * r, DEPTH * m)
    most = min(MOST_STATES, DEPTH * r)
    rng = np.random.default_rng(0)
    sketch = H @ rng.standard_normal((H.shape[1], min(most + EXTRA, *H.shape)))
    for _ in range(2):
        sketch = H @ (H.T @ np.linalg.qr(sketch)[0])
    basis = np.linalg.qr(sketch)[0]
    left, values, _ = np.linalg.svd(basis.T @ H, full_matrices=False)
    order = max(1, min(most, int((values > FAINT * values[0]).sum()))) if values[0] > 0 else 1
    seen = (basis @ left[:, :order]) * np.sqrt(np.maximum(values[:order], 1e-300))  # observability, (depth · r, N)
    A = shrink(np.linalg.lstsq(seen[:-r], seen[r:], rcond=None)[0])
    C = seen[:r]
    drive = np.linalg.lstsq(seen, responses[:DEPTH].reshape(DEPTH * r, m), rcond=None)[0]  # B and K, (N, U + r)
    number, input_ = network.scale[:r], network.scale[r:]
    noise = number[:, None] * network.noise * number
    return Realised(A, drive[:, :inputs] / input_, number[:, None] * C, drive[:, inputs:] / number, noise)


def shrink(A: FloatArray, limit: float = STABLE) -> FloatArray:
    """Bring the eigenvalues of A that lie outside of a disc onto its edge and leave the others where they are.

    Works on the real Schur form, so that it is as safe for repeated eigenvalues as for distinct ones.
    """
    from scipy.linalg import schur

    form, Z = schur(A)
    k = 0
    while k < len(A):
        size = 2 if k + 1 < len(A) and form[k + 1, k] != 0 else 1
        block = form[k : k + size, k : k + size]
        radius = spectral_radius(block)
        if radius > limit:
            block *= limit / radius
        k += size
    return np.asarray(Z @ form @ Z.T)


def assign_states(
    system: Realised, names: tuple[str, ...], s: FloatArray, u: FloatArray, own: Sequence[slice],
    inputs: tuple[int, ...],
) -> tuple[SharedRecord, Estimated, FloatArray, FloatArray]:  # fmt: skip
    """Add the units' numbers to the states, and give every other state to the unit whose numbers it moves most.

    ``s`` (T+1, r), ``u`` (T+1, U): numbers and inputs of all units; ``own``: where each unit's numbers stand. What is
    returned: record and estimate in the form of sufficient messages, how numbers see the states (r, P), their noise.
    """
    Q, noise = independent_noises(system.A, system.C, system.K, system.noise)
    A, B, C = system.A, system.B, system.C
    N, r = len(A), len(C)
    drive = u @ B.T
    spread = lyapunov(A, Q + drive.T @ drive / len(u))
    energy = C**2 * np.diag(spread)  # what each state adds to each number
    owner = np.array([energy[mine].sum(axis=0) for mine in own]).argmax(axis=0)
    rows, states, columns = [], [], np.zeros(N, np.intp)
    observation, at = np.zeros((r, N + r)), 0
    for m, mine in enumerate(own):
        hidden, width = np.flatnonzero(owner == m), mine.stop - mine.start
        observation[mine, at : at + width] = np.eye(width)
        rows += [C[mine], np.eye(N)[hidden]]
        columns[hidden] = at + width + np.arange(len(hidden))
        states.append(width + len(hidden))
        at += states[-1]
    T = np.vstack(rows)  # the new states are T times the old ones
    wide = np.zeros((N + r, N + r))
    wide[:, columns] = T @ A
    R = own_blocks(noise, own, own)
    blocks, spread_noise = slices(states), T @ Q @ T.T
    record = SharedRecord(
        names, tuple(states), inputs, values=s, u=u, observation=observation, noise=R,
        A_local=own_blocks(wide, blocks, blocks), B_local=own_blocks(T @ B, blocks, slices(inputs)),
        Q_local=own_blocks(spread_noise, blocks, blocks),
    ).squeezed  # fmt: skip
    likelihood = record.last(LIKELY_ROWS).filter(wide, T @ B, spread_noise).log_likelihood
    estimate = Estimated(wide, T @ B, spread_noise, likelihood, 1, True, 0.0)
    return record, estimate, observation, R
