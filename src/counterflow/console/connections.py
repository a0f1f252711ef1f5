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
from collections.abc import Callable, Iterator
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
    """Who holds a connection; ``most`` of them are let by the operating system."""

    def __init__(self, most: int = GUESTS + STRANGERS) -> None:
        self._guests_at_most, self._strangers_at_most = min(GUESTS, most // 2), min(STRANGERS, most // 2)
        self.guests: dict[Connection, None] = {}  # the first came in first
        self._strangers: dict[str, dict[Connection, None]] = {}  # by address
        self.leaving = 0
        self.closed: Counter[str] = Counter()  # why, how often

    @property
    def strangers(self) -> int:
        return sum(map(len, self._strangers.values()))

    def enter(self, new: Connection) -> bool:
        """A stranger connects; whether there is room."""
        crowd = self._strangers.setdefault(new.address, {})
        crowd[new] = None
        if len(crowd) <= min(STRANGERS_OF_ADDRESS, self._strangers_at_most):
            if self.strangers <= self._strangers_at_most:
                return True
            crowd = max(self._strangers.values(), key=len)
        oldest = islice(crowd, LOOKED_AT)
        if self._push_out(each for each in oldest if each is not new and each.silent and not each.unread):
            return True
        self.closed["no room"] += 1
        return False

    def admit(self, known: Connection) -> None:
        """A stranger has shown that it may come in. For the newest guest, the oldest silent one may have to go."""
        if known not in self._strangers.get(known.address, ()):
            return
        self.leave(known)
        if len(self.guests) >= self._guests_at_most:
            self._push_out(each for each in self.guests if each.silent)
        self.guests[known] = None

    def _push_out(self, silent: Iterator[Connection]) -> bool:
        """The first of these goes, if there is one."""
        found = next(silent, None)
        if found is not None:
            self.closed["pushed out"] += 1
            found.abort()
        return found is not None

    def leave(self, gone: Connection) -> None:
        """A connection has ended, or is no stranger's any more."""
        self.guests.pop(gone, None)
        here = self._strangers.get(gone.address, {})
        here.pop(gone, None)
        if not here:
            self._strangers.pop(gone.address, None)


class Connection(H11Protocol):
    """One connection; uvicorn itself refuses requests but lets any number of silent connections stay."""

    address = ""
    _leaving = False

    def __init__(self, *, room: Room, app_state: dict[str, Any], **given: Any) -> None:
        super().__init__(app_state={**app_state, "let_in": self.let_in}, **given)
        self._room, self._guests_idle_seconds = room, self.timeout_keep_alive
        self._timers: dict[Callable[[], None], asyncio.TimerHandle] = {}
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
            self._expect(self._too_late, HEAD_SECONDS)
        else:
            self._send_away(HTTPStatus.SERVICE_UNAVAILABLE)

    def data_received(self, data: bytes) -> None:
        """Some bytes of a request, or of the next one."""
        if self._leaving:  # closing on unread bytes would lose what was said last
            return
        super().data_received(data)
        if self.silent and not self.transport.is_closing():
            self._expect(self._too_late, HEAD_SECONDS)
        else:
            self._calm(self._too_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """The other end, or this one, has closed."""
        self._room.leave(self)
        self._room.leaving -= self._leaving
        self._calm(self._too_late, self._stall)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """More was sent than the other end takes."""
        super().pause_writing()
        self._calm(self._stall)
        self._expect(self._stall, STALLED_SECONDS)

    def resume_writing(self) -> None:
        """It has taken enough."""
        super().resume_writing()
        self._calm(self._stall)

    def _expect(self, otherwise: Callable[[], None], seconds: float) -> None:
        """Do it after these seconds, counted from the first time that it was expected, unless it is called off."""
        if otherwise not in self._timers:
            self._timers[otherwise] = self.loop.call_later(seconds, otherwise)

    def _calm(self, *expected: Callable[[], None]) -> None:
        for each in expected:
            if each in self._timers:
                self._timers.pop(each).cancel()

    def _too_late(self) -> None:
        self._calm(self._too_late)
        if self._leaving or not self.silent:
            return
        self._room.closed["too slow"] += 1
        if self.conn.trailing_data[0]:
            self._send_away(HTTPStatus.REQUEST_TIMEOUT)
        else:
            self.abort()

    def _stall(self) -> None:
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
