"""``counterflow bench``: how long the usual work takes on this machine.

The project's own benchmarks, against peers and over many sizes, are in its folder ``benchmarks`` (``make bench``).
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Annotated

from typer import Option

import counterflow as cf
from counterflow import wording
from counterflow.cli.options import Seed
from counterflow.cli.output import Format, Line, Part, Told, answering, show
from counterflow.errors import OptionError
from counterflow.notebook import Table

HORIZON = 100
REPEATED = 5  # questions; a fit is timed once

Timed = dict[str, float]  # seconds; "first", "again": an effect with its intervals, and one in another size


@answering()
def bench(
    wanted: Format,
    units: Annotated[list[int] | None, Option(help="Units of a plant; may repeat (2, 4 and 8).")] = None,
    rows: Annotated[int, Option(min=100, max=1_000_000, help="Steps to simulate.")] = 2000,
    seed: Seed = 0,
) -> Told:
    """How long fits and questions take on this machine.

    Example: counterflow bench --units 4 --rows 10000
    """
    counts = units or [2, 4, 8]
    for count in counts:
        if not 2 <= count <= 32:
            raise OptionError(f"--units {count}: give 2 to 32.")
    timed(2, 100, seed)  # so that imports are not counted
    found = []
    for count in counts:
        if wanted is Format.table:
            show(Line(f"{count} units, {rows} rows ...", "dim"))
        found.append(timed(count, rows, seed))
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    return Told({"machine": machine, "horizon": HORIZON, "plants": found}, _shown(found, machine))


def _shown(found: list[Timed], machine: str) -> Iterator[Part]:
    cells = []
    for each in found:
        fit, *asked = (_seconds(each[key]) for key in ("fit", "first", "again", "forecast", "explain"))
        cells.append([str(each["units"]), str(each["rows"]), fit, f"{each['kilobytes']:.0f} kB", *asked])
    columns = ["units", "rows", "fit", "sent", "effect", "again", "forecast", "explain"]
    yield Table(f"on this machine ({machine})", columns, cells, left=0)
    yield (
        f"fit: method 'sufficient' with standard errors; effect: {HORIZON} steps with intervals, then the same in "
        f"another size; forecast: {HORIZON} steps; explain: {HORIZON} rows; questions: medians of {REPEATED}"
    )


def timed(units: int, rows: int, seed: int) -> Timed:
    """Time one random plant with two states, two inputs and eight outputs a unit."""
    plant = cf.random_plant(units, topology="sparse", rng=seed)
    recording = plant.simulate(rows, rng=seed + 1)
    start = time.perf_counter()
    fit = cf.fit(recording, plant.locals(), progress=False)
    took = time.perf_counter() - start
    cause, effect = plant.names[0], plant.names[1]
    size = iter(range(1, 100))

    def ask(horizon: int) -> Callable[[], object]:
        return lambda: fit.effect(cause, effect, {"u1": 0.1 * next(size)}, horizon)

    return {
        "units": units, "states": fit.plant.A.shape[0], "rows": recording.rows, "fit": took,
        "kilobytes": fit.traffic.bytes_up / 1000,
        "first": median(_took(ask(HORIZON + k)) for k in range(REPEATED)),
        "again": _median(ask(HORIZON)),
        "forecast": _median(lambda: fit.forecast(recording, HORIZON)),
        "explain": _median(lambda: fit.attribute(recording, effect, 0, min(HORIZON, rows))),
    }  # fmt: skip


def _median(do: Callable[[], object]) -> float:
    return median(_took(do) for _ in range(REPEATED))


def _took(do: Callable[[], object]) -> float:
    start = time.perf_counter()
    do()
    return time.perf_counter() - start


def _seconds(value: float) -> str:
    return f"{wording.number(value)} s" if value >= 1 else f"{wording.number(1000 * value)} ms"
