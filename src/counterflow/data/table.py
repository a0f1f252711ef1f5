"""A table of logs: one file or several, after each other or side by side, of which columns are read when asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import polars

from counterflow.arrays import FloatArray
from counterflow.data.files import SourceFile, open_files, source_of
from counterflow.data.long_tables import LongOptions, Widened, is_value, long_names, side_by_side, widen
from counterflow.data.sentinels import sentinels_of
from counterflow.data.times import NONE, TimeOptions, Times, find_time, parse, time_column
from counterflow.data.words import meaning
from counterflow.errors import DataError, OptionError
from counterflow.frames import as_polars, is_frame

_SAMPLE_ROWS = 200
_BATCH_BYTES = {True: 1 << 30, False: 1 << 28}  # of values read at once: each batch of a text is a pass over the file
_TEXT_COLUMNS = 8  # read at once where cells are text, which takes several times the room of numbers
_MOST_WORDS = 20


@dataclass(frozen=True)
class Numbers:
    """A column as numbers, and what of it was text.

    Parameters
    ----------
    values : (rows,) array
        NaN where there is no number.
    words : dict of str to int
        Words for on, off and missing that were understood, with their counts.
    odd : dict of str to int
        Text that is neither a number nor such a word: examples with their counts.
    odd_count : int
        All of those cells.
    odd_row : int
        Row of the first of them, or -1.
    sentinels : dict of float to int
        Numbers that stood for no number, with their counts: NaN in ``values``.
    """

    values: FloatArray
    words: dict[str, int] = field(default_factory=dict)
    odd: dict[str, int] = field(default_factory=dict)
    odd_count: int = 0
    odd_row: int = -1
    sentinels: dict[float, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """One table, of which nothing but the header has been read yet. See `open_table`."""

    files: tuple[SourceFile, ...]
    names: tuple[str, ...]
    time_name: str | None
    time_options: TimeOptions
    date_name: str | None = None  # where date and time of day are two columns
    step: int | None = None  # usual step of the columns in nanoseconds, where that of the rows does not tell it
    notes: tuple[tuple[str, int], ...] = ()  # what was left out before there were rows, in words, with how often
    sentinels: bool = True  # whether numbers such as -999 are read as missing

    @property
    def measures(self) -> dict[str, str]:
        """Units of measure by column, as far as the files tell them."""
        return {name: measure for file in reversed(self.files) for name, measure in file.measures.items()}

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
        """Rows of every file."""
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
        if len({part.dtype for part in parts}) > 1:
            parts = [part.cast(polars.String) for part in parts]
        whole = polars.concat(parts)
        if len(whole) == 0:
            raise DataError(f"{self.title} has a header but no rows: give a table with data")
        return parse(whole, self.time_name, self.time_options, self.place)

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
        size = _BATCH_BYTES[any(file.layout is not None for file in self.files)]
        count = max(1, size // (16 * max(1, self.rows)))
        for start in range(0, len(names), count):
            some = names[start : start + count]
            found = self.numbers(some)
            for name in some:
                yield name, found.pop(name)

    def numbers(self, names: Sequence[str]) -> dict[str, Numbers]:
        """These columns as numbers."""
        parts: list[dict[str, Numbers]] = []
        for file in self.files:
            with file.reading():
                parts.append(_numbers(file, list(names)))
        found = {name: _joined([part[name] for part in parts]) for name in names} if len(parts) > 1 else parts[0]
        return {name: _without_sentinels(each) for name, each in found.items()} if self.sentinels else found


def open_table(
    source: object, *, time: str | None = None, time_format: str | None = None, day_first: bool | None = None,
    timezone: str | None = None, separator: str | None = None, decimal: str | None = None, encoding: str | None = None,
    skip_rows: int = 0, skip_after_header: int | None = None, header_word: str | None = None, tag: str | None = None,
    value: str | None = None, quality: str | None = None, sheet: str | None = None, sentinels: bool = True,
) -> Table:  # fmt: skip
    """Open a table of logs; of most kinds only the beginnings of its files are read.

    A long table, with a row for each value of a tag, is found by its columns and made a wide one.

    Parameters
    ----------
    source : path, sequence of paths, or a DataFrame of polars or pandas
        CSV or other delimited text (also gzip), Parquet, Feather, or .xlsx; a folder or a .zip of them. Several files
        are one table: one after the other if they have the same columns, which may come in any order, else side by
        side, by their time.
    time : str, optional
        The time column; by default the one called time, timestamp, date, ... in any case.
    time_format : str, optional
        A strftime pattern, or "s", "ms", "us", "ns" (since 1970), "excel" or "seconds"; found if not given.
    day_first : bool, optional
        How to read 3/4/2024, where the column itself does not tell.
    timezone : str, optional
        Zone of local times, such as "Europe/Berlin".
    separator, decimal : str, optional
        Found if not given: comma, semicolon, tab or bar; point or comma.
    encoding : str, optional
        Found if not given: UTF-8, UTF-16 or Windows-1252.
    skip_rows, skip_after_header : int, optional
        Lines before, and after, the header that are no rows. Found if not given: lines about the export, a row with
        units of measure.
    header_word : str, optional
        The header is the first line that has this word.
    tag, value, quality : str, optional
        Columns of a long table, where they are not called so.
    sheet : str, optional
        Of a workbook: its name, or its number from 1 on. By default all sheets with a column of times are read, as
        several files are; where they have the same columns and the same times, a column is called "sheet.column".
    sentinels : bool
        Whether numbers such as -999, which recur exactly and stand far outside all others, are read as missing.

    Examples
    --------
    >>> table = open_table(polars.DataFrame({"Time": ["2024-05-01 06:00"], "flow": [3.5]}))
    >>> table.time_name, table.channels, table.rows
    ('Time', ('flow',), 1)
    >>> long = {"time": [0, 0, 60, 60], "tag": ["FI-1", "LI-1"] * 2, "value": [3.5, 0.9, 3.6, 0.8]}
    >>> open_table(polars.DataFrame(long)).channels
    ('FI-1', 'LI-1')
    """
    for name, count in (("skip_rows", skip_rows), ("skip_after_header", skip_after_header)):
        if count is None and name == "skip_after_header":
            continue
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= 1000:
            raise OptionError(f"{name} is {count!r}: give a whole number from 0 to 1000.")
    for name, text in (
        ("time", time), ("time_format", time_format), ("timezone", timezone), ("separator", separator),
        ("decimal", decimal), ("encoding", encoding), ("tag", tag), ("value", value), ("quality", quality),
        ("sheet", sheet),
    ):  # fmt: skip
        if text is not None and not isinstance(text, str):
            raise OptionError(f"{name} is {text!r}: give text.")
    for name, flag in (("day_first", day_first), ("sentinels", sentinels)):
        if flag is not None and not isinstance(flag, bool):
            raise OptionError(f"{name} is {flag!r}: give true or false.")
    if is_frame(source):
        frame = as_polars(source)
        files = [source_of(Path("the table"), frame.lazy(), frame.columns)]
    else:
        given = [source] if isinstance(source, (str, os.PathLike)) else source
        if not isinstance(given, Sequence) or not given or not all(isinstance(p, (str, os.PathLike)) for p in given):
            raise DataError(f"source is {source!r:.80}: give a path, several paths, or a DataFrame of polars or pandas")
        files = open_files(
            [Path(path) for path in given], sheet, time, separator=separator, decimal=decimal, encoding=encoding,
            header_word=header_word, skip_rows=skip_rows, skip_after_header=skip_after_header,
        )  # fmt: skip
    times = TimeOptions(time or _dated_column(files), time_format, day_first, timezone)
    made = _one_table(files, times, LongOptions(tag, value, quality))
    return replace(made, sentinels=sentinels, notes=(*_sheets_left_out(files), *made.notes))


def _sheets_left_out(files: Sequence[SourceFile]) -> Iterator[tuple[str, int]]:
    """Sheets of workbooks that are no tables with a time, by name: somebody may miss them."""
    for file in files:
        if titles := file.other_sheets:
            shown = ", ".join(repr(title[:40]) for title in titles[:_MOST_WORDS])
            more = ", ..." if len(titles) > _MOST_WORDS else ""
            what = "sheet of {} was" if len(titles) == 1 else "sheets of {} were"
            reason = "left out, because no column of times was found there"
            yield f"{what.format(file.path.name)} {reason}: {shown}{more}", len(titles)


def _dated_column(files: Sequence[SourceFile]) -> str | None:
    """The column of times where none is called so: the only one that holds dates, in all files."""
    first = files[0]
    if any(find_time(file.names, None, file.name) is not None for file in files):
        return None
    found = time_column(first.names, lambda name: first.column(name, _SAMPLE_ROWS))
    return found if all(found in file.names for file in files) else None


def _one_table(files: list[SourceFile], times: TimeOptions, long: LongOptions) -> Table:
    named = [long_names(file, times, long) for file in files]
    found = [names for names in named if names is not None]
    if found and len(found) == len(files):
        return _wide(widen(files, found, times), times)
    if len(files) > 1:
        apart = _share_nothing(files, times)
        if not apart and all(file.sheet for file in files) and _overlapping(files, times):
            files, apart = [_with_sheet(file, times) for file in files], True
        if apart:
            return _wide(side_by_side(files, times), times)
    return join(files, times)


def _share_nothing(files: Sequence[SourceFile], options: TimeOptions) -> bool:
    """Whether files have no channel in common: they hold different tags, one of them each, for instance.

    Files that share some of their channels are one table, in which a column that stands in some of them only is a
    mistake of spelling more often than not.
    """
    channels = [set(file.names) - {find_time(file.names, options.column, file.name)} for file in files]
    alone = all(len(own) == 1 for own in channels) and all(is_value(name) for own in channels for name in own if name)
    return alone or sum(map(len, channels)) == len(set().union(*channels))


def _overlapping(files: Sequence[SourceFile], options: TimeOptions) -> bool:
    """Whether files are about the same time, so that columns of one name are of different units."""
    spans = []
    for file in files:
        found = join([file], options).times
        if found is None or not len(known := found.nanoseconds[found.nanoseconds != NONE]):
            return False
        spans.append((int(known.min()), int(known.max())))
    return max(first for first, _ in spans) < min(last for _, last in spans)


def _with_sheet(file: SourceFile, options: TimeOptions) -> SourceFile:
    """The same with the sheet's title before the name of every channel."""
    time = find_time(file.names, options.column, file.name)
    return file.renamed({name: f"{file.sheet}.{name}" for name in file.names if name != time})


