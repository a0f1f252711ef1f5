"""The Kalman filter over a whole record.

    h[t] = A h[t-1] + B u[t-1] + w[t-1],   w ~ N(0, Q)
    y[t] = C h[t] + v[t],                  v ~ N(0, R)        h[0] ~ N(m0, P0) before y[0] is seen

Covariances do not depend on the data, and settle. So the record is cut into stretches of rows that miss the same
channels; in each, the recursion is stepped until the covariance has settled, and from there on the gain is constant and
the means are one linear recurrence, computed as matrix products. Rows that differ too often for that are stepped many
at a time (`time_varying`). Nothing is approximated: the means equal those of a row-by-row filter to rounding.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.errors import DataError, ModelError
from counterflow.filtering.checks import Problem, all_finite, as_covariance, as_problem, as_shaped
from counterflow.filtering.compression import (
    CompressedRows,
    Compression,
    Stretch,
    compress,
    compress_rows,
    stretches,
)
from counterflow.filtering.covariances import (
    NOT_POSITIVE,
    Convergence,
    Update,
    closed_loop,
    default_covariance,
    predict,
    spectral_radius,
    update,
)  # fmt: skip
from counterflow.filtering.products import product, triangular_solve
from counterflow.filtering.results import FilterResult, Run, freeze
from counterflow.filtering.time_varying import Rows, predicted_covariances, recurrence
from counterflow.recurrence import linear_recurrence

_STEPS = 128  # rows compressed at a time while the covariance is still moving
_FEW = 32  # rows that differ, up to which they are stepped one by one
_CHUNK = 65536  # rows at a time once it has settled, so that working memory does not grow with the record
_BLOCK = 4096  # rows of measurements at a time; they stay in the processor's cache until they are compressed
_GROWING = 1.0 + 1e-9  # closed loops beyond this radius are stepped row by row, so that overflow can be told
_LOG_2PI = math.log(2 * math.pi)


def kalman_filter(
    y: FloatArray, u: FloatArray, A: FloatArray, B: FloatArray, C: FloatArray, Q: FloatArray, R: FloatArray, *,
    initial_mean: FloatArray | None = None, initial_covariance: FloatArray | None = None,
) -> FilterResult:  # fmt: skip
    """Estimate the state in every row from the measurements up to that row.

    Parameters
    ----------
    y : (T+1, D) array
        Measurements; NaN where missing, in any row and channel.
    u : (T+1, U) array
        Inputs; row t acts on row t+1, so the last row is never used. U may be 0.
    A : (P, P) array
    B : (P, U) array
    C : (D, P) or (T+1, D, P) array
        Of all rows, or of each.
    Q : (P, P) array
        Covariance of the process noise; may be singular.
    R : (D, D) array
        Covariance of the measurement noise.
    initial_mean : (P,) array, optional
        Mean of h[0] before y[0] is seen. Zeros if not given.
    initial_covariance : (P, P) array, optional
        Covariance of h[0] before y[0] is seen. If not given, the stationary one for the modes of A that have one. Modes
        on or outside the unit circle (integrators) get a vague one: 10^6 times the covariance with which P noise-free
        steps of measurements determine them, plus their process noise. It is wide compared with the noise, not with
        the data: give `initial_mean` if such a state is more than a few hundred standard deviations from zero.

    Raises
    ------
    ModelError, DataError
        If an argument is not what it should be.
    UnstableError
        If no initial covariance is given and a mode that does not decay is never seen by any measurement.

    Examples
    --------
    A tank level (an integrator) with an inflow of 1 a step, measured twice; the second row is missing.

    >>> y = np.array([[1.1, 0.9], [np.nan, np.nan], [3.1, 2.9]])
    >>> result = kalman_filter(y, np.ones((3, 1)), np.eye(1), np.eye(1), np.ones((2, 1)), 0.01 * np.eye(1), np.eye(2))
    >>> result.filtered.round(3).ravel().tolist()
    [1.0, 2.0, 3.0]
    """
    problem = as_problem(y, u, A, B, C, Q, R)
    filter_ = _Filter(problem, initial_mean, initial_covariance)
    filter_.run()
    return FilterResult(
        predicted=freeze(filter_.predicted), filtered=freeze(filter_.filtered), log_likelihood=filter_.log_likelihood,
        shared_innovations=freeze(filter_.innovations), runs=tuple(filter_.runs),
    )  # fmt: skip


class _Filter:
    """One pass over a record; holds the prediction of the row to come and what has been kept of the rows before."""

    def __init__(self, problem: Problem, mean: Any, covariance: Any) -> None:
        self.problem = problem
        self.rows, D = problem.y.shape
        P = len(problem.A)
        self.complete = all_finite(problem.y)
        self.full = None if problem.C.ndim == 3 else compress(problem.C, problem.R)
        self.mean = np.zeros(P) if mean is None else as_shaped("initial_mean", mean, (P,)).copy()
        if covariance is not None:
            self.covariance = as_covariance("initial_covariance", covariance, P)
        else:
            seen = self.full.observation if self.full else _typical_observation(problem)
            self.covariance = default_covariance(problem.A, problem.Q, seen)[1]
        width = min(D, P) if self.full is None or not self.complete else len(self.full.observation)
        self.predicted, self.filtered = np.empty((self.rows, P)), np.empty((self.rows, P))
        self.innovations = np.empty((self.rows, width)) if self.complete and self.full else np.zeros((self.rows, width))
        self.runs: list[Run | Rows] = []
        self.log_likelihood = 0.0
        self.buffer = np.empty(0)

    def run(self) -> None:
        with np.errstate(over="ignore", invalid="ignore"):  # overflow is told below, in words
            if self.full is not None and self.complete:
                self._constant(Stretch(0, self.rows, None), self.full)
            else:
                self._patterned()
        if not (math.isfinite(self.log_likelihood) and np.isfinite(self.filtered[-1]).all()):
            raise DataError(
                "the estimates overflow: y, u or initial_mean is too large for double precision, "
                "or the filter has no gain on an unstable state (Q and initial_covariance both zero there)"
            )

    def _patterned(self) -> None:
        problem = self.problem
        cache: dict[bytes, Compression] = {}
        for stretch in stretches(problem.y, problem.C):
            if stretch.measured is None:
                self._each(stretch)
                continue
            if problem.C.ndim == 3:
                cache.clear()
            key = stretch.measured.tobytes()
            if key not in cache:
                if stretch.measured.all() and self.full is not None:
                    cache[key] = self.full
                else:
                    chosen = np.flatnonzero(stretch.measured)
                    C = problem.C if problem.C.ndim == 2 else problem.C[stretch.start]
                    cache[key] = compress(C[chosen], problem.R[np.ix_(chosen, chosen)])
            self._constant(stretch, cache[key])

    # Rows that differ in missing channels or in how they see the state -----------------------------------------------

    def _each(self, stretch: Stretch) -> None:
        problem = self.problem
        for first in range(stretch.start, stretch.stop, _CHUNK):
            last = min(first + _CHUNK, stretch.stop)
            y = problem.y[first:last]
            C = problem.C[first:last] if problem.C.ndim == 3 else problem.C
            rows = compress_rows(y, ~np.isnan(y), C, problem.R)
            self.log_likelihood += float(rows.constant.sum()) - 0.5 * _LOG_2PI * int(rows.count.sum())
            (self._march if last - first > _FEW else self._singly)(first, last, rows)

    def _singly(self, first: int, last: int, rows: CompressedRows) -> None:
        nothing = np.empty((0, len(self.problem.A)))
        drive = self._drive(first, last)
        for k, values in enumerate(rows.values):
            observation = rows.observation[k] if rows.count[k] else nothing
            change = update(self.covariance, observation)
            self._step(first + k, change, observation, values[: len(observation)], drive[k])

    def _march(self, first: int, last: int, rows: CompressedRows) -> None:
        A, Q, C, s = self.problem.A, self.problem.Q, rows.observation, rows.values
        try:
            X, blocks = predicted_covariances(C, s, A, Q, self.covariance)
            factor = np.asarray(np.linalg.cholesky(C @ X @ C.transpose(0, 2, 1) + np.eye(C.shape[1])), np.float64)
        except np.linalg.LinAlgError:
            raise ModelError(NOT_POSITIVE) from None
        told = blocks.told.reshape(-1, len(A))[: last - first]  # C~' S^-1 s, and X times it is K s
        p, self.mean = recurrence(_times(X, told) @ A.T + self._drive(first, last), self.mean, blocks)
        residual = s - _times(C, p)
        filtered = update(X[-1], C[-1]).filtered
        slope = told - _times(blocks.said.reshape(-1, *X.shape[1:])[: last - first], p)
        x = p + _times(X, slope)
        white = s - _times(C, x)  # S^-1 of the residual
        self.log_likelihood -= 0.5 * float(np.einsum("ij,ij->", residual, white))
        self.log_likelihood -= float(np.log(np.einsum("nii->ni", factor)).sum())
        self.predicted[first:last], self.filtered[first:last] = p, x
        self.runs.append(Rows(first, last, X, filtered, C, factor, residual, slope, blocks))
        self.covariance = predict(filtered, A, Q)

    # Rows that share both ------------------------------------------------------------------------------------------

    def _constant(self, stretch: Stretch, compression: Compression) -> None:
        chosen = None if stretch.measured is None or stretch.measured.all() else np.flatnonzero(stretch.measured)
        t = self._settle(stretch, chosen, compression)
        if t < stretch.stop:
            self._steady(t, stretch.stop, chosen, compression)
        constant = compression.log_scale + 0.5 * _LOG_2PI * compression.size
        self.log_likelihood -= (stretch.stop - stretch.start) * constant

    def _settle(self, stretch: Stretch, chosen: NDArray[np.intp] | None, compression: Compression) -> int:
        """Step until the covariance has settled; return the first row not done."""
        A = self.problem.A
        observation = compression.observation
        convergence = Convergence()
        t = stretch.start
        while t < stretch.stop:
            last = min(t + _STEPS, stretch.stop)
            y = self._measured(t, last, chosen)
            values = product(y, compression.reach.T)
            rest = np.square(product(y, compression.rest.T)).sum(axis=1)
            drive = self._drive(t, last)
            for k in range(last - t):
                change = update(self.covariance, observation)
                settled = convergence.reached(self.covariance, change, A)
                if settled and spectral_radius(closed_loop(A, change)) <= _GROWING:
                    return t + k
                self._step(t + k, change, observation, values[k], drive[k])
                self.log_likelihood -= 0.5 * float(rest[k])
            t = last
        return t

    def _step(self, t: int, change: Update, observation: FloatArray, values: FloatArray, drive: FloatArray) -> None:
        """Do row `t` and predict the next."""
        from scipy.linalg.lapack import dtrtrs

        problem = self.problem
        filtered = self.mean
        r = len(values)
        if r:
            innovation = dtrtrs(change.factor, values - observation @ self.mean, lower=1)[0]
            filtered = self.mean + change.gain @ innovation
            self.log_likelihood -= 0.5 * float(innovation @ innovation) + change.log_det
        self.predicted[t], self.filtered[t] = self.mean, filtered
        if r:
            self.innovations[t, :r] = innovation
        self.runs.append(Run(t, t + 1, self.covariance, change.filtered, observation, change.score))
        if t + 1 < self.rows:
            self.mean = problem.A @ filtered + drive
            self.covariance = predict(change.filtered, problem.A, problem.Q)

    def _steady(self, start: int, stop: int, chosen: NDArray[np.intp] | None, compression: Compression) -> None:
        """Do rows `start` to `stop - 1` with the gain that belongs to the covariance reached."""
        problem = self.problem
        A = problem.A
        change = update(self.covariance, compression.observation)
        r = len(compression.observation)
        gain = np.ascontiguousarray(change.gain.T)  # rows are times: everything is applied from the right
        score = np.ascontiguousarray(change.score)
        whiten = triangular_solve(change.factor, compression.reach) if r else compression.reach
        weights = np.ascontiguousarray(np.vstack([whiten, compression.rest]).T)  # (D, D): innovations' part, rest
        closed = closed_loop(A, change)
        into = gain @ A.T
        self.runs.append(Run(start, stop, self.covariance, change.filtered, compression.observation, change.score))
        for first in range(start, stop, _CHUNK):
            last = min(first + _CHUNK, stop)
            n = last - first
            p, x, i = self.predicted[first:last], self.filtered[first:last], self.innovations[first:last, :r]
            self.log_likelihood -= 0.5 * self._whiten(first, last, chosen, weights, i) + n * change.log_det
            f = self._drive(first, last)
            f += product(i, into, self._buffer(n, len(A)))
            following = linear_recurrence(closed, f, self.mean)
            p[0] = self.mean
            p[1:] = following[:-1]
            i -= product(p, score, out=f[:, :r])
            product(i, gain, out=x)
            x += p
            self.log_likelihood -= 0.5 * float(np.einsum("ij,ij->", i, i))
            self.mean = following[-1]

    def _whiten(
        self, first: int, last: int, chosen: NDArray[np.intp] | None, weights: FloatArray, out: FloatArray
    ) -> float:
        """Compress and whiten rows into `out`; return the sum of squares of what is out of the state's reach."""
        r = out.shape[1]
        rest = 0.0
        for begin in range(first, last, _BLOCK):
            end = min(begin + _BLOCK, last)
            z = product(self._measured(begin, end, chosen), weights, self._buffer(end - begin, len(weights)))
            out[begin - first : end - first] = z[:, :r]
            rest += float(np.einsum("ij,ij->", z[:, r:], z[:, r:]))
        return rest

    def _buffer(self, rows: int, columns: int) -> FloatArray:
        """Working memory that is asked for once, because fresh memory costs as much as the work done in it."""
        if self.buffer.size < rows * columns:
            self.buffer = np.empty(rows * columns)
        return self.buffer[: rows * columns].reshape(rows, columns)

    def _measured(self, first: int, last: int, chosen: NDArray[np.intp] | None) -> FloatArray:
        y = self.problem.y[first:last]
        return y if chosen is None else y[:, chosen]

    def _drive(self, first: int, last: int) -> FloatArray:
        """What the inputs of these rows add to the state of the following row; zero in the last row of all."""
        problem = self.problem
        drive = np.empty((last - first, len(problem.A)))
        used = min(last, self.rows - 1) - first
        product(problem.u[first : first + used], problem.B.T, drive[:used])
        drive[used:] = 0.0
        return drive


def _times(stack: FloatArray, rows: FloatArray) -> FloatArray:
    """stack[t] rows[t], (n, k, P) and (n, P)."""
    return np.asarray((stack @ rows[:, :, None])[:, :, 0])


def _typical_observation(problem: Problem) -> FloatArray:
    """One observation in place of many, for the scale of a vague initial covariance."""
    white = np.linalg.solve(np.linalg.cholesky(problem.R), problem.C)
    return np.asarray(np.linalg.qr(white.reshape(-1, white.shape[2]), mode="r")) / math.sqrt(len(white))
