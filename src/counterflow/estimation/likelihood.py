"""Likelihood of the couplings given what all units have sent, its gradient, and the moments that both rest on.

The server sees, in the recursion of docs/theory/notation.md, low-dimensional measurements with known noise::

    h[t] = A h[t-1] + B u[t-1] + w[t-1],  w ~ N(0, Q)        s[t] = C̃ h[t] + N(0, N),   N = I

By Fisher's identity the gradient of their log-likelihood is that of the complete data, averaged over the states given
all measurements: with x[t] = (h[t], u[t]) and moments S_yx = Σ E[h[t] x[t-1]ᵀ], S_xx = Σ E[x[t-1] x[t-1]ᵀ],

    dℓ/d[A B] = Q⁻¹ (S_yx - [A B] S_xx),        dℓ/dQ = ½ Q⁻¹ (S_ww - T Q) Q⁻¹,   S_ww = Σ E[w wᵀ]
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.estimation.layout import Layout
from counterflow.filtering import FilterResult, compress, kalman_filter, rts_smoother
from counterflow.filtering.initial import default_covariance


@dataclass(frozen=True)
class SharedRecord(Layout):
    """What the server knows of all units: measurements of rows 0..T (NaN: that unit is missing there), inputs, models.

    Columns of all units stand side by side. ``noise`` is the identity for sufficient messages; the centralized
    reference puts raw measurements, C and R in their places.
    """

    values: FloatArray = field(metadata={"missing": True})  # (T+1, r)
    u: FloatArray  # (T+1, U)
    observation: FloatArray  # (r, P)
    noise: FloatArray  # (r, r)
    A_local: FloatArray  # (P, P), block-diagonal
    B_local: FloatArray  # (P, U), block-diagonal
    Q_local: FloatArray  # (P, P), block-diagonal
    initial_mean: FloatArray | None = None
    initial_covariance: FloatArray | None = None

    @property
    def steps(self) -> int:
        """T."""
        return int(self.values.shape[0]) - 1

    def last(self, rows: int) -> SharedRecord:
        """The newest rows only; nothing is known of the state before them."""
        return replace(self, values=self.values[-rows:], u=self.u[-rows:], initial_mean=None)

    @cached_property
    def observation_slices(self) -> tuple[slice, ...]:
        """Where each unit's rows stand in ``observation``: those that see its states."""
        owners = np.zeros(self.observation.shape[0], int)
        for m, own in enumerate(self.state_slices):
            owners[np.abs(self.observation[:, own]).sum(axis=1) > 0] = m
        return tuple(
            slice(int(np.searchsorted(owners, m)), int(np.searchsorted(owners, m, "right")))
            for m in range(len(self.names))
        )

    @cached_property
    def prior(self) -> FloatArray:
        """Covariance of h[0]: so wide that the data decide, not so wide that rounding does.

        For each unit, the stationary covariance of its own dynamics under its noise and inputs, a hundredfold, or wider
        if its measurements ask for it. Neither the basis of the states nor that of the measurements matters.
        """
        if self.initial_covariance is not None:
            return self.initial_covariance
        out = np.zeros_like(self.A_local)
        for own, inputs, rows in zip(self.state_slices, self.input_slices, self.observation_slices, strict=True):
            squeezed = compress(self.observation[rows, own], self.noise[rows, rows])
            values = self.values[rows_measured(self.values[:, rows]), rows] @ squeezed.reach.T
            drive = self.B_local[own, inputs] @ self.u[:, inputs].T
            spread = self.Q_local[own, own] + drive @ drive.T / self.u.shape[0]
            kind, base = default_covariance(self.A_local[own, own], spread, squeezed.observation)
            explained = float(np.trace(squeezed.observation @ base @ squeezed.observation.T))
            energy = float(np.square(values).sum()) / max(len(values), 1)
            factor = 1.0 if kind == "vague" else 100.0
            out[own, own] = base * max(factor, 10 * energy / explained if explained > 0 else 0.0)
        return out

    @cached_property
    def input_moment(self) -> FloatArray:
        """Σ u[t-1] u[t-1]ᵀ."""
        return self.u[:-1].T @ self.u[:-1]

    @cached_property
    def presence(self) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Which units are there: a label for every row (T+1,), and for every label the units (k, M)."""
        there = np.stack([np.isfinite(self.values[:, own]).all(axis=1) for own in self.observation_slices], axis=1)
        patterns, labels = np.unique(there, axis=0, return_inverse=True)
        return np.asarray(labels, np.intp).ravel(), np.asarray(patterns, bool)

    def filter(self, A: FloatArray, B: FloatArray, Q: FloatArray) -> FilterResult:
        """Kalman filter over the record, with the given couplings."""
        return kalman_filter(
            self.values, self.u, A, B, self.observation, Q, self.noise,
            initial_mean=self.initial_mean, initial_covariance=self.prior,
        )  # fmt: skip


@dataclass(frozen=True)
class Evaluation:
    """Log-likelihood at (A, B, Q), with the moments that give its gradient."""

    A: FloatArray
    B: FloatArray
    Q: FloatArray
    log_likelihood: float
    S_xx: FloatArray  # (P+U, P+U)
    S_yx: FloatArray  # (P, P+U)
    S_yy: FloatArray  # (P, P)
    steps: int

    @cached_property
    def coupling(self) -> FloatArray:
        return np.hstack([self.A, self.B])

    @cached_property
    def gap(self) -> FloatArray:
        """S_yx - [A B] S_xx: Q times the gradient in [A B]."""
        return self.S_yx - self.coupling @ self.S_xx

    @cached_property
    def noise_moment(self) -> FloatArray:
        """S_ww = Σ E[w wᵀ] given the data."""
        cross = self.coupling @ self.S_yx.T
        moment = self.S_yy - cross - cross.T + self.coupling @ self.S_xx @ self.coupling.T
        return (moment + moment.T) / 2


def evaluate(record: SharedRecord, A: FloatArray, B: FloatArray, Q: FloatArray) -> Evaluation:
    """Filter, smooth and collect."""
    filtered = record.filter(A, B, Q)
    smoothed = rts_smoother(filtered, A, Q, sums=True)
    h = smoothed.smoothed
    first, last = smoothed.first_covariance, smoothed.last_covariance
    total, lagged = smoothed.covariance_sum, smoothed.lag_covariance_sum
    assert first is not None and last is not None and total is not None and lagged is not None  # noqa: PT018
    before, after, u = h[:-1], h[1:], record.u[:-1]
    P, U = A.shape[0], u.shape[1]
    S_xx = np.empty((P + U, P + U))
    S_xx[:P, :P] = before.T @ before + total - last
    S_xx[:P, P:] = before.T @ u
    S_xx[P:, :P] = S_xx[:P, P:].T
    S_xx[P:, P:] = record.input_moment
    S_yx = np.hstack([after.T @ before + lagged, after.T @ u])
    S_yy = after.T @ after + total - first
    return Evaluation(A, B, Q, filtered.log_likelihood, S_xx, S_yx, S_yy, record.steps)


def rows_measured(values: FloatArray) -> NDArray[np.bool_]:
    """Rows in which nothing is missing."""
    return np.asarray(np.isfinite(values).all(axis=1))
