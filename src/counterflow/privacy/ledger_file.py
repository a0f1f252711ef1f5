"""The file of a budget ledger: how it is made, opened with distrust, and what its errors mean.

An SQLite database with a write-ahead log. Nothing here knows what a release costs; see ``ledger``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from counterflow.errors import StorageError

if TYPE_CHECKING:
    import sqlite3

APPLICATION = 0x4346_4C47  # "CFLG", so that `file` and we can tell a ledger from any other database
VERSION = 1
BUSY_SECONDS = 30.0  # how long to wait for another process that is writing

_NEVER_CHANGED = "BEGIN SELECT RAISE(ABORT, 'a ledger is only ever added to'); END"
SCHEMA = {
    "budget": "CREATE TABLE budget (id INTEGER PRIMARY KEY CHECK (id = 1), unit TEXT NOT NULL, epsilon REAL NOT NULL, "
    "delta REAL NOT NULL, window_rows INTEGER NOT NULL, created TEXT NOT NULL, seal TEXT NOT NULL)",
    "entries": "CREATE TABLE entries (id INTEGER PRIMARY KEY, time TEXT NOT NULL, what TEXT NOT NULL, "
    "fit TEXT NOT NULL, mechanism TEXT NOT NULL, source TEXT NOT NULL, start INTEGER NOT NULL, stop INTEGER NOT NULL, "
    "row_loss REAL NOT NULL CHECK (row_loss >= 0), epsilon REAL NOT NULL CHECK (epsilon >= 0), "
    "delta REAL NOT NULL CHECK (delta >= 0), spent REAL NOT NULL CHECK (spent >= 0), seal TEXT NOT NULL)",
    "entries_in_order": "CREATE TRIGGER entries_in_order BEFORE INSERT ON entries WHEN NEW.id IS NOT "
    "(SELECT coalesce(max(id), 0) + 1 FROM entries) BEGIN SELECT RAISE(ABORT, 'a ledger has no holes'); END",
    **{
        f"{table}_no_{verb.lower()}": f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
        + _NEVER_CHANGED
        for table in ("budget", "entries")
        for verb in ("UPDATE", "DELETE")
    },
}

# why an operation failed and what to do, by SQLite's primary result code
_REASONS = {
    3: ("may not be read", "give the account that runs the unit access to it"),
    5: (f"has been in use by another process for {BUSY_SECONDS:g} s", "wait for that process or end it, then repeat"),
    6: ("is in use by another connection", "wait until that has finished, then repeat"),
    8: ("may not be written", "make the file and its directory writable for the account that runs the unit"),
    10: ("could not be read or written: the disk reported an error", "check the disk and the space left on it"),
    11: ("is damaged", "restore it from a backup that has every release, or take the budget as spent"),
    13: ("could not be written: the disk is full", "free some space, then repeat"),
    14: ("could not be opened", "check the path, and that the file and its directory may be read and written"),
    26: ("is not a budget ledger", "give a file made by `counterflow privacy open`"),
}


@contextmanager
def blaming(place: str) -> Iterator[None]:
    """What SQLite or the operating system say becomes a StorageError that names the ledger and the remedy."""
    import sqlite3

    try:
        yield
    except sqlite3.Error as error:
        code = getattr(error, "sqlite_errorcode", 11) & 0xFF  # text that is no text has no code: the file is damaged
        reason, remedy = _REASONS.get(code, ("could not be used", "check that nothing else changes the file"))
        raise StorageError(f"{place} {reason} ({error}): {remedy}.") from error
    except UnicodeDecodeError as error:  # from names in the file that SQLite wanted to tell
        raise StorageError(f"{place} {_REASONS[11][0]} ({error}): {_REASONS[11][1]}.") from error
    except OSError as error:
        raise StorageError(f"{place} could not be used: {error.strerror or error}. Check the path.") from error


def seal(before: str, content: Sequence[str | int | float]) -> str:
    """SHA-256 over what came before and this content; floats by their bits."""
    plain = [entry.hex() if isinstance(entry, float) else entry for entry in content]
    return hashlib.sha256(json.dumps([before, *plain]).encode()).hexdigest()


def named(path: Path | None) -> str:
    """How messages call a ledger."""
    return "the ledger in memory" if path is None else f"the ledger {str(path)!r}"


def in_memory(budget: Sequence[str | int | float]) -> sqlite3.Connection:
    """A ledger that lives as long as its connection."""
    connection = _connect(":memory:", uri=False)
    _build(connection, budget)
    return connection


def make(path: Path, budget: Sequence[str | int | float]) -> None:
    """A new ledger: drafted under another name, whole on the disk before it gets its own; never over another file."""
    with blaming(named(path)):
        new_folders = _make_folder(path.parent)
        draft = path.with_name(f".{secrets.token_hex(8)}.part")
        try:
            os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
            connection = _connect(f"{draft.as_uri()}?mode=rw", uri=True)
            try:
                _build(connection, budget)
                connection.execute("PRAGMA journal_mode = WAL")  # kept in the file
            finally:
                connection.close()
            _sync(draft)
            try:  # the name is taken first, by an empty file: renaming alone would replace another ledger
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            except FileExistsError:
                raise StorageError(
                    f"{str(path)!r} exists: what a unit has spent is never overwritten. Choose another place."
                ) from None
            try:
                os.replace(draft, path)
            except BaseException:
                path.unlink()  # the empty file of ours
                raise
        finally:
            for left in (draft, Path(f"{draft}-journal"), Path(f"{draft}-wal"), Path(f"{draft}-shm")):
                with contextlib.suppress(OSError):
                    left.unlink()
        for folder in (path.parent, *(new.parent for new in new_folders)):
            sync_folder(folder)


def connect(path: Path) -> sqlite3.Connection:
    """A connection to an existing ledger whose form has been checked; its content has not."""
    place = named(path)
    with blaming(place):
        identity(path)
        # SQLite would open it all the same, and leave a log that nobody can write
        if not os.access(path, os.R_OK | os.W_OK):
            raise StorageError(
                f"{place} may not be read and written by this account: run as the account that owns it, or look at a "
                "copy of it."
            )
        connection = _connect(f"{path.as_uri()}?mode=rw", uri=True)
        try:
            _check_form(connection, place)
            (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
            if mode != "wal":
                (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise StorageError(
                    f"{place} lies where no write-ahead log can be kept: move it to a local disk (not a network drive)."
                )
        except BaseException:
            connection.close()
            raise
        return connection


def identity(path: Path) -> tuple[int, int]:
    """Which file this is. Files that no ledger can safely live in are refused.

    The file is not opened for this: closing it again would drop the locks that SQLite holds in this process.
    """
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise StorageError(
            f"there is no ledger {str(path)!r}: check the path, or make one by `counterflow privacy open`."
        ) from None
    if not stat.S_ISREG(found.st_mode):
        kind = "a directory" if stat.S_ISDIR(found.st_mode) else "no ordinary file"
        raise StorageError(f"{str(path)!r} is {kind}: give the file of a ledger, such as boiler.ledger.")
    if found.st_size == 0:
        raise StorageError(
            f"the ledger {str(path)!r} is empty: making it was interrupted, or it was overwritten. If nothing was ever "
            "released under it, delete it and make it anew; else restore it from a backup that has every release."
        )
    if found.st_nlink > 1:
        raise StorageError(
            f"the ledger {str(path)!r} has {found.st_nlink} names (hard links): with two names, two processes could "
            "spend the same budget. Delete the other names; use a symbolic link if one is needed."
        )
    return found.st_dev, found.st_ino


def _connect(target: str, uri: bool) -> sqlite3.Connection:
    import sqlite3

    connection = sqlite3.connect(
        target, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=uri, cached_statements=32
    )
    try:
        for setting in (
            "synchronous = FULL",  # a commit is on the disk when it returns
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


def _build(connection: sqlite3.Connection, budget: Sequence[str | int | float]) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute(f"PRAGMA application_id = {APPLICATION}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    for statement in SCHEMA.values():
        connection.execute(statement)
    connection.execute("INSERT INTO budget VALUES (1, ?, ?, ?, ?, ?, ?)", (*budget, seal("", [VERSION, *budget])))
    connection.execute("COMMIT")


def _check_form(connection: sqlite3.Connection, place: str) -> None:
    """Whose database this is, its tables and triggers to the letter, and its pages."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != APPLICATION:
        raise StorageError(
            f"{place} is a database of another application: give a file made by `counterflow privacy open`."
        )
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != VERSION:
        raise StorageError(
            f"{place} has format {version}, this version of Counterflow knows {VERSION}: use the version that made it."
        )
    found = dict(connection.execute("SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite~_%' ESCAPE '~'"))
    if found != SCHEMA:
        raise StorageError(
            f"{place} has been changed: its tables or the triggers that guard them are not those of a ledger. Restore "
            "it from a backup that has every release, or take the budget as spent."
        )
    problems = [text for (text,) in connection.execute("PRAGMA quick_check(1)")]
    if problems != ["ok"]:
        raise StorageError(f"{place} {_REASONS[11][0]} ({problems[0]}): {_REASONS[11][1]}.")


def _make_folder(folder: Path) -> list[Path]:
    """Make a folder; the ones that were not there."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        new.mkdir(exist_ok=True)
    return missing


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(folder: Path) -> None:
    """A new name is on the disk only when its folder is. Windows cannot do this, and need not."""
    if os.name == "nt":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
