"""``counterflow federation status``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from counterflow import wording
from counterflow.cli.federation_members import policy_line
from counterflow.cli.options import Folder
from counterflow.cli.output import Line, Part, Told, answering, noted, picked
from counterflow.federation import job_gate, verify
from counterflow.federation.audit import FILE, Audit
from counterflow.federation.sites import certificates, members, party
from counterflow.federation.sites.coordinator_folder import CoordinatorFolder
from counterflow.federation.sites.plant_folder import PlantFolder
from counterflow.federation.sites.supervisor import opened
from counterflow.notebook import Table
from counterflow.privacy import Ledger


@answering()
def status(folder: Folder) -> Told:
    """How does it stand? Coordinator: plants and jobs. Plant: connection, policy, budget, and what has left.

    Example: counterflow federation status boiler-site
    """
    site = opened(folder)
    coordinates = isinstance(site, CoordinatorFolder)
    told = of_coordinator(site) if isinstance(site, CoordinatorFolder) else of_plant(site)

    def parts() -> Iterator[Part]:
        yield from (_coordinator if coordinates else _plant)(told)
        yield from noted([one["warning"] for one in told["certificates"] if one["warning"]])
        yield from noted([one["text"] for one in told.get("books", [])])

    return Told(told, parts())


def of_coordinator(site: CoordinatorFolder) -> dict[str, Any]:
    """What the folder of a coordinator tells."""
    process = party.supervisor(site.folder)
    connected = members.presence(site.folder / members.PRESENCE).get("plants", []) if process is not None else []
    plants = [
        {
            "unit": unit, "organisation": plant.card.organisation, "inputs": [each.name for each in plant.card.inputs],
            "dt": plant.card.dt, **picked(plant, "key approved"), "connected": unit in connected,
        }
        for unit, plant in site.plants().items()
    ]  # fmt: skip
    removed = [{"unit": plant.card.unit, **picked(plant, "key removed")} for plant in site.removed()]
    jobs = []
    for job in site.jobs():
        about = {"units": list(job.units), "private": job.privacy is not None, "created": job.created}
        jobs.append({**picked(job, "id method"), **about, "state": "not begun", **_state(site, job.id)})
    own = {job["id"] for job in jobs}
    for path in sorted((site.folder / "states").glob("*.json")):
        if path.stem not in own:  # nobody has started it: it stands as long as the coordinator runs
            told = {"id": path.stem, "method": "questions", "units": [], "private": False}
            jobs.append({**told, **_state(site, path.stem)})
    return {
        "role": party.COORDINATOR, **picked(site, "folder federation fingerprint"),
        "address": f"{site.host}:{site.port}", "running": process is not None, "process": process, "plants": plants,
        "removed": removed, "jobs": jobs, "certificates": certificates.lasting(site.certificates()),
    }  # fmt: skip


def _state(site: CoordinatorFolder, job_id: str) -> dict[str, Any]:
    """How far a job is; one whose run was killed cannot say so itself."""
    state = site.site.state(job_id)
    if state.get("state") == "running" and not site.engine_jobs.alive(str(state.get("run", ""))):
        state["state"] = "not running"
    return state


def of_plant(site: PlantFolder) -> dict[str, Any]:
    """What the folder of a plant tells."""
    process = party.supervisor(site.folder)
    connected = process is not None and bool(members.presence(site.folder / members.PRESENCE).get("connected"))
    own, audit = site.site.own(), site.folder / FILE
    told = _audit(audit)
    return {
        "role": party.PLANT, **picked(site, "folder federation fingerprint unit key"),
        "welcomed": site.kit is not None, "running": process is not None, "process": process, "connected": connected,
        "rows": len(own.y), "model": own.model is not None, "policy": policy_line(site.policy),
        "jobs": _jobs(audit), "budget": budget_of(site), "audit": told,
        "waiting": [{"id": job.id, "sha256": digest} for digest, job in job_gate.waiting(site.folder).items()],
        "certificates": certificates.lasting(site.certificates()),
        "books": [caveat.to_view() for caveat in site.differences()] if told["in_order"] else [],
    }  # fmt: skip


def budget_of(site: PlantFolder) -> dict[str, Any] | None:
    """What the plant's ledger has, and what is left of it; None if it has none."""
    if site.ledger is None or not site.ledger.exists():
        return None
    with Ledger.open(site.ledger, site.unit) as ledger:
        return picked(ledger, "epsilon delta window spent left room")


