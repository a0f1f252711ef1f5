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
    >>> from counterflow.federation.flare.envelope import packed, unpacked
    >>> unpacked(packed([(3, b"CFLW")]), "boiler")
    [(3, b'CFLW')]
    """
    return {"counterflow": FORM, "messages": [[sequence, data] for sequence, data in messages]}


def unpacked(content: Mapping[str, Any], unit: str) -> list[tuple[int, bytes]]:
    """Messages of an envelope, in order; ProtocolError if it is anything else. ``content`` has no FLARE headers."""
    if set(content) != _KEYS:
        raise ProtocolError(f"envelope of unit {unit!r}: must hold {sorted(_KEYS)}, got {_names(content)}")
    if content["counterflow"] != FORM:
        raise ProtocolError(
            f"envelope of unit {unit!r}: is of form {content['counterflow']!r:.20}, here it is {FORM}: "
            "upgrade the older side"
        )
    messages = content["messages"]
    if not isinstance(messages, (list, tuple)) or len(messages) > MOST:
        raise ProtocolError(f"envelope of unit {unit!r}: 'messages' must be a list of at most {MOST}")
    read: list[tuple[int, bytes]] = []
    size = 0
    for entry in messages:
        if not isinstance(entry, (list, tuple)) or len(entry) != 2:
            raise ProtocolError(f"envelope of unit {unit!r}: a message is a pair of sequence and bytes")
        sequence, data = entry
        if type(sequence) is not int or not 0 <= sequence < 2**53 or type(data) is not bytes:
            raise ProtocolError(f"envelope of unit {unit!r}: a message is a pair of sequence and bytes")
        size += len(data)
        read.append((sequence, data))
    if size > LARGEST:
        raise ProtocolError(f"envelope of unit {unit!r}: {size} bytes are over the limit of {LARGEST}")
    return read


def _names(content: Mapping[Any, Any]) -> str:
    """The keys of somebody else's table, which need not be text."""
    return str(sorted(map(repr, content)))[:120]
