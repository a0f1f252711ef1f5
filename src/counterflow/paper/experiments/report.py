"""The report of a folder: for every experiment the paper's claims beside ours, with verdicts, figures and choices.

It is made anew from all results that are in the folder, so that no command loses what another has done.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from string import ascii_lowercase

from counterflow._version import __version__
from counterflow.files import blaming
from counterflow.paper import experiments
from counterflow.paper.experiments import figures
from counterflow.paper.experiments.experiment import EXPLAINED, Experiment, Outcome, Request, Table, Task
from counterflow.paper.experiments.store import Store, put
from counterflow.paper.experiments.verdicts import VERDICTS, Verdict
from counterflow.report import templates

TITLE = "The paper, reproduced"
MARKS: Mapping[str, str] = {"agrees": "good", "agrees in order of magnitude": "good", "does not hold": "fail"}
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


def assemble(
    store: Store, asked: Mapping[str, Sequence[Task]], request: Request, found: Mapping[str, Outcome]
) -> list[Experiment]:
    """Write the folder's report: of the experiments asked for, and of all others whose results are complete.

    ``asked``: tasks of experiments by name, whose outcomes are ``found`` by ``store.key``. Two commands may work in one
    folder: whoever comes later to this waits, and then finds the other's results.
    """
    with alone(store.folder):
        for name, tasks in asked.items():
            _remember(store, name, tasks, request)
        chapters = []
        for name in experiments.names():
            tasks = asked[name] if name in asked else _expected(store, name)
            outcomes = [found.get(store.key(task)) or store.load(task) for task in tasks]
            complete = [outcome for outcome in outcomes if outcome is not None]
            if complete and len(complete) == len(outcomes):
                chapters.append(experiments.named(name)(complete))
        write(chapters, store.folder, store.quick)
    return chapters


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Be the only one who writes a folder's report; waits for others, and a process that dies lets go by itself."""
    import fcntl

    path = folder / ".report.lock"
    with blaming(path):
        folder.mkdir(parents=True, exist_ok=True)
        handle = path.open("w")
    with handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _note(store: Store, name: str) -> Path:
    return store.folder / "results" / name / f"asked-{'quick' if store.quick else 'full'}.json"


def _remember(store: Store, name: str, tasks: Sequence[Task], request: Request) -> None:
    """Keep the tasks that depend on files of the user: a later command may not be given them again."""
    if experiments.named(name).tasks(Request(request.quick)) == tuple(tasks):
        _note(store, name).unlink(missing_ok=True)
    else:
        told = [{"experiment": task.experiment, "settings": dict(task.settings)} for task in tasks]
        put(_note(store, name), json.dumps(told, indent=1).encode())


