"""What a report says, before it is drawn: sections with questions and answers, how the fit was learned."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from counterflow import wording
from counterflow.arrays import FloatArray
from counterflow.caveats import CHOICE, Caveat, weighing
from counterflow.errors import DataError
from counterflow.questions.answer import Answer
from counterflow.questions.counterfactual import Counterfactual
from counterflow.questions.effect import Effect
from counterflow.questions.restoration import Restoration

if TYPE_CHECKING:
    from counterflow.checks import Check
    from counterflow.exchange.privacy import PrivacyReport
    from counterflow.fits.fit import Fit
    from counterflow.learning.influence import InfluenceGraph
    from counterflow.plant import Channel, Unit

A = TypeVar("A", bound=Answer)
TRUTH = "simulator's twin run (the truth)"
ROWS_SHARED = (
    "A unit shares with the server its inputs, its own state dynamics and its measurements compressed to a few numbers "
    "a row that stand for its state; without privacy these hold most of the measurements' variance. The raw outputs, "
    "and how it measures them, it does not share; with other units it shares nothing."
)


def rounded(value: float, largest: float) -> str:
    """A number with its sign, to three digits of the largest that it is shown with."""
    decimals = 2 - math.floor(math.log10(largest)) if largest > 0 and math.isfinite(largest) else 0
    return f"{round(float(value), decimals) + 0.0:+.{max(0, decimals)}f}"  # + 0.0: no minus before a zero


def plain(name: str) -> str:
    """A unit's name as it reads in a sentence."""
    return name.replace("_", " ")


@dataclass(frozen=True)
class Section(ABC):
    """A question in words, and what came back."""

    question: str

    @abstractmethod
    def sentence(self) -> str:
        """What came back, in words."""

    @property
    def caveats(self) -> Sequence[Caveat]:
        """What it must be read with."""
        return ()


@dataclass(frozen=True)
class Refusal(Section):
    """A question that was refused, with the reason and the remedy as the fit gave them."""

    reason: str

    def sentence(self) -> str:
        return "Refused: " + (self.reason[:1].upper() + self.reason[1:]).rstrip(".") + "."


@dataclass(frozen=True)
class Told(Section):
    """An answer, told of one channel above all, the headline, which is drawn large.

    ``truth`` (rows, channels), where a simulation knows it.
    """

    answer: Answer
    headline: str
    truth: FloatArray | None = None

    def __post_init__(self) -> None:
        if self.headline not in [channel.name for channel in self.channels]:
            raise DataError(f"report: headline {self.headline!r} is no channel of {self.question!r}")
        if self.kind == "attribution" and not np.isfinite(self.answer.course).any():
            unit, when = self.answer.about.request.asker, self.answer.window().when
            raise DataError(f"report: nothing was measured of {unit!r} {when}")
        if self.truth is not None and self.truth.shape != self.answer.rows.course.shape:
            raise DataError(f"report: the truth of {self.question!r} has shape {self.truth.shape}")

    @property
    def kind(self) -> str:
        return self.answer.kind

    @property
    def channels(self) -> tuple[Channel, ...]:
        return self.answer.about.outputs

    @property
    def headline_index(self) -> int:
        return self.answer.about.output(self.headline)

    @property
    def caveats(self) -> Sequence[Caveat]:
        return tuple(dict.fromkeys([*self.answer.caveats, *self.answer.rows.caveats]))

    @property
    def drawn(self) -> list[int]:
        """The channels that are drawn large: the headline's, or those that are to move."""
        if isinstance(self.answer, Restoration):
            return [self.answer.about.output(name) for name in self.answer.channels]
        return [self.headline_index] if self.answer.about.request.windowed else []

    @property
    def label(self) -> str:
        """What its line is called in a legend."""
        return str(getattr(self.answer, "answered", "expected"))

    @property
    def others(self) -> Sequence[Estimate]:
        """Other answers to the same question, which stand beside."""
        return ()

    def aims(self, k: int) -> list[float]:
        """Where a channel should go."""
        ends = self.answer.ends() if isinstance(self.answer, Restoration) else []
        return [aim for output, aim, _ in ends if output.name == self.channels[k].name]

    def sentence(self) -> str:
        """The answer in words, for the headline channel, and where it is known the truth."""
        found, at, truth = self.answer, self.headline_index, self.truth
        if isinstance(found, Restoration):
            text = f"{found.sentence()} Expected then: {found.expected()}."
            if truth is None:
                return text
            ends = [(self.channels[k], wording.number(float(truth[-1, k]), sign=True)) for k in self.drawn]
            told = [f"{channel.name} {wording.quantity(value, channel.unit)}" for channel, value in ends]
            return f"{text} In truth: {wording.listed(told)}."
        text = found.sentence(self.headline)
        if truth is None or not isinstance(found, Counterfactual):
            return text
        gap = np.abs(found.mean[:, at] - found.factual[:, at])
        if not np.isfinite(gap).any():
            return text
        row, unit = int(np.nanargmax(gap)), self.channels[at].unit
        values = (v[row, at] for v in (found.factual, found.mean, truth))
        was, would, true = (wording.quantity(wording.number(float(value)), unit) for value in values)
        return f"{text} It was {was} and would have been {would}, in truth {true}."


@dataclass(frozen=True)
class Estimate:
    """One answer to a what-if: ``mean`` (horizon, D_m), row k is k+1 steps after the change began.

    ``truth`` marks the answer that the others are measured against. ``short`` heads a column. ``effect``: that it was
    made from.
    """

    label: str
    mean: FloatArray
    lower: FloatArray | None = None
    upper: FloatArray | None = None
    level: float | None = None
    truth: bool = False
    short: str = ""
    effect: Effect | None = None

    @classmethod
    def of(cls, label: str, effect: Effect, short: str = "") -> Estimate:
        return cls(label, effect.mean, effect.lower, effect.upper, effect.level, False, short or label, effect)


