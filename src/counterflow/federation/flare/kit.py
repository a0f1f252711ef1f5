"""What FLARE reads at a site: where the server is, and what FLARE is allowed to do here, whoever asks.

A kit as FLARE makes it lets an operator ship code, read files with shell commands and collect error logs. This module
writes the files in ``<kit>/local`` that forbid it, in full, so that no default of FLARE's fills a gap:

==================  =================================================================================================
resources.json      one class may be built from a job; logs are not streamed; jobs that are not ours are refused
                    (``gate.JobGate``); commands that no job of ours needs are not even registered (``gate.PlantLock``)
authorization.json  no role may ship code, run shell commands or operate the site
privacy.json        one scope, whose filter lets approved bytes out and nothing else (``executor.OutgoingFilter``)
comm_config.json    a site's own processes speak to each other with its certificate, and to nobody without
log_config.json     what FLARE has to say goes to the site's one log
==================  =================================================================================================
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from counterflow.federation.sites import party
from counterflow.federation.sites.certificates import Participant
from counterflow.federation.sites.members import FILE as LIST
from counterflow.federation.sites.members import PRESENCE, replace_json

_PACKAGE, _FLARE = "counterflow.federation.flare", "nvflare.app_common"
CONTROLLER = f"{_PACKAGE}.controller.CoordinatorController"
EXECUTOR = f"{_PACKAGE}.executor.PlantExecutor"
FILTER = f"{_PACKAGE}.executor.OutgoingFilter"
SCOPE = "counterflow"
ROLES = ("project_admin", "org_admin", "lead", "member")
RIGHTS = ("submit_job", "clone_job", "manage_job", "download_job", "view", "operate", "shell_commands", "byoc",
          "server-predeployed-flwr")  # fmt: skip
_GRANTED = {"submit_job": "any", "manage_job": "n:submitter", "view": "any"}  # to an operator, who is a "lead"


def unit_of(kit: Path) -> str:
    """The unit of a plant, "" at the server; a kit lies in the folder of its party."""
    return str(party.read(kit.parent).get("unit", ""))


def prepare(kit: Path, who: Participant, federation: str, server: tuple[str, int]) -> None:
    """Write a kit but for its key and certificates, replacing what is there; see ``engine.Engine``."""
    home = kit.absolute().parent
    files: dict[str, Any] = {}
    address = {"target": "{}:{}".format(*server), "scheme": "grpc"}
    if who.kind == "operator":
        files["startup/fed_admin.json"] = {"format_version": 1, "admin": {
            "project_name": federation, "username": who.name, "server_identity": server[0], "scheme": "grpc",
            "host": server[0], "port": server[1], "connection_security": "mtls", "uid_source": "user_input",
            "with_file_transfer": True, "upload_dir": "transfer", "download_dir": "transfer",
            "client_key": "client.key", "client_cert": "client.crt", "ca_cert": "rootCA.pem",
        }}  # fmt: skip
    elif who.kind == "server":
        served = {
            "name": federation, "service": address, "admin_server": server[0], "admin_port": server[1], **_tls("server")
        }  # fmt: skip
        files["startup/fed_server.json"] = {"format_version": 2, "servers": [served]}
        files |= _policy(CONTROLLER, _server_resources(home, server[0]))
    else:
        client = {"fqsn": who.name, "is_leaf": True, **_tls("client")}
        servers = [{"name": federation, "service": address, "identity": server[0]}]
        files["startup/fed_client.json"] = {"format_version": 2, "servers": servers, "client": client}
        files |= _policy(EXECUTOR, _plant_resources(home))
        scope = {"name": SCOPE, "properties": {}, "task_result_filters": [{"path": FILTER, "args": {}}]}
        files["local/privacy.json"] = {"scopes": [scope], "default_scope": SCOPE}
    for place in ("startup", "local"):
        (kit / place).mkdir(parents=True, exist_ok=True, mode=0o700)
    for name, content in files.items():
        replace_json(kit / name, content)


def _tls(side: str) -> dict[str, str]:
    return {
        "ssl_private_key": f"{side}.key", "ssl_cert": f"{side}.crt", "ssl_root_cert": "rootCA.pem",
        "connection_security": "mtls",
    }  # fmt: skip


def _policy(allowed: str, resources: dict[str, Any]) -> dict[str, Any]:
    """The files of a site, in which one class may be built from a job."""
    return {
        "local/resources.json": {
            "format_version": 2,
            "class_list_enforcement_mode": "enforce",
            "class_allow_list": [allowed],
            "allow_log_streaming": False,
            "app_validator": {"path": f"{_PACKAGE}.gate.JobGate", "args": {}},
            **resources,
        },
        "local/authorization.json": {
            "format_version": "1.0",
            "permissions": {
                role: {right: _GRANTED.get(right, "none") if role == "lead" else "none" for right in RIGHTS}
                for role in ROLES
            },
        },
        "local/comm_config.json": {
            "allow_adhoc_conns": False,
            # between a site's own processes, too: other users of the machine see the port, and could speak to a job
            "internal": {"scheme": "tcp", "resources": {"host": "localhost", "connection_security": "mtls"}},
        },
        "local/log_config.json": {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"line": {"format": "%(asctime)s - %(name)s - %(levelname)s - %(message)s"}},
            "handlers": {"site": {"class": "logging.StreamHandler", "formatter": "line", "stream": "ext://sys.stdout"}},
            "root": {"level": "INFO", "handlers": ["site"]},
        },
    }


def _component(name: str, path: str, **given: Any) -> dict[str, Any]:
    return {"id": name, "path": path, "args": given}


def _plant_resources(home: Path) -> dict[str, Any]:
    resource = "passthrough_resource_{0}.PassthroughResource{1}".format
    return {
        "components": [
            _component("lock", f"{_PACKAGE}.gate.PlantLock"),
            _component("presence", f"{_PACKAGE}.admission.PlantPresence", presence=str(home / PRESENCE)),
            # FLARE asks a plant for graphics processors before a job; there is nothing to ask for
            _component("resource_manager", f"{_FLARE}.resource_managers.{resource('manager', 'Manager')}"),
            _component("resource_consumer", f"{_FLARE}.resource_consumers.{resource('consumer', 'Consumer')}"),
            _component("process_launcher", f"{_FLARE}.job_launcher.client_process_launcher.ClientProcessJobLauncher"),
        ],
        # FLARE may lose the first message of a connection: after 15 s the site ends, and its supervisor starts it again
        "client": {"retry_timeout": 30, "compression": "None", "maint_msg_timeout": 15.0},
    }


def _server_resources(home: Path, own: str) -> dict[str, Any]:
    storage = f"{_FLARE}.storages.filesystem_storage.FilesystemStorage"
    kept = {"path": storage, "args": {"root_dir": str(home / "flare" / "snapshots"), "uri_root": "/"}}
    listed, presence, jobs = (str(home / name) for name in (LIST, PRESENCE, "flare/jobs"))
    scheduler = f"{_FLARE}.job_schedulers.job_scheduler.DefaultJobScheduler"
    manager = "nvflare.apis.impl.job_def_manager.SimpleJobDefManager"
    return {
        "components": [
            _component("lock", f"{_PACKAGE}.gate.SiteLock", own=own),
            _component("members", f"{_PACKAGE}.admission.MemberGate", listed=listed, presence=presence),
            _component("job_scheduler", scheduler, max_jobs=4, min_schedule_interval=1.0),
            _component("job_manager", manager, uri_root=jobs, job_store_id="job_store"),
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
    }
