"""Random plants: sizes, topologies, stability, determinism."""

import itertools

import numpy as np
import pytest
from equivalent_plants import permuted
from tolerances import EXACT

from counterflow.errors import ModelError, OptionError
from counterflow.plant import Unit, random_plant


def edges(plant, letter):
    return {
        (cause, effect)
        for cause, effect in itertools.permutations(plant.names, 2)
        if plant.block(letter, effect=effect, cause=cause).any()
    }


@pytest.mark.parametrize("topology", ["dense", "chain", "one-way", "sparse"])
@pytest.mark.parametrize("seed", range(5))
def test_stable_coupled_along_the_topology_only(topology, seed):
    plant = random_plant(5, states=3, topology=topology, rng=seed, coupling=0.7)
    names = plant.names
    assert plant.spectral_radius <= 0.95 * (1 + EXACT)
    expected = {
        "dense": set(itertools.permutations(names, 2)),
        "chain": set(itertools.pairwise(names)),
        "one-way": set(itertools.combinations(names, 2)),
        "sparse": edges(plant, "A"),
    }[topology]
    assert edges(plant, "A") == edges(plant, "B") == expected
    assert len(expected) >= 1
    for cause, effect in expected:
        block = plant.block("B", effect=effect, cause=cause)
        assert np.sqrt(np.mean(block**2)) == pytest.approx(2.1, rel=EXACT)
        assert np.abs(plant.block("A", effect=effect, cause=cause)).max() > 0.01
    for name in names:
        assert np.linalg.matrix_rank(plant.block("C", name)) == 3


def test_the_default_and_the_papers_experiment():
    plant = random_plant(rng=0)
    assert plant.names == ("unit1", "unit2")
    assert (plant.A.shape, plant.B.shape, plant.C.shape) == ((4, 4), (4, 4), (16, 4))
    np.testing.assert_array_equal(plant.Q, 0.1 * np.eye(4))
    np.testing.assert_array_equal(plant.R, np.eye(16))
    assert plant == random_plant(rng=0) != random_plant(rng=1)
    paper = random_plant(topology="one-way", rng=3)
    assert not paper.block("A", effect="unit1", cause="unit2").any()
    assert paper.block("A", effect="unit2", cause="unit1").all()
    for radius in (0.3, 0.999, 1.2):
        found = random_plant(3, rng=0, spectral_radius=radius).spectral_radius
        assert found == pytest.approx(radius, rel=1e3 * EXACT)


def test_local_moduli_and_zero_coupling():
    plant = random_plant(6, states=5, coupling=0, rng=2)
    assert edges(plant, "A") == edges(plant, "B") == set()
    for name in plant.names:
        moduli = np.abs(np.linalg.eigvals(plant.block("A", name)))
        assert moduli.min() >= 0.5 - 1e-9
        assert moduli.max() <= 0.9 + 1e-9


def test_sparse_density():
    assert len(edges(random_plant(8, topology="sparse", density=0.0, rng=0), "A")) == 1
    assert len(edges(random_plant(8, topology="sparse", density=1.0, rng=0), "A")) == 56
    assert random_plant(1, topology="sparse", rng=0).names == ("unit1",)


def test_units_in_every_form():
    assert random_plant(["a", "b", "c"], rng=0).names == ("a", "b", "c")
    units = (Unit("a", 1, ["valve"], 2), Unit("b", 4, 0, 1))
    assert random_plant(units, rng=0).units == units
    assert random_plant(1, inputs=["x"], outputs=["p", "q"], rng=0).units[0].output_names == ("p", "q")


def test_order_of_units_does_not_matter():
    plant = random_plant(["a", "b", "c"], rng=0)
    other = permuted(random_plant(["c", "a", "b"], rng=0), ["a", "b", "c"])
    np.testing.assert_allclose(plant.A, other.A, rtol=EXACT)
    np.testing.assert_array_equal(plant.B, other.B)
    np.testing.assert_array_equal(plant.C, other.C)


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"topology": "ring"}, "'dense', 'chain', 'one-way', 'sparse'"),
        ({"coupling": -0.1}, "coupling is -0.1"),
        ({"coupling": np.nan}, "coupling is nan"),
        ({"process_noise": -1}, "process_noise"),
        ({"measurement_noise": 0}, "measurement_noise"),
        ({"density": 1.5}, "density"),
        ({"spectral_radius": 0}, "spectral_radius"),
        ({"units": 0}, "units is 0"),
        ({"units": "ab"}, "units is 'ab'"),
        ({"units": 1, "topology": "one-way"}, "at least 2 units"),
        ({"units": ["a", 3]}, "name is 3"),
    ],
)
def test_bad_options(options, part):
    with pytest.raises((OptionError, ModelError)) as caught:
        random_plant(**options)
    assert part in str(caught.value)
