"""What a session keeps of a state machine, so that its log can begin anew: the state, and what it is made of.

What a machine is given at its beginning (log, model, options, source of noise) is not written: it is given again. Of a
unit's own data a digest is kept, so that a job does not go on with another log or model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar, cast

import numpy as np

from counterflow.errors import StorageError
from counterflow.federation.snapshot import freeze, thaw
from counterflow.methods.method import ServerState, UnitState

KEPT = 4  # of a unit's last turns that may be repeated: a crash repeats the last two at most
LEAST = 8 << 20  # bytes that a log may always have
SPARSE = 2  # times the size of its last snapshot that it may have besides: so much less is written than without bound
_SAME = 1e-6  # relative, as in ``turns``: estimates of another machine may differ by rounding
State = TypeVar("State", UnitState, ServerState)


def is_due(size: int, snapshot: int) -> bool:
    """Whether a log of ``size`` bytes that began with a snapshot of ``snapshot`` bytes is to begin anew.

    >>> is_due(LEAST, 0), is_due(LEAST + 1, 0), is_due(10 * LEAST, 10 * LEAST)
    (False, True, False)
    """
    return size > LEAST + (1 + SPARSE) * snapshot


def kept(state: UnitState | ServerState, **more: object) -> tuple[dict[str, Any], list[bytes]]:
    """All of a state but what its machine is given at the beginning, and what else a session has to remember."""
    given = state.GIVEN
    of_state = {f.name: getattr(state, f.name) for f in fields(cast(Any, state)) if f.name not in given}
    return freeze({"state": of_state, "more": more})


def restored(beginning: State, table: object, pieces: list[bytes], where: str) -> tuple[State, Mapping[str, Any]]:
    """The state that was kept, of a machine that stands at its beginning; and the rest."""
    found = thaw(table, pieces, where)
    expected = {f.name for f in fields(cast(Any, beginning))} - beginning.GIVEN
    if not isinstance(found, Mapping) or set(found) != {"state", "more"} or set(found["state"]) != expected:
        raise StorageError(f"{where} holds a snapshot of another kind of job: give its own folder.")
    state: Any = replace(cast(Any, beginning), **found["state"])
    return cast(State, state.resumed() if hasattr(state, "resumed") else state), found["more"]


def fingerprint(beginning: UnitState) -> dict[str, Any]:
    """What a unit's machine is made of, in a few numbers: ``exact`` of its log and model, ``near`` of its estimates."""
    raw, estimates = beginning.sources()
    near: list[float] = []
    for array in estimates:
        ramp = np.linspace(0.5, 1.5, len(array))
        near += [float(np.linalg.norm(array)), float(np.linalg.norm(ramp @ array))]
    digest = hashlib.sha256()
    for array in raw:
        digest.update(repr(array.shape).encode())
        digest.update(np.ascontiguousarray(array, "<f8").tobytes())
    return {"exact": digest.hexdigest(), "near": near}


def difference(before: object, now: dict[str, Any]) -> str:
    """How a unit differs from the one that the snapshot was made at; empty if it does not."""
    if not isinstance(before, dict) or set(before) != set(now):
        return "its fingerprint is of another form"
    if before["exact"] != now["exact"]:
        return "the unit's log or model is not the one that it began with"
    if len(before["near"]) != len(now["near"]) or not np.allclose(before["near"], now["near"], rtol=_SAME, atol=1e-300):
        return "the unit's estimator gives other states than it did"
    return ""
