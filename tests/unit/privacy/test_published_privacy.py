"""The published methods under the paper's own privacy: mechanism, accounting, and the gaps that are reported."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from algorithm_1 import STEPS, plant_of_three
from scipy.linalg import solve_discrete_are
from tolerances import ITERATES

import counterflow as cf
from counterflow.exchange.estimators import KalmanEstimator
from counterflow.exchange.method import server_step
from counterflow.fits import engine
from counterflow.paper import server as server_published
from counterflow.paper import unit as published
from counterflow.paper.augmented import AugmentedModel, ClientData
from counterflow.paper.contraction import estimator_responses
from counterflow.paper.server import GradientNoise, Phase, ServerConfig, TrainingServer
from counterflow.paper.unit import MessageNoise, TrainingUnit
from counterflow.plant.excitation import autoregressive
from counterflow.privacy import Ledger, Source, gaussian_release, ledger_path
from counterflow.protocol import Finished, PerturbedStates, Plan, StateGradients, decode, encode
from counterflow.randomness import stream

METHODS = ("penalty", "lagrangian", "hybrid", "fedgc")


def privacy(**changes):
    return cf.Privacy(**{"epsilon": 2.0, "delta": 1e-3, "accounting": "published", "seed": 3, **changes})


def conversation(recording, models, method="penalty", **options):
    """A private fit, and all that crossed."""
    seen = []
    found = cf.fit(recording, models, method=method, watch=lambda message, up: seen.append((message, up)), **options)
    return found, seen


@pytest.fixture
def noiseless(monkeypatch):
    """The private protocol with noise of zero: everything but the noise."""
    monkeypatch.setattr("counterflow.paper.method.classical_multiplier", lambda epsilon, delta: 0.0)


def close(found, wanted, tolerance=ITERATES):
    np.testing.assert_allclose(
        found, wanted, rtol=tolerance, atol=tolerance * max(np.abs(wanted).max(initial=0), 1e-300)
    )


# ---- the mechanism, against a transcription in plain loops


def brute_responses(model, rows):
    """∂ĥ_c[t]/∂y[s] (s, t, P, D) by changing one number after the other."""
    out = np.zeros((rows, rows, model.states, model.n_outputs))
    for s in range(rows):
        for k in range(model.n_outputs):
            y = np.zeros((rows, model.n_outputs))
            y[s, k] = 1.0
            out[s, :, :, k] = KalmanEstimator(model).estimate(y, np.zeros((rows, model.n_inputs))).refined
    return out


def brute_constants(model, X, theta):
    """kappa and L for one theta, from all responses; beta as documented."""
    S = solve_discrete_are(model.A.T, model.C.T, model.Q, model.R)
    K = S @ model.C.T @ np.linalg.inv(model.C @ S @ model.C.T + model.R)
    F = (np.eye(model.states) - K @ model.C) @ model.A
    beta = (1 + np.abs(np.linalg.eigvals(F)).max()) / 2
    kappa = L = 0.0
    for s in range(len(X) - 1):
        augmented = X[s, s:-1].copy()
        augmented[0] += theta
        a, b, c = (np.linalg.norm(each, 2, axis=(1, 2)) for each in (X[s, s:-1], augmented, model.A @ augmented))
        kappa, L = max(kappa, (a + b + c).max()), max(L, (c / beta ** np.arange(1, len(c) + 1)).max())
    return kappa, L


def transcribe(plant, recording, seed, rounds, xi, mechanism, bound, both):
    """Algorithm 1 with the appendix's noise, matrices written out unit by unit; returns theta, phi, Â, B̂."""
    names, T = plant.names, recording.steps
    model = {n: plant.local(n) for n in names}
    y, u = {}, {}
    for n in names:
        for kept, rows in ((y, recording[n].y), (u, recording[n].u)):
            lengths = np.sqrt((rows**2).sum(axis=1, keepdims=True))
            kept[n] = rows * np.minimum(1.0, bound / np.maximum(lengths, 1e-300))
    refined = {n: KalmanEstimator(model[n]).estimate(y[n], u[n]).refined for n in names}
    X = {n: brute_responses(model[n], T + 1) for n in names}
    theta, phi, A, B = {}, {}, {}, {}
    for n in names:
        draw = stream(seed, "augmented", n)
        theta[n] = 0.1 * draw.standard_normal((model[n].states, model[n].n_outputs))
        phi[n] = 0.1 * draw.standard_normal(model[n].states)
        for c in names:
            if c != n:
                draw = stream(seed, "couplings", n, c)
                A[n, c] = 0.1 * draw.standard_normal((model[n].states, model[c].states))
                B[n, c] = 0.1 * draw.standard_normal((model[n].states, model[c].n_inputs))
    share = mechanism.epsilon / (2 * rounds), mechanism.delta / (2 * rounds)
    factor = np.sqrt(2 * np.log(1.25 / share[1])) / share[0]
    source = Source(mechanism.seed)
    for k in range(rounds):
        sent, h_a, L = {}, {}, {}
        for n in names:
            m = model[n]
            refined_a = refined[n][:-1] + y[n][:-1] @ theta[n].T
            h_a[n] = refined_a @ m.A.T + u[n][:-1] @ m.B.T + phi[n]
            z = np.hstack([refined[n][:-1], refined_a, h_a[n], u[n][:-1]])
            kappa, L[n] = brute_constants(m, X[n], theta[n])
            z = gaussian_release(z, kappa * bound * factor, source, n, "published message", str(k))
            P = m.states
            sent[n] = z[:, :P], z[:, P : 2 * P], z[:, 2 * P : 3 * P], z[:, 3 * P :]
        change = {}
        for n in names:
            m, others = model[n], [c for c in names if c != n]
            hat, hat_a, pred, inputs = sent[n]
            crossed = sum(sent[c][0] @ A[n, c].T for c in others)
            driven = sum(sent[c][3] @ B[n, c].T for c in others)
            r = pred - hat @ m.A.T - inputs @ m.B.T - crossed - driven
            D = (hat_a - hat) @ m.A.T - crossed
            g = np.hstack([2 / T * r, 2 * xi / T * D @ m.A]) if both else 2 / T * r
            norms = sum(
                np.linalg.norm(A[n, c], 2) + (np.linalg.norm(B[n, c], 2) if B[n, c].size else 0) for c in others
            )
            mix = max(L.values()) * (np.linalg.norm(m.C, 2) + norms)
            delta = 2 / T * (1 + np.linalg.norm(m.A, 2)) * mix * bound
            g = gaussian_release(g, delta * factor, source, n, "published gradient", str(k))
            d_h = g[:, : m.states]
            state = d_h @ m.A + (g[:, m.states :] if both else 0)
            own = -2 / T * (y[n][1:] - h_a[n] @ m.C.T)
            change[n] = (
                -STEPS["eta_1"] * (own @ m.C @ m.A).T @ y[n][:-1] - STEPS["eta_2"] * state.T @ y[n][:-1],
                -STEPS["gamma_1"] * (own @ m.C).sum(axis=0) - STEPS["gamma_2"] * d_h.sum(axis=0),
                {c: STEPS["alpha_A"] * 2 / T * (r + xi * D).T @ sent[c][0] for c in others},
                {c: STEPS["alpha_B"] * 2 / T * r.T @ sent[c][3] for c in others},
            )
        for n, (d_theta, d_phi, d_A, d_B) in change.items():
            theta[n], phi[n] = theta[n] + d_theta, phi[n] + d_phi
            for c in d_A:
                A[n, c], B[n, c] = A[n, c] + d_A[c], B[n, c] + d_B[c]
    return theta, phi, A, B


