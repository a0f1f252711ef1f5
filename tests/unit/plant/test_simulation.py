"""Simulation against a literal loop over the recursion, and the rules for its randomness."""

import numpy as np
import pytest
from tolerances import EXACT, LONG, STANDARD_ERRORS

from counterflow.errors import DataError, ModelError, OptionError, UnknownNameError, UnstableError
from counterflow.plant import Plant, Unit, excitation, random_plant
from counterflow.plant.simulation import simulate
from counterflow.randomness import stream


def literal(plant, steps, seed, inputs, h):
    """The recursion, written down."""

    def root(S):
        values, vectors = np.linalg.eigh(S)
        return vectors @ np.diag(np.sqrt(np.clip(values, 0, None))) @ vectors.T

    def noise(purpose, letter, rows):
        roots = {name: root(plant.block(letter, name)) for name in plant.names}
        white = (stream(seed, purpose, name).standard_normal((rows, len(S))) @ S for name, S in roots.items())
        return np.hstack(list(white))

    w, v = noise("process noise", "Q", steps), noise("measurement noise", "R", steps + 1)
    u = np.hstack([inputs[name] for name in plant.names])
    states, outputs = [h], [plant.C @ h + v[0]]
    for t in range(1, steps + 1):
        h = plant.A @ h + plant.B @ u[t - 1] + w[t - 1]
        states.append(h)
        outputs.append(plant.C @ h + v[t])
    return np.array(states), np.array(outputs)


def stacked_y(recording):
    return np.hstack([part.y for part in recording.values()])


def correlated(plant):
    rng = np.random.default_rng(5)
    Q, R = np.zeros_like(plant.Q), np.zeros_like(plant.R)
    for name in plant.names:
        s, d = plant.state_slice(name), plant.output_slice(name)
        F = rng.normal(size=(s.stop - s.start, 1))
        Q[s, s] = F @ F.T  # singular
        G = rng.normal(size=(d.stop - d.start, d.stop - d.start))
        R[d, d] = G @ G.T + 0.1 * np.eye(len(G))
    return plant.replace(Q=Q, R=R)


PLANTS = {
    "usual": lambda: random_plant(2, rng=0),
    "one unit": lambda: random_plant(1, rng=0),
    "no inputs": lambda: random_plant(2, inputs=0, rng=0),
    "some without inputs": lambda: random_plant([Unit("a", 1, 0, 1), Unit("b", 3, 2, 2)], rng=0),
    "correlated noise": lambda: correlated(random_plant(3, rng=0)),
    "near unit root": lambda: random_plant(2, rng=0, spectral_radius=0.99999),
    "unit root": lambda: random_plant(2, rng=0).replace(A=np.diag([1.0, 1.0, 0.5, 0.5])),
    "unstable": lambda: random_plant(2, rng=0, spectral_radius=1.05),
    "many units": lambda: random_plant(15, states=3, inputs=1, outputs=4, rng=0),
}


@pytest.mark.parametrize("kind", PLANTS)
@pytest.mark.parametrize("steps", [1, 2, 31, 700])
def test_against_the_literal_loop(kind, steps):
    plant = PLANTS[kind]()
    inputs = excitation.white(plant, steps, 3, mean=1000.0)
    start = np.arange(1.0, len(plant.A) + 1)
    recording, states = simulate(plant, steps, rng=9, inputs=inputs, initial_state=start)
    expected_states, expected_y = literal(plant, steps, 9, inputs, start)
    assert recording.rows == steps + 1
    for got, expected in ((states, expected_states), (stacked_y(recording), expected_y)):
        np.testing.assert_allclose(got, expected, rtol=0, atol=LONG * np.abs(expected).max())
    for name in plant.names:
        np.testing.assert_array_equal(recording[name].u, inputs[name])


def test_the_same_seed_gives_the_same_run_and_another_does_not():
    plant = random_plant(rng=0)
    assert plant.simulate(50, rng=4) == plant.simulate(50, rng=4) == plant.simulate(50, rng=np.int64(4))
    assert plant.simulate(50, rng=4) != plant.simulate(50, rng=5)
    assert plant.simulate(50) != plant.simulate(50)
    assert plant.simulate(50, rng=3) == plant.simulate(50, rng=3, inputs=excitation.white(plant, 50, 3))
    rng, same = np.random.default_rng(1), np.random.default_rng(1)
    before = np.random.get_state()[1].copy()  # noqa: NPY002 (it is left alone)
    first, second = plant.simulate(20, rng=rng), plant.simulate(20, rng=rng)
    assert first != second
    assert first == plant.simulate(20, rng=int.from_bytes(same.bytes(16), "little"))
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002


