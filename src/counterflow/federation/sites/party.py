"""A folder is a party of a federation: its role stands in ``party.json``, and one supervisor runs it at a time.

::

    party.json           role, federation, fingerprint of the authority, and what else the role needs
    presence.json        what the running site says of its connections
    supervisor.pid       process of the supervisor, whose lock tells whether it lives
    supervisor.log       what a supervisor in the background prints
    site.log             what FLARE's processes print
    counterflow-*.service  for systemd
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import os
import re
import shutil
import signal
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, get_type_hints

from counterflow.errors import OptionError, StorageError
from counterflow.federation.sites.certificates import Kit
from counterflow.files import blaming
from counterflow.sealed_file import read_json, write_json

FILE = "party.json"
_TITLE = "party of a federation"
COORDINATOR, PLANT = "coordinator", "plant"
_DOER = {COORDINATOR: "the coordinator", PLANT: "a plant"}
PID = "supervisor.pid"
LOG = "supervisor.log"
SITE_LOG = "site.log"
# FLARE joins the command lines of jobs with spaces, and takes them apart again
_AWKWARD = re.compile(r"""[\s"'\\#$]""")
HANDOVER = 30.0  # seconds
_STATE = "state of a job"
_Session = TypeVar("_Session")


@dataclass(frozen=True)
class Party(ABC):
    """What coordinator and plant have alike: a folder that says what it is. Their fields stand in ``party.json``."""

    folder: Path
    federation: str
    fingerprint: str  # of the authority
    organisation: str
    host: str  # where the server is; "" before a plant was told
    port: int

    ROLE: ClassVar[str]

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The party of a folder; refuses one of another role."""
        folder = folder.absolute()
        found, kinds = read(folder, cls.ROLE), cls._kinds()
        if {name: type(value) for name, value in found.items()} != {"role": str, **kinds}:
            needed = ", ".join(("role", *kinds))
            raise StorageError(f"{folder / FILE}: it must hold {needed}; put back the file of this party.")
        return cls(folder, **{name: found[name] for name in kinds})

    @classmethod
    def _kinds(cls) -> dict[str, type]:
        return {name: hint for name, hint in get_type_hints(cls).items() if name not in ("folder", "ROLE")}

    def write(self) -> None:
        """Say what the folder is."""
        told = {name: getattr(self, name) for name in self._kinds()}
        write_json(self.folder / FILE, _TITLE, {"role": self.ROLE, **told})

    @property
    @abstractmethod
    def label(self) -> str:
        """How messages call it."""

    @property
    @abstractmethod
    def kit(self) -> Kit:
        """Of the site that runs."""

    @property
    def key_files(self) -> tuple[Path, ...]:
        """What must be readable while the site runs."""
        return (self.kit.key,)

    @abstractmethod
    def certificates(self) -> dict[str, datetime]:
        """When each certificate ends."""

    @abstractmethod
    def prepare(self) -> None:
        """Write what the engine reads in the site's kit, its hardened policy above all: before every start."""

    @abstractmethod
    def is_up(self) -> bool:
        """Whether the running site is connected."""

    def waits_for(self) -> str:
        """What has to be there before the site can start, "" if nothing."""
        return ""

    def is_alive(self, run: str) -> bool:
        """Whether a run of the engine goes on that this party knows of."""
        return False

    def refuse_running(self) -> None:
        """StorageError while a supervisor runs the site."""
        if supervisor(self.folder) is not None:
            raise StorageError(f"{self.label} runs: stop it first (counterflow federation stop {self.folder}).")


def role(folder: Path) -> str:
    """ "coordinator" or "plant"; OptionError if the folder is neither."""
    return str(read(folder)["role"])


def read(folder: Path, wanted: str = "") -> dict[str, Any]:
    """What a folder says of itself; refuses one that is no party's, or one of another role."""
    path = folder / FILE
    if not path.is_file():
        raise OptionError(
            f"{str(folder)!r} is not the folder of a party of a federation: there is no {FILE}. The coordinator makes "
            "one with 'counterflow federation init', a plant with 'counterflow federation join'."
        )
    found = read_json(path, _TITLE)
    named = found.get("role") if isinstance(found, dict) else None
    if named not in _DOER:
        raise StorageError(f"{path}: it must hold the role of a party; put back the file of this party.")
    if wanted and named != wanted:
        raise OptionError(
            f"{str(folder)!r} is the folder of {_DOER[named]}, and this is done by {_DOER[wanted]}: give its folder."
        )
    return dict(found)


