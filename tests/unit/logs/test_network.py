"""Networks of units: running them against a plain loop, their growth, and their linear part as a state-space system."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from grounded_networks import at_rest, grounded
from tolerances import EXACT, ITERATIVE, LONG

import counterflow as cf
from counterflow.learning.network import RECENT, SPANS, Network, damping, growth
from counterflow.learning.system import realised

NAMES, NUMBERS, INPUTS = ("a", "b", "c"), (2, 1, 2), (1, 0, 2)
R, M = sum(NUMBERS), sum(NUMBERS) + sum(INPUTS)


def network(curved, spans=SPANS[:6], replicates=3, seed=0):
    """With few weights, as they are learned; every mode decays."""
    rng = np.random.default_rng(seed)
    linear = rng.standard_normal((replicates, len(spans), M, R)) * (rng.random((replicates, len(spans), M, R)) < 0.15)
    linear = np.array([0.4 * each * damping(0.4 * each, spans, 0.97)[:, :, None] for each in linear])
    pairs = np.array([[0, 5], [1, 1], [3, 6]])
    bends = 0.1 * rng.standard_normal((replicates, len(pairs), R)) * curved
    return Network(
        NAMES, NUMBERS, INPUTS, np.asarray(spans, np.int64), linear, pairs, bends, np.array([0.1, 1.0, -0.2]),
        np.array([1.0, 1.3, 0.8]), np.full(M, -1.5), np.full(M, 1.5), rng.standard_normal(M),
        rng.uniform(0.5, 3.0, M), np.eye(R), 1.2, 0.2 * rng.standard_normal((replicates, R)),
    )  # fmt: skip


def foreseen_row(net, k, rows):
    """The numbers of the row after standardised ``rows`` (newest last), by replicate k: one sum at a time."""
    out = net.offset[k].copy()
    for b, (first, last) in enumerate(net.spans):
        for j in range(M):
            mean = sum(rows[-lag][j] for lag in range(first, last + 1)) / (last - first + 1)
            out += net.linear[k, b, j] * mean
    recent = np.mean(rows[-RECENT:], axis=0)
    for p, (one, two) in enumerate(net.pairs):
        factors = [min(max(recent[j], net.low[j]), net.high[j]) for j in (one, two)]
        out += net.bends[k, p] * (factors[0] * factors[1] - net.pair_centre[p]) / net.pair_size[p]
    return out


def world(net, k, before, inputs, residual=None, held=None):
    """Numbers (n, r): inputs of row t stand in the row before it. ``held``: {number: its values (n,)}."""
    rows, out = [row.copy() for row in before], []
    for t, u in enumerate(inputs):
        rows[-1][R:] = u
        s = foreseen_row(net, k, rows) + (0.0 if residual is None else residual[t])
        for number, values in (held or {}).items():
            s[number] = values[t]
        out.append(s)
        rows.append(np.concatenate([s, np.zeros(M - R)]))
    return np.array(out)


def setting(net, n=25, seed=1):
    """Rows z (memory + n, m), of which the last n may be the past that is asked about; and what is added to inputs."""
    rng = np.random.default_rng(seed)
    added = np.zeros((n, M - R))
    added[3:, 0], added[8:12, 2] = 0.7, -1.1
    return rng.standard_normal((net.memory + n, M)), added


def residuals(net, k, before, inputs, recorded):
    """What a replicate leaves of a record, row by row."""
    rows, out = [row.copy() for row in before], []
    for t, u in enumerate(inputs):
        rows[-1][R:] = u
        out.append(recorded[t] - foreseen_row(net, k, rows))
        rows.append(np.concatenate([recorded[t], np.zeros(M - R)]))
    return np.array(out)


def own_terms(net, numbers):
    """Of numbers apart, in the order of the states, which is that of the numbers here."""
    return numbers * net.scale[:R]


@pytest.mark.parametrize("still", [(), ("b",), ("a", "c")])
@pytest.mark.parametrize("past", [False, True])
@pytest.mark.parametrize("curved", [False, True])
def test_an_effect_is_that_of_two_worlds_in_a_plain_loop(curved, past, still):
    net, p = network(curved), SPANS[5, 1]
    z, added = setting(net)
    before, recorded, inputs = z[:p], z[p:, :R], z[p - 1 : -1, R:]
    if not past:
        before, recorded, inputs = z[-p:], None, np.tile(z[-1, R:], (25, 1))
    found = grounded(net, z).response(added, p if past else None, still)
    held = [i for i, unit in enumerate(np.repeat(NAMES, NUMBERS)) if unit in still]
    for k in range(len(net.linear)):
        residual = residuals(net, k, before, inputs, recorded) if past else None
        factual = world(net, k, before, inputs, residual)
        if past:
            np.testing.assert_allclose(factual, recorded, rtol=LONG, atol=LONG)
        changed = world(net, k, before, inputs + added / net.scale[R:], residual, {i: factual[:, i] for i in held})
        np.testing.assert_allclose(found.members[k], own_terms(net, changed - factual), rtol=LONG, atol=LONG)
    assert not found.members[:, :, held].any()
    assert np.abs(found.members).max() > 0.01
    assert (found.limited > 0) == curved  # the rows are drawn wider than what was seen
    np.testing.assert_allclose(found.mean, found.members.mean(axis=0))
    np.testing.assert_allclose(found.worlds.std(axis=0), net.widening * found.members.std(axis=0))


@pytest.mark.parametrize("row", [None, 12])
@pytest.mark.parametrize("curved", [False, True])
def test_where_nothing_changes_nothing_differs(curved, row):
    net = network(curved)
    z, added = setting(net)
    standing = grounded(net, z)
    np.testing.assert_allclose(standing.response(0 * added, row).members, 0.0, atol=LONG)
    late = added.copy()
    late[:15] = 0.0
    found = standing.response(late, row).members
    np.testing.assert_allclose(found[:, :15], 0.0, atol=LONG)  # nothing acts before it happens


def test_a_linear_network_does_not_ask_where_the_plant_stands():
    net, bent = network(False), network(True)
    z, added = setting(net)
    one, two = grounded(net, z).response(added, 12).mean, at_rest(net).response(2 * added).mean
    np.testing.assert_allclose(two, 2 * one, rtol=LONG, atol=LONG)
    one, two = grounded(bent, z).response(added, 12).mean, at_rest(bent).response(added).mean
    assert np.abs(one - two).max() > 1e-3


@pytest.mark.parametrize("curved", [False, True])
def test_rows_ahead_are_those_of_a_plain_loop(curved):
    net = network(curved)
    z, _ = setting(net)
    inputs = np.random.default_rng(2).standard_normal((25, M - R))
    run = grounded(net, z).start(None, 25, apart=False)
    run.advance(0, 25, inputs * net.scale[R:] + net.level[R:])
    for k in range(len(net.linear)):
        wanted = own_terms(net, world(net, k, z[-net.memory :], inputs)) + net.level[:R]
        np.testing.assert_allclose(run.states[k], wanted, rtol=LONG, atol=LONG)


@pytest.mark.parametrize("curved", [False, True])
@pytest.mark.parametrize("row", [None, 12])
def test_stretches_one_after_the_other_are_one(curved, row):
    net = network(curved)
    z, added = setting(net)
    standing, (n, cut) = grounded(net, z), (20, 9)
    inputs = standing.inputs_acting(row, n) + added[:n]
    run = standing.start(row, n, apart=True)
    for first, last in ((0, cut), (cut, n), (0, cut), (cut, n)):  # as often as it takes
        run.advance(first, last, inputs[first:last])
    np.testing.assert_allclose(run.states, standing.response(added[:n], row).members, rtol=LONG, atol=LONG)


@pytest.mark.parametrize("alone", [False, True])
def test_a_response_is_what_one_input_does(alone):
    net = network(False)
    z, added = setting(net)
    run = grounded(net, z).start(12, 20, apart=True, alone=alone)
    run.advance(0, 20, grounded(net, z).inputs_acting(12, 20) + added[:20])
    pulse = np.zeros((15, M - R))
    pulse[0, 1] = 1.0
    wanted = grounded(net.mean if alone else net, z).response(pulse).members
    np.testing.assert_allclose(run.response(5, 15, 1), wanted, rtol=LONG, atol=LONG)


@pytest.mark.parametrize("curved", [False, True])
def test_predictions_are_those_of_a_plain_loop(curved):
    net = network(curved)
    z = np.random.default_rng(3).standard_normal((net.memory + 9, M))
    found = net.predicted(z)
    for k in range(len(net.linear)):
        wanted = [foreseen_row(net, k, list(z[:row])) for row in range(net.memory, len(z))]
        np.testing.assert_allclose(found[k], wanted, rtol=LONG, atol=LONG)


@pytest.mark.parametrize("curved", [False, True])
def test_free_runs_are_those_of_a_plain_loop_with_mean_weights(curved):
    net = network(curved)
    whole = {name: getattr(net, name).mean(axis=0, keepdims=True) for name in ("linear", "bends", "offset")}
    mean = replace(net, **whole)
    z = np.random.default_rng(4).standard_normal((60, M))
    starts, horizon = np.array([net.memory - 1, 20, 37]), 12
    found = net.free_runs(z, starts, horizon)
    assert found.shape == (3, horizon, R)
    for start, run in zip(starts, found, strict=True):
        before = z[start - net.memory + 1 : start + 1]
        inputs = z[start : start + horizon, R:]  # what acts on the first row stands in the start's own row
        np.testing.assert_allclose(run, world(mean, 0, before, inputs), rtol=LONG, atol=LONG)


def test_responses_are_differences_of_a_pulse():
    net = network(True, replicates=1)
    net = replace(net, offset=0 * net.offset)  # they are differences of two worlds, which have it both
    straight, found = replace(net, bends=0 * net.bends), net.responses(np.arange(R, M), 20)  # products are left out
    assert found.shape == (20, R, M - R)
    for j in range(M - R):
        pulse = np.zeros((20, M - R))
        pulse[0, j] = net.scale[R + j]
        wanted = at_rest(straight).response(pulse).mean
        np.testing.assert_allclose(found[:, :, j], wanted / net.scale[:R], rtol=LONG, atol=EXACT)
    shaken = np.zeros((net.memory, M))
    shaken[-1, 1] = 1.0  # a number that stood one higher in the last row
    wanted = world(straight, 0, shaken, np.zeros((20, M - R)))
    np.testing.assert_allclose(net.responses(np.array([1]), 20)[..., 0], wanted, rtol=LONG, atol=EXACT)


def test_a_cut_coupling_is_a_network_without_its_weights():
    net = network(False)
    without = net.linear.copy()
    for column in np.flatnonzero(net.owner == 2):
        without[:, :, column, :2] = 0.0  # c no longer acts on the two numbers of a
    wanted = replace(net, linear=without).responses(np.arange(M), 20)
    np.testing.assert_array_equal(net.responses(np.arange(M), 20, cut=(0, 2)), wanted)
    assert np.abs(wanted - net.responses(np.arange(M), 20)).max() > 1e-3


# ---- growth


def radius(linear, spans):
    """Spectral radius of the companion matrix of weights (b, m, r)."""
    r, p = linear.shape[2], int(spans[-1, 1])
    companion = np.zeros((p * r, p * r))
    for (first, last), weights in zip(spans, linear[:, :r], strict=True):
        for lag in range(first, last + 1):
            companion[:r, (lag - 1) * r : lag * r] += weights.T / (last - first + 1)
    companion[r:, :-r] = np.eye((p - 1) * r)
    return float(np.abs(np.linalg.eigvals(companion)).max())


def wild(seed, size):
    rng = np.random.default_rng(seed)
    spans = SPANS[: 3 + seed % 8]
    return size * rng.standard_normal((len(spans), R + 2, R)) * (rng.random((len(spans), R + 2, R)) < 0.4), spans


@pytest.mark.parametrize("size", [0.3, 1.0, 5.0])
@pytest.mark.parametrize("seed", range(8))
def test_damping_leaves_no_growth(seed, size):
    linear, spans = wild(seed, size)
    factors = damping(linear, spans, 0.9999)
    found = linear * factors[:, :, None]
    assert radius(found, spans) <= 1.0005  # growth is seen in some thousand rows, which is not to the last digit
    if radius(linear, spans) <= 0.999:
        assert (factors == 1).all()
    elif radius(linear, spans) > 1.001:
        assert (factors < 1).all()
    assert ((found != 0) == (linear != 0)).all()  # which couplings there are, is left alone


@pytest.mark.parametrize("seed", range(8))
def test_growth_is_the_spectral_radius(seed):
    linear, spans = wild(seed, 0.3)
    assert growth(linear, spans) == pytest.approx(radius(linear, spans), rel=0.02)


@pytest.mark.parametrize("decay", [0.0, 0.2, 0.7, 0.9, 0.99])
def test_what_decays_is_left_alone_however_fast(decay):
    """After a hundred rows, all that is left of it may be rounding, which does not decay."""
    linear = np.zeros((len(SPANS), 3, 3))
    linear[0] = [[decay, 0.5, 0.0], [0.0, 0.6, 0.0], [0.0, 0.0, 0.5]]
    linear[1, 1, 2] = 0.6
    assert (damping(linear, SPANS, 0.9999) == 1).all()
    assert growth(linear, SPANS) < 1


@pytest.mark.parametrize("slow", [(0.999, 0.998), (0.999, 0.999), (0.9995, 0.9)])
def test_slow_tanks_in_a_row_keep_their_time_constants(slow):
    """The second one moves further and further away for a thousand rows, and comes back then."""
    linear = np.zeros((len(SPANS), 2, 2))
    linear[0] = [[slow[0], 0.01], [0.0, slow[1]]]
    assert (damping(linear, SPANS, 0.9999) == 1).all()


# ---- the linear part as a system


def markov(system, net, rows):
    """(rows, r, U + r): standardised responses of a system to inputs and to innovations."""
    r = net.size
    x, out = np.hstack([system.B, system.K]) * np.concatenate([net.scale[r:], net.scale[:r]]), []
    for _ in range(rows):
        out.append((system.C @ x) / net.scale[:r, None])
        x = system.A @ x
    return np.array(out)


def responses_of(net, rows):
    """The same, of a network's mean weights."""
    return net.responses(np.concatenate([np.arange(net.size, len(net.owner)), np.arange(net.size)]), rows)


def test_a_network_of_few_states_is_realised_exactly():
    """One lag: the numbers themselves are states."""
    net = network(False, spans=SPANS[:1])
    system = realised(net)
    assert len(system.A) <= R
    np.testing.assert_allclose(markov(system, net, 40), responses_of(net, 40), atol=ITERATIVE)
    np.testing.assert_allclose(system.noise, net.scale[:R, None] * net.noise * net.scale[:R], rtol=EXACT)


@pytest.mark.parametrize("seed", range(3))
def test_the_network_of_a_plain_plant_is_realised_closely(seed):
    plant = cf.random_plant(units=["a", "b"], states=2, outputs=4, inputs=1, rng=seed)
    net = cf.fit(plant.simulate(1000, rng=seed), rank=2, same_row=False).couplings.network
    system = realised(net)
    assert float(np.abs(np.linalg.eigvals(system.A)).max()) < 1
    wanted, found = responses_of(net, 60), markov(system, net, 60)
    assert np.linalg.norm(found - wanted) < 0.03 * np.linalg.norm(wanted)
