"""Measurements compressed to what they tell about the state, with nothing lost.

Whiten y = C h + v by the Cholesky factor L of R, and split the D whitened numbers by an orthogonal matrix into the
r that C can reach and the D - r that it cannot:

    s = U' L^-1 y = C~ h + N(0, I)      r numbers, r = rank(C) <= P
    e = U_' L^-1 y =        N(0, I)     D - r numbers that tell nothing about h

The filter sees s only. The likelihood of e is added; it is computed from e itself, never as |L^-1 y|^2 - |s|^2, which
loses every digit when the data have large means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.errors import DataError
from counterflow.filtering.products import triangular_solve

BoolArray = NDArray[np.bool_]
_LONG = 1000  # rows alike that are worth settling for; fewer are filtered faster as rows that differ
_RARE = 8  # a pattern of missing channels seen in fewer rows is not worth a compression of its own


@dataclass(frozen=True)
class Compression:
    """One set of channels, compressed.

    Attributes
    ----------
    observation : (r, P) array
        C~, how the compressed measurement sees the state.
    reach : (r, D) array
        Takes y to s.
    rest : (D - r, D) array
        Takes y to e.
    log_scale : float
        log |det L|, subtracted from the log-likelihood of each row.
    """

    observation: FloatArray
    reach: FloatArray
    rest: FloatArray
    log_scale: float

    @property
    def size(self) -> int:
        """Number of channels that were compressed."""
        return int(self.reach.shape[1])


def compress(C: FloatArray, R: FloatArray) -> Compression:
    """Compress the measurement y = C h + v, v ~ N(0, R).

    Parameters
    ----------
    C : (D, P) array
        D may be zero: nothing is measured.
    R : (D, D) array
        Positive definite.

    Examples
    --------
    >>> twice = compress(np.array([[1.0], [1.0]]), np.eye(2))  # the same state measured twice
    >>> np.abs(twice.observation).round(4).tolist()
    [[1.4142]]
    """
    D, P = C.shape
    if D == 0:
        return Compression(np.empty((0, P)), np.empty((0, 0)), np.empty((0, 0)), 0.0)
    L: FloatArray = np.asarray(np.linalg.cholesky(R), dtype=np.float64)
    whiten = triangular_solve(L, np.eye(D))
    white_C = triangular_solve(L, C)
    # The rank must not depend on the units of the states: judge it with every column of the same length.
    length = np.sqrt((white_C**2).sum(axis=0))
    U, singular, _ = np.linalg.svd(white_C / np.where(length > 0, length, 1.0), full_matrices=True)
    rank = int((singular > singular[0] * max(D, P) * np.finfo(float).eps).sum()) if singular[0] > 0 else 0
    rotated = U.T @ whiten
    return Compression(
        observation=U[:, :rank].T @ white_C,
        reach=np.ascontiguousarray(rotated[:rank]),
        rest=np.ascontiguousarray(rotated[rank:]),
        log_scale=float(np.log(np.diagonal(L)).sum()),
    )


class Compressed(NamedTuple):
    """Rows compressed by the channels that each of them has."""

    observations: list[FloatArray]  # C~ (r, P) of all channels, and of each set of channels in the order of its use
    labels: NDArray[np.intp]  # (n,) which of them a row has
    values: FloatArray  # (n, r) s of each row; NaN where it has fewer


def compress_by_presence(y: FloatArray, C: FloatArray, R: FloatArray) -> Compressed:
    """Compress measurements y (n, D), NaN where missing: every reading counts, and a row that has none says nothing.

    Examples
    --------
    >>> y = np.array([[1.0, 1.0], [1.0, np.nan], [np.nan, np.nan], [1.0, 1.0]])
    >>> found = compress_by_presence(y, np.array([[1.0], [1.0]]), np.eye(2))
    >>> [each.shape for each in found.observations], found.labels.tolist()
    ([(1, 1), (1, 1), (0, 1)], [0, 1, 2, 0])
    >>> np.abs(found.values).round(4).ravel().tolist()
    [1.4142, 1.0, nan, 1.4142]
    """
    n, D = y.shape
    measured = np.isfinite(y)
    full = compress(C, R)
    observations, labels = [full.observation], np.zeros(n, np.intp)
    values = np.full((n, len(full.observation)), np.nan)
    nothing = 0 if len(full.observation) == 0 else -1
    for rows in _alike(measured):
        chosen = np.flatnonzero(measured[rows[0]])
        found = full if len(chosen) == D else compress(C[chosen], R[np.ix_(chosen, chosen)])
        rank = min(len(found.observation), values.shape[1])  # fewer channels see no more; rounding may say so
        if rank == 0 and nothing >= 0:
            labels[rows] = nothing
            continue
        if found is not full:
            labels[rows] = len(observations)
            nothing = nothing if rank else len(observations)
            observations.append(found.observation[:rank])
        values[rows, :rank] = y[np.ix_(rows, chosen)] @ found.reach[:rank].T
    return Compressed(observations, labels, values)


@dataclass(frozen=True)
class CompressedRows:
    """Rows that each have their own C or missing channels, compressed one by one.

    Attributes
    ----------
    observation : (n, k, P) array
        C~ of each row, k = min(D, P); rows of zeros where fewer channels were measured.
    values : (n, k) array
        s of each row.
    constant : (n,) array
        What the channels out of reach and the scale of the noise add to the log-likelihood of each row, without the
        -1/2 log 2 pi of each measured channel.
    count : (n,) int array
        Measured channels in each row.
    """

    observation: FloatArray
    values: FloatArray
    constant: FloatArray
    count: NDArray[np.int_]


def compress_rows(y: FloatArray, measured: BoolArray, C: FloatArray, R: FloatArray) -> CompressedRows:
    """Compress rows that do not have the same channels, or do not see the state alike.

    Parameters
    ----------
    y : (n, D) array
        Anything where not measured.
    measured : (n, D) bool array
    C : (D, P) or (n, D, P) array
    R : (D, D) array
    """
    n, D = y.shape
    P = C.shape[-1]
    count = measured.sum(axis=1)
    if D <= P and np.array_equal(R, np.eye(D)):  # they are compressed already
        observation = np.where(measured[:, :, None], C, 0.0)
        return CompressedRows(observation, np.where(measured, y, 0.0), np.zeros(n), count)
    kept = min(D, P)
    out = CompressedRows(np.zeros((n, kept, P)), np.zeros((n, kept)), np.zeros(n), count)
    rare = np.ones(n, bool)
    if C.ndim == 2:
        for rows in _alike(measured):
            if len(rows) >= _RARE:
                rare[rows] = False
                _all_at_once(out, rows, y, np.flatnonzero(measured[rows[0]]), C, R)
    each = np.flatnonzero(rare)
    if len(each):
        C = C if C.ndim == 2 else C[each]
        _one_by_one(out, each, np.where(measured, y, 0.0)[each], measured[each], C, R)
    return out


def _alike(measured: BoolArray) -> list[NDArray[np.intp]]:
    """Rows (n, D) that have the same channels, each set of them in the order of its first row."""
    packed = np.packbits(measured, axis=1)
    names = np.ascontiguousarray(packed).view(np.dtype((np.void, packed.shape[1]))).ravel()
    _, first, label, often = np.unique(names, return_index=True, return_inverse=True, return_counts=True)
    groups = np.split(np.argsort(label.ravel(), kind="stable"), np.cumsum(often)[:-1])
    return [groups[k] for k in np.argsort(first)]


def _all_at_once(
    out: CompressedRows, rows: NDArray[np.intp], y: FloatArray, chosen: NDArray[np.intp], C: FloatArray, R: FloatArray
) -> None:
    """Compress rows that have the same channels."""
    squeezed = compress(C[chosen], R[np.ix_(chosen, chosen)])
    there, rank = y[np.ix_(rows, chosen)], len(squeezed.observation)
    out.observation[rows, :rank] = squeezed.observation
    out.values[rows, :rank] = there @ squeezed.reach.T
    out.constant[rows] = -0.5 * np.square(there @ squeezed.rest.T).sum(axis=1) - squeezed.log_scale


def _one_by_one(
    out: CompressedRows, rows: NDArray[np.intp], y: FloatArray, measured: BoolArray, C: FloatArray, R: FloatArray
) -> None:
    """Compress rows that have nothing in common.

    The triangular factor of the whitened [C | y] holds C~, s and the length of the rest side by side, so one QR
    factorisation for each row is enough, and no rank has to be decided: a row of zeros in C~ does no harm.
    """
    (n, D), P = y.shape, C.shape[-1]
    white = np.empty((n, D, P + 1))
    white[:, :, :P] = np.where(measured[:, :, None], C, 0.0)
    white[:, :, P] = y
    log_scale = _whiten(white, measured, R)
    triangle: FloatArray = np.asarray(np.linalg.qr(white, mode="r"), dtype=np.float64)
    kept = min(D, P)
    out.observation[rows] = triangle[:, :kept, :P]
    out.values[rows] = triangle[:, :kept, P]
    rest = triangle[:, P, P] ** 2 if D > P else 0.0
    out.constant[rows] = -0.5 * rest - log_scale


def _whiten(rows: FloatArray, measured: BoolArray, R: FloatArray) -> FloatArray:
    """Whiten `rows` (n, D, P + 1) in place; return log |det L| of each row.

    A missing channel gets unit noise, independent of the others; its row of zeros then stays a row of zeros.
    """
    both = measured[:, :, None] & measured[:, None, :]
    noise = np.where(both, R, 0.0)
    diagonal = np.einsum("nii->ni", noise)
    diagonal[~measured] = 1.0
    L = np.linalg.cholesky(noise)
    for k in range(len(rows)):
        rows[k] = triangular_solve(L[k], rows[k])
    logarithms: FloatArray = np.log(np.einsum("nii->ni", L)).sum(axis=1)
    return logarithms


# ---- which rows can be filtered alike


class Stretch(NamedTuple):
    """Rows ``start`` to ``stop - 1``.

    `measured` tells which of the D channels all of them have; None if the rows differ.
    """

    start: int
    stop: int
    measured: BoolArray | None


def stretches(y: FloatArray, C: FloatArray) -> list[Stretch]:
    """Cut `y` (T+1, D), where NaN is missing, into stretches; refuse infinities.

    `C` is (D, P), or (T+1, D, P) if each row has its own.

    Examples
    --------
    >>> y = np.ones((3000, 1))
    >>> y[1200:2900:2] = np.nan
    >>> [(part.start, part.stop, part.measured is None) for part in stretches(y, np.eye(1))]
    [(0, 1200, False), (1200, 3000, True)]
    """
    measured = np.isfinite(y)
    infinite = np.argwhere(np.isinf(y))
    if len(infinite):
        row, channel = (int(i) for i in infinite[0])
        raise DataError(f"y[{row}, {channel}] is infinite; a missing measurement is marked with NaN")
    differs = (measured[1:] != measured[:-1]).any(axis=1)
    if C.ndim == 3:
        differs |= (C[1:] != C[:-1]).any(axis=(1, 2))
    edges = np.flatnonzero(differs) + 1
    starts, stops = np.concatenate([[0], edges]), np.concatenate([edges, [len(y)]])
    alike = stops - starts >= min(_LONG, len(y))
    out: list[Stretch] = []
    at = 0
    for start, stop in zip(starts[alike].tolist(), stops[alike].tolist(), strict=True):
        if at < start:
            out.append(Stretch(at, start, None))
        out.append(Stretch(start, stop, measured[start]))
        at = stop
    if at < len(y):
        out.append(Stretch(at, len(y), None))
    return out
