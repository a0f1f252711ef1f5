"""The server's side of the published training, a state machine without I/O: ``state, replies = step(state, message)``.

A round is computed when every unit that is not settled has spoken, never from a part of them; the order in which they
speak changes nothing. Penalty method, augmented Lagrangian with an IMEX step, and the hybrid schedule are sequences of
``Phase``s on the same state.

With ``GradientNoise``, units send ``PerturbedStates`` and nothing else. Their noise is new in every round, and so is
all that the server knows: evidence, residuals and D are computed from what was sent in the round. The training runs
its rounds, whatever the losses are.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import ClassVar, Literal

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import OptionError, ProtocolError
from counterflow.exchange.outcome import RoundRecord
from counterflow.learning.layout import refuse_other_rows
from counterflow.paper.couplings import (
    Eliminator,
    Evidence,
    Residuals,
    coupling_gradients,
    gradient_sensitivities,
    implicit_step,
    mean_offset,
    residual_bounds,
    residuals,
    state_gradients,
)
from counterflow.privacy import Source, gaussian_release
from counterflow.protocol import (
    AugmentedStates,
    Finished,
    Introduction,
    Message,
    PerturbedStates,
    Plan,
    Settled,
    StateGradients,
)
from counterflow.randomness import stream

Replies = tuple[Message, ...]


@dataclass(frozen=True)
class Phase:
    """One stretch of training with one objective and one solver.

    ``weight``: xi of every unit (penalty) or rho (lagrangian). ``rounds`` at most.
    """

    method: Literal["penalty", "lagrangian"]
    rounds: int
    weight: tuple[float, ...]
    conjugate: bool = False

    @cached_property
    def penalty(self) -> FloatArray:
        """w in w/2 |D|²."""
        return np.array(self.weight) * (2.0 if self.method == "penalty" else 1.0)


@dataclass(frozen=True)
class GradientNoise:
    """The paper's mechanism on gradients: clip every row to C_grad, add Gaussian noise of ``multiplier`` times Δ_grad.

    A row is dL/dh_a[t], with dL/dĥ_a[t-1] beside it if that is sent. C_grad is so wide that it cuts nothing that the
    messages' own bounds allow, because the noise does not depend on it.
    """

    multiplier: float
    source: Source


@dataclass(frozen=True)
class ServerConfig:
    """What the server is asked to do. Steps that are None are derived from the data."""

    units: tuple[str, ...]
    phases: tuple[Phase, ...]
    tolerance: float = 1e-8
    loss_tolerance: float | None = None
    alpha_A: float | None = None
    alpha_B: float | None = None
    offset: bool = True
    refined_gradient: bool = True
    refined_target: bool = False
    seed: int = 0
    initial_scale: float = 0.0
    noise: GradientNoise | None = None


@dataclass(frozen=True)
class TrainingServer:
    """All that the server holds during training."""

    config: ServerConfig
    introductions: MappingProxyType[str, Introduction] = field(default_factory=lambda: MappingProxyType({}))
    ones: FloatArray | None = None  # given only with rows that stand for others (``compression``)
    steps: int | None = None
    evidence: Evidence | None = None
    A_cross: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    B_cross: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    multipliers: FloatArray | None = None
    inbox: MappingProxyType[str, AugmentedStates | PerturbedStates] = field(
        default_factory=lambda: MappingProxyType({})
    )
    settled: frozenset[str] = frozenset()
    settled_gradient: float = 0.0  # the largest that a settled unit reported, relative to the first round
    eliminator: Eliminator | None = None
    phase: int = 0
    phase_round: int = 0
    round: int = 0
    first_norm: float = 0.0
    last_norm: float = 0.0
    record: RoundRecord | None = None
    finished: bool = False
    converged: bool = False
    multiplier_bound: FloatArray | None = None  # how long a row of the multipliers can be, if messages are noised
    first_noise: MappingProxyType[str, float] = field(default_factory=lambda: MappingProxyType({}))
    growth: float = 1.0  # of the messages' noise since the first round, if they are noised

    GIVEN: ClassVar[frozenset[str]] = frozenset({"config", "ones", "steps"})

    @property
    def units(self) -> tuple[str, ...]:
        return self.config.units

    @property
    def waiting(self) -> tuple[str, ...]:
        there = {name for name, message in self.inbox.items() if message.round == self.round} | self.settled
        return tuple(name for name in self.units if name not in there)

    def begin(self) -> tuple[TrainingServer, Replies]:
        config, phase = self.config, self.config.phases[0]
        return self, tuple(
            Plan(name, config.offset, config.refined_gradient, phase.conjugate, float(penalty), config.refined_target)
            for name, penalty in zip(config.units, phase.penalty, strict=True)
        )

    def step(self, message: Message) -> tuple[TrainingServer, Replies]:
        state, private = self, self.config.noise is not None
        if private != isinstance(message, PerturbedStates):
            kind = "a private" if private else "this"
            raise ProtocolError(
                f"server: did not expect {type(message).__name__} of unit {message.unit!r} in {kind} training"
            )
        match message:
            case PerturbedStates():
                state = _receive_perturbed(state, message)
            case Introduction():
                return _introduce(state, message), ()
            case AugmentedStates():
                state = _receive(state, message)
            case Settled():
                if state.evidence is None or message.round != state.round or message.unit in state.settled:
                    raise ProtocolError(f"server: unit {message.unit!r} cannot be settled in round {message.round}")
                worst = max(state.settled_gradient, message.gradient)
                state = replace(state, settled=state.settled | {message.unit}, settled_gradient=worst)
            case _:
                raise ProtocolError(f"server: did not expect {type(message).__name__} of unit {message.unit!r}")
        if len(state.settled) == len(state.units):
            return _finish(state, converged=True)
        if state.waiting:
            return state, ()
        state = _renew_evidence(state) if private else state
        return _compute_round(state) if state.evidence is not None else (state, ())


def _introduce(state: TrainingServer, message: Introduction) -> TrainingServer:
    if message.unit in state.introductions:
        raise ProtocolError(f"server: unit {message.unit!r} has introduced itself already")
    refuse_other_rows(
        message.unit, message.refined.shape[0], {n: i.refined.shape[0] for n, i in state.introductions.items()}
    )
    known = {**state.introductions, message.unit: message}
    state = replace(state, introductions=MappingProxyType(known))
    if len(known) < len(state.config.units):
        return state
    evidence = Evidence.collect([known[name] for name in state.config.units], state.ones, state.steps)
    A_cross, B_cross = _initial_couplings(state.config, evidence)
    return replace(state, evidence=evidence, A_cross=A_cross, B_cross=B_cross)


def _initial_couplings(config: ServerConfig, evidence: Evidence) -> tuple[FloatArray, FloatArray]:
    A_cross = np.zeros((sum(evidence.states), sum(evidence.states)))
    B_cross = np.zeros((sum(evidence.states), sum(evidence.inputs)))
    for m, effect in enumerate(evidence.names):
        for n, cause in enumerate(evidence.names):
            if m != n and config.initial_scale > 0:
                draw = stream(config.seed, "couplings", effect, cause)
                rows, columns, inputs = evidence.state_slices[m], evidence.state_slices[n], evidence.input_slices[n]
                A_cross[rows, columns] = config.initial_scale * draw.standard_normal(A_cross[rows, columns].shape)
                B_cross[rows, inputs] = config.initial_scale * draw.standard_normal(B_cross[rows, inputs].shape)
    return A_cross, B_cross


def _receive(state: TrainingServer, message: AugmentedStates) -> TrainingServer:
    known = state.introductions.get(message.unit)
    if known is None:
        raise ProtocolError(f"server: unit {message.unit!r} must introduce itself first")
    _refuse_repeated(state, message)
    if message.unit in state.settled:
        raise ProtocolError(f"server: unit {message.unit!r} has said that it is settled")
    if message.predicted.shape != known.refined.shape:
        raise ProtocolError(
            f"server: unit {message.unit!r} must send states of shape {known.refined.shape}, "
            f"got {message.predicted.shape}"
        )
    if state.config.refined_target != bool(message.refined.size):
        raise ProtocolError(f"server: 'refined' states of unit {message.unit!r} do not go with the plan")
    return replace(state, inbox=MappingProxyType({**state.inbox, message.unit: message}))


def _refuse_repeated(state: TrainingServer, message: AugmentedStates | PerturbedStates) -> None:
    """Of every unit one message of this round."""
    if message.round != state.round:
        raise ProtocolError(f"server: in round {state.round}, got round {message.round} of unit {message.unit!r}")
    earlier = state.inbox.get(message.unit)
    if earlier is not None and earlier.round == message.round:
        raise ProtocolError(f"server: unit {message.unit!r} has sent round {message.round} already")


def _receive_perturbed(state: TrainingServer, message: PerturbedStates) -> TrainingServer:
    unit = message.unit
    _refuse_repeated(state, message)
    earlier = state.inbox.get(unit)
    if isinstance(earlier, PerturbedStates):
        shapes = [(e.refined.shape, e.inputs.shape) for e in (earlier, message)]
        if shapes[0] != shapes[1]:
            raise ProtocolError(
                f"server: unit {unit!r} must send states and inputs of shape {shapes[0]}, got {shapes[1]}"
            )
    refuse_other_rows(unit, message.predicted.shape[0], {n: i.predicted.shape[0] for n, i in state.inbox.items()})
    first = state.first_noise.get(unit, message.noise)
    state = replace(
        state,
        first_noise=MappingProxyType({**state.first_noise, unit: first}),
        growth=max(state.growth, message.noise / first if first > 0 else 1.0),
    )
    return replace(state, inbox=MappingProxyType({**state.inbox, unit: message}))


def _perturbed(state: TrainingServer) -> list[PerturbedStates]:
    """The round's messages of a private training, in the order of the units."""
    arrived = [state.inbox[name] for name in state.config.units]
    return [message for message in arrived if isinstance(message, PerturbedStates)]


