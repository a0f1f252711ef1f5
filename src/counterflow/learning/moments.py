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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from counterflow.arrays import FloatArray, block_diagonal
from counterflow.errors import ModelError
from counterflow.learning.clipping import DRAWS, SETTLES, ClippingRegion, around_states, driven, own_response
from counterflow.learning.impulse_basis import basis_of, correlations, memory_of, pole_bank, responses
from counterflow.learning.information import inverse_information, positions
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.layout import Layout
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.optimiser import Quadratic
from counterflow.learning.parameters import Parameters
from counterflow.learning.uncertainty import weak_prior
from counterflow.protocol import Moments, Outline

LEAST_ROWS = 20  # of a basis, for each of its signals: fewer say nothing, and settle nothing
SKIPPED = 0.1  # share of the rows, at most, that are left out because of what inputs did before the first one
UNEXPLAINED = 1e-3  # chance below which what moments leave unexplained is no chance
FADED = 1e-3  # of an impulse response that may be left of what inputs did before
STEPS = 40  # of Gauss-Newton, at most
HALVINGS = 25
FINEST = 1e-10  # of the information of a coupling, relative, below which there is none
SETTLED = 1e-8  # squared length of a step, in standard errors, below which it is the last
LEFT = 1e-3  # of an impulse response that may be left at the end of what is followed: so slow an estimate may be
MOST_SHORT = 0.01  # share that is taken to be left, at least, of what was clipped
MANY = 300  # columns of all bases together, beyond which noise that units share is not followed between them


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

    @property
    def unexplained(self) -> float:
        """By how much variances have to grow, because the models do not explain the moments; 1: they do."""
        from scipy.special import chdtrc

        chance = self.freedom < 1 or float(chdtrc(self.freedom, self.misfit)) > UNEXPLAINED
        return 1.0 if chance else self.misfit / self.freedom


