"""The coordinator's folder: the authority, the server's and the operator's keys, the plants and the jobs.

::

    authority/            the key that signs; whoever has it can admit anybody. authority.old/ while authorities change
    server/  operator/    their keys and kits
    approved/             boiler.welcome: goes back to the plant
    plants/boiler.json    card and certificate of every member; boiler.request.zip: what it was signed from
    removed/              the same of those who were removed
    members.json          certificates that the server talks to
    jobs/fit-1.json       what was started here
    sessions/  states/    stores of the jobs, and how far they are
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from counterflow.errors import CounterflowError, OptionError, StorageError
from counterflow.federation.engine import Jobs, engine
from counterflow.federation.job import Job
from counterflow.federation.question_gate import PER_MINUTE
from counterflow.federation.sites import certificates, keys, letters, members, party
from counterflow.federation.sites.certificates import CROSS, Participant
from counterflow.federation.sites.letters import Card, JoinRequest
from counterflow.federation.sites.party import Party
from counterflow.federation.sites.site import CoordinatorSite
from counterflow.files import write_whole
from counterflow.records import describe, restore
from counterflow.sealed_file import blaming, read_json, write_json

_PLANT, _JOB = "plant of a federation", "job of a federation"
_RESERVED = ("server", "relay", "admin")  # what FLARE calls its own


@dataclass(frozen=True)
class Plant:
    """A plant that was approved: its card, the fingerprints of its key and of its certificate, and when."""

    card: Card
    key: str
    certificate: str
    approved: str
    ends: str  # of the certificate
    removed: str = ""

    def write(self, path: Path) -> None:
        """Into a file of the coordinator's own."""
        write_json(path, _PLANT, describe(self)[0])

    @classmethod
    def read(cls, path: Path) -> Plant:
        """From a file of the coordinator's own."""
        found = read_json(path, _PLANT)
        with blaming(path):
            return restore(cls, found, {})


