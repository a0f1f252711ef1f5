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

from counterflow.arrays import FloatArray
from counterflow.errors import ProtocolError
from counterflow.protocol.message import KINDS, Message, schema
from counterflow.records import strict_json, take_arrays

MAGIC = b"CFLW"
VERSION = 1
HEADER_LIMIT = 1 << 22  # notes and terms are text, and JSON writes some letters with six
SIZE_LIMIT = 1 << 30
_PREFIX = struct.Struct("<4sHI")


def _header(message: Message, rows: int | None = None) -> tuple[bytes, int, list[str]]:
    """Header bytes, payload size and array order; ``rows`` replaces the rows of arrays that run over time."""
    plain: dict[str, object] = {}
    shapes: dict[str, list[int]] = {}
    numbers = 0
    for name, (kind, axes) in schema(type(message)).items():
        value = getattr(message, name)
        if axes is None and kind is not float:
            plain[name] = value
            continue
        shape = list(np.shape(value))
        if rows is not None and axes and axes[0].rstrip("?") == "steps" and shape[0]:
            shape[0] = rows
        shapes[name] = shape
        numbers += math.prod(shape)
    names = sorted(shapes)
    content = {"arrays": shapes, "fields": plain, "kind": type(message).__name__}
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode(), 8 * numbers, names


def encode(message: Message) -> bytes:
    """Bytes of a message.

    >>> from counterflow.protocol import Settled, decode, encode
    >>> decode(encode(Settled("boiler", round=3, gradient=0.0))).unit
    'boiler'
    """
    header, _, names = _header(message)
    payload = [np.ascontiguousarray(getattr(message, name), dtype="<f8").tobytes() for name in names]
    return b"".join([_PREFIX.pack(MAGIC, VERSION, len(header)), header, *payload])


def encoded_size(message: Message, rows: int | None = None) -> int:
    """Length of ``encode(message)`` without encoding; with ``rows``, as if its trajectories had that many rows."""
    key = (type(message), rows, *map(_size_key, message.__dict__.values()))
    size = _SIZES.get(key)
    if size is None:
        header, payload, _ = _header(message, rows)
        size = _PREFIX.size + len(header) + payload
        if len(_SIZES) < _SIZES_LIMIT:
            _SIZES[key] = size
    return size


_SIZES: dict[tuple[object, ...], int] = {}  # messages of one kind and shape have one size; engines ask every round
_SIZES_LIMIT = 10_000


def _size_key(value: object) -> object:
    """All that the size of a message depends on in one field: an array's shape, a whole number's digits, a text."""
    if isinstance(value, np.ndarray):
        return value.shape
    if isinstance(value, float):
        return None
    return len(str(value)) if type(value) is int else value


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
    values: dict[str, Any] = {
        **_plain_fields(kind, header["fields"]),
        **_arrays(kind, header["arrays"], data, _PREFIX.size + length),
    }
    return kind(**values)  # checks types, shapes and finiteness


def _plain_fields(kind: type[Message], given: object) -> dict[str, object]:
    wanted = {name for name, (cls, axes) in schema(kind).items() if axes is None and cls is not float}
    if not isinstance(given, dict) or set(given) != wanted:
        raise ProtocolError(f"message {kind.__name__} has the fields {sorted(wanted)}, got {str(given)[:120]}")
    return given


def _arrays(kind: type[Message], given: object, data: bytes, offset: int) -> dict[str, FloatArray | float]:
    wanted = {name: len(axes or ()) for name, (cls, axes) in schema(kind).items() if axes is not None or cls is float}
    if not isinstance(given, dict) or set(given) != set(wanted):
        raise ProtocolError(f"message {kind.__name__} has the arrays {sorted(wanted)}, got {str(given)[:120]}")
    layout: dict[str, tuple[str, tuple[int, ...]]] = {}
    for name in sorted(wanted):
        shape = given[name]
        if not isinstance(shape, list) or len(shape) != wanted[name]:
            raise ProtocolError(f"message {kind.__name__}: array {name!r} needs {wanted[name]} axes, got {shape!r:.80}")
        layout[name] = "<f8", tuple(shape)
    try:
        arrays = take_arrays(data, offset, layout)
    except ValueError as error:
        raise ProtocolError(f"message {kind.__name__}: {error}") from None
    return {
        name: float(array) if schema(kind)[name][0] is float else array.astype(np.float64, copy=False)
        for name, array in arrays.items()
    }
