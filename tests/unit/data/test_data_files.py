"""Tables as historians, spreadsheets and people make them are read; what is broken is refused in one sentence."""

from __future__ import annotations

import gzip
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import polars
import pytest

import counterflow as cf
from counterflow.data import inspect, open_table, options, places, read_logs

UNITS = {"pump": {"outputs": ["flow", "level"]}}
ROWS = [["2024-05-01 06:00:00", "1.5", "10"], ["2024-05-01 06:00:01", "2.25", "20"], ["2024-05-01 06:00:02", "", "30"]]
EXPECTED = {"flow": [1.5, 2.25, None], "level": [10.0, 20.0, 30.0]}


def read(source: object, **options: object) -> dict[str, list[float | None]]:
    """Every channel of a table as numbers, None where one is missing."""
    table = open_table(source, **options)
    return {n: [None if v != v else v for v in found.values.tolist()] for n, found in table.batches(table.channels)}


def log(separator: str = ",", decimal: str = ".", end: str = "\n", header: str = "time,flow,level") -> bytes:
    lines = [header.replace(",", separator), *(separator.join(row).replace(".", decimal) for row in ROWS)]
    return (end.join(lines) + end).encode()


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


GERMAN = "Zeit;FIC-101.PV [m³/h];TI-102 [°C]\n01.11.2024 06:00;8,5;20\n01.11.2024 06:01;8,6;21\n"
PREAMBLE = (
    "Export of the historian\nSite: north; period: November\n\nTime;FIC-101.PV;LI-102.PV\n;feed;level\n;m3/h;m\n"
    "2024-11-01 06:00;8,5;1,0\n2024-11-01 06:01;8,6;1,1\n"
)
READ: dict[str, tuple[Any, ...]] = {  # content, what is read, and perhaps options
    "mark, blanks, quotes": (
        b'\xef\xbb\xbf" Time ", flow ,"level"\n 2024-05-01 06:00 , 1.5 ,"10"\n"2024-05-01 06:01", 2 ,20\n',
        {"flow": [1.5, 2.0], "level": [10.0, 20.0]},
    ),
    "lines that are skipped": (
        b"Export of the historian\n\n" + log().replace(b"level\n", b"level\n-,m3/h,cm\n"), EXPECTED,
        {"skip_rows": 2, "skip_after_header": 1},
    ),
    "separator or decimal comma": ("time;a,b;x\n0;1,2;3\n1;4,5;6\n", {"a,b": [1.2, 4.5], "x": [3.0, 6.0]}),
    "lines before the header, rows below it": (PREAMBLE, {"FIC-101.PV": [8.5, 8.6], "LI-102.PV": [1.0, 1.1]}),
    "titles of groups above the header": (
        ",P1,,\ntime,FIT101,LIT101,MV101\n0,0.5,0,1\n1,1.5,1,0\n2,2.5,2,1\n",
        {"FIT101": [0.5, 1.5, 2.5], "LIT101": [0.0, 1.0, 2.0], "MV101": [1.0, 0.0, 1.0]},
    ),
    "thousands": (
        'time,power,flow\n0,"1,234.5","0,5"\n1,"12,345","1,25"\n2,999,"2"\n',
        {"power": [1234.5, 12345.0, 999.0], "flow": [0.5, 1.25, 2.0]},
    ),
    "thousands in German": (
        "time;power;flow\n0;1.234,5;1,5\n1;12.345;2,25\n2;999;2\n",
        {"power": [1234.5, 12345.0, 999.0], "flow": [1.5, 2.25, 2.0]},
    ),
    "thousands in Swiss": (
        "time;power;heat\n0;1 234,5;1'000,5\n1;12 345,0;2'000\n",
        {"power": [1234.5, 12345.0], "heat": [1000.5, 2000.0]},
    ),
    "words": (
        "time,a,b\n0,1, On \n1,Bad Input,OFF\n2,n/a,open\n3,2.5,[-]\n",
        {"a": [1.0, None, None, 2.5], "b": [1.0, 0.0, 1.0, None]},
    ),
    "given encoding": (
        "時刻,流量\n0,1.5\n1,2.5\n".encode("shift_jis"), {"流量": [1.5, 2.5]},
        {"encoding": "shift_jis", "time": "時刻"},
    ),
}  # fmt: skip
for separator in ",;\t|":
    READ |= {f"{separator!r} and {end!r}": (log(separator, end=end), EXPECTED) for end in ("\n", "\r\n")}
    READ |= {f"{separator!r}, decimal comma": (log(separator, ","), EXPECTED)} if separator != "," else {}
