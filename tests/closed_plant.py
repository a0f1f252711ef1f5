"""A plant that runs in closed loop, for tests of controllers between machines: two of its three units have one."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from loopback import Federation

import counterflow as cf
from counterflow.control import LawInput
from counterflow.errors import CounterflowError
from counterflow.federation.asking import PlantView
from counterflow.federation.audit import FILE, Audit
from counterflow.federation.controllers import Carry, Unanswered
from counterflow.federation.desk import PlantDesk
from counterflow.federation.job import Job
from counterflow.federation.parts import questions_about, save_server, save_unit, saved_server
from counterflow.federation.policy import Policy
from counterflow.federation.question_service import QuestionService
from counterflow.federation.refusal import Refusal
from counterflow.federation.sites.plant_folder import PlantFolder

ROWS = 600
BOILER_LAW, TURBINE_LAW = cf.PID(1.2, 8.0, limits=(-3.0, 3.0)), cf.PID(0.8, 12.0)
UNITS = (
    cf.Unit(
        "boiler", 2, ["feed", cf.Channel("valve", "%", (-3.0, 3.0)), "SP"], ["pressure", "flow"],
        loops=[cf.Loop("valve", "pressure", "SP")],
    ),
    cf.Unit("turbine", 2, ["load", "governor"], ["speed", "power"], loops=[cf.Loop("governor", "speed")]),
    cf.Unit("pump", 1, ["stroke"], ["head"]),
)  # fmt: skip


def plant() -> cf.Plant:
    """The boiler drives the turbine, the turbine's speed loads the boiler a little, the pump feeds the boiler."""
    A = np.array(
        [
            [0.85, 0.10, 0.03, 0.00, 0.05],
            [0.00, 0.80, 0.00, 0.00, 0.10],
            [0.15, 0.10, 0.80, 0.00, 0.00],
            [0.05, 0.00, 0.10, 0.70, 0.00],
            [0.00, 0.00, 0.00, 0.02, 0.75],
        ]
    )
    B = np.zeros((5, 6))
    B[:2, :2] = [[0.3, 0.25], [0.2, 0.0]]
    B[2:4, 3:5] = [[-0.2, 0.3], [0.1, 0.05]]
    B[4, 5] = 0.3
    return cf.Plant(units=UNITS, A=A, B=B, C=np.eye(5), Q=0.01 * np.eye(5), R=0.01 * np.eye(5))


def recording(rows: int = ROWS, seed: int = 0) -> cf.Recording:
    """Its log: feed, load, stroke and the boiler's set point are moved by hand, the turbine's set point unrecorded."""
    own, rng = plant(), np.random.default_rng(seed)
    w, v = 0.1 * rng.standard_normal((2, rows, 5))
    u, y, h = np.zeros((rows, 6)), np.zeros((rows, 5)), np.zeros(5)
    u[:, [0, 3, 5]] = np.repeat(rng.uniform(-1, 1, (rows // 10, 3)), 10, axis=0)
    u[:, 2] = np.repeat(rng.uniform(-1, 1, rows // 30), 30)
    aim = np.repeat(rng.uniform(-1, 1, rows // 40), 40)
    for t in range(rows):
        y[t] = h + v[t]
        if t:
            now = slice(t - 1, t + 1)
            u[t, 1] = BOILER_LAW.output(LawInput(u[None, t - 1 : t, 1], y[None, now, 0], u[None, now, 2], t))[0]
            u[t, 4] = TURBINE_LAW.output(LawInput(u[None, t - 1 : t, 4], y[None, now, 2], aim[None, now], t))[0]
        h = own.A @ h + own.B @ u[t] + w[t]
    parts = {"boiler": (y[:, :2], u[:, :3]), "turbine": (y[:, 2:4], u[:, 3:5]), "pump": (y[:, 4:], u[:, 5:])}
    return cf.Recording.from_arrays(parts, units=UNITS)


OPEN = '[ask]\nboiler = ["*"]\nturbine = ["*"]\npump = ["*"]\n[controllers]\nreact = true\n'


class Machines:
    """A finished fit between machines: a coordinator, and every plant's own side of the standing job."""

    def __init__(self, home: Path, job: Job, data: cf.Recording, models: Mapping[str, cf.LocalModel] | None) -> None:
        self.home, self.standing, self.data = home, questions_about(job), data
        self.sites = {n: PlantFolder(home / n, "works", "SHA256:", "owner", "", 0, n) for n in job.units}
        for name, site in self.sites.items():
            site.put(
                data, None if models is None else models[name], f'unit = "{name}"\n{OPEN}[privacy]\ndemanded = false\n'
            )
        self.own = {name: site.own() for name, site in self.sites.items()}
        policies = {name: Policy(name, demanded=False) for name in job.units}
        with Federation(home / "sessions", job, self.own, policies) as federation:
            found = federation.run()
            save_server(home, found.result)
            for name, own in self.own.items():
                session = federation.plant(name)
                save_unit(home / name, job.part_for(name), own, session.state, session.losses)
        self.coordinator = Audit(home / FILE)
        self.audits = {name: site.audit() for name, site in self.sites.items()}
        self.plants = {name: self.plant(name) for name in job.units}
        self.trials: list[tuple[str, bytes, bytes]] = []
        self.carry: Carry = self._carried

    def allow(self, unit: str, text: str) -> None:
        """Another policy of a plant, which it says at once."""
        path = self.sites[unit].folder / "policy.toml"
        path.write_text(f'unit = "{unit}"\n{text}\n[privacy]\ndemanded = false\n', encoding="utf-8")
        os.utime(path, ns=(time.time_ns(), time.time_ns()))

    def plant(self, unit: str) -> PlantDesk:
        job = Job.from_text(self.standing.part_for(unit).to_text())
        found = self.sites[unit].side(job)
        assert isinstance(found, PlantDesk)
        return found

    def _carried(self, unit: str, data: bytes, patience: float) -> bytes:
        try:
            ((_, reply),) = self.plants[unit].exchange([(0, data)], 0.0)
        except CounterflowError as error:
            raise Unanswered(Refusal.of(error, {})) from error
        self.trials.append((unit, data, reply))
        return reply

    def service(self) -> QuestionService:
        server = saved_server(self.home, str(self.standing.options["of"]))[1]
        return QuestionService(
            self.home, self.standing, server, self.coordinator, carry=lambda *asked: self.carry(*asked)
        )

    @contextmanager
    def running(self, unit: str) -> Iterator[PlantView]:
        """What a plant sees, while bytes are carried."""
        over, service = threading.Event(), self.service()

        def attend(name: str) -> None:
            answers: list[tuple[int, bytes]] = []
            while not over.is_set():
                answers = service.receive(name, self.plants[name].exchange(answers, 0.02, over.is_set))

        with ThreadPoolExecutor(len(self.plants)) as pool:
            for plant in self.plants.values():
                service.receive(plant.guard.unit, plant.exchange([], 0.0))
            attending = [pool.submit(attend, name) for name in self.plants]
            try:
                yield self.sites[unit].view(patience=30.0)
            finally:
                over.set()
        for each in attending:
            each.result()

    def close(self) -> None:
        for each in (self.coordinator, *self.audits.values(), *self.plants.values()):
            each.close()
