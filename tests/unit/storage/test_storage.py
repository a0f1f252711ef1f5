"""A fit on disk: exact round trips, the split of trust, and files that nobody vouches for."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from equivalent_plants import permuted
from forged_files import forge, set_array, set_to
from safetensors import safe_open
from safetensors.numpy import save as to_bytes

import counterflow as cf
from counterflow import files, sealed_file
from counterflow.caveats import Caveat
from counterflow.exchange.outcome import Status
from counterflow.fits import content, storage
from counterflow.fits.history import History
from counterflow.learning.likelihood import SharedRecord

UNITS = [
    cf.Unit("boiler", 2, [cf.Channel("fuel valve", "%", (0, 100)), "feed"], [cf.Channel("p", "bar", (0, np.inf)), "T"]),
    cf.Unit("Turbine nº 2", 1, 0, 3),
    cf.Unit("water", 3, 1, 4),
]


def plant() -> cf.Plant:
    rng = np.random.default_rng(5)
    states, inputs, outputs = 6, 3, 9
    A = rng.standard_normal((states, states))
    C = np.zeros((outputs, states))
    for rows, columns in ((slice(0, 2), slice(0, 2)), (slice(2, 5), slice(2, 3)), (slice(5, 9), slice(3, 6))):
        C[rows, columns] = rng.standard_normal(C[rows, columns].shape)
    return cf.Plant(
        units=UNITS,
        A=0.8 * A / np.abs(np.linalg.eigvals(A)).max(),
        B=rng.standard_normal((states, inputs)),
        C=C,
        Q=0.1 * np.eye(states),
        R=np.diag(rng.uniform(0.5, 2.0, outputs)),
        dt=0.1,
    )


PLANT = plant()
RECORDING = PLANT.simulate(300, rng=3)


def fitted(method: str = "penalty", **options: Any) -> cf.Fit:
    models = PLANT if method == "oracle" else PLANT.locals()
    return cf.fit(RECORDING, models, method=method, **options)


class OwnFilter:
    """A proprietary estimator that is nobody's business."""

    def __init__(self, model: cf.LocalModel) -> None:
        self.inner = cf.KalmanEstimator(model)

    def estimate(self, y: np.ndarray, u: np.ndarray) -> cf.Estimates:
        found = self.inner.estimate(y, u)
        return cf.Estimates(found.predicted, found.refined)


def assert_same(one: cf.Fit, other: cf.Fit) -> None:
    """Equal to the last bit, field by field."""
    assert one.plant == other.plant
    assert one.plant.dt == other.plant.dt
    assert one.plant.units == other.plant.units
    assert one.names == other.names
    for what in ("method", "traffic", "status", "provenance", "caveats"):
        assert getattr(one, what) == getattr(other, what), what
    for name in one.names:
        mine, theirs = one.parts[name], other.parts[name]
        assert (mine.unit, mine.model, mine.uses_inputs) == (theirs.unit, theirs.model, theirs.uses_inputs)
        for letter in ("theta", "phi"):
            value, loaded = getattr(mine, letter), getattr(theirs, letter)
            assert (value is None) == (loaded is None)
            assert value is None or (np.array_equal(value, loaded) and not loaded.flags.writeable)
    for field in fields(History):
        mine, theirs = getattr(one.history, field.name), getattr(other.history, field.name)
        if field.name == "phase":
            assert mine == theirs
        elif isinstance(mine, np.ndarray):
            assert np.array_equal(mine, theirs)
        else:
            assert list(mine) == list(theirs)
            assert all(np.array_equal(mine[name], theirs[name]) for name in mine)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    fitted().save(tmp_path / "fit")
    return tmp_path / "fit"


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("penalty", {}),
        ("penalty", {"solver": "gradient", "rounds": 20}),
        ("lagrangian", {"rounds": 5}),
        ("hybrid", {"rounds": 5, "warm_rounds": 4}),
        ("fedgc", {}),
        ("oracle", {}),
    ],
)
def test_a_loaded_fit_is_the_saved_one(tmp_path: Path, method: str, options: dict[str, Any]) -> None:
    fit = fitted(method, **options)
    fit.save(tmp_path / "fit")
    loaded = cf.load(tmp_path / "fit")
    assert_same(fit, loaded)
    for unit in UNITS:
        assert loaded.parts[unit.name].estimator == fit.parts[unit.name].estimator
    change = [1.0, -2.0]
    ours, theirs = (f.effect("boiler", "water", change, horizon=7).mean for f in (fit, loaded))
    assert np.array_equal(ours, theirs)
    errors, again = (f.validate(RECORDING).errors["server"]["boiler"] for f in (fit, loaded))
    assert np.array_equal(errors, again)


