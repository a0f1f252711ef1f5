"""The operator's side: submit a job, see how it goes, end it."""

from __future__ import annotations

import contextlib
import io
import logging
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from counterflow.errors import CounterflowError, ProtocolError
from counterflow.federation.flare import require_flare
from counterflow.federation.flare.kit import read_json
from counterflow.printable import shown

CONNECT = 20.0  # seconds to reach the server
DETAIL = 2.0  # seconds for which FLARE may have said that a run failed, and not yet why
_silent = logging.NullHandler()
_ANSWERS = frozenset(  # FLARE's errors that are a server's no; the others are a server that is not there, or not well
    {
        *("AuthenticationError", "AuthorizationError", "InvalidArgumentError", "InvalidJobDefinition"),
        *("InvalidTarget", "JobNotFound", "JobNotRunning", "NoClientsAvailable", "ValueError"),
    }
)


class Unreachable(ProtocolError):
    """The server gave no answer; the same may be asked again later."""


class Operator:
    """A connection to the server with an operator's kit; a context manager.

    Every method raises ``Unreachable`` if the server does not answer within ``patience`` seconds; any other
    ProtocolError is its refusal.
    """

    def __init__(self, kit: Path, patience: float = CONNECT) -> None:
        require_flare()
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        # with no handler at all, Python prints what FLARE has to say of a server that does not answer
        logging.getLogger("nvflare").addHandler(_silent)
        name = read_json(kit / "startup" / "fed_admin.json")["admin"]["username"]
        with _blaming(f"the server cannot be reached as {name}"), contextlib.redirect_stdout(io.StringIO()):
            self._session = new_secure_session(name, str(kit.absolute()), timeout=patience)

    def __enter__(self) -> Operator:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._session.close()

    def submit(self, job: Path) -> str:
        """Submit a folder that ``jobs.write`` made; FLARE's name of the run."""
        with _blaming(f"the server refused job {job.name}"):
            return str(self._session.submit_job(str(job.absolute())))

    def plants(self) -> tuple[str, ...]:
        """Names of the plants that are connected, or were until a minute ago: see ``answering``."""
        with _blaming("the server gave no list of plants"):
            clients = dict(self._session.check_status("server")).get("clients", [])
        return tuple(sorted(str(client["client_name"]) for client in clients))

    def answering(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """Those of the named plants that answer when they are asked: one that was killed stays on the server's list."""
        listed = [name for name in self.plants() if name in names]
        if not listed:
            return ()
        with _blaming("the server gave no word of its plants"):
            try:
                said: list[dict[str, Any]] = self._session.get_client_job_status(listed) or []
            except Exception as error:
                if type(error).__name__ not in ("InvalidTarget", "NoClientsAvailable", "NoReply"):
                    raise
                return ()  # one has left meanwhile
        silent = {str(one["client_name"]) for one in said if one.get("status") in ("no_reply", "error")}
        return tuple(sorted({str(one["client_name"]) for one in said} - silent))

    def state(self, run: str) -> str:
        """FLARE's word for the state of a run: SUBMITTED, RUNNING, FINISHED:COMPLETED, FINISHED:..."""
        return str(self._meta(run)["status"])

    def refusals(self, run: str) -> tuple[str, ...]:
        """Why a run could not be deployed, if a site refused it: "site: reason" of each. FLARE gives text, no code."""
        deadline = time.monotonic() + DETAIL
        while not (said := self._meta(run).get("job_deploy_detail") or []) and time.monotonic() < deadline:
            time.sleep(0.05)
        lines = [shown(line) for line in said if ": " in str(line)]
        return tuple(line for line in lines if not line.endswith(": OK") and "no reply" not in line)

    def runs(self, name: str) -> dict[str, str]:
        """FLARE's word for every run of the job of that name, the latest last."""
        with _blaming("the server gave no list of runs"):
            known = self._session.list_jobs(name_prefix=name)
        ours = [run for run in known if run.get("job_name", run.get("name")) == name]
        ours.sort(key=lambda run: str(run.get("submit_time", "")))
        return {str(run["job_id"]): str(run["status"]) for run in ours}

    def abort(self, run: str) -> None:
        """End a run; its sessions stay, and the same job submitted again goes on."""
        with _blaming(f"run {run} cannot be ended"):
            self._session.abort_job(run)

    def _meta(self, run: str) -> dict[str, Any]:
        with _blaming(f"the server does not know run {run}"):
            return dict(self._session.get_job_meta(run))


@contextlib.contextmanager
def _blaming(what: str) -> Iterator[None]:
    """FLARE's errors of every kind become ours."""
    try:
        yield
    except CounterflowError:
        raise
    except Exception as error:
        kind = ProtocolError if type(error).__name__ in _ANSWERS else Unreachable
        raise kind(f"federation: {what}: {type(error).__name__}: {shown(error)}") from error
