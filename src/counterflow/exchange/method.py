"""What a method is to those who carry its messages: two state machines, what is left of them, and what they cost.

A state machine is a frozen value without I/O; ``state, replies = state.step(message)``. Engines carry the replies and
know no mathematics. The methods that ask every unit for what it releases are ``counterflow.exchange.exchange``; the
published trainings live in a room of their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

from counterflow.arrays import FloatArray
from counterflow.errors import PrivacyError, ProtocolError
from counterflow.exchange.outcome import Learned, RoundRecord
from counterflow.exchange.part import UnitPart
from counterflow.exchange.privacy import PrivacyReport, Spending
from counterflow.exchange.task import Task, UnitData
from counterflow.privacy import Cost
from counterflow.protocol import Message

Progress = Callable[[float, str], None]  # share of the work that is done, and what is being done


class UnitState(Protocol):
    """A unit's side of an exchange."""

    GIVEN: ClassVar[
        frozenset[str]
    ]  # fields that the machine is made of at its beginning: a snapshot need not keep them

    @property
    def unit(self) -> str: ...

    @property
    def finished(self) -> bool: ...

    @property
    def loss(self) -> float | None: ...  # its own, of the last round

    @property
    def proprietary_loss(self) -> float: ...  # of its own model alone; zero where there is no such thing

    @property
    def release(self) -> object | None: ...  # how the last message was made private

    def step(self, message: Message) -> tuple[UnitState, tuple[Message, ...]]: ...

    def resumed(self) -> UnitState:
        """The same, after its kept fields have been put into a machine at its beginning."""

    def sources(self) -> tuple[list[FloatArray], list[FloatArray]]:
        """What the machine was made of: raw data, exactly, and what an estimator made of them, to rounding."""


class ServerState(Protocol):
    """The server's side of an exchange. ``waiting``: units that must speak before anything more is computed."""

    GIVEN: ClassVar[frozenset[str]]

    @property
    def units(self) -> tuple[str, ...]: ...

    @property
    def round(self) -> int: ...

    @property
    def finished(self) -> bool: ...

    @property
    def record(self) -> RoundRecord | None: ...  # losses of the last round, of methods that have rounds

    @property
    def waiting(self) -> tuple[str, ...]: ...

    def begin(self) -> tuple[ServerState, tuple[Message, ...]]: ...

    def step(self, message: Message) -> tuple[ServerState, tuple[Message, ...]]: ...


class Charge(NamedTuple):
    """What one private message costs its unit."""

    cost: Cost
    what: str
    noise: float | None = None  # standard deviation, where the message says it


class Method(ABC):
    """One way to learn the couplings.

    ``sends``, ``hears``: kinds of messages that a unit and a server may send; ``private``: those of a unit's that hold
    measurements. ``mechanism``: how these are made private, in words. ``options``: a dataclass of the method's options.
    """

    sends: frozenset[str]
    hears: frozenset[str]
    private: frozenset[str]
    mechanism: str
    options: Any

    # ---- the exchange

    @abstractmethod
    def check(self, task: Task) -> None:
        """OptionError if options or privacy do not go with the method."""

    @abstractmethod
    def server(self, task: Task, progress: Progress | None = None) -> ServerState:
        """The server's machine at its beginning."""

    @abstractmethod
    def unit(self, task: Task, own: UnitData) -> UnitState:
        """A unit's machine at its beginning."""

    @abstractmethod
    def learned(self, task: Task, state: Any) -> Learned:
        """What the server has when the exchange is over."""

    @abstractmethod
    def part(self, task: Task, own: UnitData, state: Any) -> UnitPart:
        """What stays at a unit when the exchange is over, with what its answers must be read with."""

    def uses_inputs(self, task: Task) -> bool:
        """Whether units send their inputs, and models are taken with theirs."""
        return True

    def rounds(self, task: Task) -> int | None:
        """How many rounds there are at most; None if there is just one exchange."""
        return None

    def pooled(
        self, task: Task, own: Mapping[str, UnitData], seen: bool
    ) -> tuple[ServerState, dict[str, UnitState]] | None:
        """In one process: machines that give the same result with less work, if there are some.

        ``seen``: messages are looked at, so that they must be those that would cross.
        """
        return None

    # ---- its price

    @abstractmethod
    def charges(self, task: Task, model: Any, rows: int) -> list[Charge]:
        """What the private messages of a unit with this LocalModel (None: from logs) will cost, in their order."""

    @abstractmethod
    def least_noise(self, task: Task, rows: int, message: Message, made: Any) -> float | None:
        """The standard deviation that noise must have at least; None if it was not ``made`` as the task asks for."""

    @abstractmethod
    def privacy_report(self, task: Task, spending: Spending, server: Any, units: Mapping[str, Any]) -> PrivacyReport:
        """What a private fit has promised and spent."""

    def charge(self, task: Task, model: Any, rows: int, message: Message) -> Charge | None:
        """What one message costs; None if it holds nothing that is to be private."""
        if type(message).__name__ not in self.private:
            return None
        return self.charges(task, model, rows)[getattr(message, "round", 0)]

    def check_noise(self, task: Task, rows: int, message: Message, made: object) -> None:
        """PrivacyError unless a message of a private task was ``made`` as that asks for."""
        kind = type(message).__name__
        if kind in self.sends - self.private:
            return
        if kind not in self.private or made is None:
            raise PrivacyError(
                f"unit {message.unit!r}: {task.label} is private, and {kind} was not made private; nothing was released"
            )
        needed, sigma = self.least_noise(task, rows, message, made), getattr(made, "sigma", 0.0)
        if needed is None or not sigma >= needed * (1 - 1e-9):
            wanted = "it is not made as asked for" if needed is None else f"{task.label} needs {needed:.6g}"
            raise PrivacyError(
                f"unit {message.unit!r}: {kind} has noise of {sigma:.6g}, {wanted}; nothing was released"
            )


def unit_step(state: UnitState, message: Message) -> tuple[UnitState, tuple[Message, ...]]:
    """One turn of a unit."""
    if message.unit != state.unit:
        raise ProtocolError(f"unit {state.unit!r} got a message meant for unit {message.unit!r}")
    return state.step(message)


def server_step(state: ServerState, message: Message) -> tuple[ServerState, tuple[Message, ...]]:
    """One turn of the server."""
    if message.unit not in state.units:
        raise ProtocolError(f"server: no unit {message.unit!r} takes part in this fit")
    if state.finished:
        raise ProtocolError(f"server: the fit is over, got {type(message).__name__} of unit {message.unit!r}")
    return state.step(message)
