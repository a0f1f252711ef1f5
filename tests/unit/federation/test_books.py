"""A plant's books: what the audit log and the ledger tell together, as records, after a crash and after a restore."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import counterflow as cf
from counterflow.cli import app
from counterflow.errors import CounterflowError, OptionError, PrivacyError, StorageError
from counterflow.exchange.compression import sufficient_message
from counterflow.exchange.rows import privatised
from counterflow.federation import Audit, Job
from counterflow.federation.audit import FILE
from counterflow.federation.policy import default_policy
from counterflow.federation.reconciliation import compare
from counterflow.federation.sites import backup as backups
from counterflow.federation.sites.plant_folder import PlantFolder
from counterflow.privacy import Ledger
from counterflow.protocol import encode

PLANT = cf.random_plant(units=["boiler", "turbine"], outputs=3, rng=1)
RECORDING = PLANT.simulate(40, rng=2)
INPUTS = {unit.name: unit.inputs for unit in RECORDING.units}


@pytest.fixture
def plant(tmp_path: Path) -> PlantFolder:
    """A plant that has let one private message out."""
    folder = tmp_path / "boiler-site"
    made = PlantFolder(folder, "waterworks", "SHA256:" + "0" * 64, "owner", "", 0, "boiler")
    made.put(RECORDING, PLANT.local("boiler"), default_policy("boiler"), "2026-01-01 06:00:00")
    made._open_budget(3.0)
    made.write()
    release(made, "one")
    return made


def release(plant: PlantFolder, job_id: str, *, leaves: bool = True) -> str:
    job = Job(job_id, "sufficient", INPUTS, privacy=cf.Privacy(0.5, 1e-6))
    own = plant.own()
    assert own.model is not None
    assert job.privacy is not None
    sent, made = privatised(sufficient_message("boiler", own.model, own.y, own.u), own.model, job.privacy)
    with plant.audit() as audit:
        guard = plant.guard(job, audit, own)
        data = guard.outgoing(encode(sent), made)
        if leaves:
            guard.leave(data)
            return hashlib.sha256(data).hexdigest()
        with pytest.MonkeyPatch.context() as patch:  # killed when it was charged, and not yet audited
            patch.setattr(guard, "_write", lambda *a, **k: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                guard.leave(data)
        return hashlib.sha256(data).hexdigest()


def books(plant: PlantFolder) -> tuple[list[str], list[tuple[str, str]], list[str]]:
    """Events of the audit log, releases of the ledger with their states, and how the two differ."""
    assert plant.ledger is not None
    with plant.audit() as audit, Ledger.open(plant.ledger) as ledger:
        events = [record["event"] for record in audit.records() if record["event"] != "opened"]
        entries = [(entry.fit, entry.state) for entry in ledger.entries()]
        return events, entries, [caveat.code for caveat in compare(audit, ledger)]


def told(*command: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["federation", *map(str, command)])
    assert done.exit_code == code, (done.output, done.exception)
    return done.stdout


# ---- export


def test_what_was_approved_and_what_has_left_are_records_of_their_own(plant: PlantFolder) -> None:
    stranded = release(plant, "two", leaves=False)
    with plant.audit() as audit:
        audit.write("refused", job="three", reason='\x1b[31m"]\n<13>1 - - forged - left')
    lines = [json.loads(line) for line in told("audit", plant.folder, "--format", "jsonl").splitlines()]
    assert [(line["event"], line["job"]) for line in lines] == [
        ("opened", "one"), ("approved", "one"), ("left", "one"), ("opened", "two"), ("approved", "two"),
        ("refused", "three"),
    ]  # fmt: skip
    assert stranded == lines[4]["sha256"]
    left = told("audit", plant.folder, "--format", "jsonl", "--event", "left", "--after", 1)
    assert [json.loads(line)["number"] for line in left.splitlines()] == [3]
    syslog = told("audit", plant.folder, "--format", "syslog").split("\n")
    assert [line.split(" ")[5] for line in syslog if line] == [line["event"] for line in lines]
    assert all(line.startswith("<") and line.endswith("]") and line.isprintable() for line in syslog if line)
    assert "left" in told("audit", plant.folder)


def test_the_export_says_when_the_books_contradict_each_other(plant: PlantFolder, tmp_path: Path) -> None:
    assert plant.ledger is not None
    files = (plant.ledger, Path(f"{plant.ledger}.head"))
    for file in files:
        shutil.copy(file, tmp_path)
    release(plant, "two")
    for file in files:
        shutil.copy(tmp_path / file.name, file)
    assert len(told("audit", plant.folder, "--format", "jsonl", code=6).splitlines()) == 6
    with pytest.raises(StorageError) as refused:
        plant._check_books()
    assert refused.value.code == "old"


def test_a_book_that_is_gone_is_missed(plant: PlantFolder) -> None:
    """Neither is started without, and a new ledger is not taken for the old one."""
    assert plant.ledger is not None
    kept = {path: path.read_bytes() for path in (plant.folder / FILE, Path(f"{plant.folder / FILE}.head"))}
    lose(plant.folder / FILE)
    assert [caveat.code for caveat in plant.differences()] == ["audit-lost"]
    with pytest.raises(StorageError) as refused:
        plant._check_books()
    assert refused.value.code == "old"
    assert CliRunner().invoke(app, ["federation", "audit", str(plant.folder)]).exit_code != 0
    for path, data in kept.items():
        path.write_bytes(data)
    assert not plant.differences()
    shutil.rmtree(plant.ledger.parent)
    told("audit", plant.folder, code=6)
    with pytest.raises(StorageError) as refused:
        plant._check_books()
    assert refused.value.code == "old"
    plant._open_budget(3.0)
    assert [caveat.code for caveat in plant.differences()] == ["earlier-ledger"]
    plant._check_books()


def test_a_budget_is_shown_beside_what_left_without_noise(plant: PlantFolder) -> None:
    assert not plant.differences()
    own = plant.own()
    assert own.model is not None
    data = encode(sufficient_message("boiler", own.model, own.y, own.u))
    (plant.folder / "policy.toml").write_text(default_policy("boiler", demanded=False), "utf-8")
    with plant.audit() as audit:
        guard = plant.guard(Job("plain", "sufficient", INPUTS), audit, own)
        guard.leave(guard.outgoing(data))
    (note,) = plant.differences()
    assert note.code == "exact-release"
    assert "plain" in note.text
    told("audit", plant.folder)


# ---- reservations


def test_a_start_settles_what_has_left_and_keeps_what_has_not(plant: PlantFolder) -> None:
    release(plant, "two", leaves=False)
    plant._check_books()
    assert books(plant)[1:] == ([("job one", "released"), ("job two", "reserved")], ["reservation-open"])
    with plant.audit() as audit:
        (digest,) = {r["sha256"] for r in audit.records() if r["job"] == "two" and r["event"] == "approved"}
        audit.write("left", job="two", sha256=digest)  # killed when this was written, and the ledger not yet
    plant._check_books()
    assert books(plant)[1:] == ([("job one", "released"), ("job two", "released")], [])


def test_its_owner_settles_a_reservation(plant: PlantFolder) -> None:
    assert plant.ledger is not None
    release(plant, "two", leaves=False)
    shown = CliRunner().invoke(app, ["privacy", "ledger", str(plant.ledger), "--format", "json"]).stdout
    (ledger,) = json.loads(shown)["ledgers"]
    assert [entry["state"] for entry in ledger["releases"]] == ["released", "reserved"]
    assert [caveat["code"] for caveat in json.loads(shown)["caveats"]] == ["reservation-open"]
    done = json.loads(
        told("settle", plant.folder, "--entry", 3, "--withdraw", "--note", "given up", "--format", "json")
    )
    assert done["entry"]["state"] == "withdrawn"
    assert done["spent"] < ledger["spent"]
    events, entries, differences = books(plant)
    assert (events[-1], entries[-1][1], differences) == ("settled", "withdrawn", [])
    with plant.audit() as audit, Ledger.open(plant.ledger) as opened:
        from counterflow.federation.reconciliation import settle

        for number in (1, 3, 99):  # released, withdrawn, none
            with pytest.raises(OptionError):
                settle(audit, opened, number, True, "no")


def test_what_has_left_cannot_be_withdrawn(plant: PlantFolder) -> None:
    from counterflow.federation.reconciliation import settle

    assert plant.ledger is not None
    digest = release(plant, "two", leaves=False)
    with plant.audit() as audit, Ledger.open(plant.ledger) as ledger:
        audit.write("left", job="two", sha256=digest)
        with pytest.raises(PrivacyError) as refused:
            settle(audit, ledger, 3, True, "I would rather not")
        assert refused.value.code == "settled"


# ---- backup and restore


def backup(plant: PlantFolder, tmp_path: Path) -> Path:
    file = tmp_path / "backup.zip"
    told("backup", plant.folder, "--to", file)
    assert file.stat().st_mode & 0o077 == 0
    return file


def lose(*paths: Path | None) -> None:
    for path in paths:
        assert path is not None
        for left in path.parent.glob(f"{path.name}*"):
            left.unlink()


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
    path.write_bytes(bytes(data))


def test_books_that_are_in_order_are_left_alone(plant: PlantFolder, tmp_path: Path) -> None:
    file = backup(plant, tmp_path)
    release(plant, "two")
    assert backups.restore(plant, file) == []
    assert books(plant)[0] == ["approved", "left", "backed-up", "approved", "left"]
    with pytest.raises(StorageError):
        backups.backup(plant, file)


@pytest.mark.parametrize("how", [lose, damage])
def test_a_lost_ledger_is_put_back_if_it_knows_of_all_that_has_left(
    how: Any, plant: PlantFolder, tmp_path: Path
) -> None:
    assert plant.ledger is not None
    file = backup(plant, tmp_path)
    how(plant.ledger)
    assert json.loads(told("restore", plant.folder, "--from", file, "--format", "json"))["restored"] == ["budget"]
    events, entries, differences = books(plant)
    assert (events[-1], entries, differences) == ("restored", [("job one", "released")], [])
    release(plant, "two")
    how(plant.ledger)
    for sure in (False, True):  # whoever says that nothing has left is contradicted by the audit log
        with pytest.raises(StorageError) as refused:
            backups.restore(plant, file, nothing_left_since=sure)
        assert refused.value.code == "old"


def test_an_old_ledger_is_replaced_by_one_that_is_not(plant: PlantFolder, tmp_path: Path) -> None:
    assert plant.ledger is not None
    shutil.copy(plant.ledger, tmp_path / "old")
    release(plant, "two")
    file = backup(plant, tmp_path)
    shutil.copy(tmp_path / "old", plant.ledger)
    assert backups.restore(plant, file) == ["budget"]
    assert books(plant)[1:] == ([("job one", "released"), ("job two", "released")], [])
    assert list(plant.ledger.parent.glob("*.lost-*")), "what was there is kept"


def test_a_lost_audit_log_is_put_back_and_says_what_it_lacks(plant: PlantFolder, tmp_path: Path) -> None:
    file = backup(plant, tmp_path)
    release(plant, "two")
    lose(plant.folder / FILE)
    assert backups.restore(plant, file) == ["audit log"]
    events, entries, differences = books(plant)
    assert events == ["approved", "left", "restored"]
    assert (len(entries), differences) == (2, ["audit-behind"])
    with plant.audit() as audit:
        assert list(audit.records())[-1]["differ"] == ["audit-behind"]


def test_if_both_are_lost_the_owner_must_answer_for_the_time_since(plant: PlantFolder, tmp_path: Path) -> None:
    file = backup(plant, tmp_path)
    lose(plant.folder / FILE, plant.ledger)
    with pytest.raises(StorageError) as refused:
        backups.restore(plant, file)
    assert refused.value.code == "old"
    assert not (plant.folder / FILE).exists()
    assert backups.restore(plant, file, nothing_left_since=True) == ["audit log", "budget"]
    assert books(plant)[1:] == ([("job one", "released")], [])
    release(plant, "two")


def test_a_backup_that_is_none_changes_nothing(plant: PlantFolder, tmp_path: Path) -> None:
    file = backup(plant, tmp_path)
    assert plant.ledger is not None
    damage(plant.ledger)
    for at in range(0, file.stat().st_size, 997):
        data = bytearray(file.read_bytes())
        data[at] ^= 1
        flipped = tmp_path / "flipped.zip"
        flipped.write_bytes(bytes(data))
        try:
            backups.restore(plant, flipped)
        except CounterflowError:
            continue
        assert books(plant)[1] == [("job one", "released")], "a byte that says nothing"
        damage(plant.ledger)
    other = replace(plant, unit="turbine")
    with pytest.raises(CounterflowError):
        backups.restore(other, file)
    assert not list(plant.folder.glob(".restore-*"))
    assert Audit(plant.folder / FILE).has_left("none") is False
