"""A real log: half-hour forecasts of the Mines wastewater plant, its influence graph, and what can be asked of it.

Run: python benchmarks/bench_mines.py [--fits DIRECTORY]

With --fits the fits are kept in that directory, and taken from it if they are there. The log is not part of this
project; without it nothing is done and the result file stays as it is (see mines.py).
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import machine
import mines
import numpy as np

import counterflow as cf
from counterflow.runtime.checks import FreeRun, check, free_run

JOINT = "joint"


@dataclass(frozen=True)
class Fits:
    """The fit of all units, a fit of each unit by itself, and how long each took (0: taken from a directory)."""

    joint: cf.Fit
    alone: Mapping[str, cf.Fit]
    seconds: Mapping[str, float]


def fits(log: mines.Log, directory: Path | None = None) -> Fits:
    """Fit the training rows: all units together, and each unit knowing nothing of the others."""
    recording = mines.recording(log, log.train)
    found, seconds = {}, {}
    for name in (JOINT, *recording.names):
        kept = None if directory is None else directory / name
        if kept is not None and kept.is_dir():
            found[name], seconds[name] = cf.load(kept), 0.0
            continue
        part = recording if name == JOINT else cf.Recording({name: recording[name]}, recording.dt)
        begin = perf_counter()
        found[name] = cf.fit(part) if name == JOINT else cf.fit(part, uncertainty=False)
        seconds[name] = perf_counter() - begin
        print(f"{name}: {seconds[name]:.0f} s, {found[name].status}", flush=True)
        if kept is not None:
            found[name].save(kept)
    return Fits(found.pop(JOINT), found, seconds)


def forecasts(log: mines.Log, fitted: Fits, rows: slice) -> FreeRun:
    """Free runs over ``rows``: from each start the inputs that were, and no measurement any more."""
    local = {name: alone.parts[name] for name, alone in fitted.alone.items()}
    starts = log.starts(rows) - rows.start
    return free_run(fitted.joint, mines.recording(log, rows), mines.HORIZON, starts, local)


@dataclass(frozen=True)
class Score:
    """One output: the joint model against the unit alone and against persistence, over the half hour and at its end."""

    alone: mines.Comparison
    persistence: mines.Comparison
    end: tuple[float, float, float]  # RMSE of persistence, unit alone and joint 30 minutes ahead


def scores(log: mines.Log, runs: FreeRun, rows: slice) -> dict[tuple[str, str], Score]:
    """Judge the forecasts of every scored output."""
    starts = log.starts(rows)
    days = mines.days(log, starts)
    out = {}
    for unit, channel in mines.SCORED:
        run = runs[unit]
        at = run.channels.index(channel)
        made = (mines.persistence(log, starts, unit, channel), run.local[:, :, at], run.joint[:, :, at])
        still, alone, joint = (mines.squared_errors(log, starts, unit, channel, forecast) for forecast in made)
        end = tuple(float(np.sqrt(errors[:, -1].mean())) for errors in (still, alone, joint))
        out[unit, channel] = Score(
            mines.compare(days, joint, alone),
            mines.compare(days, joint, still),
            (end[0], end[1], end[2]),
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fits", type=Path, help="directory to keep the fits in, or to take them from")
    directory = parser.parse_args().fits
    if mines.find() is None:
        print(f"skipped: {mines.ABSENT}")
        return
    begin = perf_counter()
    log = mines.load()
    matters = mines.coupling_matters(log)
    fitted = fits(log, directory)
    rows = log.held_out
    judged = scores(log, forecasts(log, fitted, rows), rows)
    checks = check(fitted.joint)
    took = sum(fitted.seconds.values())
    lines = [
        "# A real log: the Mines wastewater plant",
        "",
        f"{machine.description()}. {perf_counter() - begin:.0f} s in all, {took:.0f} s of them fits "
        f"({fitted.seconds[JOINT]:.0f} s the joint one).",
        "",
        *_data(log),
        "",
        "## Half an hour ahead",
        "",
        f"{len(log.starts(rows)):,} starts on {len(np.unique(mines.days(log, log.starts(rows))))} held-out days. Root "
        "mean "
        "square error over the 30 minutes, and 30 minutes ahead. *alone*: a fit of the unit's own log; *joint*: a fit "
        "of "
        "all five. The inputs that were are given to all (to a unit alone, its own). Brackets: 95 % interval of the "
        "ratio, "
        "from a bootstrap of days. *coupling*: whether the other units help, by regressions on the training rows "
        "alone.",
        "",
        *_table(judged, matters),
        "",
        *_verdict(judged, matters),
        "",
        "## The fit",
        "",
        f"{fitted.joint.status}.",
        "",
        *(f"- {text}" for text in fitted.joint.caveats),
        "",
        "## Who acts on whom",
        "",
        *_graph(fitted.joint),
        "",
        "## Checks before answers",
        "",
        *_checks(checks),
        "",
        "## What can be asked of this plant, and what cannot",
        "",
        *_questions(log, checks),
    ]
    machine.write("mines", "\n".join(lines))


def _data(log: mines.Log) -> list[str]:
    train, held = log.train, log.held_out
    recording = mines.recording(log, train)
    outputs = sum(unit.n_outputs for unit in recording.units)
    inputs = sum(unit.n_inputs for unit in recording.units)

    def when(row: int) -> str:
        return str(log.time[row]).replace("T", " ")

    return [
        f"{log.rows:,} minutes, {len(recording.names)} units, {outputs} outputs, {inputs} inputs. Missing: "
        f"{int(log.absent.sum()):,} rows that are not in the file, {int(log.bridged.sum()):,} that were filled along "
        f"straight lines, {int(log.drained.sum()):,} with a drained membrane tank. Fitted: {when(train.start)} to "
        f"{when(train.stop - 1)} ({train.stop - train.start:,} rows, {int(log.clean[train].sum()):,} clean). Held out: "
        f"the last {mines.HELD_OUT:.0%}, from {when(held.start)}; a forecast counts if all rows from "
        f"{mines.WARM_UP} before its start to {mines.HORIZON} after it are clean. Rules and reasons: "
        "benchmarks/mines.py.",
    ]


def _table(judged: Mapping[tuple[str, str], Score], matters: Mapping[tuple[str, str], mines.Comparison]) -> list[str]:
    lines = [
        "| unit, output | persistence | alone | joint | joint / alone | joint / persistence | 30 min: persistence, "
        "alone, "
        "joint | coupling (training rows) |",
        "|---|---:|---:|---:|---|---|---|---|",
    ]
    for (unit, channel), score in judged.items():
        prior = matters[unit, channel]
        lines.append(
            f"| {unit} {channel} | {score.persistence.second:.4g} | {score.alone.second:.4g} | {score.alone.first:.4g} "
            f"| {_ratio(score.alone)} | {_ratio(score.persistence)} | "
            f"{', '.join(f'{value:.4g}' for value in score.end)} "
            f"| {'matters' if prior.better else 'not seen'}: {_ratio(prior)} |"
        )
    return lines


def _ratio(found: mines.Comparison) -> str:
    return f"{found.ratio:.2f} [{found.low:.2f}, {found.high:.2f}]"


def _verdict(judged: Mapping[tuple[str, str], Score], matters: Mapping[tuple[str, str], mines.Comparison]) -> list[str]:
    def named(keys: list[tuple[str, str]]) -> str:
        return ", ".join(f"{unit} {channel}" for unit, channel in keys) or "none"

    wanted = [key for key, found in matters.items() if found.better]
    missed = [key for key in wanted if not (judged[key].alone.better and judged[key].persistence.better)]
    also = [key for key in judged if key not in wanted and judged[key].alone.better]
    worse = [key for key in judged if judged[key].alone.worse]
    still = [key for key in judged if not judged[key].persistence.better]
    return [
        f"- Coupling matters to {named(wanted)}: there the joint model must be below both. "
        + ("**Met.**" if not missed else f"**MISSED for {named(missed)}.**"),
        f"- Below the unit alone beyond chance although the training rows did not promise it: {named(also)}.",
        f"- The joint model is worse than the unit alone beyond chance for: {named(worse)}.",
        f"- Not below persistence beyond chance: {named(still)}.",
    ]


def _graph(found: cf.Fit) -> list[str]:
    try:
        graph = found.graph()
    except cf.CounterflowError as problem:
        return [f"Not to be had from this fit: {problem}"]
    return ["```", str(graph), "```"]


def _checks(found: object) -> list[str]:
    from counterflow.runtime.checks import Checks

    assert isinstance(found, Checks)
    lines = ["| check | of | verdict | number |", "|---|---|---|---|"]
    lines += [
        f"| {each.name} | {each.about} | {each.verdict} | {each.number:.3g} {each.unit_of_number} |" for each in found
    ]
    return lines


def _questions(log: mines.Log, found: object) -> list[str]:
    """Plain words; the numbers come from the training rows and the checks."""
    from counterflow.runtime.checks import Checks

    assert isinstance(found, Checks)
    shares = {each.about: each.number for each in found["excitation"]}
    tied = [name for name, share in shares.items() if share < 0.02]
    moved = [each.about for each in found["feedback"] if each.verdict == "fail"]
    rows = log.train
    phases = np.column_stack([log.columns[f"bio_{k}_phase_{j}"][rows][log.clean[rows]] for k in (1, 2) for j in (1, 2)])
    one = float((phases.sum(axis=1) == 1).mean())
    return [
        "Can be asked, with the checks' reservations:",
        "",
        "- What the next half hour brings, given a plan for the inputs: levels, oxygen, transmembrane pressure.",
        "- What sewage sent to either reactor does to both reactors' and both membranes' levels: the clearest "
        "coupling here.",
        "- What a blower does to its own reactor's oxygen with the blower *held or overridden* by hand.",
        "- What a membrane's mode does to its own flow, pressure and level.",
        "",
        "Cannot be asked:",
        "",
        f"- Single effects of {', '.join(tied) or 'no input'}: one sequencer moves the four phase flags. In {one:.1%} "
        "of the "
        "clean training rows exactly one of them is on, so that any one is known from the other three.",
        f"- What will happen in the running plant after a change of {', '.join(moved) or 'no input'}: earlier "
        "measurements "
        "foretell these inputs, as controllers and interlocks do, and would move them again in answer.",
        "- Anything about sludge quality, pH and conductivity: their minutes between ten-minute samples are made up or "
        "held, and half an hour tells nothing about processes of days. The pH fault of 18 April to 3 May is in the "
        "training rows; no input on record moves the pH.",
        "- The returned sludge's oxygen (works ras_do): its behaviour changed after the training rows, and the last "
        "value "
        "is the better forecast.",
        "- Oxygen near zero: it cannot fall below, the linear model does not know that; forecasts are cut at zero.",
        "- Maintenance: drained membranes are outside of what was fitted.",
    ]


if __name__ == "__main__":
    main()
