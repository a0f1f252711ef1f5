"""Laws in closed loop: answers beside plants that are run row by row with controllers as textbooks write them.

The controllers of these plants are written here once more, each with a state of its own, and know nothing of the laws
of the package. With the true plant as model the answer is the difference of two such runs.
"""

from __future__ import annotations

import warnings
from copy import copy

import numpy as np
import pytest

import counterflow as cf

ROWS, START, STOP = 500, 300, 380
A = np.array([[0.80, 0.10, 0.0], [0.0, 0.70, 0.0], [0.15, 0.10, 0.85]])  # temperature, flow; next unit's level
FEED, VALVE = np.array([0.30, 0.05, 0.0]), np.array([0.05, 0.30, 0.02])
LOAD = np.array([0.0, 0.0, 0.2])


class TextbookPID:
    """Position form: proportional and integral part, which is set back at a limit; derivative of the reading."""

    def __init__(self, gain, integral_time, derivative_time=0.0, limits=(-np.inf, np.inf), delay=0):
        self.gain, self.Ti, self.Td, self.limits, self.delay = gain, integral_time, derivative_time, limits, delay
        self.integral, self.readings, self.aims = 0.0, [], []

    def step(self, row, reading, aim):
        self.readings.append(reading)
        self.aims.append(aim)
        late = [self.readings[max(len(self.readings) - 1 - self.delay - k, 0)] for k in range(2)]
        error = self.aims[max(len(self.aims) - 1 - self.delay, 0)] - late[0]
        self.integral += self.gain / self.Ti * error
        rest = self.gain * error - self.gain * self.Td * (late[0] - late[1])
        out = min(max(rest + self.integral, self.limits[0]), self.limits[1])
        self.rest = rest
        self.track(out)
        return out

    def track(self, out):
        """What the input is, whoever moves it: the controller goes on from there without a bump."""
        self.integral = out - self.rest


class TextbookRelay:
    def __init__(self, low, high):
        self.low, self.high, self.on = low, high, False

    def step(self, row, reading, aim):
        if reading < self.low:
            self.on = True
        elif reading > self.high:
            self.on = False
        return 1.0 if self.on else -1.0


class TextbookRatio:
    def step(self, row, reading, aim):
        return min(max(-0.5 * reading + 0.2, -0.7), 0.7)


class TextbookProgramme:
    def step(self, row, reading, aim):
        return 0.8 if 6 <= (row + 20) % 24 < 22 else -0.8  # hours; row 0 is 20:00


class DeadZone:
    """A law that is an object of its unit."""

    memory = 0

    def output(self, seen):
        error = seen.error[:, -1]
        return 1.5 * np.sign(error) * np.maximum(np.abs(error) - 0.2, 0.0)


class TextbookDeadZone:
    def step(self, row, reading, aim):
        error = aim - reading
        return 1.5 * np.sign(error) * max(abs(error) - 0.2, 0.0)


CASES = {  # name: law, controller, whether it has a target
    "PI": (cf.PID(1.0, 8.0), lambda: TextbookPID(1.0, 8.0), True),
    "limits": (cf.PID(1.5, 5.0, limits=(-0.5, 0.6)), lambda: TextbookPID(1.5, 5.0, limits=(-0.5, 0.6)), True),
    "derivative": (cf.PID(0.8, 9.0, 0.6), lambda: TextbookPID(0.8, 9.0, 0.6), True),
    "delay": (cf.PID(0.5, 9.0, delay=2), lambda: TextbookPID(0.5, 9.0, delay=2), True),
    "relay": (cf.Relay(-0.4, 0.4, 1.0, -1.0), lambda: TextbookRelay(-0.4, 0.4), False),
    "ratio": (cf.Ratio(-0.5, 0.2, (-0.7, 0.7)), TextbookRatio, False),
    "programme": (cf.Schedule.daily({"06:00": 0.8, "22:00": -0.8}, "20:00", 3600.0), TextbookProgramme, False),
    "own": (DeadZone(), TextbookDeadZone, True),
}


