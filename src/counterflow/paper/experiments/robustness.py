"""Errors of effects when models, noise levels, rows, units, inputs or linearity are not as they should be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.fits.training import fit
from counterflow.paper.experiments.effects import effect_error, responses
from counterflow.paper.experiments.experiment import Claim, Outcomes, Request, Task, Value, Verdict
from counterflow.paper.experiments.faults import case, fresh
from counterflow.paper.experiments.figures import Drawing, Panel, level, points
from counterflow.paper.experiments.selection import by_setting, grid, where
from counterflow.paper.experiments.verdicts import both, mostly, rarely
from counterflow.paper.experiments.wording import caption, claim, described, summary

# fault: levels, the level that is none, and the axis's label
FAULTS: Mapping[str, tuple[tuple[float, ...], float, str]] = {
    "local": ((0.0, 0.05, 0.1, 0.2, 0.4), 0.0, "relative error of $A_{mm}$, $B_{mm}$"),
    "noise": ((0.01, 0.1, 1.0, 10.0, 100.0), 1.0, "$Q_m$ given over true"),
    "missing": ((0.0, 0.05, 0.1, 0.2, 0.4), 0.0, "share of rows missing"),
    "dropout": ((0.0, 0.25, 0.5, 0.75, 1.0), 0.0, "share of time a third unit is lost"),
    "colour": ((0.0, 0.5, 0.8, 0.9, 0.95, 0.99), 0.0, "pole of the inputs"),
    "nonlinear": ((0.0, 0.02, 0.05, 0.1, 0.2), 0.0, "curvature κ of the saturation"),
}
TITLES = {
    "local": "Wrong local blocks",
    "noise": "Wrong noise levels",
    "missing": "Missing rows",
    "dropout": "A unit that drops out",
    "colour": "Coloured inputs",
    "nonlinear": "Saturating states",
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


def _compute(task: Task) -> Mapping[str, Value]:
    return _predicted(task) if "weights" in task.settings else _answered(task)


def _predicted(task: Task) -> Mapping[str, Value]:
    """One-step error of the augmented client on new data over the proprietary one's, mean of the units asked about."""
    made = case(task["fault"], task["level"], task["run"], task["steps"])
    new = fresh(task["fault"], task["level"], task["run"], task["steps"])
    units = sorted({name for pair in made.true for name in pair})
    ratios = []
    for weight in task["weights"]:
        means = fit(made.whole, made.models, method="penalty", xi=weight).validate(new).mean()
        ratios.append(float(np.mean([means["augmented"][n] / means["proprietary"][n] for n in units])))
    return {"prediction": np.array(ratios)}


def _answered(task: Task) -> Mapping[str, Value]:
    """Errors of effects."""
    made = case(task["fault"], task["level"], task["run"], task["steps"])
    fits = {
        "published": fit(made.whole, made.models, method="penalty", xi=task["xi"]),
        "default": fit(made.recording, made.models, uncertainty=False),
    }
    if "all" in methods_of(task["fault"]):
        fits["all"] = fit(made.recording, made.models, estimate="all", uncertainty=False)
    return {method: effect_error(responses(found.plant), made.true) for method, found in fits.items()}


def methods_of(fault: str) -> tuple[str, ...]:
    """Where local models are right and only rows are missing, there is no point in estimating them as well."""
    return tuple(method for method in METHODS if method != "all" or fault not in ("missing", "dropout"))


