"""What the information of an estimate gives: covariances, what is assumed beforehand, updates with new rows.

**Beforehand.** How strong a coupling is, in whatever basis of states and units of measure: the variance that it alone
would add to a unit's states, over the variance that the unit's own model foresees of them,

    strength of A_mn = tr(Σ_m⁻¹ A_mn Σ_n A_mnᵀ),    of B_mn = tr(Σ_m⁻¹ B_mn E[uuᵀ] B_mnᵀ).

Where noise drowns the record, the likelihood is flat and its maximum anywhere: a hundred times the truth is as good as
zero. The weak prior says no more than that strengths are around eight, so that another unit moves a unit not many times
as far as its own inputs and noise do. A record that has anything to say overrules it.

**Afterwards.** The log-likelihood of the past is, near its maximum, ℓ(θ) ≈ const - ½ (θ - θ̂)ᵀ I (θ - θ̂); the filtered
state of the last row is the prior of the new rows. The update maximises the likelihood of the new rows plus that
quadratic, starting at θ̂: its cost grows with the new rows only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat, scope_of
from counterflow.errors import DataError, UnidentifiedError
from counterflow.learning.identifiability import Doubt, masks
from counterflow.learning.information import QUICK_FORM, inverse_information, positions, settled_information
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.optimiser import Estimated, Quadratic, maximum_likelihood
from counterflow.learning.parameters import Estimate, Parameters
from counterflow.learning.sensitivities import cost, varying_information

FINEST = 1e-9  # of the information of an entry, relative, below which there is none
QUICK = 1.2e11  # multiplications that take seconds, not minutes
STRENGTH = 8.0  # of a coupling, as expected beforehand; strong ones must not be pulled in by much
DROWNED = 0.7  # strength of the doubt about a coupling beyond which it is said to be left open
SETTLED = 0.1
DROWNED_CODE = "drowned-by-noise"  # of caveats about couplings that noise leaves open
SIGNS = 8  # entries of rows that have moved and are the same again: so many are no chance


@dataclass(frozen=True)
class Uncertainty:
    """Covariance of the estimated entries of [A B], in the order of ``parameters.pack``."""

    parameters: Parameters
    # (n, n); rows of directions that the data do not determine are NaN
    covariance: FloatArray = field(metadata={"missing": True})

    @cached_property
    def standard_errors(self) -> tuple[FloatArray, FloatArray]:
        """Of A (P, P) and B (P, U): zero where given, NaN where not determined."""
        P = sum(self.parameters.record.states)
        with np.errstate(invalid="ignore"):
            whole = self.parameters.unpack(np.sqrt(np.diag(self.covariance)))
        return whole[:, :P], whole[:, P:]

    def with_doubts(self, doubts: tuple[Doubt, ...]) -> Uncertainty:
        """The same, NaN for the couplings in doubt."""
        if not doubts:
            return self
        A, B = masks(self.parameters.record, doubts)
        lost = self.parameters.pack(np.hstack([A, B]).astype(np.float64)) == 0
        covariance = self.covariance.copy()
        covariance[lost, :] = np.nan
        covariance[:, lost] = np.nan
        return Uncertainty(self.parameters, covariance)

    @cached_property
    def root(self) -> FloatArray:
        """W with covariance = W Wᵀ; directions that are not determined are left out."""
        with np.errstate(invalid="ignore"):
            known = np.diag(self.covariance) > 0  # not NaN, and not given
        out = np.zeros_like(self.covariance)
        if known.any():
            block = self.covariance[np.ix_(known, known)]
            size = np.sqrt(np.diag(block))
            values, vectors = np.linalg.eigh(block / np.outer(size, size))
            values = np.where(values > 1e-14 * values[-1], values, 0.0)
            out[np.ix_(known, known)] = size[:, None] * vectors * np.sqrt(values)
        return out


def affordable(record: SharedRecord, parameters: Parameters) -> bool:
    """Whether standard errors take seconds, not minutes."""
    P = sum(record.states)
    if record.alike:
        return bool(P * (P + record.u.shape[1] + record.observation.shape[0]) <= QUICK_FORM)
    return cost(record, parameters) <= QUICK


def information_of(record: SharedRecord, found: Estimated) -> FloatArray:
    """Fisher information of all parameters at the estimate: couplings, then the process noise if it was estimated."""
    assert found.parameters is not None
    of = settled_information if record.alike else varying_information
    return of(record, found.parameters, found.A, found.B, found.Q)


def uncertainty(record: SharedRecord, found: Estimated, prior: Quadratic | None = None) -> Uncertainty:
    """Covariance of the couplings at the estimate, the process noise being estimated too if it was."""
    parameters = found.parameters
    assert parameters is not None
    size = parameters.coupling_size()
    if size == 0:
        return Uncertainty(parameters, np.zeros((0, 0)))
    information = information_of(record, found)
    if prior is not None:
        information[:size, :size] += prior.precision
    return Uncertainty(parameters, inverse_information(information, FINEST)[:size, :size])


# ---- what is assumed beforehand


def weak_prior(record: SharedRecord, estimate: Estimate, known: KnownEdges | None = None) -> Quadratic | None:
    """Of the packed couplings; None if a unit's own model does not settle, which leaves nothing to compare with."""
    parameters = Parameters(record, estimate, np.eye(sum(record.states)), known=known)
    size = parameters.coupling_size()
    precision = np.zeros((size, size))
    forms = list(_strengths(record, parameters))
    for _, _, inside, form in forms:
        precision[np.ix_(inside, inside)] = form * len(inside) / STRENGTH
    return Quadratic(np.zeros(size), precision) if forms else None


