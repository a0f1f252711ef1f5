"""A plant's controllers between machines: what it says of them, how they are asked, what they answer.

Their laws stay at the plant. The coordinator sends a plant its own states in a world that it tries (``Trial``), the
plant answers with what its inputs would be (``Reaction``); in one round all plants are asked at once.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, ClassVar, NoReturn

import numpy as np

from counterflow.control import Law
from counterflow.errors import CounterflowError, OptionError, PrivacyError, ProtocolError, StorageError
from counterflow.exchange.controllers import UnitControllers
from counterflow.federation.job import Job
from counterflow.federation.policy import Policy
from counterflow.federation.refusal import Refusal
from counterflow.protocol import Reaction, Trial, decode, encode
from counterflow.protocol.codec import SIZE_LIMIT
from counterflow.records import describe, restore

MOST_MEMORY = 1000  # rows that a law may look back
ELSEWHERE = (
    "between machines a plant asks what its own controllers would do in manual, or tuned otherwise: those of others "
    "follow the laws that they have"
)
PATIENCE = 20.0  # seconds that a plant may take for one answer
MOST_ROUNDS = 1000  # of one question
LONGEST = 300.0  # seconds for all of them
MOST_STEPS = 20_000  # of one question
Carry = Callable[[str, bytes, float], bytes]
"""Takes a trial to a unit and brings its answer, within so many seconds. ``Unanswered`` if there is none."""


@dataclass(frozen=True)
class ControllerTerms:
    """What a plant says of its controllers to the coordinator; there, they are controllers that are asked by rounds.

    ``columns``: the inputs that they move, by number; ``locked``: those of them that never moved otherwise.
    ``reacts``: whether they answer to trials; if so, ``switches``: whether one of them is a relay, and ``memory``: how
    many rows before its own a law looks at.

    Examples
    --------
    >>> said = ControllerTerms((1,), reacts=True, memory=1)
    >>> ControllerTerms.from_json(said.to_json(), inputs=3) == said
    True
    """

    columns: tuple[int, ...]
    locked: tuple[int, ...] = ()
    reacts: bool = False
    switches: bool = False
    memory: int = 0
    foreign: ClassVar[tuple[str, ...]] = ()  # nothing of other units is seen between machines

    def to_json(self) -> dict[str, Any]:
        """In plain types."""
        return describe(self)[0]

    @classmethod
    def from_json(cls, found: object, inputs: int) -> ControllerTerms:
        """Of a unit with so many inputs, trusting nothing."""
        try:
            said = restore(cls, found, {})
        except StorageError as error:
            raise OptionError(f"controllers: {error}") from error
        for listed, known in ((said.columns, range(inputs)), (said.locked, said.columns)):
            if len(set(listed)) < len(listed) or not set(listed) <= set(known):
                raise OptionError(f"controllers: {list(listed)!r:.80} must be some of {list(known)!r:.80}, each once")
        if not 0 <= said.memory <= MOST_MEMORY:
            raise OptionError(f"controllers: a memory of 0 to {MOST_MEMORY} rows is needed, got {said.memory}")
        return said

    def react(self, trial: Trial) -> NoReturn:
        """Nobody asks one alone: see ``Rounds``."""
        raise ProtocolError(f"unit {trial.unit!r}: controllers on other machines are asked together")

    def telemetry(self, channel: str, trial: Trial) -> NoReturn:
        """No measurement leaves a unit."""
        raise ProtocolError(f"unit {trial.unit!r}: no measurement leaves a unit for the controllers of others")

    def supposing(self, laws: Mapping[str, Law]) -> NoReturn:
        """Other laws are for the plant itself to suppose."""
        raise OptionError(ELSEWHERE, code="laws-elsewhere")


def terms_of(own: UnitControllers, policy: Policy) -> ControllerTerms | None:
    """What the coordinator is told of a plant's controllers; None: there are none.

    A controller that reads another unit's measurement is not asked between machines: no measurement leaves a unit.
    """
    unit = own.part.unit
    elsewhere = [unit.input_names.index(loop.moves) for loop in unit.loops if loop.reading_unit is not None]
    columns = tuple(dict.fromkeys([*own.columns, *elsewhere]))
    if not columns:
        return None
    may_leave = policy.react and (policy.kinds is None or "Reaction" in policy.kinds)
    if elsewhere or own.memory > MOST_MEMORY or not may_leave:
        return ControllerTerms(columns, own.locked)
    return ControllerTerms(columns, own.locked, True, own.switches, own.memory)


def supposed_terms(own: UnitControllers, laws: Mapping[str, Law], policy: Policy) -> ControllerTerms:
    """What the coordinator is told in a question of this plant's own that supposes other laws."""
    said = terms_of(own.supposing(laws), policy)
    if said is None or not said.reacts:
        raise PrivacyError(
            "other laws need controllers that answer: set react = true below [controllers] of policy.toml",
            code="controllers-silent",
        )
    return said


def reaction(own: UnitControllers, trial: Trial, digest: str) -> Reaction:
    """The answer of a plant's controllers to a trial with that SHA-256."""
    if trial.tried.size and trial.tried.shape[1] != len(own.columns):
        raise ProtocolError(f"unit {trial.unit!r}: its controllers move other inputs")
    with np.errstate(all="ignore"):  # what is beyond all measure is refused as a message
        return replace(own.react(trial), trial=digest)


# ---- at the coordinator


class Unanswered(CounterflowError):
    """A plant has not answered a trial: it was not reached, or it refuses, and may say why."""

    def __init__(self, refusal: Refusal | None = None, reached: bool = True) -> None:
        super().__init__("no answer to a trial")
        self.refusal, self.reached = refusal, reached


class Rounds:
    """The rounds of one question: in each, all units are asked at once.

    Parameters
    ----------
    carry : takes a trial to a unit.
    job : the standing job.
    waiting : within it, others are heard.
    supposed : {unit: word} where a unit's own question supposes other laws.
    """

    def __init__(
        self, carry: Carry, job: Job, waiting: Callable[[], AbstractContextManager[Any]],
        supposed: Mapping[str, str] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self._supposed = supposed
        self._carry, self._job, self._waiting = carry, job, waiting
        self.count, self._until = 0, time.monotonic() + LONGEST

    def __call__(self, trials: Mapping[str, Trial]) -> dict[str, Reaction]:
        """What every unit says; an error names one that does not answer."""
        self.count += 1
        if self.count > MOST_ROUNDS or time.monotonic() > self._until:
            raise OptionError(
                f"with controllers reacting, this question takes more than {MOST_ROUNDS} rounds between the machines, "
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
            return self._carry(unit, data, PATIENCE)
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
            text = f"unit {unit!r} has not said within {PATIENCE:.0f} s what its controllers would do"
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
