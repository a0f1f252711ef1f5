"""A federation on one machine for tests and benchmarks: a server, plants and an operator, each with keys of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import counterflow as cf
from counterflow.federation.flare import jobs, processes
from counterflow.federation.flare.operator import FlareJobs, Operator
from counterflow.federation.job import Job
from counterflow.federation.sessions import CoordinatorSession
from counterflow.federation.sites import letters, party
from counterflow.federation.sites.coordinator_folder import CoordinatorFolder
from counterflow.federation.sites.plant_folder import PlantFolder

OPERATOR = "operator@loopback.local"
MEMBERS = ("boiler", "turbine")  # of a ``World``
CREATED = "2026-01-01T00:00:00+00:00"  # so that a job made again is the same job
OPEN_POLICY = """unit = "{unit}"
[leave]
methods = ["sufficient", "penalty", "lagrangian"]
[privacy]
demanded = false
"""


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


class World:
    """A coordinator and two plants that have asked to join, none of which runs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.plant = cf.random_plant(units=MEMBERS, rng=3)
        self.recording = self.plant.simulate(50, rng=4)
        self.coordinator = CoordinatorFolder.create(root / "coordinator", "waterworks", "localhost", 8102)
        for unit in MEMBERS:
            self.asking(root / unit, unit)

    def asking(self, folder: Path, unit: str, **other: Any) -> PlantFolder:
        given = {"federation": "waterworks", "fingerprint": self.coordinator.fingerprint, **other}
        return PlantFolder.create(folder, unit, recording=self.recording, model=self.plant.local(unit), **given)

    def join(self, unit: str = "boiler") -> Path:
        return self.root / unit / f"{unit}.join"


class Loopback:
    """Provision with ``make``, then use as a context manager: sites run inside it, and none of them after it."""

    def __init__(self, root: Path, recording: cf.Recording, models: Mapping[str, cf.LocalModel]) -> None:
        self.root, self.recording, self.units = root, recording, tuple(recording.names)
        self.kits: dict[str, Path] = {}
        self.models = models
        self.children: dict[str, Any] = {}
        self.operator: Operator | None = None

    def make(self, policy: str = OPEN_POLICY, budget: float = 100.0) -> Loopback:
        """A coordinator and plants that have been welcomed, each in a folder of its own."""
        (port,) = free_ports(1)
        coordinator = CoordinatorFolder.create(self.root / "localhost", "loopback", "localhost", port)
        self.kits = {"localhost": coordinator.kit.folder, OPERATOR: coordinator.folder / "operator"}
        for unit in self.units:
            told = "loopback", coordinator.fingerprint, self.recording, self.models[unit], policy.format(unit=unit)
            asking = PlantFolder.create(self.root / unit, unit, *told, f"{unit}_works", budget)
            joined = asking.welcome(coordinator.approve(letters.read_join(asking.join_file)))
            self.kits[unit] = joined.kit.folder
        return self

    def copied(self) -> Loopback:
        """The same sites in other folders, to be tampered with."""
        copy = Loopback(self.root / "copies", self.recording, self.models)
        for name in ("localhost", *self.units):
            folder = shutil.copytree(self.root / name, copy.root / name, ignore=shutil.ignore_patterns("*.log"))
            party = (PlantFolder if name in self.units else CoordinatorFolder).open(folder)
            party.prepare()
            copy.kits[name] = party.kit.folder
        copy.kits[OPERATOR] = copy.root / "localhost" / "operator"
        return copy

    def start(self, name: str, within: Sequence[str] = ()) -> None:
        """Start a site, even if a job's process of the one before is left; ``within``: a command that runs it."""
        place = self.kits[name].absolute()
        (place / "transfer").mkdir(exist_ok=True)
        with open(self.root / name / "site.log", "ab") as log:
            self.children[name] = subprocess.Popen(
                [*within, *processes.command(place)],
                cwd=place,
                env=processes.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self, name: str, what: str = "whole") -> int:
        """Kill -9 the "parent", the "job" processes or the "whole" of a site; returns how many processes."""
        found = [one for one in processes.running(self.kits[name]) if what == "whole" or one.job == (what == "job")]
        for one in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)
        if what != "job":
            self.children[name].wait()
        return len(found)

    def __enter__(self) -> Loopback:
        try:
            for name in ("localhost", *self.units):
                self.start(name)
            self.operator = until(lambda: Operator(self.kits[OPERATOR]), 60)
            deadline = time.monotonic() + 60
            while missing := set(self.units) - set(self.operator.plants()):
                assert time.monotonic() < deadline, f"not connected: {missing}"
                time.sleep(0.2)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        if self.operator is not None:
            self.operator.close()
        for name in (*self.units, "localhost"):
            processes.stop(self.kits[name], patience=2)
        for child in self.children.values():
            child.wait()

    def state(self, job: Job) -> dict[str, Any]:
        """How far a job is."""
        return party.state(self.root / "localhost", job.id)

    def job(self, name: str, method: str = "sufficient", **options: Any) -> Job:
        inputs = {unit.name: unit.inputs for unit in self.recording.units}
        return Job(name, method, inputs, options=options, dt=self.recording.dt, created=CREATED)

    def submit(self, job: Job, deadline: int = 60) -> str:
        assert self.operator is not None
        return self.operator.submit(
            jobs.write(self.root / "jobs", job.id, job.to_text(), job.part_texts(job.units), deadline)
        )

    def run(self, job: Job, patience: float = 60) -> CoordinatorSession:
        """Submit and wait until the coordinator says that it is over; its session, closed."""
        run = self.submit(job)
        state = self.ended(job, run, patience)
        if state["state"] != "finished":
            raise AssertionError(f"{state}\n{self.logs()}")
        return self.session(job)

    def follow(self, job: Job, deadline: int = 60, patience: float = 120, **more: Any) -> dict[str, Any]:
        """To the end of a job, whatever happens to the sites."""
        runs = FlareJobs(self.kits["localhost"], self.kits[OPERATOR], self.root / "localhost")
        return runs.follow(job, deadline=deadline, patience=patience, **more)

    def session(self, job: Job) -> CoordinatorSession:
        """A finished job's session, closed."""
        return until(lambda: self._session(job), 60)

    def _session(self, job: Job) -> CoordinatorSession:
        with CoordinatorFolder.open(self.root / "localhost").session(job) as session:
            return session

    def ended(self, job: Job, run: str, patience: float = 60) -> dict[str, Any]:
        """The state of a job when its run is over, or FLARE's own if the run never began."""
        assert self.operator is not None
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            state = self.state(job)
            if state.get("run") == run and state["state"] != "running":
                return state
            time.sleep(0.02)
            if time.monotonic() * 5 % 5 < 0.2:  # FLARE's own word, now and then
                flares = self.operator.state(run)
                if flares.startswith("FINISHED") and self.state(job).get("run") != run:
                    return {"state": flares, "run": run}
        raise AssertionError(f"{job.label} did not end in {patience} s\n{self.logs()}")

    def logs(self) -> str:
        """The last lines of every site."""
        texts = {name: (self.root / name / "site.log").read_text(errors="replace") for name in self.children}
        return "\n".join(f"== {name}\n" + "\n".join(text.splitlines()[-25:]) for name, text in texts.items())


