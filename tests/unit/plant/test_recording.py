"""Recordings: what is accepted, refused, kept, and read back."""

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import save_file

from counterflow import sealed_file
from counterflow.errors import DataError, ModelError, OptionError, StorageError, UnknownNameError
from counterflow.plant import Channel, Recording, Unit, UnitRecording, random_plant


def example():
    rng = np.random.default_rng(0)
    units = [
        Unit("boiler", 3, ["fuel", Channel("valve", "%", (0, np.inf))], ["level"]),
        Unit("sensor box", 1, 0, [Channel("T", "°C", (-np.inf, 9.5)), Channel("p", "bar", (0, 10))]),
    ]
    y = rng.normal(size=(6, 2))
    y[2, 1] = np.nan
    parts = {"boiler": (rng.normal(size=(6, 1)), rng.normal(size=(6, 2))), "sensor box": y}
    return Recording.from_arrays(parts, dt=0.1, units=units)


def test_it_is_a_mapping():
    recording = example()
    assert list(recording) == ["boiler", "sensor box"] == list(recording.keys())
    assert len(recording) == 2
    assert "boiler" in recording
    assert "x" not in recording
    assert recording.get("x") is None
    assert recording["boiler"].y.shape == (6, 1)
    assert recording["sensor box"].u.shape == (6, 0)
    assert (recording.rows, recording.steps, recording.dt) == (6, 5, 0.1)
    assert recording.units[0].states == 3
    assert recording.has_missing
    assert not recording["boiler"].has_missing
    assert not recording.slice(3).has_missing
    assert "6 rows" in repr(recording)
    assert "missing" in repr(recording)
    assert hash(recording) == hash(example())
    with pytest.raises(UnknownNameError, match="did you mean 'boiler'"):
        recording["boilr"]
    with pytest.raises(TypeError):
        recording.parts["b"] = recording["boiler"]


def test_arrays_are_copied_read_only_and_taken_in_every_form():
    y, u = np.ones((3, 2)), np.ones((3, 1))
    for given, inputs in (((y, u), 1), ({"y": y, "u": u}, 1), ((y, None), 0), (y, 0), ({"y": y}, 0)):
        part = Recording.from_arrays({"a": given})["a"]
        np.testing.assert_array_equal(part.y, np.ones((3, 2)))
        assert part.u.shape == (3, inputs)
        y[:] = 2
        assert not (part.y == 2).any()
        y[:] = 1
        with pytest.raises(ValueError, match="read-only"):
            part.y[0, 0] = 1


def test_slices_share_memory():
    recording = example()
    part = recording.slice(1, 4)
    assert part.rows == 3
    assert np.shares_memory(part["boiler"].y, recording["boiler"].y)
    assert recording.slice(-2).rows == 2
    for start, stop in ((0, 1), (5, None), (4, 2), (99, None)):
        with pytest.raises(DataError, match="rows"):
            recording.slice(start, stop)
    for start in ("5", 5.0, True):
        with pytest.raises(OptionError, match="whole number"):
            recording.slice(start, 8)


def with_value(value, shape=(4, 2)):
    array = np.zeros(shape)
    array[2, 1] = value
    return array


OK = np.zeros((4, 2))


@pytest.mark.parametrize(
    ("arrays", "parts"),
    [
        ({}, ["map unit names"]),
        ([OK], ["map unit names"]),
        ({"a": np.zeros(4)}, ["'a'", "y has shape (4,)", "2-D"]),
        ({"a": (OK, np.zeros(4))}, ["'a'", "u has shape (4,)"]),
        ({"a": np.zeros((4, 2, 1))}, ["2-D"]),
        ({"a": (OK, OK, OK)}, ["tuple of 3"]),
        ({"a": {"y": OK, "x": OK}}, ["'x'"]),
        ({"a": {"u": OK}}, ["'u'"]),
        ({"a": np.zeros((4, 0))}, ["no columns"]),
        ({"a": np.zeros((1, 2))}, ["'a'", "1 rows", "at least 2"]),
        ({"a": (OK, np.zeros((5, 1)))}, ["'a'", "4 rows", "5"]),
        ({"a": OK, "b": np.zeros((5, 2))}, ["'a'", "'b'", "4", "5 rows"]),
        ({"a": with_value(np.inf)}, ["'a'", "y is inf", "'y2'", "row 2", "NaN"]),
        ({"a": (OK, with_value(np.nan))}, ["'a'", "u is nan", "'u2'", "row 2", "fill the gap"]),
        ({"a": (OK, with_value(-np.inf))}, ["u is -inf"]),
        ({"a": OK.astype(complex)}, ["y has dtype complex"]),
        ({"a": OK.astype(bool)}, ["y has dtype bool"]),
        ({"a": [["x", "y"]] * 3}, ["y has dtype <U"]),
        ({"a": np.ma.masked_array(OK)}, ["masked"]),
        ({"a": None}, ["y has dtype object"]),
    ],
)
def test_bad_arrays_are_refused(arrays, parts):
    with pytest.raises(DataError) as caught:
        Recording.from_arrays(arrays)
    for part in parts:
        assert part in str(caught.value)


