"""Laws against plain loops, and laws learned from logs against those that made them."""

from __future__ import annotations

import json

import numpy as np
import pytest

import counterflow as cf
from counterflow.control import as_law
from counterflow.control.controller import found_loops, learned_loop, run_law
from counterflow.control.law import CONSTANT, FREE, MOVING, RECORDED, CustomLaw, LawInput, LoopRecord, active_rows
from counterflow.control.laws import law_from_json, law_json
from counterflow.control.pid import robust
from counterflow.errors import ModelError
from counterflow.exchange.controllers import controller_caveats, controllers_of

RNG = 7


@pytest.mark.parametrize("derivative", [0.0, 3.0])
def test_the_incremental_form_is_the_position_form(derivative):
    """A PID controller as textbooks write it: proportional, integral and derivative parts, added up."""
    rng, dt = np.random.default_rng(RNG), 0.5
    y, target = rng.standard_normal(60).cumsum(), np.full(60, 1.0)
    error, slope = target - y, np.diff(y, prepend=y[0]) / dt
    wanted = 30.0 - 2.0 * (error + dt / 7.0 * np.cumsum(error) - derivative * slope)
    found = run_law(cf.PID(-2.0, 7.0, derivative), wanted[None, :3], y[None], target[None], 0, dt)[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-10)


def test_limits_delays_and_memories():
    late = run_law(
        cf.PID(1.0, delay=2), np.zeros((1, 3)), np.array([[0.0, 0, 0, -1, 0, 0, 0]]), np.zeros((1, 7)), 0, 1.0
    )
    np.testing.assert_array_equal(late[0], [0, 0, 0, 0, 0, 1, 0])
    far = np.concatenate([np.zeros(50), np.full(5, 30.0)])  # below its target for long, then above it
    law = cf.PID(1.0, 5.0, limits=(0.0, 10.0))
    found = run_law(law, np.array([[5.0]]), far[None], np.full((1, 55), 20.0), 0, 1.0)[0]
    assert found[49] == 10.0 > found[50]  # no windup: it leaves the limit in the row in which the error turns
    level = np.array([[1.5, 0.9, 1.5, 2.1, 1.5, 0.5]])
    pump = run_law(cf.Relay(1.0, 2.0), np.array([[0.0]]), level, np.full((1, 6), np.nan), 0, 1.0)
    np.testing.assert_array_equal(pump[0], [0, 1, 1, 0, 0, 1])
    seen = LawInput(np.zeros((3, 0)), np.array([[1.0], [2.0], [8.0]]), np.array([[np.nan], [0.5], [np.nan]]), 0)
    np.testing.assert_array_equal(cf.Ratio(2.0, bias=1.0, limits=(0.0, 10.0)).output(seen), [3.0, 3.0, 10.0])


def test_all_rows_at_once_are_the_rows_one_by_one():
    rng = np.random.default_rng(RNG)
    moved, reading, target = rng.standard_normal((3, 40))
    for law in (cf.PID(2.0, 5.0, 1.0, (-1.0, 1.0), 1), cf.Relay(-0.5, 0.5), cf.Ratio(2.0), cf.Schedule((1.0, 2.0), 3)):
        found = law.in_rows(LoopRecord(moved, reading, target, 2.0))
        for t in range(law.memory, 40):
            rows = slice(t - law.memory, t + 1)
            seen = LawInput(moved[None, t - law.memory : t], reading[None, rows], target[None, rows], t, 2.0)
            assert found[t] == pytest.approx(float(law.output(seen)[0]))


class Leaky:
    """It forgets what it did: an optimum of one step, and no PI controller."""

    memory = 1

    def output(self, seen):
        return (0.5 * seen.moved[:, -1] - 0.2 * seen.reading[:, -1]) / 0.54


def test_laws_survive_a_file():
    limited = cf.PID(2.0, 5.0, 1.0, (0.0, np.inf), 2)
    for law in (cf.PID(2.0), limited, cf.Relay(1.0, 2.0), cf.Ratio(0.5, limits=(0, 1)), cf.Schedule((1.0, 2.0), 4)):
        assert law_from_json(json.loads(json.dumps(law_json(law), allow_nan=False))) == law
    assert cf.PID(1.0).limits == FREE
    own = law_from_json(law_json(Leaky()))  # an object of its unit leaves its name only
    assert isinstance(own, CustomLaw)
    with pytest.raises(ModelError, match="Leaky"):
        own.output(None)


