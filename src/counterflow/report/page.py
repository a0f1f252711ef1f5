"""The page of a report: what the template ``report.html.j2`` shows, made of a ``Report``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterflow.caveats import CAUTION, CLEAR, VERDICTS, Caveat, verdict_of, weighing
from counterflow.checks.verdicts import ORDER as VERDICT_ORDER
from counterflow.checks.verdicts import Check, Checks, kinds
from counterflow.files import write_whole
from counterflow.questions.numbers import channel_label
from counterflow.report import figures, graph, templates
from counterflow.report.content import TRUTH, Refusal, Report, Told, plain, rounded
from counterflow.wording import quantity

if TYPE_CHECKING:
    from counterflow.learning.influence import InfluenceGraph
    from counterflow.plant import Channel

MOST_NOTES = 3  # under a question, before they are folded away
MOST_PAIRS = 8  # of an influence graph that can be read as a sentence
WIDE, NARROW, SMALL = (9.0, 3.3), (4.0, 3.0), (3.4, 2.3)  # inches of a drawing: on a page, on a telephone, of many

Entry = tuple[str, str, str]  # of a legend: class of the mark, CSS variable of its colour, text
View = dict[str, Any]  # what the template shows


def write(report: Report | str, path: str | Path) -> None:
    """Write a report (or a page already rendered) to ``path``, replacing what is there only when all is written."""
    text = render(report) if isinstance(report, Report) else report
    write_whole(Path(path), text.encode())


def render(report: Report) -> str:
    """The whole page as one HTML text that refers to nothing outside itself."""
    return templates.render(
        "report.html.j2",
        title=report.title,
        lead=report.lead,
        report=report,
        notes=_notes(report),
        most_notes=MOST_NOTES,
        verdicts=VERDICTS,
        draw=figures.told,
        sizes={"wide": WIDE, "narrow": NARROW, "small": SMALL},
        legend_of=_legend,
        bars_of=_bars,
        channel_label=channel_label,
        graph=_graph(report.graph) if report.graph is not None else None,
        worst_of=lambda checks: Checks(tuple(checks)).verdict,
        worst_first=lambda checks: sorted(checks, key=lambda check: -VERDICT_ORDER.index(check.verdict)),
        kinds=kinds(),
        panel=figures.check_panel,
        measured=_measured,
        units=[(plain(u.name), u.states, _listed(u.inputs), _listed(getattr(u, "outputs", ()))) for u in report.units],
        promises=report.privacy.sentences() if report.privacy else (),
        budgets=_budgets(report),
        trainings=[(label, fit.traffic, fit.status) for label, fit in report.fits.items()],
        curves=figures.training_curves(report.fits, "t"),
    )


def _notes(report: Report) -> list[View]:
    """What goes with each question; a caveat is told in full where it first applies."""
    out, first = [], dict[Caveat, int]()
    failing = bool(Checks(report.checks).of("fail"))  # in the rows of this page
    for number, told in enumerate(report.sections, start=1):
        notes = weighing(told.caveats)
        places = {note: first.setdefault(note, number) for note in notes}
        verdict = verdict_of(notes)
        out.append({
            "here": [note for note, place in places.items() if place == number],
            "under": sorted(set(places.values()) - {number}),
            "verdict": None if isinstance(told, Refusal) else CAUTION if verdict == CLEAR and failing else verdict,
        })  # fmt: skip
    return out


def _legend(told: Told) -> list[Entry]:
    """Of the lines of all drawings of an answer."""
    answer, found = told.answer, list[Entry]()
    labels = {name: label for name, label, _ in answer.parts(told.headline_index)}
    lines = figures.lines_of(told, told.drawn[0]) if told.drawn else []
    for line in sorted(lines, key=lambda line: line.role != "whole"):
        kind, colour, _ = figures.mark(line)
        name = told.label if line.role == "answer" else labels.get(line.name, line.name)
        found.append((kind, figures.VARIABLES[colour], name + figures.banded(line, answer.rows.level)))
    if told.truth is not None:
        found.append(("dashed", "--truth", TRUTH))
    if any(told.aims(k) for k in told.drawn):
        found.append(("dashed", "--fact", "wanted"))
    if told.drawn and answer.rows.changed(answer.rows.timeline.axis().places):
        found.append(("block", "--shade", "while inputs differ"))
    return found


def _bars(told: Told) -> list[View]:
    """What the parts of an answer, where it has some, have contributed on average."""
    parts = told.answer.parts(told.headline_index)
    largest, unit = max((abs(value) for *_, value in parts), default=0.0), told.channels[told.headline_index].unit
    lines = told.answer.rows.lines(told.drawn[0], "") if parts else []
    colours = {line.name: figures.VARIABLES[figures.mark(line)[1]] for line in lines}
    bars = []
    for name, label, value in parts:
        width = 50 * abs(value) / largest if largest else 0.0
        left, size = 50.0 if value >= 0 else 50 - width, quantity(rounded(value, largest), unit)
        bars.append({"label": label, "left": left, "width": width, "colour": colours[name], "size": size})
    return bars


def _graph(found: InfluenceGraph) -> View:
    kinds, hidden = [edge.kind for edge in found], graph.left_out(found)
    words = graph.description(found)
    if sum(kind in graph.LEGEND for kind in kinds) > MOST_PAIRS:
        words = f"{kinds.count(graph.DIRECT)} of {len(kinds)} pairs of units act on each other directly"
        words += f", {kinds.count(graph.THROUGH)} only through others."
    shown = set(kinds) - ({graph.THROUGH} if hidden else set())
    return {
        "words": words,
        "rate": f"{100 * found.rate:g} %",
        "hidden": hidden,
        "legend": [entry for kind, entry in graph.LEGEND.items() if kind in shown],
        "wide": graph.drawing(found, "gw-"),
        "narrow": graph.drawing(found, "gn-", narrow=True),
        "rows": [
            (
                f"{plain(edge.cause)} → {plain(edge.effect)}",
                edge.kind,
                *(f"{value:.2g}" for value in (edge.q_value, edge.direct_strength, edge.total_strength)),
            )
            for edge in sorted(found, key=lambda e: (not e.direct, -e.direct_strength))
        ],
    }


def _measured(check: Check) -> str:
    return f" ({check.number:.2g} {check.unit_of_number})" if math.isfinite(check.number) else ""


def _budgets(report: Report) -> list[tuple[str, ...]]:
    rows = []
    for name, unit in report.privacy.units.items() if report.privacy else ():
        spent = "not kept" if unit.budget is None or unit.spent is None else f"{unit.spent:.3g} of {unit.budget[0]:.3g}"
        rows.append((plain(name), *(f"{value:.3g}" for value in (unit.epsilon, unit.clip, unit.sigma)), spent))
    return rows


def _listed(channels: Sequence[Channel]) -> str:
    return ", ".join(map(channel_label, channels))
