"""Controllers on the command line: loops in a federation file, --controllers and --law."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import command_line
import polars
import pytest
from closed_plant import plant, recording

import counterflow as cf
from counterflow.cli.federation_file import read_federation
from counterflow.errors import CounterflowError

DATA = recording(480)
WITH_LISTS = """[units.boiler]
log = "log.csv"
inputs = ["feed", "valve", "SP"]
outputs = ["pressure", "flow"]
"""
WITH_PATTERNS = """[data]
file = "log.csv"
[units.boiler]
tags = "*"
inputs = ["feed", "valve", "SP"]
"""
LOOP = '[[units.boiler.loops]]\nmoves = "valve"\nreads = "{reads}"\ntarget = "SP"\n'


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("closed")
    cf.fit(DATA, plant().locals()).save(folder / "fit")
    DATA.save(folder / "recording.safetensors")
    return folder


@pytest.mark.parametrize("text", [WITH_LISTS, WITH_PATTERNS])
@pytest.mark.parametrize("dated", [True, False])
def test_loops_of_a_file_are_there_whatever_its_data_come_from(tmp_path: Path, text: str, dated: bool) -> None:
    part = DATA["boiler"]
    columns = {name: part.u[:, k] for k, name in enumerate(part.unit.input_names)}
    columns |= {name: part.y[:, k] for k, name in enumerate(part.unit.output_names)}
    times = {"time": [datetime(2024, 1, 1) + timedelta(minutes=t) for t in range(DATA.rows)]} if dated else {}
    polars.DataFrame(times | columns).write_csv(tmp_path / "log.csv")
    file = tmp_path / "federation.toml"
    file.write_text(text + LOOP.format(reads="pressure"), encoding="utf-8")
    unit = read_federation(file).recording["boiler"].unit
    assert unit.loops == (cf.Loop("valve", "pressure", "SP"),)
    assert [channel.role for channel in unit.inputs] == ["", "manipulated", "set point"]
    file.write_text(text + LOOP.format(reads="nothing"), encoding="utf-8")
    with pytest.raises(CounterflowError, match=r"federation.toml:\d+: .*'nothing'"):
        read_federation(file)


def run(saved: Path, *more: str, code: int = 0) -> str:
    return command_line.run("whatif", saved / "fit", *more, code=code).output


def told(saved: Path, *more: str) -> dict[str, Any]:
    return command_line.answer("whatif", saved / "fit", *more)


EFFECT = ("--cause", "boiler", "--effect", "turbine", "--change", "feed=0.5")
PAST = ("--start", "200", "--stop", "230", "--effect", "turbine")


def test_a_loop_in_manual_or_tuned_otherwise(saved: Path) -> None:
    assert told(saved, *EFFECT)["controllers"] == "reacting"
    assert told(saved, *EFFECT, "--controllers", "held")["controllers"] == "held"
    manual = told(saved, *EFFECT, "--law", "boiler.valve=manual")
    assert manual["controllers"] == "reacting"
    assert "boiler valve in manual" in str(manual["sentence"])
    fit = cf.load(saved / "fit").with_laws({"boiler": {"valve": cf.Manual()}})
    assert manual["mean"] == fit.effect("boiler", "turbine", {"feed": 0.5}, 50).mean.tolist()
    tuned = told(saved, *EFFECT, "--law", "boiler.valve=pid gain=3, integral_time=4 limits=-3:3")
    assert "boiler valve under PI: gain 3, integral time 4, limits -3 to 3" in str(tuned["sentence"])
    rows = str(saved / "recording.safetensors")
    past = told(saved, "--recording", rows, *PAST, "--law", "boiler.valve=manual")
    assert str(past["sentence"]).startswith("Had boiler valve been in manual in rows 200 to 229")


@pytest.mark.parametrize(
    ("law", "said"),
    [
        ("boiler.valve", "UNIT.INPUT=LAW"),
        ("valve=manual", "valve"),
        ("boiler.feed=manual", "'feed'"),
        ("pump.stroke=manual", "'stroke'"),
        ("boiler.valve=fuzzy", "ratio, schedule, manual"),
        ("boiler.valve=pid", "gain"),
        ("boiler.valve=pid gain=high", "such as manual"),
        ("boiler.valve=pid gain=inf", "gain"),
        ("boiler.valve=own name=1", "one of"),
    ],
)
def test_a_law_that_makes_no_sense_is_told(saved: Path, law: str, said: str) -> None:
    assert said in run(saved, *EFFECT, "--law", law, code=2)


def test_what_does_not_go_together(saved: Path) -> None:
    assert "reacting" in run(saved, *EFFECT, "--law", "boiler.valve=manual", "--controllers", "held", code=2)
    twice = ("--law", "boiler.valve=manual", "--law", "boiler.valve=manual")
    assert "twice" in run(saved, *EFFECT, *twice, code=2)
    assert "--change" in run(saved, "--cause", "boiler", "--effect", "turbine", "--law", "boiler.valve=manual", code=2)
