"""From a question as a page asks it to the library's answer: what the page draws of it, or a file."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

from counterflow.console import forms
from counterflow.console.seats import Seat
from counterflow.console.views import AnswerResponse
from counterflow.errors import CounterflowError, OptionError
from counterflow.frames import as_csv
from counterflow.questions.answer import Answer
from counterflow.questions.question import DRAWN, Form, Request, channel_index, envelope
from counterflow.questions.registry import QUESTIONS
from counterflow.report import Report, render, section
from counterflow.report.composition import sourced

MOST_NUMBERS = 400_000  # of each kind in one answer
KINDS = {"json": "application/json", "csv": "text/csv; charset=utf-8", "html": "text/html; charset=utf-8"}
_TABS = {question.tab: question for question in QUESTIONS.values()}


def answer(seat: Seat, question: type[Request], asked: Any) -> tuple[AnswerResponse, Request, Answer]:
    """Ask at a seat: what a page draws, and what it was made from."""
    unit = next(getattr(asked, e.name) for e in question.form if e.form in (Form.UNIT, Form.UNITS))
    described = seat.part_of(unit).unit
    seat.refuse(question.tab)
    draw = getattr(asked, "draw", None)
    wanted = [draw] if isinstance(draw, str) else list(dict.fromkeys(draw or ()))
    for name in wanted:
        channel_index(described, name, described.output_names, "output")
    given = forms.read(seat, question, asked)
    count, rows = len(wanted) or DRAWN, given.get("horizon") or (given.get("stop") or 0) - (given.get("start") or 0)
    if question.drawn == "channels" and count * rows > MOST_NUMBERS:
        raise OptionError(
            f"draw: {count} channels of {rows} rows are more than {MOST_NUMBERS:,} numbers: draw fewer channels, or "
            "ask for fewer rows"
        )
    request = question.from_form(given, unit)
    found: Answer = seat.ask(request)
    drawn = wanted or found.ranked_channels()[:DRAWN]
    sentence = found.sentence(drawn[0] if question.speaks_of_drawn else None)
    window = found.window().sentence(drawn[0]) if question.windowed else ""
    tables = [vars(table) for table in found.tables()]
    content = envelope(question.tab, seat, sentence, found.caveats)
    content |= {"kind": found.kind, "window": window, "tables": tables, **found.view(drawn, seat)}
    return AnswerResponse.model_validate(content), request, found


def export(seat: Seat, question: Any, kind: str) -> bytes:
    """Ask, and write the answer down: JSON as a page gets it, CSV of all channels and rows, HTML as a report."""
    content, request, found = answer(seat, _TABS[question.kind], question)
    if kind == "json":
        answered = content.model_dump(mode="json", exclude_unset=True)
        told = {"question": question.model_dump(mode="json"), "answer": answered}
        return json.dumps(told, indent=1, ensure_ascii=False).encode()
    return _csv(found) if kind == "csv" else _html(seat, request, found).encode()


def _csv(found: Answer) -> bytes:
    import polars as pl

    frame = found.to_frame()
    if "measured_in" not in frame.columns:
        outputs = found.about.outputs
        measures = [channel.unit for channel in outputs] * (len(frame) // len(outputs))
        frame = frame.insert_column(2, pl.Series("measured_in", measures))
    if "factual" in frame.columns and frame["factual"].is_nan().all():
        frame = frame.drop("factual")
    return as_csv(frame if found.level is None else frame.with_columns(level=pl.lit(found.level)))


def _html(seat: Seat, request: Request, found: Answer) -> str:
    graph = None
    if not seat.refusals["graph"]:
        with suppress(CounterflowError):
            graph = seat.graph(0.05)
    seen, source = "the server" if seat.unit is None else seat.unit, seat.provenance
    provenance = {} if source is None else sourced(source) | {"data": f"SHA-256 {source.data_digest}"}
    return render(Report(
        f"A question asked at {seen}",
        f"Asked in the console at the seat of {seen}, of a fit by method {seat.method!r}.",
        (section(request.words(seat.plant), found),),
        tuple(part.unit for part in seat.parts.values()), notes=seat.caveats, provenance=provenance, graph=graph,
    ))  # fmt: skip
