"""Measurements compressed to what they tell about the state, with nothing lost.

Whiten y = C h + v by the Cholesky factor L of R, and split the D whitened numbers by an orthogonal matrix into the
r that C can reach and the D - r that it cannot:

    s = U' L^-1 y = C~ h + N(0, I)      r numbers, r = rank(C) <= P
    e = U_' L^-1 y =        N(0, I)     D - r numbers that tell nothing about h

The filter sees s only. The likelihood of e is added; it is computed from e itself, never as |L^-1 y|^2 - |s|^2, which
loses every digit when the data have large means.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.filtering.products import triangular_solve

BoolArray = NDArray[np.bool_]
_RARE = 8  # a set of channels in fewer rows is compressed along with others, not by itself
_AT_ONCE = 4096  # of these
_LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class Compression:
    """One set of channels: ``observation`` C~ (r, P); ``reach`` (r, D) takes y to s, ``rest`` (D - r, D) takes y to e.

    ``log_scale``: log |det L|, subtracted from the log-likelihood of each row.
    """

    observation: FloatArray
    reach: FloatArray
    rest: FloatArray
    log_scale: float


def compress(C: FloatArray, R: FloatArray) -> Compression:
    """Compress y = C h + v, v ~ N(0, R): C (D, P), R (D, D) positive definite; D may be zero."""
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
    """Compress measurements y (n, D), NaN where missing: every reading counts, and a row that has none says nothing."""
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


class Seen(NamedTuple):
    """Rows as the filter takes them: s = C~ h + N(0, I), with zeros where less was measured."""

    observation: FloatArray  # (k, r, P) C~ of every kind of row
    kinds: NDArray[np.intp]  # (n,) which of them a row has
    values: FloatArray  # (n, r) s
    constant: float  # what is out of reach, and the scale of the noise, add to the log-likelihood


def compress_rows(y: FloatArray, C: FloatArray, R: FloatArray) -> Seen:
    """Compress y (n, D), NaN where missing; C (D, P) of all rows, or (n, D, P) of each, with R the identity."""
    measured, P = np.isfinite(y), C.shape[-1]
    y, D, constant = np.where(measured, y, 0.0), y.shape[1], -0.5 * _LOG_2PI * int(measured.sum())
    if C.ndim == 3:
        seen = np.where(measured[:, :, None], C, 0.0)
        new = np.concatenate([[True], (seen[1:] != seen[:-1]).any(axis=(1, 2))])
        return Seen(seen[new], np.cumsum(new) - 1, y, constant)
    groups, kinds, kept = _alike(measured), np.zeros(len(y), np.intp), min(D, P)
    observation, values = np.zeros((len(groups), kept, P)), np.zeros((len(y), kept))
    for k, rows in enumerate(groups):
        kinds[rows] = k
        if len(rows) >= _RARE:
            chosen = np.flatnonzero(measured[rows[0]])
            found = compress(C[chosen], R[np.ix_(chosen, chosen)])
            there, rank = y[np.ix_(rows, chosen)], len(found.observation)
            observation[k, :rank], values[rows, :rank] = found.observation, there @ found.reach.T
            constant -= 0.5 * float(np.square(there @ found.rest.T).sum()) + len(rows) * found.log_scale
    rare = np.array([k for k, rows in enumerate(groups) if len(rows) < _RARE], np.intp)
    for first in range(0, len(rare), _AT_ONCE):
        some = rare[first : first + _AT_ONCE]
        present = measured[[groups[k][0] for k in some]]
        # a missing channel gets unit noise, independent of the others, and stays a row of zeros
        noise = np.where(present[:, :, None] & present[:, None, :], R, 0.0)
        np.einsum("kii->ki", noise)[~present] = 1.0
        L = np.linalg.cholesky(noise)
        # no rank has to be decided: a row of zeros in C~ does no harm
        turn, observation[some] = np.linalg.qr(np.linalg.solve(L, np.where(present[:, :, None], C, 0.0)))
        scales = np.log(np.einsum("kii->ki", L)).sum(axis=1)
        for k, W, Z, scale in zip(some, np.linalg.inv(L), turn, scales, strict=True):
            rows = groups[k]
            white = y[rows] @ W.T
            values[rows] = white @ Z
            constant -= 0.5 * float(np.square(white - values[rows] @ Z.T).sum()) + len(rows) * float(scale)
    return Seen(observation, kinds, values, constant)


def _alike(measured: BoolArray) -> list[NDArray[np.intp]]:
    """Rows (n, D) that have the same channels, each set of them in the order of its first row."""
    packed = np.packbits(measured, axis=1)
    names = np.ascontiguousarray(packed).view(np.dtype((np.void, packed.shape[1]))).ravel()
    _, first, label, often = np.unique(names, return_index=True, return_inverse=True, return_counts=True)
    groups = np.split(np.argsort(label.ravel(), kind="stable"), np.cumsum(often)[:-1])
    return [groups[k] for k in np.argsort(first)]
