"""What all messages share: fields of known types, arrays over named axes, checked when a message is built.

One description of a class serves all who handle messages: the axes of its arrays say which of them belong together,
what a plant compares with what it knows of itself (``sizes``), and which numbers run over its rows (``by_row``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import ProtocolError
from counterflow.printable import checked
from counterflow.records import hints

NAME_LIMIT = 100
KINDS: dict[str, type[Message]] = {}  # all classes of messages, by their names
_SCHEMAS: dict[type, dict[str, tuple[type, tuple[str, ...] | None]]] = {}


def over(*axes: str) -> Mapping[str, Any]:
    """What a field says that is an array: the names of its axes.

    Axes of one name have one length in all arrays of a message; a digit is the length itself. ``rows``: of the record,
    0..T; ``steps``: from one of them to the next, 1..T; ``states``, ``inputs``: of the unit; ``numbers``: what it sends
    of a row. The rows of an array whose first axis ends in "?" may all be missing.
    """
    return MappingProxyType({"axes": axes, "rank": len(axes)})


def up_to(most: int) -> Mapping[str, Any]:
    """What a field says whose text is no name: its most characters."""
    return MappingProxyType({"most": most})


def schema(kind: type[Message]) -> dict[str, tuple[type, tuple[str, ...] | None]]:
    """Field name -> (type, axes) of a message class; a plain number or text has None."""
    if kind not in _SCHEMAS:
        axes = {entry.name: entry.metadata.get("axes") for entry in fields(kind)}
        found = {name: (hint if axes[name] is None else np.ndarray, axes[name]) for name, hint in hints(kind).items()}
        _SCHEMAS[kind] = found
    return _SCHEMAS[kind]


@dataclass(frozen=True)
class Message:
    """Base of all messages. ``unit`` is the unit that sends it, or that it is meant for."""

    unit: str

    def __init_subclass__(cls) -> None:
        if cls.__name__ in KINDS:
            raise TypeError(f"there is a message {cls.__name__} already")
        KINDS[cls.__name__] = cls

    def __post_init__(self) -> None:
        for name, (kind, axes) in schema(type(self)).items():
            value = getattr(self, name)
            if axes is None:
                self._check_scalar(name, value, kind)
            else:
                object.__setattr__(self, name, self._checked_array(name, value, len(axes)))
        if not self.unit:
            raise ProtocolError(f"{self.label}: a unit's name has at least one character")
        _ = self.sizes  # refuses arrays that do not belong together
        self.check()

    @property
    def sizes(self) -> dict[str, int]:
        """Length of every axis, by its name; ProtocolError if arrays differ in it."""
        found: dict[str, int] = {}
        for name, axes in self.arrays().items():
            shape = getattr(self, name).shape
            wanted = list(shape)
            for k, axis in enumerate(axes):
                if axis.isdigit():
                    wanted[k] = int(axis)
                elif shape[k] or not axis.endswith("?"):
                    wanted[k] = found.setdefault(axis.rstrip("?"), shape[k])
            if tuple(wanted) != shape:
                raise ProtocolError(f"{self.label}: field {name!r} must have shape {tuple(wanted)}, got {shape}")
        return found

    @classmethod
    def arrays(cls) -> dict[str, tuple[str, ...]]:
        """Names of the arrays, with their axes."""
        return {name: axes for name, (_, axes) in schema(cls).items() if axes is not None}

    @property
    def by_row(self) -> FloatArray | None:
        """All that runs over the rows of the unit's record, side by side; None: nothing does."""
        fields = [name for name, axes in self.arrays().items() if axes[0].rstrip("?") in ("rows", "steps")]
        there = [getattr(self, name) for name in fields if getattr(self, name).size]
        return np.hstack(there) if there else None

    @property
    def label(self) -> str:
        return f"message {type(self).__name__} of unit {self.unit!r}"

    def check(self) -> None:
        """Relations between the fields, each a ``require`` of a subclass."""

    def require(self, holds: object, text: str) -> None:
        """ProtocolError with this text unless something holds."""
        if not holds:
            raise ProtocolError(f"{self.label}: {text}")

    def _check_scalar(self, name: str, value: object, kind: type) -> None:
        good = type(value) is kind
        if good and isinstance(value, float):
            good = bool(np.isfinite(value))
        if good and isinstance(value, int) and not isinstance(value, bool):
            good = 0 <= value < 2**53
        if good and isinstance(value, str):
            longest = self.__dataclass_fields__[name].metadata.get("most", NAME_LIMIT)
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
