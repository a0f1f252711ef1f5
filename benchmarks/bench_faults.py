"""Kill -9 of plants, of the server and of jobs at random moments, network cuts and full disks, on real FLARE processes.

Run: python benchmarks/bench_faults.py [--kills 54] [--seed 1] [--only kills|cuts|disks]
Network cuts need root (network namespaces), full disks, too (a small tmpfs); without it they are left out, and said so.
"""

from __future__ import annotations

import os
import sys

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported

import argparse
import contextlib
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import machine
import numpy as np
from flare_loopback import Cable, Loopback

import counterflow as cf
from counterflow.federation.audit import FILE, Audit, verify
from counterflow.federation.flare import processes
from counterflow.federation.job import Job
from counterflow.federation.sites import party
from counterflow.privacy import Ledger, ledger_path

UNITS = ("boiler", "turbine")
ROUNDS = 60
DEADLINE = 6  # seconds that a plant may take for one answer: a killed one is noticed after these
TOLERANCE = 1e-9
POLICY = """unit = "{unit}"
[leave]
methods = ["sufficient", "penalty"]
[privacy]
demanded = false
simulation = true
delta = 0.1
ledger = "budget"
"""
TARGETS = [(name, what) for name in ("plant", "server") for what in ("parent", "job", "whole")]
MOMENTS = ("starting", "opening", *["in a round"] * 8, "tidying up")
PRIVATE = cf.Privacy(8.0, 1e-5, seed=3)


class Sites(Loopback):
    """The loopback federation with budgets, and what a job must have left behind."""

    def iterative(self, name: str) -> Job:
        return self.job(name, "penalty", solver="gradient", rounds=ROUNDS)

    def private(self, name: str) -> Job:
        inputs = {unit.name: unit.inputs for unit in self.recording.units}
        options = {"uncertainty": False, "evaluations": 3}
        return Job(name, "sufficient", inputs, options=options, dt=self.recording.dt, privacy=PRIVATE, seed=7)

    def wanted(self, job: Job) -> cf.Fit:
        more: dict[str, Any] = {"compress": False} if job.method == "penalty" else {}
        return cf.fit(
            self.recording, self.models, job.method, privacy=job.privacy, seed=job.seed, **job.options, **more
        )

    def checked(self, job: Job) -> str:
        """Raise unless a job ended as if nothing had happened; how far its estimate is from the undisturbed one."""
        result = self.session(job).result()
        found, wanted = result.server, self.wanted(job)
        difference = max(np.abs(found.A - wanted.plant.A).max(), np.abs(found.B - wanted.plant.B).max())
        assert difference <= TOLERANCE, f"{job.id}: off by {difference:.2g}"
        # every message of every unit was taken in once: no round is of a part of them, none was computed twice
        told, due = result.traffic, wanted.traffic
        if job.privacy is None:  # in process, a private message is counted before it is made private
            assert (told.rounds, told.bytes_up, told.bytes_down) == (due.rounds, due.bytes_up, due.bytes_down), told
        charged = 0
        for unit in self.units:
            home = self.kits[unit].parent
            assert verify(home / FILE).broken is None, f"{unit}: {verify(home / 'audit.jsonl')}"
            with Audit(home / FILE) as audit:
                left = [one for one in audit.records() if one["event"] == "left" and one["job"] == job.id]
            kinds = [one["kind"] for one in left]
            if job.privacy is None:
                assert kinds == ["Introduction"] + ["AugmentedStates"] * ROUNDS, f"{unit}: {len(kinds)} messages left"
            else:
                assert kinds == ["Sufficient"], f"{unit}: {kinds}"
                with Ledger.open(ledger_path(home / "budget", unit)) as ledger:
                    paid = {entry.id for entry in ledger.entries() if entry.fit == f"job {job.id}"}
                assert {one["ledger_entry"] for one in left} <= paid, f"{unit}: left, and was not charged"
                charged += len(paid) - len(left)
        return f"{difference:.1g}" + (f"; {charged} charged that never left" if charged else "")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=54)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=("kills", "cuts", "disks"))
    given = parser.parse_args()
    warnings.simplefilter("ignore")  # FLARE's own, on import
    plant = cf.random_plant(units=UNITS, rng=1)
    lines = [
        "# Faults: kill -9, network cuts, full disks",
        "",
        f"`python benchmarks/bench_faults.py --kills {given.kills} --seed {given.seed}` on "
        f"{machine.description('nvflare')}, load {os.getloadavg()[0]:.1f} at the start.",
        f"Two plants, a server and an operator in processes of their own, mutual TLS, T = 120, {ROUNDS} rounds of "
        f"method penalty (gradient), and one-round private jobs; a plant has {DEADLINE} s for an answer.",
        "After every job: the estimate against one that was not disturbed, bytes and rounds against those of one "
        "process (so no round is of a part of the units), audit logs verified, exactly the protocol's messages in "
        "them, each private one with an entry in the ledger.",
        "",
    ]
    with tempfile.TemporaryDirectory(prefix="faults") as folder:
        sites = Sites(Path(folder), plant.simulate(120, rng=2), plant.locals())
        sites.make(POLICY, budget=5000.0)
        parts = {"kills": lambda: kills(sites, given.kills, given.seed), "cuts": lambda: cuts(sites),
                 "disks": lambda: disks(sites)}  # fmt: skip
        for name, part in parts.items():
            if given.only in (None, name):
                lines += part()
    if given.only is None:
        machine.write("faults", "\n".join(lines))
    else:
        print("\n".join(lines))


