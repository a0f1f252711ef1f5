"""A console as a process and a browser in front of it, for tests that use the page as people do.

The browser is the machine's own Chromium. Where there is none the tests are skipped and say what to install, unless
the environment has COUNTERFLOW_BROWSER_TESTS=required: then its absence is a failure.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np
import pytest
from linear_steam_plant import linear_steam_plant, record_incident

import counterflow as cf
from counterflow import wording

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
PATIENCE = 60.0  # seconds that nothing takes on a machine that works
ROWS = 1500
PLANT = linear_steam_plant()
RECORDING = PLANT.simulate(ROWS, rng=0, inputs=record_incident(PLANT, ROWS, 0)[0])
SEAT = "unit:turbine"
FUEL = {"unit": "boiler", "input": "fuel valve", "size": 5.0}
ASKED: dict[str, Any] = {"effect": "turbine", "changes": [FUEL], "horizon": 40, "level": 0.95, "draw": None}
TABS = ("effect", "past", "explain", "restore", "forecast", "aggregate", "influence")
WIDE, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}


@cache
def fitted() -> cf.Fit:
    return cf.fit(RECORDING, PLANT.locals())


def _missing(what: str, remedy: str) -> None:
    reason = f"the console's page is not tested: {what} is not installed; {remedy}"
    if os.environ.get("COUNTERFLOW_BROWSER_TESTS") == "required":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@contextmanager
def browsing() -> Iterator[Browser]:
    """Chromium; a skip or a failure that says what to install where there is none."""
    for package in ("fastapi", "uvicorn", "plotly", "playwright"):
        if find_spec(package) is None:
            _missing(f"the package {package}", "pip install 'counterflow[dev]'")
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((place for name in names if (place := shutil.which(name))), None)
    if found is None:
        _missing("a browser (chromium)", "apt install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS, timeout=1e3 * PATIENCE)
        try:
            yield browser
        finally:
            browser.close()


@dataclass
class Served:
    """A console that runs: its process, and the address that it told."""

    process: subprocess.Popen[str]
    told: str

    @property
    def address(self) -> str:
        """Without a token."""
        return self.told.partition("?")[0]

    @property
    def port(self) -> int:
        return int(self.address.rstrip("/").rpartition(":")[2])

    def stop(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)


@contextmanager
def serving(model: Path, *options: str, port: int = 0) -> Iterator[Served]:
    """``counterflow console MODEL`` in a process of its own, up."""
    command = [sys.executable, "-m", "counterflow.cli", "console", str(model), "--port", str(port), "--no-browser"]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    with subprocess.Popen(
        [*command, *options], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.match(r"Counterflow console: (http://\S+)", line)
            assert found, line + (process.stdout.read() if process.poll() is not None else "")
            yield Served(process, found[1])
        finally:
            process.kill()


@dataclass
class Desk:
    """One visitor: a page in a context of its own, and whatever was wrong in it."""

    context: BrowserContext
    page: Page
    address: str
    wrong: list[str] = field(default_factory=list)
    expected: tuple[str, ...] = ()  # parts of messages that a test provokes

    def watch(self, page: Page) -> None:
        """Errors of the page, refusals of its security policy, and requests that leave the console."""
        page.on("pageerror", lambda error: self.wrong.append(f"error in the page: {error}"))
        page.on("console", self._console)
        page.on("request", lambda request: self._request(request.url))

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.wrong.append(f"{message.type} in the console: {message.text} {message.location.get('url', '')}")

    def _request(self, url: str) -> None:
        if not url.startswith((self.address, "data:", f"blob:{self.address}")):
            self.wrong.append(f"a request left the console: {url}")

    def unexpected(self) -> list[str]:
        return [text for text in self.wrong if not any(part in text for part in self.expected)]

    # ---- what a visitor does

    def open(self, seat: str | None = None, ask: str = "effect", question: dict[str, Any] | None = None) -> Page:
        """Open the page, or a link to a question."""
        told = "" if seat is None else "#" + quote(json.dumps({"seat": seat, "ask": ask, "question": question}))
        self.page.goto(self.address + told)
        return self.page

    def until(self, wanted: Callable[[], Any], what: str) -> Any:
        """Wait for something to be true; its value."""
        ends = time.monotonic() + PATIENCE
        while True:
            value = wanted()
            if value:
                return value
            assert time.monotonic() < ends, f"{what}: it has not come about. Wrong so far: {self.wrong}"
            self.page.wait_for_timeout(20)

    def drawn(self) -> list[dict[str, Any]]:
        """What is plotted as the answer: one dictionary a trace, with the panel's title; [] until there is a plot."""
        return self.page.evaluate(TRACES)

    def curve(self, title: str, name: str) -> list[float]:
        """The y of the trace whose title and name begin so; [] until it is there."""
        drawn = self.drawn()
        found = [each["y"] for each in drawn if each["title"].startswith(title) and each["name"].startswith(name)]
        return found[0] if found else []

    def sentence(self) -> str:
        return self.page.inner_text("#sentence")

    def question(self) -> dict[str, Any]:
        """What the address asks."""
        return self.page.evaluate("() => JSON.parse(decodeURIComponent(location.hash.slice(1)))")

    def rows(self, table: str = "#ranked") -> list[list[str]]:
        """The cells of a table's body."""
        return self.page.evaluate(CELLS, table)


