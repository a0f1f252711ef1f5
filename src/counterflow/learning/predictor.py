"""One-step predictors: row by row, what each unit's states will be in the next one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.errors import DataError
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.network import Network

Given = Mapping[str, FloatArray | None]


@dataclass(frozen=True, eq=False)
class Predictor(ABC):
    """One-step predictor: takes each unit's newest message, returns each unit's own predicted state.

    ``record``: of whom messages, states and inputs are. ``predicted`` (P,): of the row to come. Immutable: ``step``
    returns the next predictor too.
    """

    record: SharedRecord
    predicted: FloatArray

    def step(
        self, values: Given, inputs: Given, coming: Given | None = None
    ) -> tuple[Predictor, dict[str, FloatArray]]:
        """Newest s_m[t] and u_m[t] of every unit -> the next predictor, and each unit's own predicted h_m[t+1].

        ``values``: a unit may be missing, or None: it brings nothing new in this row. ``inputs``: as they were logged.
        ``coming``: inputs of the row to come, of units whose inputs act on their own row, as far as they are known;
        others are taken to stay as they are.
        """
        record = self.record
        s = self._row("values", values, record.observation_slices)
        u = self._row("inputs", inputs, record.input_slices)
        for name, own in zip(record.names, record.input_slices, strict=True):
            if np.isnan(u[own]).any():
                raise DataError(f"predictor: the input of unit {name!r} is missing")
        for name in coming or {}:
            if name not in self.ahead:
                raise DataError(
                    f"predictor: inputs of unit {name!r} act on the next row; of the row to come, none are needed"
                )
        later = self._after(s, u, self._row("coming", coming or {}, record.input_slices))
        slices = zip(record.names, record.state_slices, strict=True)
        return later, {name: later.predicted[own].copy() for name, own in slices}

    @property
    def ahead(self) -> frozenset[str]:
        """Units whose inputs act on their own row."""
        return frozenset()

    @abstractmethod
    def _after(self, s: FloatArray, u: FloatArray, coming: FloatArray) -> Predictor:
        """The predictor after one more row of all units side by side; NaN: missing."""

    def _row(self, field: str, given: Given, places: Sequence[slice]) -> FloatArray:
        """What units have given, side by side; NaN: nothing."""
        out = np.full(places[-1].stop, np.nan)
        for name in given:
            if name not in self.record.names:
                raise DataError(f"predictor: {field} of unit {name!r}: the units are {', '.join(self.record.names)}")
        for name, own in zip(self.record.names, places, strict=True):
            if given.get(name) is None:
                continue
            array, size = np.asarray(given[name], np.float64), own.stop - own.start
            if array.shape != (size,) or not np.isfinite(array).all():
                raise DataError(
                    f"predictor: {field} of unit {name!r} must be {size} finite numbers, got {given[name]!r}"
                )
            out[own] = array
        return out


@dataclass(frozen=True, eq=False)
class StatePredictor(Predictor):
    """Of a fit with models: a Kalman filter with its settled gain (P, r)."""

    A: FloatArray
    B: FloatArray
    gain: FloatArray

    def _after(self, s: FloatArray, u: FloatArray, coming: FloatArray) -> StatePredictor:
        innovation = np.nan_to_num(s - self.record.observation @ self.predicted)
        return replace(self, predicted=self.A @ (self.predicted + self.gain @ innovation) + self.B @ u)


@dataclass(frozen=True, eq=False)
class RowPredictor(Predictor):
    """Of a fit from logs: the mean of its network, on its last ``rows`` (memory, m), standardised.

    A message that is missing is what was predicted; of the states only the numbers that units have sent are predicted.
    ``level`` (U,): of the inputs; ``early`` (U,): whether they act on their own row. ``numbers`` (r,): their states.
    """

    network: Network
    rows: FloatArray
    level: FloatArray
    early: NDArray[np.bool_]
    numbers: NDArray[np.intp]

    @classmethod
    def standing(
        cls, record: SharedRecord, network: Network, rows: FloatArray, level: FloatArray, early: NDArray[np.bool_],
        numbers: NDArray[np.intp],
    ) -> RowPredictor:  # fmt: skip
        """After ``rows``; see the class."""
        now = cls(record, np.zeros(sum(record.states)), network, rows[-network.memory :], level, early, numbers)
        return now._foretelling(now.rows)

    @property
    def ahead(self) -> frozenset[str]:
        pairs = zip(self.record.names, self.record.input_slices, strict=True)
        return frozenset(name for name, own in pairs if self.early[own].any())

    def _after(self, s: FloatArray, u: FloatArray, coming: FloatArray) -> RowPredictor:
        network, r = self.network, self.network.size
        now, then = ((each - self.level - network.level[r:]) / network.scale[r:] for each in (u, coming))
        rows = self.rows.copy()
        rows[-1, r:] = np.where(self.early, now, rows[-1, r:])  # what acts on this row is known by now
        seen = np.empty(r)
        for own, mine in zip(self.record.observation_slices, network.number_slices, strict=True):
            seen[mine] = np.linalg.solve(self.record.observation[own, self.numbers[mine]], s[own])
        seen = (seen - network.level[:r]) / network.scale[:r]
        if np.isnan(seen).any():
            seen = np.where(np.isnan(seen), network.predict_row(rows), seen)
        newest = np.concatenate([seen, np.where(self.early & np.isfinite(then), then, now)])
        return self._foretelling(np.vstack([rows[1:], newest]))

    def _foretelling(self, rows: FloatArray) -> RowPredictor:
        network, r = self.network, self.network.size
        predicted = np.zeros_like(self.predicted)
        predicted[self.numbers] = network.predict_row(rows) * network.scale[:r] + network.level[:r]
        return replace(self, rows=rows, predicted=predicted)
