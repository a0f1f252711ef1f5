"""From the historian's file to an answer: three commands, no file written by hand, six disguises, and the truth."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import polars
import pytest
from command_line import answer as told
from typer.testing import CliRunner

import counterflow as cf
from counterflow.cli import app
from counterflow.data import sample

WINDOW = ("2024-11-01 16:00", "2024-11-01 17:00")
START, STOP = 1200, 1260
QUESTION = ["--start", WINDOW[0], "--stop", WINDOW[1], "--cause", "area_1", "--change", "FIC-101.SP=+1"]
_ANY_SHELL = {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}  # which shell a test runs in is not tested
UNITS = {
    "area_1": (("FIC-101.SP",), {"FIC-101.PV", "FIC-101.OP", "LI-102.PV"}),
    "area_2": (("TIC-201.OP",), {"TIC-201.PV", "LI-202.PV"}),
    "area_3": (("FIC-301.OP",), {"AI-302.PV", "LI-303.PV"}),
}


@pytest.fixture(scope="module")
def truth() -> dict[str, np.ndarray]:
    """What each channel would have done: the simulator again, with the same disturbances and another set point."""
    usual = sample.simulate()
    feed = usual.columns["FIC-101.SP"].copy()
    feed[START:STOP] += 1.0
    other = sample.simulate(do={"FIC-101.SP": feed})
    return {tag: (other.clean[tag] - usual.clean[tag])[START:STOP] for tag in sample.OUTPUTS}


def judged(channels: dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]], truth: dict[str, np.ndarray]) -> None:
    """Every channel that moves is close to the truth, which lies within the intervals mostly."""
    assert set(channels) == set(truth)
    inside = []
    for tag, (mean, lower, upper) in channels.items():
        size = np.abs(truth[tag]).max()
        assert np.sqrt(np.mean((mean - truth[tag]) ** 2)) < 0.15 * size, tag
        inside.append((lower <= truth[tag] + 1e-9) & (truth[tag] <= upper + 1e-9))
    assert np.mean(inside) > 0.85


@pytest.mark.slow
@pytest.mark.parametrize("form", ["wide", "sql"])  # all others are the same recording: see below
def test_three_commands(tmp_path: Path, form: str, truth: dict[str, np.ndarray]) -> None:
    file = sample.write(tmp_path, form)
    source = ["--sql", "select * from log", "--database", file] if form == "sql" else [file]
    federation, fit, out = tmp_path / "federation.toml", tmp_path / "fit", tmp_path / "answer.parquet"
    found = told("data", "inspect", *source, "--federation", federation)
    drafted = {
        unit["name"]: (tuple(c["name"] for c in unit["inputs"]), {c["name"] for c in unit["outputs"]})
        for unit in found["draft"]["units"]
    }
    assert drafted == UNITS
    units = {channel["name"]: channel["unit"] for unit in found["draft"]["units"] for channel in unit["outputs"]}
    assert units == sample.OUTPUTS
    fitted = told("fit", federation, "--out", fit)
    assert fitted["rows"] == sample.ROWS
    answer = told("whatif", fit, "--recording", federation, *QUESTION, "--out", out)
    assert "been 1 m3/h higher from 2024-11-01 16:00 to 16:59" in answer["sentence"]
    world, frame = answer["units"], polars.read_parquet(out)
    channels = {}
    for unit in world.values():
        arrays = [np.array(unit[key], float) for key in ("factual", "mean", "lower", "upper")]
        for k, channel in enumerate(unit["channels"]):
            factual, mean, lower, upper = (array[:, k] for array in arrays)
            known = np.isfinite(factual)
            for bound in (mean, lower, upper):
                bound[known] -= factual[known]
                bound[~known] = np.nan
            fine = [np.where(known, bound, truth[channel["name"]]) for bound in (mean, lower, upper)]
            channels[channel["name"]] = tuple(fine)
    judged(channels, truth)  # type: ignore[arg-type]
    assert str(frame["time"].min()) == "2024-11-01 16:00:00"
    assert str(frame["time"].max()) == "2024-11-01 16:59:00"


@pytest.mark.slow
def test_three_lines_of_python(truth: dict[str, np.ndarray]) -> None:
    recording, _ = cf.read_logs(sample.path())
    fit = cf.fit(recording)
    worlds = fit.counterfactual(recording, add={"area_1": {"FIC-101.SP": 1.0}}, start=WINDOW[0], stop=WINDOW[1])
    channels = {}
    for world in worlds.values():
        assert world.lower is not None
        assert world.upper is not None
        for k, name in enumerate(world.channels):
            channels[name] = tuple(array[:, k] - world.was[:, k] for array in (world.mean, world.lower, world.upper))
    judged(channels, truth)  # type: ignore[arg-type]


def test_all_forms_are_one_recording(tmp_path: Path) -> None:
    """Whatever it is disguised as, the same numbers come out, and the same draft."""
    wide, _ = cf.read_logs(sample.path())
    for form in sample.FORMS:
        file = sample.write(tmp_path, form)
        source = cf.data.read_sql("select * from log", file) if form == "sql" else file  # type: ignore[attr-defined]
        recording, _ = cf.read_logs(source)
        assert recording.names == wide.names, form
        assert recording.calendar == wide.calendar, form
        for name, part in recording.items():
            order = [part.unit.output_names.index(tag) for tag in wide[name].unit.output_names]
            np.testing.assert_array_equal(part.y[:, order], wide[name].y, err_msg=form)
            np.testing.assert_array_equal(part.u, wide[name].u, err_msg=form)
            assert {(c.name, c.unit) for c in part.unit.outputs} == {(c.name, c.unit) for c in wide[name].unit.outputs}


def test_options_are_carried_into_the_draft(tmp_path: Path) -> None:
    """Whatever was said to read the table stands in the draft, so that fit reads it in the same way."""
    path = tmp_path / "odd.txt"
    rows = [f"3/4/2024 0:{k:02d}!{k % 5},5!{k % 7},25!{k // 10 % 2}" for k in range(60)]
    path.write_bytes("\n".join(["Export", "wann!TI-101!TI-201!P-201", "Tag!°C!°C!-", *rows]).encode("cp1252"))
    options = [
        "--separator", "!", "--decimal", ",", "--skip-rows", 1, "--skip-after-header", 1, "--time", "wann",
        "--day-first", "--timezone", "Europe/Berlin", "--encoding", "cp1252",
    ]  # fmt: skip
    draft = tmp_path / "federation.toml"
    told("data", "inspect", path, *options, "--federation", draft)
    text = draft.read_text()
    for line in (
        'separator = "!"',
        "skip_rows = 1",
        "skip_after_header = 1",
        "day_first = true",
        'encoding = "cp1252"',
    ):
        assert line in text, line
    prepared = told("data", "prepare", draft, "--out", tmp_path / "recording.safetensors")
    assert prepared["preparation"]["start"] == "2024-04-02 22:00:00Z"
    recording = cf.Recording.load(tmp_path / "recording.safetensors")
    assert recording.calendar is not None
    assert recording.calendar.shown(0) == "2024-04-03 00:00 CEST"
    assert recording["area_1"].unit.outputs[0].unit == "°C"


def test_folders_and_archives_in_a_draft(tmp_path: Path) -> None:
    lines = sample.path().read_text("utf-8").splitlines()
    head, rows = lines[1], lines[3:]
    folder = tmp_path / "months"
    folder.mkdir()
    for k in range(3):
        (folder / f"part{k}.csv").write_text("\n".join([head, *rows[k * 800 : (k + 1) * 800]]) + "\n", "utf-8")
    with zipfile.ZipFile(tmp_path / "months.zip", "w") as archive:
        for path in folder.iterdir():
            archive.write(path, path.name)
    digests = set()
    for source in (folder, tmp_path / "months.zip"):
        draft = tmp_path / f"{source.stem}-{source.suffix[1:]}.toml"
        told("data", "inspect", source, "--federation", draft)
        digests.add(told("data", "prepare", draft, "--out", draft.with_suffix(".safetensors"))["digest"])
    assert len(digests) == 1


def test_patterns_go_with_a_log_for_each_unit(tmp_path: Path) -> None:
    frame = polars.read_csv(sample.path(), skip_lines=1, skip_rows_after_header=1, infer_schema_length=0)
    for area in "123":
        own = [name for name in frame.columns if "-" in name and name.split("-")[1][0] == area]
        frame.select("Timestamp", *own).write_csv(tmp_path / f"area{area}.csv")
    (tmp_path / "f.toml").write_text(
        '[units.feed]\nlog = "area1.csv"\ntags = "*"\ninputs = ["*.SP"]\nexclude = ["PI-*"]\n'
        '[units.heater]\nlog = "area2.csv"\ninputs = ["*.OP"]\noutputs = {regex = ".*PV"}\n'
        '[units.dosing]\nlog = "area3.csv"\ninputs = ["FIC-301.OP"]\noutputs = ["AI-302.PV", "LI-303.PV"]\n'
    )
    told("data", "prepare", tmp_path / "f.toml", "--out", tmp_path / "r.safetensors")
    recording = cf.Recording.load(tmp_path / "r.safetensors")
    assert recording["feed"].unit.input_names == ("FIC-101.SP",)
    assert recording["heater"].unit.output_names == ("TIC-201.PV", "LI-202.PV")
    (tmp_path / "f.toml").write_text('[units.feed]\nlog = "area1.csv"\ntags = "XY-*"\n')
    done = CliRunner().invoke(
        app, ["data", "prepare", str(tmp_path / "f.toml"), "--out", str(tmp_path / "x.safetensors")]
    )
    assert "f.toml:3: units.feed.tags: the pattern 'XY-*' fits no column" in done.stderr


def test_data_read_writes_one_clean_table(tmp_path: Path) -> None:
    file = sample.write(tmp_path, "cp1252")
    for name in ("plant.parquet", "plant.feather", "plant2.csv"):
        found = told("data", "read", file, "--out", tmp_path / name)
        assert found["units"]["TIC-201.PV"] == "°C"
        again, _ = cf.read_logs(tmp_path / name)
        assert again == cf.read_logs(file)[0]
    refused = CliRunner().invoke(app, ["data", "read", "--sql", "select 1", "--out", str(tmp_path / "x.parquet")])
    assert refused.exit_code == 2
    assert "--sql and --database go together" in refused.stderr


@pytest.mark.parametrize("arguments", [["-h"], ["data", "-h"], ["whatif", "-h"], ["--show-completion", "bash"]])
def test_the_command_line_as_a_module(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "counterflow", *arguments], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(cf.__file__).parents[1]), **_ANY_SHELL},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "counterflow" in done.stdout


def test_completion_offers_commands_without_importing_them() -> None:
    code = (
        "import os, sys\n"
        "os.environ.update(_COUNTERFLOW_COMPLETE='complete_bash', COMP_WORDS='counterflow da', COMP_CWORD='1')\n"
        "from counterflow.cli import app\n"
        "try:\n    app(prog_name='counterflow')\nexcept SystemExit:\n    pass\n"
        "assert 'numpy' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(cf.__file__).parents[1])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["data"]


def test_verbose_tells_where_an_error_comes_from(tmp_path: Path) -> None:
    arguments = ["data", "inspect", str(tmp_path / "none.csv")]
    assert "Traceback" not in CliRunner().invoke(app, arguments).stderr
    assert "Traceback" in CliRunner().invoke(app, ["--verbose", *arguments]).stderr


def test_a_log_in_place_of_its_description(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["fit", str(sample.path()), "--out", str(tmp_path / "fit")])
    assert done.exit_code == 2
    assert "counterflow data inspect" in done.stderr
