"""Runs a party: its site as a child, started again when it dies, ended without leaving anything behind.

While the site runs, the supervisor says what is new, throws away what is old and, at a coordinator, keeps the plants'
questions answered by a standing job that is there whenever a fit is finished and plants are.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from counterflow.errors import CounterflowError, StorageError
from counterflow.federation.engine import Jobs, engine
from counterflow.federation.job import Job
from counterflow.federation.parts import finished_fits, questions_about, saved_server
from counterflow.federation.sites import certificates, keys, members, party
from counterflow.federation.sites.coordinator_folder import CoordinatorFolder
from counterflow.federation.sites.plant_folder import PlantFolder
from counterflow.files import blaming, is_old
from counterflow.fits.storage import load_record

LOOK = 0.5  # seconds between two looks
DAY = 86_400.0
TIDY = 3600.0  # seconds between two looks for what is to be thrown away
WRITABLE = "Give the account that runs this site the right to write to its folder, on a disk that is not read-only."
KEEP = 3.0  # seconds between two looks at the standing job
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before a dead site is started again
STEADY = 60.0  # seconds after which a site counts as well
STOPPING = 5.0  # seconds for FLARE to end by itself
RELEASE = 10.0  # seconds in which the last thread of a killed process lets go of its port
GENERATIONS = 3  # of a log that are kept beside it: site.log.1 is the latest

Folder = CoordinatorFolder | PlantFolder


def opened(folder: Path) -> Folder:
    """The party of a folder, by its role."""
    kind = CoordinatorFolder if party.role(folder) == party.COORDINATOR else PlantFolder
    return kind.open(folder)


@dataclass(frozen=True)
class Rule:
    """How long the engine's traces of ended runs are kept, and how large a log may become."""

    days: float = 30.0
    megabytes: float = 10.0


