"""Drawings of a report as SVG fragments to stand inside HTML.

Matplotlib draws with marker colours that no eye is meant to see; they are then replaced by the page's CSS variables,
so that one drawing serves light and dark. Everything that refers to the outside (document type, name spaces,
metadata) is removed, and ids are made unique within the page.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.errors import OptionError
from counterflow.fits.checks.kinds import KINDS, Verdict
from counterflow.report.content import Remedy, Shares, Training, WhatIf, World

if TYPE_CHECKING:
    from collections.abc import Iterator

    from counterflow.fits.checks.verdicts import Check


TEXT, GRID, TRUTH, SHADE, FACT = "#123401", "#123402", "#123403", "#123404", "#123405"
SERIES = tuple(f"#1234a{k}" for k in range(6))
GOOD, WARN, BAD = "#123406", "#123407", "#123408"
_VARIABLES = {TEXT: "--muted", GRID: "--grid", TRUTH: "--truth", SHADE: "--shade", FACT: "--fact"} | {
    colour: f"--series-{k}" for k, colour in enumerate(SERIES)
}
_VARIABLES |= {GOOD: "--good", WARN: "--series-4", BAD: "--series-1"}
_CHECK_COLOURS = (*SERIES, FACT)
_SHADES: dict[Verdict, str] = {"pass": GOOD, "caution": WARN, "fail": BAD, "unknown": FACT}
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "counterflow",  # the same report, the same bytes
    "svg.fonttype": "none",  # the reader's own sans-serif: small files, text that can be searched
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": TEXT,
    "axes.labelcolor": TEXT,
    "axes.edgecolor": GRID,
    "axes.grid": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": TEXT,
    "ytick.labelcolor": TEXT,
    "lines.linewidth": 2.0,
    "axes.unicode_minus": True,
}


def trajectories(whatif: WhatIf, index: int, prefix: str, size: tuple[float, float], title: bool = True) -> str:
    """The answers for one channel against time since the change began."""
    channel = whatif.channels[index]
    times = whatif.step * np.arange(len(whatif.answers[0].mean) + 1)
    with _axes(size, head=0.27 if title else 0.08) as (figure, axes):
        if whatif.duration is not None:
            axes.axvspan(0, whatif.duration * whatif.step, color=SHADE, linewidth=0, zorder=0)
        axes.axhline(0, color=GRID, linewidth=1.0)
        for k, answer in enumerate(whatif.estimates):
            colour = SERIES[k % len(SERIES)]
            if answer.lower is not None and answer.upper is not None:
                low, high = _from_zero(answer.lower[:, index]), _from_zero(answer.upper[:, index])
                axes.fill_between(times, low, high, color=colour, alpha=0.22, linewidth=0)
            axes.plot(times, _from_zero(answer.mean[:, index]), color=colour, zorder=4)
        if whatif.truth is not None:
            # dashed and on top: where the two agree, both can be seen
            axes.plot(times, _from_zero(whatif.truth.mean[:, index]), color=TRUTH, dashes=(3, 1.6), zorder=5)
        unit = f" [{channel.unit}]" if channel.unit else ""
        if title:
            axes.set_title(_literal(f"{channel.name}{unit}"))
        axes.set_xlabel(_literal(f"{whatif.step_unit} since the change began"))
        axes.set_xlim(0, times[-1])
        axes.margins(y=0.12)
        return _fragment(figure, prefix, f"Effect on {channel.name}{unit}, {len(times) - 1} steps")


def worlds(world: World, index: int, prefix: str, size: tuple[float, float], title: bool = True) -> str:
    """Measured and counterfactual values of one channel."""
    told, channel, clock = world.trajectory, world.channels[index], world.clock
    times = clock.step * np.arange(told.first, told.first + len(told.mean))
    with _axes(size, head=0.27 if title else 0.08) as (figure, axes):
        if world.changed is not None:
            first, stop = world.changed
            axes.axvspan(clock.step * first, clock.step * (stop - 1), color=SHADE, linewidth=0, zorder=0)
        axes.plot(times, told.factual[:, index], color=FACT, linewidth=1.6, zorder=3)
        if told.lower is not None and told.upper is not None:
            low, high = told.lower[:, index], told.upper[:, index]
            axes.fill_between(times, low, high, color=SERIES[0], alpha=0.22, linewidth=0)
        axes.plot(times, told.mean[:, index], color=SERIES[0], zorder=4)
        if world.truth is not None:
            axes.plot(times, world.truth[:, index], color=TRUTH, linewidth=1.4, dashes=(3, 1.6), zorder=5)
        unit = f" [{channel.unit}]" if channel.unit else ""
        if title:
            axes.set_title(_literal(f"{channel.name}{unit}"))
        _time_axis(axes, times, clock.point)
        return _fragment(figure, prefix, f"{channel.name}{unit}: what was measured, and what would have been")


def shares_over_time(shares: Shares, prefix: str, size: tuple[float, float]) -> str:
    """The departure of the headline channel from its usual level, and the units' shares of it."""
    found, at, clock = shares.attribution, shares.headline_index, shares.clock
    times = clock.step * np.arange(found.first, found.first + len(found.departure))
    with _axes(size) as (figure, axes):
        axes.axhline(0, color=GRID, linewidth=1.0)
        axes.plot(times, found.departure[:, at], color=TRUTH, linewidth=1.4, dashes=(3, 1.6), zorder=5)
        for name, values in found.shares.items():
            colour, dashed = share_colour(shares, name)
            line = {"dashes": (1, 1.2), "linewidth": 1.4} if dashed else {}
            axes.plot(times, values[:, at], color=colour, zorder=4 if not dashed else 3, **line)
        _time_axis(axes, times, clock.point)
        return _fragment(figure, prefix, f"Departure of {shares.headline} from its usual level, and who made it")


