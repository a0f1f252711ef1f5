"""Delimited texts: found are encoding, separator, decimal sign, header, and rows between it and the numbers.

A text is UTF-8 unless its bytes say otherwise. Older programs, and spreadsheets on Windows, write UTF-16 or
Windows-1252; some exports mix UTF-8 and Windows-1252. Anything else has to be said.
"""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import polars

from counterflow.data import columns, headers
from counterflow.data.headers import SAMPLE_LINES
from counterflow.data.options import TableOptions
from counterflow.data.places import REMEDY, Place, blaming
from counterflow.data.source import Source, frame_source
from counterflow.errors import DataError, OptionError

_BEGINNING = 1 << 18  # bytes that are looked at
_SAMPLE_ROWS = 200
_TEXT_COLUMNS = 8  # read at once where cells are text, which takes several times the room of numbers
_SHOWN_SEPARATOR = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
# what engineers write beyond ASCII, as Windows-1252 has it: letters with accents, units of measure, dashes and quotes
_WINDOWS = {0xDC00 + byte: bytes([byte]).decode("cp1252", "replace") for byte in range(128, 256)}  # of escaped bytes
_USUAL = frozenset("°²³µ·±×÷¼½¾§€‰–—‘’“”„•…™®©«»ªº¹¿¡¢£¥\xa0ŠŽšžŸŒœ") | {chr(k) for k in range(0xC0, 0xFF)}


@dataclass(frozen=True, kw_only=True)
class TextSource(Source):
    """A delimited text: where it lies in UTF-8, its signs, and how many lines stand before the first row."""

    place: Place
    separator: str
    decimal: str
    first_row: int
    is_text = True

    def line(self, row: int) -> str:
        return f" (line {row + self.first_row + 1})"

    def scan(self, types: Mapping[str, Any] | None = None) -> polars.LazyFrame:
        """All columns; cells are String unless `types` says."""
        schema = {name: polars.String for name in self.names} | dict(types or {})
        return self._scanned(schema, separator=self.separator, decimal_comma=self.decimal == ",")

    def _scanned(self, schema: Mapping[str, Any], **options: Any) -> polars.LazyFrame:
        return polars.scan_csv(
            self.place.source, has_header=False, skip_lines=self.first_row, schema=schema, glob=False, **options
        )

    def as_cells(self, column: polars.Series) -> polars.Series:
        """One column that was read; in a text with commas between cells, the decimal sign is not certain."""
        return columns.cells(column, self.name, self.decimal, sure=self.separator != ",")

    def cells(self, names: Sequence[str]) -> Iterator[polars.Series]:
        """Columns as numbers where a sample holds nothing else, all at once; the others as text, some at once."""
        with self.reading():
            sample = self.scan().select(names).head(_SAMPLE_ROWS).collect()
            plain = [name for name in names if self._is_plain(sample.get_column(name))]
            try:
                found = self.scan(dict.fromkeys(plain, polars.Float64)).select(plain).collect() if plain else sample
            except polars.exceptions.ComputeError:
                plain = []  # some cell further down is text, or the file is faulty: read them all as text
            texts = [name for name in names if name not in plain]
            some = polars.DataFrame()
            for name in names:
                if name in plain:
                    yield found.get_column(name)
                    continue
                if name not in some.columns:
                    first = texts.index(name)
                    some = self.scan().select(texts[first : first + _TEXT_COLUMNS]).collect()
                yield self.as_cells(some.get_column(name))

    def _is_plain(self, sample: polars.Series) -> bool:
        text = sample.str.strip_chars()
        if self.decimal == ",":
            if bool(text.str.contains(r"\.\d{3}").any()):  # perhaps a sign between thousands
                return False
            text = text.str.replace(",", ".", literal=True)
        return text.cast(polars.Float64, strict=False).null_count() == text.null_count()

    def shape(self) -> tuple[int, int]:
        """Rows of the file, and how many of them have fewer cells than the header; more cells are refused.

        A reader that is asked for some columns only would pass over superfluous cells in silence, and a number with a
        decimal comma among commas would move all cells after it.
        """
        with self.reading():
            rows = int(self.scan().select(polars.col(self.names[0])).select(polars.len()).collect().item())
            if len(self.names) == 1:
                return rows, 0
            text = polars.col("line")
            count = text.str.count_matches(self.separator, literal=True) + 1
            # a line with quotes may hold separators that separate nothing
            plain = (~text.str.contains('"', literal=True)) & (text.str.len_bytes() > 0)
            lines = self._scanned({"line": polars.String}, separator="\x1f", quote_char=None)
            found = lines.select(
                (plain & (count > len(self.names))).any().alias("long"),
                (plain & (count < len(self.names))).sum().alias("short"),
            ).collect(engine="streaming")
            if found["long"].item():
                self._refuse_long_row()
                raise DataError(
                    f"{self.name} cannot be read: a row has more cells than the header: mend it, or check the separator"
                )
            return rows, int(found["short"].item() or 0)

    @contextmanager
    def reading(self) -> Iterator[None]:
        with blaming(self.name):
            try:
                yield
            except (polars.exceptions.PolarsError, polars.exceptions.PanicException, OSError) as error:
                self._refuse_long_row(error)
                raise

    def _refuse_long_row(self, cause: BaseException | None = None) -> None:
        """Read a text that a reader refused once more, plainly, and name the fault: encoding, packing or a long row."""
        with blaming(self.name), self.place.text() as file:
            for row in csv.reader(islice(file, self.first_row, None), delimiter=self.separator):
                if len(row) > len(self.names):
                    raise DataError(
                        f"{self.name} cannot be read: a row has {len(row)} cells, the header has {len(self.names)}; "
                        f"it begins with {self.separator.join(row[:3])[:60]!r}: mend that row, or check the separator"
                    ) from cause