def test_the_same_fit_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        fitted().save(tmp_path / name)
    for path in (tmp_path / "one").rglob("*.safetensors"):
        assert path.read_bytes() == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes()


def test_an_oracle_whose_plant_is_in_another_order(tmp_path: Path) -> None:
    shuffled = permuted(PLANT, ["water", "boiler", "Turbine nº 2"])
    fit = cf.fit(RECORDING, shuffled, method="oracle")
    fit.save(tmp_path / "fit")
    assert_same(fit, cf.load(tmp_path / "fit"))


def test_a_plant_that_differs_from_the_local_models(tmp_path: Path) -> None:
    fit = fitted()
    told = (Caveat("first", "", "é"), Caveat("second", "boiler", "b"))
    plant = fit.plant.replace(Q=0.3 * np.eye(6), C=2 * PLANT.C, R=3 * PLANT.R)
    changed = replace(fit, plant=plant, server_caveats=told)
    changed.save(tmp_path / "fit")
    assert_same(changed, cf.load(tmp_path / "fit"))


def test_the_shapes_that_are_checked_are_those_of_fields() -> None:
    """A field that is renamed must not lose its check."""
    for kind, shapes in content.AXES.items():
        assert set(shapes) <= {field.name for field in fields(kind)}, kind


def test_a_new_field_is_stored_without_a_word_in_storage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Fuller(Status):
        weather: tuple[str, ...] = ()

    fit = fitted()
    monkeypatch.setattr(storage, "_KINDS", {**storage._KINDS, "Fuller": Fuller})
    replace(fit, status=Fuller(True, 3, 0.5, "done", weather=("rain",))).save(tmp_path / "fit")
    assert cf.load(tmp_path / "fit").status.weather == ("rain",)  # type: ignore[attr-defined]


@pytest.mark.parametrize("file", ["server.safetensors", "units/boiler.safetensors"])
def test_a_fit_of_0_1_is_refused_with_the_remedy(saved: Path, file: str) -> None:
    title = "counterflow fit, server part" if file.startswith("server") else "counterflow fit, unit part"
    old = json.dumps({"format": title, "version": 1, "link": "", "digest": "0" * 64})
    (saved / file).write_bytes(to_bytes({"A": np.zeros((1, 1))}, metadata={"counterflow": old}))
    with pytest.raises(cf.StorageError, match=r"saved by Counterflow 0\.1: fit again, or open it with 0\.1") as told:
        cf.load(saved)
    assert told.value.code == "version"


@pytest.mark.parametrize("options", [{}, {"estimate": "all"}, {"uncertainty": False}])
def test_a_maximum_likelihood_fit_keeps_its_uncertainty(tmp_path: Path, options: dict[str, Any]) -> None:
    fit = fitted("sufficient", **options)
    fit.save(tmp_path / "fit")
    loaded = cf.load(tmp_path / "fit")
    assert_same(fit, loaded)
    mine, theirs = fit.couplings, loaded.couplings
    assert mine is not None
    assert theirs is not None
    assert mine.doubts == theirs.doubts
    for field in fields(SharedRecord):
        assert np.array_equal(getattr(mine.shared, field.name), getattr(theirs.shared, field.name))
    for field in ("Q", "log_likelihood", "evaluations", "converged", "decrement", "trace"):
        assert np.array_equal(getattr(mine.found, field), getattr(theirs.found, field)), field
    ours, again = (f.effect("boiler", "water", [1.0, 0.0], horizon=4) for f in (fit, loaded))
    assert ours.caveats == again.caveats
    assert np.array_equal(ours.mean, again.mean)
    if options.get("uncertainty") is not False:
        assert np.array_equal(ours.lower, again.lower)
        assert np.array_equal(fit.standard_errors.A, loaded.standard_errors.A, equal_nan=True)
        assert str(fit.graph()) == str(loaded.graph())


def test_an_updated_fit_can_be_updated_after_loading(tmp_path: Path) -> None:
    plant = cf.random_plant(units=2, rng=1)
    fit = cf.fit(plant.simulate(400, rng=2), plant.locals()).update(plant.simulate(100, rng=3))
    fit.save(tmp_path / "fit")
    new = plant.simulate(100, rng=4)
    one, two = fit.update(new), cf.load(tmp_path / "fit").update(new)
    assert np.array_equal(one.plant.B, two.plant.B)
    assert np.array_equal(one.standard_errors.B, two.standard_errors.B)


