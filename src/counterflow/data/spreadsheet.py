"""The first sheet of an .xlsx file, cell by cell, with nothing but the standard library.

An .xlsx file is a zip of XML. Only values are read: formulas by their stored result, dates as the serial numbers that
they are, text from the shared strings.
"""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

from counterflow.data.files import SourceFile, clean_names
from counterflow.errors import DataError

_REFERENCE = re.compile(r"([A-Z]+)")
_LARGEST = 16 << 30  # bytes of an unpacked sheet
_SHARED = "xl/sharedStrings.xml"
_REMEDY = "open it in a spreadsheet program and save it as CSV in UTF-8"


def open_spreadsheet(path: Path, skip_rows: int, skip_after_header: int, header_word: str | None) -> SourceFile:
    """Read the first sheet; the header is found as in a text."""
    import polars

    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            sheets = sorted(
                (name for name in names if re.fullmatch(r"xl/worksheets/sheet\d+\.xml", name)),
                key=lambda name: int(re.sub(r"\D", "", name)),
            )
            if not sheets:
                raise DataError(f"{path.name} holds no sheet: {_REMEDY}")
            if archive.getinfo(sheets[0]).file_size > _LARGEST:
                raise DataError(f"{path.name} is too large a spreadsheet: {_REMEDY}")
            shared: list[str] = []
            if _SHARED in names:
                with archive.open(_SHARED) as file:
                    shared = _shared(file)
            with archive.open(sheets[0]) as file:
                rows = _rows(file, shared)
    except (zipfile.BadZipFile, ElementTree.ParseError, KeyError, IndexError, NotImplementedError) as error:
        raise DataError(f"{path.name} is damaged or no .xlsx file: {_REMEDY}") from error
    start = skip_rows
    if header_word is not None:
        word = header_word.casefold()
        near = (k for k, row in enumerate(rows[: start + 10]) if k >= start and any(word in c.casefold() for c in row))
        start = next(near, start)
    if start >= len(rows):
        raise DataError(f"{path.name} has {len(rows)} rows: there is no header after {start} skipped ones")
    header = clean_names(rows[start], path.name)
    body = rows[start + 1 + skip_after_header :]
    columns = {
        name: [row[k] if k < len(row) and row[k] != "" else None for row in body] for k, name in enumerate(header)
    }
    frame = polars.DataFrame(columns, schema=dict.fromkeys(header, polars.String))
    return SourceFile(path, header, header, None, frame)


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]


def _shared(file: IO[bytes]) -> list[str]:
    found = []
    for _, element in ElementTree.iterparse(file):
        if _local(element.tag) == "si":
            found.append("".join(part.text or "" for part in element.iter() if _local(part.tag) == "t"))
            element.clear()
    return found


def _rows(file: IO[bytes], shared: list[str]) -> list[list[str]]:
    rows: list[list[str]] = []
    for _, element in ElementTree.iterparse(file):
        if _local(element.tag) != "row":
            continue
        row: list[str] = []
        for cell in element:
            reference = _REFERENCE.match(cell.get("r", ""))
            column = _column(reference[1]) if reference else len(row)
            if column > 20_000:
                raise IndexError
            row.extend([""] * (column - len(row)))
            row.append(_value(cell, shared))
        # rows without cells are not stored: keep the count right
        number = int(element.get("r", len(rows) + 1))
        rows.extend([] for _ in range(min(number - len(rows) - 1, 1000)))
        rows.append(row)
        element.clear()
    return rows


def _value(cell: ElementTree.Element, shared: list[str]) -> str:
    kind = cell.get("t", "n")
    if kind == "inlineStr":
        return "".join(part.text or "" for part in cell.iter() if _local(part.tag) == "t")
    text = next((part.text or "" for part in cell if _local(part.tag) == "v"), "")
    return shared[int(text)] if kind == "s" and text else text


def _column(letters: str) -> int:
    """Column "A" is 0, "Z" is 25, "AA" is 26."""
    number = 0
    for letter in letters[:4]:
        number = 26 * number + ord(letter) - ord("A") + 1
    return number - 1
