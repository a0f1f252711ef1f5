"""Penalty method, augmented Lagrangian, and the hybrid of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import CounterflowError
from counterflow.experiments import two_units
from counterflow.experiments.captions import BAND, DISENTANGLEMENT, RELATIVE_LOSS, SERVER_LOSS, SHIFT_LEFT
from counterflow.experiments.experiment import Claim, Outcome, Outcomes, Request, Table, Task, Value, Verdict, described
from counterflow.experiments.figures import Drawing, Panel, band, level, over_rounds, points
from counterflow.experiments.selection import stacked, where
from counterflow.experiments.two_units import LABELS, UNITS, plant_of
from counterflow.experiments.verdicts import above, below, both, holds
from counterflow.experiments.wording import ABOVE_RULE, said, sentences, told, verdict_of
from counterflow.fits.history import History
from counterflow.fits.training import fit

METHODS = {"penalty": "penalty (PM)", "lagrangian": "augmented Lagrangian (AL)", "hybrid": "hybrid: AL, then PM"}
STEPS = ("eta_1", "eta_2", "gamma_1", "gamma_2", "alpha_A", "alpha_B")
WEIGHTS = (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
TUNED_AT, TUNED_ROUNDS = 10.0, 200
SWITCHES, SWITCHED_ROUNDS = (10, 20, 30, 50, 100, 150), 300  # rounds of AL before PM, and of both together
EARLY = 50  # rounds after which "quickly" is judged
SMALLEST = 2.0**-30
TINY = 1e-300
GREATEST = 1e12  # a loss ratio at which a training counts as diverged


def _compute(task: Task) -> Mapping[str, Value]:
    return _switched(task) if "switches" in task.settings else _tuned(task)


def _switched(task: Task) -> Mapping[str, Value]:
    """All rises of log L_s after a switch from AL to PM, at several rounds, and AL's over the same rounds."""
    plant = plant_of(task["plant"])
    recording = plant.simulate(task["steps"], rng=1000 + task["run"])

    def loss(method: str, **options: Any) -> FloatArray:
        history = fit(
            recording, plant.locals(), method=method, solver="gradient", initial_scale=1.0, seed=task["run"], tol=0.0,
            xi=task["xi"], rho=task["rho"], **options,
        ).history  # fmt: skip
        return np.asarray(history.residual_loss + task["xi"] * history.disentanglement)

    alone = loss("lagrangian", rounds=task["rounds"])
    hybrid = {at: loss("hybrid", warm_rounds=at, rounds=task["rounds"] - at) for at in task["switches"]}
    return {
        "hybrid": np.array([two_units.climb(found[at:]) for at, found in hybrid.items()]),
        "lagrangian": np.array([two_units.climb(alone[at:]) for at in hybrid]),
    }


