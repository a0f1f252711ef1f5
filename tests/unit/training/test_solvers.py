"""Penalty, augmented Lagrangian, hybrid, FedGC: where they arrive, and that they never blow up."""

from __future__ import annotations

import numpy as np
import pytest
from equivalent_plants import permuted, transformed
from tolerances import ITERATES, ITERATIVE

import counterflow as cf
from counterflow.plant import excitation


def train(recording, models=None, **options):
    """``fit`` by the published penalty method, unless another one is asked for."""
    return cf.fit(recording, models, **{"method": "penalty", **options})


XI = (0.0, 10.0, 1e6)


@pytest.mark.parametrize("units", [2, 4, 16])
@pytest.mark.parametrize("target", ["predicted", "refined"])
@pytest.mark.parametrize("xi", [0.0, 0.1, 10.0, 1e6])
def test_conjugate_arrives_in_a_dozen_rounds(units, target, xi):
    plant = cf.random_plant(units=units, rng=units)
    found = train(plant.simulate(1500, rng=7), plant.locals(), xi=xi, target=target)
    assert found.status.converged
    assert found.traffic.rounds <= (10 if target == "predicted" else 12)


@pytest.mark.parametrize("target", ["predicted", "refined"])
@pytest.mark.parametrize(
    ("states", "outputs", "regular"),
    [(1, 3, True), (4, 2, True), (4, 1, True), (3, 2, True), (3, 3, False), (2, 8, False)],
    ids=["one state", "tall", "very tall", "less tall", "singular", "singular and wide"],
)
def test_conjugate_copes_with_odd_sizes(states, outputs, regular, target):
    """More states than outputs, one state, and an A_mm that cannot be inverted: one direction a round is enough."""
    plant = cf.random_plant(units=3, states=states, outputs=outputs, rng=4)
    if not regular:
        A = plant.A.copy()
        A[plant.state_slice("unit1"), plant.state_slice("unit1")] = np.diag([0.5, 0.0, 0.0][:states])
        plant = plant.replace(A=A)
    recording = plant.simulate(800, rng=5)
    for xi in (0.0, 10.0, 1e6):
        one = train(recording, plant.locals(), xi=xi, target=target)
        assert one.status.converged, xi
        assert one.status.gradient <= ITERATIVE
        other = train(recording, plant.locals(), xi=xi, target=target, compress=False)
        np.testing.assert_allclose(one.plant.B, other.plant.B, atol=1e-6 * np.abs(plant.B).max())
    assert train(recording, plant.locals(), method="fedgc").status.converged


def test_conjugate_learns_anew_what_rounding_has_spoilt():
    """Large means, little noise and a large weight: the last direction is known to no digit."""
    plant = cf.random_plant(inputs=1, measurement_noise=0.01, rng=3)
    A = np.where(np.kron(np.eye(2), np.ones((2, 2))) > 0, plant.A, 0.0)
    plant = plant.replace(A=A)
    inputs = {n: u + 10.0 for n, u in excitation.autoregressive(plant, 5000, 103, pole=0.0).items()}
    recording = plant.simulate(5000, rng=103, inputs=inputs)
    for xi in (100.0, 1e4, 1e6):
        found = train(recording, plant.locals(), xi=xi)
        assert found.status.converged, xi


@pytest.mark.parametrize("target", ["predicted", "refined"])
def test_gradient_and_conjugate_meet_at_the_same_point(target):
    plant = cf.random_plant(units=2, outputs=2, rng=6)  # one whose condition lets gradient steps arrive
    recording = plant.simulate(400, rng=4)
    one = train(recording, plant.locals(), xi=1.0, tol=1e-11, target=target)
    two = train(recording, plant.locals(), xi=1.0, solver="gradient", rounds=20_000, tol=1e-12, target=target)
    assert two.status.converged
    assert np.abs(one.plant.A - two.plant.A).max() < 1e-7
    assert np.abs(one.plant.B - two.plant.B).max() < 1e-7
    for name in plant.names:
        assert np.abs(one.parts[name].theta - two.parts[name].theta).max() < 1e-7


