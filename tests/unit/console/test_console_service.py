"""The console's process: where it listens, what it says, how it ends, and what reaches it over a real socket."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

import counterflow as cf
from counterflow import console
from counterflow.cli import app as command_line
from counterflow.console import service as serving
from counterflow.console.visits import AccessLog, Visit
from counterflow.errors import OptionError, StorageError

SOURCE = str(Path(cf.__file__).parents[1])
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([SOURCE, *filter(None, [os.environ.get("PYTHONPATH")])]),
    "OPENBLAS_NUM_THREADS": "1",
    "NO_COLOR": "1",
}
PATIENCE = 60.0  # seconds until something that should happen at once is called a failure

CHILD = """
import json, sys
from pathlib import Path
from counterflow.console import connections
from counterflow.console import service as serving

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        return
    if scope["path"] == "/api/broken":
        raise RuntimeError("measurement 42")
    if scope["path"] == "/static/large":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"100000000")]})
        await send({"type": "http.response.body", "body": bytes(100_000_000)})
        return
    body = (await receive())["body"]
    told = json.dumps({"size": len(body), "client": scope["client"][0]}).encode()
    size = (b"content-length", str(len(told)).encode())
    await send({"type": "http.response.start", "status": 200, "headers": [size]})
    await send({"type": "http.response.body", "body": told})

limits, options = json.loads(sys.argv[1])
for name, value in limits.items():
    setattr(serving if hasattr(serving, name) else connections, name, value)
