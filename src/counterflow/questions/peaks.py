"""The largest change of each channel, and the intervals around answers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from counterflow import wording
from counterflow.arrays import FloatArray
from counterflow.notebook import Table
from counterflow.plant.calendar import Calendar
from counterflow.plant.units import Channel
from counterflow.protocol import Answer
from counterflow.questions.reply import SHOWN, About, Reply
from counterflow.questions.views import finite, named


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

    def sentence(self, level: float | None) -> tuple[float, str]:
        """The change's direction, and "by 3.2 rpm (95 %: 2.8 to 3.6)" with the interval in that direction."""
        sign = -1.0 if self.value < 0 else 1.0
        lower = upper = None
        if self.lower is not None and self.upper is not None:
            lower, upper = sorted((sign * self.lower, sign * self.upper))
        text, interval = wording.measured(abs(self.value), lower, upper, self.channel.unit)
        if not interval or level is None or self.lower is None or self.upper is None:
            return sign, text
        unsure = "" if self.lower > 0 or self.upper < 0 else "; its sign is not sure"
        return sign, f"{text} ({wording.percent(level)}: {interval}{unsure})"

    def to_json(self, when: str = "row", first: int = 0) -> dict[str, Any]:
        """In plain types; ``when`` names the row, counted from ``first``."""
        return {
            "unit": self.unit,
            **named(self.channel),
            when: self.row + first,
            "mean": self.value,
            "lower": self.lower,
            "upper": self.upper,
            "size": self.size,
            "last": finite(self.last),
        }


class Peaked(Reply):
    """An answer that tells of changes: the channels with the largest ones come first."""

    @property
    @abstractmethod
    def peaks(self) -> list[Peak]:
        """The largest change of every channel, largest (against its noise) first."""

    def order(self) -> list[int]:
        return [self.about.output(peak.channel.name) for peak in self.peaks]

    def peak(self, channel: str | None) -> Peak:
        """Of one channel; None: the largest of all."""
        return next(peak for peak in self.peaks if channel in (None, peak.channel.name))


def peaks(about: About, mean: FloatArray, lower: FloatArray | None, upper: FloatArray | None) -> list[Peak]:
    """The largest change of every channel, largest (against its noise) first; NaN counts as no change."""
    out = []
    for k, channel in enumerate(about.outputs):
        column = np.abs(np.nan_to_num(mean[:, k]))
        row = int(column.argmax())
        low, high = (None if end is None else float(end[row, k]) for end in (lower, upper))
        size = float(column[row] / about.noise[k])
        out.append(Peak(about.request.asker, channel, row, float(mean[row, k]), low, high, size, float(mean[-1, k])))
    return sorted(out, key=lambda peak: -peak.size)


def peak_table(
    title: str, found: Sequence[Peak], level: float | None, when: str, first: int, calendar: Calendar | None = None
) -> Table:
    """A table of the largest changes."""
    several = len({peak.unit for peak in found}) > 1
    when = when if calendar is None else "at"
    columns = [*(["unit"] if several else []), "channel", "largest change"]
    columns += [f"{wording.percent(level)} interval"] if level is not None else []
    columns += [when, *([] if several else ["at the end"]), "× noise"]
    rows = []
    for peak in found[:SHOWN]:
        value, interval = wording.measured(peak.value, peak.lower, peak.upper, peak.channel.unit, sign=True)
        cells = [*([peak.unit] if several else []), peak.channel.name, value]
        cells += [interval] if level is not None else []
        moment = str(peak.row + first) if calendar is None else calendar.shown(peak.row)
        cells += [moment, *([] if several else [wording.number(peak.last, sign=True)])]
        rows.append([*cells, wording.number(peak.size)])
    return Table(title, columns, rows, 2 if several else 1, left_out(len(found)))


def left_out(count: int) -> str:
    return f"and {count - SHOWN} more channels; all of them with --format json" if count > SHOWN else ""
