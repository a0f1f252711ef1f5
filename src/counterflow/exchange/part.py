"""What stays at a unit: its model, its estimator, and what it has learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray, block_diagonal, frozen
from counterflow.caveats import Caveat
from counterflow.control.controller import Controller
from counterflow.errors import DataError, ModelError, OptionError
from counterflow.exchange.compression import sufficient_message
from counterflow.exchange.estimators import Estimates, Estimator, KalmanEstimator, checked_estimates
from counterflow.exchange.task import Task, UnitData
from counterflow.filtering import Compression, compress
from counterflow.identification.sensors import Sensor, judged
from counterflow.plant import LocalModel, OperatingPoint, Plant, Recording, Unit
from counterflow.protocol import Sufficient


@dataclass(frozen=True, eq=False)
class UnitPart:
    """What stays at a unit: its model, its estimator, and the parameters theta, phi that it has learned."""

    unit: Unit
    model: LocalModel
    estimator: Estimator
    uses_inputs: bool = True
    theta: FloatArray | None = None  # (P_m, D_m)
    phi: FloatArray | None = None  # (P_m,)
    output_level: FloatArray | None = None  # (D_m,) where the outputs rest, if the model is of departures from it
    point: OperatingPoint | None = None  # the same for its inputs
    link: str | None = None  # of a stored part: which server's file it belongs to
    rows_digest: str | None = None  # of a private fit: of the rows that it rests on; of moments, of each window
    C_doubt: tuple[FloatArray, FloatArray] | None = None  # of an estimated C: variance of each row, times a matrix
    caveats: tuple[Caveat, ...] = ()  # what its answers must be read with and the server does not know
    controllers: tuple[Controller, ...] = field(default=(), metadata={"optional": True})  # and what they do
    sensors: tuple[Sensor, ...] = ()  # what the fitted rows told of them; none: readings are taken as they are

    def believed(self, y: FloatArray) -> FloatArray:
        """Measurements (T+1, D_m) with NaN where a reading is not to be believed.

        All rows are judged by what the fitted ones told of the sensors, so that ten new rows are judged as a thousand.
        What begins to go wrong with a sensor later is noticed when a new fit is made. A single row is taken as it is:
        there is nothing beside it to judge it by.
        """
        return judged(self.sensors, y).values if self.sensors and y.ndim == 2 else y

    def departures(self, y: FloatArray) -> FloatArray:
        """Measurements as the model takes them."""
        known = self.believed(y)
        return known if self.output_level is None else known - self.output_level

    def at_level(self, departures: FloatArray) -> FloatArray:
        """Measurements of which the model says ``departures``."""
        return departures if self.output_level is None else departures + self.output_level

    @property
    def untold(self) -> NDArray[np.bool_]:
        """(D_m,): channels that never moved or were hardly ever read, so that a fit from logs knows nothing of them."""
        return np.asarray(~self.model.C.any(axis=1) & (self.C_doubt is not None))

    def seen_in(self, states: FloatArray) -> FloatArray:
        """Departures of the outputs (n, D_m) in states (n, P_m); NaN for channels of which nothing is known."""
        return np.where(self.untold, np.nan, states @ self.model.C.T)

    def model_inputs(self, u: FloatArray) -> FloatArray:
        """Inputs as the model takes them."""
        return u if self.point is None else self.point.departures(u)

    def sufficient(self, y: FloatArray, u: FloatArray) -> Sufficient:
        """What the unit sends of a recording."""
        return sufficient_message(self.unit.name, self.model, self.departures(y), self.model_inputs(u))

    @property
    def working_model(self) -> LocalModel:
        """The model as the method sees it: FedGC knows no inputs."""
        return self.model if self.uses_inputs else replace(self.model, B=self.model.B[:, :0])

    def estimates(self, y: FloatArray, u: FloatArray) -> tuple[FloatArray, FloatArray, Estimates]:
        """Rows as the working model takes them, y (T+1, D_m) and u (T+1, U_m), and what the estimator makes of them."""
        y, u = self.departures(y), self.model_inputs(u)
        seen = u if self.uses_inputs else u[:, :0]
        return y, seen, checked_estimates(self.unit.name, self.estimator, y, seen, self.model.states)

    def message(self, y: FloatArray) -> FloatArray:
        """The sufficient numbers s (r,) of one row of measurements y (D_m,), as ``Fit.predictor`` takes them."""
        row = np.asarray(y, np.float64)
        if row.shape != (self.model.n_outputs,):
            raise DataError(f"unit {self.unit.name!r}: one row of {self.model.n_outputs} measurements, got {row.shape}")
        reach = self.squeezed.reach
        size = np.abs(reach).max(axis=0, initial=0.0)
        told = size > 1e-12 * size.max(initial=0.0)  # a channel that tells nothing may be missing
        return np.asarray(reach[:, told] @ self.departures(row)[told])

    def measurement(self, state: FloatArray) -> FloatArray:
        """Measurements (D_m,) that a state (P_m,) foretells."""
        return np.asarray(self.at_level(self.model.C @ np.asarray(state, np.float64)))

    @cached_property
    def squeezed(self) -> Compression:
        """How its measurements become what it sends."""
        return compress(self.model.C, self.model.R)

    def with_blocks(self, A: FloatArray, B: FloatArray, Q: FloatArray, numbers: int) -> UnitPart:
        """Of a fit from logs: the same numbers (the first states), in a system with other blocks A, B and Q."""
        wide = np.zeros((self.model.n_outputs, len(A)))
        wide[:, :numbers] = self.model.C[:, :numbers]
        model = LocalModel(A=A, B=B, C=wide, Q=Q, R=self.model.R)
        doubt = self.C_doubt
        if doubt is not None:
            matrix = np.zeros((len(A), len(A)))
            matrix[:numbers, :numbers] = doubt[1][:numbers, :numbers]
            doubt = (doubt[0], matrix)
        unit = replace(self.unit, states=len(A))
        return replace(self, unit=unit, model=model, estimator=KalmanEstimator(model), C_doubt=doubt, link=None)

    def trained(self, theta: FloatArray, phi: FloatArray) -> UnitPart:
        return replace(self, theta=frozen(theta), phi=frozen(phi))


def plant_of(parts: Mapping[str, UnitPart], A: FloatArray, B: FloatArray, Q: FloatArray | None, dt: float) -> Plant:
    """The plant of units' own parts and the server's A, B and Q; Q None: the units' own.

    Process noise that units share has no place in a plant: each unit's own part is kept.
    """
    models = [part.model for part in parts.values()]
    C, R, own = (block_diagonal([getattr(model, letter) for model in models]) for letter in "CRQ")
    within = block_diagonal([np.ones_like(model.Q) for model in models])
    units = tuple(part.unit for part in parts.values())
    return Plant(units=units, A=A, B=B, C=C, Q=own if Q is None else Q * within, R=R, dt=dt)


def sufficient_messages(parts: Mapping[str, UnitPart], names: Sequence[str], recording: Recording) -> list[Sufficient]:
    """What units send of a recording, without noise."""
    return [parts[name].sufficient(recording[name].y, recording[name].u) for name in names]


def given_part(task: Task, own: UnitData, uses_inputs: bool = True) -> UnitPart:
    """What stays at a unit whose model is given, before it has learned anything."""
    name = own.unit.name
    if own.model is None:
        raise ModelError(
            f"unit {name!r}: {task.label} needs its local model, and it has brought none; give the model, or fit from "
            "logs",
            code="no-model",
        )
    if own.estimator is not None and not isinstance(own.estimator, Estimator):
        raise OptionError(f"{task.label}: the estimator of unit {name!r} must have a method estimate(y, u)")
    used = own.model if uses_inputs else replace(own.model, B=own.model.B[:, :0])
    estimator = KalmanEstimator(used) if own.estimator is None else own.estimator
    return UnitPart(replace(own.unit, states=own.model.states), own.model, estimator, uses_inputs)
