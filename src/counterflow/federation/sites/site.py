"""A site's own folder: what a plant brings to jobs, and where plants and coordinator keep their sessions.

::

    home/                       of a plant                     of the server
      log.safetensors           its log, one unit; log.json: when it begins
      model.safetensors         its local model, if it has one
      policy.toml               what may leave
      site.db                   what has left; what it asks    what was asked, and refused
      sessions/<job>/           store of each job              store of each job
      fits/<job>/               its part of what was found     the server's part
      terms/<unit>.json                                        who may ask about which unit's inputs
      states/<job>.json                                        how far each job is
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from counterflow.errors import CounterflowError, PrivacyError, StorageError
from counterflow.exchange.controllers import UnitControllers
from counterflow.exchange.task import UnitData
from counterflow.federation import audit, job_gate
from counterflow.federation.asking import PlantView
from counterflow.federation.audit import Audit
from counterflow.federation.controllers import Carry
from counterflow.federation.desk import PlantDesk, QuestionBox
from counterflow.federation.guard import Guard
from counterflow.federation.job import QUESTIONS, Job
from counterflow.federation.parts import UNIT_FILE, finished_fits, questions_about, save_unit, saved_server, saved_unit
from counterflow.federation.policy import Policy
from counterflow.federation.question_gate import PER_MINUTE
from counterflow.federation.question_service import GRACE, QuestionService
from counterflow.federation.sessions import CoordinatorSession, PlantSession
from counterflow.federation.sites import party
from counterflow.files import write_whole
from counterflow.plant import LocalModel, Recording
from counterflow.plant.model_file import load_model, save_model
from counterflow.sealed_file import read_json, write_json

HANDOVER = 30.0  # seconds
_LOG, _STATE = "beginning of a log", "state of a job"
_Session = TypeVar("_Session")


@dataclass(frozen=True)
class PlantSite:
    """A plant as its kit describes it; nothing of it comes from a job."""

    unit: str
    home: Path

    def bind(self, recording: Recording, model: LocalModel | None, policy: str, begins: str | None = None) -> None:
        """Put the plant's own log, model and policy (its text) into its folder; other units' parts are not taken.

        ``begins``: time of the log's first row, "" if it has none; None: as it was.
        """
        self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        own = Recording({self.unit: recording[self.unit]}, recording.dt, recording.calendar)
        own.save(self.home / "log.safetensors")
        Policy.from_text(policy, self.home / "policy.toml")
        write_whole(self.home / "policy.toml", policy.encode(), durable=True)
        if model is not None:
            save_model(model, self.home / "model.safetensors")
        if begins is not None:
            write_json(self.home / "log.json", _LOG, {"begins": begins})

    def own(self) -> UnitData:
        """What the plant brings to a job."""
        recording = Recording.load(self.home / "log.safetensors")
        part = recording[self.unit]
        model = self.home / "model.safetensors"
        known = load_model(model) if model.exists() else None
        return UnitData(part.unit, part.y, part.u, known, begins=self.begins, dt=recording.dt)

    @property
    def begins(self) -> str:
        """Time of the log's first row; "" if it is not known."""
        path = self.home / "log.json"
        return str(read_json(path, _LOG)["begins"]) if path.exists() else ""

    @property
    def policy(self) -> Policy:
        """What may leave, as the file says now."""
        return Policy.read(self.home / "policy.toml")

    def audit(self) -> Audit:
        """The log of what has left."""
        return Audit(self.home / audit.FILE)

    @property
    def box(self) -> QuestionBox:
        """Where this plant's questions wait."""
        return QuestionBox(self.home / audit.FILE)

    def party(self, job: Job) -> PlantSession | PlantDesk:
        """This plant's side of a job: its session where it stopped, or, of a standing job, its desk of questions."""
        own, audit = self.own(), self.audit()
        if job.method == QUESTIONS:
            found = self._controllers(job, own)
            return PlantDesk(self.box, job, lambda: self.guard(job, audit, own), self.home / "policy.toml", found)
        guard = self.guard(job, audit, own)

        def keep(session: PlantSession) -> None:
            save_unit(self.home, job, own, session.state, session.losses)

        try:
            return _handed_over(lambda: PlantSession(self.home / "sessions" / job.id, guard, keep))
        except StorageError:
            raise
        except CounterflowError as error:  # such as a model that is missing
            guard.refuse("job", job.to_text().encode(), error)

    def guard(self, job: Job, audit: Audit, own: UnitData) -> Guard:
        """The guard of one job, if this plant takes part in it now."""
        policy = self.policy
        job_gate.count(job, policy, audit)
        guard = Guard(job, own, policy, audit)
        try:
            job_gate.require_approval(job, policy, audit, self.home)
        except PrivacyError as error:
            guard.refuse("job", job.to_text().encode(), error)
        return guard

    def _controllers(self, job: Job, own: UnitData) -> UnitControllers | None:
        """The plant's controllers, as it has learned them in the fit that a standing job is about.

        After a private fit none of them answers: what one would do tells what it reads.
        """
        fit = str(job.options["of"])
        if fit not in finished_fits(self.home, UNIT_FILE):
            return None
        saved = saved_unit(self.home, self.unit, fit)
        if saved.job.privacy is not None or questions_about(saved.job).digest != job.digest:
            return None
        same = saved.is_of(own)
        return UnitControllers(saved.part, job.dt, own.y if same else None, own.u if same else None)

    def view(self, fit: str | None = None, patience: float = 60.0) -> PlantView:
        """What this plant sees of a finished fit; the latest, if none is named."""
        calendar = Recording.load(self.home / "log.safetensors").calendar
        zone = "" if calendar is None else calendar.zone
        return PlantView(saved_unit(self.home, self.unit, fit), self.box, self.own, patience, zone)


