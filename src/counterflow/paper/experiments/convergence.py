"""How far the published training and sufficient messages are from a centralized oracle, against T and xi."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.exchange.estimators import KalmanEstimator
from counterflow.filtering import kalman_filter
from counterflow.fits.fit import Fit
from counterflow.fits.training import fit
from counterflow.paper.augmented import AugmentedModel, ClientData
from counterflow.paper.experiments.effects import recorded
from counterflow.paper.experiments.experiment import Claim, Outcome, Outcomes, Request, Task, Value, Verdict
from counterflow.paper.experiments.figures import INK, Curve, Drawing, Panel, level, points
from counterflow.paper.experiments.selection import by_setting, grid, stacked, where
from counterflow.paper.experiments.verdicts import (
    FEWEST,
    above,
    below,
    beyond_control,
    both,
    estimated_above,
    exponent,
    holds,
)
from counterflow.paper.experiments.wording import caption, claim, described, said, summary, verdict_of
from counterflow.plant import Plant, Recording, random_plant

LENGTHS, QUICK_LENGTHS = (500, 2000, 8000, 32000), (500, 2000, 8000)
WEIGHTS = (0.1, 1.0, 10.0, 100.0, 1e4, 1e6)
MEANS = (0.0, 1.0)
OUTPUTS, PLANT = 2, 0
REPETITIONS, QUICK_REPETITIONS = 20, 6
ROUNDING = 1e-9
BIASED = 0.05  # distance to the oracle from which on there is a bias
VOID = 0.05  # of what a mean of one makes of it, from which downwards an expectation is none
WITHIN = 4.0  # standard errors within which a mean counts as zero


def _compute(task: Task) -> Mapping[str, Value]:
    """Distances to the oracle in one recording.

    ``left`` (weights, D): mean over rows of ỹ_o - ỹ_a, all units side by side; ``right``: J_m times the mean of z.
    ``distance`` (weights): root mean square of ỹ_o - ỹ_a over that of ỹ_o; ``proprietary`` the same of ỹ_c.
    ``sufficient/..``: the same of one Kalman filter with the couplings found from sufficient messages; ``equality``
    the largest difference to a fit on pooled raw data, relative.
    """
    plant = random_plant(outputs=task["outputs"], rng=task["plant"])
    recording = recorded(plant, task["steps"], 6000 + task["run"], mean=task["mean"])
    oracle = _filtered(plant, recording)
    size = float(np.sqrt((oracle**2).mean()))

    def distance(predicted: FloatArray) -> float:
        return float(np.sqrt(((oracle - predicted) ** 2).mean())) / size

    left, right, distances = [], [], []
    for weight in task["xi"]:
        found = fit(recording, plant.locals(), method="penalty", xi=weight)
        predicted, bias = augmented(found, plant, recording)
        left.append((oracle - predicted).mean(axis=0))
        right.append(bias)
        distances.append(distance(predicted))
    proprietary = np.hstack(
        [
            KalmanEstimator(plant.local(n)).estimate(recording[n].y, recording[n].u).predicted[1:]
            @ plant.block("C", n).T
            for n in plant.names
        ]
    )
    ours = fit(recording, plant.locals(), uncertainty=False)
    pooled = fit(recording, plant.locals(), method="centralized", uncertainty=False)
    served = _filtered(plant.replace(A=ours.plant.A, B=ours.plant.B), recording)
    return {
        "left": np.array(left),
        "right": np.array(right),
        "distance": np.array(distances),
        "proprietary": distance(proprietary),
        "sufficient/left": np.asarray((oracle - served).mean(axis=0)),
        "sufficient/distance": distance(served),
        "equality": max(
            float(np.linalg.norm(getattr(ours.plant, x) - getattr(pooled.plant, x)))
            / float(np.linalg.norm(getattr(pooled.plant, x)))
            for x in "AB"
        ),
    }


def _filtered(plant: Plant, recording: Recording) -> FloatArray:
    """One-step predictions of all outputs, rows 1..T, by one Kalman filter that sees all units."""
    y = np.hstack([recording[n].y for n in plant.names])
    u = np.hstack([recording[n].u for n in plant.names])
    found = kalman_filter(y, u, plant.A, plant.B, plant.C, plant.Q, plant.R)
    return np.asarray(found.predicted[1:] @ plant.C.T)


def augmented(found: Fit, plant: Plant, recording: Recording) -> tuple[FloatArray, FloatArray]:
    """Predictions ỹ_a of all units, rows 1..T, and Theorem 8.3's right side J_m E[z], both side by side."""
    data = {n: ClientData.from_part(found.parts[n], recording[n].y, recording[n].u) for n in plant.names}
    u = np.hstack([data[n].inputs for n in plant.names])
    predictions, biases = [], []
    for name in plant.names:
        part, own = found.parts[name], data[name]
        assert part.theta is not None
        assert part.phi is not None
        C = plant.block("C", name)
        states = AugmentedModel(part.working_model, own).states(part.theta, part.phi)
        predictions.append(states @ C.T)
        server = own.refined @ plant.block("A", name).T + own.inputs @ plant.block("B", name).T
        for other in plant.names:
            if other != name:
                server += data[other].refined @ found.plant.block("A", name, other).T
                server += data[other].inputs @ found.plant.block("B", name, other).T
        e = (states - server) @ C.T  # e_t of the theorem is C_mm r_s
        z = np.hstack([own.previous, u, own.refined])
        weights = np.linalg.lstsq(z.T @ z, z.sum(axis=0), rcond=None)[0]  # Σ_z⁻¹ E[z]
        biases.append(e.T @ z @ weights / own.steps)
    return np.hstack(predictions), np.concatenate(biases)


