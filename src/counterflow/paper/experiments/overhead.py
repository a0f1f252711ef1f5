"""Bytes and seconds of a round, against the paper's orders of growth."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.exchange.compression import sufficient_message
from counterflow.fits.training import fit
from counterflow.paper.experiments.experiment import FACTS, Claim, Experiment, Request, Task, Value, grid
from counterflow.paper.experiments.figures import Drawing, Panel, points
from counterflow.paper.experiments.verdicts import Verdict, estimated_above, exponent, holds, opposite
from counterflow.plant import random_plant
from counterflow.protocol import Message, encoded_size

BASE: Mapping[str, int] = {"units": 4, "states": 2, "inputs": 2, "outputs": 8, "steps": 1000}
# what is varied: its sizes, its letter, and what stands along the axis
AXES: Mapping[str, tuple[tuple[int, ...], str, str]] = {
    "units": ((2, 4, 8, 16), "M", "units"),
    "states": ((2, 4, 8, 16), "P_m", "states of a unit"),
    "inputs": ((2, 4, 8, 16), "U_m", "inputs of a unit"),
    "outputs": ((8, 16, 32, 64), "D_m", "outputs of a unit"),
    "steps": ((1000, 4000, 16000), "T", "rows"),
}
# exponents of the paper's formulas when one size grows: (P, U sums over units, P, U of one unit)
BYTES = {"units": (2.0, 1.0), "states": (1.0, 1.0), "inputs": (1.0, 1.0), "outputs": (0.0, 0.0)}
WORK = {"units": (4.0, 2.0), "states": (2.0, 2.0), "inputs": (2.0, 2.0), "outputs": (0.0, 0.0)}
# the same of work in which the two do not differ: who, what grows, the exponent, the formula, and a remark
OTHER_WORK = (
    ("server", "steps", 0.0, "O(M²P² + M²U²): T is not in it", " The formula is that of one row."),
    ("unit", "steps", 1.0, "O(T P_m²): T^1", ""),
    ("unit", "states", 2.0, "O(T P_m²): P_m^2", ""),
    ("unit", "outputs", 0.0, "O(T P_m²): D_m is not in it", " theta_m is P_m × D_m, and every row of y meets it."),
)
ROUNDS, REPETITIONS = 12, 8
WARM = 2  # rounds that are not counted: the first ones also introduce the units
SLACK = 0.1  # an exponent may be above the formula's by so much, beside two standard errors
ABOUT = f"(+ {SLACK})"
REMARKS = {
    "units": "It is an upper bound; with sums over units in it, M counts twice.",
    "states": "A round carries h_a up and two gradients down, P_m numbers a row each.",
    "inputs": "Inputs are sent once, before the first round, not in every round.",
    "outputs": "No measurement crosses, whatever their number.",
}


class Overhead(Experiment, name="overhead"):
    @staticmethod
    def tasks(request: Request) -> tuple[Task, ...]:
        return tuple(
            task
            for axis, (sizes, _, _) in AXES.items()
            for task in grid("overhead", {axis: sizes, "run": range(REPETITIONS)}, **BASE, rounds=ROUNDS, axis=axis)
        )

    @staticmethod
    def compute(task: Task) -> Mapping[str, Value]:
        sizes = {key: task[key] for key in ("units", "states", "inputs", "outputs")}
        plant = random_plant(**sizes, rng=task["run"])
        recording = plant.simulate(task["steps"], rng=7000 + task["run"])
        watch, counted = Stopwatch(), range(WARM, task["rounds"] - 1)
        options: dict[str, Any] = {"solver": "gradient", "rounds": task["rounds"], "tol": 0.0, "compress": False}
        found = fit(recording, plant.locals(), method="penalty", watch=watch, **options)
        sent = [sufficient_message(n, plant.local(n), recording[n].y, recording[n].u) for n in plant.names]
        return {
            "bytes": float(np.median([watch.bytes[k] for k in counted])),
            "server": float(np.median([watch.server[k] for k in counted])),
            "unit": float(np.median([watch.units[k] for k in counted])) / task["units"],
            "raw": float(sum(8 * recording[n].y.size + 8 * recording[n].u.size for n in recording.names)),
            "sufficient/bytes": float(sum(encoded_size(message) for message in sent)),
            "total": float(found.traffic.bytes_up + found.traffic.bytes_down),
        }

    def by_size(self, axis: str, key: str) -> FloatArray:
        """A value of all runs: one row for each run, one column for each size."""
        return self.of(key, by=axis, axis=axis)

    def judge(self) -> Iterator[Claim]:
        for axis, (sums, one) in BYTES.items():
            sizes, letter, _ = AXES[axis]
            found = exponent(sizes, self.by_size(axis, "bytes"))
            about = {"letter": letter, "orders": _orders(letter, sums, one), "remark": REMARKS[axis]}
            yield self.claim("bytes", bounded(found, sums), **about, exponent=_shown(found))
        rows = exponent(AXES["steps"][0], self.by_size("steps", "bytes"))
        yield self.claim("rows", bounded(rows, 0.0), exponent=_shown(rows))
        formula = "O(M²P² + M²U²): "
        work = [("server", a, sums, formula + _orders(AXES[a][1], sums, one), "") for a, (sums, one) in WORK.items()]
        for who, axis, most, formula, remark in (*work, *OTHER_WORK):
            sizes, letter, _ = AXES[axis]
            seconds = exponent(sizes[-2:], self.by_size(axis, who)[:, -2:])
            whose, fact = "the server" if who == "server" else "a client", FACTS["ONE_ROW"]
            about = {"who": whose, "letter": letter, "formula": formula, "remark": remark}
            about["fact"] = fact if (who, axis) == ("server", "steps") else ""
            grown = {"before": sizes[-2], "last": sizes[-1], "count": counted(axis, who), "exponent": _shown(seconds)}
            yield self.claim("work", worked(counted(axis, who), seconds, most), **about, **grown)
        one_round = {axis: self.by_size(axis, "bytes") / self.by_size(axis, "raw") for axis in AXES}
        premise = [
            (f"{letter} = {size}", float(one_round[axis][:, k].max()))
            for axis, (sizes, letter, _) in AXES.items()
            for k, size in enumerate(sizes)
            if {**BASE, axis: size}["states"] < {**BASE, axis: size}["outputs"]
        ]
        above_raw = ", ".join(f"{name} ({share:.2g})" for name, share in premise if share >= 1) or "no size"
        shares = [share for _, share in premise]
        yield self.claim("raw", "beyond the paper", shares=shares, above_raw=above_raw)
        sent = {key: self.of(key) / self.of("raw") for key in ("total", "sufficient/bytes")}
        told = {key: f"{values.min():.2g} to {values.max():.2g}" for key, values in sent.items()}
        yield self.claim("answer", "beyond the paper", published=told["total"], sufficient=told["sufficient/bytes"])

    @property
    def per_row(self) -> bool:
        """Whether the formulas leave the rows out, at both sides."""
        of_rows = "Work of the server in a round against T"
        return {c.verdict for c in self.claims if c.key == "rows" or c.subject == of_rows} == {"does not hold"}

    def draw(self) -> Mapping[str, Drawing]:
        bytes_ = (
            ("bytes", 1e-6, "published, one round", 1),
            ("sufficient/bytes", 1e-6, "sufficient messages, all", 0),
            ("raw", 1e-6, "raw data", 3),
        )
        seconds = (("server", 1e3, "server", 2), ("unit", 1e3, "one client", 4))
        drawn = {}
        for name, y, shown in (
            ("bytes", "MB, all units, both ways", bytes_), ("seconds", "milliseconds of a round", seconds)
        ):  # fmt: skip
            panels = []
            for axis, (sizes, letter, words) in AXES.items():
                curves = [points(sizes, scale * self.by_size(axis, key), label, k) for key, scale, label, k in shown]
                title = words.split()[0].capitalize()
                panels.append(Panel(title, curves, f"{words}, ${letter}$", y, log_x=sizes, log_y=True))
            drawn[f"overhead-{name}"] = self.drawing(name, panels)
        return drawn


class Stopwatch:
    """Processor time between messages, by round: after a message that goes up it is the server's, else a unit's.

    Processor time, not the clock's: other work on the machine must not count.
    """

    def __init__(self) -> None:
        self.server: dict[int, float] = defaultdict(float)
        self.units: dict[int, float] = defaultdict(float)
        self.bytes: dict[int, float] = defaultdict(float)
        self._last: tuple[dict[int, float], int] | None = None
        self._since = 0.0

    def __call__(self, message: Message, goes_up: bool) -> None:
        now = time.thread_time()
        if self._last is not None:
            work, at = self._last
            work[at] += now - self._since
        at = int(getattr(message, "round", -1))
        self.bytes[at] += encoded_size(message)
        self._last = (self.server if goes_up else self.units), at
        self._since = time.thread_time()  # what measuring costs is not counted


def bounded(found: tuple[float, float], most: float) -> Verdict:
    """Whether a fitted exponent is at most that of an O(...) statement."""
    return opposite(estimated_above(*found, most + SLACK))


def multiplications(settings: Mapping[str, Any]) -> dict[str, float]:
    """Of all matrix products of one round, at the server and at one client: a count, the same on every machine.

    The server multiplies refined states by A_mn and A_mm, residuals by refined states (T P² each), inputs by B_mn and
    residuals by inputs (T P U each). A client multiplies measurements by theta, states by C, residuals by C, and
    three gradients by measurements (T P_m D_m each), and theta by A_mm three times.
    """
    T, P_m, D_m = settings["steps"], settings["states"], settings["outputs"]
    P, U = settings["units"] * P_m, settings["units"] * settings["inputs"]
    return {"server": float(T * (3 * P * P + 2 * P * U)), "unit": float(6 * T * P_m * D_m + 3 * P_m * P_m * D_m)}


def counted(axis: str, who: str) -> float:
    """The exponent of the multiplications between the two largest sizes of an axis."""
    *_, before, last = AXES[axis][0]
    few, many = (multiplications({**BASE, axis: size})[who] for size in (before, last))
    return math.log(many / few) / math.log(last / before)


def worked(count: float, seconds: tuple[float, float], most: float) -> Verdict:
    """Of an order of growth of work: the count decides, unless the seconds of this machine contradict it."""
    by_count, by_clock = holds(count <= most + SLACK), bounded(seconds, most)
    return "undecided" if by_clock == opposite(by_count) else by_count


def _shown(found: tuple[float, float]) -> str:
    slope, error = found
    return f"{slope:.2f} ± {error:.1g}" if error > 1e-9 else f"{slope:.2f}, exactly"


def _orders(letter: str, sums: float, one: float) -> str:
    if sums == one:
        return f"{letter}^{sums:g}"
    return f"{letter}^{sums:g} as it defines P and U (sums over units), {letter}^{one:g} if they are one unit's"