# ---- kills


class Follower(threading.Thread):
    """``follow`` in a thread: the kills come from outside."""

    def __init__(self, sites: Sites, job: Job, deadline: int = DEADLINE) -> None:
        super().__init__(daemon=True)
        self._sites, self.job, self._deadline = sites, job, deadline
        self.error: BaseException | None = None
        self.runs, self.waiting = 0, False
        self.start()

    def run(self) -> None:
        seen: set[str] = set()

        def progress(state: dict[str, Any]) -> None:
            seen.add(state.get("run", ""))
            self.runs = len(seen - {""})
            self.waiting = state["state"] == "waiting"

        try:
            self._sites.follow(self.job, self._deadline, 300, progress=progress)
        except BaseException as error:
            self.error = error

    def state(self) -> dict[str, Any]:
        return self._sites.state(self.job)

    def until(self, condition: Any, patience: float = 300) -> bool:
        """Wait; False if the job was over before."""
        end = time.monotonic() + patience
        while not condition():
            if self.error is not None:
                raise self.error
            if not self.is_alive():
                return False
            if time.monotonic() > end:
                raise AssertionError(f"{self.job.id} does not go on: {self.state()}\n{self._sites.logs()}")
            time.sleep(0.01)
        return True


def kills(sites: Sites, count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    rows: list[str] = []
    results: list[str] = []
    with sites:
        jobs = 0
        while len(rows) < count:
            jobs += 1
            job = sites.private(f"private-{jobs}") if jobs % 3 == 0 else sites.iterative(f"iterative-{jobs}")
            rows += _killed(sites, job, draw, count - len(rows), len(rows))
            results.append(f"| {job.id} | {sites.checked(job)} |")
            print(results[-1], flush=True)
        left = {name: len(processes.running(sites.kits[name])) for name in ("localhost", *UNITS)}
    seconds = sorted(float(row.split("|")[5]) for row in rows)
    return [
        f"## {len(rows)} kills at random moments over {jobs} jobs: none lost, none wrong",
        "",
        f"From a kill to the next exchange, or to the end: median {seconds[len(seconds) // 2]:.1f} s, at most "
        f"{seconds[-1]:.1f} s. What was killed is started again 0 to 1 s later, after job processes that a killed "
        "parent has left were ended, as 'counterflow federation start' does it; of the rest, FLARE takes about 4 s to "
        f"start a site and 4 s to start a job. Processes at the end: {left}, none after the stop.",
        "",
        "| kill | job | moment | killed | s until it went on | result |",
        "|---|---|---|---|---|---|",
        *rows,
        "",
        "| job | largest difference from the undisturbed estimate |",
        "|---|---|",
        *results,
        "",
    ]


def _killed(sites: Sites, job: Job, draw: random.Random, most: int, before: int) -> list[str]:
    """Follow one job to its end and kill on the way; sometimes again before it has gone on."""
    rows: list[str] = []
    open_kills: list[tuple[float, str]] = []
    follower = Follower(sites, job)
    moment = draw.choice(MOMENTS[:3])
    while len(rows) + len(open_kills) < most:
        (site, what), rounds = draw.choice(TARGETS), draw.randrange(1, 12)
        name = "localhost" if site == "server" else draw.choice(UNITS)
        came = follower.until(partial(_is_moment, sites, follower, moment, rounds))
        if not came and moment != "tidying up":
            break  # it was over before
        time.sleep(draw.random() * 0.1)
        found = sites.kill(name, what)
        clock, was = time.monotonic(), follower.state()
        if not found:
            continue  # there is no such process at this moment
        if what != "job":
            time.sleep(draw.random())
            processes.stop(
                sites.kits[name], patience=0
            )  # as 'counterflow federation start' does: orphans hold sessions
            sites.start(name)
        at = f"{moment} (exchange {was.get('exchanges', 0)})" if moment == "in a round" else moment
        open_kills.append((clock, f"{job.id} | {at} | {name}, {what}"))
        if was.get("state") == "finished":
            break
        if draw.random() < 0.5 and what != "parent" and len(open_kills) < 4:
            moment = draw.choice(MOMENTS[:2])  # of the run that takes its place
            follower.until(partial(_is_lost, follower, was))
            continue
        follower.until(partial(_went_on, follower, was))
        rows += _closed(open_kills, before + len(rows))
        moment = draw.choice(MOMENTS[2:])
    follower.join(300)
    if follower.error is not None:
        raise follower.error
    assert not follower.is_alive(), sites.logs()
    return rows + _closed(open_kills, before + len(rows))


def _closed(kills: list[tuple[float, str]], before: int) -> list[str]:
    """The rows of kills after which it has now gone on."""
    now = time.monotonic()
    rows = [f"| {before + k} | {text} | {now - clock:.1f} | went on |" for k, (clock, text) in enumerate(kills, 1)]
    kills.clear()
    for row in rows:
        print(row, flush=True)
    return rows


def _is_lost(follower: Follower, was: dict[str, Any]) -> bool:
    """Whether the run that was killed is known to be lost, or has done without what was killed."""
    return follower.waiting or _went_on(follower, was)


def _is_moment(sites: Sites, follower: Follower, moment: str, rounds: int) -> bool:
    state = follower.state()
    if moment == "starting":  # a process for a job is there, and has said nothing yet
        there = any(one.job for name in ("localhost", *UNITS) for one in processes.running(sites.kits[name]))
        return there and (state.get("state") in (None, "failed") or state.get("exchanges") == 0)
    if moment == "opening":
        return state.get("state") == "running" and state["exchanges"] <= 1
    if moment == "in a round":
        return state.get("state") == "running" and state["exchanges"] >= rounds
    return state.get("state") == "finished"


def _went_on(follower: Follower, was: dict[str, Any]) -> bool:
    now = follower.state()
    if now.get("state") == "finished":
        return True
    if now.get("run") != was.get("run"):
        return bool(now.get("exchanges"))
    return bool(now.get("exchanges", 0) > was.get("exchanges", 0) + 2 * len(UNITS))  # more than what was on its way


# ---- network cuts

ADDRESSES = ("10.201.77.1", "10.201.77.2")
CUT_DEADLINE = 8


def cuts(sites: Sites) -> list[str]:
    """The turbine in a network namespace of its own; its cable is pulled."""
    if os.geteuid() or not shutil.which("ip"):
        return ["## Network cuts: left out, they need root and iproute2", ""]
    rows = []
    with _apart(sites, "turbine") as cable, _running(sites, cable.within):
        for name, seconds in (("shorter than the deadline", 4.0), ("longer than the deadline", 20.0)):
            follower = Follower(sites, sites.iterative(f"cut-{seconds:.0f}"), CUT_DEADLINE)
            follower.until(partial(_is_moment, sites, follower, "in a round", 10))
            cable.pull()
            time.sleep(1.0)
            was = follower.state()
            time.sleep(seconds - 1.0)
            still = follower.state().get("exchanges") == was["exchanges"] and not _went_on(follower, was)
            cable.plug()
            clock = time.monotonic()
            follower.until(partial(_went_on, follower, was))
            took = time.monotonic() - clock
            follower.until(lambda: False)
            if follower.error is not None:
                raise follower.error
            assert still, "it went on without the turbine"
            rows.append(f"| {name} | {seconds:.0f} | {took:.1f} | {follower.runs} | {sites.checked(follower.job)} |")
            print(rows[-1], flush=True)
        cable.pull()
        job = sites.private("cut-0")
        follower = Follower(sites, job, CUT_DEADLINE)
        time.sleep(15.0)
        assert follower.is_alive()
        assert follower.state().get("state") != "finished"
        cable.plug()
        clock = time.monotonic()
        follower.until(lambda: False)
        if follower.error is not None:
            raise follower.error
        took = time.monotonic() - clock
        rows.append(f"| from the beginning | 15 | {took:.1f} | {follower.runs} | {sites.checked(job)} |")
    return [
        f"## Network cuts: a plant in a network namespace, its link down; the deadline is {CUT_DEADLINE} s",
        "",
        "| cut | s | s after it until it went on (the last: until the end) | runs | difference from undisturbed |",
        "|---|---|---|---|---|",
        *rows,
        "",
    ]


class Apart:
    """The way to a plant's network namespace."""

    def __init__(self, space: str, link: str) -> None:
        self.within, self._link = ("ip", "netns", "exec", space), link

    def pull(self) -> None:
        _ip("link", "set", self._link, "down")

    def plug(self) -> None:
        _ip("link", "set", self._link, "up")


@contextlib.contextmanager
def _apart(sites: Sites, unit: str) -> Iterator[Apart]:
    """A namespace with one link out of it, at whose ends the server's port is carried on to 'localhost'."""
    port = party.read(sites.kits[unit].parent)["port"]
    space, (near, far) = f"counterflow{os.getpid()}", (f"cf{os.getpid()}a"[-15:], f"cf{os.getpid()}b"[-15:])
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); from flare_loopback import Cable; "
        "Cable((sys.argv[2], int(sys.argv[3])), ('127.0.0.1', int(sys.argv[3]))); time.sleep(1e6)"
    )
    _ip("netns", "add", space)
    try:
        _ip("link", "add", near, "type", "veth", "peer", "name", far, "netns", space)
        _ip("addr", "add", f"{ADDRESSES[0]}/30", "dev", near)
        _ip("-n", space, "addr", "add", f"{ADDRESSES[1]}/30", "dev", far)
        for command in (("link", "set", near, "up"), ("-n", space, "link", "set", far, "up"),
                        ("-n", space, "link", "set", "lo", "up")):  # fmt: skip
            _ip(*command)
        folder = str(Path(__file__).parents[1] / "tests")
        inside = ["ip", "netns", "exec", space, sys.executable, "-c", code, folder, ADDRESSES[0], str(port)]
        with Cable(("127.0.0.1", port), (ADDRESSES[0], port)), subprocess.Popen(inside) as carrier:
            try:
                yield Apart(space, near)
            finally:
                carrier.send_signal(signal.SIGKILL)
    finally:
        _ip("netns", "del", space)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@contextlib.contextmanager
