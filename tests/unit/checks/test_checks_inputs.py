"""Excitation and feedback: open loops pass at the level they should, controllers are caught and named."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from check_plants import (
    FloatArray,
    Law,
    closed_loop,
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
from counterflow.checks.inputs import Feedbacks, excitation_checks, feedback_checks
from counterflow.checks.material import Material
from counterflow.plant import excitation

PLANT = cf.random_plant(["boiler", "turbine"], inputs=1, outputs=3, rng=1)
SLOW = PLANT.replace(A=PLANT.A * 0.98 / PLANT.spectral_radius)
RUNS = 20


def drawn(kind: str, steps: int, seed: int) -> dict[str, FloatArray]:
    rng = np.random.default_rng(seed)
    if kind == "random holds":
        return {n: random_holds(rng, steps + 1, 1) for n in PLANT.names}
    if kind == "on and off":
        return {n: (random_holds(rng, steps + 1, 1) > 0).astype(float) for n in PLANT.names}
    kinds: dict[str, Callable[[], dict[str, FloatArray]]] = {
        "white": lambda: excitation.white(PLANT, steps, seed),
        "autoregressive": lambda: excitation.autoregressive(PLANT, steps, seed, 0.95),
        "holds of 5": lambda: excitation.holds(PLANT, steps, seed, 5),
        "holds of 20": lambda: excitation.holds(PLANT, steps, seed, 20),
    }
    return kinds[kind]()


@pytest.mark.parametrize("plant", [PLANT, SLOW], ids=["quick", "slow"])
@pytest.mark.parametrize("kind", ["white", "autoregressive", "random holds", "holds of 5", "holds of 20", "on and off"])
def test_open_loops_raise_no_alarm_beyond_the_level(kind: str, plant: cf.Plant) -> None:
    p_values, verdicts = [], []
    for seed in range(RUNS):
        material = material_of(plant.simulate(800, rng=seed, inputs=drawn(kind, 800, seed)), plant)
        tests = Feedbacks(material)
        for j in range(2):
            found = tests.of(j)
            p_values += [*found.p_values, *found.same_row_p]
        verdicts += [check.verdict for check in feedback_checks(material)]
    shares = np.array(p_values)
    assert np.isfinite(shares).all()
    for level in (0.01, 0.05):  # held set points may stay below it, never above
        error = np.sqrt(level * (1 - level) / len(shares))
        assert np.mean(shares < level) < level + STANDARD_ERRORS * error
    assert "fail" not in verdicts
    assert verdicts.count("caution") <= 1


@pytest.mark.parametrize(
    ("law", "same_row"),
    [
        (proportional(0), True),
        (proportional(1), False),
        (with_integral, True),
        (relay(sees_truth=False), None),
        (relay(sees_truth=True), None),
    ],
    ids=["proportional, same row", "proportional, row before", "with integral", "relay", "relay on the true level"],
)
def test_a_controller_is_caught_and_named(law: Law, same_row: bool | None) -> None:
    for seed in range(3):
        pump, demand = feedback_checks(material_of(closed_loop(law, 1500, seed), tank_plant()))
        assert pump.verdict == "fail", (seed, pump)
        assert pump.number > 0.1
        assert "those of tank, foretell" in pump.finding
        assert "makes the answer unsafe for the question what will happen in the running plant" in pump.finding
        assert "nobody records" in pump.finding
        assert "set point" in pump.remedy
        assert demand.verdict == "pass", (seed, demand)
        if same_row is False:
            assert "earlier measurements" in pump.finding


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
        recording = SLOW.simulate(800, rng=seed, inputs=drawn("random holds", 800, seed))
        tests = Feedbacks(material_of(with_gap(recording, length), model))
        for j in range(2):
            found = tests.of(j)
            assert found.moves > inputs.FEWEST_MOVES
            assert np.nanmin([*found.p_values, *found.same_row_p]) > 1e-4, (seed, j)


def test_rows_with_filled_windows_do_not_count() -> None:
    recording = with_gap(SLOW.simulate(800, rng=1), 25, ("boiler",))
    tests = Feedbacks(material_of(recording, SLOW))
    counts = {tests.material.names[m]: group.count for group in tests.groups for m in group.units}
    assert counts == {"turbine": tests.n, "boiler": tests.n - 25 - inputs.MEASURED_PAST[-1][1]}
    # of a unit that is read in every fifth row alone nothing can be left out but its gap
    sparse = {n: (recording[n].y.copy(), recording[n].u) for n in recording.names}
    sparse["boiler"][0][np.arange(801) % 5 > 0] = np.nan
    tests = Feedbacks(material_of(cf.Recording.from_arrays(sparse, units=SLOW.units), SLOW))
    counts = {tests.material.names[m]: group.count for group in tests.groups for m in group.units}
    assert tests.n - 25 - 5 - inputs.MEASURED_PAST[-1][1] <= counts["boiler"] < tests.n - 15


def test_a_controller_is_caught_beside_gaps() -> None:
    for seed in range(3):
        recording = with_gap(closed_loop(proportional(1), 1500, seed), 100)
        pump, demand = feedback_checks(material_of(recording, tank_plant()))
        assert pump.verdict == "fail", (seed, pump)
        assert pump.number > 0.1
        assert demand.verdict == "pass", (seed, demand)


def test_reaction_within_a_row_that_nothing_earlier_tells_is_called_so() -> None:
    recording = PLANT.simulate(1500, rng=3)
    rng = np.random.default_rng(4)
    u = {n: recording[n].u.copy() for n in recording.names}
    # the input of row t follows the noise of the measurement in row t alone, which acts on nothing
    noise = recording["turbine"].y - recording["turbine"].y.mean(axis=0)
    parts = {n: (recording[n].y, u[n]) for n in recording.names}
    parts["boiler"] = (recording["boiler"].y, noise[:, :1] + 0.1 * rng.standard_normal((len(noise), 1)))
    check = feedback_checks(material_of(cf.Recording.from_arrays(parts, units=PLANT.units), PLANT))[0]
    assert check.verdict == "fail"
    assert "same row" in check.finding
    assert np.isfinite(check.data["shares"]).all()


def test_without_feedback_the_same_tank_passes() -> None:
    for seed in range(3):
        checks = feedback_checks(material_of(closed_loop(open_loop, 1500, seed), tank_plant()))
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


def excited(change: Callable[[dict[str, FloatArray]], None], steps: int = 500) -> list[tuple[str, float]]:
    u = excitation.white(PLANT, steps, 3)
    change(u)
    fit = cf.fit(PLANT.simulate(steps, rng=3, inputs=u), PLANT.locals())
    material = Material.of(fit.server)
    assert material is not None
    assert fit.couplings is not None
    return [(check.verdict, check.number) for check in excitation_checks(material, fit.couplings.doubts)]


def test_inputs_that_stand_still_or_move_together_fail() -> None:
    def still(u: dict[str, FloatArray]) -> None:
        u["boiler"][:] = 3.3

    def together(u: dict[str, FloatArray]) -> None:
        u["turbine"][:] = 2 * u["boiler"] + 1

    def nearly(u: dict[str, FloatArray]) -> None:
        u["turbine"][:] = u["boiler"] + 0.1 * u["turbine"]

    assert [verdict for verdict, _ in excited(lambda u: None)] == ["pass", "pass"]
    assert excited(still)[0] == ("fail", 0.0)
    assert [verdict for verdict, _ in excited(together)] == ["fail", "fail"]
    found = excited(nearly)
    assert [verdict for verdict, _ in found] == ["caution", "caution"]
    # 1 - correlation² with correlation² = 1 / 1.01
    assert found[0][1] == pytest.approx(0.01 / 1.01, rel=0.2)


def test_few_moves_and_few_ways_of_moving_ask_for_caution() -> None:
    def steps(u: dict[str, FloatArray]) -> None:
        u["boiler"][:] = np.repeat([0.0, 1.0, 0.5, 2.0], 126)[:501, None]

    def wave(u: dict[str, FloatArray]) -> None:
        u["boiler"][:] = np.sin(0.3 * np.arange(501))[:, None]

    assert excited(steps)[0][0] == "caution"
    assert excited(wave)[0][0] == "caution"
    assert inputs._order(np.sin(0.3 * np.arange(1000))) == 2
    assert inputs._order(np.sin(0.3 * np.arange(1000)) + np.cos(1.1 * np.arange(1000))) == 4
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
