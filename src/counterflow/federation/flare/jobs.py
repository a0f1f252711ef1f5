"""A fit as a FLARE job: JSON files that name two installed classes, and carry no code; each plant gets its own.

``read_plant`` and ``read_coordinator`` are what a site checks an arriving job with (``gate.JobGate``): the file must be
exactly what ``write`` would have written for the job that it holds. So nothing of FLARE's own language for
configurations (components, filters, handlers, variables) is open to whoever submits.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from counterflow.errors import ProtocolError
from counterflow.federation.engine import DEADLINE
from counterflow.federation.flare.envelope import TASK
from counterflow.federation.flare.kit import CONTROLLER, EXECUTOR

POLL = 2.0  # seconds between a plant's questions for work: there never is any, tasks are pushed; see ``controller``
LARGEST = 1_000_000  # bytes of a configuration
COORDINATOR_FILE = "config_fed_server.json"
PLANT_FILE = "config_fed_client.json"
_COMMON = {
    "format_version": 2,
    "np_download_chunk_size": 0,  # arrays and bytes travel in the message, not in a second conversation
    **{"components": [], "task_data_filters": [], "task_result_filters": []},
}


def write(folder: Path, job_id: str, job: str, parts: Mapping[str, str], deadline: int = DEADLINE) -> Path:
    """Write a job for ``Operator.submit`` into a folder of its own in ``folder``, which is returned.

    ``job`` is the coordinator's, as JSON text that is opaque here; ``parts`` {unit: its own part of it}: all of these
    take part, or the job does not start. ``deadline``: seconds that a plant may take for one answer.
    """
    made = folder / job_id
    plants = {f"plant-{number}": unit for number, unit in enumerate(parts, 1)}
    deployed = {"coordinator": ["server"], **{place: [unit] for place, unit in plants.items()}}
    meta = {"name": job_id, "resource_spec": {}, "deploy_map": deployed, "min_clients": len(parts)}
    meta["mandatory_clients"] = list(parts)
    for place, content in (
        (made / "meta.json", meta),
        (made / "coordinator" / "config" / COORDINATOR_FILE, _coordinator(job, deadline)),
        *((made / place / "config" / PLANT_FILE, _plant(parts[unit])) for place, unit in plants.items()),
    ):
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return made


def read_plant(text: str) -> str:
    """The job in a plant's configuration; ProtocolError if there is anything else in it."""
    return _read(text, "a plant", lambda read: read["executors"][0]["executor"]["args"], _plant)


def read_coordinator(text: str) -> str:
    """The job in the coordinator's configuration; ProtocolError if there is anything else in it."""
    return _read(text, "the coordinator", lambda read: read["workflows"][0]["args"], _coordinator)


def _read(text: str, whose: str, arguments: Callable[[Any], Any], written: Callable[..., Any]) -> str:
    if len(text) > LARGEST:
        raise ProtocolError(f"job: a configuration of {len(text)} characters is over the limit of {LARGEST}")
    try:
        read = json.loads(text)
        given = dict(arguments(read))
        job, deadline = decoded(given["job"]), given.get("deadline", 1)
        wanted = written(**{**given, "job": job})
    except (ValueError, KeyError, IndexError, TypeError, RecursionError) as error:
        raise ProtocolError(f"job: the configuration of {whose} does not hold a job of Counterflow") from error
    if type(deadline) is not int or not 1 <= deadline <= 86_400 or read != wanted:
        raise ProtocolError(f"job: the configuration of {whose} holds more than a job of Counterflow")
    return job


def encoded(job: str) -> str:
    """A job as plain letters: FLARE would look for variables in braces, and for components in nested tables."""
    return base64.b64encode(job.encode()).decode("ascii")


def decoded(letters: object) -> str:
    """The job again; ProtocolError if the letters are none."""
    try:
        return base64.b64decode(letters, validate=True).decode("utf-8")  # type: ignore[arg-type]
    except (ValueError, TypeError) as error:
        raise ProtocolError("job: must be letters of base 64") from error


def _coordinator(job: str, deadline: int) -> dict[str, Any]:
    flow = {"id": "coordinator", "path": CONTROLLER, "args": {"job": encoded(job), "deadline": deadline}}
    return {**_COMMON, "server": {"task_request_interval": POLL}, "workflows": [flow]}


def _plant(job: str) -> dict[str, Any]:
    executor = {"path": EXECUTOR, "args": {"job": encoded(job)}}
    return {**_COMMON, "executors": [{"tasks": [TASK], "executor": executor}]}
