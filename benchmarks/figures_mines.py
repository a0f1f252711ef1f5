"""Draw the pictures of docs/tutorials/wastewater-plant.md: python benchmarks/figures_mines.py

The fits are those of bench_mines.py. The log is not part of this project; without it nothing is drawn (see mines.py).
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported

from collections.abc import Mapping
from pathlib import Path

import bench_mines
import matplotlib
import mines
import numpy as np
from figure_style import IMAGES, INK, MUTED, STYLE
from matplotlib.axes import Axes
from matplotlib.dates import DateFormatter, HourLocator
from matplotlib.figure import Figure

import counterflow as cf

SHADE = "#e6e0cc"
MEASURED, JOINT, ALONE, STILL = "#1c2126", "#0072b2", "#d55e00", "#a9b0b7"
DAY = np.datetime64("2010-05-06T06:00")  # six hours of the held-out rows
HOURS, SHOWN = 6, 3  # of the log; of forecasts
FILLED = np.datetime64("2010-04-22T00:00")  # half a day of the training rows with a filled gap in it
WINDOW = (np.datetime64("2010-05-06T06:00"), 180)  # explained: from when, minutes


def row_of(log: mines.Log, when: np.datetime64) -> int:
    """Row of a minute."""
    return int((when - log.time[0]).astype("timedelta64[m]").astype(int))


def draw_log(path: Path, log: mines.Log) -> None:
    """What one sees in the log, and two things that one does not see at first."""
    panels = (
        ("sewage_flow", "sewage [gpm]"),
        ("bio_1_level", "reactor 1\nlevel [ft]"),
        ("bio_1_do", "reactor 1\noxygen [mg/l]"),
        ("mbr_1_level", "membrane 1\nlevel [ft]"),
        ("mbr_1_tmp", "membrane 1\ntmp [psi]"),
    )
    start = row_of(log, DAY)
    rows = slice(start, start + 60 * HOURS)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.4, 6.6), layout="constrained", facecolor="white")
        left, right = figure.subfigures(1, 2, width_ratios=(1.7, 1))
        left.suptitle("Six hours of the log", x=0.02, ha="left", fontweight="bold", fontsize=9.5)
        for axes, (column, label) in zip(left.subplots(len(panels), 1, sharex=True), panels, strict=True):
            axes.plot(_clock(log, rows), log.columns[column][rows], color=JOINT, linewidth=1.0)
            axes.set_ylabel(label)
            axes.xaxis.set_major_formatter(DateFormatter("%H:%M"))
        axes.set_xlabel(f"{DAY.astype('datetime64[D]')}")
        first, second = right.subplots(2, 1)
        _ten_minutes(first, log, start)
        _filled(second, log)
        figure.savefig(path, dpi=92, metadata={"Software": None})


def _clock(log: mines.Log, rows: slice) -> np.ndarray:
    return log.time[rows].astype("datetime64[s]")


def _ten_minutes(axes: Axes, log: mines.Log, start: int) -> None:
    rows = slice(start, start + 61)
    level = log.columns["bio_1_level"][rows]
    sampled = log.time[rows].astype(np.int64) % mines.SAMPLE == 0
    axes.plot(_clock(log, rows), level, color=STILL, linewidth=1.0, marker=".", markersize=4, label="as filed")
    axes.plot(
        _clock(log, rows)[sampled], level[sampled], "o-", color=JOINT, linewidth=1.0, markersize=5, label="sampled"
    )
    axes.set_title("measured every ten minutes only", loc="left", fontsize=9.5, fontweight="bold")
    axes.set_ylabel("reactor 1 level [ft]")
    axes.legend(frameon=False)
    axes.xaxis.set_major_formatter(DateFormatter("%H:%M"))


def _filled(axes: Axes, log: mines.Log) -> None:
    start = row_of(log, FILLED)
    rows = slice(start, start + 60 * 15)
    for name, colour in (("mbr_1_level", JOINT), ("mbr_2_level", ALONE)):
        axes.plot(_clock(log, rows), log.columns[name][rows], color=colour, linewidth=1.0, label=name)
    axes.fill_between(
        _clock(log, rows), 0, 1, where=log.bridged[rows], transform=axes.get_xaxis_transform(), color=SHADE,
        linewidth=0, label="filled along straight lines",
    )  # fmt: skip
    axes.set_title("never measured at all", loc="left", fontsize=9.5, fontweight="bold")
    axes.set_ylabel("level [ft]")
    axes.set_xlabel(f"{FILLED.astype('datetime64[D]')}")
    axes.legend(frameon=False, fontsize=8)
    axes.xaxis.set_major_locator(HourLocator(byhour=range(0, 24, 4)))
    axes.xaxis.set_major_formatter(DateFormatter("%H:%M"))


def draw_forecasts(path: Path, log: mines.Log, fitted: bench_mines.Fits) -> None:
    """Three hours in half-hour free runs."""
    rows = log.held_out
    runs = bench_mines.forecasts(log, fitted, rows)
    starts = log.starts(rows)
    first = row_of(log, DAY)
    shown = [k for k, row in enumerate(starts) if first <= row < first + 60 * SHOWN and (row - first) % 30 == 0]
    panels = (
        ("bio_1", "level", "reactor 1: level [ft]"),
        ("mbr_1", "level", "membrane 1: level [ft]"),
        ("bio_1", "do", "reactor 1: oxygen [mg/l]"),
        ("mbr_1", "tmp", "membrane 1: tmp [psi]"),
    )
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9.4, 5.8), layout="constrained", facecolor="white")
        for axes, (unit, channel, label) in zip(figure.subplots(2, 2).flat, panels, strict=True):
            run = runs[unit]
            at = run.channels.index(channel)
            whole = slice(first, first + 60 * SHOWN + 1)
            measured = log.columns[mines.COLUMNS[unit, channel]][whole]
            slow = (unit, channel) in mines.SLOW
            every = log.time[whole].astype(np.int64) % mines.SAMPLE == 0 if slow else np.ones(len(measured), bool)
            axes.plot(
                _clock(log, whole)[every], measured[every], color=MEASURED, linewidth=0 if slow else 0.9,
                marker="o" if slow else "", markersize=2.6, label="measured", zorder=3,
            )  # fmt: skip
            for k in shown:
                ahead = slice(starts[k], starts[k] + mines.HORIZON + 1)
                origin = log.columns[mines.COLUMNS[unit, channel]][starts[k]]
                time = _clock(log, ahead)
                for forecast, colour, name, width in (
                    (run.persistence, STILL, "the last value", 1.0),
                    (run.local, ALONE, "the unit alone", 1.1),
                    (run.joint, JOINT, "all five units", 1.5),
                ):
                    axes.plot(
                        time[1:], np.maximum(forecast[k, :, at], 0.0), color=colour, linewidth=width,
                        label=name if k == shown[0] else None,
                    )  # fmt: skip
                axes.plot(time[0], origin, "|", color=MUTED, markersize=9)
            axes.set_title(label, loc="left", fontsize=9.5, fontweight="bold")
            axes.xaxis.set_major_formatter(DateFormatter("%H:%M"))
        handles, labels = figure.axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
        figure.savefig(path, dpi=92, metadata={"Software": None})


def draw_scores(path: Path, log: mines.Log, fitted: bench_mines.Fits) -> None:
    """How much better, with intervals."""
    rows = log.held_out
    judged = bench_mines.scores(log, bench_mines.forecasts(log, fitted, rows), rows)
    keys = list(judged)[::-1]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.2, 4.0), layout="constrained", facecolor="white")
        axes = figure.subplots()
        for shift, colour, name, found in (
            (0.12, STILL, "against the last value", [judged[key].persistence for key in keys]),
            (-0.12, JOINT, "against the unit alone", [judged[key].alone for key in keys]),
        ):
            middle = np.array([each.ratio for each in found])
            reach = np.array([[each.ratio - each.low, each.high - each.ratio] for each in found]).T
            axes.errorbar(
                middle, np.arange(len(keys)) + shift, xerr=reach, fmt="o", color=colour, markersize=5, elinewidth=2,
                label=name,
            )  # fmt: skip
        axes.axvline(1.0, color=INK, linewidth=1.0)
        axes.set_yticks(np.arange(len(keys)), [f"{unit} {channel}" for unit, channel in keys])
        axes.set_xlabel("error of the five units' model / error of the other, over half an hour; 95 % intervals")
        axes.grid(visible=False, axis="y")
        axes.set_xlim(left=0)
        figure.legend(loc="outside upper left", ncols=3, frameon=False)
        figure.savefig(path, dpi=92, metadata={"Software": None})


def draw_window(path: Path, log: mines.Log, found: cf.Fit, unit: str = "bio_1", channel: str = "level") -> None:
    """Who moved a level in three hours."""
    rows = log.held_out
    start = row_of(log, WINDOW[0]) - rows.start
    split = found.attribute(mines.recording(log, rows), unit, start=start, stop=start + WINDOW[1])
    at = split.channels.index(channel)
    time = _clock(log, slice(rows.start + start, rows.start + start + WINDOW[1]))
    groups: Mapping[str, tuple[str, ...]] = {
        "sewage (works)": ("works",),
        "reactors' blowers and phases": ("bio_1", "bio_2"),
        "membranes' modes": ("mbr_1", "mbr_2"),
        "what came before": ("initial state",),
        "rest": ("rest",),
    }
    colours = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", STILL)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8.6, 4.0), layout="constrained", facecolor="white")
        axes = figure.subplots()
        for (name, members), colour in zip(groups.items(), colours, strict=True):
            part = sum(split.shares[member][:, at] for member in members)
            axes.plot(time, part, color=colour, linewidth=1.0 if name == "rest" else 1.7, label=name)
        axes.plot(
            time, split.departure[:, at], color=INK, linewidth=1.0, dashes=(3, 1.5), label="measured, all together"
        )
        axes.axhline(0.0, color=MUTED, linewidth=0.8)
        axes.set_ylabel(f"{unit} {channel}: departure [ft]")
        axes.set_xlabel(f"{WINDOW[0].astype('datetime64[D]')}")
        axes.xaxis.set_major_formatter(DateFormatter("%H:%M"))
        figure.legend(loc="outside right upper", frameon=False)
        figure.savefig(path, dpi=92, metadata={"Software": None})


def main() -> None:
    if mines.find() is None:
        print(f"skipped: {mines.ABSENT}")
        return
    log = mines.load()
    draw_log(IMAGES / "wastewater-log.png", log)
    fitted = bench_mines.fits(log)
    draw_forecasts(IMAGES / "wastewater-forecasts.png", log, fitted)
    draw_scores(IMAGES / "wastewater-scores.png", log, fitted)
    draw_window(IMAGES / "wastewater-window.png", log, fitted.joint)


if __name__ == "__main__":
    main()
