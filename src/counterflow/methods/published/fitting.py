"""The published methods, set up and run in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat
from counterflow.errors import DataError, OptionError
from counterflow.fits import in_process
from counterflow.fits.fit import Fit
from counterflow.fits.history import History, Recorder
from counterflow.fits.outcome import Status, Task
from counterflow.fits.privacy import PrivacyReport, Spending, unit_digest
from counterflow.methods.machines import ServerState, UnitState
from counterflow.methods.options import TrainingOptions
from counterflow.methods.part import UnitPart, unit_parts
from counterflow.methods.published.augmented import AugmentedModel, ClientData
from counterflow.methods.published.compression import compress, compressed_rows
from counterflow.methods.published.contraction import estimator_responses, signal_bound
from counterflow.methods.published.server import GradientNoise, Phase, ServerConfig, TrainingServer
from counterflow.methods.published.unit import ClientSteps, MessageNoise, TrainingUnit
from counterflow.methods.sufficient.private import clipped_rows
from counterflow.methods.sufficient.server import block_diagonal
from counterflow.plant import Plant, Recording
from counterflow.privacy import Cost, Privacy, classical_multiplier
from counterflow.protocol import Message, PerturbedStates
from counterflow.randomness import stream

PRIVATE_ROUNDS = 10
MECHANISM = (
    "Gaussian noise of Delta sqrt(2 ln(1.25/delta))/epsilon on every row of the messages (Delta = kappa_m R_max) and "
    "of the gradients (Delta = 2/T (1 + |A_mm|) kappa_mix R_max)"
)
DROWNED = (
    "the noise of this training grew {growth:.3g}-fold over its rounds, because it moves theta and theta raises the "
    "sensitivity: the estimates are made of noise. Give a larger epsilon, fewer rounds, smaller steps or more rows, or "
    "use method 'sufficient'"
)
NOT_COVERED = (
    "inputs: they are noised like the states, but the analysis is about measurements only",
    "local models A_mm, B_mm and |C_mm|: sent as they are, and taken to come from other data",
)


def published_fit(task: Task) -> Fit:
    """Train by penalty, augmented Lagrangian, hybrid schedule, or FedGC."""
    recording, method, names = task.recording, task.method, task.recording.names
    chosen = TrainingOptions.parse(method, private_options(method, task.options, task.privacy))
    _refuse_missing(recording, method)
    parts = unit_parts(recording, task.local, task.estimators, uses_inputs=method != "fedgc")
    config = server_config(method, chosen, names, task.provenance.seed)
    if task.privacy is not None:
        return _private_fit(task, task.privacy, chosen, parts, config)
    data = {n: parts[n].client_data(recording[n].y, recording[n].u) for n in names}
    steps = recording.steps
    seen = task.watch is not None or task.over_the_wire
    small = chosen.compress if chosen.compress is not None else not seen and 2 * compressed_rows(data) < steps
    if small:
        if seen:
            raise OptionError("fit: 'watch' and 'over_the_wire' show the real messages: pass compress=False with them")
        data = compress(data)
    coordinator = TrainingServer(
        config, ones=data[names[0]].ones if small else None, steps=steps if small else None
    )
    clients = {n: client_state(parts[n], data[n], config, chosen) for n in names}
    done, _, traffic, history, parts = _train(task, coordinator, clients, parts)
    status = Status.of_training(done, chosen)
    return Fit(method, assemble(done, parts, recording.dt), parts, history, traffic, status, task.provenance)


def _train(
    task: Task,
    coordinator: TrainingServer,
    clients: Mapping[str, TrainingUnit],
    parts: Mapping[str, UnitPart],
    leaving: Callable[[Message], None] | None = None,
) -> tuple[TrainingServer, dict[str, TrainingUnit], in_process.Traffic, History, dict[str, UnitPart]]:
    """Run the conversation; the last is the units' parts with what they have learned."""
    recorder = Recorder(task.recording.names)
    with _progress_bar(task.progress, coordinator.config) as advance:

        def observe(state: ServerState, states: Mapping[str, UnitState]) -> None:
            assert isinstance(state, TrainingServer)
            recorder(state, states)
            advance(state)

        done, states, traffic = in_process.run(
            coordinator,
            clients,
            rows=task.recording.steps,
            observe=observe,
            watch=task.watch,
            over_the_wire=task.over_the_wire,
            leaving=leaving,
        )
    assert isinstance(done, TrainingServer)
    history = recorder.history({n: clients[n].model.proprietary_loss for n in task.recording.names})
    trained = {n: state for n, state in states.items() if isinstance(state, TrainingUnit)}
    return done, trained, traffic, history, {n: parts[n].trained(s.theta, s.phi) for n, s in trained.items()}


