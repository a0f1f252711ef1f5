"""Runs the console: takes a port, says where it is, opens the browser, ends on Ctrl-C."""

from __future__ import annotations

import errno
import ipaddress
import math
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import cast
from urllib.parse import urlsplit

import uvicorn
from prometheus_client.core import Metric
from starlette.types import ASGIApp

from counterflow.console import connections
from counterflow.console.admission import Rules, Token, origin
from counterflow.console.connections import Connection, Room
from counterflow.console.guard import Guard
from counterflow.console.metrics import Metrics, family
from counterflow.console.visits import AccessLog
from counterflow.errors import OptionError, StorageError

PORT = 8437
HOURS = 12.0
LONGEST = 8760.0  # hours that a token may be good
KEEP_ALIVE = 30  # seconds that a visitor's idle connection may stay open
OTHER_FILES = 192  # that this process may have open besides connections
SHORTEST = 16  # characters of a token for monitoring
STOPPING = 3  # seconds for answers that are being computed when the console is stopped


@dataclass(frozen=True)
class Place:
    """Where a console listens; ``private``: only this machine can reach it; ``names`` under which a browser may."""

    listener: socket.socket
    host: str
    port: int
    private: bool
    names: Sequence[str]  # the one to tell first


def serve(
    make: Callable[[], ASGIApp], *, host: str = "127.0.0.1", port: int = PORT, token: bool | None = None,
    hours: float = HOURS, behind: str | None = None, browser: bool = True, metrics_token: Path | None = None,
    log: Path | None = None, logged: bool | None = None, say: Callable[[str], None] | None = None,
) -> None:  # fmt: skip
    """Serve an application, guarded, until Ctrl-C or SIGTERM; it is made once the port (0: any) is taken.

    Visitors need a ``token``, good for some hours, where other machines can reach the console: at ``host``, or through
    a proxy at the address ``behind``. ``metrics_token``: a file with one that opens /metrics and does not expire.
    ``log``: the access log, kept if ``logged`` or, by default, if visitors need a token. ``say`` takes the lines for
    the terminal. The browser is not opened with a token, which other users could read in the list of processes.
    """
    say = say or partial(print, flush=True)
    if not 0 < hours <= LONGEST:
        raise OptionError(f"--hours {hours:g}: give a number of hours above 0 and up to {LONGEST:g}.")
    public = None if behind is None else _public(behind)
    place = listen(host, port)
    with place.listener, _ending_quietly(), ExitStack() as ends:
        secret = _secret(place, token, public)
        origins = [origin("http", name, place.port) for name in place.names]
        good = None if secret is None else Token(secret, time.time() + 3600.0 * hours)
        rules = Rules(origins if public is None else [public, *origins], good, _metrics_token(metrics_token))
        journal, lines = _access_log(log, (secret is not None) if logged is None else logged, obligatory=bool(logged))
        if journal is not None:
            ends.callback(journal.close)
        room = Room(_descriptors())
        metrics = Metrics(lambda: _gauges(room, guard, journal))
        guard = Guard(make(), rules, [metrics.note, *([] if journal is None else [journal.note])])
        address = f"{rules.origins[0]}/" + ("" if secret is None else f"?token={secret}")

        def announce() -> None:
            for line in [*told(place, address, None if secret is None else hours, public), *lines]:
                say(line)
            if browser and secret is None and _has_browser():
                _open(address)

        _server(guard, announce, room, metrics).run(sockets=[place.listener])


def listen(host: str, port: int) -> Place:
    """Take a port, or say in one sentence why not."""
    try:
        if not host:
            raise socket.gaierror(socket.EAI_NONAME, "no name")
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise OptionError(f"--host {host!r} is no address: give one of this machine's, or leave it out.") from error
    try:
        listener = socket.create_server(address[:2], family=family)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # or a small answer waits 40 ms for company
        found, port = listener.getsockname()[:2]
        number = ipaddress.ip_address(found)
        mine = [socket.gethostname()] if number.is_unspecified else [host]
        if not number.is_loopback and not number.is_unspecified:
            mine.append(str(number))
        names = dict.fromkeys(name.lower() for name in (*mine, "127.0.0.1", "localhost", "::1"))
        return Place(listener, host, port, number.is_loopback, list(names))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise OptionError(
                f"--port {port} at {host} is taken, perhaps by another console: give another, or --port 0 for any."
            ) from error
        if error.errno == errno.EACCES:
            raise OptionError(f"--port {port} is not open to this user: give one above 1023.") from error
        raise OptionError(
            f"--host {host!r}: cannot listen there ({error.strerror or error}); give an address of this machine."
        ) from error


