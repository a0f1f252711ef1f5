"""Files as historians, spreadsheets and people make them: encodings, long tables, archives, folders, odd numbers."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pandas
import polars
import pytest

import counterflow as cf
from counterflow.data import inspect, open_table, places, read_logs

TEXT = "Zeit;FIC-101.PV [m³/h];TI-102 [°C]\n01.11.2024 06:00;8,5;20\n01.11.2024 06:01;8,6;21\n"
ONE = {"plant": ["FIC-101.PV*", "TI-102*"]}


def values(table: object, name: str, **options: object) -> list[float]:
    opened = open_table(table, **options)
    return opened.numbers([name])[name].values.tolist()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "cp1252", "utf-16", "utf-16-le"])
def test_encodings_are_found(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "plant.csv"
    path.write_bytes(TEXT.encode(encoding) if encoding != "utf-16-le" else TEXT.encode("utf-16-le"))
    table = open_table(path)
    assert table.names == ("Zeit", "FIC-101.PV [m³/h]", "TI-102 [°C]")
    assert table.measures == {"FIC-101.PV [m³/h]": "m³/h", "TI-102 [°C]": "°C"}
    recording, _ = read_logs(path, ONE)
    assert recording["plant"].y.tolist() == [[8.5, 20.0], [8.6, 21.0]]
    assert [(c.name, c.unit) for c in recording["plant"].unit.outputs] == [("FIC-101.PV", "m³/h"), ("TI-102", "°C")]


def test_an_encoding_may_be_given(tmp_path: Path) -> None:
    path = tmp_path / "plant.csv"
    path.write_bytes("時刻,流量\n0,1.5\n1,2.5\n".encode("shift_jis"))
    with pytest.raises(cf.DataError, match=r"plant.csv is not UTF-8, nor does line 1 look like Windows-1252.*encoding"):
        open_table(path)
    assert values(path, "流量", encoding="shift_jis", time="時刻") == [1.5, 2.5]
    with pytest.raises(cf.OptionError, match="'utf-99', which is not known"):
        open_table(path, encoding="utf-99")
    with pytest.raises(cf.DataError, match=r"plant.csv is not UTF-8, at byte 0"):
        open_table(path, encoding="ascii")


def test_a_late_odd_byte_and_mixed_lines(tmp_path: Path) -> None:
    path = tmp_path / "plant.csv"
    lines = [b"time,level,note", *(f"{k},{k}.5,x".encode() for k in range(60_000))]
    lines += ["60000,1.0,20 °C".encode("cp1252"), "60001,2.0,21 °C".encode()]
    path.write_bytes(b"\n".join(lines) + b"\n")
    table = open_table(path)
    assert "Windows-1252 and UTF-8" in table.files[0].kind
    assert table.files[0].column("note").to_list()[-2:] == ["20 °C", "21 °C"]
    assert values(path, "level")[-2:] == [1.0, 2.0]


def test_lines_before_the_header_and_rows_below_it(tmp_path: Path) -> None:
    path = tmp_path / "plant.csv"
    path.write_text(
        "Export of the historian\nSite: north; period: November\n\nTime;FIC-101.PV;LI-102.PV\n;feed;level\n;m3/h;m\n"
        "2024-11-01 06:00;8,5;1,0\n2024-11-01 06:01;8,6;1,1\n"
    )
    table = open_table(path)
    assert table.names == ("Time", "FIC-101.PV", "LI-102.PV")
    assert table.measures == {"FIC-101.PV": "m3/h", "LI-102.PV": "m"}
    assert (table.rows, values(path, "LI-102.PV")) == (2, [1.0, 1.1])


@pytest.mark.parametrize(
    "row",
    ["2024-11-01 05:59,Bad,1", "2024-11-01 05:59,,", "2024-11-01 05:59,No Data,No Data", "2024-11-01 05:59,open,2"],
)
def test_a_row_of_data_is_no_row_of_units(tmp_path: Path, row: str) -> None:
    path = tmp_path / "plant.csv"
    path.write_text(f"time,a,b\n{row}\n2024-11-01 06:00,1,2\n2024-11-01 06:01,2,3\n")
    assert open_table(path).rows == 3


def test_numbers_as_people_write_them(tmp_path: Path) -> None:
    path = tmp_path / "plant.csv"
    path.write_text('time,power,flow\n0,"1,234.5","0,5"\n1,"12,345","1,25"\n2,999,"2"\n')
    assert values(path, "power") == [1234.5, 12345.0, 999.0]
    assert values(path, "flow") == [0.5, 1.25, 2.0]
    path.write_text("time;power;flow\n0;1.234,5;1,5\n1;12.345;2,25\n2;999;2\n")
    assert values(path, "power") == [1234.5, 12345.0, 999.0]
    assert values(path, "flow") == [1.5, 2.25, 2.0]
    path.write_text("time;power;heat\n0;1 234,5;1'000,5\n1;12 345,0;2'000\n")
    assert values(path, "power") == [1234.5, 12345.0]
    assert values(path, "heat") == [1000.5, 2000.0]


LONG = (
    "Timestamp,TagName,Value,Quality,UOM\n"
    "2024-11-01 06:00:00,FIC-101.PV,8.5,Good,m3/h\n2024-11-01 06:00:00,LI-102.PV,1.0,Good,m\n"
    "2024-11-01 06:01:00,LI-102.PV,1.1,Good,m\n2024-11-01 06:01:00,FIC-101.PV,9.9,Bad - No comm,m3/h\n"
    "2024-11-01 06:02:00,FIC-101.PV,Bad Input,Good,m3/h\n2024-11-01 06:02:00,LI-102.PV,1.2,Good,m\n"
    "2024-11-01 06:02:00,LI-102.PV,1.25,Good,m\n2024-11-01 06:03:00,FIC-101.PV,8.7,Good,m3/h\n"
)


def test_a_long_table_becomes_a_wide_one(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text(LONG)
    table = open_table(path)
    assert table.channels == ("FIC-101.PV", "LI-102.PV")
    assert table.measures == {"FIC-101.PV": "m3/h", "LI-102.PV": "m"}
    recording, preparation = read_logs(path, {"plant": "*"})
    np.testing.assert_array_equal(recording["plant"].y, [[8.5, 1.0], [np.nan, 1.1], [np.nan, 1.25], [8.7, np.nan]])
    assert "1 value of bad quality: treated as missing." in str(preparation)
    odd = tmp_path / "odd.csv"
    odd.write_text(LONG.replace("TagName", "which").replace("Value", "how much").replace("Quality", "Güte"))
    assert open_table(odd, tag="which", value="how much", quality="Güte").channels == table.channels
    with pytest.raises(cf.OptionError, match=r"tag is 'wich': odd.csv has the columns"):
        open_table(odd, tag="wich", value="how much")


def test_a_long_table_is_what_its_wide_one_is(tmp_path: Path) -> None:
    """An oracle: melt a wide table, shuffle it, and read it back."""
    rng = np.random.default_rng(0)
    times = [f"2024-11-01 {k // 60:02d}:{k % 60:02d}:00" for k in range(300)]
    wide = polars.DataFrame({"time": times, **{f"TI-10{k}": rng.standard_normal(300) for k in range(4)}})
    path = tmp_path / "long.parquet"
    wide.unpivot(index="time", variable_name="tag").sample(fraction=1.0, shuffle=True, seed=1).write_parquet(path)
    tags = {"plant": [f"TI-10{k}" for k in range(4)]}
    assert read_logs(path, tags)[0] == read_logs(wide, tags)[0]


def test_tags_that_report_by_themselves(tmp_path: Path) -> None:
    """Each tag has times of its own: the grid has the usual step of a tag, not of the table."""
    rows = [(60.0 * k + 7.0 * tag, f"TI-10{tag}", float(k)) for k in range(50) for tag in range(5)]
    long = polars.DataFrame(rows, schema=["time", "tag", "value"], orient="row")
    recording, _ = read_logs(long, {"plant": "TI-*"})
    assert recording.dt == 60.0
    assert recording.rows in (50, 51)
    assert np.isnan(recording["plant"].y).mean() < 0.1


def test_wide_tables_with_such_names_stay_wide() -> None:
    frame = polars.DataFrame({"time": [0, 1, 2], "value": [1.0, 2.0, 3.0], "name": [4.0, 5.0, 6.0]})
    assert open_table(frame).channels == ("value", "name")


def test_a_folder_and_a_zip(tmp_path: Path) -> None:
    folder = tmp_path / "export"
    folder.mkdir()
    for k in (10, 2, 1):
        (folder / f"part{k}.csv").write_text(f"time,flow\n2024-11-{k:02d} 06:00,{k}\n2024-11-{k:02d} 06:01,{k}.5\n")
    (folder / "readme.md").write_text("not a table")
    (folder / "~$part1.csv").write_text("a program's own")
    table = open_table(folder)
    assert [file.name for file in table.files] == ["part1.csv", "part2.csv", "part10.csv"]
    packed = tmp_path / "export.zip"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in folder.iterdir():
            archive.write(path, f"../../{path.name}")  # a name that would lead out
        archive.writestr("__MACOSX/part1.csv", "junk")
    inside = open_table(packed)
    assert inside.numbers(["flow"])["flow"].values.tolist() == table.numbers(["flow"])["flow"].values.tolist()
    assert not (tmp_path.parent / "part1.csv").exists()


def test_a_file_for_each_tag(tmp_path: Path) -> None:
    for tag, start in (("FIC-101.PV", 8.0), ("LI-102.PV", 1.0)):
        text = "".join(f"2024-11-01 06:0{k},{start + k}\n" for k in range(3))
        (tmp_path / f"{tag}.csv").write_text("time,value\n" + text)
    recording, _ = read_logs(tmp_path, {"plant": "*"})
    assert recording["plant"].unit.output_names == ("FIC-101.PV", "LI-102.PV")
    assert recording["plant"].y.tolist() == [[8.0, 1.0], [9.0, 2.0], [10.0, 3.0]]


def test_areas_in_files_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("time,FI-101\n0,1\n60,2\n120,3\n")
    (tmp_path / "b.csv").write_text("time;LI-201\n0;1,5\n60;2,5\n120;3,5\n")
    recording, _ = read_logs([tmp_path / "a.csv", tmp_path / "b.csv"])
    assert recording.names == ("area_1", "area_2")
    assert recording["area_2"].y.ravel().tolist() == [1.5, 2.5, 3.5]


def forged_zip(path: Path, members: dict[str, bytes], **more: object) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def test_hostile_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = b"time,flow\n0,1\n1,2\n"
    path = tmp_path / "a.zip"
    for members, said in (
        ({"readme.txt.exe": b"x"}, "holds no table"),
        ({"a.csv.gz": b"x"}, "is packed twice"),
        ({"x/a.csv": rows, "y/a.csv": rows}, "is there twice"),
        ({"a.csv": b""}, "it is empty"),
    ):
        with pytest.raises(cf.DataError, match=said):
            open_table(forged_zip(path, members))
    path.write_bytes(b"PK\x03\x04 and nothing else")
    with pytest.raises(cf.DataError, match="damaged or no zip file"):
        open_table(path)
    forged_zip(path, {"bomb.csv": b"time,flow\n" + b"0,0\n" * 200_000})
    data = bytearray(path.read_bytes())
    place = data.rfind(b"PK\x01\x02")
    data[place + 24 : place + 28] = struct.pack("<I", 10)  # it says that it unpacks to ten bytes
    path.write_bytes(bytes(data))
    monkeypatch.setattr(places, "memory_left", lambda: 400_000)
    with pytest.raises(cf.DataError, match="unpacks to more than the 200000 bytes") as caught:
        open_table(path)
    assert caught.value.code == "too-large"


def test_feather_and_parquet_in_an_archive(tmp_path: Path) -> None:
    frame = polars.DataFrame({"time": [0, 1], "flow": [1.0, 2.0]})
    frame.write_ipc(tmp_path / "a.feather")
    assert values(tmp_path / "a.feather", "flow") == [1.0, 2.0]
    frame.write_ipc(tmp_path / "b.arrow", compression="zstd")
    assert values(tmp_path / "b.arrow", "flow") == [1.0, 2.0]
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    packed = forged_zip(tmp_path / "a.zip", {"x.parquet": buffer.getvalue()})
    assert values(packed, "flow") == [1.0, 2.0]
    (tmp_path / "bad.feather").write_bytes(b"nothing of the kind")
    with pytest.raises(cf.DataError, match=r"bad.feather cannot be read"):
        open_table(tmp_path / "bad.feather")


def test_pandas_and_polars_frames_are_tables() -> None:
    index = pandas.date_range("2024-11-01 06:00", periods=3, freq="min", tz="Europe/Berlin")
    frame = pandas.DataFrame(
        {"flow": [1.0, None, 3.0], "on": [True, False, True], "count": pandas.array([1, None, 3], dtype="Int64")}, index
    )
    table = open_table(frame)
    assert (table.time_name, table.channels) == ("time", ("flow", "on", "count"))
    assert table.times is not None
    assert table.times.shown(table.times.nanoseconds[0]) == "2024-11-01 05:00:00Z"
    np.testing.assert_array_equal(table.numbers(["count"])["count"].values, [1.0, np.nan, 3.0])
    recording, _ = read_logs(frame, {"pump": {"tags": "*", "inputs": "on"}})
    assert recording["pump"].u.ravel().tolist() == [1.0, 0.0, 1.0]
    plain = pandas.DataFrame({"time": ["2024-11-01 06:00", "2024-11-01 06:01"], "flow": ["1,5", "2,5"]})
    assert values(plain, "flow") == [1.5, 2.5]
    assert inspect(polars.LazyFrame({"time": [0, 1], "x": [1, 2]})).table.rows == 2
    with pytest.raises(cf.DataError, match="DataFrame of polars or pandas"):
        open_table(3)
