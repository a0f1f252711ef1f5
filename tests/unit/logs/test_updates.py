"""Updates of fits from logs: many small ones are one fit, at a cost that does not grow; what does not follow shows."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest
from tolerances import ITERATIVE, LONG

import counterflow as cf
from counterflow.console.opening import open_model
from counterflow.identification.sparse import refined_weights
from counterflow.learning import network_learning, network_model
from counterflow.learning import stream as streams
from counterflow.learning.block_moments import BlockMoments, Rows, block_length
from counterflow.learning.completion import impute_mean
from counterflow.learning.network_learning import block_weights, learn, refreshed
from counterflow.learning.network_model import NOT_FOLLOWING
from counterflow.learning.regression import ENOUGH
from counterflow.learning.uncertainty import SIGNS
from counterflow.report import AskCounterfactual, AskEffect, write_report

PLANT = cf.random_plant(units=["a", "b"], states=1, outputs=1, inputs=1, topology="chain", rng=3)
SHORT = 500
OF_INTERVAL = 0.3  # of an interval's half width: how far answers of a stream may be from those of one fit


@cache
def recorded(rows: int) -> cf.Recording:
    return PLANT.simulate(rows - 1, rng=4)


@cache
def first() -> cf.Fit:
    return cf.fit(recorded(1000).slice(0, SHORT))


def grown(fit: cf.Fit, recording: cf.Recording, start: int, stop: int, step: int) -> cf.Fit:
    for row in range(start, stop, step):
        fit = fit.update(recording.slice(row, min(row + step, stop)))
    return fit


@cache
def updated() -> cf.Fit:
    """After ten updates, and some rows since features were chosen."""
    fit = grown(first(), recorded(1000), SHORT, SHORT + 100, 10)
    assert fit.couplings.stream.chosen < fit.couplings.stream.rows
    return fit


def all_rows(fit: cf.Fit, recording: cf.Recording) -> Rows:
    """All rows of a recording, as the units of a fit send them."""
    grounded, network = fit.about(recording).grounded, fit.couplings.network
    return Rows(network.names, network.numbers, network.inputs, np.hstack([grounded.numbers, grounded.u]))


def with_network(fit: cf.Fit, network) -> cf.Fit:
    return replace(fit, couplings=replace(fit.couplings, network=network))


def gap(one: cf.Fit, two: cf.Fit) -> float:
    """Largest difference of two fits' effects, in half widths of the second's intervals."""
    out = 0.0
    for cause in one.names:
        for effect in one.names:
            a, b = (fit.effect(cause, effect, [1.0], horizon=20) for fit in (one, two))
            out = max(out, float((np.abs(a.mean - b.mean) / ((b.upper - b.lower) / 2)).max()))
    return out


def worth_the_same(monkeypatch, bend=(0.0, 0.0)) -> None:
    """What learners are worth is judged on the rows that are kept; here it does not change."""

    def judged(rows, products, known, ways, others, count):
        return bend, (10, *[6 // len(others)] * len(others))

    monkeypatch.setattr(network_learning, "worth_of", judged)


# ---- many updates are one fit


@pytest.mark.parametrize("kept", [200, 10_000])
def test_when_features_are_chosen_anew_the_fit_is_that_of_all_rows(monkeypatch, kept):
    """To rounding, though most rows are no longer there."""
    monkeypatch.setattr(network_model, "KEPT", kept)
    if kept < 800:
        worth_the_same(monkeypatch)
    recording, fit, times = recorded(1000), first(), 0
    for row in range(SHORT, 800, 10):
        fit = fit.update(recording.slice(row, row + 10))
        stream = fit.couplings.stream
        assert stream.rows == row + 10
        assert fit.server.rows == min(row + 10, max(kept, SHORT))
        if stream.chosen < stream.rows or row == SHORT:
            continue
        times += 1
        rows = all_rows(fit, recording.slice(0, row + 10))
        network, again = fit.couplings.network, learn(rows).network
        for name in ("linear", "noise", "level", "scale", "low", "high"):
            np.testing.assert_allclose(getattr(network, name), getattr(again, name), rtol=ITERATIVE, atol=ITERATIVE)
        assert network.rows == again.rows
    assert 3 < times <= np.ceil(np.log(800 / (SHORT + 10)) / np.log(streams.GROWTH)) + 1  # and one where blocks join


@pytest.mark.slow
def test_a_thousand_updates_of_ten_rows_are_one_fit_and_none_costs_more_than_another(monkeypatch):
    """What is counted: rows whose features are made, searches for features, and what is kept."""
    monkeypatch.setattr(network_model, "KEPT", 1000)
    worth_the_same(monkeypatch)
    rows, read, searches, kept = 11_000, [], [], []
    recording = recorded(rows)
    fit = cf.fit(recording.slice(0, 1000)).update(recording.slice(1000, 1010))
    summed = BlockMoments._sum
    monkeypatch.setattr(BlockMoments, "_sum", lambda self, z, at: read.append(len(at)) or summed(self, z, at))
    for row in range(1010, rows, 10):
        read.clear()
        fit = fit.update(recording.slice(row, row + 10))
        stream = fit.couplings.stream
        if stream.chosen == stream.rows:
            searches.append(stream.rows)
        elif stream.rows > 1000:
            assert sum(read) == 10
        kept.append(sum(a.size for a in (*stream.products.blocks, fit.server.shared.values, fit.server.shared.u)))
    assert len(searches) <= np.log(rows / 1000) / np.log(streams.GROWTH) + np.log2(rows / 1000) + 1
    assert max(kept) <= 2 * kept[0]
    whole = learn(all_rows(fit, recording)).network
    assert gap(fit, with_network(fit, whole)) < OF_INTERVAL
    assert gap(fit, cf.fit(recording)) < OF_INTERVAL  # whose numbers are in the basis of all rows


def test_between_two_searches_weights_follow_the_rows():
    fit, recording = updated(), recorded(1000).slice(0, SHORT + 100)
    whole = learn(all_rows(fit, recording)).network
    stale = grown(first(), recording, SHORT, fit.couplings.stream.chosen, 10)
    assert stale.couplings.stream.chosen == stale.couplings.stream.rows
    assert gap(fit, with_network(fit, whole)) < OF_INTERVAL
    assert not np.array_equal(fit.couplings.network.linear, stale.couplings.network.linear)
    assert np.array_equal(fit.couplings.network.linear != 0, stale.couplings.network.linear != 0)


def test_all_refreshed_weights_are_those_of_one_problem_after_another(monkeypatch):
    """Padding, places and damping: against loops over replicates and targets with the whole sums."""
    worth_the_same(monkeypatch, (0.1, 3.0))
    rng = np.random.default_rng(0)
    z = rng.standard_normal((900, 4)) * [0.3, 0.3, 0.3, 0.6]
    for t in range(2, 900):
        recent = (z[t - 1] + z[t - 2]) / 2
        z[t] += [0.7, 0.6, 0.5, 0.8] * z[t - 1] + [0.5 * z[t - 1, 3], 0.5 * z[t - 1, 0], 0.6 * z[t - 2, 1], 0.0]
        z[t, 1] -= 0.2 * recent[0] * recent[1]
    rows = Rows(("a", "b"), (2, 1), (1, 0), z)
    learned = learn(replace(rows, z=z[:800]))
    assert learned.network.curved
    sums = learned.products
    sums = sums.absorbed(z[800 - sums.memory :])
    damped = replace(learned.posterior, damping=learned.posterior.damping * 0.9)
    network, posterior = refreshed(learned.network, sums, damped)
    n, linear = sums.features, len(sums.spans) * 4
    where = [int(np.flatnonzero((sums.pairs == pair).all(axis=1))[0]) for pair in network.pairs]
    assert sums.count <= ENOUGH
    assert set(learned.network.learners) == {"sparse network", "ridge", "ridge with products", "least squares"}
    for k, draw in enumerate(block_weights(sums)):
        G = sums.moments(draw)
        if learned.network.learners[k] != "sparse network":  # the others stay
            np.testing.assert_array_equal(network.linear[k], learned.network.linear[k])
            continue
        for i in range(3):
            chosen = np.flatnonzero(damped.variance[k, :, i])
            mean, variance, noise = refined_weights(
                G[np.ix_(chosen, chosen)], G[chosen, n + i], float(G[n + i, n + i]), float(sums.read[i]),
                damped.variance[k, chosen, i], float(damped.noise[k, i]),
            )  # fmt: skip
            wanted = np.zeros(n)
            wanted[chosen] = mean
            found = np.concatenate([network.linear[k, :, :, i].ravel() / 0.9, np.zeros(n - linear)])
            found[linear + np.array(where)] = network.bends[k, :, i]
            np.testing.assert_allclose(found, wanted, rtol=ITERATIVE, atol=ITERATIVE)
            np.testing.assert_allclose(posterior.variance[k, chosen, i], variance, rtol=ITERATIVE)
            np.testing.assert_allclose(posterior.noise[k, i], noise, rtol=ITERATIVE)
    assert np.array_equal(posterior.variance > 0, damped.variance > 0)


def test_blocks_that_are_joined_and_columns_that_begin_to_move_ask_for_a_search():
    stream = updated().couplings.stream
    assert not stream.due
    assert replace(stream, chosen=int(stream.rows / streams.GROWTH)).due
    assert replace(stream, chosen=1 << 9).due == (block_length(1 << 9) != stream.products.length)
    still = stream.products.moving.copy()
    still[-1] = False
    assert replace(stream, products=replace(stream.products, moving=still)).due


def test_the_memory_of_a_short_record_grows_with_it():
    recording = recorded(1000)
    fit = cf.fit(recording.slice(0, 100))
    assert fit.couplings.network.memory < 20
    later = grown(fit, recording, 100, 460, 60)
    assert later.couplings.network.memory == 51
    assert later.couplings.stream.products.memory == 51


# ---- rows that are there, and rows that are not


def with_gaps(recording: cf.Recording, gaps) -> cf.Recording:
    arrays = {name: (recording[name].y.copy(), recording[name].u) for name in recording.names}
    for name, rows in gaps:
        arrays[name][0][rows] = np.nan
    return cf.Recording.from_arrays(arrays, dt=recording.dt, units=recording.units)


def test_what_is_missing_is_drawn_and_no_evidence():
    recording = with_gaps(recorded(1000), [("b", slice(535, 540)), ("a", slice(550, 560)), ("b", slice(550, 560))])
    fit = first().update(recording.slice(SHORT, 530))
    count = fit.couplings.stream.products.count
    fit = grown(fit, recording, 530, 560, 10)
    stream = fit.couplings.stream
    assert stream.chosen == 530
    assert stream.products.count == count + 30 - 10  # nothing was read in ten rows
    np.testing.assert_array_equal(stream.products.read, [count + 20, count + 15])
    assert np.isfinite(stream.tail).all()
    numbers = fit.server.grounded.numbers
    assert np.isnan(numbers[535:540, 1]).all()  # what was not measured is not said to be
    assert np.isfinite(numbers[535:540, 0]).all()
    z, network = all_rows(fit, recording.slice(0, 560)).z, fit.couplings.network
    before = z[530 - network.memory : 530]
    found = streams.continued(network, before, z[530:])
    np.testing.assert_allclose(found[-30:][np.isfinite(z[530:])], z[530:][np.isfinite(z[530:])], rtol=LONG)
    mean = impute_mean(network, (np.vstack([before, z[530:]]) - network.level) / network.scale)
    assert np.abs((found - network.level) / network.scale - mean).max() < 5 * np.sqrt(np.diag(network.noise).max()) * 3
    assert np.isfinite(fit.effect("a", "b", [1.0], horizon=5).upper).all()
    assert np.isfinite(fit.forecast(recording.slice(0, 560), 5)["b"].mean).all()


def test_a_dead_channel_in_a_short_update_does_no_harm():
    """Its unit's numbers are then not determined by the others: it counts as missing."""
    plant = cf.random_plant(units=["a", "b"], states=1, outputs=2, inputs=1, topology="chain", rng=3)
    recording = plant.simulate(400, rng=1)
    arrays = {name: (recording[name].y.copy(), recording[name].u) for name in recording.names}
    arrays["a"][0][320:330, 1] = np.nan
    broken = cf.Recording.from_arrays(arrays, units=recording.units)
    fit = grown(cf.fit(recording.slice(0, 300)), broken, 300, 330, 10)
    assert np.isnan(fit.server.grounded.numbers[320:330, fit.couplings.network.number_slices[0]]).all()
    assert np.isfinite(fit.couplings.stream.tail).all()
    assert fit.update(broken.slice(330, 340)).couplings.stream.rows == 340


