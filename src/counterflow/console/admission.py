"""What is asked of a request before it is let in to the console: its host, the page it comes from, the token."""

from __future__ import annotations

import hmac
import ipaddress
import math
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers = Mapping[bytes, Sequence[bytes]]  # lower-case name -> its values


KEPT = 7 * 86400  # seconds that a browser keeps a token that has expired
MOST_TOKENS = 3  # that one request may try: an old cookie, a header, the address
SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})  # methods that change and compute nothing on purpose


class Refused(Exception):
    """A request that is not let in: status, kind of error, a sentence with the remedy, further headers."""

    def __init__(self, status: int, kind: str, message: str, headers: Sequence[tuple[bytes, bytes]] = ()) -> None:
        super().__init__(message)
        self.status, self.kind, self.message, self.headers = status, kind, message, tuple(headers)


@dataclass(frozen=True)
class Token:
    """What a visitor must hold, and until when.

    Parameters
    ----------
    value : str
        The secret.
    ends : float
        Seconds since the epoch.
    """

    value: str = field(repr=False)
    ends: float

    def matches(self, given: bytes) -> bool:
        """In a time that does not depend on what was given."""
        return hmac.compare_digest(given, self.value.encode())


@dataclass(frozen=True)
class Rules:
    """Whom a guard lets in.

    Parameters
    ----------
    origins : sequence of str
        Addresses of this console without a path, as a browser would write them.
    token : Token, optional
        Without one, whoever reaches the console may ask.

    Examples
    --------
    >>> Rules(["http://localhost:8437"]).hosts
    {'localhost:8437': 'http://localhost:8437'}
    """

    origins: Sequence[str]
    token: Token | None = None

    @property
    def hosts(self) -> dict[str, str]:
        """The origin that a Host header stands for."""
        return {origin.partition("://")[2]: origin for origin in self.origins}


def origin(scheme: str, host: str, port: int) -> str:
    """An address without a path, as a browser writes it.

    Examples
    --------
    >>> origin("http", "::1", 8437), origin("https", "Console.example.org", 443)
    ('http://[::1]:8437', 'https://console.example.org')
    """
    name = f"[{host}]" if ":" in host else host
    usual = port == {"http": 80, "https": 443}.get(scheme)
    return f"{scheme}://{name}{'' if usual else f':{port}'}".lower()


def own_origin(scope: Scope, headers: Headers, rules: Rules) -> str:
    """The console's address that a request was sent to; refused if it names another host.

    A page of another site can have its own name point at this machine, and would then be taken for this console's
    page. It cannot do so with a number: the address at which the connection arrived is always right.

    Examples
    --------
    >>> own_origin({}, {b"host": [b"localhost:8437"]}, Rules(["http://localhost:8437"]))
    'http://localhost:8437'
    """
    given = [value.decode("latin-1").lower() for value in headers.get(b"host", ())]
    if len(given) == 1:
        known = rules.hosts.get(given[0])
        if known is not None:
            return known
        host, port = scope.get("server") or ("", None)
        if port is not None and _is_number(host):
            reached = origin("http", host, port)
            if reached.partition("://")[2] == given[0]:
                return reached
    told = ", ".join(repr(value[:100]) for value in given) or "none"
    raise Refused(
        421,
        "WrongHost",
        f"Host {told}: this console answers only under its own address; open {rules.origins[0]}/. Through a "
        "tunnel, give both of its ends the same port.",
    )


def check_site(scope: Scope, headers: Headers, own: str) -> None:
    """Refuse what another site's page sends; such a page may only open the console's page."""
    site = headers.get(b"sec-fetch-site", ())
    if scope["method"] in SAFE:
        foreign = scope["path"].startswith("/api") and any(value in (b"cross-site", b"same-site") for value in site)
    else:
        foreign = any(value != b"same-origin" for value in site) or any(
            value.decode("latin-1") != own for value in headers.get(b"origin", ())
        )
    if foreign:
        raise Refused(
            403, "ForeignSite", f"this request comes from another site's page: ask from the console's own, {own}/."
        )


