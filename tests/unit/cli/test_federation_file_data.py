"""The data of a federation file: a shared table by pattern, logs by their times, and mistakes with their lines."""

from __future__ import annotations

from pathlib import Path

import command_line
import numpy as np
import polars
import pytest

import counterflow as cf
from counterflow.cli.federation_file import Federation, read_federation

HEAD = """\
[data]
file = "plant.csv"
dt = 60

"""
UNITS = """\
[units.boiler]
tags = "P1_*"
inputs = ["*_D"]

[units.turbine]
tags = {regex = "P2_.*"}
inputs = [{name = "P2_gov_D", unit = "%", limits = [0, 100]}]
outputs = ["P2_speed"]
states = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    start = np.datetime64("2024-05-01T06:00:00", "us")
    frame = polars.DataFrame(
        {
            "Time": start + 60_000_000 * np.arange(50),
            **{name: rng.standard_normal(50) for name in ("P1_valve_D", "P1_flow", "P2_gov_D", "P2_speed", "P2_note")},
            "P1_still": np.ones(50),
        }
    )
    frame.write_csv(tmp_path / "plant.csv", separator=";", datetime_format="%d.%m.%Y %H:%M:%S")
    frame.write_parquet(tmp_path / "plant.parquet")
    frame[:20].write_csv(tmp_path / "part1.csv")
    frame[20:].write_csv(tmp_path / "part2.csv")
    frame.select("Time", "P1_valve_D", "P1_flow")[:40].write_csv(tmp_path / "boiler.csv")
    frame.select("Time", "P2_gov_D", "P2_speed")[10:].write_parquet(tmp_path / "turbine.parquet")
    return tmp_path


def read(folder: Path, text: str) -> Federation:
    (folder / "f.toml").write_text(text)
    return read_federation(folder / "f.toml")


def refused(folder: Path, text: str) -> str:
    path = folder / "federation.toml"
    path.write_text(text)
    said = command_line.refused("fit", path, "--out", folder / "fit")
    assert said.startswith(f"counterflow: {path}:"), said
    return said.removeprefix(f"counterflow: {path}:").strip()


@pytest.mark.parametrize(
    "source", ['file = "plant.csv"', 'file = "plant.parquet"', 'files = ["part2.csv", "part1.csv"]']
)
def test_units_of_a_shared_table(folder: Path, source: str) -> None:
    found = read(folder, HEAD.replace('file = "plant.csv"', source) + UNITS)
    frame = polars.read_parquet(folder / "plant.parquet")
    boiler, turbine = found.recording["boiler"], found.recording["turbine"]
    assert boiler.unit.output_names == ("P1_flow",)  # the constant one was dropped
    np.testing.assert_allclose(boiler.u[:, 0], frame["P1_valve_D"], rtol=1e-12)
    assert turbine.unit == cf.Unit("turbine", 3, [cf.Channel("P2_gov_D", "%", (0, 100))], ["P2_speed"])
    assert found.models is None
    assert found.recording.dt == 60.0
    assert found.preparation is not None
    assert found.preparation.dropped["boiler"] == {"P1_still": "always 1"}
    assert found.preparation.start == "2024-05-01 06:00:00"


def test_options_of_the_data(folder: Path) -> None:
    text = HEAD.replace(
        "dt = 60", 'dt = 300\ntime = "Time"\nresample = "last"\nstart = 2024-05-01T06:10:00\nstop = "2024-05-01 06:30"'
    )
    found = read(folder, text + UNITS)
    assert (found.recording.rows, found.recording.dt) == (4, 300.0)
    frame = polars.read_parquet(folder / "plant.parquet")
    np.testing.assert_allclose(found.recording["boiler"].y[0, 0], frame["P1_flow"][14], rtol=1e-12)
    found = read(folder, '[federation]\ndt = 120\n[data]\nfile = "plant.csv"\n' + UNITS)
    assert found.recording.dt == 120.0


def test_models_keep_constant_channels(folder: Path) -> None:
    model = "A = [[0.5]]\nB = [[1.0]]\nC = [[1.0], [1.0]]\nQ = [[1.0]]\nR = [[1.0, 0.0], [0.0, 1.0]]\n"
    found = read(folder, HEAD + '[units.boiler]\ntags = "P1_*"\ninputs = ["*_D"]\n' + model)
    assert found.recording["boiler"].unit == cf.Unit("boiler", 1, ["P1_valve_D"], ["P1_flow", "P1_still"])
    assert found.models is not None
    told = refused(folder, HEAD + '[units.boiler]\ntags = "P1_*"\n' + model)
    assert told.startswith("5: units.boiler: it has 0 inputs, but its model has 1")


LOGS = """\
[units.boiler]
log = "boiler.csv"
inputs = ["P1_valve_D"]
outputs = ["P1_flow"]
[units.turbine]
log = "turbine.parquet"
inputs = ["P2_gov_D"]
outputs = ["P2_speed"]
"""


def test_logs_with_dates_are_aligned(folder: Path) -> None:
    found = read(folder, LOGS)
    frame = polars.read_parquet(folder / "plant.parquet")[10:40]
    assert (found.recording.rows, found.recording.dt) == (30, 60.0)
    np.testing.assert_allclose(found.recording["boiler"].y[:, 0], frame["P1_flow"], rtol=1e-12)
    np.testing.assert_allclose(found.recording["turbine"].u[:, 0], frame["P2_gov_D"], rtol=1e-12)
    assert found.preparation is not None
    assert found.preparation.stretches == ((0, 30),)
    found = read(folder, "[federation]\ndt = 120\n" + LOGS)
    assert (found.recording.rows, found.recording.dt) == (15, 120.0)


def test_options_for_logs(folder: Path) -> None:
    text = (folder / "boiler.csv").read_text().replace(",", "|").replace("Time", "when")
    (folder / "boiler.csv").write_text(text)
    polars.read_parquet(folder / "turbine.parquet").rename({"Time": "when"}).write_parquet(folder / "turbine.parquet")
    found = read(folder, '[data]\ntime = "when"\nlongest_hold = 600\n' + LOGS)
    assert found.recording.rows == 30


def test_counts_are_not_aligned_unless_it_is_asked_for(folder: Path) -> None:
    for name, first in (("boiler", 0), ("turbine", 5)):
        frame = polars.DataFrame({"time": range(first, first + 20), "u": np.arange(20.0), "y": np.arange(20.0)})
        frame.write_csv(folder / f"{name}.csv")
    text = "".join(f'[units.{n}]\nlog = "{n}.csv"\ninputs = ["u"]\noutputs = ["y"]\n' for n in ("boiler", "turbine"))
    by_row = read(folder, text)
    assert by_row.recording.rows == 20
    assert by_row.preparation is not None
    assert by_row.preparation.dropped == {"boiler": {}, "turbine": {}}
    by_time = read(folder, '[data]\ntime = "time"\n' + text)
    assert by_time.recording.rows == 15
    assert by_time.recording["boiler"].y[0, 0] == 5


MISTAKES = [
    (HEAD + "[units]\n", "5: units: no unit is described"),
    (HEAD.replace("dt = 60", "dtt = 60") + UNITS, "3: data.dtt: this key is not known; did you mean 'dt'?"),
    (HEAD.replace("dt = 60", "dt = 0") + UNITS, "3: data.dt: dt is 0: give seconds, above 0"),
    (HEAD.replace("dt = 60", "resample = 'max'") + UNITS, "3: data.resample: resample is 'max': give one of"),
    (HEAD.replace("dt = 60", "skip_rows = -1") + UNITS, "3: data.skip_rows: skip_rows is -1: give a wh"),
    (HEAD.replace("dt = 60", "start = 'soon'") + UNITS, "2: data.file: start is 'soon': give a date"),
    (HEAD.replace("dt = 60", "time = 'clock'") + UNITS, "2: data.file: plant.csv has no time column 'clock'"),
    (HEAD.replace("plant.csv", "gone.csv") + UNITS, "2: data.file: there is no file 'gone.csv'"),
    (HEAD + "files = ['plant.csv']\n", "5: data.files: 'file' stands there, too"),
    (HEAD.replace('file = "plant.csv"', "files = []") + UNITS, "2: data.files: must be a list of file names"),
    (HEAD.replace('file = "plant.csv"', "files = ['part1.csv',\n'gone.csv']") + UNITS, "3: data.files[1]: there is no"),
    (HEAD + '[federation]\ndt = 30\n' + UNITS, "3: data.dt: is 60, [federation] has 30; give it once"),
    (HEAD + '[federation]\nrecording = "plant.csv"\n' + UNITS, "1: data: there is a recording, too"),
    (HEAD + UNITS.replace('"P1_*"', '"P9_*"'), "6: units.boiler.tags: the pattern 'P9_*' fits no column"),
    (HEAD + UNITS.replace('["*_D"]', '["*_D",\n"P1_flov"]'), "8: units.boiler.inputs[1]: the column 'P1_flov' fits"),
    (HEAD + UNITS.replace('["*_D"]', "[7]"), "7: units.boiler.inputs[0]: inputs[0] is 7"),
    (HEAD + UNITS.replace("[0, 100]", "[100, 0]"), "11: units.turbine.inputs[0].limits: inputs[0]: channel P2_gov_D"),
    (HEAD + UNITS.replace("P2_.*", "P2_(.*"), "10: units.turbine.tags: tags[0] is no regular expression"),
    (HEAD + UNITS.replace('"P2_speed"', '"P2_speed", "P1_flow"'), "12: units.turbine.outputs[1]: column 'P1_flow' b"),
    (HEAD + UNITS.replace('"P2_speed"', '"P2_gov_D"'), "12: units.turbine.outputs[0]: column 'P2_gov_D' is both"),
    (HEAD + UNITS + "exclude = ['nothing']\n", "14: units.turbine.exclude[0]: the column 'nothing' fits no column"),
    (HEAD + UNITS + "log = 'boiler.csv'\n", "14: units.turbine.log: this key is not known"),
    (HEAD + "[units.x]\nstates = 2\n", "5: units.x: give 'tags'"),
    (HEAD + '[units."a/b"]\ntags = "P1_*"\n', '5: units."a/b": unit: name \'a/b\' holds a slash'),
    (HEAD + UNITS + "[units.still]\noutputs = ['P1_still']\n", "15: units.still.outputs[0]: column 'P1_still' belongs"),
    (HEAD + "[units.still]\noutputs = ['P1_still']\n", "2: data.file: unit 'still': no output is left: 'P1_still' is"),
    ("[data]\ndt = 60\n" + UNITS, "3: units.boiler: it has no data"),
    ("[data]\nlongest_hold = 5\n" + LOGS.replace("boiler.csv", "count.csv"), "2: data.longest_hold: needs logs that"),
    (LOGS.replace("P2_speed", "P2_sped"), "8: units.turbine.outputs[0]: the column 'P2_sped' fits no column"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), MISTAKES)
def test_mistakes(folder: Path, text: str, said: str) -> None:
    (folder / "count.csv").write_text("P1_valve_D,P1_flow\n1,2\n2,3\n")
    told = refused(folder, text)
    assert told.startswith(said), told


def test_broken_tables_are_told_with_the_line(folder: Path) -> None:
    (folder / "plant.csv").write_bytes(b"\x00\x01")
    assert refused(folder, HEAD + UNITS).startswith("2: data.file: plant.csv cannot be read: it holds zero bytes")
    (folder / "plant.csv").write_text("Time;P1_flow\n2024-05-01;1\n2024-05-02;lovely\n")
    told = refused(folder, HEAD + '[units.boiler]\ntags = "P1_*"\n')
    assert told.startswith("2: data.file: plant.csv: column 'P1_flow' holds 'lovely' in row 1 (line 3), which is not")