@dataclass(frozen=True)
class CoordinatorSite:
    """The server's folder."""

    home: Path

    def session(self, job: Job) -> CoordinatorSession:
        """The session of one job, where it stopped."""
        return _handed_over(lambda: CoordinatorSession(self.home / "sessions" / job.id, job))

    def audit(self) -> Audit:
        """The log of what was asked."""
        return Audit(self.home / audit.FILE)

    def service(self, job: Job, audit: Audit, carry: Carry | None = None) -> QuestionService:
        """What answers in a standing job; ``carry`` takes a trial to a plant."""
        found, server = saved_server(self.home, str(job.options["of"]))
        if questions_about(found).to_text() != job.to_text():
            raise StorageError(
                f"federation: {job.label} asks about another fit than the {found.label} that is kept here"
            )
        told = party.read(self.home) if (self.home / party.FILE).exists() else {}
        return QuestionService(self.home, job, server, audit, GRACE, told.get(party.RATE, PER_MINUTE), carry)

    def write_state(self, job_id: str, **fields: Any) -> None:
        """Say how far a job is; readers see the last state or this one, never a part of it."""
        path = self.home / "states" / f"{job_id}.json"
        with contextlib.suppress(OSError, StorageError):  # a full disk: the store says so, and is what counts
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_json(path, _STATE, fields, durable=False)

    def state(self, job_id: str) -> dict[str, Any]:
        """How far a job is; empty if it has not begun."""
        try:
            return dict(read_json(self.home / "states" / f"{job_id}.json", _STATE))
        except StorageError as error:
            if error.code != "missing":
                raise
        return {}


def _handed_over(opened: Callable[[], _Session]) -> _Session:
    """The session, once the process of an earlier run, which takes seconds to see that it is over, has let go of it."""
    deadline = time.monotonic() + HANDOVER
    while True:
        try:
            return opened()
        except StorageError as error:
            if error.code != "in-use" or time.monotonic() > deadline:
                raise
            time.sleep(0.2)
