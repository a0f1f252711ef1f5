"""The estimator on moments: against plain sums over rows, finite differences, and simulated truth."""

from __future__ import annotations

import numpy as np
import pytest
from tolerances import STANDARD_ERRORS

import counterflow as cf
from counterflow.exchange.exchange import ExchangeUnit
from counterflow.exchange.registry import MOMENTS
from counterflow.exchange.task import LocalTask, UnitData
from counterflow.learning.impulse_basis import ImpulseBasis, basis_of, pole_bank, responses
from counterflow.learning.moments import Design
from counterflow.plant import excitation
from counterflow.protocol import Request

PLANT = cf.random_plant(units=["boiler", "turbine"], rng=1)
ROWS = 400


def design_of(plant, recording):
    task = LocalTask("moments", {unit.name: unit.inputs for unit in plant.units})
    own = [UnitData(recording[n].unit, recording[n].y, recording[n].u, plant.local(n)) for n in plant.names]
    units = [ExchangeUnit(MOMENTS, task, each).step(Request(each.unit.name)) for each in own]
    return Design(tuple(outline for _, (outline,) in units))


@pytest.fixture(scope="module")
def small():
    recording = PLANT.simulate(ROWS - 1, rng=3)
    return design_of(PLANT, recording)


def looped_states(A, B, u):
    h = np.zeros((len(u), len(A)))
    for t in range(1, len(u)):
        h[t] = A @ h[t - 1] + B @ u[t - 1]
    return h


def test_signals_are_those_of_a_plain_loop():
    rng = np.random.default_rng(0)
    u, bank = rng.normal(size=(50, 2)), rng.normal(size=(7, 3))
    found = responses(u, bank)
    for t in range(50):
        wanted = sum((np.outer(u[t - 1 - k], bank[k]) for k in range(7) if t - 1 - k >= 0), np.zeros((2, 3)))
        assert np.allclose(found[t], wanted.ravel(), atol=1e-12)


def test_a_bank_holds_what_one_unit_does_to_another_to_first_order():
    m, n = (PLANT.local(name) for name in PLANT.names)
    bank = pole_bank(m.A, n.A, 80)
    rng = np.random.default_rng(1)
    A = np.zeros((4, 4))
    A[:2, :2], A[2:, 2:] = m.A, n.A
    for direct, through in ((1.0, 0.0), (0.0, 1.0)):
        A[:2, 2:] = through * rng.normal(size=(2, 2))
        B = np.vstack([direct * rng.normal(size=(2, 2)), n.B])
        H, X = [], B
        for _ in range(80):
            H.append((X[:2]).ravel())
            X = A @ X
        H = np.array(H)
        left = H - bank @ np.linalg.lstsq(bank, H, rcond=None)[0]
        assert np.abs(left).max() < 1e-10 * np.abs(H).max()


def test_a_basis_is_orthonormal_but_for_rows_that_are_held_back():
    rng = np.random.default_rng(0)
    signals = rng.standard_t(2.5, size=(3000, 4))
    there = rng.random(3000) > 0.1
    basis = basis_of(np.hstack([signals, signals[:, :1] * 3]), there)
    assert basis.shape == (3000, 4)  # a signal twice is one
    assert not basis[~there].any()
    reach = np.linalg.norm(basis, axis=1)
    bare = np.linalg.svd(np.where(there[:, None], signals, 0.0), full_matrices=False)[0]
    assert reach.max() < 0.5 * np.linalg.norm(bare, axis=1).max()  # wild rows are held back
    free = reach < reach.max() * (1 - 1e-9)
    gram = basis[free].T @ basis[free]
    assert np.linalg.norm(gram, 2) <= 1 + 1e-9
    assert basis_of(np.zeros((10, 2)), np.ones(10, bool)).shape == (10, 0)


def test_predicted_moments_are_projections_of_the_noise_free_states(small):
    design = small
    h = looped_states(PLANT.A, PLANT.B, design.u)
    wanted = [
        (basis.T @ h[:, own] @ outline.observation.T).ravel()
        for basis, own, outline in zip(design.bases, design.layout.state_slices, design.outlines, strict=True)
    ]
    found = design.predicted(PLANT.A, PLANT.B)
    # impulse responses end after half of so short a record
    assert np.allclose(found, np.concatenate(wanted), atol=1e-5 * np.abs(found).max())


def test_slopes_are_finite_differences(small):
    design = small
    x = design.parameters.pack(np.hstack([PLANT.A, PLANT.B]))
    local = np.hstack(design.local[:2])

    def at(x):
        whole = local + design.parameters.unpack(x)
        return design.predicted(whole[:, :4], whole[:, 4:])

    found = design.slopes(PLANT.A, PLANT.B)
    for k in range(len(x)):
        step = np.zeros_like(x)
        step[k] = 1e-6
        assert np.allclose(found[:, k], (at(x + step) - at(x - step)) / 2e-6, atol=1e-6 * np.abs(found).max())


