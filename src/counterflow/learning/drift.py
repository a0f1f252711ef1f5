"""Units that change slowly: weights that go evenly with time, or a memory that fades.

Both are judged from sums of products by blocks of neighbouring rows. With τ from minus one to zero, the present,

    y = x (w + τ d) + e

the log-likelihood rises by what few entries of d are worth (``regimes.difference_gains``), and a unit drifts if that is
more than with the times of the blocks shuffled: weights of a model that does not follow all of a plant differ between
any two blocks. Slopes use all rows. Where
drift is not even, older rows count less: the memory is the one with which blocks are foretold best from those before
them, if any is better than all rows alike. A level that moves is neither: something that nobody records may move it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.learning.regimes import DIVISIONS, LEAST_NOISE, RIDGE, difference_gains

DRIFTING = 7.0  # nats of weights that go evenly with time, beyond those with shuffled times: the unit drifts
MEMORIES = (0.5, 0.25, 0.125)  # of a record: ages at which a row counts 1/e, that are tried
BETTER, SURELY = 0.01, 2.0  # fall of the logarithm of the squared error that is worth it, and in standard errors


@dataclass(frozen=True)
class Drift:
    """A unit, by its place, that changes slowly.

    ``memory``: the share of the record at which a row counts 1/e; None: its weights go evenly with time. ``gain``:
    nats, or the relative fall of the squared error of held-out rows.
    """

    unit: int
    memory: float | None
    gain: float


def drift_of(unit: int, sums: Sequence[FloatArray], counts: FloatArray) -> Drift | None:
    """How a unit drifts, if it does.

    ``sums``: of each of its numbers (B, s + 2, s + 2), by block: its s features, the target, and a constant. ``counts``
    (B,): rows of each block.
    """
    rng, time = np.random.default_rng(0), ramp(len(counts))
    shuffled = [rng.permutation(time) for _ in range(DIVISIONS)]
    slopes = 0.0
    for blocks in sums:
        by_chance = max(slope_gain(blocks, counts, other) for other in shuffled)
        slopes += slope_gain(blocks, counts, time) - by_chance
    if slopes >= DRIFTING:
        return Drift(unit, None, slopes)
    gains, errors = memory_gains(sums, counts)
    good = (gains >= BETTER) & (gains >= SURELY * errors)
    if not good.any():
        return None
    best = int(np.where(good, gains, -np.inf).argmax())
    return Drift(unit, MEMORIES[best], float(-np.expm1(-gains[best])))


def ramp(blocks: int) -> FloatArray:
    """Time (B,) of blocks, from minus one to zero, the present."""
    return np.asarray((np.arange(blocks) + 0.5) / blocks - 1.0)


def faded(blocks: int, memory: float) -> FloatArray:
    """Weights (B,) of blocks with a memory, as a share of the record: the newest counts one."""
    return np.asarray(np.exp(-np.arange(blocks)[::-1] / (memory * blocks)))


def slope_gain(sums: FloatArray, counts: FloatArray, time: FloatArray) -> float:
    """Net gain of weights of a number that go with a time (B,) of its blocks, about a level that does so, too."""
    s = sums.shape[1] - 1
    plain, first, second = (np.tensordot(time**power, sums, 1) for power in range(3))
    whole = np.block([[plain, first], [first, second]])
    levels = np.array([s, 2 * s + 1])
    reach = np.linalg.solve(whole[np.ix_(levels, levels)], whole[levels])
    left = np.delete(np.delete(whole - whole[:, levels] @ reach, levels, 0), levels, 1)
    rows, square = int(counts.sum()), left[None, s:, s:]
    return float(difference_gains(left[:s, :s], left[None, s:, :s], rows, square=square)[0])


def memory_gains(sums: Sequence[FloatArray], counts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """By how much each of the ``MEMORIES`` foretells blocks better than all rows alike, and its standard error.

    Each block of the later half is foretold from those before it, weighted by their age. What counts is the fall of the
    logarithm of the squared error, in the mean over numbers and blocks, about the means of each block.
    """
    B = len(counts)
    later = range(B // 2, B)
    logs = np.zeros((len(sums), 1 + len(MEMORIES), len(later)))
    for i, given in enumerate(sums):
        s = given.shape[1] - 2
        means = given[:, -1, :-1] / np.maximum(counts, 1.0)[:, None]
        blocks = given[:, :-1, :-1] - given[:, -1, :-1, None] * means[:, None]
        for j, b in enumerate(later):
            ages = (b - 1 - np.arange(b)) / B
            for k, memory in enumerate((np.inf, *MEMORIES)):
                weights = np.exp(-ages / memory)
                before, rows = np.tensordot(weights, blocks[:b], 1), float(weights @ counts[:b])
                w = np.linalg.solve(before[:s, :s] + RIDGE * rows * np.eye(s), before[:s, s])
                now = blocks[b]
                left = float(now[s, s] - 2 * w @ now[:s, s] + w @ now[:s, :s] @ w) / max(float(counts[b]), 1.0)
                logs[i, k, j] = np.log(max(left, LEAST_NOISE))
    gains = (logs[:, :1] - logs[:, 1:]).mean(axis=0)  # (memories, blocks)
    return gains.mean(axis=1), gains.std(axis=1, ddof=1) / np.sqrt(len(later))
