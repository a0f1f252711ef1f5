"""How far the couplings' uncertainty moves an answer, and a memory of it for questions that differ in size only.

To first order the states of an answer vary with the uncertain entries of [A B] by

    dΔh[t] = A dΔh[t-1] + dA Δh[t-1] + dB Δu[t-1]

which is linear in the change asked about. Whoever moves a slider asks for the same schedule again and again in other
sizes: from the second time on, the covariance of every pair of schedules of size one is kept, and an answer is a sum.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.questions.row_covariance import KEPT, LARGEST, compressed
from counterflow.recurrence import linear_recurrence

_SLICE = 4_000_000  # numbers that are worked on at once
_STILL = 1e-15  # relative movement in a row below which nothing moves any more
_MOST_SCHEDULES = 4  # changed at once, beyond which pairs of them cost more than they save
_LARGEST = 2_000_000  # numbers that one remembered question may take
_CAPACITY = 8_000_000  # numbers that all of them may take
_DIGITS = 14  # to which schedules count as the same


@dataclass(frozen=True)
class Spread:
    """Uncertainty of couplings: entry ``rows[i], columns[i]`` of [A B] varies as ``root[i] @ standard normal``."""

    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    root: FloatArray  # (n, k)


def pair_covariances(A: FloatArray, spread: Spread, drives: FloatArray, own: slice) -> FloatArray:
    """Covariances (n, q, q, P_m, P_m) of states driven by [A B] x[t-1], for every pair of ``drives`` (q, n, P+U)."""
    q, n, _ = drives.shape
    size, k = own.stop - own.start, spread.root.shape[1]
    out = np.zeros((n, q, q, size, size))
    for t, Z in _moved(A, spread, drives):
        mine = Z[own].reshape(size * q, k)
        out[t] = (mine @ mine.T).reshape(size, q, size, q).transpose(1, 3, 0, 2)
    out[t + 1 :] = out[t]
    return out


def coupling_directions(A: FloatArray, spread: Spread | None, drives: FloatArray, own: slice) -> FloatArray | None:
    """How far states (k, q, n, P_m), driven as above, move together along each direction of uncertainty.

    Their sum of squares is the covariance of all rows at once. Where directions are too many to be kept, they are
    directions at random, with the same covariance in the mean; None: there are too many numbers even so.
    """
    q, n, _ = drives.shape
    size = own.stop - own.start
    if spread is None or q * n * size * KEPT > LARGEST:
        return None
    k = spread.root.shape[1]
    if q * n * size * k > LARGEST:
        drawn = np.random.default_rng(0).standard_normal((k, 2 * KEPT)) / np.sqrt(2 * KEPT)
        spread = Spread(spread.rows, spread.columns, spread.root @ drawn)
        k = 2 * KEPT
    out = np.zeros((n, size, q, k))
    for t, Z in _moved(A, spread, drives):
        out[t] = Z[own].reshape(size, q, k)
    out[t + 1 :] = out[t]
    return out.transpose(3, 2, 0, 1)


def _moved(A: FloatArray, spread: Spread, drives: FloatArray) -> Iterator[tuple[int, FloatArray]]:
    """Row by row, how far all states move along each direction: (t, (P, q k)); the last one stands for the rest.

    Every direction of uncertainty drives its own copy of the system; they march side by side, until nothing moves any
    more.
    """
    q, n, _ = drives.shape
    P, k = A.shape[0], spread.root.shape[1]
    columns = [spread.columns[spread.rows == row] for row in range(P)]
    roots = [spread.root[spread.rows == row] for row in range(P)]
    rows = int(np.clip(_SLICE // max(P * q * k, 1), 1, n))
    settled = _constant_from(drives)
    Z = np.zeros((P, q * k))
    for start in range(0, n, rows):
        # what uncertainty adds in these rows: many rows at once, so that the products are large
        push = np.zeros((min(rows, n - start), P, q, k))
        for row in range(P):
            push[:, row] = (drives[:, start : start + rows, columns[row]] @ roots[row]).swapaxes(0, 1)
        before = Z
        for t, more in enumerate(push.reshape(len(push), P, -1), start):
            before, Z = Z, A @ Z + more
            yield t, Z
        if t >= settled and np.abs(Z - before).max(initial=0.0) <= _STILL * np.abs(Z).max(initial=0.0):
            return


def _constant_from(drives: FloatArray) -> int:
    """The row from which on nothing moves any more."""
    moving = np.abs(drives - drives[:, -1:]).max(axis=(0, 2)) > _STILL * np.abs(drives).max(initial=0.0)
    return int(np.flatnonzero(moving)[-1]) + 1 if moving.any() else 0


def coupling_covariance(A: FloatArray, spread: Spread | None, drive: FloatArray, own: slice) -> FloatArray:
    """Covariance (n P_m, P_m), from the couplings' spread, of states driven by [A B] x[t-1], x = ``drive`` (n, P+U)."""
    size = own.stop - own.start
    if spread is None:
        return np.zeros((0, size))
    return pair_covariances(A, spread, drive[None], own).reshape(-1, size)


