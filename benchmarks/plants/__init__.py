"""Simulated plants with true twins, and a judge of what estimators say of them.

    from plants import case, judge, PLANTS, WAYS
    one = case("reactors", "gentle", rows=3000, seed=0)
    judge(one, baselines.arx(one)).error

Seeds 0 to 2 are for development. Seeds 100 to 102 are for judging: no new estimator is run on them before its last run.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module

from plants.cases import Case, Twin, simulated
from plants.scores import CAP, TINY, Answer, Report, Score, judge
from plants.ways import WAYS

PLANTS = ("tanks", "reactors", "column", "exchangers", "building", "sludge", "water")
ROWS = (1000, 3000, 10000)
DEVELOPMENT_SEEDS, JUDGING_SEEDS = (0, 1, 2), (100, 101, 102)


def case(plant: str, way: str, rows: int, seed: int) -> Case:
    """The record of a plant in one way of being run, with its truth; the same arguments give the same case."""
    module = import_module(f"plants.simulators.{plant}")
    build = partial(simulated, module.plant) if hasattr(module, "plant") else module.case
    return build(WAYS[way], rows, seed)


def offers(plant: str, way: str) -> bool:
    """Whether a plant can be run in a way."""
    return way in getattr(import_module(f"plants.simulators.{plant}"), "OFFERED", WAYS)


__all__ = [
    "CAP",
    "DEVELOPMENT_SEEDS",
    "JUDGING_SEEDS",
    "PLANTS",
    "ROWS",
    "TINY",
    "WAYS",
    "Answer",
    "Case",
    "Report",
    "Score",
    "Twin",
    "case",
    "judge",
    "offers",
]  # fmt: skip