def _wide(made: Widened, options: TimeOptions) -> Table:
    """A table made of long ones, or of several: its times are read already."""
    dated = made.file.scan().collect_schema()["time"] != polars.Float64
    own = TimeOptions("time", None if dated else "seconds", timezone=options.timezone if dated else None)
    return Table((made.file,), made.file.names, "time", own, step=made.step, notes=made.notes)


def join(files: Sequence[SourceFile], options: TimeOptions, optional: Sequence[str] = ()) -> Table:
    """Files as one table, one after the other; columns that are `optional` may stand in some of them only."""
    first = files[0]
    names = [name for name in first.names if all(name in file.names for file in files)]
    for file in files[1:]:
        odd = sorted((set(first.names) ^ set(file.names)) - set(optional))
        if odd:
            holder = first if odd[0] in first.names else file
            raise DataError(
                f"{first.name} and {file.name} have different columns: {odd[0]!r} stands only in {holder.name}"
                + (f", and {len(odd) - 1} more" if len(odd) > 1 else "")
                + ": give them the same columns"
            )
    found = find_time(tuple(names), options.column, first.name)
    return Table(tuple(files), tuple(names), found, options, _date_beside(first, found))


def _date_beside(file: SourceFile, time_name: str | None) -> str | None:
    """The column with the date, where the time column has nothing but the time of day."""
    date = next((name for name in file.names if name.casefold() == "date" and name != time_name), None)
    if time_name is None or date is None:
        return None
    some = file.column(time_name, _SAMPLE_ROWS)
    if some.dtype == polars.Time:
        return date
    if some.dtype != polars.String:
        return None
    clock = some.str.strip_chars().str.contains(r"^\d{1,2}:\d{2}(:\d{2}([.,]\d+)?)?(\s*[AaPp]\.?[Mm]\.?)?$")
    return date if len(some) and bool(clock.fill_null(True).all()) else None


