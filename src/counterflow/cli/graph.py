"""``counterflow graph``: which unit acts on which."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import polars
from typer import Option

from counterflow.cli.options import FitDirectory
from counterflow.cli.output import Told, answering, judged, listed, picked, sourced
from counterflow.fits.fit import load
from counterflow.questions.question import envelope
from counterflow.report.composition import acting_directly

_FIELDS = "cause effect direct reaches possible p_value p_value_A p_value_B q_value direct_strength total_strength"


@answering("json", "csv")
def graph(
    directory: FitDirectory,
    rate: Annotated[float, Option(help="False-discovery rate, between 0 and 1.")] = 0.05,
) -> Told:
    """Which unit acts on which, directly or through others?

    Example: counterflow graph fit --rate 0.01
    """
    fit = load(directory)
    found = fit.graph(rate)
    edges = sorted(found, key=lambda edge: edge.q_value if np.isfinite(edge.q_value) else 2.0)
    sentence = acting_directly([(edge.cause, edge.effect) for edge in edges if edge.direct], rate)
    content = {
        **envelope("graph", fit, sentence, fit.caveats), "rate": rate, "units": list(found.names),
        "edges": [picked(edge, _FIELDS) for edge in edges],
    }  # fmt: skip
    rows = [
        {"edge": f"{edge.cause} -> {edge.effect}", "influence": edge.kind, **told}
        for edge, told in zip(edges, content["edges"], strict=True)
    ]
    columns = ("edge", "influence", "q_value", "direct_strength", "total_strength")
    table = listed("who acts on whom", rows, *columns, left=2)
    judgement = judged(fit.caveats, f"counterflow check {directory}")
    parts = (sentence, table, *sourced(fit.provenance), *judgement)
    return Told(content, parts, frame=lambda: polars.DataFrame(content["edges"], _FIELDS.split()))
