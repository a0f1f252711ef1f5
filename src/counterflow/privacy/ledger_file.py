"""The file of a budget ledger: how it is made, opened with distrust, and what its errors mean.

An SQLite database with a write-ahead log. Nothing here knows what a release costs; see ``ledger``.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from counterflow import database
from counterflow.errors import StorageError

if TYPE_CHECKING:
    import sqlite3

APPLICATION = 0x4346_4C47  # "CFLG", so that `file` and we can tell a ledger from any other database
VERSION = 2

_NEVER_CHANGED = "BEGIN SELECT RAISE(ABORT, 'a ledger is only ever added to'); END"
SCHEMA = {
    "budget": "CREATE TABLE budget (id INTEGER PRIMARY KEY CHECK (id = 1), unit TEXT NOT NULL, epsilon REAL NOT NULL, "
    "delta REAL NOT NULL, window_rows INTEGER NOT NULL, created TEXT NOT NULL, secret TEXT NOT NULL, "
    "seal TEXT NOT NULL)",
    "entries": "CREATE TABLE entries (id INTEGER PRIMARY KEY, time TEXT NOT NULL, what TEXT NOT NULL, "
    "fit TEXT NOT NULL, mechanism TEXT NOT NULL, source TEXT NOT NULL, start INTEGER NOT NULL, stop INTEGER NOT NULL, "
    "row_loss REAL NOT NULL CHECK (row_loss >= 0), epsilon REAL NOT NULL CHECK (epsilon >= 0), "
    "delta REAL NOT NULL CHECK (delta >= 0), spent REAL NOT NULL CHECK (spent >= 0), state TEXT NOT NULL, "
    "release TEXT NOT NULL, grid TEXT NOT NULL, first INTEGER NOT NULL, tags BLOB NOT NULL, seal TEXT NOT NULL)",
    "entries_in_order": "CREATE TRIGGER entries_in_order BEFORE INSERT ON entries WHEN NEW.id IS NOT "
    "(SELECT coalesce(max(id), 0) + 1 FROM entries) BEGIN SELECT RAISE(ABORT, 'a ledger has no holes'); END",
    **{
        f"{table}_no_{verb.lower()}": f"CREATE TRIGGER {table}_no_{verb.lower()} BEFORE {verb} ON {table} "
        + _NEVER_CHANGED
        for table in ("budget", "entries")
        for verb in ("UPDATE", "DELETE")
    },
}
# columns of an entry, and their types
COLUMNS = (
    "id, time, what, fit, mechanism, source, start, stop, row_loss, epsilon, delta, spent, state, release, grid, "
    "first, tags, seal"
)
KINDS = (int, str, str, str, str, str, int, int, float, float, float, float, str, str, str, int, bytes, str)

FORM = database.Form(
    "ledger", APPLICATION, VERSION, SCHEMA,
    restore="Restore it from a backup that has every release, or take the budget as spent",
    give="give a file made by `counterflow privacy open`",
)  # fmt: skip


def head(path: Path) -> database.Head:
    """What was spent last, beside the ledger: see ``database.Head``."""
    return database.Head(FORM, path, ("entries",))


def seal(before: str, content: Sequence[str | int | float | bytes]) -> str:
    """SHA-256 over what came before and this content; floats by their bits, bytes by their own SHA-256."""
    plain = [entry.hex() if isinstance(entry, float) else entry for entry in content]
    plain = [hashlib.sha256(entry).hexdigest() if isinstance(entry, bytes) else entry for entry in plain]
    return hashlib.sha256(json.dumps([before, *plain]).encode()).hexdigest()


def in_memory(budget: Sequence[str | int | float]) -> sqlite3.Connection:
    """A ledger that lives as long as its connection."""
    connection = database.connect(":memory:")
    connection.execute("BEGIN IMMEDIATE")
    _build(connection, budget)
    connection.execute("COMMIT")
    return connection


def make(path: Path, budget: Sequence[str | int | float]) -> None:
    """A new ledger, whole on the disk before it gets its name; never over another file."""
    taken = f"{str(path)!r} exists: what a unit has spent is never overwritten. Choose another place."
    with FORM.blaming(path):
        database.make(path, lambda connection: _build(connection, budget), taken)


def connect(path: Path) -> sqlite3.Connection:
    """A connection to an existing ledger whose form has been checked; its content has not."""
    place = FORM.named(path)
    with FORM.blaming(path):
        identity(path)
        # SQLite would open it all the same, and leave a log that nobody can write
        if not os.access(path, os.R_OK | os.W_OK):
            raise StorageError(
                f"{place} may not be read and written by this account: run as the account that owns it, or look at a "
                "copy of it."
            )
        connection = database.connect(f"{path.as_uri()}?mode=rw", uri=True)
        try:
            FORM.check(connection, path)
            database.use_write_ahead_log(connection, place)
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
    if kind := database.ordinary(found):
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


def _build(connection: sqlite3.Connection, budget: Sequence[str | int | float]) -> None:
    FORM.build(connection)
    connection.execute("INSERT INTO budget VALUES (1, ?, ?, ?, ?, ?, ?, ?)", (*budget, seal("", [VERSION, *budget])))
