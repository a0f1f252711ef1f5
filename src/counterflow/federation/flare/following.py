"""A job followed to its end: when a run of it is lost, it is submitted again and goes on from its sessions' stores.

FLARE has no resume: a run whose plant, server or process was killed ends, vanishes, or is called RUNNING for ever. What
counts here is the state that the coordinator's part writes, and whether the run has a process; a plant counts as there
when it answers, not when it is on the server's list.

Patience ends when for so long no message of a plant was taken in, whatever hangs: a plant, the server, or FLARE itself,
whose calls are made in threads that can be left behind. New runs that get no further are no news.
"""

from __future__ import annotations

import contextlib
import queue
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from counterflow.errors import ProtocolError, StorageError
from counterflow.federation.engine import DEADLINE, Progress
from counterflow.federation.flare import jobs
from counterflow.federation.flare.operator import Operator, Unreachable
from counterflow.federation.job import Job
from counterflow.federation.sites.site import CoordinatorSite

LOOK = 0.05  # seconds between two looks at the coordinator's state
WORD = 2.0  # seconds between two questions to FLARE
BEGIN = 15.0  # seconds in which a run that FLARE has dispatched must have a process
CONNECT = 5.0  # seconds for one try to reach the server
CLOSE = 2.0  # seconds for taking leave of it
ROOM = 1 << 16  # bytes on the server's disk without which nothing can go on
FRUITLESS = 5  # runs one after the other that ended before a single exchange, with every plant there
_WAITING = frozenset({"SUBMITTED", "APPROVED"})
_BEGINNING = frozenset({"DISPATCHED"})
_LOST = frozenset({"no-answer", "in-use", "unavailable", "lost"})  # codes of what the same job may get past later
_T = TypeVar("_T")


