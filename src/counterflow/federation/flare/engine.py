"""NVIDIA FLARE as an engine: sites are FLARE's processes."""

from __future__ import annotations

from pathlib import Path

from counterflow.federation.engine import Engine
from counterflow.federation.flare import kit as kits
from counterflow.federation.flare import processes, require_flare
from counterflow.federation.flare.operator import FlareJobs


class FlareEngine:
    """See ``Engine``."""

    require = staticmethod(require_flare)
    prepare = staticmethod(kits.prepare)
    start = staticmethod(processes.start)
    stop = staticmethod(processes.stop)
    prune = staticmethod(processes.prune)
    jobs = FlareJobs

    @staticmethod
    def running(kit: Path) -> bool:
        return bool(processes.running(kit))

    @staticmethod
    def logs(kit: Path) -> tuple[Path, ...]:
        return (kit / "audit.log",)  # FLARE's other logs go round by themselves


ENGINE: Engine = FlareEngine()