def test_the_covariance_is_that_of_a_dense_sum_over_rows(small):
    from scipy.linalg import solve_discrete_lyapunov

    design = small
    A, Q, T = PLANT.A, PLANT.Q, ROWS
    sigma = solve_discrete_lyapunov(A, Q)
    powers = [np.linalg.matrix_power(A, k) for k in range(T)]
    noise = (0.3 * np.eye(2), 0.7 * np.eye(2))
    found = design.covariance(A, noise)
    sizes = [basis.shape[1] * 2 for basis in design.bases]
    dense = np.zeros((sum(sizes), sum(sizes)))
    # S (T, 2M, T, 2M) of all numbers, then projected
    C = np.zeros((4, 4))
    for own, outline in zip(design.layout.state_slices, design.outlines, strict=True):
        C[own, own] = outline.observation
    P = np.zeros((sum(sizes), T, 4))
    at = 0
    for m, basis in enumerate(design.bases):
        for k in range(basis.shape[1]):
            for a in range(2):
                P[at, :, 2 * m + a] = basis[:, k]
                at += 1
    lagged = [C @ powers[k] @ sigma @ C.T for k in range(T)]
    for lag in range(T):
        part = np.einsum("xti,ij,ytj->xy", P[:, lag:], lagged[lag], P[:, : T - lag], optimize=True)
        dense += part if lag == 0 else part + part.T
    dense += np.einsum("xti,yti->xy", P, P)
    for m, (first, size) in enumerate(zip((0, sizes[0]), sizes, strict=True)):
        dense[first : first + size, first : first + size] += np.kron(np.eye(size // 2), noise[m])
    assert np.allclose(found, dense, atol=1e-6 * np.abs(dense).max())


@pytest.mark.parametrize("pole", [0.0, 0.9])
def test_without_noise_the_truth_is_found(pole):
    quiet = PLANT.replace(Q=1e-14 * np.eye(4), R=1e-10 * np.eye(16))
    inputs = excitation.autoregressive(quiet, 3000, 4, pole=pole)
    found = cf.fit(quiet.simulate(3000, rng=4, inputs=inputs), quiet.locals(), method="moments").plant
    assert np.allclose(found.A, PLANT.A, atol=1e-4)
    assert np.allclose(found.B, PLANT.B, atol=1e-4)


def test_intervals_hold_as_often_as_they_say():
    inside = []
    for seed in range(25):
        recording = PLANT.simulate(1500, rng=seed)
        found = cf.fit(recording, PLANT.locals(), method="moments")
        errors = found.standard_errors
        for letter in "AB":
            gap, spread = getattr(found.plant, letter) - getattr(PLANT, letter), getattr(errors, letter)
            inside.append(np.abs(gap[spread > 0]) < 1.96 * spread[spread > 0])
    share = np.concatenate(inside)
    assert abs(share.mean() - 0.95) < STANDARD_ERRORS * np.sqrt(0.05 * 0.95 / len(share)) * 1.5  # entries hang together


def test_rows_that_are_missing_have_no_part():
    recording = PLANT.simulate(4000, rng=7)
    ys = {name: recording[name].y.copy() for name in PLANT.names}
    ys["boiler"][500:1700], ys["turbine"][::7, 0] = np.nan, np.nan
    gappy = cf.Recording.from_arrays({name: (y, recording[name].u) for name, y in ys.items()})
    for privacy in (None, cf.Privacy(epsilon=5.0, delta=1e-6, seed=1)):
        found = cf.fit(gappy, PLANT.locals(), method="moments", privacy=privacy)
        assert relative(found.plant) < 0.1
        spread = found.standard_errors.B
        assert (np.abs(found.plant.B - PLANT.B)[spread > 0] < 4 * spread[spread > 0]).all()


def relative(plant):
    return np.linalg.norm(plant.B - PLANT.B) / np.linalg.norm(PLANT.B - PLANT.B * (plant.B == PLANT.B))


def test_known_edges_are_respected():
    recording = PLANT.simulate(3000, rng=7)
    known = cf.fit(recording, PLANT.locals(), method="moments", edges=[("boiler", "turbine")])
    assert not known.plant.block("B", "boiler", "turbine").any()
    assert known.plant.block("B", "turbine", "boiler").any()
    assert known.graph().direct() == (("boiler", "turbine"),)


def test_no_couplings_are_no_trouble():
    alone = cf.random_plant(units=1, rng=0)
    found = cf.fit(alone.simulate(300, rng=1), alone.locals(), method="moments")
    assert np.array_equal(found.plant.B, alone.B)


def test_a_model_that_does_not_settle_is_refused_by_name():
    unstable = PLANT.replace(A=PLANT.A + np.diag([1.0, 0.0, 0.0, 0.0]))
    with pytest.raises(cf.ModelError, match=r"boiler.*release='rows'"):
        cf.fit(PLANT.simulate(300, rng=1), unstable.locals(), method="moments")


def test_inputs_that_did_not_happen_are_told_as_a_misfit() -> None:
    """A log that shows another input than the one that acted, and never moves: no crash, and a caveat."""
    plant = cf.random_plant(["a", "b"], rng=5)
    recording = plant.simulate(3000, rng=6)
    arrays = {name: (recording[name].y, recording[name].u.copy()) for name in recording.names}
    arrays["a"][1][:] = 1.0
    false = cf.Recording.from_arrays(arrays, units=recording.units)
    found = cf.fit(false, plant.locals(), method="moments")
    assert {"undetermined", "moments-misfit"} <= {caveat.code for caveat in found.caveats}


def test_functions_of_a_bank_are_those_of_their_transfer_functions():
    poles = (0.0, 0.6, 0.6, 0.9)
    F, b = ImpulseBasis(poles, 10).system
    z = np.exp(1j * np.linspace(0.1, 3.0, 20))
    found = np.stack([np.linalg.solve(each * np.eye(len(poles)) - F, b) for each in z], axis=1)
    wanted, passed = [], np.ones(len(z), complex)
    for pole in poles:
        wanted.append(np.sqrt(1 - pole**2) / (z - pole) * passed)
        passed = passed * (1 - pole * z) / (z - pole)
    assert np.allclose(found, wanted, atol=1e-10)
