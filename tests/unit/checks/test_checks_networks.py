"""Checks of fits from logs, and of curvature and shared disturbances: each speaks where it should, and only there."""

from __future__ import annotations

from functools import cache

import numpy as np

import counterflow as cf
from counterflow.checks import Check

UNITS = tuple(
    cf.Unit(name, inputs=[f"{name}.in"], outputs=[f"{name}.level", f"{name}.flow"]) for name in ("upper", "lower")
)


def outflow(x: np.ndarray, bend: float) -> np.ndarray:
    return (1 - bend) * 0.12 * x + bend * 0.24 * (np.sqrt(np.maximum(1 + x, 0.02)) - 1)


def tanks(
    rows: int, *, seed: int, wide: float = 0.3, bend: float = 1.0, common: float = 0.0, later: float = 1.0
) -> cf.Recording:
    """Two tanks, the upper one draining into the lower; outflows go with the root of the level as far as they bend.

    ``common``: size of slow rain into both that nobody records; ``later``: factor of what drains over, in the second
    half.
    """
    rng = np.random.default_rng(seed)
    hold = rng.integers(8, 40, size=(rows, 2))
    u = np.column_stack([np.repeat(rng.uniform(-wide, wide, rows), hold[:, k])[:rows] for k in range(2)])
    rain, x, states = 0.0, np.zeros(2), np.empty((rows, 2))
    for t in range(rows):
        states[t] = x
        rain = 0.97 * rain + common * rng.standard_normal()
        out = outflow(x, bend)
        over = out[0] * (later if t > rows // 2 else 1.0)
        x = x + np.array([0.2 * u[t, 0] - out[0], 0.2 * u[t, 1] + over - out[1]]) + rain
        x = x + 0.002 * rng.standard_normal(2)
    y = np.stack([states, outflow(states, bend)], axis=-1)
    y = y + 0.03 * y.std(axis=0) * rng.standard_normal(y.shape)
    parts = {unit.name: (y[:, k], u[:, k : k + 1]) for k, unit in enumerate(UNITS)}
    return cf.Recording.from_arrays(parts, units=UNITS)


@cache
def good() -> cf.Fit:
    return cf.fit(tanks(3000, seed=1))


def only(fit: cf.Fit, name: str) -> Check:
    (found,) = fit.check()[name]
    return found


def test_a_good_fit_from_logs_passes_and_says_that_it_bends() -> None:
    assert good().check().verdict == "pass", str(good().check())
    assert good().couplings is not None
    assert good().couplings.model.curvature.used
    assert "gains change with the operating point" in only(good(), "linearity").finding


def test_a_linear_plant_is_called_linear() -> None:
    found = cf.fit(tanks(3000, seed=2, bend=0.0))
    assert "gains change" not in only(found, "linearity").finding


def test_short_and_drowned_records_fail_by_precision() -> None:
    drowned = cf.fit(tanks(400, seed=3, wide=0.02, common=0.02))
    assert only(drowned, "precision").verdict == "fail"
    assert only(good(), "precision").verdict == "pass"
    answer = drowned.effect("upper", "lower", {"upper.in": 0.01}, horizon=40)
    assert any(caveat.code == "doubtful-answer" for caveat in answer.caveats)
    sure = good().effect("upper", "lower", {"upper.in": 0.1}, horizon=40)
    assert not any(caveat.code == "doubtful-answer" for caveat in sure.caveats)


def test_rain_that_nobody_records_is_noticed() -> None:
    wet = cf.fit(tanks(3000, seed=4, common=0.01))
    assert any(check.verdict == "caution" for check in wet.check()["shared disturbance"])
    assert all(check.verdict == "pass" for check in good().check()["shared disturbance"])


def test_what_drains_over_changes_halfway() -> None:
    recording = tanks(3000, seed=5, bend=0.0, later=0.4)
    mixed = cf.fit(recording, regime="all")
    assert any(check.verdict in ("caution", "fail") for check in mixed.check()["drift"])
    found = cf.fit(recording)  # which finds the change, and rests on what is left behind it
    assert len(found.regimes) == 2
    assert all(check.verdict == "pass" for check in found.check()["drift"])
    assert all(check.verdict == "pass" for check in good().check()["drift"])


def test_given_linear_models_of_a_plant_that_bends_are_told_apart() -> None:
    bent, straight = tanks(3000, seed=6, wide=0.4), tanks(3000, seed=6, wide=0.4, bend=0.0)
    verdicts = {}
    for name, recording in (("bent", bent), ("straight", straight)):
        model = cf.LocalModel(A=[[0.9]], B=[[0.1]], C=[[1.0], [0.1]], Q=[[1e-5]], R=np.diag([1e-4, 1e-6]))
        found = cf.fit(recording, {unit.name: model for unit in UNITS}, estimate="all")
        verdicts[name] = {check.verdict for check in found.check()["linearity"]}
    assert "fail" in verdicts["bent"]
    assert "fail" not in verdicts["straight"]


def test_what_was_ruled_out_is_held_against_the_data() -> None:
    recording = tanks(2000, seed=7)
    true = cf.fit(recording, edges=[("upper", "lower")]).check()["known couplings"]
    assert [(check.about, check.verdict) for check in true] == [("upper", "pass")]
    wrong = cf.fit(recording, forbidden=[("upper", "lower")])
    assert {check.about: check.verdict for check in wrong.check()["known couplings"]} == {"lower": "fail"}
    assert any(caveat.code == "check-known-couplings-fail" for caveat in wrong.caveats)
    model = cf.LocalModel(A=[[0.88]], B=[[0.2]], C=[[1.0], [0.12]], Q=[[1e-4]], R=np.diag([1e-3, 1e-5]))
    given = cf.fit(recording, {unit.name: model for unit in UNITS}, edges=[])
    assert "fail" in {check.verdict for check in given.check()["known couplings"]}
    assert not good().check()["known couplings"]
