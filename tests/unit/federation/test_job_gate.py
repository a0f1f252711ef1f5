"""Which jobs a plant looks at: so many an hour, and those that its owner has approved, to the letter."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import counterflow as cf
from counterflow.cli import app
from counterflow.errors import CounterflowError
from counterflow.federation import Audit, Job
from counterflow.federation import job_gate as gate
from counterflow.federation.job import QUESTIONS
from counterflow.federation.refusal import Refusal
from counterflow.federation.sites.plant_folder import PlantFolder
from counterflow.privacy import Ledger, ledger_path

PLANT = cf.random_plant(units=["boiler"], rng=1)
RECORDING = PLANT.simulate(40, rng=2)
INPUTS = {unit.name: unit.inputs for unit in RECORDING.units}
CREATED = "2026-01-01T00:00:00+00:00"
POLICY = """unit = "boiler"
[leave]
jobs_per_hour = 2
[privacy]
approval = "each"
ledger = "budgets"
"""


def job(name: str, epsilon: float = 1.0) -> Job:
    return Job(name, "sufficient", INPUTS, privacy=cf.Privacy(epsilon, 1e-6), created=CREATED)


@pytest.fixture
def site(tmp_path: Path) -> PlantFolder:
    """A plant's folder, as far as jobs are concerned."""
    made = PlantFolder(tmp_path / "boiler-site", "waterworks", "SHA256:", "owner", "", 0, "boiler")
    made.put(RECORDING, PLANT.local("boiler"), POLICY)
    made.write()
    Ledger.create(ledger_path(made.folder / "budgets", "boiler"), "boiler", 3.0, 1e-6).close()
    return made


def refused(site: PlantFolder, wanted: Job) -> CounterflowError | None:
    with site.audit() as audit:
        try:
            site.guard(wanted, audit, site.own())
        except CounterflowError as error:
            return error
    return None


def code(site: PlantFolder, wanted: Job) -> str:
    error = refused(site, wanted)
    return "" if error is None else error.code


def events(site: PlantFolder) -> list[str]:
    with site.audit() as audit:
        return [str(record["event"]) for record in audit.records()]


def test_a_job_waits_for_its_owner_and_no_other_takes_its_place(site: PlantFolder) -> None:
    first = job("fit-1")
    assert code(site, first) == "privacy.approval"
    lines = site.policy.lines
    error = refused(site, first)
    assert error is not None
    told = Refusal.of(error, lines)
    assert told is not None
    assert (told.code, told.line) == ("privacy.approval", 5)
    assert next(iter(gate.waiting(site.folder).values())).to_text() == first.to_text()

    command = ["federation", "approve-job", str(site.folder), "fit-1"]
    asked = CliRunner().invoke(app, command)
    assert asked.exit_code == 2, "without a terminal nobody can say yes"
    assert code(site, first) == "privacy.approval"
    done = CliRunner().invoke(app, [*command, "--yes"])
    assert done.exit_code == 0, done.output
    for words in (gate.digest_of(first), "rows: 41", "privacy: epsilon 1, delta 1e-06", "budget: epsilon 3, "):
        assert words in done.output
    assert not gate.waiting(site.folder)
    assert code(site, first) == ""
    assert code(site, first) == "", "it may be started again"
    assert events(site).count(gate.APPROVED) == 1

    dearer = job("fit-1", epsilon=0.9)  # the same name, to be had cheaper: not what was approved
    assert code(site, dearer) == "privacy.approval"
    assert CliRunner().invoke(app, ["federation", "approve-job", str(site.folder), "fit-2", "--yes"]).exit_code == 2


def test_two_jobs_of_one_name_are_told_apart(site: PlantFolder) -> None:
    one, other = job("fit-1"), job("fit-1", epsilon=0.9)
    for each in (one, other):
        assert code(site, each) == "privacy.approval"
    with pytest.raises(cf.OptionError, match="2 jobs"):
        gate.chosen(site.folder, "fit-1")
    assert gate.chosen(site.folder, gate.digest_of(other)[:12]).to_text() == other.to_text()


def test_an_hour_takes_so_many_jobs(site: PlantFolder) -> None:
    (site.folder / "policy.toml").write_text(POLICY.replace('approval = "each"\n', ""))
    for name in ("fit-1", "fit-2", "fit-1"):  # the same again is none more
        assert code(site, job(name)) == ""
    before = events(site)
    for name in ("fit-3", "fit-4", "fit-5"):
        error = refused(site, job(name))
        assert error is not None
        assert error.code == "leave.jobs_per_hour"
        told = Refusal.of(error, {})
        assert told is not None
        assert 3500 < told.seconds <= 3601
    assert events(site) == [*before, "refused"], "refusals do not fill the disk"
    assert code(site, job("fit-2")) == ""
    with Audit(site.folder / "site.db") as audit:
        late = time.time() + 3601
        gate.count(job("fit-9"), site.policy, audit, clock=lambda: late)
        for k in range(5):  # questions are no jobs that release anything
            asking = Job(f"q{k}", QUESTIONS, INPUTS, options={"of": "fit-1"})
            gate.count(asking, replace(site.policy, jobs_per_hour=1), audit)


def test_jobs_that_wait_are_bounded(site: PlantFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "MOST_WAITING", 3)
    (site.folder / "policy.toml").write_text(POLICY.replace("= 2", "= 1000"))
    for k in range(6):
        assert code(site, job(f"fit-{k}")) == "privacy.approval"
        for place in (site.folder / gate.WAITING).iterdir():  # older than the next one, whatever the clock's grain
            os.utime(place, (place.stat().st_atime, place.stat().st_mtime - 1))
    assert [one.id for one in gate.waiting(site.folder).values()] == ["fit-3", "fit-4", "fit-5"]
