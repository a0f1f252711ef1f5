"""Subspace identification against explicit Hankel matrices, known systems and hostile records; and the paper's own
route: one model of all raw data, divided among the units.
"""

from __future__ import annotations

import numpy as np
import pytest
from subspace_oracle import canonical_variates, distance, random_system, response, simulate
from tolerances import EXACT, ITERATIVE, STANDARD_ERRORS

from counterflow.errors import DataError, OptionError
from counterflow.identification import stretches
from counterflow.learning.system import STABLE, shrink
from counterflow.paper.subspace import assign_states, order_from_singular_values, pooled_model, subspace, subspaces
from counterflow.plant import Recording, random_plant


def transfer(model):
    return response(model.A, model.B, model.C)


def radius(A):
    return np.abs(np.linalg.eigvals(A)).max()


@pytest.mark.parametrize(("n", "r", "U", "past", "future"), [(3, 2, 1, 4, 4), (4, 1, 2, 8, 6), (2, 3, 0, 3, 2)])
def test_same_model_as_explicit_canonical_variates(n, r, U, past, future):
    rng = np.random.default_rng(n)
    y, u = simulate(rng, *random_system(rng, n, r, U), 800)
    A, B, C, K, Omega, correlations = canonical_variates(y, u, n, past, future)
    model, smaller = subspaces(y, u, [n, 1], past=past, future=future)
    assert smaller.order == 1  # orders from one Gram matrix are those of separate runs
    alone = subspace(y, u, 1, past=past, future=future)
    np.testing.assert_allclose(transfer(smaller), transfer(alone), rtol=EXACT)
    assert model.B.shape == (n, U)
    np.testing.assert_allclose(model.singular_values, correlations[: len(model.singular_values)], atol=ITERATIVE)
    assert (
        distance(response(model.A, np.hstack([model.B, model.K]), model.C), response(A, np.hstack([B, K]), C))
        < ITERATIVE
    )
    np.testing.assert_allclose(model.innovation, Omega, rtol=ITERATIVE, atol=ITERATIVE)


@pytest.mark.parametrize(("n", "r", "U", "gain"), [(1, 1, 1, 0.9), (8, 16, 4, 0.95), (6, 3, 2, 0.99), (4, 1, 1, 0.5)])
def test_noise_free_systems_are_recovered_exactly(n, r, U, gain):
    rng = np.random.default_rng(10 * n + r)
    system = random_system(rng, n, r, U, gain)
    y, u = simulate(rng, *system, 1200, process=0.0, measurement=0.0)
    model = subspace(y, u, n)
    assert distance(transfer(model), response(*system)) < ITERATIVE
    assert model.singular_values[n - 1] > 0.5
    assert len(model.singular_values) == n  # no direction is left once the state is known
    assert subspace(y, u).order == n
    np.testing.assert_allclose(
        np.sort_complex(np.linalg.eigvals(model.A)), np.sort_complex(np.linalg.eigvals(system[0])), atol=1e-6
    )


def test_errors_fall_like_the_root_of_the_rows():
    ratios = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        system = random_system(rng, 3, 4, 2)
        y, u = simulate(rng, *system, 16_000)
        true = response(*system)
        short, long = (distance(transfer(subspace(y[:rows], u[:rows], 3, past=6)), true) for rows in (1000, 16_000))
        ratios.append(np.log(short / long))
    mean, error = np.mean(ratios), np.std(ratios, ddof=1) / np.sqrt(len(ratios))
    assert abs(mean - np.log(4)) < STANDARD_ERRORS * error
    assert error < 0.2


@pytest.mark.parametrize("scale", [1.0, 1e-8, 1e8])
def test_mixing_and_scaling_channels_changes_nothing_else(scale):
    rng = np.random.default_rng(5)
    y, u = simulate(rng, *random_system(rng, 3, 3, 2), 1500)
    T = scale * (np.eye(3) + 0.4 * rng.normal(size=(3, 3)))
    S = np.diag([1e8, 1e-8])
    plain, mixed = subspace(y, u, 3, past=5), subspace(y @ T.T, u @ S, 3, past=5)
    np.testing.assert_allclose(mixed.singular_values, plain.singular_values, atol=ITERATIVE)
    assert distance(np.linalg.solve(T, transfer(mixed)) @ S, transfer(plain)) < ITERATIVE
    np.testing.assert_allclose(mixed.innovation, T @ plain.innovation @ T.T, rtol=1e-6)
    assert distance(response(mixed.A, mixed.K @ T, mixed.C), T @ response(plain.A, plain.K, plain.C)) < ITERATIVE


