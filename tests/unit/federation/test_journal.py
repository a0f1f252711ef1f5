"""The journal: what was written is there, a torn end is dropped, any other damage is refused."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
from pathlib import Path

import pytest

from counterflow.errors import StorageError
from counterflow.federation import Journal
from counterflow.federation.durable import AddedFile

RECORDS = [(1, b""), (2, b"x" * 100), (65535, bytes(range(256)) * 5)]


def written(path: Path) -> bytes:
    with Journal(path) as journal:
        for kind, payload in RECORDS:
            journal.append(kind, payload)
    return path.read_bytes()


def contents(path: Path) -> list[tuple[int, bytes]]:
    with Journal(path) as journal:
        return [(record.kind, record.payload) for record in journal.records()]


def test_records_come_back_in_order_and_by_position(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "folder" / "a.journal"
    with Journal(path) as journal:
        positions = [journal.append(kind, payload) for kind, payload in RECORDS]
        assert [(r.kind, r.payload) for r in journal.records()] == RECORDS
        assert [journal.read(at)[1:] for at in positions] == RECORDS
    assert contents(path) == RECORDS
    assert path.stat().st_mode & 0o777 == 0o600


def test_each_record_is_on_the_disk_before_append_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.journal"
    with Journal(path) as journal:
        synced: list[int] = []
        real = os.fsync
        monkeypatch.setattr("os.fsync", lambda handle: (real(handle), synced.append(os.fstat(handle).st_size)))
        journal.append(1, b"payload")
        assert synced == [path.stat().st_size]


def test_a_torn_end_is_dropped_wherever_it_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    whole = written(path)
    last = len(whole) - (2 + 8 + 4 + len(RECORDS[2][1]) + 32)
    for size in [*range(last, last + 50), *range(len(whole) - 40, len(whole))]:
        path.write_bytes(whole[:size])
        with Journal(path) as journal:
            assert journal.dropped == size - last
            journal.append(7, b"after")
        assert contents(path) == [*RECORDS[:2], (7, b"after")]


def test_a_file_that_has_grown_before_its_content_came_is_torn(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    whole = written(path)
    path.write_bytes(whole + bytes(3_000_000))
    assert contents(path) == RECORDS
    assert path.read_bytes() == whole
    path.write_bytes(whole[:-40] + bytes(40))  # the last record's own blocks were not written
    assert contents(path) == RECORDS[:2]


@pytest.mark.parametrize("size", range(6))
def test_a_torn_beginning_is_begun_again(size: int, tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    path.write_bytes(written(tmp_path / "b.journal")[:size])
    assert contents(path) == []


def test_every_other_damage_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    whole = written(path)
    last = len(whole) - (2 + 8 + 4 + len(RECORDS[2][1]) + 32)
    draw = random.Random(1)
    for at in [*range(6, last), *(last + draw.randrange(14) for _ in range(20))]:
        broken = bytearray(whole)
        broken[at] ^= 1 << draw.randrange(8)
        path.write_bytes(broken)
        with pytest.raises(StorageError, match="damaged"):
            Journal(path)
        assert path.read_bytes() == broken, "a damaged journal is left as it is"
    path.write_bytes(whole[:6] + whole[6 + 46 :])  # a whole record is gone
    with pytest.raises(StorageError, match="damaged"):
        Journal(path)


def test_foreign_files_are_refused_and_left_alone(tmp_path: Path) -> None:
    for content, text in ((b"hello, world", "not a journal"), (b"hi", "not a journal"), (b"CFJL\x01\x00", "format 1")):
        path = tmp_path / "a"
        path.write_bytes(content)
        with pytest.raises(StorageError, match=text):
            Journal(path)
        assert path.read_bytes() == content
    with pytest.raises(StorageError):
        Journal(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(StorageError):
        Journal(tmp_path / "link")
    assert not (tmp_path / "target").exists()


def test_there_is_one_writer(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    with Journal(path) as journal:
        with pytest.raises(StorageError, match="in use by another process"):
            Journal(path)
        with multiprocessing.get_context("spawn").Pool(1) as pool, pytest.raises(StorageError, match="in use"):
            pool.apply(contents, (path,))
        journal.append(1, b"x")
    assert contents(path) == [(1, b"x")]
    with pytest.raises(StorageError, match="closed"):
        journal.append(1, b"y")


def test_a_journal_that_begins_anew_has_the_new_records_only(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    written(path)
    with Journal(path) as journal:
        positions = journal.begin_anew([(5, b"snapshot"), (2, b"turn")])
        assert [journal.read(at)[1:] for at in positions] == [(5, b"snapshot"), (2, b"turn")]
        assert journal.size == path.stat().st_size
        journal.append(3, b"after")
        with pytest.raises(StorageError, match="in use by another process"):
            Journal(path)
        assert journal.path == path
    assert contents(path) == [(5, b"snapshot"), (2, b"turn"), (3, b"after")]
    assert path.stat().st_mode & 0o777 == 0o600
    assert [place.name for place in tmp_path.iterdir()] == ["a.journal"]


def test_whoever_has_opened_the_former_file_does_not_become_a_second_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One process opens the file, another puts a new one in its place and lets go of it, then the first takes it."""
    path = tmp_path / "a.journal"
    written(path)
    real = AddedFile.take

    def late(file: AddedFile) -> None:
        monkeypatch.setattr(AddedFile, "take", real)
        with Journal(path) as other:
            other.begin_anew([(5, b"snapshot")])
        real(file)

    monkeypatch.setattr(AddedFile, "take", late)
    with pytest.raises(StorageError, match="in use by another process"):
        Journal(path)
    assert contents(path) == [(5, b"snapshot")]


