"""Sums of products: those of features made one by one, the same however the rows come, in any standardisation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tolerances import LONG

from counterflow.learning import block_moments as module
from counterflow.learning.block_moments import MOST_BLOCKS, BlockMoments, Rows, block_length, block_moments_of
from counterflow.learning.network_learning import REPLICATES, block_weights


def record(rows: int, seed: int = 0, drift: float = 0.0) -> Rows:
    """Three units of one number, one with an input; ``drift``: how far levels and scales move over the record."""
    z = np.random.default_rng(seed).standard_normal((rows, 4)).cumsum(axis=0) * 0.05
    z += np.random.default_rng(seed + 1).standard_normal((rows, 4)) + np.array([5.0, -3.0, 0.0, 100.0])
    ramp = drift * np.linspace(0, 1, rows)[:, None]
    return Rows(("a", "b", "c"), (1, 1, 1), (1, 0, 0), z * (1 + ramp) + ramp * [1.0, -2.0, 3.0, 4.0])


def plainly(found: BlockMoments, rows: Rows) -> tuple[list[np.ndarray], list[int]]:
    """The sums of every block, of features made row by row, and the rows."""
    z = rows.z
    standard = (z - found.level) / found.scale
    at = [t for t in range(found.memory, len(z)) if rows.read[t, :3].any()]
    sums = [np.zeros((found.size, found.size)) for _ in range(-(-len(z) // found.length))]
    for t in at:
        means = [standard[t - last : t - first + 1].mean(axis=0) for first, last in found.spans]
        recent = standard[t - 2 : t].mean(axis=0)
        bent = [
            (recent[i] * recent[j] - c) / s
            for (i, j), c, s in zip(found.pairs, found.pair_centre, found.pair_size, strict=True)
        ]
        f = np.concatenate([*means, bent, standard[t, :3], [1.0]])
        sums[t // found.length] += np.outer(f, f)
    return sums, at


def close(one: np.ndarray, two: np.ndarray) -> None:
    np.testing.assert_allclose(one, two, rtol=LONG, atol=LONG * np.abs(two).max())


def alike(one: BlockMoments, two: BlockMoments) -> None:
    """Equal in all that is learned from."""
    assert (one.rows, one.used, one.targets, len(one.blocks)) == (two.rows, two.used, two.targets, len(two.blocks))
    assert np.array_equal(one.spans, two.spans)
    assert np.array_equal(one.pairs, two.pairs)
    assert np.array_equal(one.moving, two.moving)
    for name in ("pair_centre", "pair_size", "level", "scale", "low", "high", "counts", "read"):
        close(getattr(one, name), getattr(two, name))
    for a, b in zip(one.blocks, two.blocks, strict=True):
        close(a, b)


def test_sums_by_block_are_sums_over_the_rows():
    rows = record(300)
    read = np.ones(rows.z.shape, bool)
    read[100:104, :3] = False  # nothing at all
    read[200:210, 1] = False
    rows = replace(rows, given=read)
    found = block_moments_of(rows)
    sums, at = plainly(found, rows)
    np.testing.assert_array_equal(found.read, read[at, :3].sum(axis=0))
    close(found.moments(), sum(sums))
    weights = np.random.default_rng(3).exponential(size=len(sums))
    close(found.moments(weights), sum(w * s for w, s in zip(weights, sums, strict=True)))
    assert found.count == found.used == len(at)
    # the rows that features are made of have mean 0 and deviation 1, and so have the products
    n = found.features
    mean, square = found.moments()[:n, -1] / len(at), np.diag(found.moments())[:n] / len(at)
    standard = np.r_[:4, n - len(found.pairs) : n]
    np.testing.assert_allclose(mean[standard], 0, atol=LONG)
    np.testing.assert_allclose(square[standard], 1, rtol=LONG)


@pytest.mark.parametrize("rows", [1, 16, 31, 32, 33, 63, 64, 65, 100, 1000, 1024, 1025, 2048, 5000, 123_456])
def test_the_number_of_blocks_is_bounded(rows):
    length = block_length(rows)
    assert length & (length - 1) == 0
    assert -(-rows // length) <= MOST_BLOCKS
    assert length == 1 or -(-rows // (length // 2)) > MOST_BLOCKS


@pytest.mark.parametrize("steps", [(2, 3), (7, 64, 1), (512,)])
def test_rows_that_come_by_and_by_give_the_sums_of_one_pass(steps):
    """With doublings of the blocks, gaps, and a level and a scale that move."""
    rows = record(1500, drift=1.0)
    z, read = rows.z, np.ones(rows.z.shape, bool)
    for gap in (420, 900, 905, 1300):
        read[gap : gap + 3, gap % 3] = False
    read[700:703, :3] = False
    first = 600
    found = block_moments_of(replace(rows, z=z[:first], given=read[:first]))
    assert found.length == 32
    k = 0
    while found.rows < len(z):
        stop = min(found.rows + steps[k % len(steps)], len(z))
        there = read[found.rows : stop, :3]
        found, k = found.absorbed(z[found.rows - found.memory : stop], there), k + 1
    whole = block_moments_of(replace(rows, given=read))
    assert found.length == whole.length == 64
    assert not np.allclose(found.level, whole.level)
    alike(found.restandardised(), whole)
    alike(whole.restandardised(), whole)


def test_only_new_rows_are_read(monkeypatch):
    """However many there were before."""
    rows, read = record(4000), []
    found = block_moments_of(replace(rows, z=rows.z[:500]))
    summed = BlockMoments._sum
    monkeypatch.setattr(BlockMoments, "_sum", lambda self, z, at: read.append((len(z), len(at))) or summed(self, z, at))
    while found.rows < 4000:
        read.clear()
        before = found
        found = found.absorbed(rows.z[found.rows - found.memory : found.rows + 10])
        assert sum(at for _, at in read) == 10
        assert max(size for size, _ in read) == 10 + found.memory
        same = sum(a is b for a, b in zip(before.blocks, found.blocks, strict=False))
        assert same >= len(before.blocks) - 1 or found.length > before.length  # the others are not even copied


def test_rows_that_may_not_be_learned_from_are_left_out():
    rows = record(700)
    found = block_moments_of(replace(rows, z=rows.z[:600]))
    learnable = np.random.default_rng(2).random(100) < 0.5
    some = found.absorbed(rows.z[600 - found.memory :], np.repeat(learnable[:, None], 3, axis=1))
    assert some.rows == 700
    assert some.count == found.count + learnable.sum()
    parts = [
        found.absorbed(rows.z[600 - found.memory :], np.repeat(np.eye(100, dtype=bool)[k][:, None], 3, axis=1))
        for k in np.flatnonzero(learnable)
    ]
    total = sum((part.moments() - found.moments() for part in parts), found.moments())
    close(some.moments(), total)


def test_a_column_that_never_moved_may_move_later():
    """It had no scale of its own; afterwards it has that of all rows, as if it had been known from the start."""
    rows = record(1200)
    rows.z[:500, 3] = 7.0
    first = block_moments_of(replace(rows, z=rows.z[:500]))
    assert first.moving.tolist() == [True, True, True, False]
    later = first.absorbed(rows.z[500 - first.memory :])
    assert later.moving.tolist() == first.moving.tolist()
    alike(later.restandardised(), block_moments_of(rows))
    assert later.restandardised().moving.all()


def test_of_very_long_records_stretches_stand_for_all_rows(monkeypatch):
    rows = record(2000)
    whole = block_moments_of(rows)
    monkeypatch.setattr(module, "MOST_WORK", 2.0 * whole.size**2 * 640)
    some = block_moments_of(rows)
    assert some.used == np.minimum(whole.counts, 640 // len(whole.blocks)).sum() < whole.used
    np.testing.assert_allclose(some.counts, whole.counts)
    later = some.absorbed(np.vstack([rows.z[-some.memory :], rows.z[:10]]))
    assert later.count == whole.count + 10


def test_random_weights_of_a_block_stay_while_rows_are_added():
    rows = record(900)
    one, two = block_moments_of(replace(rows, z=rows.z[:700])), block_moments_of(rows)
    assert one.length == two.length
    a, b = block_weights(one), block_weights(two)
    assert a.shape == (REPLICATES, len(one.blocks))
    np.testing.assert_allclose(a @ one.counts, one.count)
    np.testing.assert_allclose(b @ two.counts, two.count)
    shared = a.shape[1]
    assert shared < b.shape[1]
    ratio = b[:, :shared] / a
    np.testing.assert_allclose(ratio, np.repeat(ratio[:, :1], shared, axis=1), rtol=LONG)
    assert len(np.unique(a[0])) == shared
