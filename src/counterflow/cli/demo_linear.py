"""What ``counterflow demo`` is compared with: one plain linear model of everybody's measurements, pooled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from counterflow.arrays import FloatArray

MOST_LAGS = 12


@dataclass(frozen=True, eq=False)
class PooledLinear:
    """Least squares of all channels on some rows of all channels and inputs before (ARX), in standard deviations.

    ``weights`` (lags · (D + U), D), newest row first; ``spread`` (D + U,) of channels and inputs.
    """

    weights: FloatArray
    spread: FloatArray

    @classmethod
    def of(cls, channels: FloatArray, inputs: FloatArray) -> PooledLinear:
        """Of channels (T, D) and inputs (T, U); as many lags as Akaike's criterion likes best."""
        D, whole = channels.shape[1], np.hstack([channels, inputs])
        spread = whole.std(axis=0)
        rows = (whole - whole.mean(axis=0)) / spread
        lagged = np.hstack([rows[MOST_LAGS - lag : len(rows) - lag] for lag in range(1, MOST_LAGS + 1)])
        target, found = rows[MOST_LAGS:, :D], []
        for lags in range(1, MOST_LAGS + 1):
            before = lagged[:, : lags * rows.shape[1]]
            weights = np.linalg.lstsq(before, target)[0]
            left = target - before @ weights
            found.append((len(target) * np.linalg.slogdet(left.T @ left)[1] + 2 * weights.size, weights))
        return cls(min(found, key=lambda each: each[0])[1], spread)

    def effect(self, added: FloatArray) -> FloatArray:
        """What ``added`` (n, U) to the inputs does to all channels in the n rows after, (n, D); the same anywhere."""
        D, width = self.weights.shape[1], len(self.spread)
        lags = len(self.weights) // width
        rows = np.zeros((lags + len(added), width))
        rows[lags - 1 : -1, D:] = added / self.spread[D:]
        for t in range(lags, len(rows)):
            rows[t, :D] = rows[t - lags : t][::-1].ravel() @ self.weights
        return rows[lags:, :D] * self.spread[:D]
