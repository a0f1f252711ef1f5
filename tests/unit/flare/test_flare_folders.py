"""Folders of coordinator and plants: who may join, what a hostile file can do, and who is a member."""

from __future__ import annotations

import json
import shutil
import stat
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import counterflow as cf

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'counterflow[federation]'")

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from flare_loopback import MEMBERS, World

from counterflow.cli import output
from counterflow.cli.federation_members import request_parts
from counterflow.federation.flare import kit
from counterflow.federation.sites import certificates, keys, letters, members, party
from counterflow.federation.sites.coordinator_folder import CoordinatorFolder
from counterflow.federation.sites.letters import Card
from counterflow.federation.sites.plant_folder import PlantFolder
from counterflow.plant import Recording
from counterflow.privacy import Ledger, ledger_path
from counterflow.sealed_file import write_json


def test_what_init_and_join_leave_behind(world: World) -> None:
    found = world.coordinator
    assert found.fingerprint == certificates.fingerprint(certificates.read(found.kit.authority))
    assert set(members.admitted(found.folder / members.FILE)) == {"localhost", found.operator}
    private = [*found.folder.rglob("*.key"), *(world.root / "boiler").rglob("*.key")]
    assert len(private) == 4
    for place in (*private, found.folder, world.root / "boiler"):
        assert stat.S_IMODE(place.stat().st_mode) & 0o077 == 0, place
    plant = PlantFolder.open(world.root / "boiler")
    assert plant.policy.demanded
    assert not plant.policy.ask
    with Ledger.open(ledger_path(plant.folder / "budgets", "boiler"), "boiler") as ledger:
        assert (ledger.epsilon, ledger.spent) == (3.0, 0.0)
    assert plant.own().model is not None
    assert Recording.load(plant.folder / "log.safetensors").names == ("boiler",)  # nothing of the turbine's
    asks = letters.read_join(plant.join_file)
    assert asks.key == plant.key
    assert asks.card == Card("boiler", "boiler_owner", "waterworks", world.recording["boiler"].unit.inputs, 1.0)
    assert plant.join_file.stat().st_size < 3000, "a card and a key, no measurement"


def test_approve_and_welcome(world: World, coordinator: CoordinatorFolder, boiler: PlantFolder, tmp_path: Path) -> None:
    request = letters.read_join(world.join())
    welcome = coordinator.approve(request)
    (issued,) = members.admitted(coordinator.folder / members.FILE)["boiler"]
    assert coordinator.approve(request) == welcome  # the same again changes nothing
    assert members.admitted(coordinator.folder / members.FILE)["boiler"] == (issued,)
    assert coordinator.plants()["boiler"].certificate == issued
    with pytest.raises(cf.OptionError, match="was not welcomed yet"):
        boiler.prepare()
    boiler.join_file.unlink()  # it was moved, not copied
    joined = boiler.welcome(welcome)
    assert joined.key == request.key
    assert certificates.fingerprint(certificates.read(joined.kit.certificate)) == issued
    with pytest.raises(cf.StorageError, match="cannot be read"):
        joined.welcome(tmp_path / "nothing")
    assert PlantFolder.open(boiler.folder) == joined
    assert kit.unit_of(joined.kit.folder) == "boiler"
    assert "PlantPresence" in (joined.kit.folder / "local" / "resources.json").read_text()
    assert "MemberGate" in (coordinator.kit.folder / "local" / "resources.json").read_text()
    job = coordinator.new_job(options={"tol": 1e-4})
    assert (job.id, job.units, job.input_names("boiler")) == ("fit-1", ("boiler",), ("u1", "u2"))
    coordinator.keep(job)
    kept = coordinator.job("fit-1")
    assert kept is not None
    assert kept.to_text() == job.to_text()
    assert coordinator.new_job().id == "fit-2"
    with pytest.raises(cf.OptionError, match="'pump' is not a member"):
        coordinator.new_job(units=("pump",))