@dataclass(frozen=True)
class WhatIf(Told):
    """What a change would do, beside what ``others`` say of it.

    ``scale`` (D_m,) is how far channels usually move, in which errors over all channels are measured.
    """

    label: str = "Counterflow"
    others: Sequence[Estimate] = ()
    scale: FloatArray | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for other in self.others:
            if other.mean.shape != self.answer.course.shape:
                raise DataError(f"report: answer {other.label!r} to {self.question!r} has shape {other.mean.shape}")

    @property
    def estimates(self) -> tuple[Estimate, ...]:
        assert isinstance(self.answer, Effect)
        return Estimate.of(self.label, self.answer), *self.others

    @property
    def answers(self) -> tuple[Estimate, ...]:
        """The truth, where it is known, and all estimates."""
        known = () if self.truth is None else (Estimate(TRUTH, self.truth, truth=True, short="truth"),)
        return *known, *self.estimates

    @property
    def caveats(self) -> Sequence[Caveat]:
        return [note for each in self.estimates if each.effect is not None for note in each.effect.caveats]

    def peak_row(self, index: int) -> int:
        """The row in which the true effect (or the first estimate) on a channel is largest."""
        return int(np.abs(self.answers[0].mean[:, index]).argmax())

    def rounded(self, answer: Estimate, row: int, index: int) -> str:
        """A value to three digits of the channel's largest effect: 0.004 beside 10.0 reads as 0.0."""
        largest = max(float(np.abs(each.mean[:, index]).max()) for each in self.answers)
        return rounded(answer.mean[row, index], largest)

    def relative_error(self, answer: Estimate) -> float | None:
        """|answer - truth| / |truth| over all rows and channels; None where there is no truth, or it is zero."""
        if self.truth is None:
            return None
        scale = 1.0 if self.scale is None else self.scale
        size = float(np.linalg.norm(self.truth / scale))
        return float(np.linalg.norm((answer.mean - self.truth) / scale)) / size if size else None

    def sentence(self) -> str:
        """The answer in words, for the headline channel; where the truth is known, how far estimates miss it."""
        if self.truth is None:
            others = [(other.label, other.effect) for other in self.others]
            texts = [f"{label}: {effect.would(self.headline)}" for label, effect in others if effect is not None]
            return " ".join([self.answer.sentence(self.headline), *texts])
        at, row = self.headline_index, self.peak_row(self.headline_index)
        value, unit = float(self.truth[row, at]), self.channels[at].unit
        size = wording.quantity(wording.number(abs(value)), unit)
        moves = f"{'rises' if value > 0 else 'falls'} by up to {size}" if value else "does not move"
        parts = [f"In truth the {self.headline} {moves} {self.answer.timeline.at(row)}."]
        for answer in self.estimates:
            low, high = (None if end is None else float(end[row, at]) for end in (answer.lower, answer.upper))
            said, interval = wording.measured(float(answer.mean[row, at]), low, high, unit, sign=True)
            text = f"{answer.label} says {said}"
            text += f" ({100 * (answer.level or 0):g} %: {interval})" if interval else ""
            error = self.relative_error(answer)
            if error is not None:
                text += f"; over all channels and times it misses by {100 * error:.0f} % of the true effect"
            parts.append(text[0].upper() + text[1:] + ".")
        return " ".join(parts)


def section(words: str, answer: Answer, headline: str | None = None) -> Told:
    """An answer as a report shows it."""
    kind = WhatIf if isinstance(answer, Effect) else Told
    return kind(words, answer, headline or answer.ranked_channels()[0])


@dataclass(frozen=True)
class Report:
    """Everything that goes on the page; what is empty is left out of it.

    ``fits``: whose training is told, by their labels. ``disclosed``: what a unit has shared of itself. ``sensors``:
    unit, channel, kind, what it did.
    """

    title: str
    lead: str
    sections: tuple[Section, ...] = ()
    units: tuple[Unit, ...] = ()
    fits: Mapping[str, Fit] = field(default_factory=dict)
    notes: tuple[str | Caveat, ...] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)
    graph: InfluenceGraph | None = None
    checks: tuple[Check, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    privacy: PrivacyReport | None = None
    disclosed: str = ROWS_SHARED
    sensors: tuple[tuple[str, str, str, str], ...] = ()

    @property
    def whatifs(self) -> tuple[WhatIf, ...]:
        return tuple(section for section in self.sections if isinstance(section, WhatIf))

    def answers(self, kind: type[A]) -> list[tuple[A, str]]:
        """Answers of one type, each with its headline."""
        told = (section for section in self.sections if isinstance(section, Told))
        return [(each.answer, each.headline) for each in told if isinstance(each.answer, kind)]

    @property
    def caveats(self) -> tuple[str | Caveat, ...]:
        """What to know before acting, each once: caveats, the heaviest first, and then the report's own notes."""
        told = self._told()
        return (*weighing(note for note in told if isinstance(note, Caveat)), *(n for n in told if isinstance(n, str)))

    @property
    def choices(self) -> tuple[Caveat, ...]:
        """How the fit was made, told once for all answers."""
        return tuple(note for note in self._told() if isinstance(note, Caveat) and note.weight == CHOICE)

    def _told(self) -> tuple[str | Caveat, ...]:
        return tuple(dict.fromkeys([*self.notes, *(note for section in self.sections for note in section.caveats)]))
