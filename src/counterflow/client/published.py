"""The unit's side of the published training, as a state machine without I/O: ``state, replies = step(state, message)``.

Its loss stays at the unit (``ClientState.loss``); only what ``protocol`` defines leaves it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from counterflow.client import conjugate
from counterflow.client.augmented import AugmentedModel
from counterflow.errors import ProtocolError
from counterflow.protocol import AugmentedStates, Finished, Introduction, Message, Plan, Settled, StateGradients

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class ClientSteps:
    """Step sizes of the paper's client update; None: derived from the data so that the loss cannot rise."""

    eta_1: float | None = None
    eta_2: float | None = None
    gamma_1: float | None = None
    gamma_2: float | None = None


@dataclass(frozen=True)
class ClientState:
    """All that a unit holds during training."""

    unit: str
    model: AugmentedModel
    theta: FloatArray  # (P_m, D_m)
    phi: FloatArray  # (P_m,)
    steps: ClientSteps = ClientSteps()
    tolerance: float = 1e-8
    round: int = 0
    plan: Plan | None = None
    sent: FloatArray | None = None  # h_a of the last message
    conjugate: conjugate.ConjugateState | None = None
    loss: float | None = None  # L_a of the last round that has been answered
    finished: bool = False


def step(state: ClientState, message: Message) -> tuple[ClientState, tuple[Message, ...]]:
    """React to one message of the server."""
    match message:
        case Plan() if state.plan is None:
            return _begin(replace(state, plan=message))
        case StateGradients() if state.plan is not None and state.sent is not None and not state.finished:
            return _update(state, message)
        case Finished() if state.plan is not None:
            return replace(state, finished=True), ()
    raise ProtocolError(f"unit {state.unit!r} did not expect {type(message).__name__} in round {state.round}")


def _begin(state: ClientState) -> tuple[ClientState, tuple[Message, ...]]:
    local, data = state.model.model, state.model.data
    introduction = Introduction(state.unit, local.A, local.B, data.refined, data.inputs)
    plan = state.plan
    assert plan is not None
    if plan.conjugate and not state.theta.any() and not state.phi.any():
        # here the server's best couplings are zero, and so is its gradient
        loss, own_theta, own_phi = state.model.loss_and_gradients(state.model.base)
        own = own_theta, own_phi if plan.offset else np.zeros_like(own_phi)
        silence = np.zeros_like(own_theta), np.zeros_like(own_phi)
        progress = conjugate.start(state.model, state.theta, state.phi, own, silence, plan.penalty, plan.offset)
        theta, phi = progress.parameters()
        state = replace(state, conjugate=progress, theta=theta, phi=phi, loss=loss)
    state, states = _send(state, gradient_norm=0.0)
    return state, (introduction, states)


def _send(state: ClientState, gradient_norm: float) -> tuple[ClientState, AugmentedStates]:
    states = state.model.states(state.theta, state.phi)
    message = AugmentedStates(state.unit, state.round, gradient_norm, states, state.phi)
    return replace(state, sent=states), message


def _update(state: ClientState, message: StateGradients) -> tuple[ClientState, tuple[Message, ...]]:
    plan, sent = state.plan, state.sent
    assert plan is not None
    assert sent is not None
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
    refined = message.refined if plan.refined_gradient else None
    their_theta, their_phi = state.model.chain_rule(message.predicted, refined)
    if not plan.offset:
        own_phi, their_phi = np.zeros_like(own_phi), np.zeros_like(their_phi)
    state = replace(state, loss=loss, round=state.round + 1)
    if message.conjugate:
        # the server's couplings are the best ones for the point that was sent: stay there if nothing more is to come
        if message.last:
            return state, ()
        return _conjugate_update(state, message, (own_theta, own_phi), (their_theta, their_phi))
    steps = _steps(state, message)
    change = -steps.eta_1 * own_theta - steps.eta_2 * their_theta, -steps.gamma_1 * own_phi - steps.gamma_2 * their_phi
    state = _descend(state, message, change, steps.eta_2)
    if message.last:
        return state, ()
    # what must vanish is the step itself: with steps of different sizes, that is not the gradient of the plain sum
    scales = max(steps.eta_1, steps.eta_2), max(steps.gamma_1, steps.gamma_2)
    norm = _norm(*(c / scale if scale > 0 else c for c, scale in zip(change, scales, strict=True)))
    state, states = _send(state, norm)
    return state, (states,)


def _norm(d_theta: FloatArray, d_phi: FloatArray) -> float:
    return float(np.sqrt(np.vdot(d_theta, d_theta) + np.vdot(d_phi, d_phi)))


class _Steps(NamedTuple):
    eta_1: float
    eta_2: float
    gamma_1: float
    gamma_2: float


def _steps(state: ClientState, message: StateGradients) -> _Steps:
    """Step sizes as given, or derived."""
    given = state.steps
    theta, phi = state.model.step_sizes(0.0 if message.implicit else message.penalty)
    return _Steps(
        theta if given.eta_1 is None else given.eta_1,
        theta if given.eta_2 is None else given.eta_2,
        phi if given.gamma_1 is None else given.gamma_1,
        phi if given.gamma_2 is None else given.gamma_2,
    )


def _descend(
    state: ClientState, message: StateGradients, change: tuple[FloatArray, FloatArray], eta_2: float
) -> ClientState:
    """theta <- theta - eta_1 dL_a - eta_2 dL_s, phi likewise (paper, Eqs. (8)-(9)); the penalty implicit in IMEX."""
    d_theta, d_phi = change
    if message.implicit and message.penalty > 0:
        # twice the penalty: unit and server answer the same D at once, and each must leave room for the other
        d_theta = state.model.implicit_step(d_theta, 2 * eta_2 * message.penalty)
    return replace(state, theta=state.theta + d_theta, phi=state.phi + d_phi)


def _conjugate_update(
    state: ClientState, message: StateGradients, own: conjugate.Gradient, theirs: conjugate.Gradient
) -> tuple[ClientState, tuple[Message, ...]]:
    plan = state.plan
    assert plan is not None
    if state.conjugate is None:
        progress = conjugate.start(state.model, state.theta, state.phi, own, theirs, message.penalty, plan.offset)
    else:
        progress = conjugate.advance(state.conjugate, own, theirs, state.tolerance)
    state = replace(state, conjugate=progress)
    norm = _norm(own[0] + theirs[0], own[1] + theirs[1])
    if progress.verified:
        return state, (Settled(state.unit, state.round, progress.relative),)
    theta, phi = progress.parameters()
    state, states = _send(replace(state, theta=theta, phi=phi), norm)
    return state, (states,)
