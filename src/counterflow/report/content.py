"""What a report says, before it is drawn: questions, answers, how they were learned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import DataError

if TYPE_CHECKING:
    from counterflow.estimation.influence import InfluenceGraph
    from counterflow.fits.checks import Check
    from counterflow.fits.engine import Traffic
    from counterflow.fits.fit import Fit
    from counterflow.fits.history import History
    from counterflow.methods.privacy import PrivacyReport
    from counterflow.plant import Channel, Unit
    from counterflow.questions.answers import Attribution, Effect, Restoration, Trajectory



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


def listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + f" and {words[-1]}"


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
        return rounded(value, max(float(np.abs(each.mean[:, index]).max()) for each in self.answers))

    def relative_error(self, answer: Answer) -> float | None:
        """|answer - truth| / |truth| over all rows and channels; None where there is no truth, or it is zero."""
        if self.truth is None:
            return None
        size = float(np.linalg.norm(self.truth.mean))
        return float(np.linalg.norm(answer.mean - self.truth.mean)) / size if size else None

    def sentence(self) -> str:
        """The answer in words, for the headline channel."""
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
class World:
    """What would have happened: measured and counterfactual values of one unit in a window of a recording.

    ``truth`` (rows, channels), where a simulation knows it; ``changed`` are the rows [start, stop) whose inputs differ.
    """

    question: str
    trajectory: Trajectory
    channels: tuple[Channel, ...]
    headline: str
    clock: Clock = field(default_factory=Clock)
    truth: FloatArray | None = None
    changed: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        index_of(self.headline, self.channels, self.question)
        if self.truth is not None and self.truth.shape != self.trajectory.mean.shape:
            raise DataError(f"report: the truth of {self.question!r} has shape {self.truth.shape}")

    @property
    def headline_index(self) -> int:
        return index_of(self.headline, self.channels, self.question)

    def sentence(self) -> str:
        """The answer in words, for the headline channel, where the two worlds differ most."""
        told, at = self.trajectory, self.headline_index
        channel = self.channels[at]
        gap = np.abs(told.mean[:, at] - told.factual[:, at])
        if not np.isfinite(gap).any():
            return f"Nothing was measured of the {self.headline} in this window."
        row = int(np.nanargmax(gap))
        largest = float(np.nanmax(np.abs(np.concatenate([told.mean[:, at], told.factual[:, at]]))))
        was, would = (f"{rounded(v[row, at], largest)} {channel.unit}".rstrip() for v in (told.factual, told.mean))
        text = f"At {self.clock.at(told.first + row)} the {self.headline} was {was}; it would have been {would}"
        if told.lower is not None and told.upper is not None:
            low, high = (rounded(v[row, at], largest) for v in (told.lower, told.upper))
            text += f" ({100 * (told.level or 0):g} %: {low} to {high})"
        if self.truth is not None:
            text += f", in truth {rounded(self.truth[row, at], largest)} {channel.unit}".rstrip()
        measured, other = float(np.nanmean(told.factual[:, at])), float(np.nanmean(told.mean[:, at]))
        return (
            f"{text}. Over the whole window it averaged {rounded(measured, largest)}, and would have averaged "
            f"{rounded(other, largest)} {channel.unit}".rstrip()
            + "."
        )


@dataclass(frozen=True)
class Shares:
    """Who moved a unit's output in a window: an attribution, told for one channel."""

    question: str
    attribution: Attribution
    channels: tuple[Channel, ...]
    headline: str
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        index_of(self.headline, self.channels, self.question)

    @property
    def headline_index(self) -> int:
        return index_of(self.headline, self.channels, self.question)

    def ranked(self) -> list[tuple[str, float]]:
        """(name, mean over the window) by size."""
        return self.attribution.ranked(self.headline)

    def label(self, share: str) -> str:
        words = {"initial state": "what came before the window", "rest": "the unexplained rest (noise)"}
        return words.get(share, f"inputs of {plain(share)}")

    def sentence(self) -> str:
        found, at = self.attribution, self.headline_index
        unit = self.channels[at].unit
        whole = float(np.nanmean(found.departure[:, at]))
        ranked = self.ranked()
        largest = max(abs(whole), *(abs(value) for _, value in ranked))
        last = found.first + len(found.departure) - 1
        side = "above" if whole > 0 else "below"
        (first, size), *others = ranked
        size_text = f"{rounded(whole, largest).lstrip('+-')} {unit}".rstrip()
        rest = [f"{self.label(name)} {rounded(value, largest)}" for name, value in others[:2]]
        follow = f"; then {listed(rest)} {unit}".rstrip() if rest else ""
        return (
            f"From {self.clock.at(found.first)} to {self.clock.at(last)} the {self.headline} stood {size_text} {side} "
            f"its usual level on average. The largest part: {self.label(first)}, "
            f"{rounded(size, largest)} {unit}".rstrip()
            + f"{follow}."
        )


