"""What the filter and the smoother return."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.filtering.time_varying import Rows


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

    ``predicted`` (T+1, P): E[h[t] | y[0..t-1]]; row 0 is the initial mean. ``filtered`` (T+1, P): E[h[t] | y[0..t]].
    ``log_likelihood``: of every measured number. ``shared_innovations`` (T+1, r): of the rows of each Run; of Rows, see
    ``innovations``. ``runs``: the covariances, without repetition; the smoother reads them.
    """

    predicted: FloatArray
    filtered: FloatArray
    log_likelihood: float
    shared_innovations: FloatArray = field(repr=False)
    runs: tuple[Run | Rows, ...] = field(repr=False)

    @cached_property
    def innovations(self) -> FloatArray:
        """What each row brought that was new (T+1, r), compressed to what tells about the state and whitened.

        Independent standard normal numbers if the model is right. Zero where less was measured.
        """
        each = [run for run in self.runs if isinstance(run, Rows)]
        if not each:
            return self.shared_innovations
        out = np.array(self.shared_innovations)
        for run in each:
            out[run.start : run.stop, : run.residual.shape[1]] = run.innovations
        return freeze(out)

    @cached_property
    def slopes(self) -> FloatArray:
        """Derivative of each row's log-likelihood in its predicted state (T+1, P): C~' S^-1 (s - C~ p)."""
        out = np.zeros_like(self.predicted)
        for run in self.runs:
            at = slice(run.start, run.stop)
            if isinstance(run, Rows):
                out[at] = run.slope
            else:
                out[at] = self.shared_innovations[at, : run.score.shape[1]] @ run.score.T
        return freeze(out)

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
    """State estimates of every row, given all measurements; the others if asked for.

    ``smoothed`` (T+1, P): E[h[t] | y[0..T]]; ``covariance`` (T+1, P, P). ``covariance_sum``, ``lag_covariance_sum`` (P,
    P): over all rows of it and of Cov[h[t+1], h[t] | y[0..T]]. ``first_covariance``, ``last_covariance``: of rows 0 and
    T.
    """

    smoothed: FloatArray
    covariance: FloatArray | None = field(default=None, repr=False)
    covariance_sum: FloatArray | None = field(default=None, repr=False)
    lag_covariance_sum: FloatArray | None = field(default=None, repr=False)
    first_covariance: FloatArray | None = field(default=None, repr=False)
    last_covariance: FloatArray | None = field(default=None, repr=False)


def freeze(array: FloatArray) -> FloatArray:
    """Make an array of a result read-only."""
    array.flags.writeable = False
    return array
