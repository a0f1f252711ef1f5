"""The command line as users run it: a process of its own, files on disk, exit codes."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import COMMAND, ENVIRONMENT, process, refused, run, script

import counterflow as cf
from counterflow.cli import demo_plant
from counterflow.cli.demo import BACK, BEGIN, CLOSED, WINDOW, held, with_incident
from counterflow.cli.demo_plant import Worlds

SHORT = ["--steps", "600"]
STEPS, SEED = 1800, 3


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("demo") / "a folder" / "out"
    asked = ["demo", "--out", out, "--seed", str(SEED), "--steps", str(STEPS), "--format", "json"]
    done = process(*COMMAND, *asked)
    assert (done.returncode, done.stderr) == (0, "")
    return out, json.loads(done.stdout)


def test_version() -> None:
    done = process(*COMMAND, "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"counterflow {cf.__version__}\n", "")


def test_help_and_import_stay_light() -> None:
    assert "demo" in run("--help", code=0).stdout
    heavy = ("numpy", "scipy", "matplotlib", "polars", "safetensors")
    code = f"import sys, counterflow, counterflow.cli; assert not sys.modules.keys() & set({heavy!r})"
    checked = script(code)
    assert checked.returncode == 0, checked.stderr


def test_the_demo_leaves_recording_fit_and_report(demo: tuple[Path, dict[str, Any]]) -> None:
    out, answer = demo
    assert sorted(entry.name for entry in out.iterdir()) == ["fit", "recording.safetensors", "report.html"]
    recording = cf.Recording.load(out / "recording.safetensors")
    assert (recording.names, recording.steps) == (("boiler", "turbine", "cooling_tower", "water_treatment"), STEPS)
    fit = cf.load(out / "fit")
    assert fit.provenance.data_digest == recording.digest
    assert (fit.method, fit.provenance.seed) == (answer["method"], SEED)
    assert answer["files"] == {
        "recording": str(out / "recording.safetensors"),
        "fit": str(out / "fit"),
        "report": str(out / "report.html"),
    }


def test_the_demo_begins_with_a_log_and_its_truth(demo: tuple[Path, dict[str, Any]]) -> None:
    told = demo[1]["log"]
    assert "FIC-101.SP been 1 m3/h higher from 2024-11-01 16:00 to 16:59" in told["sentence"]
    assert told["lower"] <= told["truth"] <= told["upper"] < 0
    assert told["inside"] > 0.8


@pytest.fixture(scope="module")
def lived() -> tuple[np.ndarray, Worlds]:
    """Inputs without the incident, and what the demo's plant has lived through with it."""
    calm = demo_plant.moved_in_steps(STEPS, SEED)
    return calm, demo_plant.lived(with_incident(calm), SEED)


def r2(answer: np.ndarray, truth: np.ndarray) -> float:
    return float(1 - np.square(answer - truth).sum() / np.square(truth).sum())


def test_the_answers_are_those_of_the_saved_fit(demo: tuple[Path, dict[str, Any]]) -> None:
    out, answer = demo
    asked = {"cause": "boiler", "effect": "turbine", "change": {"fuel valve": 10.0}, "horizon": 60, "duration": 20}
    _, said, _ = answer["questions"][0]["answers"]
    np.testing.assert_allclose(said["mean"], cf.load(out / "fit").effect(**asked).mean, rtol=1e-9, atol=1e-12)
    for question in answer["questions"]:
        assert [each["truth"] for each in question["answers"]] == [True, False, False]
        assert [each["lower"] is None for each in question["answers"]] == [True, False, True]
        for each in question["answers"]:
            assert np.shape(each["mean"]) == (60, len(question["channels"]))


def test_the_truth_is_a_run_of_the_simulator_with_the_same_noise(
    demo: tuple[Path, dict[str, Any]], lived: tuple[np.ndarray, Worlds]
) -> None:
    """Twice the record's length, once with the change: what differs after the last row is the truth that is shown."""
    out, answer = demo
    _, worlds = lived
    np.testing.assert_array_equal(
        cf.Recording.load(out / "recording.safetensors")["turbine"].y, worlds.recording["turbine"].y
    )
    inputs = np.vstack([worlds.inputs, np.tile(worlds.inputs[-1], (60, 1))])
    changed = inputs.copy()
    changed[STEPS : STEPS + 20, demo_plant.input_at("boiler", "fuel valve")] += 10.0
    states = demo_plant.run(worlds.states[0], np.stack([inputs, changed], axis=2)[:-1], worlds.noise)
    without, with_it = np.moveaxis(demo_plant.measured(states), 2, 0)
    true = (with_it - without)[STEPS + 1 :, demo_plant.outputs_of("turbine")]
    np.testing.assert_allclose(answer["questions"][0]["answers"][0]["mean"], true, rtol=1e-9, atol=1e-9)
    assert np.abs(true[:, 2]).max() > 3  # MW: there is something to find


