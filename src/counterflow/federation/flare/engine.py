"""NVIDIA FLARE as an engine."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterflow.errors import StorageError
from counterflow.federation.engine import DEADLINE, Engine, Progress
from counterflow.federation.flare import authority, jobs, processes, require_flare
from counterflow.federation.flare import kit as kits
from counterflow.federation.flare.following import follow
from counterflow.federation.flare.operator import Operator
from counterflow.federation.job import Job
from counterflow.federation.sites.site import CoordinatorSite


@dataclass(frozen=True)
class FlareJobs:
    """Jobs of one coordinator; a connection is made for each request and not kept."""

    kit: Path
    operator_kit: Path
    site: CoordinatorSite

    def submit(self, job: Job, units: Sequence[str]) -> str:
        """See ``Jobs``."""
        with tempfile.TemporaryDirectory() as place, Operator(self.operator_kit) as operator:
            return operator.submit(jobs.write(Path(place), job.id, job.to_text(), job.part_texts(units)))

    def alive(self, run: str) -> bool:
        """See ``Jobs``."""
        return any(process.run == run for process in processes.running(self.kit))

    def abort(self, run: str) -> None:
        """See ``Jobs``."""
        with Operator(self.operator_kit) as operator:
            operator.abort(run)

    def follow(
        self, job: Job, *, deadline: int = DEADLINE, patience: float = 3600.0, progress: Progress | None = None
    ) -> dict[str, Any]:
        """See ``Jobs``."""
        return follow(self.operator_kit, self.site, job, deadline=deadline, patience=patience, progress=progress)


class FlareEngine:
    """Sites as FLARE's processes; see ``Engine``."""

    require = staticmethod(require_flare)
    establish = staticmethod(authority.establish)
    found_again = staticmethod(authority.found_again)
    request = staticmethod(authority.request)
    requested = staticmethod(authority.requested)
    approve = staticmethod(authority.approve)
    assemble = staticmethod(authority.assemble)
    prepare = staticmethod(kits.harden)
    start = staticmethod(processes.start)
    stop = staticmethod(processes.stop)
    prune = staticmethod(processes.prune)
    jobs = FlareJobs

    @staticmethod
    def running(kit: Path) -> bool:
        """See ``Engine``."""
        return bool(processes.running(kit))

    @staticmethod
    def logs(kit: Path) -> tuple[Path, ...]:
        """See ``Engine``; FLARE's other logs go round by themselves."""
        return (kit / "audit.log",)

    @staticmethod
    def address(kit: Path) -> tuple[str, int]:
        """See ``Engine``."""
        try:
            target = kits.read_json(kit / "startup" / "fed_client.json")["servers"][0]["service"]["target"]
            host, _, port = str(target).rpartition(":")
            return host, int(port)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise StorageError(f"{kit}: it does not say where the server is ({error}); join anew.") from error


ENGINE: Engine = FlareEngine()
