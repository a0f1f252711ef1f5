"""Numbers that stand for no number are found, told and read as missing; numbers that are meant are kept."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars
import pytest

import counterflow as cf
from counterflow.data import open_table, sample
from counterflow.data.columns import sentinels_of

RNG = np.random.default_rng(3)


@pytest.mark.parametrize("value", [-999.0, -9999.0, 9999.0, -999.25, 1e30, 32767.0, -1e6, 123456.0])
@pytest.mark.parametrize(("low", "high"), [(20.0, 60.0), (0.0, 1.0), (-5.0, 100.0)])
def test_what_recurs_far_outside_is_found(value: float, low: float, high: float) -> None:
    series = RNG.uniform(low, high, 400)
    series[RNG.choice(400, 20, replace=False)] = value
    assert sentinels_of(series) == {value: 20}


def test_two_of_them_are_found() -> None:
    series = RNG.uniform(0, 100, 400)
    series[:10], series[50:55] = -999.0, 9999.0
    assert sentinels_of(series) == {-999.0: 10, 9999.0: 5}


@pytest.mark.parametrize(
    "series",
    [
        np.where(np.arange(400) % 7 == 0, 0.0, RNG.uniform(50, 60, 400)),  # a pump that is off at times
        np.where(np.arange(400) % 50 == 0, 100.0, RNG.uniform(0, 1, 400))[:60],  # twice only
        RNG.choice([0.0, 1.0, 2.0, 50.0], 400),  # levels
        np.repeat(RNG.normal(50, 10, 40), 10),  # a set point
        np.r_[RNG.uniform(40, 50, 300), np.full(100, 99.0)],  # 99 % is a valve's place
        RNG.uniform(0, 1, 400),
        np.full(50, -999.0),
        np.zeros(0),
        np.full(9, np.nan),
    ],
)
def test_what_is_meant_is_kept(series: np.ndarray) -> None:
    assert sentinels_of(series) == {}


def test_a_log_with_sentinels_gives_the_answer_of_one_with_gaps(tmp_path: Path) -> None:
    """5 % of all outputs are -999, and nothing is said about it by hand."""
    whole = polars.read_csv(sample.path(), skip_lines=1, skip_rows_after_header=1, infer_schema_length=0)
    rng = np.random.default_rng(1)
    outputs = [name for name in whole.columns if name.endswith(".PV") and name != "PI-109.PV"]
    lost = {name: polars.lit(polars.Series(rng.random(len(whole)) < 0.05)) for name in outputs}
    for word in ("-999", ""):
        marked = (polars.when(rows).then(polars.lit(word)).otherwise(name).alias(name) for name, rows in lost.items())
        whole.with_columns(marked).write_csv(tmp_path / f"log{word}.csv")
    found, told = cf.read_logs(tmp_path / "log-999.csv")
    expected, _ = cf.read_logs(tmp_path / "log.csv")
    assert found == expected
    steps = [step for step in told.steps if step.name == "sentinel"]
    assert [(step.doubt, set(step.numbers)) for step in steps] == [(True, set(outputs))]


def test_they_can_be_kept() -> None:
    frame = polars.DataFrame({"time": range(30), "flow": [-999.0 if k % 9 == 0 else float(k) for k in range(30)]})
    assert np.isnan(open_table(frame).numbers(["flow"])["flow"].values).sum() == 4
    assert (open_table(frame, sentinels=False).numbers(["flow"])["flow"].values == -999.0).sum() == 4
