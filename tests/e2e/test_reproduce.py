"""``counterflow reproduce``: from the command to the report, and on again after a stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from counterflow.cli import app
from counterflow.paper import experiments
from counterflow.paper.experiments import report, store, two_units

TINY = {**two_units.SETTINGS, "steps": 150, "rounds": 30, "warm_rounds": 5}


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_units, "QUICK", TINY)
    monkeypatch.setattr(two_units, "QUICK_REPETITIONS", 2)


def unwritten(*_: object) -> None:
    """Instead of a report: to draw takes longer than all the rest."""


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


def answer(*arguments: object) -> dict[str, Any]:
    found = call(*arguments, "--format", "json")
    assert found.exit_code == 0, found.output
    told: dict[str, Any] = json.loads(found.stdout)
    return told


def test_list_names_every_experiment_with_its_place_in_the_paper() -> None:
    listed = answer("list")["experiments"]
    assert tuple(each["name"] for each in listed) == experiments.names()
    assert all(each["paper"] and each["question"] for each in listed)
    shown = call("list")
    assert shown.exit_code == 0
    assert all(name in shown.stdout for name in experiments.names())


def test_a_report_is_written_and_what_is_done_is_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    first = answer("validation", "--quick", "--out", out, "--jobs", 1)
    (validation,) = first["experiments"]
    assert (validation["name"], validation["tasks"]) == ("validation", 2)
    written = (out / "report.html").read_text()
    assert all(claim["verdict"] in written for claim in validation["claims"])
    assert validation["figures"]
    assert all((out / "figures" / f"{name}.pdf").is_file() for name in validation["figures"])
    facts = {claim["fact"] for claim in validation["claims"]}
    assert None not in facts
    assert sum(first["verdicts"].values()) == len(facts), "two runs decide nothing at either client: one verdict each"

    def refuse(*_: object) -> None:
        raise AssertionError("computed again")

    monkeypatch.setattr(store, "compute", refuse)
    monkeypatch.setattr(report, "write", unwritten)
    assert answer("validation", "--quick", "--out", out, "--jobs", 1) == first
    other = answer("transfer-function", "--quick", "--out", out)
    assert [(each["name"], each["tasks"]) for each in other["experiments"]] == [("transfer-function", 2)]
    assert other["report"]["experiments"] == ["validation", "transfer-function"], "the report keeps what is there"
    assert len(list((out / "results" / "synthetic").iterdir())) == 2, "one training serves both experiments"
    shown = call("validation", "--quick", "--hai", tmp_path, "--out", out)
    assert shown.exit_code == 0
    assert "verdicts: " in shown.stdout
    assert "also in it, from results that are there: transfer-function" in shown.stdout
    assert "report.html" in shown.stdout
    assert "--hai is not used: only real-plants reads files" in shown.stderr
    assert "not used" not in call("validation", "--quick", "--out", out).stderr
    with pytest.raises(AssertionError, match="computed again"):
        CliRunner().invoke(
            app, ["reproduce", "validation", "--quick", "--out", str(out), "--force", "--jobs", "1"],
            catch_exceptions=False,
        )  # fmt: skip


def test_an_interrupt_keeps_what_is_done_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compute, done = store.compute, []

    def interrupted(*arguments: Any) -> Any:
        if len(done) == 1:
            raise KeyboardInterrupt
        done.append(arguments[0])
        return compute(*arguments)

    monkeypatch.setattr(store, "compute", interrupted)
    found = call("validation", "--quick", "--out", tmp_path, "--jobs", 1)
    assert found.exit_code == 130
    (line,) = found.stderr.strip().splitlines()
    assert "stopped; finished tasks are kept in" in line
    assert "the same command goes on" in line
    assert len(list((tmp_path / "results" / "synthetic").glob("*.safetensors"))) == 1
    monkeypatch.setattr(store, "compute", compute)
    monkeypatch.setattr(report, "write", unwritten)
    assert answer("validation", "--quick", "--out", tmp_path, "--jobs", 1)["experiments"][0]["tasks"] == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nonsense",), "there is no experiment 'nonsense'"),
        (("all", "synthetic"), "leave the other names out"),
        (("list", "synthetic"), "'list' names every experiment: leave the other names out"),
        (("synthetic", "--hai", "nowhere"), "--hai 'nowhere'"),
        (("synthetic", "--swat", "nowhere"), "--swat 'nowhere'"),
    ],
)
def test_mistakes_are_told_in_one_line(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    found = call(*arguments, "--out", tmp_path)
    assert found.exit_code == 2
    assert words in found.stderr
    assert len(found.stderr.strip().splitlines()) == 1
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "sub" / "folder"):
        found = call("synthetic", "--out", out)
        assert found.exit_code == 2
        assert "give a directory" in found.stderr
        assert len(found.stderr.strip().splitlines()) == 1


def test_what_is_no_table_is_refused_before_anything_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("computed")

    monkeypatch.setattr(store, "compute", refuse)
    (tmp_path / "swat.pdf").write_text("%PDF")
    found = call("all", "--quick", "--swat", tmp_path / "swat.pdf", "--out", tmp_path / "out")
    assert found.exit_code == 2
    assert "--swat" in found.stderr
    assert not (tmp_path / "out").exists()
