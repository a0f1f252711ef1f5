"""How often nominal 95 % intervals hold the truth: of every coupling, and of effects over 50 steps.

Run: python benchmarks/bench_coverage.py
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # two processes, one thread each; before numpy is imported

from dataclasses import dataclass, field
from multiprocessing import get_context
from time import perf_counter
from typing import Any

import machine
import numpy as np

import counterflow as cf
from counterflow.plant import excitation

FloatArray = np.ndarray[Any, np.dtype[np.float64]]
HORIZON = 50
Z = 1.959964


@dataclass(frozen=True)
class Case:
    label: str
    units: int
    steps: int
    runs: int
    pole: float = 0.0
    gaps: bool = False
    plants: int = 1  # recordings are dealt out to so many plants
    options: dict[str, Any] = field(default_factory=dict)

    def plant(self, run: int) -> cf.Plant:
        return cf.random_plant(units=self.units, rng=7 + run % self.plants)


CASES = (
    Case("M=2, white", 2, 2000, 600),
    Case("M=2, AR(0.9)", 2, 2000, 600, pole=0.9),
    Case("M=3, white", 3, 2000, 400),
    Case("M=3, AR(0.9)", 3, 2000, 400, pole=0.9),
    Case("M=2, white, 25 plants", 2, 2000, 500, plants=25),
    Case('M=2, white, estimate="all"', 2, 2000, 400, options={"estimate": "all"}),
    Case('M=2, AR(0.9), estimate="all"', 2, 2000, 400, pole=0.9, options={"estimate": "all"}),
    Case("M=2, white, gaps", 2, 2000, 48, gaps=True),  # slow: two passes for each coupling
)


def with_gaps(recording: cf.Recording, plant: cf.Plant, run: int) -> cf.Recording:
    """Four holes of 20 to 120 rows in every unit's measurements, at places of their own."""
    rng = np.random.default_rng([run, 5])
    rows = {}
    for name in plant.names:
        y = recording[name].y.copy()
        for first in rng.integers(50, len(y) - 200, size=4):
            y[first : first + rng.integers(20, 121)] = np.nan
        rows[name] = (y, recording[name].u)
    return cf.Recording.from_arrays(rows, units=plant.units)


def one(job: tuple[Case, int]) -> tuple[FloatArray, FloatArray, bool]:
    """Whether each coupling's interval holds the truth (n,), and each effect's (pairs x inputs, horizon, outputs)."""
    case, run = job
    plant = case.plant(run)
    seed = 20_000 + run
    inputs = excitation.autoregressive(plant, case.steps, seed, pole=case.pole) if case.pole else None
    recording = plant.simulate(case.steps, rng=seed, inputs=inputs)
    if case.gaps:
        recording = with_gaps(recording, plant, run)
    found = cf.fit(recording, plant.locals(), uncertainty=True, **case.options)
    inside = []
    for letter in "AB":
        se = getattr(found.standard_errors, letter)
        gap = np.abs(getattr(found.plant, letter) - getattr(plant, letter))
        inside.append((gap <= Z * se)[se > 0])  # zero: given, not estimated
    effects = []
    for cause in plant.names:
        for effect in plant.names:
            if cause == effect:
                continue
            C = plant.block("C", effect)
            for channel in range(plant.unit(cause).n_inputs):
                change = np.eye(plant.unit(cause).n_inputs)[channel]
                answer = found.effect(cause, effect, change, horizon=HORIZON)
                state, truth = np.zeros(len(plant.A)), []
                drive = plant.B[:, plant.input_slice(cause)] @ change
                for _ in range(HORIZON):
                    state = plant.A @ state + drive
                    truth.append(C @ state[plant.state_slice(effect)])
                assert answer.lower is not None
                assert answer.upper is not None
                effects.append((answer.lower <= truth) & (truth <= answer.upper))
    return np.concatenate(inside), np.array(effects), found.status.converged


def percent(hits: FloatArray) -> str:
    """Mean over everything, with the Monte-Carlo standard error from the scatter of whole recordings (axis 0)."""
    by_run = hits.reshape(len(hits), -1).mean(axis=1)
    return f"{100 * by_run.mean():.1f} ± {100 * by_run.std(ddof=1) / np.sqrt(len(hits)):.1f}"


def row(case: Case, results: list[tuple[FloatArray, FloatArray, bool]]) -> str:
    hits = np.array([r[0] for r in results])
    effects = np.array([r[1] for r in results])  # (runs, pair and input, horizon, output)
    by_coupling = hits.mean(axis=0)
    worst = 100 * by_coupling[np.abs(by_coupling - 0.95).argmax()]
    aims = [100 * hits.mean(), 100 * effects.mean()]
    met = "met" if all(93 <= value <= 97 for value in aims) else "MISSED"
    steps = [percent(effects[:, :, k - 1]) for k in (1, 10, HORIZON)]
    return (
        f"| {case.label} | {len(results)} | {hits.shape[1]} | {percent(hits)} | {worst:.1f} | {percent(effects)} | "
        f"{' | '.join(steps)} | {met} | {sum(not r[2] for r in results)} |"
    )


def main() -> None:
    begin = perf_counter()
    lines = []
    with get_context("spawn").Pool(2) as pool:
        for case in CASES:
            results = list(pool.imap(one, [(case, run) for run in range(case.runs)], chunksize=4))
            lines.append(row(case, results))
            print(lines[-1], flush=True)
    machine.write("coverage", report(lines, perf_counter() - begin))


def report(lines: list[str], seconds: float) -> str:
    text = [
        "# Coverage of nominal 95 % intervals",
        "",
        f"{machine.description()} ({os.environ['OPENBLAS_NUM_THREADS']} OpenBLAS thread a process, 2 processes). "
        f"{seconds:.0f} s in all.",
        "",
        "P=U=2 and D=8 a unit, T=2,000, q=0.1, r=1; fresh noise and inputs in every recording, of one plant unless "
        "said otherwise. Target: couplings and effects, in aggregate, 93 to 97 %.",
        "",
        "| case | recordings | couplings | couplings, % | farthest single coupling, % | effects, all steps, % | step 1 "
        "| step 10 | step 50 | target | not converged |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---|---:|",
        *lines,
        "",
        "± is one Monte-Carlo standard error, from the scatter between recordings. A single coupling's coverage has "
        f"one of {100 * np.sqrt(0.95 * 0.05 / 600):.1f} points at 600 recordings and "
        f"{100 * np.sqrt(0.95 * 0.05 / 400):.1f} at 400. Effects: every ordered pair of different "
        "units, each input of the cause raised by 1 and held, steps "
        f"1 to {HORIZON}, every output of the effect. Gaps: four holes of 20 to 120 rows in each unit, drawn anew "
        'for every recording. estimate="all": local blocks and process noise are estimated too.',
    ]
    return "\n".join(text)


if __name__ == "__main__":
    main()