@dataclass(frozen=True)
class CoordinatorFolder(Party):
    """A coordinator; made by ``create`` once and by ``open`` ever after."""

    ROLE = party.COORDINATOR
    host: str
    port: int
    operator: str
    kit: Path  # of the server
    operator_kit: Path
    questions_per_minute: int = PER_MINUTE  # of each member

    @classmethod
    def create(
        cls, folder: Path, name: str, host: str, port: int, organisation: str = "coordinator", operator: str = ""
    ) -> CoordinatorFolder:
        """Found a federation in a new folder: authority, server and operator, with keys of their own."""
        certificates.check_federation(name)
        operator = operator or f"operator@{name.lower().replace('_', '-').replace('.', '-')}.local"
        server, person = Participant(host, "server", organisation), Participant(operator, "operator", organisation)
        folder = folder.absolute()
        with party.new(folder, "found a federation"):
            with keys.workshop(folder) as shop:
                parties = {shop / "server": server, shop / "operator": person}
                fingerprint, kits = engine().establish(shop, name, host, port, parties)
            kit, operator_kit = (folder / kits[who].relative_to(shop) for who in (host, operator))
            made = cls(folder, name, fingerprint, host, port, operator, kit, operator_kit)
            members.write(made._listed, {})
            for who in (host, operator):
                made._list(who, folder / "approved" / f"{who}.signed.zip")
            for place in ("plants", "removed", "jobs"):
                (folder / place).mkdir(mode=0o700)
            party.write_service(folder, f"coordinator-{name}", f"coordinator of {name}")
            made.write()  # last: with it the folder is whole
            made.prepare()
        return made

    @property
    def label(self) -> str:
        return f"coordinator of {self.federation}"

    @property
    def site(self) -> CoordinatorSite:
        """Sessions and states of the jobs."""
        return CoordinatorSite(self.folder)

    @property
    def engine_jobs(self) -> Jobs:
        """Starts, follows and ends the jobs of this coordinator."""
        return engine().jobs(self.kit, self.operator_kit, self.site)

    @property
    def listens(self) -> int | None:
        return self.port

    def prepare(self) -> None:
        engine().prepare(self.kit, self.folder, members=self._listed)

    def is_alive(self, run: str) -> bool:
        return self.engine_jobs.alive(run)

    @property
    def _listed(self) -> Path:
        return self.folder / members.FILE

    def _list(self, name: str, signed: Path) -> bytes:
        """Admit who has a new certificate, beside the one that it replaces; the certificate."""
        listed, certificate = members.read(self._listed), letters.certificate_in(signed, name)
        fingerprint = certificates.fingerprint_of(certificate.decode("ascii"))
        members.write(self._listed, {**listed, name: [*listed.get(name, ())[-1:], fingerprint]})
        return certificate

    # ---- plants

    def plants(self) -> dict[str, Plant]:
        """The members that are plants, by unit."""
        found = [Plant.read(path) for path in sorted((self.folder / "plants").glob("*.json"))]
        return {plant.card.unit: plant for plant in found}

    def removed(self) -> list[Plant]:
        """Those who were removed, the last one last; a unit may stand here several times."""
        found = [Plant.read(path) for path in (self.folder / "removed").glob("*.json")]
        return sorted(found, key=lambda plant: plant.removed)

    def _member(self, unit: str) -> Plant:
        known = self.plants()
        if unit not in known:
            there = ", ".join(sorted(known)) or "none"
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
        """Sign a plant's certificate and make it a member; returns the file that goes back. Again: the same file."""
        with party.changing(self.folder):
            self.check(request)
            unit = request.card.unit
            if unit in self.plants() and self._welcome(unit).exists():
                return self._welcome(unit)
            write_whole(self._request(unit), request.request)
            (signed,) = self._signed([self._request(unit)]).values()
            listed = members.read(self._listed)
            listed.pop(unit, None)  # of an approval that broke off
            members.write(self._listed, listed)
            return self._admitted(Plant(request.card, request.key, "", _now(), ""), signed)

    def _admitted(self, plant: Plant, signed: Path) -> Path:
        """Make a plant a member with the certificate in a signed zip, which becomes its welcome."""
        unit = plant.card.unit
        certificate = self._list(unit, signed)
        fingerprint, ends = certificates.fingerprint_of(certificate.decode("ascii")), certificates.ends(certificate)
        replace(plant, certificate=fingerprint, ends=ends.isoformat()).write(self._file(unit))
        return signed.replace(self._welcome(unit))

    def _file(self, unit: str) -> Path:
        return self.folder / "plants" / f"{unit}.json"

    def _request(self, unit: str) -> Path:
        return self.folder / "plants" / f"{unit}.request.zip"

    def _welcome(self, unit: str) -> Path:
        return self.folder / "approved" / f"{unit}.welcome"

    def _signed(self, requests: Sequence[Path]) -> dict[str, Path]:
        """Certificates for requests, each as a zip that can be sent."""
        for left in (self.folder / "approved").glob("*.signed.zip"):  # their certificates stand in kits, or nowhere
            left.unlink()
        made = engine().approve(self.folder, requests)
        for signed in made.values() if self._cross else ():
            letters.add_cross(signed, self._cross)
        return made

    def remove(self, unit: str) -> Plant:
        """Take a plant off the list of members: from now on its certificate is worth nothing here."""
        with party.changing(self.folder):
            plant = replace(self._member(unit), removed=_now())
            listed = members.read(self._listed)
            members.write(self._listed, {name: prints for name, prints in listed.items() if name != unit})
            tail = plant.certificate[-11:].replace(":", "")
            plant.write(self.folder / "removed" / f"{unit}-{tail}.json")
            self._file(unit).unlink()
            # nor may anybody ask about its inputs any more
            for left in (self._request(unit), self._welcome(unit), self.folder / "terms" / f"{unit}.json"):
                left.unlink(missing_ok=True)
            return plant

    # ---- certificates

    @property
    def key_files(self) -> tuple[Path, ...]:
        return self.kit / "startup" / "server.key", self.operator_kit / "startup" / "client.key"

    def certificates(self) -> dict[str, datetime]:
        founded = self.folder / "authority" / "rootCA.pem"  # may be kept offline
        own = {
            "the authority": founded if founded.exists() else self.kit / "startup" / "rootCA.pem",
            "the server": self.kit / "startup" / "server.crt",
            "the operator": self.operator_kit / "startup" / "client.crt",
        }
        plants = {f"plant {unit}": datetime.fromisoformat(plant.ends) for unit, plant in self.plants().items()}
        return {name: certificates.ends_of(path) for name, path in own.items()} | plants

    def renew(self, units: Sequence[str] = ()) -> dict[str, Path]:
        """New certificates of these plants; of nobody: of all plants, the server and the operator. Keys stay.

        Returns {unit: the welcome to send}. Until a plant has taken it, its certificate of now is as good.
        """
        with party.changing(self.folder):
            plants = {unit: self._member(unit) for unit in units or self.plants()}
            own: dict[str, tuple[str, Path]] = {} if units else {
                self.host: ("server", self.kit / "startup" / "server.crt"),
                self.operator: ("operator", self.operator_kit / "startup" / "client.crt"),
            }  # fmt: skip
            requests = [self.folder / kind / "request" / f"{name}.request.zip" for name, (kind, _) in own.items()]
            signed = self._signed([*map(self._request, plants), *requests])
            for name, (_, file) in own.items():
                write_whole(file, self._list(name, signed[name]) + self._cross, durable=True)
            return {unit: self._admitted(plant, signed[unit]) for unit, plant in plants.items()}

    @property
    def _cross(self) -> bytes:
        """What the old authority vouches for the new one with, while they change."""
        path = self.folder / "authority" / CROSS
        return path.read_bytes() if path.exists() else b""

    def succeed(self) -> CoordinatorFolder:
        """A new authority, for which the one of now vouches; then certificates of it for all. Again: it goes on."""
        place, old, new = (self.folder / f"authority{tail}" for tail in ("", ".old", ".new"))
        with party.changing(self.folder):
            if not place.exists():  # broken off between two names
                (new if (new / CROSS).exists() else old).rename(place)
            if not self._cross:
                shutil.rmtree(new, ignore_errors=True)
                with keys.workshop(self.folder) as shop:
                    if shop != self.folder:
                        shutil.copy(self.folder / "profile.yml", shop / "profile.yml")
                    engine().found_again(shop, new.name)
                write_whole(new / CROSS, certificates.vouch(place, new), durable=True)
                shutil.rmtree(old, ignore_errors=True)
                place.rename(old)
                new.rename(place)
            renewed = replace(self, fingerprint=certificates.fingerprint(place / "rootCA.pem"))
            renewed.write()
        renewed.renew()
        return renewed

    def finish_succession(self) -> None:
        """Trust the new authority only; certificates that were replaced are refused from now on."""
        if not self._cross:
            raise OptionError(f"{self.label}: no change of authority is under way.")
        with party.changing(self.folder):
            root = (self.folder / "authority" / "rootCA.pem").read_bytes()
            for kit in (self.kit, self.operator_kit):
                write_whole(kit / "startup" / "rootCA.pem", root, durable=True)
            members.write(self._listed, {name: prints[-1:] for name, prints in members.read(self._listed).items()})
            (self.folder / "authority" / CROSS).unlink()
            shutil.rmtree(self.folder / "authority.old", ignore_errors=True)

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