def _tasks(request: Request) -> tuple[Task, ...]:
    lengths, count = (QUICK_LENGTHS, QUICK_REPETITIONS) if request.quick else (LENGTHS, REPETITIONS)
    axes = {"steps": lengths[::-1], "mean": MEANS, "run": range(count)}
    return grid("convergence", axes, plant=PLANT, outputs=OUTPUTS, xi=list(WEIGHTS))


def lengths_of(outcomes: Outcomes) -> tuple[int, ...]:
    """The numbers of rows, shortest first."""
    return tuple(sorted({int(o.task["steps"]) for o in outcomes}))


def by_length(outcomes: Outcomes, mean: float, key: str, weight: float | None = None) -> FloatArray:
    """The length of a vector (or the size of a number) of every run, at a weight if it depends on it.

    One row for each run, one column for each number of rows.
    """

    def length(outcome: Outcome) -> float:
        found = outcome.array(key)
        return float(np.linalg.norm(found if weight is None else found[WEIGHTS.index(weight)]))

    return by_setting(where(outcomes, mean=mean), "steps", length)


def score(draws: Sequence[FloatArray] | FloatArray) -> float:
    """The largest mean of several numbers over runs (rows), in its standard errors.

    Examples
    --------
    >>> round(score(np.array([[1.0], [2.0], [3.0]])), 3)
    3.464
    """
    array = np.asarray(draws, np.float64)
    return float(np.abs(array.mean(axis=0) / (array.std(axis=0, ddof=1) / np.sqrt(len(array)))).max())


def _claims(outcomes: Outcomes) -> Iterator[Claim]:
    lengths = lengths_of(outcomes)
    longest = lengths[-1]
    at = {mean: where(outcomes, steps=longest, mean=mean) for mean in MEANS}
    both_sides = {mean: [stacked(runs, side) for side in ("left", "right")] for mean, runs in at.items()}
    gaps = {mean: (left - right)[:, -1] for mean, (left, right) in both_sides.items()}
    sides = {
        mean: [float(np.linalg.norm(side[:, -1], axis=1).mean()) for side in pair] for mean, pair in both_sides.items()
    }
    zero, one = score(gaps[0.0]), score(gaps[1.0])
    by_weight = np.linalg.norm(both_sides[0.0][0] - both_sides[0.0][1], axis=2).mean(axis=0)
    nothing = all(sides[0.0][k] < VOID * sides[1.0][k] for k in (0, 1))
    falls, largest = (exponent(lengths, by_length(outcomes, 0.0, "distance", weight)) for weight in (10.0, WEIGHTS[-1]))
    ours = exponent(lengths, by_length(outcomes, 0.0, "sufficient/distance"))
    distances = stacked(at[0.0], "distance")
    best = int(np.argmin(distances.mean(axis=0)))
    proprietary, default = stacked(at[0.0], "proprietary").mean(), stacked(at[0.0], "sufficient/distance")
    equality = max(o.number("equality") for o in outcomes)
    say = partial(claim, "convergence", longest=longest, last_xi=WEIGHTS[-1])
    theorem = beyond_control(holds(zero < WITHIN), holds(not nothing)) if len(at[0.0]) >= FEWEST else "undecided"
    lengths_by_xi = ", ".join(f"{length:.2g} at {w:g}" for w, length in zip(WEIGHTS, by_weight, strict=True))
    yield say("theorem", theorem, sides=sides[0.0], zero=zero, by_weight=lengths_by_xi, recordings=len(at[0.0]))
    outside: Verdict = "agrees" if one < WITHIN else "not comparable"
    yield say("theorem-mean", outside if len(at[1.0]) >= FEWEST else "undecided", sides=sides[1.0], one=one)
    yield say("rows", "beyond the paper", falls=falls, largest=largest, ours=ours, default=default)
    nearer = said(
        below(distances[:, -1] - distances[:, 0]),
        "Predictions come nearer to the oracle's as xi grows.",
        "Predictions do not come nearer to the oracle's as xi grows.",
        "Whether predictions come nearer as xi grows is not decided.",
    )
    pairs = zip(WEIGHTS, distances.mean(axis=0), strict=True)
    distances_by_xi = ", ".join(f"{value:.2f} at xi = {w:g}" for w, value in pairs)
    told = {"remark": nearer, "by_weight": distances_by_xi, "proprietary": proprietary}
    yield say("rows-weight", "beyond the paper", **told)
    remains = both(above(distances[:, best], BIASED), estimated_above(*falls, -0.25))
    yield say("bias", remains, xi=WEIGHTS[best], distance=distances[:, best])
    key = "equality" if equality <= ROUNDING else "difference"
    yield say(key, "beyond the paper", equality=equality, recordings=len(outcomes))


