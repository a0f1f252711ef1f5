"""Errors of effects when models, noise levels, rows, units, inputs or linearity are not as they should be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from counterflow.arrays import FloatArray
from counterflow.fits.training import fit
from counterflow.paper.experiments.effects import (
    HORIZON,
    Responses,
    effect_error,
    error_ratios,
    pairs,
    recorded,
    responses,
)
from counterflow.paper.experiments.experiment import Claim, Experiment, Request, Task, Value, grid
from counterflow.paper.experiments.figures import Drawing, Panel, level, points, series
from counterflow.paper.experiments.verdicts import Verdict, both, mostly, rarely
from counterflow.plant import LocalModel, Plant, Recording, UnitRecording, excitation, random_plant

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
POLE = 0.9  # of the inputs, unless their colour is what varies: with white ones the published method finds no B_mn
TWINS = 400  # starting states over which the effects of a nonlinear plant are averaged
STABLE = 0.98
ABSENT = 1.0
GIVEN, NEW = 8000, 8500  # added to seeds: of recordings that are learned from, and of new data
FOUND = 0.5  # an error of effects from which downwards they count as found
KEPT = 0.5  # the part of its gain in prediction that a fault may leave and the method still count as robust
GROWS = 1.5  # how many times the error may grow and the method still count as robust


class Robustness(Experiment, name="robustness", revision=2):
    @staticmethod
    def tasks(request: Request) -> tuple[Task, ...]:
        runs = range(QUICK_REPETITIONS if request.quick else REPETITIONS)
        tasks: list[Task] = []
        for fault, (_, levels, _, _) in FAULTS.items():
            some = (levels[0], levels[len(levels) // 2], levels[-1]) if request.quick else levels
            tasks += grid("robustness", {"level": some, "run": runs}, fault=fault, steps=STEPS, weights=list(WEIGHTS))
        return tuple(tasks)

    @staticmethod
    def compute(task: Task) -> Mapping[str, Value]:
        """Errors of effects; and one-step errors of the augmented client on new data over the proprietary one's."""
        of_case = task["fault"], task["level"], task["run"], task["steps"]
        made, new = case(*of_case), fresh(*of_case)
        trained = {w: fit(made.whole, made.models, method="penalty", xi=w) for w in task["weights"]}
        asked, ratios = {name for pair in made.true for name in pair}, []
        for found in trained.values():
            means = found.validate(new).mean()
            some = {model: {n: each for n, each in units.items() if n in asked} for model, units in means.items()}
            ratios.append(error_ratios(some, "augmented"))
        fits = {"published": trained[XI], "default": fit(made.recording, made.models, uncertainty=False)}
        if "all" in methods_of(task["fault"]):
            fits["all"] = fit(made.recording, made.models, estimate="all", uncertainty=False)
        errors = {method: effect_error(responses(found.plant), made.true) for method, found in fits.items()}
        return {"prediction": np.array(ratios), **errors}

    def errors(self, fault: str, method: str) -> FloatArray:
        """Of effects: one row for each run, one column for each level."""
        return self.of(method, by="level", fault=fault)

    def ratios(self, fault: str, weight: float) -> FloatArray:
        """The augmented client's error over the proprietary one: rows are runs, columns levels."""
        return self.of("prediction", by="level", fault=fault)[:, :, WEIGHTS.index(weight)]

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
            errors = {METHODS[method]: self.errors(fault, method) for method in methods_of(fault)}
            curves = series(levels, errors, "median", (1, 0, 2)[: len(errors)])
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


# ---- recordings and models with something wrong, and what the truth is then


@dataclass(frozen=True, eq=False)
class Case:
    """What the methods get, and the true effects between units.

    ``whole`` has no missing measurements: the published methods need such a recording.
    """

    recording: Recording
    whole: Recording
    models: Mapping[str, LocalModel]
    true: Responses


def case(fault: str, level: float, seed: int, steps: int) -> Case:
    """A random plant and a recording, with one fault of one size.

    "local": relative error of A_mm and B_mm; "noise": factor on Q_m; "missing": share of each unit's rows; "dropout":
    share of the time that a third unit's measurements are missing at the end (1: it takes no part); "colour": pole of
    the inputs; "nonlinear": curvature of a saturation of the states.
    """
    plant = random_plant(units=3 if fault == "dropout" else 2, rng=seed)
    if fault == "nonlinear":
        recording, h, u, w = _saturating(plant, level, [seed, 10], GIVEN + seed, steps)
        return Case(recording, recording, plant.locals(), twin_effects(plant, level, h, u, w))
    recording = recorded(plant, steps, GIVEN + seed, level if fault == "colour" else POLE)
    models, true = plant.locals(), responses(plant)
    rng = np.random.default_rng([seed, 9])
    if fault == "local":
        models = {name: _wrong(model, level, rng) for name, model in models.items()}
    elif fault == "noise":
        models = {name: replace(model, Q=level * model.Q) for name, model in models.items()}
    elif fault == "missing":
        holes = {name: rng.random(recording.rows) < level for name in plant.names}
        return Case(_without(recording, holes), _interpolated(recording, holes), models, true)
    elif fault == "dropout":
        return _dropped(plant, recording, level)
    return Case(recording, recording, models, true)


