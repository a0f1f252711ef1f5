"""What all messages share: fields of known types and ranks, checked when a message is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import ProtocolError
from counterflow.printable import checked
from counterflow.records import hints

NAME_LIMIT = 100
MATRIX = MappingProxyType({"rank": 2})
VECTOR = MappingProxyType({"rank": 1})
_SCHEMAS: dict[str, dict[str, tuple[type, int]]] = {}


def schema(kind: type[Message]) -> dict[str, tuple[type, int]]:
    """Field name -> (type, rank) of a message class; the rank of a plain number or text is -1."""
    if kind.__name__ not in _SCHEMAS:
        rank = {entry.name: int(entry.metadata.get("rank", -1)) for entry in fields(kind)}
        _SCHEMAS[kind.__name__] = {
            name: (hint if rank[name] < 0 else np.ndarray, rank[name]) for name, hint in hints(kind).items()
        }
    return _SCHEMAS[kind.__name__]


@dataclass(frozen=True)
class Message:
    """Base of all messages. ``unit`` is the unit that sends it, or that it is meant for."""

    unit: str
    rows_fields: ClassVar[tuple[str, ...]] = ()
    texts: ClassVar[Mapping[str, int]] = MappingProxyType({})  # longest text of fields that are no names

    def __post_init__(self) -> None:
        for name, (kind, rank) in schema(type(self)).items():
            value = getattr(self, name)
            if rank < 0:
                self._check_scalar(name, value, kind)
            else:
                object.__setattr__(self, name, self._checked_array(name, value, rank))
        if not self.unit:
            raise ProtocolError(f"{self.label}: a unit's name has at least one character")
        self.check()

    @property
    def label(self) -> str:
        return f"message {type(self).__name__} of unit {self.unit!r}"

    def check(self) -> None:
        """Relations between the fields; a subclass raises ProtocolError if one is broken."""

    def _check_scalar(self, name: str, value: object, kind: type) -> None:
        good = type(value) is kind
        if good and isinstance(value, float):
            good = bool(np.isfinite(value))
        if good and isinstance(value, int) and not isinstance(value, bool):
            good = 0 <= value < 2**53
        if good and isinstance(value, str):
            longest = self.texts.get(name, NAME_LIMIT)
            whose = f"message {type(self).__name__}" if name == "unit" else self.label
            checked(value, f"{whose}: field {name!r}", longest, composed=False)
        if not good:
            raise ProtocolError(
                f"message {type(self).__name__}: field {name!r} must be a finite {kind.__name__}, got {value!r:.80}"
            )

    def _checked_array(self, name: str, value: object, rank: int) -> FloatArray:
        if not isinstance(value, np.ndarray) or value.dtype != np.float64 or value.ndim != rank:
            got = f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else type(value).__name__
            raise ProtocolError(f"{self.label}: field {name!r} must be float64 with {rank} axes, got {got}")
        with np.errstate(all="ignore"):  # the sum is not finite if an entry is not; else it may have overflowed
            suspicious = not np.isfinite(value.sum())
        if suspicious and not np.isfinite(value).all():
            bad = np.argwhere(~np.isfinite(value))[0]
            raise ProtocolError(f"{self.label}: field {name!r} has a value that is not finite at {tuple(bad.tolist())}")
        if value.flags.writeable:
            value = value.view()
            value.flags.writeable = False
        return value

    def _expect(self, **shapes: tuple[int, ...]) -> None:
        for name, shape in shapes.items():
            got = getattr(self, name).shape
            if got != shape:
                raise ProtocolError(f"{self.label}: field {name!r} must have shape {shape}, got {got}")
