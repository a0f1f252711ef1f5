"""Under which conditions the published method finds effects, and where it is at least a better predictor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np

from counterflow.arrays import FloatArray
from counterflow.fits.training import fit
from counterflow.paper.experiments.effects import (
    between,
    cosine,
    coupling_error,
    r_squared,
    recorded,
    responses,
    without_couplings,
)
from counterflow.paper.experiments.experiment import Claim, Outcomes, Request, Table, Task, Value
from counterflow.paper.experiments.figures import Drawing, Panel, level, points
from counterflow.paper.experiments.selection import grid, stacked, where
from counterflow.paper.experiments.verdicts import both, mostly, rarely
from counterflow.paper.experiments.wording import caption, claim
from counterflow.plant import Plant, random_plant

# name: (what is done to the plant, pole of the inputs, their mean)
CONDITIONS: Mapping[str, tuple[str, float, float]] = {
    "white inputs": ("", 0.0, 0.0),
    "AR(0.5) inputs": ("", 0.5, 0.0),
    "AR(0.9) inputs": ("", 0.9, 0.0),
    "AR(0.99) inputs": ("", 0.99, 0.0),
    "white, mean 1": ("", 0.0, 1.0),
    "white, mean 3": ("", 0.0, 3.0),
    "B_mn = 0, white": ("only A", 0.0, 0.0),
    "B_mn = 0, AR(0.9)": ("only A", 0.9, 0.0),
    "A_mn = 0, AR(0.9)": ("only B", 0.9, 0.0),
    "B_mn / 3, AR(0.9)": ("weak", 0.9, 0.0),
    "3 B_mn, AR(0.9)": ("strong", 0.9, 0.0),
    "slow plants, AR(0.9)": ("slow", 0.9, 0.0),
}
DRAWN = (
    "white inputs", "AR(0.9) inputs", "AR(0.99) inputs", "white, mean 1", "B_mn = 0, white", "slow plants, AR(0.9)",
)  # fmt: skip
WEIGHTS = (0.1, 1.0, 10.0, 100.0, 1e4, 1e6)
LAST_WEIGHT = WEIGHTS[-1]
STEPS, PLANTS, QUICK_PLANTS = 5000, 20, 6
GOOD = 0.5


def plant_of(kind: str, seed: int) -> Plant:
    """A random plant of two units, changed as the condition says."""
    plant = random_plant(rng=seed)
    couplings = between(plant, "B")
    if kind == "only A":
        return without_couplings(plant, "B")
    if kind == "only B":
        return without_couplings(plant, "A")
    if kind in ("weak", "strong"):
        factor = 3.0 if kind == "strong" else 1 / 3
        return plant.replace(B=np.where(couplings, factor * plant.B, plant.B))
    return slowed(plant, seed) if kind == "slow" else plant


def slowed(plant: Plant, seed: int) -> Plant:
    """The same couplings between units whose own poles are real and between 0.5 and 0.9.

    Examples
    --------
    >>> slow = slowed(random_plant(rng=0), 0)
    >>> bool(np.isreal(np.linalg.eigvals(slow.local("unit1").A)).all())
    True
    """
    rng, A = np.random.default_rng(seed), plant.A.copy()
    for name in plant.names:
        own = plant.state_slice(name)
        size = own.stop - own.start
        basis = np.linalg.qr(rng.standard_normal((size, size)))[0]
        A[own, own] = basis @ np.diag(rng.uniform(0.5, 0.9, size)) @ basis.T
    radius = float(np.abs(np.linalg.eigvals(A)).max())
    return plant.replace(A=A * min(1.0, 0.95 / radius))


def tasks(request: Request) -> tuple[Task, ...]:
    """One for each condition and plant."""
    axes = {"condition": list(CONDITIONS), "plant": range(QUICK_PLANTS if request.quick else PLANTS)}
    return grid("finding", axes, part="conditions", steps=STEPS, xi=list(WEIGHTS))


def compute(task: Task) -> Mapping[str, Value]:
    """Errors and predictions of the penalty method at every weight, one entry each, and of the default method."""
    kind, pole, mean = CONDITIONS[task["condition"]]
    plant, seed = plant_of(kind, task["plant"]), 100 + task["plant"]
    recording = recorded(plant, task["steps"], seed, pole, mean)
    fresh = recorded(plant, task["steps"], 900 + seed, pole, mean)
    true = responses(plant)
    series: dict[str, list[float]] = {key: [] for key in ("B", "A", "cosine", "R2", "augmented", "server", "train")}
    for weight in task["xi"]:
        found = fit(recording, plant.locals(), method="penalty", xi=weight)
        means = found.validate(fresh).mean()
        series["B"].append(coupling_error(found.plant, plant, "B"))
        series["A"].append(coupling_error(found.plant, plant, "A"))
        series["cosine"].append(cosine(found.plant, plant))
        series["R2"].append(r_squared(responses(found.plant), true))
        for model in ("augmented", "server"):
            ratios = [means[model][n] / means["proprietary"][n] for n in plant.names]
            series[model].append(float(np.mean(ratios)))
        history = found.history
        losses = [history.client_loss[n][-1] / history.proprietary_loss[n][-1] for n in plant.names]
        series["train"].append(float(np.mean(losses)))
    default = fit(recording, plant.locals(), uncertainty=False)
    means = default.validate(fresh, oracle=plant).mean()
    values: dict[str, Value] = {key: np.array(numbers) for key, numbers in series.items()}
    values |= {
        "default/B": coupling_error(default.plant, plant, "B"),
        "default/A": coupling_error(default.plant, plant, "A"),
        "default/R2": r_squared(responses(default.plant), true),
    }
    for model in ("server", "oracle"):
        values[f"default/{model}"] = float(np.mean([means[model][n] / means["proprietary"][n] for n in plant.names]))
    return values


def of_condition(outcomes: Outcomes, name: str, key: str) -> FloatArray:
    """A series or number of all plants: one row for each."""
    return stacked(where(outcomes, part="conditions", condition=name), key)


def median(outcomes: Outcomes, name: str, key: str) -> FloatArray:
    """Over the plants, at every weight."""
    return np.asarray(np.median(of_condition(outcomes, name, key), axis=0))


def claims(outcomes: Outcomes) -> Iterator[Claim]:
    """On what the published method does do."""
    smallest, usual, largest = 0, WEIGHTS.index(10.0), len(WEIGHTS) - 1
    names = list(CONDITIONS)
    on_new = {
        (model, name): of_condition(outcomes, name, model)[:, usual]
        for model in ("augmented", "server")
        for name in names
    }
    better = {
        m: np.concatenate([v for (model, _), v in on_new.items() if model == m]) < 1 for m in ("augmented", "server")
    }
    R2 = {name: of_condition(outcomes, name, "R2") for name in names}
    middle = {name: np.median(values, axis=0) for name, values in R2.items()}
    best = max(names, key=lambda name: float(middle[name].max()))
    there = R2[best][:, int(np.argmax(middle[best]))]
    only_A = of_condition(outcomes, "B_mn = 0, white", "A")
    where = int(np.argmin(np.median(only_A, axis=0)))
    direction = {
        name: of_condition(outcomes, name, "cosine")[:, smallest] for name in ("white inputs", "AR(0.9) inputs")
    }
    persistent = R2["AR(0.9) inputs"]
    say = partial(claim, "finding", first_xi=WEIGHTS[smallest], last_xi=LAST_WEIGHT)
    on_white = {m: on_new[m, "white inputs"] for m in better}
    default = {m: median(outcomes, "white inputs", f"default/{m}") for m in ("server", "oracle")}
    lower = both(*(rarely(values, 1.0) for values in on_new.values()))
    yield say("prediction", lower, xi=WEIGHTS[usual], better=better, on_white=on_white, default=default)
    first, last = persistent[:, smallest], persistent[:, largest]
    predicted = median(outcomes, "AR(0.9) inputs", "augmented")
    course = {"first": first, "last": last, "predicted": [predicted[smallest], predicted[largest]]}
    yield say("weight", "beyond the paper", lower=int((last < first).sum()), **course)
    found = {"xi": WEIGHTS[int(np.argmax(middle[best]))], "default": median(outcomes, best, "default/R2")}
    worst = _low(float(there.min()))
    yield say("best", mostly(there, GOOD), count=len(names), best=best, there=there, worst=worst, **found)
    found = {"xi": WEIGHTS[where], "R2": middle["B_mn = 0, white"][where]}
    default = {x: median(outcomes, "B_mn = 0, white", f"default/{x}") for x in ("A", "R2")}
    yield say("states", rarely(only_A[:, where], GOOD), error=only_A[:, where], default=default, **found)
    yield say("direction", mostly(direction["white inputs"], GOOD), direction=direction)


def rank_correlation(one: FloatArray, other: FloatArray) -> float:
    """Spearman's, of numbers without ties.

    Examples
    --------
    >>> rank_correlation(np.array([1.0, 2.0, 5.0]), np.array([0.1, 0.2, 0.3]))
    1.0
    """
    ranks = [np.argsort(np.argsort(values)).astype(np.float64) for values in (one, other)]
    centred = [each - each.mean() for each in ranks]
    return float(centred[0] @ centred[1] / np.sqrt((centred[0] @ centred[0]) * (centred[1] @ centred[1])))


def tables(outcomes: Outcomes) -> tuple[Table, ...]:
    """Medians over the plants, for each condition at the weight that is best for its R²."""
    rows = []
    for name in CONDITIONS:
        R2 = median(outcomes, name, "R2")
        at = int(np.argmax(R2))
        spread = of_condition(outcomes, name, "R2")[:, at]
        default = of_condition(outcomes, name, "default/R2")
        told = rank_correlation(
            1 - of_condition(outcomes, name, "train")[:, 0], of_condition(outcomes, name, "R2")[:, 0]
        )
        rows.append(
            (
                name,
                f"{WEIGHTS[at]:g}",
                f"{R2[at]:.3f} ({_low(float(spread.min()))} to {spread.max():.2f})",
                *(_number(median(outcomes, name, "B")[k], ".3g") for k in (0, WEIGHTS.index(10.0))),
                _number(median(outcomes, name, "A")[0], ".3g"),
                _number(median(outcomes, name, "cosine")[0], ".2f"),
                f"{median(outcomes, name, 'augmented')[0]:.2f}",
                ", ".join(f"{float(median(outcomes, name, f'default/{model}')):.2f}" for model in ("server", "oracle")),
                f"{told:+.2f}",
                f"{np.median(default):.4f} ({default.min():.4f})",
            )
        )
    head = (
        "condition", "best ξ", "R² there (plants)", "error of B_mn, ξ = 0.1", "ξ = 10", "error of A_mn, ξ = 0.1",
        "cosine, ξ = 0.1", "prediction, ξ = 0.1", "default's, oracle's prediction", "gain tells R², ξ = 0.1",
        "R², default method (worst)",
    )  # fmt: skip
    count = len(of_condition(outcomes, "white inputs", "B"))
    return (
        Table(caption("finding", "conditions", plants=count), head, tuple(rows)),
        _shares(outcomes),
        _predictions(outcomes),
    )


def _shares(outcomes: Outcomes) -> Table:
    """How many plants get a good answer, and how many one that is worse than none."""
    rows = []
    for name in CONDITIONS:
        R2 = of_condition(outcomes, name, "R2")
        best = int(np.argmax(np.median(R2, axis=0)))
        weights = (best, 0, WEIGHTS.index(10.0))
        rows.append(
            (
                name,
                f"{WEIGHTS[best]:g}",
                *(f"{100 * float((R2[:, k] > GOOD).mean()):.0f} %" for k in weights),
                *(f"{100 * float((R2[:, k] < 0).mean()):.0f} %" for k in weights),
            )
        )
    head = (
        "condition", "best ξ", f"R² > {GOOD:g} there", "ξ = 0.1", "ξ = 10", "R² < 0 at best ξ", "ξ = 0.1", "ξ = 10"
    )  # fmt: skip
    count = len(of_condition(outcomes, "white inputs", "R2"))
    return Table(caption("finding", "shares", plants=count), head, tuple(rows))


def _predictions(outcomes: Outcomes) -> Table:
    """Of both models that predict, at every weight."""
    rows = []
    for k, weight in enumerate(WEIGHTS):
        cells = []
        for model in ("augmented", "server"):
            by_condition = {name: of_condition(outcomes, name, model)[:, k] for name in CONDITIONS}
            shares = {name: float((values < 1).mean()) for name, values in by_condition.items()}
            medians = [float(np.median(values)) for values in by_condition.values()]
            worst = min(shares, key=lambda name, shares=shares: shares[name])  # type: ignore[misc]
            cells += [
                f"{100 * float(np.mean(list(shares.values()))):.4g} %",
                f"{100 * shares[worst]:.0f} % ({worst})" if shares[worst] < 1 else "100 %",
                f"{min(medians):.3g} to {max(medians):.3g}",
            ]
        rows.append((f"{weight:g}", *cells))
    without, with_mean = (
        f"{100 * float(np.mean([of_condition(outcomes, name, 'augmented')[:, -1] < 1 for name in names])):.3g} %"
        for names in (
            [name for name, (_, _, mean) in CONDITIONS.items() if not mean],
            [name for name, (_, _, mean) in CONDITIONS.items() if mean],
        )
    )
    heads = ("better than proprietary", "in the worst condition", "error / proprietary, medians")
    count = sum(len(of_condition(outcomes, name, "augmented")) for name in CONDITIONS)
    shown = {"recordings": count, "last_xi": LAST_WEIGHT, "without": without, "with_mean": with_mean}
    told = caption("finding", "predictions", **shown)
    return Table(told, ("ξ", *(f"{model}: {head}" for model in ("client", "server") for head in heads)), tuple(rows))


def _number(value: float, style: str) -> str:
    """A number, or a dash where there is none."""
    return "–" if np.isnan(value) else f"{value:{style}}"


def _low(value: float) -> str:
    """R² of an unstable estimate has no meaningful size."""
    return f"{value:.2f}" if value > -100 else "below -100"


def figures(outcomes: Outcomes) -> dict[str, Drawing]:
    """Against the weight of the penalty."""

    def against(title: str, key: str, y: str, unexplained: bool = False) -> Panel:
        curves = []
        for k, name in enumerate(DRAWN):
            found = median(outcomes, name, key)
            shown = 1 - found if unexplained else found
            curves.append(points(WEIGHTS, shown[None], name.replace("B_mn", "$B_{mn}$"), k))
        ticks, xi = (0.1, 10.0, 1e4, 1e6), "weight of the penalty, ξ"
        return Panel(title, [*curves, level(1.0)], xi, y, log_x=ticks, log_y=unexplained)

    panels = (
        against("Effects", "R2", "not explained, 1 - R²", unexplained=True),
        against("Error of $B_{mn}$", "B", "relative error"),
        against("Prediction, new data", "augmented", "augmented / proprietary error"),
    )
    least = min(float(median(outcomes, name, "default/R2")) for name in DRAWN)
    return {"finding-conditions": Drawing(caption("finding", "weights", least=least), panels)}
