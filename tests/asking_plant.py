"""A coordinator and a plant that asks, for tests of questions between machines."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from loopback import Federation
from tolerances import EXACT

import counterflow as cf
from counterflow.exchange.task import UnitData
from counterflow.federation.asking import RemoteServer
from counterflow.federation.audit import FILE, SITE, Audit
from counterflow.federation.desk import PlantDesk, QuestionBox
from counterflow.federation.guard import Guard
from counterflow.federation.job import Job
from counterflow.federation.parts import questions_about, save_server, save_unit, saved_server, saved_unit
from counterflow.federation.policy import Policy
from counterflow.federation.question_service import QuestionService
from counterflow.sealed_file import write_json
from counterflow.sealed_log import SealedLogs

UNITS = ("boiler", "turbine", "pump")
PLANT = cf.random_plant(units=UNITS, rng=3)
RECORDING = PLANT.simulate(600, rng=4)
OPEN = '[ask]\nboiler = ["*"]\nturbine = ["*"]\npump = ["*"]\n'
TURBINE = UnitData(RECORDING["turbine"].unit, RECORDING["turbine"].y, RECORDING["turbine"].u, PLANT.locals()["turbine"])


class Asking:
    """A coordinator and one plant that asks, with bytes carried between them in a thread."""

    def __init__(self, home: Path, job: Job, asker: UnitData) -> None:
        self.home, self.job, self.asker = home, job, asker
        self.unit = asker.unit.name
        self.box = QuestionBox(home / self.unit / FILE)
        self.policy_file = home / self.unit / "policy.toml"
        self.allow()
        self.standing = questions_about(job)
        self.audits = [Audit(home / FILE), Audit(home / self.unit / FILE)]
        for unit in job.units:
            if unit != self.unit:
                self.say(unit, OPEN)

    def allow(self, text: str = OPEN) -> None:
        self.policy_file.parent.mkdir(parents=True, exist_ok=True)
        self.policy_file.write_text(f'unit = "{self.unit}"\n{text}', encoding="utf-8")

    def empty(self) -> bool:
        """Whether the box holds nothing at all."""
        with SealedLogs(self.home / self.unit / FILE, SITE) as logs:
            return not list(logs.rows("questions"))

    def say(self, unit: str, text: str) -> None:
        """Another plant says who may ask about it."""
        policy = Policy.from_text(f'unit = "{unit}"\n{text}')
        (self.home / "terms").mkdir(exist_ok=True)
        write_json(self.home / "terms" / f"{unit}.json", "terms of a plant", policy.asking())

    def service(self) -> QuestionService:
        return QuestionService(self.home, self.standing, saved_server(self.home, self.job.id)[1], self.audits[0])

    def plant(self) -> PlantDesk:
        def renewed() -> Guard:
            return Guard(own, self.asker, Policy.read(self.policy_file), self.audits[1])

        own = self.standing.part_for(self.unit)
        return PlantDesk(self.box, own, renewed, self.policy_file)

    def remote(self, patience: float = 20.0) -> RemoteServer:
        saved = saved_unit(self.home / self.unit, self.unit)
        return RemoteServer(saved, self.box, patience)

    @contextmanager
    def running(self) -> Iterator[RemoteServer]:
        over, service, plant = threading.Event(), self.service(), self.plant()
        troubles: list[BaseException] = []

        def carry() -> None:
            try:
                answers: list[tuple[int, bytes]] = []
                while not over.is_set():
                    answers = service.receive(self.unit, plant.exchange(answers, 0.05, over.is_set))
            except BaseException as error:
                troubles.append(error)

        thread = threading.Thread(target=carry)
        thread.start()
        try:
            yield self.remote()
        finally:
            over.set()
            thread.join()
            assert not troubles, troubles


def fitted(home: Path, job: Job, models: Any, data: cf.Recording = RECORDING) -> Asking:
    """A finished job, with the parts of the server and of the asking unit, the turbine, kept."""
    policies = {name: Policy(name, methods=(job.method,), demanded=False) for name in job.units}
    units = {
        name: UnitData(data[name].unit, data[name].y, data[name].u, None if models is None else models[name])
        for name in job.units
    }
    with Federation(home / "sessions", job, units, policies) as federation:
        found = federation.run()
        save_server(home, found.result)
        session = federation.plant("turbine")
        save_unit(home / "turbine", job.part_for("turbine"), units["turbine"], session.state, session.losses)
    return Asking(home, job, units["turbine"])


def job_of(method: str = "sufficient", **given: Any) -> Job:
    return Job("fit-1", method, {unit.name: unit.inputs for unit in RECORDING.units}, **given)


def same(found: Any, wanted: Any) -> None:
    """All numbers of two answers, with their intervals and windows."""

    def alike(got: Any, value: Any, name: str) -> None:
        if isinstance(value, Mapping):
            assert set(got) == set(value)
            for key in value:
                alike(got[key], value[key], f"{name} {key}")
        elif isinstance(value, (np.ndarray, float)):
            np.testing.assert_allclose(got, value, rtol=EXACT, atol=EXACT, err_msg=name)
        else:
            assert got == value, name

    names = [each.name for each in fields(wanted) if each.name not in ("about", "latest")]
    assert names
    for name in (*names, "channels", "caveats", "level", *(end for end in ("lower", "upper") if hasattr(wanted, end))):
        alike(getattr(found, name), getattr(wanted, name), name)
    if wanted.errors is not None:  # how rows go together: the same windows come of it
        for end in ("value", "lower", "upper"):
            alike(*(getattr(each.window().mean, end) for each in (found, wanted)), f"window {end}")
