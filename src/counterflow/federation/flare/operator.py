"""The operator's side: submit a job, see how it goes, end it."""

from __future__ import annotations

import contextlib
import io
import logging
import time
from collections.abc import Iterator, Sequence
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

    Parameters
    ----------
    kit : of the operator, as ``authority.assemble`` returned it.
    patience : seconds to reach the server.

    Raises
    ------
    Unreachable
        Here and in every method: the server does not answer. Any other ProtocolError is its refusal.
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
        """End the connection."""
        self._session.close()

    def submit(self, job: Path) -> str:
        """Submit a folder that ``jobs.write`` made; returns FLARE's name of the run."""
        with _blaming(f"the server refused job {job.name}"):
            return str(self._session.submit_job(str(job.absolute())))

    def plants(self) -> tuple[str, ...]:
        """Names of the plants that are connected, or were until a minute ago: see ``answering``."""
        return tuple(sorted(str(client["client_name"]) for client in self._status().get("clients", [])))

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
        """Why a run could not be deployed, if a site refused it: "site: reason" of each."""
        deadline = time.monotonic() + DETAIL
        while not (said := self._meta(run).get("job_deploy_detail") or []) and time.monotonic() < deadline:
            time.sleep(0.05)
        return _refusals(said)

    def runs(self, name: str) -> dict[str, str]:
        """FLARE's word for every run of the job of that name, the latest last."""
        with _blaming("the server gave no list of runs"):
            known = self._session.list_jobs(name_prefix=name)
        ours = [run for run in known if run.get("job_name", run.get("name")) == name]
        ours.sort(key=lambda run: str(run.get("submit_time", "")))
        return {str(run["job_id"]): str(run["status"]) for run in ours}

    def alive(self) -> frozenset[str]:
        """Runs that have a process at the server; FLARE calls a run RUNNING for ever if the server was killed."""
        return frozenset(str(run["job_id"]) for run in self._status().get("jobs", []))

    def abort(self, run: str) -> None:
        """End a run; its sessions stay, and the same job submitted again goes on."""
        with _blaming(f"run {run} cannot be ended"):
            self._session.abort_job(run)

    def _status(self) -> dict[str, Any]:
        with _blaming("the server gave no list of plants and runs"):
            return dict(self._session.check_status("server"))

    def _meta(self, run: str) -> dict[str, Any]:
        with _blaming(f"the server does not know run {run}"):
            return dict(self._session.get_job_meta(run))


def _refusals(said: Sequence[object]) -> tuple[str, ...]:
    """Lines of FLARE's own text on a deployment, "site: what it says", that are refusals; it gives no code."""
    sites = [shown(line) for line in said if ": " in str(line)]
    return tuple(line for line in sites if not line.endswith(": OK") and "no reply" not in line)


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
