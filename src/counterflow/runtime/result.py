"""What a fit holds, split as trust is split, and the answers it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from counterflow import client
from counterflow.counterfactual import held_change, state_response
from counterflow.errors import DataError, OptionError, UnidentifiedError, UnknownNameError
from counterflow.filtering import kalman_filter
from counterflow.plant import LocalModel, Plant, Recording, Unit
from counterflow.protocol import encoded_size
from counterflow.runtime.history import History
from counterflow.runtime.in_process import Traffic
from counterflow.server.estimation import Estimated
from counterflow.server.identifiability import Doubt
from counterflow.server.influence import InfluenceGraph, influence_graph
from counterflow.server.likelihood import SharedRecord
from counterflow.server.online import Memory, Predictor, remember, update
from counterflow.server.sufficient import share
from counterflow.server.uncertainty import Uncertainty, norm_quantile, response_root

if TYPE_CHECKING:
    import polars
    from matplotlib.figure import Figure

    from counterflow import server
    from counterflow.protocol import Message
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
class Task:
    """One call of ``fit``, checked: what every method needs to know."""

    recording: Recording
    local: Mapping[str, LocalModel]
    method: str
    provenance: Provenance
    options: Mapping[str, Any]
    progress: bool
    watch: Callable[[Message, bool], None] | None
    over_the_wire: bool
    estimators: Mapping[str, client.Estimator] | None


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
            given = any(step is not None for step in (options.eta_1, options.eta_2, options.gamma_1, options.gamma_2))
            other = options.solver == "gradient" and not given and record.phase == "penalty"
            remedy = "give more rounds, or solver='conjugate'" if other else "give more rounds"
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


def unit_parts(
    recording: Recording,
    local: Mapping[str, LocalModel],
    estimators: Mapping[str, client.Estimator] | None,
    uses_inputs: bool,
) -> dict[str, UnitPart]:
    chosen = dict(estimators or {})
    for name, estimator in chosen.items():
        if name not in recording.names:
            raise OptionError(f"fit: an estimator is given for {name!r}, but the units are {list(recording.names)}")
        if not isinstance(estimator, client.Estimator):
            raise OptionError(f"fit: the estimator of unit {name!r} must have a method estimate(y, u)")
    out = {}
    for unit in recording.units:
        model = local[unit.name]
        used = model if uses_inputs else replace(model, B=model.B[:, :0])
        estimator = chosen.get(unit.name, client.KalmanEstimator(used))
        if unit.states != model.states:
            unit = replace(unit, states=model.states)
        out[unit.name] = UnitPart(unit, model, estimator, uses_inputs)
    return out


def _frozen(array: FloatArray) -> FloatArray:
    out = np.array(array, np.float64)
    out.flags.writeable = False
    return out


@dataclass(frozen=True)
class Couplings:
    """What the server knows after a maximum-likelihood fit: estimate, data it rests on, uncertainty, doubts."""

    found: Estimated
    shared: SharedRecord
    spread: Uncertainty | None
    doubts: tuple[Doubt, ...]
    memory: Memory | None = None  # of an updated fit: what is kept of all rows so far


@dataclass(frozen=True)
class StandardErrors:
    """Of every entry of A (P, P) and B (P, U): zero where given, NaN where the data do not determine it."""

    A: FloatArray
    B: FloatArray


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

    def to_frame(self) -> polars.DataFrame:
        """One row a step and channel: step, channel, mean, and lower and upper where there are any."""
        import polars as pl

        steps, count = self.mean.shape
        columns: dict[str, Any] = {
            "step": np.repeat(np.arange(1, steps + 1), count),
            "channel": list(self.channels) * steps,
            "mean": self.mean.ravel(),
        }
        if self.lower is not None and self.upper is not None:
            columns |= {"lower": self.lower.ravel(), "upper": self.upper.ravel()}
        return pl.DataFrame(columns)

    def plot(self) -> Figure:
        """A matplotlib Figure of the channels that move most."""
        from counterflow.runtime.plots import effect_figure

        return effect_figure(self)

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
    couplings: Couplings | None = field(default=None, repr=False)

    @property
    def log_likelihood(self) -> float:
        """Of the data that the server has seen (NaN for the published methods)."""
        return float("nan") if self.couplings is None else self.couplings.found.log_likelihood

    @cached_property
    def standard_errors(self) -> StandardErrors:
        """Standard errors of A and B."""
        return StandardErrors(*self._spread.standard_errors)

    @property
    def _spread(self) -> Uncertainty:
        if self.couplings is None:
            raise OptionError(f"method {self.method!r} gives no uncertainty; fit with method='sufficient'")
        if self.couplings.spread is None:
            raise OptionError(
                "standard errors were not computed for this fit (too many couplings, or uncertainty=False): fit with "
                "uncertainty=True, or fewer units at once"
            )
        return self.couplings.spread

    def graph(self, rate: float = 0.05) -> InfluenceGraph:
        """Which unit acts on which: block tests of A_mn and B_mn with false-discovery rate ``rate``.

        Examples
        --------
        >>> import counterflow as cf
        >>> plant = cf.random_plant(units=["boiler", "turbine", "condenser"], topology="chain", rng=1)
        >>> found = cf.fit(plant.simulate(3000, rng=2), plant.locals())
        >>> found.graph().direct()
        (('boiler', 'turbine'), ('turbine', 'condenser'))
        >>> found.graph().edge("boiler", "condenser").reaches
        True
        """
        if not 0 < rate < 1:
            raise OptionError(f"graph: rate must lie between 0 and 1, got {rate!r}")
        spread = self._spread
        assert self.couplings is not None
        return influence_graph(self.plant.A, self.plant.B, self.couplings.shared.observation, spread, rate)

    def update(self, recording: Recording) -> Fit:
        """A new fit that takes in new rows without going over the past ones again.

        ``recording`` continues the fitted one without a gap: its row 0 follows the last row. What the past said is kept
        as a quadratic around the estimate, so the result is that of a fit of all rows up to terms of order 1/T; the
        cost grows with the new rows. Process noise stays as it is.

        Examples
        --------
        >>> import counterflow as cf
        >>> plant = cf.random_plant(units=2, rng=1)
        >>> recording = plant.simulate(2000, rng=2)
        >>> found = cf.fit(recording.slice(0, 1500), plant.locals()).update(recording.slice(1500, 2001))
        >>> found.status.converged
        True
        """
        memory = self._memory
        if set(recording.names) != set(self.names):
            raise DataError(f"update: the recording has units {list(recording.names)}, the fit {list(self.names)}")
        messages = [
            client.sufficient_message(n, self.parts[n].model, recording[n].y, recording[n].u) for n in self.names
        ]
        size = sum(encoded_size(message) for message in messages)
        found, spread, later = update(memory, share(messages))
        assert self.couplings is not None
        traffic = Traffic(self.traffic.rounds + 1, self.traffic.bytes_up + size, self.traffic.bytes_down)
        status = Status(
            found.converged, found.evaluations, float(np.sqrt(found.decrement)),
            f"updated with {recording.rows} rows in {found.evaluations} passes over them; {later.rows} rows in all",
        )  # fmt: skip
        couplings = Couplings(found, self.couplings.shared, spread, self.couplings.doubts, later)
        plant = self.plant.replace(A=found.A, B=found.B)
        return replace(self, plant=plant, traffic=traffic, status=status, couplings=couplings)

    @property
    def _memory(self) -> Memory:
        couplings = self.couplings
        if couplings is None:
            raise OptionError(f"method {self.method!r} keeps no likelihood to update; fit with method='sufficient'")
        return couplings.memory or remember(couplings.shared, couplings.found, self._spread)

    def predictor(self) -> Predictor:
        """One-step predictor at the server, standing after the last row of the fitted recording.

        ``predictor, states = predictor.step(values, inputs)`` takes each unit's newest message and input and returns
        each unit's own predicted state.
        """
        if self.couplings is None:
            raise OptionError(f"method {self.method!r} has no predictor; fit with method='sufficient'")
        return Predictor.settled(self.couplings.shared, self.couplings.found)

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

    @property
    def privacy(self) -> None:
        """What was spent of a privacy budget: nothing, because nothing was made private."""
        return None

    def plot(self) -> Figure:
        """A matplotlib Figure: the training record of a published method, or else the estimated couplings."""
        from counterflow.runtime.plots import couplings_figure, history_figure

        return history_figure(self.history) if len(self.history) else couplings_figure(self)

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
        level: float = 0.95,
    ) -> Effect:
        """Effect of a change of ``cause``'s inputs on ``effect``'s outputs (paper, Q1 and Q2; any horizon).

        Parameters
        ----------
        change : one number per input channel of ``cause``, or {channel: number} (others unchanged).
        horizon : steps to follow.
        duration : steps for which the change is held; None: throughout.
        level : of the intervals (delta method on the Fisher information).

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
        self._refuse_doubtful(source, schedule[:, self.plant.input_slice(cause)])
        whole = state_response(self.plant.A, self.plant.B, schedule)
        C, own = self.parts[effect].model.C, self.plant.state_slice(effect)
        mean, states = _frozen(whole[:, own] @ C.T), _frozen(whole[:, own])
        if self.couplings is None:
            caveats = () if self.method == "oracle" else (PUBLISHED_CAVEAT,)
            return Effect(cause, effect, target.output_names, mean, states, caveats)
        if self.couplings.spread is None:
            note = ("standard errors were not computed for this fit, so there is no interval",)
            return Effect(cause, effect, target.output_names, mean, states, note)
        if not 0 < level < 1:
            raise OptionError(f"effect: level must lie between 0 and 1, got {level!r}")
        root = response_root(self.plant.A, schedule, whole, self.couplings.spread, own)  # (horizon, P_m, k)
        deviation = np.sqrt(np.square(C @ root).sum(axis=2))
        half = float(norm_quantile(level)) * deviation
        return Effect(
            cause, effect, target.output_names, mean, states, (), _frozen(mean - half), _frozen(mean + half), level,
        )  # fmt: skip

    def _refuse_doubtful(self, source: Unit, schedule: FloatArray) -> None:
        """A change of an input whose effect the data do not determine has no answer."""
        moved = np.flatnonzero(np.abs(schedule).max(axis=0, initial=0.0) > 0)
        for doubt in self.couplings.doubts if self.couplings is not None else ():
            if doubt.cause != source.name or doubt.letter != "B":
                continue
            if not doubt.channels or set(doubt.channels) & set(moved.tolist()):
                raise UnidentifiedError(f"effect: not to be told from these data. {doubt}")

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

        The units send the server their refined states and inputs (or sufficient messages, if the fit rests on them),
        and get back their own predicted states.
        """
        if set(recording.names) != set(self.names):
            raise DataError(f"validate: the recording has units {list(recording.names)}, the fit {list(self.names)}")
        data = {n: self.parts[n].client_data(recording[n].y, recording[n].u) for n in self.names}
        served = self._served(recording, data)
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

    def _served(self, recording: Recording, data: Mapping[str, client.ClientData]) -> FloatArray:
        """The server's one-step predictions of all states, rows 1..T."""
        if self.couplings is not None:
            messages = [
                client.sufficient_message(n, self.parts[n].model, recording[n].y, recording[n].u) for n in self.names
            ]
            predicted = share(messages).filter(self.plant.A, self.plant.B, self.plant.Q).predicted
            return np.asarray(predicted[1:])
        refined = np.hstack([data[n].refined for n in self.names])
        u = np.hstack([recording[n].u[:-1] for n in self.names])
        return np.asarray(refined @ self.plant.A.T + u @ self.plant.B.T)


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
