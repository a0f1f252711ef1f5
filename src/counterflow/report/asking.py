"""From a fit, a recording and questions to a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from counterflow.errors import DataError, OptionError, UnidentifiedError, UnstableError
from counterflow.fits.checks import check
from counterflow.report.content import (
    Answer,
    Clock,
    Refusal,
    Remedy,
    Report,
    Shares,
    Training,
    WhatIf,
    World,
    listed,
    plain,
)
from counterflow.report.page import write
from counterflow.report.telling import assumptions

if TYPE_CHECKING:
    from counterflow.estimation.influence import InfluenceGraph
    from counterflow.fits.fit import Fit
    from counterflow.plant import Recording, Unit

Told = TypeVar("Told", WhatIf, World, Shares, Remedy)


@dataclass(frozen=True)
class AskEffect:
    """What would a change at ``cause`` do to ``effect``? As ``Fit.effect``; ``headline`` is the output drawn large."""

    cause: str | Sequence[str]
    effect: str
    change: Any
    horizon: int = 40
    duration: int | None = None
    headline: str | None = None
    question: str = ""


@dataclass(frozen=True)
class AskCounterfactual:
    """What would ``unit`` have done in rows start to stop - 1, had inputs been others? As ``Fit.counterfactual``."""

    unit: str
    do: Mapping[str, Any]
    start: int
    stop: int
    headline: str | None = None
    question: str = ""


@dataclass(frozen=True)
class AskAttribution:
    """Who moved ``unit`` in rows start to stop - 1? As ``Fit.attribute``."""

    unit: str
    start: int
    stop: int
    headline: str | None = None
    question: str = ""


@dataclass(frozen=True)
class AskRestoration:
    """What would move ``unit``'s outputs by ``target``? As ``Fit.restore``."""

    unit: str
    target: Mapping[str, float]
    using: Sequence[str] | Mapping[str, Sequence[str]]
    horizon: int = 50
    question: str = ""


Question = AskEffect | AskCounterfactual | AskAttribution | AskRestoration


def write_report(
    path: str | Path,
    fit: Fit,
    recording: Recording,
    questions: Sequence[Question] = (),
    *,
    title: str = "",
    lead: str = "",
    others: Mapping[str, Fit] | None = None,
    notes: Sequence[str] = (),
    level: float = 0.95,
) -> Report:
    """Ask a fit, and write answers, influence graph, checks, traffic and provenance to one HTML file.

    Parameters
    ----------
    path : where to; what is there is replaced when the whole page is written.
    recording : what counterfactuals and attributions are about; usually the fitted one.
    questions : `AskEffect`, `AskCounterfactual`, `AskAttribution`, `AskRestoration`, in any number. One that the data
        cannot answer is shown as refused, with reason and remedy; a wrong name or number raises.
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
    "The boiler's u1 +1: what happens to the turbine?"
    """
    content = compose(fit, recording, questions, title=title, lead=lead, others=others, notes=notes, level=level)
    write(content, path)
    return content


def compose(
    fit: Fit,
    recording: Recording,
    questions: Sequence[Question] = (),
    *,
    title: str = "",
    lead: str = "",
    others: Mapping[str, Fit] | None = None,
    notes: Sequence[str] = (),
    level: float = 0.95,
) -> Report:
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
            f"{len(units)} units, {recording.rows} rows. Each unit kept its measurements; a server learned how they "
            "act on each other from low-dimensional messages."
        ),
        whatifs=_of(told, WhatIf),
        units=units,
        trainings=tuple(trainings),
        notes=tuple(dict.fromkeys([*notes, *assumptions(fit.couplings is not None), *map(str, fit.caveats)])),
        provenance=provenance(fit, recording),
        worlds=_of(told, World),
        shares=_of(told, Shares),
        remedies=_of(told, Remedy),
        refusals=tuple(entry for entry in told if isinstance(entry, Refusal)),
        graph=graph,
        checks=check(fit, recording if fit.privacy is None else None).checks,
        facts=facts(fit, recording, graph),
        privacy=fit.privacy,
    )


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
        "Counterflow": fit.provenance.version,
        "method": fit.provenance.method,
        "seed": str(fit.provenance.seed),
        "rows": str(recording.rows),
        "data" if fit.privacy is None else "inputs": f"SHA-256 {own}",
    }
    return out if same else {**out, "fitted to other data": f"SHA-256 {fit.provenance.data_digest}"}


def graph_of(fit: Fit) -> InfluenceGraph | None:
    """The influence graph, where the fit has one."""
    if fit.couplings is None or fit.couplings.spread is None or len(fit.names) < 2 or fit.couplings.form == "free":
        return None
    return fit.graph()


def label_of(fit: Fit) -> str:
    """What answers of a fit are called: the default method speaks for Counterflow, others for themselves."""
    return "Counterflow" if fit.method == "sufficient" else f"method {fit.method!r}"


def _units(names: Sequence[str]) -> str:
    return listed([plain(name) for name in names]) if len(names) <= 3 else f"{len(names)} units"


def _of(told: Sequence[object], kind: type[Told]) -> tuple[Told, ...]:
    return tuple(entry for entry in told if isinstance(entry, kind))


