"""The smallest repair of the published method at several noise levels, and whether a further step makes it consistent.

The repair is one hat: the server explains ĥ_a[t], which has seen y_m[t], where the paper has h_a[t]. With zero-mean
white inputs its B̂_mn then comes to (K_m + theta_m) C_mm B_mn, so that dividing by that matrix, P_m² numbers of a unit,
makes B_mn right. Inputs that persist, and A_mn, need more: what the units send, read as measurements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.fits.training import fit
from counterflow.paper.experiments.effects import cosine, coupling_error, r_squared, recorded, responses
from counterflow.paper.experiments.experiment import Claim, Outcomes, Request, Table, Task, Value
from counterflow.paper.experiments.figures import Curve, Drawing, Panel, level, points
from counterflow.paper.experiments.methods import estimate, granger_plant, unfiltered_fit, without_gains
from counterflow.paper.experiments.selection import by_setting, grid, stacked, where
from counterflow.paper.experiments.verdicts import exponent
from counterflow.paper.experiments.wording import caption, claim
from counterflow.plant import Plant, Recording, random_plant

NOISES, POLES = (1.0, 1e-2, 1e-4), (0.0, 0.9)
LENGTHS, QUICK_LENGTHS = (2000, 8000, 32000), (2000, 8000)
PLANTS, QUICK_PLANTS = 10, 4
LEAST = -1e6  # an unstable estimate has an R² without a meaningful size
ROWS = {
    "published": "published target, ξ = 10",
    "refined-small": "refined target, ξ = 0.1",
    "refined": "refined target, ξ = 10",
    "refined-large": "refined target, ξ = 10⁶",
    "corrected": "refined target, ξ = 10, gains taken out of B_mn",
    "corrected-large": "refined target, ξ = 10⁶, gains taken out of B_mn",
    "unfiltered": "round 0 read as measurements, likelihood",
    "fedgc": "FedGC (predecessor)",
    "granger": "Granger causality, pooled states",
    "default": "sufficient messages (default)",
}
SHORT = {
    "published": "published",
    "refined": "refined target",
    "corrected": "gains taken out",
    "unfiltered": "round 0, likelihood",
    "granger": "Granger",
    "default": "sufficient",
}


def tasks(request: Request) -> tuple[Task, ...]:
    """At every noise level one length, and at the first one all lengths."""
    plants = range(QUICK_PLANTS if request.quick else PLANTS)
    first, *longer = QUICK_LENGTHS if request.quick else LENGTHS
    noisy = grid("finding", {"noise": NOISES, "pole": POLES, "plant": plants}, part="repair", steps=first)
    axes = {"steps": longer[::-1], "pole": POLES, "plant": plants}
    return (*grid("finding", axes, part="repair", noise=NOISES[0]), *noisy)


def compute(task: Task) -> Mapping[str, Value]:
    """For every row of the table: error of B_mn, of A_mn, cosine of B_mn, and R² of effects."""
    plant = random_plant(measurement_noise=task["noise"], rng=task["plant"])
    recording = recorded(plant, task["steps"], 7000 + task["plant"], task["pole"])
    values = {}
    for name, found in found_plants(recording, plant).items():
        values[f"{name}/B"] = coupling_error(found, plant, "B")
        values[f"{name}/A"] = coupling_error(found, plant, "A")
        values[f"{name}/cosine"] = cosine(found, plant)
        values[f"{name}/R2"] = r_squared(responses(found), responses(plant))
    return {key: float(max(value, LEAST)) if np.isfinite(value) else value for key, value in values.items()}


def found_plants(recording: Recording, true: Plant) -> dict[str, Plant]:
    """The plant of every row of the table."""
    models = true.locals()
    refined = {
        name: fit(recording, models, method="penalty", xi=weight, target="refined")
        for name, weight in (("refined-small", 0.1), ("refined", 10.0), ("refined-large", 1e6))
    }
    unfiltered = unfiltered_fit(recording, true).plant
    return {
        "published": fit(recording, models, method="penalty", xi=10.0).plant,
        **{name: found.plant for name, found in refined.items()},
        "corrected": without_gains(refined["refined"], true),
        "corrected-large": without_gains(refined["refined-large"], true),
        "unfiltered": true.replace(A=unfiltered.A, B=unfiltered.B),  # its own outputs are K_m y_m
        "fedgc": estimate("fedgc", recording, true, 0).plant,
        "granger": granger_plant(recording, true)[0],
        "default": fit(recording, models, uncertainty=False).plant,
    }


def values_of(outcomes: Outcomes, key: str, noise: float, pole: float, steps: int) -> FloatArray:
    """One number of each plant."""
    return stacked(where(outcomes, part="repair", noise=noise, pole=pole, steps=steps), key)


def lengths_of(outcomes: Outcomes) -> tuple[int, ...]:
    """The numbers of rows, shortest first."""
    return tuple(sorted({int(o.task["steps"]) for o in where(outcomes, part="repair")}))


def _by_length(outcomes: Outcomes, name: str, letter: str, pole: float) -> FloatArray:
    """One row for each plant, one column for each length."""
    return by_setting(where(outcomes, part="repair", noise=NOISES[0], pole=pole), "steps", f"{name}/{letter}")


def claims(outcomes: Outcomes) -> Iterator[Claim]:
    """What the repair and the further steps do: all of it beyond the paper."""
    lengths = lengths_of(outcomes)
    first = lengths[0]
    B = {
        name: [values_of(outcomes, f"{name}/B", noise, 0.0, first) for noise in NOISES]
        for name in ("published", "refined", "refined-large", "granger", "default")
    }
    direction = values_of(outcomes, "refined/cosine", NOISES[0], 0.0, first)
    R2 = {name: values_of(outcomes, f"{name}/R2", NOISES[0], 0.0, first) for name in ROWS}
    yield claim("finding", "repair", "beyond the paper", B=B, direction=direction, R2=R2)
    falls = {
        (name, letter, pole): exponent(lengths, _by_length(outcomes, name, letter, pole))[0]
        for name in ("corrected", "unfiltered", "refined")
        for letter in "AB"
        for pole in POLES
    }
    longest = {
        (name, letter, pole): float(np.median(_by_length(outcomes, name, letter, pole)[:, -1]))
        for name, letter, pole in falls
    }
    apart = max(
        float(np.abs(values_of(outcomes, "unfiltered/B", *s) - values_of(outcomes, "default/B", *s)).max())
        for s in {(o.task["noise"], o.task["pole"], o.task["steps"]) for o in where(outcomes, part="repair")}
    )

    def told(name: str, letter: str, pole: float) -> str:
        return f"T^{falls[name, letter, pole]:.2f} to {longest[name, letter, pole]:.2g}"

    yield claim(
        "finding", "consistent", "beyond the paper", longest=lengths[-1], apart=apart,
        B_white=told("corrected", "B", 0.0), B_persistent=told("corrected", "B", 0.9),
        A_white=told("refined", "A", 0.0),
        both=", ".join(told("unfiltered", letter, pole) for letter in "BA" for pole in POLES),
    )  # fmt: skip


def tables(outcomes: Outcomes) -> tuple[Table, ...]:
    """Medians over the plants at every noise level."""
    first = lengths_of(outcomes)[0]
    rows = []
    for name, label in ROWS.items():
        cells = []
        for pole in POLES:
            for noise in NOISES:
                B, R2 = (float(np.median(values_of(outcomes, f"{name}/{k}", noise, pole, first))) for k in ("B", "R2"))
                cells.append(f"{B:.3f} / {R2:.3f}" if R2 > -100 else f"{B:.3f} / below -100")
        rows.append((label, *cells))
    head = ("", *(f"{f'AR({pole:g})' if pole else 'white'}, R = {noise:g}" for pole in POLES for noise in NOISES))
    plants = len(where(outcomes, part="repair", noise=NOISES[0], pole=0.0, steps=first))
    return (Table(caption("finding", "repair", plants=plants, rows=first), head, tuple(rows)),)


def figures(outcomes: Outcomes) -> dict[str, Drawing]:
    """Against the noise, and against the number of rows."""
    lengths = lengths_of(outcomes)

    def noisy(title: str, pole: float) -> Panel:
        curves: list[Curve] = []
        for k, (name, label) in enumerate(SHORT.items()):
            runs = np.stack([values_of(outcomes, f"{name}/B", noise, pole, lengths[0]) for noise in NOISES], axis=1)
            curves.append(points(NOISES, runs, label, k, "median"))
        x, y = "variance of the measurement noise, R", "relative error of $B_{mn}$"
        return Panel(title, [*curves, level(1.0)], x, y, log_x=NOISES, log_y=True)

    def longer(title: str, letter: str, pole: float) -> Panel:
        curves = [
            points(lengths, _by_length(outcomes, name, letter, pole), label, k, "median")
            for k, (name, label) in enumerate(SHORT.items())
        ]
        y = f"relative error of ${letter}_{{mn}}$"
        return Panel(title, [*curves, level(1.0)], "rows T", y, log_x=lengths, log_y=True)

    panels = (
        noisy("White inputs", 0.0),
        noisy("AR(0.9) inputs", 0.9),
        longer("White inputs, R = 1", "B", 0.0),
        longer("AR(0.9) inputs, R = 1", "B", 0.9),
        longer("White inputs, R = 1", "A", 0.0),
        longer("AR(0.9) inputs, R = 1", "A", 0.9),
    )
    return {"finding-repair": Drawing(caption("finding", "repair-errors", rows=lengths[0]), panels, columns=2)}
