"""Where each unit's states and inputs stand when the columns of all units are side by side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from counterflow.errors import ProtocolError


@dataclass(frozen=True)
class Layout:
    """Names of the units, and how many states and inputs each has."""

    names: tuple[str, ...]
    states: tuple[int, ...]
    inputs: tuple[int, ...]

    @cached_property
    def state_slices(self) -> tuple[slice, ...]:
        return slices_of(self.states)

    @cached_property
    def input_slices(self) -> tuple[slice, ...]:
        return slices_of(self.inputs)


def slices_of(sizes: tuple[int, ...]) -> tuple[slice, ...]:
    """Where blocks of these sizes stand, side by side."""
    ends = np.cumsum((0, *sizes))
    return tuple(slice(int(a), int(b)) for a, b in pairwise(ends))


def refuse_other_rows(unit: str, rows: int, others: Mapping[str, int]) -> None:
    """All units must send the same period."""
    for other, count in others.items():
        if count != rows:
            raise ProtocolError(
                f"server: unit {unit!r} sent {rows} rows, unit {other!r} {count}: all units must send the same period"
            )
