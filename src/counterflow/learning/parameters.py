"""What is estimated, and how it is laid out in one vector."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.likelihood import SharedRecord

Estimate = Literal["couplings", "blocks", "all", "responses"]
ESTIMATES = ("couplings", "blocks", "all")
LEAST, MOST = 1e-3, 1e3  # of a standard deviation of noise, in units of its start


@dataclass(frozen=True)
class Triangles:
    """A block-diagonal covariance L G Gᵀ Lᵀ: L fixed, G lower triangular; parameters: the entries of G - I.

    Noises of real plants are often nearly singular. The diagonal of G may go down to ``LEAST`` and rests there: in its
    logarithm that edge would be infinitely far, and the way to it endless.
    """

    slices: tuple[slice, ...]
    root: FloatArray  # L, block-diagonal

    @cached_property
    def places(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Row and column of each parameter in G."""
        pieces = [np.array(np.tril_indices(own.stop - own.start)) + own.start for own in self.slices]
        rows, columns = np.hstack([np.zeros((2, 0), np.intp), *pieces])
        return rows, columns

    @property
    def size(self) -> int:
        return len(self.places[0])

    def covariance(self, values: FloatArray) -> FloatArray:
        factor = self.root @ self._factor(values)
        return np.asarray(factor @ factor.T)

    def off(self, values: FloatArray) -> bool:
        """Whether a variance has left a million times its start: an edge, not a maximum."""
        return not bool(np.abs(values).max(initial=0.0) < MOST)

    def clipped(self, values: FloatArray) -> FloatArray:
        """The nearest values that are allowed."""
        return np.where(np.equal(*self.places), np.maximum(values, LEAST - 1), values)

    def gradient(self, values: FloatArray, covariance: FloatArray, gap: FloatArray) -> FloatArray:
        """Of ℓ, where dℓ = ½ tr(covariance⁻¹ gap covariance⁻¹ d covariance); zero where it points over the edge."""
        if not self.size:
            return np.zeros(0)
        inner = np.linalg.solve(covariance, self.root)
        out = (inner.T @ gap @ inner @ self._factor(values))[self.places]
        resting = np.equal(*self.places) & (values <= LEAST - 1 + 1e-12) & (out < 0)
        return np.where(resting, 0.0, out)

    def directions(self, values: FloatArray) -> FloatArray:
        """d covariance / d(each parameter) (k, n, n)."""
        rows, columns = self.places
        half = self.root.T[rows][:, :, None] * (self.root @ self._factor(values)).T[columns][:, None, :]
        return np.asarray(half + half.transpose(0, 2, 1))

    def expected_step(self, values: FloatArray, count: int) -> FloatArray:
        """What one step of EM multiplies the gradient with, about; ``count``: steps that speak about it."""
        size = np.diag(self._factor(values))[self.places[0]]
        return np.asarray(np.where(np.equal(*self.places), 0.5, 1.0) * size**2 / max(count, 1))

    def _factor(self, values: FloatArray) -> FloatArray:
        out = np.eye(len(self.root))
        out[self.places] += values
        return out


@dataclass(frozen=True)
class Parameters:
    """Which entries of [A B] and Q move, and how they are laid out in one vector: couplings, then Q."""

    record: SharedRecord
    estimate: Estimate
    noise_root: FloatArray  # Cholesky factor of the process noise at the start, block-diagonal
    known: KnownEdges | None = None  # which units can act on which; None: all on all

    @cached_property
    def causes(self) -> tuple[tuple[int, ...], ...]:
        """For every unit, by index: the units whose blocks of A and B move in its rows."""
        names = self.record.names
        own = self.estimate != "couplings"
        return tuple(
            tuple(
                n
                for n, cause in enumerate(names)
                if (own if n == m else self.known is None or self.known.allows(cause, effect))
            )
            for m, effect in enumerate(names)
        )

    @cached_property
    def free(self) -> tuple[NDArray[np.intp], ...]:
        """For every unit, the columns of [A B] that move in its rows."""
        record = self.record
        P, U = sum(record.states), sum(record.inputs)
        out = []
        for causes in self.causes:
            keep = np.zeros(P + U, bool)
            for n in causes:
                keep[record.state_slices[n]] = self.estimate != "responses"  # of these A is a bank of poles, and given
                keep[P + record.input_slices[n].start : P + record.input_slices[n].stop] = True
            out.append(np.flatnonzero(keep))
        return tuple(out)

    def coupling_size(self) -> int:
        return sum(n * len(f) for n, f in zip(self.record.states, self.free, strict=True))

    def pack(self, matrix: FloatArray) -> FloatArray:
        """Entries of a (P, P+U) matrix that move, unit by unit."""
        pieces = [matrix[own][:, f].ravel() for own, f in zip(self.record.state_slices, self.free, strict=True)]
        return np.concatenate(pieces) if pieces else np.zeros(0)

    def unpack(self, vector: FloatArray) -> FloatArray:
        """A (P, P+U) matrix that is zero where nothing moves."""
        P, U = sum(self.record.states), sum(self.record.inputs)
        out, at = np.zeros((P, P + U)), 0
        for own, f, n in zip(self.record.state_slices, self.free, self.record.states, strict=True):
            out[own.start : own.stop, f] = vector[at : at + n * len(f)].reshape(n, len(f))
            at += n * len(f)
        return out

    @cached_property
    def process(self) -> Triangles:
        """Process noise, block-diagonal by unit; it has no block if it does not move. Its parameters come last."""
        return Triangles(self.record.state_slices if self.estimate == "all" else (), self.noise_root)

    def noise_size(self) -> int:
        """Parameters of Q."""
        return self.process.size
