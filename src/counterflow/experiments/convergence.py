"""How far the published training and sufficient messages are from a centralized oracle, against T and xi."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.experiments.drawing import BARS, DODGED, INK, Drawing, Panel, log_axis, points
from counterflow.experiments.effects import recorded
from counterflow.experiments.experiment import (
    SHORT_OF_ORACLE,
    Claim,
    Experiment,
    Outcome,
    Outcomes,
    Request,
    Task,
    Value,
)
from counterflow.experiments.judging import (
    ABOVE_RULE,
    FEWEST,
    above,
    below,
    beyond_control,
    both,
    estimated_above,
    holds,
    mean_and_error,
    said,
    sentences,
    told,
    verdict_of,
)
from counterflow.experiments.scalability import exponent
from counterflow.filtering import kalman_filter
from counterflow.fits.fit import Fit
from counterflow.fits.training import fit
from counterflow.methods.estimators import KalmanEstimator
from counterflow.methods.published.augmented import AugmentedModel
from counterflow.plant import Plant, Recording, random_plant

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    """Predictions ỹ_a of all units, rows 1..T, and Theorem 7.3's right side J_m E[z], both side by side."""
    data = {n: found.parts[n].client_data(recording[n].y, recording[n].u) for n in plant.names}
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
    fixed = {"plant": PLANT, "outputs": OUTPUTS, "xi": list(WEIGHTS)}
    return tuple(
        Task("convergence", {**fixed, "steps": steps, "mean": mean, "run": run})
        for steps in reversed(lengths)
        for mean in MEANS
        for run in range(count)
    )


def lengths_of(outcomes: Outcomes) -> tuple[int, ...]:
    """The numbers of rows, shortest first."""
    return tuple(sorted({int(o.task["steps"]) for o in outcomes}))


def runs_of(outcomes: Outcomes, steps: int, mean: float) -> list[Outcome]:
    """All runs of one length and one mean of the inputs."""
    return [o for o in outcomes if o.task["steps"] == steps and o.task["mean"] == mean]


def by_length(outcomes: Outcomes, mean: float, of: Callable[[Outcome], float]) -> FloatArray:
    """A number of every run: one row for each, one column for each length."""
    return np.array([[of(o) for o in runs_of(outcomes, steps, mean)] for steps in lengths_of(outcomes)]).T


def score(draws: Sequence[FloatArray] | FloatArray) -> float:
    """The largest mean of several numbers over runs (rows), in its standard errors.

    Examples
    --------
    >>> round(score(np.array([[1.0], [2.0], [3.0]])), 3)
    3.464
    """
    array = np.asarray(draws, np.float64)
    return float(np.abs(array.mean(axis=0) / (array.std(axis=0, ddof=1) / np.sqrt(len(array)))).max())


