"""What the checks look at: messages, inputs and model of all units, and the innovations that follow from them.

An innovation is what a row brought that the model, with all units, did not foresee: e[t] = s[t] - C̃ E[h[t] | rows
before], of covariance S[t] = C̃ X[t] C̃ᵀ + R. If the model is right it is independent of all that came before, inputs
included.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from counterflow.arrays import FloatArray, block_diagonal
from counterflow.exchange.outcome import Status
from counterflow.filtering import FilterResult
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.model import BoolArray, Grounded, Model
from counterflow.questions.answering import Server

if TYPE_CHECKING:
    from counterflow.checks.free_runs import FreeRun


@dataclass(frozen=True, eq=False)
class Material:
    """All that is looked at: a server with the rows that it refers to, how its fit ended, and free runs.

    ``run``: what makes free runs of the measurements themselves; None: those of the messages are looked at.
    """

    server: Server
    status: Status | None = None
    horizon: int = 30
    run: Callable[[Material, int], FreeRun] | None = None

    @cached_property
    def has(self) -> tuple[str, ...]:
        """What a kind of check may need: "fit", "inputs", "rows"."""
        if self.server.shared is None:
            return ("fit",)
        return ("fit", "inputs", "rows") if self.server.has_rows else ("fit", "inputs")

    @property
    def record(self) -> SharedRecord:
        assert self.server.shared is not None
        return self.server.shared

    @cached_property
    def grounded(self) -> Grounded:
        """The fitted model on these rows."""
        # process noise that units share has no place in their own models
        within = block_diagonal([np.ones((unit.states, unit.states)) for unit in self.server.units])
        return replace(self.server.model, Q=self.server.Q * within).on(self.record)

    @cached_property
    def input_names(self) -> tuple[str, ...]:
        """(U,) "unit channel"."""
        return tuple(f"{unit.name} {name}" for unit in self.server.units for name in unit.input_names)

    @property
    def model(self) -> Model:
        return self.grounded.model

    @property
    def names(self) -> tuple[str, ...]:
        return self.record.names

    @property
    def columns(self) -> tuple[slice, ...]:
        """Of s, for each unit."""
        return self.grounded.sent.columns

    @property
    def inputs(self) -> tuple[slice, ...]:
        """Columns of u, for each unit."""
        return self.record.input_slices

    @property
    def s(self) -> FloatArray:
        """Messages (T+1, r) of all units side by side, in terms that all rows share; NaN: missing."""
        return self.grounded.sent.values

    @property
    def C(self) -> FloatArray:
        """How they see the states, (r, P)."""
        return self.grounded.sent.observation

    @property
    def u(self) -> FloatArray:
        return self.record.u

    @property
    def rows(self) -> int:
        return len(self.u)

    @property
    def filtered(self) -> FilterResult:
        """One pass of the linear part over the rows."""
        return self.grounded.filtered

    @cached_property
    def measured(self) -> BoolArray:
        """(T+1, M): whether a unit was measured in a row."""
        return _whole(np.isfinite(self.s), self.columns)

    @cached_property
    def innovations(self) -> Innovations:
        """What the model leaves of rows one step ahead, in standard deviations."""
        left = self.grounded.one_step
        e, there = np.where(left.there, np.nan_to_num(left.errors), 0.0), left.there
        own, joint = np.zeros_like(e), np.zeros_like(e)
        for rows, S in left.covariances:
            own[rows], joint[rows] = self._white(e[rows], S, there[rows])
        return Innovations(self.columns, left.first, own, joint, _whole(there, self.columns))

    def _white(self, e: FloatArray, S: FloatArray, there: BoolArray) -> tuple[FloatArray, FloatArray]:
        """Rows of e with S of all of them (1, r, r) or of each (n, r, r): each unit's by itself, and all together."""
        if not there.all():
            S = np.where(there[:, :, None] & there[:, None, :], S, 0.0) + np.eye(S.shape[-1]) * ~there[:, :, None]
        own = np.zeros_like(e)
        for block in self.columns:
            if block.stop > block.start:
                own[:, block] = _solved(S[:, block, block], e[:, block])
        return own, _solved(S, e)


def _whole(there: BoolArray, columns: tuple[slice, ...]) -> BoolArray:
    """(n, M): whether all that a unit sends is there."""
    return np.stack([there[:, own].all(axis=1) & (own.stop > own.start) for own in columns], axis=1)


@dataclass(frozen=True, eq=False)
class Innovations:
    """Standard normal numbers if the model is right; zero where a unit was not measured.

    ``own``: each unit's innovation whitened by itself, so that its columns belong to it. ``joint``: all of them
    whitened together, so that columns of different units are independent as well.
    """

    columns: tuple[slice, ...]
    first: int  # row of the record
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
