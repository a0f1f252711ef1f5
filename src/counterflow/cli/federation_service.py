"""``counterflow federation start``, ``stop`` and ``status``: a party that runs, and how it stands."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from counterflow.cli import options, output
from counterflow.cli.federation_members import policy_line
from counterflow.cli.output import Line, Part, Told, answering, facts, listed, noted, picked
from counterflow.errors import StorageError
from counterflow.federation import job_gate, verify
from counterflow.federation.audit import FILE, Audit
from counterflow.federation.engine import engine
from counterflow.federation.sites import certificates, members, party
from counterflow.federation.sites.coordinator_folder import CoordinatorFolder
from counterflow.federation.sites.plant_folder import PlantFolder
from counterflow.federation.sites.supervisor import WRITABLE, Folder, Keeper, Rule, Supervisor, opened
from counterflow.files import appending, blaming
from counterflow.printable import shown
from counterflow.privacy import Ledger

STOPPING = 30.0  # seconds for a supervisor to end its site


def start(
    folder: options.Folder,
    detach: Annotated[bool, Option("--detach", help="In the background; returns when it is up.")] = False,
    welcome: Annotated[
        Path | None,
        Option(metavar="FILE", help="Plant: first take the coordinator's answer, as 'join --welcome' does."),
    ] = None,
    patience: Annotated[float, Option(min=1, help="With --detach: seconds to wait for a connection.")] = 60.0,
    questions_per_minute: Annotated[
        int | None, Option(min=1, help="Coordinator: as many of each member are answered from now on (600).")
    ] = None,
    keep_days: Annotated[float, Option(min=0, help="Of FLARE's traces of ended runs.")] = Rule.days,
    log_size: Annotated[float, Option(min=0.01, help="Megabytes of a log before it begins anew.")] = Rule.megabytes,
) -> None:
    """Run a party until it is stopped: its site is started again if it dies, and ended with this command.

    Coordinator and plants may be started in any order. As a service: the .service file in the folder.

    Example: counterflow federation start boiler-site --welcome boiler.welcome --detach
    """
    if welcome is not None:
        PlantFolder.open(folder).welcome(welcome)
    if questions_per_minute is not None:
        replace(CoordinatorFolder.open(folder), questions_per_minute=questions_per_minute).write()
    site = opened(folder)
    if detach:
        _detach(site, patience, ["--keep-days", str(keep_days), "--log-size", str(log_size)])
        return

    def say(line: str) -> None:
        when = datetime.now().astimezone().isoformat(timespec="seconds")
        print(shown(f"{when} {site.label}: {line}"), flush=True)

    keeper = Keeper.of(site) if isinstance(site, CoordinatorFolder) else None
    Supervisor(site, say, keeper, Rule(keep_days, log_size)).run()


def _detach(site: Folder, patience: float, more: list[str]) -> None:
    """Supervise in the background; returns when the site is up, or says why it is not."""
    engine().require()
    log = site.folder / party.LOG
    command = [sys.executable, "-P", "-m", "counterflow.cli", "federation", "start", str(site.folder), *more]
    with blaming(site.folder, WRITABLE):
        site.prepare()
        if (process := party.supervisor(site.folder)) is not None:
            raise StorageError(f"{str(site.folder)!r} runs already (process {process}).")
        (site.folder / members.PRESENCE).unlink(missing_ok=True)
        stream = appending(log)
    with stream:
        began = stream.tell()
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True, cwd=site.folder
        )
    runs = f"{site.label} runs (process {child.pid}, {log})"
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if child.poll() is not None:
            said = log.read_bytes()[began:].decode("utf-8", "replace").strip().splitlines() or [f"see {log}"]
            raise StorageError(f"{site.label} did not start: {said[-1].removeprefix('counterflow: ')}")
        if site.is_up():
            output.show(f"{site.label} is up (process {child.pid}, {log})")
            return
        if party.supervisor(site.folder) == child.pid and (why := site.waits_for()):
            output.show(f"{runs}; the coordinator's server is not there yet ({why}), it connects as soon as it is")
            return
        time.sleep(0.1)
    output.show(f"{runs}, but is not connected yet; it keeps trying: see {site.folder / party.SITE_LOG}")


def stop(folder: options.Folder) -> None:
    """End a party's processes; nothing is lost, unfinished jobs go on after the next start.

    Example: counterflow federation stop boiler-site
    """
    site = opened(folder)
    was = party.end_supervisor(site.folder, STOPPING)
    left = engine().stop(site.kit.folder)
    output.show(f"{site.label} {'is stopped' if was or left else 'was not running'}")


# ---- status


@answering()
def status(folder: options.Folder) -> Told:
    """How does it stand? Coordinator: plants and jobs. Plant: connection, policy, budget, and what has left.

    Example: counterflow federation status boiler-site
    """
    site = opened(folder)
    process = party.supervisor(site.folder)
    told = {
        "role": site.ROLE, **picked(site, "folder federation fingerprint"), "running": process is not None,
        "process": process, "certificates": certificates.lasting(site.certificates()),
    }  # fmt: skip
    presence = members.presence(site.folder) if process is not None else {}
    told |= of_coordinator(site, presence) if isinstance(site, CoordinatorFolder) else of_plant(site, presence)
    return Told(told, _shown(told, site.label))


def of_coordinator(site: CoordinatorFolder, presence: dict[str, Any]) -> dict[str, Any]:
    """What the folder of a coordinator tells besides."""
    connected = presence.get("plants", [])
    plants = [
        {
            "unit": unit, "organisation": plant.card.organisation, "inputs": [each.name for each in plant.card.inputs],
            "dt": plant.card.dt, **picked(plant, "key approved"), "connected": unit in connected,
        }
        for unit, plant in site.plants().items()
    ]  # fmt: skip
    jobs: dict[str, dict[str, Any]] = {
        job.id: {
            **picked(job, "id method created"), "units": list(job.units), "private": job.privacy is not None,
            "state": "not begun",
        }
        for job in site.jobs()
    }  # fmt: skip
    for path in sorted((site.folder / "states").glob("*.json")):  # of questions: stands as long as the coordinator runs
        jobs.setdefault(path.stem, {"id": path.stem, "method": "questions", "units": [], "private": False})
    for name, told in jobs.items():
        told |= party.state(site.folder, name)
        if told.get("state") == "running" and not site.is_alive(str(told.get("run", ""))):
            told["state"] = "not running"  # one whose run was killed cannot say so itself
    removed = [{"unit": plant.card.unit, **picked(plant, "key removed")} for plant in site.removed()]
    return {"address": f"{site.host}:{site.port}", "plants": plants, "removed": removed, "jobs": list(jobs.values())}


def of_plant(site: PlantFolder, presence: dict[str, Any]) -> dict[str, Any]:
    """What the folder of a plant tells besides."""
    own, audit = site.own(), site.folder / FILE
    checked = {"records": 0, "in_order": True, "told": "there is none yet"}
    jobs: list[dict[str, Any]] = []
    if audit.exists():
        found = verify(audit)
        checked = {"records": found.records, "in_order": found.broken is None, "told": str(found)}
        jobs = _jobs(audit) if checked["in_order"] else []
    return {
        **picked(site, "unit key welcomed"), "connected": bool(presence.get("connected")),
        "rows": len(own.y), "model": own.model is not None, "policy": policy_line(site.policy),
        "jobs": jobs, "budget": budget_of(site), "audit": checked,
        "waiting": [{"id": job.id, "sha256": digest} for digest, job in job_gate.waiting(site.folder).items()],
        "books": [caveat.to_view() for caveat in site.differences()] if checked["in_order"] else [],
    }  # fmt: skip


def budget_of(site: PlantFolder) -> dict[str, Any] | None:
    """What the plant's ledger has, and what is left of it; None if it has none."""
    if site.ledger is None or not site.ledger.exists():
        return None
    with Ledger.open(site.ledger, site.unit) as ledger:
        return picked(ledger, "epsilon delta window spent left room")


