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
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import counterflow as cf

SOURCE = str(Path(cf.__file__).parents[1])
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([SOURCE, *filter(None, [os.environ.get("PYTHONPATH")])]),
    "OPENBLAS_NUM_THREADS": "1",
    "COLUMNS": "100",
    "NO_COLOR": "1",
    "SOURCE_DATE_EPOCH": "1800000000",
}
COMMAND = [sys.executable, "-m", "counterflow.cli"]
SHORT = ["--steps", "400"]


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        env=ENVIRONMENT,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("demo") / "a folder" / "out"
    done = run("demo", "--out", str(out), "--seed", "3", "--format", "json", *SHORT)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return out, json.loads(done.stdout)


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"counterflow {cf.__version__}\n", "")


def test_help_and_import_stay_light() -> None:
    done = run("--help")
    assert done.returncode == 0
    assert "demo" in done.stdout
    heavy = ("numpy", "scipy", "matplotlib", "polars", "safetensors")
    code = f"import sys, counterflow, counterflow.cli; assert not sys.modules.keys() & set({heavy!r})"
    checked = subprocess.run([sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_the_demo_leaves_recording_fit_and_report(demo: tuple[Path, dict[str, Any]]) -> None:
    out, answer = demo
    assert sorted(entry.name for entry in out.iterdir()) == ["fit", "recording.safetensors", "report.html"]
    recording = cf.Recording.load(out / "recording.safetensors")
    assert (recording.names, recording.steps) == (("boiler", "turbine", "water_treatment"), 400)
    fit = cf.load(out / "fit")
    assert fit.provenance.data_digest == recording.digest
    assert (fit.method, fit.provenance.seed) == (answer["method"], 3)
    assert answer["files"] == {
        "recording": str(out / "recording.safetensors"),
        "fit": str(out / "fit"),
        "report": str(out / "report.html"),
    }


def test_the_answers_are_those_of_the_saved_fit_and_of_the_true_plant(demo: tuple[Path, dict[str, Any]]) -> None:
    from counterflow.cli.demo_plant import demo_plant

    out, answer = demo
    plant = demo_plant()
    oracle = cf.fit(cf.Recording.load(out / "recording.safetensors"), plant, method="oracle")
    asked = {"cause": "boiler", "effect": "turbine", "change": {"fuel valve": 5.0}, "horizon": 40, "duration": 10}
    first = answer["questions"][0]
    truth, *estimates = first["answers"]
    assert truth["truth"]
    assert [estimate["truth"] for estimate in estimates] == [False] * len(estimates)
    # the twin run and the oracle are two ways to the truth
    np.testing.assert_allclose(truth["mean"], oracle.effect(**asked).mean, rtol=1e-9, atol=1e-9)
    assert estimates[0]["mean"] == cf.load(out / "fit").effect(**asked).mean.tolist()
    assert [channel["name"] for channel in first["channels"]] == list(plant.unit("turbine").output_names)
    for question in answer["questions"]:
        for estimate in question["answers"]:
            assert np.shape(estimate["mean"]) == (40, len(question["channels"]))
            assert (estimate["lower"] is None) == (estimate["upper"] is None)


def test_the_published_method_is_shown_for_what_it_is(demo: tuple[Path, dict[str, Any]]) -> None:
    out, answer = demo
    page = (out / "report.html").read_text()
    assert any("published method" in text and "cannot recover" in text for text in answer["caveats"])
    assert "cannot recover B_mn" in page
    for question in answer["questions"]:
        published = [entry for entry in question["answers"] if entry["label"] == "the published method"]
        assert len(published) == 1
        true = np.array(question["answers"][0]["mean"][0])
        share = np.array(published[0]["mean"][0]) @ true / (true @ true)
        assert abs(share) < 0.2  # white inputs: next to nothing of the first step is found


def test_the_incident_is_explained_and_mended(demo: tuple[Path, dict[str, Any]]) -> None:
    """A make-up valve stood open: who did it, what would have been, what brings the pressure back."""
    from counterflow.cli.demo_plant import demo_plant

    out, answer = demo
    assert len(answer["incident"]) == 3
    assert max(answer["shares"], key=lambda name: abs(answer["shares"][name])) == "water_treatment"
    assert answer["shares"]["water_treatment"] < -2  # bar
    told = re.search(
        r"would have been (-?[\d.]+) bar, in truth (-?[\d.]+) bar", answer["incident"][0]["sentence"]
    )
    assert told is not None
    assert abs(float(told[1]) - float(told[2])) < 1.5
    wanted = re.search(r"back by \+([\d.]+) bar", answer["incident"][2]["question"])
    assert wanted is not None
    oracle = cf.fit(cf.Recording.load(out / "recording.safetensors"), demo_plant(), method="oracle")
    change = answer["restoration"]
    reached = oracle.effect(list(change), "boiler", change, horizon=30).mean[-1, 0]
    assert reached == pytest.approx(float(wanted[1]), rel=0.2)  # what was learned from 400 minutes does it in truth
    page = (out / "report.html").read_text(encoding="utf-8")
    for told_again in answer["incident"]:
        assert html.escape(told_again["question"]).replace(" %", "\N{NO-BREAK SPACE}%") in page


def test_the_report_has_all_its_parts(demo: tuple[Path, dict[str, Any]]) -> None:
    out, answer = demo
    page = (out / "report.html").read_text(encoding="utf-8")
    for words in (
        "Question 6 of 6", "Who acts on whom", "What was checked", "Before you act on this", "Server loss",
        "none spent: nothing was made private", "Where this comes from", "SHA-256", 'class="graph"', "<desc id=",
    ):  # fmt: skip
        assert words in page, words
    assert all(check["passed"] for check in answer["checks"])  # the model is the true one


class Reader(HTMLParser):
    """Collects what a page would fetch, and what it defines."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("src", "href", "xlink:href", "srcset", "action", "data", "poster"):
                self.links.append(value or "")
            if name.startswith("on"):
                self.handlers.append(name)


def test_the_report_needs_nothing_from_outside(demo: tuple[Path, dict[str, Any]]) -> None:
    page = (demo[0] / "report.html").read_text(encoding="utf-8")
    reader = Reader()
    reader.feed(page)
    assert reader.tags.isdisjoint({"script", "link", "img", "iframe", "object", "embed", "base", "form"})
    assert reader.handlers == []
    assert all(link.startswith("#") for link in reader.links)
    assert {link[1:] for link in reader.links} <= set(reader.ids)
    assert len(set(reader.ids)) == len(reader.ids)
    assert re.search(r"(?i)[a-z]+://|@import|url\((?!#)|//[a-z]", page) is None
    assert "svg" in reader.tags
    assert "#1234" not in page  # marker colours are all replaced
    assert str(demo[0]) not in page  # the page can be passed on


def test_the_same_command_gives_the_same_files_in_place_of_others(
    demo: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    shutil.copytree(demo[0], tmp_path / "out")
    plant = cf.random_plant(units=["pump"], rng=1)
    cf.fit(plant.simulate(50, rng=2), plant, method="oracle").save(tmp_path / "out" / "fit")
    done = run("demo", "--out", "out", "--seed", "3", *SHORT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert str(Path("out") / "report.html") in done.stdout
    for path in demo[0].rglob("*"):
        if path.is_file():
            assert (tmp_path / "out" / path.relative_to(demo[0])).read_bytes() == path.read_bytes(), path.name
    assert len(list((tmp_path / "out").rglob("*"))) == len(list(demo[0].rglob("*")))


def test_a_method_that_does_not_settle_is_refused_on_the_page(tmp_path: Path) -> None:
    done = run("demo", "--out", str(tmp_path / "out"), "--method", "penalty", "--format", "json", *SHORT)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert len(answer["incident"]) == 3
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert ("Refused: " in page) == any(told["sentence"].startswith("Refused") for told in answer["incident"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["demo", "--steps", "3"], "200"),
        (["demo", "--steps", "many"], "steps"),
        (["demo", "--seed", "-1"], "seed"),
        (["demo", "--format", "xml"], "xml"),
        (["demo", "--nonsense"], "nonsense"),
        (["demo", "--method", "magic", *SHORT], "magic"),
        (["unknown"], "unknown"),
    ],
)
def test_bad_options_are_exit_code_2(arguments: list[str], words: str, tmp_path: Path) -> None:
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("counterflow: ")
    return done.stderr


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    assert "file" in refused(run("demo", "--out", str(tmp_path / "out"), *SHORT))
    assert "file" in refused(run("demo", "--out", str(tmp_path / "out" / "below"), *SHORT))
    assert (tmp_path / "out").read_text() == "mine"


def test_a_directory_with_other_things_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("<p>my own report</p>")
    assert "report.html" in refused(run("demo", "--out", str(tmp_path), *SHORT))
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text() == "<p>my own report</p>"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a directory that nobody may write to")
def test_a_place_that_cannot_be_written() -> None:
    refused(run("demo", "--out", "/proc/self/out", *SHORT))


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    try:
        refused(run("demo", "--out", str(tmp_path / "out"), *SHORT))
    finally:
        tmp_path.chmod(0o700)


@pytest.mark.skipif(os.name != "posix", reason="signals as on POSIX")
def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    code = (
        "import sys, counterflow.cli as cli, counterflow.cli.demo as demo\n"
        "real = demo.record_incident\n"
        "def announced(*a, **k):\n"
        "    print('running', flush=True)\n"
        "    return real(*a, **k)\n"
        "demo.record_incident = announced\n"
        "sys.argv = ['counterflow', 'demo', '--out', 'out', '--steps', '300000']\n"
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
        "demo.record_incident = broken\n"
        "sys.argv = ['counterflow', 'demo', '--out', 'out']\n"
        "cli.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "a defect" in done.stderr
