"""One-step predictions of a fit on data that it has not seen, against what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import DataError
from counterflow.exchange.estimators import Estimates
from counterflow.filtering import kalman_filter
from counterflow.plant import Plant, Recording

if TYPE_CHECKING:
    from counterflow.fits.fit import Fit


@dataclass(frozen=True, eq=False)
class Validation:
    """One-step prediction errors |y_m[t] - ỹ_m[t]|² of row t = 1..T on data that the fit has not seen.

    ``errors[model][unit]`` is a series (T,); the models are "augmented", "proprietary", "server" and, if the true
    plant was given, "oracle".
    """

    errors: Mapping[str, Mapping[str, FloatArray]]

    def mean(self, start: int = 0, stop: int | None = None) -> dict[str, dict[str, float]]:
        """Mean over rows of each series."""
        return {
            model: {unit: _mean(series[start:stop]) for unit, series in units.items()}
            for model, units in self.errors.items()
        }


def validate(fit: Fit, recording: Recording, oracle: Plant | None) -> Validation:
    """``Fit.validate``."""
    fit.check_recording(recording)
    seen = {n: fit.parts[n].estimates(recording[n].y, recording[n].u) for n in fit.names}
    served = _served(fit, recording, {n: estimates for n, (_, _, estimates) in seen.items()})
    errors: dict[str, dict[str, FloatArray]] = {"proprietary": {}, "server": {}}
    for name in fit.names:
        part, (y, u, own) = fit.parts[name], seen[name]
        model, C = part.working_model, part.model.C
        errors["proprietary"][name] = _square(y[1:] - own.predicted[1:] @ C.T)
        errors["server"][name] = _square(y[1:] - served[:, fit.plant.state_slice(name)] @ C.T)
        if part.theta is not None and part.phi is not None:  # the paper's augmented client, Eqs. (4)-(5)
            states = (own.refined[:-1] + y[:-1] @ part.theta.T) @ model.A.T + u[:-1] @ model.B.T + part.phi
            errors.setdefault("augmented", {})[name] = _square(y[1:] - states @ C.T)
    if oracle is not None:
        errors["oracle"] = _oracle_errors(oracle, recording)
    return Validation(errors)


def _served(fit: Fit, recording: Recording, estimates: Mapping[str, Estimates]) -> FloatArray:
    """The server's one-step predictions of all states, rows 1..T."""
    if fit.couplings is not None or fit.method == "oracle":
        server = fit.about(recording)
        server.refuse_without_rows("validate")
        shared = server.shared
        assert shared is not None
        return np.asarray(shared.filter(fit.plant.A, fit.plant.B, fit.plant.Q).predicted[1:])
    if fit.privacy is not None:
        fit.about(recording)  # refuses
    refined = np.hstack([estimates[n].refined[:-1] for n in fit.plant.names])
    u = np.hstack([recording[n].u[:-1] for n in fit.plant.names])
    return np.asarray(refined @ fit.plant.A.T + u @ fit.plant.B.T)


def _oracle_errors(plant: Plant, recording: Recording) -> dict[str, FloatArray]:
    if set(plant.names) != set(recording.names):
        raise DataError(f"validate: the oracle has units {list(plant.names)}, the recording {list(recording.names)}")
    y = np.hstack([recording[n].y for n in plant.names])
    u = np.hstack([recording[n].u for n in plant.names])
    found = kalman_filter(y, u, plant.A, plant.B, plant.C, plant.Q, plant.R)
    residual = (y - found.predicted @ plant.C.T)[1:]
    return {n: _square(residual[:, plant.output_slice(n)]) for n in plant.names}


def _mean(series: FloatArray) -> float:
    """Over the rows that were measured; NaN if there are none."""
    known = series[np.isfinite(series)]
    return float(known.mean()) if known.size else float("nan")


def _square(residual: FloatArray) -> FloatArray:
    return np.asarray(np.einsum("td,td->t", residual, residual))