def test_a_name_belongs_to_one_key(world: World, coordinator: CoordinatorFolder, tmp_path: Path) -> None:
    first = letters.read_join(world.join())
    coordinator.approve(first)
    other = letters.read_join(world.asking(tmp_path / "again", "boiler").join_file)
    with pytest.raises(cf.OptionError, match="member already, with another key"):
        coordinator.approve(other)
    (old,) = members.admitted(coordinator.folder / members.FILE)["boiler"]
    gone = coordinator.remove("boiler")
    assert gone.certificate == old
    assert "boiler" not in members.admitted(coordinator.folder / members.FILE)
    with pytest.raises(cf.OptionError, match="no plant is approved"):
        coordinator.new_job()
    with pytest.raises(cf.OptionError, match="was removed"):
        coordinator.approve(first)  # not the old key
    coordinator.approve(other)
    (new,) = members.admitted(coordinator.folder / members.FILE)["boiler"]
    assert new not in (old, "")
    assert [plant.certificate for plant in coordinator.removed()] == [old]
    with pytest.raises(cf.OptionError, match="no plant 'pump'"):
        coordinator.remove("pump")


def test_the_authority_must_have_the_fingerprint(
    world: World, coordinator: CoordinatorFolder, boiler: PlantFolder
) -> None:
    welcome = coordinator.approve(letters.read_join(world.join()))
    told = {**party.read(boiler.folder), "fingerprint": "SHA256" + ":00" * 32}
    write_json(boiler.folder / party.FILE, "party of a federation", told)
    with pytest.raises(cf.StorageError, match="fingerprint does not match"):
        PlantFolder.open(boiler.folder).welcome(welcome)
    assert not PlantFolder.open(boiler.folder).welcomed


def test_requests_for_others_are_refused(world: World, coordinator: CoordinatorFolder, tmp_path: Path) -> None:
    elsewhere = world.asking(tmp_path / "elsewhere", "boiler", federation="other")
    with pytest.raises(cf.OptionError, match="asks to join the federation 'other'"):
        coordinator.check(letters.read_join(elsewhere.join_file))
    for given, text in (
        ({"fingerprint": "SHA256:AB"}, "32 pairs"),
        ({"organisation": "a b"}, "organisation"),
        ({"policy": 'unit = "turbine"\n'}, "it is that of unit 'turbine'"),
    ):
        with pytest.raises(cf.OptionError, match=text):
            world.asking(tmp_path / "never", "boiler", **given)
    for unit, text in (("pump", "has no unit 'pump'"), ("boi.ler", "no dot"), ("boi ler", "63 letters")):
        with pytest.raises(cf.CounterflowError, match=text):
            PlantFolder.create(
                tmp_path / "never", unit, "waterworks", world.coordinator.fingerprint, world.recording, None
            )
    assert not (tmp_path / "never").exists()


# ---- hostile files


def _signed(world: World, key: Any = None, **changes: Any) -> bytes:
    """A request whose card says something else, signed with the plant's own key: a member who lies."""
    letter = json.loads(json.loads(world.join().read_bytes())["letter"])
    text = json.dumps({**letter, "card": {**letter["card"], **changes}})
    key = key or keys.load(world.root / "boiler" / "kit" / "startup" / "client.key")
    signature = key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
    return json.dumps({"format": 1, "letter": text, "signature": signature.hex()}).encode()


def test_hostile_requests(world: World, tmp_path: Path) -> None:
    good, other = (json.loads(world.join(unit).read_bytes()) for unit in MEMBERS)
    assert letters.read_join(_rewritten(tmp_path, good)) == letters.read_join(world.join())
    small = keys.public(rsa.generate_private_key(65537, 1024).public_key())
    named = json.loads(good["letter"])["public"]
    cases = {
        "empty": (b"", "not in order"),
        "text": (b"PK\x03\x04 nothing", "not in order"),
        "list": (b"[]", "not in order"),
        "large": (bytes(2_000_000), "more than 200000 bytes"),
        "deep": (b"[" * 100_000, "not in order"),
        "no letter": ({"format": 1}, "not in order"),
        "format": ({**good, "format": 2}, "upgrade the older side"),
        "no text": ({**good, "letter": {}}, "not in order"),
        "no signature": ({**good, "signature": ""}, "not signed with the key"),
        "other text": ({**good, "letter": good["letter"].replace("boiler", "turbin")}, "not signed with the key"),
        "other signature": ({**good, "signature": other["signature"]}, "not signed with the key"),
        "no key": ({**good, "letter": good["letter"].replace(named, "")}, "holds no public key"),
        "small key": ({**good, "letter": good["letter"].replace(named, small)}, "2048 to 8192 bits"),
        "other key": (_signed(world, keys.new()), "not signed with the key"),
        "more in card": (_signed(world, note="y[7] is 3.4"), "note: is no field of Card"),
        "path": (_signed(world, unit="../../x"), "the name of a plant must be"),
        "inputs": (_signed(world, inputs=[{"name": "a"}]), "not in order"),
        "dt": (_signed(world, dt=-1), "dt must be"),
        "organisation": (_signed(world, organisation="a, OU=b"), "the organisation of"),
    }
    for name, (content, text) in cases.items():
        path = _rewritten(tmp_path, content)
        with pytest.raises(cf.StorageError) as caught:
            letters.read_join(path)
        assert text in str(caught.value), f"{name}: {caught.value}"
        assert str(path) in str(caught.value), name
        assert len(str(caught.value)) < 1500, name
    with pytest.raises(cf.StorageError, match="cannot be read"):
        letters.read_join(tmp_path / "nothing.join")


