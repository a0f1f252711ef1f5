"""A site's processes: started as children without a shell, found by what they serve, ended without leaving any behind.

FLARE runs one parent process at every site and one more for each job. A job's process outlives a parent that is
killed, so a site's processes are found by their command lines, which name the kit, and not by a list of children.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

from counterflow.errors import StorageError
from counterflow.federation.flare import require_flare
from counterflow.federation.flare.kit import unit_of
from counterflow.files import appending, is_old

PATIENCE = 10.0  # seconds between a request to end and the end
_MODULES = "nvflare.private.fed.app."
_RUN = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")  # FLARE's name of a run
_SINGLE = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


class Running(NamedTuple):
    """One process of a site: its id, whether it is a job's (else the parent's), and which run's."""

    pid: int
    job: bool
    run: str = ""


def command(kit: Path) -> list[str]:
    """What starts a site, in the foreground: the same as FLARE's ``sub_start.sh --once``.

    Without the shell in between there is no question which Python runs, and no folder of somebody else's on its path.
    """
    unit = unit_of(kit)
    module, file = ("client.client_train", "fed_client.json") if unit else ("server.server_train", "fed_server.json")
    started = [sys.executable, "-u", "-m", f"{_MODULES}{module}", "-m", str(kit.absolute()), "-s", file]
    return [*started, "--set", "secure_train=true", *([f"uid={unit}"] if unit else []), "config_folder="]


def environment() -> dict[str, str]:
    """The environment of a site's processes: no module from the working directory, one thread for linear algebra."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "NVFL", "COUNTERFLOW"))}
    fixed = {"PYTHONSAFEPATH": "1", "PYTHONNOUSERSITE": "1", "MALLOC_ARENA_MAX": "4", "GRPC_VERBOSITY": "NONE"}
    return {**dict.fromkeys(_SINGLE, "1"), **kept, **fixed}


def start(kit: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start a site as a child of this process; what it prints goes to ``log``."""
    require_flare()
    kit = kit.absolute()
    if there := running(kit):
        raise StorageError(f"federation: {kit.name} runs already (process {there[0].pid}); stop it first")
    (kit / "transfer").mkdir(exist_ok=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    with appending(log) as stream:  # an interrupt at the terminal is for whoever started us, who then calls stop
        return subprocess.Popen(
            command(kit), cwd=kit, env=environment(), stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.STDOUT,
            umask=0o077, start_new_session=True,
        )  # fmt: skip


def running(kit: Path) -> list[Running]:
    """The live processes of a site, parent first."""
    import psutil

    found: list[Running] = []
    for process in psutil.process_iter():
        try:
            arguments = [] if process.status() == psutil.STATUS_ZOMBIE else process.cmdline()
        except psutil.Error:
            continue
        module = next((argument for argument in arguments if argument.startswith(_MODULES)), "")
        if module and str(kit.absolute()) in arguments:
            job = not module.endswith(("client_train", "server_train"))
            run = arguments[arguments.index("-n", 0, -1) + 1] if job and "-n" in arguments[:-1] else ""
            found.append(Running(process.pid, job, run))
    return sorted(found, key=lambda process: process.job)


def prune(kit: Path, age: float) -> int:
    """Delete the folders of runs in which nothing has changed for so many seconds, but not of one that has a process.

    FLARE keeps one for every run, in the kit of every site; the server's job store and snapshots besides. Nothing of
    ours is in them: a job goes on from its session.
    """
    alive = {process.run for process in running(kit)}
    gone = 0
    for place in (kit, kit.parent / "flare" / "jobs", kit.parent / "flare" / "snapshots"):
        for folder in place.iterdir() if place.is_dir() else ():
            if _RUN.fullmatch(folder.name) and folder.name not in alive and is_old(folder, age):
                shutil.rmtree(folder, ignore_errors=True)
                gone += not folder.exists()
    return gone


def end_with_parent(look: float = 0.5) -> None:
    """End this process, a job's, when the site's parent process has died: nobody can end it then, and it would keep its
    session from the run that follows. Nothing is lost: it could have been killed as well.
    """
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(look)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def stop(kit: Path, patience: float = PATIENCE) -> int:
    """End all processes of a site, kindly and then by force; returns how many there were."""
    first = running(kit)
    _signal(first, signal.SIGTERM)
    deadline = time.monotonic() + patience
    while left := running(kit):
        if time.monotonic() >= deadline:
            _signal(left, signal.SIGKILL)
        time.sleep(0.05)
    return len(first)


def _signal(processes: list[Running], number: signal.Signals) -> None:
    for process in processes:
        try:
            os.kill(process.pid, number)
        except ProcessLookupError:
            continue  # it ended by itself meanwhile
        except PermissionError as error:
            raise StorageError(
                f"federation: process {process.pid} is another user's; stop the site as that user"
            ) from error
