"""Where the published method finds effects: the mean of the inputs, their number, the couplings and the noise.

At a large weight D is gone and the server regresses the constant phi_m on the other units' inputs, whose mean is μ and
whose covariance is Σ (docs/theory/paper.md)::

    B̂ = phi μᵀ (Σ + μμᵀ)⁻¹

which is zero for μ = 0, of rank one for any other, and comes to phi μᵀ / |μ|² for a large one. So all that is asked for
is there if the others have one input in all, a mean that is large beside its spread, and a phi that is the whole of its
mean effect: little noise, and no effect through states.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.fits.training import fit
from counterflow.paper.experiments.effects import accuracy, recorded, without_couplings
from counterflow.paper.experiments.experiment import Claim, Experiment, Request, Table, Task, Value, grid
from counterflow.paper.experiments.figures import Drawing, Panel, level, series
from counterflow.paper.experiments.verdicts import mostly
from counterflow.plant import Plant, random_plant

MEANS = (0.0, 1.0, 3.0, 5.0, 10.0)  # in standard deviations of the inputs
COMPARED = 3.0  # the mean at which the default method stands beside
WEIGHTS = (0.1, 10.0, 1e6)
INPUTS, NOISES, POLES = (1, 2), (1.0, 0.01), (0.0, 0.9)
KINDS = {"A and B": "A_mn and B_mn", "only B": "A_mn = 0"}
STEPS, PLANTS, QUICK_PLANTS = 5000, 10, 4
GOOD = 0.5
Cell = tuple[int, str, float, float]  # number of inputs, kind of plant, noise, pole
CELLS: tuple[Cell, ...] = tuple(product(INPUTS, KINDS, NOISES, POLES))


class Region(Experiment, name="finding"):
    @staticmethod
    def tasks(request: Request) -> tuple[Task, ...]:
        """One for each kind of plant, number of inputs, noise, pole and plant."""
        plants = range(QUICK_PLANTS if request.quick else PLANTS)
        axes = {"inputs": INPUTS, "kind": list(KINDS), "noise": NOISES, "pole": POLES, "plant": plants}
        return grid("finding", axes, part="region", steps=STEPS, means=list(MEANS), xi=list(WEIGHTS))

    @staticmethod
    def compute(task: Task) -> Mapping[str, Value]:
        """R² of effects and error of B_mn of the penalty method (means, weights); R² of the default one at one mean."""
        plant = plant_of(task["kind"], task["inputs"], task["noise"], task["plant"])
        found, default = [], float("nan")
        for mean in task["means"]:
            recording = recorded(plant, task["steps"], 100 + task["plant"], task["pole"], mean)
            fits = [fit(recording, plant.locals(), method="penalty", xi=weight) for weight in task["xi"]]
            found.append([accuracy(each.plant, plant) for each in fits])
            if mean == COMPARED:
                default = accuracy(fit(recording, plant.locals(), uncertainty=False).plant, plant)["R2"]
        values: dict[str, Value] = {
            key: np.array([[each[key] for each in by_weight] for by_weight in found]) for key in ("R2", "B")
        }
        return values | {"default/R2": default}

    def cell(self, key: str, cell: Cell) -> FloatArray:
        """A value of all plants of one cell: plants, means and weights."""
        inputs, kind, noise, pole = cell
        return self.of(key, inputs=inputs, kind=kind, noise=noise, pole=pole)

    def judge(self) -> Iterator[Claim]:
        """On effects with inputs that have a mean."""
        R2 = {cell: self.cell("R2", cell) for cell in CELLS}
        # at every mean, the median over the plants at the weight that is best for it
        middle = {cell: np.median(values, axis=0).max(axis=1) for cell, values in R2.items()}
        best = max(middle, key=lambda cell: float(middle[cell].max()))
        mean, weight = np.unravel_index(int(np.argmax(np.median(R2[best], axis=0))), R2[best].shape[1:])
        there = R2[best][:, mean, weight]
        one, two = (np.concatenate([middle[cell][1:] for cell in CELLS if cell[0] == inputs]) for inputs in INPUTS)
        still = np.concatenate([R2[cell][:, 0, WEIGHTS.index(10.0)] for cell in CELLS if cell[3] == 0])
        default = min(float(np.median(self.cell("default/R2", cell))) for cell in CELLS)
        at = {"best": cell_name(best), "mean": MEANS[int(mean)], "xi": WEIGHTS[int(weight)], "there": there}
        others = {"one": one, "two": two, "still": float(np.median(still)), "default": default}
        yield self.claim("region", mostly(there, GOOD), **at, **others)

    def tabulate(self) -> Iterator[Table]:
        """Medians over the plants, for every mean at the weight that is best for it."""
        rows = []
        for cell in CELLS:
            R2, B = (np.median(self.cell(key, cell), axis=0) for key in ("R2", "B"))
            best = [f"{R2[k, w]:.3f} / {B[k, w]:.2f} ({WEIGHTS[w]:g})" for k, w in enumerate(np.argmax(R2, axis=1))]
            rows.append((cell_name(cell), *best, f"{np.median(self.cell('default/R2', cell)):.4f}"))
        head = ("two units", *(f"mean {mean:g}" for mean in MEANS), f"R², default method, mean {COMPARED:g}")
        yield Table(self.caption("region", plants=len(self.cell("R2", CELLS[0]))), head, tuple(rows))

    def draw(self) -> Mapping[str, Drawing]:
        """R² of effects against the mean of the inputs."""
        panels = []
        for inputs, (kind, label) in product(INPUTS, KINDS.items()):
            R2 = {(n, p): self.cell("R2", (inputs, kind, n, p)) for n, p in product(NOISES, POLES)}
            names = {setting: f"R = {setting[0]:g}, {colour_name(setting[1])} inputs" for setting in R2}
            best = {names[setting]: np.median(values, axis=0).max(axis=1) for setting, values in R2.items()}
            title = f"{inputs} input{'s' * (inputs > 1)} a unit, " + label.replace("_mn", "$_{mn}$")
            x, y = "mean of the inputs / standard deviation", "R² of effects"
            panels.append(Panel(title, [*series(MEANS, best), level(0.0)], x, y, range_y=(None, 1.05)))
        return {"finding-region": self.drawing("region-means", panels, columns=2)}


def plant_of(kind: str, inputs: int, noise: float, seed: int) -> Plant:
    """Two units with so many inputs each; ``noise``: variance of the measurement noise."""
    plant = random_plant(inputs=inputs, measurement_noise=noise, rng=seed)
    return without_couplings(plant, "A") if kind == "only B" else plant


def colour_name(pole: float) -> str:
    """White, or AR(pole)."""
    return f"AR({pole:g})" if pole else "white"


def cell_name(cell: Cell) -> str:
    """For tables."""
    inputs, kind, noise, pole = cell
    return f"{inputs} input{'s' * (inputs > 1)} a unit, {KINDS[kind]}, R = {noise:g}, {colour_name(pole)}"
