"""The commands of a federation on one machine: the example's script, and a plant that is cut off and comes back."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tolerances import EXACT
from typer.testing import CliRunner

import counterflow as cf

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'counterflow[federation]'")

from counterflow.cli import app
from counterflow.federation.audit import FILE, Audit
from counterflow.federation.flare import processes
from counterflow.federation.sites import members, party
from counterflow.federation.sites.coordinator_folder import CoordinatorFolder
from counterflow.federation.sites.plant_folder import PlantFolder
from counterflow.plant.model_file import load_model

pytestmark = pytest.mark.filterwarnings("ignore")  # FLARE's own, in the operator's connection

UNITS = ("boiler", "turbine", "condenser")
SCRIPT = Path(__file__).parents[2] / "examples" / "three-plants" / "run.sh"


def records(plant: Path) -> list[dict[str, Any]]:
    """What a plant has written down."""
    with Audit(plant / FILE) as audit:
        return list(audit.records())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the example has run; whatever of it still runs at the end is ended."""
    root = tmp_path_factory.mktemp("federation")
    try:
        yield root
    finally:
        for place in root.glob("*/party.json"):
            party.end_supervisor(place.parent, 10)
            site = PlantFolder if party.role(place.parent) == party.PLANT else CoordinatorFolder
            kit = site.open(place.parent).kit
            if kit is not None:
                processes.stop(kit, patience=1)


