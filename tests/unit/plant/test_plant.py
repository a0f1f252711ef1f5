"""The plant as a checked, read-only value with blocks by name."""

import builtins
import subprocess
import sys

import numpy as np
import pytest
from tolerances import EXACT

from counterflow.errors import CounterflowError, ModelError, OptionError, UnknownNameError, UnstableError
from counterflow.plant import LocalModel, Plant, Unit, random_plant

UNITS = (Unit("boiler", 2, 1, 3), Unit("turbine", 1, 0, 2), Unit("grid", 2, 2, 1))


def arrays():
    rng = np.random.default_rng(0)
    C = np.zeros((6, 5))
    C[:3, :2], C[3:5, 2:3], C[5:, 3:] = rng.normal(size=(3, 2)), rng.normal(size=(2, 1)), rng.normal(size=(1, 2))
    return {"A": 0.2 * rng.normal(size=(5, 5)), "B": rng.normal(size=(5, 3)), "C": C, "Q": np.eye(5), "R": np.eye(6)}


def changed(letter, at, value):
    given = arrays()
    given[letter] = given[letter].copy()
    given[letter][at] = value
    return given


def test_blocks_by_name():
    given = arrays()
    plant = Plant(units=UNITS, **given)
    np.testing.assert_array_equal(plant.block("A", effect="grid", cause="boiler"), given["A"][3:, :2])
    np.testing.assert_array_equal(plant.block("B", effect="boiler", cause="grid"), given["B"][:2, 1:])
    assert plant.block("B", effect="boiler", cause="turbine").shape == (2, 0)
    np.testing.assert_array_equal(plant.block("C", "turbine"), given["C"][3:5, 2:3])
    assert plant.block("R", effect="boiler", cause="turbine").shape == (3, 2)
    assert (plant.state_slice("grid"), plant.input_slice("grid"), plant.output_slice("grid")) == (
        slice(3, 5),
        slice(1, 3),
        slice(5, 6),
    )
    assert plant.unit("turbine") is UNITS[1]
    assert plant.names == ("boiler", "turbine", "grid")


def test_unknown_names_suggest_close_ones():
    plant = Plant(units=UNITS, **arrays())
    for call in (plant.unit, plant.state_slice, plant.local, lambda name: plant.block("A", name)):
        with pytest.raises(UnknownNameError, match="did you mean 'boiler'"):
            call("boilr")
    with pytest.raises(UnknownNameError, match="known: 'boiler', 'turbine', 'grid'"):
        plant.unit("xyz")
    with pytest.raises(UnknownNameError):
        plant.unit(["boiler"])
    with pytest.raises(OptionError, match="A, B, C, Q, R"):
        plant.block("D", "boiler")


def test_arrays_are_copied_and_read_only():
    given = arrays()
    view = given["A"][:]
    view.flags.writeable = False  # a read-only view of what can be written
    plants = [Plant(units=UNITS, **given), Plant(units=UNITS, **{**given, "A": view})]
    given["A"][:] = 7
    assert not any((plant.A == 7).any() for plant in plants)
    for array in (*(getattr(plants[0], letter) for letter in "ABCQR"), plants[0].block("A", "boiler")):
        with pytest.raises(ValueError, match="read-only"):
            array[0, 0] = 1
    assert Plant(units=[Unit("a", 1, 1, 1)], A=[[0]], B=[[1]], C=[[1]], Q=[[1]], R=[[1]]).A.dtype == np.float64


def test_covariances_that_are_accepted():
    """Rounding that is taken out, very different scales, and no noise at all."""
    plant = Plant(units=UNITS, **changed("Q", (0, 1), 1e-12))
    assert (plant.Q == plant.Q.T).all()
    assert Plant(units=UNITS, **{**arrays(), "R": np.diag([1e-12, 1e12, 1.0, 1e-9, 1e9, 1.0])}).R[0, 0] == 1e-12
    assert not Plant(units=UNITS, **{**arrays(), "Q": np.zeros((5, 5))}).Q.any()


REPEATED = np.eye(6)
REPEATED[:2, :2] = 1.0  # measurements that have no noise of their own


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        ({**arrays(), "R": REPEATED}, ["R of unit 'boiler' is not positive definite"]),
        ({**arrays(), "A": np.eye(4)}, ["A must have shape (5, 5)", "got (4, 4)"]),
        ({**arrays(), "B": np.zeros((5, 2))}, ["B must have shape (5, 3)"]),
        ({**arrays(), "B": np.zeros(15)}, ["B must have shape (5, 3)", "(15,)"]),
        ({**arrays(), "C": arrays()["C"].T}, ["C must have shape (6, 5)"]),
        ({**arrays(), "Q": 1.0}, ["Q must have shape (5, 5)", "got ()"]),
        ({**arrays(), "R": np.eye(5)}, ["R must have shape (6, 6)"]),
        (changed("A", (1, 2), np.nan), ["A holds nan at [1, 2]"]),
        (changed("B", (0, 0), np.inf), ["B holds inf at [0, 0]"]),
        (changed("C", (0, 3), 1.0), ["C must be block-diagonal", "'boiler'", "'grid'", "[0, 3]"]),
        (changed("Q", (2, 0), 0.1), ["Q must be block-diagonal", "'turbine'", "'boiler'"]),
        (changed("R", (5, 3), 0.1), ["R must be block-diagonal", "'grid'", "'turbine'"]),
        (changed("Q", (0, 1), 0.1), ["Q of unit 'boiler' is not symmetric"]),
        (changed("R", (4, 3), 0.1), ["R of unit 'turbine' is not symmetric"]),
        (changed("Q", (3, 3), -1.0), ["Q of unit 'grid' is not positive semidefinite"]),
        (changed("R", (5, 5), 0.0), ["R of unit 'grid' is not positive definite"]),
        ({**arrays(), "A": np.eye(5, dtype=bool)}, ["A has dtype bool"]),
        ({**arrays(), "A": [[1, 2], [3]]}, ["A cannot be read as an array"]),
        ({**arrays(), "dt": 0}, ["dt is 0"]),
        ({**arrays(), "units": []}, ["units is empty"]),
        ({**arrays(), "units": "ab"}, ["units is 'ab'"]),
        ({**arrays(), "units": ["boiler"]}, ["units holds 'boiler'"]),
        ({**arrays(), "units": [Unit("a"), Unit("a")]}, ["'a' is used twice"]),
    ],
)
def test_bad_plants_are_refused(given, parts):
    with pytest.raises(ModelError) as caught:
        Plant(**{"units": UNITS, **given})
    for part in parts:
        assert part in str(caught.value)


