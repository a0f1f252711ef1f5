"""Innovations against a plain loop; whiteness, size and drift: false alarms at their level, real faults caught."""

from __future__ import annotations

import numpy as np
import pytest
from check_plants import joined, looked, material_of
from tolerances import EXACT, LONG, STANDARD_ERRORS

import counterflow as cf
from counterflow.checks import innovations
from counterflow.checks.innovations import drift, whiteness
from counterflow.checks.material import Innovations
from counterflow.plant.simulation import simulate

PLANT = cf.random_plant(["boiler", "turbine"], outputs=3, rng=1)
RUNS = 200


def with_gaps(seed: int, steps: int = 60) -> cf.Recording:
    rng = np.random.default_rng(seed)
    recording = PLANT.simulate(steps, rng=seed)
    parts = {n: (recording[n].y.copy(), recording[n].u) for n in recording.names}
    for y, _ in parts.values():
        y[rng.random(len(y)) < 0.15] = np.nan
        y[20:26] = np.nan
    return cf.Recording.from_arrays(parts, units=PLANT.units)


@pytest.mark.parametrize("recording", [PLANT.simulate(60, rng=3), with_gaps(4)], ids=["whole", "gaps"])
def test_surprises_are_those_of_a_plain_loop(recording: cf.Recording) -> None:
    material = material_of(recording, PLANT)
    mean, cov = np.zeros(len(PLANT.A)), material.record.prior
    own, joint = np.zeros((2, *material.s.shape))
    for t in range(material.rows):
        here = np.flatnonzero(np.isfinite(material.s[t]))
        C = material.C[here]
        S = C @ cov @ C.T + np.eye(len(C))
        e = material.s[t, here] - C @ mean
        joint[t, here] = np.linalg.solve(np.linalg.cholesky(S), e)
        for block in material.columns:
            mine = np.flatnonzero((here >= block.start) & (here < block.stop))
            own[t, here[mine]] = np.linalg.solve(np.linalg.cholesky(S[np.ix_(mine, mine)]), e[mine])
        gain = cov @ C.T @ np.linalg.inv(S)
        mean, cov = mean + gain @ e, cov - gain @ C @ cov
        mean, cov = PLANT.A @ mean + PLANT.B @ material.u[t], PLANT.A @ cov @ PLANT.A.T + PLANT.Q
    found = material.innovations
    np.testing.assert_allclose(found.own, own[found.first :], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found.joint, joint[found.first :], rtol=1e-7, atol=1e-9)


def series(values: np.ndarray, there: np.ndarray | None = None) -> Innovations:
    """Innovations of two units of two columns, as if the model had left ``values``."""
    columns = (slice(0, 2), slice(2, 4))
    return Innovations(columns, 0, values, values, np.ones((len(values), 2), bool) if there is None else there)


def test_the_foreseeable_share_is_that_of_a_regression() -> None:
    noise = np.random.default_rng(1).standard_normal((4001, 4))
    values = noise[1:] + 0.6 * noise[:-1] + 0.3 * np.roll(noise, 1, axis=1)[:-1]
    values = values / np.sqrt(np.square(values).mean(axis=0))
    lags, n = innovations.LAGS, len(values)
    x = np.hstack([values[lags - k : n - k] for k in range(1, lags + 1)])
    y = values[lags:, :2] - values[lags:, :2].mean(axis=0)
    rest = y - x @ np.linalg.lstsq(x, y, rcond=None)[0]
    share = 1 - float((np.square(rest).sum(axis=0) / np.square(y).sum(axis=0)).mean())
    adjusted = 1 - (1 - share) * len(y) / (len(y) - x.shape[1])
    assert whiteness(series(values), 0).share == pytest.approx(adjusted, abs=0.01)
    assert adjusted > 0.2  # there is something to foresee


def at_their_level(p_values: list[float], level: float) -> bool:
    error = np.sqrt(level * (1 - level) / len(p_values))
    return bool(abs(np.mean(np.array(p_values) < level) - level) < STANDARD_ERRORS * error)


def test_whiteness_has_the_level_it_says() -> None:
    rng = np.random.default_rng(2)
    runs = [series(rng.standard_normal((600, 4))) for _ in range(RUNS)]
    p_values = [whiteness(run, m).p_value for run in runs for m in (0, 1)]
    assert at_their_level(p_values, 0.05)
    assert at_their_level(p_values, 0.5)
    assert np.isnan(whiteness(series(np.zeros((12, 4))), 0).p_value)


@pytest.mark.slow
def test_on_data_from_the_right_model_alarms_are_rare() -> None:
    found, drifts, alarms = [], [], 0
    for seed in range(RUNS):
        material = material_of(PLANT.simulate(300, rng=seed), PLANT)
        found += [whiteness(material.innovations, m).p_value for m in (0, 1)]
        drifts += [p for m in (0, 1) if (half := drift(material, m)) is not None for p in half.p_values]
        for kind in ("whiteness", "innovation size", "drift"):
            alarms += sum(check.verdict != "pass" for check in looked(kind, material))
    assert at_their_level(found, 0.05)
    assert at_their_level(drifts, 0.05)
    # 6 checks a run, each at a level of 1e-3 or less
    assert alarms <= 6 * RUNS * 1e-3 + STANDARD_ERRORS * np.sqrt(6 * RUNS * 1e-3)


