"""A lying coordinator at a plant's guard, and hostile text wherever it arrives: what got through.

Run: python benchmarks/bench_security.py [--jobs 1000]
The console under load is measured by bench_console_load.py, flipped bits by bench_flips.py, kills by bench_faults.py.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported

import argparse
import json
import tempfile
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import machine
import numpy as np

import counterflow as cf
from counterflow.caveats import from_text
from counterflow.exchange.compression import sufficient_message
from counterflow.exchange.rows import privatised
from counterflow.federation import Audit, Guard, Job, Policy, UnitData
from counterflow.federation.audit import FILE
from counterflow.federation.reconciliation import compare
from counterflow.plant import Channel
from counterflow.privacy import Ledger, gaussian_epsilon, ledger_path
from counterflow.protocol import Refused, decode, encode

BUDGET, DELTA = 3.0, 1e-6
# what a job may say of the very same rows, another time in each job
LIES: dict[str, Callable[[int, np.random.Generator], dict[str, Any]]] = {
    "nothing, asks again": lambda k, rng: {},
    "other rows (start)": lambda k, rng: {"start": 100_000 * k},
    "overlapping rows (start)": lambda k, rng: {"start": 7 * k},
    "a smaller epsilon": lambda k, rng: {"epsilon": 0.6 / (1 + k)},
    "a smaller delta": lambda k, rng: {"delta": DELTA / (1 + k)},
    "another clip": lambda k, rng: {"clip": float(10.0 ** rng.uniform(-6, 6))},
    "another window": lambda k, rng: {"window": int(rng.integers(1, 300))},
    "all at random": lambda k, rng: {
        "start": int(rng.integers(0, 10**9)), "window": int(rng.integers(1, 300)),
        "epsilon": float(rng.uniform(0.01, 1.0)), "delta": float(10.0 ** rng.uniform(-9, -6)),
        "clip": float(10.0 ** rng.uniform(-3, 3)),
    },
}  # fmt: skip


def budget_under(lie: str, jobs: int) -> str:
    """One row of the table: ``jobs`` lying jobs about the same 601 rows, until the last."""
    plant = cf.random_plant(units=["boiler", "turbine"], outputs=3, rng=1)
    recording = plant.simulate(600, rng=2)
    part, model = recording["boiler"], plant.local("boiler")
    own = UnitData(part.unit, part.y, part.u, model, begins="2026-01-01 00:00:00")
    inputs = {unit.name: unit.inputs for unit in recording.units}
    message, rng, true, refused = sufficient_message("boiler", model, part.y, part.u), np.random.default_rng(5), [], 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        path = ledger_path(folder / "budgets", "boiler")
        Ledger.create(path, "boiler", BUDGET, DELTA).close()
        policy = Policy("boiler", epsilon=1.0, delta=DELTA, ledger=folder / "budgets")
        with Audit(folder / FILE) as audit:
            for k in range(jobs):
                privacy = cf.Privacy(**{"epsilon": 0.6, "delta": DELTA, **LIES[lie](k, rng)})
                job = Job(f"j{k}", "sufficient", inputs, seed=k, privacy=privacy)
                sent, release = privatised(message, model, privacy)
                try:
                    watchman = Guard(job, own, policy, audit)
                    watchman.leave(watchman.outgoing(encode(sent), release))
                except cf.CounterflowError:
                    refused += 1
                    continue
                true.append((2 * release.clip / release.sigma) ** 2)  # one row moves so far, in standard deviations
            with Ledger.open(path) as ledger:
                spent, differ = ledger.spent, [caveat.code for caveat in compare(audit, ledger)]
    cost = gaussian_epsilon(sum(true) ** 0.5, DELTA)
    sound = "yes" if cost <= spent * (1 + 1e-9) <= BUDGET * (1 + 1e-6) and not differ else "NO"
    return f"| {lie} | {jobs} | {len(true)} | {refused} | {cost:.3f} | {spent:.3f} | {sound} |"


def hostile() -> Iterator[tuple[str, str]]:
    """(kind, text): every character that does not print or turns the line, inside an ordinary word; and length."""
    for point in range(0x110000):
        kind = unicodedata.category(chr(point))
        if kind in ("Cc", "Cf", "Zl", "Zp") or 0xD800 <= point <= 0xDFFF:
            yield (
                {"Cc": "control", "Cf": "format (bidi, zero width)", "Cs": "surrogate"}.get(kind, "separator"),
                (f"bar{chr(point)}key"),
            )
    for size in (10_000, 700_000):
        yield "too long", "b" * size


def arrivals(text: str) -> list[bool]:
    """At each place where foreign text comes in: whether it was refused."""
    tried: list[Callable[[], object]] = [
        lambda: Channel(text),
        lambda: Channel("fuel", text),
        lambda: Channel.from_json({"name": "fuel", "unit": text, "limits": None}),
        lambda: decode(encode(Refused("boiler", "OptionError", "option", text))),
        lambda: from_text(f'[{{"code": "far", "scope": "", "text": {json.dumps(text)}}}]'),
        lambda: Job.from_json(
            {
                **Job("fit-1", "sufficient", {"boiler": [Channel("fuel")]}).to_json(),
                "units": [{"name": "boiler", "inputs": [{"name": text, "unit": "", "limits": None}]}],
            }
        ),
    ]
    return [_is_refused(one) for one in tried]


def _is_refused(arriving: Callable[[], object]) -> bool:
    try:
        arriving()
    except (cf.CounterflowError, UnicodeEncodeError):  # text that is no text cannot be sent at all
        return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    asked = parser.parse_args()
    lines = [
        "# A lying coordinator and forged text", "", f"On {machine.description()}.", "",
        "Kills, cuts and full disks: [faults](faults.md). Flipped bits: [flips](flips.md). The console under 200 "
        "visitors and 500 idle sockets: [console under load](console_load.md).", "",
        f"## The budget: jobs that lie about the same 601 rows, budget {BUDGET:g} at delta {DELTA:g}", "",
        "True epsilon: of all that left, composed as releases of the same rows from the noise that was drawn.", "",
        "| what jobs say | jobs | left | refused | true epsilon | ledger | true <= ledger <= budget, audit agrees |",
        "|---|---:|---:|---:|---:|---:|---|",
    ]  # fmt: skip
    for lie in LIES:
        lines.append(budget_under(lie, asked.jobs))
    counts: dict[str, list[int]] = {}
    for kind, text in hostile():
        found = arrivals(text)
        count = counts.setdefault(kind, [0, 0])
        count[0] += len(found)
        count[1] += sum(found)
    lines += [
        "", "## Forged text", "",
        "Every such character of Unicode inside a word, at six places where text of others arrives: name and unit of "
        "measure of a channel, the same from JSON, a refusal, a caveat, a job.", "",
        "| kind | tried | refused |", "|---|---:|---:|",
    ]  # fmt: skip
    lines += [f"| {kind} | {tried} | {refused} |" for kind, (tried, refused) in counts.items()]
    machine.write("security", "\n".join(lines))


if __name__ == "__main__":
    main()
