"""How far the published training and sufficient messages are from a centralized oracle, against T and xi."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.exchange.estimators import KalmanEstimator
from counterflow.filtering import kalman_filter
from counterflow.fits.fit import Fit
from counterflow.fits.training import fit
from counterflow.paper.augmented import AugmentedModel, ClientData
from counterflow.paper.experiments.effects import recorded
from counterflow.paper.experiments.experiment import Claim, Experiment, Request, Task, Value, grid
from counterflow.paper.experiments.figures import INK, Curve, Drawing, Panel, level, points, series
from counterflow.paper.experiments.verdicts import (
    FEWEST,
    Verdict,
    above,
    below,
    beyond_control,
    both,
    estimated_above,
    exponent,
    holds,
    said,
)
from counterflow.plant import Plant, Recording, random_plant

LENGTHS, QUICK_LENGTHS = (500, 2000, 8000, 32000), (500, 2000, 8000)
WEIGHTS = (0.1, 1.0, 10.0, 100.0, 1e4, 1e6)
MEANS = (0.0, 1.0)
OUTPUTS, PLANT = 2, 0
REPETITIONS, QUICK_REPETITIONS = 20, 6
ROUNDING = 1e-9
BIASED = 0.05  # distance to the oracle from which on there is a bias
VOID = 0.05  # of what a mean of one makes of it, from which downwards an expectation is none
WITHIN = 4.0  # standard errors within which a mean counts as zero


class Convergence(Experiment, name="convergence"):
    @staticmethod
    def tasks(request: Request) -> tuple[Task, ...]:
        lengths, count = (QUICK_LENGTHS, QUICK_REPETITIONS) if request.quick else (LENGTHS, REPETITIONS)
        axes = {"steps": lengths[::-1], "mean": MEANS, "run": range(count)}
        return grid("convergence", axes, plant=PLANT, outputs=OUTPUTS, xi=list(WEIGHTS))

    @staticmethod
    def compute(task: Task) -> Mapping[str, Value]:
        """Distances to the oracle in one recording.

        ``left`` (weights, D): mean over rows of ỹ_o - ỹ_a, all units side by side; ``right``: J_m times the mean of z.
        ``distance`` (weights): root mean square of ỹ_o - ỹ_a over that of ỹ_o; ``proprietary`` the same of ỹ_c.
        ``sufficient/..``: the same of one Kalman filter with the couplings found from sufficient messages; ``equality``
        the largest difference to a fit on pooled raw data, relative.
        """
        plant = random_plant(outputs=task["outputs"], rng=task["plant"])
        recording = recorded(plant, task["steps"], 6000 + task["run"], mean=task["mean"])
        oracle = _filtered(plant, recording)

        def distance(predicted: FloatArray) -> float:
            return float(np.sqrt(((oracle - predicted) ** 2).mean())) / float(np.sqrt((oracle**2).mean()))

        fits = [fit(recording, plant.locals(), method="penalty", xi=weight) for weight in task["xi"]]
        published = [augmented(found, plant, recording) for found in fits]
        estimates = {n: KalmanEstimator(plant.local(n)).estimate(recording[n].y, recording[n].u) for n in plant.names}
        own = np.hstack([each.predicted[1:] @ plant.block("C", n).T for n, each in estimates.items()])
        ours, pooled = (
            fit(recording, plant.locals(), method=method, uncertainty=False).plant
            for method in ("sufficient", "centralized")
        )
        served = _filtered(plant.replace(A=ours.A, B=ours.B), recording)
        gaps = [(getattr(ours, x) - getattr(pooled, x), getattr(pooled, x)) for x in "AB"]
        return {
            "left": np.array([(oracle - predicted).mean(axis=0) for predicted, _ in published]),
            "right": np.array([bias for _, bias in published]),
            "distance": np.array([distance(predicted) for predicted, _ in published]),
            "proprietary": distance(own),
            "sufficient/left": np.asarray((oracle - served).mean(axis=0)),
            "sufficient/distance": distance(served),
            "equality": max(float(np.linalg.norm(gap)) / float(np.linalg.norm(size)) for gap, size in gaps),
        }

    last_xi = WEIGHTS[-1]

    @cached_property
    def lengths(self) -> tuple[int, ...]:
        """The numbers of rows, shortest first."""
        return self.levels("steps")

    @property
    def longest(self) -> int:
        return self.lengths[-1]

    def by_length(self, mean: float, key: str, weight: float | None = None) -> FloatArray:
        """The length of a vector (or the size of a number) at a weight if it depends on it: runs, numbers of rows."""
        found = self.of(key, by="steps", mean=mean)
        found = found if weight is None else found[:, :, WEIGHTS.index(weight)]
        return found if found.ndim == 2 else np.asarray(np.linalg.norm(found, axis=2))

    @cached_property
    def equality(self) -> float:
        return float(self.of("equality").max())

    @property
    def equal(self) -> bool:
        return self.equality <= ROUNDING

    @property
    def void(self) -> bool:
        """Whether the theorem compares zero with zero."""
        return self.verdict_of("theorem") == "not comparable"

    @property
    def decidable(self) -> bool:
        return not self.void

    def judge(self) -> Iterator[Claim]:
        left, right = ({m: self.of(side, steps=self.longest, mean=m) for m in MEANS} for side in ("left", "right"))
        gaps = {m: left[m] - right[m] for m in MEANS}
        sides = {m: [np.linalg.norm(side[m][:, -1], axis=1).mean() for side in (left, right)] for m in MEANS}
        zero, one = (score(gaps[mean][:, -1]) for mean in MEANS)
        runs = len(gaps[0.0])
        nothing = all(without < VOID * with_mean for without, with_mean in zip(sides[0.0], sides[1.0], strict=True))
        theorem = beyond_control(holds(zero < WITHIN), holds(not nothing)) if runs >= FEWEST else "undecided"
        by_weight = zip(WEIGHTS, np.linalg.norm(gaps[0.0], axis=2).mean(axis=0), strict=True)
        told = {"by_weight": ", ".join(f"{length:.2g} at {w:g}" for w, length in by_weight), "recordings": runs}
        yield self.claim("theorem", theorem, sides=sides[0.0], zero=zero, **told)
        outside: Verdict = "agrees" if one < WITHIN else "not comparable"
        yield self.claim("theorem-mean", outside if runs >= FEWEST else "undecided", sides=sides[1.0], one=one)
        falls, largest = (exponent(self.lengths, self.by_length(0.0, "distance", w)) for w in (10.0, WEIGHTS[-1]))
        default = self.by_length(0.0, "sufficient/distance")
        ours = {"ours": exponent(self.lengths, default), "default": default[:, -1]}
        yield self.claim("rows", "beyond the paper", falls=falls, largest=largest, **ours)
        distances, proprietary = (self.of(k, steps=self.longest, mean=0.0) for k in ("distance", "proprietary"))
        nearer = said(
            below(distances[:, -1] - distances[:, 0]),
            "Predictions come nearer to the oracle's as xi grows.",
            "Predictions do not come nearer to the oracle's as xi grows.",
            "Whether predictions come nearer as xi grows is not decided.",
        )
        pairs = zip(WEIGHTS, distances.mean(axis=0), strict=True)
        told = {"by_weight": ", ".join(f"{value:.2f} at xi = {w:g}" for w, value in pairs), "remark": nearer}
        yield self.claim("rows-weight", "beyond the paper", **told, proprietary=proprietary.mean())
        best = int(np.argmin(distances.mean(axis=0)))
        remains = both(above(distances[:, best], BIASED), estimated_above(*falls, -0.25))
        yield self.claim("bias", remains, xi=WEIGHTS[best], distance=distances[:, best])
        key = "equality" if self.equal else "difference"
        yield self.claim(key, "beyond the paper", recordings=len(self.outcomes))

    def draw(self) -> Mapping[str, Drawing]:
        lengths = self.lengths
        shown = {0.1: "published, ξ = 0.1", 10.0: "published, ξ = 10", 1e6: "published, ξ = $10^6$"}

        def bias(mean: float) -> list[Curve]:
            curves = [
                points(lengths, self.by_length(mean, "left", w), label, k, dodge=dodge)
                for k, ((w, label), dodge) in enumerate(zip(shown.items(), (0.88, 0.96, 1.05), strict=True), start=1)
            ]
            ours, right = self.by_length(mean, "sufficient/left"), self.by_length(mean, "right", WEIGHTS[-1])
            look: dict[str, Any] = {"color": INK, "marker": "x", "linestyle": (0, (1, 1.2))}
            curves.append(points(lengths, ours, "sufficient messages", 0, dodge=1.14))
            return [*curves, points(lengths, right, "$|J_m E[z]|$, ξ = $10^6$", **look)]

        by_row = {label: self.by_length(0.0, "distance", w) for w, label in shown.items()}
        by_row["sufficient messages"] = self.by_length(0.0, "sufficient/distance")
        rows = series(lengths, by_row, colours=(1, 2, 3, 0))
        distances, proprietary = (self.of(k, steps=self.longest, mean=0.0) for k in ("distance", "proprietary"))
        weights = [
            points(WEIGHTS, distances, "published, by ξ", 4),
            level(float(proprietary.mean()), "proprietary client", linestyle=(0, (4, 2))),
        ]
        T, distance, gap = "rows T", "distance row by row, relative", "$|E[ỹ_o - ỹ_a]|$ (outputs' units)"
        xi, ticks = "weight of the penalty, ξ", (0.1, 10, 1e4, 1e6)
        panels = (
            Panel("Bias, zero-mean inputs", bias(0.0), T, gap, log_x=lengths, log_y=True),
            Panel("Bias, inputs of mean 1", bias(1.0), T, gap, log_x=lengths, log_y=True),
            Panel("Row by row, zero mean", rows, T, distance, log_x=lengths, log_y=True),
            Panel(f"Row by row, T = {self.longest}", weights, xi, distance, log_x=ticks, range_y=(0, None)),
        )
        return {"convergence": self.drawing("distances", panels, columns=2)}


def _filtered(plant: Plant, recording: Recording) -> FloatArray:
    """One-step predictions of all outputs, rows 1..T, by one Kalman filter that sees all units."""
    y, u = (np.hstack([getattr(recording[n], letter) for n in plant.names]) for letter in "yu")
    found = kalman_filter(y, u, plant.A, plant.B, plant.C, plant.Q, plant.R)
    return np.asarray(found.predicted[1:] @ plant.C.T)


def augmented(found: Fit, plant: Plant, recording: Recording) -> tuple[FloatArray, FloatArray]:
    """Predictions ỹ_a of all units, rows 1..T, and Theorem 8.3's right side J_m E[z], both side by side."""
    data = {n: ClientData.from_rows(*found.parts[n].estimates(recording[n].y, recording[n].u)) for n in plant.names}
    u, refined = (np.hstack([getattr(each, key) for each in data.values()]) for key in ("inputs", "refined"))
    served = refined @ found.plant.A.T + u @ found.plant.B.T
    predictions, biases = [], []
    for name, own in data.items():
        part, C = found.parts[name], plant.block("C", name)
        assert part.theta is not None
        assert part.phi is not None
        states = AugmentedModel(part.working_model, own).states(part.theta, part.phi)
        predictions.append(states @ C.T)
        e = (states - served[:, plant.state_slice(name)]) @ C.T  # e_t of the theorem is C_mm r_s
        z = np.hstack([own.previous, u, own.refined])
        weights = np.linalg.lstsq(z.T @ z, z.sum(axis=0), rcond=None)[0]  # Σ_z⁻¹ E[z]
        biases.append(e.T @ z @ weights / own.steps)
    return np.hstack(predictions), np.concatenate(biases)


def score(draws: FloatArray) -> float:
    """The largest mean of several numbers over runs (rows), in its standard errors."""
    return float(np.abs(draws.mean(axis=0) / (draws.std(axis=0, ddof=1) / np.sqrt(len(draws)))).max())
