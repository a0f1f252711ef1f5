"""Every method of the comparison, and how far an estimated plant is from the true one, by what is asked of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from counterflow.arrays import FloatArray
from counterflow.exchange.estimators import KalmanEstimator
from counterflow.fits import training
from counterflow.fits.fit import Fit
from counterflow.fits.history import History
from counterflow.paper.contraction import settled_gain
from counterflow.plant import LocalModel, Plant, Recording, Unit, excitation

Responses = Mapping[tuple[str, str], FloatArray]  # of (effect, cause): (horizon, outputs, inputs)

HORIZON = 20  # rows over which effects are compared


def pairs(plant: Plant) -> tuple[tuple[str, str], ...]:
    """All (effect, cause) of different units."""
    return tuple((m, n) for m in plant.names for n in plant.names if m != n)


def between(plant: Plant, letter: str) -> NDArray[np.bool_]:
    """Where the couplings stand in A or B."""
    mask = np.ones(getattr(plant, letter).shape, bool)
    for name in plant.names:
        columns = plant.state_slice(name) if letter == "A" else plant.input_slice(name)
        mask[plant.state_slice(name), columns] = False
    return mask


def coupling_error(found: Plant, true: Plant, letter: str = "B") -> float:
    """|X̂ - X| / |X| over all blocks between units; 1 is what "no coupling" gets, NaN if there is none."""
    mask = between(true, letter)
    one, other = getattr(found, letter)[mask], getattr(true, letter)[mask]
    size = float(np.linalg.norm(other))
    return float(np.linalg.norm(one - other)) / size if size else float("nan")


def cosine(found: Plant, true: Plant) -> float:
    """Of the angle between all B̂_mn and all B_mn: is the direction right, whatever the size? NaN if one is zero."""
    mask = between(true, "B")
    one, other = found.B[mask], true.B[mask]
    size = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / size if size else float("nan")


def without_couplings(plant: Plant, letters: str = "AB") -> Plant:
    """The same units, each for itself."""
    return plant.replace(**{x: np.where(between(plant, x), 0.0, getattr(plant, x)) for x in letters})


def responses(plant: Plant, horizon: int = HORIZON) -> dict[tuple[str, str], FloatArray]:
    """What a held change of one by one of each input of a unit does to the outputs of each other unit."""
    held = plant.impulse_response(horizon).cumsum(axis=0)
    return {(m, n): held[:, plant.output_slice(m), plant.input_slice(n)] for m, n in pairs(plant)}


def effect_error(found: Responses, true: Responses) -> float:
    """|Δ̂ - Δ| / |Δ| over all pairs of units in ``true``, inputs, outputs and rows; 1 is what "no effect" gets."""
    gap = sum(float(((found[pair] - values) ** 2).sum()) for pair, values in true.items())
    size = sum(float((values**2).sum()) for values in true.values())
    return float(np.sqrt(gap / size)) if size else float("nan")


def accuracy(found: Plant, true: Plant) -> dict[str, float]:
    """Errors of B_mn and A_mn, the cosine of B_mn, the error of effects, and R² = 1 - error²; "no effect" gets 0."""
    error = effect_error(responses(found), responses(true))
    errors = {letter: coupling_error(found, true, letter) for letter in "BA"} | {"cosine": cosine(found, true)}
    return errors | {"effects": error, "R2": 1.0 - error**2}


def stacked(found: Iterable[Mapping[str, ArrayLike]]) -> dict[str, FloatArray]:
    """Numbers or arrays of several fits, of each name one array."""
    every = list(found)
    return {key: np.array([each[key] for each in every]) for key in every[0]}


def recorded(plant: Plant, steps: int, seed: int, pole: float = 0.0, mean: float = 0.0) -> Recording:
    """A recording with Gaussian inputs of variance 1: white, or autoregressive, around a mean."""
    drawn = excitation.autoregressive(plant, steps, seed, pole=pole)  # a pole of 0 is white
    return plant.simulate(steps, rng=seed, inputs={name: u + mean for name, u in drawn.items()})


def loss_ratios(history: History) -> list[float]:
    """The units' last losses over the proprietary ones."""
    return [history.client_loss[n][-1] / history.proprietary_loss[n][-1] for n in history.client_loss]


def error_ratios(means: Mapping[str, Mapping[str, float]], model: str, base: str = "proprietary") -> float:
    """Mean squared one-step errors of one model over those of another, mean over the units."""
    return float(np.mean([means[model][name] / means[base][name] for name in means[base]]))


# ---- methods

BYTES = 8  # of a number on the wire