@contextmanager
def new(folder: Path, doing: str) -> Iterator[None]:
    """Begin a party in a new folder: it becomes whole, or is left empty."""
    if _AWKWARD.search(str(folder.absolute())):
        raise OptionError(
            f"{str(folder.absolute())!r}: FLARE cannot work in a folder whose path has spaces, quotes, backslashes, "
            "'#' or '$': choose another place."
        )
    with blaming(folder):
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise OptionError(f"{str(folder)!r} exists and is not empty: {doing} in a new folder. Nothing was changed.")
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
        try:
            yield
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(exist_ok=True, mode=0o700)
            raise


@contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Change who is a member; one command at a time, the others wait."""
    with _opened(folder / ".changing") as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    with blaming(path, "Check its rights."):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def reachable(host: str, port: int, patience: float = 2.0) -> str:
    """ "" if somebody listens at an address; else why not."""
    try:
        socket.create_connection((host, port), timeout=patience).close()
    except OSError as error:
        return f"{host}:{port}: {error.strerror or error}"
    return ""


# ---- one supervisor at a time


@contextmanager
def supervising(folder: Path) -> Iterator[None]:
    """Be the supervisor of a folder; StorageError if there is one already. The lock goes with the process."""
    with _opened(folder / PID) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise StorageError(
                f"{str(folder)!r} runs already (process {supervisor(folder) or 'unknown'}): see it with 'counterflow "
                "federation status', end it with 'counterflow federation stop'."
            ) from error
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        yield
        os.ftruncate(descriptor, 0)


def supervisor(folder: Path) -> int | None:
    """Process of the living supervisor; None if there is none. What a dead one left behind does not matter."""
    try:
        with open(folder / PID, "r+b") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                text = file.read(32).decode("ascii", "replace").strip()
                return int(text) if text.isdecimal() else None
    except OSError:
        pass
    return None


def end_supervisor(folder: Path, patience: float) -> bool:
    """Ask the supervisor to end, and by force if it does not; whether there was one."""
    process = supervisor(folder)
    if process is None:
        return False
    number, end = signal.SIGTERM, time.monotonic() + patience
    try:
        os.kill(process, number)
        while supervisor(folder) == process:
            if time.monotonic() > end:
                if number == signal.SIGKILL:
                    raise StorageError(f"process {process} does not end; end it by hand: kill -9 {process}")
                number, end = signal.SIGKILL, end + 5.0
                os.kill(process, number)
            time.sleep(0.05)
    except ProcessLookupError:
        pass
    except PermissionError as error:
        raise StorageError(f"process {process} is another user's; stop {str(folder)!r} as that user") from error
    return True


# ---- how far jobs are


def write_state(folder: Path, job_id: str, **fields: Any) -> None:
    """Say how far a job is; readers see the last state or this one, never a part of it."""
    path = folder / "states" / f"{job_id}.json"
    with contextlib.suppress(OSError, StorageError):  # a full disk: the store says so, and is what counts
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_json(path, _STATE, fields, durable=False)


def state(folder: Path, job_id: str) -> dict[str, Any]:
    """How far a job is; empty if it has not begun."""
    try:
        return dict(read_json(folder / "states" / f"{job_id}.json", _STATE))
    except StorageError as error:
        if error.code != "missing":
            raise
    return {}


def handed_over(opened: Callable[[], _Session]) -> _Session:
    """The session, once the process of an earlier run, which takes seconds to see that it is over, has let go of it."""
    deadline = time.monotonic() + HANDOVER
    while True:
        try:
            return opened()
        except StorageError as error:
            if error.code != "in-use" or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


# ---- systemd


def write_service(folder: Path, name: str, what: str) -> Path:
    """Write a hardened unit file for systemd into the folder; returns its path."""
    place = folder.absolute()
    path = place / f"counterflow-{name}.service"
    command = " ".join(_quoted(word) for word in (sys.executable, "-P", "-m", "counterflow.cli", "federation", "start"))
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    text = _SERVICE.format(
        what=what.replace("%", "%%"), command=f"{command} {_quoted(str(place))}", folder=_quoted(str(place)),
        plain=str(place).replace("%", "%%"), home=_quoted(f"HOME={place}"), path=str(path), user=user,
    )  # fmt: skip
    with blaming(path):
        path.write_text(text, encoding="utf-8")
    return path


def _quoted(word: str) -> str:
    """For systemd, which knows quotes, backslashes, percent and dollar signs."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"'


_SERVICE = """# sudo cp '{path}' /etc/systemd/system/ && sudo systemctl enable --now the name of this file
# Where the folder or Python lies in a home directory, ProtectHome must stay read-only; elsewhere set it to yes.
[Unit]
Description=Counterflow: {what}
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Type=exec
User={user}
ExecStart={command}
Restart=always
RestartSec=5
KillMode=mixed
TimeoutStopSec=60
WorkingDirectory={plain}
ReadWritePaths={folder}
Environment={home}
UMask=0077
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
CapabilityBoundingSet=
LimitCORE=0

[Install]
WantedBy=multi-user.target
"""
