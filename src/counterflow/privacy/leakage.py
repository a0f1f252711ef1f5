"""The leakage meter: what can be computed of a unit's measurements from all that a server has seen.

It takes the strongest linear reader: one who has been given a stretch of the measurements together with what was seen,
has fitted the best linear map from one to the other, and now reads the rest of the record. Whatever is known in this
way was told by the protocol; that nothing is known in this way is no proof that nothing leaks (that is what
differential privacy proves).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import DataError, OptionError

_SAME = 1e-13  # columns that agree to so many digits (of the largest) are one column
_ROWS_PER_NUMBER = 4  # rows to learn from for each number of the linear map's rows
_HELD_OUT = 0.25  # share of the rows, at the end, that are read; the map is learned on those before
_EXACT = 1e-3  # share of its standard deviation below which the error of a known combination lies


@dataclass(frozen=True, eq=False)
class Leakage:
    """What the reader knows of y[t], on rows that he has not learned from.

    ``rank``: how many linear combinations of y[t] he knows exactly (to a thousandth of their standard deviation).
    ``known``: R² by direction, best known first, one for each of the ``directions`` in which y moves.
    ``reconstruction_error``: size of what he gets wrong over the size of what there is to know, over all channels in
    their own standard deviations; 0: he reads everything, 1: nothing.
    """

    rank: int
    directions: int
    known: FloatArray
    reconstruction_error: float
    rows: int  # that were read

    def summary(self) -> str:
        """Two sentences for a report."""
        told = "none" if self.rank == 0 else "all" if self.rank == self.directions else str(self.rank)
        return (
            f"{told} of {self.directions} directions of the measurements known exactly; "
            f"best linear reconstruction off by {100 * self.reconstruction_error:.3g} % "
            f"(R² by direction: {', '.join(f'{round(value, 4):g}' for value in self.known)})"
        )


def leakage(seen: FloatArray, y: FloatArray, *, lags: int = 0) -> Leakage:
    """How much of the measurements y can be read from what was seen.

    Parameters
    ----------
    seen : (n, k) any numbers that were seen, one row for each row of y; rows with NaN are left out.
    y : (n, D) measurements.
    lags : the reader also looks at so many rows of ``seen`` before and after each row.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> y = rng.normal(size=(1000, 3))
    >>> leakage(y @ [[1.0], [2.0], [3.0]], y).rank
    1
    >>> print(leakage(y + rng.normal(size=y.shape), y).summary())
    none of 3 directions of the measurements known exactly; best linear reconstruction off by 71.5 %
    (R² by direction: 0.5471, 0.4637, 0.4541)
    """
    if seen.ndim != 2 or y.ndim != 2 or len(seen) != len(y) or y.shape[1] < 1:
        raise DataError(
            f"leakage: seen and y must have one row for the same times, and y a column; got {seen.shape} and {y.shape}"
        )
    if not 0 <= 2 * lags < len(y):
        raise OptionError(f"leakage: lags must be a whole number from 0 to less than half the rows, got {lags!r}")
    rows = len(y) - 2 * lags
    features = np.hstack([seen[k : k + rows] for k in range(2 * lags + 1)])
    target = y[lags : lags + rows]
    whole = np.isfinite(features).all(axis=1) & np.isfinite(target).all(axis=1)
    features, target = features[whole], target[whole]
    learned = round(len(target) * (1 - _HELD_OUT))
    if learned < 2 or learned == len(target):
        raise DataError(f"leakage: {len(target)} rows in which all is known are too few to learn from and to read")
    basis, read_basis = _independent(features, learned)
    level, scale = target[:learned].mean(axis=0), target[:learned].std(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    standard = (target - level) / scale
    needed = _ROWS_PER_NUMBER * (basis.shape[1] + standard.shape[1])
    if learned < needed:
        raise DataError(
            f"leakage: {learned} rows to learn from are too few for {basis.shape[1]} independent numbers seen a row; "
            f"give {needed}, or fewer columns or lags"
        )
    coefficients = basis.T @ standard[:learned]
    missed = standard[:learned] - basis @ coefficients
    wrong, there = standard[learned:] - read_basis @ coefficients, standard[learned:]

    # Directions, best known first: of y made white, those in which least is missed.
    _, spread, axes = np.linalg.svd(standard[:learned], full_matrices=False)
    moves = spread > _SAME * max(spread.max(initial=0.0), 1e-300) * len(axes)
    white = axes[moves].T / spread[moves]
    _, _, order = np.linalg.svd(missed @ white, full_matrices=False)
    directions = white @ order[::-1].T
    share = _lengths(wrong @ directions) / np.maximum(_lengths(there @ directions), 1e-300)
    share = np.sort(share)
    total = float(np.linalg.norm(wrong)) / max(float(np.linalg.norm(there)), 1e-300)
    known = np.maximum(0.0, 1 - share**2)
    return Leakage(int((share < _EXACT).sum()), len(share), known, total, len(there))


def _independent(features: FloatArray, learned: int) -> tuple[FloatArray, FloatArray]:
    """Orthonormal columns, on the first rows, that span the features there; and the same combinations on the others.

    The constant is taken out first. Columns are brought to one size, so that small ones count as well.
    """
    centred = features - features[:learned].mean(axis=0)
    size = _lengths(centred[:learned])
    largest = np.abs(features[:learned]).max(axis=0, initial=0.0) * np.sqrt(learned)
    moving = size > _SAME * largest  # others are constant but for rounding
    centred = centred[:, moving] / size[moving]
    left, values, right = np.linalg.svd(centred[:learned], full_matrices=False)
    kept = values > _SAME * values.max(initial=0.0)
    return left[:, kept], centred[learned:] @ (right[kept].T / values[kept])


def _lengths(columns: FloatArray) -> FloatArray:
    return np.asarray(np.linalg.norm(columns, axis=0), np.float64)
