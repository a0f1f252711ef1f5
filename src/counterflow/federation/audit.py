"""What left a plant, when, to whom and under which job: JSON lines, each sealed with the one before it.

A line is one record and holds the SHA-256 of its own content and that of the line before, so that a line which was
changed, removed or added by other means is found. What cannot be found here: that the last lines have been lost
together, and somebody who may write the file and computes the chain anew.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from counterflow.errors import OptionError, StorageError
from counterflow.federation.durable import AddedFile

LONGEST_LINE = 100_000  # bytes
FIRST = "0" * 64  # what the first line has for the one before
_OWN = ("number", "time", "previous", "hash")
_CHUNK = 1 << 20


@dataclass(frozen=True)
class Checked:
    """What ``verify`` found: how many records are in order, and the first line that is not (None: all are).

    ``torn``: whether that is the last line, without its end: a crash while it was written. The next writer repairs it.
    """

    records: int
    broken: int | None = None
    reason: str = ""
    torn: bool = False

    def __str__(self) -> str:
        good = f"{self.records} records in order"
        return good if self.broken is None else f"{good}; line {self.broken}: {self.reason}"


class Audit:
    """An append-only log of records, shared by all processes of a plant; one of them writes at a time.

    Opening checks every line; a last line that a crash has torn is taken off, and a record says so.

    Examples
    --------
    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp()) / "audit.jsonl"
    >>> with Audit(place) as audit:
    ...     audit.write("approved", job="j1", kind="Sufficient")["number"]
    1
    >>> print(verify(place))
    1 records in order
    """

    def __init__(self, path: str | Path, clock: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._clock = clock
        self._file = AddedFile(Path(path).absolute(), "audit log")
        self._end, self._last, self._number = 0, FIRST, 0
        self._approved: dict[tuple[str, str], dict[str, Any]] = {}
        try:
            self.refresh()
        except BaseException:
            self._file.close()
            raise

    @property
    def path(self) -> Path:
        return self._file.path

    def write(self, event: str, **fields: Any) -> dict[str, Any]:
        """Add a record; it is on the disk when this returns. The record as written."""
        with self._file.taken():
            self._take_in()
            return self._add({"event": event, **fields})

    def approved(self, job: str, digest: str) -> dict[str, Any] | None:
        """The record that approved these bytes (their SHA-256) for that job, by any process; None if there is none."""
        if (job, digest) not in self._approved:
            self.refresh()
        return self._approved.get((job, digest))

    def refresh(self) -> None:
        """Take in what other processes have written."""
        with self._file.taken():
            self._take_in()

    def records(self) -> Iterator[dict[str, Any]]:
        """All records, in order."""
        self.refresh()
        with open(self.path, "rb") as lines:
            for line in lines:
                yield json.loads(line)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def __enter__(self) -> Audit:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # ---- inside, while nobody else writes

    def _take_in(self) -> None:
        size = self._file.size
        if size < self._end:
            raise StorageError(f"{self._file.name} has become shorter: restore it from a backup that has every record.")
        rest = b""
        at = self._end
        while at < size:
            chunk = self._file.read(at, min(_CHUNK, size - at))
            at += len(chunk)
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                self._absorb(line)
                self._end += len(line) + 1
            if len(rest) > LONGEST_LINE:
                self._absorb(rest)  # refuses: no line is so long, torn or not
        if rest:
            self._repair(size)

    def _absorb(self, line: bytes) -> None:
        record, reason = _parsed(line, self._number + 1, self._last)
        if record is None:
            raise StorageError(
                f"{self._file.name} has been changed or damaged in line {self._number + 1}: {reason}. Find out how; "
                "then restore it from a backup that has every record. Nothing leaves this plant meanwhile."
            )
        self._note(record)

    def _note(self, record: dict[str, Any]) -> None:
        self._number, self._last = record["number"], record["hash"]
        if record["event"] == "approved":
            self._approved[str(record.get("job")), str(record.get("sha256"))] = record

    def _repair(self, size: int) -> None:
        """A last line without its end: a crash while it was written."""
        torn = self._file.read(self._end, size - self._end)
        self._file.cut(self._end)
        self._add({"event": "repaired", "dropped_bytes": len(torn), "dropped_sha256": hashlib.sha256(torn).hexdigest()})

    def _add(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        for name in fields:
            if name in _OWN:
                raise OptionError(f"{self._file.name}: a record has its own field {name!r}; call yours otherwise")
        record: dict[str, Any] = {
            "number": self._number + 1,
            "time": self._clock().isoformat(timespec="milliseconds"),
            **fields,
            "previous": self._last,
        }
        record["hash"] = _hash(record)
        line = _text(record) + b"\n"
        if len(line) > LONGEST_LINE:
            raise OptionError(f"{self._file.name}: a record of {len(line)} bytes is over the limit of {LONGEST_LINE}")
        self._file.add(line)
        self._end += len(line)
        self._note(record)
        return record


def verify(path: str | Path) -> Checked:
    """Check an audit log from the first line to the last, without writing; finds the first broken line."""
    number, last = 0, FIRST
    try:
        with open(path, "rb") as lines:
            while line := lines.readline(LONGEST_LINE + 1):
                if not line.endswith(b"\n"):
                    torn = len(line) <= LONGEST_LINE
                    return Checked(number, number + 1, "it has no end" if torn else "it is too long", torn)
                record, reason = _parsed(line[:-1], number + 1, last)
                if record is None:
                    return Checked(number, number + 1, reason)
                number, last = record["number"], record["hash"]
    except OSError as error:
        raise StorageError(f"the audit log {str(path)!r} cannot be read: {error.strerror or error}.") from error
    return Checked(number)


def _parsed(line: bytes, number: int, last: str) -> tuple[dict[str, Any] | None, str]:
    """The record of a line, or None and what is wrong with it."""
    if len(line) > LONGEST_LINE:
        return None, "it is too long"
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None, "it is not JSON"
    if not isinstance(record, dict) or not isinstance(record.get("hash"), str) or "event" not in record:
        return None, "it is not a record"
    if record.get("number") != number:
        return None, f"it has number {record.get('number')!r:.20}, {number} is due"
    if record.get("previous") != last:
        return None, "it does not continue the line before"
    try:
        same = _text(record) == line and _hash(record) == record["hash"]
    except (ValueError, RecursionError):
        same = False
    if not same:
        return None, "its content is not what was sealed"
    return record, ""


def _hash(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(_text({k: v for k, v in record.items() if k != "hash"})).hexdigest()


def _text(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")