def test_an_input_that_never_moved_can_be_asked_about_when_it_has():
    recording = recorded(1000)
    arrays = {name: (recording[name].y, recording[name].u.copy()) for name in recording.names}
    arrays["a"][1][:560] = 0.0
    log = cf.Recording.from_arrays(arrays, units=recording.units)
    fit = grown(cf.fit(log.slice(0, SHORT)), log, SHORT, 560, 20)
    with pytest.raises(cf.CounterflowError, match="never varies"):
        fit.effect("a", "b", [1.0], horizon=5)
    fit = fit.update(log.slice(560, 580))
    assert fit.couplings.stream.chosen == 580
    assert np.isfinite(fit.effect("a", "b", [1.0], horizon=5).mean).all()


def test_what_earlier_rows_have_shown_is_not_forgotten_with_them(monkeypatch):
    """An input that stands still in all rows that are kept can still be asked about; its range was seen."""
    monkeypatch.setattr(network_model, "KEPT", 100)
    recording = recorded(1000)
    arrays = {name: (recording[name].y, recording[name].u.copy()) for name in recording.names}
    arrays["a"][1][200:] = 0.0
    log = cf.Recording.from_arrays(arrays, units=recording.units)
    fit = grown(cf.fit(log.slice(0, 200)), log, 200, 600, 40)
    assert fit.server.rows == 200
    assert np.ptp(fit.server.u[:, 0]) == 0
    assert fit.server.seen[0] == pytest.approx(np.ptp(log["a"].u[:200]))
    answer = fit.effect("a", "b", [1.0], horizon=5)
    assert not {c.code for c in answer.caveats} & {"undetermined", "extrapolation"}


