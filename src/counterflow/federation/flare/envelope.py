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
_KEYS = {"counterflow", "messages"}


def packed(messages: Sequence[tuple[int, bytes]]) -> dict[str, Any]:
    """The content of an envelope.

    Examples
    --------
    >>> unpacked(packed([(3, b"CFLW")]), "boiler")
    [(3, b'CFLW')]
    """
    return {"counterflow": FORM, "messages": [[sequence, data] for sequence, data in messages]}


def unpacked(content: Mapping[str, Any], unit: str) -> list[tuple[int, bytes]]:
    """Messages of an envelope, in order; ProtocolError if it is anything else. ``content`` has no FLARE headers."""
    if set(content) != _KEYS:
        names = str(sorted(map(repr, content)))[:120]  # keys of somebody else's table need not be text
        raise ProtocolError(f"envelope of unit {unit!r}: must hold {sorted(_KEYS)}, got {names}")
    if content["counterflow"] != FORM:
        raise ProtocolError(
            f"envelope of unit {unit!r}: is of form {content['counterflow']!r:.20}, here it is {FORM}: "
            "upgrade the older side"
        )
    messages = content["messages"]
    if not isinstance(messages, (list, tuple)) or len(messages) > MOST:
        raise ProtocolError(f"envelope of unit {unit!r}: 'messages' must be a list of at most {MOST}")
    read: list[tuple[int, bytes]] = []
    for entry in messages:
        match entry:
            case [sequence, data] if (type(sequence), type(data)) == (int, bytes) and 0 <= sequence < 2**53:
                read.append((sequence, data))
            case _:
                raise ProtocolError(f"envelope of unit {unit!r}: a message is a pair of sequence and bytes")
    if (size := sum(len(data) for _, data in read)) > LARGEST:
        raise ProtocolError(f"envelope of unit {unit!r}: {size} bytes are over the limit of {LARGEST}")
    return read
