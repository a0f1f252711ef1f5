"""From a fit, a recording and questions to a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterflow import wording
from counterflow.checks import check
from counterflow.errors import OptionError, UnidentifiedError, UnstableError
from counterflow.exchange.sensors import what
from counterflow.identification.sensors import judged
from counterflow.questions.question import Request
from counterflow.questions.registry import QUESTIONS
from counterflow.report.content import (
    ROWS_SHARED,
    Estimate,
    Refusal,
    Report,
    Section,
    WhatIf,
    plain,
    section,
)
from counterflow.report.page import write

if TYPE_CHECKING:
    from counterflow.exchange.outcome import Provenance
    from counterflow.fits.fit import Fit
    from counterflow.plant import Recording

MOST_PAIRS = 12  # that a sentence can hold


def write_report(
    path: str | Path, fit: Fit, recording: Recording, questions: Sequence[Request] = (), *, title: str = "",
    lead: str = "", others: Mapping[str, Fit] | None = None, notes: Sequence[str] = (), level: float = 0.95,
) -> Report:  # fmt: skip
    """Ask a fit, and write answers, influence graph, checks, traffic and provenance to one HTML file.

    Parameters
    ----------
    path : where to; what is there is replaced when the whole page is written.
    recording : what counterfactuals and attributions are about; usually the fitted one.
    questions : `AskEffect`, `AskPaths`, `AskCounterfactual`, `AskAttribution`, `AskRestoration`, `AskForecast`,
        `AskAggregate`, in any number. One that the data cannot answer is shown as refused, with reason and remedy; a
        wrong name or number raises.
    others : further fits by label (a published method, say), whose effects and training stand beside.
    notes : what the reader should know before acting on it.

    Returns
    -------
    The content of the page, for other uses.

    Examples
    --------
    >>> import tempfile
    >>> import counterflow as cf
    >>> from counterflow.report import AskAttribution, AskEffect, write_report
    >>> plant = cf.random_plant(["boiler", "turbine"], rng=1)
    >>> recording = plant.simulate(500, rng=2)
    >>> asked = [AskEffect("boiler", "turbine", {"u1": 1.0}, horizon=9), AskAttribution("turbine", 400, 450)]
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     content = write_report(f"{folder}/report.html", cf.fit(recording, plant.locals()), recording, asked)
    >>> content.whatifs[0].question
    'If boiler u1 were +1 from now on: what would turbine do?'
    """
    content = compose(fit, recording, questions, title=title, lead=lead, others=others, notes=notes, level=level)
    write(content, path)
    return content


def compose(
    fit: Fit, recording: Recording, questions: Sequence[Request] = (), *, title: str = "", lead: str = "",
    others: Mapping[str, Fit] | None = None, notes: Sequence[str] = (), level: float = 0.95,
) -> Report:  # fmt: skip
    """The content of a report, as `write_report` writes it."""
    known, units = fit.couplings, tuple(fit.plant.unit(name) for name in fit.names)
    of_moments = known is not None and known.of_moments
    rests_on = assumptions(known is not None, known is not None and known.model.learned, of_moments)
    graph = fit.graph() if known is not None and known.model.told and len(units) > 1 else None
    facts = {"units": str(len(units)), "recorded": wording.span(recording.rows, recording.dt)}
    facts["crossed the wire"] = str(fit.traffic)
    if graph is not None:
        facts["direct influences"] = f"{len(graph.direct())} of {len(graph.edges)} pairs"
    spent = None if fit.privacy is None else f"ε {fit.privacy.epsilon:.3g}, δ {fit.privacy.delta:.2g} spent"
    names = wording.listed([plain(name) for name in fit.names]) if len(units) <= 3 else f"{len(units)} units"
    return Report(
        title=title or f"How {names} act on each other",
        lead=lead or (
            f"{len(units)} units, {recording.rows} rows. Each unit kept its raw measurements; a server learned how "
            f"they act on each other from {'moments' if of_moments else 'compressed ones'}."
        ),
        units=units,
        fits={f"method {fit.method!r}": fit, **(others or {})},
        notes=tuple(dict.fromkeys([*notes, *rests_on, *fit.caveats])),
        provenance=_provenance(fit, recording),
        graph=graph,
        checks=check(fit, recording if fit.privacy is None else None).checks,
        facts={**facts, "privacy": spent or "nothing was made private"},
        privacy=fit.privacy,
        disclosed=_disclosed(fit),
        sensors=tuple(
            (plain(name), part.unit.output_names[found.channel], found.kind, what(part.unit, found))
            for name, part in fit.parts.items() for found in judged(part.sensors, recording[name].y).findings
        ),
        sections=tuple(tell(fit, recording, question, others=others, level=level) for question in questions),
    )  # fmt: skip


def _disclosed(fit: Fit) -> str:
    """What a unit has shared of itself."""
    if fit.couplings is None or not fit.couplings.of_moments:
        return ROWS_SHARED
    spread = fit.couplings.spread
    models = spread is not None and spread.parameters.estimate == "couplings"
    own = "its inputs, its own state dynamics" if models else "its inputs"
    return (
        f"A unit shares with the server {own} and moments: {'' if fit.privacy is None else 'noised '}projections of "
        "its measurements on what all inputs did, a few numbers however many rows there are. No row of its "
        "measurements, raw or compressed, leaves it. Other units are sent signals that are made of all units' inputs, "
        "and nothing of its measurements."
    )


def assumptions(likelihood: bool, from_logs: bool = False, of_moments: bool = False) -> tuple[str, ...]:
    """What every answer of a method rests on and no check here can show; ``likelihood``: whether it is a fit by it."""
    held = "Other inputs are held as they were, also where a controller would have answered the change"
    linear = "answers hold for a linear plant near where it was recorded"
    if not likelihood:
        return ()
    if of_moments:
        return linear, (
            "inputs must not react to measurements, nor to something that moves the plant and that nobody records: "
            f"effects would be biased. {held}"
        )  # fmt: skip
    holds = (
        "answers hold for a plant that goes on as it was recorded, and within what was seen of it"
        if from_logs
        else f"{linear}, and intervals do not account for a wrong local model"
    )
    return holds, (
        "inputs may react to recorded measurements, but not to something that moves the plant and that nobody records: "
        f"effects would be biased, and the data cannot show it. {held}"
    )


def acting_directly(edges: Sequence[tuple[str, str]], rate: float) -> str:
    """Which units act directly on which."""
    head = f"At a false-discovery rate of {wording.percent(rate)}, "
    listed = ", ".join(f"{cause} -> {effect}" for cause, effect in edges[:MOST_PAIRS])
    listed += f" and {len(edges) - MOST_PAIRS} more" if len(edges) > MOST_PAIRS else ""
    return f"{head}these act directly: {listed}." if edges else f"{head}no unit is found to act on another."


def _provenance(fit: Fit, recording: Recording) -> dict[str, str]:
    own = recording.digest if fit.privacy is None else recording.public_digest
    data = {"data" if fit.privacy is None else "inputs": f"SHA-256 {own}"}
    if fit.provenance.data_digest != own:
        data["fitted to other data"] = f"SHA-256 {fit.provenance.data_digest}"
    return {**sourced(fit.provenance), "rows": str(recording.rows), **data}


def sourced(source: Provenance) -> dict[str, str]:
    """The fit that answers come from, in words."""
    return {"fit": str(source), "Counterflow": source.version, "method": source.method, "seed": str(source.seed)}


def tell(
    fit: Fit, recording: Recording, question: Request, *, others: Mapping[str, Fit] | None = None, level: float = 0.95
) -> Section:
    """Ask one question: its answer as a report shows it, or the refusal."""
    if not isinstance(question, Request):
        known = ", ".join(kind.__name__ for kind in QUESTIONS.values())
        raise OptionError(f"report: {question!r:.80} is no question; use one of {known}")
    request: Any = fit.in_rows(question, recording)
    request = replace(request, level=level) if hasattr(request, "level") else request
    dated = request.of_past and 0 <= request.start < (request.stop or recording.rows) <= recording.rows
    words = request.words(fit.plant, recording.calendar if dated else None)
    try:
        reply = fit.ask(request, recording if request.of_past or request.after_record else None)
        told = section(words, reply, request.headline)
        if isinstance(told, WhatIf):
            beside = [Estimate.of(label, each.ask(request), each.method) for label, each in (others or {}).items()]
            own = "Counterflow" if fit.method == "sufficient" else f"method {fit.method!r}"
            return replace(told, label=own, others=beside)
        return told
    except (UnidentifiedError, UnstableError) as error:
        return Refusal(words, str(error))
