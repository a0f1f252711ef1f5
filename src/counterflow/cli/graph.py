"""``counterflow graph``: which unit acts on which."""

from __future__ import annotations

from typing import Annotated

from typer import Option

from counterflow.cli.options import FitDirectory
from counterflow.cli.output import Told, answering, judged, sourced
from counterflow.fits.fit import load
from counterflow.questions.question import envelope
from counterflow.report.composition import acting_directly


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
    sentence = acting_directly(found.direct(), rate)
    content = {
        **envelope("graph", fit, sentence, fit.caveats), "rate": rate, "units": list(found.names),
        "edges": found.to_frame().to_dicts(),
    }  # fmt: skip
    judgement = judged(fit.caveats, f"counterflow check {directory}")
    parts = (sentence, "", *str(found).splitlines(), *sourced(fit.provenance), *judgement)
    return Told(content, parts, frame=found.to_frame)
