"""Where each unit's states and inputs stand when the columns of all units are side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from counterflow.arrays import FloatArray, slices
from counterflow.errors import ProtocolError


@dataclass(frozen=True)
class Layout:
    """Names of the units, and how many states and inputs each has."""

    names: tuple[str, ...]
    states: tuple[int, ...]
    inputs: tuple[int, ...]

    @cached_property
    def state_slices(self) -> tuple[slice, ...]:
        return slices(self.states)

    @cached_property
    def input_slices(self) -> tuple[slice, ...]:
        return slices(self.inputs)


def own_blocks(matrix: FloatArray, rows: Sequence[slice], columns: Sequence[slice]) -> FloatArray:
    """`matrix` with zeros in place of every block that is not one unit's own."""
    out = np.zeros_like(matrix)
    for own, theirs in zip(rows, columns, strict=True):
        out[own, theirs] = matrix[own, theirs]
    return out


def refuse_other_rows(unit: str, rows: int, others: Mapping[str, int]) -> None:
    """All units must send the same period."""
    for other, count in others.items():
        if count != rows:
            raise ProtocolError(
                f"server: unit {unit!r} sent {rows} rows, unit {other!r} {count}: all units must send the same period"
            )
