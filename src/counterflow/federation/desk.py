"""A plant's desk for questions: a box into which its people put theirs, and its side of the standing job, which takes
them out and answers trials of its controllers.

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
from itertools import count, groupby
from pathlib import Path

from counterflow.control import Law
from counterflow.control.laws import law_from_json, law_json
from counterflow.errors import CounterflowError, OptionError, PrivacyError, ProtocolError, StorageError
from counterflow.exchange.controllers import UnitControllers
from counterflow.federation.audit import SITE
from counterflow.federation.controllers import reaction, terms_of
from counterflow.federation.guard import Answered, Guard
from counterflow.federation.job import Job
from counterflow.federation.refusal import Numbered, refusal_of
from counterflow.protocol import Terms, Trial, encode
from counterflow.sealed_log import Entry, Row, SealedLogs

LOG = "questions"
LARGEST = 256 << 20  # bytes of a question, or of an answer
MOST = 1000  # questions that wait
LIFETIME = 600.0  # seconds after which nobody waits for an answer any more
LOOK = 0.02  # seconds between two looks into the box


class QuestionBox:
    """Questions that wait, and answers that were not taken yet.

    Parameters
    ----------
    store : of the site, or the path of its file.

    Examples
    --------
    >>> from counterflow.sealed_log import SealedLogs
    >>> box = QuestionBox(SealedLogs(None, SITE))
    >>> question = box.put([b"what if"])
    >>> [(name == question, asked.pieces) for name, asked in box.waiting().items()]
    [(True, (b'what if',))]
    >>> box.settle(question, [b"this"])
    >>> box.answer(question, patience=0), box.waiting()
    ([b'this'], {})
    """

    def __init__(self, store: SealedLogs | Path) -> None:
        self._store = SealedLogs(store, SITE) if isinstance(store, Path) else store
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

    def waiting(self) -> dict[str, Row]:
        """Questions without an answer by their names, the oldest first."""
        rows = [row for row in self._rows() if _is_fresh(row)]
        answered = {row.table["name"] for row in rows if row.kind == "answer"}
        asked = {str(row.table["name"]): row for row in rows if row.kind == "question"}
        return {name: row for name, row in asked.items() if name not in answered}

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
            except CounterflowError as error:  # a policy that cannot be read allows nothing
                self.guard = self.guard.closed()
                self.guard.audit.write("refused", job=self._job.id, unit=self.guard.unit, reason=f"{error}"[:2000])
            self._asking = self.guard.policy.asking()

    def _terms(self) -> Numbered:
        """Who may ask about this plant's inputs, until the coordinator has said it back."""
        self._renew()
        said = None if self._controllers is None else terms_of(self._controllers, self.guard.policy)
        told = self._asking | {"controllers": None if said is None else said.to_json()}
        data = encode(Terms(self.guard.unit, json.dumps(told, sort_keys=True)))
        if hashlib.sha256(data).hexdigest() == self._told:
            return []
        return [(next(self._numbers), self.guard.send(data))]

    def _next(self, waiting: Mapping[str, Row]) -> Numbered:
        for name, asked in waiting.items():
            try:
                if asked.table.get("about") != self._job.digest:
                    if asked.table.get("latest") is True:
                        continue  # the coordinator will come to it
                    raise OptionError(
                        f"the coordinator answers questions about job {self._job.options['of']!r} now, not about "
                        f"{str(asked.table.get('fit'))!r}: leave --fit out, or ask for that job to be run again"
                    )
                if not self._asking["answers"]:
                    raise PrivacyError(
                        f"unit {self.guard.unit!r} may put no questions by its own policy (answers.allowed)"
                    )
                approved = [self.guard.outgoing(data) for data in asked.pieces]  # all of it, before any of it leaves
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
