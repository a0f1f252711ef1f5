"""Frozen dataclasses as plain JSON and arrays, and back.

The type hints of a dataclass are its schema: a new field needs no word here. A hint may be a dataclass, ``None``,
``bool``, ``int``, ``float``, ``str``, an Enum, a Literal, an array (of floats, whole numbers or booleans), ``slice``, a
tuple, list, frozenset or Mapping of these, or a union. What a field holds beyond its hint (a subclass, a member of a
Protocol, one of several dataclasses) is named by the short name under which its class was registered.

A field declared with ``metadata={"optional": True}`` is written where it holds anything, and has its default where it
is not written, so that files from before there was such a field stay readable.

Arrays stand in a mapping of their own, by their path in the tree, such as ``couplings/found/A``. What stands in two
places is written once and is one object again afterwards. Nothing that is read is trusted: no name in it is imported,
and an error names the path inside.
"""

from __future__ import annotations

import json
import math
import sys
import types
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import cache
from types import MappingProxyType
from typing import Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from counterflow.errors import CounterflowError, StorageError
from counterflow.printable import checked

Array = NDArray[Any]
Arrays = Mapping[str, Array]
Kinds = Mapping[str, type]
T = TypeVar("T")

DEEPEST = 40  # objects in objects
MOST = 1_000_000  # entries of one tree
LONGEST = 10_000  # characters of one text
DTYPES = MappingProxyType({"f": "<f8", "i": "<i8", "b": "|b1"})  # by numpy's letter for the kind of number
_SAME, _KIND, _CONTENT = "=", "is", "of"  # no names of fields: a reference, and a dataclass that the hint does not name
_PLAIN, _TURNED = "array", "transposed"  # the order in memory is kept: sums depend on it in their last digit
_NOT_FINITE = MappingProxyType({"nan": math.nan, "inf": math.inf, "-inf": -math.inf})


def kinds_of(*classes: type) -> Kinds:
    """A register of classes by their own names, for ``describe`` and ``restore``."""
    named = {kind.__name__: kind for kind in classes}
    if len(named) != len(classes):
        raise TypeError("two classes of one name cannot be told apart on disk")
    return MappingProxyType(named)


@cache
def _hints(kind: type, known: tuple[tuple[str, type], ...]) -> dict[str, Any]:
    # names that a module imports for its type checker only are those of the register
    return get_type_hints(kind, localns={**dict(known), **vars(sys.modules[kind.__module__])})


def hints(kind: type, kinds: Kinds = MappingProxyType({})) -> dict[str, Any]:
    """Type of every field of a dataclass, by name."""
    found = _hints(kind, tuple(kinds.items()))
    return {field.name: found[field.name] for field in fields(kind) if field.init}


def describe(
    value: Any, kinds: Kinds = MappingProxyType({}), *, finite: bool = True, only: Collection[str] | None = None
) -> tuple[dict[str, Any], dict[str, Array]]:
    """A dataclass in plain JSON types, and its arrays by path; StorageError if a value is not what its hint says.

    ``kinds``: classes that stand where a hint does not name them. ``finite``: refuse NaN and infinity but in fields
    declared with ``metadata={"missing": True}``. ``only``: the fields to write, all by default.
    """
    writer = _Writer(kinds, finite)
    return writer.content(value, "", only), writer.arrays


def restore(
    kind: type[T], described: object, arrays: Arrays, kinds: Kinds = MappingProxyType({}), *,
    finite: bool = True, only: Collection[str] | None = None, onto: T | None = None,
) -> T:  # fmt: skip
    """The dataclass that ``describe`` has written; with ``only``, a copy of ``onto`` with these fields as written.

    StorageError if the description is anything but one of this class; the text begins with the path inside.
    """
    reader = _Reader(kinds, finite, dict(arrays))
    found: T = reader.content(kind, described, "", 0, only, onto)
    if reader.arrays:
        raise StorageError(f"{min(reader.arrays)}: an array that does not belong here")
    return found


def _where(path: str, name: object) -> str:
    return f"{path}/{name}" if path else str(name)


def _blame(path: str, problem: str) -> NoReturn:
    raise StorageError(f"{path or 'its content'}: {problem}")


def _arms(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)


def _untagged(arms: tuple[Any, ...]) -> tuple[Any, ...]:
    """Without the dataclasses of a union of several: those are told apart by their registered names."""
    several = sum(map(is_dataclass, arms)) > 1
    return tuple(arm for arm in arms if not (several and is_dataclass(arm)))


