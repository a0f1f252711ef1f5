"""The augmented client: a proprietary estimate plus (theta, phi), its loss and its gradients.

Paper, Eqs. (4)-(6), written for all rows t = 1..T at once (time first)::

    ĥ_a[t-1] = ĥ_c[t-1] + theta y[t-1]
    h_a[t]   = A ĥ_a[t-1] + B u[t-1] + phi
    r_a[t]   = y[t] - C h_a[t],        L_a = 1/T sum |r_a[t]|²

The server compares h_a[t] with its own prediction (Eq. (12)); with a *refined target* it compares ĥ_a[t] = ĥ_c[t] +
theta y[t], which has seen the measurement of row t. Then phi is no part of the server's loss.

Everything here is linear in (theta, phi) and quadratic in the data, so nothing changes if the rows of ``ClientData``
are replaced by any rows with the same inner products (``compress``). For the same reason the constant 1 is a column of
the data (``ones``) and T is a number of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from counterflow.arrays import FloatArray, slices
from counterflow.exchange.estimators import Estimates
from counterflow.plant import LocalModel


@dataclass(frozen=True)
class ClientData:
    """What a unit trains on; the first axis is t = 1..T, or fewer rows with the same inner products."""

    measured: FloatArray  # y[t]
    previous: FloatArray  # y[t-1]
    refined: FloatArray  # ĥ_c[t-1]
    inputs: FloatArray  # u[t-1]
    predicted: FloatArray  # h_c[t]
    current: FloatArray  # ĥ_c[t]
    ones: FloatArray  # the constant 1 (one axis)
    steps: int  # T

    @classmethod
    def from_rows(cls, y: FloatArray, u: FloatArray, estimates: Estimates) -> ClientData:
        """From a recording's rows 0..T and the proprietary estimates of the same rows."""
        steps, refined = y.shape[0] - 1, estimates.refined
        return cls(y[1:], y[:-1], refined[:-1], u[:-1], estimates.predicted[1:], refined[1:], np.ones(steps), steps)


