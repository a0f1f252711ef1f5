"""Bytes and seconds of a round, against the paper's orders of growth."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.exchange.compression import sufficient_message
from counterflow.fits.training import fit
from counterflow.paper.experiments.experiment import Claim, Outcomes, Request, Task, Value, Verdict
from counterflow.paper.experiments.figures import Drawing, Panel, points
from counterflow.paper.experiments.selection import by_setting, grid, where
from counterflow.paper.experiments.verdicts import estimated_above, exponent, holds, opposite
from counterflow.paper.experiments.wording import ONE_ROW, caption, claim, described, summary, verdict_of
from counterflow.plant import random_plant
from counterflow.protocol import Message, encoded_size

BASE: Mapping[str, int] = {"units": 4, "states": 2, "inputs": 2, "outputs": 8, "steps": 1000}
# what is varied: its sizes, and its letter
AXES: Mapping[str, tuple[tuple[int, ...], str]] = {
    "units": ((2, 4, 8, 16), "M"),
    "states": ((2, 4, 8, 16), "P_m"),
    "inputs": ((2, 4, 8, 16), "U_m"),
    "outputs": ((8, 16, 32, 64), "D_m"),
    "steps": ((1000, 4000, 16000), "T"),
}
# exponents of the paper's formulas when one size grows: (P, U sums over units, P, U of one unit)
BYTES = {"units": (2.0, 1.0), "states": (1.0, 1.0), "inputs": (1.0, 1.0), "outputs": (0.0, 0.0)}
WORK = {"units": (4.0, 2.0), "states": (2.0, 2.0), "inputs": (2.0, 2.0), "outputs": (0.0, 0.0)}
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


def _compute(task: Task) -> Mapping[str, Value]:
    plant = random_plant(
        units=task["units"], states=task["states"], inputs=task["inputs"], outputs=task["outputs"], rng=task["run"]
    )
    recording = plant.simulate(task["steps"], rng=7000 + task["run"])
    watch = Stopwatch()
    options = {"solver": "gradient", "rounds": task["rounds"], "tol": 0.0, "compress": False}
    found = fit(recording, plant.locals(), method="penalty", watch=watch, **options)
    counted = range(WARM, task["rounds"] - 1)
    sent = [sufficient_message(n, plant.local(n), recording[n].y, recording[n].u) for n in plant.names]
    return {
        "bytes": float(np.median([watch.bytes[k] for k in counted])),
        "server": float(np.median([watch.server[k] for k in counted])),
        "unit": float(np.median([watch.units[k] for k in counted])) / task["units"],
        "raw": float(sum(8 * recording[n].y.size + 8 * recording[n].u.size for n in recording.names)),
        "sufficient/bytes": float(sum(encoded_size(message) for message in sent)),
        "total": float(found.traffic.bytes_up + found.traffic.bytes_down),
    }


def _tasks(_: Request) -> tuple[Task, ...]:
    return tuple(
        task
        for axis, (sizes, _) in AXES.items()
        for task in grid("overhead", {axis: sizes, "run": range(REPETITIONS)}, **BASE, rounds=ROUNDS, axis=axis)
    )


def by_size(outcomes: Outcomes, axis: str, key: str) -> FloatArray:
    """A value of all runs: one row for each run, one column for each size."""
    return by_setting(where(outcomes, axis=axis), axis, key)


def bounded(found: tuple[float, float], most: float) -> Verdict:
    """Whether a fitted exponent is at most that of an O(...) statement.

    Examples
    --------
    >>> bounded((1.0, 0.01), 2.0), bounded((2.5, 0.01), 2.0), bounded((2.1, 0.3), 2.0)
    ('agrees', 'does not hold', 'undecided')
    """
    return opposite(estimated_above(*found, most + SLACK))


def multiplications(settings: Mapping[str, Any]) -> dict[str, float]:
    """Of all matrix products of one round, at the server and at one client: a count, the same on every machine.

    The server multiplies refined states by A_mn and A_mm, residuals by refined states (T P² each), inputs by B_mn and
    residuals by inputs (T P U each). A client multiplies measurements by theta, states by C, residuals by C, and
    three gradients by measurements (T P_m D_m each), and theta by A_mm three times.

    Examples
    --------
    >>> multiplications({"units": 2, "states": 1, "inputs": 1, "outputs": 3, "steps": 10})
    {'server': 200.0, 'unit': 189.0}
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
    """Of an order of growth of work: the count decides, unless the seconds of this machine contradict it.

    Examples
    --------
    >>> worked(1.0, (0.9, 0.1), 2.0), worked(1.0, (3.0, 0.1), 2.0), worked(1.0, (0.9, 0.1), 0.0)
    ('agrees', 'undecided', 'does not hold')
    """
    by_count, by_clock = holds(count <= most + SLACK), bounded(seconds, most)
    return "undecided" if by_clock == opposite(by_count) else by_count


def _shown(found: tuple[float, float]) -> str:
    slope, error = found
    return f"{slope:.2f} ± {error:.1g}" if error > 1e-9 else f"{slope:.2f}, exactly"


