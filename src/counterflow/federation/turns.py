"""What the journals of sessions hold: a small table and some messages in one record, so that a turn is kept whole."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from counterflow.errors import ProtocolError, StorageError
from counterflow.federation.journal import Journal
from counterflow.protocol import Message, decode

OPENING, TURN, TAKEN, FAILED, SNAPSHOT = 1, 2, 3, 4, 5  # kinds of records
_LENGTH = struct.Struct("<I")
_SAME = 1e-6  # relative: rounding may differ from machine to machine, logs and models differ by more


class Outgoing(NamedTuple):
    """A message on its way: who sends it or is to get it, its place among that unit's messages, its bytes."""

    unit: str
    sequence: int
    data: bytes


def pack(table: Mapping[str, Any], pieces: Sequence[bytes] = ()) -> bytes:
    """One record's payload.

    >>> unpack(pack({"a": 1}, [b"x", b""]), "here")
    ({'a': 1}, [b'x', b''])
    """
    head = json.dumps({"table": table, "sizes": [len(piece) for piece in pieces]}, allow_nan=False).encode()
    return b"".join((_LENGTH.pack(len(head)), head, *pieces))


def unpack(payload: bytes, where: str) -> tuple[dict[str, Any], list[bytes]]:
    """The table and the pieces of a record."""
    try:
        (length,) = _LENGTH.unpack_from(payload)
        at = _LENGTH.size + length
        head = json.loads(payload[_LENGTH.size : at])
        pieces = []
        for size in head["sizes"]:
            pieces.append(payload[at : at + size])
            at += size
        table = head["table"]
    except (ValueError, KeyError, TypeError, struct.error, RecursionError):
        at, table, pieces = -1, None, []
    if at != len(payload) or not isinstance(table, dict):
        raise StorageError(f"{where} holds a record that no session has written: start the job again.")
    return table, pieces


@contextmanager
def blaming(where: str) -> Iterator[None]:
    """A table that has not the form it should have is the journal's fault."""
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise StorageError(f"{where} holds a record that no session has written: start the job again.") from error


def replaced(journal: Journal, records: Sequence[tuple[int, bytes]]) -> int:
    """Let a journal begin anew with ``records``; bytes that it may be measured by from now on.

    If there is no room for a new one beside the old, the old one serves until it has grown again.
    """
    try:
        journal.begin_anew(records)
    except StorageError:
        if journal.broken:
            raise
    return journal.size


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
