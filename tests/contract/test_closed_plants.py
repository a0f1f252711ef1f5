"""Bytes that reach a plant hold nothing of a plant that is closed to it: no input, no limit, no note."""

from __future__ import annotations

import base64
import re
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from loopback import Federation

import counterflow as cf
from counterflow.exchange.task import UnitData
from counterflow.federation.flare import jobs
from counterflow.federation.job import Job
from counterflow.federation.parts import questions_about
from counterflow.federation.policy import Policy
from counterflow.federation.question_service import QuestionService
from counterflow.plant import Channel, Recording, Unit
from counterflow.protocol import Answer, Ask, Change, Message, Openings, Refused, Terms, decode, encode

LOW, HIGH, ORDER = -98765.4375, 98765.4375, 3
SECRET = ("geheim-ventil", "geheim-pumpe", "geheim-einheit", "98765", "always move together", "never varies")
BOILER = Unit(
    "boiler", 2, [Channel("geheim-ventil", "geheim-einheit", (LOW, HIGH)), Channel("geheim-pumpe", "x", (LOW, HIGH))], 4
)
UNITS = (BOILER, Unit("turbine", 2, ["speed"], 4), Unit("pump", 2, ["flow", "valve"], 4))
PLANT = cf.random_plant(units=UNITS, rng=3)
TERMS = {
    "boiler": '{"unit": "boiler", "ask": {}, "answers": true}',
    "pump": '{"unit": "pump", "ask": {"turbine": ["flow"]}, "answers": true}',
    "turbine": '{"unit": "turbine", "ask": {}, "answers": true}',
}


def _recording() -> Recording:
    """The boiler's two inputs always move together, which is noted; its model is wrong, which checks show."""
    inputs = {name: np.array(part.u) for name, part in ((n, PLANT.simulate(400, rng=4)[n]) for n in PLANT.names)}
    inputs["boiler"][:, 1] = inputs["boiler"][:, 0]
    return PLANT.simulate(400, rng=4, inputs=inputs)


@pytest.fixture(scope="module")
def reached(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """All bytes that reach the turbine: the job, the messages of the fit, and answers to everything it can ask."""
    home, recording = tmp_path_factory.mktemp("closed"), _recording()
    models = {**PLANT.locals(), "boiler": replace(PLANT.local("boiler"), A=0.3 * PLANT.local("boiler").A)}
    job = Job("fit-1", "sufficient", {unit.name: unit.inputs for unit in UNITS})
    units = {n: UnitData(recording[n].unit, recording[n].y, recording[n].u, models[n]) for n in recording.names}
    found = _carried(job, home)
    policies = {name: Policy(name, demanded=False) for name in units}
    with Federation(home, job, units, policies) as federation:

        def watch(session: Federation, moment: str, unit: str) -> None:
            if moment == "before delivery" and unit == "turbine":
                found.extend(m.data for m in session.coordinator.outgoing() if m.unit == unit)

        server = federation.run(watch).server
    assert {"undetermined", "check-whiteness-fail"} <= {c.code for c in server.caveats if "boiler" in c.units}
    standing = questions_about(job)
    found += _carried(standing, home)
    service = QuestionService(home, standing, server, None)
    for unit, text in TERMS.items():
        service.receive(unit, [(0, encode(Terms(unit, text)))])
    flow = Change("turbine", "pump", False, 0, "", np.ones((6, 1))).naming(["flow"])
    boiler = Change("turbine", "boiler", False, 0, "", np.ones((6, 2)))
    asked: list[list[Message]] = [[Openings("turbine")]]
    asked += [[flow, Ask("turbine", kind, 0, 5)] for kind in ("effect", "paths", "restoration", "forecast")]
    asked += [
        [replace(flow, first=300, absolute=True, values=np.ones((5, 1))), Ask("turbine", "counterfactual", 300, 5)]
    ]
    asked += [[Ask("turbine", "attribution", 300, 5)], [Ask("turbine", "forecast", 0, 5)]]
    for named in (boiler, boiler.naming(["a", "b"]), replace(boiler, values=np.ones((6, 5)))):
        asked.append([named, Ask("turbine", "effect", 0, 5)])
    asked.append([flow.naming(["valve"]), Ask("turbine", "effect", 0, 5)])
    for messages in asked:
        found += [data for _, data in service.receive("turbine", [(1, encode(message)) for message in messages])]
    return found


def _carried(job: Job, home: Path) -> list[bytes]:
    """What FLARE takes to the turbine: the job's meta data and this plant's configuration."""
    made = jobs.write(home / "written", job.id, job.to_text(), job.part_texts(job.units))
    number = list(job.units).index("turbine") + 1
    texts = [(made / "meta.json").read_bytes(), (made / f"plant-{number}" / "config" / jobs.PLANT_FILE).read_bytes()]
    return texts + [base64.b64decode(found) for text in texts for found in re.findall(rb'"job": "([^"]+)"', text)]


def test_nothing_of_a_closed_plant_reaches_another(reached: list[bytes]) -> None:
    assert len(reached) > 15
    for data in reached:
        for secret in SECRET:
            assert secret.encode() not in data, (secret, data[:200])
            assert secret.encode("ascii", "backslashreplace") not in data
        for limit in (LOW, HIGH):
            assert struct.pack("<d", limit) not in data


def test_what_is_open_is_told(reached: list[bytes]) -> None:
    read = [decode(data) for data in reached if data.startswith(b"CFLW")]
    (opened,) = [message for message in read if isinstance(message, Openings)]
    assert opened.channels["boiler"] == []
    assert [channel["name"] for channel in opened.channels["pump"]] == ["flow"]  # type: ignore[index]
    answers = {message.kind: message for message in read if isinstance(message, Answer) and message.caveats}
    assert {"effect", "paths", "forecast", "counterfactual", "attribution"} <= set(answers)
    told = answers["effect"].noted
    assert "closed-units" in [caveat.code for caveat in told]
    assert all(set(caveat.units) <= {"turbine"} for caveat in told), "of the pump, not every input is open"
    assert len([message for message in read if isinstance(message, Refused)]) >= 3


def test_a_reason_that_is_about_a_closed_unit_is_not_told(tmp_path: Path) -> None:
    """The pump's open input moves together with one of the boiler, which is closed: that it does is the boiler's."""
    recording = PLANT.simulate(400, rng=4)
    u = np.array(recording["pump"].u)
    u[:, 0] = recording["boiler"].u[:, 0]
    again = Recording({n: replace(recording[n], u=u) if n == "pump" else recording[n] for n in recording.names}, 1.0)
    server = cf.fit(again, PLANT.locals()).server
    job = questions_about(Job("fit-1", "sufficient", {unit.name: unit.inputs for unit in UNITS}))
    service = QuestionService(tmp_path, job, server, None)
    for unit, text in TERMS.items():
        service.receive(unit, [(0, encode(Terms(unit, text)))])
    flow = Change("turbine", "pump", False, 0, "", np.ones((6, 1))).naming(["flow"])
    ((_, data),) = service.receive("turbine", [(1, encode(flow)), (1, encode(Ask("turbine", "effect", 0, 5)))])
    refusal = decode(data)
    assert isinstance(refusal, Refused)
    assert refusal.error == "UnidentifiedError"
    assert b"geheim" not in data
    assert b"together" not in data
