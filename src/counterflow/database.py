"""SQLite files that outlive crashes and are opened with distrust: how they are made, checked, and what errors mean.

Shared by the budget ledger and by the store of a federation; neither the tables nor their meaning are known here.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from counterflow.errors import StorageError
from counterflow.files import draft_of, make_folder, sync_folder

if TYPE_CHECKING:
    import sqlite3

BUSY_SECONDS = 30.0  # how long to wait for another process that is writing
SYNCHRONOUS = "FULL"  # a commit is on the disk when it returns
COMPANIONS = ("-journal", "-wal", "-shm")  # files that SQLite keeps beside a database

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
class Form:
    """What a kind of database must look like, and what its errors advise.

    Parameters
    ----------
    word : how errors call such a file.
    application, version : as SQLite's header has them.
    schema : {name: statement} of every table and trigger, compared to the letter.
    restore : the remedy for a damaged file.
    give : the remedy for a file of another kind.
    upgrade : the remedy for a file of another version.
    """

    word: str
    application: int
    version: int
    schema: Mapping[str, str]
    restore: str
    give: str
    upgrade: str = "use the version that made it"

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
        for statement in self.schema.values():
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
        if dict(connection.execute(named)) != dict(self.schema):
            how = f"its tables or the triggers that guard them are not those of a {self.word}"
            raise StorageError(f"{place} has been changed: {how}. {self.restore}.", code="damaged")
        problems = [text for (text,) in connection.execute("PRAGMA quick_check(1)")]
        if problems != ["ok"]:
            restore = self.restore[0].lower() + self.restore[1:]
            raise StorageError(f"{place} is damaged ({problems[0]}): {restore}.", code="damaged")


def connect(target: str, *, uri: bool = False, alone: bool = False) -> sqlite3.Connection:
    """A connection whose commits are on the disk when they return.

    ``alone``: it keeps the file to itself until it is closed, and does not wait for another that does.
    """
    import sqlite3

    connection = sqlite3.connect(
        target, timeout=0.0 if alone else BUSY_SECONDS, isolation_level=None, check_same_thread=False, uri=uri,
        cached_statements=32,
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


def use_write_ahead_log(connection: sqlite3.Connection, place: str) -> None:
    """One sync for each commit; refused where such a log cannot be kept."""
    (mode,) = connection.execute("PRAGMA journal_mode").fetchone()
    if mode != "wal":
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StorageError(
            f"{place} lies where no write-ahead log can be kept: move it to a local disk (not a network drive)."
        )


def make(path: Path, build: Callable[[sqlite3.Connection], None], taken: str = "") -> None:
    """A new database: drafted under another name, whole on the disk before it gets its own.

    ``taken`` : the error's text if there is a file of that name; "": whoever calls has seen to it that there is none.
    """
    make_folder(path.parent)
    draft = draft_of(path)
    try:
        os.close(os.open(draft, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        connection = connect(f"{draft.as_uri()}?mode=rw", uri=True)
        try:
            connection.execute("BEGIN IMMEDIATE")
            build(connection)
            connection.execute("COMMIT")
            connection.execute("PRAGMA journal_mode = WAL")  # kept in the file
        finally:
            connection.close()
        with open(draft, "r+b") as file:
            os.fsync(file.fileno())
        if taken:
            try:  # the name is taken first, by an empty file: renaming alone would replace another database
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
            except FileExistsError:
                raise StorageError(taken) from None
        try:
            os.replace(draft, path)
        except BaseException:
            if taken:
                path.unlink()  # the empty file of ours
            raise
    finally:
        for left in (draft, *companions(draft)):
            with contextlib.suppress(OSError):
                left.unlink()
    sync_folder(path.parent)


def companions(path: Path) -> tuple[Path, ...]:
    """Names of the files that SQLite may keep beside a database."""
    return tuple(Path(f"{path}{tail}") for tail in COMPANIONS)


def ordinary(found: os.stat_result) -> str:
    """ "" for an ordinary file; else what it is."""
    if stat.S_ISREG(found.st_mode):
        return ""
    return "a directory" if stat.S_ISDIR(found.st_mode) else "no ordinary file"


def rollback(connection: sqlite3.Connection) -> None:
    """Give up the open transaction, if there still is one."""
    import sqlite3

    if connection.in_transaction:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