def test_gaps_cost_rows_and_nothing_else():
    rng = np.random.default_rng(8)
    system = random_system(rng, 3, 4, 2)
    y, u = simulate(rng, *system, 6000)
    y[rng.choice(6000, 20, replace=False)] = np.nan
    model = subspace(y, u, 3, past=5)
    assert model.windows == sum(run.stop - run.start - 9 for run in stretches(y, 10))
    assert distance(transfer(model), response(*system)) < 0.05


def test_hostile_columns_are_survived():
    rng = np.random.default_rng(6)
    system = random_system(rng, 2, 2, 2)
    y, u = simulate(rng, *system, 1500)
    rows = len(y)
    odd_u = np.hstack([u, np.zeros((rows, 1)), np.ones((rows, 1)), u[:, :1]])
    odd_y = np.hstack([y, y[:, :1], np.zeros((rows, 1))])
    model = subspace(odd_y, odd_u, 2, past=5)
    B = np.stack([model.B[:, 0] + model.B[:, 4], model.B[:, 1]], axis=1)  # the copy shares the effect
    assert distance(response(model.A, B, model.C[:2]), response(*system)) < 0.15
    np.testing.assert_allclose(model.C[2], model.C[0], atol=1e-6)
    assert not model.C[3].any()
    assert np.linalg.eigvalsh(model.innovation)[0] > 0
    assert np.isfinite(model.B).all()


def test_a_growing_record_gives_a_stable_model_and_says_so():
    rng = np.random.default_rng(0)
    u, y = rng.normal(size=(300, 1)), np.zeros((300, 1))
    for t in range(1, 300):
        y[t] = 1.02 * y[t - 1] + u[t - 1] + 0.1 * rng.normal()
    model = subspace(y, u, 1, past=3)
    assert radius(model.A) <= STABLE + EXACT
    assert "spectral radius 1.0" in model.repaired[0]
    assert radius(model.A - model.K @ model.C) < 1


def test_shrinking_moves_only_what_is_outside():
    rng = np.random.default_rng(1)
    A = rng.normal(size=(6, 6))
    values, after = np.linalg.eigvals(A), np.linalg.eigvals(shrink(A, 0.8))
    expected = np.where(np.abs(values) > 0.8, 0.8 * values / np.abs(values), values)
    gap = np.abs(np.sort_complex(after.round(9)) - np.sort_complex(expected.round(9)))
    assert gap.max() < ITERATIVE


def test_default_past_follows_the_memory_of_the_record():
    rng = np.random.default_rng(3)
    y = rng.normal(size=(4000, 1))
    for t in range(14, 4000):
        y[t] += 0.6 * y[t - 14]
    assert 21 <= subspace(y, y[:, :0], 1).past <= 27  # beyond the first, shorter search


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (lambda y, u: (y[:20], u[:20], 2, {}), DataError, "too few"),
        (lambda y, u: (1e200 * y, u, 2, {}), DataError, "overflow"),
        (lambda y, u: (np.full_like(y, np.nan), u, 2, {}), DataError, "too few"),
        (lambda y, u: (y, u, 0, {}), OptionError, "at least 1"),
        (lambda y, u: (y, u, 1.5, {}), OptionError, "whole number"),
        (lambda y, u: (y, u, 99, {"past": 3, "future": 3}), OptionError, "between 1 and 6"),
        (lambda y, u: (y, u, 2, {"past": 0}), OptionError, "at least 1 row"),
    ],
)
def test_refusals_say_what_to_do(change, error, words):
    rng = np.random.default_rng(0)
    y, u = simulate(rng, *random_system(rng, 2, 2, 1), 300)
    y, u, order, options = change(y, u)
    with pytest.raises(error, match=words):
        subspace(y, u, order, **options)


