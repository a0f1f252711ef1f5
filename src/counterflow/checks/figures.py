"""The picture of the checks: one panel for each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow.checks.kinds import ALONE, KINDS, LARGE_CHANGE, LARGE_SHARE, MATERIAL, ORDER, Verdict
from counterflow.questions.plots import COLOURS, canvas, literal
from counterflow.questions.refusals import DOUBTFUL

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from counterflow.checks.verdicts import Check, Checks


# blue, yellow, red-orange and grey can be told apart by the colour-blind, and the word stands beside
SHADES: dict[Verdict, str] = {"pass": COLOURS[0], "caution": COLOURS[4], "fail": COLOURS[1], "unknown": COLOURS[6]}
MOST_BARS = 14
MOST_CURVES = 6


def figure(checks: Checks) -> Figure:
    """All panels that there is something to show in; colours are verdicts."""
    kinds = [name for name in KINDS if any(drawn(check) for check in checks[name])]
    columns = 2 if len(kinds) > 1 else 1
    rows = max(1, -(-len(kinds) // columns))
    drawing, axes = canvas(rows, columns, (5.2 * columns, 2.7 * rows + 0.3))
    drawing.suptitle(f"verdict: {checks.verdict}", x=0.01, ha="left", color=SHADES[checks.verdict])
    for axis, name in zip(axes.flat, kinds, strict=False):
        panel(axis, name, checks[name])
    for axis in list(axes.flat)[len(kinds) :]:
        axis.set_axis_off()
    return drawing


def panel(
    axis: Any, name: str, checks: Sequence[Check], colours: tuple[str, ...] = COLOURS,
    shades: Mapping[Verdict, str] = SHADES, titled: bool = True,
) -> None:  # fmt: skip
    """One kind of check; ``colours`` of curves, ``shades`` of verdicts."""
    _PANELS[name](_Pen(axis, colours, shades), _worst_first(checks))
    worst: Verdict = max((check.verdict for check in checks), key=ORDER.index, default="unknown")
    if titled:
        axis.set_title(f"{name}: {worst}", loc="left", fontsize=10, color=shades[worst])
    axis.tick_params(labelsize=8)


@dataclass(frozen=True)
class _Pen:
    """Where to draw, and in which colours."""

    axis: Any
    colours: tuple[str, ...]
    shades: Mapping[Verdict, str]

    def curve(self, k: int) -> str:
        return self.colours[k % len(self.colours)]

    def line(self, place: float, upright: bool = False) -> None:
        """What a verdict is measured against."""
        draw = self.axis.axvline if upright else self.axis.axhline
        draw(place, color=self.colours[-1], linewidth=1, linestyle="--")

    def labels(self, x: str, y: str) -> None:
        """What is drawn along the axes, and whose curve is which."""
        self.axis.set_xlabel(x, fontsize=8)
        self.axis.set_ylabel(y, fontsize=8)
        self.axis.legend(frameon=False, fontsize=7)


def drawn(check: Check) -> bool:
    """Whether there is something to draw of it."""
    return any(np.isfinite(series).any() for series in check.data.values() if series.size)


def _worst_first(checks: Sequence[Check]) -> list[Check]:
    order = ("fail", "caution", "pass", "unknown")
    return sorted((check for check in checks if drawn(check)), key=lambda check: order.index(check.verdict))


def _bars(pen: _Pen, checks: list[Check], label: str, limit: float | None = None, least: float | None = None) -> None:
    """Horizontal bars of their numbers, named, the worst on top; they have room up to ``least``."""
    shown, values = checks[:MOST_BARS], [check.number for check in checks]
    places = np.arange(len(shown))[::-1]
    pen.axis.barh(places, values[: len(shown)], color=[pen.shades[check.verdict] for check in shown], height=0.7)
    if limit is not None:
        pen.line(limit, upright=True)
    pen.axis.set_axisbelow(True)
    left = len(checks) - len(shown)
    pen.axis.set_yticks(places, [literal(check.about) for check in shown])
    for label_, check in zip(pen.axis.get_yticklabels(), shown, strict=True):
        if check.verdict != "pass":  # a bar of no length has no colour to see
            label_.set_color(pen.shades[check.verdict])
    pen.axis.set_xlabel(label + (f" ({left} more not shown)" if left else ""), fontsize=8)
    if least is not None:
        pen.axis.set_xlim(0, max(least, 1.1 * max(values[: len(shown)])) if least < 1 else 1)


def _convergence(pen: _Pen, checks: list[Check]) -> None:
    trace = checks[0].data["trace"]
    behind = np.maximum(trace.max() - trace, 1e-9)
    pen.axis.semilogy(np.arange(1, len(trace) + 1), behind, ".-", color=pen.shades[checks[0].verdict])
    pen.axis.xaxis.get_major_locator().set_params(integer=True)
    pen.axis.set_xlabel("accepted step", fontsize=8)
    pen.axis.set_ylabel("log-likelihood still to gain", fontsize=8)


def _stability(pen: _Pen, checks: list[Check]) -> None:
    data = checks[0].data
    angle = np.linspace(0, 2 * np.pi, 200)
    pen.axis.plot(np.cos(angle), np.sin(angle), color=pen.colours[-1], linewidth=1)
    pen.axis.plot(data["real"], data["imaginary"], "x", color=pen.shades[checks[0].verdict], markersize=6)
    pen.axis.set_aspect("equal")
    pen.axis.set_xlabel("poles of the estimated system, unit circle", fontsize=8)


def _whiteness(pen: _Pen, checks: list[Check]) -> None:
    for k, check in enumerate(checks[:MOST_CURVES]):
        largest = check.data["largest"]
        pen.axis.plot(np.arange(1, len(largest) + 1), largest, ".-", color=pen.curve(k), label=literal(check.about))
    bound = max(float(check.data["bound"][0]) for check in checks)
    pen.line(bound)
    pen.axis.set_ylim(0, max(0.12, 1.1 * max(float(check.data["largest"].max()) for check in checks)))
    pen.labels("lag, rows (dashed: two standard errors)", "largest correlation")


def _size(pen: _Pen, checks: list[Check]) -> None:
    for k, check in enumerate(checks[:MOST_CURVES]):
        blocks = check.data["blocks"]
        share = (np.arange(len(blocks)) + 0.5) / len(blocks)
        pen.axis.plot(share, blocks, ".-", color=pen.curve(k), label=literal(check.about))
    pen.line(1.0)
    pen.axis.set_ylim(bottom=0)
    pen.labels("share of the record", "variance of innovations")


def _precision(pen: _Pen, checks: list[Check]) -> None:
    """Of every effect of an input on another unit, least doubtful first."""
    doubts = np.minimum(checks[0].data["doubts"], 10.0)
    pen.axis.semilogy(np.arange(1, len(doubts) + 1), np.maximum(doubts, 1e-4), ".", color=pen.shades[checks[0].verdict])
    pen.line(DOUBTFUL)
    pen.axis.set_xlabel("effects of inputs on other units", fontsize=8)
    pen.axis.set_ylabel("expected 1 - R²", fontsize=8)


def _free_run(pen: _Pen, checks: list[Check]) -> None:
    for k, check in enumerate(checks[:MOST_CURVES]):
        held, colour = check.data["persistence"], pen.curve(k)
        steps = np.arange(1, len(held) + 1)
        pen.axis.plot(steps, check.data["joint"] / held, color=colour, label=literal(check.about))
        pen.axis.plot(steps, check.data["local"] / held, color=colour, linestyle=":")
    pen.line(1.0)
    pen.axis.set_ylim(bottom=0)
    pen.axis.set_xlabel("rows ahead (solid: joint model, dotted: own model alone)", fontsize=8)
    pen.axis.set_ylabel("error over persistence's", fontsize=8)
    pen.axis.legend(frameon=False, fontsize=7)


_PANELS: dict[str, Callable[[_Pen, list[Check]], None]] = {
    "convergence": _convergence,
    "excitation": partial(_bars, label="share of its movement that is its own", limit=ALONE, least=1.0),
    "feedback": partial(_bars, label="share of moves that measurements foretell", limit=MATERIAL, least=0.1),
    "stability": _stability,
    "whiteness": _whiteness,
    "innovation size": _size,
    "drift": partial(
        _bars, label="change of what acts on it between the halves, relative", limit=LARGE_CHANGE, least=0.5
    ),
    "linearity": partial(_bars, label="fall of the error of free runs by curvature"),
    "shared disturbance": partial(
        _bars, label="share of residuals that other units' tell", limit=LARGE_SHARE, least=1.0
    ),
    "known couplings": partial(_bars, label="share of innovations told by what was ruled out", limit=MATERIAL),
    "precision": _precision,
    "free run": _free_run,
}
