"""The store: one suite for memory and file, then what only a file can suffer."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from counterflow import database
from counterflow.database import SLOT
from counterflow.errors import OptionError, StorageError
from counterflow.federation.file_store import FORM, FileStore
from counterflow.federation.question_box import QuestionBox
from counterflow.federation.store import LOGS, Entry, MemoryStore, Row, Store

ENTRIES = [
    Entry("opening", {"job": "j"}),
    Entry("turn", {"unit": "Ä\n\ud800", "n": [1, 2.5, None]}, [b"message", b"", b"x" * 5000]),
    Entry("turn", {}, [b"last"]),
]
SPAWN = multiprocessing.get_context("spawn")


def plain(rows: Iterator[Row]) -> list[tuple[str, Any, tuple[bytes, ...]]]:
    return [(row.kind, row.table, row.pieces) for row in rows]


EXPECTED = [(entry.kind, entry.table, tuple(entry.pieces)) for entry in ENTRIES]


# ---- memory and file alike


@pytest.fixture(params=["memory", "file", "file alone"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Store]]:
    """Opens the store, and again after it was closed."""
    memory = MemoryStore()
    stores: list[Store] = []

    def again() -> Store:
        for store in stores:
            store.close()
        alone = request.param == "file alone"
        stores.append(memory if request.param == "memory" else FileStore(tmp_path / "a.db", alone=alone))
        return stores[-1]

    yield again
    for store in stores:
        store.close()


Opened = Callable[[], Store]


def test_rows_come_back_in_order_and_sealed(opened: Opened) -> None:
    store = opened()
    written = [store.append("turns", entry) for entry in ENTRIES]
    assert [row.number for row in written] == [1, 2, 3]
    assert len({row.seal for row in written}) == 3
    for k in range(2):
        again = opened() if k else store
        assert list(again.rows("turns")) == written
        assert plain(again.rows("turns")) == EXPECTED
        assert list(again.rows("turns", after=2)) == written[2:]
        assert not list(again.rows("audit"))
        assert again.size("turns") > 5000


def test_a_log_begins_anew_and_its_numbers_go_on(opened: Opened) -> None:
    store = opened()
    for entry in ENTRIES:
        store.append("turns", entry)
    store.begin_anew("turns", [Entry("snapshot", {"a": 1}, [b"s"])])
    for k in range(2):
        again = opened() if k else store
        assert plain(again.rows("turns")) == [("snapshot", {"a": 1}, (b"s",))]
        assert next(again.rows("turns")).number == 4
        assert again.size("turns") < 500
    assert opened().append("turns", ENTRIES[1]).number == 5
    assert plain(opened().rows("turns", after=4)) == EXPECTED[1:2]


def test_rows_are_kept_by_choice_and_a_log_can_be_emptied(opened: Opened) -> None:
    store = opened()
    for k in range(4):
        store.append("turns", Entry("turn", {"n": k}, [bytes([k])]))
    store.begin_anew("turns", [], lambda row: row.table["n"] % 2 == 0)
    assert plain(store.rows("turns")) == [("turn", {"n": 0}, (b"\0",)), ("turn", {"n": 2}, (b"\2",))]
    store.begin_anew("turns", [])
    assert not list(store.rows("turns"))
    assert opened().append("turns", Entry("turn", {})).number >= 7


def test_what_may_not_be_written(opened: Opened) -> None:
    store = opened()
    store.append("audit", Entry("approved", {}))
    with pytest.raises(OptionError, match="only ever added"):
        store.begin_anew("audit", [])
    with pytest.raises(OptionError, match="no log"):
        store.append("other", Entry("turn", {}))
    with pytest.raises(ValueError, match="JSON"):
        store.append("turns", Entry("turn", {"a": float("nan")}))
    assert len(list(store.rows("audit"))) == 1


# ---- files


def written(path: Path, alone: bool = True) -> list[Row]:
    with FileStore(path, alone=alone) as store:
        return [store.append("turns", entry) for entry in ENTRIES]


def content(path: Path, alone: bool = True) -> list[Row]:
    with FileStore(path, alone=alone) as store:
        return [row for log in LOGS for row in store.rows(log)]


def test_only_the_owner_reads_it(tmp_path: Path) -> None:
    with FileStore(tmp_path / "in" / "a.db", alone=True) as store:
        store.append("turns", ENTRIES[1])
        assert {place.stat().st_mode & 0o777 for place in (tmp_path / "in").iterdir()} == {0o600}
        assert (tmp_path / "in").stat().st_mode & 0o777 == 0o700


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with FileStore(tmp_path / "a.db", alone=True), pytest.raises(StorageError) as refused:
        FileStore(tmp_path / "a.db", alone=True)
    assert refused.value.code == "in-use"
    FileStore(tmp_path / "a.db", alone=True).close()


def _write(path: Path, name: str) -> None:
    with FileStore(path) as store:
        for k in range(20):
            store.append("audit", Entry("approved", {"by": name, "k": k}))


def test_processes_take_turns_at_a_shared_store(tmp_path: Path) -> None:
    writers = [SPAWN.Process(target=_write, args=(tmp_path / "a.db", name)) for name in "ab"]
    for writer in writers:
        writer.start()
    _write(tmp_path / "a.db", "c")
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    rows = content(tmp_path / "a.db", alone=False)
    assert [row.number for row in rows] == list(range(1, 61))
    for name in "abc":
        assert [row.table["k"] for row in rows if row.table["by"] == name] == list(range(20))


def files_of(folder: Path) -> dict[str, bytes]:
    return {place.name: place.read_bytes() for place in folder.iterdir()}


@pytest.mark.parametrize("alone", [True, False])
def test_no_flipped_bit_is_silent(alone: bool, tmp_path: Path) -> None:
    """In every file, with SQLite's own log beside it as a killed process leaves it: an error, or the same rows."""
    folder, draw = tmp_path / "whole", random.Random(3)
    with FileStore(folder / "a.db", alone=alone) as store:
        rows = [store.append("turns", entry) for entry in ENTRIES]
        whole = files_of(folder)
    assert "a.db-wal" in whole, "what was added last stands in SQLite's log"
    assert content_of(whole, tmp_path / "copy", alone) == rows
    told: list[str] = []
    found = {name: 0 for name in whole if not name.endswith("-shm")}
    for name in found:
        for _ in range(60):
            place, bit = draw.randrange(len(whole[name])), 1 << draw.randrange(8)
            changed = bytearray(whole[name])
            changed[place] ^= bit
            try:
                after = content_of({**whole, name: bytes(changed)}, tmp_path / "copy", alone)
            except StorageError as error:
                told.append(str(error))
                found[name] += 1
            else:
                assert after == rows, f"{name}, byte {place}"
    assert all(text.endswith(".") for text in told), "with a remedy"
    assert found["a.db-wal"]
    assert found["a.db.head"]
    assert not alone or found["a.db.1.pieces"] == 60