# ---- rows that do not follow


@pytest.mark.parametrize("start", [0, 120, 595, 598, 599])
def test_rows_that_were_taken_in_already_are_refused(start):
    recording = recorded(1000)
    signs = (SHORT + 100 - start) * 2
    if signs < SIGNS:  # too few to tell from chance in a plant with two numbers a row
        assert updated().update(recording.slice(start, 620)).couplings.stream.rows == 600 + 620 - start
        return
    with pytest.raises(cf.DataError, match=rf"already: give recording.slice\({600 - start}\)") as refused:
        updated().update(recording.slice(start, 620))
    assert refused.value.code == "rows-repeated"
    with pytest.raises(cf.DataError, match="already: give rows that follow"):
        updated().update(recording.slice(100, 110))


def test_of_a_fit_with_models_the_rows_of_the_fit_are_known():
    recording = recorded(1000)
    fit = cf.fit(recording.slice(0, SHORT), PLANT.locals())
    with pytest.raises(cf.DataError, match=r"give recording.slice\(100\)"):
        fit.update(recording.slice(SHORT - 100, SHORT + 100))
    assert fit.update(recording.slice(SHORT, SHORT + 100)).status.converged


def test_a_plant_that_stands_still_repeats_nothing():
    """Coarse readings are often the same from row to row."""
    recording = recorded(1000)
    arrays = {name: (np.round(recording[name].y / 4) * 4, recording[name].u) for name in recording.names}
    coarse = cf.Recording.from_arrays(arrays, units=recording.units)
    fit = grown(cf.fit(coarse.slice(0, SHORT)), coarse, SHORT, SHORT + 60, 2)
    assert fit.couplings.stream.rows == SHORT + 60


