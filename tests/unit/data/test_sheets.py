"""Workbooks: cells as spreadsheet programs write them, and several sheets: chosen, parts of one log, or units."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest

import counterflow as cf
from counterflow.data import inspect, open_table, places
from counterflow.data.formats.workbook import write_workbook

Rows = list[list[object]]


def book(path: Path, sheets: dict[str, Rows]) -> Path:
    write_workbook(path, sheets)
    return path


def log(first: int, count: int, *names: str, size: float = 1.0) -> Rows:
    """Rows one minute apart."""
    times = [f"2024-05-01 06:{k:02d}" for k in range(first, first + count)]
    return [["time", *names], *([t, *(size * (k + n) for n in range(len(names)))] for k, t in enumerate(times))]


COVER: Rows = [["Export of the north plant"], ["made by", "somebody"]]


def rewritten(path: Path, rows: str, **parts: str) -> Path:
    """A workbook of one sheet with these rows in XML, and other parts by name."""
    write_workbook(path, {"log": []})
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    with zipfile.ZipFile(path) as archive:
        found = {name: archive.read(name).decode() for name in archive.namelist()}
    found["xl/worksheets/sheet1.xml"] = f'<worksheet xmlns="{main}"><sheetData>{rows}</sheetData></worksheet>'
    links = "xl/_rels/workbook.xml.rels"
    kind = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    for name, text in parts.items():
        found[f"xl/{name}.xml"] = text.replace("MAIN", main)
        link = f"<Relationship Id='{name}' Type='{kind}/{name}' Target='{name}.xml'/></Relationships>"
        found[links] = found[links].replace("</Relationships>", link)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in found.items():
            archive.writestr(name, text)
    return path


def cell(place: str, value: object, kind: str = "n", style: int = 0) -> str:
    return f'<c r="{place}" t="{kind}" s="{style}"><v>{value}</v></c>'


def flow_rows(values: list[object], first: int = 1) -> str:
    """A log with dates that have the format of a date."""
    rows = [f'<row r="{first}">{cell(f"A{first}", "time", "str")}{cell(f"B{first}", "flow", "str")}</row>']
    for k, value in enumerate(values, first + 1):
        date = cell(f"A{k}", 45413.25 + (k - first - 1) / 86400, style=1)
        rows.append(f'<row r="{k}">{date}{cell(f"B{k}", value, "str" if isinstance(value, str) else "n")}</row>')
    return "".join(rows)


DATES = '<styleSheet xmlns="MAIN"><cellXfs count="2"><xf numFmtId="0"/><xf numFmtId="22"/></cellXfs></styleSheet>'


def test_shared_strings_and_gaps(tmp_path: Path) -> None:
    """As spreadsheet programs write them: text in a table of its own, empty cells left out, dates as numbers."""
    rows = (
        f'<row r="1">{cell("A1", 0, "s")}{cell("C1", 1, "s")}</row>'
        f'<row r="2">{cell("A2", 45413.25)}{cell("C2", 3.5)}</row>'
        f'<row r="4">{cell("A4", 45413.5)}{cell("C4", 7, "str")}</row>'
    )
    shared = '<sst xmlns="MAIN"><si><t>time</t></si><si><r><t>fl</t></r><r><t>ow</t></r></si></sst>'
    path = rewritten(tmp_path / "a.xlsx", rows, sharedStrings=shared)
    recording, preparation = cf.read_logs(path, {"pump": {"outputs": "flow"}})
    assert recording["pump"].y.ravel().tolist() == [3.5, 7.0]
    assert (preparation.start, preparation.dt) == ("2024-05-01 06:00:00", 21600.0)
    assert "untimed" in [step.name for step in preparation.steps]


def test_numbers_keep_all_their_digits_and_dates_are_times(tmp_path: Path) -> None:
    """Also beside text, where the reader would round them to nine digits after the point."""
    for odd, words in ((3.0, {}), ("Bad", {"Bad": 1})):
        rows = flow_rows([1.23456789012345e-8, odd, 0.12345678901234567])
        table = open_table(rewritten(tmp_path / "a.xlsx", rows, styles=DATES))
        flow = table.numbers(["flow"])["flow"]
        np.testing.assert_array_equal(flow.values[[0, 2]], [1.23456789012345e-8, 0.12345678901234567])
        assert flow.words == words
        assert table.times is not None
        assert np.diff(table.times.nanoseconds).tolist() == [10**9, 10**9]


def test_rows_before_the_header(tmp_path: Path) -> None:
    path = rewritten(tmp_path / "a.xlsx", flow_rows([1, 2, 3], first=4))  # empty ones count
    assert open_table(path, skip_rows=3).names == open_table(path, header_word="Flow").names == ("time", "flow")
    with pytest.raises(cf.DataError, match="has 7 rows: there is no header after 50"):
        open_table(path, skip_rows=50)
    titled = book(tmp_path / "b.xlsx", {"log": [["", "title"], *log(0, 3, "flow")]})
    assert open_table(titled, skip_rows=1).names == open_table(titled, header_word="time").names == ("time", "flow")


def test_workbooks_that_are_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One cell far away would be filled up with empty ones by the reader; and packed text may be huge."""
    far = f'<row r="1048576">{cell("XFD1048576", 1)}</row>'
    with pytest.raises(cf.DataError, match=r"a\.xlsx reaches to row 1048576 and column XFD"):
        open_table(rewritten(tmp_path / "a.xlsx", flow_rows([1, 2, 3]) + far))
    many = rewritten(tmp_path / "b.xlsx", flow_rows([1, 2, 3]) + f'<row r="3000">{cell("Z3000", 1)}</row>')
    shared = '<sst xmlns="MAIN"><si><t>' + "x" * (8 << 20) + "</t></si></sst>"
    huge = rewritten(tmp_path / "c.xlsx", flow_rows([1, 2, 3]), sharedStrings=shared)
    open_table(many)
    monkeypatch.setattr(places, "memory_left", lambda: 8 << 20)
    for path, said in ((many, "room for"), (huge, "c.xlsx holds more than the 4194304 bytes")):
        with pytest.raises(cf.DataError, match=said) as caught:
            open_table(path)
        assert caught.value.code == "too-large"


