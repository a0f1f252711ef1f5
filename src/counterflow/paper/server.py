"""The server's side of the published training, a state machine without I/O: ``state, replies = step(state, message)``.

A round is computed when every unit that is not settled has spoken, never from a part of them; the order in which they
speak changes nothing. Penalty method, augmented Lagrangian with an IMEX step, and the hybrid schedule are sequences of
``Phase``s on the same state.

With ``GradientNoise``, units send ``PerturbedStates`` and nothing else. Their noise is new in every round, and so is
all that the server knows: evidence, residuals and D are computed from what was sent in the round. The training runs
its rounds, whatever the losses are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import product
from types import MappingProxyType
from typing import Any, ClassVar, Literal, cast

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
    residual_bounds,
    residuals,
    state_gradients,
)
from counterflow.paper.options import TrainingOptions
from counterflow.privacy import Source, gaussian_release
from counterflow.privacy.clipping import clipped_rows
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
_nobody = partial(MappingProxyType[str, Any], {})  # has said anything yet


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
    """What the server is asked to do. ``offset``: whether units learn phi, which they do not in FedGC."""

    units: tuple[str, ...]
    phases: tuple[Phase, ...]
    options: TrainingOptions = field(default_factory=TrainingOptions)
    offset: bool = True
    seed: int = 0
    noise: GradientNoise | None = None


@dataclass(frozen=True)
class TrainingServer:
    """All that the server holds during training."""

    config: ServerConfig
    ones: FloatArray | None = None  # given only with rows that stand for others (``augmented.compress``)
    steps: int | None = None
    introductions: MappingProxyType[str, Introduction | PerturbedStates] = field(default_factory=_nobody)
    inbox: MappingProxyType[str, AugmentedStates | PerturbedStates] = field(default_factory=_nobody)
    evidence: Evidence | None = None
    A_cross: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    B_cross: FloatArray = field(default_factory=lambda: np.zeros((0, 0)))
    multipliers: FloatArray | None = None
    multiplier_bound: FloatArray | None = None  # how long a row of the multipliers can be, if messages are noised
    settled: frozenset[str] = frozenset()
    settled_gradient: float = 0.0  # the largest that a settled unit reported, relative to the first round
    eliminator: Eliminator | None = None
    phase: int = 0
    phase_round: int = 0
    round: int = 0
    first_norm: float = 0.0
    record: RoundRecord | None = None
    finished: bool = False
    converged: bool = False
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
        config, chosen, phase = self.config, self.config.options, self.config.phases[0]
        return self, tuple(
            Plan(name, config.offset, chosen.refined_gradient, phase.conjugate, float(penalty), chosen.refined_target)
            for name, penalty in zip(config.units, phase.penalty, strict=True)
        )

    def step(self, message: Message) -> tuple[TrainingServer, Replies]:
        private, unit = self.config.noise is not None, message.unit
        due = (PerturbedStates,) if private else (Introduction, AugmentedStates, Settled)
        if not isinstance(message, due):
            kind = "a private" if private else "this"
            raise ProtocolError(f"server: did not expect {type(message).__name__} of unit {unit!r} in {kind} training")
        if isinstance(message, Introduction):
            state = _introduce(self, message)
            all_told = len(state.introductions) == len(state.units)
            return (_with_evidence(state, state.introductions) if all_told else state), ()
        if isinstance(message, Settled):
            if self.evidence is None or message.round != self.round or unit in self.settled:
                raise ProtocolError(f"server: unit {unit!r} cannot be settled in round {message.round}")
            worst = max(self.settled_gradient, message.gradient)
            state = replace(self, settled=self.settled | {unit}, settled_gradient=worst)
        else:
            state = _receive(self, message)
        if len(state.settled) == len(state.units):
            return _finish(state, converged=True)
        if state.waiting:
            return state, ()
        return _compute_round(_with_evidence(state, state.inbox) if private else state)


def _introduce(state: TrainingServer, message: Introduction | PerturbedStates) -> TrainingServer:
    known = state.introductions
    if message.unit in known:
        raise ProtocolError(f"server: unit {message.unit!r} has introduced itself already")
    refuse_other_rows(message.unit, len(message.refined), {n: len(each.refined) for n, each in known.items()})
    return replace(state, introductions=MappingProxyType({**known, message.unit: message}))


def _with_evidence(state: TrainingServer, told: Mapping[str, Any]) -> TrainingServer:
    """Knowing what the units told; the first time, with initial couplings."""
    config, evidence = state.config, Evidence.collect([told[name] for name in state.units], state.ones, state.steps)
    if state.evidence is not None:
        return replace(state, evidence=evidence)
    A_cross, B_cross = np.zeros_like(evidence.A_local), np.zeros_like(evidence.B_local)
    owned = list(zip(evidence.names, evidence.state_slices, evidence.input_slices, strict=True))
    for (effect, rows, _), (cause, states, inputs) in product(owned, owned):
        if effect != cause and config.options.scale > 0:
            draw = stream(config.seed, "couplings", effect, cause)
            for matrix, columns in ((A_cross, states), (B_cross, inputs)):
                matrix[rows, columns] = config.options.scale * draw.standard_normal(matrix[rows, columns].shape)
    return replace(state, evidence=evidence, A_cross=A_cross, B_cross=B_cross)


def _receive(state: TrainingServer, message: AugmentedStates | PerturbedStates) -> TrainingServer:
    """Of every unit one message of this round, in the shape of its first one."""
    unit, noised = message.unit, isinstance(message, PerturbedStates)
    if message.round != state.round:
        raise ProtocolError(f"server: in round {state.round}, got round {message.round} of unit {unit!r}")
    if unit not in state.waiting:
        raise ProtocolError(f"server: unit {unit!r} has sent round {message.round} already, or was settled before it")
    if isinstance(message, PerturbedStates) and state.round == 0:
        state = _introduce(state, message)
    first = state.introductions.get(unit)
    if first is None:
        raise ProtocolError(f"server: unit {unit!r} must introduce itself first")
    known, sent = [first.refined.shape], [message.predicted.shape]
    if isinstance(message, PerturbedStates) and isinstance(first, PerturbedStates):
        known, sent = [*known, first.inputs.shape], [*sent, message.inputs.shape]
        growth = message.noise / first.noise if first.noise > 0 else 1.0
        state = replace(state, growth=max(state.growth, growth))
    if known != sent:
        what = "states and inputs" if noised else "states"
        raise ProtocolError(
            f"server: unit {unit!r} must send {what} of shape {' and '.join(map(str, known))}, got "
            f"{' and '.join(map(str, sent))}"
        )
    if not noised and state.config.options.refined_target != bool(message.refined.size):
        raise ProtocolError(f"server: 'refined' states of unit {unit!r} do not go with the plan")
    return replace(state, inbox=MappingProxyType({**state.inbox, unit: message}))


def _side_by_side(state: TrainingServer, evidence: Evidence) -> tuple[FloatArray, FloatArray, FloatArray]:
    """What the server explains, z = A_mm(ĥ_a - ĥ_c), and phi, from the round's messages: the columns of all units."""
    sent: list[Any] = [state.inbox[name] for name in state.units]
    predicted = np.hstack([message.predicted for message in sent])
    if state.config.noise is not None:
        augmented = np.hstack([message.augmented for message in sent])
        # phi as far as it shows in what was sent
        rest = predicted - augmented @ evidence.A_local.T - evidence.u @ evidence.B_local.T
        return predicted, (augmented - evidence.refined) @ evidence.A_local.T, evidence.ones @ rest / evidence.steps
    offset = np.concatenate([message.offset for message in sent])
    moved = predicted - evidence.base - np.outer(evidence.ones, offset)
    target = np.hstack([m.refined for m in sent]) if state.config.options.refined_target else predicted
    return target, moved, offset