def levels_of(request: Request, fault: str) -> tuple[float, ...]:
    """All levels; in a quick run the least, the middle and the largest."""
    levels = FAULTS[fault][0]
    return (levels[0], levels[len(levels) // 2], levels[-1]) if request.quick else levels


def _tasks(request: Request) -> tuple[Task, ...]:
    runs = range(QUICK_REPETITIONS if request.quick else REPETITIONS)
    asked: tuple[dict[str, object], ...] = ({"xi": XI}, {"weights": list(WEIGHTS)})
    return tuple(
        task
        for what in asked
        for fault in FAULTS
        for task in grid(
            "robustness", {"level": levels_of(request, fault), "run": runs}, fault=fault, steps=STEPS, **what
        )
    )


def by_level(outcomes: Outcomes, fault: str, method: str) -> tuple[tuple[float, ...], FloatArray]:
    """Levels, and the errors of all runs: one row for each run, one column for each level."""
    mine = where(outcomes, fault=fault, xi=...)
    return tuple(sorted({o.task["level"] for o in mine})), by_setting(mine, "level", method)


def predictions(outcomes: Outcomes, fault: str, weight: float) -> tuple[tuple[float, ...], FloatArray]:
    """Levels, and the augmented client's error over the proprietary one of all runs: rows are runs, columns levels."""
    mine, at = where(outcomes, fault=fault, weights=...), WEIGHTS.index(weight)
    ratios = by_setting(mine, "level", lambda outcome: float(outcome.array("prediction")[at]))
    return tuple(sorted({o.task["level"] for o in mine})), ratios


def faulty(levels: tuple[float, ...], none: float) -> list[int]:
    """Indices of the levels at which there is a fault.

    Examples
    --------
    >>> faulty((0.1, 1.0, 10.0), none=1.0)
    [0, 2]
    """
    return [k for k, level in enumerate(levels) if level != none]


def retained(ideal: FloatArray, worst: FloatArray) -> Verdict:
    """The verdict on "keeps its gain", from the gains of all plants without the fault, and where least is left.

    Examples
    --------
    >>> plants = np.full(4, 1.0)
    >>> retained(0.2 * plants, 0.15 * plants), retained(0.2 * plants, 0.05 * plants), retained(-plants, 0 * plants)
    ('agrees', 'does not hold', 'does not hold')
    """
    return both(mostly(ideal), mostly(worst - KEPT * ideal))


def judged(ideal: FloatArray, worst: FloatArray) -> Verdict:
    """The verdict on "robust", from the errors of all plants without the fault, and where it does most harm.

    Examples
    --------
    >>> plants = np.full(4, 1.0)
    >>> judged(0.1 * plants, 0.12 * plants), judged(0.1 * plants, 0.4 * plants), judged(0.9 * plants, 0.9 * plants)
    ('agrees', 'does not hold', 'claim without number')
    """
    if rarely(ideal, FOUND) == "does not hold":
        return "claim without number"
    return both(rarely(ideal, FOUND), rarely(worst - np.maximum(GROWS * ideal, 0.05)))


def _claims(outcomes: Outcomes) -> Iterator[Claim]:
    for fault in FAULTS:
        yield _prediction_claim(outcomes, fault)
    for fault, (_, none, _) in FAULTS.items():
        found: dict[str, tuple[FloatArray, FloatArray, float]] = {}
        for method in methods_of(fault):
            levels, errors = by_level(outcomes, fault, method)
            at = max(faulty(levels, none), key=lambda k, errors=errors: float(np.median(errors[:, k])))  # type: ignore[misc]
            found[method] = errors[:, levels.index(none)], errors[:, at], levels[at]
        ideal, worst, _ = found["published"]
        parts = [
            f"{METHODS[m]} {np.median(none_):.2g} and {np.median(most):.2g} (at {at:g})"
            for m, (none_, most, at) in found.items()
        ]
        title = TITLES[fault].lower()
        yield claim("robustness", "effects", judged(ideal, worst), fault=title, parts="; ".join(parts))


def _prediction_claim(outcomes: Outcomes, fault: str) -> Claim:
    none = FAULTS[fault][1]
    parts, verdicts = [], []
    for weight in WEIGHTS:
        levels, ratios = predictions(outcomes, fault, weight)
        gains = 1 - ratios
        at = min(faulty(levels, none), key=lambda k, gains=gains: float(np.median(gains[:, k])))  # type: ignore[misc]
        ideal = gains[:, levels.index(none)]
        verdicts.append(retained(ideal, gains[:, at]))
        parts.append(
            f"xi = {weight:g}: {100 * np.median(ideal):.2g} % and {100 * np.median(gains[:, at]):.2g} % (at "
            f"{levels[at]:g}; plants: {100 * gains[:, at].min():.2g} to {100 * gains[:, at].max():.2g} %)"
        )
    title = TITLES[fault].lower()
    return claim("robustness", "prediction", both(*verdicts), fault=title, parts="; ".join(parts))


def _figures(outcomes: Outcomes) -> dict[str, Drawing]:
    answered, predicted = [], []
    for fault, (_, _, x) in FAULTS.items():
        curves = []
        for method in methods_of(fault):
            levels, errors = by_level(outcomes, fault, method)
            colour = {"published": 1, "default": 0, "all": 2}[method]
            curves.append(points(levels, errors, METHODS[method], colour, "median"))
        scaled = fault == "noise"  # on a logarithmic axis bars are set apart by a factor
        log_x, shown = levels if scaled else False, [*curves, level(1.0)]
        answered.append(Panel(TITLES[fault], shown, x, "relative error of effects", log_x, log_y=True))
        curves = []
        for weight, colour, side in zip(WEIGHTS, (4, 1), (-1, 1), strict=True):
            levels, ratios = predictions(outcomes, fault, weight)
            at = np.array(levels) + (0.0 if scaled else 0.01 * side * (levels[-1] - levels[0]))
            label, dodge = f"published: penalty, ξ = {weight:g}", 1 + 0.08 * side if scaled else 1.0
            curves.append(points(at, ratios, label, colour, "median", dodge))
        shown = [*curves, level(1.0)]
        predicted.append(Panel(TITLES[fault], shown, x, "augmented / proprietary error", log_x))
    return {
        "robustness": Drawing(caption("robustness", "effects"), answered),
        "robustness-prediction": Drawing(caption("robustness", "prediction"), predicted),
    }


def _text(outcomes: Outcomes, claims: Sequence[Claim]) -> str:
    middles = {
        m: np.concatenate([np.median(by_level(outcomes, fault, m)[1], axis=0) for fault in FAULTS])
        for m in ("published", "default")
    }
    nothing = sum(claim.verdict == "claim without number" for claim in claims)
    return summary("robustness", claims, middles=middles, nothing=nothing, cases=len(FAULTS))


EXPERIMENT = described("robustness", _tasks, _compute, _figures, _claims, text=_text)
