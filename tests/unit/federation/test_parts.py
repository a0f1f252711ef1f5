"""What is left of finished jobs: which one is the latest, and what answers call it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import counterflow as cf
from counterflow.errors import CounterflowError
from counterflow.federation.job import Job
from counterflow.federation.parts import FOLDER, JOB_FILE, UNIT_FILE, finished_fits, provenance_of
from counterflow.fits.content import SERVER_FILE
from counterflow.questions.question import envelope
from counterflow.sealed_file import write_json

INPUTS = {"boiler": ["fuel"], "turbine": []}


def _finished(home: Path, job: Job, changed: int) -> None:
    folder = home / FOLDER / job.id
    folder.mkdir(parents=True)
    write_json(folder / JOB_FILE, "job of a fit", job.to_json())
    for name in (SERVER_FILE, UNIT_FILE):
        (folder / name).write_text("")
        os.utime(folder / name, (changed, changed))


@pytest.mark.parametrize("file", [SERVER_FILE, UNIT_FILE])
def test_the_latest_fit_is_the_one_that_was_started_last_whatever_files_times_say(tmp_path: Path, file: str) -> None:
    """A backup that is put back, a copy or a job that is followed once more gives old fits new times."""
    times = ("2026-03-01T10:00:00+01:00", "2026-03-01T09:30:00+00:00", "2026-03-01T09:30:00.000001+00:00")
    for k, created in enumerate(times):
        _finished(tmp_path, Job(f"fit-{11 - k}", "sufficient", INPUTS, created=created), changed=1000 - k)
    assert finished_fits(tmp_path, file) == ["fit-11", "fit-10", "fit-9"]
    (tmp_path / FOLDER / "fit-10" / JOB_FILE).write_text("{}")
    with pytest.raises(CounterflowError):
        finished_fits(tmp_path, file)  # which one is the latest is not guessed


def test_answers_name_their_fit() -> None:
    job = Job("fit-7", "sufficient", INPUTS, created="2026-03-01T10:00:00+01:00")
    assert str(provenance_of(job)) == "fit fit-7 of 2026-03-01 09:00 UTC"
    plant = cf.random_plant(units=["boiler", "turbine"], rng=1)
    recording = plant.simulate(200, rng=2)
    one, same, other = (cf.fit(recording, plant.locals(), tol=tol) for tol in (1e-6, 1e-6, 1e-5))
    assert one.provenance.id == same.provenance.id != other.provenance.id
    told = envelope("whatif", one, "", ())
    assert told["fit"] == {"id": one.provenance.id, "fitted": one.provenance.fitted}
    json.dumps(told)
    longer = one.update(plant.simulate(50, rng=3))
    assert longer.provenance.id != one.provenance.id
