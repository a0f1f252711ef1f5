"""Least squares and ridge: every feature has a weight, and features that are alike share the variance of their prior.

Where much acts on everything, or noise is small, no weight is worth its cost by itself and all together are worth a
lot. The memory is as long as Akaike's corrected criterion wants it; the variances maximise the marginal likelihood
(MacKay, 1992), one for each group of features: what numbers, or inputs, of the own unit, or of others, did in one span.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.identification.sparse import SparseWeights
from counterflow.learning.block_moments import BlockMoments
from counterflow.learning.regression import Learner, Regression

STEPS = 15  # of the variances
CLOSE = 0.1  # logarithm of a variance, by which none moves any more
LEAST_NOISE = 1e-12  # of a number's energy
LEAST = 1e-9  # variance of a weight, in variances of the noise
FREE = 1e-9  # of the rows: what is added to sums, so that copies do no harm


@dataclass(frozen=True)
class Ridge(Learner):
    """``spans``: how many of them are looked back. ``products``: whether products of columns take part.

    ``shrunk``: whether weights have a prior; without one, they are those of least squares.
    """

    spans: int
    products: bool = False
    shrunk: bool = True

    @property
    def name(self) -> str:
        return "ridge with products" if self.products else "ridge" if self.shrunk else "least squares"

    def weights(self, of: Regression) -> tuple[SparseWeights, ...]:
        there = of.open & (np.diag(of.gram) > 0) & (of.span < self.spans) & (self.products | ~of.product)
        chosen = np.flatnonzero(there)
        code = (np.where(of.product, -1, of.span) * 2 + of.driven) * 2 + of.own
        group = np.unique(code[chosen], return_inverse=True)[1]
        gram = of.gram[np.ix_(chosen, chosen)]
        mean, variance, noise = ridge_weights(
            gram, of.cross[chosen], of.energy, of.rows, group, STEPS if self.shrunk else 1
        )
        return tuple(SparseWeights(chosen, w, s * variance, s) for w, s in zip(mean.T, noise.tolist(), strict=True))


def ridge_weights(
    gram: FloatArray, cross: FloatArray, energy: FloatArray, rows: float, group: NDArray[np.intp], steps: int = STEPS
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Weights (n, k) of k targets; their prior variances (n,) in those of the noise; the noises (k,).

    ``gram`` (n, n), ``cross`` (n, k), ``energy`` (k,): sums of products over ``rows`` rows. ``group`` (n,).
    """
    (n, k), groups = cross.shape, int(group.max(initial=-1)) + 1
    floor = np.maximum(LEAST_NOISE * energy / max(rows, 1.0), np.finfo(np.float64).tiny)
    if not n or rows <= 0:
        return np.zeros((n, k)), np.ones(n), np.maximum(energy / max(rows, 1.0), floor)
    precision = np.full(n, FREE * rows)
    for step in range(steps):
        inverse = np.linalg.inv(gram + np.diag(precision))
        mean = inverse @ cross
        noise = np.maximum((energy - np.einsum("nk,nk->k", cross, mean)) / max(rows - n * (not step), 1.0), floor)
        if step == steps - 1:
            break
        square = np.bincount(group, (np.square(mean) / noise).sum(axis=1), groups)
        used = np.bincount(group, 1.0 - precision * np.diag(inverse), groups)
        found = np.clip(square / np.maximum(k * used, 1e-12), LEAST, 1 / (FREE * rows))[group]
        if np.abs(np.log(found * precision)).max() < CLOSE:
            break
        precision = 1.0 / found
    return mean, 1.0 / precision, noise


def memory_of(moments: FloatArray, products: BlockMoments) -> int:
    """How many spans all columns are worth looking back, by Akaike's corrected criterion over all targets together."""
    from scipy.linalg import solve_triangular

    m, n, r, rows = len(products.level), products.features, products.targets, float(moments[-1, -1])
    linear = len(products.spans) * m
    gram = moments[:linear, :linear] + FREE * rows * np.eye(linear)
    energy = np.maximum(np.diag(moments)[n : n + r], np.finfo(np.float64).tiny)
    root = np.linalg.cholesky(gram)
    explained = np.square(solve_triangular(root, moments[:linear, n : n + r], lower=True))
    left = energy - np.cumsum(explained.reshape(-1, m, r).sum(axis=1), axis=0)
    weights = m * np.arange(1, len(products.spans) + 1)
    cost = 2.0 * weights * rows / np.maximum(rows - weights - 1.0, 1e-3)
    misfit = rows * np.log(np.maximum(left / energy, 1e-12)).sum(axis=1)
    return int(np.argmin(misfit + r * cost)) + 1