def read(place: Place, options: TableOptions) -> Iterator[Source]:
    """The one table of a text, of which the beginning is looked at."""
    place.refuse_bomb()
    encoding, text = _in_utf8(place, options.encoding)
    lines = _beginning(text)
    first = headers.header_line(lines, options.skip_rows, options.header_word)
    if first >= len(lines):
        raise DataError(f"{place.name} cannot be read: it has no header after {first} skipped lines")
    sample = [line for line in lines[first : first + SAMPLE_LINES + 1] if line.strip()]
    if not sample:
        raise DataError(f"{place.name} cannot be read: the header is empty")
    separator = headers.separator_of(sample) if options.separator is None else options.separator
    if len(separator.encode()) != 1:
        raise DataError(f"separator is {separator!r}: give one character")
    rows = list(csv.reader(lines[first : first + SAMPLE_LINES + 1], delimiter=separator))
    names, measures, between = headers.layout(rows, options, place.name)
    if not names:
        raise DataError(f"{place.name} cannot be read: the header, line {first + 1}, names no column")
    decimal = options.decimal
    if decimal is None:
        decimal = "." if separator == "," else headers.decimal_of(rows[1 + between :])
    elif decimal not in (".", ","):
        raise DataError(f"decimal is {decimal!r}: give '.' or ','")
    if decimal == separator:
        raise DataError("decimal and separator are both ',': give another separator, or decimal '.'")
    if not any(line.strip() for line in lines[first + 1 + between :]):  # readers disagree about what this is
        yield frame_source(place.name, polars.LazyFrame(schema=dict.fromkeys(names, polars.String)))
        return
    told = (
        f"text with {_SHOWN_SEPARATOR.get(separator, separator)}", "decimal comma" if decimal == "," else "",
        encoding if encoding != "UTF-8" else "", "gzip" if place.path.suffix.lower() == ".gz" else "",
        f"header in line {first + 1}" if first and not options.skip_rows else "",
        "with a row of units of measure" if between and options.skip_after_header is None and measures else "",
    )  # fmt: skip
    yield TextSource(
        name=place.name, names=names, kind=", ".join(filter(None, told)), measures=measures, place=text,
        separator=separator, decimal=decimal, first_row=first + 1 + between,
    )  # fmt: skip