@pytest.mark.parametrize("gradients", ["both", "algorithm-1"])
def test_rounds_equal_a_transcription_of_the_appendix(gradients):
    plant = plant_of_three()
    recording = plant.simulate(40, rng=3)
    mechanism = privacy(clip=8.0)
    wanted = transcribe(plant, recording, 11, 4, 2.0, mechanism, 8.0, gradients == "both")
    found = cf.fit(
        recording, plant.locals(), method="penalty", xi=2.0, rounds=4, seed=11, gradients=gradients, privacy=mechanism,
        **STEPS,
    )  # fmt: skip
    assert found.traffic.rounds == 4
    assert any(unit.clipped > 0 for unit in found.privacy.units.values())  # the bound on signals is put to the test
    theta, phi, A, B = wanted
    for name in plant.names:
        close(found.parts[name].theta, theta[name])
        close(found.parts[name].phi, phi[name])
        for other in plant.names:
            if other != name:
                close(found.plant.block("A", name, other), A[name, other])
                close(found.plant.block("B", name, other), B[name, other])


@pytest.mark.parametrize("method", METHODS)
def test_without_its_noise_a_private_training_is_the_published_one(method, noiseless):
    """Also the augmented Lagrangian and its multipliers, with D from ĥ_a itself; nothing is cut needlessly."""
    plant = plant_of_three()
    recording = plant.simulate(200, rng=3)
    longest = max(np.linalg.norm(recording[n].y, axis=1).max() for n in plant.names)
    rounds = {"rounds": 6, **({"warm_rounds": 5} if method == "hybrid" else {})}
    found = cf.fit(recording, plant.locals(), method=method, privacy=privacy(clip=2 * longest), **rounds)
    open_ = cf.fit(recording, plant.locals(), method=method, solver="gradient", compress=False, tol=0.0, **rounds)
    assert found.traffic.rounds == open_.traffic.rounds
    close(found.plant.A, open_.plant.A)
    close(found.plant.B, open_.plant.B)
    for name in plant.names:
        close(found.parts[name].theta, open_.parts[name].theta)
        close(found.parts[name].phi, open_.parts[name].phi)
        close(found.history.client_loss[name], open_.history.client_loss[name])
        if method != "fedgc":
            close(found.history.delta_d[name], open_.history.delta_d[name])
    close(found.history.server_loss, open_.history.server_loss)


