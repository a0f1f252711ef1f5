"""A sufficient message under differential privacy: clipped, noised, and still a sufficient message.

s[t] depends on y[t] alone, so one measurement moves one row of the message. Each row is brought into an ellipsoid
|W (s[t] - centre[t])| <= c; replacing one row then moves the release by at most 2c, and w rows by 2c√w, in coordinates
W s. Gaussian noise of standard deviation σ is added there. For the server that is more measurement noise, of a
covariance that is known: s̃ = C̃ h + N(0, I + σ² W⁻¹W⁻ᵀ). The unit whitens by the root of it, so what leaves is a message
s' = C' h + N(0, I) like any other, only with a smaller C', and all that the server computes of it, intervals included,
knows of the noise.

Centre and W come from the unit's own model and inputs, or are 0 and the identity if ``clip`` is given. How far rows
then reach is not known beforehand; the unit counts the rows beyond a few radii, with noise of its own, at a small share
of the budget.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.errors import PrivacyError
from counterflow.exchange.input_feedback import UNSEEN
from counterflow.learning.clipping import ClippingRegion, nothing, own_response
from counterflow.plant import LocalModel
from counterflow.privacy import Cost, Privacy, gaussian_release, grid_of
from counterflow.protocol import Sufficient

MECHANISM = "analytic Gaussian mechanism on clipped sufficient messages"
UNPROTECTED = (
    "inputs and which rows are missing: they are sent as they are",
    "a row of the recording is what counts as one measurement: a raw reading that preparation has spread over several "
    "rows (by holding, filling or resampling) is protected as one only if the window is that wide",
    UNSEEN,
)
MODELS_EXCLUDED = (
    "local models (A, B, Q and the shape of the messages) and preprocessing statistics: taken to come from other data; "
    "if they were fitted on these rows, what they reveal is not covered"
)
SHARE = 0.05  # of μ²: what finding the clip costs, or counting the rows beyond a given one
STEPS, RATIO, FIRST = 6, 1.2, 0.25  # of the bisection among 64 radii, from 0.25 √r to 24,000 √r
SURELY = 2.0  # standard deviations of its noise that are added to a count of clipped rows
OUTSIDE = 1e-3  # share of rows that may be clipped, if noise lets it be seen


@dataclass(frozen=True, eq=False)
class PrivateRelease:
    """What a private message was made with."""

    sigma: float  # standard deviation of the noise in coordinates W s
    clip: float  # radius in those coordinates
    found_clip: bool  # whether the radius was found from the record, at a share of the budget
    clipped: float  # share of rows that were outside; nobody else may know
    may_clip: float  # share that may be outside at most, as anybody can compute or was told with noise


def message_cost(privacy: Privacy, rows: int, states: int) -> Cost:
    """What a private message of so many rows costs."""
    return privacy.cost(rows, most_numbers(rows, states))


def needed_noise(privacy: Privacy, release: PrivateRelease, rows: int, states: int) -> float:
    """The least standard deviation of the noise that a message with this clip needs."""
    mu = math.sqrt(1 - SHARE) / privacy.multiplier(most_numbers(rows, states))
    return 2 * release.clip * math.sqrt(privacy.window) / mu


def foreseen(model: LocalModel, observation: FloatArray, u: FloatArray) -> ClippingRegion:
    """In which rows are clipped: around the response of the unit's own model to its own inputs."""
    return own_response(model.A, model.B, model.Q, observation, u)


def private_radius(
    rows: FloatArray, mu: float, privacy: Privacy, *names: str, outside: float = OUTSIDE, least: float = 0.0
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


def privatised(message: Sufficient, model: LocalModel, privacy: Privacy) -> tuple[Sufficient, PrivateRelease]:
    """The message with every row clipped and noised, once and for all: send it again, but do not make it again.

    Examples
    --------
    >>> import counterflow as cf
    >>> plant = cf.random_plant(units=1, rng=0)
    >>> record, model = plant.simulate(100, rng=1)["unit1"], plant.local("unit1")
    >>> from counterflow.exchange.sufficient.unit import sufficient_message
    >>> message = sufficient_message("unit1", model, record.y, record.u)
    >>> private, release = privatised(message, model, cf.Privacy(epsilon=1.0, delta=1e-6, seed=1))
    >>> private.numbers.shape == message.numbers.shape, release.sigma > release.clip
    (True, True)
    """
    if len(message.ranks) > 2 or message.ranks[1:].any():
        raise PrivacyError(f"unit {message.unit!r}: a private message is made of whole rows only")
    unit, observation = message.unit, message.observation
    there = message.labels == 0
    rows, numbers = int(there.sum()), len(observation)
    mu = 1 / privacy.multiplier(most_numbers(len(message.inputs), observation.shape[1]))
    given = privacy.clip is not None
    at = nothing(len(message.inputs), numbers) if given else foreseen(model, observation, message.inputs)
    centre = at.centre[there]
    with np.errstate(all="ignore"):
        moved = (message.numbers[there] - centre) @ at.W.T
    # a seeded source gives each release its own noise: by whose it is, of which rows and with which inputs
    names = unit, str(privacy.start), hashlib.sha256(message.inputs.tobytes()).hexdigest()
    if privacy.clip is not None:
        radius = privacy.clip
        beyond, doubt = np.array([float(clipped_rows(moved, radius)[1].sum())]), privacy.window / math.sqrt(SHARE) / mu
        told = gaussian_release(beyond, doubt, privacy.source, *names, "rows clipped")
        may_clip = float(np.clip((told[0] + SURELY * doubt) / max(rows, 1), 0.0, 1.0))
    else:
        radius = private_radius(moved, math.sqrt(SHARE) * mu, privacy, *names)
        may_clip = min(1.0, OUTSIDE + 3 * math.sqrt(STEPS / SHARE) * privacy.window / mu / max(rows, 1))
    mu *= math.sqrt(1 - SHARE)
    inside, outside = clipped_rows(moved, radius)
    sigma = 2 * radius * math.sqrt(privacy.window) / mu
    noised = gaussian_release(inside, sigma, privacy.source, *names, "sufficient message")
    back = np.linalg.inv(at.W)
    variance = sigma**2 + grid_of(sigma) ** 2 / 12
    root = np.linalg.cholesky(np.eye(numbers) + variance * back @ back.T)
    values = np.linalg.solve(root, (noised @ back.T + centre).T).T
    sent = replace(
        message, values=np.ascontiguousarray(values).ravel(),
        observations=np.ascontiguousarray(np.linalg.solve(root, observation)),
    )  # fmt: skip
    share = float(outside.mean()) if len(outside) else 0.0
    return sent, PrivateRelease(sigma, radius, not given, share, may_clip)


def most_numbers(rows: int, states: int) -> int:
    """How many numbers a release of so many rows and states could hold, counts included."""
    return rows * states + STEPS


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


def _lengths(rows: FloatArray) -> FloatArray:
    """Of each row, without overflow."""
    largest = np.abs(rows).max(axis=1, initial=0.0)
    return np.asarray(largest * np.sqrt(np.square(rows / np.where(largest > 0, largest, 1.0)[:, None]).sum(axis=1)))
