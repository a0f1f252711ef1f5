"""Results on disk, one sealed file for each finished task, so that a run that was stopped goes on where it was."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np

from counterflow import sealed_file
from counterflow._version import __version__
from counterflow.errors import StorageError
from counterflow.files import blaming, write_whole
from counterflow.paper import experiments
from counterflow.paper.experiments.experiment import Outcome, Task, Value

_TITLE, _VERSION = "experiment result", 2


class Store:
    """The results in one folder: ``results/<experiment>/<digest>.safetensors``.

    The digest is of the task's settings, of Counterflow's version, of the experiment's revision and of whether the run
    is a quick one. So results of another version are not found, and quick and full ones never mix.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> task = Task("synthetic", {"seed": 1})
    >>> with TemporaryDirectory() as folder:
    ...     store = Store(Path(folder), quick=True)
    ...     store.save(Outcome(task, {"loss": 0.5}, seconds=0.1))
    ...     store.load(task).values, Store(Path(folder), quick=False).load(task)
    ({'loss': 0.5}, None)
    """

    def __init__(self, folder: Path, quick: bool) -> None:
        self.folder = folder
        self.quick = quick

    def key(self, task: Task) -> str:
        """Digest that names a task's file; equal for tasks that are the same work."""
        told = {
            "experiment": task.experiment,
            "settings": dict(task.settings),
            "version": __version__,
            "revision": experiments.named(task.experiment).revision,
            "quick": self.quick,
        }
        return hashlib.sha256(json.dumps(told, sort_keys=True, allow_nan=False).encode()).hexdigest()[:32]

    def path(self, task: Task) -> Path:
        return self.folder / "results" / task.experiment / f"{self.key(task)}.safetensors"

    def save(self, outcome: Outcome) -> None:
        """Write a finished task: whole, or not at all."""
        task, target = outcome.task, self.path(outcome.task)
        texts = {key: value for key, value in outcome.values.items() if isinstance(value, str)}
        arrays = {key: np.asarray(v, np.float64) for key, v in outcome.values.items() if not isinstance(v, str)}
        for key, array in arrays.items():  # NaN is a result, too: there was none
            if np.isinf(array).any():
                raise StorageError(f"experiment {task.experiment!r}: {key!r} holds a value that is not finite.")
        described = {
            "key": self.key(task),
            "settings": dict(task.settings),
            "texts": texts,
            "numbers": sorted(key for key, array in arrays.items() if array.ndim == 0),  # files hold no 0-d arrays
            "seconds": outcome.seconds,
        }
        put(target, sealed_file.seal(_TITLE, _VERSION, described, arrays))

    def load(self, task: Task) -> Outcome | None:
        """The result of a task; None if it is not there, or not as it was written: it is then to be computed."""
        path = self.path(task)
        if not path.is_file():
            return None
        try:
            found = sealed_file.read(path, _TITLE, _VERSION)
        except StorageError:
            return None
        described = found.content
        if described.get("key") != self.key(task):  # a file under another's name
            return None
        values: dict[str, Value] = dict(described["texts"])
        for key, array in found.arrays.items():
            values[key] = float(array[0]) if key in described["numbers"] else array
        return Outcome(task, values, float(described["seconds"]))


def put(target: Path, content: bytes) -> None:
    """Write a file, and the folders that it needs: whole, or not at all."""
    with blaming(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, content)