def test_doubts_survive(tmp_path: Path) -> None:
    """An input that never moves: the loaded fit refuses the question as the saved one does."""
    u = {name: part.u.copy() for name, part in RECORDING.items()}
    u["boiler"][:, 1] = 0.0
    fit = cf.fit(PLANT.simulate(300, rng=3, inputs=u), PLANT.locals(), method="sufficient")
    fit.save(tmp_path / "fit")
    loaded = cf.load(tmp_path / "fit")
    assert loaded.caveats == fit.caveats
    for each in (fit, loaded):
        with pytest.raises(cf.UnidentifiedError):
            each.effect("boiler", "water", {"feed": 1.0})


def test_pooled_raw_data_is_not_saved_as_if_it_were_split(tmp_path: Path) -> None:
    with pytest.raises(cf.StorageError, match="sufficient"):
        fitted("centralized").save(tmp_path / "fit")
    assert list(tmp_path.iterdir()) == []


def test_the_server_file_of_sufficient_messages_knows_no_unit_secret(tmp_path: Path) -> None:
    fitted("sufficient").save(tmp_path / "fit")
    content = (tmp_path / "fit" / "server.safetensors").read_bytes()
    for name, part in RECORDING.items():
        model = PLANT.local(name)
        for secret in (model.C, model.R, part.y[:50]):
            assert not any(value.tobytes() in content for value in secret[secret != 0])


# ---- the split of trust


def test_the_server_file_knows_no_unit_secret(saved: Path) -> None:
    fit = fitted()
    with safe_open(str(saved / "server.safetensors"), framework="numpy") as file:
        keys = set(file.keys())
    assert {key for key in keys if "/history/" not in key} == {"server/A", "server/B", "server/Q"}
    content = (saved / "server.safetensors").read_bytes()
    for part in fit.parts.values():
        for secret in (part.model.C, part.model.R, part.theta, part.phi):
            for number in np.unique(secret[secret != 0]):
                assert number.tobytes() not in content
        for channel in part.unit.outputs:
            assert f'"{channel.name}"'.encode() not in content.replace(b"\\", b"")
        for series in (fit.history.client_loss, fit.history.proprietary_loss):
            assert series[part.unit.name][-1].tobytes() not in content
    for recorded in RECORDING.values():
        assert not any(number.tobytes() in content for number in recorded.y[:50].ravel())


def test_a_unit_file_knows_no_other_unit(saved: Path) -> None:
    fit = fitted()
    content = (saved / "units" / "boiler.safetensors").read_bytes()
    other = fit.parts["water"]
    for secret in (other.model.A, other.model.B, other.model.C, other.theta, fit.plant.block("A", "boiler", "water")):
        assert not any(number.tobytes() in content for number in secret.ravel())


# ---- estimators


def test_a_custom_estimator_is_asked_for(tmp_path: Path) -> None:
    own = OwnFilter(PLANT.local("water"))
    fit = fitted(estimators={"water": own})
    fit.save(tmp_path / "fit")
    with pytest.raises(cf.StorageError, match=r"'water'.*estimators=\{'water': \.\.\.\}"):
        cf.load(tmp_path / "fit")
    loaded = cf.load(tmp_path / "fit", estimators={"water": own})
    assert loaded.parts["water"].estimator is own
    assert_same(fit, loaded)
    with pytest.raises(cf.OptionError, match="'pump'"):
        cf.load(tmp_path / "fit", estimators={"water": own, "pump": own})
    with pytest.raises(cf.OptionError, match="estimate"):
        cf.load(tmp_path / "fit", estimators={"water": 3})  # type: ignore[dict-item]


def test_a_kalman_filter_on_another_model_is_stored(tmp_path: Path) -> None:
    model = PLANT.local("water")
    tuned = cf.KalmanEstimator(replace(model, Q=5 * model.Q))
    fit = fitted(estimators={"water": tuned})
    fit.save(tmp_path / "fit")
    assert cf.load(tmp_path / "fit").parts["water"].estimator == tuned


