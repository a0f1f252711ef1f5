"""What the experiments compute, against the definitions written out with NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from tolerances import EXACT, ITERATIVE, LONG

import counterflow as cf
from counterflow.paper import experiments
from counterflow.paper.experiments import scalability, transfer_function, two_units
from counterflow.paper.experiments.experiment import Outcome, Task

TINY = {"plant": 0, "steps": 200, "xi": 3.0, "rho": 6.0, "rounds": 12, "warm_rounds": 4, "run": 1}


def run(method: str = "penalty", **changes: object) -> Outcome:
    task = Task("synthetic", {**TINY, "method": method, **changes})
    return Outcome(task, two_units.compute(task), 0.0)


@pytest.fixture(scope="module")
def tiny() -> Outcome:
    return run()


@pytest.mark.parametrize("method", ["penalty", "lagrangian", "hybrid"])
def test_a_run_is_the_course_of_its_training_with_losses_on_one_scale(method: str) -> None:
    plant = two_units.plant_of(TINY["plant"])
    rounds = {"rounds": 12} if method != "hybrid" else {"rounds": 8, "warm_rounds": 4}
    options = {"penalty": {"xi": 3.0}, "lagrangian": {"rho": 6.0}, "hybrid": {"xi": 3.0, "rho": 6.0}}[method] | rounds
    options |= {"solver": "gradient", "tol": 0.0, "initial_scale": 1.0, "seed": 1}
    history = cf.fit(plant.simulate(200, rng=1001), plant.locals(), method=method, **options).history
    found = run(method)
    wanted = {"disentanglement": history.disentanglement}
    wanted["server_loss"] = history.residual_loss + 3.0 * history.disentanglement
    wanted |= {f"client_loss/{n}": history.client_loss[n] for n in plant.names}
    wanted |= {f"delta_d/{n}": history.delta_d[n] for n in plant.names}
    for key, series in wanted.items():
        np.testing.assert_allclose(found.array(key), series, rtol=EXACT, err_msg=key)


def test_rounds_that_are_kept_and_runs_that_share_a_start(tiny: Outcome) -> None:
    assert tiny.array("round").tolist() == list(range(1, TINY["rounds"] + 1))
    kept = two_units.kept_rounds(1500)
    assert kept[0] == 0
    assert kept[-1] == 1499
    assert 100 < len(kept) <= two_units.POINTS
    assert run("lagrangian").array("delta_d/unit1")[0] == tiny.array("delta_d/unit1")[0]
    assert run(run=2).array("delta_d/unit1")[0] != tiny.array("delta_d/unit1")[0]
    assert tiny.array("rises") == 0.0
    assert two_units.climb(np.array([8.0, 1.0, 2.0, 0.5])) == pytest.approx(np.log(2))


def test_the_proprietary_loss_and_the_phases_of_the_validation(tiny: Outcome) -> None:
    plant = two_units.plant_of(0)
    fresh = two_units.shifted(plant, TINY["run"], TINY["steps"])
    model, y, u = plant.local("unit2"), fresh["unit2"].y, fresh["unit2"].u
    # a Kalman filter on the unit's own model, from its stationary state
    h, P = np.zeros(2), _stationary(model.A, model.B @ model.B.T + model.Q)
    errors = []
    for t in range(len(y)):
        gain = P @ model.C.T @ np.linalg.inv(model.C @ P @ model.C.T + model.R)
        errors.append(((y[t] - model.C @ h) ** 2).sum())
        h, P = h + gain @ (y[t] - model.C @ h), P - gain @ model.C @ P
        h, P = model.A @ h + model.B @ u[t], model.A @ P @ model.A.T + model.Q
    found = tiny.array("error/proprietary/unit2")
    assert len(found) == TINY["steps"]
    # however the filter starts, that is forgotten
    assert found[100:] == pytest.approx(np.array(errors[1:])[100:], rel=ITERATIVE)
    before, soon, late = two_units.Validation.phases(tiny, "proprietary", "unit2")
    assert before == pytest.approx(found[:101].mean(), rel=EXACT)
    assert soon == pytest.approx(found[101:111].mean(), rel=EXACT)
    assert late == pytest.approx(found[150:].mean(), rel=EXACT)
    # row 101 is the first whose input is shifted, and the error of row 102 the first that it reaches
    assert np.abs(np.mean(fresh["unit1"].u[101:])) > 1.0 > np.abs(np.mean(fresh["unit1"].u[:101]))


def _stationary(A: np.ndarray, Q: np.ndarray) -> np.ndarray:
    P = np.zeros_like(Q)
    for _ in range(500):
        P = A @ P @ A.T + Q
    return P


def test_poles_zeros_and_spectrum_of_the_true_plant(tiny: Outcome) -> None:
    plant = two_units.plant_of(0)
    local = np.concatenate([np.linalg.eigvals(plant.local(n).A) for n in plant.names])
    assert sorted(plant.poles(), key=np.angle) == pytest.approx(sorted(local, key=np.angle), rel=LONG)
    A, B, C = transfer_function.cross(plant)
    zeros = transfer_function.channel_zeros(plant)
    assert zeros.size
    for z in zeros[:3]:  # of the channel from the first input to the first output
        pencil = np.block([[A - z * np.eye(4), B[:, :1]], [C[:1], np.zeros((1, 1))]])
        assert np.linalg.svd(pencil, compute_uv=False)[-1] < 1e-8
    z = np.exp(0.3j)
    gain = C @ np.linalg.solve(z * np.eye(4) - A, B)
    assert transfer_function.sigma(A, B, C, [0.3])[0, 0] == pytest.approx(np.linalg.norm(gain, 2), rel=LONG)
    found = two_units.found_plant(tiny, "default")
    assert transfer_function.response_error(plant, plant, transfer_function.cross) == 0.0
    assert transfer_function.response_error(found, plant, transfer_function.cross) < 0.5
    w = np.linspace(0, np.pi, 100)
    true, guess = (
        np.array([C @ np.linalg.solve(np.exp(1j * x) * np.eye(4) - p.A, p.B[:, :2]) for x in w]) for p in (plant, found)
    )
    wanted = np.sqrt((np.abs(guess - true) ** 2).sum() / (np.abs(true) ** 2).sum())
    assert transfer_function.response_error(found, plant, transfer_function.cross) == pytest.approx(wanted, rel=LONG)


def test_the_stationary_point_of_a_larger_plant_has_one_number_not_two() -> None:
    settings = {"units": 3, "outputs": 4, "xi": 20.0, "steps": 400, "table": "M", "run": 0}
    values = scalability.Scalability.compute(Task("scalability", settings))
    # r_s = D + phi - Σ B u, and the latter two vanish: L_s = (1 + xi) D
    assert values["server_loss"] == pytest.approx(21 * values["disentanglement"], rel=0.05)


def test_the_dependence_on_the_weight_and_the_control_without_couplings() -> None:
    settings = {"plant": 0, "steps": 400, "run": 0}
    sweep = experiments.named("disentanglement").compute(Task("disentanglement", {**settings, "weights": [1.0, 100.0]}))
    plant = two_units.plant_of(0)
    fit = cf.fit(plant.simulate(400, rng=1000), plant.locals(), method="penalty", xi=100.0)
    between = [(plant.state_slice(a), plant.state_slice(b)) for a, b in (plant.names, plant.names[::-1])]
    wanted = np.sqrt(sum(np.sum((fit.plant.A[k] - plant.A[k]) ** 2) for k in between))
    wanted /= np.sqrt(sum(np.sum(plant.A[k] ** 2) for k in between))
    assert sweep["error"][1, 0] == pytest.approx(wanted, rel=EXACT)
    assert sweep["disentanglement"][1] == pytest.approx(fit.history.disentanglement[-1], rel=EXACT)


def test_a_plant_of_the_study_and_its_control_without_couplings() -> None:
    settings = {"plant": 1, "steps": 400, "noise": 0.1, "xi": 1.0, "rounds": 400}
    values = experiments.named("synthetic").compute(Task("synthetic", settings))
    plant = two_units.plant_of(1, noise=0.1)
    assert plant.R[0, 0] == 0.1
    recording = plant.simulate(400, rng=1001)
    options = {"solver": "gradient", "tol": 0.0, "initial_scale": 1.0, "rounds": 400, "xi": 1.0, "seed": 1}
    history = cf.fit(recording, plant.locals(), method="penalty", **options).history
    for name in two_units.UNITS:
        last = history.client_loss[name][-1] / history.proprietary_loss[name][-1]
        assert np.asarray(values[f"relative/{name}"])[-1] == pytest.approx(last, rel=EXACT)
        assert 0 <= values[f"control/{name}"] < 0.02 < 1 - last


def test_steps_tuned_at_one_weight_diverge_at_a_larger_one() -> None:
    settings = {"plant": 0, "steps": 200, "run": 0, "tuned_at": 3.0, "weights": [3.0, 300.0], "rounds": 40}
    values = experiments.named("lagrangian").compute(Task("lagrangian", settings))
    assert values["penalty"][0] < 1 < values["penalty"][1]
    assert (values["lagrangian"] < 1).all()
    assert np.log2(values["step"]) == round(np.log2(values["step"]))
