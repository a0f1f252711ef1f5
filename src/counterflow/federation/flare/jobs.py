"""A fit in FLARE: a job of JSON files that name two installed classes, and carry no code; each plant gets its own.

``read_plant`` and ``read_coordinator`` are what a site checks an arriving job with (``gate.JobGate``): the file must be
exactly what ``write`` would have written for the job that it holds. So nothing of FLARE's own language for
configurations (components, filters, handlers, variables) is open to whoever submits.

What the two classes say to each other travels in envelopes: one list of (sequence, data) in a ``Shareable``, and not
one key more. Down: the messages to a unit that it has not acknowledged. Up: its replies. Both ways a reader takes
exactly this form and refuses the rest; what the bytes say is for the sessions to judge.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from counterflow.errors import ProtocolError
from counterflow.federation.engine import DEADLINE
from counterflow.federation.flare.kit import CONTROLLER, EXECUTOR

TASK = "exchange"
FORM = 1  # of envelopes
LARGEST_ENVELOPE = 1 << 30  # bytes
MOST = 1000  # messages in one envelope
HEADERS = "__headers__"  # FLARE's own key of a ``Shareable``
REFUSAL = "counterflow-refusal"  # header of a reply that says no: ``Refusal`` as text
CANNOT = "HANDLER_EXCEPTION"  # FLARE's code of a reply; here of a plant that would answer, and cannot now
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


# ---- envelopes


def packed(messages: Sequence[tuple[int, bytes]]) -> dict[str, Any]:
    """The content of an envelope."""
    return {"counterflow": FORM, "messages": [[sequence, data] for sequence, data in messages]}


def unpacked(shareable: Mapping[str, Any], unit: str) -> list[tuple[int, bytes]]:
    """Messages of an envelope, in order, whatever its headers; ProtocolError if it is anything else."""

    def refuse(what: str) -> ProtocolError:
        return ProtocolError(f"envelope of unit {unit!r}: {what}")

    if set(shareable) - {HEADERS} != {"counterflow", "messages"}:
        names = str(sorted(map(repr, shareable)))[:120]  # keys of somebody else's table need not be text
        raise refuse(f"must hold 'counterflow' and 'messages', got {names}")
    form, messages = shareable["counterflow"], shareable["messages"]
    if form != FORM:
        raise refuse(f"is of form {form!r:.20}, here it is {FORM}: upgrade the older side")
    if not isinstance(messages, (list, tuple)) or len(messages) > MOST:
        raise refuse(f"'messages' must be a list of at most {MOST}")
    read: list[tuple[int, bytes]] = []
    for entry in messages:
        match entry:
            case [sequence, data] if (type(sequence), type(data)) == (int, bytes) and 0 <= sequence < 2**53:
                read.append((sequence, data))
            case _:
                raise refuse("a message is a pair of sequence and bytes")
    if (size := sum(len(data) for _, data in read)) > LARGEST_ENVELOPE:
        raise refuse(f"{size} bytes are over the limit of {LARGEST_ENVELOPE}")
    return read