@dataclass(frozen=True)
class WeakCoupling:
    """A coupling that the record leaves open: its doubt by itself is as strong as ``doubt``."""

    effect: str
    cause: str
    doubt: float
    rows: int  # that would settle it

    @property
    def caveat(self) -> Caveat:
        """What answers through this coupling carry along."""
        about = int(float(f"{self.rows:.1g}"))
        text = (
            f"{self.cause} -> {self.effect}: noise drowns this coupling; what is said of it is mostly that it is not "
            f"many times as strong as the unit's own inputs. About {about:,} rows with the same noise would settle it"
        )
        return Caveat(DROWNED_CODE, scope_of((self.cause, self.effect)), text)


def faint_couplings(record: SharedRecord, found: Estimated) -> tuple[WeakCoupling, ...]:
    """Pairs of units whose coupling is drowned; judged at no coupling at all, because the estimate may be far off."""
    parameters = found.parameters
    assert parameters is not None
    if next(_strengths(record, parameters), None) is None:
        return ()
    spread = uncertainty(record, replace(found, A=record.A_local, B=record.B_local, Q=record.Q_local))
    return faint_among(record, parameters, spread.covariance, len(record.values))


def faint_among(
    record: SharedRecord, parameters: Parameters, covariance: FloatArray, rows: int, power: float = 1.0
) -> tuple[WeakCoupling, ...]:
    """Pairs of units whose coupling has too large a ``covariance``, which falls as rows^(-1/power)."""
    doubts: dict[tuple[int, int], float] = {}
    for m, n, inside, form in _strengths(record, parameters):
        block = np.nan_to_num(covariance[np.ix_(inside, inside)])
        doubts[m, n] = max(doubts.get((m, n), 0.0), float((form * block).sum()))
    return tuple(
        WeakCoupling(record.names[m], record.names[n], doubt, int(np.ceil(rows * (doubt / SETTLED) ** power)))
        for (m, n), doubt in doubts.items()
        if doubt > DROWNED
    )


def _strengths(record: SharedRecord, parameters: Parameters) -> Iterator[tuple[int, int, NDArray[np.intp], FloatArray]]:
    """Effect, cause, places of a coupling among the packed numbers x, and K with strength = xᵀ K x."""
    from scipy.linalg import solve_discrete_lyapunov

    A, B = record.A_local, record.B_local
    if np.abs(np.linalg.eigvals(A)).max(initial=0.0) > 1 - 1e-9:
        return
    with np.errstate(all="ignore"):
        inputs = record.u.T @ record.u / len(record.u)
        drive = record.Q_local + B @ inputs @ B.T
    if not np.isfinite(drive).all():  # inputs beyond all measure: the likelihood will say so
        return
    moved = np.asarray(solve_discrete_lyapunov(A, drive))
    rows, columns = positions(parameters)
    P = len(A)
    for m, own in enumerate(record.state_slices):
        weight = np.linalg.pinv(moved[own, own], hermitian=True)
        of_effect = (rows >= own.start) & (rows < own.stop)
        for n, (theirs, channels) in enumerate(zip(record.state_slices, record.input_slices, strict=True)):
            if n == m:
                continue
            for cause, first, source in ((theirs, 0, moved), (channels, P, inputs)):
                there = of_effect & (columns >= first + cause.start) & (columns < first + cause.stop)
                inside = np.flatnonzero(there)
                if len(inside):
                    i, j = rows[inside] - own.start, columns[inside] - first
                    yield m, n, inside, weight[np.ix_(i, i)] * source[np.ix_(j, j)]


# ---- new rows without redoing the past


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
    information = memory.information + (information_of(begun, next_found) if new.steps else 0.0)
    spread = Uncertainty(moving, np.asarray(np.linalg.inv(information), np.float64))
    filtered = joined.filter(next_found.A, next_found.B, next_found.Q)
    state, rows = (filtered.final_mean, filtered.final_covariance), memory.rows + new.steps + 1
    return next_found, spread, Memory(next_found, information, *state, new.u[-1], rows)


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
