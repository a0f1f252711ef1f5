"""What the checks look at: messages, inputs and model of all units, and the innovations that follow from them.

An innovation is what a row brought that the model, with all units, did not foresee: e[t] = s[t] - C̃ E[h[t] | rows
before], of covariance S[t] = C̃ X[t] C̃ᵀ + R. If the model is right it is independent of all that came before, inputs
included.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray, block_diagonal, slices
from counterflow.filtering import FilterResult
from counterflow.filtering.results import Run
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.network import Network
from counterflow.questions.answering import Server

BoolArray = NDArray[np.bool_]
_CHUNK = 2048  # rows with covariances of their own that are whitened at a time


@dataclass(frozen=True, eq=False)
class Material:
    """Messages s (T+1, r) of all units side by side (NaN: missing), inputs u (T+1, U), and the fitted model."""

    names: tuple[str, ...]
    input_names: tuple[str, ...]  # (U,) "unit channel"
    columns: tuple[slice, ...]  # of s, for each unit
    inputs: tuple[slice, ...]  # columns of u, for each unit
    s: FloatArray
    u: FloatArray
    A: FloatArray
    B: FloatArray
    Q: FloatArray
    C: FloatArray  # C̃ (r, P)
    R: FloatArray  # (r, r) of all rows, or (T+1, r, r)
    shared: SharedRecord
    network: Network | None = None  # of a fit from logs
    z: FloatArray | None = None  # (T+1, m) its rows, standardised; what is missing is drawn
    read: BoolArray | None = None  # (T+1, r) which of its numbers were read

    @classmethod
    def of(cls, server: Server) -> Material | None:
        """Of the rows that questions to the server refer to; None if there are none."""
        shared = server.shared
        if shared is None:
            return None
        s, C, R, columns = _squeezed(shared, server.network)
        labels = tuple(f"{unit.name} {name}" for unit in server.units for name in unit.input_names)
        # process noise that units share has no place in their own models
        within = block_diagonal([np.ones((unit.states, unit.states)) for unit in server.units])
        return cls(
            shared.names, labels, columns, shared.input_slices, s, shared.u, server.A, server.B, server.Q * within,
            C, R, shared, server.network, None if server.network is None else server.drawn_rows,
            None if server.network is None else np.isfinite(server.numbers),
        )  # fmt: skip

    @property
    def rows(self) -> int:
        return len(self.s)

    @cached_property
    def filtered(self) -> FilterResult:
        """One pass of the fitted model over the rows."""
        return self.shared.squeezed.filter(self.A, self.B, self.Q)

    @cached_property
    def measured(self) -> BoolArray:
        """(T+1, M): whether a unit was measured in a row."""
        out = np.zeros((self.rows, len(self.names)), bool)
        for m, own in enumerate(self.columns):
            out[:, m] = np.isfinite(self.s[:, own]).all(axis=1) if own.stop > own.start else False
        return out

    @cached_property
    def settled(self) -> int:
        """First row whose innovation no longer hangs on the guess of the first state."""
        return min(1 + len(self.A), max(1, self.rows // 4))

    @cached_property
    def innovations(self) -> Innovations:
        """Of every row from ``settled`` on; of a network, what its mean leaves of rows whose whole past is there."""
        if self.network is not None and self.z is not None:
            return self._residuals(self.network, self.z, np.asarray(self.read))
        e = self.s - self.filtered.predicted @ self.C.T
        own, joint = np.zeros_like(e), np.zeros_like(e)
        at, X = [], []  # rows with covariances of their own
        for run in self.filtered.runs:
            here = np.arange(run.start, run.stop)
            if isinstance(run, Run) and len(here) > 1:
                own[here], joint[here] = self._whitened(e[here], run.predicted[None], here[:1])
            else:
                at.append(here)
                X.append(run.predicted.reshape(-1, *self.A.shape))
        if at:
            rows, covariances = np.concatenate(at), np.concatenate(X)
            for first in range(0, len(rows), _CHUNK):
                part = rows[first : first + _CHUNK]
                own[part], joint[part] = self._whitened(e[part], covariances[first : first + _CHUNK], part)
        begin = self.settled
        return Innovations(self.columns, own[begin:], joint[begin:], self.measured[begin:])

    def _residuals(self, network: Network, z: FloatArray, read: BoolArray) -> Innovations:
        r, p = network.size, network.memory
        e = z[p:, :r] - network.mean.predicted(z)[0]
        there = read[p:]
        own, joint = self._white(e, network.noise[None], there)
        whole = np.stack([there[:, mine].all(axis=1) for mine in network.number_slices], axis=1)
        return Innovations(network.number_slices, own, joint, whole)

    def _whitened(self, e: FloatArray, X: FloatArray, rows: NDArray[np.intp]) -> tuple[FloatArray, FloatArray]:
        """Innovations e of rows with predicted covariances X, of each or the same (1, P, P) of all, as of ``rows``."""
        R = self.R if self.R.ndim == 2 else self.R[rows]
        return self._white(e, self.C @ X @ self.C.T + R, np.isfinite(self.s[rows]))

    def _white(self, e: FloatArray, S: FloatArray, there: BoolArray) -> tuple[FloatArray, FloatArray]:
        """Rows of e with S of all of them (1, r, r) or of each (n, r, r): each unit's by itself, and all together."""
        if not there.all():
            both = there[:, :, None] & there[:, None, :]
            S = np.where(both, S, 0.0) + np.eye(S.shape[-1]) * ~there[:, :, None]
            e = np.where(there, np.nan_to_num(e), 0.0)
        own = np.zeros_like(e)
        for block in self.columns:
            if block.stop > block.start:
                own[:, block] = _solved(S[:, block, block], e[:, block])
        return own, _solved(S, e)


