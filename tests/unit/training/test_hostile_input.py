"""Bad input gets one clear error of the family, or the right result; never a traceback from NumPy."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

import counterflow as cf
from counterflow.exchange.estimators import Estimates


def train(recording, models=None, **options):
    """``fit`` by the published penalty method, unless another one is asked for."""
    return cf.fit(recording, models, **{"method": "penalty", **options})


PLANT = cf.random_plant(units=["boiler", "turbine"], rng=1)
RECORDING = PLANT.simulate(60, rng=2)


def with_y(change):
    rows = {n: (RECORDING[n].y.copy(), RECORDING[n].u) for n in PLANT.names}
    change(rows["boiler"][0])
    return cf.Recording.from_arrays(rows, units=PLANT.units)


def missing(y):
    y[7, 2] = np.nan


PRIVACY = cf.Privacy(10.0, 1e-6, accounting="published")
STEPS = dict.fromkeys(("eta_1", "eta_2", "gamma_1", "gamma_2", "alpha_A", "alpha_B"), 0.01)


@dataclass
class BadEstimator:
    fault: str

    def estimate(self, y, u):
        states = np.zeros((len(y), 3 if self.fault == "shape" else 2))
        if self.fault == "nan":
            states[5] = np.nan
        return Estimates(states, states)


# options of a fit on good data, what is refused, and a word of why
BAD = [
    ({"method": "magic"}, cf.OptionError, "penalty"),
    ({"round": 3}, cf.OptionError, "rounds"),
    ({"xi": -1.0}, cf.OptionError, "xi"),
    ({"xi": float("nan")}, cf.OptionError, "xi"),
    ({"xi": None}, cf.OptionError, "xi"),
    ({"xi": {"boiler": 1.0}}, cf.OptionError, "turbine"),
    ({"method": "lagrangian", "rho": 0.0}, cf.OptionError, "rho"),
    ({"rounds": 0}, cf.OptionError, "rounds"),
    ({"rounds": 2.5}, cf.OptionError, "rounds"),
    ({"solver": "gradient", "eta_1": -1.0}, cf.OptionError, "eta_1"),
    ({"solver": "newton"}, cf.OptionError, "conjugate"),
    ({"method": "lagrangian", "solver": "conjugate"}, cf.OptionError, "IMEX"),
    ({"gradients": "algorithm-1"}, cf.OptionError, "gradient"),
    ({"solver": "gradient", "gradients": "algorithm-1", "target": "refined"}, cf.OptionError, "no h_a in it"),
    ({"target": "smoothed"}, cf.OptionError, "refined"),
    ({"target": "refined", "privacy": PRIVACY}, cf.OptionError, "target"),
    ({"solver": "conjugate", "privacy": PRIVACY}, cf.OptionError, "conjugate"),
    ({"compress": True, "privacy": PRIVACY}, cf.OptionError, "per row"),
    ({"tol": 1e-3, "privacy": PRIVACY}, cf.OptionError, "runs its rounds"),
    ({"loss_tol": 1e-3, "privacy": PRIVACY}, cf.OptionError, "runs its rounds"),
    ({"privacy": replace(PRIVACY, window=3)}, cf.OptionError, "window=3"),
    ({"seed": -1}, cf.OptionError, "seed"),
    ({"method": "oracle"}, cf.ModelError, "plant"),
    ({"models": PLANT, "method": "oracle", "xi": 1.0}, cf.OptionError, "xi"),
    ({"solver": "gradient", "eta_1": 10.0, "eta_2": 10.0, "rounds": 2000}, cf.OptionError, "diverged"),
    ({"solver": "gradient", "xi": 1e4, "rounds": 400, **STEPS}, cf.OptionError, "diverged at unit"),
    ({"watch": lambda *_: None, "compress": True}, cf.OptionError, "compress=False"),
    ({"recording": np.ones((5, 2))}, cf.DataError, "Recording"),
    ({"recording": with_y(missing)}, cf.DataError, r"boiler.*row 7"),
    ({"models": None}, cf.ModelError, "models"),
    ({"models": {"boiler": PLANT.local("boiler")}}, cf.ModelError, "turbine"),
    ({"models": dict.fromkeys(PLANT.names, 3)}, cf.ModelError, "LocalModel"),
    ({"models": [PLANT.local("boiler")]}, cf.ModelError, "list"),
    ({"models": cf.random_plant(units=["boiler", "turbine"], outputs=3, rng=1).locals()}, cf.ModelError, "outputs"),
    ({"estimators": {"pump": BadEstimator("shape")}}, cf.OptionError, "pump"),
    ({"estimators": {"boiler": 3}}, cf.OptionError, "estimate"),
    ({"estimators": {"boiler": BadEstimator("shape")}}, cf.DataError, "boiler"),
    ({"estimators": {"boiler": BadEstimator("nan")}}, cf.DataError, "finite"),
]


@pytest.mark.parametrize(("options", "kind", "text"), BAD)
@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_bad_input_gets_one_clear_error(options, kind, text):
    with pytest.raises(kind, match=text):
        train(**{"recording": RECORDING, "models": PLANT.locals(), **options})


ODD = {
    "one step": dict(steps=1),
    "two steps": dict(steps=2),
    "one unit": dict(units=1),
    "no inputs": dict(inputs=0),
    "one output": dict(outputs=1),
    "one state": dict(states=1),
}


@pytest.mark.parametrize("method", ["penalty", "lagrangian", "hybrid", "fedgc"])
@pytest.mark.parametrize("case", ODD)
def test_odd_sizes_work(case, method):
    sizes = dict(ODD[case])
    steps = sizes.pop("steps", 50)
    plant = cf.random_plant(**{"units": 2, **sizes}, rng=1)
    recording = plant.simulate(steps, rng=2)
    found = train(recording, plant.locals(), method=method, rounds=30)
    for values in (found.plant.A, found.plant.B, found.history.server_loss, found.history.disentanglement):
        assert np.isfinite(values).all()
    if case == "one unit":
        assert np.array_equal(found.plant.A, plant.A)


def test_inputs_that_never_move_leave_their_couplings_at_zero():
    inputs = {n: np.zeros((201, 2)) for n in PLANT.names}
    recording = PLANT.simulate(200, rng=2, inputs=inputs)
    found = train(recording, PLANT.locals(), xi=1.0)
    assert found.status.converged
    assert not found.plant.block("B", "boiler", "turbine").any()


def test_an_unstable_local_block_is_handled():
    """A tank that integrates, and a unit that runs away slowly: the filters see them, training works."""
    units = [cf.Unit("tank", 1, 1, 2), cf.Unit("reactor", 1, 1, 2)]
    C = np.array([[1.0, 0], [0.5, 0], [0, 1.0], [0, -1.0]])
    plant = cf.Plant(units=units, A=[[1.0, 0.0], [0.05, 1.01]], B=np.eye(2), C=C, Q=0.01 * np.eye(2), R=np.eye(4))
    recording = plant.simulate(200, rng=3)
    found = train(recording, plant.locals(), xi=1.0)
    assert found.status.converged
    assert np.isfinite(found.plant.A).all()


def test_duplicated_and_constant_channels_are_handled():
    rows = {}
    for name in PLANT.names:
        y = RECORDING[name].y
        rows[name] = (np.hstack([y, y[:, :1], np.full((len(y), 1), 4.0)]), RECORDING[name].u)
    recording = cf.Recording.from_arrays(rows)
    models = {}
    for name in PLANT.names:
        m = PLANT.local(name)
        C = np.vstack([m.C, m.C[:1], np.zeros((1, 2))])
        models[name] = cf.LocalModel(A=m.A, B=m.B, C=C, Q=m.Q, R=np.eye(10))
    found = train(recording, models, xi=10.0)
    assert found.status.converged


def test_a_proprietary_estimator_is_a_plug_in():
    """An observer with a fixed gain, not a Kalman filter: its own states are used, nothing else changes."""

    @dataclass
    class Observer:
        model: cf.LocalModel

        def estimate(self, y, u):
            predicted, refined = np.zeros((len(y), 2)), np.zeros((len(y), 2))
            gain = 0.1 * np.linalg.pinv(self.model.C)
            for t in range(len(y)):
                if t:
                    predicted[t] = self.model.A @ refined[t - 1] + self.model.B @ u[t - 1]
                refined[t] = predicted[t] + gain @ (y[t] - self.model.C @ predicted[t])
            return Estimates(predicted, refined)

    own = {n: Observer(PLANT.local(n)) for n in PLANT.names}
    found = train(RECORDING, PLANT.locals(), estimators=own, xi=1.0)
    assert isinstance(own["boiler"], cf.Estimator)
    for name in PLANT.names:
        residual = (
            RECORDING[name].y
            - own[name].estimate(RECORDING[name].y, RECORDING[name].u).predicted @ PLANT.local(name).C.T
        )
        assert found.history.proprietary_loss[name][-1] == pytest.approx((residual[1:] ** 2).sum(axis=1).mean())
    assert not np.allclose(found.plant.A, train(RECORDING, PLANT.locals(), xi=1.0).plant.A)
