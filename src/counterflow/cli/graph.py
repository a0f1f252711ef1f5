"""``counterflow graph``: which unit acts on which."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import polars
from typer import Option

from counterflow import wording
from counterflow.cli import output
from counterflow.cli.options import AnswerFormat, FitDirectory, Force, Out
from counterflow.cli.output import Format
from counterflow.fits.fit import load
from counterflow.questions.question import envelope
from counterflow.report.content import acting_directly
from counterflow.report.graph import kind_of

_FIELDS = "cause effect direct reaches possible p_value p_value_A p_value_B q_value direct_strength total_strength"


def graph(
    directory: FitDirectory,
    rate: Annotated[float, Option(help="False-discovery rate, between 0 and 1.")] = 0.05,
    answer_format: AnswerFormat = Format.table,
    out: Out = None,
    force: Force = False,
) -> None:
    """Which unit acts on which, directly or through others?

    Example: counterflow graph fit --rate 0.01
    """
    output.check_kind(out, ("json", "csv"), force)
    fit = load(directory)
    found = fit.graph(rate)
    edges = sorted(found, key=lambda edge: edge.q_value if np.isfinite(edge.q_value) else 2.0)
    sentence = acting_directly([(edge.cause, edge.effect) for edge in edges if edge.direct], rate)
    told = {
        **envelope("graph", fit, sentence, fit.caveats), "rate": rate, "units": list(found.names),
        "edges": [output.picked(edge, _FIELDS) for edge in edges],
    }  # fmt: skip

    def show() -> None:
        output.show_text(sentence)
        rows = []
        for edge in edges:
            numbers = [f"{edge.q_value:.2g}" if np.isfinite(edge.q_value) else "–"]
            numbers += [wording.number(edge.direct_strength), wording.number(edge.total_strength)]
            rows.append([f"{edge.cause} -> {edge.effect}", kind_of(edge), *numbers])
        columns = ["edge", "influence", "q-value", "direct strength", "total strength"]
        output.show_table("who acts on whom", columns, rows, left=2)
        output.show_source(fit.provenance)
        output.show_verdict(fit.caveats, f"counterflow check {directory}")

    output.conclude(answer_format, out, force, told, show, lambda: polars.DataFrame(told["edges"], _FIELDS.split()))