def noiseless_clients(plant, recording):
    out = {}
    for name in plant.names:
        model, record = plant.local(name), recording[name]
        data = ClientData.from_rows(record.y, record.u, KalmanEstimator(model).estimate(record.y, record.u))
        responses = estimator_responses(name, KalmanEstimator(model), model, recording.rows)
        state = TrainingUnit(
            name, AugmentedModel(model, data), np.zeros((model.states, model.n_outputs)), np.zeros(model.states)
        )
        out[name] = replace(state, noise=MessageNoise(responses, 50.0, 0.0, Source(1)))
    return out


def test_the_gradients_clip_leaves_room_for_the_multipliers():
    plant = plant_of_three()
    recording = plant.simulate(50, rng=3)
    phase = Phase("lagrangian", 8, (3.0,) * 3)
    config = ServerConfig(plant.names, (phase,), initial_scale=0.1, noise=GradientNoise(0.0, Source(1)))
    done, _, _ = engine.run(TrainingServer(config), noiseless_clients(plant, recording))
    for own, bound in zip(done.evidence.state_slices, done.multiplier_bound, strict=True):
        assert 0 < np.linalg.norm(done.multipliers[:, own], axis=1).max() <= bound


# ---- what crosses, and in which order


@pytest.mark.parametrize("method", METHODS)
def test_nothing_else_crosses(method):
    plant = plant_of_three()
    recording = plant.simulate(60, rng=3)
    found, seen = conversation(recording, plant.locals(), method, privacy=privacy())
    rounds = 10
    assert found.traffic.rounds == rounds
    assert {type(message) for message, up in seen if up} == {PerturbedStates}
    assert {type(message) for message, up in seen if not up} == {Plan, StateGradients, Finished}
    assert sum(up for _, up in seen) == 3 * rounds
    if method == "hybrid":
        assert found.history.phase == ("lagrangian",) * 5 + ("penalty",) * 5
    if method == "fedgc":
        assert all(message.inputs.size == 0 for message, up in seen if up)
    assert not found.status.converged
    assert "ran its 10 rounds" in found.status.message


