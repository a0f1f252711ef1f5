"""An answer as a file: JSON as the API gives it, CSV of all channels and rows, HTML as the report draws it."""

from __future__ import annotations

import json
from typing import Any

from counterflow.console.answers import Answered, answer
from counterflow.console.messages import AnswerResponse
from counterflow.console.seats import Seat
from counterflow.errors import CounterflowError
from counterflow.frames import as_csv
from counterflow.questions.registry import QUESTIONS
from counterflow.report import Clock, Report, render
from counterflow.report.content import section

KINDS = {"json": "application/json", "csv": "text/csv; charset=utf-8", "html": "text/html; charset=utf-8"}
_TABS = {question.tab: question for question in QUESTIONS.values()}


def export(seat: Seat, question: Any, kind: str) -> bytes:
    """Ask, and write the answer down."""
    answered = answer(seat, _TABS[question.kind], question)
    if kind == "json":
        checked = AnswerResponse.model_validate(answered.content, from_attributes=True)
        content = checked.model_dump(mode="json", exclude_unset=True)
        told = {"question": question.model_dump(mode="json"), "answer": content}
        return json.dumps(told, indent=1, ensure_ascii=False).encode()
    return _csv(answered) if kind == "csv" else _html(seat, answered).encode()


def _csv(answered: Answered) -> bytes:
    import polars as pl

    reply: Any = answered.reply
    frame = reply.to_frame()
    if "measured_in" not in frame.columns:
        outputs = reply.about.outputs
        measures = [channel.unit for channel in outputs] * (len(frame) // len(outputs))
        frame = frame.insert_column(2, pl.Series("measured_in", measures))
    if "factual" in frame.columns and frame["factual"].is_nan().all():
        frame = frame.drop("factual")
    if getattr(reply, "level", None) is not None:
        frame = frame.with_columns(level=pl.lit(reply.level))
    return as_csv(frame)


def _html(seat: Seat, answered: Answered) -> str:
    told = section(answered.request.words(seat.plant), answered.reply, Clock.of(seat.plant.dt))
    graph = None
    if not seat.refusals["graph"]:
        try:
            graph = seat.graph(0.05)
        except CounterflowError:
            graph = None
    seen = "the server" if seat.unit is None else seat.unit
    source = seat.provenance
    provenance = {} if source is None else {
        "fit": str(source), "Counterflow": source.version, "method": source.method,
        "data": f"SHA-256 {source.data_digest}",
    }  # fmt: skip
    report = Report(
        f"A question asked at {seen}",
        f"Asked in the console at the seat of {seen}, of a fit by method {seat.method!r}.",
        whatifs=(), units=tuple(part.unit for part in seat.parts.values()), notes=seat.caveats,
        provenance=provenance, graph=graph,
    )  # fmt: skip
    return render(report.with_sections([told]))
