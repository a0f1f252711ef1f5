"""A system whose states belong to nobody, written so that every state has an owner, and in the form of messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from counterflow.arrays import FloatArray, slices
from counterflow.filtering import compress_by_presence
from counterflow.filtering.covariances import lyapunov
from counterflow.identification import independent_noises
from counterflow.learning.layout import own_blocks
from counterflow.learning.likelihood import Patterns, SharedRecord, stacked
from counterflow.learning.optimiser import Estimated
from counterflow.learning.realisation import Realised

LIKELY_ROWS = 20_000  # the newest, whose likelihood is told: nothing rests on it


@dataclass(frozen=True, eq=False)
class Owned:
    """Record and estimate in the form of sufficient messages; how numbers see the states, and their noise."""

    record: SharedRecord
    found: Estimated
    observation: FloatArray  # (r, P), block-diagonal
    noise: FloatArray  # (r, r), block-diagonal


def assign_states(
    system: Realised, names: tuple[str, ...], s: FloatArray, u: FloatArray, own: Sequence[slice],
    inputs: tuple[int, ...],
) -> Owned:  # fmt: skip
    """Add the units' numbers to the states, and give every other state to the unit whose numbers it moves most.

    ``s`` (T+1, r), ``u`` (T+1, U): numbers and inputs of all units; ``own``: where each unit's numbers stand.
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
    seen, blocks = np.zeros_like(observation), slices(states)
    found = [
        compress_by_presence(s[:, one], observation[one, two], R[one, one])
        for one, two in zip(own, blocks, strict=True)
    ]
    for one, two, each in zip(own, blocks, found, strict=True):
        seen[one, two] = each.observations[0]
    patterns = None
    if not np.isfinite(s).all():
        patterns = Patterns(
            np.stack([each.labels for each in found], axis=1), tuple(stacked(each.observations) for each in found)
        )
    spread_noise = T @ Q @ T.T
    record = SharedRecord(
        names=names, states=tuple(states), inputs=inputs, values=np.hstack([each.values for each in found]), u=u,
        observation=seen, noise=np.eye(r), A_local=own_blocks(wide, blocks, blocks),
        B_local=own_blocks(T @ B, blocks, slices(inputs)), Q_local=own_blocks(spread_noise, blocks, blocks),
        patterns=patterns,
    )  # fmt: skip
    likelihood = record.last(LIKELY_ROWS).filter(wide, T @ B, spread_noise).log_likelihood
    estimate = Estimated(wide, T @ B, spread_noise, likelihood, 1, True, 0.0)
    return Owned(record, estimate, observation, R)
