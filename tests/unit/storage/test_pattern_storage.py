"""Stored fits of records with gaps: patterns of presence come back, and what does not fit together is refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from forged_files import forge, set_array, set_to, with_nan

import counterflow as cf

PLANT = cf.random_plant(["a", "b"], outputs=3, rng=1)
PLACE = ("server", "couplings", "found", "parameters", "record", "patterns")


@pytest.fixture(scope="module")
def fit() -> cf.Fit:
    recording = PLANT.simulate(120, rng=2)
    rng, rows = np.random.default_rng(3), {}
    for name in PLANT.names:
        y = recording[name].y.copy()
        y[rng.random(y.shape) < 0.2] = np.nan
        rows[name] = (y, recording[name].u)
    return cf.fit(cf.Recording.from_arrays(rows, units=PLANT.units), PLANT.locals())


@pytest.fixture(scope="module")
def folder(fit: cf.Fit, tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("stored") / "fit"
    fit.save(where)
    return where


@pytest.fixture
def saved(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "fit"))


def test_patterns_come_back_bit_by_bit(fit: cf.Fit, saved: Path) -> None:
    one, two = fit.couplings.shared, cf.load(saved).couplings.shared
    assert np.array_equal(one.patterns.labels, two.patterns.labels)
    assert all(np.array_equal(a, b) for a, b in zip(one.patterns.observations, two.patterns.observations, strict=True))
    assert np.array_equal(one.values, two.values, equal_nan=True)
    recording = PLANT.simulate(50, rng=5)
    mine, theirs = (f.update(recording).plant.A for f in (fit, cf.load(saved)))
    assert np.array_equal(mine, theirs)


HOSTILE = {
    "labels of fewer rows": ("labels", lambda array: array[:-1].copy()),
    "labels of more units": ("labels", lambda array: np.hstack([array, array])),
    "labels beyond the patterns": ("labels", lambda array: array + 1000),
    "labels below zero": ("labels", lambda array: array - 1),
    "labels that are no whole numbers": ("labels", lambda array: array.astype(np.float64)),
    "patterns that are not finite": ("observations/0", with_nan),
    "patterns of fewer states": ("observations/0", lambda array: array[:, :, :-1].copy()),
    "patterns of more numbers": ("observations/0", lambda array: np.concatenate([array, array], axis=1)),
    "patterns that are one matrix": ("observations/0", lambda array: array[0].copy()),
    "no pattern": ("observations/0", lambda array: array[:0].copy()),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_patterns_that_do_not_fit_together_are_refused(saved: Path, case: str) -> None:
    name, change = HOSTILE[case]
    forge(saved / "server.safetensors", set_array("/".join((*PLACE, name)), change))
    with pytest.raises(cf.StorageError, match=r"server\.safetensors"):
        cf.load(saved)


def test_patterns_of_one_unit_only_are_refused(saved: Path) -> None:
    forge(saved / "server.safetensors", set_to(*PLACE, "observations", value=[]))
    with pytest.raises(cf.StorageError, match=r"server\.safetensors"):
        cf.load(saved)