def test_the_answers_are_right_and_a_linear_model_is_not(demo: tuple[Path, dict[str, Any]]) -> None:
    _, answer = demo
    inside, misses = [], []
    for question in answer["questions"]:
        truth, said, linear = question["answers"]
        true, mean, lower, upper = map(np.array, (truth["mean"], said["mean"], said["lower"], said["upper"]))
        moving = np.abs(true).max(axis=0) > 0.05 * np.abs(mean).max(axis=0).clip(1e-9)
        assert all(r2(mean[:, k], true[:, k]) > 0.9 for k in np.flatnonzero(moving)), question["question"]
        inside.append(((lower <= true) & (true <= upper)).ravel())
        misses.append((said["relative_error"], linear["relative_error"]))
        assert said["relative_error"] < 0.15
    assert np.concatenate(inside).mean() > 0.85
    ours, theirs = np.array(misses).T
    assert theirs.max() > 0.25  # the fan's effect depends on how fast it runs
    assert ours.mean() < 0.5 * theirs.mean()


def test_the_graph_is_that_of_the_pipes(demo: tuple[Path, dict[str, Any]]) -> None:
    assert set(cf.load(demo[0] / "fit").graph().direct()) == {
        ("boiler", "turbine"), ("turbine", "boiler"), ("turbine", "cooling_tower"), ("cooling_tower", "turbine"),
        ("turbine", "water_treatment"), ("boiler", "water_treatment"), ("water_treatment", "boiler"),
    }  # fmt: skip


def test_the_incident_is_told_as_it_was(demo: tuple[Path, dict[str, Any]], lived: tuple[np.ndarray, Worlds]) -> None:
    """The valve stuck: what would have been, and whose doing it was."""
    out, answer = demo
    calm, worlds = lived
    recording, fit = cf.Recording.load(out / "recording.safetensors"), cf.load(out / "fit")
    start = recording.rows - BEGIN
    stop = start + WINDOW
    valve = calm[start:stop, demo_plant.input_at("water_treatment", "heating steam valve")]
    told = fit.counterfactual(
        recording, do={"water_treatment": {"heating steam valve": valve}}, start=start, stop=stop
    )["boiler"]
    true = worlds.again(calm)[start:stop, 0] - told.factual[:, 0]
    assert r2(told.mean[:, 0] - told.factual[:, 0], true) > 0.97
    inside = (told.lower[:, 0] <= true + told.factual[:, 0]) & (true + told.factual[:, 0] <= told.upper[:, 0])
    assert inside[1:].mean() > 0.8
    said = re.search(r"would have been (-?[\d.]+) bar, in truth (-?[\d.]+) bar", answer["incident"][0]["sentence"])
    assert said is not None
    assert float(said[2]) == pytest.approx(worlds.again(calm)[start:stop, 0][np.abs(true).argmax()], abs=0.5)
    assert abs(float(said[1]) - float(said[2])) < 0.5
    # a unit's share is what its inputs did, other than their mean would have
    inputs = worlds.inputs.copy()
    own = slice(5, 7)  # of the water treatment
    inputs[start:, own] = inputs[:, own].mean(axis=0)
    share = (worlds.channels - worlds.again(inputs))[start : start + 2 * CLOSED, 0].mean()
    assert answer["shares"]["water_treatment"] == pytest.approx(share, rel=0.25)
    assert share < -1  # bar


def test_a_share_is_the_counterfactual_of_inputs_at_their_mean(demo: tuple[Path, dict[str, Any]]) -> None:
    recording, fit = cf.Recording.load(demo[0] / "recording.safetensors"), cf.load(demo[0] / "fit")
    inputs = recording["cooling_tower"].u
    found = fit.attribute(recording, "turbine", 900, 950).shares["cooling_tower"]
    usual = np.tile(inputs.mean(axis=0), (50, 1))
    other = fit.counterfactual(recording, do={"cooling_tower": usual}, start=900, stop=950)["turbine"]
    np.testing.assert_allclose(found, other.factual - other.mean, atol=1e-6 * np.abs(found).max())


def test_what_is_said_to_bring_the_pressure_back_does(
    demo: tuple[Path, dict[str, Any]], lived: tuple[np.ndarray, Worlds]
) -> None:
    out, answer = demo
    wanted = re.search(r"back by \+([\d.]+) bar", answer["incident"][2]["question"])
    assert wanted is not None
    reached = lived[1].ahead(held(answer["restoration"], BACK))[-1, 0]
    assert reached == pytest.approx(float(wanted[1]), rel=0.1)
    assert f"In truth: drum pressure {reached:+.2f} bar" in answer["incident"][2]["sentence"]
    page = html.unescape((out / "report.html").read_text(encoding="utf-8"))
    for told_again in answer["incident"]:
        assert told_again["question"].replace(" %", "\N{NO-BREAK SPACE}%") in page


