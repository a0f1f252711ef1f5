"""Dirty variants of the simulated plants: what they leave as it is, and what they change."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import import_module
from itertools import product as pairs

import numpy as np
import plants
import pytest
from plants import baselines, cases, dirt, dirt_tables, product, results
from plants.plant import constant, jacobians, run
from plants.scores import NEAR, Answer, Report
from plants.ways import WAYS

WRITTEN = [name for name in plants.PLANTS if name != "water"]
ROWS, SEED = 400, 3
AS_BUILT = {  # (sum of the readings, sum of squared effects) of 400 rows of seed 0, before there was dirt
    ("reactors", "gentle"): (116920.78206988522, 415.3854656527252),
    ("exchangers", "gentle"): (331750.8934403166, 5719.77197002025),
    ("tanks", "delay"): (14129.640613941177, 92.97625457173416),
    ("column", "stiff"): (596597.6589178834, 2139.5450903006817),
    ("sludge", "wide"): (1788153.8789623082, 192015.58475134702),
    ("building", "common"): (3303113.0375679852, 2250236.567969193),
}
ROUNDING = 1e-9
SETTLED = 600  # rows after which a changed plant is near its new steady state


@cache
def case(plant, kind="clean", seed=SEED, way="gentle"):
    return plants.case(plant, way, ROWS, seed, kind)


def module(plant):
    return import_module(f"plants.simulators.{plant}").plant


def joined(case, side):
    return np.hstack([side[name] for name in case.names])


def worn(plant, w):
    """A plant that was built with the wear ``w`` (M, 1)."""
    return replace(
        plant,
        send=lambda x, u, _: plant.send(x, u, w),
        rate=lambda x, u, s, d, _: plant.rate(x, u, s, d, w),
        read=lambda x, _: plant.read(x, w),
    )


def same(one, other):
    return all(np.array_equal(one[name], other[name]) for name in one)


# ---- what stays


@pytest.mark.parametrize(("plant", "way"), AS_BUILT)
def test_clean_cases_are_what_they_were_before_there_was_dirt(plant, way):
    clean = plants.case(plant, way, ROWS, 0, dirt="clean")
    readings = sum(y.sum() for y in clean.y.values())
    effects = sum((effect**2).sum() for twin in clean.truth for effect in twin.effect.values())
    assert (readings, effects) == pytest.approx(AS_BUILT[plant, way], rel=ROUNDING)


@pytest.mark.parametrize("kind", plants.SENSORS)
@pytest.mark.parametrize("plant", ["exchangers"])
def test_the_dirt_of_sensors_leaves_the_truth_and_sound_readings(plant, kind):
    clean, dirty = case(plant), case(plant, kind)
    assert dirty.dirt == kind
    assert same(clean.u, dirty.u)
    assert same(clean.noise, dirty.noise)
    assert dirty.change is None
    for before, after in zip(clean.truth, dirty.truth, strict=True):
        assert (before.unit, before.kind, before.start) == (after.unit, after.kind, after.start)
        assert np.array_equal(before.change, after.change)
        assert same(before.effect, after.effect)
    sound, y = joined(dirty, dirty.sound), joined(dirty, dirty.y)
    if kind != "quantised":
        assert np.array_equal(y[sound], joined(clean, clean.y)[sound])
        assert 0 < dirty.readings < clean.readings
    assert not np.array_equal(y, joined(clean, clean.y))
    dirty.recording()  # the product takes it
    again = plants.case(plant, "gentle", ROWS, SEED, kind)
    assert all(np.array_equal(again.y[name], dirty.y[name], equal_nan=True) for name in dirty.names)


@pytest.mark.parametrize(("plant", "kind"), [("exchangers", "changed"), ("tanks", "changed"), ("tanks", "drift")])
def test_a_plant_that_changes_keeps_its_inputs_noise_and_past(plant, kind):
    clean, aged = case(plant), case(plant, kind)
    assert same(clean.u, aged.u)
    assert same(clean.noise, aged.noise)
    assert aged.readings == clean.readings == sum(y.size for y in clean.y.values())
    change = aged.change
    assert change.unit == clean.names[SEED % len(clean.names)]
    assert dirt.FOULED[0] <= change.factor <= dirt.FOULED[1] or dirt.OPENED[0] <= change.factor <= dirt.OPENED[1]
    for other in plants.WEARS:  # both kinds come to the same plant
        assert dirt.wear(module(plant), "gentle", ROWS, SEED, other).factor == change.factor
    assert change.sudden == (kind == "changed")
    for name in clean.names:
        assert np.array_equal(clean.y[name][: change.row], aged.y[name][: change.row])
        assert np.isfinite(aged.y[name]).all()
    late = joined(clean, clean.y)[change.row + 2 :] - joined(aged, aged.y)[change.row + 2 :]
    assert (np.abs(late) > joined(clean, {n: noise[None] for n, noise in clean.noise.items()})).any()
    for before, after in zip(clean.truth, aged.truth, strict=True):
        assert (before.start, before.unit) == (after.start, after.unit)
        assert np.array_equal(before.change, after.change)
        if after.start + after.horizon <= change.row:  # over before the change: rows up to the change row
            for name in clean.names:
                assert np.array_equal(before.effect[name][:-1], after.effect[name][:-1])


# ---- what changes


def changed(kind, plant="exchangers"):
    """Which readings differ from the clean record, by unit."""
    clean, dirty = case(plant), case(plant, kind)
    return {name: ~(dirty.y[name] == clean.y[name]) for name in clean.names}, dirty


def missing(dirty):
    return {name: np.isnan(dirty.y[name]) for name in dirty.names}


def test_lost_readings_are_lost_each_by_itself():
    _, dirty = changed("lost")
    gone = joined(dirty, missing(dirty))
    assert gone.mean() == pytest.approx(dirt.LOST, abs=0.01)
    assert dirty.readings == (~gone).sum()
    assert (gone.mean(axis=0) > 0).all()
    assert np.abs(np.corrcoef(gone.T.astype(float)) - np.eye(gone.shape[1])).max() < 0.25


def test_slow_channels_are_read_every_fifth_row_and_a_held_log_repeats_them():
    _, slow = changed("slow-channel")
    _, held = changed("held")
    phases = set()
    for name in slow.names:
        gone = np.isnan(slow.y[name])
        assert not gone[:, :-1].any()
        (read,) = np.nonzero(~gone[:, -1])
        assert (np.diff(read) == dirt.EVERY).all()
        phases.add(int(read[0]))
        last = held.y[name][:, -1]
        assert np.array_equal(last[read], slow.y[name][read, -1])
        for t in range(1, len(last)):
            assert t in read or last[t] == last[t - 1]
        assert np.array_equal(held.y[name][:, :-1], slow.y[name][:, :-1])
    assert len(phases) > 1  # no row has them all
    assert not np.isnan(joined(held, held.y)).any()
    assert held.readings - slow.readings == len(phases) - 1  # a held log begins with a reading


def test_a_slow_unit_and_an_outage_are_those_of_one_unit_in_turn():
    for kind in ("slow-unit", "outage"):
        for seed in (0, 1):
            dirty = case("exchangers", kind, seed)
            gone = missing(dirty)
            (unit,) = [name for name in dirty.names if gone[name].any()]
            assert unit == dirty.names[seed]
            assert (gone[unit] == gone[unit][:, :1]).all()  # all its outputs
            (rows,) = np.nonzero(gone[unit][:, 0])
            if kind == "outage":
                assert len(rows) == dirt.OUTAGE * ROWS
                assert np.array_equal(rows, np.arange(rows[0], rows[-1] + 1))
                assert rows[0] >= ROWS // 5
                assert rows[-1] < ROWS - ROWS // 5
            else:
                assert np.array_equal(np.nonzero(~gone[unit][:, 0])[0], np.arange(0, ROWS, dirt.EVERY))


def test_one_channel_of_each_unit_is_rounded_to_quarters_of_its_deviation():
    differs, dirty = changed("quantised")
    for name in dirty.names:
        (column,) = np.nonzero(differs[name].any(axis=0))[0]
        clean, y = case("exchangers").y[name][:, column], dirty.y[name][:, column]
        step = dirt.STEP * clean.std()
        assert np.abs(y / step - np.round(y / step)).max() < ROUNDING
        assert np.abs(y - clean).max() <= step / 2 * (1 + ROUNDING)


def test_two_channels_of_two_units_stick_for_a_tenth_of_the_record():
    differs, dirty = changed("stuck")
    stuck = {name: np.nonzero(differs[name].any(axis=0))[0] for name in dirty.names if differs[name].any()}
    assert len(stuck) == 2
    for name, (column,) in stuck.items():
        (rows,) = np.nonzero(~dirty.sound[name][:, column])
        assert len(rows) == dirt.STUCK * ROWS
        assert (dirty.y[name][rows[0] - 1 : rows[-1] + 1, column] == dirty.y[name][rows[0] - 1, column]).all()


def test_one_channel_of_each_unit_is_clipped_at_its_own_quantiles():
    differs, dirty = changed("saturated")
    for name in dirty.names:
        (column,) = np.nonzero(differs[name].any(axis=0))[0]
        y = dirty.y[name][:, column]
        for limit in (y.min(), y.max()):
            assert (y == limit).mean() == pytest.approx(dirt.CLIPPED, abs=0.01)


def test_spikes_are_rare_and_far_out():
    differs, dirty = changed("spikes")
    clean = case("exchangers")
    assert joined(dirty, differs).mean() == pytest.approx(dirt.SPIKED, abs=0.002)
    signs = []
    for name in dirty.names:
        size = ((dirty.y[name] - clean.y[name]) / clean.y[name].std(axis=0))[differs[name]]
        assert ((np.abs(size) >= dirt.SPIKE[0]) & (np.abs(size) <= dirt.SPIKE[1])).all()
        signs += np.sign(size).tolist()
    assert set(signs) == {-1, 1}


@pytest.mark.parametrize("name", WRITTEN)
def test_every_unit_of_a_plant_wears_and_stays_stable(name):
    plant = module(name)
    assert len(plant.worn) == len(plant.units)
    still = plant.steady()
    factors = (dirt.FOULED[0], dirt.OPENED[1])
    wear = np.ones((len(plant.units), len(plant.units) * len(factors)))  # each unit with each factor: one batch
    for i, (k, factor) in enumerate(pairs(range(len(plant.units)), factors)):
        wear[k, i] = factor
    batch = wear.shape[1]
    x, u = np.repeat(still[:, None], batch, axis=1), np.repeat(plant.u0[:, None], batch, axis=1)
    moved = plant.rate(x, u, plant.send(x, u, wear), np.zeros(batch), wear)
    scale = np.abs(plant.derivative(1.01 * x, u)).max()
    assert (np.abs(moved).max(axis=0) > 0.01 * scale).all()  # the old steady state is none any more
    x = run(plant, x, constant(u, SETTLED), wear=np.broadcast_to(wear, (SETTLED, *wear.shape)))[0][-1]
    assert np.isfinite(x).all()
    for i in range(batch):
        A, _ = jacobians(worn(plant, wear[:, i : i + 1]), x[:, i], plant.u0)
        rates = np.linalg.eigvals(np.stack([A, plant.stiff[:, None] * A])) * plant.dt / plant.substeps
        assert rates.real.max() < 0
        assert np.abs(1 + rates + rates**2 / 2 + rates**3 / 6 + rates**4 / 24).max() < 1  # so is the integrator


@pytest.mark.parametrize("name", WRITTEN)
def test_a_changed_plant_is_a_second_plant_that_goes_on_from_the_states_of_the_first(name):
    """The oracle: two plants without wear, the second one made with the changed parameter."""
    plant, rng = module(name), np.random.default_rng(0)
    before, after, k, factor = 30, 40, 1, 0.6
    w = plant.new.copy()
    w[k] = factor
    second = worn(plant, w)
    u = plant.u0[:, None] + 0.05 * plant.span[:, None] * rng.uniform(-1, 1, (before + after, len(plant.u0), 1))
    delays = np.full(len(plant.streams), 7)
    still = plant.steady()[:, None]
    past = constant(plant.send(still, plant.u0[:, None], plant.new), 10)
    change = cases.Wear(plant.units[k].name, plant.worn[k], factor, before, before)
    wear = np.repeat(plant.new.T, before + after, axis=0)
    wear[:, k] = change.by_row(0, before + after)
    states, _ = run(plant, still, u, delays=delays, past=past, wear=wear[:, :, None])
    first, filled = run(plant, still, u[:before], delays=delays, past=past)
    then, _ = run(second, first[-1], u[before:], delays=delays, past=np.concatenate([past, filled])[-10:])
    np.testing.assert_allclose(states, np.concatenate([first, then[1:]]), rtol=ROUNDING)


def test_twins_after_a_change_are_those_of_the_changed_plant():
    """What a pump's own flow does is its curve times what its input does, and so is the ratio of both plants."""
    aged, clean = (plants.case("tanks", "gentle", ROWS, 0, kind) for kind in ("changed", "clean"))
    factor = aged.change.factor  # of pump 1
    (k,) = [i for i, twin in enumerate(aged.truth) if twin.unit == "T1" and twin.start == ROWS - 1]
    flow = 3  # FI-104, the pump's own flow, follows its input within the horizon
    ratio = aged.truth[k].effect["T1"][-1, flow] / clean.truth[k].effect["T1"][-1, flow]
    assert ratio == pytest.approx(factor, rel=1e-6)


