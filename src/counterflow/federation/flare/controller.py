"""The coordinator's part of a job inside FLARE: sends what its session has to say, waits for all answers.

A task is pushed to its plant and the answer comes back as the reply, in one exchange (FLARE's topic DO_TASK). Plants
treat it as any task: allow-lists, executor and the plant's own filter are the same. Had plants to fetch their tasks,
that would be three exchanges and all the questions for work in between.

A standing job asks every plant for its questions, all the time. A plant holds the request until it has one, so that
neither of them polls.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import groupby
from pathlib import Path
from typing import Any, NoReturn

from nvflare.apis.client import Client
from nvflare.apis.fl_constant import ReservedTopic, ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.apis.signal import Signal

from counterflow.errors import CounterflowError, ProtocolError
from counterflow.federation.controllers import Carry, Unanswered
from counterflow.federation.engine import Progress
from counterflow.federation.flare import jobs
from counterflow.federation.flare.jobs import CANNOT, REFUSAL, TASK, packed, unpacked
from counterflow.federation.flare.processes import end_with_parent
from counterflow.federation.job import QUESTIONS, Job
from counterflow.federation.parts import save_server
from counterflow.federation.question_service import QuestionService
from counterflow.federation.refusal import Numbered, Refusal
from counterflow.federation.sessions import CoordinatorSession
from counterflow.federation.sites import party
from counterflow.federation.sites.coordinator_folder import CoordinatorFolder

_UNREACHED = frozenset(  # a refusal has another code: that of the executor, or of the plant's filter
    {
        *(ReturnCode.COMMUNICATION_ERROR, ReturnCode.SERVICE_UNAVAILABLE, ReturnCode.SERVER_NOT_READY),
        *(ReturnCode.TIMEOUT, ReturnCode.TOPIC_UNKNOWN, ReturnCode.ERROR),
    }
)
_REFUSALS = frozenset({ReturnCode.EXECUTION_EXCEPTION, ReturnCode.TASK_RESULT_FILTER_ERROR})  # others are FLARE's own
_LOOK = 0.2  # seconds between two looks at whether the job was aborted
_PAUSE = 0.5  # seconds before a plant that was not reached is tried again
_OTHERS = 2.0  # seconds in which others may refuse, too
_START = 30.0  # seconds that a plant may take for its first answer of a run, at least
_PATIENCE = 20.0  # seconds for the first try, twice that for the next; a plant that is asked again answers the same
_HELD = 30.0  # seconds for one question; a plant that has nothing to ask answers after a third of that
_UNSERVED = 1.0  # seconds before a plant that was not reached, or refused, is asked for questions again
_TELL = 2.0  # seconds between two words on how questions stand


class NoAnswer(Unanswered):
    """A plant was not reached, or has said no: ``said`` is FLARE's code of its reply, "" if there was none."""

    def __init__(self, unit: str, said: str, refusal: Refusal | None = None) -> None:
        super().__init__(refusal, reached=said not in ("", CANNOT))
        self.unit, self.said = unit, said

    def reason(self, job: Job, deadline: int) -> tuple[str, str]:
        """For the coordinator: what has happened, and a code."""
        if self.refusal is not None:
            return self.refusal.sentence(self.unit, job), "refused"
        unit = f"unit {self.unit!r}"
        if self.said in _REFUSALS:
            return f"{unit} refused; the reason stands in that plant's audit log and process log", "refused"
        if self.said == CANNOT:
            told = "its disk is full, or another process has its session; the reason stands in that plant's process log"
            return f"{unit} could not answer: {told}", "unavailable"
        if self.said:
            return f"{unit} gave no answer ({self.said})", "lost"
        told = "nothing is computed from a part of the units. See that it runs and submit the job again: it goes on"
        return f"{job.label}: no answer in {deadline} s from {self.unit}; {told}", "no-answer"


