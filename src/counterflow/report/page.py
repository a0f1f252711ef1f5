"""The page of a report: what the template ``report.html.j2`` shows, made of a ``Report``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from counterflow.caveats import CAUTION, CLEAR, VERDICTS, Caveat, Verdict, verdict_of, weighing
from counterflow.checks.kinds import KINDS, ORDER
from counterflow.checks.verdicts import Check, Checks
from counterflow.files import write_whole
from counterflow.questions.numbers import channel_label
from counterflow.report import figures, graph, templates
from counterflow.report.content import Refusal, Report, Section, Told, WhatIf, plain, rounded, singular
from counterflow.report.templates import Svg
from counterflow.wording import quantity

if TYPE_CHECKING:
    from counterflow.learning.influence import InfluenceGraph
    from counterflow.plant import Channel

MOST_NOTES = 3  # under a question, before they are folded away
MOST_PAIRS = 8  # of an influence graph that can be read as a sentence
WIDE, NARROW, SMALL = (9.0, 3.3), (4.0, 3.0), (3.4, 2.3)  # inches of a drawing: on a page, on a telephone, of many

Entry = tuple[str, str, str]  # of a legend: class of the mark, CSS variable of its colour, text


@dataclass(frozen=True)
class Question:
    """What the page shows of one question; what is empty is left out.

    ``notes`` are told here in full; ``noted_under`` are questions whose notes apply here, too.
    """

    told: Section
    legend: Sequence[Entry] = ()
    drawings: Sequence[tuple[str, Svg, Svg]] = ()
    others: Sequence[Svg] | None = None
    opened: bool = False
    effects: Any = None
    tables: Sequence[tuple[str, Sequence[str], Sequence[Sequence[str]], Sequence[str]]] = ()
    subject: str = ""
    summed: str = ""
    bars: Sequence[dict[str, Any]] = ()
    notes: Sequence[str | Caveat] = ()
    noted_under: Sequence[int] = ()
    verdict: Verdict | None = None  # the heaviest of its caveats; None of a question that was refused


def write(report: Report | str, path: str | Path) -> None:
    """Write a report (or a page already rendered) to ``path``, replacing what is there only when all is written."""
    text = render(report) if isinstance(report, Report) else report
    write_whole(Path(path), text.encode())


def render(report: Report) -> str:
    """The whole page as one HTML text that refers to nothing outside itself."""
    curves = figures.training_curves(report.trainings, [unit.name for unit in report.units], "t")
    return templates.render(
        "report.html.j2",
        title=report.title,
        lead=report.lead,
        report=report,
        questions=list(_questions(report)),
        most_notes=MOST_NOTES,
        verdicts=VERDICTS,
        graph=_graph(report.graph) if report.graph is not None else None,
        worst=Checks(report.checks).verdict if report.checks else "",
        cards=[_card(name, f"k{k}-", report.checks) for k, name in enumerate(KINDS) if _of_kind(name, report.checks)],
        measured=_measured,
        units=[(plain(u.name), u.states, _listed(u.inputs), _listed(getattr(u, "outputs", ()))) for u in report.units],
        promises=report.privacy.sentences() if report.privacy else (),
        budgets=_budgets(report),
        trainings=[(each.label, each.traffic, each.status) for each in report.trainings],
        curves=curves,
        curves_legend=_curves_legend(report) if curves else (),
    )


def _questions(report: Report) -> Iterator[Question]:
    """Every question with its number; a caveat is told in full where it first applies."""
    shown: dict[type[Section], Callable[[Any, str], Question]] = {WhatIf: _whatif, Told: _told}
    first: dict[str | Caveat, int] = {}
    for number, told in enumerate(report.sections, start=1):
        view = shown[type(told)](told, f"q{number - 1}") if type(told) in shown else Question(told)
        weighed = weighing(note for note in told.caveats if isinstance(note, Caveat))
        notes: tuple[str | Caveat, ...] = (*weighed, *(note for note in told.caveats if not isinstance(note, Caveat)))
        places = {note: first.setdefault(note, number) for note in notes}
        verdict = verdict_of(weighed)
        if verdict == CLEAR and Checks(report.checks).of("fail"):  # in the rows of this page
            verdict = CAUTION
        yield replace(
            view,
            notes=[note for note, place in places.items() if place == number],
            noted_under=sorted(set(places.values()) - {number}),
            opened=number == 1 and isinstance(told, WhatIf),
            verdict=None if isinstance(told, Refusal) else verdict,
        )


def _whatif(told: WhatIf, prefix: str) -> Question:
    legend = [] if told.truth is None else [("dashed", "--truth", told.truth.label)]
    for k, answer in enumerate(told.estimates):
        band = figures.banded(answer.lower is not None, answer.level)
        legend.append(("", f"--series-{k % len(figures.SERIES)}", answer.label + band))
    if told.duration is not None:
        legend.append(("block", "--shade", "while the change is held"))

    def row(k: int) -> dict[str, Any]:
        shown = [[told.quantity(a, at, k).split()[0] for a in told.answers] for at in (0, told.peak_row(k))]
        name, headline = channel_label(told.channels[k]), k == told.headline_index
        return {"channel": name, "headline": headline, "first": shown[0], "largest": shown[1]}

    effects = {
        "labels": [answer.short for answer in told.answers],
        "first": f"{told.step:g} {singular(told.step_unit, told.step)}",
        "rows": [row(k) for k in range(len(told.channels))],
    }
    found = next((answer.effect for answer in told.estimates if answer.effect is not None), None)
    summed = "" if found is None else found.window().sentence(told.headline)
    at, draw = told.headline_index, figures.trajectories
    others = _small(told, draw, prefix, [k for k in range(len(told.channels)) if k != at])
    drawings = _drawings(told, draw, prefix, [at], "Effect on ")
    return Question(told, legend, drawings, others, effects=effects, summed=summed)


def _told(told: Told, prefix: str) -> Question:
    answer, parts = told.answer, told.answer.parts(told.headline_index)
    labels = {name: label for name, label, _ in parts}
    legend: list[Entry] = []
    lines = answer.rows.lines(told.drawn[0], "") if told.drawn else []
    for line in sorted(lines, key=lambda line: line.role != "whole"):
        kind, colour, _ = figures.mark(line)
        name = getattr(answer, "answered", "expected") if line.role == "answer" else labels.get(line.name, line.name)
        legend.append(
            (kind, figures.VARIABLES[colour], name + figures.banded(line.lower is not None, answer.rows.level))
        )
    if told.truth is not None:
        legend.append(("dashed", "--truth", "simulator's twin run (the truth)"))
    if any(told.aims(k) for k in told.drawn):
        legend.append(("dashed", "--fact", "wanted"))
    if told.changed is not None:
        legend.append(("block", "--shade", "while inputs differ"))
    before = "Change of " if answer.rows is not answer else ""
    others = None if told.others is None else _small(told, figures.told, prefix, told.others)
    tables = [(table.title, table.columns, table.rows, table.columns[: table.left]) for table in answer.tables()]
    colours = {line.name: figures.VARIABLES[figures.mark(line)[1]] for line in lines}
    return Question(
        told, legend, _drawings(told, figures.told, prefix, told.drawn, before), others, tables=tables,
        subject=channel_label(told.channels[told.headline_index]), bars=_bars(told, parts, colours),
        summed=answer.window().sentence(told.headline) if answer.about.request.windowed else "",
    )  # fmt: skip


def _bars(told: Told, parts: Sequence[tuple[str, str, float]], colours: Mapping[str, str]) -> list[dict[str, Any]]:
    largest, unit = max((abs(value) for *_, value in parts), default=0.0), told.channels[told.headline_index].unit
    bars = []
    for name, label, value in parts:
        width = 50 * abs(value) / largest if largest else 0.0
        left, size = 50.0 if value >= 0 else 50 - width, quantity(rounded(value, largest), unit)
        bars.append({"label": label, "left": left, "width": width, "colour": colours[name], "size": size})
    return bars


def _drawings(
    told: WhatIf | Told, draw: Callable[..., Svg], prefix: str, channels: Sequence[int], before: str
) -> list[tuple[str, Svg, Svg]]:
    """Channels that are drawn large: caption, for a page, for a telephone."""
    out = []
    for k in channels:
        wide, narrow = (
            draw(told, k, f"{prefix}{x}{k}-", size, title=False) for x, size in (("w", WIDE), ("n", NARROW))
        )
        out.append((before + channel_label(told.channels[k]), wide, narrow))
    return out


def _small(told: WhatIf | Told, draw: Callable[..., Svg], prefix: str, channels: Sequence[int]) -> list[Svg]:
    return [draw(told, k, f"{prefix}c{k}-", SMALL) for k in channels]


def _graph(found: InfluenceGraph) -> dict[str, Any]:
    kinds, hidden = [graph.kind_of(edge) for edge in found], graph.left_out(found)
    words = graph.description(found)
    if len(kinds) - kinds.count(graph.NONE) - kinds.count(graph.RULED_OUT) > MOST_PAIRS:
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
                graph.kind_of(edge),
                *(f"{value:.2g}" for value in (edge.q_value, edge.direct_strength, edge.total_strength)),
            )
            for edge in sorted(found, key=lambda e: (not e.direct, -e.direct_strength))
        ],
    }


def _of_kind(name: str, checks: Sequence[Check]) -> list[Check]:
    return [check for check in checks if check.name == name]


def _card(name: str, prefix: str, checks: Sequence[Check]) -> dict[str, Any]:
    """One kind of check: its worst verdict, its picture, what does not pass, worst first, and the rest."""
    found = _of_kind(name, checks)
    return {
        "worst": Checks(tuple(found)).verdict,
        "title": KINDS[name],
        "drawing": figures.check_panel(name, found, prefix),
        "others": sorted((c for c in found if c.verdict != "pass"), key=lambda c: -ORDER.index(c.verdict)),
        "passed": [check for check in found if check.verdict == "pass"],
    }


def _measured(check: Check) -> str:
    return f" ({check.number:.2g} {check.unit_of_number})" if math.isfinite(check.number) else ""


def _budgets(report: Report) -> list[tuple[str, ...]]:
    rows = []
    for name, unit in report.privacy.units.items() if report.privacy else ():
        spent = "not kept" if unit.budget is None or unit.spent is None else f"{unit.spent:.3g} of {unit.budget[0]:.3g}"
        rows.append((plain(name), *(f"{value:.3g}" for value in (unit.epsilon, unit.clip, unit.sigma)), spent))
    return rows


def _curves_legend(report: Report) -> list[Entry]:
    longest, others = figures.longest_and_others(report.trainings)
    entries = [("", "--series-0", longest.label)]
    entries += [("dashed", f"--series-{k}", f"{each.label}, where it ended") for k, each in enumerate(others, start=1)]
    colours = [f"--series-{(k + 3) % len(figures.SERIES)}" for k in range(len(report.units))]
    return entries + [("", colour, plain(unit.name)) for colour, unit in zip(colours, report.units, strict=True)]


def _listed(channels: Sequence[Channel]) -> str:
    return ", ".join(map(channel_label, channels))
