"""Tasks computed, in this process or in several, and kept as soon as they are done."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from counterflow.errors import OptionError
from counterflow.paper import experiments
from counterflow.paper.experiments.experiment import Outcome, Task
from counterflow.paper.experiments.store import Store
from counterflow.threads import one_blas_thread

Watch = Callable[[Task, int, int], None]  # a task that is done, how many are, of how many


def run(
    tasks: Iterable[Task], store: Store, jobs: int = 1, force: bool = False, watch: Watch | None = None
) -> dict[str, Outcome]:
    """Outcomes of tasks by ``store.key``; those in the store are not computed again.

    Parameters
    ----------
    tasks : what to do; a task that is there twice is done once.
    jobs : worker processes; with 1, everything happens here. Results do not depend on it: every task has its own
        seeds, and runs with one BLAS thread.
    force : compute again what is in the store.
    watch : called after every task, with those that were in the store first.

    What is done stays in the store, whatever happens later: an interrupt or an error loses only what was under way.
    """
    if jobs < 1:
        raise OptionError(f"jobs is {jobs!r}: give a whole number of at least 1.")
    wanted = {store.key(task): task for task in tasks}
    found: dict[str, Outcome] = {}
    for key, task in wanted.items():
        if not force and (outcome := store.load(task)) is not None:
            found[key] = outcome
            if watch is not None:
                watch(task, len(found), len(wanted))
    missing = [task for key, task in wanted.items() if key not in found]

    def done(task: Task, outcome: Outcome) -> None:
        found[store.key(task)] = outcome
        if watch is not None:
            watch(task, len(found), len(wanted))

    if jobs == 1 or len(missing) < 2:
        for task in missing:
            done(task, _compute(task, store.folder, store.quick))
    else:
        _in_workers(missing, store, jobs, done)
    return {key: found[key] for key in wanted}


def _compute(task: Task, folder: Path, quick: bool) -> Outcome:
    start = time.perf_counter()
    with one_blas_thread():
        values = experiments.named(task.experiment).compute(task)
    outcome = Outcome(task, values, time.perf_counter() - start)
    Store(folder, quick).save(outcome)
    return outcome


def _in_workers(tasks: Sequence[Task], store: Store, jobs: int, done: Callable[[Task, Outcome], None]) -> None:
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from multiprocessing import get_context

    # spawn: a fork would copy the threads' locks of BLAS in whatever state they are
    pool = ProcessPoolExecutor(min(jobs, len(tasks)), mp_context=get_context("spawn"), initializer=_quiet_interrupt)
    try:
        under_way = {pool.submit(_compute, task, store.folder, store.quick): task for task in tasks}
        for future in as_completed(under_way):
            done(under_way[future], future.result())
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def _quiet_interrupt() -> None:
    """Ctrl-C reaches every process of a terminal; a worker then simply ends."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
