"""Durable state between machines: logs of rows, each row sealed with the one before it.

::

    turns       of a session: its opening, turns, acknowledgements, failure, and the snapshot that replaces them
    audit       what left, entered or was refused; only ever added to
    questions   questions that wait, and answers that were not taken yet

A row is a kind, a small table in plain types and any number of byte strings. Its seal is the SHA-256 of all of that,
of its number and of the seal before it. A log can begin anew: its first row then continues nothing, and numbers go on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from counterflow.errors import OptionError

LOGS = ("turns", "audit", "questions")
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


class Store(Protocol):
    """Logs of rows that survive a kill at any moment."""

    @property
    def name(self) -> str:
        """How errors call it."""

    def append(self, log: str, entry: Entry) -> Row:
        """Add a row; it is on the disk when this returns."""

    def rows(self, log: str, after: int = 0) -> Iterator[Row]:
        """Rows with larger numbers, in order and checked; of all processes."""

    def version(self, log: str) -> object:
        """A value that is another one whenever any process has changed the log; cheap, and to be asked before rows."""

    def begin_anew(self, log: str, entries: Sequence[Entry], keep: Callable[[Row], bool] | None = None) -> None:
        """Replace a log by those of its rows that are to be kept, renumbered, and ``entries``: all or nothing."""

    def size(self, log: str) -> int:
        """Bytes of the rows that were read or written here since the log began."""

    def close(self) -> None:
        """Let go of it. Nothing is lost without it."""


class MemoryStore:
    """The same in memory, for tests.

    Examples
    --------
    >>> store = MemoryStore()
    >>> store.append("turns", Entry("turn", {"unit": "boiler"}, [b"message"])).number
    1
    >>> [(row.kind, row.pieces) for row in store.rows("turns")]
    [('turn', (b'message',))]
    """

    name = "the store in memory"

    def __init__(self) -> None:
        self._logs: dict[str, list[Row]] = {log: [] for log in LOGS}
        self._last = dict.fromkeys(LOGS, 0)

    def append(self, log: str, entry: Entry) -> Row:
        """See ``Store``."""
        rows = self._logs[known(log)]
        made = sealed(self.name, log, self._last[log] + 1, bytes.fromhex(rows[-1].seal) if rows else b"", entry)
        self._last[log] = made.row.number
        rows.append(made.row)
        return made.row

    def rows(self, log: str, after: int = 0) -> Iterator[Row]:
        """See ``Store``."""
        return iter([row for row in self._logs[known(log)] if row.number > after])

    def version(self, log: str) -> object:
        """See ``Store``."""
        return self._last[known(log)], len(self._logs[log])

    def begin_anew(self, log: str, entries: Sequence[Entry], keep: Callable[[Row], bool] | None = None) -> None:
        """See ``Store``."""
        refuse_anew(log)
        kept = [Entry(*row[1:4]) for row in self._logs[log] if keep is not None and keep(row)]
        for entry in (*kept, *entries):
            sealed(self.name, log, 1, b"", entry)  # refused before anything is lost
        self._logs[log] = []
        for entry in (*kept, *entries):
            self.append(log, entry)

    def size(self, log: str) -> int:
        """See ``Store``."""
        return sum(map(weight, self._logs[known(log)]))

    def close(self) -> None:
        """See ``Store``."""


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


def known(log: str) -> str:
    if log not in LOGS:
        raise OptionError(f"store: no log {log!r:.40}; there are {', '.join(LOGS)}")
    return log


def refuse_anew(log: str) -> None:
    if known(log) == "audit":
        raise OptionError("store: an audit log is only ever added to")