@dataclass(frozen=True)
class AugmentedModel:
    """One unit's data and local blocks, with the quantities that training needs again and again."""

    model: LocalModel
    data: ClientData

    @cached_property
    def base(self) -> FloatArray:
        """A ĥ_c[t-1] + B u[t-1]: the part of h_a that does not depend on (theta, phi)."""
        return self.data.refined @ self.model.A.T + self.data.inputs @ self.model.B.T

    @cached_property
    def gram(self) -> FloatArray:
        """1/T sum y[t-1] y[t-1]ᵀ."""
        return self.data.previous.T @ self.data.previous / self.data.steps

    @cached_property
    def current_gram(self) -> FloatArray:
        """1/T sum y[t] y[t]ᵀ."""
        return self.data.measured.T @ self.data.measured / self.data.steps

    @cached_property
    def centred_gram(self) -> FloatArray:
        """1/T sum (y[t-1] - mean)(y[t-1] - mean)ᵀ, from centred rows: a large mean must not drown the variation."""
        centred = self.data.previous - np.outer(self.data.ones, self.mean)
        return centred.T @ centred / self.data.steps

    @cached_property
    def mean(self) -> FloatArray:
        """1/T sum y[t-1]."""
        return self.data.ones @ self.data.previous / self.data.steps

    @cached_property
    def proprietary_loss(self) -> float:
        """1/T sum |y[t] - C h_c[t]|²: the baseline that the augmented client is compared with."""
        residual = self.data.measured - self.data.predicted @ self.model.C.T
        return float(np.vdot(residual, residual)) / self.data.steps

    @cached_property
    def _norms(self) -> tuple[float, ...]:
        """Of A, C, C A, and both Gram matrices."""
        A, C = self.model.A, self.model.C
        return tuple(float(np.linalg.norm(each, 2)) for each in (A, C, C @ A, self.gram, self.current_gram))

    def states(self, theta: FloatArray, phi: FloatArray) -> FloatArray:
        """h_a[t] for all rows (T, P_m)."""
        return self.base + self.data.previous @ (self.model.A @ theta).T + np.outer(self.data.ones, phi)

    def refined_states(self, theta: FloatArray) -> FloatArray:
        """ĥ_a[t] for all rows (T, P_m)."""
        return self.data.current + self.data.measured @ theta.T

    def loss_and_gradients(self, states: FloatArray) -> tuple[float, FloatArray, FloatArray]:
        """L_a at ``states`` = h_a, and its gradients in theta (P_m, D_m) and phi (P_m,)."""
        residual = self.data.measured - states @ self.model.C.T
        loss = float(np.vdot(residual, residual)) / self.data.steps
        pulled = residual @ self.model.C * (-2.0 / self.data.steps)  # dL_a/dh_a
        return loss, self.model.A.T @ (pulled.T @ self.data.previous), pulled.T @ self.data.ones

    def chain_rule(
        self, target: FloatArray, refined: FloatArray, refined_target: bool = False
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Both shares of dL_s/dtheta, through the target and through D, and dL_s/dphi (paper, Eqs. (7)-(8)).

        From dL_s/dh_a[t] (of a refined target: dL_s/dĥ_a[t], which has no phi in it) and dL_s/dĥ_a[t-1] (may be empty).
        """
        data = self.data
        pulled = refined.T @ data.previous if len(refined) else np.zeros((self.model.states, self.model.n_outputs))
        if refined_target:
            return target.T @ data.measured, pulled, np.zeros(self.model.states)
        return self.model.A.T @ (target.T @ data.previous), pulled, target.T @ data.ones

    def best_offset(self, theta: FloatArray, offset: bool = True) -> FloatArray:
        """The phi (P,) that minimises L_a for a theta; zero if there is none to be learned."""
        nothing = np.zeros(self.model.states)
        if not offset:
            return nothing
        residual = self.data.measured - self.states(theta, nothing) @ self.model.C.T
        mean = self.data.ones @ residual / self.data.steps
        return np.asarray(np.linalg.lstsq(self.model.C, mean, rcond=None)[0])

    def step_sizes(self, explicit_penalty: float, refined_target: bool = False) -> tuple[float, float]:
        """Steps for theta and phi with which the combined loss never rises, whatever the data.

        The four blocks theta, phi, Â, B̂ move at once. A term q/2 |J_1 x_1 + .. + J_n x_n|² has a Hessian below the
        block-diagonal one with blocks n q |J_i|², so each block's constant is that sum over the terms it stands in:
        |r_a|² (q=2, n=2), |r_s|² (q=2, n=4) and penalty/2 |D|² (q=penalty, n=2). A refined target has theta y[t] in
        |r_s|², in the place of A theta y[t-1] + phi.
        """
        norm_a, norm_c, norm_ca, gram, current = self._norms
        theta = (4 * norm_ca**2 + 2 * explicit_penalty * norm_a**2) * gram
        theta += 8 * (current if refined_target else norm_a**2 * gram)
        return (1 / theta if theta > 0 else 0.0), 1 / (4 * norm_c**2 + 8)

    @cached_property
    def _implicit_basis(self) -> tuple[FloatArray, ...]:
        return (*np.linalg.eigh(self.model.A.T @ self.model.A), *np.linalg.eigh(self.gram))

    def implicit_step(self, step: FloatArray, weight: float) -> FloatArray:
        """Solve X + weight · AᵀA X G = step, G the Gram matrix of y: the implicit half of an IMEX step in theta."""
        left, left_vectors, right, right_vectors = self._implicit_basis
        inner = left_vectors.T @ step @ right_vectors
        inner /= 1 + weight * np.outer(left, right)
        return np.asarray(left_vectors @ inner @ right_vectors.T)


# ---- fewer rows with the same inner products: in one process a round need not cost more when T grows


def compress(data: Mapping[str, ClientData], refined_target: bool = False) -> dict[str, ClientData]:
    """The same data in fewer rows; every inner product of columns of one unit with its own or shared ones is kept.

    Multiplying all columns from the left by an orthogonal matrix changes no inner product, so none of the iterates. A
    QR factorisation of the shared columns S = [ĥ_c, u, 1] of all units, then of what is left of each unit's own
    columns, turns T rows into P + U + 1 rows that hold the shared columns, and 2 D_m + P_m more in which S is zero,
    exactly, without forming Gram matrices (whose condition is squared). The latter mean something different at each
    unit, and may stand in the same place, because the server never adds up columns of different units. ĥ_c[t] is among
    the columns, P_m more rows, only if it is part of the server's target; else there are none of it.

    This pools the units' data and is for one process only. Bytes are counted as if the rows had been sent.
    """
    first = next(iter(data.values()))
    shared = [*(each for d in data.values() for each in (d.refined, d.inputs)), first.ones[:, None]]
    basis, triangle = np.linalg.qr(np.hstack(shared))
    own = {n: [d.measured, d.previous, d.predicted, d.current[:, : d.current.shape[1] * refined_target]]
           for n, d in data.items()}  # fmt: skip
    inside = {n: basis.T @ np.hstack(columns) for n, columns in own.items()}
    outside = {n: np.linalg.qr(np.hstack(own[n]) - basis @ inside[n], mode="r") for n in own}
    rows = len(triangle) + max(map(len, outside.values()))

    def divided(block: FloatArray, like: Sequence[FloatArray]) -> list[FloatArray]:
        """Into as many columns each, with zeros in the rows that are missing."""
        padded = np.vstack([block, np.zeros((rows - len(block), block.shape[1]))])
        return [np.ascontiguousarray(padded[:, place]) for place in slices([each.shape[1] for each in like])]

    *common, ones = divided(triangle, shared)
    out: dict[str, ClientData] = {}
    for (n, d), refined, inputs in zip(data.items(), common[::2], common[1::2], strict=True):
        measured, previous, predicted, current = divided(np.vstack([inside[n], outside[n]]), own[n])
        out[n] = ClientData(measured, previous, refined, inputs, predicted, current, ones[:, 0].copy(), d.steps)
    return out
