"""Rows and their seals in SQLite, with a head beside the file that tells a torn end from a damaged one.

A row is a kind, a small table in plain types and any number of byte strings. Its seal is the SHA-256 of all of that,
of its number and of the seal before it. A log can begin anew: its first row then continues nothing, and numbers go on.

The head holds the number and seal of the last row of every log. SQLite drops the end of its own log if a bit of it has
changed, as it must drop a commit that a crash has torn. The head is written after the commit and not waited for: one
that is behind the rows is a crash, one that is ahead is damage, or an old copy of the database.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from counterflow.errors import OptionError, StorageError
from counterflow.files import blaming, draft_of, make_folder, sync_folder
from counterflow.sealed_log.schema import DatabaseSchema, companions, connected, identity_of

if TYPE_CHECKING:
    import sqlite3

LARGEST_TABLE = 64 << 20  # characters of a row's table
MOST_PIECES = 1 << 20
CHECKPOINT = 128  # pages of SQLite's own log that are moved into the file at once
TAIL = ".head"
SLOT = 512  # bytes of the head for one log: one sector, which is written whole or not at all
_FLAGS = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)  # no link is followed
_EMPTY = ""  # kind of the row of a log that began anew with nothing; nobody sees it


class Row(NamedTuple):
    """One row of a log; ``seal`` in hexadecimal digits."""

    number: int
    kind: str
    table: dict[str, Any]
    pieces: tuple[bytes, ...]
    seal: str


class Entry(NamedTuple):
    """A row to be written."""

    kind: str
    table: Mapping[str, Any]
    pieces: Sequence[bytes] = ()


@dataclass
class _End:
    """The last row of a log that is known here, and the bytes of the rows before it since the log began."""

    number: int = 0
    seal: bytes = b""
    size: int = 0


class SealedLogs:
    """The logs of a file, made if it is not there; only its owner may read it, and no link is followed.

    Parameters
    ----------
    path : of the file; None: in memory, for what ends with the process.
    schema : what it must be.
    alone : nobody else may use it until it is closed, as a session's; else processes take turns.
    make : whether it is made if it is not there.

    Raises
    ------
    StorageError
        With code "in-use" if another process has it, "damaged" if it is not as it was written, "format" if another
        version has made it.
    """

    def __init__(
        self, path: str | Path | None, schema: DatabaseSchema, *, alone: bool = False, make: bool = True
    ) -> None:
        self.path, self.schema = None if path is None else Path(path).absolute(), schema
        self.name = schema.named(self.path)  # how errors call it
        self._lock, self._process = threading.RLock(), os.getpid()
        self._alone = alone or path is None
        self._ends = {log: _End() for log in schema.logs}
        self._written: dict[str, Row] = {}  # the last row of each log, in the transaction that is open
        self._identity = 0, 0
        self._connection: sqlite3.Connection | None = None
        with schema.blaming(self.path):
            if self.path is None:
                self._connection = connected(":memory:")
                schema.build(self._connection)
                return
            if make:
                _make(self.path, schema, {})
            self._identity = self._checked_identity(self.path)
            try:
                self._connect(self.path)
                for log in schema.logs:
                    last = _head(self.path, schema, log)  # before the rows are read
                    with self._transaction("DEFERRED") as connection:
                        self._check_head(connection, log, last)
            except BaseException:
                self.close()
                raise

    @classmethod
    def create(cls, path: str | Path, schema: DatabaseSchema, log: str, entry: Entry) -> SealedLogs:
        """A new file whose log begins with that row; never over another file."""
        place = Path(path).absolute()
        with schema.blaming(place):
            if not _make(place, schema, {log: entry}):
                raise StorageError(f"{str(place)!r} exists, and is never overwritten. Choose another place.")
        return cls(place, schema, make=False)

    def append(self, log: str, entry: Entry) -> Row:
        """Add a row; it is on the disk when this returns, or, inside a turn, when that ends."""
        with self._transaction("IMMEDIATE") as connection:
            self._catch_up(log)
            return self._add(connection, log, entry)

    @contextmanager
    def turn(self) -> Iterator[object]:
        """While inside, nobody else writes: what is read and appended here is one; an error takes all of it back."""
        with self._transaction("IMMEDIATE"):
            yield None

    def rows(self, log: str, after: int = 0) -> Iterator[Row]:
        """Rows with larger numbers, of all processes; what is damaged raises when the rows before it were given."""
        found: list[Row] = []
        trouble: StorageError | None = None
        with self._transaction("DEFERRED"):
            try:
                found.extend(self._read(log, after))
            except StorageError as error:
                trouble = error
        yield from found
        if trouble is not None:
            raise trouble

    def version(self, log: str) -> object:
        """A value that is another one whenever any process has changed the log; cheap, and to be asked before rows."""
        with self._lock, self.schema.blaming(self.path):  # SQLite counts the commits of others, our last number is ours
            (others,) = self._require_open().execute("PRAGMA data_version").fetchone()
            return others, self._ends[log].number

    def begin_anew(self, log: str, entries: Sequence[Entry], keep: Callable[[Row], bool] | None = None) -> None:
        """Replace a log by those of its rows that are to be kept, renumbered, and ``entries``; not within a turn."""
        with self._transaction("IMMEDIATE") as connection:
            self._catch_up(log)
            kept = [Entry(*row[1:4]) for row in self._read(log, 0) if keep(row)] if keep is not None else []
            for table in (log, f"{log}_pieces"):
                connection.execute(f"DELETE FROM {table}")
            self._ends[log] = _End(self._ends[log].number)
            for entry in (*kept, *entries) or (Entry(_EMPTY, {}),):
                self._add(connection, log, entry)

    def size(self, log: str) -> int:
        """Bytes of the rows that were read or written here since the log began."""
        return self._ends[log].size

    def copied(self) -> dict[str, bytes]:
        """{tail of the name: bytes} of the file and its head as they stand at one moment, whoever writes meanwhile."""
        assert self.path is not None
        beside = tempfile.TemporaryDirectory(dir=self.path.parent, prefix=".copy-")
        with self.schema.blaming(self.path), beside as place:
            head = _beside(self.path).read_bytes()  # before the rows: an older head than these is no fault
            copy = Path(place) / self.path.name
            with closing(connected(str(copy))) as target, self._lock:
                self._require_open().backup(target)
            return {TAIL: head, "": copy.read_bytes()}

    def close(self) -> None:
        """Let go of them. Nothing is lost without it."""
        with self._lock, self.schema.blaming(self.path):
            connection, self._connection = self._connection, None
            if connection is not None and self._process == os.getpid():
                connection.close()

    def __enter__(self) -> SealedLogs:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_connection", None) is not None:
            with contextlib.suppress(Exception):
                self.close()

    # ---- opening

    def _checked_identity(self, path: Path) -> tuple[int, int]:
        """Which file this is; links and other things that no log may live in are refused.

        Nothing is opened for this: closing it again would drop the locks that SQLite holds in this process.
        """
        identity = identity_of(path, self.schema)
        if not path.stat().st_size:
            raise StorageError(
                f"{self.name} is empty: making it was interrupted, or it was overwritten. {self.schema.restore}."
            )
        if not os.path.lexists(_beside(path)):
            raise self._damaged(f"{_beside(path).name} is missing")
        for place in (_beside(path), *companions(path)):
            if os.path.lexists(place):
                identity_of(place, self.schema)
        # SQLite would open it all the same, and leave a log of its own that nobody can write
        if not os.access(path, os.R_OK | os.W_OK):
            raise StorageError(
                f"{self.name} may not be read and written by this account: run as the account that owns it, or look at "
                "a copy of it."
            )
        return identity

    def _connect(self, path: Path) -> None:
        connection = self._connection = connected(f"{path.as_uri()}?mode=rw", alone=self._alone)
        if self._alone:  # a lock is taken by the first transaction, and kept
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("COMMIT")
        self.schema.check(connection, path)
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StorageError(
                f"{self.name} lies where no write-ahead log can be kept: move it to a local disk (not a network drive)."
            )
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT}")

    def _check_head(self, connection: sqlite3.Connection, log: str, last: tuple[int, str] | None) -> None:
        """Whether the row that was committed last is there."""
        if last is None:
            return
        number, seal = last
        (found,) = connection.execute(f"SELECT max(number) FROM {log}").fetchone()
        there = connection.execute(f"SELECT seal FROM {log} WHERE number = ?", (number,)).fetchone()
        if type(found) is not int or found < number:
            raise self._damaged(f"row {number} of {log!r} was there and is not any more")
        if there is not None and (type(there[0]) is not bytes or there[0].hex() != seal):
            raise self._damaged(f"row {number} of {log!r} is not what was written")

    # ---- inside

    def _damaged(self, how: str) -> StorageError:
        return self.schema.damaged(self.path, how)

    def _require_open(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StorageError(f"{self.name} has been closed: open it again.")
        if self._process != os.getpid() and self.path is not None:
            raise StorageError(f"{self.name} was opened by another process: open it in this one, too.")
        return self._connection

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[sqlite3.Connection]:
        """One that ends with a commit, or leaves everything as it was; within a turn it is part of that."""
        with self._lock, self.schema.blaming(self.path):
            connection = self._require_open()
            if connection.in_transaction:
                yield connection
                return
            before = {log: replace(end) for log, end in self._ends.items()}
            self._written.clear()
            connection.execute(f"BEGIN {kind}")
            try:
                # one that was deleted or replaced can still be written to by whoever has it open; that would be lost
                if self.path is not None and identity_of(self.path, self.schema) != self._identity:
                    raise StorageError(f"{self.name} has been replaced by another file: open it again.")
                yield connection
                self._commit(connection)
            except BaseException:
                if connection.in_transaction:
                    with contextlib.suppress(Exception):
                        connection.execute("ROLLBACK")
                self._ends = before
                raise
            if self.path is not None:
                for log, row in self._written.items():
                    _write_head(self.path, self.schema, log, row)

    def _commit(self, connection: sqlite3.Connection) -> None:
        connection.execute("COMMIT")

    def _add(self, connection: sqlite3.Connection, log: str, entry: Entry) -> Row:
        """The row after the last one."""
        end = self._ends[log]
        row = _insert(connection, self.name, log, end.number + 1, end.seal, entry)
        self._advance(log, row)
        self._written[log] = row
        return row

    def _advance(self, log: str, row: Row) -> None:
        size = self._ends[log].size + sum(map(len, row.pieces)) + 200
        self._ends[log] = _End(row.number, bytes.fromhex(row.seal), size)

    def _catch_up(self, log: str) -> None:
        """Read what other processes have written."""
        end = self._ends[log]
        if not self._alone or not end.number:
            for _ in self._read(log, end.number):
                pass

    def _read(self, log: str, after: int) -> Iterator[Row]:
        """Rows after that one, each checked against the one before."""
        query = f"SELECT number, kind, content, seal FROM {log} WHERE number >= ? ORDER BY number"
        found, end = self._require_open().execute(query, (after,)).fetchall(), self._ends[log]
        before, due = b"", 0
        if found and after and found[0][0] == after:
            before, due = found.pop(0)[3], after + 1
        if after and after == end.number:
            if due and before != end.seal:
                raise self._damaged(f"row {after} of {log!r} is not what was written")
            if not due and not found:
                raise self._damaged(f"row {after} of {log!r} was there and is not any more")
        if not due and (found or not after):
            self._ends[log] = _End()  # read from its beginning
            due = 1 if self.schema.logs[log] else 0
        for number, kind, content, seal in found:
            row = self._checked(log, number, kind, content, seal, before, due)
            before, due = seal, number + 1
            if number > self._ends[log].number:
                self._advance(log, row)
            if kind != _EMPTY:
                yield row

    def _checked(self, log: str, number: Any, kind: Any, content: Any, seal: Any, before: bytes, due: int) -> Row:
        place = f"row {number!r:.20} of {log!r}"
        if (type(kind), type(content), type(seal)) != (str, str, bytes) or number < 1:
            raise self._damaged(f"{place} holds values of the wrong kind")
        if due and number != due:
            raise self._damaged(f"row {due} of {log!r} is missing")
        if seal != _seal(log, number, kind, content, before):
            raise self._damaged(f"{place} is not what was written, or one before it is missing")
        first = number * MOST_PIECES
        pieces = self._require_open().execute(
            f"SELECT data FROM {log}_pieces WHERE place >= ? AND place < ? ORDER BY place", (first, first + MOST_PIECES)
        )
        try:
            data = tuple(piece for (piece,) in pieces)
            table, digests = json.loads(content)
            same = [hashlib.sha256(piece).hexdigest() for piece in data] == digests
        except (ValueError, TypeError, RecursionError):
            same = False
        if not same:
            raise self._damaged(f"{place} is not what was written")
        return Row(number, kind, table, data, seal.hex())


def put_in_place(copy: Path, path: Path, mark: str) -> None:
    """A database and its head from ``copied`` into their places; what was there is kept beside them, with a mark."""
    with blaming(path):
        make_folder(path.parent)
        for left in (path, *companions(path), _beside(path)):
            if left.exists():
                os.replace(left, left.with_name(f"{left.name}.lost-{mark}"))
        shutil.move(_beside(copy), _beside(path))
        shutil.move(copy, path)  # last: without it, nothing is there


# ---- rows


def _seal(log: str, number: int, kind: str, content: str, before: bytes) -> bytes:
    return hashlib.sha256(before + f"{log}\0{number}\0{kind}\0{content}".encode()).digest()


def _insert(connection: sqlite3.Connection, name: str, log: str, number: int, before: bytes, entry: Entry) -> Row:
    if len(entry.pieces) >= MOST_PIECES:
        raise OptionError(f"{name}: a row of {len(entry.pieces)} pieces is over the limit of {MOST_PIECES}")
    digests = [hashlib.sha256(piece).hexdigest() for piece in entry.pieces]
    content = json.dumps([entry.table, digests], allow_nan=False, separators=(",", ":"))
    if len(content) > LARGEST_TABLE:
        raise OptionError(f"{name}: a row's table of {len(content)} characters is over the limit of {LARGEST_TABLE}")
    seal = _seal(log, number, entry.kind, content, before)
    connection.execute(f"INSERT INTO {log} VALUES (?, ?, ?, ?)", (number, entry.kind, content, seal))
    placed = ((number * MOST_PIECES + k, piece) for k, piece in enumerate(entry.pieces))
    connection.executemany(f"INSERT INTO {log}_pieces VALUES (?, ?)", placed)
    return Row(number, entry.kind, dict(entry.table), tuple(entry.pieces), seal.hex())


# ---- files


def _make(path: Path, schema: DatabaseSchema, begins: dict[str, Entry]) -> bool:
    """Make a database, unless there is a file of that name; it is whole on the disk before it gets its name.

    The head comes first: a database without one is damaged, a head without a database is what a crash leaves here.
    """
    if os.path.lexists(path):
        return False
    make_folder(path.parent)
    draft = draft_of(path)
    with _head_file(path, os.O_CREAT) as head:
        if os.fstat(head).st_size < SLOT * len(schema.logs):  # new, or a crash came in between
            os.write(head, bytes(SLOT * len(schema.logs)))
            os.fsync(head)
        sync_folder(path.parent)
        if os.name != "nt":  # one maker at a time; there, renaming refuses a name that is taken
            import fcntl

            fcntl.flock(head, fcntl.LOCK_EX)
        if os.path.lexists(path):
            return False
        try:
            os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            with closing(connected(f"{draft.as_uri()}?mode=rw")) as connection:
                connection.execute(f"PRAGMA page_size = {schema.page}")
                connection.execute("BEGIN IMMEDIATE")
                schema.build(connection)
                for log, entry in begins.items():
                    _insert(connection, schema.named(path), log, 1, b"", entry)
                connection.execute("COMMIT")
                connection.execute("PRAGMA journal_mode = WAL")  # kept in the file
            with open(draft, "r+b") as file:
                os.fsync(file.fileno())
            os.rename(draft, path)
        finally:
            for left in (draft, *companions(draft)):
                with contextlib.suppress(OSError):
                    left.unlink()
    sync_folder(path.parent)
    return True


def _beside(path: Path) -> Path:
    """The head of a database."""
    return Path(f"{path}{TAIL}")


@contextmanager
def _head_file(path: Path, flags: int = 0) -> Iterator[int]:
    handle = os.open(_beside(path), _FLAGS | flags, 0o600)
    try:
        yield handle
    finally:
        os.close(handle)


def _head(path: Path, schema: DatabaseSchema, log: str) -> tuple[int, str] | None:
    """Number and seal of the last row of a log by the head; None: no row was ever written."""
    with _head_file(path) as handle:
        os.lseek(handle, list(schema.logs).index(log) * SLOT, os.SEEK_SET)
        slot = os.read(handle, SLOT)
    if len(slot) == SLOT and not any(slot):
        return None
    digest, _, body = slot.rstrip(b"\n ").partition(b" ")
    try:
        number, seal = json.loads(body)
        good = digest.decode() == hashlib.sha256(body).hexdigest() and type(number) is int
    except (ValueError, TypeError):
        good = False
    if not good:
        raise schema.damaged(path, f"{_beside(path).name} is not what was written")
    return number, str(seal)


def _write_head(path: Path, schema: DatabaseSchema, log: str, row: Row) -> None:
    """After the commit; if it cannot be written, it stays behind, which is no fault."""
    body = json.dumps([row.number, row.seal]).encode()
    slot = hashlib.sha256(body).hexdigest().encode() + b" " + body
    with contextlib.suppress(OSError), _head_file(path) as handle:
        os.lseek(handle, list(schema.logs).index(log) * SLOT, os.SEEK_SET)
        os.write(handle, slot.ljust(SLOT - 1) + b"\n")
