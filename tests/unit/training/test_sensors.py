"""What a unit does about its sensors before a fit: the fit is that of the readings it believes, and it says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import counterflow as cf
from counterflow.exchange.rows import LikelihoodOptions, LogOptions
from counterflow.federation import Job
from counterflow.report import compose, render

UNITS = [
    cf.Unit("boiler", 2, 2, [cf.Channel("pressure", "bar"), "level", "steam", "fire"]),
    cf.Unit("turbine", 2, 2, [cf.Channel("power", "MW"), "speed", "vacuum", "flow"]),
]
PLANT = cf.random_plant(UNITS, rng=1)
CLEAN = PLANT.simulate(600, rng=2)
AS_THEY_ARE = {"sensors": "as they are"}


def changed(change: Callable[[dict[str, np.ndarray]], None], recording: cf.Recording = CLEAN) -> cf.Recording:
    """The same record with other measurements."""
    y = {name: np.array(recording[name].y) for name in recording.names}
    change(y)
    return cf.Recording.from_arrays({n: (y[n], recording[n].u) for n in y}, dt=recording.dt, units=recording.units)


def spiked(y: dict[str, np.ndarray]) -> None:
    y["boiler"][[50, 300], 0] = 1e6
    y["turbine"][400, 2] = -1e3


def missing(y: dict[str, np.ndarray]) -> None:
    y["boiler"][[50, 300], 0] = np.nan
    y["turbine"][400, 2] = np.nan


def codes(found: cf.Fit) -> list[str]:
    return [c.code for c in found.caveats if c.code.startswith("sensor-")]


@pytest.mark.parametrize("models", [PLANT.locals(), None], ids=["models", "logs"])
def test_a_fit_rests_on_the_readings_that_are_believed(models: dict[str, cf.LocalModel] | None) -> None:
    found = cf.fit(changed(spiked), models)
    without = cf.fit(changed(missing), models, **AS_THEY_ARE)
    np.testing.assert_array_equal(found.plant.A, without.plant.A)
    np.testing.assert_array_equal(found.plant.B, without.plant.B)
    told = [c for c in found.caveats if c.code == "sensor-spikes"]
    assert [c.scope for c in told] == ["boiler", "turbine"]
    assert "pressure (2 readings in rows 50 to 300, up to 1e+06 bar)" in told[0].text
    assert "vacuum (1 reading in row 400, up to -1000)" in told[1].text
    assert codes(without) == []
    assert "absurd-reading" not in [c.code for c in found.caveats]


@pytest.mark.parametrize("models", [PLANT.locals(), None], ids=["models", "logs"])
def test_healthy_sensors_change_nothing(models: dict[str, cf.LocalModel] | None) -> None:
    found, plain = cf.fit(CLEAN, models), cf.fit(CLEAN, models, **AS_THEY_ARE)
    np.testing.assert_array_equal(found.plant.A, plain.plant.A)
    assert found.caveats == plain.caveats


def test_pooled_data_are_treated_as_federated_ones() -> None:
    pooled = cf.fit(changed(spiked), PLANT.locals(), method="centralized")
    without = cf.fit(changed(missing), PLANT.locals(), method="centralized", **AS_THEY_ARE)
    np.testing.assert_array_equal(pooled.plant.A, without.plant.A)
    assert codes(pooled) == ["sensor-spikes", "sensor-spikes"]
    assert codes(without) == []


def test_every_kind_is_told_with_its_channel_and_what_was_done() -> None:
    def spoil(y: dict[str, np.ndarray]) -> None:
        boiler = y["boiler"]
        boiler[200:260, 0] = boiler[200, 0]
        boiler[:, 1] = np.clip(boiler[:, 1], *np.quantile(boiler[:, 1], (0.04, 1.0)))
        boiler[:, 2] = boiler[(np.arange(601) // 3) * 3, 2]
        boiler[:, 3] = np.round(2 * boiler[:, 3] / boiler[:, 3].std()) / 2

    texts = {c.code: c.text for c in cf.fit(changed(spoil), PLANT.locals()).parts["boiler"].caveats}
    assert "pressure (59 readings in rows 201 to 259, up to 60 in a row)" in texts["sensor-stuck"]
    assert "level (25 readings in rows" in texts["sensor-saturated"]
    assert "steam (one every 3 rows, 400 repeats left out)" in texts["sensor-held"]
    assert "fire (step 0.5)" in texts["sensor-quantised"]


def test_a_unit_may_keep_its_readings_as_they_are() -> None:
    found = cf.fit(changed(spiked), PLANT.locals(), sensors={"boiler": "as they are"}, evaluations=3)
    assert [c.scope for c in found.caveats if c.code == "sensor-spikes"] == ["turbine"]
    assert [c.scope for c in found.caveats if c.code == "absurd-reading"] == ["boiler"]
    with pytest.raises(cf.OptionError, match=r"names unit 'kettle'.*boiler, turbine"):
        cf.fit(CLEAN, PLANT.locals(), sensors={"kettle": "treated"})
    with pytest.raises(cf.OptionError, match="one of 'treated', 'as they are', got 'no'"):
        cf.fit(CLEAN, sensors="no")
    part = Job("j", "sufficient", {"boiler": [], "turbine": []}, {"sensors": {"boiler": "as they are"}})
    for options in (LogOptions, LikelihoodOptions):  # of the unit that is not named, as its plant reads them
        assert options.parse("sufficient", part.part_for("turbine").options).sensors is None


def test_private_rows_are_taken_as_they_are() -> None:
    privacy = cf.Privacy(epsilon=5.0, delta=1e-6, seed=1)
    found, plain = (cf.fit(changed(spiked), PLANT.locals(), privacy=privacy, **o) for o in ({}, AS_THEY_ARE))
    np.testing.assert_array_equal(found.plant.A, plain.plant.A)
    assert codes(found) == []
    assert found.parts["boiler"].sensors == ()
    with pytest.raises(cf.OptionError, match="accounting counts each row by itself"):
        cf.fit(changed(spiked), PLANT.locals(), privacy=privacy, sensors="treated")


@pytest.mark.parametrize("models", [PLANT.locals(), None], ids=["models", "logs"])
def test_later_rows_and_questions_are_judged_by_the_fitted_ones(
    models: dict[str, cf.LocalModel] | None, tmp_path
) -> None:
    early, late = CLEAN.slice(0, 500), CLEAN.slice(500, 510)

    def wild(y: dict[str, np.ndarray]) -> None:
        y["boiler"][4, 0] = 1e6

    def gone(y: dict[str, np.ndarray]) -> None:
        y["boiler"][4, 0] = np.nan

    found = cf.fit(early, models)
    found.save(tmp_path / "fit")
    loaded = cf.load(tmp_path / "fit")
    assert loaded.parts["boiler"].sensors == found.parts["boiler"].sensors != ()
    for fit in (found, loaded):
        asked, expected = (fit.about(changed(change, late)).shared for change in (wild, gone))
        np.testing.assert_array_equal(asked.values, expected.values)
    updated, without = (found.update(changed(change, late)) for change in (wild, gone))
    np.testing.assert_array_equal(updated.plant.A, without.plant.A)


def test_a_free_run_is_held_against_believed_readings() -> None:
    found = cf.fit(CLEAN, PLANT.locals())
    dirty, plain = (found.check(record) for record in (changed(spiked), changed(missing)))
    assert [c.number for c in dirty.checks] == pytest.approx([c.number for c in plain.checks], nan_ok=True)


def test_a_report_lists_what_the_sensors_did() -> None:
    record = changed(spiked)
    content = compose(cf.fit(record, PLANT.locals()), record)
    row = ("boiler", "pressure", "spike", "2 readings in rows 50 to 300, up to 1e+06 bar")
    assert content.sensors[0] == row
    assert len(content.sensors) == 2
    page = render(content)
    assert "What the sensors did" in page
    assert row[-1] in page
    assert "What the sensors did" not in render(replace(content, sensors=()))
