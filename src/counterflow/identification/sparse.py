"""Sparse Bayesian regression: a few weights out of many, each kept only if the evidence for it is worth its cost.

The target is y = F w + noise, every weight has a Gaussian prior with a variance of its own, and these variances and the
noise maximise the marginal likelihood, less a cost (in nats) for every weight that is not zero. Weights come in
*sources* (the lags of one channel, say): the first weight of a source costs more than a further one. Everything is
computed from products of the features, so that the cost does not depend on the number of rows.

The steps are those of Tipping and Faul (2003): in each, one weight enters or leaves, whichever gains most, and those
that stay take their best variance. With the others as they are, a weight adds to the log evidence

    l(v) = ½ (v q² / (1 + v s) - log(1 + v s)),        v: its prior variance, s and q: see ``_outside``

which is greatest at v = (q² - s) / s² if that is positive, and without the weight otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray

MOST_STEPS = 500
DONE = 0.02  # nats that a step must gain
ROUNDS = 3  # in which variances and noise of weights that were chosen before follow other sums
LEAST_NOISE = 1e-6  # of the target's energy: channels without noise, such as a controller's output, have so much
MOST_SHARE = 3  # rows for each weight that is chosen, at the least
REPEATED = 1e-9  # share of a feature that the chosen ones must leave open, so that it may join them
FIRST_NOISE = 0.1  # of the target's energy, before anything is known


@dataclass(frozen=True)
class SparseWeights:
    """``chosen`` (a,): features with a weight; ``mean`` (a,): their weights; ``variance`` (a,): their priors'.

    ``noise``: variance of what is left.
    """

    chosen: NDArray[np.intp]
    mean: FloatArray
    variance: FloatArray
    noise: float


def sparse_weights(
    gram: FloatArray, cross: FloatArray, energy: float, rows: float, source: NDArray[np.intp], first: FloatArray,
    further: FloatArray,
) -> SparseWeights:  # fmt: skip
    """Find the weights of one target.

    ``gram`` (n, n): FᵀF; ``cross`` (n,): Fᵀy; ``energy``: yᵀy; of how many ``rows``. ``source`` (n,): numbers of the
    sources that the features belong to. ``first``, ``further`` (n,): nats that a feature costs if it is the first of
    its source, and if it is not; ``inf``: it may not enter.
    """
    size = len(cross)
    floor = LEAST_NOISE * energy / max(rows, 1.0)
    noise = max(FIRST_NOISE * energy / max(rows, 1.0), floor)
    diagonal = np.maximum(np.diag(gram), 0.0)
    if energy <= 0 or not diagonal.any():
        return SparseWeights(np.empty(0, np.intp), np.empty(0), np.empty(0), max(noise, np.finfo(np.float64).tiny))
    chosen: list[int] = []
    variance = np.zeros(size)
    members = np.zeros(int(source.max()) + 1, int)
    for _ in range(MOST_STEPS):
        inside = np.array(chosen, np.intp)
        s, q, open_ = _outside(gram, cross, diagonal, noise, inside, variance[inside])
        gain = np.full(size, -np.inf)  # of entering, or of leaving
        may = (q * q > s) & open_
        may[inside] = False
        may &= len(chosen) < rows / MOST_SHARE
        best = np.maximum(q * q - s, 0.0) / s**2
        cost = np.where(members[source] > 0, further, first)
        gain[may] = _evidence(best[may], s[may], q[may]) - cost[may]
        moved = 0.0
        if chosen:
            own = np.where(members[source[inside]] > 1, further[inside], first[inside])
            now, then = (_evidence(v, s[inside], q[inside]) for v in (variance[inside], best[inside]))
            stays = then > own
            gain[inside] = np.where(stays, -np.inf, own - now)
            moved = float((then - now)[stays].max(initial=0.0))
            variance[inside[stays]] = best[inside[stays]]
        at = int(np.argmax(gain))
        if gain[at] > DONE:
            if variance[at] > 0:
                chosen.remove(at)
                members[source[at]] -= 1
                variance[at] = 0.0
            else:
                chosen.append(at)
                members[source[at]] += 1
                variance[at] = best[at]
        elif moved <= DONE:
            break
        if chosen:
            noise = _noise(gram, cross, energy, rows, noise, np.array(chosen, np.intp), variance, floor)
    inside = np.array(chosen, np.intp)
    mean, _ = _posterior(gram, cross, noise, inside, variance[inside])
    return SparseWeights(inside, mean, variance[inside], noise)


def refined_weights(
    gram: FloatArray, cross: FloatArray, energy: float, rows: float, variance: FloatArray, noise: float
) -> tuple[FloatArray, FloatArray, float]:
    """Mean and prior variance (a,) of weights that were chosen before, and noise, from other sums.

    None enters or leaves. ``variance`` (a,), ``noise``: as they were found.
    """
    floor, every = max(LEAST_NOISE * energy / max(rows, 1.0), np.finfo(np.float64).tiny), np.arange(len(cross))
    for _ in range(ROUNDS):
        mean, covariance = _posterior(gram, cross, noise, every, variance)
        spread = np.diag(covariance)
        noise = _noise(gram, cross, energy, rows, noise, every, variance, floor)
        s, q = 1 / spread - 1 / variance, mean / spread  # as in ``_outside``
        variance = np.where((q * q > s) & (s > 0), (q * q - s) / np.where(s > 0, s, 1.0) ** 2, variance)
    return _posterior(gram, cross, noise, every, variance)[0], variance, noise


def _posterior(
    gram: FloatArray, cross: FloatArray, noise: float, inside: NDArray[np.intp], variance: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Mean (a,) and covariance (a, a) of the chosen weights."""
    precision = gram[np.ix_(inside, inside)] / noise + np.diag(1.0 / variance)
    covariance = np.asarray(np.linalg.inv(precision), np.float64)
    return covariance @ cross[inside] / noise, covariance


