"""A local model on disk: a safetensors file with the arrays A, B, C, Q, R, read with distrust.

What ``save_model`` writes has a digest. A file that others made, without one, is taken as it is.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from counterflow.errors import CounterflowError, StorageError
from counterflow.files import write_whole
from counterflow.plant.plant import LETTERS, LocalModel
from counterflow.sealed_file import open_file, read, seal

_LARGEST = 256 << 20  # bytes
_TITLE, _VERSION = "counterflow local model", 2
_OLDER = {1: "it has no digest: save the model again"}


def save_model(model: LocalModel, path: str | Path) -> None:
    """Write a local model to a safetensors file with the arrays A, B, C, Q, R."""
    write_whole(Path(path), model_bytes(model))


def model_bytes(model: LocalModel) -> bytes:
    """What ``save_model`` writes."""
    return seal(_TITLE, _VERSION, {}, {letter: getattr(model, letter) for letter in LETTERS})


def load_model(path: str | Path) -> LocalModel:
    """Read a local model: any safetensors file that holds A, B, C, Q, R as matrices of float64 or float32."""
    path = Path(path)
    text, arrays = open_file(path, _LARGEST)
    if text is not None:
        arrays = read(path, _TITLE, _VERSION, _OLDER, _LARGEST).arrays
    if set(arrays) != set(LETTERS):
        raise StorageError(f"{str(path)!r} holds {sorted(arrays)[:8]}, not {', '.join(LETTERS)} of a local model.")
    for letter, array in arrays.items():
        if array.dtype not in (np.float64, np.float32):
            raise StorageError(f"{str(path)!r}: {letter} has type {array.dtype}: store it as float64.")
    try:
        return LocalModel(**{letter: array.astype(np.float64) for letter, array in arrays.items()})
    except CounterflowError as error:
        raise StorageError(f"{str(path)!r}: {error}") from error