@dataclass(frozen=True, eq=False)
class Innovations:
    """Standard normal numbers if the model is right; zero where a unit was not measured.

    ``own``: each unit's innovation whitened by itself, so that its columns belong to it. ``joint``: all of them
    whitened together, so that columns of different units are independent as well.
    """

    columns: tuple[slice, ...]
    own: FloatArray  # (n, r)
    joint: FloatArray  # (n, r)
    measured: BoolArray  # (n, M)

    @cached_property
    def widths(self) -> list[int]:
        return [own.stop - own.start for own in self.columns]

    def correlations(self, lags: int) -> Correlations:
        """Of every row with the ``lags`` rows before it, over the rows that there are."""
        if lags not in self._correlations:
            there = self.measured.astype(np.float64)
            counts = np.repeat(there.sum(axis=0), self.widths)
            means = self.own.sum(axis=0) / np.maximum(counts, 1)
            sizes = np.sqrt(np.maximum(np.square(self.own).sum(axis=0) / np.maximum(counts, 1) - np.square(means), 0.0))
            scale = np.sqrt(np.square(self.joint).sum(axis=0) / np.maximum(counts, 1))
            sizes, scale = np.where(sizes > 0, sizes, 1.0), np.where(scale > 0, scale, 1.0)
            pairs, own, joint, n = [], [], [], len(there)
            for lag in range(lags + 1):
                now, before = slice(lag, None), slice(None, n - lag)
                pairs.append(there[now].T @ there[before])
                seen = np.maximum(np.repeat(np.repeat(pairs[-1], self.widths, 0), self.widths, 1), 1.0)
                # the mean is taken out of one side, in the rows in which both are there
                drift = means[:, None] * np.repeat(there[now].T @ self.joint[before], self.widths, 0)
                own.append((self.own[now].T @ self.joint[before] - drift) / np.outer(sizes, scale) / seen)
                joint.append(self.joint[now].T @ self.joint[before] / np.outer(scale, scale) / seen)
            self._correlations[lags] = Correlations(np.array(pairs), np.array(own), np.array(joint))
        return self._correlations[lags]

    @cached_property
    def _correlations(self) -> dict[int, Correlations]:
        return {}


@dataclass(frozen=True, eq=False)
class Correlations:
    """Of innovations, at lags 0..l: row i of a matrix is the later of the two."""

    pairs: FloatArray  # (l+1, M, M) rows in which both units were measured
    own: FloatArray  # (l+1, r, r) of each unit's own innovation with the joint ones before
    joint: FloatArray  # (l+1, r, r) of the joint ones with themselves


def _solved(S: FloatArray, e: FloatArray) -> FloatArray:
    """L⁻¹ e for S = L Lᵀ, of all rows or of each."""
    L = np.linalg.cholesky(S)
    if len(L) == 1:
        from scipy.linalg import solve_triangular

        inverse = solve_triangular(L[0], np.eye(L.shape[-1]), lower=True)
        return np.asarray(e @ inverse.T)
    return np.asarray(np.linalg.solve(L, e[:, :, None])[:, :, 0])


def _squeezed(
    shared: SharedRecord, network: Network | None
) -> tuple[FloatArray, FloatArray, FloatArray, tuple[slice, ...]]:
    """Messages s, how they see the states, their noise, and each unit's columns of s.

    Where channels come and go, what a row says is brought into the terms in which its unit's rows mostly speak, of a
    fit from logs into those of its numbers; it is missing (NaN) where the row does not say that.
    """
    record = shared.squeezed
    if record.patterns is None:
        return record.values, record.observation, record.noise, record.observation_slices
    usual = []
    if network is not None:
        usual = [np.eye(states)[:count] for states, count in zip(record.states, network.numbers, strict=True)]
    for m, table in enumerate(record.patterns.observations if network is None else ()):
        rank = (np.abs(table).max(axis=2, initial=0.0) > 0).sum(axis=1)
        often = np.bincount(record.patterns.labels[:, m], minlength=len(table)) * (rank > 0)
        usual.append(table[often.argmax(), : rank[often.argmax()]])
    values, noise = record.readings(usual)
    return values, block_diagonal(usual), noise, slices([len(each) for each in usual])
