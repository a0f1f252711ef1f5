"""Questions at the coordinator: what comes from the plants in a standing job, and what they are told."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, cast

import numpy as np

from counterflow.errors import CounterflowError, DataError, OptionError, ProtocolError, StorageError
from counterflow.federation.audit import Audit
from counterflow.federation.controllers import MOST_STEPS, Carry, ControllerTerms, Rounds
from counterflow.federation.desk import LARGEST
from counterflow.federation.job import Job
from counterflow.federation.messages import spoken
from counterflow.federation.policy import Policy
from counterflow.federation.question_gate import PER_MINUTE, QuestionGate, QuestionRate
from counterflow.federation.refusal import Numbered, refusal_of
from counterflow.files import make_folder
from counterflow.plant.units import MANIPULATED
from counterflow.protocol import Ask, Change, Message, Openings, Terms, encode
from counterflow.protocol.questions import HELD, OPENINGS_LIMIT
from counterflow.questions.answering import Server
from counterflow.questions.registry import question
from counterflow.records import strict_json
from counterflow.sealed_file import read_json, write_json
from counterflow.threads import one_blas_thread

_log = logging.getLogger(__name__)
FOLDER = "terms"
_TERMS = "terms of a plant"
_NONE = ControllerTerms(())
GRACE = 20.0  # seconds that a plant may take to start


class QuestionService:
    """Answers the questions of all units of one job, as their policies allow.

    Parameters
    ----------
    home : the coordinator's folder; who may ask whom is kept in it, as each plant has last said.
    job : the standing job.
    server : the server's part of the fit that is asked about.
    audit : where questions and refusals are written down.
    grace : seconds from now on in which a question waits for plants that have never said who may ask about them: they
        may be slower to start than whoever asks.
    per_minute : questions that one member may put in a minute.
    carry : takes a trial to a plant, whose controllers are asked what they would do; None: they cannot be asked.
    """

    def __init__(
        self, home: Path, job: Job, server: Server, audit: Audit | None, grace: float = 0.0,
        per_minute: int = PER_MINUTE, carry: Carry | None = None,
    ) -> None:  # fmt: skip
        self._folder, self._job, self._server, self._audit = home / FOLDER, job, server, audit
        self._told, self._rate, self._carry = threading.Condition(), QuestionRate(per_minute), carry
        self._patient_until = time.monotonic() + grace
        self._policies: dict[str, Policy] = {}
        self._controllers: dict[str, ControllerTerms] = {}
        self._kept: dict[str, bool] = {}
        for unit in job.units:
            self._recall(unit)
        inputs = {unit: job.input_names(unit) for unit in job.units}
        self._gate = QuestionGate(self._policies, inputs, audit)

    def receive(self, unit: str, messages: Numbered) -> Numbered:
        """What the unit that has authenticated itself as ``unit`` is told in return, question by question."""
        out: Numbered = []
        with self._told:
            for number, group in groupby(messages, key=lambda entry: entry[0]):
                out += [(number, encode(reply)) for reply in self._answered(unit, [data for _, data in group])]
        return out

    def _answered(self, unit: str, asked: list[bytes]) -> list[Message]:
        try:
            self._rate.count(unit)
            match [spoken(unit, data, self._job, LARGEST) for data in asked]:
                case [Terms() as terms]:
                    self._agree(unit, terms)
                    return [terms]  # said back: now the plant knows that it was heard
                case [Openings()]:
                    self._wait_for(set(self._job.units))
                    return [self._openings(unit)]
                case [*changes, Ask() as ask] if all(isinstance(each, Change) for each in changes):
                    return self._answers(unit, cast(list[Change], changes), ask)
            raise ProtocolError(f"server: unit {unit!r}: a question is any number of Change, and one Ask at its end")
        except StorageError:  # its text names files of this machine; it stands in the process log
            _log.exception("a question of unit %r was not answered", unit)
            return [refusal_of(unit, CounterflowError("the coordinator cannot answer now: its owner's logs say why"))]
        except CounterflowError as error:
            return [refusal_of(unit, error)]
        except (np.linalg.LinAlgError, MemoryError) as error:
            text = f"the numbers of this question are beyond the server ({type(error).__name__}): ask for less"
            return [refusal_of(unit, DataError(text))]

    def _answers(self, unit: str, changes: Sequence[Change], ask: Ask) -> list[Message]:
        everybody, kind = set(self._job.units), question(ask.kind)
        of_all = kind.of_shares or (kind.of_worlds and ask.controllers != HELD)
        self._wait_for(everybody if of_all else everybody & {change.cause for change in changes})
        server = self._running(ask) if kind.of_worlds or kind.held_only else self._server
        with one_blas_thread(), np.errstate(all="ignore"):
            return list(self._gate.answer(server, unit, changes, ask))

    def _running(self, ask: Ask) -> Server:
        """The server, with the controllers of all plants that have some, the asker's own perhaps with other laws.

        Of a plant that has not said anything yet, what controllers move is known where its inputs say so.
        """
        known = dict(self._controllers)
        for unit in set(self._job.units) - set(self._policies):
            moved = [k for k, channel in enumerate(self._job.inputs[unit]) if channel.role == MANIPULATED]
            if moved:
                known[unit] = ControllerTerms(tuple(moved))
        if not known or self._server.shared is None:
            return self._server
        if question(ask.kind).of_worlds and ask.controllers != HELD and ask.steps > MOST_STEPS:
            raise OptionError(
                f"with controllers reacting, {MOST_STEPS} steps can be asked about between machines, not {ask.steps}: "
                'ask for fewer, or with controllers="held"',
                code="too-many-rounds",
            )
        kept, supposed = self._kept, {}
        if ask.supposed and known.get(ask.unit, _NONE).reacts:
            known[ask.unit] = ControllerTerms.from_json(_json(ask.unit, ask.terms), len(self._job.inputs[ask.unit]))
            kept, supposed = {}, {ask.unit: ask.supposed}
        silent = [unit for unit, terms in known.items() if not terms.reacts or self._carry is None]
        reactors = {unit: known[unit] for unit in self._job.units if unit in known}
        rounds = None if self._carry is None else Rounds(self._carry, self._job, self._waiting, supposed=supposed)
        return self._server.running(reactors, kept, rounds, sorted(silent), supposed=bool(supposed))

    @contextmanager
    def _waiting(self) -> Iterator[None]:
        """While plants are asked, others are heard."""
        self._told.release()
        try:
            yield
        finally:
            self._told.acquire()

    def _openings(self, unit: str) -> Openings:
        """What the unit may ask about: of every other unit, the channels that its policy opens to it."""
        inputs, found = self._job.inputs, self._gate.openings(unit)
        told = {
            name: [channel.to_json() for channel in inputs[name] if channel.name in names]
            for name, names in found.items()
        }
        text = json.dumps(told, ensure_ascii=False, separators=(",", ":"))
        if len(text) > OPENINGS_LIMIT:
            raise DataError(f"more inputs are open to unit {unit!r} than a message holds: ask for fewer")
        return Openings(unit, text)

    def _wait_for(self, needed: set[str]) -> None:
        """For who may ask about these units. While this waits, others are heard."""
        left = self._patient_until - time.monotonic()
        if left > 0:
            self._told.wait_for(lambda: needed <= set(self._policies), left)

    # ---- who may ask whom

    def _agree(self, unit: str, terms: Terms) -> None:
        found = _json(unit, terms.text)
        self._take_down(unit, found)
        make_folder(self._folder)
        write_json(self._folder / f"{unit}.json", _TERMS, found)
        if self._audit is not None:
            self._audit.write("terms", unit=unit, ask=found["ask"], asks=found["answers"])
        self._told.notify_all()

    def _take_down(self, unit: str, found: Any) -> None:
        """What a plant says, or has said before, of who may ask about it and of its controllers."""
        told = dict(found) if isinstance(found, dict) else {}
        said, policy = told.pop("controllers", None), Policy.from_asking(told)
        if policy.unit != unit:
            raise ProtocolError(f"server: unit {unit!r} sends the terms of {policy.unit!r:.100}")
        known = {} if said is None else {unit: ControllerTerms.from_json(said, len(self._job.inputs[unit]))}
        if known.get(unit) != self._controllers.get(unit):
            self._kept.clear()
        self._policies[unit] = policy
        self._controllers = {name: terms for name, terms in self._controllers.items() if name != unit} | known

    def _recall(self, unit: str) -> None:
        """What a plant has said before."""
        path = self._folder / f"{unit}.json"
        if not path.exists():
            return
        try:
            self._take_down(unit, read_json(path, _TERMS))
        except CounterflowError as error:
            raise StorageError(
                f"federation: {path} cannot be read ({error}); remove it, the plant says it again", code=error.code
            ) from error


def _json(unit: str, text: str) -> Any:
    try:
        return strict_json(text)
    except ValueError:
        raise ProtocolError(f"server: the terms of unit {unit!r} are not JSON") from None
