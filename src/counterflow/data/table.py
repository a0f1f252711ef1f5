"""A table of logs: one source or several, after each other or side by side; columns are read when asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import polars

from counterflow.data import columns, long_tables
from counterflow.data.columns import Numbers
from counterflow.data.formats import open_files
from counterflow.data.notes import Step
from counterflow.data.options import TableOptions, divided, takes
from counterflow.data.source import SAMPLE_ROWS, Source, frame_source
from counterflow.data.times import NONE, Times, find_time, parse
from counterflow.errors import DataError
from counterflow.frames import as_polars, is_frame

_BATCH_BYTES = {True: 1 << 30, False: 1 << 28}  # of values read at once: each batch of a text is a pass over the file


@dataclass(frozen=True)
class Table:
    """One table, of which nothing but the header has been read yet. See `open_table`."""

    files: tuple[Source, ...]
    names: tuple[str, ...]
    time_name: str | None
    options: TableOptions = field(default_factory=TableOptions)
    date_name: str | None = None  # where date and time of day are two columns

    @property
    def measures(self) -> dict[str, str]:
        """Units of measure by column, as far as the files tell them."""
        return {name: measure for file in reversed(self.files) for name, measure in file.measures.items()}

    @property
    def notes(self) -> tuple[Step, ...]:
        """What was done before there were columns."""
        return tuple(note for file in self.files for note in file.notes)

    @property
    def step(self) -> int | None:
        """Usual step of the columns in nanoseconds, where that of the rows does not tell it."""
        return self.files[0].step

    @property
    def channels(self) -> tuple[str, ...]:
        """All columns but the time."""
        return tuple(name for name in self.names if name not in (self.time_name, self.date_name))

    @property
    def title(self) -> str:
        """The files' names, for messages."""
        return self.files[0].name + (f" and {len(self.files) - 1} more" if len(self.files) > 1 else "")

    @cached_property
    def _shapes(self) -> tuple[tuple[int, int], ...]:
        return tuple(file.shape() for file in self.files)

    @property
    def file_rows(self) -> tuple[int, ...]:
        return tuple(rows for rows, _ in self._shapes)

    @property
    def short_rows(self) -> int:
        """Rows with fewer cells than the header; what they lack is missing."""
        return sum(short for _, short in self._shapes)

    @property
    def rows(self) -> int:
        """Rows of all files."""
        return sum(self.file_rows)

    @cached_property
    def times(self) -> Times | None:
        """The time column of all files, in the order of the files; None if there is none."""
        if self.time_name is None:
            return None
        parts = []
        for file in self.files:
            part = file.column(self.time_name)
            if self.date_name is not None:
                both = (series.cast(polars.String).str.strip_chars() for series in (file.column(self.date_name), part))
                part = polars.select(polars.concat_str(*both, separator=" ")).to_series()
            parts.append(part)
        whole = columns.joined(parts)
        if len(whole) == 0:
            raise DataError(f"{self.title} has a header but no rows: give a table with data")
        return parse(whole, self.time_name, self.options, self.place)

    def place(self, row: int) -> str:
        """Where a row stands, for messages."""
        if len(self.files) == 1:
            return self.files[0].line(row)
        for file, count in zip(self.files, self.file_rows, strict=True):
            if row < count:
                return f" of the table, row {row} of {file.name}{file.line(row)}"
            row -= count
        return ""

    def batches(self, names: Sequence[str]) -> Iterator[tuple[str, Numbers]]:
        """Columns as numbers, one after the other, read as many at once as fit into a modest memory."""
        size = _BATCH_BYTES[any(file.is_text for file in self.files)]
        count = max(1, size // (16 * max(1, self.rows)))
        for start in range(0, len(names), count):
            some = names[start : start + count]
            for name, *parts in zip(some, *(file.cells(some) for file in self.files), strict=True):
                found = columns.numbers(columns.joined(parts))
                yield name, found.without_sentinels() if self.options.sentinels else found

    def numbers(self, names: Sequence[str]) -> dict[str, Numbers]:
        """These columns as numbers."""
        return dict(self.batches(names))

    def refuse_text(self, name: str, found: Numbers) -> None:
        """Refuse a channel with text that is neither a number nor a known word, saying where the first one stands."""
        if found.odd_count:
            row, example = found.odd_row, next(iter(found.odd))
            raise DataError(
                f"{self.title}: column {name!r} holds {example[:40]!r} in row {row}{self.place(row)}, which is not a "
                "number; leave the cell empty where a measurement is missing, exclude the column, or read such text "
                "as missing with text = 'missing'"
            )


@takes(TableOptions)
def open_table(source: object, **options: Any) -> Table:
    """Open a table of logs; of most kinds only the beginnings of its files are read.

    A long table, with a row for each value of a tag, is found by its columns and made a wide one.

    Parameters
    ----------
    source : path, sequence of paths, or a DataFrame of polars or pandas
        CSV or other delimited text (also gzip), Parquet, Feather, or .xlsx; a folder or a .zip of them. Several files
        are one table: one after the other if they have the same columns, which may come in any order, else side by
        side, by their time.
    **options
        How it is to be read: see `TableOptions`.

    Examples
    --------
    >>> table = open_table(polars.DataFrame({"Time": ["2024-05-01 06:00"], "flow": [3.5]}))
    >>> table.time_name, table.channels, table.rows
    ('Time', ('flow',), 1)
    """
    (reading,) = divided(options, TableOptions)
    return opened(source, reading)


def opened(source: object, options: TableOptions) -> Table:
    """A source as one table; see `open_table`."""
    if is_frame(source):
        files: list[Source] = [frame_source("the table", as_polars(source).lazy())]
    else:
        given = [source] if isinstance(source, (str, os.PathLike)) else source
        if not isinstance(given, Sequence) or not given or not all(isinstance(p, (str, os.PathLike)) for p in given):
            raise DataError(f"source is {source!r:.80}: give a path, several paths, or a DataFrame of polars or pandas")
        files = open_files([Path(path) for path in given], options)
    return _one_table(files, replace(options, time=options.time or _dated_column(files)))


def _dated_column(files: Sequence[Source]) -> str | None:
    """The column of times where none is called so: the only one that holds dates, in all files."""
    named = any(find_time(file.names, None, file.name) for file in files)
    found = None if named else files[0].time()
    return found if all(found in file.names for file in files) else None


def _one_table(files: Sequence[Source], options: TableOptions) -> Table:
    """Long tables made wide, files that share nothing side by side, all others after each other.

    Files that share some of their channels are one table, in which a column that stands in some of them only is a
    mistake of spelling more often than not.
    """
    named = [long_tables.long_names(file, options) for file in files]
    apart = all(named)
    if len(files) > 1 and not apart:
        times = [find_time(file.names, options.time, file.name) for file in files]
        channels = [set(file.names) - {time} for file, time in zip(files, times, strict=True)]
        alone = all(len(own) == 1 and long_tables.is_value(next(iter(own))) for own in channels)
        apart = alone or sum(map(len, channels)) == len(set().union(*channels))
        if not apart and all(file.sheet for file in files) and _overlapping(files, options):
            apart, titled = True, zip(files, times, strict=True)  # columns of one name are of different units
            files = [f.renamed({name: f"{f.sheet}.{name}" for name in f.names if name != t}) for f, t in titled]
    if not apart:
        return join(files, options)
    return join([long_tables.gathered(files, named, options)], replace(options, time=long_tables.TIME))


def _overlapping(files: Sequence[Source], options: TableOptions) -> bool:
    """Whether files are about the same time."""
    spans = []
    for file in files:
        found = join([file], options).times
        if found is None or not len(known := found.nanoseconds[found.nanoseconds != NONE]):
            return False
        spans.append((int(known.min()), int(known.max())))
    return max(first for first, _ in spans) < min(last for _, last in spans)


def join(files: Sequence[Source], options: TableOptions, optional: Sequence[str] = ()) -> Table:
    """Files as one table, one after the other; columns that are `optional` may stand in some of them only."""
    first = files[0]
    common = set(first.names).intersection(*(file.names for file in files))
    names = tuple(name for name in first.names if name in common)
    for file in files[1:]:
        if odd := sorted((set(first.names) ^ set(file.names)) - set(optional)):
            holder = first if odd[0] in first.names else file
            raise DataError(
                f"{first.name} and {file.name} have different columns: {odd[0]!r} stands only in {holder.name}"
                + (f", and {len(odd) - 1} more" if len(odd) > 1 else "")
                + ": give them the same columns"
            )
    found = find_time(names, options.time, first.name)
    return Table(tuple(files), names, found, options, _date_beside(first, found))


def _date_beside(file: Source, time_name: str | None) -> str | None:
    """The column with the date, where the time column has nothing but the time of day."""
    date = next((name for name in file.names if name.casefold() == "date" and name != time_name), None)
    if time_name is None or date is None:
        return None
    some = file.column(time_name, SAMPLE_ROWS)
    if some.dtype == polars.Time:
        return date
    if some.dtype != polars.String:
        return None
    clock = some.str.strip_chars().str.contains(r"^\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?(\s*[AaPp]\.?[Mm]\.?)?$")
    return date if len(some) and bool(clock.fill_null(True).all()) else None
