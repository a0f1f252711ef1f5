"""A TOML file in use: what it holds, entry by entry, with errors that point at its lines; and texts for writing one.

``tomllib`` says what a text means but not where. The line of an entry is that of the shortest beginning of the text
that has it, which is looked for only when something is wrong there.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import tomllib
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import CounterflowError, ModelError, StorageError
from counterflow.plant.plant import LETTERS

Key = str | int
TomlPath = tuple[Key, ...]
T = TypeVar("T")
Reader = Callable[[TomlPath, Any], Any]  # what an entry must be, from where it stands and what stands there

LARGEST_FILE = 16 << 20  # bytes
_MOST_ENTRIES = 10_000_000  # of a matrix: more is a mistake
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
    def blaming(self, at: TomlPath) -> Iterator[None]:
        """What the library refuses is told with the line that it comes from."""
        try:
            yield
        except CounterflowError as error:
            if str(error).startswith(f"{self.path}:"):
                raise
            raise ModelError(f"{self.place(at)}{str(error).removeprefix('fit: ')}") from error

    def made(self, at: TomlPath, make: Callable[..., T], given: Mapping[str, Any], base: Mapping[str, Any]) -> T:
        """What is made of a table; each entry is tried by itself first, to tell a mistake's line."""
        known = dict(base)
        for key, value in given.items():
            with self.blaming((*at, key)):
                make(**known | {key: value})
            known |= {key: value} if key in known else {}
        with self.blaming(at):
            return make(**given)

    # ---- tables

    def has(self, *at: Key) -> bool:
        """Whether something stands there."""
        return _has(self.contents, at)

    def table(self, at: TomlPath, keys: Sequence[str] | None = None) -> dict[str, Any]:
        """A table, which may be left out; with ``keys`` it has no others."""
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
        return value

    def read(self, at: TomlPath, readers: Mapping[str, Reader], need: Sequence[str] = ()) -> dict[str, Any]:
        """What stands in a table, each entry as its reader has it; those of ``need`` must be there."""
        given = self.table(at, tuple(readers))
        for key in need:
            if key not in given:
                self.refuse(at, f"{key!r} is missing")
        return {key: readers[key]((*at, key), value) for key, value in given.items()}

    def tables(self, at: TomlPath, given: Any, readers: Mapping[str, Reader], need: Sequence[str]) -> list[Any]:
        """The same of tables in a list, or of [[tables]]."""
        if not isinstance(given, list):
            self.refuse(at, f"must be an array of tables: write [[{shown(at)}]] with {', '.join(readers)}")
        return [self.read((*at, k), readers, need) for k in range(len(given))]

    def unit_names(self) -> list[str]:
        names = list(self.table(("units",)))
        if not names:
            self.refuse(("units",), "no unit is described; add [units.boiler] and so on")
        return names

    # ---- entries

    def text(self, at: TomlPath, value: Any) -> str:
        if not isinstance(value, str):
            self.refuse(at, f"must be text in quotes, got {what(value)}")
        return value

    def flag(self, at: TomlPath, value: Any) -> bool:
        if not isinstance(value, bool):
            self.refuse(at, f"must be true or false, got {what(value)}")
        return value

    def whole(self, at: TomlPath, value: Any, least: int = 0) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**63:
            self.refuse(at, f"must be a whole number of at least {least} and below 2^63, got {what(value)}")
        return value

    def number(self, at: TomlPath, value: Any, infinite: bool = False) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.refuse(at, f"must be a number, got {what(value)}")
        try:
            found = float(value)
        except OverflowError:
            self.refuse(at, "is too large a number")
        if math.isnan(found) or (math.isinf(found) and not infinite):
            self.refuse(at, f"must be a finite number, got {found:g}")
        return found

    def seconds(self, at: TomlPath, value: Any) -> float:
        if isinstance(value, (int, float)) and not 0 < value < math.inf:
            self.refuse(at, f"must be a finite number above 0, got {value:g}")
        return self.number(at, value)

    def limits(self, at: TomlPath, value: Any) -> tuple[float, float]:
        remedy = "give [low, high] with low below high; an end may be inf"
        if not isinstance(value, list) or len(value) != 2:
            self.refuse(at, f"must be two numbers, got {what(value)}; {remedy}")
        low, high = (self.number((*at, k), end, infinite=True) for k, end in enumerate(value))
        if not low < high:
            self.refuse(at, f"low {low:g} is not below high {high:g}; {remedy}")
        return low, high

    def matrix(self, at: TomlPath, value: Any) -> FloatArray:
        if not isinstance(value, list) or not value or not all(isinstance(row, list) for row in value):
            self.refuse(at, "must be a matrix: a list of rows, each a list of numbers")
        width = len(value[0])
        if len(value) * width > _MOST_ENTRIES:
            self.refuse(at, "is too large a matrix")
        for k, row in enumerate(value):
            if len(row) != width:
                self.refuse((*at, k), f"this row has {len(row)} numbers, the first has {width}")
        rows = [[self.number((*at, k, i), entry) for i, entry in enumerate(row)] for k, row in enumerate(value)]
        return np.array(rows, np.float64).reshape(len(rows), width)

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

    @contextmanager
    def blaming_letter(self, at: TomlPath) -> Iterator[None]:
        """For a model in place: what the library refuses points at the matrix that is named first."""
        try:
            yield
        except CounterflowError as error:
            words = str(error).replace(":", " ").split()
            letter = next((word for word in words if word in LETTERS), None)
            with self.blaming((*at, letter) if letter else at):
                raise


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
