"""The serialiser of dataclasses: what is written comes back, and nothing that is read is trusted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import pytest
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.caveats import Caveat
from counterflow.errors import ModelError, StorageError
from counterflow.plant import Channel, Unit
from counterflow.records import DEEPEST, describe, kinds_of, restore, strict_json


class Colour(Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True, eq=False)
class Leaf:
    A: FloatArray
    name: str = "leaf"

    def __post_init__(self) -> None:
        if self.A.ndim != 2:
            raise ModelError("A must be 2-D")


@dataclass(frozen=True)
class Circle:
    radius: float


@dataclass(frozen=True)
class Square:
    side: float


@runtime_checkable
class Shape(Protocol):
    """Any registered class that keeps to it may stand there."""


@dataclass(frozen=True, eq=False)
class Tree:
    leaf: Leaf
    again: Leaf | None = None
    gaps: FloatArray = field(default_factory=lambda: np.zeros(0), metadata={"missing": True, "rank": 1})
    counts: NDArray[np.intp] = field(default_factory=lambda: np.arange(3))
    pair: tuple[int, str] = (1, "a")
    numbers: tuple[float, ...] = ()
    shapes: tuple[Circle | Square, ...] = ()
    any_shape: Shape | None = None
    by_name: Mapping[str, FloatArray] = field(default_factory=dict)
    by_number: dict[int, Leaf] = field(default_factory=dict)
    names: frozenset[str] = frozenset()
    mode: Literal["slow", "fast"] = "slow"
    colour: Colour = Colour.RED
    where: slice = field(default_factory=lambda: slice(0, 1))
    level: float | None = None
    unit: Unit | None = None
    caveats: tuple[Caveat, ...] = ()


KINDS = kinds_of(Circle, Square)
LEAF = Leaf(np.eye(2))
FULL = Tree(
    LEAF,
    again=LEAF,
    gaps=np.array([1.0, np.nan]),
    numbers=(1, 0.1),
    shapes=(Circle(1.0), Square(2.0)),
    any_shape=Square(3.0),
    by_name=MappingProxyType({"boiler": np.asfortranarray(np.arange(6.0).reshape(2, 3))}),
    by_number={-3: Leaf(np.zeros((0, 2)), "x")},
    names=frozenset({"b", "a"}),
    mode="fast",
    colour=Colour.BLUE,
    where=slice(2, 5),
    level=1.5,
    unit=Unit("boiler", 2, [Channel("valve", "%", (0, float("inf")))], 1),
    caveats=(Caveat("not-converged", "", "give more rounds"),),
)


def _written(value: Any = FULL, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    described, arrays = describe(value, KINDS, **options)
    return json.loads(json.dumps(described, allow_nan=False)), dict(arrays)


def test_everything_comes_back() -> None:
    described, arrays = _written()
    back = restore(Tree, described, arrays, KINDS)
    assert back.leaf is back.again
    assert np.array_equal(back.leaf.A, np.eye(2))
    assert np.array_equal(back.gaps, FULL.gaps, equal_nan=True)
    assert back.counts.tolist() == [0, 1, 2]
    assert back.by_name["boiler"].flags.f_contiguous
    assert np.array_equal(back.by_name["boiler"], FULL.by_name["boiler"])
    assert back.by_number[-3].A.shape == (0, 2)
    assert not back.leaf.A.flags.writeable
    for name in ("pair", "numbers", "shapes", "any_shape", "names", "mode", "colour", "where", "level", "unit"):
        assert getattr(back, name) == getattr(FULL, name), name
    assert back.caveats == FULL.caveats
    assert type(back.numbers[0]) is float


def test_some_fields_onto_another_object() -> None:
    described, arrays = _written(only=("leaf", "mode"))
    assert set(described) == {"leaf", "mode"}
    back = restore(Tree, described, arrays, KINDS, only=("leaf", "mode"), onto=replace(FULL, mode="slow"))
    assert back.mode == "fast"
    assert back.unit is FULL.unit
    with pytest.raises(StorageError, match="unit: is missing from Tree"):
        restore(Tree, described, arrays, KINDS, only=("leaf", "mode", "unit"), onto=FULL)


def test_what_is_equal_is_stored_once() -> None:
    arrays = describe(Tree(Leaf(np.eye(2)), Leaf(np.eye(2))))[1]
    assert sorted(arrays) == ["counts", "gaps", "leaf/A"]


def test_not_finite_only_where_declared() -> None:
    with pytest.raises(StorageError, match="leaf/A: holds a value that is not finite"):
        describe(Tree(Leaf(np.array([[np.nan]]))))
    with pytest.raises(StorageError, match="level: holds inf"):
        describe(Tree(LEAF, level=float("inf")))
    with pytest.raises(StorageError, match="gaps: holds a value that is not finite"):
        describe(Tree(LEAF, gaps=np.array([np.inf])))
    loose = describe(Tree(LEAF, level=float("inf")), finite=False)
    assert restore(Tree, *loose, finite=False).level == float("inf")
    with pytest.raises(StorageError, match="level: is not a finite number"):
        restore(Tree, *loose)


def test_what_is_no_data_is_not_written() -> None:
    with pytest.raises(TypeError, match="registered"):
        describe(Tree(LEAF, any_shape=Leaf(np.eye(1))))
    with pytest.raises(TypeError, match="object"):
        describe(Tree(LEAF, any_shape=object()))
    with pytest.raises(StorageError, match="slash"):
        describe(Tree(LEAF, by_name={"a/b": np.eye(2)}))


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("nonsense", 1, "nonsense: is no field of Tree"),
        ("leaf", None, "leaf: is null"),
        ("leaf", 3, "leaf: should be Leaf"),
        ("leaf/A", "matrix", "leaf/A: should be"),
        ("leaf/A", {"=": "nowhere"}, "leaf/A: refers to"),
        ("leaf/A", {"=": ["x"]}, "leaf/A: refers to"),
        ("again", {"=": "leaf/A"}, "again: refers to"),
        ("leaf/name", 3, "leaf/name: should be str"),
        ("pair", [1], "pair: should have 2 entries"),
        ("pair/0", True, "pair/0: should be int"),
        ("pair/0", 2**70, "pair/0: should be int"),
        ("numbers/0", "1", "numbers/0: should be float"),
        ("numbers/0", 10**400, "numbers/0: should be float"),
        ("numbers/0", "nan", "numbers/0: is not a finite number"),
        ("mode", "quick", "mode: should be"),
        ("colour", "GREEN", "colour: should be"),
        ("where", [0, None], "where: should be two ends"),
        ("shapes/0/is", "Leaf", "shapes/0: 'Leaf' is no registered class"),
        ("shapes/0/is", ["Leaf"], "shapes/0: .* is no registered class"),
        ("shapes/0/of", {"radius": 1.0, "side": 1.0}, "shapes/0/side: is no field of Circle"),
        ("by_number", {"x": {}}, "by_number: has keys that are not int"),
        ("names", {"a": 1}, "names: should be frozenset"),
        ("unit", {"name": "a/b", "states": 1, "inputs": [], "outputs": []}, "unit: .*"),
        ("unit/inputs/0/limits", [1], "unit/inputs/0: .*limits"),
        ("caveats/0/code", "Not A Code", "caveats/0: .*code"),
    ],
)
def test_a_wrong_entry_is_named_by_its_path(path: str, value: Any, told: str) -> None:
    described, arrays = _written()
    *parents, last = path.split("/")
    at: Any = described
    for name in parents:
        at = at[int(name) if isinstance(at, list) else name]
    at[int(last) if isinstance(at, list) else last] = value
    with pytest.raises(StorageError, match=told):
        restore(Tree, described, arrays, KINDS)


def test_missing_fields_and_wrong_arrays() -> None:
    described, arrays = _written()
    with pytest.raises(StorageError, match="mode: is missing from Tree"):
        restore(Tree, {key: value for key, value in described.items() if key != "mode"}, arrays, KINDS)
    with pytest.raises(StorageError, match="leaf/A: the array is missing"):
        restore(Tree, described, {}, KINDS)
    with pytest.raises(StorageError, match="more: an array that does not belong here"):
        restore(Tree, described, arrays | {"more": np.eye(2)}, KINDS)
    with pytest.raises(StorageError, match="leaf/A: has type int64"):
        restore(Tree, described, arrays | {"leaf/A": np.eye(2, dtype=np.int64)}, KINDS)
    with pytest.raises(StorageError, match="leaf: A must be 2-D"):
        restore(Tree, described, arrays | {"leaf/A": np.ones(2)}, KINDS)
    with pytest.raises(StorageError, match="gaps: needs 1 axes, has 2"):
        restore(Tree, described, arrays | {"gaps": np.eye(2)}, KINDS)


@dataclass(frozen=True)
class Chain:
    rest: Chain | None = None


def test_depth_is_bounded() -> None:
    tree: Any = None
    for _ in range(DEEPEST + 5):
        tree = {"rest": tree}
    with pytest.raises(StorageError, match="nested too deeply"):
        restore(Chain, tree, {})


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', "NaN", "[" * 100_000, "{"])
def test_json_is_read_strictly(text: str) -> None:
    with pytest.raises(ValueError, match=r"twice|JSON|deeply|Expecting"):
        strict_json(text)
