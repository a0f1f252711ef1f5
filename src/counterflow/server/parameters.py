"""What is estimated, and how it is laid out in one vector."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from counterflow.server.likelihood import Evaluation, SharedRecord

FloatArray = NDArray[np.float64]
Estimate = Literal["couplings", "blocks", "all"]
ESTIMATES = ("couplings", "blocks", "all")


@dataclass(frozen=True)
class Parameters:
    """Which entries of [A B] and Q move, and how they are laid out in one vector."""

    record: SharedRecord
    estimate: Estimate
    noise_root: FloatArray  # Cholesky factor of the process noise at the start, block-diagonal

    @cached_property
    def free(self) -> tuple[NDArray[np.intp], ...]:
        """For every unit, the columns of [A B] that move in its rows."""
        record = self.record
        P, U = sum(record.states), sum(record.inputs)
        out = []
        for own, inputs in zip(record.state_slices, record.input_slices, strict=True):
            keep = np.ones(P + U, bool)
            if self.estimate == "couplings":
                keep[own] = False
                keep[P + inputs.start : P + inputs.stop] = False
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

    def noise(self, vector: FloatArray) -> FloatArray:
        """Q = L G Gᵀ Lᵀ with G lower triangular, the logarithms of its diagonal among the parameters."""
        if self.estimate != "all":
            return self.record.Q_local
        factor = self.noise_root @ self._triangle(vector[self.coupling_size() :])
        return np.asarray(factor @ factor.T)

    def noise_is_off(self, vector: FloatArray) -> bool:
        """Whether a process noise has left a millionth to a million times what was given: an edge, not a maximum."""
        if self.estimate != "all":
            return False
        with np.errstate(over="ignore"):
            G = self._triangle(vector[self.coupling_size() :])
        size = np.diag(G)
        return not bool(np.isfinite(G).all() and size.min() > 1e-3 and np.abs(G).max() < 1e3)

    def noise_gradient(self, vector: FloatArray, at: Evaluation) -> FloatArray:
        """dℓ/d(parameters of Q)."""
        G = self._triangle(vector[self.coupling_size() :])
        inner = np.linalg.solve(at.Q, self.noise_root)  # Q⁻¹ L
        gap = at.noise_moment - at.steps * at.Q
        whole = inner.T @ gap @ inner @ G
        pieces = []
        for own in self.record.state_slices:
            block = whole[own, own].copy()
            block[np.diag_indices_from(block)] *= np.diag(G)[own]
            pieces.append(block[np.tril_indices_from(block)])
        return np.concatenate(pieces)

    def noise_directions(self, vector: FloatArray) -> FloatArray:
        """dQ/d(each parameter of Q) at ``vector`` (k, P, P)."""
        G = self._triangle(vector[self.coupling_size() :])
        out = []
        for own, n in zip(self.record.state_slices, self.record.states, strict=True):
            for i, j in zip(*np.tril_indices(n), strict=True):
                change = np.zeros_like(G)
                change[own.start + i, own.start + j] = G[own.start + i, own.start + j] if i == j else 1.0
                half = self.noise_root @ change @ G.T @ self.noise_root.T
                out.append(half + half.T)
        return np.array(out).reshape(-1, *G.shape)

    def _triangle(self, values: FloatArray) -> FloatArray:
        out, at = np.zeros_like(self.noise_root), 0
        for own, n in zip(self.record.state_slices, self.record.states, strict=True):
            block = np.zeros((n, n))
            count = n * (n + 1) // 2
            block[np.tril_indices(n)] = values[at : at + count]
            block[np.diag_indices(n)] = np.exp(np.diag(block))
            out[own, own] = block
            at += count
        return out

    def noise_size(self) -> int:
        return sum(n * (n + 1) // 2 for n in self.record.states) if self.estimate == "all" else 0
