"""Sheets of workbooks: which of them are tables, and their columns. The header is found as in a text."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, NamedTuple

import polars

from counterflow.data.archives import DAMAGED, chunks_of
from counterflow.data.headers import HEADER_SEARCH, SAMPLE_LINES, clean_names, header_line, measures_of, rows_between
from counterflow.data.times import time_column
from counterflow.errors import DataError

LARGEST_BOOK = 4 << 30  # bytes of all unpacked parts of a spreadsheet
MOST_CELLS = 1 << 27  # rows times columns of a sheet: empty cells between filled ones take memory, too
_CELL_BYTES = 64  # of memory that a cell takes while a sheet is read, at most
_CELL = re.compile(rb"""\sr\s*=\s*["']([A-Z]{1,3})(\d{1,9})["']""")  # the reference of a cell, such as r="AB12"
_SAVE_AS_CSV = "open it in a spreadsheet program and save the sheet as CSV in UTF-8"
BOOKS = (".xlsx", ".xlsm")
MOST_SHEETS = 200


class Sheet(NamedTuple):
    """A table in a workbook."""

    title: str
    names: tuple[str, ...]
    columns: polars.LazyFrame
    measures: Mapping[str, str]

    def time(self, wanted: str | None) -> str | None:
        """The column of times: the one that is wanted, or else the one that is found; None if there is none."""
        near = (name for name in self.names if wanted is not None and name.casefold() == wanted.strip().casefold())
        return next(near, None) or time_column(
            self.names, lambda name: self.columns.select(name).head(SAMPLE_LINES).collect().to_series()
        )


def sheets(
    path: Path, content: bytes | None, room: int, wanted: str | None, skip_rows: int, skipped: int | None,
    header_word: str | None, time: str | None,
) -> tuple[list[Sheet], list[str]]:  # fmt: skip
    """The tables of a workbook, in its own order, and the titles of the sheets that were left out unasked.

    The sheet that is wanted, by name or number from 1 on; None: all with a column of times, or else the first.
    ``room``: bytes of memory that it may take.
    """
    if find_spec("fastexcel") is None:
        raise DataError(
            f"{path.name}: spreadsheets are read with fastexcel: pip install 'counterflow[excel]', or {_SAVE_AS_CSV}",
            code="missing-extra",
        )
    book = path if content is None else io.BytesIO(content)
    _check_archive(path, book, room)
    titles = _titles(path, book)
    if wanted is not None:
        return [_read(path, book, _chosen(path, titles, wanted), skip_rows, skipped, header_word)], []
    if len(titles) == 1:
        return [_read(path, book, titles[0], skip_rows, skipped, header_word)], []
    found = []
    for title in titles[:MOST_SHEETS]:
        try:
            each = _read(path, book, title, skip_rows, skipped, header_word)
        except DataError:  # a cover, a chart, a legend
            continue
        if each.time(time) is not None:
            found.append(each)
    found = found or [_read(path, book, titles[0], skip_rows, skipped, header_word)]
    kept = {each.title for each in found}
    return found, [title for title in titles if title not in kept]


def _chosen(path: Path, titles: list[str], wanted: str) -> str:
    """The title of a sheet, by its name or its number from 1 on."""
    if wanted in titles:
        return wanted
    near = [title for title in titles if title.strip().casefold() == wanted.strip().casefold()]
    if len(near) == 1:
        return near[0]
    if wanted.strip().isdigit() and 1 <= int(wanted) <= len(titles):
        return titles[int(wanted) - 1]
    there = ", ".join(titles[:12]) + (", ..." if len(titles) > 12 else "")
    raise DataError(f"{path.name} has no sheet {wanted!r:.60}; its sheets are {there}")


def _titles(path: Path, book: Path | IO[bytes]) -> list[str]:
    import fastexcel

    try:
        opened = fastexcel.read_excel(book if isinstance(book, Path) else book.getvalue())  # type: ignore[attr-defined]
        titles = list(opened.sheet_names)
    except Exception as error:  # of the reader's own family
        raise DataError(f"{path.name} is damaged or no .xlsx file: {_SAVE_AS_CSV}") from error
    if not titles:
        raise DataError(f"{path.name} has no sheet: {_SAVE_AS_CSV}")
    return titles


def _read(
    path: Path, book: Path | IO[bytes], title: str, skip_rows: int, skipped: int | None, header_word: str | None
) -> Sheet:
    """One sheet as a table."""
    top = _cells(path, book, title, dtypes="string", skip_rows=0, n_rows=skip_rows + HEADER_SEARCH + SAMPLE_LINES)
    rows = [[cell or "" for cell in row] for row in top.rows()]
    lines = ["\t".join(row).rstrip("\t") if header_word is None else " ".join(row) for row in rows]
    first = header_line(lines, skip_rows, header_word)
    if first >= len(lines):
        raise DataError(f"{path.name} has {len(lines)} rows: there is no header after {first} skipped ones")
    cells = list(rows[first])
    while cells and not cells[-1]:  # beside the table something else stands, or nothing
        cells.pop()
    names = clean_names(cells, path.name)
    below = [row[: len(cells)] for row in rows[first + 1 :]]
    between = rows_between(below) if skipped is None else skipped
    start = first + 1 + between
    frame = _cells(path, book, title, skip_rows=start)
    if len(frame) and polars.String in frame.dtypes:  # a column with text has its numbers rounded: take them as numbers
        exact = _cells(path, book, title, dtypes="float", skip_rows=start)
        frame = frame.with_columns(
            polars.when(column.cast(polars.Float64, strict=False).is_not_null())
            .then(exact.get_column(column.name).cast(polars.String))
            .otherwise(column)
            .alias(column.name)
            for column in frame.iter_columns()
            if column.dtype == polars.String
        )
    frame = frame.with_columns(polars.selectors.temporal().cast(polars.String))
    columns = {name: frame.to_series(k) for k, name in enumerate(names)} if len(frame) else {}
    schema = None if columns else dict.fromkeys(names, polars.String)
    return Sheet(title, names, polars.LazyFrame(columns, schema), measures_of(names, below[:between]))


def _cells(path: Path, book: Path | IO[bytes], title: str, **options: Any) -> polars.DataFrame:
    if not isinstance(book, Path):
        book.seek(0)
    try:
        return polars.read_excel(
            book, sheet_name=title, engine="calamine", has_header=False, infer_schema_length=None,
            raise_if_empty=False, drop_empty_rows=False, drop_empty_cols=False, read_options=options,
        )  # fmt: skip
    except Exception as error:  # of the reader's own family
        raise DataError(f"{path.name} is damaged or no .xlsx file: {_SAVE_AS_CSV}") from error


def _check_archive(path: Path, book: Path | IO[bytes], room: int) -> None:
    """Refuse a workbook that would not fit into memory: by what its parts unpack to, not by what they say they do."""
    left, cells, rows, columns = min(LARGEST_BOOK, room), min(MOST_CELLS, room // _CELL_BYTES), 1, b"A"
    most = left
    try:
        with zipfile.ZipFile(book) as archive:
            for member in archive.infolist():
                before = b""
                for chunk in chunks_of(archive, member, left, path.name, most, _SAVE_AS_CSV):
                    left -= len(chunk)
                    found = _CELL.findall(before + chunk)
                    rows = max(rows, *map(int, {number for _, number in found}), 1)
                    columns = max({columns, *(letters for letters, _ in found)}, key=lambda text: (len(text), text))
                    before = chunk[-32:]
    except DAMAGED as error:
        raise DataError(f"{path.name} is damaged or no .xlsx file: {_SAVE_AS_CSV}") from error
    width = 0
    for letter in columns:
        width = 26 * width + letter - ord("A") + 1
    if rows * width > cells:
        raise DataError(
            f"{path.name} reaches to row {rows} and column {columns.decode()}, which are more than the {cells} cells "
            f"that there is room for: {_SAVE_AS_CSV}",
            code="too-large",
        )
