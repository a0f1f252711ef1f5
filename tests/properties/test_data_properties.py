"""What is written in any of the usual ways is read back as it was."""

from __future__ import annotations

import gzip
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import polars
from hypothesis import given, settings
from hypothesis import strategies as st

import counterflow as cf
from counterflow.data import TableOptions, inspect, open_table
from counterflow.data.times import parse
from counterflow.plant.calendar import SECOND

NUMBERS = st.one_of(
    st.none(), st.floats(-1e9, 1e9).map(lambda value: float(f"{value:.6g}")), st.integers(-1000, 1000).map(float)
)
FORMATS = {
    "iso": lambda m: m.isoformat(),
    "iso utc": lambda m: m.isoformat() + "Z",
    "blank": lambda m: f"{m:%Y-%m-%d %H:%M:%S}",
    "millis": lambda m: f"{m:%Y-%m-%d %H:%M:%S}.{m.microsecond // 1000:03d}",
    "day first": lambda m: f" {m.day}/{m.month}/{m.year} {m.hour % 12 or 12}:{m:%M:%S %p}",
    "month first": lambda m: f"{m.month}/{m.day}/{m.year} {m.hour % 12 or 12}:{m:%M:%S %p}",
    "dots": lambda m: f"{m:%d.%m.%Y %H:%M:%S}",
    "named": lambda m: f"{m:%d-%b-%y %H:%M:%S}",
    "year and slashes": lambda m: f"{m:%Y/%m/%d %H:%M:%S},000",
    "offset": lambda m: f"{(m + timedelta(hours=2)).isoformat()}+02:00",
    "short offset": lambda m: f"{(m - timedelta(hours=3, minutes=30)).isoformat()}-0330",
    "named, whole year": lambda m: f" {m:%d-%b-%Y %H:%M:%S} ",
    "epoch": lambda m: str(int((m - datetime(1970, 1, 1)).total_seconds())),
    "epoch ms": lambda m: str(1000 * int((m - datetime(1970, 1, 1)).total_seconds())),
}


def cell(value: float | None, decimal: str) -> str:
    return "" if value is None else repr(value).replace(".", decimal)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(NUMBERS, NUMBERS), min_size=2, max_size=12),
    separator=st.sampled_from(",;\t|"),
    comma=st.booleans(),
    quotes=st.booleans(),
    blanks=st.booleans(),
    mark=st.booleans(),
    end=st.sampled_from(["\n", "\r\n"]),
    packed=st.booleans(),
)
def test_numbers_in_any_layout(
    rows: list[tuple[float | None, float | None]],
    separator: str,
    comma: bool,
    quotes: bool,
    blanks: bool,
    mark: bool,
    end: str,
    packed: bool,
) -> None:
    decimal = "," if comma and separator != "," else "."
    shown = [["time", "flow", "level"]]
    shown += [[str(k), *(cell(value, decimal) for value in row)] for k, row in enumerate(rows)]
    if blanks:
        shown = [[f" {text} " if text else text for text in row] for row in shown]
    if quotes:
        shown = [[f'"{text}"' for text in row] for row in shown]
    text = end.join(separator.join(row) for row in shown) + end
    data = (b"\xef\xbb\xbf" if mark else b"") + text.encode()
    with TemporaryDirectory() as folder:
        path = Path(folder) / ("a.csv.gz" if packed else "a.csv")
        path.write_bytes(gzip.compress(data) if packed else data)
        table = open_table(path, separator=separator, decimal=decimal)
        assert table.names == ("time", "flow", "level")
        numbers = table.numbers(["flow", "level"])
        for k, name in enumerate(("flow", "level")):
            expected = [np.nan if row[k] is None else row[k] for row in rows]
            np.testing.assert_array_equal(numbers[name].values, expected)
        found = inspect(path, separator=separator)  # its decimal sign is found, unless no number has one
        assert found.table.rows == len(rows)


@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from(sorted(FORMATS)),
    start=st.datetimes(datetime(2001, 10, 1), datetime(2060, 1, 1)).map(lambda m: m.replace(microsecond=0)),
    steps=st.lists(st.integers(0, 100_000), min_size=1, max_size=20),
)
def test_times_in_any_format(kind: str, start: datetime, steps: list[int]) -> None:
    moments = [start]
    for step in steps:
        moments.append(moments[-1] + timedelta(seconds=step))
    cells = [FORMATS[kind](moment) for moment in moments]
    first = {"day first": True, "month first": False}.get(kind)
    expected = [int((moment - datetime(1970, 1, 1)).total_seconds()) * SECOND for moment in moments]
    assert parse(polars.Series(cells), "t", TableOptions(day_first=first)).nanoseconds.tolist() == expected


def told(path: Path) -> str:
    """What is refused of a file, in the words of our own errors; any other error fails the test."""
    try:
        inspect(path)
    except cf.CounterflowError as error:
        return str(error)
    return ""


@settings(max_examples=150, deadline=None)
@given(data=st.binary(max_size=400), kind=st.sampled_from(["csv", "csv.gz", "parquet", "xlsx"]))
def test_garbage_is_refused_in_one_sentence_or_read(data: bytes, kind: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"a.{kind}"
        path.write_bytes(data)
        assert "\n" not in told(path)


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=200)


@settings(max_examples=150, deadline=None)
@given(text=TEXT.map(lambda body: "time,a,b\n" + body))
def test_any_text_is_refused_in_one_sentence_or_read(text: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a.csv"
        path.write_text(text, newline="")
        assert "\n" not in told(path)