def test_seeded_runs_repeat_whatever_carries_them_and_in_whatever_order_units_come():
    plant = plant_of_three()
    recording = plant.simulate(60, rng=3)
    options = dict(method="penalty", rounds=3, privacy=privacy())
    first = cf.fit(recording, plant.locals(), **options)
    again = cf.fit(recording, plant.locals(), **options)
    wired = cf.fit(recording, plant.locals(), over_the_wire=True, **options)
    for other in (again, wired):
        assert np.array_equal(first.plant.A, other.plant.A)
        assert np.array_equal(first.parts["tank"].theta, other.parts["tank"].theta)
    fresh = cf.fit(recording, plant.locals(), **{**options, "privacy": privacy(seed=None)})
    assert not np.array_equal(first.plant.A, fresh.plant.A)
    assert fresh.privacy.secure
    assert not first.privacy.secure
    names = ("tank", "boiler", "turbine")
    turned = cf.Recording({n: recording[n] for n in names}, dt=recording.dt)
    moved = cf.fit(turned, plant.locals(), **options)
    assert moved.plant.names == names
    for name in names:
        close(moved.parts[name].theta, first.parts[name].theta)
        for other in names:
            close(moved.plant.block("A", name, other), first.plant.block("A", name, other))


def test_a_private_server_and_unit_refuse_what_does_not_belong():
    plant = plant_of_three()
    recording = plant.simulate(30, rng=3)
    _, seen = conversation(recording, plant.locals(), rounds=2, privacy=privacy())
    _, open_ = conversation(recording, plant.locals(), rounds=2, solver="gradient", compress=False)
    sent = [message for message, up in seen if up]
    phase = Phase("penalty", 2, (1.0,) * 3)
    private = TrainingServer(ServerConfig(plant.names, (phase,), noise=GradientNoise(1.0, Source(1))))
    public = TrainingServer(ServerConfig(plant.names, (phase,)))
    state, _ = server_step(private, sent[0])
    short = {f: getattr(sent[1], f)[:-1] for f in ("refined", "augmented", "predicted", "inputs")}
    later = state
    for message in sent[1:3]:
        later, replies = server_step(later, message)
    assert len(replies) == 3
    for server, message, words in (
        (private, open_[3][0], "did not expect Introduction of unit 'boiler' in a private training"),
        (public, sent[0], "did not expect PerturbedStates"),
        (state, sent[0], "round 0 already"),
        (state, sent[3], "got round 1"),
        (state, replace(sent[1], **short), "same period"),
        (later, replace(sent[3], inputs=np.ones((30, 3)), B=np.ones((2, 3))), "must send states and inputs of shape"),
    ):
        with pytest.raises(cf.ProtocolError, match=words):
            server_step(server, message)
    for changes, words in (
        ({"decay": 1.0}, "'decay'"),
        ({"noise": -1.0}, "'noise' must not be negative"),
        ({"augmented": np.ones((30, 1))}, "'augmented' must have shape"),
    ):
        with pytest.raises(cf.ProtocolError, match=words):
            replace(sent[0], **changes)
    back = decode(encode(sent[0]))
    assert isinstance(back, PerturbedStates)
    assert all(np.array_equal(getattr(back, f), getattr(sent[0], f)) for f in ("refined", "inputs", "A", "noise"))


# ---- the budget


def test_every_round_is_an_entry_that_was_written_before_the_message_left(tmp_path):
    plant = plant_of_three()
    recording = plant.simulate(30, rng=3)
    for name in plant.names:
        Ledger.create(ledger_path(tmp_path, name), name, 5.0, 1e-2).close()
    seen = []

    def watch(message, up):
        if up:
            with Ledger.open(ledger_path(tmp_path, message.unit)) as ledger:
                seen.append(len(ledger.entries()) > message.round)

    found = cf.fit(
        recording, plant.locals(), method="penalty", rounds=4, watch=watch, privacy=privacy(ledger=tmp_path, start=7)
    )
    assert seen == [True] * 12
    for name, entries in found.privacy.ledger.items():
        assert [e.what for e in entries] == [f"round {k}: message and gradient" for k in range(4)]
        assert sum(e.cost.epsilon for e in entries) == pytest.approx(2.0)
        assert sum(e.cost.delta for e in entries) == pytest.approx(1e-3)
        assert all((e.cost.start, e.cost.stop, e.cost.row_loss) == (7, 38, 0.0) for e in entries)
        with Ledger.open(ledger_path(tmp_path, name)) as ledger:
            assert ledger.spent == pytest.approx(2.0)
        assert found.privacy.units[name].epsilon == pytest.approx(2.0)
    assert found.privacy.durable


