"""The plant's part of a job inside FLARE: messages go to its session or desk; what its guard let out leaves."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.apis.signal import Signal

from counterflow.errors import CounterflowError, ProtocolError, StorageError
from counterflow.federation.desk import PlantDesk
from counterflow.federation.flare import jobs
from counterflow.federation.flare.jobs import CANNOT, HEADERS, REFUSAL, TASK, packed, unpacked
from counterflow.federation.flare.processes import end_with_parent
from counterflow.federation.guard import Guard
from counterflow.federation.job import Job
from counterflow.federation.policy import Policy
from counterflow.federation.refusal import Refusal
from counterflow.federation.sessions import PlantSession
from counterflow.federation.sites.plant_folder import PlantFolder

PATIENCE = 10.0  # seconds that a plant keeps the coordinator waiting for a question
_guards: list[Guard] = []  # a job has a process of its own, and in it one guard


def guarding(guard: Guard) -> None:
    """From now on the filter of this process asks this guard."""
    _guards[:] = [guard]


class PlantExecutor(Executor):
    """Carries envelopes to the plant's session, or to its desk of questions, and back.

    What goes wrong is told to the coordinator as a ``Refusal``, or without a reason: the plant's own words may quote a
    measurement. They stand in its audit log and in the log of its FLARE process. A plant that cannot answer now,
    because its disk is full or another process has its session, says just that.
    """

    def __init__(self, job: str) -> None:
        super().__init__()
        self._opening = threading.Lock()
        self._job = Job.from_text(jobs.decoded(job))  # the only thing here that comes from outside
        self._side: PlantSession | PlantDesk | None = None

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """FLARE calls this with every task, from any thread."""
        folder = Path(fl_ctx.get_engine().get_workspace().get_root_dir()).parent
        try:
            if task_name != TASK:
                raise ProtocolError(f"{self._job.label}: there is no task {task_name[:80]!r}")
            side = self._opened(folder, fl_ctx.get_identity_name())
            arrived = unpacked(shareable, side.guard.unit)
            replies = side.exchange(arrived, PATIENCE, lambda: bool(abort_signal.triggered))
            guarding(side.guard)  # another one, if the policy has changed
            return Shareable(packed(replies))
        except CounterflowError as error:
            self.log_error(fl_ctx, f"refused: {type(error).__name__}: {error}", fire_event=False)
            if isinstance(error, StorageError):
                return make_reply(CANNOT)
            lines = {}
            with contextlib.suppress(CounterflowError):
                lines = dict(Policy.read(folder / "policy.toml").lines)  # as it is now, if it can be read
            refusal = Refusal.of(error, lines)
            return make_reply(ReturnCode.EXECUTION_EXCEPTION, {REFUSAL: refusal.to_text()} if refusal else None)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """FLARE calls this; the end of the run is the end of the session's hold on its files."""
        if event_type == EventType.END_RUN and self._side is not None:
            self._side.close()
            self._side = None

    def _opened(self, folder: Path, name: str) -> PlantSession | PlantDesk:
        with self._opening:
            if self._side is None:
                end_with_parent()
                plant = PlantFolder.open(folder)
                if name != plant.unit:
                    raise ProtocolError(
                        f"unit {plant.unit!r}: the certificate is that of {name!r}; join again with a certificate of "
                        "this unit"
                    )
                self._side = plant.side(self._job)
                guarding(self._side.guard)
            return self._side


class OutgoingFilter(Filter):
    """The last look at what leaves: bytes that this plant's guard has let out, in an envelope, or a ``Refusal``.

    Stands in ``privacy.json`` of the plant, which no job can change, and sees every result of a task. One that has an
    unknown key or header, or other bytes, is replaced by a refusal without a reason, and the refusal is audited.
    """

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """FLARE calls this before a result leaves."""
        try:
            return self._checked(shareable)
        except CounterflowError as error:
            with contextlib.suppress(CounterflowError):  # it is written down, and raised again
                if _guards:
                    _guards[0].refuse("filter", b"", error)
            self.log_error(fl_ctx, f"kept here: {error}", fire_event=False)
            return make_reply(ReturnCode.TASK_RESULT_FILTER_ERROR)

    @staticmethod
    def _checked(shareable: Shareable) -> Shareable:
        """The same, made again of what was looked at; raises if anything in it may not leave."""
        headers = shareable.get(HEADERS) or {}
        code = headers.get(ReservedHeaderKey.RC)
        if set(shareable) == {HEADERS} and code is not None and set(headers) <= {ReservedHeaderKey.RC, REFUSAL}:
            told = {REFUSAL: Refusal.from_text(headers[REFUSAL]).to_text()} if REFUSAL in headers else None
            return make_reply(CANNOT if code == CANNOT else ReturnCode.EXECUTION_EXCEPTION, told)
        if headers:
            raise ProtocolError(f"a result has the headers {str(sorted(map(str, headers)))[:200]}, and may have none")
        messages = unpacked(shareable, _guards[0].unit if _guards else "")
        for sequence, data in messages:
            if not _guards or not _guards[0].has_left(data):
                raise ProtocolError(f"message {sequence} of {len(data)} bytes was not let out by this plant's guard")
        return Shareable(packed(messages))
