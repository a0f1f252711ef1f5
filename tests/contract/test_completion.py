"""One completion: a fit between machines has the status and the caveats of the same fit in one process, all of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loopback import fit_over_sessions
from tolerances import EXACT

import counterflow as cf
from counterflow.federation import Job, Policy
from counterflow.questions.asking import UnitView

PLANT = cf.random_plant(units=["boiler", "turbine", "pump"], rng=3)
RECORDING = PLANT.simulate(500, rng=4)
HALVED = {n: cf.LocalModel(A=m.A / 2, B=m.B, C=m.C, Q=m.Q, R=m.R) for n, m in PLANT.locals().items()}
METHODS = ("sufficient", "moments", "penalty", "lagrangian", "fedgc")
POLICIES = {name: Policy(name, methods=METHODS, demanded=False, inputs_shown=True) for name in PLANT.names}


def still() -> cf.Recording:
    """An input that never moves, a channel that is dead, rows with two channels only."""
    arrays = {n: {"y": np.array(RECORDING[n].y), "u": np.array(RECORDING[n].u)} for n in RECORDING.names}
    arrays["boiler"]["u"][:, 0] = 2.0
    arrays["turbine"]["y"][:, 3] = np.nan
    arrays["pump"]["y"][100:140, 2:] = np.nan
    return cf.Recording.from_arrays(arrays, dt=RECORDING.dt, units=RECORDING.units)


def gappy() -> cf.Recording:
    """Readings lost at random, a channel that comes every fifth row, a unit that does, and an outage."""
    rng = np.random.default_rng(5)
    arrays = {n: {"y": np.array(RECORDING[n].y), "u": np.array(RECORDING[n].u)} for n in RECORDING.names}
    slow = np.arange(len(RECORDING["boiler"].y)) % 5 > 0
    arrays["boiler"]["y"][rng.random(arrays["boiler"]["y"].shape) < 0.05] = np.nan
    arrays["boiler"]["y"][slow, 7] = np.nan
    arrays["turbine"]["y"][slow] = np.nan
    arrays["pump"]["y"][200:300] = np.nan
    return cf.Recording.from_arrays(arrays, dt=RECORDING.dt, units=RECORDING.units)


def wild() -> cf.Recording:
    """Sensors that spike at two units."""
    arrays = {n: {"y": np.array(RECORDING[n].y), "u": RECORDING[n].u} for n in RECORDING.names}
    arrays["boiler"]["y"][200, 0] = arrays["pump"]["y"][300, 1] = 1e4
    return cf.Recording.from_arrays(arrays, dt=RECORDING.dt, units=RECORDING.units)


CASES: dict[str, tuple[cf.Recording, Any, str, dict[str, Any]]] = {
    "plain": (RECORDING, PLANT.locals(), "sufficient", {}),
    "wrong models": (RECORDING, HALVED, "sufficient", {}),
    "undetermined": (still(), PLANT.locals(), "sufficient", {}),
    "gaps": (gappy(), PLANT.locals(), "sufficient", {}),
    "stopped early": (RECORDING, HALVED, "sufficient", {"evaluations": 2, "estimate": "all"}),
    "from logs": (RECORDING, None, "sufficient", {}),
    "from logs, undetermined": (still(), None, "sufficient", {}),
    "from logs, couplings known": (RECORDING, None, "sufficient", {"edges": [["turbine", "pump"]], "rank": 3}),
    "wild sensors": (wild(), PLANT.locals(), "sufficient", {"sensors": {"pump": "as they are"}}),
    "from logs, wild sensors": (wild(), None, "sufficient", {"sensors": {"pump": "as they are"}}),
    "moments": (gappy(), PLANT.locals(), "moments", {}),
    "moments, wrong models": (RECORDING, HALVED, "moments", {"edges": [["turbine", "pump"]]}),
    "penalty": (RECORDING, PLANT.locals(), "penalty", {}),
    "lagrangian, stopped early": (RECORDING, PLANT.locals(), "lagrangian", {"rounds": 3}),
    "fedgc": (RECORDING, PLANT.locals(), "fedgc", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_between_machines_as_in_one_process(case: str, tmp_path: Path) -> None:
    recording, models, method, options = CASES[case]
    inputs = {unit.name: unit.inputs for unit in recording.units}
    job = Job("same", method, inputs, options=options, dt=recording.dt, from_logs=models is None)
    between = fit_over_sessions(tmp_path, job, recording, models, POLICIES)
    more = {} if method in ("sufficient", "moments") else {"compress": False}
    alone = cf.fit(recording, models, method, over_the_wire=True, **options, **more)
    assert between.server.caveats == alone.server_caveats
    assert ("check-whiteness-fail" in {caveat.code for caveat in between.server.caveats}) or case != "wrong models"
    assert {n: p.caveats for n, p in between.parts.items()} == {n: p.caveats for n, p in alone.parts.items()}
    assert between.result.status == alone.status
    name = recording.units[1].input_names[1]
    for unit, part in between.parts.items():
        there = UnitView(part, between.server).effect("turbine", unit, {name: 0.1}, horizon=5)
        here = alone.effect("turbine", unit, {name: 0.1}, horizon=5)
        assert there.caveats == here.caveats
        np.testing.assert_allclose(there.mean, here.mean, rtol=EXACT, atol=EXACT)
        assert (there.lower is None) == (here.lower is None)


def test_no_interval_is_said_only_where_there_is_none() -> None:
    recording, models, method, options = CASES["stopped early"]
    found = cf.fit(recording, models, method, **options)
    (told,) = [caveat for caveat in found.caveats if caveat.code == "not-converged"]
    answer = found.effect("turbine", "pump", {recording.units[1].input_names[1]: 0.1}, horizon=3)
    assert ("no interval" in told.text) == (answer.lower is None)


def test_a_unit_is_told_its_own_caveats_and_not_those_of_others() -> None:
    found = cf.fit(still(), PLANT.locals())
    (own,) = [caveat for caveat in found.parts["pump"].caveats if caveat.code == "exact-message"]
    change = {RECORDING.units[1].input_names[1]: 0.1}
    assert own in found.caveats
    assert own in found.effect("turbine", "pump", change, horizon=3).caveats
    assert own not in found.effect("turbine", "boiler", change, horizon=3).caveats
