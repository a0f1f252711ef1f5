"""Sealed logs: one suite for memory and file, then what only a file can suffer."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import counterflow as cf
from counterflow.errors import StorageError
from counterflow.sealed_log import DatabaseSchema, Entry, Row, SealedLogs, schema

ADVICE = {"restore": "Restore it from a backup", "give": "give a diary"}
SHARED = DatabaseSchema("diary", 7, 3, {"books": True, "turns": False}, **ADVICE)  # type: ignore[arg-type]
ALONE = DatabaseSchema("diary", 7, 3, {"turns": False}, **ADVICE)  # type: ignore[arg-type]
ENTRIES = [
    Entry("opening", {"job": "j"}),
    Entry("turn", {"unit": "Ä\n\ud800", "n": [1, 2.5, None]}, [b"message", b"", b"x" * 5000]),
    Entry("turn", {}, [b"last"]),
]
SPAWN = multiprocessing.get_context("spawn")


def plain(rows: Iterator[Row]) -> list[tuple[str, Any, tuple[bytes, ...]]]:
    return [(row.kind, row.table, row.pieces) for row in rows]


EXPECTED = [(entry.kind, entry.table, tuple(entry.pieces)) for entry in ENTRIES]


def logs_in(path: Path, alone: bool) -> SealedLogs:
    return SealedLogs(path, ALONE if alone else SHARED, alone=alone)


# ---- memory and file alike


@pytest.fixture(params=["memory", "file", "file alone"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], SealedLogs]]:
    """Opens the logs, and again after they were closed."""
    made = [SealedLogs(None, SHARED)] if request.param == "memory" else []

    def again() -> SealedLogs:
        if request.param != "memory":
            for one in made:
                one.close()
            made.append(logs_in(tmp_path / "a.db", request.param == "file alone"))
        return made[-1]

    yield again
    for one in made:
        one.close()


Opened = Callable[[], SealedLogs]


def test_rows_come_back_in_order_and_sealed(opened: Opened) -> None:
    logs = opened()
    written = [logs.append("turns", entry) for entry in ENTRIES]
    assert [row.number for row in written] == [1, 2, 3]
    assert len({row.seal for row in written}) == 3
    for k in range(2):
        again = opened() if k else logs
        assert list(again.rows("turns")) == written
        assert plain(again.rows("turns")) == EXPECTED
        assert list(again.rows("turns", after=2)) == written[2:]
        assert again.size("turns") > 5000


def test_a_turn_is_whole_or_nothing(opened: Opened) -> None:
    logs = opened()
    logs.append("turns", ENTRIES[0])

    def broken_off() -> None:
        with logs.turn():
            assert logs.append("turns", ENTRIES[1]).number == 2
            assert len(list(logs.rows("turns"))) == 2
            raise RuntimeError

    with pytest.raises(RuntimeError):
        broken_off()
    with logs.turn():
        assert len(list(logs.rows("turns"))) == 1
        assert [logs.append("turns", entry).number for entry in ENTRIES[1:]] == [2, 3]
    assert plain(opened().rows("turns")) == EXPECTED


def test_threads_count_and_append_as_one(opened: Opened) -> None:
    logs = opened()

    def work() -> None:
        for _ in range(10):
            with logs.turn():
                if len(list(logs.rows("turns"))) < 20:
                    logs.append("turns", ENTRIES[0])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [row.number for row in logs.rows("turns")] == list(range(1, 21))


def test_a_log_begins_anew_and_its_numbers_go_on(opened: Opened) -> None:
    logs = opened()
    for entry in ENTRIES:
        logs.append("turns", entry)
    logs.begin_anew("turns", [Entry("snapshot", {"a": 1}, [b"s"])])
    for k in range(2):
        again = opened() if k else logs
        assert plain(again.rows("turns")) == [("snapshot", {"a": 1}, (b"s",))]
        assert next(again.rows("turns")).number == 4
        assert again.size("turns") < 500
    assert opened().append("turns", ENTRIES[1]).number == 5
    assert plain(opened().rows("turns", after=4)) == EXPECTED[1:2]


def test_rows_are_kept_by_choice_and_a_log_can_be_emptied(opened: Opened) -> None:
    logs = opened()
    for k in range(4):
        logs.append("turns", Entry("turn", {"n": k}, [bytes([k])]))
    logs.begin_anew("turns", [], lambda row: row.table["n"] % 2 == 0)
    assert plain(logs.rows("turns")) == [("turn", {"n": 0}, (b"\0",)), ("turn", {"n": 2}, (b"\2",))]
    logs.begin_anew("turns", [])
    assert not list(logs.rows("turns"))
    assert opened().append("turns", Entry("turn", {})).number >= 7


def test_what_may_not_be_written(opened: Opened) -> None:
    logs = opened()
    logs.append("turns", ENTRIES[0])
    with pytest.raises(ValueError, match="JSON"):
        logs.append("turns", Entry("turn", {"a": float("nan")}))
    assert len(list(logs.rows("turns"))) == 1
    if logs.schema is SHARED:
        logs.append("books", ENTRIES[1])
        with pytest.raises(StorageError, match="only ever added"):
            logs.begin_anew("books", [])
        assert plain(logs.rows("books")) == EXPECTED[1:2]


def test_the_version_changes_with_the_log_whoever_writes(opened: Opened, tmp_path: Path) -> None:
    logs = opened()
    seen = [logs.version("turns")]

    def changed() -> bool:
        seen.append(logs.version("turns"))
        return seen[-1] != seen[-2]

    assert not changed()
    logs.append("turns", ENTRIES[1])
    assert changed()
    list(logs.rows("turns"))
    seen.append(logs.version("turns"))
    assert not changed()
    logs.begin_anew("turns", [])
    assert changed()
    if logs.path is not None and logs.schema is SHARED:
        with logs_in(tmp_path / "a.db", False) as other:
            other.append("turns", ENTRIES[1])
            assert changed()
            list(logs.rows("turns"))
            seen.append(logs.version("turns"))
            other.begin_anew("turns", [], lambda row: True)
            assert changed()
            assert len(list(logs.rows("turns"))) == 1


# ---- files


def written(path: Path, alone: bool = True) -> list[Row]:
    with logs_in(path, alone) as logs:
        return [logs.append(log, entry) for log in logs.schema.logs for entry in ENTRIES]


def content(path: Path, alone: bool = True) -> list[Row]:
    with logs_in(path, alone) as logs:
        return [row for log in logs.schema.logs for row in logs.rows(log)]


def test_only_the_owner_reads_it(tmp_path: Path) -> None:
    with logs_in(tmp_path / "in" / "a.db", True) as logs:
        logs.append("turns", ENTRIES[1])
        assert {place.stat().st_mode & 0o777 for place in (tmp_path / "in").iterdir()} == {0o600}
        assert (tmp_path / "in").stat().st_mode & 0o777 == 0o700


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    with logs_in(tmp_path / "a.db", True), pytest.raises(StorageError) as refused:
        logs_in(tmp_path / "a.db", True)
    assert refused.value.code == "in-use"
    logs_in(tmp_path / "a.db", True).close()


def _write(path: Path, name: str) -> None:
    with logs_in(path, False) as logs:
        for k in range(20):
            with logs.turn():  # what is counted and what is written because of it are one
                before = len(list(logs.rows("books")))
                logs.append("books", Entry("approved", {"by": name, "k": k, "before": before}))


def test_processes_take_turns_at_a_shared_store(tmp_path: Path) -> None:
    writers = [SPAWN.Process(target=_write, args=(tmp_path / "a.db", name)) for name in "ab"]
    for writer in writers:
        writer.start()
    _write(tmp_path / "a.db", "c")
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    rows = content(tmp_path / "a.db", alone=False)
    assert [row.number for row in rows] == [row.table["before"] + 1 for row in rows] == list(range(1, 61))
    for name in "abc":
        assert [row.table["k"] for row in rows if row.table["by"] == name] == list(range(20))


def files_of(folder: Path) -> dict[str, bytes]:
    return {place.name: place.read_bytes() for place in folder.iterdir()}


@pytest.mark.parametrize("alone", [True, False])
def test_no_flipped_bit_is_silent(alone: bool, tmp_path: Path) -> None:
    """In every file, with SQLite's own log beside it as a killed process leaves it: an error, or the same rows."""
    folder, draw = tmp_path / "whole", random.Random(3)
    with logs_in(folder / "a.db", alone) as logs:
        rows = [logs.append("turns", entry) for entry in ENTRIES]
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


