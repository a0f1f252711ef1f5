"""``counterflow.fit``: from a recording to a fit, by any method, in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from counterflow import client, server
from counterflow._version import __version__
from counterflow.errors import DataError, ModelError, OptionError
from counterflow.plant import LocalModel, Plant, Recording
from counterflow.randomness import stream
from counterflow.runtime import in_process
from counterflow.runtime.compression import compress, compressed_rows
from counterflow.runtime.history import Recorder
from counterflow.runtime.options import METHODS, TrainingOptions
from counterflow.runtime.result import Fit, Provenance, Status, UnitPart

if TYPE_CHECKING:
    from counterflow.protocol import Message

FloatArray = NDArray[np.float64]
Models = Plant | Mapping[str, LocalModel]


def fit(
    recording: Recording,
    models: Models | None = None,
    method: str = "penalty",
    *,
    seed: int = 0,
    progress: bool = False,
    estimators: Mapping[str, client.Estimator] | None = None,
    watch: Callable[[Message, bool], None] | None = None,
    over_the_wire: bool = False,
    **options: Any,
) -> Fit:
    """Learn the couplings between units from a recording, without moving a measurement.

    Parameters
    ----------
    recording : rows 0..T of every unit.
    models : what each unit knows of itself, {name: LocalModel}; or a Plant, whose local blocks are taken.
        The oracle needs the Plant.
    method : "penalty" (default), "lagrangian", "hybrid", "fedgc", or "oracle" (the true plant given).
    seed : of the initial parameters; each unit's stream derives from it and the unit's name.
    progress : show a progress bar.
    estimators : {name: Estimator}, the proprietary estimators; default: a Kalman filter on the unit's own model.
    watch : called with (message, goes_up) for every message that crosses.
    over_the_wire : encode and decode every message, as between machines.
    **options : see ``counterflow.TrainingOptions``.

    Examples
    --------
    >>> import counterflow as cf
    >>> plant = cf.random_plant(units=["boiler", "turbine"], rng=1)
    >>> recording = plant.simulate(500, rng=2)
    >>> found = cf.fit(recording, plant.locals(), method="penalty", xi=1.0)
    >>> found.status.converged
    True
    >>> found.traffic.rounds <= 10
    True
    """
    if not isinstance(recording, Recording):
        raise DataError(
            f"fit: recording must be a counterflow.Recording, got {type(recording).__name__}; "
            "build one with Recording.from_arrays or Plant.simulate"
        )
    if method not in METHODS:
        raise OptionError(f"fit: method must be one of {', '.join(map(repr, METHODS))}, got {method!r}")
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise OptionError(f"fit: seed must be a whole number of at least 0, got {seed!r}")
    provenance = Provenance(__version__, int(seed), recording.digest, method)
    if method == "oracle":
        return _oracle(recording, models, provenance, options)
    local = _checked_models(recording, models)
    chosen = TrainingOptions.parse(method, options)
    names = recording.names
    _refuse_missing(recording, method)
    parts = _unit_parts(recording, local, estimators, uses_inputs=method != "fedgc")
    data = {n: parts[n].client_data(recording[n].y, recording[n].u) for n in names}
    steps = recording.steps
    small = chosen.compress if chosen.compress is not None else 2 * compressed_rows(data) < steps
    if small:
        if watch is not None or over_the_wire:
            raise OptionError("fit: 'watch' and 'over_the_wire' show the real messages: pass compress=False with them")
        data = compress(data)
    config = _server_config(method, chosen, names, seed)
    coordinator = server.ServerState(
        config, ones=data[names[0]].ones if small else None, steps=steps if small else None
    )
    clients = {n: _client_state(parts[n], data[n], config, chosen) for n in names}
    recorder = Recorder(names)
    with _progress_bar(progress, config) as advance:

        def observe(state: server.ServerState, states: Mapping[str, client.ClientState]) -> None:
            recorder(state, states)
            advance(state)

        coordinator, clients, traffic = in_process.run(
            coordinator, clients, rows=steps, observe=observe, watch=watch, over_the_wire=over_the_wire
        )
    history = recorder.history({n: clients[n].model.proprietary_loss for n in names})
    parts = {n: parts[n].trained(clients[n].theta, clients[n].phi) for n in names}
    status = Status.of_training(coordinator, chosen)
    return Fit(method, assemble(coordinator, parts, recording.dt), parts, history, traffic, status, provenance)


def assemble(coordinator: server.ServerState, parts: Mapping[str, UnitPart], dt: float) -> Plant:
    """The estimated plant: local blocks of the units, couplings of the server."""
    evidence = coordinator.evidence
    assert evidence is not None
    B = evidence.B_local + coordinator.B_cross
    if not all(part.uses_inputs for part in parts.values()):  # FedGC: B ≡ 0
        B = np.zeros((B.shape[0], sum(part.unit.n_inputs for part in parts.values())))
    diagonals = {
        letter: _block_diagonal([getattr(part.model, letter) for part in parts.values()]) for letter in ("C", "Q", "R")
    }
    units = tuple(part.unit for part in parts.values())
    return Plant(units=units, A=evidence.A_local + coordinator.A_cross, B=B, **diagonals, dt=dt)


def _block_diagonal(blocks: list[FloatArray]) -> FloatArray:
    out = np.zeros((sum(b.shape[0] for b in blocks), sum(b.shape[1] for b in blocks)))
    row = column = 0
    for block in blocks:
        out[row : row + block.shape[0], column : column + block.shape[1]] = block
        row, column = row + block.shape[0], column + block.shape[1]
    return out


def _oracle(recording: Recording, models: Models | None, provenance: Provenance, options: Mapping[str, Any]) -> Fit:
    if options:
        raise OptionError(f"fit: method 'oracle' has no options, got {', '.join(map(repr, options))}")
    if not isinstance(models, Plant):
        raise ModelError("fit: method 'oracle' needs the true plant: pass models=plant, a counterflow.Plant")
    local = _checked_models(recording, models)
    parts = _unit_parts(recording, local, None, uses_inputs=True)
    recorder = Recorder(recording.names)
    status = Status(True, 0, 0.0, "the true plant was given; nothing was estimated")
    history = recorder.history(dict.fromkeys(recording.names, 0.0))
    return Fit("oracle", models, parts, history, in_process.Traffic(0, 0, 0), status, provenance)


def _checked_models(recording: Recording, models: Models | None) -> dict[str, LocalModel]:
    if models is None:
        raise ModelError("fit: models are needed: {unit name: LocalModel}, or a Plant whose local blocks are taken")
    found = models.locals() if isinstance(models, Plant) else models
    if not isinstance(found, Mapping):
        raise ModelError(f"fit: models must be {{unit name: LocalModel}} or a Plant, got {type(models).__name__}")
    if set(found) != set(recording.names):
        raise ModelError(
            f"fit: models are given for {sorted(map(str, found))}, the recording has {sorted(recording.names)}: "
            "give one model for every unit, by its name"
        )
    for unit in recording.units:
        model = found[unit.name]
        if not isinstance(model, LocalModel):
            raise ModelError(f"fit: the model of unit {unit.name!r} must be a LocalModel, got {type(model).__name__}")
        for what, has, wants in (
            ("inputs", model.n_inputs, unit.n_inputs),
            ("outputs", model.n_outputs, unit.n_outputs),
        ):
            if has != wants:
                raise ModelError(f"fit: the model of unit {unit.name!r} has {has} {what}, its recording has {wants}")
    return {name: found[name] for name in recording.names}


def _unit_parts(
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


def _refuse_missing(recording: Recording, method: str) -> None:
    for name in recording.names:
        missing = np.isnan(recording[name].y).any(axis=1)
        if missing.any():
            raise DataError(
                f"unit {name!r}: {int(missing.sum())} of {missing.size} rows have missing measurements (first: row "
                f"{int(np.argmax(missing))}); method {method!r} multiplies every y[t] by theta and cannot skip a row. "
                "Fit an unbroken stretch with recording.slice(start, stop)"
            )


def _server_config(method: str, chosen: TrainingOptions, names: tuple[str, ...], seed: int) -> server.ServerConfig:
    conjugate = chosen.solver == "conjugate"
    rounds = chosen.rounds if chosen.rounds is not None else (50 if conjugate else 2000)
    penalty = server.Phase("penalty", rounds, chosen.weights(names), conjugate)
    warm = server.Phase("lagrangian", chosen.warm_rounds, (chosen.rho,) * len(names))
    phases = {
        "lagrangian": (server.Phase("lagrangian", rounds, (chosen.rho,) * len(names)),),
        "hybrid": (warm, penalty),
    }.get(method, (penalty,))
    return server.ServerConfig(
        units=names,
        phases=phases,
        tolerance=chosen.tol,
        loss_tolerance=chosen.loss_tol,
        alpha_A=chosen.alpha_A,
        alpha_B=chosen.alpha_B,
        offset=method != "fedgc",
        refined_gradient=chosen.gradients == "both",
        seed=seed,
        initial_scale=_initial_scale(chosen),
    )


def _initial_scale(chosen: TrainingOptions) -> float:
    if chosen.initial_scale is not None:
        return float(chosen.initial_scale)
    return 0.0 if chosen.solver == "conjugate" else 0.1


def _client_state(
    part: UnitPart, data: client.ClientData, config: server.ServerConfig, chosen: TrainingOptions
) -> client.ClientState:
    model = client.AugmentedModel(part.working_model, data)
    draw = stream(config.seed, "augmented", part.unit.name)
    shape = (part.model.states, part.model.n_outputs)
    theta = config.initial_scale * draw.standard_normal(shape)
    phi = config.initial_scale * draw.standard_normal(shape[0]) if config.offset else np.zeros(shape[0])
    steps = client.ClientSteps(chosen.eta_1, chosen.eta_2, chosen.gamma_1, chosen.gamma_2)
    return client.ClientState(part.unit.name, model, theta, phi, steps, chosen.tol)


@contextmanager
def _progress_bar(wanted: bool, config: server.ServerConfig) -> Iterator[Callable[[server.ServerState], None]]:
    if not wanted:
        yield lambda state: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[losses]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns) as bar:
        total = sum(phase.rounds for phase in config.phases)
        task = bar.add_task("training", total=total, losses="")

        def advance(state: server.ServerState) -> None:
            record = state.record
            assert record is not None
            text = f"L_s {record.server_loss:.4g}  D {record.disentanglement:.3g}"
            bar.update(task, completed=record.round + 1, losses=text, description=record.phase)

        yield advance
        bar.update(task, total=bar.tasks[0].completed)
