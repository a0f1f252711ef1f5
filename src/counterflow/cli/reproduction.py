"""``counterflow reproduce``: the paper's figures and tables, with verdicts."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from counterflow.cli import output
from counterflow.cli.output import Format, Part, Told, answering, listed, picked
from counterflow.errors import OptionError
from counterflow.fits.progress import progress_of

if TYPE_CHECKING:
    from counterflow.paper.experiments.experiment import Experiment, Request

READS_FILES = "real-plants"  # the experiment that --hai and --swat are for


@answering()
def reproduce(
    wanted: Format,
    names: Annotated[list[str], Argument(metavar="NAME...", help="Experiments; or: all, list.")],
    quick: Annotated[bool, Option("--quick", help="Fewer repetitions and rounds: minutes for all.")] = False,
    out: Annotated[Path, Option(metavar="DIR", help="Results, figures and report.")] = Path("reproduction"),
    jobs: Annotated[int, Option(min=1, help="Worker processes; only measured seconds depend on it.")] = 2,
    hai: Annotated[Path | None, Option(metavar="DIR", help="Your HAI files, instead of a stand-in.")] = None,
    swat: Annotated[Path | None, Option(metavar="FILE", help="Your SWaT file, instead of a stand-in.")] = None,
    force: Annotated[bool, Option("--force", help="Compute again what is there.")] = False,
) -> Told:
    """The paper's figures and tables again, with verdicts; goes on where it was stopped.

    Example: counterflow reproduce all --quick --out reproduction
    """
    from counterflow.paper.experiments import figures, report
    from counterflow.paper.experiments.experiment import Request
    from counterflow.paper.experiments.store import Store

    if "list" in names:
        if len(names) > 1:
            raise OptionError("'list' names every experiment: leave the other names out.")
        known = [picked(each, "name title paper question") for each in _chosen(["all"])]
        return Told({"experiments": known}, [listed("Experiments", known, "name", "title", "paper")])
    chosen = _chosen(names)
    request = Request(quick, _existing("--hai", hai), _existing("--swat", swat))
    output.check_folder(out)
    _tell_unused(chosen, request)
    with figures.styled():  # without matplotlib, say so before hours of work
        pass
    tasks = {each.name: each.tasks(request) for each in chosen}
    store = Store(out, quick)
    every = [task for own in tasks.values() for task in own]
    try:
        with progress_of(wanted is not Format.json and sys.stderr.isatty()) as told:
            found = store.computed(every, jobs, force, lambda task, done, total: told(done / total, task.experiment))
    except KeyboardInterrupt:
        kept = f"finished tasks are kept in {str(out)!r}; the same command goes on."
        typer.echo(f"counterflow: stopped; {kept}", err=True)
        raise typer.Exit(output.INTERRUPTED) from None
    whole = report.assemble(store, tasks, request, found)
    page, text = out / "report.html", out / "report.md"
    chapters = [each for each in whole if each.name in tasks]
    verdicts = {str(verdict): count for verdict, count in report.counts(chapters).items() if count}
    content = {
        "quick": request.quick,
        "report": {"html": page, "markdown": text, "experiments": [each.name for each in whole]},
        "verdicts": verdicts,
        "experiments": [_chapter_json(each) for each in chapters],
    }
    return Told(content, _shown(content))


def _shown(content: dict[str, Any]) -> Iterator[Part]:
    for each in content["experiments"]:
        yield listed(f"{each['name']}: {each['title']}", each["claims"], "subject", "ours", "verdict")
    told = ", ".join(f"{count} {verdict}" for verdict, count in content["verdicts"].items())
    report = content["report"]
    yield from ("", f"verdicts: {told}", f"  report: {report['html']} (and {report['markdown'].name}, figures)")
    if others := set(report["experiments"]) - {each["name"] for each in content["experiments"]}:
        yield f"  also in it, from results that are there: {', '.join(sorted(others))}"


def _chosen(asked: Sequence[str]) -> list[type[Experiment]]:
    from counterflow.paper import experiments

    if "all" in asked:
        if len(asked) > 1:
            raise OptionError("'all' is every experiment: leave the other names out.")
        return [experiments.named(name) for name in experiments.names()]
    return [experiments.named(name) for name in dict.fromkeys(asked)]


def _tell_unused(chosen: Sequence[type[Experiment]], request: Request) -> None:
    """Say so if files are given to experiments that read none."""
    given = [option for option, path in (("--hai", request.hai), ("--swat", request.swat)) if path is not None]
    if given and READS_FILES not in {each.name for each in chosen}:
        verb = "is" if len(given) == 1 else "are"
        typer.echo(f"counterflow: {' and '.join(given)} {verb} not used: only {READS_FILES} reads files.", err=True)


def _existing(option: str, path: Path | None) -> Path | None:
    if path is not None and not path.exists():
        raise OptionError(f"{option} {str(path)!r}: there is no such file or directory.")
    return path


def _chapter_json(each: Experiment) -> dict[str, Any]:
    told = [picked(claim, "subject paper ours verdict why") | {"fact": claim.fact or None} for claim in each.claims]
    about = picked(each, "name title") | {"tasks": len(each.outcomes), "seconds": each.seconds}
    return about | {"figures": list(each.figures), "text": each.text, "claims": told}