def test_a_fit_that_a_unit_cannot_pay_for_does_not_begin(tmp_path):
    plant, seen = plant_of_three(), []
    for name, epsilon in zip(plant.names, (5.0, 5.0, 1.9), strict=True):
        Ledger.create(ledger_path(tmp_path, name), name, epsilon, 1e-2).close()
    options = dict(privacy=privacy(ledger=tmp_path), watch=lambda message, up: seen.append(message))
    with pytest.raises(cf.PrivacyError, match="tank"):
        cf.fit(plant.simulate(30, rng=3), plant.locals(), method="penalty", **options)
    assert not seen
    with Ledger.open(ledger_path(tmp_path, "boiler")) as ledger:
        assert ledger.entries() == ()


def test_a_budget_that_runs_out_half_way_keeps_the_message_at_the_unit(tmp_path):
    """Somebody else spends while the fit runs."""
    plant = plant_of_three()
    for name in plant.names:
        Ledger.create(ledger_path(tmp_path, name), name, 2.5, 1e-2).close()
    sent = []

    def watch(message, up):
        if up:
            sent.append((message.unit, message.round))
            if (message.unit, message.round) == ("tank", 0):
                with Ledger.open(ledger_path(tmp_path, "turbine")) as ledger:
                    cost = ledger.entries()[0].cost
                    ledger.spend(replace(cost, epsilon=1.9), "other", fit="other", mechanism="other", source="seed 1")

    with pytest.raises(cf.PrivacyError, match="turbine"):
        cf.fit(
            plant.simulate(30, rng=3), plant.locals(), method="penalty", rounds=4, privacy=privacy(ledger=tmp_path),
            watch=watch,
        )  # fmt: skip
    assert ("turbine", 1) not in sent
    assert ("boiler", 1) in sent


# ---- the report and its gaps


def test_the_report_states_the_formula_and_the_gaps_with_numbers():
    plant = plant_of_three()
    recording = plant.simulate(60, rng=3)
    found = cf.fit(recording, plant.locals(), method="penalty", rounds=2, xi=3.0, privacy=privacy(epsilon=2.0))
    report = found.privacy
    assert (report.accounting, report.epsilon, report.window) == ("published", pytest.approx(2.0), 1)
    assert "sqrt(2 ln(1.25/delta))/epsilon" in report.mechanism
    assert "2 rounds, each with epsilon 0.5" in report.mechanism
    text = "\n".join(report.gaps)
    words = ("sum over t", "theta_m and phi_m", "2 R_y", "which it is here (0.5)", "sent as they are", "w = 6 here")
    assert all(each in text for each in words)
    loud = cf.fit(recording, plant.locals(), method="penalty", rounds=1, privacy=privacy(epsilon=30.0))
    assert "which it is not here, so the noise may be too small (15)" in "\n".join(loud.privacy.gaps)
    units = report.units
    assert all(unit.sigma > 0 and unit.clip > 0 for unit in units.values())
    assert "as published" in found.summary()


def test_gap_theta_carries_every_measurement_into_every_row_of_later_messages(noiseless):
    """By the analysis, rows before a measurement do not know of it. Nor do the constants that are sent in the clear."""
    plant = plant_of_three()
    recording = plant.simulate(60, rng=3)
    y = recording["boiler"].y.copy()
    y[40] *= -1
    changed = cf.Recording({**{n: recording[n] for n in plant.names}, "boiler": replace(recording["boiler"], y=y)})
    options = dict(rounds=3, privacy=privacy(clip=50.0))
    (_, first), (_, second) = (conversation(r, plant.locals(), **options) for r in (recording, changed))
    for (a, up), (b, _) in zip(first, second, strict=True):
        if up and a.unit == "boiler":
            before = np.abs(a.predicted[:39] - b.predicted[:39]).max()
            if a.round == 0:
                assert before == 0
                assert a.contraction == b.contraction
            else:
                assert before > 1e-6
                assert a.contraction != b.contraction