def _number_kind(hint: Any) -> str:
    return str(np.dtype(get_args(get_args(hint)[1])[0]).kind)


def _entry_hints(hint: Any, count: int, path: str) -> Iterable[Any]:
    """Hints of the entries of a tuple."""
    inner = get_args(hint)
    if len(inner) == 2 and inner[1] is Ellipsis:
        return (inner[0],) * count
    if len(inner) != count:
        _blame(path, f"should have {len(inner)} entries, has {count}")
    return inner


class _Writer:
    def __init__(self, kinds: Kinds, finite: bool) -> None:
        self.arrays: dict[str, Array] = {}
        self._kinds = kinds
        self._names = {kind: name for name, kind in kinds.items()}
        self._finite = finite
        self._objects: dict[int, tuple[str, object]] = {}  # the object is held, so that its id stays its own
        self._contents: dict[tuple[Any, ...], str] = {}

    def content(self, value: Any, path: str, only: Collection[str] | None = None) -> dict[str, Any]:
        missing = {field.name for field in fields(value) if field.metadata.get("missing")}
        spare = {field.name for field in fields(value) if field.metadata.get("optional")}
        return {
            name: self.write(hint, getattr(value, name), _where(path, name), name in missing)
            for name, hint in hints(type(value), self._kinds).items()
            if (only is None or name in only) and (name not in spare or getattr(value, name))
        }

    def write(self, hint: Any, value: Any, path: str, missing: bool = False) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, Enum):
            return None if value is None else value.name
        if isinstance(value, (bool, int, str)):
            return float(value) if type(value) is int and float in _arms(hint) and int not in _arms(hint) else value
        if isinstance(value, float):
            return float(value) if math.isfinite(value) else self._not_finite(str(value), path, missing)
        if isinstance(value, slice):
            return [value.start, value.stop]
        if isinstance(value, np.ndarray):
            return self._array(value, path, missing)
        arm = self._arm(hint, value, path)
        inner = get_args(arm)
        if isinstance(value, Mapping) and not is_dataclass(value):
            if any("/" in str(key) for key in value):
                _blame(path, "a key holds a slash")
            return {str(key): self.write(inner[1], entry, _where(path, key)) for key, entry in value.items()}
        if isinstance(value, frozenset):
            return sorted(value)
        if isinstance(value, tuple | list):
            entry_hints = inner * len(value) if get_origin(arm) is not tuple else _entry_hints(arm, len(value), path)
            pairs = enumerate(zip(entry_hints, value, strict=True))
            return [self.write(entry_hint, entry, _where(path, k)) for k, (entry_hint, entry) in pairs]
        if not is_dataclass(value):
            raise TypeError(f"{path}: {type(value).__name__} is no kind of data that is kept")
        return self._object(arm, value, path)

    def _arm(self, hint: Any, value: Any, path: str) -> Any:
        for arm in _untagged(_arms(hint)):
            holder = get_origin(arm) or arm
            if type(value) is holder or (isinstance(value, Mapping) and holder in (Mapping, MappingProxyType)):
                return arm
            if isinstance(value, tuple) and holder is Sequence:
                return arm
        if is_dataclass(value):
            return None
        raise TypeError(f"{path}: {type(value).__name__} is not {hint}")

    def _object(self, arm: Any, value: Any, path: str) -> Any:
        if id(value) in self._objects:
            return {_SAME: self._objects[id(value)][0]}
        if hasattr(type(value), "from_json"):
            written = value.to_json()
        else:
            written = self.content(value, path)
            self._objects[id(value)] = path, value  # after what is in it: a reader has read that before it knows this
        if arm is not None:
            return written
        if type(value) not in self._names:
            raise TypeError(f"{path}: {type(value).__name__} is not among the registered classes")
        return {_KIND: self._names[type(value)], _CONTENT: written}

    def _not_finite(self, text: str, path: str, missing: bool) -> str:
        if self._finite and not missing:
            _blame(path, f"holds {text}, which is not finite")
        return text

    def _array(self, value: Array, path: str, missing: bool) -> Any:
        if self._finite and value.dtype.kind == "f" and not _sound(value, missing):
            _blame(path, "holds a value that is not finite")
        turned = value.ndim > 1 and value.flags.f_contiguous and not value.flags.c_contiguous
        array = np.asarray(value.T if turned else value, DTYPES[value.dtype.kind], order="C")
        first = self._contents.setdefault((turned, array.dtype.kind, array.shape, array.tobytes()), path)
        if first != path:
            return {_SAME: first}
        self.arrays[path] = array
        return _TURNED if turned else _PLAIN