def badly_scaled(plant, recording):
    """The same plant in hostile engineering units: channels from 1e-4 to 1e4, states in another basis."""
    scales = np.logspace(-4, 4, plant.C.shape[0])
    basis = {n: np.diag(np.logspace(-1, 2, plant.local(n).states)) for n in plant.names}
    other = transformed(plant, basis).replace(
        C=scales[:, None] * transformed(plant, basis).C, R=plant.R * np.outer(scales, scales)
    )
    rows = {n: (recording[n].y * scales[plant.output_slice(n)], recording[n].u) for n in plant.names}
    return other, cf.Recording.from_arrays(rows, units=other.units)


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "badly scaled"])
@pytest.mark.parametrize("kind", [{}, {"gradients": "algorithm-1"}, {"target": "refined"}], ids=str)
@pytest.mark.parametrize("xi", XI)
def test_derived_steps_never_diverge(xi, kind, scaled):
    plant = cf.random_plant(units=3, outputs=3, rng=1)
    recording = plant.simulate(300, rng=2, inputs=excitation.white(plant, 300, 2, mean=5.0))
    if scaled:
        plant, recording = badly_scaled(plant, recording)
    found = train(recording, plant.locals(), solver="gradient", xi=xi, rounds=400, initial_scale=1, **kind)
    losses = found.history.server_loss + sum(found.history.client_loss.values())
    assert np.isfinite(losses).all()
    if "gradients" not in kind:  # a true descent: the combined loss may not rise, beyond rounding
        assert (np.diff(losses) <= 1e-12 * losses[:-1]).all()
    assert losses[-1] <= losses[0]


@pytest.mark.parametrize("scaled", [False, True], ids=["plain", "badly scaled"])
@pytest.mark.parametrize("target", ["predicted", "refined"])
@pytest.mark.parametrize("rho", [1e-3, 1.0, 1e6])
def test_the_lagrangian_with_derived_steps_never_diverges(rho, target, scaled):
    plant = cf.random_plant(units=3, outputs=3, rng=1)
    recording = plant.simulate(300, rng=2, inputs=excitation.white(plant, 300, 2, mean=5.0))
    if scaled:
        plant, recording = badly_scaled(plant, recording)
    found = train(recording, plant.locals(), method="lagrangian", rho=rho, rounds=1500, initial_scale=1, target=target)
    history = found.history
    total = history.residual_loss + sum(history.client_loss.values())
    assert np.isfinite(total).all()
    assert total[-1] <= total[0]
    if target == "predicted":  # a refined target may trade the server's residual for the units' own
        assert history.residual_loss[-1] <= history.residual_loss[0]
    assert history.disentanglement[-1] <= history.disentanglement[0]


def test_the_lagrangian_enforces_the_constraint_that_the_penalty_only_weighs():
    plant = cf.random_plant(units=2, rng=1)
    recording = plant.simulate(1000, rng=2)
    al = train(recording, plant.locals(), method="lagrangian", rho=10.0, rounds=3000)
    pm = train(recording, plant.locals(), xi=10.0)
    assert al.history.disentanglement[-1] < 1e-3 * pm.history.disentanglement[-1]


def test_the_hybrid_ends_where_the_penalty_method_ends():
    plant = cf.random_plant(units=2, rng=1)
    recording = plant.simulate(600, rng=2)
    hybrid = train(recording, plant.locals(), method="hybrid", xi=3.0, warm_rounds=50, solver="conjugate", tol=1e-10)
    penalty = train(recording, plant.locals(), xi=3.0, tol=1e-10)
    assert hybrid.history.phase[0] == "lagrangian"
    assert hybrid.history.phase[-1] == "penalty"
    assert hybrid.history.phase.count("lagrangian") == 50
    assert np.abs(hybrid.plant.A - penalty.plant.A).max() < 1e-7
    assert np.abs(hybrid.plant.B - penalty.plant.B).max() < 1e-7


