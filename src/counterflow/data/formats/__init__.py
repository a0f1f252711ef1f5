"""Formats of table files: which endings each has, and how the tables that such a file holds are read.

A new format is a reader, and a line in `FORMATS`. A reader yields sources, and reads of the file as little as tells
their columns; what it refuses is a DataError, and whatever else it raises becomes one sentence about the file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import polars

from counterflow.data.formats import text, workbook
from counterflow.data.options import TableOptions
from counterflow.data.places import Place, blaming, may_be_table, places
from counterflow.data.source import Source, frame_source
from counterflow.errors import DataError


def _parquet(place: Place, options: TableOptions) -> Iterator[Source]:
    yield frame_source(place.name, polars.scan_parquet(place.source, glob=False), "Parquet")


def _feather(place: Place, options: TableOptions) -> Iterator[Source]:
    unpacked = place.content is not None  # bytes have no pattern in their name
    lazy = polars.scan_ipc(place.source) if unpacked else polars.scan_ipc(place.path, glob=False)
    yield frame_source(place.name, lazy, "Feather")


FORMATS: dict[tuple[str, ...], Callable[[Place, TableOptions], Iterable[Source]]] = {
    (".csv", ".txt", ".tsv", ".dat", ".gz"): text.read,
    (".parquet", ".pq"): _parquet,
    (".feather", ".arrow", ".ipc"): _feather,
    (".xlsx", ".xlsm"): workbook.read,
}
ENDINGS = tuple(ending for endings in FORMATS for ending in endings)


def is_table(name: str) -> bool:
    """Whether a file may be a table, by its name."""
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


def _tables(place: Place, options: TableOptions) -> Iterable[Source]:
    read = next((each for endings, each in FORMATS.items() if place.name.lower().endswith(endings)), None)
    if read is None:
        raise DataError(
            f"{place.name}: a log is a .csv, .csv.gz, .tsv, .txt, .parquet, .feather or .xlsx file, or a .zip or a "
            "folder of them"
        )
    if options.sheet is not None and read is not workbook.read:
        raise DataError(f"{place.name} has no sheets, and sheet is {options.sheet!r:.60}: leave it out")
    return read(place, options)
