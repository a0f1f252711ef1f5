"""Disentanglement in the training of two units, and what it does to the couplings that are found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from counterflow.experiments import two_units
from counterflow.experiments.captions import BAND, BARS, DISENTANGLEMENT, RELATIVE_LOSS, SHIFT_LEFT
from counterflow.experiments.effects import coupling_error
from counterflow.experiments.experiment import Claim, Outcomes, Request, Task, Value, described
from counterflow.experiments.figures import COLOURS, LINES, Drawing, Panel, band, level, over_rounds, points
from counterflow.experiments.selection import stacked, where
from counterflow.experiments.two_units import LABELS, UNITS, found_plant, plant_of
from counterflow.experiments.verdicts import below, both
from counterflow.experiments.wording import ABOVE_RULE, B_WHITE, said, sentences, told, verdict_of
from counterflow.fits.training import fit

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
        yield Claim(
            subject,
            "falls during training (figure, no numbers)",
            f"from {told(first)} to {told(last)}",
            below(last / first, 0.5),
            f"Rule: the mean of last over first value is below a half, {ABOVE_RULE}.",
            "" if key == "disentanglement" else "delta_d falls during training",
        )
    relative = [
        np.mean([run.array(f"delta_d/{n}")[-1] / np.linalg.norm(run.array(f"phi/{n}")) for n in UNITS])
        for run in trained
    ]
    meant = float(
        np.mean([[run.number(f"mean_effect/{n}") / run.number(f"rms_effect/{n}") for n in UNITS] for run in trained])
    )
    yield Claim(
        "phi_m is the mean effect of the other units' inputs (Corollary 6.2)",
        "phi_m = E[Σ B_mn u_n], so delta_d vanishes",
        f"delta_d is {told(relative)} times |phi_m| at the end",
        below(relative, 0.1) if meant > 0.1 else "not comparable",
        f"Rule: the mean of delta_d / |phi_m| is below a tenth, {ABOVE_RULE}; not comparable if the inputs' mean "
        f"effect is below a tenth of their root mean square one (here {meant:.2g} of it). With inputs of mean "
        "zero, as in the paper, both sides are zero but for sampling noise: delta_d is small because phi is, not "
        "because the two agree.",
    )
    errors = {
        (method, x): [coupling_error(found_plant(run, method), plant, x) for run in trained]
        for method in ("published", "default")
        for x in "AB"
    }
    yield Claim(
        "The server separates inputs from states: B_mn",
        "the server effectively disentangles the effect of inputs from the states; it explicitly learns B_mn",
        f"relative error of B_mn {told(errors['published', 'B'])} (1 is what 'no coupling' gets); the default method "
        f"of counterflow.fit on the same data: {told(errors['default', 'B'])}",
        below(errors["published", "B"], FOUND),
        f"Rule: the mean relative error is below {FOUND}, {ABOVE_RULE}. B_mn is the regression of D + phi on the "
        "inputs, and with white inputs u[t-1] is independent of D[t]: it tends to zero whatever the true one is "
        "(docs/theory/paper.md).",
        B_WHITE,
    )
    yield Claim(
        "The server separates inputs from states: A_mn",
        "the server learns A_mn",
        f"relative error of A_mn {told(errors['published', 'A'])}; the default method: {told(errors['default', 'A'])}",
        below(errors["published", "A"], FOUND),
        f"Rule: the mean relative error is below {FOUND}, {ABOVE_RULE}. The penalty xi |D|² pulls A_mn to zero.",
    )
    weighed = stacked(sweep, "disentanglement")
    yield Claim(
        "D at large xi (Theorem 6.1)",
        "with large xi, D disentangles the effects of A_mn and B_mn (claim in section 5.3); as xi → ∞, "
        "E[A_mm theta_m y_m] = E[Σ A_mn ĥ_n] at stationary points (Theorem 6.1)",
        f"at the stationary point D goes from {told(weighed[:, 0])} at xi = {WEIGHTS[0]:g} to "
        f"{told(weighed[:, -1])} at xi = {WEIGHTS[-1]:g}",
        below(np.log(np.maximum(weighed[:, -1], TINY) / weighed[:, 0]), np.log(VANISHED)),
        f"Rule: D at the largest xi is below {VANISHED:g} of that at the smallest: the mean logarithm of their "
        f"ratio, {ABOVE_RULE}. D = 0 is the theorem's equation in every row, and not only in expectation. Whether "
        "A_mn and B_mn are then right is another question: see above.",
    )
    D = weighed.mean(axis=0)
    loss, left = stacked(sweep, "loss").mean(axis=(0, 2)), stacked(sweep, "error").mean(axis=0)
    yield Claim(
        "What goes with D as xi grows",
        "not said; its trade-off between optimality and stability is put to the test in lagrangian",
        f"from xi = {WEIGHTS[0]:g} to {WEIGHTS[-1]:g}, with D from {D[0]:.2g} to {D[-1]:.2g}, the clients' loss "
        f"relative to the proprietary one goes from {loss[0]:.3f} to {loss[-1]:.4f}, the error of A_mn from "
        f"{left[0, 0]:.2f} to {left[-1, 0]:.2f}, that of B_mn from {left[0, 1]:.2f} to {left[-1, 1]:.2f}",
        "beyond the paper",
        "No rule: means over the runs. Where the loss comes to 1, theta and phi have gone: the augmented client is "
        "the proprietary one again, and D is small because both of its sides are.",
    )


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
            f"Disentanglement penalty at the server and mean shift not yet explained at the clients. {BAND}",
            [over_rounds(n, [band(x, stacked(trained, k), "penalty method")], y) for n, (k, y) in courses.items()],
        ),
        "disentanglement-weights": Drawing(
            "The stationary point against the weight of the penalty. Dotted: no gain over the proprietary client (b), "
            f"and the error of the answer 'no coupling' (c); lines without markers there: the default "
            f"method of counterflow.fit, which has no xi. {BARS}",
            [
                Panel("Disentanglement", [total], xi, DISENTANGLEMENT, log_x=some, log_y=True),
                Panel("Losses", [*losses, level(1.0)], xi, RELATIVE_LOSS, log_x=some),
                Panel("Couplings", [*errors, level(1.0)], xi, "relative error", log_x=some, range_y=(0.0, None)),
            ],
        ),
    }


def _text(_: Outcomes, claims: Sequence[Claim]) -> str:
    falls = both(*(verdict_of(claims, subject) for subject in ("D at the server", "delta_d")))
    return sentences(
        said(falls, "D and delta_d fall as in the paper.", "D and delta_d do not all fall as in the paper."),
        said(
            both(*(verdict_of(claims, f"The server separates inputs from states: {x}") for x in ("A_mn", "B_mn"))),
            "The couplings are found.",
            "That does not mean that the couplings are found: a large weight makes both sides of the disentanglement "
            "vanish together.",
            "Whether the couplings are found is not decided.",
        ),
    )


EXPERIMENT = described("disentanglement", _tasks, _compute, _figures, _claims, text=_text)
