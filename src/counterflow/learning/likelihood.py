"""Likelihood of the couplings given what all units have sent, its gradient, and the moments that both rest on.

The server sees, in the recursion of docs/theory/notation.md, low-dimensional measurements with known noise::

    h[t] = A h[t-1] + B u[t-1] + w[t-1],  w ~ N(0, Q)        s[t] = C̃ h[t] + N(0, N),   N = I

By Fisher's identity the gradient of their log-likelihood is that of the complete data, averaged over the states given
all measurements: with x[t] = (h[t], u[t]) and moments S_yx = Σ E[h[t] x[t-1]ᵀ], S_xx = Σ E[x[t-1] x[t-1]ᵀ],

    dℓ/d[A B] = Q⁻¹ (S_yx - [A B] S_xx),        dℓ/dQ = ½ Q⁻¹ (S_ww - T Q) Q⁻¹,   S_ww = Σ E[w wᵀ]
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray, block_diagonal
from counterflow.filtering import FilterResult, compress_by_presence, kalman_filter, rts_smoother
from counterflow.filtering.covariances import default_covariance
from counterflow.learning.layout import Layout
from counterflow.protocol import Sufficient


@dataclass(frozen=True, eq=False)
class Patterns:
    """How rows see the states where channels come and go: each row of a unit has one of a few observations.

    ``labels`` (T+1, M): which of them; ``observations``: those of each unit (k, r_m, P_m), the first with all channels,
    zeros below those that have fewer rows.
    """

    labels: NDArray[np.intp]
    observations: tuple[FloatArray, ...]


@dataclass(frozen=True)
class SharedRecord(Layout):
    """What the server knows of all units: measurements of rows 0..T (NaN: that unit is missing there), inputs, models.

    Columns of all units stand side by side. ``noise`` is the identity for sufficient messages; the centralized
    reference puts raw measurements, C and R in their places. ``observation`` is that of a row in which all channels are
    there; ``patterns`` tells how other rows see the states, None: all rows that are there see them alike.
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
    patterns: Patterns | None = None

    @classmethod
    def from_messages(cls, messages: Sequence[Sufficient]) -> SharedRecord:
        """All units side by side, of what each has sent; NaN in the rows in which a unit is missing."""
        observation = block_diagonal([m.observation for m in messages])
        values, u = np.hstack([m.numbers for m in messages]), np.hstack([m.inputs for m in messages])
        names = [m.unit for m in messages]
        record = cls.from_models(names, messages, values, u, observation, np.eye(len(observation)))
        if not any(m.ranks[1:].any() for m in messages):
            return record  # all rows that are there see the states alike
        labels = np.stack([m.labels for m in messages], axis=1)
        return replace(record, patterns=Patterns(labels, tuple(m.patterns for m in messages)))

    @classmethod
    def from_models(
        cls, names: Iterable[str], models: Sequence[Any], values: FloatArray, u: FloatArray, observation: FloatArray,
        noise: FloatArray,
    ) -> SharedRecord:  # fmt: skip
        """Rows of all units side by side, with the local blocks A, B and Q of their ``models``."""
        states, inputs = tuple(len(m.A) for m in models), tuple(m.B.shape[1] for m in models)
        A, B, Q = (block_diagonal([getattr(m, letter) for m in models]) for letter in "ABQ")
        return cls(
            tuple(names), states, inputs, values=values, u=u, observation=observation, noise=noise, A_local=A,
            B_local=B, Q_local=Q,
        )  # fmt: skip

    @property
    def steps(self) -> int:
        """T."""
        return int(self.values.shape[0]) - 1

    @cached_property
    def alike(self) -> bool:
        """Whether all rows, but perhaps the first, are there and see the states alike."""
        if self.sight.ndim == 3:
            return False
        used = np.abs(self.sight).max(axis=1, initial=0.0) > 0 if self.patterns else slice(None)
        return bool(np.isfinite(self.values[1:, used]).all())

    def last(self, rows: int) -> SharedRecord:
        """The newest rows only; nothing is known of the state before them."""
        patterns = self.patterns and replace(self.patterns, labels=self.patterns.labels[-rows:])
        return replace(self, values=self.values[-rows:], u=self.u[-rows:], initial_mean=None, patterns=patterns)

    def joined(self, values: FloatArray, u: FloatArray) -> SharedRecord:
        """With whole rows ``values`` (k, r) after the last, NaN: that unit is missing. ``u``: of all rows."""
        patterns = self.patterns
        if patterns is not None:
            none = np.zeros((len(values), len(self.names)), np.intp)
            patterns = replace(patterns, labels=np.vstack([patterns.labels, none]))
        return replace(self, values=np.vstack([self.values, values]), u=u, patterns=patterns)

    def following(
        self, mean: FloatArray, covariance: FloatArray, last_input: FloatArray, Q: FloatArray
    ) -> SharedRecord:
        """The same rows after one that is missing, whose state is known and whose input acts on the first of them."""
        nothing, patterns = np.full((1, self.values.shape[1]), np.nan), self.patterns
        if patterns is not None:
            patterns = replace(patterns, labels=np.vstack([patterns.labels[:1], patterns.labels]))
        return replace(
            self, values=np.vstack([nothing, self.values]), u=np.vstack([last_input, self.u]), initial_mean=mean,
            initial_covariance=covariance, Q_local=Q, patterns=patterns,
        )  # fmt: skip

    def alone(self, m: int) -> SharedRecord:
        """One unit by itself; nothing is known of its state before the first row."""
        record = self.squeezed
        rows, own, inputs = record.observation_slices[m], record.state_slices[m], record.input_slices[m]
        patterns = record.patterns and Patterns(
            record.patterns.labels[:, m : m + 1], (record.patterns.observations[m],)
        )
        return SharedRecord(
            (record.names[m],), (record.states[m],), (record.inputs[m],), values=record.values[:, rows],
            u=record.u[:, inputs], observation=record.observation[rows, own], noise=record.noise[rows, rows],
            A_local=record.A_local[own, own], B_local=record.B_local[own, inputs], Q_local=record.Q_local[own, own],
            patterns=patterns,
        )  # fmt: skip

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
    def squeezed(self) -> SharedRecord:
        """The same with noise N(0, I), every row compressed by the channels that it has; itself if it is so already."""
        if np.array_equal(self.noise, np.eye(len(self.noise))):
            return self
        found = [
            compress_by_presence(self.values[:, rows], self.observation[rows, own], self.noise[rows, rows])
            for rows, own in zip(self.observation_slices, self.state_slices, strict=True)
        ]
        observation = block_diagonal([each.observations[0] for each in found])
        patterns = None
        if any(len(matrix) for each in found for matrix in each.observations[1:]):
            tables = tuple(stacked(each.observations) for each in found)
            patterns = Patterns(np.stack([each.labels for each in found], axis=1), tables)
        return replace(
            self, values=np.hstack([each.values for each in found]), observation=observation,
            noise=np.eye(len(observation)), patterns=patterns,
        )  # fmt: skip

    @cached_property
    def sight(self) -> FloatArray:
        """How rows see the states: (r, P) if all that are there see them alike, else (T+1, r, P)."""
        if self.patterns is None:
            return self.observation
        units = list(zip(self.observation_slices, self.state_slices, self.patterns.observations, strict=True))
        used = [
            np.unique(labels[np.isfinite(self.values[:, rows]).any(axis=1)])
            for labels, (rows, _, _) in zip(self.patterns.labels.T, units, strict=True)
        ]
        if all(len(labels) <= 1 for labels in used):  # a channel that was never there makes no difference
            return block_diagonal(
                [table[labels[0] if len(labels) else 0] for labels, (_, _, table) in zip(used, units, strict=True)]
            )
        out = np.zeros((len(self.values), *self.observation.shape))
        for m, (rows, own, table) in enumerate(units):
            out[:, rows, own] = table[self.patterns.labels[:, m]]
        return out

    @cached_property
    def mean_information(self) -> FloatArray:
        """What a row says of the states, on average over all rows (P, P); missing rows say nothing."""
        record = self.squeezed
        there = np.isfinite(record.values)
        if record.sight.ndim == 2:
            return np.asarray((record.sight.T * there.mean(axis=0)) @ record.sight)
        seen = np.where(there[:, :, None], record.sight, 0.0).reshape(-1, record.sight.shape[2])
        return np.asarray(seen.T @ seen / len(there))

    def readings(self, wanted: Sequence[FloatArray]) -> tuple[FloatArray, FloatArray]:
        """What each row by itself says of ``wanted[m]`` (q_m, P_m) times the states of each unit, by least squares.

        (T+1, Σ q_m), NaN where a row does not determine an entry; and the covariance of its noise, (q, q) of all rows
        or (T+1, q, q) of each.
        """
        record, out, noises = self.squeezed, [], []
        for m, (rows, own) in enumerate(zip(record.observation_slices, record.state_slices, strict=True)):
            if record.patterns is None:
                table, labels = record.observation[None, rows, own], np.zeros(len(record.values), np.intp)
            else:
                table, labels = record.patterns.observations[m], record.patterns.labels[:, m]
            solve = wanted[m] @ np.linalg.pinv(table, rcond=1e-8)  # (k, q, r)
            off = np.abs(solve @ table - wanted[m]).max(axis=2, initial=0.0)
            solve[off > 1e-6 * np.abs(wanted[m]).max(initial=0.0)] = np.nan
            values = record.values[:, rows]
            needed = np.abs(table).max(axis=2, initial=0.0) > 0
            there = (np.isfinite(values) | ~needed[labels]).all(axis=1)
            read = (solve[labels] @ np.nan_to_num(values)[:, :, None])[:, :, 0]
            out.append(np.where(there[:, None], read, np.nan))
            noises.append((solve @ solve.transpose(0, 2, 1))[slice(0, 1) if record.patterns is None else labels])
        return np.hstack(out), _side_by_side(noises)

    @cached_property
    def prior(self) -> FloatArray:
        """Covariance of h[0]: so wide that the data decide, not so wide that rounding does.

        For each unit, the stationary covariance of its own dynamics under its noise and inputs, a hundredfold, or wider
        if its measurements ask for it. Neither the basis of the states nor that of the measurements matters.
        """
        if self.initial_covariance is not None:
            return self.initial_covariance
        record, out = self.squeezed, np.zeros_like(self.A_local)
        for m, (own, inputs) in enumerate(zip(self.state_slices, self.input_slices, strict=True)):
            values, seen, explains = record._of_unit(m)
            drive = self.B_local[own, inputs] @ self.u[:, inputs].T
            spread = self.Q_local[own, own] + drive @ drive.T / self.u.shape[0]
            kind, base = default_covariance(self.A_local[own, own], spread, seen)
            explained = float(np.sum(explains * base))
            energy = float(np.square(values).sum()) / max(len(values), 1)
            factor = 1.0 if kind == "vague" else 100.0
            out[own, own] = base * max(factor, 10 * energy / explained if explained > 0 else 0.0)
        return out

    def _of_unit(self, m: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Numbers of a unit's rows that are there (n, r), an observation like theirs, and their mean information."""
        rows, own = self.observation_slices[m], self.state_slices[m]
        values, C = self.values[:, rows], self.observation[rows, own]
        if self.patterns is None:
            return values[np.isfinite(values).all(axis=1)], C, C.T @ C
        there = np.isfinite(values).any(axis=1)
        often = np.bincount(self.patterns.labels[there, m], minlength=len(self.patterns.observations[m]))
        weighted = self.patterns.observations[m] * np.sqrt(often / max(there.sum(), 1))[:, None, None]
        seen = np.asarray(np.linalg.qr(weighted.reshape(-1, weighted.shape[2]), mode="r"))
        return np.nan_to_num(values[there]), seen, seen.T @ seen

    @cached_property
    def input_moment(self) -> FloatArray:
        """Σ u[t-1] u[t-1]ᵀ."""
        return self.u[:-1].T @ self.u[:-1]

    def filter(self, A: FloatArray, B: FloatArray, Q: FloatArray) -> FilterResult:
        """Kalman filter over the record, with the given couplings."""
        return kalman_filter(
            self.values, self.u, A, B, self.sight, Q, self.noise,
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
    passed: tuple[FloatArray, FloatArray] | None = None  # filtered states and slopes, where rows differ

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
    smoothed = rts_smoother(filtered, A, Q)
    h = smoothed.smoothed
    first, last = smoothed.first_covariance, smoothed.last_covariance
    total, lagged = smoothed.covariance_sum, smoothed.lag_covariance_sum
    before, after, u = h[:-1], h[1:], record.u[:-1]
    P, U = A.shape[0], u.shape[1]
    S_xx = np.empty((P + U, P + U))
    S_xx[:P, :P] = before.T @ before + total - last
    S_xx[:P, P:] = before.T @ u
    S_xx[P:, :P] = S_xx[:P, P:].T
    S_xx[P:, P:] = record.input_moment
    S_yx = np.hstack([after.T @ before + lagged, after.T @ u])
    S_yy = after.T @ after + total - first
    passed = None if record.alike else (filtered.filtered, filtered.slopes)
    return Evaluation(A, B, Q, filtered.log_likelihood, S_xx, S_yx, S_yy, record.steps, passed)


def stacked(observations: Sequence[FloatArray]) -> FloatArray:
    """Matrices (r, P) as one array (k, r, P), with zeros below those that have fewer rows than the first."""
    out = np.zeros((len(observations), *observations[0].shape))
    for k, each in enumerate(observations):
        out[k, : len(each)] = each
    return out


def _side_by_side(blocks: list[FloatArray]) -> FloatArray:
    """Stacks (n, q, q) as one stack of block-diagonal matrices; a stack of one as the matrix itself."""
    n, width = len(blocks[0]), sum(block.shape[1] for block in blocks)
    out, at = np.zeros((n, width, width)), 0
    for block in blocks:
        end = at + block.shape[1]
        out[:, at:end, at:end] = block
        at = end
    return out[0] if n == 1 else out