def content_of(files: dict[str, bytes], folder: Path, alone: bool) -> list[Row]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in files.items():
        if not name.endswith("-shm"):
            (folder / name).write_bytes(data)
    return content(folder / "a.db", alone)


def test_a_torn_end_is_dropped_and_a_damaged_one_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "whole"
    with FileStore(folder / "a.db", alone=True) as store:
        store.append("turns", ENTRIES[0])
        before = files_of(folder)
        store.append("turns", ENTRIES[1])
        after = files_of(folder)
    # killed while it wrote: pieces and half of SQLite's log are there, the head is not
    grown = len(after["a.db-wal"]) - len(before["a.db-wal"])
    for part in (0, 1, grown // 2, grown - 1):
        torn = {**after, "a.db.head": before["a.db.head"]}
        torn["a.db-wal"] = after["a.db-wal"][: len(before["a.db-wal"]) + part]
        assert len(content_of(torn, tmp_path / "copy", True)) == 1
    # the head says that it was committed
    with pytest.raises(StorageError, match="was there and is not any more") as damaged:
        content_of({**after, "a.db-wal": before["a.db-wal"]}, tmp_path / "copy", True)
    assert damaged.value.code == "damaged"


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE turns SET kind = 'other' WHERE number = 2",
        "UPDATE turns SET content = replace(content, '2.5', '2.6') WHERE number = 2",
        "DELETE FROM turns WHERE number = 1",
        "DELETE FROM turns WHERE number = 2",
        "DELETE FROM turns WHERE number = 3",
        "DELETE FROM turns",
        "INSERT INTO turns VALUES (4, 'turn', '[{},[],[1,0,[]]]', x'00')",
        "UPDATE turns SET number = 7 WHERE number = 3",
        "UPDATE turns SET kind = x'00' WHERE number = 1",
        "UPDATE turns SET content = '[' WHERE number = 3",
        "DROP TABLE audit",
        "CREATE TABLE more (a)",
        "DROP TRIGGER audit_no_delete",
        "PRAGMA user_version = 9",
        "PRAGMA application_id = 9",
    ],
)
def test_what_others_change_is_found(statement: str, tmp_path: Path) -> None:
    written(tmp_path / "a.db")
    connection = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    connection.execute(statement)
    connection.close()
    with pytest.raises(StorageError):
        content(tmp_path / "a.db")


