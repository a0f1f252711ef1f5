"""One step of any method's state machines; the type of the state says which."""

from counterflow.errors import ProtocolError
from counterflow.methods.logs import server as logs_server
from counterflow.methods.logs import unit as logs_unit
from counterflow.methods.logs.server import LogServer
from counterflow.methods.logs.unit import LogUnit
from counterflow.methods.published import server as published_server
from counterflow.methods.published import unit as published_unit
from counterflow.methods.published.server import TrainingServer
from counterflow.methods.published.unit import TrainingUnit
from counterflow.methods.sufficient import server as sufficient_server
from counterflow.methods.sufficient import unit as sufficient_unit
from counterflow.methods.sufficient.server import SufficientServer
from counterflow.methods.sufficient.unit import SufficientUnit
from counterflow.protocol import Message

UnitState = TrainingUnit | SufficientUnit | LogUnit
ServerState = TrainingServer | SufficientServer | LogServer


def unit_step(state: UnitState, message: Message) -> tuple[UnitState, tuple[Message, ...]]:
    """One turn of a unit."""
    if message.unit != state.unit:
        raise ProtocolError(f"unit {state.unit!r} got a message meant for unit {message.unit!r}")
    if isinstance(state, SufficientUnit):
        return sufficient_unit.step(state, message)
    if isinstance(state, LogUnit):
        return logs_unit.step(state, message)
    return published_unit.step(state, message)


def server_begin(state: ServerState) -> tuple[ServerState, tuple[Message, ...]]:
    """What the server says first."""
    if isinstance(state, LogServer):
        return logs_server.begin(state)
    return sufficient_server.begin(state) if isinstance(state, SufficientServer) else published_server.begin(state)


def server_step(state: ServerState, message: Message) -> tuple[ServerState, tuple[Message, ...]]:
    """One turn of the server."""
    if message.unit not in state.config.units:
        raise ProtocolError(f"server: no unit {message.unit!r} takes part in this fit")
    if state.finished:
        raise ProtocolError(f"server: the fit is over, got {type(message).__name__} of unit {message.unit!r}")
    if isinstance(state, LogServer):
        return logs_server.step(state, message)
    if isinstance(state, SufficientServer):
        return sufficient_server.step(state, message)
    return published_server.step(state, message)
