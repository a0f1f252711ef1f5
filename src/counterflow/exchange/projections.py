"""Projections of a unit's rows, with the noise of privacy.

Under differential privacy rows are clipped, projections noised, each round at its share of the budget. Row t has a part
φ[t] d[t]ᵀ in Z = Φᵀ d, d[t] = W (s[t] - centre[t]) clipped to |d[t]| <= c. Replacing it moves Z by |φ[t]| 2c at most.
Replacing w consecutive rows moves it by |Φ_wᵀ D| <= |Φ_w| 2c √w, |Φ_w| the largest singular value of these rows of Φ.
So a round is one Gaussian mechanism of sensitivity

    Δ = 2 c reach,     reach = √w max |Φ_w|   (w = 1: the longest row of Φ).

All of Φ, centre and W comes from inputs, models and what the unit has released before: rounds are chosen with earlier
releases in view, which is what composition allows, μ² = Σ μ_i². The unit measures ``reach`` itself on the Φ that it was
sent, so its promise does not rest on how anybody has made Φ.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.errors import PrivacyError, ProtocolError
from counterflow.privacy import Privacy, gaussian_release
from counterflow.privacy.clipping import STEPS, SURELY, AddedNoise, clipped_rows, private_radius
from counterflow.protocol import Basis, Moments

SHARES = (0.05, 0.15, 0.8)  # of μ², by round: what others do is foreseen better in each, and less is left to clip
RADIUS = 0.05  # of a round's μ²: what finding the clip costs
COUNTED = 0.02  # of a round's μ²: what telling how much was clipped costs
CHANNELS = 10_000  # of a unit, at most
OUTSIDE = 5e-3  # share of rows that may be clipped, if noise lets it be seen


def projected(
    unit: str, numbers: FloatArray, there: NDArray[np.bool_], basis: FloatArray, asked: Basis,
    privacy: Privacy | None, digest: str,
) -> tuple[Moments, AddedNoise | None]:  # fmt: skip
    """What a unit says of its ``numbers`` s (T+1, r), if they are ``there``, in one round; private if asked to be.

    ``digest``: of its inputs, by which a seeded source tells releases apart.
    """
    rows, width = numbers.shape
    if basis.shape[0] != rows or not 1 <= basis.shape[1] <= rows or asked.shape.shape != (width, width):
        raise ProtocolError(
            f"unit {unit!r}: a basis of shape {basis.shape} for {width} numbers of {rows} rows is none; ask the "
            "coordinator what that was"
        )
    centre = asked.centre if len(asked.centre) else np.zeros((rows, width))
    if centre.shape != numbers.shape or np.linalg.matrix_rank(asked.shape) < width:
        raise ProtocolError(f"unit {unit!r}: centre or shape of the round are not of {width} numbers of {rows} rows")
    used = np.where(there[:, None], basis, 0.0)
    if privacy is None:
        values = used.T @ np.where(there[:, None], numbers, 0.0)
        return Moments(unit, asked.round, values, np.zeros((width, width))), None
    with np.errstate(all="ignore"):
        moved = (numbers - centre) @ asked.shape.T
    names = unit, str(privacy.start), digest, str(asked.round)
    noised, made = released(moved, there, basis, privacy, asked.round, asked.least, *names)
    back = np.linalg.inv(asked.shape)
    values = noised @ back.T + used.T @ centre
    noise = made.variance * back @ back.T
    return Moments(unit, asked.round, np.ascontiguousarray(values), (noise + noise.T) / 2, made.may_clip), made


def released(
    rows: FloatArray, there: NDArray[np.bool_], basis: FloatArray, privacy: Privacy, number: int, least: float,
    *names: str,
) -> tuple[FloatArray, AddedNoise]:  # fmt: skip
    """Φᵀ d with noise (K, r), once and for all: send it again, but do not make it again.

    ``rows``: d (T+1, r), which count where they are ``there`` (T+1,); that is public, and must not depend on their
    values. ``basis``: Φ (T+1, K). ``number``: of the round. ``least``: radius below which no clip is tried, 0: none.
    ``names``: whose noise a seeded source gives.
    """
    used, known = np.where(there[:, None], basis, 0.0), rows[there]
    known = np.where(np.isfinite(known).all(axis=1, keepdims=True), known, 0.0)  # beyond all numbers: it stays, as zero
    mu = mu_of(privacy, len(rows), number)
    given = privacy.clip is not None
    if privacy.clip is not None:
        radius = privacy.clip
    else:
        radius = private_radius(known, math.sqrt(RADIUS) * mu, privacy, *names, outside=OUTSIDE, least=least)
    inside, outside = clipped_rows(known, radius)
    reach = reach_of(used, privacy.window)
    if not reach > 0:
        raise PrivacyError(
            f"unit {names[0]!r}: none of its rows has a part in what it is asked for; nothing was released"
        )
    may_clip = _told_share(used[there], outside, math.sqrt(COUNTED) * mu, privacy, *names)
    sigma = sigma_of(privacy, len(rows), number, radius, reach, found_clip=not given)
    noised = gaussian_release(used[there].T @ inside, sigma, privacy.source, *names, "moments")
    share = float(outside.mean()) if len(outside) else 0.0
    return noised, AddedNoise(sigma, radius, not given, share, may_clip, reach, number)


def reach_of(basis: FloatArray, window: int) -> float:
    """How far ``window`` consecutive rows, each at most 1 long, can move projections on a basis (T+1, K)."""
    scale = float(np.abs(basis).max(initial=0.0))
    if not scale > 0:
        return 0.0
    basis = basis / scale  # squares of small numbers would vanish
    if window == 1:
        return float(np.linalg.norm(basis, axis=1).max()) * scale * (1 + 1e-12)
    width = min(window, len(basis))
    starts = np.arange(len(basis) - width + 1)
    worst = 0.0
    for first in range(0, len(starts), 512):  # a few hundred windows at a time
        at = starts[first : first + 512, None] + np.arange(width)
        rows = basis[at]
        gram = np.einsum("nwk,nwl->nkl" if basis.shape[1] <= width else "nwk,nvk->nwv", rows, rows, optimize=True)
        worst = max(worst, float(np.linalg.eigvalsh(gram)[:, -1].max()))
    return math.sqrt(width * worst) * scale * (1 + 1e-12)


def most_numbers(rows: int) -> int:
    """How many numbers all rounds could release, counts included: no basis has more signals than rows."""
    return len(SHARES) * (rows * CHANNELS + STEPS + 1)


def mu_of(privacy: Privacy, rows: int, number: int) -> float:
    """Of round ``number``."""
    return math.sqrt(SHARES[number]) / privacy.multiplier(most_numbers(rows))


def sigma_of(privacy: Privacy, rows: int, number: int, clip: float, reach: float, found_clip: bool) -> float:
    """Of the noise of projections, which have what counting and finding the clip leave of a round's μ²."""
    left = 1 - COUNTED - (RADIUS if found_clip else 0.0)
    return 2 * clip * reach / (mu_of(privacy, rows, number) * math.sqrt(left))


def _told_share(basis: FloatArray, outside: NDArray[np.bool_], mu: float, privacy: Privacy, *names: str) -> float:
    """Share of ΦᵀΦ in the rows that are clipped, at most: what clipping can take of a projection, told with noise.

    Replacing w rows moves the share by at most what w rows have of it.
    """
    weight = np.square(basis / np.abs(basis).max()).sum(axis=1)
    weight = weight / weight.sum()
    sigma = min(1.0, privacy.window * float(weight.max())) / mu
    told = gaussian_release(np.array([weight[outside].sum()]), sigma, privacy.source, *names, "share clipped")
    return float(np.clip(told[0] + SURELY * sigma, 0.0, 1.0))