def test_a_row_far_from_what_was_foretold_is_told_and_others_are_not():
    fit, recording = updated(), recorded(1000)
    assert not [c for c in fit.caveats if c.code == NOT_FOLLOWING]
    arrays = {name: (recording[name].y + 20 * recording[name].y.std(), recording[name].u) for name in recording.names}
    later = cf.Recording.from_arrays(arrays, units=recording.units)
    jumped = fit.update(later.slice(800, 810))
    assert [c.code for c in jumped.caveats].count(NOT_FOLLOWING) == 1
    assert "times further" in str(next(c for c in jumped.caveats if c.code == NOT_FOLLOWING))


def test_another_time_step_is_refused():
    later = replace(recorded(1000).slice(600, 620), dt=2.0)
    with pytest.raises(cf.DataError, match="dt"):
        updated().update(later)


# ---- what an updated fit can do


def test_an_updated_fit_answers_everything():
    fit, recording = updated(), recorded(1000).slice(0, SHORT + 100)
    assert fit.effect("a", "b", {"u1": 1.0}, horizon=5).sentence()
    assert fit.counterfactual(recording, {"a": {"u1": 0.0}}, 550, 560)["b"].sentence()
    assert fit.forecast(recording, 5)["b"].sentence()
    assert fit.attribute(recording, "b", 550, 560).sentence()
    assert fit.restore("b", {"y1": 0.1}, using=["a"]).sentence()
    assert fit.paths("a", "b", {"u1": 1.0}).sentence()
    assert fit.aggregate_effect("b", *np.eye(2, fit.parts["b"].unit.states)).caveats is not None
    assert fit.graph().direct() == (("a", "b"),)
    assert fit.check().verdict in ("pass", "caution", "fail")
    assert fit.check(recorded(1000).slice(600, 900)).verdict
    assert fit.validate(recorded(1000).slice(600, 900))
    assert "600 rows in all" in fit.summary()
    assert "chosen from the first 580" in str(fit.status)
    codes = {c.code for c in fit.caveats}
    assert {"model-form", "input-alignment"} <= codes


