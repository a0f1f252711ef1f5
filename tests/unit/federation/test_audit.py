"""The audit log: every record sealed with the one before it, none lost in silence, writers one at a time."""

from __future__ import annotations

import sqlite3
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from counterflow.errors import StorageError
from counterflow.federation import Audit, verify
from counterflow.federation.audit import FILE


def written(path: Path, count: int = 4) -> list[dict[str, Any]]:
    with Audit(path) as audit:
        return [audit.write("approved", job="j", sha256=str(k), reason="Ä\n\ud800") for k in range(count)]


def test_records_are_a_chain(tmp_path: Path) -> None:
    path = tmp_path / FILE
    records = written(path)
    assert [record["number"] for record in records] == [1, 2, 3, 4]
    assert len({record["hash"] for record in records}) == 4
    assert verify(path).records == 4
    assert verify(path).broken is None
    with Audit(path) as audit:
        assert list(audit.records()) == records
        assert audit.approved("j", "2")["number"] == 3  # type: ignore[index]
        assert audit.approved("j", "7") is None
        assert audit.approved("k", "2") is None
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("number", range(1, 5))
def test_the_first_broken_record_is_found(number: int, tmp_path: Path) -> None:
    path = tmp_path / FILE
    written(path)
    connection = sqlite3.connect(path, isolation_level=None)
    (trigger,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = 'audit_no_update'").fetchone()
    connection.execute("DROP TRIGGER audit_no_update")  # somebody who means it
    connection.execute("UPDATE audit SET content = replace(content, 'j', 'k') WHERE number = ?", (number,))
    connection.execute(trigger)
    connection.close()
    found = verify(path)
    assert (found.records, found.broken) == (number - 1, number)
    assert found.reason
    with pytest.raises(StorageError) as damaged:
        Audit(path)
    assert damaged.value.code == "damaged"


def test_what_other_processes_write_is_seen(tmp_path: Path) -> None:
    with Audit(tmp_path / FILE) as audit, Audit(tmp_path / FILE) as other:
        other.write("approved", job="j", sha256="a")
        other.write("left", job="j", sha256="b")
        assert audit.approved("j", "a")
        assert audit.has_left("b", "j")
        assert not audit.has_left("b", "k")


def test_clocks_that_go_backwards_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / FILE
    for year in (2040, 1999):
        with Audit(path, clock=lambda year=year: datetime(year, 1, 1, tzinfo=UTC)) as audit:
            audit.write("approved")
    assert verify(path).broken is None


def test_what_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be read"):
        verify(tmp_path / "nothing")


def test_what_has_left_within_a_day_is_counted_over_restarts(tmp_path: Path) -> None:
    now = [datetime(2026, 1, 1, tzinfo=UTC)]
    place = tmp_path / "site.db"
    with Audit(place, clock=lambda: now[0]) as audit:
        for _ in range(3):
            audit.write("left", job="j", kind="Reaction", sha256="0")
            audit.write("left", job="j", kind="Terms", sha256="1")
        audit.write("refused", job="j", kind="Reaction")
        assert audit.left_since("Reaction", timedelta(days=1)) == 3
        now[0] += timedelta(hours=12)
        audit.write("left", job="j", kind="Reaction", sha256="2")
    with Audit(place, clock=lambda: now[0]) as audit, Audit(place, clock=lambda: now[0]) as other:
        assert audit.left_since("Reaction", timedelta(days=1)) == 4
        other.write("left", job="j", kind="Reaction", sha256="3")
        assert audit.left_since("Reaction", timedelta(days=1)) == 5, "another process counts, too"
        now[0] += timedelta(hours=13)
        assert audit.left_since("Reaction", timedelta(days=1)) == 2
