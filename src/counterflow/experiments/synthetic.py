"""The losses of server and clients in the training of two units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from counterflow.experiments import two_units
from counterflow.experiments.effects import without_couplings
from counterflow.experiments.experiment import Claim, Outcome, Outcomes, Request, Task, Value
from counterflow.experiments.figures import RELATIVE_LOSS, SERVER_LOSS, Drawing, band, level, over_rounds
from counterflow.experiments.selection import stacked, where
from counterflow.experiments.two_units import LABELS, UNITS, plant_of
from counterflow.experiments.verdicts import above, below
from counterflow.experiments.wording import caption, claim, described, summary
from counterflow.fits.training import fit


def _compute(task: Task) -> Mapping[str, Value]:
    return _without_couplings(task) if "couplings" in task.settings else two_units.compute(task)


def _without_couplings(task: Task) -> Mapping[str, Value]:
    """The control: the same training where there is nothing to be learned."""
    plant = plant_of(task["plant"])
    recording = without_couplings(plant).simulate(task["steps"], rng=1000 + task["run"])
    history = fit(recording, plant.locals(), method="penalty", xi=task["xi"]).history
    return {f"gain/{n}": float(1 - history.client_loss[n][-1] / history.proprietary_loss[n][-1]) for n in UNITS}


def _tasks(request: Request) -> tuple[Task, ...]:
    trained = two_units.runs(request)
    control = ({k: task[k] for k in ("plant", "steps", "xi", "run")} for task in trained)
    return (*trained, *(Task("synthetic", {**settings, "couplings": "none"}) for settings in control))


def _gain(outcome: Outcome, name: str) -> float:
    """By which part the augmented client's loss is below the proprietary one at the end."""
    return float(1 - outcome.array(f"client_loss/{name}")[-1] / outcome.number(f"proprietary_loss/{name}"))


def _claims(outcomes: Outcomes) -> Iterator[Claim]:
    trained = where(outcomes, method="penalty")
    control = where(outcomes, couplings="none")
    fall = [run.array("server_loss")[-1] / run.array("server_loss")[0] for run in trained]
    rises = max(run.number("rises") for run in trained)
    yield claim("synthetic", "loss", below(fall, 0.1), fall=fall, rises=rises)
    for name in UNITS:
        gains = [_gain(run, name) for run in trained]
        yield claim("synthetic", "gain", above(gains), client=LABELS[name], gains=gains)
    with_them = np.array([np.mean([_gain(run, n) for n in UNITS]) for run in trained])
    without = np.array([np.mean([run.number(f"gain/{n}") for n in UNITS]) for run in control])
    verdict = above(with_them - 3 * without)
    yield claim("synthetic", "couplings", verdict, with_them=with_them, without=without)


def _figures(outcomes: Outcomes) -> dict[str, Drawing]:
    trained = where(outcomes, method="penalty")
    x = trained[0].array("round")
    panels = [over_rounds("Global loss", [band(x, stacked(trained, "server_loss"), "server", 2)], SERVER_LOSS)]
    closer = []
    for name in UNITS:
        loss = stacked(trained, f"client_loss/{name}")
        baseline = stacked(trained, f"proprietary_loss/{name}")[:, None]
        curves = [
            band(x, loss, "augmented client"),
            band(x, np.broadcast_to(baseline, loss.shape), "proprietary client (baseline)", 1),
        ]
        title, ratio = LABELS[name].capitalize(), loss / baseline
        panels.append(over_rounds(f"{title}: losses", curves, "mean squared residual\n(outputs, squared)"))
        least = min(0.95, 0.98 * float(ratio.min()))
        closer.append(
            over_rounds(title, [band(x, ratio, "augmented client"), level(1.0)], RELATIVE_LOSS, False, (least, 1.1))
        )
    return {
        "synthetic-losses": Drawing(caption("synthetic", "losses"), panels),
        "synthetic-gain": Drawing(caption("synthetic", "gain"), closer, columns=2),
    }


def _text(outcomes: Outcomes, claims: Sequence[Claim]) -> str:
    gains = [100 * _gain(run, n) for run in where(outcomes, method="penalty") for n in UNITS]
    return summary("synthetic", claims, gains=gains)


EXPERIMENT = described("synthetic", _tasks, _compute, _figures, _claims, revision=2, text=_text)
