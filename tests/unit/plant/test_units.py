"""Units and channels: what is accepted, and that every refusal names the fault."""

import dataclasses

import pytest

from counterflow.errors import ModelError
from counterflow.plant import Channel, Unit


def test_counts_become_named_channels():
    unit = Unit("boiler", states=3, inputs=2, outputs=1)
    assert unit.input_names == ("u1", "u2")
    assert unit.output_names == ("y1",)
    assert (unit.states, unit.n_inputs, unit.n_outputs) == (3, 2, 1)
    assert all(isinstance(channel, Channel) for channel in unit.inputs + unit.outputs)


def test_defaults_are_those_of_the_contract():
    unit = Unit("boiler")
    assert (unit.states, unit.n_inputs, unit.n_outputs) == (2, 2, 8)


def test_names_and_channels_mix():
    valve = Channel("valve", "%", (0, 100))
    unit = Unit("boiler", inputs=["fuel", valve], outputs=("level",))
    assert unit.inputs == (Channel("fuel"), valve)
    assert unit.output_names == ("level",)


def test_units_are_values():
    assert Unit("a", 1, 1, 1) == Unit("a", 1, ["u1"], ["y1"])
    assert hash(Unit("a")) == hash(Unit("a"))
    assert dataclasses.replace(Unit("a"), states=5).states == 5
    with pytest.raises(dataclasses.FrozenInstanceError):
        Unit("a").states = 3


def test_no_inputs_is_allowed():
    assert Unit("tank", inputs=0).inputs == ()
    assert Unit("tank", inputs=[]).inputs == ()


def test_limits_may_be_open():
    assert Channel("x", limits=(0, float("inf"))).limits == (0.0, float("inf"))


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a/b",
        "a\\b",
        "a\nb",
        "a\0b",
        "\x7f",
        ".hidden",
        "..",
        "x" * 101,
        " a",
        "a ",
        "\ud800",
        "€" * 90,
        3,
        None,
        b"a",
    ],
)
def test_bad_names_are_refused(name):
    for make in (Unit, Channel):
        with pytest.raises(ModelError, match="name"):
            make(name)


@pytest.mark.parametrize("name", ["boiler 1", "Kessel-Ü", "a.b", "x" * 100, "ボイラー"])
def test_good_names(name):
    assert Unit(name).name == Channel(name).name == name


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"states": 0}, "states is 0"),
        ({"states": -1}, "states is -1"),
        ({"states": 1.5}, "states is 1.5"),
        ({"states": True}, "states is True"),
        ({"states": "2"}, "states is '2'"),
        ({"inputs": -1}, "inputs is -1"),
        ({"inputs": "valve"}, "inputs is 'valve'"),
        ({"inputs": [1]}, "inputs holds 1"),
        ({"inputs": ["a", "a"]}, "'a' is used twice"),
        ({"inputs": ["a"], "outputs": ["a"]}, "'a' is used twice"),
        ({"inputs": ["a/b"]}, "slash"),
        ({"outputs": 0}, "outputs is 0"),
        ({"outputs": []}, "outputs is empty"),
        ({"outputs": None}, "outputs is None"),
    ],
)
def test_bad_units_name_unit_and_field(options, part):
    with pytest.raises(ModelError, match=part) as caught:
        Unit("boiler", **options)
    assert "boiler" in str(caught.value)


@pytest.mark.parametrize("limits", [(1, 0), (1, 1), (0,), 3, "ab", (0, float("nan")), (None, 1), ("0", "1"), (0, 1, 2)])
def test_bad_limits(limits):
    with pytest.raises(ModelError, match=r"'valve'.*limits"):
        Channel("valve", limits=limits)


def test_unit_of_measure_is_text():
    with pytest.raises(ModelError, match="unit of measure must be text, got 3"):
        Channel("valve", unit=3)
