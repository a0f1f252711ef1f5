"""Privacy against accuracy: what epsilon buys, what clipping costs, how errors fall with the rows, if intervals hold.

Run: python benchmarks/bench_privacy.py            (about 40 minutes on two cores)
     python benchmarks/bench_privacy.py --figure   redraw the picture of the last run

Two methods at the same total budget (epsilon, delta = 1e-6, one measurement): sufficient messages with rigorous
accounting, and the published penalty method with the published accounting over 10 rounds. Noise is seeded.
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
from counterflow.methods.sufficient.unit import sufficient_message
from counterflow.plant import excitation

DELTA, ROUNDS = 1e-6, 10
EPSILONS = (0.1, 0.3, 1.0, 3.0, 10.0)
SEEDS, STEPS = range(10), 10_000
LENGTHS, LENGTH_SEEDS = (1_000, 4_000, 16_000, 64_000), range(6)
CLIPS = (0.1, 0.2, 0.4, 0.7, 1.0, 2.0)  # of the length that 99.9 % of the rows stay below
CLIP_SEEDS = range(6)
COVERAGE = ((10.0, 4_000), (3.0, 16_000))
COVERAGE_RUNS = 80
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
        privacy = cf.Privacy(epsilon, DELTA, clip=None if clip is None else clip * reach(plant, recording), seed=seed)
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
        recording_of(plant, steps, 5_000 + seed), plant.locals(), privacy=cf.Privacy(epsilon, DELTA, seed=seed),
        uncertainty=True,
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


def report(found: dict[str, Any]) -> str:
    by_epsilon, by_length = found["epsilon"], found["length"]
    lines = [
        "# Privacy against accuracy",
        "",
        machine.description(),
        "",
        f"Two units, two states, two inputs, eight outputs each; AR(0.9) inputs; delta {DELTA:g}; one measurement is "
        "protected. Error: relative, of all coupling blocks of B together; median of the plants (and the worst).",
        "",
        f"## The same total budget, T = {STEPS:,}, {len(SEEDS)} plants",
        "",
        f"Published: penalty, gradient steps, {ROUNDS} rounds, noise on messages and gradients as published.",
        "",
        "| epsilon | sufficient, rigorous | rows clipped (worst) | converged | published, as published |",
        "|---|---|---|---|---|",
    ]
    for key, rows in by_epsilon.items():
        ours, theirs = column(rows["sufficient"]), column(rows["published"])
        label = "no privacy" if key == "None" else key
        clipped = 100 * column(rows["sufficient"], "clipped").max()
        lines.append(
            f"| {label} | {np.median(ours):.3g} ({ours.max():.3g}) | {clipped:.1f} % "
            f"| {int(column(rows['sufficient'], 'converged').sum())}/{len(ours)} "
            f"| {np.median(theirs):.3g} ({theirs.max():.3g}) |"
        )
    lines += [
        "",
        f"## More rows, epsilon 10, {len(LENGTH_SEEDS)} plants",
        "",
        "| T | sufficient | published |",
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
        f"## What clipping costs, T = {STEPS:,}, {len(CLIP_SEEDS)} plants",
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
    lines += [f"| found | | {np.median(one):.3g} | {np.median(ten):.3g} |", "", "## Intervals", ""]
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

    blue, orange = "#0072B2", "#D55E00"
    with plt.rc_context(STYLE):
        figure, (left, middle, right) = plt.subplots(1, 3, figsize=(11.5, 3.9), layout="constrained")
        for method, colour, label in (
            ("sufficient", blue, "sufficient messages\n(rigorous)"),
            ("published", orange, "published method\n(as published)"),
        ):
            each = np.array([column(found["epsilon"][str(e)][method]) for e in EPSILONS])
            left.fill_between(EPSILONS, *np.quantile(each, [0.1, 0.9], axis=1), color=colour, alpha=0.15, linewidth=0)
            left.plot(EPSILONS, np.median(each, axis=1), "o-", color=colour, label=label, markersize=4)
            none = np.median(column(found["epsilon"]["None"][method]))
            left.axhline(none, color=colour, linewidth=1, linestyle=":")
            if method == "sufficient":
                left.annotate(
                    "without privacy", (EPSILONS[0], none), (0, 3), textcoords="offset points", color=colour, fontsize=7
                )
            steps = [int(k) for k in found["length"]]
            each = np.array([column(found["length"][str(s)][method]) for s in steps])
            middle.fill_between(steps, *np.quantile(each, [0.1, 0.9], axis=1), color=colour, alpha=0.15, linewidth=0)
            middle.plot(steps, np.median(each, axis=1), "o-", color=colour, markersize=4)
        left.axhline(1.0, color=MUTED, linewidth=0.8)
        left.annotate(
            "answering nothing", (EPSILONS[0], 1.0), (2, -12), textcoords="offset points", color=MUTED, fontsize=7,
        )  # fmt: skip
        steps = np.array([int(k) for k in found["length"]], float)
        first = np.median(column(found["length"][str(int(steps[0]))]["sufficient"]))
        middle.plot(steps, first * np.sqrt(steps[0] / steps), color=MUTED, linewidth=0.8, linestyle="--")
        middle.annotate(
            "1/√T",
            (steps[-1], first * np.sqrt(steps[0] / steps[-1])),
            (-4, -12),
            textcoords="offset points",
            ha="right",
            color=MUTED,
            fontsize=8,
        )
        for epsilon, colour in (("1.0", "#56B4E9"), ("10.0", blue)):
            clips = [float(k) for k in found["clip"][epsilon]]
            each = np.array([column(found["clip"][epsilon][str(c)]) for c in clips])
            right.plot(
                clips,
                np.median(each, axis=1),
                "o-",
                color=colour,
                markersize=4,
                label=f"ε = {float(epsilon):g}, ball of this size",
            )
            default = np.median([found["epsilon"][epsilon]["sufficient"][s]["error"] for s in CLIP_SEEDS])
            right.axhline(
                default,
                color=colour,
                linewidth=1,
                linestyle=":",
                label=f"ε = {float(epsilon):g}, found privately (default)",
            )
        for axis, title, x in (
            (left, f"Privacy against accuracy, T = {STEPS:,}", "ε of the whole training (δ = 10⁻⁶)"),
            (middle, "More rows, ε = 10", "rows T"),
            (right, f"What clipping costs, T = {STEPS:,}", "clip, in lengths that 99.9 % of rows stay below"),
        ):
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_title(title, loc="left", color=INK, fontsize=10)
            axis.set_xlabel(x)
        left.set_ylabel("relative error of the couplings B_mn")
        left.legend(frameon=False, fontsize=7.5, loc="lower left", bbox_to_anchor=(0.0, 0.12))
        right.legend(frameon=False, fontsize=7, loc="upper left")
        right.set_ylim(0.1, 9.0)
        for axis in (left, middle, right):
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.yaxis.set_minor_formatter(lambda value, _: "")
        figure.savefig(PICTURE, dpi=170)
        plt.close(figure)


def main() -> None:
    if "--figure" not in sys.argv:
        with get_context("spawn").Pool(2) as pool:
            found = measured(pool)
        NUMBERS.write_text(json.dumps(found))
    found = json.loads(NUMBERS.read_text())
    machine.write("privacy", report(found))
    draw(found)


if __name__ == "__main__":
    main()