def test_the_report_has_all_its_parts(demo: tuple[Path, dict[str, Any]]) -> None:
    out, answer = demo
    page = (out / "report.html").read_text(encoding="utf-8")
    for words in (
        "Question 6 of 6", "Who acts on whom", "What was checked", "Before you act on this",
        "a linear model misses it by",
        "none spent: nothing was made private", "Where this comes from", "SHA-256",
        'aria-label="Influence graph of 4 units.',
    ):  # fmt: skip
        assert words in page, words
    assert answer["checks"]


def test_the_report_needs_nothing_from_outside(demo: tuple[Path, dict[str, Any]]) -> None:
    page = (demo[0] / "report.html").read_text(encoding="utf-8")
    tags, ids = set(re.findall(r"<([a-z]+)", page)), re.findall(r'\sid="([^"]*)"', page)
    assert tags.isdisjoint({"script", "link", "img", "iframe", "object", "embed", "base", "form"})
    assert re.search(r"<[^>]*\son\w+\s*=", page) is None  # no handlers
    links = re.findall(r'\s(?:src|href|xlink:href|srcset|action|data|poster)="([^"]*)"', page)
    assert links
    assert all(link.startswith("#") for link in links)
    assert {link[1:] for link in links} <= set(ids)
    assert len(set(ids)) == len(ids)
    assert re.search(r"(?i)[a-z]+://|@import|url\((?!#)|//[a-z]", page) is None
    assert "svg" in tags
    assert "#1234" not in page  # marker colours are all replaced
    assert str(demo[0]) not in page  # the page can be passed on


def test_the_same_command_gives_the_same_files_in_place_of_others(
    demo: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    shutil.copytree(demo[0], tmp_path / "out")
    plant = cf.random_plant(units=["pump"], rng=1)
    cf.fit(plant.simulate(50, rng=2), plant, method="oracle").save(tmp_path / "out" / "fit")
    assert "--force" in refused("demo", "--out", tmp_path / "out", *SHORT)
    done = process(
        *COMMAND, "demo", "--out", "out", "--seed", str(SEED), "--steps", str(STEPS), "--force", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert str(Path("out") / "report.html") in done.stdout
    for path in demo[0].rglob("*"):
        if path.is_file():
            assert (tmp_path / "out" / path.relative_to(demo[0])).read_bytes() == path.read_bytes(), path.name
    assert len(list((tmp_path / "out").rglob("*"))) == len(list(demo[0].rglob("*")))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["demo", "--steps", "3"], "600"),
        (["demo", "--steps", "many"], "steps"),
        (["demo", "--seed", "-1"], "seed"),
        (["demo", "--format", "xml"], "xml"),
        (["demo", "--nonsense"], "nonsense"),
        (["unknown"], "unknown"),
    ],
)
def test_bad_options_are_exit_code_2(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run(*arguments, code=2)
    assert words in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    assert "file" in refused("demo", "--out", tmp_path / "out", *SHORT)
    assert "file" in refused("demo", "--out", tmp_path / "out" / "below", *SHORT)
    assert (tmp_path / "out").read_text() == "mine"


def test_a_directory_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("<p>my own report</p>")
    assert "report.html" in refused("demo", "--out", tmp_path, *SHORT)
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text() == "<p>my own report</p>"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a directory that nobody may write to")
def test_a_place_that_cannot_be_written() -> None:
    refused("demo", "--out", "/proc/self/out", *SHORT)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        refused("demo", "--out", tmp_path / "out", *SHORT)
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.skipif(os.name != "posix", reason="signals as on POSIX")
def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    code = (
        "import sys, counterflow.cli as cli, counterflow.cli.demo as demo\n"
        "real = demo.with_incident\n"
        "def announced(*a, **k):\n"
        "    print('running', flush=True)\n"
        "    return real(*a, **k)\n"
        "demo.with_incident = announced\n"
        "sys.argv = ['counterflow', 'demo', '--out', 'out', '--steps', '100000']\n"
        "cli.main()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=ENVIRONMENT,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"running\n"
    time.sleep(0.5)  # somewhere in the work, far from its end
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert list(tmp_path.iterdir()) == []


def test_a_defect_is_a_traceback_and_exit_code_1(tmp_path: Path) -> None:
    code = (
        "import sys, counterflow.cli as cli, counterflow.cli.demo as demo\n"
        "def broken(*a, **k): raise RuntimeError('a defect')\n"
        "demo.with_incident = broken\n"
        "sys.argv = ['counterflow', 'demo', '--out', 'out']\n"
        "cli.main()\n"
    )
    done = script(code, tmp_path)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "a defect" in done.stderr
