"""Who is let in to the console, and what everyone is told."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from counterflow.console import guard as guarding
from counterflow.console.admission import Rules, Token, address_of, cookie_name
from counterflow.console.guard import BODY, Guard
from counterflow.console.limits import Buckets, ConcurrencyLimit
from counterflow.console.visits import Visit

HOME = "http://127.0.0.1:8437"
ORIGINS = [HOME, "http://localhost:8437", "http://[::1]:8437"]
SECRET = "s3cret-of-the-console"
JSON = ("content-type", "application/json")
EXPECTED = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)["error"]
        assert found["status"] == self.status
        return found


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with what it was sent."""
    message = await receive()
    assert not message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": [(b"Cache-Control", b"public")]})
    await send({"type": "http.response.body", "body": b"echo:" + message["body"]})


def ask(
    guard: Guard,
    method: str = "GET",
    path: str = "/api/seats",
    headers: Sequence[tuple[str, str]] = (),
    *,
    host: str | None = "127.0.0.1:8437",
    query: bytes = b"",
    pieces: Sequence[bytes] = (),
    client: str = "10.0.0.1",
    server: tuple[str, int] = ("127.0.0.1", 8437),
) -> Answer:
    """One request, as a server would hand it on; its body comes in pieces."""
    named = [*([("host", host)] if host is not None else []), *headers]
    scope = {
        "type": "http", "method": method, "path": path, "query_string": query, "client": (client, 5), "server": server,
        "headers": [(name.encode(), value.encode("latin-1")) for name, value in named],
    }  # fmt: skip
    if pieces:
        scope["headers"] += [(b"transfer-encoding", b"chunked")]
    waiting = [
        {"type": "http.request", "body": piece, "more_body": k + 1 < len(pieces)} for k, piece in enumerate(pieces)
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        if waiting:
            return waiting.pop(0)
        await asyncio.sleep(60)  # as a client that says nothing more
        return pytest.fail("waited for a request that was over")

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(guard(scope, receive, send))
    start, *pieces = sent
    assert start["type"] == "http.response.start"
    assert {message["type"] for message in pieces} == {"http.response.body"}
    assert [message.get("more_body", False) for message in pieces] == [True] * (len(pieces) - 1) + [False]
    names = [bytes(name).decode() for name, _ in sent[0]["headers"]]
    assert len(set(names)) == len(names), "a header is sent twice"
    told = {bytes(name).decode(): bytes(value).decode() for name, value in sent[0]["headers"]}
    return Answer(start["status"], told, b"".join(message["body"] for message in pieces))


@pytest.fixture
def open_guard() -> Guard:
    return Guard(echo, Rules(ORIGINS))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def locked(clock: Clock) -> Guard:
    return Guard(echo, Rules(ORIGINS, Token(SECRET, clock.now + 3600.0)), ticks=clock, clock=clock)


# ---- headers


def test_a_question_reaches_the_application_and_its_answer_comes_back_with_the_headers(open_guard: Guard) -> None:
    told = ask(open_guard, "POST", "/api/seats/server/effect", [JSON], pieces=[b'{"a":', b" 1}"])
    assert (told.status, told.body) == (200, b'echo:{"a": 1}')
    assert EXPECTED.items() <= told.headers.items()
    assert told.headers["cache-control"] == "no-store"  # whatever the application says
    cached = [ask(open_guard, path=path).headers["cache-control"] for path in ("/", "/static/style.css")]
    assert cached == ["no-store", "no-cache"]


def test_the_content_policy_lets_in_nothing_from_elsewhere_and_no_inline_code() -> None:
    rules = dict(part.strip().split(" ", 1) for part in guarding.CONTENT_SECURITY_POLICY.split(";"))
    assert rules == {
        "default-src": "'none'",
        "script-src": "'self'",
        "style-src": "'self'",
        "img-src": "'self' data: blob:",
        "connect-src": "'self'",
        "font-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }


def test_every_refusal_has_the_headers_and_closes_the_connection(open_guard: Guard, locked: Guard) -> None:
    refusals = {
        421: ask(open_guard, host="evil.example"),
        403: ask(open_guard, "POST", headers=[JSON, ("origin", "http://evil.example")]),
        415: ask(open_guard, "POST"),
        413: ask(open_guard, "POST", headers=[JSON], pieces=[b"x" * (BODY + 1)]),
        401: ask(locked),
    }
    for status, told in refusals.items():
        assert told.status == status
        assert EXPECTED.items() <= told.headers.items()
        assert told.headers["content-security-policy"] == guarding.CONTENT_SECURITY_POLICY
        assert told.headers["content-type"] == "application/json"
        assert told.headers["connection"] == "close"
        assert set(told.error) == {"type", "code", "message", "status"}


# ---- host and origin


@pytest.mark.parametrize("host", ["127.0.0.1:8437", "localhost:8437", "LOCALHOST:8437", "[::1]:8437"])
def test_the_console_answers_under_its_own_names(open_guard: Guard, host: str) -> None:
    assert ask(open_guard, host=host).status == 200


@pytest.mark.parametrize(
    "host",
    [
        None, "", "evil.example", "evil.example:8437", "localhost", "localhost:8438", "127.0.0.1", "localhost.:8437",
        "localhost:8437@evil.example", "localhost:8437,evil.example", "[::1]", "::1", "[::2]:8437", "10.0.0.7:8437",
        "\xff", "localhost:x", "localhost.evil.example:8437",
    ],
)  # fmt: skip
def test_another_host_is_misdirected(open_guard: Guard, host: str | None) -> None:
    told = ask(open_guard, host=host)
    assert told.status == 421
    assert (told.error["code"], told.error["type"]) == ("wrong-host", "WrongHost")
    assert f"open {HOME}/" in told.error["message"]
    assert ask(open_guard, host=host, headers=[("host", "localhost:8437")]).status == (200 if host is None else 421)


def test_the_number_at_which_a_connection_arrived_is_right_but_no_other_and_no_name(open_guard: Guard) -> None:
    arrived = ("192.168.1.9", 8437)
    assert ask(open_guard, host="192.168.1.9:8437", server=arrived).status == 200
    assert ask(open_guard, host="192.168.1.8:8437", server=arrived).status == 421
    assert ask(open_guard, host="192.168.1.9:8438", server=arrived).status == 421
    assert ask(open_guard, host="evil.example:8437", server=("evil.example", 8437)).status == 421
    assert ask(open_guard, host="[fd00::9]:8437", server=("fd00::9", 8437)).status == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
def test_another_sites_page_can_send_nothing(open_guard: Guard, method: str) -> None:
    for headers in (
        [("origin", "http://evil.example")], [("origin", "null")], [("origin", "http://127.0.0.1:9999")],
        [("origin", "https://127.0.0.1:8437")], [("origin", "http://localhost:8437")],
        [("sec-fetch-site", "cross-site")], [("sec-fetch-site", "same-site"), ("origin", HOME)],
        [("sec-fetch-site", "none")],
        [("origin", HOME), ("origin", "http://evil.example")],
    ):  # fmt: skip
        told = ask(open_guard, method, headers=[JSON, *headers])
        assert told.status == 403, headers
        assert f"{HOME}/" in told.error["message"]


def test_the_consoles_own_page_and_scripts_can(open_guard: Guard) -> None:
    for headers in ([], [("origin", HOME)], [("origin", HOME), ("sec-fetch-site", "same-origin")]):
        assert ask(open_guard, "POST", headers=[JSON, *headers]).status == 200
    told = ask(open_guard, "POST", headers=[JSON, ("origin", "http://localhost:8437")], host="localhost:8437")
    assert told.status == 200


def test_a_link_from_another_site_opens_the_page_but_not_the_api(open_guard: Guard) -> None:
    foreign = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate")]
    assert ask(open_guard, path="/", headers=foreign).status == 200
    assert ask(open_guard, path="/api/seats", headers=foreign).status == 403
    assert ask(open_guard, "OPTIONS", path="/api/seats", headers=foreign).status == 403
    assert ask(open_guard, path="/api/seats", headers=[("sec-fetch-site", "none")]).status == 200


# ---- bodies


@pytest.mark.parametrize(
    "given",
    [
        [], ["text/plain"], ["application/x-www-form-urlencoded"], ["multipart/form-data; boundary=x"],
        ["application/jsonp"], ["text/plain; application/json"], ["application/json", "text/plain"],
    ],
)  # fmt: skip
def test_only_json_is_taken(open_guard: Guard, given: list[str]) -> None:
    told = ask(open_guard, "POST", headers=[("content-type", value) for value in given])
    assert told.status == 415
    assert "application/json" in told.error["message"]
    assert ask(open_guard, "POST", headers=[("content-type", "Application/JSON; charset=utf-8")]).status == 200


def test_a_body_may_have_a_megabyte_and_no_more(open_guard: Guard) -> None:
    whole = ask(open_guard, "POST", headers=[JSON], pieces=[b"x" * (BODY // 2)] * 2)
    assert (whole.status, len(whole.body)) == (200, BODY + len("echo:"))
    told = ask(open_guard, "POST", headers=[JSON], pieces=[b"x" * (BODY // 2), b"x" * (BODY // 2), b"x", b""])
    assert told.status == 413
    assert "1,000,000 bytes" in told.error["message"]
    assert ask(open_guard, "GET", pieces=[b"x" * (BODY + 1)]).status == 413  # whatever the method


def test_a_body_that_says_it_is_too_large_is_not_waited_for(open_guard: Guard) -> None:
    headers = [JSON, ("content-length", str(BODY + 1)), ("expect", "100-continue")]
    assert ask(open_guard, "POST", headers=headers).status == 413


def test_a_body_that_never_ends_is_given_up(open_guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarding, "BODY_SECONDS", 0.02)
    monkeypatch.setattr(guarding, "DRAIN_SECONDS", 0.02)
    told = ask(open_guard, "POST", headers=[JSON, ("content-length", "5")])
    assert (told.status, told.error["code"]) == (408, "too-slow")


def bare(path: str, *headers: tuple[bytes, bytes]) -> dict[str, Any]:
    told = [(b"host", b"localhost:8437"), *headers]
    return {"type": "http", "method": "GET", "path": path, "query_string": b"", "client": None, "headers": told}


def posted(header: tuple[bytes, bytes]) -> dict[str, Any]:
    return bare("/api/x", (b"content-type", b"application/json"), header) | {"method": "POST"}


def test_a_refused_stream_is_read_only_so_far(open_guard: Guard) -> None:
    taken = 0

    async def endless() -> Any:
        nonlocal taken
        taken += 100_000
        assert taken < 100_000_000, "it reads for ever"
        return {"type": "http.request", "body": b"x" * 100_000, "more_body": True}

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(open_guard(posted((b"transfer-encoding", b"chunked")), endless, send))
    assert sent[0]["status"] == 413
    assert BODY < taken < BODY + guarding.DRAINED + 1_000_000


def test_a_client_that_leaves_is_not_asked_after(open_guard: Guard) -> None:
    async def gone() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        pytest.fail("nobody listens")

    asyncio.run(open_guard(posted((b"content-length", b"9")), gone, send))


# ---- rates


def test_buckets_follow_their_definition() -> None:
    clock = Clock()
    buckets = Buckets(rate=2.0, burst=3.0, clock=clock)
    assert [buckets.take("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert buckets.take("b") == 0.0
    clock.now += 0.25
    assert buckets.take("a") == 0.25
    clock.now += 0.25
    assert [buckets.take("a"), buckets.take("a")] == [0.0, 0.5]
    clock.now += 100.0
    assert [buckets.take("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]  # never more than the burst


def test_buckets_forget_whoever_has_been_away_longest() -> None:
    buckets = Buckets(rate=1.0, burst=1.0, most=3, clock=Clock())
    for name in ("a", "b", "c"):
        assert buckets.take(name) == 0.0
    assert buckets.take("a") > 0.0
    assert buckets.take("d") == 0.0  # "b" is forgotten
    assert len(buckets) == 3
    assert buckets.take("a") > 0.0
    assert buckets.take("b") == 0.0


def test_too_many_requests_without_a_token_are_told_when_to_come_back(locked: Guard, clock: Clock) -> None:
    assert {ask(locked, path="/").status for _ in range(int(guarding.BURST))} == {200}
    told = ask(locked, path="/")
    assert (told.status, told.error["code"], told.headers["retry-after"]) == (429, "too-many", "1")
    assert ask(locked).error["code"] == "too-many"
    assert ask(locked, client="10.0.0.2").status == 401
    clock.now += 1.0
    many = int(guarding.RATE)
    assert [ask(locked, path="/").status for _ in range(many + 1)] == [200] * many + [429]


def test_whoever_is_in_is_not_kept_out_by_others_at_the_same_address(locked: Guard) -> None:
    while ask(locked, path="/").status == 200:
        pass
    for headers in (bearer(SECRET), [("cookie", cookie_of(locked))]):
        for _ in range(2 * int(guarding.BURST)):
            assert ask(locked, headers=headers).status == 200


def test_one_ipv6_network_has_one_rate() -> None:
    keys = {address_of({"client": (host, 1)}) for host in ("2001:db8::1", "2001:db8::2", "2001:db8:0:0:ffff::")}
    assert len(keys) == 1
    assert address_of({"client": ("2001:db8:0:1::1", 1)}) not in keys
    assert address_of({"client": ("10.0.0.1", 1)}) != address_of({"client": ("10.0.0.2", 1)})


def test_only_so_many_requests_are_answered_at_once_and_others_are_told_to_come_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(guarding, "AT_ONCE", 2)
    monkeypatch.setattr(guarding, "PATIENCE", 0.05)
    started: list[tuple[int, dict[bytes, bytes]]] = []

    async def run() -> None:
        release = asyncio.Event()

        async def slow(scope: Any, receive: Any, send: Any) -> None:
            await release.wait()
            await echo(scope, receive, send)

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                started.append((message["status"], dict(message["headers"])))

        async def receive() -> Any:
            return {"type": "http.disconnect"}

        guard = Guard(slow, Rules(ORIGINS))

        def visit(port: int) -> Any:
            return guard({**bare("/api/x"), "client": ("10.0.0.1", port)}, receive, send)

        tasks = [asyncio.create_task(visit(port)) for port in range(3)]
        await asyncio.wait_for(tasks[2], 30.0)
        assert [status for status, _ in started] == [503]
        assert started[0][1][b"retry-after"] == b"1"
        waiting = asyncio.create_task(visit(4))
        await asyncio.sleep(0)
        release.set()
        await asyncio.gather(*tasks, waiting)

    asyncio.run(run())
    assert [status for status, _ in started] == [503, 200, 200, 200]


def test_a_visitor_holds_half_of_the_places_and_a_free_one_goes_to_whoever_holds_fewest() -> None:
    async def run() -> None:
        places = ConcurrencyLimit(4, patience=0.02)
        assert [await places.take("greedy") for _ in range(3)] == [True, True, False]
        assert [await places.take("other") for _ in range(2)] == [True, True]
        first = asyncio.create_task(places.take("greedy"))
        await asyncio.sleep(0)
        second = asyncio.create_task(places.take("third"))
        await asyncio.sleep(0)
        places.give_back("greedy")
        assert [await first, await second] == [False, True]
        assert (places.held, places.waiting) == (4, 0)

    asyncio.run(run())


def test_a_place_of_whoever_leaves_while_it_waits_is_not_lost() -> None:
    async def run() -> None:
        places = ConcurrencyLimit(1, patience=30.0)
        assert await places.take("a")
        waiting = asyncio.create_task(places.take("b"))
        await asyncio.sleep(0)
        places.give_back("a")
        waiting.cancel()  # at the moment at which it gets the place
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert await places.take("c")

    asyncio.run(run())


def test_strangers_take_no_places_of_those_who_are_in(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setattr(guarding, "STRANGERS_AT_ONCE", 1)
    monkeypatch.setattr(guarding, "PATIENCE", 0.02)

    async def run() -> list[int]:
        statuses: list[int] = []
        taken = asyncio.Event()

        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["path"].startswith("/static/"):
                taken.set()
                await asyncio.sleep(3600)  # as long as it is not read
            await echo(scope, receive, send)

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        async def receive() -> Any:
            return {"type": "http.disconnect"}

        guard = Guard(app, Rules(ORIGINS, Token(SECRET, clock.now + 60.0)), clock=clock)
        slow = asyncio.create_task(guard(bare("/static/x.js"), receive, send))
        await taken.wait()
        await guard(bare("/"), receive, send)
        entitled = (b"authorization", f"Bearer {SECRET}".encode())
        await guard(bare("/", entitled), receive, send)
        await guard(bare("/api/seats", entitled), receive, send)
        slow.cancel()
        await slow
        return statuses

    assert asyncio.run(run())[:3] == [503, 200, 200]


# ---- what everyone may know, and what is remembered


def test_health_is_told_to_everyone_and_nothing_else(locked: Guard) -> None:
    told = ask(locked, path="/health", host="elsewhere")
    assert (told.status, told.body) == (200, b"ok\n")
    assert ask(locked, "POST", path="/health", headers=[JSON]).status == 401


def test_a_console_in_which_nothing_ends_is_not_well(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guarding, "AT_ONCE", 1)
    guard = Guard(echo, Rules(ORIGINS), ticks=clock)
    assert asyncio.run(guard.limit.take("a"))
    clock.now += guarding.STUCK
    assert ask(guard, path="/health").status == 200
    clock.now += 1.0
    told = ask(guard, path="/health")
    assert (told.status, told.body) == (503, b"not ok\n")


def test_a_token_for_monitoring_opens_the_metrics_and_nothing_else(clock: Clock) -> None:
    rules = Rules(ORIGINS, Token(SECRET, clock.now + 60.0), Token("for-monitoring-only", float("inf")))
    guard = Guard(echo, rules, ticks=clock, clock=clock)
    assert ask(guard, path="/metrics", headers=bearer("for-monitoring-only")).status == 200
    assert ask(guard, path="/metrics").error["code"] == "no-token"
    for path in ("/api/seats", "/metrics/", "/"):
        told = ask(guard, path=path, headers=bearer("for-monitoring-only"))
        assert told.status == (200 if path == "/" else 401)  # everyone may have the page
    clock.now += 61.0
    assert ask(guard, path="/metrics", headers=bearer("for-monitoring-only")).status == 200
    assert ask(guard, path="/metrics", headers=bearer(SECRET)).error["code"] == "expired-token"


def test_what_is_remembered_of_a_request_holds_nothing_that_a_visitor_wrote(clock: Clock) -> None:
    seen: list[Visit] = []
    guard = Guard(echo, Rules(ORIGINS, Token(SECRET, clock.now + 60.0)), [seen.append], ticks=clock, clock=clock)
    cookie = cookie_of(guard)
    ask(guard, path=f"/{SECRET}", query=f"token={SECRET}".encode(), headers=bearer(SECRET))
    ask(guard, method=SECRET, path=f"/api/{SECRET}", headers=[("cookie", cookie)])
    ask(guard, path=f"/static/{SECRET}", headers=[("referer", SECRET)])
    ask(guard, headers=bearer("wrong"))
    assert [(visit.route, visit.status, visit.code) for visit in seen] == [
        ("/", 303, ""), ("other", 200, ""), ("/api", 415, "not-json"), ("/static/{name:path}", 200, ""),
        ("/api", 401, "wrong-token"),
    ]  # fmt: skip
    visitor = cookie.partition("=")[2].partition(".")[0]
    assert [visit.who for visit in seen] == [visitor, "script", visitor, "", ""]
    told = repr(seen)
    assert SECRET not in told
    assert cookie.partition(".")[2] not in told


# ---- the token


def bearer(token: str) -> list[tuple[str, str]]:
    return [("authorization", f"Bearer {token}")]


def cookie_of(guard: Guard) -> str:
    """Of a visitor who opens the printed address."""
    return ask(guard, path="/", query=f"token={SECRET}".encode()).headers["set-cookie"].partition(";")[0]


def test_every_visitor_has_a_cookie_of_its_own_and_none_holds_the_token(locked: Guard) -> None:
    first, second = cookie_of(locked), cookie_of(locked)
    assert first != second
    assert SECRET not in first
    name, _, value = first.partition("=")
    forged = [f"ffffffff.{value.partition('.')[2]}", f"{name}.", SECRET, f"{value}0", value.upper(), "", "."]
    for each in forged:
        assert ask(locked, headers=[("cookie", f"{name}={each}")]).error["code"] == "wrong-token", each
    assert ask(locked, headers=bearer(value)).error["code"] == "wrong-token"


def test_a_browser_is_told_on_a_page_why_it_is_not_let_in(locked: Guard) -> None:
    browser = [("accept", "text/html,application/xhtml+xml,*/*;q=0.8")]
    told = ask(locked, path="/", query=b"token=<script>", headers=browser)
    assert (told.status, told.headers["content-type"]) == (401, "text/html; charset=utf-8")
    assert EXPECTED.items() <= told.headers.items()
    assert b"open the address that it printed" in told.body
    assert b"<script" not in told.body
    evil = ask(locked, path="/", host="<b>evil", headers=browser)
    assert (evil.status, b"<b>" in evil.body) == (421, False)
    assert ask(locked, path="/", query=b"token=wrong").error["code"] == "wrong-token"  # a script
    assert ask(locked, headers=[*browser, *bearer("wrong")]).error["code"] == "wrong-token"


def test_without_the_token_nothing_is_answered_but_the_page(locked: Guard) -> None:
    for path in ("/api/seats", "/openapi.json", "/docs", "//static/x", "/other", "/api/static/"):
        told = ask(locked, path=path)
        assert (told.status, told.error["code"]) == (401, "no-token"), path
        assert "address that it printed" in told.error["message"]
        assert told.headers["www-authenticate"].startswith("Bearer")
    for path in ("/", "/static/app.js", "/favicon.ico"):
        assert ask(locked, path=path).status == 200
        assert ask(locked, "POST", path=path, headers=[JSON]).status == 401


def test_a_script_sends_the_token_as_a_header(locked: Guard) -> None:
    assert ask(locked, headers=bearer(SECRET)).status == 200
    assert ask(locked, headers=[("authorization", f"bearer  {SECRET} ")]).status == 200
    for wrong in ("", SECRET + "x", SECRET[:-1], SECRET.upper(), "\xe9"):
        told = ask(locked, headers=bearer(wrong))
        assert (told.status, told.error["code"]) == (401, "wrong-token"), wrong
    assert ask(locked, headers=[("authorization", f"Basic {SECRET}")]).error["code"] == "no-token"


def test_the_printed_address_leaves_a_cookie_and_no_trace_in_the_address_bar(locked: Guard) -> None:
    told = ask(locked, path="/", query=f"token={SECRET}".encode())
    assert (told.status, told.headers["location"], told.body) == (303, "/", b"")
    assert EXPECTED.items() <= told.headers.items()
    cookie, *attributes = told.headers["set-cookie"].split("; ")
    assert attributes == ["Max-Age=608400", "Path=/", "HttpOnly", "SameSite=Strict"]
    assert ask(locked, headers=[("cookie", f"other=1; {cookie}")]).status == 200
    assert ask(locked, headers=[("cookie", cookie.replace("counterflow", "x"))]).error["code"] == "no-token"
    assert ask(locked, headers=[("cookie", cookie[:-1])]).error["code"] == "wrong-token"
    assert ask(locked, path="/", query=b"token=wrong").status == 401
    assert ask(locked, path="/", query=b"token=").status == 200  # nothing was given
    assert ask(locked, path="/", query=b"&".join([b"a=1"] * 30) + f"&token={SECRET}".encode()).status == 200
    assert ask(locked, path="/api/seats", query=f"token={SECRET}".encode()).status == 401  # only where it is taken away


def test_an_old_link_does_no_harm_to_whoever_is_in(locked: Guard) -> None:
    told = ask(locked, path="/", query=b"token=of-yesterday", headers=[("cookie", cookie_of(locked))])
    assert told.status == 303
    assert ask(locked, path="/", headers=[("cookie", f"{cookie_name(HOME)}=of-yesterday")]).status == 200


def test_cookies_of_two_consoles_have_two_names() -> None:
    assert cookie_name("http://localhost:8437") != cookie_name("http://localhost:8438")


def test_behind_a_proxy_with_a_certificate_the_cookie_goes_only_over_it(clock: Clock) -> None:
    public = "https://console.example.org"
    guard = Guard(echo, Rules([public, *ORIGINS], Token(SECRET, clock.now + 60.0)), clock=clock)
    told = ask(guard, path="/", query=f"token={SECRET}".encode(), host="console.example.org")
    assert told.headers["set-cookie"].endswith("; SameSite=Strict; Secure")
    headers = [JSON, ("origin", public), *bearer(SECRET)]
    assert ask(guard, "POST", headers=headers, host="console.example.org").status == 200
    assert ask(guard, "POST", headers=headers).status == 403  # that is not where this request went


def test_an_expired_token_is_told_apart(locked: Guard, clock: Clock) -> None:
    clock.now += 3599.0
    assert ask(locked, headers=bearer(SECRET)).status == 200
    clock.now += 1.0
    told = ask(locked, headers=bearer(SECRET))
    assert (told.status, told.error["code"]) == (401, "expired-token")
    assert "expired: start the console again" in told.error["message"]
    assert ask(locked, path="/", query=f"token={SECRET}".encode()).error["code"] == "expired-token"
    assert ask(locked, headers=bearer("wrong")).error["code"] == "wrong-token"  # tells nothing about the right one


def test_wrong_tokens_are_soon_refused_unread_but_the_right_one_is_not(locked: Guard, clock: Clock) -> None:
    attempts = int(guarding.FAILURE_BURST)
    assert {ask(locked, headers=bearer("wrong")).status for _ in range(attempts)} == {401}
    told = ask(locked, headers=bearer("wrong"))
    assert (told.status, told.headers["retry-after"]) == (429, "5")
    assert ask(locked, headers=bearer("wrong"), client="10.0.0.9").status == 401
    assert ask(locked).status == 401  # nothing was tried
    assert ask(locked, headers=bearer(SECRET)).status == 200
    clock.now += 5.0
    assert [ask(locked, headers=bearer("wrong")).status for _ in range(2)] == [401, 429]


def test_a_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: seen.append((a, b)) or a == b)
    assert Token("a", 0.0).matches(b"a")
    assert not Token("a", 0.0).matches(b"b")
    assert seen == [(b"a", b"a"), (b"b", b"a")]


def test_a_token_does_not_show_in_what_is_printed() -> None:
    assert SECRET not in repr(Rules(ORIGINS, Token(SECRET, 0.0)))


# ---- defects, and what is not HTTP


def test_a_defect_is_told_without_its_traceback_and_logged_without_the_query(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[Visit] = []

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        raise RuntimeError("measurement 42")

    with caplog.at_level(logging.ERROR, "counterflow.console"):
        told = ask(Guard(broken, Rules(ORIGINS), [seen.append]), query=b"token=private")
    assert [(visit.status, visit.code) for visit in seen] == [(500, "internal-error")]
    assert (told.status, told.error["code"]) == (500, "internal-error")
    assert b"measurement" not in told.body
    assert EXPECTED.items() <= told.headers.items()
    assert "measurement 42" in caplog.text
    assert "GET '/api/seats'" in caplog.text
    assert "private" not in caplog.text


def test_a_frameworks_own_page_about_a_defect_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    async def framework(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 500, "headers": [(b"content-type", b"text/plain")]})
        await send({"type": "http.response.body", "body": b"Traceback: measurement 42"})
        raise RuntimeError("measurement 42")

    told = ask(Guard(framework, Rules(ORIGINS)))
    assert told.error["code"] == "internal-error"
    assert b"measurement" not in told.body
    assert "measurement 42" in caplog.text


def test_websockets_are_refused_and_the_lifespan_is_passed_on(open_guard: Guard) -> None:
    sent: list[Any] = []
    seen: list[str] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def note(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])

    guard = Guard(note, Rules(ORIGINS))
    asyncio.run(guard({"type": "websocket", "headers": []}, receive, send))
    assert (sent, seen) == ([{"type": "websocket.close", "code": 1008}], [])
    asyncio.run(guard({"type": "lifespan"}, receive, send))
    assert seen == ["lifespan"]
