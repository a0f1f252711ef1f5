"""Runs a party: its site as a child, started again when it dies, ended without leaving anything behind."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from counterflow.errors import CounterflowError, StorageError
from counterflow.federation.engine import engine
from counterflow.federation.sites import certificates, keys, members, party
from counterflow.federation.sites.coordinator_folder import CoordinatorFolder
from counterflow.federation.sites.keeper import Keeper
from counterflow.federation.sites.plant_folder import PlantFolder
from counterflow.federation.sites.ports import check_port
from counterflow.federation.sites.site import CoordinatorSite
from counterflow.federation.sites.tidying import Rule, tidy
from counterflow.files import blaming

LOOK = 0.5  # seconds between two looks
DAY = 86_400.0
TIDY = 3600.0  # seconds between two looks for what is to be thrown away
WRITABLE = "Give the account that runs this site the right to write to its folder, on a disk that is not read-only."
KEEP = 3.0  # seconds between two looks at the standing job
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0  # seconds before a dead site is started again
STEADY = 60.0  # seconds after which a site counts as well
STOPPING = 5.0  # seconds for FLARE to end by itself
RELEASE = 10.0  # seconds in which the last thread of a killed process lets go of its port

Folder = CoordinatorFolder | PlantFolder


def opened(folder: Any) -> Folder:
    """The party of a folder, by its role."""
    if party.role(folder) == party.COORDINATOR:
        return CoordinatorFolder.open(folder)
    return PlantFolder.open(folder)


class Supervisor:
    """Runs the site of a folder until it is told to stop.

    Parameters
    ----------
    site : whose folder.
    say : takes one line for each event.
    keeper : of the standing job, at a coordinator.
    rule : what is thrown away.
    """

    def __init__(
        self, site: Folder, say: Callable[[str], None], keeper: Keeper | None = None, rule: Rule | None = None
    ) -> None:
        self.site, self._say, self._keeper, self._rule = site, say, keeper, rule or Rule()
        self._stop = threading.Event()
        self._news = _News(site)
        self._warn_at = 0.0

    def stop(self) -> None:
        """End it; may be called from a signal handler."""
        self._stop.set()

    def run(self) -> None:
        """Until ``stop``, SIGTERM or SIGINT; nothing of the site is left when this returns."""
        engine().require()
        site = self.site
        with blaming(site.folder, WRITABLE):
            site.prepare()
        assert site.kit is not None
        with party.supervising(site.folder), keys.unlocked(*site.key_files), _on_signals(self.stop):
            left = engine().stop(site.kit, patience=0)  # of a supervisor that was killed
            self._check_port(RELEASE if left else 0.0)
            try:
                self._keep_running(site.kit)
            finally:
                engine().stop(site.kit, patience=STOPPING)
                (site.folder / members.PRESENCE).unlink(missing_ok=True)
                self._say("stopped")

    def _keep_running(self, kit: Path) -> None:
        pause = FIRST_PAUSE
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._check_port(RELEASE)
                self._await_others()
                if self._stop.is_set():
                    return
                self._tidy(kit)
                with blaming(self.site.folder, WRITABLE):
                    (self.site.folder / members.PRESENCE).unlink(missing_ok=True)
                    child = engine().start(kit, self.site.folder / party.SITE_LOG)
                self._say(f"started (process {child.pid})")
            except CounterflowError as error:
                self._say(str(error))
            else:
                self._watch(child)
                if self._stop.is_set():
                    return
                self._say(
                    f"the site ended by itself (code {child.returncode}); see {self.site.folder / party.SITE_LOG}"
                )
                engine().stop(kit, patience=0)  # jobs outlive a parent that was killed
            if time.monotonic() - began > STEADY:
                pause = FIRST_PAUSE
            self._say(f"starting again in {pause:.0f} s")
            self._stop.wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _warn(self) -> None:
        """Say which certificates end soon; once a day."""
        if time.monotonic() >= self._warn_at:
            self._warn_at = time.monotonic() + DAY
            try:
                told = certificates.lasting(self.site.certificates())
            except CounterflowError as error:
                told = [{"warning": str(error)}]
            for line in filter(None, (one["warning"] for one in told)):
                self._say(f"WARNING: {line}")

    def _watch(self, child: subprocess.Popen[bytes]) -> None:
        """Until the child is dead or we are to stop."""
        assert self.site.kit is not None
        kept = tidied = time.monotonic()
        while child.poll() is None and not self._stop.wait(LOOK):
            self._warn()
            for line in self._news.lines():
                self._say(line)
            if self._keeper is not None and time.monotonic() - kept > KEEP:
                kept = time.monotonic()
                try:
                    told = self._keeper.look(self._news.plants)
                except CounterflowError as error:
                    told = str(error)
                if told:
                    self._say(told)
            if time.monotonic() - tidied > TIDY:
                tidied = time.monotonic()
                self._tidy(self.site.kit)

    def _tidy(self, kit: Path) -> None:
        gone = tidy(self.site.folder, kit, self._rule, self.site.is_alive)
        if gone:
            self._say(f"{gone} traces of runs that ended more than {self._rule.days:g} days ago were deleted")

    def _await_others(self) -> None:
        """Until what the site needs is there: a plant, the coordinator's server."""
        told = ""
        while why := self.site.waits_for():
            if why != told:
                told = why
                self._say(f"waits for the coordinator's server, {why}")
            if self._stop.wait(LOOK):
                return

    def _check_port(self, patience: float) -> None:
        if self.site.listens is not None:
            check_port(self.site.listens, patience)


class _News:
    """What has changed since it was last asked: connections, and, at a coordinator, plants and states of jobs."""

    def __init__(self, site: Folder) -> None:
        self._folder = site.folder
        self.plants: tuple[str, ...] = ()
        self._connected = False
        self._states: dict[str, str] = {}
        list(self._new_states())

    def lines(self) -> Iterator[str]:
        told = members.presence(self._folder / members.PRESENCE)
        now = tuple(told.get("plants", ()))
        for these, others, what in ((now, self.plants, "joined"), (self.plants, now, "left")):
            for unit in these:
                if unit not in others:
                    yield f"plant {unit} has {what} ({len(now)} connected)"
        self.plants = now
        yield from self._new_states()
        if bool(told.get("connected")) != self._connected:
            self._connected = bool(told.get("connected"))
            yield "connected" if self._connected else "not connected: the site keeps trying"

    def _new_states(self) -> Iterator[str]:
        for path in sorted((self._folder / "states").glob("*.json")):
            try:
                found = CoordinatorSite(self._folder).state(path.stem)
            except StorageError:
                continue
            text = f"{found.get('state')}" + (f": {found['reason']}" if found.get("reason") else "")
            if self._states.get(path.stem) != text:
                self._states[path.stem] = text
                yield f"job {path.stem} {text}"


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
