"""A plant nobody here wrote: a reduced run of benchmarks/bench_net3.py, and the harness it rests on.

The benchmark fits half of 21 days over ten seeds. Here five days of one seed are fitted.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

import counterflow as cf

_PATH = Path(__file__).resolve().parents[2] / "benchmarks" / "net3.py"


def _harness():
    spec = importlib.util.spec_from_file_location("net3", _PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


net3 = _harness()
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("wntr") is None,
    reason="needs EPANET and its network Net3, which the package wntr brings: pip install wntr six",
)

FITTED = 5 * net3.DAY
START = FITTED + 60  # the row of a change, unseen by the fit
DURATION, HORIZON = net3.DAY // 2, net3.DAY
TARGET = 0.95
# EPANET stores its results in single precision: seven digits of levels and heads of tens of metres
STORED = 1e-4

PUMP = {"district_3": {"pump_335": 1.03}}
DEMAND = {"district_1": {"demand": 1.05}}


@pytest.fixture(scope="module")
def recorded():
    return net3.simulate(seed=0, days=(START + HORIZON) / net3.DAY)


@pytest.fixture(scope="module")
def found(recorded):
    return cf.fit(recorded[0].slice(0, FITTED))


@pytest.fixture(scope="module")
def controlled():
    """The same network with its own level controls: pump 335 starts and stops by the level of tank 1."""
    recording, plant = net3.simulate(seed=0, days=FITTED / net3.DAY, controls=True)
    return recording, plant, cf.fit(recording)


# ---- the harness


def test_no_tank_stands_at_a_limit(recorded):
    _, plant = recorded
    assert plant.pinned == 0


def test_sensor_noise_is_five_percent_of_each_channel(recorded):
    recording, plant = recorded
    for unit in net3.UNITS:
        ratio = (recording[unit].y - plant.y[unit]).std(axis=0) / plant.y[unit].std(axis=0)
        error = 0.05 / np.sqrt(2 * recording.rows)  # of a standard deviation
        np.testing.assert_array_less(np.abs(ratio - 0.05), 4 * error)


def test_a_level_is_the_level_before_plus_the_flow_of_that_row(recorded):
    """Inputs act on the row they are written in, levels one row later: the claim that alignment rests on."""
    import wntr

    network = wntr.network.WaterNetworkModel("Net3")
    _, plant = recorded
    for tank, unit in zip(net3.TANKS, net3.UNITS, strict=True):
        names = [channel.name for channel in next(u for u in net3.units() if u.name == unit).outputs]
        level, flow = (plant.y[unit][:, names.index(name)] for name in ("level", "tank_flow"))
        area = np.pi * network.get_node(tank).diameter ** 2 / 4
        filled = flow[:-1] / 1000 * net3.STEP / area
        sign = np.sign(filled @ np.diff(level))  # pipes are drawn to the tank or from it
        np.testing.assert_allclose(np.diff(level), sign * filled, atol=STORED)


def test_a_twin_with_nothing_changed_is_the_recorded_run(recorded):
    _, plant = recorded
    same = plant.twin({"district_3": {"pump_335": 1.0}}, START, DURATION, HORIZON)
    for unit in net3.UNITS:
        np.testing.assert_array_equal(same.effect[unit], 0.0)


def test_a_faster_pump_raises_pressures_at_once_and_the_tank_later(recorded):
    _, plant = recorded
    twin = plant.twin(PUMP, START, DURATION, HORIZON)
    assert twin.pinned == 0
    own = twin.effect["district_3"]
    assert own[0, 0] == 0.0  # the level of the first row is the result of rows before it
    assert own[1:DURATION, 0].min() > 0.0
    assert own[0, 1:7].min() > 0.0  # pressures answer in the row of the change itself
    assert own[0, 1:7].max() > 10 * STORED
    np.testing.assert_allclose(
        twin.do["district_3"]["pump_335"][:DURATION], 1.03 * plant.drive.speed[START : START + DURATION, 1]
    )


def test_with_controls_the_pump_answers_to_tank_1(controlled):
    """Net3's own rule: on below 17.1 ft, off above 19.1 ft of tank 1; checked on the run without sensor noise."""
    _, plant, _ = controlled
    level, on = plant.y["district_1"][:, 0], plant.drive.speed[:, 1] > 0
    assert np.count_nonzero(np.diff(on)) >= 10
    slack = 0.05  # metres: the controls act between rows, and the next row is what is seen
    assert on[level < 17.1 * 0.3048 - slack].all()
    assert not on[level > 19.1 * 0.3048 + slack].any()


# ---- the product


@pytest.mark.parametrize("change", [PUMP, DEMAND], ids=["pump speed", "demand of district 1"])
def test_effects_in_every_district_are_those_of_the_twin(recorded, found, change):
    recording, plant = recorded
    twin = plant.twin(change, START, DURATION, HORIZON)
    worlds = found.counterfactual(recording, do=twin.do, start=twin.start, stop=twin.stop)
    for unit in net3.UNITS:
        scale = recording.slice(0, FITTED)[unit].y.std(axis=0)
        effect = worlds[unit].mean - worlds[unit].factual
        assert net3.r_squared(twin.effect[unit], effect, scale) >= TARGET, unit
        assert net3.r_squared(twin.effect[unit], -effect, scale) < 0  # the score can tell


def test_the_fit_finds_out_that_inputs_act_on_their_own_row(found):
    said = [c.text for c in found.caveats if c.code == "input-alignment" and "act on their own row" in c.text]
    assert said
    assert all(unit in said[0].split("act on")[0] for unit in net3.UNITS)


def test_without_controls_no_input_is_called_a_reaction(found):
    assert [check.verdict for check in found.check()["feedback"]] == ["pass"] * 5


def test_with_controls_the_check_names_the_pump_and_no_other_input(controlled):
    _, _, fit = controlled
    failing = {check.about: check for check in fit.check()["feedback"] if check.verdict != "pass"}
    assert list(failing) == ["district_3 pump_335"]
    assert failing["district_3 pump_335"].verdict == "fail"


def test_with_controls_every_answer_says_that_feedback_makes_it_unsafe(controlled):
    recording, _, fit = controlled
    do = {"district_1": {"demand": 1.05 * recording["district_1"].u[-100:, 0]}}
    for world in fit.counterfactual(recording, do=do, start=recording.rows - 100).values():
        said = [c.text for c in world.caveats if c.code == "check-feedback-fail" and "district_3 pump_335" in c.text]
        assert len(said) == 1
        assert "feedback" in said[0]
        assert "unsafe" in said[0]
