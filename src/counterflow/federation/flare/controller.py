"""The coordinator's part of a job inside FLARE: sends what its session has to say, waits for all answers.

A task is pushed to its plant and the answer comes back as the reply, in one exchange (FLARE's topic DO_TASK). Plants
treat it as any task: allow-lists, executor and the plant's own filter are the same. Had plants to fetch their tasks,
that would be three exchanges and all the questions for work in between.
"""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from nvflare.apis.client import Client
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from counterflow.errors import CounterflowError, ProtocolError
from counterflow.federation.coordinator_session import CoordinatorSession
from counterflow.federation.flare import envelope, jobs, kit
from counterflow.federation.flare.filter import CANNOT
from counterflow.federation.flare.processes import end_with_parent
from counterflow.federation.flare.push import REFUSAL, push
from counterflow.federation.flare.serving import carry, serve
from counterflow.federation.job import QUESTIONS, Job
from counterflow.federation.parts import save_server
from counterflow.federation.refusal import Refusal
from counterflow.federation.sites.site import CoordinatorSite

_REFUSALS = frozenset({ReturnCode.EXECUTION_EXCEPTION, ReturnCode.TASK_RESULT_FILTER_ERROR})  # others are FLARE's own
_LOOK = 0.2  # seconds between two looks at whether the job was aborted
_PAUSE = 0.5  # seconds before a plant that was not reached is tried again
_OTHERS = 2.0  # seconds in which others may refuse, too
_START = 30.0  # seconds that a plant may take for its first answer of a run, at least
_PATIENCE = 20.0  # seconds for the first try, twice that for the next; a plant that is asked again answers the same


class _Arrival(NamedTuple):
    """An answer of a plant; no code if it was not reached before the deadline, or the job was aborted."""

    unit: str
    code: str
    content: dict[str, Any]


_Arrivals = queue.SimpleQueue[_Arrival]


