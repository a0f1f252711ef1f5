"""The audit log: every line sealed with the one before it, torn ends repaired and told, writers one at a time."""

from __future__ import annotations

import json
import multiprocessing
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest

from counterflow.errors import OptionError, StorageError
from counterflow.federation import Audit, verify


def written(path: Path, count: int = 4) -> list[str]:
    with Audit(path) as audit:
        for k in range(count):
            audit.write("approved", job="j", sha256=str(k), reason="Ä\n\ud800")
    return path.read_text().splitlines()


def test_lines_are_a_chain(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    lines = [json.loads(line) for line in written(path)]
    assert [line["number"] for line in lines] == [1, 2, 3, 4]
    assert lines[0]["previous"] == "0" * 64
    assert all(b["previous"] == a["hash"] for a, b in pairwise(lines))
    assert verify(path).records == 4
    assert verify(path).broken is None
    with Audit(path) as audit:
        assert [r["number"] for r in audit.records()] == [1, 2, 3, 4]
        assert audit.approved("j", "2")["number"] == 3  # type: ignore[index]
        assert audit.approved("j", "7") is None
        assert audit.approved("k", "2") is None
        with pytest.raises(OptionError, match="its own field 'hash'"):
            audit.write("x", hash="1")
        with pytest.raises(OptionError, match="over the limit"):
            audit.write("x", text="y" * 100_000)
    assert verify(path).records == 4
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("line", range(4))
@pytest.mark.parametrize("how", ["change", "remove", "double", "swap", "insert"])
def test_the_first_broken_line_is_found(how: str, line: int, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    lines = written(path)
    if how == "change":
        lines[line] = lines[line].replace('"sha256":"', '"sha256":"9')
    elif how == "remove":
        del lines[line]
    elif how == "double":
        lines.insert(line, lines[line])
    elif how == "swap":
        lines[line], lines[line - 1] = lines[line - 1], lines[line]
    else:
        lines.insert(line, '{"event":"approved"}')
    path.write_text("\n".join(lines) + "\n")
    found = verify(path)
    if how == "remove" and line == 3:
        assert found.broken is None  # that the end is missing cannot be seen here: see the session's own check
        return
    first = {"double": line + 2, "swap": 1 if line == 0 else line}.get(how, line + 1)
    assert found.broken == first
    assert found.records == first - 1
    assert not found.torn
    with pytest.raises(StorageError, match=f"line {first}"):
        Audit(path)


def test_a_torn_last_line_is_repaired_and_told(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    whole = "\n".join(written(path)) + "\n"
    for cut in (1, 2, 100):
        path.write_text(whole[:-cut])
        assert verify(path).torn
        assert verify(path).broken == 4
        with Audit(path) as audit:
            audit.write("approved", job="j", sha256="new")
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [line["event"] for line in lines[2:]] == ["approved", "repaired", "approved"]
        assert lines[3]["dropped_bytes"] > 0
        assert verify(path).broken is None


def test_a_line_that_never_ends_is_no_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    written(path)
    with open(path, "a") as file:
        file.write("x" * 3_000_000)
    assert not verify(path).torn
    with pytest.raises(StorageError, match="too long"):
        Audit(path)


def test_a_log_that_becomes_shorter_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    lines = written(path)
    with Audit(path) as audit:
        path.write_text(lines[0] + "\n")
        with pytest.raises(StorageError, match="shorter"):
            audit.write("approved")


def _write_many(path: Path, name: str) -> None:
    with Audit(path) as audit:
        for k in range(20):
            audit.write("approved", job=name, sha256=str(k))


def test_writers_of_several_processes_take_turns(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_write_many, args=(path, name)) for name in ("a", "b")]
    with Audit(path) as audit:
        for writer in writers:
            writer.start()
        for k in range(20):
            audit.write("approved", job="c", sha256=str(k))
        for writer in writers:
            writer.join()
            assert writer.exitcode == 0
        assert verify(path).records == 60
        assert verify(path).broken is None
        assert all(audit.approved(job, "19") for job in "abc"), "what others wrote is seen"


def test_clocks_that_go_backwards_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for year in (2040, 1999):
        with Audit(path, clock=lambda year=year: datetime(year, 1, 1, tzinfo=UTC)) as audit:
            audit.write("approved")
    assert verify(path).broken is None


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be read"):
        verify(tmp_path / "nothing")