def _outside(
    gram: FloatArray, cross: FloatArray, diagonal: FloatArray, noise: float, inside: NDArray[np.intp],
    variance: FloatArray,
) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:  # fmt: skip
    """How precisely (s) and with how much pull (q) the rows would set each weight, were it not among the chosen.

    Also whether the chosen features leave anything of it open: what repeats them may not join.
    """
    S, Q = diagonal / noise, cross / noise
    if len(inside):
        from scipy.linalg import cholesky, solve_triangular

        precision = gram[np.ix_(inside, inside)] / noise
        precision[np.diag_indices_from(precision)] += 1.0 / variance
        root = cholesky(precision, lower=True, check_finite=False)
        reach = solve_triangular(root, gram[inside] / noise, lower=True, check_finite=False)
        S = S - np.einsum("an,an->n", reach, reach)
        Q = Q - reach.T @ solve_triangular(root, cross[inside] / noise, lower=True, check_finite=False)
    open_ = diagonal / noise * REPEATED < S
    S = np.maximum(S, np.where(diagonal > 0, 1e-12 * diagonal / noise, 1.0))
    if len(inside):  # what is among the chosen is taken out first
        rest = np.maximum(1.0 - variance * S[inside], 1e-12)
        S[inside], Q[inside] = S[inside] / rest, Q[inside] / rest
    return S, Q, open_


def _evidence(variance: FloatArray, s: FloatArray, q: FloatArray) -> FloatArray:
    grown = variance * s
    return np.asarray(0.5 * (variance * q**2 / (1.0 + grown) - np.log1p(grown)))


def _noise(
    gram: FloatArray, cross: FloatArray, energy: float, rows: float, noise: float, inside: NDArray[np.intp],
    variance: FloatArray, floor: float,
) -> float:  # fmt: skip
    """The noise that the chosen weights leave, for as many rows as they do not use up."""
    mean, covariance = _posterior(gram, cross, noise, inside, variance[inside])
    left = energy - 2 * mean @ cross[inside] + mean @ gram[np.ix_(inside, inside)] @ mean
    used = float((1.0 - np.diag(covariance) / variance[inside]).sum())
    return max(float(left) / max(rows - used, 1.0), floor)