def test_a_file_that_vanishes_or_is_replaced_is_not_written_to(tmp_path: Path) -> None:
    written(tmp_path / "b.db")
    with FileStore(tmp_path / "a.db", alone=True) as store:
        store.append("turns", ENTRIES[0])
        os.replace(tmp_path / "b.db", tmp_path / "a.db")
        with pytest.raises(StorageError, match="replaced"):
            store.append("turns", ENTRIES[0])
        (tmp_path / "a.db").unlink()
        with pytest.raises(StorageError):
            store.append("turns", ENTRIES[0])
    with pytest.raises(StorageError, match="closed"):
        store.append("turns", ENTRIES[0])


@pytest.mark.parametrize("name", ["a.db", "a.db.head", "a.db-wal", "a.db.1.pieces"])
def test_no_link_is_followed(name: str, tmp_path: Path) -> None:
    written(tmp_path / "a.db")
    elsewhere = tmp_path / "elsewhere"
    if (tmp_path / name).exists():
        (tmp_path / name).rename(elsewhere)
    else:
        elsewhere.write_bytes(b"")
    for link in (os.symlink, os.link):
        link(elsewhere, tmp_path / name)
        with pytest.raises(StorageError, match="no links"):
            FileStore(tmp_path / "a.db", alone=True)
        (tmp_path / name).unlink()


@pytest.mark.parametrize("data", [b"", b"SQLite format 3\0" + bytes(84), b"x" * 5000, b"CFJL\2\0"])
def test_other_files_are_refused(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "a.db").write_bytes(data)
    (tmp_path / "a.db.head").write_bytes(bytes(SLOT * len(LOGS)))
    with pytest.raises(StorageError):
        FileStore(tmp_path / "a.db")
    assert (tmp_path / "a.db").read_bytes() == data


@pytest.mark.parametrize("name", ["coordinator.journal", "plant.journal", "audit.jsonl"])
def test_a_folder_of_the_former_version_is_refused_with_the_remedy(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"CFJL\2\0")
    remedy = r"finish or delete the job with version 0\.1.*start the job again"
    with pytest.raises(StorageError, match=remedy) as refused:
        FileStore(tmp_path / "session.db", former=[name])
    assert refused.value.code == "format"
    assert [place.name for place in tmp_path.iterdir()] == [name]


def test_without_its_head_a_store_is_damaged(tmp_path: Path) -> None:
    written(tmp_path / "a.db")
    (tmp_path / "a.db.head").unlink()
    with pytest.raises(StorageError, match="head is missing"):
        content(tmp_path / "a.db")