def test_drift_ends_where_a_change_does():
    drift = cases.Wear("a", "b", 0.5, 0, 100).by_row(-10, 121)
    assert (drift[:11] == 1).all()
    assert drift[60] == pytest.approx(0.75)
    assert (drift[110:] == 0.5).all()
    assert cases.Wear("a", "b", 0.5, 3, 3).by_row(0, 5).tolist() == [1, 1, 1, 0.5, 0.5]


# ---- what a dirty record is measured against


@pytest.mark.parametrize("kind", plants.DIRTS)
def test_the_reference_has_as_many_readings_and_the_same_twins(kind):
    dirty = case("tanks", kind)
    reference, twins = plants.reference(dirty)
    assert len(reference.truth) == len(twins) > 0
    first = ROWS - reference.rows
    if kind == "changed":
        assert first == dirty.change.row
        assert reference.change is None  # all of it is the changed plant
    else:
        assert 0 <= reference.readings - dirty.readings < joined(dirty, dirty.y).shape[1]
    for k, twin in zip(twins, reference.truth, strict=True):
        assert twin.start == dirty.truth[k].start - first
        assert twin.start >= (cases.LEAD if first else 0)
        assert np.array_equal(twin.change, dirty.truth[k].change)
        if kind != "drift":
            assert same(twin.effect, dirty.truth[k].effect)
    whole = dirty if kind == "changed" else case("tanks")
    for name in dirty.names:
        assert np.array_equal(reference.y[name], whole.y[name][first:])
        assert np.array_equal(reference.u[name], whole.u[name][first:])
    assert reference.recording().rows == reference.rows


