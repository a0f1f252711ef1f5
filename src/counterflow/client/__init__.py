"""The unit's side: proprietary estimator (a plug-in), augmented model, sufficient messages, state machines."""

from counterflow.client import logs, published, sufficient
from counterflow.client.augmented import AugmentedModel, ClientData
from counterflow.client.estimators import Estimates, Estimator, KalmanEstimator, checked_estimates
from counterflow.client.logs import LogClient, filled
from counterflow.client.private import PrivateRelease, most_numbers, privatised
from counterflow.client.published import ClientState, ClientSteps
from counterflow.client.sufficient import SufficientClient, rows_and_channels, sufficient_message
from counterflow.errors import ProtocolError
from counterflow.protocol import Message

State = ClientState | SufficientClient | LogClient


def step(state: State, message: Message) -> tuple[State, tuple[Message, ...]]:
    """React to one message of the server, whatever the method."""
    if message.unit != state.unit:
        raise ProtocolError(f"unit {state.unit!r} got a message meant for unit {message.unit!r}")
    if isinstance(state, SufficientClient):
        return sufficient.step(state, message)
    if isinstance(state, LogClient):
        return logs.step(state, message)
    return published.step(state, message)


__all__ = [
    "AugmentedModel",
    "ClientData",
    "ClientState",
    "ClientSteps",
    "Estimates",
    "Estimator",
    "KalmanEstimator",
    "LogClient",
    "PrivateRelease",
    "State",
    "SufficientClient",
    "checked_estimates",
    "filled",
    "most_numbers",
    "privatised",
    "rows_and_channels",
    "step",
    "sufficient_message",
]
