"""What a file is: its kind, separator, decimal sign and header, found from its first bytes.

Nothing but the beginning of a file is read here; columns are read when they are asked for.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from counterflow.errors import DataError
from counterflow.plant.units import first_repeated

if TYPE_CHECKING:
    import polars

SEPARATORS = (",", ";", "\t", "|")
_BEGINNING = 1 << 18  # bytes that are looked at
_SAMPLE_LINES = 50
_COMMA_NUMBER = re.compile(r"\s*[+-]?\d+,\d+(?:[eE][+-]?\d+)?\s*")
_POINT_NUMBER = re.compile(r"\s*[+-]?\d*\.\d+(?:[eE][+-]?\d+)?\s*")
_SPREADSHEETS = (".xlsx", ".xlsm")
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


@dataclass(frozen=True)
class SourceFile:
    """A table file: its columns by name, and how to read some of them.

    Parameters
    ----------
    path : Path
    names : tuple of str
        Column names without leading and trailing blanks, all different.
    stored : tuple of str
        The names as the file has them (Parquet), or as they are given to the reader (text).
    layout : TextLayout or None
        None unless it is a delimited text.
    frame : polars.DataFrame or None
        The contents, where the file cannot be read by column.
    """

    path: Path
    names: tuple[str, ...]
    stored: tuple[str, ...]
    layout: TextLayout | None = None
    frame: polars.DataFrame | None = None

    @property
    def name(self) -> str:
        """The file's name, as messages use it."""
        return self.path.name

    @property
    def kind(self) -> str:
        """In words."""
        if self.layout is not None:
            packed = ", gzip" if self.path.suffix.lower() == ".gz" else ""
            decimal = ", decimal comma" if self.layout.decimal == "," else ""
            return f"text with {_SHOWN_SEPARATOR.get(self.layout.separator, self.layout.separator)}{decimal}{packed}"
        return "table in memory" if self.frame is not None else "Parquet"

    def line(self, row: int) -> str:
        """Where a row stands, for messages: " (line 12)" in a text, nothing elsewhere."""
        if self.layout is None:
            return ""
        return f" (line {row + self.layout.header_line + self.layout.skipped + 2})"

    def scan(self, types: Mapping[str, Any] | None = None) -> polars.LazyFrame:
        """The file as a lazy frame with clean column names; cells of a text are String unless `types` says."""
        import polars

        if self.frame is not None:
            return self.frame.lazy()
        if self.layout is None:
            lazy = polars.scan_parquet(self.path, glob=False)
            renamed = {old: new for old, new in zip(self.stored, self.names, strict=True) if old != new}
            return lazy.rename(renamed) if renamed else lazy
        given = types or {}
        return polars.scan_csv(
            self.path,
            has_header=False,
            skip_lines=self.layout.header_line + 1 + self.layout.skipped,
            separator=self.layout.separator,
            schema={name: given.get(name, polars.String) for name in self.names},
            decimal_comma=self.layout.decimal == ",",
            glob=False,
        )

    def shape(self) -> tuple[int, int]:
        """Rows of the file, and how many of them have fewer cells than the header; more cells are refused.

        A reader that is asked for some columns only would pass over superfluous cells in silence, and a number with a
        decimal comma among commas would move all cells after it.
        """
        import polars

        with self.reading():
            if self.layout is None:
                return int(self.scan().select(polars.len()).collect().item()), 0
            rows = int(self.scan().select(polars.col(self.names[0])).select(polars.len()).collect().item())
            if len(self.names) == 1:
                return rows, 0
            lines = polars.scan_csv(
                self.path,
                has_header=False,
                skip_lines=self.layout.header_line + 1 + self.layout.skipped,
                separator="\x1f",
                quote_char=None,
                schema={"line": polars.String},
                glob=False,
            )
            text = polars.col("line")
            cells = text.str.count_matches(self.layout.separator, literal=True) + 1
            # a line with quotes may hold separators that separate nothing
            plain = (~text.str.contains('"', literal=True)) & (text.str.len_bytes() > 0)
            found = lines.select(
                (plain & (cells > len(self.names))).any().alias("long"),
                (plain & (cells < len(self.names))).sum().alias("short"),
            ).collect(engine="streaming")
            if found["long"].item():
                raise DataError(self._ragged())
            return rows, int(found["short"].item() or 0)

    def renamed(self, new: Mapping[str, str]) -> SourceFile:
        """The same file with other names for some columns."""
        if not any(old in self.names for old in new):
            return self
        names = clean_names([new.get(name, name) for name in self.names], self.name)
        frame = None if self.frame is None else self.frame.rename(dict(zip(self.names, names, strict=True)))
        return replace(self, names=names, frame=frame)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Whatever goes wrong while reading is told as one sentence about this file."""
        with blaming(self.name):
            try:
                yield
            except Exception as error:
                if self.layout is not None and "more fields" in str(error):
                    raise DataError(self._ragged()) from error
                raise

    def _ragged(self) -> str:
        """Which line has more cells than the header; only asked once it is known that there is one."""
        assert self.layout is not None
        with text_of(self.path) as file:
            for row in csv.reader(file, delimiter=self.layout.separator):
                if len(row) > len(self.names):
                    return (
                        f"{self.name} cannot be read: a row has {len(row)} cells, the header has {len(self.names)}; "
                        f"it begins with {self.layout.separator.join(row[:3])[:60]!r}: mend that row, or check the "
                        "separator"
                    )
        return f"{self.name} cannot be read: a row has more cells than the header: mend it, or check the separator"


@contextmanager
def blaming(name: str) -> Iterator[None]:
    """Whatever a reader raises becomes one sentence about the file."""
    import polars

    try:
        yield
    except DataError:
        raise
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is not UTF-8: save it as UTF-8") from error
    except (EOFError, zlib.error) as error:
        raise DataError(f"{name} cannot be read: the gzip file is cut off or damaged; copy it again") from error
    except (polars.exceptions.PolarsError, OSError, ValueError, csv.Error, polars.exceptions.PanicException) as error:
        reason = " ".join(str(error).split("\n\n")[0].split())
        if "utf-8" in reason.lower() or "utf8" in reason.lower():
            raise DataError(f"{name} is not UTF-8: save it as UTF-8") from error
        if "end of file" in reason and "arquet" not in reason:
            raise DataError(
                f"{name} cannot be read: it is cut off or damaged ({reason:.100}); copy it again"
            ) from error
        raise DataError(f"{name} cannot be read: {reason or type(error).__name__:.200}") from error


def open_file(
    path: Path,
    *,
    separator: str | None = None,
    decimal: str | None = None,
    skip_rows: int = 0,
    skip_after_header: int = 0,
    header_word: str | None = None,
) -> SourceFile:
    """Look at a file's beginning and say how it is to be read.

    Parameters
    ----------
    path : Path
    separator, decimal : str, optional
        Found if not given.
    skip_rows, skip_after_header : int
        Lines before, and after, the header that are no rows of the table.
    header_word : str, optional
        The header is the first line, after those skipped, that has a cell with this word in any case.
    """
    endings = [ending.lower() for ending in path.suffixes[-2:]]
    with blaming(path.name):
        if path.is_dir():
            raise DataError(f"{path.name} is a directory: give a file")
        if not path.is_file():
            raise DataError(f"there is no file {str(path)!r}: check the path")
        if endings and endings[-1] in (".parquet", ".pq"):
            return _parquet(path)
        if endings and endings[-1] in _SPREADSHEETS:
            from counterflow.data.spreadsheet import open_spreadsheet

            return open_spreadsheet(path, skip_rows, skip_after_header, header_word)
        if not endings or (endings[-1] not in (".csv", ".txt", ".tsv", ".dat") and endings[-1] != ".gz"):
            raise DataError(f"{path.name}: a log is a .csv, .csv.gz, .tsv, .txt, .parquet or .xlsx file")
        return _text(path, separator, decimal, skip_rows, skip_after_header, header_word)


def _parquet(path: Path) -> SourceFile:
    import polars

    stored = polars.scan_parquet(path, glob=False).collect_schema().names()
    return SourceFile(path, clean_names(stored, path.name), tuple(stored))


def clean_names(stored: Sequence[str], file: str) -> tuple[str, ...]:
    """Names without blanks around them; an empty one is numbered; two that are the same are refused."""
    names = tuple(name.strip().lstrip("\ufeff").strip() or f"column_{k + 1}" for k, name in enumerate(stored))
    twice = first_repeated(names)
    if twice is not None:
        raise DataError(f"{file} has two columns called {twice!r}; rename one of them")
    return names


def text_of(path: Path) -> IO[str]:
    """A text file, unpacked if it is gzip, without its byte-order mark."""
    if path.suffix.lower() == ".gz":
        return io.TextIOWrapper(gzip.open(path), encoding="utf-8-sig", newline="")
    return open(path, encoding="utf-8-sig", newline="")


def _beginning(path: Path) -> list[str]:
    """The first lines, whole."""
    opener: Any = gzip.open if path.suffix.lower() == ".gz" else open
    with opener(path, "rb") as file:
        data: bytes = file.read(_BEGINNING)
        while data and not data.endswith(b"\n") and (more := file.readline(_BEGINNING)):  # a header may be very long
            data += more
            if len(data) > 64 * _BEGINNING:
                raise DataError(f"{path.name} cannot be read: its first line has more than {len(data)} bytes")
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{path.name} is not UTF-8 but UTF-16: save it as UTF-8")
    if not data.strip():
        raise DataError(f"{path.name} cannot be read: it is empty")
    if b"\0" in data:
        raise DataError(f"{path.name} cannot be read: it holds zero bytes, so it is no text table; check what it is")
    text = data.decode("utf-8-sig")
    return re.split(r"\r\n|\n|\r", text)


def _cells(lines: Sequence[str], separator: str) -> list[list[str]]:
    try:
        return list(csv.reader(lines, delimiter=separator))
    except csv.Error as error:
        raise DataError(f"the header cannot be read: {error}") from error


def _text(
    path: Path, separator: str | None, decimal: str | None, skip_rows: int, skipped: int, header_word: str | None
) -> SourceFile:
    import polars

    lines = _beginning(path)
    header_line = skip_rows
    if header_word is not None:
        word = header_word.casefold()
        near = (k for k, line in enumerate(lines[: skip_rows + 10]) if k >= skip_rows and word in line.casefold())
        header_line = next(near, skip_rows)
    if header_line >= len(lines):
        raise DataError(f"{path.name} cannot be read: it has no header after {header_line} skipped lines")
    sample = [line for line in lines[header_line : header_line + _SAMPLE_LINES + 1] if line.strip()]
    if not sample:
        raise DataError(f"{path.name} cannot be read: the header is empty")
    if separator is None:
        separator = _separator(sample)
    elif len(separator.encode()) != 1:
        raise DataError(f"separator is {separator!r}: give one character")
    header = _cells(lines[header_line : header_line + 1], separator)[0]
    names = clean_names(header, path.name)
    if decimal is None:
        decimal = "." if separator == "," else _decimal(_cells(sample[1 + skipped :], separator))
    elif decimal not in (".", ","):
        raise DataError(f"decimal is {decimal!r}: give '.' or ','")
    if decimal == separator:
        raise DataError("decimal and separator are both ',': give another separator, or decimal '.'")
    if not any(line.strip() for line in lines[header_line + 1 + skipped :]):  # readers disagree about what this is
        return SourceFile(path, names, names, None, polars.DataFrame(schema=dict.fromkeys(names, polars.String)))
    return SourceFile(path, names, names, TextLayout(separator, decimal, header_line, skipped))


def _separator(sample: Sequence[str]) -> str:
    """The one that cuts most lines into as many cells as the header, and into most cells."""
    best, found = (0.0, 0), ","
    for candidate in SEPARATORS:
        counts = [len(row) for row in _cells(sample, candidate)]
        width = counts[0]
        if width < 2:
            continue
        agreeing = Counter(counts)[width] / len(counts)
        # a header of several cells with rows that agree: decimal commas never make the header agree with the rows
        score = (round(agreeing, 1), width)
        if score > best:
            best, found = score, candidate
    return found


def _decimal(rows: Sequence[Sequence[str]]) -> str:
    commas = sum(bool(_COMMA_NUMBER.fullmatch(cell)) for row in rows for cell in row)
    points = sum(bool(_POINT_NUMBER.fullmatch(cell)) for row in rows for cell in row)
    return "," if commas > points else "."
