"""What is estimated, and how it is laid out in one vector."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.likelihood import Evaluation, SharedRecord

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
    def size(self) -> int:
        return sum(n * (n + 1) // 2 for n in self._widths)

    @property
    def _widths(self) -> list[int]:
        return [own.stop - own.start for own in self.slices]

    @cached_property
    def diagonal(self) -> NDArray[np.bool_]:
        """Which parameters stand on the diagonal of G (k,)."""
        pieces = [np.equal(*np.tril_indices(n)) for n in self._widths]
        return np.concatenate(pieces) if pieces else np.zeros(0, bool)

    def covariance(self, values: FloatArray) -> FloatArray:
        factor = self.root @ self._factor(values)
        return np.asarray(factor @ factor.T)

    def off(self, values: FloatArray) -> bool:
        """Whether a variance has left a million times its start: an edge, not a maximum."""
        return not bool(np.abs(values).max(initial=0.0) < MOST)

    def clipped(self, values: FloatArray) -> FloatArray:
        """The nearest values that are allowed."""
        return np.where(self.diagonal, np.maximum(values, LEAST - 1), values)

    def gradient(self, values: FloatArray, covariance: FloatArray, gap: FloatArray) -> FloatArray:
        """Of ℓ, where dℓ = ½ tr(covariance⁻¹ gap covariance⁻¹ d covariance); zero where it points over the edge."""
        G = self._factor(values)
        inner = np.linalg.solve(covariance, self.root)
        whole = inner.T @ gap @ inner @ G
        pieces = []
        for own in self.slices:
            block = whole[own, own]
            pieces.append(block[np.tril_indices_from(block)])
        out = np.concatenate(pieces) if pieces else np.zeros(0)
        resting = self.diagonal & (values <= LEAST - 1 + 1e-12) & (out < 0)
        return np.where(resting, 0.0, out)

    def directions(self, values: FloatArray) -> FloatArray:
        """d covariance / d(each parameter) (k, n, n)."""
        G = self._factor(values)
        out = []
        for own, n in zip(self.slices, self._widths, strict=True):
            for i, j in zip(*np.tril_indices(n), strict=True):
                change = np.zeros_like(G)
                change[own.start + i, own.start + j] = 1.0
                half = self.root @ change @ G.T @ self.root.T
                out.append(half + half.T)
        return np.array(out).reshape(-1, *G.shape)

    def expected_step(self, values: FloatArray, count: int) -> FloatArray:
        """What one step of EM multiplies the gradient with, about; ``count``: steps that speak about it."""
        size = np.diag(self._factor(values))
        pieces = [
            np.where(np.equal(*np.tril_indices(n)), 0.5, 1.0) * size[own][np.tril_indices(n)[0]] ** 2 / max(count, 1)
            for own, n in zip(self.slices, self._widths, strict=True)
        ]
        return np.concatenate(pieces) if pieces else np.zeros(0)

    def _factor(self, values: FloatArray) -> FloatArray:
        out, at = np.eye(len(self.root)), 0
        for own, n in zip(self.slices, self._widths, strict=True):
            count = n * (n + 1) // 2
            block = np.eye(n)
            block[np.tril_indices(n)] += values[at : at + count]
            out[own, own] = block
            at += count
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
        """Process noise, block-diagonal by unit; it has no block if it does not move."""
        return Triangles(self.record.state_slices if self.estimate == "all" else (), self.noise_root)

    def noise_size(self) -> int:
        """Parameters of Q."""
        return self.process.size

    def process_noise(self, vector: FloatArray) -> FloatArray:
        """Q."""
        return self.process.covariance(self._of_noise(vector)) if self.process.size else self.record.Q_local

    def noise_is_off(self, vector: FloatArray) -> bool:
        """Whether the noise has left what its start allows."""
        return self.process.off(self._of_noise(vector))

    def noise_gradient(self, vector: FloatArray, at: Evaluation) -> FloatArray:
        """dℓ/d(parameters of Q)."""
        return self.process.gradient(self._of_noise(vector), at.Q, at.noise_moment - at.steps * at.Q)

    def noise_step(self, vector: FloatArray, at: Evaluation) -> FloatArray:
        """What one step of EM multiplies the gradient in the noise with."""
        return self.process.expected_step(self._of_noise(vector), at.steps)

    def clipped(self, vector: FloatArray) -> FloatArray:
        """The nearest vector whose noise is allowed."""
        noise = self.process.clipped(self._of_noise(vector))
        return np.concatenate([vector[: self.coupling_size()], noise]) if self.noise_size() else vector

    def noise_directions(self, vector: FloatArray) -> FloatArray:
        """dQ/d(each parameter of Q) (k, P, P) at ``vector``."""
        return self.process.directions(self._of_noise(vector))

    def _of_noise(self, vector: FloatArray) -> FloatArray:
        return vector[self.coupling_size() :]