def _claims(outcomes: Outcomes) -> tuple[Claim, ...]:
    lengths = lengths_of(outcomes)
    longest = lengths[-1]
    at = {mean: runs_of(outcomes, longest, mean) for mean in MEANS}
    gaps = {mean: np.array([o.array("left")[-1] - o.array("right")[-1] for o in runs]) for mean, runs in at.items()}
    sides = {
        mean: [float(np.mean([np.linalg.norm(o.array(side)[-1]) for o in runs])) for side in ("left", "right")]
        for mean, runs in at.items()
    }
    zero, one = score(gaps[0.0]), score(gaps[1.0])
    by_weight = np.array([[np.linalg.norm(x) for x in o.array("left") - o.array("right")] for o in at[0.0]]).mean(
        axis=0
    )
    nothing = all(sides[0.0][k] < VOID * sides[1.0][k] for k in (0, 1))
    middle = WEIGHTS.index(10.0)
    falls, largest = (
        exponent(lengths, by_length(outcomes, 0.0, lambda o, k=k: float(o.array("distance")[k])))  # type: ignore[misc]
        for k in (middle, len(WEIGHTS) - 1)
    )
    ours = exponent(lengths, by_length(outcomes, 0.0, lambda o: o.number("sufficient/distance")))
    distances = np.array([o.array("distance") for o in at[0.0]])
    best = int(np.argmin(distances.mean(axis=0)))
    proprietary = mean_and_error([o.number("proprietary") for o in at[0.0]])[0]
    default = [o.number("sufficient/distance") for o in at[0.0]]
    equality = max(o.number("equality") for o in outcomes)
    return (
        Claim(
            "Theorem 7.3, zero-mean inputs (its assumption)",
            "when the client models have causal disentanglement (xi → ∞ regime), the federated reconstruction matches "
            "the oracle in expectation up to a bias J_m E[z]: E[ỹ_o - ỹ_a] = J_m E[z]",
            f"left side {sides[0.0][0]:.2g}, right side {sides[0.0][1]:.2g} (mean lengths over the recordings, T = "
            f"{longest}, xi = {WEIGHTS[-1]:g}); their difference is {zero:.2g} standard errors from zero. Its mean "
            "length "
            "by xi: " + ", ".join(f"{length:.2g} at {w:g}" for w, length in zip(WEIGHTS, by_weight, strict=True)),
            beyond_control(holds(zero < WITHIN), holds(not nothing)) if len(at[0.0]) >= FEWEST else "undecided",
            f"Rule: at the largest xi the mean difference over {len(at[0.0])} recordings is within {WITHIN:g} "
            "standard errors, in every output (there are several, and the largest counts); not comparable if both "
            f"sides are below {VOID:g} of what they are with inputs of mean 1. With zero-mean inputs both have the "
            "expectation zero for any linear predictor and any xi, the proprietary client included: zero is compared "
            "with zero, as in Corollary 6.2 (disentanglement).",
        ),
        Claim(
            "Theorem 7.3, inputs of mean 1 (outside of its assumption)",
            "the federated reconstruction matches the oracle in expectation up to a bias",
            f"left side {sides[1.0][0]:.3g}, right side {sides[1.0][1]:.3g}; their difference is {one:.3g} standard "
            "errors from zero",
            "undecided" if len(at[1.0]) < FEWEST else "agrees" if one < WITHIN else "not comparable",
            f"Rule: within {WITHIN:g} standard errors; else not comparable, because the theorem assumes zero-mean "
            "inputs. Inputs of real plants have means.",
        ),
        Claim(
            "Row by row, with more data",
            "not said: its theorem is about expectations and xi → ∞",
            f"row by row, the distance to the oracle's predictions goes like T^({falls[0]:.2f} ± {falls[1]:.1g}) at "
            f"xi = 10, T^({largest[0]:.2f} ± {largest[1]:.1g}) at xi = {WEIGHTS[-1]:g} (sufficient messages: "
            f"T^({ours[0]:.2f} ± {ours[1]:.1g}), to {told(default, 2)} of the "
            "predictions' size)",
            "beyond the paper",
            "No rule. An estimate that converges has an exponent of -0.5; 0 is bias.",
        ),
        Claim(
            "Row by row, with growing xi",
            "not said: its theorem is about expectations",
            f"distance over the size of the predictions, T = {longest}: "
            + ", ".join(f"{value:.2f} at xi = {w:g}" for w, value in zip(WEIGHTS, distances.mean(axis=0), strict=True))
            + f"; proprietary client {proprietary:.2f}",
            "beyond the paper",
            "No rule. "
            + said(
                below(distances[:, -1] - distances[:, 0]),
                "Predictions come nearer to the oracle's as xi grows.",
                "Predictions do not come nearer to the oracle's as xi grows.",
                "Whether predictions come nearer as xi grows is not decided.",
            ),
        ),
        Claim(
            "A bias remains",
            "convergence results only hold up to a bias in reconstruction (limitations)",
            f"at its best xi = {WEIGHTS[best]:g} the published prediction stays {told(distances[:, best])} of the "
            f"predictions' size away from the oracle's (T = {longest})",
            both(above(distances[:, best], BIASED), estimated_above(falls[0], falls[1], -0.25)),
            f"Rule, for the published method: the distance at the longest T is above {BIASED}, and falls more slowly "
            f"than T^-0.25, {ABOVE_RULE}. This is the paper's own limit of its method.",
            SHORT_OF_ORACLE,
        ),
        Claim(
            "Sufficient messages against pooled data",
            "not its method",
            "couplings from sufficient messages and from pooled raw data: largest relative difference "
            f"{equality:.1e} in {len(outcomes)} recordings",
            "beyond the paper",
            "No rule. "
            + (
                f"They are equal to rounding ({ROUNDING:g}), whatever T and the inputs' mean are: the bias above is "
                "not the price of federation."
                if equality <= ROUNDING
                else f"They differ by more than rounding ({ROUNDING:g})."
            ),
        ),
    )


