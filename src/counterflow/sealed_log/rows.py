"""Rows, their seals, and what keeps them: the interface of a file's logs, and the same in memory.

A row is a kind, a small table in plain types and any number of byte strings. Its seal is the SHA-256 of all of that,
of its number and of the seal before it. A log can begin anew: its first row then continues nothing, and numbers go on.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from counterflow.errors import OptionError
from counterflow.sealed_log.schema import DatabaseSchema

LARGEST_TABLE = 64 << 20  # characters of a row's table
MOST_PIECES = 1 << 20


class Row(NamedTuple):
    """One row of a log; ``seal`` in hexadecimal digits."""

    number: int
    kind: str
    table: dict[str, Any]
    pieces: tuple[bytes, ...]
    seal: str


class Entry(NamedTuple):
    """A row to be written. ``digests``: SHA-256 of the pieces, if they are known already."""

    kind: str
    table: Mapping[str, Any]
    pieces: Sequence[bytes] = ()
    digests: Sequence[bytes] | None = None


class SealedLogs(Protocol):
    """Logs of rows that survive a kill at any moment."""

    @property
    def name(self) -> str:
        """How errors call them."""

    def append(self, log: str, entry: Entry) -> Row:
        """Add a row; it is on the disk when this returns, or, inside a turn, when that ends."""

    def turn(self) -> AbstractContextManager[object]:
        """While inside, nobody else writes: what is read and appended here is one; an error takes all of it back."""

    def rows(self, log: str, after: int = 0) -> Iterator[Row]:
        """Rows with larger numbers, in order and checked; of all processes."""

    def version(self, log: str) -> object:
        """A value that is another one whenever any process has changed the log; cheap, and to be asked before rows."""

    def begin_anew(self, log: str, entries: Sequence[Entry], keep: Callable[[Row], bool] | None = None) -> None:
        """Replace a log by those of its rows that are to be kept, renumbered, and ``entries``: all or nothing."""

    def size(self, log: str) -> int:
        """Bytes of the rows that were read or written here since the log began."""

    def close(self) -> None:
        """Let go of them. Nothing is lost without it."""


class MemoryLogs:
    """The same in memory, for tests and for what ends with the process.

    Examples
    --------
    >>> schema = DatabaseSchema("diary", 1, 1, {"days": False}, restore="Begin again", give="give a diary")
    >>> logs = MemoryLogs(schema)
    >>> logs.append("days", Entry("rain", {"mm": 3}, [b"a picture"])).number
    1
    >>> [(row.kind, row.pieces) for row in logs.rows("days")]
    [('rain', (b'a picture',))]
    """

    def __init__(self, schema: DatabaseSchema) -> None:
        self.schema, self.name = schema, schema.named(None)
        self._lock = threading.RLock()
        self._logs: dict[str, list[Row]] = {log: [] for log in schema.logs}
        self._last = dict.fromkeys(schema.logs, 0)

    def append(self, log: str, entry: Entry) -> Row:
        """See ``SealedLogs``."""
        with self._lock:
            rows = self._logs[self.schema.known(log)]
            made = sealed(self.name, log, self._last[log] + 1, bytes.fromhex(rows[-1].seal) if rows else b"", entry)
            self._last[log] = made.row.number
            rows.append(made.row)
            return made.row

    @contextmanager
    def turn(self) -> Iterator[object]:
        """See ``SealedLogs``."""
        with self._lock:
            before = {log: list(rows) for log, rows in self._logs.items()}, dict(self._last)
            try:
                yield None
            except BaseException:
                self._logs, self._last = before
                raise

    def rows(self, log: str, after: int = 0) -> Iterator[Row]:
        """See ``SealedLogs``."""
        rows = self._logs[self.schema.known(log)]
        return iter(rows[max(after + 1 - rows[0].number, 0) :] if rows else [])

    def version(self, log: str) -> object:
        """See ``SealedLogs``."""
        return self._last[self.schema.known(log)], len(self._logs[log])

    def begin_anew(self, log: str, entries: Sequence[Entry], keep: Callable[[Row], bool] | None = None) -> None:
        """See ``SealedLogs``."""
        self.schema.refuse_anew(log)
        with self.turn():
            kept = [Entry(*row[1:4]) for row in self._logs[log] if keep is not None and keep(row)]
            self._logs[log] = []
            for entry in (*kept, *entries):
                self.append(log, entry)

    def size(self, log: str) -> int:
        """See ``SealedLogs``."""
        return sum(map(weight, self._logs[self.schema.known(log)]))

    def close(self) -> None:
        """See ``SealedLogs``."""


@dataclass(frozen=True)
class Sealed:
    """A row, and its content as text."""

    row: Row
    content: str = field(repr=False)


def sealed(name: str, log: str, number: int, before: bytes, entry: Entry, placed: list[Any] | None = None) -> Sealed:
    """A row as it stands in the file."""
    if len(entry.pieces) >= MOST_PIECES:
        raise OptionError(f"{name}: a row of {len(entry.pieces)} pieces is over the limit of {MOST_PIECES}")
    digests = [hashlib.sha256(piece).digest() for piece in entry.pieces] if entry.digests is None else entry.digests
    content = json.dumps(
        [entry.table, [digest.hex() for digest in digests], placed], allow_nan=False, separators=(",", ":")
    )
    if len(content) > LARGEST_TABLE:
        raise OptionError(f"{name}: a row's table of {len(content)} characters is over the limit of {LARGEST_TABLE}")
    seal = seal_of(log, number, entry.kind, content, before)
    return Sealed(Row(number, entry.kind, dict(entry.table), tuple(entry.pieces), seal.hex()), content)


def seal_of(log: str, number: int, kind: str, content: str, before: bytes) -> bytes:
    return hashlib.sha256(before + f"{log}\0{number}\0{kind}\0{content}".encode()).digest()


def weight(row: Row) -> int:
    return sum(map(len, row.pieces)) + 200