def private_options(method: str, options: Mapping[str, Any], privacy: Privacy | None) -> dict[str, Any]:
    """Options with the defaults of a private training: few rounds, because each of them costs a share of the budget.

    As they are, if the training is not private.
    """
    given = dict(options)
    if privacy is None:
        return given
    if privacy.window > 1:
        raise OptionError(
            f"fit: the published analysis knows one measurement only, not window={privacy.window}; leave it out, "
            "or use method='sufficient'"
        )
    for name, why in (
        ("tol", "a private training runs its rounds, whatever the gradients are"),
        ("loss_tol", "a private training runs its rounds, whatever the losses are"),
    ):
        if given.get(name) is not None:
            raise OptionError(f"fit: option {name!r} is a stopping rule, but {why}; leave it out, give rounds")
    if given.get("compress"):
        raise OptionError("fit: option 'compress' does not go with privacy, whose noise is per row; leave it out")
    if given.get("solver", "gradient") == "conjugate":
        raise OptionError(
            "fit: option 'solver'='conjugate' does not go with privacy: noise differs by the round; leave it out"
        )
    given.setdefault("solver", "gradient")
    given.setdefault("warm_rounds", PRIVATE_ROUNDS // 2)
    if given.get("rounds") is None:
        given["rounds"] = PRIVATE_ROUNDS // 2 if method == "hybrid" else PRIVATE_ROUNDS
    return given


def shares_of(privacy: Privacy, config: ServerConfig) -> tuple[float, float]:
    """ε and δ of one message, and of one gradient, in a training of so many rounds."""
    rounds = sum(phase.rounds for phase in config.phases)
    return privacy.epsilon / (2 * rounds), privacy.delta / (2 * rounds)


def private_client_state(
    part: UnitPart, y: FloatArray, u: FloatArray, privacy: Privacy, config: ServerConfig, chosen: TrainingOptions
) -> tuple[TrainingUnit, float]:
    """A unit's state machine with the paper's noise, and the share of its rows y (T+1, D_m) that R_max has cut."""
    bound = signal_bound(part.unit, part.model, u, privacy.clip, part.uses_inputs)
    inside, cut = clipped_rows(y, bound)
    data = part.client_data(inside, clipped_rows(u, bound)[0])
    responses = estimator_responses(part.unit.name, part.estimator, part.working_model, len(y))
    noise = MessageNoise(responses, bound, classical_multiplier(*shares_of(privacy, config)), privacy.source)
    return replace(client_state(part, data, config, chosen), noise=noise), cut


def _private_fit(
    task: Task, privacy: Privacy, chosen: TrainingOptions, parts: Mapping[str, UnitPart], config: ServerConfig
) -> Fit:
    """The same training with the paper's noise on both channels of every round, and its accounting."""
    recording, names = task.recording, task.recording.names
    rounds = sum(phase.rounds for phase in config.phases)
    shares = shares_of(privacy, config)
    clients, cut = {}, {}
    for name in names:
        y, u = recording[name].y, recording[name].u
        clients[name], cut[name] = private_client_state(parts[name], y, u, privacy, config, chosen)
    config = replace(config, noise=GradientNoise(classical_multiplier(*shares), privacy.source))
    cost = Cost(*privacy.span(recording.rows), epsilon=2 * shares[0], delta=2 * shares[1])
    sigmas: dict[str, list[float]] = {name: [] for name in names}
    label = f"fit {task.provenance.data_digest[:12]}"
    with Spending.start(privacy, names, label, MECHANISM, {n: [cost] * rounds for n in names}) as spending:

        def leaving(message: Message) -> None:
            assert isinstance(message, PerturbedStates)
            sigmas[message.unit].append(message.noise)
            # the gradient that answers it is paid for here, too: its noise is added at the server
            spending.record(message.unit, cost, f"round {message.round}: message and gradient")

        done, trained, traffic, history, learned = _train(task, TrainingServer(config), clients, parts, leaving)
        units = {}
        for name, state in trained.items():
            assert state.noise is not None
            units[name] = replace(
                spending.spent(name), clip=state.noise.bound, sigma=max(sigmas[name]), clipped=cut[name]
            )
    growth = max(max(each) / each[0] if each[0] > 0 else 1.0 for each in sigmas.values())
    report = PrivacyReport(
        epsilon=max(unit.epsilon for unit in units.values()),
        delta=privacy.delta,
        window=1,
        accounting="published",
        mechanism=f"{MECHANISM}; {rounds} rounds, each with epsilon {shares[0]:.4g} and delta {shares[1]:.3g} for the "
        "message and as much for the gradient, added up",
        source=str(privacy.source),
        durable=privacy.ledger is not None,
        units=MappingProxyType(units),
        excluded=NOT_COVERED,
        gaps=published_gaps(done, trained, shares[0], growth),
    )
    record = done.record
    assert record is not None
    text = f"ran its {rounds} rounds: a private training has no stopping rule that looks at what it has found"
    learned = {n: replace(part, rows_digest=unit_digest(recording, n)) for n, part in learned.items()}
    return Fit(
        task.method,
        assemble(done, learned, recording.dt),
        learned,
        history,
        traffic,
        Status(False, done.round, record.gradient, text),
        task.provenance,
        caveats=(Caveat("noise-grew", "", DROWNED.format(growth=growth)),) if growth > 2 else (),
        privacy=report,
    )


def published_gaps(
    done: TrainingServer, trained: Mapping[str, TrainingUnit], epsilon: float, growth: float
) -> tuple[str, ...]:
    """What the published analysis leaves open, with the numbers of this fit where it has some.

    ``epsilon``: of one message or gradient; ``growth``: of the messages' noise since the first round.
    """
    releases = [state.release for state in trained.values() if state.release is not None]
    ratio = max(r.constants.trajectory / r.constants.message for r in releases)
    trajectory = (
        f"taken together the rows of one message move by {ratio:.2g} times what is accounted for here"
        if ratio > 1
        else f"here that is hidden by the triangle inequality in kappa_m (all rows together: {ratio:.2g} of it)"
    )
    holds = "which it is here" if epsilon <= 1 else "which it is not here, so the noise may be too small"
    weakest = min(float(np.linalg.norm(state.model.model.C, 2)) for state in trained.values())
    small = f", which is too small here (the smallest |C_mm| is {weakest:.2g})" if weakest < 1 else ""
    penalty = max(float(phase.penalty.max()) for phase in done.config.phases)
    return (
        "one measurement touches every later row of the message, and the formula bounds one row: the trajectory is one "
        f"release, and the sum over t is missing; {trajectory}",
        "theta_m and phi_m are trained on measurements without noise, and carry every measurement into every row of "
        "every later message, earlier rows included",
        "replacing a measurement moves it by up to 2 R_y, the formula has R_y: the noise is half of what it should be",
        f"the formula sqrt(2 ln(1.25/delta))/epsilon holds for an epsilon of at most 1 per release, {holds} "
        f"({epsilon:.3g})",
        "A_mm, B_mm, |C_mm|, R_max, beta_m, L_m, C_msg and the noise level are sent as they are; the last three are "
        "functions of theta_m, so of the measurements",
        f"Lemma A.8 has |C_mm| where its proof needs 1{small}, and bounds the refined states by the constant L_m of "
        "the augmented ones: it depends on units of measure, and is not a bound in general",
        "Lemma A.8 is about dL/dh_a; with dL/dĥ_a beside it, a row moves further, in proportion to the penalty "
        f"(w = {penalty:.3g} here), and in the augmented Lagrangian with every round"
        if done.config.refined_gradient and penalty > 0
        else "Lemma A.8 takes a measurement to move a gradient through the states only, not through the couplings, "
        "which are trained on all of them",
        "the constants follow theta_m: noise on the gradients moves it, that raises kappa_m and L_m, and so the noise; "
        f"here the noise grew {growth:.3g}-fold over the rounds",
        "gradients are computed from messages that are noised already: their own noise and their half of epsilon "
        "protect nothing more",
    )


def assemble(coordinator: TrainingServer, parts: Mapping[str, UnitPart], dt: float) -> Plant:
    """The estimated plant: local blocks of the units, couplings of the server."""
    evidence = coordinator.evidence
    assert evidence is not None
    B = evidence.B_local + coordinator.B_cross
    if not all(part.uses_inputs for part in parts.values()):  # FedGC: B ≡ 0
        B = np.zeros((B.shape[0], sum(part.unit.n_inputs for part in parts.values())))
    diagonals = {
        letter: block_diagonal([getattr(part.model, letter) for part in parts.values()])
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


def server_config(method: str, chosen: TrainingOptions, names: tuple[str, ...], seed: int) -> ServerConfig:
    conjugate = chosen.solver == "conjugate"
    rounds = chosen.rounds if chosen.rounds is not None else (50 if conjugate else 2000)
    penalty = Phase("penalty", rounds, chosen.weights(names), conjugate)
    warm = Phase("lagrangian", chosen.warm_rounds, (chosen.rho,) * len(names))
    phases = {
        "lagrangian": (Phase("lagrangian", rounds, (chosen.rho,) * len(names)),),
        "hybrid": (warm, penalty),
    }.get(method, (penalty,))
    return ServerConfig(
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


def client_state(
    part: UnitPart, data: ClientData, config: ServerConfig, chosen: TrainingOptions
) -> TrainingUnit:
    model = AugmentedModel(part.working_model, data)
    draw = stream(config.seed, "augmented", part.unit.name)
    shape = (part.model.states, part.model.n_outputs)
    theta = config.initial_scale * draw.standard_normal(shape)
    phi = config.initial_scale * draw.standard_normal(shape[0]) if config.offset else np.zeros(shape[0])
    steps = ClientSteps(chosen.eta_1, chosen.eta_2, chosen.gamma_1, chosen.gamma_2)
    return TrainingUnit(part.unit.name, model, theta, phi, steps, chosen.tol)


@contextmanager
def _progress_bar(wanted: bool, config: ServerConfig) -> Iterator[Callable[[TrainingServer], None]]:
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

        def advance(state: TrainingServer) -> None:
            record = state.record
            assert record is not None
            text = f"L_s {record.server_loss:.4g}  D {record.disentanglement:.3g}"
            bar.update(task, completed=record.round + 1, losses=text, description=record.phase)

        yield advance
        bar.update(task, total=bar.tasks[0].completed)
