"""Every method of the comparison, from a recording and local models to couplings, with what it cost."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.experiments.effects import without_couplings
from counterflow.fits import training
from counterflow.fits.fit import Fit
from counterflow.methods.estimators import KalmanEstimator
from counterflow.plant import LocalModel, Plant, Recording

BYTES = 8  # of a number on the wire

# name in results: name for people, in the order of tables
METHODS: Mapping[str, str] = {
    "penalty": "published: penalty, ξ = 10",
    "penalty-small": "published: penalty, ξ = 0.1",
    "steps": "published: penalty, ξ = 10, gradient steps",
    "lagrangian": "published: augmented Lagrangian",
    "hybrid": "published: hybrid",
    "fedgc": "FedGC (predecessor)",
    "granger": "Granger causality, pooled states",
    "local": "local only, no couplings",
    "sufficient": "sufficient messages (default)",
    "centralized": "centralized, pooled raw data",
    "oracle": "oracle (true plant)",
}
PUBLISHED = ("penalty", "penalty-small", "steps", "lagrangian", "hybrid")


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
    "fedgc": _published("fedgc"),
    "sufficient": lambda recording, true, _: training.fit(recording, true.locals(), uncertainty=True),
    "centralized": lambda recording, true, _: training.fit(
        recording, true.locals(), method="centralized", uncertainty=True
    ),
    "oracle": lambda recording, true, _: training.fit(recording, true, method="oracle"),
}


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
