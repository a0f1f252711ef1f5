"""What a model foresees of a unit's numbers from inputs alone, and how far the numbers may be from it.

Rows are clipped around what is foreseen, in coordinates in which they are about as far from it in every direction. All
of it comes from models and inputs, which are no secrets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.recurrence import linear_recurrence

FURTHER = 3.0  # coordinates are drawn as if others moved a unit so many times as far as its own inputs do
USUAL = 0.01  # share of rows that noise alone takes beyond the least radius of clipping
SETTLES = 1 - 1e-9  # spectral radius up to which a model foresees anything
DRAWS = 12  # of couplings that are not known yet, by which it is judged what they may do


class ClippingRegion(NamedTuple):
    """Rows are clipped in coordinates W (s - centre); ``least``: the radius that noise alone asks for."""

    centre: FloatArray  # (T+1, r)
    W: FloatArray  # (r, r)
    least: float = 0.0


def nothing(rows: int, numbers: int) -> ClippingRegion:
    """Coordinates are the numbers themselves."""
    return ClippingRegion(np.zeros((rows, numbers)), np.eye(numbers))


def own_response(A: FloatArray, B: FloatArray, Q: FloatArray, observation: FloatArray, u: FloatArray) -> ClippingRegion:
    """Around the response of a unit's own model to its own inputs, scaled by how they and its noise move it.

    A model that does not settle foresees nothing; nor do inputs beyond all measure.
    """
    numbers = len(observation)
    if np.abs(np.linalg.eigvals(A)).max(initial=0.0) > SETTLES or not numbers:
        return nothing(len(u), numbers)
    with np.errstate(all="ignore"):
        states = driven(A, B, u)
        away = states - states[0]
        doubt = FURTHER**2 * away.T @ away / len(away)
    if not (np.isfinite(observation @ doubt @ observation.T).all() and np.isfinite(states).all()):
        return nothing(len(u), numbers)
    return around_states(states, Q, A, doubt, [observation], [slice(None)])[0]


def around_states(
    states: FloatArray, Q: FloatArray, A: FloatArray, doubt: FloatArray, observations: Sequence[FloatArray],
    slices: Sequence[slice],
) -> list[ClippingRegion]:  # fmt: skip
    """Around what each unit sees of ``states`` (T+1, P), in coordinates in which rows are alike in every direction.

    ``doubt`` (P, P): what is not known of the states, beside their noise.
    """
    from scipy.linalg import solve_discrete_lyapunov
    from scipy.special import chdtri

    noise, out = np.asarray(solve_discrete_lyapunov(A, Q)), []
    for observation, own in zip(observations, slices, strict=True):
        sure = observation @ noise[own, own] @ observation.T + np.eye(len(observation))
        covariance = sure + observation @ doubt[own, own] @ observation.T
        W = np.linalg.inv(np.linalg.cholesky((covariance + covariance.T) / 2))
        usual = math.sqrt(float(chdtri(len(W), USUAL)) * float(np.linalg.norm(W @ sure @ W.T, 2)))
        out.append(ClippingRegion(states[:, own] @ observation.T, W, usual))
    return out


def driven(A: FloatArray, B: FloatArray, u: FloatArray) -> FloatArray:
    """States (T+1, P) that inputs alone make, from where the first input would have them rest."""
    rest = np.linalg.solve(np.eye(len(A)) - A, B @ u.mean(axis=0))
    return np.vstack([rest, linear_recurrence(A, u[:-1] @ B.T, rest)])