# ---- cells into numbers


def _numbers(file: SourceFile, names: list[str]) -> dict[str, Numbers]:
    if file.layout is None:
        frame = file.scan().select(names).collect()
        return {series.name: _from_series(series, file) for series in frame.iter_columns()}
    sample = file.scan().select(names).head(_SAMPLE_ROWS).collect()
    plain = [name for name in names if _castable(sample.get_column(name), file.layout.decimal)]
    texts = [name for name in names if name not in plain]
    out: dict[str, Numbers] = {}
    if plain:
        try:
            frame = file.scan(dict.fromkeys(plain, polars.Float64)).select(plain).collect()
        except polars.exceptions.ComputeError:
            texts = names  # some cell further down is text, or the file is faulty: read them all as text
        else:
            out = {name: Numbers(_floats(frame.get_column(name))) for name in plain}
    for start in range(0, len(texts), _TEXT_COLUMNS):
        some = texts[start : start + _TEXT_COLUMNS]
        frame = file.scan().select(some).collect()
        out |= {series.name: _from_series(series, file) for series in frame.iter_columns()}
    return out


def _castable(sample: polars.Series, decimal: str) -> bool:
    text = sample.str.strip_chars()
    if decimal == ",":
        if bool(text.str.contains(r"\.\d{3}").any()):  # perhaps a sign between thousands
            return False
        text = text.str.replace(",", ".", literal=True)
    return text.cast(polars.Float64, strict=False).null_count() == text.null_count()


