"""Folders of coordinator and plants: who may join, what a hostile file can do, and who is a member."""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import subprocess
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import counterflow as cf

pytest.importorskip("nvflare", reason="NVIDIA FLARE is not installed: pip install 'counterflow[federation]'")

from counterflow.cli import output
from counterflow.cli.federation_members import request_parts
from counterflow.federation.sites import certificates, keys, letters, members, party
from counterflow.federation.sites.coordinator_folder import CoordinatorFolder
from counterflow.federation.sites.letters import Card
from counterflow.federation.sites.plant_folder import PlantFolder
from counterflow.plant import Channel, Recording
from counterflow.privacy import Ledger, ledger_path
from counterflow.sealed_file import write_json

UNITS = ("boiler", "turbine")


class World:
    """A coordinator and two plants that have asked to join, made once; tests work on copies."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.plant = cf.random_plant(units=UNITS, rng=3)
        self.recording = self.plant.simulate(50, rng=4)
        self.coordinator = CoordinatorFolder.create(root / "coordinator", "waterworks", "localhost", 8102)
        for unit in UNITS:
            self.asking(root / unit, unit)

    def asking(self, folder: Path, unit: str, **other: Any) -> PlantFolder:
        given = {"federation": "waterworks", "fingerprint": self.coordinator.fingerprint, **other}
        return PlantFolder.create(folder, unit, recording=self.recording, model=self.plant.local(unit), **given)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.fixture
def coordinator(world: World, tmp_path: Path) -> CoordinatorFolder:
    return CoordinatorFolder.open(Path(shutil.copytree(world.root / "coordinator", tmp_path / "coordinator")))


@pytest.fixture
def boiler(world: World, tmp_path: Path) -> PlantFolder:
    return PlantFolder.open(Path(shutil.copytree(world.root / "boiler", tmp_path / "boiler")))


def _join(world: World, unit: str = "boiler") -> Path:
    return world.root / unit / f"{unit}.join"


def test_what_init_and_join_leave_behind(world: World) -> None:
    found = world.coordinator
    assert found.fingerprint == certificates.fingerprint(found.folder / "authority" / "rootCA.pem")
    assert set(members.read(found.folder / members.FILE)) == {"localhost", found.operator}
    keys = [*found.folder.rglob("*.key"), *(world.root / "boiler").rglob("*.key")]
    assert len(keys) >= 6
    for place in (*keys, found.folder, world.root / "boiler"):
        assert stat.S_IMODE(place.stat().st_mode) & 0o077 == 0, place
    plant = PlantFolder.open(world.root / "boiler")
    assert plant.policy.demanded
    assert not plant.policy.ask
    with Ledger.open(ledger_path(plant.folder / "budgets", "boiler"), "boiler") as ledger:
        assert (ledger.epsilon, ledger.spent) == (3.0, 0.0)
    assert plant.site.own().model is not None
    assert Recording.load(plant.folder / "log.safetensors").names == ("boiler",)  # nothing of the turbine's
    asks = letters.read_join(plant.join_file)
    assert asks.key == plant.key
    assert asks.card == Card("boiler", "boiler_owner", "waterworks", world.recording["boiler"].unit.inputs, 1.0)
    with zipfile.ZipFile(plant.join_file) as archive:
        assert sum(entry.file_size for entry in archive.infolist()) < 6000  # a card and a request, no measurement
    home = Path(os.environ.get("HOME", "/nowhere")) / ".nvflare" / "cert_requests"
    assert not home.exists() or not any("world" in path.read_text() for path in home.rglob("*.json"))


def test_approve_and_welcome(world: World, coordinator: CoordinatorFolder, boiler: PlantFolder, tmp_path: Path) -> None:
    request = letters.read_join(_join(world))
    welcome = coordinator.approve(request)
    (issued,) = members.read(coordinator.folder / members.FILE)["boiler"]
    assert coordinator.approve(request) == welcome  # the same again changes nothing
    assert members.read(coordinator.folder / members.FILE)["boiler"] == (issued,)
    assert coordinator.plants()["boiler"].certificate == issued
    with pytest.raises(cf.OptionError, match="was not welcomed yet"):
        boiler.prepare()
    joined = boiler.welcome(welcome)
    assert joined.kit is not None
    assert certificates.fingerprint(joined.kit / "startup" / "client.crt") == issued
    with pytest.raises(cf.StorageError, match="cannot be read"):
        joined.welcome(tmp_path / "nothing")
    assert PlantFolder.open(boiler.folder).kit == joined.kit
    local = json.loads((joined.kit / "local" / "counterflow.json").read_text())
    assert local == {"unit": "boiler", "home": str(boiler.folder)}
    assert "PlantPresence" in (joined.kit / "local" / "resources.json").read_text()
    assert "MemberGate" in (coordinator.kit / "local" / "resources.json").read_text()
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
    first = letters.read_join(_join(world))
    coordinator.approve(first)
    other = letters.read_join(world.asking(tmp_path / "again", "boiler").join_file)
    with pytest.raises(cf.OptionError, match="member already, with another key"):
        coordinator.approve(other)
    (old,) = members.read(coordinator.folder / members.FILE)["boiler"]
    gone = coordinator.remove("boiler")
    assert gone.certificate == old
    assert "boiler" not in members.read(coordinator.folder / members.FILE)
    with pytest.raises(cf.OptionError, match="no plant is approved"):
        coordinator.new_job()
    with pytest.raises(cf.OptionError, match="was removed"):
        coordinator.approve(first)  # not the old key
    coordinator.approve(other)
    (new,) = members.read(coordinator.folder / members.FILE)["boiler"]
    assert new not in (old, "")
    assert [plant.certificate for plant in coordinator.removed()] == [old]
    with pytest.raises(cf.OptionError, match="no plant 'pump'"):
        coordinator.remove("pump")


def test_the_authority_must_have_the_fingerprint(
    world: World, coordinator: CoordinatorFolder, boiler: PlantFolder
) -> None:
    welcome = coordinator.approve(letters.read_join(_join(world)))
    told = {**party.read(boiler.folder), "fingerprint": "SHA256" + ":00" * 32}
    write_json(boiler.folder / party.FILE, "party of a federation", told)
    with pytest.raises(cf.StorageError, match="fingerprint does not match"):
        PlantFolder.open(boiler.folder).welcome(welcome)
    assert PlantFolder.open(boiler.folder).kit is None
    assert not list(boiler.folder.glob("*.zip"))


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


def _zipped(entries: dict[str, bytes], change: Callable[[zipfile.ZipInfo], None] | None = None) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = zipfile.ZIP_DEFLATED
            if change is not None:
                change(info)
            archive.writestr(info, data)
    return buffer.getvalue()


def _entries(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _link(info: zipfile.ZipInfo) -> None:
    info.external_attr = (stat.S_IFLNK | 0o777) << 16


def test_hostile_requests(world: World, tmp_path: Path) -> None:
    good = _entries(_join(world).read_bytes())
    other = _entries(_join(world, "turbine").read_bytes())
    card = json.loads(good["card.json"])
    inner = _entries(good["request.zip"])
    asked = json.loads(inner["request.json"])

    def with_card(**changes: Any) -> bytes:
        return _zipped({**good, "card.json": json.dumps({**card, **changes}).encode()})

    def with_request(**changes: bytes) -> bytes:
        return _zipped({**good, "request.zip": _zipped({**inner, **changes})})

    bomb = bytes(50_000_000)
    cases = {
        "empty": (b"", "not a request to join"),
        "text": (b"PK\x03\x04 nothing", "not a request to join"),
        "large": (bytes(2_000_000), "more than 1000000 bytes"),
        "bomb": (_zipped({**good, "card.sig": bomb}), "unpacked it would have"),
        "inner bomb": (with_request(**{"site.yaml": bomb}), "unpacked it would have"),
        "slash": (_zipped({**good, "../card.json": b"x"}), "must hold card.json"),
        "renamed": (_zipped({"/card.json": b"", "card.sig": b"", "request.zip": b""}), "must hold card.json"),
        "extra": (_zipped({**good, "more": b"x"}), "must hold card.json"),
        "twice": (_zipped({**good, "Card.json": b"x"}), "must hold card.json"),
        "link": (_zipped(good, _link), "a link, a folder or encrypted"),
        "inner slash": (with_request(**{"../../x": b"x"}), "must hold boiler.csr"),
        "no json": (_zipped({**good, "card.json": b"{"}), "card.json is not in order"),
        "deep": (_zipped({**good, "card.json": b"[" * 100_000}), "card.json is not in order"),
        "more in card": (with_card(note="y[7] is 3.4"), "note: is no field of Card"),
        "format": (with_card(format=2), "upgrade the older side"),
        "path": (with_card(unit="../../x"), "card.json is not in order"),
        "inputs": (with_card(inputs=[{"name": "a"}]), "card.json is not in order"),
        "dt": (with_card(dt=-1), "dt must be"),
        "other unit": (with_card(unit="turbine"), "must hold turbine.csr"),
        "other organisation": (with_card(organisation="x"), "says that organisation is 'x', the request says"),
        "other inputs": (with_card(inputs=[]), "not signed with the key of the request"),
        "other card": (_zipped({**good, "card.sig": other["card.sig"]}), "not signed with the key"),
        "other key": (
            with_request(**{"boiler.csr": _entries(other["request.zip"])["turbine.csr"]}),
            "the request says 'turbine'",
        ),
        "operator": (
            with_request(**{"request.json": json.dumps({**asked, "cert_type": "lead"}).encode()}),
            "kind 'lead', a plant's is 'client'",
        ),
        "csr": (with_request(**{"boiler.csr": b"-----BEGIN"}), "not a request of FLARE's"),
        "json list": (with_request(**{"request.json": b"[]"}), "not a request of FLARE's"),
    }
    for name, (data, text) in cases.items():
        path = tmp_path / "hostile.join"
        path.write_bytes(data)
        with pytest.raises(cf.StorageError) as caught:
            letters.read_join(path)
        assert text in str(caught.value), f"{name}: {caught.value}"
        assert str(path) in str(caught.value), name
        assert len(str(caught.value)) < 1500, name
    with pytest.raises(cf.StorageError, match="cannot be read"):
        letters.read_join(tmp_path / "nothing.join")


def _signed(world: World, unit: str, **changes: Any) -> bytes:
    """A request whose card says something else, signed with the plant's own key: a member who lies."""
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import padding

    good = _entries(_join(world, unit).read_bytes())
    card = json.dumps({**json.loads(good["card.json"]), **changes}).encode()
    key = keys.load(world.root / unit / "request" / f"{unit}.key")
    return _zipped({**good, "card.json": card, "card.sig": key.sign(card, padding.PKCS1v15(), hashes.SHA256())})


