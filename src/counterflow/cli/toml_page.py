"""A TOML file in use: what it holds, entry by entry, with errors that point at its lines; and texts for writing one.

``tomllib`` says what a text means but not where. The line of an entry is that of the shortest beginning of the text
that has it, which is looked for only when something is wrong there.
"""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any, NoReturn

from counterflow.errors import CounterflowError, ModelError, StorageError

Key = str | int
TomlPath = tuple[Key, ...]

LARGEST_FILE = 16 << 20  # bytes
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_PLACE = re.compile(r"\s*\(at line (\d+), column (\d+)\)$")
# what may be missing at the end of a beginning: lists and tables, at most four deep, and texts of several lines
_BRACKETS = ["".join(signs) for count in range(5) for signs in product("]}", repeat=count)]
_ENDINGS = [*_BRACKETS, '"""', "'''"]


def _load(path: Path) -> tuple[dict[str, Any], str]:
    """What a TOML file means, and its text; whatever is wrong is told with file and line."""
    remedy = "give a TOML file in UTF-8"
    try:
        if path.is_dir():
            raise StorageError(f"{path}: this is a directory; {remedy}.")
        if not path.is_file():
            raise StorageError(f"{path}: there is no such file; check the path.")
        if (size := path.stat().st_size) > LARGEST_FILE:
            raise StorageError(f"{path}: it has {size} bytes, more than {LARGEST_FILE}; {remedy}.")
        data = path.read_bytes()
        text = data.decode("utf-8")
        return tomllib.loads(text), text
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise StorageError(f"{path}:{line}: byte 0x{data[error.start]:02x} is not UTF-8; {remedy}.") from error
    except tomllib.TOMLDecodeError as error:
        place = _PLACE.search(str(error))
        line, said = (int(place[1]), str(error)[: place.start()]) if place else (len(text.splitlines()) or 1, error)
        raise StorageError(f"{path}:{line}: not TOML: {said}.") from error
    except RecursionError as error:
        raise StorageError(f"{path}: it is nested too deeply; {remedy}.") from error
    except ValueError as error:  # such as a whole number of thousands of digits
        raise StorageError(f"{path}: not TOML: {error}.") from error


def _has(contents: Any, path: TomlPath) -> bool:
    try:
        for key in path:
            contents = contents[key]
    except (LookupError, TypeError):
        return False
    return True


def line_of(text: str, path: TomlPath) -> int:
    """The line on which an entry of a TOML text begins; of one that is not there, that of what would hold it."""
    lines = text.split("\n")

    def begun(count: int) -> dict[str, Any]:
        """What the first lines mean, whatever is open at their end closed."""
        for ending in _ENDINGS:
            try:
                return tomllib.loads("\n".join([*lines[:count], ending]))
            except (ValueError, RecursionError):
                continue
        return {}

    whole = begun(len(lines))
    known = next(path[:n] for n in range(len(path), -1, -1) if _has(whole, path[:n]))
    return 1 + bisect_left(range(1, len(lines) + 1), True, key=lambda count: _has(begun(count), known)) if known else 1


def shown(path: Sequence[Key]) -> str:
    """A path as people write it: ``units.boiler.inputs[0].limits``."""
    keys = [f"[{key}]" if isinstance(key, int) else f".{key if _BARE.fullmatch(key) else quoted(key)}" for key in path]
    return "".join(keys).removeprefix(".")


def what(value: Any) -> str:
    """A value, as a message names it."""
    if isinstance(value, (dict, list)):
        return "a table" if isinstance(value, dict) else f"a list of {len(value)}"
    try:
        return f"text {value[:40]!r}" if isinstance(value, str) else f"{value!r:.40}"
    except ValueError:  # a whole number of thousands of digits
        return "a huge number"


def hint(name: str, known: Sequence[str]) -> str:
    """The known name that may have been meant."""
    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {near[0]!r}?" if near else ""


class Page:
    """A TOML file in use: what it holds, and errors that point at its lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.contents, self._text = _load(path)

    def place(self, at: TomlPath) -> str:
        """File, line and path, as errors begin."""
        return f"{self.path}:{line_of(self._text, at)}: {f'{shown(at)}: ' if at else ''}"

    def refuse(self, at: TomlPath, text: str) -> NoReturn:
        raise ModelError(f"{self.place(at)}{text.rstrip('.')}.")

    @contextmanager
    def blaming(self, at: TomlPath, *inside: str) -> Iterator[None]:
        """What the library refuses is told with the line that it comes from: of the key inside that it names first."""
        try:
            yield
        except CounterflowError as error:
            text = str(error)
            if text.startswith(f"{self.path}:"):
                raise
            named = next((word for word in re.findall(r"\w+", text) if word in inside), None)
            at = at if named is None else (*at, named)
            raise ModelError(f"{self.place(at)}{text.removeprefix('fit: ')}") from error

    def has(self, *at: Key) -> bool:
        """Whether something stands there."""
        return _has(self.contents, at)

    def table(self, at: TomlPath, keys: Sequence[str] | None = None, need: Sequence[str] = ()) -> dict[str, Any]:
        """A table, which may be left out; with ``keys`` it has no others, and those of ``need``."""
        value: Any = self.contents
        for key in at:
            if isinstance(value, dict) and key not in value:
                return {}
            value = value[key]
        if not isinstance(value, dict):
            self.refuse(at, f"must be a table, got {what(value)}")
        for key in value:
            if keys is not None and key not in keys:
                near = hint(key, keys) or f"; there are {', '.join(keys)}"
                self.refuse((*at, key), f"this key is not known{near}")
        for key in need:
            if key not in value:
                self.refuse(at, f"{key!r} is missing; add it")
        return value

    def text(self, at: TomlPath, value: Any) -> str:
        if not isinstance(value, str):
            self.refuse(at, f"must be text in quotes, got {what(value)}")
        return value

    def file(self, at: TomlPath, value: Any, folders: bool = False) -> Path:
        """A file that is there; or a folder, where that will do."""
        text = self.text(at, value)
        if not text or "\0" in text:
            self.refuse(at, "must be the name of a file")
        found = self.path.parent / text
        with suppress(OSError):
            if found.is_file() or (folders and found.is_dir()):
                return found
        self.refuse(at, f"there is no file {text!r}; paths are relative to {self.path.name}")


# ---- writing


def quoted(text: str) -> str:
    """A TOML basic string."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def written(value: Any) -> str:
    """A value in TOML."""
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{shown((key,))} = {written(entry)}' for key, entry in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(written, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return quoted(value) if isinstance(value, str) else repr(value)