def _jobs(path: Path) -> list[dict[str, Any]]:
    """Jobs that this plant has taken part in or refused, as its audit log has them."""
    found: dict[str, dict[str, Any]] = {}
    with Audit(path) as audit:
        for record in audit.records():
            job = str(record.get("job", ""))
            told = found.setdefault(job, {"id": job, "messages": 0, "bytes": 0, "refused": 0})
            told["last"] = str(record["time"])
            told["messages"] += record["event"] == "left"
            told["bytes"] += int(record.get("bytes", 0)) if record["event"] == "left" else 0
            told["refused"] += record["event"] == "refused"
    return list(found.values())


_COLUMNS = {  # of the tables of a status, by its role and the name in JSON
    CoordinatorFolder.ROLE: {
        "plants": "unit organisation inputs connected", "removed": "unit removed",
        "jobs": "id method private state exchanges bytes_up bytes_down",
    },
    PlantFolder.ROLE: {"jobs": "id last messages bytes refused"},
}  # fmt: skip


def _shown(told: dict[str, Any], label: str) -> Iterator[Part]:
    process, audit = told["process"], told.get("audit")
    yield Line(f"{label}: {f'runs (process {process})' if process is not None else 'is not running'}", "bold")
    tables, apart = _COLUMNS[told["role"]], ("running", "process", "certificates", "audit", "waiting", "books")
    yield from facts({name: value for name, value in told.items() if name not in (*tables, *apart)})
    if audit is not None:
        yield Line(f"audit: {audit['told']}", "" if audit["in_order"] else "red")
    yield from (listed(name, told[name], *columns.split()) for name, columns in tables.items() if told[name])
    let_run = f"waits for its owner: counterflow federation approve-job {told['folder']}"
    yield from noted([
        *(f"{job['id']}: {job['reason']}" for job in told["jobs"] if job.get("reason")),
        *(f"job {one['id']} {let_run} {one['id']}" for one in told.get("waiting", [])),
        *(one["warning"] for one in told["certificates"] if one["warning"]),
        *(one["text"] for one in told.get("books", [])),
    ])  # fmt: skip
