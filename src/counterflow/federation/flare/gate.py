"""What a site lets in, built into FLARE's processes by ``<kit>/local/resources.json``."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nvflare.apis.app_validation import AppValidator
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey, MessageType
from nvflare.fuel.f3.cellnet.net_agent import NetAgent
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.message import Message
from nvflare.fuel.utils.admin_name_utils import is_valid_admin_client_name
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from counterflow.errors import CounterflowError
from counterflow.federation.flare import jobs

# of whoever submitted, in every folder; FLARE verifies them
_SIGNATURES = {".__nvfl_sig.json", ".__nvfl_submitter.crt"}
SERVER = "server"
UNKNOWN = "N/A"  # as some of FLARE's drivers say
COMMANDS = frozenset(  # what a server needs to say to a plant to run a job
    {
        *("train.deploy", "train.start_job", "train.abort", "train.delete_run", "train.check_status"),
        *("train.notify_job_status", "scheduler.check_resource", "scheduler.cancel_resource", "sys.report_version"),
    }
)


class JobGate(AppValidator):
    """Refuses every application that is not, to the letter, one of Counterflow's two configurations.

    FLARE's own checks are of classes by name and of folders with code; a configuration language remains, and arguments
    of any kind to the class that is allowed.
    """

    def validate(self, app_folder: str) -> tuple[str, dict[str, bool]]:
        """FLARE calls this before it deploys: (reason to refuse or "", properties)."""
        try:
            refusal = self._refusal(Path(app_folder))
        except (OSError, UnicodeDecodeError, CounterflowError) as error:
            refusal = str(error)
        return (f"Counterflow refuses this job. {refusal}" if refusal else ""), {}

    @staticmethod
    def _refusal(folder: Path) -> str:
        places = sorted(place for place in folder.rglob("*") if not place.is_dir() or place.is_symlink())
        files = {place.relative_to(folder).as_posix(): place for place in places if place.name not in _SIGNATURES}
        for name, read in ((jobs.COORDINATOR_FILE, jobs.read_coordinator), (jobs.PLANT_FILE, jobs.read_plant)):
            if set(files) == {f"config/{name}"}:
                place = files[f"config/{name}"]
                if place.is_symlink() or place.stat().st_size > jobs.LARGEST:
                    return f"{name} is a link or too large"
                read(place.read_text("utf-8"))
                return ""
        return f"it must hold one configuration of Counterflow and nothing else, it holds {sorted(files)!s:.200}"


class SiteLock:
    """Takes from a site's FLARE what any participant may ask of any other over its network.

    FLARE answers requests to stop, to change where the root of the network is, to echo and to send in bulk, from every
    cell that has a certificate: one plant could stop another. Our jobs need none of them. It also hands a task to a
    plant whoever sends it, and the answer to whoever asked; and it believes what a message says of its origin. Here
    nobody speaks for another, and nobody but the server speaks to a plant.

    ``own``: name in the server's certificate, at the server.
    """

    def __init__(self, own: str = "") -> None:
        registers, takes = NetAgent.__init__, CoreCell._process_received_msg

        def registers_nothing(agent: NetAgent, cell: Any, *given: Any, **named: Any) -> None:
            registers(agent, SimpleNamespace(register_request_cb=lambda *given, **named: None), *given, **named)
            agent.cell = getattr(cell, "core_cell", cell)

        def takes_what_may_be_said(cell: CoreCell, endpoint: Any, connection: Any, message: Message) -> Any:
            speaker = connection.get_conn_properties().get(DriverParams.PEER_CN.value, "") if connection else ""
            refusal = refusal_of(cell.my_info.root, own, "" if speaker == UNKNOWN else speaker, message)
            if refusal:
                cell.logger.warning(f"Counterflow drops a message: {refusal[:200]}")
                return None
            return takes(cell, endpoint, connection, message)

        NetAgent.__init__ = registers_nothing
        CoreCell._process_received_msg = takes_what_may_be_said


class PlantLock(SiteLock):
    """Takes from a plant's FLARE, besides, every command of a server's that running a job does not need.

    FLARE asks ``authorization.json`` about a command only if the server marks it as one to be asked about; without
    the mark, shell commands run. That policy holds against operators, then, and this one against a server too.
    """

    def __init__(self) -> None:
        super().__init__()
        known = ClientRequestProcessors.request_processors
        known[:] = [processor for processor in known if set(processor.get_topics()) <= COMMANDS]


def refusal_of(me: str, own: str, speaker: str, message: Message) -> str:
    """Why a cell does not take a message in; "" if it does.

    Parameters
    ----------
    me : its name in FLARE's network: "server", "boiler", and below them jobs as "server.<run>", "boiler.<run>".
    own : name in the certificate of the server, at the server.
    speaker : name in the certificate of whoever is at the other end of the connection; "" if it is not known, as at the
        end that has dialled: that one has checked the server's certificate.
    """
    origin, destination = (
        str(message.get_header(header, "")).split(".")[0]
        for header in (MessageHeaderKey.ORIGIN, MessageHeaderKey.DESTINATION)
    )
    asks = message.get_header(MessageHeaderKey.MSG_TYPE) == MessageType.REQ
    if me != SERVER:
        if speaker and speaker != me:
            return f"{speaker} speaks to a plant's own processes"
        return f"{origin} asks, and is not the server" if asks and origin not in (SERVER, me) else ""
    if speaker and speaker != own:
        operates = "@" in speaker and is_valid_admin_client_name(origin)
        if origin != speaker and not operates:
            return f"{speaker} speaks as {origin}"
        if asks and destination != SERVER:
            return f"{speaker} asks {destination}, and may ask the server only"
    return ""