def _renew_evidence(state: TrainingServer) -> TrainingServer:
    """Evidence from the messages of this round: what came before was other noise."""
    evidence = Evidence.collect(_perturbed(state), None, None)
    if state.evidence is not None:
        return replace(state, evidence=evidence)
    A_cross, B_cross = _initial_couplings(state.config, evidence)
    return replace(state, evidence=evidence, A_cross=A_cross, B_cross=B_cross)


def _compute_round(state: TrainingServer) -> tuple[TrainingServer, Replies]:
    config, evidence = state.config, state.evidence
    assert evidence is not None
    if state.phase_round >= config.phases[state.phase].rounds:  # the last phase ends in _is_last instead
        state = replace(state, phase=state.phase + 1, phase_round=0, multipliers=None)
    phase = config.phases[state.phase]
    arrived = [state.inbox[name] for name in config.units]
    predicted = np.hstack([a.predicted for a in arrived])
    noised = _perturbed(state)
    if noised:
        augmented = np.hstack([a.augmented for a in noised])
        offset = mean_offset(evidence, predicted, augmented)
        found = residuals(evidence, predicted, offset, state.A_cross, state.B_cross, augmented=augmented)
    else:
        plain = [a for a in arrived if isinstance(a, AugmentedStates)]
        offset = np.concatenate([a.offset for a in plain])
        target = np.hstack([a.refined for a in plain]) if config.refined_target else None
        if phase.conjugate:
            eliminator = state.eliminator or Eliminator(evidence, phase.penalty)
            A_cross, B_cross = eliminator.solve(predicted, offset, target)
            state = replace(state, eliminator=eliminator, A_cross=A_cross, B_cross=B_cross)
        found = residuals(evidence, predicted, offset, state.A_cross, state.B_cross, target)
    weight = evidence.per_state(phase.penalty)
    if phase.method == "lagrangian":
        previous = state.multipliers
        multipliers = np.zeros_like(predicted) if previous is None else previous + weight * found.entanglement
        dual = multipliers + weight * found.entanglement
        state = replace(state, multipliers=multipliers)
    else:
        dual = weight * found.entanglement
    d_A, d_B = coupling_gradients(evidence, found, dual)
    state = _recorded(state, found, dual, offset, (d_A, d_B))
    last = _is_last(state)
    d_predicted, d_refined = state_gradients(evidence, found, dual)
    if noised:
        state, d_predicted, d_refined = _perturb(state, d_predicted, d_refined)
    if not phase.conjugate:
        state = _descend(state, d_A, d_B, phase)
    replies: list[Message] = []
    for m, name in enumerate(config.units):
        if name in state.settled:
            continue
        own = evidence.state_slices[m]
        refined = d_refined[:, own] if config.refined_gradient else np.zeros((0, own.stop - own.start))
        replies.append(StateGradients(
            name, state.round, last, phase.conjugate, float(phase.penalty[m]), phase.method == "lagrangian",
            np.ascontiguousarray(d_predicted[:, own]), np.ascontiguousarray(refined),
        ))  # fmt: skip
    state = replace(state, round=state.round + 1, phase_round=state.phase_round + 1)
    if last:
        state, finish = _finish(state, converged=not (phase.conjugate or noised) and _converged(state))
        return state, (*replies, *finish)
    return state, tuple(replies)


