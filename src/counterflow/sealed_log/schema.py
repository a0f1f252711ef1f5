"""What a database of sealed logs must look like, how it is opened with distrust, and what its errors mean.

The meaning of the rows is not known here: see whoever declares a ``DatabaseSchema``.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from counterflow.errors import StorageError

if TYPE_CHECKING:
    import sqlite3

BUSY_SECONDS = 30.0  # how long to wait for another process that is writing
SYNCHRONOUS = "FULL"  # a commit is on the disk when it returns
_COLUMNS = "(number INTEGER PRIMARY KEY, kind TEXT NOT NULL, content TEXT NOT NULL, seal BLOB NOT NULL)"
_PIECES = "(place INTEGER PRIMARY KEY, data BLOB NOT NULL)"

# why an operation failed, the error's code, and what to do, by SQLite's primary result code
_REASONS = {
    3: ("may not be read", "", "give the account that runs the unit access to it"),
    5: ("has been in use by another process", "in-use", "wait for that process or end it, then repeat"),
    6: ("is in use by another connection", "in-use", "wait until that has finished, then repeat"),
    8: ("may not be written", "", "make the file and its directory writable for the account that runs the unit"),
    10: ("could not be read or written: the disk reported an error", "", "check the disk and the space left on it"),
    13: ("could not be written: the disk is full", "full", "free some space, then repeat"),
    18: ("would have a record that is too large", "", "use fewer rows, or fewer units"),
    14: ("could not be opened", "", "check the path, and that the file and its directory may be read and written"),
}
_DAMAGED, _FULL, _FOREIGN = 11, 13, 26


@dataclass(frozen=True)
class DatabaseSchema:
    """What a kind of database must look like, and what its errors advise.

    Parameters
    ----------
    word : how errors call such a file.
    application, version : as SQLite's header has them.
    logs : {name of a log: whether it is only ever added to}.
    restore : the remedy for a damaged file.
    give : the remedy for a file of another kind, or none.
    upgrade : the remedy for a file of another version.
    page : bytes that SQLite writes at once; large ones are faster for large pieces.
    """

    word: str
    application: int
    version: int
    logs: Mapping[str, bool]
    restore: str
    give: str
    upgrade: str = "use the version that made it"
    page: int = 4096

    @cached_property
    def statements(self) -> dict[str, str]:
        """{name: statement} of every table and trigger, compared to the letter."""
        tables = {log: f"CREATE TABLE {log} {_COLUMNS}" for log in self.logs}
        tables |= {f"{log}_pieces": f"CREATE TABLE {log}_pieces {_PIECES}" for log in self.logs}
        triggers = {}
        for log in (log for log, added_to in self.logs.items() if added_to):
            abort = f"BEGIN SELECT RAISE(ABORT, 'a {self.word} is only ever added to'); END"
            for table, verb in ((table, verb) for table in (log, f"{log}_pieces") for verb in ("update", "delete")):
                triggers[f"{table}_no_{verb}"] = f"CREATE TRIGGER {table}_no_{verb} BEFORE {verb} ON {table} {abort}"
            triggers[f"{log}_in_order"] = (
                f"CREATE TRIGGER {log}_in_order BEFORE INSERT ON {log} WHEN NEW.number IS NOT "
                f"(SELECT coalesce(max(number), 0) + 1 FROM {log}) {abort}"
            )
        return tables | triggers

    def named(self, path: Path | None) -> str:
        """How errors call this file."""
        return f"the {self.word} in memory" if path is None else f"the {self.word} {str(path)!r}"

    def damaged(self, path: Path | None, how: str) -> StorageError:
        """The error of a file that is not as it was written."""
        return StorageError(f"{self.named(path)} has been changed or damaged: {how}. {self.restore}.", code="damaged")

    @contextmanager
    def blaming(self, path: Path | None) -> Iterator[None]:
        """What SQLite or the operating system say becomes a StorageError that names the file and the remedy."""
        import sqlite3

        place, restore = self.named(path), self.restore[0].lower() + self.restore[1:]
        try:
            yield
        except sqlite3.Error as error:
            number = getattr(error, "sqlite_errorcode", _DAMAGED) & 0xFF  # text that is no text has no code
            if number == _DAMAGED:
                reason, code, remedy = "is damaged", "damaged", restore
            elif number == _FOREIGN:
                reason, code, remedy = f"is not a {self.word}", "", self.give
            else:
                unknown = ("could not be used", "", "check that nothing else changes the file")
                reason, code, remedy = _REASONS.get(number, unknown)
            raise StorageError(f"{place} {reason} ({error}): {remedy}.", code=code or None) from error
        except UnicodeDecodeError as error:  # from names in the file that SQLite wanted to tell
            raise StorageError(f"{place} is damaged ({error}): {restore}.", code="damaged") from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                reason, code, remedy = _REASONS[_FULL]
                raise StorageError(f"{place} {reason} ({error.strerror}): {remedy}.", code=code) from error
            raise StorageError(f"{place} could not be used: {error.strerror or error}. Check the path.") from error

    def build(self, connection: sqlite3.Connection) -> None:
        """The tables, inside the transaction of whoever calls."""
        connection.execute(f"PRAGMA application_id = {self.application}")
        connection.execute(f"PRAGMA user_version = {self.version}")
        for statement in self.statements.values():
            connection.execute(statement)

    def check(self, connection: sqlite3.Connection, path: Path) -> None:
        """Whose database this is, its tables and triggers to the letter, and its pages."""
        place = self.named(path)
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        if application != self.application:
            raise StorageError(f"{place} is a database of another application: {self.give}.")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version != self.version:
            raise StorageError(
                f"{place} has format {version}, this version of Counterflow knows {self.version}: {self.upgrade}.",
                code="format",
            )
        named = "SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite~_%' ESCAPE '~'"
        if dict(connection.execute(named)) != self.statements:
            how = f"its tables or the triggers that guard them are not those of a {self.word}"
            raise StorageError(f"{place} has been changed: {how}. {self.restore}.", code="damaged")
        problems = [text for (text,) in connection.execute("PRAGMA quick_check(1)")]
        if problems != ["ok"]:
            restore = self.restore[0].lower() + self.restore[1:]
            raise StorageError(f"{place} is damaged ({problems[0]}): {restore}.", code="damaged")


def connected(target: str, *, alone: bool = False) -> sqlite3.Connection:
    """A connection whose commits are on the disk when they return.

    ``alone``: it keeps the file to itself until it is closed, and does not wait for another that does.
    """
    import sqlite3

    connection = sqlite3.connect(
        target, timeout=0.0 if alone else BUSY_SECONDS, isolation_level=None, check_same_thread=False,
        uri=target.startswith("file:"), cached_statements=32,
    )  # fmt: skip
    try:
        for setting in (
            *(("locking_mode = EXCLUSIVE",) if alone else ()),
            f"synchronous = {SYNCHRONOUS}",
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


def identity_of(path: Path, schema: DatabaseSchema) -> tuple[int, int]:
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


def companions(path: Path) -> list[Path]:
    """Files that SQLite may keep beside a database."""
    return [Path(f"{path}{tail}") for tail in ("-journal", "-wal", "-shm")]