class Supervisor:
    """Runs the site of a folder until it is told to stop; ``say`` takes one line for each event."""

    def __init__(
        self, site: Folder, say: Callable[[str], None], keeper: Keeper | None = None, rule: Rule | None = None
    ) -> None:
        self.site, self._say, self._keeper, self._rule = site, say, keeper, rule or Rule()
        self._stop = threading.Event()
        self._due: dict[str, float] = {}
        self._plants: list[str] = []
        self._known = self._states()

    def stop(self) -> None:
        """End it; may be called from a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Until ``stop``, SIGTERM or SIGINT; nothing of the site is left when this returns."""
        engine().require()
        site, kit = self.site, self.site.kit.folder
        with blaming(site.folder, WRITABLE):
            site.prepare()
        with party.supervising(site.folder), keys.unlocked(*site.key_files), _on_signals(self.stop):
            left = engine().stop(kit, patience=0)  # of a supervisor that was killed
            self._check_port(RELEASE if left else 0.0)
            try:
                pause = FIRST_PAUSE
                while not self._stop.is_set():
                    pause = FIRST_PAUSE if self._ran(kit) > STEADY else pause
                    if not self._stop.is_set():
                        self._say(f"starting again in {pause:.0f} s")
                        self._stop.wait(pause)
                        pause = min(2 * pause, LONGEST_PAUSE)
            finally:
                engine().stop(kit, patience=STOPPING)
                (site.folder / members.PRESENCE).unlink(missing_ok=True)
                self._say("stopped")

    def _ran(self, kit: Path) -> float:
        """Run the site until it is dead or we are to stop; for how many seconds."""
        began = time.monotonic()
        log = self.site.folder / party.SITE_LOG
        try:
            self._check_port(RELEASE)
            self._await_others()
            if self._stop.is_set():
                return 0.0
            self._tidy(kit)
            with blaming(self.site.folder, WRITABLE):
                (self.site.folder / members.PRESENCE).unlink(missing_ok=True)
                child = engine().start(kit, log)
            self._say(f"started (process {child.pid})")
        except CounterflowError as error:
            self._say(str(error))
            return 0.0
        self._due |= {"tidy": time.monotonic() + TIDY, "keep": time.monotonic() + KEEP}
        while child.poll() is None and not self._stop.wait(LOOK):
            self._look(kit)
        if not self._stop.is_set():
            self._say(f"the site ended by itself (code {child.returncode}); see {log}")
            engine().stop(kit, patience=0)  # jobs outlive a parent that was killed
        return time.monotonic() - began

    def _look(self, kit: Path) -> None:
        """Say what is new, and do what is due."""
        if self._is_due("warn", DAY):
            self._warn()
        self._news()
        if self._keeper is not None and self._is_due("keep", KEEP):
            try:
                told = self._keeper.look(self._plants)
            except CounterflowError as error:
                told = str(error)
            if told:
                self._say(told)
        if self._is_due("tidy", TIDY):
            self._tidy(kit)

    def _is_due(self, what: str, every: float) -> bool:
        if time.monotonic() < self._due.get(what, 0.0):
            return False
        self._due[what] = time.monotonic() + every
        return True

    def _warn(self) -> None:
        """Say which certificates end soon."""
        try:
            warnings = [one["warning"] for one in certificates.lasting(self.site.certificates())]
        except CounterflowError as error:
            warnings = [str(error)]
        for line in filter(None, warnings):
            self._say(f"WARNING: {line}")

    def _news(self) -> None:
        """Say what has changed: connections, and, at a coordinator, states of jobs."""
        told = members.presence(self.site.folder)
        self._plants = list(told.get("plants", ()))
        now = self._states() | {f"plant {unit}": "is connected" for unit in self._plants}
        if told.get("connected"):
            now["the site"] = "is connected"
        for what in {**self._known, **now}:
            gone = what not in now and what.startswith("job ")  # thrown away
            if not gone and now.get(what) != self._known.get(what):
                self._say(f"{what} {now.get(what, 'is not connected')}")
        self._known = now

    def _states(self) -> dict[str, str]:
        """How jobs stand, by their names."""
        found: dict[str, str] = {}
        for path in sorted((self.site.folder / "states").glob("*.json")):
            with contextlib.suppress(StorageError):
                state = party.state(self.site.folder, path.stem)
                found[f"job {path.stem}"] = ": ".join(filter(None, (state.get("state"), state.get("reason"))))
        return found

    def _tidy(self, kit: Path) -> None:
        gone = tidy(self.site.folder, kit, self._rule, self.site.is_alive)
        if gone:
            self._say(f"{gone} traces of runs that ended more than {self._rule.days:g} days ago were deleted")

    def _await_others(self) -> None:
        """Until what the site needs is there: a plant, the coordinator's server."""
        told = ""
        while (why := self.site.waits_for()) and not self._stop.wait(LOOK if told else 0.0):
            if why != told:
                told = why
                self._say(f"waits for the coordinator's server, {why}")

    def _check_port(self, patience: float) -> None:
        if isinstance(self.site, CoordinatorFolder):
            check_port(self.site.port, patience)


def check_port(port: int, patience: float = 0.0) -> None:
    """Refuse a port on which somebody still listens after so many seconds: a server may share it in silence."""
    deadline = time.monotonic() + patience
    while True:
        with socket.socket() as test:
            test.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                test.bind(("", port))
                return
            except OSError as error:
                if time.monotonic() >= deadline:
                    raise StorageError(
                        f"port {port} cannot be listened on: {error.strerror or error}. End what uses it, or found the "
                        "federation with another --port."
                    ) from error
        time.sleep(0.1)