DESCRIPTIONS = [
    (lambda: Recording.from_arrays({"a": OK}, units=[Unit("a", 1, 0, 2), Unit("b")]), "'b'"),
    (lambda: Recording.from_arrays({"a": OK}, units=[Unit("a", 1, 0, 3)]), "y has 2 columns"),
    (lambda: Recording.from_arrays({"a": (OK, OK)}, units=[Unit("a", 1, 1, 2)]), "u has 2 columns"),
    (lambda: Recording.from_arrays({"a/b": OK}), "slash"),
    (lambda: Recording({"a": UnitRecording(OK, OK, Unit("b", 1, 2, 2))}), "belongs to unit 'b'"),
    (lambda: Recording({"a": OK}), "UnitRecording"),
    (lambda: UnitRecording(OK, OK, "a"), "Unit"),
    *((lambda dt=dt: Recording.from_arrays({"a": OK}, dt=dt), "dt") for dt in (0, -1, np.nan, np.inf, None, True)),
]


@pytest.mark.parametrize(("build", "said"), DESCRIPTIONS)
def test_bad_descriptions_are_refused(build, said):
    with pytest.raises((DataError, ModelError), match=said):
        build()


def test_digest_follows_contents():
    recording = example()
    assert recording.digest == example().digest
    assert len(recording.digest) == 64
    zero, other_zero = (Recording.from_arrays({"a": array}) for array in (OK, -OK))
    assert zero == other_zero
    assert zero.digest == other_zero.digest
    different = [
        Recording.from_arrays({"b": OK}),
        Recording.from_arrays({"a": OK + 1e-300}),
        Recording.from_arrays({"a": OK}, dt=2.0),
        Recording.from_arrays({"a": (OK[:, :1], OK[:, :1])}),
        Recording.from_arrays({"a": with_value(np.nan)}),
        zero,
    ]
    assert len({one.digest for one in different}) == len(different)


def test_save_and_load(tmp_path):
    path = tmp_path / "run.safetensors"
    for recording in (example(), random_plant(3, rng=0).simulate(20, rng=0)):
        recording.save(path)
        recording.save(str(path))
        assert [entry.name for entry in tmp_path.iterdir()] == ["run.safetensors"]
        loaded = Recording.load(str(path))
        assert loaded == recording
        assert (loaded.digest, loaded.units) == (recording.digest, recording.units)
    with pytest.raises(StorageError, match="cannot write"):
        recording.save(tmp_path / "no" / "run.safetensors")
    with pytest.raises(StorageError, match="no file"):
        Recording.load(tmp_path / "none")
    save_file({"x": np.zeros(3)}, tmp_path / "x")
    with pytest.raises(StorageError, match="not written by Counterflow"):
        Recording.load(tmp_path / "x")


@pytest.mark.parametrize("bad", [None, 3, "", "a\0b", "x" * 300])
def test_odd_paths_are_refused(bad, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for call in (example().save, Recording.load):
        with pytest.raises(StorageError):
            call(bad)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content, arrays: content.update(dt=-1),
        lambda content, arrays: content.update(parts={}),
        lambda content, arrays: content["parts"].update(other=content["parts"]["boiler"]),
        lambda content, arrays: content["parts"]["boiler"]["unit"].update(name="../x"),
        lambda content, arrays: content["parts"]["boiler"]["unit"].update(states=0),
        lambda content, arrays: content["parts"]["boiler"]["unit"]["inputs"][0].update(limits=[2]),
        lambda content, arrays: arrays.update({"parts/boiler/y": np.zeros(6)}),
        lambda content, arrays: arrays.update({"parts/boiler/u": np.full((6, 2), np.nan)}),
        lambda content, arrays: arrays.update({"parts/boiler/y": np.full((6, 1), np.inf)}),
    ],
)
def test_files_with_a_right_digest_are_not_trusted(tmp_path, spoil):
    path = tmp_path / "run.safetensors"
    example().save(path)
    stored = sealed_file.read(path, "counterflow recording", 2)
    spoil(stored.content, stored.arrays)
    path.write_bytes(sealed_file.seal("counterflow recording", 2, stored.content, stored.arrays))
    with pytest.raises(StorageError, match="run"):
        Recording.load(path)


def test_frame_round_trip():
    recording = example()
    frame = recording.to_frame()
    assert frame.columns == ["time", "boiler/fuel", "boiler/valve", "boiler/level", "sensor box/T", "sensor box/p"]
    assert frame["time"].to_list() == [0.1 * k for k in range(6)]
    np.testing.assert_array_equal(frame["sensor box/p"].to_numpy(), recording["sensor box"].y[:, 1])
    assert Recording.from_frame(frame, recording.units) == recording
    assert Recording.from_frame(frame.drop("time"), recording.units).dt == 1.0
    assert Recording.from_frame(frame, recording.units, dt=5.0).dt == 5.0
    nulls = frame.with_columns(pl.col("sensor box/p").fill_nan(None))
    assert Recording.from_frame(nulls, recording.units) == recording


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda frame: frame.drop("boiler/level"), "boiler/level"),
        (lambda frame: frame.with_columns(pl.col("boiler/level").cast(pl.String)), "cast"),
        (lambda frame: frame.with_columns(time=pl.col("time") ** 2), "evenly"),
        (lambda frame: frame.with_columns(pl.lit(None).alias("boiler/fuel")), r"u is nan.*'fuel'"),
        (lambda frame: {}, r"polars\.DataFrame"),
    ],
)
def test_bad_frames(spoil, said):
    with pytest.raises(DataError, match=said):
        Recording.from_frame(spoil(example().to_frame()), example().units)
