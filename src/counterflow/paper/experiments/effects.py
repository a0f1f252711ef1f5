"""How far an estimated plant is from the true one, by what is asked of it: couplings, and effects over a horizon."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.fits.history import History
from counterflow.plant import Plant, Recording, excitation

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


def r_squared(found: Responses, true: Responses) -> float:
    """1 - Σ(Δ̂ - Δ)² / ΣΔ²: the share of the effects that is explained; 0 is what "no effect" gets."""
    return 1.0 - effect_error(found, true) ** 2


def accuracy(found: Plant, true: Plant) -> dict[str, float]:
    """Errors of B_mn and A_mn, the cosine of B_mn, error and R² of effects."""
    answers, wanted = responses(found), responses(true)
    errors = {letter: coupling_error(found, true, letter) for letter in "BA"} | {"cosine": cosine(found, true)}
    return errors | {"effects": effect_error(answers, wanted), "R2": r_squared(answers, wanted)}


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