@contextmanager
def _on_signals(act: Callable[[], None]) -> Iterator[None]:
    """While inside, SIGTERM and SIGINT act and do nothing else."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, lambda *_: act()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---- the standing job


class Keeper:
    """Submits the standing job again when it is not there, or does not serve a plant that is connected.

    Parameters
    ----------
    wanted : the job that should be there now; None if there is no finished fit.
    runs : the engine's.
    agreed : a value that the run was started under; when it changes, as when a plant is removed, so does the run.
    """

    PAUSE, LONGEST_PAUSE = 10.0, 300.0  # seconds between two submissions, at least; and after failures
    STARTING = 30.0  # seconds that a run may take until it has a process

    def __init__(
        self, wanted: Callable[[], Job | None], runs: Jobs, agreed: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._wanted, self._runs, self._agreed, self._clock = wanted, runs, agreed, clock
        self._run = ""
        self._under: tuple[str, object] | None = None
        self._served = self._seen = frozenset[str]()
        self._since = self._next = -1e18
        self._pause = self.PAUSE

    @classmethod
    def of(cls, coordinator: CoordinatorFolder) -> Keeper:
        """Of questions about the fit that was finished last, as long as nobody is removed."""
        home = coordinator.folder

        @cache  # it takes a look at all of the fit
        def about(fit: str) -> Job:
            return questions_about(saved_server(home, fit)[0])

        def wanted() -> Job | None:
            finished = finished_fits(home)
            return about(finished[-1]) if finished else None

        return cls(wanted, coordinator.engine_jobs, lambda: len(coordinator.removed()))

    def look(self, plants: Sequence[str]) -> str:
        """See to it; what was done in a line, "" if there was nothing to do."""
        job = self._wanted()
        if job is None:
            return ""
        present = frozenset(plants) & frozenset(job.units)
        settled, self._seen = present == self._seen, present  # plants come one after another
        now, under = self._clock(), (job.to_text(), self._agreed())
        if not present or not settled or now < self._next:
            return ""
        serves = self._under == under and present <= self._served
        if serves and (now - self._since < self.STARTING or self._runs.alive(self._run)):
            return ""
        try:
            if self._run and self._runs.alive(self._run):
                self._runs.abort(self._run)
            self._run = self._runs.submit(job, sorted(present, key=job.units.index))
        except CounterflowError as error:
            self._next, self._pause = now + self._pause, min(2 * self._pause, self.LONGEST_PAUSE)
            return f"questions cannot be answered yet: {error}"
        self._under, self._served, self._since = under, present, now
        self._next, self._pause = now + self.PAUSE, self.PAUSE
        return f"questions are answered for {', '.join(sorted(present))}"


# ---- what is thrown away


def tidy(folder: Path, kit: Path, rule: Rule, alive: Callable[[str], bool] = lambda run: False) -> int:
    """Apply a rule to the folder of a party; how many things were thrown away. What cannot be deleted stays.

    At the coordinator these are also the sessions of jobs that are finished and whose part is kept: what was found
    stays, the messages that it was found from go. Never thrown away: the audit log, the ledger, a plant's sessions (a
    job that is asked for again answers the same, and costs nothing anew), jobs, finished fits, members.
    """
    with contextlib.suppress(OSError):
        for log in (folder / party.SITE_LOG, folder / party.LOG, *engine().logs(kit)):
            rotate(log, int(rule.megabytes * 1e6))
    age = rule.days * DAY
    gone = engine().prune(kit, age)
    for path in (folder / "states").glob("*.json"):  # a coordinator's
        with contextlib.suppress(OSError, StorageError):
            state, session = party.state(folder, path.stem), folder / "sessions" / path.stem
            if not is_old(path, age) or alive(str(state.get("run", ""))):
                continue
            if not (folder / "jobs" / path.name).exists():  # of a standing job for questions: nobody has started it
                path.unlink()
                gone += 1
            elif state.get("state") == "finished" and session.is_dir():
                load_record(folder / "fits" / path.stem)  # it can be read, so that the session is not needed any more
                shutil.rmtree(session)
                gone += 1
    return gone


def rotate(log: Path, largest: int) -> None:
    """Begin a log anew when it is too large; processes that have it open go on writing to it, at its beginning."""
    if not log.is_file() or log.stat().st_size <= largest:
        return
    places = [log.with_name(f"{log.name}.{k}") for k in range(1, GENERATIONS + 1)]
    for newer, older in zip(reversed(places[:-1]), reversed(places[1:]), strict=True):
        if newer.exists():
            os.replace(newer, older)
    shutil.copyfile(log, places[0])
    places[0].chmod(0o600)
    os.truncate(log, 0)
