"""Disentanglement in the training of two units, and what it does to the couplings that are found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from counterflow.fits.training import fit
from counterflow.paper.experiments import two_units
from counterflow.paper.experiments.effects import coupling_error
from counterflow.paper.experiments.experiment import Claim, Outcomes, Request, Task, Value
from counterflow.paper.experiments.figures import (
    COLOURS,
    DISENTANGLEMENT,
    LINES,
    RELATIVE_LOSS,
    SHIFT_LEFT,
    Drawing,
    Panel,
    band,
    level,
    over_rounds,
    points,
)
from counterflow.paper.experiments.selection import stacked, where
from counterflow.paper.experiments.two_units import LABELS, UNITS, found_plant, plant_of
from counterflow.paper.experiments.verdicts import below
from counterflow.paper.experiments.wording import caption, claim, described

WEIGHTS = (0.1, 1.0, 10.0, 100.0, 1e3, 1e4)
FOUND = 0.5  # relative error below which we call a coupling found at all
VANISHED, TINY = 1e-3, 1e-300  # the part of D from which downwards it has gone; what logarithms are taken of at least


def _compute(task: Task) -> Mapping[str, Value]:
    """The stationary point for every weight, on the recording of one Monte-Carlo run."""
    plant = plant_of(task["plant"])
    recording = plant.simulate(task["steps"], rng=1000 + task["run"])
    D, loss, errors = [], [], []
    for weight in task["weights"]:
        found = fit(recording, plant.locals(), method="penalty", xi=weight)
        history = found.history
        D.append(history.disentanglement[-1])
        loss.append([history.client_loss[n][-1] / history.proprietary_loss[n][-1] for n in UNITS])
        errors.append([coupling_error(found.plant, plant, letter) for letter in "AB"])
    return {"disentanglement": np.array(D), "loss": np.array(loss), "error": np.array(errors)}


def _tasks(request: Request) -> tuple[Task, ...]:
    trained = two_units.runs(request)
    sweep = ({"plant": t["plant"], "steps": t["steps"], "run": t["run"], "weights": list(WEIGHTS)} for t in trained)
    return (*trained, *(Task("disentanglement", settings) for settings in sweep))


def _claims(outcomes: Outcomes) -> Iterator[Claim]:
    trained = where(outcomes, method="penalty")
    sweep = where(outcomes, weights=...)
    plant = plant_of(trained[0].task["plant"])
    for subject, key in (
        ("D at the server", "disentanglement"),
        *((f"delta_d at {LABELS[n]}", f"delta_d/{n}") for n in UNITS),
    ):
        first, last = stacked(trained, key)[:, 0], stacked(trained, key)[:, -1]
        fact = "" if key == "disentanglement" else "delta_d falls during training"
        fallen = below(last / first, 0.5)
        yield claim("disentanglement", "falls", fallen, subject=subject, fact=fact, first=first, last=last)
    relative = [
        np.mean([run.array(f"delta_d/{n}")[-1] / np.linalg.norm(run.array(f"phi/{n}")) for n in UNITS])
        for run in trained
    ]
    meant = float(
        np.mean([[run.number(f"mean_effect/{n}") / run.number(f"rms_effect/{n}") for n in UNITS] for run in trained])
    )
    verdict = below(relative, 0.1) if meant > 0.1 else "not comparable"
    yield claim("disentanglement", "phi", verdict, meant=meant, relative=relative)
    errors = {
        (method, x): [coupling_error(found_plant(run, method), plant, x) for run in trained]
        for method in ("published", "default")
        for x in "AB"
    }
    for x in "BA":
        published, default = errors["published", x], errors["default", x]
        yield claim("disentanglement", x, below(published, FOUND), published=published, default=default)
    weighed, last_xi = stacked(sweep, "disentanglement"), WEIGHTS[-1]
    first, last = weighed[:, 0], weighed[:, -1]
    vanishes = below(np.log(np.maximum(last, TINY) / first), np.log(VANISHED))
    yield claim("disentanglement", "weight", vanishes, first=first, last=last, last_xi=last_xi)
    loss, left = stacked(sweep, "loss").mean(axis=(0, 2)), stacked(sweep, "error").mean(axis=0)
    D, loss, A, B = ((each[0], each[-1]) for each in (weighed.mean(axis=0), loss, left[:, 0], left[:, 1]))
    yield claim("disentanglement", "cost", "beyond the paper", D=D, loss=loss, A=A, B=B, last_xi=last_xi)


def _figures(outcomes: Outcomes) -> dict[str, Drawing]:
    trained, sweep = where(outcomes, method="penalty"), where(outcomes, weights=...)
    x, plant = trained[0].array("round"), plant_of(trained[0].task["plant"])
    courses = {"Server: $\\mathcal{D}$": ("disentanglement", DISENTANGLEMENT)}
    courses |= {f"{LABELS[n].capitalize()}: $\\delta_d$": (f"delta_d/{n}", SHIFT_LEFT) for n in UNITS}
    loss, error = stacked(sweep, "loss"), stacked(sweep, "error")
    losses = [points(WEIGHTS, loss[:, :, k], LABELS[name], k + 1) for k, name in enumerate(UNITS)]
    errors = []
    for k, letter in enumerate("AB"):
        default = float(np.mean([coupling_error(found_plant(run, "default"), plant, letter) for run in trained]))
        errors.append(points(WEIGHTS, error[:, :, k], f"$\\hat{{{letter}}}_{{mn}}$, published", k + 3))
        # as points without any, because a legend has lines first and points later
        ends, look = (WEIGHTS[0], WEIGHTS[-1]), {"linewidth": 1.0, "linestyle": LINES[k], "marker": ""}
        label = f"$\\hat{{{letter}}}_{{mn}}$, default"
        errors.append(points(ends, np.full((1, 2), default), label, color=COLOURS[k + 3], **look))
    xi, some = "penalty weight $\\xi$", WEIGHTS[::2]
    total = points(WEIGHTS, stacked(sweep, "disentanglement"), "server")
    return {
        "disentanglement-rounds": Drawing(
            caption("disentanglement", "rounds"),
            [over_rounds(n, [band(x, stacked(trained, k), "penalty method")], y) for n, (k, y) in courses.items()],
            paper="Fig. 3",
        ),
        "disentanglement-weights": Drawing(
            caption("disentanglement", "weights"),
            [
                Panel("Disentanglement", [total], xi, DISENTANGLEMENT, log_x=some, log_y=True),
                Panel("Losses", [*losses, level(1.0)], xi, RELATIVE_LOSS, log_x=some),
                Panel("Couplings", [*errors, level(1.0)], xi, "relative error", log_x=some, range_y=(0.0, None)),
            ],
        ),
    }


EXPERIMENT = described("disentanglement", _tasks, _compute, _figures, _claims)
