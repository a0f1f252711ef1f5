"""The report of a folder, made anew from all results that are in it, so that no command loses what another has done."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from counterflow.files import blaming
from counterflow.paper import experiments
from counterflow.paper.experiments import page
from counterflow.paper.experiments.experiment import Outcome, Request, Task
from counterflow.paper.experiments.store import Store, put

Asked = Mapping[str, Sequence[Task]]  # the tasks of experiments by name


def assemble(store: Store, asked: Asked, request: Request, found: Mapping[str, Outcome]) -> list[page.Chapter]:
    """Write the folder's report: of the experiments asked for, and of all others whose results are complete.

    Parameters
    ----------
    store : where results are; only those of its kind (quick or not), of this version and revision count.
    asked : what was computed just now.
    request : with which files.
    found : outcomes of ``asked`` by ``store.key``.

    Two commands may work in one folder: whoever comes later to this waits, and then finds the other's results.

    Returns
    -------
    All chapters of the report, in the order of ``experiments.names()``.
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
                chapters.append(page.chapter(experiments.named(name), complete))
        page.write(chapters, store.folder, store.quick)
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
    note = _note(store, name)
    if experiments.named(name).tasks(Request(request.quick)) == tuple(tasks):
        note.unlink(missing_ok=True)
    else:
        told = [{"experiment": task.experiment, "settings": dict(task.settings)} for task in tasks]
        put(note, json.dumps(told, indent=1).encode())


def _expected(store: Store, name: str) -> Sequence[Task]:
    """The tasks of an experiment that was not asked for now: those of the last time, or those without any files."""
    try:
        told = json.loads(_note(store, name).read_text(encoding="utf-8"))
        return [Task(each["experiment"], each["settings"]) for each in told]
    except (OSError, ValueError, KeyError, TypeError):  # none, or not one of ours
        return experiments.named(name).tasks(Request(store.quick))
