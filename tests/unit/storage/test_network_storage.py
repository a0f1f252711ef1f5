"""A network on disk: it comes back bit by bit, and one that does not fit together is refused."""

from __future__ import annotations

import shutil
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from forged_files import forge, set_array, set_to, with_nan

import counterflow as cf

PLACE = ("server", "couplings", "network")


@pytest.fixture(scope="module")
def fit() -> cf.Fit:
    """Of a plant with a product in it, and a coupling that was ruled out."""
    rng = np.random.default_rng(0)
    y, u = np.zeros((500, 3)), rng.standard_normal((500, 1))
    for t in range(1, 500):
        y[t, 0] = 0.7 * y[t - 1, 0] + 0.5 * u[t - 1, 0] + 0.1 * rng.standard_normal()
        y[t, 1] = 0.6 * y[t - 1, 1] + 0.5 * y[t - 1, 0] - 0.3 * y[t - 1, 0] * y[t - 1, 1] + 0.1 * rng.standard_normal()
        y[t, 2] = 0.5 * y[t - 1, 2] + 0.3 * y[t - 1, 1] + 0.1 * rng.standard_normal()
    arrays = {"a": (y[:, :1], u), "b": (y[:, 1:], np.zeros((500, 0)))}
    return cf.fit(cf.Recording.from_arrays(arrays, dt=1.0), same_row=False, forbidden=[("b", "a")])


@pytest.fixture(scope="module")
def folder(fit: cf.Fit, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stored") / "fit"
    fit.save(path)
    return path


@pytest.fixture
def saved(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "fit"))


def test_a_network_comes_back_bit_by_bit(fit: cf.Fit, saved: Path) -> None:
    one, two = fit.couplings.network, cf.load(saved).couplings.network
    assert one.curved
    assert one.known is not None
    for field in fields(one):
        mine, theirs = getattr(one, field.name), getattr(two, field.name)
        if isinstance(mine, np.ndarray):
            assert np.array_equal(mine, theirs), field.name
            assert mine.dtype == theirs.dtype, field.name
        else:
            assert mine == theirs, field.name
    later = cf.Recording.from_arrays(
        {"a": (np.ones((9, 1)), np.ones((9, 1))), "b": (np.ones((9, 2)), np.zeros((9, 0)))}
    )
    assert np.array_equal(
        fit.update(later).couplings.network.linear, cf.load(saved).update(later).couplings.network.linear
    )


def _key(name: str) -> str:
    return "/".join((*PLACE, name))


