"""From a table to a regular grid, against plain loops; and the report of what was done."""

from __future__ import annotations

import json
import math
from datetime import datetime
from typing import Any

import numpy as np
import polars
import pytest
from tolerances import EXACT

import counterflow as cf
from counterflow.data import Preparation, Step, choose, open_table, read_logs
from counterflow.data.grid import Rules
from counterflow.data.preparation import align

UNITS = {"u": {"tags": "u_*", "inputs": "u_in*"}}


def step(preparation: Preparation, name: str) -> Step:
    (found,) = (each for each in preparation.steps if each.name == name)
    return found


def loop_grid(seconds: list[float], values: list[float], dt: float, how: str) -> list[float]:
    """A plain-loop twin: sort, keep the last of equal times, gather in steps of dt from the first time on."""
    kept: dict[float, float] = {}
    for second, value in zip(seconds, values, strict=True):
        kept.pop(second, None)
        kept[second] = value
    ordered = sorted(kept.items())
    start = ordered[0][0]
    cells: dict[int, list[float]] = {}
    for second, value in ordered:
        if not math.isnan(value):
            cells.setdefault(int((second - start) // dt), []).append(value)
    out = []
    for k in range(int((ordered[-1][0] - start) // dt) + 1):
        some = cells.get(k)
        out.append(math.nan if not some else some[-1] if how == "last" else sum(some) / len(some))
    return out


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("dt", [1.0, 7.0, 30.0])
def test_the_grid_against_a_plain_loop(seed: int, dt: float) -> None:
    rng = np.random.default_rng(seed)
    seconds = np.cumsum(rng.choice([0, 1, 1, 1, 1, 1, 3, 40], 500)).astype(float)
    order = rng.permutation(500)
    inputs = np.round(rng.standard_normal(500), 3)
    outputs = rng.standard_normal(500)
    outputs[rng.random(500) < 0.2] = np.nan
    frame = polars.DataFrame({"time": seconds[order], "u_in": inputs[order], "u_out": outputs[order]})
    recording, preparation = read_logs(frame, UNITS, dt=dt)
    how = "last" if dt == 1.0 else "mean"
    y = loop_grid(seconds[order].tolist(), outputs[order].tolist(), dt, how)
    np.testing.assert_allclose(recording["u"].y[:, 0], y, rtol=EXACT)
    u = np.array(loop_grid(seconds[order].tolist(), inputs[order].tolist(), dt, "last"))
    for k in range(1, len(u)):
        u[k] = u[k - 1] if np.isnan(u[k]) else u[k]
    np.testing.assert_array_equal(recording["u"].u[:, 0], u)
    repeated = step(preparation, "duplicates")
    assert repeated.numbers["rows"] == 500 - len(set(seconds.tolist()))
    assert recording.dt == preparation.dt == dt


def test_resampling_keeps_discrete_outputs_and_inputs_as_they_are() -> None:
    ramp = np.linspace(0, 59, 60)
    columns = {"time": np.arange(60.0), "u_in": ramp, "u_mode": [0.0, 1.0, 1.0] * 20, "u_level": ramp}
    frame = polars.DataFrame(columns)
    part = read_logs(frame, UNITS, dt=10)[0]["u"]
    assert part.unit.output_names == ("u_mode", "u_level")
    assert part.u[:, 0].tolist() == [9, 19, 29, 39, 49, 59]
    assert part.y[:, 0].tolist() == [0, 1, 1, 0, 1, 1]  # the last of each step, not 0.6 of a mode
    assert part.y[:, 1].tolist() == [4.5, 14.5, 24.5, 34.5, 44.5, 54.5]
    assert read_logs(frame, UNITS, dt=10, resample="mean")[0]["u"].u[0, 0] == 4.5
    assert read_logs(frame, UNITS, dt=10, resample="last")[0]["u"].y[0, 1] == 9


def test_full_minutes_and_jitter() -> None:
    times = [f"2024-05-01 06:0{s // 60}:{s % 60:02d}" for s in range(40, 120, 5)]
    frame = polars.DataFrame({"time": times, "u_out": np.arange(16.0)})
    recording, preparation = read_logs(frame, {"u": "u_*"}, dt=60)
    assert preparation.start == "2024-05-01 06:00:00"
    assert recording["u"].y.ravel().tolist() == [1.5, 9.5]
    seconds = np.arange(1000.0) + np.random.default_rng(0).uniform(-0.3, 0.3, 1000) * (np.arange(1000) > 0)
    jittered = polars.DataFrame({"time": seconds, "u_x": np.arange(1000.0)})
    recording, preparation = read_logs(jittered, {"u": "u_*"}, dt=1)
    assert recording["u"].y.ravel().tolist() == list(range(1000))  # neither repeats nor holes
    assert len(preparation.stretches) == 1


def gappy(**options: object) -> tuple[cf.Recording, Preparation]:
    seconds = [*range(10), *range(13, 30), *range(130, 140)]
    values = [float(second) for second in seconds]
    return read_logs(polars.DataFrame({"time": seconds, "u_in": values, "u_out": values}), UNITS, **options)


def test_gaps_are_missing_in_outputs_and_held_in_inputs() -> None:
    recording, preparation = gappy(longest_hold=5)
    y, u = recording["u"].y[:, 0], recording["u"].u[:, 0]
    assert recording.rows == 140
    assert np.flatnonzero(np.isnan(y)).tolist() == [10, 11, 12, *range(30, 130)]
    assert u[[9, 10, 12, 13, 29, 30, 129, 130]].tolist() == [9, 9, 9, 13, 29, 29, 29, 130]
    assert preparation.stretches == ((0, 30), (130, 140))
    assert preparation.longest_stretch == (0, 30)
    unknown = step(preparation, "unknown inputs")
    assert unknown.doubt
    assert unknown.numbers == {"u_in": 100}
    assert step(preparation, "held").numbers == {"u_in": 103}
    assert not any(step.name == "unknown inputs" for step in gappy(longest_hold=100)[1].steps)
    told = json.loads(json.dumps(preparation.to_json()))
    assert told["rows"] == 140
    assert told["stretches"] == [[0, 30], [130, 140]]
    assert all(step["text"] in str(preparation) for step in told["steps"])
    lines = gappy(fill="interpolate")[0]["u"].u[:, 0]
    np.testing.assert_allclose(lines, np.arange(140.0), rtol=EXACT)


def test_long_gaps_may_be_refused_cut_off_or_shortened() -> None:
    with pytest.raises(cf.DataError, match=r"unit 'u': input 'u_in' is missing for 100 rows in a row.*longest_hold"):
        gappy(longest_hold=5, long_gaps="refuse")
    recording, preparation = gappy(longest_hold=5, long_gaps="longest")
    assert recording.rows == preparation.rows == 30
    assert preparation.stretches == ((0, 30),)
    recording, preparation = gappy(longest_hold=5, longest_gap=20)
    y = recording["u"].y[:, 0]
    assert recording.rows == 60
    assert np.flatnonzero(np.isnan(y)).tolist() == [10, 11, 12, *range(30, 50)]
    assert y[[29, 50, 59]].tolist() == [29, 130, 139]
    assert preparation.stop == "139 s"
    shortened = step(preparation, "shorten")
    assert shortened.numbers["gaps"] == 1
    assert shortened.numbers["hours"] == pytest.approx(80 / 3600, rel=EXACT)


def test_start_and_stop() -> None:
    recording, preparation = gappy(start=5, stop=20)
    assert recording["u"].y[[0, -1], 0].tolist() == [5, 19]
    assert step(preparation, "period").numbers["rows"] == 25
    for start, said in ((1000, "no row of the table is left between start and stop"), ("2024-05-01", "start is '2024")):
        with pytest.raises(cf.DataError, match=said):
            gappy(start=start)


def test_late_inputs_infinite_values_and_repeated_times_that_disagree() -> None:
    infinite, none = float("inf"), None
    columns = {"time": [0, 1, 1, 2, 2, 2, 3], "u_in": [none, none, none, 2.0, 2, 2, 3]}
    frame = polars.DataFrame({**columns, "u_out": [0.0, 1, 1, 2, 9, 8, infinite]})
    recording, preparation = read_logs(frame, UNITS)
    np.testing.assert_array_equal(recording["u"].y[:, 0], [0, 1, 8, np.nan])
    assert recording["u"].u[:, 0].tolist() == [2, 2, 2, 3]  # its first value stands for what is missing before
    assert step(preparation, "beginning").numbers == {"u_in": 2}
    assert "1 infinite value: treated as missing in u_out (1)." in preparation.doubts
    repeated = step(preparation, "duplicates")
    assert repeated.numbers == {"rows": 3, "conflicts": 2}
    assert repeated.doubt


def test_constant_and_empty_channels_are_dropped_and_reported() -> None:
    frame = polars.DataFrame(
        {"time": [0, 1, 2], "u_in1": [1.0, 1, 1], "u_in2": [1.0, 2, 1], "u_a": [None, None, None], "u_b": [1.0, 2, 3]}
    )
    recording, preparation = read_logs(frame, UNITS)
    assert recording["u"].unit.input_names == ("u_in2",)
    assert recording["u"].unit.output_names == ("u_b",)
    assert preparation.dropped == {"u": {"u_in1": "always 1", "u_a": "no value at all"}}
    recording, preparation = read_logs(frame, UNITS, drop_constant=False)
    assert recording["u"].unit.input_names == ("u_in1", "u_in2")
    assert np.isnan(recording["u"].y[:, 0]).all()
    with pytest.raises(cf.DataError, match="input 'u_a' has no value at all"):
        read_logs(frame, {"u": {"inputs": "u_a", "outputs": "u_b"}}, drop_constant=False)


def test_without_a_time_column_rows_are_taken_as_they_come() -> None:
    frame = polars.DataFrame({"u_in": [1.0, 2.0, None], "u_out": [1.0, 2.0, 3.0]})
    recording, preparation = read_logs(frame, UNITS, dt=60)
    assert (recording.rows, recording.dt) == (3, 60.0)
    assert recording["u"].u[:, 0].tolist() == [1, 2, 2]
    assert preparation.start == "row 0"
    with pytest.raises(cf.OptionError, match="start and stop need a time column"):
        read_logs(frame, UNITS, start=3)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"dtt": 1}, "option 'dtt' is not known: did you mean 'dt'?"),
        ({"dt": 0}, "dt is 0: give seconds, above 0"),
        ({"dt": "60"}, "dt is '60': give seconds"),
        ({"dt": float("nan")}, "dt is nan"),
        ({"dt": True}, "dt is True"),
        ({"resample": "max"}, "resample is 'max': give one of auto, mean, last"),
        ({"fill": "zero"}, "fill is 'zero'"),
        ({"long_gaps": "cut"}, "long_gaps is 'cut'"),
        ({"longest_hold": -1}, "longest_hold is -1"),
        ({"text": 3}, "text is 3"),
        ({"drop_constant": "no"}, "drop_constant is 'no'"),
    ],
)
def test_options_that_cannot_be(options: dict[str, object], said: str) -> None:
    with pytest.raises(cf.OptionError) as caught:
        gappy(**options)
    assert said in str(caught.value)