def _sound(array: Array, missing: bool) -> bool:
    good = np.isfinite(array)
    return bool((good | np.isnan(array)).all() if missing else good.all())


class _Reader:
    def __init__(self, kinds: Kinds, finite: bool, arrays: dict[str, Array]) -> None:
        self.arrays = arrays
        self._kinds = kinds
        self._finite = finite
        self._known: dict[str, Any] = {}
        self._left = MOST

    def content(
        self, kind: type, given: object, path: str, depth: int, only: Collection[str] | None = None, onto: Any = None
    ) -> Any:
        wanted = {name: hint for name, hint in hints(kind, self._kinds).items() if only is None or name in only}
        if not isinstance(given, dict):
            _blame(path, f"should be the fields of {kind.__name__}, got {given!r:.60}")
        spare = {field.name for field in fields(kind) if field.metadata.get("optional")}
        if odd := (set(given) ^ set(wanted)) - (spare - set(given)):
            name = min(odd, key=str)
            problem = f"is missing from {kind.__name__}" if name in wanted else f"is no field of {kind.__name__}"
            _blame(_where(path, name), problem)
        declared = {field.name: field.metadata for field in fields(kind)}
        values = {
            name: self.read(wanted[name], entry, _where(path, name), depth + 1, declared[name])
            for name, entry in given.items()
        }
        try:
            return kind(**values) if onto is None else replace(onto, **values)
        except (CounterflowError, TypeError, ValueError, AttributeError, KeyError, OverflowError) as error:
            raise StorageError(f"{path or kind.__name__}: {error}") from error

    def read(
        self, hint: Any, given: Any, path: str, depth: int, declared: Mapping[str, Any] = MappingProxyType({})
    ) -> Any:
        self._left -= 1
        if depth > DEEPEST or self._left < 0:
            _blame(path, "is nested too deeply" if depth > DEEPEST else f"there are more than {MOST} entries")
        arms = _arms(hint)
        if given is None:
            return None if type(None) in arms or None in arms else _blame(path, "is null")
        if isinstance(given, dict) and set(given) == {_SAME}:
            return self._again(arms, given[_SAME], path)
        if isinstance(given, dict) and set(given) == {_KIND, _CONTENT}:
            return self._named(arms, given, path, depth)
        for arm in _untagged(arms):
            if _fits(arm, given):
                return self._arm(arm, given, path, depth, declared)
        shown = " or ".join(getattr(arm, "__name__", str(arm)) for arm in arms)
        return _blame(path, f"should be {shown}, got {given!r:.60}")

    def _arm(self, arm: Any, given: Any, path: str, depth: int, declared: Mapping[str, Any]) -> Any:
        holder, inner = get_origin(arm) or arm, get_args(arm)
        if holder is np.ndarray:
            return self._array(arm, given, path, declared)
        if holder is str:
            return checked(given, path, LONGEST, StorageError, composed=False)
        if holder is float:
            return self._float(given, path, bool(declared.get("missing")))
        if isinstance(holder, type) and issubclass(holder, Enum):
            return holder[given]
        if holder is slice:
            if len(given) != 2 or any(type(end) is not int or end < 0 for end in given):
                _blame(path, f"should be two ends of a slice, got {given!r:.60}")
            return slice(*given)
        if holder in (Mapping, MappingProxyType, dict):
            if any("/" in key or (inner[0] is int and str(_whole(key)) != key) for key in given):
                _blame(path, f"has keys that are not {inner[0].__name__}")
            for key in given:
                checked(key, f"{path}: a key", LONGEST, StorageError, composed=False)
            read = {
                _whole(key) if inner[0] is int else key: self.read(inner[1], entry, _where(path, key), depth + 1)
                for key, entry in given.items()
            }
            return read if holder is dict else MappingProxyType(read)
        if holder in (tuple, list, frozenset, Sequence):
            entry_hints = _entry_hints(arm, len(given), path) if holder is tuple else inner * len(given)
            pairs = enumerate(zip(entry_hints, given, strict=True))
            found = [self.read(entry_hint, entry, _where(path, k), depth + 1) for k, (entry_hint, entry) in pairs]
            return tuple(found) if holder is Sequence else holder(found)
        if is_dataclass(arm):
            return self._object(arm, given, path, depth)  # type: ignore[arg-type]
        return given

    def _object(self, kind: type, given: object, path: str, depth: int) -> Any:
        if hasattr(kind, "from_json"):
            try:
                return kind.from_json(given)
            except (CounterflowError, TypeError, ValueError, KeyError) as error:
                raise StorageError(f"{path}: {error}") from error
        self._known[path] = found = self.content(kind, given, path, depth)
        return found

    def _named(self, arms: tuple[Any, ...], given: dict[str, Any], path: str, depth: int) -> Any:
        name = given[_KIND]
        kind = self._kinds.get(name) if isinstance(name, str) else None
        if kind is None:
            _blame(path, f"{name!r:.60} is no registered class")
        found = self._object(kind, given[_CONTENT], path, depth)
        if not any(_instance(found, arm) for arm in arms):
            _blame(path, f"a {name} does not belong here")
        return found

    def _again(self, arms: tuple[Any, ...], first: object, path: str) -> Any:
        found = self._known.get(first) if isinstance(first, str) else None
        if found is None or not any(_instance(found, arm) for arm in arms):
            _blame(path, f"refers to {first!r:.60}, which is not such a thing")
        return found

    def _float(self, given: Any, path: str, missing: bool) -> float:
        value = _NOT_FINITE[given] if isinstance(given, str) else float(given)
        if self._finite and not (math.isfinite(value) or (missing and math.isnan(value))):
            _blame(path, "is not a finite number")
        return value

    def _array(self, hint: Any, given: str, path: str, declared: Mapping[str, Any]) -> Array:
        if path not in self.arrays:
            _blame(path, "the array is missing")
        array = self.arrays.pop(path)
        if array.dtype.kind != _number_kind(hint) or array.dtype != np.dtype(DTYPES[array.dtype.kind]):
            _blame(path, f"has type {array.dtype}, not {np.dtype(DTYPES[_number_kind(hint)])}")
        rank = declared.get("rank")
        if rank is not None and array.ndim != rank:
            _blame(path, f"needs {rank} axes, has {array.ndim}")
        if self._finite and array.dtype.kind == "f" and not _sound(array, bool(declared.get("missing"))):
            _blame(path, "holds a value that is not finite")
        array = array.view()
        array.flags.writeable = False
        self._known[path] = found = array.T if given == _TURNED else array
        return found


