"""The operator's side: submits a job and follows it to its end, whatever is lost on the way.

FLARE has no resume: a run whose plant, server or process was killed ends, vanishes, or is called RUNNING for ever. What
counts here is the state that the coordinator's part writes, and whether the run has a process on this machine, the
server's; a plant counts as there when it answers, not when it is on the server's list. When a run is lost, the job is
submitted again and goes on from its sessions' stores.

Patience ends when for so long no message of a plant was taken in, whatever hangs: a plant, the server, or FLARE itself,
whose calls are made in threads that can be left behind. New runs that get no further are no news.
"""

from __future__ import annotations

import contextlib
import io
import logging
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from counterflow.errors import ProtocolError, StorageError
from counterflow.federation.engine import DEADLINE, Progress
from counterflow.federation.flare import jobs, processes, require_flare
from counterflow.federation.job import Job
from counterflow.federation.sites import party
from counterflow.printable import shown

CONNECT = 20.0, 5.0  # seconds to reach the server: for one call, and for one try of many
DETAIL = 2.0  # seconds for which FLARE may have said that a run failed, and not yet why
LOOK = 0.05  # seconds between two looks at the coordinator's state
WORD = 2.0  # seconds between two looks at whether a run goes on
BEGIN = 15.0  # seconds in which a run that FLARE has dispatched must have a process
CLOSE = 2.0  # seconds for taking leave of the server
ROOM = 1 << 16  # bytes on the server's disk without which nothing can go on
FRUITLESS = 5  # runs one after the other that ended before a single exchange, with every plant there
_WAITING = frozenset({"SUBMITTED", "APPROVED"})
_LOST = frozenset({"no-answer", "in-use", "unavailable", "lost"})  # codes of what the same job may get past later
_ANSWERS = frozenset(  # FLARE's errors that are a server's no; the others are a server that is not there, or not well
    {
        *("AuthenticationError", "AuthorizationError", "InvalidArgumentError", "InvalidJobDefinition"),
        *("InvalidTarget", "JobNotFound", "JobNotRunning", "NoClientsAvailable", "ValueError"),
    }
)
_LEFT = frozenset({"InvalidTarget", "NoClientsAvailable", "NoReply"})  # of plants that have gone meanwhile
_silent = logging.NullHandler()
_T = TypeVar("_T")


class Unreachable(ProtocolError):
    """The server gave no answer; the same may be asked again later."""


class Operator:
    """A connection to the server with an operator's kit; a context manager.

    Every method raises ``Unreachable`` if the server does not answer within ``patience`` seconds; any other
    ProtocolError is its refusal.
    """

    def __init__(self, kit: Path, patience: float = CONNECT[0]) -> None:
        require_flare()
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        # with no handler at all, Python prints what FLARE has to say of a server that does not answer
        logging.getLogger("nvflare").addHandler(_silent)
        name = str(party.read(kit.parent, party.COORDINATOR)["operator"])
        with contextlib.redirect_stdout(io.StringIO()):
            reach = f"the server cannot be reached as {name}"
            self._session = _said(reach, new_secure_session, name, str(kit.absolute()), timeout=patience)

    def __enter__(self) -> Operator:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._session.close()

    def submit(self, job: Path) -> str:
        """Submit a folder that ``jobs.write`` made; FLARE's name of the run."""
        return str(_said(f"the server refused job {job.name}", self._session.submit_job, str(job.absolute())))

    def plants(self) -> tuple[str, ...]:
        """Names of the plants that are connected, or were until a minute ago: see ``answering``."""
        status = _said("the server gave no list of plants", self._session.check_status, "server")
        return tuple(sorted(str(client["client_name"]) for client in dict(status).get("clients", [])))

    def answering(self, names: Sequence[str]) -> tuple[str, ...]:
        """Those of the named plants that answer when they are asked: one that was killed stays on the server's list."""
        if not (listed := [name for name in self.plants() if name in names]):
            return ()
        blame, ask = "the server gave no word of its plants", self._session.get_client_job_status
        said = _said(blame, ask, listed, nobody=_LEFT) or ()
        silent = {str(one["client_name"]) for one in said if one.get("status") in ("no_reply", "error")}
        return tuple(sorted({str(one["client_name"]) for one in said} - silent))

    def state(self, run: str) -> str:
        """FLARE's word for the state of a run: SUBMITTED, RUNNING, FINISHED:COMPLETED, FINISHED:..."""
        return str(self._meta(run)["status"])

    def refusals(self, run: str) -> tuple[str, ...]:
        """Why a run could not be deployed, if a site refused it: "site: reason" of each. FLARE gives text, no code."""
        deadline = time.monotonic() + DETAIL
        while not (said := self._meta(run).get("job_deploy_detail") or []) and time.monotonic() < deadline:
            time.sleep(0.05)
        lines = [shown(line) for line in said if ": " in str(line)]
        return tuple(line for line in lines if not line.endswith(": OK") and "no reply" not in line)

    def runs(self, name: str) -> dict[str, str]:
        """FLARE's word for every run of the job of that name, the latest last."""
        known = _said("the server gave no list of runs", self._session.list_jobs, name_prefix=name)
        ours = [run for run in known if run.get("job_name", run.get("name")) == name]
        ours.sort(key=lambda run: str(run.get("submit_time", "")))
        return {str(run["job_id"]): str(run["status"]) for run in ours}

    def abort(self, run: str) -> None:
        """End a run; its sessions stay, and the same job submitted again goes on."""
        _said(f"run {run} cannot be ended", self._session.abort_job, run)

    def _meta(self, run: str) -> dict[str, Any]:
        return dict(_said(f"the server does not know run {run}", self._session.get_job_meta, run))


