"""The augmented client: a proprietary estimate plus (theta, phi), its loss and its gradients.

Paper, Eqs. (4)-(6), written for all rows t = 1..T at once (time first)::

    ĥ_a[t-1] = ĥ_c[t-1] + theta y[t-1]
    h_a[t]   = A ĥ_a[t-1] + B u[t-1] + phi
    r_a[t]   = y[t] - C h_a[t],        L_a = 1/T sum |r_a[t]|²

The server compares h_a[t] with its own prediction (Eq. (12)); with a *refined target* it compares ĥ_a[t] = ĥ_c[t] +
theta y[t], which has seen the measurement of row t. Then phi is no part of the server's loss.

Everything here is linear in (theta, phi) and quadratic in the data, so nothing changes if the rows of ``ClientData``
are replaced by any rows with the same inner products (``compression.py``). For the same reason the constant 1 is a
column of the data (``ones``) and T is a number of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.exchange.estimators import Estimates
from counterflow.plant import LocalModel

if TYPE_CHECKING:
    from counterflow.exchange.part import UnitPart


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

    @classmethod
    def from_part(cls, part: UnitPart, y: FloatArray, u: FloatArray) -> ClientData:
        """What a unit's part makes of its measurements and inputs, rows 0..T."""
        return cls.from_rows(*part.estimates(y, u))


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

    def chain_rule(self, predicted: FloatArray, refined: FloatArray | None) -> tuple[FloatArray, FloatArray]:
        """dL_s/dtheta and dL_s/dphi from dL_s/dh_a[t] and dL_s/dĥ_a[t-1] (paper, Eqs. (7)-(8))."""
        d_theta = self.model.A.T @ (predicted.T @ self.data.previous)
        if refined is not None:
            d_theta = d_theta + refined.T @ self.data.previous
        return d_theta, predicted.T @ self.data.ones

    def refined_chain_rule(self, current: FloatArray, refined: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The same with a refined target: both shares of dL_s/dtheta, from dL_s/dĥ_a[t] and through D; phi has none."""
        return current.T @ self.data.measured, refined.T @ self.data.previous

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
