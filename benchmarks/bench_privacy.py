"""Privacy against accuracy: what epsilon buys by each release, how errors fall with the rows, if intervals hold.

Run: python benchmarks/bench_privacy.py             (about an hour on two cores)
     python benchmarks/bench_privacy.py --moments   measure private moments anew, and keep what was measured of the rest
     python benchmarks/bench_privacy.py --private   the same of what is private in them only
     python benchmarks/bench_privacy.py --logs      measure private fits from logs anew, and keep the rest
     python benchmarks/bench_privacy.py --figure    redraw the picture of the last run

Three ways at the same total budget (epsilon, delta = 1e-6, one measurement): moments and rows of the default method
with rigorous accounting, and the published penalty method with the published accounting over 10 rounds. Noise is
seeded.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # two processes, one thread each; before numpy is imported

import json
import sys
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any

import machine
import numpy as np

import counterflow as cf
from counterflow.cli.privacy_plan import Task, expected_errors
from counterflow.exchange.compression import sufficient_message
from counterflow.plant import excitation

DELTA, ROUNDS = 1e-6, 10
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
SEEDS, STEPS = range(10), 10_000
LENGTHS, LENGTH_SEEDS = (1_000, 4_000, 16_000, 64_000), range(6)
CLIPS = (0.1, 0.2, 0.4, 0.7, 1.0, 2.0)  # of the length that 99.9 % of the rows stay below
CLIP_SEEDS = range(6)
COVERAGE = ((10.0, 4_000), (3.0, 16_000))
COVERAGE_RUNS = 80
AIM_SEEDS, AIM_UNITS, AIM_EPSILONS = range(20), (2, 4), (None, 0.3, 1.0, 3.0, 10.0)
AIMS = {0.3: 0.2, 1.0: 0.07, 3.0: 0.03}  # with white inputs; twice that with AR(0.9)
MOMENT_LENGTHS, MOMENT_LENGTH_SEEDS = (1_000, 2_500, 6_300, 16_000, 40_000, 100_000), range(10)
LOG_LENGTHS, LOG_EPSILONS, LOG_SEEDS, LOG_HORIZON = (3_000, 10_000), (0.3, 1.0, 3.0, 10.0), range(3), 20
THIN_LENGTHS = (1_000, 10_000, 100_000, 1_000_000)
NUMBERS = Path(__file__).parent / "results" / "privacy.json"
PICTURE = Path(__file__).parent.parent / "docs" / "theory" / "figures" / "privacy.png"


def pairs(plant: cf.Plant) -> list[tuple[str, str]]:
    return [(effect, cause) for effect in plant.names for cause in plant.names if effect != cause]


def relative_error(plant: cf.Plant, found: cf.Plant) -> float:
    """Of all coupling blocks of B together."""
    gap = sum(((found.block("B", *pair) - plant.block("B", *pair)) ** 2).sum() for pair in pairs(plant))
    return float(np.sqrt(gap / sum((plant.block("B", *pair) ** 2).sum() for pair in pairs(plant))))


def plant_of(seed: int) -> cf.Plant:
    return cf.random_plant(units=["one", "two"], rng=seed)


def recording_of(plant: cf.Plant, steps: int, seed: int) -> cf.Recording:
    """Inputs are AR(0.9): with white ones the published method finds nothing of B even without noise."""
    return plant.simulate(steps, rng=seed, inputs=excitation.autoregressive(plant, steps, seed, pole=0.9))


def sufficient(job: tuple[int, int, float | None, float | None]) -> dict[str, float]:
    """One private fit (or a plain one, if epsilon is None)."""
    seed, steps, epsilon, clip = job
    plant = plant_of(seed)
    recording = recording_of(plant, steps, 1_000 + seed)
    privacy = None
    if epsilon is not None:
        cut = None if clip is None else clip * reach(plant, recording)
        privacy = cf.Privacy(epsilon, DELTA, clip=cut, seed=seed, release="rows")
    began = perf_counter()
    found = cf.fit(recording, plant.locals(), privacy=privacy, uncertainty=False)
    clipped = max(unit.clipped or 0.0 for unit in found.privacy.units.values()) if found.privacy else 0.0
    return {
        "error": relative_error(plant, found.plant),
        "clipped": clipped,
        "converged": float(found.status.converged),
        "seconds": perf_counter() - began,
    }


def reach(plant: cf.Plant, recording: cf.Recording) -> float:
    """Length below which 99.9 % of all rows of the messages stay: known here only because we look at the data."""
    lengths = [
        np.linalg.norm(sufficient_message(n, plant.local(n), recording[n].y, recording[n].u).numbers, axis=1)
        for n in plant.names
    ]
    return float(np.quantile(np.concatenate(lengths), 0.999))


def published(job: tuple[int, int, float | None]) -> dict[str, float]:
    seed, steps, epsilon = job
    plant = plant_of(seed)
    recording = recording_of(plant, steps, 1_000 + seed)
    privacy = None if epsilon is None else cf.Privacy(epsilon, DELTA, accounting="published", seed=seed)
    options = {} if epsilon is None else {"rounds": ROUNDS}
    found = cf.fit(recording, plant.locals(), method="penalty", privacy=privacy, **options)
    return {"error": relative_error(plant, found.plant)}


def coverage(job: tuple[int, float, int]) -> tuple[int, int, bool]:
    """Couplings of A and B inside their 95 % intervals, and how many there are."""
    seed, epsilon, steps = job
    plant = plant_of(seed)
    found = cf.fit(
        recording_of(plant, steps, 5_000 + seed), plant.locals(),
        privacy=cf.Privacy(epsilon, DELTA, seed=seed, release="rows"), uncertainty=True,
    )  # fmt: skip
    try:
        errors = {"A": found.standard_errors.A, "B": found.standard_errors.B}
    except cf.OptionError:  # not converged: no interval is claimed
        return 0, 0, False
    inside = total = 0
    for effect, cause in pairs(plant):
        for letter, columns in (("A", plant.state_slice(cause)), ("B", plant.input_slice(cause))):
            gap = found.plant.block(letter, effect, cause) - plant.block(letter, effect, cause)
            inside += int((np.abs(gap) < 1.959964 * errors[letter][plant.state_slice(effect), columns]).sum())
            total += gap.size
    return inside, total, True


def moments(job: tuple[int, int, str, float | None, int]) -> dict[str, float]:
    """One fit by private moments (or plain ones, if epsilon is None)."""
    units, seed, inputs, epsilon, steps = job
    plant = plant_of(seed) if units == 2 else cf.random_plant(units=units, rng=seed)
    make = excitation.white if inputs == "white" else excitation.autoregressive
    recording = plant.simulate(steps, rng=1_000 + seed, inputs=make(plant, steps, 1_000 + seed))
    privacy = None if epsilon is None else cf.Privacy(epsilon, DELTA, seed=seed)
    began = perf_counter()
    found = cf.fit(recording, plant.locals(), method="moments", privacy=privacy)
    seconds, errors, inside = perf_counter() - began, found.standard_errors, []
    for effect, cause in pairs(plant):
        for letter, columns in (("A", plant.state_slice(cause)), ("B", plant.input_slice(cause))):
            gap = found.plant.block(letter, effect, cause) - plant.block(letter, effect, cause)
            inside.append(np.abs(gap) < 1.959964 * getattr(errors, letter)[plant.state_slice(effect), columns])
    cause, effect = plant.names[:2]
    change = np.ones(plant.unit(cause).n_inputs)
    answer = found.effect(cause, effect, change, horizon=20)
    truth = cf.fit(recording, plant, method="oracle").effect(cause, effect, change, horizon=20).mean
    return {
        "error": relative_error(plant, found.plant),
        "covered": float(np.mean(np.concatenate([each.ravel() for each in inside]))),
        "effects": float(((answer.lower <= truth) & (truth <= answer.upper)).mean()),
        "converged": float(found.status.converged),
        "bytes": float(found.traffic.bytes_up),
        "seconds": seconds,
    }


def likelihood(job: tuple[int, int]) -> dict[str, float]:
    """The default method without privacy, for comparison."""
    seed, steps = job
    plant = plant_of(seed)
    recording = plant.simulate(steps, rng=1_000 + seed, inputs=excitation.white(plant, steps, 1_000 + seed))
    began = perf_counter()
    found = cf.fit(recording, plant.locals(), uncertainty=False)
    error = relative_error(plant, found.plant)
    return {"error": error, "bytes": float(found.traffic.bytes_up), "seconds": perf_counter() - began}


def measured_moments(pool: Any, before: dict[str, Any] | None = None) -> dict[str, Any]:
    """Everything about moments; ``before``: what without privacy is taken from."""
    out: dict[str, Any] = {"aims": {}, "lengths": {}, "thin": {}}
    for units in AIM_UNITS:
        for inputs in ("white", "AR(0.9)"):
            for epsilon in AIM_EPSILONS:
                if before is not None and epsilon is None:
                    out["aims"][f"{units} {inputs} None"] = before["aims"][f"{units} {inputs} None"]
                    continue
                rows = pool.map(moments, [(units, s, inputs, epsilon, STEPS) for s in AIM_SEEDS], chunksize=1)
                out["aims"][f"{units} {inputs} {epsilon}"] = rows
                print("moments", units, inputs, epsilon, np.median(column(rows)), column(rows, "covered").mean())
    for steps in MOMENT_LENGTHS:
        for epsilon in (None, 1.0):
            if before is not None and epsilon is None:
                out["lengths"][f"{steps} None"] = before["lengths"][f"{steps} None"]
                continue
            rows = pool.map(moments, [(2, s, "white", epsilon, steps) for s in MOMENT_LENGTH_SEEDS], chunksize=1)
            out["lengths"][f"{steps} {epsilon}"] = rows
        print("moments, rows", steps, np.median(column(rows)))
    if before is not None:
        return out | {"thin": before["thin"]}
    for steps in THIN_LENGTHS:
        few = range(2 if steps > 100_000 else 5)
        out["thin"][str(steps)] = {
            "moments": pool.map(moments, [(2, s, "white", None, steps) for s in few], chunksize=1),
            "likelihood": pool.map(likelihood, [(s, steps) for s in few], chunksize=1),
        }
        print("thin", steps)
    return out


def private_logs(job: tuple[int, int, float]) -> dict[str, float]:
    """One private fit without models: what each input does to the other unit, and if its intervals hold."""
    seed, steps, epsilon = job
    plant = plant_of(seed)
    recording = plant.simulate(steps, rng=1_000 + seed, inputs=excitation.white(plant, steps, 1_000 + seed))
    units = [cf.Unit(unit.name, 2, unit.input_names, ranged(unit, recording)) for unit in plant.units]
    logs = cf.Recording.from_arrays({n: (recording[n].y, recording[n].u) for n in plant.names}, units=units)
    began = perf_counter()
    found = cf.fit(logs, privacy=cf.Privacy(epsilon, DELTA, seed=seed))
    seconds, oracle, missed, whole, inside = (
        perf_counter() - began,
        cf.fit(recording, plant, method="oracle"),
        0.0,
        0.0,
        [],
    )
    for effect, cause in pairs(plant):
        for channel in plant.unit(cause).input_names:
            answer, truth = (
                each.effect(cause, effect, {channel: 1.0}, horizon=LOG_HORIZON) for each in (found, oracle)
            )
            missed += float(np.square(answer.mean - truth.mean).sum())
            whole += float(np.square(truth.mean).sum())
            inside.append(((answer.lower <= truth.mean) & (truth.mean <= answer.upper)).mean())
    return {
        "error": float(np.sqrt(missed / whole)), "effects": float(np.mean(inside)), "seconds": seconds,
        "told": float(any(caveat.code == "drowned-by-noise" for caveat in found.caveats)),
    }  # fmt: skip


def ranged(unit: cf.Unit, recording: cf.Recording) -> list[cf.Channel]:
    """Instruments whose ranges are eight standard deviations to either side of what they show."""
    y = recording[unit.name].y
    middle, half = y.mean(axis=0), 8 * y.std(axis=0)
    return [
        cf.Channel(name, limits=(float(m - h), float(m + h)))
        for name, m, h in zip(unit.output_names, middle, half, strict=True)
    ]


def foretold_logs(job: tuple[int, int]) -> list[float]:
    """What ``counterflow privacy plan --logs`` says of each epsilon, of the same plant and other rows."""
    seed, steps = job
    plant = plant_of(seed)
    task = Task(plant, {}, excitation.white(plant, steps, 2_000 + seed), from_logs=True)
    found = expected_errors(task, [cf.Privacy(e, DELTA, seed=1_000 + seed) for e in LOG_EPSILONS])
    return [each.error for each in found]


def measured_logs(pool: Any) -> dict[str, Any]:
    """Private fits from logs, and what the plan foretells of them."""
    out: dict[str, Any] = {}
    for steps in LOG_LENGTHS:
        foretold = np.array(pool.map(foretold_logs, [(s, steps) for s in LOG_SEEDS], chunksize=1))
        for k, epsilon in enumerate(LOG_EPSILONS):
            rows = pool.map(private_logs, [(s, steps, epsilon) for s in LOG_SEEDS], chunksize=1)
            out[f"{steps} {epsilon}"] = {"fits": rows, "foretold": foretold[:, k].tolist()}
            print("logs", steps, epsilon, np.median(column(rows)), np.median(foretold[:, k]))
    return out


def logs_report(found: dict[str, Any]) -> list[str]:
    """The table of private fits from logs."""
    lines = [
        f"## Private fits from logs: effects on the other unit over {LOG_HORIZON} rows, {len(LOG_SEEDS)} plants",
        "",
        "No models; eight outputs, ranges of instruments eight standard deviations to either side, white inputs, the "
        "default memory. Error: relative, of all effects between units together, median (worst); 1 is that of saying "
        "zero. Foretold: by `counterflow privacy plan --logs` from other simulated rows of the same plant. Told: fits "
        "with the caveat `drowned-by-noise`.",
        "",
        "| T | epsilon | error (worst) | foretold | effects held | told | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for key, both in found.items():
        steps, epsilon = key.split()
        rows, error = both["fits"], column(both["fits"])
        lines.append(
            f"| {int(steps):,} | {epsilon} | {np.median(error):.2g} ({error.max():.2g}) "
            f"| {np.median(both['foretold']):.2g} | {100 * column(rows, 'effects').mean():.1f} % "
            f"| {int(column(rows, 'told').sum())}/{len(rows)} | {np.median(column(rows, 'seconds')):.1f} |"
        )
    return [*lines, ""]


def measured(pool: Any) -> dict[str, Any]:
    """Everything that the tables and the picture show."""
    out: dict[str, Any] = {"epsilon": {}, "length": {}, "clip": {}, "coverage": {}}
    for epsilon in (None, *EPSILONS):
        ours = pool.map(sufficient, [(s, STEPS, epsilon, None) for s in SEEDS], chunksize=1)
        theirs = pool.map(published, [(s, STEPS, epsilon) for s in SEEDS], chunksize=1)
        out["epsilon"][str(epsilon)] = {"sufficient": ours, "published": theirs}
        print("epsilon", epsilon, np.median([r["error"] for r in ours]), np.median([r["error"] for r in theirs]))
    for steps in LENGTHS:
        ours = pool.map(sufficient, [(s, steps, 10.0, None) for s in LENGTH_SEEDS], chunksize=1)
        theirs = pool.map(published, [(s, steps, 10.0) for s in LENGTH_SEEDS], chunksize=1)
        out["length"][str(steps)] = {"sufficient": ours, "published": theirs}
        print("rows", steps, np.median([r["error"] for r in ours]), np.median([r["error"] for r in theirs]))
    for clip in CLIPS:
        for epsilon in (1.0, 10.0):
            rows = pool.map(sufficient, [(s, STEPS, epsilon, clip) for s in CLIP_SEEDS], chunksize=1)
            out["clip"].setdefault(str(epsilon), {})[str(clip)] = rows
            print("clip", clip, epsilon, np.median([r["error"] for r in rows]))
    for epsilon, steps in COVERAGE:
        rows = pool.map(coverage, [(s, epsilon, steps) for s in range(COVERAGE_RUNS)], chunksize=1)
        out["coverage"][f"{epsilon:g} {steps}"] = rows
        print("coverage", epsilon, steps, sum(r[0] for r in rows) / max(sum(r[1] for r in rows), 1))
    return out


def column(rows: list[dict[str, float]], key: str = "error") -> np.ndarray:
    return np.array([row[key] for row in rows])


def slope(found: dict[str, Any], method: str) -> tuple[float, float]:
    """Of log median error against log rows, and its standard error over seeds."""
    steps = np.log([int(k) for k in found])
    each = np.array([column(found[k][method]) for k in found])
    slopes = np.polyfit(steps, np.log(each), 1)[0]
    return float(slopes.mean()), float(slopes.std(ddof=1) / np.sqrt(len(slopes)))


def moments_report(found: dict[str, Any]) -> list[str]:
    """Tables of private moments."""
    lines = [
        f"## Private moments, T = {STEPS:,}, {len(AIM_SEEDS)} plants, medians",
        "",
        "Aims: white inputs 0.2, 0.07, 0.03 at epsilon 0.3, 1, 3; AR(0.9) twice that. Intervals: share of all "
        "couplings (A and B) and of effects over 20 rows inside their nominal 95 % intervals. "
        "Seconds: beside other work.",
        "",
        "| units | inputs | epsilon | error (worst) | aim | couplings held | effects held | converged | seconds |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for key, rows in found["aims"].items():
        units, inputs, epsilon = key.split()
        error, n = column(rows), len(rows)
        aim = None if epsilon == "None" else AIMS.get(float(epsilon))
        wanted = "" if aim is None else f"{aim * (1 if inputs == 'white' else 2):g}"
        lines.append(
            f"| {units} | {inputs} | {'none' if epsilon == 'None' else epsilon} | {np.median(error):.3g} "
            f"({error.max():.3g}) | {wanted} | {100 * column(rows, 'covered').mean():.1f} % "
            f"| {100 * column(rows, 'effects').mean():.1f} % | {int(column(rows, 'converged').sum())}/{n} "
            f"| {np.median(column(rows, 'seconds')):.2f} |"
        )
    lines += [
        "",
        f"## More rows, private moments at epsilon 1, white inputs, {len(MOMENT_LENGTH_SEEDS)} plants",
        "",
        "| T | error at epsilon 1 | without noise | slope since the line before |",
        "|---|---|---|---|",
    ]
    before: tuple[float, float] | None = None
    for steps in MOMENT_LENGTHS:
        private, bare = (np.median(column(found["lengths"][f"{steps} {e}"])) for e in (1.0, None))
        fall = "" if before is None else f"{np.log(private / before[1]) / np.log(steps / before[0]):.2f}"
        lines.append(f"| {steps:,} | {private:.3g} | {bare:.3g} | {fall} |")
        before = steps, private
    lines += [
        "",
        "## Without privacy: moments beside maximum likelihood, white inputs, medians",
        "",
        "| T | error of moments | of likelihood | bytes up, moments | likelihood | seconds, moments | likelihood |",
        "|---|---|---|---|---|---|---|",
    ]
    for steps, both in found["thin"].items():
        cells = [f"{int(steps):,}"]
        for name, form in (("error", "{:.3g}"), ("bytes", "{:,.0f}"), ("seconds", "{:.2f}")):
            cells += [form.format(np.median(column(both[method], name))) for method in ("moments", "likelihood")]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "Of the bytes of moments all but K r numbers are the inputs, which both methods send.", ""]
    return lines


def report(found: dict[str, Any]) -> str:
    by_epsilon, by_length = found["epsilon"], found["length"]
    lines = [
        "# Privacy against accuracy",
        "",
        machine.description(),
        "",
        f"Units of two states, two inputs and eight outputs; delta {DELTA:g}; one measurement is protected. Error: "
        "relative, of all coupling blocks of B together; median of the plants (and the worst).",
        "",
        *moments_report(found["moments"]),
        *logs_report(found["logs"]),
        f"## The same total budget, two units, AR(0.9) inputs, T = {STEPS:,}, {len(SEEDS)} plants",
        "",
        f"Published: penalty, gradient steps, {ROUNDS} rounds, noise on messages and gradients as published.",
        "",
        "| epsilon | moments, rigorous | rows, rigorous | rows clipped (worst) | converged | published, as published |",
        "|---|---|---|---|---|---|",
    ]
    for key, rows in by_epsilon.items():
        ours, theirs = column(rows["sufficient"]), column(rows["published"])
        label = "no privacy" if key == "None" else key
        new = found["moments"]["aims"].get(f"2 AR(0.9) {key}")
        shown = "" if new is None else f"{np.median(column(new)):.3g} ({column(new).max():.3g})"
        clipped = 100 * column(rows["sufficient"], "clipped").max()
        lines.append(
            f"| {label} | {shown} | {np.median(ours):.3g} ({ours.max():.3g}) | {clipped:.1f} % "
            f"| {int(column(rows['sufficient'], 'converged').sum())}/{len(ours)} "
            f"| {np.median(theirs):.3g} ({theirs.max():.3g}) |"
        )
    lines += [
        "",
        f"## More rows, release by rows, epsilon 10, {len(LENGTH_SEEDS)} plants",
        "",
        "| T | rows | published |",
        "|---|---|---|",
    ]
    for key, rows in by_length.items():
        ours, theirs = (np.median(column(rows[method])) for method in ("sufficient", "published"))
        lines.append(f"| {int(key):,} | {ours:.3g} | {theirs:.3g} |")
    for method in ("sufficient", "published"):
        mean, doubt = slope(by_length, method)
        lines += ["", f"Slope of log error in log T, {method}: {mean:.2f} ± {doubt:.2f} (1/√T is -0.50)."]
    lines += [
        "",
        f"## What clipping costs a release by rows, T = {STEPS:,}, {len(CLIP_SEEDS)} plants",
        "",
        "Clip as a multiple of the length that 99.9 % of the rows stay below (a ball around zero). A small one needs "
        "little noise and biases; a large one needs much. `found` is the default: an ellipsoid whose size is found at "
        "a twentieth of the budget.",
        "",
        "| clip | rows clipped | epsilon 1 | epsilon 10 |",
        "|---|---|---|---|",
    ]
    for key in found["clip"]["1.0"]:
        one, ten = (column(found["clip"][e][key]) for e in ("1.0", "10.0"))
        share = np.median(column(found["clip"]["1.0"][key], "clipped"))
        lines.append(f"| {key} | {100 * share:.2g} % | {np.median(one):.3g} | {np.median(ten):.3g} |")
    some = [r for r in CLIP_SEEDS]
    one, ten = (column([by_epsilon[e]["sufficient"][s] for s in some]) for e in ("1.0", "10.0"))
    lines += [f"| found | | {np.median(one):.3g} | {np.median(ten):.3g} |", "", "## Intervals of a release by rows", ""]
    lines += [
        "| epsilon | T | runs with intervals | nominal 95 % intervals hold | standard error |",
        "|---|---|---|---|---|",
    ]
    for key, rows in found["coverage"].items():
        epsilon, steps = key.split()
        good = [r for r in rows if r[2]]
        shares = np.array([r[0] / r[1] for r in good])
        lines.append(
            f"| {epsilon} | {int(steps):,} | {len(good)}/{len(rows)} | {100 * shares.mean():.1f} % "
            f"| {100 * shares.std(ddof=1) / np.sqrt(len(shares)):.1f} % |"
        )
    return "\n".join(lines)


def draw(found: dict[str, Any]) -> None:
    import matplotlib.pyplot as plt
    from figure_style import INK, MUTED, STYLE

    green, blue, orange = "#009E73", "#0072B2", "#D55E00"
    with plt.rc_context(STYLE):
        figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11.5, 3.9), layout="constrained")
        aims = found["moments"]["aims"]
        private = [e for e in AIM_EPSILONS if e is not None]
        each = np.array([column(aims[f"2 AR(0.9) {e}"]) for e in private])
        left.fill_between(private, *np.quantile(each, [0.1, 0.9], axis=1), color=green, alpha=0.15, linewidth=0)
        left.plot(private, np.median(each, axis=1), "o-", color=green, label="moments (rigorous)", markersize=4)
        for method, colour, label in (
            ("sufficient", blue, "rows (rigorous)"),
            ("published", orange, "published method (as published)"),
        ):
            each = np.array([column(found["epsilon"][str(e)][method]) for e in EPSILONS])
            left.fill_between(EPSILONS, *np.quantile(each, [0.1, 0.9], axis=1), color=colour, alpha=0.15, linewidth=0)
            left.plot(EPSILONS, np.median(each, axis=1), "o-", color=colour, label=label, markersize=4)
        none = np.median(column(found["epsilon"]["None"]["sufficient"]))
        left.axhline(none, color=MUTED, linewidth=1, linestyle=":")
        left.annotate("without privacy", (0.1, none), (0, 3), textcoords="offset points", color=MUTED, fontsize=7)
        for units, style in ((2, "o-"), (4, "s--")):
            for inputs, colour in (("white", green), ("AR(0.9)", blue)):
                values = [np.median(column(aims[f"{units} {inputs} {e}"])) for e in private]
                middle.plot(private, values, style, color=colour, markersize=4, label=f"{units} units, {inputs}")
        lengths = np.array(MOMENT_LENGTHS, float)
        for epsilon, colour, label in ((1.0, green, "ε = 1"), (None, MUTED, "without noise")):
            values = [np.median(column(found["moments"]["lengths"][f"{int(t)} {epsilon}"])) for t in lengths]
            right.plot(lengths, values, "o-", color=colour, markersize=4, label=label)
            if epsilon == 1.0:
                right.plot(lengths, values[0] * lengths[0] / lengths, color=green, linewidth=0.8, linestyle="--")
        for axis, title, x in (
            (left, f"Three ways, two units, AR(0.9), T = {STEPS:,}", "ε (δ = 10⁻⁶)"),
            (middle, f"Private moments, T = {STEPS:,}", "ε (δ = 10⁻⁶)"),
            (right, "More rows, two units, white (dashed: 1/T)", "rows T"),
        ):
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_title(title, loc="left", color=INK, fontsize=10)
            axis.set_xlabel(x)
            axis.legend(frameon=False, fontsize=7.5)
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.yaxis.set_minor_formatter(lambda value, _: "")
        left.set_ylabel("relative error of the couplings B_mn")
        figure.savefig(PICTURE, dpi=150)
        plt.close(figure)


def main() -> None:
    if "--figure" not in sys.argv:
        with get_context("spawn").Pool(int(os.environ.get("COUNTERFLOW_BENCH_PROCESSES", "2"))) as pool:
            kept = {"--moments", "--private", "--logs"} & set(sys.argv)
            found = json.loads(NUMBERS.read_text()) if kept else measured(pool)
            if "--logs" not in kept:
                found["moments"] = measured_moments(pool, found["moments"] if "--private" in kept else None)
            if not {"--moments", "--private"} & kept:
                found["logs"] = measured_logs(pool)
        NUMBERS.write_text(json.dumps(found))
    found = json.loads(NUMBERS.read_text())
    machine.write("privacy", report(found))
    draw(found)


if __name__ == "__main__":
    main()
