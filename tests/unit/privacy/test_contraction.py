"""Constants of the published privacy analysis against finite differences through the code that units and server run."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tolerances import LONG

import counterflow as cf
from counterflow.exchange.estimators import KalmanEstimator
from counterflow.exchange.method import server_step, unit_step
from counterflow.paper.augmented import AugmentedModel, ClientData
from counterflow.paper.contraction import LAGS, STARTS, estimator_responses, signal_bound
from counterflow.paper.couplings import Evidence, gradient_sensitivities
from counterflow.paper.options import TrainingOptions
from counterflow.paper.server import GradientNoise, Phase, ServerConfig, TrainingServer
from counterflow.paper.unit import MessageNoise, TrainingUnit
from counterflow.privacy import Source

SLACK = 1 + LONG


def scalar(a=0.8, b=1.0, c=1.0, q=0.1, r=1.0):
    return cf.LocalModel(A=[[a]], B=[[b]], C=[[c]], Q=[[q]], R=[[r]])


def oscillating():
    """A transient that grows before it decays, and a filter that forgets slowly."""
    A = np.array([[0.95, 2.0], [0.0, 0.9]])
    return cf.LocalModel(A=A, B=np.eye(2), C=[[1.0, 0.0], [0.5, 0.2], [0.0, 1.0]], Q=0.001 * np.eye(2), R=np.eye(3))


MODELS = {
    "scalar": scalar(),
    "slow": scalar(a=0.98, q=1e-4),
    "integrator": scalar(a=1.0, q=0.01),
    "oscillating": oscillating(),
    "random": cf.random_plant(units=1, states=3, inputs=2, outputs=5, rng=4).local("unit1"),
    "no inputs": replace(scalar(), B=np.zeros((1, 0))),
}


def message_rows(model, y, u, theta, phi):
    """ĥ_c, ĥ_a and h_a as a unit computes them."""
    estimates = KalmanEstimator(model).estimate(y, u)
    data = ClientData.from_rows(y, u, estimates)
    states = AugmentedModel(model, data).states(theta, phi)
    return data.refined, data.refined + data.previous @ theta.T, states


def jacobians(model, rows, s, theta):
    """∂ĥ_c[t-1]/∂y[s], ∂ĥ_a[t-1]/∂y[s], ∂h_a[t]/∂y[s] (T, P, D) each; everything is linear, so a step of 1 is exact."""
    nothing, u, phi = np.zeros((rows, model.n_outputs)), np.zeros((rows, model.n_inputs)), np.zeros(model.states)
    out = []
    for k in range(model.n_outputs):
        y = nothing.copy()
        y[s, k] = 1.0
        out.append(message_rows(model, y, u, theta, phi))
    return [np.stack([moved[part] for moved in out], axis=2) for part in range(3)]


def norms(matrices):
    return np.linalg.norm(matrices, 2, axis=(1, 2))


@pytest.mark.parametrize("scale", [0.0, 0.3])
@pytest.mark.parametrize("name", MODELS)
def test_no_measurement_moves_a_message_further_than_its_constants_say_and_one_does_move_it_so_far(name, scale):
    model, rows = MODELS[name], 120
    theta = scale * np.random.default_rng(7).standard_normal((model.states, model.n_outputs))
    responses = estimator_responses("boiler", KalmanEstimator(model), model, rows)
    found = responses.constants(theta, np.zeros(model.states))
    kappa = contraction = trajectory = 0.0
    for s in (0, 1, 2, 5, 20, 60):
        refined, augmented, predicted = jacobians(model, rows, s, theta)
        three = norms(refined) + norms(augmented) + norms(predicted)
        assert (three <= found.message * SLACK).all()
        joint = np.concatenate([refined, augmented, predicted], axis=1)
        assert (norms(joint) <= three * SLACK).all()
        kappa = max(kappa, three.max())
        lag = np.arange(1, rows) - s  # of h_a[t]
        bound = found.contraction * found.decay ** np.maximum(lag, 0)
        assert (norms(predicted)[lag > 0] <= bound[lag > 0] * SLACK).all()
        assert not predicted[lag <= 0].any()  # nothing moves before it is measured
        contraction = max(contraction, (norms(predicted) / bound)[lag > 0].max())
        trajectory = max(trajectory, np.linalg.norm(joint.reshape(-1, model.n_outputs), 2))
    assert kappa > 0.99 * found.message
    assert contraction > 0.99
    assert 0.99 * found.trajectory < trajectory < found.trajectory * 1.01


@pytest.mark.parametrize("name", MODELS)
def test_no_row_that_bounded_signals_allow_is_longer_than_the_clip(name):
    model, rows, R = MODELS[name], 300, 3.0
    rng = np.random.default_rng(5)
    theta = 0.2 * rng.standard_normal((model.states, model.n_outputs))
    phi = rng.standard_normal(model.states)
    found = estimator_responses("boiler", KalmanEstimator(model), model, rows).constants(theta, phi)
    longest = 0.0
    signs = [1.0, -1.0, rng.choice([-1.0, 1.0], (rows, 1)), np.sign(np.sin(np.arange(rows) / 3.0))[:, None] + 1e-9]
    for of_y in signs:
        for of_u in signs:
            y = of_y * np.ones((rows, model.n_outputs))
            u = of_u * np.ones((rows, model.n_inputs))
            y *= R / np.linalg.norm(y, axis=1, keepdims=True)
            if model.n_inputs:
                u *= R / np.linalg.norm(u, axis=1, keepdims=True)
            z = np.hstack([*message_rows(model, y, u, theta, phi), u[:-1]])
            longest = max(longest, np.linalg.norm(z, axis=1).max())
    assert longest <= found.row_bound(R) * SLACK
    if model.n_outputs == 1:  # here steady signals are the worst case, but for signs of theta and phi
        assert longest > 0.75 * found.row_bound(R)


def test_rows_long_before_the_filter_settles_are_followed_and_what_lies_beyond_the_last_lag_is_bounded():
    model = scalar(a=0.999, q=1e-9)
    rows = LAGS + 300
    responses = estimator_responses("boiler", KalmanEstimator(model), model, rows)
    assert STARTS // 2 < len(responses.gains) <= 2 * STARTS
    found = responses.constants(np.zeros((1, 1)), np.zeros(1))
    for s in (0, 37, 200):
        refined, augmented, predicted = jacobians(model, rows, s, np.zeros((1, 1)))
        assert (norms(refined) + norms(augmented) + norms(predicted) <= found.message * SLACK).all()
        lag = np.maximum(np.arange(1, rows) - s, 0)
        assert (norms(predicted) <= found.contraction * found.decay**lag * SLACK).all()
    assert found.trajectory > 5 * found.message  # the sum over t that the published analysis leaves out


class Elsewhere(KalmanEstimator):
    """A subclass: it may estimate in any way."""


def test_an_estimator_whose_constants_are_unknown_is_refused():
    model = scalar()
    with pytest.raises(cf.OptionError, match=r"'boiler' is a plug-in \(Elsewhere\)"):
        estimator_responses("boiler", Elsewhere(model), model, 50)
    blind = scalar(a=1 - 1e-9, c=0.0)
    with pytest.raises(cf.OptionError, match="'boiler' does not forget"):
        estimator_responses("boiler", KalmanEstimator(blind), blind, 50)


def test_the_bound_on_signals_is_given_or_from_limits_or_foreseen():
    plant = cf.random_plant(units=2, coupling=0.0, rng=3)
    recording = plant.simulate(5000, rng=4)
    unit, model, record = plant.units[0], plant.local("unit1"), recording["unit1"]
    foreseen = signal_bound(unit, model, record.u)
    lengths = np.linalg.norm(record.y, axis=1)
    assert lengths.max() < foreseen < 4 * lengths.max()  # others might move it, which nobody does here
    assert signal_bound(unit, model, record.u, given=2.5) == 2.5
    limited = cf.Unit("unit1", 2, 2, [cf.Channel(f"y{k}", limits=(-3.0, 4.0)) for k in range(8)])
    assert signal_bound(limited, model, record.u) == pytest.approx(np.sqrt(8) * 4)
    assert signal_bound(limited, model, 100 * record.u) == pytest.approx(100 * np.linalg.norm(record.u, axis=1).max())
    assert signal_bound(limited, model, 100 * record.u, inputs_sent=False) == pytest.approx(np.sqrt(8) * 4)
    half = cf.Unit("unit1", 2, 2, [cf.Channel("y", limits=(-3.0, np.inf)), *[cf.Channel(f"y{k}") for k in range(7)]])
    assert signal_bound(half, model, record.u) == foreseen


def test_a_model_that_does_not_settle_needs_a_bound():
    with pytest.raises(cf.OptionError, match=r"'tank'.*does not settle.*give clip"):
        signal_bound(cf.Unit("tank", 1, 1, 1), scalar(a=1.0), np.ones((5, 1)))


# ---- gradients


def gradients(plant, recording, responses, theta, couplings, *, xi, refined_gradient=False, seed=0):
    """The first round's gradients, by the real state machines with noise of zero; and what was sent."""
    names = plant.names
    noise = GradientNoise(0.0, Source(seed))
    phase = Phase("penalty", 1, (xi,) * len(names))
    options = TrainingOptions(gradients="both" if refined_gradient else "algorithm-1")
    config = ServerConfig(names, (phase,), options, noise=noise)
    coordinator, plans = TrainingServer(config).begin()
    messages = []
    for plan in plans:
        model, record = plant.local(plan.unit), recording[plan.unit]
        data = ClientData.from_rows(record.y, record.u, KalmanEstimator(model).estimate(record.y, record.u))
        state = TrainingUnit(plan.unit, AugmentedModel(model, data), theta[plan.unit], np.zeros(model.states))
        state = replace(state, noise=MessageNoise(responses[plan.unit], 1.0, 0.0, Source(seed)))
        messages += unit_step(state, plan)[1]
    for message in messages[:-1]:
        coordinator, replies = server_step(coordinator, message)
        assert not replies
    # the couplings that the server would have come to in earlier rounds
    evidence = Evidence.collect(messages)
    coordinator = replace(coordinator, evidence=evidence, A_cross=couplings[0], B_cross=couplings[1])
    coordinator, replies = server_step(coordinator, messages[-1])
    rows = {
        r.unit: np.hstack([r.predicted, r.refined]) if refined_gradient else r.predicted for r in replies[: len(names)]
    }
    return rows, gradient_sensitivities(evidence, messages, *couplings)


