"""Refuters: a true effect withstands them, and false ones do not."""

from __future__ import annotations

import json

import numpy as np
import pytest

import counterflow as cf

PLANT = cf.random_plant(["boiler", "turbine"], topology="chain", rng=1)
RECORDING = PLANT.simulate(600, rng=2)


def _answering_input(rows: int = 800) -> cf.Recording:
    """The boiler's input follows the turbine, and does nothing to it."""
    rng = np.random.default_rng(0)
    y, u, b = np.zeros(rows), np.zeros(rows), np.zeros(rows)
    for t in range(1, rows):
        y[t] = 0.9 * y[t - 1] + rng.normal()
        u[t] = 0.8 * y[t] + 0.3 * rng.normal()
        b[t] = 0.7 * b[t - 1] + 0.5 * u[t - 1] + 0.1 * rng.normal()
    noise = 0.3 * rng.normal(size=(4, rows))
    return cf.Recording.from_arrays(
        {
            "boiler": (np.column_stack([b + noise[0], b + noise[1]]), u[:, None]),
            "turbine": (np.column_stack([y + noise[2], 2 * y + noise[3]]), rng.normal(size=(rows, 1))),
        }
    )


def test_a_true_effect_withstands_with_models():
    found = cf.refute(cf.fit(RECORDING, PLANT.locals()), RECORDING, "boiler", "turbine", {"u1": 0.5}, horizon=20)
    assert found.verdict == "pass"
    assert [each.verdict for each in found.found] == ["pass"] * 5
    assert abs(found["random common cause"].value - found.value) < 0.05 * abs(found.value)
    assert abs(found["placebo input"].value) < 0.1 * abs(found.value)
    assert "withstands 5 of 5" in found.summary()
    assert json.loads(json.dumps(found.to_json()))["verdict"] == "pass"
    assert found.to_pandas().index[0] == "placebo input"
    assert found._repr_html_().count("<tr>") == 6


def test_a_true_effect_withstands_from_logs():
    some = ("placebo input", "future input", "subset of rows", "dummy outcome")
    found = cf.refute(cf.fit(RECORDING), RECORDING, "boiler", "turbine", {"u1": 0.5}, 20, refuters=some)
    assert [each.name for each in found.found] == list(some)
    assert found.verdict == "pass"


def test_a_refuter_without_power_is_no_pass():
    """Nothing acts on the boiler: intervals hold zero, and the little that was estimated."""
    some = ("future input", "random common cause", "dummy outcome")
    fit = cf.fit(RECORDING, PLANT.locals())
    found = cf.refute(fit, RECORDING, "turbine", "boiler", {"u1": 0.5}, 20, refuters=some)
    assert found.lower <= 0 <= found.upper
    weak = [each for each in found.found if each.lower <= 0 <= each.upper and each.lower <= found.value <= each.upper]
    assert found["random common cause"] in weak
    assert all(each.verdict == "unknown" and "cannot tell" in each.text for each in weak)
    assert found.verdict == ("pass" if len(weak) < 3 else "unknown")
    assert f"withstands {3 - len(weak)} of 3 refuters, and {len(weak)} of them cannot tell" in found.summary()


def test_an_input_that_reacts_is_refuted():
    recording = _answering_input()
    fit = cf.fit(recording)
    found = cf.refute(fit, recording, "boiler", "turbine", {"u1": 1.0}, 20, refuters=("placebo input", "future input"))
    assert abs(found.value) > 0.5, "the false effect is there"
    assert found["future input"].verdict == "fail"
    assert found.verdict == "fail"
    assert "does not withstand future input: do not rely on it" in found.summary()


def test_a_false_effect_of_a_model_that_is_too_sure_is_refuted():
    """Nothing acts on the boiler; with noise that is said to be a hundredth of what it is, something seems to."""
    sure = {
        name: cf.LocalModel(A=model.A, B=model.B, C=model.C, Q=1e-3 * model.Q, R=1e-2 * model.R)
        for name, model in PLANT.locals().items()
    }
    fit = cf.fit(RECORDING, sure)
    found = cf.refute(fit, RECORDING, "turbine", "boiler", {"u1": 1.0}, 20)
    assert not found.lower <= 0 <= found.upper, "the false effect seems sure"
    assert found.verdict == "fail"


def test_what_cannot_be_refuted_is_refused():
    fit = cf.fit(RECORDING, PLANT.locals())
    published = cf.fit(RECORDING, PLANT.locals(), method="penalty", rounds=2)
    with pytest.raises(cf.OptionError, match="no interval"):
        cf.refute(published, RECORDING, "boiler", "turbine", {"u1": 1.0})
    with pytest.raises(cf.OptionError, match="no refuter 'luck'"):
        cf.refute(fit, RECORDING, "boiler", "turbine", {"u1": 1.0}, refuters=("luck",))
    private = cf.fit(RECORDING, PLANT.locals(), privacy=cf.Privacy(epsilon=5.0, delta=1e-5, seed=0))
    with pytest.raises(cf.PrivacyError, match="pay"):
        cf.refute(private, RECORDING, "boiler", "turbine", {"u1": 1.0})
    own = cf.refute(fit, RECORDING, "boiler", "boiler", {"u1": 1.0}, 10, refuters=("dummy outcome",))
    assert own.verdict == "unknown"
