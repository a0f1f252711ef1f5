"""What is asked of a request before it is let in to the console: its host, the page it comes from, the token."""

from __future__ import annotations

import hmac
import ipaddress
import math
import re
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import Scope

KEPT = 7 * 86400  # seconds that a browser keeps a token that has expired
BEARER = {"www-authenticate": 'Bearer realm="counterflow console"'}
MOST_TOKENS = 3  # that one request may try
METRICS = "/metrics"
SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})  # methods that change and compute nothing on purpose


class Refused(Exception):
    """A request that is not let in: status, code of the error, a sentence with the remedy, further headers."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, dict(headers or {})


def problem(code: str, message: str, status: int, kind: str | None = None) -> dict[str, Any]:
    """An error as the console tells it; ``kind``, unless given, is the code in capitals."""
    kind = kind or "".join(word.capitalize() for word in code.split("-"))
    return {"error": {"type": kind, "code": code, "message": " ".join(message.split())[:2000], "status": status}}


@dataclass(frozen=True)
class Token:
    """What a visitor must hold, and until when."""

    value: str = field(repr=False)
    ends: float

    def matches(self, given: bytes) -> bool:
        """In a time that does not depend on what was given."""
        return hmac.compare_digest(given, self.value.encode())

    def cookie(self, visitor: str) -> str:
        """What a browser shows instead of the token: each visitor's own."""
        return f"{visitor}.{hmac.digest(self.value.encode(), visitor.encode(), 'sha256').hex()}"

    def visitor(self, cookie: bytes) -> str | None:
        """Whose cookie it is; None if it was not made with this token."""
        name = cookie.partition(b".")[0].decode("latin-1")
        return name if is_visitor(name) and hmac.compare_digest(cookie, self.cookie(name).encode()) else None


def is_visitor(name: str) -> bool:
    """Whether it is the name of a browser: eight hexadecimal digits."""
    return re.fullmatch("[0-9a-f]{8}", name) is not None


@dataclass(frozen=True)
class Entry:
    """Somebody who was let in: who, for the access log; a cookie for whoever came with the token in the address."""

    who: str
    cookie: str | None = None


@dataclass(frozen=True)
class Rules:
    """Whom a guard lets in: at these addresses of the console, holding the token; ``metrics`` opens /metrics."""

    origins: Sequence[str]
    token: Token | None = None
    metrics: Token | None = None


def origin(scheme: str, host: str, port: int) -> str:
    """An address without a path, as a browser writes it."""
    name = f"[{host}]" if ":" in host else host
    usual = port == {"http": 80, "https": 443}.get(scheme)
    return f"{scheme}://{name}{'' if usual else f':{port}'}".lower()


def own_origin(scope: Scope, headers: Headers, rules: Rules) -> str:
    """The console's address that a request was sent to; refused if it names another host or port.

    A page of another site can have its own name point at this machine, and would then be taken for this console's
    page. It cannot do so with a number: the address at which the connection arrived is always right.
    """
    given = headers.getlist("host")
    host, port = scope.get("server") or ("", None)
    arrived = [origin("http", host, port)] if port is not None and _is_number(host) else []
    known = {address.partition("://")[2]: address for address in [*arrived, *rules.origins]}
    if len(given) == 1 and given[0].lower() in known:
        return known[given[0].lower()]
    told = ", ".join(repr(value[:100]) for value in given) or "none"
    raise Refused(
        421, "wrong-host", f"Host {told}: this console answers only under its own address; open {rules.origins[0]}/. "
        "Through a tunnel, give both of its ends the same port.",
    )  # fmt: skip


def check_site(scope: Scope, headers: Headers, own: str) -> None:
    """Refuse what another site's page sends; such a page may only open the console's page."""
    site = headers.getlist("sec-fetch-site")
    if scope["method"] in SAFE:
        foreign = scope["path"].startswith("/api") and any(value in ("cross-site", "same-site") for value in site)
    else:
        foreign = any(value != "same-origin" for value in site) or any(
            value != own for value in headers.getlist("origin")
        )
    if foreign:
        raise Refused(
            403, "foreign-site", f"this request comes from another site's page: ask from the console's own, {own}/."
        )


