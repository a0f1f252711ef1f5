"""Couplings that noise drowns: the data determine them in principle, and say next to nothing about them.

Intervals rest on the likelihood being a parabola as wide as they are. Where a coupling, as uncertain as the record
leaves it, could by itself move a unit as far as all its own inputs and noise do, that is not so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from counterflow.server.estimation import Estimated
from counterflow.server.information import positions
from counterflow.server.likelihood import SharedRecord
from counterflow.server.uncertainty import uncertainty

FloatArray = NDArray[np.float64]
DROWNED = 0.7  # beyond it, intervals of nominal 95 % were seen to hold 80 % of the time; well below it, 95 %
SETTLED = 0.1


@dataclass(frozen=True)
class Faint:
    """How far the doubt about ``cause``'s couplings could move ``effect``: variance, as a share of its own."""

    effect: str
    cause: str
    share: float
    rows: int  # that would bring it down to where intervals can be trusted

    def __str__(self) -> str:
        about = int(float(f"{self.rows:.1g}"))
        return (
            f"{self.cause} -> {self.effect}: the record says next to nothing about this coupling, so that its estimate "
            f"may be far off and its intervals too narrow; about {about:,} rows with the same noise would settle it"
        )


def faint_couplings(record: SharedRecord, found: Estimated) -> tuple[Faint, ...]:
    """Pairs of units whose couplings are drowned; judged at no coupling at all, because the estimate may be far off.

    In whatever basis or units: tr(Σ_m⁻¹ E[δ Σ δᵀ]), with Σ_m the covariance that unit m's own model foresees of its
    states and Σ that of the cause's states or inputs. Nothing is said of records with gaps or of models that do not
    settle.
    """
    from scipy.linalg import solve_discrete_lyapunov

    A, B = record.A_local, record.B_local
    if not np.isfinite(record.values).all() or np.abs(np.linalg.eigvals(A)).max(initial=0.0) > 1 - 1e-9:
        return ()
    spread = uncertainty(record, replace(found, A=A, B=B, Q=record.Q_local))
    drive = B @ (record.u.T @ record.u / len(record.u)) @ B.T
    moved = np.asarray(solve_discrete_lyapunov(A, record.Q_local + drive))
    inputs = record.u.T @ record.u / len(record.u)
    rows, columns = positions(spread.parameters)
    P = len(A)
    out = []
    for m, own in enumerate(record.state_slices):
        weight = np.linalg.pinv(moved[own, own], hermitian=True)
        for n, theirs in enumerate(record.state_slices):
            if n == m:
                continue
            share = 0.0
            for first, last, source in (
                (theirs.start, theirs.stop, moved),
                (P + record.input_slices[n].start, P + record.input_slices[n].stop, inputs),
            ):
                inside = (rows >= own.start) & (rows < own.stop) & (columns >= first) & (columns < last)
                if not inside.any():
                    continue
                i, j = rows[inside] - own.start, columns[inside] - (P if first >= P else 0)
                covariance = np.nan_to_num(spread.covariance[np.ix_(inside, inside)])
                share = max(share, float((weight[np.ix_(i, i)] * source[np.ix_(j, j)] * covariance).sum()))
            if share > DROWNED:
                needed = int(np.ceil(len(record.values) * share / SETTLED))
                out.append(Faint(record.names[m], record.names[n], share, needed))
    return tuple(out)
