"""A TOML file in use: what it holds, with errors that point at its lines."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.cli.toml_lines import Lines, TomlPath, read_toml, shown
from counterflow.errors import CounterflowError, ModelError

LETTERS = ("A", "B", "C", "Q", "R")
_MOST_ENTRIES = 10_000_000  # of a matrix: more is a mistake


def what(value: Any) -> str:
    """A value, as a message names it."""
    if isinstance(value, (dict, list)):
        return "a table" if isinstance(value, dict) else f"a list of {len(value)}"
    if isinstance(value, str):
        return f"text {value[:40]!r}"
    try:
        return f"{value!r:.40}"
    except ValueError:  # a whole number of thousands of digits
        return "a huge number"


class Page:
    """A TOML file in use: what it holds, and errors that point at its lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        contents, lines = read_toml(path)
        self.contents: dict[str, Any] = contents
        self.lines: Lines = lines

    def refuse(self, at: TomlPath, text: str) -> NoReturn:
        place = f"{shown(at)}: " if at else ""
        raise ModelError(f"{self.path}:{self.lines.of(at)}: {place}{text.rstrip('.')}.")

    @contextmanager
    def blaming(self, at: TomlPath) -> Iterator[None]:
        """What the library refuses is told with the line that it comes from."""
        try:
            yield
        except CounterflowError as error:
            if str(error).startswith(f"{self.path}:"):
                raise
            text = str(error).removeprefix("fit: ")
            raise ModelError(f"{self.path}:{self.lines.of(at)}: {shown(at)}: {text}") from error

    @contextmanager
    def blaming_letter(self, at: TomlPath) -> Iterator[None]:
        """The same for a model in place: points at the matrix that is named first."""
        try:
            yield
        except CounterflowError as error:
            words = str(error).replace(":", " ").split()
            letter = next((word for word in words if word in LETTERS), None)
            with self.blaming((*at, letter) if letter else at):
                raise

    def hint(self, name: str, known: Sequence[str]) -> str:
        near = difflib.get_close_matches(name, known, 1)
        return f"; did you mean {near[0]!r}?" if near else ""

    def known(self, at: TomlPath, table: Mapping[str, Any], keys: Sequence[str]) -> None:
        for key in table:
            if key not in keys:
                near = self.hint(key, keys) or f"; there are {', '.join(keys)}"
                self.refuse((*at, key), f"this key is not known{near}")

    def table(self, at: TomlPath, keys: Sequence[str] | None, optional: bool = False) -> dict[str, Any]:
        value: Any = self.contents
        for key in at:
            if optional and isinstance(value, dict) and key not in value:
                return {}
            value = value[key]
        if not isinstance(value, dict):
            self.refuse(at, f"must be a table, got {what(value)}")
        if keys is not None:
            self.known(at, value, keys)
        return value

    def names(self, at: TomlPath) -> list[str]:
        """Names of the units."""
        names = list(self.table(at, None, optional=True))
        if not names:
            self.refuse(at, "no unit is described; add [units.boiler] and so on")
        return names

    def text(self, at: TomlPath, value: Any) -> str:
        if value is None:
            self.refuse(at, "is missing")
        if not isinstance(value, str):
            self.refuse(at, f"must be text in quotes, got {what(value)}")
        return value

    def whole(self, at: TomlPath, value: Any, least: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            self.refuse(at, f"must be a whole number of at least {least}, got {what(value)}")
        if not least <= value < 2**63:
            self.refuse(at, f"must be a whole number of at least {least} and below 2^63, got {what(value)}")
        return value

    def number(self, at: TomlPath, value: Any, above: float | None = None, infinite: bool = False) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            self.refuse(at, f"must be a number, got {what(value)}")
        try:
            found = float(value)
        except OverflowError:
            self.refuse(at, "is too large a number")
        if math.isnan(found) or (math.isinf(found) and not infinite) or (above is not None and found <= above):
            self.refuse(at, f"must be a finite number{'' if above is None else f' above {above:g}'}, got {found:g}")
        return found

    def matrix(self, at: TomlPath, value: Any) -> FloatArray:
        if not isinstance(value, list) or not value or not all(isinstance(row, list) for row in value):
            self.refuse(at, "must be a matrix: a list of rows, each a list of numbers")
        if len(value) * len(value[0]) > _MOST_ENTRIES:
            self.refuse(at, "is too large a matrix")
        for k, row in enumerate(value):
            if len(row) != len(value[0]):
                self.refuse((*at, k), f"this row has {len(row)} numbers, the first has {len(value[0])}")
        rows = [[self.number((*at, k, i), entry) for i, entry in enumerate(row)] for k, row in enumerate(value)]
        return np.array(rows, np.float64).reshape(len(rows), len(value[0]))

    def file(self, at: TomlPath, value: Any, folders: bool = False) -> Path:
        """A file that is there; or a folder, where that will do."""
        text = self.text(at, value)
        if not text or "\0" in text:
            self.refuse(at, "must be the name of a file")
        found = self.path.parent / text
        try:
            there = found.is_file() or (folders and found.is_dir())
        except OSError:
            there = False
        if not there:
            self.refuse(at, f"there is no file {text!r}; paths are relative to {self.path.name}")
        return found
