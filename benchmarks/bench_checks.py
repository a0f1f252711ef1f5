"""The checks before answers: false alarms on right models, faults caught, and what a look costs.

Run: python benchmarks/bench_checks.py [quick]
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported

from collections.abc import Callable
from pathlib import Path
from time import perf_counter, process_time

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import machine
import numpy as np
from check_plants import (
    closed_loop,
    joined,
    looked,
    material_of,
    open_loop,
    proportional,
    random_holds,
    relay,
    tank_plant,
    with_integral,
)

import counterflow as cf
from counterflow.checks import check
from counterflow.checks.innovations import drift, whiteness
from counterflow.checks.inputs import Feedbacks
from counterflow.plant import excitation
from counterflow.plant.simulation import simulate

QUICK = "quick" in sys.argv[1:]
RUNS = 20 if QUICK else 200
STEPS = 1500


def holds(plant: cf.Plant, seed: int, mean: float) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {unit.name: random_holds(rng, STEPS + 1, unit.n_inputs, mean) for unit in plant.units}


KINDS: dict[str, Callable[[cf.Plant, int], dict[str, np.ndarray]]] = {
    "white": lambda p, s: excitation.white(p, STEPS, s),
    "autoregressive, pole 0.95": lambda p, s: excitation.autoregressive(p, STEPS, s, 0.95),
    "held for 5 rows": lambda p, s: excitation.holds(p, STEPS, s, 5),
    "held for 20 rows": lambda p, s: excitation.holds(p, STEPS, s, 20),
    "held at random, 20 rows": lambda p, s: holds(p, s, 20),
    "held at random, 100 rows": lambda p, s: holds(p, s, 100),
    "on and off at random": lambda p, s: {n: (v > 0) * 1.0 for n, v in holds(p, s, 30).items()},
}


def share(values: list[float], level: float) -> str:
    error = np.sqrt(level * (1 - level) / len(values))
    return f"{np.mean(np.array(values) < level):.3f} ± {2 * error:.3f}"


def feedback_levels(plant: cf.Plant) -> list[str]:
    rows = []
    for kind, draw in KINDS.items():
        p_values: list[float] = []
        verdicts: list[str] = []
        for seed in range(max(10, RUNS // 4)):
            material = material_of(plant.simulate(STEPS, rng=seed, inputs=draw(plant, seed)), plant)
            tests = Feedbacks(material)
            for j in range(material.u.shape[1]):
                found = tests.of(j)
                p_values += [*found.p_values, *found.same_row_p]
            verdicts += [each.verdict for each in looked("feedback", material)]
        rows.append(
            f"| {kind} | {len(verdicts)} | {share(p_values, 0.01)} | {share(p_values, 0.05)} "
            f"| {verdicts.count('caution')} | {verdicts.count('fail')} |"
        )
    return rows


def controllers() -> list[str]:
    laws = {
        "none: switched at random": open_loop,
        "proportional, on the same row": proportional(0),
        "proportional, on the row before": proportional(1),
        "proportional and integral": with_integral,
        "relay on the measured level": relay(sees_truth=False),
        "relay on the true level, which nobody records": relay(sees_truth=True),
    }
    rows = []
    for name, law in laws.items():
        found = [
            looked("feedback", material_of(closed_loop(law, STEPS, seed), tank_plant_once))
            for seed in range(10 if QUICK else 40)
        ]
        pump, demand = [each[0] for each in found], [each[1] for each in found]
        numbers = [each.number for each in pump]
        rows.append(
            f"| {name} | {sum(each.verdict == 'fail' for each in pump)} of {len(pump)} "
            f"| {np.median(numbers):.2f} ({min(numbers):.2f} to {max(numbers):.2f}) "
            f"| {sum(each.verdict != 'pass' for each in demand)} of {len(demand)} |"
        )
    return rows


tank_plant_once = tank_plant()


def innovations() -> list[str]:
    plant = cf.random_plant(["boiler", "turbine"], outputs=3, rng=1)
    p_white: list[float] = []
    p_drift: list[float] = []
    alarms = dict.fromkeys(("whiteness", "innovation size", "drift"), 0)
    for seed in range(RUNS):
        material = material_of(plant.simulate(STEPS, rng=seed), plant)
        p_white += [whiteness(material.innovations, m).p_value for m in (0, 1)]
        for m in (0, 1):
            half = drift(material, m)
            assert half is not None
            p_drift += list(half.p_values)
        for each in (c for name in ("whiteness", "innovation size", "drift") for c in looked(name, material)):
            alarms[each.name] += each.verdict != "pass"
    out = [
        f"- whiteness: p below 0.05 in {share(p_white, 0.05)}; {alarms['whiteness']} of {2 * RUNS} not passed",
        f"- innovation size: {alarms['innovation size']} of {2 * RUNS} not passed",
        f"- drift: p below 0.05 in {share(p_drift, 0.05)}; {alarms['drift']} of {2 * RUNS} not passed",
    ]
    for factor in (1.15, 1.3, 0.7):
        A, B = plant.A.copy(), plant.B.copy()
        A[plant.state_slice("turbine"), plant.state_slice("boiler")] *= factor
        B[plant.state_slice("turbine"), plant.input_slice("boiler")] *= factor
        later, middle = plant.replace(A=A, B=B), plant.replace(A=(A + plant.A) / 2, B=(B + plant.B) / 2)
        found = []
        for seed in range(10 if QUICK else 40):
            first, states = simulate(plant, STEPS // 2, rng=seed)
            second = later.simulate(STEPS // 2, rng=1000 + seed, initial_state=states[-1])
            found.append(looked("drift", material_of(joined(first, second), middle))[1])
        truth = 2 * abs(factor - 1) / (1 + factor)
        out.append(
            f"- a coupling times {factor:g} at half time: {sum(each.verdict != 'pass' for each in found)} of "
            f"{len(found)} caught ({sum(each.verdict == 'fail' for each in found)} fail); change found "
            f"{np.mean([each.number for each in found]):.2f}, true {truth:.2f}"
        )
    return out


def cost(units: int, states: int, inputs: int, rows: int, limit: float) -> str:
    plant = cf.random_plant(units=units, states=states, inputs=inputs, outputs=8, topology="sparse", rng=0)
    recording = plant.simulate(rows, rng=1)
    begin = perf_counter()
    fit = cf.fit(recording, plant.locals(), uncertainty=False, evaluations=3 if rows > 100_000 else 200)
    fitted = perf_counter() - begin
    begin, used = perf_counter(), process_time()
    found = check(fit)
    seconds, used = perf_counter() - begin, process_time() - used
    return (
        f"| {units} | {units * states} | {units * inputs} | {rows:,} | {fitted:.1f} | {seconds:.1f} | {used:.1f} "
        f"| {limit:g} | {'met' if seconds < limit else 'MISSED'} | {len(found)} |"
    )


def main() -> None:
    begin = perf_counter()
    plant = cf.random_plant(["boiler", "turbine"], inputs=1, outputs=3, rng=1)
    slow = plant.replace(A=plant.A * 0.98 / plant.spectral_radius)
    check(cf.fit(plant.simulate(200, rng=1), plant.locals()))  # imports
    costs = [cost(8, 4, 2, 10_000, 2.0)]
    if not QUICK:
        costs.append(cost(8, 3, 1, 1_000_000, 60.0))
    head = "| inputs | checks | p < 0.01 | p < 0.05 | caution | fail |"
    lines = [
        "# Checks before answers",
        "",
        f"{machine.description()} ({os.environ['OPENBLAS_NUM_THREADS']} OpenBLAS thread), load average "
        f"{os.getloadavg()[0]:.1f} at the end.",
        "",
        "## What a look costs",
        "",
        "| units | states | inputs | rows | fit, s | check, s | of it processor, s | limit, s | limit | checks |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---|---:|",
        *costs,
        "",
        "The long fit is stopped after three passes; the look does not depend on that.",
        "",
        f"## Feedback: false alarms in open loop ({STEPS:,} rows, true model)",
        "",
        "Shares of p-values below a level, ± two standard errors of the nominal share; below it is safe.",
        "",
        f"Spectral radius {plant.spectral_radius:.2f}:",
        "",
        head,
        "|---|---:|---:|---:|---:|---:|",
        *feedback_levels(plant),
        "",
        "Spectral radius 0.98:",
        "",
        head,
        "|---|---:|---:|---:|---:|---:|",
        *feedback_levels(slow),
        "",
        f"## Feedback: controllers of a tank's pump ({STEPS:,} rows, true model)",
        "",
        "| controller | pump fails | share of moves foretold, median (range) | demand, open loop: alarms |",
        "|---|---:|---:|---:|",
        *controllers(),
        "",
        f"## Innovations and drift ({STEPS:,} rows, {RUNS} runs of the true model)",
        "",
        *innovations(),
        "",
        "The change found is below the true one because the filter makes up for part of it.",
    ]
    lines[2] += f" {perf_counter() - begin:.0f} s in all."
    machine.write("checks_quick" if QUICK else "checks", "\n".join(lines))


if __name__ == "__main__":
    main()