# name in results: name in tables, and in figures
METHODS: Mapping[str, tuple[str, str]] = {
    "penalty": ("published: penalty, ξ = 10", "penalty, ξ = 10"),
    "penalty-small": ("published: penalty, ξ = 0.1", "penalty, ξ = 0.1"),
    "steps": ("published: penalty, ξ = 10, gradient steps", "penalty, steps"),
    "lagrangian": ("published: augmented Lagrangian", "Lagrangian"),
    "hybrid": ("published: hybrid", "hybrid"),
    "refined": ("refined target, ξ = 10", "refined target, ξ = 10"),
    "refined-small": ("refined target, ξ = 0.1", "refined target, ξ = 0.1"),
    "corrected": ("refined target, ξ = 10, gains taken out of B_mn", "refined, gains taken out"),
    "fedgc": ("FedGC (predecessor)", "FedGC"),
    "granger": ("Granger causality, pooled states", "Granger"),
    "local": ("local only, no couplings", "local only"),
    "sufficient": ("sufficient messages (default)", "sufficient"),
    "centralized": ("centralized, pooled raw data", "centralized"),
    "oracle": ("oracle (true plant)", "oracle"),
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


# options of those that are fits; gradient steps have their rounds beside
_FITS: Mapping[str, Mapping[str, Any]] = {
    "penalty": {"method": "penalty", "xi": 10.0},
    "penalty-small": {"method": "penalty", "xi": 0.1},
    "steps": {"method": "penalty", "xi": 10.0, "solver": "gradient"},
    "lagrangian": {"method": "lagrangian", "rho": 20.0},
    "hybrid": {"method": "hybrid", "rho": 20.0},
    "refined": {"method": "penalty", "xi": 10.0, "target": "refined"},
    "refined-small": {"method": "penalty", "xi": 0.1, "target": "refined"},
    "refined-large": {"method": "penalty", "xi": 1e6, "target": "refined"},
    "fedgc": {"method": "fedgc"},
    "sufficient": {"uncertainty": True},
    "default": {"uncertainty": False},
    "centralized": {"method": "centralized", "uncertainty": True},
    "oracle": {"method": "oracle"},
}
_CORRECTED = {"corrected": "refined", "corrected-large": "refined-large"}  # of which fits gains are taken out


def trained(method: str, recording: Recording, true: Plant, rounds: int = 0) -> Fit:
    """The fit of a method that is one."""
    fit: Callable[..., Fit] = training.fit
    options = dict(_FITS[method])
    if method in ("steps", "lagrangian"):
        options["rounds"] = rounds
    elif method == "hybrid":  # the same number of rounds in all
        options |= {"warm_rounds": rounds // 5, "rounds": rounds - rounds // 5}
    return fit(recording, true if method == "oracle" else true.locals(), **options)


def estimate(method: str, recording: Recording, true: Plant, rounds: int = 0) -> Estimate:
    """Couplings by one of ``METHODS``, or by a further one of a repair.

    ``true``: its local blocks are what the units know; only the oracle sees the rest. ``rounds``: of the methods that
    take gradient steps.
    """
    begin = time.perf_counter()
    errors, found, count, sent = None, None, 0, 0
    if method == "local":
        plant = without_couplings(true)
    elif method == "granger":
        plant, errors = granger_plant(recording, true)
        count, sent = 1, BYTES * recording.rows * sum(true.B.shape)
    elif method == "unfiltered":  # its own outputs are K_m y_m
        found = unfiltered_fit(recording, true)
        plant = true.replace(A=found.plant.A, B=found.plant.B)
    else:
        found = trained(_CORRECTED.get(method, method), recording, true, rounds)
        plant, count, sent = found.plant, found.traffic.rounds, found.traffic.bytes_up + found.traffic.bytes_down
        if method in _CORRECTED:
            plant, sent = without_gains(found, true), sent + BYTES * sum(unit.states**2 for unit in true.units)
    seconds = time.perf_counter() - begin
    if found is not None and method in ("sufficient", "centralized"):
        errors = found.standard_errors.B
    return Estimate(plant, errors, count, sent, seconds, found)


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
    estimates = (KalmanEstimator(models[n]).estimate(recording[n].y, recording[n].u) for n in recording.names)
    return np.hstack([each.refined for each in estimates])


def granger_plant(recording: Recording, true: Plant) -> tuple[Plant, FloatArray]:
    """Classical Granger causality with inputs, on pooled refined states: a plant, and standard errors of its B.

    Least squares of x[t] on x[t-1], u[t-1] and a constant, all blocks estimated.
    """
    states, inputs = refined_states(recording, true.locals()), np.hstack([recording[n].u for n in recording.names])
    X = np.hstack([states[:-1], inputs[:-1], np.ones((len(states) - 1, 1))])
    Y = states[1:]
    factor, triangle = np.linalg.qr(X)
    inverse = np.linalg.inv(triangle)
    coefficients = inverse @ (factor.T @ Y)
    variance = ((Y - X @ coefficients) ** 2).sum(axis=0) / (len(X) - X.shape[1])
    errors = np.sqrt(np.outer((inverse**2).sum(axis=1), variance)).T
    A, B, _ = np.split(coefficients.T, [states.shape[1], X.shape[1] - 1], axis=1)
    return true.replace(A=A, B=B), errors[:, states.shape[1] : -1]