options["log"] = options.get("log") and Path(options["log"])
serving.serve(lambda: app, **{"port": 0, "browser": False, **options})
"""


@contextmanager
def running(arguments: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A console in a process of its own, and the address that it tells."""
    process = subprocess.Popen(
        [sys.executable, *arguments], env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.fullmatch(r"Counterflow console: (http://\S+)  \(Ctrl-C to stop\)\n", line)
        assert found, (line, process.stderr.read() if process.stderr and process.poll() is not None else "")
        yield process, found[1]
    finally:
        process.kill()
        process.communicate()


def child(limits: dict[str, Any] | None = None, **options: Any) -> list[str]:
    return ["-c", CHILD, json.dumps([limits or {}, options])]


def port_of(address: str) -> int:
    found = re.search(r":(\d+)/", address)
    assert found
    return int(found[1])


def connect(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)


def exchange(port: int, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Send bytes as they are, then read one answer until the other end closes."""
    with connect(port) as line:
        line.sendall(request)
        answer = b""
        while piece := line.recv(65536):
            answer += piece
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *rest = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (each.split(": ", 1) for each in rest)}
    return int(first.split()[1]), headers, body


def get(port: int, path: str = "/api/seats", *lines: str, host: str | None = None) -> tuple[int, dict[str, str], bytes]:
    head = [f"GET {path} HTTP/1.1", f"Host: {host or f'127.0.0.1:{port}'}", "Connection: close", *lines, "", ""]
    return exchange(port, "\r\n".join(head).encode())


def post_head(port: int, *lines: str) -> bytes:
    head = ["POST /api/x HTTP/1.1", f"Host: localhost:{port}", "Content-Type: application/json", *lines, "", ""]
    return "\r\n".join(head).encode()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with running(child()) as (_, address):
        assert address.startswith("http://127.0.0.1:")
        yield port_of(address)


# ---- over a socket


def test_an_answer_has_the_security_headers_and_does_not_say_who_serves(port: int) -> None:
    status, headers, body = get(port)
    assert (status, json.loads(body)["size"]) == (200, 0)
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-security-policy"].startswith("default-src 'none'")
    assert "server" not in headers


def test_another_host_is_misdirected_also_with_an_address_in_the_first_line(port: int) -> None:
    assert get(port, host=f"evil.example:{port}")[0] == 421
    assert get(port, f"http://127.0.0.1:{port}/api/seats", host="evil.example")[0] == 421
    assert get(port, host=f"[::1]:{port}")[0] == 200
    two = f"GET /api/seats HTTP/1.1\r\nHost: localhost:{port}\r\nHost: evil.example\r\nConnection: close\r\n\r\n"
    assert exchange(port, two.encode())[0] == 400
    assert exchange(port, b"GET /api/seats HTTP/1.0\r\n\r\n")[0] == 421


def test_nobody_chooses_the_address_that_is_counted(port: int) -> None:
    _, _, body = get(port, "/api/seats", "X-Forwarded-For: 10.9.8.7", "Forwarded: for=10.9.8.7")
    assert json.loads(body)["client"] == "127.0.0.1"


def test_a_body_in_chunks_is_measured(port: int) -> None:
    def chunked(count: int) -> bytes:
        piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        return post_head(port, "Transfer-Encoding: chunked", "Connection: close") + piece * count + b"0\r\n\r\n"

    status, _, body = exchange(port, chunked(3))
    assert (status, json.loads(body)["size"]) == (200, 3 * 0x10000)
    status, headers, body = exchange(port, chunked(40))
    assert (status, json.loads(body)["error"]["type"]) == (413, "TooLarge")
    assert headers["connection"] == "close"


def test_a_body_of_a_told_size_is_measured_and_its_sender_reads_why_it_is_refused(port: int) -> None:
    size = 3_000_000
    status, _, body = exchange(port, post_head(port, f"Content-Length: {size}") + b"x" * size)
    assert (status, json.loads(body)["error"]["status"]) == (413, 413)
    status, _, _ = exchange(port, post_head(port, "Content-Length: 9000000000", "Expect: 100-continue"))
    assert status == 413


def test_a_defect_shows_on_the_terminal_only() -> None:
    with running(child()) as (process, address):
        status, _, body = get(port_of(address), "/api/broken?token=private")
        assert (status, json.loads(body)["error"]["type"]) == (500, "InternalError")
        assert b"measurement" not in body
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
    assert "RuntimeError: measurement 42" in errors
    assert "private" not in errors


def test_silent_and_slow_connections_do_not_stay() -> None:
    with running(child({"HEAD_SECONDS": 0.3})) as (_, address):
        port = port_of(address)
        with connect(port) as line:
            assert read_end(line)
        status, _, body = exchange(port, b"GET / HT")
        assert (status, json.loads(body)["error"]["code"]) == (408, "too-slow")
        with connect(port) as line:  # also after a first request
            assert asked(line, port) == 200
            line.sendall(b"GET / HT")
            assert read_end(line)


def read_end(line: socket.socket) -> bool:
    """Whether the other end closes; a patient one would make this time out."""
    try:
        while line.recv(65536):
            pass
    except ConnectionResetError:
        return True
    return True


@pytest.fixture
def token_of() -> Callable[[str], str]:
    return lambda address: f"Authorization: Bearer {address.partition('token=')[2]}"


def asked(line: socket.socket, port: int, token: str = "") -> int:
    """The status of an answer on a connection that stays."""
    head = [f"GET /api/x HTTP/1.1\r\nHost: localhost:{port}", *filter(None, [token]), "", ""]
    line.sendall("\r\n".join(head).encode())
    with line.makefile("rb") as told:
        status = int(told.readline().split()[1])
        headers = dict(each.decode().strip().split(": ", 1) for each in iter(told.readline, b"\r\n"))
        told.read(int(headers["content-length"]))
    return status


@contextmanager
def idle(port: int, count: int) -> Iterator[list[socket.socket]]:
    """Connections that say nothing."""
    held = [connect(port) for _ in range(count)]
    try:
        yield held
    finally:
        for line in held:
            line.close()


def test_idle_sockets_keep_nobody_out_who_holds_the_token(token_of: Callable[[str], str]) -> None:
    with running(child({"STRANGERS": 64, "STRANGERS_OF_ADDRESS": 32}, token=True)) as (_, address):
        port, token = port_of(address), token_of(address)
        with connect(port) as inside:
            assert asked(inside, port, token) == 200
            with idle(port, 150):
                for _ in range(5):
                    assert get(port, "/api/seats", token)[0] == 200
                assert asked(inside, port, token) == 200  # its connection was never closed for theirs


def test_sockets_that_reconnect_keep_nobody_out_who_holds_the_token(token_of: Callable[[str], str]) -> None:
    with running(child(token=True)) as (_, address), ExitStack() as ends:
        port, token, over = port_of(address), token_of(address), threading.Event()
        ends.callback(over.set)

        def again() -> None:
            while not over.is_set():
                with suppress(OSError), idle(port, 7) as held:
                    read_end(held[0])

        for _ in range(20):
            threading.Thread(target=again, daemon=True).start()
        with connect(port) as inside:
            for _ in range(20):
                assert get(port, "/api/seats", token)[0] == 200
                assert asked(inside, port, token) == 200


def test_the_longest_silent_of_the_largest_crowd_goes_and_others_of_it_stay() -> None:
    with running(child({"STRANGERS_OF_ADDRESS": 3}, token=True)) as (_, address):
        port = port_of(address)
        with idle(port, 3) as held, connect(port) as newest:
            assert read_end(held[0])
            assert asked(held[1], port) == 401
            assert asked(newest, port) == 401


def test_a_crowd_that_connects_at_once_and_asks_at_once_is_answered() -> None:
    """Also those whose requests have come, but are not read yet when the next ones connect."""
    with running(child({"STRANGERS_OF_ADDRESS": 32}, token=True)) as (process, address):
        port = port_of(address)
        process.send_signal(signal.SIGSTOP)
        with idle(port, 64) as held:
            for line in held:
                line.sendall(f"GET /health HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode())
            process.send_signal(signal.SIGCONT)
            assert {line.recv(65536)[:12] for line in held} <= {b"HTTP/1.1 200", b"HTTP/1.1 503"}


def test_those_who_have_gone_before_they_were_looked_at_take_nobody_s_place(token_of: Callable[[str], str]) -> None:
    """A storm of sockets that connect and close at once; nothing of it reaches the terminal."""
    with running(child({"STRANGERS_OF_ADDRESS": 8}, token=True)) as (process, address):
        port, token = port_of(address), token_of(address)
        process.send_signal(signal.SIGSTOP)
        for line in [connect(port) for _ in range(60)]:
            line.close()
        with connect(port) as visitor:
            visitor.sendall(f"GET /api/seats HTTP/1.1\r\nHost: localhost:{port}\r\n{token}\r\n\r\n".encode())
            process.send_signal(signal.SIGCONT)
            assert visitor.recv(12) == b"HTTP/1.1 200"


def test_where_no_stranger_can_go_a_new_one_is_told_to_come_back() -> None:
    with running(child({"STRANGERS_OF_ADDRESS": 1}, token=True)) as (_, address):
        port = port_of(address)
        with connect(port) as slow:  # asks for more than it reads
            slow.sendall(f"GET /static/large HTTP/1.1\r\nHost: localhost:{port}\r\n\r\n".encode())
            assert slow.recv(10) == b"HTTP/1.1 2"
            status, headers, body = get(port)
            assert (status, headers["retry-after"], json.loads(body)["error"]["code"]) == (503, "1", "busy")


def test_among_visitors_the_longest_silent_goes(token_of: Callable[[str], str]) -> None:
    with running(child({"GUESTS": 2}, token=True)) as (_, address):
        port, token = port_of(address), token_of(address)
        with idle(port, 3) as held:
            assert [asked(line, port, token) for line in held] == [200, 200, 200]
            assert read_end(held[0])
            assert [asked(line, port, token) for line in held[1:]] == [200, 200]


def test_whoever_does_not_read_what_it_asked_for_does_not_stay() -> None:
    with running(child({"STALLED_SECONDS": 0.3}, token=True)) as (_, address), connect(port_of(address)) as line:
        line.sendall(f"GET /static/large HTTP/1.1\r\nHost: localhost:{port_of(address)}\r\n\r\n".encode())
        time.sleep(1.5)
        taken = 0
        with suppress(ConnectionResetError):
            while piece := line.recv(1_000_000):
                taken += len(piece)
        assert taken < 100_000_000


def test_strangers_may_be_idle_for_less_long(token_of: Callable[[str], str]) -> None:
    with running(child({"STRANGERS_IDLE_SECONDS": 0.2}, token=True)) as (_, address):
        port, token = port_of(address), token_of(address)
        with connect(port) as stranger, connect(port) as visitor:
            assert (asked(visitor, port, token), asked(stranger, port)) == (200, 401)
            assert read_end(stranger)
            assert asked(visitor, port, token) == 200


# ---- the access log and the metrics


def test_the_access_log_has_a_line_a_request_and_never_a_token(tmp_path: Path, token_of: Callable[[str], str]) -> None:
    place = tmp_path / "access.jsonl"
    with running(child(token=True, log=str(place))) as (_, address):
        port, token = port_of(address), token_of(address)
        secret = token.split()[-1]
        cookie = get(port, f"/?token={secret}")[1]["set-cookie"].partition(";")[0]
        get(port, f"/api/{secret}?token={secret}", token)
        get(port, "/api/seats", f"Cookie: {cookie}")
        get(port, "/?token=wrong")
        text = place.read_text("utf-8")
    lines = [json.loads(line) for line in text.splitlines()]
    visitor = cookie.partition("=")[2].partition(".")[0]
    assert [(line["route"], line["status"], line["who"], line["code"]) for line in lines] == [
        ("/", 303, visitor, None), ("/api", 200, "script", None), ("/api", 200, visitor, None),
        ("/", 401, None, "wrong-token"),
    ]  # fmt: skip
    assert {line["address"] for line in lines} == {"127.0.0.1"}
    assert all(set(line) == set(lines[0]) and line["ms"] >= 0 for line in lines)
    assert secret not in text
    assert cookie.partition(".")[2] not in text
    assert place.stat().st_mode & 0o077 == 0


VISIT = Visit(0.0, "10.0.0.7", "", "", "GET", "/", 200, "", 0.001)


def test_the_access_log_begins_a_new_file_when_one_is_large_and_keeps_only_so_many(tmp_path: Path) -> None:
    place = tmp_path / "access.jsonl"
    log = AccessLog(place, largest=300, kept=2)
    for k in range(20):
        log.note(replace(VISIT, status=200 + k))
    log.close()
    names = ["access.jsonl", "access.jsonl.1", "access.jsonl.2"]
    assert sorted(each.name for each in tmp_path.iterdir()) == names
    kept = [json.loads(line)["status"] for name in names[::-1] for line in (tmp_path / name).read_text().splitlines()]
    assert kept == list(range(kept[0], 220))
    assert all((tmp_path / name).stat().st_size < 600 for name in names)


def test_an_access_log_that_cannot_be_written_stops_nothing_but_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(StorageError):
        AccessLog(tmp_path / "no" / "folder")
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError):
        AccessLog(tmp_path / "link")
    log = AccessLog(tmp_path / "access.jsonl", largest=1)
    log.note(VISIT)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    log.note(VISIT)
    log.note(VISIT)
    assert log.lost == 2
    monkeypatch.undo()
    log.note(VISIT)
    log.close()
    assert log.lost == 2
    with pytest.raises(StorageError):
        serving.serve(lambda: pytest.fail("made"), port=0, log=tmp_path / "link", logged=True)


def test_a_log_that_nobody_asked_for_may_be_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    lines = Served(monkeypatch).serve(token=True, log=tmp_path / "no" / "folder")
    assert lines[-1].startswith("Requests are not logged: ")
    assert Served(monkeypatch).serve(log=tmp_path / "access.jsonl")[1:] == []  # without a token, none is kept
    assert not (tmp_path / "access.jsonl").exists()
    assert str(tmp_path / "access.jsonl") in Served(monkeypatch).serve(token=True, log=tmp_path / "access.jsonl")[-1]


@pytest.mark.parametrize("content", ["", "short", "with a space in it, and long enough", "\xe9" * 20])
def test_a_token_for_monitoring_must_be_one(tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text(content, "utf-8")
    for file in (tmp_path / "token", tmp_path / "absent"):
        with pytest.raises(OptionError, match="--metrics-token"):
            serving.serve(lambda: pytest.fail("made"), port=0, metrics_token=file)


# ---- the end


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_without_a_word(number: signal.Signals) -> None:
    with running(child()) as (process, address), connect(port_of(address)) as line:
        line.sendall(b"GET / HT")  # someone is still connected
        process.send_signal(number)
        out, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, out, errors) == (0, "", "")


def test_it_ends_while_a_computation_is_under_way() -> None:
    code = (
        "import time\nfrom counterflow.console import app, service, views\n"
        "from counterflow.console.opening import Opened\nservice.STOPPING = 0.1\n"
        "def seats():\n    print('computing', flush=True)\n    time.sleep(3600)\n"
        "views.VIEWS[0] = (*views.VIEWS[0][:3], seats)\n"
        "service.serve(lambda: app.application(Opened('x', {})), port=0, browser=False)\n"
    )
    with running(["-c", code]) as (process, address), connect(port_of(address)) as line:
        line.sendall(f"GET /api/seats HTTP/1.1\r\nHost: localhost:{port_of(address)}\r\n\r\n".encode())
        assert process.stdout is not None
        assert process.stdout.readline() == "computing\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE)
        assert (process.returncode, "Traceback" in errors) == (0, False)
        told = line.recv(65536)
        assert told.startswith(b"HTTP/1.1 503")
        assert b'"code":"stopping"' in told


def test_a_signal_before_it_is_up_ends_it_too() -> None:
    code = (
        "import os, signal, time\nfrom counterflow.console import service as serving\n"
        "def make(): os.kill(os.getpid(), signal.SIGTERM); time.sleep(60)\n"
        "serving.serve(make, port=0, browser=False)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# ---- the token


def test_a_console_with_a_token_tells_the_address_that_holds_it() -> None:
    with running(child(token=True, hours=2)) as (process, address):
        port = port_of(address)
        found = re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=([\w-]{43})", address)
        assert found
        assert process.stdout is not None
        assert "good for 2 h" in process.stdout.readline()
        assert get(port)[0] == 401
        assert get(port, "/api/seats", f"Authorization: Bearer {found[1]}")[0] == 200
        status, headers, _ = get(port, f"/?token={found[1]}")
        assert (status, headers["location"]) == (303, "/")
        assert get(port, "/api/seats", "Cookie: " + headers["set-cookie"].partition(";")[0])[0] == 200


class Served:
    """Stands for the server: notes what it is given, and says that it is up."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines: list[str] = []
        self.opened: list[str] = []
        self.guards: list[Any] = []
        self.place: serving.Place | None = None
        listen = serving.listen

        def listening(host: str, port: int) -> serving.Place:
            # at this machine's own address only: the test must not open a port to others
            found = listen("127.0.0.1", port)
            self.place = SimpleNamespace(
                listener=found.listener, host=host, port=found.port, private=host == "127.0.0.1",
                names=[host, "127.0.0.1"],
            )  # fmt: skip
            return self.place

        def server(guard: Any, announce: Callable[[], None], *_: Any) -> Any:
            self.guards.append(guard)
            return SimpleNamespace(run=lambda sockets: announce())

        monkeypatch.setattr(serving, "listen", listening)
        monkeypatch.setattr(serving, "_server", server)
        monkeypatch.setattr(serving, "_open", self.opened.append)
        monkeypatch.setenv("DISPLAY", ":0")

    def serve(self, **options: Any) -> list[str]:
        serving.serve(lambda: self.guards.append, say=self.lines.append, **{"port": 0, **options})
        return self.lines


def test_another_address_than_this_machines_makes_a_token_and_says_what_that_means(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = Served(monkeypatch)
    first, whose, warning = served.serve(host="192.0.2.7")
    assert re.match(r"Counterflow console: http://192\.0\.2\.7:\d+/\?token=[\w-]{43} ", first)
    assert "it holds the token, which is good for 12 h" in whose
    assert "Other machines can reach this console, and what it sends is not encrypted." in warning
    assert served.place is not None
    assert f"ssh -L {served.place.port}:127.0.0.1:{served.place.port} " in warning
    assert served.opened == []  # a browser's command line can be read by all users of the machine
    again = Served(monkeypatch).serve(host="192.0.2.7")
    assert again[0].partition("token=")[2] != first.partition("token=")[2]


def test_the_token_is_obligatory_where_others_can_come(monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(monkeypatch)
    with pytest.raises(OptionError, match=r"--no-token: other machines can reach 192\.0\.2\.7"):
        served.serve(host="192.0.2.7", token=False)
    with pytest.raises(OptionError, match=r"--no-token: other machines can reach https://c\.example"):
        served.serve(behind="https://c.example", token=False)
    assert served.guards == []


def test_at_home_there_is_none_and_the_browser_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    served = Served(monkeypatch)
    (line,) = served.serve()
    assert served.place is not None
    assert served.opened == [f"http://127.0.0.1:{served.place.port}/"]
    assert line == f"Counterflow console: {served.opened[0]}  (Ctrl-C to stop)"
    assert Served(monkeypatch).serve(token=False) != []
    for options in ({"browser": False}, {"token": True}):
        other = Served(monkeypatch)
        other.serve(**options)
        assert other.opened == []


def test_behind_a_proxy_its_address_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Served(monkeypatch).serve(behind="https://Console.example.org/")
    assert lines[0].startswith("Counterflow console: https://console.example.org/?token=")
    assert "the proxy must pass the Host header on" in lines[-1]
    assert not any("not encrypted" in line for line in lines)


@pytest.mark.parametrize(
    "behind", ["http://a.example", "a.example", "https://", "https://a.example/x", "https://u@a.example", "https://a:x"]
)
def test_a_proxys_address_must_be_one(behind: str) -> None:
    with pytest.raises(OptionError, match="--behind"):
        serving.serve(lambda: pytest.fail("made"), port=0, behind=behind)


@pytest.mark.parametrize("hours", [0.0, -1.0, float("nan")])
def test_hours_must_be_positive(hours: float) -> None:
    with pytest.raises(OptionError, match="--hours"):
        serving.serve(lambda: pytest.fail("made"), port=0, hours=hours)


def test_without_a_screen_no_browser_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    monkeypatch.setattr(sys, "platform", "linux")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    assert not serving._has_browser()
    monkeypatch.setenv("WAYLAND_DISPLAY", "wayland-0")
    assert serving._has_browser()
    monkeypatch.delenv("WAYLAND_DISPLAY")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert serving._has_browser()


# ---- the place


def test_a_taken_port_is_told_by_its_option() -> None:
    place = serving.listen("127.0.0.1", 0)
    with place.listener, pytest.raises(OptionError, match=f"--port {place.port} at 127.0.0.1 is taken.*--port 0"):
        serving.listen("127.0.0.1", place.port)


@pytest.mark.parametrize("host", ["", "192.0.2.1", "no address at all"])
def test_an_address_of_another_machine_is_told_by_its_option(host: str) -> None:
    with pytest.raises(OptionError, match="--host"):
        serving.listen(host, 0)


@pytest.mark.parametrize(
    ("host", "private"), [("127.0.0.1", True), ("localhost", True), ("127.0.0.2", True), ("0.0.0.0", False)]
)
def test_it_is_known_who_can_reach_a_place(host: str, private: bool) -> None:
    place = serving.listen(host, 0)
    with place.listener:
        assert place.private is private
        assert {"127.0.0.1", "localhost", "::1"} <= set(place.names)
        assert place.names[0] == (socket.gethostname().lower() if host == "0.0.0.0" else host)
        assert "0.0.0.0" not in place.names


def test_what_is_missing_is_told_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "find_spec", lambda name: None if name in ("uvicorn", "plotly") else object())
    done = run("fit")
    assert done.exit_code == 2
    assert "the console needs uvicorn, plotly: pip install 'counterflow[console]'" in done.stderr


# ---- the command


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command_line, ["console", *arguments], env={"COLUMNS": "120", "NO_COLOR": "1"})


def test_the_command_passes_everything_on(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def create(model: Path, **options: Any) -> str:
        asked.update(model=model, **options)
        return "the application"

    def serve(make: Callable[[], Any], **options: Any) -> None:
        asked.update(app=make(), **options)

    monkeypatch.setitem(sys.modules, "counterflow.console.app", SimpleNamespace(create=create))
    monkeypatch.setattr(serving, "serve", serve)
    assert run("fit").exit_code == 0
    assert asked == {
        "app": "the application", "model": Path("fit"), "data": None, "seats": (), "policies": (), "host": "127.0.0.1",
        "port": serving.PORT, "token": None, "hours": serving.HOURS, "behind": None, "browser": True,
        "metrics_token": None, "log": Path("fit/console-access.jsonl").absolute(), "logged": None,
    }  # fmt: skip
    done = run(
        "fit", "--data", "r.safetensors", "--seat", "server", "--seat", "turbine", "--policy", "p.toml", "--host", "::",
        "--port", "0", "--token", "--hours", "3", "--no-browser", "--behind", "https://a.example",
        "--metrics-token", "m", "--access-log", "a.jsonl",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    assert asked == {
        "app": "the application", "model": Path("fit"), "data": Path("r.safetensors"), "seats": ["server", "turbine"],
        "policies": [Path("p.toml")], "host": "::", "port": 0, "token": True, "hours": 3.0,
        "behind": "https://a.example", "browser": False, "metrics_token": Path("m"), "log": Path("a.jsonl"),
        "logged": True,
    }  # fmt: skip
    assert run("fit", "--no-token", "--no-access-log").exit_code == 0
    assert (asked["token"], asked["logged"]) == (False, False)


def test_the_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom counterflow.cli import app\n"
        "try: app(['console', '--help'])\nexcept SystemExit: pass\n"
        "print(sorted({'numpy', 'fastapi', 'uvicorn', 'plotly', 'counterflow.console'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=ENVIRONMENT, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_fit_is_served_until_ctrl_c(tmp_path: Path) -> None:
    for arguments in (
        ["simulate", "--out", str(tmp_path / "r.safetensors"), "--units", "boiler,turbine", "--steps", "300"],
        ["fit", str(tmp_path / "federation.toml"), "--out", str(tmp_path / "fit")],
    ):
        done = CliRunner().invoke(command_line, arguments)
        assert done.exit_code == 0, done.output
    command = ["-m", "counterflow.cli", "console", str(tmp_path / "fit"), "--port", "0", "--no-browser"]
    with running([*command, "--data", str(tmp_path / "r.safetensors")]) as (process, address):
        port = port_of(address)
        status, headers, body = get(port, "/api/seats")
        assert status == 200
        assert headers["cache-control"] == "no-store"
        assert {seat["id"] for seat in json.loads(body)["seats"]} == {"server", "unit:boiler", "unit:turbine"}
        status, headers, body = get(port, "/")
        assert (status, headers["content-type"].partition(";")[0]) == (200, "text/html")
        assert b"<html" in body
        units = json.loads(get(port, "/api/seats/unit:turbine/plant")[2])["units"]
        channel = next(unit["inputs"][0]["name"] for unit in units if unit["name"] == "boiler")
        question = {"effect": "turbine", "changes": [{"unit": "boiler", "input": channel, "size": 1.0}]}
        content = json.dumps(question).encode()
        head = f"POST /api/seats/unit:turbine/effect HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n"
        kind = f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
        assert exchange(port, f"{head}{kind}".encode() + content)[0] == 200
        assert get(port, "/health")[0] == 200
        status, headers, body = get(port, "/metrics")
        assert (status, headers["content-type"].partition(";")[0]) == (200, "text/plain")
        samples = dict(line.rsplit(" ", 1) for line in body.decode().splitlines() if not line.startswith("#"))
        requests = 'counterflow_console_requests_total{method="%s",route="%s",status="200"}'
        assert samples[requests % ("GET", "/api/seats")] == "1.0"
        assert samples[requests % ("POST", "/api/seats/{seat}/effect")] == "1.0"
        assert samples['counterflow_console_questions_total{kind="effect"}'] == "1.0"
        assert samples['counterflow_console_request_seconds_bucket{le="+Inf",route="/api/seats"}'] == "1.0"
        assert samples['counterflow_console_connections{of="visitors"}'] == "1.0"
        assert 0 <= float(samples["counterflow_model_age_seconds"]) < 600
        assert any(name.startswith("counterflow_model_info{") and '/fit",' in name for name in samples)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, out, errors) == (0, "", "")
