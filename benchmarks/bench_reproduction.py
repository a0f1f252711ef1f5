"""``counterflow reproduce all``: seconds on the clock and of processors, by experiment.

Run: python benchmarks/bench_reproduction.py [--full]      (quick unless told otherwise; two worker processes)
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import machine

LIMIT = 180.0  # seconds on two quiet cores, of a quick run


def measure(quick: bool) -> tuple[float, float, dict[str, object]]:
    """Seconds on the clock, of processors, and what the command says."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "counterflow.cli", "reproduce", "all", "--jobs", "2", "--out", folder]
        before, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [*command, *["--quick"] * quick, "--format", "json"], check=True, capture_output=True, text=True
        )
        clock, after = time.perf_counter() - before, resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return clock, seconds, json.loads(done.stdout)


def main() -> None:
    quick = "--full" not in sys.argv[1:]
    load = os.getloadavg()[0]
    clock, seconds, told = measure(quick)
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in told["verdicts"].items())  # type: ignore[attr-defined]
    lines = [
        f"# counterflow reproduce all{' --quick' if quick else ''}",
        "",
        machine.description("matplotlib"),
        "",
        f"Two worker processes, everything from nothing, report and figures included: **{clock:.0f} s on the clock, "
        f"{seconds:.0f} s of processors** (load of the machine before: {load:.1f}).",
        f"Verdicts: {verdicts}.",
        "",
        "| experiment | tasks | seconds of a core |",
        "|---|---:|---:|",
    ]
    for each in told["experiments"]:  # type: ignore[attr-defined]
        lines.append(f"| {each['name']} | {each['tasks']} | {each['seconds']:.1f} |")
    lines += [
        "",
        "Seconds of a core are on the clock of the worker that did it, so more on a busy machine; experiments that "
        f"share tasks each count them. The bar of a quick run is {LIMIT:.0f} s on two quiet cores.",
        "",
    ]
    name = "reproduction.md" if quick else "reproduction_full.md"
    (Path(__file__).parent / "results" / name).write_text("\n".join(lines), encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
