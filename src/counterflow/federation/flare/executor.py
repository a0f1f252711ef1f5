"""The plant's part of a job inside FLARE: takes messages in, gives the replies that its session gives."""

from __future__ import annotations

from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply
from nvflare.apis.signal import Signal

from counterflow.errors import CounterflowError, ProtocolError
from counterflow.federation.flare import envelope, jobs
from counterflow.federation.flare.filter import guarding
from counterflow.federation.flare.site import PlantSite
from counterflow.federation.job import Job
from counterflow.federation.plant_session import PlantSession


class PlantExecutor(Executor):
    """Carries envelopes to the plant's session and back.

    What goes wrong is told to the coordinator as a refusal without a reason: a reason may quote a measurement. It
    stands in the plant's audit log and in the log of its FLARE process.

    Parameters
    ----------
    job : ``jobs.encoded`` text of the job; the only thing here that comes from outside.
    """

    def __init__(self, job: str) -> None:
        super().__init__()
        self._job = Job.from_text(jobs.decoded(job))
        self._session: PlantSession | None = None

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """FLARE calls this with every task."""
        try:
            if task_name != envelope.TASK:
                raise ProtocolError(f"{self._job.label}: there is no task {task_name[:80]!r}")
            content = {key: value for key, value in shareable.items() if key != ReservedHeaderKey.HEADERS}
            session = self._opened(fl_ctx)
            replies: list[tuple[int, bytes]] = []
            for sequence, data in envelope.unpacked(content, session.unit):
                replies += [(reply.sequence, reply.data) for reply in session.receive(sequence, data)]
            return Shareable(envelope.packed(replies))
        except CounterflowError as error:
            self.log_error(fl_ctx, f"refused: {type(error).__name__}: {error}", fire_event=False)
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """FLARE calls this; the end of the run is the end of the session's hold on its files."""
        if event_type == EventType.END_RUN and self._session is not None:
            self._session.close()
            self._session = None

    def _opened(self, fl_ctx: FLContext) -> PlantSession:
        if self._session is None:
            site = PlantSite.of_kit(Path(fl_ctx.get_engine().get_workspace().get_root_dir()))
            if fl_ctx.get_identity_name() != site.unit:
                raise ProtocolError(
                    f"unit {site.unit!r}: the certificate is that of {fl_ctx.get_identity_name()!r}; "
                    "join again with a certificate of this unit"
                )
            own = site.own()
            guard = site.guard(self._job, site.audit(), own)
            self._session = site.session(self._job, guard, own)
            guarding(guard)
        return self._session