def test_a_cut_before_the_change_keeps_it():
    aged = case("tanks", "changed")
    part = aged.cut(100)
    assert part.change == replace(aged.change, row=aged.change.row - 100, until=aged.change.until - 100)
    assert aged.cut(0).truth[0].start == aged.truth[0].start


def test_a_dirt_that_a_plant_does_not_have_is_refused():
    assert not plants.offers("water", "gentle", "changed")
    assert plants.offers("water", "gentle", "lost")
    assert all(plants.offers(plant, way, "changed") for plant in WRITTEN for way in WAYS)
    for plant, kind in (("tanks", "rust"), ("water", "drift")):
        with pytest.raises(ValueError, match=f"no dirt '{kind}'"):
            plants.case(plant, "gentle", ROWS, SEED, kind)


# ---- the judge, baselines, results and tables


def answered(case, answer=lambda k, unit, effect: Answer(k, unit, effect)):
    return [answer(k, unit, twin.effect[unit]) for k, twin in enumerate(case.truth) for unit in case.asked(twin)]


def report(case, changes=(), answers=None):
    return Report(answered(case) if answers is None else answers, None, 1.0, "fine", changes=changes)


def test_silence_is_allowed_only_where_nothing_was_measured():
    dirty = case("tanks", "slow-unit")  # T4

    def gaps(k, unit, effect):
        twin, mean = dirty.truth[k], effect.copy()
        y = dirty.y[unit][twin.start + 1 : twin.start + 1 + twin.horizon]
        mean[: len(y)][np.isnan(y)] = np.nan
        return Answer(k, unit, mean, mean - dirty.noise[unit], mean + dirty.noise[unit])

    silent = plants.judge(dirty, report(dirty, answers=answered(dirty, gaps)))
    assert silent.error == 0
    assert silent.coverage == silent.tiny_coverage == 1
    assert 0 < silent.silent < 0.2
    assert plants.judge(dirty, report(dirty)).silent == 0
    clean = case("tanks")
    assert plants.judge(clean, report(clean, answers=answered(dirty, gaps))).least_r2 == -np.inf