def follow(
    kit: Path, site: CoordinatorSite, job: Job, *,
    deadline: int = DEADLINE, patience: float = 3600.0, progress: Progress | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Submit a job, and again whenever a run of it is lost, until it is finished; see ``engine.Jobs``.

    A job that is finished is not submitted; one that runs already is followed from where it is.

    Parameters
    ----------
    kit : of the operator.
    site : the server's folder, on this machine.
    patience : seconds without a step forward after which this gives up; the job can be followed again later, and goes
        on.
    progress : called with every new state, as ``CoordinatorSite.state`` gives it, and with {"state": "waiting",
        "reason": ...} while somebody is missing.
    """
    stdout = sys.stdout
    with tempfile.TemporaryDirectory(prefix="counterflow-") as folder:
        written = jobs.write(Path(folder), job.id, job.to_text(), job.part_texts(job.units), deadline)
        following = _Following(kit, site, job, written, patience, progress or (lambda state: None))
        try:
            return following.to_the_end()
        finally:
            following.drop()
            sys.stdout = stdout  # a call that was left behind may still have it redirected


class _Following:
    """One follower's view: its connection, the run it watches, and when it last had news."""

    def __init__(
        self, kit: Path, site: CoordinatorSite, job: Job, written: Path, patience: float, progress: Progress
    ) -> None:
        self._kit, self._site, self._job, self._written = kit, site, job, written
        self._patience, self._progress = patience, progress
        self._operator: Operator | None = None
        self._lost: set[str] = set()  # runs that are over, whether or not their processes have noticed
        self._said: dict[str, Any] = {}
        self._taken = 0
        self._end = time.monotonic() + patience

    def to_the_end(self) -> dict[str, Any]:
        fruitless, why = 0, ""
        while True:
            state = self._site.state(self._job.id)
            if state.get("state") == "finished":
                self._tell(state)
                return state
            if fruitless >= FRUITLESS:
                raise StorageError(
                    f"federation: {self._job.label}: {fruitless} runs have ended before anything was exchanged, though "
                    f"every plant answers; the last because {why}. See the logs of the sites, then run it again: it "
                    "goes on"
                )
            run = self._running() or self._submitted()
            why = self._watched(run)
            if why:
                self._lost.add(run)
                state = self._site.state(self._job.id)
                fruitless = 0 if state.get("run") == run and state.get("exchanges") else fruitless + 1
                self._wait(f"the run was lost ({why})", min(fruitless, 4) * 1.0)

    # ---- a run

    def _running(self) -> str:
        """A run of this job that is alive or will be, whoever submitted it; "" if there is none."""
        runs = self._asked(lambda operator: operator.runs(self._job.id))
        alive = self._asked(lambda operator: operator.alive())
        state = self._site.state(self._job.id)
        if state.get("state") != "running":
            self._lost.add(str(state.get("run", "")))  # it has said so, and takes some seconds to go
        for run, word in reversed(runs.items()):
            if run in self._lost:
                continue
            if run in alive or word in _WAITING or (word in _BEGINNING and self._begins(run)):
                return run
        return ""

    def _begins(self, run: str) -> bool:
        """Whether a run that was dispatched gets a process; one from before a crash of the server does not."""
        until = min(time.monotonic() + BEGIN, self._end)
        while self._asked(lambda operator: operator.state(run)) in _BEGINNING and time.monotonic() < until:
            if run in self._asked(lambda operator: operator.alive()):
                return True
            time.sleep(0.5)
        if run in self._asked(lambda operator: operator.alive()):
            return True
        self._lost.add(run)
        return False

    def _submitted(self) -> str:
        """A new run, once all plants answer."""
        while missing := sorted(set(self._job.units) - set(self._asked(lambda o: o.answering(self._job.units)))):
            self._wait(f"not connected: {', '.join(missing)}", 0.5)
        if run := self._running():  # somebody else was quicker
            return run
        return self._asked(lambda operator: operator.submit(self._written), again=self._running)

    def _watched(self, run: str) -> str:
        """Follow a run until it is over: "" if the job is finished, or why the run was lost. Raises what is final."""
        asked = 0.0
        while True:
            state = self._site.state(self._job.id)
            if state.get("run") == run or state.get("state") == "finished":
                self._tell(state)
                if state["state"] != "running":
                    return self._verdict(run, state)
            if time.monotonic() - asked > WORD:
                word = self._word(run)
                if word:
                    state = self._site.state(self._job.id)  # it may have been written since
                    over = state.get("run") == run and state["state"] != "running"
                    return self._verdict(run, state if over else {"state": "lost", "reason": word})
                asked = time.monotonic()
                self._give_up_if_late(f"no news of run {run}")
            time.sleep(LOOK)

    def _word(self, run: str) -> str:
        """Why FLARE thinks that a run is over; "" if it goes on."""
        try:
            word, alive = self._called(lambda operator: (operator.state(run), operator.alive()))
            if word in _WAITING or run in alive:
                return ""
        except Unreachable:
            self.drop()  # the server may be busy, or the run's process may be all that is left of it
            self._wait("the server does not answer", 0.5)
            return "" if self._lively() else "the server does not answer"
        except ProtocolError as error:  # such as a server whose storage was lost
            return str(error)
        if word in _BEGINNING and self._begins(run):
            return ""
        word = self._asked(lambda operator: operator.state(run))
        if word in _WAITING:
            return ""
        return f"FLARE says {word}" if word.startswith("FINISHED") else "it has no process at the server"

    def _lively(self) -> bool:
        """Whether the state of the job changes, without asking the server."""
        before, until = self._site.state(self._job.id), time.monotonic() + WORD
        while time.monotonic() < until:
            time.sleep(LOOK)
            if self._site.state(self._job.id) != before:
                return True
        return False

    def _verdict(self, run: str, state: dict[str, Any]) -> str:
        reason = str(state.get("reason", ""))
        if state["state"] == "finished":
            return ""
        if state["state"] == "failed":
            if state.get("code") not in _LOST:
                raise ProtocolError(f"federation: {self._job.label} failed: {reason}", code=state.get("code"))
            return reason
        word = self._last_word(run)
        if word == "FINISHED:ABORTED":
            raise ProtocolError(f"federation: {self._job.label} was ended by an operator; run it again to go on")
        if word == "FINISHED:FAILED_TO_RUN":
            refused = self._asked(lambda operator: operator.refusals(run))
            if refused:
                raise ProtocolError(f"federation: {self._job.label} was refused: {'; '.join(refused)[:1000]}")
        return reason or word or "it ended"

    def _last_word(self, run: str) -> str:
        """What FLARE says of a run that is over, which it knows some seconds later; "" if it does not."""
        until = min(time.monotonic() + BEGIN, self._end)
        try:
            while time.monotonic() < until:
                word, alive = self._called(lambda operator: (operator.state(run), operator.alive()))
                if word.startswith("FINISHED"):
                    return word
                if run not in alive:
                    return ""  # its process was killed, or the server was
                time.sleep(0.2)
        except Unreachable:
            self.drop()
        except ProtocolError:
            return ""
        return ""

    # ---- the server

    def _asked(self, question: Callable[[Operator], _T], again: Callable[[], _T] | None = None) -> _T:
        """The server's answer, however long it takes to come back; ``again``: what to ask instead after a failure."""
        refused = False
        while True:
            fresh = self._operator is None
            try:
                return self._called(question)
            except Unreachable as error:
                self.drop()
                self._wait(f"the server does not answer ({error})" if fresh else "the server does not answer", 0.5)
            except ProtocolError:
                if fresh or refused:
                    raise
                refused = True
                self.drop()  # a session from before a restart of the server is unknown to it
            if again is not None and (found := again()):
                return found

    def _called(self, question: Callable[[Operator], _T]) -> _T:
        """The server's answer, or what was raised; a call that hangs longer than patience lasts is left behind."""

        def ask() -> _T:
            if self._operator is None:
                self._operator = Operator(self._kit, CONNECT)
            return question(self._operator)

        if found := _within(self._end - time.monotonic(), ask):
            return found[0]
        raise self._late("FLARE does not come back with an answer")

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
        waiting = {**self._said, "state": "waiting", "reason": reason}
        if waiting != self._said:
            self._said = waiting
            self._progress(waiting)
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


def _within(seconds: float, call: Callable[[], _T]) -> tuple[_T] | None:
    """What a call returns or raises, if it does so in time; else it is left behind, in a thread that ends with us."""
    done: queue.SimpleQueue[Callable[[], _T]] = queue.SimpleQueue()

    def run() -> None:
        try:
            found = call()
        except BaseException as error:
            trouble = error
            done.put(lambda: _raised(trouble))
        else:
            done.put(lambda: found)

    threading.Thread(target=run, name="operator", daemon=True).start()
    try:
        return (done.get(timeout=max(seconds, 0.0))(),)
    except queue.Empty:
        return None


def _raised(error: BaseException) -> NoReturn:
    raise error