for name in ("", "Zeitstempel", "Collected At"):
    dates = "".join(f"01.05.2024 06:0{k};{k},5\n" for k in range(5))
    READ[f"dates called {name!r}"] = (f"{name};flow\n{dates}", {"flow": [k + 0.5 for k in range(5)]})
for row, a, b in (("Bad,1", None, 1.0), (",", None, None), ("No Data,No Data", None, None), ("open,2", 1.0, 2.0)):
    text = f"time,a,b\n2024-11-01 05:59,{row}\n2024-11-01 06:00,1,2\n2024-11-01 06:01,2,3\n"
    READ[f"no row of units: {row}"] = (text, {"a": [a, 1.0, 2.0], "b": [b, 2.0, 3.0]})


@pytest.mark.parametrize("case", READ)
def test_texts(tmp_path: Path, case: str) -> None:
    content, expected, *given = READ[case]
    data = content if isinstance(content, bytes) else content.encode()
    (tmp_path / "a.csv").write_bytes(data)
    assert read(tmp_path / "a.csv", **dict(*given)) == expected
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(data))
    assert read(tmp_path / "a.csv.gz", **dict(*given)) == expected


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-16-le"])
def test_encodings_are_found_and_units_of_measure_kept(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "plant.csv").write_bytes(GERMAN.encode(encoding))
    recording, _ = read_logs(tmp_path / "plant.csv", {"plant": ["FIC-101.PV*", "TI-102*"]})
    assert recording["plant"].y.tolist() == [[8.5, 20.0], [8.6, 21.0]]
    assert [(c.name, c.unit) for c in recording["plant"].unit.outputs] == [("FIC-101.PV", "m³/h"), ("TI-102", "°C")]


