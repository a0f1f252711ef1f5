"""The coordinator's folder: the authority, the server's and the operator's keys, the members and the jobs.

::

    authority/            the key that signs; whoever has it can admit anybody
    server/  operator/    their kits, with their keys
    members.json          who is a member, and who was
    approved/             boiler.welcome: goes back to the plant
    jobs/fit-1.json       what was started here
    sessions/  states/    stores of the jobs, and how far they are
    fits/fit-1/           the server's part of what was found
    terms/boiler.json     who may ask about a unit's inputs
    site.db               what was asked, and refused
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.x509 import Certificate

from counterflow.errors import CounterflowError, OptionError, StorageError
from counterflow.federation import audit
from counterflow.federation.audit import Audit
from counterflow.federation.controllers import Carry
from counterflow.federation.engine import Jobs, engine
from counterflow.federation.job import Job
from counterflow.federation.parts import questions_about, saved_server
from counterflow.federation.question_gate import PER_MINUTE
from counterflow.federation.question_service import GRACE, QuestionService
from counterflow.federation.sessions import CoordinatorSession
from counterflow.federation.sites import certificates, keys, letters, members, party
from counterflow.federation.sites.certificates import Kit, Participant
from counterflow.federation.sites.letters import JoinRequest, Welcome
from counterflow.federation.sites.members import Member
from counterflow.federation.sites.party import Party
from counterflow.sealed_file import read_json, write_json

_JOB = "job of a federation"
_RESERVED = ("server", "relay", "admin")  # what FLARE calls its own


@dataclass(frozen=True)
class CoordinatorFolder(Party):
    """A coordinator; made by ``create`` once and by ``open`` ever after."""

    ROLE = party.COORDINATOR
    operator: str
    questions_per_minute: int = PER_MINUTE  # of each member

    @classmethod
    def create(
        cls, folder: Path, name: str, host: str, port: int, organisation: str = "coordinator", operator: str = ""
    ) -> CoordinatorFolder:
        """Found a federation in a new folder: authority, server and operator, with keys of their own."""
        certificates.check_federation(name)
        operator = operator or f"operator@{name.lower().replace('_', '-').replace('.', '-')}.local"
        key = keys.new()
        authority = certificates.found(name, key)
        fingerprint = certificates.fingerprint(authority)
        made = cls(folder.absolute(), name, fingerprint, organisation, host, port, operator)
        own = made._own
        with party.new(made.folder, "found a federation"):
            made._rule(authority, key)
            listed = []
            for who, kit in own.items():
                secret = keys.new()
                keys.keep(secret, kit.key)
                certificates.write(kit.authority, authority)
                listed.append(Member(who, keys.public(secret.public_key()), _now()))
            members.write(made._listed, listed)
            for place in ("approved", "jobs"):
                (made.folder / place).mkdir(mode=0o700)
            made._issue([who.name for who in own])
            party.write_service(made.folder, f"coordinator-{name}", f"coordinator of {name}")
            made.write()  # last: with it the folder is whole
            made.prepare()
        return made

    @property
    def label(self) -> str:
        return f"coordinator of {self.federation}"

    @property
    def kit(self) -> Kit:
        return Kit(self.folder / "server", "server")

    @property
    def _operator_kit(self) -> Kit:
        return Kit(self.folder / "operator", "client")

    @property
    def _own(self) -> dict[Participant, Kit]:
        """The coordinator's participants."""
        server = Participant(self.host, "server", self.organisation)
        return {server: self.kit, Participant(self.operator, "operator", self.organisation): self._operator_kit}

    @property
    def key_files(self) -> tuple[Path, ...]:
        return tuple(kit.key for kit in self._own.values())

    @property
    def engine_jobs(self) -> Jobs:
        """Starts, follows and ends the jobs of this coordinator."""
        return engine().jobs(self.kit.folder, self._operator_kit.folder, self.folder)

    def prepare(self) -> None:
        for who, kit in self._own.items():
            engine().prepare(kit.folder, who, self.federation, (self.host, self.port))

    def is_up(self) -> bool:
        return bool(members.presence(self.folder)) and not party.reachable("localhost", self.port)

    def is_alive(self, run: str) -> bool:
        return self.engine_jobs.alive(run)

    # ---- members

    @property
    def _listed(self) -> Path:
        return self.folder / members.FILE

    def plants(self) -> dict[str, Member]:
        """The members that are plants, by unit."""
        found = {one.who.name: one for one in members.read(self._listed) if one.about and not one.removed}
        return dict(sorted(found.items()))

    def removed(self) -> list[Member]:
        """Those who were removed, the last one last; a unit may stand here several times."""
        return sorted((one for one in members.read(self._listed) if one.removed), key=lambda one: one.removed)

    def _member(self, unit: str) -> Member:
        known = self.plants()
        if unit not in known:
            there = ", ".join(known) or "none"
            raise OptionError(f"no plant {unit!r:.80} is a member of {self.federation}; there are {there}.")
        return known[unit]

    def check(self, request: JoinRequest) -> None:
        """Refuse a request that cannot be approved, before anybody is asked."""
        unit, card = request.card.unit, request.card
        if card.federation != self.federation:
            raise OptionError(
                f"unit {unit!r} asks to join the federation {card.federation!r:.80}, this is {self.federation!r}: tell "
                "the plant the right name."
            )
        if "." in unit or unit.lower() in (*_RESERVED, self.host.lower()):
            raise OptionError(f"unit {unit!r}: a plant's name has no dot, and is not one of {', '.join(_RESERVED)}.")
        known = self.plants().get(unit)
        if known is not None and known.key != request.key:
            raise OptionError(
                f"unit {unit!r} is a member already, with another key ({known.key[:23]}...): two holders of one name "
                f"could speak for each other. If this is its new key: counterflow federation remove {self.folder} "
                f"{unit}, then approve again."
            )
        if any(plant.key == request.key for plant in self.removed()):
            raise OptionError(
                f"unit {unit!r}: this key ({request.key[:23]}...) was removed, and a removed key does not come back: "
                "the plant joins again in a new folder."
            )

    def approve(self, request: JoinRequest) -> Path:
        """Make a plant a member; returns the file that goes back. Again: the same file."""
        card, unit = request.card, request.card.unit
        with party.changing(self.folder):
            self.check(request)
            if unit not in self.plants():
                who = Participant(unit, "plant", card.organisation)
                new = Member(who, request.public, _now(), about=card)
                members.write(self._listed, [*members.read(self._listed), new])
            elif self._welcome(unit).exists():
                return self._welcome(unit)
            self._issue([unit])
        return self._welcome(unit)

    def remove(self, unit: str) -> Member:
        """Take a plant off the members: from now on its certificate is worth nothing here."""
        with party.changing(self.folder):
            gone = self._member(unit)
            removed = replace(gone, removed=_now())
            members.write(self._listed, [removed if one == gone else one for one in members.read(self._listed)])
            for left in (self._welcome(unit), self.folder / "terms" / f"{unit}.json"):  # it is asked no more, either
                left.unlink(missing_ok=True)
        return removed

    def _welcome(self, unit: str) -> Path:
        return self.folder / "approved" / f"{unit}.welcome"

    # ---- certificates

    def certificates(self) -> dict[str, datetime]:
        founded = self._authority(".pem")  # may be kept offline
        own = {
            "the authority": founded if founded.exists() else self.kit.authority,
            "the server": self.kit.certificate,
            "the operator": self._operator_kit.certificate,
        }
        plants = {f"plant {unit}": datetime.fromisoformat(plant.ends) for unit, plant in self.plants().items()}
        return {name: certificates.read(path).not_valid_after_utc for name, path in own.items()} | plants

    def renew(self, units: Sequence[str] = ()) -> dict[str, Path]:
        """New certificates of these plants; of nobody: of all plants, the server and the operator. Keys stay.

        Returns {unit: the welcome to send}. Until a plant has taken it, its certificate of now is as good.
        """
        with party.changing(self.folder):
            chosen = [self._member(unit).who.name for unit in units] or list(self.plants())
            self._issue(chosen if units else [*chosen, self.host, self.operator])
        return {unit: self._welcome(unit) for unit in chosen}

    def _issue(self, names: Sequence[str]) -> None:
        """New certificates of members, admitted beside those that they replace, and brought on their way."""
        authority, key = self._signer()
        cross = certificates.read(self._cross) if self._cross.exists() else None
        listed, made = members.read(self._listed), []
        for k, one in enumerate(listed):
            if one.who.name in names and not one.removed:
                new = certificates.issue(authority, key, one.who, keys.from_public(one.public))
                both = (*one.certificates[-1:], certificates.fingerprint(new))
                listed[k] = replace(one, certificates=both, ends=new.not_valid_after_utc.isoformat())
                made.append((one.who, new))
        members.write(self._listed, listed)
        for who, new in made:
            if who in self._own:
                certificates.write(self._own[who].certificate, new, cross)
            else:
                told = map(certificates.text, (new, authority, cross))
                letters.write(self._welcome(who.name), Welcome(who.name, self.host, self.port, *told), key)

    def succeed(self) -> CoordinatorFolder:
        """Another authority, for which the one of now vouches; ``renew`` gives certificates of it. Again: the same."""
        with party.changing(self.folder):
            if self._cross.exists():
                return self
            old, old_key, key = *self._signer(), keys.new()
            new = certificates.found(self.federation, key)
            renewed = replace(self, fingerprint=certificates.fingerprint(new))
            renewed._rule(new, key)
            certificates.write(renewed._cross, certificates.vouch(old, old_key, new))
            renewed.write()  # from now on it is the authority
        return renewed

    def finish_succession(self) -> None:
        """Trust the new authority only; certificates that were replaced are refused from now on."""
        if not self._cross.exists():
            raise OptionError(f"{self.label}: no change of authority is under way.")
        with party.changing(self.folder):
            for kit in self._own.values():
                certificates.write(kit.authority, certificates.read(self._authority(".pem")))
            listed = members.read(self._listed)
            members.write(self._listed, [replace(one, certificates=one.certificates[-1:]) for one in listed])
            self._cross.unlink()
            for left in (self.folder / "authority").iterdir():
                if not left.name.startswith(self._authority("").name):
                    left.unlink()

    def _authority(self, ending: str) -> Path:
        """A file of the authority that ``party.json`` names by its fingerprint."""
        return self.folder / "authority" / (self.fingerprint[-11:].replace(":", "") + ending)

    @property
    def _cross(self) -> Path:
        """What the old authority vouches for this one with; there until the change is over."""
        return self._authority(".cross.pem")

    def _signer(self) -> tuple[Certificate, RSAPrivateKey]:
        return certificates.read(self._authority(".pem")), keys.load(self._authority(".key"))

    def _rule(self, authority: Certificate, key: RSAPrivateKey) -> None:
        keys.keep(key, self._authority(".key"))
        certificates.write(self._authority(".pem"), authority)

    # ---- running jobs

    def session(self, job: Job) -> CoordinatorSession:
        """The session of one job, where it stopped."""
        return party.handed_over(lambda: CoordinatorSession(self.folder / "sessions" / job.id, job))

    def audit(self) -> Audit:
        """The log of what was asked."""
        return Audit(self.folder / audit.FILE)

    def service(self, job: Job, audit: Audit, carry: Carry | None = None) -> QuestionService:
        """What answers in a standing job; ``carry`` takes a trial to a plant."""
        found, server = saved_server(self.folder, str(job.options["of"]))
        if questions_about(found).to_text() != job.to_text():
            raise StorageError(
                f"federation: {job.label} asks about another fit than the {found.label} that is kept here"
            )
        return QuestionService(self.folder, job, server, audit, GRACE, self.questions_per_minute, carry)

    # ---- jobs

    def job(self, job_id: str) -> Job | None:
        """A job that was started here, to the letter; None if there is none of that name."""
        path = self.folder / "jobs" / f"{job_id}.json"
        if not path.exists():
            return None
        found = read_json(path, _JOB)
        try:
            return Job.from_json(found)
        except CounterflowError as error:  # as of another version of Counterflow
            raise StorageError(f"{path}: cannot be read ({error}).") from error

    def jobs(self) -> list[Job]:
        """All jobs that were started here, the oldest first."""
        found = [self.job(path.stem) for path in (self.folder / "jobs").glob("*.json")]
        return sorted((job for job in found if job is not None), key=lambda job: job.order)

    def keep(self, job: Job) -> None:
        """Remember a job before it is submitted: to go on, it must be the same to the letter."""
        write_json(self.folder / "jobs" / f"{job.id}.json", _JOB, job.to_json())

    def new_job(
        self, job_id: str = "", method: str = "sufficient", units: Sequence[str] = (), begins: str | None = None,
        **settings: Any,
    ) -> Job:  # fmt: skip
        """A job of the plants that are members now (``units``: of these, in this order), from their cards.

        ``settings``: options, seed, privacy and from_logs of ``Job``. A private job that does not say what is released
        asks for moments if every plant's card lets others be shown signals of its inputs, for rows otherwise.
        """
        known = {unit: plant.card for unit, plant in self.plants().items()}
        if not known:
            raise OptionError(f"{self.label}: no plant is approved yet; send them the line that 'init' has printed.")
        chosen = list(units) or sorted(known)
        for unit in chosen:
            if unit not in known:
                raise OptionError(f"--units: {unit!r:.80} is not a member; there are {', '.join(sorted(known))}.")
        if len(set(chosen)) < len(chosen):
            raise OptionError(f"--units: a unit is named twice in {', '.join(chosen)}.")
        cards = {unit: known[unit] for unit in chosen}
        steps = {card.dt for card in cards.values()}
        if len(steps) > 1:
            told = ", ".join(f"{unit} {card.dt:g} s" for unit, card in cards.items())
            raise OptionError(
                f"{self.label}: the plants' rows are not equally far apart: {told}. Choose some by --units."
            )
        if begins is None:
            begins = self._common_beginning({unit: card.begins for unit, card in cards.items()})
        privacy = settings.get("privacy")
        if privacy is not None and privacy.release is None and all(card.inputs_shown for card in cards.values()):
            settings |= {"privacy": replace(privacy, release="moments")}
        jobs = self.jobs()
        taken = {job.id for job in jobs}
        job_id = job_id or next(f"fit-{k}" for k in range(1, len(taken) + 2) if f"fit-{k}" not in taken)
        inputs = {unit: card.inputs for unit, card in cards.items()}
        job = Job(job_id, method, inputs, dt=steps.pop(), begins=begins, **settings)
        if jobs and job.order <= (last := jobs[-1].order):  # a clock that was set back
            job = replace(job, created=(last[0] + timedelta(microseconds=1)).isoformat(timespec="microseconds"))
        return job

    def _common_beginning(self, told: Mapping[str, str]) -> str:
        """When the plants' logs begin, as they said when they joined; "" if one of them does not know."""
        if len({begins for begins in told.values() if begins}) > 1:
            listed = ", ".join(f"{unit} {begins}" for unit, begins in told.items() if begins)
            raise OptionError(
                f"{self.label}: the plants' logs begin at different times: {listed}. Row k must be of the same moment "
                "everywhere: let them bring logs of one period, and give its beginning by --begins, or use --units."
            )
        return next(iter(told.values())) if all(told.values()) else ""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