def _compute_round(state: TrainingServer) -> tuple[TrainingServer, Replies]:
    config, evidence = state.config, state.evidence
    assert evidence is not None
    if state.phase_round >= config.phases[state.phase].rounds:  # the last phase ends in _is_last instead
        state = replace(state, phase=state.phase + 1, phase_round=0, multipliers=None, multiplier_bound=None)
    phase, weight = config.phases[state.phase], evidence.per_state(config.phases[state.phase].penalty)
    target, moved, offset = _side_by_side(state, evidence)
    if phase.conjugate:
        eliminator = state.eliminator or Eliminator(evidence, phase.penalty)
        A_cross, B_cross = eliminator.solve(target, moved)
        state = replace(state, eliminator=eliminator, A_cross=A_cross, B_cross=B_cross)
    found = residuals(evidence, target, moved, state.A_cross, state.B_cross)
    dual = weight * found.entanglement
    if phase.method == "lagrangian":
        held = np.zeros_like(dual) if state.multipliers is None else state.multipliers + dual
        state, dual = replace(state, multipliers=held), held + dual
    gradients = coupling_gradients(evidence, found, dual)
    state = _recorded(state, evidence, found, dual, offset, gradients)
    last, converged = _is_last(state), _converged(state)
    d_predicted, d_refined = state_gradients(evidence, found, dual)
    if config.noise is not None:
        state = _perturb(state, evidence, config.noise, d_predicted, d_refined)
    if not phase.conjugate:
        state = _descend(state, evidence, phase, *gradients)
    replies: list[Message] = []
    for name, penalty, own in zip(config.units, phase.penalty, evidence.state_slices, strict=True):
        if name not in state.settled:
            refined = d_refined[:, own] if config.options.refined_gradient else np.zeros((0, own.stop - own.start))
            replies.append(StateGradients(
                name, state.round, last, phase.conjugate, float(penalty), phase.method == "lagrangian",
                np.ascontiguousarray(d_predicted[:, own]), np.ascontiguousarray(refined),
            ))  # fmt: skip
    state = replace(state, round=state.round + 1, phase_round=state.phase_round + 1)
    if last:
        state, finish = _finish(state, converged=converged and not (phase.conjugate or config.noise is not None))
        return state, (*replies, *finish)
    return state, tuple(replies)


