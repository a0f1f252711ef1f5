"""Moments under differential privacy: rows clipped, projections noised, each round at its share of the budget.

Row t has a part φ[t] d[t]ᵀ in Z = Φᵀ d, d[t] = W (s[t] - centre[t]) clipped to |d[t]| <= c. Replacing it moves Z by
|φ[t]| 2c at most. Replacing w consecutive rows moves it by |Φ_wᵀ D| <= |Φ_w| 2c √w, |Φ_w| the largest singular value of
these rows of Φ. So a round is one Gaussian mechanism of sensitivity

    Δ = 2 c reach,     reach = √w max |Φ_w|   (w = 1: the longest row of Φ).

All of Φ, centre and W comes from inputs, models and what the unit has released before: rounds are chosen with earlier
releases in view, which is what composition allows, μ² = Σ μ_i². The unit measures ``reach`` itself on the Φ that it was
sent, so its promise does not rest on how anybody has made Φ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.errors import PrivacyError
from counterflow.exchange.input_feedback import UNSEEN
from counterflow.exchange.sufficient.private import STEPS, SURELY, PrivateRelease, clipped_rows, private_radius
from counterflow.privacy import Cost, Privacy, gaussian_release, grid_of

MECHANISM = "analytic Gaussian mechanism on projections of clipped rows"
SHARES = (0.05, 0.15, 0.8)  # of μ², by round: what others do is foreseen better in each, and less is left to clip
RADIUS = 0.05  # of a round's μ²: what finding the clip costs
COUNTED = 0.02  # of a round's μ²: what telling how much was clipped costs
CHANNELS = 10_000  # of a unit, at most
OUTSIDE = 5e-3  # share of rows that may be clipped, if noise lets it be seen
UNPROTECTED = (
    "inputs and which rows are missing: they are sent as they are, and other units are sent signals that are made of "
    "all units' inputs",
    "a row of the recording is what counts as one measurement: a raw reading that preparation has spread over several "
    "rows (by holding, filling or resampling) is protected as one only if the window is that wide",
    UNSEEN,
)


@dataclass(frozen=True, eq=False)
class MomentRelease(PrivateRelease):
    """What a private message was made with; ``reach``: of the rows of Φ, for as many rows as are protected as one.

    ``may_clip``: share of ΦᵀΦ in rows that were clipped, at most, as it was told with noise.
    """

    reach: float = 0.0
    round: int = 0


def reach_of(basis: FloatArray, window: int) -> float:
    """How far ``window`` consecutive rows, each at most 1 long, can move projections on a basis (T+1, K).

    Examples
    --------
    >>> basis = np.array([[0.6, 0.0], [0.0, 0.8], [0.3, 0.0]])
    >>> round(reach_of(basis, 1), 6), round(reach_of(basis, 3), 6)
    (0.8, 1.385641)
    """
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


def round_cost(privacy: Privacy, rows: int, number: int) -> Cost:
    """What round ``number`` costs."""
    whole = privacy.cost(rows, most_numbers(rows))
    return Cost(whole.start, whole.stop, row_loss=SHARES[number] * whole.row_loss)


def needed_noise(privacy: Privacy, release: MomentRelease, rows: int) -> float:
    """The least standard deviation of the noise that a round with this clip and reach needs."""
    mu = _mu(privacy, rows, release.round)
    return 2 * release.clip * release.reach / (mu * math.sqrt(_left(release.found_clip)))


def _left(found_clip: bool) -> float:
    """Share of a round's μ² that is left for the projections."""
    return 1 - COUNTED - (RADIUS if found_clip else 0.0)


def _mu(privacy: Privacy, rows: int, number: int) -> float:
    return math.sqrt(SHARES[number]) / privacy.multiplier(most_numbers(rows))


def released(
    rows: FloatArray,
    there: NDArray[np.bool_],
    basis: FloatArray,
    privacy: Privacy,
    number: int,
    least: float,
    *names: str,
) -> tuple[FloatArray, MomentRelease]:
    """Φᵀ d with noise (K, r), once and for all: send it again, but do not make it again.

    Parameters
    ----------
    rows : d (T+1, r). there : (T+1,), which of them were measured; that is public, and must not depend on their values.
    basis : Φ (T+1, K), which is taken as zero in the others.
    number : of the round.
    least : radius below which no clip is tried, 0: none.
    names : whose noise a seeded source gives.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> d, basis = rng.normal(size=(5000, 2)), np.full((5000, 1), 5000**-0.5)
    >>> Z, release = released(d, np.ones(5000, bool), basis, Privacy(epsilon=1.0, delta=1e-6, seed=0), 2, 0.0, "boiler")
    >>> Z.shape, bool(release.sigma < 1), 2 < release.clip < 5
    ((1, 2), True, True)
    """
    used, known = np.where(there[:, None], basis, 0.0), rows[there]
    known = np.where(np.isfinite(known).all(axis=1, keepdims=True), known, 0.0)  # beyond all numbers: it stays, as zero
    mu = _mu(privacy, len(rows), number)
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
    sigma = 2 * radius * reach / (mu * math.sqrt(_left(not given)))
    exact = used[there].T @ inside
    noised = gaussian_release(exact, sigma, privacy.source, *names, "moments")
    share = float(outside.mean()) if len(outside) else 0.0
    return noised, MomentRelease(sigma, radius, not given, share, may_clip, reach, number)


def _told_share(basis: FloatArray, outside: NDArray[np.bool_], mu: float, privacy: Privacy, *names: str) -> float:
    """Share of ΦᵀΦ in the rows that are clipped, at most: what clipping can take of a projection, told with noise.

    Replacing w rows moves the share by at most what w rows have of it.
    """
    weight = np.square(basis / np.abs(basis).max()).sum(axis=1)
    weight = weight / weight.sum()
    sigma = min(1.0, privacy.window * float(weight.max())) / mu
    told = gaussian_release(np.array([weight[outside].sum()]), sigma, privacy.source, *names, "share clipped")
    return float(np.clip(told[0] + SURELY * sigma, 0.0, 1.0))


def noise_variance(release: MomentRelease | None) -> float:
    """Of each number of a round, rounding included; zero if it is not private."""
    return 0.0 if release is None else release.sigma**2 + grid_of(release.sigma) ** 2 / 12
