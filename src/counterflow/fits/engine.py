"""The in-process engine: carries messages between units and server in one process, and counts them.

It knows no mathematics: it delivers, in the order of the units' names as configured, until nobody has anything to say.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from counterflow.exchange.method import ServerState, UnitState, server_step, unit_step
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