def test_what_is_told_of_a_layout(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(log(";", ","))
    assert open_table(tmp_path / "a.csv").files[0].kind == "text with semicolon, decimal comma"
    (tmp_path / "b.csv").write_text(PREAMBLE)
    assert open_table(tmp_path / "b.csv").measures == {"FIC-101.PV": "m3/h", "LI-102.PV": "m"}
    (tmp_path / "c.csv").write_text("time;flow,level;x\n0;1,2;3\n1;4,5;6\n")
    assert open_table(tmp_path / "c.csv", separator=",").names == ("time;flow", "level;x")
    odd = open_table(tmp_path / "c.csv", decimal=".").numbers(["flow,level"])["flow,level"]
    assert odd.odd == {"1,2": 1, "4,5": 1}
    (tmp_path / "d.csv").write_text("Export\n\n" + log().decode())
    assert open_table(tmp_path / "d.csv", header_word="LEVEL").names == ("time", "flow", "level")
    (tmp_path / "e.csv").write_text(
        'time,flow,level,note\n0,1,2,"a, b, c"\n1,2,3,"d, e, f"\n'
    )  # no cells between quotes
    assert inspect(tmp_path / "e.csv")["note"].odd == {"a, b, c": 1, "d, e, f": 1}
    (tmp_path / "f.csv").write_text("begun,ended,flow\n" + "2024-05-01 06:00,2024-05-02 06:00,1\n" * 2)
    assert open_table(tmp_path / "f.csv").time_name is None  # two columns of dates are not guessed


def test_a_late_odd_byte_and_mixed_lines(tmp_path: Path) -> None:
    lines = [b"time,level,note", *(f"{k},{k}.5,x".encode() for k in range(60_000))]
    lines += ["60000,1.0,20 °C".encode("cp1252"), "60001,2.0,21 °C".encode()]
    (tmp_path / "plant.csv").write_bytes(b"\n".join(lines) + b"\n")
    table = open_table(tmp_path / "plant.csv")
    assert "Windows-1252 and UTF-8" in table.files[0].kind
    assert table.files[0].column("note").to_list()[-2:] == ["20 °C", "21 °C"]
    assert read(tmp_path / "plant.csv")["level"][-2:] == [1.0, 2.0]


def test_rows_with_too_few_cells_are_counted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('time,flow,level\n0,1,2\n1,"2",3\n2,4\n3,5,6\n4')
    recording, preparation = read_logs(tmp_path / "a.csv", UNITS)
    np.testing.assert_array_equal(recording["pump"].y, [[1, 2], [2, 3], [4, np.nan], [5, 6], [np.nan, np.nan]])
    assert [step.numbers for step in preparation.steps if step.name == "short"] == [{"rows": 2}]


def test_text_is_refused_with_its_place_or_read_as_missing(tmp_path: Path) -> None:
    lines = ["time,flow,level", *(f"{k},{k}.5,{2 * k}" for k in range(300)), "300,lovely,1", "301,lovely,2"]
    (tmp_path / "a.csv").write_text("\n".join(lines) + "\n")
    with pytest.raises(cf.DataError, match=r"a.csv: column 'flow' holds 'lovely' in row 300 \(line 302\)"):
        read_logs(tmp_path / "a.csv", UNITS)
    recording, preparation = read_logs(tmp_path / "a.csv", UNITS, text="missing")
    assert np.isnan(recording["pump"].y[:, 0]).tolist() == [False] * 300 + [True] * 2
    assert [step.numbers for step in preparation.steps if step.name == "text"] == [{"flow": 2}]


def test_ten_thousand_columns(tmp_path: Path) -> None:
    names = ["time", *(f"u_{k}" for k in range(10_000))]
    rows = [[str(t), *(str(k + t) for k in range(10_000))] for t in range(3)]
    (tmp_path / "a.csv").write_text("\n".join(",".join(row) for row in [names, *rows]) + "\n")
    recording, _ = read_logs(tmp_path / "a.csv", {"u": {"outputs": ["u_0", "u_9999"]}})
    assert recording["u"].y.tolist() == [[0, 9999], [1, 10000], [2, 10001]]


# ---- other kinds of files, and several of them


def test_columnar_files_and_frames(tmp_path: Path) -> None:
    level = polars.Series([10, 20, 30], dtype=polars.Int16)
    frame = polars.DataFrame({" time ": [0, 1, 2], "flow": EXPECTED["flow"], "level": level})
    frame.write_parquet(tmp_path / "a[1].parquet")
    frame.write_ipc(tmp_path / "a.feather")
    frame.write_ipc(tmp_path / "b.arrow", compression="zstd")
    whole = io.BytesIO()
    frame.write_parquet(whole)
    packed = zipped(tmp_path / "a.zip", {"x.parquet": whole.getvalue()})
    files = (tmp_path / name for name in ("a[1].parquet", "a.feather", "b.arrow"))
    for source in (frame, frame.lazy(), packed, *files):
        assert read(source) == EXPECTED


def test_parquet_columns_that_are_not_wanted_are_not_read(tmp_path: Path) -> None:
    """The bytes of one column are destroyed: all others can still be read, that one cannot."""
    rng = np.random.default_rng(1)
    frame = polars.DataFrame({"time": np.arange(5000), "a_x": rng.random(5000), "b_x": rng.random(5000)})
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


def test_pandas_frames() -> None:
    index = pandas.date_range("2024-11-01 06:00", periods=3, freq="min", tz="Europe/Berlin")
    count = pandas.array([1, None, 3], dtype="Int64")
    frame = pandas.DataFrame({"flow": [1.0, None, 3.0], "on": [True, False, True], "count": count}, index)
    assert read(frame) == {"flow": [1.0, None, 3.0], "on": [1.0, 0.0, 1.0], "count": [1.0, None, 3.0]}
    times = open_table(frame).times
    assert times is not None
    assert times.shown(times.nanoseconds[0]) == "2024-11-01 05:00:00Z"
    recording, _ = read_logs(frame, {"pump": {"tags": "*", "inputs": "on"}})
    assert recording["pump"].u.ravel().tolist() == [1.0, 0.0, 1.0]
    plain = pandas.DataFrame({"time": ["2024-11-01 06:00", "2024-11-01 06:01"], "flow": ["1,5", "2,5"]})
    assert read(plain) == {"flow": [1.5, 2.5]}


def test_several_files_are_one_table_in_time(tmp_path: Path) -> None:
    one, two = tmp_path / "june.csv", tmp_path / "may.csv"
    one.write_text("time,flow,level\n2024-06-01 00:00,3,30\n2024-06-01 00:01,4,40\n")
    two.write_text("time;level;flow\n2024-05-31 23:58;10;1\n2024-05-31 23:59;20;2,5\n")
    recording, preparation = read_logs([one, two], UNITS)
    assert recording["pump"].y.tolist() == [[1, 10], [2.5, 20], [3, 30], [4, 40]]
    assert preparation.rows_read == 4
    two.write_text("time;level;flow\n2024-05-31 23:58;on;1\n2024-05-31 23:59;20;lovely\n")
    assert read([one, two])["level"] == [30, 40, 1, 20]
    with pytest.raises(cf.DataError, match=r"'lovely' in row 3 of the table, row 1 of may.csv \(line 3\)"):
        read_logs([one, two], UNITS)
    two.write_text("time;level;flov\n2024-05-31 23:58;10;1\n")
    with pytest.raises(cf.DataError, match=r"june.csv and may.csv have different columns: 'flov' stands only in may"):
        open_table([one, two])


def test_files_with_other_tags_stand_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("time,FI-101\n0,1\n60,2\n120,3\n")
    (tmp_path / "b.csv").write_text("time;LI-201\n0;1,5\n60;2,5\n120;3,5\n")
    recording, _ = read_logs([tmp_path / "a.csv", tmp_path / "b.csv"])
    assert recording.names == ("area_1", "area_2")
    assert recording["area_2"].y.ravel().tolist() == [1.5, 2.5, 3.5]
    folder = tmp_path / "tags"  # one tag in each file, called as the file
    folder.mkdir()
    for tag, start in (("FIC-101.PV", 8.0), ("LI-102.PV", 1.0)):
        (folder / f"{tag}.csv").write_text(
            "time,value\n" + "".join(f"2024-11-01 06:0{k},{start + k}\n" for k in range(3))
        )
    assert read(folder) == {"FIC-101.PV": [8.0, 9.0, 10.0], "LI-102.PV": [1.0, 2.0, 3.0]}


def test_a_folder_and_a_zip(tmp_path: Path) -> None:
    folder = tmp_path / "export"
    folder.mkdir()
    for k in (10, 2, 1):
        (folder / f"part{k}.csv").write_text(f"time,flow\n2024-11-{k:02d} 06:00,{k}\n2024-11-{k:02d} 06:01,{k}.5\n")
    (folder / "readme.md").write_text("not a table")
    (folder / "~$part1.csv").write_text("a program's own")
    assert [file.name for file in open_table(folder).files] == ["part1.csv", "part2.csv", "part10.csv"]
    members = {f"../../{path.name}": path.read_bytes() for path in folder.iterdir()}  # names that would lead out
    packed = zipped(tmp_path / "export.zip", members | {"__MACOSX/part1.csv": b"junk"})
    assert read(packed) == read(folder) == {"flow": [1, 1.5, 2, 2.5, 10, 10.5]}
    assert not (tmp_path.parent / "part1.csv").exists()


# ---- long tables

LONG = (
    "Timestamp,TagName,Value,Quality,UOM\n"
    "2024-11-01 06:00:00,FIC-101.PV,8.5,Good,m3/h\n2024-11-01 06:00:00,LI-102.PV,1.0,Good,m\n"
    "2024-11-01 06:01:00,LI-102.PV,1.1,Good,m\n2024-11-01 06:01:00,FIC-101.PV,9.9,Bad - No comm,m3/h\n"
    "2024-11-01 06:02:00,FIC-101.PV,Bad Input,Good,m3/h\n2024-11-01 06:02:00,LI-102.PV,1.2,Good,m\n"
    "2024-11-01 06:02:00,LI-102.PV,1.25,Good,m\n2024-11-01 06:03:00,FIC-101.PV,8.7,Good,m3/h\n"
)


def test_a_long_table_becomes_a_wide_one(tmp_path: Path) -> None:
    (tmp_path / "long.csv").write_text(LONG)
    assert open_table(tmp_path / "long.csv").measures == {"FIC-101.PV": "m3/h", "LI-102.PV": "m"}
    recording, preparation = read_logs(tmp_path / "long.csv", {"plant": "*"})
    np.testing.assert_array_equal(recording["plant"].y, [[8.5, 1.0], [np.nan, 1.1], [np.nan, 1.25], [8.7, np.nan]])
    assert [step.numbers for step in preparation.steps if step.name == "quality"] == [{"count": 1}]
    odd = tmp_path / "odd.csv"
    odd.write_text(LONG.replace("TagName", "which").replace("Value", "how much").replace("Quality", "Güte"))
    named = open_table(odd, tag="which", value="how much", quality="Güte")
    assert named.channels == ("FIC-101.PV", "LI-102.PV")
    with pytest.raises(cf.OptionError, match=r"tag is 'wich': odd.csv has the columns"):
        open_table(odd, tag="wich", value="how much")
    wide = polars.DataFrame({"time": [0, 1, 2], "value": [1.0, 2.0, 3.0], "name": [4.0, 5.0, 6.0]})
    assert open_table(wide).channels == ("value", "name")  # a wide table with such names stays wide


def test_a_long_table_is_what_its_wide_one_is(tmp_path: Path) -> None:
    """An oracle: melt a wide table, shuffle it, and read it back."""
    rng = np.random.default_rng(0)
    times = [f"2024-11-01 {k // 60:02d}:{k % 60:02d}:00" for k in range(300)]
    wide = polars.DataFrame({"time": times, **{f"TI-10{k}": rng.standard_normal(300) for k in range(4)}})
    path = tmp_path / "long.parquet"
    wide.unpivot(index="time", variable_name="tag").sample(fraction=1.0, shuffle=True, seed=1).write_parquet(path)
    tags = {"plant": [f"TI-10{k}" for k in range(4)]}
    assert read_logs(path, tags)[0] == read_logs(wide, tags)[0]


def test_tags_that_report_by_themselves() -> None:
    """Each tag has times of its own: the grid has the usual step of a tag, not of the table."""
    rows = [(60.0 * k + 7.0 * tag, f"TI-10{tag}", float(k)) for k in range(50) for tag in range(5)]
    long = polars.DataFrame(rows, schema=["time", "tag", "value"], orient="row")
    recording, _ = read_logs(long, {"plant": "TI-*"})
    assert recording.dt == 60.0
    assert recording.rows in (50, 51)
    assert np.isnan(recording["plant"].y).mean() < 0.1


# ---- broken and hostile files: one clear error, never a traceback


def refused(source: object, **options: object) -> str:
    messages = []
    for look in (lambda: inspect(source, **options), lambda: read_logs(source, UNITS, **options)):
        with pytest.raises(cf.CounterflowError) as caught:
            look()
        assert "\n" not in str(caught.value)
        messages.append(str(caught.value))
    return messages[0]


BROKEN = [
    ("a.csv", b"", "is empty"),
    ("a.csv", b" \n\n ", "is empty"),
    ("a.csv", b"time,flow,level\n", "has a header but no rows"),
    ("a.csv", b"\x00\x01\x02garbage\xff\xfe" * 50, "zero bytes"),
    ("a.csv", b"\xff\xfet\x00i", "is not utf-16"),
    ("a.csv", b"time,flow,level\n0,1,2\n1,\xff,3\n", "is not UTF-8"),
    ("a.csv", "時刻,流量\n0,1.5\n".encode("shift_jis"), "a.csv is not UTF-8, nor does line 1 look like Windows-1252"),
    ("a.csv", b"time,flow,level\n0,1,2\n1,2,3,4\n", "a row has 4 cells, the header has 3; it begins with '1,2,3'"),
    ("a.csv", b"time,flow,level,flow\n0,1,2,3\n", "two columns called 'flow'"),
    ("a.csv", b"time,flow , flow\n0,1,2\n", "two columns called 'flow'"),
    ("a.csv", b"time,flow,level\n,1,2\n,2,3\n", "holds no time at all"),
    ("a.csv.gz", b"no gzip at all", "cannot be read"),
    ("a.parquet", b"", "a.parquet cannot be read"),
    ("a.parquet", b"PAR1", "a.parquet cannot be read"),
    ("a.parquet", b"PAR1" + bytes(100) + b"PAR1", "a.parquet cannot be read"),
    ("a.parquet", b"no parquet", "a.parquet cannot be read"),
    ("a.feather", b"nothing of the kind", "a.feather cannot be read"),
    ("a.xlsx", b"PK no zip", "damaged or no .xlsx file"),
    ("a.zip", b"PK\x03\x04 and nothing else", "damaged or no zip file"),
    ("a.docx", b"x", "a log is a .csv"),
]


@pytest.mark.parametrize(("name", "content", "said"), BROKEN)
def test_broken_files(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(content)
    assert said in refused(tmp_path / name)


def test_what_is_no_table(tmp_path: Path) -> None:
    assert "there is no file" in refused(tmp_path / "none.csv")
    assert "is a folder without a table" in refused(tmp_path)
    for source in (3, [], [3], None):
        assert "give a path" in refused(source)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("flow,level\n", "no rows"),
        ("time,flow,level\n0,NaN,\n1,nan,\n", "no output is left: 'flow' is no value at all, and 1 more"),
        ("time,flow,level\n0,1,2\n", "at least 2 are needed"),
    ],
)
def test_tables_that_can_be_inspected_but_hold_too_little(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "a.csv").write_text(content)
    assert inspect(tmp_path / "a.csv").table.rows == content.count("\n") - 1
    with pytest.raises(cf.DataError, match=said):
        read_logs(tmp_path / "a.csv", UNITS)


