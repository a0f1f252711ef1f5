"""The unit's side of the published training, as a state machine without I/O: ``state, replies = step(state, message)``.

Its loss stays at the unit (``TrainingUnit.loss``); only what ``protocol`` defines leaves it. With ``MessageNoise`` that
is one message a round, clipped and noised as in the paper's privacy analysis, and nothing besides.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import OptionError, ProtocolError
from counterflow.paper.augmented import AugmentedModel
from counterflow.paper.contraction import Contraction, Responses
from counterflow.paper.options import TrainingOptions
from counterflow.paper.solver import Pair, Refined, Search, White, plain_norm
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

STEPS = ("eta_1", "eta_2", "gamma_1", "gamma_2")
DROWNED = 1e60  # noise beyond which squares of its squares could leave the range of numbers


@dataclass(frozen=True, eq=False)
class MessageNoise:
    """The paper's mechanism on messages: clip every row to C_msg, add Gaussian noise of ``multiplier`` times Δ_msg.

    ``bound``: R_max, to which measurements and inputs have been cut already. C_msg is wide enough for every row that
    such signals allow, because the noise, σ_msg C_msg = Δ_msg √(2 ln(1.25/δ))/ε, does not depend on it.
    """

    responses: Responses
    bound: float
    multiplier: float
    source: Source
    cut: float = 0.0  # share of the unit's rows that R_max has cut; nobody else may know


@dataclass(frozen=True)
class MessageRelease:
    """What one round's message was made with."""

    constants: Contraction
    sensitivity: float  # Δ_msg
    clip: float  # C_msg
    sigma: float  # standard deviation of the noise: σ_msg C_msg


@dataclass(frozen=True)
class TrainingUnit:
    """All that a unit holds during training."""

    unit: str
    model: AugmentedModel
    theta: FloatArray  # (P_m, D_m)
    phi: FloatArray  # (P_m,)
    options: TrainingOptions = field(default_factory=TrainingOptions)
    round: int = 0
    plan: Plan | None = None
    sent: FloatArray | None = None  # h_a of the last message
    search: Search | None = None  # of the conjugate solver
    loss: float | None = None  # L_a of the last round that has been answered
    finished: bool = False
    noise: MessageNoise | None = None
    release: MessageRelease | None = None  # of the last message, if it was noised

    GIVEN: ClassVar[frozenset[str]] = frozenset({"unit", "model", "options", "noise"})

    @property
    def proprietary_loss(self) -> float:
        return self.model.proprietary_loss

    def step(self, message: Message) -> tuple[TrainingUnit, tuple[Message, ...]]:
        match message:
            case Plan() if self.plan is None:
                return _begin(replace(self, plan=message), message)
            case StateGradients() if self.plan is not None and self.sent is not None and not self.finished:
                return _update(self, self.plan, self.sent, message)
            case Finished() if self.plan is not None:
                return replace(self, finished=True), ()
        raise ProtocolError(f"unit {self.unit!r} did not expect {type(message).__name__} in round {self.round}")

    def resumed(self) -> TrainingUnit:
        return self

    def sources(self) -> tuple[list[FloatArray], list[FloatArray]]:
        data = self.model.data
        raw = [data.measured, data.previous[:1], data.inputs, *self.model.model.arrays]
        return raw, [data.refined, data.predicted]


def _begin(state: TrainingUnit, plan: Plan) -> tuple[TrainingUnit, tuple[Message, ...]]:
    local, data = state.model.model, state.model.data
    if state.noise is not None:
        if plan.conjugate:
            raise ProtocolError(f"unit {state.unit!r}: its messages are noised, which the conjugate solver cannot bear")
        return _perturb(state, state.noise)
    introduction = Introduction(state.unit, local.A, local.B, data.refined, data.inputs)
    if plan.conjugate and plan.refined_target:
        state = replace(state, phi=state.model.best_offset(state.theta, plan.offset))
    elif plan.conjugate and not state.theta.any() and not state.phi.any():
        # here the server's best couplings are zero, and so is its gradient
        loss, own_theta, own_phi = state.model.loss_and_gradients(state.model.base)
        own, nothing = (own_theta, plan.offset * own_phi), (0 * own_theta, 0 * own_phi)
        state, _ = _searched(replace(state, loss=loss), plan, own, nothing, plan.penalty)
    state, states = _send(state, plan, gradient_norm=0.0)
    return state, (introduction, *states)


def _send(state: TrainingUnit, plan: Plan, gradient_norm: float) -> tuple[TrainingUnit, tuple[Message, ...]]:
    states = state.model.states(state.theta, state.phi)
    if not np.isfinite(gradient_norm) or not np.isfinite(states.sum()):
        given = ", ".join(f"{name}={getattr(state.options, name)}" for name in STEPS)
        raise OptionError(
            f"training diverged at unit {state.unit!r} in round {state.round}. If step sizes were given ({given}, or "
            "at the server), leave them out to use derived ones; else put the measurements on a common scale"
        )
    seen = (state.model.refined_states(state.theta),) if plan.refined_target else ()
    message = AugmentedStates(state.unit, state.round, gradient_norm, states, state.phi, *seen)
    return replace(state, sent=states), (message,)


