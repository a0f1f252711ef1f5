"""What the filter and the smoother return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from counterflow.arrays import FloatArray


class Run(NamedTuple):
    """Rows ``start`` to ``stop - 1``, which share one covariance and one gain."""

    start: int
    stop: int
    predicted: FloatArray  # X (P, P), before the measurement
    filtered: FloatArray  # after it
    observation: FloatArray  # C~ (r, P)
    score: FloatArray  # N (P, r): the filtered mean is the predicted one plus X N times the innovation


@dataclass(frozen=True)
class FilterResult:
    """State estimates of every row, given the measurements up to that row.

    Attributes
    ----------
    predicted : (T+1, P) array
        E[h[t] | y[0..t-1]]; row 0 is the initial mean.
    filtered : (T+1, P) array
        E[h[t] | y[0..t]].
    log_likelihood : float
        Of every measured number.
    innovations : (T+1, r) array
        What each row brought that was new, compressed to the r directions that tell about the state and whitened:
        independent standard normal numbers if the model is right. Zero where less was measured.
    initialisation : str
        ``"given"``, ``"stationary"`` or ``"vague"``: where the initial covariance came from.
    steady_from : int or None
        First row from which a constant gain was used; None if the covariance never settled.
    predicted_covariance, filtered_covariance : (T+1, P, P) array or None
        Only if asked for.
    runs : tuple of Run
        The same covariances without repetition; the smoother reads them.
    """

    predicted: FloatArray
    filtered: FloatArray
    log_likelihood: float
    innovations: FloatArray = field(repr=False)
    initialisation: str
    steady_from: int | None
    predicted_covariance: FloatArray | None = field(repr=False)
    filtered_covariance: FloatArray | None = field(repr=False)
    runs: tuple[Run, ...] = field(repr=False)

    @property
    def final_mean(self) -> FloatArray:
        """(P,) filtered mean of the last row, where a forecast starts."""
        mean: FloatArray = self.filtered[-1]
        return mean

    @property
    def final_covariance(self) -> FloatArray:
        """(P, P) filtered covariance of the last row."""
        return self.runs[-1].filtered


@dataclass(frozen=True)
class SmootherResult:
    """State estimates of every row, given all measurements.

    Attributes
    ----------
    smoothed : (T+1, P) array
        E[h[t] | y[0..T]].
    covariance : (T+1, P, P) array or None
        Cov[h[t] | y[0..T]], if asked for.
    lag_covariance : (T, P, P) array or None
        Row t is Cov[h[t+1], h[t] | y[0..T]], if asked for.
    covariance_sum, lag_covariance_sum : (P, P) array or None
        Their sums over all rows, if asked for; computed without keeping the rows.
    first_covariance, last_covariance : (P, P) array or None
        Rows 0 and T of `covariance`, whenever covariances or sums were asked for.
    group_sums : (k, P, P) array or None
        Sums of Cov[h[t] | y[0..T]] over the rows of each label, if labels were given.
    """

    smoothed: FloatArray
    covariance: FloatArray | None = field(default=None, repr=False)
    lag_covariance: FloatArray | None = field(default=None, repr=False)
    covariance_sum: FloatArray | None = field(default=None, repr=False)
    lag_covariance_sum: FloatArray | None = field(default=None, repr=False)
    first_covariance: FloatArray | None = field(default=None, repr=False)
    last_covariance: FloatArray | None = field(default=None, repr=False)
    group_sums: FloatArray | None = field(default=None, repr=False)


def expand(runs: Sequence[Run], of: Callable[[Run], FloatArray]) -> FloatArray:
    """Repeat one matrix of each run over its rows: (T+1, ...)."""
    rows = np.empty((runs[-1].stop, *of(runs[0]).shape))
    for run in runs:
        rows[run.start : run.stop] = of(run)
    return rows


def freeze(array: FloatArray) -> FloatArray:
    """Make an array of a result read-only."""
    array.flags.writeable = False
    return array