def test_local_models():
    plant = Plant(units=UNITS, **arrays())
    locals_ = plant.locals()
    assert list(locals_) == list(plant.names)
    model = locals_["turbine"]
    assert (model.states, model.n_inputs, model.n_outputs) == (1, 0, 2)
    for letter in "ABCQR":
        np.testing.assert_array_equal(getattr(model, letter), plant.block(letter, "turbine"))
        assert not getattr(model, letter).flags.writeable
    assert model == plant.local("turbine")
    assert model != plant.local("grid")


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"A": np.eye(3)}, "B must have shape (3, 1)"),
        ({"A": np.ones((2, 3))}, "A must have shape (2, 2)"),
        ({"A": [1.0, 2.0]}, "A must be 2-D"),
        ({"C": np.zeros((3, 1))}, "C must have shape (3, 2)"),
        ({"C": np.zeros((0, 2)), "R": np.zeros((0, 0))}, "at least one"),
        ({"Q": -np.eye(2)}, "Q of the local model is not positive semidefinite"),
        ({"R": np.zeros((3, 3))}, "R of the local model is not positive definite"),
        ({"R": np.triu(np.ones((3, 3)))}, "R of the local model is not symmetric"),
        ({"A": [[np.inf, 0], [0, 0]]}, "A holds inf"),
    ],
)
def test_bad_local_models(change, part):
    good = {"A": np.eye(2), "B": np.ones((2, 1)), "C": np.ones((3, 2)), "Q": np.eye(2), "R": np.eye(3)}
    with pytest.raises(ModelError) as caught:
        LocalModel(**{**good, **change})
    assert part in str(caught.value)


def test_equality_and_text():
    plant = random_plant(2, rng=0)
    assert plant == random_plant(2, rng=0)
    assert hash(plant) == hash(random_plant(2, rng=0))
    assert plant != random_plant(2, rng=1)
    assert plant != plant.replace(dt=2.0)
    assert plant != 3
    assert "unit1" in repr(plant)
    assert "stable" in str(plant)
    assert "unstable" in str(plant.replace(A=2 * np.eye(4)))
    turning = plant.replace(A=np.diag([1.0, 0.5, 0.5, 0.5]))
    assert (turning.is_stable, turning.spectral_radius) == (False, 1.0)
    with pytest.raises(OptionError, match="no field 'D'"):
        plant.replace(D=1)


def test_impulse_response_is_powers():
    plant = random_plant(rng=0)
    response = plant.impulse_response(20)
    for k in (0, 1, 19):
        expected = plant.C @ np.linalg.matrix_power(plant.A, k) @ plant.B
        np.testing.assert_allclose(response[k], expected, rtol=EXACT, atol=EXACT)
    for horizon in (0, 1.5):
        with pytest.raises(OptionError, match="horizon"):
            plant.impulse_response(horizon)
    with pytest.raises(UnstableError, match="spectral radius"):
        plant.replace(A=np.eye(4) * 1e10).impulse_response(100)


def test_a_pole_at_the_frequency_is_refused():
    plant = random_plant(rng=0).replace(A=np.diag([1.0, 0.5, 0.5, 0.5]))
    with pytest.raises(UnstableError, match=r"w\[1\] = 0"):
        plant.frequency_response([0.1, 0.0])
    assert np.isfinite(plant.frequency_response([0.1, 1e-6])).all()
    rotation = [[np.cos(0.3), np.sin(0.3)], [-np.sin(0.3), np.cos(0.3)]]
    turning = Plant(units=[Unit("a", 2, 1, 1)], A=rotation, B=[[1], [0]], C=[[1, 0]], Q=np.eye(2), R=[[1]], dt=0.1)
    with pytest.raises(UnstableError, match=r"w\[0\] = 3"):
        turning.sigma([3.0])
    for w in (1.0, [[1.0]], [np.nan], ["a"], [1j]):
        with pytest.raises(OptionError, match="w"):
            plant.frequency_response(w)
    none = random_plant(2, inputs=0, rng=0)
    assert (none.frequency_response([0.1]).shape, none.sigma([0.1]).shape) == ((1, 16, 0), (1, 0))
    assert none.zeros().size == 0
    assert plant.sigma([]).shape == (0, 4)


def test_control_missing_says_what_to_install(monkeypatch):
    real = builtins.__import__

    def absent(name, *rest, **options):
        if name == "control":
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(CounterflowError, match=r"pip install counterflow\[control\]"):
        random_plant(rng=0).to_control()


def test_import_is_light():
    code = (
        "import sys, counterflow.plant; "
        "print([m for m in ('scipy', 'polars', 'safetensors', 'control', 'slycot', 'matplotlib') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