def test_report_and_console_of_an_updated_fit(tmp_path):
    fit, recording = updated(), recorded(1000).slice(0, SHORT + 100)
    write_report(tmp_path / "report.html", fit, recording, [AskEffect("a", "b", {"u1": 1.0}, horizon=5)])
    assert "600 rows in all" in (tmp_path / "report.html").read_text()
    fit.save(tmp_path / "fit")
    recording.save(tmp_path / "recording.safetensors")
    seats = open_model(tmp_path / "fit", data=tmp_path / "recording.safetensors").seats
    seat = seats["unit:b"]
    one, two = (each.effect("a", "b", {"u1": 1.0}, horizon=5) for each in (seat, fit))
    np.testing.assert_allclose(one.upper, two.upper, rtol=LONG)
    request = AskCounterfactual("b", {"a": {"u1": 0.0}}, 550, 560)
    assert seat.ask(request)
    assert seats["server"].graph(0.05).direct() == (("a", "b"),)


def test_rows_that_are_no_longer_kept_can_be_asked_about_with_their_recording(monkeypatch):
    worth_the_same(monkeypatch)
    begun = cf.fit(recorded(1000).slice(0, SHORT))
    whole = grown(begun, recorded(1000), SHORT, SHORT + 100, 10)
    monkeypatch.setattr(network_model, "KEPT", 100)
    fit = grown(begun, recorded(1000), SHORT, SHORT + 100, 10)
    assert fit.server.rows == SHORT
    assert "the newest 500 are kept" in str(fit.status)
    early = fit.counterfactual(recorded(1000).slice(0, 200), {"a": {"u1": 0.0}}, 60, 80)["b"]
    assert np.isfinite(early.upper).all()
    one, two = (f.effect("a", "b", [1.0], horizon=5) for f in (fit, whole))
    np.testing.assert_allclose(one.mean, two.mean, rtol=LONG, atol=LONG)
    np.testing.assert_allclose(one.upper, two.upper, rtol=LONG, atol=LONG)


def test_a_loaded_fit_is_updated_as_the_saved_one(tmp_path):
    recording = recorded(1000)
    updated().save(tmp_path / "fit")
    loaded = cf.load(tmp_path / "fit")
    one, two = (grown(fit, recording, 600, 640, 10) for fit in (updated(), loaded))
    mine, theirs = one.couplings.stream, two.couplings.stream
    assert mine.chosen == theirs.chosen
    for part in ("products", "posterior"):
        for field in fields(getattr(mine, part)):
            a, b = (getattr(getattr(stream, part), field.name) for stream in (mine, theirs))
            assert all(map(np.array_equal, a, b)) if isinstance(a, tuple) else np.array_equal(a, b), field.name
    assert np.array_equal(one.couplings.network.linear, two.couplings.network.linear)
    assert one.provenance == two.provenance
    assert np.array_equal(one.server.shared.values, two.server.shared.values)


def test_a_fit_that_was_never_updated_keeps_no_sums():
    assert first().couplings.stream is None


def test_private_rows_are_not_taken_in():
    with pytest.raises(cf.CounterflowError) as refused:
        updated().update(recorded(1000).slice(600, 700), privacy=cf.Privacy(epsilon=1.0, delta=1e-5, clip=1.0))
    assert refused.value.code == "private-logs"
