"""From a fit, a recording and questions to a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow import wording
from counterflow.checks import check
from counterflow.errors import OptionError, UnidentifiedError, UnstableError
from counterflow.exchange.sensors import what
from counterflow.identification.sensors import judged
from counterflow.questions.counterfactual import Counterfactual
from counterflow.questions.question import Request
from counterflow.questions.registry import QUESTIONS
from counterflow.report.content import (
    ROWS_SHARED,
    Answer,
    Clock,
    Refusal,
    Report,
    Section,
    Told,
    Training,
    WhatIf,
    assumptions,
    moments_shared,
    plain,
    section,
)
from counterflow.report.page import write

if TYPE_CHECKING:
    from counterflow.fits.fit import Fit
    from counterflow.learning.influence import InfluenceGraph
    from counterflow.plant import Recording


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
    told = [tell(fit, recording, question, others=others, level=level) for question in questions]
    graph = graph_of(fit)
    units = tuple(fit.plant.unit(name) for name in fit.names)
    trainings = [Training.of(f"method {fit.method!r}", fit)]
    trainings += [Training.of(label, other) for label, other in (others or {}).items()]
    return Report(
        title=title or f"How {_units(fit.names)} act on each other",
        lead=lead
        or (
            f"{len(units)} units, {recording.rows} rows. Each unit kept its raw measurements; a server learned how "
            f"they act on each other from {'moments' if _of_moments(fit) else 'compressed ones'}."
        ),
        units=units,
        trainings=tuple(trainings),
        notes=tuple(dict.fromkeys([*notes, *_assumptions(fit), *fit.caveats])),
        provenance=provenance(fit, recording),
        graph=graph,
        checks=check(fit, recording if fit.privacy is None else None).checks,
        facts=facts(fit, recording, graph),
        privacy=fit.privacy,
        disclosed=_disclosed(fit),
        sensors=_sensors(fit, recording),
    ).with_sections(told)


def _sensors(fit: Fit, recording: Recording) -> tuple[tuple[str, str, str, str], ...]:
    """What the sensors did in these rows: unit, channel, kind, and a few words."""
    out = []
    for name, part in fit.parts.items():
        for found in judged(part.sensors, recording[name].y).findings:
            out.append((plain(name), part.unit.output_names[found.channel], found.kind, what(part.unit, found)))
    return tuple(out)


def _of_moments(fit: Fit) -> bool:
    return fit.couplings is not None and fit.couplings.of_moments


def _disclosed(fit: Fit) -> str:
    """What a unit has shared of itself."""
    if fit.couplings is None or not fit.couplings.of_moments:
        return ROWS_SHARED
    spread = fit.couplings.spread
    return moments_shared(fit.privacy is not None, spread is not None and spread.parameters.estimate == "couplings")


def _assumptions(fit: Fit) -> tuple[str, ...]:
    known = fit.couplings
    return assumptions(known is not None, known is not None and known.model.learned, _of_moments(fit))


def facts(fit: Fit, recording: Recording, graph: InfluenceGraph | None) -> dict[str, str]:
    """The few numbers that head the page."""
    out = {
        "units": str(len(fit.names)),
        "recorded": Clock.of(recording.dt).span(recording.rows),
        "crossed the wire": str(fit.traffic),
    }
    if graph is not None:
        out["direct influences"] = f"{len(graph.direct())} of {len(graph.edges)} pairs"
    told = fit.privacy
    spent = "nothing was made private" if told is None else f"ε {told.epsilon:.3g}, δ {told.delta:.2g} spent"
    return {**out, "privacy": spent}


def provenance(fit: Fit, recording: Recording) -> dict[str, str]:
    own = recording.digest if fit.privacy is None else recording.public_digest
    same = fit.provenance.data_digest == own
    out = {
        "fit": str(fit.provenance),
        "Counterflow": fit.provenance.version,
        "method": fit.provenance.method,
        "seed": str(fit.provenance.seed),
        "rows": str(recording.rows),
        "data" if fit.privacy is None else "inputs": f"SHA-256 {own}",
    }
    return out if same else {**out, "fitted to other data": f"SHA-256 {fit.provenance.data_digest}"}


def graph_of(fit: Fit) -> InfluenceGraph | None:
    """The influence graph, where the fit has one."""
    known = fit.couplings
    if known is None or not known.model.told or len(fit.names) < 2:
        return None
    return fit.graph()


def label_of(fit: Fit) -> str:
    """What answers of a fit are called: the default method speaks for Counterflow, others for themselves."""
    return "Counterflow" if fit.method == "sufficient" else f"method {fit.method!r}"


def _units(names: Sequence[str]) -> str:
    return wording.listed([plain(name) for name in names]) if len(names) <= 3 else f"{len(names)} units"


def tell(
    fit: Fit, recording: Recording, question: Request, *, others: Mapping[str, Fit] | None = None, level: float = 0.95
) -> Section:
    """Ask one question: its answer as a report shows it, or the refusal."""
    if not isinstance(question, Request):
        known = ", ".join(kind.__name__ for kind in QUESTIONS.values())
        raise OptionError(f"report: {question!r:.80} is no question; use one of {known}")
    request: Any = question
    request = fit.in_rows(request, recording)
    request = replace(request, level=level) if hasattr(request, "level") else request
    dated = request.of_past and 0 <= request.start < (request.stop or recording.rows) <= recording.rows
    words = request.words(fit.plant, recording.calendar if dated else None)
    try:
        reply = fit.ask(request, recording if request.of_past or request.after_record else None)
        told = section(words, reply, Clock.of(recording.dt), request.headline)
        if isinstance(told, WhatIf):
            answers = [replace(told.answers[0], label=label_of(fit), short=label_of(fit))]
            answers += [Answer.of(label, each.ask(request), each.method) for label, each in (others or {}).items()]
            return replace(told, answers=tuple(answers))
        if isinstance(told, Told) and isinstance(reply, Counterfactual):
            return replace(told, changed=_changed(recording, reply))
    except (UnidentifiedError, UnstableError) as error:
        return Refusal(words, str(error))
    return told


def _changed(recording: Recording, world: Counterfactual) -> tuple[int, int] | None:
    """Rows [first, last) in which inputs differ from the recorded ones."""
    asked, start, stop = world.about.request, world.first, world.stop
    moved = np.zeros(stop - start, bool)
    for name, given in (asked.do or {}).items():
        factual, names = recording[name].u[start:stop], recording[name].unit.input_names
        if isinstance(given, Mapping):
            for channel, value in given.items():
                moved |= factual[:, names.index(channel)] != np.asarray(value, np.float64)
        else:
            moved |= (factual != np.asarray(given, np.float64)).any(axis=1)
    rows = np.flatnonzero(moved if not asked.add else np.ones_like(moved))
    return (start + int(rows[0]), start + int(rows[-1]) + 1) if len(rows) else None
