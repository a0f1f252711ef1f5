"""What a fit holds, split as trust is split, and the answers it gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from counterflow import client
from counterflow.counterfactual import held_change, state_response
from counterflow.errors import DataError, OptionError, UnknownNameError
from counterflow.filtering import kalman_filter
from counterflow.plant import LocalModel, Plant, Recording, Unit
from counterflow.runtime.history import History
from counterflow.runtime.in_process import Traffic

if TYPE_CHECKING:
    from counterflow import server
    from counterflow.runtime.options import TrainingOptions

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Provenance:
    """Where a result comes from."""

    version: str
    seed: int
    data_digest: str
    method: str


@dataclass(frozen=True)
class Status:
    """How a fit ended. ``gradient`` is relative to the first round of the last phase."""

    converged: bool
    rounds: int
    gradient: float
    message: str

    def __str__(self) -> str:
        return self.message

    @classmethod
    def of_training(cls, state: server.ServerState, options: TrainingOptions) -> Status:
        record = state.record
        assert record is not None
        if state.converged:
            text = f"converged in {state.round} rounds to a relative gradient of {options.tol:g}"
        elif options.loss_tol is not None and record.server_loss <= options.loss_tol:
            text = f"stopped in round {state.round}: the server loss {record.server_loss:.4g} is at or below loss_tol"
        else:
            remedy = "give more rounds" if options.solver == "conjugate" else "give more rounds, or solver='conjugate'"
            text = f"not converged: relative gradient {record.gradient:.2g} after {state.round} rounds; {remedy}"
        return cls(state.converged, state.round, record.gradient, text)


@dataclass(frozen=True)
class UnitPart:
    """What stays at a unit: its model, its estimator, and the parameters theta, phi that it has learned."""

    unit: Unit
    model: LocalModel
    estimator: client.Estimator
    uses_inputs: bool = True
    theta: FloatArray | None = None  # (P_m, D_m)
    phi: FloatArray | None = None  # (P_m,)

    @property
    def working_model(self) -> LocalModel:
        """The model as the method sees it: FedGC knows no inputs."""
        return self.model if self.uses_inputs else replace(self.model, B=self.model.B[:, :0])

    def client_data(self, y: FloatArray, u: FloatArray) -> client.ClientData:
        seen = u if self.uses_inputs else u[:, :0]
        estimates = client.checked_estimates(self.unit.name, self.estimator, y, seen, self.model.states)
        return client.ClientData.from_rows(y, seen, estimates)

    def trained(self, theta: FloatArray, phi: FloatArray) -> UnitPart:
        return replace(self, theta=_frozen(theta), phi=_frozen(phi))


def _frozen(array: FloatArray) -> FloatArray:
    out = np.array(array, np.float64)
    out.flags.writeable = False
    return out


@dataclass(frozen=True)
class Effect:
    """Answer to "what would the effect unit's outputs do if the cause unit's inputs were changed?".

    ``mean`` (horizon, D_m): change of the measurements, row k is k+1 steps after the change began (Q1).
    ``states`` (horizon, P_m): the same at the level of states, all that the server knows (Q2).
    ``lower``, ``upper``: None where the method gives no uncertainty; ``caveats`` travel with the answer.
    """

    cause: str
    effect: str
    channels: tuple[str, ...]
    mean: FloatArray
    states: FloatArray
    caveats: tuple[str, ...] = ()
    lower: FloatArray | None = None
    upper: FloatArray | None = None
    level: float | None = None

    def __str__(self) -> str:
        peak = int(np.abs(self.mean).max(axis=1).argmax()) if self.mean.size else 0
        lines = [f"effect of {self.cause} on {self.effect}, {len(self.mean)} steps; largest after {peak + 1}:"]
        for channel, value in zip(self.channels, self.mean[peak], strict=True):
            lines.append(f"  {channel:>12}  {value:+.4g}")
        return "\n".join(lines + [f"  note: {text}" for text in self.caveats])


@dataclass(frozen=True)
class Validation:
    """One-step prediction errors |y_m[t] - ỹ_m[t]|² of row t = 1..T on data that the fit has not seen.

    ``errors[model][unit]`` is a series (T,); the models are "augmented", "proprietary", "server" and, if the true
    plant was given, "oracle".
    """

    errors: Mapping[str, Mapping[str, FloatArray]]

    def mean(self, start: int = 0, stop: int | None = None) -> dict[str, dict[str, float]]:
        """Mean over rows of each series."""
        return {
            model: {unit: float(series[start:stop].mean()) for unit, series in units.items()}
            for model, units in self.errors.items()
        }


PUBLISHED_CAVEAT = (
    "the published method cannot recover B_mn when inputs are white and is biased otherwise (docs/theory/paper.md): "
    "treat this number as the method's output, not as the plant's answer"
)


@dataclass(frozen=True)
class Fit:
    """A fitted federation.

    ``plant`` is the estimated plant; ``parts`` holds what stays at each unit; ``history``, ``traffic``, ``status`` and
    ``provenance`` tell how it came about.
    """

    method: str
    plant: Plant
    parts: Mapping[str, UnitPart]
    history: History
    traffic: Traffic
    status: Status
    provenance: Provenance
    caveats: tuple[str, ...] = field(default=())

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.parts)

    def summary(self) -> str:
        """A readable account of the fit."""
        lines = [f"Counterflow fit, method {self.method!r}: {self.status}", f"traffic: {self.traffic}"]
        if len(self.history):
            lines.append(
                f"server loss {self.history.server_loss[-1]:.4g}, "
                f"disentanglement {self.history.disentanglement[-1]:.3g}"
            )
            for name in self.names:
                own, base = self.history.client_loss[name][-1], self.history.proprietary_loss[name][-1]
                lines.append(
                    f"  {name}: augmented loss {own:.4g}, proprietary {base:.4g} (ratio {own / base:.3f}), "
                    f"delta_d {self.history.delta_d[name][-1]:.3g}"
                )
        return "\n".join(lines)

    __str__ = summary

    def save(self, directory: str | Path) -> None:
        """Write the fit to a directory, split as trust is split; ``counterflow.load`` reads it back."""
        from counterflow.runtime import storage

        storage.save(self, directory)

    def effect(
        self,
        cause: str,
        effect: str,
        change: Sequence[float] | FloatArray | Mapping[str, float],
        horizon: int = 1,
        duration: int | None = None,
    ) -> Effect:
        """Effect of a change of ``cause``'s inputs on ``effect``'s outputs (paper, Q1 and Q2; any horizon).

        Parameters
        ----------
        change : one number per input channel of ``cause``, or {channel: number} (others unchanged).
        horizon : steps to follow.
        duration : steps for which the change is held; None: throughout.

        Examples
        --------
        >>> import counterflow as cf
        >>> plant = cf.random_plant(units=["boiler", "turbine"], rng=1)
        >>> oracle = cf.fit(plant.simulate(100, rng=2), plant, method="oracle")
        >>> oracle.effect(cause="boiler", effect="turbine", change={"u1": 1.0}, horizon=5).mean.shape
        (5, 8)
        """
        source, target = self.plant.unit(cause), self.plant.unit(effect)
        _positive("horizon", horizon)
        if duration is not None:
            _positive("duration", duration)
        schedule = np.zeros((horizon, self.plant.B.shape[1]))
        schedule[:, self.plant.input_slice(cause)] = held_change(_as_change(source, change), horizon, duration)
        states = state_response(self.plant.A, self.plant.B, schedule)[:, self.plant.state_slice(effect)]
        caveats = () if self.method == "oracle" else (PUBLISHED_CAVEAT,)
        mean = states @ self.parts[effect].model.C.T
        return Effect(cause, effect, target.output_names, _frozen(mean), _frozen(states), caveats)

    def aggregate_effect(self, unit: str, phi_1: FloatArray, phi_0: FloatArray | None = None) -> FloatArray:
        """Change of ``unit``'s outputs if the joint effect of all others' inputs were phi_1 instead of phi_0 (Q3).

        phi_0 defaults to the learned phi: C_mm (phi_1 - phi_0), all from what the unit holds (paper, Eq. (18)).
        """
        part = self.parts[self.plant.unit(unit).name]
        base = part.phi if phi_0 is None else np.asarray(phi_0, np.float64)
        other = np.asarray(phi_1, np.float64)
        shape = (part.model.states,)
        if base is None:
            raise OptionError(f"aggregate_effect: method {self.method!r} learns no phi; give phi_0")
        if base.shape != shape or other.shape != shape:
            raise DataError(
                f"aggregate_effect: phi of unit {unit!r} has shape {shape}, got {other.shape} and {base.shape}"
            )
        return np.asarray(part.model.C @ (other - base))

    def validate(self, recording: Recording, oracle: Plant | None = None) -> Validation:
        """One-step prediction errors on new data, of each unit's models, the server and (if given) the oracle.

        The units send the server their refined states and inputs, and get back their own predicted states.
        """
        if set(recording.names) != set(self.names):
            raise DataError(f"validate: the recording has units {list(recording.names)}, the fit {list(self.names)}")
        data = {n: self.parts[n].client_data(recording[n].y, recording[n].u) for n in self.names}
        refined = np.hstack([data[n].refined for n in self.names])
        u = np.hstack([recording[n].u[:-1] for n in self.names])
        served = refined @ self.plant.A.T + u @ self.plant.B.T
        errors: dict[str, dict[str, FloatArray]] = {"proprietary": {}, "server": {}}
        for name in self.names:
            part, d = self.parts[name], data[name]
            C = part.model.C
            errors["proprietary"][name] = _square(d.measured - d.predicted @ C.T)
            errors["server"][name] = _square(d.measured - served[:, self.plant.state_slice(name)] @ C.T)
            if part.theta is not None and part.phi is not None:
                states = client.AugmentedModel(part.working_model, d).states(part.theta, part.phi)
                errors.setdefault("augmented", {})[name] = _square(d.measured - states @ C.T)
        if oracle is not None:
            errors["oracle"] = _oracle_errors(oracle, recording)
        return Validation(errors)


def _oracle_errors(plant: Plant, recording: Recording) -> dict[str, FloatArray]:
    if set(plant.names) != set(recording.names):
        raise DataError(f"validate: the oracle has units {list(plant.names)}, the recording {list(recording.names)}")
    y = np.hstack([recording[n].y for n in plant.names])
    u = np.hstack([recording[n].u for n in plant.names])
    found = kalman_filter(y, u, plant.A, plant.B, plant.C, plant.Q, plant.R)
    residual = (y - found.predicted @ plant.C.T)[1:]
    return {n: _square(residual[:, plant.output_slice(n)]) for n in plant.names}


def _square(residual: FloatArray) -> FloatArray:
    return np.asarray(np.einsum("td,td->t", residual, residual))


def _positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise OptionError(f"effect: {name} must be a whole number of at least 1, got {value!r}")


def _as_change(unit: Unit, change: Sequence[float] | FloatArray | Mapping[str, float]) -> FloatArray:
    if isinstance(change, Mapping):
        out = np.zeros(unit.n_inputs)
        for channel, value in change.items():
            if channel not in unit.input_names:
                raise UnknownNameError(
                    f"unit {unit.name!r} has no input {channel!r}; its inputs are {', '.join(unit.input_names)}"
                )
            out[unit.input_names.index(channel)] = value
    else:
        out = np.asarray(change, np.float64)
    if out.shape != (unit.n_inputs,) or not np.isfinite(out).all():
        raise DataError(
            f"effect: change at unit {unit.name!r} needs {unit.n_inputs} finite numbers, one for each of "
            f"{', '.join(unit.input_names)}; got {change!r}"
        )
    return out