def _recorded(
    state: TrainingServer, evidence: Evidence, found: Residuals, dual: FloatArray, offset: FloatArray,
    gradients: tuple[FloatArray, ...],
) -> TrainingServer:  # fmt: skip
    """State with this round's losses."""
    chosen, phase = state.config.options, state.config.phases[state.phase]
    half = 0.5 * evidence.per_state(phase.penalty) * found.entanglement
    loss = found.residual_loss + float(np.vdot(dual - half, found.entanglement)) / evidence.steps
    if not np.isfinite(loss):
        raise OptionError(
            f"training diverged in round {state.round}: the server loss is {loss}. If step sizes were given "
            f"(alpha_A={chosen.alpha_A}, alpha_B={chosen.alpha_B}, or at the units), leave them out to use derived "
            "ones; else put the measurements on a common scale"
        )
    gap = offset - state.B_cross @ (evidence.ones @ evidence.u / evidence.steps)
    delta_d = tuple(float(np.linalg.norm(gap[own])) for own in evidence.state_slices)
    # the units' norms belong to the round before; in the first round of a phase there is nothing to compare with yet
    # (units whose messages are noised do not tell theirs)
    sent = [state.inbox[name] for name in state.units]
    theirs = sum(message.gradient_norm**2 for message in sent if isinstance(message, AugmentedStates))
    norm = float(np.sqrt(theirs + sum(np.vdot(g, g) for g in gradients)))
    first = norm if state.phase_round <= 1 else state.first_norm
    relative = norm / first if first > 0 else 0.0
    record = RoundRecord(state.round, phase.method, loss, found.residual_loss, found.disentanglement, delta_d, relative)
    return replace(state, record=record, first_norm=first)


