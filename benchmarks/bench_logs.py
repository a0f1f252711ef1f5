"""From a table to answers: 1,000,000 rows of 100 channels, 8 units, no model given; seconds, memory, accuracy.

Run: python benchmarks/bench_logs.py [ROWS]
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import machine
import numpy as np
import polars

import counterflow as cf

UNITS = 8
WORK = """
import json, sys, time
import counterflow as cf

units = {f"unit{k}": {"tags": f"unit{k}_*", "inputs": "*_valve*"} for k in range(1, 9)}
marks = [time.perf_counter()]
recording, _ = cf.read_logs(sys.argv[1], units)
marks.append(time.perf_counter())
found = cf.fit(recording)
marks.append(time.perf_counter())
processor = time.process_time()
answer = found.effect("unit1", "unit2", {"unit1_valve1": 10.0}, horizon=50)
with open("/proc/self/status") as file:  # ru_maxrss would count the process that started this one
    peak = next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 2**20
print(json.dumps({
    "import": marks[1] - marks[0], "fit": marks[2] - marks[1], "processor": processor, "peak": peak,
    "status": str(found.status), "sent": found.traffic.bytes_up / 2**20,
    "mean": answer.mean.tolist(), "lower": answer.lower.tolist(), "upper": answer.upper.tolist(),
    "verdict": found.check(recording.slice(0, 50_000)).verdict,
}))
"""


def plant() -> cf.Plant:
    """Eight units in a chain with two valves and ten sensors each."""
    return cf.random_plant(units=UNITS, states=3, inputs=2, outputs=10, topology="chain", rng=3)


def make(path: Path, rows: int) -> np.ndarray:
    """Write the table, one row a second, 1 % of the readings missing; returns the true effect that is asked for."""
    true, rng = plant(), np.random.default_rng(0)
    moves = {n: np.repeat(rng.standard_normal((rows // 20 + 1, 2)), 20, axis=0)[:rows] for n in true.names}
    recording = true.simulate(rows - 1, rng=1, inputs=moves)
    columns: dict[str, object] = {
        "time": np.datetime64("2026-01-01T00:00:00", "us") + np.arange(rows) * np.timedelta64(1, "s")
    }
    for name in true.names:
        y, u = recording[name].y, recording[name].u
        for k in range(u.shape[1]):
            columns[f"{name}_valve{k + 1}"] = 50 + 10 * u[:, k]
        for k in range(y.shape[1]):
            values = polars.Series(np.round(200 + 5 * y[:, k], 4))
            columns[f"{name}_sensor{k + 1}"] = values.set(polars.Series(rng.random(rows) < 0.01), None)
    for name in true.names[:4]:  # tags that were never connected: a hundred channels in all
        columns[f"{name}_spare"] = np.zeros(rows)
    polars.DataFrame(columns).write_parquet(path)
    oracle = cf.fit(recording.slice(0, 10), true, method="oracle")
    return 5 * oracle.effect("unit1", "unit2", [1.0, 0.0], horizon=50).mean


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with TemporaryDirectory() as folder:
        path = Path(folder) / "plant.parquet"
        truth = make(path, rows)
        size = path.stat().st_size / 2**30
        done = subprocess.run([sys.executable, "-c", WORK, str(path)], capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(done.stderr)
        found = json.loads(done.stdout)
    mean = np.array(found["mean"])
    r2 = 1 - float(np.square(mean - truth).sum() / np.square(truth).sum())
    inside = (np.array(found["lower"]) <= truth) & (truth <= np.array(found["upper"]))
    covered = f"{100 * inside.mean():.0f} % of the points inside their 95 % interval"
    total = found["import"] + found["fit"]
    lines = [
        "# From a table to answers",
        "",
        machine.description("polars"),
        "",
        f"`cf.read_logs` and `cf.fit` (no models) of a Parquet file of {rows:,} rows, 100 channels, {UNITS} units "
        f"({size:.2f} GiB), 1 % of the readings missing, in a process of its own.",
        "",
        "| | |",
        "|---|---|",
        f"| import | {found['import']:.0f} s |",
        f"| fit | {found['fit']:.0f} s |",
        f"| **both** (asked: under 180 s) | **{total:.0f} s** on the clock, {found['processor']:.0f} s of CPU |",
        f"| peak memory | **{found['peak']:.2f} GiB** (asked: under 6 GiB) |",
        f"| sent by all units | {found['sent']:.0f} MiB |",
        f"| status | {found['status']} |",
        f"| check on 50,000 rows | {found['verdict']} |",
        f"| effect of a valve on the next unit, 50 rows | R² {r2:.5f}; {covered} |",
    ]
    machine.write("logs", "\n".join(lines))


if __name__ == "__main__":
    main()