def _tuned(task: Task) -> Mapping[str, Value]:
    """Which weights a training with given steps survives: those that are best at one weight."""
    plant = plant_of(task["plant"])
    recording = plant.simulate(task["steps"], rng=1000 + task["run"])

    def trained(method: str, step: float, weight: float) -> History | None:
        """The course of a training with one step size for everything; None if it left the range of numbers."""
        options: dict[str, Any] = dict.fromkeys(STEPS, step)
        options |= {"xi": weight, "rho": 2 * weight, "rounds": task["rounds"], "tol": 0.0}
        options |= {"solver": "gradient", "initial_scale": 1.0}
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                return fit(recording, plant.locals(), method=method, seed=task["run"], **options).history
        except CounterflowError:
            return None

    def ratio(method: str, step: float, weight: float) -> float:
        """L_s of the last round over that of the first."""
        history = trained(method, step, weight)
        if history is None:
            return GREATEST
        loss = history.residual_loss + weight * history.disentanglement
        return float(min(GREATEST, loss[-1] / loss[0]))

    def objective(history: History) -> FloatArray:
        """What the penalty method descends on, at the weight of the tuning."""
        loss = history.residual_loss + task["tuned_at"] * history.disentanglement
        return two_units.combined(loss, history.client_loss)

    def excess(step: float) -> float:
        """The share of the way to the minimum that is left after all rounds, at the weight of the tuning."""
        history = trained("penalty", step, task["tuned_at"])
        if history is None:
            return GREATEST
        loss = objective(history)
        return float(min(GREATEST, (loss[-1] - least) / (loss[0] - least)))

    exact = fit(recording, plant.locals(), method="penalty", xi=task["tuned_at"]).history
    least = float(objective(exact)[-1])
    steps = 2.0 ** -np.arange(4.0, 13.0)
    tuned = float(steps[int(np.argmin([ratio("penalty", step, task["tuned_at"]) for step in steps]))])
    weights = task["weights"]
    safe = tuned  # the largest power of two that survives the largest weight
    while ratio("penalty", safe, max(weights)) >= 1 and safe > SMALLEST:
        safe /= 2
    return {
        "step": tuned,
        "safe": safe,
        "excess": np.array([excess(tuned), excess(safe)]),
        "penalty": np.array([ratio("penalty", tuned, weight) for weight in weights]),
        "lagrangian": np.array([ratio("lagrangian", tuned, weight) for weight in weights]),
    }


def _tasks(request: Request) -> tuple[Task, ...]:
    trained = [run for method in METHODS for run in two_units.runs(request, method)]
    settings = {"tuned_at": TUNED_AT, "weights": list(WEIGHTS), "rounds": TUNED_ROUNDS}
    switched = {"switches": list(SWITCHES), "rounds": SWITCHED_ROUNDS}
    some = trained[: 3 if request.quick else 5]
    parts = ((("plant", "steps", "run"), settings), (("plant", "steps", "run", "xi", "rho"), switched))
    more = [Task("lagrangian", {**{k: t[k] for k in kept}, **added}) for kept, added in parts for t in some]
    return (*trained, *more)


def _at(run: Outcome, key: str, round_number: int) -> float:
    """The value of a series at a round (the last one kept before it)."""
    return float(run.array(key)[np.searchsorted(run.array("round"), round_number, side="right") - 1])


def _relative_loss(runs: Outcomes, name: str) -> FloatArray:
    """A client's loss over the proprietary one: one row for each run."""
    return stacked(runs, f"client_loss/{name}") / stacked(runs, f"proprietary_loss/{name}")[:, None]