# ---- disks and kills


def _until_full(path: Path) -> None:
    import resource

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
    with FileStore(path, alone=True) as store:
        for _ in range(4):
            store.append("turns", Entry("turn", {}, [b"x" * 60_000]))
        with pytest.raises(StorageError) as full:
            store.append("turns", Entry("turn", {}, [b"x" * 100_000]))
        assert full.value.code == "full"
        with pytest.raises(StorageError):
            store.begin_anew("turns", [Entry("turn", {}, [b"x" * 400_000])])
        store.append("turns", Entry("turn", {}, [b"y"]))


def test_a_full_disk_is_an_error_and_never_half_a_row(tmp_path: Path) -> None:
    """A limit on the size of files is as good as a full disk."""
    process = SPAWN.Process(target=_until_full, args=(tmp_path / "a.db",))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert [row.pieces for row in content(tmp_path / "a.db")] == [(b"x" * 60_000,)] * 4 + [(b"y",)]


def _add_for_ever(path: Path, said: Any) -> None:
    with FileStore(path, alone=True) as store:
        first = len(list(store.rows("turns")))
        for k in range(100_000):
            number = store.append("turns", Entry("turn", {"k": first + k}, [os.urandom(3000)])).number
            if k % 7 == 3:
                store.begin_anew("turns", [], lambda row, number=number: row.number > number - 3)
            said.send(k)


def test_killed_at_any_moment_it_goes_on(tmp_path: Path) -> None:
    path, draw = tmp_path / "a.db", random.Random(1)
    for _ in range(6):
        here, there = SPAWN.Pipe(duplex=False)
        process = SPAWN.Process(target=_add_for_ever, args=(path, there))
        process.start()
        there.close()
        for _ in range(draw.randrange(1, 40)):
            here.recv()
        process.kill()
        process.join()
        assert content(path), "what was acknowledged is there"


def test_what_is_acknowledged_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr("os.fdatasync", synced.append)
    with FileStore(tmp_path / "a.db", alone=True) as store:
        (level,) = store._connection.execute("PRAGMA synchronous").fetchone()  # type: ignore[union-attr]
        store.append("turns", ENTRIES[1])
    assert level == 2
    assert len(synced) == 1
    assert database.SYNCHRONOUS == "FULL"
    assert FORM.version == 1


def test_the_version_changes_with_the_log_whoever_writes(opened: Opened, tmp_path: Path) -> None:
    store = opened()
    seen = [store.version("questions")]

    def changed() -> bool:
        seen.append(store.version("questions"))
        return seen[-1] != seen[-2]

    assert not changed()
    store.append("questions", ENTRIES[1])
    assert changed()
    list(store.rows("questions"))
    seen.append(store.version("questions"))
    assert not changed()
    store.begin_anew("questions", [])
    assert changed()
    if (tmp_path / "a.db").exists() and not getattr(store, "_alone", True):
        with FileStore(tmp_path / "a.db") as other:
            other.append("questions", ENTRIES[1])
            assert changed()
            list(store.rows("questions"))
            seen.append(store.version("questions"))
            other.begin_anew("questions", [], lambda row: True)
            assert changed()
            assert len(list(store.rows("questions"))) == 1


def test_a_box_that_nobody_touches_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, other = FileStore(tmp_path / "a.db"), QuestionBox(tmp_path / "a.db")
    box, reads, honest = QuestionBox(store), [], store.rows
    monkeypatch.setattr(store, "rows", lambda *given: reads.append(given) or honest(*given))
    name = other.put([b"x" * 10_000])
    for _ in range(100):
        assert box.waiting() == [name]
    assert len(reads) <= 2
    box.settle(name, [b"this"])
    assert other.answer(name, 0) == [b"this"]
    assert box.waiting() == []
    assert len(reads) <= 6
    store.close()