def test_a_request_cannot_repaint_the_key_that_is_compared(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Up three lines, wipe, write another key: such a letter is refused, and would be harmless if it were not."""
    forged = "bar\x1b[3A\x1b[2K\rkey: SHA256:" + ":".join(["AA"] * 32) + "\x1b[3B"
    path = tmp_path / "boiler.join"
    for unit in (forged, "bar\u202e", "bar\x00", "b" * 700_000):
        path.write_bytes(_signed(world, "boiler", inputs=[{"name": "fuel", "unit": unit, "limits": None}]))
        with pytest.raises(cf.StorageError, match=r"card\.json is not in order"):
            letters.read_join(path)
    path.write_bytes(_signed(world, "boiler", inputs=[{"name": "Ventil [bold]", "unit": "m³/h", "limits": None}]))
    asks = letters.read_join(path)
    object.__setattr__(asks.card.inputs[0], "unit", forged)  # as if nobody had looked
    output.show(*request_parts(asks))
    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert "\r" not in told
    assert told.rstrip().split("\n")[-1] == f"key: {asks.key}", "our own line is the last"
    assert "'Ventil [bold]'" in told


def test_flipped_bytes_never_crash_the_reader(world: World, tmp_path: Path) -> None:
    import numpy as np

    good = _join(world).read_bytes()
    rng = np.random.default_rng(5)
    path, refused = tmp_path / "flipped.join", 0
    for _ in range(300):
        data = bytearray(good)
        for place in rng.integers(0, len(data), 3):
            data[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(data))
        try:
            letters.read_join(path)
        except cf.StorageError:
            refused += 1
    assert refused > 250  # some bits, such as those of dates, mean nothing


def test_hostile_welcomes(world: World, coordinator: CoordinatorFolder, boiler: PlantFolder, tmp_path: Path) -> None:
    welcome = coordinator.approve(letters.read_join(_join(world)))
    turbine = coordinator.approve(letters.read_join(_join(world, "turbine")))
    good = _entries(welcome.read_bytes())
    changed = json.loads(good["signed.json"])
    changed["server"]["host"] = "elsewhere.example.org"
    for name, data, text in (
        ("text", b"hello", "not the welcome of unit 'boiler'"),
        ("of another", turbine.read_bytes(), "not the welcome of unit 'boiler'"),
        ("extra", _zipped({**good, "startup/x.sh": b"x"}), "must hold rootCA.pem"),
        ("link", _zipped(good, _link), "a link"),
        ("other server", _zipped({**good, "signed.json": json.dumps(changed).encode()}), "failed"),
        ("other certificate", _zipped({**good, "boiler.crt": _entries(turbine.read_bytes())["turbine.crt"]}), "failed"),
    ):
        path = tmp_path / "hostile.welcome"
        path.write_bytes(data)
        with pytest.raises(cf.StorageError, match=text):
            boiler.welcome(path)
        assert PlantFolder.open(boiler.folder).kit is None, name


# ---- folders


def test_folders_are_one_party_for_good(world: World, boiler: PlantFolder, tmp_path: Path) -> None:
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
    with pytest.raises(cf.StorageError, match="fed_learn_port must be"):
        CoordinatorFolder.create(tmp_path / "new", "x", "localhost", 70_000)
    assert not list((tmp_path / "new").iterdir())  # what could not be finished is not left half-made


def test_other_data_for_a_plant(world: World, boiler: PlantFolder) -> None:
    longer = world.plant.simulate(80, rng=9)
    boiler.bind(longer, None, begins="2026-01-01 06:00:00")
    assert len(boiler.site.own().y) == 81
    boiler.bind(None, None, 'unit = "boiler"\n')
    assert boiler.site.own().begins == "2026-01-01 06:00:00"
    for name in ("log.safetensors", "log.json", "policy.toml", "model.safetensors"):
        assert (boiler.folder / name).stat().st_mode & 0o077 == 0, name
    assert boiler.site.own().model is not None
    with pytest.raises(cf.OptionError, match="join anew"):
        boiler.bind(cf.random_plant(units=UNITS, inputs=3, rng=1).simulate(20, rng=2), None)
    with pytest.raises(cf.OptionError, match="the model has"):
        boiler.bind(None, cf.random_plant(units=UNITS, inputs=1, rng=1).local("boiler"))
    boiler.bind(None, None, 'unit = "boiler"\n[privacy]\ndemanded = false\n')
    assert not boiler.policy.demanded
    with party.supervising(boiler.folder), pytest.raises(cf.StorageError, match="runs: stop it first"):
        boiler.bind(longer, None)


def test_a_later_job_is_later_though_the_clock_was_set_back(world: World, coordinator: CoordinatorFolder) -> None:
    coordinator.approve(letters.read_join(_join(world)))
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


def test_cards_say_what_others_may_know() -> None:
    card = Card("boiler", "x", "f", (Channel("fuel", "kg/s", (0.0, float("inf"))),), 60.0)
    assert Card.from_json(json.loads(json.dumps(card.to_json()))) == card
    for wrong in (None, [], {}, {**card.to_json(), "unit": 3}, {**card.to_json(), "inputs": None}):
        with pytest.raises(cf.CounterflowError):
            Card.from_json(wrong)
