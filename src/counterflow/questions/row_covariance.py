"""How the errors of an answer's rows go together: directions, along each of which all rows move at once.

Errors of steps are correlated, so that a band for every row does not tell how well a mean over rows is known. The
server says it by directions x_1, x_2, ... (n, P_m): the covariance of rows s and t is the sum of x_k[s] x_k[t]'. The
largest ones are sent; what a row's own covariance holds beyond them is taken to be that row's alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import ProtocolError
from counterflow.protocol import Answer

KEPT = 64  # directions, at most
JOINT = "joint"  # share of an answer: directions, one below the other
_NOTHING = 1e-9  # of the whole variance: what is left out of it
LARGEST = 8_000_000  # numbers of all rows at once, along all directions
_EXACT = 2000  # states of all rows up to which noise is added up exactly; beyond, it is drawn


def compressed(directions: FloatArray) -> FloatArray:
    """The largest directions (k, n, P_m) of the same covariance, at most ``KEPT``."""
    if not directions.size:
        return directions[:0]
    flat = directions.reshape(len(directions), -1)
    if len(flat) > KEPT:
        if flat.shape[1] < len(flat):
            values, vectors = np.linalg.eigh(flat.T @ flat)
            order = np.argsort(-values)[:KEPT]
            flat = (vectors[:, order] * np.sqrt(np.maximum(values[order], 0.0))).T
        else:
            values, vectors = np.linalg.eigh(flat @ flat.T)
            flat = vectors[:, np.argsort(-values)[:KEPT]].T @ flat
    size = np.square(flat).sum(axis=1)
    kept = flat[size > _NOTHING * size.sum()]
    return np.asarray(kept.reshape(-1, *directions.shape[1:]))


def lasting(block: FloatArray, rows: int) -> FloatArray:
    """Directions (k, rows, P_m) of an error with covariance ``block`` (P_m, P_m) that is the same in all rows."""
    return np.repeat(_root(block)[:, None, :], rows, axis=1)


def _root(block: FloatArray) -> FloatArray:
    """(k, P_m): the block is the root's transpose times the root; what is not there takes no room."""
    values, vectors = np.linalg.eigh((block + block.T) / 2)
    kept = values > _NOTHING**2 * max(float(values[-1]), 0.0)
    return np.asarray((vectors[:, kept] * np.sqrt(values[kept])).T)


def directions_of_replicates(
    found: FloatArray, widening: float, missed: FloatArray | None = None
) -> FloatArray | None:
    """Directions (k, n, P_m) of replicates (K, n, P_m), with the covariance in each row of ``spread_of_replicates``.

    Half of it is as the replicates have it, and half is the same error in all rows. ``missed`` (P_m, P_m) is another
    one that all rows have. None: they are too many numbers.
    """
    _, rows, size = found.shape
    if rows * size * KEPT > LARGEST:
        return None
    gaps = widening * (found - found.mean(axis=0)) / np.sqrt(2 * (len(found) - 1))
    block = np.einsum("kni,knj->ij", gaps, gaps) / rows
    return np.vstack([gaps, lasting(block if missed is None else block + missed, rows)])


def noise_directions(A: FloatArray, Q: FloatArray, start: FloatArray, rows: int, own: slice) -> FloatArray | None:
    """Directions (k, rows, P_m) of states after a state of covariance ``start`` (P, P), with process noise Q.

    None: they are too many numbers.
    """
    P, size = A.shape[0], own.stop - own.start
    if rows * size * 2 * KEPT > LARGEST:
        return None
    first, root = _root(start).T, _root(Q).T
    if rows * P > _EXACT:
        rng, count = np.random.default_rng(0), 2 * KEPT
        out = np.zeros((rows, size, count))
        h = first @ rng.standard_normal((first.shape[1], count))
        for t in range(rows):
            h = A @ h + root @ rng.standard_normal((root.shape[1], count))
            out[t] = h[own]
        return np.asarray(out.transpose(2, 0, 1) / np.sqrt(count))
    begun, each = first.shape[1], root.shape[1]
    h = np.zeros((P, begun + rows * each))  # a copy of the noise for every row in which it enters
    out = np.zeros((rows, size, h.shape[1]))
    h[:, :begun] = first
    for t in range(rows):
        h = A @ h
        h[:, begun + t * each : begun + (t + 1) * each] += root
        out[t] = h[own]
    return np.asarray(out.transpose(2, 0, 1))


def share_of(answer: Answer, directions: FloatArray | None) -> tuple[Answer, ...]:
    """An answer with its directions (k, n, P_m) behind it, where there are any."""
    if directions is None or not len(directions):
        return (answer,)
    stacked = np.ascontiguousarray(compressed(directions).reshape(-1, answer.mean.shape[1]))
    none = np.zeros((0, answer.mean.shape[1]))
    return answer, Answer(answer.unit, answer.kind, JOINT, "", stacked, none)


def directions_of(parts: Sequence[Answer], rows: int) -> FloatArray | None:
    """Directions (k, rows, P_m) that a unit was sent; None: it was sent none."""
    for piece in parts:
        if piece.share == JOINT:
            if len(piece.mean) % max(rows, 1):
                raise ProtocolError(f"answer: {len(piece.mean)} rows are not directions of {rows} rows")
            return piece.mean.reshape(-1, rows, piece.mean.shape[1])
    return None
