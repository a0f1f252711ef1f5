"""The last look at what leaves a plant: bytes that its guard has let out, in an envelope, or a ``Refusal``."""

from __future__ import annotations

import contextlib

from nvflare.apis.filter import Filter
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import ReservedHeaderKey, Shareable, make_reply

from counterflow.errors import CounterflowError, ProtocolError
from counterflow.federation.flare import envelope
from counterflow.federation.flare.push import REFUSAL, content_of
from counterflow.federation.guard import Guard
from counterflow.federation.refusal import Refusal

CANNOT = ReturnCode.HANDLER_EXCEPTION  # what a plant says that would answer, and cannot now
_guards: list[Guard] = []  # a job has a process of its own, and in it one guard


def guarding(guard: Guard) -> None:
    """From now on the filter of this process asks this guard."""
    _guards[:] = [guard]


class OutgoingFilter(Filter):
    """Stands in ``privacy.json`` of the plant, which no job can change, and sees every result of a task.

    A result that has an unknown key or header, or bytes that were not let out under this job, is replaced by a refusal
    without a reason, and the refusal is audited.
    """

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        """FLARE calls this before a result leaves."""
        try:
            refusal = self._checked(shareable)
        except CounterflowError as error:
            with contextlib.suppress(CounterflowError):  # it is written down, and raised again
                if _guards:
                    _guards[0].refuse("filter", b"", error)
            self.log_error(fl_ctx, f"kept here: {error}", fire_event=False)
            return make_reply(ReturnCode.TASK_RESULT_FILTER_ERROR)
        return refusal if refusal is not None else Shareable(content_of(shareable))  # only what was looked at

    @staticmethod
    def _checked(shareable: Shareable) -> Shareable | None:
        """A refusal of the executor's, if it is one; raises if anything in the result may not leave."""
        headers = shareable.get(ReservedHeaderKey.HEADERS) or {}
        content = content_of(shareable)
        if not content and {ReservedHeaderKey.RC} <= set(headers) <= {ReservedHeaderKey.RC, REFUSAL}:
            told = {REFUSAL: Refusal.from_text(headers[REFUSAL]).to_text()} if REFUSAL in headers else None
            cannot = headers[ReservedHeaderKey.RC] == CANNOT
            return make_reply(CANNOT if cannot else ReturnCode.EXECUTION_EXCEPTION, told)
        if headers:
            raise ProtocolError(f"a result has the headers {str(sorted(map(str, headers)))[:200]}, and may have none")
        messages = envelope.unpacked(content, _guards[0].unit if _guards else "")
        for sequence, data in messages:
            if not _guards or not _guards[0].has_left(data):
                raise ProtocolError(f"message {sequence} of {len(data)} bytes was not let out by this plant's guard")
        return None
