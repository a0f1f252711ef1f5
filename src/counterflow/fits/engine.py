"""The in-process engine: carries messages between units and server in one process, and counts them.

It knows no mathematics: it delivers, in the order of the units' names as configured, until nobody has anything to say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass

from rich.filesize import decimal

from counterflow.exchange.method import Method, ServerState, UnitState, server_step, unit_step
from counterflow.exchange.privacy import Spending
from counterflow.exchange.task import Task, UnitData
from counterflow.protocol import Message, decode, encode, encoded_size


@dataclass(frozen=True)
class Traffic:
    """What crossed: training rounds, and bytes on the wire from units to server (up) and back (down)."""

    rounds: int
    bytes_up: int
    bytes_down: int

    def __str__(self) -> str:
        rounds = "1 round" if self.rounds == 1 else f"{self.rounds} rounds"
        return f"{rounds}, {decimal(self.bytes_up)} up, {decimal(self.bytes_down)} down"


Observer = Callable[[ServerState, Mapping[str, UnitState]], None]


def run(
    coordinator: ServerState, clients: Mapping[str, UnitState], *, rows: int | None = None,
    observe: Observer | None = None, watch: Callable[[Message, bool], None] | None = None, over_the_wire: bool = False,
    leaving: Callable[[Message], None] | None = None,
) -> tuple[ServerState, dict[str, UnitState], Traffic]:  # fmt: skip
    """Run an exchange to its end.

    ``rows``: count bytes as if trajectories had this many rows (see ``counterflow.paper.augmented``). ``observe``: is
    called once a round, when every unit has taken in the round's gradients; ``watch``: for every message, with True if
    it goes up. ``over_the_wire``: encode and decode every message, as engines between machines do. ``leaving``: is
    called at a unit before a message of it leaves; what it raises keeps the message there.
    """

    def crossing(message: Message, up: bool) -> Message:
        counted[up] += encoded_size(message, rows)
        if watch:
            watch(message, up)
        return decode(encode(message)) if over_the_wire else message

    states, counted, observed = dict(clients), [0, 0], -1
    coordinator, opening = coordinator.begin()
    down: deque[Message] = deque(opening)
    while down:
        up: list[Message] = []
        while down:
            message = crossing(down.popleft(), False)
            states[message.unit], replies = unit_step(states[message.unit], message)
            up.extend(replies)
        if observe and coordinator.record is not None and coordinator.record.round > observed:
            observed = coordinator.record.round
            observe(coordinator, states)
        for message in up:
            if leaving:
                leaving(message)
            coordinator, answers = server_step(coordinator, crossing(message, True))
            down.extend(answers)
    assert coordinator.finished, f"the conversation stopped in round {coordinator.round}, before the training's end"
    return coordinator, states, Traffic(coordinator.round, counted[True], counted[False])


def paying(
    method: Method, task: Task, own: Mapping[str, UnitData], fit: str
) -> AbstractContextManager[Spending | None]:
    """The units' ledgers, open while their messages leave; None: nothing is private, and nothing costs."""
    return nullcontext() if task.privacy is None else closing(Spending.start(method, task, own, fit))
