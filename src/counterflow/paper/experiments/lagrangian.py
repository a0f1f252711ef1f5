"""Penalty method, augmented Lagrangian, and the hybrid of both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.errors import CounterflowError
from counterflow.fits.history import History
from counterflow.fits.training import fit
from counterflow.paper.experiments import two_units
from counterflow.paper.experiments.experiment import Claim, Outcome, Outcomes, Request, Table, Task, Value, Verdict
from counterflow.paper.experiments.figures import (
    DISENTANGLEMENT,
    RELATIVE_LOSS,
    SERVER_LOSS,
    SHIFT_LEFT,
    Drawing,
    Panel,
    band,
    level,
    over_rounds,
    points,
)
from counterflow.paper.experiments.selection import stacked, where
from counterflow.paper.experiments.two_units import LABELS, UNITS, plant_of
from counterflow.paper.experiments.verdicts import above, below, both, holds
from counterflow.paper.experiments.wording import caption, claim, described, said, summary, told

METHODS = {"penalty": "penalty (PM)", "lagrangian": "augmented Lagrangian (AL)", "hybrid": "hybrid: AL, then PM"}
STEPS = ("eta_1", "eta_2", "gamma_1", "gamma_2", "alpha_A", "alpha_B")
WEIGHTS = (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
TUNED_AT, TUNED_ROUNDS = 10.0, 200
SWITCHES, SWITCHED_ROUNDS = (10, 20, 30, 50, 100, 150), 300  # rounds of AL before PM, and of both together
EARLY = 50  # rounds after which "quickly" is judged
SMALLEST = 2.0**-30
TINY = 1e-300
GREATEST = 1e12  # a loss ratio at which a training counts as diverged
SCHEME = "Not comparable whatever is found, because the paper does not write its IMEX step out; with ours {}."
OF_SCHEME = ("oscillations", "server", "clients", "optimum", "hybrid", "objective", "stable")  # claims that rest on it


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


def _claims(outcomes: Outcomes) -> Iterator[Claim]:
    for key, verdict, values in _found(outcomes):
        if key in OF_SCHEME:
            scheme = SCHEME.format(said(verdict, "it is so", "it is not so", "it is undecided"))
            yield claim("lagrangian", key, "not comparable", scheme=scheme, **values)
        else:
            yield claim("lagrangian", key, verdict, **values)


def _found(outcomes: Outcomes) -> Iterator[tuple[str, Verdict, dict[str, Any]]]:
    """What is found about every claim, with our IMEX step where there is one in it."""
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
    yield "oscillations", above(climbs["lagrangian"] - climbs["penalty"]), {"climbs": climbs}
    lower = both(_lower(early["lagrangian"], early["penalty"]), _lower(last["lagrangian"], last["penalty"]))
    yield "server", lower, {"early": early, "last": last}
    lower = both(*(_lower(delta["lagrangian", n], 0.9 * delta["penalty", n]) for n in UNITS))
    deltas = [f"{LABELS[n]} AL {told(delta['lagrangian', n])}, PM {told(delta['penalty', n])}" for n in UNITS]
    yield "clients", lower, {"deltas": "; ".join(deltas)}
    yield "optimum", above(loss["lagrangian"] - loss["penalty"]), {"loss": loss, "kept": kept}
    switch = runs["hybrid"][0].task["warm_rounds"]
    yield "hybrid", below(late["hybrid"] - late["lagrangian"]), {"late": late, "rounds": switch}
    better = below(objective["hybrid"] - objective["lagrangian"])
    yield "objective", better, {"objective": objective, "apart": apart}
    shares = [_share(diverged["penalty"][:, which]) for which in (large, ~large)]
    yield "tuned", unstable, {"shares": shares}
    survives = below(diverged["lagrangian"].mean(axis=1), 0.05)
    yield "stable", survives, {"share": _share(diverged["lagrangian"])}
    costs = both(unstable, above(np.log(excess[:, 1] / excess[:, 0])))
    yield "trade-off", costs, {"last_xi": WEIGHTS[-1], "steps": steps, "excess": excess.T}


def _lower(one: FloatArray, other: FloatArray) -> Verdict:
    """Whether positive numbers are lower than others of the same runs, on a logarithmic scale."""
    return below(np.log(np.maximum(one, TINY) / np.maximum(other, TINY)))


def _share(found: Any) -> str:
    return f"{int(np.sum(found))} of {np.size(found)}"


def _figures(outcomes: Outcomes) -> dict[str, Drawing]:
    runs = {method: where(outcomes, method=method) for method in METHODS}

    def course(title: str, key: str, y: str) -> Panel:
        curves = [
            band(found[0].array("round"), np.maximum(stacked(found, key), TINY), METHODS[method], colour)
            for colour, (method, found) in enumerate(runs.items())
        ]
        return over_rounds(title, curves, y)

    def relative(name: str) -> Panel:
        curves = [
            band(found[0].array("round"), _relative_loss(found, name), METHODS[method], colour)
            for colour, (method, found) in enumerate(runs.items())
        ]
        return over_rounds(LABELS[name].capitalize(), [*curves, level(1.0)], RELATIVE_LOSS)

    given = where(outcomes, tuned_at=...)
    stability = [
        points(WEIGHTS, stacked(given, method), METHODS[method], colour)
        for colour, method in enumerate(("penalty", "lagrangian"))
    ]
    xi = "penalty weight $\\xi$ ($\\rho = 2\\xi$)"
    return {
        "lagrangian-rounds": Drawing(
            caption("lagrangian", "rounds"),
            [
                course("Server loss", "server_loss", SERVER_LOSS),
                course("Disentanglement", "disentanglement", DISENTANGLEMENT),
                *(
                    course(f"{LABELS[n].capitalize()}: loss", f"client_loss/{n}", f"$L_{{{k},a}}$ (outputs, squared)")
                    for k, n in enumerate(UNITS, start=1)
                ),
                *(course(f"{LABELS[n].capitalize()}: $\\delta_d$", f"delta_d/{n}", SHIFT_LEFT) for n in UNITS),
            ],
            paper="Fig. 5",
        ),
        "lagrangian-gain": Drawing(caption("lagrangian", "gain"), [*map(relative, UNITS)], columns=2),
        "lagrangian-stability": Drawing(
            caption("lagrangian", "stability"),
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
    head = ("rounds of AL", "hybrid", "AL alone", "recordings with a smoother hybrid")
    return (Table(caption("lagrangian", "switches", recordings=len(hybrid)), head, rows),)


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
    seen = {key: verdict for key, verdict, _ in _found(outcomes)}  # its sentences say what is seen with our scheme
    shown = [replace(each, verdict=seen[each.key]) for each in claims]
    return summary("lagrangian", shown, switching=_switching(outcomes))


EXPERIMENT = described("lagrangian", _tasks, _compute, _figures, _claims, revision=2, text=_text, tables=_tables)
