"""``counterflow federation start`` and ``stop``."""

from __future__ import annotations

import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Annotated

from typer import Option

from counterflow.cli import options, output
from counterflow.errors import StorageError
from counterflow.federation.engine import engine
from counterflow.federation.sites import members, party
from counterflow.federation.sites.coordinator_folder import CoordinatorFolder
from counterflow.federation.sites.keeper import Keeper, StandingJob
from counterflow.federation.sites.plant_folder import PlantFolder
from counterflow.federation.sites.ports import reachable
from counterflow.federation.sites.supervisor import WRITABLE, Folder, Supervisor, opened
from counterflow.federation.sites.tidying import Rule
from counterflow.files import appending, blaming
from counterflow.printable import shown

STOPPING = 30.0  # seconds for a supervisor to end its site


def start(
    folder: options.Folder,
    detach: Annotated[bool, Option("--detach", help="In the background; returns when it is up.")] = False,
    welcome: Annotated[
        Path | None,
        Option(metavar="FILE", help="Plant: first take the coordinator's answer, as 'join --welcome' does."),
    ] = None,
    patience: Annotated[float, Option(min=1, help="With --detach: seconds to wait for a connection.")] = 60.0,
    questions_per_minute: Annotated[
        int | None, Option(min=1, help="Coordinator: as many of each member are answered from now on (600).")
    ] = None,
    keep_days: Annotated[float, Option(min=0, help="Of FLARE's traces of ended runs.")] = Rule.days,
    log_size: Annotated[float, Option(min=0.01, help="Megabytes of a log before it begins anew.")] = Rule.megabytes,
) -> None:
    """Run a party until it is stopped: its site is started again if it dies, and ended with this command.

    Coordinator and plants may be started in any order. As a service: the .service file in the folder.

    Example: counterflow federation start boiler-site --welcome boiler.welcome --detach
    """
    if welcome is not None:
        engine().require()
        PlantFolder.open(folder).welcome(welcome)
    if questions_per_minute is not None:
        party.read(folder, party.COORDINATOR)
        party.change(folder, questions_per_minute=questions_per_minute)
    if detach:
        _detach(folder, patience, Rule(keep_days, log_size))
        return
    site = opened(folder)
    keeper = None
    if isinstance(site, CoordinatorFolder):
        coordinator = site
        keeper = Keeper(StandingJob(site.site), site.engine_jobs, lambda: len(coordinator.removed()))
    Supervisor(site, lambda line: _say(site, line), keeper, Rule(keep_days, log_size)).run()


def _detach(folder: Path, patience: float, rule: Rule) -> None:
    """Supervise in the background; returns when the site is up, or says why it is not."""
    engine().require()
    site = opened(folder)
    with blaming(site.folder, WRITABLE):
        site.prepare()
    process = party.supervisor(site.folder)
    if process is not None:
        raise StorageError(f"{str(folder)!r} runs already (process {process}).")
    log = site.folder / party.LOG
    command = [sys.executable, "-P", "-m", "counterflow.cli", "federation", "start", str(site.folder)]
    command += ["--keep-days", str(rule.days), "--log-size", str(rule.megabytes)]
    with blaming(site.folder, WRITABLE):
        (site.folder / members.PRESENCE).unlink(missing_ok=True)
        stream = appending(log)
    with stream:
        began = stream.tell()
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True, cwd=site.folder
        )
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if child.poll() is not None:
            raise StorageError(f"{site.label} did not start: {_last(log, began)}")
        if _is_up(site):
            output.show(f"{site.label} is up (process {child.pid}, {log})")
            return
        if party.supervisor(site.folder) == child.pid and (waits := _waits(site)):
            output.show(f"{site.label} runs (process {child.pid}, {log}); {waits}")
            return
        time.sleep(0.1)
    waiting = f"{site.label} runs (process {child.pid}, {log}), but is not connected yet; it keeps trying."
    output.show(waiting, *output.noted([_why(site)]))


def stop(folder: options.Folder) -> None:
    """End a party's processes; nothing is lost, unfinished jobs go on after the next start.

    Example: counterflow federation stop boiler-site
    """
    site = opened(folder)
    was = party.end_supervisor(site.folder, STOPPING)
    left = engine().stop(site.kit) if site.kit is not None else 0
    output.show(f"{site.label} {'is stopped' if was or left else 'was not running'}")


def _waits(site: Folder) -> str:
    """What a plant says whose coordinator does not run yet."""
    if isinstance(site, CoordinatorFolder) or site.kit is None:
        return ""
    refused = reachable(*engine().address(site.kit))
    return refused and f"the coordinator's server is not there yet ({refused}), the plant connects as soon as it is"


def _is_up(site: Folder) -> bool:
    told = members.presence(site.folder / members.PRESENCE)
    if isinstance(site, PlantFolder):
        return bool(told.get("connected"))
    return bool(told) and not reachable("localhost", site.port)


def _why(site: Folder) -> str:
    if isinstance(site, CoordinatorFolder):
        return f"nothing answers on port {site.port} yet; see {site.folder / party.SITE_LOG}"
    assert site.kit is not None
    host, port = engine().address(site.kit)
    refused = reachable(host, port)
    if refused:
        return f"the coordinator's server cannot be reached at {refused}"
    return (
        f"the server at {host}:{port} answers, but has not admitted this plant: has it been removed, or does another "
        f"machine run with its key? See {site.folder / party.SITE_LOG}"
    )


def _say(site: Folder, line: str) -> None:
    when = datetime.now().astimezone().isoformat(timespec="seconds")
    print(shown(f"{when} {site.label}: {line}"), flush=True)


def _last(log: Path, began: int) -> str:
    with open(log, "rb") as stream:
        stream.seek(began)
        lines = stream.read(100_000).decode("utf-8", "replace").strip().splitlines()
    return (lines[-1] if lines else f"see {log}").removeprefix("counterflow: ")
