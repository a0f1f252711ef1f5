"""What stands between the network and the console: an ASGI middleware that knows nothing of what it guards.

A request must name this console as its host (else another site's name could be pointed at it), must not come from
another site's page, must be JSON if it carries anything, small, not too frequent, and hold the token if there is one.
Whatever is answered, refusals and defects included, goes out with the same security headers.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from counterflow.console import admission
from counterflow.console.admission import Refused, Rules, problem

# plotly.js would add a style element of its own; the page gives it a sheet to fill instead
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data: blob:; connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}

BODY = 1_000_000  # bytes of a request
DRAINED = 4_000_000  # bytes of a refused request that are read and dropped, so that its sender can read the answer
BODY_SECONDS = 20.0
DRAIN_SECONDS = 2.0
RATE, BURST = 60.0, 240.0  # requests a second and at once, of one address: a slider sends one for every frame
FAILURE_RATE, FAILURE_BURST = 0.2, 10.0  # wrong tokens
ADDRESSES = 4096  # whose rates are remembered
AT_ONCE = 64  # requests that are being answered

_log = logging.getLogger("counterflow.console")


class Buckets:
    """How often each address may come: so many at once, then so many a second.

    Examples
    --------
    >>> buckets = Buckets(rate=2.0, burst=1.0, clock=lambda: 0.0)
    >>> buckets.take("10.0.0.1"), buckets.take("10.0.0.1"), buckets.take("10.0.0.2")
    (0.0, 0.5, 0.0)
    """

    def __init__(
        self, rate: float, burst: float, most: int = ADDRESSES, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate, self._burst, self._most, self._clock = rate, burst, most, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # address -> (tokens, when)

    def __len__(self) -> int:
        return len(self._left)

    def take(self, address: str) -> float:
        """Seconds to wait; 0: come in."""
        now = self._clock()
        left, when = self._left.pop(address, (self._burst, now))
        left = min(self._burst, left + (now - when) * self._rate)
        allowed = left >= 1.0
        self._left[address] = (left - 1.0 if allowed else left, now)
        if len(self._left) > self._most:
            self._left.popitem(last=False)  # whoever has been away longest: its bucket is the fullest
        return 0.0 if allowed else (1.0 - left) / self._rate


class Guard:
    """Lets requests through to an application that keep the rules, and answers all others itself.

    Parameters
    ----------
    app : ASGI application
        What is guarded.
    rules : Rules
        Whom to let in.
    ticks, clock : callable, optional
        Seconds that only grow, for rates, and seconds since the epoch, for the token.
    """

    def __init__(
        self, app: ASGIApp, rules: Rules, ticks: Callable[[], float] = time.monotonic,
        clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._app, self._rules, self._clock = app, rules, clock
        self._visits = Buckets(RATE, BURST, clock=ticks)
        self._failures = Buckets(FAILURE_RATE, FAILURE_BURST, clock=ticks)
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # the console speaks nothing else
            await send({"type": "websocket.close", "code": 1008})
            return
        incoming, reply = _Incoming(receive, Headers(scope=scope)), _Reply(scope, receive, send)
        try:
            await self._serve(scope, incoming, reply)
        except Refused as refused:
            await incoming.drain()
            await reply.error(refused.status, refused.code, refused.message, refused.headers)
        except Exception:
            # neither the query, which may hold the token, nor the traceback is anyone else's business
            _log.exception("the console failed at %s %r", scope["method"], scope["path"])
            await reply.defect()
        except asyncio.CancelledError:  # the console is stopped while this was computed: no reason for a traceback
            if not reply.begun:
                await reply.error(503, "stopping", "the console is being stopped: start it again, then ask again.")

    async def _serve(self, scope: Scope, incoming: _Incoming, reply: _Reply) -> None:
        # limits by address come first: they need neither a name nor a token
        headers, address = incoming.headers, admission.address_of(scope)
        wait = self._visits.take(address)
        if wait:
            raise _too_many("too many requests from this address", wait)
        own = admission.own_origin(scope, headers, self._rules)
        admission.check_site(scope, headers, own)
        if self._rules.token is not None:
            try:
                cookie = admission.admit(self._rules.token, scope, headers, own, self._clock())
            except Refused as refused:
                # whoever has the right token is never kept out by the attempts of others at the same address
                wait = self._failures.take(address) if refused.code == "wrong-token" else 0.0
                if wait:
                    raise _too_many("too many wrong tokens from this address", wait) from None
                raise
            if cookie is not None:
                await reply.answer(RedirectResponse("/", 303, {"set-cookie": cookie}))
                return
        admission.check_content_type(scope, headers)
        body = await incoming.read()
        if body is None:  # the client has gone
            return
        if self._running >= AT_ONCE:
            raise _too_many("the console is busy with other requests", 1.0)
        self._running += 1
        try:
            await self._app(scope, incoming.replayed(body), reply.send)
        finally:
            self._running -= 1


class _Reply:
    """Sends an answer with the security headers, and knows whether one has begun."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self.begun = self._replaced = False

    async def send(self, message: Message) -> None:
        """What the application says; its words about a defect of its own are not passed on."""
        if self._replaced:
            return
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            if message["status"] == 500 and not headers.get("content-type", "").startswith("application/json"):
                await self.defect()
                self._replaced = True
                return
            self.begun = True
            headers.update(SECURITY_HEADERS)
            # files are asked about anew each time: another version of the console may serve others under their names
            headers["cache-control"] = "no-cache" if self._scope["path"].startswith("/static/") else "no-store"
        await self._send(message)

    async def defect(self) -> None:
        """Something failed that should not have."""
        if not self.begun:
            said = "the console failed at this request: a defect of ours; its terminal shows where."
            await self.error(500, "internal-error", said)

    async def error(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        """Why a request was not answered; what is left of it is not worth reading."""
        content = problem(code, message, status)
        await self.answer(JSONResponse(content, status, {"connection": "close", **(headers or {})}))

    async def answer(self, response: ASGIApp) -> None:
        """An answer of the guard's own."""
        await response(self._scope, self._receive, self.send)


def _too_many(what: str, wait: float) -> Refused:
    seconds = max(1, math.ceil(wait))
    return Refused(429, "too-many", f"{what}: try again in {seconds} s.", {"retry-after": str(seconds)})


def _too_large() -> Refused:
    return Refused(
        413, "too-large", f"the request is larger than {BODY:,} bytes: ask about fewer steps, inputs or channels."
    )


class _Incoming:
    """A request's body, which may come in any number of pieces and need not say how large it is."""

    def __init__(self, receive: Receive, headers: Headers) -> None:
        self.headers, self.receive = headers, receive
        sizes = headers.getlist("content-length")
        self._over = "transfer-encoding" not in headers and all(value.strip() == "0" for value in sizes)
        self._declared = max((int(value) for value in sizes if re.fullmatch("[0-9]{1,19}", value)), default=0)

    async def _piece(self) -> bytes | None:
        message = await self.receive()
        self._over = message["type"] != "http.request" or not message.get("more_body", False)
        return bytes(message.get("body", b"")) if message["type"] == "http.request" else None

    async def read(self) -> bytes | None:
        """All of it; None if the client leaves meanwhile."""
        if self._declared > BODY:
            raise _too_large()
        body = bytearray()
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while not self._over:
                    piece = await self._piece()
                    if piece is None:
                        return None
                    body += piece
                    if len(body) > BODY:
                        raise _too_large()
        except TimeoutError:
            raise Refused(408, "too-slow", f"the request took longer than {BODY_SECONDS:g} s: send it again.") from None
        return bytes(body)

    async def drain(self) -> None:
        """Read and drop what a refused request still sends, within reason: closing on it would lose the answer."""
        if "expect" in self.headers:  # whoever waits for leave to go on has not sent anything yet
            return
        dropped = 0
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                while not self._over and dropped <= DRAINED:
                    dropped += len(await self._piece() or b"")
        except TimeoutError:
            return

    def replayed(self, body: bytes) -> Receive:
        """The body for the application, all at once; after it, what comes from the client."""
        told = False

        async def replay() -> Message:
            nonlocal told
            if told:
                return await self.receive()
            told = True
            return {"type": "http.request", "body": body, "more_body": False}

        return replay
