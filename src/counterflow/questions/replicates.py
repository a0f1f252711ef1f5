"""What an answer about the running plant says of its window: replicates, each a whole world, and what they agree on.

Where a controller switches, single rows are uncertain by a whole switch, and so is their mean over replicates. Means
over the window, extremes and the share of time that an input is on are computed in every world by itself, and are
known well where rows are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat
from counterflow.control.laws import Law, Manual
from counterflow.protocol import Answer
from counterflow.protocol.questions import HELD, REACTING
from counterflow.questions.parts import REACTIONS, REPLICATES

if TYPE_CHECKING:
    from counterflow.methods.part import UnitPart

REACTING_CODE, HELD_CODE, SWITCH_CODE = "controllers-reacting", "controllers-held", "controllers-switch"


def world_of(caveats: Iterable[Caveat]) -> str:
    """ "reacting" or "held": the world that an answer is about, by what it must be read with."""
    return REACTING if any(caveat.code == REACTING_CODE for caveat in caveats) else HELD


def named_world(caveats: Iterable[Caveat]) -> str | None:
    """The same, and None where no controllers are known."""
    codes = {caveat.code for caveat in caveats}
    return world_of(caveats) if codes & {REACTING_CODE, HELD_CODE} else None


def world_words(caveats: Iterable[Caveat], laws: Mapping[str, Mapping[str, Law]] | None = None) -> str:
    """ " (controllers react)" or " (controllers held)"; nothing where no controllers are known.

    ``laws``: other laws that controllers are supposed to follow.
    """
    codes = {caveat.code for caveat in caveats}
    more = "".join(f", {place} {law}" for place, law in laws_words(laws))
    return f" (controllers react{more})" if REACTING_CODE in codes else " (controllers held)" * (HELD_CODE in codes)


def laws_words(laws: Mapping[str, Mapping[str, Law]] | None) -> list[tuple[str, str]]:
    """("boiler valve", "in manual"), or ("boiler valve", "under PI: gain 2"), of every other law.

    >>> from counterflow.control import PID, Manual
    >>> laws_words({"boiler": {"valve": Manual(), "fuel": PID(2.0)}})
    [('boiler valve', 'in manual'), ('boiler fuel', 'under P: gain 2')]
    """
    return [
        (f"{unit} {name}", "in manual" if isinstance(law, Manual) else f"under {law}")
        for unit, given in (laws or {}).items()
        for name, law in given.items()
    ]


@dataclass(frozen=True)
class Certain:
    """A number with its interval: mean of the replicates, and what lies between them."""

    mean: float
    lower: float
    upper: float

    @classmethod
    def of(cls, values: FloatArray, level: float) -> Certain:
        """Of one number for every replicate (K,), by a normal interval."""
        from scipy.special import ndtri

        reach = float(ndtri((1 + level) / 2) * values.std(ddof=1)) if len(values) > 1 else 0.0
        middle = float(values.mean())
        return cls(middle, middle - reach, middle + reach)


@dataclass(frozen=True, eq=False)
class Replicates:
    """Worlds of an answer: changes of the outputs ``y`` (K, n, D_m), and of the unit's own inputs ``u`` (K, n, U_m).

    Both are what the change does: of an input that a controller moves, what the controller answers with.
    """

    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    y: FloatArray
    u: FloatArray

    @classmethod
    def of(cls, part: UnitPart, parts: Sequence[Answer], rows: int) -> Replicates | None:
        """From the parts of an answer; None: it is not about the running plant."""
        found = {piece.share: piece.mean for piece in parts}
        if REPLICATES not in found:
            return None
        states = found[REPLICATES].reshape(-1, rows, found[REPLICATES].shape[1])
        given = found.get(REACTIONS)
        u = np.zeros((len(states), rows, 0)) if given is None else given.reshape(-1, rows, given.shape[1])
        return cls(part.unit.output_names, part.unit.input_names if u.shape[2] else (), states @ part.model.C.T, u)

    def mean(self, channel: str, start: int = 0, stop: int | None = None, level: float = 0.95) -> Certain:
        """Mean change of an output, or of one of the unit's own inputs, over rows start to stop - 1 of the answer."""
        return Certain.of(self._rows(channel, start, stop).mean(axis=1), level)

    def largest(self, channel: str, start: int = 0, stop: int | None = None, level: float = 0.95) -> Certain:
        """The change that is furthest from zero, in every world by itself."""
        rows = self._rows(channel, start, stop)
        at = np.abs(rows).argmax(axis=1)
        return Certain.of(rows[np.arange(len(rows)), at], level)

    def _rows(self, channel: str, start: int, stop: int | None) -> FloatArray:
        if channel in self.inputs:
            return np.asarray(self.u[:, start:stop, self.inputs.index(channel)])
        return np.asarray(self.y[:, start:stop, self.outputs.index(channel)])
