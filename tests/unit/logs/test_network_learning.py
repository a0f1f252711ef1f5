"""Learning a network: true couplings and products are found, others are not, and what is known is obeyed."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache

import numpy as np
import pytest
from grounded_networks import grounded
from tolerances import LONG

import counterflow as cf
from counterflow.errors import UnidentifiedError
from counterflow.learning.block_moments import Rows
from counterflow.learning.influence import network_graph
from counterflow.learning.known_edges import KnownEdges
from counterflow.learning.network_learning import REPLICATES, learn

NAMES = ("a", "b", "c")
PRODUCT = (0, 1)  # of a and b, which acts on b


def simulated(rows, bend, seed, noise=0.3):
    """u -> a -> b -> c; with ``bend``, the product of a and b acts on b, too."""
    rng = np.random.default_rng(seed)
    z = np.zeros((rows, 4))  # a, b, c, u
    for t in range(2, rows):
        recent = (z[t - 1] + z[t - 2]) / 2
        e = noise * rng.standard_normal(3)
        z[t, 3] = 0.8 * z[t - 1, 3] + 0.6 * rng.standard_normal()
        z[t, 0] = 0.7 * z[t - 1, 0] + 0.5 * z[t - 1, 3] + e[0]
        z[t, 1] = 0.6 * z[t - 1, 1] + 0.5 * z[t - 1, 0] + bend * recent[0] * recent[1] + e[1]
        z[t, 2] = 0.5 * z[t - 1, 2] + 0.6 * z[t - 2, 1] + e[2]
    return Rows(NAMES, (1, 1, 1), (1, 0, 0), z)


TRUE = np.array([[1, 1, 0], [0, 1, 1], [0, 0, 1], [1, 0, 0]], bool)  # which of a, b, c, u acts on which of a, b, c


@cache
def learned(bend, seed=1, rows=1500):
    given = simulated(rows, bend, seed)
    return learn(given)


def shares(network):
    """Share of replicates in which a column acts on a number (m, r), and a product does {pair: (r,)}."""
    linear = (np.abs(network.linear).sum(axis=1) > 0).mean(axis=0)
    products = (network.bends != 0).mean(axis=0)
    return linear, {tuple(pair): share for pair, share in zip(network.pairs.tolist(), products, strict=True)}


@pytest.mark.parametrize("rows", [600, 1500])
@pytest.mark.parametrize("seed", range(3))
def test_a_product_and_the_couplings_around_it_are_found(seed, rows):
    linear, products = shares(learned(-0.2, seed, rows).network)
    assert (linear[TRUE] == 1).all()
    assert (linear[~TRUE] <= 0.5).all()
    assert products[PRODUCT][1] == 1
    for pair, share in products.items():
        share = np.delete(share, 1) if pair == PRODUCT else share
        assert (share <= 0.25).all(), pair


def test_where_too_few_rows_can_be_held_out_there_are_no_products():
    assert not learned(-0.2, 0, 300).network.curved


@pytest.mark.parametrize("rows", [400, 1500])
@pytest.mark.parametrize("seed", range(3))
def test_a_linear_network_gets_no_products(seed, rows):
    found = learned(0.0, seed, rows)
    linear, products = shares(found.network)
    assert (linear[TRUE] == 1).all()
    assert (linear[~TRUE] <= 0.5).all()
    assert all((share <= 0.1).all() for share in products.values())
    assert found.network.curved or found.words.startswith("linear: " + ("too few rows" if rows < 600 else "no product"))


def test_an_effect_depends_on_where_the_plant_stands_as_the_truth_does():
    """A faster input, from a low start and from a high one, against two simulated worlds with the same noise."""
    network = learned(-0.2).network
    for level in (-0.3, 0.8):
        truth = noise_free(level, 0.5) - noise_free(level, 0.0)
        before = np.tile(noise_free(level, 0.0)[0], (network.memory, 1))
        rest = (np.hstack([before, np.full((network.memory, 1), level)]) - network.level) / network.scale
        found = grounded(network, rest).response(np.full((15, 1), 0.5)).mean
        assert np.abs(found - truth[:15]).max() < 0.15 * np.abs(truth).max()
    low, high = (noise_free(level, 0.5)[10] - noise_free(level, 0.0)[10] for level in (-0.3, 0.8))
    assert low[1] > 1.3 * high[1]  # else there would be nothing to tell apart


def noise_free(level, more, rows=15, settle=300):
    """Numbers (rows, 3) of the curved network at rest with input ``level``, which then is ``more`` higher."""
    z = np.zeros((settle + rows, 4))
    z[:, 3] = level
    z[settle - 1 :, 3] += more
    for t in range(2, len(z)):
        recent = (z[t - 1] + z[t - 2]) / 2
        z[t, 0] = 0.7 * z[t - 1, 0] + 0.5 * z[t - 1, 3]
        z[t, 1] = 0.6 * z[t - 1, 1] + 0.5 * z[t - 1, 0] - 0.2 * recent[0] * recent[1]
        z[t, 2] = 0.5 * z[t - 1, 2] + 0.6 * z[t - 2, 1]
    return z[settle:, :3]


def test_replicates_differ_and_their_noise_is_what_was_put_in():
    network = learned(0.0).network
    assert len(network.linear) == REPLICATES
    assert (network.linear.std(axis=0).sum(axis=(0, 1)) > 0).all()
    size = np.sqrt(np.diag(network.noise)) * network.scale[:3]
    np.testing.assert_allclose(size, 0.3, rtol=0.05)  # 1,500 rows: a standard error of 2 %


def test_learning_again_gives_the_same():
    rows = simulated(400, -0.2, 5)
    one, two = (learn(rows).network for _ in range(2))
    assert all(np.array_equal(getattr(one, f.name), getattr(two, f.name)) for f in fields(one))


@pytest.mark.parametrize("each", [50, 30])
def test_a_record_full_of_gaps_keeps_its_couplings(each):
    rows = simulated(600, 0.0, 3)
    z = rows.z.copy()
    for k in range(0, 600, each):
        z[k : k + 5, 1] = np.nan
    found = learn(replace(rows, z=z))
    assert found.network.memory == learn(rows).network.memory
    linear, _ = shares(found.network)
    assert (linear[TRUE] == 1).all()


def test_units_that_were_never_measured_together_are_refused():
    rows = simulated(600, 0.0, 3)
    z = rows.z.copy()
    z[:300, 0] = np.nan
    z[300:, 2] = np.nan
    with pytest.raises(UnidentifiedError, match=r"'a' and 'c'.*common period"):
        learn(replace(rows, z=z))


# ---- known couplings


@pytest.mark.parametrize(
    "known", [KnownEdges(edges=(("a", "b"),)), KnownEdges(forbidden=(("a", "b"), ("c", "a"))), KnownEdges(edges=())]
)
def test_what_is_ruled_out_has_no_weight_in_any_replicate(known):
    rows = simulated(800, -0.2, 4)
    network = learn(rows, known).network
    owner = network.owner
    for cause, effect in [(c, e) for c in NAMES for e in NAMES if not known.allows(c, e)]:
        n, m = NAMES.index(cause), NAMES.index(effect)
        assert not network.linear[:, :, owner == n][..., owner[:3] == m].any()
        touching = (owner[network.pairs] == n).any(axis=1)
        assert not network.bends[:, touching][..., owner[:3] == m].any()
        edge = network_graph(network).edge(cause, effect)
        assert (edge.possible, edge.direct, edge.q_value, edge.direct_strength) == (False, False, 1.0, 0.0)
    assert network.known == known
    if known.allows("a", "b"):
        assert network_graph(network).edge("a", "b").direct


@pytest.mark.parametrize(
    "options", [{"edges": [("a", "b"), ("b", "c")]}, {"forbidden": [("b", "a"), ("c", "b"), ("c", "a")]}]
)
def test_effects_of_a_fit_go_along_what_can_be(options):
    plant = cf.random_plant(units=NAMES, states=1, outputs=3, inputs=1, rng=6)  # every unit acts on every other
    recording = plant.simulate(600, rng=7)
    found = cf.fit(recording, **options)
    for cause, effect in (("b", "a"), ("c", "b"), ("c", "a")):
        answer = found.effect(cause, effect, [1.0], horizon=20)
        assert not answer.mean.any()
        past = found.counterfactual(recording, add={cause: {"u1": 1.0}}, start=100, stop=140)[effect]
        np.testing.assert_allclose(past.mean, past.factual, rtol=LONG, atol=LONG)
        assert not found.graph().edge(cause, effect).direct
        assert not found.graph().edge(cause, effect).reaches
    for cause, effect in (("a", "b"), ("b", "c"), ("a", "c")):
        assert np.abs(found.effect(cause, effect, [1.0], horizon=20).mean).max() > 0.01
    assert found.graph().edge("a", "c").possible == ("forbidden" in options)


# ---- the graph


def test_the_graph_of_a_chain_is_the_chain():
    """Four units whose numbers carry no noise of their own: what comes by way of others is not called direct."""
    rng = np.random.default_rng(8)
    names = ("a", "b", "c", "d")
    chain = {("a", "b"), ("b", "c"), ("c", "d")}
    for _ in range(4):
        s, u = np.zeros((1200, 4)), rng.standard_normal((1200, 4))
        for t in range(1, len(s)):
            s[t] = 0.7 * s[t - 1] + 0.5 * u[t - 1] + 0.3 * rng.standard_normal(4)
            s[t, 1:] += 0.5 * s[t - 1, :-1]
        rows = Rows(names, (1,) * 4, (1,) * 4, np.hstack([s, u]))
        graph = network_graph(learn(rows).network)
        assert set(graph.direct()) == chain
        for edge in graph:
            downstream = names.index(edge.cause) < names.index(edge.effect)
            assert edge.reaches == downstream
            assert type(edge.direct) is bool
            assert (edge.total_strength > 0.1) == downstream
            low, high = edge.direct_interval
            assert low <= edge.direct_strength <= high


def test_the_graph_of_a_noisy_chain_has_the_chain():
    """Measurement noise leaves traces of units further up, so that a unit two up may be called direct, seldom more."""
    names, false = ("a", "b", "c", "d"), []
    chain = {("a", "b"), ("b", "c"), ("c", "d")}
    for seed in range(3):
        plant = cf.random_plant(units=names, states=1, outputs=3, inputs=1, topology="chain", rng=seed)
        direct = set(cf.fit(plant.simulate(1500, rng=seed + 50)).graph().direct())
        assert chain <= direct
        false += [names.index(effect) - names.index(cause) for cause, effect in direct - chain]
    assert len(false) <= 3
    assert all(step == 2 for step in false)


# ---- a fit, always


@pytest.mark.parametrize("rows", [70, 150])
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (4, 2)])
def test_every_fit_has_intervals_and_a_graph(rows, outputs, inputs):
    plant = cf.random_plant(units=["a", "b"], states=1, outputs=outputs, inputs=inputs, rng=3)
    recording = plant.simulate(rows, rng=4)
    found = cf.fit(recording)
    assert found.status.converged
    assert len(found.graph().edges) == 2
    answer = found.effect("a", "b", [1.0] * inputs, horizon=10)
    assert np.isfinite([answer.lower, answer.mean, answer.upper]).all()
    assert (answer.lower <= answer.mean).all()
    assert (answer.mean <= answer.upper).all()
    past = found.counterfactual(recording, add={"a": {"u1": 1.0}}, start=10, stop=30)["b"]
    assert np.isfinite([past.lower, past.upper]).all()
    ahead = found.forecast(recording, 5)["b"]
    assert np.isfinite([ahead.lower, ahead.upper]).all()


def test_units_without_any_inputs_have_a_graph_and_forecasts():
    plant = cf.random_plant(units=["a", "b"], states=2, outputs=4, inputs=0, rng=0)
    recording = plant.simulate(400, rng=1)
    found = cf.fit(recording)
    assert len(found.graph().edges) == 2
    ahead = found.forecast(recording, 5)["b"]
    assert (ahead.lower < ahead.upper).all()
    assert np.isfinite(found.attribute(recording, "b", 10, 20).baseline).all()
