"""Federation and plant files: every mistake is told in one line that points at its line."""

from __future__ import annotations

import shutil
from pathlib import Path

import command_line
import numpy as np
import polars
import pytest

import counterflow as cf
from counterflow.cli.federation_file import (
    federation_text,
    read_federation,
    read_plant,
)
from counterflow.plant.model_file import load_model, model_bytes, save_model

UNITS = [
    cf.Unit("boiler", 1, [cf.Channel("valve", "%", (0, 100))], [cf.Channel("pressure", "bar"), "flow"]),
    cf.Unit("water treatment", 1, ["dosing"], [cf.Channel("level", "cm", (0, float("inf")))]),
]
HEAD = '[federation]\nrecording = "recording.safetensors"\n'
BOILER = """\
[units.boiler]
A = [[0.5]]
B = [[1.0]]
C = [[1.0], [2.0]]
Q = [[0.1]]
R = [[1.0, 0.0], [0.0, 1.0]]
"""
WATER = """\
[units."water treatment"]
model = "models/water treatment.safetensors"
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    plant = cf.random_plant(UNITS, rng=1)
    recording = plant.simulate(60, rng=2)
    recording.save(folder / "recording.safetensors")
    (folder / "models").mkdir()
    for unit in UNITS:
        save_model(plant.local(unit.name), folder / "models" / f"{unit.name}.safetensors")
        part = recording[unit.name]
        columns = dict(zip(unit.input_names, part.u.T, strict=True)) | dict(
            zip(unit.output_names, part.y.T, strict=True)
        )
        frame = polars.DataFrame({"time": np.arange(61), **columns})
        frame.write_csv(folder / f"{unit.name}.csv")
        frame.write_parquet(folder / f"{unit.name}.parquet")
    return folder


@pytest.fixture
def folder(base: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(base, tmp_path / "data"))


def refused(folder: Path, text: str | bytes, command: str = "fit") -> str:
    """What the command says to this file, without the path: "12: units.boiler...."."""
    path = folder / "federation.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    arguments = ["fit", str(path), "--out", str(folder / "fit")]
    if command == "simulate":
        arguments = ["simulate", "--plant", str(path), "--out", str(folder / "new" / "r.safetensors"), "--steps", "9"]
    before = sorted(folder.rglob("*"))
    said = command_line.refused(*arguments)
    assert sorted(folder.rglob("*")) == before
    assert said.startswith(f"counterflow: {path}:")
    return said.removeprefix(f"counterflow: {path}:").strip()


# ---- what works


def test_a_written_file_reads_back(folder: Path) -> None:
    models = {unit.name: f"models/{unit.name}.safetensors" for unit in UNITS}
    text = federation_text(UNITS, 60.0, recording="recording.safetensors", models=models, seed=7)
    (folder / "f.toml").write_text(text.replace("dt = 60.0", "dt = 1.0"))
    found = read_federation(folder / "f.toml")
    assert found.recording == cf.Recording.load(folder / "recording.safetensors")
    assert found.recording.units == tuple(UNITS)
    assert (found.method, found.seed, found.options) == ("sufficient", 7, {})
    assert found.models == {u.name: load_model(folder / models[u.name]) for u in UNITS}


def test_channels_may_be_named_anew_in_measure_and_limits(folder: Path) -> None:
    text = HEAD + BOILER + 'inputs = [{name = "valve", unit = "mm", limits = [-1, inf]}]\n' + WATER
    (folder / "f.toml").write_text(text + "[options]\ntol = 1e-3\n")
    found = read_federation(folder / "f.toml")
    assert found.recording["boiler"].unit.inputs == (cf.Channel("valve", "mm", (-1, float("inf"))),)
    assert found.recording["boiler"].unit.outputs == UNITS[0].outputs
    assert found.options == {"tol": 1e-3}
    assert found.models is not None
    assert found.models["boiler"].A.tolist() == [[0.5]]


def test_privacy_in_the_words_of_the_library(folder: Path) -> None:
    table = '[privacy]\nepsilon = 1\ndelta = 1e-6\nwindow = 3\nledger = "budgets"\nmodels = [0.5, 1e-7]\n'
    (folder / "f.toml").write_text(HEAD + BOILER + WATER + table)
    wanted = cf.Privacy(1.0, 1e-6, window=3, ledger=folder / "budgets", models=(0.5, 1e-7))
    assert read_federation(folder / "f.toml").privacy == wanted
    (folder / "f.toml").write_text(HEAD + BOILER + WATER)
    assert read_federation(folder / "f.toml").privacy is None


def test_known_couplings_in_the_file_and_on_the_command_line(folder: Path) -> None:
    units = WATER.replace('"water treatment"', "boiler", 1).replace("water treatment", "boiler") + WATER
    path, out = folder / "f.toml", str(folder / "fit")
    path.write_text(HEAD + units + '[options]\nedges = [["boiler", "water treatment"]]\n')

    def known(*arguments: str) -> str:
        command_line.run("fit", path, "--out", out, "--force", *arguments, code=0)
        return str(cf.load(out).known_edges)

    assert known() == "only boiler -> water treatment"
    assert known("--edge", "water treatment:boiler") == "only water treatment -> boiler"
    path.write_text(HEAD + units)
    pairs = ("boiler:water treatment", "water treatment:boiler")
    assert known("--edge", pairs[0], "--edge", pairs[1]) == "only boiler -> water treatment, water treatment -> boiler"
    assert known("--forbid", pairs[1]) == "all but water treatment -> boiler"
    for mistake, said in (
        (("--edge", "boiler"), "--edge 'boiler': give CAUSE:EFFECT"),
        (("--forbid", "a:b:c"), "--forbid 'a:b:c': give CAUSE:EFFECT"),
        (("--edge", "boiler:pump"), "boiler -> pump names unit 'pump', but the units are boiler, water treatment"),
        (("--edge", pairs[0], "--forbid", pairs[0]), "stands in 'edges' and in 'forbidden'"),
    ):
        assert said in command_line.refused("fit", path, "--out", out, "--force", *mistake)


def test_sensors_in_the_file_and_on_the_command_line(folder: Path) -> None:
    units = WATER.replace('"water treatment"', "boiler", 1).replace("water treatment", "boiler") + WATER
    path, out = folder / "f.toml", str(folder / "fit")

    def judged(options: str, *arguments: str) -> bool:
        path.write_text(HEAD + units + options)
        command_line.run("fit", path, "--out", out, "--force", *arguments, code=0)
        return bool(cf.load(out).parts["water treatment"].sensors)

    assert judged("")
    assert not judged("", "--sensors", "as they are")
    assert not judged('[options]\nsensors = "as they are"\n')
    assert judged('[options]\nsensors = "as they are"\n', "--sensors", "treated")


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_logs_of_the_units_are_the_recording(folder: Path, kind: str) -> None:
    text = f'[units.boiler]\nlog = "boiler.{kind}"\ninputs = ["valve"]\noutputs = ["pressure", "flow"]\n'
    text += f'[units."water treatment"]\nlog = "water treatment.{kind}"\ninputs = ["dosing"]\noutputs = ["level"]\n'
    (folder / "f.toml").write_text(text)
    found = read_federation(folder / "f.toml")
    stored = cf.Recording.load(folder / "recording.safetensors")
    for name in stored.names:
        np.testing.assert_array_equal(found.recording[name].y, stored[name].y)
        np.testing.assert_array_equal(found.recording[name].u, stored[name].u)
    assert found.models is None
    assert found.recording.dt == 1.0


def test_an_empty_cell_is_a_missing_measurement(folder: Path) -> None:
    (folder / "pump.csv").write_text("speed , flow\n1,\n 2 , 3.5\n3,NaN\n")
    (folder / "f.toml").write_text('[units.pump]\nlog = "pump.csv"\ninputs = ["speed"]\noutputs = ["flow"]\n')
    part = read_federation(folder / "f.toml").recording["pump"]
    assert part.u.tolist() == [[1.0], [2.0], [3.0]]
    np.testing.assert_array_equal(part.y, [[np.nan], [3.5], [np.nan]])


def test_a_plant(folder: Path) -> None:
    text = "[plant]\ndt = 2.0\n" + BOILER + WATER
    text += '[[couplings]]\ncause = "boiler"\neffect = "water treatment"\nA = [[0.25]]\nB = [[0.5]]\n'
    (folder / "p.toml").write_text(text)
    plant = read_plant(folder / "p.toml")
    assert plant.dt == 2.0
    assert plant.names == ("boiler", "water treatment")
    assert plant.block("A", effect="water treatment", cause="boiler").tolist() == [[0.25]]
    assert plant.block("B", effect="water treatment", cause="boiler").tolist() == [[0.5]]
    assert not plant.block("A", effect="boiler", cause="water treatment").any()
    assert plant.local("boiler").C.tolist() == [[1.0], [2.0]]


# ---- what does not: (text, what is said)

LOGS = """\
[units.boiler]
log = "boiler.csv"
inputs = ["valve"]
outputs = ["pressure", "flow"]
"""
PRIVATE = HEAD + "[privacy]\nepsilon = 1\ndelta = 1e-6\n"
NAMED = HEAD + BOILER + "[[units.boiler.inputs]]\nname = 'valve'\n"
FEDERATION_MISTAKES = [
    ("", "1: units: no unit is described"),
    ("[federation\n", "1: not TOML: "),
    ("a = 1\n\nb = = 2\n", "3: not TOML: "),
    (HEAD + BOILER + BOILER, "9: not TOML: "),
    (b"[federation]\nmethod = \"\xff\"\n", "2: byte 0xff is not UTF-8"),
    ("a = " + "9" * 5000, " not TOML: "),
    ("a = " + "[" * 5000, " "),
    ("federation = 3\n", "1: federation: must be a table, got 3"),
    ("[units]\nboiler = [1]\n", "2: units.boiler: must be a table, got a list of 1"),
    ("[[units.boiler]]\n", "1: units.boiler: must be a table"),
    ("[federaton]\n", "1: federaton: this key is not known; did you mean 'federation'?"),
    (HEAD + "zzz = 1\n", "3: federation.zzz: this key is not known; there are method, "),
    (HEAD + "method = 'suficient'\n", "3: federation.method: 'suficient' is not one of "),
    (HEAD + "method = 'oracle'\n", "3: federation.method: 'oracle' needs the true plant"),
    (HEAD + "estimate = [1]\n", "3: federation.estimate: option 'estimate' must be one of"),
    (HEAD + "method = 'penalty'\nestimate = 'all'\n", "4: federation.estimate: method 'penalty' has no option"),
    *((HEAD + f"seed = {seed}\n", "3: federation.seed: must be a whole number of at least 0 and below 2^63, got ")
      for seed in ("-1", "true", "1" + "0" * 400)),
    *((HEAD + f"dt = {dt}\n", "3: federation.dt: dt is ") for dt in ("0", "1970-01-01", "1" + "0" * 400)),
    (HEAD + "dt = 2.5\n" + BOILER + WATER, "3: federation.dt: is 2.5, the recording's is 1"),
    (HEAD + "[options]\ntoll = 1\n", "4: options.toll: method 'sufficient' has no option 'toll'; did you mean 'tol'?"),
    (HEAD + "[options]\ntol = 'x'\n", "4: options.tol: option 'tol' must be a finite number"),
    (HEAD + "estimate='all'\n[options]\nestimate = 'all'\n", "5: options.estimate: stands in [federation], too"),
    (HEAD + "[privacy]\nepsilon = 1\n", "3: privacy: 'delta' is missing"),
    (PRIVATE + "epsilom = 1\n", "6: privacy.epsilom: this key is not known; did"),
    (PRIVATE.replace("1\n", "-1\n"), "4: privacy.epsilon: Privacy: epsilon must be"),
    (PRIVATE + "ledger = 3\n", "6: privacy.ledger: must be text in quotes"),
    (PRIVATE + "models = [2, 0]\n", "6: privacy.models: Privacy: models have cost"),
    (HEAD + "[units.x]\nmodell = 'a'\n", "4: units.x.modell: this key is not known; did you mean 'model'?"),
    *((HEAD + f"[units.x]\nmodel = '{name}'\n", "4: units.x.model: there is no file '")
      for name in ("gone.safetensors", "models", "m" * 5000)),
    (HEAD + '[units.x]\nmodel = "a\\u0000b"\n', "4: units.x.model: must be the name of a file"),
    (HEAD + "[units.x]\nmodel = 'boiler.csv'\n", "4: units.x.model: "),
    (HEAD + BOILER + "model = 'models/boiler.safetensors'\n", "4: units.boiler.A: the model is given twice"),
    (HEAD + "[units.x]\nA = [[1.0]]\n", "3: units.x: the model lacks B, C, Q, R"),
    (HEAD + BOILER.replace("[[0.5]]", "0.5"), "4: units.boiler.A: local model: A must be 2-D"),
    (HEAD + BOILER.replace("[[1.0], [2.0]]", "[\n[1.0],\n[2.0, 3.0]]"), "6: units.boiler.C: local model: C cannot be"),
    (HEAD + BOILER.replace("[0.0, 1.0]]", "[0.5, 1.0]]"), "8: units.boiler.R: R of the local model is not symmetric"),
    (HEAD + BOILER + "states = 0\n", "9: units.boiler.states: unit 'boiler': states is 0"),
    (HEAD + BOILER + "states = 3\n" + WATER, "3: units.boiler: it has 3 states, but its model has 1"),
    (HEAD + BOILER + "inputs = 3\n", "9: units.boiler.inputs: inputs[0] is 3: give "),
    (HEAD + BOILER + "inputs = [7]\n", "9: units.boiler.inputs[0]: inputs[0] is 7: give "),
    (HEAD + BOILER + "outputs = []\n" + WATER, "9: units.boiler.outputs: unit 'boiler': outputs is empty"),
    (HEAD + BOILER + "inputs = ['a/b']\n" + WATER, "3: units.boiler: channel: name 'a/b' holds a slash"),
    (HEAD + BOILER + "inputs = ['a', 'b']\n" + WATER, "9: units.boiler.inputs: a, b; the recording has valve"),
    (HEAD + BOILER + "outputs = ['a', 'a']\n" + WATER, "3: units.boiler: unit 'boiler': channel name"),
    (NAMED.replace("name", "unit"), "10: units.boiler.inputs[0].unit: inputs[0] is {'unit': 'valve'}: give "),
    (NAMED + "limit = [0, 1]\n", "11: units.boiler.inputs[0].limit: inputs[0]: 'limit' is not known: there are name,"),
    (NAMED + "\nlimits = [5, 3]\n", "12: units.boiler.inputs[0].limits: inputs[0]: channel valve: limits is (5, 3)"),
    (NAMED + "unit = 3\n", "11: units.boiler.inputs[0].unit: inputs[0]: channel valve: unit of measure must be text"),
    (HEAD + BOILER, "3: units: the recording has a unit 'water treatment', which is not described"),
    (HEAD + BOILER + WATER + "[units.pump]\nstates = 1\n", "11: units.pump: it has no model, other units have one"),
    (HEAD + BOILER + 'log = "boiler.csv"\n' + WATER, "9: units.boiler.log: this key is not known"),
    (HEAD + WATER.replace('"water treatment"', "boiler", 1) + WATER, "3: units.boiler: it has 2 outputs, but its"),
    ("[federation]\nrecording = 'boiler.csv'\n" + WATER, "2: federation.recording: "),
    ("[federation]\nrecording = 3\n" + WATER, "2: federation.recording: must be text"),
    ('[units."../evil"]\nstates=1\noutputs=["y"]\nlog="boiler.csv"\n', '1: units."../evil": unit: name'),
    ('[units.x]\noutputs = ["y"]\n', "1: units.x: it has no data; give it a 'log'"),
    ('[units.x]\nlog = "boiler.csv"\n', "1: units.x: give 'tags', such as"),
    (HEAD + BOILER + WATER + '[options]\nedges = [["boiler", "pump"]]\n',
     "12: options.edges: option 'edges': boiler -> pump names unit 'pump', but the units are boiler, water"),
    (HEAD + BOILER + WATER + '[options]\nedges = ["x"]\n', "12: options.edges: option 'edges': 'x' is no pair"),
    (LOGS.replace("boiler.csv", "boiler.xlsx"), "2: units.boiler.log: there is no file 'boiler.xlsx'"),
    (LOGS.replace("boiler.csv", "recording.safetensors"), "2: units.boiler.log: recording.safetensors: a log"),
    (LOGS.replace('"valve"', '"vlave"'), "3: units.boiler.inputs[0]: the column 'vlave' fits no column of the table"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), FEDERATION_MISTAKES)
def test_mistakes_in_a_federation_file(folder: Path, text: str | bytes, said: str) -> None:
    assert refused(folder, text).startswith(said.strip())


COUPLING = "[[couplings]]\ncause = 'boiler'\neffect = 'water treatment'\n"
PLANT_MISTAKES = [
    ("[plant]\ndtt = 1\n", "2: plant.dtt: this key is not known; did you mean 'dt'?"),
    ("[units.x]\nstates = 1\n", "1: units.x: it has no model"),
    (BOILER + "log = 'boiler.csv'\n", "7: units.boiler.log: this key is not known"),
    (BOILER + "[couplings]\n", "7: couplings: must be an array of tables"),
    (BOILER + "[[couplings]]\ncause = 'boiler'\n", "7: couplings[0]: 'effect' is missing"),
    (BOILER + COUPLING.replace("boiler", "boler"), "8: couplings[0].cause: no unit is called 'boler'; did"),
    (BOILER + COUPLING.replace("water treatment", "boiler"), "7: couplings[0]: cause and effect are both"),
    (BOILER + WATER + 2 * COUPLING, "12: couplings[1]: 'boiler' -> 'water treatment' is given twice"),
    (BOILER + WATER + COUPLING + "A = [[1, 2]]\n", "12: couplings[0].A: A must have shape (1, 1) (what boiler does"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "said"), PLANT_MISTAKES)
def test_mistakes_in_a_plant_file(folder: Path, text: str, said: str) -> None:
    assert refused(folder, text, "simulate").startswith(said)


CSV_MISTAKES = [
    ("valve,pressure\n1,2\n3,4\n", "4: units.boiler.outputs[1]: the column 'flow' fits no column of the table"),
    ("valve,pressure,flow\n1,2,3\n3,high,4\n", "log: boiler.csv: column 'pressure' holds 'high' in row 1 (line 3), wh"),
    ("valve,pressure,flow\n1,2,3\n,5,4\n", "unit 'boiler': input 'valve' is missing for 1 rows in a row"),
    ("valve,pressure,flow\n1,2,3\n1,2,3,4,5\n", "boiler.csv cannot be read"),
    ("valve,pressure,flow\n1,2,3\n", "1 row is left"),
    ("", "boiler.csv "),
]


@pytest.mark.parametrize(("content", "said"), CSV_MISTAKES)
def test_mistakes_in_a_log(folder: Path, content: str | bytes, said: str) -> None:
    (folder / "boiler.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    told = refused(folder, LOGS)
    assert "units.boiler." in told
    assert said in told


def test_logs_of_unequal_length(folder: Path) -> None:
    lines = (folder / "boiler.csv").read_text().splitlines()
    (folder / "short.csv").write_text("\n".join(lines[:-3]) + "\n")
    told = refused(folder, LOGS + LOGS.replace("units.boiler", "units.second").replace("boiler.csv", "short.csv"))
    assert told.startswith("6: units.second.log: units 'boiler' and 'second' have 61 and 58 rows: cut or align them")


def test_kinds_of_columns_in_a_parquet_file(folder: Path) -> None:
    """Lists are refused; booleans and words for on and off are numbers."""
    columns = {"valve": [True, False], "pressure": ["on", "n/a"], "flow": [1, 2]}
    polars.DataFrame(columns | {"pressure": [[1.0], [2.0]]}).write_parquet(folder / "boiler.parquet")
    assert "column 'pressure' has type List(Float64)" in refused(folder, LOGS.replace(".csv", ".parquet"))
    polars.DataFrame(columns).write_parquet(folder / "boiler.parquet")
    (folder / "f.toml").write_text(LOGS.replace(".csv", ".parquet"))
    part = read_federation(folder / "f.toml").recording["boiler"]
    assert part.u.tolist() == [[1.0], [0.0]]
    np.testing.assert_array_equal(part.y, [[1.0, 1.0], [np.nan, 2.0]])


def test_a_directory_and_nothing_at_all(folder: Path) -> None:
    for path, said in ((folder, "this is a directory"), (folder / "none.toml", "there is no such file")):
        assert said in command_line.refused("fit", path, "--out", folder / "fit")


# ---- local models


def test_models_are_checked_when_loaded(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    model = cf.random_plant(UNITS, rng=1).local("boiler")
    good = {letter: np.array(getattr(model, letter)) for letter in "ABCQR"}
    path = tmp_path / "m.safetensors"
    save_model(model, path)
    assert load_model(path) == model
    path.write_bytes(model_bytes(model))
    assert load_model(path) == model
    still = cf.LocalModel(A=[[0.5]], B=np.empty((1, 0)), C=[[1.0]], Q=[[1.0]], R=[[1.0]])
    save_model(still, path)
    assert load_model(path) == still
    save_file({key: value.astype(np.float32) for key, value in good.items()}, path)
    assert load_model(path).A.dtype == np.float64
    for wrong, said in (
        ({key: value for key, value in good.items() if key != "R"}, "not A, B, C, Q, R"),
        (good | {"D": good["A"]}, "not A, B, C, Q, R"),
        (good | {"A": good["A"].astype(np.int64)}, "int64"),
        (good | {"A": np.zeros((3, 3))}, "shape"),
        (good | {"Q": np.array([[np.nan]])}, "nan"),
        (good | {"R": -good["R"]}, "positive definite"),
    ):
        save_file(wrong, path)
        with pytest.raises(cf.StorageError, match=said):
            load_model(path)
    for content in (b"", b"\x80\x04N.", b"\xff" * 64):
        path.write_bytes(content)
        with pytest.raises(cf.StorageError, match="damaged"):
            load_model(path)
    with pytest.raises(cf.StorageError, match="no file"):
        load_model(tmp_path)
