"""What both sessions share: a store that is replayed when it is opened, places of messages, turns of a machine."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, NamedTuple, NoReturn, Self

import numpy as np

from counterflow.errors import CounterflowError, DataError, ProtocolError, StorageError
from counterflow.federation import checkpoint
from counterflow.federation.checkpoint import State
from counterflow.federation.job import Job
from counterflow.protocol import Message
from counterflow.sealed_log import DatabaseSchema, Entry, Row, SealedLogs
from counterflow.threads import one_blas_thread

LOG = "turns"
FILE = "session.db"
SESSION = DatabaseSchema(
    "store", 0x4346_5354, 3, {LOG: False},  # "CFST"
    restore="Find out how; then restore it from a backup with all files beside it, or start the job again",
    give="give the folder of a site of Counterflow",
    upgrade="use the version that made it, or finish the job there and start it again here",
    page=1 << 16,
)  # fmt: skip


class Outgoing(NamedTuple):
    """A message on its way: who sends it or is to get it, its place among that unit's messages, its bytes."""

    unit: str
    sequence: int
    data: bytes


class Session(ABC, Generic[State]):
    """One job at one site, which goes on where it was: its store holds an opening, perhaps a snapshot, then turns."""

    whose: str  # how errors begin

    def __init__(self, folder: str | Path, job: Job, state: State) -> None:
        self.job = job
        self.state: State = state
        self._snapshot = 0  # bytes that the log had when it last began anew
        self._lock = threading.RLock()
        self._store = SealedLogs(Path(folder) / FILE, SESSION, alone=True)

    def _replay(self, opening: Entry) -> None:
        """Go on where it stopped, or begin with ``opening``."""
        try:
            rows = self._store.rows(LOG)
            first = next(rows, None)
            if first is None:
                first = self._store.append(LOG, opening)
            told = first.table
            if first.kind != "opening" or any(told.get(name) != opening.table[name] for name in ("unit", "job")):
                raise StorageError(f"{self._store.name} is not that of {self.whose} as it is now: give its own folder.")
            self._begun(first)
            for row in rows:
                try:
                    if row.kind == "snapshot":
                        self._restore(row.table, list(row.pieces))
                        self._snapshot = self._store.size(LOG)
                    else:
                        self._take_up(row)
                except CounterflowError:
                    raise
                except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
                    raise StorageError(
                        f"{self._store.name} holds a record that no session has written: start the job again.",
                        code="damaged",
                    ) from error
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def _begun(self, opening: Row) -> None:
        """Take in the first row."""

    @abstractmethod
    def _restore(self, table: dict[str, Any], pieces: list[bytes]) -> None:
        """Take in a snapshot."""

    @abstractmethod
    def _take_up(self, row: Row) -> None:
        """Take in any other row; errors of its form are the store's."""

    def _step(
        self, step: Callable[[State, Message], tuple[State, tuple[Message, ...]]], message: Message
    ) -> tuple[State, tuple[Message, ...]]:
        """A turn of the machine. Numbers beyond all measure end as ones that no message may hold."""
        try:
            with one_blas_thread(), np.errstate(all="ignore"):
                return step(self.state, message)
        except np.linalg.LinAlgError as error:
            raise DataError(
                f"{self.whose}: the numbers are beyond double precision ({error}); look for absurd values in the logs"
            ) from error

    def _changed(self, how: object) -> NoReturn:
        raise StorageError(
            f"{self.whose} cannot go on, because what it is computed from has changed since it began ({how}): restore "
            "log, model and software as they were, or start a new job."
        )

    def _begin_anew_if_due(self, opening: Entry, snapshot: Callable[[], Entry]) -> None:
        """Put a snapshot in the place of all rows of a job that is over, or whose log has grown long.

        If there is no room for it, the old log serves until it has grown again.
        """
        if not self.finished and not checkpoint.is_due(self._store.size(LOG), self._snapshot):
            return
        try:
            self._store.begin_anew(LOG, [opening, snapshot()])
        except StorageError as error:
            if error.code != "full":
                raise
        self._snapshot = self._store.size(LOG)

    @property
    def finished(self) -> bool:
        """Whether the job is over here."""
        return self.state.finished

    def close(self) -> None:
        """Let go of the folder. Nothing is lost without it."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def require_turn(sequence: object, due: int, whose: str) -> bool:
    """Whether a message is due; False: it came before; ProtocolError: it comes before its turn."""
    if type(sequence) is not int or not 0 <= sequence < 1 << 53:
        raise ProtocolError(f"{whose}: a message's sequence is a whole number of at least 0, got {sequence!r:.40}")
    if sequence > due:
        raise ProtocolError(f"{whose}: got message {sequence}, message {due} is due")
    return sequence == due