def content_of(files: dict[str, bytes], folder: Path, alone: bool) -> list[Row]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, data in files.items():
        if not name.endswith("-shm"):
            (folder / name).write_bytes(data)
    return content(folder / "a.db", alone)


def test_a_torn_end_is_dropped_and_a_damaged_one_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "whole"
    with logs_in(folder / "a.db", True) as logs:
        logs.append("turns", ENTRIES[0])
        before = files_of(folder)
        logs.append("turns", ENTRIES[1])
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


def tampered(path: Path, *statements: str) -> None:
    """What somebody with an SQLite shell could do who takes the triggers off, and puts them back."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        for statement in statements:
            connection.execute(statement)
        for _, sql in triggers:
            connection.execute(sql)
    finally:
        connection.close()


@pytest.mark.parametrize("log", ["books", "turns"])
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE {} SET kind = 'other' WHERE number = 2",
        "UPDATE {} SET content = replace(content, '2.5', '2.6') WHERE number = 2",
        "UPDATE {} SET content = CAST(x'ffff' AS TEXT) WHERE number = 2",
        "UPDATE {} SET content = '[' WHERE number = 3",
        "UPDATE {} SET seal = x'00' WHERE number = 3",
        "UPDATE {} SET kind = x'00' WHERE number = 1",
        "UPDATE {} SET number = 7 WHERE number = 3",
        "UPDATE {} SET number = number - 1",
        "UPDATE {} SET number = 0 WHERE number = 1",
        "UPDATE {} SET number = -7 WHERE number = 1",
        "UPDATE {}_pieces SET data = x'00' WHERE place = 3 * 1048576",
        "DELETE FROM {}_pieces",
        "DELETE FROM {} WHERE number = 1",
        "DELETE FROM {} WHERE number = 2",
        "DELETE FROM {} WHERE number = 3",
        "DELETE FROM {}",
        "INSERT INTO {} VALUES (4, 'turn', '[{{}},[]]', x'00')",
    ],
)
def test_what_others_change_is_found(statement: str, log: str, tmp_path: Path) -> None:
    written(tmp_path / "a.db", alone=False)
    tampered(tmp_path / "a.db", statement.format(log))
    with pytest.raises(StorageError, match=r"a\.db' (has been changed|is damaged).*backup") as found:
        content(tmp_path / "a.db", alone=False)
    assert found.value.code == "damaged"


def test_an_honest_visit_with_a_shell_does_no_harm(tmp_path: Path) -> None:
    rows = written(tmp_path / "a.db", alone=False)
    tampered(tmp_path / "a.db", "SELECT * FROM turns", "VACUUM")
    assert content(tmp_path / "a.db", alone=False) == rows


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE books SET kind = 'other'",
        "DELETE FROM books",
        "DELETE FROM books_pieces",
        "INSERT INTO books SELECT 9, kind, content, seal FROM books WHERE number = 1",
        "INSERT OR REPLACE INTO books SELECT 1, 'other', content, seal FROM books WHERE number = 1",
    ],
)
def test_a_shell_cannot_change_by_mistake_what_is_only_added_to(statement: str, tmp_path: Path) -> None:
    written(tmp_path / "a.db", alone=False)
    connection = sqlite3.connect(tmp_path / "a.db")
    try:
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute(statement)
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("statement", "says", "code"),
    [
        ("DROP TABLE books", "tables", "damaged"),
        ("CREATE TABLE more (a)", "tables", "damaged"),
        ("CREATE VIEW v AS SELECT 1", "tables", "damaged"),
        ("ALTER TABLE turns ADD COLUMN note TEXT", "tables", "damaged"),
        ("ALTER TABLE turns RENAME TO spent", "tables", "damaged"),
        ("DROP TRIGGER books_no_delete", "triggers", "damaged"),
        ("PRAGMA user_version = 2", "format 2, this version of Counterflow knows 3", "format"),
        ("PRAGMA application_id = 9", "another application", "storage"),
    ],
)
def test_another_form_is_refused(statement: str, says: str, code: str, tmp_path: Path) -> None:
    written(tmp_path / "a.db", alone=False)
    connection = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    connection.execute(statement)
    connection.close()
    with pytest.raises(StorageError, match=says) as refused:
        content(tmp_path / "a.db", alone=False)
    assert refused.value.code == code


def test_a_change_under_open_logs_stops_them(tmp_path: Path) -> None:
    with logs_in(tmp_path / "a.db", False) as logs:
        for entry in ENTRIES:
            logs.append("books", entry)
        tampered(tmp_path / "a.db", "DELETE FROM books WHERE number = 3")
        with pytest.raises(StorageError, match="row 3 of 'books' was there"):
            logs.append("books", ENTRIES[0])


def test_a_file_that_vanishes_or_is_replaced_is_not_written_to(tmp_path: Path) -> None:
    written(tmp_path / "b.db")
    with logs_in(tmp_path / "a.db", True) as logs:
        logs.append("turns", ENTRIES[0])
        os.replace(tmp_path / "b.db", tmp_path / "a.db")
        with pytest.raises(StorageError, match="replaced"):
            logs.append("turns", ENTRIES[0])
        (tmp_path / "a.db").unlink()
        with pytest.raises(StorageError):
            logs.append("turns", ENTRIES[0])
    with pytest.raises(StorageError, match="closed"):
        logs.append("turns", ENTRIES[0])


@pytest.mark.parametrize("name", ["a.db", "a.db.head", "a.db-wal"])
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
            logs_in(tmp_path / "a.db", True)
        (tmp_path / name).unlink()


HOSTILE: dict[str, Callable[[Path, bytes], object]] = {
    "missing": lambda path, data: None,
    "text": lambda path, data: path.write_text("what was spent: nothing\n" * 100),
    "empty": lambda path, data: path.touch(),
    "directory": lambda path, data: path.mkdir(),
    "link to nowhere": lambda path, data: path.symlink_to(path.with_name("nowhere")),
    "link to itself": lambda path, data: path.symlink_to(path),
    "half of it": lambda path, data: path.write_bytes(data[: len(data) // 2]),
    "its first page": lambda path, data: path.write_bytes(data[:4096]),
    "its header": lambda path, data: path.write_bytes(data[:100]),
    "a header of nothing": lambda path, data: path.write_bytes(b"SQLite format 3\0" + bytes(84)),
    "zeros in it": lambda path, data: path.write_bytes(data[:4096] + bytes(len(data) - 4096)),
    "noise in it": lambda path, data: path.write_bytes(data[:4096] + random.Random(1).randbytes(len(data) - 4096)),
    "pipe": lambda path, data: os.mkfifo(path),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_another_kind_of_file_is_refused_by_name_and_left_alone(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    written(path, alone=False)
    data = path.read_bytes()
    path.unlink()
    HOSTILE[kind](path, data)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(StorageError) as refused:
        SealedLogs(path, SHARED, make=False)
    assert str(path) in str(refused.value)
    assert (path.read_bytes() if path.is_file() else None) == before


def test_one_of_many_makers_succeeds_and_nothing_is_overwritten(tmp_path: Path) -> None:
    outcomes: list[str] = []
    barrier = threading.Barrier(8)

    def make() -> None:
        barrier.wait()
        try:
            SealedLogs.create(tmp_path / "new" / "a.db", SHARED, "books", ENTRIES[1]).close()
            outcomes.append("made")
        except StorageError as error:
            outcomes.append("refused" if "exists" in str(error) else str(error))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["made"] + ["refused"] * 7
    assert sorted(os.listdir(tmp_path / "new")) == ["a.db", "a.db.head"]
    assert plain(iter(content(tmp_path / "new" / "a.db", False))) == EXPECTED[1:2]
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(StorageError, match="exists"):
        SealedLogs.create(tmp_path / "link", SHARED, "books", ENTRIES[0])


def test_a_creation_that_fails_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", fail)
        with pytest.raises(StorageError, match="No space left"):
            logs_in(tmp_path / "a.db", False)
    assert os.listdir(tmp_path) == ["a.db.head"]
    written(tmp_path / "a.db", alone=False)
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "x.db", tmp_path / ("x" * 300)):
        for make in (True, False):
            with pytest.raises(StorageError):
                SealedLogs(path, SHARED, make=make)


def test_a_fork_does_not_write_through_its_parents_connection(tmp_path: Path) -> None:
    with logs_in(tmp_path / "a.db", False) as logs:
        logs._process = -1  # as a child of fork sees it
        with pytest.raises(StorageError, match="another process"):
            logs.append("books", ENTRIES[0])
        logs._process = os.getpid()
        assert not list(logs.rows("books"))


def test_a_file_in_use_is_waited_for_and_then_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.db"
    with logs_in(path, False) as patient:
        holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        holder.execute("BEGIN IMMEDIATE")
        with monkeypatch.context() as patch:
            patch.setattr(schema, "BUSY_SECONDS", 0.1)
            with logs_in(path, False) as hasty:
                assert not list(hasty.rows("books")), "looking needs no turn"
                with pytest.raises(StorageError, match="in use by another process") as refused:
                    hasty.append("books", ENTRIES[0])
                assert refused.value.code == "in-use"
        release = threading.Timer(0.2, holder.execute, ["COMMIT"])
        release.start()
        assert patient.append("books", ENTRIES[0]).number == 1  # this one waits longer
        release.join()
        holder.close()


WITHOUT_PERMISSION = """
import os, sys
import fcntl, sqlite3  # while they may still be read
from pathlib import Path
from counterflow.errors import StorageError
from counterflow.sealed_log import DatabaseSchema, Entry, SealedLogs

