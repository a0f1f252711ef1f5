"""From a slider to the redrawn plot, in the browser: the console's page, its server and Chromium as one.

Run: python benchmarks/bench_console.py
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import machine
import numpy as np

import counterflow as cf

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from console_browser import Desk, Served, browsing, serving, sitting
from linear_steam_plant import linear_steam_plant, record_incident

MOVES, VISITS = 60, 7
HORIZON = 1000
# when things came into sight, in milliseconds since the visit began: looked at once a frame
SIGHT = """(() => {
  const seen = (window.sight = {});
  const marks = {
    nodes: "#graph .node", arrows: "#graph .edge", sentence: "#sentence:not(:empty)",
    sketch: "#answer-plot .sketch, #answer-plot .main-svg",
  };
  const look = () => {
    for (const [name, place] of Object.entries(marks)) {
      if (!(name in seen) && document.querySelector(place)) seen[name] = performance.now();
    }
    if (Object.keys(seen).length < 4) requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})()"""
NEXT = """(before) => new Promise((resolve) => {
  const look = () => {
    if (window.counterflowTimings.length > before) resolve(window.counterflowTimings.at(-1));
    else setTimeout(look, 1);
  };
  look();
})"""


@dataclass(frozen=True)
class Case:
    """A question, and the slider that is moved in it."""

    name: str
    fit: cf.Fit
    folder: Path
    seat: str
    effect: str
    changes: tuple[dict[str, Any], ...]
    horizon: int

    @property
    def question(self) -> dict[str, Any]:
        changes = list(self.changes)
        return {"effect": self.effect, "changes": changes, "horizon": self.horizon, "level": 0.95, "draw": None}


def saved(folder: Path, plant: cf.Plant, recording: cf.Recording) -> cf.Fit:
    found = cf.fit(recording, plant.locals())
    found.save(folder / "fit")
    recording.save(folder / "recording.safetensors")
    return found


def cases(place: Path) -> list[Case]:
    large = cf.random_plant(units=8, states=4, inputs=2, outputs=8, topology="sparse", rng=1)
    fit = saved(place / "large", large, large.simulate(2000, rng=2))
    cause, effect = fit.graph(0.05).direct()[0]
    first, second = (channel.name for channel in large.unit(cause).inputs)
    one = {"unit": cause, "input": first, "shape": "step", "size": 0.5, "start": 0, "length": None, "values": None}
    two = {**one, "input": second}
    demo = linear_steam_plant()
    steam = saved(place / "demo", demo, demo.simulate(4000, rng=0, inputs=record_incident(demo, 4000, 0)[0]))
    fuel = {**one, "unit": "boiler", "input": "fuel valve", "size": 2.0}
    where = (fit, place / "large" / "fit", f"unit:{effect}", effect)
    return [
        Case(f"M=8, P=4, U=2, D=8, horizon {HORIZON:,}: one input", *where, (one,), HORIZON),
        Case("the same, a second input changed too", *where, (one, two), HORIZON),
        Case("the same, a pulse of 100 steps", *where, ({**one, "shape": "pulse", "length": 100},), HORIZON),
        Case("the same, horizon 60", *where, (one,), 60),
        Case("a steam plant (M=3), horizon 60", steam, place / "demo/fit", "unit:turbine", "turbine", (fuel,), 60),
    ]  # fmt: skip


def visit(desk: Desk, case: Case) -> dict[str, float]:
    """Open a link to the question; when things came into sight, in ms."""
    page = desk.page
    page.add_init_script(SIGHT)
    desk.open(case.seat, "effect", case.question)
    first = page.evaluate(NEXT, 0)
    loaded = page.evaluate("() => performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd")
    sight = desk.until(lambda: _all_of(page.evaluate("() => window.sight")), "all parts of the page")
    return {"loaded": loaded, **sight, "drawn": first["drawn"], "question": first["received"] - first["sent"]}


def _all_of(sight: dict[str, float]) -> dict[str, float] | None:
    return sight if {"nodes", "arrows", "sentence", "sketch"} <= set(sight) else None


def slide(desk: Desk, case: Case) -> np.ndarray:
    """Press an arrow key so often; (moves, 3) ms from the key to the request, to its answer, to the redrawn plot."""
    page = desk.page
    page.focus(f'input[data-input="{case.changes[0]["unit"]}.{case.changes[0]["input"]}"]')
    rows = []
    for move in range(MOVES + 5):
        before = page.evaluate("() => window.counterflowTimings.length")
        page.keyboard.press("ArrowRight" if move % 20 < 10 else "ArrowLeft")
        told = page.evaluate(NEXT, before)
        rows.append([told["sent"] - told["input"], told["received"] - told["sent"], told["drawn"] - told["received"]])
    return np.array(rows[5:])  # the first ones warm up


def served_ms(served: Served, case: Case) -> tuple[float, int]:
    """Median ms and bytes of an answer to a script on the same machine."""
    link = http.client.HTTPConnection("127.0.0.1", served.port)
    times, size = [], 0
    for k in range(22):
        question = case.question
        question["changes"] = [{**case.changes[0], "size": 0.1 + 0.01 * k}, *case.changes[1:]]
        began = perf_counter()
        link.request(
            "POST", f"/api/seats/{case.seat}/effect", json.dumps(question), {"Content-Type": "application/json"}
        )
        answer = link.getresponse()
        size = len(answer.read())
        assert answer.status == 200
        times.append(perf_counter() - began)
    link.close()
    return 1e3 * float(np.median(times[2:])), size


def library_ms(case: Case) -> float:
    """Median ms of the same question to the library."""
    change: dict[str, dict[str, np.ndarray]] = {}
    times = []
    for k in range(12):
        for each in case.changes:
            held = np.full(case.horizon, 0.1 + 0.01 * k)
            held[each["length"] or case.horizon :] = 0.0
            change.setdefault(each["unit"], {})[each["input"]] = held
        began = perf_counter()
        case.fit.effect(list(change), case.effect, change, case.horizon)
        times.append(perf_counter() - began)
    return 1e3 * float(np.median(times[2:]))


def main() -> None:
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    before = os.getloadavg()[0]
    moved, asked, opened = [], [], []
    with tempfile.TemporaryDirectory() as folder, browsing() as browser:
        for case in cases(Path(folder)):
            with serving(case.folder) as served:
                visits = []
                for _ in range(VISITS):
                    with sitting(browser, served.address) as desk:
                        visits.append(visit(desk, case))
                        times = slide(desk, case) if len(visits) == VISITS else np.empty((0, 3))
                whole = times.sum(axis=1)
                parts = np.median(times, axis=0)
                moved.append(
                    f"| {case.name} | {np.median(whole):.0f} | {np.percentile(whole, 95):.0f} | {whole.max():.0f} | "
                    + " | ".join(f"{part:.0f}" for part in parts)
                    + " |"
                )
                latency, size = served_ms(served, case)
                asked.append(f"| {case.name} | {library_ms(case):.0f} | {latency:.0f} | {size / 1e3:.0f} |")
                middle = {name: float(np.median([each[name] for each in visits])) for name in visits[0]}
                keys = ("loaded", "nodes", "arrows", "sentence", "sketch", "drawn")
                cells = " | ".join(f"{middle[key]:.0f}" for key in keys)
                opened.append(f"| {case.name} | {cells} | {visits[0]['question']:.0f} | {middle['question']:.0f} |")
    lines = [
        "# The console in the browser",
        "",
        f"{machine.description('fastapi', 'uvicorn', 'plotly', 'playwright')}; Chromium without screen and GPU.",
        f"Load average of the machine before {before:.1f}, after {os.getloadavg()[0]:.1f} (1 minute).",
        "",
        f"A key moves a slider {MOVES} times, each time waiting for the redrawn plot: four panels with bands. "
        "Milliseconds.",
        "",
        "| question | median | 95th percentile | worst | key to request | request to answer | answer to drawn |",
        "|---|---|---|---|---|---|---|",
        *moved,
        "",
        "The same question without a browser. Median, milliseconds; the size of the answer.",
        "",
        "| question | library | over HTTP | kB |",
        "|---|---|---|---|",
        *asked,
        "",
        f"Opening the page with a link to the question, in a browser that has nothing of it cached: median of {VISITS} "
        "visits, milliseconds since the visit began. A sketch of the plot stands in until plotly.js, which is fetched "
        "and compiled on each of these visits, has drawn it. The last two columns: the first question "
        "from request to answer, for the first visitor after the start, and for others.",
        "",
        "| question | page loaded | units seen | arrows | sentence | sketch | plot drawn | first visitor | others |",
        "|---|---|---|---|---|---|---|---|---|",
        *opened,
    ]
    machine.write("console", "\n".join(lines))


if __name__ == "__main__":
    main()
