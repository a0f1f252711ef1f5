"""What a session keeps of a state machine, so that its log can begin anew: the state, and what it is made of.

What a machine is given at its beginning (log, model, options, source of noise) is not written: it is given again. Of a
unit's own data a digest is kept, so that a job does not go on with another log or model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, TypeVar, cast

import numpy as np

from counterflow.errors import StorageError
from counterflow.exchange.method import ServerState, UnitState
from counterflow.exchange.registry import kept_kinds
from counterflow.protocol.message import KINDS
from counterflow.records import DTYPES, Array, describe, restore

KEPT = 4  # of a unit's last turns that may be repeated: a crash repeats the last two at most
LEAST = 8 << 20  # bytes that a log may always have
SPARSE = 2  # times the size of its last snapshot that it may have besides: so much less is written than without bound
_SAME = 1e-6  # relative: estimates of another machine may differ by rounding
_KINDS = {**KINDS, **kept_kinds()}
_NUMBERS = "/numbers"  # no path of an array of a state
State = TypeVar("State", UnitState, ServerState)


def is_due(size: int, before: int) -> bool:
    """Whether a log of ``size`` bytes that began with a snapshot of ``before`` bytes is to begin anew."""
    return size > LEAST + (1 + SPARSE) * before


def snapshot(state: UnitState | ServerState, numbers: Array) -> tuple[dict[str, Any], list[bytes]]:
    """All of a state but what its machine is given at the beginning, and the numbers that a session remembers."""
    described, arrays = describe(state, _KINDS, finite=False, only=_names(state))
    arrays[_NUMBERS] = numbers
    layout = [[name, array.dtype.str, list(array.shape)] for name, array in arrays.items()]
    return {"fields": described, "arrays": layout}, [array.tobytes() for array in arrays.values()]


def restored(beginning: State, table: Any, pieces: Sequence[bytes], where: str) -> tuple[State, Array]:
    """The state that was kept, of a machine that stands at its beginning; and the numbers."""
    arrays: dict[str, Array] = {}
    try:
        for (name, kind, shape), piece in zip(table["arrays"], pieces, strict=True):
            if kind not in DTYPES.values():
                raise ValueError(f"{name!r:.60} is an array of unknown type")
            arrays[name] = np.frombuffer(piece, kind).reshape(shape)
        numbers, kind = arrays.pop(_NUMBERS), type(beginning)
        options: dict[str, Any] = {"finite": False, "only": _names(beginning), "onto": beginning}
        state: Any = restore(kind, table["fields"], arrays, _KINDS, **options)
    except (StorageError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise StorageError(
            f"{where} holds no snapshot of this kind of job ({error}): give its own folder, or start the job again.",
            code="damaged",
        ) from error
    return cast(State, state.resumed() if hasattr(state, "resumed") else state), numbers


def _names(state: UnitState | ServerState) -> set[str]:
    return {field.name for field in fields(cast(Any, state))} - state.GIVEN


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


def difference(before: Any, now: dict[str, Any]) -> str:
    """How a unit differs from the one that the job began with; empty if it does not."""
    if before["exact"] != now["exact"]:
        return "the unit's log or model is not the one that it began with"
    if len(before["near"]) != len(now["near"]) or not np.allclose(before["near"], now["near"], rtol=_SAME, atol=1e-300):
        return "the unit's estimator gives other states than it did"
    return ""
