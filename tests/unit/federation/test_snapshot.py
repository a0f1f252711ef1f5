"""States as bytes: what comes back is what went in, and what no session has written is refused."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterflow.errors import StorageError
from counterflow.federation import checkpoint
from counterflow.federation.snapshot import freeze, kinds, thaw
from counterflow.methods.published.couplings import Eliminator, Evidence
from counterflow.plant import LocalModel
from counterflow.protocol import AugmentedStates


def again(value: object) -> Any:
    table, pieces = freeze(value)
    return thaw(json.loads(json.dumps(table, allow_nan=False)), pieces, "here")


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4).map(tuple) | st.dictionaries(st.text(max_size=5), inner).map(MappingProxyType)
    ),
    max_leaves=20,
)


@given(PLAIN)
@settings(max_examples=200)
def test_plain_values_come_back_with_their_types(value: Any) -> None:
    assert repr(again(value)) == repr(value)


def test_arrays_come_back_bit_by_bit_and_in_their_order() -> None:
    odd = np.array([[math.nan, -0.0, math.inf], [5e-324, 1 / 3, -1.0]])
    for array in (odd, odd.T, np.zeros((0, 3)), np.array(2.5), odd > 0, np.arange(6).reshape(2, 3)):
        found = again(array)
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert found.tobytes() == array.tobytes()
        assert (found.flags.c_contiguous, found.flags.f_contiguous) == (
            array.flags.c_contiguous, array.flags.f_contiguous,
        )  # fmt: skip
        assert not found.flags.writeable
    assert np.array_equal(again(odd[:, ::2]), odd[:, ::2], equal_nan=True)


def test_numbers_that_are_not_finite_sets_slices_and_numbers_of_numpy() -> None:
    assert again((math.inf, -math.inf, frozenset({"b", "a"}), slice(2, 5), np.float64(0.1), np.bool_(True))) == (
        math.inf, -math.inf, frozenset({"a", "b"}), slice(2, 5), 0.1, True,
    )  # fmt: skip
    assert math.isnan(again(math.nan))


def test_what_is_shared_is_written_once_and_shared_again() -> None:
    ones = np.ones((50, 1))
    evidence = Evidence(("a", "b"), (1, 1), (0, 0), np.eye(2), np.zeros((2, 0)), np.hstack([ones] * 2), ones, ones, 50)
    eliminator = Eliminator(evidence, np.ones(2))
    message = AugmentedStates("a", 3, 0.5, ones, np.zeros(1))
    value = (evidence, eliminator, message, ones, message)
    _, pieces = freeze(value)
    assert sum(map(len, pieces)) < 8 * (50 * 4 + 20)
    found = again(value)
    assert found[1].evidence is found[0]
    assert found[4] is found[2]
    assert (found[2].unit, found[2].round) == ("a", 3)
    np.testing.assert_array_equal(found[0].refined, evidence.refined)


@dataclass(frozen=True)
class Foreign:
    a: int = 1


@dataclass(frozen=True)
class Named:
    a: int = 1


Named.__name__ = "LocalModel"


@pytest.mark.parametrize("value", [Foreign(), Named(), object(), print, [1], {1, 2}, b"x", (1, Foreign())])
def test_only_listed_kinds_are_written(value: object) -> None:
    with pytest.raises(TypeError, match="is no kind of data"):
        freeze(value)


def test_only_listed_kinds_are_read() -> None:
    model = LocalModel(A=[[0.5]], B=[[1.0]], C=[[1.0]], Q=[[1.0]], R=[[1.0]])
    table, pieces = freeze(model)
    text = json.dumps(table)
    for wrong in (
        text.replace("LocalModel", "Popen"),
        text.replace('"of"', '"call"'),
        text.replace('"A"', '"Z"'),
        text.replace("<f8", "|O"),
        text.replace("[1, 1]", "[1, 2]", 1),
        text.replace('["array", 0]', '["array", 99]'),
        text.replace('["array", 0]', '["again", 99]'),
        text.replace('["array", 0]', '["array", -1]'),
        text.replace('["array", 0]', '{"a": 1}'),
        text.replace('["array", 0]', "[" * 60 + "]" * 60),
        text.replace('["array", 0]', '["tuple", [' * 60 + "1" + "]]" * 60),
        json.dumps({"tree": 1}),
        "[]",
        "null",
    ):
        assert wrong != text
        with pytest.raises(StorageError, match="no session has written"):
            thaw(json.loads(wrong), pieces, "here")
    for cut in (pieces[:-1], [*pieces, b""], [pieces[0][:-1], *pieces[1:]]):
        with pytest.raises(StorageError, match="no session has written"):
            thaw(table, cut, "here")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from(["of", "array", "again", "LocalModel", "nan"]),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["A", "unit"]), inner),
        max_leaves=12,
    )
)
@settings(max_examples=300)
def test_any_tree_is_read_or_refused(tree: Any) -> None:
    try:
        thaw({"tree": tree, "arrays": [["<f8", [1], False]]}, [bytes(8)], "here")
    except StorageError:
        return


def test_kinds_keep_all_that_they_are_made_of() -> None:
    """A field that no constructor takes could not be put back."""
    for name, kind in kinds().items():
        assert all(field.init for field in fields(kind)), name


def test_a_snapshot_of_another_kind_of_job_is_refused() -> None:
    from counterflow.methods.logs.server import LogConfig, LogServer
    from counterflow.methods.sufficient.server import SufficientConfig, SufficientServer

    one = SufficientServer(SufficientConfig(("a",)))
    other = LogServer(LogConfig(("a",)))
    table, pieces = checkpoint.kept(one, losses=np.zeros(0))
    state, more = checkpoint.restored(one, table, pieces, "here")
    assert state == one
    assert list(more) == ["losses"]
    with pytest.raises(StorageError, match="another kind of job"):
        checkpoint.restored(other, table, pieces, "here")