def push(engine: Any, unit: str, messages: Numbered, patience: float) -> Numbered:
    """A plant's replies to messages; ``NoAnswer`` if there are none."""
    with engine.new_context() as fl_ctx:
        request = Shareable(packed(messages))
        request.set_header(ReservedHeaderKey.TASK_NAME, TASK)
        request.set_header(ReservedHeaderKey.TASK_ID, str(uuid.uuid4()))
        # FLARE hands on the reply to this very request only, and only the plant has seen its number
        replies = engine.send_aux_request([unit], ReservedTopic.DO_TASK, request, patience, fl_ctx, optional=True)
    reply = (replies or {}).get(unit)
    if not isinstance(reply, Shareable) or reply.get_return_code() in _UNREACHED:
        raise NoAnswer(unit, "")
    code, told = str(reply.get_return_code()), reply.get_header(REFUSAL)
    if code == ReturnCode.OK:
        return unpacked(reply, unit)
    try:
        refusal = None if told is None else Refusal.from_text(told)
    except ProtocolError:
        refusal = None  # what is no reason of the closed list is not repeated
    raise NoAnswer(unit, code, refusal)


def carry(engine: Any) -> Carry:
    """Takes trials to plants, beside the exchanges in which these put their questions."""

    def asked(unit: str, data: bytes, patience: float) -> bytes:
        replies = push(engine, unit, [(0, data)], patience)
        if len(replies) != 1:
            raise ProtocolError(f"server: unit {unit!r} gives {len(replies)} answers to one trial")
        return replies[0][1]

    return asked


