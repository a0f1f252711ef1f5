"""What an answer about the running plant says of its window: replicates, each a whole world, and what they agree on.

Where a controller switches, single rows are uncertain by a whole switch, and so is their mean over replicates. Means
over the window, extremes and the share of time that an input is on are computed in every world by itself, and are
known well where rows are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat
from counterflow.plant.units import Channel, unknown_name
from counterflow.protocol import Answer
from counterflow.questions.answering import REACTIONS, REPLICATES
from counterflow.questions.closed_loop import SWITCH_CODE
from counterflow.questions.phrases import interval

if TYPE_CHECKING:
    from counterflow.exchange.part import UnitPart
    from counterflow.questions.plots import Line

SWITCHING = " A controller switches, so that of the window as a whole more is certain: {} on average {}{}."
DUTY = ", {} on for {} of the time"


@dataclass(frozen=True)
class Certain:
    """A number with its interval: mean of the replicates, and what lies between them."""

    mean: float
    lower: float
    upper: float

    def words(self, unit: str, level: float, factor: float = 1.0) -> str:
        """ "+0.03 m (95 %: +0.01 to +0.05)"; of ``factor`` times the number."""
        return interval(factor * self.mean, factor * self.lower, factor * self.upper, unit, level, sign=True)

    @classmethod
    def from_worlds(cls, values: FloatArray, level: float) -> Certain:
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
    relays: Mapping[str, float] = field(default_factory=dict)
    """The unit's own inputs that a relay moves, each with how far apart its two positions are."""

    @classmethod
    def from_parts(cls, part: UnitPart, parts: Sequence[Answer]) -> Replicates | None:
        """From the parts of an answer; None: it is not about the running plant."""
        found = {piece.share: piece.mean for piece in parts}
        if REPLICATES not in found:
            return None
        rows = len(parts[0].mean)
        states = found[REPLICATES].reshape(-1, rows, found[REPLICATES].shape[1])
        given = found.get(REACTIONS)
        u = np.zeros((len(states), rows, 0)) if given is None else given.reshape(-1, rows, given.shape[1])
        laws = {each.loop.moves: each.acting for each in part.controllers if each.usable}
        relays = {name: law.swing for name, law in laws.items() if law.swing}
        inputs = part.unit.input_names if u.shape[2] else ()
        return cls(part.unit.output_names, inputs, states @ part.model.C.T, u, relays)

    def mean(self, channel: str, start: int = 0, stop: int | None = None, level: float = 0.95) -> Certain:
        """Mean change of an output, or of one of the unit's own inputs, over rows start to stop - 1 of the answer."""
        return Certain.from_worlds(self._rows(channel, start, stop).mean(axis=1), level)

    def largest(self, channel: str, start: int = 0, stop: int | None = None, level: float = 0.95) -> Certain:
        """The change that is furthest from zero, in every world by itself."""
        rows = self._rows(channel, start, stop)
        at = np.abs(rows).argmax(axis=1)
        return Certain.from_worlds(rows[np.arange(len(rows)), at], level)

    def duty(self, channel: str, start: int = 0, stop: int | None = None, level: float = 0.95) -> Certain:
        """Change of the share of time that an input stands where its relay puts it below its levels."""
        if channel not in self.relays:
            raise unknown_name("input that a relay moves", channel, tuple(self.relays))
        return Certain.from_worlds(self._rows(channel, start, stop).mean(axis=1) / self.relays[channel], level)

    def words(self, channel: Channel, caveats: Iterable[Caveat], level: float | None) -> str:
        """What is certain of a window in which a controller switches: its mean, and the duty of what is switched."""
        if SWITCH_CODE not in {caveat.code for caveat in caveats}:
            return ""
        level = 0.95 if level is None else level
        mean = self.mean(channel.name, level=level).words(channel.unit, level)
        duties = [DUTY.format(name, self.duty(name, level=level).words("points", level, 100.0)) for name in self.relays]
        return SWITCHING.format(channel.name, mean, "".join(duties))

    def lines(self, k: int, base: FloatArray, caveats: Iterable[Caveat], colour: str) -> list[Line]:
        """The mean of an output over the window with its interval, for a picture; nothing where no relay switches.

        ``base`` (rows,): what the change is added to.
        """
        from counterflow.questions.plots import Line

        if SWITCH_CODE not in {caveat.code for caveat in caveats}:
            return []
        found, middle = self.mean(self.outputs[k]), float(np.nanmean(base))
        mean, lower, upper = (np.full(len(base), middle + each) for each in (found.mean, found.lower, found.upper))
        return [Line("mean of the window", mean, lower, upper, {"color": colour, "linestyle": "--"}, "average")]

    def _rows(self, channel: str, start: int, stop: int | None) -> FloatArray:
        if channel in self.inputs:
            return np.asarray(self.u[:, start:stop, self.inputs.index(channel)])
        return np.asarray(self.y[:, start:stop, self.outputs.index(channel)])
