"""Hostile input, 100,000 cases and more: nothing but refusals, no case that takes long, no memory that grows.

Run: python benchmarks/bench_fuzz.py [--cases 30000] [--seed 1]
``cases`` are of damaged good input, for each reader.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported

import argparse
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import machine
from fuzzing import run, targets

SLOWEST = 2.0  # seconds for one case, on a machine that does other things, too
MOST = 200.0  # MB


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    rows, total = [], 0
    with ExitStack() as stack:
        for name, case in targets(stack).items():
            outcome = run(case, given.cases, given.seed)
            assert outcome.slowest < SLOWEST, f"{name}: a case took {outcome.slowest:.2f} s"
            assert outcome.grown < MOST, f"{name}: memory grew by {outcome.grown:.0f} MB"
            total += outcome.cases
            rows.append(
                f"| {name} | {outcome.cases:,} | {outcome.refused:,} | {outcome.slowest * 1e3:.1f} "
                f"| {outcome.grown:.1f} | {outcome.seconds / outcome.cases * 1e6:.0f} |"
            )
            print(rows[-1], flush=True)
    lines = [
        "# Fuzzing what comes from outside",
        "",
        f"`python benchmarks/bench_fuzz.py --cases {given.cases} --seed {given.seed}` on "
        f"{machine.description()}.",
        f"{total:,} cases in all: every one was refused with an error of Counterflow's own, or was harmless and taken.",
        "",
        "| reader | cases | refused | slowest case, ms | peak memory grown, MB | mean, us |",
        "|---|---|---|---|---|---|",
        *rows,
    ]
    machine.write("fuzz", "\n".join(lines))


if __name__ == "__main__":
    main()
