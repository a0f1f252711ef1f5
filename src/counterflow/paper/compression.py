"""Fewer rows with the same inner products: in one process a round need not cost more when T grows.

Every loss, gradient and multiplier of the published method is a quadratic or linear function of columns that are
known before training starts: y_m[t], y_m[t-1], ĥ_c, u and 1. Multiplying all columns from the left by an orthogonal
matrix changes no inner product, so none of the iterates. A QR factorisation of the shared columns S = [ĥ_c, u, 1]
of all units, then of what is left of each unit's own columns, turns T rows into

    P + U + 1  rows that hold the shared columns, and  2 D_m + P_m  more in which S is zero,

exactly, without forming Gram matrices (whose condition is squared). The rows beyond the shared ones mean something
different at each unit; the server never adds up columns of different units, so they may stand in the same place.

This pools the units' data and is for one process only. Bytes are counted as if the rows had been sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.paper.augmented import ClientData

CHUNK = 4096


def compressed_rows(data: Mapping[str, ClientData], refined_target: bool = False) -> int:
    """How many rows ``compress`` leaves."""
    shared = 1 + sum(d.refined.shape[1] + d.inputs.shape[1] for d in data.values())
    own = [2 * d.measured.shape[1] + (1 + refined_target) * d.predicted.shape[1] for d in data.values()]
    return int(shared + max(own))


def compress(data: Mapping[str, ClientData], refined_target: bool = False) -> dict[str, ClientData]:
    """The same data in fewer rows; every inner product of columns of one unit with its own or shared ones is kept.

    ĥ_c[t] is among the columns, P_m more rows, only if it is part of the server's target; else there are none of it.
    """
    from scipy.linalg import lapack

    names = list(data)
    shared = np.hstack([np.hstack([data[n].refined, data[n].inputs]) for n in names] + [data[names[0]].ones[:, None]])
    own = {n: _own(data[n], refined_target) for n in names}
    steps, width = shared.shape
    triangle = np.zeros((0, width))  # R of the shared columns so far
    rotated = {n: np.zeros((0, own[n].shape[1])) for n in names}  # the own columns in the rows of ``triangle``
    rest = {n: np.zeros((0, own[n].shape[1])) for n in names}  # R of what is orthogonal to the shared columns
    for start in range(0, steps, CHUNK):
        block = np.vstack([triangle, shared[start : start + CHUNK]])
        factored, tau, _, info = lapack.dgeqrf(np.asfortranarray(block))
        assert info == 0
        top = min(block.shape)
        triangle = np.triu(factored[:top])
        columns = np.hstack([np.vstack([rotated[n], own[n][start : start + CHUNK]]) for n in names])
        workspace = 64 * columns.shape[1]
        turned, _, info = lapack.dormqr("L", "T", factored[:, :top], tau, np.asfortranarray(columns), workspace)
        assert info == 0
        at = 0
        for n in names:
            mine = turned[:, at : at + own[n].shape[1]]
            at += own[n].shape[1]
            rotated[n] = mine[:top]
            rest[n] = np.asarray(np.linalg.qr(np.vstack([rest[n], mine[top:]]), mode="r"))
    rows = triangle.shape[0] + max(r.shape[0] for r in rest.values())
    return _unpacked(data, triangle, rotated, rest, rows)


def _own(data: ClientData, refined_target: bool) -> FloatArray:
    return np.hstack([data.measured, data.previous, data.predicted, *([data.current] if refined_target else [])])


def _unpacked(
    data: Mapping[str, ClientData], triangle: FloatArray, rotated: Mapping[str, FloatArray],
    rest: Mapping[str, FloatArray], rows: int,
) -> dict[str, ClientData]:  # fmt: skip
    def padded(block: FloatArray) -> FloatArray:
        return np.ascontiguousarray(np.vstack([block, np.zeros((rows - block.shape[0], block.shape[1]))]))

    out: dict[str, ClientData] = {}
    at = 0
    whole = padded(triangle)
    for name, d in data.items():
        n_states, n_inputs, n_outputs = d.refined.shape[1], d.inputs.shape[1], d.measured.shape[1]
        mine = padded(np.vstack([rotated[name], rest[name]]))
        out[name] = replace(
            d, refined=np.ascontiguousarray(whole[:, at : at + n_states]),
            inputs=np.ascontiguousarray(whole[:, at + n_states : at + n_states + n_inputs]),
            measured=np.ascontiguousarray(mine[:, :n_outputs]),
            previous=np.ascontiguousarray(mine[:, n_outputs : 2 * n_outputs]),
            predicted=np.ascontiguousarray(mine[:, 2 * n_outputs : 2 * n_outputs + n_states]),
            current=np.ascontiguousarray(mine[:, 2 * n_outputs + n_states :]), ones=whole[:, -1].copy(),
        )  # fmt: skip
        at += n_states + n_inputs
    return out
