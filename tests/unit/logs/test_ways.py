"""Ways of running in sums of products: segments against rows, differences against plain regressions, and learning."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from grounded_networks import at_rest
from tolerances import LONG

import counterflow as cf
from counterflow.exchange.part import sufficient_messages
from counterflow.learning.block_moments import Rows, block_moments_of
from counterflow.learning.changes import changes_of
from counterflow.learning.network_learning import learn
from counterflow.learning.regime_sums import PASSING, Regime, RegimeSums, centred, later, level_of, with_differences
from counterflow.learning.regimes import Change

NAMES = ("a", "b", "c")
NONE = np.zeros(3)


def simulated(rows, seed, changed=None, factor=0.4):
    """u -> a -> b -> c about a level of 2; from row ``changed`` on, b feels a by less."""
    rng = np.random.default_rng(seed)
    z = np.full((rows, 4), 2.0)
    for t in range(1, rows):
        gain = factor if changed is not None and t >= changed else 1.0
        e = 0.1 * rng.standard_normal(3)
        z[t, 3] = 2 + 0.8 * (z[t - 1, 3] - 2) + 0.6 * rng.standard_normal()
        z[t, 0] = 0.7 * z[t - 1, 0] + 0.3 * z[t - 1, 3] + e[0]
        z[t, 1] = 0.6 * z[t - 1, 1] + 0.4 * gain * z[t - 1, 0] + e[1]
        z[t, 2] = 0.5 * z[t - 1, 2] + 0.5 * z[t - 1, 1] + e[2]
    return Rows(NAMES, (1, 1, 1), (1, 0, 0), z)


@cache
def given(changed=300):
    rows = simulated(600, 1, changed)
    return rows, block_moments_of(rows)


def features(rows, products, at):
    """(rows, N): all features, targets and the constant, from the rows themselves."""
    every = products.columns(rows, at, np.arange(products.features))
    targets = (rows.z[at, :3] - products.level[:3]) / products.scale[:3]
    return np.hstack([every[:, :-1], targets, every[:, -1:]])


def test_chosen_features_are_those_that_are_summed():
    rows, products = given()
    F = features(rows, products, products.learned_from(rows))
    wanted = F.T @ F
    np.testing.assert_allclose(products.moments(), wanted, rtol=LONG, atol=LONG * np.abs(wanted).max())
    part = products.learned_from(rows, 3)
    only = products.moments(np.eye(len(products.blocks))[3])
    np.testing.assert_allclose(products.sums(rows, part), only, rtol=LONG, atol=LONG * np.abs(only).max())
    assert products.block_of(int(part[0])) == products.block_of(int(part[-1])) == 3
    some = np.array([1, 7, products.features - 1])
    np.testing.assert_allclose(products.columns(rows, part, some), features(rows, products, part)[:, [*some, -1]])


def test_segments_are_sums_over_their_rows_with_the_weights_of_their_blocks():
    rows, products = given()
    changes = [Change(420, (1, 2), NONE, NONE), Change(300, (1,), NONE, NONE), Change(151, (0,), NONE, NONE)]
    ways = RegimeSums.of(rows, products, changes)
    assert [change.at for change in ways.changes] == [151, 300, 420]
    assert [ways.way_of(row) for row in (0, 150, 151, 299, 300, 599)] == [0, 0, 1, 1, 2, 3]
    assert [ways.segment(1, way) for way in range(4)] == [0, 0, 1, 2]
    assert [ways.segment(0, way) for way in range(4)] == [0, 1, 1, 1]
    draw = np.random.default_rng(0).exponential(size=len(products.counts))
    at, block = products.learned_from(rows), np.repeat(np.arange(len(draw)), products.counts.astype(int))
    F = features(rows, products, at)
    for unit, edges in ((0, [151]), (1, [300, 420]), (2, [420])):
        passing = np.any([(at >= edge) & (at < edge + PASSING) for edge in edges], axis=0)
        found = ways.moments(products, draw, unit)
        assert len(found) == len(edges) + 1
        for low, high, sums in zip([0, *edges], [*edges, 600], found, strict=True):
            mine = (at >= low) & (at < high) & ~passing
            wanted = (F[mine] * draw[block[mine], None]).T @ F[mine]
            np.testing.assert_allclose(sums, wanted, rtol=LONG, atol=LONG * np.abs(wanted).max())
    middle = ways.of_way(products, 2)
    inner = F[(at >= 300 + PASSING) & (at < 420)]
    np.testing.assert_allclose(middle, inner.T @ inner, rtol=LONG, atol=LONG * np.abs(middle).max())


def test_sums_with_differences_are_those_of_the_rows_about_their_segments_means():
    rows, products = given()
    ways = RegimeSums.of(rows, products, [Change(300, (1,), NONE, NONE)])
    n, linear = products.features, len(products.spans) * 4
    at = products.learned_from(rows)
    F = features(rows, products, at)
    sides = [F[at < 300], F[at >= 300 + PASSING]]
    about = [side - side.mean(axis=0) for side in sides]
    wide = np.vstack([
        np.hstack([about[0][:, :n], 0 * about[0][:, :linear], about[0][:, n:]]),
        np.hstack([about[1][:, :n], about[1][:, :linear], about[1][:, n:]]),
    ])  # fmt: skip
    segments = ways.moments(products, np.ones(len(products.counts)), 1)
    wanted = wide.T @ wide
    np.testing.assert_allclose(
        with_differences(segments, 1, n, linear), wanted, rtol=1e-8, atol=1e-8 * np.abs(wanted).max()
    )
    np.testing.assert_allclose(centred(segments[0]), about[0].T @ about[0], rtol=1e-8, atol=1e-8 * wanted.max())
    weights = np.random.default_rng(1).standard_normal((n, 3))
    left = (sides[1][:, n : n + 3] - sides[1][:, :n] @ weights).mean(axis=0)
    assert level_of(segments[1], weights, np.arange(3)) == pytest.approx(left)
    assert level_of(0 * segments[1], weights, np.arange(3)).tolist() == [0.0, 0.0, 0.0]


def held(network, steps=60):
    """What the input, held one higher, does to a, b and c in the end."""
    return at_rest(network).response(np.ones((steps, 1))).mean[-1]


def test_every_way_of_running_has_the_gains_of_its_time():
    rows = simulated(1000, 0, 600)
    products = block_moments_of(rows)
    found = learn(rows)
    assert [abs(change.at - 600) <= 3 for change in found.changes] == [True]
    assert found.changes[0].units == (1,)
    before, now = (held(network) for network in found.networks)
    assert before == pytest.approx([1, 1, 1], abs=0.1)
    assert now == pytest.approx([1, 0.4, 0.4], abs=0.1)
    assert found.network is found.networks[-1]
    assert not found.network.offset[:, [0, 2]].any()
    (mixed,) = learn(rows, one_way=True).networks
    assert abs(held(mixed)[1] - 0.4) > 0.1
    # the levels are those of each way: rows far from where the other one stood are foretold without bias
    z = (rows.z - products.level) / products.scale
    for network, part in zip(found.networks, (slice(100, 590), slice(650, 1000)), strict=True):
        left = z[part, :3] - network.mean.predicted(z[part.start - network.memory : part.stop])[0]
        assert np.abs(left.mean(axis=0)).max() < 0.02


def test_a_steady_plant_is_learned_as_one():
    rows = simulated(800, 0)
    found = learn(rows)
    assert found.changes == ()
    assert (found.network.linear == learn(rows, one_way=True).network.linear).all()
    assert not found.network.offset.any()


def test_a_plant_that_changes_twice_has_three_ways_of_running():
    first, second = simulated(750, 1, 400), simulated(400, 2, 0)
    z = np.vstack([first.z, second.z])
    z[750:, 0] *= 1.6  # and from there on, a's sensor shows more of it
    rows = replace(first, z=z)
    found = changes_of(rows, block_moments_of(rows))
    assert [change.at for change in found] == pytest.approx([400, 750], abs=8)
    assert found[0].units == (1,)


@pytest.mark.parametrize("seed", range(2))
def test_a_plant_that_is_as_it_was_before_has_changed_twice(seed):
    """Either change alone divides the rows into parts that share their average."""
    first, second = simulated(1000, seed, 500, factor=2.0), simulated(1500, seed + 10)
    z = np.vstack([first.z, second.z[1000:]])
    found = changes_of(replace(first, z=z), block_moments_of(replace(first, z=z)))
    assert [change.at for change in found] == pytest.approx([500, 1000], abs=15)
    assert [change.units[0] for change in found] == [1, 1]


@pytest.mark.parametrize("seed", range(3))
def test_a_curve_that_products_do_not_follow_is_no_change(seed):
    """A fan whose power goes with the cube of its speed, which is held for many rows at a level: few of them a side."""
    rng = np.random.default_rng(seed)
    speed = np.concatenate([np.full(rng.integers(12, 60), rng.uniform(20, 100)) for _ in range(40)])[:1000]
    power = np.concatenate([speed[:1], speed[:-1]]) ** 3 / 1e4
    z = np.stack([power + 0.04 * power.std() * rng.standard_normal(len(power)), speed], axis=1)
    rows = Rows(("fan",), (1,), (1,), z)
    assert changes_of(rows, block_moments_of(rows)) == ()


# ---- through the whole product


def recorded(rows, seed, changed):
    """The same as three units with two noisy channels each."""
    z, rng = simulated(rows, seed, changed).z, np.random.default_rng(seed + 100)
    arrays = {}
    for k, name in enumerate(NAMES):
        y = np.stack([z[:, k], 2 * z[:, k] + 1], axis=1) + 0.02 * rng.standard_normal((rows, 2))
        arrays[name] = (y, z[:, 3:] if k == 0 else np.zeros((rows, 0)))
    return cf.Recording.from_arrays(arrays, dt=60.0)


def test_a_row_that_is_not_there_has_no_way_of_running():
    with pytest.raises(cf.OptionError, match=r"'regime' is row 900, and the record ends with row 299"):
        cf.fit(recorded(300, 0, None), regime=900)


def gain(fit):
    return float(fit.effect("a", "b", [1.0], horizon=40).mean[-1, 0])


@pytest.fixture(scope="module")
def log():
    """Its unit b changes in row 600."""
    return recorded(1200, 0, 600)


@pytest.fixture(scope="module")
def record(log):
    return log.slice(0, 1000)


@pytest.fixture(scope="module")
def fit(record):
    return cf.fit(record)


def test_rows_behind_the_fitted_ones_go_on_as_these_ended(log, fit):
    asked = {"add": {"a": np.ones((60, 1))}, "start": 300, "stop": 360}
    own, longer, shorter = (
        fit.counterfactual(each, **asked)["b"] for each in (log.slice(0, 1000), log, log.slice(0, 500))
    )
    for other in (longer, shorter):
        assert other.difference == pytest.approx(own.difference, rel=1e-6, abs=1e-9)
    late = fit.counterfactual(log, add={"a": np.ones((60, 1))}, start=1100, stop=1160)["b"]
    assert float(late.difference[-1, 0]) < 0.6 * float(own.difference[-1, 0])


def test_a_fit_tells_its_ways_of_running_and_rests_on_the_present_one(fit):
    assert [(abs(each.start - start) <= 3, each.units) for each, start in zip(fit.regimes, (0, 600), strict=True)] == [
        (True, ()), (True, ("b",)),
    ]  # fmt: skip
    assert fit.regimes[0].stop == fit.regimes[1].start
    assert fit.regimes[1].stop == 1000
    told = [caveat for caveat in fit.caveats if caveat.code == "regime-changed"]
    assert [caveat.scope for caveat in told] == ["b"]
    assert gain(fit) == pytest.approx(0.4, abs=0.1)
    assert not any(check.verdict == "fail" for check in fit.check() if check.name == "drift")


def test_the_same_rows_as_other_messages_have_the_same_ways_of_running(record, fit):
    """So they come between machines."""
    again = fit.server.about(sufficient_messages(fit.parts, fit.names, record))
    assert again.shared is not fit.server.shared
    assert [each.start for each in again.grounded.regimes] == [each.start for each in fit.regimes]
    other = fit.server.about(sufficient_messages(fit.parts, fit.names, recorded(1000, 3, None)))
    assert other.grounded.regimes == ()


def test_other_ways_of_running_can_be_asked_for(record):
    assert gain(cf.fit(record, regime=100)) == pytest.approx(1.0, abs=0.15)
    mixed = cf.fit(record, regime="all")
    assert 0.5 < gain(mixed) < 0.95
    assert len(mixed.regimes) == 1
    for wrong in ("last", -1, 1.5, True):
        with pytest.raises(cf.OptionError, match="regime"):
            cf.fit(record, regime=wrong)


def test_what_would_have_happened_uses_the_way_of_running_of_its_time(tmp_path, record, fit):
    fit.save(tmp_path / "fit")
    for each in (fit, cf.load(tmp_path / "fit")):
        added = {"a": np.ones((60, 1))}
        early, late = (each.counterfactual(record, add=added, start=at, stop=at + 60)["b"] for at in (200, 800))
        assert early.difference[-1, 0] == pytest.approx(1.0, abs=0.15)
        assert late.difference[-1, 0] == pytest.approx(0.4, abs=0.1)
        across = each.counterfactual(record, add={"a": np.ones((200, 1))}, start=500, stop=700)["b"]  # each its own
        assert across.difference[[95, -1], 0] == pytest.approx([1.0, 0.4], abs=0.15)
    assert [each.start for each in cf.load(tmp_path / "fit").regimes] == [each.start for each in fit.regimes]


def test_an_update_goes_on_in_the_present_way_of_running(log, fit):
    later_fit = fit.update(log.slice(1000, 1050)).update(log.slice(1050, 1100))
    assert later_fit.regimes[-1].stop == 1100
    assert gain(later_fit) == pytest.approx(0.4, abs=0.12)


def test_places_of_ways_of_running_move_with_the_rows_that_are_kept():
    ways = (Regime(0, 100), Regime(100, 200, ("a",)), Regime(200, 300, ("b",)))
    assert [(each.start, each.stop) for each in later(ways, 0, 320)] == [(0, 100), (100, 200), (200, 320)]
    assert [(each.start, each.stop) for each in later(ways, 150, 170)] == [(0, 50), (50, 170)]
    assert later(ways, 250, 70) == ()


def test_a_channel_that_is_hardly_read_shows_no_change():
    rows = simulated(800, 0)
    z = rows.z.copy()
    z[np.arange(800) % 65 != 0, 1] = np.nan
    assert learn(replace(rows, z=z)).changes == ()
