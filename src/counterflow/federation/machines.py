"""From a job to the two state machines, exactly as ``counterflow.fit`` sets them up in one process; and back.

A unit's machine is made of its own log, model and estimator, the server's of the job alone. When a job is over, the
server's part of the fit and each unit's part are made of their own machine only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat
from counterflow.errors import ModelError, OptionError
from counterflow.estimation.joint import JointOptions
from counterflow.federation.job import QUESTIONS, Job
from counterflow.fits.in_process import Traffic
from counterflow.fits.outcome import Status
from counterflow.methods.estimators import Estimator, KalmanEstimator
from counterflow.methods.logs import fitting as logs
from counterflow.methods.logs.server import LogConfig, LogServer
from counterflow.methods.logs.unit import LogUnit
from counterflow.methods.machines import ServerState, UnitState
from counterflow.methods.options import LikelihoodOptions, TrainingOptions
from counterflow.methods.part import UnitPart
from counterflow.methods.published import fitting as published
from counterflow.methods.published.server import GradientNoise, RoundRecord, ServerConfig, TrainingServer
from counterflow.methods.published.unit import TrainingUnit
from counterflow.methods.sufficient import fitting as likelihood
from counterflow.methods.sufficient.server import SufficientConfig, SufficientServer
from counterflow.methods.sufficient.unit import SufficientUnit
from counterflow.plant import LocalModel, OperatingPoint, PublicUnit, Unit
from counterflow.privacy import Cost, classical_multiplier
from counterflow.questions.answering import Server


@dataclass(frozen=True, eq=False)
class UnitData:
    """What a unit brings to a job; it stays at the unit.

    ``y`` (T+1, D), ``u`` (T+1, U); ``model`` None: it has a log only. ``estimator`` None: a Kalman filter. ``begins``:
    time of row 0, "" if the log has none.
    """

    unit: Unit
    y: FloatArray
    u: FloatArray
    model: LocalModel | None = None
    estimator: Estimator | None = None
    begins: str = ""


@dataclass(frozen=True)
class CoordinatorResult:
    """What the coordinator holds when a job is over; ``records`` are the rounds of a published training."""

    job: Job
    state: ServerState
    records: tuple[RoundRecord, ...]
    traffic: Traffic


# ---- setting up


def coordinator_machine(job: Job) -> ServerState:
    """The server's state machine at its beginning.

    Examples
    --------
    >>> coordinator_machine(Job("demo", "sufficient", {"boiler": ["fuel"], "turbine": []})).finished
    False
    """
    if job.method == QUESTIONS:
        raise OptionError(f"{job.label}: questions are answered one by one, there is nothing to train")
    if job.from_logs:
        chosen = log_options(job)
        order = chosen.order if chosen.form == "free" else chosen.for_logs("order", job.units) or None
        same_row = chosen.for_logs("same_row", job.units) or None
        asked = JointOptions(order, same_row, chosen.form, chosen.tol, chosen.evaluations)
        return LogServer(LogConfig(job.units, asked))
    if job.method == "sufficient":
        chosen = LikelihoodOptions.parse(job.method, job.options)
        config = SufficientConfig(
            job.units, cast(Any, chosen.estimate), chosen.tol, chosen.evaluations, prior=job.privacy is not None
        )
        return SufficientServer(config)
    config_of_rounds = training_config(job)
    if job.privacy is not None:
        noise = GradientNoise(classical_multiplier(*_shares(job)), job.privacy.source)
        config_of_rounds = replace(config_of_rounds, noise=noise)
    return TrainingServer(config_of_rounds)


def unit_machine(job: Job, own: UnitData) -> UnitState:
    """A unit's state machine at its beginning."""
    name = own.unit.name
    if name not in job.units:
        raise OptionError(f"{job.label}: unit {name!r} takes no part in it; its units are {', '.join(job.units)}")
    if job.method == QUESTIONS:
        raise OptionError(f"{job.label}: questions are asked one by one, there is nothing to train")
    if job.from_logs:
        chosen = log_options(job)
        ranks = chosen.for_logs("rank", job.units)
        orders = chosen.for_logs("order", job.units) if chosen.form == "partitioned" else {}
        return LogUnit(own.unit, own.y, own.u, ranks.get(name), orders.get(name))
    part = unit_part(job, own)
    if job.method == "sufficient":
        return SufficientUnit(name, part.model, own.y, own.u, job.privacy)
    missing = np.isnan(own.y).any(axis=1)
    if missing.any():
        raise OptionError(
            f"unit {name!r}: {int(missing.sum())} of {missing.size} rows have missing measurements; method "
            f"{job.method!r} cannot skip a row. Bring an unbroken stretch, or use method 'sufficient'"
        )
    chosen_training, config = training_options(job), training_config(job)
    if job.privacy is not None:
        return published.private_client_state(part, own.y, own.u, job.privacy, config, chosen_training)[0]
    return published.client_state(part, part.client_data(own.y, own.u), config, chosen_training)


