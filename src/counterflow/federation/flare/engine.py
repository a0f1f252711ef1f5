"""NVIDIA FLARE as an engine: sites are FLARE's processes."""

from __future__ import annotations

from pathlib import Path

from counterflow.errors import StorageError
from counterflow.federation.engine import Engine
from counterflow.federation.flare import authority, processes, require_flare
from counterflow.federation.flare import kit as kits
from counterflow.federation.flare.following import FlareJobs


class FlareEngine:
    """See ``Engine``."""

    require = staticmethod(require_flare)
    establish = staticmethod(authority.establish)
    found_again = staticmethod(authority.found_again)
    request = staticmethod(authority.request)
    approve = staticmethod(authority.approve)
    assemble = staticmethod(authority.assemble)
    prepare = staticmethod(kits.harden)
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

    @staticmethod
    def address(kit: Path) -> tuple[str, int]:
        try:
            target = kits.read_json(kit / "startup" / "fed_client.json")["servers"][0]["service"]["target"]
            host, _, port = str(target).rpartition(":")
            return host, int(port)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise StorageError(f"{kit}: it does not say where the server is ({error}); join anew.") from error


ENGINE: Engine = FlareEngine()