def check_content_type(scope: Scope, headers: Headers) -> None:
    """Refuse what a form could send: another site's page may send forms unasked, but not JSON."""
    given = headers.getlist("content-type")
    if scope["method"] in SAFE or [value.partition(";")[0].strip().lower() for value in given] == ["application/json"]:
        return
    told = ", ".join(repr(value[:100]) for value in given) or "none"
    raise Refused(415, "not-json", f"Content-Type {told}: send JSON, with 'Content-Type: application/json'.")


def admit(rules: Rules, scope: Scope, headers: Headers, own: str, now: float) -> Entry | None:
    """Refuse whoever does not hold the token; None for a stranger, who may have the page.

    The page is the same everywhere; what it shows comes from /api. A strict cookie is not sent when someone follows a
    link from elsewhere: the page opens all the same, and then sends it.
    """
    token = rules.token
    if token is None:
        return Entry("anyone")
    name, in_address = cookie_name(own), None
    if scope["path"] == "/" and scope["method"] == "GET":
        with suppress(ValueError):
            found = parse_qs(bytes(scope.get("query_string", b"")), max_num_fields=20)
            in_address = next(iter(found.get(b"token", ())), None)
    bearers = [value.strip().partition(" ") for value in headers.getlist("authorization")]
    shown = [shown.strip().encode("latin-1") for scheme, _, shown in bearers if scheme.lower() == "bearer"]
    sent = [each[name] for each in map(cookie_parser, headers.getlist("cookie")) if name in each]
    cookies = [value.encode("latin-1") for value in sent]
    if scope["path"] == METRICS and rules.metrics is not None and any(map(rules.metrics.matches, shown[:MOST_TOKENS])):
        return Entry("monitoring")
    given = [*shown, *([] if in_address is None else [in_address])][:MOST_TOKENS]
    visitors = [each for each in map(token.visitor, cookies[:MOST_TOKENS]) if each is not None]
    if not visitors and not any([token.matches(each) for each in given]):
        if in_address is None and is_page(scope):
            return None
        what = "this token is not the console's" if given or cookies else "this console asks for a token"
        remedy = "open the address that it printed when it started, which holds the token, or send it as"
        code = "wrong-token" if given or cookies else "no-token"
        raise Refused(401, code, f"{what}: {remedy} 'Authorization: Bearer TOKEN'.", BEARER)
    left = token.ends - now
    if left <= 0:
        if in_address is None and is_page(scope):
            return None
        remedy = "start the console again; it prints a new address."
        raise Refused(401, "expired-token", f"this console's token has expired: {remedy}", BEARER)
    if in_address is None:
        return Entry(visitors[0] if visitors else "script")
    visitor, secure = visitors[0] if visitors else secrets.token_hex(4), "; Secure" if own.startswith("https:") else ""
    # the browser keeps it longer than it is good, so that who comes too late is told so
    kept = f"Max-Age={math.ceil(left) + KEPT}; Path=/; HttpOnly; SameSite=Strict{secure}"
    return Entry(visitor, f"{name}={token.cookie(visitor)}; {kept}")


def address_of(scope: Scope) -> str:
    """Who shares a rate: an IPv4 address, or an IPv6 network, in which one machine can have any address."""
    host = str((scope.get("client") or ("",))[0])
    if ":" not in host or not _is_number(host):
        return host
    return str(ipaddress.ip_network((host.partition("%")[0], 64), strict=False))


def _is_number(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_page(scope: Scope) -> bool:
    """Whether it is asked for the page or what it is made of, which everyone may have."""
    path = scope["path"]
    return scope["method"] in ("GET", "HEAD") and (path in ("/", "/favicon.ico") or path.startswith("/static/"))


def cookie_name(own: str) -> str:
    """Of the console at an address: cookies do not tell ports apart, their names must."""
    return "_".join(["counterflow", *re.findall(r"\w+", own)])
