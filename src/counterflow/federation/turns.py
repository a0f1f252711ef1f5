"""What both sessions share: messages on their way, their numbers, and replies that are computed again."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from counterflow.errors import ProtocolError, StorageError
from counterflow.federation import checkpoint
from counterflow.federation.job import Job
from counterflow.protocol import Message, decode
from counterflow.sealed_log import DatabaseSchema, Entry, SealedLogs
from counterflow.threads import one_blas_thread

LOG = "turns"
FILE = "session.db"
SESSION = DatabaseSchema(
    "store", 0x4346_5354, 2, {LOG: False},  # "CFST"
    restore="Find out how; then restore it from a backup with all files beside it, or start the job again",
    give="give the folder of a site of Counterflow",
    upgrade="use the version that made it, or finish the job there and start it again here",
    page=1 << 16,
)  # fmt: skip
_SAME = 1e-6  # relative: rounding may differ from machine to machine, logs and models differ by more


class Outgoing(NamedTuple):
    """A message on its way: who sends it or is to get it, its place among that unit's messages, its bytes."""

    unit: str
    sequence: int
    data: bytes


class Session(ABC):
    """What both sessions share: a store of their own, opened and closed; a context manager."""

    def __init__(self, store: SealedLogs, job: Job) -> None:
        self._store, self.job = store, job
        self._snapshot = 0  # bytes that the log had when it last began anew
        self._lock = threading.RLock()

    @staticmethod
    def _store_in(folder: str | Path) -> SealedLogs:
        return SealedLogs(Path(folder) / FILE, SESSION, alone=True)

    def _replayed(self) -> Self:
        """Where it stopped."""
        try:
            with one_blas_thread(), np.errstate(all="ignore"):
                self._replay()
        except BaseException:
            self.close()
            raise
        return self

    @abstractmethod
    def _replay(self) -> None:
        """Compute the state anew from what is kept."""

    def _is_long(self) -> bool:
        return checkpoint.is_due(self._store.size(LOG), self._snapshot)

    def _begin_with(self, *entries: Entry) -> None:
        """Let the log begin anew. If there is no room for it, the old log serves until it has grown again."""
        try:
            self._store.begin_anew(LOG, entries)
        except StorageError as error:
            if error.code != "full":
                raise
        self._snapshot = self._store.size(LOG)

    def close(self) -> None:
        """Let go of the folder. Nothing is lost without it."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def strange(where: str) -> StorageError:
    """The error of a row that is sealed, and yet not what a session writes."""
    return StorageError(f"{where} holds a record that no session has written: start the job again.", code="damaged")


@contextmanager
def blaming(where: str) -> Iterator[None]:
    """A table that has not the form it should have is the store's fault."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise strange(where) from error


def first_difference(messages: Sequence[Message], kept: Sequence[bytes]) -> str:
    """How replies that were computed again differ from those that were kept; empty if only by rounding."""
    if len(messages) != len(kept):
        return f"{len(messages)} replies instead of {len(kept)}"
    for message, data in zip(messages, kept, strict=True):
        try:
            before = decode(data)
        except ProtocolError as error:
            return str(error)
        if type(before) is not type(message):
            return f"{type(message).__name__} instead of {type(before).__name__}"
        for name, was in before.__dict__.items():
            now = getattr(message, name)
            if isinstance(was, (np.ndarray, float)):
                if np.shape(was) != np.shape(now):
                    return f"{type(message).__name__}, field {name!r} has another shape"
                size = float(np.abs(was).max(initial=0.0)) if isinstance(was, np.ndarray) else abs(was)
                if not np.allclose(now, was, rtol=_SAME, atol=_SAME * size + 1e-300):
                    return f"{type(message).__name__}, field {name!r} has other values"
            elif was != now:
                return f"{type(message).__name__}, field {name!r} is {now!r:.40} instead of {was!r:.40}"
    return ""


def checked_sequence(sequence: object, where: str) -> int:
    """A place in a sequence of messages, or a ProtocolError."""
    if type(sequence) is not int or not 0 <= sequence < 1 << 53:
        raise ProtocolError(f"{where}: a message's sequence is a whole number of at least 0, got {sequence!r:.40}")
    return sequence
