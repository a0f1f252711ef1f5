"""From numbers of several runs to verdicts: a claim holds, does not hold, or the runs cannot tell.

Evidence is of two kinds. Means are judged in standard errors over the runs (``above``, ``below``); where runs are
plants, and some of them far out, medians are judged by how many plants lie on either side (``mostly``). In both, what
lies within two standard errors is undecided, and so is what too few runs say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.paper.experiments.experiment import Verdict

FEWEST = 3  # runs from which on a standard error is taken for one
ERRORS = 2.0  # standard errors within which nothing is decided


def mean_and_error(values: Sequence[float] | FloatArray) -> tuple[float, float]:
    """Mean and its standard error (NaN for a single value).

    Examples
    --------
    >>> mean_and_error([1.0, 2.0, 3.0])
    (2.0, 0.5773502691896258)
    """
    array = np.asarray(values, np.float64)
    error = float(array.std(ddof=1) / math.sqrt(array.size)) if array.size > 1 else math.nan
    return float(array.mean()), error


def exponent(sizes: Sequence[int], values: FloatArray) -> tuple[float, float]:
    """k of values ~ size^k, and its standard error over the runs (rows); NaN if they are too few to have one.

    Examples
    --------
    >>> exponent((1, 2, 4), np.array([[3.0, 6.0, 12.0], [1.0, 2.0, 4.0]]))[0].__round__(9)
    1.0
    """
    x = np.log(np.array(sizes, np.float64))
    x = x - x.mean()
    slope, error = mean_and_error(np.log(values) @ x / (x @ x))
    return slope, error if len(values) >= FEWEST else math.nan


def geometric(values: Sequence[float] | FloatArray) -> float:
    """The geometric mean of positive numbers.

    Examples
    --------
    >>> round(geometric([1.0, 100.0]), 9)
    10.0
    """
    return float(np.exp(np.log(np.asarray(values, np.float64)).mean()))


def holds(claim: bool) -> Verdict:
    """The verdict on a sentence that is either right or wrong here, without chance in it.

    Examples
    --------
    >>> holds(3 > 2), holds(2 > 3)
    ('agrees', 'does not hold')
    """
    return "agrees" if claim else "does not hold"


def estimated_above(mean: float, error: float, limit: float) -> Verdict:
    """The verdict on "it is above the limit", from an estimate and its standard error (NaN: not known).

    Examples
    --------
    >>> estimated_above(1.0, 0.1, 0.5), estimated_above(1.0, 0.4, 0.5), estimated_above(0.1, 0.1, 0.5)
    ('agrees', 'undecided', 'does not hold')
    """
    if not (math.isfinite(mean) and math.isfinite(error)):
        return "undecided"
    if mean - ERRORS * error > limit:
        return "agrees"
    return "does not hold" if mean + ERRORS * error <= limit else "undecided"


def above(values: Sequence[float] | FloatArray, limit: float = 0.0) -> Verdict:
    """The verdict on "the mean is above the limit", from one value of each run.

    Examples
    --------
    >>> above([1.0, 1.1, 0.9]), above([-1.0, -1.1, -0.9]), above([1.0, -1.0, 0.5]), above([1.0, 1.1])
    ('agrees', 'does not hold', 'undecided', 'undecided')
    """
    if np.size(values) < FEWEST:
        return "undecided"
    return estimated_above(*mean_and_error(values), limit)


def below(values: Sequence[float] | FloatArray, limit: float = 0.0) -> Verdict:
    """The verdict on "the mean is below the limit"."""
    return above(-np.asarray(values, np.float64), -limit)


def within(values: Sequence[float] | FloatArray, low: float, high: float) -> Verdict:
    """The verdict on "the mean lies between two limits".

    Examples
    --------
    >>> within([1.0, 1.1, 0.9], 0.5, 2.0), within([1.0, 1.1, 0.9], 1.0, 2.0), within([3.0, 3.1, 2.9], 0.5, 2.0)
    ('agrees', 'undecided', 'does not hold')
    """
    return both(above(values, low), below(values, high))


def mostly(values: Sequence[float] | FloatArray, limit: float = 0.0) -> Verdict:
    """The verdict on "the median is above the limit", by the share of values above it: a sign test.

    Examples
    --------
    >>> mostly([1.0, 2.0, 9.0, 4.0]), mostly([-1.0] * 9 + [3.0]), mostly([1.0, -1.0, 1.0, 1.0]), mostly([1.0] * 3)
    ('agrees', 'does not hold', 'undecided', 'undecided')
    """
    array = np.asarray(values, np.float64)
    more = float((array > limit).sum()) - array.size / 2
    if abs(more) < ERRORS * math.sqrt(array.size) / 2:
        return "undecided"
    return "agrees" if more > 0 else "does not hold"


def rarely(values: Sequence[float] | FloatArray, limit: float = 0.0) -> Verdict:
    """The verdict on "the median is below the limit"."""
    return mostly(-np.asarray(values, np.float64), -limit)


def magnitude(paper: float, values: Sequence[float] | FloatArray, otherwise: Verdict = "does not hold") -> Verdict:
    """The verdict on "the geometric mean of positive values is within a factor of ten of the paper's number".

    Examples
    --------
    >>> magnitude(1.0, [0.3, 0.4, 0.5]), magnitude(1.0, [30.0, 40.0, 50.0]), magnitude(1.0, [5.0, 10.0, 19.0])
    ('agrees in order of magnitude', 'does not hold', 'undecided')
    """
    found = within(np.log10(np.asarray(values, np.float64) / paper), -1.0, 1.0)
    if found == "agrees":
        return "agrees in order of magnitude"
    return otherwise if found == "does not hold" else found


def both(*verdicts: Verdict) -> Verdict:
    """The verdict on a claim of several parts: one that does not hold decides, then one that is undecided.

    Examples
    --------
    >>> both("agrees", "undecided"), both("does not hold", "undecided"), both("agrees", "agrees")
    ('undecided', 'does not hold', 'agrees')
    """
    for worse in ("does not hold", "undecided"):
        if worse in verdicts:
            return worse
    return "agrees"


def either(*verdicts: Verdict) -> Verdict:
    """The verdict on "at least one of them": one that agrees decides, then one that is undecided.

    Examples
    --------
    >>> either("agrees", "does not hold"), either("does not hold", "undecided")
    ('agrees', 'undecided')
    """
    for better in ("agrees", "undecided"):
        if better in verdicts:
            return better
    return "does not hold"


def opposite(verdict: Verdict) -> Verdict:
    """The verdict on the contrary.

    Examples
    --------
    >>> opposite("agrees"), opposite("undecided")
    ('does not hold', 'undecided')
    """
    turned: dict[Verdict, Verdict] = {"agrees": "does not hold", "does not hold": "agrees"}
    return turned.get(verdict, verdict)


def counted(verdicts: Iterable[Verdict]) -> tuple[Verdict, ...]:
    """Those of claims about one fact, or with one cause, that count: each kind of verdict once.

    Examples
    --------
    >>> counted(["agrees", "agrees"]), counted(["does not hold", "undecided", "undecided"])
    (('agrees',), ('does not hold', 'undecided'))
    """
    return tuple(dict.fromkeys(verdicts))


def beyond_control(claimed: Verdict, added: Verdict) -> Verdict:
    """The verdict on a claim that a control without any training may satisfy as well.

    Parameters
    ----------
    claimed : on the claim itself; if it does not agree, that decides.
    added : on "more than what the control gives"; if it is not so, nothing is learned from the claim.

    Examples
    --------
    >>> beyond_control("agrees", "agrees"), beyond_control("agrees", "does not hold")
    ('agrees', 'not comparable')
    >>> beyond_control("does not hold", "agrees"), beyond_control("agrees", "undecided")
    ('does not hold', 'undecided')
    """
    if claimed != "agrees":
        return claimed
    return "not comparable" if added == "does not hold" else added
