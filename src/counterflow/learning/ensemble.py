"""How runs of the members of an ensemble go together: their mean, and directions along which all rows may be off.

Errors of rows are correlated, so that a band for every row does not tell how well a mean over rows is known. An
uncertainty is told by directions x_1, x_2, ... (n, q): the covariance of rows s and t is the sum of x_k[s] x_k[t]'.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from counterflow.arrays import FloatArray

KEPT = 64  # directions, at most
LARGEST = 8_000_000  # numbers of all rows at once, along all directions
_NOTHING = 1e-9  # of the whole variance: what is left out of it
_EXACT = 2000  # states of all rows up to which noise is added up exactly; beyond, it is drawn


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Runs of all members.

    ``mean`` (n, q); ``members`` (K, n, q), whose spread about it is too narrow by ``widening``, and has ``freedom``
    degrees of freedom; none: members do not tell how far the mean may be off. ``limited``: share of what is multiplied
    that was at a limit of what was seen.
    """

    mean: FloatArray
    members: FloatArray
    widening: float = 1.0
    freedom: int = 0
    limited: float = 0.0

    def of(self, own: slice) -> Ensemble:
        """The same for some of the states."""
        return replace(self, mean=self.mean[:, own], members=self.members[:, :, own])

    @property
    def worlds(self) -> FloatArray:
        """Members (K, n, q), as far from the mean as it may be off."""
        return np.asarray(self.mean + self.widening * (self.members - self.mean))

    @property
    def gaps(self) -> FloatArray:
        """Directions (K, n, q), whose squares add up to the covariance of the mean; none if members do not tell."""
        if not self.freedom:
            return np.zeros((0, *self.mean.shape))
        return np.asarray(self.widening * (self.members - self.mean) / np.sqrt(self.freedom))

    @property
    def doubt(self) -> float:
        """Squared error over squared effect that is to be expected."""
        size, spread = float(np.square(self.mean).sum()), float(np.square(self.gaps).sum())
        return spread / size if size > 0 else np.inf if spread > 0 else 0.0


@dataclass(frozen=True, eq=False)
class Uncertain:
    """States of one unit, and how far they may be off.

    ``mean`` (n, q); ``covariance`` (n q, q), one block a row, or no rows: not known. ``directions`` (k, n, q); None:
    they are too many numbers.
    """

    mean: FloatArray
    covariance: FloatArray
    directions: FloatArray | None

    def and_noise(self, noise: FloatArray, directions: FloatArray | None) -> Uncertain:
        """With noise of covariance (n, q, q) besides."""
        n, q = self.mean.shape
        blocks = noise + (self.covariance.reshape(n, q, q) if len(self.covariance) else 0.0)
        both = None if directions is None or self.directions is None else np.vstack([directions, self.directions])
        return Uncertain(self.mean, blocks.reshape(-1, q), both)


def uncertain(found: Ensemble, lasting_share: float, missed: FloatArray, *, as_they_are: bool = False) -> Uncertain:
    """What an ensemble says.

    ``lasting_share``: of the variance that is an error of all rows alike, also where members happen to agree in one.
    ``missed`` (q, q): covariance of another error of all rows. ``as_they_are``: whether rows go together as in the
    members themselves.
    """
    (n, q), gaps = found.mean.shape, found.gaps
    if not len(gaps):
        return Uncertain(found.mean, np.zeros((0, q)), np.zeros((0, n, q)))
    blocks = np.einsum("kni,knj->nij", gaps, gaps)
    usual = lasting_share * blocks.mean(axis=0)
    covariance = ((1 - lasting_share) * blocks + usual + missed).reshape(-1, q)
    if n * q * KEPT > LARGEST:
        return Uncertain(found.mean, covariance, None)
    share, alike = (1.0, missed) if as_they_are else (1 - lasting_share, usual + missed)
    return Uncertain(found.mean, covariance, np.vstack([np.sqrt(share) * gaps, lasting(alike, n)]))


def compressed(directions: FloatArray) -> FloatArray:
    """The largest directions (k, n, q) of the same covariance, at most ``KEPT``."""
    if not directions.size:
        return directions[:0]
    flat = directions.reshape(len(directions), -1)
    if len(flat) > KEPT:
        if flat.shape[1] < len(flat):
            values, vectors = np.linalg.eigh(flat.T @ flat)
            order = np.argsort(-values)[:KEPT]
            flat = (vectors[:, order] * np.sqrt(np.maximum(values[order], 0.0))).T
        else:
            values, vectors = np.linalg.eigh(flat @ flat.T)
            flat = vectors[:, np.argsort(-values)[:KEPT]].T @ flat
    size = np.square(flat).sum(axis=1)
    kept = flat[size > _NOTHING * size.sum()]
    return np.asarray(kept.reshape(-1, *directions.shape[1:]))


def lasting(block: FloatArray, rows: int) -> FloatArray:
    """Directions (k, rows, q) of an error with covariance ``block`` (q, q) that is the same in all rows."""
    return np.repeat(_root(block)[:, None, :], rows, axis=1)


def noise_ahead(
    A: FloatArray, Q: FloatArray, start: FloatArray, rows: int, own: slice
) -> tuple[FloatArray, FloatArray | None]:
    """Of states after one of covariance ``start`` (P, P), with process noise Q: covariances (rows, q, q) of ``own``.

    And directions (k, rows, q); None: they are too many numbers.
    """
    P, q, X = A.shape[0], own.stop - own.start, start
    blocks = np.empty((rows, q, q))
    for t in range(rows):
        X = A @ X @ A.T + Q
        blocks[t] = X[own, own]
    if rows * q * 2 * KEPT > LARGEST:
        return blocks, None
    first, root = _root(start).T, _root(Q).T
    if rows * P > _EXACT:
        rng, count = np.random.default_rng(0), 2 * KEPT
        out = np.zeros((rows, q, count))
        h = first @ rng.standard_normal((first.shape[1], count))
        for t in range(rows):
            h = A @ h + root @ rng.standard_normal((root.shape[1], count))
            out[t] = h[own]
        return blocks, np.asarray(out.transpose(2, 0, 1) / np.sqrt(count))
    begun, each = first.shape[1], root.shape[1]
    h = np.zeros((P, begun + rows * each))  # a copy of the noise for every row in which it enters
    out = np.zeros((rows, q, h.shape[1]))
    h[:, :begun] = first
    for t in range(rows):
        h = A @ h
        h[:, begun + t * each : begun + (t + 1) * each] += root
        out[t] = h[own]
    return blocks, np.asarray(out.transpose(2, 0, 1))


def _root(block: FloatArray) -> FloatArray:
    """(k, q): the block is the root's transpose times the root; what is not there takes no room."""
    values, vectors = np.linalg.eigh((block + block.T) / 2)
    kept = values > _NOTHING**2 * max(float(values[-1]), 0.0)
    return np.asarray((vectors[:, kept] * np.sqrt(values[kept])).T)