def test_a_step_that_would_need_endless_rows() -> None:
    frame = polars.DataFrame({"time": [0.0, 1.0, 1e9], "u_out": [1.0, 2.0, 3.0]})
    with pytest.raises(cf.DataError, match="spread over 1000000001 rows"):
        read_logs(frame, {"u": "u_*"})
    assert read_logs(frame, {"u": "u_*"}, longest_gap=10)[0].rows == 13


@pytest.mark.parametrize("long", [False, True])
def test_rows_whose_time_cannot_be_read_are_a_doubt(long: bool) -> None:
    stamps = [f"2024-05-01 06:{k:02d}" for k in range(60)] * (2 if long else 1)
    stamps[30] = "2024-13-45 99:99"
    columns = {"flow": [float(k) for k in range(60)]}
    if long:
        columns = {"tag": ["flow"] * 60 + ["level"] * 60, "value": [float(k % 7) for k in range(120)]}
    _, preparation = read_logs(polars.DataFrame({"time": stamps, **columns}), {"pump": {"outputs": "flow"}})
    assert any("1 row " in doubt and "'2024-13-45 99:99' in row 30" in doubt for doubt in preparation.doubts)


def test_names_that_channels_may_not_have_are_told() -> None:
    names = {"x": "x", "x\u202e": "x_3", "x_2": "x_2", "a/b": "a-b", ".hidden": "hidden", "///": "---",
             "n" * 300: "n" * 95, "é" * 200: "é" * 95}  # fmt: skip
    columns = {name: [float(k), k + 1.0, k + 2.0] for k, name in enumerate(names)}
    frame = polars.DataFrame({"in": [0.0, 1, 0], **columns})
    recording, preparation = read_logs(frame, {"u": {"tags": "*", "inputs": "in"}})
    assert recording["u"].unit.output_names == tuple(names.values())
    np.testing.assert_array_equal(recording["u"].y[0], range(len(names)))
    assert step(preparation, "renamed").numbers == {old: new for old, new in names.items() if old != new}


