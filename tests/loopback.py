"""All parties in one process: carries bytes between their sessions, and can lose any of them between any two steps.

An engine between machines does what this one does: deliver what is outgoing, hand replies over, acknowledge.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from counterflow.errors import CounterflowError, ProtocolError
from counterflow.exchange.part import UnitPart
from counterflow.exchange.task import UnitData
from counterflow.federation import audit as audits
from counterflow.federation.audit import Audit
from counterflow.federation.engine import DEADLINE, Progress
from counterflow.federation.guard import Guard
from counterflow.federation.job import Job
from counterflow.federation.parts import CoordinatorResult, save_server
from counterflow.federation.policy import Policy
from counterflow.federation.sessions import CoordinatorSession, PlantSession
from counterflow.federation.sites import party
from counterflow.fits import complete
from counterflow.plant import LocalModel, Recording
from counterflow.questions.answering import Server

Moment = Literal["before delivery", "after reply", "after receipt", "after acknowledgement"]
Hook = Callable[["Federation", Moment, str], None]


@dataclass(frozen=True, eq=False)
class SessionsFit:
    """What came of a job: the server's part, and each unit's own."""

    server: Server
    parts: Mapping[str, UnitPart]
    result: CoordinatorResult


class Federation:
    """A coordinator and its plants, each with a folder of its own below ``folder``."""

    def __init__(
        self, folder: str | Path, job: Job, units: Mapping[str, UnitData], policies: Mapping[str, Policy]
    ) -> None:
        self.folder, self.job, self.units, self.policies = Path(folder), job, dict(units), dict(policies)
        self._coordinator: CoordinatorSession | None = None
        self._plants: dict[str, tuple[PlantSession, Audit]] = {}

    @property
    def coordinator(self) -> CoordinatorSession:
        """The coordinator's session, opened if it is not."""
        if self._coordinator is None:
            self._coordinator = CoordinatorSession(self.folder / "coordinator" / self.job.id, self.job)
        return self._coordinator

    def plant(self, unit: str) -> PlantSession:
        """A plant's session, opened if it is not."""
        if unit not in self._plants:
            own, home = self.units[unit], self.folder / unit
            job = Job.from_text(self.job.part_for(unit).to_text())
            audit = Audit(home / audits.FILE)
            try:
                guard = Guard(job, own, self.policies[unit], audit)
                session = PlantSession(home / job.id, guard)
            except BaseException:
                audit.close()
                raise
            self._plants[unit] = session, audit
        return self._plants[unit][0]

    def lose(self, who: str | None) -> None:
        """Forget all that a plant (None: the coordinator) has in memory, as a kill does."""
        if who is None:
            if self._coordinator is not None:
                self._coordinator.close()
            self._coordinator = None
        elif who in self._plants:
            session, audit = self._plants.pop(who)
            session.close()
            audit.close()

    def run(self, hook: Hook | None = None) -> SessionsFit:
        """Carry bytes until everything is acknowledged."""

        def moment(name: Moment, unit: str) -> None:
            if hook is not None:
                hook(self, name, unit)

        while pending := self.coordinator.outgoing():
            for message in pending:
                moment("before delivery", message.unit)
                replies = self.plant(message.unit).receive(message.sequence, message.data)
                moment("after reply", message.unit)
                for reply in replies:
                    self.coordinator.receive(reply.unit, reply.sequence, reply.data)
                    moment("after receipt", message.unit)
                self.coordinator.acknowledge(message.unit, message.sequence)
                moment("after acknowledgement", message.unit)
        if not self.coordinator.finished:
            raise ProtocolError(f"{self.job.label} has stopped; it waits for {', '.join(self.coordinator.waiting())}")
        result = self.coordinator.result()
        link = self.job.digest
        states = {unit: self.plant(unit).state for unit in self.units}
        parts = {unit: complete.unit_part(self.job, self.units[unit], state, link) for unit, state in states.items()}
        return SessionsFit(result.server, parts, result)

    def close(self) -> None:
        """Let go of all folders."""
        for who in (None, *self.units):
            self.lose(who)

    def __enter__(self) -> Federation:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def fit_over_sessions(
    folder: str | Path, job: Job, recording: Recording, models: Mapping[str, LocalModel] | None,
    policies: Mapping[str, Policy], hook: Hook | None = None,
) -> SessionsFit:  # fmt: skip
    """Run a job from a recording over sessions in ``folder``; ``hook`` is called at every moment."""
    logs = {name: (recording[name].unit, recording[name].y, recording[name].u) for name in job.units}
    units = {name: UnitData(*log, None if models is None else models[name]) for name, log in logs.items()}
    with Federation(folder, job, units, policies) as federation:
        return federation.run(hook)


@dataclass(frozen=True)
class LoopbackJobs:
    """Jobs that are run where they are submitted, at once and to their end; see ``engine.Jobs``.

    ``home`` keeps the states and what is found, as any coordinator's; plants have their folders below ``folder``.
    """

    folder: Path
    home: Path
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
                save_server(self.home, federation.run(count).result)
        except CounterflowError as error:
            told = f"{type(error).__name__}: {error}"
            party.write_state(self.home, job.id, state="failed", reason=told, code=error.code, run=job.id, **counts)
            raise
        party.write_state(self.home, job.id, state="finished", reason="", run=job.id, **counts)
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
        if party.state(self.home, job.id).get("state") != "finished":
            self.submit(job, job.units)
        state = party.state(self.home, job.id)
        if progress is not None:
            progress(state)
        return state