def _rewritten(folder: Path, content: Any) -> Path:
    path = folder / "letter"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def test_a_request_cannot_repaint_the_key_that_is_compared(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Up three lines, wipe, write another key: such a letter is refused, and would be harmless if it were not."""
    forged = "bar\x1b[3A\x1b[2K\rkey: SHA256:" + ":".join(["AA"] * 32) + "\x1b[3B"
    for unit in (forged, "bar\u202e", "bar\x00", "b" * 150_000):
        path = _rewritten(tmp_path, _signed(world, inputs=[{"name": "fuel", "unit": unit, "limits": None}]))
        with pytest.raises(cf.StorageError, match="not in order"):
            letters.read_join(path)
    harmless = [{"name": "Ventil [bold]", "unit": "m³/h", "limits": None}]
    asks = letters.read_join(_rewritten(tmp_path, _signed(world, inputs=harmless)))
    object.__setattr__(asks.card.inputs[0], "unit", forged)  # as if nobody had looked
    output.show(*request_parts(asks))
    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert "\r" not in told
    assert told.rstrip().split("\n")[-1] == f"key: {asks.key}", "our own line is the last"
    assert "'Ventil [bold]'" in told


def test_hostile_welcomes(world: World, coordinator: CoordinatorFolder, boiler: PlantFolder, tmp_path: Path) -> None:
    """Changed on the way, another's, or for another key; whoever may sign is not asked here: see the authority."""
    good = json.loads(coordinator.approve(letters.read_join(world.join())).read_bytes())
    turbine = json.loads(coordinator.approve(letters.read_join(world.join("turbine"))).read_bytes())
    letter, theirs = json.loads(good["letter"]), json.loads(turbine["letter"])
    (key,) = (coordinator.folder / "authority").glob("*.key")

    def signed(**changes: Any) -> dict[str, Any]:
        text = json.dumps({**letter, **changes})
        signature = keys.load(key).sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())
        return {**good, "letter": text, "signature": signature.hex()}

    for name, content, text in (
        ("text", b"hello", "not in order"),
        ("of another", turbine, "welcome of unit 'turbine'"),
        ("other server", {**good, "letter": good["letter"].replace("localhost", "elsewhere")}, "was not signed"),
        ("other certificate", signed(certificate=theirs["certificate"]), "another's, or for another key"),
        ("no certificate", signed(certificate="00"), "holds no certificate"),
        ("of a member", signed(authority=letter["certificate"]), "was not signed"),
        ("more", signed(note="x"), "note: is no field of Welcome"),
    ):
        with pytest.raises(cf.StorageError, match=text):
            boiler.welcome(_rewritten(tmp_path, content))
        assert not PlantFolder.open(boiler.folder).welcomed, name
    assert boiler.welcome(_rewritten(tmp_path, signed())).welcomed


# ---- folders


