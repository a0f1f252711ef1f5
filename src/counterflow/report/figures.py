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

from counterflow.checks.verdicts import Verdict, kinds
from counterflow.errors import OptionError
from counterflow.questions.numbers import channel_label
from counterflow.questions.plots import COLOURS, Line, literal, short_dates
from counterflow.report.content import Told
from counterflow.report.templates import Svg, inline

if TYPE_CHECKING:
    from counterflow.checks.verdicts import Check
    from counterflow.fits.fit import Fit

TEXT, GRID, TRUTH, SHADE, FACT = "#123401", "#123402", "#123403", "#123404", "#123405"
GOOD, WARN, BAD, ACCENT, DOUBT, INK, PAPER = (f"#12340{k}" for k in "6789abc")
SERIES = tuple(colour.lower() for colour in COLOURS[:6])  # so that the library's own pictures may stand on a page
VARIABLES = {  # the page's CSS variables by marker colours
    TEXT: "--muted", GRID: "--grid", TRUTH: "--truth", SHADE: "--shade", FACT: "--fact", GOOD: "--good",
    WARN: "--series-4", BAD: "--series-1", ACCENT: "--accent", DOUBT: "--warn", INK: "--ink", PAPER: "--paper",
    **{colour: f"--series-{k}" for k, colour in enumerate(SERIES)},
}  # fmt: skip
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
_FRONT: dict[str, Any] = {"zorder": 4}
_DOTTED: dict[str, Any] = {"dashes": (1, 1.2), "linewidth": 1.4, "zorder": 3}
_THIN: dict[str, Any] = {"dashes": (3, 1.6), "linewidth": 1.4}


def banded(line: Line, level: float | None) -> str:
    """What a legend adds for a band."""
    return f", with {100 * level:g} % band" if line.lower is not None and level is not None else ""


def lines_of(told: Told, index: int) -> list[Line]:
    """What is drawn of a channel: the answer's own lines, and what others say."""
    beside = [
        replace(Line.banded(each.label, (each.mean, each.lower, each.upper), "", index), role="part", number=k)
        for k, each in enumerate(told.others, start=1)
    ]
    return [*told.answer.rows.lines(index, SERIES[0]), *beside]


def told(told: Told, index: int, prefix: str, size: tuple[float, float], title: bool = True) -> Svg:
    """One channel of an answer, as the answer itself draws it, beside other answers and the truth where it is known.

    Nothing is drawn across missing rows, or where time jumps.
    """
    answer, name = told.answer.rows, channel_label(told.channels[index])
    curves = [_styled(line) for line in lines_of(told, index)]
    if told.truth is not None:  # dashed and on top: where the two agree, both can be seen
        curves.append(Line("", told.truth[:, index], look={"color": TRUTH, **_THIN, "zorder": 5}))
    rows = answer.timeline.axis()
    times = rows.places
    with _axes(size, head=0.27 if title else 0.08) as (figure, axes):
        for span in answer.changed(times):
            axes.axvspan(*span, color=SHADE, linewidth=0, zorder=0)
        if answer.zero:
            axes.axhline(0.0, color=GRID, linewidth=1.0)
        for aim in told.aims(index):
            axes.axhline(aim, color=FACT, **_THIN)
        for curve in curves:
            curve.draw(axes, rows, alpha=0.22)
        if title:
            axes.set_title(literal(name))
        axes.set_xlabel(literal(rows.label))
        if times.dtype.kind == "M":
            short_dates(axes)
        axes.set_xlim(times[0], times[-1] if len(times) > 1 else times[0] + 1)
        axes.margins(y=0.12)
        return to_svg(figure, prefix, f"{name}: {answer.title()}")


def mark(line: Line) -> tuple[str, str, Mapping[str, Any]]:
    """Of a line of an answer: the class of its mark in a legend, its marker colour, its look."""
    if line.role == "part":
        dotted = line.number >= len(SERIES)
        return "dotted" if dotted else "", SERIES[line.number % len(SERIES)], _DOTTED if dotted else _FRONT
    return {
        "answer": ("", SERIES[0], _FRONT),
        "average": ("dashed", SERIES[0], {**_FRONT, "dashes": (3, 1.6)}),
        "measured": ("", FACT, {"linewidth": 1.6, "zorder": 3}),
        "whole": ("dashed", TRUTH, {**_THIN, "zorder": 5}),
        "rest": ("dotted", FACT, _DOTTED),
    }[line.role]


def _styled(line: Line) -> Line:
    """A line of an answer in the colours of a page."""
    _, colour, look = mark(line)
    return replace(line, look={"color": colour, **look})


def training_curves(fits: Mapping[str, Fit], prefix: str) -> list[tuple[str, Svg]]:
    """(label, drawing) of losses round by round, as the fit's history draws them, where there are rounds to show."""
    out = []
    for k, (label, fit) in enumerate(fits.items()):
        if len(fit.history) > 1:
            with drawn_in(_STYLE, "a report needs"):
                out.append((label, to_svg(fit.history.plot(), f"{prefix}{k}-", f"{label}: losses by rounds")))
    return out


def check_panel(name: str, checks: Sequence[Check], prefix: str) -> Svg | None:
    """The picture of one kind of check; None where it has none."""
    from counterflow.checks.figures import drawn

    if not any(drawn(check) for check in checks):
        return None
    longest = max(len(check.about) for check in checks)
    with _axes((5.0, 2.6), left=min(2.0, 0.5 + 0.06 * longest)) as (figure, axes):
        kinds()[name].panel(axes, checks, (*SERIES, FACT), _SHADES)
        return to_svg(figure, prefix, f"{name}: {kinds()[name].claim}")


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
def blank(size: tuple[float, float]) -> Iterator[tuple[Any, Any]]:
    """A drawing without axes, whose places are inches from its lower left corner."""
    with drawn_in(_STYLE, "a report needs"):
        from matplotlib.figure import Figure  # not pyplot: no global state, no display

        figure = Figure(figsize=size)
        axes = figure.add_axes((0, 0, 1, 1), xlim=(0, size[0]), ylim=(0, size[1]))
        axes.set_axis_off()
        yield figure, axes


@contextmanager
def _axes(size: tuple[float, float], head: float = 0.08, left: float = 0.5) -> Iterator[tuple[Any, Any]]:
    with drawn_in(_STYLE, "a report needs"):
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        figure = Figure(figsize=size)
        # margins in inches (``head`` above the axes): a layout engine would draw everything twice
        figure.subplots_adjust(left / size[0], 0.45 / size[1], 1 - 0.12 / size[0], 1 - head / size[1])
        axes = figure.add_subplot()
        axes.xaxis.set_major_locator(MaxNLocator(9 if size[0] > 6 else 5, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10]))
        yield figure, axes


def to_svg(figure: Any, prefix: str, label: str, enlarged: float | None = None) -> Svg:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return inline(buffer.getvalue(), prefix, label, VARIABLES, enlarged)
