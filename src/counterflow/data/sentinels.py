"""Numbers that stand for no number: -999, 9999, 1e30 and the like, which historians and gateways write."""

from __future__ import annotations

import numpy as np

from counterflow.arrays import FloatArray

OFTEN = 3  # times that such a number recurs, at least
ISOLATED = 10.0  # ranges of all others that it lies away from them
USUAL = 0.5  # the same of numbers that programs use so
FEWEST_LEVELS, CONTINUOUS = 3, 20  # different values of all others, without which nothing can be called far
MOST = 4  # of one column
HUGE = 1e30
_LIMITS = (32767.0, -32768.0, 65535.0, 2147483647.0, -2147483648.0, 4294967295.0)


def sentinels_of(values: FloatArray) -> dict[float, int]:
    """{value: how often} of the numbers of a column that stand for no number.

    Such a number recurs exactly, and stands far below or above all others. Zero is none: things are off.

    Examples
    --------
    >>> found = np.array([20.5, 21.0, -999.0, 22.5, 21.5, -999.0, 20.75, -999.0, np.nan])
    >>> sentinels_of(found)
    {-999.0: 3}
    >>> sentinels_of(np.array([0.0, 0.0, 0.0, 50.1, 50.2, 50.3, 50.4]))
    {}
    """
    levels, counts = np.unique(values[np.isfinite(values)], return_counts=True)
    out: dict[float, int] = {}
    while len(out) < MOST and len(levels) > FEWEST_LEVELS:
        ends = [(levels[0], counts[0], levels[1:], slice(1, None)), (levels[-1], counts[-1], levels[:-1], slice(-1))]
        for value, count, others, rest in ends:
            if _stands_for_none(float(value), int(count), others):
                out[float(value)] = int(count)
                levels, counts = levels[rest], counts[rest]
                break
        else:
            break
    return out


def _stands_for_none(value: float, count: int, others: FloatArray) -> bool:
    if value == 0 or count < OFTEN or len(others) < FEWEST_LEVELS:
        return False
    gap, span = float(np.abs(others - value).min()), float(others[-1] - others[0])
    if _is_usual(value):
        return gap > USUAL * span
    return len(others) > CONTINUOUS and gap > ISOLATED * span  # of a few levels, one may well lie apart


def _is_usual(value: float) -> bool:
    """Whether programs write this number where they have none."""
    if abs(value) >= HUGE or value in _LIMITS:
        return True
    whole = f"{abs(value):.10g}".partition(".")
    nines = len(whole[0]) >= (3 if value > 0 else 2) and set(whole[0]) == {"9"}  # 99 % is where a valve may stand
    return nines and whole[2] in ("", "25", "9", "99")
