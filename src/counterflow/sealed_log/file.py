"""Logs in a file: SQLite for rows, a head that tells torn from damaged, and perhaps a file of byte strings.

Files that one process has to itself (``alone``) keep the pieces of their rows beside the database (``pieces``).
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterflow.errors import StorageError
from counterflow.files import blaming, draft_of, make_folder, sync_folder
from counterflow.sealed_log import schema as schemas
from counterflow.sealed_log.head import TAIL, Head
from counterflow.sealed_log.pieces import PiecesFile, files_of_pieces
from counterflow.sealed_log.rows import MOST_PIECES, Entry, Row, Sealed, seal_of, sealed, weight
from counterflow.sealed_log.schema import DatabaseSchema, companions, roll_back

if TYPE_CHECKING:
    import sqlite3

CHECKPOINT = 128  # pages of SQLite's own log that are moved into the file at once
_EMPTY = ""  # kind of the row of a log that began anew with nothing; nobody sees it


@dataclass
class _End:
    """The last row of a log that this object knows."""

    number: int = 0
    seal: bytes = b""
    size: int = 0


class FileLogs:
    """The logs of a file, made if it is not there; only its owner may read it, and no link is followed.

    Parameters
    ----------
    path : of the file.
    schema : what it must be.
    alone : nobody else may use it until it is closed, and it has one log, as a session's; else processes take turns.
    make : whether it is made if it is not there.

    Raises
    ------
    StorageError
        With code "in-use" if another process has it, "damaged" if it is not as it was written, "format" if another
        version has made it.
    """

    def __init__(self, path: str | Path, schema: DatabaseSchema, *, alone: bool = False, make: bool = True) -> None:
        self.path, self.schema = Path(path).absolute(), schema
        self._lock = threading.RLock()
        self._process, self._alone = os.getpid(), alone
        self._ends = {log: _End() for log in schema.logs}
        self._written: dict[str, Row] = {}  # the last row of each log, in the transaction that is open
        self._connection: sqlite3.Connection | None = None
        self._head = Head(schema, self.path)
        self._pieces: PiecesFile | None = None
        with schema.blaming(self.path):
            schema.refuse_former(self.path.parent)
            if make:
                _make(self.path, schema, {})
            self._identity = self._checked_identity()
            try:
                self._connect()
                for log in schema.logs:
                    last = self._head.last(log)
                    with self._transaction("DEFERRED") as connection:
                        self._head.check(connection, log, last)
                for left in files_of_pieces(self.path):
                    if self._pieces is not None and left != self._pieces.path:
                        left.unlink(missing_ok=True)  # of a process that was killed while a log began anew
            except BaseException:
                self.close()
                raise

    @classmethod
    def create(cls, path: str | Path, schema: DatabaseSchema, log: str, entry: Entry) -> FileLogs:
        """A new file whose log begins with that row; never over another file."""
        place = Path(path).absolute()
        with schema.blaming(place):
            if not _make(place, schema, {log: entry}):
                raise StorageError(f"{str(place)!r} exists, and is never overwritten. Choose another place.")
        return cls(place, schema, make=False)

    @property
    def name(self) -> str:
        """How errors call it."""
        return self.schema.named(self.path)

    def append(self, log: str, entry: Entry) -> Row:
        """See ``SealedLogs``."""
        with self._transaction("IMMEDIATE") as connection:
            end, pieces = self._caught_up(log), self._pieces
            made = sealed(self.name, log, end.number + 1, end.seal, entry, _placed(entry, pieces))
            _insert(connection, log, made, pieces is None)
            self._advance(log, made.row)
            self._written[log] = made.row
        return made.row

    @contextmanager
    def turn(self) -> Iterator[object]:
        """See ``SealedLogs``."""
        with self._transaction("IMMEDIATE"):
            yield None

    def rows(self, log: str, after: int = 0) -> Iterator[Row]:
        """See ``SealedLogs``; what is damaged raises when the rows before it have been given."""
        self.schema.known(log)
        if self._alone:
            self._require_open()
            yield from self._read(log, after)
            return
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
        """See ``SealedLogs``: SQLite counts the commits of other connections, and the last number is ours."""
        with self._lock, self.schema.blaming(self.path):
            (others,) = self._require_open().execute("PRAGMA data_version").fetchone()
            return others, self._ends[self.schema.known(log)].number

    def begin_anew(self, log: str, entries: Sequence[Entry], keep: Callable[[Row], bool] | None = None) -> None:
        """See ``SealedLogs``; not within a turn."""
        self.schema.refuse_anew(log)
        former = self._pieces
        fresh: PiecesFile | None = None
        try:
            with self._transaction("IMMEDIATE") as connection:
                number, seal = self._caught_up(log).number, b""
                kept = [Entry(*row[1:4]) for row in self._read(log, 0) if keep(row)] if keep is not None else []
                fresh = PiecesFile(self.path, former.generation + 1, new=True) if former is not None else None
                connection.execute(f"DELETE FROM {log}")
                connection.execute(f"DELETE FROM {log}_pieces")
                self._ends[log] = _End()
                for entry in (*kept, *entries) or (Entry(_EMPTY, {}),):
                    number += 1
                    made = sealed(self.name, log, number, seal, entry, _placed(entry, fresh))
                    seal = bytes.fromhex(made.row.seal)
                    _insert(connection, log, made, fresh is None)
                    self._advance(log, made.row)
                    self._written[log] = made.row
        except BaseException:
            if fresh is not None:
                fresh.close()
            raise
        if former is not None:
            self._pieces = fresh
            former.close()
            with self.schema.blaming(self.path):
                former.path.unlink(missing_ok=True)

    def size(self, log: str) -> int:
        """See ``SealedLogs``."""
        return self._ends[self.schema.known(log)].size

    def copied(self) -> dict[str, bytes]:
        """{tail of the name: bytes} of the file and its head as they stand at one moment, whoever writes meanwhile."""
        beside = tempfile.TemporaryDirectory(dir=self.path.parent, prefix=".copy-")
        with self.schema.blaming(self.path), beside as place:
            head = self._head.place.read_bytes()  # before the rows: an older head than these is no fault
            copy = Path(place) / self.path.name
            target = _connected(str(copy))
            try:
                with self._lock:
                    self._require_open().backup(target)
            finally:
                target.close()
            return {TAIL: head, "": copy.read_bytes()}

    def close(self) -> None:
        """See ``SealedLogs``."""
        with self._lock, self.schema.blaming(self.path):
            connection, self._connection = self._connection, None
            pieces, self._pieces = self._pieces, None
            if pieces is not None:
                pieces.close()
            if connection is not None and self._process == os.getpid():
                connection.close()

    def __enter__(self) -> FileLogs:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_connection", None) is not None:
            with contextlib.suppress(Exception):
                self.close()

    # ---- opening

    def _checked_identity(self) -> tuple[int, int]:
        """Which file this is; links and other things that no log may live in are refused.

        Nothing is opened for this: closing it again would drop the locks that SQLite holds in this process.
        """
        identity = _identity(self.path, self.schema)
        if not self.path.stat().st_size:
            raise StorageError(
                f"{self.name} is empty: making it was interrupted, or it was overwritten. {self.schema.restore}."
            )
        for place in (self._head.place, *companions(self.path), *files_of_pieces(self.path)):
            if os.path.lexists(place):
                _identity(place, self.schema)
            elif place == self._head.place:
                raise self.schema.damaged(self.path, f"{place.name} is missing")
        # SQLite would open it all the same, and leave a log of its own that nobody can write
        if not os.access(self.path, os.R_OK | os.W_OK):
            raise StorageError(
                f"{self.name} may not be read and written by this account: run as the account that owns it, or look at "
                "a copy of it."
            )
        return identity

    def _connect(self) -> None:
        connection = _connected(f"{self.path.as_uri()}?mode=rw", uri=True, alone=self._alone)
        self._connection = connection
        if self._alone:  # a lock is taken by the first transaction, and kept
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("COMMIT")
        self.schema.check(connection, self.path)
        (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
        if mode != "wal":
            (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StorageError(
                f"{self.name} lies where no write-ahead log can be kept: move it to a local disk (not a network drive)."
            )
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT}")
        if self._alone:
            self._open_pieces(connection)

    def _open_pieces(self, connection: sqlite3.Connection) -> None:
        """The file of the last row's pieces."""
        (log,) = self.schema.logs
        last = connection.execute(f"SELECT content FROM {log} ORDER BY number DESC LIMIT 1").fetchone()
        try:
            generation = 1 if last is None else int(json.loads(last[0])[2][0])
        except (ValueError, TypeError, LookupError) as error:
            raise self.schema.damaged(self.path, "its last row is not what was written") from error
        self._pieces = PiecesFile(self.path, generation)

    # ---- inside

    def _require_open(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StorageError(f"{self.name} has been closed: open it again.")
        if self._process != os.getpid():
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
                if _identity(self.path, self.schema) != self._identity:
                    raise StorageError(f"{self.name} has been replaced by another file: open it again.")
                yield connection
                self._commit(connection)
            except BaseException:
                roll_back(connection)
                self._ends = before
                raise
            for log, row in self._written.items():
                self._head.write(log, row.number, row.seal)

    def _commit(self, connection: sqlite3.Connection) -> None:
        connection.execute("COMMIT")

    def _caught_up(self, log: str) -> _End:
        """The last row, once what other processes have written was read."""
        end = self._ends[self.schema.known(log)]
        if not self._alone or not end.number:
            for _ in self._read(log, end.number):
                pass
        return self._ends[log]

    def _read(self, log: str, after: int) -> Iterator[Row]:
        """Rows after that one, each checked against the one before."""
        assert self._connection is not None
        with self.schema.blaming(self.path):
            found = self._connection.execute(
                f"SELECT number, kind, content, seal FROM {log} WHERE number >= ? OR number < 1 "
                "OR typeof(number) <> 'integer' ORDER BY number",
                (after,),
            ).fetchall()
        end = self._ends[log]
        before, due = b"", 0
        if found and after and found[0][0] == after:
            before, due = found.pop(0)[3], after + 1
        if after and after == end.number:
            if due and before != end.seal:
                raise self.schema.damaged(self.path, f"row {after} of {log!r} is not what was written")
            if not due and not found:
                raise self.schema.damaged(self.path, f"row {after} of {log!r} was there and is not any more")
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
        types = (type(number), type(kind), type(content), type(seal))
        if types != (int, str, str, bytes) or number < 1:
            raise self.schema.damaged(self.path, f"{place} holds values of the wrong kind")
        if due and number != due:
            raise self.schema.damaged(self.path, f"row {due} of {log!r} is missing")
        if seal != seal_of(log, number, kind, content, before):
            raise self.schema.damaged(self.path, f"{place} is not what was written, or one before it is missing")
        try:
            table, digests, placed = json.loads(content)
            with self.schema.blaming(self.path):
                pieces = self._read_pieces(log, number, placed)
            same = [hashlib.sha256(piece).hexdigest() for piece in pieces] == digests
        except (ValueError, TypeError, RecursionError):
            same = False
        if not same:
            raise self.schema.damaged(self.path, f"{place} is not what was written")
        return Row(number, kind, table, tuple(pieces), seal.hex())

    def _read_pieces(self, log: str, number: int, placed: Any) -> list[bytes]:
        if placed is None:
            assert self._connection is not None
            first = number * MOST_PIECES
            found = self._connection.execute(
                f"SELECT data FROM {log}_pieces WHERE place >= ? AND place < ? ORDER BY place",
                (first, first + MOST_PIECES),
            )
            return [data for (data,) in found]
        generation, at, sizes = placed
        if self._pieces is None or generation != self._pieces.generation:
            raise ValueError("a row of another file of pieces")
        return self._pieces.read(at, sizes)

    def _advance(self, log: str, row: Row) -> None:
        end = self._ends[log]
        end.number, end.seal, end.size = row.number, bytes.fromhex(row.seal), end.size + weight(row)


def put_in_place(copy: Path, path: Path, mark: str) -> None:
    """A database and its head from ``copied`` into their places; what was there is kept beside them, with a mark."""
    with blaming(path):
        make_folder(path.parent)
        for left in (path, *companions(path), Path(f"{path}{TAIL}")):
            if left.exists():
                os.replace(left, left.with_name(f"{left.name}.lost-{mark}"))
        shutil.move(f"{copy}{TAIL}", f"{path}{TAIL}")
        shutil.move(copy, path)  # last: without it, nothing is there


def _make(path: Path, schema: DatabaseSchema, begins: dict[str, Entry]) -> bool:
    """Make a database, unless there is a file of that name; it is whole on the disk before it gets its name.

    The head comes first: a database without one is damaged, a head without a database is what a crash leaves here.
    """
    if os.path.lexists(path):
        return False
    make_folder(path.parent)
    head, draft = Head(schema, path), draft_of(path)
    head.make()
    with head.locked():
        if os.path.lexists(path):
            return False
        try:
            os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            connection = _connected(f"{draft.as_uri()}?mode=rw", uri=True)
            try:
                connection.execute("BEGIN IMMEDIATE")
                schema.build(connection)
                for log, entry in begins.items():
                    _insert(connection, log, sealed(schema.named(path), log, 1, b"", entry), True)
                connection.execute("COMMIT")
                connection.execute("PRAGMA journal_mode = WAL")  # kept in the file
            finally:
                connection.close()
            with open(draft, "r+b") as file:
                os.fsync(file.fileno())
            os.rename(draft, path)
        finally:
            for left in (draft, *companions(draft)):
                with contextlib.suppress(OSError):
                    left.unlink()
    sync_folder(path.parent)
    return True


def _connected(target: str, *, uri: bool = False, alone: bool = False) -> sqlite3.Connection:
    """A connection whose commits are on the disk when they return.

    ``alone``: it keeps the file to itself until it is closed, and does not wait for another that does.
    """
    import sqlite3

    connection = sqlite3.connect(
        target, timeout=0.0 if alone else schemas.BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=uri,
        cached_statements=32,
    )  # fmt: skip
    try:
        for setting in (
            *(("locking_mode = EXCLUSIVE",) if alone else ()),
            f"synchronous = {schemas.SYNCHRONOUS}",
            "fullfsync = ON",  # ... on Apple's systems, too
            "checkpoint_fullfsync = ON",
            "trusted_schema = OFF",
            "cell_size_check = ON",
        ):
            connection.execute(f"PRAGMA {setting}")
    except BaseException:
        connection.close()
        raise
    return connection


def _identity(path: Path, schema: DatabaseSchema) -> tuple[int, int]:
    """Which file this is; anything but an ordinary file with one name is refused."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise StorageError(f"there is no {schema.word} {str(path)!r}: {schema.give}.") from None
    if stat.S_ISREG(found.st_mode) and found.st_nlink == 1:
        return found.st_dev, found.st_ino
    what = f"a file with {found.st_nlink} names (hard links)" if stat.S_ISREG(found.st_mode) else "no ordinary file"
    raise StorageError(
        f"the {schema.word}: {str(path)!r} is {what}. A {schema.word} has one place and follows no links: remove them, "
        "and find out who has made them."
    )


def _insert(connection: sqlite3.Connection, log: str, made: Sealed, with_pieces: bool) -> None:
    row = made.row
    values = (row.number, row.kind, made.content, bytes.fromhex(row.seal))
    connection.execute(f"INSERT INTO {log} VALUES (?, ?, ?, ?)", values)
    if with_pieces:
        numbered = [(row.number * MOST_PIECES + k, piece) for k, piece in enumerate(row.pieces)]
        connection.executemany(f"INSERT INTO {log}_pieces VALUES (?, ?)", numbered)


def _placed(entry: Entry, pieces: PiecesFile | None) -> list[Any] | None:
    """Where the pieces of a row lie, once they are on the disk; None: in a table."""
    if pieces is None:
        return None
    return [pieces.generation, pieces.add(entry.pieces), [len(piece) for piece in entry.pieces]]