def _perturb(state: TrainingUnit, noise: MessageNoise) -> tuple[TrainingUnit, tuple[Message, ...]]:
    """All that leaves the unit in a private round: nothing that depends on y is in it without noise but by theta."""
    local, data, unit = state.model.model, state.model.data, state.unit
    states = state.model.states(state.theta, state.phi)
    augmented = data.refined + data.previous @ state.theta.T
    constants = noise.responses.constants(state.theta, state.phi)
    sensitivity, clip = constants.message * noise.bound, constants.row_bound(noise.bound)
    sigma = sensitivity * noise.multiplier
    if not sigma < DROWNED:
        raise OptionError(
            f"privacy: unit {unit!r} has been drowned by its own noise (standard deviation {sigma:.3g} in round "
            f"{state.round}): noise moves theta, theta raises the sensitivity, and that the noise. Give a larger "
            "epsilon, fewer rounds, smaller steps or more rows, or use method='sufficient'"
        )
    rows, _ = clipped_rows(np.hstack([data.refined, augmented, states, data.inputs]), clip)
    if sigma > 0:  # a measurement that moves nothing needs no noise
        try:
            rows = gaussian_release(rows, sigma, noise.source, unit, "published message", str(state.round))
        except OptionError as error:
            raise OptionError(
                f"privacy: unit {unit!r} cannot be noised in round {state.round} (one measurement moves its message by "
                f"{sensitivity:.3g}, rows are up to {clip:.3g} long): {error}"
            ) from error
    parts = np.split(rows, np.cumsum([local.states] * 3), axis=1)
    refined, augmented, predicted, inputs = map(np.ascontiguousarray, parts)
    # the contraction is a function of theta, as clip and noise are: theta leaks through them
    message = PerturbedStates(
        unit, state.round, contraction=constants.contraction, decay=constants.decay,
        gain=float(np.linalg.norm(local.C, 2)), bound=noise.bound, clip=clip, noise=sigma, A=local.A, B=local.B,
        refined=refined, augmented=augmented, predicted=predicted, inputs=inputs,
    )  # fmt: skip
    return replace(state, sent=states, release=MessageRelease(constants, sensitivity, clip, sigma)), (message,)


def _update(
    state: TrainingUnit, plan: Plan, sent: FloatArray, message: StateGradients
) -> tuple[TrainingUnit, tuple[Message, ...]]:
    if message.round != state.round:
        raise ProtocolError(f"unit {state.unit!r} is in round {state.round}, got gradients of round {message.round}")
    if message.predicted.shape != sent.shape:
        raise ProtocolError(
            f"unit {state.unit!r}: gradients must have the shape {sent.shape} of the states sent, "
            f"got {message.predicted.shape}"
        )
    if plan.refined_gradient != bool(message.refined.shape[0]):
        raise ProtocolError(f"unit {state.unit!r}: 'refined' gradients do not go with the plan")
    loss, own_theta, own_phi = state.model.loss_and_gradients(sent)
    ahead, pulled, their_phi = state.model.chain_rule(message.predicted, message.refined, plan.refined_target)
    own, theirs = (own_theta, plan.offset * own_phi), (ahead + pulled, plan.offset * their_phi)
    state = replace(state, loss=loss, round=state.round + 1)
    if message.conjugate:
        # the server's couplings are the best ones for the point that was sent: stay there if nothing more is to come
        if message.last:
            return state, ()
        norm = plain_norm(own[0] + theirs[0], 0.0 * own[1] if plan.refined_target else own[1] + theirs[1])
        server = (ahead, pulled) if plan.refined_target else theirs
        state, search = _searched(state, plan, own, server, message.penalty)
        if search.verified:
            return state, (Settled(state.unit, state.round, search.relative),)
        return _send(state, plan, norm)
    # theta <- theta - eta_1 dL_a - eta_2 dL_s, phi likewise (paper, Eqs. (9)-(10)); the penalty implicit in IMEX
    penalty = 0.0 if message.implicit else message.penalty
    derived = np.repeat(state.model.step_sizes(penalty, plan.refined_target), 2)
    given = ((getattr(state.options, name), float(own)) for name, own in zip(STEPS, derived, strict=True))
    eta_1, eta_2, gamma_1, gamma_2 = (own if step is None else step for step, own in given)
    change = -eta_1 * own[0] - eta_2 * theirs[0], -gamma_1 * own[1] - gamma_2 * theirs[1]
    moved = change[0]
    if message.implicit and message.penalty > 0:
        # twice the penalty: unit and server answer the same D at once, and each must leave room for the other
        moved = state.model.implicit_step(moved, 2 * eta_2 * message.penalty)
    state = replace(state, theta=state.theta + moved, phi=state.phi + change[1])
    if message.last:
        return state, ()
    if state.noise is not None:
        return _perturb(state, state.noise)
    # what must vanish is the step itself: with steps of different sizes, that is not the gradient of the plain sum
    scales = max(eta_1, eta_2), max(gamma_1, gamma_2)
    norm = plain_norm(*(c / scale if scale > 0 else c for c, scale in zip(change, scales, strict=True)))
    return _send(state, plan, norm)


def _searched(state: TrainingUnit, plan: Plan, own: Pair, server: Pair, penalty: float) -> tuple[TrainingUnit, Search]:
    """At the next point of the conjugate solver, from both shares of the gradient at the one before."""
    solver = (Refined if plan.refined_target else White)(state.model, penalty, plan.offset)
    if state.search is None:
        search = solver.begun(state.theta, state.phi, own, server)
    else:
        search = solver.advanced(state.search, own, server, state.options.tol)
    theta, phi = (state.theta, state.phi) if search.verified else solver.parameters(search)
    return replace(state, theta=theta, phi=phi, search=search), search
