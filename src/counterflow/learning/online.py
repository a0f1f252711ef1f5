"""New rows without redoing the past: what earlier data said is kept as a quadratic, the state as a Gaussian.

After a fit, the log-likelihood of the past is, near its maximum, ℓ(θ) ≈ const - ½ (θ - θ̂)ᵀ I (θ - θ̂); the filtered
state of the last row is the prior of the new rows. The update maximises the likelihood of the new rows plus that
quadratic, starting at θ̂: its cost grows with the new rows only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import DataError, UnidentifiedError
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.optimiser import Estimated, Quadratic, maximum_likelihood
from counterflow.learning.parameters import Estimate, Parameters
from counterflow.learning.uncertainty import Uncertainty, uncertainty

SIGNS = 8  # entries of rows that have moved and are the same again: so many are no chance


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


def refuse_repeated(old: FloatArray, new: FloatArray) -> None:
    """DataError if messages (k, r) begin with some of those (T, r) that were taken in already.

    Rows that are alike by chance, because nothing moves or readings are coarse, are no sign: ``SIGNS`` entries must
    have moved, and be the same again.
    """
    near = 1e-9 * np.nan_to_num(old).std(axis=0)
    for at in np.flatnonzero((np.abs(old - new[0]) <= near).all(axis=1)).tolist():
        count = min(len(old) - at, len(new))
        same = (np.abs(old[at : at + count] - new[:count]) <= near) | np.isnan(old[at : at + count] + new[:count])
        moved = np.abs(np.diff(old[max(at - 1, 0) : at + count], axis=0)) > near
        if same.all() and moved.sum() >= SIGNS:
            remedy = "give rows that follow" if count == len(new) else f"give recording.slice({len(old) - at})"
            raise DataError(
                f"update: the first {count} rows of the recording were taken in already: {remedy}", code="rows-repeated"
            )
