"""Tasks computed, in this process or in several, and kept: one sealed file for each, as soon as it is done.

So a run that was stopped goes on where it was. ``results/<experiment>/<digest>.safetensors``: the digest is of the
task's settings, of Counterflow's version, of the experiment's revision and of whether the run is a quick one; results
of another version are not found, and quick and full ones never mix.
"""

from __future__ import annotations

import hashlib
import json
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from counterflow import sealed_file
from counterflow._version import __version__
from counterflow.errors import StorageError
from counterflow.files import blaming, write_whole
from counterflow.paper import experiments
from counterflow.paper.experiments.experiment import Outcome, Task, Value
from counterflow.threads import one_blas_thread

Watch = Callable[[Task, int, int], None]  # a task that is done, how many are, of how many
_TITLE, _VERSION = "experiment result", 2


class Store:
    """The results in one folder."""

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
        task, values = outcome.task, outcome.values
        arrays = {key: np.asarray(v, np.float64) for key, v in values.items() if not isinstance(v, str)}
        for key, array in arrays.items():  # NaN is a result, too: there was none
            if np.isinf(array).any():
                raise StorageError(f"experiment {task.experiment!r}: {key!r} holds a value that is not finite.")
        described = {
            "key": self.key(task),
            "settings": dict(task.settings),
            "texts": {key: value for key, value in values.items() if isinstance(value, str)},
            "numbers": sorted(key for key, array in arrays.items() if array.ndim == 0),  # files hold no 0-d arrays
            "seconds": outcome.seconds,
        }
        put(self.path(task), sealed_file.seal(_TITLE, _VERSION, described, arrays))

    def load(self, task: Task) -> Outcome | None:
        """The result of a task; None if it is not there, or not as it was written: it is then to be computed."""
        try:
            found = sealed_file.read(self.path(task), _TITLE, _VERSION)
        except StorageError:
            return None
        described = found.content
        if described.get("key") != self.key(task):  # a file under another's name
            return None
        values: dict[str, Value] = dict(described["texts"])
        for key, array in found.arrays.items():
            values[key] = float(array[0]) if key in described["numbers"] else array
        return Outcome(task, values, float(described["seconds"]))

    def computed(
        self, tasks: Iterable[Task], jobs: int = 1, force: bool = False, watch: Watch | None = None
    ) -> dict[str, Outcome]:
        """Outcomes of tasks by ``key``: those in the store are not computed again, unless by ``force``.

        ``watch`` is called after every task, with those that were in the store first. Results do not depend on
        ``jobs``, the number of processes: every task has its own seeds, and runs with one BLAS thread. What is done
        stays in the store: an interrupt or an error loses only what was under way.
        """
        wanted = {self.key(task): task for task in tasks}
        stored = {} if force else {key: self.load(task) for key, task in wanted.items()}
        found = {key: outcome for key, outcome in stored.items() if outcome is not None}
        missing = [task for key, task in wanted.items() if key not in found]
        if watch is not None:
            for done, outcome in enumerate(found.values(), start=1):
                watch(outcome.task, done, len(wanted))
        for outcome in self._made(missing, jobs):
            found[self.key(outcome.task)] = outcome
            if watch is not None:
                watch(outcome.task, len(found), len(wanted))
        return {key: found[key] for key in wanted}

    def _made(self, tasks: Sequence[Task], jobs: int) -> Iterator[Outcome]:
        if jobs == 1 or len(tasks) < 2:
            for task in tasks:
                yield compute(task, self)
            return
        from concurrent.futures import ProcessPoolExecutor, as_completed
        from multiprocessing import get_context

        # spawn: a fork would copy the threads' locks of BLAS in whatever state they are
        pool = ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=get_context("spawn"), initializer=_quiet_interrupt)
        try:
            for future in as_completed([pool.submit(compute, task, self) for task in tasks]):
                yield future.result()
        finally:  # after the last one nothing is left to wait for
            pool.shutdown(wait=False, cancel_futures=True)


def compute(task: Task, store: Store) -> Outcome:
    """Do one task, and keep its result."""
    start = time.perf_counter()
    with one_blas_thread():
        values = experiments.named(task.experiment).compute(task)
    outcome = Outcome(task, values, time.perf_counter() - start)
    store.save(outcome)
    return outcome


def _quiet_interrupt() -> None:
    """Ctrl-C reaches every process of a terminal; a worker then simply ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def put(target: Path, content: bytes) -> None:
    """Write a file, and the folders that it needs: whole, or not at all."""
    with blaming(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, content)
