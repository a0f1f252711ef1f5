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
from counterflow.learning.network import RECENT, SPANS, IntArray, owners, recent, running

if TYPE_CHECKING:
    from scipy.sparse import csr_array

MOST_BLOCKS = 32  # of neighbouring rows, which are weighted as one; of more than 32 rows there are at least 17
MOST_PRODUCTS = 1000
MOST_WORK = 2e11  # multiplications for the products of all features; of longer records stretches are taken
CHUNK = 8192  # rows whose features are made at once
LEAST_ROWS = 60
MOST_AGE = 60  # rows after a reading of a slow target in which it says something of the next
STILL = 1e-9  # standard deviation, relative to the values, of a column that never moves


@dataclass(frozen=True, eq=False)
class Rows:
    """What is learned from: rows z = (numbers, inputs) in the units' own terms, NaN where something is missing.

    ``z`` (T, m); names of the units, with their counts of numbers and of inputs, side by side in z. ``first``: which
    row of the whole record z[0] is, where earlier ones are not kept. ``variance`` (T, r): of numbers that are known in
    part; None: what is there is exact. ``given`` (T, m): what was read, if the rest of z was drawn.
    """

    names: tuple[str, ...]
    numbers: tuple[int, ...]
    inputs: tuple[int, ...]
    z: FloatArray
    first: int = 0
    variance: FloatArray | None = None
    given: NDArray[np.bool_] | None = None

    @property
    def owner(self) -> IntArray:
        return owners(self.numbers, self.inputs)

    @property
    def targets(self) -> int:
        """r, the numbers of all units."""
        return sum(self.numbers)

    @cached_property
    def read(self) -> NDArray[np.bool_]:
        """(T, m): what was read, and nothing of it missing."""
        if self.given is not None:
            return self.given
        there = np.isfinite(self.z)
        if self.variance is not None:
            there[:, : self.targets] &= self.variance == 0
        return np.asarray(there, bool)


