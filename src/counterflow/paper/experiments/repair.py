"""The smallest repair of the published method at several noise levels, and whether a further step makes it consistent.

The repair is one hat: the server explains ĥ_a[t], which has seen y_m[t], where the paper has h_a[t]. With zero-mean
white inputs its B̂_mn then comes to (K_m + theta_m) C_mm B_mn, so that dividing by that matrix, P_m² numbers of a unit,
makes B_mn right. Inputs that persist, and A_mn, need more: what the units send, read as measurements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import product

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.paper.experiments.effects import accuracy, recorded
from counterflow.paper.experiments.experiment import Claim, Experiment, Request, Table, Task, Value, grid
from counterflow.paper.experiments.figures import Drawing, Panel, level, series
from counterflow.paper.experiments.methods import granger_plant, trained, unfiltered_fit, without_gains
from counterflow.paper.experiments.region import colour_name
from counterflow.paper.experiments.verdicts import exponent
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


class Repair(Experiment, name="finding"):
    @staticmethod
    def tasks(request: Request) -> tuple[Task, ...]:
        """At every noise level one length, and at the first one all lengths."""
        plants = range(QUICK_PLANTS if request.quick else PLANTS)
        first, *longer = QUICK_LENGTHS if request.quick else LENGTHS
        noisy = grid("finding", {"noise": NOISES, "pole": POLES, "plant": plants}, part="repair", steps=first)
        axes = {"steps": longer[::-1], "pole": POLES, "plant": plants}
        return (*grid("finding", axes, part="repair", noise=NOISES[0]), *noisy)

    @staticmethod
    def compute(task: Task) -> Mapping[str, Value]:
        """For every row of the table: error of B_mn, of A_mn, cosine of B_mn, and R² of effects."""
        plant = random_plant(measurement_noise=task["noise"], rng=task["plant"])
        recording = recorded(plant, task["steps"], 7000 + task["plant"], task["pole"])
        found = {name: accuracy(each, plant) for name, each in found_plants(recording, plant).items()}
        values = {f"{name}/{key}": each[key] for name, each in found.items() for key in ("B", "A", "cosine", "R2")}
        return {key: float(max(value, LEAST)) if np.isfinite(value) else value for key, value in values.items()}

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """The numbers of rows, shortest first."""
        return self.levels("steps")

    def noisy(self, key: str, noise: float, pole: float) -> FloatArray:
        """One number of each plant, of the shortest recordings."""
        return self.of(key, noise=noise, pole=pole, steps=self.lengths[0])

    def longer(self, name: str, letter: str, pole: float) -> FloatArray:
        """One row for each plant, one column for each length."""
        return self.of(f"{name}/{letter}", by="steps", noise=NOISES[0], pole=pole)

    def judge(self) -> Iterator[Claim]:
        """What the repair and the further steps do: all of it beyond the paper."""
        shown = ("published", "refined", "refined-large", "granger", "default")
        B = {name: [self.noisy(f"{name}/B", noise, 0.0) for noise in NOISES] for name in shown}
        direction, R2 = self.noisy("refined/cosine", NOISES[0], 0.0), self.noisy("refined/R2", NOISES[0], 0.0)
        yield self.claim("repair", "beyond the paper", B=B, direction=direction, R2=R2)

        def told(name: str, letter: str, pole: float) -> str:
            errors = self.longer(name, letter, pole)
            return f"T^{exponent(self.lengths, errors)[0]:.2f} to {float(np.median(errors[:, -1])):.2g}"

        falls = {
            "B_white": told("corrected", "B", 0.0),
            "B_persistent": told("corrected", "B", 0.9),
            "A_white": told("refined", "A", 0.0),
            "both": ", ".join(told("unfiltered", letter, pole) for letter, pole in product("BA", POLES)),
        }
        apart = float(np.abs(self.of("unfiltered/B") - self.of("default/B")).max())
        yield self.claim("consistent", "beyond the paper", longest=self.lengths[-1], apart=apart, **falls)

    def tabulate(self) -> Iterator[Table]:
        """Medians over the plants at every noise level."""
        rows = []
        for name, label in ROWS.items():
            cells = []
            for pole, noise in product(POLES, NOISES):
                B, R2 = (float(np.median(self.noisy(f"{name}/{key}", noise, pole))) for key in ("B", "R2"))
                cells.append(f"{B:.3f} / {R2:.3f}" if R2 > -100 else f"{B:.3f} / below -100")
            rows.append((label, *cells))
        head = ("", *(f"{colour_name(pole)}, R = {noise:g}" for pole, noise in product(POLES, NOISES)))
        plants = len(self.noisy("published/B", NOISES[0], 0.0))
        yield Table(self.caption("repair", plants=plants), head, tuple(rows))

    def draw(self) -> Mapping[str, Drawing]:
        """Against the noise, and against the number of rows."""
        panels, lengths = [], self.lengths
        titles = {pole: f"{colour_name(pole).replace('white', 'White')} inputs" for pole in POLES}
        for pole in POLES:
            x = "variance of the measurement noise, R"
            runs = {
                label: np.stack([self.noisy(f"{name}/B", noise, pole) for noise in NOISES], axis=1)
                for name, label in SHORT.items()
            }
            curves = [*series(NOISES, runs, "median"), level(1.0)]
            panels.append(Panel(titles[pole], curves, x, "relative error of $B_{mn}$", log_x=NOISES, log_y=True))
        for letter, pole in product("BA", POLES):
            runs = {label: self.longer(name, letter, pole) for name, label in SHORT.items()}
            curves, y = [*series(lengths, runs, "median"), level(1.0)], f"relative error of ${letter}_{{mn}}$"
            panels.append(Panel(f"{titles[pole]}, R = 1", curves, "rows T", y, log_x=lengths, log_y=True))
        return {"finding-repair": self.drawing("repair-errors", panels, columns=2)}


def found_plants(recording: Recording, true: Plant) -> dict[str, Plant]:
    """The plant of every row of the table."""
    fits = {name: trained(name, recording, true) for name in ("penalty", "refined-small", "refined", "refined-large")}
    unfiltered = unfiltered_fit(recording, true).plant
    return {
        "published": fits.pop("penalty").plant,
        **{name: found.plant for name, found in fits.items()},
        "corrected": without_gains(fits["refined"], true),
        "corrected-large": without_gains(fits["refined-large"], true),
        "unfiltered": true.replace(A=unfiltered.A, B=unfiltered.B),  # its own outputs are K_m y_m
        "fedgc": trained("fedgc", recording, true).plant,
        "granger": granger_plant(recording, true)[0],
        "default": trained("default", recording, true).plant,
    }
