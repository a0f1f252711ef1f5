"""One exchange with a plant: a task is pushed to it, and its answer comes back as the reply (FLARE's topic DO_TASK)."""

from __future__ import annotations

import uuid
from typing import Any

from nvflare.apis.fl_constant import ReservedTopic, ReturnCode
from nvflare.apis.shareable import ReservedHeaderKey, Shareable

from counterflow.federation.flare import envelope

REFUSAL = "counterflow-refusal"  # header of a reply that says no: ``Refusal`` as text
UNREACHED = frozenset(  # a refusal has another code: that of the executor, or of the plant's filter
    {
        *(ReturnCode.COMMUNICATION_ERROR, ReturnCode.SERVICE_UNAVAILABLE, ReturnCode.SERVER_NOT_READY),
        *(ReturnCode.TIMEOUT, ReturnCode.TOPIC_UNKNOWN, ReturnCode.ERROR),
    }
)


def content_of(shareable: Shareable) -> dict[str, Any]:
    """What is in it besides FLARE's headers."""
    return {key: value for key, value in shareable.items() if key != ReservedHeaderKey.HEADERS}


def push(
    engine: Any, unit: str, messages: list[tuple[int, bytes]], patience: float
) -> tuple[str, dict[str, Any]]:
    """The return code and the content of a plant's reply, or its refusal; no code if it was not reached."""
    with engine.new_context() as fl_ctx:
        request = Shareable(envelope.packed(messages))
        request.set_header(ReservedHeaderKey.TASK_NAME, envelope.TASK)
        request.set_header(ReservedHeaderKey.TASK_ID, str(uuid.uuid4()))
        # FLARE hands on the reply to this very request only, and only the plant has seen its number
        replies = engine.send_aux_request([unit], ReservedTopic.DO_TASK, request, patience, fl_ctx, optional=True)
    reply = (replies or {}).get(unit)
    if not isinstance(reply, Shareable) or reply.get_return_code() in UNREACHED:
        return "", {}
    code, refusal = str(reply.get_return_code()), reply.get_header(REFUSAL)
    return code, content_of(reply) if refusal is None else {REFUSAL: refusal}
