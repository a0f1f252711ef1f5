"""Errors of effects when models, noise levels, rows, units, inputs or linearity are not as they should be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.fits.training import fit
from counterflow.paper.experiments.effects import effect_error, error_ratios, responses
from counterflow.paper.experiments.experiment import Claim, Experiment, Request, Task, Value, grid
from counterflow.paper.experiments.faults import case, fresh
from counterflow.paper.experiments.figures import Drawing, Panel, level, points
from counterflow.paper.experiments.verdicts import Verdict, both, mostly, rarely

# fault: what is wrong, levels, the level that is none, and the axis's label
FAULTS: Mapping[str, tuple[str, tuple[float, ...], float, str]] = {
    "local": ("Wrong local blocks", (0.0, 0.05, 0.1, 0.2, 0.4), 0.0, "relative error of $A_{mm}$, $B_{mm}$"),
    "noise": ("Wrong noise levels", (0.01, 0.1, 1.0, 10.0, 100.0), 1.0, "$Q_m$ given over true"),
    "missing": ("Missing rows", (0.0, 0.05, 0.1, 0.2, 0.4), 0.0, "share of rows missing"),
    "dropout": ("A unit that drops out", (0.0, 0.25, 0.5, 0.75, 1.0), 0.0, "share of time a third unit is lost"),
    "colour": ("Coloured inputs", (0.0, 0.5, 0.8, 0.9, 0.95, 0.99), 0.0, "pole of the inputs"),
    "nonlinear": ("Saturating states", (0.0, 0.02, 0.05, 0.1, 0.2), 0.0, "curvature κ of the saturation"),
}
METHODS = {
    "published": "published: penalty, ξ = 10",
    "default": "default",
    "all": "default, local blocks and noise estimated",
}
STEPS, REPETITIONS, QUICK_REPETITIONS, XI = 2000, 10, 4, 10.0
WEIGHTS = (0.1, 10.0)  # at which predictions are looked at
PAPER = "experiments on synthetic data further demonstrate robustness (section 1; none is shown)"
FOUND = 0.5  # an error of effects from which downwards they count as found
KEPT = 0.5  # the part of its gain in prediction that a fault may leave and the method still count as robust
GROWS = 1.5  # how many times the error may grow and the method still count as robust


class Robustness(Experiment, name="robustness"):
    @staticmethod
    def tasks(request: Request) -> tuple[Task, ...]:
        runs = range(QUICK_REPETITIONS if request.quick else REPETITIONS)
        asked: tuple[dict[str, object], ...] = ({"xi": XI}, {"weights": list(WEIGHTS)})
        tasks: list[Task] = []
        for what in asked:
            for fault, (_, levels, _, _) in FAULTS.items():
                some = (levels[0], levels[len(levels) // 2], levels[-1]) if request.quick else levels
                tasks += grid("robustness", {"level": some, "run": runs}, fault=fault, steps=STEPS, **what)
        return tuple(tasks)

    @staticmethod
    def compute(task: Task) -> Mapping[str, Value]:
        """Errors of effects; or one-step errors of the augmented client on new data over the proprietary one's."""
        made = case(task["fault"], task["level"], task["run"], task["steps"])
        if "weights" in task.settings:
            new = fresh(task["fault"], task["level"], task["run"], task["steps"])
            asked = {name for pair in made.true for name in pair}
            ratios = []
            for weight in task["weights"]:
                means = fit(made.whole, made.models, method="penalty", xi=weight).validate(new).mean()
                some = {model: {n: each for n, each in units.items() if n in asked} for model, units in means.items()}
                ratios.append(error_ratios(some, "augmented"))
            return {"prediction": np.array(ratios)}
        fits = {
            "published": fit(made.whole, made.models, method="penalty", xi=task["xi"]),
            "default": fit(made.recording, made.models, uncertainty=False),
        }
        if "all" in methods_of(task["fault"]):
            fits["all"] = fit(made.recording, made.models, estimate="all", uncertainty=False)
        return {method: effect_error(responses(found.plant), made.true) for method, found in fits.items()}

    def errors(self, fault: str, method: str) -> FloatArray:
        """Of effects: one row for each run, one column for each level."""
        return self.of(method, by="level", fault=fault, xi=...)

    def ratios(self, fault: str, weight: float) -> FloatArray:
        """The augmented client's error over the proprietary one: rows are runs, columns levels."""
        return self.of("prediction", by="level", fault=fault, weights=...)[:, :, WEIGHTS.index(weight)]

    def extremes(self, fault: str, values: FloatArray) -> tuple[FloatArray, FloatArray, float]:
        """Of all runs without the fault, where their median is largest with it, and at which level that is."""
        levels, none = self.levels("level", fault=fault), FAULTS[fault][2]
        faulty = [k for k, level in enumerate(levels) if level != none]
        at = max(faulty, key=lambda k: float(np.median(values[:, k])))
        return values[:, levels.index(none)], values[:, at], levels[at]

    def judge(self) -> Iterator[Claim]:
        for fault, (title, _, _, _) in FAULTS.items():
            parts, verdicts = [], []
            for weight in WEIGHTS:
                ideal, worst, at = self.extremes(fault, self.ratios(fault, weight))
                ideal, worst = 1 - ideal, 1 - worst
                verdicts.append(retained(ideal, worst))
                parts.append(
                    f"xi = {weight:g}: {100 * np.median(ideal):.2g} % and {100 * np.median(worst):.2g} % (at {at:g}; "
                    f"plants: {100 * worst.min():.2g} to {100 * worst.max():.2g} %)"
                )
            yield self.claim("prediction", both(*verdicts), fault=title.lower(), parts="; ".join(parts))
        for fault, (title, _, _, _) in FAULTS.items():
            found = {method: self.extremes(fault, self.errors(fault, method)) for method in methods_of(fault)}
            told = "; ".join(
                f"{METHODS[m]} {np.median(ideal):.2g} and {np.median(worst):.2g} (at {at:g})"
                for m, (ideal, worst, at) in found.items()
            )
            yield self.claim("effects", judged(*found["published"][:2]), fault=title.lower(), parts=told)

    @cached_property
    def middles(self) -> dict[str, FloatArray]:
        """Median errors of effects, of all faults and levels."""
        return {
            method: np.concatenate([np.median(self.errors(fault, method), axis=0) for fault in FAULTS])
            for method in ("published", "default")
        }

    @property
    def nothing(self) -> int:
        """Cases in which there is no answer to lose."""
        return sum(claim.verdict == "claim without number" for claim in self.claims)

    def draw(self) -> Mapping[str, Drawing]:
        answered, predicted = [], []
        for fault, (title, _, none, x) in FAULTS.items():
            levels, scaled = self.levels("level", fault=fault), none > 0
            log_x = levels if scaled else False
            curves = [
                points(levels, self.errors(fault, method), METHODS[method], colour, "median")
                for method, colour in zip(METHODS, (1, 0, 2), strict=True)
                if method in methods_of(fault)
            ]
            answered.append(Panel(title, [*curves, level(1.0)], x, "relative error of effects", log_x, log_y=True))
            curves = []
            for weight, colour, side in zip(WEIGHTS, (4, 1), (-1, 1), strict=True):
                # set apart: on a logarithmic axis by a factor
                at = np.array(levels) + (0.0 if scaled else 0.01 * side * (levels[-1] - levels[0]))
                label, dodge = f"published: penalty, ξ = {weight:g}", 1 + 0.08 * side if scaled else 1.0
                curves.append(points(at, self.ratios(fault, weight), label, colour, "median", dodge))
            predicted.append(Panel(title, [*curves, level(1.0)], x, "augmented / proprietary error", log_x))
        return {
            "robustness": self.drawing("effects", answered),
            "robustness-prediction": self.drawing("prediction", predicted),
        }


def methods_of(fault: str) -> tuple[str, ...]:
    """Where local models are right and only rows are missing, there is no point in estimating them as well."""
    return tuple(method for method in METHODS if method != "all" or fault not in ("missing", "dropout"))


def retained(ideal: FloatArray, worst: FloatArray) -> Verdict:
    """The verdict on "keeps its gain", from the gains of all plants without the fault, and where least is left."""
    return both(mostly(ideal), mostly(worst - KEPT * ideal))


def judged(ideal: FloatArray, worst: FloatArray) -> Verdict:
    """The verdict on "robust", from the errors of all plants without the fault, and where it does most harm."""
    if rarely(ideal, FOUND) == "does not hold":
        return "claim without number"
    return both(rarely(ideal, FOUND), rarely(worst - np.maximum(GROWS * ideal, 0.05)))