def _converged(state: TrainingServer) -> bool:
    record = state.record
    return record is not None and state.phase_round > 1 and record.gradient <= state.config.options.tol


def _is_last(state: TrainingServer) -> bool:
    """Whether this round ends the training (paper: k = iterations, or L_s <= tol)."""
    record, config, phase = state.record, state.config, state.config.phases[state.phase]
    assert record is not None
    last_phase = state.phase == len(config.phases) - 1
    if config.noise is not None:
        return last_phase and state.phase_round + 1 >= phase.rounds
    small = config.options.loss_tol is not None and record.server_loss <= config.options.loss_tol
    done = state.phase_round + 1 >= phase.rounds or (not phase.conjugate and _converged(state))
    return small or (last_phase and done)


def _perturb(
    state: TrainingServer, evidence: Evidence, noise: GradientNoise, d_predicted: FloatArray, d_refined: FloatArray
) -> TrainingServer:
    """Clip every unit's rows of the gradients to C_grad and noise them, in place; dL/dh_a and dL/dĥ_a are one row."""
    config, phase = state.config, state.config.phases[state.phase]
    sent = [cast(PerturbedStates, state.inbox[name]) for name in state.units]
    sensitivity = gradient_sensitivities(evidence, sent, state.A_cross, state.B_cross)
    r, d = residual_bounds(evidence, sent, state.A_cross, state.B_cross)
    dual = phase.penalty * d
    if phase.method == "lagrangian":
        # the multipliers are zero in the first round of a phase, and then grow by w D a round
        held = np.zeros_like(d) if state.multiplier_bound is None else state.multiplier_bound + dual
        state, dual = replace(state, multiplier_bound=held), dual + held
    both = (d_predicted, d_refined) if config.options.refined_gradient else (d_predicted,)
    for m, (message, own) in enumerate(zip(sent, evidence.state_slices, strict=True)):
        wide = 2 * r[m], dual[m] * float(np.linalg.norm(message.A, 2)) if config.options.refined_gradient else 0.0
        clip = max(float(np.hypot(*wide)) / evidence.steps, sensitivity[m])
        rows, _ = clipped_rows(np.hstack([each[:, own] for each in both]), clip)
        sigma = float(sensitivity[m] * noise.multiplier)
        if sigma > 0:  # a measurement that moves nothing needs no noise
            rows = gaussian_release(rows, sigma, noise.source, message.unit, "published gradient", str(state.round))
        for each, part in zip(both, np.split(rows, len(both), axis=1), strict=True):
            each[:, own] = part
    return state


def _descend(
    state: TrainingServer, evidence: Evidence, phase: Phase, d_A: FloatArray, d_B: FloatArray
) -> TrainingServer:
    """Â <- Â - alpha_A dL/dÂ, B̂ likewise; in the augmented Lagrangian the penalty is taken implicitly (IMEX)."""
    config, implicit = state.config, phase.method == "lagrangian"
    derived = evidence.step_sizes(np.zeros_like(phase.penalty) if implicit else phase.penalty)
    given = zip(derived, (config.options.alpha_A, config.options.alpha_B), strict=True)
    alpha_A, alpha_B = (own if step is None else np.full_like(own, step) for own, step in given)
    change = -evidence.per_state(alpha_A)[:, None] * d_A
    if implicit:
        # twice the penalty: unit and server answer the same D at once, and each must leave room for the other
        change = implicit_step(evidence, change, 2 * alpha_A * phase.penalty)
    return replace(
        state, A_cross=state.A_cross + change, B_cross=state.B_cross - evidence.per_state(alpha_B)[:, None] * d_B
    )


def _finish(state: TrainingServer, converged: bool) -> tuple[TrainingServer, Replies]:
    state = replace(state, finished=True, converged=converged)
    return state, tuple(Finished(name, state.round, converged) for name in state.units)
