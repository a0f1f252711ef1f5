"""Dates and durations as rows, and rows as dates."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas
import polars
import pytest

import counterflow as cf
from counterflow.data import read_logs
from counterflow.plant.calendar import Calendar, as_duration, as_rows, as_steps

BERLIN = "Europe/Berlin"
HOURLY = Calendar.starting("2024-10-26 00:00", 3600.0, BERLIN)  # clocks go back in the night to the 27th


@pytest.mark.parametrize("row", [0, 23, 24, 25, 26, 27, 28, 100])
def test_rows_are_what_the_standard_library_says(row: int) -> None:
    oracle = dt.datetime(2024, 10, 25, 22, tzinfo=dt.UTC) + dt.timedelta(hours=row)
    local = oracle.astimezone(ZoneInfo(BERLIN))
    assert HOURLY.shown(row) == f"{local:%Y-%m-%d %H:%M} {local.tzname()}"
    assert HOURLY.series(row, row + 1)[0].astimezone(dt.UTC) == oracle
    for when in (oracle, local, pandas.Timestamp(local), oracle.isoformat()):
        assert HOURLY.row(when) == row


def test_the_hour_that_comes_twice_and_the_one_that_is_not_there() -> None:
    assert HOURLY.row("2024-10-27 02:00") == 26  # the first of the two
    assert HOURLY.row("2024-10-27 02:00+01:00") == 27
    spring = Calendar.starting("2024-03-30 00:00", 3600.0, BERLIN)
    with pytest.raises(cf.OptionError, match="clocks went forward then in Europe/Berlin"):
        spring.row("2024-03-31 02:30")


def test_a_span_over_a_change_of_the_clock_names_both_zones() -> None:
    calendar = Calendar.starting("2024-10-27 01:00+02:00", 900.0, BERLIN)
    assert calendar.span(0, 16) == "2024-10-27 01:00 CEST to 03:45 CET"
    assert calendar.span(0, 4) == "2024-10-27 01:00 to 01:45 CEST"
    assert Calendar.starting("2024-10-27 01:00", 900.0).span(0, 4) == "2024-10-27 01:00 to 01:45"


def test_between_rows_and_beyond_them() -> None:
    calendar = Calendar.starting("2024-11-01 14:00", 60.0)
    assert calendar.row("2024-11-01 14:00:01") == 1  # the first row at or after
    assert calendar.row("01.11.2024 14:05") == 5
    assert as_rows(0, "2024-11-01 14:10", calendar, 10, 60.0) == (0, 10)
    for when in ("2024-11-01 14:10", "2024-11-02", "2023-01-01"):
        with pytest.raises(cf.OptionError, match="goes from 2024-11-01 14:00 to 2024-11-01 14:09"):
            as_rows(when, None, calendar, 10, 60.0)
    with pytest.raises(cf.OptionError, match="with a zone, but the recording's is not known"):
        calendar.row("2024-11-01 14:01Z")


def test_jumps_are_kept() -> None:
    calendar = Calendar(0, 10**9, "UTC", ((5, 3600 * 10**9),))
    assert calendar.at(4) == 4 * 10**9
    assert calendar.at(5) == 3605 * 10**9
    np.testing.assert_array_equal(calendar.times(0, 9).astype(int), [calendar.at(row) for row in range(9)])
    assert calendar.row("1970-01-01 00:30Z") == 5
    assert calendar.later(3).at(2) == calendar.at(5)
    assert calendar.later(6).jumps == ()
    assert calendar.later(6).at(0) == calendar.at(6)
    gap = Calendar(0, 60 * 10**9, "", ((30, 3600 * 10**9),))  # durations pass over it by the clock
    assert as_rows(20, "1h", gap, 100, 60.0) == (20, 30)
    assert as_rows(20, "80 min", gap, 100, 60.0) == (20, 40)
    assert as_rows(3, "1h", Calendar.starting("2024-11-01", 1 / 3), 20000, 1 / 3) == (3, 10803)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("2h", 7200), ("90 min", 5400), ("1d 6h", 108000), ("1.5h", 5400), ("1,5 h", 5400), ("PT2H30M", 9000),
        ("250 ms", 0.25), ("2 weeks", 1209600), (dt.timedelta(minutes=3), 180), (np.timedelta64(5, "m"), 300),
        (pandas.Timedelta("2h"), 7200), ("2", None), ("2 parsecs", None), ("", None), (5, None), ("2024-11-01", None),
    ],
)  # fmt: skip
def test_durations(given: object, seconds: float | None) -> None:
    assert as_duration(given) == seconds


def test_steps_and_rows() -> None:
    assert as_steps("2h", 60.0, "horizon") == 120
    assert as_steps(7, 60.0, "horizon") == 7
    with pytest.raises(cf.OptionError, match="less than a step of 60 s"):
        as_steps("1s", 60.0, "horizon")
    with pytest.raises(cf.OptionError, match="horizon is 'next week'"):
        as_steps("next week", 60.0, "horizon")
    assert as_rows("2h", None, None, 200, 60.0) == (120, None)
    with pytest.raises(cf.OptionError, match="has 100 rows of 60 s"):
        as_rows("2h", None, None, 100, 60.0)
    with pytest.raises(cf.OptionError, match="tells no dates"):
        as_rows("2024-11-01", None, None, 100, 60.0)


@pytest.fixture(scope="module")
def fitted() -> tuple[cf.Recording, cf.Fit]:
    plant = cf.random_plant(units=["boiler", "turbine"], rng=1).replace(dt=60.0)
    plain = plant.simulate(300, rng=2)
    arrays = {name: (part.y, part.u) for name, part in plain.items()}
    recording = cf.Recording.from_arrays(arrays, 60.0, plain.units, start="2024-11-01 14:00", timezone=BERLIN)
    return recording, cf.fit(recording, plant.locals())


def test_every_question_takes_dates(fitted: tuple[cf.Recording, cf.Fit]) -> None:
    recording, fit = fitted
    do = {"boiler": {"u1": 0.0}}
    by_row = fit.counterfactual(recording, do, 120, 180)
    for start, stop in (
        ("2024-11-01 16:00", "2024-11-01 17:00"), (dt.datetime(2024, 11, 1, 16), np.datetime64("2024-11-01T17:00")),
        ("2h", dt.timedelta(hours=3)), ("2024-11-01T15:00Z", "2024-11-01 17:00+01:00"),
    ):  # fmt: skip
        by_date = fit.counterfactual(recording, do, start, stop)
        np.testing.assert_array_equal(by_date["turbine"].mean, by_row["turbine"].mean)
    assert "from 2024-11-01 16:00 to 16:59 CET" in by_row.sentence()
    frame = by_row["turbine"].to_frame()
    assert frame.schema["time"] == polars.Datetime("ns", BERLIN)
    assert frame["time"][0].isoformat() == "2024-11-01T16:00:00+01:00"
    assert str(by_row["turbine"].to_pandas().index[0]) == "2024-11-01 16:00:00+01:00"
    effect = fit.effect("boiler", "turbine", {"u1": 1.0}, horizon="20 min", duration="5 min")
    np.testing.assert_array_equal(effect.mean, fit.effect("boiler", "turbine", {"u1": 1.0}, 20, 5).mean)
    shares = fit.attribute(recording, "turbine", "2024-11-01 16:00", "2024-11-01 17:00")
    assert shares.first == 120
    assert "from 2024-11-01 16:00 to 16:59 CET" in shares.sentence()
    ahead = fit.forecast(recording, horizon="10 min")["turbine"].to_frame()
    assert ahead["time"][-1].isoformat() == "2024-11-01T19:10:00+01:00"
    assert ahead["row"][-1] == 310
    with pytest.raises(cf.OptionError, match="counterfactual: start is '2025-01-01', but the recording goes from"):
        fit.counterfactual(recording, do, "2025-01-01")


def test_a_duration_as_stop_counts_from_start(fitted: tuple[cf.Recording, cf.Fit]) -> None:
    recording, fit = fitted
    do = {"boiler": {"u1": 0.0}}
    wanted = fit.counterfactual(recording, do, 120, 180)["turbine"]
    for start in ("2024-11-01 16:00", 120):
        world = fit.counterfactual(recording, do, start, "1h")["turbine"]
        np.testing.assert_array_equal(world.mean, wanted.mean)
    assert fit.attribute(recording, "turbine", "2024-11-01 16:00", "30 min").first == 120
    assert recording.slice("2024-11-01 16:00", "1h") == recording.slice(120, 180)
    for start, stop in (("30 min", None), ("2024-11-01 16:30", "30 min"), (150, "30 min"), ("30 min", "1h")):
        window = wanted.window(start, stop)
        assert (window.start, window.stop) == (30, 60), "of a window, times count from the start of the question"
    with pytest.raises(cf.OptionError, match="the answer goes from 2024-11-01 16:00 CET to 2024-11-01 16:59 CET"):
        wanted.window("2024-11-01 15:00")
    with pytest.raises(cf.OptionError, match="2024-11-01 16:00 CET to 2024-11-01 16:59 CET"):
        wanted.window(0, 10)


@pytest.mark.parametrize(
    ("start", "stop", "said"),
    [
        ("2024-11-01 17:00", "2024-11-01 16:00",
         r"start is 2024-11-01 17:00 CET, stop 2024-11-01 16:00 CET: give a stop that is later than start"),
        ("2024-11-01 17:00", 120, "stop 2024-11-01 16:00 CET"),
        ("2024-11-01 17:00", "9h",
         "stop is '9h' from 2024-11-01 17:00 CET on, but the recording goes from 2024-11-01 14:00 CET to"),
        ("9h", None, "start is '9h', but the recording goes from 2024-11-01 14:00 CET to 2024-11-01 19:00 CET"),
        ("2024-11-01 17:00", "1e400 h", "give a row, a date"),
        ("2024-11-01 17:00", "9" * 400 + "h", "recording goes from|date"),
        ("2024-11-01 17:00", "0s", "give a stop that is later"),
    ],
)  # fmt: skip
def test_windows_that_cannot_be_are_told_in_dates(
    fitted: tuple[cf.Recording, cf.Fit], start: Any, stop: Any, said: str
) -> None:
    recording, fit = fitted
    with pytest.raises(cf.OptionError, match=said):
        fit.counterfactual(recording, {"boiler": {"u1": 0.0}}, start, stop)


def test_a_fit_keeps_its_calendar(fitted: tuple[cf.Recording, cf.Fit], tmp_path: Path) -> None:
    recording, fit = fitted
    fit.save(tmp_path / "fit")
    recording.save(tmp_path / "recording.safetensors")
    assert cf.load(tmp_path / "fit").calendar == fit.calendar == recording.calendar
    assert cf.Recording.load(tmp_path / "recording.safetensors").calendar == recording.calendar
    assert recording.slice("2024-11-01 16:00").calendar.shown(0) == "2024-11-01 16:00 CET"  # type: ignore[union-attr]
    first = cf.fit(recording.slice(0, 200), fit.plant.locals())
    updated = first.update(recording.slice(200))
    assert updated.calendar.at(updated.server.rows - 1) == recording.calendar.at(300)  # type: ignore[union-attr]


def test_frames_keep_time_and_zone(fitted: tuple[cf.Recording, cf.Fit]) -> None:
    recording, _ = fitted
    for frame in (recording.to_frame(), recording.to_pandas()):
        again = cf.Recording.from_frame(frame, recording.units)
        assert again == recording
        assert again.calendar == recording.calendar
    with pytest.raises(cf.DataError, match="not evenly spaced"):
        cf.Recording.from_frame(recording.to_frame()[[0, 1, 3]], recording.units)


@pytest.mark.parametrize(("timezone", "zone"), [(None, ""), (BERLIN, BERLIN)])
def test_logs_bring_their_calendar(timezone: str | None, zone: str) -> None:
    hours = ["01:00", "02:00", "02:00", "03:00", "04:00"]
    table = polars.DataFrame({"time": [f"2024-10-27 {h}" for h in hours], "x": [1.0, 2, 3, 4, 5]})
    options = {} if timezone is None else {"timezone": timezone}
    recording, _ = read_logs(table, {"tank": "x"}, **options)
    assert recording.calendar is not None
    assert recording.calendar.zone == zone
    assert recording.rows == (5 if timezone else 4)
    gap = polars.DataFrame(
        {"time": [f"2024-11-01 {h}Z" for h in ("06:00", "06:01", "09:00", "09:01")], "x": [1, 2, 3, 4]}
    )
    shortened, _ = read_logs(gap, {"tank": "x"}, longest_gap=120)
    assert shortened.times is not None
    assert [str(time)[11:16] for time in shortened.times[[0, 1, -2, -1]]] == ["06:00", "06:01", "09:00", "09:01"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"begins": 0, "step": 0}, "step is 0"),
        ({"begins": 0.5, "step": 1}, "whole nanoseconds"),
        ({"begins": 0, "step": 1, "zone": "Mars/Olympus"}, "time zone 'Mars/Olympus' is not known"),
        ({"begins": 0, "step": 1, "jumps": ((3, -1),)}, "forward in time"),
    ],
)
def test_impossible_calendars(given: dict, said: str) -> None:
    with pytest.raises(cf.CounterflowError, match=said):
        Calendar(**given)
