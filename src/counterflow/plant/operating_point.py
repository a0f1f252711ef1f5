"""Where a unit's inputs rest, and which row they act on: what stands between a log and the recursion."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from counterflow.arrays import FloatArray


@dataclass(frozen=True, eq=False)
class OperatingPoint:
    """How a unit's logged inputs become those of the model."""

    input_level: FloatArray
    same_row: bool = False

    @classmethod
    def none(cls, inputs: int) -> OperatingPoint:
        """Inputs that are the model's as they are."""
        return cls(np.zeros(inputs))

    def departures(self, u: FloatArray) -> FloatArray:
        """Inputs (T+1, U) as the model takes them: row t acts on row t + 1. The last row of a shifted log is held."""
        shifted = np.vstack([u[1:], u[-1:]]) if self.same_row else u
        return np.ascontiguousarray(shifted - self.input_level)
