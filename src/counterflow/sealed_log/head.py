"""The number and seal of the last row of every log of a database, in a small file beside it.

SQLite drops the end of its own log if a bit of it has changed, as it must drop a commit that a crash has torn. The head
is written after the commit and not waited for: one that is behind the rows is a crash, one that is ahead is damage, or
an old copy of the database.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from counterflow.files import sync_folder
from counterflow.sealed_log.schema import DatabaseSchema

if TYPE_CHECKING:
    import sqlite3

SLOT = 512  # bytes for one log: one sector, which is written whole or not at all
FLAGS = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)  # no link is followed
TAIL = ".head"


@dataclass(frozen=True)
class Head:
    """The head of the database ``path``."""

    schema: DatabaseSchema
    path: Path

    @property
    def place(self) -> Path:
        return Path(f"{self.path}{TAIL}")

    def make(self) -> None:
        """An empty head for a database without rows, on the disk when this returns; one that is there stays."""
        handle = os.open(self.place, FLAGS | os.O_CREAT, 0o600)
        try:
            if os.fstat(handle).st_size < SLOT * len(self.schema.logs):  # new, or a crash came in between
                os.write(handle, bytes(SLOT * len(self.schema.logs)))
                os.fsync(handle)
        finally:
            os.close(handle)
        sync_folder(self.place.parent)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time, where the system knows how; elsewhere renaming refuses a name that is taken."""
        handle = os.open(self.place, FLAGS)
        try:
            if os.name != "nt":
                import fcntl

                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def last(self, log: str) -> tuple[int, str] | None:
        """What it says of a log; None: no row was ever written. To be read before the rows are."""
        handle = os.open(self.place, FLAGS)
        try:
            os.lseek(handle, list(self.schema.logs).index(log) * SLOT, os.SEEK_SET)
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
            raise self.schema.damaged(self.path, f"{self.place.name} is not what was written")
        return number, str(seal)

    def check(self, connection: sqlite3.Connection, log: str, last: tuple[int, str] | None) -> None:
        """Whether the row that was committed last is there, inside the transaction of whoever calls."""
        if last is None:
            return
        number, seal = last
        (found,) = connection.execute(f"SELECT max(number) FROM {log}").fetchone()
        there = connection.execute(f"SELECT seal FROM {log} WHERE number = ?", (number,)).fetchone()
        if type(found) is not int or found < number:
            raise self.schema.damaged(self.path, f"row {number} of {log!r} was there and is not any more")
        if there is not None and (type(there[0]) is not bytes or there[0].hex() != seal):
            raise self.schema.damaged(self.path, f"row {number} of {log!r} is not what was written")

    def write(self, log: str, number: int, seal: str) -> None:
        """After the commit; if it cannot be written, it stays behind, which is no fault."""
        body = json.dumps([number, seal]).encode()
        slot = hashlib.sha256(body).hexdigest().encode() + b" " + body
        with contextlib.suppress(OSError):
            handle = os.open(self.place, FLAGS)
            try:
                os.lseek(handle, list(self.schema.logs).index(log) * SLOT, os.SEEK_SET)
                os.write(handle, slot.ljust(SLOT - 1) + b"\n")
            finally:
                os.close(handle)
