"""New rows without redoing the past: what earlier data said is kept as a quadratic, the state as a Gaussian.

After a fit, the log-likelihood of the past is, near its maximum, ℓ(θ) ≈ const - ½ (θ - θ̂)ᵀ I (θ - θ̂); the filtered
state of the last row is the prior of the new rows. The update maximises the likelihood of the new rows plus that
quadratic, starting at θ̂: its cost grows with the new rows only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import DataError, UnidentifiedError
from counterflow.estimation.likelihood import SharedRecord
from counterflow.estimation.optimiser import Estimated, Quadratic, maximum_likelihood
from counterflow.estimation.parameters import Estimate, Parameters
from counterflow.estimation.uncertainty import Uncertainty, uncertainty
from counterflow.filtering import steady_state


@dataclass(frozen=True)
class Memory:
    """What is kept of the past: the estimate, its information, the last row's state, input and the rows counted."""

    found: Estimated
    information: FloatArray  # (n, n) of the packed couplings
    mean: FloatArray  # (P,) filtered, last row
    covariance: FloatArray  # (P, P)
    last_input: FloatArray  # (U,)
    rows: int


def remember(record: SharedRecord, found: Estimated, spread: Uncertainty) -> Memory:
    """Condense a fit into what an update needs."""
    if not np.isfinite(spread.covariance).all():
        raise UnidentifiedError(
            "update: some couplings are not determined by the data so far; fit again with all rows instead of updating"
        )
    filtered = record.filter(found.A, found.B, found.Q)
    half = np.linalg.inv(spread.covariance)
    mean, covariance = filtered.final_mean, filtered.final_covariance
    return Memory(found, (half + half.T) / 2, mean, covariance, record.u[-1], record.steps + 1)


def update(memory: Memory, new: SharedRecord) -> tuple[Estimated, Uncertainty, Memory]:
    """Take in new rows, which follow the last row of the past without a gap."""
    found, P = memory.found, memory.mean.shape[0]
    parameters = found.parameters
    assert parameters is not None
    old = parameters.record
    if (new.names, new.states, new.inputs) != (old.names, old.states, old.inputs):
        raise DataError("update: the new rows must come from the same units, with the same states and inputs")
    joined = new.following(memory.mean, memory.covariance, memory.last_input, found.Q)
    centre = parameters.pack(np.hstack([found.A, found.B]))
    estimate: Estimate = "couplings" if parameters.estimate == "couplings" else "blocks"
    moving = Parameters(joined, estimate, np.eye(P), known=parameters.known)

    past = Quadratic(centre, memory.information)
    next_found = maximum_likelihood(joined, estimate, start=(found.A, found.B), penalty=past, known=parameters.known)
    # of all rows, to second order: what the past loses by moving away from its own maximum is the quadratic
    total = memory.found.log_likelihood - past(moving.pack(np.hstack([next_found.A, next_found.B])))[0]
    next_found = replace(next_found, parameters=moving, log_likelihood=total + next_found.log_likelihood)
    begun = replace(new, initial_mean=memory.mean, initial_covariance=memory.covariance, Q_local=found.Q)
    information = memory.information + _new_information(begun, next_found)
    spread = Uncertainty(moving, np.asarray(np.linalg.inv(information), np.float64))
    filtered = joined.filter(next_found.A, next_found.B, next_found.Q)
    state, rows = (filtered.final_mean, filtered.final_covariance), memory.rows + new.steps + 1
    return next_found, spread, Memory(next_found, information, *state, new.u[-1], rows)


def _new_information(record: SharedRecord, found: Estimated) -> FloatArray:
    if record.steps < 1:
        n = found.parameters.coupling_size() if found.parameters else 0
        return np.zeros((n, n))
    inner = uncertainty(record, found)
    known = np.isfinite(np.diag(inner.covariance))
    out = np.zeros_like(inner.covariance)
    if known.any():
        out[np.ix_(known, known)] = np.linalg.pinv(inner.covariance[np.ix_(known, known)])
    return out


@dataclass(frozen=True)
class Predictor:
    """One-step predictor: takes each unit's newest message, returns each unit's own predicted state.

    Immutable: ``step`` returns the next predictor too.
    """

    record: SharedRecord
    A: FloatArray
    B: FloatArray
    gain: FloatArray  # (P, r)
    predicted: FloatArray  # (P,) of the row to come

    @classmethod
    def settled(cls, record: SharedRecord, found: Estimated, memory: Memory | None) -> Predictor:
        """With the settled gain, standing after the last row: that of ``memory``, or else of the record."""
        steady = steady_state(found.A, record.observation, found.Q, record.noise)
        if memory is None:
            filtered = record.filter(found.A, found.B, found.Q)
            mean, last_input = filtered.final_mean, record.u[-1]
        else:
            mean, last_input = memory.mean, memory.last_input
        return cls(record, found.A, found.B, steady.gain, found.A @ mean + found.B @ last_input)

    def step(
        self, values: Mapping[str, FloatArray], inputs: Mapping[str, FloatArray]
    ) -> tuple[Predictor, dict[str, FloatArray]]:
        """Newest s_m[t] and u_m[t] of every unit -> each unit's own predicted h_m[t+1].

        A unit may be missing in ``values``: it then brings nothing new in this row.
        """
        record = self.record
        s, u = np.full(record.observation.shape[0], np.nan), np.zeros(sum(record.inputs))
        for m, name in enumerate(record.names):
            if name in values:
                s[record.observation_slices[m]] = _row("values", name, values[name], record.observation_slices[m])
            if name not in inputs and record.inputs[m]:
                raise DataError(f"predictor: the input of unit {name!r} is missing")
            if record.inputs[m]:
                u[record.input_slices[m]] = _row("inputs", name, inputs[name], record.input_slices[m])
        innovation = np.nan_to_num(s - record.observation @ self.predicted)
        ahead = self.A @ (self.predicted + self.gain @ innovation) + self.B @ u
        out = {name: ahead[own].copy() for name, own in zip(record.names, record.state_slices, strict=True)}
        return replace(self, predicted=ahead), out


def _row(field: str, name: str, given: FloatArray, wanted: slice) -> FloatArray:
    array = np.asarray(given, np.float64)
    if array.shape != (wanted.stop - wanted.start,) or not np.isfinite(array).all():
        raise DataError(
            f"predictor: {field} of unit {name!r} must be {wanted.stop - wanted.start} finite numbers, got {given!r}"
        )
    return array
