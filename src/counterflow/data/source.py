"""A source: one table as it lies somewhere, of which only the names of its columns are known until some are read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import polars

from counterflow.data import columns
from counterflow.data.headers import clean_names, measures_of
from counterflow.data.notes import Step
from counterflow.data.places import blaming
from counterflow.data.times import find_time, is_dated

SAMPLE_ROWS = 200  # by which a column is judged


@dataclass(frozen=True, kw_only=True)
class Source:
    """One table: its columns by name, and how to read some of them. A format may say otherwise how it is scanned."""

    name: str  # of the file, as messages use it
    names: tuple[str, ...]  # of the columns, without blanks around, all different, in the order of the file
    kind: str = "table in memory"
    measures: Mapping[str, str] = field(default_factory=dict)  # units of measure, as far as the file tells them
    sheet: str = ""  # of a workbook of which several sheets are read
    step: int | None = None  # usual one of the columns in nanoseconds, where that of the rows does not tell it
    notes: tuple[Step, ...] = ()  # what was done on the way to these columns
    frame: polars.LazyFrame = field(default_factory=polars.LazyFrame)  # the columns, in the order of the names
    is_text = False

    def scan(self) -> polars.LazyFrame:
        """All columns, under their names."""
        stored = self.frame.collect_schema().names()
        new = {old: name for old, name in zip(stored, self.names, strict=True) if old != name}
        return self.frame.rename(new) if new else self.frame

    def line(self, row: int) -> str:
        """Where a row stands, for messages."""
        return ""

    def shape(self) -> tuple[int, int]:
        """Rows, and how many of them have fewer cells than the header."""
        with self.reading():
            return int(self.scan().select(polars.len()).collect().item()), 0

    def cells(self, names: Sequence[str]) -> Iterator[polars.Series]:
        """Columns as numbers, or as text that casts to numbers where it holds some."""
        with self.reading():
            for series in self.scan().select(names).collect().iter_columns():
                yield self.as_cells(series)

    def as_cells(self, column: polars.Series) -> polars.Series:
        """One column that was read."""
        return columns.cells(column, self.name)

    def column(self, name: str, rows: int | None = None) -> polars.Series:
        """One column as it stands, of the first rows or of all."""
        with self.reading():
            lazy = self.scan().select(name)
            return (lazy if rows is None else lazy.head(rows)).collect().to_series()

    def time(self, wanted: str | None = None) -> str | None:
        """The column of times: the one that is wanted, one of a usual name, or the only one that holds dates."""
        found = find_time(self.names, wanted, self.name)
        dated = [name for name in self.names if found is None and is_dated(self.column(name, SAMPLE_ROWS))]
        return dated[0] if len(dated) == 1 else found

    def renamed(self, new: Mapping[str, str]) -> Source:
        """The same with other names for some columns."""
        names = clean_names([new.get(name, name) for name in self.names], self.name)
        by_name = dict(zip(self.names, names, strict=True))
        return replace(self, names=names, measures={by_name[name]: told for name, told in self.measures.items()})

    def reading(self) -> AbstractContextManager[None]:
        """Whatever goes wrong while reading becomes one sentence about this file."""
        return blaming(self.name)


def frame_source(name: str, frame: polars.LazyFrame, kind: str = "table in memory") -> Source:
    """A source of columns that polars has, or reads when they are asked for."""
    names = clean_names(frame.collect_schema().names(), name)
    return Source(name=name, names=names, frame=frame, kind=kind, measures=measures_of(names, ()))