def test_a_draft_that_was_never_put_in_place_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.journal"
    whole = written(path)
    (tmp_path / "a.journal.next").write_bytes(whole[:100])
    with Journal(path) as journal:
        assert not (tmp_path / "a.journal.next").exists()
        (tmp_path / "a.journal.next").write_bytes(whole)
        journal.begin_anew([(1, b"x")])
    assert contents(path) == [(1, b"x")]


def test_the_old_journal_serves_on_if_there_is_no_room_for_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.journal"
    written(path)
    real = os.pwrite

    def full(handle: int, data: bytes, at: int) -> int:
        if at >= 40:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(handle, bytes(data)[:40], at)

    with Journal(path) as journal:
        with monkeypatch.context() as patch:
            patch.setattr("os.pwrite", full)
            with pytest.raises(StorageError, match="could not be written"):
                journal.begin_anew([(5, b"snapshot" * 20)])
        assert not journal.broken
        assert [place.name for place in tmp_path.iterdir()] == ["a.journal"]
        journal.append(9, b"on")
    assert contents(path) == [*RECORDS, (9, b"on")]


@pytest.mark.parametrize("call", ["os.replace", "counterflow.federation.durable.sync_folder"])
def test_nothing_is_added_before_it_is_known_which_file_is_in_place(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*arguments: object) -> None:
        if call == "os.replace" or not (tmp_path / "a.journal.next").exists():  # not when the draft is made
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    path = tmp_path / "a.journal"
    written(path)
    with Journal(path) as journal:
        monkeypatch.setattr(call, failing)
        with pytest.raises(StorageError, match="could not be put in its place"):
            journal.begin_anew([(5, b"snapshot")])
        assert journal.broken
        with pytest.raises(StorageError, match="open it again"):
            journal.append(9, b"lost?")
    monkeypatch.undo()
    assert contents(path) in (RECORDS, [(5, b"snapshot")])


def test_limits(tmp_path: Path) -> None:
    with Journal(tmp_path / "a", largest_record=10, largest_file=100) as journal:
        with pytest.raises(StorageError, match="over the limit of 10"):
            journal.append(1, b"x" * 11)
        with pytest.raises(StorageError, match="kind"):
            journal.append(1 << 16, b"")
        journal.append(1, b"x" * 10)
        with pytest.raises(StorageError, match="larger than 100 bytes"):
            journal.append(1, b"")
        assert len(list(journal.records())) == 1


@pytest.mark.parametrize("call", ["pwrite", "fsync"])
def test_a_full_disk_is_an_error_and_never_half_a_record(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.journal"
    journal = Journal(path)
    journal.append(1, b"whole")
    real = os.pwrite

    def full(handle: int, data: bytes, at: int) -> int:
        if at > 60:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(handle, bytes(data)[:7], at)

    def failing(handle: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(f"os.{call}", full if call == "pwrite" else failing)
        with pytest.raises(StorageError, match=r"Nothing was added\. Free some space"):
            journal.append(2, b"y" * 100)
    with pytest.raises(StorageError, match="open it again"):
        journal.append(3, b"z")
    journal.close()
    assert contents(path) == [(1, b"whole")]


def test_a_real_full_disk(tmp_path: Path) -> None:
    """/dev/full is a device, and refused as such; a limit on the size of files is as good as a full disk."""
    path = tmp_path / "a.journal"
    process = multiprocessing.get_context("spawn").Process(target=_until_full, args=(path,))
    process.start()
    process.join()
    assert process.exitcode == 0
    found = contents(path)
    assert found == [(1, b"x" * 1000)] * 5


def _until_full(path: Path) -> None:
    import resource
    import signal

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5500, 5500))
    with Journal(path) as journal:
        for _ in range(5):
            journal.append(1, b"x" * 1000)
        with pytest.raises(StorageError, match="could not be written"):
            journal.append(1, b"x" * 1000)