class CoordinatorController(Controller):
    """Runs one job to its end.

    The session decides everything: what is outstanding, what an answer means, when it is over. A plant that does not
    answer in time, or refuses, ends the run; the session stays as it is on the disk, and the same job submitted again
    goes on from there.

    Parameters
    ----------
    job : ``jobs.encoded`` text of the job.
    deadline : seconds that a plant may take for one answer.
    """

    def __init__(self, job: str, deadline: int) -> None:
        super().__init__()
        self._job = Job.from_text(jobs.decoded(job))
        self._deadline = deadline
        self._site: CoordinatorSite | None = None
        self._exchanges = self._bytes_up = self._bytes_down = 0
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
        self._site = kit.coordinator_site(Path(fl_ctx.get_engine().get_workspace().get_root_dir()))
        self._say(fl_ctx, "running")
        end_with_parent()
        try:
            if self._job.method == QUESTIONS:
                self._serve(abort_signal, fl_ctx)
            else:
                self._run(abort_signal, fl_ctx)
        except CounterflowError as error:
            self._say(fl_ctx, "failed", f"{type(error).__name__}: {error}", code=error.code)
            self.system_panic(f"{self._job.label}: {error}", fl_ctx)
        else:
            self._say(fl_ctx, "aborted" if abort_signal.triggered else "finished")

    def _serve(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        assert self._site is not None
        with self._site.audit() as audit:
            service = self._site.service(self._job, audit, carry(fl_ctx.get_engine()))
            over, tell = lambda: bool(abort_signal.triggered), lambda news: self._say(fl_ctx, "running", **news)
            serve(service, self._job.units, fl_ctx.get_engine(), over, tell)

    def _run(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        assert self._site is not None
        with self._site.session(self._job) as session:
            self._converse(session, abort_signal, fl_ctx)
            if session.finished:  # what was found is kept before anybody hears of it
                save_server(self._site.home, session.result())

    def _converse(self, session: CoordinatorSession, abort_signal: Signal, fl_ctx: FLContext) -> None:
        arrivals: _Arrivals = queue.SimpleQueue()
        asked: dict[str, tuple[int, ...]] = {}  # unit -> the sequences it was sent
        pool = ThreadPoolExecutor(len(self._job.units), "exchange")
        try:
            while True:
                for unit, messages in self._outstanding(session).items():
                    if unit not in asked:
                        asked[unit] = tuple(sequence for sequence, _ in messages)
                        self._bytes_down += sum(len(data) for _, data in messages)
                        pool.submit(self._ask, unit, messages, arrivals, abort_signal, fl_ctx.get_engine())
                if not asked:
                    break
                arrival = self._next(arrivals, abort_signal, len(asked) - 1)
                if arrival is None:
                    return  # aborted
                self._exchanges += 1
                self._heard.add(arrival.unit)
                sent = asked.pop(arrival.unit)
                for sequence, data in envelope.unpacked(arrival.content, arrival.unit):
                    self._bytes_up += len(data)
                    session.receive(arrival.unit, sequence, data)
                for sequence in sent:
                    session.acknowledge(arrival.unit, sequence)
                self._say(fl_ctx, "running", taken=session.taken)
        finally:
            self._over.set()
            pool.shutdown(wait=False, cancel_futures=True)
        if not session.finished:
            raise ProtocolError(f"{self._job.label}: nobody has anything to say, and it is not finished")

    @staticmethod
    def _outstanding(session: CoordinatorSession) -> dict[str, list[tuple[int, bytes]]]:
        found: dict[str, list[tuple[int, bytes]]] = {}
        for message in session.outgoing():
            found.setdefault(message.unit, []).append((message.sequence, message.data))
        return found

    def _ask(
        self, unit: str, messages: list[tuple[int, bytes]], arrivals: _Arrivals, abort_signal: Signal, engine: Any
    ) -> None:
        """Put a plant's answer into ``arrivals``; until the deadline it is tried again if the plant is not reached."""
        # at first a plant has its process to start
        given = self._deadline if unit in self._heard else max(self._deadline, _START)
        deadline, patience = time.monotonic() + given, _PATIENCE
        code, content = "", dict[str, Any]()
        try:
            while True:
                left = deadline - time.monotonic()
                if left <= 0 or abort_signal.triggered or self._over.is_set():
                    break
                code, content = push(engine, unit, messages, min(left, patience))
                if code:
                    break
                if deadline - time.monotonic() <= left - patience:
                    patience *= 2  # it may have much to compute
                self._over.wait(min(_PAUSE, max(left, 0.0)))
        finally:  # whatever happens, somebody waits for this
            arrivals.put(_Arrival(unit, code, content))

    def _next(self, arrivals: _Arrivals, abort_signal: Signal, others: int) -> _Arrival | None:
        """The next answer; None if the job was aborted. ProtocolError if it is a refusal, or came to nothing.

        ``others``: how many more are awaited.
        """
        while not abort_signal.triggered:
            try:
                arrival = arrivals.get(timeout=_LOOK)
            except queue.Empty:
                continue
            if arrival.code == ReturnCode.OK:
                return arrival
            if abort_signal.triggered:
                break
            if arrival.code == CANNOT:
                raise ProtocolError(
                    f"unit {arrival.unit!r} could not answer: its disk is full, or another process has its session; "
                    "the reason stands in that plant's process log",
                    code="unavailable",
                )
            if arrival.code in _REFUSALS:
                refused = [arrival, *self._also_refused(arrivals, others)]
                raise ProtocolError("; ".join(map(self._reason, refused)), code="refused")
            if arrival.code:
                raise ProtocolError(f"unit {arrival.unit!r} gave no answer ({arrival.code})", code="lost")
            raise ProtocolError(
                f"{self._job.label}: no answer in {self._deadline} s from {arrival.unit}; nothing is computed from a "
                "part of the units. See that it runs and submit the job again: it goes on",
                code="no-answer",
            )
        return None

    @staticmethod
    def _also_refused(arrivals: _Arrivals, others: int) -> list[_Arrival]:
        """Whoever else refuses at the same time: all that has to change is said at once."""
        found: list[_Arrival] = []
        deadline = time.monotonic() + _OTHERS
        while len(found) < others and (left := deadline - time.monotonic()) > 0:
            try:
                found.append(arrivals.get(timeout=left))
            except queue.Empty:
                break
        return [arrival for arrival in found if arrival.code in _REFUSALS]

    def _reason(self, arrival: _Arrival) -> str:
        try:
            return Refusal.from_text(arrival.content[REFUSAL]).sentence(arrival.unit, self._job)
        except (KeyError, ProtocolError):
            return f"unit {arrival.unit!r} refused; the reason stands in that plant's audit log and process log"

    def _say(self, fl_ctx: FLContext, state: str, reason: str = "", **more: Any) -> None:
        assert self._site is not None
        counts = {"exchanges": self._exchanges, "bytes_up": self._bytes_up, "bytes_down": self._bytes_down}
        run = str(fl_ctx.get_job_id())
        self._site.write_state(self._job.id, state=state, reason=reason, run=run, **{**counts, **more})
