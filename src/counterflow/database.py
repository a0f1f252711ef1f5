"""SQLite files that outlive crashes and are opened with distrust: how they are made, checked, and what errors mean.

Shared by the budget ledger and by the store of a federation; neither the tables nor their meaning are known here.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
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
SLOT = 512  # bytes of a head for one log: one sector, which is written whole or not at all
_FLAGS = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)  # no link is followed
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


@dataclass(frozen=True)
class Head:
    """The number and seal of the last row of every log of a database, in a small file beside it.

    SQLite drops the end of its own log if a bit of it has changed, as it must drop a commit that a crash has torn. The
    head is written after the commit and not waited for: one that is behind the rows is a crash, one that is ahead is
    damage, or an old copy of the database.

    Parameters
    ----------
    form : of the database, for errors.
    path : of the database.
    logs : its tables; their numbers are row ids, and each has a column ``seal``.
    """

    form: Form
    path: Path
    logs: Sequence[str]

    @property
    def place(self) -> Path:
        return Path(f"{self.path}.head")

    def make(self) -> None:
        """An empty head for a database without rows, on the disk when this returns; one that is there stays."""
        handle = os.open(self.place, _FLAGS | os.O_CREAT, 0o600)
        try:
            if os.fstat(handle).st_size < SLOT * len(self.logs):  # new, or a crash came in between
                os.write(handle, bytes(SLOT * len(self.logs)))
                os.fsync(handle)
        finally:
            os.close(handle)
        sync_folder(self.place.parent)

    def told(self, log: str) -> tuple[int, str] | None:
        """What it says of a log; None: no row was ever written. To be read before the rows are."""
        handle = os.open(self.place, _FLAGS)
        try:
            os.lseek(handle, self.logs.index(log) * SLOT, os.SEEK_SET)
            slot = os.read(handle, SLOT)
        finally:
            os.close(handle)
        if len(slot) == SLOT and not any(slot):
            return None
        digest, _, body = slot.rstrip(b"\n ").partition(b" ")
        try:
            number, seal = json.loads(body)
            good = digest.decode() == hashlib.sha256(body).hexdigest() and type(number) is int
        except (ValueError, TypeError):
            good = False
        if not good:
            raise self.form.damaged(self.path, f"{self.place.name} is not what was written")
        return number, str(seal)

    def check(self, connection: sqlite3.Connection, log: str, told: tuple[int, str] | None) -> None:
        """Whether the row that was committed last is there, inside the transaction of whoever calls."""
        if told is None:
            return
        number, seal = told
        (last,) = connection.execute(f"SELECT max(rowid) FROM {log}").fetchone()
        there = connection.execute(f"SELECT seal FROM {log} WHERE rowid = ?", (number,)).fetchone()
        if last is None or last < number:
            raise self.form.damaged(self.path, f"row {number} of {log!r} was there and is not any more")
        if there is not None and (there[0].hex() if isinstance(there[0], bytes) else there[0]) != seal:
            raise self.form.damaged(self.path, f"row {number} of {log!r} is not what was written")

    def write(self, log: str, number: int, seal: str) -> None:
        """After the commit; if it cannot be written, it stays behind, which is no fault."""
        body = json.dumps([number, seal]).encode()
        slot = hashlib.sha256(body).hexdigest().encode() + b" " + body
        with contextlib.suppress(OSError):
            handle = os.open(self.place, _FLAGS)
            try:
                os.lseek(handle, self.logs.index(log) * SLOT, os.SEEK_SET)
                os.write(handle, slot.ljust(SLOT - 1) + b"\n")
            finally:
                os.close(handle)


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