def check_content_type(scope: Scope, headers: Headers) -> None:
    """Refuse what a form could send: another site's page may send forms unasked, but not JSON."""
    if scope["method"] in SAFE:
        return
    given = headers.get(b"content-type", ())
    if len(given) != 1 or given[0].partition(b";")[0].strip().lower() != b"application/json":
        told = ", ".join(repr(value.decode("latin-1")[:100]) for value in given) or "none"
        raise Refused(415, "NotJSON", f"Content-Type {told}: send JSON, with 'Content-Type: application/json'.")


def admit(token: Token, scope: Scope, headers: Headers, own: str, now: float) -> bytes | None:
    """Refuse whoever does not hold the token; a cookie for whoever comes with the token in the address.

    Everyone may have the page, which is the same everywhere; what it shows comes from /api. A strict cookie is not sent
    when someone follows a link from elsewhere: the page opens all the same, and then sends it.

    Examples
    --------
    >>> link = {"method": "GET", "path": "/", "query_string": b"token=secret"}
    >>> admit(Token("secret", ends=60.0), link, {}, "http://localhost:8437", now=0.0)
    b'counterflow_http_localhost_8437=secret; Max-Age=604860; Path=/; HttpOnly; SameSite=Strict'
    """
    name = cookie_name(own)
    in_address = _token_in_query(scope)
    if in_address is None and _is_page(scope):
        return None
    given = (_credentials(headers, name) + ([in_address] if in_address is not None else []))[:MOST_TOKENS]
    if not any([token.matches(each) for each in given]):
        what = "this token is not the console's" if given else "this console asks for a token"
        raise _no_token(
            "WrongToken" if given else "NoToken",
            f"{what}: open the address that it printed when it started, which holds the token, or send it as "
            "'Authorization: Bearer TOKEN'.",
        )
    left = token.ends - now
    if left <= 0:
        raise _no_token(
            "ExpiredToken", "this console's token has expired: start the console again; it prints a new address."
        )
    if in_address is None:
        return None
    secure = "; Secure" if own.startswith("https:") else ""
    # the browser keeps it longer than it is good, so that who comes too late is told so
    return f"{name}={token.value}; Max-Age={math.ceil(left) + KEPT}; Path=/; HttpOnly; SameSite=Strict{secure}".encode()


def _no_token(kind: str, message: str) -> Refused:
    return Refused(401, kind, message, [(b"www-authenticate", b'Bearer realm="counterflow console"')])


def headers_of(scope: Scope) -> Headers:
    """Of a request; a name may come more than once."""
    found: dict[bytes, list[bytes]] = {}
    for name, value in scope["headers"]:
        found.setdefault(bytes(name).lower(), []).append(bytes(value))
    return found


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


def _is_page(scope: Scope) -> bool:
    path = scope["path"]
    return scope["method"] in ("GET", "HEAD") and (path in ("/", "/favicon.ico") or path.startswith("/static/"))


def _token_in_query(scope: Scope) -> bytes | None:
    if scope["path"] != "/" or scope["method"] != "GET":
        return None
    try:
        found = parse_qs(bytes(scope.get("query_string", b"")), max_num_fields=20)
    except ValueError:
        return None
    values = found.get(b"token", [])
    return values[0] if values else None


def cookie_name(own: str) -> str:
    """Of the console at an address: cookies do not tell ports apart, their names must.

    Examples
    --------
    >>> cookie_name("http://[::1]:8437")
    'counterflow_http_1_8437'
    """
    return "_".join(["counterflow", *re.findall(r"\w+", own)])


def _credentials(headers: Headers, cookie: str) -> list[bytes]:
    """The tokens that a request holds, in its Authorization header or its cookies."""
    found = []
    for value in headers.get(b"authorization", ()):
        scheme, _, token = value.strip().partition(b" ")
        if scheme.lower() == b"bearer":
            found.append(token.strip())
    for line in headers.get(b"cookie", ()):
        for pair in line.split(b";"):
            name, _, value = pair.strip().partition(b"=")
            if name == cookie.encode():
                found.append(value)
    return found
