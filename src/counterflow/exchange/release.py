"""What an exchange releases: what a unit says of its rows, what the server makes of it, what privacy of it costs.

There is one exchange. The server asks every unit, waits for all of them, and computes; it asks again as often as the
release wants it to, tells units without models what they need of what it has found, and says that it is over:

    server -> unit    Request                unit -> server    the first reply        (``pairs``, the first)
    server -> unit    what comes next        unit -> server    the reply to it        (``pairs``, the last: every round)
    server -> unit    ``told``, if anything, and Finished

All of that is ``counterflow.exchange.machines``; what goes with every release at the beginning and at the end, and how
it is paid for, is ``counterflow.exchange.exchange``. A release is one module with one subclass of ``Release``, and a
line in ``counterflow.exchange.registry``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from counterflow.caveats import Caveat
from counterflow.errors import ProtocolError
from counterflow.exchange.options import Options
from counterflow.exchange.outcome import Learned
from counterflow.exchange.part import UnitPart, given_part
from counterflow.exchange.sensors import Readings
from counterflow.exchange.task import Task, UnitData
from counterflow.plant import LocalModel
from counterflow.privacy import Cost, Privacy
from counterflow.privacy.clipping import AddedNoise
from counterflow.protocol import Message, Request

if TYPE_CHECKING:
    from counterflow.exchange.machines import ExchangeServer, ExchangeUnit

MODELS_EXCLUDED = (
    "local models (A, B, Q and the shape of the messages) and preprocessing statistics: taken to come from other data; "
    "if they were fitted on these rows, what they reveal is not covered"
)
UNPROTECTED = "inputs and which rows are missing: they are sent as they are"
ONE_MEASUREMENT = (
    "a row of the recording is what counts as one measurement: a raw reading that preparation has spread over several "
    "rows (by holding, filling or resampling) is protected as one only if the window is that wide"
)


@dataclass(frozen=True)
class Reply:
    """What a unit answers (None: nothing), what it keeps until the next message, how the answer was made private."""

    message: Message | None
    memory: object | None = None
    made: AddedNoise | None = None


@dataclass(frozen=True)
class Next:
    """What comes of all replies: what the server keeps, and what it says next.

    ``converged``: how the exchange has ended; None: it goes on with ``messages``, which are asked of their units.
    ``work``: what follows from what is kept and is costly; it is made again after a crash.
    """

    memory: object
    messages: tuple[Message, ...]
    converged: bool | None = None
    work: Any = None


class Release(ABC):
    """One kind of release. The functions of a unit see its rows; those of the server see messages and the task."""

    name: ClassVar[str]  # of ``Privacy(release=...)``
    from_logs: ClassVar[bool] = False  # units have no models
    options: ClassVar[type[Options]]
    borrowed: ClassVar[frozenset[str]] = frozenset()  # options of method "sufficient" that say nothing here
    pairs: ClassVar[tuple[tuple[type[Message], type[Message]], ...]]  # what is asked, and the reply; the last costs
    told: ClassVar[type[Message] | None] = None  # what a unit is told at the end besides that it is over
    may_skip: ClassVar[bool] = False  # units that nobody needs may be left out of the rounds
    kept: ClassVar[tuple[type, ...]] = ()  # classes of what unit and server keep between messages
    mechanism: ClassVar[str] = ""
    unprotected: ClassVar[tuple[str, ...]] = ()
    seen: ClassVar[str] = "of each other's rows and inputs units saw nothing"  # what each unit saw of the others

    def chosen(self, task: Task) -> Any:
        """The options of a task."""
        given = dict(task.options)
        if task.method == "sufficient":
            given = {name: value for name, value in given.items() if name not in self.borrowed}
        return self.options.parse(task.method, given)

    def check(self, task: Task) -> None:  # noqa: B027  not every release refuses anything
        """OptionError or PrivacyError if what is asked for does not go with this release."""

    def rounds(self, privacy: Privacy | None) -> int:
        """How often the last pair comes."""
        return 1

    def script(self, task: Task) -> tuple[tuple[type[Message], type[Message] | None], ...]:
        """All that a unit hears before the end, and its replies."""
        pairs: tuple[tuple[type[Message], type[Message] | None], ...] = self.pairs
        pairs = pairs[:-1] + pairs[-1:] * self.rounds(task.privacy)
        return pairs if self.told is None else (*pairs, (self.told, None))

    # ---- at a unit

    def ready(self, task: Task, own: UnitData) -> None:  # noqa: B027
        """Refuses what cannot be released, before anything leaves."""

    def at_once(self, task: Task, unit: str) -> bool:
        """Whether inputs of a unit are known to act on the row that they stand in."""
        return False

    @abstractmethod
    def reply(self, at: ExchangeUnit, asked: Message) -> Reply:
        """The answer to one message; each kind comes in the order of the script."""

    def part(self, task: Task, own: UnitData, state: ExchangeUnit) -> UnitPart:
        """What stays at the unit."""
        return given_part(task, own)

    @abstractmethod
    def caveats(self, own: UnitData, read: Readings, part: UnitPart, state: ExchangeUnit) -> tuple[Caveat, ...]:
        """What a reader should know of what the unit has sent; nothing of it tells of a measurement."""

    # ---- at the server

    def prepare(self, at: ExchangeServer) -> Any:
        """``Next.work`` again, from what was kept."""
        return None

    def check_reply(self, at: ExchangeServer, message: Message) -> None:  # noqa: B027
        """ProtocolError if a message is of the right kind and cannot be used."""

    @abstractmethod
    def learn(self, at: ExchangeServer) -> Next:
        """All have replied: ``at.said``."""

    @abstractmethod
    def learned(self, task: Task, state: ExchangeServer) -> Learned:
        """What the server has when it is over."""

    # ---- the price

    def costs(self, privacy: Privacy, model: LocalModel | None, rows: int) -> list[Cost]:
        """What each private message of so many rows costs."""
        raise NotImplementedError

    def what(self, rows: int, number: int) -> str:
        """What a ledger calls private message ``number``."""
        raise NotImplementedError

    def least_noise(self, privacy: Privacy, rows: int, message: Any, made: AddedNoise) -> float | None:
        """Standard deviation that the noise of a message needs; None if it was not made as it should be."""
        raise NotImplementedError


def unexpected(where: str, message: Message) -> ProtocolError:
    """Of a message whose turn it is not."""
    whose = "" if where.startswith("unit") else f" of unit {message.unit!r}"
    return ProtocolError(f"{where} did not expect {type(message).__name__}{whose}")


def opening(units: tuple[str, ...]) -> tuple[Message, ...]:
    """What every exchange begins with."""
    return tuple(Request(name) for name in units)
