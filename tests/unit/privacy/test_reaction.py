"""Inputs that react to measurements carry them: found by the unit itself, refused or told, by either release."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from loopback import fit_over_sessions

import counterflow as cf
from counterflow.exchange.input_feedback import MEMORY, reactions
from counterflow.federation import Job, Policy
from counterflow.privacy import Ledger, ledger_path

PLANT = cf.random_plant(units=["boiler", "turbine"], rng=1)
MODELS = PLANT.locals()
ROWS = 3000
PRIVACY = cf.Privacy(epsilon=1.0, delta=1e-6, seed=1)
BOILER = cf.Unit("boiler", 2, 2, 8)
Law = Callable[[np.ndarray, np.ndarray, int, np.random.Generator], float]


# ---- inputs that have nothing to do with measurements


def steps(rng: np.random.Generator, rows: int, chance: float) -> np.ndarray:
    """Levels that change now and then."""
    new = rng.random((rows, 2)) < chance
    new[0] = True
    levels = rng.normal(size=(rows, 2))
    at = np.maximum.accumulate(np.where(new, np.arange(rows)[:, None], 0), axis=0)
    return np.take_along_axis(levels, at, axis=0)


def held(rng: np.random.Generator, rows: int, length: int) -> np.ndarray:
    return np.repeat(rng.normal(size=(rows // length + 1, 2)), length, axis=0)[:rows]


def binary(rng: np.random.Generator, rows: int, length: int) -> np.ndarray:
    return np.sign(held(rng, rows, length))


def autoregressive(rng: np.random.Generator, rows: int, pole: float) -> np.ndarray:
    out = rng.normal(size=(rows, 2))
    for t in range(1, rows):
        out[t] += pole * out[t - 1]
    return out


def sines(rng: np.random.Generator, rows: int, _: float) -> np.ndarray:
    waves = [np.sin(f * np.arange(rows)[:, None] + rng.uniform(0, 6, 2)) for f in rng.uniform(0.03, 2.0, 12)]
    return np.sum(waves, axis=0)


FREE = {
    "white": (autoregressive, 0.0), "AR(0.9)": (autoregressive, 0.9), "a random walk": (autoregressive, 1.0),
    "steps": (steps, 0.02), "rare steps": (steps, 0.004), "held": (held, 10), "long held": (held, 50),
    "binary": (binary, 1), "slow binary": (binary, 7), "sines": (sines, 0.0),
}  # fmt: skip


@pytest.mark.parametrize("kind", FREE)
@pytest.mark.parametrize("rows", [400, ROWS])
def test_inputs_that_do_not_react_are_not_accused(kind, rows):
    make, setting = FREE[kind]
    for seed in range(4):
        rng = np.random.default_rng((seed, rows))
        plant = cf.random_plant(units=["boiler", "turbine"], outputs=(8, 1)[seed % 2], rng=seed)
        inputs = {name: make(rng, rows, setting) for name in plant.names}
        recording = plant.simulate(rows - 1, rng=seed, inputs=inputs)
        for name in plant.names:
            own = recording[name]
            assert not [each for each in reactions(own.unit, own.y, own.u) if each.found]


def test_a_test_signal_that_repeats_itself_is_no_news():
    """Each unit gets the same sequence, shifted: what is measured of the others' copy foretells the own one."""
    rng = np.random.default_rng(0)
    period = rng.choice([-1.0, 1.0], size=889)
    shifted = [np.tile(np.roll(period, shift), 6)[: 5 * 889] for shift in (0, 222, 444, 666)]
    inputs = {"boiler": np.column_stack(shifted[:2]), "turbine": np.column_stack(shifted[2:])}
    recording = PLANT.simulate(5 * 889 - 1, rng=1, inputs=inputs)
    for name in PLANT.names:
        assert not any(each.found for each in reactions(recording[name].unit, recording[name].y, recording[name].u))


# ---- controllers


def proportional(gain: float, delay: int, noise: float) -> Law:
    return lambda y, u, t, rng: (-gain * y[t - delay, 0] if t >= delay else 0.0) + noise * rng.normal()


def integrating(gain: float, share: float, noise: float) -> Law:
    def law(y, u, t, rng):
        if not t:
            return 0.0
        return u[t - 1, 0] - gain * (y[t, 0] - y[t - 1, 0]) - share * y[t, 0] + noise * rng.normal()

    return law


