"""NVIDIA FLARE on loopback with mutual TLS: seconds to a result, seconds a round, bytes on the wire, cost of idling.

Every number of plants is measured twice, with all sites started anew.

Run: python benchmarks/bench_flare.py [number of plants ...]        (default: 3 8 16)
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported

import contextlib
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
from counterflow.federation.sites import party
from counterflow.federation.sites.coordinator_folder import CoordinatorFolder

ROWS = 10_000
ROUNDS = 40
WARM = 5  # rounds before the clock starts: the first one loads modules
IDLE = 10.0  # seconds of watching sites that do nothing
RUNS = 2


def main() -> None:
    sizes = [int(word) for word in sys.argv[1:]] or [3, 8, 16]
    columns = [_measured(size) for size in sizes]
    lines = [
        "# Across machines: NVIDIA FLARE on loopback",
        "",
        f"`python benchmarks/bench_flare.py {' '.join(map(str, sizes))}` on {machine.description('nvflare')}.",
        f"T = {ROWS:,}, 2 states, 2 inputs and 8 outputs a unit; every plant, the server and the operator have keys of "
        "their own, hardened kits, guard, store and audit log; all processes share this machine's cores. Two runs "
        "each, with all sites started anew: first / second.",
        "",
        "| plants | " + " | ".join(map(str, sizes)) + " |",
        "|---" * (1 + len(sizes)) + "|",
    ]
    for name in columns[0]:
        lines.append(f"| {name} | " + " | ".join(column[name] for column in columns) + " |")
    machine.write("flare", "\n".join([*lines, *NOTES]))


NOTES = [
    "",
    "- *CPU a round*: what the processes use between two rounds. On a machine for every site, a round takes at least "
    "what one plant and the server's job use, one after the other: the row *with a core for every process*.",
    "- *Store*: the files of a session while the job ran, at most, and when it was over. Its log begins anew with a "
    "snapshot when it is longer than 8 MB and three snapshots, so it does not grow with the rounds.",
    "- *Load*: of everything on this machine in the minute before the sites were started; that of a second run is in "
    "part the first one's own, all above that is of others who were at work here, too.",
]


def _measured(size: int) -> dict[str, str]:
    plant = cf.random_plant(units=[f"plant{k:02d}" for k in range(size)], coupling=0.3, topology="chain", rng=1)
    recording, models = plant.simulate(ROWS, rng=2), plant.locals()
    out: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="flare") as folder:
        clock = time.perf_counter()
        sites = Loopback(Path(folder), recording, models).make()
        out["keys, certificates and kits, s"] = f"{time.perf_counter() - clock:.1f}"
        runs = [_run(sites, models, str(number)) for number in range(RUNS)]
    return out | {name: " / ".join(run[name] for run in runs) for name in runs[0]}


def _run(sites: Loopback, models: Any, number: str) -> dict[str, str]:
    out = {"load before": f"{os.getloadavg()[0]:.1f}"}
    clock = time.perf_counter()
    with sites:
        out["start of all sites until all are connected, s"] = f"{time.perf_counter() - clock:.1f}"
        out |= _idle(sites)
        out |= _one_round(sites, models, number)
        out |= _iterative(sites, models, number)
    print(f"{len(sites.units)} plants, run {number}: {out}", file=sys.stderr, flush=True)
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


def _one_round(sites: Loopback, models: Any, number: str) -> dict[str, str]:
    clock = time.perf_counter()
    wanted = cf.fit(sites.recording, models)
    alone = time.perf_counter() - clock
    times, flares = [], []
    for k in range(2):
        job = sites.job(f"one-round-{number}-{k}")
        clock = time.perf_counter()
        run = sites.submit(job)
        state = sites.ended(job, run, patience=300)
        times.append(time.perf_counter() - clock)
        assert state["state"] == "finished", f"{state}\n{sites.logs()}"
        assert sites.operator is not None
        while not sites.operator.state(run).startswith("FINISHED"):
            time.sleep(0.05)
        flares.append(time.perf_counter() - clock)
    with CoordinatorFolder.open(sites.root / "localhost").session(job) as session:
        found = session.result().server
    worst = max(np.abs(found.A - wanted.plant.A).max(), np.abs(found.B - wanted.plant.B).max())
    return {
        "one round, in process: fit, s": f"{alone:.2f}",
        "one round: from submission to the result, s": ", ".join(f"{one:.1f}" for one in times),
        "one round: until FLARE has tidied up, s": ", ".join(f"{one:.1f}" for one in flares),
        "one round: largest difference from in process": f"{worst:.1g}",
        "one round: bytes of messages": f"{state['bytes_up'] + state['bytes_down']:,}",
    }


def _iterative(sites: Loopback, models: Any, number: str) -> dict[str, str]:
    options: dict[str, Any] = {"solver": "gradient", "rounds": ROUNDS}
    clock = time.perf_counter()
    wanted = cf.fit(sites.recording, models, "penalty", compress=False, **options)
    alone = (time.perf_counter() - clock) / ROUNDS
    job = sites.job(f"iterative-{number}", "penalty", **options)
    clock = time.perf_counter()
    run = sites.submit(job)
    marks: dict[int, tuple[float, int, int]] = {}
    used: list[dict[str, float]] = []
    journals = {"localhost": 0, sites.units[0]: 0}
    while True:
        state = sites.state(job)
        rounds = state.get("exchanges", 0) // len(sites.units)
        if state.get("run") == run and rounds not in marks:
            marks[rounds] = (time.perf_counter(), _wire_bytes(sites), state["bytes_up"] + state["bytes_down"])
            for name in journals:
                journals[name] = max(journals[name], _journal(sites, name, job.id))
            if WARM in marks and not used:
                used.append(_used(sites))
                warm = rounds
            if rounds >= ROUNDS - 2 and len(used) == 1:
                used.append(_used(sites))
                counted = rounds - warm
        if state.get("state", "running") != "running":
            break
        time.sleep(0.005)
    assert state["state"] == "finished", f"{state}\n{sites.logs()}"
    total = time.perf_counter() - clock
    first, last = min(k for k in marks if k >= WARM), max(k for k in marks if k <= ROUNDS)
    seconds, wire, content = (b - a for a, b in zip(marks[first], marks[last], strict=True))
    while any(one.job for one in processes.running(sites.kits["localhost"])):  # it has the session until it ends
        time.sleep(0.1)
    clock = time.perf_counter()
    with CoordinatorFolder.open(sites.root / "localhost").session(job) as session:
        opened = time.perf_counter() - clock
        found = session.result().server
    worst = max(np.abs(found.A - wanted.plant.A).max(), np.abs(found.B - wanted.plant.B).max())
    cpu = {key: (used[1][key] - used[0][key]) / counted for key in used[0]}
    path = cpu["job"] + cpu["plants"] / len(sites.units)
    ends = {name: _journal(sites, name, job.id) for name in journals}
    return {
        f"{ROUNDS} rounds: from submission to the result, s": f"{total:.1f}",
        "**seconds a round**": f"**{seconds / (last - first):.3f}**",
        "seconds a round, in process": f"{alone:.4f}",
        "CPU a round: server's parent, its job, all plants' jobs, s": f"{cpu['parent']:.3f}, {cpu['job']:.3f}, "
        f"{cpu['plants']:.3f}",
        "seconds a round with a core for every process, at least": f"{path:.3f}",
        "bytes of messages a round": f"{content / (last - first):,.0f}",
        "bytes at the server's port over bytes of messages": f"{wire / content:.3f}",
        "store of the server, of a plant: largest, MB": ", ".join(f"{size / 1e6:.1f}" for size in journals.values()),
        "store of the server, of a plant: at the end, MB": ", ".join(f"{size / 1e6:.1f}" for size in ends.values()),
        "the finished job opened again, s": f"{opened:.3f}",
        f"{ROUNDS} rounds: largest difference from in process": f"{worst:.1g}",
    }


def _used(sites: Loopback) -> dict[str, float]:
    """CPU seconds so far: of the server's parent process, of its job's, of all plants' jobs."""
    out = {"parent": 0.0, "job": 0.0, "plants": 0.0}
    for name in ("localhost", *sites.units):
        for one in processes.running(sites.kits[name]):
            key = ("job" if one.job else "parent") if name == "localhost" else "plants"
            if one.job or name == "localhost":
                out[key] += sum(psutil.Process(one.pid).cpu_times()[:2])
    return out


def _journal(sites: Loopback, name: str, job: str) -> int:
    """Bytes that a site has on the disk for a job, all files of its store."""
    sizes = []
    for place in (sites.root / name / "sessions" / job).glob("session.db*"):
        with contextlib.suppress(FileNotFoundError):  # a log began anew meanwhile
            sizes.append(place.stat().st_size)
    return sum(sizes)


def _wire_bytes(sites: Loopback) -> int:
    """Bytes that the open connections to the server's port have carried so far, both ways, as the kernel counts."""
    port = party.read(sites.kits["localhost"].parent)["port"]
    said = subprocess.run(["ss", "-Htin", f"sport = :{port}"], capture_output=True, text=True, check=True).stdout
    return sum(map(int, re.findall(r"bytes_(?:sent|received):(\d+)", said)))


if __name__ == "__main__":
    main()