@pytest.mark.parametrize(("size", "verdict"), [(0.04, "pass"), (0.4, "fail")])
def test_a_correlation_that_is_no_accident_but_small_passes_and_is_told(size: float, verdict: str) -> None:
    noise = np.random.default_rng(3).standard_normal((100_001, 4))
    material = material_of(PLANT.simulate(50, rng=1), PLANT)
    object.__setattr__(material, "innovations", series(noise[1:] + size * noise[:-1]))
    check = looked("whiteness", material)[0]
    assert check.verdict == verdict
    assert check.number == pytest.approx(size**2 / (1 + size**2), abs=0.02)
    assert ("no accident, but too little to matter" in check.finding) == (verdict == "pass")


@pytest.mark.parametrize(
    ("kind", "changes", "says"),
    [
        ("whiteness", {"A": 0.7}, "estimate the units' own blocks"),
        ("innovation size", {"Q": 1 / 3, "R": 1 / 3}, "too narrow"),
        ("innovation size", {"Q": 3.0, "R": 3.0}, "too wide"),
    ],
)
def test_a_wrong_model_is_not_white_and_wrong_noise_levels_are_not_of_their_size(
    kind: str, changes: dict[str, float], says: str
) -> None:
    recording = PLANT.simulate(2000, rng=5)
    wrong = PLANT.replace(**{letter: factor * getattr(PLANT, letter) for letter, factor in changes.items()})
    for check in looked(kind, material_of(recording, wrong)):
        assert check.verdict == "fail"
        assert check.short
        assert says in check.remedy
        if kind == "innovation size":
            assert check.number == pytest.approx(1 / changes["Q"], rel=0.15)
    assert looked(kind, material_of(recording, PLANT))[0].verdict == "pass"


@pytest.mark.parametrize("factor", [0.7, 1.3])
def test_a_coupling_that_changes_at_half_time_is_caught_and_measured(factor: float) -> None:
    A, B = PLANT.A.copy(), PLANT.B.copy()
    A[PLANT.state_slice("turbine"), PLANT.state_slice("boiler")] *= factor
    B[PLANT.state_slice("turbine"), PLANT.input_slice("boiler")] *= factor
    later, numbers = PLANT.replace(A=A, B=B), []
    for seed in range(10):
        first, states = simulate(PLANT, 1000, rng=seed)
        recording = joined(first, later.simulate(1000, rng=100 + seed, initial_state=states[-1]))
        between = PLANT.replace(A=(A + PLANT.A) / 2, B=(B + PLANT.B) / 2)
        boiler, turbine = looked("drift", material_of(recording, between))
        assert turbine.verdict in ("caution", "fail"), (seed, turbine)
        numbers.append(turbine.number)
        assert "what boiler does to turbine changes" in turbine.finding
        assert boiler.verdict == "pass", (seed, boiler)
    truth = 2 * abs(factor - 1) / (1 + factor)  # of the estimate, which lies between the halves
    # the filter makes up for part of the change, so that the number is some way below the truth
    assert 0.75 * truth < np.mean(numbers) < 1.1 * truth


def test_noise_or_level_that_changes_at_half_time_is_caught() -> None:
    first = PLANT.simulate(1000, rng=1)
    louder = joined(first, PLANT.replace(R=3 * PLANT.R, Q=3 * PLANT.Q).simulate(1000, rng=2))
    found = looked("drift", material_of(louder, PLANT))
    assert all(check.verdict == "fail" and "variance" in check.finding for check in found)
    parts = {n: (first[n].y + (np.arange(first.rows) > 500)[:, None], first[n].u) for n in first.names}
    shifted = material_of(cf.Recording.from_arrays(parts, units=PLANT.units), PLANT)
    assert any("mean innovation" in check.finding for check in looked("drift", shifted))


def test_an_error_of_the_estimate_is_no_drift() -> None:
    off = material_of(PLANT.simulate(4000, rng=3), PLANT.replace(B=1.05 * PLANT.B))
    assert {check.verdict for check in looked("drift", off)} == {"pass"}


def test_correlations_are_those_of_the_rows_that_there_are() -> None:
    rng = np.random.default_rng(7)
    values, there, lag = rng.standard_normal((300, 4)), rng.random((300, 2)) < 0.8, 2
    values *= np.repeat(there, 2, axis=1)
    found = series(values, there).correlations(3)
    both = there[lag:, 1] & there[:-lag, 0]
    assert found.pairs[lag, 1, 0] == both.sum()
    mean, size = values[there[:, 1], 2].mean(), values[there[:, 1], 2].std()
    scale = np.sqrt(np.square(values[there[:, 0], 1]).mean())
    expected = ((values[lag:, 2] - mean) * values[:-lag, 1])[both].mean() / size / scale
    assert found.own[lag, 2, 1] == pytest.approx(expected, rel=LONG)
    assert found.joint[0] == pytest.approx(found.joint[0].T, rel=EXACT)
