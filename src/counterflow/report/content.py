"""What a report says, before it is drawn: questions, answers, how they were learned."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from counterflow import wording
from counterflow.arrays import FloatArray
from counterflow.caveats import CHOICE, Caveat, weighing
from counterflow.errors import DataError
from counterflow.questions.answer import Answer as Reply
from counterflow.questions.counterfactual import Counterfactual
from counterflow.questions.effect import Effect
from counterflow.questions.restoration import Restoration

if TYPE_CHECKING:
    from counterflow.checks import Check
    from counterflow.exchange.privacy import PrivacyReport
    from counterflow.fits.engine import Traffic
    from counterflow.fits.fit import Fit
    from counterflow.fits.history import History
    from counterflow.learning.influence import InfluenceGraph
    from counterflow.plant import Channel, Unit


A = TypeVar("A", bound=Reply)
MOST_PAIRS = 12  # that a sentence can hold


def rounded(value: float, largest: float) -> str:
    """A number with its sign, to three digits of the largest that it is shown with."""
    decimals = 2 - math.floor(math.log10(largest)) if largest > 0 and math.isfinite(largest) else 0
    return f"{round(float(value), decimals) + 0.0:+.{max(0, decimals)}f}"  # + 0.0: no minus before a zero


def plain(name: str) -> str:
    """A unit's name as it reads in a sentence."""
    return name.replace("_", " ")


def singular(unit: str, count: float) -> str:
    """ "step" for one of them, "steps" for more."""
    return unit[:-1] if count == 1 and unit in ("steps", "days") else unit


ROWS_SHARED = (
    "A unit shares with the server its inputs, its own state dynamics and its measurements compressed to a few numbers "
    "a row that stand for its state; without privacy these hold most of the measurements' variance. The raw outputs, "
    "and how it measures them, it does not share; with other units it shares nothing."
)


def moments_shared(noise: bool, models: bool) -> str:
    """What units have shared of themselves in a fit by moments."""
    own = "its inputs, its own state dynamics" if models else "its inputs"
    return (
        f"A unit shares with the server {own} and moments: {'noised ' if noise else ''}projections of its measurements "
        "on what all inputs did, a few numbers however many rows there are. No row of its measurements, raw or "
        "compressed, leaves it. Other units are sent signals that are made of all units' inputs, and nothing of its "
        "measurements."
    )


def assumptions(likelihood: bool, from_logs: bool = False, of_moments: bool = False) -> tuple[str, ...]:
    """What every answer of a method rests on and no check here can show; ``likelihood``: whether it is a fit by it."""
    if not likelihood:
        return ()
    if of_moments:
        return (
            "answers hold for a linear plant near where it was recorded",
            "inputs must not react to measurements, nor to something that moves the plant and that nobody records: "
            "effects would be biased. Other inputs are held as they were, also where a controller would have answered "
            "the change",
        )
    return (
        "answers hold for a plant that goes on as it was recorded, and within what was seen of it"
        if from_logs
        else "answers hold for a linear plant near where it was recorded, and intervals do not account for a wrong "
        "local model",
        "inputs may react to recorded measurements, but not to something that moves the plant and that nobody records: "
        "effects would be biased, and the data cannot show it. Other inputs are held as they were, also where a "
        "controller would have answered the change",
    )


def acting_directly(edges: Sequence[tuple[str, str]], rate: float) -> str:
    """Which units act directly on which."""
    head = f"At a false-discovery rate of {wording.percent(rate)}, "
    listed = ", ".join(f"{cause} -> {effect}" for cause, effect in edges[:MOST_PAIRS])
    listed += f" and {len(edges) - MOST_PAIRS} more" if len(edges) > MOST_PAIRS else ""
    return f"{head}these act directly: {listed}." if edges else f"{head}no unit is found to act on another."


@dataclass(frozen=True)
class Clock:
    """How rows read as times: row 30 of one-minute rows is "minute 30", twelve of them are "12 min"."""

    step: float = 1.0
    unit: str = "steps"
    point: str = "row"

    @classmethod
    def of(cls, dt: float) -> Clock:
        """For rows ``dt`` seconds apart; rows one second apart (the default) are counted, not timed."""
        if dt == 1.0:
            return cls()
        for seconds, unit, point in ((86400, "days", "day"), (3600, "h", "hour"), (60, "min", "minute")):
            if dt >= seconds:
                return cls(dt / seconds, unit, point)
        return cls(dt, "s", "second")

    def at(self, row: int) -> str:
        return f"{self.point} {row * self.step:g}"

    def span(self, rows: int) -> str:
        return f"{rows * self.step:g} {singular(self.unit, rows * self.step)}"


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
    caveats: tuple[str | Caveat, ...] = ()
    short: str = ""
    effect: Effect | None = None  # that it was made from

    def __post_init__(self) -> None:
        if not self.short:
            object.__setattr__(self, "short", "truth" if self.truth else self.label)

    @classmethod
    def of(cls, label: str, effect: Effect, short: str = "") -> Answer:
        return cls(label, effect.mean, effect.lower, effect.upper, effect.level, False, effect.caveats, short, effect)


