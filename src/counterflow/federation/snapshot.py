"""The state of a state machine as bytes, and back: no pickle, no names of code, only the kinds of data listed here.

A value is written as a tree of JSON and a list of arrays. What is shared is written once, so that it is shared again
afterwards. Fields that are computed from others on demand are not written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from counterflow.caveats import Caveat
from counterflow.errors import CounterflowError, StorageError
from counterflow.estimation.joint import System
from counterflow.estimation.likelihood import SharedRecord
from counterflow.estimation.optimiser import Estimated
from counterflow.estimation.parameters import Parameters
from counterflow.estimation.uncertainty import Uncertainty
from counterflow.identification import SignalSpace
from counterflow.methods.logs.unit import Reading
from counterflow.methods.published.conjugate import ConjugateState, Whitening
from counterflow.methods.published.contraction import Contraction
from counterflow.methods.published.couplings import Eliminator, Evidence
from counterflow.methods.published.server import GradientRelease, RoundRecord
from counterflow.methods.published.unit import MessageRelease
from counterflow.methods.sufficient.private import PrivateRelease
from counterflow.plant import LocalModel, OperatingPoint
from counterflow.protocol.messages import KINDS

DEEPEST = 40  # trees in trees
_TYPES = {"f": "<f8", "i": "<i8", "b": "|b1"}
Array = NDArray[Any]


@cache
def kinds() -> Mapping[str, type]:
    """Data that may stand in a snapshot, by its name there."""
    own = (
        ConjugateState, Whitening, Contraction, MessageRelease, PrivateRelease, Reading, SignalSpace, LocalModel,
        OperatingPoint, Eliminator, Evidence, Estimated, GradientRelease, Parameters, RoundRecord, SharedRecord, System,
        Uncertainty, Caveat,
    )  # fmt: skip
    return MappingProxyType({**KINDS, **{kind.__name__: kind for kind in own}})


def freeze(value: object) -> tuple[dict[str, Any], list[bytes]]:
    """A value as plain JSON and the bytes of its arrays.

    Examples
    --------
    >>> table, pieces = freeze((1, None, frozenset({"boiler"}), np.eye(2)))
    >>> thaw(table, pieces, "here")[3].tolist()
    [[1.0, 0.0], [0.0, 1.0]]
    """
    writer = _Writer()
    tree = writer.write(value)
    return {"tree": tree, "arrays": writer.described}, writer.pieces


def thaw(table: object, pieces: list[bytes], where: str) -> Any:
    """The value again; StorageError if this is not what ``freeze`` writes. Its arrays cannot be written to."""
    try:
        if not isinstance(table, dict) or set(table) != {"tree", "arrays"} or len(table["arrays"]) != len(pieces):
            raise ValueError("it is no snapshot")
        arrays = [_array(described, piece) for described, piece in zip(table["arrays"], pieces, strict=True)]
        return _Reader(arrays).read(table["tree"], 0)
    except (CounterflowError, KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise StorageError(
            f"{where} holds a snapshot that no session has written ({error}): start the job again."
        ) from (error)


class _Writer:
    def __init__(self) -> None:
        self.described: list[list[Any]] = []
        self.pieces: list[bytes] = []
        self._known: dict[int, tuple[int, object]] = {}  # the object is held, so that its id stays its own

    def write(self, value: Any) -> Any:
        written: list[Any]
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, (bool, int, str)):
            return value
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else ["float", str(value)]
        if isinstance(value, tuple):
            return ["tuple", [self.write(entry) for entry in value]]
        if isinstance(value, frozenset):
            return ["set", sorted(value)]
        if isinstance(value, Mapping):
            return ["map", [[str(key), self.write(entry)] for key, entry in value.items()]]
        if isinstance(value, slice):
            return ["slice", value.start, value.stop]
        if id(value) in self._known:
            return ["again", self._known[id(value)][0]]
        if isinstance(value, np.ndarray):
            written = ["array", self._array(value)]
        elif kinds().get(type(value).__name__) is type(value):
            written = ["of", type(value).__name__, self._fields(value)]
        else:
            raise TypeError(f"snapshot: {type(value).__name__} is no kind of data that is kept")
        # after what is in it: a reader has read that, too, before it knows this one
        self._known[id(value)] = len(self._known), value
        return written

    def _fields(self, value: Any) -> dict[str, Any]:
        return {field.name: self.write(getattr(value, field.name)) for field in fields(value)}

    def _array(self, value: Array) -> int:
        turned = value.ndim > 1 and value.flags.f_contiguous and not value.flags.c_contiguous
        kind = _TYPES[value.dtype.kind]  # the order in memory is kept: sums depend on it in their last digit
        self.described.append([kind, list(value.shape), turned])
        self.pieces.append(np.ascontiguousarray(value.T if turned else value, kind).tobytes())
        return len(self.pieces) - 1


class _Reader:
    def __init__(self, arrays: list[Array]) -> None:
        self._arrays = arrays
        self._known: list[Any] = []

    def read(self, tree: Any, depth: int) -> Any:
        if tree is None or isinstance(tree, (bool, int, float, str)):
            return tree
        if depth > DEEPEST or not isinstance(tree, list):
            _strange()
        match tree:
            case ["float", "nan" | "inf" | "-inf" as text]:
                return float(text)
            case ["tuple", [*entries]]:
                return tuple(self.read(entry, depth + 1) for entry in entries)
            case ["set", [*entries]]:
                return frozenset(entries)
            case ["map", [*entries]]:
                return MappingProxyType({str(key): self.read(entry, depth + 1) for key, entry in entries})
            case ["slice", start, stop]:
                return slice(start, stop)
            case ["again", int(number)] if 0 <= number < len(self._known):
                return self._known[number]
            case ["array", int(number)] if 0 <= number < len(self._arrays):
                self._known.append(self._arrays[number])
            case ["of", str(name), dict(entries)]:
                kind = kinds()[name]
                self._known.append(kind(**{key: self.read(entry, depth + 1) for key, entry in entries.items()}))
            case _:
                _strange()
        return self._known[-1]


def _array(described: Any, piece: bytes) -> Array:
    kind, shape, turned = described
    if kind not in _TYPES.values() or not all(type(n) is int and n >= 0 for n in shape) or type(turned) is not bool:
        _strange()
    flat = np.frombuffer(piece, kind)
    return flat.reshape(shape[::-1]).T if turned else flat.reshape(shape)


def _strange() -> NoReturn:
    raise ValueError("an entry of an unknown kind")
