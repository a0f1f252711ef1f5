"""What left a plant, when, to whom and under which job: records that are only ever added, each sealed with the one
before it.

"approved": the guard has nothing against these bytes, and the budget would pay for them; they may never leave.
"left": they are on the disk and, if private, charged; this record written, they are handed to the engine. So what has
left has such a record, once; that it arrived is not said.

A record that was changed, removed or added by other means is found, also if the last ones are missing. What cannot be
found here: that the whole store was put back from an old copy, and somebody who may write it and computes all anew.
The ledger is compared with it elsewhere (``reconciliation``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from counterflow.errors import StorageError
from counterflow.privacy import Mark
from counterflow.sealed_log import DatabaseSchema, Entry, Row, SealedLogs

FILE = "site.db"
SITE = DatabaseSchema(
    "store", 0x4346_5354, 2, {"audit": True, "questions": False},  # "CFST"
    restore="Find out how; then restore it from a backup with all files beside it",
    give="give the folder of a site of Counterflow",
)  # fmt: skip
LOG = "audit"


@dataclass(frozen=True)
class Checked:
    """What ``verify`` found: how many records are in order, and the first one that is not (None: all are)."""

    records: int
    broken: int | None = None
    reason: str = ""

    def __str__(self) -> str:
        good = f"{self.records} records in order"
        return good if self.broken is None else f"{good}; record {self.broken}: {self.reason}"


@dataclass
class _Known:
    """What the records up to one number tell."""

    number: int = 0
    approved: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)  # by job and digest
    left: dict[str, set[str]] = field(default_factory=dict)  # jobs by digest
    answered: set[tuple[str, str]] = field(default_factory=set)  # trials, by job and digest
    times: dict[str, dict[int, str]] = field(default_factory=dict)  # when each kind has left, by number of the record
    marks: dict[str, Mark] = field(default_factory=dict)


class Audit:
    """The audit log of a site, shared by all its processes; one of them writes at a time.

    Parameters
    ----------
    store : of the site, or the path of its file; opening checks every record.

    Examples
    --------
    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / FILE
    >>> with Audit(place) as audit:
    ...     audit.write("approved", job="j1", kind="Sufficient")["number"]
    1
    >>> print(verify(place))
    1 records in order
    """

    def __init__(
        self, store: SealedLogs | str | Path, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._store = SealedLogs(store, SITE) if isinstance(store, (str, Path)) else store
        self._clock = clock
        self._known, self._in_turn = _Known(), False
        try:
            self.refresh()
        except BaseException:
            self._store.close()
            raise

    def write(self, event: str, **fields: Any) -> dict[str, Any]:
        """Add a record; it is on the disk when this returns. The record as written."""
        table = {"time": self._clock().isoformat(timespec="milliseconds"), **fields}
        record = _record(self._store.append(LOG, Entry(event, table)))
        self._note(record)
        return record

    @contextmanager
    def turn(self) -> Iterator[None]:
        """While inside, no other process writes: what is counted and what is written because of it are one."""
        number = self._known.number
        try:
            with self._store.turn():
                self.refresh()
                number, self._in_turn = self._known.number, True
                yield
        except BaseException:
            if self._known.number != number:  # what was noted is not on the disk
                self._known = _Known()
            raise
        finally:
            self._in_turn = False

    def approved(self, job: str, digest: str) -> dict[str, Any] | None:
        """The record that approved these bytes (their SHA-256) for that job, by any process; None if there is none."""
        if (job, digest) not in self._known.approved:
            self.refresh()
        return self._known.approved.get((job, digest))

    def has_left(self, digest: str, job: str | None = None) -> bool:
        """Whether these bytes (their SHA-256) have left, under that job or any, as far as any process has written."""
        if digest not in self._known.left:
            self.refresh()
        jobs = self._known.left.get(digest, set())
        return bool(jobs) if job is None else job in jobs

    def left_since(self, kind: str, age: timedelta) -> int:
        """How many messages of a kind have left within the time before now; older ones are not asked about again."""
        self.refresh()
        since = (self._clock() - age).isoformat(timespec="milliseconds")
        recent = {number: time for number, time in self._known.times.get(kind, {}).items() if time > since}
        self._known.times[kind] = recent
        return len(recent)

    def has_answered(self, trial: str, job: str) -> bool:
        """Whether that message of the coordinator (its SHA-256) has been answered under that job."""
        if (job, trial) not in self._known.answered:
            self.refresh()
        return (job, trial) in self._known.answered

    @property
    def marks(self) -> Mapping[str, Mark]:
        """How far each ledger had come when it was last written down, as far as this was refreshed."""
        return self._known.marks

    def refresh(self) -> None:
        """Take in what other processes have written; in a turn there is nothing."""
        if self._in_turn:
            return
        for row in self._store.rows(LOG, self._known.number):
            self._known.number = row.number
            self._note(_record(row))

    def records(self) -> Iterator[dict[str, Any]]:
        """All records, in order."""
        return map(_record, self._store.rows(LOG))

    def close(self) -> None:
        """Let go of the store."""
        self._store.close()

    def __enter__(self) -> Audit:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _note(self, record: dict[str, Any]) -> None:
        job, digest = str(record.get("job")), str(record.get("sha256"))
        if record["event"] == "approved":
            self._known.approved[job, digest] = record
        elif record["event"] == "left":
            self._known.left.setdefault(digest, set()).add(job)
            if "trial" in record:
                self._known.answered.add((job, str(record["trial"])))
            self._known.times.setdefault(str(record.get("kind")), {})[int(record["number"])] = str(record["time"])
        if record.get("mark") is not None:
            mark = Mark(*record["mark"])
            self._known.marks[mark.ledger] = mark


def verify(path: str | Path) -> Checked:
    """Check an audit log from the first record to the last; finds the first broken one.

    Raises
    ------
    StorageError
        There is none, or it cannot be read.
    """
    if not Path(path).is_file():
        raise StorageError(f"the audit log {str(path)!r} cannot be read: there is none.")
    good = 0
    try:
        with SealedLogs(path, SITE, make=False) as store:
            for row in store.rows(LOG):
                good = row.number
    except StorageError as error:
        if error.code != "damaged":
            raise
        return Checked(good, good + 1, str(error))
    return Checked(good)


def _record(row: Row) -> dict[str, Any]:
    return {"number": row.number, "event": row.kind, **row.table, "hash": row.seal}