@dataclass(frozen=True)
class Section(ABC):
    """A question in words, and what came back."""

    question: str

    @abstractmethod
    def sentence(self) -> str:
        """What came back, in words."""

    @property
    def caveats(self) -> Sequence[str | Caveat]:
        """What it must be read with."""
        return ()


class Headed(Section):
    """Told of one channel above all, the headline."""

    channels: tuple[Channel, ...]
    headline: str

    def __post_init__(self) -> None:
        names = [channel.name for channel in self.channels]
        if self.headline not in names:
            raise DataError(f"report: headline {self.headline!r} is no channel of {self.question!r}")

    @property
    def headline_index(self) -> int:
        return [channel.name for channel in self.channels].index(self.headline)


@dataclass(frozen=True)
class WhatIf(Headed):
    """A question in words, the channels that it asks about, and the answers to it.

    ``headline`` is the channel that is drawn large; ``step`` and ``step_unit`` say how long a row is (1 min, say);
    ``duration`` is for how many rows the change is held; ``scale`` (D_m,) is how far channels usually move, in which
    errors over all channels are measured (None: as they are).
    """

    channels: tuple[Channel, ...]
    answers: tuple[Answer, ...]
    headline: str
    step: float = 1.0
    step_unit: str = "steps"
    duration: int | None = None
    scale: FloatArray | None = None

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
        super().__post_init__()

    @property
    def truth(self) -> Answer | None:
        return next((answer for answer in self.answers if answer.truth), None)

    @property
    def estimates(self) -> tuple[Answer, ...]:
        return tuple(answer for answer in self.answers if not answer.truth)

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
        return rounded(value, max(float(np.abs(each.mean[:, index]).max()) for each in self.answers))

    def relative_error(self, answer: Answer) -> float | None:
        """|answer - truth| / |truth| over all rows and channels; None where there is no truth, or it is zero."""
        if self.truth is None:
            return None
        scale = 1.0 if self.scale is None else self.scale
        size = float(np.linalg.norm(self.truth.mean / scale))
        return float(np.linalg.norm((answer.mean - self.truth.mean) / scale)) / size if size else None

    @property
    def caveats(self) -> Sequence[str | Caveat]:
        return [text for answer in self.answers for text in answer.caveats]

    def sentence(self) -> str:
        """The answer in words, for the headline channel; where the truth is known, how far estimates miss it."""
        effects = [(answer.label, answer.effect) for answer in self.answers]
        if self.truth is None and all(effect is not None for _, effect in effects):
            (_, first), *others = effects
            texts = [f"{label}: {effect.would(self.headline)}" for label, effect in others if effect is not None]
            return " ".join([first.sentence(self.headline), *texts]) if first is not None else ""
        at, row = self.headline_index, self.peak_row(self.headline_index)
        after = (row + 1) * self.step
        when = f"{after:g} {singular(self.step_unit, after)} after the change begins"
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
class Told(Headed):
    """An answer, told of one channel above all.

    ``truth`` (rows, channels), where a simulation knows it; ``changed`` are the rows [start, stop) whose inputs differ.
    """

    question: str
    answer: Reply
    channels: tuple[Channel, ...]
    headline: str
    clock: Clock = field(default_factory=Clock)
    truth: FloatArray | None = None
    changed: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.answer.kind == "attribution" and not np.isfinite(self.answer.course).any():
            unit, when = self.answer.about.request.asker, self.answer.window().when
            raise DataError(f"report: nothing was measured of {unit!r} {when}")
        if self.truth is not None and self.truth.shape != self.answer.rows.course.shape:
            raise DataError(f"report: the truth of {self.question!r} has shape {self.truth.shape}")

    @property
    def kind(self) -> str:
        return self.answer.kind

    @property
    def caveats(self) -> Sequence[str | Caveat]:
        return tuple(dict.fromkeys([*self.answer.caveats, *self.answer.rows.caveats]))

    @property
    def drawn(self) -> list[int]:
        """The channels that are drawn large: the headline's, or those that are to move."""
        if isinstance(self.answer, Restoration):
            return [self.answer.about.output(name) for name in self.answer.channels]
        return [self.headline_index] if self.answer.about.request.windowed else []

    def aims(self, k: int) -> list[float]:
        """Where a channel should go."""
        ends = self.answer.ends() if isinstance(self.answer, Restoration) else []
        return [aim for output, aim, _ in ends if output.name == self.channels[k].name]

    @property
    def others(self) -> list[int] | None:
        """Those that are drawn small; None: there is no such part."""
        if self.answer.drawn == 1 or not self.answer.about.request.windowed:
            return None
        return [k for k in range(len(self.channels)) if k not in self.drawn]

    def sentence(self) -> str:
        """The answer in words, for the headline channel, and where it is known the truth."""
        found, at = self.answer, self.headline_index
        if isinstance(found, Restoration):
            text = f"{found.sentence()} Expected then: {found.expected()}."
            return text if self.truth is None else f"{text} In truth: {wording.listed(self._true_ends(self.truth))}."
        text = found.sentence(self.headline)
        if self.truth is None or not isinstance(found, Counterfactual):
            return text
        gap = np.abs(found.mean[:, at] - found.factual[:, at])
        if not np.isfinite(gap).any():
            return text
        row, unit = int(np.nanargmax(gap)), self.channels[at].unit
        values = (v[row, at] for v in (found.factual, found.mean, self.truth))
        was, would, truth = (wording.quantity(wording.number(float(value)), unit) for value in values)
        return f"{text} It was {was} and would have been {would}, in truth {truth}."

    def _true_ends(self, truth: FloatArray) -> list[str]:
        ends = [(self.channels[k], wording.number(float(truth[-1, k]), sign=True)) for k in self.drawn]
        return [f"{channel.name} {wording.quantity(value, channel.unit)}" for channel, value in ends]


