"""Free runs against a plain loop, and the verdicts that follow from them."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from tolerances import LONG

import counterflow as cf
from counterflow.checks import check, free_run
from counterflow.filtering import kalman_filter

PLANT = cf.random_plant(["boiler", "turbine"], outputs=3, rng=1)
RECORDING = PLANT.simulate(1500, rng=2)


@cache
def fitted() -> cf.Fit:
    return cf.fit(RECORDING, PLANT.locals())


def test_runs_are_those_of_a_plain_loop() -> None:
    starts = [40, 41, 700]
    runs = free_run(fitted(), RECORDING, horizon=12, starts=starts)
    y = np.hstack([RECORDING[n].y for n in RECORDING.names])
    u = np.hstack([RECORDING[n].u for n in RECORDING.names])
    plant = fitted().plant
    assert fitted().couplings is not None
    prior = fitted().couplings.shared.prior
    state = kalman_filter(y, u, plant.A, plant.B, plant.C, plant.Q, plant.R, initial_covariance=prior).filtered
    own = PLANT.local("turbine")
    alone = kalman_filter(RECORDING["turbine"].y, RECORDING["turbine"].u, own.A, own.B, own.C, own.Q, own.R).filtered
    for i, start in enumerate(starts):
        x, z = state[start], alone[start]
        for k in range(12):
            x = plant.A @ x + plant.B @ u[start + k]
            z = own.A @ z + own.B @ RECORDING["turbine"].u[start + k]
            expected = (plant.C @ x)[plant.output_slice("turbine")]
            np.testing.assert_allclose(runs["turbine"].joint[i, k], expected, rtol=1e-7, atol=1e-9)
            np.testing.assert_allclose(runs["turbine"].local[i, k], own.C @ z, rtol=LONG, atol=1e-9)
            assert (runs["turbine"].truth[i, k] == RECORDING["turbine"].y[start + k + 1]).all()
            assert (runs["turbine"].persistence[i, k] == RECORDING["turbine"].y[start]).all()
    errors = np.square(runs["turbine"].joint - runs["turbine"].truth)
    np.testing.assert_allclose(runs["turbine"].rmse("joint"), np.sqrt(errors.mean(axis=0)), rtol=LONG)
    np.testing.assert_allclose(runs.table["turbine"]["joint"], np.sqrt(errors.mean(axis=(0, 1))), rtol=LONG)
    assert runs.to_frame().shape == (2 * 3 * 12 * 3, 5)


def test_gaps_are_left_out_and_persistence_holds_the_last_that_was_measured() -> None:
    y = RECORDING["turbine"].y.copy()
    y[695:701, 0] = np.nan
    y[705, 1] = np.nan
    parts = {"boiler": (RECORDING["boiler"].y, RECORDING["boiler"].u), "turbine": (y, RECORDING["turbine"].u)}
    run = free_run(fitted(), cf.Recording.from_arrays(parts, units=PLANT.units), horizon=9, starts=[700])["turbine"]
    assert (run.persistence[0, :, 0] == y[694, 0]).all()
    assert (run.persistence[0, :, 1] == y[700, 1]).all()
    assert np.isnan(run.truth[0, 4, 1])
    assert np.isfinite(run.joint).all()
    assert np.isnan(run.rmse("joint")[4, 1])
    assert np.isfinite(run.window_rmse("joint")).all()


def test_messages_serve_where_there_is_no_recording() -> None:
    runs = free_run(fitted(), horizon=5)
    assert runs.measured_in == "message numbers"
    assert runs["turbine"].channels == ("number 1", "number 2")
    assert runs["turbine"].compared("joint", "local")[0] < 1
    oracle = cf.fit(RECORDING, PLANT, method="oracle")
    with pytest.raises(cf.OptionError, match="give a recording"):
        free_run(oracle)


def turned(what: str) -> cf.Plant:
    """The plant with couplings, or all that inputs do, of the wrong sign."""
    if what == "inputs":
        return PLANT.replace(B=-PLANT.B)
    A, B = PLANT.A.copy(), PLANT.B.copy()
    for matrix, columns in ((A, PLANT.state_slice), (B, PLANT.input_slice)):
        for m, n in (("boiler", "turbine"), ("turbine", "boiler")):
            matrix[PLANT.state_slice(m), columns(n)] *= -1
    return PLANT.replace(A=A, B=B)


@pytest.mark.parametrize(
    ("what", "verdict", "says"),
    [("", "pass", ""), ("inputs", "fail", "worse than the last value"), ("couplings", "fail", "worse than the")],
)
def test_a_right_model_beats_both_and_a_wrong_one_does_not(what: str, verdict: str, says: str) -> None:
    plant = turned(what) if what else PLANT
    for found in check(cf.fit(RECORDING, plant, method="oracle"), RECORDING)["free run"]:
        assert found.verdict == verdict
        assert says in found.short
        assert bool(found.remedy) == (verdict == "fail")


def test_a_model_of_a_unit_alone_can_be_given() -> None:
    whole = free_run(fitted(), RECORDING, horizon=10)
    model = PLANT.local("turbine")
    off = cf.LocalModel(A=0.1 * model.A, B=0 * model.B, C=model.C, Q=model.Q, R=model.R)
    other = free_run(fitted(), RECORDING, horizon=10, local={"turbine": off})
    assert (other["boiler"].local == whole["boiler"].local).all()
    assert other["turbine"].compared("local", "persistence")[0] > whole["turbine"].compared("local", "persistence")[0]
    part = free_run(fitted(), RECORDING, horizon=10, local=dict(fitted().parts))
    np.testing.assert_array_equal(part["turbine"].local, whole["turbine"].local)
    with pytest.raises(cf.OptionError, match="pump"):
        free_run(fitted(), RECORDING, local={"pump": model})
    with pytest.raises(cf.OptionError, match="recording"):
        free_run(fitted(), local={"turbine": model})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("horizon", value) for value in (0, -1, 1.5, True, 1501, "a")),
        *(("starts", value) for value in ([1490], [-1], [[1]], [], [0.5], 0)),
    ],
)
def test_a_horizon_that_is_none_and_starts_that_leave_no_room_are_refused(name: str, value: object) -> None:
    with pytest.raises((cf.OptionError, cf.DataError), match=name):
        free_run(fitted(), RECORDING, **{"horizon": 30, name: value})  # type: ignore[arg-type]


def test_standard_errors_of_a_comparison_cover() -> None:
    """Two models that are equally good differ by accident only: |t| > 2 about one time in twenty."""
    rng = np.random.default_rng(1)
    base = free_run(fitted(), RECORDING, horizon=5, starts=100)["turbine"]
    far = []
    for _ in range(300):
        shape = base.truth.shape
        run = type(base)(
            "turbine", base.channels, np.zeros(shape), rng.standard_normal(shape), rng.standard_normal(shape),
            np.ones(shape), np.ones(shape[2]),
        )  # fmt: skip
        far.append(abs(run.compared("joint", "local")[1]) > 2.09)  # t with 19 degrees of freedom
    assert abs(np.mean(far) - 0.05) < 4 * np.sqrt(0.05 * 0.95 / 300)