def _said(
    blame: str, call: Callable[..., Any], *given: Any, nobody: Collection[str] = (), **named: Any
) -> Any:  # fmt: skip
    """What a call of FLARE's returns; its errors of every kind become ours, but for those that mean ``nobody``."""
    try:
        return call(*given, **named)
    except Exception as error:
        if type(error).__name__ in nobody:
            return None
        kind = ProtocolError if type(error).__name__ in _ANSWERS else Unreachable
        raise kind(f"federation: {blame}: {type(error).__name__}: {shown(error)}") from error


@dataclass(frozen=True)
class FlareJobs:
    """Jobs of one coordinator: kits of its server and its operator, and its folder; see ``engine.Jobs``."""

    kit: Path
    operator_kit: Path
    folder: Path

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
        self._runs, self._folder, self._job, self._written = runs, runs.folder, job, written
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
                if not self._fate(run):
                    return run
                self._lost.add(run)
        return ""

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
        while (state := self._state()).get("state") != "finished":
            own = state if state.get("run") == run else {}
            if own:
                self._tell(own)
            if own.get("state") == "failed":
                if own.get("code") in _LOST:
                    return str(own["reason"])
                raise ProtocolError(f"federation: {self._job.label} failed: {own['reason']}", code=own.get("code"))
            aborted = own.get("state") == "aborted"
            if aborted or time.monotonic() - looked > WORD:
                if (why := self._fate(run, aborted)) and self._state() == state:
                    return why
                looked = time.monotonic()
                self._give_up_if_late(f"no news of run {run}")
            time.sleep(LOOK)
        return ""

    def _fate(self, run: str, over: bool = False) -> str:
        """Why a run is lost, "" if it goes on or will; ``over``: it has said that it ends. Raises what is final.

        What FLARE has dispatched gets its process some seconds later, but not after a crash of the server; and FLARE
        knows some seconds after a run has ended how it did.
        """
        until = min(time.monotonic() + BEGIN, self._end)
        while True:
            try:
                word = self._asked(lambda operator: operator.state(run))
                refused = self._asked(lambda o: o.refusals(run)) if word == "FINISHED:FAILED_TO_RUN" else ()
            except ProtocolError as error:  # such as of a server whose storage was lost
                return str(error)
            if word == "FINISHED:ABORTED":
                raise ProtocolError(f"federation: {self._job.label} was ended by an operator; run it again to go on")
            if refused:
                raise ProtocolError(f"federation: {self._job.label} was refused: {'; '.join(refused)[:1000]}")
            if word.startswith("FINISHED"):
                return f"FLARE says {word}"
            alive = self._runs.alive(run)
            if not over and (alive or word in _WAITING):
                return ""
            if time.monotonic() >= until or not (alive or word == "DISPATCHED"):
                return "it has no process at the server"
            time.sleep(0.2)

    def _state(self) -> dict[str, Any]:
        return party.state(self._folder, self._job.id)

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
                self._operator = Operator(self._runs.operator_kit, CONNECT[1])
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
        left = shutil.disk_usage(self._folder).free
        if left < ROOM:  # a server whose disk is full answers nothing, and cannot write why
            raise StorageError(
                f"federation: {self._job.label}: {left} bytes are left on the disk of {str(self._folder)!r}: free "
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
