"""Logs on the command line: inspect, prepare, presets and stand-ins."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars
import pytest
from command_line import COMMAND, process, refused, run, script
from command_line import answer as told

import counterflow as cf
from counterflow.cli.federation_file import read_federation


@pytest.fixture
def plant(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    minutes = polars.datetime_range(
        polars.datetime(2024, 5, 1, 6), polars.datetime(2024, 5, 1, 9, 19), "1m", eager=True
    )
    frame = polars.DataFrame(
        {
            "Time": minutes.dt.strftime("%d.%m.%Y %H:%M"),
            "P1_valve": rng.choice(["open", "closed"], 200),
            "P1_flow": rng.standard_normal(200),
            "P1_still": np.ones(200),
            "P2_pump": rng.integers(0, 2, 200),
            "P2_level": [None if rng.random() < 0.1 else float(rng.standard_normal()) for _ in range(200)],
            "P2_note": ["ok then"] * 200,
        }
    )
    path = tmp_path / "plant.csv"
    frame.with_row_index().filter(~polars.col("index").is_between(50, 59)).drop("index").write_csv(path, separator=";")
    return path


def test_inspect(plant: Path) -> None:
    found = told("data", "inspect", plant)
    assert found["command"] == "data inspect"
    assert found["rows"] == 190
    assert found["time"]["step"] == 60.0
    assert found["time"]["gaps"] == [{"after": "2024-05-01 06:49:00", "seconds": 660.0, "rows": 10}]
    kinds = {channel["name"]: channel["kind"] for channel in found["channels"]}
    assert kinds == {
        "P1_valve": "on/off", "P1_flow": "continuous", "P1_still": "constant", "P2_pump": "on/off",
        "P2_level": "continuous", "P2_note": "text",
    }  # fmt: skip
    assert found["groups"] == {"P1": ["P1_valve", "P1_flow", "P1_still"], "P2": ["P2_pump", "P2_level", "P2_note"]}
    done = run("data", "inspect", plant)
    assert done.exit_code == 0
    for word in ("190 rows", "P1: 3 channels", "P1_still: always 1: would be left out", "text such as 'ok then'"):
        assert word in done.stdout, word


def test_from_a_table_to_a_recording(plant: Path, tmp_path: Path) -> None:
    """The draft that inspect writes can be used as it is."""
    draft = tmp_path / "federation.toml"
    assert run("data", "inspect", plant, "--federation", draft).exit_code == 0
    assert "exists" in refused("data", "inspect", plant, "--federation", draft)
    federation = read_federation(draft)
    assert federation.recording["P1"].unit == cf.Unit("P1", 2, ["P1_valve"], ["P1_flow"])
    out = tmp_path / "recording.safetensors"
    found = told("data", "prepare", draft, "--out", out)
    assert cf.Recording.load(out) == federation.recording
    assert found["digest"] == federation.recording.digest
    assert found["preparation"]["rows"] == 200
    assert found["units"][1] == {"name": "P2", "states": 2, "inputs": ["P2_pump"], "outputs": ["P2_level"]}
    assert "exists" in refused("data", "prepare", draft, "--out", out)
    done = run("data", "prepare", draft, "--out", out, "--force")
    assert "10 rows of 200 on the grid (5 %) have no data" in done.stdout
    assert "must end in .safetensors" in refused("data", "prepare", draft, "--out", tmp_path / "r.csv")


def test_options_reach_the_reader(plant: Path, tmp_path: Path) -> None:
    odd = tmp_path / "odd.txt"
    odd.write_text("export\nwhen!flow\nday!m3\n3/4/2024 0:00!1,5\n3/4/2024 0:01!2,5\n")
    arguments = ["data", "inspect", odd, "--separator", "!", "--decimal", ",", "--skip-rows", 1, "--time", "when"]
    assert "day_first" in refused(*arguments)
    assert told(*arguments, "--day-first")["time"]["start"] == "2024-04-03 00:00:00"
    assert told(*arguments, "--month-first")["time"]["start"] == "2024-03-04 00:00:00"
    found = told(*arguments, "--time-format", "%d/%m/%Y %H:%M", "--timezone", "Europe/Berlin")
    assert found["time"]["start"] == "2024-04-02 22:00:00Z"
    assert found["channels"][0]["mean"] == 2.0


@pytest.mark.parametrize(("dataset", "units"), [("hai", 4), ("swat", 6)])
def test_from_a_stand_in_to_a_federation(tmp_path: Path, dataset: str, units: int) -> None:
    folder, out = tmp_path / "files", tmp_path / "out"
    made = told("data", "stand-in", dataset, "--out", folder, "--rows", 400)
    assert made["notice"] == "simulated numbers; not the real data set"
    files = [file for file in made["files"] if not file.endswith(".txt")]
    found = told("data", dataset, *files, "--out", out)
    assert sorted(path.name for path in out.iterdir()) == [
        "federation.toml", "recording.safetensors", "report.json", "report.md",
    ]  # fmt: skip
    assert len(found["units"]) == units
    federation = read_federation(out / "federation.toml")
    assert federation.recording.digest == found["digest"]
    assert federation.recording == cf.Recording.load(out / "recording.safetensors")
    assert json.loads((out / "report.json").read_text()) == found
    report = (out / "report.md").read_text()
    assert all(f"| {tag} |" in report for tag in found["tags"])
    assert all(step["text"] in report for step in found["preparation"]["steps"])
    assert "exists" in refused("data", dataset, *files, "--out", out)
    done = run("data", dataset, *files, "--out", out, "--force", "--rows", 300)
    assert done.exit_code == 0, done.output
    assert cf.Recording.load(out / "recording.safetensors").rows == 300


def test_stand_ins_say_what_they_are(tmp_path: Path) -> None:
    done = run("data", "stand-in", "swat", "--version", "attack-v0", "--rows", 20, "--out", tmp_path / "x")
    assert "not the real data set" in done.stdout
    assert "exists" in refused(
        "data", "stand-in", "swat", "--version", "attack-v0", "--rows", 20, "--out", tmp_path / "x"
    )
    assert "is not known" in refused("data", "stand-in", "hai", "--version", "7", "--out", tmp_path / "y")
    assert not (tmp_path / "y").exists()


@pytest.mark.parametrize("command", ["inspect", "hai", "swat"])
def test_broken_files(tmp_path: Path, command: str) -> None:
    (tmp_path / "a.csv").write_bytes(b"\0" * 99)
    more = () if command == "inspect" else ("--out", tmp_path / "out")
    for name, said in (("none.csv", "there is no file"), ("a.csv", "zero bytes")):
        assert said in refused("data", command, tmp_path / name, *more)
    assert not (tmp_path / "out").exists()


def test_as_a_process(plant: Path) -> None:
    """No traceback, one line, exit code 2; and nothing heavy is imported for the help."""
    done = process(*COMMAND, "data", "inspect", plant, "--time", "clock")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "has no time column 'clock'" in done.stderr
    code = "import sys; from counterflow.cli import app; assert not {'polars', 'numpy'} & set(sys.modules)"
    assert script(code).returncode == 0


def test_no_draft_is_written_of_a_table_that_makes_no_unit(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("time,a.PV\n2024-01-01 00:00,1\n")
    reason, drafted = "no channel can be used: 'a.PV' is left out (always 1)", tmp_path / "federation.toml"
    assert reason in refused("data", "inspect", tmp_path / "a.csv", "--federation", drafted)
    assert not drafted.exists()
    shown = run("data", "inspect", tmp_path / "a.csv").stdout
    assert reason in " ".join(shown.split())
    assert "next:" not in shown


def test_the_draft_of_local_times_names_their_zone(tmp_path: Path) -> None:
    level = np.random.default_rng(0).normal(size=240)
    stamps = [f"2024-10-27 0{h}:{m:02d}" for h in (1, 2, 2, 3) for m in range(60)]
    rows = [
        f"{stamp},{value}" for k, (stamp, value) in enumerate(zip(stamps, level, strict=True)) if not 120 <= k < 145
    ]
    (tmp_path / "a.csv").write_text("\n".join(["time,TI-101", *rows]))
    drafted = tmp_path / "federation.toml"
    told("data", "inspect", tmp_path / "a.csv", "--federation", drafted)
    assert 'timezone = "Europe/Berlin"' in drafted.read_text()
    recording = read_federation(drafted).recording
    assert recording.rows == 240
    assert int(np.isfinite(next(iter(recording.parts.values())).y).sum()) == 215
