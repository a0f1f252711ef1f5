"""What shows without more data: did the fit arrive, is it stable, are its surprises white and of their size."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from counterflow.report.content import Check, plain

if TYPE_CHECKING:
    from counterflow.runtime import Fit

FloatArray = NDArray[np.float64]
LAGS = 10
LIKELY = 1e-3  # a p-value below this is called a failure: a handful of units is looked at, not thousands
SIZE = 0.1  # relative departure of the surprises' variance from one that is called a failure, if it is no accident


def checks(fit: Fit) -> tuple[Check, ...]:
    """Of a fit on the rows it rests on."""
    out = [Check("The fit arrived", fit.status.converged, str(fit.status))]
    radius = float(np.abs(np.linalg.eigvals(fit.plant.A)).max())
    out.append(Check("The estimated system is stable", radius < 1, f"spectral radius {radius:.3f}"))
    if fit.couplings is None:
        return tuple(out)
    doubts = len(fit.couplings.doubts)
    finding = f"{doubts} in doubt, named below" if doubts else "no input stood still, none moved only with others"
    out.append(Check("Every coupling can be told from the data", not doubts, finding))
    shared = fit.couplings.shared
    surprises = shared.filter(fit.plant.A, fit.plant.B, fit.plant.Q).innovations
    if surprises.shape[1] != shared.observation.shape[0]:  # raw channels, compressed by the filter: owners are gone
        return tuple(out)
    for name, own in zip(shared.names, shared.observation_slices, strict=True):
        out += _surprises(name, surprises, own)
    return tuple(out)


def whiteness(innovations: FloatArray, own: slice, lags: int = LAGS) -> tuple[float, float]:
    """(p-value, largest correlation) of columns ``own`` against all columns at lags 1..``lags``.

    The multivariate Ljung-Box statistic n (n + 2) Σ_l ‖R_l‖² / (n - l), chi-square if the innovations are white; rows
    in which something was missing (they are zero) are left out.
    """
    from scipy.stats import chi2

    measured = (innovations != 0).all(axis=1)
    values = innovations[1:][measured[1:]]  # row 0 is all prior
    n = len(values)
    if n <= lags + 1 or own.stop == own.start:
        return float("nan"), float("nan")
    centred = values - values.mean(axis=0)
    standard = centred / np.sqrt(np.square(centred).mean(axis=0))
    statistic, largest = 0.0, 0.0
    for lag in range(1, lags + 1):
        correlation = standard[lag:, own].T @ standard[:-lag] / n
        statistic += n * (n + 2) * float(np.square(correlation).sum()) / (n - lag)
        largest = max(largest, float(np.abs(correlation).max()))
    freedom = lags * (own.stop - own.start) * values.shape[1]
    return float(chi2.sf(statistic, freedom)), largest


def _surprises(name: str, innovations: FloatArray, own: slice) -> list[Check]:
    p, largest = whiteness(innovations, own)
    mine = innovations[1:, own]
    mine = mine[(mine != 0).all(axis=1)]
    if not mine.size or not math.isfinite(p):
        return [Check(f"Surprises at {plain(name)} are white", None, "too few measured rows to tell")]
    size, error = float(np.square(mine).mean()), math.sqrt(2 / mine.size)
    usual = abs(size - 1) < max(SIZE, 4 * error)
    return [
        Check(
            f"Surprises at {plain(name)} are white",
            p >= LIKELY,
            f"Ljung-Box over {LAGS} lags and all units: p = {p:.2g}; the largest correlation is {largest:.2f}",
        ),
        Check(
            f"Surprises at {plain(name)} are of the size expected",
            usual,
            f"variance {size:.2f} ± {2 * error:.2f} where 1 is expected",
        ),
    ]