def unit_part(job: Job, own: UnitData) -> UnitPart:
    """What stays at a unit, before it has learned anything."""
    if own.model is None:
        raise ModelError(
            f"unit {own.unit.name!r}: {job.label} needs its local model, and it has brought none; give the model, or "
            "start a job with from_logs"
        )
    uses_inputs = job.method != "fedgc"
    used = own.model if uses_inputs else replace(own.model, B=own.model.B[:, :0])
    estimator = KalmanEstimator(used) if own.estimator is None else own.estimator
    return UnitPart(replace(own.unit, states=own.model.states), own.model, estimator, uses_inputs)


def log_options(job: Job) -> LikelihoodOptions:
    return LikelihoodOptions.parse("sufficient", {"tol": 1e-3, "evaluations": 100, **job.options})


def training_options(job: Job) -> TrainingOptions:
    return TrainingOptions.parse(job.method, published.private_options(job.method, job.options, job.privacy))


def training_config(job: Job) -> ServerConfig:
    return published.server_config(job.method, training_options(job), job.units, job.seed)


def rounds_of(job: Job) -> int:
    """How many rounds a published training has at most."""
    return sum(phase.rounds for phase in training_config(job).phases)


def round_cost(job: Job, rows: int) -> Cost:
    """What one round of a private published training is accounted for with: its message and the gradient for it."""
    assert job.privacy is not None
    epsilon, delta = _shares(job)
    return Cost(*job.privacy.span(rows), epsilon=2 * epsilon, delta=2 * delta)


def _shares(job: Job) -> tuple[float, float]:
    """ε and δ of one message, and of one gradient."""
    assert job.privacy is not None
    return published.shares_of(job.privacy, training_config(job))


# ---- when it is over


def learned_part(job: Job, own: UnitData, state: UnitState) -> UnitPart:
    """A unit's part of the fit."""
    if isinstance(state, LogUnit):
        return logs.part_of(state)
    part = unit_part(job, own)
    return part.trained(state.theta, state.phi) if isinstance(state, TrainingUnit) else part


def server_part(result: CoordinatorResult) -> Server:
    """The server's part of the fit, which answers questions; nothing of a unit is needed for it."""
    job, state = result.job, result.state
    if isinstance(state, TrainingServer):
        evidence = state.evidence
        assert evidence is not None
        A, B = evidence.A_local + state.A_cross, evidence.B_local + state.B_cross
        if job.method == "fedgc":  # B ≡ 0
            B = np.zeros((len(A), sum(map(len, job.inputs.values()))))
        # process noise is not sent; no question that this method answers needs it
        return Server(job.method, _units(job, evidence.states), A, B, np.zeros_like(A), None, None)
    empty: tuple[Caveat, ...] = ()
    if isinstance(state, SufficientServer):
        assert state.shared is not None
        assert state.found is not None
        shared, found, form = state.shared, state.found, "partitioned"
        chosen, near, points = LikelihoodOptions.parse(job.method, job.options), likelihood.NEARLY, {}
        estimate, notes, spread = cast(Any, chosen.estimate), empty, None
    else:
        assert state.system is not None
        system = state.system
        shared, found, notes, near, estimate = system.record, system.found, system.notes, logs.NEAR, "blocks"
        chosen, spread = log_options(job), system.spread
        form = chosen.form
        points = {
            name: OperatingPoint(system.input_level[own], system.same_row[m])
            for m, (name, own) in enumerate(zip(shared.names, shared.input_slices, strict=True))
        }
    couplings, caveats = likelihood.judged(
        shared, found, estimate, {name: job.input_names(name) for name in job.units}, chosen.uncertainty,
        near=near, private=job.privacy is not None, form=form, spread=spread,
    )  # fmt: skip
    caveats += (*notes, *likelihood.estimate_caveats(found))
    return Server(job.method, _units(job, shared.states), found.A, found.B, found.Q, couplings, shared, caveats, points)


def status_part(result: CoordinatorResult) -> Status:
    """How the job ended."""
    job, state = result.job, result.state
    if isinstance(state, TrainingServer):
        return Status.of_training(state, training_options(job))
    if isinstance(state, SufficientServer):
        assert state.found is not None
        return likelihood.status_of(state.found, LikelihoodOptions.parse(job.method, job.options))
    assert state.system is not None
    return likelihood.status_of(state.system.found, log_options(job))


def _units(job: Job, states: tuple[int, ...]) -> tuple[PublicUnit, ...]:
    return tuple(PublicUnit(name, job.inputs[name], count) for name, count in zip(job.units, states, strict=True))
