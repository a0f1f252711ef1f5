"""The standing job inside FLARE: every plant that is there is asked for its questions, all the time, and answered.

A plant holds the coordinator's request until it has a question, so that neither of them polls. One that cannot be
reached is tried again; the others do not notice.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from nvflare.apis.fl_constant import ReturnCode

from counterflow.errors import ProtocolError
from counterflow.federation.engine import Progress
from counterflow.federation.flare import envelope
from counterflow.federation.flare.filter import CANNOT
from counterflow.federation.flare.push import REFUSAL, push
from counterflow.federation.question_service import QuestionService
from counterflow.federation.refusal import Refusal
from counterflow.federation.rounds import Carry, Unanswered

HELD = 30.0  # seconds for one exchange; a plant that has nothing to ask answers after a third of that
PAUSE = 1.0  # seconds before a plant that was not reached, or refused, is tried again
TELL = 2.0  # seconds between two words on how it stands


def carry(engine: Any) -> Carry:
    """Takes trials to plants, beside the exchanges in which these put their questions."""

    def asked(unit: str, data: bytes, patience: float) -> bytes:
        code, content = push(engine, unit, [(0, data)], patience)
        if not code or code == CANNOT:
            raise Unanswered(reached=False)
        if code != ReturnCode.OK:
            raise Unanswered(Refusal.from_text(content[REFUSAL]) if REFUSAL in content else None)
        replies = envelope.unpacked(content, unit)
        if len(replies) != 1:
            raise ProtocolError(f"server: unit {unit!r} gives {len(replies)} answers to one trial")
        return replies[0][1]

    return asked


def serve(
    service: QuestionService, units: tuple[str, ...], engine: Any, over: Callable[[], bool], tell: Progress
) -> None:
    """Answer until it is ``over``; ``tell`` is called with who is served, who is not and why."""
    served: dict[str, str] = dict.fromkeys(units, "not reached yet")  # "" if it is
    counts = {"exchanges": 0, "bytes_up": 0, "bytes_down": 0}  # exchanges in which something was said
    counting = threading.Lock()
    ended = threading.Event()

    def attend(unit: str) -> None:
        answers: list[tuple[int, bytes]] = []
        while not ended.is_set():
            try:
                code, content = push(engine, unit, answers, HELD)
                if code == ReturnCode.OK:
                    asked, told_down = envelope.unpacked(content, unit), answers
                    answers = service.receive(unit, asked)
                    served[unit] = ""
                    with counting:
                        counts["exchanges"] += bool(asked)
                        counts["bytes_up"] += sum(len(data) for _, data in asked)
                        counts["bytes_down"] += sum(len(data) for _, data in told_down)
                    continue
                served[unit] = f"it refuses ({code}); see its logs" if code else "not reached"
            except Exception as error:  # whatever it is, the others are served, and this unit is tried again
                served[unit] = f"{type(error).__name__}: {error}"[:300]
            answers = []  # whoever asks there asks again
            ended.wait(PAUSE)

    pool = ThreadPoolExecutor(len(units), "questions")
    try:
        for unit in units:
            pool.submit(attend, unit)
        told: dict[str, Any] = {}
        since = 0.0
        while not over():
            now = {
                "serving": [unit for unit in units if not served[unit]],
                "missing": {unit: why for unit, why in served.items() if why},
                **counts,
            }
            if now != told and time.monotonic() - since > TELL:
                tell(now)
                told, since = now, time.monotonic()
            ended.wait(0.2)
    finally:
        ended.set()
        pool.shutdown(wait=False, cancel_futures=True)