def _claims(outcomes: Outcomes) -> tuple[Claim, ...]:
    runs = {method: where(outcomes, method=method) for method in METHODS}
    given = where(outcomes, tuned_at=...)
    climbs = {m: stacked(found, "climb") for m, found in runs.items()}
    late = {m: stacked(found, "climb/late") for m, found in runs.items()}
    early = {m: np.array([_at(run, "disentanglement", EARLY) for run in found]) for m, found in runs.items()}
    last = {m: stacked(found, "disentanglement")[:, -1] for m, found in runs.items()}
    loss = {m: np.mean([_relative_loss(found, n)[:, -1] for n in UNITS], axis=0) for m, found in runs.items()}
    delta = {
        (m, n): np.array([_at(r, f"delta_d/{n}", EARLY) for r in found]) for m, found in runs.items() for n in UNITS
    }
    # what the penalty method minimizes, at the end: L_s + Σ L_m,a
    lasts = ("server_loss", *(f"client_loss/{n}" for n in UNITS))
    objective = {m: np.sum([stacked(found, key)[:, -1] for key in lasts], axis=0) for m, found in runs.items()}
    gain = {m: 1 - float(np.mean(found)) for m, found in loss.items()}
    kept = f"{100 * gain['lagrangian'] / gain['penalty']:.2g} %" if gain["penalty"] > 0 else "nothing"
    apart = float(np.max(np.abs(objective["hybrid"] / objective["penalty"] - 1)))
    # rows: runs, columns: weights
    diverged = {m: stacked(given, m) >= 1 for m in ("penalty", "lagrangian")}
    large = np.array(WEIGHTS) > TUNED_AT
    unstable = both(
        above(diverged["penalty"][:, large].mean(axis=1), 0.5), holds(not diverged["penalty"][:, ~large].any())
    )
    excess = stacked(given, "excess")
    steps = stacked(given, "safe") / stacked(given, "step")
    return (
        Claim(
            "Oscillations of AL",
            "the learning curve of AL exhibits larger oscillations",
            f"all rises of log L_s over the rounds together: AL {told(climbs['lagrangian'])}, PM "
            f"{told(climbs['penalty'])}",
            above(climbs["lagrangian"] - climbs["penalty"]),
            f"Rule: the rises of AL are larger, {ABOVE_RULE}. Falls do not count: a curve that only falls has 0.",
        ),
        Claim(
            "Disentanglement of AL at the server",
            "AL achieves better disentanglement quickly",
            f"D after {EARLY} rounds: AL {told(early['lagrangian'])}, PM {told(early['penalty'])}; at the end: AL "
            f"{told(last['lagrangian'])}, PM {told(last['penalty'])}",
            both(_lower(early["lagrangian"], early["penalty"]), _lower(last["lagrangian"], last["penalty"])),
            f"Rule: the D of AL is lower after {EARLY} rounds and at the end: the mean logarithm of their ratio is "
            f"below zero, {ABOVE_RULE}.",
        ),
        Claim(
            "Disentanglement of AL at the clients",
            "and so at both clients (delta_d)",
            f"delta_d after {EARLY} rounds: "
            + "; ".join(
                f"{LABELS[n]} AL {told(delta['lagrangian', n])}, PM {told(delta['penalty', n])}" for n in UNITS
            ),
            both(*(_lower(delta["lagrangian", n], 0.9 * delta["penalty", n]) for n in UNITS)),
            f"Rule: delta_d of AL after {EARLY} rounds is more than a tenth lower at both clients: the mean logarithm "
            f"of the ratio, {ABOVE_RULE}. AL acts on D, and delta_d has no D in it.",
        ),
        Claim(
            "AL is sub-optimal",
            "AL might converge to a sub-optimal solution; its fixed point can be slightly biased",
            f"clients' loss over the proprietary one: PM {told(loss['penalty'], 4)}, AL {told(loss['lagrangian'], 4)}; "
            f"AL keeps {kept} of PM's gain",
            above(loss["lagrangian"] - loss["penalty"]),
            f"Rule: the mean loss of AL is higher, {ABOVE_RULE}. AL enforces D = 0, which theta = 0 and A_mn = 0 "
            "satisfy.",
        ),
        Claim(
            "Hybrid: a smoother descent",
            "AL as a warm start, then PM to achieve a smoother descent of L_s",
            f"all rises of log L_s after the warm start together: hybrid {told(late['hybrid'])}, AL over the same "
            f"rounds {told(late['lagrangian'])}, PM {told(late['penalty'])}",
            below(late["hybrid"] - late["lagrangian"]),
            f"Rule: after the warm start of {runs['hybrid'][0].task['warm_rounds']} rounds the hybrid's L_s rises "
            f"less than AL's over the same rounds, {ABOVE_RULE}. When to switch is ours to choose, and decides: see "
            "the table. A warm start that brings D far below PM's own leaves L_s below it, too, and PM then has to "
            "climb.",
        ),
        Claim(
            "Hybrid: the final objective",
            "and a marginally better final objective",
            f"final L_s + Σ L_m,a: PM {told(objective['penalty'], 4)}, AL {told(objective['lagrangian'], 4)}, hybrid "
            f"{told(objective['hybrid'], 4)}; hybrid and PM differ by at most {apart:.1g} of it",
            below(objective["hybrid"] - objective["lagrangian"]),
            f"Rule: the hybrid's final objective is below that of AL, {ABOVE_RULE}. PM's objective is convex, so that "
            "a warm start can save rounds, and not change where PM ends.",
        ),
        Claim(
            "PM with tuned steps at large weights",
            "the penalty could make the framework unstable for large xi",
            f"with steps tuned at xi = {TUNED_AT:g}, PM diverges in {_share(diverged['penalty'][:, large])} of the "
            f"trainings at larger xi, {_share(diverged['penalty'][:, ~large])} at smaller ones or that one",
            unstable,
            "Rule: of each run more than half of the trainings above the weight of the tuning diverge, in the mean "
            f"{ABOVE_RULE}; none diverges up to it. Step sizes here are given; derived ones are the default.",
        ),
        Claim(
            "AL with the same steps",
            "AL keeps the framework stable under large penalties",
            f"AL (rho = 2 xi) diverges in {_share(diverged['lagrangian'])} of the trainings",
            below(diverged["lagrangian"].mean(axis=1), 0.05),
            f"Rule: of each run less than one in twenty diverges, in the mean {ABOVE_RULE}.",
        ),
        Claim(
            "Trade-off between optimality and stability",
            "there exists a trade-off between optimality and stability when employing the penalty (section 9.1, "
            "details in the appendix)",
            f"steps that xi = {WEIGHTS[-1]:g} survives are {min(steps):.2g} to {max(steps):.2g} of the tuned ones; "
            f"after {TUNED_ROUNDS} rounds at xi = {TUNED_AT:g} they leave {_percent(excess[:, 1])} of the way to the "
            f"minimum of L_s + Σ L_m,a, the tuned ones {_percent(excess[:, 0])}",
            both(unstable, above(np.log(excess[:, 1] / excess[:, 0]))),
            "Rule: tuned steps are unstable at large weights (above), and steps that are stable there leave the "
            "training farther from its minimum after the same number of rounds: the mean logarithm of the ratio is "
            f"above zero, {ABOVE_RULE}.",
        ),
    )


