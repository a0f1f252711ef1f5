"""Which rows of a unit's life a release is of, as the unit itself knows it: by their time, and by what they hold.

Releases of rows that are shown to be others do not add up. Rows are the same if their place on the timeline is the same
or if they hold the same readings; a row without a place, or on a grid of other times than the ledger's, may be any.

Readings are compared by a keyed digest of each row, rounded and sorted, so that a log that was written anew, with other
digits, columns in another order, row numbers or time zone, is still the log that was released. Rows that occur twice in
a log, such as those of a plant at rest, identify nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from counterflow.arrays import FloatArray
from counterflow.privacy.accounting import ANY_ROWS

Tags = npt.NDArray[np.uint64]
ROW_NUMBERS = "row numbers"  # the grid of who says himself which row is which
_BITS = 16  # of a reading that are compared
_FINEST = 1_000_000  # parts of a second that a time step is told to


class Piece(NamedTuple):
    """What a ledger remembers of rows that were released: place of the first one, and the tag of each."""

    first: int
    tags: Tags


class Placed(NamedTuple):
    """Which rows a release is charged to, and what the ledger has to remember of them; None: nothing new."""

    start: int
    stop: int
    piece: Piece | None = None


@dataclass(frozen=True, eq=False)
class RowRange:
    """Consecutive rows (T+1, D) of a unit's measurements. ``grid``: the timeline on which they begin at ``start``.

    Examples
    --------
    >>> y = np.arange(6.0).reshape(3, 2)
    >>> RowRange.timed(y, "1970-01-01 00:01:00", 10.0).start, RowRange.timed(y, "", 10.0).grid
    (6, '')
    """

    y: FloatArray = field(repr=False)
    grid: str = ""
    start: int = 0
    _known: dict[bytes, Tags] = field(default_factory=dict, repr=False)

    @classmethod
    def timed(cls, y: FloatArray, begins: str, dt: float | None) -> RowRange:
        """Rows of a log that says when it begins; those of one that does not may be any."""
        try:
            when, step = datetime.fromisoformat(begins), Fraction(dt or 0).limit_denominator(_FINEST)
            zone = "local time" if when.tzinfo is None else "UTC"
            since = (when.replace(tzinfo=UTC) if when.tzinfo is None else when) - datetime(1970, 1, 1, tzinfo=UTC)
            start, phase = divmod(Fraction(since // (since.resolution), _FINEST), step)
        except (ValueError, OverflowError, ZeroDivisionError):
            return cls(y)
        if not 0 <= start < ANY_ROWS[1] - len(y):
            return cls(y)
        return cls(y, f"every {step} s from {phase} s, {zone}", int(start))

    @classmethod
    def numbered(cls, y: FloatArray, start: int | None) -> RowRange:
        """Rows of which somebody says which they are; None: they may be any."""
        return cls(y) if start is None else cls(y, ROW_NUMBERS, start)

    def tags(self, key: bytes) -> Tags:
        """A keyed digest of each row's readings; 0 for a row that identifies nothing."""
        if key not in self._known:
            self._known[key] = _tags(self.y, key)
        return self._known[key]

    def placed(self, key: bytes, grid: str, known: Iterable[Piece]) -> Placed:
        """Where these rows belong, for a ledger on ``grid`` ("": on none yet) that has released ``known`` ones."""
        if not self.grid or (grid and grid != self.grid):
            return Placed(*ANY_ROWS)
        tags, stop = self.tags(key), self.start + len(self.y)
        if not tags.any():
            return Placed(*ANY_ROWS)
        new = tags != 0
        mine = np.sort(tags[tags != 0])
        for first, there in known:
            low, high = max(self.start, first), min(stop, first + len(there))
            elsewhere = there.copy()
            if low < high:
                here, at = slice(low - self.start, high - self.start), slice(low - first, high - first)
                same = tags[here] == there[at]
                new[here] &= ~same
                elsewhere[at][same] = 0
            found = np.searchsorted(mine, elsewhere).clip(max=len(mine) - 1)
            if ((mine[found] == elsewhere) & (elsewhere != 0)).any():
                return Placed(*ANY_ROWS)  # released before, as rows of another time
        at_all = np.flatnonzero(new)
        if not len(at_all):
            return Placed(self.start, stop)
        begin, end = int(at_all[0]), int(at_all[-1]) + 1
        return Placed(self.start, stop, Piece(self.start + begin, tags[begin:end]))


def _tags(y: FloatArray, key: bytes) -> Tags:
    mantissa, exponent = np.frexp(np.where(np.isfinite(y), y, 0.0))
    codes = np.rint(mantissa * (1 << _BITS)).astype(np.int64) + (exponent.astype(np.int64) << (_BITS + 2))
    codes = np.sort(np.where(np.isfinite(y), codes, np.int64(2**62)), axis=1)
    size, data = 8 * codes.shape[1], codes.astype("<i8").tobytes()
    rows = (data[k : k + size] for k in range(0, size * len(codes), size))
    digests = b"".join(hashlib.blake2b(row, key=key, digest_size=8).digest() for row in rows)
    tags = np.frombuffer(digests, "<u8").astype(np.uint64)
    if len(tags) != len(y):  # of a unit that measures nothing
        return np.zeros(len(y), np.uint64)
    _, index, count = np.unique(tags, return_inverse=True, return_counts=True)
    identifying = (count[index] == 1) & np.isfinite(y).any(axis=1)
    return np.where(identifying, tags, np.uint64(0))
