"""What the pictures of checks are drawn with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow.questions.plots import COLOURS, literal

if TYPE_CHECKING:
    from counterflow.checks.verdicts import Check, Verdict

# blue, yellow, red-orange and grey can be told apart by the colour-blind, and the word stands beside
SHADES: dict[Verdict, str] = {"pass": COLOURS[0], "caution": COLOURS[4], "fail": COLOURS[1], "unknown": COLOURS[6]}
MOST_BARS = 14
MOST_CURVES = 6


def drawn(check: Check) -> bool:
    """Whether there is something to draw of it."""
    return any(np.isfinite(series).any() for series in check.data.values() if series.size)


@dataclass(frozen=True)
class Pen:
    """Where to draw, and in which colours."""

    axis: Any
    colours: tuple[str, ...] = COLOURS
    shades: Mapping[Verdict, str] = field(default_factory=lambda: SHADES)

    def curve(self, k: int, x: Any, y: Any, check: Check, style: str = ".-") -> None:
        """One of several curves, which are told apart by colour."""
        label = {} if style == ":" else {"label": literal(check.about)}
        self.axis.plot(x, y, style, color=self.colours[k % len(self.colours)], **label)

    def line(self, place: float, upright: bool = False) -> None:
        """What a verdict is measured against."""
        draw = self.axis.axvline if upright else self.axis.axhline
        draw(place, color=self.colours[-1], linewidth=1, linestyle="--")

    def labels(self, x: str, y: str = "", legend: bool = False) -> None:
        """What is drawn along the axes, and whose curve is which."""
        self.axis.set_xlabel(x, fontsize=8)
        self.axis.set_ylabel(y, fontsize=8)
        if legend:
            self.axis.legend(frameon=False, fontsize=7)

    def bars(self, checks: list[Check], label: str, limit: float | None, room: float | None) -> None:
        """Horizontal bars of their numbers, named, the worst on top; they have room up to ``room``."""
        shown, left = checks[:MOST_BARS], len(checks) - MOST_BARS
        values, colours = [check.number for check in shown], [self.shades[check.verdict] for check in shown]
        places = np.arange(len(shown))[::-1]
        self.axis.barh(places, values, color=colours, height=0.7)
        if limit is not None:
            self.line(limit, upright=True)
        self.axis.set_axisbelow(True)
        self.axis.set_yticks(places, [literal(check.about) for check in shown])
        for tick, check, colour in zip(self.axis.get_yticklabels(), shown, colours, strict=True):
            if check.verdict != "pass":  # a bar of no length has no colour to see
                tick.set_color(colour)
        self.labels(label + (f" ({left} more not shown)" if left > 0 else ""))
        if room is not None:
            self.axis.set_xlim(0, max(room, 1.1 * max(values)) if room < 1 else 1)
