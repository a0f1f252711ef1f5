"""What answers of private moments say of themselves: clipping, drowned responses, windows that count twice."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from instruments import with_limits

import counterflow as cf
from counterflow.cli.privacy_plan import Task, expected_errors
from counterflow.exchange.projections import COUNTED, SHARES, released
from counterflow.learning.log_moments import _scale
from counterflow.plant import excitation
from counterflow.protocol import Moments
from counterflow.report import write_report

PLANT = cf.random_plant(units=["boiler", "turbine"], rng=1)
RECORDING, MODELS = PLANT.simulate(4000, rng=2), PLANT.locals()
PRIVACY = cf.Privacy(epsilon=1.0, delta=1e-6, seed=1)
CLIPPED, DROWNED = "clipped-rows", "drowned-by-noise"


def codes(found: cf.Fit) -> set[str]:
    return {caveat.code for caveat in found.caveats}


def inside(found: cf.Fit) -> float:
    """Share of the couplings within their intervals."""
    out = []
    for letter in "AB":
        gap, spread = getattr(found.plant, letter) - getattr(PLANT, letter), getattr(found.standard_errors, letter)
        out.append(np.abs(gap[spread > 0]) < 1.96 * spread[spread > 0])
    return float(np.concatenate(out).mean())


# ---- clipping


@cache
def with_clip(clip: float) -> cf.Fit:
    return cf.fit(RECORDING, MODELS, privacy=cf.Privacy(5.0, 1e-6, clip=clip, seed=3))


@pytest.mark.parametrize("clip", [0.3, 1.0, 2.0])
def test_a_clip_that_cuts_the_signal_is_told_and_widens_intervals(clip):
    found = with_clip(clip)
    assert max(unit.clipped for unit in found.privacy.units.values()) > 0.4
    assert [c.scope for c in found.server_caveats if c.code == CLIPPED] == ["boiler", "turbine"]
    assert CLIPPED in {c.code for c in found.effect("boiler", "turbine", {"u1": 1.0}).caveats}
    assert inside(found) > 0.9
    assert np.linalg.norm(found.standard_errors.B) > 3 * np.linalg.norm(with_clip(8.0).standard_errors.B)


def test_a_clip_that_cuts_nothing_is_not_spoken_of():
    found = with_clip(8.0)
    assert CLIPPED not in codes(found)
    assert inside(found) > 0.8


def test_the_share_that_is_told_is_a_bound_and_pays_for_itself():
    rng = np.random.default_rng(0)
    rows, basis = rng.normal(size=(4000, 2)), np.linalg.qr(rng.normal(size=(4000, 6)))[0]
    there = np.ones(4000, bool)
    weight = np.square(basis).sum(axis=1) / 6
    told = []
    for seed in range(40):
        privacy = cf.Privacy(1.0, 1e-6, clip=1.5, seed=seed)
        _, release = released(rows, there, basis, privacy, 2, 0.0, "boiler", str(seed))
        told.append(release.may_clip)
    true = weight[np.linalg.norm(rows, axis=1) > 1.5].sum()
    assert np.mean(np.array(told) >= true) > 0.9
    # two standard deviations of noise, which a share of the round's budget has to pay for, are added to the truth
    mu = 2 * release.clip * release.reach / release.sigma / np.sqrt(1 - COUNTED)
    noise = weight.max() / (np.sqrt(COUNTED) * mu)
    assert np.std(told) == pytest.approx(noise, rel=0.4)
    assert np.mean(told) - true == pytest.approx(2 * noise, rel=0.4)


def test_a_row_moves_the_share_by_what_it_has_of_it():
    """Whoever makes Φ, a spike on one row makes the noise of the share as large as the share of that row."""
    basis = np.full((50, 1), 1e-3)
    basis[7] = 1.0
    rows = np.zeros((50, 1))
    told = []
    for value in (0.0, 1e9):
        rows[7] = value
        privacy = cf.Privacy(1.0, 1e-6, clip=1.0, seed=1)
        told.append(released(rows, np.ones(50, bool), basis, privacy, 2, 0.0, "boiler")[1].may_clip)
    assert told == [1.0, 1.0]  # nothing is known of the share, so all of it may be clipped


@pytest.mark.parametrize("clipped", [-0.1, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(clipped):
    with pytest.raises(cf.ProtocolError, match=r"clipped|finite"):
        Moments("boiler", 0, np.ones((2, 1)), np.eye(1), clipped).check()


def test_rows_with_a_small_clip_say_so_too():
    privacy = cf.Privacy(5.0, 1e-6, clip=0.3, seed=3, release="rows")
    found = cf.fit(RECORDING.slice(0, 300), MODELS, privacy=privacy)
    assert CLIPPED in codes(found)
    assert found.privacy.epsilon == pytest.approx(5.0, rel=1e-6)


# ---- from logs


@cache
def from_logs(epsilon: float, rows: int) -> tuple[cf.Fit, float, float]:
    """A private fit from logs, the error of its effects between units, and the share within intervals."""
    plant = cf.random_plant(units=["boiler", "turbine"], outputs=3, rng=2)
    recording = plant.simulate(rows, rng=3)
    found = cf.fit(with_limits(recording), privacy=cf.Privacy(epsilon, 1e-6, seed=1), memory=30)
    oracle = cf.fit(recording, plant, method="oracle")
    missed, whole, held = 0.0, 0.0, []
    for cause, effect in (("boiler", "turbine"), ("turbine", "boiler")):
        for channel in ("u1", "u2"):
            answer, truth = (each.effect(cause, effect, {channel: 1.0}, horizon=15) for each in (found, oracle))
            missed += np.square(answer.mean - truth.mean).sum()
            whole += np.square(truth.mean).sum()
            held.append(((answer.lower <= truth.mean) & (truth.mean <= answer.upper)).mean())
    return found, float(np.sqrt(missed / whole)), float(np.mean(held))


@pytest.mark.parametrize(("epsilon", "rows"), [(0.1, 600), (0.3, 1200), (1.0, 600)])
def test_what_noise_drowns_is_no_worse_than_zero_and_is_told(epsilon, rows):
    found, error, held = from_logs(epsilon, rows)
    assert error < 1.1
    assert held > 0.9
    assert DROWNED in codes(found)
    answer = found.effect("boiler", "turbine", {"u1": 1.0}, horizon=5)
    assert DROWNED in {caveat.code for caveat in answer.caveats}


def test_what_noise_does_not_drown_is_not_spoken_of():
    found, error, held = from_logs(10.0, 6000)
    assert error < 0.2
    assert held > 0.85
    assert DROWNED not in codes(found)


def test_a_scale_that_noise_hides_has_an_upper_end():
    values = np.logspace(-2, 2, 20)
    rng = np.random.default_rng(0)
    for scale in (0.0, 1e-3, 1.0, 100.0):
        told = rng.normal(size=20) * np.sqrt(values + scale * values**2)
        likely, largest, gain = _scale(values, told)
        assert likely <= largest
        assert gain >= 0
        assert largest > scale / 5


def test_the_plan_foretells_errors_from_logs():
    plant = cf.random_plant(units=["boiler", "turbine"], outputs=3, rng=2)
    inputs = excitation.white(plant, 6000, 5)
    task = Task(plant, {}, inputs, from_logs=True, memory=30)
    (foretold,) = expected_errors(task, [cf.Privacy(10.0, 1e-6, seed=4)])
    assert foretold.error == pytest.approx(from_logs(10.0, 6000)[1], rel=0.6)


# ---- windows


def window(first: int, last: int) -> cf.Recording:
    return RECORDING.slice(first, last)


def test_rows_do_not_count_twice():
    privacy = cf.Privacy(1.0, 1e-6, seed=1)
    first = cf.fit(window(0, 1000), MODELS, privacy=privacy)
    second = first.update(window(1000, 2000), privacy=privacy)
    for fit, rows in ((first, window(0, 1000)), (second, window(0, 1000)), (second, window(1000, 2000))):
        with pytest.raises(cf.DataError) as refused:
            fit.update(rows, privacy=privacy)
        assert refused.value.code == "rows-repeated"
    overlapping = second.update(window(1500, 2500), privacy=privacy)
    assert "inputs-repeated" in codes(overlapping)
    assert overlapping.privacy.epsilon > 1.7  # three releases of rows that may be the same
    assert "inputs-repeated" not in codes(second)


# ---- words


def test_moments_without_privacy_are_validated_on_other_rows():
    found = cf.fit(window(0, 2000), MODELS, method="moments")
    means = found.validate(window(2000, 4000), oracle=PLANT).mean()
    for name in PLANT.names:
        assert means["server"][name] < 1.05 * means["oracle"][name] < means["proprietary"][name]


def test_a_report_says_what_moments_share(tmp_path):
    rows = window(0, 1000)
    for privacy in (PRIVACY, None):
        write_report(tmp_path / "page.html", cf.fit(rows, MODELS, method="moments", privacy=privacy), rows)
        page = (tmp_path / "page.html").read_text()
        assert "numbers a row" not in " ".join(page.split())
        assert "projections of its measurements" in " ".join(page.split())
        assert ("noised projections" in page) == (privacy is not None)
        assert "must not react to measurements" in page
    assert len(SHARES) == 3


# ---- hostile records


@pytest.mark.parametrize("clip", [1e-100, 1e-5])
def test_a_clip_that_leaves_nothing_leaves_no_certainty(clip):
    found = cf.fit(RECORDING, MODELS, privacy=cf.Privacy(5.0, 1e-6, clip=clip, seed=3))
    assert inside(found) == 1.0
    assert not found.graph().direct()
    logs = cf.fit(with_limits(RECORDING.slice(0, 600)), privacy=cf.Privacy(5.0, 1e-6, clip=clip, seed=3), memory=10)
    truth = cf.fit(RECORDING, PLANT, method="oracle").effect("boiler", "turbine", {"u1": 1.0}, horizon=5)
    answer = logs.effect("boiler", "turbine", {"u1": 1.0}, horizon=5)
    assert ((answer.lower <= truth.mean) & (truth.mean <= answer.upper)).all()
    assert {CLIPPED, DROWNED} <= codes(logs)


def test_a_unit_that_was_never_read_is_named_before_anything_is_released(tmp_path):
    recording = with_limits(RECORDING.slice(0, 300))
    arrays = {
        n: (np.full_like(recording[n].y, np.nan) if n == "boiler" else recording[n].y, recording[n].u) for n in MODELS
    }
    blind = cf.Recording.from_arrays(arrays, units=recording.units)
    for name in MODELS:
        cf.Ledger.create(tmp_path / f"{name}.ledger", name, 4.0, 1e-5).close()
    with pytest.raises(cf.DataError, match="boiler"):
        cf.fit(blind, privacy=cf.Privacy(1.0, 1e-6, ledger=tmp_path))
    with cf.Ledger.open(tmp_path / "turbine.ledger", unit="turbine") as ledger:
        assert not ledger.entries()


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("scale", [1e300, 1e150, 1e-150, 1e-300])
@pytest.mark.parametrize("which", ["y", "u"])
def test_absurd_scales_end_in_an_answer_or_in_an_error_of_ours(scale, which):
    arrays = {}
    for name in MODELS:
        y, u = RECORDING[name].y[:300], RECORDING[name].u[:300]
        arrays[name] = (y * scale, u) if which == "y" else (y, u * scale)
    recording = cf.Recording.from_arrays(arrays)
    units = with_limits(RECORDING.slice(0, 300)).units
    logs = cf.Recording.from_arrays(arrays, units=units)
    for ask in (
        lambda: cf.fit(recording, MODELS, privacy=PRIVACY),
        lambda: cf.fit(recording, MODELS, method="moments"),
        lambda: cf.fit(logs, privacy=PRIVACY, memory=5),
        lambda: cf.fit(logs, method="moments", memory=5),
    ):
        try:
            answer = ask().effect("boiler", "turbine", {"u1": 1.0}, horizon=3)
        except cf.CounterflowError:
            continue
        assert np.isfinite(answer.mean).all()


@pytest.mark.parametrize("rows", [2, 3, 5, 20, 60])
def test_few_rows_end_in_an_answer_or_in_an_error_of_ours(rows):
    few = RECORDING.slice(0, rows)
    for ask in (
        lambda: cf.fit(few, MODELS, privacy=PRIVACY),
        lambda: cf.fit(few, MODELS, privacy=cf.Privacy(1.0, 1e-6, seed=1, window=1000)),
        lambda: cf.fit(with_limits(few), privacy=PRIVACY),
        lambda: cf.fit(with_limits(few), privacy=PRIVACY, memory=1000),
    ):
        try:
            answer = ask().effect("boiler", "turbine", {"u1": 1.0}, horizon=3)
        except cf.CounterflowError:
            continue
        assert np.isfinite(answer.mean).all()


@pytest.mark.parametrize("window", [(1, 1300), (0, 1299), (400, 1700)])
def test_rows_that_come_again_under_another_number_add_up(window: tuple[int, int]) -> None:
    """A start that is not true makes no release cheaper, where inputs show that rows may be the same."""
    plant = cf.random_plant(units=["boiler", "turbine"], rng=1)
    recording = plant.simulate(2000, rng=2)

    def privacy(start: int) -> cf.Privacy:
        return cf.Privacy(1.0, 1e-6, seed=1, start=start)

    first = cf.fit(recording.slice(0, 1300), plant.locals(), privacy=privacy(0))
    again = first.update(recording.slice(*window), privacy=privacy(5000))
    assert "inputs-repeated" in {caveat.code for caveat in again.caveats}
    assert again.privacy.epsilon > 1.4
    later = first.update(recording.slice(1300, 2001), privacy=privacy(1300))
    assert later.privacy.epsilon == pytest.approx(1.0, rel=1e-6)