def test_inputs_and_states_as_one_array_or_by_unit():
    plant = random_plant([Unit("a", 1, 0, 1), Unit("b", 3, 2, 2)], rng=0)
    u = np.random.default_rng(0).normal(size=(21, 2))
    assert plant.simulate(20, rng=0, inputs=u) == plant.simulate(20, rng=0, inputs={"b": u})
    one = plant.simulate(20, rng=0, initial_state={"b": [1.0, 2.0, 3.0]})
    assert one == plant.simulate(20, rng=0, initial_state=[0, 1, 2, 3])


def test_twins_differ_by_the_input_alone():
    plant = random_plant(3, rng=0)
    steps, at = 300, 100
    inputs = excitation.white(plant, steps, 0)
    other = {name: u.copy() for name, u in inputs.items()}
    other["unit2"][at, 1] += 1.0
    one, two = (plant.simulate(steps, rng=7, inputs=u) for u in (inputs, other))
    k = plant.input_slice("unit2").start + 1
    effect = stacked_y(two) - stacked_y(one)
    assert not effect[: at + 1].any()  # exactly
    expected = plant.impulse_response(steps - at)[:, :, k]
    np.testing.assert_allclose(effect[at + 1 :], expected, rtol=0, atol=LONG * np.abs(stacked_y(one)).max())


def test_a_longer_run_begins_with_the_shorter():
    plant = random_plant(rng=0)
    long, short = plant.simulate(500, rng=1), plant.simulate(200, rng=1)
    for name in plant.names:
        np.testing.assert_array_equal(long[name].u[:201], short[name].u)
        np.testing.assert_allclose(long[name].y[:201], short[name].y, rtol=EXACT, atol=EXACT)


def test_zero_coupling_is_independent_plants():
    plant = random_plant(3, coupling=0, rng=0)
    together = plant.simulate(200, rng=1)
    for name in plant.names:
        own = {letter: plant.block(letter, name) for letter in "ABCQR"}
        alone = Plant(units=[plant.unit(name)], **own).simulate(200, rng=1)
        np.testing.assert_allclose(together[name].y, alone[name].y, rtol=EXACT, atol=EXACT)


def test_noise_has_the_stated_covariance():
    plant = correlated(random_plant(1, outputs=3, rng=0)).replace(A=np.zeros((2, 2)))
    n = 40_000
    recording, h = simulate(plant, n, rng=0, inputs=np.zeros((n + 1, 2)))
    for sample, covariance in ((h[1:], plant.Q), (recording["unit1"].y - h @ plant.C.T, plant.R)):
        spread = np.sqrt((np.outer(np.diag(covariance), np.diag(covariance)) + covariance**2) / len(sample))
        assert (np.abs(sample.T @ sample / len(sample) - covariance) <= STANDARD_ERRORS * spread).all()


def test_overflow_names_radius_and_row():
    plant = random_plant(rng=0, spectral_radius=10.0)
    with pytest.raises(UnstableError, match=r"row 3\d\d: the spectral radius of A is 10\b"):
        plant.simulate(1000, rng=0)


@pytest.mark.parametrize(
    ("options", "kind", "part"),
    [
        ({"steps": 0}, OptionError, "steps is 0"),
        ({"steps": 1.5}, OptionError, "steps is 1.5"),
        ({"rng": -1}, OptionError, "rng is -1"),
        ({"rng": True}, OptionError, "rng is True"),
        ({"rng": "x"}, OptionError, "rng is 'x'"),
        ({"inputs": np.zeros((10, 4))}, DataError, "(11, 4)"),
        ({"inputs": np.zeros((11, 3))}, DataError, "got (11, 3)"),
        ({"inputs": {"unit1": np.zeros((11, 2))}}, DataError, "'unit2'"),
        ({"inputs": {"unit3": np.zeros((11, 2))}}, UnknownNameError, "'unit3'"),
        ({"inputs": {"unit1": np.zeros((11, 2)), "unit2": np.zeros(11)}}, DataError, "'unit2'"),
        ({"inputs": np.full((11, 4), np.nan)}, DataError, "'unit1': u is nan in channel 'u1'"),
        ({"inputs": np.zeros((11, 4), dtype=complex)}, DataError, "complex"),
        ({"initial_state": [1, 2, 3]}, ModelError, "(4,)"),
        ({"initial_state": [1, 2, 3, np.nan]}, ModelError, "nan"),
        ({"initial_state": {"unit1": [1]}}, ModelError, "'unit1'"),
        ({"initial_state": {"unit9": [1]}}, UnknownNameError, "'unit9'"),
    ],
)
def test_bad_options(options, kind, part):
    with pytest.raises(kind) as caught:
        random_plant(rng=0).simulate(**{"steps": 10, **options})
    assert part in str(caught.value)
