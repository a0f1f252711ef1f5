"""The paper's own route to a model of a real plant. IT POOLS THE RAW DATA OF ALL UNITS IN ONE PLACE.

The paper identifies one model from the raw measurements of all units, and only then divides it among them. Nothing of
that is federated; it is here because the paper's experiments on HAI and SWaT start from such models. A federation
identifies from messages instead. What the paper leaves open is listed in docs/theory/identification.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.errors import DataError, OptionError
from counterflow.filtering.results import freeze
from counterflow.identification.lagged import stretches
from counterflow.identification.signal import standard
from counterflow.learning.realisation import STABLE, shrink
from counterflow.paper.subspace import Subspace, subspace
from counterflow.plant import LocalModel, Recording
from counterflow.recurrence import linear_recurrence

_LEAST = 1e-8  # smallest noise variance, relative to that of a standardised channel or state


@dataclass(frozen=True)
class PooledModel:
    """A plant identified from pooled raw data and divided among its units, in standardised channels.

    h[t] = A h[t-1] + B u[t-1] + w, y[t] = C h[t] + v, of (y - mean) / scale and (u - mean) / scale. C, Q and R are
    block-diagonal by unit; states, measurements and inputs are sorted by unit.

    ``owners``: the unit of each state; ``energy`` (P, M): share of each unit's outputs in the squared length of that
    state's column of C, before the other rows were dropped; ``kept``: share of the energy of C that is left;
    ``repaired``: what was done to make the model stable, and which unit was given a state that fits another better;
    ``locals``: each unit's own blocks; ``source``: the model before it was divided.
    """

    A: FloatArray
    B: FloatArray
    C: FloatArray
    Q: FloatArray
    R: FloatArray
    owners: tuple[str, ...]
    energy: FloatArray
    kept: float
    repaired: tuple[str, ...]
    output_mean: FloatArray
    output_scale: FloatArray
    input_mean: FloatArray
    input_scale: FloatArray
    locals: dict[str, LocalModel]
    source: Subspace


def pooled_model(recording: Recording, order: int | None = None, *, basis: str = "canonical") -> PooledModel:
    """Identify a plant from the POOLED RAW DATA of all units, as the paper did, and divide its states among them.

    All channels are standardised; one model is identified by `subspace`; each state goes to the unit on whose outputs
    its column of C has the most energy, with at least one state for every unit; the rows of other units are dropped
    from that column, which makes C block-diagonal; and A, B, Q and R are fitted again by least squares to the states
    that the identified model predicts.

    Parameters
    ----------
    recording : Recording
        Of units that measure something; rows with a missing value anywhere are left out.
    order : int, optional
        States of the whole plant, at least one a unit. By default by the canonical correlations.
    basis : {"canonical", "modal"}
        Coordinates of the state in which columns of C are compared. The paper does not say which. "canonical": as
        identified, the direction that predicts most first. "modal": one state for each real eigenvalue of A and two
        for each complex pair, so that a state is a mode of the plant.
    """
    if basis not in ("canonical", "modal"):
        raise OptionError(f"basis must be 'canonical' or 'modal'; got {basis!r}")
    units = recording.names
    y, u = (np.hstack([getattr(recording[unit], letter) for unit in units]) for letter in "yu")
    row_owner, column_owner = (
        np.repeat(np.arange(len(units)), [getattr(recording[unit], letter).shape[1] for unit in units])
        for letter in "yu"
    )
    whole = np.isfinite(y).all(axis=1)
    if not whole.any():
        raise DataError("no row has all channels of all units measured; leave out channels that are mostly missing")
    mean_y, scale_y, _ = standard(y[whole])
    mean_u, scale_u, _ = standard(u)
    z, drive = (y - mean_y) / scale_y, (u - mean_u) / scale_u

    source = subspace(z, drive, order)
    if source.order < len(units):
        if order is not None:
            raise OptionError(f"order must be at least one state for each of the {len(units)} units; got {order}")
        source = subspace(z, drive, len(units), past=source.past, future=source.future)
    into = _modes(source.A) if basis == "modal" else np.eye(source.order)
    C_all = source.C @ np.linalg.inv(into)
    energy = np.stack([np.square(C_all[row_owner == m]).sum(axis=0) for m in range(len(units))], axis=1)
    owner, moved = assign_states(energy)
    repaired = [f"unit {units[m]!r} had no state of its own and was given state {p}" for p, m in moved]
    order_of = np.lexsort((np.arange(len(owner)), owner))
    owner = owner[order_of]
    C = np.where(row_owner[:, None] == owner, C_all[:, order_of], 0.0)

    x, following, driven, seen = _states(source, z, drive)
    x, following = x @ into.T[:, order_of], following @ into.T[:, order_of]
    A, B = np.split(np.linalg.lstsq(np.hstack([x, driven]), following, rcond=None)[0].T, [len(owner)], axis=1)
    radius = float(np.abs(np.linalg.eigvals(A)).max())
    if radius > STABLE:
        A = shrink(A)
        B = np.linalg.lstsq(driven, following - x @ A.T, rcond=None)[0].T
        repaired.append(f"A had spectral radius {radius:.6g}; it was brought to {STABLE:.6f} and B was fitted again")
    Q = _by_unit(following - x @ A.T - driven @ B.T, owner)
    R = _by_unit(seen - x @ C.T, row_owner)
    found = {}
    for m, unit in enumerate(units):
        own, rows, columns = (np.flatnonzero(each == m) for each in (owner, row_owner, column_owner))
        found[unit] = LocalModel(
            A=A[np.ix_(own, own)], B=B[np.ix_(own, columns)], C=C[np.ix_(rows, own)], Q=Q[np.ix_(own, own)],
            R=R[np.ix_(rows, rows)],
        )  # fmt: skip
    total = energy.sum(axis=1)
    share = (energy / np.where(total > 0, total, 1.0)[:, None])[order_of]
    return PooledModel(
        A=freeze(A), B=freeze(np.ascontiguousarray(B)), C=freeze(C), Q=freeze(Q), R=freeze(R),
        owners=tuple(units[m] for m in owner), energy=freeze(share),
        kept=float(np.square(C).sum() / max(float(total.sum()), np.finfo(float).tiny)),
        repaired=(*source.repaired, *repaired), output_mean=freeze(mean_y), output_scale=freeze(scale_y),
        input_mean=freeze(mean_u), input_scale=freeze(scale_u), locals=found, source=source,
    )  # fmt: skip


def assign_states(energy: FloatArray) -> tuple[NDArray[np.intp], tuple[tuple[int, int], ...]]:
    """Give each state to the unit with the largest share of its energy (P, M), and every unit at least one state.

    Ties go to the earlier unit. Units left without a state, in order, each take the state with the largest share for
    them from a unit that has another one; ties go to the earlier state. Also returned: (state, unit) of those taken.
    """
    P, M = energy.shape
    if P < M:
        raise OptionError(f"{P} states cannot be divided among {M} units; take at least one state a unit")
    total = energy.sum(axis=1, keepdims=True)
    share = energy / np.where(total > 0, total, 1.0)
    owner = share.argmax(axis=1)
    moved = []
    for m in range(M):
        if not (owner == m).any():
            free = np.bincount(owner, minlength=M)[owner] > 1
            state = int(np.where(free, share[:, m], -1.0).argmax())
            owner[state] = m
            moved.append((state, m))
    return owner, tuple(moved)


def _modes(A: FloatArray) -> FloatArray:
    """The matrix that takes states to real modes of unit length; slowest mode first."""
    values, vectors = np.linalg.eig(A)
    columns = []
    for k in sorted(range(len(A)), key=lambda k: (-abs(values[k]), values[k].real, -values[k].imag)):
        if values[k].imag >= 0:
            columns.append(vectors[:, k].real)
            if values[k].imag > 0:
                columns.append(vectors[:, k].imag)
    basis = np.stack(columns, axis=1)
    basis /= np.linalg.norm(basis, axis=0)
    if np.linalg.cond(basis) > 1e10:
        raise OptionError("A has repeated eigenvalues and no basis of modes; use basis='canonical'")
    return np.asarray(np.linalg.inv(basis))


def _states(model: Subspace, z: FloatArray, drive: FloatArray) -> tuple[FloatArray, ...]:
    """Predicted states of all rows with everything measured, those of the rows after them, their inputs and outputs."""
    F = model.A - model.K @ model.C
    parts = []
    for run in stretches(z, model.past + 2):
        x = np.zeros((run.stop - run.start + 1, model.order))
        x[1:] = linear_recurrence(F, drive[run] @ model.B.T + z[run] @ model.K.T, x[0])
        skip = model.past  # rows in which the predictor forgets where it started
        parts.append((x[skip:-1], x[skip + 1 :], drive[run][skip:], z[run][skip:]))
    if not parts:
        raise DataError(
            f"no {model.past + 2} rows in a row have all channels of all units measured; give longer stretches, or a "
            "shorter past"
        )
    return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True))


def _by_unit(residual: FloatArray, owner: NDArray[np.intp]) -> FloatArray:
    """Covariance with the blocks between units set to zero; positive definite."""
    same = owner[:, None] == owner
    S = np.where(same, residual.T @ residual / len(residual), 0.0)
    values, vectors = np.linalg.eigh(S)
    S = (vectors * np.maximum(values, _LEAST)) @ vectors.T
    return np.where(same, (S + S.T) / 2, 0.0)