# ---- logs of several units


def timed(start: datetime, stop: datetime, every: str) -> polars.DataFrame:
    times = polars.datetime_range(start, stop, every, eager=True)
    return polars.DataFrame({"time": times, "x": np.arange(len(times), dtype=float)})


TABLES = {
    "slow": timed(datetime(2024, 5, 1, 6), datetime(2024, 5, 1, 6, 30), "1m"),
    "fast": timed(datetime(2024, 5, 1, 6, 10, 30), datetime(2024, 5, 1, 6, 40), "10s"),
    "late": polars.DataFrame({"time": ["2025-01-01 00:00", "2025-01-01 00:01"], "x": [1.0, 2.0]}),
    "zoned": polars.DataFrame({"time": ["2024-05-01T06:00Z", "2024-05-01T06:30Z"], "x": [1.0, 2.0]}),
}


def aligned(*names: str, **options: Any) -> tuple[cf.Recording, dict[str, Preparation]]:
    tables = {name: open_table(TABLES[name]) for name in names}
    units = {name: choose({name: "x"}, table.channels)[0] for name, table in tables.items()}
    return align(tables, units, Rules(**options))


def test_logs_with_their_own_times_are_aligned() -> None:
    recording, reports = aligned("slow", "fast")
    assert (recording.rows, recording.dt) == (20, 60.0)
    assert reports["slow"].start == reports["fast"].start == "2024-05-01 06:11:00"
    assert recording["slow"].y.ravel().tolist() == [float(k) for k in range(11, 31)]
    assert recording["fast"].y.ravel().tolist() == [3 + 6 * k + 2.5 for k in range(20)]
    with pytest.raises(cf.DataError, match=r"share no period of 2 rows: that of unit 'late' begins at 2025-01-01"):
        aligned("slow", "late")
    with pytest.raises(cf.DataError, match="some logs tell a time zone"):
        aligned("slow", "zoned")
    with pytest.raises(cf.OptionError, match="longest_gap"):
        aligned("slow", "fast", longest_gap=5)
