"""What a report says, before it is drawn: questions, answers, how they were learned."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from counterflow.errors import DataError

if TYPE_CHECKING:
    from counterflow.plant import Channel, Unit
    from counterflow.runtime import Effect, Fit, History, Traffic

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Answer:
    """One answer to a what-if: ``mean`` (horizon, D_m), row k is k+1 steps after the change began.

    ``truth`` marks the answer that the others are measured against, if there is one. ``short`` heads a column.
    """

    label: str
    mean: FloatArray
    lower: FloatArray | None = None
    upper: FloatArray | None = None
    level: float | None = None
    truth: bool = False
    caveats: tuple[str, ...] = ()
    short: str = ""

    def __post_init__(self) -> None:
        if not self.short:
            object.__setattr__(self, "short", "truth" if self.truth else self.label)

    @classmethod
    def of(cls, label: str, effect: Effect, short: str = "") -> Answer:
        return cls(label, effect.mean, effect.lower, effect.upper, effect.level, False, effect.caveats, short)


@dataclass(frozen=True)
class WhatIf:
    """A question in words, the channels that it asks about, and the answers to it.

    ``headline`` is the channel that is drawn large; ``step`` and ``step_unit`` say how long a row is (1 min, say);
    ``duration`` is for how many rows the change is held.
    """

    question: str
    channels: tuple[Channel, ...]
    answers: tuple[Answer, ...]
    headline: str
    step: float = 1.0
    step_unit: str = "steps"
    duration: int | None = None

    def __post_init__(self) -> None:
        if not self.answers:
            raise DataError(f"report: the question {self.question!r} has no answer")
        shape = self.answers[0].mean.shape
        for answer in self.answers:
            if answer.mean.shape != shape or shape[1:] != (len(self.channels),) or not shape[0]:
                raise DataError(
                    f"report: answer {answer.label!r} to {self.question!r} has shape {answer.mean.shape}; it needs "
                    f"rows by {len(self.channels)} channels, as many rows as the other answers"
                )
        if self.headline not in [channel.name for channel in self.channels]:
            raise DataError(f"report: headline {self.headline!r} is no channel of {self.question!r}")

    @property
    def truth(self) -> Answer | None:
        return next((answer for answer in self.answers if answer.truth), None)

    @property
    def estimates(self) -> tuple[Answer, ...]:
        return tuple(answer for answer in self.answers if not answer.truth)

    @property
    def headline_index(self) -> int:
        return [channel.name for channel in self.channels].index(self.headline)

    def peak_row(self, index: int) -> int:
        """The row in which the true effect (or the first estimate) on a channel is largest."""
        reference = self.truth or self.answers[0]
        return int(np.abs(reference.mean[:, index]).argmax())

    def quantity(self, answer: Answer, row: int, index: int) -> str:
        """A value with its unit, to three digits of the channel's largest effect: 0.004 beside 10.0 reads as 0.0."""
        return f"{self._rounded(answer.mean[row, index], index)} {self.channels[index].unit}".rstrip()

    def interval(self, answer: Answer, row: int, index: int) -> str:
        """The interval around a value, as it stands behind it; nothing where the method gives none."""
        if answer.lower is None or answer.upper is None:
            return ""
        low, high = (self._rounded(end[row, index], index) for end in (answer.lower, answer.upper))
        level = f"{100 * answer.level:g} %: " if answer.level is not None else ""
        return f" ({level}{low} to {high})"

    def _rounded(self, value: float, index: int) -> str:
        largest = max(float(np.abs(each.mean[:, index]).max()) for each in self.answers)
        decimals = 2 - math.floor(math.log10(largest)) if largest > 0 else 0
        return f"{round(float(value), decimals) + 0.0:+.{max(0, decimals)}f}"  # + 0.0: no minus before a zero

    def relative_error(self, answer: Answer) -> float | None:
        """|answer - truth| / |truth| over all rows and channels; None where there is no truth, or it is zero."""
        if self.truth is None:
            return None
        size = float(np.linalg.norm(self.truth.mean))
        return float(np.linalg.norm(answer.mean - self.truth.mean)) / size if size else None

    def sentence(self) -> str:
        """The answer in words, for the headline channel."""
        at, row = self.headline_index, self.peak_row(self.headline_index)
        when = f"{(row + 1) * self.step:g} {self.step_unit} after the change begins"
        parts = []
        if self.truth is not None:
            value = float(self.truth.mean[row, at])
            size = self.quantity(self.truth, row, at).lstrip("+-")
            moves = f"{'rises' if value > 0 else 'falls'} by up to {size}" if value else "does not move"
            parts.append(f"In truth the {self.headline} {moves}, {when}.")
        for answer in self.estimates:
            text = f"{answer.label} says {self.quantity(answer, row, at)}{self.interval(answer, row, at)}"
            if self.truth is None:
                text += f", {when}"
            error = self.relative_error(answer)
            if error is not None:
                text += f"; over all channels and times it misses by {100 * error:.0f} % of the true effect"
            parts.append(text[0].upper() + text[1:] + ".")
        return " ".join(parts)


@dataclass(frozen=True)
class Training:
    """How one fit was trained."""

    label: str
    history: History
    status: str
    traffic: Traffic

    @classmethod
    def of(cls, label: str, fit: Fit) -> Training:
        return cls(label, fit.history, str(fit.status), fit.traffic)


@dataclass(frozen=True)
class Report:
    """Everything that goes on the page."""

    title: str
    lead: str
    whatifs: tuple[WhatIf, ...]
    units: tuple[Unit, ...] = ()
    trainings: tuple[Training, ...] = ()
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)

    @property
    def caveats(self) -> tuple[str, ...]:
        """The report's notes and what the answers bring along, each once."""
        brought = [text for whatif in self.whatifs for answer in whatif.answers for text in answer.caveats]
        return tuple(dict.fromkeys([*self.notes, *brought]))
