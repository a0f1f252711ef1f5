"""The one exchange: what a unit says of its rows, what the server makes of it, what privacy of it costs.

The server asks every unit, waits for all of them, and computes; it asks again as often as the release wants it to,
tells units without models what they need of what it has found, and says that it is over:

    server -> unit    Request                unit -> server    the first reply        (``pairs``, the first)
    server -> unit    what comes next        unit -> server    the reply to it        (``pairs``, the last: every round)
    server -> unit    ``told``, if anything, and Finished

All of that is here. A release is one module with one subclass of ``Release``, and a line in ``exchange/registry.py``.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar

from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat
from counterflow.errors import OptionError, ProtocolError
from counterflow.exchange.input_feedback import reaction_caveats
from counterflow.exchange.method import Charge, Method, Progress
from counterflow.exchange.part import UnitPart, given_part
from counterflow.exchange.privacy import PrivacyReport, Spending
from counterflow.exchange.sensors import Readings, readings, refuse_private
from counterflow.exchange.task import Task, UnitData
from counterflow.learning.layout import refuse_other_rows
from counterflow.plant import LocalModel
from counterflow.privacy import Privacy
from counterflow.privacy.clipping import AddedNoise
from counterflow.protocol import Finished, Message, Request

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


class Release(Method):
    """One kind of release. The functions of a unit see its rows; those of the server see messages and the task."""

    name: ClassVar[str]  # of ``Privacy(release=...)``
    from_logs: ClassVar[bool] = False  # units have no models
    borrowed: ClassVar[frozenset[str]] = frozenset()  # options of method "sufficient" that say nothing here
    pairs: ClassVar[tuple[tuple[type[Message], type[Message]], ...]]  # what is asked, and the reply; the last costs
    told: ClassVar[type[Message] | None] = None  # what a unit is told at the end besides that it is over
    may_skip: ClassVar[bool] = False  # units that nobody needs may be left out of the rounds
    kept: ClassVar[tuple[type, ...]] = ()  # classes of what unit and server keep between messages
    unprotected: ClassVar[tuple[str, ...]] = ()  # what privacy does not cover
    seen: ClassVar[str] = "of each other's rows and inputs units saw nothing"  # what each unit saw of the others

    def __init_subclass__(cls) -> None:
        told = (cls.told,) if cls.told else ()
        cls.sends = frozenset(reply.__name__ for _, reply in cls.pairs)
        cls.hears = frozenset(kind.__name__ for kind in (*(asked for asked, _ in cls.pairs), *told, Finished))
        cls.private = frozenset({cls.pairs[-1][1].__name__})

    # ---- what releases differ in: at a unit

    @abstractmethod
    def reply(self, at: ExchangeUnit, asked: Message) -> Reply:
        """The answer to one message; each kind comes in the order of the script."""

    def ready(self, task: Task, own: UnitData) -> None:
        """Refuses what cannot be released, before anything leaves."""

    def at_once(self, task: Task, unit: str) -> bool:
        """Whether inputs of a unit are known to act on the row that they stand in."""
        return False

    def kept_part(self, task: Task, own: UnitData, state: ExchangeUnit) -> UnitPart:
        """What stays at the unit."""
        return given_part(task, own)

    @abstractmethod
    def caveats(self, own: UnitData, read: Readings, part: UnitPart, state: ExchangeUnit) -> tuple[Caveat, ...]:
        """What a reader should know of what the unit has sent; nothing of it tells of a measurement."""

    # ---- and at the server

    def prepare(self, at: ExchangeServer) -> Any:
        """``Next.work`` again, from what was kept."""
        return None

    def check_reply(self, at: ExchangeServer, message: Message) -> None:
        """ProtocolError if a message is of the right kind and cannot be used."""

    @abstractmethod
    def learn(self, at: ExchangeServer) -> Next:
        """All have replied: ``at.said``."""

    # ---- and in the price

    def turns(self, privacy: Privacy | None) -> int:
        """How often the last pair comes."""
        return 1

    def charges(self, task: Task, model: LocalModel | None, rows: int) -> list[Charge]:
        raise NotImplementedError(f"{self.name} from logs are never private")

    def sigma_needed(self, privacy: Privacy, rows: int, message: Any, made: AddedNoise) -> float | None:
        """Standard deviation that the noise of a message needs; None if it was not made as it should be."""
        raise NotImplementedError

    # ---- the exchange

    def chosen(self, task: Task) -> Any:
        """The options of a task."""
        borrowed = self.borrowed if task.method == "sufficient" else ()
        return self.options.parse(task.method, {k: v for k, v in task.options.items() if k not in borrowed})

    def script(self, task: Task) -> tuple[tuple[type[Message], type[Message] | None], ...]:
        """All that a unit hears before the end, and its replies."""
        pairs = self.pairs[:-1] + self.pairs[-1:] * self.turns(task.privacy)
        return pairs if self.told is None else (*pairs, (self.told, None))

    def check(self, task: Task) -> None:
        self.chosen(task).known_edges(task.units)
        refuse_private(task)
        if task.privacy is not None and task.privacy.accounting != "rigorous":
            raise OptionError(f"{task.label}: method {task.method!r} has rigorous accounting; leave accounting out")

    def server(self, task: Task, progress: Progress | None = None) -> ExchangeServer:
        return ExchangeServer(self, task, progress)

    def unit(self, task: Task, own: UnitData) -> ExchangeUnit:
        if not self.from_logs:
            given_part(task, own)  # refuses one without a model
        elif own.estimator is not None:
            raise OptionError(
                f"{task.label}: estimators go with given models; a fit from logs has none to estimate with"
            )
        if task.privacy is not None:
            self._inputs_react(task, own)
        self.ready(task, own)
        return ExchangeUnit(self, task, replace(own, y=readings(task, own).y))

    def part(self, task: Task, own: UnitData, state: ExchangeUnit) -> UnitPart:
        read, part = readings(task, own), self.kept_part(task, own, state)
        caveats = (*read.caveats, *self.caveats(own, read, part, state))
        if task.privacy is not None and self.chosen(task).reacting == "told":
            caveats += self._inputs_react(task, own)
        digest = None if state.release is None else own.digest
        return replace(part, sensors=read.sensors, caveats=caveats, rows_digest=digest)

    def _inputs_react(self, task: Task, own: UnitData) -> tuple[Caveat, ...]:
        at_once, refuse = self.at_once(task, own.unit.name), self.chosen(task).reacting == "refused"
        return reaction_caveats(own.unit, own.y, own.u, at_once, refuse)

    def least_noise(self, task: Task, rows: int, message: Message, made: Any) -> float | None:
        privacy = task.privacy
        assert privacy is not None
        if not isinstance(made, AddedNoise) or made.found_clip != (privacy.clip is None):
            return None
        if privacy.clip is not None and privacy.clip != made.clip:
            return None
        return self.sigma_needed(privacy, rows, message, made)

    def privacy_report(
        self, task: Task, spending: Spending, server: Any, units: Mapping[str, ExchangeUnit]
    ) -> PrivacyReport:
        assert task.privacy is not None
        mechanism, unprotected = self.mechanism, self.unprotected
        if task.privacy.models != "excluded":
            epsilon, delta = task.privacy.model_cost
            mechanism += f"; local models are counted with epsilon {epsilon:g} and delta {delta:g}, as declared"
        elif not self.from_logs:
            unprotected = (MODELS_EXCLUDED, *unprotected)
        made = {
            name: (each.release.clip, each.release.sigma, each.release.clipped) if each.release else None
            for name, each in units.items()
        }
        return spending.report(mechanism, made, unprotected, release=self.name, seen=self.seen)


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
        _check_memory(self.what, self.memory)

    @property
    def unit(self) -> str:
        return self.own.unit.name

    @property
    def kept(self) -> Any:
        """``memory``, which is of the kind that the release keeps."""
        return self.memory

    def step(self, message: Message) -> tuple[ExchangeUnit, tuple[Message, ...]]:
        script = self.what.script(self.task)
        over = bool(self.heard) if self.what.may_skip else self.heard == len(script)
        if isinstance(message, Finished) and over:
            return replace(self, finished=True), ()
        due = self.heard < len(script) and type(message) is script[self.heard][0]
        number = self.heard - len(self.what.pairs) + 1  # of the round that comes next
        if not due or getattr(message, "round", number) != number:
            raise ProtocolError(f"unit {self.unit!r} did not expect {type(message).__name__}")
        made = self.what.reply(self, message)
        state = replace(self, memory=made.memory, heard=self.heard + 1, release=made.made or self.release)
        return state, () if made.message is None else (made.message,)

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
        _check_memory(self.what, self.memory)

    @property
    def units(self) -> tuple[str, ...]:
        return self.task.units

    @property
    def kept(self) -> Any:
        """``memory``, which is of the kind that the release keeps."""
        return self.memory

    @property
    def waiting(self) -> tuple[str, ...]:
        asked = self.asked if self.turn else self.units
        return () if self.finished else tuple(name for name in asked if name not in self.said)

    def begin(self) -> tuple[ExchangeServer, tuple[Message, ...]]:
        return self, tuple(Request(name) for name in self.units)

    def step(self, message: Message) -> tuple[ExchangeServer, tuple[Message, ...]]:
        state = self if self.work is not None else replace(self, work=self.what.prepare(self))
        state._check(message)
        state = replace(state, said=MappingProxyType({**self.said, message.unit: message}))
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

    def _check(self, message: Message) -> None:
        due = type(message) is self.what.script(self.task)[self.turn][1]
        if due and message.unit in self.said:
            raise ProtocolError(f"server: unit {message.unit!r} has sent its message already")
        if not due or message.unit not in self.waiting or getattr(message, "round", self.round) != self.round:
            raise ProtocolError(f"server: did not expect {type(message).__name__} of unit {message.unit!r}")
        if hasattr(message, "inputs"):
            rows = {name: len(other.inputs) for name, other in self.said.items() if hasattr(other, "inputs")}
            refuse_other_rows(message.unit, len(message.inputs), rows)
        self.what.check_reply(self, message)

    def replies(self) -> list[Any]:
        """What was said, in the order of the units."""
        return [self.said[name] for name in self.units if name in self.said]


def _check_memory(what: Release, memory: object | None) -> None:
    """ProtocolError if it is not what such a release keeps, as that of a snapshot may be."""
    if memory is not None and type(memory) not in what.kept:
        raise ProtocolError(f"an exchange of {what.name} keeps no {type(memory).__name__}")
