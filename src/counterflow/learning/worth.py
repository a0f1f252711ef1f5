"""What products of columns, and learners, are worth: free runs over rows that were held out.

One row ahead is no judge. There products gain in any record, and long runs of them can be worse; and whoever learns
most from other units' numbers foretells best where something unrecorded moves several units, and takes them for causes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.learning.block_moments import BlockMoments, Rows
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.regime_sums import RegimeSums
from counterflow.learning.regression import Found, Learner, network_of, way_weights
from counterflow.learning.ridge_learner import Ridge
from counterflow.learning.sparse_learner import JUDGE

FOLDS = 5  # in which rows are held out in turn
NEAR = 40  # rows of the runs that judge products
FAR = 120  # rows, at most, of those that judge learners, and
LATE = 3  # after a third of them the start is forgotten: what inputs did is all that is foretold
MOST_STARTS = 400  # of a fold
BATCHES = 20  # of starts that follow one another: their means say how sure the gain of products is
WILD = 1e3  # times the usual error that counts at most
SURELY = 3.0  # standard errors by which least squares, or ridge with products, must err less than ridge
MUCH = 2.0  # times the squared error of the best ensemble, beyond which the sparse learner may have no members


def worth_of(
    rows: Rows, products: BlockMoments, known: KnownEdges | None, ways: RegimeSums, others: Sequence[Ridge], count: int
) -> tuple[tuple[float, float], tuple[int, ...]]:
    """By how much products reduce the sparse learner's squared error, a share and in standard errors.

    And how many of ``count`` members the sparse learner and each of the ``others`` are worth. Of these the second and
    third have some only if they surely err less than the first.
    """
    bent = bool(len(products.pairs))
    learners: list[tuple[Learner, bool]] = [(JUDGE, False), *([(JUDGE, True)] if bent else [])]
    near: list[FloatArray] = []
    far: list[FloatArray] = []
    z = (rows.z - products.level) / products.scale
    for draw, inside in _folds(rows, products):
        found = [
            way_weights(rows, products, draw, learner, known, curved, ways)
            for learner, curved in [*learners, *((one, True) for one in others)]
        ]
        near += _errors(rows, products, ways, z, found[: len(learners)], _starts(inside, len(z), NEAR), NEAR)
        long = int(np.clip(len(inside) // 2, 1, FAR))
        far += _errors(rows, products, ways, z, found, _starts(inside, int(inside[-1]) + 1, long), long)
    if sum(each.shape[1] for each in near) < BATCHES or not any(each.any() for each in near) or not far:
        return (0.0, 0.0), (count, *[0] * len(others))
    bend = _bend(np.concatenate(near, axis=1)) if bent else (0.0, 0.0)
    rest = min(each.shape[2] - each.shape[2] // LATE for each in far)
    late = np.concatenate([each[:, :, -rest:] for each in far], axis=1)
    late = np.delete(late, int(bend[0] <= 0), axis=0) if bent else late  # of the sparse learner only what is used
    late = late / np.sqrt(np.maximum(np.square(late[0]).mean(axis=(0, 1)), 1e-12))
    together = np.einsum("intr,jntr->nij", late, late)
    gaps = together.diagonal(axis1=1, axis2=2) - together[:, 1, 1, None]
    better = gaps.mean(axis=0) + SURELY * gaps.std(axis=0) / np.sqrt(len(gaps)) < 0
    kept = np.flatnonzero(better | (np.arange(len(better)) <= 1))
    members = np.zeros(len(better), int)
    members[kept] = shared_out(together[:, kept][:, :, kept], count)
    return bend, tuple(members.tolist())


def shared_out(products: FloatArray, count: int) -> tuple[int, ...]:
    """How many of so many members each learner has: those with which runs surely err least together.

    ``products`` (n, L, L): sums of products of the learners' errors, for each run. What members do better than the
    first learner alone must be clear of chance. Unless that one errs much more than the best, it keeps some members:
    where it disagrees with the others, the answer is not sure.
    """
    learners = products.shape[1]
    counts = np.array([each for each in np.ndindex(*[count + 1] * learners) if sum(each) == count])
    errors = np.einsum("ci,nij,cj->cn", counts, products, counts) / count**2
    alone = products[:, 0, 0]
    gains = errors - alone
    risk = gains.mean(axis=1) + gains.std(axis=1) / np.sqrt(len(products))
    if alone.mean() <= MUCH * errors[np.argmin(risk)].mean():
        risk[counts[:, 0] < count // 4] = np.inf
    return tuple(counts[np.argmin(risk)].tolist())


def _folds(rows: Rows, products: BlockMoments) -> Iterator[tuple[FloatArray, NDArray[np.intp]]]:
    """Weights (B,) of the blocks without those of a fold, and the rows of the fold that are kept."""
    at = np.arange(products.memory, len(rows.z))
    block = (rows.first + at) // products.length
    blocks = np.unique(block)
    for part in np.array_split(blocks, min(FOLDS, len(blocks))):
        left = np.isin(np.arange(len(products.blocks)), part, invert=True)
        yield left.astype(np.float64), at[np.isin(block, part)]


def _starts(at: NDArray[np.intp], rows: int, ahead: int) -> NDArray[np.intp]:
    """Rows of ``at`` that are followed by as many rows as are looked ahead, half that far apart."""
    some = at[:: max(ahead // 2, 1)]
    some = some[some + ahead < rows]
    return np.asarray(some[:: max(1, len(some) // MOST_STARTS)], np.intp)


def _errors(
    rows: Rows, products: BlockMoments, ways: RegimeSums, z: FloatArray, found: Sequence[Found],
    starts: NDArray[np.intp], ahead: int,
) -> list[FloatArray]:  # fmt: skip
    """(L, n, ahead, r) of the runs of each learner's weights from rows of z, zero where nothing was read; or none.

    A run stays in one way of running.
    """
    changed, r = np.array([change.at for change in ways.changes], np.intp), rows.targets
    way = np.searchsorted(changed, starts, "right")
    same = way == np.searchsorted(changed, starts + ahead, "right")
    starts, way = starts[same], way[same]
    if not len(starts):
        return []
    window = starts[:, None] + 1 + np.arange(ahead)
    truth, out = z[window, :r], np.empty((len(found), *window.shape, r))
    for errors, (weights, _, left, _, levels) in zip(out, found, strict=True):
        for w in np.unique(way).tolist():
            network = network_of(rows, products, weights[None, w], left[None], levels[None, w], ways, w)
            errors[way == w] = network.free_runs(z, starts[way == w], ahead) - truth[way == w]
    return [np.where(rows.read[window, :r], np.nan_to_num(out, nan=WILD).clip(-WILD, WILD), 0.0)]


def _bend(errors: FloatArray) -> tuple[float, float]:
    """Fall of the squared error from linear runs to curved ones (2, n, ahead, r); the same in standard errors."""
    squares = np.square(errors)
    gain = np.minimum((squares[0] - squares[1]) / np.maximum(squares[0].mean(axis=(0, 1)), 1e-12), WILD)
    every = gain.mean(axis=(1, 2))
    batches = np.array([part.mean() for part in np.array_split(every, BATCHES)])
    error = float(batches.std(ddof=1)) / np.sqrt(BATCHES)
    return float(every.mean()), float(every.mean()) / error if error > 0 else 0.0