def largest_moves(plant, rows, theta, couplings, s=20, **kind):
    """{(m, m'): largest |∂g_m[t]/∂y_m'[s]| over t}, and Δ_grad of every unit for R_max = 1."""
    zero = {
        n: (np.zeros((rows, plant.unit(n).n_outputs)), np.zeros((rows, plant.unit(n).n_inputs))) for n in plant.names
    }

    def recording(changes):
        out = {n: (y.copy(), u) for n, (y, u) in zero.items()}
        for unit, row, channel in changes:
            out[unit][0][row, channel] = 1.0
        return cf.Recording.from_arrays(out, units=plant.units)

    models = {n: plant.local(n) for n in plant.names}
    responses = {n: estimator_responses(n, KalmanEstimator(m), m, rows) for n, m in models.items()}
    moves, delta = {}, None
    for other in plant.names:
        columns = []
        for k in range(plant.unit(other).n_outputs):
            rows_of, delta = gradients(plant, recording([(other, s, k)]), responses, theta, couplings, **kind)
            columns.append(rows_of)
        for name in plant.names:
            moves[name, other] = norms(np.stack([c[name] for c in columns], axis=2)).max()
    return moves, dict(zip(plant.names, delta, strict=True))


def parameters(plant, scale):
    rng = np.random.default_rng(11)
    theta = {n: scale * rng.standard_normal((plant.unit(n).states, plant.unit(n).n_outputs)) for n in plant.names}
    A, B = plant.A.copy(), plant.B.copy()
    for name in plant.names:
        A[plant.state_slice(name), plant.state_slice(name)] = 0.0
        B[plant.state_slice(name), plant.input_slice(name)] = 0.0
    return theta, (A, B)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_gradients_move_within_lemma_a8_where_its_hypotheses_hold(seed):
    """|C_mm| of at least 1, and states that refine no more than they predict: then it is a bound, a loose one."""
    plant = cf.random_plant(units=2, rng=seed)
    moves, delta = largest_moves(plant, 60, *parameters(plant, 0.1), xi=10.0)
    shares = {pair: move / delta[pair[0]] for pair, move in moves.items()}
    assert max(shares.values()) <= 1
    assert max(shares.values()) > 0.01


