"""A fit from logs that keeps up with a plant: what each of 2,000 updates costs, and how far they are from one fit.

Run: python benchmarks/bench_updates.py [UPDATES]
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time

import machine
import numpy as np
import plants
from plants import product

import counterflow as cf

CASES = (("tanks", "wide"), ("sludge", "gentle"))
FIRST, STEP, HUNDRED = 1000, 10, 100
HORIZON = 50


@dataclass
class Run:
    """Of every update CPU seconds, whether it chose features anew, and weights in use; the fits at some of them."""

    case: plants.Case
    seconds: np.ndarray
    searched: np.ndarray
    weights: np.ndarray
    fits: dict[int, cf.Fit]


def run(plant: str, way: str, updates: int) -> Run:
    case = plants.case(plant, way, FIRST + STEP * updates, seed=0)
    recording = case.recording()
    fit = cf.fit(recording.slice(0, FIRST))
    seconds, searched, weights, fits = [], [], [], {}
    for k in range(updates):
        begin = process_time()
        row = FIRST + STEP * k
        # the case's record has one row more, which the last update takes in
        fit = fit.update(recording.slice(row, row + STEP if k < updates - 1 else None))
        seconds.append(process_time() - begin)
        stream = fit.couplings.stream
        searched.append(stream.chosen == stream.rows)
        weights.append((stream.posterior.variance > 0).sum(axis=1).mean())
        if 4 * (k + 1) % updates == 0:
            fits[k + 1] = fit
    return Run(case, np.array(seconds), np.array(searched), np.array(weights), fits)


def gaps(one: cf.Fit, two: cf.Fit) -> np.ndarray:
    """Differences of all effects on other units, in half widths of the second fit's 95 % intervals."""
    out = []
    for cause in one.plant.units:
        for channel in cause.input_names:
            change = {channel: float(two.server.seen[two.server.input_slices[cause.name]][0]) / 4}
            for effect in one.names:
                if effect != cause.name:
                    a, b = (fit.effect(cause.name, effect, change, HORIZON) for fit in (one, two))
                    out.append((np.abs(a.mean - b.mean) / np.maximum((b.upper - b.lower) / 2, 1e-12)).ravel())
    return np.concatenate(out)


def told(values: np.ndarray) -> str:
    return f"{np.median(values):.2f} / {np.quantile(values, 0.95):.2f} / {values.max():.2f}"


def stored(fit: cf.Fit) -> tuple[float, float, float]:
    """Megabytes of the server's file, seconds to write and to read a fit."""
    with tempfile.TemporaryDirectory() as folder:
        marks = [perf_counter()]
        fit.save(f"{folder}/fit")
        marks.append(perf_counter())
        cf.load(f"{folder}/fit")
        marks.append(perf_counter())
        size = Path(folder, "fit", "server.safetensors").stat().st_size / 1e6
    return size, marks[1] - marks[0], marks[2] - marks[1]


def main() -> None:
    updates = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    runs = [run(*which, updates) for which in CASES]
    lines = [
        "# Updates of fits from logs",
        "",
        machine.description(),
        "",
        f"A fit of {FIRST:,} rows, then {updates:,} updates of {STEP} rows. Plants with four units of "
        "`benchmarks/plants`, seed 0, one thread.",
        "",
        "## What an update costs",
        "",
        "CPU milliseconds. Most updates let the weights of the chosen features follow the sums; when there are a tenth "
        "more rows than at the last search, or blocks are joined, features are chosen anew and checks are made.",
        "",
        "| plant | updates | weights of a number | median | searches | one search | mean with searches | one fit |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for each in runs:
        begin = process_time()
        each.fits[0] = cf.fit(each.case.recording())
        one = f"{1e3 * (process_time() - begin):,.0f}"
        for last in (HUNDRED, updates // 2, updates):
            part = slice(last - HUNDRED, last)
            seconds, searched = 1e3 * each.seconds[part], each.searched[part]
            search = f"{seconds[searched].mean():,.0f}" if searched.any() else ""
            lines.append(
                f"| {each.case.plant}, {each.case.way} | {last - HUNDRED + 1:,} to {last:,} | "
                f"{each.weights[part].mean():.1f} | {np.median(seconds[~searched]):.0f} | {searched.sum()} | {search} "
                f"| {seconds.mean():.0f} | {one if last == updates else ''} |"
            )
    count = ", ".join(f"{each.searched.sum()} searches ({each.case.plant})" for each in runs)
    lines += [
        "",
        f"In all {count}. The median rises with the number of weights that there is evidence for, and no longer when "
        "there are 10,000 rows: more are not counted as more evidence.",
    ]
    lines += [
        "",
        "## How far it is from one fit of all rows",
        "",
        f"Differences of effects on other units, of a quarter of each input's range over {HORIZON} rows, in half "
        "widths of the one fit's 95 % intervals: median / 95 % quantile / largest. The one fit has bases of its own.",
        "",
        "| plant | " + " | ".join(f"after {k:,} updates" for k in sorted(runs[0].fits) if k) + " |",
        "|---|" + "---|" * (len(runs[0].fits) - 1),
    ]
    for each in runs:
        recording, cells = each.case.recording(), []
        for k in sorted(k for k in each.fits if k):
            one = each.fits[0] if k == updates else cf.fit(recording.slice(0, FIRST + STEP * k))
            cells.append(told(gaps(each.fits[k], one)))
        lines.append(f"| {each.case.plant}, {each.case.way} | " + " | ".join(cells) + " |")
    lines += [
        "",
        "## How right it is",
        "",
        "Against true twins: mean 1 - R² of effects on other units, and share of the truth inside 95 % intervals.",
        "",
        "| plant | error of the stream | of one fit | coverage of the stream | of one fit |",
        "|---|---:|---:|---:|---:|",
    ]
    for each in runs:
        stream, one = (plants.judge(each.case, product.asked(each.case, each.fits[k], 0.0)) for k in (updates, 0))
        lines.append(
            f"| {each.case.plant}, {each.case.way} | {stream.error:.4f} | {one.error:.4f} | "
            f"{100 * stream.coverage:.0f} % | {100 * one.coverage:.0f} % |"
        )
    lines += ["", "## On disk", "", "| plant | server's file | written in | read in |", "|---|---:|---:|---:|"]
    for each in runs:
        for label, fit in ((" (never updated)", each.fits[0]), (f" (after {updates:,} updates)", each.fits[updates])):
            size, written, read = stored(fit)
            name = f"{each.case.plant}, {each.case.way}{label}"
            lines.append(f"| {name} | {size:.1f} MB | {written:.2f} s | {read:.2f} s |")
    machine.write("updates", "\n".join(lines))


if __name__ == "__main__":
    main()
