"""The in-process engine: carries messages between units and server in one process, and counts them.

It knows no mathematics: it delivers, in the order of the units' names as configured, until nobody has anything to say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from counterflow.exchange.method import Method, ServerState, UnitState, server_step, unit_step
from counterflow.exchange.privacy import Spending
from counterflow.exchange.task import Task, UnitData
from counterflow.privacy import RowRange
from counterflow.protocol import Message, decode, encode, encoded_size


@dataclass(frozen=True)
class Traffic:
    """What crossed: training rounds, and bytes on the wire from units to server (up) and back (down)."""

    rounds: int
    bytes_up: int
    bytes_down: int

    def __str__(self) -> str:
        rounds = "1 round" if self.rounds == 1 else f"{self.rounds} rounds"
        return f"{rounds}, {_readable(self.bytes_up)} up, {_readable(self.bytes_down)} down"


def _readable(count: float) -> str:
    for suffix in ("B", "kB", "MB", "GB"):
        if count < 1000 or suffix == "GB":
            return f"{count:.0f} {suffix}" if suffix == "B" else f"{count:.1f} {suffix}"
        count /= 1000
    raise AssertionError


Observer = Callable[[ServerState, Mapping[str, UnitState]], None]


def run(
    coordinator: ServerState, clients: Mapping[str, UnitState], *, rows: int | None = None,
    observe: Observer | None = None, watch: Callable[[Message, bool], None] | None = None, over_the_wire: bool = False,
    leaving: Callable[[Message], None] | None = None,
) -> tuple[ServerState, dict[str, UnitState], Traffic]:  # fmt: skip
    """Run a training to its end.

    Parameters
    ----------
    rows : count bytes as if trajectories had this many rows (see ``counterflow.paper.compression``).
    observe : called once a round, when every unit has taken in the round's gradients.
    watch : called for every message, with True if it goes up; for tests and audits.
    over_the_wire : encode and decode every message, as engines between machines do.
    leaving : called at a unit before a message of it leaves; what it raises keeps the message there.
    """
    states = dict(clients)
    coordinator, opening = coordinator.begin()
    down: deque[Message] = deque(opening)
    bytes_up = bytes_down = 0
    observed = -1
    while down:
        up: list[Message] = []
        while down:
            message = down.popleft()
            bytes_down += encoded_size(message, rows)
            if watch:
                watch(message, False)
            if over_the_wire:
                message = decode(encode(message))
            states[message.unit], replies = unit_step(states[message.unit], message)
            up.extend(replies)
        if observe and coordinator.record is not None and coordinator.record.round > observed:
            observed = coordinator.record.round
            observe(coordinator, states)
        for message in up:
            if leaving:
                leaving(message)
            bytes_up += encoded_size(message, rows)
            if watch:
                watch(message, True)
            if over_the_wire:
                message = decode(encode(message))
            coordinator, answers = server_step(coordinator, message)
            down.extend(answers)
    assert coordinator.finished, f"the conversation stopped in round {coordinator.round}, before the training's end"
    return coordinator, states, Traffic(coordinator.round, bytes_up, bytes_down)


@dataclass(frozen=True)
class Payment:
    """Where the units of a private exchange pay: call it at a unit before a message of it leaves."""

    method: Method
    task: Task
    own: Mapping[str, UnitData]
    spending: Spending | None  # None: nothing is private, and nothing costs

    def __call__(self, message: Message) -> None:
        if self.spending is not None:
            brought = self.own[message.unit]
            charge = self.method.charge(self.task, brought.model, len(brought.y), message)
            if charge is not None:
                self.spending.record(message.unit, *charge)


@contextmanager
def paying(method: Method, task: Task, own: Mapping[str, UnitData], label: str) -> Iterator[Payment]:
    """The units' ledgers, open while their messages leave; refused at once if one cannot pay for all of them."""
    if task.privacy is None:
        yield Payment(method, task, own, None)
        return
    models = {name: brought.model for name, brought in own.items() if brought.model is not None}
    rows = {name: RowRange.numbered(brought.y, task.privacy.start) for name, brought in own.items()}
    costs = {
        name: [charge.cost for charge in method.charges(task, brought.model, len(brought.y))]
        for name, brought in own.items()
    }
    with Spending.start(task.privacy, task.units, label, method.mechanism, costs, models, rows) as spending:
        yield Payment(method, task, own, spending)
