"""The server's mathematics in the published method: losses, gradients and exact elimination of the couplings.

For all rows t = 1..T at once (time first; paper, Eqs. (11)-(13))::

    x = Σ_n Â_mn ĥ_c,n[t-1]        z = A_mm(ĥ_a[t-1] - ĥ_c[t-1]) = h_a - phi - A_mm ĥ_c - B_mm u
    r = h_a - A_mm ĥ_c - B_mm u - x - Σ_n B̂_mn u_n[t-1]               D = z - x
    loss = 1/T Σ ( |r|² + λᵀD + w/2 |D|² )

with w = 2 xi, λ = 0 in the penalty method and w = rho in the augmented Lagrangian. With a refined target r has ĥ_a[t]
in the place of h_a[t], and D is as it was. The columns of all units stand
side by side, so a unit's block is a slice; nothing is added up between the residuals of different units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray, block_diagonal
from counterflow.learning.layout import Layout
from counterflow.protocol import Introduction, PerturbedStates

RANK_TOLERANCE = 1e-13


@dataclass(frozen=True)
class Evidence(Layout):
    """What all units have told the server: local blocks, refined states and inputs of rows t-1.

    Once, or in every round anew if their messages are noised.
    """

    A_local: FloatArray  # (P, P), block-diagonal
    B_local: FloatArray  # (P, U), block-diagonal
    refined: FloatArray  # (T, P)
    u: FloatArray  # (T, U)
    ones: FloatArray  # (T,)
    steps: int

    @classmethod
    def collect(
        cls, introductions: Sequence[Introduction | PerturbedStates], ones: FloatArray | None, steps: int | None
    ) -> Evidence:
        states = tuple(i.A.shape[0] for i in introductions)
        inputs = tuple(i.B.shape[1] for i in introductions)
        A_local, B_local = (block_diagonal([getattr(i, letter) for i in introductions]) for letter in "AB")
        refined, u = np.hstack([i.refined for i in introductions]), np.hstack([i.inputs for i in introductions])
        return cls(
            tuple(i.unit for i in introductions), states, inputs, A_local, B_local, refined, u,
            np.ones(len(u)) if ones is None else ones, len(u) if steps is None else steps,
        )  # fmt: skip

    @cached_property
    def cross_A(self) -> NDArray[np.bool_]:
        """Entries of A that are couplings, not local."""
        return _off_diagonal(self.states, self.states)

    @cached_property
    def cross_B(self) -> NDArray[np.bool_]:
        return _off_diagonal(self.states, self.inputs)

    @cached_property
    def base(self) -> FloatArray:
        """A_mm ĥ_c,m[t-1] + B_mm u_m[t-1] of every unit (T, P)."""
        return self.refined @ self.A_local.T + self.u @ self.B_local.T

    @cached_property
    def state_gram(self) -> FloatArray:
        return self.refined.T @ self.refined / self.steps

    @cached_property
    def input_gram(self) -> FloatArray:
        return self.u.T @ self.u / self.steps

    @cached_property
    def mixed_gram(self) -> FloatArray:
        return self.refined.T @ self.u / self.steps

    @cached_property
    def mean_input(self) -> FloatArray:
        return self.ones @ self.u / self.steps

    @cached_property
    def others_spectra(self) -> tuple[tuple[FloatArray, FloatArray], ...]:
        """For every unit, eigenvalues and vectors of the Gram matrix of the other units' refined states."""
        out = []
        for own in self.state_slices:
            keep = _others(own, sum(self.states))
            values, vectors = np.linalg.eigh(self.state_gram[np.ix_(keep, keep)])
            out.append((np.maximum(values, 0.0), vectors))
        return tuple(out)

    @cached_property
    def others_input_norm(self) -> tuple[float, ...]:
        """For every unit, the largest eigenvalue of the Gram matrix of the other units' inputs."""
        out = []
        for own in self.input_slices:
            keep = _others(own, sum(self.inputs))
            gram = self.input_gram[np.ix_(keep, keep)]
            out.append(float(np.linalg.norm(gram, 2)) if gram.size else 0.0)
        return tuple(out)

    def step_sizes(self, explicit_penalty: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Steps for each unit's row of Â and of B̂, with which the combined loss never rises.

        The same bound as in ``augmented.AugmentedModel.step_sizes``: |r|² has four moving blocks, D two.
        """
        a, b = [], []
        for m, (values, _) in enumerate(self.others_spectra):
            largest = float(values[-1]) if values.size else 0.0
            constant = (8 + 2 * explicit_penalty[m]) * largest
            a.append(1 / constant if constant > 0 else 0.0)
            constant = 8 * self.others_input_norm[m]
            b.append(1 / constant if constant > 0 else 0.0)
        return np.array(a), np.array(b)

    def per_state(self, per_unit: FloatArray) -> FloatArray:
        """One value a unit -> one value a state."""
        return np.repeat(per_unit, self.states)


@dataclass(frozen=True)
class Residuals:
    """r and D of one round, with the losses they give."""

    prediction: FloatArray  # r (T, P)
    entanglement: FloatArray  # D (T, P)
    steps: int

    @cached_property
    def residual_loss(self) -> float:
        return float(np.vdot(self.prediction, self.prediction)) / self.steps

    @cached_property
    def disentanglement(self) -> float:
        return float(np.vdot(self.entanglement, self.entanglement)) / self.steps


def residuals(
    evidence: Evidence, predicted: FloatArray, offset: FloatArray, A_cross: FloatArray, B_cross: FloatArray,
    target: FloatArray | None = None, augmented: FloatArray | None = None,
) -> Residuals:  # fmt: skip
    """r and D for augmented states ``predicted`` = h_a (T, P), ``offset`` = phi (P,), and the couplings.

    ``target`` (T, P): what the server explains, h_a[t] if it is not given. ``augmented`` = ĥ_a (T, P): if units have
    sent it, and no phi.
    """
    crossed = evidence.refined @ A_cross.T
    innovation = predicted - evidence.base
    if augmented is None:
        entanglement = innovation - np.outer(evidence.ones, offset) - crossed
    else:
        entanglement = (augmented - evidence.refined) @ evidence.A_local.T - crossed
    if target is not None:
        innovation = target - evidence.base
    return Residuals(innovation - crossed - evidence.u @ B_cross.T, entanglement, evidence.steps)


def mean_offset(evidence: Evidence, predicted: FloatArray, augmented: FloatArray) -> FloatArray:
    """phi (P,) as far as it shows in what was sent: the mean of h_a - A_mm ĥ_a - B_mm u."""
    rest = predicted - augmented @ evidence.A_local.T - evidence.u @ evidence.B_local.T
    return np.asarray(evidence.ones @ rest / evidence.steps)


def gradient_sensitivities(
    evidence: Evidence, sent: Sequence[PerturbedStates], A_cross: FloatArray, B_cross: FloatArray
) -> FloatArray:
    """Δ_grad of every unit as published (Lemma A.8): how far one measurement, of any unit, moves a row of dL/dh_a.

    Δ_m = 2/T (1 + |A_mm|) κ_mix R_max with κ_mix = L_m' (|C_mm| + Σ_n (|Â_mn| β_n^lag + |B̂_mn|)), at lag 0 and for the
    unit m' for which it is largest. That it is not a bound in general, docs/theory/privacy.md tells.
    """
    furthest = max(message.contraction * message.bound for message in sent)
    out = []
    for m, message in enumerate(sent):
        own = evidence.state_slices[m]
        mixed = message.gain
        for n in range(len(sent)):
            if n != m:
                mixed += _norm(A_cross[own, evidence.state_slices[n]]) + _norm(B_cross[own, evidence.input_slices[n]])
        out.append(2 / evidence.steps * (1 + _norm(message.A)) * mixed * furthest)
    return np.array(out)


def residual_bounds(
    evidence: Evidence, sent: Sequence[PerturbedStates], A_cross: FloatArray, B_cross: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """How long a row of r and of D of every unit can get, given how long the rows of the messages are.

    A row has been cut to ``clip``; the noise then adds (√n + 4) standard deviations to it, but for one row in 3,000.
    """
    lengths = [s.clip + s.noise * (np.sqrt(3 * s.A.shape[0] + s.B.shape[1]) + 4) for s in sent]
    prediction, entanglement = [], []
    for m, message in enumerate(sent):
        own, A, eye = evidence.state_slices[m], message.A, np.eye(message.A.shape[0])
        r = _norm(np.hstack([A, eye, message.B])) * lengths[m]
        d = _norm(np.hstack([A, A])) * lengths[m]
        for n, length in enumerate(lengths):
            if n != m:
                A_mn, B_mn = A_cross[own, evidence.state_slices[n]], B_cross[own, evidence.input_slices[n]]
                r += _norm(np.hstack([A_mn, B_mn])) * length
                d += _norm(A_mn) * length
        prediction.append(r)
        entanglement.append(d)
    return np.array(prediction), np.array(entanglement)


def _norm(matrix: FloatArray) -> float:
    return float(np.linalg.norm(matrix, 2)) if matrix.size else 0.0


def coupling_gradients(evidence: Evidence, found: Residuals, dual: FloatArray) -> tuple[FloatArray, FloatArray]:
    """dL/dÂ and dL/dB̂, zero on the local blocks; ``dual`` = λ + w D (T, P)."""
    d_A = -(2 * found.prediction + dual).T @ evidence.refined / evidence.steps
    d_B = -2 * found.prediction.T @ evidence.u / evidence.steps
    return np.where(evidence.cross_A, d_A, 0.0), np.where(evidence.cross_B, d_B, 0.0)


def state_gradients(evidence: Evidence, found: Residuals, dual: FloatArray) -> tuple[FloatArray, FloatArray]:
    """dL/dh_a[t] (of a refined target: dL/dĥ_a[t]), and dL/dĥ_a[t-1] through D (T, P)."""
    return found.prediction * (2 / evidence.steps), dual @ evidence.A_local / evidence.steps


def implicit_step(evidence: Evidence, step: FloatArray, weight: FloatArray) -> FloatArray:
    """Solve X_m + weight_m X_m G_m = step_m for every unit's row of Â; G_m is the Gram matrix of the others' states."""
    out = np.zeros_like(step)
    for m, own in enumerate(evidence.state_slices):
        keep = _others(own, step.shape[1])
        values, vectors = evidence.others_spectra[m]
        out[own, keep] = ((step[own][:, keep] @ vectors) / (1 + weight[m] * values)) @ vectors.T
    return out


@dataclass(frozen=True)
class Eliminator:
    """The couplings that minimise the penalty loss exactly, for given augmented states."""

    evidence: Evidence
    penalty: FloatArray  # w of every unit

    @cached_property
    def _factors(self) -> tuple[tuple[NDArray[np.bool_], NDArray[np.bool_], FloatArray, FloatArray], ...]:
        evidence, out = self.evidence, []
        for m, (own_states, own_inputs) in enumerate(zip(evidence.state_slices, evidence.input_slices, strict=True)):
            keep_A, keep_B = _others(own_states, sum(evidence.states)), _others(own_inputs, sum(evidence.inputs))
            mixed = 2 * evidence.mixed_gram[np.ix_(keep_A, keep_B)]
            normal = np.block(
                [
                    [(2 + self.penalty[m]) * evidence.state_gram[np.ix_(keep_A, keep_A)], mixed],
                    [mixed.T, 2 * evidence.input_gram[np.ix_(keep_B, keep_B)]],
                ]
            )
            out.append((keep_A, keep_B, *_spectral_factors(normal)))
        return tuple(out)

    def solve(
        self, predicted: FloatArray, offset: FloatArray, target: FloatArray | None = None
    ) -> tuple[FloatArray, FloatArray]:
        evidence = self.evidence
        innovation = (predicted if target is None else target) - evidence.base
        if target is None:
            both = (2 + evidence.per_state(self.penalty)) * innovation
            both -= evidence.per_state(self.penalty) * np.outer(evidence.ones, offset)
        else:
            entangled = predicted - evidence.base - np.outer(evidence.ones, offset)
            both = 2 * innovation + evidence.per_state(self.penalty) * entangled
        right_A = both.T @ evidence.refined / evidence.steps
        right_B = 2 * innovation.T @ evidence.u / evidence.steps
        A_cross, B_cross = np.zeros_like(right_A), np.zeros_like(right_B)
        for m, (keep_A, keep_B, vectors, values) in enumerate(self._factors):
            own = evidence.state_slices[m]
            right = np.hstack([right_A[own][:, keep_A], right_B[own][:, keep_B]])
            solution = ((right @ vectors) / values) @ vectors.T
            A_cross[own, keep_A] = solution[:, : int(keep_A.sum())]
            B_cross[own, keep_B] = solution[:, int(keep_A.sum()) :]
        return A_cross, B_cross


def _spectral_factors(gram: FloatArray) -> tuple[FloatArray, FloatArray]:
    """V and v with gram⁺ ≈ V diag(1/v) Vᵀ for a symmetric positive semidefinite matrix.

    Its columns are put on a common scale first. The factors are kept apart: applied one after the other they leave a
    residual at rounding level, which a formed inverse of an ill-conditioned matrix does not.
    """
    size = np.sqrt(np.maximum(np.diag(gram), 0.0))
    inverse = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0)
    values, vectors = np.linalg.eigh(gram * np.outer(inverse, inverse))
    keep = values > RANK_TOLERANCE * max(len(size), 1)
    return vectors[:, keep] * inverse[:, None], values[keep]


def _others(own: slice, count: int) -> NDArray[np.bool_]:
    """Which of so many columns are not a unit's own."""
    keep = np.ones(count, bool)
    keep[own] = False
    return keep


def _off_diagonal(rows: tuple[int, ...], columns: tuple[int, ...]) -> NDArray[np.bool_]:
    row_owner = np.repeat(np.arange(len(rows)), rows)
    column_owner = np.repeat(np.arange(len(columns)), columns)
    return np.asarray(row_owner[:, None] != column_owner[None, :])
