"""Clocks that are wrong: nothing that is computed, charged or let out depends on the time of day."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import ClassVar

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from test_sessions import agree, job_of, lose_all, run

import counterflow.federation
from counterflow.federation import verify
from counterflow.federation.audit import FILE

# The only modules of federation that read a clock of the day, and why that is harmless:
# - audit, job: to write the time down, for people; nobody compares it with another
# - desk, members, admission: the age of a file on the same machine; a file too old is written anew
# - coordinator_folder, backup: to write the time down, for people
# - certificates: to say which of them end soon
# - job_gate: how many jobs came within the hour; a clock that jumps forgets them, or lets a job wait for an hour
READ_CLOCKS = {
    *("audit", "job", "desk", "members", "admission", "coordinator_folder", "certificates", "job_gate"),
    "backup",
}


class Jumping(datetime):
    """A clock that is a day late and a day early by turns."""

    calls: ClassVar[int] = 0

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Jumping:  # type: ignore[override]
        cls.calls += 1
        true = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=(-1) ** cls.calls, seconds=cls.calls)
        return cls.fromtimestamp(true.timestamp(), tz)


@pytest.mark.parametrize("case", ["sufficient private", "penalty gradient"])
def test_clocks_that_jump_by_days_change_nothing(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("counterflow.sealed_log.schema.SYNCHRONOUS", "OFF")
    monkeypatch.setattr("counterflow.federation.audit.datetime", Jumping)
    before = Jumping.calls
    agree(run(tmp_path, job_of(case), lose_all), case)
    assert Jumping.calls > before + 1, "the clock was read"
    for unit in ("boiler", "turbine"):
        assert verify(tmp_path / unit / FILE).broken is None


def test_no_other_module_reads_the_time_of_day() -> None:
    clock = re.compile(r"\btime\.time\(|\bdatetime\.(now|utcnow|today)\(|\btime\.(localtime|gmtime)\(")
    folder = Path(counterflow.federation.__file__).parent
    found = {place.stem for place in folder.rglob("*.py") if clock.search(place.read_text("utf-8"))}
    assert found <= READ_CLOCKS, "say why a wrong clock does no harm there"
