"""The two state machines of every exchange: who speaks, who is waited for, what is refused, what a snapshot keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar

from counterflow.arrays import FloatArray
from counterflow.errors import ProtocolError
from counterflow.exchange.release import Release, opening, unexpected
from counterflow.exchange.task import Task, UnitData
from counterflow.learning.layout import refuse_other_rows
from counterflow.privacy.clipping import AddedNoise
from counterflow.protocol import Finished, Message


@dataclass(frozen=True)
class ExchangeUnit:
    """A unit's side: one reply to each message of the script, in its order."""

    what: Release
    task: Task
    own: UnitData  # with the readings that it believes
    memory: object | None = None
    heard: int = 0  # messages of the script
    release: AddedNoise | None = None  # how the last message was made private
    finished: bool = False
    loss: float | None = None
    proprietary_loss: float = 0.0

    GIVEN: ClassVar[frozenset[str]] = frozenset({"what", "task", "own"})

    def __post_init__(self) -> None:
        check_memory(self.what, self.memory)

    @property
    def unit(self) -> str:
        return self.own.unit.name

    def step(self, message: Message) -> tuple[ExchangeUnit, tuple[Message, ...]]:
        script = self.what.script(self.task)
        over = bool(self.heard) if self.what.may_skip else self.heard == len(script)
        if isinstance(message, Finished) and over:
            return replace(self, finished=True), ()
        due = self.heard < len(script) and type(message) is script[self.heard][0]
        if not due or getattr(message, "round", self._round) != self._round:
            raise unexpected(f"unit {self.unit!r}", message)
        made = self.what.reply(self, message)
        state = replace(self, memory=made.memory, heard=self.heard + 1, release=made.made or self.release)
        return state, () if made.message is None else (made.message,)

    @property
    def _round(self) -> int:
        """Number of the round that comes next."""
        return self.heard - len(self.what.pairs) + 1

    def resumed(self) -> ExchangeUnit:
        return self

    def sources(self) -> tuple[list[FloatArray], list[FloatArray]]:
        model = () if self.own.model is None else self.own.model.arrays
        return [self.own.y, self.own.u, *model], []


@dataclass(frozen=True)
class ExchangeServer:
    """The server's side: it computes when every unit that was asked has spoken, never from a part of them."""

    what: Release
    task: Task
    progress: Callable[[float, str], None] | None = None
    work: Any = None
    memory: object | None = None
    said: MappingProxyType[str, Message] = field(default_factory=lambda: MappingProxyType({}))
    asked: tuple[str, ...] = ()
    turn: int = 0  # of the script
    round: int = 0
    finished: bool = False
    record: None = None  # there are no losses by the round

    GIVEN: ClassVar[frozenset[str]] = frozenset({"what", "task", "progress", "work"})

    def __post_init__(self) -> None:
        check_memory(self.what, self.memory)

    @property
    def units(self) -> tuple[str, ...]:
        return self.task.units

    @property
    def waiting(self) -> tuple[str, ...]:
        asked = self.asked if self.turn else self.units
        return () if self.finished else tuple(name for name in asked if name not in self.said)

    def begin(self) -> tuple[ExchangeServer, tuple[Message, ...]]:
        return self, opening(self.units)

    def step(self, message: Message) -> tuple[ExchangeServer, tuple[Message, ...]]:
        state = self if self.work is not None else replace(self, work=self.what.prepare(self))
        state = replace(state, said=MappingProxyType({**self.said, message.unit: state._checked(message)}))
        if state.waiting:
            return state, ()
        last_pair = self.turn >= len(self.what.pairs) - 1
        to_come = self.what.learn(state)
        state = replace(
            state, memory=to_come.memory, work=to_come.work, said=MappingProxyType({}), turn=self.turn + 1,
            round=self.round + last_pair, asked=tuple(asked.unit for asked in to_come.messages),
        )  # fmt: skip
        if to_come.converged is None:
            return state, to_come.messages
        state = replace(state, asked=(), finished=True, round=max(state.round, 1))
        closing = [Finished(name, state.round, to_come.converged) for name in self.units]
        return state, (*to_come.messages, *closing)

    def _checked(self, message: Message) -> Message:
        if type(message) is not self.what.script(self.task)[self.turn][1]:
            raise unexpected("server:", message)
        if message.unit in self.said:
            raise ProtocolError(f"server: unit {message.unit!r} has sent its message already")
        if message.unit not in self.waiting or getattr(message, "round", self.round) != self.round:
            raise unexpected("server:", message)
        if hasattr(message, "inputs"):
            rows = {name: len(other.inputs) for name, other in self.said.items() if hasattr(other, "inputs")}
            refuse_other_rows(message.unit, len(message.inputs), rows)
        self.what.check_reply(self, message)
        return message

    def replies(self) -> list[Any]:
        """What was said, in the order of the units."""
        return [self.said[name] for name in self.units if name in self.said]


def check_memory(what: Release, memory: object | None) -> None:
    """ProtocolError if it is not what such a release keeps, as that of a snapshot may be."""
    if memory is not None and type(memory) not in what.kept:
        raise ProtocolError(f"an exchange of {what.name} keeps no {type(memory).__name__}")
