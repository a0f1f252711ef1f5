"""Where things stand in a TOML text: the line of every table, key and array entry.

``tomllib`` says what a text means but not where. This scanner walks over a text that ``tomllib`` has accepted, so it
need not judge it, and notes the line of each path: ``("units", "boiler", "inputs", 0, "limits")``.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from counterflow.errors import StorageError

Key = str | int
TomlPath = tuple[Key, ...]

LARGEST_FILE = 16 << 20  # bytes
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_PLACE = re.compile(r"\s*\(at line (\d+), column (\d+)\)$")
_MARKS = "[]{}=,"
_TOKEN = re.compile(  # blanks and comments, texts, marks, words
    r"""\s+|\#[^\n]*|\"{3}(?:\\.|[^\\])*?\"{3,5}|'{3}.*?'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|[\[\]{}=,]"""
    r"""|[^\s\[\]{}=,"'#]+""",
    re.DOTALL,
)


def read_toml(path: Path) -> tuple[dict[str, Any], Lines]:
    """A TOML file's contents and where they stand; whatever is wrong is told with file and line."""
    remedy = "give a TOML file in UTF-8"
    try:
        if path.is_dir():
            raise StorageError(f"{path}: this is a directory; {remedy}.")
        if not path.is_file():
            raise StorageError(f"{path}: there is no such file; check the path.")
        if (size := path.stat().st_size) > LARGEST_FILE:
            raise StorageError(f"{path}: it has {size} bytes, more than {LARGEST_FILE}; {remedy}.")
        data = path.read_bytes()
    except OSError as error:
        raise StorageError(f"{path}: cannot be read: {error.strerror or error}.") from error
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise StorageError(f"{path}:{line}: byte 0x{data[error.start]:02x} is not UTF-8; {remedy}.") from error
    try:
        contents = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        what = str(error)
        place = _PLACE.search(what)
        last = len(text.splitlines()) or 1
        line, what = (int(place[1]), what[: place.start()]) if place else (last, what)
        raise StorageError(f"{path}:{line}: not TOML: {what}.") from error
    except RecursionError as error:
        raise StorageError(f"{path}: it is nested too deeply; {remedy}.") from error
    except ValueError as error:  # such as a whole number of thousands of digits
        raise StorageError(f"{path}: not TOML: {error}.") from error
    return contents, Lines(text)


def shown(path: Sequence[Key]) -> str:
    """A path as people write it: ``units.boiler.inputs[0].limits``."""
    out = ""
    for key in path:
        if isinstance(key, int):
            out += f"[{key}]"
        else:
            out += ("." if out else "") + (key if _BARE.fullmatch(key) else f'"{key}"')
    return out


def _tokens(text: str) -> Iterator[tuple[str, int]]:
    """Texts, marks and words, each with its line."""
    line = 1
    for found in _TOKEN.finditer(text):
        if not found[0].isspace() and found[0][0] != "#":
            yield found[0], line
        line += found[0].count("\n")


class Lines:
    """The line of every path of a TOML text.

    Examples
    --------
    >>> lines = Lines('[units.boiler]\\nstates = 2\\n\\n[[units.boiler.inputs]]\\nname = "valve"\\nlimits = [5, 3]\\n')
    >>> lines.of(("units", "boiler", "inputs", 0, "limits"))
    6
    >>> lines.of(("units", "boiler", "outputs"))    # not there: the line of what would hold it
    1
    """

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._token, self._line = "", 1  # the one that is looked at; "" at both ends
        self._found: dict[TomlPath, int] = {}
        self._counts: dict[TomlPath, int] = {}  # entries so far of each array of tables
        self._scanned = False  # not before a line is asked for

    def of(self, path: Sequence[Key]) -> int:
        """The line of a path, or of the nearest thing around it that stands in the text."""
        if not self._scanned:
            self._scanned = True
            with suppress(RecursionError, ValueError):  # without a line, that of what is around is told
                self._document()
        lengths = range(len(path), 0, -1)
        return next((self._found[tuple(path[:n])] for n in lengths if tuple(path[:n]) in self._found), 1)

    # ---- the scanner

    def _next(self) -> str:
        self._token, self._line = next(self._tokens, ("", self._line))
        return self._token

    def _document(self) -> None:
        table: TomlPath = ()
        self._next()
        while self._token:
            if self._token == "[":
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> TomlPath:
        """The path of a table; through an array of tables it leads to the newest entry."""
        listed = self._next() == "["
        if listed:
            self._next()
        path: TomlPath = ()
        keys = self._keys()
        for k, key in enumerate(keys):
            path = self._note((*path, key))
            if listed and k == len(keys) - 1:
                self._counts[path] = self._counts.get(path, 0) + 1
            if path in self._counts:
                path = self._note((*path, self._counts[path] - 1))
        while self._token == "]":
            self._next()
        return path

    def _note(self, path: TomlPath) -> TomlPath:
        self._found.setdefault(path, self._line)
        return path

    def _pair(self, path: TomlPath) -> None:
        for key in self._keys():
            path = self._note((*path, key))
        self._next()  # over the sign "="
        self._value(path)

    def _keys(self) -> list[str]:
        keys: list[str] = []
        while self._token not in ("=", "]", ""):
            text = self._token[0] in "\"'"
            keys += tomllib.loads(f"keys = [{self._token}]")["keys"] if text else filter(None, self._token.split("."))
            self._next()
        return keys

    def _value(self, path: TomlPath) -> None:
        closing = {"[": "]", "{": "}"}.get(self._token)
        line, index = self._line, 0
        self._next()
        if closing is None:  # a date may be two words
            while self._token not in _MARKS and self._line == line:
                self._next()
            return
        while self._token not in (closing, ""):
            if closing == "]":
                self._value(self._note((*path, index)))
                index += 1
            else:
                self._pair(path)
            if self._token == ",":
                self._next()
        self._next()
