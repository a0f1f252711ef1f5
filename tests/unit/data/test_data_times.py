"""Times of the usual kinds, and refusals of what is not certain."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import polars
import pytest

import counterflow as cf
from counterflow.data import TableOptions, open_table
from counterflow.data.times import NONE, moment, parse, shown_time
from counterflow.plant.calendar import SECOND

START = datetime(2015, 12, 22, 16, 0, 0)
MOMENTS = [START + timedelta(seconds=k) for k in (0, 1, 2, 3600, 40_000)]
EXPECTED = [int((m - datetime(1970, 1, 1)).total_seconds()) * SECOND for m in MOMENTS]


def found(cells: list[object], time_format: str | None = None, **options: object) -> list[int]:
    given = TableOptions(time_format=time_format, **options)  # type: ignore[arg-type]
    return parse(polars.Series(cells), "t", given).nanoseconds.tolist()


@pytest.mark.parametrize(("unit", "per"), [("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)])
def test_epochs(unit: str, per: int) -> None:
    cells: list[object] = [nanoseconds * per // SECOND for nanoseconds in EXPECTED]
    assert found(cells) == found(cells, time_format=unit) == EXPECTED
    assert parse(polars.Series(cells), "t").zoned
    assert found([5, 6], time_format=unit) == [5 * SECOND // per, 6 * SECOND // per]
    assert found([1_450_800_000.25]) == [1_450_800_000 * SECOND + SECOND // 4]


def test_plain_seconds() -> None:
    for cells in (polars.Series([0.0, 0.5, None, 30_000.25]), polars.Series([0, 500, None, 30_000_250])):
        times = parse(cells if cells.dtype == polars.Float64 else cells.cast(polars.Duration("ms")), "t")
        assert times.nanoseconds.tolist() == [0, SECOND // 2, NONE, 30_000 * SECOND + SECOND // 4]
        assert not times.dated
    assert found([30_000, 30_001]) == [30_000 * SECOND, 30_001 * SECOND]  # not a date of 1982, which has no fraction


def test_a_given_format_wins() -> None:
    assert shown_time(found(["12/11/2015 00.00.03"], time_format="%m/%d/%Y %H.%M.%S")[0]) == "2015-12-11 00:00:03"
    assert found(["22122015-160000"], time_format="%d%m%Y-%H%M%S") == EXPECTED[:1]


def test_stored_dates_and_zones() -> None:
    series = polars.Series(MOMENTS)
    assert parse(series, "t").nanoseconds.tolist() == EXPECTED
    berlin = series.dt.replace_time_zone("UTC").dt.convert_time_zone("Europe/Berlin")
    assert parse(berlin, "t").nanoseconds.tolist() == EXPECTED
    assert parse(berlin, "t").zoned
    texts = parse(polars.Series(["2015-12-22 16:00:00", None, " ", "2015-12-22 16:00:01"]), "t")
    assert (texts.nanoseconds == NONE).tolist() == [False, True, True, False]
    dates = parse(polars.Series([MOMENTS[0].date(), None]), "t")
    assert dates.nanoseconds.tolist() == [EXPECTED[0] - 16 * 3600 * SECOND, NONE]


def test_spreadsheet_serials() -> None:
    days = [(m - datetime(1899, 12, 30)) / timedelta(days=1) for m in MOMENTS]
    assert found(list(days)) == EXPECTED
    assert parse(polars.Series(days), "t").kind == "spreadsheet serials"
    assert list(map(shown_time, found([42_360], time_format="excel"))) == ["2015-12-22 00:00:00"]


@pytest.mark.parametrize(("decimals", "step"), [(4, 60), (5, 1), (5, 60), (5, 7), (6, 0.5), (6, 60), (8, 0.25)])
def test_serials_with_few_decimals_stand_for_round_times(decimals: int, step: float) -> None:
    moments = np.arange(2000) * round(step * SECOND) + 1_730_448_720 * SECOND
    times = parse(polars.Series(np.round(moments / (86_400 * SECOND) + 25_569, decimals)), "t")
    np.testing.assert_array_equal(times.nanoseconds, moments)


@pytest.mark.parametrize("wrong", ["2024-13-45 99:99", "2024-02-30 01:00:00", "End of report"])
def test_few_cells_that_are_no_times_are_left_out(wrong: str) -> None:
    cells = [f"2024-05-01 {k // 60:02d}:{k % 60:02d}:00" for k in range(200)]
    cells[50] = wrong
    times = parse(polars.Series(cells), "t")
    assert (times.unread, times.example) == (1, f"{wrong!r} in row 50")
    assert np.flatnonzero(times.nanoseconds == NONE).tolist() == [50]
    for k in (60, 70, 80, 90):
        cells[k] = wrong
    with pytest.raises(cf.DataError, match="in row 50, which is no date"):
        parse(polars.Series(cells), "t")
    numbers: list[str | None] = [str(1_450_800_000 + k) for k in range(200)]
    numbers[7], numbers[9] = "Bad", None
    times = parse(polars.Series(numbers), "t")
    assert (times.kind, times.unread) == ("seconds since 1970", 1)
    assert np.flatnonzero(times.nanoseconds == NONE).tolist() == [7, 9]


@pytest.mark.parametrize("pattern", ["%m/%d/%Y %I:%M:%S %p", "%d/%m/%Y %H:%M"])
def test_rows_that_run_on_over_midnight_tell_the_order_of_day_and_month(pattern: str) -> None:
    moments = [datetime(2024, 11, 1, 20) + timedelta(minutes=k) for k in range(600) if not 30 < k < 90]
    expected = [(m - datetime(1970, 1, 1)) // timedelta(seconds=1) * SECOND for m in moments]
    assert found([f"{m:{pattern}}" for m in moments]) == expected
    assert found([f"{m:{pattern}}" for m in moments[::-1]]) == expected[::-1]


def test_ambiguous_dates_are_refused_unless_it_is_said() -> None:
    cells = ["3/4/2024 00:00", "3/4/2024 00:01"]
    with pytest.raises(cf.DataError, match=r"'3/4/2024 00:00' in row 0 may have the day or the month first.*day_first"):
        found(list(cells))
    assert shown_time(found(list(cells), day_first=True)[0]) == "2024-04-03 00:00:00"
    assert shown_time(found(list(cells), day_first=False)[0]) == "2024-03-04 00:00:00"
    assert shown_time(found(["4/4/2024"])[0]) == "2024-04-04 00:00:00"  # the same either way
    assert shown_time(found(["3.4.2024"])[0]) == "2024-04-03 00:00:00"
    assert found([f"{m:%d/%m/%y %H:%M:%S}" for m in MOMENTS]) == EXPECTED
    for clock in ("", " 08:00"):  # a row a day tells nothing
        with pytest.raises(cf.DataError, match="on the command line with --day-first or --month-first"):
            found([f"1/{month}/2024{clock}" for month in (2, 3, 4)])
    with pytest.raises(cf.DataError, match=r"day_first is False, but time column 't' has the day first"):
        found(["22/12/2015"], day_first=False)


REFUSED = [
    (["22/12/2015", "12/23/2015"], "mixes formats: '22/12/2015' in row 0 has the day first, '12/23/2015' in row 1"),
    (["2015-12-22", "22/12/2015"], "mixes formats: '2015-12-22' in row 0 begins with the year, '22/12/2015'"),
    (["22-Dec-15", "23-12-15"], "mixes formats: '22-Dec-15' in row 0 names the month"),
    (["2015-12-22T00:00Z", "2015-12-22T00:01"], "mixes formats: '2015-12-22T00:00Z' in row 0 has a zone"),
    (["22/12/2015 1:00 PM", "22/12/2015 13:01"], "mixes formats: '22/12/2015 1:00 PM' in row 0 has AM or PM"),
    (["2015-12-22", "yesterday"], "holds 'yesterday' in row 1, which is no date"),
    (["2015-12-22", "2015-02-30"], "holds '2015-02-30' in row 1, which is no date"),
    (["2015-13-01"], "holds '2015-13-01' in row 0"),
    (["2015-12-22 24:10:00"], "holds '2015-12-22 24:10:00' in row 0"),
    (["2015-12-22 13:00 PM"], "holds '2015-12-22 13:00 PM' in row 0"),
    (["22-Foo-2015"], "holds '22-Foo-2015' in row 0"),
    (["0001-01-01"], "holds '0001-01-01' in row 0"),
    (["", " ", None], "holds no time at all"),
    ([True, False], "has type Boolean"),
    ([1e300], "which is no time"),
]


@pytest.mark.parametrize(
    ("cells", "said", "options"),
    [
        *((cells, said, {}) for cells, said in REFUSED),
        (["2015-12-22"], "does not fit time_format '%d/%m/%Y'", {"time_format": "%d/%m/%Y"}),
        (["2015-12-22"], "is not a number, as time_format 's' says", {"time_format": "s"}),
        ([5], "time_format '%Y' does not apply", {"time_format": "%Y"}),
        ([5], "is a plain count of seconds", {"timezone": "Europe/Berlin"}),
        (["2024-03-31 02:30:00"], "does not exist in Europe/Berlin", {"timezone": "Europe/Berlin"}),
    ],
)
def test_refusals(cells: list[object], said: str, options: dict[str, object]) -> None:
    with pytest.raises(cf.DataError) as caught:
        found(cells, **options)
    assert said in str(caught.value)
    assert "time column 't'" in str(caught.value)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York", "Australia/Sydney"])
@pytest.mark.parametrize("day", [datetime(2024, 10, 26, 12), datetime(2024, 11, 2, 12), datetime(2024, 4, 6, 2)])
def test_local_times_become_utc_through_the_hour_that_comes_twice(zone: str, day: datetime) -> None:
    """Every ten minutes of two days around a change of clocks, against the standard library."""
    start = day.replace(tzinfo=UTC)
    moments = [start + timedelta(minutes=10 * k) for k in range(288)]
    local = [f"{m.astimezone(ZoneInfo(zone)):%Y-%m-%d %H:%M:%S}" for m in moments]
    expected = [int(m.timestamp()) * SECOND for m in moments]
    assert found(list(local), timezone=zone) == expected


def test_moments() -> None:
    assert moment("2015-12-22 16:00:00", True, "start") == EXPECTED[0]
    assert moment("2015-12-22T16:00", True, "start") == EXPECTED[0]
    assert moment(START, True, "start") == EXPECTED[0]
    assert moment(1.5, False, "start") == SECOND * 3 // 2
    for wrong, dated in (("tomorrow", True), (3, True), ("2015-12-22", False), (None, True), (True, False)):
        with pytest.raises(cf.DataError, match="start is"):
            moment(wrong, dated, "start")


@pytest.mark.parametrize(
    ("date", "time"),
    [("22/12/2015", "4:00:00 PM"), ("2015-12-22", "16:00:00"), ("22.12.2015", "16:00"), ("22-Dec-15", "16:00:00.0")],
)
def test_date_and_time_of_day_in_two_columns(date: str, time: str) -> None:
    frame = polars.DataFrame({"Time": [time, None], "x": [1.0, 2.0], "Date": [date, date]})
    table = open_table(frame)
    assert (table.time_name, table.date_name, table.channels) == ("Time", "Date", ("x",))
    assert table.times is not None
    assert table.times.nanoseconds.tolist() == [EXPECTED[0], NONE]
    whole = open_table(polars.DataFrame({"time": [f"{date} {time}"], "date": ["x"]}))
    assert (whole.date_name, whole.channels) == (None, ("date",))
