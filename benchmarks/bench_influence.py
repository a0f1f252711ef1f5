"""The influence graph of sparse plants: precision and recall of direct edges.

Run: python benchmarks/bench_influence.py
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # two processes, one thread each; before numpy is imported

from multiprocessing import get_context
from time import perf_counter

import machine
import numpy as np

import counterflow as cf

UNITS, STEPS, PLANTS, RATE = 12, 5000, 24, 0.05
COUPLINGS = (0.3, 0.03)  # the default, and a tenth of it


def one(job: tuple[float, int]) -> tuple[int, int, int, float, float]:
    """True edges, edges found, those of them that are true; seconds of the fit and of the graph."""
    coupling, seed = job
    plant = cf.random_plant(units=UNITS, topology="sparse", density=0.2, coupling=coupling, rng=seed)
    true = {
        (n, m)
        for n in plant.names
        for m in plant.names
        if n != m and (plant.block("A", m, n).any() or plant.block("B", m, n).any())
    }
    recording = plant.simulate(STEPS, rng=1000 + seed)
    begin = perf_counter()
    found = cf.fit(recording, plant.locals())
    middle = perf_counter()
    kept = set(found.graph(rate=RATE).direct())
    assert found.status.converged
    return len(true), len(kept), len(true & kept), middle - begin, perf_counter() - middle


def main() -> None:
    begin = perf_counter()
    rows, details = [], []
    with get_context("spawn").Pool(2) as pool:
        for coupling in COUPLINGS:
            results = np.array(list(pool.imap(one, [(coupling, seed) for seed in range(PLANTS)], chunksize=1)))
            true, kept, right = results[:, 0], results[:, 1], results[:, 2]
            precision, recall = right / np.maximum(kept, 1), right / true
            pooled = right.sum() / kept.sum(), right.sum() / true.sum()
            met = "met" if pooled[0] >= 0.93 and pooled[1] >= 0.95 else "MISSED"
            rows.append(
                f"| {coupling:g} | {int(true.sum())} of {PLANTS * UNITS * (UNITS - 1)} | {int(kept.sum())} "
                f"| {pooled[0]:.3f} | {pooled[1]:.3f} | {met if coupling == COUPLINGS[0] else '(none set)'} "
                f"| {precision.mean():.3f}, {precision.min():.3f} | {recall.mean():.3f}, {recall.min():.3f} "
                f"| {results[:, 3].mean():.1f} | {results[:, 4].mean():.1f} |"
            )
            if coupling == COUPLINGS[0]:
                details = [
                    f"| {seed} | {int(t)} | {int(k)} | {p:.3f} | {r:.3f} |"
                    for seed, (t, k, p, r) in enumerate(zip(true, kept, precision, recall, strict=True))
                ]
    lines = [
        "# Influence graph of sparse plants",
        "",
        f"{machine.description()} ({os.environ['OPENBLAS_NUM_THREADS']} OpenBLAS thread a process, 2 processes). "
        f"{perf_counter() - begin:.0f} s in all.",
        "",
        f"M={UNITS}, P=U=2 and D=8 a unit, density 0.2, white inputs, T={STEPS:,}, {PLANTS} plants; "
        f"fit.graph(rate={RATE:g}). Target: pooled precision at least 0.93, recall at least 0.95.",
        "",
        "| coupling | true edges of pairs | found | pooled precision | pooled recall | target | precision by plant: "
        "mean, min | recall by plant: mean, min | fit, s | graph, s |",
        "|---:|---|---:|---:|---:|---|---|---|---:|---:|",
        *rows,
        "",
        f"A false-discovery rate of {RATE:g} over pairs of which four in five are no edges lets the expected precision "
        f"be about {1 - 0.8 * RATE:.2f}: the control is exact if the p-values are. Seconds are those of two processes "
        "side by side.",
        "",
        f"By plant, coupling {COUPLINGS[0]:g}:",
        "",
        "| seed | edges | found | precision | recall |",
        "|---:|---:|---:|---:|---:|",
        *details,
    ]
    machine.write("influence", "\n".join(lines))


if __name__ == "__main__":
    main()
