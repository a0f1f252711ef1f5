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
from counterflow.exchange.task import UnitData
from counterflow.federation.flare import envelope, jobs, kit
from counterflow.federation.flare.filter import CANNOT, guarding
from counterflow.federation.flare.processes import end_with_parent
from counterflow.federation.flare.push import REFUSAL, content_of
from counterflow.federation.job import QUESTIONS, Job
from counterflow.federation.parts import save_unit
from counterflow.federation.plant_session import PlantSession
from counterflow.federation.question_box import PlantQuestions
from counterflow.federation.refusal import Refusal
from counterflow.federation.sites.site import PlantSite

PATIENCE = 10.0  # seconds that a plant keeps the coordinator waiting for a question


class PlantExecutor(Executor):
    """Carries envelopes to the plant's session and back.

    What goes wrong is told to the coordinator as a ``Refusal``, or without a reason: the plant's own words may quote a
    measurement. They stand in its audit log and in the log of its FLARE process. A plant that cannot answer now,
    because its disk is full or another process has its session, says just that.

    Parameters
    ----------
    job : ``jobs.encoded`` text of the job; the only thing here that comes from outside.
    """

    def __init__(self, job: str) -> None:
        super().__init__()
        self._turn = threading.Lock()
        self._watched = False
        self._job = Job.from_text(jobs.decoded(job))
        self._site: PlantSite | None = None
        self._own: UnitData | None = None
        self._session: PlantSession | None = None
        self._questions: PlantQuestions | None = None

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        """FLARE calls this with every task, from any thread: what is sent again waits for the first answer to it."""
        try:
            if task_name == envelope.TRIAL:  # it comes while an exchange waits for a question
                return self._reacted(shareable, fl_ctx)
            with self._turn:
                return self._exchanged(task_name, shareable, fl_ctx, abort_signal)
        except CounterflowError as error:
            self.log_error(fl_ctx, f"refused: {type(error).__name__}: {error}", fire_event=False)
            if isinstance(error, StorageError):
                return make_reply(CANNOT)
            refusal = Refusal.of(error, self._policy_lines(fl_ctx))
            return make_reply(ReturnCode.EXECUTION_EXCEPTION, {REFUSAL: refusal.to_text()} if refusal else None)

    def _exchanged(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        if task_name != envelope.TASK:
            raise ProtocolError(f"{self._job.label}: there is no task {task_name[:80]!r}")
        site = self._opened(fl_ctx)
        arrived = envelope.unpacked(content_of(shareable), site.unit)
        if self._questions is not None:
            replies = self._questions.exchange(arrived, PATIENCE, lambda: bool(abort_signal.triggered))
            guarding(self._questions.guard)
        else:
            replies = self._taken_in(site, arrived)
        return Shareable(envelope.packed(replies))

    def _reacted(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        if self._site is None:
            with self._turn:
                self._opened(fl_ctx)
        if self._site is None or self._questions is None:
            raise ProtocolError(f"{self._job.label}: trials belong to a job of questions")
        replies = self._questions.react(envelope.unpacked(content_of(shareable), self._site.unit))
        guarding(self._questions.guard)
        return Shareable(envelope.packed(replies))

    def _policy_lines(self, fl_ctx: FLContext) -> Mapping[str, int]:
        """Of the policy as it is now; none if it cannot be read."""
        with contextlib.suppress(CounterflowError):
            return _site(fl_ctx).policy.lines
        return {}

    def _taken_in(self, site: PlantSite, arrived: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        session, replies = self._session, []
        assert session is not None
        for sequence, data in arrived:
            replies += [(reply.sequence, reply.data) for reply in session.receive(sequence, data)]
        if session.finished and self._own is not None:  # what was learned is kept before the coordinator hears of it
            save_unit(site.home, self._job, self._own, session.state, session.losses)
            self._own = None
        return replies

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """FLARE calls this; the end of the run is the end of the session's hold on its files."""
        if event_type == EventType.END_RUN and self._session is not None:
            self._session.close()
            self._session = self._site = None

    def _opened(self, fl_ctx: FLContext) -> PlantSite:
        if self._site is None:
            if not self._watched:
                end_with_parent()
                self._watched = True
            site = _site(fl_ctx)
            if fl_ctx.get_identity_name() != site.unit:
                raise ProtocolError(
                    f"unit {site.unit!r}: the certificate is that of {fl_ctx.get_identity_name()!r}; "
                    "join again with a certificate of this unit"
                )
            own, audit = site.own(), site.audit()
            if self._job.method == QUESTIONS:
                self._questions = site.questions(self._job, audit, own)
                guarding(self._questions.guard)
            else:
                guard = site.guard(self._job, audit, own)
                try:
                    self._session, self._own = site.session(self._job, guard, own), own
                except StorageError:
                    raise
                except CounterflowError as error:  # such as a model that is missing
                    guard.refuse("job", self._job.to_text().encode(), error)
                guarding(guard)
            self._site = site
        return self._site


def _site(fl_ctx: FLContext) -> PlantSite:
    return kit.plant_site(Path(fl_ctx.get_engine().get_workspace().get_root_dir()))
