"""Whom the server admits, and what a site says of its connections; built into FLARE by ``local/resources.json``."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from cryptography import x509
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import FLContextKey
from nvflare.apis.fl_context import FLContext
from nvflare.fuel.f3.cellnet.defs import IdentityChallengeKey
from nvflare.fuel.f3.drivers import grpc_driver
from nvflare.fuel.f3.drivers.grpc_driver import Servicer
from nvflare.private.defs import CellMessageHeaderKeys
from nvflare.private.fed.server.client_manager import ClientManager

from counterflow.errors import StorageError
from counterflow.federation.sites import members
from counterflow.federation.sites.certificates import fingerprint

LOOK = 0.5  # seconds between two looks at the list of members and at the connections
_SAY_AGAIN = 5.0


class Admission:
    """The list of members as it stands on the disk; one that cannot be read admits nobody."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int] | None = None
        self._members: dict[str, tuple[str, ...]] = {}

    def current(self) -> dict[str, tuple[str, ...]]:
        """{participant: fingerprints}, read again if the file has changed."""
        try:
            found = self._path.stat()
            stamp = (found.st_mtime_ns, found.st_ino)
            if stamp != self._stamp:
                self._members, self._stamp = members.admitted(self._path), stamp
        except (OSError, StorageError):
            self._members, self._stamp = {}, None
        return self._members

    def admits(self, pem: str | bytes | None, name: str | None = None) -> str:
        """The fingerprint of a certificate, the first of a chain, if it is a member's (the named one's); "" if not."""
        try:
            found = fingerprint(x509.load_pem_x509_certificate(pem.encode() if isinstance(pem, str) else pem or b""))
        except ValueError:
            return ""
        return found if (self.has(found) if name is None else found in self.current().get(name, ())) else ""

    def has(self, fingerprint: str) -> bool:
        """Whether a certificate is a member's now."""
        return any(fingerprint in prints for prints in self.current().values())


class _Presence(FLComponent):
    """Says in a file how the site's connections stand: when there is news, and now and then that there is none."""

    EVENT: ClassVar[str]  # from which on there is something to say

    def __init__(self, presence: str) -> None:
        super().__init__()
        self._path = Path(presence)

    def look(self, site: Any) -> dict[str, Any]:
        """How they stand."""
        raise NotImplementedError

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        """FLARE calls this; the event comes once in a process."""
        if event_type == self.EVENT:
            site = fl_ctx.get_prop(FLContextKey.SITE_OBJ)
            threading.Thread(target=self._watch, args=(site,), name="presence", daemon=True).start()

    def _watch(self, site: Any) -> None:
        said: dict[str, Any] = {}
        when = 0.0
        while True:
            news = self.look(site)
            if news != said or time.monotonic() - when >= _SAY_AGAIN:
                with contextlib.suppress(StorageError):  # a full disk is no reason to stop: readers see its age
                    members.replace_json(self._path, {"time": time.time(), "process": os.getpid(), **news})
                    said, when = news, time.monotonic()
            time.sleep(LOOK)


class PlantPresence(_Presence):
    """Says whether this plant is connected to the server."""

    EVENT = EventType.AFTER_CLIENT_REGISTER

    def look(self, site: Any) -> dict[str, Any]:
        return {"connected": bool(site.token) and _is_connected(site, "server")}


class MemberGate(_Presence):
    """Lets the server talk to members only, and says who is connected; ``listed``: file of the list of members.

    Checked are the certificate of every connection, with every message that passes, that of every registration, and the
    name in every sign of life: a token that a plant once got does not bring it back.
    """

    EVENT = EventType.SYSTEM_START

    def __init__(self, listed: str, presence: str) -> None:
        super().__init__(presence)
        self._admission = Admission(Path(listed))
        self._known = dict(self._admission.current())
        Servicer.Stream = _only_members(Servicer.Stream, self._admission)
        ClientManager.authenticated_client = _only_own_certificate(ClientManager.authenticated_client, self._admission)
        ClientManager.heartbeat = _only_names_of_members(ClientManager.heartbeat, self._admission)

    def look(self, site: Any) -> dict[str, Any]:
        """Besides, it takes leave of those who are members no more, or whose certificate was taken off the list."""
        before, self._known = self._known, dict(self._admission.current())
        for token, client in list(site.client_manager.get_clients().items()):
            if set(before.get(client.name, ())) - set(self._known.get(client.name, ())):
                site.logout_client(token)
        names = [client.name for client in site.client_manager.get_clients().values()]
        return {"plants": sorted(name for name in names if _is_connected(site, name))}


def _is_connected(site: Any, name: str) -> bool:
    cell = getattr(site.cell, "core_cell", site.cell)
    return bool(cell.is_cell_connected(name))


def _only_members(stream: Any, admission: Admission) -> Any:
    def guarded(self: Any, request_iterator: Any, context: Any) -> Iterator[Any]:
        shown = context.auth_context().get("x509_pem_cert") or [None]
        fingerprint = admission.admits(shown[0])
        if not fingerprint:
            self.logger.warning("Counterflow refuses a connection: its certificate is not that of a member")
            context.abort(grpc_driver.grpc.StatusCode.PERMISSION_DENIED, "not a member of this federation")

        def while_member(frames: Any) -> Iterator[Any]:
            for frame in frames:
                if not admission.has(fingerprint):
                    context.cancel()
                    return
                yield frame

        yield from while_member(stream(self, while_member(request_iterator), context))

    return guarded


def _only_own_certificate(authenticated: Any, admission: Admission) -> Any:
    def guarded(self: Any, request: Any, fl_ctx: FLContext, client_type: Any) -> Any:
        name = request.get_header(CellMessageHeaderKeys.CLIENT_NAME)
        shown = request.payload.get(IdentityChallengeKey.CERT) if isinstance(request.payload, dict) else None
        if not isinstance(shown, (str, bytes)) or not admission.admits(shown, str(name)):
            fl_ctx.set_prop(FLContextKey.UNAUTHENTICATED, "not a member of this federation", sticky=False)
            self.logger.warning(f"Counterflow refuses to register {str(name)[:80]!r}: not a member's certificate")
            return None
        return authenticated(self, request, fl_ctx, client_type)

    return guarded


def _only_names_of_members(heartbeat: Any, admission: Admission) -> Any:
    def guarded(self: Any, token: Any, client_name: Any, client_fqcn: Any, fl_ctx: FLContext) -> Any:
        if client_name not in admission.current():
            fl_ctx.set_prop(FLContextKey.UNAUTHENTICATED, "not a member of this federation", sticky=False)
            return False
        return heartbeat(self, token, client_name, client_fqcn, fl_ctx)

    return guarded
