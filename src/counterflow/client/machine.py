"""The unit's side of the published training, as a state machine without I/O: ``state, replies = step(state, message)``.

Its loss stays at the unit (``ClientState.loss``); only what ``protocol`` defines leaves it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    if message.unit != state.unit:
        raise ProtocolError(f"unit {state.unit!r} got a message meant for unit {message.unit!r}")
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
    d_theta, d_phi = own_theta + their_theta, own_phi + their_phi
    norm = float(np.sqrt(np.vdot(d_theta, d_theta) + np.vdot(d_phi, d_phi)))
    state = replace(state, loss=loss, round=state.round + 1)
    if message.conjugate:
        # the server's couplings are the best ones for the point that was sent: stay there if nothing more is to come
        return (state, ()) if message.last else _conjugate_update(state, message, (d_theta, d_phi), norm)
    state = _gradient_update(state, message, (own_theta, their_theta), (own_phi, their_phi))
    if message.last:
        return state, ()
    state, states = _send(state, norm)
    return state, (states,)


def _gradient_update(
    state: ClientState,
    message: StateGradients,
    theta_gradients: tuple[FloatArray, FloatArray],
    phi_gradients: tuple[FloatArray, FloatArray],
) -> ClientState:
    """theta <- theta - eta_1 dL_a - eta_2 dL_s, phi likewise (paper, Eqs. (8)-(9)); the penalty implicit in IMEX."""
    given = state.steps
    derived_theta, derived_phi = state.model.step_sizes(0.0 if message.implicit else message.penalty)
    eta_1 = derived_theta if given.eta_1 is None else given.eta_1
    eta_2 = derived_theta if given.eta_2 is None else given.eta_2
    gamma_1 = derived_phi if given.gamma_1 is None else given.gamma_1
    gamma_2 = derived_phi if given.gamma_2 is None else given.gamma_2
    change = -eta_1 * theta_gradients[0] - eta_2 * theta_gradients[1]
    if message.implicit and message.penalty > 0:
        # twice the penalty: unit and server answer the same D at once, and each must leave room for the other
        change = state.model.implicit_step(change, 2 * eta_2 * message.penalty)
    phi = state.phi - gamma_1 * phi_gradients[0] - gamma_2 * phi_gradients[1]
    return replace(state, theta=state.theta + change, phi=phi)


def _conjugate_update(
    state: ClientState, message: StateGradients, gradient: tuple[FloatArray, FloatArray], norm: float
) -> tuple[ClientState, tuple[Message, ...]]:
    plan = state.plan
    assert plan is not None
    if state.conjugate is None:
        progress = conjugate.start(
            state.model, state.theta, state.phi, gradient, message.penalty, plan.offset, state.tolerance
        )
    else:
        progress = conjugate.advance(state.conjugate, gradient, state.tolerance)
    state = replace(state, conjugate=progress)
    if progress.verified:
        return state, (Settled(state.unit, state.round, norm),)
    theta, phi = progress.parameters()
    state, states = _send(replace(state, theta=theta, phi=phi), norm)
    return state, (states,)
