"""One safetensors file with a strict JSON description in its header and a digest of both, read with distrust.

What is read is checked for size, type, shape, finiteness and completeness before anything is made of it; whatever is
wrong is a StorageError that names the file.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import CounterflowError, OptionError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator


_KEY = "counterflow"
_LARGEST_FILE = 1 << 30  # bytes; a fit takes kilobytes to megabytes


def seal(
    title: str,
    described: dict[str, Any],
    arrays: Mapping[str, FloatArray],
    version: int,
    what: str,
    missing: tuple[str, ...] = (),
) -> bytes:
    """A file's bytes; arrays named in ``missing`` may hold NaN."""
    from safetensors.numpy import save as to_bytes

    checked = {key: np.ascontiguousarray(value, np.float64) for key, value in arrays.items()}
    for key, value in checked.items():
        if not (np.isfinite(value) | (np.isnan(value) & (key in missing))).all():
            raise StorageError(f"{what}: {key!r} holds a value that is not finite: such a fit cannot be used or saved.")
    described = {"format": title, "version": version, **described}
    try:
        described["digest"] = digest(described, checked)
        text = json.dumps(described, allow_nan=False)
    except ValueError as error:
        raise StorageError(f"{what}: {error}: such a fit cannot be used or saved.") from error
    return bytes(to_bytes(checked, metadata={_KEY: text}))


def digest(described: Mapping[str, Any], arrays: Mapping[str, FloatArray]) -> str:
    """SHA-256 of everything in a file but the digest itself."""
    rest = {key: value for key, value in described.items() if key != "digest"}
    hasher = hashlib.sha256(json.dumps(rest, allow_nan=False, sort_keys=True).encode())
    for key in sorted(arrays):
        hasher.update(json.dumps([key, list(arrays[key].shape)]).encode())
        hasher.update(np.asarray(arrays[key], "<f8").tobytes())
    return hasher.hexdigest()


def digest_of(file: bytes) -> str:
    size = int.from_bytes(file[:8], "little")
    return str(json.loads(json.loads(file[8 : 8 + size])["__metadata__"][_KEY])["digest"])


@dataclass
class SealedFile:
    """What a file holds; each part is taken out once, and nothing may be left."""

    path: Path
    described: dict[str, Any]
    arrays: dict[str, Any]

    def text(self, key: str) -> str:
        return typed(self.described, key, str)  # type: ignore[no-any-return]

    def take(self, key: str, shape: tuple[int, ...], missing: bool = False) -> FloatArray:
        if key not in self.arrays:
            raise ValueError(f"array {key!r} is missing")
        array = self.arrays.pop(key)
        if array.dtype != np.float64:
            raise ValueError(f"array {key!r} has type {array.dtype}, not float64")
        if array.shape != shape:
            raise ValueError(f"array {key!r} has shape {array.shape}, not {shape}")
        if not (np.isfinite(array) | (np.isnan(array) & missing)).all():
            raise ValueError(f"array {key!r} holds a value that is not finite")
        array.flags.writeable = False
        return np.asarray(array)

    def finish(self) -> None:
        if self.arrays:
            raise ValueError(f"arrays {sorted(self.arrays)[:3]} do not belong here")


class Demand(StorageError):
    """Not the file's fault: something must be passed to ``load``."""


def read(path: Path, title: str, version: int) -> SealedFile:
    from safetensors import SafetensorError, safe_open

    try:
        if not path.is_file():
            raise StorageError(f"there is no file {str(path)!r}: is the directory a saved fit, and complete?")
        if (size := path.stat().st_size) > _LARGEST_FILE:
            raise StorageError(f"{str(path)!r} has {size} bytes, more than a fit can have: use another copy.")
        with safe_open(str(path), framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise StorageError(
            f"{str(path)!r} is damaged or not a safetensors file ({error}). Use another copy, or fit again."
        ) from error
    if _KEY not in metadata:
        raise StorageError(f"{str(path)!r} was not written by Counterflow: give a directory that a fit was saved to.")
    with blaming(path):
        described = json.loads(metadata[_KEY], object_pairs_hook=_once, parse_constant=_no_constant)
        if not isinstance(described, dict):
            raise ValueError("its description is not an object")
        if described.get("format") != title:
            raise ValueError(f"it holds {described.get('format')!r}, not {title!r}")
        found = described.get("version")
        if found != version or isinstance(found, bool):
            raise Demand(
                f"{str(path)!r} has format version {found!r}, this Counterflow reads {version}: update Counterflow, "
                "or fit again."
            )
        for key, array in arrays.items():
            if array.dtype != np.float64:
                raise ValueError(f"array {key!r} has type {array.dtype}, not float64")
        if digest(described, arrays) != described.get("digest"):
            raise ValueError("its contents do not match its digest")
    return SealedFile(path, described, arrays)


@contextmanager
def blaming(path: Path) -> Iterator[None]:
    """Whatever is wrong in a file is told as that file's fault."""
    try:
        yield
    except (Demand, OptionError):
        raise
    except (CounterflowError, KeyError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        reason = str(error) if not isinstance(error, RecursionError) else "its description is nested too deeply"
        raise StorageError(
            f"{str(path)!r} is damaged or not part of this fit: {reason.rstrip('.')}. Use another copy, or fit again."
        ) from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands in its description twice")
    return found


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def check_keys(found: object, expected: tuple[str, ...]) -> None:
    if not isinstance(found, dict) or set(found) != set(expected):
        got = sorted(found) if isinstance(found, dict) else type(found).__name__
        raise ValueError(f"its description should have {sorted(expected)}, got {got}")


def typed(found: Mapping[str, Any], key: str, kind: type) -> Any:
    value = found.get(key)
    if type(value) is not kind:  # bool is an int to isinstance
        raise ValueError(f"{key!r} should be {kind.__name__}, got {type(value).__name__}")
    return value


def count(found: Mapping[str, Any], key: str, least: int) -> int:
    value: int = typed(found, key, int)
    if value < least:
        raise ValueError(f"{key!r} is {value}, less than {least}")
    return value


def number(found: Mapping[str, Any], key: str) -> float:
    value = found.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise ValueError(f"{key!r} should be a finite number")
    return float(value)


def texts(found: Mapping[str, Any], key: str) -> tuple[str, ...]:
    values = typed(found, key, list)
    if not all(isinstance(value, str) for value in values):
        raise ValueError(f"{key!r} should hold texts")
    return tuple(values)
