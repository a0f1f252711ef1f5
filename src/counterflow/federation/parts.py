"""What is left when a job is over, as files: the server's part at the coordinator, each unit's own part at its plant.

::

    home/fits/<job>/job.json              the job
    home/fits/<job>/server.safetensors    at the coordinator: what answers questions
    home/fits/<job>/unit.safetensors      at a plant: what asks them
    home/fits/<job>/log.json              at a plant: rows of its log at the fit, and their digest

They are files of ``counterflow.load_server`` and ``counterflow.load_unit``. Both refer to the job by its digest, so
that no unit reads another fit's states as its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from counterflow import sealed_file
from counterflow._version import __version__
from counterflow.errors import CounterflowError, DataError, OptionError, StorageError
from counterflow.exchange.method import ServerState, UnitState
from counterflow.exchange.outcome import Provenance, RoundRecord, Status
from counterflow.exchange.part import UnitPart
from counterflow.exchange.task import UnitData
from counterflow.federation.job import QUESTIONS, Job
from counterflow.files import write_whole
from counterflow.fits import complete
from counterflow.fits.content import SERVER_FILE, Record, UnitContent
from counterflow.fits.engine import Traffic
from counterflow.fits.history import Recorder
from counterflow.fits.storage import load_server, load_unit, server_bytes, unit_bytes
from counterflow.plant.calendar import Calendar
from counterflow.questions.answering import Server

FOLDER = "fits"
JOB_FILE = "job.json"
UNIT_FILE = "unit.safetensors"
LOG_FILE = "log.json"
_LOG, _JOB = "log of a fit", "job of a fit"


@dataclass(frozen=True)
class CoordinatorResult:
    """What the coordinator holds when a job is over; ``records`` are the rounds of an iterative method."""

    job: Job
    state: ServerState
    records: tuple[RoundRecord, ...]
    traffic: Traffic

    @cached_property
    def completed(self) -> tuple[Server, Status]:
        """The server's part of the fit, and how it ended."""
        return complete.server_part(self.job, self.state, self.job.digest)

    @property
    def server(self) -> Server:
        return self.completed[0]

    @property
    def status(self) -> Status:
        return self.completed[1]


def questions_about(job: Job) -> Job:
    """The job in which units ask what a finished one has found.

    Examples
    --------
    >>> fit = Job("fit-1", "sufficient", {"boiler": ["fuel"], "turbine": []})
    >>> asking = questions_about(fit)
    >>> asking.method, asking.options["of"], asking.units
    ('questions', 'fit-1', ('boiler', 'turbine'))
    """
    return Job(f"{job.id[:54]}.questions", QUESTIONS, job.inputs, {"of": job.id}, dt=job.dt, created=job.created)


def calendar_of(job: Job, zone: str = "") -> Calendar | None:
    """When the rows of a job's logs were, as far as the job tells; ``zone``: in which its reader wants to see them."""
    if not job.begins:
        return None
    try:
        found = Calendar.starting(job.begins, job.dt)
    except CounterflowError:  # another way to write times, on which the parties have agreed
        return None
    return replace(found, zone=zone) if found.zone and zone else found


# ---- at the coordinator


def save_server(home: Path, result: CoordinatorResult) -> Path:
    """Keep the server's part; the folder of the fit. What was kept before of the same job is replaced."""
    job = result.job
    server, status = result.completed
    recorder = Recorder(job.units)
    recorder.records = list(result.records)
    recorder.losses = {unit: [0.0] * len(result.records) for unit in job.units}  # theirs, and not known here
    record = Record(
        job.dt, job.units, recorder.history(dict.fromkeys(job.units, 0.0)), result.traffic, status, provenance_of(job),
        apart=job.privacy is not None, calendar=calendar_of(job),
    )  # fmt: skip
    return _kept(home, job, SERVER_FILE, server_bytes(server, record))


def saved_server(home: Path, fit: str) -> tuple[Job, Server]:
    """The server's part of a finished job, and the job."""
    folder = home / FOLDER / fit
    job, server = _job(folder, fit), load_server(folder)
    if server.link != job.digest:
        raise StorageError(f"federation: {folder} holds a part of another job than {fit!r}; run the job again")
    return job, server


