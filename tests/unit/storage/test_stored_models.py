"""Models on disk: they come back bit by bit; files in which anything is damaged, or does not fit, are refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from forged_files import Change, forge, set_array, set_to, with_nan
from safetensors import safe_open

import counterflow as cf

PLANT = cf.random_plant(["a", "b"], outputs=3, rng=1)
RECORDING = PLANT.simulate(120, rng=2)


def with_gaps() -> cf.Fit:
    rng = np.random.default_rng(3)
    rows = {n: (np.where(rng.random(own.y.shape) < 0.2, np.nan, own.y), own.u) for n, own in RECORDING.items()}
    return cf.fit(cf.Recording.from_arrays(rows, units=PLANT.units), PLANT.locals())


@cache
def network() -> cf.Fit:
    """Of a plant with a product in it, and a coupling that was ruled out."""
    rng = np.random.default_rng(0)
    y, u = np.zeros((500, 3)), rng.standard_normal((500, 1))
    for t in range(1, 500):
        y[t, 0] = 0.7 * y[t - 1, 0] + 0.5 * u[t - 1, 0] + 0.1 * rng.standard_normal()
        y[t, 1] = 0.6 * y[t - 1, 1] + 0.5 * y[t - 1, 0] - 0.3 * y[t - 1, 0] * y[t - 1, 1] + 0.1 * rng.standard_normal()
        y[t, 2] = 0.5 * y[t - 1, 2] + 0.3 * y[t - 1, 1] + 0.1 * rng.standard_normal()
    arrays = {"a": (y[:, :1], u), "b": (y[:, 1:], np.zeros((500, 0)))}
    return cf.fit(cf.Recording.from_arrays(arrays, dt=1.0), same_row=False, forbidden=[("b", "a")])


def later() -> cf.Recording:
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((20, 1)), np.ones((20, 1))), (rng.standard_normal((20, 2)), np.zeros((20, 0)))
    return cf.Recording.from_arrays({"a": a, "b": b})


FITS: dict[str, Callable[[], cf.Fit]] = {
    "published": lambda: cf.fit(RECORDING, PLANT.locals(), method="penalty"),
    "gaps": with_gaps,
    "remembered": lambda: cf.fit(RECORDING, PLANT.locals()).update(PLANT.simulate(50, rng=4)),
    "network": network,
    "updated": lambda: network().update(later()),
    "windows": lambda: cf.fit(PLANT.simulate(400, rng=2), method="moments"),
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @cache
    def folder(kind: str) -> Path:
        path = tmp_path_factory.mktemp(kind) / "fit"
        FITS[kind]().save(path)
        return path

    return folder


def test_patterns_of_presence_come_back_bit_by_bit(stored: Callable[[str], Path]) -> None:
    fit, loaded = with_gaps(), cf.load(stored("gaps"))
    one, two = fit.couplings.shared, loaded.couplings.shared
    assert np.array_equal(one.patterns.labels, two.patterns.labels)
    assert all(np.array_equal(a, b) for a, b in zip(one.patterns.observations, two.patterns.observations, strict=True))
    assert np.array_equal(one.values, two.values, equal_nan=True)
    recording = PLANT.simulate(50, rng=5)
    assert np.array_equal(fit.update(recording).plant.A, loaded.update(recording).plant.A)


def test_a_network_comes_back_bit_by_bit(stored: Callable[[str], Path]) -> None:
    fit, loaded = network(), cf.load(stored("network"))
    one, two = fit.couplings.network, loaded.couplings.network
    assert one.curved
    assert one.known is not None
    for field in fields(one):
        mine, theirs = getattr(one, field.name), getattr(two, field.name)
        if isinstance(mine, np.ndarray):
            assert np.array_equal(mine, theirs), field.name
            assert mine.dtype == theirs.dtype, field.name
        else:
            assert mine == theirs, field.name
    mine, theirs = (each.update(later()).couplings for each in (fit, loaded))
    assert np.array_equal(mine.network.linear, theirs.network.linear)
    assert mine.stream.rows == theirs.stream.rows == 520


DAMAGE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "a row less": lambda array: array[:-1].copy(),
    "a column less": lambda array: array[..., :-1].copy(),
    "an axis more": lambda array: array[None].copy(),
    "single precision": lambda array: array.astype(np.float32),
    "not finite": lambda array: with_nan(array) if array.dtype.kind == "f" and array.size else array,
}
MISSING = ("record/values", "shared/values", "spread/covariance")  # where NaN is meant


@pytest.mark.parametrize("kind", FITS)
def test_no_array_of_any_file_may_be_damaged(stored: Callable[[str], Path], tmp_path: Path, kind: str) -> None:
    silent, first = [], next(iter((stored(kind) / "units").iterdir())).name
    for file in ("server.safetensors", f"units/{first}"):
        with safe_open(str(stored(kind) / file), framework="numpy") as opened:
            arrays = {key: opened.get_tensor(key) for key in opened.keys()}  # noqa: SIM118
        for key, array in arrays.items():
            for damage, change in DAMAGE.items():
                new = change(array)
                same = new.size == array.size == 0 or (new.dtype == array.dtype and np.array_equal(new, array))
                if same or (damage == "not finite" and key.endswith(MISSING)):
                    continue
                saved = Path(shutil.copytree(stored(kind), tmp_path / "fit", dirs_exist_ok=True))
                forge(saved / file, set_array(key, change))
                silent += [] if refused(saved) else [(file, key, damage)]
    assert not silent


def refused(folder: Path) -> bool:
    try:
        cf.load(folder)
    except cf.StorageError as error:
        return ".safetensors" in str(error)
    return False


def _array(place: str) -> Callable[..., Change]:
    return lambda name, change: set_array(f"{place}/{name}", change)


_pattern = _array("server/couplings/found/parameters/record/patterns")
_network = _array("server/couplings/network")
_stream = _array("server/couplings/stream")
NETWORK, STREAM = ("server", "couplings", "network"), ("server", "couplings", "stream")
HOSTILE: dict[str, dict[str, Any]] = {
    "gaps": {
        "labels of more units": _pattern("labels", lambda array: np.hstack([array, array])),
        "labels beyond the patterns": _pattern("labels", lambda array: array + 1000),
        "labels below zero": _pattern("labels", lambda array: array - 1),
        "patterns of more numbers": _pattern("observations/0", lambda array: np.concatenate([array, array], axis=1)),
        "no pattern": _pattern("observations/0", lambda array: array[:0].copy()),
        "patterns of one unit only": set_to(
            "server", "couplings", "found", "parameters", "record", "patterns", "observations", value=[]
        ),
    },
    "network": {
        "weights of one replicate": _network("linear", lambda array: array[:1].copy()),
        "pairs of three": _network("pairs", lambda array: np.hstack([array, array[:, :1]])),
        "pairs of strangers": _network("pairs", lambda array: array + 99),
        "pairs below zero": _network("pairs", lambda array: array - 99),
        "spans from now": _network("spans", lambda array: array * 0),
        "spans backwards": _network("spans", lambda array: array[:, ::-1].copy()),
        "spans too far back": _network("spans", lambda array: array + 10**6),
        "spans out of order": _network("spans", lambda array: array[::-1].copy()),
        "a scale of zero": _network("scale", lambda array: array * 0),
        "a scale below zero": _network("scale", lambda array: -array),
        "products of no size": _network("pair_size", lambda array: array * 0),
        "no widening": set_to(*NETWORK, "widening", value=0.0),
        "other units": set_to(*NETWORK, "names", value=["a", "c"]),
        "units in another order": set_to(*NETWORK, "names", value=["b", "a"]),
        "more numbers than states": set_to(*NETWORK, "numbers", value=[1, 10**6]),
        "numbers of one unit": set_to(*NETWORK, "numbers", value=[1]),
        "no numbers": set_to(*NETWORK, "numbers", value=[0, 3]),
        "inputs of others": set_to(*NETWORK, "inputs", value=[0, 1]),
        "couplings of a unit and itself": set_to(*NETWORK, "known", "forbidden", value=[["a", "a"]]),
        "couplings of strangers": set_to(*NETWORK, "known", "forbidden", value=[["a", "stranger"]]),
    },
    "updated": {
        "less than no rows": _stream("products/blocks/3", lambda array: np.append(array[:-1], -9.0)),
        "pairs of strangers": _stream("products/pairs", lambda array: array + 99),
        "a scale of zero": _stream("products/scale", lambda array: array * 0),
        "products of no size": _stream("products/pair_size", lambda array: array * 0),
        "variances below zero": _stream("posterior/variance", lambda array: array - 1),
        "no noise": _stream("posterior/noise", lambda array: array * 0),
        "other rows": set_to(*STREAM, "products", "rows", value=5000),
        "no rows": set_to(*STREAM, "products", "rows", value=0),
        "rows without end": set_to(*STREAM, "products", "rows", value=2**62),
        "more used than there are": set_to(*STREAM, "products", "used", value=10**6),
        "other targets": set_to(*STREAM, "products", "targets", value=2),
        "chosen in the future": set_to(*STREAM, "chosen", value=521),
        "nothing kept": set_to(*STREAM, "kept", value=0),
    },
}


@pytest.mark.parametrize(("kind", "case"), [(kind, case) for kind, cases in HOSTILE.items() for case in cases])
def test_what_does_not_fit_together_is_refused(
    stored: Callable[[str], Path], tmp_path: Path, kind: str, case: str
) -> None:
    saved = Path(shutil.copytree(stored(kind), tmp_path / "fit"))
    forge(saved / "server.safetensors", HOSTILE[kind][case])
    with pytest.raises(cf.StorageError, match=r"server\.safetensors"):
        cf.load(saved)
