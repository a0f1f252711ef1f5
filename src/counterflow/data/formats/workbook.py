"""Sheets of workbooks: which of them are tables, and their columns. The header is found as in a text."""

from __future__ import annotations

import gzip
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import polars

from counterflow.data import options, places
from counterflow.data.headers import HEADER_SEARCH, SAMPLE_LINES, header_line, layout
from counterflow.data.notes import told
from counterflow.data.options import TableOptions
from counterflow.data.places import Place
from counterflow.data.source import Source
from counterflow.errors import DataError

_LARGEST = 4 << 30  # bytes of all unpacked parts
_MOST_CELLS = 1 << 27  # rows times columns of a sheet: empty cells between filled ones take memory, too
_CELL_BYTES = 64  # of memory that a cell takes while a sheet is read, at most
_CELL = re.compile(rb"""\sr\s*=\s*["']([A-Z]{1,3})(\d{1,9})["']""")  # the reference of a cell, such as r="AB12"
_SAVE_AS_CSV = "open it in a spreadsheet program and save the sheet as CSV in UTF-8"
_MOST_SHEETS = 200
_MOST_NAMED = 20


def read(place: Place, wanted: TableOptions) -> Iterator[Source]:
    """The sheet that is wanted, by name or number from 1 on; else all with a column of times, or else the first.

    Sheets that were left out unasked are named by the first table.
    """
    options.need("fastexcel", f"{place.name}: spreadsheets are", "excel", f", or {_SAVE_AS_CSV}")
    _refuse_too_large(place)
    titles = _titles(place)
    if wanted.sheet is not None or len(titles) == 1:
        title = titles[0] if wanted.sheet is None else _chosen(place, titles, wanted.sheet)
        yield _sheet(place, title, wanted)
        return
    found: dict[str, Source] = {}
    times: dict[str, str] = {}
    for title in titles[:_MOST_SHEETS]:
        with suppress(DataError):  # a cover, a chart, a legend
            each = _sheet(place, title, wanted)
            if (time := each.time(wanted.time)) is not None:
                found[title] = each
                times[title] = time
    found = found or {titles[0]: _sheet(place, titles[0], wanted)}
    common = next(iter(times.values()), "")  # the column of times has one name in all of them
    left = [title for title in titles if title not in found]
    named = options.some([repr(title[:40]) for title in left], _MOST_NAMED)
    notes = (told("sheets", file=place.name, count=len(left), titles=named),) if left else ()
    for title, sheet in found.items():
        table = sheet.renamed({times.get(title, common): common})
        if len(found) > 1:
            table = replace(table, name=f"{place.name}, sheet {title}", sheet=title)
        yield replace(table, notes=notes)
        notes = ()


def _chosen(place: Place, titles: list[str], wanted: str) -> str:
    """The title of a sheet, by its name or its number from 1 on."""
    if wanted in titles:
        return wanted
    near = [title for title in titles if title.strip().casefold() == wanted.strip().casefold()]
    if len(near) == 1:
        return near[0]
    if wanted.strip().isdigit() and 1 <= int(wanted) <= len(titles):
        return titles[int(wanted) - 1]
    raise DataError(f"{place.name} has no sheet {wanted!r:.60}; its sheets are {options.some(titles)}")


def _titles(place: Place) -> list[str]:
    import fastexcel

    try:
        return list(fastexcel.read_excel(place.path if place.content is None else place.content).sheet_names)
    except Exception as error:  # of the reader's own family
        raise DataError(f"{place.name} is damaged or no .xlsx file: {_SAVE_AS_CSV}") from error


def _sheet(place: Place, title: str, wanted: TableOptions) -> Source:
    """One sheet as a table."""
    most = wanted.skip_rows + HEADER_SEARCH + SAMPLE_LINES
    rows = [[cell or "" for cell in row] for row in _cells(place, title, dtypes="string", n_rows=most).rows()]
    lines = ["\t".join(row).rstrip("\t") if wanted.header_word is None else " ".join(row) for row in rows]
    first = header_line(lines, wanted.skip_rows, wanted.header_word)
    if first >= len(lines):
        raise DataError(f"{place.name} has {len(lines)} rows: there is no header after {first} skipped ones")
    width = max((k for k, cell in enumerate(rows[first], 1) if cell), default=0)
    names, measures, between = layout([row[:width] for row in rows[first:]], wanted, place.name)
    start = first + 1 + between
    frame = _cells(place, title, skip_rows=start)
    if len(frame) and polars.String in frame.dtypes:  # a column with text has its numbers rounded: take them as numbers
        exact = _cells(place, title, dtypes="float", skip_rows=start)
        frame = frame.with_columns(
            polars.when(column.cast(polars.Float64, strict=False).is_not_null())
            .then(exact.get_column(column.name).cast(polars.String))
            .otherwise(column)
            .alias(column.name)
            for column in frame.iter_columns()
            if column.dtype == polars.String
        )
    frame = frame.with_columns(polars.selectors.temporal().cast(polars.String))
    filled = polars.LazyFrame({name: frame.to_series(k) for k, name in enumerate(names)} if len(frame) else {})
    columns = filled if len(frame) else polars.LazyFrame(schema=dict.fromkeys(names, polars.String))
    return Source(name=place.name, names=names, frame=columns, kind="spreadsheet", measures=measures)