def _recorded(
    state: TrainingServer, found: Residuals, dual: FloatArray, offset: FloatArray, gradients: tuple[FloatArray, ...]
) -> TrainingServer:
    """State with this round's losses."""
    config, evidence = state.config, state.evidence
    assert evidence is not None
    phase = config.phases[state.phase]
    half = 0.5 * evidence.per_state(phase.penalty) * found.entanglement
    loss = found.residual_loss + float(np.vdot(dual - half, found.entanglement)) / evidence.steps
    if not np.isfinite(loss):
        raise OptionError(
            f"training diverged in round {state.round}: the server loss is {loss}. If step sizes were given "
            f"(alpha_A={config.alpha_A}, alpha_B={config.alpha_B}, or at the units), leave them out to use derived "
            "ones; else put the measurements on a common scale"
        )
    gap = offset - state.B_cross @ evidence.mean_input
    delta_d = tuple(float(np.linalg.norm(gap[own])) for own in evidence.state_slices)
    # the units' norms belong to the round before; in the first round of a phase there is nothing to compare with yet
    # (units whose messages are noised do not tell theirs)
    arrived = [state.inbox[name] for name in config.units]
    theirs = sum(a.gradient_norm**2 for a in arrived if isinstance(a, AugmentedStates))
    norm = float(np.sqrt(theirs + sum(np.vdot(g, g) for g in gradients)))
    first = norm if state.phase_round <= 1 else state.first_norm
    relative = norm / first if first > 0 else 0.0
    record = RoundRecord(state.round, phase.method, loss, found.residual_loss, found.disentanglement, delta_d, relative)
    return replace(state, record=record, first_norm=first, last_norm=norm)


