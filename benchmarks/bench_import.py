"""Import: a table of 1,000,000 rows and 100 channels into a recording of 8 units; seconds and peak memory.

Run: python benchmarks/bench_import.py [ROWS]
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

CHANNELS, UNITS = 100, 8
WORK = """
import json, sys, time
import counterflow.data as data

path, job = sys.argv[1:3]
units = {f"unit{k}": {"tags": f"U{k}_*", "inputs": "*_D"} for k in range(8)}
if job == "one unit":
    units = {"unit0": units["unit0"]}
before = time.perf_counter()
if job == "inspect":
    found = data.inspect(path)
    rows = found.table.rows
elif job == "resample":
    recording, _ = data.read_logs(path, units, dt=60.0)
    rows = recording.rows
else:
    recording, _ = data.read_logs(path, units)
    rows = recording.rows
seconds = time.perf_counter() - before
with open("/proc/self/status") as file:  # ru_maxrss would count the process that started this one
    peak = next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) / 2**20
print(json.dumps({"seconds": seconds, "peak": peak, "rows": rows}))
"""


def names() -> list[str]:
    return [
        f"U{k % UNITS}_{'valve' if k < 3 * UNITS else 'sensor'}{k}{'_D' if k < 3 * UNITS else ''}"
        for k in range(CHANNELS)
    ]


def make(folder: Path, rows: int) -> dict[str, Path]:
    """One row a second; valves move now and then, sensors wander; 1 % of the sensor cells are empty."""
    rng = np.random.default_rng(0)
    start = np.datetime64("2024-01-01T00:00:00", "us")
    columns: dict[str, object] = {"timestamp": start + np.arange(rows) * np.timedelta64(1, "s")}
    for name in names():
        if name.endswith("_D"):
            columns[name] = np.repeat(rng.integers(0, 100, rows // 50 + 1), 50)[:rows].astype(np.float64)
        else:
            values = np.round(50.0 + np.cumsum(rng.standard_normal(rows)) * 0.01 + rng.standard_normal(rows), 4)
            columns[name] = polars.Series(values).set(polars.Series(rng.random(rows) < 0.01), None)
    frame = polars.DataFrame(columns)
    paths = {"Parquet": folder / "plant.parquet", "CSV": folder / "plant.csv"}
    frame.write_parquet(paths["Parquet"])
    frame.with_columns(polars.col("timestamp").dt.strftime("%Y-%m-%d %H:%M:%S")).write_csv(paths["CSV"])
    return paths


def measure(path: Path, job: str) -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", WORK, str(path), job], check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    lines = [
        "# Import",
        "",
        machine.description("polars"),
        "",
        f"A table of {rows:,} rows, {CHANNELS} channels (24 inputs), {UNITS} units, 1 % of the measurements missing. "
        "Each job in a process of its own; peak memory is the largest resident set of that process, the recording "
        f"({rows * CHANNELS * 8 / 2**30:.2f} GiB) included.",
        "",
        "| file | size, GiB | job | rows out | seconds | peak, GiB |",
        "|---|---|---|---|---|---|",
    ]
    with TemporaryDirectory() as folder:
        for kind, path in make(Path(folder), rows).items():
            size = path.stat().st_size / 2**30
            for job in ("all units", "one unit", "resample", "inspect"):
                found = measure(path, job)
                what = {"resample": "all units, to 60 s", "one unit": "one unit of 8"}.get(job, job)
                seconds, peak = found["seconds"], found["peak"]
                lines.append(f"| {kind} | {size:.2f} | {what} | {found['rows']:,.0f} | {seconds:.1f} | {peak:.2f} |")
                print(lines[-1], flush=True)
    machine.write("import", "\n".join(lines))


if __name__ == "__main__":
    main()
