"""The operator's side: submit a job, see how it goes, end it."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Iterator
from pathlib import Path

from counterflow.errors import CounterflowError, ProtocolError, StorageError
from counterflow.federation.flare import require_flare
from counterflow.federation.flare.kit import read_json

CONNECT = 20.0  # seconds to reach the server


class Operator:
    """A connection to the server with an operator's kit; a context manager.

    Parameters
    ----------
    kit : of the operator, as ``certificates.assemble`` returned it.
    """

    def __init__(self, kit: Path, patience: float = CONNECT) -> None:
        require_flare()
        from nvflare.fuel.flare_api.flare_api import new_secure_session

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
        """Names of the plants that are connected."""
        with _blaming("the server gave no list of plants"):
            status = self._session.check_status("server")
        return tuple(sorted(str(client["client_name"]) for client in status.get("clients", [])))

    def wait_for_plants(self, names: tuple[str, ...], patience: float = 60.0) -> None:
        """Return when all named plants are connected; StorageError if they are not in time."""
        deadline = time.monotonic() + patience
        while missing := sorted(set(names) - set(self.plants())):
            if time.monotonic() > deadline:
                raise StorageError(f"federation: after {patience:.0f} s not connected: {', '.join(missing)}")
            time.sleep(0.2)

    def state(self, run: str) -> str:
        """FLARE's word for the state of a run: SUBMITTED, RUNNING, FINISHED:COMPLETED, FINISHED:..."""
        with _blaming(f"the server does not know run {run}"):
            return str(self._session.get_job_meta(run)["status"])

    def abort(self, run: str) -> None:
        """End a run; its sessions stay, and the same job submitted again goes on."""
        with _blaming(f"run {run} cannot be ended"):
            self._session.abort_job(run)


@contextlib.contextmanager
def _blaming(what: str) -> Iterator[None]:
    """FLARE's errors of every kind become ours."""
    try:
        yield
    except CounterflowError:
        raise
    except Exception as error:
        raise ProtocolError(f"federation: {what}: {type(error).__name__}: {error}") from error
