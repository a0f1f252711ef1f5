"""A fixed ratio between two flows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from counterflow.arrays import FloatArray, real_number
from counterflow.control.law import FREE, ControlLaw, LawInput, check_limits, limits_words
from counterflow.errors import ModelError


@dataclass(frozen=True)
class Ratio(ControlLaw):
    """The moved input is a multiple of the reading: u = ratio y + bias, within the limits.

    Where the loop has a target, that is the ratio, and ``ratio`` multiplies it.

    Examples
    --------
    >>> Ratio(0.5, bias=1.0).output(LawInput(np.zeros((1, 0)), np.array([[4.0]]), np.array([[np.nan]]), row=0)).tolist()
    [3.0]
    """

    kind: ClassVar[str] = "ratio"

    ratio: float = 1.0
    bias: float = 0.0
    limits: tuple[float, float] = FREE

    def __post_init__(self) -> None:
        for name in ("ratio", "bias"):
            object.__setattr__(self, name, real_number(getattr(self, name), f"Ratio: {name}", kind=ModelError))
        object.__setattr__(self, "limits", check_limits(self.limits, "Ratio"))

    def answer(self, seen: LawInput) -> FloatArray:
        target = np.where(np.isnan(seen.target[:, -1]), 1.0, seen.target[:, -1])
        return np.asarray(self.ratio * target * seen.reading[:, -1] + self.bias)

    def __str__(self) -> str:
        return f"ratio {self.ratio:.4g}, bias {self.bias:.4g}{limits_words(self.limits)}"
