"""The hardened local policy of a kit: what FLARE is allowed to do at this site, whoever asks.

A kit as FLARE makes it lets an operator ship code, read files with shell commands and collect error logs. This module
writes the files in ``<kit>/local`` that forbid it, in full, so that no default of FLARE's fills a gap:

==================  =================================================================================================
resources.json      one class may be built from a job; logs are not streamed; jobs that are not ours are refused
                    (``gate.JobGate``); commands that no job of ours needs are not even registered (``gate.PlantLock``)
authorization.json  no role may ship code, run shell commands or operate the site
privacy.json        one scope, whose filter lets approved bytes out and nothing else (``executor.OutgoingFilter``)
comm_config.json    a site's own processes speak to each other with its certificate, and to nobody without
counterflow.json    where this site keeps its sessions and, at a plant, which unit it is: never taken from a job
==================  =================================================================================================
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from counterflow.errors import StorageError
from counterflow.federation.sites.members import PRESENCE, replace_json
from counterflow.federation.sites.site import CoordinatorSite, PlantSite

_PACKAGE, _FLARE = "counterflow.federation.flare", "nvflare.app_common"
CONTROLLER = f"{_PACKAGE}.controller.CoordinatorController"
EXECUTOR = f"{_PACKAGE}.executor.PlantExecutor"
FILTER = f"{_PACKAGE}.executor.OutgoingFilter"
LOCAL_FILE = "counterflow.json"
SCOPE = "counterflow"
ROLES = ("project_admin", "org_admin", "lead", "member")
RIGHTS = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate", "shell_commands", "byoc",
          "server-predeployed-flwr")  # fmt: skip
_GRANTED = {"submit_job": "any", "manage_job": "n:submitter", "view": "any"}  # to an operator, who is a "lead"


def plant_site(kit: Path) -> PlantSite:
    """The plant of a hardened kit."""
    unit, home = _local(kit)
    if not unit:
        raise StorageError(f"federation: {kit} is not the kit of a plant")
    return PlantSite(unit, home)


def coordinator_site(kit: Path) -> CoordinatorSite:
    """The server of a hardened kit."""
    unit, home = _local(kit)
    if unit:
        raise StorageError(f"federation: {kit} is not the kit of the server")
    return CoordinatorSite(home)


def _local(kit: Path) -> tuple[str, Path]:
    """A plant's unit, "" at the server, and the folder with this site's sessions; as ``harden`` has written it."""
    path = kit / "local" / LOCAL_FILE
    read = read_json(path)
    texts = set(read) == {"unit", "home"} and all(isinstance(value, str) for value in read.values())
    if not texts or not os.path.isabs(read["home"]):
        raise StorageError(f"federation: {path} must name 'unit' and an absolute 'home'; run the join again")
    return read["unit"], Path(read["home"])


def read_json(path: Path) -> dict[str, Any]:
    """A file of a kit."""
    try:
        read = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise StorageError(f"federation: {path} cannot be read ({error}); make the kit again") from error
    if not isinstance(read, dict):
        raise StorageError(f"federation: {path} does not hold a table; make the kit again")
    return read


def is_server(kit: Path) -> bool:
    """Whether a kit is the server's; StorageError if it is no kit at all."""
    for name, server in (("fed_server.json", True), ("fed_client.json", False)):
        if (kit / "startup" / name).is_file():
            return server
    raise StorageError(f"federation: {kit} is not the kit of a server or a plant")


def subject(kit: Path) -> tuple[str, str]:
    """Name and organisation in the certificate of a kit."""
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    path = kit / "startup" / ("server.crt" if is_server(kit) else "client.crt")
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes()).subject
        name, organisation = (
            str(found.get_attributes_for_oid(oid)[0].value) for oid in (NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME)
        )
    except (OSError, ValueError, IndexError) as error:
        raise StorageError(f"federation: {path} has no name or organisation ({error}); make the kit again") from error
    return name, organisation