HOSTILE = {
    **{f"{name} cut": set_array(_key(name), lambda array: array[:-1].copy())
       for name in ("pair_centre", "pair_size", "low", "high", "level", "scale", "noise")},
    "weights of fewer spans": set_array(_key("linear"), lambda array: array[:, :-1].copy()),
    "weights of fewer columns": set_array(_key("linear"), lambda array: array[:, :, :-1].copy()),
    "weights of fewer numbers": set_array(_key("linear"), lambda array: array[..., :-1].copy()),
    "weights of one replicate": set_array(_key("linear"), lambda array: array[:1].copy()),
    "weights not finite": set_array(_key("linear"), with_nan),
    "weights in single precision": set_array(_key("linear"), lambda array: array.astype(np.float32)),
    "products of fewer replicates": set_array(_key("bends"), lambda array: array[:-1].copy()),
    "products of fewer pairs": set_array(_key("bends"), lambda array: array[:, :-1].copy()),
    "fewer pairs": set_array(_key("pairs"), lambda array: array[:-1].copy()),
    "pairs of three": set_array(_key("pairs"), lambda array: np.hstack([array, array[:, :1]])),
    "pairs of strangers": set_array(_key("pairs"), lambda array: array + 99),
    "pairs below zero": set_array(_key("pairs"), lambda array: array - 99),
    "fewer spans": set_array(_key("spans"), lambda array: array[:-1].copy()),
    "spans from now": set_array(_key("spans"), lambda array: array * 0),
    "spans backwards": set_array(_key("spans"), lambda array: array[:, ::-1].copy()),
    "spans too far back": set_array(_key("spans"), lambda array: array + 10**6),
    "spans out of order": set_array(_key("spans"), lambda array: array[::-1].copy()),
    "a scale of zero": set_array(_key("scale"), lambda array: array * 0),
    "a scale below zero": set_array(_key("scale"), lambda array: -array),
    "products of no size": set_array(_key("pair_size"), lambda array: array * 0),
    "no widening": set_to(*PLACE, "widening", value=0.0),
    "widening as text": set_to(*PLACE, "widening", value="1"),
    "other units": set_to(*PLACE, "names", value=["a", "c"]),
    "units in another order": set_to(*PLACE, "names", value=["b", "a"]),
    "more numbers than states": set_to(*PLACE, "numbers", value=[1, 10**6]),
    "numbers of one unit": set_to(*PLACE, "numbers", value=[1]),
    "no numbers": set_to(*PLACE, "numbers", value=[0, 3]),
    "inputs of others": set_to(*PLACE, "inputs", value=[0, 1]),
    "an unknown key": set_to(*PLACE, "loader", value="os.system"),
    "couplings of a unit and itself": set_to(*PLACE, "known", "forbidden", value=[["a", "a"]]),
    "couplings of strangers": set_to(*PLACE, "known", "forbidden", value=[["a", "stranger"]]),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_network_that_does_not_fit_together_is_refused(saved: Path, case: str) -> None:
    forge(saved / "server.safetensors", HOSTILE[case])
    with pytest.raises(cf.StorageError, match=r"server\.safetensors"):
        cf.load(saved)


# ---- what an updated fit keeps of all rows

STREAM = ("server", "couplings", "stream")


@pytest.fixture(scope="module")
def updated(fit: cf.Fit, tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(1)
    later = {
        "a": (rng.standard_normal((20, 1)), np.ones((20, 1))),
        "b": (rng.standard_normal((20, 2)), np.zeros((20, 0))),
    }
    path = tmp_path_factory.mktemp("stored") / "fit"
    fit.update(cf.Recording.from_arrays(later)).save(path)
    assert cf.load(path).couplings.stream.rows == 520
    return path


def _kept(*names: str) -> str:
    return "/".join((*STREAM, *names))


BROKEN = {
    **{f"{name} cut": set_array(_kept("products", name), lambda array: array[:-1].copy())
       for name in ("spans", "pairs", "pair_centre", "pair_size", "level", "scale", "low", "high", "moving")},
    **{f"{name} cut": set_array(_kept("posterior", name), lambda array: array[:, :-1].copy())
       for name in ("variance", "noise", "damping")},
    "a block cut": set_array(_kept("products", "blocks", "3"), lambda array: array[:-1].copy()),
    "a block not finite": set_array(_kept("products", "blocks", "3"), with_nan),
    "less than no rows": set_array(_kept("products", "blocks", "3"), lambda array: np.append(array[:-1], -9.0)),
    "a block in two directions": set_array(_kept("products", "blocks", "3"), lambda array: array[None]),
    "pairs of strangers": set_array(_kept("products", "pairs"), lambda array: array + 99),
    "a scale of zero": set_array(_kept("products", "scale"), lambda array: array * 0),
    "products of no size": set_array(_kept("products", "pair_size"), lambda array: array * 0),
    "variances below zero": set_array(_kept("posterior", "variance"), lambda array: array - 1),
    "no noise": set_array(_kept("posterior", "noise"), lambda array: array * 0),
    "a shorter tail": set_array(_kept("tail"), lambda array: array[1:].copy()),
    "a tail not finite": set_array(_kept("tail"), with_nan),
    "other rows": set_to(*STREAM, "products", "rows", value=5000),
    "no rows": set_to(*STREAM, "products", "rows", value=0),
    "rows without end": set_to(*STREAM, "products", "rows", value=2**62),
    "more used than there are": set_to(*STREAM, "products", "used", value=10**6),
    "other targets": set_to(*STREAM, "products", "targets", value=2),
    "chosen in the future": set_to(*STREAM, "chosen", value=521),
    "nothing kept": set_to(*STREAM, "kept", value=0),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_stream_that_does_not_fit_together_is_refused(updated: Path, tmp_path: Path, case: str) -> None:
    saved = Path(shutil.copytree(updated, tmp_path / "fit"))
    forge(saved / "server.safetensors", BROKEN[case])
    with pytest.raises(cf.StorageError, match=r"server\.safetensors"):
        cf.load(saved)
