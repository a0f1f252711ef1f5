"""Formats of table files, one module each: which endings it has, and the tables that such a file holds.

A new format is a module with a `Format`, and a line in `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from counterflow.data.formats import columnar, text, workbook
from counterflow.data.formats.format import Format
from counterflow.data.options import TableOptions
from counterflow.data.places import Place, blaming, may_be_table, places
from counterflow.data.source import Source
from counterflow.errors import DataError

FORMATS: tuple[Format, ...] = (text.FORMAT, columnar.PARQUET, columnar.FEATHER, workbook.FORMAT)
ENDINGS = tuple(ending for each in FORMATS for ending in each.endings)


def is_table(name: str) -> bool:
    """Whether a file may be a table, by its name.

    >>> is_table("May.CSV"), is_table("~$may.xlsx"), is_table("readme.md")
    (True, False, False)
    """
    return may_be_table(name, ENDINGS)


def open_files(paths: Sequence[Path], options: TableOptions | None = None) -> list[Source]:
    """The tables that paths stand for (files, folders, zip archives, sheets of workbooks), in order."""
    found: list[Source] = []
    for path in paths:
        with blaming(path.name):
            for place in places(path, ENDINGS):
                with blaming(place.name):
                    found += _tables(place, options or TableOptions())
    return found


def _tables(place: Place, options: TableOptions) -> Iterator[Source]:
    known = next((each for each in FORMATS if place.name.lower().endswith(each.endings)), None)
    if known is None:
        raise DataError(
            f"{place.name}: a log is a .csv, .csv.gz, .tsv, .txt, .parquet, .feather or .xlsx file, or a .zip or a "
            "folder of them"
        )
    if options.sheet is not None and not known.has_sheets:
        raise DataError(f"{place.name} has no sheets, and sheet is {options.sheet!r:.60}: leave it out")
    yield from known.read(place, options)
