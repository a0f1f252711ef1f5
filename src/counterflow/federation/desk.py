"""A plant's side of a standing job for questions: what its people ask, and what its controllers answer."""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from itertools import count, groupby
from pathlib import Path

from counterflow.errors import CounterflowError, OptionError, PrivacyError, ProtocolError
from counterflow.exchange.controllers import UnitControllers
from counterflow.federation.controllers import reaction, terms_of
from counterflow.federation.guard import Answered, Guard
from counterflow.federation.job import Job
from counterflow.federation.question_box import LOOK, QuestionBox
from counterflow.federation.refusal import Numbered, refusal_of
from counterflow.protocol import Terms, Trial, encode


class PlantDesk:
    """A plant's side of the standing job: every exchange brings answers, and takes the next question with it.

    Parameters
    ----------
    box : of this plant.
    job : the standing job.
    renewed : makes the guard from the policy as it is now; called again when the policy's file has changed.
    policy_file : that file.
    controllers : of this plant; None: there are none that could answer.
    """

    def __init__(
        self, box: QuestionBox, job: Job, renewed: Callable[[], Guard], policy_file: Path,
        controllers: UnitControllers | None = None,
    ) -> None:  # fmt: skip
        self._box, self._job, self._renewed, self._file = box, job, renewed, policy_file
        self._controllers, self._turn, self._line = controllers, threading.RLock(), threading.Lock()
        self._state: object = None
        self._told = ""
        self._numbers = count(1)
        self._open: dict[int, str] = {}
        self.guard = renewed()

    def exchange(self, arrived: Numbered, patience: float, over: Callable[[], bool] = lambda: False) -> Numbered:
        """Take in what the coordinator says; what this plant says in return.

        To a trial that is what its controllers answer, at once, while another exchange may wait for a question. Else it
        is the next question, or nothing after ``patience`` seconds or when it is ``over``.
        """
        with self._turn:
            self._renew()
            answered: Numbered = []
            for number, group in groupby(arrived, key=lambda entry: entry[0]):
                answered += self._take_in(number, [data for _, data in group])
            if answered:
                return answered
        with self._line:  # one exchange at a time waits for a question
            self._open.clear()  # what has no answer by now was lost on the way, and is asked again
            deadline = time.monotonic() + patience
            while True:
                with self._turn:
                    waiting = self._box.waiting()  # before the policy: what was put since is judged by what it says
                    out = [*self._terms(), *self._next(waiting)]
                if out or over() or time.monotonic() >= deadline:
                    return out
                time.sleep(LOOK)

    def close(self) -> None:
        """Let go of the site's files. Nothing is lost without it."""
        self.guard.audit.close()

    def _take_in(self, number: int, arrived: list[bytes]) -> Numbered:
        """Give an answer to whoever has asked; answers to trials."""
        name = self._open.pop(number, None)
        try:
            messages = [self.guard.incoming(data) for data in arrived]
            kinds = [type(message).__name__ for message in messages]
            if kinds == ["Terms"]:
                self._told = hashlib.sha256(arrived[0]).hexdigest()
                return []
            if name is not None and {"Terms", "Trial"} & set(kinds):
                raise ProtocolError("neither terms nor a trial are an answer to a question")
        except CounterflowError as error:
            if name is not None:
                self._settle(name, ProtocolError(f"the coordinator's answer was not taken: {error}"))
            raise
        if name is not None:  # else it answers a question of a process that has gone; it will be asked again
            self.guard.audit.write("answered", job=self._job.id, unit=self.guard.unit, question=name, kinds=kinds[:20])
            self._box.settle(name, arrived)
        pairs = zip(messages, arrived, strict=True)
        return [(number, self._reaction(message, data)) for message, data in pairs if isinstance(message, Trial)]

    def _reaction(self, trial: Trial, data: bytes) -> bytes:
        """What this plant's controllers answer, let out by the guard."""
        unit, known = self.guard.unit, self._controllers
        try:
            if known is None:
                raise ProtocolError(f"unit {unit!r} has no controllers")
            laws = self._box.laws(trial.supposed) if trial.supposed else {}
            if laws is None:
                raise ProtocolError(f"unit {unit!r}: no question of its own supposes other laws by this word")
            own = known.supposing(laws) if laws else known
            said = encode(reaction(own, trial, hashlib.sha256(data).hexdigest()))
        except CounterflowError as error:
            self.guard.refuse("incoming", data, error)
        return self.guard.send(said, Answered(data, own.columns))

    def _renew(self) -> None:
        """Look at the policy again, if its file has changed."""
        try:
            state: object = self._file.stat().st_mtime_ns
        except OSError:
            state = 0
        if state != self._state:
            self._state = state
            try:
                self.guard = self._renewed()
                asking = self.guard.policy.asking()
            except CounterflowError as error:  # a policy that cannot be read allows nothing
                self.guard = self.guard.closed()
                asking = self.guard.policy.asking()
                self.guard.audit.write("refused", job=self._job.id, unit=self.guard.unit, reason=f"{error}"[:2000])
            self._asking = asking

    def _terms(self) -> Numbered:
        """Who may ask about this plant's inputs, until the coordinator has said it back."""
        self._renew()
        said = None if self._controllers is None else terms_of(self._controllers, self.guard.policy)
        told = self._asking | {"controllers": None if said is None else said.to_json()}
        data = encode(Terms(self.guard.unit, json.dumps(told, sort_keys=True)))
        if hashlib.sha256(data).hexdigest() == self._told:
            return []
        return [(next(self._numbers), self.guard.send(data))]

    def _next(self, waiting: Sequence[str]) -> Numbered:
        for name in waiting:
            try:
                table, messages = self._box.read(name)
                if not messages:
                    continue
                if table.get("about") != self._job.digest:
                    if table.get("latest") is True:
                        continue  # the coordinator will come to it
                    raise OptionError(
                        f"the coordinator answers questions about job {self._job.options['of']!r} now, not about "
                        f"{str(table.get('fit'))!r}: leave --fit out, or ask for that job to be run again"
                    )
                if not self._asking["answers"]:
                    raise PrivacyError(
                        f"unit {self.guard.unit!r} may put no questions by its own policy (answers.allowed)"
                    )
                approved = [self.guard.outgoing(data) for data in messages]  # all of it, before any of it leaves
            except CounterflowError as error:
                self._settle(name, error)
                continue
            number = next(self._numbers)
            self._open[number] = name
            self.guard.audit.write("asked", job=self._job.id, unit=self.guard.unit, question=name)
            return [(number, self.guard.leave(data)) for data in approved]
        return []

    def _settle(self, name: str, error: CounterflowError) -> None:
        self._box.settle(name, [encode(refusal_of(self.guard.unit, error))])
