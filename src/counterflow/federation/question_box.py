"""Questions at a plant: whoever asks puts them into a box, the plant's part of a standing job takes them out.

The box is a log of the site's store, because the two are different processes and either may be killed: a question that
was not answered is asked again, and asking twice does nothing twice. A question and its answer go when whoever asked
has taken the answer, or after LIFETIME.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, groupby
from pathlib import Path
from typing import Any

from counterflow import errors
from counterflow.control import Law, as_law
from counterflow.control.laws import law_from_json, law_json
from counterflow.errors import CounterflowError, OptionError, ProtocolError, StorageError, UnknownNameError
from counterflow.federation.audit import SITE
from counterflow.federation.guard import Guard
from counterflow.federation.job import Job
from counterflow.federation.parts import questions_about
from counterflow.federation.policy import Policy
from counterflow.federation.reactions import ELSEWHERE, PlantControllers
from counterflow.plant import Channel, PublicUnit, Unit
from counterflow.printable import shown
from counterflow.protocol import Answer, Ask, Change, Message, Openings, Refused, Terms, decode, encode
from counterflow.questions.parts import REACTIONS, Watch
from counterflow.sealed_log import Entry, FileLogs, Row, SealedLogs

LOG = "questions"
LARGEST = 256 << 20  # bytes of a question, or of an answer
MOST = 1000  # questions that wait
LIFETIME = 600.0  # seconds after which nobody waits for an answer any more
LOOK = 0.02  # seconds between two looks into the box
Numbered = list[tuple[int, bytes]]  # messages with the number of the question that they belong to


class QuestionBox:
    """Questions that wait, and answers that were not taken yet.

    Parameters
    ----------
    store : of the site, or the path of its file.

    Examples
    --------
    >>> from counterflow.sealed_log import MemoryLogs
    >>> box = QuestionBox(MemoryLogs(SITE))
    >>> question = box.put([b"what if"])
    >>> box.waiting() == [question], box.read(question)[1]
    (True, [b'what if'])
    >>> box.settle(question, [b"this"])
    >>> box.answer(question, patience=0), box.waiting()
    ([b'this'], [])
    """

    def __init__(self, store: SealedLogs | Path) -> None:
        self._store = FileLogs(store, SITE) if isinstance(store, Path) else store
        self._version: object = None
        self._read: list[Row] = []

    def put(
        self, messages: Sequence[bytes], about: str = "", fit: str = "", latest: bool = True,
        supposed: tuple[str, Mapping[str, Law]] | None = None,
    ) -> str:  # fmt: skip
        """Put a question in; its name.

        ``about``: digest of the standing job that may answer it; ``fit``: the job that it is about, and whether that
        is the ``latest``, for which it waits. ``supposed``: other laws of this plant's own controllers, which stay in
        the box, and the word by which the question refers to them.
        """
        if not all(map(_is_fresh, self._rows())):
            self._store.begin_anew(LOG, [], _is_fresh)
        if len(self.waiting()) >= MOST:
            raise StorageError(
                f"federation: {MOST} questions wait in {self._store.name}: see that the plant's site runs"
            )
        _check_size(messages, self._store.name)
        name = f"{time.time_ns():020d}-{secrets.token_hex(4)}"
        table = {"name": name, "time": time.time(), "about": about, "fit": fit[:100], "latest": latest}
        if supposed is not None:
            word, laws = supposed
            table["supposed"] = {"word": word, "laws": {name: law_json(law) for name, law in laws.items()}}
        self._store.append(LOG, Entry("question", table, messages))
        return name

    def waiting(self) -> list[str]:
        """Questions without an answer, the oldest first."""
        rows = [row for row in self._rows() if _is_fresh(row)]
        answered = {row.table["name"] for row in rows if row.kind == "answer"}
        return sorted(row.table["name"] for row in rows if row.kind == "question" and row.table["name"] not in answered)

    def read(self, name: str) -> tuple[dict[str, Any], list[bytes]]:
        """What a question is about, and its messages; none if it has gone."""
        row = self._row(name, "question")
        return ({}, []) if row is None else (row.table, list(row.pieces))

    def laws(self, word: str) -> dict[str, Law] | None:
        """The laws that a question which is still here supposes by this word; None: there is none."""
        for row in self._rows():
            found = row.table.get("supposed")
            if row.kind == "question" and _is_fresh(row) and found and found["word"] == word:
                laws = {name: law_from_json(law) for name, law in found["laws"].items()}
                return {name: law for name, law in laws.items() if law is not None}
        return None

    def settle(self, name: str, messages: Sequence[bytes]) -> None:
        """Put its answer beside a question that is still there."""
        if self._row(name, "question") is not None:
            _check_size(messages, self._store.name)
            self._store.append(LOG, Entry("answer", {"name": name, "time": time.time()}, messages))

    def answer(self, name: str, patience: float) -> list[bytes]:
        """Wait for the answer and take it, and the question, out.

        Raises
        ------
        StorageError
            There is none in time.
        """
        deadline = time.monotonic() + patience
        try:
            while (found := self._row(name, "answer")) is None:
                if time.monotonic() >= deadline:
                    raise StorageError(
                        f"federation: no answer in {patience:.0f} s: see with counterflow federation status that this "
                        "plant and the coordinator run and that the coordinator has a finished fit; then ask again",
                        code="no-answer",
                    )
                time.sleep(LOOK)
            return list(found.pieces)
        finally:
            self._store.begin_anew(LOG, [], lambda row: row.table.get("name") != name and _is_fresh(row))

    def _row(self, name: str, kind: str) -> Row | None:
        found = (row for row in self._rows() if row.kind == kind and row.table.get("name") == name)
        return next((row for row in found if _is_fresh(row)), None)

    def _rows(self) -> list[Row]:
        """All that is in the box; read again only when somebody has changed the store."""
        version = self._store.version(LOG)
        if version != self._version:
            self._read = list(self._store.rows(LOG))
            self._version = version
        return self._read


def _is_fresh(row: Row) -> bool:
    """Whether somebody may still wait for it."""
    return abs(time.time() - float(row.table["time"])) <= LIFETIME


def _check_size(messages: Sequence[bytes], where: str) -> None:
    if sum(map(len, messages)) > LARGEST:
        raise StorageError(f"federation: more than {LARGEST} bytes for {where}: ask for fewer steps")


@dataclass(frozen=True)
class RemoteServer:
    """The coordinator, as a plant's questions see it: what it is told of the job, and a box.

    Of other units it knows the inputs that are open to this plant; it asks for them when they are first needed.

    Parameters
    ----------
    job : whose fit is asked about; this plant's part of it.
    box : of this plant.
    recorded : rows of this plant's log at the fit.
    own : this plant's unit.
    latest : whether no later fit is finished here; the coordinator answers about the latest only.
    patience : seconds to wait for an answer.
    controllers : of this plant.
    """

    job: Job
    box: QuestionBox
    recorded: int
    own: Unit
    latest: bool = True
    patience: float = 60.0
    controllers: PlantControllers | None = None
    supposed: tuple[str, Mapping[str, Law], str] | None = None  # word, laws, and what is said of them

    @property
    def link(self) -> str:
        """What the unit's part must refer to."""
        return self.job.digest

    @property
    def rows(self) -> int:
        """Rows that questions about the past can refer to."""
        if self.job.method != "sufficient":
            raise OptionError(f"method {self.job.method!r} keeps no record of inputs: fit with method 'sufficient'")
        return self.recorded

    @property
    def units(self) -> tuple[PublicUnit, ...]:
        """All units, as far as they are open to this plant."""
        return tuple(map(self.unit, self.job.units))

    def unit(self, name: str) -> PublicUnit:
        """A unit, as far as it is open to this plant."""
        if name not in self.job.inputs:
            raise UnknownNameError(f"no unit {name!r:.80}; the units are {', '.join(self.job.units)}")
        return self.own.public if name == self.own.name else self._others[name]

    @cached_property
    def _others(self) -> dict[str, PublicUnit]:
        (answer,) = self._exchanged([Openings(self.own.name)], None)
        if not isinstance(answer, Openings) or set(answer.channels) != set(self.job.units) - {self.own.name}:
            raise ProtocolError(f"unit {self.own.name!r}: {type(answer).__name__} does not say whom it may ask about")
        told = {name: list(map(Channel.from_json, given)) for name, given in answer.channels.items()}
        return {name: PublicUnit(name, tuple(channels), 1) for name, channels in told.items()}

    def ask(self, changes: Sequence[Change], ask: Ask, watch: Watch | None = None) -> tuple[Answer, ...]:
        """Put the question into the box and wait for its answer."""
        named = [change.naming(self.unit(change.cause).input_names) for change in changes]
        if self.supposed is not None:
            ask = replace(ask, supposed=self.supposed[0], terms=self.supposed[2])
        parts: list[Answer] = []
        for message in self._exchanged([*named, ask], watch):
            columns = self.own.n_inputs if getattr(message, "share", "") == REACTIONS else self.own.states
            if not isinstance(message, Answer) or message.kind != ask.kind or message.mean.shape[1] != columns:
                raise ProtocolError(f"unit {ask.unit!r}: {type(message).__name__} is no answer to {ask.kind!r}")
            parts.append(message)
        return tuple(parts)

    def supposing(self, laws: Mapping[str, Mapping[str, Law]]) -> RemoteServer:
        """The same where this plant's own controllers follow other laws, which stay here."""
        if set(laws) != {self.own.name} or self.controllers is None:
            raise OptionError(ELSEWHERE, code="laws-elsewhere")
        own = laws[self.own.name]
        for name, law in own.items():
            if not as_law(law).storable:
                raise OptionError(
                    f"unit {self.own.name!r}, {name!r}: between machines a law is one of counterflow's own"
                )
        said = self.controllers.supposing(own, Policy(self.own.name, react=True))
        return replace(self, supposed=(secrets.token_hex(8), own, said.to_text()))

    def _exchanged(self, asked: Sequence[Message], watch: Watch | None) -> list[Message]:
        """What comes back; a refusal is raised."""
        seen = watch or (lambda message, up: None)
        for message in asked:
            seen(message, True)
        about = questions_about(self.job).digest
        laws = None if self.supposed is None else self.supposed[:2]
        name = self.box.put([encode(message) for message in asked], about, self.job.id, self.latest, laws)
        found = list(map(decode, self.box.answer(name, self.patience)))
        for message in found:
            seen(message, False)
            if isinstance(message, Refused):
                kind: type[CounterflowError] = getattr(errors, message.error)
                raise kind(message.reason, code=message.code)
        if not found:
            raise ProtocolError(f"unit {self.own.name!r}: the answer to {type(asked[-1]).__name__} is empty")
        return found


