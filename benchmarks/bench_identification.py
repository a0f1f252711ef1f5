"""Subspace identification: accuracy and time of Counterflow, sippy_unipi (CVA) and python-control (Markov + ERA).

Run as ``python benchmarks/bench_identification.py``; needs ``pip install sippy_unipi control``. Every method gets the
same records and the true order, in one process with one BLAS thread. The peers get several settings, and the best of
each counts: the most accurate one for accuracy, the fastest one that is not far worse for time. The table is printed
and written to benchmarks/results/identification.md.
"""

from __future__ import annotations

import contextlib
import io
import os
import statistics
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))
sys.path.insert(0, str(ROOT / "benchmarks"))

import machine  # noqa: E402

from counterflow.identification import lagged_gram  # noqa: E402
from counterflow.paper.subspace import subspace, subspaces  # noqa: E402
from counterflow.recurrence import linear_recurrence  # noqa: E402

T, D, U, ORDER = 10_000, 16, 4, 8
SEEDS = range(10)
REPEATS = 5
Model = tuple[np.ndarray, np.ndarray, np.ndarray]

KINDS = {
    "white inputs": {"memory": 0.0, "process": 0.1, "measurement": 1.0},
    "slow inputs, AR(0.9)": {"memory": 0.9, "process": 0.1, "measurement": 1.0},
    "measurement noise only": {"memory": 0.0, "process": 0.0, "measurement": 4.0},
}


def record(seed: int, memory: float, process: float, measurement: float) -> tuple[np.ndarray, np.ndarray, Model]:
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(ORDER, ORDER))
    A *= 0.95 / np.abs(np.linalg.eigvals(A)).max()
    B, C = rng.normal(size=(ORDER, U)), rng.normal(size=(D, ORDER))
    u = np.sqrt(1 - memory**2) * rng.normal(size=(T + 1, U))
    if memory:
        u = linear_recurrence(memory * np.eye(U), u, np.zeros(U))
    w = np.sqrt(process) * rng.normal(size=(T + 1, ORDER))
    h = np.zeros((T + 1, ORDER))
    h[1:] = linear_recurrence(A, u[:-1] @ B.T + w[1:], h[0])
    return h @ C.T + np.sqrt(measurement) * rng.normal(size=(T + 1, D)), u, (A, B, C)


def ours(y: np.ndarray, u: np.ndarray) -> Model:
    model = subspace(y, u, ORDER)
    return model.A, model.B, model.C


def sippy(horizon: int) -> Callable[[np.ndarray, np.ndarray], Model]:
    from sippy_unipi import system_identification

    def call(y: np.ndarray, u: np.ndarray) -> Model:
        with contextlib.redirect_stdout(io.StringIO()):
            model = system_identification(y.T, u.T, "CVA", SS_fixed_order=ORDER, SS_f=horizon, SS_p=horizon)
        return model.A, model.B, model.C

    return call


def era(length: int) -> Callable[[np.ndarray, np.ndarray], Model]:
    import control

    def call(y: np.ndarray, u: np.ndarray) -> Model:
        half = length // 2 - 1
        model, _ = control.era(control.markov(y.T, u.T, length), ORDER, half, half)
        return model.A, model.B, model.C

    return call


def frequency(model: Model) -> np.ndarray:
    A, B, C = model
    z = np.exp(1j * np.linspace(0, np.pi, 200))
    return np.array([C @ np.linalg.solve(point * np.eye(len(A)) - A, B) for point in z])


def impulse(model: Model, steps: int = 60) -> np.ndarray:
    A, B, C = model
    out, x = [], B
    for _ in range(steps):
        out.append(C @ x)
        x = A @ x
    return np.array(out)


def poles_apart(found: np.ndarray, true: np.ndarray) -> float:
    """Mean distance of the poles, each matched with the one that suits all best."""
    from scipy.optimize import linear_sum_assignment

    gaps = np.abs(np.linalg.eigvals(found)[:, None] - np.linalg.eigvals(true))
    return float(gaps[linear_sum_assignment(gaps)].mean())


def errors(found: Model, true: Model) -> tuple[float, float, float]:
    pairs = [(frequency(found), frequency(true)), (impulse(found), impulse(true))]
    a, b = (float(np.linalg.norm(f - t) / np.linalg.norm(t)) for f, t in pairs)
    return a, b, poles_apart(found[0], true[0])


