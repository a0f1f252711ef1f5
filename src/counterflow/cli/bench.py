"""``counterflow bench``: how long the usual work takes on this machine.

The project's own benchmarks, against peers and over many sizes, are in its folder ``benchmarks`` (``make bench``).
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from statistics import median
from timeit import timeit
from typing import Annotated

from typer import Option

import counterflow as cf
from counterflow.cli.options import Seed
from counterflow.cli.output import Format, Line, Told, answering, listed, show
from counterflow.errors import OptionError

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
    columns = ("units", "rows", "kilobytes", "fit", "first", "again", "forecast", "explain")
    return Told({"machine": machine, "horizon": HORIZON, "plants": found}, [
        listed(f"seconds on this machine ({machine})", found, *columns, left=0),
        f"fit: method 'sufficient' with standard errors; first: an effect over {HORIZON} steps with intervals; again: "
        f"the same in another size; forecast: {HORIZON} steps; explain: {HORIZON} rows; questions: medians of "
        f"{REPEATED}; kilobytes: sent for the fit",
    ])  # fmt: skip


def timed(units: int, rows: int, seed: int) -> Timed:
    """Time one random plant with two states, two inputs and eight outputs a unit."""
    plant = cf.random_plant(units, topology="sparse", rng=seed)
    recording = plant.simulate(rows, rng=seed + 1)
    start = time.perf_counter()
    fit = cf.fit(recording, plant.locals(), progress=False)
    took = time.perf_counter() - start
    cause, effect = plant.names[0], plant.names[1]
    size = iter(range(1, 100))

    def ask(horizon: int) -> object:
        return fit.effect(cause, effect, {"u1": 0.1 * next(size)}, horizon)

    return {
        "units": units, "states": fit.plant.A.shape[0], "rows": recording.rows, "fit": took,
        "kilobytes": fit.traffic.bytes_up / 1000,
        "first": _took(lambda k: ask(HORIZON + k)),
        "again": _took(lambda k: ask(HORIZON)),
        "forecast": _took(lambda k: fit.forecast(recording, HORIZON)),
        "explain": _took(lambda k: fit.attribute(recording, effect, 0, min(HORIZON, rows))),
    }  # fmt: skip


def _took(do: Callable[[int], object]) -> float:
    return median(timeit(lambda k=k: do(k), number=1) for k in range(REPEATED))  # type: ignore[misc]
