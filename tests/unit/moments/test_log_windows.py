"""Moments of logs, window after window: joined as if they had been stacked, each a release of its own."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from instruments import with_limits

import counterflow as cf
from counterflow.learning.log_moments import fitted
from counterflow.privacy import Ledger, ledger_path

PLANT = cf.random_plant(units=["boiler", "turbine"], outputs=3, rng=2)
RAW = PLANT.simulate(6000, rng=3)
RECORDING = with_limits(RAW)
WIDTH = 2000
PAIRS = [(cause, effect, channel) for cause, effect in (PLANT.names, PLANT.names[::-1]) for channel in ("u1", "u2")]


def privacy(start: int, epsilon: float = 5.0, **given: Any) -> cf.Privacy:
    return cf.Privacy(epsilon, 1e-6, seed=start + 1, start=start, **given)


def window(start: int, rows: int = WIDTH, of: cf.Recording = RECORDING) -> cf.Recording:
    return of.slice(start, start + rows)


@cache
def joined(windows: int) -> cf.Fit:
    if windows == 1:
        return cf.fit(window(0), privacy=privacy(0), memory=30)
    start = (windows - 1) * WIDTH
    return joined(windows - 1).update(window(start), privacy=privacy(start))


def codes(found: cf.Fit) -> set[str]:
    return {caveat.code for caveat in found.caveats}


def truth(plant: cf.Plant, cause: str, effect: str, channel: str, horizon: int = 15) -> np.ndarray:
    push = plant.B[:, plant.input_slice(cause).start + ("u1", "u2").index(channel)]
    state, out = np.zeros(len(plant.A)), []
    for _ in range(horizon):
        state = plant.A @ state + push
        out.append(plant.C[plant.output_slice(effect)] @ state)
    return np.array(out)


def judged(found: cf.Fit, plant: cf.Plant = PLANT, first: int = 0) -> tuple[float, float]:
    """Error of effects between units, relative, and the share of rows within intervals; ``first``: of the answer."""
    missed, whole, held = 0.0, 0.0, []
    for cause, effect, channel in PAIRS:
        answer = found.effect(cause, effect, {channel: 1.0}, horizon=15)
        true = truth(plant, cause, effect, channel, first + 15)[first:]
        missed += np.square(answer.mean - true).sum()
        whole += np.square(true).sum()
        held.append(((answer.lower <= true) & (true <= answer.upper)).mean())
    return float(np.sqrt(missed / whole)), float(np.mean(held))


def test_the_joined_estimate_is_that_of_all_moments_stacked():
    """One tall set of moments, in which rows of either window keep their own noise: the oracle knows it row by row."""
    found = joined(2)
    windows = found.couplings.windows
    size, inputs = windows.bank.size, len(windows.scale)
    estimates = [fitted(own, windows.bank) for own in windows.units]
    for m, own in enumerate(windows.units):
        assert len(own) == 2
        assert not np.allclose(own[0].added, own[1].added)  # each with noise of its own
        rows = found.couplings.shared.state_slices[m]
        weights = estimates[m].weights.reshape(3, inputs, size) / windows.scale[None, :, None]
        assert np.allclose(found.plant.B[rows], weights.transpose(0, 2, 1).reshape(3 * size, inputs), rtol=1e-9)
        # least squares of all rows at once, with no belief: within what belief may shrink and doubt allows
        design, values = (np.vstack([getattr(each, name) for each in own]) for name in ("design", "values"))
        spread = np.concatenate([
            np.broadcast_to(np.diag(each.added) + np.diag(estimates[m].noise), each.values.shape) for each in own
        ])  # fmt: skip
        for o in range(3):
            scaled = 1 / np.sqrt(spread[:, o])
            plain, *_ = np.linalg.lstsq(scaled[:, None] * design, scaled * values[:, o], rcond=None)
            doubt = np.sqrt(np.diag(np.linalg.pinv((design.T * scaled**2) @ design)))[1:]
            assert (np.abs(plain[1:] - estimates[m].weights[o]) < 4.5 * doubt).all()
    width = np.tile(windows.scale, 3 * size)  # of an entry of B: by output and function, then by input
    cubes = [np.diag(each.covariance).reshape(3, inputs, size).transpose(0, 2, 1).ravel() for each in estimates]
    variances = np.concatenate([cube / width**2 for cube in cubes])
    assert (np.diag(found.couplings.spread.covariance) >= (1 - 1e-9) * variances).all()  # clipping widens


def test_a_window_that_says_nothing_takes_nothing_away():
    windows = joined(1).couplings.windows
    for own in windows.units:
        alone = fitted(own, windows.bank)
        rng = np.random.default_rng(1)
        size = own[0].values.shape
        drowned = replace(own[0], values=1e4 * rng.normal(size=size), added=1e8 * np.eye(size[1]))
        clipped = replace(own[0], values=np.zeros(size), clipped=1.0)
        for more in (drowned, clipped):
            both = fitted([*own, more], windows.bank)
            assert np.linalg.norm(both.weights - alone.weights) < 0.05 * np.linalg.norm(alone.weights)
            assert both.shares[0] > 0.99


def test_errors_fall_with_windows_and_intervals_hold():
    errors, widths, held = [], [], []
    for seed in range(4):
        plant = cf.random_plant(units=["boiler", "turbine"], outputs=3, rng=10 + seed)
        recording = with_limits(plant.simulate(6000, rng=seed))
        found = cf.fit(window(0, of=recording), privacy=privacy(0), memory=30)
        fits = [found]
        for start in (2000, 4000):
            fits.append(fits[-1].update(window(start, of=recording), privacy=privacy(start)))
        told = [judged(each, plant) for each in fits]
        errors.append([error for error, _ in told])
        held.append([share for _, share in told])
        widths.append([np.linalg.norm(np.nan_to_num(each.standard_errors.B)) for each in fits])
    first, _, last = np.median(errors, axis=0)
    assert last < 0.75 * first
    first, _, last = np.mean(held, axis=0)
    assert last > 0.9
    first, _, last = np.median(widths, axis=0)
    assert last < 0.85 * first


def test_a_saved_fit_is_joined_as_the_one_in_memory(tmp_path):
    joined(2).save(tmp_path / "fit")
    loaded = cf.load(tmp_path / "fit")
    again = loaded.update(window(2 * WIDTH), privacy=privacy(2 * WIDTH))
    assert np.array_equal(again.plant.B, joined(3).plant.B)
    assert np.array_equal(again.couplings.spread.covariance, joined(3).couplings.spread.covariance)
    again.save(tmp_path / "fit")
    assert cf.load(tmp_path / "fit").plant == joined(3).plant
    with pytest.raises(cf.DataError) as refused:
        loaded.update(window(WIDTH), privacy=cf.Privacy(5.0, 1e-6, seed=9))
    assert refused.value.code == "rows-repeated"


@pytest.mark.parametrize("what", ["poles", "scale", "design", "added", "told", "clipped", "units", "centre"])
def test_windows_that_make_no_sense_are_not_loaded(tmp_path, what):
    found = joined(1)
    windows = found.couplings.windows
    (own,), other = windows.units[0], windows.units[1:]
    broken = {
        "poles": lambda: replace(windows, bank=replace(windows.bank, poles=(0.0, *windows.bank.poles[1:-1], 1.5))),
        "scale": lambda: replace(windows, scale=-windows.scale),
        "units": lambda: replace(windows, units=other),
        "design": lambda: replace(windows, units=((replace(own, design=own.design[:, 1:]),), *other)),
        "added": lambda: replace(windows, units=((replace(own, added=-own.added),), *other)),
        "told": lambda: replace(windows, units=((replace(own, told=10_000),), *other)),
        "clipped": lambda: replace(windows, units=((replace(own, clipped=2.0),), *other)),
        "centre": lambda: replace(windows, units=((replace(own, centre=own.centre[:1]),), *other)),
    }
    replace(found, couplings=replace(found.couplings, windows=broken[what]())).save(tmp_path / "fit")
    with pytest.raises(cf.StorageError):
        cf.load(tmp_path / "fit")


def test_rows_are_not_taken_in_twice():
    for rows in (window(0), window(WIDTH)):
        with pytest.raises(cf.DataError) as refused:
            joined(2).update(rows, privacy=cf.Privacy(5.0, 1e-6, seed=9))
        assert refused.value.code == "rows-repeated"
    with pytest.raises(cf.DataError) as refused:
        joined(2).update(window(3000), privacy=privacy(3000))
    assert refused.value.code == "rows-repeated"
    assert "inputs-repeated" not in codes(joined(3))
    overlapping = joined(2).update(window(3000), privacy=cf.Privacy(5.0, 1e-6, seed=9))
    assert "inputs-repeated" in codes(overlapping)


def with_units(recording: cf.Recording, change: Any, dt: float = 1.0) -> cf.Recording:
    arrays = {name: (recording[name].y, recording[name].u) for name in recording.names}
    return cf.Recording.from_arrays(arrays, dt=dt, units=[change(unit) for unit in recording.units])


def other_name(unit: cf.Unit) -> cf.Unit:
    outputs = (replace(unit.outputs[0], name="another"), *unit.outputs[1:])
    return replace(unit, outputs=outputs)


def wider(unit: cf.Unit) -> cf.Unit:
    low, high = unit.outputs[0].limits
    return replace(unit, outputs=(replace(unit.outputs[0], limits=(low, 2 * high)), *unit.outputs[1:]))


def dead(recording: cf.Recording) -> cf.Recording:
    y = recording["boiler"].y.copy()
    y[:, 1] = np.nan
    arrays = {name: (recording[name].y, recording[name].u) for name in recording.names} | {
        "boiler": (y, recording["boiler"].u)
    }
    return cf.Recording.from_arrays(arrays, units=recording.units)


def test_other_plants_are_refused_before_anything_is_paid_for(tmp_path):
    for name in PLANT.names:
        Ledger.create(ledger_path(tmp_path, name), name, 20.0, 1e-5).close()
    later = window(WIDTH)
    others = {
        "data": [
            cf.Recording({name: later[name] for name in PLANT.names[:1]}),
            with_units(later, other_name),
            with_units(later, lambda unit: unit, dt=2.0),
        ],
        "other-limits": [with_units(later, wider)],
        "other-channels": [dead(later)],
    }
    for code, recordings in others.items():
        for recording in recordings:
            with pytest.raises(cf.DataError) as refused:
                joined(1).update(recording, privacy=privacy(WIDTH, ledger=tmp_path))
            assert refused.value.code == code
    for wrong in (privacy(WIDTH, release="rows"), privacy(WIDTH, models=(1.0, 0.0))):
        with pytest.raises(cf.OptionError):
            joined(1).update(later, privacy=wrong)
    with Ledger.open(ledger_path(tmp_path, "boiler")) as ledger:
        assert not ledger.entries()


def test_a_memory_that_goes_with_other_rows_stays_that_of_the_first_window():
    short = cf.fit(window(0, 1000), privacy=privacy(0))  # memory by the rows: 50
    both = short.update(window(1000, 4000), privacy=privacy(1000))
    first, later = short.couplings.windows.bank, both.couplings.windows.bank
    assert (first.poles, first.memory) == (later.poles, later.memory)
    assert later.memory == 50
    assert np.array_equal(both.couplings.windows.level, short.couplings.windows.level)
    assert both.plant.A.shape == short.plant.A.shape


@pytest.mark.parametrize("same_row", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 8, 40])
def test_short_windows_end_in_an_answer_or_in_an_error_of_ours(rows, same_row):
    first = cf.fit(window(0), privacy=privacy(0), memory=30, same_row=True) if same_row else joined(1)
    try:
        found = first.update(window(WIDTH, rows), privacy=privacy(WIDTH))
    except cf.CounterflowError:
        return
    assert np.isfinite(found.plant.B).all()
    assert judged(found)[0] < 1.2 * judged(first)[0]


@pytest.mark.parametrize("same_row", [False, True])
def test_without_privacy_two_windows_are_about_one(same_row):
    """Channels have no limits here: numbers are standardised by readings of the first window, which the next keeps."""
    recording = RAW
    if same_row:
        arrays = {n: (RAW[n].y, np.vstack([RAW[n].u[:1], RAW[n].u[:-1]])) for n in RAW.names}
        recording = cf.Recording.from_arrays(arrays, units=RAW.units)
    logs = with_units(recording, lambda unit: cf.Unit(unit.name, 2, unit.input_names, unit.output_names))
    given = {"method": "moments", "memory": 30, "same_row": same_row}
    first = cf.fit(logs.slice(0, 2000), **given)
    both = first.update(logs.slice(2000, 6001))
    whole = cf.fit(logs, **given)
    (before, _), (error, held), (least, _) = (judged(each, first=int(same_row)) for each in (first, both, whole))
    assert error < 0.9 * before
    assert error < 1.3 * least
    assert held > 0.85
    with pytest.raises(cf.DataError) as refused:
        first.update(logs.slice(0, 2000))
    assert refused.value.code == "rows-repeated"
    overlapping = first.update(logs.slice(1500, 3500))
    assert "inputs-repeated" in codes(overlapping)
    private = first.update(with_limits(recording).slice(2000, 6001), privacy=privacy(2000))
    assert any("the rows of the fit before" in text for text in private.privacy.excluded)
    assert judged(private, first=int(same_row))[0] < before