def _figures(outcomes: Outcomes) -> dict[str, Drawing]:
    lengths = lengths_of(outcomes)
    shown = {w: f"published, ξ = {_power(w)}" for w in (0.1, 10.0, 1e6)}

    def bias(mean: float) -> list[Curve]:
        curves = [
            points(lengths, by_length(outcomes, mean, "left", w), label, k, dodge=dodge)
            for k, ((w, label), dodge) in enumerate(zip(shown.items(), (0.88, 0.96, 1.05), strict=True), start=1)
        ]
        ours = by_length(outcomes, mean, "sufficient/left")
        right = by_length(outcomes, mean, "right", WEIGHTS[-1])
        look: dict[str, Any] = {"color": INK, "marker": "x", "linestyle": (0, (1, 1.2))}
        return [
            *curves,
            points(lengths, ours, "sufficient messages", 0, dodge=1.14),
            points(lengths, right, "$|J_m E[z]|$, ξ = $10^6$", **look),
        ]

    rows = [
        points(lengths, by_length(outcomes, 0.0, "distance", w), label, k)
        for k, (w, label) in enumerate(shown.items(), start=1)
    ]
    rows.append(points(lengths, by_length(outcomes, 0.0, "sufficient/distance"), "sufficient messages"))
    longest = where(outcomes, steps=lengths[-1], mean=0.0)
    weights = [
        points(WEIGHTS, stacked(longest, "distance"), "published, by ξ", 4),
        level(float(stacked(longest, "proprietary").mean()), "proprietary client", linestyle=(0, (4, 2))),
    ]
    T, distance, gap = "rows T", "distance row by row, relative", "$|E[ỹ_o - ỹ_a]|$ (outputs' units)"
    xi, ticks = "weight of the penalty, ξ", (0.1, 10, 1e4, 1e6)
    panels = (
        Panel("Bias, zero-mean inputs", bias(0.0), T, gap, log_x=lengths, log_y=True),
        Panel("Bias, inputs of mean 1", bias(1.0), T, gap, log_x=lengths, log_y=True),
        Panel("Row by row, zero mean", rows, T, distance, log_x=lengths, log_y=True),
        Panel(f"Row by row, T = {lengths[-1]}", weights, xi, distance, log_x=ticks, range_y=(0, None)),
    )
    return {"convergence": Drawing(caption("convergence", "distances"), panels, columns=2)}


def _power(weight: float) -> str:
    return f"{weight:g}" if weight < 1e4 else f"$10^{int(np.log10(weight))}$"


def _text(outcomes: Outcomes, claims: Sequence[Claim]) -> str:
    equal = max(o.number("equality") for o in outcomes) <= ROUNDING
    void = verdict_of(claims, "theorem") == "not comparable"
    return summary("convergence", claims, equal=equal, void=void, decidable=not void)


EXPERIMENT = described("convergence", _tasks, _compute, _figures, _claims, text=_text)