class CoordinatorController(Controller):
    """Runs one job to its end.

    The session decides everything: what is outstanding, what an answer means, when it is over. A plant that does not
    answer within ``deadline`` seconds, or refuses, ends the run; the session stays as it is on the disk, and the same
    job submitted again goes on from there.
    """

    def __init__(self, job: str, deadline: int) -> None:
        super().__init__()
        self._job = Job.from_text(jobs.decoded(job))
        self._deadline = deadline
        self._counts = {"exchanges": 0, "bytes_up": 0, "bytes_down": 0}
        self._over = threading.Event()
        self._heard: set[str] = set()

    def start_controller(self, fl_ctx: FLContext) -> None:
        """FLARE calls this first; there is nothing to prepare."""

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """FLARE calls this last; there is nothing to give back."""

    def process_result_of_unknown_task(
        self, client: Client, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """An answer that nobody waits for any more is dropped: the session would not take it twice either."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        """FLARE calls this; the job is over when it returns."""
        engine = fl_ctx.get_engine()
        coordinator = CoordinatorFolder.open(Path(engine.get_workspace().get_root_dir()).parent)

        def say(state: str, reason: str = "", **more: Any) -> None:
            told = {"state": state, "reason": reason, "run": str(fl_ctx.get_job_id()), **self._counts, **more}
            party.write_state(coordinator.folder, self._job.id, **told)

        say("running")
        end_with_parent()
        try:
            if self._job.method == QUESTIONS:
                with coordinator.audit() as audit:
                    service = coordinator.service(self._job, audit, carry(engine))
                    over, tell = lambda: bool(abort_signal.triggered), lambda news: say("running", **news)
                    serve(service, self._job.units, engine, over, tell)
            else:
                with coordinator.session(self._job) as session:
                    self._converse(session, engine, abort_signal, lambda taken: say("running", taken=taken))
                    if session.finished:  # what was found is kept before anybody hears of it
                        save_server(coordinator.folder, session.result())
        except CounterflowError as error:
            say("failed", f"{type(error).__name__}: {error}", code=error.code)
            self.system_panic(f"{self._job.label}: {error}", fl_ctx)
        else:
            say("aborted" if abort_signal.triggered else "finished")

    def _converse(
        self, session: CoordinatorSession, engine: Any, abort_signal: Signal, tell: Callable[[int], None]
    ) -> None:
        asked: dict[str, tuple[Future[Numbered], list[int]]] = {}  # by unit; the sequences that it was sent
        pool = ThreadPoolExecutor(len(self._job.units), "exchange")
        try:
            while True:
                for unit, entries in groupby(session.outgoing(), key=lambda message: message.unit):
                    if unit not in asked:
                        messages = [(message.sequence, message.data) for message in entries]
                        self._counts["bytes_down"] += sum(len(data) for _, data in messages)
                        future = pool.submit(self._ask, engine, unit, messages)
                        asked[unit] = future, [sequence for sequence, _ in messages]
                if not asked:
                    break
                futures = [future for future, _ in asked.values()]
                wait(futures, _LOOK, FIRST_COMPLETED)
                if abort_signal.triggered:
                    return
                for unit in [unit for unit, (future, _) in asked.items() if future.done()]:
                    try:
                        replies = asked[unit][0].result()
                    except NoAnswer as silent:
                        self._end(silent, futures)
                    self._counts["exchanges"] += 1
                    self._heard.add(unit)
                    for sequence, data in replies:
                        self._counts["bytes_up"] += len(data)
                        session.receive(unit, sequence, data)
                    for sequence in asked.pop(unit)[1]:
                        session.acknowledge(unit, sequence)
                    tell(session.taken)
        finally:
            self._over.set()
            pool.shutdown(wait=False, cancel_futures=True)
        if not session.finished:
            raise ProtocolError(f"{self._job.label}: nobody has anything to say, and it is not finished")

    def _ask(self, engine: Any, unit: str, messages: Numbered) -> Numbered:
        """A plant's replies; until the deadline it is tried again if it is not reached."""
        # at first a plant has its process to start
        given = self._deadline if unit in self._heard else max(self._deadline, _START)
        deadline, patience = time.monotonic() + given, _PATIENCE
        while (left := deadline - time.monotonic()) > 0 and not self._over.is_set():
            try:
                return push(engine, unit, messages, min(left, patience))
            except NoAnswer as silent:
                if silent.said:
                    raise
            if deadline - time.monotonic() <= left - patience:
                patience *= 2  # it may have much to compute
            self._over.wait(_PAUSE)
        raise NoAnswer(unit, "")

    def _end(self, silent: NoAnswer, others: Collection[Future[Numbered]]) -> NoReturn:
        """What the coordinator is told of a plant that gives no answer; of refusals, all that come at the same time."""
        text, code = silent.reason(self._job, self._deadline)
        if code == "refused":
            done, _ = wait(others, _OTHERS)
            found = [error for error in (future.exception() for future in done) if isinstance(error, NoAnswer)]
            told = [error.reason(self._job, self._deadline) for error in found]
            text = "; ".join(text for text, what in told if what == code)
        raise ProtocolError(text, code=code)


def serve(
    service: QuestionService, units: tuple[str, ...], engine: Any, over: Callable[[], bool], tell: Progress
) -> None:
    """Answer questions until it is ``over``; ``tell`` is called with who is served, who is not and why."""
    served: dict[str, str] = dict.fromkeys(units, "not reached yet")  # "" if it is
    counts = {"exchanges": 0, "bytes_up": 0, "bytes_down": 0}  # exchanges in which something was said
    counting = threading.Lock()
    ended = threading.Event()

    def attend(unit: str) -> None:
        answers: Numbered = []
        while not ended.is_set():
            try:
                asked, told = push(engine, unit, answers, _HELD), answers
                answers = service.receive(unit, asked)
                served[unit] = ""
                with counting:
                    counts["exchanges"] += bool(asked)
                    counts["bytes_up"] += sum(len(data) for _, data in asked)
                    counts["bytes_down"] += sum(len(data) for _, data in told)
                continue
            except NoAnswer as silent:
                served[unit] = f"it refuses ({silent.said}); see its logs" if silent.said else "not reached"
            except Exception as error:  # whatever it is, the others are served, and this unit is tried again
                served[unit] = f"{type(error).__name__}: {error}"[:300]
            answers = []  # whoever asks there asks again
            ended.wait(_UNSERVED)

    pool = ThreadPoolExecutor(len(units), "questions")
    try:
        for unit in units:
            pool.submit(attend, unit)
        told: dict[str, Any] = {}
        since = 0.0
        while not over():
            missing = {unit: why for unit, why in served.items() if why}
            now = {"serving": [unit for unit in units if unit not in missing], "missing": missing, **counts}
            if now != told and time.monotonic() - since > _TELL:
                tell(now)
                told, since = now, time.monotonic()
            ended.wait(0.2)
    finally:
        ended.set()
        pool.shutdown(wait=False, cancel_futures=True)