def test_a_cut_off_gzip_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    whole = gzip.compress(("time,flow\n" + "".join(f"{k},{rng.random()}\n" for k in range(40_000))).encode())
    for size in (10, 3000, len(whole) // 2):
        (tmp_path / "a.csv.gz").write_bytes(whole[:size])
        assert "cut off or damaged" in refused(tmp_path / "a.csv.gz")


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"readme.txt.exe": b"x"}, "holds no table"),
        ({"a.csv.gz": b"x"}, "is packed twice"),
        ({"x/a.csv": b"time,flow\n0,1\n", "y/a.csv": b"time,flow\n0,1\n"}, "is there twice"),
        ({"a.csv": b""}, "it is empty"),
    ],
)
def test_archives_that_are_refused(tmp_path: Path, members: dict[str, bytes], said: str) -> None:
    assert said in refused(zipped(tmp_path / "a.zip", members))


def test_packed_files_that_unpack_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what is in them, whatever size the archive states, and by the memory that the machine has left."""
    assert 1 << 20 < places.memory_left() < 1 << 62
    monkeypatch.setattr(places, "memory_left", lambda: 800_000)
    rows = b"time,flow,level\n" + b"0,1,2\n" * (1 << 17)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(rows))
    archive = zipped(tmp_path / "a.zip", {"bomb.csv": rows})
    data = bytearray(archive.read_bytes())
    place = data.rfind(b"PK\x01\x02")
    data[place + 24 : place + 28] = (10).to_bytes(4, "little")  # it says that it unpacks to ten bytes
    archive.write_bytes(bytes(data))
    for path in (tmp_path / "a.csv.gz", archive):
        with pytest.raises(cf.DataError, match=f"{path.name} holds more than the 400000 bytes") as caught:
            open_table(path)
        assert caught.value.code == "too-large"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"separator": ";;"}, "separator is ';;': give one character"),
        ({"decimal": ";"}, "decimal is ';': give '.' or ','"),
        ({"decimal": ","}, "decimal and separator are both ','"),
        ({"encoding": "utf-99"}, "'utf-99', which is not known"),
        ({"encoding": "ascii", "text": "é"}, "is not UTF-8, at byte"),
        ({"skip_rows": -1}, "skip_rows is -1: give a whole number"),
        ({"skip_rows": True}, "skip_rows is True: give a number"),
        ({"skip_rows": 900}, "has no header after 900 skipped lines"),
        ({"time": "clock"}, "a.csv has no time column 'clock'; its columns are time, flow, level"),
        ({"time": 3}, "time is 3: give text"),
        ({"day_first": "yes"}, "day_first is 'yes': give true or false"),
        ({"sentinels": "no"}, "sentinels is 'no': give true or false"),
        ({"timezone": "Mars/Base"}, "time zone 'Mars/Base' is not known"),
        ({"time_format": "%Q"}, "time_format '%Q'"),
        ({"sheet": "log"}, "a.csv has no sheets"),
        ({"seperator": ";"}, "option 'seperator' is not known: did you mean 'separator'?"),
    ],
)  # fmt: skip
def test_options_that_cannot_be(tmp_path: Path, given: dict[str, object], said: str) -> None:
    more = given.pop("text", "")
    (tmp_path / "a.csv").write_bytes(log() + str(more).encode("cp1252"))
    assert said in refused(tmp_path / "a.csv", **given)


def test_what_needs_a_package_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.xlsx").write_bytes(b"x")
    monkeypatch.setattr(options, "find_spec", lambda name: None)
    with pytest.raises(cf.DataError, match=r"pip install 'counterflow\[excel\]'") as caught:
        open_table(tmp_path / "a.xlsx")
    assert caught.value.code == "missing-extra"


def test_options_stand_in_signatures() -> None:
    import inspect as signatures

    known = set(signatures.signature(read_logs).parameters)
    assert {"source", "units", "dt", "long_gaps", "time", "day_first", "sentinels"} <= known
    assert set(signatures.signature(open_table).parameters) < known
