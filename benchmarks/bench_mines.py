"""A real log: half-hour forecasts of the Mines wastewater plant, its influence graph, and what can be asked of it.

Run: python benchmarks/bench_mines.py

The log is not part of this project; without it nothing is done and the result file stays as it is (see mines.py).
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported

from collections.abc import Mapping
from dataclasses import dataclass, replace
from time import process_time

import machine
import mines
import numpy as np

import counterflow as cf
from counterflow.checks import Checks, UnitRun, check, free_run


@dataclass(frozen=True)
class Fits:
    """A fit of all units, a fit of each unit by itself, and how long each took (processor seconds)."""

    joint: cf.Fit
    alone: Mapping[str, cf.Fit]
    seconds: Mapping[str, float]


def fits(log: mines.Log) -> Fits:
    """Fit the training rows: all units together, and each unit knowing nothing of the others."""
    recording = mines.recording(log, log.train)
    found, seconds = {}, {}
    for name in ("joint", *recording.names):
        part = recording if name == "joint" else _only(recording, name)
        begin = process_time()
        found[name] = cf.fit(part)
        seconds[name] = process_time() - begin
        print(f"{name}: {seconds[name]:.0f} s, {found[name].status}", flush=True)
    return Fits(found.pop("joint"), found, seconds)


def _only(recording: cf.Recording, unit: str) -> cf.Recording:
    return cf.Recording({unit: recording[unit]}, recording.dt)


def forecasts(log: mines.Log, fitted: Fits, rows: slice) -> dict[str, UnitRun]:
    """Free runs over ``rows`` by unit: from each start the inputs that were, and no measurement any more.

    ``joint`` is the free run of the fit of all units, ``local`` that of the fit of the unit's own log.
    """
    recording, starts = mines.recording(log, rows), log.starts(rows) - rows.start
    joint = free_run(fitted.joint, recording, mines.HORIZON, starts)
    out = {}
    for name, fit in fitted.alone.items():
        alone = free_run(fit, _only(recording, name), mines.HORIZON, starts)
        out[name] = replace(joint[name], local=alone[name].joint)
    return out


@dataclass(frozen=True)
class Score:
    """One output: the joint model against the unit alone and against persistence, over the half hour and at its end."""

    alone: mines.Comparison
    persistence: mines.Comparison
    end: tuple[float, float, float]  # RMSE of persistence, unit alone and joint 30 minutes ahead


def scores(log: mines.Log, runs: Mapping[str, UnitRun], rows: slice) -> dict[tuple[str, str], Score]:
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
    if mines.find() is None:
        print(f"skipped: {mines.ABSENT}")
        return
    begin = process_time()
    log = mines.load()
    matters = mines.coupling_matters(log)
    fitted = fits(log)
    rows = log.held_out
    judged = scores(log, forecasts(log, fitted, rows), rows)
    checks = check(fitted.joint)
    seconds = dict(fitted.seconds)
    lines = [
        "# A real log: the Mines wastewater plant",
        "",
        f"{machine.description()}. Processor seconds of the fits: {seconds.pop('joint'):.0f} of the joint one, "
        f"{sum(seconds.values()):.0f} of the five units alone; {process_time() - begin:.0f} in all.",
        "",
        *_data(log),
        "",
        "## Half an hour ahead",
        "",
        f"{len(log.starts(rows)):,} starts on {len(np.unique(mines.days(log, log.starts(rows))))} held-out days; root "
        "mean square error over the 30 minutes. The inputs that were are given to all (to a unit alone, its own).",
        "",
        "- *persistence*: the last value stays.",
        "- *alone*: a fit of the unit's own log, `cf.fit` of a recording of that unit only.",
        "- *joint*: a fit of all five units, `cf.fit(recording)`.",
        "",
        "Brackets: 95 % interval of the ratio, from a bootstrap of whole days. *Coupling*: whether the other units "
        "help, by plain regressions on the training rows alone.",
        "",
        *_table(judged, matters),
        "",
        *_verdict(judged, matters),
        "",
        "Thirty minutes ahead (the last of the rows):",
        "",
        *_at_the_end(judged),
        "",
        "## The fits",
        "",
        f"- joint: {fitted.joint.status}.",
        *(f"- {name} alone: {alone.status}." for name, alone in fitted.alone.items()),
        "",
        "What the joint fit says of itself:",
        "",
        *(f"- {text}" for text in fitted.joint.caveats),
        "",
        "## Who acts on whom",
        "",
        *_graph(fitted.joint),
        "",
        "## Checks before answers",
        "",
        "Of the joint fit, on the rows of the fit and on the held-out rows.",
        "",
        *_checks(checks, check(fitted.joint, mines.recording(log, rows))),
        "",
        "## What can be asked of this plant, and what cannot",
        "",
        *_questions(log, fitted.joint, checks),
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


def _table(
    judged: Mapping[tuple[str, str], Score],
    matters: Mapping[tuple[str, str], mines.Comparison],
) -> list[str]:
    lines = [
        "| unit, output | persistence | alone | joint | joint / persistence | joint / alone "
        "| coupling (training rows) |",
        "|---|---:|---:|---:|---|---|---|",
    ]
    for key, score in judged.items():
        unit, channel = key
        lines.append(
            f"| {unit} {channel} | {score.persistence.second:.4g} | {score.alone.second:.4g} | {score.alone.first:.4g} "
            f"| {_ratio(score.persistence)} | {_ratio(score.alone)} "
            f"| {'matters' if matters[key].better else 'not seen'}: {_ratio(matters[key])} |"
        )
    return lines


def _at_the_end(judged: Mapping[tuple[str, str], Score]) -> list[str]:
    lines = ["| unit, output | persistence | alone | joint |", "|---|---:|---:|---:|"]
    for (unit, channel), score in judged.items():
        lines.append(f"| {unit} {channel} | " + " | ".join(f"{value:.4g}" for value in score.end) + " |")
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
    verdict = "**met**" if not missed else f"**missed for {named(missed)}**"
    return [
        f"Coupling matters to {named(wanted)}; below both beyond chance there: {verdict}. Below the unit alone "
        f"although the training rows did not promise it: {named(also)}. Worse than the unit alone beyond chance: "
        f"{named(worse)}. Not below persistence beyond chance: {named(still)}.",
    ]


def _graph(found: cf.Fit) -> list[str]:
    graph = found.graph()
    lines = [
        "Rows act on columns: strength of the direct coupling; those kept at a false-discovery rate of "
        f"{graph.rate:g} in bold.",
        "",
        "| acts | " + " | ".join(f"on {name}" for name in graph.names) + " |",
        "|---|" + "---:|" * len(graph.names),
    ]
    for cause in graph.names:
        cells = []
        for effect in graph.names:
            edge = None if cause == effect else graph.edge(cause, effect)
            text = "" if edge is None else f"{edge.direct_strength:.2f}"
            cells.append(f"**{text}**" if edge is not None and edge.direct else text)
        lines.append(f"| {cause} | " + " | ".join(cells) + " |")
    return [
        *lines,
        "",
        "This is no map of pipes. One sequencer moves all units by one clock, so that each foretells the others.",
    ]


def _checks(fitted: Checks, fresh: Checks) -> list[str]:
    other = {(each.name, each.about): each for each in fresh}
    lines = [
        f"Verdicts: **{fitted.verdict}** on the rows of the fit, **{fresh.verdict}** on the held-out rows.",
        "",
        "| check | of | rows of the fit | | held-out rows | |",
        "|---|---|---|---:|---|---:|",
    ]
    for each in fitted:
        there = other.get((each.name, each.about))
        after = "| |" if there is None else f"| {there.verdict} | {there.number:.3g} |"
        lines.append(
            f"| {each.name} ({each.unit_of_number}) | {each.about} | {each.verdict} | {each.number:.3g} {after}"
        )
    return lines


def _effect(found: cf.Fit, cause: str, effect: str, change: dict[str, float], channel: str) -> str:
    """One answer in words: a change held for 15 minutes, and its effect at the end of them."""
    answer = found.effect(cause, effect, change, horizon=15, duration=15)
    at = answer.channels.index(channel)
    ((name, value),) = change.items()
    text = f"{cause} {name} {value:+g} for 15 min moves {effect} {channel} by {answer.mean[-1, at]:+.2g}"
    return f"{text} [{answer.lower[-1, at]:+.2g}, {answer.upper[-1, at]:+.2g}]"


def _questions(log: mines.Log, joint: cf.Fit, found: Checks) -> list[str]:
    """Plain words; the numbers come from the training rows, the checks and the answers."""
    pairs = (("1", "bio_1"), ("1", "bio_2"), ("2", "bio_1"), ("2", "bio_2"))
    sewage = "; ".join(_effect(joint, "works", bio, {f"sewage_to_{to}": 20.0}, "level") for to, bio in pairs)
    air = "; ".join(_effect(joint, bio, bio, {"blower": 20.0}, "do") for bio in ("bio_1", "bio_2"))
    phase = _effect(joint, "bio_1", "bio_1", {"phase_2": 1.0}, "level")
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
        f"- What sewage does to the reactors' levels, with all else as it was: {sewage}.",
        f"- What a blower does to its reactor's oxygen, with the blower *held or overridden* by hand: {air}.",
        "- What a membrane's mode does to its own flow, pressure and level.",
        "",
        "Cannot be asked:",
        "",
        f"- Single effects of {', '.join(tied) or 'no input'}: one sequencer moves the four phase flags. In {one:.2%} "
        "of the clean training rows exactly one of them is on, so that any one is known from the other three. The "
        f"interval does not say it: {phase}.",
        f"- What will happen in the running plant after a change of {', '.join(moved) or 'no input'}: earlier "
        "measurements foretell these inputs, as controllers and interlocks do, and would move them again in answer.",
        "- Anything about sludge quality, pH and conductivity: the minutes between their ten-minute samples are made "
        "up or held, so they are left out of the units; nor can the pH fault of 18 April to 3 May be asked about.",
        "- The returned sludge's oxygen (works ras_do): its behaviour changed after the training rows, and the last "
        "value is the better forecast.",
        "- Oxygen near zero: it cannot fall below, the model does not know that; forecasts are cut at zero.",
        "- Maintenance: drained membranes are outside of what was fitted.",
    ]


if __name__ == "__main__":
    main()
