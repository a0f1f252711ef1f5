"""Workbooks of several sheets: the one that is chosen, parts of one log, or units side by side."""

from __future__ import annotations

import zipfile
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np
import pytest

import counterflow as cf
from counterflow.data import inspect, open_table

MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
PACKAGE = "http://schemas.openxmlformats.org/package/2006/relationships"


def book(path: Path, sheets: dict[str, list[list[object]]]) -> Path:
    """A workbook of these sheets, in order."""

    def row(cells: list[object]) -> str:
        made = [
            f"<c><v>{cell}</v></c>"
            if isinstance(cell, (int, float))
            else f'<c t="inlineStr"><is><t>{escape(str(cell))}</t></is></c>'
            for cell in cells
        ]
        return f"<row>{''.join(made)}</row>"

    listed = "".join(f'<sheet name="{n}" sheetId="{k}" r:id="r{k}"/>' for k, n in enumerate(sheets, 1))
    links = "".join(
        f'<Relationship Id="r{k}" Type="{OFFICE}/worksheet" Target="worksheets/sheet{k}.xml"/>'
        for k in range(1, len(sheets) + 1)
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "_rels/.rels",
            f'<Relationships xmlns="{PACKAGE}"><Relationship Id="a" Type="{OFFICE}/officeDocument" '
            'Target="xl/workbook.xml"/></Relationships>',
        )
        archive.writestr(
            "xl/workbook.xml", f'<workbook xmlns="{MAIN}" xmlns:r="{OFFICE}"><sheets>{listed}</sheets></workbook>'
        )
        archive.writestr("xl/_rels/workbook.xml.rels", f'<Relationships xmlns="{PACKAGE}">{links}</Relationships>')
        for k, rows in enumerate(sheets.values(), 1):
            data = "".join(map(row, rows))
            archive.writestr(
                f"xl/worksheets/sheet{k}.xml", f'<worksheet xmlns="{MAIN}"><sheetData>{data}</sheetData></worksheet>'
            )
    return path


def log(first: int, count: int, *names: str, size: float = 1.0) -> list[list[object]]:
    """Rows one minute apart."""
    times = [f"2024-05-01 06:{k:02d}" for k in range(first, first + count)]
    return [["time", *names], *([t, *(size * (k + n) for n in range(len(names)))] for k, t in enumerate(times))]


COVER: list[list[object]] = [["Export of the north plant"], ["made by", "somebody"]]


def test_a_cover_before_the_log_is_passed_over(tmp_path: Path) -> None:
    table = open_table(book(tmp_path / "a.xlsx", {"About": COVER, "Log": log(0, 5, "flow", "level")}))
    assert (table.channels, table.rows) == (("flow", "level"), 5)


@pytest.mark.parametrize("sheet", ["Second", "second", "2"])
def test_a_sheet_by_its_name_or_number(tmp_path: Path, sheet: str) -> None:
    path = book(tmp_path / "a.xlsx", {"First": log(0, 5, "flow"), "Second": log(0, 4, "level")})
    assert open_table(path, sheet=sheet).channels == ("level",)
    with pytest.raises(cf.CounterflowError, match="First, Second"):
        open_table(path, sheet="Third")


def test_sheets_of_one_log_follow_each_other(tmp_path: Path) -> None:
    table = open_table(book(tmp_path / "a.xlsx", {"May 1": log(0, 5, "flow"), "May 2": log(5, 7, "flow")}))
    assert (table.channels, table.rows) == (("flow",), 12)


def test_sheets_with_other_channels_stand_side_by_side(tmp_path: Path) -> None:
    table = open_table(book(tmp_path / "a.xlsx", {"boiler": log(0, 5, "flow"), "turbine": log(0, 5, "power")}))
    assert (table.channels, table.rows) == (("flow", "power"), 5)


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
    found = inspect(book(tmp_path / "a.xlsx", sheets))
    assert [channel.name for channel in found.channels] == ["flow", "power"]
    assert "1 sheet of a.xlsx left out, because no column of times was found there: 'About'." in found.sentences


def test_sheets_that_are_left_out_are_named(tmp_path: Path) -> None:
    legend: list[list[object]] = [["tag", "meaning"], ["flow", "of steam"]]
    path = book(tmp_path / "a.xlsx", {"About": COVER, "Log": log(0, 5, "flow"), "Legend": legend})
    _, preparation = cf.read_logs(path, {"boiler": {"outputs": "flow"}})
    assert any("2 sheets" in doubt and "'About', 'Legend'" in doubt for doubt in preparation.doubts)
    assert open_table(path, sheet="Log").notes == ()


def test_a_sheet_of_a_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("time,flow\n0,1\n1,2\n")
    with pytest.raises(cf.CounterflowError, match="no sheets"):
        open_table(tmp_path / "a.csv", sheet="log")
