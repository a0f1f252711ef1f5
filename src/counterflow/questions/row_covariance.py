"""How the errors of an answer's rows go together, between server and unit: directions as a share of the answer.

The largest ones are sent; what a row's own covariance holds beyond them is taken to be that row's alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import ProtocolError
from counterflow.learning.ensemble import compressed
from counterflow.protocol import Answer

JOINT = "joint"  # share of an answer: directions, one below the other


def share_of(answer: Answer, directions: FloatArray | None) -> tuple[Answer, ...]:
    """An answer with its directions (k, n, P_m) behind it, where there are any."""
    if directions is None or not len(directions):
        return (answer,)
    stacked = np.ascontiguousarray(compressed(directions).reshape(-1, answer.mean.shape[1]))
    none = np.zeros((0, answer.mean.shape[1]))
    return answer, Answer(answer.unit, answer.kind, JOINT, "", stacked, none)


def directions_of(parts: Sequence[Answer], rows: int) -> FloatArray | None:
    """Directions (k, rows, P_m) that a unit was sent; None: it was sent none."""
    for piece in parts:
        if piece.share == JOINT:
            if len(piece.mean) % max(rows, 1):
                raise ProtocolError(f"answer: {len(piece.mean)} rows are not directions of {rows} rows")
            return piece.mean.reshape(-1, rows, piece.mean.shape[1])
    return None
