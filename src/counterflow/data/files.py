"""Table files: what a file is (kind, encoding, separator, decimal sign, header), and how it is read.

Columns of texts, Parquet and Feather files are read when they are asked for; a spreadsheet, a member of an archive and
a text that is not UTF-8 are read whole. Nothing is unpacked that would not fit into the memory that the machine has
left.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import os
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import IO, Any

import polars

from counterflow.data import encodings
from counterflow.data.archives import ENDINGS, members
from counterflow.data.encodings import utf8_content
from counterflow.data.headers import (
    SAMPLE_LINES,
    cells_of,
    clean_names,
    decimal_of,
    header_line,
    measures_of,
    rows_between,
    separator_of,
)
from counterflow.data.numerals import plain
from counterflow.data.spreadsheets import BOOKS, sheets
from counterflow.errors import CounterflowError, DataError

LARGEST_TEXT = 16 << 30  # bytes of an unpacked gzip file
SHARE = 0.5  # of the memory that is left, for what is unpacked
_RATIO = 1032  # deflate packs no better
_BEGINNING = 1 << 18  # bytes that are looked at
_SHOWN_SEPARATOR = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}


@dataclass(frozen=True)
class TextLayout:
    """How a delimited text is laid out.

    Parameters
    ----------
    separator, decimal : str
        One character each.
    header_line : int
        Lines before the header.
    skipped : int
        Lines between the header and the first row, such as a row with units of measure.
    """

    separator: str
    decimal: str
    header_line: int
    skipped: int

    @property
    def first_row(self) -> int:
        """Lines before the first row."""
        return self.header_line + 1 + self.skipped


@dataclass(frozen=True)
class SourceFile:
    """A table file: its columns by name, and how to read some of them.

    Parameters
    ----------
    path : Path
    names : tuple of str
        Column names without leading and trailing blanks, all different.
    source : TextLayout or polars.LazyFrame
        How a delimited text is laid out, or the columns of anything else.
    kind : str
        In words.
    content : bytes, optional
        Of a text that was unpacked from an archive, or turned into UTF-8: it is read instead of the file.
    measures : mapping of column to its unit of measure
        As far as the header, or a row below it, tells them.
    sheet : str
        Of a workbook of which several sheets are read.
    other_sheets : tuple of str
        Of a workbook, with the first of its tables: sheets that were left out unasked.
    """

    path: Path
    names: tuple[str, ...]
    source: TextLayout | polars.LazyFrame
    kind: str = "table in memory"
    content: bytes | None = field(default=None, repr=False)
    measures: Mapping[str, str] = field(default_factory=dict)
    sheet: str = ""
    other_sheets: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The file's name, as messages use it."""
        return f"{self.path.name}, sheet {self.sheet}" if self.sheet else self.path.name

    def numerals(self, text: polars.Series) -> polars.Series:
        """Cells as text that casts to numbers; see `numerals.plain`."""
        layout = self.layout
        return plain(text, ".") if layout is None else plain(text, layout.decimal, sure=layout.separator != ",")

    @property
    def layout(self) -> TextLayout | None:
        """Of a delimited text; None for anything else."""
        return self.source if isinstance(self.source, TextLayout) else None

    def line(self, row: int) -> str:
        """Where a row stands, for messages: " (line 12)" in a text, nothing elsewhere."""
        return "" if self.layout is None else f" (line {row + self.layout.first_row + 1})"

    def scan(self, types: Mapping[str, Any] | None = None) -> polars.LazyFrame:
        """The file as a lazy frame with clean column names; cells of a text are String unless `types` says."""
        if isinstance(self.source, polars.LazyFrame):
            return self.source
        schema = {name: polars.String for name in self.names} | dict(types or {})
        decimal_comma = self.source.decimal == ","
        return self._scan_text(schema, separator=self.source.separator, decimal_comma=decimal_comma)

    def _scan_text(self, schema: Mapping[str, Any], **options: Any) -> polars.LazyFrame:
        assert self.layout is not None
        skipped = self.layout.first_row
        place = self.path if self.content is None else io.BytesIO(self.content)
        return polars.scan_csv(place, has_header=False, skip_lines=skipped, schema=schema, glob=False, **options)

    def column(self, name: str, rows: int | None = None) -> polars.Series:
        """One column as the file has it, of its first rows or of all."""
        with self.reading():
            lazy = self.scan().select(name)
            return (lazy if rows is None else lazy.head(rows)).collect().to_series()

    def shape(self) -> tuple[int, int]:
        """Rows of the file, and how many of them have fewer cells than the header; more cells are refused.

        A reader that is asked for some columns only would pass over superfluous cells in silence, and a number with a
        decimal comma among commas would move all cells after it.
        """
        with self.reading():
            if self.layout is None:
                return int(self.scan().select(polars.len()).collect().item()), 0
            rows = int(self.scan().select(polars.col(self.names[0])).select(polars.len()).collect().item())
            if len(self.names) == 1:
                return rows, 0
            lines = self._scan_text({"line": polars.String}, separator="\x1f", quote_char=None)
            text = polars.col("line")
            cells = text.str.count_matches(self.layout.separator, literal=True) + 1
            # a line with quotes may hold separators that separate nothing
            plain = (~text.str.contains('"', literal=True)) & (text.str.len_bytes() > 0)
            found = lines.select(
                (plain & (cells > len(self.names))).any().alias("long"),
                (plain & (cells < len(self.names))).sum().alias("short"),
            ).collect(engine="streaming")
            if found["long"].item():
                self._refuse_faulty_text()
                raise DataError(
                    f"{self.name} cannot be read: a row has more cells than the header: mend it, or check the separator"
                )
            return rows, int(found["short"].item() or 0)

    def renamed(self, new: Mapping[str, str]) -> SourceFile:
        """The same file with other names for some columns."""
        if not any(old in self.names for old in new):
            return self
        names = clean_names([new.get(name, name) for name in self.names], self.name)
        columns = dict(zip(self.names, names, strict=True))
        measures = {columns[name]: measure for name, measure in self.measures.items()}
        return replace(self, names=names, source=self.layout or self.scan().rename(columns), measures=measures)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Whatever goes wrong while reading becomes one sentence about this file."""
        with blaming(self.name):
            try:
                yield
            except (polars.exceptions.PolarsError, polars.exceptions.PanicException, OSError) as error:
                if self.layout is not None:
                    self._refuse_faulty_text(error)
                raise

    def _refuse_faulty_text(self, cause: BaseException | None = None) -> None:
        """Read a text that a reader refused once more, plainly, and name the fault: encoding, packing or a long row."""
        assert self.layout is not None
        with blaming(self.name), text_of(self.path, self.content) as file:
            body = islice(file, self.layout.first_row, None)
            for row in csv.reader(body, delimiter=self.layout.separator):
                if len(row) > len(self.names):
                    raise DataError(
                        f"{self.name} cannot be read: a row has {len(row)} cells, the header has {len(self.names)}; "
                        f"it begins with {self.layout.separator.join(row[:3])[:60]!r}: mend that row, or check the "
                        "separator"
                    ) from cause


@contextmanager
def blaming(name: str) -> Iterator[None]:
    """Whatever a reader raises becomes one sentence about the file."""
    try:
        yield
    except CounterflowError:
        raise
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not UTF-8: {encodings.REMEDY}", code="encoding") from error
    except (EOFError, zlib.error) as error:
        raise DataError(f"{name} cannot be read: the gzip file is cut off or damaged; copy it again") from error
    except (polars.exceptions.PolarsError, OSError, ValueError, csv.Error, polars.exceptions.PanicException) as error:
        reason = " ".join(str(error).split("\n\n")[0].split())
        raise DataError(f"{name} cannot be read: {reason or type(error).__name__:.200}") from error


def open_files(
    paths: Sequence[Path], sheet: str | None = None, time: str | None = None, **options: Any
) -> list[SourceFile]:
    """The tables that paths stand for (files, folders, zip archives, sheets), in order.

    Options are those of `open_file`. ``sheet``: of workbooks; None: all that are tables, by their column of ``time``.
    """
    room = min(LARGEST_TEXT, int(SHARE * memory_left()))
    out = []
    for path in paths:
        with blaming(path.name):
            for place, content in members(path, room):
                out += _tables(place, content=content, sheet=sheet, time=time, **options)
    return out


def _tables(
    path: Path, *, content: bytes | None, sheet: str | None, time: str | None, skip_rows: int = 0,
    skip_after_header: int | None = None, header_word: str | None = None, **options: Any,
) -> list[SourceFile]:  # fmt: skip
    """The tables of one file."""
    if path.suffix.lower() in BOOKS and (content is not None or path.is_file()):
        with blaming(path.name):
            return _sheets(path, content, sheet, time, skip_rows, skip_after_header, header_word)
    if sheet is not None:
        raise DataError(f"{path.name} has no sheets, and sheet is {sheet!r:.60}: leave it out")
    found = open_file(
        path, content=content, skip_rows=skip_rows, skip_after_header=skip_after_header, header_word=header_word,
        **options,
    )  # fmt: skip
    return [found]


def _sheets(
    path: Path, content: bytes | None, sheet: str | None, time: str | None, skip_rows: int, skipped: int | None,
    header_word: str | None,
) -> list[SourceFile]:  # fmt: skip
    room = int(SHARE * memory_left())
    found, left_out = sheets(path, content, room, sheet, skip_rows, skipped, header_word, time)
    out = []
    common = found[0].time(time)  # the column of times has one name in all of them
    for each in found:
        title, own = each.title if len(found) > 1 else "", each.time(time)
        table = SourceFile(path, each.names, each.columns, "spreadsheet", measures=each.measures, sheet=title)
        out.append(table if own is None or common is None else table.renamed({own: common}))
    return [replace(out[0], other_sheets=tuple(left_out)), *out[1:]]


def open_file(
    path: Path, *, separator: str | None = None, decimal: str | None = None, encoding: str | None = None,
    skip_rows: int = 0, skip_after_header: int | None = None, header_word: str | None = None,
    content: bytes | None = None,
) -> SourceFile:  # fmt: skip
    """Look at a file's beginning and say how it is to be read.

    The options are those of `open_table`. `content`: what was unpacked of it; then there need not be such a file.
    """
    endings = [ending.lower() for ending in path.suffixes[-2:]]
    place = path if content is None else io.BytesIO(content)
    with blaming(path.name):
        if content is None and path.is_dir():
            raise DataError(f"{path.name} is a directory: give a file")
        if content is None and not path.is_file():
            raise DataError(f"there is no file {str(path)!r}: check the path")
        if endings and endings[-1] in (".parquet", ".pq"):
            lazy = polars.scan_parquet(place, glob=False)
            return source_of(path, lazy, lazy.collect_schema().names(), "Parquet")
        if endings and endings[-1] in (".feather", ".arrow", ".ipc"):
            lazy = polars.scan_ipc(place) if content is not None else polars.scan_ipc(path, glob=False)
            return source_of(path, lazy, lazy.collect_schema().names(), "Feather")
        if endings and endings[-1] in (".xlsx", ".xlsm"):
            return _sheets(path, content, None, None, skip_rows, skip_after_header, header_word)[0]
        if not endings or endings[-1] not in ENDINGS:
            raise DataError(
                f"{path.name}: a log is a .csv, .csv.gz, .tsv, .txt, .parquet, .feather or .xlsx file, or a .zip or a "
                "folder of them"
            )
        layout = (separator, decimal, encoding, skip_rows, skip_after_header, header_word)
        return _text(path, content, *layout)


def source_of(path: Path, lazy: polars.LazyFrame, stored: Sequence[str], kind: str = "table in memory") -> SourceFile:
    """Columns under clean names."""
    names = clean_names(stored, path.name)
    renamed = {old: new for old, new in zip(stored, names, strict=True) if old != new}
    return SourceFile(path, names, lazy.rename(renamed) if renamed else lazy, kind, measures=measures_of(names, ()))


def text_of(path: Path, content: bytes | None = None) -> IO[str]:
    """A text file, unpacked if it is gzip, without its byte-order mark."""
    if content is not None:
        return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="")
    if path.suffix.lower() == ".gz":
        return io.TextIOWrapper(gzip.open(path), encoding="utf-8-sig", newline="")
    return open(path, encoding="utf-8-sig", newline="")


def memory_left() -> int:
    """Bytes of memory that this process can still have; as good as the system tells."""
    left = [1 << 62]
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text("ascii").splitlines()
        left.append(1024 * int(next(line for line in lines if line.startswith("MemAvailable:")).split()[1]))
    with contextlib.suppress(OSError, ValueError, AttributeError):
        left.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with contextlib.suppress(OSError, ValueError):  # of a container
        most, used = (int(Path("/sys/fs/cgroup", name).read_text()) for name in ("memory.max", "memory.current"))
        left.append(most - used)
    return max(min(left), 0)


def _beginning(path: Path, content: bytes | None) -> list[str]:
    """The first lines, whole."""
    packed = content is None and path.suffix.lower() == ".gz"
    opener: Any = gzip.open if packed else open
    with io.BytesIO(content) if content is not None else opener(path, "rb") as file:
        data: bytes = file.read(_BEGINNING)
        while data and not data.endswith(b"\n") and (more := file.readline(_BEGINNING)):  # a header may be very long
            data += more
            if len(data) > 64 * _BEGINNING:
                raise DataError(f"{path.name} cannot be read: its first line has more than {len(data)} bytes")
        if packed and path.stat().st_size * _RATIO > (most := min(LARGEST_TEXT, int(SHARE * memory_left()))):
            size = len(data)
            while more := file.read(1 << 20):
                size += len(more)
                if size > most:
                    raise DataError(
                        f"{path.name} unpacks to more than the {most} bytes that there is room for: divide it into "
                        "several files",
                        code="too-large",
                    )
    if not data.strip():
        raise DataError(f"{path.name} cannot be read: it is empty")
    if b"\0" in data and not encodings.is_wide(data):
        raise DataError(f"{path.name} cannot be read: it holds zero bytes, so it is no text table; check what it is")
    return [] if b"\0" in data else re.split(r"\r\n|\n|\r", data.decode("utf-8-sig", "replace"))


def _text(
    path: Path, content: bytes | None, separator: str | None, decimal: str | None, encoding: str | None,
    skip_rows: int, skipped: int | None, header_word: str | None,
) -> SourceFile:  # fmt: skip
    lines = _beginning(path, content)  # refuses what is no text, or too large
    told, recoded = utf8_content(path, content, encoding, min(LARGEST_TEXT, int(SHARE * memory_left())))
    if recoded is not content:
        lines = _beginning(path, recoded)
    first = header_line(lines, skip_rows, header_word)
    if first >= len(lines):
        raise DataError(f"{path.name} cannot be read: it has no header after {first} skipped lines")
    sample = [line for line in lines[first : first + SAMPLE_LINES + 1] if line.strip()]
    if not sample:
        raise DataError(f"{path.name} cannot be read: the header is empty")
    if separator is None:
        separator = separator_of(sample)
    elif len(separator.encode()) != 1:
        raise DataError(f"separator is {separator!r}: give one character")
    names = clean_names(cells_of(lines[first : first + 1], separator)[0], path.name)
    below = cells_of(lines[first + 1 : first + SAMPLE_LINES + 1], separator)
    between = rows_between(below) if skipped is None else skipped
    if decimal is None:
        decimal = "." if separator == "," else decimal_of(below[between:])
    elif decimal not in (".", ","):
        raise DataError(f"decimal is {decimal!r}: give '.' or ','")
    if decimal == separator:
        raise DataError("decimal and separator are both ',': give another separator, or decimal '.'")
    if not names:
        raise DataError(f"{path.name} cannot be read: the header, line {first + 1}, names no column")
    measures = measures_of(names, below[:between])
    if not any(line.strip() for line in lines[first + 1 + between :]):  # readers disagree about what this is
        empty = polars.LazyFrame(schema=dict.fromkeys(names, polars.String))
        return SourceFile(path, names, empty, measures=measures)
    kind = f"text with {_SHOWN_SEPARATOR.get(separator, separator)}"
    kind += ", decimal comma" if decimal == "," else ""
    kind += f", {told}" if told != "UTF-8" else ""
    kind += ", gzip" if path.suffix.lower() == ".gz" else ""
    kind += f", header in line {first + 1}" if first and not skip_rows else ""
    kind += ", with a row of units of measure" if between and skipped is None and measures else ""
    return SourceFile(path, names, TextLayout(separator, decimal, first, between), kind, recoded, measures)