def _figures(outcomes: Outcomes) -> dict[str, Drawing]:
    lengths = lengths_of(outcomes)

    def bias(mean: float) -> Callable[[Axes], None]:
        def draw(axes: Axes) -> None:
            for k, (w, dodge) in enumerate(zip((0.1, 10.0, 1e6), (0.88, 0.96, 1.05), strict=True)):
                at = WEIGHTS.index(w)
                left = by_length(outcomes, mean, lambda o, at=at: float(np.linalg.norm(o.array("left")[at])))  # type: ignore[misc]
                points(axes, lengths, left, f"published, ξ = {_power(w)}", k + 1, dodge=dodge)
            ours = by_length(outcomes, mean, lambda o: float(np.linalg.norm(o.array("sufficient/left"))))
            points(axes, lengths, ours, "sufficient messages", 0, dodge=1.14)
            right = by_length(outcomes, mean, lambda o: float(np.linalg.norm(o.array("right")[-1])))
            centre = right.mean(axis=0)
            axes.errorbar(
                lengths, centre, yerr=[centre - right.min(axis=0), right.max(axis=0) - centre], color=INK, marker="x",
                linestyle=(0, (1, 1.2)), capsize=2, elinewidth=0.9, label="$|J_m E[z]|$, ξ = $10^6$",
            )  # fmt: skip
            _length_axis(axes, "$|E[ỹ_o - ỹ_a]|$ (outputs' units)")

        return draw

    def rows(axes: Axes) -> None:
        for k, w in enumerate((0.1, 10.0, 1e6)):
            at = WEIGHTS.index(w)
            values = by_length(outcomes, 0.0, lambda o, at=at: float(o.array("distance")[at]))  # type: ignore[misc]
            points(axes, lengths, values, f"published, ξ = {_power(w)}", k + 1)
        points(
            axes, lengths, by_length(outcomes, 0.0, lambda o: o.number("sufficient/distance")), "sufficient messages", 0
        )
        _length_axis(axes, "distance row by row, relative")

    def _length_axis(axes: Axes, label: str) -> None:
        axes.set_xlabel("rows T")
        axes.set_ylabel(label)
        log_axis(axes, "x", lengths)
        log_axis(axes, "y")

    def weights(axes: Axes) -> None:
        at = runs_of(outcomes, lengths[-1], 0.0)
        points(axes, WEIGHTS, np.array([o.array("distance") for o in at]), "published, by ξ", 4)
        axes.axhline(
            float(np.mean([o.number("proprietary") for o in at])), color=INK, linewidth=1.0, linestyle=(0, (4, 2)),
            label="proprietary client",
        )  # fmt: skip
        axes.set_ylim(0, None)
        axes.set_xlabel("weight of the penalty, ξ")
        axes.set_ylabel("distance row by row, relative")
        log_axis(axes, "x", (0.1, 10, 1e4, 1e6))

    panels = (
        Panel("(a) Bias, zero-mean inputs", bias(0.0)),
        Panel("(b) Bias, inputs of mean 1", bias(1.0)),
        Panel("(c) Row by row, zero mean", rows),
        Panel(f"(d) Row by row, T = {lengths[-1]}", weights),
    )
    caption = (
        "Distance of one-step predictions to those of a Kalman filter that sees all units and knows A and B: (a, b) "
        "length of the mean difference, with the right side of Theorem 7.3; (c, d) root mean square of the "
        f"difference over that of the oracle's predictions. {BARS} {DODGED}"
    )
    return {"convergence": Drawing(caption, panels, columns=2)}


def _power(weight: float) -> str:
    return f"{weight:g}" if weight < 1e4 else f"$10^{int(np.log10(weight))}$"


def _text(outcomes: Outcomes, claims: Sequence[Claim]) -> str:
    equality = max(o.number("equality") for o in outcomes)
    return sentences(
        said(
            verdict_of(claims, "Theorem 7.3, zero-mean"),
            "The theorem's equation holds.",
            "The theorem's equation does not hold here.",
            "Under its own assumption of zero-mean inputs the theorem's equation compares zero with zero."
            if verdict_of(claims, "Theorem 7.3, zero-mean") == "not comparable"
            else "Whether the theorem's equation holds is not decided.",
        ),
        said(
            verdict_of(claims, "A bias remains"),
            "Row by row, published predictions stay away from the oracle's; the paper names this bias among its "
            "limitations.",
        ),
        "Beyond the paper: sufficient messages give what pooled data give." if equality <= ROUNDING else "",
    )


CONVERGENCE = Experiment(
    name="convergence",
    title="Convergence to a centralized oracle",
    paper="Section 8 'Convergence to an Oracle'; Lemma 7.2 and Theorem 7.3 are its appendix's names (no figure given)",
    question="Do federated predictions come to those of a Kalman filter that sees everything?",
    tasks=_tasks,
    compute=_compute,
    figures=_figures,
    claims=_claims,
    choices=(
        "random_plant(outputs=2, rng=0), two units; 20 recordings of each length (6 in a quick run); white inputs of "
        "mean 0, as the theorem assumes, and of mean 1.",
        "Stationary points of the penalty method, by the conjugate solver, for xi from 0.1 to 10^6.",
        "The oracle is the one of the paper's text: a centralized Kalman filter with the true A and B. (The proof "
        "compares with another, the best linear predictor from one unit's own rows and all inputs.)",
        "Expectations are means over the rows of a recording; standard errors are over recordings.",
    ),
    text=_text,
)