def test_fedgc_knows_no_inputs():
    plant = cf.random_plant(units=3, rng=1)
    recording = plant.simulate(800, rng=2)
    found = train(recording, plant.locals(), method="fedgc")
    assert found.plant.B.shape == plant.B.shape
    silent = cf.Recording.from_arrays(
        {n: (recording[n].y, np.zeros((recording.rows, 0))) for n in plant.names},
        units=[cf.Unit(u.name, u.states, 0, u.outputs) for u in plant.units],
    )
    models = {n: cf.LocalModel(A=m.A, B=m.B[:, :0], C=m.C, Q=m.Q, R=m.R) for n, m in plant.locals().items()}
    again = train(silent, models, method="fedgc")
    assert np.array_equal(again.plant.A, found.plant.A)


def test_a_round_in_one_process_gives_the_same_iterates_as_the_arrays():
    plant = cf.random_plant(units=3, outputs=5, rng=8)
    recording = plant.simulate(700, rng=9, inputs=excitation.white(plant, 700, 9, mean=3.0))
    for options in (
        dict(solver="gradient", rounds=300, xi=5.0),
        dict(method="lagrangian", rounds=300, rho=5.0),
        dict(solver="conjugate", xi=5.0),
    ):
        options = {"tol": 1e-9, **options}
        small, large = (train(recording, plant.locals(), compress=c, **options) for c in (True, False))
        assert small.traffic == large.traffic
        assert np.abs(small.plant.A - large.plant.A).max() <= ITERATES * np.abs(large.plant.A).max()
        assert np.abs(small.plant.B - large.plant.B).max() <= ITERATES * np.abs(large.plant.B).max()
        for name in plant.names:
            theta = large.parts[name].theta
            assert np.abs(small.parts[name].theta - theta).max() <= ITERATES * np.abs(theta).max()
            assert np.allclose(
                small.history.client_loss[name], large.history.client_loss[name], rtol=ITERATES, atol=0.0
            )


def test_permuting_units_permutes_blocks():
    plant = cf.random_plant(units=["a", "b", "c"], rng=1)
    order = ["c", "a", "b"]
    other = permuted(plant, order)
    for options in (dict(solver="gradient", rounds=50), dict(method="lagrangian", rounds=50), dict(tol=1e-10)):
        one = train(plant.simulate(300, rng=5), plant.locals(), seed=4, **options)
        two = train(other.simulate(300, rng=5), other.locals(), seed=4, **options)
        for effect in order:
            for cause in order:
                for letter in "AB":
                    gap = one.plant.block(letter, effect, cause) - two.plant.block(letter, effect, cause)
                    assert np.abs(gap).max() < 1e-8


def test_zero_coupling_leaves_the_units_alone():
    plant = cf.random_plant(units=2, coupling=0.0, rng=1)
    recording = plant.simulate(20_000, rng=2)
    found = train(recording, plant.locals(), xi=0.1)
    rows = plant.state_slice(plant.names[0])
    columns = plant.state_slice(plant.names[1])
    assert np.abs(found.plant.A[rows, columns]).max() < 0.02
    for name in plant.names:
        ratio = found.history.client_loss[name][-1] / found.history.proprietary_loss[name][-1]
        assert 0.99 < ratio <= 1.0 + 1e-12


def test_a_change_of_state_basis_changes_no_prediction():
    """The published loss weighs states by |.|², so it is unchanged by an orthogonal change of basis only."""
    plant = cf.random_plant(units=2, rng=1)
    turn = np.array([[0.6, -0.8], [0.8, 0.6]])
    other = transformed(plant, dict.fromkeys(plant.names, turn))
    recording = plant.simulate(500, rng=2)
    one = train(recording, plant.locals(), xi=2.0, tol=1e-10)
    two = train(recording, other.locals(), xi=2.0, tol=1e-10)
    new = plant.simulate(200, rng=3)
    for model, units in one.validate(new).errors.items():
        for name, series in units.items():
            assert np.allclose(series, two.validate(new).errors[model][name], rtol=1e-7, atol=1e-9)
