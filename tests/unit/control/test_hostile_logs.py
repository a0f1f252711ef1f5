"""Laws learned from logs that are not as textbooks have them: what is believed is right, the rest is not used."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.signal import lfilter

import counterflow as cf
from counterflow.control.controller import found_loops, learned_loop
from counterflow.control.law import FREE, LoopRecord
from counterflow.exchange.controllers import controllers_of

ROWS, GAIN, TIME = 2000, 0.8, 12.0


def closed_loop(
    steps=True, noise=0.05, deadband=0.0, quantum=0.0, every=1, limits=(-9.0, 9.0), manual=0.0, flips=False, clean=False
):
    """Input, reading, target and disturbance of a loop, recorded as a historian has them."""
    rng = np.random.default_rng(0)
    aim = np.repeat(rng.uniform(-1, 1, ROWS // 40), 40) if steps else np.zeros(ROWS)
    load = np.repeat(rng.uniform(-1, 1, ROWS // 15 + 1), 15)[:ROWS]
    u, y, x, position, out, before = np.zeros(ROWS), np.zeros(ROWS), 0.0, 0.0, 0.0, 0.0
    for t in range(ROWS):
        y[t] = x + noise * rng.standard_normal()
        reading, sign = (x if clean else y[t]), -1.0 if flips and t > ROWS // 2 else 1.0
        error = aim[t] - reading
        if t % 200 < 200 * manual:
            out = rng.uniform(-1, 1) if t % 50 == 0 else out
            position, before = out, error
        elif t % every == 0:
            error = 0.0 if abs(error) < deadband else error
            position = position + sign * GAIN * (error - before + every / TIME * error)
            position, before = min(max(position, limits[0]), limits[1]), error
            out = round(position / quantum) * quantum if quantum else position
        u[t] = out
        x = 0.9 * x + 0.1 * sign * u[t] + 0.1 * load[t] + 0.02 * rng.standard_normal()
    return u, y, aim, load


LOGS = {
    "as it is": {},
    "dead band": {"deadband": 0.1},
    "wide dead band": {"deadband": 0.3},
    "half a percent": {"quantum": 0.01},
    "two percent": {"quantum": 0.05},
    "every fifth row": {"every": 5},
    "at its limits": {"limits": (-0.25, 0.25)},
    "half in manual": {"manual": 0.5},
    "without the noise": {"clean": True},
    "with little noise": {"clean": True, "noise": 0.005},
    "sign flips": {"flips": True},
}
NOT_USED = {"wide dead band", "every fifth row", "without the noise", "sign flips"}


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("kind", ["recorded", "moving", "constant"])
def test_a_law_that_is_used_is_right(name, kind):
    u, y, aim, _ = closed_loop(kind != "constant", **LOGS[name])
    loop = cf.Loop("valve", "level", "SP" if kind == "recorded" else None)
    found = learned_loop(loop, LoopRecord(u, y, aim if kind == "recorded" else None, 1.0))
    used = found is not None and found.usable
    if name in NOT_USED:
        assert not used
    if used:
        assert found.law.gain == pytest.approx(GAIN, rel=0.05)
        assert found.law.integral_time == pytest.approx(TIME, rel=0.05)
        assert found.law.limits == (LOGS[name].get("limits", FREE))
    if name == "half in manual" and kind != "moving":
        assert found.automatic == pytest.approx(0.5, abs=0.05)
    if name in ("as it is", "dead band", "half a percent", "at its limits", "half in manual"):
        assert used


@pytest.mark.parametrize("target", [True, False])
def test_rows_without_readings_and_inputs_recorded_late(target):
    u, y, aim, _ = closed_loop()
    loop, aims = cf.Loop("valve", "level", "SP" if target else None), aim if target else None
    gaps = np.where(np.random.default_rng(3).random(ROWS) < 0.1, np.nan, y)
    late = np.concatenate([u[:1], u[:-1]])
    for record, delay in ((LoopRecord(u, gaps, aims, 1.0), 0), (LoopRecord(late, y, aims, 1.0), 1)):
        found = learned_loop(loop, record)
        assert found.law.gain == pytest.approx(GAIN, rel=0.01)
        assert found.law.delay == delay


def test_of_two_readings_alike_the_one_that_it_reads_is_found():
    u, y, aim, _ = closed_loop()
    rng = np.random.default_rng(4)
    for other in (y + 0.05 * rng.standard_normal(ROWS), 1.5 * y + 0.2 + 0.01 * rng.standard_normal(ROWS)):
        found = found_loops(
            ("valve", "SP"), ("a", "b"), np.column_stack([u, aim]), np.column_stack([other, y]), 1.0, set()
        )
        assert [each.loop.reads for each in found] == ["b"]


@pytest.mark.parametrize("name", ["as it is", "dead band", "half a percent", "at its limits", "half in manual"])
def test_loops_are_found_in_such_logs(name):
    u, y, aim, load = closed_loop(**LOGS[name])
    found = found_loops(("valve", "load", "SP"), ("level",), np.column_stack([u, load, aim]), y[:, None], 1.0, set())
    assert [(each.loop.moves, each.loop.reads, each.loop.target) for each in found] == [("valve", "level", "SP")]


@pytest.mark.parametrize("seed", range(6))
def test_in_open_loop_nothing_is_found(seed):
    """Inputs of all kinds of memory; outputs that show one, sum one up, show its moves, or answer to all of them."""
    rng = np.random.default_rng(seed)
    rows = 1000
    polynomials = ([1, -0.3], [1, -0.9], [1, -0.99], [1, -1.0], [1, -1.8, 0.81])
    u = np.column_stack([
        *(lfilter([1.0], each, rng.standard_normal(rows)) for each in polynomials),
        np.sin(np.arange(rows) / rng.uniform(5, 40)) + 0.1 * rng.standard_normal(rows),
    ])  # fmt: skip
    A, B = 0.9 * np.linalg.qr(rng.standard_normal((4, 4)))[0], rng.standard_normal((4, 6))
    y, h, noise = np.zeros((rows, 4)), np.zeros(4), (0.0, 0.01, 0.1)[seed % 3]
    for t in range(rows):
        y[t] = h
        h = A @ h + B @ u[t]
    y = np.column_stack([y, u[:, 0], 0.1 * np.cumsum(u[:, 1]), np.diff(u[:, 2], prepend=0.0)])
    y = y + noise * y.std(axis=0) * rng.standard_normal(y.shape)
    unit = cf.Unit("x", inputs=[f"u{k}" for k in range(6)], outputs=[f"y{k}" for k in range(7)])
    assert controllers_of(unit, y, u, 1.0) == ()