def test_criterion_counts_what_stands_out():
    assert order_from_singular_values([0.9, 0.8, 0.7, 0.05, 0.04], rows=5000) == 3
    assert order_from_singular_values([0.03, 0.02], rows=1000) == 0
    assert order_from_singular_values(np.ones(8), rows=1200, outputs=16, inputs=4) == 8
    # a weaker one is worth its price only with more rows
    assert [order_from_singular_values([0.9, 0.1], rows, outputs=2) for rows in (1000, 10_000)] == [1, 2]


def test_order_is_right_in_most_cases():
    found = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        found.append(subspace(*simulate(rng, *random_system(rng, 4, 6, 2), 3000, process=0.5)).order)
    assert found.count(4) >= 5
    rng = np.random.default_rng(0)
    assert subspace(rng.normal(size=(2000, 3)), rng.normal(size=(2000, 2))).order == 1  # pure noise


# ---- the paper's own route


@pytest.fixture(scope="module")
def recording():
    plant = random_plant(units=["boiler", "turbine", "pump"], states=2, outputs=4, coupling=0.1, rng=3)
    return plant.simulate(6000, rng=4)


def with_y(recording, name, y):
    """The recording with other measurements of one unit."""
    data = {n: (y if n == name else recording[n].y, recording[n].u) for n in recording.names}
    return Recording.from_arrays(data)


def test_every_unit_gets_a_state_and_ties_go_to_the_first():
    energy = np.array([[3.0, 1.0, 1.0], [2.0, 2.0, 1.0], [5.0, 0.0, 4.0], [1.0, 0.0, 0.5]])
    assert assign_states(energy).tolist() == [0, 1, 2, 0]
    assert assign_states(np.ones((3, 3))).tolist() == [1, 2, 0]
    assert assign_states(np.zeros((2, 2))).tolist() == [1, 0]


def test_blocks_energy_and_refit(recording):
    model, names = pooled_model(recording), list(recording.names)
    assert list(model.owners) == sorted(model.owners, key=names.index)
    rows = np.repeat(np.arange(3), [recording[unit].y.shape[1] for unit in names])
    owner = np.array([names.index(name) for name in model.owners])
    for matrix, left in ((model.C, rows), (model.Q, owner), (model.R, rows)):
        assert not matrix[left[:, None] != (owner if matrix is model.C else left)].any()
    assert min(np.linalg.eigvalsh(model.Q)[0], np.linalg.eigvalsh(model.R)[0]) > 0
    for m, unit in enumerate(names):
        assert model.locals[unit].states == model.owners.count(unit) > 0
        np.testing.assert_array_equal(model.locals[unit].A, model.A[np.ix_(owner == m, owner == m)])
        np.testing.assert_array_equal(model.locals[unit].C, model.C[np.ix_(rows == m, owner == m)])
    # A is that of the identified model in other coordinates, because its own states obey it
    y, u = (np.hstack([getattr(recording[n], letter) for n in names]) for letter in "yu")
    source = subspace(*((x - x.mean(axis=0)) / x.std(axis=0) for x in (y, u)))
    assert radius(model.A) == pytest.approx(radius(source.A), abs=0.02)
    assert 0 < model.kept < 1


def test_uncoupled_units_keep_their_effects():
    plant = random_plant(units=["a", "b"], states=2, outputs=5, coupling=0.0, rng=1)
    record = plant.simulate(20_000, rng=2)
    model = pooled_model(record)
    assert model.owners == ("a", "a", "b", "b")
    assert model.kept > 0.9
    y, u = (np.hstack([getattr(record[n], letter) for n in plant.names]) for letter in "yu")
    unscaled = response(model.A, model.B / u.std(axis=0), y.std(axis=0)[:, None] * model.C)
    assert distance(unscaled, response(plant.A, plant.B, plant.C)) < 0.3


def test_channels_that_do_not_move_and_gaps(recording):
    y = np.column_stack([recording["pump"].y, np.full(recording.rows, 7.0)])
    y[1000:1010] = np.nan
    model = pooled_model(with_y(recording, "pump", y))
    assert not model.C[-1].any()
    assert len(model.owners) >= 3
    with pytest.raises(DataError, match="no row"):
        pooled_model(with_y(recording, "pump", np.full_like(y, np.nan)))