@dataclass(frozen=True)
class Remedy:
    """What would bring outputs to a target: the change found, and the way there with its band (``effect``)."""

    question: str
    restoration: Restoration
    unit: Unit
    levers: Mapping[str, Unit]
    effect: Effect
    clock: Clock = field(default_factory=Clock)

    def changes(self) -> list[tuple[str, str, str]]:
        """(unit, input, change with its unit of measure)."""
        out = []
        for cause, entries in self.restoration.change.items():
            for name, value in entries.items():
                unit = self.levers[cause].inputs[self.levers[cause].input_names.index(name)].unit
                out.append((cause, name, f"{rounded(value, abs(value))} {unit}".rstrip()))
        return out

    def reached(self) -> list[tuple[str, str, str, str]]:
        """(output, wanted, reached, interval) at the horizon."""
        out = []
        for k, name in enumerate(self.restoration.channels):
            at = self.unit.output_names.index(name)
            unit, largest = self.unit.outputs[at].unit, float(np.abs(self.restoration.target[k])) or 1.0
            ends = [end[-1, at] for end in (self.effect.lower, self.effect.upper) if end is not None]
            interval = f"{100 * (self.effect.level or 0):g} %: " + " to ".join(rounded(e, largest) for e in ends)
            out.append(
                (
                    name,
                    f"{rounded(self.restoration.target[k], largest)} {unit}".rstrip(),
                    f"{rounded(self.restoration.reached[k], largest)} {unit}".rstrip(),
                    interval if ends else "",
                )
            )
        return out

    def sentence(self) -> str:
        moves = listed([f"{plain(cause)} {name} {change}" for cause, name, change in self.changes()])
        goals = listed(
            [f"the {name} by {got}{f' ({spread})' if spread else ''}" for name, _, got, spread in self.reached()]
        )
        after = self.clock.span(self.restoration.horizon)
        if self.restoration.feasible:
            return f"The smallest change that does it: {moves}. Held for {after}, it moves {goals}."
        return f"These inputs cannot do it. The nearest, {moves}, held for {after}, moves {goals}."


@dataclass(frozen=True)
class Refusal:
    """A question that was refused, with the reason and the remedy as the fit gave them."""

    question: str
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
    whatifs: tuple[WhatIf, ...]
    units: tuple[Unit, ...] = ()
    trainings: tuple[Training, ...] = ()
    notes: tuple[str, ...] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)
    worlds: tuple[World, ...] = ()
    shares: tuple[Shares, ...] = ()
    remedies: tuple[Remedy, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    graph: InfluenceGraph | None = None
    checks: tuple[Check, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    privacy: PrivacyReport | None = None

    @property
    def questions(self) -> int:
        """How many there are, of all kinds."""
        return sum(len(kind) for kind in (self.whatifs, self.worlds, self.shares, self.remedies, self.refusals))

    @property
    def caveats(self) -> tuple[str, ...]:
        """The report's notes and what the answers bring along, each once."""
        brought = [text for whatif in self.whatifs for answer in whatif.answers for text in answer.caveats]
        brought += [text for world in self.worlds for text in world.trajectory.caveats]
        brought += [text for shares in self.shares for text in shares.attribution.caveats]
        brought += [text for r in self.remedies for text in (*r.restoration.caveats, *r.effect.caveats)]
        return tuple(dict.fromkeys([*self.notes, *brought]))


def index_of(headline: str, channels: Sequence[Channel], question: str) -> int:
    names = [channel.name for channel in channels]
    if headline not in names:
        raise DataError(f"report: headline {headline!r} is no channel of {question!r}")
    return names.index(headline)
