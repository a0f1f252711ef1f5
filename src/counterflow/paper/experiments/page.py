"""The report: for every experiment the paper's claims beside ours, with verdicts, figures and choices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase

from counterflow._version import __version__
from counterflow.paper.experiments import figures
from counterflow.paper.experiments.experiment import VERDICTS, Claim, Experiment, Outcome, Table, Verdict
from counterflow.paper.experiments.figures import Drawing
from counterflow.paper.experiments.store import put
from counterflow.paper.experiments.verdicts import counted
from counterflow.paper.experiments.wording import EXPLAINED
from counterflow.report import templates

TITLE = "The paper, reproduced"
_MARKS: dict[Verdict, str] = {
    "agrees": "good",
    "agrees in order of magnitude": "good",
    "does not hold": "fail",
    "undecided": "",
    "not comparable": "",
    "claim without number": "",
    "beyond the paper": "",
}


# the paper's figures and tables: number, panels, what they show, and the experiment that has them
PAPER: tuple[tuple[str, str, str, str], ...] = (
    ("Fig. 1", "", "the computation inside client m", "synthetic"),
    ("Fig. 2", "a-c", "global loss; losses of clients 1 and 2", "synthetic"),
    ("Fig. 3", "a-c", "D at the server; δ_d of clients 1 and 2", "disentanglement"),
    ("Fig. 4", "a-b", "prediction error on validation data, clients 1 and 2", "validation"),
    ("Fig. 5", "a-f", "PM against AL: L_s, D, L_1,a, L_2,a, δd_1, δd_2", "lagrangian"),
    ("Table 1", "", "L_s and D for D_m = 16, 32, 64, 128", "scalability"),
    ("Table 2", "", "L_s and D for M = 2, 4, 8, 16", "scalability"),
    ("Fig. 6", "a-c", "transfer function: poles, zeros, singular values", "transfer-function"),
    ("Fig. 7", "a-j", "HAI: L_s, D, L_m,a and δd_m of four clients", "real-plants"),
    ("Fig. 8", "a-n", "SWaT: L_s, D, L_m,a and δd_m of six clients", "real-plants"),
)


@dataclass(frozen=True, eq=False)
class Chapter:
    """What one experiment has to say."""

    experiment: Experiment
    claims: tuple[Claim, ...]
    drawings: Mapping[str, Drawing]
    tasks: int
    seconds: float
    tables: tuple[Table, ...] = ()
    text: str = ""
    options: tuple[str, ...] = ()


def chapter(experiment: Experiment, outcomes: Sequence[Outcome]) -> Chapter:
    """Claims and figures of one experiment, from the outcomes of its tasks."""
    claims, seconds = experiment.claims(outcomes), sum(outcome.seconds for outcome in outcomes)
    drawings, tables = experiment.figures(outcomes), experiment.tables(outcomes)
    text, options = experiment.text(outcomes, claims), experiment.options(outcomes)
    return Chapter(experiment, claims, drawings, len(outcomes), seconds, tables, text, options)


def write(chapters: Sequence[Chapter], folder: Path, quick: bool) -> tuple[Path, Path]:
    """Write ``report.html``, ``report.md`` and ``figures/``; the first two are returned."""
    drawn: dict[str, bytes] = {}
    for each in chapters:
        for name, figure in each.drawings.items():
            made = figures.files(figure)
            drawn[name] = made["svg"]
            for ending, content in made.items():
                put(folder / "figures" / f"{name}.{ending}", content)
    page, text = folder / "report.html", folder / "report.md"
    put(page, html(chapters, quick, drawn).encode())
    put(text, markdown(chapters, quick).encode())
    return page, text


def counts(chapters: Iterable[Chapter]) -> dict[Verdict, int]:
    """How often each verdict was given; of claims of the same fact or cause each kind of verdict counts once."""
    claims = [claim for each in chapters for claim in each.claims]
    found = Counter(claim.verdict for claim in claims if not claim.fact)
    for verdicts in _by_fact(claims).values():
        found.update(counted(verdicts))
    return {verdict: found[verdict] for verdict in VERDICTS}


def _by_fact(claims: Iterable[Claim]) -> dict[str, list[Verdict]]:
    facts: dict[str, list[Verdict]] = {}
    for claim in claims:
        if claim.fact:
            facts.setdefault(claim.fact, []).append(claim.verdict)
    return facts


def _summary(chapters: Sequence[Chapter]) -> str:
    """Verdicts by kind, and which claims are one fact."""
    claims = [claim for each in chapters for claim in each.claims]
    shared = {fact: verdicts for fact, verdicts in _by_fact(claims).items() if len(verdicts) > 1}
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts(chapters).items() if count)
    rule = ""
    if shared:
        parts = "; ".join(f"{fact}: {len(v)} claims" for fact, v in shared.items())
        rule = " Claims about one fact, or with one cause, count once for each kind of verdict among them"
        rule += f" ({parts})."
    return f"Verdicts: {told}.{rule} {EXPLAINED} 'Beyond the paper' are measurements of ours on which it says nothing."


def paper_map(chapters: Sequence[Chapter]) -> Table:
    """Which of our figures and tables is which of the paper's; panels have the paper's letters."""
    rows = []
    for number, panels, shows, name in PAPER:
        here = next((each for each in chapters if each.experiment.name == name), None)
        found = "not in this report"
        if here is not None:
            drawn = {drawing.paper: (key, drawing) for key, drawing in here.drawings.items() if drawing.paper}
            if number in drawn:
                key, drawing = drawn[number]
                last = len(drawing.panels)
                found = f"{name}: figure {key}" + (f", panels a-{ascii_lowercase[last - 1]}" if last > 1 else "")
            elif any(number in table.paper for table in here.tables):
                found = f"{name}: table, and figure {name}"
        rows.append((number, panels, shows, found))
    told = "The paper's figures and tables, and where they are made again. Panels have the paper's letters and order."
    return Table(told, ("in the paper", "panels", "shows", "here"), tuple(rows))


def _lead(quick: bool) -> str:
    kind = (
        "This is a quick run: fewer repetitions and rounds, to look rather than to judge."
        if quick
        else "This is the full run, with the paper's 10 Monte-Carlo repetitions."
    )
    return (
        "Every figure and table of the paper made again, and its claims without one put to the test. "
        f"{kind} Verdicts are computed from the results by the rule that stands beside them."
    )


def _facts(each: Chapter, quick: bool) -> dict[str, str]:
    return {
        "In the paper": each.experiment.paper,
        "Tasks": f"{each.tasks}, {each.seconds:.3g} s of one core",
        "Again": " ".join(["counterflow reproduce", each.experiment.name, *["--quick"] * quick, *each.options]),
    }


# ---- Markdown


def markdown(chapters: Sequence[Chapter], quick: bool) -> str:
    """The report in Markdown, with figures in the folder beside it."""
    lines = [f"# {TITLE}", "", _lead(quick), "", _summary(chapters), "", f"Counterflow {__version__}.", ""]
    figure_map = paper_map(chapters)
    lines += [figure_map.caption, "", _row(figure_map.head), "|---" * len(figure_map.head) + "|"]
    lines += [*map(_row, figure_map.rows), ""]
    lines += ["| experiment | claim | verdict | fact or cause, if shared |", "|---|---|---|---|"]
    for each in chapters:
        link = f"[{each.experiment.name}](#{_anchor(each)})"
        lines += [f"| {link} | {_cell(c.subject)} | {_strong(c.verdict)} | {c.fact} |" for c in each.claims]
    for each in chapters:
        shown = each.experiment
        lines += ["", f"## {shown.title}", "", shown.question, ""]
        lines += ["| | the paper | ours | verdict | why |", "|---|---|---|---|---|"]
        for c in each.claims:
            lines.append(_row((c.subject, c.paper, c.ours, _strong(c.verdict), c.why)))
        lines += ["", each.text]
        for table in each.tables:
            lines += ["", table.caption, "", _row(table.head), "|---" * len(table.head) + "|", *map(_row, table.rows)]
        for name, figure in each.drawings.items():
            lines += ["", f"![{_cell(figure.caption)}](figures/{name}.png)", ""]
            lines.append(f"*{figure.caption}* [SVG](figures/{name}.svg), [PDF](figures/{name}.pdf)")
        lines += ["", "Our choices where the paper is silent:", ""]
        lines += [f"- {choice}" for choice in shown.choices]
        lines += ["", *(f"- {key}: {value}" for key, value in _facts(each, quick).items())]
    return "\n".join([*lines, ""])


def _anchor(each: Chapter) -> str:
    kept = "".join(c for c in each.experiment.title.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _strong(verdict: Verdict) -> str:
    return f"**{verdict}**" if _MARKS[verdict] == "fail" else verdict


# ---- HTML


def html(chapters: Sequence[Chapter], quick: bool, drawn: Mapping[str, bytes]) -> str:
    """The report as one page that refers to nothing outside itself; ``drawn`` are the figures as SVG, by name."""
    sections = []
    for number, each in enumerate(chapters):
        pictures = []
        for k, (name, figure) in enumerate(each.drawings.items()):
            wide = figures.svg(drawn[name], f"e{number}f{k}w-", figure.caption)
            narrow = figures.svg(figures.narrow_svg(figure), f"e{number}f{k}n-", figure.caption)
            pictures.append((figure.caption, wide, narrow))
        sections.append({"chapter": each, "pictures": pictures, "facts": _facts(each, quick)})
    return templates.render(
        "reproduction.html.j2",
        title=TITLE,
        lead=_lead(quick),
        counts={verdict: str(count) for verdict, count in counts(chapters).items() if count},
        summary=_summary(chapters),
        figures=paper_map(chapters),
        sections=sections,
        marks=_MARKS,
    )
