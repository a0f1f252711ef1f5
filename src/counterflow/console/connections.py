"""HTTP connections of the console: only so many, and none that dawdles over its request line and headers."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS = 128  # a browser opens about six
HEAD_SECONDS = 10.0  # for a request's first line and headers


class Connection(H11Protocol):
    """One connection; uvicorn itself refuses requests but lets any number of silent connections stay."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Someone connects."""
        super().connection_made(transport)
        if len(self.connections) > CONNECTIONS:
            transport.abort()
        else:
            self._set_deadline()

    def data_received(self, data: bytes) -> None:
        """Some bytes of a request, or of the next one."""
        super().data_received(data)
        if self._waiting():
            self._set_deadline()
        else:
            self._clear_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """The other end, or this one, has closed."""
        self._clear_deadline()
        super().connection_lost(exc)

    def _waiting(self) -> bool:
        """Whether no request is being answered."""
        cycle: Any = self.cycle
        return cycle is None or cycle.response_complete

    def _set_deadline(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEAD_SECONDS, self._too_late)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_late(self) -> None:
        self._deadline = None
        if self._waiting():
            self.transport.abort()
