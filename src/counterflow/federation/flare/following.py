"""A job followed to its end: when a run of it is lost, it is submitted again and goes on from its sessions' stores.

FLARE has no resume: a run whose plant, server or process was killed ends, vanishes, or is called RUNNING for ever. What
counts here is the state that the coordinator's part writes, and whether the run has a process on this machine, the
server's; a plant counts as there when it answers, not when it is on the server's list.

Patience ends when for so long no message of a plant was taken in, whatever hangs: a plant, the server, or FLARE itself,
whose calls are made in threads that can be left behind. New runs that get no further are no news.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from counterflow.errors import ProtocolError, StorageError
from counterflow.federation.engine import DEADLINE, Progress
from counterflow.federation.flare import jobs, processes
from counterflow.federation.flare.operator import Operator, Unreachable
from counterflow.federation.job import Job
from counterflow.federation.sites.site import CoordinatorSite

LOOK = 0.05  # seconds between two looks at the coordinator's state
WORD = 2.0  # seconds between two looks at whether a run goes on
BEGIN = 15.0  # seconds in which a run that FLARE has dispatched must have a process
CONNECT = 5.0  # seconds for one try to reach the server
CLOSE = 2.0  # seconds for taking leave of it
ROOM = 1 << 16  # bytes on the server's disk without which nothing can go on
FRUITLESS = 5  # runs one after the other that ended before a single exchange, with every plant there
_WAITING = frozenset({"SUBMITTED", "APPROVED"})
_LOST = frozenset({"no-answer", "in-use", "unavailable", "lost"})  # codes of what the same job may get past later
_T = TypeVar("_T")


@dataclass(frozen=True)
class FlareJobs:
    """Jobs of one coordinator: kits of its server and its operator, and its folder; see ``engine.Jobs``."""

    kit: Path
    operator_kit: Path
    site: CoordinatorSite

    def submit(self, job: Job, units: Sequence[str]) -> str:
        with tempfile.TemporaryDirectory() as place, Operator(self.operator_kit) as operator:
            return operator.submit(jobs.write(Path(place), job.id, job.to_text(), job.part_texts(units)))

    def alive(self, run: str) -> bool:
        return any(process.run == run for process in processes.running(self.kit))

    def abort(self, run: str) -> None:
        with Operator(self.operator_kit) as operator:
            operator.abort(run)

    def follow(
        self, job: Job, *, deadline: int = DEADLINE, patience: float = 3600.0, progress: Progress | None = None
    ) -> dict[str, Any]:
        stdout = sys.stdout
        with tempfile.TemporaryDirectory(prefix="counterflow-") as folder:
            written = jobs.write(Path(folder), job.id, job.to_text(), job.part_texts(job.units), deadline)
            following = _Following(self, job, written, patience, progress or (lambda state: None))
            try:
                return following.to_the_end()
            finally:
                following.drop()
                sys.stdout = stdout  # a call that was left behind may still have it redirected


class _Following:
    """One follower's view: its connection, the run it watches, and when it last had news."""

    def __init__(self, runs: FlareJobs, job: Job, written: Path, patience: float, progress: Progress) -> None:
        self._runs, self._site, self._job, self._written = runs, runs.site, job, written
        self._patience, self._progress = patience, progress
        self._operator: Operator | None = None
        self._lost: set[str] = set()  # runs that are over, whether or not their processes have noticed
        self._said: dict[str, Any] = {}
        self._taken = 0
        self._end = time.monotonic() + patience

    def to_the_end(self) -> dict[str, Any]:
        fruitless = 0
        while (state := self._state()).get("state") != "finished":
            run = self._running() or self._submitted()
            if why := self._watched(run):
                self._lost.add(run)
                state = self._state()
                fruitless = 0 if state.get("run") == run and state.get("exchanges") else fruitless + 1
                if fruitless >= FRUITLESS:
                    raise StorageError(
                        f"federation: {self._job.label}: {fruitless} runs have ended before anything was exchanged, "
                        f"though every plant answers; the last because {why}. See the logs of the sites, then run it "
                        "again: it goes on"
                    )
                self._wait(f"the run was lost ({why})", min(fruitless, 4) * 1.0)
        self._tell(state)
        return state

    # ---- a run

    def _running(self) -> str:
        """A run of this job that is alive or will be, whoever submitted it; "" if there is none."""
        runs = self._asked(lambda operator: operator.runs(self._job.id))
        state = self._state()
        if state.get("state") != "running":
            self._lost.add(str(state.get("run", "")))  # it has said so, and takes some seconds to go
        for run, word in reversed(runs.items()):
            if run not in self._lost and not word.startswith("FINISHED"):
                if self._goes_on(run):
                    return run
                self._lost.add(run)
        return ""

    def _goes_on(self, run: str) -> bool:
        """Whether a run has a process, or will have one: not one that was dispatched before a crash of the server."""
        until = min(time.monotonic() + BEGIN, self._end)
        try:
            while not self._runs.alive(run):
                word = self._asked(lambda operator: operator.state(run))
                if word in _WAITING:
                    return True
                if word != "DISPATCHED" or time.monotonic() >= until:
                    return self._runs.alive(run)  # it may have begun since
                time.sleep(0.5)
        except ProtocolError:  # such as of a server whose storage was lost
            return False
        return True

    def _submitted(self) -> str:
        """A new run, once all plants answer; or that of somebody who was quicker."""
        while True:
            if missing := set(self._job.units) - set(self._asked(lambda o: o.answering(self._job.units))):
                self._wait(f"not connected: {', '.join(sorted(missing))}", 0.5)
            elif run := self._running():
                return run
            else:
                try:
                    return self._called(lambda operator: operator.submit(self._written))
                except Unreachable:  # it may have been submitted all the same
                    self.drop()
                    self._wait("the server does not answer", 0.5)

    def _watched(self, run: str) -> str:
        """Follow a run until it is over: "" if the job is finished, or why the run was lost. Raises what is final."""
        looked = -WORD
        while True:
            state = self._state()
            own = state.get("run") == run
            if state.get("state") == "finished":
                return ""
            if own:
                self._tell(state)
                if state["state"] == "failed":
                    if state.get("code") not in _LOST:
                        raise ProtocolError(
                            f"federation: {self._job.label} failed: {state['reason']}", code=state.get("code")
                        )
                    return str(state["reason"])
            if (own and state["state"] == "aborted") or (
                time.monotonic() - looked > WORD and not self._goes_on(run) and self._state() == state
            ):
                return self._last_word(run)
            if time.monotonic() - looked > WORD:
                looked = time.monotonic()
                self._give_up_if_late(f"no news of run {run}")
            time.sleep(LOOK)

    def _last_word(self, run: str) -> str:
        """What FLARE says of a run that is over, which it knows some seconds later. Raises what is final."""
        until = min(time.monotonic() + BEGIN, self._end)
        try:
            word = self._asked(lambda operator: operator.state(run))
            while not word.startswith("FINISHED") and self._runs.alive(run) and time.monotonic() < until:
                time.sleep(0.2)
                word = self._asked(lambda operator: operator.state(run))
            refused = self._asked(lambda o: o.refusals(run)) if word == "FINISHED:FAILED_TO_RUN" else ()
        except ProtocolError as error:
            return str(error)
        if word == "FINISHED:ABORTED":
            raise ProtocolError(f"federation: {self._job.label} was ended by an operator; run it again to go on")
        if refused:
            raise ProtocolError(f"federation: {self._job.label} was refused: {'; '.join(refused)[:1000]}")
        return f"FLARE says {word}" if word.startswith("FINISHED") else "it has no process at the server"

    def _state(self) -> dict[str, Any]:
        return self._site.state(self._job.id)

    # ---- the server

    def _asked(self, question: Callable[[Operator], _T]) -> _T:
        """The server's answer, however long it takes to come back."""
        while True:
            fresh = self._operator is None
            try:
                return self._called(question)
            except Unreachable as error:
                self.drop()
                self._wait(f"the server does not answer ({error})" if fresh else "the server does not answer", 0.5)
            except ProtocolError:
                if fresh:
                    raise
                self.drop()  # a session from before a restart of the server is unknown to it

    def _called(self, question: Callable[[Operator], _T]) -> _T:
        """The server's answer, or what was raised; a call that hangs longer than patience lasts is left behind."""

        def ask() -> _T:
            if self._operator is None:
                self._operator = Operator(self._runs.operator_kit, CONNECT)
            return question(self._operator)

        try:
            return _within(self._end - time.monotonic(), ask)
        except TimeoutError as error:
            raise self._late("FLARE does not come back with an answer") from error

    def drop(self) -> None:
        """End the connection."""
        operator, self._operator = self._operator, None
        if operator is not None:
            with contextlib.suppress(Exception):  # FLARE's, of a connection that is dead anyway
                _within(CLOSE, operator.close)

    # ---- news

    def _tell(self, state: dict[str, Any]) -> None:
        if state.get("taken", 0) > self._taken:
            self._taken, self._end = state["taken"], time.monotonic() + self._patience
        if state != self._said:
            self._said = state
            self._progress(state)

    def _wait(self, reason: str, seconds: float) -> None:
        self._tell({**self._said, "state": "waiting", "reason": reason})
        left = shutil.disk_usage(self._site.home).free
        if left < ROOM:  # a server whose disk is full answers nothing, and cannot write why
            raise StorageError(
                f"federation: {self._job.label}: {left} bytes are left on the disk of {str(self._site.home)!r}: free "
                "some space, then run it again: it goes on"
            )
        self._give_up_if_late(reason)
        time.sleep(min(seconds, max(self._end - time.monotonic(), 0.0)))

    def _give_up_if_late(self, reason: str) -> None:
        if time.monotonic() >= self._end:
            raise self._late(reason)

    def _late(self, reason: str) -> StorageError:
        return StorageError(
            f"federation: {self._job.label}: nothing has happened for {self._patience:.0f} s: {reason}. See that "
            "the server and all plants run, then run it again: it goes on",
            code="no-news",
        )


def _within(seconds: float, call: Callable[[], _T]) -> _T:
    """What a call returns or raises; TimeoutError if it takes longer: it is left in a thread that ends with us."""
    found: Future[_T] = Future()

    def run() -> None:
        try:
            found.set_result(call())
        except BaseException as error:
            found.set_exception(error)

    threading.Thread(target=run, name="operator", daemon=True).start()
    return found.result(timeout=max(seconds, 0.0))
