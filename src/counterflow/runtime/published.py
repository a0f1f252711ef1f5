"""The published methods, set up and run in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from counterflow import client, server
from counterflow.errors import DataError, OptionError
from counterflow.plant import Plant, Recording
from counterflow.randomness import stream
from counterflow.runtime import in_process
from counterflow.runtime.compression import compress, compressed_rows
from counterflow.runtime.history import Recorder
from counterflow.runtime.options import TrainingOptions
from counterflow.runtime.result import Fit, Status, Task
from counterflow.runtime.unit_part import UnitPart, unit_parts

FloatArray = NDArray[np.float64]


def published_fit(task: Task) -> Fit:
    """Train by penalty, augmented Lagrangian, hybrid schedule, or FedGC."""
    recording, method, names = task.recording, task.method, task.recording.names
    chosen = TrainingOptions.parse(method, task.options)
    _refuse_missing(recording, method)
    parts = unit_parts(recording, task.local, task.estimators, uses_inputs=method != "fedgc")
    data = {n: parts[n].client_data(recording[n].y, recording[n].u) for n in names}
    steps = recording.steps
    seen = task.watch is not None or task.over_the_wire
    small = chosen.compress if chosen.compress is not None else not seen and 2 * compressed_rows(data) < steps
    if small:
        if seen:
            raise OptionError("fit: 'watch' and 'over_the_wire' show the real messages: pass compress=False with them")
        data = compress(data)
    config = _server_config(method, chosen, names, task.provenance.seed)
    coordinator = server.ServerState(
        config, ones=data[names[0]].ones if small else None, steps=steps if small else None
    )
    clients = {n: _client_state(parts[n], data[n], config, chosen) for n in names}
    recorder = Recorder(names)
    with _progress_bar(task.progress, config) as advance:

        def observe(state: server.State, states: Mapping[str, client.State]) -> None:
            assert isinstance(state, server.ServerState)
            recorder(state, states)
            advance(state)

        done, trained, traffic = in_process.run(
            coordinator, clients, rows=steps, observe=observe, watch=task.watch, over_the_wire=task.over_the_wire
        )
    assert isinstance(done, server.ServerState)
    history = recorder.history({n: clients[n].model.proprietary_loss for n in names})
    for name, state in trained.items():
        assert isinstance(state, client.ClientState)
        parts[name] = parts[name].trained(state.theta, state.phi)
    status = Status.of_training(done, chosen)
    return Fit(method, assemble(done, parts, recording.dt), parts, history, traffic, status, task.provenance)


def assemble(coordinator: server.ServerState, parts: Mapping[str, UnitPart], dt: float) -> Plant:
    """The estimated plant: local blocks of the units, couplings of the server."""
    evidence = coordinator.evidence
    assert evidence is not None
    B = evidence.B_local + coordinator.B_cross
    if not all(part.uses_inputs for part in parts.values()):  # FedGC: B ≡ 0
        B = np.zeros((B.shape[0], sum(part.unit.n_inputs for part in parts.values())))
    diagonals = {
        letter: server.block_diagonal([getattr(part.model, letter) for part in parts.values()])
        for letter in ("C", "Q", "R")
    }
    units = tuple(part.unit for part in parts.values())
    return Plant(units=units, A=evidence.A_local + coordinator.A_cross, B=B, **diagonals, dt=dt)


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
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[losses]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        total = sum(phase.rounds for phase in config.phases)
        task = bar.add_task("training", total=total, losses="")

        def advance(state: server.ServerState) -> None:
            record = state.record
            assert record is not None
            text = f"L_s {record.server_loss:.4g}  D {record.disentanglement:.3g}"
            bar.update(task, completed=record.round + 1, losses=text, description=record.phase)

        yield advance
        bar.update(task, total=bar.tasks[0].completed)
