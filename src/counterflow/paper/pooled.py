"""The paper's own route to a model of a real plant. IT POOLS THE RAW DATA OF ALL UNITS IN ONE PLACE.

The paper identifies one model from the raw measurements of all units, and only then divides it among them. Nothing of
that is federated; it is here because the paper's experiments on HAI and SWaT start from such models. A federation
identifies from messages instead. What the paper leaves open is listed in docs/theory/identification.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from counterflow.arrays import FloatArray
from counterflow.errors import DataError, OptionError
from counterflow.filtering.results import freeze
from counterflow.identification.lagged import as_pair, as_record, stretches
from counterflow.identification.signal import standard
from counterflow.learning.realisation import STABLE, shrink
from counterflow.paper.subspace import Subspace, subspace
from counterflow.recurrence import linear_recurrence

_LEAST = 1e-8  # smallest noise variance, relative to that of a standardised channel or state


@dataclass(frozen=True)
class PooledModel:
    """A plant identified from pooled raw data and divided among its units, in standardised channels.

    Attributes
    ----------
    A : (P, P), B : (P, U), C : (D, P), Q : (P, P), R : (D, D) arrays
        h[t] = A h[t-1] + B u[t-1] + w, y[t] = C h[t] + v, of (y - mean) / scale and (u - mean) / scale. C, Q and R
        are block-diagonal by unit; states, measurements and inputs are sorted by unit.
    owners : tuple of str
        The unit of each state.
    columns : tuple of int
        Which state of the identified model each state is.
    energy : (P, M) array
        Share of each unit's outputs in the squared length of that state's column of C, before the other rows were
        dropped. Rows add to 1.
    kept : float
        Share of the energy of C that is left in its diagonal blocks.
    repaired : tuple of str
        What was done to make the model stable, and which unit was given a state that fits another better.
    output_mean, output_scale : (D,), input_mean, input_scale : (U,) arrays
    source : Subspace
        The model before it was divided.
    """

    A: FloatArray
    B: FloatArray
    C: FloatArray
    Q: FloatArray
    R: FloatArray
    units: tuple[str, ...]
    owners: tuple[str, ...]
    columns: tuple[int, ...]
    energy: FloatArray
    kept: float
    repaired: tuple[str, ...]
    output_mean: FloatArray
    output_scale: FloatArray
    input_mean: FloatArray
    input_scale: FloatArray
    source: Subspace

    def states(self, unit: str) -> slice:
        """The states of a unit."""
        count = [self.owners.count(name) for name in self.units]
        place = self.units.index(unit)
        return slice(sum(count[:place]), sum(count[: place + 1]))


def pooled_model(
    y: Mapping[str, ArrayLike], u: Mapping[str, ArrayLike], order: int | None = None, *, basis: str = "canonical",
    past: int | None = None, future: int | None = None,
) -> PooledModel:  # fmt: skip
    """Identify a plant from the POOLED RAW DATA of all units, as the paper did, and divide its states among them.

    All channels are standardised; one model is identified by `subspace`; each state goes to the unit on whose outputs
    its column of C has the most energy, with at least one state for every unit; the rows of other units are dropped
    from that column, which makes C block-diagonal; and A, B, Q and R are fitted again by least squares to the states
    that the identified model predicts.

    Parameters
    ----------
    y : mapping of unit to (T+1, D_m) array
        Raw measurements; rows with a missing value anywhere are left out.
    u : mapping of unit to (T+1, U_m) array
        Inputs of the same units; U_m may be 0.
    order : int, optional
        States of the whole plant, at least one a unit. By default by the canonical correlations.
    basis : {"canonical", "modal"}
        Coordinates of the state in which columns of C are compared. The paper does not say which. "canonical": as
        identified, the direction that predicts most first. "modal": one state for each real eigenvalue of A and two
        for each complex pair, so that a state is a mode of the plant.
    past, future : int, optional
        As in `subspace`.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> h, u = np.zeros((2000, 2)), rng.normal(size=(2000, 2))
    >>> for t in range(1, 2000):
    ...     h[t] = [0.9, 0.5] * h[t - 1] + u[t - 1]
    >>> y = h + 0.1 * rng.normal(size=(2000, 2))
    >>> model = pooled_model({"a": y[:, :1], "b": y[:, 1:]}, {"a": u[:, :1], "b": u[:, 1:]}, 2, basis="modal")
    >>> model.owners, model.A.diagonal().round(1).tolist(), model.kept > 0.99
    (('a', 'b'), [0.9, 0.5], True)
    """
    if basis not in ("canonical", "modal"):
        raise OptionError(f"basis must be 'canonical' or 'modal'; got {basis!r}")
    if not y or set(y) != set(u):
        raise DataError(f"y and u must be of the same units; got {sorted(y)} and {sorted(u)}")
    units = tuple(y)
    outputs = {unit: as_record(f"y of unit {unit!r}", y[unit]) for unit in units}
    inputs = {unit: as_record(f"u of unit {unit!r}", u[unit]) for unit in units}
    rows = {len(array) for array in (*outputs.values(), *inputs.values())}
    if len(rows) > 1:
        raise DataError(f"all units must have equally many rows; got {sorted(rows)}")
    for unit in units:
        if not outputs[unit].shape[1]:
            raise DataError(f"unit {unit!r} has no measured channel; leave it out")
    all_y, all_u = as_pair(np.hstack([outputs[unit] for unit in units]), np.hstack([inputs[unit] for unit in units]))
    unit_of_row = np.repeat(np.arange(len(units)), [outputs[unit].shape[1] for unit in units])
    whole = np.isfinite(all_y).all(axis=1)
    if not whole.any():
        raise DataError("no row has all channels of all units measured; leave out channels that are mostly missing")
    mean_y, scale_y, _ = standard(all_y[whole])
    mean_u, scale_u, _ = standard(all_u)
    z, drive = (all_y - mean_y) / scale_y, (all_u - mean_u) / scale_u

    source = subspace(z, drive, order, past=past, future=future)
    if source.order < len(units):
        if order is not None:
            raise OptionError(f"order must be at least one state for each of the {len(units)} units; got {order}")
        source = subspace(z, drive, len(units), past=source.past, future=source.future)
    into = _modes(source.A) if basis == "modal" else np.eye(source.order)
    C_all = source.C @ np.linalg.inv(into)
    energy = np.stack([np.square(C_all[unit_of_row == m]).sum(axis=0) for m in range(len(units))], axis=1)
    owner, moved = assign_states(energy)
    repaired = [f"unit {units[m]!r} had no state of its own and was given state {p}" for p, m in moved]
    order_of = np.lexsort((np.arange(len(owner)), owner))
    owner = owner[order_of]
    C = np.where(unit_of_row[:, None] == owner, C_all[:, order_of], 0.0)

    x, following, driven, seen = _states(source, z, drive)
    x, following = x @ into.T[:, order_of], following @ into.T[:, order_of]
    regressors = np.hstack([x, driven])
    fitted = np.linalg.lstsq(regressors, following, rcond=None)[0].T
    A, B = np.split(fitted, [len(owner)], axis=1)
    radius = float(np.abs(np.linalg.eigvals(A)).max())
    if radius > STABLE:
        A = shrink(A)
        B = np.linalg.lstsq(driven, following - x @ A.T, rcond=None)[0].T
        repaired.append(f"A had spectral radius {radius:.6g}; it was brought to {STABLE:.6f} and B was fitted again")
    Q = _by_unit(following - x @ A.T - driven @ B.T, owner)
    R = _by_unit(seen - x @ C.T, unit_of_row)
    total = energy.sum(axis=1)
    return PooledModel(
        A=freeze(A), B=freeze(np.ascontiguousarray(B)), C=freeze(C), Q=freeze(Q), R=freeze(R), units=units,
        owners=tuple(units[m] for m in owner), columns=tuple(int(p) for p in order_of),
        energy=freeze((energy / np.where(total > 0, total, 1.0)[:, None])[order_of]),
        kept=float(np.square(C).sum() / max(float(total.sum()), np.finfo(float).tiny)),
        repaired=(*source.repaired, *repaired), output_mean=freeze(mean_y), output_scale=freeze(scale_y),
        input_mean=freeze(mean_u), input_scale=freeze(scale_u), source=source,
    )  # fmt: skip


def assign_states(energy: ArrayLike) -> tuple[NDArray[np.intp], tuple[tuple[int, int], ...]]:
    """Give each state to the unit with the largest share of its energy, and every unit at least one state.

    Parameters
    ----------
    energy : (P, M) array
        Not negative; P >= M.

    Returns
    -------
    owner : (P,) array of int
        Ties go to the earlier unit. Units left without a state, in order, each take the state with the largest share
        for them from a unit that has another one; ties go to the earlier state.
    moved : tuple of (state, unit)
        The states taken.

    Examples
    --------
    >>> owner, moved = assign_states([[9.0, 1.0], [6.0, 4.0], [8.0, 2.0]])
    >>> owner.tolist(), moved
    ([0, 1, 0], ((1, 1),))
    """
    energy = as_record("energy", energy)
    P, M = energy.shape
    if P < M:
        raise OptionError(f"{P} states cannot be divided among {M} units; take at least one state a unit")
    total = energy.sum(axis=1, keepdims=True)
    share = energy / np.where(total > 0, total, 1.0)
    owner = share.argmax(axis=1)
    moved = []
    for m in range(M):
        if (owner == m).any():
            continue
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


def _states(model: Subspace, z: FloatArray, drive: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Predicted states of all rows with everything measured, those of the rows after them, their inputs and outputs."""
    F = model.A - model.K @ model.C
    parts = []
    for run in stretches(z, model.past + 2):
        rows = slice(run.start, run.stop)
        x = np.zeros((run.stop - run.start + 1, model.order))
        x[1:] = linear_recurrence(F, drive[rows] @ model.B.T + z[rows] @ model.K.T, x[0])
        skip = model.past  # rows in which the predictor forgets where it started
        parts.append((x[skip:-1], x[skip + 1 :], drive[rows][skip:], z[rows][skip:]))
    if not parts:
        raise DataError(
            f"no {model.past + 2} rows in a row have all channels of all units measured; give longer stretches, or a "
            "shorter past"
        )
    x, following, driven, seen = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    return x, following, driven, seen


def _by_unit(residual: FloatArray, owner: NDArray[np.intp]) -> FloatArray:
    """Covariance with the blocks between units set to zero; positive definite."""
    same = owner[:, None] == owner
    S = np.where(same, residual.T @ residual / len(residual), 0.0)
    values, vectors = np.linalg.eigh(S)
    S = (vectors * np.maximum(values, _LEAST)) @ vectors.T
    return np.where(same, (S + S.T) / 2, 0.0)
