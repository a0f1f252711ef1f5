"""The losses of server and clients in the training of two units."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from counterflow.experiments import two_units
from counterflow.experiments.captions import BAND, RELATIVE_LOSS, SERVER_LOSS
from counterflow.experiments.effects import without_couplings
from counterflow.experiments.experiment import Claim, Outcome, Outcomes, Request, Task, Value, described
from counterflow.experiments.figures import Drawing, band, level, over_rounds
from counterflow.experiments.selection import stacked, where
from counterflow.experiments.two_units import LABELS, UNITS, plant_of
from counterflow.experiments.verdicts import above, below, mean_and_error
from counterflow.experiments.wording import ABOVE_RULE, said, sentences, told, verdict_of
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
    yield Claim(
        "Global loss at the server",
        "L_s falls during training (figure, no numbers)",
        f"falls to {told(fall)} of its first value; L_s + Σ L_m,a rises in {100 * rises:.2g} % of the rounds",
        below(fall, 0.1),
        f"Rule: the mean of last over first L_s is below a tenth, {ABOVE_RULE}.",
    )
    for name in UNITS:
        gains = [_gain(run, name) for run in trained]
        mean, _ = mean_and_error(gains)
        yield Claim(
            f"Augmented against proprietary loss, {LABELS[name]}",
            "the augmented client loss outperforms the proprietary client loss (figure, no numbers)",
            f"lower by {100 * mean:.2g} % (runs: {100 * min(gains):.2g} to {100 * max(gains):.2g} %)",
            above(gains),
            f"Rule: the mean gain at the last round is above zero, {ABOVE_RULE}. At the minimum of L_s + Σ L_m,a "
            "it cannot be negative for all units at once (theta = phi = 0 is the proprietary client); how large "
            "it is depends on the plant and on xi.",
            "augmented below proprietary loss in training",
        )
    with_them = np.array([np.mean([_gain(run, n) for n in UNITS]) for run in trained])
    without = np.array([np.mean([run.number(f"gain/{n}") for n in UNITS]) for run in control])
    yield Claim(
        "theta and phi encode what other units do (Claim 5.3)",
        "theta_m and phi_m encode cross-client interdependencies from off-diagonal blocks of A and B",
        f"mean gain {100 * np.mean(with_them):.2g} % with couplings, {100 * np.mean(without):.2g} % on the same "
        "plant without any",
        above(with_them - 3 * without),
        "Rule: the gain is more than three times that of a control plant without couplings, where a training can "
        f"only fit noise, {ABOVE_RULE}. That the gain comes from couplings does not say that A_mn or B_mn are "
        "estimated: see disentanglement.",
    )


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
    caption = "Training of two units by the penalty method: loss of the server and of both clients against rounds."
    near = "The same client losses relative to the proprietary one, near the end of the training. Dotted: no gain."
    return {
        "synthetic-losses": Drawing(f"{caption} {BAND}", panels),
        "synthetic-gain": Drawing(f"{near} {BAND}", closer, columns=2),
    }


def _text(outcomes: Outcomes, claims: Sequence[Claim]) -> str:
    gains = [100 * _gain(run, n) for run in where(outcomes, method="penalty") for n in UNITS]
    return sentences(
        said(
            verdict_of(claims, "Global loss"),
            "The server's loss falls as in the paper.",
            "The server's loss does not fall as in the paper.",
            "Whether the server's loss falls as in the paper is not decided.",
        ),
        said(
            verdict_of(claims, "Augmented"),
            f"The augmented clients end below the proprietary ones, by {np.mean(gains):.2g} % in the mean. With white "
            "inputs, what unit n does to unit m in the next row cannot be foreseen from unit m's own measurements.",
            "Not all augmented clients end below the proprietary ones.",
            "Whether all augmented clients end below the proprietary ones is not decided.",
        ),
    )


EXPERIMENT = described("synthetic", _tasks, _compute, _figures, _claims, revision=2, text=_text)
