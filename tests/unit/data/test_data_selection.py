"""Columns by pattern and list, and refusals by name."""

from __future__ import annotations

from typing import Any

import pytest

import counterflow as cf
from counterflow.data import SelectionError, choose, selection

COLUMNS = ["P1_valve_D", "P1_pump", "P1_flow", "P1_note", "P2_gov_D", "P2_speed", "TI[1]", "weather"]


def chosen(**unit: Any) -> tuple[list[str], list[str]]:
    (found,) = choose({"boiler": unit}, COLUMNS)
    return [column for column, _ in found.inputs], [column for column, _ in found.outputs]


@pytest.mark.parametrize(
    ("unit", "inputs", "outputs"),
    [
        ({"tags": "P1_*"}, [], ["P1_valve_D", "P1_pump", "P1_flow", "P1_note"]),
        ({"tags": "P1_*", "inputs": "*_D"}, ["P1_valve_D"], ["P1_pump", "P1_flow", "P1_note"]),
        ({"tags": "P1_*", "inputs": ["P1_pump", "*_D"], "exclude": "*note"}, ["P1_pump", "P1_valve_D"], ["P1_flow"]),
        ({"tags": ["P1_*", "weather"], "outputs": "P1_flow"}, [], ["P1_flow"]),
        ({"tags": {"regex": "P1_(pump|flow)"}}, [], ["P1_pump", "P1_flow"]),
        ({"outputs": ["P1_flow", "TI[1]"]}, [], ["P1_flow", "TI[1]"]),
        ({"tags": "P1_f*", "inputs": ["weather"]}, ["weather"], ["P1_flow"]),  # a full name may stand elsewhere
        ({"inputs": {"regex": ".*_D"}, "outputs": "P?_speed"}, ["P1_valve_D", "P2_gov_D"], ["P2_speed"]),
    ],
)
def test_patterns(unit: dict[str, Any], inputs: list[str], outputs: list[str]) -> None:
    assert chosen(**unit) == (inputs, outputs)


def test_measures_and_limits() -> None:
    pump, valve = cf.Channel("P1_pump", "rpm", (0, 3000)), cf.Channel("P1_valve_D", "%", (0, 100))
    inputs = [pump, {"name": "*_D", "unit": "%", "limits": [0, 100]}]
    (found,) = choose({"boiler": {"tags": "P1_*", "inputs": inputs, "outputs": ["P1_flow"], "states": 3}}, COLUMNS)
    assert [channel for _, channel in found.inputs] == [pump, valve]
    assert found.states == 3


@pytest.mark.parametrize(
    ("units", "unit", "where", "said"),
    [
        ({"a": {"tags": "P9_*"}}, "a", ("tags", 0), "the pattern 'P9_*' fits no column"),
        ({"a": {"tags": ["P1_*"], "inputs": ["*_D", "P1_pum"]}}, "a", ("inputs", 1), "did you mean 'P1_pump'?"),
        ({"a": {"tags": "P1_*", "inputs": ["P2_*"]}}, "a", ("inputs", 0), "not one of the unit's tags"),
        ({"a": {"tags": {"regex": "Q.*"}}}, "a", ("tags", 0), "the regular expression 'Q.*' fits no column"),
        ({"a": {"tags": "P1_*", "exclude": ["*x*"]}}, "a", ("exclude", 0), "fits no column"),
        ({"a": {"tags": "P1_*"}, "b": {"tags": "*_D"}}, "b", ("tags", 0), "'P1_valve_D' belongs to unit 'a', too"),
        ({"a": {"outputs": "P1_*"}, "b": {"outputs": ["weather", "P1_flow"]}}, "b", ("outputs", 1), "'P1_flow' belo"),
        ({"a": {"inputs": "*_D", "outputs": ["P1_flow", "P1_v*"]}}, "a", ("outputs", 1), "'P1_valve_D' is both an"),
        ({"a": {"tags": "P1_*", "inputs": "*"}}, "a", (), "no output is left"),
    ],
)
def test_refusals_point_at_the_entry(units: dict[str, Any], unit: str, where: tuple[Any, ...], said: str) -> None:
    with pytest.raises(SelectionError) as caught:
        choose(units, COLUMNS)
    assert said in str(caught.value)
    assert (caught.value.unit, caught.value.where) == (unit, where)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "give 'tags'"),
        ({"tag": "x"}, "did you mean 'tags'?"),
        ({"tags": 3}, "tags is 3: give a pattern"),
        ({"tags": [3]}, r"tags[0] is 3"),
        ({"tags": " "}, "tags[0] is ' ': give a pattern"),
        ({"tags": {"regex": "("}}, "is no regular expression"),
        ({"tags": "x", "inputs": [{"name": "a", "limit": [0, 1]}]}, "'limit' is not known"),
        ({"tags": "x", "inputs": [{"name": "a", "limits": [1, 0]}]}, "pass (low, high) with low < high"),
        ({"tags": "x", "inputs": [{"name": "a", "limits": 3}]}, "inputs[0]"),
        ({"tags": "x", "states": 0}, "states is 0"),
        (7, "describes no unit"),
    ],
)
def test_selections_that_cannot_be(given: Any, said: str) -> None:
    with pytest.raises(cf.OptionError) as caught:
        selection(given, "boiler")
    assert said in str(caught.value)
    assert "boiler" in str(caught.value)
    for nothing in ({}, [], None):
        with pytest.raises(cf.OptionError, match="units must map"):
            choose(nothing, COLUMNS)  # type: ignore[arg-type]