@pytest.mark.parametrize(
    "build",
    [
        lambda: cf.PID(float("nan")),
        lambda: cf.PID(1.0, 0.0),
        lambda: cf.PID(1.0, 1.0, -1.0),
        lambda: cf.PID(1.0, limits=(2, 1)),
        lambda: cf.PID(1.0, delay=-1),
        lambda: cf.Relay(2.0, 1.0),
        lambda: cf.Relay(1.0, 2.0, 0.0, 0.0),
        lambda: cf.Schedule(()),
        lambda: cf.Loop("valve", "valve"),
        lambda: cf.Loop("valve", ""),
        lambda: cf.Loop("valve", "level", law=3),
        lambda: law_from_json({"kind": "pid"}),
        lambda: law_from_json({"kind": "os.system"}),
        lambda: cf.Unit("b", inputs=["valve"], outputs=["level"], loops=[cf.Loop("valve", "pressure")]),
        lambda: cf.Unit("b", inputs=["valve"], outputs=["level"], loops=[cf.Loop("pump", "level")]),
        lambda: cf.Unit("b", inputs=["valve"], outputs=["level"], loops=[cf.Loop("valve", "level")] * 2),
        lambda: cf.Unit("b", inputs=["valve"], outputs=["level"], loops=cf.Loop("valve", "level")),
        lambda: cf.Channel("valve", role="boss"),
    ],
)
def test_what_makes_no_sense_is_refused(build):
    with pytest.raises((ModelError, cf.UnknownNameError)):
        build()


def test_roles_and_loops_survive_a_recording(tmp_path):
    unit = cf.Unit(
        "drum", inputs=["feed", "SP"], outputs=["level"], loops=[cf.Loop("feed", "level", "SP", cf.PID(1.0, 5.0))]
    )
    recording = cf.Recording.from_arrays({"drum": (np.zeros((5, 1)), np.zeros((5, 2)))}, units=[unit])
    recording.save(tmp_path / "r.safetensors")
    read = cf.Recording.load(tmp_path / "r.safetensors")["drum"].unit
    assert read == unit
    assert [channel.role for channel in read.inputs] == ["manipulated", "set point"]


# ---- learning