def _floats(series: polars.Series) -> FloatArray:
    return np.asarray(series.cast(polars.Float64).fill_null(float("nan")).to_numpy(), np.float64)  # may be read-only


def _from_series(series: polars.Series, file: SourceFile) -> Numbers:
    dtype = series.dtype
    if dtype == polars.Null:
        return Numbers(np.full(len(series), np.nan))
    if dtype.is_numeric():
        return Numbers(_floats(series))
    if dtype == polars.Boolean:
        counts = {"true": int(series.sum()), "false": int((~series).sum())}
        return Numbers(_floats(series), {word: count for word, count in counts.items() if count})
    if dtype in (polars.Categorical, polars.Enum):
        series, dtype = series.cast(polars.String), polars.String()
    if dtype != polars.String:
        raise DataError(f"{file.name}: column {series.name!r} has type {dtype}, which is not a number")
    text = series.str.strip_chars()
    text = text.set(text == "", None)
    found = file.numerals(text).cast(polars.Float64, strict=False)
    left = found.is_null() & text.is_not_null()
    if not left.any():
        return Numbers(_floats(found))
    counts_frame = text.filter(left).value_counts(sort=True)
    counted = dict(zip(counts_frame.to_series(0).to_list(), counts_frame.to_series(1).to_list(), strict=True))
    known = {word: number for word in counted if (number := meaning(word)) is not None}
    values = _floats(found).copy()
    if known:
        values[left.to_numpy()] = _floats(
            text.filter(left).replace_strict(known, default=None, return_dtype=polars.Float64)
        )
    odd = {word: count for word, count in counted.items() if word not in known}
    odd_row = int((left & ~text.is_in(list(known))).arg_true()[0]) if odd else -1
    return Numbers(
        values, {word: counted[word] for word in list(known)[:_MOST_WORDS]},
        {word[:60]: odd[word] for word in list(odd)[:_MOST_WORDS]}, sum(odd.values()), odd_row,
    )  # fmt: skip


def _joined(parts: Sequence[Numbers]) -> Numbers:
    words: dict[str, int] = {}
    odd: dict[str, int] = {}
    row, odd_row = 0, -1
    for part in parts:
        for whole, some in ((words, part.words), (odd, part.odd)):
            for word, count in some.items():
                whole[word] = whole.get(word, 0) + count
        if part.odd_row >= 0 and odd_row < 0:
            odd_row = row + part.odd_row
        row += len(part.values)
    values = np.concatenate([part.values for part in parts])
    return Numbers(values, words, odd, sum(part.odd_count for part in parts), odd_row)


def _without_sentinels(numbers: Numbers) -> Numbers:
    found = sentinels_of(numbers.values)
    if not found:
        return numbers
    values = np.where(np.isin(numbers.values, list(found)), np.nan, numbers.values)
    return replace(numbers, values=values, sentinels=found)


def refuse_text(table: Table, name: str, numbers: Numbers) -> None:
    """Refuse a channel with text that is neither a number nor a known word, saying where the first one stands."""
    if numbers.odd_count:
        example = next(iter(numbers.odd))
        row = numbers.odd_row
        raise DataError(
            f"{table.title}: column {name!r} holds {example[:40]!r} in row {row}{table.place(row)}, which is not a "
            "number; leave the cell empty where a measurement is missing, exclude the column, or read such text as "
            "missing with text = 'missing'"
        )