def two_tanks(a, c):
    return cf.Plant(
        units=[cf.Unit("boiler", 1, 1, 1), cf.Unit("tank", 1, 1, 1)],
        A=[[a, 0.9], [0.1, a]],
        B=[[1.0, 0.1], [0.1, 1.0]],
        C=c * np.eye(2),
        Q=np.eye(2),
        R=0.1 * c**2 * np.eye(2),
    )


def test_gap_lemma_a8_is_broken_by_a_unit_that_acts_on_another_faster_than_on_itself():
    """The proof bounds ĥ_c by the constant of h_a = A ĥ_a: a unit with small A_mm but large A_mn breaks it."""
    plant = two_tanks(a=0.05, c=1.0)
    moves, delta = largest_moves(plant, 60, *parameters(plant, 0.0), xi=10.0)
    assert moves["boiler", "tank"] > 2 * delta["boiler"]


def test_gap_lemma_a8_depends_on_units_of_measure():
    """Measured in other units (C, and with it y, R and theta scaled), the same plant breaks it: |C_mm| is no 1."""
    ratios = {}
    for c in (1.0, 1e-3):
        plant = two_tanks(a=0.8, c=c)
        theta = {n: np.full((1, 1), -0.6 / c) for n in plant.names}
        couplings = np.zeros((2, 2)), np.zeros((2, 2))
        moves, delta = largest_moves(plant, 60, theta, couplings, xi=10.0)
        ratios[c] = moves["boiler", "boiler"] / delta["boiler"]
    assert ratios[1.0] < 1
    assert ratios[1e-3] > 100


def test_gap_lemma_a8_says_nothing_of_the_gradient_of_refined_states():
    """With dL/dĥ_a in the row, the penalty decides how far it moves; Δ_grad does not know the penalty."""
    plant = cf.random_plant(units=2, rng=0)
    values = [largest_moves(plant, 60, *parameters(plant, 0.1), xi=xi, refined_gradient=True) for xi in (1.0, 100.0)]
    (weak, delta), (strong, same) = values
    assert delta == same
    assert strong["unit1", "unit1"] > 50 * weak["unit1", "unit1"]
    assert max(strong[m, n] / delta[m] for m, n in strong) > 3
