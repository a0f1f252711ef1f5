"""Effects of a change of one unit's inputs, at the level of states (paper, Eqs. (2), (16)-(17)).

A linear system answers the difference of two worlds with the same noise by the noise-free recursion of method §6::

    Δh[t] = A Δh[t-1] + B Δu[t-1],        Δy_m = C_mm Δh_m
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from counterflow.recurrence import linear_recurrence

FloatArray = NDArray[np.float64]


def state_response(A: FloatArray, B: FloatArray, change: FloatArray) -> FloatArray:
    """Δh (horizon, P) for an input change ``change`` (horizon, U); row k is k+1 steps after the change began."""
    return linear_recurrence(A, change @ B.T, np.zeros(A.shape[0]))


def held_change(change: FloatArray, horizon: int, duration: int | None) -> FloatArray:
    """A change (U,) held for ``duration`` steps (None: throughout), as a schedule (horizon, U)."""
    schedule = np.tile(change, (horizon, 1))
    if duration is not None:
        schedule[duration:] = 0.0
    return schedule