def main() -> None:
    warnings.simplefilter("ignore")
    load = os.getloadavg()[0]
    methods: dict[str, Callable[[np.ndarray, np.ndarray], Model]] = {"**Counterflow**": ours}
    methods |= {f"sippy_unipi, CVA, horizons {h}": sippy(h) for h in (10, 20)}
    methods |= {f"control, Markov + ERA, {k} parameters": era(k) for k in (30, 60, 120)}
    lines = [
        "# Identification from a record",
        "",
        f"T = {T:,}, D = {D} measurements, U = {U} inputs, order {ORDER} (given to all), {len(SEEDS)} random systems "
        "for each kind of record. Relative errors of the frequency response (200 points) and of the impulse response "
        "(60 rows), and mean distance of the poles; medians over the systems, in brackets the worst. Counterflow "
        "chooses past and future itself; the peers are shown with several settings (sippy_unipi needs a horizon above "
        "the order).",
    ]
    verdicts = []
    for kind, options in KINDS.items():
        records = [record(seed, **options) for seed in SEEDS]
        table = {
            name: np.array([errors(method(y, u), true) for y, u, true in records]) for name, method in methods.items()
        }
        lines += ["", f"## {kind}", "", "| | frequency response | impulse response | poles |", "|---|---:|---:|---:|"]
        for name, rows in table.items():
            cells = " | ".join(f"{np.median(column):.4f} ({column.max():.4f})" for column in rows.T)
            lines.append(f"| {name} | {cells} |")
        own = np.median(table["**Counterflow**"][:, 0])
        for peer in ("sippy_unipi", "control"):
            best = min(float(np.median(rows[:, 0])) for name, rows in table.items() if peer in name)
            verdicts.append(f"{kind}: the best setting of {peer} has {best / own:.2f} times our error")

    y, u, _ = record(0, **KINDS["white inputs"])
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(REPEATS):  # taken in turns, so that a busy moment of the machine meets all
        for name, method in methods.items():
            begin = time.perf_counter()
            method(y, u)
            seconds[name].append(time.perf_counter() - begin)
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    fastest = {peer: min(v for name, v in middle.items() if peer in name) for peer in ("sippy_unipi", "control")}
    own_time = middle["**Counterflow**"]
    lines += ["", "## Time, one BLAS thread", "", "| | seconds | times ours |", "|---|---:|---:|"]
    lines += [f"| {name} | {value:.4f} | {value / own_time:.1f} |" for name, value in middle.items()]

    begin = time.perf_counter()
    subspaces(y, u, [ORDER], past=10)
    one = time.perf_counter() - begin
    begin = time.perf_counter()
    subspaces(y, u, range(1, 21), past=10)
    twenty = time.perf_counter() - begin
    rng = np.random.default_rng(0)
    long_y, long_u = rng.normal(size=(1_000_000, 32)), rng.normal(size=(1_000_000, 8))
    begin = time.perf_counter()
    lagged_gram(long_y, long_u, 20)
    gram_seconds = time.perf_counter() - begin
    tracemalloc.start()
    lagged_gram(long_y, long_u, 20)
    extra = tracemalloc.get_traced_memory()[1] / 2**20
    tracemalloc.stop()
    lines += [
        "",
        "## Reading",
        "",
        *[f"- {verdict}." for verdict in verdicts],
        f"- Time: {fastest['sippy_unipi'] / own_time:.0f} times as fast as sippy_unipi in its fastest setting here, "
        f"{fastest['control'] / own_time:.1f} times as fast as control in its fastest, least accurate one.",
        f"- One order, past and future of 10 rows given: {one:.3f} s; all orders from 1 to 20: {twenty:.3f} s.",
        f"- Gram matrix of 1,000,000 rows of 40 columns, windows of 20 rows: {gram_seconds:.2f} s "
        f"({2 * 1e6 * 40 * 40 * 20 / gram_seconds / 1e9:.0f} GFLOP/s), {extra:.0f} MiB more "
        "memory than the data.",
        f"- Load average before and after: {load:.1f}, {os.getloadavg()[0]:.1f} (1: this run alone).",
        f"- Machine: {machine.description('sippy_unipi', 'control')}, one thread.",
    ]
    machine.write("identification", "\n".join(lines))


if __name__ == "__main__":
    with threadpool_limits(1):
        main()
