"""No controller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.control.law import ControlLaw, LawInput


@dataclass(frozen=True)
class Manual(ControlLaw):
    """No controller: the moved input stays where it was.

    Examples
    --------
    >>> Manual().output(LawInput(np.array([[3.0]]), np.zeros((1, 2)), np.zeros((1, 2)), row=1)).tolist()
    [3.0]
    """

    kind: ClassVar[str] = "manual"
    looks: ClassVar[bool] = False
    state: ClassVar[str] = "in manual"

    @property
    def memory(self) -> int:
        return 1

    def answer(self, seen: LawInput) -> FloatArray:
        return np.array(seen.moved[:, -1])

    def __str__(self) -> str:
        return "manual"
