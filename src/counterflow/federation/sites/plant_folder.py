"""A plant's folder: its key, which never leaves it, its log and model, its policy, and what has left.

::

    kit/                  its key and certificate, and what the engine reads
    boiler.join           goes to the coordinator
    log.safetensors       the unit's log; log.json: when it begins
    model.safetensors     its local model, if it has one
    policy.toml           what may leave, and who may ask; the plant's own
    budgets/              durable privacy budget
    site.db               what has left, and what it asks
    sessions/  fits/      stores of the jobs; its parts of what was found
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from counterflow.caveats import Caveat
from counterflow.errors import CounterflowError, OptionError, PrivacyError, StorageError
from counterflow.exchange.controllers import UnitControllers
from counterflow.exchange.task import UnitData
from counterflow.federation import audit, job_gate
from counterflow.federation.asking import PlantView
from counterflow.federation.audit import Audit
from counterflow.federation.desk import PlantDesk, QuestionBox
from counterflow.federation.engine import engine
from counterflow.federation.guard import Guard
from counterflow.federation.job import QUESTIONS, Job
from counterflow.federation.parts import UNIT_FILE, finished_fits, questions_about, save_unit, saved_unit
from counterflow.federation.policy import Policy, default_policy
from counterflow.federation.reconciliation import differences, reconcile
from counterflow.federation.sessions import PlantSession
from counterflow.federation.sites import certificates, keys, letters, members, party
from counterflow.federation.sites.certificates import Kit, Participant
from counterflow.federation.sites.letters import Card, JoinRequest
from counterflow.federation.sites.party import Party
from counterflow.files import write_whole
from counterflow.plant import LocalModel, Recording, UnitRecording
from counterflow.plant.model_file import load_model, save_model
from counterflow.privacy import Ledger, ledger_path
from counterflow.sealed_file import read_json, write_json

BUDGET = 3.0
_LOG = "beginning of a log"


@dataclass(frozen=True)
class PlantFolder(Party):
    """A plant; made by ``create`` once and by ``open`` ever after."""

    ROLE = party.PLANT
    unit: str
    public: str = ""  # its key, as ``keys.public`` writes it

    @classmethod
    def create(
        cls, folder: Path, unit: str, federation: str, fingerprint: str, recording: Recording, model: LocalModel | None,
        policy: str = "", organisation: str = "", budget: float = BUDGET, begins: str = "",
    ) -> PlantFolder:  # fmt: skip
        """Make a key, put log, model and policy (its text) in place, and write the ``.join`` file.

        ``budget``: epsilon of the ledger that is opened if the policy names one that does not exist. ``begins``: time
        of the log's first row.
        """
        if "." in unit:
            raise OptionError(f"--unit {unit!r}: the name of a unit on several machines has no dot.")
        certificates.check_federation(federation)
        organisation = organisation or re.sub(r"[^A-Za-z0-9_]", "_", f"{unit}_owner")
        Participant(unit, "plant", organisation)
        expected = certificates.check_fingerprint(fingerprint)
        text = policy or default_policy(unit)
        made = cls(folder.absolute(), federation, expected, organisation, "", 0, unit)
        made._check(text, recording, model)
        with party.new(made.folder, "join"):
            made.put(recording, model, text, begins)
            made._open_budget(budget)
            return made._ask_to_join(recording)

    @property
    def label(self) -> str:
        return f"plant {self.unit}"

    @property
    def join_file(self) -> Path:
        return self.folder / f"{self.unit}.join"

    @property
    def kit(self) -> Kit:
        return Kit(self.folder / "kit", "client")

    @property
    def welcomed(self) -> bool:
        """Whether the coordinator has answered."""
        return bool(self.host)

    @property
    def key(self) -> str:
        """Fingerprint of the plant's key, as the coordinator sees it."""
        return keys.fingerprint(keys.from_public(self.public))

    def certificates(self) -> dict[str, datetime]:
        files = {self.label: self.kit.certificate, "the authority": self.kit.authority} if self.welcomed else {}
        return {name: certificates.read(file).not_valid_after_utc for name, file in files.items()}

    # ---- joining

    def _ask_to_join(self, recording: Recording) -> PlantFolder:
        key = keys.new()
        asking = replace(self, public=keys.public(key.public_key()))
        keys.keep(key, self.kit.key)
        card = Card(
            self.unit, self.organisation, self.federation, _own(recording, self.unit).unit.inputs, recording.dt,
            self.begins, self.policy.inputs_shown,
        )  # fmt: skip
        letters.write(self.join_file, JoinRequest(card, asking.public), key)
        asking.write()  # last: with it the plant has asked
        return asking

    def renew(self) -> PlantFolder:
        """Make a new key and ask to join with it; log, policy, budget and audit log stay as they are.

        Until the coordinator has removed the old certificate and answered this request, the plant is out.
        """
        self.refuse_running()
        asking = replace(self, host="", port=0)
        asking.write()
        return asking._ask_to_join(Recording.load(self.folder / "log.safetensors"))

    def welcome(self, file: Path) -> PlantFolder:
        """Take the coordinator's answer: certificates, and where it is. The same again is no error."""
        letter = letters.read_welcome(file, self.unit)
        own, authority = map(certificates.from_text, (letter.certificate, letter.authority))
        cross = certificates.from_text(letter.cross) if letter.cross else None
        offered = certificates.fingerprint(authority)
        if self.welcomed:
            if offered == self.fingerprint and own == certificates.read(self.kit.certificate):
                return self
            self.refuse_running()
            if authority != (known := certificates.read(self.kit.authority)):
                certificates.check_vouched(cross, known, authority)
        elif offered != self.fingerprint:
            raise StorageError(
                f"{file}: the authority's fingerprint does not match: it is {offered}, {self.label} was told "
                f"{self.fingerprint}. Ask the coordinator, by telephone."
            )
        certificates.check_issued(own, authority, self._who, keys.from_public(self.public))
        joined = replace(self, fingerprint=offered, host=letter.host, port=letter.port)
        certificates.write(self.kit.certificate, own, cross)
        certificates.write(self.kit.authority, authority)
        joined.write()  # last: with it the plant is a member
        joined.prepare()
        party.write_service(self.folder, self.unit, self.label)
        return joined

    @property
    def _who(self) -> Participant:
        return Participant(self.unit, "plant", self.organisation)

    # ---- running

    def is_up(self) -> bool:
        return bool(members.presence(self.folder).get("connected"))

    def waits_for(self) -> str:
        """The coordinator's server: FLARE would give up, and come back late."""
        return party.reachable(self.host, self.port)

    def prepare(self) -> None:
        """Refused as long as the plant was not welcomed, or its books contradict each other."""
        if not self.welcomed:
            raise OptionError(
                f"{self.label} was not welcomed yet: send {self.join_file} to the coordinator, and give its answer: "
                f"counterflow federation join {self.folder} --welcome {self.unit}.welcome"
            )
        self._check_books()
        engine().prepare(self.kit.folder, self._who, self.federation, (self.host, self.port))

    def bind(self, recording: Recording | None, model: LocalModel | None, policy: str = "", begins: str = "") -> None:
        """Replace the log, the model or the policy; never while the plant runs, and never the input channels."""
        self.refuse_running()
        kept = Recording.load(self.folder / "log.safetensors")
        chosen = kept if recording is None else recording
        text = policy or (self.folder / "policy.toml").read_text("utf-8")
        old, new = (
            [replace(channel, role="") for channel in _own(each, self.unit).unit.inputs]  # loops stay at home
            for each in (kept, chosen)
        )
        if old != new or kept.dt != chosen.dt:
            raise OptionError(
                f"--log: the inputs of unit {self.unit!r} or its time step are not those it has joined with "
                f"({', '.join(channel.name for channel in old)}; {kept.dt:g} s): join anew, in another folder."
            )
        self._check(text, chosen, model if model is not None else self.own().model)
        self.put(chosen, model, text, None if recording is None else begins)

    def _check(self, policy: str, recording: Recording, model: LocalModel | None) -> None:
        """Refuse what is not this unit's, or does not go together."""
        own = _own(recording, self.unit).unit
        if (named := Policy.from_text(policy).unit) != self.unit:
            raise OptionError(f"--policy: it is that of unit {named!r}, this is unit {self.unit!r}: give its own.")
        for side in ("inputs", "outputs") if model is not None else ():
            has, wanted = (getattr(each, f"n_{side}") for each in (own, model))
            if has != wanted:
                raise OptionError(f"--model: unit {self.unit!r} has {has} {side} in its log, the model has {wanted}.")

    # ---- what it brings to jobs

    def put(self, recording: Recording, model: LocalModel | None, policy: str, begins: str | None = None) -> None:
        """Put the plant's own log, model and policy (its text) into its folder; other units' parts are not taken.

        ``begins``: time of the log's first row, "" if it has none; None: as it was.
        """
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        own = Recording({self.unit: recording[self.unit]}, recording.dt, recording.calendar)
        own.save(self.folder / "log.safetensors")
        Policy.from_text(policy, self.folder / "policy.toml")
        write_whole(self.folder / "policy.toml", policy.encode(), durable=True)
        if model is not None:
            save_model(model, self.folder / "model.safetensors")
        if begins is not None:
            write_json(self.folder / "log.json", _LOG, {"begins": begins})

    def own(self) -> UnitData:
        """What the plant brings to a job."""
        recording = Recording.load(self.folder / "log.safetensors")
        part = recording[self.unit]
        model = self.folder / "model.safetensors"
        known = load_model(model) if model.exists() else None
        return UnitData(part.unit, part.y, part.u, known, begins=self.begins, dt=recording.dt)

    @property
    def begins(self) -> str:
        """Time of the log's first row; "" if it is not known."""
        path = self.folder / "log.json"
        return str(read_json(path, _LOG)["begins"]) if path.exists() else ""

    @property
    def policy(self) -> Policy:
        """What may leave, as the file says now."""
        return Policy.read(self.folder / "policy.toml")

    def audit(self) -> Audit:
        """The log of what has left."""
        return Audit(self.folder / audit.FILE)

    @property
    def box(self) -> QuestionBox:
        """Where this plant's questions wait."""
        return QuestionBox(self.folder / audit.FILE)

    def side(self, job: Job) -> PlantSession | PlantDesk:
        """This plant's side of a job: its session where it stopped, or, of a standing job, its desk of questions."""
        own, log = self.own(), self.audit()
        if job.method == QUESTIONS:
            found = self._controllers(job, own)
            return PlantDesk(self.box, job, lambda: self.guard(job, log, own), self.folder / "policy.toml", found)
        guard = self.guard(job, log, own)

        def keep(session: PlantSession) -> None:
            save_unit(self.folder, job, own, session.state, session.losses)

        try:
            return party.handed_over(lambda: PlantSession(self.folder / "sessions" / job.id, guard, keep))
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
            job_gate.require_approval(job, policy, audit, self.folder)
        except PrivacyError as error:
            guard.refuse("job", job.to_text().encode(), error)
        return guard

    def _controllers(self, job: Job, own: UnitData) -> UnitControllers | None:
        """The plant's controllers, as it has learned them in the fit that a standing job is about.

        After a private fit none of them answers: what one would do tells what it reads.
        """
        fit = str(job.options["of"])
        if fit not in finished_fits(self.folder, UNIT_FILE):
            return None
        saved = saved_unit(self.folder, self.unit, fit)
        if saved.job.privacy is not None or questions_about(saved.job).digest != job.digest:
            return None
        same = saved.is_of(own)
        return UnitControllers(saved.part, job.dt, own.y if same else None, own.u if same else None)

    def view(self, fit: str | None = None, patience: float = 60.0) -> PlantView:
        """What this plant sees of a finished fit; the latest, if none is named."""
        calendar = Recording.load(self.folder / "log.safetensors").calendar
        zone = "" if calendar is None else calendar.zone
        return PlantView(saved_unit(self.folder, self.unit, fit), self.box, self.own, patience, zone)

    # ---- books

    @property
    def ledger(self) -> Path | None:
        """The file of the plant's budget; None: the policy names none."""
        folder = self.policy.ledger
        return None if folder is None else ledger_path(folder, self.unit)

    def _open_budget(self, budget: float) -> None:
        if self.ledger is not None and not self.ledger.exists():
            Ledger.create(self.ledger, self.unit, budget, self.policy.delta, self.policy.window).close()

    def differences(self) -> tuple[Caveat, ...]:
        """How ledger and audit log differ."""
        with self._books() as (log, ledger):
            return differences(log, ledger, self.unit)

    def _check_books(self) -> None:
        """Refuse books of which one is lost, or older than the other; settle what a crash has left unsettled."""
        with self._books() as (log, ledger):
            if log is not None and ledger is not None:
                reconcile(log, ledger)
            elif found := differences(log, ledger, self.unit):
                raise StorageError(found[0].text, code="old")

    @contextmanager
    def _books(self) -> Iterator[tuple[Audit | None, Ledger | None]]:
        with ExitStack() as opened:
            there = (self.folder / audit.FILE).exists()
            log = opened.enter_context(self.audit()) if there else None
            path = self.ledger
            paid = path is not None and path.exists()
            yield log, opened.enter_context(Ledger.open(path, self.unit)) if path and paid else None


def _own(recording: Recording, unit: str) -> UnitRecording:
    if unit not in recording.names:
        raise OptionError(f"--log: it has no unit {unit!r}; there are {', '.join(recording.names)}.")
    return recording[unit]