def fresh(fault: str, level: float, seed: int, steps: int) -> Recording:
    """New data of the plant of a ``case``, without any missing rows: what a trained client would go on to predict."""
    plant = random_plant(units=3 if fault == "dropout" else 2, rng=seed)
    if fault == "nonlinear":
        return _saturating(plant, level, [seed, 11], NEW + seed, steps)[0]
    recording = recorded(plant, steps, NEW + seed, level if fault == "colour" else POLE)
    if fault == "dropout" and level >= ABSENT:
        return _rebuilt(recording, {n: recording[n].y for n in plant.names[:-1]})
    return recording


def _wrong(model: LocalModel, size: float, rng: np.random.Generator) -> LocalModel:
    """A and B with errors of a relative size, in random directions; A is kept stable."""
    changed = {}
    for letter in "AB":
        matrix = getattr(model, letter)
        error = rng.standard_normal(matrix.shape)
        changed[letter] = matrix + size * float(np.linalg.norm(matrix)) * error / float(np.linalg.norm(error))
    radius = float(np.abs(np.linalg.eigvals(changed["A"])).max())
    changed["A"] = changed["A"] * min(1.0, STABLE / radius)
    return replace(model, **changed)


def _rebuilt(recording: Recording, y: Mapping[str, FloatArray]) -> Recording:
    parts = {n: UnitRecording(y[n], recording[n].u, recording[n].unit) for n in y}
    return Recording(parts, recording.dt)


def _without(recording: Recording, holes: Mapping[str, NDArray[np.bool_]]) -> Recording:
    return _rebuilt(recording, {n: np.where(holes[n][:, None], np.nan, recording[n].y) for n in recording.names})


def _interpolated(recording: Recording, holes: Mapping[str, NDArray[np.bool_]]) -> Recording:
    """Straight lines over the holes: what a user would do for a method that takes none."""
    rows = np.arange(recording.rows)
    filled = {}
    for name in recording.names:
        y, known = recording[name].y, ~holes[name]
        filled[name] = np.stack([np.interp(rows, rows[known], y[known, k]) for k in range(y.shape[1])], axis=1)
    return _rebuilt(recording, filled)


def _dropped(plant: Plant, recording: Recording, share: float) -> Case:
    """The last unit stops measuring, or takes no part at all; asked is about the others."""
    *stay, gone = plant.names
    true = {pair: values for pair, values in responses(plant).items() if gone not in pair}
    if share >= ABSENT:
        few = _rebuilt(recording, {n: recording[n].y for n in stay})
        return Case(few, few, {n: plant.local(n) for n in stay}, true)
    end = round((1 - share) * recording.steps)
    holes = {n: np.zeros(recording.rows, bool) for n in plant.names}
    holes[gone][end + 1 :] = True
    return Case(_without(recording, holes), recording.slice(0, end + 1), plant.locals(), true)


def saturated(x: FloatArray, curvature: float) -> FloatArray:
    """f(x) = tanh(κ x) / κ of h[t] = f(A h[t-1] + B u[t-1]) + w[t-1]; the identity for κ = 0."""
    return x if curvature == 0 else np.tanh(curvature * x) / curvature


def _saturating(
    plant: Plant, curvature: float, noise: list[int], inputs_seed: int, steps: int
) -> tuple[Recording, FloatArray, FloatArray, FloatArray]:
    """A recording, and the states, inputs and process noise in it."""
    rng = np.random.default_rng(noise)
    inputs = excitation.autoregressive(plant, steps, inputs_seed, pole=POLE)
    u = np.hstack([inputs[n] for n in plant.names])
    w = rng.standard_normal((steps, len(plant.A))) @ np.linalg.cholesky(plant.Q).T
    v = rng.standard_normal((steps + 1, len(plant.C))) @ np.linalg.cholesky(plant.R).T
    h = np.zeros((steps + 1, len(plant.A)))
    for t in range(1, steps + 1):
        h[t] = saturated(plant.A @ h[t - 1] + plant.B @ u[t - 1], curvature) + w[t - 1]
    y = h @ plant.C.T + v
    parts = {n.name: UnitRecording(y[:, plant.output_slice(n.name)], inputs[n.name], n) for n in plant.units}
    return Recording(parts, plant.dt), h, u, w


def twin_effects(
    plant: Plant, curvature: float, h: FloatArray, u: FloatArray, w: FloatArray, horizon: int = HORIZON
) -> Responses:
    """Mean difference between two worlds with the same noise, one with an input raised by 1: over many starts.

    States h (T+1, P), inputs u (T+1, U) and process noise w (T, P) are those of a run; worlds start in its states.
    """
    starts = np.linspace(0, len(w) - horizon - 1, TWINS).astype(np.intp)
    inputs = u.shape[1]
    change = np.vstack([np.zeros((1, inputs)), np.eye(inputs)])  # world 0 is the one that was
    state = np.repeat(h[starts][None], inputs + 1, axis=0)
    held = np.empty((horizon, len(plant.C), inputs))
    for k in range(horizon):
        driven = u[starts + k][None] + change[:, None, :]
        state = saturated(state @ plant.A.T + driven @ plant.B.T, curvature) + w[starts + k][None]
        held[k] = plant.C @ (state[1:] - state[:1]).mean(axis=1).T
    return {(m, n): held[:, plant.output_slice(m), plant.input_slice(n)] for m, n in pairs(plant)}