def _lower(one: FloatArray, other: FloatArray) -> Verdict:
    """Whether positive numbers are lower than others of the same runs, on a logarithmic scale."""
    return below(np.log(np.maximum(one, TINY) / np.maximum(other, TINY)))


def _percent(shares: FloatArray) -> str:
    return f"{100 * float(np.mean(shares)):.2g} %"


def _share(found: Any) -> str:
    return f"{int(np.sum(found))} of {np.size(found)}"


def _figures(outcomes: Outcomes) -> dict[str, Drawing]:
    runs = {method: where(outcomes, method=method) for method in METHODS}

    def course(title: str, key: str, y: str, floor: float = 0.0) -> Panel:
        curves = [
            band(found[0].array("round"), np.maximum(stacked(found, key), floor), METHODS[method], colour)
            for colour, (method, found) in enumerate(runs.items())
        ]
        return over_rounds(title, curves, y)

    def relative(name: str) -> Panel:
        curves = [
            band(found[0].array("round"), _relative_loss(found, name), METHODS[method], colour)
            for colour, (method, found) in enumerate(runs.items())
        ]
        title = f"{LABELS[name].capitalize()}: loss"
        return over_rounds(title, [*curves, level(1.0)], RELATIVE_LOSS, False, (0.9, 1.2))

    given = where(outcomes, tuned_at=...)
    stability = [
        points(WEIGHTS, stacked(given, method), METHODS[method], colour)
        for colour, method in enumerate(("penalty", "lagrangian"))
    ]
    xi = "penalty weight $\\xi$ ($\\rho = 2\\xi$)"
    return {
        "lagrangian-rounds": Drawing(
            "Penalty method, augmented Lagrangian, and the hybrid of both, from the same initial parameters. The "
            "server loss is that of the penalty method for all three; D is cut off at 1e-16. Dotted: the proprietary "
            f"client. {BAND}",
            [
                course("Server loss", "server_loss", SERVER_LOSS),
                course("Disentanglement", "disentanglement", DISENTANGLEMENT, 1e-16),
                *map(relative, UNITS),
                *(course(f"{LABELS[n].capitalize()}: $\\delta_d$", f"delta_d/{n}", SHIFT_LEFT) for n in UNITS),
            ],
        ),
        "lagrangian-stability": Drawing(
            f"Trainings of {TUNED_ROUNDS} rounds whose step sizes were tuned at xi = {TUNED_AT:g}, at other weights. "
            f"Above the dotted line the loss has grown; {GREATEST:.0e} stands for all that is larger. Markers are "
            "means, bars the range from the least to the largest of the runs.",
            [Panel("Given step sizes", [*stability, level(1.0)], xi, "last $L_s$ / first $L_s$", WEIGHTS, True)],
            columns=1,
        ),
    }


