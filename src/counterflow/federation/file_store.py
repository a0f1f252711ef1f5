"""The store of a file: SQLite for rows, a head that tells torn from damaged, and a file of byte strings.

Beside the file, ``<file>.head`` says the number and seal of the last row of every log (``database.Head``), so that a
commit that a crash has torn and a row that is not there any more are told apart.

The byte strings of a store that one process has to itself lie in ``<file>.<n>.pieces``, to which they are added, synced
before the row is committed; n counts how often the log began anew. They are messages of a megabyte, which SQLite would
write twice (docs/decisions/0014-store.md has the figures).
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterflow import database
from counterflow.errors import StorageError
from counterflow.federation.store import (
    LOGS,
    MOST_PIECES,
    Entry,
    Row,
    Sealed,
    known,
    refuse_anew,
    seal_of,
    sealed,
    weight,
)
from counterflow.files import make_folder, sync_folder

CHECKPOINT = 128  # pages of SQLite's own log that are moved into the file at once
_FLAGS = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)  # no link is followed
_EMPTY = ""  # kind of the row of a log that began anew with nothing; nobody sees it
_COLUMNS = "(number INTEGER PRIMARY KEY, kind TEXT NOT NULL, content TEXT NOT NULL, seal BLOB NOT NULL)"
_PIECES = "(place INTEGER PRIMARY KEY, data BLOB NOT NULL)"
_VERBS = ("update", "delete")
_ADDED = "BEGIN SELECT RAISE(ABORT, 'an audit log is only ever added to'); END"
FORM = database.Form(
    "store",
    0x4346_5354,  # "CFST"
    1,
    {
        **{log: f"CREATE TABLE {log} {_COLUMNS}" for log in LOGS},
        **{f"{log}_pieces": f"CREATE TABLE {log}_pieces {_PIECES}" for log in LOGS},
        **{f"audit_no_{verb}": f"CREATE TRIGGER audit_no_{verb} BEFORE {verb} ON audit {_ADDED}" for verb in _VERBS},
    },
    restore="Find out how; then restore it from a backup with all files beside it, or start the job again",
    give="give the folder of a site of Counterflow",
    upgrade="use the version that made it, or finish the job there and start it again here",
)


@dataclass
class _End:
    """The last row of a log that this object knows."""

    number: int = 0
    seal: bytes = b""
    size: int = 0


class _Pieces:
    """Byte strings in a file of their own, to which they are added."""

    def __init__(self, path: Path, generation: int, *, new: bool = False) -> None:
        self.path, self.generation, self.end = Path(f"{path}.{generation}.pieces"), generation, 0
        if new:
            self.path.unlink(missing_ok=True)  # of a process that was killed before the row was committed
        self._handle = os.open(self.path, _FLAGS | os.O_CREAT | (os.O_EXCL if new else 0), 0o600)
        if new:
            sync_folder(path.parent)

    def add(self, pieces: Sequence[bytes]) -> int:
        """Where they begin, once they are on the disk."""
        begin, views = self.end, [memoryview(piece) for piece in pieces if piece]
        at = begin
        while views:
            written = os.pwritev(self._handle, views[:500], at)
            at += written
            while views and written >= len(views[0]):
                written -= len(views.pop(0))
            if written:
                views[0] = views[0][written:]
        if at > begin:
            getattr(os, "fdatasync", os.fsync)(self._handle)
        self.end = at
        return begin

    def read(self, at: int, size: int) -> bytes:
        found = []
        while size > 0 and (piece := os.pread(self._handle, min(size, 1 << 30), at)):
            found.append(piece)
            at, size = at + len(piece), size - len(piece)
        return found[0] if len(found) == 1 else b"".join(found)

    def close(self) -> None:
        os.close(self._handle)


class FileStore:
    """The store of a file, made if it is not there; only its owner may read it, and no link is followed.

    Parameters
    ----------
    path : of the file.
    alone : nobody else may use it until it is closed, as a session's; else processes take turns.
    former : files of version 0.1 beside it, which that version kept instead; they are refused with the remedy.

    Raises
    ------
    StorageError
        With code "in-use" if another process has it, "damaged" if it is not as it was written, "format" if another
        version has made it.
    """

    def __init__(self, path: str | Path, *, alone: bool = False, former: Sequence[str] = ()) -> None:
        self.path = Path(path).absolute()
        self._lock = threading.RLock()
        self._process, self._alone = os.getpid(), alone
        self._ends = {log: _End() for log in LOGS}
        self._connection: sqlite3.Connection | None = None
        self._head = database.Head(FORM, self.path, LOGS)
        self._pieces: _Pieces | None = None
        with FORM.blaming(self.path):
            self._refuse_former(former)
            self._make_if_missing()
            self._identity = self._checked_identity()
            try:
                self._connect()
                self._check_head()
                for left in self._piece_files():
                    if self._pieces is not None and left != self._pieces.path:
                        left.unlink(missing_ok=True)  # of a process that was killed while a log began anew
            except BaseException:
                self.close()
                raise

    @property
    def name(self) -> str:
        """How errors call it."""
        return FORM.named(self.path)

    def append(self, log: str, entry: Entry) -> Row:
        """See ``Store``."""
        with self._transaction("IMMEDIATE") as connection:
            end = self._caught_up(log)
            written = sealed(self.name, log, end.number + 1, end.seal, entry, _placed(entry, self._file_of(log)))
            self._insert(connection, log, written)
            self._commit(connection)
            self._advance(log, written.row)
            self._head.write(log, written.row.number, written.row.seal)
        return written.row

    def rows(self, log: str, after: int = 0) -> Iterator[Row]:
        """See ``Store``; what is damaged raises when the rows before it have been given."""
        if self._alone:
            self._require_open()
            yield from self._read(known(log), after)
            return
        found: list[Row] = []
        trouble: StorageError | None = None
        with self._transaction("DEFERRED") as connection:
            try:
                found.extend(self._read(known(log), after))
            except StorageError as error:
                trouble = error
            self._commit(connection)
        yield from found
        if trouble is not None:
            raise trouble

    def version(self, log: str) -> object:
        """See ``Store``: SQLite counts the commits of other connections, and the last number is ours."""
        with self._lock, FORM.blaming(self.path):
            (others,) = self._require_open().execute("PRAGMA data_version").fetchone()
            return others, self._ends[known(log)].number

    def begin_anew(self, log: str, entries: Sequence[Entry], keep: Callable[[Row], bool] | None = None) -> None:
        """See ``Store``."""
        refuse_anew(log)
        with self._transaction("IMMEDIATE") as connection:
            number = self._caught_up(log).number
            kept = [Entry(*row[1:4]) for row in self._read(log, 0) if keep(row)] if keep is not None else []
            former, seal, written = self._file_of(log), b"", list[Sealed]()
            fresh = _Pieces(self.path, former.generation + 1, new=True) if former is not None else None
            try:
                for entry in (*kept, *entries) or (Entry(_EMPTY, {}),):
                    number += 1
                    written.append(sealed(self.name, log, number, seal, entry, _placed(entry, fresh)))
                    seal = bytes.fromhex(written[-1].row.seal)
                connection.execute(f"DELETE FROM {log}")
                connection.execute(f"DELETE FROM {log}_pieces")
                for one in written:
                    self._insert(connection, log, one)
                self._commit(connection)
            except BaseException:
                if fresh is not None:
                    fresh.close()
                raise
            self._ends[log] = _End()
            if fresh is not None:
                self._pieces = fresh
            for one in written:
                self._advance(log, one.row)
            self._head.write(log, number, seal.hex())
            if former is not None:
                former.close()
                former.path.unlink(missing_ok=True)

    def size(self, log: str) -> int:
        """See ``Store``."""
        return self._ends[known(log)].size

    def close(self) -> None:
        """See ``Store``."""
        with self._lock:
            connection, self._connection = self._connection, None
            pieces, self._pieces = self._pieces, None
            if pieces is not None:
                pieces.close()
            if connection is not None and self._process == os.getpid():
                connection.close()

    def __enter__(self) -> FileStore:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_connection", None) is not None:
            self.close()

    # ---- opening

    def _refuse_former(self, former: Sequence[str]) -> None:
        for name in former:
            if os.path.lexists(self.path.parent / name):
                raise StorageError(
                    f"{str(self.path.parent)!r} holds {name!r}, which Counterflow 0.1 has written and this version "
                    "does not read: finish or delete the job with version 0.1, move that file away, and start the job "
                    "again.",
                    code="format",
                )

    def _make_if_missing(self) -> None:
        """The head first: a store without one is damaged, a head without a store is what a crash leaves here."""
        import fcntl

        if os.path.lexists(self.path):
            return
        make_folder(self.path.parent)
        self._head.make()
        handle = os.open(self._head.place, _FLAGS)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)  # one process makes it
            if not os.path.lexists(self.path):
                database.make(self.path, FORM.build)
        finally:
            os.close(handle)

    def _piece_files(self) -> list[Path]:
        return list(self.path.parent.glob(f"{glob.escape(self.path.name)}.*.pieces"))

    def _checked_identity(self) -> tuple[int, int]:
        """Which file this is; links and other things that no store may live in are refused."""
        for place in (self.path, self._head.place, *database.companions(self.path), *self._piece_files()):
            try:
                found = os.lstat(place)
            except FileNotFoundError:
                if place in (self.path, self._head.place):
                    raise FORM.damaged(self.path, f"{place.name} is missing") from None
                continue
            if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
                raise StorageError(
                    f"{self.name}: {str(place)!r} is no ordinary file with one name: a store follows no links. Delete "
                    "the links, and find out who has made them."
                )
            if place == self.path:
                identity = found.st_dev, found.st_ino
        return identity

    def _connect(self) -> None:
        connection = database.connect(f"{self.path.as_uri()}?mode=rw", uri=True, alone=self._alone)
        self._connection = connection
        if self._alone:  # a lock is taken by the first transaction, and kept
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("COMMIT")
        FORM.check(connection, self.path)
        database.use_write_ahead_log(connection, self.name)
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT}")
        if self._alone:
            self._open_pieces(connection)

    def _open_pieces(self, connection: sqlite3.Connection) -> None:
        """The file of the last row's pieces."""
        last = connection.execute("SELECT content FROM turns ORDER BY number DESC LIMIT 1").fetchone()
        try:
            generation = 1 if last is None else int(json.loads(last[0])[2][0])
        except (ValueError, TypeError, LookupError) as error:
            raise FORM.damaged(self.path, "its last row is not what was written") from error
        self._pieces = _Pieces(self.path, generation)

    def _check_head(self) -> None:
        """Whether rows that were committed are there."""
        for log in LOGS:
            told = self._head.told(log)
            with self._transaction("DEFERRED") as connection:
                self._head.check(connection, log, told)
                self._commit(connection)

    # ---- inside

    def _require_open(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StorageError(f"{self.name} has been closed: open it again.")
        if self._process != os.getpid():
            raise StorageError(f"{self.name} was opened by another process: open it in this one, too.")
        return self._connection

    @contextmanager
    def _transaction(self, kind: str) -> Iterator[sqlite3.Connection]:
        with self._lock, FORM.blaming(self.path):
            connection = self._require_open()
            connection.execute(f"BEGIN {kind}")
            try:
                found = os.stat(self.path)
                if (found.st_dev, found.st_ino) != self._identity:
                    raise StorageError(f"{self.name} has been replaced by another file: open it again.")
                yield connection
            except BaseException:
                database.rollback(connection)
                raise

    def _commit(self, connection: sqlite3.Connection) -> None:
        connection.execute("COMMIT")

    def _file_of(self, log: str) -> _Pieces | None:
        """Where the pieces of a log are added; None: in a table."""
        return self._pieces if log == "turns" else None

    def _caught_up(self, log: str) -> _End:
        """The last row, once what other processes have written was read."""
        end = self._ends[known(log)]
        if not self._alone or not end.number:
            for _ in self._read(log, end.number):
                pass
        return self._ends[log]

    def _read(self, log: str, after: int) -> Iterator[Row]:
        """Rows after that one, each checked against the one before."""
        assert self._connection is not None
        with FORM.blaming(self.path):
            found = self._connection.execute(
                f"SELECT number, kind, content, seal FROM {log} WHERE number >= ? OR typeof(number) <> 'integer' "
                "ORDER BY number",
                (after,),
            ).fetchall()
        end = self._ends[log]
        before, due = b"", 0
        if found and after and found[0][0] == after:
            before, due = found.pop(0)[3], after + 1
        if after and after == end.number:
            if due and before != end.seal:
                raise FORM.damaged(self.path, f"row {after} of {log!r} is not what was written")
            if not due and not found:
                raise FORM.damaged(self.path, f"row {after} of {log!r} was there and is not any more")
        if not due and (found or not after):
            self._ends[log] = _End()  # read from its beginning
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
            raise FORM.damaged(self.path, f"{place} holds values of the wrong kind")
        if due and number != due:
            raise FORM.damaged(self.path, f"row {due} of {log!r} is missing")
        if seal != seal_of(log, number, kind, content, before):
            raise FORM.damaged(self.path, f"{place} is not what was written, or one before it is missing")
        try:
            table, digests, placed = json.loads(content)
            with FORM.blaming(self.path):
                pieces = self._read_pieces(log, number, placed)
            same = [hashlib.sha256(piece).hexdigest() for piece in pieces] == digests
        except (ValueError, TypeError, RecursionError):
            same = False
        if not same:
            raise FORM.damaged(self.path, f"{place} is not what was written")
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
        out = []
        for size in sizes:
            out.append(self._pieces.read(at, size))
            at += size
        self._pieces.end = max(self._pieces.end, at)
        return out

    def _insert(self, connection: sqlite3.Connection, log: str, written: Sealed) -> None:
        row = written.row
        connection.execute(
            f"INSERT INTO {log} VALUES (?, ?, ?, ?)", (row.number, row.kind, written.content, bytes.fromhex(row.seal))
        )
        if self._file_of(log) is None:
            connection.executemany(
                f"INSERT INTO {log}_pieces VALUES (?, ?)",
                [(row.number * MOST_PIECES + k, piece) for k, piece in enumerate(row.pieces)],
            )

    def _advance(self, log: str, row: Row) -> None:
        end = self._ends[log]
        end.number, end.seal, end.size = row.number, bytes.fromhex(row.seal), end.size + weight(row)


def _placed(entry: Entry, pieces: _Pieces | None) -> list[Any] | None:
    """Where the pieces of a row lie, once they are on the disk; None: in a table."""
    if pieces is None:
        return None
    return [pieces.generation, pieces.add(entry.pieces), [len(piece) for piece in entry.pieces]]