def until(attempt: Callable[[], Any], patience: float) -> Any:
    """The first result of an attempt that raises no error of ours."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return attempt()
        except cf.CounterflowError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@contextlib.contextmanager
def rerouted(kit: Path) -> Iterator[Cable]:
    """A plant's line to the server goes through a cable from now on."""
    place = kit / "startup" / "fed_client.json"
    text = place.read_text()
    described = json.loads(text)
    service = described["servers"][0]["service"]
    host, port = service["target"].split(":")
    with Cable((host, int(port))) as cable:
        place.write_text(
            json.dumps(
                {
                    **described,
                    "servers": [{**described["servers"][0], "service": {**service, "target": f"{host}:{cable.port}"}}],
                }
            )
        )
        try:
            yield cable
        finally:
            place.write_text(text)


class Cable:
    """A TCP line from a port of its own to another, which can be cut: nothing passes then, and nobody is told."""

    def __init__(self, to: tuple[str, int], at: tuple[str, int] = ("127.0.0.1", 0)) -> None:
        self._to, self._over = to, threading.Event()
        self._whole = threading.Event()
        self._whole.set()
        self._ear = socket.create_server(at)
        self.port: int = self._ear.getsockname()[1]
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._listen, daemon=True).start()

    def cut(self) -> None:
        self._whole.clear()

    def mend(self) -> None:
        self._whole.set()

    def __enter__(self) -> Cable:
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._whole.set()
        for end in (self._ear, *self._ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _listen(self) -> None:
        while not self._over.is_set():
            try:
                near, _ = self._ear.accept()
                self._whole.wait()
                far = socket.create_connection(self._to)
            except OSError:
                continue
            self._ends += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    def _carry(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                self._whole.wait()
                other.sendall(data)
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_WR)