@dataclass(frozen=True, eq=False)
class Design:
    """What units with models are asked to project on, and how their moments are read: all but measurements."""

    outlines: tuple[Outline, ...]
    known: KnownEdges | None = None

    def __post_init__(self) -> None:
        for outline in self.outlines:
            radius = np.abs(np.linalg.eigvals(outline.A)).max(initial=0.0)
            if radius > SETTLES:
                raise ModelError(
                    f"unit {outline.unit!r}: its own model does not settle (spectral radius {radius:.6g}), and moments "
                    "follow what inputs do until it has faded; fit with release='rows', or method='sufficient' without "
                    "privacy"
                )

    @property
    def layout(self) -> Layout:
        return self.shared

    @property
    def u(self) -> FloatArray:
        """(T+1, U)."""
        return self.shared.u

    @cached_property
    def local(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """A, B and Q of the units alone."""
        return self.shared.A_local, self.shared.B_local, self.shared.Q_local

    @cached_property
    def shared(self) -> SharedRecord:
        """The inputs, and rows of measurements of which nothing is known."""
        names, u = [o.unit for o in self.outlines], np.hstack([o.inputs for o in self.outlines])
        observation = block_diagonal([o.observation for o in self.outlines])
        values = np.full((len(u), len(observation)), np.nan)
        return SharedRecord.from_models(names, self.outlines, values, u, observation, np.eye(len(observation)))

    @cached_property
    def measured(self) -> SharedRecord:
        """The same with zeros in rows that are there: for those who ask which rows that is."""
        return replace(self.shared, values=zeros_where_read(self.outlines))

    @cached_property
    def parameters(self) -> Parameters:
        return Parameters(self.shared, "couplings", np.eye(sum(self.layout.states)), known=self.known)

    @cached_property
    def radius(self) -> float:
        return float(np.abs(np.linalg.eigvals(self.local[0])).max(initial=0.0))

    @cached_property
    def memory(self) -> int:
        return memory_of(self.radius, len(self.u))

    @cached_property
    def slowest(self) -> float:
        """Spectral radius that an estimate may have: what is followed must hold its impulse responses."""
        return max(math.exp(math.log(LEFT) / self.memory), min(0.999, self.radius + 1e-6))

    @cached_property
    def bases(self) -> tuple[FloatArray, ...]:
        """Φ_m (T+1, K_m) of each unit; no columns where nobody can act on it."""
        skipped = np.log(FADED) / np.log(self.radius) if self.radius > 0 else 1.0
        settled = np.arange(len(self.u)) >= min(skipped, SKIPPED * len(self.u))
        out = []
        for m, outline in enumerate(self.outlines):
            causes = [self.outlines[n] for n in self.parameters.causes[m] if n != m]
            signals = [responses(each.inputs, pole_bank(outline.A, each.A, self.memory)) for each in causes]
            there = outline.there & settled
            basis = basis_of(np.hstack([np.zeros((len(self.u), 0)), *signals]), there)
            out.append(basis[:, : max(1, int(there.sum()) // LEAST_ROWS)])  # as many as the rows can tell apart
        return tuple(out)

    @property
    def asked(self) -> tuple[str, ...]:
        """Units that are asked for moments."""
        return tuple(name for name, basis in zip(self.layout.names, self.bases, strict=True) if basis.shape[1])

    # ---- what moments would be

    @cached_property
    def drive(self) -> tuple[FloatArray, ...]:
        """G_m (L, K, U) of each unit."""
        before = np.vstack([np.zeros((1, self.u.shape[1])), self.u[:-1]])
        return tuple(correlations(basis, before, self.memory) for basis in self.bases)

    @cached_property
    def overlap(self) -> dict[tuple[int, int], FloatArray]:
        """Σ_t φ_m[t] φ_n[t-l]ᵀ (L, K_m, K_n) by pair; missing where what units share is not followed."""
        units = range(len(self.bases))
        together = sum(basis.shape[1] for basis in self.bases) <= MANY
        pairs = [(i, j) for i in units for j in units if i == j or together]
        return {(i, j): correlations(self.bases[i], self.bases[j], self.memory) for i, j in pairs}

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
        moved = self.powers(A, B)
        pieces = [
            np.tensordot(drive, moved[:, own], axes=([0, 2], [0, 2])) @ outline.observation.T
            for drive, own, outline in zip(self.drive, self.layout.state_slices, self.outlines, strict=True)
        ]
        return np.concatenate([piece.ravel() for piece in pieces])

    def slopes(self, A: FloatArray, B: FloatArray) -> FloatArray:
        """d predicted / d packed couplings, (n, p).

        With E[a] = Σ_b G[a+b+1] (A^b B)ᵀ: dZ/dB_ij = Σ_l G[l]_j (C̃ A^l)_i and dZ/dA_ij = Σ_a E[a]_j (C̃ A^a)_i.
        """
        length, P = self.memory, len(A)
        moved, powers = self.powers(A, B), self.powers(A, np.eye(P))
        size = 1 << (2 * length - 1).bit_length()
        ahead = np.fft.rfft(moved, size, axis=0)
        rows, columns = positions(self.parameters)
        out = []
        for drive, own, outline in zip(self.drive, self.layout.state_slices, self.outlines, strict=True):
            C = outline.observation
            later = np.fft.rfft(drive, size, axis=0)
            E = np.fft.irfft(np.einsum("fku,fju->fkj", later, ahead.conj()), size, axis=0)[1:length]
            seen = np.einsum("op,lpi->loi", C, powers[:, own])
            whole = np.zeros((drive.shape[1], len(C), P, P + B.shape[1]))
            whole[..., :P] = np.tensordot(E, seen[: length - 1], axes=([0], [0])).transpose(0, 2, 3, 1)
            whole[..., P:] = np.tensordot(drive, seen, axes=([0], [0])).transpose(0, 2, 3, 1)
            out.append(whole[:, :, rows, columns].reshape(-1, len(rows)))
        return np.concatenate(out)

    def covariance(self, A: FloatArray, noise: Sequence[FloatArray]) -> FloatArray:
        """Of all that is in the moments besides what inputs did, (n, n).

        ``noise``: covariance N (r, r) of the noise of privacy of each unit, the same in each row of Z.
        """
        from scipy.linalg import solve_discrete_lyapunov

        spread = self.powers(A, np.asarray(solve_discrete_lyapunov(A, self.local[2])))  # E[h[t] h[t-l]ᵀ]
        seen, slices = [outline.observation for outline in self.outlines], self.layout.state_slices
        sizes = [basis.shape[1] * len(C) for basis, C in zip(self.bases, seen, strict=True)]
        ends = np.cumsum([0, *sizes])
        out = np.zeros((ends[-1], ends[-1]))
        for (i, j), after in self.overlap.items():
            if j < i:
                continue
            C, D, own, theirs = seen[i], seen[j], slices[i], slices[j]
            later = np.einsum("ap,lpq,bq->lab", C, spread[:, own, theirs], D, optimize=True)
            earlier = np.einsum("ap,lqp,bq->lab", C, spread[1:, theirs, own], D, optimize=True)
            block = np.einsum("lkm,lab->kamb", after, later, optimize=True)
            block += np.einsum("lmk,lab->kamb", self.overlap[j, i][1:], earlier, optimize=True)
            if i == j:
                block += np.einsum("km,ab->kamb", after[0], np.eye(len(C)))
                block += np.einsum("km,ab->kamb", np.eye(after.shape[1]), noise[i])
            block = block.reshape(sizes[i], sizes[j])
            out[ends[i] : ends[i + 1], ends[j] : ends[j + 1]] = block
            out[ends[j] : ends[j + 1], ends[i] : ends[i + 1]] = block.T
        return out

    def spread_at(self, A: FloatArray, B: FloatArray, moments: Mapping[str, Moments]) -> FloatArray:
        """Covariance of the couplings that these moments would leave if they were A and B."""
        root = np.asarray(np.linalg.cholesky(self.covariance(A, self._sent(moments)[1])))
        slopes = _white(root, self.slopes(A, B))
        return inverse_information(slopes.T @ slopes, FINEST)

    # ---- what they tell

    def estimate(
        self, moments: Mapping[str, Moments], private: bool, before: Quadratic | None = None
    ) -> MomentEstimate:
        """The couplings that explain the moments best, by Gauss-Newton. Where these say nothing, a prior decides.

        It is the weak one if the fit is ``private``, or ``before``: what earlier windows have told, which leant on it.
        """
        prior = weak_prior(self.shared, "couplings", self.known) if before is None and private else before
        P, local = len(self.local[0]), np.hstack(self.local[:2])
        x = np.zeros(self.parameters.coupling_size())
        if not len(x):
            none = np.zeros((0, 0))
            return MomentEstimate(*self.local[:2], none, none, 0.0, 0, 0, True, False, 0.0)
        stacked, noise = self._sent(moments)
        root: FloatArray = np.asarray(np.linalg.cholesky(self.covariance(self.local[0], noise)))

        def split(x: FloatArray) -> tuple[FloatArray, FloatArray]:
            whole = local + self.parameters.unpack(x)
            return whole[:, :P], whole[:, P:]

        def gap(x: FloatArray) -> FloatArray:
            return _white(root, stacked - self.predicted(*split(x)))

        def cost(x: FloatArray, left: FloatArray) -> float:
            return 0.5 * float(left @ left) + (0.0 if prior is None else prior(x)[0])

        left, converged, bound, size, step_number = gap(x), False, False, math.inf, 0
        for step_number in range(1, STEPS + 1):  # noqa: B007  it is told
            slopes = _white(root, self.slopes(*split(x)))
            information, gradient = slopes.T @ slopes, slopes.T @ left
            if prior is not None:
                information, gradient = information + prior.precision, gradient - prior(x)[1]
            step = np.asarray(inverse_information(information, FINEST, 0.0) @ gradient)
            size = float(step @ information @ step)
            before_it, share, bound = cost(x, left), 1.0, False
            for _ in range(HALVINGS):
                moved = x + share * step
                A, _ = split(moved)
                stable = float(np.abs(np.linalg.eigvals(A)).max(initial=0.0)) <= self.slowest
                if stable and cost(moved, gap(moved)) <= before_it + 1e-9 * abs(before_it):
                    try:
                        new_root = np.asarray(np.linalg.cholesky(self.covariance(A, noise)))
                        break
                    except np.linalg.LinAlgError:  # the memory is too short for such an A
                        pass
                bound |= not stable
                share /= 2
            else:
                break  # no step gains anything any more
            x, root = moved, new_root
            left = gap(x)
            if share == 1.0 and size < SETTLED:
                converged = True
                break
        A, B = split(x)
        slopes = _white(root, self.slopes(A, B))
        bare = slopes.T @ slopes
        information = bare if prior is None else bare + prior.precision
        # a step that is small beside the standard errors is an end, though rounding or the bound allows no smaller one
        converged = converged or size < 1e-4
        return MomentEstimate(
            A, B, inverse_information(information, FINEST), inverse_information(bare, FINEST), float(left @ left),
            len(left) - len(x), step_number, converged, bound, size,
        )  # fmt: skip

    def doubted_covariance(
        self, found: MomentEstimate, centred: MomentEstimate | None, clipped: Mapping[str, float]
    ) -> FloatArray:
        """Covariance of the couplings that knows of misfit, and of the share that was ``clipped`` of each unit's rows.

        Where models do not explain the moments, variances grow by as much as they leave unexplained. Rows were clipped
        around what ``centred`` foresaw. Of what they are away from it, as far as inputs tell, at least the share of
        ΦᵀΦ is left that is in rows which were not clipped. So the couplings may be further from the centre than they
        were found, by clipped / (1 - clipped) of how far that is; and what is left of the signal tells less.
        """
        there = np.hstack([found.A, found.B])
        before = np.hstack(self.local[:2] if centred is None else (centred.A, centred.B))
        rows, biases = positions(self.parameters)[0], np.zeros_like(found.covariance)
        factor = np.ones(len(found.covariance))
        for name, own in zip(self.layout.names, self.layout.state_slices, strict=True):
            share, away = clipped.get(name, 0.0), np.zeros_like(there)
            away[own] = clipping_bias(share) * (there - before)[own]
            moved = self.parameters.pack(away)
            biases += np.outer(moved, moved)
            factor[(rows >= own.start) & (rows < own.stop)] = clipping_se_factor(share)
        return found.unexplained * (found.covariance * np.outer(factor, factor) + biases)

    def _sent(self, moments: Mapping[str, Moments]) -> tuple[FloatArray, list[FloatArray]]:
        """All moments in one vector, unit by unit, row by row of Z; and their noise."""
        values, noise = [np.zeros(0)], []
        for outline, basis in zip(self.outlines, self.bases, strict=True):
            r, told = len(outline.observation), moments.get(outline.unit)
            values.append(np.zeros(basis.shape[1] * r) if told is None else told.values.ravel())
            noise.append(np.zeros((r, r)) if told is None else told.noise)
        return np.concatenate(values), noise

    def foreseen(self, found: MomentEstimate | None) -> list[ClippingRegion]:
        """What each unit's numbers will be, from the models alone or with the couplings of the round before."""
        if found is None:
            return [own_response(o.A, o.B, o.Q, o.observation, o.inputs) for o in self.outlines]
        states = driven(found.A, found.B, self.u)
        doubt, draws = np.zeros((states.shape[1],) * 2), self._draws(found)
        for A, B in draws:
            away = driven(A, B, self.u) - states
            doubt += away.T @ away / len(away) / len(draws)
        seen = [o.observation for o in self.outlines]
        return around_states(states, self.local[2], found.A, doubt, seen, self.layout.state_slices)

    def _draws(self, found: MomentEstimate) -> list[tuple[FloatArray, FloatArray]]:
        """Systems that the couplings might be as well: a few, drawn from what is known of them."""
        P = len(found.A)
        covariance = np.nan_to_num(found.covariance)
        values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        noise = np.random.default_rng(0).normal(size=(DRAWS, len(values)))
        out = []
        for draw in noise:
            for share in (1.0, 0.5, 0.25, 0.125):
                whole = np.hstack([found.A, found.B]) + share * self.parameters.unpack(root @ draw)
                if np.abs(np.linalg.eigvals(whole[:, :P])).max(initial=0.0) <= self.slowest:
                    out.append((whole[:, :P], whole[:, P:]))
                    break
        return out


def zeros_where_read(outlines: Sequence[Outline]) -> FloatArray:
    """(T+1, r) of all units: zero in rows that are there, NaN in others."""
    return np.hstack([np.where(o.there[:, None], np.zeros(len(o.observation)), np.nan) for o in outlines])


def clipping_bias(clipped: float) -> float:
    """By how much of itself an estimate may be short, if a share of what it was made of is ``clipped``."""
    return clipped / max(1 - clipped, MOST_SHORT)


def clipping_se_factor(clipped: float) -> float:
    """By how much standard errors grow: where nearly everything was clipped, too little was released."""
    return 1 / max(1 - clipped**2, MOST_SHORT)


def _white(root: FloatArray, values: FloatArray) -> FloatArray:
    from scipy.linalg import solve_triangular

    return np.asarray(solve_triangular(root, values, lower=True))
