"""Statistics that several checks rest on: regressions with columns that may be alike, errors from batches of rows."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from counterflow.arrays import FloatArray

BATCHES = 20  # of neighbouring rows, whose means give a standard error: they may go together


def inverse_root(gram: FloatArray, cut: float = 1e-10) -> FloatArray:
    """W (n, rank) with W W' the inverse of ``gram`` on the directions that there are, columns on a common scale."""
    size = np.sqrt(np.maximum(np.diag(gram), 0.0))
    scale = np.divide(1.0, size, out=np.zeros_like(size), where=size > 0)
    values, vectors = np.linalg.eigh(gram * np.outer(scale, scale))
    keep = values > cut * max(float(values[-1]), 1e-300)
    return np.asarray(scale[:, None] * vectors[:, keep] / np.sqrt(values[keep]))


def inverse_rank(gram: FloatArray) -> tuple[FloatArray, int]:
    """Inverse on the directions that there are, and their number."""
    root = inverse_root(gram)
    return np.asarray(root @ root.T), root.shape[1]


def mean_error(series: FloatArray) -> tuple[float, float]:
    """Mean and its standard error, from the means of batches."""
    mean, plain = float(series.mean()), float(series.std()) / math.sqrt(len(series))
    if len(series) < 4 * BATCHES:
        return mean, plain
    edges = np.linspace(0, len(series), BATCHES + 1).astype(int)
    means = np.array([series[a:b].mean() for a, b in pairwise(edges)])
    return mean, max(plain, float(means.std(ddof=1)) / math.sqrt(BATCHES))


def standardised(columns: FloatArray) -> FloatArray:
    """Mean zero and standard deviation one; columns that never move become zero."""
    centred = columns - columns.mean(axis=0)
    size = centred.std(axis=0)
    return np.asarray(centred / np.where(size > 1e-12, size, np.inf))


def chi_square_tail(statistic: float, freedom: float) -> float:
    """Probability that a chi-square variable exceeds ``statistic``."""
    from scipy.special import gammaincc  # scipy.stats takes ten times as long to import

    return float(gammaincc(freedom / 2, max(statistic, 0.0) / 2))
