"""The Kalman filter over a whole record.

    h[t] = A h[t-1] + B u[t-1] + w[t-1],   w ~ N(0, Q)
    y[t] = C h[t] + v[t],                  v ~ N(0, R)        h[0] ~ N(m0, P0) before y[0] is seen

Covariances do not depend on the data, and settle. So the record is cut into stretches of rows that see the state alike;
in each, the recursion is stepped until the covariance has settled, and from there on the gain is constant and the means
are one linear recurrence, computed as matrix products. Rows that differ too often for that are stepped many at a time
(`time_varying`). Nothing is approximated: the means equal those of a row-by-row filter to rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import DataError, ModelError
from counterflow.filtering.compression import compress_rows
from counterflow.filtering.covariances import (
    NOT_POSITIVE,
    Convergence,
    closed_loop,
    default_covariance,
    predict,
    spectral_radius,
    update,
)  # fmt: skip
from counterflow.filtering.products import product, triangular_solve
from counterflow.filtering.time_varying import Rows, predicted_covariances, recurrence
from counterflow.recurrence import linear_recurrence

_LONG = 1000  # rows alike that are worth settling for; fewer are filtered faster as rows that differ
_CHUNK = 65536  # rows that differ at a time, so that working memory does not grow with the record
_GROWING = 1.0 + 1e-9  # closed loops beyond this radius are stepped row by row, so that overflow can be told


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
    ``log_likelihood``: of every measured number. ``innovations`` (T+1, r): what the rows of each Run brought that was
    new, whitened; zero for Rows. ``runs``: the covariances, without repetition; the smoother reads them.
    """

    predicted: FloatArray
    filtered: FloatArray
    log_likelihood: float
    innovations: FloatArray = field(repr=False)
    runs: tuple[Run | Rows, ...] = field(repr=False)

    @cached_property
    def slopes(self) -> FloatArray:
        """Derivative of each row's log-likelihood in its predicted state (T+1, P): C~' S^-1 (s - C~ p)."""
        out = np.zeros_like(self.predicted)
        for run in self.runs:
            at = slice(run.start, run.stop)
            if isinstance(run, Rows):
                out[at] = run.slope
            else:
                out[at] = self.innovations[at, : run.score.shape[1]] @ run.score.T
        return out

    @property
    def final_mean(self) -> FloatArray:
        """(P,) filtered mean of the last row, where a forecast starts."""
        return np.asarray(self.filtered[-1])

    @property
    def final_covariance(self) -> FloatArray:
        """(P, P) filtered covariance of the last row."""
        return self.runs[-1].filtered


def kalman_filter(
    y: FloatArray, u: FloatArray, A: FloatArray, B: FloatArray, C: FloatArray, Q: FloatArray, R: FloatArray, *,
    initial_mean: FloatArray | None = None, initial_covariance: FloatArray | None = None,
) -> FilterResult:  # fmt: skip
    """Estimate the state in every row from the measurements up to that row.

    ``y`` (T+1, D), NaN where missing. ``u`` (T+1, U): row t acts on row t+1, so the last row is never used. ``C``
    (D, P) of all rows, or (T+1, D, P) of each, with R the identity. Q may be singular. ``initial_mean`` and
    ``initial_covariance``: of h[0] before y[0] is seen, by default zeros and the stationary covariance for the modes
    of A that have one. Modes on or outside the unit circle (integrators) get a vague one, see ``default_covariance``:
    wide compared with the noise, not with the data.

    UnstableError if no initial covariance is given and a mode that does not decay is never seen by any measurement.
    """
    pass_ = _Pass(y, u, A, B, C, Q, R, initial_mean, initial_covariance)
    with np.errstate(over="ignore", invalid="ignore"):  # overflow is told below, in words
        pass_.run()
    if not (math.isfinite(pass_.log_likelihood) and np.isfinite(pass_.filtered[-1]).all()):
        raise DataError(
            "the estimates overflow: y, u or initial_mean is too large for double precision, "
            "or the filter has no gain on an unstable state (Q and initial_covariance both zero there)"
        )
    return FilterResult(pass_.predicted, pass_.filtered, pass_.log_likelihood, pass_.innovations, tuple(pass_.runs))