def told(place: Place, address: str, hours: float | None, public: str | None) -> Sequence[str]:
    """What the terminal shows once the console is up."""
    lines = [f"Counterflow console: {address}  (Ctrl-C to stop)"]
    if hours is not None:
        lines.append(
            f"Whoever has this address may ask: it holds the token, which is good for {hours:g} h. Scripts send it as "
            "'Authorization: Bearer TOKEN'."
        )
    if not place.private and public is None:
        lines.append(
            "Other machines can reach this console, and what it sends is not encrypted. Better: leave out --host and "
            f"use a tunnel, 'ssh -L {place.port}:127.0.0.1:{place.port} THIS-MACHINE', or a proxy with a certificate "
            "and --behind https://NAME."
        )
    if public is not None:
        lines.append(f"It listens at {origin('http', place.host, place.port)}; the proxy must pass the Host header on.")
    return lines


def _secret(place: Place, wanted: bool | None, public: str | None) -> str | None:
    private = place.private and public is None
    if wanted is False and not private:
        raise OptionError(
            f"--no-token: other machines can reach {place.host if public is None else public}; leave out --no-token, "
            "or --host and --behind."
        )
    return secrets.token_urlsafe(32) if wanted or not private else None


def _metrics_token(file: Path | None) -> Token | None:
    if file is None:
        return None
    try:
        value = file.read_text("ascii").strip()
    except (OSError, ValueError) as error:
        raise OptionError(
            f"--metrics-token {str(file)!r} cannot be read ({error}): give a file with a token."
        ) from None
    if not SHORTEST <= len(value) <= 200 or not value.isprintable() or " " in value:
        raise OptionError(
            f"--metrics-token {str(file)!r}: it must hold {SHORTEST} to 200 characters on one line; make one with "
            "'openssl rand -hex 32'."
        )
    return Token(value, math.inf)


def _access_log(place: Path | None, wanted: bool, obligatory: bool) -> tuple[AccessLog | None, list[str]]:
    """The log, and what the terminal shows of it."""
    if place is None or not wanted:
        return None, []
    try:
        return AccessLog(place), [f"Requests are logged in {place}."]
    except StorageError as error:
        if obligatory:
            raise
        return None, [f"Requests are not logged: {error}"]


def _descriptors() -> int:
    """Connections that this process may have; what the system allows by default is raised as far as it lets us."""
    wanted = connections.GUESTS + connections.STRANGERS + connections.LEAVING + OTHER_FILES
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return wanted - OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < wanted:
        soft = wanted if hard < 0 else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(OTHER_FILES, (wanted if soft < 0 else soft) - OTHER_FILES)


def _gauges(room: Room, guard: Guard, journal: AccessLog | None) -> list[Metric]:
    held = {"visitors": len(room.guests), "strangers": room.strangers}
    under_way = {"answered": guard.limit.held, "waiting": guard.limit.waiting}
    closed = "Connections that were closed by limits."
    lost = "Lines of the access log that were not written."
    return [
        family("console_connections", "Connections that are open.", held, "of"),
        family("console_connections_closed", closed, room.closed, "why", counted=True),
        family("console_questions", "Questions under way.", under_way, "state"),
        family("console_access_log_lost", lost, {(): 0 if journal is None else journal.lost}, counted=True),
    ]


def _public(address: str) -> str:
    try:
        parts = urlsplit(address)
        if parts.scheme == "https" and parts.hostname and parts.path in ("", "/") and "@" not in parts.netloc:
            return origin("https", parts.hostname, parts.port or 443)
    except ValueError:
        pass
    raise OptionError(f"--behind {address!r}: give the proxy's address without a path, such as https://NAME.")


def _server(app: ASGIApp, announce: Callable[[], None], room: Room, metrics: Metrics) -> uvicorn.Server:
    class Server(uvicorn.Server):
        """Tells when it listens."""

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            self.lifespan.state["metrics"] = metrics.families
            await super().startup(sockets=sockets)
            announce()

    # no log: errors go to stderr. No proxy's headers: whoever sends X-Forwarded-For would choose whose rate is counted
    return Server(uvicorn.Config(
        app, loop="asyncio", http=cast(type[Connection], partial(Connection, room=room)), ws="none", workers=1,
        log_config=None, log_level="error", access_log=False, server_header=False, proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE, timeout_graceful_shutdown=STOPPING,
    ))  # fmt: skip


@contextmanager
def _ending_quietly() -> Iterator[None]:
    """Ctrl-C and SIGTERM are how a console ends: no traceback, exit code 0."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, stop) if main else None
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        if main:
            signal.signal(signal.SIGTERM, before)


def _has_browser() -> bool:
    """Whether there is a screen: without one, a browser in the terminal would be started."""
    return not sys.platform.startswith("linux") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    )


def _open(address: str) -> None:
    import webbrowser

    threading.Thread(target=webbrowser.open, args=[address], daemon=True).start()  # some browsers keep one waiting