def closed_loop(law, rows=1500, target="moving", noise=0.05, seed=0, manual=None):
    """A tank of first order under a law: (moved, reading, target)."""
    rng = np.random.default_rng(seed)
    aim = np.zeros(rows)
    if target != "constant":
        aim = np.repeat(rng.uniform(-1, 1, rows // 30 + 1), 30)[:rows]
    x, drift, u, y = 0.0, 0.0, np.zeros(rows), np.zeros(rows)
    for t in range(rows):
        y[t] = x + noise * rng.standard_normal()
        if t >= 3:
            if manual is not None and manual[0] <= t < manual[1]:
                u[t] = u[t - 1]
            else:
                now = slice(t - law.memory, t + 1)
                u[t] = law.output(LawInput(u[None, t - law.memory : t], y[None, now], aim[None, now], t))[0]
        drift = 0.95 * drift + 0.05 * rng.standard_normal()
        x = 0.9 * x + 0.2 * u[t] + drift
    return u, y, aim


@pytest.mark.parametrize("law", [cf.PID(0.8, 12.0), cf.PID(0.5, 20.0, 0.5), cf.PID(0.4, 15.0, delay=1)])
@pytest.mark.parametrize("target", [RECORDED, MOVING, CONSTANT])
def test_gains_are_found(law, target):
    u, y, aim = closed_loop(law, target=target)
    loop = cf.Loop("valve", "level", "SP" if target == RECORDED else None)
    found = learned_loop(loop, LoopRecord(u, y, aim if target == RECORDED else None, 1.0))
    assert found.target == target
    assert found.reproduced > 0.99
    assert found.law.gain == pytest.approx(law.gain, rel=0.01)
    assert found.law.integral_time == pytest.approx(law.integral_time, rel=0.01)
    assert found.law.derivative_time == pytest.approx(law.derivative_time, rel=0.02, abs=1e-3)
    assert found.law.delay == law.delay


def test_manual_rows_are_told_apart():
    u, y, _ = closed_loop(cf.PID(0.8, 12.0), manual=(500, 800))
    assert not active_rows(u)[501:800].any()
    assert active_rows(u)[10:490].all()
    found = learned_loop(cf.Loop("valve", "level"), LoopRecord(u, y, None, 1.0))
    assert found.law.gain == pytest.approx(0.8, rel=0.01)
    assert found.automatic == pytest.approx(0.8, abs=0.01)


def test_a_law_that_a_noisy_log_shows_badly_says_so():
    u, y, _ = closed_loop(cf.PID(0.8, 12.0))
    seen = y + 0.5 * np.random.default_rng(1).standard_normal(len(y))
    found = learned_loop(cf.Loop("valve", "level"), LoopRecord(u, seen, None, 1.0))
    assert found is None or found.reproduced < 0.5


def test_a_law_of_another_form_is_not_called_a_pi():
    """Its nearest PI has an integral time of a small part of a row; it is used, and the caveat asks for the law."""
    rng, u, y, x, drift = np.random.default_rng(2), np.zeros(2500), np.zeros(2500), 0.0, 0.0
    for t in range(2500):
        y[t] = x + 0.03 * rng.standard_normal()
        u[t] = Leaky().output(LawInput(u[None, t - 1 : t], y[None, t : t + 1], np.zeros((1, 1)), t))[0] if t else 0.0
        drift = 0.98 * drift + 0.1 * rng.standard_normal()
        x += 0.1 * (drift - x) + 0.2 * u[t]
    unit = cf.Unit("mixer", inputs=["m"], outputs=["quality"], loops=[cf.Loop("m", "quality")])
    found = controllers_of(unit, y[:, None], u[:, None], 1.0)
    assert found[0].law.integral_time < 0.5
    assert found[0].nearest
    (caveat,) = controller_caveats(unit, found)
    assert caveat.code == "law-not-pi"
    assert caveat.weight == "caution"
    assert not found_loops(("m",), ("quality",), u[:, None], y[:, None], 1.0, set())
    plain = closed_loop(cf.PID(0.8, 12.0))
    assert not learned_loop(cf.Loop("valve", "level"), LoopRecord(*plain[:2], None, 1.0)).nearest


def test_a_given_law_is_described_by_what_it_is():
    """No target is claimed for a law of which nobody knows one, and an object is called by its class."""
    u, y, _ = closed_loop(cf.PID(0.8, 12.0))
    for law, said in ((Leaky(), "(law Leaky; given)"), (cf.Ratio(0.3, 0.5), "(ratio 0.3, bias 0.5; given)")):
        text = str(learned_loop(cf.Loop("valve", "level", law=law), LoopRecord(u, y, None, 1.0)))
        assert text.startswith(f"valve follows level {said}")


def test_a_relay_is_found_through_noise():
    rng = np.random.default_rng(RNG)
    law, u, level, x = cf.Relay(5.2, 5.8), np.zeros(2000), np.zeros(2000), 5.5
    for t in range(2000):
        level[t] = x
        if t:
            u[t] = law.output(LawInput(u[None, t - 1 : t], level[None, t - 1 : t + 1], level[None, :2], t))[0]
        x += 0.03 * u[t] - 0.013 + 0.004 * rng.standard_normal()
    found = learned_loop(cf.Loop("pump", "level"), LoopRecord(u, level + 0.02 * rng.standard_normal(2000), None, 1.0))
    assert isinstance(found.law, cf.Relay)
    assert (found.law.below, found.law.above) == (1.0, 0.0)
    assert found.law.low == pytest.approx(5.2, abs=0.02)
    assert found.law.high == pytest.approx(5.8, abs=0.02)
    assert found.reproduced > 0.9


def test_loops_are_found_among_channels_and_nothing_else_is():
    u, y, aim = closed_loop(cf.PID(0.8, 12.0))
    rng = np.random.default_rng(RNG)
    wander = np.convolve(rng.standard_normal(1520), np.ones(20) / 20, "valid")[:1500]
    inputs = np.column_stack([wander, u, aim])
    outputs = np.column_stack([np.roll(y, 3) + wander, y, wander + 0.01 * rng.standard_normal(1500)])
    found = found_loops(("feed", "valve", "SP"), ("flow", "level", "copy"), inputs, outputs, 1.0, set())
    assert [(each.loop.moves, each.loop.reads, each.loop.target) for each in found] == [("valve", "level", "SP")]


def test_robust_regression_passes_over_a_fifth_of_the_rows():
    rng = np.random.default_rng(RNG)
    x = rng.standard_normal((500, 3))
    goal = x @ [1.0, -2.0, 0.5]
    goal[:100] += 50 * rng.standard_normal(100)
    np.testing.assert_allclose(robust(x, goal)[0], [1.0, -2.0, 0.5], atol=1e-6)


def test_the_reading_that_explains_a_relay_does():
    rng = np.random.default_rng(RNG)
    law = cf.Relay(-0.5, 0.5)
    moved, noisy = (rng.random(300) < 0.5).astype(float), rng.standard_normal(300)
    seen = law.explaining(moved, noisy)
    np.testing.assert_array_equal(law.in_rows(LoopRecord(moved, seen, seen, 1.0))[1:], moved[1:])


def test_what_a_two_valued_input_does_is_no_relay():
    rng = np.random.default_rng(RNG)
    steps = np.repeat(rng.choice([21.0, 29.0], 100), 20)
    reading = np.zeros(2000)
    for t in range(1, 2000):
        reading[t] = 0.7 * reading[t - 1] + 0.3 * steps[t - 1]
    outputs = (reading + 0.05 * rng.standard_normal(2000))[:, None]
    assert found_loops(("SP",), ("temperature",), steps[:, None], outputs, 1.0, set()) == []


def test_a_law_of_somebodys_own_cannot_write_to_what_it_sees():
    class Writing(Leaky):
        def output(self, seen):
            seen.reading[:] = 0.0
            return seen.reading[:, -1]

    reading = np.ones((1, 2))
    with pytest.raises(ModelError, match=r"law Writing fails in row 1: ValueError.*read-only") as caught:
        as_law(Writing()).output(LawInput(np.zeros((1, 1)), reading, reading, 1))
    assert caught.value.code == "law-fails"
    assert reading.all()