def test_three_plants_from_one_script(folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "PORT": str(port),
        "COUNTERFLOW": f"{sys.executable} -m counterflow.cli",
        "STEPS": "300",
    }
    done = subprocess.run(
        ["bash", str(SCRIPT), str(folder)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{_logs(folder)}"
    assert "first: converged in" in done.stdout
    assert done.stdout.count("is stopped") == 4
    coordinator = CoordinatorFolder.open(folder / "coordinator")
    job = coordinator.job("first")
    assert job is not None
    with coordinator.site.session(job) as session:
        found = session.result().server
    whole = cf.Recording.load(folder / "data" / "recording.safetensors")
    recording = cf.Recording({unit: whole[unit] for unit in job.units}, whole.dt)
    models = {unit: load_model(folder / "data" / "models" / f"{unit}.safetensors") for unit in UNITS}
    wanted = cf.fit(recording, models)
    np.testing.assert_allclose(found.A, wanted.plant.A, rtol=EXACT, atol=EXACT)
    np.testing.assert_allclose(found.B, wanted.plant.B, rtol=EXACT, atol=EXACT)
    _nothing_runs(folder)
    told = _json("status", str(folder / "coordinator"))
    assert (told["running"], [one["unit"] for one in told["plants"]]) == (False, sorted(UNITS))
    (first, *_) = told["jobs"]
    assert (first["id"], first["state"], first["bytes_up"]) == ("first", "finished", wanted.traffic.bytes_up)
    asked = json.loads((folder / "answer.json").read_text())
    effect = wanted.effect("boiler", "turbine", {"u1": 1.0}, 20)
    np.testing.assert_allclose(asked["mean"], effect.mean, rtol=EXACT, atol=EXACT)
    np.testing.assert_allclose(asked["upper"], effect.upper, rtol=EXACT, atol=EXACT)
    assert "have not opened to 'condenser'" in done.stderr
    told = _json("status", str(folder / "boiler-site"))
    assert (told["welcomed"], told["audit"]["in_order"], told["budget"]) == (True, True, None)
    assert told["jobs"][0]["id"] == "first"
    assert told["jobs"][0]["messages"] == 1
    _the_console_at_the_coordinator_sees_states(folder / "coordinator", effect)


def _the_console_at_the_coordinator_sees_states(folder: Path, wanted: cf.Effect) -> None:
    from fastapi.testclient import TestClient

    from counterflow.console.app import create

    page = TestClient(create(folder))
    assert [seat["id"] for seat in page.get("/api/seats").json()["seats"]] == ["server"]
    changes = [{"unit": "boiler", "input": "u1", "size": 1.0}]
    told = page.post("/api/seats/server/effect", json={"effect": "turbine", "changes": changes, "horizon": 20}).json()
    for drawn in told["drawn"]:
        state = int(drawn["channel"].split()[1]) - 1
        np.testing.assert_allclose(drawn["mean"], wanted.states[:, state], rtol=EXACT, atol=EXACT)


def test_a_removed_plant_is_refused_and_comes_back_with_another_key(folder: Path) -> None:
    """On the federation of the script, with a supervisor that was killed on the way."""
    coordinator, plant = folder / "coordinator", folder / "boiler-site"
    assert "is up" in _run("start", str(coordinator), "--detach")
    first = party.supervisor(coordinator)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    _until(lambda: party.supervisor(coordinator) is None)
    assert processes.running(CoordinatorFolder.open(coordinator).kit), "the site outlives its supervisor"
    assert "is up" in _run("start", str(coordinator), "--detach")  # and the next one ends it
    assert "is up" in _run("start", str(plant), "--detach")
    _until(lambda: _connected(coordinator) == ["boiler"])

    told = _json("remove", str(coordinator), "boiler")
    assert told["server"] == "cut off"
    _until(lambda: not _json("status", str(plant))["connected"])
    log = coordinator / party.SITE_LOG
    refused = "Counterflow refuses a connection: its certificate is not that of a member"
    _until(lambda: refused in log.read_text(errors="replace"))  # it tries again, and is refused
    assert _refused("approve", str(coordinator), str(plant / "boiler.join"), "--yes", text="was removed")

    assert _refused("join", str(plant), "--new-key", text="stop it first")
    assert "is stopped" in _run("stop", str(plant))
    audited = records(plant)
    before = PlantFolder.open(plant).key
    asked = _json("join", str(plant), "--new-key")
    assert PlantFolder.open(plant).key != before
    assert _refused("start", str(plant), text="was not welcomed yet")
    welcome = _json("approve", str(coordinator), asked["request"], "--yes")["welcome"]
    assert _json("join", str(plant), "--welcome", welcome)["state"] == "joined"
    assert records(plant) == audited, "what has left is remembered"

    # from now on this plant demands privacy: without it says no, and the reason stays with it; with it, it pays
    policy = folder / "private.toml"
    policy.write_text('unit = "boiler"\n[privacy]\ndemanded = true\nepsilon = 1.0\nledger = "budgets"\n')
    _run("join", str(plant), "--policy", str(policy))
    budget = ("privacy", "open", str(plant / "budgets"), "--unit", "boiler", "--epsilon", "3", "--delta", "1e-6")
    assert CliRunner().invoke(app, budget).exit_code == 0
    assert "is up" in _run("start", str(plant), "--detach")
    _until(lambda: _connected(coordinator) == ["boiler"])
    told = _json("status", str(coordinator))
    assert [one["unit"] for one in told["removed"]] == ["boiler"]
    assert {one["unit"]: one["connected"] for one in told["plants"]}["boiler"]
    alone = ("fit", str(coordinator), "--units", "boiler", "--patience", "60")
    assert _refused(*alone, "--id", "second", text="refused")
    assert "privacy.demanded" in str(records(plant))
    assert _json("status", str(plant))["budget"]["left"] == 3.0
    done = _json(*alone, "--id", "third", "--epsilon", "1", "--delta", "1e-6")
    assert done["units"] == ["boiler"], done
    assert 1.5 < _json("status", str(plant))["budget"]["left"] < 2.5
    for place in (plant, coordinator):
        assert "is stopped" in _run("stop", str(place))
    _nothing_runs(folder)


def _run(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["federation", *arguments])
    assert done.exit_code == 0, f"{arguments}: {done.output} {done.exception!r}"
    return re.sub(r"\s+", " ", done.output)


def _json(*arguments: str) -> dict[str, Any]:
    return dict(json.loads(_run(*arguments, "--format", "json")))


def _refused(*arguments: str, text: str) -> bool:
    done = CliRunner().invoke(app, ["federation", *arguments])
    assert (done.exit_code, text in done.output) == (2, True), f"{done.output} {done.exception!r}"
    return True


def _connected(coordinator: Path) -> list[str]:
    return list(members.presence(coordinator / members.PRESENCE).get("plants", []))


def _until(true: Callable[[], object], patience: float = 30) -> None:
    deadline = time.monotonic() + patience
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _nothing_runs(folder: Path) -> None:
    for place in sorted(folder.glob("*/party.json")):
        assert party.supervisor(place.parent) is None, place
        site = PlantFolder if party.role(place.parent) == party.PLANT else CoordinatorFolder
        kit = site.open(place.parent).kit
        assert kit is None or not processes.running(kit), place


def _logs(folder: Path) -> str:
    """The last lines of every log."""
    texts = [(place, place.read_text(errors="replace").splitlines()[-25:]) for place in folder.glob("*/*.log")]
    return "\n".join(f"== {place}\n" + "\n".join(lines) for place, lines in texts)