# ---- where it is written


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_saved_fit_is_replaced_and_nothing_is_left_beside(saved: Path) -> None:
    other = fitted(xi=1.0)
    other.save(saved)
    assert_same(other, cf.load(saved))
    assert [entry.name for entry in saved.parent.iterdir()] == ["fit"]


def test_parents_are_made_and_empty_directories_used(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    fitted().save(tmp_path / "empty")
    fitted().save(tmp_path / "a" / "b")
    assert cf.load(tmp_path / "a" / "b").names == cf.load(tmp_path / "empty").names


@pytest.mark.parametrize("content", ["notes.txt", "server.safetensors", "units/boiler.safetensors"])
def test_a_foreign_directory_is_refused(tmp_path: Path, content: str) -> None:
    target = tmp_path / "mine"
    (target / content).parent.mkdir(parents=True)
    (target / content).write_text("not a fit")
    before = tree(tmp_path)
    with pytest.raises(cf.StorageError, match="mine"):
        fitted().save(target)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("extra", ["notes.txt", "units/notes.txt"])
def test_a_saved_fit_with_something_beside_it_is_refused(saved: Path, extra: str) -> None:
    (saved / extra).write_text("keep me")
    before = tree(saved)
    with pytest.raises(cf.StorageError, match=extra):
        fitted(xi=1.0).save(saved)
    assert tree(saved) == before


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "fit").write_text("a file")
    for target in (tmp_path / "fit", tmp_path / "fit" / "below"):
        with pytest.raises(cf.StorageError, match="fit"):
            fitted().save(target)
    assert (tmp_path / "fit").read_text() == "a file"


