"""Figures for print and screen: one look for all of them.

A drawing is a caption and some panels, and a panel is a list of curves with what its axes say. The same panels are laid
out for a page (up to three in a row, 7.2 inches wide) and for a telephone (one below the other), with one legend for
all. Colours are those of Okabe and Ito, which people with any colour vision can tell apart, and each comes with a line
style and a marker of its own, so that grey print will do.
"""

from __future__ import annotations

import io
import re
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.report.figures import drawn_in, style
from counterflow.report.templates import Svg, inline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


INK, MUTED, GRID = "#1c2126", "#59636e", "#dcdcd5"
BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION = "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00"
COLOURS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, INK)  # the last for what stands apart from six others
LINES: tuple[Any, ...] = ("-", (0, (5, 1.6)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)), (0, (3, 1)), (0, (8, 2)))
MARKERS = ("o", "s", "^", "D", "v", "P")
# what stands along axes that several figures have
SERVER_LOSS, DISENTANGLEMENT = "$L_s$ (squared states)", "$\\mathcal{D}$ (squared states)"
RELATIVE_LOSS, SHIFT_LEFT = "augmented / proprietary loss", "$\\delta_d$ (states)"
CLIENT_LOSS = "$L_{{{},a}}$ (outputs, squared)"  # of a client, by number
Middle = Literal["mean", "median", "geometric mean"]
MIDDLES: Mapping[Middle, Callable[[FloatArray], Any]] = {  # over runs (rows)
    "mean": partial(np.mean, axis=0),
    "median": partial(np.median, axis=0),
    "geometric mean": lambda runs: np.exp(np.log(runs).mean(axis=0)),
}
UNDATED: dict[str, dict[str, Any]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}  # each format
LEAST_PLAIN, MOST_PLAIN = 0.3e-3, 0.999e5  # an axis that goes beyond has powers of ten only
_DPI = 200
_WIDE, _SINGLE, _NARROW, _HEIGHT = 7.2, 4.8, 3.7, 2.25  # inches: page, one panel alone, telephone; row of panels
_STYLE = style(
    INK, MUTED, GRID, font_size=8, axes_labelsize=8, axes_linewidth=0.7, axes_axisbelow=True, axes_titlesize=8.5,
    axes_titleweight="bold", axes_facecolor="none", figure_facecolor="white", grid_linewidth=0.5, xtick_labelsize=7.5,
    ytick_labelsize=7.5, lines_linewidth=1.5, lines_markersize=4.5, legend_frameon=False, legend_fontsize=8,
    font_family="DejaVu Sans",  # comes with matplotlib, so that figures are alike everywhere
    pdf_fonttype=42,  # letters that printers and search engines can read
)  # fmt: skip
styled = partial(drawn_in, _STYLE, "figures need")  # within it, matplotlib draws in the house style

Curve = Callable[["Axes"], object]  # draws on axes; what it labels goes to the figure's legend
Runs = Sequence[FloatArray] | FloatArray  # one row for each run
Scale = bool | Sequence[float]  # of an axis: linear, logarithmic, or logarithmic with these ticks
Range = tuple[float | None, float | None]  # of an axis: None where the data decide


@dataclass(frozen=True)
class Panel:
    """One pair of axes: a title, curves, what stands along the axes, and their scales and ranges."""

    title: str
    curves: Sequence[Curve]
    x: str
    y: str
    log_x: Scale = False
    log_y: Scale = False
    range_x: Range = (None, None)
    range_y: Range = (None, None)
    sketch: bool = False  # no axes: boxes and arrows

    def draw(self, axes: Axes) -> None:
        for curve in self.curves:
            curve(axes)
        if self.sketch:
            axes.set_axis_off()
            return
        axes.set(xlabel=self.x, ylabel=self.y)
        if self.range_x != (None, None):
            axes.set_xlim(*self.range_x)
        if self.range_y != (None, None):
            axes.set_ylim(*self.range_y)
        if self.log_x is not False:
            log_axis(axes, "x", self.log_x)
        if self.log_y is not False:
            log_axis(axes, "y", self.log_y)