def _tables(outcomes: Outcomes) -> tuple[Table, ...]:
    hybrid, alone = (stacked(where(outcomes, switches=...), m) for m in ("hybrid", "lagrangian"))
    rows = tuple(
        (str(at), told(hybrid[:, k], 2), told(alone[:, k], 2), _share(hybrid[:, k] < alone[:, k]))
        for k, at in enumerate(SWITCHES)
    )
    caption = (
        "The hybrid's dependence on the round of the switch: all rises of log L_s after it together, in "
        f"{SWITCHED_ROUNDS} rounds of both methods, and those of AL alone over the same rounds; means of "
        f"{len(hybrid)} recordings."
    )
    return (Table(caption, ("rounds of AL", "hybrid", "AL alone", "recordings with a smoother hybrid"), rows),)


def _switching(outcomes: Outcomes) -> str:
    """For which rounds of the switch the hybrid is smoother, and for which it is not."""
    switched = where(outcomes, switches=...)
    gaps = stacked(switched, "hybrid") - stacked(switched, "lagrangian")
    by_verdict: dict[Verdict, list[str]] = {}
    for k, at in enumerate(SWITCHES):
        by_verdict.setdefault(below(gaps[:, k]), []).append(str(at))
    parts = {"agrees": "is smoother", "does not hold": "is not smoother", "undecided": "is undecided"}
    told_ = "; ".join(
        f"after {', '.join(by_verdict[v])} rounds of AL it {text}" for v, text in parts.items() if v in by_verdict
    )
    return f"By the round of the switch: {told_}."


def _text(outcomes: Outcomes, claims: Sequence[Claim]) -> str:
    server = both(*(verdict_of(claims, s) for s in ("Oscillations", "Disentanglement of AL at the server")))
    return sentences(
        said(
            server,
            "The paper's picture of the two methods is right at the server.",
            "The paper's picture of the two methods is not right at the server.",
            "Whether the paper's picture of the two methods is right at the server is not decided.",
        ),
        said(verdict_of(claims, "Trade-off"), "So is the instability of tuned steps, and what it costs to avoid it."),
        said(
            verdict_of(claims, "AL is sub-optimal"),
            "With AL's better disentanglement the augmentation goes: D vanishes because theta and A_mn do.",
        ),
        said(
            verdict_of(claims, "Hybrid: a smoother descent"),
            "The hybrid descends more smoothly than AL.",
            "The hybrid does not descend more smoothly: after the warm start L_s rises again to PM's.",
        ),
        _switching(outcomes),
    )


EXPERIMENT = described(
    "lagrangian",
    _tasks,
    _compute,
    _figures,
    _claims,
    revision=2,
    text=_text,
    tables=_tables,
    choices=(
        f"The hybrid switches to PM after {two_units.SETTINGS['warm_rounds']} rounds of AL, in quick and full runs "
        "alike, while AL still oscillates: the paper's reason for the switch. Our first choice, a tenth of the rounds "
        "(150), came after the oscillations had ended, and the descent was not smoother; the table shows other rounds.",
        f"'Tuned' step sizes are one number for all six, the power of two that brings L_s lowest in {TUNED_ROUNDS} "
        f"rounds at xi = {TUNED_AT:g}.",
    ),
)
