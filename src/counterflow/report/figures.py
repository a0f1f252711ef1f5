"""Drawings of a report as SVG fragments to stand inside HTML.

Matplotlib draws with marker colours that no eye is meant to see; they are then replaced by the page's CSS variables,
so that one drawing serves light and dark.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.checks.kinds import KINDS, Verdict
from counterflow.errors import OptionError
from counterflow.questions.numbers import channel_label
from counterflow.questions.plots import Axis, Line, literal, short_dates
from counterflow.questions.timeline import Steps
from counterflow.report.content import Told, Training, WhatIf
from counterflow.report.templates import Svg, inline

if TYPE_CHECKING:
    from counterflow.checks.verdicts import Check


TEXT, GRID, TRUTH, SHADE, FACT = "#123401", "#123402", "#123403", "#123404", "#123405"
SERIES = tuple(f"#1234a{k}" for k in range(6))
GOOD, WARN, BAD = "#123406", "#123407", "#123408"
# the page's CSS variables by marker colours
VARIABLES = {TEXT: "--muted", GRID: "--grid", TRUTH: "--truth", SHADE: "--shade", FACT: "--fact"}
VARIABLES |= {GOOD: "--good", WARN: "--series-4", BAD: "--series-1"}
VARIABLES |= {colour: f"--series-{k}" for k, colour in enumerate(SERIES)}
_CHECK_COLOURS = (*SERIES, FACT)
_SHADES: dict[Verdict, str] = {"pass": GOOD, "caution": WARN, "fail": BAD, "unknown": FACT}


def style(ink: str, edge: str, grid: str, **more: Any) -> dict[Any, Any]:
    """The house style of matplotlib in these colours; ``more`` by names with ``_`` for the dots."""
    common: dict[Any, Any] = {"svg.hashsalt": "counterflow"}  # the same figure, the same bytes
    common |= {"text.color": ink, "axes.labelcolor": ink, "axes.edgecolor": edge, "grid.color": grid}
    common |= {"axes.grid": True, "axes.spines.top": False, "axes.spines.right": False, "axes.titlelocation": "left"}
    common["axes.unicode_minus"] = True
    for axis in ("xtick", "ytick"):
        common |= {f"{axis}.color": edge, f"{axis}.labelcolor": ink}
    return common | {key.replace("_", "."): value for key, value in more.items()}


_STYLE = style(
    TEXT, GRID, GRID, font_family="sans-serif", font_size=9, axes_titlesize=9.5, grid_linewidth=0.6,
    lines_linewidth=2.0,
    svg_fonttype="none",  # the reader's own sans-serif: small files, text that can be searched
)  # fmt: skip
_DASHED: dict[str, Any] = {"dashes": (3, 1.6)}
_DOTTED: dict[str, Any] = {"dashes": (1, 1.2), "linewidth": 1.4, "zorder": 3}
_THIN: dict[str, Any] = {"dashes": (3, 1.6), "linewidth": 1.4}


_FRONT: dict[str, Any] = {"zorder": 4}


def _curve(values: Any, colour: str, look: Mapping[str, Any] = _FRONT, from_zero: bool = False) -> Line:
    return Line("", _from_zero(values) if from_zero else values, look={"color": colour, **look})


def banded(present: bool, level: float | None) -> str:
    """What a legend adds for a band."""
    return f", with {100 * level:g} % band" if present and level is not None else ""


def trajectories(whatif: WhatIf, index: int, prefix: str, size: tuple[float, float], title: bool = True) -> Svg:
    """The answers for one channel against time since the change began."""
    name = channel_label(whatif.channels[index])
    times = whatif.step * np.arange(len(whatif.answers[0].mean) + 1)
    bands = ([a.mean, a.lower, a.upper] for a in whatif.estimates)
    lines = [replace(Line.banded("", band, "", index), role="part", number=k) for k, band in enumerate(bands)]
    curves = [styled(line, from_zero=True) for line in lines]
    if whatif.truth is not None:
        # dashed and on top: where the two agree, both can be seen
        curves.append(_curve(whatif.truth.mean[:, index], TRUTH, {**_DASHED, "zorder": 5}, from_zero=True))
    held = None if whatif.duration is None else (0.0, whatif.duration * whatif.step)
    label, below = f"Effect on {name}, {len(times) - 1} steps", f"{whatif.step_unit} since the change began"
    return _course(Axis(times, below), curves, prefix, size, label, title=name if title else "", held=held)


def told(told: Told, index: int, prefix: str, size: tuple[float, float], title: bool = True) -> Svg:
    """One channel of an answer, as the answer itself draws it, beside the truth where that is known."""
    answer, clock, name = told.answer.rows, told.clock, channel_label(told.channels[index])
    after = isinstance(answer.timeline, Steps)
    curves = [styled(line, after) for line in answer.lines(index, SERIES[0])]
    if told.truth is not None:
        curves.append(_curve(told.truth[:, index], TRUTH, {**_THIN, "zorder": 5}, from_zero=after))
    if after:
        rows = Axis(clock.step * np.arange(answer.timeline.count + 1), f"{clock.unit} since the change began")
    else:
        rows = answer.timeline.axis()
        rows = rows if answer.about.calendar is not None else Axis(clock.step * rows.places, clock.point)
    held = None
    if told.changed is not None:
        ends = (told.changed[0], told.changed[1] - 1)
        first, last = (min(max(row - answer.timeline.first, 0), answer.timeline.count - 1) for row in ends)
        held = rows.places[first], rows.places[last]
    levels: dict[float, tuple[str, dict[str, Any]]] = {0.0: (GRID, {"linewidth": 1.0})} if answer.zero else {}
    levels |= {aim: (FACT, _THIN) for aim in told.aims(index)}
    label = f"{name}: {answer.title()}"
    return _course(rows, curves, prefix, size, label, title=name if title else "", held=held, levels=levels)


def mark(line: Line) -> tuple[str, str, Mapping[str, Any]]:
    """Of a line of an answer: the class of its mark in a legend, its marker colour, its look."""
    if line.role == "part":
        dotted = line.number >= len(SERIES)
        return "dotted" if dotted else "", SERIES[line.number % len(SERIES)], _DOTTED if dotted else _FRONT
    return {
        "answer": ("", SERIES[0], _FRONT),
        "average": ("dashed", SERIES[0], _FRONT | _DASHED),
        "measured": ("", FACT, {"linewidth": 1.6, "zorder": 3}),
        "whole": ("dashed", TRUTH, {**_THIN, "zorder": 5}),
        "rest": ("dotted", FACT, _DOTTED),
    }[line.role]


def styled(line: Line, from_zero: bool) -> Line:
    """A line of an answer in the colours of a page; at the moment of a change it is zero."""
    _, colour, look = mark(line)
    ends = [line.values, line.lower, line.upper]
    if from_zero:
        ends = [None if each is None else _from_zero(each) for each in ends]
    return replace(Line.banded(line.name, ends, colour), look={"color": colour, **look})


def _course(
    rows: Axis,
    curves: Sequence[Line],
    prefix: str,
    size: tuple[float, float],
    label: str,
    *,
    title: str = "",
    held: tuple[Any, Any] | None = None,
    levels: Mapping[float, tuple[str, dict[str, Any]]] | None = None,
) -> Svg:
    """Curves against time; ``held`` is shaded, ``levels`` are horizontal lines (None: one at zero).

    Nothing is drawn across missing rows, or where time jumps.
    """
    times = rows.places
    with _axes(size, head=0.27 if title else 0.08) as (figure, axes):
        if held is not None:
            axes.axvspan(*held, color=SHADE, linewidth=0, zorder=0)
        for level, (colour, look) in ({0.0: (GRID, {"linewidth": 1.0})} if levels is None else levels).items():
            axes.axhline(level, color=colour, **look)
        for curve in curves:
            curve.draw(axes, rows, alpha=0.22)
        if title:
            axes.set_title(literal(title))
        axes.set_xlabel(literal(rows.label))
        if times.dtype.kind == "M":
            short_dates(axes)
        axes.set_xlim(times[0], times[-1] if len(times) > 1 else times[0] + 1)
        axes.margins(y=0.12)
        return _svg(figure, prefix, label)


def longest_and_others(trainings: Sequence[Training]) -> tuple[Training, list[Training]]:
    """Of trainings with rounds: the one that is drawn as curves, and those of which only the end is shown."""
    shown = [training for training in trainings if len(training.history) > 1]
    longest = max(shown, key=lambda training: len(training.history))
    return longest, [training for training in shown if training is not longest]


def training_curves(trainings: Sequence[Training], names: Sequence[str], prefix: str) -> list[tuple[str, Svg]]:
    """(caption, drawing) of server loss, disentanglement, client losses and delta_d, where there are rounds to show."""
    if not any(len(training.history) > 1 for training in trainings):
        return []
    longest, others = longest_and_others(trainings)
    history = longest.history
    ends = {key: [getattr(t.history, key)[-1] for t in others] for key in ("server_loss", "disentanglement")}
    losses = [
        history.client_loss[name] / history.proprietary_loss[name]
        for name in names
        if name in history.client_loss and (history.proprietary_loss[name] > 0).all()
    ]
    shifts = [history.delta_d[name] for name in names if name in history.delta_d]
    dashed = {"linewidth": 1.6, "dashes": (2, 1.5)}
    # caption, curves, the first one's colour, levels with theirs, whether the axis may be logarithmic
    panels: list[tuple[str, list[FloatArray], int, list[tuple[float, str, dict[str, Any]]], bool]] = [
        (caption, [getattr(history, key)], 0, [(v, SERIES[j + 1], dashed) for j, v in enumerate(ends[key])], True)
        for key, caption in (("server_loss", "Server loss"), ("disentanglement", "Disentanglement 1/T Σ|D|²"))
    ]
    one = [(1.0, TRUTH, {"linewidth": 1.2, "dashes": (3, 1.6)})]
    panels.append(("Augmented client loss over the proprietary one", losses, 3, one, False))
    panels.append(("Mean shift not yet explained, δd", shifts, 3, [], True))
    out = []
    for k, (caption, curves, first, levels, logarithmic) in enumerate(panels):
        with _axes((5.0, 2.6)) as (figure, axes):
            for j, values in enumerate(curves):
                axes.plot(np.arange(1, len(history) + 1), values, color=SERIES[(j + first) % len(SERIES)])
            for value, colour, look in levels:
                axes.axhline(value, color=colour, **look)
            axes.set_xscale("log")
            axes.set_xlim(1, max(2, len(history)))
            if logarithmic and all((values > 0).all() for values in curves):
                axes.set_yscale("log")
            axes.set_xlabel("round")
            out.append((caption, _svg(figure, f"{prefix}{k}-", caption)))
    return out


def check_panel(name: str, checks: Sequence[Check], prefix: str) -> Svg | None:
    """The picture of one kind of check; None where it has none."""
    from counterflow.checks.figures import drawn, panel

    if not any(drawn(check) for check in checks):
        return None
    longest = max(len(check.about) for check in checks)
    with _axes((5.0, 2.6), left=min(2.0, 0.5 + 0.06 * longest)) as (figure, axes):
        panel(axes, name, checks, _CHECK_COLOURS, _SHADES, titled=False)
        return _svg(figure, prefix, f"{name}: {KINDS[name]}")


def _from_zero(series: FloatArray) -> FloatArray:
    """At the moment of the change there is no effect yet."""
    return np.concatenate([[0.0], series])


@contextmanager
def drawn_in(look: Mapping[Any, Any], who: str) -> Iterator[None]:
    """Within it, matplotlib draws in that style; ``who`` needs it."""
    try:
        import matplotlib
    except ImportError as error:
        raise OptionError(f"{who} matplotlib: install it with  pip install 'counterflow[plots]'") from error
    with matplotlib.rc_context(dict(look)):
        yield


@contextmanager
def _axes(size: tuple[float, float], head: float = 0.08, left: float = 0.5) -> Iterator[tuple[Any, Any]]:
    with drawn_in(_STYLE, "a report needs"):
        from matplotlib.figure import Figure  # not pyplot: no global state, no display
        from matplotlib.ticker import MaxNLocator

        figure = Figure(figsize=size)
        # margins in inches (``head`` above the axes): a layout engine would draw everything twice
        figure.subplots_adjust(left / size[0], 0.45 / size[1], 1 - 0.12 / size[0], 1 - head / size[1])
        axes = figure.add_subplot()
        axes.xaxis.set_major_locator(MaxNLocator(9 if size[0] > 6 else 5, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        yield figure, axes


def _svg(figure: Any, prefix: str, label: str) -> Svg:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return inline(buffer.getvalue(), prefix, label, VARIABLES)