def driven_by(A: FloatArray, B: FloatArray, schedule: FloatArray) -> tuple[FloatArray, FloatArray]:
    """States (n, P) after inputs ``schedule`` (n, U) from rest, and [state before, input] of every row (n, P+U)."""
    response = linear_recurrence(A, schedule @ B.T, np.zeros(A.shape[0]))
    before = np.vstack([np.zeros(response.shape[1]), response[:-1]])
    return response, np.hstack([before, schedule])


@dataclass
class Memory:
    """Covariances of schedules that were asked about more than once, the latest ones; several threads may ask."""

    _known: OrderedDict[object, FloatArray | None] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def covariance(
        self, A: FloatArray, B: FloatArray, spread: Spread | None, schedule: FloatArray, own: slice
    ) -> FloatArray:
        """Covariance (n P_m, P_m) of the answer to inputs ``schedule`` (n, U) from rest."""
        size = own.stop - own.start
        if spread is None or self._is_many(schedule, size):
            return coupling_covariance(A, spread, driven_by(A, B, schedule)[1], own)
        key, sizes, moved, shapes = _parted(schedule, own)
        with self._lock:
            asked_before = key in self._known
            pairs = self._known.get(key)
        if pairs is None and (asked_before or len(moved) == 1):
            pairs = pair_covariances(A, spread, _alone(A, B, schedule, moved, shapes), own)
        self._keep(key, pairs)
        if pairs is None:
            return coupling_covariance(A, spread, driven_by(A, B, schedule)[1], own)
        return np.asarray(np.einsum("a,b,nabij->nij", sizes, sizes, pairs, optimize=True)).reshape(-1, size)

    def directions(
        self, A: FloatArray, B: FloatArray, spread: Spread | None, schedule: FloatArray, own: slice
    ) -> FloatArray | None:
        """Of the same answer, how all rows (k, n, P_m) move together; None where that is too much to keep."""
        n, size = len(schedule), own.stop - own.start
        if spread is None or self._is_many(schedule, size):
            found = coupling_directions(A, spread, driven_by(A, B, schedule)[1][None], own)
            return None if found is None else compressed(found[:, 0])
        key, sizes, moved, shapes = _parted(schedule, own)
        key = ("joint", *key)
        with self._lock:
            kept = self._known.get(key)
        if kept is None:
            found = coupling_directions(A, spread, _alone(A, B, schedule, moved, shapes), own)
            if found is None:
                return None
            kept = compressed(found.reshape(len(found), len(moved) * n, size)).reshape(-1, len(moved), n, size)
            self._keep(key, kept)
        return np.asarray(np.einsum("a,kanp->knp", sizes, kept))

    @staticmethod
    def _is_many(schedule: FloatArray, size: int) -> bool:
        """Whether what would be kept of it is too much, or nothing at all."""
        moved = schedule[:, schedule.any(axis=0)]
        count = moved.shape[1]
        many = not 0 < count <= _MOST_SCHEDULES or len(schedule) * (count * size) ** 2 > _LARGEST
        return many or not np.isfinite(moved).all()

    def _keep(self, key: object, pairs: FloatArray | None) -> None:
        with self._lock:
            if pairs is not None or key not in self._known:
                self._known[key] = pairs
            self._known.move_to_end(key)
            while sum(_size(each) for each in self._known.values()) > _CAPACITY:
                self._known.popitem(last=False)


def _parted(schedule: FloatArray, own: slice) -> tuple[tuple[Any, ...], FloatArray, NDArray[np.intp], FloatArray]:
    """Inputs that are moved, their sizes and their shapes (n, q) of size one; and what these are remembered by."""
    moved = np.flatnonzero(schedule.any(axis=0))
    sizes = schedule[np.abs(schedule[:, moved]).argmax(axis=0), moved]  # with their sign
    shapes = np.round(schedule[:, moved] / sizes, _DIGITS) + 0.0  # + 0.0: no minus before a zero
    key = (own.start, own.stop, tuple(moved.tolist()), shapes.shape, shapes.tobytes())
    return key, sizes, moved, shapes


def _alone(
    A: FloatArray, B: FloatArray, schedule: FloatArray, moved: NDArray[np.intp], shapes: FloatArray
) -> FloatArray:
    """[state before, input] (q, n, P+U) of every schedule of size one by itself."""
    alone = np.zeros((len(moved), *schedule.shape))
    alone[np.arange(len(moved)), :, moved] = shapes.T
    return np.stack([driven_by(A, B, one)[1] for one in alone])


def _size(pairs: FloatArray | None) -> int:
    return 4_000 + (0 if pairs is None else pairs.size)  # a key takes memory, too: it holds a schedule
