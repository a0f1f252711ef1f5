"""How our bytes travel in FLARE: one list of (sequence, data) in a ``Shareable``, and not one key more.

Down: the messages to a unit that it has not acknowledged. Up: its replies. Both ways a reader takes exactly this form
and refuses the rest; what the bytes say is for the sessions to judge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from counterflow.errors import ProtocolError

TASK = "exchange"
FORM = 1
LARGEST = 1 << 30  # bytes in one envelope
MOST = 1000  # messages in one envelope
HEADERS = "__headers__"  # FLARE's own key of a ``Shareable``
REFUSAL = "counterflow-refusal"  # header of a reply that says no: ``Refusal`` as text
CANNOT = "HANDLER_EXCEPTION"  # FLARE's code of a reply; here of a plant that would answer, and cannot now


def packed(messages: Sequence[tuple[int, bytes]]) -> dict[str, Any]:
    """The content of an envelope."""
    return {"counterflow": FORM, "messages": [[sequence, data] for sequence, data in messages]}


def unpacked(shareable: Mapping[str, Any], unit: str) -> list[tuple[int, bytes]]:
    """Messages of an envelope, in order, whatever its headers; ProtocolError if it is anything else."""

    def refuse(what: str) -> ProtocolError:
        return ProtocolError(f"envelope of unit {unit!r}: {what}")

    if set(shareable) - {HEADERS} != {"counterflow", "messages"}:
        names = str(sorted(map(repr, shareable)))[:120]  # keys of somebody else's table need not be text
        raise refuse(f"must hold 'counterflow' and 'messages', got {names}")
    form, messages = shareable["counterflow"], shareable["messages"]
    if form != FORM:
        raise refuse(f"is of form {form!r:.20}, here it is {FORM}: upgrade the older side")
    if not isinstance(messages, (list, tuple)) or len(messages) > MOST:
        raise refuse(f"'messages' must be a list of at most {MOST}")
    read: list[tuple[int, bytes]] = []
    for entry in messages:
        match entry:
            case [sequence, data] if (type(sequence), type(data)) == (int, bytes) and 0 <= sequence < 2**53:
                read.append((sequence, data))
            case _:
                raise refuse("a message is a pair of sequence and bytes")
    if (size := sum(len(data) for _, data in read)) > LARGEST:
        raise refuse(f"{size} bytes are over the limit of {LARGEST}")
    return read
