"""Server loss and disentanglement of larger plants, beside the paper's two tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.fits.training import fit
from counterflow.paper.experiments import figures
from counterflow.paper.experiments.effects import between, refined_states
from counterflow.paper.experiments.experiment import Claim, Experiment, Request, Table, Task, Value, grid
from counterflow.paper.experiments.figures import Curve, Drawing, Panel, points
from counterflow.paper.experiments.verdicts import Verdict, below, both, estimated_above, exponent, geometric, magnitude
from counterflow.plant import random_plant

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
LIKE: Mapping[Verdict, Verdict] = {"agrees": "agrees in order of magnitude", "does not hold": "not comparable"}


class Scalability(Experiment, name="scalability", revision=2):
    @staticmethod
    def tasks(request: Request) -> tuple[Task, ...]:
        runs = range(QUICK_REPETITIONS if request.quick else REPETITIONS)
        tasks: list[Task] = []
        for table, (sizes, _, _) in TABLES.items():
            outputs, units = (sizes, [FIXED_UNITS]) if table == "D_m" else ([FIXED_OUTPUTS], sizes)
            axes = {"outputs": outputs, "units": units, "xi": (XI, IMPLIED[table]), "run": runs}
            tasks += grid("scalability", axes, table=table, steps=STEPS)
        return tuple(tasks)

    @staticmethod
    def compute(task: Task) -> Mapping[str, Value]:
        """The stationary point of the published training on one random plant.

        ``crossing``: mean square of Σ_n A_mn ĥ_n, all units: what D would be if the couplings were true and theta zero.
        """
        plant = random_plant(units=task["units"], outputs=task["outputs"], rng=task["run"])
        recording = plant.simulate(task["steps"], rng=3000 + task["run"])
        found = fit(recording, plant.locals(), method="penalty", xi=task["xi"])
        crossed = refined_states(recording, plant.locals())[:-1] @ np.where(between(plant, "A"), plant.A, 0.0).T
        return {
            "server_loss": float(found.history.server_loss[-1]),
            "disentanglement": float(found.history.disentanglement[-1]),
            "crossing": float((crossed**2).sum(axis=1).mean()),
        }

    def by_size(self, table: str, key: str, xi: float | None = None) -> FloatArray:
        """A value at a weight (None: the table's own): one row for each run, one column for each size.

        ``relative``: D over what it would be if theta were zero and the couplings true.
        """
        if key == "relative":
            return self.by_size(table, "disentanglement", xi) / self.by_size(table, "crossing", xi)
        weight = IMPLIED[table] if xi is None else xi
        return self.of(key, by="outputs" if table == "D_m" else "units", table=table, xi=weight)

    def judge(self) -> Iterator[Claim]:
        slopes: dict[str, tuple[float, float]] = {}
        for table, (sizes, losses, penalties) in TABLES.items():
            L, D = (self.by_size(table, key) for key in ("server_loss", "disentanglement"))
            units = np.array(sizes if table == "M" else [FIXED_UNITS] * len(sizes), np.float64)
            slopes[table] = slope, error = exponent(sizes, L / units)
            theirs, each = (exponent(sizes, np.array([losses]) / per)[0] for per in (1.0, units))
            loosely, _ = exponent(sizes, self.by_size(table, "server_loss", XI) / units)
            relative, loose = (self.by_size(table, "relative", xi) for xi in (None, XI))
            about = {"table": table, "sizes": ", ".join(map(str, sizes)), "implied": IMPLIED[table]}
            near = both(*(magnitude(paper, L[:, k]) for k, paper in enumerate(losses)))
            shown = {"losses": ", ".join(f"{loss:g}" for loss in losses), "means": _means(L, ".3g"), "plants": len(L)}
            yield self.claim("loss", LIKE.get(near, near), **about, **shown)
            exponents = {"slope": slope, "error": error, "loosely": loosely, "theirs": theirs, "each": each}
            yield self.claim("growth-of-" + table, estimated_above(slope, error, 0.0), **about, **exponents)
            small = both(*(below(np.log(relative[:, k]), math.log(SMALL)) for k in range(len(sizes))))
            shares = {"means": _means(relative, ".2g"), "loose_means": _means(loose, ".2g")}
            yield self.claim("separation", small, **about, **shares, largest=max(penalties))
            ratios = ", ".join(f"{ratio:.0f}" for ratio in np.array(losses) / np.array(penalties))
            found = {"found": L / D, "mean": geometric(L / D), "ratios": ratios, "apart": self.apart_in(table)}
            yield self.claim("ratio", "beyond the paper", **about, **found)
        gap = slopes["D_m"][0] - slopes["M"][0], math.hypot(slopes["D_m"][1], slopes["M"][1])
        yield self.claim("sizes", estimated_above(*gap, 0.0), slopes=slopes)

    def apart_in(self, table: str) -> float:
        """How far the ratios L_s / D of the paper's table are from ours, at most: 0.2 for a factor of 1.2."""
        ours = geometric(self.by_size(table, "server_loss") / self.by_size(table, "disentanglement"))
        theirs = np.array(TABLES[table][1]) / np.array(TABLES[table][2])
        return float(np.maximum(theirs / ours, ours / theirs).max() - 1)

    @property
    def apart(self) -> str:
        return " and ".join(f"{100 * self.apart_in(table):.0f} %" for table in TABLES)

    def tabulate(self) -> Iterator[Table]:
        rows = []
        for table, (sizes, losses, penalties) in TABLES.items():
            keys = ("server_loss", "disentanglement", "relative")
            values = [[self.by_size(table, key, xi).T for key in keys] for xi in (None, XI)]
            for k, size in enumerate(sizes):
                found = [f"{table} = {size}", f"{losses[k]:g}", f"{penalties[k]:g}"]
                for L, D, share in values:
                    spread = f"{geometric(L[k]):.3g} ({L[k].min():.2g} to {L[k].max():.2g})"
                    found += [spread, f"{geometric(D[k]):.2g}", f"{geometric(share[k]):.2g}"]
                rows.append(tuple(found))
        head = (
            "", "L_s, paper", "D, paper", "L_s, implied ξ", "D, implied ξ", "D, relative", f"L_s, ξ = {XI:g}",
            f"D, ξ = {XI:g}", "D, relative",
        )  # fmt: skip
        yield Table(self.caption("tables"), head, tuple(rows), paper=("Table 1", "Table 2"))

    def draw(self) -> Mapping[str, Drawing]:
        look: dict[str, Any] = {"color": figures.INK, "linestyle": (0, (1, 1.2)), "marker": "x"}
        panels = []
        for table, (sizes, losses, penalties) in TABLES.items():
            x = "outputs of a unit, $D_m$" if table == "D_m" else "number of units, $M$"
            for title, key, paper, y in (
                ("Server loss", "server_loss", losses, figures.SERVER_LOSS),
                ("Disentanglement", "disentanglement", penalties, figures.DISENTANGLEMENT),
                ("$\\mathcal{D}$, relative", "relative", None, "share of true couplings"),
            ):
                implied, loose = (self.by_size(table, key, xi) for xi in (None, XI))
                curves: list[Curve] = [
                    points(sizes, implied, "ours, ξ as the table implies", 0, "geometric mean", 0.95),
                    points(sizes, loose, f"ours, ξ = {XI:g}", 4, "geometric mean", 1.05),
                ]
                if paper is not None:
                    curves.append(points(sizes, [np.array(paper)], "the paper's table", **look))
                panels.append(Panel(title, curves, x, y, log_x=sizes, log_y=True))
        return {"scalability": self.drawing("sizes", panels)}


def _means(values: FloatArray, style: str) -> str:
    return ", ".join(f"{geometric(column):{style}}" for column in values.T)
