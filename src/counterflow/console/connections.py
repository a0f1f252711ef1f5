"""HTTP connections of the console: room for whoever is in, and only so much for others, none of whom may dawdle.

A connection is a stranger's until a request on it was let in by the guard. Strangers have few seconds; where there are
too many of them, the one that has been silent longest goes, of the address that has most. A guest's connection is never
closed for a stranger.
"""

from __future__ import annotations

import asyncio
import json
import select
from collections import Counter
from contextlib import suppress
from http import HTTPStatus
from itertools import islice
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from counterflow.console.admission import address_of, problem

GUESTS = 1024  # connections; a browser opens about six
STRANGERS = 1024
STRANGERS_OF_ADDRESS = 512  # also of a proxy, behind which many come at once
LOOKED_AT = 32  # of the oldest, for one that can go
HEAD_SECONDS = 5.0  # for a request's first line and headers
STRANGERS_IDLE_SECONDS = 5  # between two requests; a guest has more
STALLED_SECONDS = 10.0  # in which whoever is sent something takes 100 kB of it
LEAVING_SECONDS = 1.0  # for reading why one has to leave
LEAVING = 64  # connections; others are closed without a word
_FAREWELLS = {
    HTTPStatus.REQUEST_TIMEOUT: ("too-slow", "the request came too slowly: send it again."),
    HTTPStatus.SERVICE_UNAVAILABLE: ("busy", "too many connections: try again in 1 s."),
}


class Room:
    """Who holds a connection."""

    def __init__(self, most: int = GUESTS + STRANGERS) -> None:
        self._guests_at_most, self._strangers_at_most = min(GUESTS, most // 2), min(STRANGERS, most // 2)
        self.guests: dict[Connection, None] = {}  # the first came in first
        self._strangers: dict[str, dict[Connection, None]] = {}  # by address
        self.strangers = 0
        self.leaving = 0
        self.closed: Counter[str] = Counter()  # why, how often

    def enter(self, new: Connection) -> bool:
        """A stranger connects; whether there is room."""
        self._strangers.setdefault(new.address, {})[new] = None
        self.strangers += 1
        crowd = new.address
        if len(self._strangers[crowd]) <= min(STRANGERS_OF_ADDRESS, self._strangers_at_most):
            if self.strangers <= self._strangers_at_most:
                return True
            crowd = max(self._strangers, key=lambda address: len(self._strangers[address]))
        oldest = islice(self._strangers[crowd], LOOKED_AT)
        silent = next((each for each in oldest if each.silent and each is not new and not each.unread), None)
        if silent is None:
            self.closed["no room"] += 1
            return False
        self.closed["pushed out"] += 1
        silent.abort()
        return True

    def admit(self, known: Connection) -> None:
        """A stranger has shown that it may come in. For the newest guest, the oldest silent one may have to go."""
        if known in self.guests or known not in self._strangers.get(known.address, ()):
            return
        self.leave(known)
        silent = None
        if len(self.guests) >= self._guests_at_most:
            silent = next((each for each in self.guests if each.silent), None)
        self.guests[known] = None
        if silent is not None:
            self.closed["pushed out"] += 1
            silent.abort()

    def leave(self, gone: Connection) -> None:
        """A connection has ended, or is no stranger's any more."""
        self.guests.pop(gone, None)
        here = self._strangers.get(gone.address, {})
        if gone in here:
            del here[gone]
            self.strangers -= 1
            if not here:
                del self._strangers[gone.address]


class Connection(H11Protocol):
    """One connection; uvicorn itself refuses requests but lets any number of silent connections stay."""

    address = ""
    _deadline: asyncio.TimerHandle | None = None
    _stalled: asyncio.TimerHandle | None = None
    _leaving = False

    def __init__(self, *, room: Room, app_state: dict[str, Any], **given: Any) -> None:
        super().__init__(app_state={**app_state, "let_in": self.let_in}, **given)
        self._room, self._guests_idle_seconds = room, self.timeout_keep_alive
        self.timeout_keep_alive = STRANGERS_IDLE_SECONDS

    def let_in(self) -> None:
        """A request on this connection was let in."""
        self._room.admit(self)
        self.timeout_keep_alive = self._guests_idle_seconds

    @property
    def silent(self) -> bool:
        """Whether no request is being answered."""
        cycle: Any = self.cycle
        return cycle is None or cycle.response_complete

    @property
    def unread(self) -> bool:
        """Whether something has come that was not read yet, of someone who still waits for an answer."""
        if not hasattr(select, "poll"):  # Windows
            return False
        waiting = select.poll()
        gone = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR | select.POLLNVAL
        waiting.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN | gone)
        return any(event & select.POLLIN and not event & gone for _, event in waiting.poll(0))

    def abort(self) -> None:
        self._room.leave(self)
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Someone connects."""
        super().connection_made(transport)
        self.address = address_of({"client": self.client})
        if self._room.enter(self):
            self._set_deadline()
        else:
            self._send_away(HTTPStatus.SERVICE_UNAVAILABLE)

    def data_received(self, data: bytes) -> None:
        """Some bytes of a request, or of the next one."""
        if self._leaving:  # closing on unread bytes would lose what was said last
            return
        super().data_received(data)
        if self.silent and not self.transport.is_closing():
            self._set_deadline()
        else:
            self._clear_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """The other end, or this one, has closed."""
        self._room.leave(self)
        self._room.leaving -= self._leaving
        self._clear_deadline()
        self._clear_stalled()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """More was sent than the other end takes."""
        super().pause_writing()
        self._clear_stalled()
        self._stalled = self.loop.call_later(STALLED_SECONDS, self._stall)

    def resume_writing(self) -> None:
        """It has taken enough."""
        super().resume_writing()
        self._clear_stalled()

    def _set_deadline(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_SECONDS, self._too_late)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _clear_stalled(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _too_late(self) -> None:
        self._deadline = None
        if self._leaving or not self.silent:
            return
        self._room.closed["too slow"] += 1
        if self.conn.trailing_data[0]:
            self._send_away(HTTPStatus.REQUEST_TIMEOUT)
        else:
            self.abort()

    def _stall(self) -> None:
        self._stalled = None
        self._room.closed["too slow"] += 1
        self.abort()

    def _send_away(self, status: HTTPStatus) -> None:
        """Say why, and go on reading for a moment, so that it can be read."""
        if self._room.leaving >= LEAVING:
            self.abort()
            return
        self._room.leave(self)
        self._leaving = True
        self._room.leaving += 1
        body = json.dumps(problem(*_FAREWELLS[status], status.value)).encode()
        head = [f"HTTP/1.1 {status.value} {status.phrase}", "content-type: application/json", "retry-after: 1"]
        head += ["connection: close", f"content-length: {len(body)}", "", ""]
        self.transport.write("\r\n".join(head).encode() + body)
        self.loop.call_later(LEAVING_SECONDS, self.transport.abort)
        if self.transport.can_write_eof():
            with suppress(OSError):  # who has gone already
                self.transport.write_eof()