@dataclass(frozen=True)
class Drawing:
    """A figure of the report: its caption (which says what bands and bars are) and its panels, lettered if several.

    ``paper``: the paper's figure that it is, by number; it then has the same panels, in the same order.
    """

    caption: str
    panels: Sequence[Panel]
    columns: int = 3
    paper: str = ""
    height: float = 1.0  # of a row of panels, in that of others


def over_rounds(title: str, curves: Sequence[Curve], y: str) -> Panel:
    """A panel of a training: something against rounds, on logarithmic axes."""
    return Panel(title, curves, "round k + 1", y, log_x=True, log_y=True)


def compose(drawing: Drawing, narrow: bool = False) -> Figure:
    """The figure, for a page or for a narrow screen."""
    with styled():
        from matplotlib.figure import Figure  # not pyplot: no global state, no display
        from matplotlib.layout_engine import ConstrainedLayoutEngine

        several = len(drawing.panels) > 1
        columns = 1 if narrow else min(drawing.columns, len(drawing.panels))
        rows = -(-len(drawing.panels) // columns)
        width = _NARROW if narrow else _WIDE if several or drawing.panels[0].sketch else _SINGLE
        height = _HEIGHT * (1.0 if narrow else drawing.height)
        layout = ConstrainedLayoutEngine(w_pad=0.06, h_pad=0.06, wspace=0.03, hspace=0.05)
        figure = Figure(figsize=(width, height * rows + 0.3), dpi=_DPI, layout=layout)  # letters are wider at 100
        places = figure.add_gridspec(rows, columns)
        for k, (letter, panel) in enumerate(zip(string.ascii_lowercase, drawing.panels, strict=False)):
            axes = figure.add_subplot(places[divmod(k, columns)])
            axes.set_title(f"({letter}) {panel.title}" if several else panel.title)
            panel.draw(axes)
        _legend(figure, width)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # it is laid out now; each format would do so again
        return figure


def _legend(figure: Figure, width: float) -> None:
    """One legend above all panels, each entry once, in as many columns as there is room for."""
    entries: dict[str, Any] = {}
    for axes in figure.axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    if not entries:
        return
    # letters that are seen, roughly, also of mathematics
    longest = max(len(re.sub(r"\\[a-z]+|[${}_^]", "", label)) for label in entries)
    columns = min(max(int(width / (0.65 + 0.065 * longest)), 1), len(entries))
    figure.set_figheight(figure.get_figheight() + 0.19 * (-(-len(entries) // columns) - 1))
    figure.legend(
        list(entries.values()), list(entries), loc="outside upper left", ncols=columns, handlelength=2.4, borderpad=0.2
    )


def band(
    x: FloatArray, runs: Runs, label: str, colour: int = 0, line: int | None = None, middle: Middle = "mean"
) -> Curve:
    """The middle of several runs as a line, and the range from the least to the largest of them as a band."""

    def draw(axes: Axes) -> None:
        stacked = np.atleast_2d(np.asarray(runs, np.float64))
        shade, style = COLOURS[colour % len(COLOURS)], LINES[(colour if line is None else line) % len(LINES)]
        axes.plot(x, MIDDLES[middle](stacked), color=shade, linestyle=style, label=label, zorder=3)
        if len(stacked) > 1:
            low, high = stacked.min(axis=0), stacked.max(axis=0)
            axes.fill_between(x, low, high, color=shade, alpha=0.18, linewidth=0, zorder=2)

    return draw


def points(
    x: Sequence[float] | FloatArray, runs: Runs, label: str, colour: int = 0, middle: Middle = "mean",
    dodge: float = 1.0, **look: Any,
) -> Curve:  # fmt: skip
    """The middle of several runs at each x as a marker on a line, with a bar from the least to the largest of them.

    ``dodge`` is a factor on x (of a logarithmic axis), for bars that would hide one another; ``look`` are other
    colours, lines and markers than those that belong to ``colour``.
    """

    def draw(axes: Axes) -> None:
        stacked = np.atleast_2d(np.asarray(runs, np.float64))
        centre = MIDDLES[middle](stacked)
        bars = np.maximum(0.0, np.stack([centre - stacked.min(axis=0), stacked.max(axis=0) - centre]))
        usual = {"color": COLOURS[colour % len(COLOURS)], "linestyle": LINES[colour % len(LINES)]}
        usual |= {"marker": MARKERS[colour % len(MARKERS)], "capsize": 2, "elinewidth": 0.9, "zorder": 3}
        at = dodge * np.asarray(x, np.float64)
        axes.errorbar(at, centre, yerr=bars if len(stacked) > 1 else None, label=label, **{**usual, **look})

    return draw


def series(
    x: Sequence[float] | FloatArray, runs: Mapping[str, Runs], middle: Middle = "mean", colours: Iterable[int] = ()
) -> list[Curve]:
    """``points`` of several labels, in these colours (or the first ones)."""
    own = tuple(colours) or range(len(runs))
    return [points(x, each, label, colour, middle) for (label, each), colour in zip(runs.items(), own, strict=True)]


def level(y: float, label: str | None = None, **look: Any) -> Curve:
    """A horizontal line, dotted unless ``look`` says otherwise: what nothing at all, or another model, gets."""
    usual = {"color": INK, "linewidth": 1.0, "linestyle": (0, (1, 1))}
    return lambda axes: axes.axhline(y, label=label, **{**usual, **look})


def log_axis(axes: Axes, which: Literal["x", "y"], scale: Scale) -> None:
    """A logarithmic axis with few, plain numbers on it: after what is drawn on it, which tells how long it is."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

    axis = axes.xaxis if which == "x" else axes.yaxis
    axes.set(**{f"{which}scale": "log"})
    axis.set_minor_locator(NullLocator())
    low, high = axis.get_view_interval()
    if isinstance(scale, bool):
        decades = np.log10(high / low)
        digits = (1, 2, 3, 5, 7) if decades < 1 else (1, 2, 3, 5) if decades < 1.4 else (1, 3) if decades < 2 else (1,)
        axis.set_major_locator(LogLocator(subs=digits, numticks=7))
    else:
        low, high = min(scale), max(scale)
        axis.set_major_locator(FixedLocator(list(scale)))
    powers = low < LEAST_PLAIN or high > MOST_PLAIN
    axis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value, powers)))


def _tick(value: float, powers: bool) -> str:
    """A tick's number: as it is, or as a power of ten, as all others of its axis."""
    if not powers:
        return f"{value:g}"
    power = int(np.floor(np.log10(value) + 1e-9))
    digits = value / 10.0**power
    return f"$10^{{{power}}}$" if abs(digits - 1) < 1e-6 else f"${digits:.3g}\\cdot 10^{{{power}}}$"


def files(drawing: Drawing, narrow: bool = False, endings: Iterable[str] = tuple(UNDATED)) -> dict[str, bytes]:
    """The figure as SVG, PDF and PNG, by ending."""
    figure, found = compose(drawing, narrow), {}
    for ending in endings:
        buffer = io.BytesIO()
        with styled():
            figure.savefig(buffer, format=ending, dpi=_DPI, metadata=UNDATED[ending])
        found[ending] = buffer.getvalue()
    return found


def svg(content: bytes, prefix: str, label: str) -> Svg:
    """A figure to stand inside HTML, a third larger than in print if there is room; paper and ink are the page's."""
    text = content.decode().replace("fill: #ffffff", "fill: none")
    colours = {INK: "--ink", MUTED: "--muted", GRID: "--grid", BLUE: "--blue"}
    return inline(text, prefix, label, colours, enlarged=4 / 3)
