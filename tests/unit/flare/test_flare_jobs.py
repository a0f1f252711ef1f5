"""What crosses and what is deployed, without FLARE: envelopes, job files, kits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import counterflow as cf
from counterflow.federation.flare import VERSION, jobs, kit, require_flare
from counterflow.federation.job import Job
from counterflow.federation.sites import party
from counterflow.federation.sites.certificates import Participant
from counterflow.federation.sites.coordinator_folder import CoordinatorFolder
from counterflow.federation.sites.plant_folder import PlantFolder

JOB = json.dumps({"id": "fit-1", "braces": "{workspace}", "path": "os.system"})


def test_envelopes_come_back_as_they_went() -> None:
    messages = [(0, b""), (7, b"CFLW" * 100), (2**53 - 1, bytes(range(256)))]
    assert jobs.unpacked(jobs.packed(messages), "boiler") == messages


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"counterflow": 1},
        {"counterflow": 1, "messages": [], "more": 1},
        {"counterflow": 2, "messages": []},
        {"counterflow": 1, "messages": {}},
        {"counterflow": 1, "messages": [[1]]},
        {"counterflow": 1, "messages": [[True, b""]]},
        {"counterflow": 1, "messages": [[-1, b""]]},
        {"counterflow": 1, "messages": [[2**53, b""]]},
        {"counterflow": 1, "messages": [[1.0, b""]]},
        {"counterflow": 1, "messages": [[1, "text"]]},
        {"counterflow": 1, "messages": [[1, bytearray(b"x")]]},
        {"counterflow": 1, "messages": [[0, b""]] * (jobs.MOST + 1)},
    ],
)
def test_other_envelopes_are_refused(content: dict[str, Any]) -> None:
    with pytest.raises(cf.ProtocolError, match="boiler"):
        jobs.unpacked(content, "boiler")


def test_a_job_names_two_classes_and_carries_no_code(tmp_path: Path) -> None:
    made = jobs.write(tmp_path, "fit-1", JOB, dict.fromkeys(("boiler", "turbine"), JOB), deadline=30)
    files = {path.relative_to(made).as_posix(): path.read_text() for path in made.rglob("*") if path.is_file()}
    assert set(files) == {
        "meta.json",
        f"coordinator/config/{jobs.COORDINATOR_FILE}",
        *(f"plant-{k}/config/{jobs.PLANT_FILE}" for k in (1, 2)),
    }
    assert jobs.read_plant(files[f"plant-1/config/{jobs.PLANT_FILE}"]) == JOB
    assert jobs.read_coordinator(files[f"coordinator/config/{jobs.COORDINATOR_FILE}"]) == JOB
    meta = json.loads(files["meta.json"])
    assert meta["mandatory_clients"] == ["boiler", "turbine"]
    assert meta["min_clients"] == 2
    assert "{workspace}" not in "".join(files.values())  # FLARE would put a value there


def _changed(content: Any) -> list[Any]:
    """The same configuration with one thing more or other, everywhere."""
    out: list[Any] = []
    if isinstance(content, dict):
        out.append({**content, "more": 1})
        for key, value in content.items():
            out += [{**content, key: other} for other in _changed(value)]
            out.append({name: one for name, one in content.items() if name != key})
    elif isinstance(content, list):
        out.append([*content, {"path": "os.system", "args": {}}])
        for k, value in enumerate(content):
            out += [[*content[:k], other, *content[k + 1 :]] for other in _changed(value)]
    elif isinstance(content, str):
        out.append(content + ".x")
    else:
        out += [-1, "text"]
    return out


def test_a_configuration_with_anything_else_in_it_is_refused(tmp_path: Path) -> None:
    made = jobs.write(tmp_path, "fit-1", JOB, {"boiler": JOB})
    for name, read in (
        (f"plant-1/config/{jobs.PLANT_FILE}", jobs.read_plant),
        (f"coordinator/config/{jobs.COORDINATOR_FILE}", jobs.read_coordinator),
    ):
        variants = _changed(json.loads((made / name).read_text()))
        assert len(variants) > 20
        for variant in variants:
            with pytest.raises(cf.ProtocolError):
                read(json.dumps(variant))
        for text in ("", "[]", "null", "{" * 100_000, "{}" + " " * jobs.LARGEST):
            with pytest.raises(cf.ProtocolError):
                read(text)


def _prepared(folder: Path, kind: str, name: str) -> Path:
    kit.prepare(folder / "kit", Participant(name, kind, "works"), "works", ("host.example", 8102))
    return folder / "kit"


def test_a_hardened_plant_allows_one_class_and_leaves_no_default(tmp_path: Path) -> None:
    plant = _prepared(tmp_path, "plant", "boiler")
    local = plant / "local"
    assert sorted(path.name for path in local.iterdir()) == [
        "authorization.json",
        "comm_config.json",
        "log_config.json",
        "privacy.json",
        "resources.json",
    ]
    resources = json.loads((local / "resources.json").read_text())
    assert resources["class_allow_list"] == [kit.EXECUTOR]
    assert resources["class_list_enforcement_mode"] == "enforce"
    assert resources["allow_log_streaming"] is False
    assert "streamer" not in json.dumps(resources)
    rights = json.loads((local / "authorization.json").read_text())["permissions"]
    for role, granted in rights.items():
        for right in ("byoc", "shell_commands", "operate", "clone_job", "download_job", "server-predeployed-flwr"):
            assert granted[right] == "none", (role, right)
    privacy = json.loads((local / "privacy.json").read_text())
    assert privacy["default_scope"] == privacy["scopes"][0]["name"]
    assert [one["path"] for one in privacy["scopes"][0]["task_result_filters"]] == [kit.FILTER]
    assert (local / "authorization.json").stat().st_mode & 0o077 == 0


def test_a_hardened_server_keeps_its_files_at_home(tmp_path: Path) -> None:
    server = _prepared(tmp_path, "server", "host.example")
    resources = (server / "local" / "resources.json").read_text()
    assert "/tmp/nvflare" not in resources
    assert str(tmp_path) in resources
    assert json.loads(resources)["class_allow_list"] == [kit.CONTROLLER]
    (lock,) = [each for each in json.loads(resources)["components"] if each["id"] == "lock"]
    assert lock["args"] == {"own": "host.example"}, "else the server would let plants speak as itself"


@pytest.mark.parametrize(
    ("name", "kind", "organisation"),
    [
        ("", "plant", "o"),
        ("../boiler", "plant", "o"),
        ("boiler house", "plant", "o"),
        ("boiler", "admin", "o"),
        ("boiler", "operator", "o"),
        ("boiler", "plant", "o, OU=x"),
        ("b" * 64, "plant", "o"),
    ],
)
def test_names_that_no_certificate_should_have(name: str, kind: str, organisation: str) -> None:
    with pytest.raises(cf.OptionError, match="federation"):
        Participant(name, kind, organisation)


def test_another_version_of_flare_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterflow.federation.flare.metadata.version", lambda name: "2.8.0")
    with pytest.raises(cf.OptionError, match=VERSION):
        require_flare()


def test_a_session_is_handed_over_by_an_earlier_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job("fit-1", "sufficient", {"boiler": ["fuel"], "turbine": []})
    server = CoordinatorFolder(tmp_path, "waterworks", "SHA256:", "works", "localhost", 0, "o@x.y")
    earlier = server.session(job)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            earlier.close()

    monkeypatch.setattr("counterflow.federation.sites.party.time.sleep", sleep)
    with server.session(job) as session:
        assert len(waits) == 3
        assert len(session.outgoing()) == 2
        monkeypatch.setattr(party, "HANDOVER", 0.0)
        with pytest.raises(cf.StorageError, match="in use"):
            server.session(job)
    assert party.state(tmp_path, "fit-1") == {}
    party.write_state(tmp_path, "fit-1", state="running", exchanges=3)
    assert party.state(tmp_path, "fit-1") == {"state": "running", "exchanges": 3}


def test_a_plant_brings_its_own_part_only(tmp_path: Path) -> None:
    plant = cf.random_plant(units=["boiler", "turbine"], rng=1)
    recording, model = plant.simulate(50, rng=2), plant.local("boiler")
    boiler = PlantFolder(tmp_path, "waterworks", "SHA256:", "owner", "", 0, "boiler")
    boiler.put(recording, model, 'unit = "boiler"')
    own = boiler.own()
    assert (own.y == recording["boiler"].y).all()
    assert own.model is not None
    assert (own.model.A == model.A).all()
    assert cf.Recording.load(tmp_path / "log.safetensors").names == ("boiler",)
    with pytest.raises(cf.CounterflowError):
        boiler.put(recording, model, "unit = 7")
    (tmp_path / "model.safetensors").write_bytes(b"x")
    with pytest.raises(cf.StorageError, match="damaged or not a safetensors file"):
        boiler.own()
