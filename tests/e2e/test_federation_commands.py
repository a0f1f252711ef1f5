"""The commands of a federation on one machine: the runbook as written, and a plant that is cut off and comes back.

All keys are encrypted; those of ``test_flare.py`` are not.
"""

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
from counterflow.federation.sites import keys, members, party
from counterflow.federation.sites.coordinator_folder import CoordinatorFolder
from counterflow.federation.sites.plant_folder import PlantFolder
from counterflow.plant.model_file import load_model

pytestmark = pytest.mark.filterwarnings("ignore")  # FLARE's own, in the operator's connection

UNITS = ("boiler", "turbine", "condenser")
ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "three-plants" / "run.sh"
RUNBOOK = ROOT / "docs" / "how-to" / "federation.md"


@pytest.fixture(scope="module", autouse=True)
def _encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    secret = tmp_path_factory.mktemp("secret") / "passphrase"
    secret.touch(0o600)
    secret.write_text("correct horse battery staple\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(keys.VARIABLE, str(secret))
        yield


def records(plant: Path) -> list[dict[str, Any]]:
    """What a plant has written down."""
    with Audit(plant / FILE) as audit:
        return list(audit.records())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the runbook has run; whatever of it still runs at the end is ended."""
    root = tmp_path_factory.mktemp("federation")
    try:
        yield root
    finally:
        for place in root.glob("*/party.json"):
            party.end_supervisor(place.parent, 10)
            site = PlantFolder if party.role(place.parent) == party.PLANT else CoordinatorFolder
            processes.stop(site.open(place.parent).kit.folder, patience=1)


def test_the_runbook_as_it_is_written(folder: Path) -> None:
    section = RUNBOOK.read_text("utf-8").split("## The runbook")[1].split("\n## ")[0]
    commands = re.findall(r"^    (counterflow .*)", section, re.MULTILINE)
    assert 10 <= len(commands) <= 12
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ,
        "PORT": str(port),
        "COUNTERFLOW": f"{sys.executable} -m counterflow.cli",
    }
    done = subprocess.run(
        ["bash", str(SCRIPT), str(folder)], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{_logs(folder)}"
    for line in commands:  # each was run, to the letter but for the port and the fingerprint
        words = line.replace("8102", str(port)).split(' "$', 1)[0].removesuffix("\\").strip()
        assert f"== {words}" in done.stdout
    assert "fit-1: converged in" in done.stdout
    assert done.stdout.count("is stopped") == 4
    coordinator = CoordinatorFolder.open(folder / "coordinator")
    job = coordinator.job("fit-1")
    assert job is not None
    with coordinator.session(job) as session:
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
    assert (first["id"], first["state"], first["bytes_up"]) == ("fit-1", "finished", wanted.traffic.bytes_up)
    asked = json.loads((folder / "answer.json").read_text())
    effect = wanted.effect("boiler", "turbine", {"valve": 0.1}, len(asked["mean"]), duration=10)
    np.testing.assert_allclose(asked["mean"], effect.mean, rtol=EXACT, atol=EXACT)
    np.testing.assert_allclose(asked["upper"], effect.upper, rtol=EXACT, atol=EXACT)
    assert "have not opened to 'condenser'" in done.stderr
    told = _json("status", str(folder / "boiler-site"))
    assert (told["welcomed"], told["audit"]["in_order"], told["budget"]["spent"]) == (True, True, 0.0)
    assert not list(folder.rglob("*.key")), "keys are plain in memory only, while they are used"
    assert told["jobs"][0]["id"] == "fit-1"
    assert told["jobs"][0]["messages"] == 1
    _the_console_at_the_coordinator_sees_states(
        folder / "coordinator", wanted.effect("boiler", "turbine", {"valve": 0.1}, 20)
    )


def _the_console_at_the_coordinator_sees_states(folder: Path, wanted: cf.Effect) -> None:
    from fastapi.testclient import TestClient

    from counterflow.console.app import create

    page = TestClient(create(folder))
    assert [seat["id"] for seat in page.get("/api/seats").json()["seats"]] == ["server"]
    changes = [{"unit": "boiler", "input": "valve", "size": 0.1}]
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
    assert processes.running(CoordinatorFolder.open(coordinator).kit.folder), "the site outlives its supervisor"
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
    welcome = _json("approve", str(coordinator), asked["request"], "--yes")["members"][0]["welcome"]
    assert _json("join", str(plant), "--welcome", welcome)["state"] == "joined"
    assert records(plant) == audited, "what has left is remembered"

    # from now on this plant demands privacy, and its owner's word: without it says no; with it, it pays
    policy = folder / "private.toml"
    text = 'unit = "boiler"\n[privacy]\ndemanded = true\nepsilon = 1.0\nledger = "budgets"\napproval = "each"\n'
    policy.write_text(text)
    _run("join", str(plant), "--policy", str(policy))
    # and the federation gets another authority, for which the old one vouches; the plant has not heard of it yet
    assert "is stopped" in _run("stop", str(coordinator))
    renewed = _json("renew", str(coordinator), "--authority")
    assert "is up" in _run("start", str(coordinator), "--detach")
    assert "is up" in _run("start", str(plant), "--detach")
    _until(lambda: _connected(coordinator) == ["boiler"])
    told = _json("status", str(coordinator))
    assert [one["unit"] for one in told["removed"]] == ["boiler"]
    assert {one["unit"]: one["connected"] for one in told["plants"]}["boiler"]
    alone = ("fit", str(coordinator), "--units", "boiler", "--patience", "60")
    assert _refused(*alone, "--id", "second", text="unit 'boiler' refused by privacy.demanded (line 3 of its policy")
    assert "privacy.demanded" in str(records(plant))
    private = (*alone, "--id", "third", "--epsilon", "1", "--delta", "1e-6")
    assert _refused(*private, text="unit 'boiler' refused by privacy.approval (line 6 of its policy")
    assert _json("status", str(plant))["budget"]["left"] == 3.0
    # the owner approves; the plant takes the new authority's certificate; the old authority goes
    assert _json("approve-job", str(plant), "third", "--yes")["privacy"]["epsilon"] == 1.0
    for place in (plant, coordinator):
        assert "is stopped" in _run("stop", str(place))
    _run("renew", str(coordinator), "--finish")
    told_waiting = _run("start", str(plant), "--welcome", renewed["welcomes"]["boiler"], "--detach")
    assert "connects as soon as it is" in told_waiting, "a plant does not wait a minute for its coordinator"
    assert PlantFolder.open(plant).fingerprint == renewed["fingerprint"]
    assert "is up" in _run("start", str(coordinator), "--detach")
    _until(lambda: _connected(coordinator) == ["boiler"], patience=20)
    done = _json(*private)
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
    return list(members.presence(coordinator).get("plants", []))


def _until(true: Callable[[], object], patience: float = 30) -> None:
    deadline = time.monotonic() + patience
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _nothing_runs(folder: Path) -> None:
    for place in sorted(folder.glob("*/party.json")):
        assert party.supervisor(place.parent) is None, place
        site = PlantFolder if party.role(place.parent) == party.PLANT else CoordinatorFolder
        assert not processes.running(site.open(place.parent).kit.folder), place


def _logs(folder: Path) -> str:
    """The last lines of every log."""
    texts = [(place, place.read_text(errors="replace").splitlines()[-25:]) for place in folder.glob("*/*.log")]
    return "\n".join(f"== {place}\n" + "\n".join(lines) for place, lines in texts)
