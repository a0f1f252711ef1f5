"""Controllers between machines: what a plant says of them, what they answer, and how the coordinator asks.

A law stays at its plant. The coordinator sends a plant its own states in a world that it tries (``Trial``), the plant
answers with what its inputs would be (``Reaction``). In one round all plants are asked at once.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.control import Law
from counterflow.errors import CounterflowError, OptionError, PrivacyError, ProtocolError
from counterflow.exchange.controllers import UnitControllers
from counterflow.federation.guard import Guard
from counterflow.federation.job import Job
from counterflow.federation.policy import Policy
from counterflow.federation.refusal import Refusal
from counterflow.protocol import Reaction, Trial, decode, encode
from counterflow.protocol.codec import SIZE_LIMIT

PATIENCE = 20.0  # seconds that a plant may take for one answer
MOST_ROUNDS = 1000  # of one question
LONGEST = 300.0  # seconds for all of them
MOST_STEPS = 20_000  # of one question
MOST_MEMORY = 1000  # rows that a law may look back
ELSEWHERE = (
    "between machines a plant asks what its own controllers would do in manual, or tuned otherwise: those of others "
    "follow the laws that they have"
)
Carry = Callable[[str, bytes, float], bytes]
"""Takes a trial to a unit and brings its answer, within so many seconds. ``Unanswered`` if there is none."""


class Unanswered(CounterflowError):
    """A plant has not answered a trial: it was not reached, or it refuses, and may say why."""

    def __init__(self, refusal: Refusal | None = None, reached: bool = True) -> None:
        super().__init__("no answer to a trial")
        self.refusal, self.reached = refusal, reached


@dataclass(frozen=True)
class ControllerTerms:
    """What a plant says of its controllers to the coordinator.

    ``moves``: the inputs that they move, by number; ``locked``: those of them that never moved otherwise. ``reacts``:
    whether they answer to trials; if so, ``switches``: whether one of them is a relay, and ``memory``: how many rows
    before its own a law looks at.

    Examples
    --------
    >>> said = ControllerTerms((1,), reacts=True, memory=1)
    >>> ControllerTerms.from_text(said.to_text(), inputs=3) == said
    True
    """

    moves: tuple[int, ...]
    locked: tuple[int, ...] = ()
    reacts: bool = False
    switches: bool = False
    memory: int = 0

    def to_text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_text(cls, text: str, inputs: int) -> ControllerTerms:
        """From JSON of a unit with so many inputs, trusting nothing."""
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        return cls.from_json(found, inputs)

    @classmethod
    def from_json(cls, found: object, inputs: int) -> ControllerTerms:
        """The same from plain types."""
        keys = {"moves", "locked", "reacts", "switches", "memory"}
        if not isinstance(found, dict) or set(found) != keys:
            raise OptionError(f"controllers: a table with {', '.join(sorted(keys))} is needed")
        for name in ("moves", "locked"):
            columns = found[name]
            good = isinstance(columns, list) and all(type(k) is int and 0 <= k < inputs for k in columns)
            if not good or len(set(columns)) < len(columns):
                raise OptionError(f"controllers: {name!r} must list some of {inputs} inputs, each once")
        if not set(found["locked"]) <= set(found["moves"]):
            raise OptionError("controllers: 'locked' must be among those that are moved")
        flags = all(isinstance(found[name], bool) for name in ("reacts", "switches"))
        if not flags or type(found["memory"]) is not int or not 0 <= found["memory"] <= MOST_MEMORY:
            raise OptionError(f"controllers: truth values, and a memory of 0 to {MOST_MEMORY} rows, are needed")
        return cls(tuple(found["moves"]), tuple(found["locked"]), *(found[k] for k in ("reacts", "switches", "memory")))


# ---- at a plant


@dataclass(frozen=True)
class PlantControllers:
    """A plant's controllers in a standing job: what it says of them, and what they answer."""

    controllers: UnitControllers

    def supposing(self, laws: Mapping[str, Law], policy: Policy) -> ControllerTerms:
        """What the coordinator is told in a question of this plant's own that supposes other laws."""
        said = replace(self, controllers=self.controllers.supposing(laws)).terms(policy)
        if said is None or not said.reacts:
            raise PrivacyError(
                "other laws need controllers that answer: set react = true below [controllers] of policy.toml",
                code="controllers-silent",
            )
        return said

    def terms(self, policy: Policy) -> ControllerTerms | None:
        """What the coordinator is told; None: there are none.

        A controller that reads another unit's measurement is not asked between machines: no measurement leaves a unit.
        """
        own, unit = self.controllers, self.controllers.part.unit
        elsewhere = [unit.input_names.index(loop.moves) for loop in unit.loops if loop.reading_unit is not None]
        moves = tuple(dict.fromkeys([*own.columns, *elsewhere]))
        if not moves:
            return None
        may_leave = policy.react and (policy.kinds is None or "Reaction" in policy.kinds)
        if elsewhere or own.memory > MOST_MEMORY or not may_leave:
            return ControllerTerms(moves, own.locked)
        return ControllerTerms(moves, own.locked, True, own.switches, own.memory)

    def answer(self, data: bytes, guard: Guard, supposed: Callable[[str], Mapping[str, Law] | None]) -> bytes:
        """The answer to a trial, let out by the guard; ``supposed``: other laws that an own question asks about."""
        trial = guard.trial(data)
        own = self.controllers
        if trial.supposed:
            laws = supposed(trial.supposed)
            if laws is None:
                text = f"unit {guard.unit!r}: no question of its own supposes other laws by this word"
                guard.refuse("incoming", data, ProtocolError(text))
            own = own.supposing(laws)
        if trial.tried.size and trial.tried.shape[1] != len(own.columns):
            guard.refuse("incoming", data, ProtocolError(f"unit {guard.unit!r}: its controllers move other inputs"))
        try:
            with np.errstate(all="ignore"):  # what is beyond all measure is refused as a message
                said = own.react(trial)
            reaction = replace(said, trial=hashlib.sha256(data).hexdigest())
        except CounterflowError as error:
            guard.refuse("incoming", data, error)
        return guard.react(data, encode(reaction), own.columns)