def _converged(state: TrainingServer) -> bool:
    record = state.record
    return record is not None and state.phase_round > 1 and record.gradient <= state.config.tolerance


def _is_last(state: TrainingServer) -> bool:
    """Whether this round ends the training (paper: k = iterations, or L_s <= tol)."""
    record, config = state.record, state.config
    assert record is not None
    final_phase = state.phase == len(config.phases) - 1
    phase_over = state.phase_round + 1 >= config.phases[state.phase].rounds
    if config.noise is not None:
        return final_phase and phase_over
    if config.loss_tolerance is not None and record.server_loss <= config.loss_tolerance:
        return True
    if config.phases[state.phase].conjugate:
        return final_phase and phase_over
    return final_phase and (phase_over or _converged(state))


def _perturb(
    state: TrainingServer, d_predicted: FloatArray, d_refined: FloatArray
) -> tuple[TrainingServer, FloatArray, FloatArray]:
    """Every unit's rows of the gradients, clipped to C_grad and noised; dL/dh_a and dL/dĥ_a are one row."""
    config, evidence = state.config, state.evidence
    assert evidence is not None
    assert config.noise is not None
    phase, sent = config.phases[state.phase], _perturbed(state)
    sensitivity = gradient_sensitivities(evidence, sent, state.A_cross, state.B_cross)
    r, d = residual_bounds(evidence, sent, state.A_cross, state.B_cross)
    dual = phase.penalty * d
    if phase.method == "lagrangian":
        # the multipliers are zero in the first round of a phase, and then grow by w D a round
        before = state.multiplier_bound if state.phase_round > 0 else None
        held = np.zeros_like(d) if before is None else before + dual
        state = replace(state, multiplier_bound=held)
        dual = dual + held
    d_predicted, d_refined = d_predicted.copy(), d_refined.copy()
    for m, (name, own) in enumerate(zip(config.units, evidence.state_slices, strict=True)):
        wide = 2 * r[m], dual[m] * float(np.linalg.norm(sent[m].A, 2)) if config.refined_gradient else 0.0
        clip = max(float(np.hypot(*wide)) / evidence.steps, sensitivity[m])
        sigma = float(sensitivity[m] * config.noise.multiplier)
        both = (d_predicted, d_refined) if config.refined_gradient else (d_predicted,)
        rows = np.hstack([each[:, own] for each in both])
        length = np.sqrt(np.square(rows).sum(axis=1))
        rows = rows * np.minimum(1.0, clip / np.where(length > 0, length, 1.0))[:, None]
        if sigma > 0:  # a measurement that moves nothing needs no noise
            rows = gaussian_release(rows, sigma, config.noise.source, name, "published gradient", str(state.round))
        for each, part in zip(both, np.split(rows, len(both), axis=1), strict=True):
            each[:, own] = part
    return state, d_predicted, d_refined


def _descend(state: TrainingServer, d_A: FloatArray, d_B: FloatArray, phase: Phase) -> TrainingServer:
    """Â <- Â - alpha_A dL/dÂ, B̂ likewise; in the augmented Lagrangian the penalty is taken implicitly (IMEX)."""
    evidence, config = state.evidence, state.config
    assert evidence is not None
    implicit = phase.method == "lagrangian"
    derived_A, derived_B = evidence.step_sizes(np.zeros_like(phase.penalty) if implicit else phase.penalty)
    alpha_A = derived_A if config.alpha_A is None else np.full_like(derived_A, config.alpha_A)
    alpha_B = derived_B if config.alpha_B is None else np.full_like(derived_B, config.alpha_B)
    change = -evidence.per_state(alpha_A)[:, None] * d_A
    if implicit:
        # twice the penalty: unit and server answer the same D at once, and each must leave room for the other
        change = implicit_step(evidence, change, 2 * alpha_A * phase.penalty)
    return replace(
        state, A_cross=state.A_cross + change, B_cross=state.B_cross - evidence.per_state(alpha_B)[:, None] * d_B
    )


def _finish(state: TrainingServer, converged: bool) -> tuple[TrainingServer, Replies]:
    state = replace(state, finished=True, converged=converged)
    return state, tuple(Finished(name, state.round, converged) for name in state.config.units)
