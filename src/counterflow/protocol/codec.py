"""Messages as bytes, and back, trusting nothing.

Layout: ``CFLW``, version (uint16), header length (uint32), header, payload. The header is compact JSON with sorted
keys: the kind, the plain fields, and the shape of every array; a float among the plain fields is an array of no axes,
so that its text does not change the size of a message. The payload is the arrays' little-endian float64 in the order
of the header. Nothing in it names code, and the length of everything is known before memory is taken.
"""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np

from counterflow.errors import ProtocolError
from counterflow.protocol.message import KINDS, Message, schema
from counterflow.records import strict_json, take_arrays

MAGIC = b"CFLW"
VERSION = 1
HEADER_LIMIT = 1 << 22  # notes and terms are text, and JSON writes some letters with six
SIZE_LIMIT = 1 << 30
_PREFIX = struct.Struct("<4sHI")


def _header(message: Message, rows: int | None = None) -> tuple[bytes, dict[str, list[int]]]:
    """Header bytes, and the shapes of arrays; ``rows`` replaces the rows of those that run over time."""
    plain: dict[str, object] = {}
    shapes: dict[str, list[int]] = {}
    for name, (kind, axes) in schema(type(message)).items():
        value = getattr(message, name)
        if axes is None and kind is not float:
            plain[name] = value
            continue
        shapes[name] = list(np.shape(value))
        if rows is not None and axes and axes[0].rstrip("?") == "steps" and shapes[name][0]:
            shapes[name][0] = rows
    content = {"arrays": shapes, "fields": plain, "kind": type(message).__name__}
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode(), shapes


def encode(message: Message) -> bytes:
    """Bytes of a message.

    >>> from counterflow.protocol import Settled, decode, encode
    >>> decode(encode(Settled("boiler", round=3, gradient=0.0))).unit
    'boiler'
    """
    header, shapes = _header(message)
    payload = [np.ascontiguousarray(getattr(message, name), dtype="<f8").tobytes() for name in sorted(shapes)]
    return b"".join([_PREFIX.pack(MAGIC, VERSION, len(header)), header, *payload])


def encoded_size(message: Message, rows: int | None = None) -> int:
    """Length of ``encode(message)`` without encoding; with ``rows``, as if its trajectories had that many rows."""
    header, shapes = _header(message, rows)
    return _PREFIX.size + len(header) + 8 * sum(map(math.prod, shapes.values()))


def decode(data: bytes, limit: int = SIZE_LIMIT) -> Message:
    """The message in ``data``; ProtocolError if it is anything but a well-formed message of a known kind."""
    if len(data) > limit:
        raise ProtocolError(f"message of {len(data)} bytes is over the limit of {limit}")
    if len(data) < _PREFIX.size:
        raise ProtocolError(f"message of {len(data)} bytes is shorter than its prefix")
    magic, version, length = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise ProtocolError("not a Counterflow message (wrong first four bytes)")
    if version != VERSION:
        raise ProtocolError(f"message of protocol version {version}, here it is {VERSION}: upgrade the older side")
    if length > HEADER_LIMIT or _PREFIX.size + length > len(data):
        raise ProtocolError(f"message header of {length} bytes does not fit")
    try:
        header = strict_json(data[_PREFIX.size : _PREFIX.size + length].decode("utf-8"))
    except ValueError as error:
        raise ProtocolError("message header is not valid JSON") from error
    if not isinstance(header, dict) or set(header) != {"arrays", "fields", "kind"}:
        raise ProtocolError("message header must hold 'kind', 'fields' and 'arrays', and nothing else")
    name = header["kind"]
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ProtocolError(f"unknown kind of message {name!r:.80}")
    return kind(**_values(kind, header, data, _PREFIX.size + length))  # checks types, shapes and finiteness


def _values(kind: type[Message], header: dict[str, Any], data: bytes, offset: int) -> dict[str, Any]:
    """The fields of a message, as far as they can be told without looking into them."""
    described, label = schema(kind), f"message {kind.__name__}"
    ranks = {name: len(axes or ()) for name, (cls, axes) in described.items() if axes is not None or cls is float}
    for part, wanted in (("fields", set(described) - set(ranks)), ("arrays", set(ranks))):
        if not isinstance(header[part], dict) or set(header[part]) != wanted:
            raise ProtocolError(f"{label} has the {part} {sorted(wanted)}, got {str(header[part])[:120]}")
    layout: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name in sorted(ranks):
        shape = header["arrays"][name]
        if not isinstance(shape, list) or len(shape) != ranks[name]:
            raise ProtocolError(f"{label}: array {name!r} needs {ranks[name]} axes, got {shape!r:.80}")
        layout[name] = "<f8", tuple(shape)
    try:
        arrays = take_arrays(data, offset, layout)
    except ValueError as error:
        raise ProtocolError(f"{label}: {error}") from None
    native = {name: array.astype(np.float64, copy=False) for name, array in arrays.items()}
    return {**header["fields"], **{name: each if each.ndim else float(each) for name, each in native.items()}}
