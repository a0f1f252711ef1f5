"""What `inspect` counts, against plain loops; and what it says."""

from __future__ import annotations

import json
import math
from itertools import pairwise

import numpy as np
import polars
import pytest
from tolerances import EXACT

import counterflow as cf
from counterflow.data import inspect
from counterflow.data.grid import time_facts
from counterflow.data.inspection import count_spikes, guess_unit
from counterflow.data.times import Times
from counterflow.plant.calendar import SECOND


def loop_facts(values: list[float]) -> dict[str, float]:
    """A plain-loop twin of what is counted of a channel."""
    known = [v for v in values if math.isfinite(v)]
    mean = sum(known) / len(known)
    held, run, longest = 0, 1, 1
    for before, here in pairwise(known):
        run = run + 1 if here == before else 1
        held += here == before
        longest = max(longest, run)
    return {
        "missing": sum(math.isnan(v) for v in values),
        "infinite": sum(math.isinf(v) for v in values),
        "low": min(known),
        "high": max(known),
        "mean": mean,
        "spread": math.sqrt(sum((v - mean) ** 2 for v in known) / len(known)),
        "levels": len(set(known)),
        "held": held / (len(known) - 1),
        "longest_hold": longest,
    }


@pytest.mark.parametrize("seed", range(6))
def test_channels_against_plain_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = 400
    noisy = 1e6 + rng.standard_normal(rows)
    held = np.repeat(rng.standard_normal(rows // 8), 8)
    levels = rng.integers(0, 4, rows).astype(float)
    columns = {"noisy": noisy, "held": held, "levels": levels}
    for values in columns.values():
        values[rng.random(rows) < 0.1] = np.nan
        values[rng.integers(rows)] = np.inf
    order = rng.permutation(rows)  # the time decides, not the order in the file
    frame = polars.DataFrame({"time": order, **{name: values[order] for name, values in columns.items()}})
    found = inspect(frame)
    for name, values in columns.items():
        for key, expected in loop_facts(values.tolist()).items():
            assert getattr(found[name], key) == pytest.approx(expected, rel=EXACT), (name, key)


def test_times_against_a_plain_loop() -> None:
    rng = np.random.default_rng(3)
    seconds = np.cumsum(rng.choice([0, 10, 10, 10, 10, 11, 35, 500], 300))
    swapped = seconds.copy()
    for k in (20, 90, 91, 200):
        swapped[[k, k + 1]] = swapped[[k + 1, k]]
    facts = time_facts(Times(swapped * SECOND, "seconds", dated=False))
    ordered = sorted(swapped.tolist())
    steps = [b - a for a, b in pairwise(ordered)]
    positive = sorted(s for s in steps if s > 0)
    usual = positive[(len(positive) - 1) // 2]
    assert facts.step == usual * SECOND == 10 * SECOND
    assert facts.duplicates == steps.count(0)
    assert facts.out_of_order == sum(b < a for a, b in pairwise(swapped.tolist()))
    assert [gap.seconds for gap in facts.gaps] == [s for s in steps if s > 15]
    assert [gap.rows for gap in facts.gaps] == [round(s / 10) - 1 for s in steps if s > 15]
    assert facts.regular == pytest.approx(sum(s == 10 for s in positive) / len(positive), rel=EXACT)
    assert (facts.start, facts.stop) == (ordered[0] * SECOND, ordered[-1] * SECOND)


def test_spikes_against_a_plain_loop() -> None:
    rng = np.random.default_rng(4)
    values = np.cumsum(rng.standard_normal(1000)) * 0.1
    at = [50, 300, 301, 700]
    values[at] += [20.0, 25.0, 25.0, -30.0]  # 300 and 301 are two rows: not a spike
    values[500] = np.nan
    values[501] = 80.0  # beside a missing row: not judged
    finite = np.sort(values[np.isfinite(values)])
    first, third = np.percentile(finite, [25, 75])
    spread = (third - first) / 1.349
    count = 0
    for k in range(1, 999):
        a, b, c = values[k - 1 : k + 2]
        if np.isfinite([a, b, c]).all() and (b - max(a, c) > 6 * spread or min(a, c) - b > 6 * spread):
            count += 1
    assert count_spikes(values) == count == 2
    assert count_spikes(np.zeros(10)) == count_spikes(np.array([1.0, 2.0])) == 0


def test_the_whole_report_is_plain_json_and_text() -> None:
    frame = polars.DataFrame({"time": [0, 1, 2, 2, 9, 5, None], "a_x": [1.0, None, float("inf"), 3, 4, 5, 6]})
    found = inspect(frame)
    told = json.loads(json.dumps(found.to_json()))
    assert told["time"]["duplicates"] == told["time"]["out_of_order"] == told["time"]["untimed"] == 1
    assert told["time"]["gaps"][0] == {"after": "5 s", "seconds": 4.0, "rows": 3}
    assert told["channels"][0]["infinite"] == 1
    text = str(found)
    for word in ("1 row with a time that another", "1 row without a time", "earlier than the row", "2 gaps", "a_x"):
        assert word in text, word


@pytest.mark.parametrize(
    ("step", "decimals", "expected"), [(1 / 3, 2, 1 / 3), (0.25, 1, 0.25), (3.7, 0, 3.7), (62.5, 0, 62.5), (60, 0, 60)]
)
def test_the_step_of_rounded_times_is_the_one_before_rounding(step: float, decimals: int, expected: float) -> None:
    seconds = np.round(np.arange(3000) * step + 0.123, decimals)
    rows = np.delete(np.arange(3000), [5, *range(700, 950)])
    facts = time_facts(Times(np.round(seconds[rows] * SECOND).astype(np.int64), "seconds", dated=False))
    assert facts.step / SECOND == pytest.approx(expected, rel=1e-5)
    assert [gap.rows for gap in facts.gaps] == [1, 250]


def test_slips_of_the_clock_leave_the_usual_step() -> None:
    seconds = np.cumsum(np.where(np.arange(1000) % 40 == 7, 61, 60))
    assert time_facts(Times(seconds * SECOND, "seconds", dated=False)).step == 60 * SECOND
    irregular = np.cumsum(np.random.default_rng(0).integers(20, 61, 1000))
    assert time_facts(Times(irregular * SECOND, "seconds", dated=False)).step in np.diff(irregular) * SECOND


@pytest.mark.parametrize(
    ("values", "kind", "said"),
    [
        (np.linspace(0, 1, 60), "continuous", "fine"),
        (["on", "off", "on"] * 20, "on/off", "on/off: last value when resampled; rather an input"),
        ([0, 1, 2] * 20, "discrete", "3 levels"),
        ([7.0] * 60, "constant", "always 7: would be left out"),
        ([None] * 60, "empty", "no number at all: would be left out"),
        (["fine day"] * 60, "text", "text such as 'fine day': exclude it"),
        (["1.5"] * 59 + ["lovely"], "mixed", "1 cells of text such as 'lovely': refused unless"),
        ([float(k // 20 * 3 + (k % 20 == 0) * (k + 1) * 0.1) for k in range(60)], "discrete", "6 levels"),
    ],
)
def test_kinds_and_verdicts(values: list[object], kind: str, said: str) -> None:
    found = inspect(polars.DataFrame({"time": np.arange(60), "flow": values}))
    assert found["flow"].kind == kind
    assert found["flow"].verdict.startswith(said)
    with pytest.raises(cf.UnknownNameError, match="flow"):
        found["flov"]


@pytest.mark.parametrize(
    ("day", "hours", "change"),
    [
        ("2024-03-31", (0, 1, 3, 4), "forward by an hour after 2024-03-31 01:55:00"),
        ("2024-10-27", (1, 2, 2, 3), "back by an hour after 2024-10-27 02:55:00"),
    ],
)
def test_changes_of_the_clock_are_noticed(day: str, hours: tuple[int, ...], change: str) -> None:
    local = [f"{day} 0{h}:{m:02d}:00" for h in hours for m in range(0, 60, 5)]
    found = inspect(polars.DataFrame({"time": local, "x": np.arange(48.0)}))
    assert found.time is not None
    assert found.time.clock_changes == (change,)
    assert "give the option timezone" in str(found)


def test_units_are_guessed_from_tags() -> None:
    tags = {"P1_FCV01D": "P1", "bio_1_do": "bio_1", "LIT101": "1", "area:flow": "area", "x": "plant", "a.b.c": "a"}
    assert {tag: guess_unit(tag) for tag in tags} == tags
