"""Server loss and disentanglement of larger plants, beside the paper's two tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.fits.training import fit
from counterflow.paper.experiments.effects import between
from counterflow.paper.experiments.experiment import Claim, Outcomes, Request, Table, Task, Value, Verdict
from counterflow.paper.experiments.figures import DISENTANGLEMENT, INK, SERVER_LOSS, Curve, Drawing, Panel, points
from counterflow.paper.experiments.methods import refined_states
from counterflow.paper.experiments.selection import by_setting, grid, where
from counterflow.paper.experiments.verdicts import below, both, estimated_above, exponent, geometric, magnitude
from counterflow.paper.experiments.wording import caption, claim, described, summary
from counterflow.plant import Plant, Recording, random_plant

# the paper's tables: sizes, L_s, D
TABLES: dict[str, tuple[tuple[int, ...], tuple[float, ...], tuple[float, ...]]] = {
    "D_m": ((16, 32, 64, 128), (0.7649, 1.0987, 1.4243, 1.1805), (0.0034, 0.0041, 0.0046, 0.0047)),
    "M": ((2, 4, 8, 16), (0.0744, 0.0412, 0.1714, 0.3825), (0.0013, 0.0010, 0.0036, 0.0069)),
}
# at a stationary point L_s = (1 + xi) D but for sampling noise; these are what the tables' own L_s / D - 1 says
IMPLIED = {"D_m": 250.0, "M": 50.0}
XI = 10.0  # of all other experiments, to compare with
SMALL = 0.1  # share of what D would be without theta, from which downwards it is small
STEPS, REPETITIONS, QUICK_REPETITIONS = 2000, 10, 4
FIXED_OUTPUTS, FIXED_UNITS = 8, 2


def _compute(task: Task) -> Mapping[str, Value]:
    """The stationary point of the published training on one random plant."""
    plant = random_plant(units=task["units"], outputs=task["outputs"], rng=task["run"])
    recording = plant.simulate(task["steps"], rng=3000 + task["run"])
    found = fit(recording, plant.locals(), method="penalty", xi=task["xi"])
    history = found.history
    gains = [1 - history.client_loss[n][-1] / history.proprietary_loss[n][-1] for n in plant.names]
    return {
        "server_loss": float(history.server_loss[-1]),
        "disentanglement": float(history.disentanglement[-1]),
        "converged": float(found.status.converged),
        "rounds": float(len(history)),
        "gain": float(np.mean(gains)),
        "crossing": _crossing(plant, recording),
    }


def _crossing(plant: Plant, recording: Recording) -> float:
    """Mean square of Σ_n A_mn ĥ_n, all units: what D would be if the couplings were true and theta were zero."""
    couplings = np.where(between(plant, "A"), plant.A, 0.0)
    crossed = refined_states(recording, plant.locals())[:-1] @ couplings.T
    return float((crossed**2).sum(axis=1).mean())


def _tasks(request: Request) -> tuple[Task, ...]:
    runs = range(QUICK_REPETITIONS if request.quick else REPETITIONS)
    tasks: list[Task] = []
    for table, (sizes, _, _) in TABLES.items():
        outputs, units = (sizes, [FIXED_UNITS]) if table == "D_m" else ([FIXED_OUTPUTS], sizes)
        axes = {"outputs": outputs, "units": units, "xi": (XI, IMPLIED[table]), "run": runs}
        tasks += grid("scalability", axes, table=table, steps=STEPS)
    return tuple(tasks)


def by_size(outcomes: Outcomes, table: str, key: str, xi: float | None = None) -> FloatArray:
    """A value of all runs at a weight (None: the table's own): one row for each run, one column for each size."""
    mine = where(outcomes, table=table, xi=IMPLIED[table] if xi is None else xi)
    return by_setting(mine, "outputs" if table == "D_m" else "units", key)


def _claims(outcomes: Outcomes) -> Iterator[Claim]:
    slopes: dict[str, tuple[float, float]] = {}
    for table, (sizes, losses, penalties) in TABLES.items():
        L, D = by_size(outcomes, table, "server_loss"), by_size(outcomes, table, "disentanglement")
        units = np.array(sizes if table == "M" else [FIXED_UNITS] * len(sizes), np.float64)
        slopes[table] = slope, error = exponent(sizes, L / units)
        theirs, each = (exponent(sizes, np.array([losses]) / per)[0] for per in (1.0, units))
        loosely, _ = exponent(sizes, by_size(outcomes, table, "server_loss", XI) / units)
        relative, loose = D / by_size(outcomes, table, "crossing"), _relative(outcomes, table, XI)
        about = {"table": table, "sizes": ", ".join(map(str, sizes)), "implied": IMPLIED[table]}
        say = partial(claim, "scalability", **about)
        near: Verdict = both(*(magnitude(paper, L[:, k]) for k, paper in enumerate(losses)))
        kinds: dict[Verdict, Verdict] = {"agrees": "agrees in order of magnitude", "does not hold": "not comparable"}
        shown = ", ".join(f"{loss:g}" for loss in losses)
        yield say("loss", kinds.get(near, near), losses=shown, means=_means(L, ".3g"), plants=len(L))
        exponents = {"slope": slope, "error": error, "loosely": loosely, "theirs": theirs, "each": each}
        yield say("growth-of-" + table, estimated_above(slope, error, 0.0), **exponents)
        small = both(*(below(np.log(relative[:, k]), math.log(SMALL)) for k in range(len(sizes))))
        shares = {"means": _means(relative, ".2g"), "loose_means": _means(loose, ".2g")}
        yield say("separation", small, largest=max(penalties), **shares)
        ratios = ", ".join(f"{ratio:.0f}" for ratio in np.array(losses) / np.array(penalties))
        found, apart = L / D, _apart(outcomes, table)
        yield say("ratio", "beyond the paper", ratios=ratios, found=found, mean=geometric(found), apart=apart)
    gap = slopes["D_m"][0] - slopes["M"][0], math.hypot(slopes["D_m"][1], slopes["M"][1])
    yield claim("scalability", "sizes", estimated_above(*gap, 0.0), slopes=slopes)


def _means(values: FloatArray, style: str) -> str:
    return ", ".join(f"{geometric(column):{style}}" for column in values.T)


def _relative(outcomes: Outcomes, table: str, xi: float) -> FloatArray:
    """D over what it would be if theta were zero and the couplings true."""
    return by_size(outcomes, table, "disentanglement", xi) / by_size(outcomes, table, "crossing", xi)


def _tables(outcomes: Outcomes) -> tuple[Table, ...]:
    rows = []
    for table, (sizes, losses, penalties) in TABLES.items():
        for k, size in enumerate(sizes):
            found = []
            for xi in (IMPLIED[table], XI):
                L, D = (by_size(outcomes, table, key, xi)[:, k] for key in ("server_loss", "disentanglement"))
                share = geometric(_relative(outcomes, table, xi)[:, k])
                found += [f"{geometric(L):.3g} ({L.min():.2g} to {L.max():.2g})", f"{geometric(D):.2g}", f"{share:.2g}"]
            rows.append((f"{table} = {size}", f"{losses[k]:g}", f"{penalties[k]:g}", *found))
    head = (
        "", "L_s, paper", "D, paper", "L_s, implied ξ", "D, implied ξ", "D, relative", f"L_s, ξ = {XI:g}",
        f"D, ξ = {XI:g}", "D, relative",
    )  # fmt: skip
    return (Table(caption("scalability", "tables"), head, tuple(rows), paper=("Table 1", "Table 2")),)


def _text(outcomes: Outcomes, claims: Sequence[Claim]) -> str:
    apart = " and ".join(f"{100 * _apart(outcomes, table):.0f} %" for table in TABLES)
    return summary("scalability", claims, apart=apart)


def _apart(outcomes: Outcomes, table: str) -> float:
    """How far the ratios L_s / D of the paper's table are from ours, at most: 0.2 for a factor of 1.2."""
    ours = geometric(by_size(outcomes, table, "server_loss") / by_size(outcomes, table, "disentanglement"))
    theirs = np.array(TABLES[table][1]) / np.array(TABLES[table][2])
    return float(np.maximum(theirs / ours, ours / theirs).max() - 1)


def _figures(outcomes: Outcomes) -> dict[str, Drawing]:
    panels = []
    for table, (sizes, losses, penalties) in TABLES.items():
        for title, key, paper, y in (
            ("Server loss", "server_loss", losses, SERVER_LOSS),
            ("Disentanglement", "disentanglement", penalties, DISENTANGLEMENT),
            ("$\\mathcal{D}$, relative", None, None, "share of true couplings"),
        ):
            of = partial(by_size, outcomes, table, key) if key else partial(_relative, outcomes, table)
            implied, loose = of(IMPLIED[table]), of(XI)
            curves: list[Curve] = [
                points(sizes, implied, "ours, ξ as the table implies", 0, "geometric mean", 0.95),
                points(sizes, loose, f"ours, ξ = {XI:g}", 4, "geometric mean", 1.05),
            ]
            if paper is not None:
                look: dict[str, Any] = {"color": INK, "linestyle": (0, (1, 1.2)), "marker": "x"}
                curves.append(points(sizes, [np.array(paper)], "the paper's table", **look))
            x = "outputs of a unit, $D_m$" if table == "D_m" else "number of units, $M$"
            panels.append(Panel(title, curves, x, y, log_x=sizes, log_y=True))
    return {"scalability": Drawing(caption("scalability", "sizes"), panels)}


EXPERIMENT = described("scalability", _tasks, _compute, _figures, _claims, revision=2, text=_text, tables=_tables)