@dataclass(frozen=True)
class Refusal(Section):
    """A question that was refused, with the reason and the remedy as the fit gave them."""

    reason: str

    def sentence(self) -> str:
        return "Refused: " + (self.reason[:1].upper() + self.reason[1:]).rstrip(".") + "."


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
    """Everything that goes on the page; what is empty is left out of it."""

    title: str
    lead: str
    sections: tuple[Section, ...] = ()
    units: tuple[Unit, ...] = ()
    trainings: tuple[Training, ...] = ()
    notes: tuple[str | Caveat, ...] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)
    graph: InfluenceGraph | None = None
    checks: tuple[Check, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    privacy: PrivacyReport | None = None
    disclosed: str = ROWS_SHARED  # what a unit has shared of itself
    sensors: tuple[tuple[str, str, str, str], ...] = ()  # unit, channel, kind, what it did

    @property
    def questions(self) -> int:
        """How many there are, of all kinds."""
        return len(self.sections)

    @property
    def whatifs(self) -> tuple[WhatIf, ...]:
        return tuple(section for section in self.sections if isinstance(section, WhatIf))

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        return tuple(section for section in self.sections if isinstance(section, Refusal))

    def told(self, kind: str) -> tuple[Told, ...]:
        """The answers to one kind of question."""
        return tuple(section for section in self.sections if isinstance(section, Told) and section.kind == kind)

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

    def with_sections(self, sections: Sequence[Section]) -> Report:
        """The same page with these answers, kind by kind, and what was refused at the end."""

        def place(section: Section) -> int:
            known = ["effect", *ORDER] if not isinstance(section, Refusal) else []
            kind = section.kind if isinstance(section, Told) else "effect"
            return known.index(kind) if kind in known else len(known) + isinstance(section, Refusal) * 99

        return replace(self, sections=tuple(sorted(sections, key=place)))


ORDER = ("counterfactual", "attribution", "restoration")  # in which a page shows answers, after what-ifs


def section(words: str, reply: Reply, clock: Clock, headline: str | None = None) -> Section:
    """An answer as a report shows it."""
    outputs, chosen = reply.about.outputs, headline or reply.ranked_channels()[0]
    if isinstance(reply, Effect):
        answers = (Answer.of("Counterflow", reply),)
        return WhatIf(words, outputs, answers, chosen, clock.step, clock.unit, reply.about.request.duration)
    return Told(words, reply, outputs, chosen, clock)
