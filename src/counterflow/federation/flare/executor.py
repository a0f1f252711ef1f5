"""The plant's part of a job inside FLARE: takes messages in, gives the replies that its session gives."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from pathlib import Path

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal

from counterflow.errors import CounterflowError, ProtocolError, StorageError
from counterflow.federation.desk import PlantDesk
from counterflow.federation.flare import envelope, jobs, kit
from counterflow.federation.flare.filter import CANNOT, guarding
from counterflow.federation.flare.processes import end_with_parent
from counterflow.federation.flare.push import REFUSAL, content_of
from counterflow.federation.job import Job
from counterflow.federation.plant_session import PlantSession
from counterflow.federation.refusal import Refusal
from counterflow.federation.sites.site import PlantSite

PATIENCE = 10.0  # seconds that a plant keeps the coordinator waiting for a question


class PlantExecutor(Executor):
    """Carries envelopes to the plant's session, or to its desk of questions, and back.

    What goes wrong is told to the coordinator as a ``Refusal``, or without a reason: the plant's own words may quote a
    measurement. They stand in its audit log and in the log of its FLARE process. A plant that cannot answer now,
    because its disk is full or another process has its session, says just that.

    Parameters
    ----------
    job : ``jobs.encoded`` text of the job; the only thing here that comes from outside.
    """

    def __init__(self, job: str) -> None:
        super().__init__()
        self._opening = threading.Lock()
        self._job = Job.from_text(jobs.decoded(job))
        self._party: PlantSession | PlantDesk | None = None

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """FLARE calls this with every task, from any thread."""
        try:
            party = self._opened(task_name, fl_ctx)
            arrived = envelope.unpacked(content_of(shareable), party.guard.unit)
            replies = party.exchange(arrived, PATIENCE, lambda: bool(abort_signal.triggered))
            guarding(party.guard)
            return Shareable(envelope.packed(replies))
        except CounterflowError as error:
            self.log_error(fl_ctx, f"refused: {type(error).__name__}: {error}", fire_event=False)
            if isinstance(error, StorageError):
                return make_reply(CANNOT)
            refusal = Refusal.of(error, self._policy_lines(fl_ctx))
            return make_reply(ReturnCode.EXECUTION_EXCEPTION, {REFUSAL: refusal.to_text()} if refusal else None)

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """FLARE calls this; the end of the run is the end of the session's hold on its files."""
        if event_type == EventType.END_RUN and self._party is not None:
            self._party.close()
            self._party = None

    def _opened(self, task_name: str, fl_ctx: FLContext) -> PlantSession | PlantDesk:
        if task_name != envelope.TASK:
            raise ProtocolError(f"{self._job.label}: there is no task {task_name[:80]!r}")
        with self._opening:
            if self._party is None:
                end_with_parent()
                site = _site(fl_ctx)
                if fl_ctx.get_identity_name() != site.unit:
                    raise ProtocolError(
                        f"unit {site.unit!r}: the certificate is that of {fl_ctx.get_identity_name()!r}; "
                        "join again with a certificate of this unit"
                    )
                self._party = site.party(self._job)
                guarding(self._party.guard)
            return self._party

    def _policy_lines(self, fl_ctx: FLContext) -> Mapping[str, int]:
        """Of the policy as it is now; none if it cannot be read."""
        with contextlib.suppress(CounterflowError):
            return _site(fl_ctx).policy.lines
        return {}


def _site(fl_ctx: FLContext) -> PlantSite:
    return kit.plant_site(Path(fl_ctx.get_engine().get_workspace().get_root_dir()))