folder, diary = Path(sys.argv[1]), DatabaseSchema("diary", 7, 3, {"books": True}, "Restore it", "give one")
path = folder / "a.db"
if os.geteuid() == 0:  # the superuser may do everything: be nobody
    os.chown(folder, 65534, 65534)
    os.setgid(65534)
    os.setuid(65534)
SealedLogs(path, diary).close()
for file_mode, folder_mode in ((0o000, 0o700), (0o400, 0o700), (0o600, 0o500), (0o600, 0o000)):
    path.chmod(file_mode)
    folder.chmod(folder_mode)
    try:
        with SealedLogs(path, diary) as logs:
            logs.append("books", Entry("day", {}))
    except StorageError as error:
        assert str(path) in str(error), error
        print("refused:", error)
    else:
        print("written")
    folder.chmod(0o700)
    path.chmod(0o600)
with SealedLogs(path, diary) as logs:
    assert logs.append("books", Entry("day", {})).number == 1  # with permission again, it goes on
assert sorted(os.listdir(folder)) == ["a.db", "a.db.head"]
"""


@pytest.mark.skipif(os.name == "nt", reason="permissions are others here")
def test_without_permission_nothing_is_written() -> None:
    path = os.pathsep.join([str(Path(cf.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", WITHOUT_PERMISSION, folder],
            capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path}, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 4
    assert all(line.startswith("refused: ") for line in lines), lines


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
    with logs_in(path, True) as logs:
        for _ in range(3):
            logs.append("turns", Entry("turn", {}, [b"x" * 60_000]))
        with pytest.raises(StorageError, match="disk"):
            logs.append("turns", Entry("turn", {}, [b"x" * 100_000]))
        with pytest.raises(StorageError, match="disk"):
            logs.begin_anew("turns", [Entry("turn", {}, [b"x" * 400_000])])
        logs.append("turns", Entry("turn", {}, [b"y"]))


def test_a_full_disk_is_an_error_and_never_half_a_row(tmp_path: Path) -> None:
    """A limit on the size of files is as good as a full disk."""
    process = SPAWN.Process(target=_until_full, args=(tmp_path / "a.db",))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert [row.pieces for row in content(tmp_path / "a.db")] == [(b"x" * 60_000,)] * 3 + [(b"y",)]
    with logs_in(tmp_path / "a.db", True) as logs:
        assert logs._connection is not None
        logs._connection.execute("PRAGMA max_page_count = 1")  # what SQLite says where there is no space left
        with pytest.raises(StorageError, match="free some space") as full:
            logs.append("turns", Entry("turn", {}, [b"x" * 100_000]))
        assert full.value.code == "full"


def _add_for_ever(path: Path, said: Any) -> None:
    with logs_in(path, True) as logs:
        for k in range(100_000):
            number = logs.append("turns", Entry("turn", {"k": k}, [os.urandom(3000)])).number
            if k % 7 == 3:
                logs.begin_anew("turns", [], lambda row, number=number: row.number > number - 3)
            said.send(number)


def test_killed_at_any_moment_it_goes_on(tmp_path: Path) -> None:
    path, draw = tmp_path / "a.db", random.Random(1)
    for _ in range(6):
        here, there = SPAWN.Pipe(duplex=False)
        process = SPAWN.Process(target=_add_for_ever, args=(path, there))
        process.start()
        there.close()
        acknowledged = [here.recv() for _ in range(draw.randrange(1, 40))]
        process.kill()
        process.join()
        assert content(path)[-1].number >= acknowledged[-1], "what was acknowledged is there"


def test_what_is_acknowledged_is_synced(tmp_path: Path) -> None:
    for alone in (True, False):
        with logs_in(tmp_path / f"{alone}.db", alone) as logs:
            assert logs._connection is not None
            assert logs._connection.execute("PRAGMA synchronous").fetchone() == (2,)
            assert logs._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
