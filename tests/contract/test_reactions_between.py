"""Controllers between machines: the same answers as in one process, and what a hostile party gets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from asking_plant import same
from closed_plant import Machines, plant, recording

import counterflow as cf
from counterflow.federation.job import Job

DATA = recording()


def job_of(**given: Any) -> Job:
    return Job("fit-1", "sufficient", {unit.name: unit.inputs for unit in DATA.units}, dt=DATA.dt, **given)


@pytest.fixture(scope="module", params=["models", "logs"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Machines, cf.Fit]]:
    models = plant().locals() if request.param == "models" else None
    made = Machines(tmp_path_factory.mktemp("closed"), job_of(from_logs=models is None), DATA, models)
    yield made, cf.fit(DATA, models)
    made.close()


def alike(found: Any, wanted: Any) -> None:
    """The same numbers, replicates and caveats."""
    assert found.caveats == wanted.caveats
    assert found.controllers == wanted.controllers
    assert found.sentence() == wanted.sentence()
    if getattr(wanted, "running", None) is not None:
        for name in ("y", "u"):
            np.testing.assert_array_equal(getattr(found.running, name), getattr(wanted.running, name))
        vars(found)["running"] = wanted.running
    same(found, wanted)


@pytest.mark.parametrize("world", ["reacting", "held", None])
def test_every_question_has_the_same_answer_as_in_one_process(both: tuple[Machines, cf.Fit], world: str | None) -> None:
    made, alone = both
    with made.running("turbine") as view:
        found = view.effect("boiler", "turbine", {"feed": 0.5}, horizon=30, controllers=world)
        assert found.controllers == (world or "reacting")
        alike(found, alone.effect("boiler", "turbine", {"feed": 0.5}, 30, controllers=world))
        alike(
            view.effect("boiler", "turbine", {"SP": 0.5}, horizon=20, controllers=world),
            alone.effect("boiler", "turbine", {"SP": 0.5}, 20, controllers=world),
        )
        window: Any = {"start": 300, "stop": 420, "controllers": world}
        for change in ({"add": {"pump": {"stroke": 0.5}}}, {"do": {"boiler": {"valve": 0.0}}}):
            alike(
                view.counterfactual(**change, **window)["turbine"],
                alone.counterfactual(DATA, **change, **window)["turbine"],
            )
        alike(view.attribute(**window), alone.attribute(DATA, "turbine", **window))
        alike(
            view.forecast(None, 12, controllers=world)["turbine"],
            alone.forecast(DATA, 12, controllers=world)["turbine"],
        )
        target: Any = {"unit": "turbine", "target": {"power": 0.1}, "using": ["boiler", "pump"], "horizon": 20}
        alike(view.restore(**target, controllers=world), alone.restore(**target, controllers=world))