def _audit(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {"records": 0, "in_order": True, "told": "there is none yet"}
    checked = verify(path)
    return {"records": checked.records, "in_order": checked.broken is None, "told": str(checked)}


def _jobs(path: Path) -> list[dict[str, Any]]:
    """Jobs that this plant has taken part in or refused, as its audit log has them."""
    found: dict[str, dict[str, Any]] = {}
    if not path.exists() or verify(path).broken is not None:
        return []
    with Audit(path) as audit:
        for record in audit.records():
            job = str(record.get("job", ""))
            told = found.setdefault(job, {"id": job, "messages": 0, "bytes": 0, "refused": 0, "last": ""})
            told["last"] = str(record["time"])
            if record["event"] == "left":
                told["messages"] += 1
                told["bytes"] += int(record.get("bytes", 0))
            elif record["event"] == "refused":
                told["refused"] += 1
    return list(found.values())


def _coordinator(told: dict[str, Any]) -> Iterator[Part]:
    running = f"runs (process {told['process']})" if told["running"] else "is not running"
    yield Line(f"Coordinator of {told['federation']} at {told['address']} {running}", "bold")
    yield f"fingerprint: {told['fingerprint']}"
    rows = [
        [one["unit"], one["organisation"], ", ".join(one["inputs"]), f"{'' if one['connected'] else 'not '}connected"]
        for one in told["plants"]
    ]
    rows += [[one["unit"], "", "", f"removed {one['removed'][:16]}"] for one in told["removed"]]
    yield Table("plants", ["unit", "organisation", "inputs", "state"], rows, left=4)
    if not told["jobs"]:
        return
    rows = []
    for job in told["jobs"]:
        method = job["method"] + (", private" if job["private"] else "")
        moved = [str(job.get("exchanges", "")), _size(job.get("bytes_up")), _size(job.get("bytes_down"))]
        rows.append([job["id"], method, job["state"], *moved])
    yield Table("jobs", ["job", "method", "state", "exchanges", "up", "down"], rows, left=3)
    yield from noted([f"{job['id']}: {job['reason']}" for job in told["jobs"] if job.get("reason")])


def _plant(told: dict[str, Any]) -> Iterator[Part]:
    state = "waits for its welcome" if not told["welcomed"] else "is not running"
    if told["running"]:
        state = f"runs (process {told['process']}) and is {'' if told['connected'] else 'not '}connected"
    yield Line(f"Plant {told['unit']} of {told['federation']} {state}", "bold")
    yield f"key: {told['key']}"
    yield f"log: {told['rows']} rows, {'with' if told['model'] else 'without'} a local model"
    yield f"policy: {told['policy']}"
    if told["budget"] is not None:
        yield budget_line(told["budget"])
    yield Line(f"audit: {told['audit']['told']}", "" if told["audit"]["in_order"] else "red")
    rows = []
    for job in told["jobs"]:
        moved = [str(job["messages"]), _size(job["bytes"]), str(job["refused"])]
        rows.append([job["id"], job["last"][:19].replace("T", " "), *moved])
    if rows:
        yield Table("jobs", ["job", "last (UTC)", "messages", "bytes", "refused"], rows, left=2)
    let_run = f"waits for its owner: counterflow federation approve-job {told['folder']}"
    yield from noted([f"job {one['id']} {let_run} {one['id']}" for one in told["waiting"]])


def budget_line(budget: dict[str, Any]) -> str:
    """A budget in words."""
    return (
        f"budget: epsilon {wording.number(budget['spent'])} of {wording.exact(budget['epsilon'])} is spent; one "
        f"more release of up to {wording.number(budget['room'])} fits in"
    )


def _size(count: object) -> str:
    if not isinstance(count, (int, float)):
        return ""
    return f"{count:,.0f} B" if count < 10_000 else f"{count / 1000:,.0f} kB"