def test_folders_are_one_party_for_good(
    world: World, boiler: PlantFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(cf.OptionError, match="exists and is not empty"):
        world.asking(boiler.folder, "boiler")
    with pytest.raises(cf.OptionError, match="the folder of a plant, and this is done by the coordinator"):
        CoordinatorFolder.open(boiler.folder)
    with pytest.raises(cf.OptionError, match="the folder of the coordinator, and this is done by a plant"):
        PlantFolder.open(world.coordinator.folder)
    with pytest.raises(cf.OptionError, match=r"there is no party\.json"):
        party.role(tmp_path)
    write_json(boiler.folder / party.FILE, "party of a federation", [])
    with pytest.raises(cf.StorageError, match="must hold"):
        party.role(boiler.folder)
    with pytest.raises(cf.OptionError, match="spaces"):
        CoordinatorFolder.create(tmp_path / "a b", "x", "localhost", 8102)
    (tmp_path / "file").write_text("")
    with pytest.raises(cf.StorageError, match="cannot write"):
        CoordinatorFolder.create(tmp_path / "file" / "below", "x", "localhost", 8102)
    monkeypatch.setattr(party, "write_service", interrupted)
    with pytest.raises(KeyboardInterrupt):
        CoordinatorFolder.create(tmp_path / "new", "x", "localhost", 8102)
    assert not list((tmp_path / "new").iterdir())  # what could not be finished is not left half-made


def test_other_data_for_a_plant(world: World, boiler: PlantFolder) -> None:
    longer = world.plant.simulate(80, rng=9)
    boiler.bind(longer, None, begins="2026-01-01 06:00:00")
    assert len(boiler.own().y) == 81
    boiler.bind(None, None, 'unit = "boiler"\n')
    assert boiler.own().begins == "2026-01-01 06:00:00"
    for name in ("log.safetensors", "log.json", "policy.toml", "model.safetensors"):
        assert (boiler.folder / name).stat().st_mode & 0o077 == 0, name
    assert boiler.own().model is not None
    with pytest.raises(cf.OptionError, match="join anew"):
        boiler.bind(cf.random_plant(units=MEMBERS, inputs=3, rng=1).simulate(20, rng=2), None)
    with pytest.raises(cf.OptionError, match="the model has"):
        boiler.bind(None, cf.random_plant(units=MEMBERS, inputs=1, rng=1).local("boiler"))
    boiler.bind(None, None, 'unit = "boiler"\n[privacy]\ndemanded = false\n')
    assert not boiler.policy.demanded
    with party.supervising(boiler.folder), pytest.raises(cf.StorageError, match="runs: stop it first"):
        boiler.bind(longer, None)


def test_a_later_job_is_later_though_the_clock_was_set_back(world: World, coordinator: CoordinatorFolder) -> None:
    coordinator.approve(letters.read_join(world.join()))
    ahead = replace(coordinator.new_job(), created="2999-01-01T00:00:00+00:00")
    coordinator.keep(ahead)
    later = coordinator.new_job()
    coordinator.keep(later)
    assert [job.id for job in coordinator.jobs()] == [ahead.id, later.id]
    assert later.order > ahead.order


def test_logs_that_begin_at_different_times_are_not_joined_row_by_row(coordinator: CoordinatorFolder) -> None:
    same = {"boiler": "2026-01-01 06:00:00", "turbine": "2026-01-01 06:00:00"}
    assert coordinator._common_beginning(same) == "2026-01-01 06:00:00"
    assert coordinator._common_beginning({**same, "pump": ""}) == ""
    with pytest.raises(cf.OptionError, match=r"turbine 2026-01-01 06:00:05.*--begins"):
        coordinator._common_beginning({**same, "turbine": "2026-01-01 06:00:05"})


def test_unit_files_are_what_systemd_takes(world: World, coordinator: CoordinatorFolder, tmp_path: Path) -> None:
    service = next(coordinator.folder.glob("*.service"))
    text = party.write_service(coordinator.folder, "x", "100% of it").read_text()
    for line in ("NoNewPrivileges=yes", "ProtectSystem=strict", "UMask=0077", "Restart=always", "PrivateTmp=yes"):
        assert line in text.splitlines()
    assert f'ReadWritePaths="{coordinator.folder}"' in text
    assert "100%% of it" in text
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    done = subprocess.run(["systemd-analyze", "verify", str(service)], capture_output=True, text=True)
    told = [line for line in (done.stdout + done.stderr).splitlines() if service.name in line]
    assert not told, told
