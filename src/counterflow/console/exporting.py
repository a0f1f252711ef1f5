"""An answer as a file: JSON as the API gives it, CSV of all channels and rows, HTML as the report draws it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from counterflow.console import messages
from counterflow.console.answering import ASK, Answered
from counterflow.console.seats import Seat
from counterflow.errors import CounterflowError, OptionError
from counterflow.questions.answers import Attribution, Effect, Paths, Restoration, Trajectory
from counterflow.report import Answer, Clock, Remedy, Report, Shares, WhatIf, World, render, telling

KINDS = {"json": "application/json", "csv": "text/csv; charset=utf-8", "html": "text/html; charset=utf-8"}


def export(seat: Seat, question: messages.AnyQuestion, kind: str) -> bytes:
    """Ask, and write the answer down."""
    answered = ASK[question.kind](seat, question)
    if kind == "json":
        told = {"question": question.model_dump(mode="json"), "answer": answered.told.model_dump(mode="json")}
        return json.dumps(told, indent=1, ensure_ascii=False).encode()
    return _csv(seat, answered) if kind == "csv" else _html(seat, answered).encode()


def _csv(seat: Seat, answered: Answered) -> bytes:
    import polars as pl

    found = answered.found
    if isinstance(found, Restoration):
        frame = pl.DataFrame(_columns(answered))
    else:
        frame = pl.DataFrame(_columns(answered)) if isinstance(found, Paths) else found.to_frame()
        unit = seat.parts[found.unit if isinstance(found, (Trajectory, Attribution)) else found.effect].unit
        measures = pl.Series("measured_in", [channel.unit for channel in unit.outputs] * (len(frame) // unit.n_outputs))
        frame = frame.insert_column(2, measures)
        if isinstance(found, Trajectory) and frame["factual"].is_nan().all():
            frame = frame.drop("factual")
        if isinstance(found, (Effect, Trajectory)) and found.level is not None:
            frame = frame.with_columns(level=pl.lit(found.level))
    text = pl.selectors.string()
    return frame.with_columns(text.str.replace(r"^([=+\-@\t\r])", "'${1}")).write_csv().encode()


def _columns(answered: Answered) -> dict[str, Any]:
    found = answered.found
    if isinstance(found, Restoration):
        told = answered.told
        assert isinstance(told, messages.RestoreTold)
        return {name: [getattr(each, name) for each in told.change] for name in messages.LeverTold.model_fields}
    assert isinstance(found, Paths)
    rows, count = found.total.shape
    columns: dict[str, Any] = {
        "step": np.repeat(np.arange(1, rows + 1), count),
        "channel": list(found.channels) * rows,
        "total": found.total.ravel(),
        "direct": found.direct.ravel(),
    }
    return columns | {f"through {name}": values.ravel() for name, values in found.through.items()}


def _html(seat: Seat, answered: Answered) -> str:
    found, told, clock = answered.found, answered.told, Clock.of(seat.plant.dt)
    own: dict[str, Any] = {"whatifs": ()}
    if isinstance(found, Effect):
        assert isinstance(told, messages.EffectTold)
        outputs = seat.parts[found.effect].unit.outputs
        answers = (Answer.of("Counterflow", found),)
        own["whatifs"] = (
            WhatIf(answered.question, outputs, answers, told.most_affected[0].channel, clock.step, clock.unit),
        )
    elif isinstance(found, Trajectory) and isinstance(told, messages.PastTold):
        outputs = seat.parts[found.unit].unit.outputs
        own["worlds"] = (World(answered.question, found, outputs, told.most_affected[0].channel, clock),)
    elif isinstance(found, Attribution):
        assert isinstance(told, messages.ExplainTold)
        own["shares"] = (
            Shares(answered.question, found, seat.parts[found.unit].unit.outputs, told.drawn.channel, clock),
        )
    elif isinstance(found, Restoration):
        assert answered.way is not None
        levers = {name: seat.plant.unit(name) for name in found.change}
        own["remedies"] = (Remedy(answered.question, found, seat.parts[found.unit].unit, levers, answered.way, clock),)
    else:
        raise OptionError("export: forecasts and paths are exported as JSON or CSV; the report has no page for them")
    return render(_report(seat, own))


def _report(seat: Seat, own: dict[str, Any]) -> Report:
    graph = None
    if not seat.refusals["graph"]:
        try:
            graph = seat.graph(0.05)
        except CounterflowError:
            graph = None
    seen = "the server" if seat.unit is None else seat.unit
    record = seat.record
    told = {} if record is None else {
        "Counterflow": record.provenance.version, "method": record.provenance.method,
        "data": f"SHA-256 {record.provenance.data_digest}",
    }  # fmt: skip
    return Report(
        title=f"A question asked at {seen}",
        lead=f"Asked in the console at the seat of {seen}, of a fit by method {seat.method!r}.",
        units=tuple(seat.plant.units),
        notes=tuple(telling.caveats(seat, seat.caveats)),
        provenance=told,
        graph=graph,
        **own,
    )
