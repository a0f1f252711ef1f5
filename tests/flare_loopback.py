"""A federation on one machine for tests and benchmarks: a server, plants and an operator, each with keys of its own."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import counterflow as cf
from counterflow.federation.coordinator_session import CoordinatorSession
from counterflow.federation.flare import certificates, jobs, kit, processes
from counterflow.federation.flare.certificates import Participant
from counterflow.federation.flare.operator import Operator
from counterflow.federation.flare.site import CoordinatorSite, PlantSite
from counterflow.federation.job import Job

OPERATOR = "operator@coordinator.org"
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


class Loopback:
    """Provision with ``make``, then use as a context manager: sites run inside it, and none of them after it."""

    def __init__(self, root: Path, recording: cf.Recording, models: Mapping[str, cf.LocalModel]) -> None:
        self.root, self.recording, self.units = root, recording, tuple(recording.names)
        self.kits: dict[str, Path] = {}
        self.models = models
        self.children: dict[str, Any] = {}
        self.operator: Operator | None = None

    def make(self, policy: str = OPEN_POLICY) -> Loopback:
        """Keys, certificates, kits and what each plant brings."""
        port, admin_port = free_ports(2)
        coordinator = self.root / "coordinator"
        parties = [
            Participant("localhost", "server", "coordinator"),
            Participant(OPERATOR, "operator", "coordinator"),
            *(Participant(unit, "plant", f"{unit}_works") for unit in self.units),
        ]
        (self.root / "user").mkdir(parents=True)
        with mock.patch.dict(os.environ, HOME=str(self.root / "user")):  # FLARE keeps notes in ~/.nvflare
            print_of_authority = certificates.found(coordinator, "loopback", "localhost", port, admin_port)

            def admit(who: Participant) -> None:
                own = self.root / who.name
                asked = certificates.request(own, "loopback", who)
                signed = certificates.approve(coordinator, asked, who)
                self.kits[who.name] = certificates.assemble(own, signed, print_of_authority)

            with ThreadPoolExecutor(2) as pool:
                list(pool.map(admit, parties))
        kit.harden(self.kits["localhost"], self.root / "localhost" / "home")
        for unit in self.units:
            kit.harden(self.kits[unit], self.root / unit / "home", unit)
            PlantSite.of_kit(self.kits[unit]).bind(self.recording, self.models[unit], policy.format(unit=unit))
        return self

    def copied(self) -> Loopback:
        """The same sites with kits of their own, to be tampered with."""
        copy = Loopback(self.root, self.recording, self.models)
        folder = self.root / "copies"
        copy.kits = {name: Path(shutil.copytree(place, folder / name)) for name, place in self.kits.items()}
        return copy

    def start(self, name: str) -> None:
        self.children[name] = processes.start(self.kits[name], self.root / name / "site.log")

    def __enter__(self) -> Loopback:
        try:
            for name in ("localhost", *self.units):
                self.start(name)
            self.operator = until(lambda: Operator(self.kits[OPERATOR]), 60)
            self.operator.wait_for_plants(self.units)
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

    @property
    def server(self) -> CoordinatorSite:
        return CoordinatorSite.of_kit(self.kits["localhost"])

    def job(self, name: str, method: str = "sufficient", **options: Any) -> Job:
        inputs = {unit.name: unit.inputs for unit in self.recording.units}
        return Job(name, method, inputs, options=options, dt=self.recording.dt)

    def submit(self, job: Job, deadline: int = 60) -> str:
        assert self.operator is not None
        return self.operator.submit(jobs.write(self.root / "jobs", job.id, job.to_text(), job.units, deadline))

    def run(self, job: Job, patience: float = 60) -> CoordinatorSession:
        """Submit and wait until the coordinator says that it is over; its session, closed."""
        run = self.submit(job)
        state = self.ended(job, run, patience)
        if state["state"] != "finished":
            raise AssertionError(f"{state}\n{self.logs()}")
        return until(lambda: self._session(job), patience)

    def _session(self, job: Job) -> CoordinatorSession:
        with self.server.session(job) as session:
            return session

    def ended(self, job: Job, run: str, patience: float = 60) -> dict[str, Any]:
        """The state of a job when its run is over, or FLARE's own if the run never began."""
        assert self.operator is not None
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            state = self.server.state(job.id)
            if state.get("run") == run and state["state"] != "running":
                return state
            time.sleep(0.02)
            if time.monotonic() * 5 % 5 < 0.2:  # FLARE's own word, now and then
                flares = self.operator.state(run)
                if flares.startswith("FINISHED") and self.server.state(job.id).get("run") != run:
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
