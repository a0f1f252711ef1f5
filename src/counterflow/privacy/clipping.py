"""Rows that are clipped before noise is added to them, and how a message was made private."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.privacy.noise import gaussian_release, grid_of
from counterflow.privacy.settings import Privacy

STEPS, RATIO, FIRST = 6, 1.2, 0.25  # of the bisection among 64 radii, from 0.25 √r to 24,000 √r
SURELY = 2.0  # standard deviations of its noise that are added to a count of clipped rows


@dataclass(frozen=True, eq=False)
class AddedNoise:
    """What a private message was made with: noise of ``sigma`` = 2 clip reach / μ in coordinates W s."""

    sigma: float  # standard deviation of the noise
    clip: float  # length that rows have at most
    found_clip: bool  # whether it was found from the record, at a share of the budget
    clipped: float  # share of rows that were longer; nobody else may know
    may_clip: float  # the same at most, as anybody can compute or was told with noise
    reach: float  # replacing as many rows as are protected as one moves the message by 2 clip reach at most
    round: int = 0

    @property
    def variance(self) -> float:
        """Of the noise of each number, rounding included."""
        return self.sigma**2 + grid_of(self.sigma) ** 2 / 12


def clipped_rows(rows: FloatArray, radius: float) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Rows (n, r) shortened to ``radius``, and which of them were; a row beyond all numbers becomes zero.

    >>> inside, outside = clipped_rows(np.array([[3.0, 4.0], [0.3, 0.4], [np.inf, 0.0]]), 1.0)
    >>> inside.round(6).tolist(), outside.tolist()
    ([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]], [True, False, True])
    """
    with np.errstate(all="ignore"):
        length = _lengths(rows)
        factor = np.minimum(1.0, radius * (1 - 1e-12) / np.where(length > 0, length, 1.0))
        inside = rows * factor[:, None]
    lost = ~np.isfinite(length) | ~np.isfinite(inside).all(axis=1)
    outside = lost | (length > radius)
    return np.where(lost[:, None], 0.0, inside), np.asarray(outside)


def private_radius(
    rows: FloatArray, mu: float, privacy: Privacy, *names: str, outside: float, least: float = 0.0
) -> float:
    """A radius that few of ``rows`` (n, r) exceed: bisection by counts with Gaussian noise of total ``mu``.

    Replacing w rows moves a count by at most w. A count is taken for zero up to three standard deviations of its noise:
    mistaking zero for more would cost a radius that is many times too large. ``outside``: share of the rows that may
    exceed it; ``least``: the smallest radius to try, 0: a quarter of √r.
    """
    edges = (least or FIRST * math.sqrt(max(rows.shape[1], 1))) * RATIO ** np.arange(2**STEPS)
    with np.errstate(all="ignore"):
        length = np.nan_to_num(_lengths(rows), nan=np.inf)
    sigma = math.sqrt(STEPS) * privacy.window / mu
    low, high = -1, len(edges) - 1  # too small, large enough
    for step in range(STEPS):
        middle = (low + high) // 2
        beyond = np.array([float((length > edges[middle]).sum())])
        count = gaussian_release(beyond, sigma, privacy.source, *names, "rows beyond", str(step))
        if count[0] <= outside * len(rows) + 3 * sigma:
            high = middle
        else:
            low = middle
    return float(edges[high])


def _lengths(rows: FloatArray) -> FloatArray:
    """Of each row, without overflow."""
    largest = np.abs(rows).max(axis=1, initial=0.0)
    return np.asarray(largest * np.sqrt(np.square(rows / np.where(largest > 0, largest, 1.0)[:, None]).sum(axis=1)))
