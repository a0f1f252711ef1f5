"""The server's mathematics in the published method: losses, gradients and exact elimination of the couplings.

For all rows t = 1..T at once (time first; paper, Eqs. (11)-(13))::

    x = Σ_n Â_mn ĥ_c,n[t-1]        z = A_mm(ĥ_a[t-1] - ĥ_c[t-1]) = h_a - phi - A_mm ĥ_c - B_mm u
    r = h_a - A_mm ĥ_c - B_mm u - x - Σ_n B̂_mn u_n[t-1]               D = z - x
    loss = 1/T Σ ( |r|² + λᵀD + w/2 |D|² )

with w = 2 xi, λ = 0 in the penalty method and w = rho in the augmented Lagrangian. With a refined target r has ĥ_a[t]
in the place of h_a[t], and D is as it was. The columns of all units stand side by side, so a unit's block is a slice;
nothing is added up between the residuals of different units.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray, block_diagonal
from counterflow.learning.layout import Layout, own_blocks
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
        cls, introductions: Sequence[Introduction | PerturbedStates], ones: FloatArray | None = None,
        steps: int | None = None,
    ) -> Evidence:  # fmt: skip
        states = tuple(i.A.shape[0] for i in introductions)
        inputs = tuple(i.B.shape[1] for i in introductions)
        A_local, B_local = (block_diagonal([getattr(i, letter) for i in introductions]) for letter in "AB")
        refined, u = np.hstack([i.refined for i in introductions]), np.hstack([i.inputs for i in introductions])
        return cls(
            tuple(i.unit for i in introductions), states, inputs, A_local, B_local, refined, u,
            np.ones(len(u)) if ones is None else ones, len(u) if steps is None else steps,
        )  # fmt: skip

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
    def others(self) -> tuple[tuple[NDArray[np.intp], NDArray[np.intp]], ...]:
        """For every unit, the columns of states and of inputs that are not its own."""
        columns = np.arange(sum(self.states)), np.arange(sum(self.inputs))
        owned = zip(self.state_slices, self.input_slices, strict=True)
        return tuple((np.delete(columns[0], states), np.delete(columns[1], inputs)) for states, inputs in owned)

    @cached_property
    def others_spectra(self) -> tuple[tuple[FloatArray, FloatArray], ...]:
        """For every unit, eigenvalues and vectors of the Gram matrix of the other units' refined states."""
        found = (np.linalg.eigh(self.state_gram[np.ix_(states, states)]) for states, _ in self.others)
        return tuple((np.maximum(values, 0.0), vectors) for values, vectors in found)

    def step_sizes(self, explicit_penalty: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Steps for each unit's row of Â and of B̂, with which the combined loss never rises.

        The same bound as in ``augmented.AugmentedModel.step_sizes``: |r|² has four moving blocks, D two.
        """
        largest = np.array([float(values[-1]) if values.size else 0.0 for values, _ in self.others_spectra])
        inputs = np.array([_norm(self.input_gram[np.ix_(theirs, theirs)]) for _, theirs in self.others])
        constants = (8 + 2 * explicit_penalty) * largest, 8 * inputs
        a, b = (np.divide(1.0, each, out=np.zeros_like(each), where=each > 0) for each in constants)
        return a, b

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
    evidence: Evidence, target: FloatArray, moved: FloatArray, A_cross: FloatArray, B_cross: FloatArray
) -> Residuals:
    """r and D for what the server explains (T, P), what the units' parameters move, z (T, P), and the couplings."""
    crossed = evidence.refined @ A_cross.T
    prediction = target - evidence.base - crossed - evidence.u @ B_cross.T
    return Residuals(prediction, moved - crossed, evidence.steps)


def gradient_sensitivities(
    evidence: Evidence, sent: Sequence[PerturbedStates], A_cross: FloatArray, B_cross: FloatArray
) -> FloatArray:
    """Δ_grad of every unit as published (Lemma A.8): how far one measurement, of any unit, moves a row of dL/dh_a.

    Δ_m = 2/T (1 + |A_mm|) κ_mix R_max with κ_mix = L_m' (|C_mm| + Σ_n (|Â_mn| β_n^lag + |B̂_mn|)), at lag 0 and for the
    unit m' for which it is largest. That it is not a bound in general, docs/theory/privacy.md tells.
    """
    furthest = max(message.contraction * message.bound for message in sent)
    mixed = np.array([message.gain for message in sent])
    for m, _, A_mn, B_mn in _blocks(evidence, A_cross, B_cross):
        mixed[m] += _norm(A_mn) + _norm(B_mn)
    outward = 1 + np.array([_norm(message.A) for message in sent])
    return np.asarray(2 / evidence.steps * outward * mixed * furthest)


def residual_bounds(
    evidence: Evidence, sent: Sequence[PerturbedStates], A_cross: FloatArray, B_cross: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """How long a row of r and of D of every unit can get, given how long the rows of the messages are.

    A row has been cut to ``clip``; the noise then adds (√n + 4) standard deviations to it, but for one row in 3,000.
    """
    lengths = [s.clip + s.noise * (np.sqrt(3 * s.A.shape[0] + s.B.shape[1]) + 4) for s in sent]
    own = zip(sent, lengths, strict=True)
    both = [(_norm(np.hstack([s.A, np.eye(len(s.A)), s.B])) * k, _norm(np.hstack([s.A, s.A])) * k) for s, k in own]
    prediction, entanglement = np.array(both).T
    for m, n, A_mn, B_mn in _blocks(evidence, A_cross, B_cross):
        prediction[m] += _norm(np.hstack([A_mn, B_mn])) * lengths[n]
        entanglement[m] += _norm(A_mn) * lengths[n]
    return prediction, entanglement


def _blocks(
    evidence: Evidence, A_cross: FloatArray, B_cross: FloatArray
) -> Iterator[tuple[int, int, FloatArray, FloatArray]]:
    """m, n, Â_mn and B̂_mn of every pair of different units."""
    for m, rows in enumerate(evidence.state_slices):
        for n, (states, inputs) in enumerate(zip(evidence.state_slices, evidence.input_slices, strict=True)):
            if n != m:
                yield m, n, A_cross[rows, states], B_cross[rows, inputs]


def _norm(matrix: FloatArray) -> float:
    return float(np.linalg.norm(matrix, 2)) if matrix.size else 0.0


def coupling_gradients(evidence: Evidence, found: Residuals, dual: FloatArray) -> tuple[FloatArray, FloatArray]:
    """dL/dÂ and dL/dB̂, zero on the local blocks; ``dual`` = λ + w D (T, P)."""
    d_A = -(2 * found.prediction + dual).T @ evidence.refined / evidence.steps
    d_B = -2 * found.prediction.T @ evidence.u / evidence.steps
    rows, columns = evidence.state_slices, evidence.input_slices
    return d_A - own_blocks(d_A, rows, rows), d_B - own_blocks(d_B, rows, columns)


def state_gradients(evidence: Evidence, found: Residuals, dual: FloatArray) -> tuple[FloatArray, FloatArray]:
    """dL/dh_a[t] (of a refined target: dL/dĥ_a[t]), and dL/dĥ_a[t-1] through D (T, P)."""
    return found.prediction * (2 / evidence.steps), dual @ evidence.A_local / evidence.steps


def implicit_step(evidence: Evidence, step: FloatArray, weight: FloatArray) -> FloatArray:
    """Solve X_m + weight_m X_m G_m = step_m for every unit's row of Â; G_m is the Gram matrix of the others' states."""
    out = np.zeros_like(step)
    for m, (values, vectors) in enumerate(evidence.others_spectra):
        own, keep = evidence.state_slices[m], evidence.others[m][0]
        out[own, keep] = ((step[own][:, keep] @ vectors) / (1 + weight[m] * values)) @ vectors.T
    return out


@dataclass(frozen=True)
class Eliminator:
    """The couplings that minimise the penalty loss exactly, for given augmented states."""

    evidence: Evidence
    penalty: FloatArray  # w of every unit

    @cached_property
    def _factors(self) -> tuple[tuple[FloatArray, FloatArray], ...]:
        """Of every unit's normal equations."""
        evidence, out = self.evidence, []
        mixed_gram = 2 * (evidence.refined.T @ evidence.u) / evidence.steps
        for weight, (states, inputs) in zip(self.penalty, evidence.others, strict=True):
            mixed, driven = mixed_gram[np.ix_(states, inputs)], 2 * evidence.input_gram[np.ix_(inputs, inputs)]
            stated = (2 + weight) * evidence.state_gram[np.ix_(states, states)]
            out.append(_spectral_factors(np.block([[stated, mixed], [mixed.T, driven]])))
        return tuple(out)

    def solve(self, target: FloatArray, moved: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Â and B̂ for what the server explains (T, P), and for z (T, P)."""
        evidence = self.evidence
        innovation = 2 * (target - evidence.base)
        right_A = (innovation + evidence.per_state(self.penalty) * moved).T @ evidence.refined / evidence.steps
        right_B = innovation.T @ evidence.u / evidence.steps
        A_cross, B_cross = np.zeros_like(right_A), np.zeros_like(right_B)
        for own, (states, inputs), (vectors, values) in zip(
            evidence.state_slices, evidence.others, self._factors, strict=True
        ):
            right = np.hstack([right_A[own][:, states], right_B[own][:, inputs]])
            solution = ((right @ vectors) / values) @ vectors.T
            A_cross[own, states], B_cross[own, inputs] = np.split(solution, [len(states)], axis=1)
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
