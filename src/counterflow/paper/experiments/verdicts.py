"""From numbers of several runs to verdicts: a claim holds, does not hold, or the runs cannot tell.

Evidence is of two kinds. Means are judged in standard errors over the runs (``above``, ``below``); where runs are
plants, and some of them far out, medians are judged by how many plants lie on either side (``mostly``). In both, what
lies within two standard errors is undecided, and so is what too few runs say.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from counterflow.arrays import FloatArray

Verdict = Literal[
    "agrees",
    "agrees in order of magnitude",
    "does not hold",
    "undecided",
    "not comparable",
    "claim without number",
    "beyond the paper",
]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
Values = Sequence[float] | FloatArray
FEWEST = 3  # runs from which on a standard error is taken for one
ERRORS = 2.0  # standard errors within which nothing is decided


def mean_and_error(values: Values) -> tuple[float, float]:
    """Mean and its standard error (NaN for a single value)."""
    array = np.asarray(values, np.float64)
    error = float(array.std(ddof=1) / math.sqrt(array.size)) if array.size > 1 else math.nan
    return float(array.mean()), error


def exponent(sizes: Sequence[int], values: FloatArray) -> tuple[float, float]:
    """k of values ~ size^k, and its standard error over the runs (rows); NaN if they are too few to have one."""
    x = np.log(np.array(sizes, np.float64))
    x = x - x.mean()
    slope, error = mean_and_error(np.log(values) @ x / (x @ x))
    return slope, error if len(values) >= FEWEST else math.nan


def geometric(values: Values) -> float:
    """The geometric mean of positive numbers."""
    return float(np.exp(np.log(np.asarray(values, np.float64)).mean()))


def holds(claim: bool) -> Verdict:
    """Of a sentence that is either right or wrong here, without chance in it."""
    return "agrees" if claim else "does not hold"


def estimated_above(mean: float, error: float, limit: float) -> Verdict:
    """Of "it is above the limit", from an estimate and its standard error (NaN: not known)."""
    if not (math.isfinite(mean) and math.isfinite(error)):
        return "undecided"
    if mean - ERRORS * error > limit:
        return "agrees"
    return "does not hold" if mean + ERRORS * error <= limit else "undecided"


def above(values: Values, limit: float = 0.0) -> Verdict:
    """Of "the mean is above the limit", from one value of each run."""
    return "undecided" if np.size(values) < FEWEST else estimated_above(*mean_and_error(values), limit)


def below(values: Values, limit: float = 0.0) -> Verdict:
    """Of "the mean is below the limit"."""
    return above(-np.asarray(values, np.float64), -limit)


def within(values: Values, low: float, high: float) -> Verdict:
    """Of "the mean lies between two limits"."""
    return both(above(values, low), below(values, high))


def lower(one: FloatArray, other: FloatArray) -> Verdict:
    """Of "positive numbers are lower than others of the same runs", on a logarithmic scale."""
    return below(np.log(np.maximum(one, 1e-300) / np.maximum(other, 1e-300)))


def mostly(values: Values, limit: float = 0.0) -> Verdict:
    """Of "the median is above the limit", by the share of values above it: a sign test."""
    array = np.asarray(values, np.float64)
    more = float((array > limit).sum()) - array.size / 2
    return "undecided" if abs(more) < ERRORS * math.sqrt(array.size) / 2 else holds(more > 0)


def rarely(values: Values, limit: float = 0.0) -> Verdict:
    """Of "the median is below the limit"."""
    return mostly(-np.asarray(values, np.float64), -limit)


def magnitude(paper: float, values: Values) -> Verdict:
    """Of "the geometric mean of positive values is within a factor of ten of the paper's number"."""
    found = within(np.log10(np.asarray(values, np.float64) / paper), -1.0, 1.0)
    return "agrees in order of magnitude" if found == "agrees" else found


def both(*verdicts: Verdict) -> Verdict:
    """Of a claim of several parts: one that does not hold decides, then one that is undecided."""
    decided: tuple[Verdict, ...] = ("does not hold", "undecided")
    return next((worse for worse in decided if worse in verdicts), "agrees")


def opposite(verdict: Verdict) -> Verdict:
    """Of the contrary."""
    turned: dict[Verdict, Verdict] = {"agrees": "does not hold", "does not hold": "agrees"}
    return turned.get(verdict, verdict)


def either(*verdicts: Verdict) -> Verdict:
    """Of "at least one of them": one that agrees decides, then one that is undecided."""
    return opposite(both(*map(opposite, verdicts)))


def beyond_control(claimed: Verdict, added: Verdict) -> Verdict:
    """Of a claim that a control without any training may satisfy as well; ``added``: more than the control gives."""
    if claimed != "agrees":
        return claimed
    return "not comparable" if added == "does not hold" else added


def said(verdict: Verdict, yes: str, no: str = "", unclear: str = "") -> str:
    """The sentence that goes with a verdict: for a text that must not say what the numbers do not."""
    if verdict in ("agrees", "agrees in order of magnitude"):
        return yes
    return no if verdict == "does not hold" else unclear


def told(values: Values, digits: int = 3) -> str:
    """Mean and standard error of several runs: "2 ± 0.58"."""
    mean, error = mean_and_error(values)
    return f"{mean:.{digits}g}" + (f" ± {error:.2g}" if math.isfinite(error) else "")


def told_each(found: Mapping[Any, Values]) -> str:
    """The same of each name."""
    return ", ".join(f"{name} {told(values)}" for name, values in found.items())
