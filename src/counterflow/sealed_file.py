"""Files with a digest over all of them, read with distrust: arrays with a description (safetensors), or plain JSON.

Whatever a flipped bit, a cut end or another hand has changed is refused, and told as that file's fault.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from counterflow.errors import CounterflowError, OptionError, StorageError
from counterflow.files import write_whole
from counterflow.records import Array, Arrays, strict_json

_KEY = "counterflow"
Older = Callable[[dict[str, Any], dict[str, Array]], tuple[Any, dict[str, Array]]]
LARGEST = 1 << 30  # bytes; a fit takes kilobytes to megabytes
LARGEST_JSON = 4 << 20  # bytes; such a file takes kilobytes


@dataclass(frozen=True)
class SealedFile:
    """What a file holds, whole and as it was written; ``content`` is plain JSON that nobody has checked further."""

    path: Path
    content: Any
    arrays: dict[str, Array]
    digest: str
    version: int


def seal(title: str, version: int, content: object, arrays: Arrays) -> bytes:
    """A file's bytes. ``content`` is plain JSON."""
    from safetensors.numpy import save as to_bytes

    checked = {key: np.ascontiguousarray(array) for key, array in arrays.items()}
    text = json.dumps({"format": title, "version": version, "content": content, "digest": ""}, allow_nan=False)
    return bytes(to_bytes(checked, metadata={_KEY: f'{text[:-2]}{_digest(text, checked)}"}}'}))


def _digest(text: str, arrays: Arrays) -> str:
    """SHA-256 of everything in a file but the digest itself."""
    hasher = hashlib.sha256(text.encode())
    for key in sorted(arrays):
        hasher.update(json.dumps([key, arrays[key].dtype.str, list(arrays[key].shape)]).encode())
        hasher.update(arrays[key].tobytes())
    return hasher.hexdigest()


def read(
    path: Path, title: str, version: int, older: Mapping[int, str | Older] | None = None, largest: int | None = None
) -> SealedFile:
    """Read a file that ``seal`` has written.

    ``older``: for earlier versions of the format, what to say, or how their description and arrays become a content
    and arrays of this version; that a digest holds is then for the caller to see.
    """
    text, arrays = open_file(path, largest)
    if text is None:
        raise StorageError(f"{str(path)!r} was not written by Counterflow: give a file that it has saved.")
    with blaming(path):
        found = strict_json(text)
        if not isinstance(found, dict):
            raise ValueError("its description is not an object")
        if found.get("format") != title:
            raise ValueError(f"it holds {found.get('format')!r:.80}, not {title!r}")
        known, digest = found.get("version"), found.get("digest")
        if type(known) is not int:
            raise ValueError(f"its format version is {known!r:.20}")
        if known != version:
            way = (older or {}).get(known, "update Counterflow")
            if not isinstance(way, str):
                return SealedFile(path, *way(found, arrays), str(digest), known)
            shown = f"format version {known}, this Counterflow reads {version}"
            raise StorageError(f"{str(path)!r} has {shown}: {way}.", code="version")
        ending = f'{digest}"}}'
        if not text.endswith(ending) or _digest(f'{text.removesuffix(ending)}"}}', arrays) != digest:
            raise ValueError("its contents do not match its digest")
        if set(found) != {"format", "version", "content", "digest"}:
            raise ValueError("its description holds more than a content")
    return SealedFile(path, found["content"], arrays, str(digest), version)


def open_file(path: Path, largest: int | None = None) -> tuple[str | None, dict[str, Array]]:
    """Counterflow's text in the header of a safetensors file, if it has one, and the arrays; nothing is checked yet."""
    from safetensors import SafetensorError
    from safetensors.numpy import load as arrays_of

    try:
        if not path.is_file():
            raise StorageError(f"there is no file {str(path)!r}: check the path, and whether the folder is complete.")
        if (size := path.stat().st_size) > (LARGEST if largest is None else largest):
            raise StorageError(f"{str(path)!r} has {size} bytes, more than such a file can have: use another copy.")
        data = path.read_bytes()
        arrays = arrays_of(data)
        found = _text(data)
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise StorageError(
            f"{str(path)!r} is damaged or not a safetensors file ({error}). Use another copy, or make it again.",
            code="damaged",
        ) from error
    return found, arrays


def digest_of(file: bytes) -> str:
    """The digest in what ``seal`` has made."""
    return str(strict_json(_text(file) or "{}")["digest"])


def _text(file: bytes) -> str | None:
    header = file[8 : 8 + int.from_bytes(file[:8], "little")].rstrip(b" ")
    if not header.endswith(b"}"):
        raise ValueError("its header is padded with something else than spaces")
    text = strict_json(header).get("__metadata__", {}).get(_KEY)
    return None if text is None else str(text)


def write_json(path: Path, title: str, content: object, *, durable: bool = True) -> None:
    """Write plain JSON for ``read_json``; only its owner reads it, and it is there whole or not at all."""
    write_whole(path, _json_bytes(title, content), durable=durable)


def read_json(path: Path, title: str) -> Any:
    """What ``write_json`` wrote, to the letter.

    Raises
    ------
    StorageError
        With code "missing" if there is no such file, "damaged" if it is not as it was written.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_JSON)
    except FileNotFoundError as error:
        raise StorageError(f"there is no file {str(path)!r}: put it back from a backup.", code="missing") from error
    except OSError as error:
        raise StorageError(f"{str(path)!r} cannot be read: {error.strerror or error}. Check its rights.") from error
    with blaming(path):
        found = strict_json(data)
        content = found.get("content")
        if _json_bytes(title, content) != data:  # whatever else stands in it, and be it a blank
            raise ValueError(f"it is not {title!r} as it was written")
    return content


def _json_bytes(title: str, content: object) -> bytes:
    told = {"format": title, "content": content}
    digest = hashlib.sha256(json.dumps(told, allow_nan=False).encode()).hexdigest()
    return (json.dumps({**told, "digest": digest}, indent=2) + "\n").encode()


@contextmanager
def blaming(path: Path) -> Iterator[None]:
    """Whatever is wrong in a file is told as that file's fault; a wrong version, and what a caller must give, as is."""
    try:
        yield
    except (CounterflowError, KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, OptionError) or (isinstance(error, StorageError) and error.code in ("version", "demand")):
            raise
        raise StorageError(
            f"{str(path)!r} is damaged or does not belong here: {str(error).rstrip('.')}. "
            "Use another copy, or make it again.",
            code="damaged",
        ) from error
