"""``counterflow check`` on saved fits: verdict, exit code, JSON, files, refusals."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from check_plants import closed_loop, relay, tank_plant
from command_line import answer, refused, run

import counterflow as cf
from counterflow.checks.verdicts import kinds
from counterflow.cli.output import CHECK_FAILED


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good fit, and one of a plant with a level control, each with its recording."""
    out = tmp_path_factory.mktemp("checked")
    plant = cf.random_plant(["boiler", "turbine"], outputs=3, rng=1)
    recording = plant.simulate(800, rng=2)
    recording.save(out / "good.safetensors")
    cf.fit(recording, plant.locals()).save(out / "good")
    loop = closed_loop(relay(sees_truth=False), 1500, 1)
    loop.save(out / "loop.safetensors")
    cf.fit(loop, tank_plant().locals()).save(out / "loop")
    return out


def test_a_good_fit_passes(folder: Path) -> None:
    done = run("check", folder / "good", code=0)
    assert "All checks pass." in done.output
    for kind in kinds().values():
        assert kind.name in done.output or not kind.always


def test_feedback_fails_with_its_exit_code_and_says_that_the_answer_is_unsafe(folder: Path) -> None:
    given = ["check", folder / "loop", "--recording", folder / "loop.safetensors"]
    words = " ".join(run(*given, code=CHECK_FAILED).output.split())
    assert CHECK_FAILED == 6
    assert "fail: feedback of tank pump" in words
    assert "feedback makes the answer unsafe for the question what will happen in the running plant" in words
    assert "Remedy: open the loop" in words
    told = answer(*given, code=6)
    assert (told["command"], told["verdict"], told["rows"], told["fitted"]) == ("check", "fail", 1501, True)
    assert [each["about"] for each in told["checks"] if each["verdict"] == "fail"] == ["tank pump"]
    assert set(told["checks"][0]) == {"name", "about", "verdict", "number", "unit_of_number", "finding", "remedy"}


def test_effects_are_tried_to_be_refuted(folder: Path) -> None:
    given = ["check", folder / "good", "--refute", "turbine", "--change", "boiler.u1=1"]
    assert "--recording FILE" in refused(*given)
    given += ["--recording", folder / "good.safetensors"]
    told = answer(*given)
    assert told["refutation"]["verdict"] == "pass"
    assert told["refutation"]["refuters"][0]["name"] == "placebo input"
    assert "one unit's inputs" in refused(*given, "--change", "turbine.u1=1")


def test_files_are_written_and_not_overwritten(folder: Path, tmp_path: Path) -> None:
    given = ["check", folder / "good", "--plot", tmp_path / "a.png", "--out", tmp_path / "a.csv"]
    run(*given, code=0)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["verdict"] for row in rows} == {"pass"}
    refused(*given)
    run(*given, "--force", code=0)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--plot", "a.pdf"], ".png"),
        (["--out", "a.txt"], ".json or .csv"),
        (["--recording", "loop.safetensors"], "units"),
        (["--recording", "nothing.safetensors"], "nothing.safetensors"),
    ],
)
def test_mistakes_are_told_in_one_line(
    folder: Path, more: list[str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert words in refused("check", "good", *more)