class PlantQuestions:
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
        controllers: PlantControllers | None = None,
    ) -> None:  # fmt: skip
        self._box, self._job, self._renewed, self._file = box, job, renewed, policy_file
        self._controllers, self._turn = controllers, threading.RLock()
        self._state: object = None
        self._told = ""
        self._numbers = count(1)
        self._open: dict[int, str] = {}
        self.guard = renewed()

    def exchange(self, arrived: Numbered, patience: float, over: Callable[[], bool] = lambda: False) -> Numbered:
        """Take answers in; return the next question, or nothing after ``patience`` seconds or when it is ``over``."""
        with self._turn:
            for number, group in groupby(arrived, key=lambda entry: entry[0]):
                self._take_in(number, [data for _, data in group])
            self._open.clear()  # what has no answer by now was lost on the way, and is asked again
        deadline = time.monotonic() + patience
        while True:
            with self._turn:
                waiting = self._box.waiting()  # before the policy: what was put since is judged by what it says then
                out = [*self._terms(), *self._next(waiting)]
            if out or over() or time.monotonic() >= deadline:
                return out
            time.sleep(LOOK)

    def react(self, arrived: Numbered) -> Numbered:
        """What this plant's controllers answer to trials, while ``exchange`` may wait for a question."""
        with self._turn:
            self._renew()
            out: Numbered = []
            for number, data in arrived:
                if self._controllers is None:
                    self.guard.refuse("incoming", data, ProtocolError(f"unit {self.guard.unit!r} has no controllers"))
                out.append((number, self._controllers.answer(data, self.guard, self._box.laws)))
            return out

    def _take_in(self, number: int, answer: list[bytes]) -> None:
        name = self._open.pop(number, None)
        try:
            messages = [self.guard.incoming(data) for data in answer]
            if len(messages) == 1 and isinstance(messages[0], Terms):
                self._told = hashlib.sha256(answer[0]).hexdigest()
                return
            if name is not None and any(isinstance(message, Terms) for message in messages):
                raise ProtocolError("terms are no answer to a question")
            kinds = [type(message).__name__ for message in messages]
        except CounterflowError as error:
            if name is not None:
                self._settle(name, ProtocolError(f"the coordinator's answer was not taken: {error}"))
            raise
        if name is not None:  # else it answers a question of a process that has gone; it will be asked again
            self.guard.audit.write("answered", job=self._job.id, unit=self.guard.unit, question=name, kinds=kinds[:20])
            self._box.settle(name, answer)

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
        said = None if self._controllers is None else self._controllers.terms(self.guard.policy)
        text = "" if said is None else said.to_text()
        data = encode(Terms(self.guard.unit, json.dumps(self._asking, sort_keys=True), text))
        if hashlib.sha256(data).hexdigest() == self._told:
            return []
        return [(next(self._numbers), self.guard.leave(self.guard.outgoing(data)))]

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
                    raise errors.PrivacyError(
                        f"unit {self.guard.unit!r} may put no questions by its own policy (answers.allowed)"
                    )
                approved = [self.guard.outgoing(data) for data in messages]
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


def refusal_of(unit: str, error: CounterflowError) -> Refused:
    """An error as a message: its class by name, if it is one that may cross, its code and its text.

    >>> refusal_of("boiler", OptionError("horizon must be ...")).error
    'OptionError'
    """
    from counterflow.protocol.questions import NOTE_LIMIT, REFUSALS

    name = type(error).__name__
    kind = name if name in REFUSALS else "CounterflowError"
    return Refused(unit, kind, error.code, shown(str(error) or name, NOTE_LIMIT))
