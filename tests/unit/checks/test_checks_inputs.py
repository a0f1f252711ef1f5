"""Excitation and feedback: open loops pass at the level they should, controllers are caught and named."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from check_plants import (
    FloatArray,
    Law,
    closed_loop,
    looked,
    material_of,
    open_loop,
    proportional,
    random_holds,
    relay,
    tank_plant,
    with_integral,
)
from tolerances import STANDARD_ERRORS

import counterflow as cf
from counterflow.checks import inputs
from counterflow.checks.inputs import Feedbacks
from counterflow.checks.material import Material
from counterflow.plant import excitation

PLANT = cf.random_plant(["boiler", "turbine"], inputs=1, outputs=3, rng=1)
SLOW = PLANT.replace(A=PLANT.A * 0.98 / PLANT.spectral_radius)
RUNS = 20


DRAWN: dict[str, Callable[[int, int], dict[str, FloatArray]]] = {
    "white": lambda steps, seed: excitation.white(PLANT, steps, seed),
    "autoregressive": lambda steps, seed: excitation.autoregressive(PLANT, steps, seed, 0.95),
    "holds of 5": lambda steps, seed: excitation.holds(PLANT, steps, seed, 5),
    "holds of 20": lambda steps, seed: excitation.holds(PLANT, steps, seed, 20),
    "random holds": lambda steps, seed: held(steps, seed),
    "on and off": lambda steps, seed: {n: (u > 0).astype(float) for n, u in held(steps, seed).items()},
}


def held(steps: int, seed: int) -> dict[str, FloatArray]:
    rng = np.random.default_rng(seed)
    return {n: random_holds(rng, steps + 1, 1) for n in PLANT.names}


@pytest.mark.parametrize("plant", [PLANT, SLOW], ids=["quick", "slow"])
@pytest.mark.parametrize("kind", DRAWN)
def test_open_loops_raise_no_alarm_beyond_the_level(kind: str, plant: cf.Plant) -> None:
    found, verdicts = [], []
    for seed in range(RUNS):
        material = material_of(plant.simulate(800, rng=seed, inputs=DRAWN[kind](800, seed)), plant)
        tests = Feedbacks(material)
        found += [p for each in map(tests.of, range(2)) for p in (*each.p_values, *each.same_row_p)]
        verdicts += [check.verdict for check in looked("feedback", material)]
    p_values = np.array(found)
    assert np.isfinite(p_values).all()
    for level in (0.01, 0.05):  # held set points may stay below it, never above
        error = np.sqrt(level * (1 - level) / len(p_values))
        assert np.mean(p_values < level) < level + STANDARD_ERRORS * error
    assert "fail" not in verdicts
    assert verdicts.count("caution") <= 1


@pytest.mark.parametrize(
    ("law", "earlier", "gap"),
    [
        pytest.param(proportional(0), False, 0, id="proportional, same row"),
        pytest.param(proportional(1), True, 0, id="proportional, row before"),
        pytest.param(proportional(1), False, 100, id="proportional, beside a gap"),
        pytest.param(with_integral, False, 0, id="with integral"),
        pytest.param(relay(sees_truth=False), False, 0, id="relay"),
        pytest.param(relay(sees_truth=True), False, 0, id="relay on the true level"),
    ],
)
def test_a_controller_is_caught_and_named(law: Law, earlier: bool, gap: int) -> None:
    for seed in range(3):
        recording = with_gap(closed_loop(law, 1500, seed), gap)
        pump, demand = looked("feedback", material_of(recording, tank_plant()))
        assert (pump.verdict, demand.verdict) == ("fail", "pass"), (seed, pump, demand)
        assert pump.number > 0.1
        assert "set point" in pump.remedy
        for said in (
            "those of tank, foretell", "nobody records",
            "makes the answer unsafe for the question what will happen in the running plant",
            "earlier measurements" if earlier else "",
        ):  # fmt: skip
            assert said in pump.finding


def with_gap(recording: cf.Recording, length: int, units: tuple[str, ...] = ()) -> cf.Recording:
    """Rows from 400 on in which nothing was read, of some units or of all; their inputs are held as they last were."""
    parts = {n: (recording[n].y.copy(), recording[n].u.copy()) for n in recording.names}
    gap = slice(400, 400 + length)
    for name in units or recording.names:
        parts[name][0][gap] = np.nan
        parts[name][1][gap] = parts[name][1][399]
    return cf.Recording.from_arrays(parts, units=[recording[n].unit for n in recording.names])


@pytest.mark.parametrize("length", [3, 25, 100])
def test_a_gap_in_the_readings_raises_no_alarm(length: int) -> None:
    model = PLANT.replace(A=PLANT.A * 1.1 / PLANT.spectral_radius)  # what it expects in a gap runs away
    for seed in range(8):
        recording = SLOW.simulate(800, rng=seed, inputs=held(800, seed))
        tests = Feedbacks(material_of(with_gap(recording, length), model))
        for j in range(2):
            found = tests.of(j)
            assert found.moves > inputs.FEWEST_MOVES
            assert np.nanmin([*found.p_values, *found.same_row_p]) > 1e-4, (seed, j)


def counted(recording: cf.Recording) -> tuple[Feedbacks, dict[str, int]]:
    """Rows that count for each unit."""
    tests = Feedbacks(material_of(recording, SLOW))
    return tests, {tests.material.names[m]: group.count for group in tests.groups for m in group.units}


def test_rows_with_filled_windows_do_not_count() -> None:
    recording, window = with_gap(SLOW.simulate(800, rng=1), 25, ("boiler",)), inputs.MEASURED_PAST[-1][1]
    tests, counts = counted(recording)
    assert counts == {"turbine": tests.n, "boiler": tests.n - 25 - window}
    # of a unit that is read in every fifth row alone nothing can be left out but its gap
    sparse = {n: (recording[n].y.copy(), recording[n].u) for n in recording.names}
    sparse["boiler"][0][np.arange(801) % 5 > 0] = np.nan
    tests, counts = counted(cf.Recording.from_arrays(sparse, units=SLOW.units))
    assert tests.n - 25 - 5 - window <= counts["boiler"] < tests.n - 15


def test_reaction_within_a_row_that_nothing_earlier_tells_is_called_so() -> None:
    recording, rng = PLANT.simulate(1500, rng=3), np.random.default_rng(4)
    parts = {n: (recording[n].y, recording[n].u) for n in recording.names}
    # the input of row t follows the noise of the measurement in row t alone, which acts on nothing
    noise = (recording["turbine"].y - recording["turbine"].y.mean(axis=0))[:, :1]
    parts["boiler"] = (recording["boiler"].y, noise + 0.1 * rng.standard_normal(noise.shape))
    check = looked("feedback", material_of(cf.Recording.from_arrays(parts, units=PLANT.units), PLANT))[0]
    assert check.verdict == "fail"
    assert "same row" in check.finding
    assert np.isfinite(check.data["shares"]).all()


def test_without_feedback_the_same_tank_passes() -> None:
    for seed in range(3):
        checks = looked("feedback", material_of(closed_loop(open_loop, 1500, seed), tank_plant()))
        assert [check.verdict for check in checks] == ["pass", "pass"]
        assert all("nobody records cannot be seen" in check.finding for check in checks)


def test_the_explained_share_is_that_of_explicit_regressions() -> None:
    material = material_of(closed_loop(proportional(1), 900, 5), tank_plant())
    tests, j, m = Feedbacks(material), 0, 0
    found = tests.of(j)
    first, rows = tests.lead, material.rows
    u, s = tests.inputs, tests.messages
    own = np.zeros((rows, 1))  # what the pump alone does to the tank's message, step by step
    state = np.zeros(2)
    for t in range(1, rows):
        state = material.model.A @ state + material.model.B[:, j] * u[t - 1, j]
        own[t] = (material.C @ state)[material.columns[m]]

    def windows(series: FloatArray, spans: tuple[tuple[int, int], ...]) -> list[FloatArray]:
        return [
            np.array([series[t - far : t - near + 1].mean(axis=0) for t in range(first, rows)]) for near, far in spans
        ]

    base = [np.ones((rows - first, 1)), *windows(u[:, [j]], tests.own), *windows(u[:, [1]], tests.own[: inputs.NEAR])]
    moves = u[first:, j]
    moves = moves - (x := np.hstack(base)) @ np.linalg.lstsq(x, moves, rcond=None)[0]
    given = np.hstack([*base, *windows(own, inputs.SEEN)])
    seen = np.hstack([given, *windows(s[:, material.columns[m]], inputs.MEASURED_PAST)])

    def left(x: FloatArray) -> float:
        return float(np.square(moves - x @ np.linalg.lstsq(x, moves, rcond=None)[0]).sum())

    n, second = len(moves), float(np.square(moves).sum())
    effective = min(n, 3 * second**2 / float((moves**4).sum()))
    freedom = n - given.shape[1]
    share = (freedom * (left(given) - left(seen)) / second - (seen.shape[1] - given.shape[1])) / min(effective, freedom)
    assert found.moves == pytest.approx(effective, rel=1e-8)
    assert found.shares[m] == pytest.approx(share, rel=1e-6)


def test_feedback_is_found_in_part_of_a_long_record(monkeypatch: pytest.MonkeyPatch) -> None:
    material = material_of(closed_loop(with_integral, 3000, 1), tank_plant())
    whole = Feedbacks(material).of(0)
    monkeypatch.setattr(inputs, "MOST_ROWS", 1200)
    some = Feedbacks(material)
    assert [part.stop - part.start for part in some.stretches] == [some.lead + 300] * inputs.STRETCHES
    assert some.stretches[-1].stop == material.rows
    found = some.of(0)
    assert found.same_row_p[0] < 1e-6
    assert found.same_row_shares[0] == pytest.approx(whole.same_row_shares[0], abs=0.05)


@pytest.mark.parametrize(
    ("name", "change", "verdict", "number"),
    [
        ("boiler", lambda own, other: own, "pass", None),
        ("boiler", lambda own, other: np.full_like(own, 3.3), "fail", 0.0),
        ("turbine", lambda own, other: 2 * other + 1, "fail", None),
        # 1 - correlation² with correlation² = 1 / 1.01
        ("turbine", lambda own, other: other + 0.1 * own, "caution", 0.01 / 1.01),
        ("boiler", lambda own, other: np.repeat([0.0, 1.0, 0.5, 2.0], 126)[:501, None], "caution", None),
        ("boiler", lambda own, other: np.sin(0.3 * np.arange(501))[:, None], "caution", None),
    ],
    ids=["white", "still", "together", "nearly together", "few steps", "a wave"],
)
def test_inputs_that_do_not_move_enough_are_told(
    name: str, change: Callable[..., FloatArray], verdict: str, number: float | None
) -> None:
    u = excitation.white(PLANT, 500, 3)
    u[name] = change(u[name], u["boiler"])
    fit = cf.fit(PLANT.simulate(500, rng=3, inputs=u), PLANT.locals())
    found = dict(zip(PLANT.names, looked("excitation", Material(fit.server)), strict=True))
    assert found[name].verdict == verdict
    assert number is None or found[name].number == pytest.approx(number, rel=0.2)
    assert name == "boiler" or found["boiler"].verdict == verdict, "it takes two to move together"


def test_ways_of_moving_are_counted() -> None:
    t = np.arange(1000)
    assert inputs._order(np.sin(0.3 * t)) == 2
    assert inputs._order(np.sin(0.3 * t) + np.cos(1.1 * t)) == 4
    assert inputs._order(np.random.default_rng(1).standard_normal(1000)) == inputs.ORDERS


@pytest.mark.parametrize(("seed", "rows"), [(119, 300), (120, 300), (105, 1000), (167, 1000)])
def test_a_dozen_random_moves_are_no_feedback(seed: int, rows: int) -> None:
    """Of 960 such inputs a chi-square called four reacting; with few moves chance explains more."""
    rng = np.random.default_rng([seed, rows, 4 * 31 + ord("r")])
    plant = cf.random_plant(["a", "b", "c"], topology="chain", inputs=2, outputs=4, rng=seed)
    inputs = {}
    for name in plant.names:
        inputs[name] = np.zeros((rows + 1, 2))
        for column in range(2):
            for row in np.sort(rng.choice(rows + 1, 12, replace=False)):
                inputs[name][row:, column] = rng.normal()
    fit = cf.fit(plant.simulate(rows, rng=seed + 1000, inputs=inputs), plant.locals())
    assert not [each for each in fit.check()["feedback"] if each.verdict in ("fail", "caution")]


def test_many_units_and_few_rows_are_no_feedback() -> None:
    """As many other inputs as rows explain any input: what is left of it is no move."""
    plant = cf.random_plant(units=20, topology="chain", rng=1)
    fit = cf.fit(plant.simulate(200, rng=2), plant.locals(), tol=0.1)
    assert not [each for each in fit.check()["feedback"] if each.verdict in ("fail", "caution")]
