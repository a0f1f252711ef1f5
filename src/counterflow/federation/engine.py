"""What carries a federation's bytes between machines, as sites and commands see it: a small interface, chosen by name.

An engine is a folder of its own that implements ``Engine`` and ``Jobs``. ``counterflow.federation.flare`` is one.
"""

from __future__ import annotations

import importlib
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from counterflow.federation.job import Job
from counterflow.federation.sites.certificates import Participant

DEFAULT = "counterflow.federation.flare.engine"
DEADLINE = 600  # seconds that a plant may take for one answer
Progress = Callable[[dict[str, Any]], None]


class Jobs(Protocol):
    """The jobs of one coordinator."""

    def submit(self, job: Job, units: Sequence[str]) -> str:
        """Start a job at these units; the name of the run."""

    def alive(self, run: str) -> bool:
        """Whether a run goes on."""

    def abort(self, run: str) -> None:
        """End a run; its sessions stay, and the same job submitted again goes on."""

    def follow(
        self, job: Job, *, deadline: int = DEADLINE, patience: float = 3600.0, progress: Progress | None = None
    ) -> dict[str, Any]:
        """Submit a job, and again whenever a run of it is lost, until it is finished; its last state.

        Raises
        ------
        ProtocolError
            A plant or the server refuses, the job fails by its numbers, or an operator has ended it.
        StorageError
            Patience is over; the text names who is missing.
        """


class Engine(Protocol):
    """Starts and stops sites, each with a kit of the engine's own, and runs jobs."""

    def require(self) -> None:
        """Raise an OptionError unless the engine is installed."""

    def prepare(self, kit: Path, who: Participant, federation: str, server: tuple[str, int]) -> None:
        """Write all that the engine reads in a kit but key and certificates: at first, and again before every start.

        A kit lies in the folder of its party. ``server``: host and port.
        """

    def start(self, kit: Path, log: Path) -> subprocess.Popen[bytes]:
        """Start a site as a child of this process; what it prints goes to ``log``."""

    def running(self, kit: Path) -> bool:
        """Whether a site has any process."""

    def stop(self, kit: Path, patience: float = 10.0) -> int:
        """End all processes of a site; how many there were."""

    def logs(self, kit: Path) -> Sequence[Path]:
        """Files of the engine's own that only ever grow."""

    def prune(self, kit: Path, age: float) -> int:
        """Delete what the engine keeps of runs that ended so many seconds ago; how many things were deleted."""

    def jobs(self, kit: Path, operator_kit: Path, folder: Path) -> Jobs:
        """The jobs of a coordinator: kits of its server and of its operator, and its folder."""


def engine(module: str = DEFAULT) -> Engine:
    """The engine of a module that has one under the name ``ENGINE``.

    Imported by name, so that sites depend on no engine, and nothing of one is loaded before it is needed.
    """
    return cast(Engine, importlib.import_module(module).ENGINE)