def test_only_the_twins_that_are_named_count():
    clean = case("tanks")
    wrong = [replace(answer, mean=0 * answer.mean) if answer.twin else answer for answer in answered(clean)]
    assert plants.judge(clean, report(clean, answers=wrong), twins=(0,)).error == 0
    assert plants.judge(clean, report(clean, answers=wrong), twins=(1, 2)).error == pytest.approx(1)
    with pytest.raises(ValueError, match="one is needed"):
        plants.judge(clean, report(clean, answers=wrong[1:]), twins=(1,))


def test_change_points_are_found_within_two_percent_and_in_their_unit():
    aged, clean, drift = case("tanks", "changed"), case("tanks"), case("tanks", "drift")
    row, unit = aged.change.row, aged.change.unit
    other = next(name for name in aged.names if name != unit)
    near, far = row + int(NEAR * ROWS), row + int(NEAR * ROWS) + 1
    for changes, expected in (
        ((), (0, 0, 0)),
        (((near, (unit,)),), (1, 1, 0)),
        (((near, (other,)),), (1, 0, 0)),
        (((far, (unit,)), (50, (other,))), (0, 0, 2)),
        (((near, (other,)), (row, (other, unit)), (50, ())), (1, 1, 1)),
    ):
        score = plants.judge(aged, report(aged, changes))
        assert (score.found, score.placed, score.false_changes) == expected
    steady = plants.judge(clean, report(clean, ((row, (unit,)),)))
    assert steady.false_changes == 1
    assert np.isnan(steady.found)
    assert np.isnan(plants.judge(drift, report(drift, ((row, (unit,)),))).false_changes)


