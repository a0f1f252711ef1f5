"""Effects on other units, from logs, on simulated plants with true twins; beside pooled ARX, pooled CVA and 0.1.

Run: python benchmarks/bench_plants.py [--quick] [--plants tanks,column] [--ways wide] [--rows 1000,3000] [--seeds 0,1]
     [--methods arx,cva,counterflow] [--jobs 2]

Scores are kept in benchmarks/plants/results_METHOD.json: cases that stand there are not run again (--again runs them).
The tables are made of all that is stored. Seeds 0-2 are for development. Seeds 100-102 are for judging: Counterflow
runs on them with --final only. Version 0.1's scores (commit b92213b) are stored.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported

import argparse
from multiprocessing import get_context
from time import perf_counter

import machine
import numpy as np
import plants
from plants import baselines, product, results, tables
from plants.scores import Answer, Estimator, Report, Score

import counterflow as cf

METHODS: dict[str, Estimator] = {"arx": baselines.arx, "cva": baselines.cva, "counterflow": product.counterflow}
QUICK = {"plants": ("tanks", "reactors"), "ways": ("gentle", "wide"), "rows": (1000,), "seeds": (0,)}

Job = tuple[str, str, int, int, tuple[str, ...]]


def one(job: Job) -> tuple[Job, dict[str, Score]]:
    """All methods on one case."""
    case = plants.case(*job[:4])
    return job, {method: plants.judge(case, attempt(METHODS[method], case)) for method in job[4]}


def attempt(estimator: Estimator, case: plants.Case) -> Report:
    """The estimator's report; one that gives up is scored as "no effect at all", without intervals."""
    try:
        return estimator(case)
    except (cf.CounterflowError, ValueError, np.linalg.LinAlgError) as error:
        nothing = [
            Answer(k, unit, np.zeros_like(twin.effect[unit]))
            for k, twin in enumerate(case.truth)
            for unit in case.asked(twin)
        ]
        return Report(nothing, None, np.nan, f"failed: {type(error).__name__}: {error}"[:200])


def options() -> argparse.Namespace:
    def names(text: str) -> tuple[str, ...]:
        return tuple(text.split(","))

    def numbers(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in text.split(","))

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plants", type=names, default=plants.PLANTS)
    parser.add_argument("--ways", type=names, default=tuple(plants.WAYS))
    parser.add_argument("--rows", type=numbers, default=plants.ROWS)
    parser.add_argument("--seeds", type=numbers, default=plants.DEVELOPMENT_SEEDS)
    parser.add_argument("--methods", type=names, default=("arx", "counterflow"))
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--quick", action="store_true", help="two plants, two ways, 1,000 rows, one seed")
    parser.add_argument("--again", action="store_true", help="run also what is stored")
    parser.add_argument("--final", action="store_true", help="Counterflow may run on the judging seeds")
    parser.add_argument("--store-as", help="another name for Counterflow's scores")
    given = parser.parse_args()
    if given.quick:
        vars(given).update(QUICK)
    if "counterflow" in given.methods and set(given.seeds) & set(plants.JUDGING_SEEDS) and not given.final:
        parser.error("seeds 100-102 judge the final estimator: they are run once, with --final")
    return given


def jobs(given: argparse.Namespace) -> list[Job]:
    """Cases with the methods that have no score yet, small ones first."""
    stored = {method: {} if given.again else results.load(label(given, method)) for method in given.methods}
    out = []
    for rows in given.rows:
        for seed in given.seeds:
            for plant in given.plants:
                for way in given.ways:
                    if not plants.offers(plant, way):
                        continue
                    open_ = tuple(m for m in given.methods if results.key(plant, way, rows, seed) not in stored[m])
                    if open_:
                        out.append((plant, way, rows, seed, open_))
    return out


def label(given: argparse.Namespace, method: str) -> str:
    return given.store_as if method == "counterflow" and given.store_as else method


def report() -> None:
    method = "counterflow" if results.load("counterflow") else "0_1"
    lines = [
        "# Plants with true twins",
        "",
        "Error: 1 - R² of effects on other units, mean over answers, seeds as shown; one answer counts at most "
        f"{plants.CAP:g}, and outputs that the change moves by less than {plants.TINY:g} of the measurement noise are "
        "left out. Coverage: of nominal 95 % intervals. Width: mean full width over mean absolute error; 4.9 is a "
        "perfect Gaussian band. ARX and CVA are pooled and give neither intervals nor graph. Net3 cannot be delayed or "
        "made stiff, and its graph is not defined: every district touches every other through the pipes at once.",
        "",
        *tables.section(method, plants.JUDGING_SEEDS, "Judging seeds 100-102"),
        *tables.section(method, plants.DEVELOPMENT_SEEDS, "Development seeds 0-2"),
        f"Machine: {machine.description('sippy_unipi', 'wntr')}, one thread a process.",
    ]
    machine.write("plants", "\n".join(lines))


def main() -> None:
    given = options()
    todo = jobs(given)
    begin = perf_counter()
    with get_context("spawn").Pool(given.jobs) as pool:
        for done, (job, scores) in enumerate(pool.imap_unordered(one, todo), 1):
            for method, score in scores.items():
                results.store(label(given, method), results.key(*job[:4]), score)
                print(
                    f"{done}/{len(todo)} {perf_counter() - begin:.0f} s  {results.key(*job[:4])} {method}: error "
                    f"{score.error:.3f}, coverage {score.coverage:.2f}, {score.seconds:.1f} CPU s, {score.status[:60]}",
                    flush=True,
                )
    report()


if __name__ == "__main__":
    main()
