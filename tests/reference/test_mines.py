"""The real log: a reduced run of benchmarks/bench_mines.py, and the harness it rests on."""

from __future__ import annotations

import gzip
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import counterflow as cf
from counterflow.checks import check, free_run

_PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "mines.py"


def _harness():
    spec = importlib.util.spec_from_file_location("mines", _PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


mines = _harness()
with_log = pytest.mark.skipif(mines.find() is None, reason=mines.ABSENT)


# ---- the harness, on a made-up file of the same form


ROWS = 400
GAP = slice(100, 130)  # rows left out of the file
BRIDGE = slice(200, 220)  # rows on straight lines
DRAIN = slice(300, 304)


@pytest.fixture(scope="module")
def made_up(tmp_path_factory):
    """A file with one gap, one bridged stretch and a drained tank, and what was put into it."""
    rng = np.random.default_rng(5)
    names = sorted({*mines.COLUMNS.values(), *mines.NOISY, "sewage_flow"} - {"sewage_to_1", "sewage_to_2"})
    values = {name: 10 + rng.normal(size=ROWS) for name in names}
    phase = (np.arange(ROWS) // 30) % 4
    for at, name in enumerate(("bio_1_phase_1", "bio_1_phase_2", "bio_2_phase_1", "bio_2_phase_2")):
        values[name] = (phase == at).astype(float)
    for name in ("mbr_1_level", "mbr_2_level"):
        values[name] = 9.9 + 0.02 * rng.normal(size=ROWS)
    for name in mines.NOISY:
        ends = values[name][[BRIDGE.start, BRIDGE.stop - 1]]
        values[name][BRIDGE] = np.linspace(*ends, BRIDGE.stop - BRIDGE.start)
    values["mbr_2_level"][DRAIN] = 8.4
    start = np.datetime64("2010-04-16T19:30")
    lines = [",".join(["time", *names])]
    for row in range(ROWS):
        if not GAP.start <= row < GAP.stop:
            stamp = str(start + row).replace("T", " ") + ":00"
            lines.append(",".join([stamp, *(repr(float(values[name][row])) for name in names)]))
    path = tmp_path_factory.mktemp("mines") / "log.csv.gz"
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return mines.load(path), values


def test_rows_that_cannot_be_trusted_are_found_and_no_others(made_up):
    log, _ = made_up
    where = {name: np.flatnonzero(getattr(log, name)) for name in ("absent", "bridged", "drained")}
    assert where["absent"].tolist() == list(range(GAP.start, GAP.stop))
    assert where["bridged"].tolist() == list(range(BRIDGE.start, BRIDGE.stop))
    assert where["drained"].tolist() == list(range(DRAIN.start, DRAIN.stop))


def test_sewage_goes_to_the_reactor_that_is_in_no_phase(made_up):
    log, values = made_up
    there = ~log.absent
    for which in ("1", "2"):
        busy = values[f"bio_{which}_phase_1"] + values[f"bio_{which}_phase_2"]
        expected = np.where(busy > 0, 0.0, values["sewage_flow"])
        np.testing.assert_array_equal(log.columns[f"sewage_to_{which}"][there], expected[there])


def test_forecasts_start_at_full_ten_minutes_amid_clean_rows(made_up):
    log, _ = made_up
    starts = log.starts(slice(0, log.rows))
    expected = [
        row
        for row in range(ROWS)
        if row % 10 == 0  # the file begins at 19:30
        and row - mines.WARM_UP >= 0
        and row + mines.HORIZON < ROWS
        and log.clean[row - mines.WARM_UP : row + mines.HORIZON + 1].all()
    ]
    assert starts.tolist() == expected
    assert expected  # there are some


def test_inputs_are_held_and_measurements_missing_where_the_log_is(made_up):
    log, values = made_up
    part = mines.recording(log)["bio_1"]
    assert np.isnan(part.y[~log.clean]).all()
    assert np.isfinite(part.y[log.clean]).all()
    blower = part.u[:, part.unit.input_names.index("blower")]
    assert (blower[GAP] == values["bio_1_blow_flow"][GAP.start - 1]).all()


def test_a_slow_channel_is_judged_at_its_samples_only(made_up):
    log, values = made_up
    starts = log.starts(slice(0, log.rows))
    still = mines.persistence(log, starts, "bio_1", "level")
    errors = mines.squared_errors(log, starts, "bio_1", "level", still)
    level = values["bio_1_level"]
    expected = (level[starts][:, None] - level[starts[:, None] + np.array([10, 20, 30])]) ** 2
    np.testing.assert_allclose(errors, expected, rtol=1e-12)
    assert mines.squared_errors(log, starts, "bio_1", "do", still).shape == (len(starts), mines.HORIZON)


def test_the_interval_of_a_ratio_covers_it():
    """Errors whose true ratio is 0.8 and that differ from day to day: about 95 % of the intervals hold it."""
    rng = np.random.default_rng(7)
    days = np.repeat(np.arange(25), 40)
    held = []
    for _ in range(200):
        common = np.exp(rng.normal(scale=0.3, size=25))[days, None]
        first = 0.8**2 * common * rng.chisquare(5, size=(1000, 3)) / 5
        second = common * rng.chisquare(5, size=(1000, 3)) / 5
        found = mines.compare(days, first, second, draws=300)
        held.append(found.low <= 0.8 <= found.high)
        assert found.better
    assert 0.88 <= np.mean(held) <= 0.99  # 200 runs: a standard error of 0.015; a bootstrap of 25 days is a bit short


# ---- the log itself


UNITS = ("bio_1", "mbr_1", "works")
LONGEST = slice(25850, 28399)  # the longest clean stretch among the training rows


@pytest.fixture(scope="module")
def reduced():
    """Three units, fitted on the longest clean stretch; and two of them, each by itself."""
    log = mines.load()
    recording = mines.recording(log, LONGEST)

    def part(names):
        return cf.Recording({name: recording[name] for name in names}, recording.dt)

    joint = cf.fit(part(UNITS))
    alone = {name: cf.fit(part([name])).parts[name] for name in UNITS[:2]}
    return log, joint, alone


@with_log
def test_the_log_is_as_described():
    log = mines.load()
    assert (log.rows, int(log.absent.sum())) == (44_571, 1_019)
    gaps = np.flatnonzero(np.diff(log.absent.astype(int)) == 1)
    assert len(gaps) == 17
    assert log.clean[LONGEST].all()
    assert log.train.start <= LONGEST.start
    assert log.train.stop == log.held_out.start
    assert len(log.starts(log.held_out)) > 1000


@with_log
def test_the_other_units_help_to_predict_levels(reduced):
    """Half an hour ahead on days that were not fitted: below persistence and below the unit alone."""
    log, joint, alone = reduced
    rows = slice(log.held_out.start, log.held_out.start + 5000)
    starts = log.starts(rows)
    recording = mines.recording(log, rows)
    kept = cf.Recording({name: recording[name] for name in UNITS}, recording.dt)
    runs = free_run(joint, kept, mines.HORIZON, starts - rows.start, alone)
    days = mines.days(log, starts)
    for unit in ("bio_1", "mbr_1"):
        run, at = runs[unit], runs[unit].channels.index("level")
        joint_errors, own_errors, still = (
            mines.squared_errors(log, starts, unit, "level", forecast)
            for forecast in (run.joint[:, :, at], run.local[:, :, at], mines.persistence(log, starts, unit, "level"))
        )
        assert mines.compare(days, joint_errors, own_errors).better, unit
        assert mines.compare(days, joint_errors, still).ratio < 0.8, unit


@with_log
def test_the_checks_see_the_sequencer_and_the_controllers(reduced):
    """No answer of this plant is safe for what will happen in the running plant, and the checks say so."""
    _, joint, _ = reduced
    found = check(joint)
    assert found.verdict == "fail"
    assert {each.about for each in found["feedback"] if each.verdict == "fail"} & {"bio_1 blower", "mbr_1 mode_1"}


@with_log
def test_membranes_answer_their_mode_in_the_same_row(reduced):
    _, joint, _ = reduced
    assert joint.parts["mbr_1"].point.same_row
