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

    A model that does not settle foresees nothing.
    """
    from scipy.linalg import solve_discrete_lyapunov

    numbers = len(observation)
    if np.abs(np.linalg.eigvals(A)).max(initial=0.0) > SETTLES or not numbers:
        return nothing(len(u), numbers)
    with np.errstate(all="ignore"):  # inputs beyond all measure foresee nothing either
        rest = np.linalg.solve(np.eye(len(A)) - A, B @ u.mean(axis=0))
        moved = np.vstack([rest, linear_recurrence(A, u[:-1] @ B.T, rest)])
        away = moved - rest
        noise = np.asarray(solve_discrete_lyapunov(A, Q))
        spread = noise + FURTHER**2 * away.T @ away / len(away)
        alone = observation @ noise @ observation.T + np.eye(numbers)
        covariance = observation @ spread @ observation.T + np.eye(numbers)
    if not (np.isfinite(covariance).all() and np.isfinite(moved).all()):
        return nothing(len(u), numbers)
    return around(moved @ observation.T, covariance, alone)


def around(centre: FloatArray, covariance: FloatArray, noise: FloatArray) -> ClippingRegion:
    """Coordinates in which rows of this ``covariance`` are alike in every direction; ``noise``: what is sure of it."""
    from scipy.special import chdtri

    W = np.linalg.inv(np.linalg.cholesky((covariance + covariance.T) / 2))
    usual = math.sqrt(float(chdtri(len(W), USUAL)))
    return ClippingRegion(centre, W, usual * math.sqrt(float(np.linalg.norm(W @ noise @ W.T, 2))))


def joint_responses(
    A: FloatArray, B: FloatArray, Q: FloatArray, others: Sequence[tuple[FloatArray, FloatArray]], u: FloatArray,
    observations: Sequence[FloatArray], slices: Sequence[slice],
) -> list[ClippingRegion]:  # fmt: skip
    """Around the response of all units together to all inputs; ``others``: systems that it might be as well."""
    from scipy.linalg import solve_discrete_lyapunov

    states = _driven(A, B, u)
    noise = np.asarray(solve_discrete_lyapunov(A, Q))
    doubt = np.zeros_like(noise)
    for other in others:
        away = _driven(*other, u) - states
        doubt += away.T @ away / len(away) / len(others)
    out = []
    for observation, own in zip(observations, slices, strict=True):
        alone = observation @ noise[own, own] @ observation.T + np.eye(len(observation))
        unsure = observation @ doubt[own, own] @ observation.T
        out.append(around(states[:, own] @ observation.T, alone + unsure, alone))
    return out


def _driven(A: FloatArray, B: FloatArray, u: FloatArray) -> FloatArray:
    """States (T+1, P) that inputs alone make, from where the first input would have them rest."""
    rest = np.linalg.solve(np.eye(len(A)) - A, B @ u.mean(axis=0))
    return np.vstack([rest, linear_recurrence(A, u[:-1] @ B.T, rest)])