TRACES = """() => {
  const plot = document.getElementById("answer-plot");
  if (!plot.data || plot.closest("[hidden]")) return [];
  const titles = plot.layout.annotations.map((note) => note.text);
  return plot.data.map((trace) => ({
    name: trace.name, title: titles[Number((trace.yaxis ?? "y").slice(1) || 1) - 1] ?? titles[0],
    x: Array.from(trace.x), y: Array.from(trace.y), stack: trace.stackgroup ?? null,
  }));
}"""
CELLS = """(table) => [...document.querySelectorAll(`${table} tbody tr`)].map(
  (row) => [...row.cells].map((cell) => cell.innerText.replace(/\\s+/g, " ").trim()))"""


@contextmanager
def sitting(browser: Browser, address: str, **options: Any) -> Iterator[Desk]:
    """A visitor of a console, who leaves only if nothing was wrong in the page."""
    context = browser.new_context(**{"viewport": WIDE, "device_scale_factor": 1, "locale": "en-GB", **options})
    context.set_default_timeout(1e3 * PATIENCE)
    try:
        page = context.new_page()
        desk = Desk(context, page, address)
        desk.watch(page)
        context.on("page", desk.watch)
        yield desk
        assert not desk.unexpected(), desk.unexpected()
    finally:
        context.close()


def screenshot(desk: Desk, name: str, height: int | None = None) -> None:
    """Leave a picture of the page where COUNTERFLOW_SCREENSHOTS says, if it does; ``height``: a taller window."""
    folder = os.environ.get("COUNTERFLOW_SCREENSHOTS")
    if folder is None:
        return
    if height is not None:
        desk.page.set_viewport_size({**WIDE, "height": height})
    desk.page.mouse.move(0, 0)
    desk.page.wait_for_timeout(800)  # what is asked when things have been still is drawn too
    desk.page.evaluate("() => { document.activeElement.blur(); scrollTo(0, 0); }")
    place = Path(folder) / name
    place.parent.mkdir(parents=True, exist_ok=True)
    desk.page.screenshot(path=place)
    assert place.stat().st_size < 250_000, f"{name} is too large for the docs"


# ---- what the page should show of an answer


def shown(text: str) -> str:
    """As the page writes it."""
    return re.sub(r"(?<![\w-])-(?=\.?\d)", "−", text).replace(" -> ", " → ")


def table_of(
    fit: cf.Fit, found: cf.Effect | cf.Trajectory, changed: np.ndarray, ends: tuple[np.ndarray, np.ndarray], first: int
) -> list[list[Any]]:
    """The ranked table: channel, change, interval, when, times noise; and whether the sign is sure."""
    unit = found.effect if isinstance(found, cf.Effect) else found.unit
    scale = np.sqrt(np.diag(fit.parts[unit].model.R))
    rows = []
    for k, channel in enumerate(fit.plant.unit(unit).outputs):
        at = int(np.abs(changed[:, k]).argmax())
        low, high = (float(end[at, k]) for end in ends)
        value, interval = wording.measured(float(changed[at, k]), low, high, channel.unit, sign=True)
        size = abs(changed[at, k]) / scale[k]
        when = f"{at + first} min" if isinstance(found, cf.Effect) else f"minute {at + first}"
        text = f"{wording.number(size, 1 if size < 10 else 0)}×"
        rows.append((size, [channel.name, shown(value), shown(interval), when, text, low > 0 or high < 0]))
    return [row for _, row in sorted(rows, key=lambda each: -each[0])]


def effect_table(fit: cf.Fit, found: cf.Effect) -> list[list[Any]]:
    assert found.lower is not None
    assert found.upper is not None
    return table_of(fit, found, found.mean, (found.lower, found.upper), 1)


def agrees(rows: list[list[str]], wanted: list[list[Any]]) -> bool:
    """Whether the table that is shown is the one wanted; an interval that holds zero must be marked."""
    if len(rows) != len(wanted):
        return False
    for row, (*cells, sure) in zip(rows, wanted, strict=True):
        if [*row[:2], *row[3:]] != [*cells[:2], *cells[3:]] or not row[2].startswith(cells[2]):
            return False
        if ("sign not sure" in row[2]) is sure:
            return False
    return True


def says(fit: cf.Fit, found: cf.Effect, condition: str) -> str:
    """The sentence of an effect."""
    channel, _, _, when, *_ = effect_table(fit, found)[0]
    k, at = found.channels.index(channel), int(when.split()[0]) - 1
    value = found.mean[at, k]
    low, high = sorted(np.sign(value) * end[at, k] for end in (found.lower, found.upper))
    amount, interval = wording.measured(abs(float(value)), low, high, fit.plant.unit(found.effect).outputs[k].unit)
    verb = "rise" if value > 0 else "fall"
    band = f"({wording.percent(float(found.level or 0))}: {interval})"
    when = wording.span(at + 1, fit.plant.dt)
    return shown(f"If {condition}, {found.effect} {channel} would {verb} by {amount} {band} after {when}.")
