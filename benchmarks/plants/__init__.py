"""Simulated plants with true twins, and a judge of what estimators say of them.

    from plants import case, judge, PLANTS, WAYS
    one = case("reactors", "gentle", rows=3000, seed=0)
    judge(one, baselines.arx(one)).error
    dirty = case("reactors", "gentle", rows=3000, seed=0, dirt="spikes")  # the same record and truth with spikes

Seeds 0 to 2 are for development. Seeds 100 to 102 are for judging: no new estimator is run on them before its last run.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib import import_module

from plants.cases import Case, Twin, Wear, simulated
from plants.dirt import SENSORS, WEARS, soiled, wear
from plants.scores import CAP, TINY, Answer, Report, Score, judge
from plants.ways import WAYS

PLANTS = ("tanks", "reactors", "column", "exchangers", "building", "sludge", "water")
ROWS = (1000, 3000, 10000)
DIRTS = (*SENSORS, *WEARS)
DEVELOPMENT_SEEDS, JUDGING_SEEDS = (0, 1, 2), (100, 101, 102)


def case(plant: str, way: str, rows: int, seed: int, dirt: str = "clean") -> Case:
    """The record of a plant in one way of being run, with its truth; the same arguments give the same case."""
    if dirt not in ("clean", *DIRTS) or not offers(plant, way, dirt):
        raise ValueError(f"plant {plant!r}, way {way!r}: no dirt {dirt!r}; one of clean, {', '.join(DIRTS)}.")
    module = import_module(f"plants.simulators.{plant}")
    build = partial(simulated, module.plant) if hasattr(module, "plant") else module.case
    if dirt in WEARS:
        return replace(build(WAYS[way], rows, seed, wear(module.plant, way, rows, seed, dirt)), dirt=dirt)
    clean = build(WAYS[way], rows, seed)
    return clean if dirt == "clean" else soiled(clean, dirt)


def reference(dirty: Case) -> tuple[Case, tuple[int, ...]]:
    """The record that a dirty one is measured against, and the twins of the dirty case that both are asked about.

    For a plant that changed at once it is the record since then. Otherwise it is the end of the clean record of the
    same run, with as many readings.
    """
    if dirty.change is not None and dirty.change.sudden:
        first = dirty.change.row
        return dirty.cut(first), dirty.since(first)
    first = dirty.rows - dirty.equal_rows
    return case(dirty.plant, dirty.way, dirty.rows, dirty.seed).cut(first), dirty.since(first)


def offers(plant: str, way: str, dirt: str = "clean") -> bool:
    """Whether a plant can be run in a way and has a dirt; EPANET's pipes and pumps do not wear."""
    module = import_module(f"plants.simulators.{plant}")
    return way in getattr(module, "OFFERED", WAYS) and (dirt not in WEARS or hasattr(module, "plant"))


__all__ = [
    "CAP",
    "DEVELOPMENT_SEEDS",
    "DIRTS",
    "JUDGING_SEEDS",
    "PLANTS",
    "ROWS",
    "SENSORS",
    "TINY",
    "WAYS",
    "WEARS",
    "Answer",
    "Case",
    "Report",
    "Score",
    "Twin",
    "Wear",
    "case",
    "judge",
    "offers",
    "reference",
]  # fmt: skip
