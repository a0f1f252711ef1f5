"""Messages and their codec: what is built is checked, what is decoded is checked again, sizes are exact."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterflow import ProtocolError
from counterflow.caveats import Caveat, to_text
from counterflow.protocol import (
    Answer,
    Ask,
    AugmentedStates,
    Basis,
    Change,
    Finished,
    Identified,
    Introduction,
    Moments,
    Openings,
    Outline,
    PerturbedStates,
    Plan,
    Reaction,
    Reduced,
    Refused,
    Request,
    Settled,
    StateGradients,
    Sufficient,
    Terms,
    Trial,
    decode,
    encode,
    encoded_size,
)
from counterflow.protocol.message import KINDS, schema

EXACT = (np.zeros((1, 2)), np.array([[0.0, 3.0]]))  # one pattern, of three rows in which nothing is missing


def trial(worlds=2, lead=1, held="", past=True):
    return Trial("b", 7, past, lead, worlds, held, np.ones((6, 2)), np.ones((6, 1)), np.zeros((6, 0)), np.zeros((0, 2)))


def examples():
    rng = np.random.default_rng(0)
    return [
        Plan("boiler", offset=True, refined_gradient=False, conjugate=True, penalty=2.0),
        Introduction("boiler", np.eye(2), np.ones((2, 3)), rng.standard_normal((5, 2)), rng.standard_normal((5, 3))),
        Introduction("no inputs", np.eye(1), np.ones((1, 0)), np.ones((1, 1)), np.ones((1, 0))),
        AugmentedStates("größe/µ", 3, 0.1, rng.standard_normal((5, 2)), np.ones(2)),
        PerturbedStates(
            "boiler", 2, 0.4, 0.7, 1.5, 3.0, 9.0, 0.2, np.eye(2), np.ones((2, 1)), *np.ones((3, 4, 2)), np.ones((4, 1))
        ),
        StateGradients("boiler", 1, True, False, 0.5, True, np.ones((4, 2)), np.ones((4, 2))),
        StateGradients("boiler", 1, False, True, 0.0, False, np.ones((4, 2)), np.zeros((0, 2))),
        Settled("boiler", 9, 1e-9),
        Finished("boiler", 9, True),
        Request("boiler"),
        sufficient(),
        Reduced("boiler", np.ones((3, 2)), np.array([[0.0, 2.0], [4.0, 5.0]]), np.ones((6, 1)), *EXACT),
        Identified("boiler", True, np.eye(2), np.ones((2, 1)), np.eye(2), np.ones((1, 2)), np.eye(1), np.ones(1)),
        Outline(
            "boiler", np.eye(2), np.ones((2, 1)), np.eye(2), np.ones((1, 2)), np.ones((6, 1)), np.array([[0.0, 6.0]])
        ),
        Outline(
            "no model",
            *np.zeros((1, 0, 0)),
            np.zeros((0, 1)),
            np.zeros((0, 0)),
            np.zeros((3, 0)),
            np.ones((6, 1)),
            np.array([[0.0, 2.0], [3.0, 5.0]]),
        ),
        Basis("boiler", 0, 3.0, np.ones((6, 4)), np.ones((6, 2)), np.eye(2)),
        Basis("boiler", 1, 0.0, np.zeros((0, 4)), np.zeros((0, 2)), np.eye(2)),
        Moments("boiler", 1, np.ones((4, 2)), np.eye(2)),
        Change("turbine", "boiler", True, 3, "1", np.ones((4, 2))),
        Change("turbine", "boiler", True, 3, "1", np.ones((4, 2))).naming(["fuel", "größe µ"]),
        Openings("turbine"),
        Openings("turbine", "\N{GREEK SMALL LETTER MU}" * 600_000),
        Ask("turbine", "effect", 0, 10),
        Answer("turbine", "effect", "", to_text([Caveat("far", "", "far")]), np.ones((3, 2)), np.ones((6, 2))),
        Answer("turbine", "restoration", "boiler", "", np.zeros((0, 2)), np.zeros((0, 2)), np.ones((2, 3))),
        Ask("turbine", "effect", 0, 10, "reacting"),
        Trial("boiler", 7, True, 1, 2, "0", np.ones((6, 2)), np.ones((6, 1)), np.ones((6, 1)), np.zeros((0, 2))),
        Trial("boiler", 7, False, 1, 2, "", np.ones((6, 2)), np.ones((6, 1)), np.zeros((6, 0)), np.zeros((1, 2))),
        Reaction("boiler", 7, 2, np.ones((6, 1))),
        Refused("turbine", "UnidentifiedError", "unidentified", "größe µ " * 250),
        Terms("turbine", "\N{GREEK SMALL LETTER MU}" * 30_000),
    ]


@pytest.mark.parametrize(
    "build",
    [
        lambda: Refused("turbine", "SystemExit", "data", "why"),
        lambda: Refused("turbine", "DataError", "data", ""),
        lambda: Refused("turbine", "DataError", "data", "x" * 10_001),
        lambda: Refused("turbine", "DataError", "\x1b[1m", "why"),
        lambda: Terms("turbine", ""),
        lambda: Basis("turbine", 0, -1.0, np.ones((6, 4)), np.ones((6, 2)), np.eye(2)),
        lambda: Basis("turbine", 0, 1.0, np.ones((6, 4)), np.ones((6, 3)), np.eye(2)),
        lambda: Moments("turbine", 1, np.ones((4, 2)), np.eye(3)),
        lambda: Outline("turbine", *[np.eye(1)] * 4, np.ones((6, 1)), np.array([[3.0, 7.0]])),
        lambda: Outline("turbine", *[np.eye(1)] * 4, np.ones((6, 1)), np.array([[3.0, 4.0], [2.0, 5.0]])),
        lambda: Terms("turbine", "x" * 30_001),
        lambda: Answer("turbine", "restoration", "boiler", "", np.zeros((0, 2)), np.zeros((0, 2)), np.ones((2, 2))),
    ],
)
def test_answers_and_refusals_that_are_none_are_refused(build):
    with pytest.raises(ProtocolError, match="turbine"):
        build()


@pytest.mark.parametrize(
    "changes",
    [
        {"spans": np.array([[0.0, 2.0], [4.0, 7.0]])},
        {"values": np.ones((3, 0))},
        {"values": np.ones((4, 2))},
        {"values": np.full((3, 2), np.nan)},
        {"inputs": np.ones((1, 1))},
        {"patterns": np.zeros((1, 3))},
        {"patterns": np.full((1, 2), -0.5)},
        {"patterns": np.full((1, 2), np.inf)},
        {"runs": np.array([[0.0, 2.0]])},
        {"runs": np.array([[1.0, 3.0]])},
        {"runs": np.array([[-1.0, 3.0]])},
        {"runs": np.array([[0.0, 1.5], [0.0, 1.5]])},
        {"runs": np.array([[0.0, 4.0], [0.0, -1.0]])},
        {"runs": np.array([[0.0, 3.0, 0.0]])},
    ],
)
def test_reduced_messages_that_do_not_add_up_are_refused(changes):
    fields = dict(values=np.ones((3, 2)), spans=np.array([[0.0, 2.0], [4.0, 5.0]]), inputs=np.ones((6, 1)))
    fields |= dict(zip(("patterns", "runs"), EXACT, strict=True))
    Reduced("boiler", **fields)
    with pytest.raises(ProtocolError, match="boiler"):
        Reduced("boiler", **{**fields, **changes})


def sufficient(**changes):
    """Six rows: with all channels (two numbers), one number, nothing, one number, all channels, another number."""
    fields = dict(
        A=np.eye(2),
        B=np.ones((2, 1)),
        Q=np.eye(2),
        observations=np.ones((4, 2)),
        ranks=np.array([2.0, 1.0, 0.0, 1.0]),
        presence=np.array([1.0 * 4 + 2.0 * 16 + 1.0 * 64 + 3.0 * 1024]),
        values=np.arange(7.0),
        inputs=np.ones((6, 1)),
    )
    return Sufficient("boiler", **{**fields, **changes})


def test_a_sufficient_message_gives_every_row_its_pattern_and_its_numbers():
    message = sufficient()
    assert message.labels.tolist() == [0, 1, 2, 1, 0, 3]
    none = np.nan
    expected = [[0, 1], [2, none], [none, none], [3, none], [4, 5], [6, none]]
    assert np.array_equal(message.numbers, expected, equal_nan=True)
    assert message.observation.shape == (2, 2)
    assert message.patterns.sum(axis=2).tolist() == [[2, 2], [2, 0], [0, 0], [2, 0]]


@pytest.mark.parametrize("kinds", [1, 2, 3, 37, 1000])
@pytest.mark.parametrize("rows", [2, 52, 53, 54, 5000])
def test_patterns_of_presence_survive_the_wire_in_few_bytes(kinds, rows):
    rng = np.random.default_rng(kinds + rows)
    labels = rng.integers(0, kinds, rows)
    _, first, back = np.unique(labels[labels > 0], return_index=True, return_inverse=True)
    labels[labels > 0] = 1 + np.argsort(np.argsort(first))[back]  # in the order of their use
    observations = [np.eye(3)[: 3 - k % 3] for k in range(len(first) + 1)]
    ranks = np.array([len(each) for each in observations])
    labels[ranks[labels] == 0] = 0
    numbers = np.where(np.arange(3) < ranks[labels][:, None], rng.standard_normal((rows, 3)), np.nan)
    own = np.eye(3), np.ones((3, 1)), np.eye(3)
    message = decode(encode(Sufficient.from_rows("boiler", own, observations, labels, numbers, np.ones((rows, 1)))))
    assert np.array_equal(message.labels, labels)
    assert np.array_equal(message.numbers, numbers, equal_nan=True)
    assert np.array_equal(message.patterns[-1][: ranks[-1]], observations[-1])
    assert len(message.presence) <= 1 + rows / 5


@pytest.mark.parametrize("message", examples(), ids=lambda m: type(m).__name__)
def test_a_message_survives_the_wire_and_its_size_is_known(message):
    data = encode(message)
    again = decode(data)
    assert type(again) is type(message)
    for name in schema(type(message)):
        one, two = getattr(message, name), getattr(again, name)
        assert np.array_equal(one, two)
        assert type(one) is type(two)
        if isinstance(two, np.ndarray):
            assert not two.flags.writeable
    assert encoded_size(message) == len(data)


def test_every_kind_has_an_example():
    assert {type(m).__name__ for m in examples()} == set(KINDS)


def test_size_with_other_rows_is_the_size_of_such_a_message():
    short = AugmentedStates("boiler", 3, 0.1, np.ones((5, 2)), np.ones(2))
    long = AugmentedStates("boiler", 3, 123.456789, np.ones((123_456, 2)), np.ones(2))
    assert encoded_size(short, rows=123_456) == len(encode(long))
    without = StateGradients("boiler", 1, False, True, 0.0, False, np.ones((4, 2)), np.zeros((0, 2)))
    assert encoded_size(without, rows=100) == encoded_size(without) + 96 * 2 * 8 + 2  # two more digits in the header


BAD = {
    "a list for an array": lambda: AugmentedStates("b", 0, 0.0, [[1.0]], np.ones(1)),
    "float32": lambda: AugmentedStates("b", 0, 0.0, np.ones((3, 1), np.float32), np.ones(1)),
    "one axis": lambda: AugmentedStates("b", 0, 0.0, np.ones(3), np.ones(1)),
    "nan": lambda: AugmentedStates("b", 0, 0.0, np.full((3, 1), np.nan), np.ones(1)),
    "infinite": lambda: AugmentedStates("b", 0, 0.0, np.full((3, 1), -np.inf), np.ones(1)),
    "infinities that cancel": lambda: AugmentedStates("b", 0, 0.0, np.array([[np.inf], [-np.inf]]), np.ones(1)),
    "phi of another size": lambda: AugmentedStates("b", 0, 0.0, np.ones((3, 1)), np.ones(2)),
    "negative round": lambda: AugmentedStates("b", -1, 0.0, np.ones((3, 1)), np.ones(1)),
    "round that is a float": lambda: AugmentedStates("b", 1.0, 0.0, np.ones((3, 1)), np.ones(1)),
    "flag that is a number": lambda: Plan("b", 1, True, False, 0.0),
    "norm that is not finite": lambda: Settled("b", 1, float("nan")),
    "empty name": lambda: Settled("", 1, 0.0),
    "name too long": lambda: Settled("x" * 101, 1, 0.0),
    "name not text": lambda: Settled(5, 1, 0.0),
    "A not square": lambda: Introduction("b", np.ones((2, 3)), np.ones((2, 1)), np.ones((4, 2)), np.ones((4, 1))),
    "B of other inputs": lambda: Introduction("b", np.eye(2), np.ones((2, 2)), np.ones((4, 2)), np.ones((4, 1))),
    "rows differ": lambda: Introduction("b", np.eye(2), np.ones((2, 1)), np.ones((4, 2)), np.ones((3, 1))),
    "no rows": lambda: Introduction("b", np.eye(2), np.ones((2, 1)), np.ones((0, 2)), np.ones((0, 1))),
    "no pattern": lambda: sufficient(observations=np.ones((0, 2)), ranks=np.zeros(0), presence=np.zeros(0)),
    "more numbers than states": lambda: sufficient(
        observations=np.ones((3, 2)), ranks=np.array([3.0]), presence=np.zeros(0), values=np.ones(18)
    ),
    "more numbers than with all channels": lambda: sufficient(ranks=np.array([1.0, 2.0, 0.0, 1.0])),
    "ranks that are not whole": lambda: sufficient(ranks=np.array([2.0, 1.5, 0.0, 0.5])),
    "negative ranks": lambda: sufficient(ranks=np.array([2.0, 2.0, -1.0, 1.0])),
    "ranks of other rows": lambda: sufficient(ranks=np.array([2.0, 1.0, 1.0, 1.0])),
    "two patterns that say nothing": lambda: sufficient(
        observations=np.ones((3, 2)), ranks=np.array([2.0, 1.0, 0.0, 0.0]), values=np.ones(6)
    ),
    "patterns that nobody has": lambda: sufficient(presence=np.zeros(1), values=np.ones(12)),
    "patterns in another order": lambda: sufficient(presence=np.array([2.0 * 4 + 1.0 * 16 + 64.0 + 3072.0])),
    "presence that is not whole": lambda: sufficient(presence=np.array([3172.5])),
    "negative presence": lambda: sufficient(presence=np.array([-3172.0])),
    "presence beyond the last row": lambda: sufficient(presence=np.array([3172.0 + 4096.0])),
    "presence beyond all digits": lambda: sufficient(presence=np.array([3172.0 + 2.0**53])),
    "presence of other rows": lambda: sufficient(presence=np.array([3172.0, 0.0])),
    "no presence": lambda: sufficient(presence=np.zeros(0)),
    "more patterns than rows": lambda: sufficient(
        observations=np.ones((9, 2)), ranks=np.array([2.0] + [1.0] * 7), presence=np.zeros(1), values=np.ones(12)
    ),
    "Q not symmetric": lambda: sufficient(Q=np.array([[1.0, 0.5], [0.0, 1.0]])),
    "Q negative": lambda: sufficient(Q=-np.eye(2)),
    "one row only": lambda: sufficient(inputs=np.ones((1, 1))),
    "values of other rows": lambda: sufficient(values=np.ones(8)),
    "values in a matrix": lambda: sufficient(values=np.ones((7, 1))),
    "change of nobody": lambda: Change("b", "", False, 0, "", np.ones((1, 1))),
    "change without rows": lambda: Change("b", "c", False, 0, "", np.ones((0, 1))),
    "change of columns that are not there": lambda: Change("b", "c", False, 0, "0,7", np.ones((2, 2))),
    "columns beyond all numbers": lambda: Change("b", "c", False, 0, "9" * 5000, np.ones((2, 2))),
    "columns that are no numbers": lambda: Change("b", "c", False, 0, "a", np.ones((2, 2))),
    "no kind of question": lambda: Ask("b", "Every thing", 0, 1),
    "a world that nobody knows": lambda: Ask("b", "effect", 0, 1, "loud"),
    "rows of other worlds": lambda: trial(worlds=4),
    "more rows before than rows": lambda: trial(lead=4),
    "held columns that are not there": lambda: trial(held="3"),
    "no rest": lambda: trial(past=False),
    "no steps": lambda: Ask("b", "effect", 0, 0),
    "too many steps": lambda: Ask("b", "effect", 0, 10**9),
    "covariance of other rows": lambda: Answer("b", "effect", "", "", np.ones((3, 2)), np.ones((5, 2))),
    "caveats that are none": lambda: Answer("b", "effect", "", "far", np.ones((3, 2)), np.ones((6, 2))),
    "endless caveats": lambda: Answer("b", "effect", "", " " * 40_001, np.ones((3, 2)), np.ones((6, 2))),
    "negative penalty": lambda: StateGradients("b", 0, False, False, -1.0, False, np.ones((4, 2)), np.ones((4, 2))),
}


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_cannot_be_built(case):
    with pytest.raises(ProtocolError):
        BAD[case]()


def frame(header: object, payload: bytes = b"", magic: bytes = b"CFLW", version: int = 1) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<4sHI", magic, version, len(text)) + text + payload


def header(**changes):
    good = {"kind": "Finished", "fields": {"unit": "b", "round": 1, "converged": True}, "arrays": {}}
    return {**good, **changes}


HOSTILE = {
    "nothing": b"",
    "short": b"CFLW\x01",
    "other magic": frame(header(), magic=b"PK\x03\x04"),
    "other version": frame(header(), version=2),
    "header longer than data": struct.pack("<4sHI", b"CFLW", 1, 4_000_000_000) + b"{}",
    "not json": frame(b"\xff\xfe{"),
    "deep json": frame(b"[" * 10_000),
    "a list": frame([1]),
    "unknown kind": frame(header(kind="os.system")),
    "kind not text": frame(header(kind=["Finished"])),
    "extra key": frame({**header(), "code": "x"}),
    "extra field": frame(header(fields={"unit": "b", "round": 1, "converged": True, "x": 1})),
    "missing field": frame(header(fields={"unit": "b", "round": 1})),
    "fields a list": frame(header(fields=[])),
    "big integer": frame(header(fields={"unit": "b", "round": 10**30, "converged": True})),
    "bytes beyond the end": frame(header(), b"\0" * 8),
    "array announced, not there": frame({
        "kind": "Settled", "fields": {"unit": "b", "round": 1}, "arrays": {"gradient": []}
    }),
    "float with axes": frame({
        "kind": "Settled", "fields": {"unit": "b", "round": 1}, "arrays": {"gradient": [1]}
    }, b"\0" * 8),
    "huge shape": frame({
        "kind": "AugmentedStates", "fields": {"unit": "b", "round": 1},
        "arrays": {"gradient_norm": [], "predicted": [2**39, 2**39], "offset": [1]},
    }),
    "negative shape": frame({
        "kind": "AugmentedStates", "fields": {"unit": "b", "round": 1},
        "arrays": {"gradient_norm": [], "predicted": [-1, 1], "offset": [1]},
    }),
    "shape of booleans": frame({
        "kind": "AugmentedStates", "fields": {"unit": "b", "round": 1},
        "arrays": {"gradient_norm": [], "predicted": [True, True], "offset": [True]},
    }, b"\0" * 24),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_bytes_are_refused(case):
    with pytest.raises(ProtocolError):
        decode(HOSTILE[case])


def test_a_message_over_the_limit_is_refused_before_it_is_read():
    with pytest.raises(ProtocolError, match="limit"):
        decode(encode(Finished("b", 1, True)), limit=10)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(range(len(examples()))), st.data())
def test_a_flipped_byte_is_refused_or_gives_a_valid_message(which, data):
    good = bytearray(encode(examples()[which]))
    at = data.draw(st.integers(0, len(good) - 1))
    good[at] ^= data.draw(st.integers(1, 255))
    try:
        message = decode(bytes(good))
    except ProtocolError:
        return
    assert decode(encode(message)).unit == message.unit