class Reactor:
    """A reactor whose valve a controller moves, and a tank behind it; the same seed gives the same noise."""

    def __init__(self, loops, controllers, seed=0, rows=ROWS, targets=True, noise=0.05):
        """``controllers``: (column moved, output read, column of the target or None, how to make it), in order."""
        rng = np.random.default_rng(seed)
        self.rows, self.controllers, self.targets = rows, controllers, targets
        inputs = ["feed", "valve", "SP"] + (["FSP"] if any(loop.moves == "FSP" for loop in loops) else [])
        self.units = [
            cf.Unit("reactor", states=2, inputs=inputs, outputs=["temperature", "flow"], loops=loops),
            cf.Unit("tank", states=1, inputs=["load"], outputs=["level"]),
        ]
        self.B = np.column_stack([FEED, VALVE, *np.zeros((len(inputs) - 2, 3)), LOAD])
        self.w, self.v = noise * rng.standard_normal((2, rows, 3))
        self.u = np.zeros((rows, len(inputs) + 1))
        self.u[:, 0] = np.repeat(rng.uniform(-1, 1, rows // 10 + 1), 10)[:rows]
        self.u[:, -1] = np.repeat(rng.uniform(-1, 1, rows // 10 + 1), 10)[:rows]
        if targets:
            self.u[:, 2] = np.repeat(rng.uniform(-0.7, 0.7, rows // 25 + 1), 25)[:rows]

    @property
    def plant(self):
        return cf.Plant(
            units=self.units, A=A, B=self.B, C=np.eye(3), Q=0.0025 * np.eye(3), R=0.0025 * np.eye(3), dt=1.0
        )

    def run(self, added=None, manual=None):
        """``manual`` (rows,): the valve in rows in which its controller is off, else NaN."""
        u = self.u + (0 if added is None else added)
        y, h = np.zeros((self.rows, 3)), np.zeros(3)
        acting = [(*place, make()) for *place, make in self.controllers]
        for t in range(self.rows):
            y[t] = h + self.v[t]
            for column, reads, target, controller in acting:
                value = controller.step(t, y[t, reads], np.nan if target is None else u[t, target])
                if column == 1 and manual is not None and np.isfinite(manual[t]):
                    value = manual[t]
                    controller.track(value)
                u[t, column] = value
            h = A @ h + self.B @ u[t] + self.w[t]
        return y, u

    def recording(self, y, u):
        k = u.shape[1] - 1
        arrays = {"reactor": (y[:, :2], u[:, :k]), "tank": (y[:, 2:], u[:, k:])}
        return cf.Recording.from_arrays(arrays, units=self.units)


def single(name, law_known=True, **options):
    law, make, target = CASES[name]
    loop = cf.Loop("valve", "temperature", "SP" if target else None, law if law_known else None)
    return Reactor([loop], [(1, 0, 2 if target else None, make)], targets=target, **options)


def step(world, u, column=0, size=0.6):
    added = np.zeros_like(u)
    added[START:STOP, column] = size
    return added


def error(answer, truth):
    return np.square(answer - truth).sum() / np.square(truth).sum()


@pytest.mark.parametrize("name", CASES)
def test_with_the_true_plant_the_answer_is_the_true_difference(name):
    world = single(name)
    y, u = world.run()
    recording = world.recording(y, u)
    found = cf.fit(recording, world.plant, method="oracle")
    assert found.controllers["reactor"][0].reproduced > 0.99
    truth = world.run(step(world, u))[0][START:STOP] - y[START:STOP]
    answer = found.counterfactual(
        recording, add={"reactor": {"feed": 0.6}}, start=START, stop=STOP, controllers="reacting"
    )
    assert np.abs(truth[:, 2]).max() > 0.05
    np.testing.assert_allclose(answer["tank"].difference[:, 0], truth[:, 2], atol=1e-8)
    np.testing.assert_allclose(answer["reactor"].difference, truth[:, :2], atol=1e-8)


@pytest.mark.parametrize("name", ["PI", "limits", "derivative", "delay", "ratio", "own"])
def test_from_logs_the_answer_is_near_the_true_difference(name):
    world = single(name, law_known=name in ("ratio", "own"), rows=1500)
    y, u = world.run()
    recording = world.recording(y, u)
    found = cf.fit(recording)
    assert found.controllers["reactor"][0].reproduced > 0.9
    truth = world.run(step(world, u))[0][START:STOP] - y[START:STOP]
    answer = found.counterfactual(recording, add={"reactor": {"feed": 0.6}}, start=START, stop=STOP)
    assert answer["tank"].controllers == "reacting"
    assert error(answer["tank"].difference[:, 0], truth[:, 2]) < 0.1


CASCADE = (cf.PID(0.5, 12.0), cf.PID(0.8, 6.0))


def cascade(law_known=True, **options):
    """Temperature moves the target of the flow, whose controller moves the valve."""
    outer, inner = CASCADE if law_known else (None, None)
    loops = [cf.Loop("valve", "flow", "FSP", inner), cf.Loop("FSP", "temperature", "SP", outer)]
    made = [(3, 0, 2, lambda: TextbookPID(0.5, 12.0)), (1, 1, 3, lambda: TextbookPID(0.8, 6.0))]
    return Reactor(loops, made, **options)


@pytest.mark.parametrize("column", [0, 2])
def test_a_cascade_with_the_true_plant(column):
    world = cascade()
    y, u = world.run()
    recording = world.recording(y, u)
    found = cf.fit(recording, world.plant, method="oracle")
    truth = world.run(step(world, u, column))[0][START:STOP] - y[START:STOP]
    name = world.units[0].input_names[column]
    answer = found.counterfactual(
        recording, add={"reactor": {name: 0.6}}, start=START, stop=STOP, controllers="reacting"
    )
    np.testing.assert_allclose(answer["tank"].difference[:, 0], truth[:, 2], atol=1e-8)


def test_a_cascade_from_logs():
    world = cascade(law_known=False, rows=1500)
    y, u = world.run()
    recording = world.recording(y, u)
    found = cf.fit(recording)
    laws = {each.loop.moves: each.law for each in found.controllers["reactor"]}
    for name, true in zip(("FSP", "valve"), CASCADE, strict=True):
        assert laws[name].gain == pytest.approx(true.gain, rel=0.01)
        assert laws[name].integral_time == pytest.approx(true.integral_time, rel=0.01)
    for column, name in ((0, "feed"), (2, "SP")):
        truth = world.run(step(world, u, column))[0][START:STOP] - y[START:STOP]
        answer = found.counterfactual(recording, add={"reactor": {name: 0.6}}, start=START, stop=STOP)["tank"]
        assert error(answer.difference[:, 0], truth[:, 2]) < 0.1
    # with its target in hand, the inner loop follows that, and the outer one is out
    inner = found.counterfactual(recording, add={"reactor": {"FSP": 0.6}}, start=START, stop=STOP)["reactor"]
    assert inner.difference[-1, 1] == pytest.approx(0.6, abs=0.15)


def test_manual_rows_stay_as_they_were():
    """The controller is off in two stretches, the second within the window; what the operator did stays."""
    world = single("PI")
    manual = np.full(ROWS, np.nan)
    manual[100:200], manual[320:350] = 0.3, -0.4
    y, u = world.run(manual=manual)
    recording = world.recording(y, u)
    found = cf.fit(recording, world.plant, method="oracle")
    assert found.controllers["reactor"][0].automatic == pytest.approx(0.74, abs=0.02)
    truth = world.run(step(world, u), manual)[0][START:STOP] - y[START:STOP]
    answer = found.counterfactual(recording, add={"reactor": {"feed": 0.6}}, start=START, stop=STOP)
    assert answer["tank"].controllers == "reacting"
    np.testing.assert_allclose(answer["tank"].difference[:, 0], truth[:, 2], atol=1e-8)


@pytest.mark.parametrize("given", [None, cf.PID(1.0, 8.0)])
@pytest.mark.parametrize("logs", [False, True])
def test_had_the_loop_been_closed(given, logs):
    """The whole record is in manual: an operator moved the valve. What if the controller had been switched on?"""
    rows = 1500 if logs else ROWS
    loop = cf.Loop("valve", "temperature", "SP", given)
    world = Reactor([loop], [(1, 0, 2, lambda: TextbookPID(1.0, 8.0))], rows=rows)
    operator = np.repeat(np.random.default_rng(5).uniform(-1, 1, rows // 20), 20)
    y, u = world.run(manual=operator)
    recording = world.recording(y, u)
    found = cf.fit(recording) if logs else cf.fit(recording, world.plant, method="oracle")
    nothing = {"add": {"reactor": {"feed": 0.0}}, "start": START, "stop": STOP}
    assert found.counterfactual(recording, **nothing)["tank"].controllers == "held"  # no law tells the record
    closed = found.with_laws({"reactor": {"valve": cf.PID(1.0, 8.0)}})
    answer = closed.counterfactual(recording, **nothing)
    assert answer["tank"].controllers == "reacting"
    on = operator.copy()
    on[START:] = np.nan
    truth = world.run(manual=on)[0][START:STOP] - y[START:STOP]
    assert np.abs(truth[:, 2]).max() > 0.1
    if logs:
        assert error(answer["tank"].difference[:, 0], truth[:, 2]) < 0.1
    else:
        np.testing.assert_allclose(answer["tank"].difference[:, 0], truth[:, 2], atol=1e-8)


def test_a_loop_without_a_recorded_target_is_closed_at_the_usual_reading():
    world = Reactor([cf.Loop("valve", "temperature")], [(1, 0, 2, lambda: TextbookPID(1.0, 8.0))], targets=False)
    operator = np.repeat(np.random.default_rng(5).uniform(-1, 1, ROWS // 20), 20)
    y, u = world.run(manual=operator)
    recording = world.recording(y, u)
    found = cf.fit(recording, world.plant, method="oracle").with_laws({"reactor": {"valve": cf.PID(1.0, 8.0)}})
    world.u[:, 2] = np.median(y[:, 0])
    on = operator.copy()
    on[START:] = np.nan
    truth = world.run(manual=on)[0][START:STOP] - y[START:STOP]
    answer = found.counterfactual(recording, add={"reactor": {"feed": 0.0}}, start=START, stop=STOP)
    np.testing.assert_allclose(answer["tank"].difference[:, 0], truth[:, 2], atol=1e-8)


@pytest.mark.parametrize("controllers", ["held", "reacting"])
def test_restoring_in_both_worlds(controllers):
    """What is to be changed, done to the plant that was found, moves the level by what was asked for."""
    world = single("PI", rows=800)
    y, u = world.run()
    found = cf.fit(world.recording(y, u), world.plant.locals())
    horizon = 40
    way = found.restore("tank", {"level": 0.3}, using={"reactor": ["feed"]}, horizon=horizon, controllers=controllers)
    assert way.feasible
    feed = np.broadcast_to(way.change["reactor"]["feed"], (horizon,))
    ends = []
    for share in (1.0, 0.0):
        h, moved, controller = np.zeros(3), 0.0, TextbookPID(1.0, 8.0)
        for t in range(horizon):
            moved = controller.step(t, h[0], 0.0) if controllers == "reacting" else 0.0
            h = found.plant.A @ h + found.plant.B @ [share * feed[t], moved, 0.0, 0.0]
        ends.append(h[2])
    assert ends[0] - ends[1] == pytest.approx(0.3, abs=1e-6)


def twins(world, u, change, horizon):
    """What a change that is held from now on does to the level at the horizon: two plants, run row by row.

    ``change``: {column: number}. The valve (column 1) is in manual in both, if it is changed.
    """
    longer, rows = copy(world), world.rows
    longer.rows = rows + horizon
    longer.u = np.vstack([world.u, np.repeat(world.u[-1:], horizon, axis=0)])
    longer.w, longer.v = np.zeros((2, longer.rows, 3))
    ends = []
    for share in (1.0, 0.0):
        added, manual = np.zeros_like(longer.u), np.full(longer.rows, np.nan)
        for column, value in change.items():
            added[rows - 1 :, column] = share * value
        if 1 in change:
            manual[rows - 1 :] = u[-1, 1] + share * change[1]
        ends.append(longer.run(added, manual)[0][rows + horizon - 1, 2])
    return ends[0] - ends[1]


@pytest.mark.parametrize(
    ("name", "using", "target"),
    [
        ("PI", ["feed"], 0.3),
        ("limits", ["feed"], 3.0),  # the valve meets its limit on the way
        ("limits", ["feed"], -6.0),
        ("limits", ["SP"], 0.4),
        ("limits", ["feed", "SP"], 4.0),
        ("limits", ["valve"], 1.0),
        ("limits", ["valve", "SP"], 1.0),
        ("limits", ["feed", "valve", "SP"], 3.0),
        ("relay", ["feed"], 4.0),
        ("relay", ["feed"], -4.0),
        ("ratio", ["feed"], 5.0),
    ],
)
def test_a_restoration_does_to_the_running_plant_what_it_says(name, using, target):
    world = single(name, noise=0.0)
    y, u = world.run()
    found = cf.fit(world.recording(y, u), world.plant.locals())
    horizon = 40
    way = found.restore("tank", {"level": target}, {"reactor": using}, horizon, controllers="reacting")
    assert way.feasible, way.sentence()
    change = dict(way.change["reactor"])
    if "valve" in using:
        assert "SP" not in change, "a target does nothing once its valve is out of its controller's hands"
    columns = {"feed": 0, "valve": 1, "SP": 2}
    truth = twins(world, u, {columns[each]: value for each, value in change.items()}, horizon)
    assert way.way().mean[-1, 0] == pytest.approx(target, rel=1e-3)
    assert truth == pytest.approx(target, rel=0.04)  # the couplings are estimated


def test_a_target_out_of_reach_has_a_nearest_that_is_no_worse_than_nothing():
    """The reading follows its target to the limits of the valve, and no further."""
    world = single("limits", noise=0.0)
    y, u = world.run()
    found = cf.fit(world.recording(y, u), world.plant.locals())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for target in (40.0, -40.0):
            way = found.restore("tank", {"level": target}, {"reactor": ["SP"]}, 40, controllers="reacting")
            assert not way.feasible
            most = found.effect("reactor", "tank", {"SP": np.sign(target) * 4.0}, 40, controllers="reacting")
            assert way.reached[0] == pytest.approx(most.mean[-1, 0], rel=0.05)
            assert abs(target - way.reached[0]) < abs(target)


@pytest.mark.parametrize("logs", [False, True])
def test_attribution_in_both_worlds(logs):
    """A unit's share is what its free inputs did, beside twins in which they stand still; compensated: the gap."""
    world = single("PI", rows=1500 if logs else ROWS)
    y, u = world.run()
    recording = world.recording(y, u)
    found = cf.fit(recording) if logs else cf.fit(recording, world.plant, method="oracle")
    both = [found.attribute(recording, "tank", START, STOP, controllers=each) for each in ("reacting", "held")]
    for split in both:
        np.testing.assert_allclose(sum(split.shares.values()), split.departure, atol=1e-9)
    still = np.zeros_like(u)
    still[START : STOP - 1, [0, 2]] = u[:, [0, 2]].mean(axis=0) - u[START : STOP - 1, [0, 2]]
    reacting = y[START:STOP, 2] - world.run(still)[0][START:STOP, 2]
    operator = u[:, 1].copy()
    held = y[START:STOP, 2] - world.run(still, manual=operator)[0][START:STOP, 2]
    compensated = both[0].compensated["reactor"][:, 0]
    if logs:
        assert error(both[0].shares["reactor"][:, 0], reacting) < 0.1
        assert error(compensated, held - reacting) < 0.1
    else:
        np.testing.assert_allclose(both[0].shares["reactor"][:, 0], reacting, atol=1e-8)
        np.testing.assert_allclose(compensated, held - reacting, atol=1e-8)
    assert not both[1].compensated
    assert "controllers" in both[0].sentence()


@pytest.mark.parametrize("name", ["PI", "limits", "ratio"])
def test_with_local_models_the_couplings_are_learned_and_the_answer_is_near(name):
    inside = []
    for seed in range(4):
        world = single(name, rows=1000, seed=seed)
        y, u = world.run()
        recording = world.recording(y, u)
        found = cf.fit(recording, world.plant.locals())
        truth = world.run(step(world, u))[0][START:STOP, 2:] - y[START:STOP, 2:]
        answer = found.counterfactual(recording, add={"reactor": {"feed": 0.6}}, start=START, stop=STOP)["tank"]
        assert answer.controllers == "reacting"
        assert error(answer.difference, truth) < 0.05
        inside.append((answer.lower - answer.was <= truth) & (truth <= answer.upper - answer.was))
    assert np.mean(inside) > 0.7  # four windows, in each of which rows are right or wrong together


def tank_with_a_pump(between, rows=1500, seed=0, change=None):
    """A reservoir whose pump runs from a low level to a high one, and a basin that it fills.

    ``between``: the controller looks a hundred times a row and reads no noise; else in every row, with noise.
    """
    rng = np.random.default_rng(seed)
    noise, draw = 0.02 * rng.standard_normal((2, rows)), np.repeat(rng.uniform(0.6, 1.4, rows // 10), 10)
    draw = draw + (0.0 if change is None else change)
    level, basin, pump = np.zeros(rows), np.zeros(rows), np.zeros(rows)
    x, b, on = 1.0, 0.0, 0.0
    parts = 100 if between else 1
    for t in range(rows):
        level[t], basin[t] = x + noise[0, t], b + noise[1, t]
        if not between:
            on = 1.0 if level[t] < 0.6 else 0.0 if level[t] > 1.4 else on
        pump[t] = on
        for _ in range(parts):
            if between:
                on = 1.0 if x < 0.6 else 0.0 if x > 1.4 else on
            x, b = x + (0.12 * on - 0.05 * draw[t]) / parts, b + (0.5 * on - 0.2 * b) / parts
    return level, basin, pump, draw


@pytest.mark.parametrize("between", [False, True])
def test_what_is_certain_of_a_relay(between):
    """From a log whose levels nobody gave: mean over the window and duty beside the truth, and said so."""
    added = np.zeros(1500)
    added[700:900] = 0.3
    level, basin, pump, draw = tank_with_a_pump(between)
    changed = tank_with_a_pump(between, change=added)
    units = [
        cf.Unit("reservoir", inputs=["draw", "pump"], outputs=["level"], loops=[cf.Loop("pump", "level")]),
        cf.Unit("basin", inputs=[], outputs=["level"]),
    ]
    arrays = {
        "reservoir": (level[:, None], np.column_stack([draw, pump])),
        "basin": (basin[:, None], np.zeros((1500, 0))),
    }
    recording = cf.Recording.from_arrays(arrays, units=units)
    found = cf.fit(recording)
    law = found.controllers["reservoir"][0].law
    assert law.between_rows is between
    assert (law.low, law.high) == (pytest.approx(0.6, abs=0.03), pytest.approx(1.4, abs=0.03))
    answer = found.counterfactual(recording, add={"reservoir": {"draw": 0.3}}, start=700, stop=900)["reservoir"]
    true_duty = changed[2][700:900].mean() - pump[700:900].mean()
    duty = answer.running.duty("pump")
    assert duty.mean == pytest.approx(true_duty, abs=0.05)
    true_mean = (changed[0] - level)[700:900].mean()
    mean = answer.running.mean("level")
    assert abs(mean.mean - true_mean) < 0.05
    assert "pump on for" in answer.sentence("level")
    assert "on average" in answer.sentence("level")
    labels = answer.plot().axes[0].get_legend_handles_labels()[1]
    assert "mean of the window" in labels
    with pytest.raises(cf.UnknownNameError):
        answer.running.duty("draw")
    ahead = found.effect("reservoir", "basin", {"draw": 0.2}, horizon=60)
    assert "on average" in ahead.sentence()
    assert "mean of the window" in ahead.plot().axes[0].get_legend_handles_labels()[1]


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("models", [True, False])
def test_where_a_target_never_moved_the_rest_is_refused(models, recorded):
    loop = cf.Loop("valve", "temperature", "SP" if recorded else None)
    world = Reactor([loop], [(1, 0, 2, lambda: TextbookPID(1.0, 8.0))], targets=False, rows=1000)
    y, u = world.run()
    recording = world.recording(y, u)
    found = cf.fit(recording, world.plant.locals() if models else None)
    window = {"start": START, "stop": STOP}
    truth = world.run(step(world, u))[0][START:STOP] - y[START:STOP]
    answer = found.counterfactual(recording, add={"reactor": {"feed": 0.6}}, **window)["tank"]
    assert answer.controllers == "reacting"
    assert error(answer.difference[:, 0], truth[:, 2]) < 0.05
    asked = [
        lambda: found.counterfactual(recording, add={"reactor": {"feed": 0.6}}, controllers="held", **window),
        lambda: found.counterfactual(recording, add={"reactor": {"valve": 0.6}}, **window),
        lambda: found.with_laws({"reactor": {"valve": cf.Manual()}}),
    ]
    if recorded:
        asked.append(lambda: found.counterfactual(recording, add={"reactor": {"SP": 0.6}}, **window))
    for refused in asked:
        with pytest.raises(cf.UnidentifiedError):
            refused()
    assert not found.attribute(recording, "tank", START, STOP, controllers="reacting").compensated


def test_a_cascade_whose_outer_target_never_moved():
    """Both inputs are locked: the inner target moved by the outer controller alone."""
    world = cascade(law_known=False, rows=1000, targets=False)
    y, u = world.run()
    recording = world.recording(y, u)
    found = cf.fit(recording)
    for name in ("valve", "FSP"):
        with pytest.raises(cf.UnidentifiedError):
            found.counterfactual(recording, add={"reactor": {name: 0.3}}, start=START, stop=STOP)
    truth = world.run(step(world, u))[0][START:STOP] - y[START:STOP]
    answer = found.counterfactual(recording, add={"reactor": {"feed": 0.6}}, start=START, stop=STOP)["tank"]
    assert error(answer.difference[:, 0], truth[:, 2]) < 0.05
