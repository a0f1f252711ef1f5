"""The report: for every experiment the paper's claims beside ours, with verdicts, figures and choices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path

from counterflow._version import __version__
from counterflow.experiments import drawing
from counterflow.experiments.drawing import Drawing
from counterflow.experiments.experiment import VERDICTS, Claim, Experiment, Outcome, Table, Verdict
from counterflow.experiments.judging import EXPLAINED, counted
from counterflow.experiments.store import put

_MARKS: dict[Verdict, str] = {
    "agrees": "good",
    "agrees in order of magnitude": "good",
    "does not hold": "fail",
    "undecided": "",
    "not comparable": "",
    "claim without number": "",
    "beyond the paper": "",
}
_STYLE = """
:root { --blue: #0072b2; }
@media (prefers-color-scheme: dark) { :root { --blue: #4aa8e0; } }
.verdict { display: inline-block; white-space: nowrap; padding: 0.05rem 0.6rem; }
.claims td { text-align: left; padding-right: 1rem; }
.claims th { text-align: left; padding-right: 1rem; }
.claims td:first-child { font-weight: 600; min-width: 9rem; }
.claims td:nth-child(2), .claims td:nth-child(3) { min-width: 11rem; }
.claims td.why { color: var(--muted); font-size: 0.87rem; min-width: 15rem; }
.captioned { margin: 1.4rem 0 0.4rem; }
.captioned figcaption { font-weight: 400; color: var(--muted); margin: 0.4rem 0 0; max-width: 52rem; }
.captioned .narrow svg { margin: 0 auto; }
ul.plain { margin: 0.4rem 0 0; padding-left: 1.2rem; max-width: 52rem; font-size: 0.92rem; }
a { color: var(--accent); }
@media (max-width: 40rem) {
  .verdict { white-space: normal; }
  .claims td.why { min-width: 0; }
  section .facts { grid-template-columns: 1fr; }
}
"""


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
    claims = experiment.claims(outcomes)
    return Chapter(
        experiment,
        claims,
        experiment.figures(outcomes),
        len(outcomes),
        sum(outcome.seconds for outcome in outcomes),
        experiment.tables(outcomes),
        experiment.text(outcomes, claims),
        experiment.options(outcomes),
    )


def write(chapters: Sequence[Chapter], folder: Path, quick: bool) -> tuple[Path, Path]:
    """Write ``report.html``, ``report.md`` and ``figures/``; the first two are returned."""
    drawn: dict[str, bytes] = {}
    for each in chapters:
        for name, figure in each.drawings.items():
            made = drawing.files(figure)
            drawn[name] = made["svg"]
            for ending, content in made.items():
                put(folder / "figures" / f"{name}.{ending}", content)
    page, text = folder / "report.html", folder / "report.md"
    put(page, html(chapters, quick, drawn).encode())
    put(text, markdown(chapters, quick).encode())
    return page, text


def counts(chapters: Iterable[Chapter]) -> dict[Verdict, int]:
    """How often each verdict was given; claims of the same fact count once if they have the same verdict."""
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
    once, singly = (
        "; ".join(f"{fact}: {len(v)} claims" for fact, v in shared.items() if (len(counted(v)) == 1) == same)
        for same in (True, False)
    )
    rule = ""
    if shared:
        rule = " Claims about one fact (one quantity, or one sentence) are counted once if they have the same verdict"
        rule += f" ({once})" if once else ""
        rule += f", and singly if they differ ({singly})." if singly else ", and singly if they differ."
    return f"Verdicts: {told}.{rule} {EXPLAINED} 'Beyond the paper' are measurements of ours on which it says nothing."


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
    lines = ["# The paper, reproduced", "", _lead(quick), "", _summary(chapters), "", f"Counterflow {__version__}.", ""]
    lines += ["| experiment | claim | verdict | fact, if shared |", "|---|---|---|---|"]
    for each in chapters:
        link = f"[{each.experiment.name}](#{_anchor(each)})"
        lines += [f"| {link} | {_cell(c.subject)} | {_strong(c.verdict)} | {c.fact} |" for c in each.claims]
    for each in chapters:
        shown = each.experiment
        lines += ["", f"## {shown.title}", "", shown.question, ""]
        lines += ["| | the paper | ours | verdict | why |", "|---|---|---|---|---|"]
        for c in each.claims:
            cells = (c.subject, c.paper, c.ours, _strong(c.verdict), c.why)
            lines.append(f"| {' | '.join(map(_cell, cells))} |")
        lines += ["", each.text]
        for table in each.tables:
            lines += [
                "",
                table.caption,
                "",
                f"| {' | '.join(map(_cell, table.head))} |",
                "|---" * len(table.head) + "|",
            ]
            lines += [f"| {' | '.join(map(_cell, row))} |" for row in table.rows]
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


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _strong(verdict: Verdict) -> str:
    return f"**{verdict}**" if _MARKS[verdict] == "fail" else verdict


# ---- HTML


def html(chapters: Sequence[Chapter], quick: bool, drawn: Mapping[str, bytes]) -> str:
    """The report as one page that refers to nothing outside itself; ``drawn`` are the figures as SVG, by name."""
    style = files("counterflow.report").joinpath("page.css").read_text(encoding="utf-8")
    facts: dict[str, str] = {verdict: str(count) for verdict, count in counts(chapters).items() if count}
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta name="generator" content="Counterflow {escape(__version__)}">',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            "<title>The paper, reproduced</title>",
            f"<style>\n{style}{_STYLE}</style>",
            "</head>",
            "<body>",
            "<main>",
            "<h1>The paper, reproduced</h1>",
            f'<p class="lead">{escape(_lead(quick))}</p>',
            _definitions({**facts, "Counterflow": __version__}, "facts"),
            f'<p class="aside">{escape(_summary(chapters))}</p>',
            _overview(chapters),
            *(_section(each, number, quick, drawn) for number, each in enumerate(chapters)),
            "</main>",
            "</body>",
            "</html>",
            "",
        ]
    )


def _overview(chapters: Sequence[Chapter]) -> str:
    rows = "".join(
        f"<tr><td>{_link(each) if k == 0 else ''}</td>"
        f'<td class="text">{escape(claim.subject)}</td><td class="text">{_mark(claim.verdict)}</td>'
        f'<td class="text">{escape(claim.fact)}</td></tr>'
        for each in chapters
        for k, claim in enumerate(each.claims)
    )
    return f"""<section><h2>All verdicts</h2>
<div class="scroll"><table class="stack"><thead><tr><th>experiment</th><th class="text">claim</th>
<th class="text">verdict</th><th class="text">fact, if shared</th></tr></thead><tbody>{rows}</tbody></table></div>
</section>"""


def _link(each: Chapter) -> str:
    return f'<a href="#{each.experiment.name}">{escape(each.experiment.name)}</a>'


def _section(each: Chapter, number: int, quick: bool, drawn: Mapping[str, bytes]) -> str:
    shown = each.experiment
    rows = "".join(
        f'<tr><td>{escape(c.subject)}</td><td data-label="paper">{escape(c.paper)}</td>'
        f'<td data-label="ours">{escape(c.ours)}</td><td>{_mark(c.verdict)}</td>'
        f'<td class="why" data-label="why">{escape(c.why)}</td></tr>'
        for c in each.claims
    )
    figures = "".join(
        _figure(figure, drawn[name], f"e{number}f{k}") for k, (name, figure) in enumerate(each.drawings.items())
    )
    choices = "".join(f"<li>{escape(choice)}</li>" for choice in shown.choices)
    return f"""<section id="{shown.name}">
<p class="kicker">{escape(shown.name)}</p>
<h2>{escape(shown.title)}</h2>
<p class="answer">{escape(shown.question)}</p>
<div class="scroll"><table class="stack claims"><thead><tr><th></th><th>the paper</th><th>ours</th><th>verdict</th>
<th>why</th></tr></thead><tbody>{rows}</tbody></table></div>
<p class="aside">{escape(each.text)}</p>
{"".join(map(_table, each.tables))}
{figures}
<details><summary>Our choices where the paper is silent</summary><ul class="plain">{choices}</ul></details>
{_definitions(_facts(each, quick), "facts")}
</section>"""


def _figure(figure: Drawing, svg: bytes, prefix: str) -> str:
    wide = drawing.inline(svg, f"{prefix}w-", figure.caption)
    narrow = drawing.inline(drawing.narrow_svg(figure), f"{prefix}n-", figure.caption)
    return f"""<figure class="captioned"><div class="wide">{wide}</div><div class="narrow">{narrow}</div>
<figcaption>{escape(figure.caption)}</figcaption></figure>"""


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in table.head)
    rows = "".join(
        f'<tr><td class="text">{escape(row[0])}</td>'
        + "".join(
            f'<td data-label="{escape(label)}">{escape(cell)}</td>'
            for label, cell in zip(table.head[1:], row[1:], strict=True)
        )
        + "</tr>"
        for row in table.rows
    )
    return f"""<figure class="captioned"><div class="scroll"><table class="stack"><thead><tr>{head}</tr></thead>
<tbody>{rows}</tbody></table></div><figcaption>{escape(table.caption)}</figcaption></figure>"""


def _mark(verdict: Verdict) -> str:
    return f'<span class="mark verdict {_MARKS[verdict]}">{escape(verdict)}</span>'


def _definitions(facts: Mapping[str, str], kind: str) -> str:
    entries = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.items())
    return f'<dl class="{kind}">{entries}</dl>'