def _running(sites: Sites, within: tuple[str, ...] = ()) -> Iterator[None]:
    """The sites, the turbine by another command."""
    honest = sites.start
    sites.start = lambda name: honest(name, within if name == "turbine" else ())  # type: ignore[method-assign,assignment]
    try:
        with sites:
            yield
    finally:
        sites.start = honest  # type: ignore[method-assign]


# ---- full disks


def disks(sites: Sites) -> list[str]:
    """The home of a plant, and that of the server, on a file system of a few megabytes that is filled up."""
    if os.geteuid():
        return ["## Full disks: left out, they need root", ""]
    rows = []
    for name, moment in (("turbine", 0), ("turbine", 10), ("localhost", 10)):
        home = sites.root / name
        with _small(home), sites:
            job = sites.iterative(f"full-{name}-{moment}")
            if not moment:
                _fill(home)
            follower = Follower(sites, job, 10)
            if moment:
                follower.until(partial(_is_moment, sites, follower, "in a round", moment))
                _fill(home)
            follower.join(150)
            assert not follower.is_alive(), sites.logs()
            assert follower.error is not None, "it does not mind a full disk"
            text = (sites.root / name / "site.log").read_text(errors="replace")
            assert "No space left on device" in text, text[-3000:]
            (home / "ballast").unlink()
            sites.follow(job, 10)
            said = str(follower.error).replace(str(sites.root), "...").replace("|", "/")[:160]
            when = f"after {moment} exchanges" if moment else "from the beginning"
            rows.append(f"| {name} | {when} | {type(follower.error).__name__}: {said} | {sites.checked(job)} |")
            print(rows[-1], flush=True)
    return [
        "## Full disks: the home of a site on a tmpfs with 4 MB left, filled to the last byte, then freed",
        "",
        "The log of the site says 'No space left on device'; the same job goes on when there is space.",
        "",
        "| site | full | what the operator is told | after it was freed: difference from undisturbed |",
        "|---|---|---|---|",
        *rows,
        "",
    ]


@contextlib.contextmanager
def _small(home: Path) -> Iterator[None]:
    """The folder on a small file system of its own, with all that was in it; and back again."""
    beside = home.with_name("beside")
    shutil.copytree(home, beside)
    used = sum(place.stat().st_size + 4096 for place in beside.rglob("*"))
    options = f"size={used + (4 << 20)},mode=700"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(home)], check=True)
    try:
        shutil.copytree(beside, home, dirs_exist_ok=True)
        yield
        shutil.rmtree(beside)
        shutil.copytree(home, beside)
    finally:
        subprocess.run(["umount", "--lazy", str(home)], check=True)
        shutil.copytree(beside, home, dirs_exist_ok=True)
        shutil.rmtree(beside)


def _fill(home: Path) -> None:
    with open(home / "ballast", "wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)):
                    pass


if __name__ == "__main__":
    main()
