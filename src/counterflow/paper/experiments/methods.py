"""Every method of the comparison, from a recording and local models to couplings, with what it cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.exchange.estimators import KalmanEstimator
from counterflow.fits import training
from counterflow.fits.fit import Fit
from counterflow.paper.contraction import settled_gain
from counterflow.paper.experiments.effects import between, without_couplings
from counterflow.plant import LocalModel, Plant, Recording, Unit

BYTES = 8  # of a number on the wire

# name in results: name for people, in the order of tables
METHODS: Mapping[str, str] = {
    "penalty": "published: penalty, ξ = 10",
    "penalty-small": "published: penalty, ξ = 0.1",
    "steps": "published: penalty, ξ = 10, gradient steps",
    "lagrangian": "published: augmented Lagrangian",
    "hybrid": "published: hybrid",
    "refined": "refined target, ξ = 10",
    "refined-small": "refined target, ξ = 0.1",
    "corrected": "refined target, ξ = 10, gains taken out of B_mn",
    "fedgc": "FedGC (predecessor)",
    "granger": "Granger causality, pooled states",
    "local": "local only, no couplings",
    "sufficient": "sufficient messages (default)",
    "centralized": "centralized, pooled raw data",
    "oracle": "oracle (true plant)",
}
PUBLISHED = ("penalty", "penalty-small", "steps", "lagrangian", "hybrid")
REPAIRED = ("refined", "refined-small", "corrected")  # the server explains ĥ_a[t], which the paper does not write


@dataclass(frozen=True, eq=False)
class Estimate:
    """What a method has found: the plant, standard errors of B where it gives them, and what it cost."""

    plant: Plant
    B_errors: FloatArray | None
    rounds: int
    traffic: int
    seconds: float
    fit: Fit | None


def estimate(method: str, recording: Recording, true: Plant, rounds: int) -> Estimate:
    """Couplings by one of ``METHODS``.

    Parameters
    ----------
    true : its local blocks are what the units know; only the oracle sees the rest.
    rounds : of the methods that take gradient steps.

    Examples
    --------
    >>> from counterflow.plant import random_plant
    >>> plant = random_plant(rng=1)
    >>> estimate("local", plant.simulate(50, rng=2), plant, rounds=1).plant == without_couplings(plant)
    True
    """
    begin = time.perf_counter()
    if method == "local":
        return Estimate(without_couplings(true), None, 0, 0, time.perf_counter() - begin, None)
    if method == "granger":
        plant, doubt = granger_plant(recording, true)
        numbers = recording.rows * (plant.A.shape[0] + plant.B.shape[1])
        return Estimate(plant, doubt, 1, BYTES * numbers, time.perf_counter() - begin, None)
    if method == "corrected":
        trained = _FITS["refined"](recording, true, rounds)
        numbers = sum(true.local(name).states ** 2 for name in true.names)
        sent = trained.traffic.bytes_up + trained.traffic.bytes_down + BYTES * numbers
        plant = without_gains(trained, true)
        return Estimate(plant, None, trained.traffic.rounds, sent, time.perf_counter() - begin, trained)
    found = _FITS[method](recording, true, rounds)
    seconds = time.perf_counter() - begin
    errors = found.standard_errors.B if method in ("sufficient", "centralized") else None
    traffic = found.traffic
    return Estimate(found.plant, errors, traffic.rounds, traffic.bytes_up + traffic.bytes_down, seconds, found)


def _published(name: str, **options: Any) -> Callable[[Recording, Plant, int], Fit]:
    def fit(recording: Recording, true: Plant, rounds: int) -> Fit:
        given = dict(options)
        if name == "hybrid":  # the same number of rounds in all
            given |= {"warm_rounds": rounds // 5, "rounds": rounds - rounds // 5}
        elif name == "lagrangian" or "solver" in given:
            given["rounds"] = rounds
        return training.fit(recording, true.locals(), method=name, **given)

    return fit


_FITS: Mapping[str, Callable[[Recording, Plant, int], Fit]] = {
    "penalty": _published("penalty", xi=10.0),
    "penalty-small": _published("penalty", xi=0.1),
    "steps": _published("penalty", xi=10.0, solver="gradient"),
    "lagrangian": _published("lagrangian", rho=20.0),
    "hybrid": _published("hybrid", xi=10.0, rho=20.0),
    "refined": _published("penalty", xi=10.0, target="refined"),
    "refined-small": _published("penalty", xi=0.1, target="refined"),
    "fedgc": _published("fedgc"),
    "sufficient": lambda recording, true, _: training.fit(recording, true.locals(), uncertainty=True),
    "centralized": lambda recording, true, _: training.fit(
        recording, true.locals(), method="centralized", uncertainty=True
    ),
    "oracle": lambda recording, true, _: training.fit(recording, true, method="oracle"),
}


def without_gains(found: Fit, true: Plant) -> Plant:
    """A fit with a refined target whose B̂_mn have been divided by (K_m + theta_m) C_mm, P_m² numbers of each unit.

    That is what ĥ_a[t] makes of a change of h_m[t]; with inputs that are white and have mean zero B̂_mn comes to this
    matrix times B_mn (docs/theory/paper.md).
    """
    B = found.plant.B.copy()
    for name in true.names:
        model, theta = true.local(name), found.parts[name].theta
        assert theta is not None
        answer = (settled_gain(model) + theta) @ model.C
        others = between(true, "B")[true.state_slice(name)].any(axis=0)
        rows = np.ix_(np.arange(len(B))[true.state_slice(name)], np.flatnonzero(others))
        B[rows] = np.linalg.solve(answer, B[rows])
    return found.plant.replace(B=B)


def unfiltered_fit(recording: Recording, true: Plant, skip: int = 100) -> Fit:
    """Maximum likelihood on what the published messages of round 0 hold, once K_m C_mm and K_m R_m K_mᵀ are told.

    ĥ_c[t] - (I - K_m C_mm) (A_mm ĥ_c[t-1] + B_mm u_m[t-1]) = K_m y_m[t] = K_m C_mm h_m[t] + noise: a sufficient message
    in another basis. ``skip``: rows at the start, in which the filters settle.
    """
    data, models = {}, {}
    for name in recording.names:
        model, own = true.local(name), recording[name]
        refined = KalmanEstimator(model).estimate(own.y, own.u).refined
        K = settled_gain(model)
        ahead = refined[:-1] @ model.A.T + own.u[:-1] @ model.B.T
        read = refined[1:] - ahead @ (np.eye(model.states) - K @ model.C).T
        data[name] = (read[skip:], own.u[1 + skip :])
        models[name] = LocalModel(A=model.A, B=model.B, C=K @ model.C, Q=model.Q, R=K @ model.R @ K.T)
    units = [Unit(name, true.local(name).states, data[name][1].shape[1], len(models[name].C)) for name in data]
    return training.fit(Recording.from_arrays(data, units=units), models, uncertainty=False)


def refined_states(recording: Recording, models: Mapping[str, LocalModel]) -> FloatArray:
    """ĥ_c[t] of all units side by side: what each one's own Kalman filter makes of its own measurements."""
    estimates = [
        KalmanEstimator(models[name]).estimate(recording[name].y, recording[name].u) for name in recording.names
    ]
    return np.hstack([each.refined for each in estimates])


