"""How changes of inputs, worlds and the largest changes of outputs read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow import wording
from counterflow.caveats import Caveat
from counterflow.control import Law, as_law
from counterflow.notebook import Table
from counterflow.plant.units import Channel
from counterflow.protocol.questions import HELD, REACTING
from counterflow.questions.closed_loop import HELD_CODE, REACTING_CODE
from counterflow.questions.numbers import finite, named

if TYPE_CHECKING:
    from counterflow.questions.answer import Described
    from counterflow.questions.timeline import Timeline

SHOWN = 8  # rows of a table


# ---- changes of inputs


def signed(value: float, unit: str) -> str:
    """ "+0.1 %" """
    return wording.quantity(wording.exact(value, sign=True), unit)


def plainly(value: float, unit: str) -> str:
    """ "0.1 %" """
    return wording.quantity(wording.exact(value), unit)


def sideways(value: float, unit: str) -> str:
    """ "0.1 % higher" """
    return f"{wording.quantity(wording.exact(abs(value)), unit)} {'lower' if value < 0 else 'higher'}"


def with_verb(pairs: Sequence[tuple[str, str]], verb: str) -> str:
    """ "what <verb> how, what how and what how"."""
    (first, how), *rest = pairs
    return wording.listed([f"{first} {verb} {how}", *(f"{what} {how}" for what, how in rest)])


def sized(value: float, unit: str, sign: bool = True) -> str:
    """ "+0.123 %", with three digits that count"""
    return wording.quantity(wording.number(float(value), sign=sign), unit)


def moved(
    plant: Described, unit: str, name: str, value: Any, text: Callable[[float, str], str] = signed,
    given: str = "changed as given",
) -> tuple[str, str]:  # fmt: skip
    """("boiler valve", "+0.1 %"): an input, and what becomes of it; ``given`` stands for a series."""
    measure = {channel.name: channel.unit for channel in plant.unit(unit).inputs}.get(name, "")
    return f"{unit} {name}", text(float(value), measure) if np.ndim(value) == 0 else given


# ---- worlds


def world_of(caveats: Iterable[Caveat]) -> str:
    """ "reacting" or "held": the world that an answer is about, by what it must be read with."""
    return named_world(caveats) or HELD


def named_world(caveats: Iterable[Caveat]) -> str | None:
    """The same, and None where no controllers are known."""
    codes = {caveat.code for caveat in caveats}
    return REACTING if REACTING_CODE in codes else HELD if HELD_CODE in codes else None


def world_words(caveats: Iterable[Caveat], laws: Mapping[str, Mapping[str, Law]] | None = None) -> str:
    """ " (controllers react)" or " (controllers held)"; nothing where no controllers are known.

    ``laws``: other laws that controllers are supposed to follow.
    """
    more = "".join(f", {place} {law}" for place, law in laws_words(laws))
    return {REACTING: f" (controllers react{more})", HELD: " (controllers held)"}.get(named_world(caveats) or "", "")


def laws_words(laws: Mapping[str, Mapping[str, Law]] | None) -> list[tuple[str, str]]:
    """("boiler valve", "in manual"), or ("boiler valve", "under PI: gain 2"), of every other law.

    >>> from counterflow.control import PID, Manual
    >>> laws_words({"boiler": {"valve": Manual(), "fuel": PID(2.0)}})
    [('boiler valve', 'in manual'), ('boiler fuel', 'under P: gain 2')]
    """
    return [
        (f"{unit} {name}", as_law(law).state) for unit, given in (laws or {}).items() for name, law in given.items()
    ]


# ---- the largest changes of outputs


def interval(
    value: float, lower: float | None, upper: float | None, unit: str, level: float | None, sign: bool = False,
    more: str = "",
) -> str:  # fmt: skip
    """ "3.2 rpm (95 %: 2.8 to 3.6)"; ``more`` stands behind the interval."""
    text, ends = wording.measured(value, lower, upper, unit, sign=sign)
    return f"{text} ({wording.percent(level)}: {ends}{more})" if ends and level is not None else text


@dataclass(frozen=True)
class Peak:
    """The largest change of one channel: when, how much, between what."""

    unit: str
    channel: Channel
    row: int
    value: float
    lower: float | None
    upper: float | None
    size: float  # in standard deviations of the channel's noise
    last: float

    @property
    def is_nothing(self) -> bool:
        """Whether there surely is no change: a wide interval around zero is no such thing."""
        return self.size == 0 and not self.lower and not self.upper

    @property
    def falls(self) -> bool:
        return self.value < 0

    def by(self, level: float | None) -> str:
        """ "3.2 rpm (95 %: 2.8 to 3.6)": how far, with the interval in the change's direction."""
        if self.lower is None or self.upper is None:
            return interval(abs(self.value), None, None, self.channel.unit, level)
        sign = -1.0 if self.falls else 1.0
        unsure = "" if self.lower > 0 or self.upper < 0 else "; its sign is not sure"
        ends = sorted((sign * self.lower, sign * self.upper))
        return interval(abs(self.value), ends[0], ends[1], self.channel.unit, level, more=unsure)

    def to_json(self, timeline: Timeline) -> dict[str, Any]:
        """In plain types; the answer's ``timeline`` says what its row is called."""
        when, more = timeline.peak
        return {
            "unit": self.unit, **named(self.channel), when: self.row + more, "mean": self.value, "lower": self.lower,
            "upper": self.upper, "size": self.size, "last": finite(self.last),
        }  # fmt: skip


def peak_table(title: str, found: Sequence[Peak], level: float | None, timeline: Timeline) -> Table:
    """A table of the largest changes."""
    several = len({peak.unit for peak in found}) > 1
    columns = [*(["unit"] if several else []), "channel", "largest change"]
    columns += [f"{wording.percent(level)} interval"] if level is not None else []
    columns += [timeline.head, *([] if several else ["at the end"]), "× noise"]
    rows = []
    for peak in found[:SHOWN]:
        value, ends = wording.measured(peak.value, peak.lower, peak.upper, peak.channel.unit, sign=True)
        moment = str(peak.row + timeline.peak[1]) if timeline.calendar is None else timeline.calendar.shown(peak.row)
        cells = [*([peak.unit] if several else []), peak.channel.name, value]
        cells += [ends] if level is not None else []
        cells += [moment, *([] if several else [wording.number(peak.last, sign=True)])]
        rows.append([*cells, wording.number(peak.size)])
    return Table(title, columns, rows, 2 if several else 1, left_out(len(found)))


def left_out(count: int) -> str:
    return f"and {count - SHOWN} more channels; all of them with --format json" if count > SHOWN else ""