def harden(kit: Path, home: Path, unit: str = "", members: Path | None = None) -> None:
    """Write the local policy of a kit, replacing what is there.

    ``home``: folder of this site's sessions, made if needed. ``members``: of a server, the list of those that it talks
    to; None: all whose certificates the authority has signed.
    """
    server = is_server(kit)
    if server == bool(unit):
        raise StorageError(f"federation: {kit} is the kit of a {'server' if server else 'plant'}, got unit {unit!r}")
    home = home.absolute()
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    files: dict[str, Any] = {
        "resources.json": {
            "format_version": 2,
            "class_list_enforcement_mode": "enforce",
            "class_allow_list": [CONTROLLER if server else EXECUTOR],
            "allow_log_streaming": False,
            "app_validator": {"path": f"{_PACKAGE}.gate.JobGate", "args": {}},
            **(_server_resources(home, subject(kit)[0], members) if server else _plant_resources(home)),
        },
        "authorization.json": {
            "format_version": "1.0",
            "permissions": {
                role: {right: _GRANTED.get(right, "none") if role == "lead" else "none" for right in RIGHTS}
                for role in ROLES
            },
        },
        LOCAL_FILE: {"unit": unit, "home": str(home)},
        "comm_config.json": {
            "allow_adhoc_conns": False,
            # between a site's own processes, too: other users of the machine see the port, and could speak to a job
            "internal": {"scheme": "tcp", "resources": {"host": "localhost", "connection_security": "mtls"}},
        },
    }
    if not server:
        scope = {"name": SCOPE, "properties": {}, "task_result_filters": [{"path": FILTER, "args": {}}]}
        files["privacy.json"] = {"scopes": [scope], "default_scope": SCOPE}
    local = kit / "local"
    local.mkdir(exist_ok=True)
    for name in ("resources.json", "authorization.json", "privacy.json"):
        for ending in ("default", "sample"):
            (local / f"{name}.{ending}").unlink(missing_ok=True)  # FLARE would read a default where ours is missing
    for name, content in files.items():
        replace_json(local / name, content)
    kit.chmod(0o700)


def _component(name: str, path: str, **given: Any) -> dict[str, Any]:
    return {"id": name, "path": path, "args": given}


def _plant_resources(home: Path) -> dict[str, Any]:
    return {
        "components": [
            _component("lock", f"{_PACKAGE}.gate.PlantLock"),
            _component("presence", f"{_PACKAGE}.admission.PlantPresence", presence=str(home / PRESENCE)),
            # FLARE asks a plant for graphics processors before a job; there is nothing to ask for
            _component(
                "resource_manager",
                f"{_FLARE}.resource_managers.passthrough_resource_manager.PassthroughResourceManager",
            ),
            _component(
                "resource_consumer",
                f"{_FLARE}.resource_consumers.passthrough_resource_consumer.PassthroughResourceConsumer",
            ),
            _component("process_launcher", f"{_FLARE}.job_launcher.client_process_launcher.ClientProcessJobLauncher"),
        ],
        # FLARE may lose the first message of a connection: after 15 s the site ends, and its supervisor starts it again
        "client": {"retry_timeout": 30, "compression": "None", "maint_msg_timeout": 15.0},
    }


def _server_resources(home: Path, own: str, members: Path | None) -> dict[str, Any]:
    storage = f"{_FLARE}.storages.filesystem_storage.FilesystemStorage"
    kept = {"path": storage, "args": {"root_dir": str(home / "flare" / "snapshots"), "uri_root": "/"}}
    gates = [_component("lock", f"{_PACKAGE}.gate.SiteLock", own=own)]
    if members is not None:
        listed, presence = str(members.absolute()), str(home / PRESENCE)
        gates.append(_component("members", f"{_PACKAGE}.admission.MemberGate", listed=listed, presence=presence))
    return {
        "components": [
            *gates,
            _component(
                "job_scheduler", f"{_FLARE}.job_schedulers.job_scheduler.DefaultJobScheduler",
                max_jobs=4, min_schedule_interval=1.0,
            ),
            _component(
                "job_manager", "nvflare.apis.impl.job_def_manager.SimpleJobDefManager",
                uri_root=str(home / "flare" / "jobs"), job_store_id="job_store",
            ),
            _component("job_store", storage),
            _component("process_launcher", f"{_FLARE}.job_launcher.server_process_launcher.ServerProcessJobLauncher"),
        ],
        # a plant says every 10 s that it is there
        "servers": [
            {"admin_storage": "transfer", "max_num_clients": 100, "heart_beat_timeout": 60, "admin_timeout": 10.0}
        ],
        "snapshot_persistor": {
            "path": f"{_FLARE}.state_persistors.storage_state_persistor.StorageStatePersistor",
            "args": {"uri_root": "/", "storage": kept},
        },
    }  # fmt: skip
