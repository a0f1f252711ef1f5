"""Units and channels: what is accepted, and that every refusal names the fault."""

import dataclasses

import pytest

from counterflow.errors import ModelError
from counterflow.plant import Channel, Unit


def test_counts_become_named_channels_and_mix_with_names():
    unit = Unit("boiler", states=3, inputs=2, outputs=1)
    assert (unit.input_names, unit.output_names) == (("u1", "u2"), ("y1",))
    assert (unit.states, unit.n_inputs, unit.n_outputs) == (3, 2, 1)
    usual = Unit("boiler")  # the defaults are those of the contract
    assert (usual.states, usual.n_inputs, usual.n_outputs) == (2, 2, 8)
    valve = Channel("valve", "%", (0, float("inf")))
    mixed = Unit("boiler", inputs=["fuel", valve], outputs=("level",))
    assert mixed.inputs == (Channel("fuel"), valve)
    assert mixed.output_names == ("level",)
    assert Unit("tank", inputs=0).inputs == Unit("tank", inputs=[]).inputs == ()


def test_units_are_values():
    assert Unit("a", 1, 1, 1) == Unit("a", 1, ["u1"], ["y1"])
    assert hash(Unit("a")) == hash(Unit("a"))
    assert dataclasses.replace(Unit("a"), states=5).states == 5
    for name in ("boiler 1", "Kessel-Ü", "a.b", "x" * 100, "ボイラー"):
        assert Unit(name).name == Channel(name).name == name
    with pytest.raises(dataclasses.FrozenInstanceError):
        Unit("a").states = 3


@pytest.mark.parametrize(
    "name", ["", "a/b", "a\\b", "a\nb", "\x7f", "..", "x" * 101, " a", "a ", "\ud800", "€" * 90, 3, None, b"a"]
)
def test_bad_names_are_refused(name):
    for make in (Unit, Channel):
        with pytest.raises(ModelError, match="name"):
            make(name)


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
def test_bad_channels(limits):
    with pytest.raises(ModelError, match=r"'valve'.*limits"):
        Channel("valve", limits=limits)
    with pytest.raises(ModelError, match="unit of measure must be text, got 3"):
        Channel("valve", unit=3)