def _expected(store: Store, name: str) -> Sequence[Task]:
    """The tasks of an experiment that was not asked for now: those of the last time, or those without any files."""
    try:
        return [Task(**each) for each in json.loads(_note(store, name).read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):  # none, or not one of ours
        return experiments.named(name).tasks(Request(store.quick))


def write(chapters: Sequence[Experiment], folder: Path, quick: bool) -> None:
    """Write ``report.html``, ``report.md`` and ``figures/``."""
    drawn: dict[str, bytes] = {}
    for each in chapters:
        for name, figure in each.figures.items():
            made = figures.files(figure)
            drawn[name] = made["svg"]
            for ending, content in made.items():
                put(folder / "figures" / f"{name}.{ending}", content)
    put(folder / "report.html", html(chapters, quick, drawn).encode())
    put(folder / "report.md", markdown(chapters, quick).encode())


def counts(chapters: Iterable[Experiment]) -> dict[Verdict, int]:
    """How often each verdict was given; of claims of the same fact or cause each kind of verdict counts once."""
    claims = [claim for each in chapters for claim in each.claims]
    once = {(claim.fact or str(k), claim.verdict) for k, claim in enumerate(claims)}
    found = Counter(verdict for _, verdict in once)
    return {verdict: found[verdict] for verdict in VERDICTS if found[verdict]}


def _summary(chapters: Sequence[Experiment]) -> str:
    """Verdicts by kind, and which claims are one fact."""
    told = ", ".join(f"{count} {verdict}" for verdict, count in counts(chapters).items())
    facts = Counter(claim.fact for each in chapters for claim in each.claims if claim.fact)
    parts, rule = "; ".join(f"{fact}: {count} claims" for fact, count in facts.items() if count > 1), ""
    if parts:
        rule = f" Claims about one fact, or with one cause, count once for each kind of verdict among them ({parts})."
    return f"Verdicts: {told}.{rule} {EXPLAINED} 'Beyond the paper' are measurements of ours on which it says nothing."


def paper_map(chapters: Sequence[Experiment]) -> Table:
    """Which of our figures and tables is which of the paper's; panels have the paper's letters."""
    here = {each.name: each for each in chapters}
    rows = []
    for number, panels, shows, name in PAPER:
        found = "not in this report"
        if name in here:
            for key, drawing in here[name].figures.items():
                if drawing.paper == number:
                    last = ascii_lowercase[len(drawing.panels) - 1]
                    found = f"{name}: figure {key}" + (f", panels a-{last}" if len(drawing.panels) > 1 else "")
            if any(number in table.paper for table in here[name].tables):
                found = f"{name}: table, and figure {name}"
        rows.append((number, panels, shows, found))
    told = "The paper's figures and tables, and where they are made again. Panels have the paper's letters and order."
    return Table(told, ("in the paper", "panels", "shows", "here"), tuple(rows))


def _lead(quick: bool) -> str:
    kind = "the full run, with the paper's 10 Monte-Carlo repetitions."
    if quick:
        kind = "a quick run: fewer repetitions and rounds, to look rather than to judge."
    return (
        "Every figure and table of the paper made again, and its claims without one put to the test. "
        f"This is {kind} Verdicts are computed from the results by the rule that stands beside them."
    )


def _facts(each: Experiment, quick: bool) -> dict[str, str]:
    return {
        "In the paper": each.paper,
        "Tasks": f"{len(each.outcomes)}, {each.seconds:.3g} s of one core",
        "Again": " ".join(["counterflow reproduce", each.name, *["--quick"] * quick, *each.options]),
    }


def markdown(chapters: Sequence[Experiment], quick: bool) -> str:
    """The report in Markdown, with figures in the folder beside it."""
    lines = [f"# {TITLE}", "", _lead(quick), "", _summary(chapters), "", f"Counterflow {__version__}.", ""]
    lines += [*_table(paper_map(chapters)), ""]
    lines += ["| experiment | claim | verdict | fact or cause, if shared |", "|---|---|---|---|"]
    for each in chapters:
        link = f"[{each.name}](#{_anchor(each)})"
        lines += [f"| {link} | {_cell(c.subject)} | {_strong(c.verdict)} | {c.fact} |" for c in each.claims]
    for each in chapters:
        lines += ["", f"## {each.title}", "", each.question, ""]
        lines += ["| | the paper | ours | verdict | why |", "|---|---|---|---|---|"]
        lines += [_row((c.subject, c.paper, c.ours, _strong(c.verdict), c.why)) for c in each.claims]
        lines += ["", each.text]
        for table in each.tables:
            lines += ["", *_table(table)]
        for name, figure in each.figures.items():
            lines += ["", f"![{_cell(figure.caption)}](figures/{name}.png)", ""]
            lines.append(f"*{figure.caption}* [SVG](figures/{name}.svg), [PDF](figures/{name}.pdf)")
        lines += ["", "Our choices where the paper is silent:", "", *(f"- {choice}" for choice in each.choices)]
        lines += ["", *(f"- {key}: {value}" for key, value in _facts(each, quick).items())]
    return "\n".join([*lines, ""])


def _anchor(each: Experiment) -> str:
    return "".join(c for c in each.title.lower() if c.isalnum() or c in " -_").replace(" ", "-")


def _table(table: Table) -> list[str]:
    return [table.caption, "", _row(table.head), "|---" * len(table.head) + "|", *map(_row, table.rows)]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _strong(verdict: Verdict) -> str:
    return f"**{verdict}**" if MARKS.get(verdict) == "fail" else verdict


def html(chapters: Sequence[Experiment], quick: bool, drawn: Mapping[str, bytes]) -> str:
    """The report as one page that refers to nothing outside itself; ``drawn`` are the figures as SVG, by name."""
    sections = []
    for number, each in enumerate(chapters):
        pictures = []
        for k, (name, figure) in enumerate(each.figures.items()):
            narrow = figures.files(figure, narrow=True, endings=["svg"])["svg"]
            both = zip("wn", (drawn[name], narrow), strict=True)
            wide, narrowed = (figures.svg(made, f"e{number}f{k}{size}-", figure.caption) for size, made in both)
            pictures.append((figure.caption, wide, narrowed))
        sections.append({"chapter": each, "pictures": pictures, "facts": _facts(each, quick)})
    return templates.render(
        "reproduction.html.j2",
        title=TITLE,
        lead=_lead(quick),
        counts={verdict: str(count) for verdict, count in counts(chapters).items()},
        summary=_summary(chapters),
        figures=paper_map(chapters),
        sections=sections,
        marks={verdict: MARKS.get(verdict, "") for verdict in VERDICTS},
    )
