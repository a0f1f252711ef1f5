"""Controllers that answer over NVIDIA FLARE: the same numbers as in one process."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'counterflow[federation]'")

from closed_plant import OPEN, plant, recording
from flare_loopback import CREATED, Loopback

import counterflow as cf
from counterflow.federation.audit import FILE, Audit
from counterflow.federation.flare import processes
from counterflow.federation.job import Job
from counterflow.federation.parts import questions_about
from counterflow.federation.sites.plant_folder import PlantFolder

pytestmark = pytest.mark.filterwarnings("ignore")  # FLARE's own, in the operator's connection


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    sites = Loopback(tmp_path_factory.mktemp("federation"), recording(), plant().locals())
    try:
        sites.make('unit = "{unit}"\n' + OPEN + "[privacy]\ndemanded = false\n")
        with sites:
            yield sites
    finally:
        for name in ("localhost", *sites.units):
            if name in sites.kits:
                processes.stop(sites.kits[name], patience=0)


def test_controllers_answer_as_in_one_process(running: Loopback) -> None:
    data = running.recording
    job = Job("fit-1", "sufficient", {unit.name: unit.inputs for unit in data.units}, dt=data.dt, created=CREATED)
    state = running.ended(job, running.submit(job))
    assert state["state"] == "finished", f"{state}\n{running.logs()}"
    run = running.submit(questions_about(job))
    alone = cf.fit(data, running.models)
    turbine = PlantFolder.open(running.root / "turbine").view(job.id)
    found = turbine.effect("boiler", "turbine", {"feed": 0.5}, horizon=30)
    wanted = alone.effect("boiler", "turbine", {"feed": 0.5}, horizon=30)
    assert found.controllers == "reacting"
    assert found.caveats == wanted.caveats
    for name in ("mean", "lower", "upper"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
    world = turbine.counterfactual(add={"pump": {"stroke": 0.5}}, start=300, stop=360)["turbine"]
    twin = alone.counterfactual(data, add={"pump": {"stroke": 0.5}}, start=300, stop=360)["turbine"]
    np.testing.assert_array_equal(world.mean, twin.mean)
    for unit, answers in (("boiler", True), ("turbine", True), ("pump", False)):
        with Audit(running.root / unit / FILE) as audit:
            said = [record for record in audit.records() if record.get("kind") == "Reaction"]
        assert bool(said) == answers, unit
        assert {record["event"] for record in said} <= {"left"}
    assert running.operator is not None
    running.operator.abort(run)
