"""The largest change of each channel, and the intervals around answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from counterflow import wording
from counterflow.arrays import FloatArray
from counterflow.notebook import Table
from counterflow.plant.units import Channel
from counterflow.protocol import Answer
from counterflow.questions.numbers import finite, named
from counterflow.questions.timeline import Timeline

SHOWN = 8  # rows of a table


def deviation(
    answer: Answer, C: FloatArray, noise: FloatArray | None = None, doubt: tuple[FloatArray, FloatArray] | None = None
) -> FloatArray | None:
    """Standard deviation (rows, D_m) of C times the answer's states, plus noise of variances ``noise``, (rows,) D_m.

    ``doubt``: variances (D_m,) and a matrix (P_m, P_m), where C itself is an estimate: row i of it has covariance
    variance i times the matrix.
    """
    if not len(answer.covariance):
        return None
    blocks = answer.covariance.reshape(len(answer.mean), C.shape[1], C.shape[1])
    variance = np.einsum("di,tij,dj->td", C, blocks, C)
    if doubt is not None:
        variance = variance + np.einsum("ti,ij,tj->t", answer.mean, doubt[1], answer.mean)[:, None] * doubt[0]
    if noise is not None:
        variance = variance + noise
    return np.asarray(np.sqrt(np.maximum(variance, 0.0)))


def band(mean: FloatArray, spread: FloatArray | None, level: float) -> tuple[FloatArray | None, FloatArray | None]:
    """Lower and upper bounds of a two-sided interval, or None."""
    if spread is None:
        return None, None
    from scipy.special import ndtri

    half = float(ndtri(0.5 + level / 2)) * spread
    return mean - half, mean + half


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
        sign = -1.0 if self.falls else 1.0
        lower = upper = None
        if self.lower is not None and self.upper is not None:
            lower, upper = sorted((sign * self.lower, sign * self.upper))
        text, interval = wording.measured(abs(self.value), lower, upper, self.channel.unit)
        if not interval or level is None or self.lower is None or self.upper is None:
            return text
        unsure = "" if self.lower > 0 or self.upper < 0 else "; its sign is not sure"
        return f"{text} ({wording.percent(level)}: {interval}{unsure})"

    def to_json(self, when: str, more: int) -> dict[str, Any]:
        """In plain types; ``when`` names the row, to which ``more`` is added."""
        return {
            "unit": self.unit,
            **named(self.channel),
            when: self.row + more,
            "mean": self.value,
            "lower": self.lower,
            "upper": self.upper,
            "size": self.size,
            "last": finite(self.last),
        }


def peak_table(title: str, found: Sequence[Peak], level: float | None, timeline: Timeline) -> Table:
    """A table of the largest changes."""
    several = len({peak.unit for peak in found}) > 1
    columns = [*(["unit"] if several else []), "channel", "largest change"]
    columns += [f"{wording.percent(level)} interval"] if level is not None else []
    columns += [timeline.head, *([] if several else ["at the end"]), "× noise"]
    rows = []
    for peak in found[:SHOWN]:
        value, interval = wording.measured(peak.value, peak.lower, peak.upper, peak.channel.unit, sign=True)
        moment = str(peak.row + timeline.peak[1]) if timeline.calendar is None else timeline.calendar.shown(peak.row)
        cells = [*([peak.unit] if several else []), peak.channel.name, value]
        cells += [interval] if level is not None else []
        cells += [moment, *([] if several else [wording.number(peak.last, sign=True)])]
        rows.append([*cells, wording.number(peak.size)])
    return Table(title, columns, rows, 2 if several else 1, left_out(len(found)))


def left_out(count: int) -> str:
    return f"and {count - SHOWN} more channels; all of them with --format json" if count > SHOWN else ""
