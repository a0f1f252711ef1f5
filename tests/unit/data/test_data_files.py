"""Tables of every kind: separators, decimal signs, headers, packed files; and one clear error for what is broken."""

from __future__ import annotations

import gzip
import io
import zipfile
from pathlib import Path

import numpy as np
import polars
import pytest

import counterflow as cf
from counterflow.data import inspect, open_table, options, places, read_logs
from counterflow.data.formats.workbook import write_workbook

ROWS = [["2024-05-01 06:00:00", "1.5", "10"], ["2024-05-01 06:00:01", "2.25", "20"], ["2024-05-01 06:00:02", "", "30"]]
UNITS = {"pump": {"outputs": ["flow", "level"]}}


def written(path: Path, separator: str = ",", header: str | None = None, decimal: str = ".", end: str = "\n") -> Path:
    lines = [separator.join(["time", "flow", "level"]) if header is None else header]
    lines += [separator.join(cell.replace(".", decimal) for cell in row) for row in ROWS]
    path.write_text(end.join(lines) + end, newline="")
    return path


def values(path: Path, **options: object) -> list[list[float]]:
    recording, _ = read_logs(path, UNITS, drop_constant=False, **options)
    return np.nan_to_num(recording["pump"].y, nan=-1.0).tolist()


EXPECTED = [[1.5, 10.0], [2.25, 20.0], [-1.0, 30.0]]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_separators_are_found(tmp_path: Path, separator: str, end: str) -> None:
    assert values(written(tmp_path / "a.csv", separator, end=end)) == EXPECTED


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_decimal_commas_are_found(tmp_path: Path, separator: str) -> None:
    path = written(tmp_path / "a.csv", separator, decimal=",")
    assert values(path) == EXPECTED
    assert "decimal comma" in open_table(path).files[0].kind