def share_colour(shares: Shares, name: str) -> tuple[str, bool]:
    """(marker colour, dotted) of one share: units have colours, the rest is grey."""
    units = [n for n in shares.attribution.shares if n not in ("initial state", "rest")]
    if name in units:
        return SERIES[units.index(name) % len(SERIES)], units.index(name) >= len(SERIES)
    return FACT, name == "rest"


def variable(colour: str) -> str:
    """The page's CSS variable for a marker colour."""
    return _VARIABLES[colour]


def way_there(remedy: Remedy, index: int, prefix: str, size: tuple[float, float]) -> str:
    """How a wanted output moves on the way to its target."""
    way, clock = remedy.effect, remedy.clock
    at = remedy.unit.output_names.index(remedy.restoration.channels[index])
    times = clock.step * np.arange(len(way.mean) + 1)
    with _axes(size) as (figure, axes):
        axes.axhline(0, color=GRID, linewidth=1.0)
        axes.axhline(remedy.restoration.target[index], color=TRUTH, linewidth=1.4, dashes=(3, 1.6))
        if way.lower is not None and way.upper is not None:
            low, high = _from_zero(way.lower[:, at]), _from_zero(way.upper[:, at])
            axes.fill_between(times, low, high, color=SERIES[0], alpha=0.22, linewidth=0)
        axes.plot(times, _from_zero(way.mean[:, at]), color=SERIES[0], zorder=4)
        axes.set_xlabel(_literal(f"{clock.unit} since the change began"))
        axes.set_xlim(0, times[-1])
        axes.margins(y=0.12)
        return _fragment(figure, prefix, f"Change of {remedy.restoration.channels[index]} on the way to its target")


def _time_axis(axes: Any, times: NDArray[Any], point: str) -> None:
    axes.set_xlabel(_literal(point))
    axes.set_xlim(times[0], times[-1] if len(times) > 1 else times[0] + 1)
    axes.margins(y=0.12)


