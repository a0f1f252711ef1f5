"""The coordinator's part of a job inside FLARE: sends what its session has to say, waits for all answers."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nvflare.apis.client import Client
from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import ReservedHeaderKey, Shareable
from nvflare.apis.signal import Signal

from counterflow.errors import CounterflowError, ProtocolError
from counterflow.federation.coordinator_session import CoordinatorSession
from counterflow.federation.flare import envelope, jobs
from counterflow.federation.flare.site import CoordinatorSite
from counterflow.federation.job import Job

_LOOK = 0.2  # seconds between two looks at whether the job was aborted
_Arrival = tuple[str, str, dict[str, Any]]  # unit, return code, content


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
        self._site = CoordinatorSite.of_kit(Path(fl_ctx.get_engine().get_workspace().get_root_dir()))
        self._say(fl_ctx, "running")
        try:
            session = self._site.session(self._job)
            try:
                self._converse(session, abort_signal, fl_ctx)
            finally:
                session.close()
        except CounterflowError as error:
            self._say(fl_ctx, "failed", f"{type(error).__name__}: {error}")
            self.system_panic(f"{self._job.label}: {error}", fl_ctx)
        else:
            self._say(fl_ctx, "aborted" if abort_signal.triggered else "finished")

    def _converse(self, session: CoordinatorSession, abort_signal: Signal, fl_ctx: FLContext) -> None:
        arrivals: queue.SimpleQueue[_Arrival] = queue.SimpleQueue()
        asked: dict[str, tuple[float, tuple[int, ...]]] = {}  # unit -> when it was asked, and the sequences it was sent
        while True:
            for unit, messages in self._outstanding(session).items():
                if unit not in asked:
                    self._send(unit, messages, arrivals.put, fl_ctx)
                    asked[unit] = (time.monotonic(), tuple(sequence for sequence, _ in messages))
            if not asked:
                break
            unit, code, content = self._next(arrivals, asked, abort_signal)
            if not unit:
                return  # aborted
            if code != ReturnCode.OK:
                raise ProtocolError(
                    f"unit {unit!r} refused ({code}); the reason stands in that plant's audit log and process log"
                )
            self._exchanges += 1
            _, sent = asked.pop(unit)
            for sequence, data in envelope.unpacked(content, unit):
                self._bytes_up += len(data)
                session.receive(unit, sequence, data)
            for sequence in sent:
                session.acknowledge(unit, sequence)
            self._say(fl_ctx, "running")
        if not session.finished:
            raise ProtocolError(f"{self._job.label}: nobody has anything to say, and it is not finished")

    @staticmethod
    def _outstanding(session: CoordinatorSession) -> dict[str, list[tuple[int, bytes]]]:
        found: dict[str, list[tuple[int, bytes]]] = {}
        for message in session.outgoing():
            found.setdefault(message.unit, []).append((message.sequence, message.data))
        return found

    def _send(
        self, unit: str, messages: list[tuple[int, bytes]], arrived: Callable[[_Arrival], None], fl_ctx: FLContext
    ) -> None:
        def received(client_task: ClientTask, fl_ctx: FLContext) -> None:
            result = client_task.result
            content = {key: value for key, value in result.items() if key != ReservedHeaderKey.HEADERS}
            # FLARE knows by the connection who answers, and hands the task of one unit to no other
            arrived((client_task.client.name, result.get_return_code(), content))
            client_task.result = None

        self._bytes_down += sum(len(data) for _, data in messages)
        task = Task(envelope.TASK, Shareable(envelope.packed(messages)), result_received_cb=received)
        self.send(task, fl_ctx, targets=[unit])

    def _next(
        self,
        arrivals: queue.SimpleQueue[_Arrival],
        asked: dict[str, tuple[float, tuple[int, ...]]],
        abort_signal: Signal,
    ) -> _Arrival:
        """The next answer; no unit if the job was aborted. ProtocolError when a deadline has passed."""
        while True:
            if abort_signal.triggered:
                return "", "", {}
            try:
                arrival = arrivals.get(timeout=_LOOK)
            except queue.Empty:
                late = [unit for unit, (since, _) in asked.items() if time.monotonic() - since > self._deadline]
                if late:
                    raise ProtocolError(
                        f"{self._job.label}: no answer in {self._deadline} s from {', '.join(sorted(late))}; nothing "
                        "is computed from a part of the units. See that they run and submit it again: it goes on"
                    ) from None
                continue
            if arrival[0] in asked:
                return arrival

    def _say(self, fl_ctx: FLContext, state: str, reason: str = "") -> None:
        assert self._site is not None
        self._site.write_state(
            self._job.id,
            state=state,
            reason=reason,
            run=str(fl_ctx.get_job_id()),
            exchanges=self._exchanges,
            bytes_up=self._bytes_up,
            bytes_down=self._bytes_down,
        )