def _beginning(place: Place) -> list[str]:
    """The first lines, whole."""
    with place.open() as file:
        data = file.read(_BEGINNING)
        while data and not data.endswith(b"\n") and (more := file.readline(_BEGINNING)):  # a header may be very long
            data += more
            if len(data) > 64 * _BEGINNING:
                raise DataError(f"{place.name} cannot be read: its first line has more than {len(data)} bytes")
    if not data.strip():
        raise DataError(f"{place.name} cannot be read: it is empty")
    return re.split(r"\r\n|\n|\r", data.decode("utf-8-sig", "replace"))


# ---- encodings


def _in_utf8(place: Place, encoding: str | None) -> tuple[str, Place]:
    """The encoding of a text, found if it is not given (as Python names it), and its place in UTF-8."""
    if encoding is None:
        first = next(place.chunks(), b"")
        if _is_wide(first):
            return "UTF-16", _decoded(place, "utf-16" if first.startswith(_MARKS) else "utf-16-le")
        if b"\0" in first:
            raise DataError(f"{place.name} cannot be read: it holds zero bytes: it is no text; check what it is")
        return ("UTF-8", place) if _fault(place) is None else _windows(place)
    try:
        known = codecs.lookup(encoding).name
    except (LookupError, ValueError):
        raise OptionError(
            f"encoding is {encoding!r:.40}, which is not known: give one such as 'utf-8', 'cp1252' or 'utf-16'."
        ) from None
    if known not in ("utf-8", "utf-8-sig", "ascii"):
        return known, _decoded(place, known)
    if (fault := _fault(place)) is not None:
        raise DataError(f"{place.name} is not UTF-8, at byte {fault.start}: {REMEDY}", code="encoding") from fault
    return "UTF-8", place


def _is_wide(data: bytes) -> bool:
    """Whether the beginning of a file is UTF-16: it has a mark, or nearly every second byte is zero."""
    even, odd = data[0:400:2], data[1:400:2]
    plain = len(data) > 20 and odd.count(0) > 0.8 * len(odd) and even.count(0) < 0.2 * len(even)
    return data.startswith(_MARKS) or plain


def _fault(place: Place) -> UnicodeDecodeError | None:
    """What keeps a text from being UTF-8."""
    try:
        for _ in codecs.iterdecode(place.chunks(), "utf-8"):
            pass
    except UnicodeDecodeError as error:
        return error
    return None


def _decoded(place: Place, encoding: str) -> Place:
    data = place.whole("save it as UTF-8, or divide it")
    try:
        return replace(place, content=data.decode(encoding).lstrip("\ufeff").encode())
    except (UnicodeError, ValueError, LookupError) as error:
        where = f", at byte {error.start}" if isinstance(error, UnicodeDecodeError) else ""
        raise DataError(f"{place.name} is not {encoding}{where}: {REMEDY}", code="encoding") from error


def _windows(place: Place) -> tuple[str, Place]:
    """Bytes that are not UTF-8 as Windows-1252, if nothing of them is unlikely there; lines may differ."""
    text = place.whole("save it as UTF-8, or divide it").decode("utf-8", "surrogateescape")
    signs = set(text)
    if unlikely := [sign for sign in signs if _WINDOWS.get(ord(sign), "°") not in _USUAL]:
        line = text.count("\n", 0, min(map(text.index, unlikely))) + 1
        said = f"{place.name} is not UTF-8, nor does line {line} look like Windows-1252: {REMEDY}"
        raise DataError(said, code="encoding")
    mixed = any(not sign.isascii() and ord(sign) not in _WINDOWS for sign in signs)
    return f"Windows-1252{' and UTF-8' if mixed else ''}", replace(place, content=text.translate(_WINDOWS).encode())
