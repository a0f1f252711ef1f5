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

from counterflow.arrays import FloatArray, slices
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

    some = ("measured", "previous", "predicted", *(["current"] if refined_target else []))
    own = {n: np.hstack([getattr(d, column) for column in some]) for n, d in data.items()}
    first = next(iter(data.values()))
    shared = np.hstack([*(each for d in data.values() for each in (d.refined, d.inputs)), first.ones[:, None]])
    places = dict(zip(own, slices([columns.shape[1] for columns in own.values()]), strict=True))
    triangle = np.zeros((0, shared.shape[1]))  # R of the shared columns so far
    rotated = {n: np.zeros((0, columns.shape[1])) for n, columns in own.items()}  # own ones in the triangle's rows
    rest = dict(rotated)  # R of what is orthogonal to the shared columns
    for start in range(0, len(shared), CHUNK):
        block = np.vstack([triangle, shared[start : start + CHUNK]])
        factored, tau, _, info = lapack.dgeqrf(np.asfortranarray(block))
        assert info == 0
        top = min(block.shape)
        triangle = np.triu(factored[:top])
        columns = np.hstack([np.vstack([rotated[n], own[n][start : start + CHUNK]]) for n in data])
        workspace = 64 * columns.shape[1]
        turned, _, info = lapack.dormqr("L", "T", factored[:, :top], tau, np.asfortranarray(columns), workspace)
        assert info == 0
        for n, place in places.items():
            rotated[n] = turned[:top, place]
            rest[n] = np.asarray(np.linalg.qr(np.vstack([rest[n], turned[top:, place]]), mode="r"))
    rows = triangle.shape[0] + max(len(each) for each in rest.values())

    def columns_of(block: FloatArray, widths: list[int]) -> list[FloatArray]:
        """So many columns each, with zeros in the rows that are missing."""
        padded = np.vstack([block, np.zeros((rows - len(block), block.shape[1]))])
        return [np.ascontiguousarray(padded[:, place]) for place in slices(widths)]

    sizes = [size for d in data.values() for size in (d.refined.shape[1], d.inputs.shape[1])]
    *common, ones = columns_of(triangle, [*sizes, 1])
    out: dict[str, ClientData] = {}
    for (n, d), refined, inputs in zip(data.items(), common[::2], common[1::2], strict=True):
        P, D = d.refined.shape[1], d.measured.shape[1]
        mine = np.vstack([rotated[n], rest[n]])
        measured, previous, predicted, current = columns_of(mine, [D, D, P, P * refined_target])
        out[n] = replace(
            d, refined=refined, inputs=inputs, measured=measured, previous=previous, predicted=predicted,
            current=current, ones=ones[:, 0].copy(),
        )  # fmt: skip
    return out