def test_options_win_over_what_would_be_found(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("time;flow,level;x\n0;1,2;3\n1;4,5;6\n")
    assert open_table(path).names == ("time", "flow,level", "x")
    assert open_table(path, separator=",").names == ("time;flow", "level;x")
    assert open_table(path).numbers(["flow,level"])["flow,level"].values.tolist() == [1.2, 4.5]
    assert open_table(path, decimal=".").numbers(["flow,level"])["flow,level"].odd == {"1,2": 1, "4,5": 1}


def test_byte_order_mark_blanks_and_quotes_in_the_header(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    text = '" Time ", flow ,"level"\n 2024-05-01 06:00 , 1.5 ,"10"\n"2024-05-01 06:01", 2 ,20\n'
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    table = open_table(path)
    assert (table.names, table.time_name) == (("Time", "flow", "level"), "Time")
    assert values(path) == [[1.5, 10.0], [2.0, 20.0]]


def test_gzip(tmp_path: Path) -> None:
    plain = written(tmp_path / "a.csv")
    packed = tmp_path / "a.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert values(packed) == EXPECTED


def test_lines_before_and_after_the_header_are_skipped(tmp_path: Path) -> None:
    path = written(tmp_path / "a.csv", header="Export of the historian\n\ntime,flow,level\n-,m3/h,cm")
    assert values(path, skip_rows=2, skip_after_header=1) == EXPECTED
    assert open_table(path, header_word="LEVEL").names == ("time", "flow", "level")


def test_parquet_and_frames(tmp_path: Path) -> None:
    frame = polars.DataFrame(
        {" time ": [0, 1, 2], "flow": [1.5, 2.25, None], "level": polars.Series([10, 20, 30], dtype=polars.Int16)}
    )
    frame.write_parquet(tmp_path / "a[1].parquet")
    assert values(tmp_path / "a[1].parquet") == EXPECTED
    assert values(frame) == EXPECTED  # type: ignore[arg-type]
    assert values(frame.lazy()) == EXPECTED  # type: ignore[arg-type]


def test_spreadsheets(tmp_path: Path) -> None:
    path = tmp_path / "a.xlsx"
    write_workbook(path, {"log": [["", "title"], ["time", "flow", "level"], *ROWS]})
    assert values(path, header_word="time") == EXPECTED
    assert values(path, skip_rows=1) == EXPECTED


def workbook(path: Path, sheets: dict[int, str], extra: dict[str, str] | None = None) -> Path:
    """A workbook of rows in XML, by the number of their file, in the order of the workbook."""
    main = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006/relationships"
    parts = {f"worksheet{k}": ("worksheet", f"worksheets/sheet{k}.xml") for k in sheets}
    parts |= {kind: (kind, f"{kind}.xml") for kind in extra or {}}
    listed = "".join(f'<sheet name="s{k}" sheetId="{k}" r:id="worksheet{k}"/>' for k in sheets)
    links = "".join(f'<Relationship Id="{i}" Type="{office}/{t}" Target="{to}"/>' for i, (t, to) in parts.items())
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(
            "_rels/.rels",
            f'<Relationships xmlns="{package}"><Relationship Id="a" Type="{office}/officeDocument" '
            'Target="xl/workbook.xml"/></Relationships>',
        )
        archive.writestr(
            "xl/workbook.xml", f'<workbook xmlns="{main}" xmlns:r="{office}"><sheets>{listed}</sheets></workbook>'
        )
        archive.writestr("xl/_rels/workbook.xml.rels", f'<Relationships xmlns="{package}">{links}</Relationships>')
        for k, rows in sheets.items():
            archive.writestr(
                f"xl/worksheets/sheet{k}.xml", f'<worksheet xmlns="{main}"><sheetData>{rows}</sheetData></worksheet>'
            )
        for kind, text in (extra or {}).items():
            archive.writestr(f"xl/{kind}.xml", text.replace("MAIN", main))
    return path


def cell(place: str, value: object, kind: str = "n", style: int = 0) -> str:
    return f'<c r="{place}" t="{kind}" s="{style}"><v>{value}</v></c>'


def test_shared_strings_and_gaps_in_spreadsheets(tmp_path: Path) -> None:
    """As spreadsheet programs write them: text in a table of its own, empty cells left out, dates as numbers."""
    rows = (
        f'<row r="1">{cell("A1", 0, "s")}{cell("C1", 1, "s")}</row>'
        f'<row r="2">{cell("A2", 45413.25)}{cell("C2", 3.5)}</row>'
        f'<row r="4">{cell("A4", 45413.5)}{cell("C4", 7, "str")}</row>'
    )
    shared = '<sst xmlns="MAIN"><si><t>time</t></si><si><r><t>fl</t></r><r><t>ow</t></r></si></sst>'
    path = workbook(tmp_path / "a.xlsx", {1: rows}, {"sharedStrings": shared})
    recording, preparation = read_logs(path, {"pump": {"outputs": "flow"}})
    assert recording["pump"].y.ravel().tolist() == [3.5, 7.0]
    assert (preparation.start, preparation.dt) == ("2024-05-01 06:00:00", 21600.0)
    assert any("without a time" in step.text for step in preparation.steps)


def table_rows(values: list[object], kinds: str = "nnn", first: int = 1) -> str:
    head = cell(f"A{first}", "time", "str") + cell(f"B{first}", "flow", "str")
    rows = [f'<row r="{first}">{head}</row>']
    for k, (value, kind) in enumerate(zip(values, kinds, strict=True)):
        line = first + 1 + k
        text = cell(f"B{line}", value, "str" if kind == "s" else "n")
        rows.append(f'<row r="{line}">{cell(f"A{line}", 45413.25 + k / 86400, style=1)}{text}</row>')
    return "".join(rows)


DATES = '<styleSheet xmlns="MAIN"><cellXfs count="2"><xf numFmtId="0"/><xf numFmtId="22"/></cellXfs></styleSheet>'


def test_sheets_are_counted_in_the_order_of_the_workbook(tmp_path: Path) -> None:
    sheets = {2: table_rows([1.5, 2.5, 4.5]), 1: table_rows([9, 8, 7])}
    path = workbook(tmp_path / "a.xlsx", sheets, {"styles": DATES})
    recording, preparation = read_logs(path, {"pump": {"outputs": "flow"}}, sheet="1")
    assert recording["pump"].y.ravel().tolist() == [1.5, 2.5, 4.5]
    assert (preparation.start, preparation.dt) == ("2024-05-01 06:00:00", 1.0)  # cells with the format of a date


def test_numbers_of_spreadsheets_keep_all_their_digits(tmp_path: Path) -> None:
    """Also beside text, where the reader would round them to nine digits after the point."""
    for name, kinds, odd in (("plain", "nnn", 3.0), ("mixed", "nsn", "Bad")):
        path = workbook(
            tmp_path / f"{name}.xlsx", {1: table_rows([1.23456789012345e-8, odd, 0.12345678901234567], kinds)}
        )
        flow = open_table(path).numbers(["flow"])["flow"]
        np.testing.assert_array_equal(flow.values[[0, 2]], [1.23456789012345e-8, 0.12345678901234567])
        assert flow.words == ({"Bad": 1} if name == "mixed" else {})


def test_empty_rows_before_the_header_count_as_rows(tmp_path: Path) -> None:
    path = workbook(tmp_path / "a.xlsx", {1: table_rows([1, 2, 3], first=4)})
    assert open_table(path, skip_rows=3).names == open_table(path, header_word="Flow").names == ("time", "flow")
    assert "has 7 rows: there is no header after 50" in refused(path, skip_rows=50)


def test_spreadsheets_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = workbook(tmp_path / "a.xlsx", {1: table_rows([1, 2, 3])})
    monkeypatch.setattr(options, "find_spec", lambda name: None)
    with pytest.raises(cf.DataError, match=r"pip install 'counterflow\[excel\]'") as caught:
        open_table(path)
    assert caught.value.code == "missing-extra"


def test_packed_files_that_unpack_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what is in them, whatever size the archive states, and by the memory that the machine has left."""
    assert 1 << 20 < places.memory_left() < 1 << 62
    monkeypatch.setattr(places, "memory_left", lambda: 2 << 20)
    shared = '<sst xmlns="MAIN"><si><t>' + "x" * (2 << 20) + "</t></si></sst>"
    book = workbook(tmp_path / "a.xlsx", {1: table_rows([1, 2, 3])}, {"sharedStrings": shared})
    assert "a.xlsx unpacks to more than the 1048576 bytes" in refused(book)
    with zipfile.ZipFile(book) as archive:
        member = archive.getinfo("xl/sharedStrings.xml")
    for size in (member.file_size.to_bytes(4, "little"),):  # the archive lies about it
        book.write_bytes(book.read_bytes().replace(size, (100).to_bytes(4, "little")))
    assert "a.xlsx unpacks to more than the 1048576 bytes" in refused(book)
    packed = tmp_path / "a.csv.gz"
    packed.write_bytes(gzip.compress(b"time,flow,level\n" + b"0,1,2\n" * (1 << 18)))
    assert "a.csv.gz unpacks to more than the 1048576 bytes" in refused(packed)


def test_a_sheet_with_one_cell_far_away(tmp_path: Path) -> None:
    """The reader would fill all that lies between with empty cells, and the process would die."""
    far = f'<row r="1048576">{cell("XFD1048576", 1)}</row>'
    path = workbook(tmp_path / "a.xlsx", {1: table_rows([1, 2, 3]) + far})
    assert "a.xlsx reaches to row 1048576 and column XFD" in refused(path)


def test_a_sheet_with_more_cells_than_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    far = f'<row r="30000">{cell("Z30000", 1)}</row>'
    path = workbook(tmp_path / "a.xlsx", {1: table_rows([1, 2, 3]) + far})
    open_table(path)
    monkeypatch.setattr(places, "memory_left", lambda: 64 << 20)
    with pytest.raises(cf.DataError, match="room for") as refused_now:
        open_table(path)
    assert refused_now.value.code == "too-large"


def test_several_files_are_one_table_in_time(tmp_path: Path) -> None:
    one, two = tmp_path / "june.csv", tmp_path / "may.csv"
    one.write_text("time,flow,level\n2024-06-01 00:00,3,30\n2024-06-01 00:01,4,40\n")
    two.write_text("time;level;flow\n2024-05-31 23:58;10;1\n2024-05-31 23:59;20;2\n")
    recording, preparation = read_logs([one, two], UNITS)
    assert recording["pump"].y.tolist() == [[1, 10], [2, 20], [3, 30], [4, 40]]
    assert preparation.rows_read == 4
    two.write_text("time;level;flov\n2024-05-31 23:58;10;1\n")
    with pytest.raises(cf.DataError, match=r"june.csv and may.csv have different columns: 'flov' stands only in may"):
        open_table([one, two])


# ---- text where numbers should be


def test_words_for_on_off_and_missing(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1, On \nBad Input,OFF\nn/a,open\n2.5,[-]\n")
    numbers = open_table(path).numbers(["a", "b"])
    np.testing.assert_array_equal(numbers["a"].values, [1.0, np.nan, np.nan, 2.5])
    np.testing.assert_array_equal(numbers["b"].values, [1.0, 0.0, 1.0, np.nan])
    assert numbers["a"].words == {"Bad Input": 1, "n/a": 1}
    assert numbers["a"].odd_count == numbers["b"].odd_count == 0


def test_other_text_is_refused_with_its_place_or_read_as_missing(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    lines = ["time,flow,level", *(f"{k},{k}.5,{2 * k}" for k in range(300)), "300,lovely,1", "301,lovely,2"]
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(cf.DataError, match=r"a.csv: column 'flow' holds 'lovely' in row 300 \(line 302\)"):
        read_logs(path, UNITS)
    recording, preparation = read_logs(path, UNITS, text="missing")
    assert np.isnan(recording["pump"].y[300:, 0]).all()
    assert not np.isnan(recording["pump"].y[:300]).any()
    assert "2 cells of text: treated as missing in flow (2)." in preparation.doubts


# ---- broken files: one clear error, never a traceback


def refused(path: object, **options: object) -> str:
    messages = []
    for look in (lambda: inspect(path, **options), lambda: read_logs(path, UNITS, **options)):
        with pytest.raises(cf.CounterflowError) as caught:
            look()
        assert "\n" not in str(caught.value)
        messages.append(str(caught.value))
    return messages[0]


BROKEN = [
    (b"", "is empty"),
    (b" \n\n ", "is empty"),
    (b"time,flow,level\n", "has a header but no rows"),
    (b"\x00\x01\x02garbage\xff\xfe" * 50, "zero bytes"),
    (b"\xff\xfet\x00i", "is not utf-16"),
    (b"time,flow,level\n0,1,2\n1,\xff,3\n", "is not UTF-8"),
    (b"time,flow,level\n0,1,2\n1,2,3,4\n", "a row has 4 cells, the header has 3; it begins with '1,2,3'"),
    (b"time,flow,level,flow\n0,1,2,3\n", "two columns called 'flow'"),
    (b"time,flow , flow\n0,1,2\n", "two columns called 'flow'"),
    (b"time,flow,level\n,1,2\n,2,3\n", "holds no time at all"),
]


@pytest.mark.parametrize(("content", "said"), BROKEN)
def test_broken_text(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    assert said in refused(tmp_path / "a.csv")


def test_a_header_without_time_and_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("flow,level\n")
    assert inspect(tmp_path / "a.csv").table.rows == 0
    with pytest.raises(cf.DataError, match="no rows"):
        read_logs(tmp_path / "a.csv", UNITS)


def test_rows_with_too_few_cells_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('time,flow,level\n0,1,2\n1,"2",3\n2,4\n3,5,6\n4')
    assert inspect(tmp_path / "a.csv").table.short_rows == 2
    recording, preparation = read_logs(tmp_path / "a.csv", UNITS)
    np.testing.assert_array_equal(recording["pump"].y, [[1, 2], [2, 3], [4, np.nan], [5, 6], [np.nan, np.nan]])
    assert "2 rows with fewer cells than the header" in preparation.doubts[0]


def test_quoted_separators_are_no_cells(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('time,flow,level,note\n0,1,2,"a, b, c"\n1,2,3,"d, e, f"\n')
    assert inspect(tmp_path / "a.csv")["note"].odd == {"a, b, c": 1, "d, e, f": 1}


def test_only_missing_values(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("time,flow,level\n0,NaN,\n1,nan,\n")
    assert [channel.kind for channel in inspect(tmp_path / "a.csv").channels] == ["empty", "empty"]
    with pytest.raises(cf.DataError, match="unit 'pump': no output is left: 'flow' is no value at all, and 1 more"):
        read_logs(tmp_path / "a.csv", UNITS)


def test_one_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("time,flow,level\n0,1,2\n")
    assert inspect(tmp_path / "a.csv").table.rows == 1
    with pytest.raises(cf.DataError, match="at least 2 are needed"):
        read_logs(tmp_path / "a.csv", UNITS)


def test_a_cut_off_gzip_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    text = "time,flow,level\n" + "".join(f"{k},{rng.random()},{rng.random()}\n" for k in range(40_000))
    whole = gzip.compress(text.encode())
    for size in (10, 3000, len(whole) // 2):
        (tmp_path / "a.csv.gz").write_bytes(whole[:size])
        assert "cut off or damaged" in refused(tmp_path / "a.csv.gz")
    (tmp_path / "a.csv.gz").write_bytes(b"no gzip at all")
    assert "cannot be read" in refused(tmp_path / "a.csv.gz")


def test_damaged_parquet(tmp_path: Path) -> None:
    for content in (b"", b"PAR1", b"PAR1" + bytes(100) + b"PAR1", b"no parquet"):
        (tmp_path / "a.parquet").write_bytes(content)
        assert "a.parquet cannot be read" in refused(tmp_path / "a.parquet")


def test_damaged_spreadsheets(tmp_path: Path) -> None:
    (tmp_path / "a.xlsx").write_bytes(b"PK no zip")
    assert "damaged or no .xlsx file" in refused(tmp_path / "a.xlsx")
    for name, content in (("other.xml", "<a/>"), ("xl/worksheets/sheet1.xml", "<a><b>")):
        with zipfile.ZipFile(tmp_path / "a.xlsx", "w") as archive:
            archive.writestr(name, content)
        assert "a.xlsx" in refused(tmp_path / "a.xlsx")


def test_what_is_no_table(tmp_path: Path) -> None:
    assert "there is no file" in refused(tmp_path / "none.csv")
    assert "is a folder without a table" in refused(tmp_path)
    (tmp_path / "a.docx").write_text("x")
    assert "a log is a .csv" in refused(tmp_path / "a.docx")
    for source in (3, [], [3], None):
        assert "give a path" in refused(source)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"separator": ";;"}, "separator is ';;': give one character"),
        ({"decimal": ";"}, "decimal is ';': give '.' or ','"),
        ({"decimal": ","}, "decimal and separator are both ','"),
        ({"skip_rows": -1}, "skip_rows is -1: give a whole number"),
        ({"skip_rows": 900}, "has no header after 900 skipped lines"),
        ({"time": "clock"}, "a.csv has no time column 'clock'; its columns are time, flow, level"),
        ({"time": 3}, "time is 3: give text"),
        ({"day_first": "yes"}, "day_first is 'yes': give true or false"),
        ({"timezone": "Mars/Base"}, "timezone is 'Mars/Base', which is no known zone"),
        ({"time_format": "%Q"}, "time_format '%Q'"),
    ],
)  # fmt: skip
def test_options_that_cannot_be(tmp_path: Path, options: dict[str, object], said: str) -> None:
    assert said in refused(written(tmp_path / "a.csv"), **options)


def test_ten_thousand_columns(tmp_path: Path) -> None:
    count = 10_000
    names = ["time", *(f"u_{k}" for k in range(count))]
    rows = [[str(t), *(str(k + t) for k in range(count))] for t in range(3)]
    (tmp_path / "a.csv").write_text("\n".join(",".join(row) for row in [names, *rows]) + "\n")
    recording, _ = read_logs(tmp_path / "a.csv", {"u": {"outputs": ["u_0", "u_9999"]}})
    assert recording["u"].y.tolist() == [[0, 9999], [1, 10000], [2, 10001]]


# ---- only what is wanted is read


def test_parquet_columns_that_are_not_wanted_are_not_read(tmp_path: Path) -> None:
    """The bytes of one column are destroyed: all others can still be read, that one cannot."""
    rows = 5000
    rng = np.random.default_rng(1)
    frame = polars.DataFrame({"time": np.arange(rows), "a_x": rng.random(rows), "b_x": rng.random(rows)})
    whole = io.BytesIO()
    frame.write_parquet(whole, compression="uncompressed", statistics=False)
    data = bytearray(whole.getvalue())
    column = frame.get_column("b_x").to_numpy().tobytes()
    at = bytes(data).find(column[:64])
    assert at > 0
    data[at - 24 : at + len(column)] = bytes(len(column) + 24)  # the end of its page's header, too
    (tmp_path / "a.parquet").write_bytes(data)
    recording, _ = read_logs(tmp_path / "a.parquet", {"a": {"tags": "a_*"}})
    np.testing.assert_array_equal(recording["a"].y[:, 0], frame.get_column("a_x").to_numpy())
    with pytest.raises(cf.DataError, match="cannot be read"):
        read_logs(tmp_path / "a.parquet", {"b": {"tags": "b_*"}})


@pytest.mark.parametrize("name", ["", "Zeitstempel", "Collected At"])
def test_a_column_of_dates_is_the_time_whatever_it_is_called(tmp_path: Path, name: str) -> None:
    rows = "".join(f"01.05.2024 06:{k:02d};{k},5\n" for k in range(20))
    (tmp_path / "a.csv").write_text(f"{name};flow\n{rows}", encoding="utf-8")
    table = open_table(tmp_path / "a.csv", day_first=True)
    assert table.channels == ("flow",)
    recording, _ = read_logs(tmp_path / "a.csv", {"pump": {"outputs": "flow"}}, day_first=True)
    assert (recording.dt, recording.rows) == (60.0, 20)


def test_two_columns_of_dates_are_not_guessed(tmp_path: Path) -> None:
    rows = "".join(f"2024-05-01 06:{k:02d},2024-05-02 06:{k:02d},{k}\n" for k in range(20))
    (tmp_path / "a.csv").write_text(f"begun,ended,flow\n{rows}", encoding="utf-8")
    assert open_table(tmp_path / "a.csv").time_name is None
