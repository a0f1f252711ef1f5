"""Where things stand in a TOML text: the line of every table, key and array entry.

``tomllib`` says what a text means but not where. This scanner walks over a text that ``tomllib`` has accepted, so it
need not judge it, and notes the line of each path: ``("units", "boiler", "inputs", 0, "limits")``.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from counterflow.errors import StorageError

Key = str | int
TomlPath = tuple[Key, ...]

LARGEST_FILE = 16 << 20  # bytes
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_PLACE = re.compile(r"\s*\(at line (\d+), column (\d+)\)$")
_SCALAR = re.compile(r"[^,\]\}#\r\n]*")


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
        self._text = text
        self._at = 0
        self._found: dict[TomlPath, int] = {}
        self._counts: dict[TomlPath, int] = {}  # entries so far of each array of tables
        self._counted = (0, 1)  # a place in the text, and its line
        self._scanned = False  # not before a line is asked for

    def of(self, path: Sequence[Key]) -> int:
        """The line of a path, or of the nearest thing around it that stands in the text."""
        if not self._scanned:
            self._scanned = True
            with suppress(RecursionError, IndexError, ValueError):  # without a line, that of what is around is told
                self._document()
        whole = tuple(path)
        for length in range(len(whole), 0, -1):
            if whole[:length] in self._found:
                return self._found[whole[:length]]
        return 1

    # ---- the scanner

    def _document(self) -> None:
        table: TomlPath = ()
        while True:
            self._skip()
            if self._at >= len(self._text):
                return
            if self._text.startswith("[[", self._at):
                self._at += 2
                keys = self._keys()
                self._at = self._text.index("]]", self._at) + 2
                whole = (*self._inside((), keys[:-1]), keys[-1])
                self._note(whole)
                self._counts[whole] = self._counts.get(whole, 0) + 1
                table = (*whole, self._counts[whole] - 1)
                self._note(table)
            elif self._text[self._at] == "[":
                self._at += 1
                table = self._inside((), self._keys())
                self._at = self._text.index("]", self._at) + 1
                self._note(table)
            else:
                self._pair(table)

    def _inside(self, base: TomlPath, keys: Sequence[str]) -> TomlPath:
        """A path below ``base``; through an array of tables it leads to the newest entry."""
        path = base
        for key in keys:
            path = (*path, key)
            self._note(path)
            if path in self._counts:
                path = (*path, self._counts[path] - 1)
        return path

    def _note(self, path: TomlPath) -> None:
        start, line = self._counted
        line += self._text.count("\n", start, self._at)
        self._counted = (self._at, line)
        self._found.setdefault(path, line)

    def _pair(self, table: TomlPath) -> None:
        keys = self._keys()
        path = table
        for key in keys:
            path = (*path, key)
            self._note(path)
        self._at = self._text.index("=", self._at) + 1
        self._value(path)

    def _keys(self) -> list[str]:
        keys = []
        while True:
            self._blanks()
            if self._text[self._at] in "\"'":
                start = self._at
                self._string()
                keys.append(str(tomllib.loads(f"key = {self._text[start : self._at]}")["key"]))
            else:
                found = _BARE.match(self._text, self._at)
                if found is None:
                    raise ValueError
                self._at = found.end()
                keys.append(found[0])
            self._blanks()
            if self._text[self._at] != ".":
                return keys
            self._at += 1

    def _value(self, path: TomlPath) -> None:
        self._blanks()
        sign = self._text[self._at]
        if sign in "\"'":
            self._string()
        elif sign == "[":
            self._at += 1
            for index in range(len(self._text)):
                self._skip()
                if self._text[self._at] == "]":
                    break
                self._note((*path, index))
                self._value((*path, index))
                self._skip()
                if self._text[self._at] == ",":
                    self._at += 1
            self._at += 1
        elif sign == "{":
            self._at += 1
            while True:
                self._skip()
                if self._text[self._at] == "}":
                    break
                self._pair(path)
                self._skip()
                if self._text[self._at] == ",":
                    self._at += 1
            self._at += 1
        else:
            found = _SCALAR.match(self._text, self._at)
            assert found is not None
            self._at = found.end()

    def _string(self) -> None:
        quote = self._text[self._at]
        end = quote * 3 if self._text.startswith(quote * 3, self._at) else quote
        self._at += len(end)
        while not self._text.startswith(end, self._at):
            self._at += 2 if quote == '"' and self._text[self._at] == "\\" else 1
            if self._at >= len(self._text):
                raise ValueError
        self._at += len(end)
        while len(end) == 3 and self._text.startswith(quote, self._at):  # up to two quotes may stand before the end
            self._at += 1

    def _blanks(self) -> None:
        while self._at < len(self._text) and self._text[self._at] in " \t":
            self._at += 1

    def _skip(self) -> None:
        """Over blanks, line ends and comments."""
        while self._at < len(self._text):
            if self._text[self._at] in " \t\r\n":
                self._at += 1
            elif self._text[self._at] == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            else:
                return