def relay(band: float, delay: int) -> Law:
    def law(y, u, t, rng):
        before = u[t - 1, 0] if t else 1.0
        error = y[t - delay, 0] if t >= delay else 0.0
        return -1.0 if error > band else 1.0 if error < -band else before

    return law


LAWS = {
    "P": proportional(0.3, 0, 0.0), "P, a row late": proportional(0.3, 1, 0.0),
    "P with noise": proportional(0.3, 0, 1.0), "small P with noise": proportional(0.25, 0, 1.0),
    "P, 20 rows late": proportional(0.3, 20, 1.0),
    "P, as late as is looked": proportional(0.3, MEMORY, 1.0), "PI": integrating(0.2, 0.02, 0.0),
    "PI with noise": integrating(0.2, 0.02, 0.3), "relay": relay(0.5, 0), "relay, 30 rows late": relay(0.5, 30),
}  # fmt: skip


def closed_loop(law: Law, outputs: int, rows: int = 4000, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """y and u of the boiler, whose first input follows its first measurement, in standard deviations."""
    plant = cf.random_plant(units=["boiler", "turbine"], outputs=outputs, rng=seed)
    scale = plant.simulate(1000, rng=1)["boiler"].y[:, 0].std()
    rng = np.random.default_rng(seed)
    states, y, u = np.zeros(4), np.zeros((rows, 2 * outputs)), rng.normal(size=(rows, 4))
    process = rng.normal(size=(rows, 4)) @ np.linalg.cholesky(plant.Q).T
    sensor = rng.normal(size=(rows, 2 * outputs)) @ np.linalg.cholesky(plant.R).T
    for t in range(rows):
        y[t] = (plant.C @ states + sensor[t]) / scale
        u[t, 0] = law(y, u, t, rng)
        states = plant.A @ states + plant.B @ u[t] + process[t]
    return y[:, :outputs], u[:, :2]


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("outputs", [1, 8])
def test_controllers_are_found(name, outputs):
    y, u = closed_loop(LAWS[name], outputs)
    moved, free = reactions(cf.Unit("boiler", 2, 2, outputs), y, u)
    assert moved.found, moved
    assert moved.share > 0.005
    assert not free.found


def test_wild_and_missing_readings_hide_no_controller():
    y, u = closed_loop(proportional(0.6, 0, 1.0), 3)
    y[::97] *= 1e200
    y[::13, 0] = np.nan
    y[500:700] = np.nan
    assert reactions(cf.Unit("boiler", 2, 2, 3), y, u)[0].found


@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_units_of_measure_do_not_matter(scale):
    y, u = closed_loop(LAWS["P with noise"], 3)
    unit = cf.Unit("boiler", 2, 2, 3)
    plain = reactions(unit, y, u)
    with np.errstate(over="ignore"):
        scaled = reactions(unit, scale / 10 * y, scale * u / 10)
    assert [each.found for each in scaled] == [each.found for each in plain] == [True, False]


@pytest.mark.parametrize("rows", [2, 3, 10, 50])
def test_of_a_few_rows_nothing_is_said(rows):
    rng = np.random.default_rng(0)
    for u in (rng.normal(size=(rows, 2)), np.zeros((rows, 2)), np.full((rows, 2), 1e300)):
        y = np.where(rng.random((rows, 8)) < 0.3, np.nan, rng.normal(size=(rows, 8)))
        assert not any(each.found for each in reactions(BOILER, y, u))
        assert not any(each.found for each in reactions(BOILER, np.full((rows, 8), np.nan), u))


def test_inputs_that_act_at_once_are_not_judged_by_their_own_row():
    rng = np.random.default_rng(0)
    u = rng.normal(size=(2000, 2))
    y = np.repeat(u[:, :1], 8, axis=1) + 0.1 * rng.normal(size=(2000, 8))
    assert reactions(BOILER, y, u)[0].found
    assert not reactions(BOILER, y, u, at_once=True)[0].found


# ---- declared loops are certain


@pytest.mark.parametrize("reads", ["y1", "turbine/y2"])
def test_a_declared_loop_counts_whatever_the_rows_show(reads):
    rng = np.random.default_rng(0)
    unit = cf.Unit("boiler", 2, ["u1", "u2"], 8, loops=[cf.Loop("u1", reads)])
    y, u = rng.normal(size=(500, 8)), rng.normal(size=(500, 2))
    found = reactions(unit, y, u)
    assert [each.found for each in found] == [True, False]
    assert reads in str(found[0])
    u[:, 0] = 0.5  # in manual: what does not move carries nothing
    assert not reactions(unit, y, u)[0].found


def test_a_schedule_reads_nothing():
    rng = np.random.default_rng(0)
    for law, reacts in ((cf.Schedule((0.0, 1.0), rows=12), False), (None, True)):
        unit = cf.Unit("boiler", 2, ["u1", "u2"], 8, loops=[cf.Loop("u1", "y1", law=law)])
        found = reactions(unit, rng.normal(size=(500, 8)), rng.normal(size=(500, 2)))
        assert found[0].found == reacts


# ---- what comes of it


def looped() -> cf.Recording:
    recording = PLANT.simulate(ROWS, rng=2)
    us = {name: np.array(recording[name].u) for name in PLANT.names}
    y = recording["boiler"].y[:, 0]
    us["boiler"][1:, 0] += 0.5 * y[:-1] / y.std()
    return cf.Recording.from_arrays({name: (recording[name].y, us[name]) for name in PLANT.names})


@pytest.mark.parametrize("release", ["moments", "rows"])
def test_both_releases_refuse_or_tell(release):
    recording, privacy = looped(), replace(PRIVACY, release=release)
    with pytest.raises(cf.PrivacyError, match="u1") as refused:
        cf.fit(recording, MODELS, privacy=privacy)
    assert refused.value.code == "inputs-react"
    told = cf.fit(recording.slice(0, 700), MODELS, privacy=privacy, reacting="told")
    assert [c.scope for c in told.parts["boiler"].caveats if c.code == "inputs-react"] == ["boiler"]
    assert not [c for c in told.server_caveats if c.code == "inputs-react"]  # what the unit has found stays with it
    assert any("declared loops" in text for text in told.privacy.excluded)


def test_without_privacy_nobody_looks():
    cf.fit(looped().slice(0, 500), MODELS, method="moments")


@pytest.mark.parametrize("release", ["moments", "rows"])
def test_a_window_that_reacts_is_not_taken_in(release):
    privacy = replace(PRIVACY, release=release)
    free = PLANT.simulate(300, rng=5)
    found = cf.fit(free, MODELS, privacy=privacy)
    with pytest.raises(cf.PrivacyError) as refused:
        found.update(looped(), privacy=privacy)
    assert refused.value.code == "inputs-react"


def test_an_option_that_is_none_is_refused():
    for options in ({"reacting": "never"}, {"reacting": True}):
        with pytest.raises(cf.OptionError, match="reacting"):
            cf.fit(PLANT.simulate(100, rng=1), MODELS, privacy=PRIVACY, **options)


@pytest.mark.parametrize("release", ["moments", "rows"])
def test_between_machines_the_plant_decides_not_the_job(tmp_path, release):
    recording = looped().slice(0, 700)
    inputs = {unit.name: unit.inputs for unit in recording.units}
    privacy = replace(PRIVACY, release=release)

    def run(name: str, options: dict[str, str], allowed: bool) -> cf.Fit:
        folder = tmp_path / name
        policies = {}
        for unit in PLANT.names:
            Ledger.create(ledger_path(folder / unit, unit), unit, 5.0, 1e-5).close()
            policies[unit] = Policy(
                unit, ledger=folder / unit, simulation=True, inputs_shown=True, reacting_inputs=allowed
            )  # fmt: skip
        job = Job(name, "sufficient", inputs, options=options, privacy=privacy)
        return fit_over_sessions(folder, job, recording, MODELS, policies)

    with pytest.raises(cf.PrivacyError) as refused:
        run("plain", {}, True)
    assert refused.value.code == "inputs-react"
    with pytest.raises(cf.PrivacyError) as refused:
        run("told", {"reacting": "told"}, False)
    assert refused.value.code == "privacy.reacting_inputs"
    run("allowed", {"reacting": "told"}, True)