@pytest.mark.parametrize(("name", "content"), [("other.xml", "<a/>"), ("xl/worksheets/sheet1.xml", "<a><b>")])
def test_damaged_workbooks(tmp_path: Path, name: str, content: str) -> None:
    with zipfile.ZipFile(tmp_path / "a.xlsx", "w") as archive:
        archive.writestr(name, content)
    with pytest.raises(cf.DataError, match=r"a\.xlsx"):
        open_table(tmp_path / "a.xlsx")


# ---- several sheets


@pytest.mark.parametrize(
    ("sheets", "channels", "rows"),
    [
        ({"About": COVER, "Log": log(0, 5, "flow", "level")}, ("flow", "level"), 5),  # a cover is passed over
        ({"May 1": log(0, 5, "flow"), "May 2": log(5, 7, "flow")}, ("flow",), 12),  # parts of one log
        ({"boiler": log(0, 5, "flow"), "turbine": log(0, 5, "power")}, ("flow", "power"), 5),  # side by side
    ],
)
def test_sheets_are_one_table(tmp_path: Path, sheets: dict[str, Rows], channels: tuple[str, ...], rows: int) -> None:
    table = open_table(book(tmp_path / "a.xlsx", sheets))
    assert (table.channels, table.rows) == (channels, rows)


@pytest.mark.parametrize("sheet", ["Second", "second", "2"])
def test_a_sheet_by_its_name_or_number(tmp_path: Path, sheet: str) -> None:
    path = book(tmp_path / "a.xlsx", {"First": log(0, 5, "flow"), "Second": log(0, 4, "level")})
    assert open_table(path, sheet=sheet).channels == ("level",)
    with pytest.raises(cf.CounterflowError, match="First, Second"):
        open_table(path, sheet="Third")


def test_sheets_of_units_with_the_same_channels(tmp_path: Path) -> None:
    sheets = {"boiler": log(0, 9, "valve", "flow"), "turbine": log(0, 9, "valve", "flow", size=2.0)}
    table = open_table(book(tmp_path / "a.xlsx", sheets))
    assert set(table.channels) == {"boiler.valve", "boiler.flow", "turbine.valve", "turbine.flow"}
    units = {name: {"tags": f"{name}.*", "inputs": "*.valve"} for name in sheets}
    recording, _ = cf.read_logs(book(tmp_path / "b.xlsx", sheets), units)
    np.testing.assert_array_equal(recording["turbine"].u[:, 0], 2.0 * np.arange(9))


@pytest.mark.parametrize("names", [("Date/Time", "Date/Time"), ("Date/Time", "Messzeit"), ("Timestamp", "Messzeit")])
def test_the_column_of_times_is_found_by_what_it_holds(tmp_path: Path, names: tuple[str, str]) -> None:
    sheets = {"boiler": log(0, 5, "flow"), "turbine": log(0, 5, "power"), "About": COVER}
    for sheet, name in zip(("boiler", "turbine"), names, strict=True):
        sheets[sheet][0][0] = name
    assert [channel.name for channel in inspect(book(tmp_path / "a.xlsx", sheets)).channels] == ["flow", "power"]


def test_sheets_that_are_left_out_are_named(tmp_path: Path) -> None:
    legend: Rows = [["tag", "meaning"], ["flow", "of steam"]]
    path = book(tmp_path / "a.xlsx", {"About": COVER, "Log": log(0, 5, "flow"), "Legend": legend})
    _, preparation = cf.read_logs(path, {"boiler": {"outputs": "flow"}})
    said = "2 sheets of a.xlsx left out, because no column of times was found there: 'About', 'Legend'."
    assert said in preparation.doubts
    assert said in inspect(path).sentences
    assert open_table(path, sheet="Log").notes == ()
