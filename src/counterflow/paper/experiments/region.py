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

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.fits.training import fit
from counterflow.paper.experiments.effects import coupling_error, r_squared, recorded, responses, without_couplings
from counterflow.paper.experiments.experiment import Claim, Outcomes, Request, Table, Task, Value
from counterflow.paper.experiments.figures import Curve, Drawing, Panel, level, points
from counterflow.paper.experiments.selection import grid, stacked, where
from counterflow.paper.experiments.verdicts import mostly
from counterflow.paper.experiments.wording import caption, claim
from counterflow.plant import Plant, random_plant

MEANS = (0.0, 1.0, 3.0, 5.0, 10.0)  # in standard deviations of the inputs
COMPARED = 3.0  # the mean at which the default method stands beside
WEIGHTS = (0.1, 10.0, 1e6)
INPUTS, NOISES, POLES = (1, 2), (1.0, 0.01), (0.0, 0.9)
KINDS = {"A and B": "A_mn and B_mn", "only B": "A_mn = 0"}
STEPS, PLANTS, QUICK_PLANTS = 5000, 10, 4
GOOD = 0.5


def plant_of(kind: str, inputs: int, noise: float, seed: int) -> Plant:
    """Two units with so many inputs each; ``noise``: variance of the measurement noise.

    Examples
    --------
    >>> plant_of("only B", 1, 0.01, 0).block("A", "unit1", "unit2").any()
    np.False_
    """
    plant = random_plant(inputs=inputs, measurement_noise=noise, rng=seed)
    return without_couplings(plant, "A") if kind == "only B" else plant


def tasks(request: Request) -> tuple[Task, ...]:
    """One for each kind of plant, number of inputs, noise, pole and plant."""
    plants = range(QUICK_PLANTS if request.quick else PLANTS)
    axes = {"inputs": INPUTS, "kind": list(KINDS), "noise": NOISES, "pole": POLES, "plant": plants}
    return grid("finding", axes, part="region", steps=STEPS, means=list(MEANS), xi=list(WEIGHTS))


def compute(task: Task) -> Mapping[str, Value]:
    """R² of effects and error of B_mn of the penalty method (means, weights); R² of the default one at one mean."""
    plant = plant_of(task["kind"], task["inputs"], task["noise"], task["plant"])
    true = responses(plant)
    R2, B, default = [], [], float("nan")
    for mean in task["means"]:
        recording = recorded(plant, task["steps"], 100 + task["plant"], task["pole"], mean)
        found = [fit(recording, plant.locals(), method="penalty", xi=weight).plant for weight in task["xi"]]
        R2.append([r_squared(responses(each), true) for each in found])
        B.append([coupling_error(each, plant, "B") for each in found])
        if mean == COMPARED:
            default = r_squared(responses(fit(recording, plant.locals(), uncertainty=False).plant), true)
    return {"R2": np.array(R2), "B": np.array(B), "default/R2": default}


def cell(outcomes: Outcomes, key: str, inputs: int, kind: str, noise: float, pole: float) -> FloatArray:
    """A value of all plants of one cell of the grid: plants, means and weights."""
    return stacked(where(outcomes, part="region", inputs=inputs, kind=kind, noise=noise, pole=pole), key)


def _settings() -> Iterator[tuple[int, str, float, float]]:
    for inputs in INPUTS:
        for kind in KINDS:
            for noise in NOISES:
                for pole in POLES:
                    yield inputs, kind, noise, pole


def setting_name(inputs: int, kind: str, noise: float, pole: float) -> str:
    """For tables."""
    colour = f"AR({pole:g})" if pole else "white"
    return f"{inputs} input{'s' * (inputs > 1)} a unit, {KINDS[kind]}, R = {noise:g}, {colour}"


def claims(outcomes: Outcomes) -> Iterator[Claim]:
    """On effects with inputs that have a mean."""
    R2 = {setting: cell(outcomes, "R2", *setting) for setting in _settings()}
    # at every mean above zero, the median over the plants at the weight that is best for it
    middle = {setting: np.median(values, axis=0).max(axis=1) for setting, values in R2.items()}
    best = max(middle, key=lambda setting: float(middle[setting].max()))
    at = np.unravel_index(int(np.argmax(np.median(R2[best], axis=0))), R2[best].shape[1:])
    there = R2[best][:, at[0], at[1]]
    one, two = (np.concatenate([middle[s][1:] for s in middle if s[0] == inputs]) for inputs in INPUTS)
    still = float(np.median(np.concatenate([R2[s][:, 0, WEIGHTS.index(10.0)] for s in R2 if s[3] == 0])))
    default = min(float(np.median(cell(outcomes, "default/R2", *s))) for s in R2)
    yield claim(
        "finding", "region", mostly(there, GOOD), best=setting_name(*best), mean=MEANS[int(at[0])],
        xi=WEIGHTS[int(at[1])], there=there, one=one, two=two, still=still, default=default,
    )  # fmt: skip


def tables(outcomes: Outcomes) -> tuple[Table, ...]:
    """Medians over the plants, for every mean at the weight that is best for it."""
    rows = []
    for setting in _settings():
        R2, B = (np.median(cell(outcomes, key, *setting), axis=0) for key in ("R2", "B"))
        best = np.argmax(R2, axis=1)
        cells = [f"{R2[k, w]:.3f} / {B[k, w]:.2f} ({WEIGHTS[w]:g})" for k, w in enumerate(best)]
        rows.append((setting_name(*setting), *cells, f"{np.median(cell(outcomes, 'default/R2', *setting)):.4f}"))
    head = ("two units", *(f"mean {mean:g}" for mean in MEANS), f"R², default method, mean {COMPARED:g}")
    plants = len(where(outcomes, part="region", inputs=1, kind="only B", noise=1.0, pole=0.0))
    return (Table(caption("finding", "region", plants=plants), head, tuple(rows)),)


def figures(outcomes: Outcomes) -> dict[str, Drawing]:
    """R² of effects against the mean of the inputs."""
    panels = []
    for inputs in INPUTS:
        for kind, label in KINDS.items():
            curves: list[Curve] = []
            for k, (noise, pole) in enumerate((noise, pole) for noise in NOISES for pole in POLES):
                found = cell(outcomes, "R2", inputs, kind, noise, pole)
                best = found[:, range(len(MEANS)), np.argmax(np.median(found, axis=0), axis=1)]
                colour = f"AR({pole:g})" if pole else "white"
                curves.append(points(MEANS, np.median(best, axis=0)[None], f"R = {noise:g}, {colour} inputs", k))
            title = f"{inputs} input{'s' * (inputs > 1)} a unit, " + label.replace("_mn", "$_{mn}$")
            x, y = "mean of the inputs / standard deviation", "R² of effects"
            panels.append(Panel(title, [*curves, level(0.0)], x, y, range_y=(None, 1.05)))
    return {"finding-region": Drawing(caption("finding", "region-means"), panels, columns=2)}
