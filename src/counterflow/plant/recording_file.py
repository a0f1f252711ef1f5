"""A recording as one safetensors file: arrays as they are, names and channels as JSON in the header."""

from __future__ import annotations

import json
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from counterflow.errors import CounterflowError, StorageError
from counterflow.plant.recording import Recording, UnitRecording
from counterflow.plant.units import Channel, Unit

if TYPE_CHECKING:
    from collections.abc import Mapping

_FORMAT = "counterflow recording"
_VERSION = 1
_KEY = "counterflow"
_INFINITIES = (float("-inf"), float("inf"))


def as_path(given: object) -> Path:
    """A usable path, or a StorageError that says why not."""
    if not isinstance(given, (str, os.PathLike)):
        raise StorageError(f"a path is needed, got {given!r:.80}: pass the name of a file.")
    path = Path(given)
    if not path.name or "\0" in str(path):
        raise StorageError(f"{str(path)!r} names no file: pass the name of one.")
    return path


def save(recording: Recording, path: Path) -> None:
    """Write `recording` to `path`, replacing what is there only when all is written."""
    from safetensors.numpy import save as to_bytes

    described = {
        "format": _FORMAT,
        "version": _VERSION,
        "dt": recording.dt,
        "rows": recording.rows,
        "digest": recording.digest,
        "units": [
            {
                "name": unit.name,
                "states": unit.states,
                "inputs": [_describe(channel) for channel in unit.inputs],
                "outputs": [_describe(channel) for channel in unit.outputs],
            }
            for unit in recording.units
        ],
    }
    arrays: dict[str, Any] = {}
    for k, part in enumerate(recording.values()):
        arrays.update({f"{k}/{letter}": array for letter, array in (("y", part.y), ("u", part.u)) if array.shape[1]})
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        draft.write_bytes(to_bytes(arrays, metadata={_KEY: json.dumps(described, allow_nan=False)}))
        os.replace(draft, path)
    except BaseException as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        raise StorageError(f"cannot write {str(path)!r}: {error}. Choose a folder that may be written to.") from error


def load(path: Path) -> Recording:
    """Read what `save` wrote; every part is checked before use."""
    from safetensors import SafetensorError, safe_open

    try:
        if not path.is_file():
            raise StorageError(f"there is no file {str(path)!r}: check the path.")
        with safe_open(str(path), framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
    except (SafetensorError, OSError, ValueError, TypeError, KeyError) as error:
        raise StorageError(f"{str(path)!r} is damaged or not a safetensors file: {error}") from error
    try:
        described = json.loads(metadata[_KEY])
        if described["format"] != _FORMAT:
            raise StorageError(f"{str(path)!r} holds {described['format']!r}, not a recording.")
        if described["version"] != _VERSION:
            raise StorageError(
                f"{str(path)!r} has version {described['version']!r}; this one reads {_VERSION}. Update Counterflow."
            )
        recording = _assemble(described, arrays)
        intact = recording.digest == described["digest"] and recording.rows == described["rows"]
    except StorageError:
        raise
    except (CounterflowError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise StorageError(f"{str(path)!r} is damaged or not a recording: {error}") from error
    if not intact:
        raise StorageError(f"{str(path)!r} is damaged: its contents do not match its digest. Use another copy.")
    return recording


def _assemble(described: Mapping[str, Any], arrays: dict[str, Any]) -> Recording:
    parts: dict[str, UnitRecording] = {}
    for k, text in enumerate(described["units"]):
        unit = Unit(
            text["name"],
            states=text["states"],
            inputs=[_channel(channel) for channel in text["inputs"]],
            outputs=[_channel(channel) for channel in text["outputs"]],
        )
        if unit.name in parts:
            raise ValueError(f"unit {unit.name!r} stands in it twice")
        y = arrays.pop(f"{k}/y")
        u = arrays.pop(f"{k}/u") if unit.n_inputs else np.empty((len(y), 0))
        if y.dtype != np.float64 or u.dtype != np.float64:
            raise ValueError(f"unit {unit.name!r} is stored as {y.dtype} and {u.dtype}, not as float64")
        parts[unit.name] = UnitRecording(y, u, unit)
    if arrays:
        raise ValueError(f"arrays {sorted(arrays)} belong to no unit")
    return Recording(parts, described["dt"])


def _describe(channel: Channel) -> dict[str, Any]:
    limits = channel.limits
    # JSON has no infinity: an open end is null
    ends = None if limits is None else [None if end in _INFINITIES else end for end in limits]
    return {"name": channel.name, "unit": channel.unit, "limits": ends}


def _channel(text: Mapping[str, Any]) -> Channel:
    ends = text["limits"]
    if ends is None:
        return Channel(text["name"], text["unit"])
    low, high = (infinity if end is None else end for end, infinity in zip(ends, _INFINITIES, strict=True))
    return Channel(text["name"], text["unit"], (low, high))
