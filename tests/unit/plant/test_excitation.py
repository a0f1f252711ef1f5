"""Input makers: shapes, statistics, and streams that follow the name."""

import numpy as np
import pytest
from tolerances import EXACT, STANDARD_ERRORS

from counterflow.errors import ModelError, OptionError
from counterflow.plant import Unit, excitation, random_plant

MAKERS = [excitation.white, excitation.autoregressive, excitation.holds, excitation.mean_shift]


@pytest.mark.parametrize("make", MAKERS)
def test_shapes_and_streams(make):
    units = [Unit("a", inputs=3), Unit("b", inputs=0), Unit("c", inputs=1)]
    signals = make(units, 50, 1)
    assert {name: u.shape for name, u in signals.items()} == {"a": (51, 3), "b": (51, 0), "c": (51, 1)}
    alone = make(units[2:], 50, 1)
    np.testing.assert_array_equal(signals["c"], alone["c"])
    assert not np.array_equal(signals["c"], make(units, 50, 2)["c"])
    assert not np.array_equal(signals["a"][:, :1], signals["c"])
    plant = random_plant(units, rng=0)
    np.testing.assert_array_equal(make(plant, 50, 1)["a"], signals["a"])
    assert make(plant, 1)["a"].shape == (2, 3)


def test_white():
    u = excitation.white([Unit("a", inputs=1)], 9999, 0, scale=2.0, mean=5.0)["a"]
    assert abs(u.mean() - 5.0) <= STANDARD_ERRORS * 2 / 100
    assert abs(u.std() - 2.0) <= STANDARD_ERRORS * 2 / np.sqrt(2e4)


@pytest.mark.parametrize("pole", [0.9, -0.5, 0.0])
def test_autoregressive(pole):
    u = excitation.autoregressive([Unit("a", inputs=200)], 99, 0, pole=pole)["a"]
    innovations = (u[1:] - pole * u[:-1]) / np.sqrt(1 - pole**2)
    assert abs(innovations.std() - 1) <= STANDARD_ERRORS / np.sqrt(2 * innovations.size)
    for row in (0, 50, 99):  # stationary from the first row on
        assert abs(u[row].std() - 1) <= STANDARD_ERRORS / np.sqrt(2 * 200)


def test_holds():
    u = excitation.holds([Unit("a", inputs=2)], 104, 0, hold=10, scale=3.0)["a"]
    changes = np.flatnonzero(np.diff(u, axis=0).any(axis=1)) + 1
    assert changes.tolist() == list(range(10, 105, 10))


def test_mean_shift():
    units = [Unit("a", inputs=1)]
    u, still = (excitation.mean_shift(units, 99, 0, at=0.3, shift=s)["a"] for s in (4.0, 0.0))
    np.testing.assert_allclose(u - still, np.repeat([0.0, 4.0], [30, 70])[:, None], atol=10 * EXACT)
    wide = excitation.mean_shift([Unit("a", inputs=2000)], 2, 0, shift=0.0)["a"]
    np.testing.assert_allclose(wide.std(axis=1), [0.5, 1.0, 1.5], rtol=STANDARD_ERRORS / np.sqrt(4000))


@pytest.mark.parametrize(
    "call",
    [
        lambda units: excitation.white(units, 0),
        lambda units: excitation.white(units, 5, scale=-1),
        lambda units: excitation.white(units, 5, mean=np.nan),
        lambda units: excitation.autoregressive(units, 5, pole=1.0),
        lambda units: excitation.holds(units, 5, hold=0),
        lambda units: excitation.mean_shift(units, 5, at=2),
        lambda units: excitation.white(units, 5, rng="seed"),
        lambda units: excitation.white(["a"], 5),
    ],
)
def test_bad_options(call):
    with pytest.raises((OptionError, ModelError)):
        call([Unit("a")])
