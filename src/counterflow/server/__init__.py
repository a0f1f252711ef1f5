"""The coordinator's side: couplings from sufficient messages by maximum likelihood, and the published training.

Nothing in here can import a recording, a measurement or an output matrix: only ``protocol`` crosses.
"""

from counterflow.errors import ProtocolError
from counterflow.protocol import Message
from counterflow.server import logs, published, sufficient
from counterflow.server.estimation import Estimated, maximum_likelihood
from counterflow.server.joint import JointOptions
from counterflow.server.likelihood import SharedRecord
from counterflow.server.logs import LogConfig, LogServer
from counterflow.server.parameters import ESTIMATES
from counterflow.server.published import Phase, RoundRecord, ServerConfig, ServerState
from counterflow.server.sufficient import SufficientConfig, SufficientServer, block_diagonal

State = ServerState | SufficientServer | LogServer


def begin(state: State) -> tuple[State, tuple[Message, ...]]:
    """The messages that open the conversation."""
    if isinstance(state, LogServer):
        return logs.begin(state)
    return sufficient.begin(state) if isinstance(state, SufficientServer) else published.begin(state)


def step(state: State, message: Message) -> tuple[State, tuple[Message, ...]]:
    """React to one message of a unit, whatever the method."""
    if message.unit not in state.config.units:
        raise ProtocolError(f"server: no unit {message.unit!r} takes part in this fit")
    if state.finished:
        raise ProtocolError(f"server: the fit is over, got {type(message).__name__} of unit {message.unit!r}")
    if isinstance(state, LogServer):
        return logs.step(state, message)
    return sufficient.step(state, message) if isinstance(state, SufficientServer) else published.step(state, message)


__all__ = [
    "ESTIMATES",
    "Estimated",
    "JointOptions",
    "LogConfig",
    "LogServer",
    "Phase",
    "RoundRecord",
    "ServerConfig",
    "ServerState",
    "SharedRecord",
    "State",
    "SufficientConfig",
    "SufficientServer",
    "begin",
    "block_diagonal",
    "maximum_likelihood",
    "step",
]
