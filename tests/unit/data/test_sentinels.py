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
    lines = sample.path().read_text(encoding="utf-8").splitlines()
    header, rng = lines[1].split(","), np.random.default_rng(1)
    outputs = [k for k, name in enumerate(header) if name.endswith(".PV") and name != "PI-109.PV"]
    spoilt, gaps = lines[:3], lines[:3]
    for line in lines[3:]:
        cells = line.split(",")
        lost = [k for k in outputs if len(cells) == len(header) and rng.random() < 0.05]
        spoilt = [*spoilt, ",".join("-999" if k in lost else cell for k, cell in enumerate(cells))]
        gaps = [*gaps, ",".join("" if k in lost else cell for k, cell in enumerate(cells))]
    (tmp_path / "spoilt.csv").write_text("\n".join(spoilt) + "\n", encoding="utf-8")
    (tmp_path / "gaps.csv").write_text("\n".join(gaps) + "\n", encoding="utf-8")
    found, told = cf.read_logs(tmp_path / "spoilt.csv")
    expected, _ = cf.read_logs(tmp_path / "gaps.csv")
    for name in expected.names:
        np.testing.assert_array_equal(found[name].y, expected[name].y)
    steps = [step for step in told.steps if step.name == "sentinel"]
    assert [(step.doubt, set(step.numbers)) for step in steps] == [(True, {header[k] for k in outputs})]


def test_they_can_be_kept() -> None:
    frame = polars.DataFrame({"time": range(30), "flow": [-999.0 if k % 9 == 0 else float(k) for k in range(30)]})
    assert np.isnan(open_table(frame).numbers(["flow"])["flow"].values).sum() == 4
    kept = open_table(frame, sentinels=False).numbers(["flow"])["flow"]
    assert (kept.values == -999.0).sum() == 4
    with pytest.raises(cf.CounterflowError, match="sentinels"):
        open_table(frame, sentinels="no")  # type: ignore[arg-type]