def training_curves(trainings: Sequence[Training], names: Sequence[str], prefix: str) -> list[tuple[str, str]]:
    """(caption, drawing) of server loss, disentanglement, client losses and delta_d, where there are rounds to show."""
    shown = [training for training in trainings if len(training.history) > 1]
    if not shown:
        return []
    longest = max(shown, key=lambda training: len(training.history))
    others = [training for training in shown if training is not longest]
    out = []
    for k, (series, caption) in enumerate(
        (("server_loss", "Server loss"), ("disentanglement", "Disentanglement 1/T Σ|D|²"))
    ):
        with _axes((5.0, 2.6)) as (figure, axes):
            axes.plot(_rounds(longest), getattr(longest.history, series), color=SERIES[0])
            for j, training in enumerate(others):
                axes.axhline(getattr(training.history, series)[-1], color=SERIES[j + 1], linewidth=1.6, dashes=(2, 1.5))
            _rounds_axis(axes, longest)
            out.append((caption, _fragment(figure, f"{prefix}{k}-", caption)))
    history = longest.history
    ratios = {
        name: history.client_loss[name] / history.proprietary_loss[name]
        for name in names
        if name in history.client_loss and (history.proprietary_loss[name] > 0).all()
    }
    panels: list[tuple[str, dict[str, FloatArray], bool]] = [
        ("Augmented client loss over the proprietary one", ratios, False),
        ("Mean shift not yet explained, δd", {n: history.delta_d[n] for n in names if n in history.delta_d}, True),
    ]
    for k, (caption, curves, logarithmic) in enumerate(panels):
        with _axes((5.0, 2.6)) as (figure, axes):
            for j, series_values in enumerate(curves.values()):
                axes.plot(_rounds(longest), series_values, color=SERIES[(j + 3) % len(SERIES)])
            if not logarithmic:
                axes.axhline(1.0, color=TRUTH, linewidth=1.2, dashes=(3, 1.6))
            _rounds_axis(axes, longest, logarithmic and all((v > 0).all() for v in curves.values()))
            out.append((caption, _fragment(figure, f"{prefix}{k + 2}-", caption)))
    return out


def check_panel(name: str, checks: Sequence[Check], prefix: str) -> str:
    """The picture of one kind of check; empty where it has none."""
    from counterflow.fits.checks.figures import drawn, panel

    if not any(drawn(check) for check in checks):
        return ""
    longest = max(len(check.about) for check in checks)
    with _axes((5.0, 2.6), left=min(2.0, 0.5 + 0.06 * longest)) as (figure, axes):
        panel(axes, name, checks, _CHECK_COLOURS, _SHADES, titled=False)
        return _fragment(figure, prefix, f"{name}: {KINDS[name]}")


def _rounds(training: Training) -> FloatArray:
    return np.arange(1, len(training.history) + 1, dtype=np.float64)


def _rounds_axis(axes: Any, training: Training, logarithmic: bool = True) -> None:
    axes.set_xscale("log")
    axes.set_xlim(1, max(2, len(training.history)))
    if logarithmic and all((line.get_ydata() > 0).all() for line in axes.get_lines() if len(line.get_ydata()) > 2):
        axes.set_yscale("log")
    axes.set_xlabel("round")


def _from_zero(series: FloatArray) -> FloatArray:
    """At the moment of the change there is no effect yet."""
    return np.concatenate([[0.0], series])


def _literal(text: str) -> str:
    return text.replace("$", r"\$")  # a dollar sign in a channel's name is not mathematics


@contextmanager
def _axes(size: tuple[float, float], head: float = 0.08, left: float = 0.5) -> Iterator[tuple[Any, Any]]:
    try:
        import matplotlib.ticker
        from matplotlib.figure import Figure  # not pyplot: no global state, no display
    except ImportError as error:
        raise OptionError("a report needs matplotlib: install it with  pip install 'counterflow[plots]'") from error
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=size)
        # margins in inches (``head`` above the axes): a layout engine would draw everything twice
        figure.subplots_adjust(left / size[0], 0.45 / size[1], 1 - 0.12 / size[0], 1 - head / size[1])
        axes = figure.add_subplot()
        axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(9 if size[0] > 6 else 5, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(5, steps=[1, 2, 5, 10]))
        yield figure, axes


def _fragment(figure: Any, prefix: str, label: str) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<defs>\s*<style[^>]*>.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r'\s+xmlns(:xlink)?="[^"]*"', "", text)
    text = re.sub(r'(<svg[^>]*?)\swidth="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?)\sheight="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{prefix}\1"', text)
    text = re.sub(r'(href="#|url\(#)', rf"\1{prefix}", text)
    text = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font: \1px sans-serif", text)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    text = re.sub(r"\n\s*", "\n", text)
    return text.replace("<svg", f'<svg role="img" aria-label="{html.escape(label)}"', 1)