def _whole(text: str) -> int:
    return int(text) if text.lstrip("-").isascii() and text.lstrip("-").isdigit() and len(text) < 20 else 0


def _instance(value: object, hint: Any) -> bool:
    holder = get_origin(hint) or hint
    if holder is np.ndarray:
        return isinstance(value, np.ndarray) and value.dtype.kind == _number_kind(hint)
    return isinstance(holder, type) and isinstance(value, holder)


def _fits(arm: Any, given: Any) -> bool:
    """Whether JSON of this type can be what the hint says."""
    holder = get_origin(arm) or arm
    if holder is Literal:
        return any(type(given) is type(choice) and given == choice for choice in get_args(arm))
    if holder is float:
        return type(given) is float or _fits(int, given) or (type(given) is str and given in _NOT_FINITE)
    if holder is int:
        return type(given) is int and abs(given) < 2**63
    if holder in (bool, str):
        return type(given) is holder
    if holder is np.ndarray:
        return given in (_PLAIN, _TURNED)
    if holder in (tuple, list, frozenset, Sequence, slice):
        return isinstance(given, list)
    if isinstance(holder, type) and issubclass(holder, Enum):
        return isinstance(given, str) and given in holder.__members__
    return isinstance(given, dict) and (is_dataclass(arm) or holder in (Mapping, MappingProxyType, dict))


# ---- JSON and bytes


def strict_json(text: str | bytes) -> Any:
    """JSON that says everything once and in JSON's own words; ValueError if not."""
    try:
        return json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands in it twice")
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def take_arrays(data: bytes, start: int, layout: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, Array]:
    """Arrays that stand one after the other in ``data`` and fill it: by name, (numpy's type, shape). Nothing is copied.

    ValueError if a shape is impossible, or if there are more or fewer bytes than are announced.
    """
    total = 0
    for name, (kind, shape) in layout.items():
        if any(type(n) is not int or not 0 <= n < 2**40 for n in shape):
            raise ValueError(f"array {name!r} has the impossible shape {list(shape)!r:.80}")
        total += np.dtype(kind).itemsize * math.prod(shape)
    if total != len(data) - start:
        raise ValueError(f"arrays of {total} bytes are announced, {len(data) - start} are there")
    out: dict[str, Array] = {}
    for name, (kind, shape) in layout.items():
        out[name] = np.frombuffer(data, kind, math.prod(shape), start).reshape(shape)
        start += out[name].nbytes
    return out
