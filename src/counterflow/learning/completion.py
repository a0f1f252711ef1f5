"""Readings that are missing, drawn as a linear network sees them, given all that was read.

With weights W over spans of earlier rows and residuals e ~ N(0, Γ), a record obeys e = G s - c, where G is banded (a
row minus what earlier rows foretell of it) and c comes from inputs. So missing readings, given all others, are Gaussian
with the precision Gᵀ Γ⁻¹ G of their rows and columns. A draw of them is the least-squares solution after noise of the
right size was added to every equation; no covariance is ever built, and no recursion over time is run: products with G
and Gᵀ are sums over spans, and conjugate gradients need few of them.

A reading that is known in part only (some channels of its unit were missing) is one more equation, with its variance.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.learning.network import IntArray, Network, foretold

WEAK = 0.01  # precision of a number's own spread: decides only where nothing else does
CLOSE = 1e-3  # of the first gradient, at which conjugate gradients stop
MOST_STEPS = 200


@dataclass(frozen=True, eq=False)
class Gaps:
    """Which numbers of standardised rows are not known, and what is known of them.

    ``values`` (T, r): numbers, zero where nothing is known. ``variance`` (T, r): of what ``values`` are off; zero: they
    are exact, inf: nothing is known.
    """

    values: FloatArray
    variance: FloatArray

    @property
    def open(self) -> NDArray[np.bool_]:
        """(T, r): what must be drawn."""
        return np.asarray(self.variance > 0, bool)


def impute_draw(
    gaps: Gaps, inputs: FloatArray, linear: FloatArray, spans: IntArray, noise: FloatArray, start: FloatArray,
    rng: np.random.Generator | None, extra: FloatArray | None = None,
) -> FloatArray:  # fmt: skip
    """Numbers (T, r) with those that are not known drawn, or at their mean if ``rng`` is None.

    ``inputs`` (T, U), standardised; ``linear`` (b, r + U, r) weights over ``spans`` (b, 2); ``noise`` (r, r): Γ.
    ``start`` (T, r): numbers to begin with. ``extra`` (T, r): what else is foretold of each row (products), taken as it
    is.
    """
    T, r = gaps.values.shape
    p, open_ = int(spans[-1, 1]), gaps.open
    root = np.linalg.inv(np.linalg.cholesky(noise)).T  # residuals times it are white
    own, driven = linear[:, :r], linear[:, r:]
    precision = np.divide(1.0, gaps.variance, out=np.zeros_like(gaps.variance), where=open_) * open_ + WEAK * open_

    def apply(d: FloatArray) -> FloatArray:
        """Γ^-½ G d of rows p, ..., T - 1."""
        return np.asarray((d[p:] - foretold(d, own, spans)) @ root)

    def back(e: FloatArray) -> FloatArray:
        """Its adjoint, (T, r)."""
        white = e @ root.T
        out = -_told_by(white, own, spans, T)
        out[p:] += white
        return out

    known = np.where(open_, 0.0, gaps.values)
    fixed = foretold(inputs, driven, spans) + (0.0 if extra is None else extra[p:])
    wanted = fixed @ root - apply(known)
    prior = np.where(np.isfinite(gaps.variance), gaps.values / np.where(open_, gaps.variance, 1.0), 0.0) * open_
    if rng is not None:
        wanted = wanted + rng.standard_normal(wanted.shape)
        prior = prior + np.sqrt(precision) * rng.standard_normal(prior.shape)
    right = (back(wanted) + prior) * open_
    scale = np.where(open_, 1.0 / (_curvature(own, spans, root) + precision), 0.0)
    x = np.where(open_, start, 0.0)
    left = right - (back(apply(x)) + precision * x) * open_
    ahead = scale * left
    step, size = ahead, float((left * ahead).sum())
    enough = CLOSE**2 * float((right * scale * right).sum())
    for _ in range(MOST_STEPS):
        if size <= enough:
            break
        bent = (back(apply(step)) + precision * step) * open_
        length = size / float((step * bent).sum())
        x, left = x + length * step, left - length * bent
        ahead = scale * left
        size, before = float((left * ahead).sum()), size
        step = ahead + size / before * step
    return known + x


def impute_mean(network: Network, z: FloatArray, rng: np.random.Generator | None = None) -> FloatArray:
    """Standardised rows z (T, m) with what is missing (NaN) as the network's mean sees it, or drawn with ``rng``.

    Products count as they are at the mean without them.
    """
    missing = np.isnan(z[:, : network.size])
    if not missing.any():
        return z
    mean, r, p = network.mean, network.size, network.memory
    start = np.where(missing, 0.0, z[:, :r])
    if len(z) <= p:
        return np.hstack([start, z[:, r:]])
    gaps = Gaps(start, np.where(missing, np.inf, 0.0))
    linear, extra = mean.linear[0], None
    for again in (False, True):
        if again and not network.curved:
            break
        if again:
            whole = np.hstack([start, z[:, r:]])
            straight = foretold(whole, linear, network.spans)
            extra = np.vstack([np.zeros((p, r)), mean.predicted(whole)[0] - straight])
        last = rng if again or not network.curved else None
        start = impute_draw(gaps, z[:, r:], linear, network.spans, network.noise, start, last, extra)
    return np.hstack([start, z[:, r:]])


def _told_by(e: FloatArray, weights: FloatArray, spans: IntArray, T: int) -> FloatArray:
    """(T, k): the adjoint of ``foretold`` for e (T - p, r)."""
    p = int(spans[-1, 1])
    total = np.zeros((T + p + 2, e.shape[1]))  # running sums of e, row t + 1: up to row t; zero before p, held after T
    total[p + 1 : T + 1] = np.cumsum(e, axis=0)
    total[T + 1 :] = total[T]
    rows = np.arange(T)
    out = np.zeros((T, weights.shape[1]))
    for (first, last), part in zip(spans, weights, strict=True):
        out += (total[rows + last + 1] - total[rows + first]) @ (part.T / (last - first + 1))
    return out


def _curvature(own: FloatArray, spans: IntArray, root: FloatArray) -> FloatArray:
    """(r,): diagonal of Gᵀ Γ⁻¹ G far from both ends."""
    width = (spans[:, 1] - spans[:, 0] + 1)[:, None]
    through = np.square(own @ root).sum(axis=2) / width
    return np.asarray(np.square(root).sum(axis=1) + through.sum(axis=0))