def granger(states: FloatArray, inputs: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Classical Granger causality with inputs: least squares of x[t] on x[t-1], u[t-1] and a constant.

    Parameters
    ----------
    states : (T+1, P) array
    inputs : (T+1, U) array

    Returns
    -------
    A : (P, P), B : (P, U) arrays
    A_errors, B_errors : arrays of the same shapes
        Ordinary least-squares standard errors.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x, u = np.zeros((500, 1)), rng.standard_normal((500, 1))
    >>> for t in range(1, 500):
    ...     x[t] = 0.5 * x[t - 1] + 2.0 * u[t - 1]
    >>> A, B, _, _ = granger(x, u)
    >>> A.round(6).tolist(), B.round(6).tolist()
    ([[0.5]], [[2.0]])
    """
    X = np.hstack([states[:-1], inputs[:-1], np.ones((len(states) - 1, 1))])
    Y = states[1:]
    factor, triangle = np.linalg.qr(X)
    inverse = np.linalg.inv(triangle)
    coefficients = inverse @ (factor.T @ Y)
    residual = Y - X @ coefficients
    variance = (residual**2).sum(axis=0) / (len(X) - X.shape[1])
    errors = np.sqrt(np.outer((inverse**2).sum(axis=1), variance)).T
    P, U = states.shape[1], inputs.shape[1]
    return coefficients[:P].T, coefficients[P : P + U].T, errors[:, :P], errors[:, P : P + U]


def granger_plant(recording: Recording, true: Plant) -> tuple[Plant, FloatArray]:
    """A plant by Granger causality on pooled refined states, all blocks estimated, and standard errors of its B."""
    inputs = np.hstack([recording[name].u for name in recording.names])
    A, B, _, errors = granger(refined_states(recording, true.locals()), inputs)
    return true.replace(A=A, B=B), errors
