"""The losses of server and clients in the training of two units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.fits.training import fit
from counterflow.paper.experiments import schematic, two_units
from counterflow.paper.experiments.effects import without_couplings
from counterflow.paper.experiments.experiment import Claim, Outcome, Outcomes, Request, Task, Value
from counterflow.paper.experiments.figures import (
    RELATIVE_LOSS,
    SERVER_LOSS,
    Drawing,
    Panel,
    band,
    level,
    over_rounds,
    points,
)
from counterflow.paper.experiments.selection import grid, stacked, where
from counterflow.paper.experiments.two_units import LABELS, UNITS, kept_rounds, plant_of
from counterflow.paper.experiments.verdicts import above, below
from counterflow.paper.experiments.wording import caption, claim, described, summary

NOISES, WEIGHTS = (1.0, 0.1, 0.01), (0.1, 10.0)  # of the study over plants
PLANTS, QUICK_PLANTS = 10, 4


def _compute(task: Task) -> Mapping[str, Value]:
    return _studied(task) if "noise" in task.settings else two_units.compute(task)


def _studied(task: Task) -> Mapping[str, Value]:
    """The course of the losses on one plant of the study, and the gain where there is nothing to be learned."""
    plant = plant_of(task["plant"], task["noise"])
    recording = plant.simulate(task["steps"], rng=1000 + task["plant"])
    options = {"solver": "gradient", "tol": 0.0, "initial_scale": 1.0, "rounds": task["rounds"], "xi": task["xi"]}
    history = fit(recording, plant.locals(), method="penalty", seed=task["plant"], **options).history
    kept = kept_rounds(len(history))
    values: dict[str, Value] = {"round": (kept + 1).astype(np.float64), "server_loss": history.server_loss[kept]}
    alone = without_couplings(plant).simulate(task["steps"], rng=1000 + task["plant"])
    control = fit(alone, plant.locals(), method="penalty", xi=task["xi"]).history
    for name in UNITS:
        values[f"relative/{name}"] = history.client_loss[name][kept] / history.proprietary_loss[name][-1]
        values[f"control/{name}"] = float(1 - control.client_loss[name][-1] / control.proprietary_loss[name][-1])
    return values


def _tasks(request: Request) -> tuple[Task, ...]:
    settings = two_units.QUICK if request.quick else two_units.SETTINGS
    axes = {"noise": NOISES, "xi": WEIGHTS, "plant": range(QUICK_PLANTS if request.quick else PLANTS)}
    return (*two_units.runs(request), *grid("synthetic", axes, steps=settings["steps"], rounds=settings["rounds"]))


def studied_gains(outcomes: Outcomes, key: str, noise: float, weight: float) -> FloatArray:
    """By which part the augmented clients end below the proprietary ones: plants, units; or that of the control."""
    found = where(outcomes, noise=noise, xi=weight)
    if key == "control":
        return np.array([[run.number(f"control/{n}") for n in UNITS] for run in found])
    return np.array([[1 - run.array(f"relative/{n}")[-1] for n in UNITS] for run in found])


def _claims(outcomes: Outcomes) -> Iterator[Claim]:
    trained = where(outcomes, method="penalty")
    fall = [run.array("server_loss")[-1] / run.array("server_loss")[0] for run in trained]
    rises = max(run.number("rises") for run in trained)
    yield claim("synthetic", "loss", below(fall, 0.1), fall=fall, rises=rises)
    # plants, noise levels and weights, units
    gains = np.stack([studied_gains(outcomes, "relative", n, w) for n in NOISES for w in WEIGHTS], axis=1)
    control = np.stack([studied_gains(outcomes, "control", n, w) for n in NOISES for w in WEIGHTS], axis=1)
    one_plant = {n: [1 - _last(run, n) / run.number(f"proprietary_loss/{n}") for run in trained] for n in UNITS}
    for k, name in enumerate(UNITS):
        found = gains[:, :, k]
        by_setting = ", ".join(
            f"{100 * float(np.median(studied_gains(outcomes, 'relative', n, w)[:, k])):.2g} % (R = {n:g}, xi = {w:g})"
            for n in NOISES
            for w in WEIGHTS
        )
        told = {"client": LABELS[name], "by_setting": by_setting, "gains": found, "one": one_plant[name]}
        yield claim("synthetic", "gain", above(found.mean(axis=1)), **told)
    with_them, without = (each.mean(axis=(1, 2)) for each in (gains, control))
    verdict = above(with_them - 3 * without)
    yield claim("synthetic", "couplings", verdict, with_them=with_them, without=without)


def _last(run: Outcome, name: str) -> float:
    return float(run.array(f"client_loss/{name}")[-1])


def _figures(outcomes: Outcomes) -> dict[str, Drawing]:
    trained = where(outcomes, method="penalty")
    x = trained[0].array("round")
    panels = [over_rounds("Global loss", [band(x, stacked(trained, "server_loss"), "server", 2)], SERVER_LOSS)]
    for k, name in enumerate(UNITS, start=1):
        loss = stacked(trained, f"client_loss/{name}")
        baseline = stacked(trained, f"proprietary_loss/{name}")[:, None]
        curves = [
            band(x, loss, "augmented client"),
            band(x, np.broadcast_to(baseline, loss.shape), "proprietary client (baseline)", 1),
        ]
        panels.append(over_rounds(f"{LABELS[name].capitalize()}: losses", curves, f"$L_{{{k},a}}$ (outputs, squared)"))
    return {
        "synthetic-client": schematic.figure(),
        "synthetic-losses": Drawing(caption("synthetic", "losses"), panels, paper="Fig. 2"),
        "synthetic-plants": Drawing(caption("synthetic", "plants"), [*_courses(outcomes), *_ends(outcomes)]),
    }


def _courses(outcomes: Outcomes) -> Iterator[Panel]:
    """Relative losses against rounds, by unit and noise, over the plants."""
    for name in UNITS:
        for noise in NOISES:
            curves = []
            for colour, weight in zip((0, 4), WEIGHTS, strict=True):
                runs = where(outcomes, noise=noise, xi=weight)
                x, relative = runs[0].array("round"), stacked(runs, f"relative/{name}")
                curves.append(band(x, relative, f"augmented client, ξ = {weight:g}", colour, middle="median"))
            title = f"{LABELS[name].capitalize()}, R = {noise:g}"
            yield over_rounds(title, [*curves, level(1.0, "proprietary client")], RELATIVE_LOSS)


def _ends(outcomes: Outcomes) -> Iterator[Panel]:
    """The gain at the end against the noise, with that of a plant without couplings."""
    for k, name in enumerate(UNITS):
        curves = []
        for colour, weight in zip((0, 4), WEIGHTS, strict=True):
            runs = np.stack([100 * studied_gains(outcomes, "relative", n, weight)[:, k] for n in NOISES], axis=1)
            curves.append(points(NOISES, runs, f"augmented client, ξ = {weight:g}", colour, "median"))
        control = np.stack([100 * studied_gains(outcomes, "control", n, WEIGHTS[0])[:, k] for n in NOISES], axis=1)
        curves.append(points(NOISES, control, f"without couplings, ξ = {WEIGHTS[0]:g}", 3, "median"))
        x, y = "variance of the measurement noise, R", "gain at the end (%)"
        yield Panel(f"{LABELS[name].capitalize()}: gain", [*curves, level(0.0)], x, y, log_x=NOISES)


def _text(outcomes: Outcomes, claims: Sequence[Claim]) -> str:
    gains = [100 * studied_gains(outcomes, "relative", n, w) for n in NOISES for w in WEIGHTS]
    return summary("synthetic", claims, gains=gains)


EXPERIMENT = described("synthetic", _tasks, _compute, _figures, _claims, revision=3, text=_text)
