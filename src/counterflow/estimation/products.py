"""Sums of products of a network's features and targets, by blocks of neighbouring rows: all that is learned from.

Features of row t are means of the columns over spans of earlier rows, and products of two columns (``network``);
targets are the numbers of row t. Beside them stands a constant, so that sums in one standardisation give those in any
other, and rows that come later need no second look at those before them.

A block is as long as a power of two of rows, the smallest with which there are no more than ``MOST_BLOCKS``: when a
record outgrows its blocks, neighbours are added up in pairs. So the edges depend on the number of rows alone, not on
whether they came all at once or by and by.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.errors import UnidentifiedError
from counterflow.estimation.network import RECENT, SPANS, IntArray, owners, whole_windows

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MOST_BLOCKS = 32  # of neighbouring rows, which are weighted as one; of more than 32 rows there are at least 17
MOST_PRODUCTS = 1000
MOST_WORK = 2e11  # multiplications for the products of all features; of longer records stretches are taken
CHUNK = 8192  # rows whose features are made at once
LEAST_ROWS = 60
STILL = 1e-9  # standard deviation, relative to the values, of a column that never moves


@dataclass(frozen=True, eq=False)
class Rows:
    """What is learned from: rows z = (numbers, inputs) in the units' own terms, NaN where something is missing.

    ``z`` (T, m); names of the units, with their counts of numbers and of inputs, side by side in z. ``first``: which
    row of the whole record z[0] is, where earlier ones are not kept.
    """

    names: tuple[str, ...]
    numbers: tuple[int, ...]
    inputs: tuple[int, ...]
    z: FloatArray
    first: int = 0

    @property
    def owner(self) -> IntArray:
        return owners(self.numbers, self.inputs)


@dataclass(frozen=True, eq=False)
class Products:
    """Sums over blocks of rows of products of n features, r targets and a constant, in this order.

    ``blocks``: of each block the upper triangle, row by row, of the symmetric (N, N) sum, N = n + r + 1. ``spans``,
    ``pairs``, ``pair_centre``, ``pair_size``, ``level``, ``scale``, ``low``, ``high``: as in ``Network``; of all pairs.
    ``moving`` (m,): columns that do. ``targets``: r. ``rows``: of the record, whether they could be summed or not.
    ``used``: rows that were summed; where stretches of a long record were taken, each stands for several.
    """

    blocks: tuple[FloatArray, ...]
    spans: IntArray
    pairs: IntArray
    pair_centre: FloatArray
    pair_size: FloatArray
    level: FloatArray
    scale: FloatArray
    low: FloatArray
    high: FloatArray
    moving: NDArray[np.bool_]
    targets: int
    rows: int
    used: int

    @property
    def memory(self) -> int:
        """Rows before one that its features reach back to."""
        return int(self.spans[-1, 1])

    @property
    def features(self) -> int:
        """n."""
        return len(self.spans) * len(self.level) + len(self.pairs)

    @property
    def size(self) -> int:
        """N."""
        return self.features + self.targets + 1

    @cached_property
    def counts(self) -> FloatArray:
        """(B,): rows that each block stands for."""
        return np.array([block[-1] for block in self.blocks])

    @property
    def count(self) -> float:
        """Rows that all blocks stand for."""
        return float(self.counts.sum())

    @property
    def length(self) -> int:
        """Rows of the record that a block spans."""
        return block_length(self.rows)

    def moments(self, weights: FloatArray | None = None) -> FloatArray:
        """The symmetric (N, N) sum of all blocks, each times its weight (B,) if there are weights."""
        total = np.zeros_like(self.blocks[0])
        for k, block in enumerate(self.blocks):
            total += block if weights is None else weights[k] * block
        return _unpacked(total, self.size)

    def moments_among(self, columns: NDArray[np.intp], weights: FloatArray) -> FloatArray:
        """(K, c, c): the sums between some rising columns only, for each of K sets of weights (K, B)."""
        i, j = np.triu_indices(len(columns))
        row, column = columns[i], columns[j]
        at = row * self.size - row * (row - 1) // 2 + column - row
        found = weights @ np.stack([block[at] for block in self.blocks])
        return np.stack([_unpacked(each, len(columns)) for each in found])

    def absorbed(self, z: FloatArray, learnable: NDArray[np.bool_] | None = None) -> Products:
        """The same with the rows that follow, at a cost that depends on these only. Level and scale stay.

        Parameters
        ----------
        z : (memory + k, m) in the units' own terms: the last ``memory`` rows before, then k new ones. NaN: missing.
        learnable : (k,), whether a new row may be learned from; by default every one in which nothing is missing.
        """
        known = np.asarray(np.isfinite(z).all(axis=1), bool)
        new = known[self.memory :] if learnable is None else known[self.memory :] & learnable
        standard = np.where(known[:, None], (z - self.level) / self.scale, 0.0)
        at = self.memory + np.flatnonzero(new)
        at = at[whole_windows(known, at, self.memory)]
        rows, blocks = self.rows + len(new), list(self.blocks)
        for _ in range((block_length(rows) // self.length).bit_length() - 1):
            left = blocks[-1:] if len(blocks) % 2 else []
            blocks = [one + two for one, two in zip(blocks[::2], blocks[1::2], strict=False)] + left
        blocks += [np.zeros_like(blocks[0])] * (-(-rows // block_length(rows)) - len(blocks))
        place = (self.rows - self.memory + at) // block_length(rows)
        for b in np.unique(place):
            blocks[b] = blocks[b] + self._sum(standard, at[place == b])
        seen = standard[self.memory :][new]
        return replace(
            self, blocks=tuple(blocks), rows=rows, used=self.used + len(at),
            low=np.minimum(self.low, seen.min(axis=0, initial=np.inf)),
            high=np.maximum(self.high, seen.max(axis=0, initial=-np.inf)),
        )  # fmt: skip

    def restandardised(self) -> Products:
        """The same sums with level and scale of all rows so far, as if these had been known from the start."""
        total, one = self.moments(), self.size - 1
        m, linear = len(self.level), len(self.spans) * len(self.level)
        shift, spread = _mean_and_spread(total, np.arange(m))
        level = self.level + self.scale * shift
        moving = _moves(self.scale * spread, np.maximum(abs(self.low), abs(self.high)) * self.scale + abs(self.level))
        scale = np.where(moving, self.scale * spread, 1.0)
        stretch = self.scale / scale
        turn = self._turn(shift, stretch, np.zeros(len(self.pairs)), np.ones(len(self.pairs)))
        bent = turn[linear : self.features]
        centre = bent @ total[:, one] / total[one, one]
        square = np.asarray((bent @ (bent @ total).T).diagonal()) / total[one, one]
        size = _size(np.sqrt(np.maximum(square - centre**2, 0.0)))
        turn = self._turn(shift, stretch, centre, size)
        blocks = (turn @ (turn @ _unpacked(block, self.size)).T for block in self.blocks)
        return replace(
            self, blocks=tuple(_packed(block) for block in blocks), level=level, scale=scale, moving=moving,
            pair_centre=centre, pair_size=size, low=(self.low - shift) * stretch, high=(self.high - shift) * stretch,
        )  # fmt: skip

    def _turn(self, shift: FloatArray, stretch: FloatArray, centre: FloatArray, size: FloatArray) -> csr_array:
        """(N, N): what makes features, targets and the constant those of columns (z - shift) · stretch.

        A product of shifted columns is the old product less the columns that it is made of: z̄ is the mean of the first
        spans, which are one row each. ``centre`` and ``size``: of the new products.
        """
        from scipy.sparse import coo_array

        m, n, one, none = len(self.level), self.features, self.size - 1, np.zeros(0, np.intp)
        linear, ends, bent = np.arange(len(self.spans) * m), np.arange(n, one), np.arange(len(self.spans) * m, n)
        column = np.concatenate([linear % m, ends - n])
        plain = np.concatenate([linear, ends])
        j, k = self.pairs.T if len(self.pairs) else (none, none)
        gain = stretch[j] * stretch[k] / size
        constant = gain * (self.pair_centre + shift[j] * shift[k]) - centre / size
        entries = [
            (plain, plain, stretch[column]), (plain, np.full(len(plain), one), -(shift * stretch)[column]),
            (bent, bent, gain * self.pair_size), (bent, np.full(len(bent), one), constant),
            (np.array([one]), np.array([one]), np.ones(1)),
        ]  # fmt: skip
        for span in range(RECENT):
            entries += [
                (bent, span * m + k, -gain * shift[j] / RECENT),
                (bent, span * m + j, -gain * shift[k] / RECENT),
            ]
        rows, columns, values = (np.concatenate(parts) for parts in zip(*entries, strict=True))
        return coo_array((values, (rows, columns)), (one + 1, one + 1)).tocsr()

    def _sum(self, standard: FloatArray, at: NDArray[np.intp]) -> FloatArray:
        """Packed sum over rows ``at`` of standardised rows."""
        out = np.zeros((self.size, self.size))
        if not len(at):
            return _packed(out)
        first = int(at[0]) - self.memory
        standard, at = standard[first : int(at[-1]) + 1], at - first
        total = np.vstack([np.zeros(standard.shape[1]), np.cumsum(standard, axis=0)])
        for begin in range(0, len(at), CHUNK):
            some = at[begin : begin + CHUNK]
            means = [(total[some - first + 1] - total[some - last]) / (last - first + 1) for first, last in self.spans]
            bent = (_multiplied(standard, some, self.pairs) - self.pair_centre) / self.pair_size
            F = np.hstack([*means, bent, standard[some, : self.targets], np.ones((len(some), 1))])
            out += F.T @ F
        return _packed(out)


def products_of(rows: Rows) -> Products:
    """One pass over a whole record."""
    z, r = rows.z, sum(rows.numbers)
    known = np.asarray(np.isfinite(z).all(axis=1), bool)
    spans = _spans(known)
    memory = int(spans[-1, 1])
    at = whole(known, memory)
    if len(at) < LEAST_ROWS:
        raise UnidentifiedError(
            f"identification: {len(at)} rows with the {memory} rows before them measured at all units are too few; "
            f"at least {LEAST_ROWS} are needed: record all units over a common period"
        )
    # levels are those of the rows that the newest features are made of; no copy is made of a record without gaps
    before = z[at - 1] if at[-1] - at[0] >= len(at) else z[at[0] - 1 : at[-1]]
    measured = z if known.all() else z[known]
    level, spread = before.mean(axis=0), before.std(axis=0)
    low, high = measured.min(axis=0), measured.max(axis=0)
    moving = _moves(spread, np.maximum(abs(low), abs(high)))
    scale = np.where(moving, spread, 1.0)
    standard = np.where(known[:, None], (z - level) / scale, 0.0)
    low, high = (low - level) / scale, (high - level) / scale
    pairs = _pairs(rows.owner, len(at))
    none = np.zeros(len(pairs))
    empty = Products((), spans, pairs, none, none + 1, level, scale, low, high, moving, r, len(z), 0)
    most = int(MOST_WORK / (2.0 * empty.size**2))
    parts = np.split(at, np.searchsorted(at, np.arange(empty.length, len(z), empty.length)))
    taken = parts if len(at) <= most else [part[: max(most // len(parts), 1)] for part in parts]
    centre, size = _pair_scale(standard, np.concatenate(taken), pairs)
    empty = replace(empty, pair_centre=centre, pair_size=size)
    stand_for = [len(part) / max(len(some), 1) for part, some in zip(parts, taken, strict=True)]
    blocks = tuple(each * empty._sum(standard, some) for each, some in zip(stand_for, taken, strict=True))
    return replace(empty, blocks=blocks, used=sum(len(some) for some in taken))


def block_length(rows: int) -> int:
    """Rows of a block in a record of so many rows.

    Examples
    --------
    >>> [block_length(rows) for rows in (32, 33, 1000, 1024, 1025)]
    [1, 2, 32, 32, 64]
    """
    return 1 << max(-(-rows // MOST_BLOCKS) - 1, 0).bit_length()


def whole(known: NDArray[np.bool_], memory: int) -> NDArray[np.intp]:
    """Rows that are there with all of the ``memory`` rows before them."""
    at = np.arange(memory, len(known))
    return np.asarray(at[whole_windows(known, at, memory)], np.intp)


@cache
def _upper(size: int) -> NDArray[np.intp]:
    """Where the upper triangle of a matrix stands, row by row."""
    row, column = np.triu_indices(size)
    return np.asarray(row * size + column, np.intp)


def _packed(matrix: FloatArray) -> FloatArray:
    return np.asarray(np.take(matrix, _upper(len(matrix))))


def _unpacked(packed: FloatArray, size: int) -> FloatArray:
    out = np.zeros((size, size))
    out.ravel()[_upper(size)] = packed
    return out + np.triu(out, 1).T


def _mean_and_spread(total: FloatArray, columns: NDArray[np.intp]) -> tuple[FloatArray, FloatArray]:
    """Mean and standard deviation of features, from sums over all rows."""
    mean = total[columns, -1] / total[-1, -1]
    square = total[columns, columns] / total[-1, -1]
    return np.asarray(mean), np.sqrt(np.maximum(square - mean**2, 0.0))


def _moves(spread: FloatArray, largest: FloatArray) -> NDArray[np.bool_]:
    return np.asarray(spread > STILL * np.maximum(largest, 1e-300), bool)


def _size(spread: FloatArray) -> FloatArray:
    return np.where(spread > STILL, spread, 1.0)


def _multiplied(z: FloatArray, at: NDArray[np.intp], pairs: IntArray) -> FloatArray:
    recent = np.mean([z[at - k] for k in range(1, RECENT + 1)], axis=0)
    return np.asarray(recent[:, pairs[:, 0]] * recent[:, pairs[:, 1]])


def _pair_scale(z: FloatArray, at: NDArray[np.intp], pairs: IntArray) -> tuple[FloatArray, FloatArray]:
    """Mean and standard deviation of products over rows ``at``."""
    parts = [at[begin : begin + CHUNK] for begin in range(0, len(at), CHUNK)]
    centre = np.sum([_multiplied(z, some, pairs).sum(axis=0) for some in parts], axis=0) / len(at)
    square = np.sum([np.square(_multiplied(z, some, pairs) - centre).sum(axis=0) for some in parts], axis=0) / len(at)
    return centre, _size(np.sqrt(square))


def _spans(known: NDArray[np.bool_]) -> IntArray:
    """As long a memory as the record carries; of a record full of gaps, one that leaves half of its rows of use."""
    rows = int(known.sum())
    spans = SPANS[: int((SPANS[:, 1] <= max(rows // 8, 4)).sum())]
    while spans[-1, 1] > RECENT + 1 and 2 * len(whole(known, int(spans[-1, 1]))) < rows:
        spans = spans[:-1]
    return np.asarray(spans, np.int64)


def _pairs(owner: IntArray, rows: int) -> IntArray:
    """Pairs of columns that may be multiplied, (k, 2): all of them if they are few, else those of one unit, or none."""
    one, two = np.triu_indices(len(owner))
    for some in (np.ones(len(one), bool), owner[one] == owner[two]):
        if some.sum() <= min(MOST_PRODUCTS, 2 * rows):
            return np.stack([one[some], two[some]], axis=1).astype(np.int64)
    return np.zeros((0, 2), np.int64)