def test_gap_noise_raises_the_sensitivity_and_that_the_noise():
    plant = plant_of_three()
    recording = plant.simulate(60, rng=3)
    found = cf.fit(recording, plant.locals(), method="penalty", rounds=3, privacy=privacy(epsilon=0.5))
    assert "the noise grew" in "\n".join(found.privacy.gaps)
    assert "estimates are made of noise" in found.summary()
    with pytest.raises(cf.OptionError, match=r"unit '\w+' has been drowned by its own noise .* in round \d+.*epsilon"):
        cf.fit(recording, plant.locals(), method="penalty", rounds=60, privacy=privacy(epsilon=1e-3))


def test_gap_replacing_a_measurement_moves_a_row_further_than_the_sensitivity(noiseless):
    model = cf.LocalModel(A=[[0.8]], B=[[1.0]], C=[[1.0]], Q=[[1.0]], R=[[0.1]])
    plant = cf.Plant(units=[cf.Unit("boiler", 1, 1, 1)], A=model.A, B=model.B, C=model.C, Q=model.Q, R=model.R)
    R, rows = 2.0, {}
    for sign in (1, -1):
        y = np.zeros((50, 1))
        y[20] = sign * R
        recording = cf.Recording.from_arrays({"boiler": (y, np.zeros((50, 1)))}, units=plant.units)
        options = dict(rounds=1, initial_scale=0.0, privacy=privacy(clip=R))
        _, seen = conversation(recording, plant.locals(), **options)
        message = next(m for m, up in seen if up)
        rows[sign] = np.hstack([message.refined, message.augmented, message.predicted])
    responses = estimator_responses("boiler", KalmanEstimator(model), model, 50)
    sensitivity = responses.constants(np.zeros((1, 1)), np.zeros(1)).message * R
    assert np.linalg.norm(rows[1] - rows[-1], axis=1).max() > 1.05 * sensitivity


def test_gap_noise_in_the_published_method_leaves_a_bias_that_more_rows_do_not_cure(monkeypatch):
    """Noise of a tenth of the sensitivity: the relative error of B_mn stays where it is with 16 times the rows."""

    def quick(x, sigma, source, *names):  # the exact one spends its time on digits that do not matter here
        return x + sigma * stream(source.seed, *names).standard_normal(x.shape)

    for module in (published, server_published):
        monkeypatch.setattr(module, "gaussian_release", quick)
    monkeypatch.setattr("counterflow.paper.method.classical_multiplier", lambda epsilon, delta: 0.1)
    errors, bias = {2_000: [], 32_000: []}, {2_000: [], 32_000: []}
    for seed in range(2):
        plant = cf.random_plant(units=["a", "b"], states=1, inputs=1, outputs=2, rng=seed)
        for steps in errors:
            recording = plant.simulate(steps, rng=2, inputs=autoregressive(plant, steps, rng=4, pole=0.95))
            options = dict(method="penalty", xi=0.1, rounds=25, initial_scale=0.0)
            private = cf.fit(recording, plant.locals(), privacy=privacy(), **options).plant
            open_ = cf.fit(recording, plant.locals(), solver="gradient", **options).plant
            for pair in (("a", "b"), ("b", "a")):
                true = np.linalg.norm(plant.block("B", *pair))
                errors[steps].append(np.linalg.norm(private.block("B", *pair) - plant.block("B", *pair)) / true)
                bias[steps].append(np.linalg.norm(private.block("B", *pair) - open_.block("B", *pair)) / true)
    # 1/√T would have made a quarter of both
    assert np.mean(errors[32_000]) > 0.9 * np.mean(errors[2_000]) > 0.5
    assert np.mean(bias[32_000]) > 0.7 * np.mean(bias[2_000]) > 0.1