def _cells(place: Place, title: str, skip_rows: int = 0, **wanted: Any) -> polars.DataFrame:
    try:
        return polars.read_excel(
            place.source, sheet_name=title, engine="calamine", has_header=False, infer_schema_length=None,
            raise_if_empty=False, drop_empty_rows=False, drop_empty_cols=False,
            read_options={"skip_rows": skip_rows, **wanted},
        )  # fmt: skip
    except Exception as error:  # of the reader's own family
        raise DataError(f"{place.name} is damaged or no .xlsx file: {_SAVE_AS_CSV}") from error


def _refuse_too_large(place: Place) -> None:
    """Refuse a workbook that would not fit into memory: by what its parts unpack to, not by what they say they do."""
    room = int(places.SHARE * places.memory_left())
    left = most = min(_LARGEST, room)
    cells, rows, columns = min(_MOST_CELLS, room // _CELL_BYTES), 1, b"A"
    try:
        with zipfile.ZipFile(place.source) as archive:
            for member in archive.infolist():
                before = b""
                for chunk in places.chunks_of(archive, member, left, place.name, most, _SAVE_AS_CSV):
                    left -= len(chunk)
                    found = _CELL.findall(before + chunk)
                    rows = max(rows, *map(int, {number for _, number in found}), 1)
                    columns = max({columns, *(letters for letters, _ in found)}, key=lambda text: (len(text), text))
                    before = chunk[-32:]
    except places.DAMAGED as error:
        raise DataError(f"{place.name} is damaged or no .xlsx file: {_SAVE_AS_CSV}") from error
    width = 0
    for letter in columns:
        width = 26 * width + letter - ord("A") + 1
    if rows * width > cells:
        raise DataError(
            f"{place.name} reaches to row {rows} and column {columns.decode()}, which are more than the {cells} cells "
            f"that there is room for: {_SAVE_AS_CSV}",
            code="too-large",
        )


# ---- writing

_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
_OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
_PACKAGE = "http://schemas.openxmlformats.org/package/2006"
_KIND = "application/vnd.openxmlformats-officedocument.spreadsheetml"
_HEAD = '<?xml version="1.0" encoding="UTF-8" standalone="yes"?>'


def write_rows(
    path: Path, rows: Sequence[Sequence[object]], separator: str = ",", end: str = "\n", encoding: str = "utf-8"
) -> Path:
    """Rows of cells as a workbook or a text, which may be packed: what the name says."""
    if path.suffix == ".xlsx":
        write_workbook(path, {"log": rows})
    else:
        data = "".join(separator.join(map(str, row)) + end for row in rows).encode(encoding)
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
    return path


def write_workbook(path: Path, sheets: Mapping[str, Sequence[Sequence[object]]]) -> None:
    """The least that is a workbook: sheets of rows by title, what looks like a number as one, all else as text."""
    part = f"<Override PartName='/xl/{{}}.xml' ContentType='{_KIND}.{{}}+xml'/>"
    link = f"<Relationship Id='r{{}}' Type='{_OFFICE}/{{}}' Target='{{}}'/>"
    links = f"{_HEAD}<Relationships xmlns='{_PACKAGE}/relationships'>{{}}</Relationships>"
    numbered = list(enumerate(sheets, 1))
    parts = {
        "[Content_Types].xml": f"{_HEAD}<Types xmlns='{_PACKAGE}/content-types'><Default Extension='rels' ContentType="
        "'application/vnd.openxmlformats-package.relationships+xml'/>"
        + part.format("workbook", "sheet.main")
        + "".join(part.format(f"worksheets/sheet{k}", "worksheet") for k, _ in numbered)
        + "</Types>",
        "_rels/.rels": links.format(link.format(1, "officeDocument", "xl/workbook.xml")),
        "xl/workbook.xml": f"{_HEAD}<workbook xmlns='{_MAIN}' xmlns:r='{_OFFICE}'><sheets>"
        + "".join(f"<sheet name={quoteattr(title)} sheetId='{k}' r:id='r{k}'/>" for k, title in numbered)
        + "</sheets></workbook>",
        "xl/_rels/workbook.xml.rels": links.format(
            "".join(link.format(k, "worksheet", f"worksheets/sheet{k}.xml") for k, _ in numbered)
        ),
    }
    for (k, _), rows in zip(numbered, sheets.values(), strict=True):
        cells = "".join(f"<row>{''.join(map(_cell, row))}</row>" for row in rows)
        sheet = f"{_HEAD}<worksheet xmlns='{_MAIN}'><sheetData>{cells}</sheetData></worksheet>"
        parts[f"xl/worksheets/sheet{k}.xml"] = sheet
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in parts.items():
            archive.writestr(name, text)


def _cell(value: object) -> str:
    text = str(value)
    if _NUMBER.fullmatch(text):
        return f"<c><v>{text}</v></c>"
    return f"<c t='inlineStr'><is><t xml:space='preserve'>{escape(text)}</t></is></c>" if text else "<c/>"
