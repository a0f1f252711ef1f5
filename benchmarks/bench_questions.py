"""Latency of questions to a loaded fit.

Run: python benchmarks/bench_questions.py
"""

from __future__ import annotations

import tempfile
from time import perf_counter

import machine
import numpy as np

import counterflow as cf


def median_ms(call, repeats: int) -> float:
    call()
    times = []
    for _ in range(repeats):
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return 1e3 * float(np.median(times))


def loaded(units: int, steps: int, uncertainty: bool) -> tuple[cf.Fit, cf.Recording]:
    """A fit that has been saved and loaded again."""
    plant = cf.random_plant(units=units, states=4, outputs=16, rng=1)
    recording = plant.simulate(steps, rng=2)
    evaluations = 200 if uncertainty else 1  # the latency does not depend on how good the fit is
    found = cf.fit(recording, plant.locals(), uncertainty=uncertainty, evaluations=evaluations)
    with tempfile.TemporaryDirectory() as folder:
        found.save(f"{folder}/fit")
        return cf.load(f"{folder}/fit"), recording


def main() -> None:
    lines = [
        "# Questions to a loaded fit",
        "",
        machine.description(),
        "",
        "P=4, U=2, D=16 a unit; every question is encoded, decoded and answered as messages. Median, milliseconds.",
        "",
        "| question | M=64, no interval | M=8, no interval | M=8, with intervals |",
        "|---|---|---|---|",
    ]
    large, _ = loaded(64, 1000, False)
    small, _ = loaded(8, 2000, False)
    sure, recording = loaded(8, 2000, True)
    fits = (large, small, sure)
    for horizon in (50, 1000):
        cells = [median_ms(lambda f=f, h=horizon: f.effect("unit1", "unit2", [1.0, -0.5], horizon=h), 15) for f in fits]
        lines.append(f"| effect, horizon {horizon:,} | " + " | ".join(f"{c:.1f}" for c in cells) + " |")
    world = median_ms(lambda: sure.counterfactual(recording, {"unit1": {"u1": 0.0}}, start=100, stop=150), 5)
    share = median_ms(lambda: sure.attribute(recording, "unit2", start=100, stop=150), 5)
    lever = median_ms(lambda: sure.restore("unit2", {"y1": 0.1}, using=["unit1"]), 5)
    lines += [
        "",
        f"M=8: counterfactual of all 8 units over 50 rows {world:.0f} ms, attribution over 50 rows {share:.0f} ms, "
        f"restoration {lever:.1f} ms.",
    ]
    machine.write("questions", "\n".join(lines))


if __name__ == "__main__":
    main()
