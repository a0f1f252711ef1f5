"""How the coordinator asks controllers on other machines: in one round all plants are asked at once.

It sends a plant its own states in a world that it tries (``Trial``), the plant answers with what its inputs would be
(``Reaction``).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from counterflow.arrays import FloatArray
from counterflow.control import Law
from counterflow.errors import CounterflowError, OptionError, PrivacyError, ProtocolError
from counterflow.federation.controller_terms import ELSEWHERE, ControllerTerms
from counterflow.federation.job import Job
from counterflow.federation.refusal import Refusal
from counterflow.protocol import Reaction, Trial, decode, encode
from counterflow.protocol.codec import SIZE_LIMIT

PATIENCE = 20.0  # seconds that a plant may take for one answer
MOST_ROUNDS = 1000  # of one question
LONGEST = 300.0  # seconds for all of them
MOST_STEPS = 20_000  # of one question
Carry = Callable[[str, bytes, float], bytes]
"""Takes a trial to a unit and brings its answer, within so many seconds. ``Unanswered`` if there is none."""


class Unanswered(CounterflowError):
    """A plant has not answered a trial: it was not reached, or it refuses, and may say why."""

    def __init__(self, refusal: Refusal | None = None, reached: bool = True) -> None:
        super().__init__("no answer to a trial")
        self.refusal, self.reached = refusal, reached


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
