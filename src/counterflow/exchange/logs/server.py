"""The server's side where units have logs and no models: collect one message from each, identify, tell each its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import ClassVar

from counterflow.exchange.sufficient.server import OneMessage, collected
from counterflow.learning.system import IdentifiedSystem, SystemOptions, identify
from counterflow.protocol import Finished, Identified, Message, Reduced


@dataclass(frozen=True)
class LogConfig:
    """What the server is asked to identify, and how far."""

    units: tuple[str, ...]
    options: SystemOptions = field(default_factory=SystemOptions)


@dataclass(frozen=True)
class LogServer(OneMessage):
    """All that the server holds."""

    config: LogConfig
    messages: MappingProxyType[str, Reduced] = field(default_factory=lambda: MappingProxyType({}))
    system: IdentifiedSystem | None = None
    round: int = 0
    finished: bool = False
    record: None = None  # there are no losses by the round
    progress: Callable[[float, str], None] | None = None

    GIVEN: ClassVar[frozenset[str]] = frozenset({"config", "progress"})

    def step(self, message: Message) -> tuple[LogServer, tuple[Message, ...]]:
        state = replace(self, messages=collected(self.messages, message, Reduced))
        if state.waiting:
            return state, ()
        system = identify([state.messages[name] for name in self.units], self.config.options, self.progress)
        state = replace(state, system=system, round=1, finished=True)
        answers = [_own_blocks(system, m) for m in range(len(system.record.names))]
        closing = [Finished(name, 1, system.found.converged) for name in self.units]
        return state, (*answers, *closing)


def _own_blocks(system: IdentifiedSystem, m: int) -> Identified:
    record, found = system.record, system.found
    states, inputs = record.state_slices[m], record.input_slices[m]
    numbers = system.network.number_slices[m]
    return Identified(
        record.names[m], system.same_row[m], found.A[states, states].copy(), found.B[states, inputs].copy(),
        found.Q[states, states].copy(), system.observation[numbers, states].copy(),
        system.noise[numbers, numbers].copy(), system.input_level[inputs].copy(),
    )  # fmt: skip
