"""The fixed-interval smoother: every state, given all measurements.

The backward pass carries what the later rows say. For the means it is the derivative of their log-likelihood in the
predicted state (Bryson and Frazier's form of the Rauch-Tung-Striebel smoother): it needs no inverse of a covariance,
so singular Q, states known exactly and large means do it no harm. For the covariances it is the information of the
later rows, a positive semidefinite matrix:

    adjoint       l[t] = N i[t] + (I - N N' X) A' l[t+1]          smoothed[t] = filtered[t] + V[t] A' l[t+1]
    information   J[t] = A' (G - G Q^1/2 (I + Q'^1/2 G Q^1/2)^-1 Q'^1/2 G) A,  G = J[t+1] + C~' C~,     (V^-1 + J[t])^-1

with X the predicted, V the filtered covariance, i the whitened innovation and N = C~' L^-T. Rows that each have their
own covariances are done many at a time (`time_varying`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import ModelError
from counterflow.filtering.covariances import Convergence
from counterflow.filtering.kalman import FilterResult, Run
from counterflow.filtering.products import product, triangular_solve
from counterflow.filtering.time_varying import Rows, recurrence, smoothed_covariances
from counterflow.recurrence import linear_recurrence


@dataclass(frozen=True)
class SmootherResult:
    """State estimates of every row, given all measurements.

    ``smoothed`` (T+1, P): E[h[t] | y[0..T]]; ``covariance`` (T+1, P, P), if asked for. ``covariance_sum``,
    ``lag_covariance_sum`` (P, P): over all rows of it and of Cov[h[t+1], h[t] | y[0..T]], which is all that
    expectation-maximisation needs. ``first_covariance``, ``last_covariance``: of rows 0 and T.
    """

    smoothed: FloatArray
    covariance: FloatArray | None = field(repr=False)
    covariance_sum: FloatArray = field(repr=False)
    lag_covariance_sum: FloatArray = field(repr=False)
    first_covariance: FloatArray = field(repr=False)
    last_covariance: FloatArray = field(repr=False)


def rts_smoother(result: FilterResult, A: FloatArray, Q: FloatArray, *, covariances: bool = False) -> SmootherResult:
    """Estimate the state in every row of a `kalman_filter`'s result from all measurements; A and Q are its own.

    ``covariances``: return Cov[h[t]] of every row, too.
    """
    back = _Backward(result.runs, A, Q, covariances)
    back.run()
    return SmootherResult(
        smoothed_states(result, A), back.covariance, back.covariance_sum, back.lag_covariance_sum, back.first, back.last
    )


def smoothed_states(result: FilterResult, A: FloatArray) -> FloatArray:
    """(T+1, P): E[h[t] | y[0..T]]."""
    smoothed = np.array(result.filtered)
    adjoint = np.zeros(len(A))  # l of the row after the run in hand
    for run in reversed(result.runs):
        if isinstance(run, Rows):
            later, before = recurrence(run.slope, adjoint, run.blocks, back=True)
            own = np.vstack([before, later[:-1]])
            smoothed[run.start : run.stop] = (
                result.predicted[run.start : run.stop] + (run.predicted @ own[:, :, None])[:, :, 0]
            )
            adjoint = before
            continue
        score = run.score
        r = score.shape[1]
        innovations = result.innovations[run.start : run.stop, :r]
        back = A.T - score @ (score.T @ run.predicted @ A.T)
        if run.stop - run.start == 1:
            smoothed[run.start] += run.filtered @ (adjoint @ A)
            adjoint = score @ innovations[0] + back @ adjoint
            continue
        reverse = linear_recurrence(back, product(innovations[::-1], score.T), adjoint)
        later = np.vstack([adjoint, reverse[:-1]])[::-1]
        smoothed[run.start : run.stop] += product(later, A @ run.filtered)
        adjoint = reverse[-1]
    return smoothed


class _Backward:
    """Backward pass for the covariances."""

    def __init__(self, runs: tuple[Run | Rows, ...], A: FloatArray, Q: FloatArray, rows: bool) -> None:
        P, T = len(A), runs[-1].stop - 1
        self.runs, self.A, self.Q = runs, A, Q
        self.root = root(Q)
        self.information = np.zeros((P, P))  # of the rows after the one in hand, about its state
        self.after = np.zeros((P, P))  # the same about the state of the row after it
        self.predicted = np.zeros((P, P))  # the predicted covariance of the row after it
        self.covariance = np.empty((T + 1, P, P)) if rows else None
        self.covariance_sum = np.zeros((P, P))
        self.lag_covariance_sum = np.zeros((P, P))
        self.first = self.last = np.zeros((0, 0))

    def run(self) -> None:
        for run in reversed(self.runs):
            if isinstance(run, Rows):
                self._rows(run)
                continue
            t = run.stop - 1
            convergence = Convergence()
            while t >= run.start:
                self._put(t, t + 1, run)
                self._before(self.information + run.observation.T @ run.observation, run.predicted)
                t -= 1
                if t > run.start and convergence.settled(self.information, partial(self._loop, run)):
                    self._put(run.start, t + 1, run)
                    self._before(self.information + run.observation.T @ run.observation, run.predicted)
                    break

    def _put(self, start: int, stop: int, run: Run) -> None:
        """Rows `start` to `stop - 1` of `run`, all with the same later information."""
        factor = root(run.filtered)
        inner = factor.T @ self.information @ factor
        inner.flat[:: len(inner) + 1] += 1.0
        part = _solve(inner, factor.T)
        smoothed = factor @ part
        smoothed = (smoothed + smoothed.T) / 2
        self.covariance_sum += (stop - start) * smoothed
        if self.covariance is not None:
            self.covariance[start:stop] = smoothed
        self.last = self.last if self.last.size else smoothed
        self.first = smoothed
        if stop < self.runs[-1].stop:
            # Cov[h[t+1], h[t]] = (I + X G)^-1 A V with X, G of row t + 1
            matrix = self.predicted @ self.after
            matrix.flat[:: len(matrix) + 1] += 1.0
            lag = np.linalg.solve(matrix, self.A @ run.filtered)
            self.lag_covariance_sum += (stop - start) * lag

    def _rows(self, rows: Rows) -> None:
        """Rows with covariances of their own."""
        end = self.runs[-1].stop
        found = smoothed_covariances(
            rows, None if rows.stop == end else (self.after, self.predicted),
            None if self.covariance is None else self.covariance[rows.start : rows.stop],
        )  # fmt: skip
        self.covariance_sum += found.sum
        self.lag_covariance_sum += found.lag_sum
        self.last = self.last if self.last.size else found.last
        self.first = found.first
        self._before(found.information, rows.predicted[0])

    def _before(self, G: FloatArray, predicted: FloatArray) -> None:
        """Step to the row before one with predicted covariance X, about whose state the rows from it on hold G."""
        self.after, self.predicted = G, predicted
        half = self.root.T @ G
        inner = half @ self.root
        inner.flat[:: len(inner) + 1] += 1.0
        G = G - half.T @ _solve(inner, half)
        J = self.A.T @ G @ self.A
        self.information = (J + J.T) / 2

    def _loop(self, run: Run) -> FloatArray:
        G = self.after
        loop: FloatArray = np.asarray(np.linalg.solve(np.eye(len(G)) + self.Q @ G, self.A), dtype=np.float64)
        return loop


def root(X: FloatArray) -> FloatArray:
    """A factor S with S S' = X, for X positive semidefinite."""
    from scipy.linalg.lapack import dpotrf

    factor, failed = dpotrf(X, lower=1, clean=1)
    if not failed:
        return np.asarray(factor)
    values, vectors = np.linalg.eigh(X)
    return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))


def _solve(inner: FloatArray, right: FloatArray) -> FloatArray:
    """Solve with I plus a positive semidefinite matrix."""
    from scipy.linalg.lapack import dpotrf

    L, failed = dpotrf(inner, lower=1)
    if failed:
        raise ModelError(
            "the covariances of the filter are too large to be smoothed; give a smaller initial_covariance"
        )
    return triangular_solve(L, triangular_solve(L, right), transpose=True)