def finished_fits(home: Path, file: str = SERVER_FILE) -> list[str]:
    """Jobs whose part is kept here, the oldest first: by when they were started, which stands in each job's text.

    All parties read the same text, whatever has since happened to their files' times.
    """
    places = [place.parent for place in (home / FOLDER).glob(f"*/{file}") if (place.parent / JOB_FILE).is_file()]
    found = [_job(place, place.name) for place in places]
    return [job.id for job in sorted(found, key=lambda job: job.order)]


def provenance_of(job: Job) -> Provenance:
    """Where what a job has found comes from."""
    return Provenance(__version__, job.seed, job.digest, job.method, job.id, job.created)


# ---- at a plant


def save_unit(home: Path, job: Job, own: UnitData, state: UnitState, losses: dict[int, float]) -> Path:
    """Keep a unit's part; the folder of the fit."""
    part = complete.unit_part(job, own, state, job.digest)
    rounds = [losses[round] for round in sorted(losses)]
    content = UnitContent(part, {}, np.array(rounds), np.full(len(rounds), state.proprietary_loss))
    return _kept(home, job, UNIT_FILE, unit_bytes(content), {"rows": len(own.y), "digest": own.digest})


@dataclass(frozen=True)
class SavedUnit:
    """A unit's part of a finished job, and how many rows its log had."""

    job: Job
    part: UnitPart
    rows: int
    digest: str
    latest: bool = True  # no later fit is finished here

    def is_of(self, own: UnitData) -> bool:
        """Whether the log is the one that the fit rests on."""
        return len(own.y) == self.rows and own.digest == self.digest

    def require_log(self, own: UnitData) -> None:
        """DataError unless the log is the one that the fit rests on."""
        if not self.is_of(own):
            raise DataError(
                f"unit {own.unit.name!r}: its log has changed since {self.job.label}, so that the coordinator's rows "
                "are others: ask about the past after the next fit, or ask what a change would do from now on"
            )


def saved_unit(home: Path, unit: str, fit: str | None = None) -> SavedUnit:
    """A unit's part of a finished job; the latest, if none is named."""
    known = finished_fits(home, UNIT_FILE)
    if not known:
        raise StorageError(
            f"unit {unit!r} has taken part in no finished fit: ask when the coordinator has run one ({home})"
        )
    chosen = known[-1] if fit is None else fit
    if chosen not in known:
        raise OptionError(f"unit {unit!r}: there is no finished fit {chosen!r:.80}; there are {', '.join(known)}")
    folder = home / FOLDER / chosen
    job, part = _job(folder, chosen), load_unit(folder / UNIT_FILE)
    if part.link != job.digest or part.unit.name != unit:
        raise StorageError(f"unit {unit!r}: {folder} holds a part of another job or unit; run the job again")
    read = sealed_file.read_json(folder / LOG_FILE, _LOG)
    return SavedUnit(job, part, read["rows"], read["digest"], chosen == known[-1])


# ---- files


def _job(folder: Path, fit: str) -> Job:
    try:
        job = Job.from_json(sealed_file.read_json(folder / JOB_FILE, _JOB))
    except CounterflowError as error:
        raise StorageError(f"federation: {folder / JOB_FILE} cannot be read: {error}; run the job again") from error
    if job.id != fit:
        raise StorageError(f"federation: {folder / JOB_FILE} is of job {job.id!r}, and should be of {fit!r}")
    return job


def _kept(home: Path, job: Job, name: str, content: bytes, log: object = None) -> Path:
    """All files, each whole or not there; the part comes last, and with it the fit is there."""
    folder = home / FOLDER / job.id
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    sealed_file.write_json(folder / JOB_FILE, _JOB, job.to_json())
    if log is not None:
        sealed_file.write_json(folder / LOG_FILE, _LOG, log)
    write_whole(folder / name, content, durable=True)
    return folder
