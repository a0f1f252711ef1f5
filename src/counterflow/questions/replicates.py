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

from counterflow import wording
from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat
from counterflow.control import Law, as_law
from counterflow.plant.units import Channel, unknown_name
from counterflow.protocol import Answer
from counterflow.protocol.questions import HELD, REACTING
from counterflow.questions.parts import REACTIONS, REPLICATES

if TYPE_CHECKING:
    from counterflow.exchange.part import UnitPart
    from counterflow.questions.plots import Line

REACTING_CODE, HELD_CODE, SWITCH_CODE = "controllers-reacting", "controllers-held", "controllers-switch"
SWITCHING = " A controller switches, so that of the window as a whole more is certain: {} on average {}{}."
DUTY = ", {} on for {} of the time"


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
        (f"{unit} {name}", as_law(law).state) for unit, given in (laws or {}).items() for name, law in given.items()
    ]


@dataclass(frozen=True)
class Certain:
    """A number with its interval: mean of the replicates, and what lies between them."""

    mean: float
    lower: float
    upper: float

    def words(self, unit: str, level: float) -> str:
        """ "+0.03 m (95 %: +0.01 to +0.05)" """
        text, interval = wording.measured(self.mean, self.lower, self.upper, unit, sign=True)
        return f"{text} ({wording.percent(level)}: {interval})"

    def times(self, factor: float) -> Certain:
        """The same in other units."""
        return Certain(*(factor * each for each in (self.mean, self.lower, self.upper)))

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
    def from_parts(cls, part: UnitPart, parts: Sequence[Answer], rows: int) -> Replicates | None:
        """From the parts of an answer; None: it is not about the running plant."""
        found = {piece.share: piece.mean for piece in parts}
        if REPLICATES not in found:
            return None
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
        on = [(name, self.duty(name, level=level)) for name in self.relays]
        duties = [DUTY.format(name, found.times(100.0).words("points", level)) for name, found in on]
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