def test_baselines_get_straight_lines_for_gaps():
    y = np.array([[np.nan, 0.0], [1.0, np.nan], [np.nan, np.nan], [3.0, 3.0], [np.nan, 4.0]])
    assert baselines.impute_mean(y).tolist() == [[1, 0], [1, 1], [2, 2], [3, 3], [3, 4]]
    whole = joined(case("tanks"), case("tanks").y)
    assert np.array_equal(baselines.impute_mean(whole), whole)
    dirty = plants.case("tanks", "gentle", 1000, 0, "lost")
    assert plants.judge(dirty, baselines.arx(dirty)).error < 0.2


def test_the_product_names_change_points_by_its_regimes(monkeypatch):
    class Regime:
        def __init__(self, start, *units):
            self.start, self.units = start, units

    class Found:
        status, regimes = "fitted", (Regime(0), Regime(120, "T1", "T3"))

        def graph(self):
            return self

        def direct(self):
            return ()

        def check(self):
            return self

        verdict = "pass"

    monkeypatch.setattr(product.cf, "fit", lambda recording: Found())
    monkeypatch.setattr(product, "_answers", lambda case, recording, found, k, twin: [])
    assert product.counterflow(case("tanks")).changes == ((120, ("T1", "T3")),)
    monkeypatch.delattr(Found, "regimes")
    assert product.counterflow(case("tanks")).changes == ()


def test_scores_of_dirty_records_are_kept_by_dirt_and_told_beside_their_references(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FOLDER", tmp_path)
    assert dirt_tables.section(("arx", "counterflow"), (SEED,), "Nothing") == []
    for kind in ("lost", "changed", "drift"):
        dirty = case("tanks", kind)
        reference, twins = plants.reference(dirty)
        half = [replace(answer, mean=answer.mean / 2) for answer in answered(dirty)]  # error 1/4
        most = [replace(answer, mean=answer.mean * 0.9) for answer in answered(reference)]  # error 1/100
        changes = ((dirty.change.row, ("T1",)),) if kind == "changed" else ()
        told = report(dirty, changes, half)
        score, shared = plants.judge(dirty, told), plants.judge(dirty, told, twins)
        beside = plants.judge(reference, report(reference, answers=most))
        for method in ("arx", "counterflow"):
            key = results.key("tanks", "gentle", ROWS, SEED)
            results.store(method, key, score, kind, shared=shared, reference=beside)
    assert results.load("arx") == {}
    assert {path.name for path in tmp_path.iterdir()} == {
        f"results_{method}_{kind}.json" for method in ("arx", "counterflow") for kind in ("lost", "changed", "drift")
    }
    lines = dirt_tables.section(("arx", "counterflow"), (SEED,), "Development")
    text = "\n".join(lines)
    assert [line for line in lines if line.startswith("###")] == ["### lost", "### changed", "### drift"]
    assert "| tanks | Counterflow | 0.250 | 0.010 | 25.00 |" in text  # lost, drift
    assert "| tanks | Counterflow | 0.750 | 0.990 | 0.758 |" in text  # changed
    met = {line.split("|")[1].strip(): line.split("|")[4].strip() for line in lines if "| Counterflow |" in line[30:]}
    assert met["changed: changes found in time, at least 90%"] == "met"
    assert met["changed: and in the right unit, at least 90%"] == "MISSED"  # T4 changed
    assert met["changed: R² of the present plant over that of the rows since, at least 0.95"] == "MISSED"
    assert met["false change points in each of 1 steady records, at most 0.1"] == "met"
    assert dirt_tables.section(("arx", "counterflow"), (SEED + 1,), "Other seeds") == []
