"""A folder's report holds all that is in it: of earlier commands, and of others at the same time."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path
from typing import Any

import pytest

from counterflow.errors import StorageError
from counterflow.paper import experiments
from counterflow.paper.experiments import report
from counterflow.paper.experiments.experiment import Claim, Experiment, Outcome, Request, Task
from counterflow.paper.experiments.store import Store

NAMES = ("first", "second", "third")


def fake(chosen: str, number: int = 1) -> type[Experiment]:
    class Fake(Experiment):
        name = title = chosen
        paper = question = text = ""
        choices, revision = (), number

        @staticmethod
        def tasks(request: Request) -> tuple[Task, ...]:
            files = [str(request.hai)] if request.hai else []
            return tuple(Task(chosen, {"run": k, "files": files if chosen == "third" else []}) for k in range(2))

        def judge(self) -> list[Claim]:
            return [Claim(chosen, "", f"{self.of('value').sum():g}", "agrees", "")]

        @property
        def options(self) -> tuple[str, ...]:
            return tuple(f"--hai {file}" for file in self.outcomes[0].task["files"])

    return Fake


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(experiments, "names", lambda: NAMES)
    monkeypatch.setattr(experiments, "named", fake)


def command(folder: Path, *names: str, quick: bool = False, hai: Path | None = None) -> list[str]:
    """What ``counterflow reproduce`` does; names of the report's chapters."""
    store, request = Store(folder, quick), Request(quick, hai)
    asked = {name: fake(name).tasks(request) for name in names}
    found = {}
    for tasks in asked.values():
        for task in tasks:
            outcome = Outcome(task, {"value": float(task["run"])}, 0.1)
            store.save(outcome)
            found[store.key(task)] = outcome
    return [each.name for each in report.assemble(store, asked, request, found)]


def test_a_second_command_extends_the_report_in_the_fixed_order(tmp_path: Path) -> None:
    assert command(tmp_path, "third") == ["third"]
    assert command(tmp_path, "first") == ["first", "third"]
    text = (tmp_path / "report.md").read_text()
    assert text.index("## first") < text.index("## third")
    assert "## second" not in text


def test_only_complete_results_of_the_same_kind_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command(tmp_path, "first", quick=True)
    store = Store(tmp_path, quick=False)
    store.save(Outcome(fake("second").tasks(Request())[0], {"value": 0.0}, 0.1))
    assert command(tmp_path, "third") == ["third"], "quick results, and half of the results, are none"
    assert command(tmp_path, "third", quick=True) == ["first", "third"]
    monkeypatch.setattr(experiments, "named", lambda name: fake(name, 2 if name == "first" else 1))
    assert command(tmp_path, "third", quick=True) == ["third"], "nor are those of another revision"


def test_own_files_of_an_earlier_command_stay_in_the_report(tmp_path: Path) -> None:
    command(tmp_path, "third", hai=tmp_path / "mine")
    assert command(tmp_path, "first") == ["first", "third"]
    assert f"counterflow reproduce third --hai {tmp_path / 'mine'}" in (tmp_path / "report.md").read_text()
    command(tmp_path, "third")
    assert command(tmp_path, "first") == ["first", "third"]
    assert "--hai" not in (tmp_path / "report.md").read_text(), "until it is asked for without them"
    (tmp_path / "results" / "third" / "asked-full.json").write_text("nonsense")
    assert command(tmp_path, "first") == ["first", "third"]


def test_two_commands_at_once_lose_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that comes second waits for the first, and finds its results."""
    context = multiprocessing.get_context("fork")
    begun, write = context.Event(), report.write

    def slowly(*arguments: Any) -> Any:
        begun.set()
        time.sleep(0.3)
        return write(*arguments)

    monkeypatch.setattr(report, "write", slowly)
    other = context.Process(target=command, args=(tmp_path, "second"))
    other.start()
    assert begun.wait(30)
    monkeypatch.setattr(report, "write", write)
    assert command(tmp_path, "first") == ["first", "second"]
    other.join(30)
    assert other.exitcode == 0
    text = (tmp_path / "report.md").read_text()
    assert "## first" in text
    assert "## second" in text


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="Choose another place"), report.alone(tmp_path / "file"):
        pass
