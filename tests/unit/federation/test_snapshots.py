"""Snapshots of sessions: what comes back is what went in, and what no session has written is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from counterflow.errors import StorageError
from counterflow.exchange.exchange import ExchangeServer
from counterflow.exchange.registry import LOG_ROWS, ROWS
from counterflow.exchange.rows import Maximum
from counterflow.exchange.task import LocalTask
from counterflow.federation import turns
from counterflow.learning.likelihood import SharedRecord
from counterflow.learning.optimiser import Estimated
from counterflow.protocol import Sufficient

ONE = np.ones((1, 1))
MESSAGE = Sufficient("a", ONE, ONE, ONE, ONE, np.ones(1), np.zeros(0), np.ones(2), np.array([[5e-324], [-0.0]]))
TASK = LocalTask("sufficient", {"a": (), "b": ()})
BEGINNING = ROWS.server(TASK)


def snapshot() -> tuple[dict[str, Any], list[bytes]]:
    state = replace(BEGINNING, said=MappingProxyType({"a": MESSAGE}))
    table, pieces = turns.snapshot(state)
    return json.loads(json.dumps(table, allow_nan=False)), pieces


def of_finished() -> tuple[dict[str, Any], list[bytes]]:
    """A snapshot that keeps what only a release of rows with models has found."""
    shared = SharedRecord.from_messages([MESSAGE])
    found = Estimated(ONE, ONE, ONE, 0.0, 1, True, 0.0)
    table, pieces = turns.snapshot(replace(BEGINNING, memory=Maximum(shared, found)))
    return json.loads(json.dumps(table, allow_nan=False)), pieces


def test_a_state_comes_back_bit_by_bit() -> None:
    state = turns.restored(BEGINNING, *snapshot(), "here")
    assert state.task is BEGINNING.task
    for name, value in MESSAGE.__dict__.items():
        found = getattr(state.said["a"], name)
        assert found.tobytes() == value.tobytes() if isinstance(value, np.ndarray) else found == value
    assert not state.said["a"].A.flags.writeable


def test_a_snapshot_of_another_kind_of_job_is_refused() -> None:
    with pytest.raises(StorageError, match="this kind of job"):
        turns.restored(ExchangeServer(LOG_ROWS, TASK), *of_finished(), "here")


def test_what_no_session_has_written_is_refused() -> None:
    table, pieces = snapshot()
    text = json.dumps(table)
    for wrong in (
        text.replace('"finished"', '"closed"'), text.replace("<f8", "|O", 1), text.replace("[1, 1]", "[1, 2]", 1),
        text.replace("[1, 1]", '["a"]', 1), text.replace("said/a/A", "said/a/Z", 1),
        text.replace('"array"', "[" * 60 + "]" * 60, 1), json.dumps({"fields": 1}), "[]", "null",
    ):  # fmt: skip
        assert wrong != text
        with pytest.raises(StorageError, match="this kind of job"):
            turns.restored(BEGINNING, json.loads(wrong), pieces, "here")
    for cut in (pieces[:-1], [*pieces, b""], [pieces[0][:-1], *pieces[1:]]):
        with pytest.raises(StorageError, match="this kind of job"):
            turns.restored(BEGINNING, table, cut, "here")
