"""What must hold for every plant: equivariance under order and basis, the recurrence for every matrix."""

import numpy as np
from equivalent_plants import permuted, transformed
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tolerances import EXACT, ITERATIVE, LONG

from counterflow.plant import random_plant
from counterflow.plant.transfer import transmission_zeros
from counterflow.recurrence import linear_recurrence

seeds = st.integers(0, 2**32 - 1)
plants = st.builds(
    random_plant,
    units=st.integers(1, 4),
    states=st.integers(1, 4),
    inputs=st.integers(0, 3),
    outputs=st.integers(1, 5),
    coupling=st.floats(0, 2),
    topology=st.sampled_from(["dense", "chain", "sparse"]),
    rng=seeds,
    spectral_radius=st.none() | st.floats(0.1, 1.02),
)


@settings(max_examples=80, deadline=None)
@given(
    P=st.integers(1, 30) | st.just(100),
    n=st.integers(0, 400) | st.sampled_from([31, 32, 33, 1001]),
    radius=st.sampled_from([0.0, 0.1, 0.9, 0.999, 1.0, 1.01, 1.1, 3.0]),
    skew=st.sampled_from([0.0, 1.0, 30.0]),
    seed=seeds,
)
def test_recurrence_equals_the_loop(P, n, radius, skew, seed):
    assume(radius < 2 or n <= 400)  # what overflows is looked at elsewhere
    rng = np.random.default_rng(seed)
    F = rng.normal(size=(P, P)) + skew * np.triu(rng.normal(size=(P, P)), 1)
    F *= radius / np.abs(np.linalg.eigvals(F)).max()
    f, x = rng.normal(size=(n, P)) * 10.0 ** rng.integers(-3, 4), rng.normal(size=P)
    got = linear_recurrence(F, f, x)
    largest = np.abs(x).max()
    # rounding of the loop itself grows with the norm of F, so that is the yardstick of what "equal" can mean
    allowed = EXACT * max(1.0, np.abs(F).sum(axis=1).max())
    for k in range(n):
        x = F @ x + f[k]
        largest = max(largest, np.abs(x).max())
        assert np.abs(got[k] - x).max() <= allowed * largest


@settings(max_examples=30, deadline=None)
@given(plant=plants, seed=seeds, data=st.data(), steps=st.integers(1, 80))
def test_order_of_units_does_not_matter(plant, seed, data, steps):
    names = data.draw(st.permutations(plant.names))
    other = permuted(plant, names)
    one, two = plant.simulate(steps, rng=seed), other.simulate(steps, rng=seed)
    for name in names:
        np.testing.assert_array_equal(one[name].u, two[name].u)
        scale = max(np.abs(part.y).max() for part in one.values())
        np.testing.assert_allclose(one[name].y, two[name].y, rtol=0, atol=EXACT * max(1.0, scale))
        for letter in "ABCQR":
            np.testing.assert_array_equal(plant.block(letter, name), other.block(letter, name))
    still = [p.replace(A=np.zeros_like(p.A), B=np.zeros_like(p.B)).simulate(steps, rng=seed) for p in (plant, other)]
    for name in names:  # the noise itself is the same to the last bit
        np.testing.assert_array_equal(still[0][name].y, still[1][name].y)


@settings(max_examples=30, deadline=None)
@given(plant=plants, seed=seeds)
def test_basis_of_the_states_does_not_matter(plant, seed):
    rng = np.random.default_rng(seed)
    bases = {}
    for unit in plant.units:
        left, right = (np.linalg.qr(rng.normal(size=(unit.states, unit.states)))[0] for _ in range(2))
        bases[unit.name] = left @ np.diag(rng.uniform(0.5, 2.0, unit.states)) @ right
    other = transformed(plant, bases)
    w = [0.05, 0.7, 2.0]
    expected = plant.frequency_response(w)
    scale = max(1.0, np.abs(expected).max(initial=0.0)) ** 2
    np.testing.assert_allclose(other.frequency_response(w), expected, rtol=0, atol=LONG * scale)
    np.testing.assert_allclose(other.impulse_response(10), plant.impulse_response(10), rtol=0, atol=LONG * scale)
    quiet = [p.replace(Q=np.zeros_like(p.Q)).simulate(50, rng=seed) for p in (plant, other)]
    for name in plant.names:
        size = max(1.0, np.abs(quiet[0][name].y).max())
        np.testing.assert_allclose(quiet[0][name].y, quiet[1][name].y, rtol=0, atol=LONG * size)


@settings(max_examples=40, deadline=None)
@given(seed=seeds, states=st.integers(1, 6), width=st.integers(1, 4))
def test_zeros_are_where_the_pencil_loses_rank(seed, states, width):
    rng = np.random.default_rng(seed)
    A, B, C = rng.normal(size=(states, states)), rng.normal(size=(states, width)), rng.normal(size=(width, states))
    for zero in transmission_zeros(A, B, C):
        pencil = np.block([[A - zero * np.eye(states), B], [C, np.zeros((width, width))]])
        sizes = np.linalg.svd(pencil, compute_uv=False)
        assert sizes[-1] <= ITERATIVE * sizes[0]