class _Pass:
    """One pass over a record; holds the prediction of the row to come and what has been kept of the rows before."""

    def __init__(
        self, y: FloatArray, u: FloatArray, A: FloatArray, B: FloatArray, C: FloatArray, Q: FloatArray, R: FloatArray,
        mean: FloatArray | None, covariance: FloatArray | None,
    ) -> None:  # fmt: skip
        self.A, self.Q, self.seen = A, (Q + Q.T) / 2, compress_rows(y, C, R)
        n, P = len(y), len(A)
        self.drive = np.zeros((n, P))  # what the inputs of a row add to the state of the following one
        product(u[:-1], np.ascontiguousarray(B.T), self.drive[:-1])
        self.mean = np.zeros(P) if mean is None else np.array(mean, np.float64)
        if covariance is None:
            white = np.linalg.solve(np.linalg.cholesky(R), C if C.ndim == 3 else C[None])
            typical = np.asarray(np.linalg.qr(white.reshape(-1, P), mode="r"), np.float64) / math.sqrt(len(white))
            covariance = default_covariance(A, Q, typical)[1]
        self.covariance = (covariance + covariance.T) / 2
        self.predicted, self.filtered = np.empty((n, P)), np.empty((n, P))
        self.innovations = np.zeros((n, self.seen.observation.shape[1]))
        self.runs: list[Run | Rows] = []
        self.log_likelihood = self.seen.constant

    def run(self) -> None:
        kinds, n = self.seen.kinds, len(self.drive)
        edges = np.flatnonzero(np.diff(kinds)) + 1
        starts, stops = np.concatenate([[0], edges]), np.concatenate([edges, [n]])
        long, at = stops - starts >= min(_LONG, n), 0
        for start, stop in [*zip(starts[long].tolist(), stops[long].tolist(), strict=True), (n, n)]:
            for first in range(at, start, _CHUNK):
                self._differing(first, min(first + _CHUNK, start))
            if start < stop:
                self._alike(start, stop, self.seen.observation[kinds[start]])
            at = stop

    def _differing(self, first: int, last: int) -> None:
        """Rows that differ in missing channels or in how they see the state."""
        A, C, s = self.A, self.seen.observation[self.seen.kinds[first:last]], self.seen.values[first:last]
        try:
            X, blocks = predicted_covariances(C, s, A, self.Q, self.covariance)
            factor = np.asarray(np.linalg.cholesky(C @ X @ C.transpose(0, 2, 1) + np.eye(C.shape[1])), np.float64)
        except np.linalg.LinAlgError:
            raise ModelError(NOT_POSITIVE) from None
        told = blocks.told.reshape(-1, len(A))[: last - first]  # C~' S^-1 s, and X times it is K s
        p, self.mean = recurrence(_times(X, told) @ A.T + self.drive[first:last], self.mean, blocks)
        residual = s - _times(C, p)
        filtered = update(X[-1], C[-1]).filtered
        slope = told - _times(blocks.said.reshape(-1, *X.shape[1:])[: last - first], p)
        x = p + _times(X, slope)
        white = s - _times(C, x)  # S^-1 of the residual
        self.log_likelihood -= 0.5 * float(np.einsum("ij,ij->", residual, white))
        self.log_likelihood -= float(np.log(np.einsum("nii->ni", factor)).sum())
        self.predicted[first:last], self.filtered[first:last] = p, x
        self.runs.append(Rows(first, last, X, filtered, C, slope, blocks))
        self.covariance = predict(filtered, A, self.Q)

    def _alike(self, start: int, stop: int, observation: FloatArray) -> None:
        """Rows that see the state alike: step until the covariance has settled."""
        from scipy.linalg.lapack import dtrtrs

        convergence = Convergence()
        for t in range(start, stop):
            change = update(self.covariance, observation)
            settled = convergence.reached(self.covariance, change, self.A)
            if settled and spectral_radius(closed_loop(self.A, change)) <= _GROWING:
                self._settled(t, stop, observation)
                return
            innovation = dtrtrs(change.factor, self.seen.values[t] - observation @ self.mean, lower=1)[0]
            self.predicted[t], self.filtered[t] = self.mean, self.mean + change.gain @ innovation
            self.innovations[t] = innovation
            self.log_likelihood -= 0.5 * float(innovation @ innovation) + change.log_det
            self.runs.append(Run(t, t + 1, self.covariance, change.filtered, observation, change.score))
            self.mean = self.A @ self.filtered[t] + self.drive[t]
            self.covariance = predict(change.filtered, self.A, self.Q)

    def _settled(self, start: int, stop: int, observation: FloatArray) -> None:
        """Do rows with the gain that belongs to the covariance reached."""
        change = update(self.covariance, observation)
        gain = np.ascontiguousarray(change.gain.T)  # rows are times: everything is applied from the right
        whiten = np.ascontiguousarray(triangular_solve(change.factor, np.eye(len(observation))).T)
        white = product(self.seen.values[start:stop], whiten)
        f = self.drive[start:stop] + product(white, gain @ self.A.T)
        following = linear_recurrence(closed_loop(self.A, change), f, self.mean)
        p = np.vstack([self.mean, following[:-1]])
        white -= product(p, np.ascontiguousarray(change.score))
        self.predicted[start:stop], self.innovations[start:stop] = p, white
        self.filtered[start:stop] = p + product(white, gain)
        self.log_likelihood -= 0.5 * float(np.einsum("ij,ij->", white, white)) + (stop - start) * change.log_det
        self.runs.append(Run(start, stop, self.covariance, change.filtered, observation, change.score))
        self.mean = following[-1]


def _times(stack: FloatArray, rows: FloatArray) -> FloatArray:
    """stack[t] rows[t], (n, k, P) and (n, P)."""
    return np.asarray((stack @ rows[:, :, None])[:, :, 0])
