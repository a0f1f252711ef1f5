"""NVIDIA FLARE on loopback with mutual TLS: seconds to a result, seconds a round, bytes on the wire, cost of idling.

Run: python benchmarks/bench_flare.py [number of plants ...]        (default: 3 8)
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported

import re
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import machine
import numpy as np
import psutil
from flare_loopback import Loopback

import counterflow as cf
from counterflow.federation.flare import processes
from counterflow.federation.flare.kit import read_json
from counterflow.federation.machines import server_part

ROWS = 10_000
ROUNDS = 40
WARM = 5  # rounds before the clock starts: the first one loads modules
IDLE = 10.0  # seconds of watching sites that do nothing


def main() -> None:
    sizes = [int(word) for word in sys.argv[1:]] or [3, 8]
    columns = [_measured(size) for size in sizes]
    lines = [
        "# Across machines: NVIDIA FLARE on loopback",
        "",
        f"`python benchmarks/bench_flare.py {' '.join(map(str, sizes))}` on {machine.description('nvflare')}, load "
        f"{os.getloadavg()[0]:.1f} of all users at the end.",
        f"T = {ROWS:,}, 2 states, 2 inputs and 8 outputs a unit; every plant, the server and the operator have keys of "
        "their own, hardened kits, guard, journal and audit log; all processes share this machine's cores.",
        "",
        "| plants | " + " | ".join(map(str, sizes)) + " |",
        "|---" * (1 + len(sizes)) + "|",
    ]
    for name in columns[0]:
        lines.append(f"| {name} | " + " | ".join(column[name] for column in columns) + " |")
    machine.write("flare", "\n".join(lines))


def _measured(size: int) -> dict[str, str]:
    plant = cf.random_plant(units=[f"plant{k:02d}" for k in range(size)], coupling=0.3, topology="chain", rng=1)
    recording, models = plant.simulate(ROWS, rng=2), plant.locals()
    out: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="flare") as folder:
        clock = time.perf_counter()
        sites = Loopback(Path(folder), recording, models).make()
        out["keys, certificates and kits, s"] = f"{time.perf_counter() - clock:.1f}"
        clock = time.perf_counter()
        with sites:
            out["start of all sites until all are connected, s"] = f"{time.perf_counter() - clock:.1f}"
            out |= _idle(sites)
            out |= _one_round(sites, models)
            out |= _iterative(sites, models)
    return out


def _idle(sites: Loopback) -> dict[str, str]:
    parents = [psutil.Process(processes.running(sites.kits[name])[0].pid) for name in ("localhost", *sites.units)]
    before, wire = [sum(one.cpu_times()[:2]) for one in parents], _wire_bytes(sites)
    time.sleep(IDLE)
    used = [(sum(one.cpu_times()[:2]) - was) / IDLE * 100 for one, was in zip(parents, before, strict=True)]
    memory = [one.memory_info().rss / 1e6 for one in parents]
    return {
        "idle: memory of the server, of a plant, MB": f"{memory[0]:.0f}, {np.mean(memory[1:]):.0f}",
        "idle: a core's share, server, plant, %": f"{used[0]:.1f}, {np.mean(used[1:]):.1f}",
        "idle: bytes a second at the server's port, all plants": f"{(_wire_bytes(sites) - wire) / IDLE:,.0f}",
    }


def _one_round(sites: Loopback, models: Any) -> dict[str, str]:
    clock = time.perf_counter()
    wanted = cf.fit(sites.recording, models)
    alone = time.perf_counter() - clock
    times, flares = [], []
    for k in range(3):
        job = sites.job(f"one-round-{k}")
        clock = time.perf_counter()
        run = sites.submit(job)
        state = sites.ended(job, run, patience=300)
        times.append(time.perf_counter() - clock)
        assert state["state"] == "finished", f"{state}\n{sites.logs()}"
        assert sites.operator is not None
        while not sites.operator.state(run).startswith("FINISHED"):
            time.sleep(0.05)
        flares.append(time.perf_counter() - clock)
    with sites.server.session(job) as session:
        found = server_part(session.result())
    worst = max(np.abs(found.A - wanted.plant.A).max(), np.abs(found.B - wanted.plant.B).max())
    return {
        "one round, in process: fit, s": f"{alone:.2f}",
        "one round: from submission to the result, s (3 runs)": ", ".join(f"{one:.1f}" for one in times),
        "one round: until FLARE has tidied up, s": ", ".join(f"{one:.1f}" for one in flares),
        "one round: largest difference from in process": f"{worst:.1g}",
        "one round: bytes of messages": f"{state['bytes_up'] + state['bytes_down']:,}",
    }


def _iterative(sites: Loopback, models: Any) -> dict[str, str]:
    options: dict[str, Any] = {"solver": "gradient", "rounds": ROUNDS}
    clock = time.perf_counter()
    wanted = cf.fit(sites.recording, models, "penalty", compress=False, **options)
    alone = (time.perf_counter() - clock) / ROUNDS
    job = sites.job("iterative", "penalty", **options)
    clock = time.perf_counter()
    run = sites.submit(job)
    marks: dict[int, tuple[float, int, int]] = {}
    while True:
        state = sites.server.state(job.id)
        rounds = state.get("exchanges", 0) // len(sites.units)
        if state.get("run") == run and rounds not in marks:
            marks[rounds] = (time.perf_counter(), _wire_bytes(sites), state["bytes_up"] + state["bytes_down"])
        if state.get("state", "running") != "running":
            break
        time.sleep(0.005)
    assert state["state"] == "finished", f"{state}\n{sites.logs()}"
    total = time.perf_counter() - clock
    first, last = min(k for k in marks if k >= WARM), max(k for k in marks if k <= ROUNDS)
    seconds, wire, content = (b - a for a, b in zip(marks[first], marks[last], strict=True))
    with sites.server.session(job) as session:
        found = server_part(session.result())
    worst = max(np.abs(found.A - wanted.plant.A).max(), np.abs(found.B - wanted.plant.B).max())
    return {
        f"{ROUNDS} rounds: from submission to the result, s": f"{total:.1f}",
        "seconds a round": f"{seconds / (last - first):.3f}",
        "seconds a round, in process": f"{alone:.4f}",
        "bytes of messages a round": f"{content / (last - first):,.0f}",
        "bytes at the server's port over bytes of messages": f"{wire / content:.3f}",
        f"{ROUNDS} rounds: largest difference from in process": f"{worst:.1g}",
    }


def _wire_bytes(sites: Loopback) -> int:
    """Bytes that the open connections to the server's port have carried so far, both ways, as the kernel counts."""
    described = read_json(sites.kits["localhost"] / "startup" / "fed_server.json")
    port = described["servers"][0]["service"]["target"].rpartition(":")[2]
    said = subprocess.run(["ss", "-Htin", f"sport = :{port}"], capture_output=True, text=True, check=True).stdout
    return sum(map(int, re.findall(r"bytes_(?:sent|received):(\d+)", said)))


if __name__ == "__main__":
    main()