# ---- at the coordinator


@dataclass(frozen=True)
class RemoteControllers:
    """A unit's controllers on another machine, as ``questions.closed_loop`` sees them."""

    unit: str
    terms: ControllerTerms

    @property
    def columns(self) -> tuple[int, ...]:
        """The inputs that they move."""
        return self.terms.moves

    @property
    def locked(self) -> tuple[int, ...]:
        """Those of them that never moved otherwise."""
        return self.terms.locked

    @property
    def switches(self) -> bool:
        """Whether one of them is a relay."""
        return self.terms.switches

    @property
    def memory(self) -> int:
        """Rows before its own that a law looks at."""
        return self.terms.memory

    @property
    def foreign(self) -> tuple[str, ...]:
        """Nothing of other units is seen between machines."""
        return ()

    def telemetry(self, channel: str, trial: Trial) -> FloatArray:
        raise ProtocolError(f"unit {self.unit!r}: no measurement leaves a unit for the controllers of others")

    def supposing(self, laws: Mapping[str, Law]) -> RemoteControllers:
        raise OptionError(ELSEWHERE, code="laws-elsewhere")

    def react(self, trial: Trial) -> Reaction:
        raise ProtocolError(f"unit {self.unit!r}: controllers on other machines are asked together")


class Rounds:
    """The rounds of one question: in each, all units are asked at once.

    Parameters
    ----------
    carry : takes a trial to a unit.
    job : the standing job.
    waiting : within it, others are heard.
    most, patience : rounds of the question, and seconds of a unit's answer.
    supposed : {unit: word} where a unit's own question supposes other laws.
    """

    def __init__(
        self, carry: Carry, job: Job, waiting: Callable[[], AbstractContextManager[Any]], most: int = MOST_ROUNDS,
        patience: float = PATIENCE, supposed: Mapping[str, str] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self._supposed = supposed
        self._carry, self._job, self._waiting, self._most, self._patience = carry, job, waiting, most, patience
        self.count, self._until = 0, time.monotonic() + LONGEST

    def __call__(self, trials: Mapping[str, Trial]) -> dict[str, Reaction]:
        """What every unit says; an error names one that does not answer."""
        self.count += 1
        if self.count > self._most or time.monotonic() > self._until:
            raise OptionError(
                f"with controllers reacting, this question takes more than {self._most} rounds between the machines, "
                f'or {LONGEST:.0f} s: ask for fewer steps, or with controllers="held"',
                code="too-many-rounds",
            )
        trials = {unit: replace(trial, supposed=self._supposed.get(unit, "")) for unit, trial in trials.items()}
        sent = {unit: encode(trial) for unit, trial in trials.items()}
        with self._waiting(), ThreadPoolExecutor(len(sent), "trials") as pool:
            replies = list(pool.map(self._answer, sent, sent.values()))
        return {unit: self._checked(trials[unit], sent[unit], reply) for unit, reply in zip(sent, replies, strict=True)}

    def _answer(self, unit: str, data: bytes) -> bytes | Unanswered:
        try:
            return self._carry(unit, data, self._patience)
        except Unanswered as error:
            return error

    def _checked(self, trial: Trial, sent: bytes, reply: bytes | Unanswered) -> Reaction:
        unit, held = trial.unit, 'or ask with controllers="held"'
        if isinstance(reply, Unanswered):
            if reply.refusal is not None:
                raise PrivacyError(f"{reply.refusal.sentence(unit, self._job)}; {held}", code=reply.refusal.code)
            if reply.reached:
                text = f"unit {unit!r} refuses to say what its controllers would do: its owner's logs say why; {held}"
                raise ProtocolError(text, code="controllers-refuse")
            text = f"unit {unit!r} has not said within {self._patience:.0f} s what its controllers would do"
            raise ProtocolError(f"{text}: see that it runs, {held}", code="plant-missing")
        found = decode(reply, SIZE_LIMIT)
        if not isinstance(found, Reaction) or found.unit != unit:
            raise ProtocolError(f"server: unit {unit!r} answers a trial with {type(found).__name__} of {found.unit!r}")
        if found.trial != hashlib.sha256(sent).hexdigest():
            raise ProtocolError(f"server: unit {unit!r} answers to another trial than the one that it was sent")
        asked = (trial.row, trial.worlds, trial.inputs.shape)
        if (found.row, found.worlds, found.inputs.shape) != asked:
            raise ProtocolError(f"server: unit {unit!r} answers for other rows, worlds or inputs than were asked about")
        return found