def _claims(outcomes: Outcomes) -> Iterator[Claim]:
    for axis in BYTES:
        sizes, letter = AXES[axis]
        found = exponent(sizes, by_size(outcomes, axis, "bytes"))
        sums, one = BYTES[axis]
        orders = _orders(letter, sums, one)
        shown = {"letter": letter, "orders": orders, "exponent": _shown(found), "remark": REMARKS[axis]}
        yield claim("overhead", "bytes", bounded(found, sums), **shown)
    rows = exponent(AXES["steps"][0], by_size(outcomes, "steps", "bytes"))
    yield claim("overhead", "rows", bounded(rows, 0.0), exponent=_shown(rows))
    for who, axis, most, formula, remark in (
        *(
            ("server", a, sums, f"O(M²P² + M²U²): {_orders(AXES[a][1], sums, one)}", "")
            for a, (sums, one) in WORK.items()
        ),
        ("server", "steps", 0.0, "O(M²P² + M²U²): T is not in it", "The formula is that of one row."),
        ("unit", "steps", 1.0, "O(T P_m²): T^1", ""),
        ("unit", "states", 2.0, "O(T P_m²): P_m^2", ""),
        ("unit", "outputs", 0.0, "O(T P_m²): D_m is not in it", "theta_m is P_m × D_m, and every row of y meets it."),
    ):
        sizes, letter = AXES[axis]
        seconds = exponent(sizes[-2:], by_size(outcomes, axis, who)[:, -2:])
        count = counted(axis, who)
        whose = "the server" if who == "server" else "a client"
        shown = {"who": whose, "letter": letter, "formula": formula, "remark": f" {remark}" if remark else ""}
        grown = {"before": sizes[-2], "last": sizes[-1], "count": count, "exponent": _shown(seconds)}
        shown["fact"] = ONE_ROW if (who, axis) == ("server", "steps") else ""
        yield claim("overhead", "work", worked(count, seconds, most), **shown, **grown)
    raw = {axis: by_size(outcomes, axis, "raw") for axis in AXES}
    one_round, all_rounds, ours = (
        {axis: by_size(outcomes, axis, key) / raw[axis] for axis in AXES}
        for key in ("bytes", "total", "sufficient/bytes")
    )
    premise = [
        (f"{letter} = {size}", float(one_round[axis][:, k].max()))
        for axis, (sizes, letter) in AXES.items()
        for k, size in enumerate(sizes)
        if {**BASE, axis: size}["states"] < {**BASE, axis: size}["outputs"]
    ]
    above_raw = ", ".join(f"{name} ({share:.2g})" for name, share in premise if share >= 1) or "no size"
    yield claim("overhead", "raw", "beyond the paper", shares=[share for _, share in premise], above_raw=above_raw)
    sent = {"published": _range(all_rounds), "sufficient": _range(ours)}
    yield claim("overhead", "answer", "beyond the paper", **sent)


def _range(shares: Mapping[str, FloatArray]) -> str:
    values = np.concatenate([each.ravel() for each in shares.values()])
    return f"{values.min():.2g} to {values.max():.2g}"


def _orders(letter: str, sums: float, one: float) -> str:
    if sums == one:
        return f"{letter}^{sums:g}"
    return f"{letter}^{sums:g} as it defines P and U (sums over units), {letter}^{one:g} if they are one unit's"


def _figures(outcomes: Outcomes) -> dict[str, Drawing]:
    curves: Mapping[str, Sequence[tuple[str, float, str, int]]] = {
        "MB, all units, both ways": (
            ("bytes", 1e-6, "published, one round", 1),
            ("sufficient/bytes", 1e-6, "sufficient messages, all", 0),
            ("raw", 1e-6, "raw data", 3),
        ),
        "milliseconds of a round": (("server", 1e3, "server", 2), ("unit", 1e3, "one client", 4)),
    }
    words = {"units": "units", "states": "states of a unit", "inputs": "inputs of a unit"}
    words |= {"outputs": "outputs of a unit", "steps": "rows"}
    sent_panels, time_panels = (
        [
            Panel(
                words[axis].split()[0].capitalize(),
                [points(sizes, scale * by_size(outcomes, axis, key), label, k) for key, scale, label, k in shown],
                f"{words[axis]}, ${letter}$",
                y,
                log_x=sizes,
                log_y=True,
            )
            for axis, (sizes, letter) in AXES.items()
        ]
        for y, shown in curves.items()
    )
    return {
        "overhead-bytes": Drawing(caption("overhead", "bytes"), sent_panels),
        "overhead-seconds": Drawing(caption("overhead", "seconds"), time_panels),
    }


def _text(_: Outcomes, claims: Sequence[Claim]) -> str:
    of_server = [c.verdict for c in claims if c.subject == "Work of the server in a round against T"]
    return summary("overhead", claims, per_row={verdict_of(claims, "rows"), *of_server} == {"does not hold"})


EXPERIMENT = described("overhead", _tasks, _compute, _figures, _claims, text=_text)
