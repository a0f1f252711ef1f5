"""Couplings from projections of the measurements on what the inputs did, with noise that is known.

Unit m's moments are Z_m = Φ_mᵀ s_m + noise (K, r), Φ_m (T+1, K) a basis of signals that inputs make. Inputs are known:

    E[Z_m] = Σ_l G_m[l] (C̃_m A^l B)ᵀ,     G_m[l] = Σ_t φ_m[t] u[t-1-l]ᵀ,

a function of A and B of which T is no part. What is left is process noise, measurement noise and the noise of privacy:

    Cov[Z_m, Z_n] = Σ_l Σ_t φ_m[t] φ_n[t-l]ᵀ ⊗ C̃_m Γ_mn[l] C̃_nᵀ  (+ ΦᵀΦ ⊗ I + I ⊗ N where m = n),   Γ[l] = A^l Σ.

So generalised least squares by Gauss-Newton, whose information is that of the moments. Instruments are inputs alone:
the estimate is consistent whatever colour the noise has.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.learning.impulse_basis import correlations
from counterflow.learning.information import positions
from counterflow.learning.layout import Layout
from counterflow.learning.optimiser import Quadratic
from counterflow.learning.parameters import Parameters

STEPS = 40  # of Gauss-Newton, at most
HALVINGS = 25
SETTLED = 1e-8  # squared length of a step, in standard errors, below which it is the last
LEFT = 1e-3  # of an impulse response that may be left at the end of what is followed: so slow an estimate may be
MOST_SHORT = 0.01  # share that is taken to be left, at least, of what was clipped
MANY = 300  # columns of all bases together, beyond which noise that units share is not followed between them


@dataclass(frozen=True, eq=False)
class MomentRecord(Layout):
    """Moments of all units and what they are to be read with.

    ``drive``: G_m (L, K, U) of each unit; ``overlap``: Σ_t φ_m[t] φ_n[t-l]ᵀ (L, K_m, K_n) by pair, missing where what
    units share is not followed. ``noise``: covariance N (r, r) of the noise of privacy, the same in each row of Z.
    """

    values: tuple[FloatArray, ...]  # (K_m, r_m)
    noise: tuple[FloatArray, ...]
    observation: tuple[FloatArray, ...]  # C̃_m (r_m, P_m)
    drive: tuple[FloatArray, ...]
    overlap: dict[tuple[int, int], FloatArray]
    A_local: FloatArray
    B_local: FloatArray
    Q_local: FloatArray

    @classmethod
    def from_bases(
        cls, layout: Layout, local: tuple[FloatArray, FloatArray, FloatArray], observation: Sequence[FloatArray],
        bases: Sequence[FloatArray], u: FloatArray, values: Sequence[FloatArray], noise: Sequence[FloatArray],
        memory: int,
    ) -> MomentRecord:  # fmt: skip
        """Of bases Φ_m (T+1, K_m), inputs u (T+1, U) and local blocks A, B, Q, block-diagonal."""
        before = np.vstack([np.zeros((1, u.shape[1])), u[:-1]])
        together = sum(basis.shape[1] for basis in bases) <= MANY
        pairs = [(i, j) for i in range(len(bases)) for j in range(len(bases)) if i == j or together]
        return cls(
            layout.names, layout.states, layout.inputs, tuple(values), tuple(noise), tuple(observation),
            tuple(correlations(basis, before, memory) for basis in bases),
            {(i, j): correlations(bases[i], bases[j], memory) for i, j in pairs}, *local,
        )  # fmt: skip

    @property
    def memory(self) -> int:
        return int(self.drive[0].shape[0])

    @cached_property
    def stacked(self) -> FloatArray:
        """All moments in one vector, unit by unit, row by row of Z."""
        return np.concatenate([values.ravel() for values in self.values])

    @cached_property
    def slowest(self) -> float:
        """Spectral radius that an estimate may have: what is followed must hold its impulse responses."""
        own = float(np.abs(np.linalg.eigvals(self.A_local)).max(initial=0.0))
        return max(math.exp(math.log(LEFT) / self.memory), min(0.999, own + 1e-6))

    def powers(self, A: FloatArray, start: FloatArray) -> FloatArray:
        """A^l start for l = 0..L-1, by doubling: (L, *start.shape)."""
        out = start[None]
        jump = A
        while len(out) < self.memory:
            out = np.concatenate([out, np.einsum("ij,ljk->lik", jump, out)])
            jump = jump @ jump
        return out[: self.memory]

    def predicted(self, A: FloatArray, B: FloatArray) -> FloatArray:
        """What the moments would be without any noise, stacked."""
        responses = self.powers(A, B)
        pieces = [
            np.tensordot(drive, responses[:, own], axes=([0, 2], [0, 2])) @ C.T
            for drive, own, C in zip(self.drive, self.state_slices, self.observation, strict=True)
        ]
        return np.concatenate([piece.ravel() for piece in pieces])

    def slopes(self, A: FloatArray, B: FloatArray, parameters: Parameters) -> FloatArray:
        """d predicted / d packed couplings, (n, p).

        With E[a] = Σ_b G[a+b+1] (A^b B)ᵀ: dZ/dB_ij = Σ_l G[l]_j (C̃ A^l)_i and dZ/dA_ij = Σ_a E[a]_j (C̃ A^a)_i.
        """
        length, P = self.memory, len(A)
        responses, powers = self.powers(A, B), self.powers(A, np.eye(P))
        size = 1 << (2 * length - 1).bit_length()
        ahead = np.fft.rfft(responses, size, axis=0)
        rows, columns = positions(parameters)
        out = []
        for drive, own, C in zip(self.drive, self.state_slices, self.observation, strict=True):
            later = np.fft.rfft(drive, size, axis=0)
            E = np.fft.irfft(np.einsum("fku,fju->fkj", later, ahead.conj()), size, axis=0)[1:length]
            seen = np.einsum("op,lpi->loi", C, powers[:, own])
            whole = np.zeros((drive.shape[1], len(C), P, P + B.shape[1]))
            whole[..., :P] = np.tensordot(E, seen[: length - 1], axes=([0], [0])).transpose(0, 2, 3, 1)
            whole[..., P:] = np.tensordot(drive, seen, axes=([0], [0])).transpose(0, 2, 3, 1)
            out.append(whole[:, :, rows, columns].reshape(-1, len(rows)))
        return np.concatenate(out)

    def covariance(self, A: FloatArray, Q: FloatArray) -> FloatArray:
        """Of all that is in the moments besides what inputs did, (n, n)."""
        from scipy.linalg import solve_discrete_lyapunov

        spread = self.powers(A, np.asarray(solve_discrete_lyapunov(A, Q)))  # E[h[t] h[t-l]ᵀ]
        sizes = [values.size for values in self.values]
        ends = np.cumsum([0, *sizes])
        out = np.zeros((ends[-1], ends[-1]))
        for (i, j), after in self.overlap.items():
            if j < i:
                continue
            C, D = self.observation[i], self.observation[j]
            own, theirs = self.state_slices[i], self.state_slices[j]
            later = np.einsum("ap,lpq,bq->lab", C, spread[:, own, theirs], D, optimize=True)
            earlier = np.einsum("ap,lqp,bq->lab", C, spread[1:, theirs, own], D, optimize=True)
            block = np.einsum("lkm,lab->kamb", after, later, optimize=True)
            block += np.einsum("lmk,lab->kamb", self.overlap[j, i][1:], earlier, optimize=True)
            if i == j:
                count = after.shape[1]
                block += np.einsum("km,ab->kamb", after[0], np.eye(len(C)))
                block += np.einsum("km,ab->kamb", np.eye(count), self.noise[i])
            block = block.reshape(sizes[i], sizes[j])
            out[ends[i] : ends[i + 1], ends[j] : ends[j + 1]] = block
            out[ends[j] : ends[j + 1], ends[i] : ends[i + 1]] = block.T
        return out

    def spread_at(self, A: FloatArray, B: FloatArray, parameters: Parameters) -> FloatArray:
        """Covariance of the couplings that these moments would leave if they were A and B."""
        root = np.asarray(np.linalg.cholesky(self.covariance(A, self.Q_local)))
        slopes = _white(root, self.slopes(A, B, parameters))
        return _inverse(slopes.T @ slopes)


@dataclass(frozen=True, eq=False)
class MomentEstimate:
    """Couplings by generalised least squares, and their covariance in the order of ``Parameters.pack``.

    ``bare``: the covariance that there would be without a prior. ``misfit``: squared length of what is left, whitened,
    which should be about the ``freedom`` that it has.
    """

    A: FloatArray
    B: FloatArray
    covariance: FloatArray = field(metadata={"missing": True})
    bare: FloatArray = field(metadata={"missing": True})
    misfit: float
    freedom: int
    steps: int
    converged: bool
    at_bound: bool
    left: float  # squared length of the last step, in standard errors


def estimated(record: MomentRecord, parameters: Parameters, prior: Quadratic | None = None) -> MomentEstimate:
    """The couplings that explain the moments best; ``prior`` is leant on where they say nothing."""
    P = len(record.A_local)
    local = np.hstack([record.A_local, record.B_local])
    x = np.zeros(parameters.coupling_size())
    if not len(x):
        none = np.zeros((0, 0))
        return MomentEstimate(record.A_local, record.B_local, none, none, 0.0, 0, 0, True, False, 0.0)
    covariance: FloatArray = np.asarray(np.linalg.cholesky(record.covariance(record.A_local, record.Q_local)))

    def split(x: FloatArray) -> tuple[FloatArray, FloatArray]:
        whole = local + parameters.unpack(x)
        return whole[:, :P], whole[:, P:]

    def gap(x: FloatArray) -> FloatArray:
        return _white(covariance, record.stacked - record.predicted(*split(x)))

    def cost(x: FloatArray, left: FloatArray) -> float:
        return 0.5 * float(left @ left) + (0.0 if prior is None else prior(x)[0])

    left, converged, bound, size, step_number = gap(x), False, False, math.inf, 0
    for step_number in range(1, STEPS + 1):  # noqa: B007  it is told
        slopes = _white(covariance, record.slopes(*split(x), parameters))
        information, gradient = slopes.T @ slopes, slopes.T @ left
        if prior is not None:
            information, gradient = information + prior.precision, gradient - prior(x)[1]
        step = _solved(information, gradient)
        size = float(step @ information @ step)
        before, share, bound = cost(x, left), 1.0, False
        for _ in range(HALVINGS):
            moved = x + share * step
            A, _ = split(moved)
            stable = float(np.abs(np.linalg.eigvals(A)).max(initial=0.0)) <= record.slowest
            if stable and cost(moved, gap(moved)) <= before + 1e-9 * abs(before):
                root = _root(record, A)
                if root is not None:
                    break
            bound |= not stable
            share /= 2
        else:
            break  # no step gains anything any more
        x, covariance = moved, root
        left = gap(x)
        if share == 1.0 and size < SETTLED:
            converged = True
            break
    A, B = split(x)
    slopes = _white(covariance, record.slopes(A, B, parameters))
    bare = slopes.T @ slopes
    information = bare if prior is None else bare + prior.precision
    # a step that is small beside the standard errors is an end, though rounding or the bound allows no smaller one
    converged = converged or size < 1e-4
    return MomentEstimate(
        A, B, _inverse(information), _inverse(bare), float(left @ left), len(left) - len(x), step_number, converged,
        bound, size,
    )  # fmt: skip


def clipping_bias(clipped: float) -> float:
    """By how much of itself an estimate may be short, if a share of what it was made of is ``clipped``."""
    return clipped / max(1 - clipped, MOST_SHORT)


def clipping_se_factor(clipped: float) -> float:
    """By how much standard errors grow: where nearly everything was clipped, too little was released."""
    return 1 / max(1 - clipped**2, MOST_SHORT)


def _white(root: FloatArray, values: FloatArray) -> FloatArray:
    from scipy.linalg import solve_triangular

    return np.asarray(solve_triangular(root, values, lower=True))


def _root(record: MomentRecord, A: FloatArray) -> FloatArray | None:
    """Cholesky factor of the covariance of moments; None where the memory is too short for such an A."""
    try:
        return np.asarray(np.linalg.cholesky(record.covariance(A, record.Q_local)))
    except np.linalg.LinAlgError:
        return None


def _solved(information: FloatArray, gradient: FloatArray) -> FloatArray:
    """The step where there is information, nothing where there is none."""
    return np.asarray(_inverse(information, 0.0) @ gradient)


def _inverse(information: FloatArray, lost: float = math.nan) -> FloatArray:
    """Inverse on the directions that have information; ``lost`` for entries that have a part in others."""
    size = np.sqrt(np.maximum(np.diag(information), 0.0))
    scale = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0)
    values, vectors = np.linalg.eigh(information * np.outer(scale, scale))
    keep = values > 1e-10 * max(float(values[-1]) if values.size else 0.0, 1e-300)
    half = scale[:, None] * vectors[:, keep] / np.sqrt(values[keep])
    out = half @ half.T
    if not math.isnan(lost):
        return np.asarray(out)
    gone = (np.square(vectors[:, ~keep]).sum(axis=1) > 1e-6) | (size == 0)
    out[gone, :] = lost
    out[:, gone] = lost
    return np.asarray(out)
