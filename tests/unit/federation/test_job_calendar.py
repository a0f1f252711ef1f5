"""When the rows of a fit between machines were: the job says it in UTC, and a plant reads it in its own zone."""

from __future__ import annotations

from pathlib import Path

import pytest

import counterflow as cf
from counterflow.cli.federation_members import read_log
from counterflow.federation.job import Job
from counterflow.federation.parts import calendar_of
from counterflow.federation.sites.plant_folder import PlantFolder


def job(begins: str) -> Job:
    return Job("fit-1", "sufficient", {"boiler": ["fuel"]}, dt=60.0, begins=begins)


def test_the_jobs_beginning_is_a_calendar() -> None:
    found = calendar_of(job("2024-11-01 13:00:00Z"), "Europe/Berlin")
    assert found is not None
    assert found.shown(60) == "2024-11-01 15:00 CET"
    local = calendar_of(job("2024-11-01 13:00:00"), "Europe/Berlin")
    assert local is not None
    assert (local.zone, local.shown(0)) == ("", "2024-11-01 13:00")
    assert calendar_of(job("")) is None
    assert calendar_of(job("the first shift of May")) is None


@pytest.mark.parametrize("ending", ["safetensors", "toml"])
def test_a_plant_keeps_the_calendar_of_its_log(tmp_path: Path, ending: str) -> None:
    (tmp_path / "boiler.csv").write_text(
        "time,fuel,level\n" + "".join(f"2024-11-01 14:0{k},{k % 2},{k}.5\n" for k in range(9))
    )
    path = tmp_path / f"boiler.{ending}"
    if ending == "toml":
        path.write_text(
            '[data]\ntimezone = "Europe/Berlin"\n[units.boiler]\nlog = "boiler.csv"\n'
            'inputs = ["fuel"]\noutputs = ["level"]\n'
        )
    else:
        units = {"boiler": {"tags": ["fuel", "level"], "inputs": "fuel"}}
        cf.read_logs(tmp_path / "boiler.csv", units, timezone="Europe/Berlin")[0].save(path)
    recording, _, begins = read_log(path)
    assert begins == "2024-11-01 13:00:00Z"
    site = PlantFolder(tmp_path / "site", "waterworks", "SHA256:", "owner", "", 0, "boiler")
    site.put(recording, None, 'unit = "boiler"\n', begins)
    kept = cf.Recording.load(tmp_path / "site" / "log.safetensors")
    assert kept.calendar == recording.calendar
    assert kept.calendar is not None
    assert kept.calendar.zone == "Europe/Berlin"
    assert site.own().begins == begins
