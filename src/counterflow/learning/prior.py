"""What is assumed of couplings before data speak, and which couplings the data leave to that assumption.

How strong a coupling is, in whatever basis of states and units of measure: the variance that it alone would add to a
unit's states, over the variance that the unit's own model foresees of them,

    strength of A_mn = tr(Σ_m⁻¹ A_mn Σ_n A_mnᵀ),    of B_mn = tr(Σ_m⁻¹ B_mn E[uuᵀ] B_mnᵀ).

Where noise drowns the record, the likelihood is flat and its maximum anywhere: a hundred times the truth is as good as
zero. The weak prior says no more than that strengths are around eight, so that another unit moves a unit not many times
as far as its own inputs and noise do. A record that has anything to say overrules it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat, scope_of
from counterflow.learning.information import positions
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.optimiser import Estimated, Quadratic
from counterflow.learning.parameters import Estimate, Parameters
from counterflow.learning.uncertainty import uncertainty

STRENGTH = 8.0  # of a coupling, as expected beforehand; strong ones must not be pulled in by much
DROWNED = 0.7  # strength of the doubt about a coupling beyond which it is said to be left open
SETTLED = 0.1
DROWNED_CODE = "drowned-by-noise"  # of caveats about couplings that noise leaves open


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