def tell(
    fit: Fit,
    recording: Recording,
    question: Question,
    *,
    others: Mapping[str, Fit] | None = None,
    level: float = 0.95,
) -> WhatIf | World | Shares | Remedy | Refusal:
    """Ask one question: its answer as a report shows it, or the refusal."""
    if not isinstance(question, Question):
        raise OptionError(
            f"report: {question!r:.80} is no question; use AskEffect, AskCounterfactual, AskAttribution or "
            "AskRestoration"
        )
    clock = Clock.of(recording.dt)
    words = question.question or _words(fit, question, clock)
    try:
        if isinstance(question, AskEffect):
            return _effect(fit, question, words, clock, others or {}, level)
        if isinstance(question, AskCounterfactual):
            return _counterfactual(fit, recording, question, words, clock, level)
        if isinstance(question, AskAttribution):
            return _attribution(fit, recording, question, words, clock)
        return _restoration(fit, question, words, clock, level)
    except (UnidentifiedError, UnstableError) as error:
        return Refusal(words, str(error))


def _effect(fit: Fit, asked: AskEffect, words: str, clock: Clock, others: Mapping[str, Fit], level: float) -> WhatIf:
    answers = []
    for label, each in {label_of(fit): fit, **others}.items():
        found = each.effect(asked.cause, asked.effect, asked.change, asked.horizon, asked.duration, level)
        answers.append(Answer.of(label, found, short="" if each is fit else each.method))
    unit = fit.plant.unit(asked.effect)
    largest = int(np.abs(answers[0].mean).max(axis=0).argmax())
    headline = asked.headline or unit.output_names[largest]
    return WhatIf(words, unit.outputs, tuple(answers), headline, clock.step, clock.unit, asked.duration)


def _counterfactual(
    fit: Fit, recording: Recording, asked: AskCounterfactual, words: str, clock: Clock, level: float
) -> World:
    unit = fit.plant.unit(asked.unit)
    found = fit.counterfactual(recording, asked.do, asked.start, asked.stop, level)[unit.name]
    gap = np.nan_to_num(np.abs(found.mean - found.factual)).max(axis=0)
    headline = asked.headline or unit.output_names[int(gap.argmax())]
    return World(words, found, unit.outputs, headline, clock, changed=_changed(recording, asked))


def _attribution(fit: Fit, recording: Recording, asked: AskAttribution, words: str, clock: Clock) -> Shares:
    unit = fit.plant.unit(asked.unit)
    found = fit.attribute(recording, asked.unit, asked.start, asked.stop)
    if not np.isfinite(found.departure).any():
        raise DataError(f"report: nothing was measured of {asked.unit!r} in rows {asked.start} to {asked.stop - 1}")
    strongest = int(np.nan_to_num(np.abs(found.departure)).mean(axis=0).argmax())
    return Shares(words, found, unit.outputs, asked.headline or unit.output_names[strongest], clock)


def _restoration(fit: Fit, asked: AskRestoration, words: str, clock: Clock, level: float) -> Remedy:
    found = fit.restore(asked.unit, asked.target, asked.using, asked.horizon)
    change = {cause: dict(entries) for cause, entries in found.change.items()}
    way = fit.effect(list(change), asked.unit, change, asked.horizon, level=level)
    levers = {cause: fit.plant.unit(cause) for cause in change}
    return Remedy(words, found, fit.plant.unit(asked.unit), levers, way, clock)


def _changed(recording: Recording, asked: AskCounterfactual) -> tuple[int, int] | None:
    """Rows [first, last) in which inputs differ from the recorded ones."""
    moved = np.zeros(asked.stop - asked.start, bool)
    for name, given in asked.do.items():
        factual, names = recording[name].u[asked.start : asked.stop], recording[name].unit.input_names
        if isinstance(given, Mapping):
            for channel, value in given.items():
                moved |= factual[:, names.index(channel)] != np.asarray(value, np.float64)
        else:
            moved |= (factual != np.asarray(given, np.float64)).any(axis=1)
    rows = np.flatnonzero(moved)
    return (asked.start + int(rows[0]), asked.start + int(rows[-1]) + 1) if len(rows) else None


def _words(fit: Fit, asked: Question, clock: Clock) -> str:
    """A question in words, where the asker gave none."""
    if isinstance(asked, AskEffect):
        causes = [asked.cause] if isinstance(asked.cause, str) else list(asked.cause)
        single = isinstance(asked.cause, str)
        parts = [_move(fit.plant.unit(n), asked.change if single else asked.change.get(n), "{:+g}") for n in causes]
        held = f" for {clock.span(asked.duration)}" if asked.duration is not None else ""
        return f"The {listed(parts)}{held}: what happens to the {plain(asked.effect)}?"
    if isinstance(asked, AskCounterfactual):
        parts = [_move(fit.plant.unit(n), given, "at {:g}") for n, given in asked.do.items()]
        window = f"from {clock.at(asked.start)} to {clock.at(asked.stop - 1)}"
        return f"With the {listed(parts)} {window}: what would the {plain(asked.unit)} have done?"
    if isinstance(asked, AskAttribution):
        return f"Who moved the {plain(asked.unit)} from {clock.at(asked.start)} to {clock.at(asked.stop - 1)}?"
    unit = fit.plant.unit(asked.unit)
    goals = []
    for name, value in asked.target.items():
        measure = {channel.name: channel.unit for channel in unit.outputs}.get(name, "")
        goals.append(f"{name} by {value:+g} {measure}".rstrip())
    return f"What would move the {plain(asked.unit)}'s {listed(goals)} within {clock.span(asked.horizon)}?"


def _move(unit: Unit, given: object, form: str) -> str:
    owner = f"{plain(unit.name)}'s"
    if not isinstance(given, Mapping):
        return f"{owner} inputs changed"
    measures = {channel.name: channel.unit for channel in unit.inputs}
    parts = []
    for name, value in given.items():
        number = isinstance(value, (int, float, np.number))
        told = f"{form.format(value)} {measures.get(name, '')}".rstrip() if number else "changed"
        parts.append(f"{name} {told}")
    return f"{owner} {listed(parts)}" if parts else f"{owner} inputs unchanged"
