"""What stands between the network and the console: an ASGI middleware that knows nothing of what it guards.

A request must name this console as its host (else another site's name could be pointed at it), must not come from
another site's page, must be JSON if it carries anything, small, and hold the token if there is one. Whoever does not
hold it shares a rate with all others of the address that do not; whoever does waits for a place, for a moment.
Whatever is answered, refusals and defects included, goes out with the same security headers.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from html import escape

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from counterflow.console import admission
from counterflow.console.admission import Entry, Refused, Rules, problem
from counterflow.console.limits import Buckets, ConcurrencyLimit
from counterflow.console.visits import GONE, HEALTH, Visit

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
RATE, BURST = 60.0, 240.0  # requests a second and at once, of all strangers of one address
FAILURE_RATE, FAILURE_BURST = 0.2, 10.0  # wrong tokens
AT_ONCE = 16  # questions that are being answered
STRANGERS_AT_ONCE = 16  # pages and files that are sent to those who have shown no token
PATIENCE = 0.3  # seconds that a request waits for its turn
STUCK = 30.0  # seconds without one finished question after which the console is not well
PIECE = 65536  # bytes that are handed on at once: whoever reads slowly keeps no more of ours
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>Counterflow console</title>
<link rel="icon" href="/static/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="/static/style.css">
<main><section class="card refused"><h2>Counterflow console</h2><p>{}</p></section></main>
"""

_log = logging.getLogger("counterflow.console")


class Guard:
    """Lets requests that keep the rules through to an app, and answers others itself; ``notes`` hear of each."""

    def __init__(
        self, app: ASGIApp, rules: Rules, notes: Sequence[Callable[[Visit], None]] = (),
        ticks: Callable[[], float] = time.monotonic, clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._app, self._rules, self._notes, self._ticks, self._clock = app, rules, notes, ticks, clock
        self._visits = Buckets(RATE, BURST, clock=ticks)
        self._failures = Buckets(FAILURE_RATE, FAILURE_BURST, clock=ticks)
        self.limit = ConcurrencyLimit(AT_ONCE, PATIENCE, clock=ticks)
        self._strangers = ConcurrencyLimit(STRANGERS_AT_ONCE, PATIENCE, clock=ticks)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # the console speaks nothing else
            await send({"type": "websocket.close", "code": 1008})
            return
        incoming, reply = _Incoming(receive, Headers(scope=scope)), _Reply(scope, receive, send)
        came, began = self._clock(), self._ticks()
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
            if not reply.status:
                await reply.error(503, "stopping", "the console is being stopped: start it again, then ask again.")
        finally:
            visit = Visit.of(scope, came, self._ticks() - began, reply.who, reply.status or GONE, reply.code)
            for note in self._notes:
                note(visit)

    async def _serve(self, scope: Scope, incoming: _Incoming, reply: _Reply) -> None:
        if scope["path"] == HEALTH and scope["method"] in ("GET", "HEAD"):  # everyone may know, and nothing else
            well = not self.limit.stuck(STUCK)
            await reply.answer(PlainTextResponse("ok\n" if well else "not ok\n", 200 if well else 503))
            return
        headers, address = incoming.headers, admission.address_of(scope)
        try:
            entry = self._admitted(scope, headers)
        except Refused as refused:
            self._limit(address, refused.code)
            raise
        if entry is None:
            self._limit(address)
        else:
            reply.who = entry.who
            scope.get("state", {}).get("let_in", lambda: None)()  # where connections are told apart
            if entry.cookie is not None:
                await reply.answer(RedirectResponse("/", 303, {"set-cookie": entry.cookie}))
                return
        admission.check_content_type(scope, headers)
        body = await incoming.read()
        if body is None:  # the client has gone
            return
        if entry is not None and admission.is_page(scope):  # takes no time
            await self._app(scope, incoming.replayed(body), reply.send)
            return
        limit, visitor = self._strangers, address
        if entry is not None:  # places are shared by a browser's tabs; of scripts, which share a token, by connections
            known = admission.is_visitor(entry.who)
            limit, visitor = self.limit, entry.who if known else str(scope.get("client"))
        if not await limit.take(visitor):
            raise _come_back(503, "busy", "the console is busy with other requests", connection="keep-alive")
        try:
            await self._app(scope, incoming.replayed(body), reply.send)
        finally:
            limit.give_back(visitor)

    def _admitted(self, scope: Scope, headers: Headers) -> Entry | None:
        own = admission.own_origin(scope, headers, self._rules)
        admission.check_site(scope, headers, own)
        return admission.admit(self._rules, scope, headers, own, self._clock())

    def _limit(self, address: str, code: str = "") -> None:
        """Whoever holds the right token is never kept out by what others at the same address do."""
        wait = self._visits.take(address)
        if wait:
            raise _come_back(429, "too-many", "too many requests from this address", wait)
        wait = self._failures.take(address) if code == "wrong-token" else 0.0
        if wait:
            raise _come_back(429, "too-many", "too many wrong tokens from this address", wait)


class _Reply:
    """Sends an answer with the security headers, and knows what it was: status 0 until one has begun."""

    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._replaced = False
        self.status, self.code, self.who = 0, "", ""

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
            self.status = message["status"]
            headers.update(SECURITY_HEADERS)
            # files are asked about anew each time: another version of the console may serve others under their names
            headers["cache-control"] = "no-cache" if self._scope["path"].startswith("/static/") else "no-store"
        body = message.get("body", b"")
        last = max(0, len(body) - 1) // PIECE * PIECE
        for start in range(0, last, PIECE):
            await self._send({**message, "body": body[start : start + PIECE], "more_body": True})
        await self._send({**message, "body": body[last:]} if last else message)

    async def defect(self) -> None:
        """Something failed that should not have."""
        if not self.status:
            said = "the console failed at this request: a defect of ours; its terminal shows where."
            await self.error(500, "internal-error", said)

    async def error(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        """Why a request was not answered; what is left of it is not worth reading."""
        self.code = code
        more = {"connection": "close", **(headers or {})}
        if self._scope["path"] == "/" and "text/html" in Headers(scope=self._scope).get("accept", ""):
            said = message[:1].upper() + message[1:]
            await self.answer(HTMLResponse(PAGE.format(escape(said)), status, more))
        else:
            await self.answer(JSONResponse(problem(code, message, status), status, more))

    async def answer(self, response: ASGIApp) -> None:
        """An answer of the guard's own."""
        await response(self._scope, self._receive, self.send)


def _come_back(status: int, code: str, said: str, wait: float = 1.0, **headers: str) -> Refused:
    seconds = str(max(1, math.ceil(wait)))
    return Refused(status, code, f"{said}: try again in {seconds} s.", {"retry-after": seconds, **headers})


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
