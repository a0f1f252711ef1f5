"""Effects on other units, from logs, on simulated plants with true twins; beside pooled ARX, pooled CVA and 0.1.

Run: python benchmarks/bench_plants.py [--quick] [--plants tanks,column] [--ways wide] [--rows 1000,3000] [--seeds 0,1]
     [--methods arx,cva,counterflow] [--dirt lost,slow-unit | --dirt all] [--jobs 2]

Scores are kept in benchmarks/plants/results_METHOD.json, those of dirty records in results_METHOD_DIRT.json: cases that
stand there are not run again (--again runs them). With --dirt each record is run beside the one it is measured against.
The tables are made of all that is stored. Seeds 0-2 are for development. Seeds 100-102 are for judging: Counterflow
runs on them with --final only. Version 0.1's scores (commit b92213b) are stored.
"""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy is imported

import argparse
from itertools import product as product_of
from multiprocessing import get_context
from time import perf_counter

import machine
import numpy as np
import plants
from plants import baselines, dirt_tables, product, results, tables
from plants.scores import NEAR, Answer, Estimator, Report, Score

import counterflow as cf

METHODS: dict[str, Estimator] = {"arx": baselines.arx, "cva": baselines.cva, "counterflow": product.counterflow}
QUICK = {"plants": ("tanks", "reactors"), "ways": ("gentle", "wide"), "rows": (1000,), "seeds": (0,)}

Job = tuple[str, str, int, int, str, tuple[str, ...]]
Scores = dict[str, Score]
"""The score of a case; of a dirty one also that of the twins it shares with its reference, and the reference's."""


def one(job: Job) -> tuple[Job, dict[str, Scores]]:
    """All methods on one case."""
    case = plants.case(*job[:5])
    return job, {method: scores(METHODS[method], case) for method in job[5]}


def scores(estimator: Estimator, case: plants.Case) -> Scores:
    report = attempt(estimator, case)
    found = {"score": plants.judge(case, report)}
    if case.dirt == "clean":
        return found
    reference, shared = plants.reference(case)
    beside = plants.judge(reference, attempt(estimator, reference))
    return found | {"shared": plants.judge(case, report, shared), "reference": beside}


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
    parser.add_argument("--dirt", type=names, default=("clean",), help="kinds of dirt, or all")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--quick", action="store_true", help="two plants, two ways, 1,000 rows, one seed")
    parser.add_argument("--again", action="store_true", help="run also what is stored")
    parser.add_argument("--final", action="store_true", help="Counterflow may run on the judging seeds")
    parser.add_argument("--store-as", help="another name for Counterflow's scores")
    given = parser.parse_args()
    if given.quick:
        vars(given).update(QUICK)
    if given.dirt == ("all",):
        given.dirt = plants.DIRTS
    if unknown := set(given.dirt) - {"clean", *plants.DIRTS}:
        parser.error(f"--dirt {', '.join(sorted(unknown))}: one of {', '.join(plants.DIRTS)}, or all")
    if "counterflow" in given.methods and set(given.seeds) & set(plants.JUDGING_SEEDS) and not given.final:
        parser.error("seeds 100-102 judge the final estimator: they are run once, with --final")
    return given


def jobs(given: argparse.Namespace) -> list[Job]:
    """Cases with the methods that have no score yet, small ones first."""
    stored = {
        (method, dirt): {} if given.again else results.load(label(given, method), dirt)
        for method in given.methods
        for dirt in given.dirt
    }
    out = []
    for rows, seed, dirt, plant, way in product_of(given.rows, given.seeds, given.dirt, given.plants, given.ways):
        if plants.offers(plant, way, dirt):
            key = results.key(plant, way, rows, seed)
            open_ = tuple(method for method in given.methods if key not in stored[method, dirt])
            if open_:
                out.append((plant, way, rows, seed, dirt, open_))
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


def report_dirt(methods: tuple[str, ...]) -> None:
    lines = [
        "# Plants with true twins: dirty records and plants that change",
        "",
        "Error: 1 - R² of effects on other units, as in plants.md, on the twins that a record shares with the one that "
        "it is measured against: of the same run, the end of the clean record with as many sound readings; for "
        "*changed*, the rows since the change. Coverage and width are those of all twins. Silent: the share of the "
        "answers that are not given, since the record has no reading there. Failed: records that were refused; they "
        f"count as no effect at all. A change is found when it is named within {NEAR:.0%} of the record. ARX and CVA "
        "get records whose gaps are filled by straight lines.",
        "",
        *dirt_tables.section(methods, plants.JUDGING_SEEDS, "Judging seeds 100-102"),
        *dirt_tables.section(methods, plants.DEVELOPMENT_SEEDS, "Development seeds 0-2"),
        f"Machine: {machine.description('sippy_unipi', 'wntr')}, one thread a process.",
    ]
    machine.write("plants_dirt", "\n".join(lines))


def main() -> None:
    given = options()
    todo = jobs(given)
    begin = perf_counter()
    with get_context("spawn").Pool(given.jobs) as pool:
        for done, (job, by_method) in enumerate(pool.imap_unordered(one, todo), 1):
            for method, found in by_method.items():
                score, key = found.pop("score"), results.key(*job[:4])
                results.store(label(given, method), key, score, job[4], **found)
                beside = f" beside {found['reference'].error:.3f}" if found else ""
                print(
                    f"{done}/{len(todo)} {perf_counter() - begin:.0f} s  {key} {job[4]} {method}: error "
                    f"{score.error:.3f}{beside}, coverage {score.coverage:.2f}, {score.seconds:.1f} CPU s, "
                    f"{score.status[:60]}",
                    flush=True,
                )
    if "clean" in given.dirt:
        report()
    if set(given.dirt) & set(plants.DIRTS):
        report_dirt(tuple(label(given, method) for method in given.methods))


if __name__ == "__main__":
    main()