@dataclass(frozen=True, eq=False)
class SparseTarget:
    """A target that is read seldom: what is left of it since its last reading, and what other columns did since then.

    With a number that keeps ``decay`` of itself from row to row, s[t] - decay^k s[t - k] is the sum over j < k of
    decay^j times what the features of row t - j bring and the noise of that row. So sums of features over the rows
    since the last reading take the place of features; both sides are divided by the size of the summed noise.

    ``blocks``: as in ``BlockMoments``, of n features, the target and the constant.
    """

    target: int
    decay: float
    blocks: tuple[FloatArray, ...]
    counts: FloatArray  # (B,) readings

    def moments(self, weights: FloatArray) -> FloatArray:
        """The symmetric (n + 2, n + 2) sum of all blocks, each times its weight (B,)."""
        total = np.zeros_like(self.blocks[0])
        for weight, block in zip(weights, self.blocks, strict=True):
            total += weight * block
        return _unpacked(total, (int(np.sqrt(8 * len(total) + 1)) - 1) // 2)

    def count(self, weights: FloatArray) -> float:
        """Readings, each counted as its block is weighted."""
        return float(weights @ self.counts)


@dataclass(frozen=True, eq=False)
class BlockMoments:
    """Sums over blocks of rows of products of n features, r targets and a constant, in this order.

    ``blocks``: of each block the upper triangle, row by row, of the symmetric (N, N) sum, N = n + r + 1. ``spans``,
    ``pairs``, ``pair_centre``, ``pair_size``, ``level``, ``scale``, ``low``, ``high``: as in ``Network``; of all pairs.
    ``moving`` (m,): columns that do. ``targets``: r. ``rows``: of the record, whether they could be summed or not.
    ``used``: rows that were summed; where stretches of a long record were taken, each stands for several. ``read``
    (r,): rows of these in which each target was read. ``slow``: targets that are read in few of them.
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
    read: FloatArray
    slow: tuple[SparseTarget, ...] = ()

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

    def absorbed(self, z: FloatArray, read: NDArray[np.bool_] | None = None) -> BlockMoments:
        """The same with the rows that follow, at a cost that depends on these only. Level and scale stay.

        ``z`` (memory + k, m) in the units' own terms: the last ``memory`` rows before, then k new ones, nothing
        missing. ``read`` (k, r): which targets of these were read; rows in which none was are not learned from.
        """
        count = len(z) - self.memory
        read = np.ones((count, self.targets), bool) if read is None else read
        new = np.asarray(read.any(axis=1), bool)
        standard = (z - self.level) / self.scale
        at = self.memory + np.flatnonzero(new)
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
            self, blocks=tuple(blocks), rows=rows, used=self.used + len(at), read=self.read + read.sum(axis=0),
            low=np.minimum(self.low, seen.min(axis=0, initial=np.inf)),
            high=np.maximum(self.high, seen.max(axis=0, initial=-np.inf)),
        )  # fmt: skip

    def restandardised(self) -> BlockMoments:
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

        A product of shifted columns is the old product less the columns that it is made of. ``centre``, ``size``: of
        products.
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
        total = running(standard)
        for begin in range(0, len(at), CHUNK):
            some = at[begin : begin + CHUNK]
            F = np.hstack([self._features(standard, total, some), standard[some, : self.targets]])
            F = np.hstack([F, np.ones((len(some), 1))])
            out += F.T @ F
        return _packed(out)

    def _features(self, standard: FloatArray, total: FloatArray, at: NDArray[np.intp]) -> FloatArray:
        """(rows, n) of rows ``at`` of standardised rows, with their running sums ``total``."""
        means = [(total[at - first + 1] - total[at - last]) / (last - first + 1) for first, last in self.spans]
        return np.hstack([*means, (_multiplied(standard, at, self.pairs) - self.pair_centre) / self.pair_size])

    def block_of(self, row: int) -> int:
        """The block that holds a row of the record."""
        return row // self.length

    def learned_from(self, rows: Rows, block: int | None = None) -> NDArray[np.intp]:
        """Rows of a whole record that are summed, of one block or of all: those in which anything was read."""
        first, last = (0, len(rows.z)) if block is None else (block * self.length, (block + 1) * self.length)
        first = max(first, self.memory)
        return np.asarray(first + np.flatnonzero(rows.read[first:last, : self.targets].any(axis=1)), np.intp)

    def sums(self, rows: Rows, at: NDArray[np.intp]) -> FloatArray:
        """(N, N) over rows ``at`` of a record."""
        return _unpacked(self._sum((rows.z - self.level) / self.scale, at), self.size)

    def columns(self, rows: Rows, at: NDArray[np.intp], chosen: NDArray[np.intp]) -> FloatArray:
        """(rows, chosen + 1): some features of rows ``at``, and the constant."""
        first = int(at[0]) - self.memory
        standard = (rows.z[first : int(at[-1]) + 1] - self.level) / self.scale
        total, at = running(standard), at - first
        m, linear = len(self.level), len(self.spans) * len(self.level)
        plain, bent = chosen[chosen < linear], chosen[chosen >= linear] - linear
        near, far = self.spans[plain // m].T
        ahead, back = at[:, None] - near + 1, at[:, None] - far
        means = (total[ahead, plain % m] - total[back, plain % m]) / (far - near + 1)
        products = (_multiplied(standard, at, self.pairs[bent]) - self.pair_centre[bent]) / self.pair_size[bent]
        return np.hstack([means, products, np.ones((len(at), 1))])

    def slowly(self, rows: Rows, target: int, decay: float) -> tuple[SparseTarget, float]:
        """Sums for a target of a whole record that is read seldom, and the logarithms of what rows were divided by."""
        from scipy.sparse import csr_array

        standard = (rows.z - self.level) / self.scale
        at = np.flatnonzero(rows.read[:, target])
        age = np.diff(at)
        at, before = at[1:], at[:-1]
        good = (before + 1 >= self.memory) & (age <= MOST_AGE)
        at, before, age = at[good], before[good], age[good]
        total, place, divided = running(standard), (rows.first + at) // self.length, 0.0
        blocks = [np.zeros((self.features + 2) * (self.features + 3) // 2)] * -(-self.rows // self.length)
        some = CHUNK // MOST_AGE
        for begin in range(0, len(at), some):
            now, k = at[begin : begin + some], age[begin : begin + some]
            ends = np.cumsum(k)
            back = ends.repeat(k) - 1 - np.arange(ends[-1])  # rows between, oldest first
            between, kept = now.repeat(k) - back, decay**back
            size = np.sqrt(np.add.reduceat(kept**2, ends - k))
            each = np.arange(len(k)).repeat(k)
            sums = csr_array((kept / size.repeat(k), (each, np.arange(len(back)))), (len(k), len(back)))
            left = standard[now, target] - decay**k * standard[before[begin : begin + some], target]
            F = np.empty((len(k), self.features + 2))
            F[:, :-2] = sums @ self._features(standard, total, between)
            F[:, -2], F[:, -1] = left / size, sums.sum(axis=1)
            for b in np.unique(place[begin : begin + some]):
                part = F[place[begin : begin + some] == b]
                blocks[b] = blocks[b] + _packed(part.T @ part)
            divided += float(np.log(size).sum())
        counts = np.bincount(place, minlength=len(blocks)).astype(np.float64)
        return SparseTarget(target, decay, tuple(blocks), counts), divided


def block_moments_of(rows: Rows, like: BlockMoments | None = None, curved: bool = True) -> BlockMoments:
    """One pass over a whole record in which nothing is missing.

    ``like``: standardised as these are. ``curved``: with products of columns.
    """
    z, r = rows.z, rows.targets
    spans = _spans(len(z))
    memory = int(spans[-1, 1])
    at = memory + np.flatnonzero(rows.read[memory:, :r].any(axis=1))
    if len(at) < LEAST_ROWS:
        raise UnidentifiedError(
            f"identification: {len(at)} rows with anything measured after the first {memory} are too few; at least "
            f"{LEAST_ROWS} are needed: record all units over a common period"
        )
    if like is None:
        # what features are made of: the rows after them are targets only; no copy is made of a record without gaps
        before = z[at - 1] if at[-1] - at[0] >= len(at) else z[at[0] - 1 : at[-1]]
        level, spread = before.mean(axis=0), before.std(axis=0)
        moving = _moves(spread, np.abs(z).max(axis=0))
        scale = np.where(moving, spread, 1.0)
    else:
        level, scale, moving = like.level, like.scale, like.moving
    standard = (z - level) / scale
    low, high = (np.where(rows.read, standard, side).T for side in (np.inf, -np.inf))
    pairs = _pairs(rows.owner, len(at)) if curved else np.zeros((0, 2), np.int64)
    none = np.zeros(len(pairs))
    empty = BlockMoments(
        (), spans, pairs, none, none + 1, level, scale, low.min(axis=1), high.max(axis=1), moving, r, len(z), 0,
        np.zeros(r),
    )  # fmt: skip
    most = int(MOST_WORK / (2.0 * empty.size**2))
    parts = np.split(at, np.searchsorted(at, np.arange(empty.length, len(z), empty.length)))
    taken = parts if len(at) <= most else [part[: max(most // len(parts), 1)] for part in parts]
    summed = np.concatenate(taken)
    if like is None or not curved:
        centre, size = _pair_scale(standard, summed, pairs)
    else:
        centre, size = like.pair_centre, like.pair_size
    empty = replace(empty, pair_centre=centre, pair_size=size)
    stand_for = [len(part) / max(len(some), 1) for part, some in zip(parts, taken, strict=True)]
    blocks = tuple(each * empty._sum(standard, some) for each, some in zip(stand_for, taken, strict=True))
    read = rows.read[summed, :r].sum(axis=0) * (len(at) / len(summed))
    return replace(empty, blocks=blocks, used=len(summed), read=read)


def block_length(rows: int) -> int:
    """Rows of a block in a record of so many rows."""
    return 1 << max(-(-rows // MOST_BLOCKS) - 1, 0).bit_length()


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
    mean = recent(z, at)
    return np.asarray(mean[:, pairs[:, 0]] * mean[:, pairs[:, 1]])


def _pair_scale(z: FloatArray, at: NDArray[np.intp], pairs: IntArray) -> tuple[FloatArray, FloatArray]:
    """Mean and standard deviation of products over rows ``at``."""
    parts = [at[begin : begin + CHUNK] for begin in range(0, len(at), CHUNK)]
    centre = np.sum([_multiplied(z, some, pairs).sum(axis=0) for some in parts], axis=0) / len(at)
    square = np.sum([np.square(_multiplied(z, some, pairs) - centre).sum(axis=0) for some in parts], axis=0) / len(at)
    return centre, _size(np.sqrt(square))


def _spans(rows: int) -> IntArray:
    """As long a memory as so many rows carry."""
    return np.asarray(SPANS[: int((SPANS[:, 1] <= max(rows // 8, 4)).sum())], np.int64)


def _pairs(owner: IntArray, rows: int) -> IntArray:
    """Pairs of columns that may be multiplied, (k, 2): all of them if they are few, else those of one unit, or none."""
    one, two = np.triu_indices(len(owner))
    for some in (np.ones(len(one), bool), owner[one] == owner[two]):
        if some.sum() <= min(MOST_PRODUCTS, 2 * rows):
            return np.stack([one[some], two[some]], axis=1).astype(np.int64)
    return np.zeros((0, 2), np.int64)