@pytest.mark.parametrize("failing", [1, 2])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupted_save_leaves_the_old_fit(
    saved: Path, monkeypatch: pytest.MonkeyPatch, failing: int, error: type[BaseException]
) -> None:
    before = tree(saved)
    calls = 0
    rename = os.rename

    def stop(source: Any, target: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == failing:
            raise error("stop")
        rename(source, target)

    monkeypatch.setattr(files.os, "rename", stop)
    with pytest.raises(KeyboardInterrupt if error is KeyboardInterrupt else cf.StorageError):
        fitted(xi=1.0).save(saved)
    assert tree(saved) == before
    assert [entry.name for entry in saved.parent.iterdir()] == ["fit"]


def test_an_interrupted_first_save_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files.os, "fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        fitted().save(tmp_path / "fit")
    assert list(tmp_path.iterdir()) == []


def test_names_that_share_a_file_are_refused(tmp_path: Path) -> None:
    clash = cf.random_plant(units=["Boiler", "boiler"], rng=1)
    fit = cf.fit(clash.simulate(50, rng=2), clash, method="oracle")
    with pytest.raises(cf.StorageError, match="rename"):
        fit.save(tmp_path / "fit")


# ---- files that nobody vouches for


def test_what_is_missing_is_named(saved: Path, tmp_path: Path) -> None:
    with pytest.raises(cf.StorageError, match="nowhere"):
        cf.load(tmp_path / "nowhere")
    (saved / "units" / "water.safetensors").unlink()
    with pytest.raises(cf.StorageError, match=r"water\.safetensors"):
        cf.load(saved)
    (saved / "server.safetensors").unlink()
    with pytest.raises(cf.StorageError, match=r"server\.safetensors"):
        cf.load(saved)


@pytest.mark.parametrize("file", ["server.safetensors", "units/boiler.safetensors"])
@pytest.mark.parametrize("keep", [0, 7, 8, 100, -1])
def test_a_truncated_file(saved: Path, file: str, keep: int) -> None:
    content = (saved / file).read_bytes()
    (saved / file).write_bytes(content[:keep])
    with pytest.raises(cf.StorageError, match=Path(file).name):
        cf.load(saved)


def test_files_of_another_fit_and_of_another_unit(saved: Path, tmp_path: Path) -> None:
    fitted(xi=1.0).save(tmp_path / "other")
    mine = (saved / "units" / "boiler.safetensors").read_bytes()
    (saved / "units" / "boiler.safetensors").write_bytes(
        (tmp_path / "other" / "units" / "boiler.safetensors").read_bytes()
    )
    with pytest.raises(cf.StorageError, match="another fit"):
        cf.load(saved)
    (saved / "units" / "boiler.safetensors").write_bytes(mine)
    (saved / "units" / "water.safetensors").write_bytes(mine)
    with pytest.raises(cf.StorageError, match="belongs to unit 'boiler'"):
        cf.load(saved)


def test_foreign_safetensors(saved: Path) -> None:
    path = saved / "server.safetensors"
    path.write_bytes(to_bytes({"weights": np.zeros(3)}))
    with pytest.raises(cf.StorageError, match="not written by Counterflow"):
        cf.load(saved)
    RECORDING.save(path)
    with pytest.raises(cf.StorageError, match="counterflow recording"):
        cf.load(saved)
    path.write_bytes((saved / "units" / "boiler.safetensors").read_bytes())
    with pytest.raises(cf.StorageError, match="unit part"):
        cf.load(saved)


def test_forging_without_a_change_is_read(saved: Path) -> None:
    forge(saved / "server.safetensors", lambda described, arrays: None)
    assert_same(fitted(), cf.load(saved))


HOSTILE = {
    "server": {
        "a path as a name": set_to("server", "units", 0, "name", value="../../boiler"),
        "a hidden name": set_to("server", "units", 0, "name", value=".boiler"),
        "a name twice": set_to("server", "units", 1, "name", value="boiler"),
        "no units": set_to("server", "units", value=[]),
        "too many states": set_to("server", "units", 0, "states", value=10**9),
        "a negative count": set_to("server", "units", 0, "states", value=-2),
        "inputs renamed": set_to("server", "units", 0, "inputs", value=["fuel valve", "other"]),
        "dt of zero": set_to("record", "dt", value=0.0),
        "order of strangers": set_to("record", "order", value=["boiler", "boiler", "water"]),
        "phases missing": set_to("record", "history", "phase", value=[]),
        "bytes below zero": set_to("record", "traffic", "bytes_up", value=-1),
    },
    "units/boiler": {
        "another name": set_to("part", "unit", "name", value="water"),
        "no outputs": set_to("part", "unit", "outputs", value=[]),
        "a channel with a key too many": set_to("part", "unit", "outputs", 0, "code", value="x"),
        "limits of one end": set_to("part", "unit", "outputs", 0, "limits", value=[1]),
        "limits in the wrong order": set_to("part", "unit", "outputs", 0, "limits", value=[2, 1]),
        "a channel name twice": set_to("part", "unit", "outputs", 1, "name", value="p"),
        "an unknown estimator": set_to("part", "estimator", "is", value="os.system"),
        "R not positive": set_array("part/model/R", lambda R: -R),
        "losses of another length": set_array("client_loss", lambda series: np.zeros(999)),
        "an estimator model for nobody": set_array("part/estimator/model/A", lambda A: A),
    },
}


@pytest.mark.parametrize(("file", "case"), [(file, case) for file, cases in HOSTILE.items() for case in cases])
def test_hostile_files(saved: Path, file: str, case: str) -> None:
    path = saved / f"{file}.safetensors"
    forge(path, HOSTILE[file][case])
    with pytest.raises(cf.StorageError, match=path.name):
        cf.load(saved)


def test_another_version_says_so(saved: Path) -> None:
    path = saved / "server.safetensors"
    path.write_bytes(sealed_file.seal("counterflow fit, server part", 99, {}, {}))
    with pytest.raises(cf.StorageError, match="version 99"):
        cf.load(saved)


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", "{", '{"version": NaN}', '{"format": "x", "format": "y"}', "[" * 100_000, "1e999", '"text"'],
)
def test_descriptions_that_are_not_what_they_should_be(saved: Path, text: str) -> None:
    path = saved / "server.safetensors"
    path.write_bytes(to_bytes({"A": np.zeros((1, 1))}, metadata={"counterflow": text}))
    with pytest.raises(cf.StorageError, match=r"server\.safetensors"):
        cf.load(saved)


def test_a_header_that_promises_more_than_there_is(saved: Path) -> None:
    header = json.dumps({"A": {"dtype": "F64", "shape": [10**6, 10**6], "data_offsets": [0, 8 * 10**12]}}).encode()
    (saved / "server.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(cf.StorageError, match=r"server\.safetensors"):
        cf.load(saved)


def test_a_file_that_is_too_large_is_not_read(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sealed_file, "LARGEST", 100)
    with pytest.raises(cf.StorageError, match="bytes"):
        cf.load(saved)


def test_a_fit_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    fit = fitted()
    broken = replace(fit, status=replace(fit.status, gradient=float("nan")))
    with pytest.raises(cf.StorageError, match="saved"):
        broken.save(tmp_path / "fit")
    assert list(tmp_path.iterdir()) == []
