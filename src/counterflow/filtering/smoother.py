"""The fixed-interval smoother: every state, given all measurements.

The backward pass carries what the later rows say. For the means it is the derivative of their log-likelihood in the
predicted state (Bryson and Frazier's form of the Rauch-Tung-Striebel smoother): it needs no inverse of a covariance,
so singular Q, states known exactly and large means do it no harm. For the covariances it is the information of the
later rows, a positive semidefinite matrix:

    adjoint       l[t] = N i[t] + (I - N N' X) A' l[t+1]          smoothed[t] = filtered[t] + V[t] A' l[t+1]
    information   J[t] = A' (G - G Q^1/2 (I + Q'^1/2 G Q^1/2)^-1 Q'^1/2 G) A,  G = J[t+1] + C~' C~,     (V^-1 + J[t])^-1

with X the predicted, V the filtered covariance, i the whitened innovation and N = C~' L^-T.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.errors import ModelError
from counterflow.filtering.checks import as_covariance, as_transition
from counterflow.filtering.products import product, triangular_solve
from counterflow.filtering.results import FilterResult, Run, SmootherResult, freeze
from counterflow.filtering.update import TO_ROUNDING, Convergence
from counterflow.recurrence import linear_recurrence


def rts_smoother(
    result: FilterResult, A: FloatArray, Q: FloatArray | None = None, *, covariances: bool = False,
    lag_covariances: bool = False, sums: bool = False, groups: NDArray[np.intp] | None = None,
    settled: float = TO_ROUNDING,
) -> SmootherResult:  # fmt: skip
    """Estimate the state in every row from all measurements.

    Parameters
    ----------
    result : FilterResult
        Of `kalman_filter`; it holds all that is needed of the measurements and inputs.
    A : (P, P) array
        The one that was filtered with.
    Q : (P, P) array, optional
        The one that was filtered with; needed only if covariances of any kind are asked for.
    covariances, lag_covariances : bool
        Whether to return Cov[h[t]] and Cov[h[t+1], h[t]] of every row, given all measurements.
    sums : bool
        Whether to return the sums of both over the rows, which is all that expectation-maximisation needs, without
        the rows themselves.
    groups : (T+1,) int array, optional
        Labels 0..k-1 of the rows; the sum of Cov[h[t]] over the rows of each label is returned as well. Rows that miss
        the same channels must have the same label.
    settled : float
        As in `kalman_filter`.

    Examples
    --------
    >>> from counterflow.filtering import kalman_filter
    >>> one, none = np.eye(1), np.zeros((1, 0))
    >>> y = np.array([[np.nan], [np.nan], [3.0]])  # only the last row is measured
    >>> result = kalman_filter(y, np.zeros((3, 0)), one, none, one, one, one, initial_covariance=one)
    >>> rts_smoother(result, one).smoothed.ravel().round(6).tolist()
    [0.75, 1.5, 2.25]
    """
    A = as_transition("A", A)
    P = result.filtered.shape[1]
    if len(A) != P:
        raise ModelError(f"A must have shape ({P}, {P}), as in the filter; got {A.shape}")
    smoothed = freeze(_means(result, A))
    if not (covariances or lag_covariances or sums):
        return SmootherResult(smoothed)
    if Q is None:
        raise ModelError("Q must be given if covariances, lag_covariances or sums are asked for")
    backward = _Backward(result.runs, A, as_covariance("Q", Q, P), covariances, lag_covariances, groups, settled)
    backward.run()
    return SmootherResult(
        smoothed, covariance=_frozen(backward.covariance), lag_covariance=_frozen(backward.lag_covariance),
        covariance_sum=freeze(backward.covariance_sum) if sums else None,
        lag_covariance_sum=freeze(backward.lag_covariance_sum) if sums else None,
        first_covariance=_frozen(backward.first), last_covariance=_frozen(backward.last),
        group_sums=_frozen(backward.group_sums),
    )  # fmt: skip


def _means(result: FilterResult, A: FloatArray) -> FloatArray:
    smoothed = np.array(result.filtered)
    adjoint = np.zeros(len(A))  # l of the row after the run in hand
    for run in reversed(result.runs):
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

    def __init__(
        self, runs: tuple[Run, ...], A: FloatArray, Q: FloatArray, rows: bool, lag_rows: bool,
        groups: NDArray[np.intp] | None, settled: float,
    ) -> None:  # fmt: skip
        self.settled = settled
        P, T = len(A), runs[-1].stop - 1
        self.runs, self.A, self.Q = runs, A, Q
        self.root = root(Q)
        self.information = np.zeros((P, P))  # of the rows after the one in hand
        self._later = self.information  # the same for the row after it
        self.covariance = np.empty((T + 1, P, P)) if rows else None
        self.lag_covariance = np.empty((T, P, P)) if lag_rows else None
        self.covariance_sum = np.zeros((P, P))
        self.lag_covariance_sum = np.zeros((P, P))
        self.groups = groups
        self.group_sums = None if groups is None else np.zeros((int(groups.max()) + 1, P, P))
        self.first: FloatArray | None = None
        self.last: FloatArray | None = None

    def run(self) -> None:
        after: Run | None = None
        for run in reversed(self.runs):
            t = run.stop - 1
            convergence = Convergence(self.settled)
            while t >= run.start:
                self._put(t, t + 1, run, after)
                self.information = self._before(run)
                t -= 1
                after = run
                if t > run.start and convergence.settled(self.information, partial(self._loop, run)):
                    self._put(run.start, t + 1, run, run)
                    self._later = self.information
                    break

    def _put(self, start: int, stop: int, run: Run, after: Run | None) -> None:
        """Rows `start` to `stop - 1` of `run`, all with the same later information."""
        factor = root(run.filtered)
        inner = factor.T @ self.information @ factor
        inner.flat[:: len(inner) + 1] += 1.0
        part = _solve(inner, factor.T)
        smoothed = factor @ part
        smoothed = (smoothed + smoothed.T) / 2
        self.covariance_sum += (stop - start) * smoothed
        if self.groups is not None and self.group_sums is not None:
            self.group_sums[self.groups[start]] += (stop - start) * smoothed
        if self.covariance is not None:
            self.covariance[start:stop] = smoothed
        if self.last is None:
            self.last = smoothed
        self.first = smoothed
        if after is not None:
            # Cov[h[t+1], h[t]] = (I + X G)^-1 A V with X, G of row t + 1
            G = self._later + after.observation.T @ after.observation
            matrix = after.predicted @ G
            matrix.flat[:: len(matrix) + 1] += 1.0
            lag = np.linalg.solve(matrix, self.A @ run.filtered)
            self.lag_covariance_sum += (stop - start) * lag
            if self.lag_covariance is not None:
                self.lag_covariance[start:stop] = lag

    def _before(self, run: Run) -> FloatArray:
        """Information that rows from a row of `run` on hold about the row before it."""
        self._later = self.information
        G = self.information + run.observation.T @ run.observation
        half = self.root.T @ G
        inner = half @ self.root
        inner.flat[:: len(inner) + 1] += 1.0
        G = G - half.T @ _solve(inner, half)
        J = self.A.T @ G @ self.A
        return (J + J.T) / 2

    def _loop(self, run: Run) -> FloatArray:
        G = self._later + run.observation.T @ run.observation
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


def _frozen(array: Any) -> Any:
    return None if array is None else freeze(array)
