"""The console under load and under attack: many visitors at once, idle, reconnecting and slow sockets.

A real ``counterflow console`` with a token, and one process that plays visitors and attackers, share this machine. All
come from one address, as through a proxy or NAT: the worst case. Run: python benchmarks/bench_console_load.py
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import machine
import numpy as np

import counterflow as cf

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from console_browser import serving

VISITORS, QUESTIONS = 200, 5
IDLE, RECONNECTING, CROWDED, SLOW = 500, 140, 700, 140  # one address may have 512 connections without a token
ASKED = 100  # questions of one visitor under an attack
DEADLINE = 30.0


@dataclass
class Line:
    """One connection; answers are read whole, or something is wrong."""

    port: int
    headers: str = ""
    reader: asyncio.StreamReader | None = None
    writer: asyncio.StreamWriter | None = None

    async def ask(self, path: str, question: dict[str, Any] | None = None) -> tuple[int, dict[str, str], bytes]:
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        assert self.reader is not None
        body = b"" if question is None else json.dumps(question).encode()
        kind = "" if question is None else f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        first = f"{'GET' if question is None else 'POST'} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\n"
        self.writer.write(f"{first}{self.headers}{kind}\r\n".encode() + body)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        told = {name.lower(): value for name, _, value in (each.partition(": ") for each in head[1:-2])}
        content = await self.reader.readexactly(int(told.get("content-length", 0)))
        if told.get("connection") == "close":
            self.close()
        return int(head[0].split()[1]), told, content

    def close(self) -> None:
        if self.writer is not None:
            self.writer.transport.abort()
        self.reader = self.writer = None


@dataclass
class Tally:
    """How requests ended."""

    statuses: Counter[int] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)  # of answers
    refused: list[float] = field(default_factory=list)
    cut: int = 0
    unclear: int = 0  # refusals that do not say when to come back

    async def ask(self, line: Line, path: str, question: dict[str, Any] | None = None) -> bytes:
        began = perf_counter()
        try:
            async with asyncio.timeout(DEADLINE):
                status, told, content = await line.ask(path, question)
        except (OSError, EOFError, TimeoutError):
            self.cut += 1
            line.close()
            return b""
        self.statuses[status] += 1
        (self.seconds if status < 400 else self.refused).append(perf_counter() - began)
        self.unclear += status >= 400 and "retry-after" not in told
        if status >= 400:
            await asyncio.sleep(float(told.get("retry-after", 1)))
        return content

    def row(self, name: str) -> str:
        def p95(seconds: list[float]) -> str:
            return f"{1e3 * float(np.percentile(seconds, 95)):.0f}" if seconds else "-"

        total = sum(self.statuses.values()) + self.cut
        median = f"{1e3 * float(np.median(self.seconds)):.0f}" if self.seconds else "-"
        busy = sum(count for status, count in self.statuses.items() if status in (429, 503)) - self.unclear
        return (
            f"| {name} | {total} | {len(self.seconds)} | {busy} | {self.unclear} | {self.cut} | {median} | "
            f"{p95(self.seconds)} | {p95(self.refused)} |"
        )


@dataclass(frozen=True)
class Target:
    """A console and a question that it can answer."""

    port: int
    token: str
    seat: str
    question: dict[str, Any]

    def sized(self, k: int) -> dict[str, Any]:
        first, *rest = self.question["changes"]
        return {**self.question, "changes": [{**first, "size": 0.1 + 0.001 * k}, *rest]}

    async def visitor(self, tally: Tally, pause: float, offset: int) -> None:
        """A browser: the printed address, then the page, the seats, and questions."""
        line = Line(self.port)
        cookie = ""
        for _ in range(20):  # as a person would, who is told to try again
            try:
                _, told, _ = await line.ask(f"/?token={self.token}")
            except (OSError, EOFError):
                tally.cut += 1
                line.close()
                continue
            if "set-cookie" in told:
                cookie = told["set-cookie"].partition(";")[0]
                break
            await asyncio.sleep(float(told.get("retry-after", 1)))
        line.headers = f"Cookie: {cookie}\r\n"
        for path in ("/", "/api/seats", f"/api/seats/{self.seat}/plant"):
            await tally.ask(line, path)
        for k in range(QUESTIONS):
            await tally.ask(line, f"/api/seats/{self.seat}/effect", self.sized(offset * QUESTIONS + k))
            await asyncio.sleep(pause)
        line.close()

    async def asker(self, tally: Tally, fresh: bool) -> None:
        """One visitor with the token; ``fresh``: a new connection for every question."""
        line = Line(self.port, f"Authorization: Bearer {self.token}\r\n")
        for k in range(ASKED):
            await tally.ask(line, f"/api/seats/{self.seat}/effect", self.sized(k))
            if fresh:
                line.close()
            await asyncio.sleep(0.02)
        line.close()


async def crowd(target: Target, pause: float) -> Tally:
    tally = Tally()
    await asyncio.gather(*(target.visitor(tally, pause, k) for k in range(VISITORS)))
    return tally


@asynccontextmanager
async def attack(port: int, sockets: int, first: bytes, *, reads: bool, again: bool) -> Any:
    """So many sockets that send ``first`` and then say nothing; ``again``: whoever is closed connects anew."""

    async def one() -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**16)
                writer.write(first)
                while reads and await reader.read(65536):
                    pass
                if not reads:
                    await asyncio.sleep(3600)
                writer.transport.abort()
            except OSError:
                pass
            if not again:
                await asyncio.sleep(3600)

    tasks = [asyncio.create_task(one()) for _ in range(sockets)]
    await asyncio.sleep(1.0)
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def attacked(
    target: Target, sockets: int, first: bytes, *, reads: bool = True, again: bool = True
) -> list[Tally]:
    out = []
    for fresh in (True, False):
        async with attack(target.port, sockets, first, reads=reads, again=again):
            out.append(Tally())
            await target.asker(out[-1], fresh)
    return out


def memory(pid: int) -> str:
    try:
        lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    except OSError:
        return "-"
    return next(f"{int(line.split()[1]) / 1e3:.0f} MB" for line in lines if line.startswith("VmHWM"))


def main() -> None:
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        plant = cf.random_plant(units=8, states=4, inputs=2, outputs=8, topology="sparse", rng=1)
        fit = cf.fit(plant.simulate(2000, rng=2), plant.locals())
        fit.save(place / "fit")
        cause, effect = fit.graph(0.05).direct()[0]
        change = {"unit": cause, "input": plant.unit(cause).inputs[0].name, "shape": "step", "size": 0.5}
        question = {"effect": effect, "changes": [change], "horizon": 60}
        big = b"GET /static/plotly.min.js HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n"
        rows, peaks = [], []

        def run(name: str, scenario: Any) -> None:
            with serving(place / "fit", "--token") as served:
                target = Target(served.port, served.told.partition("token=")[2], f"unit:{effect}", question)
                found = asyncio.run(scenario(target))
                ways = ["; a connection for each", "; one connection"] if isinstance(found, list) else [""]
                rows.extend(
                    tally.row(name + way)
                    for way, tally in zip(ways, found if isinstance(found, list) else [found], strict=True)
                )
                peaks.append(f"{name} {memory(served.process.pid)}")
                print(rows[-1], flush=True)

        async def alone(target: Target) -> list[Tally]:
            return await attacked(target, 0, b"")

        run("one visitor alone", alone)
        run(f"{VISITORS} visitors, a question a second each", lambda target: crowd(target, 1.0))
        run(f"{VISITORS} visitors who never pause", lambda target: crowd(target, 0.0))
        run(f"{IDLE} idle sockets", lambda target: attacked(target, IDLE, b"", again=False))
        run(f"{RECONNECTING} reconnecting sockets", lambda target: attacked(target, RECONNECTING, b""))
        run(f"{CROWDED} reconnecting sockets", lambda target: attacked(target, CROWDED, b""))
        run(f"{RECONNECTING} sockets with half a request", lambda target: attacked(target, RECONNECTING, b"GET / HT"))
        run(
            f"{RECONNECTING} sockets that ask without a token, over and over",
            lambda target: attacked(
                target, RECONNECTING,
                b"GET /api/seats HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nConnection: close\r\n\r\n" % target.port,
            ),
        )  # fmt: skip
        run(
            f"{SLOW} sockets that ask for the largest file and do not read it",
            lambda target: attacked(target, SLOW, big % target.port, reads=False),
        )
    lines = [
        "# The console under load and under attack",
        "",
        f"{machine.description('fastapi', 'uvicorn')}. The console (with a token), its visitors and its attackers "
        "share these cores and one address (127.0.0.1). A plant of eight units with four states each, effects over 60 "
        f"steps. Under an attack, one visitor with the token asks {ASKED} questions.",
        f"Load average of the machine before {before:.1f}, after {os.getloadavg()[0]:.1f} (1 minute).",
        "",
        "Busy: a clear 503 or 429 that says when to come back. Unclear: any other refusal. Cut: no answer, or not all "
        "of one. Milliseconds of answers, and of what is told to be busy (p95).",
        "",
        "| | requests | answered | busy | unclear | cut | median ms | p95 ms | busy p95 ms |",
        "|---|---|---|---|---|---|---|---|---|",
        *rows,
        "",
        f"Peak memory of the console: {'; '.join(peaks)}.",
    ]
    machine.write("console_load", "\n".join(lines))


if __name__ == "__main__":
    main()
