"""Jobs in this process, as any engine runs them: what a command asks of an engine can be tried without machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from counterflow.errors import CounterflowError, ProtocolError
from counterflow.exchange.task import UnitData
from counterflow.federation.engine import DEADLINE, Progress
from counterflow.federation.job import Job
from counterflow.federation.loopback import Federation, Moment
from counterflow.federation.parts import save_server
from counterflow.federation.policy import Policy
from counterflow.federation.sites.site import CoordinatorSite


@dataclass(frozen=True)
class LoopbackJobs:
    """Jobs that are run where they are submitted, at once and to their end; see ``engine.Jobs``.

    ``site`` keeps the states and what is found, as any coordinator's; plants have their folders below ``folder``.
    """

    folder: Path
    site: CoordinatorSite
    units: Mapping[str, UnitData]
    policies: Mapping[str, Policy]

    def submit(self, job: Job, units: Sequence[str]) -> str:
        """Run it; one that was broken off goes on. The name of the run."""
        missing = [unit for unit in units if unit not in self.units]
        if missing:
            raise ProtocolError(f"{job.label}: not here: {', '.join(missing)}", code="no-answer")
        counts = {"exchanges": 0}

        def count(federation: Federation, moment: Moment, unit: str) -> None:
            counts["exchanges"] += moment == "after acknowledgement"

        own = {unit: self.units[unit] for unit in units}
        try:
            with Federation(self.folder, job, own, self.policies) as federation:
                save_server(self.site.home, federation.run(count).result)
        except CounterflowError as error:
            told = f"{type(error).__name__}: {error}"
            self.site.write_state(job.id, state="failed", reason=told, code=error.code, run=job.id, **counts)
            raise
        self.site.write_state(job.id, state="finished", reason="", run=job.id, **counts)
        return job.id

    def alive(self, run: str) -> bool:
        """Never: it has ended when ``submit`` returns."""
        return False

    def abort(self, run: str) -> None:
        """There is nothing to end."""

    def follow(
        self, job: Job, *, deadline: int = DEADLINE, patience: float = 3600.0, progress: Progress | None = None
    ) -> dict[str, Any]:
        """See ``engine.Jobs``; nobody is waited for here."""
        if self.site.state(job.id).get("state") != "finished":
            self.submit(job, job.units)
        state = self.site.state(job.id)
        if progress is not None:
            progress(state)
        return state
